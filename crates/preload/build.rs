//! Links the unwinder into the library instead of having `libgcc_s.so.1` loaded with it: that one asks the processor for what it can do when it is loaded, in
//! each program that starts, and virtual machines answer slowly (0.1 ms and more). With a linker or a libc of another kind nothing changes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The place of a library of the compiler that links, if it has it.
fn library(linker: &str, name: &str) -> Option<PathBuf> {
    let said = Command::new(linker).arg(format!("-print-file-name={name}")).output().ok()?.stdout;
    let path = PathBuf::from(String::from_utf8(said).ok()?.trim());
    (path.is_absolute() && path.exists()).then_some(path)
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let variable = |name: &str| env::var(name).unwrap_or_default();
    let native = variable("TARGET") == variable("HOST") && variable("CARGO_CFG_TARGET_ENV") == "gnu";
    let linker = env::var("RUSTC_LINKER").unwrap_or_else(|_| "cc".into());
    let both = || Some((library(&linker, "libgcc_eh.a")?, library(&linker, "libgcc.a")?));
    let Some((unwinder, support)) = both().filter(|_| native) else { return };
    // A linker script under the name that is asked for.
    let out = variable("OUT_DIR");
    let script = format!("GROUP ( \"{}\" \"{}\" )\n", unwinder.display(), support.display());
    if fs::write(Path::new(&out).join("libgcc_s.so"), script).is_ok() {
        println!("cargo:rustc-link-search=native={out}");
    }
}

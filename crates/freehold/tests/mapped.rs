//! Files of a volume that a program under `freehold run` makes longer while it has them mapped: what it stores behind the old end is there, as in an
//! ordinary directory, and no SIGBUS. Needs /dev/fuse and gcc, without which it is skipped; growth by other processes is not tested, as nothing is
//! promised for it (docs/SEMANTICS.md).

mod common;

use common::{Place, can_mount, library};
use std::path::Path;
use std::process::Command;

/// The bytes of each file, by name.
fn left(at: &Path) -> Vec<(std::ffi::OsString, Vec<u8>)> {
    let files = std::fs::read_dir(at).unwrap().map(|e| e.unwrap());
    let mut files: Vec<_> = files.map(|e| (e.file_name(), std::fs::read(e.path()).unwrap())).collect();
    files.sort();
    files
}

#[test]
fn files_grow_while_they_are_mapped() {
    let p = Place::new();
    std::fs::write(p.path("a.c"), include_str!("run/mapped.c")).unwrap();
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-w", "-o", "a", "a.c"]).current_dir(p.path(""));
    if !can_mount() || !gcc.status().is_ok_and(|s| s.success()) {
        return println!("skipped: this needs /dev/fuse and gcc");
    }
    p.volume("a.img");
    let (mnt, plain) = (p.mkdir("mnt"), p.mkdir("plain"));
    p.line("mount a.img mnt").ok();
    let want = Command::new(p.path("a")).arg(&plain).output().unwrap();
    let mut run = p.command();
    run.env("FREEHOLD_PRELOAD", library()).arg("run").arg("--").arg(p.path("a")).arg(&mnt);
    let got = run.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&want.stdout), String::from_utf8_lossy(&got.stdout));
    assert!(want.status.success() && got.status.success(), "{got:?}");
    let (want, got) = (left(&plain), left(&mnt));
    let is_same = |((a, x), (b, y)): (&(_, Vec<u8>), &(_, Vec<u8>))| a == b && x == y;
    assert!(want.len() == got.len() && want.iter().zip(&got).all(is_same), "what the programs left differs");
    p.line("umount mnt").ok();
    assert!(p.line("fsck a.img").ok().contains("clean"));
}

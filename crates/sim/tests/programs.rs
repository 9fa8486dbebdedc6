//! `freehold-programs` in two ordinary directories: nothing differs; and a program that is started with another umask is found.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

fn compared(at: &Path, arguments: &[&str]) -> Output {
    for name in ["a", "b"] {
        std::fs::create_dir_all(at.join(name)).unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_freehold-programs"));
    command.arg(at.join("a")).arg(at.join("b")).args(arguments).output().unwrap()
}

/// A directory into which all users can go.
fn place() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    dir
}

#[test]
fn ordinary_directories_are_alike() {
    let dir = place();
    let out = compared(dir.path(), &["--seeds", "4", "--calls", "300"]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
    // Each case ends with a look at the tree by each of the four programs.
    assert!(String::from_utf8_lossy(&out.stdout).contains("4 seeds, 1216 calls: all the same"));
    assert_eq!(std::fs::read_dir(dir.path().join("b")).unwrap().count(), 0, "cases are removed");
}

#[test]
fn canary_another_umask_is_found_and_made_small() {
    let dir = place();
    let wrapper = dir.path().join("wrapper");
    std::fs::write(&wrapper, "#!/bin/sh\numask 077\nexec \"$@\"\n").unwrap();
    std::fs::set_permissions(&wrapper, PermissionsExt::from_mode(0o755)).unwrap();
    let out = compared(dir.path(), &["--seeds", "1", "--calls", "300", "--under", wrapper.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(!out.status.success() && said.contains("a difference"), "{said}");
    // Something is made, and looked at.
    assert!(said.lines().take_while(|line| !line.contains("first place")).count() <= 6, "{said}");
    // What was shown can be made again.
    let calls: String = said
        .lines()
        .filter(|line| line.starts_with(|c: char| c.is_ascii_digit()))
        .map(|line| format!("{line}\n"))
        .collect();
    let file = dir.path().join("calls");
    std::fs::write(&file, calls).unwrap();
    let again =
        compared(dir.path(), &["--replay", file.to_str().unwrap(), "--under", wrapper.to_str().unwrap()]);
    assert!(!again.status.success(), "{}", String::from_utf8_lossy(&again.stdout));
}

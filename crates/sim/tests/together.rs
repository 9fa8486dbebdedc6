//! `freehold-together` in an ordinary directory: everything holds; and programs that say too early that they have changed something are found.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

fn together(arguments: &[&str]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    // Another user works there, too.
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let out = Command::new(env!("CARGO_BIN_EXE_freehold-together"))
        .arg(dir.path())
        .args(arguments)
        .output()
        .unwrap();
    if out.status.success() {
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "what was made is removed");
    }
    out
}

#[test]
fn everything_holds_in_an_ordinary_directory() {
    let out = together(&["--seconds", "4"]);
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{said}");
    let changes: u64 = said.split(' ').next().unwrap().parse().unwrap();
    assert!(changes > 1000 && said.contains("everything held"), "{said}");
}

#[test]
fn canary_what_is_said_too_early_is_found() {
    for kinds in ["Word", "Moved", "Mode"] {
        let out = together(&["--seconds", "10", "--early", "--kinds", kinds]);
        let said = String::from_utf8_lossy(&out.stdout);
        assert!(
            !out.status.success() && said.contains(" found ") && said.contains("NOT everything held"),
            "{said}"
        );
    }
}

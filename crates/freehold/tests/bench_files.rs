//! `freehold bench files` on a volume and on a directory: all rows are there, nothing is left, and what it cannot use is refused. On a controller:
//! `lab/tests/systems.sh`.

use freehold::{Allocation, Cred, MkfsOptions, VolumeOptions};
use std::path::Path;
use std::process::{Command, Output};

const ROWS: [&str; 10] = [
    "create",
    "stat",
    "unlink",
    "mkdir",
    "stat-dir",
    "rmdir",
    "seq-read-64k",
    "seq-write-64k",
    "rand-read-4k",
    "rand-write-4k",
];

fn bench(place: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_freehold"));
    command.args(["bench", "files"]).arg(place).args(words);
    for (option, value) in [("--files", "1500"), ("--size", "8M"), ("--seconds", "0.05")] {
        if !words.contains(&option) {
            command.args([option, value]);
        }
    }
    command.output().unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A directory on a disk: a file system in memory may have no direct I/O.
fn home() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn is_whole(output: &Output) {
    assert!(output.status.success(), "{}", said(output));
    let rows: Vec<(String, u64)> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| {
            let mut words = line.split_whitespace();
            (words.next().unwrap().to_owned(), words.next().unwrap().parse().unwrap())
        })
        .collect();
    assert!(rows.iter().map(|row| &row.0[..]).eq(ROWS) && rows.iter().all(|row| row.1 > 0), "{rows:?}");
}

#[test]
fn a_volume() {
    let home = home();
    let image = home.path().join("image");
    freehold::create_image(&image, 128 << 20, Allocation::Sparse).unwrap();
    freehold::mkfs(&image, &MkfsOptions::default()).unwrap();
    is_whole(&bench(&image, &[]));
    is_whole(&bench(&image, &["--depth", "1"]));
    is_whole(&bench(&image, &["--depth", "200", "--size", "40M"]));
    let volume = freehold::open(&image, VolumeOptions::default()).unwrap();
    let files = freehold::client(&volume, Cred::root()).blocking();
    assert_eq!(files.read_dir("/").unwrap().count(), 0, "something is left");
    let output = bench(&image, &[]);
    assert!(!output.status.success() && said(&output).contains("busy"), "{}", said(&output));
    volume.close_blocking().unwrap();
}

#[test]
fn a_directory() {
    let home = home();
    is_whole(&bench(home.path(), &[]));
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0, "something is left");
}

#[test]
fn what_cannot_be_used_is_refused_and_nothing_left() {
    let home = home();
    let image = home.path().join("image");
    std::fs::write(&image, vec![7; 8 << 20]).unwrap();
    for (place, words, why) in [
        (&*image, &[][..], "volume"),
        (&home.path().join("nothing"), &[], "No such file"),
        (home.path(), &["--files", "0"], "0 is not in"),
        (home.path(), &["--depth", "1025"], "1025 is not in"),
        (home.path(), &["--size", "1K"], "at least 1M"),
        (home.path(), &["--size", "8M", "--depth", "65"], "at least twice"),
        (home.path(), &["--seconds", "0"], "expected seconds"),
    ] {
        let output = bench(place, words);
        assert!(!output.status.success() && said(&output).contains(why), "{why}: {}", said(&output));
    }
    // A volume that has no room for the file.
    let small = home.path().join("small");
    freehold::create_image(&small, 32 << 20, Allocation::Sparse).unwrap();
    freehold::mkfs(&small, &MkfsOptions::default()).unwrap();
    let output = bench(&small, &["--size", "64M"]);
    assert!(!output.status.success() && said(&output).contains("no space left"), "{}", said(&output));
    let volume = freehold::open(&small, VolumeOptions::default()).unwrap();
    let files = freehold::client(&volume, Cred::root()).blocking();
    assert_eq!(files.read_dir("/").unwrap().count(), 0, "something is left");
    volume.close_blocking().unwrap();
    assert!(std::fs::read(&image).unwrap() == vec![7; 8 << 20]);
}

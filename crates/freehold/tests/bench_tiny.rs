//! The whole benchmark in a size that says nothing about speed: all workloads run, the report is whole, nothing is left.

use clap::Parser;
use freehold::bench::{BenchArgs, run};

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    bench: BenchArgs,
}

fn bench(dir: &std::path::Path, more: &[&str]) -> anyhow::Result<()> {
    let mut args = vec!["bench", "--dir", dir.to_str().unwrap(), "--quick", "--peers", "none"];
    // Rows that need a child process need the program itself.
    if let Some(program) = option_env!("CARGO_BIN_EXE_freehold") {
        args.extend(["--program", program]);
    }
    args.extend(more);
    run(Args::try_parse_from(args)?.bench)
}

/// A directory on a disk: a file system in memory may have no direct I/O.
fn place() -> tempfile::TempDir {
    tempfile::tempdir_in(std::env::var_os("CARGO_TARGET_TMPDIR").unwrap_or_else(|| "/var/tmp".into()))
        .unwrap()
}

#[test]
fn all_rows_in_a_tiny_size() {
    let dir = place();
    let json = dir.path().join("out.json");
    let mut rows = "create,append-fsync,fsync-threads,seq-write,rand-read,idle-cpu".to_string();
    if option_env!("CARGO_BIN_EXE_freehold").is_some() {
        rows += ",memory-per-file,mount-clean,mount-crash";
    }
    let size = ["--size", "256M", "--files", "2000", "--sequential", "32M", "--repeat", "2", "--only", &rows];
    bench(dir.path(), &[&size[..], &["--json", json.to_str().unwrap()]].concat()).unwrap();
    let text = std::fs::read_to_string(&json).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let row = |name: &str| report["rows"].as_array().unwrap().iter().find(|r| r["name"] == name).cloned();
    for name in ["create", "create+sync", "stat", "readdir", "rename", "unlink", "append-fsync", "fsync-t16"]
    {
        let row = row(name).unwrap_or_else(|| panic!("no row {name}"));
        assert!(row["median"]["freehold"].as_f64().unwrap() > 0.0, "{name}: {row}");
        assert_eq!(row["samples"]["freehold"].as_array().unwrap().len(), 2);
    }
    for name in ["seq-write", "seq-read", "seq-read-lent", "rand-read"] {
        assert!(row(name).unwrap()["ratio"]["raw"].as_f64().unwrap() > 0.0, "{name}");
    }
    assert_eq!(report["failures"].as_array().unwrap().len(), 0);
    std::fs::remove_file(&json).unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "images are left");
}

#[test]
fn bad_arguments_are_refused() {
    let dir = place();
    for bad in [
        &["--only", "warp"][..],
        &["--peers", "zfs"],
        &["--size", "1M"],
        &["--files", "0"],
        &["--size", "100000T"],
        &["--size", "twelve"],
        &["--dir", "/nonexistent"],
    ] {
        assert!(bench(dir.path(), bad).is_err(), "{bad:?}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

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
    assert!(report["ended_early"].is_null());
    the_picture_of(dir.path(), report);
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

/// `--from` draws what such a file holds, once it has rates of ext4, and refuses it before.
fn the_picture_of(dir: &std::path::Path, mut report: serde_json::Value) {
    let (json, svg) = (dir.join("kept.json"), dir.join("kept.svg"));
    let draw = |report: &serde_json::Value| {
        std::fs::write(&json, report.to_string()).unwrap();
        bench(dir, &["--from", json.to_str().unwrap(), "--svg", svg.to_str().unwrap()])
    };
    // `--quick`, which all of these tests have, makes no sense with it.
    assert!(draw(&report).is_err() && !svg.exists());
    let from = |report: &serde_json::Value| {
        std::fs::write(&json, report.to_string()).unwrap();
        let args = ["bench", "--from", json.to_str().unwrap(), "--svg", svg.to_str().unwrap()];
        run(Args::try_parse_from(args).unwrap().bench)
    };
    let refused = from(&report).unwrap_err();
    assert!(format!("{refused:#}").contains("nothing to draw"), "{refused:#}");
    assert!(!svg.exists());
    let row = report["rows"].as_array_mut().unwrap().iter_mut().find(|r| r["name"] == "create").unwrap();
    row["median"]["ext4"] = 1000.0.into();
    from(&report).unwrap();
    let text = std::fs::read_to_string(&svg).unwrap();
    assert!(text.starts_with("<svg ") && text.contains(">create<") && text.ends_with("</svg>\n"), "{text}");
    [json, svg].iter().for_each(|f| std::fs::remove_file(f).unwrap());
}

/// An interruption: the rows that were done are printed and written, the exit code says that it is not all, nothing is left.
#[test]
fn an_interrupted_run_keeps_what_it_has() {
    use std::io::{BufRead, BufReader, Read};
    use std::process::{Command, Stdio};
    let Some(program) = option_env!("CARGO_BIN_EXE_freehold") else { return };
    let dir = place();
    let json = dir.path().join("out.json");
    let mut child = Command::new(program)
        .args([
            "bench",
            "--quick",
            "--peers",
            "none",
            "--size",
            "256M",
            "--files",
            "2000",
            "--sequential",
            "32M",
        ])
        .args(["--only", "create,fsync-threads", "--repeat", "50", "--dir"])
        .args([dir.path().as_os_str(), "--json".as_ref(), json.as_os_str()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains("measured until now") {
        assert!(errors.read_line(&mut said).unwrap() > 0, "ended before its first rows: {said}");
    }
    // SAFETY: the process is a child that nobody has waited for, so the number is its own.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let mut printed = String::new();
    child.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    errors.read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{said}");
    assert!(said.contains("create") && said.contains("the run ended early (interrupted)"), "{said}");
    assert!(
        printed.contains("create") && printed.contains("NOT ALL WAS MEASURED (interrupted)"),
        "{printed}"
    );
    let report: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(report["ended_early"], "interrupted");
    assert_eq!(report["rows"][0]["samples"]["freehold"].as_array().unwrap().len(), 50);
    std::fs::remove_file(&json).unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "images are left");
}

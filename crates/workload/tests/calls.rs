//! `freehold-calls` on an ordinary directory: it measures what it is asked to, and leaves nothing behind.

use std::process::Command;

fn run(arguments: &[&str]) -> (serde_json::Value, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_freehold-calls"))
        .args(["--json", "--files", "50", "--calls", "200", "--dir"])
        .arg(dir.path())
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (serde_json::from_slice(&output.stdout).unwrap(), dir)
}

#[test]
fn all_kinds() {
    for how in [&[][..], &["--shared"], &["--threads", "7"]] {
        let (rows, dir) = run(&[&["--processes", "3"], how].concat());
        let rows = rows.as_array().unwrap();
        assert_eq!(rows.len(), 7);
        for row in rows {
            let calls = if ["create", "unlink", "small-write"].contains(&row["kind"].as_str().unwrap()) {
                150
            } else {
                600
            };
            assert_eq!(row["calls"], calls, "{row}");
            assert!(row["per_second"].as_f64().unwrap() > 0.0);
        }
        assert_eq!(dir.path().read_dir().unwrap().count(), 0);
    }
}

#[test]
fn some_kinds_and_none() {
    let (rows, _dir) = run(&["--only", "unlink"]);
    assert_eq!(rows.as_array().unwrap().len(), 2);
    let (rows, dir) = run(&["--only", "rmdir,mkdir,stat-dir", "--processes", "2"]);
    let told: Vec<_> =
        rows.as_array().unwrap().iter().map(|r| (r["kind"].as_str().unwrap(), r["calls"].as_u64())).collect();
    let expected = [("create", 100), ("mkdir", 100), ("stat-dir", 400), ("rmdir", 100)];
    assert_eq!(told, expected.map(|(kind, calls)| (kind, Some(calls))));
    assert_eq!(dir.path().read_dir().unwrap().count(), 0);
    let (rows, dir) = run(&["--only", "extend-8k,extend-over-8k", "--processes", "2", "--threads", "3"]);
    assert_eq!(
        (rows[1]["kind"].as_str(), rows[2]["kind"].as_str()),
        (Some("extend-8k"), Some("extend-over-8k"))
    );
    assert_eq!((rows[1]["calls"].as_u64(), rows[2]["calls"].as_u64()), (Some(40), Some(40)));
    assert_eq!(dir.path().read_dir().unwrap().count(), 0);
    let (rows, dir) =
        run(&["--only", "rand-64k,rand-4k", "--processes", "2", "--threads", "3", "--data", "2"]);
    assert_eq!((rows[1]["kind"].as_str(), rows[2]["kind"].as_str()), (Some("rand-4k"), Some("rand-64k")));
    assert_eq!((rows[1]["calls"].as_u64(), rows[2]["calls"].as_u64()), (Some(400), Some(400)));
    assert_eq!(dir.path().read_dir().unwrap().count(), 0);
    let wrong = Command::new(env!("CARGO_BIN_EXE_freehold-calls"))
        .args(["--dir", "/tmp", "--only", "x"])
        .output()
        .unwrap();
    assert!(!wrong.status.success());
}

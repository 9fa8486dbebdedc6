//! The program as a whole, on a temporary directory: that each personality does its flow in full, makes and removes its set, ends
//! when it should, and says what failed.

use serde_json::Value;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use workload::{Kind, Personality};

fn command(personality: Personality, dir: &Path, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_freehold-workload"));
    command.arg(personality.name()).arg("--dir").arg(dir).args(arguments.split_whitespace());
    command
}

fn output(personality: Personality, dir: &Path, arguments: &str) -> Output {
    command(personality, dir, arguments).output().unwrap()
}

fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)))
}

fn ops(report: &Value, kind: Kind) -> u64 {
    let rows = report["kinds"].as_array().unwrap();
    rows.iter().find(|row| row["kind"] == kind.name()).map_or(0, |row| row["ops"].as_u64().unwrap())
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).unwrap().next().is_none()
}

/// Number and bytes of the files below `dir`.
fn weigh(dir: &Path) -> (u64, u64) {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries.fold((0, 0), |(files, bytes), entry| {
        let meta = entry.metadata().unwrap();
        let (f, b) = if meta.is_dir() { weigh(&entry.path()) } else { (1, meta.len()) };
        (files + f, bytes + b)
    })
}

/// Each thread does its rounds: every kind is counted as often as it stands in the flow.
#[test]
fn counts_match_the_flow() {
    for personality in Personality::ALL {
        let dir = tempfile::tempdir().unwrap();
        let scale = 60.0 / f64::from(personality.parameters().files);
        let arguments = format!("--scale {scale} --threads 5 --processes 2 --rounds 7 --seconds 60 --json -");
        let out = output(personality, dir.path(), &arguments);
        assert!(out.status.success(), "{personality:?}: {}", errors(&out));
        let report = report(&out);
        assert_eq!(report["rounds"], 35);
        assert_eq!(report["all"]["ops"], 35 * personality.flow().len() as u64);
        for kind in Kind::ALL {
            let wanted = 35 * personality.flow().iter().filter(|k| **k == kind).count() as u64;
            assert_eq!(ops(&report, kind), wanted, "{personality:?} {kind:?}");
        }
        for row in report["kinds"].as_array().unwrap() {
            let us = |name: &str| row[name].as_f64().unwrap();
            assert!(us("max_us") >= us("p99_us") && us("max_us") >= us("mean_us"), "{row}");
        }
        assert!(report["read_mb_per_s"].as_f64().unwrap() > 0.0);
        assert!(report["write_mb_per_s"].as_f64().unwrap() > 0.0);
        assert!(is_empty(dir.path()), "{personality:?} leaves files behind");
    }
}

/// The set is on the disk as planned before the run, and the flow leaves the number of files as it was.
#[test]
fn the_set_has_its_size() {
    for personality in Personality::ALL {
        let dir = tempfile::tempdir().unwrap();
        let parameters = personality.parameters();
        let scale = 100.0 / f64::from(parameters.files);
        let arguments = format!("--scale {scale} --threads 4 --rounds 3 --keep --json -");
        let out = output(personality, dir.path(), &arguments);
        assert!(out.status.success(), "{personality:?}: {}", errors(&out));
        let report = report(&out);
        let exist = u64::from(parameters.existing_percent) + u64::from(parameters.log);
        assert_eq!(report["made"]["files"], exist, "{personality:?}");
        let mean = report["made"]["bytes"].as_u64().unwrap() as f64 / exist as f64;
        assert!((0.6..1.4).contains(&(mean / parameters.mean_file_size as f64)), "{personality:?}: {mean}");
        assert!(report["removed"].is_null());
        let (files, bytes) = weigh(dir.path());
        assert_eq!(files, exist, "{personality:?}");
        if personality == Personality::Webserver {
            let appended: u64 = report["kinds"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|row| row["kind"] == "appendlog")
                .map(|row| row["bytes"].as_u64().unwrap())
                .sum();
            // Two threads that find the same end of the log write over each other.
            assert!(bytes > report["made"]["bytes"].as_u64().unwrap());
            assert!(bytes <= report["made"]["bytes"].as_u64().unwrap() + appended);
        }
    }
}

/// One thread reads, writes and appends the same number of bytes each time.
#[test]
fn the_seed_decides() {
    let run = |seed: u32| {
        let dir = tempfile::tempdir().unwrap();
        let arguments = format!("--scale 0.005 --threads 1 --rounds 20 --json - --seed {seed}");
        let report = report(&output(Personality::Fileserver, dir.path(), &arguments));
        let rows = report["kinds"].as_array().unwrap();
        rows.iter().map(|row| row["bytes"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

/// As many threads as the set allows, in several processes, work for a while without running out of files.
#[test]
fn many_threads_in_processes_stop_at_the_deadline() {
    for personality in [Personality::Varmail, Personality::Fileserver] {
        let dir = tempfile::tempdir().unwrap();
        let scale = 60.0 / f64::from(personality.parameters().files);
        let json = dir.path().join("out.json");
        let arguments = format!("--scale {scale} --threads 12 --processes 4 --seconds 0.7 --json");
        let begin = Instant::now();
        let out = command(personality, dir.path(), &arguments).arg(&json).output().unwrap();
        assert!(out.status.success(), "{}", errors(&out));
        assert!(begin.elapsed() < Duration::from_secs(30));
        let table = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(table.contains("openfile") && table.contains("p99 us") && table.contains("ops/s"), "{table}");
        let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        let seconds = report["seconds"].as_f64().unwrap();
        assert!((0.5..20.0).contains(&seconds), "{seconds}");
        let rate = report["all"]["ops_per_s"].as_f64().unwrap();
        assert!((rate * seconds / report["all"]["ops"].as_f64().unwrap() - 1.0).abs() < 1e-6);
        std::fs::remove_file(&json).unwrap();
        assert!(is_empty(dir.path()));
    }
}

#[test]
fn what_cannot_be_run_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (arguments, says) in [
        ("--scale 0.01", "too few for 16 threads"),
        ("--scale nan", "scale NaN"),
        ("--processes 0", "0 processes"),
        ("--seconds -1", "not a length of time"),
        ("--seconds 0", "0 seconds"),
        ("--threads x", "invalid value"),
    ] {
        let arguments = arguments.replace("--seconds -1", "--seconds=-1");
        let out = output(Personality::Varmail, dir.path(), &arguments);
        assert_eq!(out.status.code(), Some(2), "{arguments}");
        assert!(errors(&out).contains(says), "{arguments}: {}", errors(&out));
    }
    assert!(is_empty(dir.path()));
}

#[test]
fn a_missing_directory_is_reported_with_path_and_errno() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    let out = output(Personality::Varmail, &missing, "--processes 3 --json -");
    assert_eq!(out.status.code(), Some(1));
    let error = &report(&out)["errors"][0];
    assert_eq!((error["call"].as_str(), error["errno"].as_i64()), (Some("mkdir"), Some(2)));
    assert_eq!(error["path"].as_str().unwrap(), missing.join("bigfileset").to_str().unwrap());
    assert!(errors(&out).contains("mkdir") && errors(&out).contains("errno 2"), "{}", errors(&out));
}

/// A set that was there before is neither used nor removed.
#[test]
fn a_former_set_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bigfileset/00000001/00000001");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, "mine").unwrap();
    let out = output(Personality::Varmail, dir.path(), "--seconds 1 --json -");
    assert_eq!(out.status.code(), Some(1));
    assert_eq!(report(&out)["errors"][0]["errno"], 17);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
}

/// Writes fail because files may not grow beyond 4 KiB: the run ends with the error, and the set is removed all the same.
#[test]
fn a_failing_write_ends_the_run_with_its_path_and_errno() {
    let dir = tempfile::tempdir().unwrap();
    let script =
        "trap '' XFSZ; ulimit -f 8; exec \"$0\" fileserver --dir \"$1\" --scale 0.01 --threads 4 --json -";
    let out = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_freehold-workload")])
        .arg(dir.path())
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(1), "{}", errors(&out));
    let report = report(&out);
    let error = &report["errors"][0];
    assert_eq!((error["call"].as_str(), error["errno"].as_i64()), (Some("write"), Some(27)));
    assert!(error["path"].as_str().unwrap().starts_with(dir.path().to_str().unwrap()));
    assert!(report["error_count"].as_u64().unwrap() >= 1);
    assert!(is_empty(dir.path()));
}

/// A file that vanishes during the run fails the operation that wants it.
#[test]
fn a_vanished_file_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let child = start(Personality::Webserver, dir.path(), "--scale 0.05 --threads 2 --json -");
    let victim = wait_for(dir.path());
    std::fs::remove_file(&victim).unwrap();
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    let report = report(&out);
    assert_eq!(report["errors"][0]["path"].as_str(), victim.to_str());
    assert_eq!(report["errors"][0]["errno"], 2);
    assert!(is_empty(dir.path()));
}

fn start(personality: Personality, dir: &Path, arguments: &str) -> Child {
    let mut command = command(personality, dir, arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The processes of a run.
fn children(run: &Child) -> Vec<i32> {
    let text = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", run.id())).unwrap();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// Waits until the run of a webserver goes on, which is when its log grows; returns a file of its set.
fn wait_for(dir: &Path) -> std::path::PathBuf {
    let log = dir.join("logfiles/00000001/00000001");
    let size = || std::fs::metadata(&log).map_or(0, |meta| meta.len());
    let begin = Instant::now();
    let (mut last, mut grown) = (0, 0);
    while grown < 3 {
        assert!(begin.elapsed() < Duration::from_secs(60), "the log does not grow");
        std::thread::sleep(Duration::from_millis(100));
        grown += u32::from(size() > last);
        last = size();
    }
    let mut path = dir.join("bigfileset");
    while path.is_dir() {
        path = std::fs::read_dir(&path).unwrap().next().unwrap().unwrap().path();
    }
    path
}

/// A signal ends the run early: it reports what it has done and removes its files.
#[test]
fn an_interrupted_run_reports_and_tidies_up() {
    let dir = tempfile::tempdir().unwrap();
    let child = start(Personality::Webserver, dir.path(), "--scale 0.05 --threads 4 --processes 2 --json -");
    wait_for(dir.path());
    // SAFETY: the process is our child and has not been waited for.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(130), "{}", errors(&out));
    let report = report(&out);
    assert_eq!(report["interrupted"], true);
    assert!(report["all"]["ops"].as_u64().unwrap() > 0);
    assert!(is_empty(dir.path()));
}

/// A process that is killed is a failure of the run; the others tidy up.
#[test]
fn a_dead_process_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let child = start(Personality::Webserver, dir.path(), "--scale 0.05 --threads 4 --processes 3 --json -");
    wait_for(dir.path());
    let first = children(&child)[0];
    // SAFETY: the process belongs to our child, which waits for it only after it has ended.
    assert_eq!(unsafe { libc::kill(first, libc::SIGKILL) }, 0);
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(1), "{}", errors(&out));
    let report = report(&out);
    assert_eq!(report["problems"][0], "process 0 ended by signal 9");
    assert!(is_empty(dir.path()));
}

/// A process that does not come back after the deadline is killed, and the others tidy up.
#[test]
fn a_hanging_process_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let arguments = "--scale 0.05 --threads 4 --processes 2 --seconds 2 --patience 0.5 --json -";
    let child = start(Personality::Webserver, dir.path(), arguments);
    wait_for(dir.path());
    let first = children(&child)[0];
    // SAFETY: the process belongs to our child, which waits for it only after it has ended.
    assert_eq!(unsafe { libc::kill(first, libc::SIGSTOP) }, 0);
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(1), "{}", errors(&out));
    let report = report(&out);
    assert_eq!(report["problems"][0], "process 0 did not finish Run in time and was killed");
    assert!(report["all"]["ops"].as_u64().unwrap() > 0);
    assert!(is_empty(dir.path()));
}

/// Processes whose parent was killed end by themselves.
#[test]
fn orphans_end() {
    let dir = tempfile::tempdir().unwrap();
    let arguments = "--scale 0.05 --threads 2 --processes 2 --seconds 60 --keep";
    let mut child = start(Personality::Webserver, dir.path(), arguments);
    wait_for(dir.path());
    let processes = children(&child);
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    let begin = Instant::now();
    for pid in processes {
        // A process that nobody waits for any more stays as a zombie where no init looks after it.
        let runs =
            || std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z"));
        while runs() {
            assert!(begin.elapsed() < Duration::from_secs(30), "process {pid} goes on");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

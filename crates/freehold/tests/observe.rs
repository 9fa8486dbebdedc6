//! What an operator sees of a running server: `freehold clients`, `freehold top`, metrics, and the files for systemd.
//!
//! Verifies that real calls through the mount and through sessions are shown by all three, that the metrics are well-formed text,
//! that strangers are refused, and that a server with all of it sleeps while nobody asks. Without /dev/fuse, or without root and
//! fusermount3, each only says that it was skipped.

mod common;

use common::{Place, can_mount, eventually, is_root};
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A port that was free a moment ago.
fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn get(at: SocketAddr, target: &str) -> (String, String) {
    let mut stream = TcpStream::connect(at).unwrap();
    write!(stream, "GET {target} HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.into(), body.into())
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// Samples by name and labels. Every line must be what the text format allows, every name introduced once, by HELP and TYPE.
fn parse(text: &str) -> HashMap<String, f64> {
    let name = |n: &str| {
        let mut chars = n.chars();
        chars.next().is_some_and(|c| c.is_ascii_lowercase())
            && chars.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    let (mut samples, mut kinds, mut current) = (HashMap::new(), HashMap::new(), String::new());
    let mut helped = HashSet::new();
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (n, help) = rest.split_once(' ').unwrap();
            assert!(name(n) && !help.is_empty() && helped.insert(n.to_string()), "{line}");
            continue;
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (n, kind) = rest.split_once(' ').unwrap();
            assert!(helped.contains(n) && ["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", n.ends_with("_total"), "{line}");
            assert!(kinds.insert(n.to_string(), kind.to_string()).is_none(), "{line}");
            current = n.to_string();
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no value: {line}"));
        let value: f64 = value.parse().unwrap_or_else(|e| panic!("{e}: {line}"));
        let (n, labels) = series.split_once('{').unwrap_or_else(|| panic!("no labels: {line}"));
        let base = match kinds[&current].as_str() {
            "histogram" => ["_bucket", "_sum", "_count"].iter().find_map(|s| n.strip_suffix(s)).unwrap(),
            _ => n,
        };
        assert!(base == current && n.starts_with("freehold_") && name(n), "{line} under {current}");
        let labels = labels.strip_suffix('}').unwrap();
        for label in labels.split("\",") {
            let (l, v) = label.split_once("=\"").unwrap_or_else(|| panic!("{label} in {line}"));
            assert!(name(l) && !v.contains('\n'), "{line}");
        }
        assert!(value.is_finite() && value >= 0.0, "{line}");
        assert!(samples.insert(series.to_string(), value).is_none(), "twice: {line}");
    }
    samples
}

/// Buckets never fall, and the last is the count.
fn check_histograms(text: &str) {
    let mut last: Option<(String, f64)> = None;
    for line in text.lines().filter(|l| l.starts_with("freehold_call_duration_seconds_")) {
        let value: f64 = line.rsplit_once(' ').unwrap().1.parse().unwrap();
        if let Some((series, _)) = line.split_once(",le=") {
            if let Some((before, count)) = &last {
                assert!(before != series || *count <= value, "{line}");
            }
            last = Some((series.to_string(), value));
        } else if line.contains("_count{") {
            assert_eq!(last.as_ref().map(|l| l.1), Some(value), "{line}");
        }
    }
    assert!(last.is_some());
}

/// How often the threads of a process went to sleep.
fn sleeps(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let status = |t: std::fs::DirEntry| std::fs::read_to_string(t.path().join("status")).unwrap_or_default();
    let count = |s: String| {
        let line = s.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|n| n.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    tasks.flatten().map(|t| count(status(t))).sum()
}

/// Who keeps others waiting is seen, and can be made to end; a real process that is stopped, and one that waits through the mount.
#[test]
fn a_stopped_client_is_evicted() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    p.volume("a.img");
    let mnt = p.mkdir("mnt");
    p.line("mount a.img mnt --log log").ok();
    let run = |script: &str| {
        let mut command = p.command();
        command
            .env("FREEHOLD_PRELOAD", common::library())
            .env("T", &mnt)
            .args(["run", "--", "bash", "-c", script]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    std::fs::write(mnt.join("lock"), "").unwrap();
    // It stops itself as soon as it has the lock.
    let mut holder = run("exec flock -o \"$T/lock\" sh -c 'kill -STOP $PPID; sleep 5'");
    let state = || {
        let all = json(&p.line("clients --json mnt").ok());
        all.as_array().unwrap().iter().find(|c| c["locks"] != 0).cloned()
    };
    eventually("the lock is held and its holder stopped", || state().is_some_and(|c| c["state"] == "T"));
    let held = state().unwrap();
    assert_eq!((held["waiting"].as_u64(), held["locks"].as_u64()), (Some(0), Some(1)), "{held}");
    // A waiter that comes through the kernel.
    let mut waiter = Command::new("flock").arg(mnt.join("lock")).arg("true").spawn().unwrap();
    eventually("somebody waits", || state().is_some_and(|c| c["waiting"] == 1));
    std::thread::sleep(Duration::from_millis(300));
    assert!(waiter.try_wait().unwrap().is_none(), "robbed of a lock");
    let seen = state().unwrap();
    assert!(
        seen["waiting_seconds"].as_f64().unwrap() >= 0.25
            && seen["locks_seconds"].as_f64() >= held["locks_seconds"].as_f64()
    );
    let table = p.line("clients mnt").ok();
    assert!(table.contains("Waiting") && table.contains(" T ") && table.contains("1 ("), "{table}");
    p.line("clients --evict 999999 mnt").fails(&["no session 999999"]);
    assert_eq!(p.line("clients --evict 1").code, Some(2), "of which volume?");
    p.line(&format!("clients --evict {} mnt", held["session"])).ok();
    eventually("the waiter has the lock", || state().is_none());
    assert!(waiter.wait().unwrap().success());
    holder.kill().unwrap();
    holder.wait().unwrap();
    p.line("umount mnt").ok();
    assert!(p.line("fsck a.img").ok().contains("clean"));
}

/// A user who is neither root nor the one who serves.
const STRANGER: u32 = 54_321;

#[test]
fn a_server_is_seen_and_sleeps() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    let image = p.volume("a.img");
    let mnt = p.mkdir("mnt");
    let (socket, at) = (p.path("socket"), free_port());
    p.line(&format!("mount a.img mnt -o share={},metrics={at},dirty_age=0.2 --log log", socket.display()))
        .ok();
    let pid = freehold::mounts::lock_holder(&image).unwrap().pid;
    let fs = freehold::connect(&socket).unwrap().blocking();
    let options = freehold::OpenOptions::new().read(true).write(true).create(true);
    // What is written to a file that nobody else has open is posted, which are calls of another kind.
    let file = fs.open("/shared", options).unwrap();
    let beside = std::fs::File::open(mnt.join("shared")).unwrap();
    for i in 0..50 {
        file.write_all_at(&[i; 4096], i as u64 * 4096).unwrap();
        file.read_at(&mut [0; 4096], i as u64 * 4096).unwrap();
    }
    file.fsync().unwrap();
    std::fs::write(mnt.join("kernel"), vec![1u8; 100_000]).unwrap();
    assert!(std::fs::metadata(mnt.join("none")).is_err() && fs.stat("/none").is_err());

    // The snapshot itself.
    let shown = freehold::control::ask(&image).unwrap();
    assert_eq!((shown.volume.pid, shown.sessions.len(), shown.sessions[0].handles), (pid, 1, 1));
    // Reads that a client answers from a window are no calls.
    assert_eq!(shown.sessions[0].bytes_written, 204_800);
    let media = shown.media.unwrap();
    assert!(media.writes > 0 && media.bytes_written >= 204_800 && media.queue_depth > 0);
    assert!(shown.cache.hits >= 1 && shown.cache.bytes_used >= 204_800 && shown.cache.bytes > 0);
    assert!(shown.space.unwrap().inodes_used >= 3 && shown.engine.flushes > 0);

    // clients, by mount point, image, everything.
    for line in ["clients --json mnt", "clients --json a.img", "clients --json mnt/none/.."] {
        if line.contains("none") {
            std::fs::create_dir(mnt.join("none")).unwrap();
        }
        let all = json(&p.line(line).ok());
        let [one] = all.as_array().unwrap().as_slice() else { panic!("{all}") };
        assert_eq!(one["pid"].as_u64().unwrap(), std::process::id() as u64);
        let comm = std::fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!((one["program"].as_str().unwrap(), one["handles"].as_u64()), (comm.trim(), Some(1)));
        assert!(one["calls"].as_u64().unwrap() >= 52 && one["idle_seconds"].as_f64().unwrap() >= 0.0);
    }
    let table = p.line("clients").out;
    assert!(table.lines().any(|l| l.starts_with(&std::process::id().to_string())), "{table}");
    p.line("clients log").fails(&["nobody serves"]);
    p.line("clients nowhere").fails(&["nowhere"]);

    // top, with work going on meanwhile.
    let top = |more: &str| {
        let mut words = vec!["top", "mnt", "--once", "--interval", "0.5"];
        words.extend(more.split_whitespace());
        let child = p.command().args(words).stdout(Stdio::piped()).spawn().unwrap();
        for i in 0..60 {
            file.write_all_at(&[i; 100], 0).unwrap();
            std::fs::metadata(mnt.join(format!("none{i}{more}"))).unwrap_err();
            std::thread::sleep(Duration::from_millis(10));
        }
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success());
        String::from_utf8(out.stdout).unwrap()
    };
    let seen = json(&top("--json"));
    let call = |door: &str, call: &str| {
        let all = seen["calls"].as_array().unwrap();
        all.iter()
            .find(|c| c["door"] == door && c["call"] == call)
            .cloned()
            .unwrap_or_else(|| panic!("{call} in {seen}"))
    };
    let (write, lookup) = (call("share", "write"), call("fuse", "lookup"));
    assert!(write["count"].as_u64().unwrap() > 5 && lookup["count"].as_u64().unwrap() > 5, "{seen}");
    let times = ["p50_ns", "p99_ns", "max_ns"].map(|t| write[t].as_u64().unwrap());
    assert!(times[0] > 0 && times.is_sorted(), "{write}");
    assert!(seen["clients"][0]["calls_per_second"].as_f64().unwrap() > 1.0, "{seen}");
    let text = top("");
    for part in ["cache", "device", "share", "write", "fuse", "lookup", "p99", "Program"] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    p.line("top mnt").fails(&["--once"]);

    // Metrics.
    let (head, body) = get(at, "/metrics");
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/plain; version=0.0.4"), "{head}");
    let samples = parse(&body);
    check_histograms(&body);
    let image_name = image.display();
    for (series, least) in [
        (
            format!(
                "freehold_call_duration_seconds_count{{volume=\"{image_name}\",door=\"share\",call=\"write\"}}"
            ),
            50.0,
        ),
        (format!("freehold_call_errors_total{{volume=\"{image_name}\",door=\"share\",call=\"walk\"}}"), 1.0),
        (format!("freehold_written_bytes_total{{volume=\"{image_name}\",door=\"share\"}}"), 204_800.0),
        (format!("freehold_device_flushes_total{{volume=\"{image_name}\"}}"), 1.0),
        (format!("freehold_space_free_bytes{{volume=\"{image_name}\"}}"), 1.0),
        (format!("freehold_sessions{{volume=\"{image_name}\"}}"), 1.0),
    ] {
        assert!(samples.get(&series).is_some_and(|v| *v >= least), "{series} in\n{body}");
    }
    assert!(get(at, "/").0.starts_with("HTTP/1.1 404"));

    // A stranger is refused; nothing is told, and nothing breaks.
    if is_root() {
        let program = p.path("program");
        std::fs::copy(env!("CARGO_BIN_EXE_freehold"), &program).unwrap();
        let open = || std::os::unix::fs::PermissionsExt::from_mode(0o755);
        [p.path(""), program.clone()].iter().for_each(|path| std::fs::set_permissions(path, open()).unwrap());
        for line in [["clients", "a.img"], ["top", "a.img"]] {
            let mut command = Command::new(&program);
            std::os::unix::process::CommandExt::uid(command.args(line).current_dir(p.path("")), STRANGER);
            let out = command.output().unwrap();
            let said = String::from_utf8_lossy(&out.stderr).into_owned();
            assert!(out.status.code() == Some(1) && said.contains("only that user and root"), "{said}");
            assert!(out.stdout.is_empty());
        }
    }

    // Everything is written, then nothing happens for a second.
    eventually("nothing is dirty", || freehold::control::ask(&image).unwrap().cache.bytes_dirty == 0);
    let mut quiet = false;
    for _ in 0..10 {
        std::thread::sleep(Duration::from_millis(500));
        let before = sleeps(pid);
        std::thread::sleep(Duration::from_secs(1));
        quiet = sleeps(pid) == before;
        if quiet {
            break;
        }
    }
    assert!(quiet, "an idle server does not wake");

    drop((file, fs, beside));
    eventually("the client is gone", || {
        json(&p.line("clients --json mnt").ok()).as_array().unwrap().is_empty()
    });
    p.line("umount mnt").ok();
    assert!(freehold::control::ask(&image).is_err() && TcpStream::connect(at).is_err());
}

/// A pseudo-terminal: our side, and that of a program.
fn terminal() -> (std::fs::File, std::os::fd::OwnedFd) {
    use std::os::fd::FromRawFd;
    let (mut ours, mut theirs) = (-1, -1);
    let size = libc::winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the pointers are to local variables or null; the descriptors that come back are nobody else's.
    unsafe {
        assert_eq!(libc::openpty(&mut ours, &mut theirs, std::ptr::null_mut(), std::ptr::null(), &size), 0);
        (std::fs::File::from_raw_fd(ours), std::os::fd::OwnedFd::from_raw_fd(theirs))
    }
}

fn flags(terminal: &impl std::os::fd::AsRawFd) -> u32 {
    // SAFETY: an all-zero termios is valid, and the pointer is to one.
    unsafe {
        let mut t: libc::termios = std::mem::zeroed();
        assert_eq!(libc::tcgetattr(terminal.as_raw_fd(), &mut t), 0);
        t.c_lflag
    }
}

#[test]
fn top_leaves_the_terminal_as_it_was() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    p.volume("a.img");
    p.mkdir("mnt");
    p.line("mount a.img mnt").ok();
    for end in ["q", "\x03", "TERM", "INT", "the server ends"] {
        let (ours, theirs) = terminal();
        let before = flags(&theirs);
        let mut command = p.command();
        command.args(["top", "mnt", "--interval", "0.1"]).env("TERM", "xterm");
        command.stdin(theirs.try_clone().unwrap()).stdout(theirs.try_clone().unwrap());
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        drop(command);
        let until = |part: &str| {
            let (mut seen, mut bytes) = (Vec::new(), [0; 4096]);
            while !String::from_utf8_lossy(&seen).contains(part) {
                let n = (&ours).read(&mut bytes).unwrap();
                seen.extend_from_slice(&bytes[..n]);
            }
            String::from_utf8_lossy(&seen).into_owned()
        };
        let picture = until("cache ");
        assert!(picture.starts_with("\x1b[?1049h") && flags(&theirs) != before, "{picture}");
        until("cache ");
        // SAFETY: kill has no memory preconditions; the process is this test's child.
        let kill = |signal| assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
        match end {
            "TERM" => kill(libc::SIGTERM),
            "INT" => kill(libc::SIGINT),
            "the server ends" => drop(p.line("umount mnt").ok()),
            keys => (&ours).write_all(keys.as_bytes()).unwrap(),
        }
        until("\x1b[?1049l");
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some((end == "the server ends") as i32), "{end}");
        assert_eq!(flags(&theirs), before, "{end}");
    }
}

#[test]
fn one_port_tells_of_all_volumes() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    let at = free_port();
    let mut config = format!("metrics = \"{at}\"\n");
    for name in ["a", "b"] {
        p.volume(&format!("{name}.img"));
        p.mkdir(name);
        config += &format!("[[volume]]\nimage = \"{name}.img\"\nmountpoint = \"{name}\"\n");
    }
    std::fs::write(p.path("v.toml"), config).unwrap();
    let mut child = p.command().args(["serve", "-c", "v.toml"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    for _ in 0..2 {
        assert!(log.next().unwrap().unwrap().contains("is served at"));
    }
    std::thread::spawn(move || log.for_each(drop));
    eventually("it answers", || TcpStream::connect(at).is_ok());
    let samples = parse(&get(at, "/metrics").1);
    let of =
        |samples: &HashMap<String, f64>| samples.keys().filter(|k| k.starts_with("freehold_uptime")).count();
    assert_eq!(of(&samples), 2);
    p.line("top").fails(&["say which one", "a.img", "b.img"]);
    // The port is taken: nothing is mounted.
    p.volume("c.img");
    p.mkdir("c");
    p.line(&format!("mount c.img c -o metrics={at}")).fails(&["metrics at", "in use"]);
    assert!(!p.is_mounted("c"));
    p.line("umount a").ok();
    assert_eq!(of(&parse(&get(at, "/metrics").1)), 1, "what is not served is not told");
    // SAFETY: kill has no memory preconditions; the process is this test's child.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGTERM) }, 0);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn the_unit_is_understood_by_systemd() {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/freehold.service");
    let text = std::fs::read_to_string(unit).unwrap();
    assert!(
        text.contains("Type=notify")
            && text.contains("KillSignal=SIGTERM")
            && text.contains("TimeoutStopSec=")
    );
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("freehold.service");
    std::fs::write(&copy, text.replace("/usr/local/bin/freehold", env!("CARGO_BIN_EXE_freehold"))).unwrap();
    let Ok(out) = Command::new("systemd-analyze").arg("verify").arg(&copy).output() else {
        return println!("skipped: there is no systemd-analyze");
    };
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    if !out.status.success() && !said.contains("freehold.service") {
        return println!("skipped: systemd-analyze does not work here: {said}");
    }
    assert!(out.status.success() && !said.contains("freehold.service:"), "{said}");
}

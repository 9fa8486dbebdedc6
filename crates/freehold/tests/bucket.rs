//! A mounted bucket: what programs are told is done is in the store whatever happens to the server of the mount, and what the server says of itself.
//!
//! With a simulated store, or the one that `FREEHOLD_TEST_S3=http://HOST:PORT/BUCKET` names (scripts/object-servers.sh). The kill loop lasts 12 seconds, or
//! `FREEHOLD_KILL_SECONDS`, from the seed `FREEHOLD_KILL_SEED`. Without /dev/fuse, or without root and fusermount3, each test only says that it was skipped.

mod common;
#[path = "bucket/end.rs"]
mod end;
#[path = "bucket/gone.rs"]
mod gone;
#[path = "bucket/load.rs"]
mod load;
#[path = "bucket/store.rs"]
mod store;

use common::{Place, Random, can_mount, eventually};
use load::May;
use sim::s3::{Faults, Features, Rates, Times};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};
use store::Store;

const SMALL_PARTS: Features = Features { part_min: 1, ..Features::ALL };

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect(name))
}

fn signal(pid: u32, signal: i32) {
    // SAFETY: kill has no memory preconditions; pid is a server that the test started.
    assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0);
}

fn umount(p: &Place, dir: &str) {
    // The process that had it open last may not have gone yet.
    eventually("it is unmounted", || {
        let _ = p.line(&format!("umount {dir}"));
        !p.is_mounted(dir)
    });
}

/// The server of a mount is killed at any moment; what its programs were told is done is in the bucket, nothing half-written is, and what it had sent is
/// found and can be given up.
#[test]
fn the_server_of_a_mount_is_killed() {
    if !can_mount() {
        return;
    }
    const WORKERS: u64 = 3;
    let seed = number("FREEHOLD_KILL_SEED", 1);
    let until = Instant::now() + Duration::from_secs(number("FREEHOLD_KILL_SECONDS", 12));
    let (p, store) = (Place::new(), Store::new(SMALL_PARTS));
    // Some requests are done so late that their client is gone.
    if let Some(server) = store.simulated() {
        server.set_faults(Faults::new(Rates { delay: 300, ..Default::default() }, seed));
    }
    let mnt = p.mkdir("mnt");
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut may: BTreeMap<String, May> = BTreeMap::new();
    let (mut rounds, mut done, mut unknown, mut left) = (0, 0, 0, 0);
    while Instant::now() < until || rounds < 3 {
        let server = store.mount(&p, &mnt, "");
        let wait = Duration::from_millis(random.below(700));
        let works = std::thread::scope(|scope| {
            let all: Vec<_> = (0..WORKERS)
                .map(|worker| {
                    let dir = format!("w{worker}");
                    let (mut states, mut random) =
                        (may.remove(&dir).unwrap_or_default(), Random(random.below(u64::MAX) | 1));
                    let at = mnt.join(&dir);
                    scope.spawn(move || {
                        let mut done = 0;
                        if at.exists() || std::fs::create_dir(&at).is_ok() {
                            load::work(&at, &mut random, &mut states, &mut done);
                        }
                        (dir, states, done)
                    })
                })
                .collect();
            std::thread::sleep(wait);
            signal(server, libc::SIGKILL);
            all.into_iter().map(|one| one.join().unwrap()).collect::<Vec<_>>()
        });
        umount(&p, "mnt");
        store.settle();
        let files = store.files();
        let mut expected = 0;
        for (dir, mut states, calls) in works {
            done += calls;
            for (name, states) in &mut states {
                let found = files.get(&format!("{dir}/{name}"));
                unknown += (states.len() > 1) as u64;
                expected += found.is_some() as usize;
                let fits = states.iter().any(|state| state.as_ref() == found);
                let len = |state: &Option<Vec<u8>>| state.as_ref().map(Vec::len);
                let lens: Vec<_> = states.iter().map(len).collect();
                assert!(
                    fits,
                    "seed {seed}, round {rounds}: {dir}/{name} has {:?} bytes, may have {lens:?}",
                    found.map(Vec::len)
                );
                *states = vec![found.cloned()];
            }
            may.insert(dir, states);
        }
        assert_eq!(
            files.len(),
            expected,
            "seed {seed}, round {rounds}: there is more than was written: {:?}",
            files.keys()
        );
        left += unfinished(&p, &store, rounds);
        rounds += 1;
    }
    println!(
        "seed {seed}: {rounds} rounds, {done} calls done, {unknown} of unknown end, {left} unfinished uploads found and given up"
    );
    assert!(done > 20 && unknown > 0, "nothing was tested");
    // Who comes next reads it.
    store.mount(&p, &mnt, "");
    for (dir, states) in &may {
        for (name, states) in states {
            let found = std::fs::read(mnt.join(dir).join(name)).ok();
            assert!(found == states[0], "{dir}/{name}");
        }
    }
    umount(&p, "mnt");
}

/// What killed uploads have left is listed, and given up. Returns how many there were.
fn unfinished(p: &Place, store: &Store, round: u64) -> u64 {
    let run = |words: &[&str]| {
        let said = store.command(p).args(words).output().unwrap();
        assert!(said.status.success(), "{said:?}");
        String::from_utf8(said.stdout).unwrap()
    };
    let listed = run(&["object", "parts", &store.url()])
        .lines()
        .filter(|line| line.ends_with("parts, 0 B") || line.contains(" parts, "))
        .count() as u64;
    if let Some(server) = store.simulated() {
        assert_eq!(listed, server.look(|bucket| bucket.uploads()) as u64);
    }
    if round % 2 == 1 {
        run(&["object", "gc", &store.url(), "--older", "0"]);
        assert!(run(&["object", "ls", &store.url()]).contains("no unfinished uploads"));
        return listed;
    }
    0
}

/// What is old is given up, but not what somebody writes still, nor what may be young.
#[test]
fn uploads_that_are_written_are_not_given_up() {
    let (p, store) = (Place::new(), Store::new(SMALL_PARTS));
    let Some(server) = store.simulated() else { return };
    let ask = |method: &str, target: &str| {
        let endpoint = server.endpoint();
        let mut stream = TcpStream::connect(endpoint.trim_start_matches("http://")).unwrap();
        let key = sim::s3::KEY_ID;
        let request =
            format!("{method} /bucket/{target} HTTP/1.1\r\nauthorization: Credential={key}/\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains(" 200 "), "{answer}");
        answer
    };
    let now = SystemTime::now();
    let old = Some(now - Duration::from_secs(30 * 86400));
    for (key, begun, parts) in [
        ("old", old, old),
        ("old-untold", None, old),
        ("written", old, Some(now)),
        ("young", Some(now), None),
        ("untold", None, None),
    ] {
        let begun_id = ask("POST", &format!("{key}?uploads="));
        let id = begun_id.split_once("<UploadId>").and_then(|(_, rest)| rest.split_once('<')).unwrap().0;
        ask("PUT", &format!("{key}?partNumber=1&uploadId={id}"));
        server.look(|bucket| bucket.date_uploads(key, Times { begun, parts }));
    }
    let run = |words: &[&str]| {
        let said = store.command(&p).args(["object"]).args(words).output().unwrap();
        assert!(said.status.success(), "{said:?}");
        String::from_utf8(said.stdout).unwrap()
    };
    let url = store.url();
    let would = run(&["gc", &url, "-n"]);
    assert!(would.contains("would give up old ") && server.look(|bucket| bucket.uploads()) == 5, "{would}");
    let done = run(&["gc", &url]);
    assert!(done.contains("given up old ") && done.contains("given up old-untold "), "{done}");
    assert!(done.contains("left alone untold ") && done.contains("1 of unknown age"), "{done}");
    let listed = run(&["ls", &url]);
    assert_eq!(server.look(|bucket| bucket.uploads()), 3, "{listed}");
    for key in ["written", "young", "untold"] {
        assert!(listed.contains(&format!("  {key}  ")), "{listed}");
    }
    assert!(listed.contains("unknown  untold"), "{listed}");
}

/// Adds a line to a file as a program does; the error of close(2) counts.
fn add(path: &Path, line: &str) -> std::io::Result<()> {
    let mut file = std::fs::File::options().append(true).open(path)?;
    let written = file.write_all(line.as_bytes());
    let closed = load::close(file);
    written.and(closed)
}

/// Two mounts of one bucket, on one name: every line that close(2) acknowledged is there once; the others are told ESTALE, and say their line again.
#[test]
fn two_mounts_write_one_file() {
    if !can_mount() {
        return;
    }
    let (p, store) = (Place::new(), Store::new(SMALL_PARTS));
    let dirs = [p.mkdir("one"), p.mkdir("two")];
    for dir in &dirs {
        store.mount(&p, dir, ",expiry=0");
    }
    std::fs::write(dirs[0].join("log"), "").unwrap();
    let late: u64 = std::thread::scope(|scope| {
        let all: Vec<_> = dirs
            .iter()
            .enumerate()
            .map(|(who, dir)| {
                scope.spawn(move || {
                    let mut late = 0;
                    for number in 0..40 {
                        let line = format!("{who} {number}\n");
                        while let Err(e) = add(&dir.join("log"), &line) {
                            assert_eq!(e.raw_os_error(), Some(libc::ESTALE), "{e}");
                            late += 1;
                        }
                    }
                    late
                })
            })
            .collect();
        all.into_iter().map(|one| one.join().unwrap()).sum()
    });
    let log = String::from_utf8(store.files()["log"].clone()).unwrap();
    let mut lines: Vec<&str> = log.lines().collect();
    lines.sort_unstable();
    let mut expected: Vec<String> =
        (0..2).flat_map(|who| (0..40).map(move |n| format!("{who} {n}"))).collect();
    expected.sort_unstable();
    println!("{late} were told that it was too late");
    assert_eq!(lines, expected);
    ["one", "two"].iter().for_each(|dir| umount(&p, dir));
}

/// What of an old file is replaced stays until what replaces it is whole.
#[test]
fn an_overwritten_file_is_one_or_the_other() {
    if !can_mount() {
        return;
    }
    let (p, store) = (Place::new(), Store::new(SMALL_PARTS));
    let mnt = p.mkdir("mnt");
    store.mount(&p, &mnt, "");
    std::fs::write(mnt.join("a"), "the old one").unwrap();
    let mut file = std::fs::File::create(mnt.join("a")).unwrap();
    assert_eq!(store.files()["a"], b"the old one", "it is only open");
    file.write_all(b"new").unwrap();
    assert_eq!(std::fs::read(mnt.join("a")).unwrap(), b"new", "as the machine sees it");
    assert_eq!(store.files()["a"], b"the old one", "as others see it");
    load::close(file).unwrap();
    assert_eq!(store.files()["a"], b"new");
    // Without anybody who writes, it is cut at once.
    // SAFETY: the path ends with a NUL.
    let path = std::ffi::CString::new(mnt.join("a").to_str().unwrap()).unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { libc::truncate(path.as_ptr(), 1) }, 0);
    assert_eq!(store.files()["a"], b"n");
    umount(&p, "mnt");
}

/// A child has the descriptors of its parent; that it closes them makes nothing visible, and what it writes counts.
#[test]
fn children_that_only_close_commit_nothing() {
    if !can_mount() {
        return;
    }
    let (p, store) = (Place::new(), Store::new(SMALL_PARTS));
    let mnt = p.mkdir("mnt");
    store.mount(&p, &mnt, "");
    let ends = |command: &mut std::process::Command| assert!(command.status().unwrap().success());
    let mut file = std::fs::File::create(mnt.join("a")).unwrap();
    file.write_all(b"one ").unwrap();
    // It has the descriptor until it becomes another program.
    ends(&mut std::process::Command::new("true"));
    assert_eq!(store.files().get("a"), None, "half a file");
    ends(std::process::Command::new("printf").arg("two ").stdout(file.try_clone().unwrap()));
    assert_eq!(store.files()["a"], b"one two ", "who wrote has closed");
    // Another thread of the process that wrote.
    file.write_all(b"three").unwrap();
    std::thread::spawn(|| load::close(file)).join().unwrap().unwrap();
    assert_eq!(store.files()["a"], b"one two three");
    umount(&p, "mnt");
}

/// The whole server stays small with many streams: its memory for data, and everything beside that.
#[test]
fn memory_with_64_streams_is_bounded() {
    if !can_mount() {
        return;
    }
    const STREAMS: u8 = 64;
    const CALLS: usize = 3;
    let (p, store) = (Place::new(), Store::new(Features { part_min: 5 << 20, ..Features::ALL }));
    let mnt = p.mkdir("mnt");
    let at = free_port();
    let server = store.mount(&p, &mnt, &format!(",metrics={at}"));
    let peak = || {
        let status = std::fs::read_to_string(format!("/proc/{server}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
    };
    let all_at_once = |one: &(dyn Fn(u8) + Sync)| {
        std::thread::scope(|scope| (0..STREAMS).for_each(|stream| drop(scope.spawn(move || one(stream)))))
    };
    all_at_once(&|stream| {
        let mut file = std::fs::File::create(mnt.join(stream.to_string())).unwrap();
        let call = vec![stream; 4 << 20];
        (0..CALLS).for_each(|_| file.write_all(&call).unwrap());
        load::close(file).unwrap();
    });
    let writing = peak();
    all_at_once(&|stream| {
        let mut file = std::fs::File::open(mnt.join(stream.to_string())).unwrap();
        let (mut call, mut total) = (vec![0; 4 << 20], 0);
        loop {
            match file.read(&mut call).unwrap() {
                0 => break,
                n => {
                    assert!(call[..n].iter().all(|byte| *byte == stream));
                    total += n;
                }
            }
        }
        assert_eq!(total, CALLS * (4 << 20));
    });
    let reading = peak();
    println!("at most {writing} MiB after writing, {reading} MiB after reading, with {STREAMS} streams");
    metrics(at)
        .iter()
        .filter(|(name, _)| name.contains("memory_max"))
        .for_each(|(name, bytes)| println!("{name} {bytes}"));
    assert!(reading <= 300, "{reading} MiB");
    umount(&p, "mnt");
}

/// A port that was free a moment ago.
fn free_port() -> std::net::SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Samples of the metrics by name and labels.
fn metrics(at: std::net::SocketAddr) -> BTreeMap<String, f64> {
    let mut stream = TcpStream::connect(at).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (_, body) = text.split_once("\r\n\r\n").unwrap();
    let samples = body.lines().filter(|line| !line.starts_with('#'));
    samples
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(name, value)| (name.into(), value.parse().unwrap()))
        .collect()
}

/// Metrics and the report tell what was done.
#[test]
fn a_mount_tells_what_it_does() {
    if !can_mount() {
        return;
    }
    let (p, store) = (Place::new(), Store::new(Features { rename: false, ..SMALL_PARTS }));
    let mnt = p.mkdir("mnt");
    let at = free_port();
    let server = store.mount(&p, &mnt, &format!(",metrics={at}"));
    std::fs::create_dir(mnt.join("d")).unwrap();
    for number in 0..5 {
        std::fs::write(mnt.join(format!("d/{number}")), "1234").unwrap();
    }
    std::fs::rename(mnt.join("d"), mnt.join("e")).unwrap();
    let now = metrics(at);
    let volume = format!("volume=\"{}\"", store.url());
    let sample = |name: &str, labels: &str| {
        let series = format!("freehold_{name}{{{volume}{labels}}}");
        *now.get(&series).unwrap_or_else(|| panic!("{series} is not in {now:#?}"))
    };
    assert!(sample("store_requests_total", ",request=\"PutObject\"") >= 5.0);
    assert!(sample("store_sent_bytes_total", "") >= 20.0);
    assert_eq!(sample("files_open", ""), 0.0);
    assert!(sample("inodes_known", "") >= 6.0);
    assert_eq!(sample("long_operations_total", ",operation=\"rename\""), 1.0);
    assert_eq!(
        sample("long_operation_objects_total", ",operation=\"rename\""),
        10.0,
        "five copied, five removed"
    );
    assert_eq!(sample("long_operations", ",operation=\"rename\""), 0.0);
    assert!(sample("written_bytes_total", ",door=\"fuse\"") >= 20.0);
    assert!(sample("call_duration_seconds_count", ",door=\"fuse\",call=\"write\"") >= 5.0);
    signal(server, libc::SIGUSR1);
    let log = || std::fs::read_to_string(p.path("log")).unwrap();
    eventually("the report is in the log", || log().contains("received"));
    assert!(log().contains("PutObject"), "{}", log());
    std::fs::write(mnt.join("still"), "served").unwrap();
    umount(&p, "mnt");
}

/// Who asks for what is not there, or has the wrong key, is told so.
#[test]
fn mounts_that_cannot_be() {
    let (p, store) = (Place::new(), Store::new(SMALL_PARTS));
    let Some(_) = store.simulated() else { return };
    p.mkdir("mnt");
    let fails = |words: &[&str], variables: &[(&str, &str)], parts: &[&str]| {
        let mut command = store.command(&p);
        command.args(words).envs(variables.iter().copied());
        common::Said::from(command.output().unwrap()).fails(parts);
    };
    fails(&["mount", "s3://other", "mnt"], &[], &["bucket other does not exist"]);
    let wrong = [("AWS_ACCESS_KEY_ID", "nobody")];
    fails(&["mount", "s3://bucket", "mnt"], &wrong, &["does not know the access key nobody"]);
    let none = [("AWS_ACCESS_KEY_ID", ""), ("AWS_SECRET_ACCESS_KEY", "")];
    fails(&["mount", "s3://bucket", "mnt"], &none, &["no credentials", "AWS_ACCESS_KEY_ID"]);
    let half = [("AWS_SECRET_ACCESS_KEY", "")];
    fails(&["object", "ls", "s3://bucket"], &half, &["AWS_SECRET_ACCESS_KEY is not"]);
    fails(&["mount", "s3://bucket", "mnt", "-o", "ca=nowhere"], &[], &["nowhere"]);
    fails(&["mount", "s3://bucket", "mnt", "-o", "metrics=here"], &[], &["metrics=here", "127.0.0.1:9464"]);
    fails(&["mount", "s3://bucket", "mnt", "-o", "profile=other"], &none, &["no profile other"]);
    assert!(!p.is_mounted("mnt"));
}

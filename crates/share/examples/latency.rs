//! Cost of single calls through a session, both sides in processes of their own, on a volume in memory.
//!
//! ```text
//! cargo run --release -p freehold-share --example latency [files]
//! ```
//!
//! Beside each figure stands the same call on a temporary directory of this machine's file system.

use block::{MkfsOptions, Volume};
use fs::client::OpenOptions;
use fs::{Client, Cred, FileSystem};
use media::RamMedia;
use share::{Remote, Server};
use std::hint::black_box;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if args.get(1).is_some_and(|a| a == "serve") {
        return serve(Path::new(&args[2]));
    }
    let files = args.get(1).and_then(|a| a.parse().ok()).unwrap_or(50_000);
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("socket");
    let mut server = Command::new("/proc/self/exe")
        .args(["serve", &socket.to_string_lossy()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a server");
    let mut line = String::new();
    BufReader::new(server.stdout.take().expect("piped"))
        .read_line(&mut line)
        .expect("it says that it is ready");
    measure(&socket, dir.path(), files);
    drop(server.stdin.take());
    let _ = server.wait();
}

/// Serves until standard input ends.
fn serve(socket: &Path) {
    let media = Arc::new(RamMedia::new(4 << 30).expect("memory"));
    block::mkfs(media.clone(), &MkfsOptions::default()).expect("mkfs");
    let volume = Volume::open(media, block::OpenOptions::default()).expect("open");
    let server = Server::start(Arc::new(volume.clone()), socket, Default::default()).expect("a server");
    println!("ready");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    server.stop();
    volume.close_blocking().expect("close");
}

/// Nanoseconds of a call, the best of five rounds.
fn time(calls: u32, mut call: impl FnMut(u32)) -> f64 {
    let round = |call: &mut dyn FnMut(u32)| {
        let start = Instant::now();
        (0..calls).for_each(call);
        start.elapsed().as_nanos() as f64 / calls as f64
    };
    (0..5).map(|_| round(&mut call)).fold(f64::MAX, f64::min)
}

/// What was found counts as used.
fn void<T>(found: T) {
    black_box(found);
}

fn once(calls: u32, mut call: impl FnMut(u32)) -> f64 {
    let start = Instant::now();
    (0..calls).for_each(&mut call);
    start.elapsed().as_nanos() as f64 / calls as f64
}

fn measure(socket: &Path, plain: &Path, files: u32) {
    let remote = Remote::connect(socket).expect("a session");
    let row = |name: &str, ours: f64, host: f64| {
        println!("{name:<24} {ours:>9.0} ns {host:>9.0} ns {:>6.2}x", host / ours);
    };
    println!("{:<24} {:>12} {:>12}", "call", "session", "this system");
    let ping = time(100_000, |_| remote.block_on(remote.ping()).expect("ping"));
    row("ping", ping, f64::NAN);
    let client = Client::new(Arc::new(remote), Cred::of_process()).blocking();
    let name = |i: u32| format!("f{i:07}");
    let path = |i: u32| plain.join(name(i));

    const NEW: OpenOptions = OpenOptions::new().write(true).create_new(true);
    let ours = once(files, |i| client.open(name(i), NEW).expect("create").close().expect("close"));
    let host = once(files, |i| drop(std::fs::File::create_new(path(i)).expect("create")));
    row("create+close", ours, host);

    let hot = files.min(1000);
    let ours = time(100_000, |i| void(client.stat(name(i % hot)).expect("stat")));
    let host = time(100_000, |i| void(std::fs::metadata(path(i % hot)).expect("stat")));
    row("stat, 1000 files", ours, host);
    let ours = once(files, |i| void(client.stat(name(i)).expect("stat")));
    let host = once(files, |i| void(std::fs::metadata(path(i)).expect("stat")));
    row("stat, each once", ours, host);

    const READ: OpenOptions = OpenOptions::new().read(true);
    let ours = time(20_000, |i| client.open(name(i % hot), READ).expect("open").close().expect("close"));
    let host = time(20_000, |i| drop(std::fs::File::open(path(i % hot)).expect("open")));
    row("open+close", ours, host);

    let (mut page, size) = (vec![7u8; 4096], 1024);
    let big = client.open("big", NEW.read(true)).expect("create");
    let host_big = std::fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(plain.join("big"))
        .expect("create");
    let at = |i: u32| (i.wrapping_mul(2_654_435_761) >> 8) as u64 % size * 4096;
    (0..size).for_each(|i| big.write_all_at(&page, i * 4096).expect("write"));
    (0..size).for_each(|i| host_big.write_all_at(&page, i * 4096).expect("write"));
    let ours = time(50_000, |i| void(big.write_at(&page, at(i)).expect("write")));
    let host = time(50_000, |i| void(host_big.write_at(&page, at(i)).expect("write")));
    row("pwrite 4 KiB", ours, host);
    let ours = time(50_000, |i| void(big.read_at(&mut page, at(i)).expect("read")));
    let host = time(50_000, |i| void(host_big.read_at(&mut page, at(i)).expect("read")));
    row("pread 4 KiB", ours, host);

    let ours = once(files, |i| {
        let file = client.open(format!("s{i}"), NEW).expect("create");
        file.write_all_at(&page, 0).expect("write");
        file.close().expect("close");
    });
    let host = once(files, |i| {
        let file = std::fs::File::create_new(plain.join(format!("s{i}"))).expect("create");
        file.write_all_at(&page, 0).expect("write");
    });
    row("create+write 4 KiB+close", ours, host);
    let ours = once(files, |i| client.unlink(name(i)).expect("unlink"));
    let host = once(files, |i| std::fs::remove_file(path(i)).expect("unlink"));
    row("unlink", ours, host);
}

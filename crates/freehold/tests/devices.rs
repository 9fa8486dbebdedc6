//! One server with volumes on several devices (an image on a disk, an image in memory, a block device where there may be one), and clients
//! that use all of them at the same time. Controllers: `lab/tests/two.sh`.

mod common;

use common::{Place, can_mount, library};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A block device over a file, as long as it lives.
struct Loop(PathBuf);

impl Loop {
    /// `None` where such devices are not to be had.
    fn over(file: &Path) -> Option<Loop> {
        let out = Command::new("losetup").args(["--find", "--show"]).arg(file).output().ok()?;
        out.status.success().then(|| Loop(String::from_utf8_lossy(&out.stdout).trim().into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

struct Server(Child);

impl Server {
    fn start(p: &Place, config: &str, volumes: usize) -> Server {
        std::fs::write(p.path("volumes.toml"), config).unwrap();
        let mut command = p.command();
        command
            .args(["serve", "--config", "volumes.toml"])
            .env("FREEHOLD_LOG", "info")
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        for _ in 0..volumes {
            let served = lines.by_ref().any(|line| line.unwrap().contains("is served at"));
            assert!(served, "serve ended early: {:?}", child.wait());
        }
        std::thread::spawn(move || lines.for_each(drop));
        Server(child)
    }

    fn stop(mut self) {
        // SAFETY: kill(2) of a child that has not been waited for.
        unsafe { libc::kill(self.0.id() as i32, libc::SIGTERM) };
        assert_eq!(self.0.wait().unwrap().code(), Some(0));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_program_uses_volumes_on_all_devices() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    p.volume("disk.img");
    let in_memory = memory.path().join("memory.img");
    std::fs::copy(p.path("disk.img"), &in_memory).unwrap();
    let below = p.path("below.img");
    std::fs::copy(p.path("disk.img"), &below).unwrap();
    let block = Loop::over(&below);
    let mut media = vec![p.path("disk.img"), in_memory];
    match &block {
        Some(block) => media.push(block.0.clone()),
        None => eprintln!("no loop devices here: two devices instead of three"),
    }
    let (mut config, mut names) = (String::new(), Vec::new());
    for (n, image) in media.iter().enumerate() {
        let name = format!("v{n}");
        p.mkdir(&name);
        config +=
            &format!("[[volume]]\nimage = {image:?}\nmountpoint = \"{name}\"\noptions = \"cache=16m\"\n");
        names.push(name);
    }
    let server = Server::start(&p, &config, media.len());
    let devices: Vec<u64> = names.iter().map(|n| p.path(n).metadata().unwrap().dev()).collect();
    assert!(
        devices.iter().enumerate().all(|(i, d)| !devices[..i].contains(d)),
        "each is its own: {devices:?}"
    );

    // Four processes that copy from each volume to the next, at the same time, without the kernel.
    let script = "
        set -e
        for v in $V; do for i in 1 2 3 4; do head -c 700000 /dev/urandom > $v/from$i; done; done
        for i in 1 2 3 4; do (
            last=
            for v in $V; do [ -z $last ] || { cp $last/from$i $v/copy$i; cmp $last/from$i $v/copy$i; mv $v/copy$i $last/moved$i; cp $last/moved$i $v/copy$i; }; last=$v; done
        ) & done
        for job in $(jobs -p); do wait $job; done
        sync";
    let mut command = p.command();
    command.args(["run", "--", "timeout", "120", "bash", "-c", script]).env("FREEHOLD_PRELOAD", library());
    let out =
        command.env("V", names.join(" ")).current_dir(p.path(".")).stdin(Stdio::null()).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let first = |name: &str| std::fs::read(p.path(name)).unwrap();
    for i in 1..=4 {
        assert!(first(&format!("v0/from{i}")) == first(&format!("v1/copy{i}")));
        assert!(first(&format!("v0/from{i}")) == first(&format!("v0/moved{i}")));
        assert_eq!(first(&format!("v0/from{i}")).len(), 700_000);
    }
    server.stop();
    for image in &media {
        p.line(&format!("fsck {}", image.display())).ok();
    }
}

/// A client of the library with a session on each; one volume ends, the other goes on.
#[test]
fn a_client_has_sessions_on_several() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    p.volume("disk.img");
    let in_memory = memory.path().join("memory.img");
    std::fs::copy(p.path("disk.img"), &in_memory).unwrap();
    let sockets = ["one", "two"].map(|name| p.path(name));
    let config: String = [p.path("disk.img"), in_memory.clone()]
        .iter()
        .zip(&sockets)
        .enumerate()
        .map(|(n, (image, socket))| {
            p.mkdir(&format!("v{n}"));
            format!(
                "[[volume]]\nimage = {image:?}\nmountpoint = \"v{n}\"\noptions = \"cache=16m,share={}\"\n",
                socket.display()
            )
        })
        .collect();
    let server = Server::start(&p, &config, 2);
    let clients = sockets.each_ref().map(|socket| freehold::connect(socket).unwrap().blocking());
    std::thread::scope(|s| {
        for (n, client) in clients.iter().enumerate() {
            s.spawn(move || {
                for i in 0..200u32 {
                    client.write(format!("f{i}"), format!("{n} {i}").repeat(500).as_bytes()).unwrap();
                }
            });
        }
    });
    for (n, client) in clients.iter().enumerate() {
        for i in 0..200 {
            assert!(client.read(format!("f{i}")).unwrap() == format!("{n} {i}").repeat(500).as_bytes());
        }
    }
    p.line("umount v0").ok();
    assert!(clients[0].read("f1").is_err());
    clients[1].write("more", b"more").unwrap();
    drop(clients);
    server.stop();
    assert_eq!(p.line(&format!("cat {}:/more", in_memory.display())).ok(), "more");
    p.line("fsck disk.img").ok();
}

//! Several mounts of one volume, of which one is unmounted, and volumes beside one whose server hangs. Without /dev/fuse, or without root where
//! that is needed, each of the tests only says that it was skipped.

mod common;

use common::{Place, Said, can_mount, eventually, library, server, signal};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The helper of umount(8), as that calls it.
fn umount_helper(p: &Place, args: &[&str]) -> (Said, Duration) {
    let name = p.path("umount.freehold");
    if !name.is_symlink() {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_freehold"), &name).unwrap();
    }
    let (out, took) = within(p.command_of(&name).args(args));
    (out.into(), took)
}

/// Runs a command that must end soon.
fn within(command: &mut Command) -> (Output, Duration) {
    let begun = Instant::now();
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > Duration::from_secs(30) {
            child.kill().unwrap();
            panic!("{command:?} does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let took = begun.elapsed();
    (child.wait_with_output().unwrap(), took)
}

fn bind(from: &Path, to: &Path) {
    assert!(Command::new("mount").arg("--bind").args([from, to]).status().unwrap().success());
}

#[test]
fn what_becomes_of_one_of_several_mounts_is_nothing_to_the_others() {
    if !can_mount() || !common::is_root() {
        return;
    }
    let p = Place::new();
    let image = p.volume("a.img");
    let (mnt, b) = (p.mkdir("mnt"), p.mkdir("b"));
    p.line("mount a.img mnt").ok();
    std::fs::create_dir(mnt.join("d")).unwrap();
    let mut file = std::fs::File::create(mnt.join("d/f")).unwrap();
    for how in [&["b"][..], &["b", "-l"], &["b", "-f"], &["b", "-f", "-l"]] {
        bind(&mnt.join("d"), &b);
        // A plain umount is for what nobody uses.
        let there = how.contains(&"-f").then(|| std::fs::File::create(b.join("g")).unwrap());
        let (said, took) = umount_helper(&p, how);
        assert!(took < Duration::from_secs(5), "{how:?}: {took:?}");
        assert_eq!(said.code, Some(0), "{how:?}: {said:?}");
        assert!(!p.is_mounted("b"), "{how:?}");
        file.write_all(b"served").unwrap();
        if let Some(mut there) = there {
            there.write_all(b"served as well").unwrap();
            let told = said.err.contains("still mounted at") && said.err.contains("mnt");
            assert!(told || how.contains(&"-l"), "{said:?}");
        }
    }
    // The same of a copy of the mount in a namespace that goes its own way.
    for how in ["-l", "-f", "-v"] {
        let script = format!("cd / && exec \"$0\" {how} \"$1\"");
        let mut command = p.command_of(Path::new("unshare"));
        command.args(["-m", "--propagation", "private", "sh", "-c", &script]);
        let (out, _) = within(command.arg(p.path("umount.freehold")).arg(&mnt));
        assert!(out.status.success(), "{how}: {out:?}");
        file.write_all(b"served").unwrap();
    }
    drop(file);
    // The last of them takes the volume along; until then an image that is mounted is not closed.
    bind(&mnt.join("d"), &b);
    let said = p.line("umount a.img");
    assert!(said.err.contains("still mounted at") && p.is_mounted("b") && !p.is_mounted("mnt"), "{said:?}");
    said.ok();
    p.line("umount b").ok();
    assert!(freehold::mounts::lock_holder(&image).is_none());
}

#[test]
fn a_lazy_umount_does_not_wait_and_ends_nothing() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    let image = p.volume("a.img");
    let mnt = p.mkdir("mnt");
    p.line("mount a.img mnt").ok();
    let mut file = std::fs::File::create(mnt.join("open")).unwrap();
    let (said, took) = umount_helper(&p, &["mnt", "-l"]);
    said.ok();
    assert!(!p.is_mounted("mnt") && took < Duration::from_secs(5), "{took:?}");
    file.write_all(b"more").unwrap();
    file.sync_all().unwrap();
    drop(file);
    eventually("it is closed", || freehold::mounts::lock_holder(&image).is_none());
    assert_eq!(p.line("cat a.img:/open").ok(), "more");
    // Nor does it ask a server that hangs.
    p.line("mount a.img mnt").ok();
    let pid = server(&image);
    signal(pid, libc::SIGSTOP);
    let (out, took) = within(p.command().args(["umount", "--lazy", "mnt"]));
    signal(pid, libc::SIGCONT);
    assert!(out.status.success() && took < Duration::from_secs(5), "{out:?} {took:?}");
    eventually("it is closed", || freehold::mounts::lock_holder(&image).is_none());
}

#[test]
fn a_server_that_hangs_holds_nobody_else_up() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    let image = p.volume("still.img");
    p.volume("b.img");
    p.volume("c.img");
    let (still, alive) = (p.mkdir("still"), p.mkdir("alive"));
    p.mkdir("other");
    p.line("mount still.img still").ok();
    p.line("mount b.img alive").ok();
    let pid = server(&image);
    // What the kernel knows of the directory must be too old to be told without the server.
    std::thread::sleep(Duration::from_millis(1100));
    signal(pid, libc::SIGSTOP);
    let line = |line: &str| {
        let mut command = p.command();
        let (out, took) = within(command.env("FREEHOLD_PRELOAD", library()).args(line.split_whitespace()));
        println!("{line}: {took:?}");
        (Said::from(out), took)
    };
    let said: Vec<_> = [
        "run --list",
        "run -- sh -c env;echo>alive/f",
        "mount c.img other",
        "mount c.img still",
        "clients alive",
        "top --once other",
        "clients",
        "umount other",
        "umount alive",
        // With nobody left to begin a session with.
        "run true",
        "umount --force still",
    ]
    .map(|words| (words, line(words)))
    .into();
    signal(pid, libc::SIGCONT);
    for (words, (said, took)) in said {
        let soon = !matches!(words, "clients" | "umount --force still");
        assert!(!soon || took < Duration::from_secs(3), "{words}: {took:?}");
        match words {
            "run --list" => {
                let line = |at: &Path| said.out.lines().find(|l| l.starts_with(&*at.to_string_lossy()));
                assert!(line(&still).unwrap().contains("does not answer"), "{said:?}");
                assert!(line(&alive).unwrap().contains("0-"), "{said:?}");
            }
            "mount c.img still" => said.fails(&["mounted at still already"]),
            "run true" => said.fails(&["does not answer"]),
            "clients" => assert!(said.err.contains("still.img"), "{said:?}"),
            "umount --force still" => said.fails(&["unmounted", "does not answer"]),
            _ => {
                let offered = |at: &Path| said.out.contains(&format!("{}=", at.display()));
                let is_run = words.starts_with("run");
                assert!(!is_run || offered(&alive) && !offered(&still), "{said:?}");
                said.ok();
            }
        }
    }
}

#[test]
fn few_descriptors_are_enough_to_start_a_program() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    for name in ["a", "b", "c", "d", "e", "f"] {
        p.volume(&format!("{name}.img"));
        p.mkdir(name);
        p.line(&format!("mount {name}.img {name}")).ok();
    }
    std::fs::write(p.path("a/f"), "content").unwrap();
    let run = |limit: u32, words: &str| -> Said {
        let script = format!("ulimit -n {limit}; exec \"$0\" run {words}");
        let mut sh = p.command_of(Path::new("sh"));
        let sh = sh.args(["-c", &script, env!("CARGO_BIN_EXE_freehold")]);
        sh.env("FREEHOLD_PRELOAD", library()).output().unwrap().into()
    };
    assert_eq!(run(6, "cat a/f").ok(), "content");
    let listed = run(3, "--list");
    assert!(listed.code != Some(0) || listed.out.contains("too few descriptors"), "{listed:?}");
}

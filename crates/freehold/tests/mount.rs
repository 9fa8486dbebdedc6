//! The command with the kernel: mount, umount, serve, signals, dead servers. Without /dev/fuse, or without root and
//! fusermount3, each of them only says that it was skipped.

mod common;
#[path = "mount/options.rs"]
mod options;

use common::{Place, can_mount, describe, eventually, make_tree, serve, server, signal};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

fn write_synced(path: &Path, content: &[u8]) {
    let mut file = std::fs::File::create(path).unwrap();
    file.write_all(content).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn mount_use_umount_again() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    let image = p.volume("a.img");
    let mnt = p.mkdir("mnt");
    p.line("mount a.img mnt -o cache=32m,noatime --log log").ok();
    make_tree(&mnt.join("tree"));
    p.line("mount a.img mnt").fails(&["mounted at mnt already", "freehold umount"]);
    let other = p.mkdir("other");
    p.line("mount a.img other").fails(&["in use", "freehold umount"]);
    assert!(other.exists() && !p.is_mounted("other"));
    p.line("mkfs a.img --force").fails(&["mounted at"]);
    p.line("ls a.img").fails(&["in use", "freehold umount"]);
    let shown = p.line("df mnt a.img").ok();
    assert_eq!(shown.lines().filter(|l| l.contains("a.img") && l.contains("/mnt")).count(), 2, "{shown}");
    let before = describe(&mnt);
    p.line("umount mnt").ok();
    assert!(!p.is_mounted("mnt") && std::fs::read_dir(&mnt).unwrap().next().is_none());
    // Closed, not only unmounted: the image can be used at once.
    assert!(freehold::mounts::lock_holder(&image).is_none());
    p.line("cp -r a.img:/ out").ok();
    assert_eq!(before, describe(&p.path("out")));
    // Read-only, by the image's name.
    p.line("mount a.img mnt -o ro").ok();
    assert_eq!(before, describe(&mnt));
    assert!(std::fs::write(mnt.join("x"), "x").is_err());
    p.line("umount a.img").ok();
    let log = std::fs::read_to_string(p.path("log")).unwrap();
    assert!(log.contains("is served at") && log.contains("closed"), "{log}");
}

#[test]
fn a_busy_mount_is_named_and_can_be_forced() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    p.volume("a.img");
    let mnt = p.mkdir("mnt");
    p.line("mount a.img mnt").ok();
    let mut file = std::fs::File::create(mnt.join("open")).unwrap();
    file.write_all(b"written").unwrap();
    p.line("umount mnt").fails(&["in use by", &format!("process {}", std::process::id()), "--force"]);
    assert!(p.is_mounted("mnt"));
    p.line("umount --force mnt").ok();
    assert!(file.write_all(b"more").is_err());
    drop(file);
    assert_eq!(p.line("cat a.img:/open").ok(), "written");
}

#[test]
fn a_dead_server_is_noticed_and_cleared_away() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    let image = p.volume("a.img");
    let mnt = p.mkdir("mnt");
    p.line("mount a.img mnt").ok();
    write_synced(&mnt.join("synced"), b"must be there");
    let lost = std::fs::File::create(mnt.join("later")).unwrap();
    signal(server(&image), libc::SIGKILL);
    eventually("the server dies", || freehold::mounts::lock_holder(&image).is_none());
    assert_eq!(std::fs::metadata(mnt.join("synced")).unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
    p.line("mount a.img mnt").fails(&["died", "freehold umount"]);
    p.line("df mnt").fails(&["died", "freehold umount"]);
    p.volume("b.img");
    let alive = p.mkdir("alive");
    p.line("mount b.img alive").ok();
    let all = p.line("df");
    assert!(all.out.contains(&*alive.to_string_lossy()) && all.err.contains("died"), "{all:?}");
    p.line("umount alive").ok();
    // A file is still open in the dead mount.
    let said = p.line("umount mnt");
    assert!(said.err.contains("had died"), "{said:?}");
    said.ok();
    drop(lost);
    assert!(!p.is_mounted("mnt"));
    p.line("mount a.img mnt").ok();
    assert_eq!(std::fs::read(mnt.join("synced")).unwrap(), b"must be there");
    p.line("umount mnt").ok();
}

#[test]
fn a_killed_server_is_in_nobodys_way() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    let image = p.volume("a.img");
    let mnt = p.mkdir("mnt");
    for line in ["ls a.img", "fsck a.img", "mkfs a.img --force", "mount a.img mnt", "dump a.img log"] {
        p.line("mount a.img mnt").ok();
        let pid = server(&image);
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
        assert_eq!(name.trim(), "freehold", "found by ps and pgrep");
        write_synced(&mnt.join("x"), &[7; 1 << 20]);
        signal(pid, libc::SIGKILL);
        p.line("umount mnt").ok();
        // At once: the lock may be held still by what the kernel has to end.
        p.line(line).ok();
        if p.is_mounted("mnt") {
            assert_eq!(std::fs::read(mnt.join("x")).unwrap().len(), 1 << 20);
            p.line("umount mnt").ok();
        }
    }
}

#[test]
fn stopping_the_server_unmounts() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    let image = p.volume("a.img");
    let mnt = p.mkdir("mnt");
    for how in [libc::SIGTERM, libc::SIGINT] {
        p.line("mount a.img mnt").ok();
        let pid = server(&image);
        signal(pid, libc::SIGHUP);
        std::fs::write(mnt.join("x"), "not synced").unwrap();
        signal(pid, how);
        eventually("it is unmounted and closed", || {
            !p.is_mounted("mnt") && freehold::mounts::lock_holder(&image).is_none()
        });
        assert_eq!(p.line("cat a.img:/x").ok(), "not synced");
    }
}

#[test]
fn umount_of_the_system_closes_too() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    let image = p.volume("a.img");
    let mnt = p.mkdir("mnt");
    p.line("mount a.img mnt").ok();
    std::fs::write(mnt.join("x"), "content").unwrap();
    let umount: &[&str] = if common::is_root() { &["umount", "-i"] } else { &["fusermount3", "-u"] };
    // A process that another test is just starting has our files, for a moment.
    eventually("umount", || Command::new(umount[0]).args(&umount[1..]).arg(&mnt).status().unwrap().success());
    // The server may still be closing it: that is waited for.
    assert_eq!(p.line("cat a.img:/x").ok(), "content");
    assert!(freehold::mounts::lock_holder(&image).is_none());
}

#[test]
fn one_process_serves_many_volumes() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    let mut config = String::new();
    for name in ["a", "b", "c"] {
        p.volume(&format!("{name}.img"));
        p.mkdir(name);
        config += &format!(
            "[[volume]]\nimage = \"{name}.img\"\nmountpoint = \"{name}\"\noptions = \"cache=16m\"\n"
        );
    }
    let mut child = serve(&p, &config, 3);
    for name in ["a", "b", "c"] {
        std::fs::write(p.path(name).join("who"), name).unwrap();
    }
    // One is unmounted from outside; the others go on.
    p.line("umount b").ok();
    assert_eq!(p.line("cat b.img:/who").ok(), "b");
    std::fs::write(p.path("a/more"), "more").unwrap();
    signal(child.id(), libc::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(!p.is_mounted("a") && !p.is_mounted("c"));
    assert_eq!(p.line("cat a.img:/who a.img:/more c.img:/who").ok(), "amorec");
}

#[test]
fn serve_says_what_is_wrong() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    p.volume("a.img");
    p.volume("b.img");
    p.mkdir("a");
    p.mkdir("b");
    let good = "[[volume]]\nimage = \"a.img\"\nmountpoint = \"a\"\n";
    for (config, part) in [
        ("", "volume"),
        ("volume = []", "no volume"),
        ("[[volume]]\nimage = 1", "image"),
        ("[[volume]]\nimage = \"a.img\"\nmountpoint = \"a\"\ncolour = \"red\"", "colour"),
        ("[[volume]]\nimage = \"a.img\"\nmountpoint = \"a\"\noptions = \"wibble\"", "wibble"),
        (&format!("{good}[[volume]]\nimage = \"none.img\"\nmountpoint = \"b\""), "none.img does not exist"),
        (&format!("{good}[[volume]]\nimage = \"b.img\"\nmountpoint = \"a\""), "already"),
    ] {
        std::fs::write(p.path("v.toml"), config).unwrap();
        p.line("serve -c v.toml").fails(&[part]);
        assert!(!p.is_mounted("a"), "what was started is stopped again");
    }
    let mut child = {
        // That one comes first: when the good one is served, it has failed.
        let config = format!("[[volume]]\nimage = \"none.img\"\nmountpoint = \"b\"\n{good}");
        std::fs::write(p.path("v.toml"), config).unwrap();
        p.command().args(["serve", "-c", "v.toml", "--keep-going"]).stderr(Stdio::null()).spawn().unwrap()
    };
    eventually("the good one is served", || p.is_mounted("a"));
    signal(child.id(), libc::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(1));
}

#[test]
fn a_killed_service_starts_again() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    let mut config = String::new();
    for name in ["a", "b"] {
        p.volume(&format!("{name}.img"));
        p.mkdir(name);
        config += &format!("[[volume]]\nimage = \"{name}.img\"\nmountpoint = \"{name}\"\n");
    }
    let mut child = serve(&p, &config, 2);
    for name in ["a", "b"] {
        write_synced(&p.path(name).join("who"), name.as_bytes());
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let mut child = serve(&p, &config, 2);
    assert_eq!(std::fs::read(p.path("b/who")).unwrap(), b"b");
    signal(child.id(), libc::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    for name in ["a", "b"] {
        assert!(!p.is_mounted(name));
        // Stopped with an index, which the next mount begins with.
        let text = p.line(&format!("fsck --json {name}.img")).ok();
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(report["stopped_cleanly"], true);
        assert!(report["counts"]["index_inodes"].as_u64().unwrap() >= 2, "{report}");
    }
}

#[test]
fn a_stopping_server_does_not_wait_for_ever() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    p.volume("a.img");
    p.mkdir("a");
    let mut child = serve(&p, "[[volume]]\nimage = \"a.img\"\nmountpoint = \"a\"\n", 1);
    let mut file = std::fs::File::create(p.path("a/open")).unwrap();
    file.write_all(b"before").unwrap();
    signal(child.id(), libc::SIGTERM);
    let start = std::time::Instant::now();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(start.elapsed().as_secs() < 20);
    drop(file);
    assert_eq!(p.line("cat a.img:/open").ok(), "before");
}

#[test]
fn helpers_of_mount_and_umount() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    p.volume("a.img");
    let mnt = p.mkdir("mnt");
    for name in ["mount.freehold", "umount.fuse.freehold", "mkfs.freehold"] {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_freehold"), p.path(name)).unwrap();
    }
    let run = |name: &str, args: &[&str]| {
        let out = Command::new(p.path(name)).args(args).current_dir(p.path("")).output().unwrap();
        (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    assert_eq!(run("mkfs.freehold", &["b.img", "--size", "64m", "--sparse"]).0, Some(0));
    assert_eq!(run("mount.freehold", &["a.img", "mnt", "-f", "-o", "rw"]).0, Some(0));
    assert!(!p.is_mounted("mnt"), "-f only pretends");
    let (code, err) = run("mount.freehold", &["a.img", "mnt", "-o", "rw,wibble"]);
    assert!(code == Some(32) && err.contains("wibble"), "{err}");
    assert_eq!(run("mount.freehold", &["a.img"]).0, Some(1));
    let (code, err) =
        run("mount.freehold", &["a.img", "mnt", "-s", "-v", "-o", "rw,wibble,nofail,x-systemd.automount"]);
    assert_eq!(code, Some(0), "{err}");
    std::fs::write(mnt.join("x"), "x").unwrap();
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } == 0 {
        // As mount(8) calls it: the words of /proc/mounts, then those that were asked for.
        let words =
            |access| format!("rw,nosuid,nodev,relatime,user_id=0,group_id=0,allow_other,remount,{access}");
        let (code, err) = run("mount.freehold", &["a.img", "mnt", "-o", &words("ro")]);
        assert_eq!(code, Some(0), "{err}");
        let e = std::fs::write(mnt.join("y"), "y").unwrap_err();
        assert_eq!(e.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        assert_eq!(run("mount.freehold", &["a.img", "mnt", "-o", &words("rw")]).0, Some(0));
        std::fs::write(mnt.join("y"), "y").unwrap();
        let (code, err) = run("mount.freehold", &["a.img", "/", "-o", "remount,ro"]);
        assert!(code == Some(32) && err.contains("no volume is mounted on /"), "{err}");
    }
    let (code, err) = run("umount.fuse.freehold", &["mnt"]);
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(p.line("cat a.img:/x").ok(), "x");
}

/// The same volume through the kernel and through sessions: each sees at once what the other did, whatever it keeps.
#[test]
fn sessions_beside_the_mount() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    p.volume("a.img");
    let mnt = p.mkdir("mnt");
    let socket = p.path("socket");
    p.line(&format!("mount a.img mnt -o share={}", socket.display())).ok();
    let fs = freehold::connect(&socket).unwrap().blocking();
    // Known to the kernel: the directory, names that are there and that are not, attributes, pages.
    std::fs::create_dir(mnt.join("d")).unwrap();
    for round in 0..20u8 {
        let (name, path) = (format!("/d/f{round}"), mnt.join(format!("d/f{round}")));
        assert!(!path.exists());
        fs.write(&name, vec![round; 10_000]).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), vec![round; 10_000]);
        let file = fs.open(&name, freehold::OpenOptions::new().read(true).write(true)).unwrap();
        file.write_all_at(&[round + 1; 3000], 9000).unwrap();
        let seen = std::fs::read(&path).unwrap();
        assert_eq!((seen.len(), seen[8999], seen[9000], seen[11_999]), (12_000, round, round + 1, round + 1));
        file.set_len(5000).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 5000);
        file.set_len(6000).unwrap();
        assert_eq!(std::fs::read(&path).unwrap()[4999..5001], [round, 0]);
        fs.chmod(&name, 0o600).unwrap();
        assert_eq!(
            std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions()),
            0o100600
        );
        // The other way round.
        std::fs::write(&path, b"kernel").unwrap();
        assert_eq!(fs.read(&name).unwrap(), b"kernel");
        std::fs::rename(&path, mnt.join("d/moved")).unwrap();
        assert!(!fs.exists(&name).unwrap() && fs.exists("/d/moved").unwrap());
        // And again: a rename over a name that the kernel knows, and a deletion.
        fs.write("/d/new", b"new").unwrap();
        fs.rename("/d/new", "/d/moved", Default::default()).unwrap();
        assert_eq!(std::fs::read(mnt.join("d/moved")).unwrap(), b"new");
        assert!(!mnt.join("d/new").exists());
        fs.unlink("/d/moved").unwrap();
        assert!(!mnt.join("d/moved").exists());
        assert_eq!(std::fs::read_dir(mnt.join("d")).unwrap().count(), 0);
    }
    // A mapping in the kernel sees what a session writes.
    std::fs::write(mnt.join("map"), vec![1u8; 8192]).unwrap();
    let file = std::fs::File::open(mnt.join("map")).unwrap();
    let mut seen = [0; 1];
    std::os::unix::fs::FileExt::read_at(&file, &mut seen, 5000).unwrap();
    fs.write("/map", vec![2u8; 8192]).unwrap();
    std::os::unix::fs::FileExt::read_at(&file, &mut seen, 5000).unwrap();
    assert_eq!(seen, [2]);
    // A lock that a session holds is seen by the kernel's callers, through flock(1).
    let held = fs.open("/map", freehold::OpenOptions::new().read(true)).unwrap();
    held.lock().unwrap();
    let taken = Command::new("flock").args(["-n"]).arg(mnt.join("map")).arg("true").status().unwrap();
    assert!(!taken.success());
    drop((held, file));
    p.line("umount mnt").ok();
    assert!(fs.stat("/map").is_err(), "the session has ended");
    assert!(!socket.exists());
    assert!(p.line("fsck a.img").ok().contains("clean"));
}

/// A session makes and removes files without waiting, in directories that the kernel comes to again and again: it sees each of them at once.
#[test]
fn posted_changes_are_seen_through_the_mount() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    p.volume("a.img");
    let mnt = p.mkdir("mnt");
    let socket = p.path("socket");
    p.line(&format!("mount a.img mnt -o share={}", socket.display())).ok();
    let fs = freehold::connect(&socket).unwrap().blocking();
    let new = freehold::OpenOptions::new().write(true).create_new(true);
    for round in 0..400 {
        // The kernel has not been there, so the directory is lent.
        let dir = format!("d{round}");
        fs.mkdir(&dir, 0o755).unwrap();
        let count = 4 + round % 60;
        (0..count).for_each(|i| drop(fs.open(format!("{dir}/f{i}"), new).unwrap()));
        for i in (0..count).step_by(2) {
            fs.unlink(format!("{dir}/f{i}")).unwrap();
        }
        let here = mnt.join(&dir);
        let last = count - 1;
        match round % 4 {
            0 => assert_eq!(here.join(format!("f{last}")).exists(), last % 2 == 1),
            1 => assert_eq!(std::fs::read_dir(&here).unwrap().count() as u32, count / 2),
            2 => {
                assert!(std::fs::File::create_new(here.join("f1")).is_err());
                std::fs::File::create_new(here.join("f0")).unwrap();
                assert!(fs.open(format!("{dir}/f0"), new).is_err(), "the kernel made it");
            }
            _ => assert!(std::fs::remove_dir(&here).is_err(), "it is not empty"),
        }
        // And from then on, which the kernel keeps, by messages.
        for i in 0..5 {
            let name = format!("g{i}");
            assert!(!here.join(&name).exists());
            drop(fs.open(format!("{dir}/{name}"), new).unwrap());
            assert!(here.join(&name).exists());
            fs.unlink(format!("{dir}/{name}")).unwrap();
            assert!(!here.join(&name).exists());
        }
    }
    drop(fs);
    p.line("umount mnt").ok();
}

/// The kernel and a session make, replace and remove the same names at the same time. Whoever is told of a change must not be waited for by it.
#[test]
fn two_doors_fight_for_a_name() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    let image = p.volume("a.img");
    let mnt = p.mkdir("mnt");
    let socket = p.path("socket");
    p.line(&format!("mount a.img mnt -o share={}", socket.display())).ok();
    let over = std::sync::atomic::AtomicBool::new(false);
    let going = || !over.load(std::sync::atomic::Ordering::Relaxed);
    let calls = [0, 1].map(|_| std::sync::atomic::AtomicU64::new(0));
    let count = |n: usize| calls[n].fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    std::thread::scope(|s| {
        let kernel = s.spawn(|| {
            while going() {
                let _ = std::fs::write(mnt.join("a"), b"kernel");
                let _ = std::fs::rename(mnt.join("a"), mnt.join("b"));
                let _ = std::fs::read(mnt.join("b"));
                let _ = std::fs::remove_file(mnt.join("b"));
                count(0);
            }
        });
        let session = s.spawn(|| {
            let fs = freehold::connect(&socket).unwrap().blocking();
            while going() {
                let _ = fs.write("/a", b"session");
                let _ = fs.rename("/a", "/b", Default::default());
                let _ = fs.unlink("/b");
                let _ = fs.mkdir("/a", 0o755);
                let _ = fs.rmdir("/a");
                count(1);
            }
        });
        std::thread::sleep(std::time::Duration::from_secs(2));
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        let begun = std::time::Instant::now();
        while !(kernel.is_finished() && session.is_finished()) {
            if begun.elapsed().as_secs() > 20 {
                // Frees whoever hangs in the mount.
                signal(server(&image), libc::SIGKILL);
                panic!("the doors wait for each other");
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    });
    let [kernel, session] = calls.map(|n| n.into_inner());
    assert!(kernel > 50 && session > 50, "{kernel} {session}");
    p.line("umount mnt").ok();
    assert!(p.line("fsck a.img").ok().contains("clean"));
}

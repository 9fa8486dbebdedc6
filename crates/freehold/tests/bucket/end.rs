//! How mounts of buckets end: what no close has made visible is never published, and a server whose store is gone does not stay for long.

use super::common::{Place, can_mount, eventually};
use super::store::Store;
use super::{SMALL_PARTS, load, signal};
use sim::s3::{Faults, Rates};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

fn exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// A program is in the middle of a file when its mount ends by force. It is told so, and the old object is what it was.
#[test]
fn a_forced_end_publishes_nothing_that_is_half_written() {
    if !can_mount() {
        return;
    }
    for how in ["signal", "umount --force", "umount -f"] {
        let (p, store) = (Place::new(), Store::new(SMALL_PARTS));
        let mnt = p.mkdir("mnt");
        let server = store.mount(&p, &mnt, "");
        for name in ["large", "small", "mode"] {
            std::fs::write(mnt.join(name), "the old one").unwrap();
        }
        std::fs::write(mnt.join("closed"), "closed").unwrap();
        let mut large = File::create(mnt.join("large")).unwrap();
        (0..30).for_each(|_| large.write_all(&[7; 100_000]).unwrap());
        let mut small = File::create(mnt.join("small")).unwrap();
        small.write_all(b"half").unwrap();
        let mode = File::options().append(true).open(mnt.join("mode")).unwrap();
        // SAFETY: an open descriptor.
        assert_eq!(unsafe { libc::fchmod(mode.as_raw_fd(), 0o600) }, 0);
        let new = File::create(mnt.join("new")).unwrap();
        let before = store.files();
        assert_eq!(before["large"], b"the old one");
        match how {
            "signal" => signal(server, libc::SIGTERM),
            "umount -f" => {
                let point = std::ffi::CString::new(mnt.to_str().unwrap()).unwrap();
                // SAFETY: the path ends with a NUL.
                assert_eq!(unsafe { libc::umount2(point.as_ptr(), libc::MNT_FORCE | libc::MNT_DETACH) }, 0);
            }
            _ => drop(p.line("umount --force mnt")),
        }
        eventually("the server has gone", || !exists(server));
        for file in [large, small, mode, new] {
            assert_eq!(load::close(file).unwrap_err().raw_os_error(), Some(libc::ENOTCONN), "{how}");
        }
        store.settle();
        assert_eq!(store.files(), before, "{how}");
        if let Some(server) = store.simulated() {
            assert_eq!(server.look(|bucket| bucket.uploads()), 0, "{how}: it was given up");
        }
    }
}

/// What was closed through one descriptor is there, though another one is open when the mount ends.
#[test]
fn a_forced_end_loses_nothing_that_was_closed() {
    if !can_mount() {
        return;
    }
    let (p, store) = (Place::new(), Store::new(SMALL_PARTS));
    let mnt = p.mkdir("mnt");
    let server = store.mount(&p, &mnt, "");
    let mut file = File::create(mnt.join("a")).unwrap();
    let other = file.try_clone().unwrap();
    file.write_all(&[7; 2_500_000]).unwrap();
    load::close(file).unwrap();
    signal(server, libc::SIGTERM);
    eventually("the server has gone", || !exists(server));
    assert_eq!(store.files()["a"], [7; 2_500_000]);
    drop(other);
}

/// A close waits for a store that does not answer when its mount ends by force: the server gives up after some seconds.
#[test]
fn a_server_whose_store_is_gone_ends_soon() {
    if !can_mount() {
        return;
    }
    let (p, store) = (Place::new(), Store::new(SMALL_PARTS));
    let Some(simulated) = store.simulated() else { return };
    let mnt = p.mkdir("mnt");
    let server = store.mount(&p, &mnt, "");
    let mut file = File::create(mnt.join("a")).unwrap();
    file.write_all(b"x").unwrap();
    simulated.set_faults(Faults::new(Rates { reset_before: 1000, ..Default::default() }, 1));
    let begun = std::thread::scope(|scope| {
        let closing = scope.spawn(|| load::close(file));
        std::thread::sleep(Duration::from_millis(300));
        let begun = Instant::now();
        p.line("umount --force mnt");
        assert!(closing.join().unwrap().is_err());
        begun
    });
    while exists(server) {
        assert!(begun.elapsed() < Duration::from_secs(25), "the server goes on");
        std::thread::sleep(Duration::from_millis(50));
    }
    println!("it ended after {:.1} s", begun.elapsed().as_secs_f64());
}

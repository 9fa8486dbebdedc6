//! Order through every door: what fbarrier and fdatabarrier promise (docs/SEMANTICS.md, "Order"), and the option that answers syncs with it.
//!
//! Verifies, on a simulated flash device with a volatile cache, with a mount and sessions of one volume at the same time: that barriers
//! succeed, reach the engine, and flush nothing; that in no state in which a power failure can leave the device something is there that was
//! done after a barrier without all that was done before it, for new blocks, overwrites and names, in several files and by several processes; and
//! that fsync flushes unless its program or file was named. Then with a server that is killed. Does not verify what fsync leaves
//! behind (block/tests/power.rs, tests/kill.rs).
//!
//! The canary: with both sides of the barrier exchanged the check must fail. Needs root, /dev/fuse and a C compiler.

mod common;
#[path = "order/rig.rs"]
mod rig;
#[path = "order/steps.rs"]
mod steps;

use common::{Place, can_mount, library};
use fs::client::OpenOptions as Open;
use fs::descriptor::{fbarrier, fdatabarrier};
use fs::{Ordered, RenameFlags};
use rig::{Rig, compiled};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::Stdio;
use steps::{Hand, InSession, OnMount, both_sides, pause, violations};

const NEW: Open = Open::new().read(true).write(true).create(true);
/// More than goes into a log record: making it durable takes a flush.
static LONG: [u8; 256 << 10] = [1; 256 << 10];

fn rig(ordered: Ordered) -> Option<Rig> {
    (can_mount() && common::is_root() && compiled().is_some()).then(|| Rig::new(ordered, ""))
}

#[test]
fn barriers_flush_nothing() {
    let Some(rig) = rig(Ordered::default()) else { return };
    // The Rust client over a session.
    let file = rig.session().open("rust", NEW).unwrap();
    let seen = rig.counted(|| {
        file.write_all_at(&LONG, 0).unwrap();
        file.fbarrier().unwrap();
        file.write_all_at(&LONG, 0).unwrap();
        file.fdatabarrier().unwrap();
        // Nobody but the worker goes to the device, when the epoch is old.
        std::thread::sleep(std::time::Duration::from_millis(500));
    });
    assert_eq!((seen.barriers, seen.flushes, seen.durable), (2, 0, 0), "{seen:?}");
    assert!(seen.epochs >= 1 && seen.writes > 0, "it went to the device: {seen:?}");
    // A file descriptor of the mount.
    let file = File::create(rig.point().join("kernel")).unwrap();
    let seen = rig.counted(|| {
        file.write_all_at(&LONG, 0).unwrap();
        fbarrier(file.as_raw_fd()).unwrap();
        fdatabarrier(File::open(rig.point()).unwrap().as_raw_fd()).unwrap();
    });
    assert_eq!((seen.barriers, seen.flushes, seen.durable), (2, 0, 0), "{seen:?}");
    // A program that finds the functions, or the ioctl.
    for (preloaded, way) in [(true, "library\n"), (false, "ioctl\n")] {
        let mut said = String::new();
        let seen = rig.counted(|| said = rig.program(preloaded, "order", &["ask".as_ref(), rig.point()]));
        assert_eq!(said, way);
        assert_eq!((seen.barriers, seen.flushes, seen.durable), (6, 0, 0), "{way}{seen:?}");
    }
    // The measure measures.
    let seen = rig.counted(|| file.sync_all().unwrap());
    assert!(seen.barriers == 0 && seen.flushes > 0 && seen.durable > 0, "{seen:?}");
    rig.done();
}

/// The kernel answers the fsync of a directory itself, with success, where a file system says that it knows no such call.
#[test]
fn names_are_durable_when_their_directory_was_synced() {
    let Some(rig) = rig(Ordered::default()) else { return };
    std::fs::create_dir(rig.point().join("d")).unwrap();
    for (round, parent) in ["", "d", "", "d"].into_iter().enumerate() {
        let directory = File::open(rig.point().join(parent)).unwrap();
        let name = rig.point().join(parent).join(format!("name{round}"));
        let seen = rig.counted(|| drop(File::create(&name).unwrap()));
        assert_eq!(seen.durable, 0, "nothing does it but a sync: {seen:?}");
        let sync = || if round < 2 { directory.sync_all() } else { directory.sync_data() };
        let seen = rig.counted(|| sync().unwrap());
        assert!(seen.durable > 0 && seen.writes > 0, "{name:?}: {seen:?}");
    }
    rig.done();
}

#[test]
fn elsewhere_a_barrier_is_a_sync() {
    let Some(rig) = rig(Ordered::default()) else { return };
    for place in [tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap()] {
        assert_eq!(rig.program(false, "order", &["ask".as_ref(), place.path()]), "sync\n");
        let seen = rig.counted(|| {
            assert_eq!(rig.program(true, "order", &["ask".as_ref(), place.path()]), "library\n");
        });
        assert_eq!(seen.barriers, 0, "it is nothing to the volume");
    }
    rig.done();
    // Where the kernel keeps writes, order could not be kept for them.
    let rig = Rig::new(Ordered::default(), "writeback");
    let seen = rig.counted(|| {
        assert_eq!(rig.program(false, "order", &["ask".as_ref(), rig.point()]), "sync\n");
    });
    assert!(seen.barriers == 0 && seen.flushes > 0, "{seen:?}");
    rig.done();
}

/// Runs `N` steps with a barrier between both sides of each, and looks at states after power failures.
fn check(rig: &Rig, steps: impl FnOnce(u64)) -> usize {
    both_sides(&rig.session());
    rig.flash.set_trace(true);
    steps(30);
    violations(rig.flash.take_trace().expect("it was on"), 24)
}

#[test]
fn nothing_is_there_without_what_a_barrier_put_before_it() {
    let Some(one) = rig(Ordered::default()) else { return };
    let found = check(&one, |n| {
        let (mut a, mut b) = (InSession::new(&one.session(), 'a'), InSession::new(&one.session(), 'b'));
        (1..=n).for_each(|i| {
            a.step(i);
            pause(i, 0);
            a.barrier(i % 2 == 0);
            pause(i, 1);
            b.step(i);
            pause(i, 2);
        });
    });
    assert_eq!(found, 0, "by two sessions");
    one.done();

    let one = Rig::new(Ordered::default(), "");
    let found = check(&one, |n| {
        let (mut a, mut b) = (OnMount::new(one.point(), 'a'), InSession::new(&one.session(), 'b'));
        (1..=n).for_each(|i| {
            a.step(i);
            pause(i, 0);
            a.barrier(i % 2 == 0);
            pause(i, 1);
            b.step(i);
            pause(i, 2);
        });
    });
    assert_eq!(found, 0, "through the mount, and by a session");
    one.done();

    for preloaded in [true, false] {
        let one = Rig::new(Ordered::default(), "");
        let found = check(&one, |n| {
            let n = n.to_string();
            one.program(preloaded, "order", &["steps".as_ref(), one.point(), n.as_ref()]);
        });
        assert_eq!(found, 0, "by a program; preloaded: {preloaded}");
        one.done();
    }
}

/// The canary: the check sees what it looks for.
#[test]
fn the_other_way_round_is_noticed() {
    let Some(one) = rig(Ordered::default()) else { return };
    let found = check(&one, |n| {
        let (mut a, mut b) = (InSession::new(&one.session(), 'a'), OnMount::new(one.point(), 'b'));
        (1..=n).for_each(|i| {
            b.step(i);
            b.barrier(true);
            pause(i, 1);
            a.step(i);
            a.barrier(true);
        });
    });
    assert!(found > 0, "no state between both sides was looked at");
    one.done();
}

#[test]
fn syncs_of_chosen_programs_are_barriers() {
    let ordered = Ordered { programs: vec!["orderly".into(), "other".into()], ..Ordered::default() };
    let Some(rig) = rig(ordered) else { return };
    let file = rig.point().join("f");
    for preloaded in [true, false] {
        let seen = rig.counted(|| drop(rig.program(preloaded, "orderly", &["fsync".as_ref(), &file])));
        assert_eq!((seen.barriers, seen.flushes, seen.durable), (2, 0, 0), "{preloaded}: {seen:?}");
        let seen = rig.counted(|| drop(rig.program(preloaded, "order", &["fsync".as_ref(), &file])));
        assert!(seen.barriers == 0 && seen.flushes >= 2 && seen.durable > 0, "{preloaded}: {seen:?}");
    }
    rig.done();
}

#[test]
fn syncs_below_chosen_paths_are_barriers() {
    let Some(rig) = rig(Ordered { paths: vec!["/o/deep".into()], ..Ordered::default() }) else { return };
    let session = rig.session();
    session.create_dir_all("/o").unwrap();
    session.create_dir_all("/o/deep").unwrap();
    session.create_dir_all("/o/deep/er").unwrap();
    let write = |path: &str, mount: bool| {
        if mount {
            let file = File::create(rig.point().join(path)).unwrap();
            file.write_all_at(&LONG, 0).unwrap();
            file.sync_data().unwrap();
        } else {
            let file = session.open(path, NEW).unwrap();
            file.write_all_at(&LONG, 0).unwrap();
            file.fsync().unwrap();
        }
    };
    for mount in [false, true] {
        for path in ["o/deep/f", "o/deep/er/f"] {
            let seen = rig.counted(|| write(path, mount));
            assert_eq!((seen.barriers, seen.flushes, seen.durable), (1, 0, 0), "{path} {mount} {seen:?}");
        }
        for path in ["f", "o/f", "o/deeper"] {
            let seen = rig.counted(|| write(path, mount));
            assert!(seen.barriers == 0 && seen.flushes > 0, "{path} {mount} {seen:?}");
        }
    }
    // Where it is now is what counts; what has no name is nowhere.
    let file = session.open("/o/deep/f", NEW).unwrap();
    let synced = || {
        file.write_all_at(&LONG, 0).unwrap();
        file.fdatasync().unwrap();
    };
    assert_eq!(rig.counted(synced).barriers, 1);
    session.rename("/o/deep/f", "/moved", RenameFlags::empty()).unwrap();
    assert!(rig.counted(synced).durable > 0);
    session.rename("/moved", "/o/deep/er/f", RenameFlags::empty()).unwrap();
    assert_eq!(rig.counted(synced).durable, 0);
    session.unlink("/o/deep/er/f").unwrap();
    assert!(rig.counted(synced).durable > 0);
    drop(file);
    rig.done();
}

/// sync(2) and syncfs(2) of a program under the library, by name and by number, and the syncs of files by number, which the kernel would take for done.
#[test]
fn programs_sync_everything() {
    let Some(rig) = rig(Ordered::default()) else { return };
    let file = rig.point().join("f");
    let numbers =
        [libc::SYS_sync, libc::SYS_syncfs, libc::SYS_fsync, libc::SYS_fdatasync, libc::SYS_sync_file_range];
    for how in ["sync".into(), "syncfs".into()].into_iter().chain(numbers.map(|n| n.to_string())) {
        let args = ["sync".as_ref(), how.as_ref(), file.as_path()];
        let seen = rig.counted(|| drop(rig.program(true, "order", &args)));
        assert!(seen.flushes > 0 && seen.durable > 0, "{how}: {seen:?}");
    }
    // What somebody else did, by a program that knows nothing of the volume.
    let session = rig.session();
    let written = session.open("g", NEW).unwrap();
    let seen = rig.counted(|| {
        written.write_all_at(&LONG, 0).unwrap();
        rig.program(true, "order", &["sync".as_ref(), "sync".as_ref()]);
    });
    assert!(seen.flushes > 0 && seen.durable > 0, "{seen:?}");
    // The measure measures.
    let nothing = libc::SYS_sched_yield.to_string();
    let seen = rig.counted(|| drop(rig.program(true, "order", &["sync".as_ref(), nothing.as_ref()])));
    assert_eq!((seen.flushes, seen.durable), (0, 0), "{seen:?}");
    drop(written);
    rig.done();
}

#[test]
fn what_stays_durable_where_everything_is_ordered() {
    let Some(rig) = rig(Ordered { all: true, ..Ordered::default() }) else { return };
    let session = rig.session();
    let file = session.open("f", NEW).unwrap();
    let seen = rig.counted(|| {
        file.write_all_at(&LONG, 0).unwrap();
        file.fsync().unwrap();
    });
    assert_eq!((seen.barriers, seen.durable), (1, 0), "{seen:?}");
    assert!(rig.counted(|| session.sync().unwrap()).durable > 0);
    for (name, options) in [("s", NEW.sync(true)), ("d", NEW.dsync(true))] {
        let file = session.open(name, options).unwrap();
        assert!(rig.counted(|| file.write_all_at(&LONG, 0).unwrap()).durable > 0, "{name}");
    }
    rig.done();
    for options in ["", "writeback"] {
        let rig = Rig::new(Ordered { all: true, ..Ordered::default() }, options);
        let seen =
            rig.counted(|| drop(rig.program(false, "order", &["fsync".as_ref(), &rig.point().join("f")])));
        assert_eq!((seen.barriers, seen.durable), (2, 0), "{options} {seen:?}");
        for flag in [libc::O_SYNC, libc::O_DSYNC] {
            let mut open = File::options();
            let file = open.write(true).create(true).custom_flags(flag).open(rig.point().join("s")).unwrap();
            let seen = rig.counted(|| file.write_all_at(&LONG, 0).unwrap());
            assert!(seen.durable > 0, "{options} {flag:x} {seen:?}");
        }
        // What the kernel makes an fsync of is one.
        let file = File::create(rig.point().join("r")).unwrap();
        let seen = rig.counted(|| {
            let piece = libc::iovec { iov_base: LONG.as_ptr().cast_mut().cast(), iov_len: LONG.len() };
            // SAFETY: an open descriptor, and one piece of memory that is only read.
            let n = unsafe { libc::pwritev2(file.as_raw_fd(), &piece, 1, 0, libc::RWF_DSYNC) };
            assert_eq!(n, LONG.len() as isize);
        });
        assert_eq!((seen.barriers, seen.durable), (1, 0), "{options} {seen:?}");
        rig.done();
    }
}

/// What the page cache of the kernel has of the image is there after the server was killed: what was not handed to it is gone.
#[test]
fn a_killed_server_keeps_the_order() {
    if !can_mount() || !common::is_root() {
        return;
    }
    let Some(program) = compiled() else { return };
    let p = Place::new();
    // Large enough for the fastest machine: a write that a full volume has no room for may be there in part.
    p.run(["mkfs", "a.img", "--size", "2g", "--sparse"]).ok();
    let point = p.mkdir("mnt");
    for round in 0..6u64 {
        p.line("mount a.img mnt --log log").ok();
        for name in std::fs::read_dir(&point).unwrap() {
            std::fs::remove_file(name.unwrap().path()).unwrap();
        }
        let on = |side| {
            (0..3).for_each(|what| drop(File::create(point.join(steps::name(side, what, 0))).unwrap()))
        };
        ['a', 'b'].into_iter().for_each(on);
        File::open(&point).unwrap().sync_all().unwrap();
        let mut command = match round % 2 {
            0 => p.command(),
            _ => std::process::Command::new(program.path("order")),
        };
        if round % 2 == 0 {
            command.env("FREEHOLD_PRELOAD", library()).env("FREEHOLD_RESUME", "0");
            command.args(["run", "--"]).arg(program.path("order"));
        }
        command.arg("steps").arg(&point).arg("0");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut way = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut way).unwrap();
        assert_eq!(way, if round % 2 == 0 { "library\n" } else { "ioctl\n" });
        std::thread::sleep(std::time::Duration::from_millis(400 + 37 * round));
        let pid = freehold::mounts::lock_holder(&p.path("a.img")).expect("it is served").pid;
        // SAFETY: no memory is involved; the process is a server of this test.
        assert_eq!(unsafe { libc::kill(pid as i32, libc::SIGKILL) }, 0);
        assert!(!child.wait().unwrap().success(), "its calls fail");
        common::eventually("the server is gone", || {
            freehold::mounts::lock_holder(&p.path("a.img")).is_none()
        });
        p.line("umount -f mnt");
        let volume = freehold::open(p.path("a.img"), Default::default()).unwrap();
        let (a, b) = steps::sides(&volume);
        volume.close_blocking().unwrap();
        println!("round {round}: a {a:?}, b {b:?}");
        assert!(a.iter().min() >= b.iter().max(), "round {round}: a {a:?}, b {b:?}");
        assert!(a.iter().max() > Some(&0), "round {round}: nothing was done");
    }
}

/// An operator is told.
#[test]
fn it_is_said_that_syncs_are_not_durable() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    p.volume("a.img");
    p.mkdir("mnt");
    p.line("mount a.img mnt --log log -o ordered_programs=sqlite3:postgres,ordered_paths=/spool").ok();
    let said = p.line("clients mnt").ok();
    assert!(said.contains("Fsync") && said.contains("for sqlite3, postgres, files below /spool"), "{said}");
    let log = std::fs::read_to_string(p.path("log")).unwrap();
    assert!(log.contains("order, not durability, for sqlite3, postgres, files below /spool"), "{log}");
    assert!(log.contains("/spool of ordered_paths is not there"), "{log}");
    p.line("umount mnt").ok();
    p.line("mount a.img mnt -o sync,ordered").fails(&["'sync'", "'ordered'"]);
    p.line("mount a.img mnt -o ordered,durable").ok();
    assert!(!p.line("clients mnt").ok().contains("order,"));
    p.line("umount mnt").ok();
}

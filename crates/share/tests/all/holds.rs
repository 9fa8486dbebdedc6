//! Files that clients open without a message.
//!
//! Verifies, over the block engine, that opening what is known sends nothing; that a file that is open so survives its name and its
//! permissions like any open file, whichever door takes them away and in the middle of whatever; and that it is gone when the last one has closed it.
//! Does not verify clients that write nonsense (tests/all/hostile.rs).

use crate::rig::between::{Between, Moment};
use crate::rig::{PAGE, RW, Rig, page};
use block::Volume;
use fs::client::OpenOptions as Open;
use fs::watched::{Change, Told, Watched, Watcher};
use fs::{Blocking, Cred, Error, Handle};
use share::Remote;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::time::{Duration, Instant};

const READ: Open = Open::new().read(true);

/// A rig with a file "other".
fn with_other() -> Rig<Volume> {
    let rig = Rig::new(crate::rig::volume(128 << 20));
    rig.beside.write("other", b"").unwrap();
    rig
}

/// A client that has opened something, as only such clients open without a message.
fn client(rig: &Rig<Volume>) -> Blocking<Remote> {
    let client = rig.client();
    client.open("other", RW).unwrap().close().unwrap();
    client
}

/// Waits until the engine has no inode but the root and "other", and so many.
fn inodes(rig: &Rig<Volume>, more: u64) {
    let begun = Instant::now();
    let used = || {
        let all = rig.beside.statfs().unwrap();
        all.inodes - all.inodes_free
    };
    while used() != 2 + more {
        assert!(begun.elapsed() < Duration::from_secs(5), "{} inodes, not {}", used(), 2 + more);
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn opening_what_is_known_costs_no_message() {
    let rig = with_other();
    let client = client(&rig);
    client.write("f", page(1)).unwrap();
    client.stat("f").unwrap();
    let before = rig.calls();
    for _ in 0..100 {
        let (one, two) = (client.open("f", READ).unwrap(), client.open("f", RW).unwrap());
        one.close().unwrap();
        two.close().unwrap();
    }
    assert_eq!(rig.calls() - before, 0, "calls for what is known");
    // Creating what is there is opening it, also when it was changed by oneself in between.
    for round in 0..5 {
        let before = rig.calls();
        let file = client.open("f", RW.create(true)).unwrap();
        assert_eq!((rig.calls() - before, round), (0, round), "calls for a file that is there");
        file.set_len(0).unwrap();
        file.write_all_at(&page(1), 0).unwrap();
        file.close().unwrap();
    }
    // Used as any other.
    let file = client.open("f", RW).unwrap();
    let mut bytes = vec![0; PAGE];
    file.read_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, page(1));
    file.write_all_at(&page(2), 0).unwrap();
    file.fsync().unwrap();
    file.close().unwrap();
    let read_only = client.open("f", READ).unwrap();
    assert!(read_only.write_all_at(&page(3), 0).is_err());
    assert_eq!(client.read("f").unwrap(), page(2));
}

#[test]
fn reading_a_file_once_is_one_message() {
    let rig = with_other();
    let client = client(&rig);
    for i in 0..20u64 {
        rig.beside.write(format!("f{i}"), page(i)).unwrap();
        client.stat(format!("f{i}")).unwrap();
    }
    // What is read within the tick of the system's clock in which it was written has its time of access moved by the next reader as well.
    std::thread::sleep(Duration::from_millis(20));
    let before = rig.calls();
    for i in 0..20u64 {
        let file = client.open(format!("f{i}"), READ).unwrap();
        let mut bytes = vec![0; 2 * PAGE];
        assert_eq!(file.read_at(&mut bytes, 0).unwrap(), PAGE);
        assert_eq!(bytes[..PAGE], page(i));
        assert_eq!(file.read_at(&mut bytes, PAGE as u64).unwrap(), 0);
        file.close().unwrap();
    }
    assert_eq!(rig.calls() - before, 20);
    // Whoever reads on has it open with the manager.
    let file = client.open("f7", RW).unwrap();
    rig.beside.unlink("f7").unwrap();
    rig.beside.write("f7", page(70)).unwrap();
    let mut bytes = vec![0; PAGE];
    for _ in 0..3 {
        file.read_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, page(7));
    }
}

/// Runs `f` on one of two processors, if there are as many.
fn on<T: Send>(processor: usize, f: impl FnOnce() -> T + Send) -> T {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let pinned = || {
        let all = sched_getaffinity(None).unwrap();
        let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| all.is_set(cpu)).collect();
        let mut one = CpuSet::new();
        one.set(cpus[processor.min(cpus.len() - 1)]);
        sched_setaffinity(None, &one).unwrap();
        f()
    };
    std::thread::scope(|scope| scope.spawn(pinned).join().unwrap())
}

/// Threads on different processors hold the same file, each for itself.
#[test]
fn a_file_that_is_held_on_two_processors_is_closed_once_and_for_all() {
    let rig = with_other();
    for case in 0..8u64 {
        let client = client(&rig);
        client.write("f", page(case)).unwrap();
        let open = |processor| {
            on(processor, || {
                client.stat("f").unwrap();
                client.open("f", READ).unwrap()
            })
        };
        // What the manager opens for the first is open when the second comes, or is opened for both.
        let before = case & 1 == 0;
        let first = open(0);
        let early = before.then(|| open(1));
        rig.beside.chmod("f", 0o600).unwrap();
        let calls = rig.calls();
        let second = early.unwrap_or_else(|| open(1));
        assert!(before || rig.calls() <= calls + 1, "held, not opened");
        if case & 2 != 0 {
            rig.beside.unlink("f").unwrap();
        }
        let (goes, stays) = if case & 4 == 0 { (first, second) } else { (second, first) };
        on(case as usize / 4, || goes.close().unwrap());
        let mut bytes = vec![0; PAGE];
        stays.read_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, page(case), "{case}");
        inodes(&rig, 1);
        stays.close().unwrap();
        if case & 2 == 0 {
            rig.beside.unlink("f").unwrap();
        }
        inodes(&rig, 0);
    }
}

#[test]
fn an_open_file_survives_its_name() {
    let rig = with_other();
    for case in 0..6u64 {
        let (client, second) = (client(&rig), client(&rig));
        client.write("f", page(case)).unwrap();
        client.stat("f").unwrap();
        let before = rig.calls();
        let (file, again) = (client.open("f", READ).unwrap(), client.open("f", RW).unwrap());
        assert_eq!(rig.calls(), before, "opened without a message");
        inodes(&rig, 1);
        match case {
            0 => second.unlink("f").unwrap(),
            1 => rig.beside.unlink("f").unwrap(),
            2 => client.unlink("f").unwrap(),
            3 => {
                rig.beside.write("g", b"new").unwrap();
                rig.beside.rename("g", "f", Default::default()).unwrap();
                rig.beside.unlink("f").unwrap();
            }
            4 => {
                second.link("f", "h").unwrap();
                second.unlink("f").unwrap();
                rig.beside.unlink("h").unwrap();
            }
            _ => {
                rig.beside.chmod("f", 0).unwrap();
                second.unlink("f").unwrap();
            }
        }
        assert_eq!(client.stat("f").unwrap_err(), Error::NotFound);
        inodes(&rig, 1);
        let mut bytes = vec![0; PAGE];
        assert_eq!(file.read_at(&mut bytes, 0).unwrap(), PAGE, "case {case}");
        assert_eq!(bytes, page(case));
        again.write_all_at(&page(77), 0).unwrap();
        file.read_at(&mut bytes, 0).unwrap();
        assert_eq!((bytes, file.metadata().unwrap().nlink), (page(77), 0));
        match case % 3 {
            // Closed, or its program ends.
            0 => drop((file, again, client)),
            1 => {
                file.close().unwrap();
                again.close().unwrap();
            }
            _ => {
                again.close().unwrap();
                inodes(&rig, 1);
                file.close().unwrap();
            }
        }
        inodes(&rig, 0);
    }
}

/// Whoever has a file open may go on with it when its permissions go; who has it not may not.
#[test]
fn an_open_file_survives_its_permissions() {
    if Cred::of_process().uid != 0 {
        return eprintln!("skipped: needs root to become somebody else");
    }
    let rig = with_other();
    std::fs::set_permissions(rig.dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    for name in ["f", "other"] {
        rig.beside.write(name, page(1)).unwrap();
        rig.beside.chmod(name, 0o666).unwrap();
    }
    std::thread::scope(|s| {
        let user = s.spawn(|| {
            // SAFETY: system calls for this thread alone, without memory but for a null list of length 0.
            unsafe {
                assert_eq!(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<u32>()), 0);
                assert_eq!(libc::syscall(libc::SYS_setresgid, 4321, 4321, 4321), 0);
                assert_eq!(libc::syscall(libc::SYS_setresuid, 4321, 4321, 4321), 0);
            }
            let client = client(&rig);
            client.stat("f").unwrap();
            let before = rig.calls();
            let held = client.open("f", RW).unwrap();
            assert_eq!(rig.calls(), before, "opened without a message");
            rig.beside.chmod("f", 0o6610).unwrap();
            assert_eq!(client.open("f", READ).unwrap_err(), Error::AccessDenied);
            client.stat("f").unwrap();
            assert_eq!(client.open("f", READ).unwrap_err(), Error::AccessDenied);
            let mut bytes = vec![0; PAGE];
            held.write_all_at(&page(2), 0).unwrap();
            held.read_at(&mut bytes, 0).unwrap();
            assert_eq!(bytes, page(2));
            assert_eq!(rig.beside.stat("f").unwrap().perm, 0o610, "set-id bits go with what others write");
            held.close().unwrap();
            assert_eq!(client.open("f", READ).unwrap_err(), Error::AccessDenied);
        });
        user.join().unwrap();
    });
}

/// Nobody has opened a file without a message before somebody does while its name goes: after it was looked for those who have.
#[test]
fn the_first_who_opens_so_does_not_open_what_is_being_removed() {
    let rig = with_other();
    rig.beside.write("f", page(1)).unwrap();
    let ino = rig.beside.stat("f").unwrap().ino;
    let between = Between::beside(&rig);
    let first = Arc::new(rig.client());
    let (opens, opened) = mpsc::channel();
    between.at(Moment::Declared(ino), {
        let first = first.clone();
        move || {
            first.open("other", RW).unwrap().close().unwrap();
            first.stat("f").unwrap();
            opens.send(first.open("f", READ).unwrap()).unwrap();
        }
    });
    rig.beside.unlink("f").unwrap();
    let file = opened.try_recv().expect("it was opened meanwhile");
    assert_eq!(first.stat("f").unwrap_err(), Error::NotFound);
    inodes(&rig, 1);
    let mut bytes = vec![0; PAGE];
    assert_eq!(file.read_at(&mut bytes, 0), Ok(PAGE));
    assert_eq!(bytes, page(1));
    file.close().unwrap();
    inodes(&rig, 0);
}

/// A file is replaced all the time; whoever opens it finds all of one version.
#[test]
fn opening_beside_replacing() {
    let rig = with_other();
    rig.beside.write("f", page(0)).unwrap();
    let (over, opened, versions) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|s| {
        let (rig, over, opened, versions) = (&rig, &over, &opened, &versions);
        for writer in 0..2u64 {
            s.spawn(move || {
                let client = client(rig);
                let name = format!("new{writer}");
                let mut n = 1;
                while !over.load(Ordering::Relaxed) {
                    match writer {
                        0 => {
                            client.write(&name, page(n)).unwrap();
                            client.rename(&name, "f", Default::default()).unwrap();
                        }
                        _ => {
                            rig.beside.write(&name, page(n)).unwrap();
                            rig.beside.rename(&name, "f", Default::default()).unwrap();
                        }
                    }
                    versions.fetch_add(1, Ordering::Relaxed);
                    n += 1;
                    std::thread::sleep(Duration::from_micros(50 * (n % 8)));
                }
            });
        }
        let readers: Vec<_> = (0..2)
            .map(|_| {
                s.spawn(move || {
                    let client = client(rig);
                    let mut bytes = vec![0; PAGE];
                    let begun = Instant::now();
                    while begun.elapsed() < Duration::from_secs(3) {
                        let file = client.open("f", READ).unwrap();
                        if opened.fetch_add(1, Ordering::Relaxed) % 16 == 0 {
                            std::thread::sleep(Duration::from_micros(100));
                        }
                        assert_eq!(file.read_at(&mut bytes, 0).unwrap(), PAGE);
                        assert_eq!(bytes, bytes[..8].repeat(PAGE / 8));
                        file.close().unwrap();
                    }
                })
            })
            .collect();
        let ended: Vec<_> = readers.into_iter().map(|r| r.join()).collect();
        over.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|r| r.unwrap());
    });
    inodes(&rig, 1);
    assert!(opened.load(Ordering::Relaxed) > 500 && versions.load(Ordering::Relaxed) > 100);
}

/// A door that takes its time.
struct Slow;

impl Watcher for Slow {
    fn changed(&self, _: &Change<'_>) -> Option<Told> {
        std::thread::sleep(Duration::from_millis(20));
        None
    }
}

/// A name that is replaced leads to one file or the other, however long it takes until everybody has been told.
#[test]
fn replaced_names_lead_somewhere() {
    let doors = Watched::new(crate::rig::volume(64 << 20));
    let slow = doors.door();
    slow.watch(Arc::new(Slow));
    let rig = Rig::over(doors);
    let client = rig.client();
    for n in 0..10 {
        client.write("f", page(n)).unwrap();
        client.write("new", page(n)).unwrap();
        std::thread::scope(|s| {
            let replacing = s.spawn(|| rig.beside.rename("new", "f", Default::default()).unwrap());
            while !replacing.is_finished() {
                client.stat("f").unwrap();
                client.open("f", READ).unwrap().close().unwrap();
                client.open("f", RW).unwrap().close().unwrap();
            }
        });
    }
}

/// However often somebody changes who may open it, or wants to, a file is opened no more than that once for who holds it.
#[test]
fn a_held_file_that_is_changed_again_and_again_is_opened_once() {
    const ROUNDS: u64 = 300;
    let rig = with_other();
    let client = client(&rig);
    client.write("f", page(1)).unwrap();
    client.stat("f").unwrap();
    let (file, again) = (client.open("f", READ).unwrap(), client.open("f", RW).unwrap());
    rig.beside.link("f", "g").unwrap();
    for round in 0..ROUNDS {
        rig.beside.chmod("f", 0o600 | (round & 1) as u16).unwrap();
        rig.beside.unlink("g").unwrap();
        rig.beside.link("f", "g").unwrap();
    }
    // Numbers of handles are not used again.
    let open = (0..100_000).filter(|&n| rig.doors.opened_with(Handle(n)).is_some()).count();
    assert!((1..20).contains(&open), "{open} handles");
    rig.beside.unlink("g").unwrap();
    rig.beside.unlink("f").unwrap();
    again.write_all_at(&page(2), 0).unwrap();
    let mut bytes = vec![0; PAGE];
    file.read_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, page(2));
    inodes(&rig, 1);
    file.close().unwrap();
    again.close().unwrap();
    inodes(&rig, 0);
}

/// More threads than a session has slots come to a file for the first time, all at once: none waits for what another one has while that waits, too.
#[test]
fn many_threads_use_a_held_file_first() {
    const THREADS: usize = 200;
    let rig = with_other();
    let client = client(&rig);
    for round in 0..8 {
        client.write("f", page(round)).unwrap();
        client.stat("f").unwrap();
        let file = Arc::new(client.open("f", RW).unwrap());
        let barrier = Arc::new(Barrier::new(THREADS));
        let (done, all) = std::sync::mpsc::channel();
        for i in 0..THREADS {
            let (file, barrier, done) = (file.clone(), barrier.clone(), done.clone());
            std::thread::spawn(move || {
                barrier.wait();
                let at = (i * PAGE) as u64;
                let wrote = if i % 2 == 0 { file.write_all_at(&page(i as u64), at) } else { file.fsync() };
                drop(file);
                done.send(wrote).unwrap();
            });
        }
        for i in 0..THREADS {
            let wrote = all.recv_timeout(Duration::from_secs(60));
            wrote.unwrap_or_else(|_| panic!("round {round}: {i} of the calls ended, no more")).unwrap();
        }
        Arc::into_inner(file).unwrap().close().unwrap();
        client.unlink("f").unwrap();
        // What was opened by several is closed.
        inodes(&rig, 0);
    }
}

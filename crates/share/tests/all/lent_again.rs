//! Files that are there already, lent to who writes to them.
//!
//! Verifies, over the block engine, that a client which writes to a file that nobody else has open soon waits for none of its writes any more; that it gets no such file that others have open or
//! are changing; that what others keep of it ends; that everybody sees each write when it has returned, and in order with their own; that a file of which others keep
//! coming is seldom lent; that it outlives its client and its manager. Clients that do not keep to the rules: tests/all/new_file_attacks.rs.

use crate::rig::between::{Between, Gate, Moment};
use crate::rig::{NEW, PAGE, RW, Random, Rig, page, volume, volume_on_flash, without_power};
use fs::client::OpenOptions as Open;
use fs::watched::{Change, Told, Watched, Watcher};
use fs::{Cred, FileSystem, SetAttr};
use std::sync::{Arc, Barrier, mpsc};
use std::time::{Duration, Instant};

/// Nothing here takes so long.
const LONG: Duration = Duration::from_secs(10);
/// Enough writes for a file to be lent.
const ENOUGH: u64 = 8;

fn bytes(of: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (of.wrapping_mul(131) + i / 5) as u8).collect()
}

/// Writes that were posted, when they are done.
fn posted<F: FileSystem>(rig: &Rig<F>) -> u64 {
    rig.calls();
    rig.count("post_write")
}

#[test]
fn nobody_waits_for_writes_to_a_file_that_is_there() {
    for lends_directories in [false, true] {
        let fs = volume(256 << 20);
        let rig = if lends_directories { Rig::new(fs) } else { Rig::shared(fs) };
        rig.beside.write("/f", bytes(0, 100_000)).unwrap();
        let client = rig.client();
        let file = client.open("/f", RW).unwrap();
        let mut want = bytes(0, 100_000);
        for i in 0..3000 {
            let (at, data) = match i % 5 {
                // Whole pages, where they are not written again and again; and parts of pages.
                0 => (i * 7919 % 24 * PAGE as u64, bytes(i, PAGE)),
                1 => (i * 104_729 % 90_000, bytes(i, 700)),
                _ => (want.len() as u64, bytes(i, 1 + i as usize * 37 % 9000)),
            };
            file.write_all_at(&data, at).unwrap();
            want.resize(want.len().max(at as usize + data.len()), 0);
            want[at as usize..][..data.len()].copy_from_slice(&data);
        }
        let (posted, written) = (posted(&rig), rig.count("write"));
        println!("{written} written by messages, {posted} posted");
        assert!(written < 30 && posted > 2900, "{written}, {posted}");
        assert!(rig.beside.read("/f").unwrap() == want);
        drop(file);
        rig.calls();
        assert!(!rig.doors.lends());
    }
}

/// The directory is this client's, and the file was made there; but it is open by another handle now.
#[test]
fn a_file_of_ones_own_that_is_opened_again() {
    let rig = Rig::new(volume(64 << 20));
    let client = rig.client();
    client.mkdir("/d", 0o755).unwrap();
    for i in 0..20 {
        client.open(format!("/d/{i}"), NEW).unwrap().write_all_at(b"begun", 0).unwrap();
    }
    rig.calls();
    let made = rig.count("post_create");
    assert!(made > 10 && rig.doors.lends_directories(), "{made}");
    let file = client.open("/d/19", RW).unwrap();
    (0..500).for_each(|i| file.write_all_at(&page(i), i * PAGE as u64).unwrap());
    let (posted, written) = (posted(&rig), rig.count("write"));
    assert!(written < 20 && posted > 490, "{written} by messages, {posted} posted");
    assert!(rig.doors.lends_directories(), "its directory still is");
    assert_eq!(rig.beside.read("/d/19").unwrap().len(), 500 * PAGE);
}

#[test]
fn what_others_have_open_is_theirs_too() {
    let rig = Rig::shared(volume(64 << 20));
    rig.beside.write("/f", page(0)).unwrap();
    let (a, b) = (rig.client(), rig.client());
    let file = a.open("/f", RW).unwrap();
    let theirs = b.open("/f", RW).unwrap();
    theirs.write_all_at(&page(1), 0).unwrap();
    (1..100).for_each(|i| file.write_all_at(&page(i), i * PAGE as u64).unwrap());
    assert_eq!(posted(&rig), 0);
    theirs.close().unwrap();
    (0..2000).for_each(|i| file.write_all_at(&page(i), i % 100 * PAGE as u64 + 50 * PAGE as u64).unwrap());
    assert!(posted(&rig) > 0 || rig.count("lease") > 0, "from then on it is not");
}

/// Others know the file, have it open without the manager, and read what they keep.
#[test]
fn what_others_keep_of_it_ends() {
    let rig = Rig::shared(volume(128 << 20));
    let (a, b) = (rig.client(), rig.client());
    let mut back = vec![0; PAGE];
    // Who has opened nothing yet opens with a message.
    b.open("/other", NEW).unwrap().close().unwrap();
    for round in 0..24u64 {
        let name = format!("/f{round}");
        rig.beside.write(&name, [page(0), page(0)].concat()).unwrap();
        // What is read within the tick of the system's clock in which it was written is read by a message once more.
        std::thread::sleep(Duration::from_millis(10));
        b.stat(&name).unwrap();
        let theirs = b.open(&name, Open::new().read(true)).unwrap();
        let read = |at: u64, to: &mut [u8]| theirs.read_at(to, at * PAGE as u64).unwrap();
        // So often that they ask no longer.
        (0..4).for_each(|_| assert_eq!(read(0, &mut back), PAGE));
        let asked = rig.calls();
        (0..10).for_each(|_| {
            assert!(read(0, &mut back) == PAGE && b.stat(&name).unwrap().size == 2 * PAGE as u64)
        });
        assert!(rig.calls() - asked < 5);
        assert_eq!(rig.doors.openers(theirs.ino()), 0, "the manager knows nothing of it");
        let file = a.open(&name, RW).unwrap();
        let before = posted(&rig);
        for i in 0..ENOUGH {
            file.write_all_at(&page(i), (2 + i) * PAGE as u64).unwrap();
        }
        file.write_all_at(&page(1000 + round), 0).unwrap();
        assert!(posted(&rig) > before, "{round}: it is not lent");
        file.write_all_at(&page(2000 + round), 0).unwrap();
        if round % 2 == 0 {
            assert_eq!(b.stat(&name).unwrap().size, (2 + ENOUGH) * PAGE as u64);
        }
        read(0, &mut back);
        assert!(back == page(2000 + round), "{round}");
        file.write_all_at(b"end", (2 + ENOUGH) * PAGE as u64).unwrap();
        assert_eq!(read(2 + ENOUGH, &mut back), 3);
        assert_eq!(b.stat(&name).unwrap().size, (2 + ENOUGH) * PAGE as u64 + 3);
    }
}

/// Somebody else is writing to the file, and has looked for leases when there was none yet.
#[test]
fn it_is_not_lent_while_somebody_changes_it() {
    let rig = Rig::shared(volume(64 << 20));
    rig.beside.write("/f", page(0)).unwrap();
    // Asked last of all.
    let between = Between::before(&rig.doors);
    let client = rig.client();
    let ino = rig.beside.stat("/f").unwrap().ino;
    let file = client.open("/f", RW).unwrap();
    (0..3).for_each(|i| file.write_all_at(&page(0), i * PAGE as u64).unwrap());
    let (reaches, reached) = mpsc::channel();
    let (goes_on, waits) = mpsc::channel();
    between.at(Moment::Looks(ino), move || {
        reaches.send(()).unwrap();
        waits.recv_timeout(LONG).unwrap();
    });
    let beside = rig.beside.client().fs().clone();
    // Who has it not open.
    let theirs = std::thread::spawn(move || {
        let set = SetAttr { size: Some(3), ..SetAttr::default() };
        beside.block_on(beside.setattr(&Cred::root(), ino, set)).unwrap();
    });
    reached.recv_timeout(LONG).unwrap();
    (0..ENOUGH).for_each(|i| file.write_all_at(&page(1), i * PAGE as u64).unwrap());
    assert_eq!(posted(&rig), 0, "it is changed at this moment");
    goes_on.send(()).unwrap();
    theirs.join().unwrap();
    assert_eq!(rig.beside.stat("/f").unwrap().size, 3, "the end of it came last");
}

/// Whoever comes while others are told that it is lent, finds the lease.
#[test]
fn who_comes_while_it_is_lent() {
    let doors = Watched::new(volume(64 << 20));
    let rig = Rig::lending(doors, 0);
    let between = Between::beside(&rig);
    rig.beside.write("/f", page(0)).unwrap();
    let (a, b) = (rig.client(), Arc::new(rig.client()));
    let file = Arc::new(a.open("/f", RW).unwrap());
    let ino = file.ino();
    for round in 0..20u64 {
        let (tells, told) = mpsc::channel();
        between.at(Moment::TellsAll(ino), {
            let (b, beside) = (b.clone(), rig.beside.clone());
            move || {
                // On the manager's thread, which they need as well.
                let comes = std::thread::spawn(move || match round % 2 {
                    0 => beside.truncate("/f", 5000).unwrap(),
                    _ => b.truncate("/f", 5000).unwrap(),
                });
                std::thread::sleep(Duration::from_millis(2));
                tells.send(comes).unwrap();
            }
        });
        let mut end = 0;
        let comes = loop {
            if let Ok(comes) = told.try_recv() {
                break comes;
            }
            end += PAGE as u64;
            file.write_all_at(&page(7), end).unwrap();
            assert!(end < 10 << 20, "it is not asked for");
        };
        assert_eq!(comes.join().unwrap().size, 5000);
        for i in 0..10 {
            file.write_all_at(&page(i), end + (i + 1) * PAGE as u64).unwrap();
        }
        let seen = rig.beside.read("/f").unwrap();
        let from = end as usize + PAGE;
        assert!((0..10).all(|i| seen[from + i as usize * PAGE..][..PAGE] == page(i)), "{round}");
    }
}

/// Another door takes its time to drop what it keeps.
struct Slow(Arc<Gate>);

impl Watcher for Slow {
    fn changed(&self, change: &Change<'_>) -> Option<Told> {
        let gate = self.0.clone();
        matches!(change, Change::Data { end: u64::MAX, .. })
            .then(|| -> Told { Box::pin(async move { gate.passes().await }) })
    }
}

#[test]
fn nothing_is_posted_before_all_others_were_told() {
    let rig = Rig::shared(volume(64 << 20));
    rig.beside.write("/f", page(0)).unwrap();
    let gate = Arc::new(Gate::default());
    let door = rig.doors.door();
    door.watch(Arc::new(Slow(gate.clone())));
    let client = rig.client();
    // There is a lease, of which the client knows.
    let _lent = client.open("/new", NEW).unwrap();
    let file = client.open("/f", RW).unwrap();
    let write = |i: u64| file.write_all_at(&page(i), i * PAGE as u64).unwrap();
    let early = std::thread::scope(|s| {
        // It asks for the file, and has no answer yet. Another one goes on.
        s.spawn(|| (1..10).for_each(write));
        let begun = Instant::now();
        while !rig.doors.is_lent(file.ino()) && begun.elapsed() < LONG {
            std::thread::yield_now();
        }
        (20..100).for_each(write);
        let early = rig.count("post_write");
        gate.opens();
        early
    });
    assert_eq!(early, 0);
    (10..20).chain(100..300).for_each(write);
    let posted = posted(&rig);
    // Others may be writing at the moment at which it could be lent.
    assert!(posted > 50, "{posted}");
    assert!(rig.beside.read("/f").unwrap().chunks(PAGE).enumerate().all(|(i, part)| part == page(i as u64)));
}

/// A lease that is of no use is asked for ever more seldom.
#[test]
fn who_is_looked_at_often_asks_seldom() {
    let rig = Rig::shared(volume(128 << 20));
    rig.beside.write("/log", b"begun").unwrap();
    let (a, b) = (rig.client(), rig.client());
    let file = a.open("/log", RW).unwrap();
    let mut size = 5;
    for i in 0..4000 {
        file.write_all_at(&bytes(i, 100), size).unwrap();
        size += 100;
        if i % 5 == 0 {
            assert_eq!(b.stat("/log").unwrap().size, size);
        }
    }
    let posted = posted(&rig);
    assert!(posted > 0, "never");
    assert!(posted < 400, "{posted} were posted, and most of them were waited for all the same");
}

/// A thread of the client asks for a window of the file while another one has it lent, and posts a write to the same place.
#[test]
fn a_window_that_was_asked_for_before_it_was_lent_is_not_used() {
    let rig = Rig::shared(volume(256 << 20));
    let client = rig.client();
    for round in 0..300u64 {
        let name = format!("/f{round}");
        rig.beside.write(&name, page(0).repeat(4)).unwrap();
        let file = client.open(&name, RW).unwrap();
        let write = |version: u64, at: u64| file.write_all_at(&page(version), at * PAGE as u64).unwrap();
        let begin = Barrier::new(2);
        std::thread::scope(|s| {
            // The fourth overwrite of a page has a window asked for.
            s.spawn(|| {
                begin.wait();
                (0..5).for_each(|i| write(100 + i, 0));
            });
            begin.wait();
            (0..round % 6).for_each(|i| write(7, 4 + i));
            (0..4).for_each(|i| write(200 + i, 0));
        });
        write(300 + round, 0);
        assert!(
            rig.beside.read(&name).unwrap()[..PAGE] == page(300 + round),
            "{round}: an older write came later"
        );
    }
}

#[test]
fn it_outlives_its_client_and_its_manager() {
    let mut rig = Rig::shared(volume(128 << 20));
    for round in 0..18u64 {
        let name = format!("/f{round}");
        rig.beside.write(&name, b"begun").unwrap();
        let client = rig.client();
        let file = client.open(&name, RW).unwrap();
        let write = |from: u64, to: u64| {
            (from..to).for_each(|i| file.write_all_at(&page(i), i * PAGE as u64).unwrap());
        };
        let before = posted(&rig);
        write(0, 100);
        assert!(posted(&rig) - before > 50);
        match round % 3 {
            0 => {
                rig.serve();
                write(100, 200);
                assert!(posted(&rig) > 50, "the next manager lends it as well");
            }
            1 => {
                write(100, 200);
                // As it is when a process ends: nobody closes anything.
                std::mem::forget(file);
                drop(client);
            }
            _ => write(100, 200),
        }
        let seen = rig.beside.read(&name).unwrap();
        assert!(seen.len() == 200 * PAGE && (0..200).all(|i| seen[i * PAGE..][..PAGE] == page(i as u64)));
    }
}

#[test]
fn it_is_in_the_sync_of_anybody() {
    let (flash, volume) = volume_on_flash(64 << 20);
    let rig = Rig::shared(volume);
    let (a, b) = (rig.client(), rig.client());
    rig.beside.write("/f", b"begun").unwrap();
    rig.beside.write("/other", b"other").unwrap();
    let (file, other) = (a.open("/f", RW).unwrap(), b.open("/other", RW).unwrap());
    let mut random = Random(7);
    let mut want = b"begun".to_vec();
    for round in 0..24u64 {
        for i in 0..20 {
            let data = bytes(round * 20 + i, 1 + random.below(9000) as usize);
            file.write_all_at(&data, want.len() as u64).unwrap();
            want.extend(data);
        }
        match round % 4 {
            0 => other.fsync().unwrap(),
            1 => rig.beside.sync().unwrap(),
            2 => b.sync().unwrap(),
            _ => file.fsync().unwrap(),
        }
        assert!(without_power(&flash).read("/f").unwrap() == want, "round {round}");
    }
    assert!(posted(&rig) > 400);
}

/// Where there is no room left, writes are messages, and are refused.
#[test]
fn none_fails_on_a_full_volume() {
    let rig = Rig::shared(volume(40 << 20));
    rig.beside.write("/f", b"begun").unwrap();
    let client = rig.client();
    let file = client.open("/f", RW).unwrap();
    let mut size = 0;
    let mut write = |to: u64| {
        while size < to * PAGE as u64 {
            if file.write_all_at(&page(size / PAGE as u64), size).is_err() {
                return size;
            }
            size += PAGE as u64;
        }
        size
    };
    write(20);
    let fill = rig.beside.open("/fill", NEW).unwrap();
    let mut at = 0;
    for len in [1 << 20, PAGE] {
        while fill.write_all_at(&vec![1; len], at).is_ok() {
            at += len as u64;
        }
    }
    let before = posted(&rig);
    let size = write(4000) as usize;
    println!("{} bytes written, {} posted since it was full", size, posted(&rig) - before);
    assert!(size < 4000 * PAGE && posted(&rig) - before >= 50, "what room there was is there");
    let seen = rig.beside.read("/f").unwrap();
    assert!(seen.len() == size && seen.chunks(PAGE).enumerate().all(|(i, part)| part == page(i as u64)));
    rig.beside.sync().unwrap();
}

//! Record locks without messages.
//!
//! Verifies that locks of a file that nobody else locks cost a bounded number of messages; that everybody else, through another session or door, finds each lock
//! that is held and no other, against one table as the model; that two who race for a lock never both have it; that locks end with their session and do
//! not outlive the manager; and that a client that does not keep to the rules gets nothing that calls would not have given it.

use crate::attacker::{Attacker, OPEN, RELEASE, request};
use crate::rig::{NEW, RW, Rig, volume};
use format::shared::*;
use fs::client::BlockingFile;
use fs::{
    Blocking, Client, Cred, Error, FileSystem, Ino, LockKind, LockOwner, LockTable, RecordLock, block_on,
};
use share::Remote;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use LockKind::{Exclusive, Shared};

const LEND_LOCKS: u16 = 47;

/// One transaction of a database.
fn transaction<F: FileSystem>(file: &BlockingFile<F>) {
    file.lock_range(Shared, 100, 1, false).unwrap();
    file.lock_range(Shared, 102, 510, false).unwrap();
    file.unlock_range(100, 1).unwrap();
    file.lock_range(Exclusive, 101, 1, false).unwrap();
    file.lock_range(Exclusive, 102, 510, false).unwrap();
    file.unlock_range(0, 0).unwrap();
}

fn is_taken<F: FileSystem>(file: &BlockingFile<F>, kind: LockKind, at: u64) -> bool {
    let found = file.test_range(kind, at, 1).unwrap().is_some();
    assert_eq!(found, !can_be_had(file, kind, at));
    found
}

fn can_be_had<F: FileSystem>(file: &BlockingFile<F>, kind: LockKind, at: u64) -> bool {
    match file.lock_range(kind, at, 1, false) {
        Ok(()) => file.unlock_range(at, 1).unwrap(),
        Err(e) => {
            assert_eq!(e, Error::WouldBlock);
            return false;
        }
    }
    true
}

/// A session is over, and so is what it had locked.
fn comes_free<F: FileSystem>(file: &BlockingFile<F>, at: u64) {
    let begun = Instant::now();
    while !can_be_had(file, Exclusive, at) {
        assert!(begun.elapsed() < Duration::from_secs(5), "it is still locked");
    }
}

#[test]
fn locks_cost_no_messages() {
    let rig = Rig::new(volume(64 << 20));
    let file = rig.client().open("f", NEW).unwrap();
    let before = rig.count("setlk");
    (0..2000).for_each(|_| transaction(&file));
    let calls = rig.count("setlk") - before;
    println!("{calls} calls for 12000 locks");
    assert!(calls < 20, "{calls} calls");
    // Others begin to use it: no more is asked for than is of use.
    let other = rig.client().open("f", RW).unwrap();
    for _ in 0..500 {
        transaction(&file);
        transaction(&other);
    }
    let granted = rig
        .server
        .as_ref()
        .unwrap()
        .stats()
        .door
        .calls
        .iter()
        .map(|c| (c.name, c.calls()))
        .collect::<Vec<_>>();
    println!("{granted:?}");
    assert!(rig.count("lend_locks") < 20, "{granted:?}");
}

#[test]
fn locks_that_are_held_go_along() {
    let rig = Rig::new(volume(64 << 20));
    let file = rig.client().open("f", NEW).unwrap();
    let beside = rig.beside.open("f", RW).unwrap();
    // As the index of a log has it, which is locked as long as it is open.
    file.lock_range(Shared, 128, 1, false).unwrap();
    let before = rig.count("setlk");
    for _ in 0..2000 {
        file.lock_range(Exclusive, 120, 1, false).unwrap();
        file.unlock_range(120, 1).unwrap();
    }
    assert!(rig.count("setlk") - before < 20);
    assert!(
        is_taken(&beside, Exclusive, 128)
            && !is_taken(&beside, Shared, 128)
            && !is_taken(&beside, Exclusive, 120)
    );
    // Of somebody else none goes along.
    beside.lock_range(Shared, 128, 1, false).unwrap();
    let before = rig.count("setlk");
    for _ in 0..100 {
        file.lock_range(Exclusive, 120, 1, false).unwrap();
        file.unlock_range(120, 1).unwrap();
    }
    assert_eq!(rig.count("setlk") - before, 200);
}

#[test]
fn others_find_what_is_held() {
    let rig = Rig::new(volume(64 << 20));
    let remote = Remote::connect(rig.dir.path().join("socket")).unwrap();
    let client = || Client::new(Arc::new(remote.clone()), Cred::of_process()).blocking();
    let (one, two) = (client().open("f", NEW).unwrap(), client().open("f", RW).unwrap());
    let (other, beside) = (rig.client().open("f", RW).unwrap(), rig.beside.open("f", RW).unwrap());
    for round in 0..200 {
        let before = rig.count("setlk");
        (0..20).for_each(|_| transaction(&one));
        // Another owner of the same session.
        one.lock_range(Exclusive, 7, 2, false).unwrap();
        assert!(is_taken(&two, Shared, 8) && !is_taken(&two, Shared, 9));
        if round > 2 && round % 4 == 0 {
            println!("{} of 120", rig.count("setlk") - before);
        }
        match round % 4 {
            0 => assert!(is_taken(&other, Shared, 7)),
            1 => assert!(is_taken(&beside, Shared, 7)),
            2 => {
                assert!(rig.doors.locks().iter().any(|held| held.waiting == 0), "who looks after it sees it")
            }
            _ => {}
        }
        one.unlock_range(7, 2).unwrap();
        assert!(!is_taken(&two, Exclusive, 7) && !is_taken(&other, Exclusive, 7));
    }
    // Locks through a handle go with its owner's close, as everywhere.
    (0..200).for_each(|_| transaction(&one));
    one.lock_range(Exclusive, 7, 1, false).unwrap();
    two.lock_range(Exclusive, 9, 1, false).unwrap();
    drop(one);
    assert!(!is_taken(&beside, Exclusive, 7) && is_taken(&beside, Exclusive, 9));
    // A handle that only reads can have no exclusive lock, with a lease or without.
    let reads = client().open("f", fs::client::OpenOptions::new().read(true)).unwrap();
    (0..200).for_each(|_| transaction(&two));
    assert_eq!(reads.lock_range(Exclusive, 1, 1, false), Err(Error::BadHandle));
}

#[test]
fn who_waits_gets_it() {
    let rig = Rig::new(volume(64 << 20));
    let (file, other) = (rig.client().open("f", NEW).unwrap(), rig.client().open("f", RW).unwrap());
    (0..100).for_each(|_| transaction(&file));
    file.lock_range(Exclusive, 5, 1, false).unwrap();
    let got = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            other.lock_range(Exclusive, 5, 1, true).unwrap();
            got.store(true, Ordering::SeqCst);
            other.unlock_range(5, 1).unwrap();
        });
        std::thread::sleep(Duration::from_millis(50));
        assert!(!got.load(Ordering::SeqCst));
        file.unlock_range(5, 1).unwrap();
    });
    assert!(got.load(Ordering::SeqCst));
    // Waiting for another owner of one's own session ends the lease, and does not hang.
    file.lock_range(Exclusive, 5, 1, true).unwrap();
}

/// Random calls by several owners, sessions and doors have the results that one table gives.
#[test]
fn like_one_table() {
    let rig = Rig::new(volume(64 << 20));
    let remote = Remote::connect(rig.dir.path().join("socket")).unwrap();
    let client = || Client::new(Arc::new(remote.clone()), Cred::of_process()).blocking();
    drop(client().open("f", NEW).unwrap());
    let files = [client(), client(), rig.client()].map(|client| client.open("f", RW).unwrap());
    let beside = rig.beside.open("f", RW).unwrap();
    let (model, ino) = (LockTable::new(), Ino(1));
    let (mut seed, mut local) = (0x5eed_u64, 0);
    let mut random = |n: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % n
    };
    for _ in 0..400 {
        // For a while one of them alone, so that there are leases.
        let alone = random(4) as usize;
        let before = rig.count("setlk");
        let calls = random(120);
        for _ in 0..calls {
            let who = if random(40) == 0 { random(4) as usize } else { alone };
            let (start, len) = (random(60), 1 + random(6));
            let kind = if random(2) == 0 { Shared } else { Exclusive };
            let lock = RecordLock { start, end: start + len - 1, kind, pid: 0 };
            let owner = LockOwner(who as u64);
            let (mine, want) = match random(5) {
                0 | 1 => {
                    let mine = match files.get(who) {
                        Some(file) => file.unlock_range(start, len),
                        None => beside.unlock_range(start, len),
                    };
                    (mine, block_on(model.setlk(ino, owner, Err((start, start + len - 1)), false)))
                }
                2 => {
                    let mine = match files.get(who) {
                        Some(file) => file.test_range(kind, start, len),
                        None => beside.test_range(kind, start, len),
                    };
                    let want = model.getlk(ino, owner, lock);
                    assert_eq!(mine.unwrap().is_some(), want.is_some());
                    continue;
                }
                _ => {
                    let mine = match files.get(who) {
                        Some(file) => file.lock_range(kind, start, len, false),
                        None => beside.lock_range(kind, start, len, false),
                    };
                    (mine, block_on(model.setlk(ino, owner, Ok(lock), false)))
                }
            };
            assert_eq!(mine, want);
        }
        local += (calls > rig.count("setlk") - before) as u64;
    }
    assert!(local > 50, "in {local} of 400 rounds there were fewer messages than calls");
}

/// Two sessions, and a door, that try for the same lock: never two at a time.
#[test]
fn never_two_at_a_time() {
    let rig = Rig::new(volume(64 << 20));
    drop(rig.client().open("f", NEW).unwrap());
    let (inside, entered) = (AtomicU64::new(0), AtomicU64::new(0));
    fn run<F: FileSystem>(fs: &Blocking<F>, pause: Duration, inside: &AtomicU64, entered: &AtomicU64) {
        let file = fs.open("f", RW).unwrap();
        for round in 0..3000u32 {
            if file.lock_range(Exclusive, 5, 1, false).is_ok() {
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "somebody else has it");
                std::hint::spin_loop();
                inside.fetch_sub(1, Ordering::SeqCst);
                entered.fetch_add(1, Ordering::SeqCst);
                file.unlock_range(5, 1).unwrap();
            }
            if round % 300 == 299 {
                std::thread::sleep(pause);
            }
        }
    }
    std::thread::scope(|s| {
        for pause in [3, 7] {
            let client = rig.client();
            let (inside, entered) = (&inside, &entered);
            s.spawn(move || run(&client, Duration::from_millis(pause), inside, entered));
        }
        s.spawn(|| run(&rig.beside, Duration::from_millis(11), &inside, &entered));
    });
    assert!(entered.load(Ordering::SeqCst) > 1000);
}

#[test]
fn they_end_with_their_session() {
    let mut rig = Rig::new(volume(64 << 20));
    let remote = Remote::connect(rig.dir.path().join("socket")).unwrap();
    let file = Client::new(Arc::new(remote.clone()), Cred::of_process()).blocking().open("f", NEW).unwrap();
    let beside = rig.beside.open("f", RW).unwrap();
    (0..100).for_each(|_| transaction(&file));
    file.lock_range(Exclusive, 5, 1, false).unwrap();
    assert!(is_taken(&beside, Exclusive, 5));
    (0..100).for_each(|_| transaction(&file));
    file.lock_range(Exclusive, 5, 1, false).unwrap();
    // What a client that is killed leaves behind.
    rustix::net::shutdown(remote.descriptors()[0], rustix::net::Shutdown::Both).unwrap();
    comes_free(&beside, 5);
    // Somebody else may have had it before the next manager knew: as for locks that were taken by calls.
    let file = rig.client().open("f", RW).unwrap();
    (0..100).for_each(|_| transaction(&file));
    file.write_all_at(b"x", 0).unwrap();
    file.lock_range(Exclusive, 5, 1, false).unwrap();
    rig.serve();
    assert_eq!(file.lock_range(Exclusive, 6, 1, false).map_err(|e| e.errno()), Err(libc::EIO));
    assert!(!is_taken(&rig.beside.open("f", RW).unwrap(), Exclusive, 5));
}

#[test]
fn nothing_that_calls_would_not_give() {
    let rig = Rig::new(volume(64 << 20));
    let honest = rig.client().open("f", NEW).unwrap();
    let beside = rig.beside.open("f", RW).unwrap();
    let ino = rig.beside.stat("f").unwrap().ino.0;
    let attacker = Attacker::new(&rig.dir.path().join("socket"));
    let open = |flags: u32| attacker.call(&Request { flags: flags.into(), ..request(OPEN, ino) }).value.get();
    let lend = |handle: u64, place: u32| {
        attacker.call(&Request { mode: place.into(), ..request(LEND_LOCKS, handle) })
    };
    let (reads, both) = (open(1), open(3));
    assert_eq!(lend(reads, 0).value.get(), 0, "it could not take exclusive locks");
    assert_ne!(lend(both, LOCK_LEASES as u32).errno.get(), 0, "no such place");
    assert_ne!(lend(both + 1000, 0).errno.get(), 0, "no such handle");
    honest.lock_range(Shared, 5, 1, false).unwrap();
    assert_eq!(lend(both, 0).value.get(), 0, "another's lock is there");
    honest.unlock_range(5, 1).unwrap();
    let scribble = |byte: u8| {
        let at = LOCKS_AT + LOCK_TABLES_AT;
        attacker.bytes(at, &vec![byte; 2 * size_of::<LockTableImage>()]);
    };
    for byte in [0xff, 0, 1, 0x7f] {
        let number = lend(both, 0).value.get();
        assert_ne!(number, 0);
        scribble(byte);
        // Whatever it says is there no more after its session, and so far no more than a call could have taken.
        let _ = honest.lock_range(Exclusive, 5, 1, false);
        assert_eq!(attacker.long(LOCKS_AT).load(Ordering::SeqCst), 0, "the lease is over");
        // A number that it writes itself counts for nothing.
        attacker.long(LOCKS_AT).store(number, Ordering::SeqCst);
        scribble(1);
        let _ = honest.unlock_range(0, 0);
        honest.lock_range(Exclusive, 70, 1, false).unwrap();
        assert!(is_taken(&beside, Shared, 70));
        honest.unlock_range(0, 0).unwrap();
        let unlock = Request { len: u64::MAX.into(), mode: 2.into(), ..request(36, both) };
        assert_eq!(attacker.call(&unlock).errno.get(), 0);
    }
    // One place for two files: the first is over.
    let other = rig.client().open("g", NEW).unwrap();
    let g = rig.beside.stat("g").unwrap().ino.0;
    let second = attacker.call(&Request { flags: 3.into(), ..request(OPEN, g) }).value.get();
    assert_ne!(lend(both, 1).value.get(), 0);
    assert_ne!(lend(second, 1).value.get(), 0);
    assert!(!is_taken(&honest, Exclusive, 5) && !is_taken(&other, Exclusive, 5));
    assert_ne!(lend(both, 1).value.get(), 0);
    drop(attacker);
    comes_free(&honest, 5);
}

/// Each range that is locked takes memory: nobody locks more than there is room for, and others lock all the same.
#[test]
fn more_locks_than_there_is_room_for() {
    const SETLK: u16 = 36;
    let rig = Rig::new(volume(64 << 20));
    rig.beside.write("f", b"").unwrap();
    rig.beside.write("g", b"").unwrap();
    let attacker = Attacker::new(&rig.dir.path().join("socket"));
    let open = |name: &str| {
        let ino = rig.beside.stat(name).unwrap().ino.0;
        let reply = attacker.call(&Request { flags: 3.into(), ..request(OPEN, ino) });
        assert_eq!(reply.errno.get(), 0);
        reply.value.get()
    };
    let (f, g) = (open("f"), open("g"));
    let set = |handle, (start, end): (u64, u64), kind: u32, owner: u64| {
        let r = request(SETLK, handle);
        let r =
            Request { offset: start.into(), len: end.into(), mode: kind.into(), extra: owner.into(), ..r };
        attacker.call(&r).errno.get()
    };
    assert_eq!(set(g, (0, 1 << 40), 0, 1), 0);
    let one = |i: u64| (2 * i, 2 * i);
    let held = (0..100_000).take_while(|&i| set(f, one(i), (i % 2) as u32, i % 3) == 0).count() as u64;
    assert!((60_000..70_000).contains(&held), "{held} locks");
    // On other files as well, and in whichever way more of them are made.
    assert_eq!(set(g, one(1 << 50), 1, 7), libc::ENOLCK);
    assert!((1..5).any(|i| set(g, one(i), 2, 1) == libc::ENOLCK), "parts of a range");
    let file = rig.client().open("g", RW).unwrap();
    (0..100).for_each(|i| file.lock_range(LockKind::Exclusive, (1 << 60) + 2 * i, 1, false).unwrap());
    // What is given up can be locked again.
    (0..100).for_each(|i| assert_eq!(set(f, one(i), 2, i % 3), 0));
    (0..90).for_each(|i| assert_eq!(set(f, one(i), 1, 3), 0));
    assert_eq!(attacker.call(&request(RELEASE, f)).errno.get(), 0);
    let f = open("f");
    (0..1000).for_each(|i| assert_eq!(set(f, one(i), 1, 3), 0));
}

/// The manager drops the record locks of a file with the last handle that it knows. Files are opened without its knowing.
#[test]
fn locks_stay_with_a_file_that_was_opened_without_a_message() {
    use fs::OpenFlags as Flags;
    let rig = Rig::new(volume(64 << 20));
    let remote = Remote::connect(rig.dir.path().join("socket")).unwrap();
    let other = rig.client().open("f", NEW).unwrap();
    let me = Cred::of_process();
    let lock = |at: u64| RecordLock { start: at, end: at, kind: Exclusive, pid: 1 };
    remote.block_on(async {
        let attr = remote.walk(&me, Ino::ROOT, b"f").await.unwrap();
        let open = || remote.open_exact(&me, (attr.ino, attr.generation), Flags::READ | Flags::WRITE);
        let first = open().await.unwrap();
        let opens = rig.count("open");
        let second = open().await.unwrap();
        assert_eq!(rig.count("open"), opens, "it is open without a message");
        // Who counts calls looks at the locks, too, which ends a lease.
        let before = rig.count("setlk");
        for n in 0..100 {
            remote.setlk(first, LockOwner(1), Ok(lock(n)), false).await.unwrap();
            remote.setlk(first, LockOwner(1), Err((n, n)), false).await.unwrap();
        }
        remote.setlk(second, LockOwner(2), Ok(lock(7)), false).await.unwrap();
        remote.release(first).await.unwrap();
        assert!(is_taken(&other, Exclusive, 7) && !is_taken(&other, Exclusive, 8));
        assert!(rig.count("setlk") - before < 20, "they were locked under a lease");
        remote.release(second).await.unwrap();
    });
    assert!(!is_taken(&other, Exclusive, 7));
}

/// As fcntl(F_SETFL) opens a file anew: the locks are the program's still.
#[test]
fn locks_stay_with_a_file_that_is_opened_anew() {
    use fs::OpenFlags as Flags;
    let rig = Rig::new(volume(64 << 20));
    let remote = Remote::connect(rig.dir.path().join("socket")).unwrap();
    let other = rig.client().open("f", NEW).unwrap();
    let (me, both) = (Cred::of_process(), Flags::READ | Flags::WRITE);
    let lock = RecordLock { start: 7, end: 7, kind: Exclusive, pid: 1 };
    remote.block_on(async {
        let attr = remote.walk(&me, Ino::ROOT, b"f").await.unwrap();
        let mut now = remote.open(&me, attr.ino, both).await.unwrap();
        remote.setlk(now, LockOwner(1), Ok(lock), false).await.unwrap();
        for more in [Flags::APPEND, Flags::DIRECT, Flags::empty()] {
            let opens = rig.count("open");
            let anew = remote.open_exact(&me, (attr.ino, attr.generation), both | more).await.unwrap();
            assert_eq!(rig.count("open"), opens, "it is open without a message");
            remote.release(now).await.unwrap();
            assert!(is_taken(&other, Exclusive, 7) && !is_taken(&other, Exclusive, 8));
            now = anew;
        }
        remote.release(now).await.unwrap();
    });
    assert!(!is_taken(&other, Exclusive, 7));
}

//! Calls with more data than one slot has room for, and calls that open their file first.

use crate::rig::{NEW, PAGE, RW, Rig, volume, volume_on_flash};
use format::shared::{CALL_DATA_MAX, DATA_MAX, SLOTS};
use fs::{Blocking, Cred, Error, FileSystem, OpenFlags};
use media::MediaError;
use media::flash::Fault;
use share::Remote;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

fn rig() -> Rig<block::Volume> {
    Rig::new(volume(256 << 20))
}

/// Bytes that tell where they belong.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64 / 8).flat_map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ seed).to_le_bytes()).collect()
}

#[test]
fn a_long_write_and_a_long_read_are_one_message_each() {
    let rig = rig();
    let (one, other) = (rig.client(), rig.client());
    let data = pattern(1, CALL_DATA_MAX);
    // Through the handle with which it is made, it would be posted in parts.
    drop(one.create("/long").unwrap());
    let file = one.open("/long", RW).unwrap();
    let before = rig.count("write");
    file.write_all_at(&data, 0).unwrap();
    assert_eq!(rig.count("write") - before, 1);
    let file = other.open("/long", RW).unwrap();
    let before = rig.count("read");
    let mut back = vec![0; CALL_DATA_MAX];
    assert_eq!(file.read_at(&mut back, 0).unwrap(), CALL_DATA_MAX);
    assert!(back == data);
    assert_eq!(rig.count("read") - before, 1);
    // What is longer takes several, and the end of the file is seen.
    file.write_all_at(&data, CALL_DATA_MAX as u64).unwrap();
    file.write_all_at(&data[..1000], 2 * CALL_DATA_MAX as u64).unwrap();
    let mut all = vec![0; 4 * CALL_DATA_MAX];
    assert_eq!(file.read_at(&mut all, 0).unwrap(), 2 * CALL_DATA_MAX + 1000);
    assert!(all[..CALL_DATA_MAX] == data && all[CALL_DATA_MAX..2 * CALL_DATA_MAX] == data);
    assert!(all[2 * CALL_DATA_MAX..][..1000] == data[..1000]);
}

#[test]
fn a_file_of_several_pieces_is_read_with_one_message_and_then_with_none() {
    let rig = rig();
    let data = pattern(2, 200 << 10);
    rig.beside.write("/f", &data).unwrap();
    // Within the same tick of the clock each read would move the time of access.
    std::thread::sleep(Duration::from_millis(20));
    let one = rig.client();
    let file = one.open("/f", RW).unwrap();
    let mut back = vec![0; 1 << 20];
    for (offset, messages) in [(0, 1), (0, 0), (5000, 0), (data.len() - 10, 0)] {
        let before = rig.count("read");
        let n = file.read_at(&mut back, offset as u64).unwrap();
        assert!(back[..n] == data[offset..], "at {offset}");
        assert_eq!(rig.count("read") - before, messages, "at {offset}");
    }
    // A change through another door is seen, wherever it is.
    rig.beside.open("/f", RW).unwrap().write_all_at(b"new", 150 << 10).unwrap();
    let n = file.read_at(&mut back, 0).unwrap();
    assert_eq!((n, &back[150 << 10..][..3]), (data.len(), &b"new"[..]));
}

/// A client that reads page by page is read ahead for. One that cannot be read is missing, and no other.
#[test]
fn pages_beside_a_bad_sector_are_read() {
    const BAD: usize = 9;
    let (flash, volume) = volume_on_flash(64 << 20);
    let rig = Rig::new(volume.clone());
    let data = pattern(3, 16 * PAGE);
    rig.beside.write("/f", &data).unwrap();
    // What says where its pages are stays in memory while it is open.
    let file = rig.beside.open("/f", RW).unwrap();
    fs::block_on(volume.drop_caches()).unwrap();
    let every = Some(media::Op::Read);
    flash.inject(Fault::nth(every, 1));
    let mut page = [0; PAGE];
    let Err(Error::Media(MediaError::Io { offset, .. })) = file.read_at(&mut page, (BAD * PAGE) as u64)
    else {
        panic!("no error")
    };
    flash.inject(Fault::bad_range(every, offset..offset + 512));
    let (one, mut failed) = (rig.client(), Vec::new());
    let seen = one.open("/f", RW).unwrap();
    for (number, right) in data.chunks(PAGE).enumerate() {
        match seen.read_at(&mut page, (number * PAGE) as u64) {
            Ok(n) => assert!(page[..n] == *right, "page {number}"),
            Err(_) => failed.push(number),
        }
    }
    assert_eq!(failed, [BAD]);
}

/// What is asked for in several messages, of which a later one fails: that the file ended there would be wrong.
#[test]
fn a_long_read_that_fails_in_its_middle_says_so() {
    const BAD: usize = CALL_DATA_MAX + CALL_DATA_MAX / 2;
    let (flash, volume) = volume_on_flash(64 << 20);
    let rig = Rig::new(volume.clone());
    let data = pattern(4, 3 * CALL_DATA_MAX);
    rig.beside.write("/f", &data).unwrap();
    let file = rig.beside.open("/f", RW).unwrap();
    fs::block_on(volume.drop_caches()).unwrap();
    let every = Some(media::Op::Read);
    flash.inject(Fault::nth(every, 1));
    let Err(Error::Media(MediaError::Io { offset, .. })) = file.read_at(&mut [0; PAGE], BAD as u64) else {
        panic!("no error")
    };
    flash.inject(Fault::bad_range(every, offset..offset + 512));
    let client = rig.client();
    let seen = client.open("/f", RW).unwrap();
    let mut back = vec![0; 4 * CALL_DATA_MAX];
    let before = rig.count("read");
    let failed = seen.read_at(&mut back, 0).map_err(|e| e.errno());
    assert_eq!(failed, Err(libc::EIO));
    assert!(rig.count("read") - before > 1, "the first message brings what is in front of it");
    assert_eq!(seen.read_at(&mut back[..CALL_DATA_MAX], 0), Ok(CALL_DATA_MAX));
    assert!(back[..CALL_DATA_MAX] == data[..CALL_DATA_MAX]);
    flash.clear_faults();
    assert_eq!(seen.read_at(&mut back, 0), Ok(data.len()));
    assert!(back[..data.len()] == data);
}

/// More data than all slots have room for, at the same time: then calls are shorter, and nothing is mixed up.
#[test]
fn many_threads_with_long_calls() {
    let rig = rig();
    let one = rig.client();
    std::thread::scope(|scope| {
        for thread in 0..24u64 {
            let one = &one;
            scope.spawn(move || {
                let file = one.open(format!("/{thread}"), NEW).unwrap();
                let mut back = vec![0; CALL_DATA_MAX];
                for round in 0..6 {
                    let len = CALL_DATA_MAX - round as usize * 40_000;
                    let data = pattern(thread << 32 | round, len / 8 * 8);
                    file.write_all_at(&data, round).unwrap();
                    let n = file.read_at(&mut back[..data.len()], round).unwrap();
                    assert!(back[..n] == data, "thread {thread}, round {round}");
                }
            });
        }
    });
}

/// A call that is given up keeps its slots until the manager is through with them.
#[test]
fn long_calls_that_are_given_up() {
    let rig = rig();
    let remote = Arc::new(Remote::connect(rig.dir.path().join("socket")).unwrap());
    let one = fs::Client::new(remote.clone(), Cred::of_process()).blocking();
    let file = one.open("/f", NEW).unwrap();
    let data = pattern(3, CALL_DATA_MAX);
    file.write_all_at(&data, 0).unwrap();
    let mut back = vec![0; CALL_DATA_MAX];
    for round in 0..10 * SLOTS {
        {
            let mut read = pin!(remote.read(file.handle(), 0, &mut back));
            let _ = read.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
        if round % 7 == 0 {
            assert_eq!(file.read_at(&mut back, 0).unwrap(), data.len());
            assert!(back == data, "round {round}");
        }
    }
}

/// A client that has opened something, as only such clients open without a message.
fn client_that_opened(rig: &Rig<block::Volume>) -> Blocking<Remote> {
    rig.beside.write("/other", b"").unwrap();
    let client = rig.client();
    client.open("/other", RW).unwrap().close().unwrap();
    client
}

#[test]
fn who_opens_and_writes_sends_one_message() {
    let rig = rig();
    let one = client_that_opened(&rig);
    one.write("/f", [1; PAGE]).unwrap();
    one.stat("/f").unwrap();
    let before = (rig.count("open"), rig.count("write"), rig.count("getattr"));
    let file = one.open("/f", RW).unwrap();
    file.write_all_at(&[2; 2 * PAGE], 0).unwrap();
    // And what that made of the file is known here.
    assert_eq!(one.stat("/f").unwrap().size, 2 * PAGE as u64);
    assert_eq!(
        (rig.count("open"), rig.count("write"), rig.count("getattr")),
        (before.0, before.1 + 1, before.2)
    );
    // From now on the manager has it open, also when its name goes.
    rig.beside.unlink("/f").unwrap();
    file.write_all_at(&[3; PAGE], 0).unwrap();
    file.fsync().unwrap();
    let mut back = [0; 2 * PAGE];
    file.read_at(&mut back, 0).unwrap();
    assert!(back[..PAGE] == [3; PAGE] && back[PAGE..] == [2; PAGE]);
    drop(file);
    assert!(one.stat("/f").is_err());
}

/// The file goes while it is open without the manager's knowledge: the call that opens it there still finds it.
#[test]
fn a_call_opens_a_file_that_was_removed() {
    let rig = rig();
    let one = client_that_opened(&rig);
    for sync in [false, true] {
        one.write("/f", [1; PAGE]).unwrap();
        let attr = one.stat("/f").unwrap();
        let file = one.open("/f", RW).unwrap();
        rig.beside.unlink("/f").unwrap();
        if sync {
            file.fsync().unwrap();
        }
        file.write_all_at(&[4; DATA_MAX + PAGE], 0).unwrap();
        let mut back = vec![0; DATA_MAX + PAGE];
        file.read_at(&mut back, 0).unwrap();
        assert!(back == [4; DATA_MAX + PAGE]);
        drop(file);
        let begun = Instant::now();
        let (root, inode) = (Cred::root(), (attr.ino, attr.generation));
        while let Ok(handle) = rig.doors.block_on(rig.doors.open_exact(&root, inode, OpenFlags::READ)) {
            rig.doors.block_on(rig.doors.release(handle)).unwrap();
            assert!(begun.elapsed() < Duration::from_secs(5), "it is open somewhere");
        }
    }
}

//! Direct transfers: they go past the page cache and agree with it, and whatever else happens meanwhile, memory and blocks are what they were until
//! the device is done with them. What power failures leave of them: tests/explore.rs.

use block::{MkfsOptions, OpenOptions, Volume};
use fs::{BufRef, Cred, Error, FileSystem, Handle, Ino, OpenFlags, block_on};
use media::{Arena, ArenaId, RamMedia};
use sim::{Buffer, Gate};
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

const BLOCK: usize = 4096;
const MIB: usize = 1 << 20;

struct Rig {
    gate: Arc<Gate>,
    volume: Volume,
    memory: ArenaId,
    buffer: Arc<Buffer>,
}

impl Drop for Rig {
    /// So that a test that fails ends.
    fn drop(&mut self) {
        self.gate.open();
    }
}

const BOTH: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

impl Rig {
    fn new() -> Rig {
        let gate = Arc::new(Gate::new(64 << 20).unwrap());
        block::mkfs(gate.clone(), &MkfsOptions::default()).unwrap();
        let options = OpenOptions { cache_bytes: 8 << 20, ..OpenOptions::default() };
        let volume = Volume::open(gate.clone(), options).unwrap();
        let buffer = Arc::new(Buffer(Arena::new(MIB).unwrap()));
        let memory = volume.lend_memory(buffer.clone()).unwrap();
        Rig { gate, volume, memory, buffer }
    }

    /// A file of `len` bytes that is durable and not in the cache, but for what says where it is; and a direct handle of it.
    fn file(&self, name: &[u8], len: usize) -> (Ino, Handle) {
        let (attr, handle) =
            block_on(self.volume.create(&Cred::root(), Ino::ROOT, name, 0o644, BOTH)).unwrap();
        block_on(self.volume.write(handle, 0, &pattern(len))).unwrap();
        block_on(self.volume.release(handle)).unwrap();
        block_on(self.volume.drop_caches()).unwrap();
        let direct = self.open(attr.ino, BOTH | OpenFlags::DIRECT);
        assert!(self.read(direct, 0, BLOCK).is_some());
        (attr.ino, direct)
    }

    fn open(&self, ino: Ino, flags: OpenFlags) -> Handle {
        block_on(self.volume.open(&Cred::root(), ino, flags)).unwrap()
    }

    fn place(&self, len: usize) -> BufRef {
        BufRef { arena: self.memory, offset: 0, len: len as u32 }
    }

    /// What a direct read gives, if it can be done.
    fn read(&self, handle: Handle, offset: usize, len: usize) -> Option<Vec<u8>> {
        let n = block_on(self.volume.read_direct(handle, offset as u64, self.place(len))).unwrap()?;
        Some(self.bytes(n))
    }

    fn bytes(&self, n: usize) -> Vec<u8> {
        let mut bytes = vec![0; n];
        self.buffer.0.copy_out(0, &mut bytes);
        bytes
    }

    fn write(&self, handle: Handle, offset: usize, bytes: &[u8]) -> Option<usize> {
        self.buffer.0.copy_in(0, bytes);
        block_on(self.volume.write_direct(handle, offset as u64, self.place(bytes.len()))).unwrap()
    }

    fn read_cached(&self, handle: Handle, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let n = block_on(self.volume.read(handle, offset as u64, &mut bytes)).unwrap();
        bytes.truncate(n);
        bytes
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

#[test]
fn whole_blocks_go_past_the_cache() {
    let rig = Rig::new();
    let (ino, direct) = rig.file(b"f", MIB);
    let through_cache = rig.open(ino, BOTH);
    let mut expected = pattern(MIB);
    assert_eq!(rig.read(direct, 8192, MIB / 2).as_deref(), Some(&expected[8192..][..MIB / 2]));
    assert_eq!(rig.volume.counters().direct_read_blocks as usize, 1 + MIB / 2 / BLOCK);
    assert_eq!(rig.volume.cache_usage().used, 0, "nothing of it was kept");
    assert_eq!(
        rig.read(direct, MIB - BLOCK, MIB).unwrap(),
        expected[MIB - BLOCK..],
        "up to the end of the file"
    );

    // The time of the last commit before is over: nothing has to verify what the blocks hold.
    let new = vec![7; 16 * BLOCK];
    let before = block_on(rig.volume.getattr(ino, None)).unwrap();
    // Times of files are those of a clock that ticks some hundred times in a second.
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(rig.read_cached(through_cache, 4 * BLOCK, 64 * BLOCK), expected[4 * BLOCK..][..64 * BLOCK]);
    assert_eq!(rig.write(direct, 8 * BLOCK, &new), Some(new.len()));
    expected[8 * BLOCK..][..new.len()].copy_from_slice(&new);
    assert_eq!(rig.volume.counters().direct_written_blocks, 16);
    assert_eq!(rig.read_cached(through_cache, 0, MIB), expected, "the cache does not keep what was there");
    let after = block_on(rig.volume.getattr(ino, None)).unwrap();
    assert!(after.mtime > before.mtime && after.size == before.size);

    // All the same after a stop.
    block_on(rig.volume.fsync(direct, false)).unwrap();
    rig.volume.close_blocking().unwrap();
    let gate = rig.gate.clone();
    drop(rig);
    let volume = Volume::open(gate, OpenOptions::default()).unwrap();
    let handle = block_on(volume.open(&Cred::root(), ino, BOTH)).unwrap();
    let mut bytes = vec![0; MIB];
    assert_eq!(block_on(volume.read(handle, 0, &mut bytes)).unwrap(), MIB);
    assert!(bytes == expected);
}

#[test]
fn what_cannot_go_directly_says_so_and_changes_nothing() {
    let rig = Rig::new();
    let (ino, direct) = rig.file(b"f", 64 * BLOCK + 512);
    let cached = rig.open(ino, BOTH);
    assert!(rig.read(cached, 0, BLOCK).is_none(), "not opened for it");
    assert!(rig.read(direct, 512, BLOCK).is_none() && rig.read(direct, 0, 512).is_none(), "parts of blocks");
    assert!(rig.read(direct, 64 * BLOCK, BLOCK).is_none(), "the file ends in the middle of it");
    assert!(rig.read(direct, 80 * BLOCK, BLOCK).is_none(), "behind the end");
    assert!(rig.write(direct, 64 * BLOCK, &[1; BLOCK]).is_none(), "the file would grow");
    let strange = BufRef { arena: ArenaId(99), offset: 0, len: BLOCK as u32 };
    assert_eq!(block_on(rig.volume.read_direct(direct, 0, strange)), Ok(None), "memory that was not lent");
    let appends = rig.open(ino, BOTH | OpenFlags::DIRECT | OpenFlags::APPEND);
    assert!(rig.write(appends, 0, &[1; BLOCK]).is_none());

    block_on(rig.volume.write(cached, 3 * BLOCK as u64, &[5; 100])).unwrap();
    assert!(rig.read(direct, 0, 8 * BLOCK).is_none(), "a page of it is dirty");
    assert!(rig.write(direct, 0, &[6; 8 * BLOCK]).is_none(), "likewise");
    assert!(rig.read(direct, 8 * BLOCK, 8 * BLOCK).is_some());
    block_on(rig.volume.fallocate(cached, fs::Fallocate::PunchHole, 9 * BLOCK as u64, BLOCK as u64)).unwrap();
    assert!(rig.read(direct, 8 * BLOCK, 8 * BLOCK).is_none(), "a hole");
    let mut expected = pattern(64 * BLOCK + 512);
    expected[3 * BLOCK..][..100].fill(5);
    expected[9 * BLOCK..10 * BLOCK].fill(0);
    assert!(rig.read_cached(cached, 0, MIB) == expected);
}

#[test]
fn strict_volumes_overwrite_nothing_directly() {
    let ram = Arc::new(RamMedia::new(64 << 20).unwrap());
    block::mkfs(ram.clone(), &MkfsOptions { strict: true, ..MkfsOptions::default() }).unwrap();
    let volume = Volume::open(ram, OpenOptions::default()).unwrap();
    let memory = volume.lend_memory(Arc::new(Buffer(Arena::new(MIB).unwrap()))).unwrap();
    let flags = BOTH | OpenFlags::DIRECT;
    let (_, handle) = block_on(volume.create(&Cred::root(), Ino::ROOT, b"f", 0o644, flags)).unwrap();
    block_on(volume.write(handle, 0, &pattern(MIB))).unwrap();
    block_on(volume.drop_caches()).unwrap();
    let place = BufRef { arena: memory, offset: 0, len: BLOCK as u32 };
    assert_eq!(block_on(volume.write_direct(handle, 0, place)), Ok(None));
    assert_eq!(block_on(volume.read_direct(handle, 0, place)), Ok(Some(BLOCK)));
}

#[test]
fn blocks_that_are_read_are_given_to_nobody() {
    let rig = Rig::new();
    let (ino, direct) = rig.file(b"f", MIB);
    rig.gate.close();
    let place = rig.place(MIB);
    let mut read = pin!(rig.volume.read_direct(direct, 0, place));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(read.as_mut().poll(&mut cx).is_pending());

    // Its blocks are free, and everybody else takes all there are.
    let cached = rig.open(ino, BOTH);
    block_on(rig.volume.unlink(&Cred::root(), Ino::ROOT, b"f")).unwrap();
    let set = fs::SetAttr { size: Some(0), handle: Some(cached), ..fs::SetAttr::default() };
    block_on(rig.volume.setattr(&Cred::root(), ino, set)).unwrap();
    let (_, other) = block_on(rig.volume.create(&Cred::root(), Ino::ROOT, b"g", 0o644, BOTH)).unwrap();
    let (volume, written) = (rig.volume.clone(), Arc::new(AtomicU64::new(0)));
    let writer = std::thread::spawn({
        let written = written.clone();
        move || loop {
            let at = written.load(Relaxed);
            match block_on(volume.write(other, at, &[0xee; 64 * BLOCK])) {
                Ok(n) => written.store(at + n as u64, Relaxed),
                Err(e) => return e,
            }
            block_on(volume.sync()).unwrap();
        }
    });
    // Until it gets no further: it waits for those that are read, and is not told that there are none.
    let (mut before, mut still) = (0, 0);
    while still < 10 {
        std::thread::sleep(Duration::from_millis(50));
        let now = written.load(Relaxed);
        still = if now == before && now > 40 << 20 { still + 1 } else { 0 };
        before = now;
        assert!(!writer.is_finished(), "no space after {now} bytes, while some is about to be free");
    }
    rig.gate.open();
    assert_eq!(block_on(read), Ok(Some(MIB)));
    assert!(rig.bytes(MIB) == pattern(MIB), "the data of another file");
    // And then they are free, and used.
    assert_eq!(writer.join().unwrap(), Error::NoSpace);
    assert!(written.load(Relaxed) >= before + MIB as u64 / 2, "{before} bytes and then {written:?}");
}

#[test]
fn what_is_being_written_is_not_read_before() {
    let rig = Arc::new(Rig::new());
    let (ino, direct) = rig.file(b"f", MIB);
    rig.gate.close();
    rig.buffer.0.copy_in(0, &[3; BLOCK]);
    let mut write = Box::pin(rig.volume.write_direct(direct, 5 * BLOCK as u64, rig.place(BLOCK)));
    assert!(write.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let done = Arc::new((Mutex::new(None), Condvar::new()));
    let reader = {
        let (rig, done) = (rig.clone(), done.clone());
        std::thread::spawn(move || {
            let handle = rig.open(ino, BOTH);
            let bytes = rig.read_cached(handle, 0, 8 * BLOCK);
            *done.0.lock().unwrap() = Some(bytes);
            done.1.notify_all();
        })
    };
    let early = done.1.wait_timeout_while(done.0.lock().unwrap(), Duration::from_millis(50), |d| d.is_none());
    assert!(early.unwrap().0.is_none(), "a page was read that will be another one");
    // A part of the page is written through the cache: the rest of it is what is written directly.
    let handle = rig.open(ino, BOTH);
    let mut patch = Box::pin(rig.volume.write(handle, 5 * BLOCK as u64, &[4; 10]));
    assert!(patch.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    // Once more, directly, before the first time is over.
    assert_eq!(block_on(rig.volume.write_direct(direct, 5 * BLOCK as u64, rig.place(BLOCK))), Ok(None));
    rig.gate.open();
    assert_eq!(block_on(write), Ok(Some(BLOCK)));
    assert_eq!(block_on(patch), Ok(10));
    reader.join().unwrap();
    let seen = done.0.lock().unwrap().take().unwrap();
    let mut expected = pattern(8 * BLOCK);
    expected[5 * BLOCK..6 * BLOCK].fill(3);
    assert!(
        seen[6 * BLOCK..] == expected[6 * BLOCK..] && seen[5 * BLOCK + 10..] == expected[5 * BLOCK + 10..]
    );
    expected[5 * BLOCK..][..10].fill(4);
    assert!(rig.read_cached(handle, 0, 8 * BLOCK) == expected);
}

#[test]
fn memory_stays_until_nothing_uses_it() {
    let rig = Rig::new();
    let (gate, volume, memory) = (rig.gate.clone(), rig.volume.clone(), rig.memory);
    let (_, direct) = rig.file(b"f", MIB);
    gate.close();
    let mut read = Box::pin(volume.read_direct(direct, 0, rig.place(BLOCK)));
    assert!(read.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(read);
    volume.return_memory(memory);
    assert_eq!(gate.given_back(), 0, "the device writes there still");
    assert_eq!(
        block_on(volume.read_direct(direct, 0, rig.place(BLOCK))),
        Ok(None),
        "nobody may begin any more"
    );
    let weak = Arc::downgrade(&rig.buffer);
    assert_eq!(gate.held(), 1);
    drop(rig);
    for _ in 0..1000 {
        if weak.upgrade().is_none() {
            assert_eq!(gate.given_back(), 1);
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("memory is kept for ever");
}

#[test]
fn a_failed_read_is_the_readers_and_a_failed_write_the_volumes() {
    let rig = Rig::new();
    let (ino, direct) = rig.file(b"f", MIB);
    rig.gate.fail();
    let read = block_on(rig.volume.read_direct(direct, 0, rig.place(BLOCK)));
    assert!(matches!(read, Err(Error::Media(_))), "{read:?}");
    let cached = rig.open(ino, BOTH);
    assert!(rig.read_cached(cached, 0, BLOCK) == pattern(BLOCK));
    block_on(rig.volume.write(cached, 0, &[1; 10])).unwrap();
    let write = block_on(rig.volume.write_direct(direct, 8 * BLOCK as u64, rig.place(BLOCK)));
    assert!(matches!(write, Err(Error::Media(_))), "{write:?}");
    let later = block_on(rig.volume.write(cached, 0, &[1; 10]));
    assert!(matches!(later, Err(Error::Latched(_))), "{later:?}");
}

#[test]
fn a_stop_waits_for_reads_and_none_begins_after_it() {
    let rig = Rig::new();
    let (ino, direct) = rig.file(b"f", MIB);
    let cached = rig.open(ino, BOTH);
    rig.gate.close();
    let mut read = pin!(rig.volume.read_direct(direct, 0, rig.place(BLOCK)));
    assert!(read.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let volume = rig.volume.clone();
    let stop = std::thread::spawn(move || volume.close_blocking());
    std::thread::sleep(Duration::from_millis(100));
    assert!(!stop.is_finished(), "the device writes to memory still");
    rig.gate.open();
    assert_eq!(stop.join().unwrap(), Ok(()));
    assert_eq!(block_on(read), Ok(Some(BLOCK)));
    assert_eq!(block_on(rig.volume.read_direct(direct, 0, rig.place(BLOCK))), Err(Error::Closed));
    assert_eq!(
        block_on(rig.volume.read(cached, 0, &mut [0; 100])),
        Err(Error::Closed),
        "nobody would take it in"
    );
}

#[test]
fn many_at_a_time_agree_with_the_cache() {
    let rig = Rig::new();
    let (ino, direct) = rig.file(b"f", MIB);
    let cached = rig.open(ino, BOTH);
    let mut expected = pattern(MIB);
    let mut random = 1u64;
    let mut below = |n: u64| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) % n
    };
    for i in 0..3000u32 {
        let block = below(250) as usize;
        let n = (1 + below(6) as usize) * BLOCK;
        let (at, new) = (block * BLOCK, vec![i as u8; n]);
        match below(8) {
            0..3 => {
                if rig.write(direct, at, &new).is_none() {
                    block_on(rig.volume.write(direct, at as u64, &new)).unwrap();
                }
                expected[at..at + n].copy_from_slice(&new);
            }
            3..6 => {
                let got = rig.read(direct, at, n).unwrap_or_else(|| rig.read_cached(direct, at, n));
                assert!(got == expected[at..at + n], "round {i}");
            }
            6 => {
                let (at, n) = (at + below(4000) as usize, n - 4000);
                block_on(rig.volume.write(cached, at as u64, &new[..n])).unwrap();
                expected[at..at + n].copy_from_slice(&new[..n]);
            }
            _ if below(3) == 0 => block_on(rig.volume.sync()).unwrap(),
            _ => assert!(rig.read_cached(cached, at, n) == expected[at..at + n], "round {i}"),
        }
    }
    let counters = rig.volume.counters();
    assert!(counters.direct_read_blocks > 500 && counters.direct_written_blocks > 500, "{counters:?}");
    assert!(rig.read_cached(cached, 0, MIB) == expected);
}

//! The library's buffers: what goes between them and the device, what has to be copied, and which of them are given out again.

use block::{MkfsOptions, OpenOptions, Volume};
use fs::client::{Buffer, Buffers};
use fs::{Client, Cred, Error, File, block_on, join_polled};
use sim::Gate;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};

const BLOCK: usize = 4096;
const MIB: usize = 1 << 20;

struct Rig {
    gate: Arc<Gate>,
    volume: Volume,
    client: Client<Volume>,
}

impl Drop for Rig {
    /// So that a test that fails ends.
    fn drop(&mut self) {
        self.gate.open();
    }
}

impl Rig {
    fn new() -> Rig {
        let gate = Arc::new(Gate::new(64 << 20).unwrap());
        block::mkfs(gate.clone(), &MkfsOptions::default()).unwrap();
        let options = OpenOptions { cache_bytes: 8 << 20, ..OpenOptions::default() };
        let volume = Volume::open(gate.clone(), options).unwrap();
        let client = Client::new(Arc::new(volume.clone()), Cred::root());
        Rig { gate, volume, client }
    }

    /// A file of `len` bytes that is durable and not in the cache, open past it.
    fn file(&self, name: &str, len: usize) -> File<Volume> {
        let new = fs::OpenOptions::new().write(true).create_new(true);
        block_on(async {
            let file = self.client.open(name, new).await?;
            file.write_all_at(&pattern(len), 0).await?;
            file.fsync().await?;
            file.close().await?;
            self.volume.drop_caches().await?;
            self.client.open(name, fs::OpenOptions::new().read(true).write(true).direct(true)).await
        })
        .unwrap()
    }

    /// Blocks that were read, and written, by the device alone so far.
    fn direct(&self) -> (u64, u64) {
        let counters = self.volume.counters();
        (counters.direct_read_blocks, counters.direct_written_blocks)
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn read(file: &File<Volume>, buffer: Buffer<Volume>, offset: usize) -> (Buffer<Volume>, fs::Result<usize>) {
    block_on(file.read_fixed_at(buffer, offset as u64))
}

/// All buffers of a pool that nobody uses.
fn free(buffers: &Buffers<Volume>) -> usize {
    std::iter::from_fn(|| buffers.take()).collect::<Vec<_>>().len()
}

#[test]
fn the_device_fills_and_reads_buffers() {
    let rig = Rig::new();
    let file = rig.file("f", MIB);
    let buffers = rig.client.buffers(2, 64 << 10).unwrap();
    let expected = pattern(MIB);
    let before = rig.direct();
    let (mut buffer, n) = read(&file, buffers.take().unwrap(), 16 * BLOCK);
    assert_eq!(n, Ok(64 << 10));
    assert!(buffer[..] == expected[16 * BLOCK..][..64 << 10]);
    assert_eq!(rig.direct().0 - before.0, 16);

    // A part of a buffer, and up to the end of the file.
    buffer.resize(BLOCK).unwrap();
    buffer.fill(7);
    let (mut buffer, n) = block_on(file.write_fixed_at(buffer, (MIB - BLOCK) as u64));
    assert_eq!((n, rig.direct().1 - before.1), (Ok(BLOCK), 1));
    buffer.resize(64 << 10).unwrap();
    let (buffer, n) = read(&file, buffer, MIB - 2 * BLOCK);
    assert_eq!(n, Ok(2 * BLOCK));
    assert!(
        buffer[..BLOCK] == expected[MIB - 2 * BLOCK..][..BLOCK] && buffer[BLOCK..2 * BLOCK] == [7; BLOCK]
    );
    assert_eq!(rig.direct().0 - before.0, 18);

    // By a thread that blocks.
    let blocking = fs::client::BlockingFile::from(rig.file("g", MIB));
    let before = rig.direct();
    let (buffer, n) = blocking.read_fixed_at(buffer, BLOCK as u64);
    assert!(n == Ok(64 << 10) && buffer[..] == expected[BLOCK..][..64 << 10]);
    let (buffer, n) = blocking.write_fixed_at(buffer, 0);
    assert_eq!((n, rig.direct()), (Ok(64 << 10), (before.0 + 16, before.1 + 16)));
    drop(buffer);
    assert_eq!(free(&buffers), 2);
}

#[test]
fn what_the_device_cannot_do_is_copied() {
    let rig = Rig::new();
    let file = rig.file("f", MIB);
    let buffers = rig.client.buffers(1, 8 * BLOCK).unwrap();
    let expected = pattern(MIB);
    let before = rig.direct();
    let buffer = buffers.take().unwrap();
    let (mut buffer, n) = read(&file, buffer, 512);
    assert_eq!(n, Ok(8 * BLOCK), "not at a block");
    assert!(buffer[..] == expected[512..][..8 * BLOCK]);
    buffer.resize(512).unwrap();
    buffer.fill(9);
    let (buffer, n) = block_on(file.write_fixed_at(buffer, MIB as u64));
    assert_eq!(n, Ok(512), "the file grows");

    // A buffer of another volume's, and a file that is open for the cache.
    let other = Rig::new();
    let elsewhere = other.file("f", MIB);
    let (buffer, n) = read(&elsewhere, buffer, 0);
    assert_eq!((n, other.direct()), (Ok(512), (0, 0)));
    let cached = block_on(rig.client.open("f", fs::OpenOptions::new().read(true))).unwrap();
    let (mut buffer, n) = read(&cached, buffer, MIB);
    assert_eq!((n, &buffer[..]), (Ok(512), &[9; 512][..]));
    assert_eq!(rig.direct(), before);

    assert_eq!(buffer.resize(8 * BLOCK + 1), Err(Error::Invalid("length of a buffer")));
    let (buffer, n) = block_on(cached.write_fixed_at(buffer, 0));
    assert_eq!(n, Err(Error::BadHandle));
    drop(buffer);
    assert_eq!(free(&buffers), 1, "an error gives the buffer back");
}

#[test]
fn wrong_pools_are_refused() {
    let rig = Rig::new();
    for (count, size) in [(0, BLOCK), (1, 0), (1, 512), (1, BLOCK + 1), (1, 1 << 33)] {
        assert!(matches!(rig.client.buffers(count, size), Err(Error::Invalid(_))), "{count} of {size}");
    }
    assert_eq!(rig.client.buffers(usize::MAX / BLOCK, BLOCK).err(), Some(Error::TooLarge));
    assert_eq!(rig.client.buffers(usize::MAX, BLOCK).err(), Some(Error::TooLarge));
}

/// A call is given up while the device fills its buffer: nobody else gets that, and the pool can go.
#[test]
fn a_buffer_of_a_call_that_is_given_up_is_not_used_again() {
    let rig = Rig::new();
    let file = rig.file("f", MIB);
    let buffers = rig.client.buffers(2, BLOCK).unwrap();
    rig.gate.close();
    let given_up = {
        let mut call = pin!(file.read_fixed_at(buffers.take().unwrap(), 0));
        call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
    };
    assert!(given_up);
    assert_eq!(free(&buffers), 1);
    drop(buffers);
    rig.gate.open();
    // The device is done with it, and the volume as it was.
    let buffers = rig.client.buffers(1, BLOCK).unwrap();
    let (buffer, n) = read(&file, buffers.take().unwrap(), 0);
    assert_eq!(n, Ok(BLOCK));
    assert!(buffer[..] == pattern(BLOCK));
}

/// Many at a time, by a thread that looks for completions; and by one that lets others do so.
#[test]
fn many_transfers_of_one_thread() {
    let rig = Rig::new();
    let file = rig.file("f", 4 * MIB);
    let buffers = rig.client.buffers(32, BLOCK).unwrap();
    let pages = 4 * MIB / BLOCK;
    for polled in [true, false] {
        let one = async |n: usize| {
            let mut buffer = buffers.take().unwrap();
            for page in (n..pages).step_by(32) {
                buffer.fill(page as u8 ^ polled as u8);
                let (back, written) = file.write_fixed_at(buffer, (page * BLOCK) as u64).await;
                assert_eq!(written?, BLOCK);
                buffer = back;
                buffer.fill(0);
                let (back, read) = file.read_fixed_at(buffer, (page * BLOCK) as u64).await;
                assert_eq!(read?, BLOCK);
                assert!(back.iter().all(|&b| b == page as u8 ^ polled as u8), "page {page}");
                buffer = back;
            }
            Ok(())
        };
        let calls = (0..32).map(one).collect();
        let done: fs::Result<()> = if polled { join_polled(&rig.volume, calls) } else { fs::join_all(calls) };
        assert_eq!(done, Ok(()));
        assert_eq!(free(&buffers), 32);
    }
    block_on(file.fsync()).unwrap();
}

#[test]
fn calls_may_move_between_threads() {
    fn sent<T: Send>(_: &T) {}
    let rig = Rig::new();
    let file = rig.file("f", MIB);
    let buffers = rig.client.buffers(1, BLOCK).unwrap();
    let call = file.read_fixed_at(buffers.take().unwrap(), 0);
    sent(&call);
    assert_eq!(block_on(call).1, Ok(BLOCK));
    let call = file.write_fixed_at(buffers.take().unwrap(), 0);
    sent(&call);
    assert_eq!(block_on(call).1, Ok(BLOCK));
}

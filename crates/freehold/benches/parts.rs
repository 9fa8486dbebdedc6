//! Costs of single parts, without a device: operations of the block engine on memory, and what goes into log records.
//!
//! `cargo bench -p freehold --bench parts`; as a test (each once, few files) `cargo test -p freehold --bench parts`.

use block::{MkfsOptions, OpenOptions, Volume};
use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use format::extent::{Extent, encode_leaf};
use format::inode::{InodeHeader, SlotKind, encode_compact, parse_compact};
use format::log::{Record, RecordBuilder, RecordId};
use format::{BlockNo, Epoch, Ino};
use fs::client::BlockingFile;
use fs::{Blocking, Client, Cred, Fallocate, RenameFlags};
use media::RamMedia;
use std::sync::Arc;
use zerocopy::FromZeros;

/// Whether this is a measurement, not a test (cargo says so).
fn measuring() -> bool {
    std::env::args().any(|a| a == "--bench")
}

/// Files of the metadata parts.
fn files() -> Vec<u32> {
    if measuring() { vec![1_000, 100_000] } else { vec![100] }
}

/// Pieces of the fragmented files.
fn pieces() -> Vec<u64> {
    if measuring() { vec![64, 4096] } else { vec![64] }
}

fn main() {
    divan::main();
}

/// An empty volume in memory. Its worker thread runs; a dropped volume stops.
fn volume(bytes: u64) -> Blocking<Volume> {
    let media = Arc::new(RamMedia::new(bytes).expect("memory"));
    block::mkfs(media.clone(), &MkfsOptions::default()).expect("mkfs");
    let volume = Volume::open(media, OpenOptions::default()).expect("open");
    Client::new(Arc::new(volume), Cred::root()).blocking()
}

fn name(n: u32) -> String {
    format!("f{n:07}")
}

fn with_files(files: u32) -> (Blocking<Volume>, Vec<String>) {
    let client = volume(128 << 20 | (files as u64 * 6144).next_multiple_of(2 << 20));
    let names: Vec<String> = (0..files).map(name).collect();
    for n in &names {
        client.mknod(n, libc::S_IFREG | 0o644, 0).expect("mknod");
    }
    (client, names)
}

/// Index insert, a new inode, and the running epoch.
#[divan::bench(args = files(), sample_count = 10, sample_size = 1)]
fn create(bencher: Bencher, files: u32) {
    bencher
        .counter(ItemsCount::new(files))
        .with_inputs(|| (with_files(0).0, (0..files).map(name)))
        .bench_local_refs(|(client, names)| {
            for n in names {
                client.mknod(&n, libc::S_IFREG | 0o644, 0).expect("mknod");
            }
        });
}

/// A barrier behind so many overwritten pages, those not counted: closing the epoch and dispatching its record.
#[divan::bench(args = [0, 1, 8], sample_count = 1000, sample_size = 1)]
fn barrier(bencher: Bencher, pages: u64) {
    let client = volume(256 << 20);
    let file = client.create("f").expect("create");
    file.write_all_at(&[1; 8 * 4096], 0).expect("write");
    file.fsync().expect("fsync");
    bencher
        .counter(ItemsCount::new(1u32))
        .with_inputs(|| (0..pages).for_each(|i| file.write_all_at(&[2; 4096], i * 4096).expect("write")))
        .bench_local_values(|()| file.fdatabarrier().expect("fdatabarrier"));
}

/// Index lookup.
#[divan::bench(args = files())]
fn stat(bencher: Bencher, files: u32) {
    let (client, names) = with_files(files);
    let mut at = 0;
    bencher.counter(ItemsCount::new(1u32)).bench_local(|| {
        at = (at + 7919) % names.len();
        client.stat(&names[at]).expect("stat")
    });
}

/// Index lookup that finds nothing.
#[divan::bench(args = files())]
fn stat_missing(bencher: Bencher, files: u32) {
    let (client, _names) = with_files(files);
    bencher.counter(ItemsCount::new(1u32)).bench_local(|| client.stat(black_box("missing")).is_err());
}

/// Index remove and insert, one inode.
#[divan::bench(args = files())]
fn rename(bencher: Bencher, files: u32) {
    let (client, _names) = with_files(files);
    let (mut from, mut to) = (name(0), "g".to_string());
    bencher.counter(ItemsCount::new(1u32)).bench_local(|| {
        client.rename(&from, &to, RenameFlags::empty()).expect("rename");
        std::mem::swap(&mut from, &mut to);
    });
}

/// Index remove, freeing an inode.
#[divan::bench(args = files(), sample_count = 10, sample_size = 1)]
fn unlink(bencher: Bencher, files: u32) {
    bencher.counter(ItemsCount::new(files)).with_inputs(|| with_files(files)).bench_local_refs(
        |(client, names)| {
            for n in names {
                client.unlink(&n).expect("unlink");
            }
        },
    );
}

/// A whole directory, with the attributes of each entry.
#[divan::bench(args = files())]
fn readdir(bencher: Bencher, files: u32) {
    let (client, _names) = with_files(files);
    bencher.counter(ItemsCount::new(files)).bench_local(|| client.read_dir("/").expect("read_dir").count());
}

/// A file whose even blocks are allocated.
fn fragmented(pieces: u64) -> (Blocking<Volume>, BlockingFile<Volume>) {
    let client = volume(256 << 20);
    let file = client.create("fragmented").expect("create");
    file.fallocate(Fallocate::Allocate { keep_size: false }, 0, pieces * 8192).expect("allocate");
    for i in 0..pieces {
        file.fallocate(Fallocate::PunchHole, i * 8192 + 4096, 4096).expect("punch");
    }
    (client, file)
}

/// Extent map: finding the hole behind a block of a fragmented file.
#[divan::bench(args = pieces())]
fn extent_lookup(bencher: Bencher, pieces: u64) {
    let (_client, mut file) = fragmented(pieces);
    let mut at = 0;
    bencher.counter(ItemsCount::new(1u32)).bench_local(|| {
        at = (at + 61) % pieces;
        file.seek(fs::client::SeekTo::Hole(at * 8192)).expect("seek")
    });
}

/// Extent map and space: splitting and joining an extent, freeing and allocating a block.
#[divan::bench(args = pieces())]
fn extent_punch_and_allocate(bencher: Bencher, pieces: u64) {
    let (_client, file) = fragmented(pieces);
    let mut at = 0;
    bencher.counter(ItemsCount::new(1u32)).bench_local(|| {
        at = (at + 61) % pieces;
        file.fallocate(Fallocate::Allocate { keep_size: true }, at * 8192 + 4096, 4096).expect("allocate");
        file.fallocate(Fallocate::PunchHole, at * 8192 + 4096, 4096).expect("punch");
    });
}

/// An epoch with one small change: closing it, its record, and its completion.
#[divan::bench]
fn append_4k_and_fsync(bencher: Bencher) {
    let client = volume(256 << 20);
    let file = client.create("f").expect("create");
    let (data, mut at) = (vec![7; 4096], 0);
    bencher.counter(ItemsCount::new(1u32)).bench_local(|| {
        file.write_all_at(&data, at).expect("write");
        file.fsync().expect("fsync");
        at = (at + 4096) % (64 << 20);
    });
}

fn image(ino: u32, out: &mut Vec<u8>) -> usize {
    let mut header = InodeHeader::new_zeroed();
    header.ino = (ino as u64).into();
    header.kind = SlotKind::Inode as u8;
    header.generation = 1.into();
    header.epoch = 7.into();
    header.parent = Ino::ROOT.0.into();
    header.mode = 0o100644.into();
    let before = out.len();
    encode_compact(&header, b"f0000001", b"", b"", out);
    out.len() - before
}

/// One inode as it stands in the log.
#[divan::bench]
fn inode_encode(bencher: Bencher) {
    let mut out = Vec::with_capacity(4096);
    bencher.counter(ItemsCount::new(1u32)).bench_local(|| {
        out.clear();
        image(black_box(1000), &mut out)
    });
}

/// Reading it back.
#[divan::bench]
fn inode_parse(bencher: Bencher) {
    let mut out = Vec::new();
    image(1000, &mut out);
    bencher
        .counter(ItemsCount::new(1u32))
        .bench_local(|| parse_compact(black_box(&out)).expect("image").ino());
}

fn record(inodes: u32, out: &mut Vec<u8>) -> u32 {
    let mut record = RecordBuilder::default();
    for ino in 0..inodes {
        record.inode(|out| image(1000 + ino, out));
    }
    out.resize(record.blocks() * 4096, 0);
    let id =
        RecordId { uuid: [7; 16], epoch: Epoch(9), durable_epoch: Epoch(8), chain: 3, time: 0, nonce: 1 };
    record.finish(&id, out, |_| &[])
}

/// A log record with its checksum.
#[divan::bench(args = [1, 1000])]
fn log_record_build(bencher: Bencher, inodes: u32) {
    let mut out = Vec::new();
    record(inodes, &mut out);
    bencher.counter(BytesCount::new(out.len())).bench_local(|| record(inodes, &mut out));
}

/// Verifying it at recovery.
#[divan::bench(args = [1, 1000])]
fn log_record_parse(bencher: Bencher, inodes: u32) {
    let mut out = Vec::new();
    record(inodes, &mut out);
    bencher
        .counter(BytesCount::new(out.len()))
        .bench_local(|| Record::parse(black_box(&out)).expect("record").inodes().count());
}

/// A leaf of an extent tree.
#[divan::bench]
fn extent_leaf_encode(bencher: Bencher) {
    let extents: Vec<Extent> =
        (0..100).map(|i| Extent::new(i * 4, BlockNo(1000 + i * 9), 2, false)).collect();
    bencher.counter(ItemsCount::new(1u32)).bench_local(|| encode_leaf(Ino(1000), 7, black_box(&extents)));
}

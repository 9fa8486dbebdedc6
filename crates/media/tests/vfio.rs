//! The NVMe driver on a real controller, or an emulated one in a virtual machine, all of whose data is lost. Only when asked for:
//!
//!     FREEHOLD_NVME=0000:00:05.0 cargo test -p freehold-media --test vfio -- --ignored --nocapture --test-threads 1
//!
//! The controller is bound to vfio-pci. What the driver does when a controller fails is checked in tests/nvme.rs.

use media::blocking::Blocking;
use media::nvme::{NvmeMedia, Options};
use media::{Arena, BufRef, Flags, Media, Op, Request, Wait};
use std::sync::Arc;
use std::time::{Duration, Instant};

const ARENA: u64 = 8 << 20;

fn open(options: Options) -> Option<NvmeMedia> {
    let Ok(address) = std::env::var("FREEHOLD_NVME") else {
        println!("FREEHOLD_NVME names no controller");
        return None;
    };
    Some(NvmeMedia::open(address.parse().unwrap(), options).unwrap())
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

/// Random reads, writes, zeroing and flushes against bytes in memory, with memory in pieces, through several queues; then by
/// another driver, which finds what the first one left.
#[test]
#[ignore = "needs a controller"]
fn data_is_kept() {
    const PART: u64 = 1 << 20;
    let Some(media) = open(Options::default()) else { return };
    println!("{:?}, {} queues", media.geometry(), media.queues());
    let sector = media.geometry().sector as u64;
    let arena = Arc::new(Arena::new(ARENA as usize).unwrap());
    let id = media.register(arena.clone()).unwrap();
    let mut random = Random(7);
    let mut model = vec![0u8; 16 * PART as usize];
    let zeroed = Request::range(Op::WriteZeroes, 0, 16 * PART, 1);
    run(&media, vec![zeroed]);
    for round in 0..60 {
        let (mut requests, mut reads) = (Vec::new(), Vec::new());
        for n in 0..16 {
            let place = n * PART + random.below(PART / 2 / sector) * sector;
            let mut bufs = Vec::new();
            let mut at = n * (ARENA / 16);
            for _ in 0..1 + random.below(8) {
                let unit = if random.below(2) == 0 { 4096 } else { sector };
                at = at.next_multiple_of(unit) + random.below(3) * unit;
                let len = (1 + random.below(12)) * unit;
                if at + len > (n + 1) * (ARENA / 16) {
                    break;
                }
                bufs.push(BufRef { arena: id, offset: at, len: len as u32 });
                at += len;
            }
            let len: u64 = bufs.iter().map(|b| b.len as u64).sum();
            let range = place as usize..(place + len) as usize;
            match random.below(6) {
                0..3 => {
                    let mut filled = range.start;
                    for buf in &bufs {
                        let data: Vec<u8> = (0..buf.len).map(|_| random.below(256) as u8).collect();
                        arena.copy_in(buf.offset, &data);
                        model[filled..filled + data.len()].copy_from_slice(&data);
                        filled += data.len();
                    }
                    let flags = if random.below(4) == 0 { Flags::FUA } else { Flags::NONE };
                    requests.push(Request { flags, ..Request::vectored(Op::Write, place, bufs.into(), n) });
                }
                3 => {
                    model[range].fill(0);
                    requests.push(Request::range(Op::WriteZeroes, place, len, n));
                }
                4 if round % 5 == 0 => requests.push(Request::flush(n)),
                _ => {
                    reads.push((range, bufs.clone()));
                    requests.push(Request::vectored(Op::Read, place, bufs.into(), n));
                }
            }
        }
        run(&media, requests);
        for (range, bufs) in reads {
            let mut back = Vec::new();
            for buf in bufs {
                let mut part = vec![0; buf.len as usize];
                arena.copy_out(buf.offset, &mut part);
                back.extend(part);
            }
            assert!(back == model[range.clone()], "round {round}, {range:?}");
        }
    }
    assert_eq!(media.health().resets, 0);
    println!("{:?}, {:?}", media.counters(), media.health());
    drop(media);
    for interrupts in [true, false] {
        let media = open(Options { queues: 1, depth: 3, interrupts, ..Options::default() }).unwrap();
        let mut all = vec![0; model.len()];
        Blocking::new(Arc::new(media)).unwrap().read(0, &mut all).unwrap();
        assert!(all == model);
    }
}

/// Submits all, of which each has its own queue, and waits for them.
fn run(media: &NvmeMedia, requests: Vec<Request>) {
    let n = requests.len();
    for (i, request) in requests.into_iter().enumerate() {
        media.submit_to(i % media.queues(), request);
    }
    media.kick();
    let (mut done, start) = (Vec::new(), Instant::now());
    while done.len() < n {
        media.reap(&mut done, Wait::For(Some(Duration::from_secs(1))));
        assert!(start.elapsed() < Duration::from_secs(120), "{:?}", media.health());
    }
    done.into_iter().for_each(|c| c.result.unwrap());
}

/// Somebody else cannot have it at the same time.
#[test]
#[ignore = "needs a controller"]
fn one_owner() {
    let Some(media) = open(Options::default()) else { return };
    let address = std::env::var("FREEHOLD_NVME").unwrap().parse().unwrap();
    assert_eq!(NvmeMedia::open(address, Options::default()).err().unwrap().errno(), libc::EBUSY);
    drop(media);
    drop(open(Options::default()));
}

/// Times of 4 KiB reads, one after the other and 32 at a time, polled and by interrupts.
#[test]
#[ignore = "needs a controller"]
fn times() {
    for (name, poll) in [("polled", Duration::from_secs(1)), ("by interrupts", Duration::ZERO)] {
        for shadow_doorbells in [false, true] {
            let options = Options { poll, shadow_doorbells, queues: 1, ..Options::default() };
            let Some(media) = open(options) else { return };
            let arena = Arc::new(Arena::new(1 << 20).unwrap());
            let id = media.register(arena).unwrap();
            for depth in [1u64, 32] {
                let (start, mut count, mut done) = (Instant::now(), 0u64, Vec::new());
                while start.elapsed() < Duration::from_secs(3) {
                    for n in 0..depth {
                        let buf = BufRef { arena: id, offset: n * 4096, len: 4096 };
                        media.submit(Request::transfer(Op::Read, (count + n) % 4096 * 4096, buf, n));
                    }
                    media.kick();
                    while done.len() < depth as usize {
                        media.reap(&mut done, Wait::For(None));
                    }
                    done.drain(..).for_each(|c| c.result.unwrap());
                    count += depth;
                }
                let each = start.elapsed() / count as u32;
                println!(
                    "4 KiB reads {name}, depth {depth}, shadow doorbells {shadow_doorbells}: {each:?} each, {:?}",
                    media.health()
                );
            }
        }
    }
}

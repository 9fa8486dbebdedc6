//! Write leases with random calls, and with readers beside a writer.
//!
//! Verifies, through two sessions and a door beside, against bytes in memory, that nothing is lost or seen late; over the block engine and the model.

use crate::rig::{NEW, PAGE, RW, Rig, leased, page, volume};
use fs::FileSystem;
use sim::{Model, system_clock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Random calls through two sessions and a door, one after the other, against bytes in memory.
fn random<F: FileSystem>(fs: Arc<F>, seed: u64) {
    const PAGES: u64 = 1200;
    let mut rig = Rig::new(fs);
    let (a, b) = (rig.client(), rig.client());
    let mut x = seed;
    let mut next = move |n: u64| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x % n
    };
    let mut held = vec![0u8; PAGES as usize * PAGE];
    let mut file = a.open("f", NEW).unwrap();
    file.write_all_at(&held, 0).unwrap();
    let (mut second, mut beside) = (None, None);
    let (mut leases, mut hot) = (0, 0);
    for step in 0..60_000u64 {
        if step % 500 == 0 {
            hot = next(PAGES - 40);
        }
        leases += rig.doors.lends() as u64;
        let at = match next(3) {
            0 => next(PAGES - 3) * PAGE as u64,
            _ => (hot + next(30)) * PAGE as u64,
        };
        let fill = (step % 251) as u8 + 1;
        // Others seldom come, or there would be no lease.
        match next(1000) {
            0 => second = Some(b.open("f", RW).unwrap()),
            1 => beside = Some(rig.beside.open("f", RW).unwrap()),
            2 => {
                let size = held.len() as u64 - next(5000);
                file.set_len(size).unwrap();
                file.set_len(held.len() as u64).unwrap();
                held[size as usize..].fill(0);
            }
            3 => {
                rig.beside.open("f", RW).unwrap().write_all_at(&[fill; 5000], at).unwrap();
                held[at as usize..][..5000].fill(fill);
            }
            4 => rig.beside.sync().unwrap(),
            5 => {
                file.close().unwrap();
                file = a.open("f", RW).unwrap();
            }
            6 => {
                b.rename("f", "g", Default::default()).unwrap();
                b.rename("g", "f", Default::default()).unwrap();
            }
            7 if step % 3 == 0 => rig.serve(),
            700..710 => (second, beside) = (None, None),
            8 => {
                let from = next(PAGES / 2) * PAGE as u64 + 17;
                let to = (PAGES / 2 + next(PAGES / 2 - 3)) * PAGE as u64 + 5;
                file.copy_range(from, &file, to, 7000).unwrap();
                held.copy_within(from as usize..from as usize + 7000, to as usize);
            }
            9..20 => {
                let (at, len) = (at as usize + next(4000) as usize, 1 + next(9000) as usize);
                let len = len.min(held.len() - at);
                file.write_all_at(&vec![fill; len], at as u64).unwrap();
                held[at..at + len].fill(fill);
            }
            20..60 => {
                let within = next(4000) as usize;
                let len = 1 + next((PAGE - within) as u64) as usize;
                file.write_all_at(&vec![fill; len], at + within as u64).unwrap();
                held[at as usize + within..][..len].fill(fill);
            }
            60..100 => {
                file.write_all_at(&[fill; 2 * PAGE], at).unwrap();
                held[at as usize..][..2 * PAGE].fill(fill);
            }
            100..700 => {
                file.write_all_at(&page(step), at).unwrap();
                held[at as usize..][..PAGE].copy_from_slice(&page(step));
            }
            n => {
                let (at, len) = (at as usize + next(4000) as usize, 1 + next(9000) as usize);
                let len = len.min(held.len() - at);
                let mut bytes = vec![0; len];
                let (at, len) = (at as u64, len);
                let read = match (n, &second, &beside) {
                    (990.., Some(other), _) => other.read_at(&mut bytes, at),
                    (980..990, _, Some(other)) => other.read_at(&mut bytes, at),
                    _ => file.read_at(&mut bytes, at),
                };
                assert_eq!(read.unwrap(), len);
                assert!(
                    bytes == held[at as usize..][..len],
                    "read of {len} at {at} in step {step}, seed {seed}"
                );
            }
        }
    }
    println!("a lease in {leases} of 60000 steps");
    assert!(leases > 5000, "this tests nothing");
    let mut bytes = vec![0; held.len()];
    rig.beside.open("f", RW).unwrap().read_at(&mut bytes, 0).unwrap();
    assert!(bytes == held);
}

#[test]
fn random_calls_on_the_engine() {
    (1..4).for_each(|seed| random(volume(128 << 20), seed * 0x9E37_79B9));
}

#[test]
fn random_calls_on_the_model() {
    (1..3).for_each(|seed| random(Arc::new(Model::new(system_clock())), seed * 0x517C_C1B7));
}

/// One writes through a session, others read and write through other doors: nobody finds less than what was acknowledged before.
#[test]
fn readers_beside_a_writer() {
    const PAGES: usize = 64;
    let rig = Rig::new(volume(128 << 20));
    let a = rig.client();
    let file = leased(&rig, &a, "f", PAGES);
    let done: [AtomicU64; PAGES] = [const { AtomicU64::new(0) }; PAGES];
    let (over, mut reads) = (AtomicBool::new(false), 0);
    let leases = AtomicU64::new(0);
    std::thread::scope(|s| {
        let (rig, done, over, file, leases) = (&rig, &done, &over, &file, &leases);
        for writer in 0..2 {
            s.spawn(move || {
                let mut n = 1;
                while !over.load(Ordering::Relaxed) {
                    let i = (n as usize * 7 + writer) % (PAGES / 2) * 2 + writer;
                    file.write_all_at(&page(n), (i * PAGE) as u64).unwrap();
                    done[i].store(n, Ordering::SeqCst);
                    leases.fetch_add(rig.doors.lends() as u64, Ordering::Relaxed);
                    n += 1;
                }
            });
        }
        let readers: Vec<_> = (0..2)
            .map(|reader| {
                s.spawn(move || {
                    let client = rig.client();
                    let (mut bytes, mut n) = (vec![0; PAGE], 0);
                    let begun = Instant::now();
                    while begun.elapsed() < Duration::from_secs(4) {
                        let i = (n * (5 + reader)) % PAGES;
                        // It comes and goes, so that there are leases in between.
                        let least = done[i].load(Ordering::SeqCst);
                        match reader {
                            0 => drop(client.open("f", RW).unwrap().read_at(&mut bytes, (i * PAGE) as u64)),
                            _ => {
                                drop(rig.beside.open("f", RW).unwrap().read_at(&mut bytes, (i * PAGE) as u64))
                            }
                        }
                        for word in bytes.chunks_exact(8) {
                            let found = u64::from_le_bytes(word.try_into().unwrap());
                            assert!(found >= least, "page {i} holds {found} after {least} was written");
                        }
                        let least = done[i].load(Ordering::SeqCst);
                        file.read_at(&mut bytes, (i * PAGE) as u64).unwrap();
                        let found = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                        assert!(found >= least, "page {i}: its writer reads {found} after {least}");
                        n += 1;
                        std::thread::sleep(Duration::from_micros(500 * (n as u64 % 8)));
                    }
                    n
                })
            })
            .collect();
        reads = readers.into_iter().map(|r| r.join().unwrap()).sum();
        over.store(true, Ordering::Relaxed);
    });
    println!("{reads} reads, {} writes under a lease", leases.load(Ordering::Relaxed));
    assert!(reads > 500 && leases.load(Ordering::Relaxed) > 100);
}

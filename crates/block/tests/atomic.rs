//! Atomic writes through power cuts, on volumes whose plain overwrites go in place.
//!
//! Verifies: whatever subset of the writes that were not flushed is kept, torn at the atomic unit, a file that is only changed by atomic
//! writes is as after one of them, not older than the last sync, while plain writes beside it and little memory force pages out at all
//! times. Canary: the same pieces written one by one must be caught.

mod hand;

use block::{MkfsOptions, OpenOptions, Volume};
use fs::{ATOMIC_WRITE_MAX, Cred, Error, FileSystem, Handle, Ino, OpenFlags};
use hand::{ByHand, TestClock};
use media::flash::{Config, Order, SimFlash};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sim::{Driver, HandClock};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

const PAGE: usize = 4096;
const PAGES: usize = 48;
const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// Which write each page holds; the file ends with the last of them.
type State = Vec<u64>;

fn options(clock: &HandClock) -> OpenOptions {
    OpenOptions {
        cache_bytes: 2 << 20,
        dirty_bytes_max: 256 << 10,
        clock: Arc::new(TestClock(clock.clone())),
        ..OpenOptions::default()
    }
}

fn open(driver: &ByHand, volume: &Volume, name: &[u8]) -> Handle {
    driver.block_on(volume.create(&Cred::root(), Ino::ROOT, name, 0o600, RW)).unwrap().1
}

/// What the file holds; `Err` when a page is of no single write.
fn read(driver: &ByHand, volume: &Volume) -> Result<State, String> {
    let file = open(driver, volume, b"file");
    let mut bytes = vec![0; (PAGES + 1) * PAGE];
    let n = driver.block_on(volume.read(file, 0, &mut bytes)).map_err(|e| e.to_string())?;
    if n % PAGE != 0 {
        return Err(format!("{n} bytes"));
    }
    let word = |b: &[u8]| u64::from_le_bytes(b.try_into().unwrap());
    let page = |(i, page): (usize, &[u8])| {
        let first = word(&page[..8]);
        let same = page.chunks(8).all(|b| word(b) == first);
        same.then_some(first).ok_or_else(|| format!("page {i} is torn"))
    };
    bytes[..n].chunks(PAGE).enumerate().map(page).collect()
}

/// Cuts power all along a workload. Returns how many states were checked, or what was wrong.
fn workload(seed: u64, atomic: bool, unit: u32) -> Result<usize, String> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let order = Order::Shuffled { batch: 3 };
    let plain = Config { seed, atomic_unit: unit, ..Config::new(128 << 20) };
    let config = if seed.is_multiple_of(2) { Config { order, ..plain } } else { plain };
    let flash = Arc::new(SimFlash::new(config).unwrap());
    let mkfs = MkfsOptions { log_bytes: Some(8 << 20), ..MkfsOptions::default() };
    block::mkfs(flash.clone(), &mkfs).unwrap();
    let clock = HandClock::default();
    let (volume, worker) = Volume::open_manual(flash.clone(), options(&clock)).unwrap();
    let mut driver = ByHand::new(worker, clock.clone());
    let (file, noise) = (open(&driver, &volume, b"file"), open(&driver, &volume, b"noise"));
    driver.block_on(volume.sync()).unwrap();

    let images: Rc<RefCell<Vec<SimFlash>>> = Rc::default();
    driver.between = {
        let (flash, images) = (flash.clone(), images.clone());
        let rng = RefCell::new(SmallRng::seed_from_u64(!seed));
        Rc::new(move || {
            let mut rng = rng.borrow_mut();
            if images.borrow().len() < 3 && rng.random_range(0..5) == 0 {
                let keep = [0.0, 0.1, 0.5, 0.9, 1.0][rng.random_range(0..5)];
                images.borrow_mut().push(flash.crash_image(|_, _| rng.random_bool(keep)));
            }
        })
    };
    let (mut history, mut states, mut now) = (vec![State::new()], 0, State::new());
    for number in 1..400u64 {
        driver.before_op(number as usize);
        let mut synced = false;
        match rng.random_range(0..10) {
            0..5 => {
                let count = rng.random_range(1..=ATOMIC_WRITE_MAX / PAGE);
                let data = number.to_le_bytes().repeat(PAGE / 8);
                // Nothing but the end of the file grows, so that there are no holes.
                let pages: Vec<usize> =
                    (0..count).map(|_| rng.random_range(0..=now.len().min(PAGES - 1))).collect();
                let pieces: Vec<(u64, &[u8])> =
                    pages.iter().map(|p| ((p * PAGE) as u64, &data[..])).collect();
                pages.iter().for_each(|&p| {
                    now.resize(now.len().max(p + 1), 0);
                    now[p] = number;
                });
                history.push(now.clone());
                if atomic {
                    driver.block_on(volume.write_atomic(file, &pieces)).map_err(|e| e.to_string())?;
                } else {
                    for (at, data) in pieces {
                        driver.block_on(volume.write(file, at, data)).map_err(|e| e.to_string())?;
                    }
                }
            }
            5..8 => {
                let data = vec![number as u8; rng.random_range(1..300_000)];
                driver.block_on(volume.write(noise, rng.random_range(0..4 << 20), &data)).unwrap();
            }
            8 => driver.block_on(volume.barrier(noise, true)).unwrap(),
            _ => {
                driver.block_on(volume.fsync(noise, true)).unwrap();
                synced = true;
            }
        }
        for image in images.take() {
            let image = Arc::new(image);
            let (volume, worker) =
                Volume::open_manual(image, options(&clock)).map_err(|e| format!("does not open: {e}"))?;
            let found = read(&ByHand::new(worker, clock.clone()), &volume)?;
            if !history.contains(&found) {
                return Err(format!("seed {seed}, operation {number}: {found:?} is after no write"));
            }
            states += 1;
        }
        if synced {
            history.drain(..history.len() - 1);
        }
    }
    driver.between = Rc::new(|| {});
    assert_eq!(read(&driver, &volume)?, now);
    let counters = volume.counters();
    assert_eq!(counters.atomic_writes > 100, atomic, "{counters:?}");
    println!("seed {seed}: {states} states, {counters:?}");
    Ok(states)
}

#[test]
fn all_or_none() {
    let mut states = 0;
    for seed in 1..13 {
        let unit = if seed < 7 { 512 } else { 4096 };
        states += workload(seed, true, unit).unwrap_or_else(|why| panic!("{why}"));
    }
    println!("{states} states");
    assert!(states > 1000);
}

#[test]
fn pieces_one_by_one_are_caught() {
    assert!((1..8).any(|seed| workload(seed, false, 4096).is_err()), "the checker does not see parts");
}

#[test]
fn what_cannot_be_done_changes_nothing() {
    let media = Arc::new(media::RamMedia::new(64 << 20).unwrap());
    block::mkfs(media.clone(), &MkfsOptions::default()).unwrap();
    let volume = Volume::open(media, OpenOptions::default()).unwrap();
    let run = |handle, pieces: &[(u64, &[u8])]| volume.block_on(volume.write_atomic(handle, pieces));
    let made = |name: &[u8], flags| {
        volume.block_on(volume.create(&Cred::root(), Ino::ROOT, name, 0o600, flags)).unwrap().1
    };
    let file = made(b"file", RW);
    let page = [7; PAGE];
    assert!(matches!(run(made(b"ro", OpenFlags::READ), &[(0, &page)]), Err(Error::BadHandle)));
    assert!(matches!(run(made(b"end", RW | OpenFlags::APPEND), &[(0, &page)]), Err(Error::Invalid(_))));
    assert!(matches!(run(file, &[(0, &page), (u64::MAX, &page)]), Err(Error::TooLarge)));
    assert!(matches!(run(file, &[(0, &[1; ATOMIC_WRITE_MAX]), (0, &[2])]), Err(Error::TooLarge)));
    let size = || volume.block_on(volume.getattr(Ino::ROOT, Some(file))).unwrap().size;
    assert_eq!(size(), 0);
    // Parts of pages, overlapping, over a hole.
    run(file, &[(10_000, b"abcdef"), (10_003, b"XY"), (3, b"z")]).unwrap();
    let mut bytes = [1; 12_000];
    assert_eq!(volume.block_on(volume.read(file, 0, &mut bytes)).unwrap(), 10_006);
    assert_eq!((&bytes[..5], &bytes[9_999..10_006]), (&b"\0\0\0z\0"[..], &b"\0abcXYf"[..]));
    assert!(bytes[5..9_999].iter().all(|&b| b == 0));
}

//! Transactions through power cuts: a database on simulated flash that tears writes at 512 bytes, cut at random moments with random losses.
//!
//! Verifies, for the journal modes that survive crashes and both durabilities: the database opens, is whole, and holds the transactions up to some one
//! and none after it; with full durability every one whose commit had returned. Canary: with ordered durability some such transaction
//! must be seen to be lost, or the checker does not cut power.

mod rig;

use fs::FileSystem;
use rig::{Rig, check, journal, number, one};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

/// SplitMix64.
fn roll(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

const IMAGES: usize = 10;

/// Runs transactions until power was cut often enough, and checks what is left each time. Returns how many transactions were acknowledged and are
/// lost, of all images.
fn cut(mode: &str, parameters: &str, seed: u64) -> i64 {
    let rig = Rig::new(seed, 512);
    let (acknowledged, over) = (AtomicI64::new(0), AtomicBool::new(false));
    let images = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let connection = rig.connect("cut.db", parameters);
            journal(&connection, mode);
            let tables = "pragma cache_size = 40; begin;
                create table t(id integer primary key, v blob, w integer); create index i on t(w);
                create table sum(n integer, w integer); insert into sum values(0, 0); commit";
            connection.execute_batch(tables).unwrap();
            rig.volume.block_on(rig.volume.sync()).unwrap();
            let mut dice = seed;
            for id in 1.. {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                // Now and then more pages than an atomic write or the cache takes.
                let bytes = if id % 9 == 0 { 300_000 } else { roll(&mut dice) as usize % 3000 };
                let w = (roll(&mut dice) % 1000) as i64;
                let transaction = connection.unchecked_transaction().unwrap();
                transaction.execute("insert into t values(?, ?, ?)", (id, vec![id as u8; bytes], w)).unwrap();
                transaction.execute("update t set w = w + 1 where id % 7 = ?", [id % 7]).unwrap();
                transaction.execute("update sum set n = n + 1, w = (select sum(w) from t)", []).unwrap();
                if id > 40 {
                    transaction.execute("update t set v = x'00' where id = ?", [id - 40]).unwrap();
                }
                transaction.commit().unwrap();
                acknowledged.store(id, Ordering::SeqCst);
            }
        });
        while acknowledged.load(Ordering::SeqCst) < 3 && !writer.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut dice = !seed;
        let mut images = Vec::new();
        while images.len() < IMAGES && !writer.is_finished() {
            // A few transactions on, at any moment of the next one.
            let on = acknowledged.load(Ordering::SeqCst) + (roll(&mut dice) % 6) as i64;
            while acknowledged.load(Ordering::SeqCst) < on && !writer.is_finished() {
                std::thread::sleep(Duration::from_micros(200));
            }
            std::thread::sleep(Duration::from_micros(roll(&mut dice) % 10_000));
            let before = acknowledged.load(Ordering::SeqCst);
            let character = images.len() % 4;
            let keep = || match character {
                0 => false,
                1 => roll(&mut dice).is_multiple_of(2),
                2 => !roll(&mut dice).is_multiple_of(8),
                _ => roll(&mut dice).is_multiple_of(8),
            };
            images.push((before, crash(&rig, keep)));
        }
        over.store(true, Ordering::Relaxed);
        images
    });
    assert_eq!(images.len(), IMAGES, "the writer failed");
    let last = acknowledged.load(Ordering::SeqCst);
    drop(rig);
    let mut lost = 0;
    for (before, image) in images {
        let rig = Rig::open(image);
        let connection = rig.connect("cut.db", parameters);
        if mode == "wal" {
            connection.execute_batch("pragma locking_mode = exclusive").unwrap();
        }
        check(&connection);
        let rows = number(&connection, "select count(*) from t");
        assert_eq!(
            number(&connection, "select coalesce(max(id), 0) from t"),
            rows,
            "a transaction is missing before others"
        );
        assert_eq!(number(&connection, "select n from sum"), rows);
        assert_eq!(
            number(&connection, "select coalesce(sum(w), 0) from t"),
            number(&connection, "select w from sum")
        );
        assert!(rows <= last + 1);
        lost += (before - rows).max(0);
    }
    println!("{mode} {parameters}: {last} transactions, {lost} lost in {IMAGES} cuts");
    lost
}

fn crash(rig: &Rig, mut keep: impl FnMut() -> bool) -> Arc<media::SimFlash> {
    Arc::new(rig.flash.crash_image(|_, _| keep()))
}

const MODES: [&str; 4] = ["delete", "truncate", "persist", "wal"];

#[test]
fn acknowledged_transactions_are_there() {
    let _one = one();
    for (seed, mode) in (1..).zip(MODES) {
        assert_eq!(cut(mode, "durability=full", seed), 0, "{mode}");
    }
}

#[test]
fn ordered_transactions_are_a_prefix() {
    let _one = one();
    let lost: i64 = (11..).zip(MODES).map(|(seed, mode)| cut(mode, "durability=ordered", seed)).sum();
    assert!(lost > 0, "no power was cut");
}

//! Random calls in a few directories, by two sessions and a door beside them, and by a model that knows nothing of leases: the same answers.
//!
//! One of the sessions makes most of the calls, so that it has leases, and the others come between. What the kinds of calls can do to a lease, and to what is posted under
//! it, is in reach of a few names. Verifies results, errors, attributes, listings and what files hold; times are not compared.

use crate::rig::{Random, Rig, volume};
use fs::client::OpenOptions as Open;
use fs::{Attr, Blocking, Client, Cred, Error, FileSystem, RenameFlags};
use sim::{Model, system_clock};
use std::sync::Arc;

/// What was answered, as far as both must say the same.
type Said = Result<String, i32>;

fn said<T>(result: Result<T, Error>, say: impl FnOnce(T) -> String) -> Said {
    result.map(say).map_err(|e| e.errno())
}

fn of(attr: Attr) -> String {
    let size = if attr.kind == fs::FileType::Directory { 0 } else { attr.size };
    format!("{:?} {:o} {} {} {} {}", attr.kind, attr.perm, attr.nlink, attr.uid, attr.gid, size)
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(7, |sum, &byte| sum.wrapping_mul(31).wrapping_add(byte as u64))
}

/// One call, chosen by numbers.
fn call<F: FileSystem>(fs: &Blocking<F>, kind: u64, (a, b): (&str, &str), n: u64) -> Said {
    let nothing = |()| String::new();
    let dir = a.split('/').next().unwrap_or("");
    match kind {
        0..30 => said(fs.open(a, Open::new().write(true).create_new(true)), |_| String::new()),
        30..36 => said(fs.open(a, Open::new().read(true).write(true).create(true)), |_| String::new()),
        36..50 => said(fs.unlink(a), nothing),
        50..56 => said(fs.stat(a), of),
        56..60 => said(fs.open(a, Open::new().write(true).create(true)), |file| {
            format!("{:?}", file.write_all_at(&vec![7; n as usize], 0).map_err(|e| e.errno()))
        }),
        92..97 => {
            // New, and written in pieces, with gaps, forwards and backwards.
            said(fs.open(a, Open::new().read(true).write(true).create_new(true)), |file| {
                let mut all = Vec::new();
                for piece in 0..1 + n % 4 {
                    let at = (n * 7919 + piece * 4111) % 40_000;
                    let data = vec![(n + piece) as u8 | 1; (n * (piece + 1)) as usize % 70_000];
                    all.push(file.write_at(&data, at).map_err(|e| e.errno()));
                }
                let mut end = [0; 700];
                let read = file.read_at(&mut end, n * 5).map_err(|e| e.errno());
                format!("{all:?} {read:?} {} {}", sum(&end), file.metadata().map_or(0, |attr| attr.size))
            })
        }
        60..64 => said(fs.read(a), |bytes| format!("{} {}", bytes.len(), sum(&bytes))),
        64..70 => said(fs.rename(a, b, RenameFlags::empty()), nothing),
        70 => said(fs.rename(a, b, RenameFlags::EXCHANGE), nothing),
        71..74 => said(fs.link(a, b), |attr| attr.nlink.to_string()),
        74..76 => said(fs.symlink(b, a), |_| String::new()),
        76..78 => said(fs.mkdir(a, 0o755), |_| String::new()),
        78..80 => said(fs.rmdir(a), nothing),
        80..82 => said(fs.chmod(a, 0o600 + (n % 8) as u16), |_| String::new()),
        82 => said(fs.chmod(dir, 0o700 + (n % 8) as u16), |_| String::new()),
        101..109 => said(fs.mkdir(a, 0o755), |_| String::new()),
        109..114 => said(fs.rmdir(a), nothing),
        114..119 => said(fs.stat(a), of),
        119..124 => {
            // A tree that comes, and mostly goes.
            let (deep, file) = (format!("{a}/d"), format!("{a}/d/f"));
            let mut all = vec![said(fs.mkdir(a, 0o750), of), said(fs.mkdir(&deep, 0o700), of)];
            all.push(said(fs.open(&file, Open::new().write(true).create_new(true)), |_| String::new()));
            if n.is_multiple_of(5) {
                all.push(said(fs.rmdir(&deep), nothing));
            }
            if !n.is_multiple_of(7) {
                all.extend([said(fs.stat(&deep), of), said(fs.unlink(&file), nothing)]);
            }
            all.extend([said(fs.rmdir(&deep), nothing), said(fs.stat(a), of), said(fs.rmdir(a), nothing)]);
            Ok(format!("{all:?}"))
        }
        83..85 => said(fs.stat(dir), of),
        85 => said(fs.sync(), nothing),
        86 => {
            said(fs.rename(dir, if n.is_multiple_of(2) { "x" } else { "y" }, RenameFlags::empty()), nothing)
        }
        87 => {
            said(fs.rename(if n.is_multiple_of(2) { "x" } else { "y" }, dir, RenameFlags::empty()), nothing)
        }
        88 => said(fs.mkdir(dir, 0o755), |_| String::new()),
        89..92 => {
            // Open while its name goes.
            let opened = fs.open(a, Open::new().read(true).write(true).create(true));
            said(opened, |file| {
                let gone = fs.unlink(a).map_err(|e| e.errno());
                let written = file.write_all_at(b"still", 0).map_err(|e| e.errno());
                format!("{gone:?} {written:?} {:?}", file.metadata().map(of).map_err(|e| e.errno()))
            })
        }
        _ => said(fs.read_dir(dir), |entries| {
            let mut all: Vec<String> = entries
                .map(|e| e.map_or_else(|e| e.to_string(), |e| format!("{:?} {}", e.name, of(e.attr))))
                .collect();
            all.sort();
            all.join("\n")
        }),
    }
}

fn compare(seed: u64, calls: u32) -> [u64; 5] {
    let rig = Rig::new(volume(128 << 20));
    let sessions = [rig.client(), rig.client()];
    let model = Client::new(Arc::new(Model::new(system_clock())), Cred::of_process()).blocking();
    let mut random = Random(seed);
    for dir in ["p", "q"] {
        assert_eq!(call(&rig.beside, 88, (dir, dir), 0), call(&model, 88, (dir, dir), 0));
    }
    for n in 0..calls {
        let name = |random: &mut Random| {
            let dir = if random.below(5) == 0 { "q" } else { "p" };
            match random.below(3) {
                0 => format!("{dir}/{}/{}", random.below(60), random.below(4)),
                _ => format!("{dir}/{}", random.below(60)),
            }
        };
        let (a, b) = (name(&mut random), name(&mut random));
        let (kind, size) = (random.below(124), random.below(6000));
        let want = call(&model, kind, (&a, &b), size);
        // With every other seed others come seldom, so that more is done under a lease.
        let who = random.below(if seed.is_multiple_of(2) { 60 } else { 400 });
        let got = match who {
            0 => call(&rig.beside, kind, (&a, &b), size),
            1 => call(&sessions[1], kind, (&a, &b), size),
            _ => call(&sessions[0], kind, (&a, &b), size),
        };
        assert_eq!(got, want, "seed {seed}, call {n}: {kind} {a} {b} by {who}");
    }
    ["post_create", "post_unlink", "post_write", "post_mkdir", "post_rmdir"].map(|kind| rig.count(kind))
}

#[test]
fn the_same_answers_as_without_leases() {
    let seeds: u64 = std::env::var("FREEHOLD_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(24);
    let mut all = [0; 5];
    for seed in 0..seeds {
        all.iter_mut().zip(compare(0x5eed + seed, 6000)).for_each(|(all, posted)| *all += posted);
    }
    let [created, removed, written, dirs, gone] = all;
    println!("posted: {created} creates, {removed} unlinks, {written} writes, {dirs} mkdirs, {gone} rmdirs");
    assert!(created > 40 * seeds && removed > 4 * seeds && written > 25 * seeds, "{all:?}");
    assert!(dirs > 10 * seeds && gone > 3 * seeds, "{all:?}");
}

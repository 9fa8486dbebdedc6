//! Contradictions among structures that are each in order: names, directories, blocks used twice, stale indexes, lost
//! roots and tables; crashes in the middle of a repair; and noise.

#[path = "fsck/lab.rs"]
#[allow(dead_code, reason = "shared with the tests of single bytes")]
mod lab;

use block::Volume;
use format::extent::Extent;
use format::inode::{InodeHeader, encode_compact, fill_block, parse_block};
use format::limits::{BLOCK_SIZE, SEGMENT_SIZE};
use format::{BlockNo, Ino};
use fs::{Cred, FileSystem, OpenFlags, block_on};
use lab::*;
use media::flash::SimFlash;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::sync::Arc;
use zerocopy::FromZeros;

fn slot_of(lab: &Lab, ino: u64) -> u64 {
    lab.slots().into_iter().find(|s| s.0 == ino).unwrap().1
}

/// Changes an inode in its slot, checksum and all.
fn change(
    lab: &Lab,
    image: &SimFlash,
    path: &str,
    f: impl FnOnce(&mut InodeHeader, &mut Vec<u8>, &mut Vec<u8>),
) -> u64 {
    let ino = lab.truth[path].ino;
    let at = slot_of(lab, ino);
    let block = lab.block(at);
    let view = parse_block(&block, Ino(ino)).unwrap().unwrap();
    let (mut h, mut name, mut tail) = (*view.header, view.name.to_vec(), view.tail.to_vec());
    f(&mut h, &mut name, &mut tail);
    let mut compact = Vec::new();
    encode_compact(&h, &name, &tail, view.xattrs, &mut compact);
    let mut block = vec![0; BLOCK_SIZE];
    fill_block(&compact, &mut block);
    image.poke(at * BLOCK_SIZE as u64, &block);
    ino
}

fn told(report: &block::fsck::Report, what: &str) {
    assert!(report.damage().any(|p| p.what.contains(what)), "nobody said {what:?}: {:#?}", report.problems);
}

fn mounted(image: &Arc<SimFlash>) -> Picture {
    let copy = Arc::new(image.crash_image(|_, _| true));
    let volume = Volume::open(copy, options()).unwrap();
    let found = picture(&volume).unwrap();
    volume.close_blocking().unwrap();
    found
}

#[test]
fn two_inodes_of_one_name() {
    let lab = Lab::clean();
    let image = lab.clone_image();
    let loser = change(&lab, &image, "/a/inline", |_, name, _| *name = b"large".to_vec());
    let other = lab.truth["/a/large"].ino;
    let report = repairs(&image, &lab.truth, "same name");
    told(&report, "has the same name");
    let found = mounted(&image);
    let names: Vec<u64> = found.values().map(|s| s.ino).filter(|i| [loser, other].contains(i)).collect();
    assert_eq!(names.len(), 2, "both are there");
    assert!(found.keys().any(|p| p.starts_with("/lost+found/#")));
}

#[test]
fn parent_is_gone_or_a_file() {
    let lab = Lab::clean();
    for parent in [400, lab.truth["/a/large"].ino] {
        let image = lab.clone_image();
        let ino = change(&lab, &image, "/b/sub/small", |h, _, _| h.parent = parent.into());
        told(&repairs(&image, &lab.truth, "parent"), "is not there");
        let found = mounted(&image);
        assert_eq!(found[&format!("/lost+found/#{ino}")].content, lab.truth["/b/sub/small"].content);
    }
}

#[test]
fn directories_in_a_ring() {
    let lab = Lab::clean();
    let image = lab.clone_image();
    let deep = lab.truth["/a/sub/deep"].ino;
    change(&lab, &image, "/a/sub", |h, _, _| h.parent = deep.into());
    told(&repairs(&image, &lab.truth, "ring"), "ring");
    let found = mounted(&image);
    assert_eq!(found.values().filter(|s| s.ino == lab.truth["/a/sub/small"].ino).count(), 1);
}

#[test]
fn lost_directory() {
    let lab = Lab::clean();
    let image = lab.flipped(slot_of(&lab, lab.truth["/a/sub"].ino) * BLOCK_SIZE as u64 + 50, 1);
    repairs(&image, &lab.truth, "lost directory");
    let found = mounted(&image);
    for path in ["/a/sub/small", "/a/sub/scattered", "/a/sub/deep/medium"] {
        let seen = &lab.truth[path];
        let other = found.values().find(|s| s.ino == seen.ino).unwrap();
        assert!(other.content == seen.content, "{path}");
    }
}

/// More inodes lose their directory than one pass commits, and the slot that /lost+found gets comes behind all of theirs.
#[test]
fn more_lost_files_than_the_log_takes_at_once() {
    let image = made(|volume| {
        let (root, rw) = (Cred::root(), OpenFlags::READ | OpenFlags::WRITE);
        block_on(async {
            let before = volume.mkdir(&root, fs::Ino::ROOT, b"before", 0o755).await.unwrap().ino;
            for i in 0..1500 {
                let name = format!("file {i}");
                let (_, h) = volume.create(&root, before, name.as_bytes(), 0o644, rw).await.unwrap();
                volume.write(h, 0, &pattern(3000, i)).await.unwrap();
                volume.release(h).await.unwrap();
            }
            let dir = volume.mkdir(&root, fs::Ino::ROOT, b"dir", 0o755).await.unwrap().ino;
            for i in 0..1500 {
                let name = format!("file {i}");
                let flags = fs::RenameFlags::empty();
                volume.rename(&root, before, name.as_bytes(), dir, name.as_bytes(), flags).await.unwrap();
                if i % 300 == 0 {
                    // The log is small.
                    volume.checkpoint().await.unwrap();
                }
            }
        });
    });
    let lab = Lab { truth: mounted(&image), image: image.crash_image(|_, _| true) };
    let image = lab.flipped(slot_of(&lab, lab.truth["/dir"].ino) * BLOCK_SIZE as u64 + 50, 1);
    repairs(&image, &lab.truth, "many");
    let found = mounted(&image);
    assert_eq!(found.len(), lab.truth.len());
    for (path, seen) in lab.truth.iter().filter(|(path, _)| path.starts_with("/dir/")) {
        let other = found.get(&format!("/lost+found/#{}", seen.ino));
        assert!(other.is_some_and(|o| o.content == seen.content), "{path}");
    }
}

/// More damage than a report lists, and more than one pass mends: all of it is mended, and counted once.
#[test]
fn more_problems_than_are_listed() {
    const BAD: usize = block::fsck::PROBLEMS_MAX + 50;
    let image = made(|volume| {
        block_on(async {
            for i in 0..BAD + 20 {
                let name = format!("{i}");
                let flags = OpenFlags::WRITE;
                let made = volume.create(&Cred::root(), fs::Ino::ROOT, name.as_bytes(), 0o644, flags).await;
                volume.release(made.unwrap().1).await.unwrap();
            }
        });
    });
    let lab = Lab { image: image.crash_image(|_, _| true), truth: Picture::new() };
    for (_, slot) in lab.slots().into_iter().filter(|(ino, _)| *ino > 1).take(BAD) {
        image.poke(slot * BLOCK_SIZE as u64 + 50, b"??");
    }
    for repair in [false, true] {
        let report = fsck(&image, repair);
        assert_eq!(report.problems.len(), block::fsck::PROBLEMS_MAX);
        // The index checkpoint contradicts what is left, in up to a hundred places.
        assert!((50..=150).contains(&report.omitted), "{}", report.omitted);
        assert_eq!(report.is_clean(), repair, "{:?}", report.counts);
    }
    assert_eq!(fsck(&image, false).damage().count(), 0);
    assert_eq!(mounted(&image).len(), 20);
}

/// Nothing has its place in a directory that was removed: no directory, whichever of the two is looked at first, and no file.
#[test]
fn names_in_a_directory_without_a_name() {
    let lab = Lab::clean();
    let image = lab.clone_image();
    // The inodes are to be read, as after a loss of power.
    for (segment, _) in lab.checkpoint().0.index_runs {
        image.poke(segment.first_block().byte(), b"??");
    }
    let top = change(&lab, &image, "/a/sub", |h, name, _| {
        (h.parent, h.cookie) = (0.into(), 0.into());
        name.clear();
    });
    let deep = &lab.truth["/a/sub/deep"];
    assert!(top < deep.ino);
    let copy = Arc::new(image.crash_image(|_, _| true));
    let refused = Volume::open(copy, options()).map(drop).unwrap_err();
    assert!(refused.to_string().contains("has no name"), "{refused}");
    let report = fsck(&image, false);
    for path in ["/a/sub/deep", "/a/sub/small"] {
        let ino = Some(lab.truth[path].ino);
        let told = report.damage().filter(|p| p.inode == ino && p.what.contains("has no name")).count();
        assert_eq!(told, 1, "{path}: {:#?}", report.problems);
    }
    assert!(fsck(&image, true).is_clean());
    assert_eq!(fsck(&image, false).damage().count(), 0);
    let found = mounted(&image);
    assert_eq!(found.values().filter(|s| s.ino == top).count(), 0);
    for path in ["small", "scattered", "deep/medium"] {
        let seen = &lab.truth[&format!("/a/sub/{path}")];
        let other = found.values().find(|s| s.ino == seen.ino).unwrap();
        assert!(other.content == seen.content, "{path}");
    }
}

/// The last position that there may be is there twice: the other one goes where there is room.
#[test]
fn no_position_behind_the_last() {
    let lab = Lab::clean();
    let image = lab.clone_image();
    for path in ["/a/large", "/a/inline"] {
        change(&lab, &image, path, |h, _, _| h.cookie = ((1u64 << 62) - 1).into());
    }
    told(&repairs(&image, &lab.truth, "positions"), "position");
    assert_eq!(mounted(&image), lab.truth);
}

/// In attributes outside of the inode: those that are good are written anew.
#[test]
fn an_attribute_stands_twice() {
    let lab = Lab::clean();
    let image = lab.clone_image();
    let path = "/a/sub/attributes";
    let both = [pattern(8000, 1), b"later".to_vec()].map(|value| (b"user.large"[..].into(), value.into()));
    let outside = format::xattr::encode_outside(Ino(lab.truth[path].ino), &both);
    change(&lab, &image, path, |h, _, _| {
        image.poke(BlockNo(h.xattr_block.get()).byte(), &outside);
        (h.xattr_bytes, h.xattr_crc) = ((outside.len() as u32).into(), format::crc32c(&outside).into());
    });
    told(&repairs(&image, &lab.truth, "attributes"), "a name stands twice");
    let found = &mounted(&image)[path];
    assert_eq!(found.xattrs.as_ref().unwrap()[&b"user.large"[..]], pattern(8000, 1));
    assert_eq!(found.content, lab.truth[path].content);
}

/// A mount frees an inode without a name. Where additional names lead to it one of them becomes its own.
#[test]
fn additional_names_of_an_inode_without_a_name() {
    let lab = Lab::clean();
    let image = lab.clone_image();
    let ino = change(&lab, &image, "/a/sub/attributes", |h, name, _| {
        (h.parent, h.cookie) = (0.into(), 0.into());
        name.clear();
    });
    told(&repairs(&image, &lab.truth, "without a name"), "has no name of its own");
    let found = mounted(&image);
    let content = &lab.truth["/a/sub/attributes"].content;
    for path in ["/a/third name", "/a/sub/deep/another name"] {
        assert_eq!((found[path].ino, &found[path].content, found[path].nlink), (ino, content, 2), "{path}");
    }
}

#[test]
fn lost_root() {
    for lab in [Lab::clean(), Lab::crashed()] {
        let image = lab.flipped(slot_of(&lab, 1) * BLOCK_SIZE as u64 + 80, 1);
        if fsck(&image, false).is_clean() {
            // The log has the root: its slot does not count.
            assert!(mounts_right(&image, &lab.truth, "root in the log"));
            continue;
        }
        repairs(&image, &lab.truth, "lost root");
        let found = mounted(&image);
        assert_eq!(found.keys().collect::<Vec<_>>(), lab.truth.keys().collect::<Vec<_>>());
    }
}

#[test]
fn lost_file_with_additional_names() {
    let lab = Lab::clean();
    let ino = lab.truth["/a/sub/attributes"].ino;
    let image = lab.clone_image();
    image.poke(slot_of(&lab, ino) * BLOCK_SIZE as u64, &[0; BLOCK_SIZE]);
    told(&repairs(&image, &lab.truth, "lost target"), "inode that is not there");
    assert_eq!(mounted(&image).len(), lab.truth.len() - 3);
}

#[test]
fn block_used_twice() {
    let lab = Lab::clean();
    let victim = lab.block(slot_of(&lab, lab.truth["/a/sub/small"].ino));
    let theirs = parse_block(&victim, Ino(lab.truth["/a/sub/small"].ino)).unwrap().unwrap().extents()[0];
    let node = lab.outside().0[0];
    for (stolen, what) in
        [(theirs.block.get(), "data"), (node, "extent node"), (5, "super segment"), (600, "log")]
    {
        let image = lab.clone_image();
        change(&lab, &image, "/b/sub/small", |_, _, tail| {
            let first = Extent::new(0, BlockNo(stolen), 1, false);
            tail[..24].copy_from_slice(zerocopy::IntoBytes::as_bytes(&first));
            tail.truncate(24);
        });
        assert!(!fsck(&image, false).is_clean(), "{what}");
        told(&repairs(&image, &lab.truth, what), "used twice");
    }
    let image = lab.clone_image();
    change(&lab, &image, "/b/sub/small", |_, _, tail| {
        let far = Extent::new(0, BlockNo(1 << 30), 2, false);
        tail[..24].copy_from_slice(zerocopy::IntoBytes::as_bytes(&far));
        tail.truncate(24);
    });
    told(&repairs(&image, &lab.truth, "outside"), "outside of the volume");
}

#[test]
fn wrong_fields() {
    let lab = Lab::clean();
    type Edit = fn(&mut InodeHeader);
    let edits: [(&str, &str, Edit); 7] = [
        ("/a/inline", "type", |h| h.mode = 0o644.into()),
        ("/a/large", "number of blocks", |h| h.blocks = 3.into()),
        ("/a/large", "epoch", |h| h.epoch = 1_000_000.into()),
        ("/a/large", "position", |h| h.cookie = u64::MAX.into()),
        ("/a/pipe", "no file", |h| h.size = 5.into()),
        ("/a/short link", "cut short", |h| h.size = 20.into()),
        ("/a/inline", "device number", |h| h.rdev = 5.into()),
    ];
    for (path, what, edit) in edits {
        let image = lab.clone_image();
        change(&lab, &image, path, |h, _, _| edit(h));
        told(&fsck(&image, false), what);
        repairs(&image, &lab.truth, what);
    }
}

#[test]
fn stale_index() {
    let lab = Lab::clean();
    let image = lab.clone_image();
    change(&lab, &image, "/a/large", |h, _, _| h.uid = 77.into());
    told(&fsck(&image, false), "is not as it stands in its slot");
    assert!(fsck(&image, true).is_clean());
    assert_eq!(fsck(&image, false).damage().count(), 0);
}

#[test]
fn table_is_lost() {
    for lab in [Lab::clean(), Lab::crashed()] {
        let image = lab.clone_image();
        for at in format::segtable::homes(0) {
            image.poke(at.byte() + 100, b"garbage");
        }
        let copy = Arc::new(image.crash_image(|_, _| true));
        assert!(Volume::open(copy, options()).is_err());
        told(&repairs(&image, &lab.truth, "table"), "rebuilt");
        assert_eq!(mounted(&image), lab.truth);
    }
}

/// With the table the segment of the root is lost: the root has no place to be made anew in.
#[test]
fn root_without_a_segment() {
    let lab = Lab::clean();
    let image = lab.clone_image();
    image.poke(lab.table()[0].unwrap().first_block().byte(), &vec![0; SEGMENT_SIZE]);
    for at in format::segtable::homes(0) {
        image.poke(at.byte() + 100, b"garbage");
    }
    let report = fsck(&image, true);
    assert!(report.is_clean(), "{:#?}", report.problems);
    let again = fsck(&image, false);
    assert_eq!(again.damage().count(), 0, "{:#?}", again.problems);
    assert!(mounted(&image).is_empty());
}

/// A file looks like a segment of more inodes than the volume has in its first one. The checkpoint says which of the two it is, or, when another
/// segment is lost, whose contents the one is.
#[test]
fn table_is_lost_and_a_file_looks_like_inodes() {
    let root = Cred::root();
    let fill = |volume: &Volume, count: usize| {
        block_on(async {
            for i in 0..count {
                volume.mkdir(&root, fs::Ino::ROOT, format!("{i}").as_bytes(), 0o755).await.unwrap();
            }
            volume.sync().await.unwrap();
        });
    };
    let other = made(|volume| fill(volume, 600));
    let other = Lab { image: other.crash_image(|_, _| true), truth: Picture::new() };
    let mut inodes = vec![0; SEGMENT_SIZE];
    other.image.peek(other.table()[0].unwrap().first_block().byte(), &mut inodes);
    let mut first = Vec::new();
    encode_compact(&InodeHeader::new_zeroed(), b"", b"", b"", &mut first);
    fill_block(&first, &mut inodes[..BLOCK_SIZE]);
    let image = made(|volume| {
        block_on(async {
            let made = volume.create(&root, fs::Ino::ROOT, b"copy", 0o644, OpenFlags::WRITE).await;
            let (_, h) = made.unwrap();
            let allocate = fs::Fallocate::Allocate { keep_size: true };
            volume.fallocate(h, allocate, 0, SEGMENT_SIZE as u64).await.unwrap();
            volume.write(h, 0, &inodes).await.unwrap();
            volume.release(h).await.unwrap();
        });
        fill(volume, 700);
    });
    let lab = Lab { truth: mounted(&image), image: image.crash_image(|_, _| true) };
    let ino = lab.truth["/copy"].ino;
    let block = lab.block(slot_of(&lab, ino));
    let place = parse_block(&block, Ino(ino)).unwrap().unwrap().extents()[0];
    assert_eq!((place.block.get() % 512, place.count.get()), (0, 512), "the file does not fill a segment");
    for at in format::segtable::homes(0) {
        image.poke(at.byte() + 100, b"garbage");
    }
    let without = Arc::new(image.crash_image(|_, _| true));
    without.poke(lab.table()[1].unwrap().first_block().byte(), &vec![0; SEGMENT_SIZE]);
    told(&repairs(&image, &lab.truth, "table"), "rebuilt");
    assert_eq!(mounted(&image), lab.truth);
    assert!(fsck(&without, true).is_clean());
    let rest: Picture = lab.truth.into_iter().filter(|(_, seen)| seen.ino < 512).collect();
    assert_eq!(mounted(&without), rest);
}

/// A repair that is cut off anywhere by a loss of power is repeated, and ends as it would have.
#[test]
fn crashes_in_a_repair() {
    let lab = Lab::crashed();
    let image = lab.clone_image();
    let sub = slot_of(&lab, lab.truth["/a/sub"].ino);
    image.poke(sub * BLOCK_SIZE as u64 + 50, b"??");
    image.poke(2 * BLOCK_SIZE as u64, b"??");
    image.poke(BLOCK_SIZE as u64, b"??");
    image.poke(lab.outside().0[0] * BLOCK_SIZE as u64 + 99, b"??");
    image.set_trace(true);
    repairs(&Arc::new(image.crash_image(|_, _| true)), &lab.truth, "without a crash");
    let first = fsck(&image, true);
    assert!(first.is_clean());
    let expected: Vec<String> = mounted(&image).into_keys().collect();
    let trace = image.take_trace().unwrap();
    let mut rng = SmallRng::seed_from_u64(5);
    let mut cursor = trace.cursor();
    let mut crashes = 0;
    loop {
        for kept in 0..3 {
            let state =
                Arc::new(cursor.state().crash_image(|_, _| kept == 1 || kept == 2 && rng.random_bool(0.5)));
            let what = format!("crash at event {}", cursor.index());
            let report = fsck(&state, true);
            assert!(report.is_clean(), "{what}: {:#?}", report.problems);
            assert_eq!(fsck(&state, false).damage().count(), 0, "{what}");
            assert_eq!(mounted(&state).into_keys().collect::<Vec<_>>(), expected, "{what}");
            crashes += 1;
        }
        if cursor.step().is_none() {
            break;
        }
    }
    assert!(crashes > 50, "{crashes}");
}

/// Any bytes: no panic, no endless loop. What can be repaired can be mounted.
#[test]
fn noise() {
    let seed: u64 = std::env::var("FSCK_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    println!("FSCK_SEED={seed}");
    let mut rng = SmallRng::seed_from_u64(seed);
    let (labs, mut repaired) = ([Lab::clean(), Lab::crashed()], 0);
    for round in 0..60 {
        let lab = &labs[round % 2];
        let image = lab.clone_image();
        let slots = lab.slots();
        for _ in 0..rng.random_range(1..40) {
            let block = match rng.random_range(0..4) {
                0 => rng.random_range(2..24),
                1 => rng.random_range(512..700),
                _ => slots[rng.random_range(0..slots.len())].1,
            };
            let at = rng.random_range(0..BLOCK_SIZE - 8);
            let mut bytes = [0u8; 8];
            rng.fill(&mut bytes);
            image.poke(block * BLOCK_SIZE as u64 + at as u64, &bytes[..rng.random_range(1..8)]);
        }
        let report = fsck(&image, true);
        if report.is_clean() {
            assert_eq!(fsck(&image, false).damage().count(), 0, "round {round}");
            mounted(&image);
            repaired += 1;
        }
    }
    println!("{repaired} of 60 repaired");
    assert!(repaired > 40, "only {repaired} of 60 could be repaired");
}

/// Inodes whose every field was changed, with good checksums: what no parser refuses must still not do harm.
#[test]
fn well_formed_noise() {
    let mut rng = SmallRng::seed_from_u64(3);
    let lab = Lab::clean();
    let paths: Vec<&String> = lab.truth.keys().collect();
    for round in 0..150 {
        let image = lab.clone_image();
        for _ in 0..rng.random_range(1..4) {
            let path = paths[rng.random_range(0..paths.len())];
            let ino = lab.truth[path].ino;
            let at = slot_of(&lab, ino);
            let mut block = lab.block(at);
            let place = rng.random_range(16..800);
            block[place] = rng.random();
            let crc = format::checksum::crc32c_without_field(&block, 4);
            block[4..8].copy_from_slice(&crc.to_le_bytes());
            image.poke(at * BLOCK_SIZE as u64, &block);
        }
        let report = fsck(&image, true);
        assert!(report.is_clean(), "round {round}: {:#?}", report.problems);
        assert_eq!(fsck(&image, false).damage().count(), 0, "round {round}");
        mounted(&image);
    }
}

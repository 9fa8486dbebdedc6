//! Images that somebody has made to hurt: every checksum is right, and what stands there leads nowhere.
//!
//! After a clean stop a mount believes the index checkpoint, and reads what a file points to when it is needed. Verifies that this is
//! then found out before anything is done with it: the call says that the volume is damaged, and the volume goes on.

#[path = "fsck/lab.rs"]
#[allow(dead_code, reason = "shared with the tests of fsck")]
mod lab;

use block::Volume;
use format::checkpoint::SegmentRun;
use format::extent::{Extent, Node, NodeEntry, encode_inner, encode_leaf};
use format::index::{PIECE_BYTES, PieceHeader, PieceKind};
use format::inode::{InodeHeader, encode_compact, fill_block, parse_block};
use format::limits::{BLOCK_SIZE, SEGMENT_SIZE};
use format::{BlockNo, Ino, SegNo};
use fs::{Cred, Error, FileSystem, OpenFlags, block_on};
use lab::*;
use media::flash::SimFlash;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// What is changed of an inode: its header and its tail.
type Change<'f> = &'f dyn Fn(&mut InodeHeader, &mut Vec<u8>);

/// Changes an inode in its slot, checksum and all.
fn change(lab: &Lab, image: &SimFlash, path: &str, f: Change<'_>) {
    change_in(lab, image, lab.truth[path].ino, f);
}

fn change_in(lab: &Lab, image: &SimFlash, ino: u64, f: Change<'_>) {
    let at = lab.slots().into_iter().find(|slot| slot.0 == ino).unwrap().1;
    let block = lab.block(at);
    let view = parse_block(&block, Ino(ino)).unwrap().unwrap();
    let (mut h, mut tail) = (*view.header, view.tail.to_vec());
    f(&mut h, &mut tail);
    let name = if h.parent.get() == 0 { b"" } else { view.name };
    let mut compact = Vec::new();
    encode_compact(&h, name, &tail, view.xattrs, &mut compact);
    let mut block = vec![0; BLOCK_SIZE];
    fill_block(&compact, &mut block);
    image.poke(at * BLOCK_SIZE as u64, &block);
}

/// Another place and length for the first extent.
fn points_to(block: u64, count: u32) -> impl Fn(&mut InodeHeader, &mut Vec<u8>) {
    move |_, tail| {
        let first = Extent::new(0, BlockNo(block), count, false);
        tail[..size_of::<Extent>()].copy_from_slice(first.as_bytes());
    }
}

/// Every use of the file says that the volume is damaged; the volume is there for others.
fn is_refused(image: Arc<SimFlash>, path: &str, what: &str) {
    let volume = Volume::open(image, options()).unwrap_or_else(|e| panic!("{what}: {e}"));
    let root = Cred::root();
    let damaged = |result: fs::Result<()>, call: &str| {
        assert!(matches!(result, Err(Error::Corrupt(_))), "{what}: {call} gives {result:?}");
    };
    block_on(async {
        let (dir, name) = path[1..].rsplit_once('/').unwrap();
        let dir = volume.walk(&root, Ino::ROOT, dir.as_bytes()).await.unwrap().ino;
        let file = volume.lookup(&root, dir, name.as_bytes()).await.unwrap().ino;
        let h = volume.open(&root, file, OpenFlags::READ | OpenFlags::WRITE).await.unwrap();
        damaged(volume.read(h, 0, &mut [0; 9000]).await.map(|_| ()), "read");
        damaged(volume.write(h, 0, &[1; 9000]).await.map(|_| ()), "write");
        volume.release(h).await.unwrap();
        damaged(volume.getxattr(&root, file, b"user.large").await.map(|_| ()), "getxattr");
        damaged(volume.unlink(&root, dir, name.as_bytes()).await, "unlink");
        let (_, h) = volume.create(&root, dir, b"another", 0o600, OpenFlags::WRITE).await.unwrap();
        assert_eq!(volume.write(h, 0, &[1; 9000]).await, Ok(9000), "{what}");
        volume.release(h).await.unwrap();
        volume.sync().await.unwrap();
    });
    volume.close_blocking().unwrap();
}

#[test]
fn extents() {
    let lab = Lab::clean();
    let total = BYTES / BLOCK_SIZE as u64;
    for (what, block, count) in [
        ("the superblock", 0, 2),
        ("the end of the super segment", 511, 2),
        ("free blocks", total - 9, 2),
        ("the end of the volume", total - 1, 2),
        ("beyond the volume", total + 5000, 2),
        ("far beyond the volume", (1 << 40) + 7, 2),
    ] {
        let image = lab.clone_image();
        change(&lab, &image, "/a/sub/small", &points_to(block, count));
        is_refused(image, "/a/sub/small", what);
    }
    let slots = lab.slots();
    let block = lab.block(slots.iter().find(|s| s.0 == lab.truth["/a/sub/small"].ino).unwrap().1);
    let place = parse_block(&block, Ino(lab.truth["/a/sub/small"].ino)).unwrap().unwrap().extents()[0];
    for count in [1, 3] {
        let image = lab.clone_image();
        change(&lab, &image, "/a/sub/small", &points_to(place.block.get(), count));
        is_refused(image, "/a/sub/small", "another number of blocks");
    }
}

#[test]
fn attributes() {
    let lab = Lab::clean();
    let total = BYTES / BLOCK_SIZE as u64;
    for block in [0, 3, total - 9, total + 5000] {
        let image = lab.clone_image();
        // Without any place there are none.
        if block > 0 {
            change(&lab, &image, "/a/sub/attributes", &|h, _| h.xattr_block = block.into());
            refuses_attributes(image, &format!("attributes at {block}"));
        }
    }
    let image = lab.clone_image();
    change(&lab, &image, "/a/sub/attributes", &|h, _| h.xattr_bytes = 0.into());
    refuses_attributes(image, "attributes of no bytes");
}

fn refuses_attributes(image: Arc<SimFlash>, what: &str) {
    let volume = Volume::open(image, options()).unwrap();
    let root = Cred::root();
    block_on(async {
        let file = volume.walk(&root, Ino::ROOT, b"a/sub/attributes").await.unwrap().ino;
        let got = volume.getxattr(&root, file, b"user.large").await;
        assert!(matches!(got, Err(Error::Corrupt(_))), "{what}: {got:?}");
    });
    volume.close_blocking().unwrap();
}

/// The leaves of a file's tree, with the entries that lead to them.
fn leaves(lab: &Lab, path: &str) -> Vec<(NodeEntry, Vec<Extent>)> {
    let ino = lab.truth[path].ino;
    let at = lab.slots().into_iter().find(|slot| slot.0 == ino).unwrap().1;
    let block = lab.block(at);
    let view = parse_block(&block, Ino(ino)).unwrap().unwrap();
    let leaf = |e: &NodeEntry| match format::extent::parse(&lab.block(e.block.get()), Ino(ino), 0, e) {
        Ok(Node::Leaf(extents)) => (*e, extents),
        other => panic!("{other:?}"),
    };
    view.tree_root().iter().map(leaf).collect()
}

/// Puts a node where its entry says, and notes it there.
fn put(image: &SimFlash, entry: &mut NodeEntry, (bytes, crc): (Box<[u8]>, u32), count: usize) {
    image.poke(entry.block.get() * BLOCK_SIZE as u64, &bytes);
    (entry.node_crc, entry.count) = (crc.into(), (count as u32).into());
}

const SCATTERED: &str = "/a/sub/scattered";

#[test]
fn leaves_that_overlap() {
    let lab = Lab::clean();
    let image = lab.clone_image();
    let mut all = leaves(&lab, SCATTERED);
    assert!(all.len() > 1);
    let (entry, extents) = &mut all[0];
    // The last extent reaches into the next leaf; as many blocks as before.
    extents.drain(1..3);
    let last = extents.last_mut().unwrap();
    last.block = (last.block.get() - 2).into();
    last.count = (last.count.get() + 2).into();
    let node = encode_leaf(Ino(lab.truth[SCATTERED].ino), 1, extents);
    put(&image, entry, node, extents.len());
    change(&lab, &image, SCATTERED, &|_, tail| {
        *tail = all.iter().flat_map(|(entry, _)| entry.as_bytes().to_vec()).collect();
    });
    is_refused(image, SCATTERED, "leaves that overlap");
}

/// Few nodes that are led to again and again make a tree without end.
#[test]
fn nodes_that_are_shared() {
    let lab = Lab::clean();
    let image = lab.clone_image();
    let ino = Ino(lab.truth[SCATTERED].ino);
    let all = leaves(&lab, SCATTERED);
    let entries: Vec<NodeEntry> = all.iter().map(|(entry, _)| *entry).collect();
    // Data blocks of the file become nodes above its leaves: both lead to the last one.
    let mut above = [entries[0], entries[1]];
    for (i, entry) in above.iter_mut().enumerate() {
        entry.block = all[0].1[i].block;
        let below = &entries[i..];
        put(&image, entry, encode_inner(ino, 1, 1, below), below.len());
    }
    change(&lab, &image, SCATTERED, &|h, tail| {
        h.tree_levels = 2;
        *tail = above.as_bytes().to_vec();
    });
    is_refused(image, SCATTERED, "shared nodes");
}

/// Without its index checkpoint the volume is made of what stands in the slots.
fn forget_index(lab: &Lab, image: &SimFlash) {
    for (first, _) in lab.checkpoint().0.index_runs {
        image.poke(first.first_block().byte(), &[0; 64]);
    }
}

/// Names at places that another has, or none can have, and what leads to numbers that no inode has, though their low halves are those of some: the volume is not
/// mounted before it was repaired, and then holds all that it held.
#[test]
fn names_that_lead_nowhere() {
    let lab = Lab::clean();
    let header = |ino: u64| {
        let at = lab.slots().into_iter().find(|slot| slot.0 == ino).unwrap().1;
        *parse_block(&lab.block(at), Ino(ino)).unwrap().unwrap().header
    };
    let file = lab.truth["/a/inline"].ino;
    let other = header(lab.truth["/a/empty"].ino).cookie;
    let link = lab.slots().into_iter().map(|slot| slot.0).find(|&ino| header(ino).target.get() != 0).unwrap();
    let changes: [(&str, u64, Change<'_>); 6] = [
        ("the last place", file, &|h, _| h.cookie = u64::MAX.into()),
        ("a place too far", file, &|h, _| h.cookie = (1 << 62).into()),
        ("the place of ..", file, &|h, _| h.cookie = 2.into()),
        ("a place that is taken", file, &|h, _| h.cookie = other),
        ("a parent beyond all", file, &|h, _| h.parent = (1 << 32).into()),
        ("a target beyond all", link, &|h, _| h.target = (h.target.get() + (1 << 32)).into()),
    ];
    for (what, ino, change) in changes {
        let image = lab.clone_image();
        change_in(&lab, &image, ino, change);
        forget_index(&lab, &image);
        let opened = Volume::open(image.clone(), options()).map(drop);
        assert!(matches!(opened, Err(Error::Corrupt(_))), "{what}: {opened:?}");
        fsck(&image, true);
        let volume = Volume::open(image, options()).unwrap_or_else(|e| panic!("{what}: {e}"));
        let found = picture(&volume).unwrap();
        assert!(ino == link || found.values().any(|seen| seen.ino == file), "{what}: the file is gone");
        volume.close_blocking().unwrap();
    }
}

/// A file has lost its name, and others lead to it: it is not freed.
#[test]
fn a_nameless_file_with_additional_names() {
    let lab = Lab::clean();
    let image = lab.clone_image();
    change(&lab, &image, "/a/sub/attributes", &|h, _| h.parent = 0.into());
    forget_index(&lab, &image);
    let volume = Volume::open(image, options()).unwrap();
    block_on(volume.sync()).unwrap();
    block_on(volume.checkpoint()).unwrap();
    let found = picture(&volume).unwrap();
    for path in ["/a/third name", "/a/sub/deep/another name"] {
        let content = found.get(path).map(|seen| seen.content.clone());
        assert_eq!(content, Some(Ok(b"with attributes".to_vec())), "{path}");
    }
    volume.close_blocking().unwrap();
}

#[test]
fn a_symlink_without_end() {
    let lab = Lab::clean();
    for path in ["/a/short link", "/a/long link"] {
        for size in [4096, 1 << 40, 1 << 60] {
            let image = lab.clone_image();
            change(&lab, &image, path, &|h, _| h.size = size.into());
            forget_index(&lab, &image);
            let volume = Volume::open(image, options()).unwrap();
            let root = Cred::root();
            let link = block_on(volume.walk(&root, Ino::ROOT, &path.as_bytes()[1..])).unwrap().ino;
            let target = block_on(volume.readlink(&root, link));
            assert!(matches!(target, Err(Error::Corrupt(_))), "{path} of {size} bytes: {target:?}");
            volume.close_blocking().unwrap();
        }
    }
}

/// An index checkpoint by which the segments of the log, or of inodes, are free.
#[test]
fn segments_that_are_given_away() {
    let lab = Lab::clean();
    let (cp, _) = lab.checkpoint();
    let free = |image: &Arc<SimFlash>| {
        let volume = Volume::open(Arc::new(image.crash_image(|_, _| true)), options()).unwrap();
        block_on(volume.statfs()).unwrap().blocks_free
    };
    let honest = free(&lab.clone_image());
    let keeps: [(&str, SegNo); 2] = [("log", cp.log_segments[0]), ("inodes", lab.table()[0].unwrap())];
    for (what, gone) in keeps {
        let image = lab.clone_image();
        let segments = cp.index_runs.iter().flat_map(|&(first, count)| first.0..first.0 + count);
        let mut changed = false;
        for (number, at) in segments.enumerate() {
            let at = SegNo(at).first_block().byte();
            let mut piece = vec![0; SEGMENT_SIZE];
            image.peek(at, &mut piece);
            let (kind, _, bytes) =
                format::index::parse(&piece, &cp.uuid, cp.sequence, number as u32).unwrap();
            if kind != PieceKind::Full {
                continue;
            }
            let runs = <[SegmentRun]>::ref_from_bytes(bytes).unwrap();
            let one = |seg: u32| SegmentRun { first: seg.into(), count: 1.into() };
            let all = runs.iter().flat_map(|r| r.first.get()..r.first.get() + r.count.get());
            let rest: Vec<SegmentRun> = all.clone().filter(|&seg| seg != gone.0).map(one).collect();
            changed |= rest.len() < all.count();
            let bytes = rest.as_bytes();
            assert!(bytes.len() <= PIECE_BYTES);
            piece[size_of::<PieceHeader>()..][..bytes.len()].copy_from_slice(bytes);
            let (entries, used) = (rest.len() as u32, bytes.len());
            format::index::seal(&cp.uuid, cp.sequence, number as u32, kind, entries, used, &mut piece);
            image.poke(at, &piece);
        }
        assert!(changed, "{what}");
        assert_eq!(free(&image), honest, "{what}: given away");
    }
}

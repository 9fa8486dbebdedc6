//! A volume with every structure of the format on it, a picture of its contents, and places to plant damage.

use block::fsck::{FsckOptions, Report};
use block::{MkfsOptions, OpenOptions, Volume};
use format::checkpoint::{CHECKPOINTS, Checkpoint};
use format::inode::{SlotKind, TailKind, parse_block};
use format::limits::{BLOCK_SIZE, SEGMENT_BLOCKS};
use format::superblock::Superblock;
use format::{Ino, SegNo};
use fs::{Cred, Fallocate, FileSystem, FileType, OpenFlags, SetAttr, SetTime, Time, XattrFlags, block_on};
use media::Media;
use media::flash::{Config, SimFlash};
use std::collections::BTreeMap;
use std::sync::Arc;

pub const BYTES: u64 = 64 << 20;
const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
const ROOT: Ino = Ino::ROOT;

pub fn options() -> OpenOptions {
    OpenOptions { cache_bytes: 4 << 20, dirty_bytes_max: 1 << 20, ..OpenOptions::default() }
}

pub fn pattern(len: usize, seed: u32) -> Vec<u8> {
    (0..len).map(|i| ((i as u32).wrapping_add(seed << 9).wrapping_mul(2654435761) >> 16) as u8).collect()
}

/// What one name leads to; the number is that on the medium.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub ino: u64,
    pub mode: u32,
    pub size: u64,
    pub nlink: u32,
    pub rdev: u64,
    pub owner: (u32, u32),
    /// Last change of the data, of anything, and when it was made.
    pub times: [Time; 3],
    pub content: Result<Vec<u8>, String>,
    pub xattrs: Result<BTreeMap<Vec<u8>, Vec<u8>>, String>,
}

pub type Picture = BTreeMap<String, Seen>;

/// Everything that can be reached from the root, errors included.
pub fn picture(volume: &Volume) -> fs::Result<Picture> {
    block_on(async {
        let root = Cred::root();
        let mut out = Picture::new();
        let mut todo = vec![(String::new(), ROOT)];
        while let Some((path, dir)) = todo.pop() {
            let handle = volume.opendir(&root, dir).await?;
            let mut entries = Vec::new();
            let mut sink = |e: fs::DirEntry<'_>| {
                entries.push((String::from_utf8_lossy(e.name).into_owned(), e.attr));
                true
            };
            volume.readdir(handle, 0, &mut sink).await?;
            volume.release(handle).await?;
            for (name, attr) in entries.into_iter().filter(|(n, _)| n != "." && n != "..") {
                let path = format!("{path}/{name}");
                let content = match attr.kind {
                    FileType::Regular => read(volume, attr.ino, attr.size).await,
                    FileType::Symlink => volume.readlink(&root, attr.ino).await,
                    _ => Ok(Vec::new()),
                };
                let mut xattrs = Ok(BTreeMap::new());
                match volume.listxattr(&root, attr.ino).await {
                    Err(e) => xattrs = Err(e.to_string()),
                    Ok(names) => {
                        for name in names {
                            let value = volume.getxattr(&root, attr.ino, &name).await?;
                            xattrs.as_mut().expect("good so far").insert(name, value);
                        }
                    }
                }
                if attr.kind == FileType::Directory {
                    todo.push((path.clone(), attr.ino));
                }
                let seen = Seen {
                    ino: attr.ino.on_medium().0,
                    mode: attr.mode(),
                    size: attr.size,
                    nlink: attr.nlink,
                    rdev: attr.rdev,
                    owner: (attr.uid, attr.gid),
                    times: [attr.mtime, attr.ctime, attr.btime],
                    content: content.map_err(|e| e.to_string()),
                    xattrs,
                };
                assert!(out.insert(path.clone(), seen).is_none(), "{path} is there twice");
            }
        }
        Ok(out)
    })
}

async fn read(volume: &Volume, ino: Ino, size: u64) -> fs::Result<Vec<u8>> {
    assert!(size < 1 << 30, "size {size}");
    let handle = volume.open(&Cred::root(), ino, OpenFlags::READ).await?;
    let mut data = vec![0; size as usize];
    let n = volume.read(handle, 0, &mut data).await;
    volume.release(handle).await?;
    assert_eq!(n?, size as usize, "short read");
    Ok(data)
}

/// Makes files of all kinds under a directory of that name.
fn fill(volume: &Volume, top: &str) {
    let root = Cred::root();
    block_on(async {
        let top = volume.mkdir(&root, ROOT, top.as_bytes(), 0o755).await.unwrap().ino;
        let sub = volume.mkdir(&root, top, b"sub", 0o750).await.unwrap().ino;
        let deep = volume.mkdir(&root, sub, b"deep", 0o700).await.unwrap().ino;
        for (dir, name, len) in [
            (top, "empty", 0),
            (top, "inline", 1234),
            (sub, "small", 5000),
            (deep, "medium", 300_000),
            (top, "large", 2 << 20),
        ] {
            let (_, h) = volume.create(&root, dir, name.as_bytes(), 0o644, RW).await.unwrap();
            volume.write(h, 0, &pattern(len, len as u32)).await.unwrap();
            volume.release(h).await.unwrap();
        }
        let (attr, h) = volume.create(&root, sub, b"scattered", 0o600, RW).await.unwrap();
        for i in 0..300u32 {
            volume.write(h, i as u64 * 2 * BLOCK_SIZE as u64, &pattern(BLOCK_SIZE, i)).await.unwrap();
        }
        volume.release(h).await.unwrap();
        volume.setxattr(&root, attr.ino, b"user.small", b"value", XattrFlags::empty()).await.unwrap();
        let (attr, h) = volume.create(&root, sub, b"attributes", 0o600, RW).await.unwrap();
        volume.write(h, 0, b"with attributes").await.unwrap();
        volume.release(h).await.unwrap();
        volume
            .setxattr(&root, attr.ino, b"user.large", &pattern(9000, 7), XattrFlags::empty())
            .await
            .unwrap();
        volume.link(&root, attr.ino, deep, b"another name").await.unwrap();
        volume.link(&root, attr.ino, top, b"third name").await.unwrap();
        volume.symlink(&root, top, b"short link", b"sub/deep").await.unwrap();
        volume.symlink(&root, top, b"long link", &vec![b'x'; 4000]).await.unwrap();
        volume.mknod(&root, top, b"disk", 0o060660, 8 << 32 | 1).await.unwrap();
        volume.mknod(&root, top, b"pipe", 0o010600, 0).await.unwrap();
        let (_, h) = volume.create(&root, top, b"allocated", 0o644, RW).await.unwrap();
        volume.fallocate(h, Fallocate::Allocate { keep_size: true }, 0, 1 << 20).await.unwrap();
        volume.write(h, 100_000, b"in the middle").await.unwrap();
        volume.release(h).await.unwrap();
        for (path, uid, gid) in [
            ("inline", 1000, 1001),
            ("sub", 1000, 1000),
            ("sub/scattered", 2000, 2001),
            ("sub/deep", 0, 2001),
        ] {
            let ino = volume.walk(&root, top, path.as_bytes()).await.unwrap().ino;
            let mtime = Some(SetTime::At(Time { sec: 1_000_000_000 + i64::from(uid), nsec: gid }));
            let set = SetAttr { uid: Some(uid), gid: Some(gid), mtime, ..SetAttr::default() };
            volume.setattr(&root, ino, set).await.unwrap();
        }
    });
}

pub struct Lab {
    pub image: SimFlash,
    pub truth: Picture,
}

fn flash() -> Arc<SimFlash> {
    Arc::new(SimFlash::new(Config { wait_when_idle: true, ..Config::new(BYTES) }).unwrap())
}

fn mkfs(flash: &Arc<SimFlash>) {
    let options = MkfsOptions { log_bytes: Some(8 << 20), uuid: Some([0x5a; 16]), ..MkfsOptions::default() };
    block::mkfs(flash.clone(), &options).unwrap();
}

/// A volume that `fill` was done with, stopped cleanly.
pub fn made(fill: impl FnOnce(&Volume)) -> Arc<SimFlash> {
    let flash = flash();
    mkfs(&flash);
    let volume = Volume::open(flash.clone(), options()).unwrap();
    fill(&volume);
    volume.close_blocking().unwrap();
    flash
}

impl Lab {
    /// Stopped cleanly: an index checkpoint, an empty log.
    pub fn clean() -> Lab {
        let flash = flash();
        mkfs(&flash);
        let volume = Volume::open(flash.clone(), options()).unwrap();
        fill(&volume, "a");
        volume.close_blocking().unwrap();
        let volume = Volume::open(flash.clone(), options()).unwrap();
        fill(&volume, "b");
        let truth = picture(&volume).unwrap();
        volume.close_blocking().unwrap();
        Lab { image: flash.crash_image(|_, _| true), truth }
    }

    /// Lost power: part of it in its home places, part only in the log, with logged pages, and an orphan.
    pub fn crashed() -> Lab {
        let flash = flash();
        mkfs(&flash);
        let volume = Volume::open(flash.clone(), options()).unwrap();
        fill(&volume, "a");
        volume.close_blocking().unwrap();
        let volume = Volume::open(flash.clone(), options()).unwrap();
        fill(&volume, "b");
        let root = Cred::root();
        block_on(async {
            volume.sync().await.unwrap();
            let attr = volume.walk(&root, ROOT, b"a/sub/deep/medium").await.unwrap();
            let h = volume.open(&root, attr.ino, RW).await.unwrap();
            for i in 0..6u64 {
                volume.write(h, i * 40_000, &pattern(100, 77 + i as u32)).await.unwrap();
                volume.fsync(h, false).await.unwrap();
            }
            let b = volume.walk(&root, ROOT, b"b").await.unwrap().ino;
            let (_, open) = volume.create(&root, b, b"doomed", 0o600, RW).await.unwrap();
            volume.write(open, 0, &pattern(20_000, 3)).await.unwrap();
            volume.unlink(&root, b, b"doomed").await.unwrap();
            volume.sync().await.unwrap();
        });
        let truth = picture(&volume).unwrap();
        block_on(volume.sync()).unwrap();
        Lab { image: flash.crash_image(|_, _| true), truth }
    }

    pub fn clone_image(&self) -> Arc<SimFlash> {
        Arc::new(self.image.crash_image(|_, _| true))
    }
    pub fn block(&self, at: u64) -> Vec<u8> {
        let mut block = vec![0; BLOCK_SIZE];
        self.image.peek(at * BLOCK_SIZE as u64, &mut block);
        block
    }
    /// A copy with one byte changed.
    pub fn flipped(&self, offset: u64, mask: u8) -> Arc<SimFlash> {
        let image = self.clone_image();
        let mut byte = [0];
        image.peek(offset, &mut byte);
        image.poke(offset, &[byte[0] ^ mask]);
        image
    }
    pub fn superblock(&self) -> Superblock {
        Superblock::parse(&self.block(0)).unwrap()
    }
    /// The checkpoint that counts, and its block.
    pub fn checkpoint(&self) -> (Checkpoint, u64) {
        let sb = self.superblock();
        CHECKPOINTS
            .iter()
            .filter_map(|at| {
                Some((Checkpoint::parse(&self.block(at.0), &sb.uuid, sb.segments()).ok()?, at.0))
            })
            .max_by_key(|(cp, _)| cp.sequence)
            .unwrap()
    }
    pub fn table(&self) -> Vec<Option<SegNo>> {
        let (cp, _) = self.checkpoint();
        let sb = self.superblock();
        let homes = format::segtable::homes(0);
        let best = homes
            .iter()
            .filter_map(|at| format::segtable::parse(&self.block(at.0), &sb.uuid, 0, sb.segments()).ok())
            .filter(|(sequence, _)| *sequence <= cp.sequence)
            .max_by_key(|(sequence, _)| *sequence)
            .unwrap();
        best.1[..cp.inode_segments as usize].to_vec()
    }
    /// Slots in use: inode number and block.
    pub fn slots(&self) -> Vec<(u64, u64)> {
        let mut out = Vec::new();
        for (index, segment) in self.table().iter().enumerate() {
            let Some(segment) = segment else { continue };
            for slot in 0..SEGMENT_BLOCKS as u64 {
                let (ino, at) = (index as u64 * 512 + slot, segment.first_block().0 + slot);
                if let Some(view) = parse_block(&self.block(at), Ino(ino)).unwrap()
                    && view.kind != SlotKind::Free
                {
                    out.push((ino, at));
                }
            }
        }
        out
    }
    /// Blocks of leaves of extent trees, and of attributes outside of inodes.
    pub fn outside(&self) -> (Vec<u64>, Vec<u64>) {
        let (mut nodes, mut xattrs) = (Vec::new(), Vec::new());
        for (ino, at) in self.slots() {
            let block = self.block(at);
            let view = parse_block(&block, Ino(ino)).unwrap().unwrap();
            if view.tail_kind == TailKind::Tree {
                nodes.extend(view.tree_root().iter().map(|e| e.block.get()));
            }
            if view.header.xattr_block.get() != 0 {
                xattrs.push(view.header.xattr_block.get());
            }
        }
        (nodes, xattrs)
    }
}

pub fn fsck(image: &Arc<SimFlash>, repair: bool) -> Report {
    let media: Arc<dyn Media> = image.clone();
    block::fsck::check(media, &FsckOptions { repair }, &mut |_| {}).unwrap()
}

/// Mounts a damaged volume: it refuses, or shows nothing that is wrong. Returns whether it mounted.
pub fn mounts_right(image: &Arc<SimFlash>, truth: &Picture, what: &str) -> bool {
    let copy = Arc::new(image.crash_image(|_, _| true));
    let volume = match Volume::open(copy, options()) {
        Ok(volume) => volume,
        Err(fs::Error::Corrupt(_) | fs::Error::NotAVolume(_)) => return false,
        Err(e) => panic!("{what}: mount failed with {e}"),
    };
    let found = picture(&volume).unwrap_or_else(|e| panic!("{what}: {e}"));
    for (path, seen) in truth {
        let other = found.get(path).unwrap_or_else(|| panic!("{what}: {path} is missing after mount"));
        assert!(seen.content == other.content || other.content.is_err(), "{what}: contents of {path}");
        assert!(seen.xattrs == other.xattrs || other.xattrs.is_err(), "{what}: attributes of {path}");
        let plain = |s: &Seen| (s.ino, s.mode, s.size, s.nlink, s.rdev, s.owner, s.times);
        assert_eq!(plain(seen), plain(other), "{what}: {path}");
    }
    assert_eq!(found.len(), truth.len(), "{what}: names that should not be there");
    let _ = volume.close_blocking();
    true
}

/// Repairs a damaged volume, and compares everything that was not reported as lost.
pub fn repairs(image: &Arc<SimFlash>, truth: &Picture, what: &str) -> Report {
    let report = fsck(image, true);
    assert!(report.is_clean(), "{what}: not repaired: {:#?}", report.problems);
    let again = fsck(image, false);
    assert!(again.is_clean() && again.damage().count() == 0, "{what}: after repair: {:#?}", again.problems);
    let volume = Volume::open(image.clone(), options())
        .unwrap_or_else(|e| panic!("{what}: mount after repair: {e}\n{:#?}", report.problems));
    let found = picture(&volume).unwrap_or_else(|e| panic!("{what}: {e}"));
    let told: Vec<u64> = report.damage().filter_map(|p| p.inode).collect();
    for (path, seen) in truth {
        if told.contains(&seen.ino) {
            // What was put right about it is not whose it is, nor when it was made.
            let is_it = |s: &&Seen| (s.ino, s.mode, &s.content) == (seen.ino, seen.mode, &seen.content);
            if let Some(other) = found.get(path).filter(is_it) {
                let kept = |s: &Seen| (s.owner, s.times[0], s.times[2]);
                assert_eq!(kept(seen), kept(other), "{what}: {path} was repaired");
            }
            continue;
        }
        match found.get(path) {
            Some(other) => {
                let links = !told.is_empty() || seen.nlink == other.nlink;
                assert!(
                    links
                        && (seen.mode, seen.size, &seen.content, &seen.xattrs)
                            == (other.mode, other.size, &other.content, &other.xattrs)
                        && (seen.owner, seen.times) == (other.owner, other.times),
                    "{what}: {path} differs after repair"
                );
            }
            None => {
                // Moved with a directory that was lost; then it is elsewhere under the same number, or its name was told.
                let elsewhere = found.values().any(|s| s.ino == seen.ino && s.content == seen.content);
                assert!(elsewhere, "{what}: {path} is gone and nobody said so: {:#?}", report.problems);
            }
        }
    }
    volume.close_blocking().unwrap();
    let last = fsck(image, false);
    assert!(last.is_clean() && last.damage().count() == 0, "{what}: after use: {:#?}", last.problems);
    report
}

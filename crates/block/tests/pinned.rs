//! A volume made by an earlier build opens: the format's version is not the software's version.
//!
//! The image stands in tests/data as a list of the blocks that are not zeros: block number (u64), and the block without its
//! trailing zeros (u16 length, bytes). It was made by `cargo test -p freehold-block --test pinned -- --ignored`, which is run
//! again only when the version of the format is raised.

#[path = "fsck/lab.rs"]
#[allow(dead_code, reason = "shared with the tests of fsck")]
mod lab;

use block::{MkfsOptions, Volume};
use format::limits::BLOCK_SIZE;
use fs::{Cred, FileSystem, Ino, OpenFlags, XattrFlags, block_on};
use lab::{fsck, options, pattern, picture};
use media::flash::{Config, DISCARDED, SimFlash};
use std::path::PathBuf;
use std::sync::Arc;

const BYTES: u64 = 32 << 20;

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn flash() -> SimFlash {
    SimFlash::new(Config { wait_when_idle: true, ..Config::new(BYTES) }).unwrap()
}

fn load(name: &str) -> Arc<SimFlash> {
    let bytes = std::fs::read(file(name)).unwrap();
    let flash = flash();
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let block = u64::from_le_bytes(rest[..8].try_into().unwrap());
        let len = u16::from_le_bytes(rest[8..10].try_into().unwrap()) as usize;
        let mut content = vec![0; BLOCK_SIZE];
        content[..len].copy_from_slice(&rest[10..10 + len]);
        flash.poke(block * BLOCK_SIZE as u64, &content);
        rest = &rest[10 + len..];
    }
    Arc::new(flash)
}

fn save(flash: &SimFlash, name: &str) {
    let mut out = Vec::new();
    let mut content = vec![0; BLOCK_SIZE];
    for block in 0..BYTES / BLOCK_SIZE as u64 {
        flash.peek(block * BLOCK_SIZE as u64, &mut content);
        let len = content.iter().rposition(|&b| b != 0).map_or(0, |i| i + 1);
        // Discarded blocks read as anything.
        if len > 0 && content.iter().any(|&b| b != DISCARDED) {
            out.extend_from_slice(&block.to_le_bytes());
            out.extend_from_slice(&(len as u16).to_le_bytes());
            out.extend_from_slice(&content[..len]);
        }
    }
    std::fs::create_dir_all(file("")).unwrap();
    std::fs::write(file(name), out).unwrap();
}

/// Path, type and permissions, and contents of everything in the image.
fn contents() -> Vec<(&'static str, u32, Vec<u8>)> {
    vec![
        ("/dir", 0o040755, vec![]),
        ("/dir/inline", 0o100644, b"a few bytes".to_vec()),
        ("/dir/extents", 0o100640, pattern(9000, 1)),
        ("/dir/scattered", 0o100600, scattered()),
        ("/dir/name two", 0o100644, b"a few bytes".to_vec()),
        ("/link", 0o120777, b"dir/inline".to_vec()),
        ("/device", 0o020620, vec![]),
    ]
}

const PIECES: u64 = 140;

/// Every second block holds four bytes.
fn scattered() -> Vec<u8> {
    let mut out = vec![0; (PIECES as usize * 2 - 2) * BLOCK_SIZE + 4];
    for i in 0..PIECES as usize {
        out[i * 2 * BLOCK_SIZE..][..4].copy_from_slice(&(i as u32 + 1).to_le_bytes());
    }
    out
}

#[test]
#[ignore = "makes the images; run only when the version of the format is raised"]
fn make() {
    let root = Cred::root();
    let flash = Arc::new(flash());
    let mkfs = MkfsOptions {
        log_bytes: Some(8 << 20),
        uuid: Some([7; 16]),
        label: "pinned".into(),
        ..Default::default()
    };
    block::mkfs(flash.clone(), &mkfs).unwrap();
    let volume = Volume::open(flash.clone(), options()).unwrap();
    let rw = OpenFlags::READ | OpenFlags::WRITE;
    block_on(async {
        let dir = volume.mkdir(&root, Ino::ROOT, b"dir", 0o755).await.unwrap().ino;
        let (inline, h) = volume.create(&root, dir, b"inline", 0o644, rw).await.unwrap();
        volume.write(h, 0, b"a few bytes").await.unwrap();
        volume.release(h).await.unwrap();
        volume.setxattr(&root, inline.ino, b"user.note", b"kept", XattrFlags::empty()).await.unwrap();
        volume.link(&root, inline.ino, dir, b"name two").await.unwrap();
        let (extents, h) = volume.create(&root, dir, b"extents", 0o640, rw).await.unwrap();
        volume.write(h, 0, &pattern(9000, 1)).await.unwrap();
        volume.release(h).await.unwrap();
        volume.setxattr(&root, extents.ino, b"user.large", &[b'v'; 3000], XattrFlags::empty()).await.unwrap();
        let (_, h) = volume.create(&root, dir, b"scattered", 0o600, rw).await.unwrap();
        for i in 0..PIECES {
            volume.write(h, i * 2 * BLOCK_SIZE as u64, &(i as u32 + 1).to_le_bytes()).await.unwrap();
        }
        volume.release(h).await.unwrap();
        volume.symlink(&root, Ino::ROOT, b"link", b"dir/inline").await.unwrap();
        volume.mknod(&root, Ino::ROOT, b"device", 0o020620, 4 << 32 | 64).await.unwrap();
        volume.sync().await.unwrap();
    });
    save(&flash.crash_image(|_, _| true), "v1-crashed.blocks");
    volume.close_blocking().unwrap();
    save(&flash.crash_image(|_, _| true), "v1-clean.blocks");
}

#[test]
fn old_images_open() {
    for name in ["v1-clean.blocks", "v1-crashed.blocks"] {
        let flash = load(name);
        let report = fsck(&flash, false);
        assert_eq!(report.damage().count(), 0, "{name}: {:#?}", report.problems);
        assert_eq!(report.stopped_cleanly, name == "v1-clean.blocks");
        let volume = Volume::open(flash, options()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let found = picture(&volume).unwrap();
        let expected = contents();
        assert_eq!(found.len(), expected.len(), "{name}: {:?}", found.keys());
        for (path, mode, content) in expected {
            let seen = &found[path];
            assert_eq!(seen.mode, mode, "{name}: {path}");
            assert!(seen.content.as_ref() == Ok(&content), "{name}: contents of {path}");
        }
        let attributes = |path: &str| found[path].xattrs.clone().unwrap();
        assert_eq!(attributes("/dir/inline")[&b"user.note"[..]], b"kept");
        assert_eq!(attributes("/dir/extents")[&b"user.large"[..]], [b'v'; 3000]);
        assert_eq!((found["/dir/inline"].nlink, found["/device"].rdev), (2, 4 << 32 | 64));
        volume.close_blocking().unwrap();
    }
}

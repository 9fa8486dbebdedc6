//! Reading without a copy: what is lent stays as it was, is bounded, and outlives the volume.

use block::{MkfsOptions, OpenOptions, Volume};
use fs::client::OpenOptions as Open;
use fs::{Client, Cred, block_on};
use media::ram::RamMedia;
use std::sync::Arc;

const CACHE: usize = 8 << 20;

fn volume() -> (Arc<RamMedia>, Volume) {
    let media = Arc::new(RamMedia::new(128 << 20).unwrap());
    block::mkfs(media.clone(), &MkfsOptions::default()).unwrap();
    let options = OpenOptions { cache_bytes: CACHE, dirty_bytes_max: 2 << 20, ..OpenOptions::default() };
    let volume = Volume::open(media.clone(), options).unwrap();
    (media, volume)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

#[test]
fn what_is_lent_stays() {
    let (media, volume) = volume();
    let client = Client::new(Arc::new(volume.clone()), Cred::root()).blocking();
    let how = Open::new().read(true).write(true).create_new(true);
    let file = client.open("/f", how).unwrap();
    let bytes = pattern(6 << 20);
    file.write_all_at(&bytes, 0).unwrap();
    // Two pages of a hole behind the data, then a byte.
    file.write_all_at(b"x", (6 << 20) + 8192).unwrap();
    file.fsync().unwrap();
    block_on(volume.drop_caches()).unwrap();

    let middle = file.read_pages_at(1 << 20, 1_000_001).unwrap();
    assert!(middle.to_vec() == bytes[1_000_001..][..1 << 20]);
    assert_eq!(middle.slices().count(), 1, "a sequential read is one piece of memory");
    let end = file.read_pages_at(1 << 20, (6 << 20) - 3).unwrap();
    let expected = [&bytes[bytes.len() - 3..], &[0; 8192], b"x"].concat();
    assert!(end.to_vec() == expected);
    assert!(file.read_pages_at(10, 7 << 20).unwrap().is_empty());

    // Overwritten, cut off, deleted, everything else of the cache used: the reader sees what it read.
    file.write_all_at(&[9; 2 << 20], 900_000).unwrap();
    file.set_len(10).unwrap();
    drop(file);
    client.unlink("/f").unwrap();
    let other = client.open("/g", how).unwrap();
    (0..16).for_each(|i| other.write_all_at(&[i as u8; 1 << 20], i << 20).unwrap());
    other.fsync().unwrap();
    assert!(middle.to_vec() == bytes[1_000_001..][..1 << 20]);

    // The device is free for the next volume although pages are still lent.
    drop(other);
    volume.close_blocking().unwrap();
    drop((client, volume));
    assert_eq!(Arc::strong_count(&media), 1);
    assert!(middle.to_vec() == bytes[1_000_001..][..1 << 20]);
    assert!(end.to_vec() == expected);
}

#[test]
fn lending_is_bounded() {
    let (_media, volume) = volume();
    let client = Client::new(Arc::new(volume.clone()), Cred::root());
    let file = client.blocking().open("/f", Open::new().read(true).write(true).create_new(true)).unwrap();
    let bytes = pattern(6 << 20);
    file.write_all_at(&bytes, 0).unwrap();
    // Somebody keeps everything: beyond a quarter of the cache there are copies, and reading and writing go on.
    let kept: Vec<_> = (0..6).map(|i| file.read_pages_at(1 << 20, i << 20).unwrap()).collect();
    for (i, pages) in kept.iter().enumerate() {
        assert!(pages.to_vec() == bytes[i << 20..][..1 << 20]);
    }
    let lent = kept.iter().filter(|p| format!("{p:?}").contains("lent")).count();
    assert_eq!(lent, (CACHE / 4) >> 20);
    for round in 0..20 {
        file.write_all_at(&vec![round; 6 << 20], 0).unwrap();
    }
    file.fsync().unwrap();
    assert!(kept[0].to_vec() == bytes[..1 << 20]);
    drop(kept);
    let again = file.read_pages_at(2 << 20, 0).unwrap();
    assert!(format!("{again:?}").contains("lent") && again.to_vec() == [19; 2 << 20]);
}

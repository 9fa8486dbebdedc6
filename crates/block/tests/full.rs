//! A volume without a free block: what is there can still be overwritten, with and without fsync, and nobody waits for ever.

use block::{MkfsOptions, OpenOptions, Volume};
use fs::client::OpenOptions as Open;
use fs::{Client, Cred, Error, FileSystem};
use media::ram::RamMedia;
use std::sync::Arc;

const MIB: usize = 1 << 20;

/// A full volume with one file; returns its size in whole MiB.
fn fill(file: &fs::client::BlockingFile<Volume>) -> usize {
    let mut at = 0;
    loop {
        match file.write_all_at(&vec![at as u8; MIB], (at * MIB) as u64) {
            Ok(()) => at += 1,
            Err(Error::NoSpace) => break,
            Err(e) => panic!("{e}"),
        }
    }
    file.fsync().unwrap();
    at
}

fn overwrite(log: u64, sync: bool) {
    let media = Arc::new(RamMedia::new(96 << 20).unwrap());
    block::mkfs(media.clone(), &MkfsOptions { log_bytes: Some(log), ..MkfsOptions::default() }).unwrap();
    let options = OpenOptions { cache_bytes: 48 * MIB, dirty_bytes_max: 24 * MIB, ..OpenOptions::default() };
    let volume = Volume::open(media.clone(), options.clone()).unwrap();
    let client = Client::new(Arc::new(volume.clone()), Cred::root()).blocking();
    let file = client.open("/f", Open::new().read(true).write(true).create_new(true)).unwrap();
    let size = fill(&file);
    assert!(size > 40, "{size}");
    for round in 0..12u8 {
        // Forwards, backwards, and single pages that no record can take all of.
        for i in 0..20 {
            let at = if round % 2 == 0 { i } else { 19 - i };
            file.write_all_at(&vec![round ^ at as u8; MIB], (at * MIB) as u64).unwrap();
        }
        for page in (20 * 256..38 * 256).step_by(3) {
            file.write_all_at(&[round; 4096], page * 4096).unwrap();
        }
        if sync {
            file.fsync().unwrap();
        }
    }
    for i in 0..20 {
        let mut bytes = vec![0; MIB];
        file.read_at(&mut bytes, (i * MIB) as u64).unwrap();
        assert!(bytes == vec![11 ^ i as u8; MIB]);
    }
    drop(file);
    volume.close_blocking().unwrap();
    drop((client, volume));
    let report = block::fsck::check(media, &Default::default(), &mut |_| {}).unwrap();
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn overwritten_and_synced() {
    overwrite(8 << 20, true);
}

#[test]
fn overwritten() {
    overwrite(8 << 20, false);
}

/// What may be overwritten later: pages with blocks, and those that wait for one that is promised to them; no holes, nothing behind the end.
#[test]
fn overwritable_pages_need_no_room() {
    const PAGE: u64 = 4096;
    let media = Arc::new(RamMedia::new(64 << 20).unwrap());
    block::mkfs(media.clone(), &MkfsOptions { log_bytes: Some(8 << 20), ..MkfsOptions::default() }).unwrap();
    let volume = Volume::open(media.clone(), OpenOptions::default()).unwrap();
    let client = Client::new(Arc::new(volume.clone()), Cred::root()).blocking();
    let rw = Open::new().read(true).write(true).create(true);
    let file = client.open("/f", rw).unwrap();
    let ranges = |file: &fs::client::BlockingFile<Volume>| {
        let found = volume.overwritable(file.handle(), 0, 100 * PAGE)?;
        Ok::<_, Error>(found.iter().map(|r| (r.start / PAGE, r.end / PAGE)).collect::<Vec<_>>())
    };
    file.write_all_at(&[1; 100], 0).unwrap();
    assert_eq!(ranges(&file).unwrap(), [], "it stands in the inode");
    file.write_all_at(&[1; 4096 * 10], 0).unwrap();
    file.write_all_at(&[1; 4096 * 10 + 5], 20 * PAGE).unwrap();
    assert_eq!(ranges(&file).unwrap(), [(0, 10), (20, 30)], "promised");
    file.fsync().unwrap();
    assert_eq!(ranges(&file).unwrap(), [(0, 10), (20, 30)], "on the medium");
    file.write_all_at(&[2; 4096 * 3], 9 * PAGE).unwrap();
    assert_eq!(ranges(&file).unwrap(), [(0, 12), (20, 30)], "both");
    file.fallocate(fs::Fallocate::PunchHole, 4 * PAGE, PAGE).unwrap();
    file.set_len(25 * PAGE + 1).unwrap();
    assert_eq!(ranges(&file).unwrap(), [(0, 4), (5, 12), (20, 25)]);
    file.fallocate(fs::Fallocate::Allocate { keep_size: true }, 12 * PAGE, 8 * PAGE).unwrap();
    assert_eq!(ranges(&file).unwrap(), [(0, 4), (5, 12), (20, 25)], "what was never written may need a node");
    file.write_all_at(&[3; 4096], 15 * PAGE).unwrap();
    assert_eq!(ranges(&file).unwrap(), [(0, 4), (5, 12), (15, 16), (20, 25)]);
    for late in [rw.append(true), rw.sync(true), rw.direct(true)] {
        let other = client.open("/f", late).unwrap();
        assert!(matches!(ranges(&other), Err(Error::NotSupported(_))));
    }
    let reader = client.open("/f", Open::new().read(true)).unwrap();
    assert!(matches!(ranges(&reader), Err(Error::BadHandle)));
    // With nothing left, they are overwritten all the same, in a cache that was written back before.
    let filler = client.open("/filler", rw).unwrap();
    fill(&filler);
    let mut at = filler.metadata().unwrap().size;
    while filler.write_all_at(&[7; 4096], at).is_ok() {
        at += PAGE;
    }
    assert!(matches!(file.write_all_at(&[3; 4096], 4 * PAGE), Err(Error::NoSpace)));
    for round in 0..50u8 {
        for (start, end) in ranges(&file).unwrap() {
            (start..end).for_each(|page| file.write_all_at(&[round; 4096], page * PAGE).unwrap());
        }
        if round % 7 == 0 {
            file.fsync().unwrap();
        }
    }
    drop((file, reader, filler));
    volume.close_blocking().unwrap();
    drop((client, volume));
    assert!(block::fsck::check(media, &Default::default(), &mut |_| {}).unwrap().is_clean());
}

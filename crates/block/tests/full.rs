//! A volume without a free block: what is there can still be overwritten, with and without fsync, and nobody waits for ever.

use block::{MkfsOptions, OpenOptions, Volume};
use fs::client::OpenOptions as Open;
use fs::{Client, Cred, Error};
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

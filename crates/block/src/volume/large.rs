//! Space that is allocated and given back.

use super::*;
use fs::client::{BlockingFile, OpenOptions as Open};
use fs::{Blocking, Client, Cred, Fallocate};
use media::ram::RamMedia;

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
const KEEP: Fallocate = Fallocate::Allocate { keep_size: true };

fn volume(bytes: u64) -> (Volume, Blocking<Volume>) {
    let media = Arc::new(RamMedia::new(bytes).unwrap());
    crate::mkfs(media.clone(), &Default::default()).unwrap();
    let volume = Volume::open(media, OpenOptions::default()).unwrap();
    let client = Client::new(Arc::new(volume.clone()), Cred::root()).blocking();
    (volume, client)
}

fn blocks(file: &BlockingFile<Volume>) -> u64 {
    file.fsync().unwrap();
    file.metadata().unwrap().blocks
}

/// Space behind the end goes when the size is set to what it is, and with the content of a file that has none.
#[test]
fn space_behind_the_end_goes_with_a_truncation_that_changes_no_byte() {
    let (volume, client) = volume(64 * MIB);
    let open = |name: &str| client.open(name, Open::new().read(true).write(true).create(true)).unwrap();
    for size in [1, PAGE - 1, PAGE, 5000, 40 * PAGE] {
        let file = open(&format!("/f{size}"));
        file.write_all_at(&vec![7; size as usize], 0).unwrap();
        file.fallocate(KEEP, 0, size).unwrap();
        let before = blocks(&file);
        file.fallocate(KEEP, 0, MIB).unwrap();
        assert!(blocks(&file) > before);
        let changed = file.metadata().unwrap();
        file.set_len(size).unwrap();
        assert_eq!(blocks(&file), before, "{size}");
        let after = file.metadata().unwrap();
        assert!(after.size == size && after.ctime >= changed.ctime);
        let mut bytes = vec![0; size as usize + 1];
        assert_eq!(file.read_at(&mut bytes, 0), Ok(size as usize));
        assert!(bytes[..size as usize].iter().all(|&b| b == 7));
        // Growing gives nothing back.
        file.fallocate(KEEP, 0, MIB).unwrap();
        let all = blocks(&file);
        file.set_len(size + PAGE).unwrap();
        assert_eq!(blocks(&file), all, "{size}");
    }
    let empty = open("/empty");
    empty.fallocate(KEEP, 0, MIB).unwrap();
    assert!(blocks(&empty) > 0);
    drop(client.open("/empty", Open::new().write(true).truncate(true)).unwrap());
    assert_eq!(blocks(&empty), 0);
    empty.fallocate(KEEP, MIB, MIB).unwrap();
    empty.set_len(0).unwrap();
    assert_eq!(blocks(&empty), 0);
    drop(empty);
    volume.close_blocking().unwrap();
}

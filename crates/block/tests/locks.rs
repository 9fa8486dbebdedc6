//! File locks belong to an inode, not to its slot: who makes a file has it alone, whoever had the slot before.

use block::{MkfsOptions, OpenOptions, Volume};
use fs::client::OpenOptions as Open;
use fs::{Client, Cred, block_on};
use media::uring::{Options, UringMedia};
use std::sync::Arc;

#[test]
fn a_new_file_is_locked_by_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::File::create(&path).unwrap().set_len(256 << 20).unwrap();
    let media = Arc::new(UringMedia::open(&path, Options::default()).unwrap());
    block::mkfs(media.clone(), &MkfsOptions::default()).unwrap();
    let volume = Volume::open(media, OpenOptions::default()).unwrap();
    std::thread::scope(|s| {
        for thread in 0..4 {
            let client = Client::new(Arc::new(volume.clone()), Cred::root());
            s.spawn(move || {
                let name = format!("/f{thread}");
                let how = Open::new().read(true).write(true).create_new(true);
                for round in 0..10_000 {
                    let file = block_on(client.open(&name, how)).unwrap();
                    assert_eq!(block_on(file.try_lock()), Ok(()), "round {round}");
                    block_on(client.unlink(&name)).unwrap();
                    block_on(file.close()).unwrap();
                }
            });
        }
    });
    volume.close_blocking().unwrap();
}

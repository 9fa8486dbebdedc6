//! Files that grow while clients read them out of the arena: a long write lengthens them part by part, and the doors are told when it is over.

use crate::rig::*;
use fs::{Client, Cred};

/// What is read behind the old end was written there, and is not what stood behind the end in the arena.
#[test]
fn what_a_write_has_added_so_far_is_not_read_as_zeros() {
    let engine = volume(64 << 20);
    let rig = Rig::new(engine.clone());
    // What has been done of a call that is not over.
    let under_way = Client::new(engine, Cred::root()).blocking();
    let writer = rig.beside.open("f", NEW).unwrap();
    let old = PAGE + 1000;
    writer.write_all_at(&vec![1; old], 0).unwrap();
    let client = rig.client();
    let reader = client.open("f", RW).unwrap();
    let read = |at: usize, len: usize| {
        let mut bytes = vec![9; len];
        let n = reader.read_at(&mut bytes, at as u64).unwrap();
        bytes.truncate(n);
        bytes
    };
    (0..3).for_each(|_| assert!(read(0, 4 * PAGE) == vec![1; old]));
    let asked = rig.count("read");
    assert!(read(PAGE, PAGE) == vec![1; 1000] && rig.count("read") == asked, "it is in the arena");
    // The client knows the size no longer; the last page stays where it is.
    writer.write_all_at(&[2; PAGE], 0).unwrap();
    let appends = under_way.open("f", RW).unwrap();
    appends.write_all_at(&[3; 2 * PAGE], old as u64).unwrap();
    let mut all = [vec![2; PAGE], vec![1; 1000], vec![3; 2 * PAGE]].concat();
    for (at, len) in [(old - 100, 300), (old, 10), (PAGE, 2 * PAGE), (0, 9 * PAGE), (old - 10, 20)] {
        assert!(read(at, len) == all[at..(at + len).min(all.len())], "{len} at {at}");
    }
    let asked = rig.count("read");
    assert!(read(old - 100, 300) == all[old - 100..old + 200] && rig.count("read") == asked, "it is again");
    // Longer once more; now the client learns of it before it reads, because something else has changed.
    appends.write_all_at(&[4; PAGE], all.len() as u64).unwrap();
    writer.write_all_at(&[2; PAGE], 0).unwrap();
    let end = all.len();
    all.resize(end + PAGE, 4);
    assert_eq!(client.stat("f").unwrap().size, all.len() as u64);
    assert!(read(end - 100, 300) == all[end - 100..end + 200], "what stood behind the end");
}

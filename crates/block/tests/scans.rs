//! Scans of directories in which names come and go: that they end, and what they give.

use block::{MkfsOptions, OpenOptions, Volume};
use fs::client::Blocking;
use fs::{Client, Cred, FileSystem, Handle, Ino, RenameFlags};
use media::ram::RamMedia;
use std::collections::BTreeMap;
use std::sync::Arc;

struct Rig {
    media: Arc<RamMedia>,
    volume: Volume,
}

impl Rig {
    fn new() -> Rig {
        let media = Arc::new(RamMedia::new(64 << 20).unwrap());
        block::mkfs(media.clone(), &MkfsOptions::default()).unwrap();
        let volume = Volume::open(media.clone(), OpenOptions::default()).unwrap();
        Rig { media, volume }
    }

    fn client(&self) -> Blocking<Volume> {
        Client::new(Arc::new(self.volume.clone()), Cred::root()).blocking()
    }

    fn opendir(&self, ino: Ino) -> Handle {
        self.volume.block_on(self.volume.opendir(&Cred::root(), ino)).unwrap()
    }

    /// The next name behind `offset`, which moves.
    fn next(&self, dir: Handle, offset: &mut u64) -> Option<String> {
        let (mut name, from) = (None, *offset);
        let mut sink = |e: fs::DirEntry<'_>| {
            if name.is_some() {
                return false;
            }
            name = Some(String::from_utf8(e.name.to_vec()).unwrap());
            *offset = e.next_offset;
            true
        };
        self.volume.block_on(self.volume.readdir(dir, from, &mut sink)).unwrap();
        name
    }

    /// All names behind `offset`, and how often each was given.
    fn rest(&self, dir: Handle, mut offset: u64) -> BTreeMap<String, usize> {
        let mut all = BTreeMap::new();
        while let Some(name) = self.next(dir, &mut offset) {
            *all.entry(name).or_default() += 1;
        }
        all
    }
}

/// Whoever makes names as fast as a scan reads them does not keep it from its end.
#[test]
fn a_scan_ends_while_names_are_made() {
    let rig = Rig::new();
    let client = rig.client();
    for i in 0..100 {
        client.write(format!("old{i}"), "").unwrap();
    }
    let dir = rig.opendir(Ino::ROOT);
    for round in 0..3 {
        let (mut offset, mut given) = (0, Vec::new());
        while let Some(name) = rig.next(dir, &mut offset) {
            assert!(given.len() < 1000, "the scan goes on for ever");
            client.write(format!("new{round}-{}", given.len()), "").unwrap();
            given.push(name);
        }
        assert_eq!(given.iter().filter(|n| n.starts_with("old")).count(), 100, "{round}");
        // From the start again, it gives what was made meanwhile.
        assert_eq!(rig.rest(dir, 0).len(), 102 + (0..=round).map(|r| 102 * (1 << r)).sum::<usize>());
    }
}

/// A scan that has begun earlier gives what later ones give: the kernel puts its list of a directory together from several.
#[test]
fn scans_of_one_directory_have_one_end() {
    let rig = Rig::new();
    let client = rig.client();
    client.write("a", "").unwrap();
    let (one, two) = (rig.opendir(Ino::ROOT), rig.opendir(Ino::ROOT));
    let mut offset = 0;
    while rig.next(one, &mut offset).unwrap() != "a" {}
    client.write("b", "").unwrap();
    assert_eq!(rig.next(one, &mut { offset }), None);
    assert!(rig.rest(two, 0).contains_key("b"));
    assert_eq!(rig.next(one, &mut offset).as_deref(), Some("b"));
    // A scan that begins in the middle, as one does after a restart, gives all that is there.
    client.write("c", "").unwrap();
    let three = rig.opendir(Ino::ROOT);
    assert_eq!(rig.next(three, &mut offset).as_deref(), Some("c"));
}

/// Names that are replaced, or exchanged, all the time are there during the whole scan.
#[test]
fn a_name_that_is_replaced_is_given_once() {
    let rig = Rig::new();
    let client = rig.client();
    let names: Vec<String> = (0..50).map(|i| format!("n{i}")).collect();
    for name in &names {
        client.write(name, "").unwrap();
    }
    client.mkdir("other", 0o755).unwrap();
    client.write("other/x", "").unwrap();
    client.link("n7", "other/link").unwrap();
    let replace = |step: usize| {
        let name = &names[step * 7 % 50];
        client.write("new", "").unwrap();
        client.rename("new", name, RenameFlags::empty()).unwrap();
        client.write("other/new", "").unwrap();
        client.rename("other/new", name, RenameFlags::empty()).unwrap();
        client.rename(name, &names[step * 11 % 50], RenameFlags::EXCHANGE).unwrap();
        client.rename(name, "other/x", RenameFlags::EXCHANGE).unwrap();
    };
    let scan = |changes: bool| {
        let dir = rig.opendir(Ino::ROOT);
        let (mut offset, mut all, mut step) = (0, BTreeMap::<String, usize>::new(), 0);
        while let Some(name) = rig.next(dir, &mut offset) {
            *all.entry(name).or_default() += 1;
            if changes {
                replace(step);
                step += 1;
            }
        }
        for name in &names {
            assert_eq!(all.get(name), Some(&1), "{name}");
        }
    };
    // More names come and go than are left, so that the list is compacted in between.
    for _ in 0..5 {
        scan(true);
    }
    scan(false);
    rig.volume.close_blocking().unwrap();
    assert!(block::fsck::check(rig.media.clone(), &Default::default(), &mut |_| {}).unwrap().is_clean());
    let again = Rig {
        volume: Volume::open(rig.media.clone(), OpenOptions::default()).unwrap(),
        media: rig.media.clone(),
    };
    let dir = again.opendir(Ino::ROOT);
    let found = again.rest(dir, 0);
    assert_eq!(found.len(), 53, "{found:?}");
    assert!(found.values().all(|&times| times == 1));
}

//! The client and the path walk, over the small file system in `memory`. The cases in `suite` are generic: crates that have an
//! engine include that file and run them over it. What doors do beside those who fail is in `doors`.

mod doors;
mod memory;
mod suite;

use fs::{Access, Client, Cred, Error, LockKind, OpenOptions};
use memory::Memory;
use std::sync::Arc;
use std::sync::atomic::Ordering;

macro_rules! cases {
    ($($name:ident),* $(,)?) => {$(
        #[test]
        fn $name() {
            for lazy in [false, true] {
                let memory = Arc::new(Memory::new());
                memory.lazy.store(lazy, Ordering::Relaxed);
                suite::$name(memory.clone());
                let (opens, _, unlocked) = memory.held();
                assert!(opens == 0 && unlocked, "handles or locks left behind");
            }
        }
    )*};
}

cases![
    paths,
    symlinks,
    long_paths,
    opening,
    creating_through_symlinks,
    names,
    trailing_slashes,
    whole_files,
    cursor,
    appending,
    directories,
    trees,
    permissions,
    attributes,
    temporary_files,
    locking,
    record_locks_end_with_any_close,
    standing_in_a_removed_directory,
];

/// How many engine calls a call of the client costs.
#[test]
fn engine_calls() {
    let memory = Arc::new(Memory::new());
    let client = Client::new(memory.clone(), Cred::root()).blocking();
    client.create_dir_all("/a/b/c").unwrap();
    client.write("/a/b/c/file", "x").unwrap();
    let cost = |call: &mut dyn FnMut()| {
        let before = memory.calls.load(Ordering::Relaxed);
        call();
        memory.calls.load(Ordering::Relaxed) - before
    };
    assert_eq!(cost(&mut || drop(client.stat("/a/b/c/file"))), 1);
    assert_eq!(cost(&mut || drop(client.stat("file"))), 1);
    assert_eq!(cost(&mut || drop(client.stat("/"))), 1);
    assert_eq!(cost(&mut || drop(client.access("a", Access::READ))), 2);
    let read = OpenOptions::new().read(true);
    assert_eq!(cost(&mut || drop(client.open("/a/b/c/file", read))), 4, "walk, open, getattr, release");
    let file = client.open("a/b/c/file", read).unwrap();
    assert_eq!(cost(&mut || drop(file.read_at(&mut [0], 0))), 1);
    assert_eq!(cost(&mut || drop(client.mkdir("d", 0o777))), 1);
    assert_eq!(cost(&mut || drop(client.unlink("a/b/c/file"))), 2);
}

/// A dropped file gives up its locks even if nobody closed it, and a thread that waits for one gets it.
#[test]
fn dropping_wakes_waiters() {
    let memory = Arc::new(Memory::new());
    let (one, two) = (
        Client::new(memory.clone(), Cred::root()).blocking(),
        Client::new(memory.clone(), Cred::root()).blocking(),
    );
    let file = one.create("f").unwrap();
    file.lock_range(LockKind::Exclusive, 0, 0, true).unwrap();
    let waiting = std::thread::spawn(move || {
        let file = two.create("f").unwrap();
        file.lock_range(LockKind::Exclusive, 5, 1, true).unwrap();
        assert_eq!(file.test_range(LockKind::Shared, 0, 9), Ok(None));
    });
    std::thread::sleep(std::time::Duration::from_millis(20));
    drop(file);
    waiting.join().unwrap();
    assert_eq!(memory.held(), (0, 2, true));
    assert_eq!(one.stat("nothing"), Err(Error::NotFound));
}

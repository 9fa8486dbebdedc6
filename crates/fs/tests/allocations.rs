//! The frequent calls of the client allocate nothing, and their futures are small enough to be built on the stack at no cost.

#[allow(dead_code, reason = "shared with client.rs")]
mod memory;

use fs::{Client, Cred, OpenOptions};
use memory::Memory;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn frequent_calls_do_not_allocate() {
    let client = Client::new(Arc::new(Memory::new()), Cred::root()).blocking();
    client.create_dir_all("a/b").unwrap();
    client.write("a/b/f", [0; 4096]).unwrap();
    let options = OpenOptions::new().read(true).write(true);
    let file = client.open("a/b/f", options).unwrap();
    let mut page = [0; 4096];
    let mut round = || {
        client.stat("/a/b/f").unwrap();
        drop(client.open("a/b/f", options).unwrap());
        client.open("a/b/f", options.create(true)).unwrap().close().unwrap();
        file.read_at(&mut page, 0).unwrap();
        file.write_at(&page, 0).unwrap();
    };
    round();
    let before = ALLOCATIONS.get();
    round();
    assert_eq!(ALLOCATIONS.get() - before, 0);
}

#[test]
fn futures_are_small() {
    let client = Client::new(Arc::new(Memory::new()), Cred::root());
    let options = OpenOptions::new().read(true);
    let stat = size_of_val(&client.stat("a"));
    let open = size_of_val(&client.open("a", options));
    assert!(stat <= 512 && open <= 1024, "stat {stat} bytes, open {open} bytes");
}

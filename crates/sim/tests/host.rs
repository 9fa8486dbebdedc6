//! The model against the kernel: the same random operations on the model and, by system calls, on a directory of the host's
//! file system must come out alike, with callers of three identities.
//!
//! Verifies names, attributes, permissions, data, extended attributes, locks and errnos, and in runs of their own all times
//! to the operation that set them. What is evened out between kernel and contract stands in `sim::host`. The host's file
//! system must be ext4 (or one that can do as much: zeroed ranges, files of 8 TiB, trusted attributes); without it, or
//! without root, the tests are skipped with a message.
//!
//! `FREEHOLD_HOST_SEEDS=100` runs so many seeds of each kind instead of a few, `FREEHOLD_HOST_DIR` names another directory.

use sim::differential::{Settings, Side, Trouble, assert_same};
use sim::host::HostTicking;
use sim::{Blocking, HostFs, Knobs, Model, Ticking, Tolerance};
use std::path::PathBuf;
use std::sync::Arc;

fn directory() -> PathBuf {
    std::env::var_os("FREEHOLD_HOST_DIR").map_or_else(std::env::temp_dir, PathBuf::from)
}

fn seeds(few: u64) -> std::ops::Range<u64> {
    let given = std::env::var("FREEHOLD_HOST_SEEDS").ok().and_then(|n| n.parse().ok());
    0..given.unwrap_or(few)
}

/// Whether the host can do what the tests need.
fn able() -> bool {
    // SAFETY: all zeros is a valid value; reads an id and asks for facts about a directory.
    let (root, ext4) = unsafe {
        let path = std::ffi::CString::new(directory().into_os_string().into_encoded_bytes()).unwrap();
        let mut s: libc::statfs = std::mem::zeroed();
        let known = libc::statfs(path.as_ptr(), &mut s) == 0 && s.f_type == libc::EXT4_SUPER_MAGIC;
        (libc::geteuid() == 0, known)
    };
    if !root || !ext4 {
        println!("skipped: needs root ({root}) and ext4 ({ext4}) at {}", directory().display());
    }
    root && ext4
}

fn model() -> Side<Model, Ticking> {
    let driver = Ticking::default();
    Side::new(Model::new(driver.0.clock()), driver)
}

fn host() -> Side<HostFs, Blocking> {
    Side::new(HostFs::temporary(&directory()).expect("a directory of the host"), Blocking)
}

fn host_with_times() -> Side<HostFs, HostTicking> {
    let fs = Arc::new(HostFs::temporary(&directory()).expect("a directory of the host"));
    Side::new(fs.clone(), HostTicking(fs))
}

fn same(knobs: Knobs, few: u64) {
    if able() {
        let settings = Settings { tree_every: 1000, ..Settings::default() };
        assert_same(model, host, seeds(few), knobs, 4000, settings);
    }
}

#[test]
fn everything() {
    same(Knobs::host(), 6);
}

#[test]
fn mostly_names() {
    same(Knobs { names: 30, data: 3, ..Knobs::host() }, 4);
}

#[test]
fn mostly_attributes() {
    same(Knobs { attrs: 20, xattrs: 10, ..Knobs::host() }, 4);
}

#[test]
fn mostly_data() {
    same(Knobs { data: 30, names: 3, users: false, len_max: 300_000, ..Knobs::host() }, 3);
}

/// Each operation waits until the kernel's clock has moved on, so this is slower. Changes in the middle of a scan are left
/// out: they are several changes within one operation, whose order the times do not tell.
#[test]
fn all_times() {
    if able() {
        let settings = Settings {
            tolerance: Tolerance::NONE,
            tree_every: 0,
            close_at_end: true,
            trouble: Trouble::NONE,
        };
        let knobs = Knobs { scan_changes: false, ..Knobs::host() };
        assert_same(model, host_with_times, seeds(2), knobs, 1200, settings);
    }
}

//! How a bucket is used as a file system.

use crate::attrs::Defaults;
use std::time::Duration;

/// See the fields. `Default` suits one machine that writes backups and logs, and reads data sets.
#[derive(Clone, Debug)]
pub struct Options {
    /// Only keys that begin with this prefix; a '/' at its end is added. Empty: the whole bucket.
    pub prefix: String,
    /// Owner and permissions of objects that say nothing of them.
    pub defaults: Defaults,
    /// For how long what is known of a name counts without asking the store. An open of a file asks when this is over.
    pub expiry: Duration,
    /// Attributes of files that were only listed, and nobody asked for: those of the listing (size and time of the store, the rest as
    /// [`Options::defaults`], no attributes of the system's and of security) without a request for each. Symlinks are then shown as files by listings.
    pub listed_attributes: bool,
    /// Memory for data on the way to the store, bytes. See the head of `budget.rs` for what may exceed it.
    pub write_memory: u64,
    /// Memory for data that is read ahead, bytes. Half as much again may be asked for: it waits at its connections.
    pub read_memory: u64,
    /// Size of the first parts of an upload, bytes; raised to what the store allows.
    pub part_size: u64,
    /// Requests that carry data to the store at a time.
    pub uploads: usize,
    /// How far is read ahead at most, bytes.
    pub read_ahead: u64,
    /// Files that are known at most. Those that nobody uses are forgotten beyond that.
    pub inodes: usize,
    /// Nothing may be changed.
    pub read_only: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            prefix: String::new(),
            defaults: Defaults { uid: 0, gid: 0, umask: 0o022 },
            expiry: Duration::from_secs(1),
            listed_attributes: false,
            write_memory: 40 << 20,
            read_memory: 34 << 20,
            part_size: crate::plan::PART_SIZE,
            uploads: 8,
            read_ahead: 50 << 20,
            inodes: 200_000,
            read_only: false,
        }
    }
}

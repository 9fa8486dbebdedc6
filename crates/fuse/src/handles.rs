//! What the door remembers of open files: so that none stays open in the engine when the mount goes away, and to
//! give each transfer a handle that means what the kernel means.
//!
//! An engine's handle carries O_APPEND and O_DIRECT as they were at open. Some transfers of the kernel do not follow them:
//! write-back of mapped pages uses any writable handle of the inode at offsets of its own, and fcntl(F_SETFL) changes the flags
//! of an open file. Such transfers go through a second handle, a plain one or one that appends, that is opened when it is first needed.
//! Tested by `tests/mount.rs` (mapped write through an appending descriptor, one that appends no longer) and freehold/tests/run_more.rs (one that
//! came to append later).

use fs::{FileSystem, Handle, Ino, OpenFlags, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Flags that do not hold for every transfer through a handle.
const VARIABLE: OpenFlags = OpenFlags::APPEND.union(OpenFlags::DIRECT);
/// Flags of a file that can be mapped shared and written to.
const MAPPABLE: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

struct Open {
    ino: Ino,
    flags: OpenFlags,
    /// Opened with O_SYNC or O_DSYNC.
    synchronous: bool,
    /// By [`Second`].
    seconds: [Option<Handle>; 2],
    /// Owners that took record locks through this handle and did not flush since.
    owners: Vec<u64>,
}

/// What a second handle of an open file is for.
#[derive(Clone, Copy)]
enum Second {
    Plain,
    Appending,
}

/// Open files and directories of a mount, by handle.
#[derive(Default)]
pub struct Handles {
    shards: [Mutex<HashMap<u64, Open>>; 16],
    /// How many open files have variable flags; mostly none, and then transfers look nothing up.
    variable: AtomicUsize,
    /// How many handles of an inode read and write, so that a program may have mapped it with them to change it.
    mappable: Mutex<HashMap<Ino, usize>>,
}

impl Handles {
    fn shard(&self, fh: u64) -> &Mutex<HashMap<u64, Open>> {
        &self.shards[fh as usize % self.shards.len()]
    }

    /// A handle of `ino` was opened with `flags`; by the kernel's caller perhaps such that each write is `synchronous`, which fcntl cannot change.
    pub fn add(&self, handle: Handle, ino: Ino, flags: OpenFlags, synchronous: bool) {
        if flags.intersects(VARIABLE) {
            self.variable.fetch_add(1, Ordering::Relaxed);
        }
        if flags.contains(MAPPABLE) {
            *self.mappable.lock().entry(ino).or_default() += 1;
        }
        self.shard(handle.0)
            .lock()
            .insert(handle.0, Open { ino, flags, synchronous, seconds: [None; 2], owners: Vec::new() });
    }

    /// Whether programs may write to mappings of an inode.
    pub fn may_be_mapped(&self, ino: Ino) -> bool {
        self.mappable.lock().contains_key(&ino)
    }

    /// Whether a handle was opened with O_SYNC or O_DSYNC.
    pub fn is_synchronous(&self, fh: u64) -> bool {
        self.shard(fh).lock().get(&fh).is_some_and(|open| open.synchronous)
    }

    /// With which flags a handle was opened.
    pub fn flags(&self, fh: u64) -> Option<OpenFlags> {
        self.shard(fh).lock().get(&fh).map(|open| open.flags)
    }

    /// A handle is to be closed. Returns the second handles that belong to it, and the lock owners to be flushed.
    pub fn remove(&self, fh: u64) -> ([Option<Handle>; 2], Vec<u64>) {
        match self.shard(fh).lock().remove(&fh) {
            Some(open) => {
                if open.flags.intersects(VARIABLE) {
                    self.variable.fetch_sub(1, Ordering::Relaxed);
                }
                if open.flags.contains(MAPPABLE)
                    && let Entry::Occupied(mut count) = self.mappable.lock().entry(open.ino)
                {
                    *count.get_mut() -= 1;
                    if *count.get() == 0 {
                        count.remove();
                    }
                }
                (open.seconds, open.owners)
            }
            None => ([None; 2], Vec::new()),
        }
    }

    /// Everything that is still open, removed.
    pub fn drain(&self) -> Vec<Handle> {
        let mut all = Vec::new();
        for shard in &self.shards {
            for (fh, open) in shard.lock().drain() {
                all.push(Handle(fh));
                all.extend(open.seconds.into_iter().flatten());
            }
        }
        all
    }

    /// `owner` took a record lock through `fh`.
    pub fn locked(&self, fh: u64, owner: u64) {
        if let Some(open) = self.shard(fh).lock().get_mut(&fh)
            && !open.owners.contains(&owner)
        {
            open.owners.push(owner);
        }
    }

    /// `owner` flushed `fh`.
    pub fn flushed(&self, fh: u64, owner: u64) {
        if let Some(open) = self.shard(fh).lock().get_mut(&fh) {
            open.owners.retain(|&o| o != owner);
        }
    }

    /// The handle for a transfer on inode `ino` that the kernel makes through `fh` while the file's flags are `now` (those of
    /// [`VARIABLE`] count).
    pub async fn transfer<F: FileSystem>(
        &self,
        fs: &F,
        cred: &fs::Cred,
        ino: Ino,
        fh: u64,
        now: OpenFlags,
    ) -> Result<Handle> {
        if self.variable.load(Ordering::Relaxed) == 0 {
            return Ok(Handle(fh));
        }
        let flags = match self.shard(fh).lock().get(&fh) {
            Some(open) if !(open.flags & VARIABLE).difference(now).is_empty() => open.flags,
            _ => return Ok(Handle(fh)),
        };
        self.second(fs, cred, (ino, fh), flags.difference(VARIABLE), Second::Plain).await
    }

    /// The same, of bytes that the kernel's caller wants at the end of the file.
    pub async fn appending<F: FileSystem>(
        &self,
        fs: &F,
        cred: &fs::Cred,
        ino: Ino,
        fh: u64,
        now: OpenFlags,
    ) -> Result<Handle> {
        match self.flags(fh).filter(|flags| !flags.contains(OpenFlags::APPEND)) {
            Some(flags) => {
                let flags = flags.difference(VARIABLE) | OpenFlags::APPEND;
                self.second(fs, cred, (ino, fh), flags, Second::Appending).await
            }
            None => self.transfer(fs, cred, ino, fh, now).await,
        }
    }

    async fn second<F: FileSystem>(
        &self,
        fs: &F,
        cred: &fs::Cred,
        (ino, fh): (Ino, u64),
        flags: OpenFlags,
        which: Second,
    ) -> Result<Handle> {
        let known = self.shard(fh).lock().get(&fh).and_then(|open| open.seconds[which as usize]);
        if let Some(second) = known {
            return Ok(second);
        }
        let second = fs.open(cred, ino, flags.difference(OpenFlags::TRUNCATE)).await?;
        let spare = match self.shard(fh).lock().get_mut(&fh) {
            Some(open) => match &mut open.seconds[which as usize] {
                none @ None => {
                    *none = Some(second);
                    return Ok(second);
                }
                Some(other) => Ok(*other),
            },
            None => Err(fs::Error::BadHandle),
        };
        fs.release(second).await?;
        spare
    }
}

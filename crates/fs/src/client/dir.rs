//! Reading directories.

use super::{Client, File, OpenOptions};
use crate::contract::FileSystem;
use crate::error::{Error, Result};
use crate::types::*;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

/// Entries fetched with one engine call.
const BATCH: usize = 256;

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name.
    pub name: OsString,
    /// Attributes of what it leads to; symlinks are not followed.
    pub attr: Attr,
    /// Where a scan goes on behind this entry, for [`ReadDir::seek`].
    pub next_offset: u64,
}

/// A scan of a directory, in the engine's order. Entries that exist during the whole scan come exactly once.
#[derive(Debug)]
pub struct ReadDir<F: FileSystem> {
    dir: File<F>,
    dots: bool,
    /// Entries fetched and not yet given, the next one last.
    batch: Vec<Entry>,
    /// Where the next batch begins.
    offset: u64,
    complete: bool,
}

impl<F: FileSystem> Client<F> {
    /// Scans a directory. "." and ".." are left out, see [`ReadDir::dots`]. `NotDirectory`, `AccessDenied`.
    pub async fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir<F>> {
        let dir = self.open(path, OpenOptions::new().read(true).directory(true)).await?;
        ReadDir::new(dir)
    }
}

impl<F: FileSystem> ReadDir<F> {
    /// Scans an open directory. `NotDirectory`.
    pub fn new(dir: File<F>) -> Result<ReadDir<F>> {
        if dir.kind() != FileType::Directory {
            return Err(Error::NotDirectory);
        }
        Ok(ReadDir { dir, dots: false, batch: Vec::new(), offset: 0, complete: false })
    }

    /// Whether "." and ".." are given too.
    #[must_use]
    pub fn dots(mut self, on: bool) -> Self {
        self.dots = on;
        self
    }

    /// The directory.
    pub fn dir(&self) -> &File<F> {
        &self.dir
    }

    /// Goes on behind the entry that had this `next_offset`; 0: from the start.
    pub fn seek(&mut self, offset: u64) {
        self.batch.clear();
        self.offset = offset;
        self.complete = false;
    }

    /// The next entry, or `None` behind the last one. After an error the scan can go on.
    pub async fn next(&mut self) -> Option<Result<Entry>> {
        loop {
            if let Some(entry) = self.batch.pop() {
                return Some(Ok(entry));
            }
            if self.complete {
                return None;
            }
            if let Err(e) = self.fetch().await {
                return Some(Err(e));
            }
        }
    }

    /// Ends the scan and closes the directory.
    pub async fn close(self) -> Result<()> {
        self.dir.close().await
    }

    /// Fetches the next batch, which may be empty although entries follow (when it had only dots).
    async fn fetch(&mut self) -> Result<()> {
        let (dots, batch) = (self.dots, &mut self.batch);
        let (mut taken, mut offset, mut full) = (0, self.offset, false);
        let fetched = self
            .dir
            .readdir(self.offset, &mut |e| {
                full = taken == BATCH;
                if full {
                    return false;
                }
                taken += 1;
                offset = e.next_offset;
                if dots || !matches!(e.name, b"." | b"..") {
                    let name = OsString::from_vec(e.name.to_vec());
                    batch.push(Entry { name, attr: e.attr, next_offset: e.next_offset });
                }
                true
            })
            .await;
        if fetched.is_err() {
            batch.clear();
            return fetched;
        }
        batch.reverse();
        self.offset = offset;
        self.complete = !full;
        Ok(())
    }
}

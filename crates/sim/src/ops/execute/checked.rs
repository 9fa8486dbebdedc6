//! Operations whose results two correct file systems need not share, so that they are checked on their own: scans of
//! directories while entries come and go, and the search for data and holes.

use super::super::outcome::Outcome;
use super::super::{Op, name};
use super::{Out, Run, perform};
use fs::{FileSystem, Handle, Ino, Result, Seek};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes that a check of a hole reads at each of its ends.
const HOLE_PROBE: u64 = 64 << 10;

/// What one call of readdir gave: entries, the offset behind the last, and whether the sink stopped the call.
struct Part {
    names: Vec<(Vec<u8>, Ino)>,
    next: u64,
    more: bool,
}

impl<F: FileSystem> Run<'_, F> {
    /// Scans a directory from the start, `batch` entries a call (0: all in one), executing one change after each call.
    /// Entries that exist during the whole scan must be given exactly once; the outcome holds just these.
    pub(super) async fn scan(&mut self, slot: u8, batch: u8, changes: &[Op]) -> Out {
        let handle = self.state.handle(slot);
        let before = self.entries(handle, 0).await?.names;
        let (mut seen, mut offset, mut changes) = (Vec::new(), 0, changes.iter());
        // Names that a change removed and made again are not there during the whole scan.
        let mut lasting: BTreeMap<Vec<u8>, Ino> = before.iter().cloned().collect();
        if lasting.len() != before.len() {
            return Ok(Outcome::Broken("a name was given twice".into()));
        }
        loop {
            let Part { names, next, more } = self.entries_from(handle, offset, batch).await?;
            seen.extend(names);
            if let Some(change) = changes.next() {
                self.change(handle, change, &mut lasting).await?;
            }
            if !more {
                break;
            }
            if next == offset {
                return Ok(Outcome::Broken(format!("the offset behind an entry is its own, {offset}")));
            }
            offset = next;
        }
        // How many calls a scan takes is up to the file system; all changes are made in any case.
        for change in changes {
            self.change(handle, change, &mut lasting).await?;
        }
        for (name, ino) in &lasting {
            let times = seen.iter().filter(|(n, i)| n == name && i == ino).count();
            if times != 1 {
                let name = name.escape_ascii();
                return Ok(Outcome::Broken(format!("lasting entry {name} was given {times} times")));
            }
        }
        let mut names = Vec::new();
        for (name, ino) in lasting {
            // ".." of the root and inodes that came by other ways are known by number alone.
            let attr = self.fs.getattr(ino, None).await?;
            names.push((name, Some(self.state.show(&attr).id)));
        }
        Ok(Outcome::Names(names))
    }

    /// Makes a change during a scan, and takes out of `lasting` what it touched.
    async fn change(
        &mut self,
        scanned: Handle,
        change: &Op,
        lasting: &mut BTreeMap<Vec<u8>, Ino>,
    ) -> Result<()> {
        // On the heap, as a future does not hold itself.
        let _ = Box::pin(perform(self.fs, self.state, change)).await;
        match touched(change) {
            Some(names) => lasting.retain(|name, _| !names.contains(name)),
            None => lasting.clear(),
        }
        let present: BTreeSet<_> = self.entries(scanned, 0).await?.names.into_iter().collect();
        lasting.retain(|name, ino| present.contains(&(name.clone(), *ino)));
        Ok(())
    }

    async fn entries(&mut self, handle: Handle, offset: u64) -> Result<Part> {
        self.entries_from(handle, offset, 0).await
    }

    /// Up to `batch` entries (0: all).
    async fn entries_from(&mut self, handle: Handle, offset: u64, batch: u8) -> Result<Part> {
        let (mut out, mut next, mut stopped) = (Vec::new(), offset, false);
        let mut sink = |entry: fs::DirEntry<'_>| {
            if batch > 0 && out.len() == batch as usize {
                stopped = true;
                return false;
            }
            out.push((entry.name.to_vec(), entry.attr.ino));
            next = entry.next_offset;
            true
        };
        self.fs.readdir(handle, offset, &mut sink).await?;
        Ok(Part { names: out, next, more: stopped })
    }

    /// Where data and holes are is up to the file system, but what it skips or calls a hole must read as zeros.
    pub(super) async fn seek(&mut self, handle: Handle, offset: u64, hole: bool) -> Out {
        let what = if hole { Seek::Hole } else { Seek::Data };
        let found = self.fs.seek(handle, offset, what).await;
        // First of all one read on every path, so that access times move alike wherever holes are.
        let inside = self.exists(handle, offset).await;
        let at = match found {
            Ok(at) => at,
            Err(fs::Error::NoSuchOffset) if !hole => {
                // No data any more, or behind the end: the rest of the file reads as zeros.
                return Ok(match self.nonzero(handle, offset, u64::MAX).await {
                    Some(at) => Outcome::Broken(format!("no data behind {offset}, but a byte at {at}")),
                    None => Outcome::Done,
                });
            }
            Err(e) => return Err(e),
        };
        let last = if hole { at.saturating_sub(1).max(offset) } else { at };
        if at < offset || inside == Some(false) || self.exists(handle, last).await == Some(false) {
            return Ok(Outcome::Broken(format!("{what:?} found at {at} from {offset}")));
        }
        let (from, to) = if hole { (at, at.saturating_add(1)) } else { (offset, at) };
        Ok(match self.nonzero(handle, from, to).await {
            Some(byte) => Outcome::Broken(format!("{what:?} at {at} from {offset}, but a byte at {byte}")),
            None => Outcome::Done,
        })
    }

    /// Whether the file reaches beyond this offset. `None` when the handle cannot read.
    async fn exists(&mut self, handle: Handle, offset: u64) -> Option<bool> {
        let mut bytes = [0; 512];
        self.fs.read(handle, offset & !511, &mut bytes).await.ok().map(|n| n as u64 > offset % 512)
    }

    /// A byte in the range that is not zero, looked for near both ends. `None` also when the handle cannot read.
    async fn nonzero(&mut self, handle: Handle, from: u64, to: u64) -> Option<u64> {
        let mut bytes = vec![0; HOLE_PROBE as usize];
        for start in [from, to.saturating_sub(HOLE_PROBE).max(from) & !511] {
            let len = to.saturating_sub(start).min(HOLE_PROBE) as usize;
            let n = self.fs.read(handle, start, &mut bytes[..len]).await.unwrap_or(0);
            let at = (0..n).find(|&i| bytes[i] != 0 && start + i as u64 >= from);
            if let Some(at) = at {
                return Some(start + at as u64);
            }
        }
        None
    }
}

/// The names that a change of a directory may have touched.
fn touched(op: &Op) -> Option<Vec<Vec<u8>>> {
    Some(match *op {
        Op::MkDir { name: n, .. }
        | Op::MkNod { name: n, .. }
        | Op::SymLink { name: n, .. }
        | Op::Create { name: n, .. }
        | Op::Link { name: n, .. }
        | Op::Unlink { name: n, .. }
        | Op::RmDir { name: n, .. } => vec![name(n)],
        Op::Rename { name: n, new_name, .. } => vec![name(n), name(new_name)],
        _ => return None,
    })
}

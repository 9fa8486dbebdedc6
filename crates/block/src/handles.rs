//! Open files and directories, and each sequential reader's window.

use crate::inode::Slot;
use foldhash::fast::FixedState;
use format::Ino;
use fs::{Cred, Error, Handle, OpenFlags};
use std::collections::HashMap;

/// Window of a sequential reader: starts small, doubles with every window that is read through, falls back on a jump.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReadAhead {
    /// Where the next read begins if the reader is sequential.
    next: u64,
    /// Size of the current window; 0 for a reader that jumps.
    window: u64,
    /// Up to where reads were started.
    until: u64,
    /// A sequential reader that gets here asks for more.
    trigger: u64,
}

const FIRST_WINDOW: u64 = 128 << 10;

impl ReadAhead {
    /// A read of `start..end`; returns the range to be read ahead, if any. A window that grows is asked for when the reader is
    /// past the middle of the one before, so that the device is busy while the reader works.
    pub fn advance(&mut self, start: u64, end: u64, max: u64) -> Option<(u64, u64)> {
        let sequential = start == self.next;
        let first = start == 0 && self.next == 0;
        self.next = end;
        if !sequential || max == 0 || (first && end < FIRST_WINDOW / 2) {
            // A jump, or one small read from the start, which says little.
            *self = ReadAhead { next: end, window: 0, until: end, trigger: 0 };
            return None;
        }
        if self.window == 0 {
            self.window = FIRST_WINDOW.max(2 * (end - start)).min(max);
            (self.until, self.trigger) = (end, end);
        }
        if end < self.trigger {
            return None;
        }
        let (from, to) = (self.until.max(end), end + self.window);
        // At its full size it is refilled in smaller steps, so that about as much is always on its way.
        self.trigger = end + if self.window < max { self.window / 2 } else { self.window / 4 };
        self.until = to.max(self.until);
        self.window = (self.window * 2).min(max);
        (from < to).then_some((from, to))
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Open {
    pub slot: Slot,
    /// What has the slot. By it locks are kept: the handle has them a moment longer than an inode without names has its slot.
    pub ino: Ino,
    pub flags: OpenFlags,
    pub directory: bool,
    pub ahead: ReadAhead,
    /// Where the last write ended that appended.
    pub appended: Option<u64>,
}

/// All open handles. Numbers are not reused.
#[derive(Default)]
pub(crate) struct Handles {
    open: HashMap<u64, (Open, Cred), FixedState>,
    last: u64,
}

impl Handles {
    pub fn insert(&mut self, open: Open, cred: Cred) -> Handle {
        self.last += 1;
        self.open.insert(self.last, (open, cred));
        Handle(self.last)
    }
    /// A number for a file that is opened later.
    pub fn set_aside(&mut self) -> Handle {
        self.last += 1;
        Handle(self.last)
    }
    /// Opens a file under a number that was set aside.
    pub fn insert_as(&mut self, handle: Handle, open: Open, cred: Cred) {
        self.open.insert(handle.0, (open, cred));
    }
    pub fn get(&self, handle: Handle) -> Result<&Open, Error> {
        self.open.get(&handle.0).map(|o| &o.0).ok_or(Error::BadHandle)
    }
    /// Who opened the file.
    pub fn cred(&self, handle: Handle) -> Option<&Cred> {
        self.open.get(&handle.0).map(|o| &o.1)
    }
    pub fn get_mut(&mut self, handle: Handle) -> Result<&mut Open, Error> {
        self.open.get_mut(&handle.0).map(|o| &mut o.0).ok_or(Error::BadHandle)
    }
    /// The open file, if it is a file that was opened with all of `flags`.
    pub fn file(&self, handle: Handle, flags: OpenFlags) -> Result<&Open, Error> {
        let open = self.get(handle)?;
        if !open.flags.contains(flags) {
            return Err(Error::BadHandle);
        }
        if open.directory {
            return Err(Error::IsDirectory);
        }
        Ok(open)
    }
    pub fn remove(&mut self, handle: Handle) -> Result<Open, Error> {
        self.open.remove(&handle.0).map(|o| o.0).ok_or(Error::BadHandle)
    }
    pub fn len(&self) -> usize {
        self.open.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_double_and_collapse() {
        let mut r = ReadAhead::default();
        let max = 1 << 20;
        assert_eq!(r.advance(0, 4096, max), None, "the first small read");
        let (from, to) = r.advance(4096, 8192, max).unwrap();
        assert_eq!((from, to), (8192, 8192 + FIRST_WINDOW));
        assert_eq!(r.advance(8192, 12288, max), None, "the window is ahead enough");
        let mut at = 12288;
        let mut largest = 0;
        for _ in 0..2000 {
            if let Some((from, to)) = r.advance(at, at + 4096, max) {
                assert!(from < to);
                largest = largest.max(to - at);
            }
            at += 4096;
        }
        assert!(largest > 512 << 10 && largest <= max + 8192, "{largest}");
        assert_eq!(r.advance(5, 10, max), None, "a jump");
    }
}

//! Names by which files that are open can be opened once more through another door, wherever their own names lead by now: a kernel that is to map a file
//! has no other way to one that was renamed, removed, or never had a name.
//!
//! A pass is a name that is found in every directory, and in no listing. It is drawn by chance, so that only those find it who were told, and holds for as
//! long as the handle that it was given for is open: with that, who opens the file so could have opened it anyway. Whatever else is needed to
//! open a file, the door that is asked checks as always.

use crate::types::Handle;
use foldhash::fast::FixedState;
use format::Ino;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Directories in which one pass may be looked up.
const DIRECTORIES_MAX: usize = 16;

/// What the names begin with. Behind it stand [`DIGITS`] digits.
const PREFIX: &[u8] = b".freehold-pass-";
const DIGITS: usize = 32;

struct Pass {
    name: Vec<u8>,
    /// Directories in which it was looked up: other doors may know it there.
    looked_up: SmallVec<[Ino; 1]>,
}

#[derive(Default)]
struct All {
    passes: HashMap<Handle, Pass, FixedState>,
    /// What they are the passes of.
    handles: HashMap<Vec<u8>, Handle, FixedState>,
}

/// All passes of a file system.
#[derive(Default)]
pub(crate) struct Passes {
    all: Mutex<All>,
    /// How many there are: mostly none, and then a close costs a look.
    count: AtomicUsize,
}

impl Passes {
    /// The pass of an open file.
    pub fn of(&self, handle: Handle) -> Vec<u8> {
        let mut all = self.all.lock();
        if let Some(pass) = all.passes.get(&handle) {
            return pass.name.clone();
        }
        let digits = format!("{:0DIGITS$x}", rand::random::<u128>());
        let name = [PREFIX, digits.as_bytes()].concat();
        all.handles.insert(name.clone(), handle);
        all.passes.insert(handle, Pass { name: name.clone(), looked_up: SmallVec::new() });
        self.count.store(all.passes.len(), Ordering::Release);
        name
    }

    /// The open file that a name is the pass of.
    #[inline]
    pub fn find(&self, name: &[u8]) -> Option<Handle> {
        if name.len() != PREFIX.len() + DIGITS || !name.starts_with(PREFIX) {
            return None;
        }
        self.all.lock().handles.get(name).copied()
    }

    /// The pass of this file is looked up in a directory that is there. Whether that may be: each one is told when the pass ends.
    pub fn is_looked_up(&self, handle: Handle, dir: Ino) -> bool {
        let mut all = self.all.lock();
        let Some(pass) = all.passes.get_mut(&handle) else { return false };
        let is_known = pass.looked_up.contains(&dir);
        if !is_known && pass.looked_up.len() < DIRECTORIES_MAX {
            pass.looked_up.push(dir);
            return true;
        }
        is_known
    }

    /// The file is closed: its pass is no more, which stood in these directories.
    #[inline]
    pub fn end(&self, handle: Handle) -> Option<(Vec<u8>, SmallVec<[Ino; 1]>)> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut all = self.all.lock();
        let pass = all.passes.remove(&handle)?;
        all.handles.remove(&pass.name);
        self.count.store(all.passes.len(), Ordering::Release);
        Some((pass.name, pass.looked_up))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_lasts_as_long_as_its_handle() {
        let passes = Passes::default();
        let (one, two) = (passes.of(Handle(1)), passes.of(Handle(2)));
        assert_eq!((passes.of(Handle(1)), one.len()), (one.clone(), 47));
        assert_ne!(one, two);
        assert_eq!((passes.find(&one), passes.find(&two)), (Some(Handle(1)), Some(Handle(2))));
        assert_eq!(passes.find(b"name"), None);
        assert!([5, 6, 5].into_iter().all(|dir| passes.is_looked_up(Handle(1), Ino(dir))));
        assert!(!passes.is_looked_up(Handle(3), Ino(5)));
        let (name, dirs) = passes.end(Handle(1)).unwrap();
        assert_eq!((name, dirs.as_slice()), (one.clone(), &[Ino(5), Ino(6)][..]));
        assert_eq!((passes.find(&one), passes.find(&two)), (None, Some(Handle(2))));
        assert!(!passes.is_looked_up(Handle(1), Ino(5)), "it was closed meanwhile");
        assert!(passes.end(Handle(1)).is_none() && passes.end(Handle(2)).is_some());
    }

    #[test]
    fn many_passes_cost_a_close_no_more() {
        let (passes, begun) = (Passes::default(), std::time::Instant::now());
        let names: Vec<Vec<u8>> = (0..100_000).map(|handle| passes.of(Handle(handle))).collect();
        for (n, name) in names.iter().enumerate().rev().step_by(10) {
            let handle = Handle(n as u64);
            assert_eq!(passes.find(name), Some(handle));
            assert!(passes.end(Handle(100_000)).is_none());
            assert_eq!(&passes.end(handle).unwrap().0, name);
        }
        assert!(begun.elapsed().as_secs() < 5, "{:?}", begun.elapsed());
    }
}

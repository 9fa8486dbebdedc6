//! What the clients of a manager had open when that was stopped, for the next one: they open it again, also what its mode forbids by then. A file that was made without a
//! permission, or lost one since, stays open to who has it open.
//!
//! The next manager believes what the one before it has written down, for as long as clients may take to come, and keeps these files meanwhile, should their names go. Of one that was
//! killed there is nothing: then names and permissions decide. Nor of what a client has open without the manager knowing of it.
//!
//! Tested in tests/all/stopping.rs.

use foldhash::fast::FixedState;
use fs::{Cred, FileSystem, Handle, Ino, OpenFlags, Watched};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// An open file of a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Right {
    /// The credentials of the client, which those who use it must have: user, group, supplementary groups.
    pub cred: (u32, u32, Vec<u32>),
    /// The file, with its generation.
    pub inode: (Ino, u32),
    /// Bits of [`OpenFlags`]: reading, writing, or both.
    pub access: OpenFlags,
}

/// What one manager has from the one before it, and leaves to the next one.
#[derive(Debug, Default)]
pub struct Rights(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    before: HashMap<(Ino, u32), Vec<Right>, FixedState>,
    until: Option<Instant>,
    /// What keeps these files.
    pins: Vec<(Handle, Ino)>,
    left: HashSet<Right, FixedState>,
}

/// What is left at most; more is opened again as permissions allow.
const LEFT_MAX: usize = 1 << 16;

impl Right {
    fn new(cred: &Cred, inode: (Ino, u32), flags: OpenFlags) -> Right {
        let access = flags & (OpenFlags::READ | OpenFlags::WRITE);
        Right { cred: (cred.uid, cred.gid, cred.groups.to_vec()), inode, access }
    }
}

impl Rights {
    /// Of a manager that was stopped, whose clients may come `within` this time.
    pub fn new(before: Vec<Right>, within: Duration) -> Rights {
        let mut of: HashMap<(Ino, u32), Vec<Right>, FixedState> = HashMap::default();
        before.into_iter().for_each(|right| of.entry(right.inode).or_default().push(right));
        let until = Instant::now().checked_add(within).filter(|_| !of.is_empty());
        Rights(Mutex::new(Inner { before: of, until, ..Inner::default() }))
    }

    /// Whether who has these credentials had the file open so.
    pub(crate) fn allow(&self, cred: &Cred, inode: (Ino, u32), flags: OpenFlags) -> bool {
        let inner = self.0.lock();
        if !inner.counts() {
            return false;
        }
        let asked = Right::new(cred, inode, flags);
        let mut had = inner.before.get(&inode).into_iter().flatten();
        // What is opened again is not emptied.
        !flags.contains(OpenFlags::TRUNCATE)
            && had.any(|right| right.cred == asked.cred && right.access.contains(asked.access))
    }

    /// Keeps the files that may be asked for.
    pub(crate) fn keep<F: FileSystem>(&self, fs: &Watched<F>) {
        let files: Vec<_> = self.0.lock().before.keys().copied().collect();
        // What is gone since nobody can come for.
        let pins = files.into_iter().filter_map(|file| Some((fs.block_on(fs.pin(file)).ok()?, file.0)));
        let pins: Vec<_> = pins.collect();
        self.0.lock().pins = pins;
    }

    /// Until when they are kept.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.0.lock().until
    }

    /// Nobody can come any more, or with `ends` no more to this manager: files that have a name, or would not be kept for the next one, are not kept any longer.
    pub(crate) fn end<F: FileSystem>(&self, fs: &Watched<F>, ends: bool) {
        let pins = {
            let mut inner = self.0.lock();
            if !ends {
                (inner.before, inner.until) = (HashMap::default(), None);
            }
            std::mem::take(&mut inner.pins)
        };
        for (pin, ino) in pins {
            let is_nameless = || fs.block_on(fs.getattr(ino, Some(pin))).is_ok_and(|attr| attr.nlink == 0);
            if ends && is_nameless() {
                continue;
            }
            if let Err(e) = fs.block_on(fs.release(pin)) {
                tracing::warn!("closing a file that was kept for programs: {e}");
            }
        }
    }

    /// A client has this open when the manager ends.
    pub(crate) fn leave(&self, cred: &Cred, inode: (Ino, u32), flags: OpenFlags) {
        let mut inner = self.0.lock();
        if inner.left.len() < LEFT_MAX {
            inner.left.insert(Right::new(cred, inode, flags));
        }
    }

    /// What clients had open when the server was stopped that had this, or had open before and may come for still.
    pub fn left(&self) -> Vec<Right> {
        let mut inner = self.0.lock();
        let mut all = std::mem::take(&mut inner.left);
        if inner.counts() {
            all.extend(std::mem::take(&mut inner.before).into_values().flatten());
        }
        all.into_iter().collect()
    }
}

impl Inner {
    fn counts(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
    }
}

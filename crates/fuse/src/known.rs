//! What the kernel may keep of the volume: names, attributes and pages that it was given. What it was not given, or was told to drop and
//! has not asked for since, need not be told when another door changes it: such a message costs more than most of the calls that
//! would cause it.
//!
//! Order: what is about to be given is noted first and then asked of the engine, and whoever changes something looks here after the change.
//! So either the note is seen and the kernel is told, or the change came before the engine was asked. Where the note can only be made
//! afterwards (which inode a name leads to), it says whether it is new; then the engine must be asked again.
//!
//! An answer on its way: the kernel orders what it is told with its own requests about an inode or a directory that it has. Of an inode
//! that it is only about to learn of it says that it does not know it, and would then take in the old attributes; so whoever
//! tells it tries again until it knows ([`Known::expects`]). And attributes that come in answer to a change of them, or to a link, it takes in whatever
//! it was told since it asked; so whoever tells it waits until it has ([`Known::take_changing`]).

use foldhash::fast::FixedState;
use fs::Ino;
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Names that are told apart; with more of them all count as given.
const NAMES_MAX: usize = 1 << 20;

/// See the module.
#[derive(Default)]
pub struct Known {
    inodes: Mutex<HashMap<Ino, Given, FixedState>>,
    names: Mutex<Names>,
    /// Inodes of which the kernel is told, and their number.
    told: Mutex<HashSet<Ino, FixedState>>,
    tellings: AtomicUsize,
    ends: Condvar,
}

/// See [`Known::telling`].
pub struct Telling<'a> {
    known: &'a Known,
    ino: Ino,
}

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        self.known.told.lock().remove(&self.ino);
        self.known.tellings.fetch_sub(1, Ordering::SeqCst);
        self.known.ends.notify_all();
    }
}

#[derive(Clone, Copy, Default)]
struct Given {
    /// Times that the kernel was given this inode as an answer to a lookup, without those it took back.
    lookups: u64,
    /// Which one with this number it was given last.
    generation: u32,
    attr: bool,
    /// And will be taken in even if they are old by then.
    changing: bool,
    pages: bool,
    /// See [`Known::lost`].
    lost: bool,
}

#[derive(Default)]
struct Names {
    hashes: HashSet<u64, FixedState>,
    all: bool,
}

fn hash(parent: Ino, name: &[u8]) -> u64 {
    let mut h = FixedState::with_seed(0x6e61_6d65).build_hasher();
    h.write_u64(parent.0);
    h.write(name);
    h.finish()
}

impl Known {
    /// A name is about to be given, or that there is none. True when that is new.
    pub fn name(&self, parent: Ino, name: &[u8]) -> bool {
        let mut names = self.names.lock();
        if names.hashes.len() >= NAMES_MAX {
            (names.all, names.hashes) = (true, HashSet::default());
            return true;
        }
        !names.all && names.hashes.insert(hash(parent, name))
    }

    /// Attributes of an inode are about to be given.
    pub fn attr(&self, ino: Ino) {
        self.inodes.lock().entry(ino).or_default().attr = true;
    }

    /// As [`Known::attr`], in answer to a request that changes them, for which the kernel has the inode locked.
    pub fn changing(&self, ino: Ino) {
        let mut inodes = self.inodes.lock();
        let given = inodes.entry(ino).or_default();
        (given.attr, given.changing) = (true, true);
    }

    /// Whether there was such a request since this was asked last.
    pub fn take_changing(&self, ino: Ino) -> bool {
        self.inodes.lock().get_mut(&ino).is_some_and(|given| std::mem::take(&mut given.changing))
    }

    /// An inode is the answer to a lookup, with its attributes. True when that is new.
    pub fn looked_up(&self, ino: Ino, generation: u32) -> bool {
        let mut inodes = self.inodes.lock();
        let given = inodes.entry(ino).or_default();
        given.lookups += 1;
        given.generation = generation;
        given.lost = false;
        !std::mem::replace(&mut given.attr, true)
    }

    /// Pages of a file are about to be given, or were written there.
    pub fn pages(&self, ino: Ino) {
        self.inodes.lock().entry(ino).or_default().pages = true;
    }

    /// Which one with this number the kernel means. `None` when that was never said: the root.
    pub fn generation(&self, ino: Ino) -> Option<u32> {
        self.inodes.lock().get(&ino).filter(|given| given.lookups > 0).map(|given| given.generation)
    }

    /// Whether the kernel has this inode, or an answer that brings it is on its way.
    pub fn expects(&self, ino: Ino) -> bool {
        self.inodes.lock().get(&ino).is_some_and(|given| given.lookups > 0 && !given.lost)
    }

    /// The kernel does not have this inode after all: the answer was never taken in. From now on it is told of each change, once.
    pub fn lost(&self, ino: Ino) {
        if let Some(given) = self.inodes.lock().get_mut(&ino) {
            (given.lost, given.attr, given.pages) = (true, true, true);
        }
    }

    /// The kernel has dropped everything about an inode that it was given so many times.
    pub fn forget(&self, ino: Ino, lookups: u64) {
        let mut inodes = self.inodes.lock();
        if let Some(given) = inodes.get_mut(&ino) {
            given.lookups = given.lookups.saturating_sub(lookups);
            if given.lookups == 0 {
                inodes.remove(&ino);
            }
        }
    }

    /// Until this is dropped the kernel is told of something that an inode has, or of a name in it, by nobody else. That counts as no longer kept from
    /// the beginning, and the kernel may keep it until the end.
    pub fn telling(&self, ino: Ino) -> Telling<'_> {
        let mut told = self.told.lock();
        while !told.insert(ino) {
            self.ends.wait(&mut told);
        }
        self.tellings.fetch_add(1, Ordering::SeqCst);
        Telling { known: self, ino }
    }

    /// Whether that is so. Who asks has seen before that something is not kept.
    pub fn is_telling(&self, ino: Ino) -> bool {
        self.tellings.load(Ordering::SeqCst) > 0 && self.told.lock().contains(&ino)
    }

    /// Whether the kernel may keep a name.
    pub fn has_name(&self, parent: Ino, name: &[u8]) -> bool {
        let names = self.names.lock();
        names.all || names.hashes.contains(&hash(parent, name))
    }

    /// Whether the kernel may keep attributes.
    pub fn has_attr(&self, ino: Ino) -> bool {
        self.inodes.lock().get(&ino).is_some_and(|given| given.attr)
    }

    /// Whether the kernel may keep attributes or pages.
    pub fn has_data(&self, ino: Ino) -> bool {
        self.inodes.lock().get(&ino).is_some_and(|given| given.attr || given.pages)
    }

    /// A name changed. Whether the kernel must be told; then it will have dropped it.
    pub fn take_name(&self, parent: Ino, name: &[u8]) -> bool {
        let mut names = self.names.lock();
        names.all || names.hashes.remove(&hash(parent, name))
    }

    /// Attributes changed. Whether the kernel must be told; then it will have dropped them.
    pub fn take_attr(&self, ino: Ino) -> bool {
        self.inodes.lock().get_mut(&ino).is_some_and(|given| std::mem::replace(&mut given.attr, false))
    }

    /// Bytes of a file changed, or all of it. `None` when the kernel keeps nothing; else whether it keeps pages. It will have dropped
    /// them.
    pub fn take_data(&self, ino: Ino, all: bool) -> Option<bool> {
        let mut inodes = self.inodes.lock();
        let given = inodes.get_mut(&ino)?;
        let before = *given;
        given.attr = false;
        given.pages &= !all;
        (before.attr || before.pages).then_some(before.pages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: Ino = Ino(5);

    #[test]
    fn told_once_until_it_is_given_again() {
        let known = Known::default();
        assert!(!known.take_attr(INO) && !known.take_name(INO, b"a") && known.take_data(INO, true).is_none());
        assert!(!known.has_attr(INO) && !known.has_name(INO, b"a") && !known.has_data(INO));
        assert!(known.name(INO, b"a") && !known.name(INO, b"a") && known.has_name(INO, b"a"));
        assert!(known.looked_up(INO, 1) && !known.looked_up(INO, 1));
        assert!(known.has_attr(INO) && known.has_data(INO));
        assert!(known.take_name(INO, b"a") && !known.take_name(INO, b"a"));
        assert!(known.take_attr(INO) && !known.take_attr(INO));
        known.attr(INO);
        assert_eq!(known.take_data(INO, false), Some(false));
        known.pages(INO);
        assert!(!known.has_attr(INO) && known.has_data(INO));
        assert_eq!(known.take_data(INO, false), Some(true), "other pages are left");
        assert_eq!(known.take_data(INO, true), Some(true));
        assert_eq!(known.take_data(INO, true), None);
        assert!(known.looked_up(INO, 1));
        known.forget(INO, 2);
        assert!(known.take_attr(INO), "one lookup is left");
        known.pages(INO);
        known.forget(INO, 1);
        assert!(known.take_data(INO, true).is_none());
        known.changing(INO);
        assert!(known.has_attr(INO) && known.take_changing(INO) && !known.take_changing(INO));
        let telling = known.telling(INO);
        assert!(known.take_attr(INO) && !known.has_attr(INO) && known.is_telling(INO));
        drop(known.telling(Ino(6)));
        assert!(!known.is_telling(Ino(6)), "of others somebody else tells");
        std::thread::scope(|s| {
            let other = s.spawn(|| drop(known.telling(INO)));
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!other.is_finished());
            drop(telling);
        });
        assert!(!known.is_telling(INO));
    }

    #[test]
    fn too_many_names_all_count() {
        let known = Known::default();
        // The last of them as well: it was not noted before.
        assert!((0..NAMES_MAX + 1).all(|i| known.name(INO, &i.to_le_bytes())));
        assert!(!known.name(INO, b"another"));
        assert!(known.take_name(INO, b"any") && known.take_name(INO, b"any"));
    }
}

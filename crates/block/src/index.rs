//! The two in-memory indexes (UHSFS, section 2.1): a hash index on (parent, name) for opening and stat, and an ordered list
//! of names for each directory for readdir. Both are rebuilt from the inodes at mount; nothing of them is stored.
//!
//! The original keys its hash index by the full path; with (parent, name) a directory can be renamed by one inode write.
//! The ordered list is a sorted vector of (cookie, slot): cookies grow with every new name, so adding is a push, finding
//! and removing are a binary search, and a cookie stays a valid readdir offset whatever else changes. It is smaller and
//! faster than a B-tree because names are added at its end; a name that is replaced keeps its place.

use crate::inode::Slot;
use crate::nametable::NameTable;
use crate::slab::Slab;
use foldhash::fast::FixedState;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};

/// Offsets 0, 1 and 2 of readdir stand for the start, behind "." and behind "..".
pub(crate) const FIRST_COOKIE: u64 = 3;
/// What a volume has at and above this is refused: the next one must still fit.
pub(crate) const COOKIE_MAX: u64 = 1 << 62;
const DEAD: Slot = 0;

/// The names in one directory, ordered by cookie.
#[derive(Default)]
pub(crate) struct Dir {
    entries: Vec<(u64, Slot)>,
    dead: usize,
    next_cookie: u64,
    /// Behind the last name that was there when the last scan began.
    scans_end: u64,
}

impl Dir {
    /// Number of names.
    pub fn len(&self) -> usize {
        self.entries.len() - self.dead
    }
    /// Adds a name at the end and returns its cookie.
    pub fn push(&mut self, slot: Slot) -> u64 {
        let cookie = self.next_cookie.max(FIRST_COOKIE);
        self.next_cookie = cookie + 1;
        self.entries.push((cookie, slot));
        cookie
    }
    /// Adds a name at a place that another has left; returns its cookie.
    fn put_back(&mut self, cookie: u64, slot: Slot) -> u64 {
        match self.entries.binary_search_by_key(&cookie, |e| e.0) {
            Ok(i) if self.entries[i].1 == DEAD => {
                self.entries[i].1 = slot;
                self.dead -= 1;
            }
            // On a damaged image two names have one place.
            Ok(_) => return self.push(slot),
            Err(i) => self.entries.insert(i, (cookie, slot)),
        }
        cookie
    }
    /// The name at `cookie` now belongs to another slot.
    fn rebind(&mut self, cookie: u64, slot: Slot) {
        if let Ok(i) = self.entries.binary_search_by_key(&cookie, |e| e.0) {
            self.entries[i].1 = slot;
        }
    }
    /// At mount: adds a name with a known cookie, in any order. [`Dir::settle`] must follow.
    pub fn push_known(&mut self, cookie: u64, slot: Slot) {
        self.entries.push((cookie, slot));
    }
    /// Sorts after a series of [`Dir::push_known`]. False when two names have one place.
    pub fn settle(&mut self) -> bool {
        if !self.entries.is_sorted() {
            self.entries.sort_unstable();
        }
        self.next_cookie = self.entries.last().map_or(FIRST_COOKIE, |e| e.0 + 1);
        self.scans_end = self.next_cookie;
        self.entries.shrink_to_fit();
        self.entries.is_sorted_by(|a, b| a.0 < b.0)
    }
    pub fn remove(&mut self, cookie: u64) {
        if let Ok(i) = self.entries.binary_search_by_key(&cookie, |e| e.0) {
            self.entries[i].1 = DEAD;
            self.dead += 1;
            if self.dead > 64 && self.dead > self.entries.len() / 2 {
                self.entries.retain(|e| e.1 != DEAD);
                self.dead = 0;
            }
        }
    }
    /// All names, in order.
    pub fn names(&self) -> impl Iterator<Item = (u64, Slot)> + '_ {
        self.entries.iter().copied().filter(|e| e.1 != DEAD)
    }
    /// Names with a cookie of at least `from`, in order, up to the last that was there when the last scan began.
    pub fn scan(&self, from: u64) -> impl Iterator<Item = (u64, Slot)> + '_ {
        let i = self.entries.partition_point(|e| e.0 < from);
        let until = self.scans_end;
        self.entries[i..].iter().copied().take_while(move |e| e.0 < until).filter(|e| e.1 != DEAD)
    }
}

/// Both indexes, and which additional names lead to an inode.
pub(crate) struct Index {
    links: HashMap<Slot, Vec<Slot>, FixedState>,
    names: NameTable,
    hasher: FixedState,
    dirs: HashMap<Slot, Dir, FixedState>,
}

impl Index {
    /// `seed` makes the hash unpredictable, so that nobody can choose names that collide.
    pub fn new(seed: u64) -> Index {
        let hasher = FixedState::with_seed(seed);
        Index {
            links: HashMap::with_hasher(hasher.clone()),
            names: NameTable::default(),
            dirs: HashMap::with_hasher(hasher.clone()),
            hasher,
        }
    }

    /// Makes room for `n` more names.
    pub fn reserve(&mut self, n: usize) {
        self.names.reserve(n);
    }

    fn hash(&self, parent: Slot, name: &[u8]) -> u32 {
        let mut h = self.hasher.build_hasher();
        h.write_u32(parent);
        h.write(name);
        let h = h.finish();
        (h ^ h >> 32) as u32
    }

    /// The slot that has this name: an inode, or an additional name of one.
    pub fn find(&self, slab: &Slab, parent: Slot, name: &[u8]) -> Option<Slot> {
        self.names.find(self.hash(parent, name), |s| {
            slab.prefetch(s);
            let inode = slab.get(s);
            inode.parent == parent && inode.name.bytes() == name
        })
    }

    /// Enters the name that `slot` has in the slab, at a place of its directory that another name has left, or at the end;
    /// returns the cookie.
    pub fn insert(&mut self, slab: &Slab, slot: Slot, place: Option<u64>) -> u64 {
        self.insert_name(slab, slot);
        let dir = self.dirs.entry(slab.get(slot).parent).or_default();
        match place {
            Some(cookie) => dir.put_back(cookie, slot),
            None => dir.push(slot),
        }
    }

    /// At mount: enters a name with its known cookie. False when the name is there already.
    pub fn insert_known(&mut self, slab: &Slab, slot: Slot) -> bool {
        let inode = slab.get(slot);
        if self.find(slab, inode.parent, inode.name.bytes()).is_some() {
            return false;
        }
        self.insert_name(slab, slot);
        self.dirs.entry(inode.parent).or_default().push_known(inode.cookie, slot);
        true
    }

    /// Ends a series of [`Index::insert_known`]. False when two names have one place in their directory.
    pub fn settle(&mut self) -> bool {
        self.dirs.values_mut().all(Dir::settle)
    }

    fn insert_name(&mut self, slab: &Slab, slot: Slot) {
        let inode = slab.get(slot);
        self.names.insert(self.hash(inode.parent, inode.name.bytes()), slot);
    }

    /// Takes the name of `slot`, as it stands in the slab, out of both indexes.
    pub fn remove(&mut self, slab: &Slab, slot: Slot) {
        let inode = slab.get(slot);
        self.names.remove(self.hash(inode.parent, inode.name.bytes()), slot);
        if let Some(dir) = self.dirs.get_mut(&inode.parent) {
            dir.remove(inode.cookie);
        }
    }

    /// The name of `link`, as it stands in the slab, will be that of `heir`, at the same place of the directory. The caller
    /// then copies parent, name and cookie.
    pub fn bequeath(&mut self, slab: &Slab, link: Slot, heir: Slot) {
        let inode = slab.get(link);
        self.names.rebind(self.hash(inode.parent, inode.name.bytes()), link, heir);
        if let Some(dir) = self.dirs.get_mut(&inode.parent) {
            dir.rebind(inode.cookie, heir);
        }
    }

    /// An additional name of `target` was made.
    pub fn add_link(&mut self, target: Slot, link: Slot) {
        self.links.entry(target).or_default().push(link);
    }
    /// An additional name went away.
    pub fn remove_link(&mut self, target: Slot, link: Slot) {
        if let Some(links) = self.links.get_mut(&target) {
            links.retain(|&l| l != link);
            if links.is_empty() {
                self.links.remove(&target);
            }
        }
    }
    /// The additional names of `target`.
    pub fn links(&self, target: Slot) -> &[Slot] {
        self.links.get(&target).map_or(&[], |l| l)
    }

    /// The names in a directory; `None` when it never had one.
    pub fn dir(&self, slot: Slot) -> Option<&Dir> {
        self.dirs.get(&slot)
    }
    /// A scan of a directory begins: it, and those that are under way, give the names that are there now, and none that are
    /// made later, however long they take. One end for all scans, as the kernel puts its list of a directory together from several.
    pub fn begin_scan(&mut self, slot: Slot) {
        if let Some(dir) = self.dirs.get_mut(&slot) {
            dir.scans_end = dir.next_cookie;
        }
    }
    /// Whether a directory has no names.
    pub fn is_empty_dir(&self, slot: Slot) -> bool {
        self.dirs.get(&slot).is_none_or(|d| d.len() == 0)
    }
    /// Forgets a directory that was removed.
    pub fn drop_dir(&mut self, slot: Slot) {
        self.dirs.remove(&slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode::{Inode, Name};
    use format::SegNo;
    use format::inode::SlotKind;

    #[test]
    fn names_and_offsets() {
        let mut slab = Slab::default();
        slab.add_chunk(0, SegNo(1), true);
        let mut index = Index::new(1);
        let mut slots = Vec::new();
        for i in 0..200u32 {
            let slot = slab.alloc().unwrap();
            let inode = Inode {
                kind: SlotKind::Inode,
                parent: 1,
                name: Name::new(format!("n{i}").as_bytes()),
                ..Inode::free(1)
            };
            *slab.get_mut(slot) = inode;
            let cookie = index.insert(&slab, slot, None);
            slab.get_mut(slot).cookie = cookie;
            slots.push(slot);
        }
        assert_eq!(index.find(&slab, 1, b"n7"), Some(slots[7]));
        assert_eq!(index.find(&slab, 2, b"n7"), None);
        assert!(index.dir(1).unwrap().scan(0).next().is_none(), "no scan has begun");
        index.begin_scan(1);
        let at = slab.get(slots[150]).cookie;
        for &s in &slots[..149] {
            index.remove(&slab, s);
        }
        let left: Vec<Slot> = index.dir(1).unwrap().scan(at).map(|e| e.1).collect();
        assert_eq!(left, slots[150..], "offsets stay valid while the list is compacted");
        assert_eq!(index.dir(1).unwrap().len(), 51);
        // The name of the first takes a place in the middle that was left, and one that is not even kept any more.
        let cookie = slab.get(slots[150]).cookie;
        index.remove(&slab, slots[150]);
        assert_eq!(index.insert(&slab, slots[0], Some(cookie)), cookie);
        assert_eq!(index.insert(&slab, slots[1], Some(7)), 7);
        assert_eq!(index.insert(&slab, slots[2], Some(7)), 203, "taken");
        let dir = index.dir(1).unwrap();
        let all: Vec<Slot> = dir.names().map(|e| e.1).collect();
        assert_eq!((all[0], all[2], all[52], all.len()), (slots[1], slots[0], slots[2], dir.len()));
        assert!(dir.scan(0).map(|e| e.1).eq(all[..52].iter().copied()), "the last came after the scan began");
    }
}

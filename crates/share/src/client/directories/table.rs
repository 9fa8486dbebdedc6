//! Leases, and what is known of the directories under them: the one that a lease is on, and those that were made there since.

use super::ahead::Made;
use super::messages::UnderWay;
use super::{DIRECTORIES, NEW_FILES, PAUSE, PROMISES, SLOTS, Session, SlotNo};
use foldhash::fast::FixedState;
use format::shared::{Request, state};
use fs::{Access, Attr, Cred, Ino, Promise};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::Ordering;

/// Names that are remembered, of all directories; and directories.
const NAMES_MAX: usize = 1 << 18;
const DIRS_MAX: usize = 1 << 16;

/// Promised inodes that are left when more are asked for: as many as can be posted before the answer is there.
const PROMISES_LEFT: usize = 64;

/// How long a lease is not used, by [`Table::clock`], before its place is another one's: programs that take turns at more directories than there are places would do nothing but lend them.
const UNUSED: u64 = 256;

/// Requests that are posted before the clock of the changes is looked at again.
const NOTED_FOR: u64 = 16;

pub(super) type Name = SmallVec<[u8; 24]>;

/// What is known of a name.
#[derive(Clone, Copy, Default)]
pub(super) struct Known {
    /// The inode, if it was made here and has no other name; else 0.
    pub ino: u64,
    /// Which one it is of those that were made here; of others, the last message that may have made it.
    pub number: u64,
    /// Which one with its number it is.
    pub generation: u32,
    /// It is a directory.
    pub is_dir: bool,
    /// Somebody has looked for it.
    pub looked: bool,
    /// Messages under way that may remove it (the highest number: too many to tell when they are over), and whether it is not there afterwards.
    pub removing: u8,
    pub gone: bool,
}

// There are many of them, and who makes files goes through memory of their size.
const _: () = assert!(size_of::<Known>() == 24);

/// A lease, or one that is asked for.
pub(super) struct Lease {
    /// 0 while it is asked for.
    pub number: u64,
    /// The directory that it is on; `None`: it is for new files, wherever they are.
    pub dir: Option<Ino>,
    /// When it was used last, by [`Table::clock`].
    used: u64,
    /// Pages of room for data that it has, as the manager will count when it comes to it.
    pub room: u64,
    /// That is being asked for.
    pub asking: bool,
    /// Writes that are not posted before it is asked for again.
    pub pause: u32,
}

/// A directory.
pub(super) struct Dir {
    /// Which one it is of all that ever stood in the table.
    pub number: u64,
    /// The last messages that may make names, and remove them, of those that began before anything was known of it.
    pub since: (u64, u64),
    /// Of the lease that it is under.
    pub place: usize,
    pub attr: Option<Attr>,
    /// Names that may be there.
    pub names: HashMap<Name, Known, FixedState>,
    /// The names that were made here, in their order.
    pub made: Made,
}

#[derive(Default)]
pub(super) struct Table {
    /// Requests that were posted one way.
    posted: u64,
    /// Slots of the last of them.
    order: Order,
    /// Requests that were posted under leases, and messages that made something where there was none.
    pub clock: u64,
    /// By their places.
    pub leases: [Option<Lease>; NEW_FILES + 1],
    pub dirs: HashMap<Ino, Dir, FixedState>,
    /// Directories that ever stood there.
    entered: u64,
    /// Names in all of them.
    names: usize,
    /// Messages that may make names, or remove them.
    pub naming: UnderWay,
    pub removing: UnderWay,
    /// Inodes that were promised: the last one is used first.
    promises: Vec<Promise>,
    /// Somebody asks for more, or was given fewer than he asked for.
    asking: bool,
    /// Things that are made by messages before more is asked for that was refused.
    pause: u32,
    /// The clock of the changes as of when it was last looked at, and how many requests were posted by then. It is looked at seldom, as the manager moves it with each
    /// change; but not too seldom: changes of other things since may be taken for changes of what is made.
    noted: (u64, u64),
    /// The directory in which something was made last, and how many times.
    pub recent: (u64, u32),
    pub need: u32,
}

/// By the numbers of what was posted.
struct Order([u8; SLOTS]);

impl Default for Order {
    fn default() -> Order {
        Order([0; SLOTS])
    }
}

impl Table {
    /// The number of what was posted last.
    pub fn last_posted(&self) -> u64 {
        self.posted
    }

    /// The slot of what was posted as many before the last.
    pub fn posted_before(&self, last: usize) -> SlotNo {
        self.order.0[self.posted.wrapping_sub(last as u64) as usize % SLOTS] as SlotNo
    }

    /// Inodes were promised, of which the first is to be used first, as files are made in this order otherwise; what there was comes before them. Whether there are any.
    pub fn promised(&mut self, mut promises: Vec<Promise>) -> bool {
        // Where there are not so many it is asked again when these are used up.
        self.asking = (promises.len() as u64) < PROMISES;
        promises.reverse();
        self.promises.splice(0..0, promises);
        if self.promises.is_empty() {
            self.pause = PAUSE;
        }
        !self.promises.is_empty()
    }

    /// Whether the caller is to ask for more promises: when there are few and nobody does yet, as others go on with these meanwhile; and when there are none, but not soon after that was
    /// refused.
    pub fn asks_promises(&mut self) -> bool {
        if self.promises.is_empty() {
            let pause = self.pause;
            self.pause = pause.saturating_sub(1);
            return pause == 0;
        }
        self.promises.len() <= PROMISES_LEFT && !std::mem::replace(&mut self.asking, true)
    }

    /// The next inode that was promised, and a clock from before anything is made of it; `now` looks at the clock.
    pub fn promise(&mut self, now: impl FnOnce() -> u64) -> Option<(Promise, u64)> {
        let promise = self.promises.pop()?;
        if self.noted.0 == 0 || self.posted - self.noted.1 >= NOTED_FOR {
            self.noted = (now(), self.posted);
        }
        Some((promise, self.noted.0))
    }

    /// What was promised counts no longer.
    pub fn forget_promises(&mut self) {
        self.promises.clear();
    }

    /// A lease begins, or is asked for, at a place that is free.
    pub fn begin(&mut self, place: usize, number: u64, dir: Option<Ino>, room: u64) {
        let used = self.clock;
        self.leases[place] = Some(Lease { number, dir, used, room, asking: false, pause: 0 });
        if let Some(dir) = dir {
            self.enter(dir, place, None);
        }
    }

    /// A directory is under the lease at this place; nothing is in it yet.
    pub fn enter(&mut self, dir: Ino, place: usize, attr: Option<Attr>) {
        self.forget(dir);
        if self.dirs.len() < DIRS_MAX {
            self.entered += 1;
            // In one that was just made there was nobody yet.
            let since = if attr.is_none() { (self.naming.last(), self.removing.last()) } else { (0, 0) };
            let (number, names, made) = (self.entered, HashMap::default(), Made::default());
            self.dirs.insert(dir, Dir { number, since, place, attr, names, made });
        }
    }

    /// A directory was made in `parent`, under whose lease it stands if it can be changed by who has made it, and by nobody who may not.
    pub fn enter_made(&mut self, parent: Ino, attr: &Attr, cred: &Cred) {
        let may =
            fs::perm::check(cred, attr, Access::WRITE | Access::EXEC).is_ok() && attr.perm & 0o1000 == 0;
        if let Some(place) = self.dirs.get(&parent).map(|dir| dir.place).filter(|_| may) {
            self.enter(attr.ino, place, Some(*attr));
        }
    }

    /// Nothing is known of a directory any more.
    pub fn forget(&mut self, dir: Ino) {
        self.names -= self.dirs.remove(&dir).map_or(0, |dir| dir.names.len());
    }

    /// A lease is over, or no longer used, and with it everything that is under it.
    pub fn end(&mut self, place: usize) {
        self.leases[place] = None;
        self.dirs.retain(|_, dir| dir.place != place);
        self.names = self.dirs.values().map(|dir| dir.names.len()).sum();
    }

    /// No directory is used any more, only the lease on new files.
    pub fn end_directories(&mut self) {
        self.leases[..DIRECTORIES].fill_with(|| None);
        self.dirs.clear();
        self.names = 0;
    }

    /// The place of the lease with this number.
    pub fn place_of(&self, number: u64) -> Option<usize> {
        self.leases.iter().position(|lease| lease.as_ref().is_some_and(|lease| lease.number == number))
    }

    /// The lease with this number.
    pub fn lease_mut(&mut self, number: u64) -> Option<&mut Lease> {
        self.leases.iter_mut().flatten().find(|lease| lease.number == number)
    }

    /// The number of the lease that a directory is under, which is there and not asked for.
    pub fn number(&self, dir: &Dir) -> Option<u64> {
        let lease = self.leases[dir.place].as_ref()?;
        Some(lease.number).filter(|&number| number != 0)
    }

    /// A directory under a lease, and the lease's number.
    pub fn find(&self, dir: Ino) -> Option<(&Dir, u64)> {
        let dir = self.dirs.get(&dir)?;
        Some((dir, self.number(dir)?))
    }

    /// As [`Table::find`], to be changed.
    pub fn find_mut(&mut self, dir: Ino) -> Option<(&mut Dir, u64)> {
        let dir = self.dirs.get_mut(&dir)?;
        let number = self.leases[dir.place].as_ref()?.number;
        (number != 0).then_some((dir, number))
    }

    /// What is known of a name that was made here.
    pub fn made(&self, dir: Ino, name: &[u8]) -> Option<Known> {
        self.find(dir)?.0.names.get(name).copied().filter(|known| known.ino != 0)
    }

    /// A name may be in a directory from now on, or not; and whether it was known to be free. `None`: nothing is known of the directory.
    pub fn may_be(&mut self, dir: Ino, name: &[u8]) -> Option<(&mut Known, bool)> {
        match self.dirs.get_mut(&dir)?.names.entry(SmallVec::from_slice(name)) {
            Entry::Occupied(known) => {
                let known = known.into_mut();
                if known.ino != 0 {
                    *known = Known::default();
                }
                Some((known, false))
            }
            Entry::Vacant(free) => {
                self.names += 1;
                Some((free.insert(Known::default()), true))
            }
        }
    }

    /// Something was made in a directory.
    pub fn add_made(&mut self, dir: Ino, name: &[u8], known: Known) {
        if let Some(dir) = self.dirs.get_mut(&dir) {
            let known = Known { number: dir.made.add(name), ..known };
            self.names += dir.names.insert(SmallVec::from_slice(name), known).is_none() as usize;
        }
    }

    /// A name is gone from a directory.
    pub fn remove(&mut self, dir: Ino, name: &[u8]) {
        let removed = self.dirs.get_mut(&dir).and_then(|dir| dir.names.remove(name));
        self.names -= removed.is_some() as usize;
    }

    /// Whether so many names are remembered that no more are to be.
    pub fn is_full(&self) -> bool {
        self.names > NAMES_MAX
    }

    /// A place for a lease on a directory in which a message has made something: a free one, or that of the one that was not used the longest, if that is long.
    pub fn place(&mut self) -> Option<usize> {
        let directories = &self.leases[..DIRECTORIES];
        if let Some(free) = directories.iter().position(Option::is_none) {
            return Some(free);
        }
        let used = |place: &usize| directories[*place].as_ref().map_or(0, |lease| lease.used);
        let oldest = (0..DIRECTORIES).min_by_key(used).filter(|place| self.clock - used(place) > UNUSED)?;
        self.end(oldest);
        Some(oldest)
    }

    /// Posts a request in a slot; under the lease at `place`, if it is one that needs a lease.
    pub fn post(
        &mut self,
        session: &Session,
        slot: SlotNo,
        request: &Request,
        name: &[u8],
        place: Option<usize>,
    ) {
        let region = &session.region;
        self.posted += 1;
        self.order.0[self.posted as usize % SLOTS] = slot as u8;
        if let Some(lease) = place.and_then(|place| self.leases[place].as_mut()) {
            self.clock += 1;
            lease.used = self.clock;
        }
        region.put_payload(slot, 0, name);
        region.put(slot, &Request { more: self.posted.into(), ..*request });
        region.state(slot).store(state::POSTED, Ordering::Release);
        region.one_way().fetch_or(1 << slot, Ordering::SeqCst);
    }
}

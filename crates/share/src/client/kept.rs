//! What a client keeps of the file system: which inode a name leads to, and the attributes of inodes, so that walking a path and
//! stat cost no message (UHSFS keeps its table of files in shared memory for this).
//!
//! Everything here came in answer to calls of this client, or of one with the same credentials ([`notices`]), so it holds nothing that the client may not know. Whether it
//! still holds is seen in the memory of changes (`format::shared`); nothing is ever sent to a client that keeps something. A name
//! that was found, or not there, says that its directory could be searched, until the directory's word for that is raised.

mod beginning;
mod inodes;
mod made;
mod names;
mod notices;
mod now;
mod posts;

use super::records::{Records, Words};
use crate::changes::Seen;
use crate::memory::Mapping;
use foldhash::fast::FixedState;
use format::shared::Kept as What;
use fs::{Attr, FileType, Handle, Ino, Time};
use inodes::Inodes;
use made::{Look, Made};
use names::{Name, Names};
use posts::Posts;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What a name leads to. Nothing of it changes while the name leads there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The inode.
    pub ino: Ino,
    /// Which one with this number.
    pub generation: u32,
    /// What it is.
    pub kind: FileType,
}

impl Target {
    /// What something with these attributes is as the target of a name.
    pub fn of(attr: &Attr) -> Target {
        Target { ino: attr.ino, generation: attr.generation, kind: attr.kind }
    }
}

/// As of when an answer that is to be kept was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Since {
    /// The clock of the changes.
    pub clock: u64,
    /// Changes that this client had posted.
    pub posts: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Kept {
    seen: Seen,
    /// The arena, which tells of what others have asked for.
    arena: Arc<Mapping>,
    /// What it tells counts if it is as of this clock or later.
    trusted_from: AtomicU64,
    names: Names,
    inodes: Inodes,
    made: Made,
    leased: Leased,
    /// Another one whenever something goes from here of which the memory of changes does not tell.
    state: AtomicU64,
    /// Changes that this client has posted without waiting for them: nobody tells it when they come into force, which for it is at once.
    posts: Posts,
}

/// Files that this client writes without a message, and the handles through which it does (words 1 and 2): their times are known to nobody until the manager is
/// asked.
#[derive(Debug, Default)]
struct Leased {
    count: AtomicUsize,
    files: Records<8>,
}

const HASHER: FixedState = FixedState::with_seed(0x6b65_7074);

fn hash_name(parent: u64, name: &[u8]) -> u64 {
    let mut h = HASHER.build_hasher();
    h.write_u64(parent);
    h.write(name);
    h.finish()
}

fn hash_inode(ino: u64) -> u64 {
    let mut h = HASHER.build_hasher();
    h.write_u64(ino);
    h.finish()
}

/// A number for the state of what is kept that no other one has.
fn next_state() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Where the first slash stands, or the end.
#[inline]
fn until_slash(path: &[u8]) -> usize {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    let mut at = 0;
    while let Some(bytes) = path[at..].first_chunk::<8>() {
        // A byte that becomes zero borrows from the bit above it; the lowest one that does is right.
        let word = u64::from_le_bytes(*bytes) ^ (ONES * b'/' as u64);
        let zero = word.wrapping_sub(ONES) & !word & (ONES << 7);
        if zero != 0 {
            return at + zero.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    at + path[at..].iter().position(|&b| b == b'/').unwrap_or(path.len() - at)
}

/// Names that lead where the directory says, whatever it contains.
fn is_special(name: &[u8]) -> bool {
    matches!(name, b"" | b"." | b"..") || name.contains(&b'/')
}

impl Kept {
    pub fn new(seen: Seen, arena: Arc<Mapping>) -> Kept {
        Kept {
            seen,
            arena,
            trusted_from: AtomicU64::new(0),
            names: Names::default(),
            inodes: Inodes::default(),
            made: Made::default(),
            leased: Leased::default(),
            state: AtomicU64::new(next_state()),
            posts: Posts::default(),
        }
    }

    /// Changes that were posted.
    pub fn posts(&self) -> u64 {
        self.posts.count()
    }

    /// The first so many changes that were posted have come into force.
    pub fn settled(&self, posts: u64) {
        self.posts.settled(posts);
    }

    /// A name was made or removed by a change that was posted, and with it perhaps an inode. What is asked for now is answered as of then; what was asked for before is
    /// not kept any more.
    pub fn posted(&self, dir: Ino, name: &[u8], gone: Option<Ino>) {
        self.posted_data(dir);
        gone.into_iter().for_each(|ino| self.posted_data(ino));
        let hash = hash_name(dir.0, name);
        self.posts.add(hash);
        self.names.remove(hash, dir, name);
    }

    /// As [`Kept::posted`], of a change of an inode.
    pub fn posted_data(&self, ino: Ino) {
        self.posts.add(hash_inode(ino.0));
        self.drop_attr(ino);
    }

    /// Whether a change of an inode may have been posted after so many.
    pub fn has_posted(&self, ino: Ino, since: u64) -> bool {
        self.posts.concern(since, hash_inode(ino.0))
    }

    /// The manager was told that an inode was read here, for which nobody waits. Answers from before that know an older time of access.
    pub fn posted_read(&self, ino: Ino) {
        self.posts.add(hash_inode(ino.0));
        self.made.remove(ino);
        self.inodes.was_read(ino);
    }

    fn drop_attr(&self, ino: Ino) {
        self.made.remove(ino);
        self.inodes.remove(ino);
    }

    /// Drops everything, for good.
    pub fn forget(&self) {
        self.trusted_from.store(u64::MAX, Ordering::SeqCst);
        self.names.clear();
        self.changes_state();
        self.inodes.clear();
        self.made.clear();
    }

    /// Drops what is known of names, so that the manager is asked: something has changed of which nobody has been told yet.
    #[cold]
    pub fn forget_names(&self) {
        self.trusted_from.store(self.now() + 1, Ordering::SeqCst);
        self.names.clear();
        self.changes_state();
    }

    /// As [`Kept::posted`], of a directory that was removed: no path leads through it any more.
    pub fn posted_rmdir(&self, dir: Ino, name: &[u8], gone: Ino) {
        self.posted(dir, name, Some(gone));
        self.changes_state();
    }

    /// To be noted before a call whose answer is to be kept.
    pub fn now(&self) -> u64 {
        self.seen.now()
    }

    /// Whether the manager lives. When it is gone nothing that is kept counts: nobody would say that it changed.
    #[inline]
    pub fn alive(&self) -> bool {
        self.seen.alive()
    }

    /// See [`Seen::in_the_way`].
    pub fn in_the_way(&self) -> bool {
        self.seen.in_the_way()
    }

    /// Whether everything about an inode is as it was at `noted`.
    #[inline]
    pub fn unchanged(&self, ino: Ino, noted: u64) -> bool {
        self.seen.holds(What::Attr(ino.0), noted)
    }

    /// As [`Kept::unchanged`], seen after everything that this thread has written before.
    #[inline]
    pub fn unchanged_now(&self, ino: Ino, noted: u64) -> bool {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        self.unchanged(ino, noted)
    }

    /// Attributes of an inode, if they are known.
    #[inline]
    pub fn attr(&self, ino: Ino) -> Option<Attr> {
        self.look(ino, |attr| *attr)
    }

    /// Something was made without a message, at the clock `noted` or later, and is as was said.
    pub fn made(&self, attr: &Attr, noted: u64) {
        self.made.insert(attr, noted);
    }

    /// As [`Kept::attr`], also of what was made here and not looked at twice since, or what others have asked for.
    pub fn known(&self, ino: Ino) -> Option<Attr> {
        let known = self.attr(ino);
        if known.is_some() || self.leased(ino).is_some() {
            return known;
        }
        // What is posted from here on is not missed.
        let posts = self.posts();
        match self.made.look(ino) {
            Some(Look { attr, noted, again }) if self.alive() && self.unchanged(ino, noted) => {
                if again {
                    self.learn_attr(Since { clock: noted, posts }, &attr);
                }
                Some(attr)
            }
            _ => self.noticed_inode(ino).map(|(attr, _)| attr),
        }
    }

    /// What `f` says of the attributes of an inode, if they are known. It must not take long.
    #[inline]
    pub(super) fn look<T>(&self, ino: Ino, f: impl FnOnce(&Attr) -> T) -> Option<T> {
        if self.leased(ino).is_some() {
            return None;
        }
        self.noted(ino, f).map(|(said, _)| said)
    }

    /// The size of an inode, if it is known; that of one that was read, or is written under a lease, is.
    #[inline]
    pub fn size(&self, ino: Ino) -> Option<u64> {
        self.noted_data(ino, |attr, _| attr.size).map(|(size, _)| size)
    }

    /// What `f` says of the attributes of an inode, and the clock from before they were asked for.
    #[inline]
    pub fn noted<T>(&self, ino: Ino, f: impl FnOnce(&Attr) -> T) -> Option<(T, u64)> {
        self.noted_data(ino, |attr, read| (!read).then(|| f(attr)))
            .and_then(|(said, noted)| Some((said?, noted)))
    }

    /// As [`Kept::noted`], of who does not care about the time of access, which is not known when the inode was read since then: `f` is told whether it was.
    #[inline]
    pub fn noted_data<T>(&self, ino: Ino, f: impl FnOnce(&Attr, bool) -> T) -> Option<(T, u64)> {
        self.inodes.look(ino, |inode| {
            let holds = self.alive() && self.seen.same(inode.word, inode.noted);
            holds.then(|| (f(&inode.attr, inode.read), inode.noted))
        })?
    }

    /// What is known of a name.
    #[inline]
    fn entry(&self, parent: Ino, name: &[u8]) -> Option<Name> {
        let entry = self.names.find(hash_name(parent.0, name), parent, name)?;
        self.entry_holds(&entry).then_some(entry)
    }

    #[inline]
    fn entry_holds(&self, entry: &Name) -> bool {
        let [here, search] = entry.words;
        self.seen.same(here, entry.noted) && self.seen.same(search, entry.noted)
    }

    /// What a name leads to, or that there is none, if that is known.
    #[inline]
    fn found(&self, parent: Ino, name: &[u8]) -> Option<Option<Target>> {
        self.entry(parent, name).map(|entry| entry.target)
    }

    #[inline]
    pub fn target(&self, parent: Ino, name: &[u8]) -> Option<Target> {
        self.found(parent, name).flatten()
    }

    /// As [`Kept::target`], in a directory that is lent to this client. That it may be searched was checked then; and names of which nobody is told are those that
    /// somebody makes under a lease and removes under it: what a name led to before, it leads to until a message takes it away, of which everybody is told.
    pub fn target_of_lent(&self, parent: Ino, name: &[u8]) -> Option<Target> {
        let entry = self.names.find(hash_name(parent.0, name), parent, name)?;
        entry.target.filter(|_| self.seen.same(entry.words[0], entry.noted))
    }

    /// Whether it is known that there is no such name.
    pub fn misses(&self, parent: Ino, name: &[u8]) -> bool {
        self.found(parent, name) == Some(None) && self.alive()
    }

    /// The directory of the last name of a path of plain names, if the others are known, and that name.
    pub fn last<'a>(&self, base: Ino, path: &'a [u8]) -> Option<(Ino, &'a [u8])> {
        let at = path.iter().rposition(|&b| b == b'/').map_or(0, |at| at + 1);
        let (before, name) = path.split_at(at);
        let (dir, _) = self.follow(base, before).filter(|_| !name.is_empty())?;
        Some((dir, name))
    }

    /// The inode that a name leads to, if it is known.
    #[inline]
    pub fn name(&self, parent: Ino, name: &[u8]) -> Option<Ino> {
        self.target(parent, name).map(|target| target.ino)
    }

    /// From now on a file is written without a message through a handle, or no longer.
    pub fn is_leased(&self, ino: Ino, through: Option<Handle>) {
        self.made.remove(ino);
        let (hash, is) = (hash_inode(ino.0), |file: &Words<'_, 8>| file.get(1) == ino.0);
        let mut files = self.leased.files.write();
        match through {
            Some(handle) => files.put(hash, is, |_| true, &[0, ino.0, handle.0, 0, 0, 0, 0, 0]),
            None => files.remove(hash, is),
        }
        self.leased.count.store(files.len(), Ordering::SeqCst);
    }

    /// The handle through which a file is written without a message.
    #[inline]
    pub fn leased(&self, ino: Ino) -> Option<Handle> {
        if self.leased.count.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let mut handle = 0;
        let found = self.leased.files.find(hash_inode(ino.0), |file| {
            handle = file.get(2);
            file.get(1) == ino.0
        });
        found.then_some(Handle(handle))
    }

    /// As [`Kept::walk`], of a file that is written without a message.
    pub fn walk_leased(&self, base: Ino, path: &[u8]) -> Option<(Ino, Handle)> {
        if self.leased.count.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let ino = self.follow(base, path)?.0;
        Some((ino, self.leased(ino)?))
    }

    /// The inode that a path of plain names leads to, if all of it is known, and what it is unless there is no name.
    #[inline]
    pub fn follow(&self, base: Ino, path: &[u8]) -> Option<(Ino, Option<Target>)> {
        self.follow_by(base, path, |parent, name| self.target(parent, name))
    }

    /// As [`Kept::follow`], where `leads` says what names lead to.
    #[inline]
    pub fn follow_by(
        &self,
        base: Ino,
        path: &[u8],
        mut leads: impl FnMut(Ino, &[u8]) -> Option<Target>,
    ) -> Option<(Ino, Option<Target>)> {
        let (mut at, mut target, mut rest) = (base, None, path);
        if let Some((dir, len)) = self.beginning(base, path) {
            (at, target, rest) = (dir.ino, Some(dir), &path[len..]);
        }
        let (mut into, mut names) = (at, 0);
        while !rest.is_empty() {
            let end = until_slash(rest);
            if end > 0 {
                let found = leads(at, &rest[..end])?;
                (into, names) = (at, names + 1);
                (at, target) = (found.ino, Some(found));
            }
            rest = rest.get(end + 1..).unwrap_or(b"");
        }
        if names > 1 {
            self.begins(base, path, into);
        }
        Some((at, target))
    }

    /// The attributes of what a path of plain names leads to, if all of it is known.
    #[inline]
    pub fn walk(&self, base: Ino, path: &[u8]) -> Option<Attr> {
        self.attr(self.follow(base, path)?.0)
    }

    /// An inode was read, which may have moved its time of access, or not, if there was nothing to read: nobody is told of that.
    pub fn was_read(&self, ino: Ino) {
        self.made.remove(ino);
        if self.inodes.look(ino, |inode| inode.attr.moves_atime(Time::now())) == Some(true) {
            self.inodes.remove(ino);
        }
    }

    /// Keeps attributes that were asked for after `noted`. Not those of an inode without names: nobody tells when it goes.
    pub fn learn_attr(&self, since: Since, attr: &Attr) {
        if attr.nlink == 0 {
            return;
        }
        let hash = hash_inode(attr.ino.0);
        self.inodes.learn(attr, since.clock, || !self.posts.concern(since.posts, hash));
    }

    /// Keeps what a name leads to, asked for after `noted`.
    pub fn learn(&self, since: Since, parent: Ino, name: &[u8], attr: &Attr) {
        self.learn_attr(since, attr);
        self.learn_name(since, parent, name, Some(Target::of(attr)));
    }

    /// Keeps what a name leads to, or that there is none.
    pub fn learn_name(&self, since: Since, parent: Ino, name: &[u8], target: Option<Target>) {
        if is_special(name) {
            return;
        }
        let hash = hash_name(parent.0, name);
        let entry = Name { target, noted: since.clock, words: Name::words(parent, name) };
        self.names.learn(hash, (parent, name), &entry, || !self.posts.concern(since.posts, hash));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a client that knows nothing yet.
    pub(super) fn alone(changes: &crate::changes::Changes) -> Kept {
        let fd = crate::memory::sealed(c"test", format::shared::arena_bytes(0)).unwrap();
        let arena = Mapping::new(fd, format::shared::arena_bytes(0)).unwrap();
        Kept::new(Seen::map(changes.reader()).unwrap(), Arc::new(arena))
    }

    #[test]
    fn an_answer_from_before_something_was_posted_is_not_kept() {
        let changes = crate::changes::Changes::new().unwrap();
        let _held = changes.hold().unwrap();
        let kept = alone(&changes);
        let attr = crate::wire::some_attr;
        let since = |kept: &Kept| Since { clock: kept.now(), posts: kept.posts() };
        let (dir, name) = (Ino(1), &b"name"[..]);
        let before = since(&kept);
        kept.learn(before, dir, name, &attr(7, 0));
        assert_eq!(kept.walk(dir, name), Some(attr(7, 0)));
        // Its data, while two answers are under way: that of another file is kept.
        kept.posted_data(Ino(7));
        kept.learn_attr(before, &attr(7, 0));
        kept.learn_attr(before, &attr(8, 5));
        assert_eq!((kept.attr(Ino(7)), kept.attr(Ino(8))), (None, Some(attr(8, 5))));
        assert_eq!(kept.name(dir, name), Some(Ino(7)), "its name is known as before");
        kept.learn_attr(since(&kept), &attr(7, 9));
        assert_eq!(kept.walk(dir, name), Some(attr(7, 9)));
        // Its name, and with it the file and the directory.
        let before = since(&kept);
        kept.posted(dir, name, Some(Ino(7)));
        kept.learn(before, dir, name, &attr(7, 9));
        kept.learn_attr(before, &attr(1, 0));
        kept.learn(before, dir, b"other", &attr(9, 1));
        assert_eq!((kept.name(dir, name), kept.attr(Ino(7)), kept.attr(dir)), (None, None, None));
        assert_eq!(kept.walk(dir, b"other"), Some(attr(9, 1)));
    }

    #[test]
    fn slashes_are_found() {
        for len in 0..40 {
            let mut path = vec![b'x'; len];
            assert_eq!(until_slash(&path), len);
            for at in (0..len).rev() {
                path[at] = b'/';
                assert_eq!(until_slash(&path), at);
                // What differs from a slash in one bit is none.
                path[at] = b'.';
                assert_eq!(until_slash(&path[..at + 1]), at + 1);
                path[at] = b'/';
            }
        }
        assert_eq!(until_slash(b"\x80\xaf\xff\x2e\x30\x00aaaaaaaa/"), 14);
    }
}

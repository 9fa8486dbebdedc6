//! What others with the same credentials have asked for, as the manager tells it to all of them: kept here as if this client had asked for it, when it is
//! looked for.

use super::names::Name;
use super::{Kept, Since, Target, hash_inode, hash_name};
use crate::notices;
use fs::{Attr, Ino};
use std::sync::atomic::Ordering;

impl Kept {
    /// Whether what is told of something with this hash, as of a clock, counts for this client.
    fn counts(&self, clock: u64, hash: u64) -> bool {
        // Nobody else knows of what it has posted and is not done yet.
        self.alive() && clock >= self.trusted_from.load(Ordering::SeqCst) && !self.posts.is_pending(hash)
    }

    /// What a name leads to, or that there is none, as far as that is told and holds.
    #[cold]
    #[inline(never)]
    pub(in crate::client) fn noticed_name(&self, parent: Ino, name: &[u8]) -> Option<Option<Target>> {
        // What is posted from here on is not missed.
        let posts = self.posts();
        let (leads, clock) = notices::name(&self.arena, parent, name)?;
        let target = leads.map(|(ino, generation, kind)| Target { ino, generation, kind });
        let entry = Name { target, noted: clock, words: Name::words(parent, name) };
        if !self.entry_holds(&entry) || !self.counts(clock, hash_name(parent.0, name)) {
            return None;
        }
        self.learn_name(Since { clock, posts }, parent, name, target);
        Some(target)
    }

    /// The attributes that are told of an inode, and the clock as of which they are, if that holds.
    #[cold]
    #[inline(never)]
    pub(in crate::client) fn noticed_inode(&self, ino: Ino) -> Option<(Attr, u64)> {
        let posts = self.posts();
        let (attr, clock) = notices::inode(&self.arena, ino)?;
        if !self.unchanged(ino, clock) || !self.counts(clock, hash_inode(ino.0)) {
            return None;
        }
        self.learn_attr(Since { clock, posts }, &attr);
        Some((attr, clock))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::changes::{Changes, Seen};
    use crate::memory::{self, Mapping};
    use crate::wire::some_attr;
    use format::shared::arena_bytes;
    use fs::watched::Change;
    use std::sync::Arc;

    #[test]
    fn what_is_told_holds_until_it_changes_or_something_is_posted() {
        let changes = Changes::new().unwrap();
        let (ours, theirs) = memory::published(c"test", arena_bytes(0)).unwrap();
        let theirs = Arc::new(Mapping::read_only(theirs, arena_bytes(0)).unwrap());
        let client = || Kept::new(Seen::map(changes.reader()).unwrap(), theirs.clone());
        let (dir, name) = (Ino(1), &b"name"[..]);
        let tell = |size| {
            let attr = some_attr(7, size);
            notices::tell_name(&ours, dir, name, Some(&attr), changes.now());
            notices::tell_inode(&ours, &attr, changes.now());
        };
        let size = |kept: &Kept| kept.known(Ino(7)).map(|attr| attr.size);
        let leads = |kept: &Kept| match kept.target(dir, name) {
            Some(target) => Some(Some(target.ino)),
            None => kept.noticed_name(dir, name).map(|target| target.map(|target| target.ino)),
        };
        let there = Some(Some(Ino(7)));
        tell(5);
        assert_eq!((leads(&client()), size(&client())), (None, None), "nobody tells of changes");
        let _held = changes.hold().unwrap();
        let (kept, other) = (client(), client());
        assert_eq!((leads(&kept), size(&kept)), (there, Some(5)));
        // Of which it is kept here from now on.
        tell(6);
        assert_eq!(kept.walk(dir, name), Some(some_attr(7, 5)));
        assert_eq!((leads(&other), size(&other)), (there, Some(6)));
        changes.changed(&Change::Data { ino: Ino(7), start: 0, end: 1 });
        assert_eq!((leads(&kept), size(&kept)), (there, None));
        tell(8);
        assert_eq!(size(&kept), Some(8));
        changes.changed(&Change::Name { parent: dir, name });
        assert_eq!(leads(&kept), None);
        notices::tell_name(&ours, dir, name, None, changes.now());
        assert_eq!((leads(&kept), leads(&client())), (Some(None), Some(None)));
        assert!(kept.misses(dir, name));
        // Searching the directory may not be allowed any more.
        changes.changed(&Change::Attr { ino: dir });
        assert_eq!((leads(&kept), leads(&client())), (None, None));
        assert!(!kept.misses(dir, name));
        tell(9);
        // What this client has posted nobody else knows of, until it is done.
        kept.posted(dir, name, Some(Ino(7)));
        assert_eq!((leads(&kept), size(&kept)), (None, None));
        assert_eq!((leads(&other), size(&other)), (there, Some(9)));
        kept.settled(kept.posts() - 1);
        assert_eq!(leads(&kept), None);
        kept.settled(kept.posts());
        assert_eq!((leads(&kept), size(&kept)), (there, Some(9)));
        // The name led to something that is not there, of which nobody has been told yet.
        kept.forget_names();
        assert_eq!(leads(&kept), None);
        tell(10);
        assert_eq!(leads(&kept), None);
        changes.changed(&Change::Attr { ino: Ino(8) });
        tell(11);
        assert_eq!((leads(&kept), size(&kept)), (there, Some(9)), "kept since before");
        kept.forget();
        assert_eq!((leads(&kept), size(&kept)), (None, None));
    }
}

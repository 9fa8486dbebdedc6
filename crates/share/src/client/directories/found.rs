//! Finding names without a message: in directories under a lease, where all of them are known here, and among those that others have asked for.

use super::super::kept::{Since, Target};
use super::making::is_plain;
use super::*;

/// What a path leads to, as far as that is known.
pub(in crate::client) enum Found {
    /// It must be asked for.
    Unknown,
    /// There is no such name.
    Missing,
    /// It leads there.
    There(Target),
}

impl Directories {
    /// What a name leads to. As long as the lease is there, it is as is said here. At the second time it is kept, as what was asked for is.
    pub(super) fn find(&self, session: &Session, dir: Ino, name: &[u8]) -> Found {
        if !self.any() {
            return Found::Unknown;
        }
        let since = Since { clock: session.kept.now(), posts: session.kept.posts() };
        let mut table = self.table.lock();
        let known = table.find_mut(dir).filter(|_| is_plain(name));
        let Some((under, number)) = known else { return Found::Unknown };
        let place = under.place;
        let found = under.names.get_mut(name).map(|known| {
            let kind = if known.is_dir { FileType::Directory } else { FileType::Regular };
            let target = Target { ino: Ino(known.ino), generation: known.generation, kind };
            (target, std::mem::replace(&mut known.looked, true))
        });
        let settled = found.is_some() || table.find(dir).is_some_and(|(dir, _)| table.is_settled(dir));
        drop(table);
        if !session.has_lease(place, number) {
            return Found::Unknown;
        }
        match found {
            None if settled => Found::Missing,
            None => Found::Unknown,
            Some((Target { ino: Ino(0), .. }, _)) => match session.kept.target_of_lent(dir, name) {
                Some(target) => {
                    session.kept.learn_name(since, dir, name, Some(target));
                    Found::There(target)
                }
                None => Found::Unknown,
            },
            Some((target, again)) => {
                // Most of what is made is looked for once, if at all.
                if again {
                    session.kept.learn_name(since, dir, name, Some(target));
                }
                Found::There(target)
            }
        }
    }
}

impl Remote {
    /// What a path of plain names leads to, if some of them are in directories under a lease, or others have asked for them, and the rest is known.
    #[cold]
    pub(in crate::client) fn find_here(&self, base: Ino, path: &[u8]) -> Found {
        let session: &Arc<Session> = self.now();
        let kept = &session.kept;
        let mut missing = false;
        let found = kept.follow_by(base, path, |parent, name| {
            if let Some(target) = kept.target(parent, name) {
                return Some(target);
            }
            let target = match session.directories.find(session, parent, name) {
                Found::There(target) => Some(target),
                Found::Missing => None,
                Found::Unknown => kept.noticed_name(parent, name)?,
            };
            missing = target.is_none();
            target
        });
        match found {
            Some((_, Some(target))) if kept.alive() => Found::There(target),
            None if missing => Found::Missing,
            _ => Found::Unknown,
        }
    }

    /// The attributes of what a path of plain names leads to, if they are known without a message; or that there is no such name.
    pub(in crate::client) fn attr_here(&self, base: Ino, path: &[u8]) -> Option<Result<Attr>> {
        match self.find_here(base, path) {
            Found::Unknown => None,
            Found::Missing => Some(Err(Error::NotFound)),
            Found::There(target) => self.kept().known(target.ino).map(Ok),
        }
    }
}

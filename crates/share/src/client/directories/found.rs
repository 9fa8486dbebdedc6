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
    /// What a name leads to. As long as the lease is there, it is as is said here.
    pub(super) fn find(&self, session: &Session, dir: Ino, name: &[u8]) -> Found {
        if !self.any() {
            return Found::Unknown;
        }
        let table = self.table.lock();
        let Some((under, number)) = table.find(dir).filter(|_| is_plain(name)) else { return Found::Unknown };
        let found = match under.names.get(name) {
            None => Found::Missing,
            Some(&Known { ino: 0, .. }) => return Found::Unknown,
            Some(&Known { ino, generation, is_dir, .. }) => {
                let kind = if is_dir { FileType::Directory } else { FileType::Regular };
                Found::There(Target { ino: Ino(ino), generation, kind })
            }
        };
        match session.region.directory(under.place).load(Ordering::SeqCst) == number && !session.is_dead() {
            true => found,
            false => Found::Unknown,
        }
    }
}

impl Remote {
    /// What a path of plain names leads to, if some of them are in directories under a lease, or others have asked for them, and the rest is known. Names that are found so are
    /// kept, as those that were asked for are.
    #[cold]
    pub(in crate::client) fn find_here(&self, base: Ino, path: &[u8]) -> Found {
        let session: &Arc<Session> = self.now();
        let kept = &session.kept;
        let (mut at, mut found) = (base, Found::Unknown);
        for name in path.split(|&b| b == b'/').filter(|name| !name.is_empty()) {
            let since = Since { clock: kept.now(), posts: kept.posts() };
            let target = match kept.target(at, name) {
                Some(target) => target,
                None => match session.directories.find(session, at, name) {
                    Found::There(target) => {
                        kept.learn_name(since, at, name, Some(target));
                        target
                    }
                    Found::Missing => return Found::Missing,
                    Found::Unknown => match kept.noticed_name(at, name) {
                        Some(Some(target)) => target,
                        Some(None) => return Found::Missing,
                        None => return Found::Unknown,
                    },
                },
            };
            (at, found) = (target.ino, Found::There(target));
        }
        if kept.alive() { found } else { Found::Unknown }
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

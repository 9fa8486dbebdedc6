//! Calls of the contract that are made here without waiting for the manager, and what other calls must say so that these keep to what is true.

use super::answers::asked;
use super::*;

/// A call that may make names; see the module.
pub(in crate::client) struct Naming<'a> {
    link: &'a Link,
    over: bool,
}

impl Naming<'_> {
    /// It was answered.
    pub fn over(mut self) {
        self.over = true;
    }
}

impl Drop for Naming<'_> {
    fn drop(&mut self) {
        if !self.over {
            self.link.naming_lost.store(true, Ordering::SeqCst);
        }
        self.link.naming.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Whether a name can be made as it is.
fn is_plain(name: &[u8]) -> bool {
    (1..=format::limits::NAME_MAX).contains(&name.len())
        && !matches!(name, b"." | b"..")
        && !name.iter().any(|b| matches!(b, b'/' | 0))
}

impl Remote {
    /// A message is about to go out that may make these names.
    pub(in crate::client) fn naming(&self, names: &[(Ino, &[u8])]) -> Naming<'_> {
        let link = &*self.link;
        link.naming.fetch_add(1, Ordering::SeqCst);
        let directories = &self.now().directories;
        if directories.any() {
            let mut table = directories.table.lock();
            for (parent, name) in names {
                for dir in table.dirs.iter_mut().filter(|dir| dir.ino == Some(*parent)) {
                    dir.names.insert(SmallVec::from_slice(name), Known::default());
                }
            }
        }
        Naming { link, over: false }
    }

    /// A directory, or any of them, is about to be changed itself.
    pub(in crate::client) fn uses_itself(&self, dir: Option<Ino>) {
        self.now().directories.leave(dir);
    }

    /// Whether a name leads to a file that was made here, and is nobody else's.
    pub(in crate::client) fn made_here(&self, parent: Ino, name: &[u8]) -> bool {
        let directories = &self.now().directories;
        if !directories.any() {
            return false;
        }
        let table = directories.table.lock();
        let dir = table.dirs.iter().find(|dir| dir.ino == Some(parent) && dir.number != 0);
        dir.is_some_and(|dir| dir.names.get(name).is_some_and(|known| known.ino != 0))
    }

    /// A file is about to get another name.
    pub(in crate::client) fn has_more_names(&self, ino: Ino) {
        let directories = &self.now().directories;
        if directories.any() {
            let mut table = directories.table.lock();
            for dir in &mut table.dirs {
                dir.names.values_mut().filter(|known| known.ino == ino.0).for_each(|known| known.ino = 0);
            }
        }
    }

    /// Makes a file without a message that is waited for, if that can be done.
    pub(in crate::client) async fn create_here(
        &self,
        parent: Ino,
        name: &[u8],
        perm: u16,
        flags: OpenFlags,
    ) -> Option<Result<(Attr, Handle)>> {
        use OpenFlags as Flags;
        let session: &Arc<Session> = self.now();
        let others = !(Flags::READ | Flags::WRITE | Flags::APPEND | Flags::TRUNCATE | Flags::EXCLUSIVE);
        if !session.directories.any()
            || flags.intersects(others)
            || !flags.intersects(Flags::READ | Flags::WRITE)
            || !is_plain(name)
        {
            return None;
        }
        if let Err(e) = self.link.keeps_order() {
            return Some(Err(e));
        }
        let (promise, (uid, gid, perm), lent) = loop {
            match session.directories.create(session, parent, name, (perm, flags)) {
                Posting::Message | Posting::Room => return None,
                // Other futures of this thread may have to give slots back.
                Posting::Full if !session.wait_for_room() => return None,
                Posting::Full => {}
                Posting::Promises => {
                    if !self.asks_promises(session).await {
                        session.directories.leave(None);
                        return None;
                    }
                }
                Posting::Done(made) => break made,
                Posting::Ask(slot, made) => {
                    match asked(session.answer_in(slot), !flags.contains(Flags::EXCLUSIVE))? {
                        Ok(()) => break made,
                        Err(e) => return Some(Err(e)),
                    }
                }
            }
        };
        session.kept.posted(parent, name, None);
        session.was_opened(flags);
        let inode = (promise.ino, promise.generation);
        let mut file = OpenFile::new(inode, FileType::Regular, flags, promise.handle, session.serial);
        file.lent = lent;
        let now = Time::now();
        let attr = Attr {
            ino: promise.ino,
            generation: promise.generation,
            kind: FileType::Regular,
            perm,
            nlink: 1,
            uid,
            gid,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
        };
        Some(Ok((attr, self.link.opened(file))))
    }

    /// Removes a file without a message that is waited for, if that can be done.
    pub(in crate::client) fn unlink_here(&self, parent: Ino, name: &[u8]) -> Option<Result<()>> {
        let session: &Arc<Session> = self.now();
        if !session.directories.any() || !self.made_here(parent, name) {
            return None;
        }
        if let Err(e) = self.link.keeps_order() {
            return Some(Err(e));
        }
        let ino = loop {
            match session.directories.unlink(session, parent, name) {
                Posting::Message | Posting::Promises | Posting::Room => return None,
                // Other futures of this thread may have to give slots back.
                Posting::Full if !session.wait_for_room() => return None,
                Posting::Full => {}
                Posting::Done(ino) => break ino,
                Posting::Ask(slot, ino) => match asked(session.answer_in(slot), false)? {
                    Ok(()) => break ino,
                    Err(e) => return Some(Err(e)),
                },
            }
        };
        session.kept.posted(parent, name, Some(Ino(ino)));
        Some(Ok(()))
    }

    /// Whether there are promised inodes now.
    async fn asks_promises(&self, session: &Arc<Session>) -> bool {
        let mut r = request(Op::Promise, 0);
        r.len = PROMISES.into();
        let Ok(answer) = session.call(r, b"", b"").await else { return false };
        let Ok(mut promises) = wire::read_promises(&answer.bytes()) else { return false };
        // The lowest number first, as files are made otherwise.
        promises.reverse();
        let mut table = session.directories.table.lock();
        table.promises.splice(0..0, promises);
        !table.promises.is_empty()
    }

    /// A file was made in a directory by a message.
    pub(in crate::client) async fn created(&self, parent: Ino) {
        let session: &Arc<Session> = self.now();
        let Some(mut asking) = session.directories.wants(session, parent) else { return };
        // Whoever makes a name there now is counted, or finds the directory in the table.
        if self.link.naming.load(Ordering::SeqCst) != 0 || self.link.naming_lost.load(Ordering::SeqCst) {
            return;
        }
        let mut r = request(Op::LendDirectory, parent.0);
        (r.mode, r.len) = ((asking.place as u32).into(), PROMISES.into());
        let lent = match session.call(r, b"", b"").await {
            Ok(answer) if answer.value != 0 => {
                wire::read_lent(&answer.bytes()).ok().map(|lent| (answer.value, lent))
            }
            _ => None,
        };
        let mut table = session.directories.table.lock();
        let place = asking.place;
        let dir = table
            .dirs
            .iter()
            .position(|dir| dir.place == place && dir.number == 0 && dir.ino == Some(parent));
        let (Some(at), Some((number, (attr, mut promises, names)))) = (dir, lent) else {
            table.need = (table.need.max(NEED) * 4).min(NEED_MAX);
            return;
        };
        for name in names {
            table.dirs[at].names.insert(Name::from_vec(name), Known::default());
        }
        (table.dirs[at].number, table.dirs[at].attr) = (number, Some(attr));
        promises.reverse();
        table.promises.splice(0..0, promises);
        table.need = NEED;
        asking.granted = true;
    }
}

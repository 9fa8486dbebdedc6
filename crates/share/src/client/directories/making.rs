//! Calls of the contract that are made here without waiting for the manager, and what other calls must say so that these keep to what is true.

use super::answers::asked;
use super::table::Lease;
use super::*;

/// Whether a name can be made as it is.
pub(super) fn is_plain(name: &[u8]) -> bool {
    (1..=format::limits::NAME_MAX).contains(&name.len())
        && !matches!(name, b"." | b"..")
        && !name.iter().any(|b| matches!(b, b'/' | 0))
}

impl Remote {
    /// A directory, or any of them, is about to be changed itself.
    pub(in crate::client) fn uses_itself(&self, dir: Option<Ino>) {
        self.now().directories.leave(dir);
    }

    /// Whether a name leads to a file that was made here, and is nobody else's.
    pub(in crate::client) fn made_file(&self, parent: Ino, name: &[u8]) -> bool {
        let directories = &self.now().directories;
        directories.any() && directories.table.lock().made(parent, name).is_some_and(|known| !known.is_dir)
    }

    /// The directory that a name leads to, if it was made here.
    pub(in crate::client) fn made_dir(&self, parent: Ino, name: &[u8]) -> Option<Ino> {
        let known = self.now().directories.table.lock().made(parent, name)?;
        known.is_dir.then_some(Ino(known.ino))
    }

    /// A file is about to get another name.
    pub(in crate::client) fn has_more_names(&self, ino: Ino) {
        let directories = &self.now().directories;
        if directories.any() {
            let mut table = directories.table.lock();
            for dir in table.dirs.values_mut() {
                for known in dir.names.values_mut().filter(|known| known.ino == ino.0) {
                    (known.ino, known.number) = (0, 0);
                }
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
        let others = !(Flags::READ | Flags::WRITE | Flags::APPEND | Flags::TRUNCATE | Flags::EXCLUSIVE);
        if flags.intersects(others) || !flags.intersects(Flags::READ | Flags::WRITE) {
            return None;
        }
        let session: &Arc<Session> = self.now();
        let made = match self.make_here(session, parent, name, perm, Some(flags)).await? {
            Ok(made) => made,
            Err(e) => return Some(Err(e)),
        };
        session.was_opened(flags);
        let Made { attr, handle, lent, .. } = made;
        let mut file = OpenFile::new((attr.ino, attr.generation), attr.kind, flags, handle, session.serial);
        file.lent = lent;
        self.link.resizes.just_made(attr.ino, lent);
        Some(Ok((attr, self.link.opened(file))))
    }

    /// Makes a directory without a message that is waited for, if that can be done.
    pub(in crate::client) async fn mkdir_here(
        &self,
        parent: Ino,
        name: &[u8],
        perm: u16,
    ) -> Option<Result<Attr>> {
        let made = self.make_here(self.now(), parent, name, perm, None).await?;
        Some(made.map(|made| made.attr))
    }

    async fn make_here(
        &self,
        session: &Arc<Session>,
        parent: Ino,
        name: &[u8],
        perm: u16,
        open: Option<OpenFlags>,
    ) -> Option<Result<Made>> {
        if !session.directories.any() || !is_plain(name) {
            return None;
        }
        if let Err(e) = self.link.keeps_order() {
            return Some(Err(e));
        }
        // Who opens it, does so whether it is there or not.
        let may_repeat = open.is_some_and(|flags| !flags.contains(OpenFlags::EXCLUSIVE));
        if !may_repeat && matches!(session.directories.find(session, parent, name), Found::There(_)) {
            return Some(Err(Error::Exists));
        }
        let mut slot = None;
        let made = loop {
            match session.directories.make(session, (parent, name), slot.take(), (perm, open)) {
                Posting::Full if session.waits_for_slot(&mut slot).await => {}
                Posting::Promises if self.asks_promises(session).await => {}
                Posting::Message | Posting::Room | Posting::Full | Posting::Promises => return None,
                Posting::Done(made) => break made,
                Posting::Ask(slot, made) => match asked(session.answer_in(slot), may_repeat)? {
                    Ok(()) => break made,
                    Err(e) => return Some(Err(e)),
                },
            }
        };
        session.kept.posted(parent, name, None);
        Some(Ok(made))
    }

    /// Removes a file without a message that is waited for, if that can be done.
    pub(in crate::client) async fn unlink_here(&self, parent: Ino, name: &[u8]) -> Option<Result<()>> {
        self.remove_here(Op::PostUnlink, parent, name).await
    }

    /// As [`Remote::unlink_here`], a directory in which nothing is.
    pub(in crate::client) async fn rmdir_here(&self, parent: Ino, name: &[u8]) -> Option<Result<()>> {
        self.remove_here(Op::PostRmdir, parent, name).await
    }

    async fn remove_here(&self, op: Op, parent: Ino, name: &[u8]) -> Option<Result<()>> {
        let session: &Arc<Session> = self.now();
        if !session.directories.any() || session.directories.table.lock().made(parent, name).is_none() {
            return None;
        }
        if let Err(e) = self.link.keeps_order() {
            return Some(Err(e));
        }
        let mut slot = None;
        let ino = loop {
            match session.directories.remove(session, op, (parent, name), slot.take()) {
                Posting::Full if session.waits_for_slot(&mut slot).await => {}
                Posting::Message | Posting::Room | Posting::Full | Posting::Promises => return None,
                Posting::Done(ino) => break ino,
                Posting::Ask(slot, ino) => match asked(session.answer_in(slot), false)? {
                    Ok(()) => break ino,
                    Err(e) => return Some(Err(e)),
                },
            }
        };
        match op {
            Op::PostRmdir => session.kept.posted_rmdir(parent, name, ino),
            _ => session.kept.posted(parent, name, Some(ino)),
        }
        Some(Ok(()))
    }

    /// Whether there are promised inodes now.
    async fn asks_promises(&self, session: &Arc<Session>) -> bool {
        let mut r = request(Op::Promise, 0);
        r.len = PROMISES.into();
        let promises = match session.call(r, b"", b"").await {
            Ok(answer) => wire::read_promises(&answer.bytes()).unwrap_or_default(),
            Err(_) => Vec::new(),
        };
        session.directories.table.lock().promised(promises)
    }

    /// A file was made in a directory by a message.
    pub(in crate::client) async fn created(&self, parent: Ino) {
        let session: &Arc<Session> = self.now();
        let Some(mut asking) = session.directories.wants(session, parent) else { return };
        if self.has_others(&session.directories.table.lock()) {
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
        let table = &mut *table;
        let place = asking.place;
        let is_ours = |lease: &Lease| lease.number == 0 && lease.dir == Some(parent);
        let is_asked = table.leases[place].as_ref().is_some_and(is_ours) && table.dirs.contains_key(&parent);
        let Some((number, (attr, promises, names))) = lent.filter(|_| is_asked) else {
            table.need = (table.need.max(NEED) * 4).min(NEED_MAX);
            return;
        };
        names.iter().for_each(|name| table.listed(parent, name));
        if let (Some(lease), Some(dir)) = (&mut table.leases[place], table.dirs.get_mut(&parent)) {
            (lease.number, dir.attr) = (number, Some(attr));
        }
        table.promised(promises);
        table.need = NEED;
        asking.granted = true;
    }
}

/// What was made, and under which lease.
#[derive(Clone, Copy)]
struct Made {
    attr: Attr,
    /// A clock from before it was made.
    noted: u64,
    /// Of a file.
    handle: Handle,
    lent: u64,
}

impl Directories {
    /// Posts that something is made: a file that is opened so, or a directory.
    fn make(
        &self,
        session: &Session,
        (parent, name): (Ino, &[u8]),
        slot: Option<SlotNo>,
        (perm, open): (u16, Option<OpenFlags>),
    ) -> Posting<Made> {
        let prepare = |table: &mut Table, lent: u64| {
            let dir = table.dirs.get(&parent).filter(|dir| !dir.names.contains_key(name));
            let dir = dir.filter(|dir| table.is_settled(dir));
            let Some(of) = dir.and_then(|dir| dir.attr) else { return Posting::Message };
            // Before it is made: who gives the call up while he asks has made nothing.
            if table.asks_promises() {
                return Posting::Promises;
            }
            let Some((promise, noted)) = table.promise(|| session.kept.now()) else {
                return Posting::Message;
            };
            let (op, kind, perm) = match open {
                Some(_) => (Op::PostCreate, FileType::Regular, perm & 0o7777),
                None => (Op::PostMkdir, FileType::Directory, perm & 0o1777),
            };
            let now = Time::now();
            let mut r = request(op, parent.0);
            (r.mode, r.other, r.offset) =
                ((perm as u32).into(), promise.ino.0.into(), wire::time(now).into());
            r.flags = open.unwrap_or(OpenFlags::empty()).bits().into();
            let owner = fs::perm::new_inode(&session.cred, &of, kind, perm);
            let attr = Attr::just_made(kind, (promise.ino, promise.generation), owner, now);
            Posting::Done((r, Made { attr, noted, handle: promise.handle, lent }))
        };
        self.change(session, (parent, name), slot, prepare, |table, Made { attr, noted, .. }| {
            let is_dir = open.is_none();
            if is_dir {
                table.enter_made(parent, &attr, &session.cred);
            }
            let (ino, generation) = (attr.ino.0, attr.generation);
            table.add_made(parent, name, Known { ino, generation, is_dir, ..Known::default() });
            session.kept.made(&attr, noted);
        })
    }

    /// Posts that a name goes: of a file that was made here, or of a directory in which nothing is.
    fn remove(
        &self,
        session: &Session,
        op: Op,
        (parent, name): (Ino, &[u8]),
        slot: Option<SlotNo>,
    ) -> Posting<Ino> {
        let prepare = |table: &mut Table, _| {
            let Some(known) = table.made(parent, name) else { return Posting::Message };
            let may = match op {
                Op::PostRmdir => {
                    let is_empty = |ino| table.find(ino).is_some_and(|(dir, _)| dir.names.is_empty());
                    known.is_dir && is_empty(Ino(known.ino))
                }
                _ => !known.is_dir,
            };
            if !may {
                return Posting::Message;
            }
            Posting::Done((request(op, parent.0), Ino(known.ino)))
        };
        self.change(session, (parent, name), slot, prepare, |table, ino| {
            table.remove(parent, name);
            table.forget(ino);
        })
    }
}

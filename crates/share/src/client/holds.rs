//! Files that are opened without a message: see `format::shared` and the manager's side, `server::holds`.
//!
//! Who knows the attributes of a file, and that they hold, knows whether it may be opened. The inode is written into the session's holds,
//! where the manager looks before it takes the file away. Only when something is done with the file for which there must be a message it is opened
//! there as well.

use super::asking::open_request;
use super::call::Failed;
use super::files::OpenFile;
use super::kept::Target;
use super::{Remote, Session};
use crate::lock::Mutex;
use crate::wire::{self, Op, request};
use foldhash::fast::FixedState;
use format::shared::{HOLDS_IN_LINE, Request, hold_line, hold_word};
use fs::{Access, FileSystem, FileType, Handle, Ino, OpenFlags, Result};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a session holds.
#[derive(Debug, Default)]
pub(super) struct Holds {
    held: Mutex<HashMap<Ino, Hold, FixedState>>,
    /// The manager has opened a file for writing: the volume can be written.
    writes: AtomicBool,
}

#[derive(Debug)]
struct Hold {
    /// Which word of its line.
    word: usize,
    access: OpenFlags,
    /// Open files that it stands for.
    files: usize,
    /// The clock for which it held first.
    noted: u64,
}

impl Session {
    /// Opens a file without a message, if that can be done; says which generation of the inode it is.
    pub(super) fn hold(&self, ino: Ino, generation: Option<u32>, flags: OpenFlags) -> Option<u32> {
        use OpenFlags as Flags;
        let access = flags & (Flags::READ | Flags::WRITE);
        let write = access.contains(Flags::WRITE);
        if self.region.may_hold().load(Ordering::Relaxed) == 0
            || flags.intersects(Flags::TRUNCATE | Flags::NOATIME)
            || access.is_empty()
            || ino.0 >> 62 != 0
            || write && !self.holds.writes.load(Ordering::Relaxed)
        {
            return None;
        }
        let mut want = Access::empty();
        want.set(Access::READ, access.contains(Flags::READ));
        want.set(Access::WRITE, write);
        let look = || {
            self.kept.noted(ino, |attr| {
                let may = attr.kind == FileType::Regular && fs::perm::check(&self.cred, attr, want).is_ok();
                may.then_some(attr.generation)
            })
        };
        let asked = |there: bool| there.then(look).flatten();
        let known = look().or_else(|| asked(self.kept.known(ino).is_some()));
        let (found, noted) = known.or_else(|| asked(self.gather()))?;
        let found = found.filter(|&found| generation.is_none_or(|g| g == found))?;
        let line = hold_line(ino.0);
        let mut held = self.holds.held.lock();
        let hold = match held.entry(ino) {
            Entry::Occupied(hold) => hold.into_mut(),
            Entry::Vacant(vacant) => {
                let is_free = |&word: &usize| self.region.hold(line, word).load(Ordering::Relaxed) == 0;
                let word = (0..HOLDS_IN_LINE).find(is_free)?;
                vacant.insert(Hold { word, access: Flags::empty(), files: 0, noted })
            }
        };
        let before = hold.access;
        hold.access |= access;
        hold.files += 1;
        if hold.access != before {
            let (read, write) = (hold.access.contains(Flags::READ), hold.access.contains(Flags::WRITE));
            self.region.hold(line, hold.word).store(hold_word(ino.0, read, write), Ordering::Release);
        }
        // Either the manager sees the word, or we see that it is about to take the file away.
        if self.kept.unchanged_now(ino, noted) && self.kept.alive() {
            return Some(found);
        }
        drop(held);
        if self.unhold(ino, 0) {
            self.tell_unhold(ino);
        }
        None
    }

    /// One file less that is open so. Whether the manager may have opened it meanwhile, and must be told. At the clock `unheld` it had not.
    fn unhold(&self, ino: Ino, unheld: u64) -> bool {
        let mut held = self.holds.held.lock();
        let Entry::Occupied(mut entry) = held.entry(ino) else { return false };
        entry.get_mut().files -= 1;
        if entry.get().files > 0 {
            return false;
        }
        let hold = entry.remove();
        self.region.hold(hold_line(ino.0), hold.word).store(0, Ordering::Release);
        !self.kept.unchanged_now(ino, hold.noted.max(unheld))
    }

    fn tell_unhold(&self, ino: Ino) {
        // What is not told now stays open until the session ends.
        self.tell(&request(Op::Unhold, ino.0));
    }

    /// The manager has opened a file so.
    pub(super) fn was_opened(&self, flags: OpenFlags) {
        if flags.contains(OpenFlags::WRITE) {
            self.holds.writes.store(true, Ordering::Relaxed);
        }
    }
}

impl Remote {
    /// As `FileSystem::open_exact`, if that can be done without a message; and without a future, for callers that would rather have none.
    pub fn open_now(&self, target: Target, flags: OpenFlags) -> Option<Handle> {
        self.open_here(target.ino, Some(target.generation), flags)
    }

    /// Closes a file that was opened without a message, as `FileSystem::release` does. False: it is none, and open still.
    pub fn close_now(&self, handle: Handle) -> bool {
        let Some(file) = self.link.closed_if(handle, |file| file.held && !file.gone) else { return false };
        if file.flags.contains(OpenFlags::WRITE) {
            // A write may have failed before the manager had opened the file.
            self.now().leases.closed(self.now(), handle);
        }
        if self.unhold(file.ino, file.session, 0) {
            self.block_on(self.tell_unhold(file.ino, file.session));
        }
        true
    }

    /// Opens a file without a message, if that can be done; of a certain generation, or any.
    pub(super) fn open_here(&self, ino: Ino, generation: Option<u32>, flags: OpenFlags) -> Option<Handle> {
        let session = self.now();
        if session.kept.leased(ino).is_some() {
            return None;
        }
        let generation = session.hold(ino, generation, flags)?;
        Some(self.held((ino, generation), flags, session.serial))
    }

    /// A file that was opened without a message is closed. Whether its manager must be told.
    fn unhold(&self, ino: Ino, serial: u64, unheld: u64) -> bool {
        let session = self.now();
        session.serial == serial && session.unhold(ino, unheld)
    }

    async fn tell_unhold(&self, ino: Ino, serial: u64) {
        let request = request(Op::Unhold, ino.0);
        if !self.tell(serial, &request) {
            let _ = self.close_there(serial, request).await;
        }
    }

    /// Closes a file that was opened without a message. At the clock `unheld`, if it is not 0, the manager had opened nothing for that.
    pub(super) async fn let_go(&self, ino: Ino, serial: u64, unheld: u64) {
        if self.unhold(ino, serial, unheld) {
            self.tell_unhold(ino, serial).await;
        }
    }

    /// Opens a file with the manager that was opened without a message, as it is used in a way that needs one.
    pub(super) async fn open_there(&self, session: &Arc<Session>, handle: Handle) -> Result<()> {
        let Some(file) = self.link.file(handle).filter(|f| f.held && f.session == session.serial) else {
            return Ok(());
        };
        let mut r = open_request(file.ino, Some(file.generation), file.flags - OpenFlags::EXCLUSIVE);
        r.extra = 1.into();
        match session.call(r, b"", b"").await {
            Ok(answer) => self.opened_there(session, handle, Handle(answer.value), 0).await,
            Err(Failed::With(e)) => Err(e),
            // The call for which this is done finds out.
            Err(Failed::Lost { .. }) => Ok(()),
        }
    }

    /// Has a call with this handle open the file, if the manager has not: then nobody waits for that alone. The answer has the handle.
    pub(super) fn opens(&self, session: &Session, handle: Handle, request: &mut Request) -> bool {
        let is_held = |f: &OpenFile| f.held && f.session == session.serial && !f.gone;
        let Some(file) = self.link.file(handle).filter(is_held) else { return false };
        let flags = file.flags - OpenFlags::EXCLUSIVE;
        request.object = file.ino.0.into();
        request.other = (file.generation as u64).into();
        request.mode = flags.bits().into();
        request.flags = (request.flags.get() | wire::OPENS).into();
        true
    }

    /// The manager has opened a file that was opened without a message.
    pub(super) async fn opened_there(
        &self,
        session: &Arc<Session>,
        handle: Handle,
        opened: Handle,
        unheld: u64,
    ) -> Result<()> {
        let (mut is_first, mut ino) = (false, Ino(0));
        self.link.change(handle, |file| {
            is_first = file.held && file.session == session.serial;
            if is_first {
                (file.held, file.remote, ino) = (false, opened, file.ino);
            }
        });
        if is_first {
            self.let_go(ino, session.serial, unheld).await;
        } else {
            // Another thread was faster, or has closed it.
            self.close_there(session.serial, request(Op::Release, opened.0)).await?;
        }
        Ok(())
    }
}

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
use crate::lock::{self, Apart, Mutex};
use crate::wire::{self, Op, request};
use foldhash::fast::FixedState;
use format::shared::{HOLDS_IN_LINE, Request, hold_line, hold_word};
use fs::{Access, FileSystem, FileType, Handle, Ino, OpenFlags, Result};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Parts of the holds, of the processors in turn. A file may stand in all of them, and so take as many words of a line, which has twice as many.
const PARTS: usize = HOLDS_IN_LINE / 2;

/// What a session holds.
#[derive(Debug, Default)]
pub(super) struct Holds {
    parts: [Apart<Mutex<HashMap<Ino, Hold, FixedState>>>; PARTS],
    /// The manager has opened a file for writing: the volume can be written.
    writes: AtomicBool,
    owed: Owed,
}

/// Files that the manager may have opened for a hold that is gone, while another part held them: who gives that up tells it.
#[derive(Debug, Default)]
struct Owed {
    count: AtomicUsize,
    files: Mutex<HashSet<Ino, FixedState>>,
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
    /// Opens a file without a message, if that can be done; says which generation of the inode it is, and in which part it stands.
    pub(super) fn hold(&self, ino: Ino, generation: Option<u32>, flags: OpenFlags) -> Option<(u32, usize)> {
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
            self.kept.noted_data(ino, |attr, _| {
                let may = attr.kind == FileType::Regular && fs::perm::check(&self.cred, attr, want).is_ok();
                may.then_some(attr.generation)
            })
        };
        let asked = |there: bool| there.then(look).flatten();
        let known = look().or_else(|| asked(self.kept.known(ino).is_some()));
        let (found, noted) = known.or_else(|| asked(self.gather()))?;
        let found = found.filter(|&found| generation.is_none_or(|g| g == found))?;
        let line = hold_line(ino.0);
        let word =
            |access: Flags| hold_word(ino.0, access.contains(Flags::READ), access.contains(Flags::WRITE));
        let part = lock::part_here(PARTS);
        let mut held = self.holds.parts[part].lock();
        match held.entry(ino) {
            Entry::Occupied(mut hold) => {
                let hold = hold.get_mut();
                hold.files += 1;
                if !hold.access.contains(access) {
                    hold.access |= access;
                    self.region.hold(line, hold.word).store(word(hold.access), Ordering::Release);
                }
            }
            Entry::Vacant(vacant) => {
                let take = |&at: &usize| take_word(self.region.hold(line, at), word(access));
                let word = (0..HOLDS_IN_LINE).find(take)?;
                vacant.insert(Hold { word, access, files: 1, noted });
            }
        }
        // Either the manager sees the word, or we see that it is about to take the file away.
        if self.kept.unchanged_now(ino, noted) && self.kept.alive() {
            return Some((found, part));
        }
        drop(held);
        if self.unhold((ino, part), 0) {
            self.tell_unhold(ino);
        }
        None
    }

    /// One file less that is open so. Whether the manager may have opened it meanwhile, and must be told. At the clock `unheld` it had not.
    fn unhold(&self, (ino, part): (Ino, usize), unheld: u64) -> bool {
        let mut held = self.holds.parts[part].lock();
        let Entry::Occupied(mut entry) = held.entry(ino) else { return false };
        entry.get_mut().files -= 1;
        if entry.get().files > 0 {
            return false;
        }
        let (hold, line) = (entry.remove(), hold_line(ino.0));
        self.region.hold(line, hold.word).store(0, Ordering::Release);
        let changed = !self.kept.unchanged_now(ino, hold.noted.max(unheld));
        let owed = &self.holds.owed;
        if !changed && owed.count.load(Ordering::SeqCst) == 0 {
            return false;
        }
        // The manager keeps open what is held by any part.
        let is_held = |at: usize| self.region.hold(line, at).load(Ordering::SeqCst) >> 2 == ino.0;
        let elsewhere = (0..HOLDS_IN_LINE).any(is_held);
        let mut files = owed.files.lock();
        let was_owed = files.contains(&ino);
        if !elsewhere {
            files.remove(&ino);
        } else if changed {
            files.insert(ino);
        }
        owed.count.store(files.len(), Ordering::SeqCst);
        changed || was_owed
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

/// Writes a word where there is none.
fn take_word(place: &AtomicU64, word: u64) -> bool {
    match lock::is_single() {
        true if place.load(Ordering::Relaxed) == 0 => {
            place.store(word, Ordering::Release);
            true
        }
        true => false,
        false => place.compare_exchange(0, word, Ordering::SeqCst, Ordering::Relaxed).is_ok(),
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
        if self.unhold(&file, 0) {
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
        let (generation, part) = session.hold(ino, generation, flags)?;
        Some(self.held((ino, generation), part, flags, session.serial))
    }

    /// A file that was opened without a message is closed. Whether its manager must be told.
    fn unhold(&self, file: &OpenFile, unheld: u64) -> bool {
        let session = self.now();
        session.serial == file.session && session.unhold((file.ino, file.hold), unheld)
    }

    async fn tell_unhold(&self, ino: Ino, serial: u64) {
        let request = request(Op::Unhold, ino.0);
        if !self.tell(serial, &request) {
            let _ = self.close_there(serial, request).await;
        }
    }

    /// Closes a file that was opened without a message. At the clock `unheld`, if it is not 0, the manager had opened nothing for that.
    pub(super) async fn let_go(&self, file: &OpenFile, unheld: u64) {
        if self.unhold(file, unheld) {
            self.tell_unhold(file.ino, file.session).await;
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
            Ok(mut answer) => {
                let opened = (Handle(answer.value), 0);
                answer.then(self.opened_there(session, handle, opened));
                Ok(())
            }
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

    /// The manager has opened a file that was opened without a message; at the clock `unheld`, if it is not 0, nothing for its hold. What it is to be told of that, when the
    /// answer that said so is no longer needed: who has an answer waits for no other.
    pub(super) fn opened_there(
        &self,
        session: &Session,
        handle: Handle,
        (opened, unheld): (Handle, u64),
    ) -> Option<Request> {
        let mut first = None;
        self.link.change(handle, |file| {
            if file.held && file.session == session.serial {
                first = Some(*file);
                (file.held, file.remote) = (false, opened);
            }
        });
        match first {
            Some(file) => self.unhold(&file, unheld).then(|| request(Op::Unhold, file.ino.0)),
            // Another thread was faster, or has closed it.
            None => Some(request(Op::Release, opened.0)),
        }
    }
}

//! Locks that belong to an open file description which several processes have, of whole files and of records (see the manager's side, `server::descriptions`).

use super::asking::{flock_request, found, lock_request, open_request, test_request};
use super::call::Answer;
use super::{Remote, Session};
use crate::lock::Mutex;
use crate::socket;
use crate::wire::{Op, request};
use format::shared::{MAGIC, MEMORIES, Request, Show, Shown};
use fs::{Error, FileType, Handle, Ino, LockKind, LockOwner, OpenFlags, RecordLock, Result};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// How long the manager may take for an answer before it is looked whether it is still there.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Memories that the manager was shown in one session.
#[derive(Debug, Default)]
pub(super) struct Memories(Mutex<Shows>);

#[derive(Debug, Default)]
struct Shows {
    /// Their numbers there, by what the client calls them.
    numbers: HashMap<u64, u32>,
    /// The last number.
    last: u32,
}

impl Shows {
    /// Whether the manager has it still.
    fn counts(&self, number: u32) -> bool {
        (self.last.wrapping_sub(number) as usize) < MEMORIES
    }
}

/// An open file description, as the processes that have it know it: one byte of a memory (a sealed memfd), on which the description has a lock
/// (F_OFD_SETLK).
pub struct Description<'a> {
    /// The memory: its inode number.
    pub memory: u64,
    /// Which byte.
    pub at: u64,
    /// Opens the memory.
    pub open: &'a (dyn Fn() -> io::Result<OwnedFd> + Sync),
}

impl Session {
    /// The number that a memory has in this session.
    fn show(&self, description: &Description<'_>) -> Result<u32> {
        let mut shows = self.memories.0.lock();
        if let Some(&number) = shows.numbers.get(&description.memory)
            && shows.counts(number)
        {
            return Ok(number);
        }
        let failed = |e: io::Error| match e.raw_os_error() {
            Some(libc::EPIPE | libc::ECONNRESET) => Error::Closed,
            errno => Error::from_errno(errno.unwrap_or(libc::EIO), e.to_string()),
        };
        let memory = (description.open)().map_err(failed)?;
        let show = Show { magic: MAGIC.into(), ..Show::new_zeroed() };
        socket::send(&self.socket, show.as_bytes(), &[memory.as_fd()]).map_err(failed)?;
        self.ring();
        let mut answers = [PollFd::new(&self.socket, PollFlags::IN)];
        while !rustix::event::poll(&mut answers, Some(&LOOK)).is_ok_and(|n| n > 0) {
            if !self.check_alive() {
                return Err(Error::Closed);
            }
        }
        let mut bytes = [0; size_of::<Shown>()];
        let (n, _) = socket::receive(&self.socket, &mut bytes).map_err(failed)?;
        let shown = Shown::read_from_bytes(&bytes[..n]).map_err(|_| Error::Closed)?;
        match shown.errno.get() {
            0 => {
                let number = shown.number.get();
                shows.last = number;
                if shows.numbers.len() >= 2 * MEMORIES {
                    let Shows { numbers, last } = &mut *shows;
                    numbers.retain(|_, number| (last.wrapping_sub(*number) as usize) < MEMORIES);
                }
                shows.numbers.insert(description.memory, number);
                Ok(number)
            }
            errno => Err(Error::from_errno(errno, "open files cannot be shared".into())),
        }
    }
}

/// The request with the description that it is about: number of its memory, byte, and the session in which that was shown.
fn described(r: Request, (number, at, session): (u32, u64, u64)) -> Request {
    Request { other: (number as u64).into(), offset: at.into(), more: session.into(), ..r }
}

/// The same for a request about record locks.
fn of_records(r: Request, (number, at, session): (u32, u64, u64)) -> Request {
    Request { other: (number as u64).into(), extra: at.into(), more: session.into(), ..r }
}

/// Whose the locks are is said by the description.
const NOBODY: LockOwner = LockOwner(0);

impl Remote {
    /// As [`fs::FileSystem::flock`], for a description that this and other processes may have: they have the lock together, until one of them
    /// gives it up or none of them has the description any more. `handle` is this process's handle of the file. Whether the description has locks after that.
    ///
    /// # Errors
    /// `TooManyOpen`: the user has too many descriptions with locks.
    pub async fn flock_description(
        &self,
        handle: Handle,
        description: &Description<'_>,
        kind: Option<LockKind>,
        wait: bool,
    ) -> Result<bool> {
        let request = |waits, of| described(flock_request(handle, kind, waits), of);
        self.lock_for(handle, description, wait, request).await
    }

    /// As [`fs::FileSystem::setlk`], for record locks that the description owns itself (F_OFD_SETLK), as of [`Remote::flock_description`].
    ///
    /// # Errors
    /// `TooManyOpen`, as above.
    pub async fn setlk_description(
        &self,
        handle: Handle,
        description: &Description<'_>,
        lock: std::result::Result<RecordLock, (u64, u64)>,
        wait: bool,
    ) -> Result<bool> {
        let request = |waits, of| of_records(lock_request(handle, NOBODY, lock, waits), of);
        self.lock_for(handle, description, wait, request).await
    }

    /// As [`fs::FileSystem::getlk`], for the description (F_OFD_GETLK).
    pub async fn getlk_description(
        &self,
        handle: Handle,
        description: &Description<'_>,
        lock: RecordLock,
    ) -> Result<Option<RecordLock>> {
        let request = |number, session| {
            of_records(test_request(handle, NOBODY, lock), (number, description.at, session))
        };
        found(&self.call_about(description, request).await?)
    }

    /// Makes a call that sets a lock of a description. The request is told whether it waits, and which description it is about.
    async fn lock_for(
        &self,
        handle: Handle,
        description: &Description<'_>,
        wait: bool,
        request: impl Fn(bool, (u32, u64, u64)) -> Request,
    ) -> Result<bool> {
        self.link.change(handle, |file| file.locks = true);
        loop {
            let turn = self.turn(wait);
            let request = |number, session| request(turn.waits(), (number, description.at, session));
            let done = self.call_about(description, request).await;
            if turn.asks_again(&done).await? {
                continue;
            }
            let answer = done?;
            let locked = answer.value != 0;
            self.link.is_locked(handle, locked);
            if answer.session() == self.now().serial {
                return Ok(locked);
            }
        }
    }

    /// Leaves the file to who has the description, for as long as it is there: [`Remote::open_left`].
    ///
    /// # Errors
    /// `TooManyOpen`, as of [`Remote::flock_description`].
    pub async fn leave(&self, handle: Handle, description: &Description<'_>) -> Result<()> {
        let request =
            |number, session| described(request(Op::Leave, handle.0), (number, description.at, session));
        self.call_about(description, request).await.map(drop)
    }

    /// As [`fs::FileSystem::open_exact`], of a file that was left to who has the description, whatever its permissions and names are by now.
    ///
    /// # Errors
    /// As of an ordinary open, where it was not left to these credentials with this access.
    pub async fn open_left(
        &self,
        (ino, generation): (Ino, u32),
        flags: OpenFlags,
        description: &Description<'_>,
    ) -> Result<Handle> {
        let request = |number: u32, session: u64| {
            let r = open_request(ino, Some(generation), flags);
            let (extra, len) = (2.into(), (number as u64).into());
            Request { extra, len, offset: description.at.into(), more: session.into(), ..r }
        };
        let answer = self.call_about(description, request).await?;
        Ok(self.opened(&answer, (ino, generation), FileType::Regular, flags))
    }

    /// Makes a call about a description: the request gets the number of its memory, and the session in which that was shown.
    async fn call_about(
        &self,
        description: &Description<'_>,
        request: impl Fn(u32, u64) -> Request,
    ) -> Result<Answer<'_>> {
        loop {
            let session = self.now();
            let number = match session.show(description) {
                Ok(number) => number,
                // A call waits for the next manager, if there is to be one.
                Err(Error::Closed) => {
                    self.ping().await?;
                    continue;
                }
                Err(e) => return Err(e),
            };
            match self.call_in(Some(session.serial), request(number, session.number), b"", b"").await {
                // Another session has begun meanwhile, and was shown nothing.
                Err(Error::Stale) if !Arc::ptr_eq(session, self.now()) => {}
                // Or many others were shown.
                Err(Error::Stale) if !session.memories.0.lock().counts(number) => {}
                done => return done,
            }
        }
    }
}

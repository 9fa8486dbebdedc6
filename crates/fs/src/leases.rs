//! Writes that are acknowledged and not made yet: they stand in memory of whoever acknowledged them, under a lease.
//!
//! A lease says that one door writes to a file without asking: the door keeps what was written, and nobody else looks at the file or changes it
//! meanwhile. So every call that comes to [`Watched`] first settles with the lenders ([`Lender`]): what is there to be written is written
//! before the call goes on, and the lease ends, unless the call came through the very handle that has the lease.
//!
//! Exclusion: a call that changes what a file holds is counted ([`Watched::is_changing`]) before it looks whether there is a lease, and a lender
//! first makes its lease known and then looks for such calls. One of the two sees the other. What only reads need not be counted: it counts as earlier than
//! the lease, and what it brought to caches is told away when the lease begins ([`Watched::changed`]).
//!
//! The same is done for directories: a directory lease says that one caller alone ([`Watched::calling`]) makes, removes and finds names there, and may have
//! said that it did so before the engine has heard of it. Every call by anybody else that names the directory, or a file that was made so, settles first. Here
//! the calls that are counted are those that change names. Turns are taken after that, never before: what settles may need them.
//!
//! Without leases all of this costs a call one load. Tested in crates/share/tests/all/leases.rs.

use crate::error::Result;
use crate::types::{Attr, DirEntry, Handle, OpenFlags};
use crate::watched::{Change, Watched};
use format::Ino;
use parking_lot::RwLock;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// What a lender gives back.
pub type Settling<'a> = Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;

/// The call before which a lease must be settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Reads from `start` to before `end` through this handle.
    Read {
        /// The handle.
        handle: Handle,
        /// First byte.
        start: u64,
        /// Behind the last byte.
        end: u64,
    },
    /// Writes from `start` to before `end` through this handle.
    Write {
        /// The handle.
        handle: Handle,
        /// First byte.
        start: u64,
        /// Behind the last byte.
        end: u64,
    },
    /// Asks for attributes through this handle.
    Attr(Handle),
    /// Closes this handle.
    Close(Handle),
    /// Anything else.
    Other,
}

/// Who gives leases.
pub trait Lender: Send + Sync {
    /// Whether there is a lease on an inode that this caller may have to settle.
    fn lends(&self, ino: Ino, caller: Caller) -> bool;

    /// As [`Lender::lends`], for who is within a call of the engine, whose locks the lender may be waiting for: it waits for nobody. True also where that
    /// cannot be told so.
    fn may_lend(&self, ino: Ino, caller: Caller) -> bool;

    /// Whether any lease is one on a directory.
    fn lends_directories(&self) -> bool {
        false
    }

    /// Waits until what was said to be done in directories is done; leases stay.
    fn drain(&self) -> Settling<'_> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Makes the writes that a call must find made, and ends the lease unless the call may go on beside it. `None`: those of all files, as
    /// everything is to be durable; leases stay.
    ///
    /// # Errors
    /// Those of writing. What could not be written is kept.
    fn settle(&self, file: Option<(Ino, Call)>, caller: Caller) -> Settling<'_>;
}

/// Who makes a call, for lenders that give leases to callers: a number of their own choice, or 0.
pub type Caller = u64;

/// Files that are told apart among those that calls change now.
const CHANGING: usize = 64;

pub(crate) struct Lent {
    leases: AtomicUsize,
    lenders: RwLock<Vec<Arc<dyn Lender>>>,
    changing: [AtomicU32; CHANGING],
}

impl Default for Lent {
    fn default() -> Lent {
        let changing = [const { AtomicU32::new(0) }; CHANGING];
        Lent { leases: AtomicUsize::new(0), lenders: RwLock::default(), changing }
    }
}

impl Lent {
    fn place(&self, ino: Ino) -> &AtomicU32 {
        &self.changing[(ino.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58) as usize]
    }
}

/// A call that changes what a file holds.
pub(crate) struct Changing<'a>(&'a AtomicU32);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// For lenders.
impl<F> Watched<F> {
    /// From now on `lender` is asked about leases.
    pub fn lend(&self, lender: Arc<dyn Lender>) {
        self.hub.lent.lenders.write().push(lender);
    }

    /// This lender has ended all its leases.
    pub fn unlend(&self, lender: &Arc<dyn Lender>) {
        self.hub.lent.lenders.write().retain(|known| !Arc::ptr_eq(known, lender));
    }

    /// A lease is there; the lender already says so.
    pub fn lease_begins(&self) {
        self.hub.lent.leases.fetch_add(1, Ordering::SeqCst);
    }

    /// A lease is no longer there.
    pub fn lease_ends(&self) {
        self.hub.lent.leases.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether a call may be changing what this file holds that did not see the lease.
    pub fn is_changing(&self, ino: Ino) -> bool {
        self.hub.lent.place(ino).load(Ordering::SeqCst) != 0
    }

    /// How often this file is open, through all doors.
    pub fn openers(&self, ino: Ino) -> usize {
        self.hub.files.read().openers(ino)
    }

    /// Whether some door may keep something of an inode that it would have to be told of.
    pub fn keeps(&self, ino: Ino) -> bool {
        self.hub.watchers.read().iter().any(|(_, watcher)| watcher.keeps(ino))
    }

    /// Tells all doors but this one of a change that comes through no call. Whether all have taken it in.
    pub fn changed_now(&self, change: &Change<'_>) -> bool {
        self.tell(std::slice::from_ref(change)).is_empty()
    }

    /// Tells all doors but this one of a change that comes through no call, and waits until they have taken it in.
    pub fn changed(&self, change: &Change<'_>) -> impl Future<Output = ()> + Send + use<F> {
        let told = self.tell(std::slice::from_ref(change));
        async move {
            for told in told {
                told.await;
            }
        }
    }
}

/// For calls.
impl<F> Watched<F> {
    /// Counts a call that changes what a file holds; to be taken before [`Watched::settle`].
    pub(crate) fn changing(&self, ino: Ino) -> Changing<'_> {
        let place = self.hub.lent.place(ino);
        place.fetch_add(1, Ordering::SeqCst);
        Changing(place)
    }

    /// Settles the directory of a name that a call changes, before it takes the turn of the name, and counts the call.
    pub(crate) async fn entering(&self, parent: Ino) -> Result<Changing<'_>> {
        let changing = self.changing(parent);
        self.settle(parent, Call::Other).await?;
        Ok(changing)
    }

    /// As [`Watched::changing`], of the file behind a handle.
    pub(crate) fn changing_behind(&self, handle: Handle) -> Option<Changing<'_>> {
        self.file(handle).map(|file| self.changing(file.ino))
    }

    /// Whether there is any lease.
    #[inline]
    pub fn lends(&self) -> bool {
        self.hub.lent.leases.load(Ordering::SeqCst) != 0
    }

    /// Whether there is a lease on this inode that is not the caller's own.
    pub fn lends_on(&self, ino: Ino) -> bool {
        self.lends_beside(ino, self.caller)
    }

    /// As [`Watched::lends_on`], also if the lease is the caller's own.
    pub fn is_lent(&self, ino: Ino) -> bool {
        self.lends_beside(ino, 0)
    }

    /// As [`Watched::lends_on`], within a call of the engine; perhaps also when there is none.
    fn may_lend(&self, ino: Ino) -> bool {
        self.lends() && self.hub.lent.lenders.read().iter().any(|lender| lender.may_lend(ino, self.caller))
    }

    fn lends_beside(&self, ino: Ino, caller: Caller) -> bool {
        self.lends() && self.hub.lent.lenders.read().iter().any(|lender| lender.lends(ino, caller))
    }

    /// Whether there is a lease on the file behind a handle.
    pub(crate) fn lends_behind(&self, handle: Handle) -> bool {
        self.lends() && self.file(handle).is_some_and(|file| self.lends_on(file.ino))
    }

    /// Whether there is a lease on any directory.
    pub fn lends_directories(&self) -> bool {
        self.lends() && self.hub.lent.lenders.read().iter().any(|lender| lender.lends_directories())
    }

    async fn settle_slowly(&self, file: Option<(Ino, Call)>) -> Result<()> {
        let mut result = Ok(());
        for n in 0.. {
            let Some(lender) = self.hub.lent.lenders.read().get(n).cloned() else { break };
            if file.is_some_and(|(ino, _)| !lender.lends(ino, self.caller)) {
                continue;
            }
            // All are asked, whatever one of them says.
            result = result.and(lender.settle(file, self.caller).await);
        }
        result
    }

    /// What must have happened before a call on this inode.
    #[inline]
    pub(crate) async fn settle(&self, ino: Ino, call: Call) -> Result<()> {
        if self.lends() { self.settle_slowly(Some((ino, call))).await } else { Ok(()) }
    }

    /// As [`Watched::settle`], before a call through a handle.
    #[inline]
    pub(crate) async fn settle_handle(&self, handle: Handle, call: Call) -> Result<()> {
        match self.lends().then(|| self.file(handle)).flatten() {
            Some(file) => self.settle_slowly(Some((file.ino, call))).await,
            None => Ok(()),
        }
    }

    /// What must have happened before everything becomes durable.
    #[inline]
    pub(crate) async fn settle_all(&self) -> Result<()> {
        if self.lends() { self.settle_slowly(None).await } else { Ok(()) }
    }

    /// What was said to be done in directories is done.
    pub(crate) async fn drained(&self) -> Result<()> {
        let mut result = Ok(());
        for n in 0.. {
            let Some(lender) = self.hub.lent.lenders.read().get(n).cloned() else { break };
            result = result.and(lender.drain().await);
        }
        result
    }

    /// As [`Watched::settle_handle`], before a read.
    #[inline]
    pub(crate) async fn settle_read(&self, handle: Handle, start: u64, len: usize) -> Result<()> {
        self.settle_handle(handle, Call::Read { handle, start, end: start.saturating_add(len as u64) }).await
    }

    /// As [`Watched::settle_handle`], before a write, which may also make everything durable.
    #[inline]
    pub(crate) async fn settle_write(&self, handle: Handle, start: u64, len: usize) -> Result<()> {
        let Some(file) = self.lends().then(|| self.file(handle)).flatten() else { return Ok(()) };
        if file.flags.intersects(OpenFlags::SYNC | OpenFlags::DSYNC) {
            self.settle_slowly(None).await?;
        }
        // An appending one goes wherever the end is.
        let call = match file.flags.contains(OpenFlags::APPEND) {
            true => Call::Other,
            false => Call::Write { handle, start, end: start.saturating_add(len as u64) },
        };
        self.settle_slowly(Some((file.ino, call))).await
    }

    /// Before attributes are asked for. What cannot be written now has not changed anything that they tell.
    #[inline]
    pub(crate) async fn settle_attr(&self, ino: Ino, handle: Option<Handle>) {
        if self.lends() {
            let behind = handle.and_then(|handle| self.file(handle)).map_or(ino, |file| file.ino);
            let _ = self.settle_slowly(Some((behind, handle.map_or(Call::Other, Call::Attr)))).await;
        }
    }

    /// Gives entries to `sink` up to one that may have a lease, which is left in `lent`; keeps in `offset` where to go on. `settled` is passed as it is: it
    /// was stopped at before, and what could not be settled then stays so.
    pub(crate) fn unlent<'a>(
        &'a self,
        sink: &'a mut (dyn FnMut(DirEntry<'_>) -> bool + Send),
        settled: Option<Ino>,
        offset: &'a mut u64,
        lent: &'a mut Option<Attr>,
    ) -> impl FnMut(DirEntry<'_>) -> bool + Send + 'a
    where
        F: Send + Sync,
    {
        move |entry| {
            if settled != Some(entry.attr.ino) && self.may_lend(entry.attr.ino) {
                *lent = Some(entry.attr);
                return false;
            }
            let next = entry.next_offset;
            let taken = sink(entry);
            if taken {
                *offset = next;
            }
            taken
        }
    }

    /// Attributes of an inode that were found on another way than through the inode: whether they are those of now. If not, the lease has been settled, and
    /// they must be asked for again.
    #[inline]
    pub(crate) async fn is_settled(&self, attr: &Attr) -> bool {
        if !self.lends_on(attr.ino) {
            return true;
        }
        // As in `settle_attr`.
        let _ = self.settle_slowly(Some((attr.ino, Call::Other))).await;
        false
    }
}

//! Write leases: clients overwrite pages of files without a message.
//!
//! A lease is for one file and one handle of one session, and there is one for a file at most. It has windows of [`WINDOW`] bytes, in which the client
//! writes whole pages, and parts of those that it wrote before (`format::shared`, `crate::leased`). A window says for which pages that holds:
//! those within the size of the file of which the engine says that an overwrite never fails for lack of space (`fs::FileSystem::overwritable`). So
//! what a client acknowledged to its program can always be written.
//!
//! What is in a window gets into the file
//! - before any call that comes through another handle or door, and looks at the file or changes it: then the lease ends (`fs::leases`);
//! - before a call through the handle of the lease, as far as it needs that. A write of such a call first takes back the windows that it touches: no
//!   window covers what a call is changing, so nothing that the client has there is older than the file;
//! - before anything is made durable, for whomever; when it is about a second old; when names change in that session;
//! - when the handle is closed or the session ends, however that happens: the memory is mapped here too.
//!
//! A write that was taken from a window counts as not made until the engine says that it is, so giving up the call that does this loses nothing.
//! Windows are bounded.
//!
//! What is kept elsewhere: when a lease begins, every door drops what it keeps of the file, and cannot get it again while the lease lasts. Only the client
//! itself may have pages of the file for reading meanwhile; it is told of a change before it can learn that a window was taken back. Kernels are not told anything in a
//! lease's turn: a kernel that drops a page may wait for a request of its own, which may wait for the turn.
//!
//! Tested in tests/all/leases.rs, attacked in tests/all/lease_attacks.rs.

mod lease;
mod ticker;

use super::ear::Ear;
use super::session::Client;
use crate::leased::{Leased, WINDOW};
use format::shared::LEASE_WINDOWS;
use fs::leases::{Call, Caller, Lender, Settling};
use fs::watched::{Change, Watched, Watcher};
use fs::{Error, FileSystem, FileType, Handle, Ino, Result};
use lease::{Lease, Pages, Window};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
pub(crate) use ticker::Ticker;

/// Looks at pages that clients are writing into, for each time that something is taken.
const LOOKS: u32 = 3000;
/// Runs of pages after which others get their turn.
const RUNS: u32 = 8;

/// What a call of a client can want of leases.
pub(crate) trait Lending: Send + Sync {
    /// Grants a window at `offset` of a file, in a place of the client's memory; what stood there before is taken back. The number of the grant, or 0.
    fn grant<'a>(
        &'a self,
        client: &'a Client,
        handle: Handle,
        offset: u64,
        slot: usize,
    ) -> Pin<Box<dyn Future<Output = Result<u64>> + Send + 'a>>;

    /// Whether a session has leases.
    fn has(&self, session: u64) -> bool;

    /// Whether a session has the lease on a file.
    fn lends_to(&self, session: u64, ino: Ino) -> bool;

    /// Has everything written that a session has in its windows.
    fn order(&self, session: u64) -> Settling<'_>;

    /// A session is over.
    fn end(&self, session: u64) -> Settling<'_>;
}

#[derive(Default)]
struct Table {
    leases: HashMap<Ino, Arc<Lease>>,
    /// Places in the memory of sessions that are in use, and for which file.
    slots: HashMap<(u64, usize), Ino>,
}

/// All leases of a server.
pub(crate) struct Leases<F> {
    /// A door of their own: all others are told.
    fs: Watched<F>,
    /// What clients keep.
    kept: Arc<Ear>,
    table: Mutex<Table>,
    /// There is a lease, or the server stops.
    news: Condvar,
    next: AtomicU64,
    /// Most windows that all clients have.
    windows_max: usize,
    /// Something that was acknowledged could not be written, and no sync has said so yet.
    lost: AtomicBool,
}

impl<F: FileSystem> Leases<F> {
    pub fn new(fs: Watched<F>, kept: Arc<Ear>, windows_max: usize) -> Leases<F> {
        Leases {
            fs,
            kept,
            table: Mutex::default(),
            news: Condvar::new(),
            next: AtomicU64::new(1),
            windows_max,
            lost: AtomicBool::new(false),
        }
    }

    fn find(&self, ino: Ino) -> Option<Arc<Lease>> {
        self.table.lock().leases.get(&ino).cloned()
    }

    fn all(&self, which: impl Fn(&Lease) -> bool) -> Vec<Arc<Lease>> {
        self.table.lock().leases.values().filter(|lease| which(lease)).cloned().collect()
    }

    /// Writes what the client wrote in a range of the file. In somebody's turn.
    async fn collect(&self, lease: &Lease, range: Range<u64>) -> Result<()> {
        let (mut at, mut looks, mut runs) = (range.start, LOOKS, 0);
        let engine = self.fs.inner();
        while let Some((offset, bytes)) = lease.next(at..range.end, &mut looks) {
            let mut done = 0;
            while done < bytes.len() {
                match engine.write(lease.handle, offset + done as u64, &bytes[done..]).await? {
                    0 => return Err(Error::from_errno(libc::EIO, "a write that was acknowledged".into())),
                    n => done += n,
                }
            }
            lease.written(offset, bytes.len());
            at = offset + bytes.len() as u64;
            self.drop_kept(lease.ino, offset..at);
            runs += 1;
            if runs % RUNS == 0 {
                yield_now().await;
            }
        }
        Ok(())
    }

    /// Clients ask again for what they keep of a part of a file.
    fn drop_kept(&self, ino: Ino, Range { start, end }: Range<u64>) {
        // What keeps something here takes it in at once.
        let _ = self.kept.changed(&Change::Data { ino, start, end });
    }

    /// The client read in its windows: what that does to the time of access.
    async fn accessed(&self, lease: &Lease) {
        if let Some(offset) = lease.was_read() {
            let _ = self.fs.inner().read(lease.handle, offset, &mut [0]).await;
        }
    }

    /// Takes windows back and writes what is in them. In somebody's turn. On an error they stay, although the client has lost them.
    async fn take_back(&self, lease: &Lease, which: impl Fn(&Window) -> bool) -> Result<()> {
        let ranges: Vec<Range<u64>> = {
            let windows = lease.windows.lock();
            windows.iter().filter(|w| which(w)).map(Window::bytes).collect()
        };
        // First this, or the client would read what it kept from before it wrote there.
        ranges.iter().for_each(|range| self.drop_kept(lease.ino, range.clone()));
        lease.take_back(|w| which(w));
        for range in ranges {
            self.collect(lease, range.clone()).await?;
            self.accessed(lease).await;
            self.drop_windows(lease, |w| w.bytes() == range);
        }
        Ok(())
    }

    /// Forgets windows in which nothing is left.
    fn drop_windows(&self, lease: &Lease, which: impl Fn(&Window) -> bool) {
        let mut table = self.table.lock();
        lease.windows.lock().retain(|window| {
            let goes = which(window);
            if goes {
                if !window.memory_stays {
                    lease.view(window.slot).discard();
                }
                table.slots.remove(&(lease.session, window.slot));
            }
            !goes
        });
    }

    /// Forgets a lease without windows. In somebody's turn.
    fn forget_empty(&self, lease: &Arc<Lease>) {
        let mut table = self.table.lock();
        if lease.windows.lock().is_empty()
            && table.leases.get(&lease.ino).is_some_and(|known| Arc::ptr_eq(known, lease))
        {
            lease.ending.store(true, Ordering::SeqCst);
            table.leases.remove(&lease.ino);
            self.fs.lease_ends();
        }
    }

    /// Ends a lease. On an error it stays, with what could not be written, and nothing more comes to it.
    async fn recall(&self, lease: &Arc<Lease>) -> Result<()> {
        let _turn = lease.turn().await;
        lease.ending.store(true, Ordering::SeqCst);
        self.take_back(lease, |_| true).await?;
        self.forget_empty(lease);
        Ok(())
    }

    /// Ends a lease whose handle goes. What cannot be written then is lost, and the next sync says so.
    async fn close(&self, lease: &Arc<Lease>) -> Result<()> {
        let result = self.recall(lease).await;
        if let Err(e) = &result {
            tracing::error!("inode {}: writes that were acknowledged are lost: {e}", lease.ino.0);
            self.lost.store(true, Ordering::SeqCst);
            let _turn = lease.turn().await;
            self.drop_windows(lease, |_| true);
            self.forget_empty(lease);
        }
        result
    }

    /// Writes what there is and keeps the lease.
    async fn keep(&self, lease: &Arc<Lease>) -> Result<()> {
        let ordering = lease.orders();
        let _turn = lease.turn().await;
        // Looking for dirty pages would be most of what a call costs that mostly finds none.
        if let Some(ordering) = ordering {
            self.collect(lease, 0..u64::MAX).await?;
            ordering.done();
        }
        self.accessed(lease).await;
        Ok(())
    }

    async fn settle_all(&self) -> Result<()> {
        let mut result = Ok(());
        for lease in self.all(|_| true) {
            result = result.and(self.keep(&lease).await);
        }
        if self.lost.swap(false, Ordering::SeqCst) {
            return Err(Error::from_errno(
                libc::EIO,
                "writes that were acknowledged could not be made".into(),
            ));
        }
        result
    }

    async fn settle_file(&self, ino: Ino, call: Call) -> Result<()> {
        let Some(lease) = self.find(ino) else { return Ok(()) };
        match call {
            Call::Close(handle) if handle == lease.handle => self.close(&lease).await,
            Call::Close(_) => Ok(()),
            Call::Attr(handle) if handle == lease.handle => self.keep(&lease).await,
            Call::Read { handle, start, end } if handle == lease.handle => {
                let _turn = lease.turn().await;
                self.collect(&lease, start..end).await
            }
            Call::Write { handle, start, end } if handle == lease.handle => {
                let _turn = lease.turn().await;
                self.take_back(&lease, |window| window.concerns(&(start..end))).await?;
                self.forget_empty(&lease);
                Ok(())
            }
            _ => self.recall(&lease).await,
        }
    }

    /// Takes back what a client had in a place of its memory.
    async fn free_slot(&self, session: u64, slot: usize) -> Result<()> {
        let lease = {
            let table = self.table.lock();
            table.slots.get(&(session, slot)).and_then(|ino| table.leases.get(ino).cloned())
        };
        let Some(lease) = lease.filter(|lease| lease.session == session) else { return Ok(()) };
        let _turn = lease.turn().await;
        // It is wanted for another one, and has nothing in it that this client did not write or could not read.
        lease.windows.lock().iter_mut().filter(|w| w.slot == slot).for_each(|w| w.memory_stays = true);
        self.take_back(&lease, |window| window.slot == slot).await?;
        self.forget_empty(&lease);
        Ok(())
    }

    /// The lease of this handle, made if nobody has one on the file and nobody else has it open. Not in the lease's turn.
    async fn lease(&self, client: &Client, handle: Handle, ino: Ino) -> Option<Arc<Lease>> {
        if self.fs.openers(ino) > 1 {
            return None;
        }
        let lease = {
            let mut table = self.table.lock();
            if table.slots.len() >= self.windows_max {
                return None;
            }
            if let Some(known) = table.leases.get(&ino) {
                let same = known.session == client.session && known.handle == handle;
                let grants = known.told.load(Ordering::SeqCst) && !known.ending.load(Ordering::SeqCst);
                return (same && grants).then(|| known.clone());
            }
            let lease = Arc::new(Lease::new(ino, client.session, handle, client.region.clone()));
            table.leases.insert(ino, lease.clone());
            self.fs.lease_begins();
            self.news.notify_all();
            lease
        };
        // Calls that begin from now on see the lease. What others keep of the file, they must ask for again. Should this be given up here, the
        // lease ends without ever having granted anything.
        self.fs.changed(&Change::Data { ino, start: 0, end: u64::MAX }).await;
        lease.told.store(true, Ordering::SeqCst);
        Some(lease)
    }

    /// Grants a window, if the file is nobody else's. In the lease's turn, without waiting.
    fn open_window(&self, lease: &Lease, place: u64, slot: usize) -> Result<u64> {
        let ino = lease.ino;
        {
            let mut table = self.table.lock();
            let mut windows = lease.windows.lock();
            let taken = windows.iter().any(|w| w.place == place || w.slot == slot)
                || table.slots.contains_key(&(lease.session, slot))
                || table.slots.len() >= self.windows_max;
            if taken || lease.ending.load(Ordering::SeqCst) {
                return Ok(0);
            }
            table.slots.insert((lease.session, slot), ino);
            let at = windows.partition_point(|w| w.place < place);
            windows.insert(at, Window::new(slot, place, Pages::default()));
        }
        // A call that changes the file and has not seen the lease is counted still.
        let ranges = match self.fs.is_changing(ino) {
            true => Vec::new(),
            false => self.fs.inner().overwritable(lease.handle, place * WINDOW, WINDOW).unwrap_or_default(),
        };
        let mut open = Pages::default();
        for range in &ranges {
            let first = (range.start - place * WINDOW) as usize / crate::leased::PAGE;
            let count = (range.end - range.start) as usize / crate::leased::PAGE;
            (first..first + count).for_each(|page| open.set(page, true));
        }
        let mut windows = lease.windows.lock();
        if let (Some(window), false) = (windows.iter_mut().find(|w| w.slot == slot), ranges.is_empty()) {
            window.open = open;
            let view = Leased::new(lease.region.memory(), slot);
            view.reset(|page| open.has(page));
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            view.grant().store(number, Ordering::SeqCst);
            return Ok(number);
        }
        drop(windows);
        self.drop_windows(lease, |w| w.slot == slot);
        Ok(0)
    }

    async fn grant_window(&self, client: &Client, handle: Handle, offset: u64, slot: usize) -> Result<u64> {
        let engine = self.fs.inner();
        let (ino, place) = (client.inode(handle)?, offset / WINDOW);
        let attr = engine.getattr(ino, Some(handle)).await?;
        // A write takes set-id bits away, and that at once.
        let plain = attr.kind == FileType::Regular && attr.perm & 0o6000 == 0;
        let Some(begin) = place.checked_mul(WINDOW).filter(|&begin| plain && begin < attr.size) else {
            return Ok(0);
        };
        if engine.overwritable(handle, begin, WINDOW).map_or(true, |ranges| ranges.is_empty()) {
            return Ok(0);
        }
        let Some(lease) = self.lease(client, handle, ino).await else { return Ok(0) };
        let _turn = lease.turn().await;
        // The client has forgotten what it had there, or wants to know about more pages.
        self.take_back(&lease, |window| window.place == place).await?;
        let granted = self.open_window(&lease, place, slot);
        self.forget_empty(&lease);
        granted
    }
}

impl<F: FileSystem> Lending for Leases<F> {
    fn grant<'a>(
        &'a self,
        client: &'a Client,
        handle: Handle,
        offset: u64,
        slot: usize,
    ) -> Pin<Box<dyn Future<Output = Result<u64>> + Send + 'a>> {
        Box::pin(async move {
            if slot >= LEASE_WINDOWS {
                return Err(Error::Invalid("no such window"));
            }
            self.free_slot(client.session, slot).await?;
            let granted = self.grant_window(client, handle, offset, slot).await;
            if !matches!(granted, Ok(1..)) && !self.table.lock().slots.contains_key(&(client.session, slot)) {
                Leased::new(client.region.memory(), slot).discard();
            }
            granted
        })
    }

    fn has(&self, session: u64) -> bool {
        self.fs.lends() && self.table.lock().slots.keys().any(|&(of, _)| of == session)
    }

    fn lends_to(&self, session: u64, ino: Ino) -> bool {
        self.fs.lends() && self.find(ino).is_some_and(|lease| lease.session == session)
    }

    fn order(&self, session: u64) -> Settling<'_> {
        Box::pin(async move {
            for lease in self.all(|lease| lease.session == session) {
                // Each change of a name comes here.
                if let Some(ordering) = lease.orders() {
                    self.keep(&lease).await?;
                    ordering.done();
                }
            }
            Ok(())
        })
    }

    fn end(&self, session: u64) -> Settling<'_> {
        Box::pin(async move {
            let mut result = Ok(());
            for lease in self.all(|lease| lease.session == session) {
                result = result.and(self.close(&lease).await);
            }
            result
        })
    }
}

impl<F: FileSystem> Lender for Leases<F> {
    fn lends(&self, ino: Ino, _caller: Caller) -> bool {
        self.table.lock().leases.contains_key(&ino)
    }

    fn may_lend(&self, ino: Ino, _caller: Caller) -> bool {
        self.table.try_lock().is_none_or(|table| table.leases.contains_key(&ino))
    }

    fn settle(&self, file: Option<(Ino, Call)>, _caller: Caller) -> Settling<'_> {
        match file {
            Some((ino, call)) => Box::pin(self.settle_file(ino, call)),
            None => Box::pin(self.settle_all()),
        }
    }
}

/// Lets others go on that run on this thread.
async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

//! A volume in this process: the engine's state behind one lock, its worker thread, and calls that wait; `filesystem` is the
//! contract on top.

mod direct;
mod filesystem;
#[cfg(test)]
mod held_up;
#[cfg(test)]
mod large;
#[cfg(test)]
mod refused;

use crate::clean;
use crate::core::{Core, Counters, OpenOptions, Res, Stop, Synchronous};
use crate::handles::Open;
use crate::pages::{CopyOut, SoFar};
use crate::shared::Shared;
use crate::worker::Worker;
use fs::cache::CacheCounters;
use fs::*;
use media::Media;
use parking_lot::Mutex;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::thread::JoinHandle;

/// Bytes of a write that are taken in under one hold of the lock.
const WRITE_CHUNK: usize = 256 << 10;
/// An open volume. Clones share it. [`Volume::close`] stops it cleanly; dropping the last clone does so too, ignoring
/// errors.
#[derive(Clone)]
pub struct Volume {
    inner: Arc<Inner>,
}

/// Memory of a page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheUsage {
    /// Its size, bytes.
    pub bytes: u64,
    /// Bytes of pages that hold something.
    pub used: u64,
    /// Bytes of pages that are newer than the medium.
    pub dirty: u64,
}

struct Inner {
    shared: Arc<Shared>,
    synchronous: Synchronous,
    worker: Mutex<Option<JoinHandle<()>>>,
}

impl Volume {
    /// Opens a volume and starts its worker thread. After an unclean stop the log is replayed.
    ///
    /// Errors: `NotAVolume`, `Corrupt` (then `fsck` tells more), `Media`.
    pub fn open(media: Arc<dyn Media>, options: OpenOptions) -> Result<Volume> {
        let (volume, worker) = Volume::open_manual(media, options)?;
        let name = format!(
            "freehold-{}",
            volume.inner.shared.media.geometry().name.rsplit('/').next().unwrap_or("")
        );
        let thread = std::thread::Builder::new()
            .name(name.chars().take(15).collect())
            .spawn(move || worker.run())
            .map_err(|e| Error::Busy(format!("no thread for the worker: {e}")))?;
        *volume.inner.worker.lock() = Some(thread);
        if let Err(e) = volume.inner.shared.lock().cache.get_memory_ahead() {
            tracing::debug!("no thread for memory: {e}");
        }
        Ok(volume)
    }

    /// Opens a volume whose worker the caller drives with [`Worker::step`]: for tests that own time and the only thread.
    pub fn open_manual(media: Arc<dyn Media>, options: OpenOptions) -> Result<(Volume, Worker)> {
        let synchronous = options.synchronous;
        let core = crate::recover::open(media, options)?;
        let shared = Shared::new(core);
        let worker = Worker { shared: shared.clone(), done: Vec::new() };
        Ok((Volume { inner: Arc::new(Inner { shared, synchronous, worker: Mutex::new(None) }) }, worker))
    }

    /// Makes everything durable and stops the volume; calls that change something fail with `Closed` from now on. The medium is somebody else's to open when the
    /// last clone of the volume, and clients of it, are dropped.
    pub async fn close(&self) -> Result<()> {
        self.inner.close().await
    }

    /// As [`Volume::close`], waiting for the worker thread to end.
    pub fn close_blocking(&self) -> Result<()> {
        let result = self.inner.shared.block_on(self.inner.close());
        self.inner.join();
        result
    }

    /// What the engine did since it was opened.
    pub fn counters(&self) -> Counters {
        self.inner.shared.lock().counters
    }
    /// What the page cache did since it was opened.
    pub fn cache_counters(&self) -> CacheCounters {
        self.inner.shared.lock().cache.counters()
    }
    /// What the page cache holds now.
    pub fn cache_usage(&self) -> CacheUsage {
        let core = self.inner.shared.lock();
        let bytes = |frames: usize| frames as u64 * fs::cache::PAGE as u64;
        let cache = &core.cache;
        CacheUsage { bytes: bytes(cache.len()), used: bytes(cache.used()), dirty: bytes(cache.dirty()) }
    }
    /// Why the volume was latched read-only, if it was.
    pub fn latched(&self) -> Option<String> {
        self.inner.shared.lock().latched.clone()
    }
    /// Which opening of which volume this is.
    pub fn opening(&self) -> fs::Opening {
        let core = self.inner.shared.lock();
        fs::Opening { volume: core.uuid, number: core.opening, after: core.stops }
    }
    /// Something that was acknowledged in this opening is not in the volume, as a door had to give it up. Those who ask the next opening are told
    /// ([`fs::Opening::keeps`]), also after a clean stop.
    pub fn has_lost_some(&self) {
        self.inner.shared.lock().opening = 0;
    }
    /// The epoch that changes join now, and the newest durable one.
    pub fn epochs(&self) -> (u64, u64) {
        let core = self.inner.shared.lock();
        (core.running.epoch, core.durable)
    }
    /// Writes everything home and frees the log (what a stop does, without stopping).
    pub async fn checkpoint(&self) -> Result<()> {
        let mut due = None;
        self.op(move |core| {
            core.writable()?;
            core.await_checkpoint(&mut due)
        })
        .await
    }
    /// Drops clean pages and tails, so that the next reads come from the device.
    pub async fn drop_caches(&self) -> Result<()> {
        self.sync().await?;
        self.checkpoint().await?;
        self.inner.shared.lock().drop_caches();
        Ok(())
    }

    fn op<T>(&self, mut f: impl FnMut(&mut Core) -> Res<T> + Send) -> impl Future<Output = Result<T>> + Send {
        let shared = &self.inner.shared;
        poll_fn(move |cx| {
            let mut core = shared.lock();
            match f(&mut core) {
                Ok(value) => Poll::Ready(Ok(value)),
                Err(Stop::Error(e)) => Poll::Ready(Err(e)),
                Err(Stop::Wait(wait)) => {
                    core.wait(wait, cx.waker());
                    Poll::Pending
                }
            }
        })
    }

    /// As [`Volume::op`], for a call of this kind.
    async fn op_synced<T: Send>(
        &self,
        calls: Synchronous,
        f: impl FnMut(&mut Core) -> Res<T> + Send,
    ) -> Result<T> {
        let done = self.op(f).await?;
        self.synced(calls).await?;
        Ok(done)
    }

    /// Something was changed by a call of this kind: makes it durable if that is asked for ([`OpenOptions::synchronous`]).
    async fn synced(&self, calls: Synchronous) -> Result<()> {
        if self.inner.synchronous >= calls { self.sync_all().await } else { Ok(()) }
    }

    async fn sync_all(&self) -> Result<()> {
        self.sync_through(None).await
    }

    /// Makes everything durable, if the handle is one.
    async fn sync_through(&self, handle: Option<Handle>) -> Result<()> {
        let shared = &self.inner.shared;
        let mut target = None;
        poll_fn(move |cx| {
            if target.is_some_and(|(epoch, _)| shared.durable.is_durable(epoch)) {
                return Poll::Ready(Ok(()));
            }
            let mut core = shared.lock();
            if target.is_none()
                && let Some(Err(e)) = handle.map(|handle| core.handles.get(handle).map(drop))
            {
                return Poll::Ready(Err(e));
            }
            let asked = match target {
                None => core.sync_point().map(|epoch| *target.insert((epoch, core.refusals))),
                Some(target) => Ok(target),
            };
            match asked.and_then(|(epoch, refusals)| core.durable(epoch, refusals)) {
                Ok(()) => Poll::Ready(Ok(())),
                Err(Stop::Error(e)) => Poll::Ready(Err(e)),
                Err(Stop::Wait(wait)) => {
                    core.wait(wait, cx.waker());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Reads at an offset, which goes with the unit of direct transfers.
    fn read_now<'a>(
        &'a self,
        handle: Handle,
        place: (u64, u64),
        to: &'a mut [u8],
    ) -> impl Future<Output = Result<usize>> + Send + 'a {
        let shared = &self.inner.shared;
        let (mut so_far, mut first) = (SoFar::default(), true);
        let mut copies: Vec<CopyOut> = Vec::new();
        poll_fn(move |cx| {
            let mut core = shared.lock();
            let n = match core.read(handle, place, to, &mut first, &mut so_far, &mut copies) {
                Ok(n) => n,
                Err(Stop::Error(e)) => return Poll::Ready(Err(e)),
                Err(Stop::Wait(wait)) => {
                    core.wait(wait, cx.waker());
                    return Poll::Pending;
                }
            };
            drop(core);
            for copy in copies.drain(..) {
                let part = &mut to[copy.to..copy.to + copy.len];
                match copy.frame {
                    None => part.fill(0),
                    Some((frame, at)) => {
                        shared.arena.copy_out(frame.offset() + at, part);
                        shared.pins.unpin(frame);
                    }
                }
            }
            if shared.starving.swap(false, Ordering::AcqRel) {
                shared.lock().wake(crate::core::Wait::Progress);
            }
            Poll::Ready(Ok(n))
        })
    }

    fn lend_now(
        &self,
        handle: Handle,
        offset: u64,
        len: usize,
        most: usize,
        mut pages: Pages,
    ) -> impl Future<Output = Result<Pages>> + Send + '_ {
        let shared = &self.inner.shared;
        let (mut so_far, mut first) = (SoFar::default(), true);
        poll_fn(move |cx| {
            let mut core = shared.lock();
            match core.lend(handle, offset, (len, most), &mut first, &mut pages, &mut so_far) {
                Ok(()) => Poll::Ready(Ok(std::mem::take(&mut pages))),
                Err(Stop::Error(e)) => Poll::Ready(Err(e)),
                Err(Stop::Wait(wait)) => {
                    core.wait(wait, cx.waker());
                    Poll::Pending
                }
            }
        })
    }

    /// Writes, and says whether the handle asks for what was written to be made durable.
    fn write_now<'a>(
        &'a self,
        handle: Handle,
        place: (u64, u64),
        from: &'a dyn Source,
    ) -> impl Future<Output = Result<(usize, bool)>> + Send + 'a {
        let shared = &self.inner.shared;
        let (mut done, mut ticket) = (0, None);
        poll_fn(move |cx| {
            loop {
                let mut core = shared.lock();
                let result = core.write(handle, place, from, WRITE_CHUNK, &mut done, &mut ticket);
                let everything = self.inner.synchronous == Synchronous::Everything;
                let syncs =
                    |open: &Open| everything || open.flags.intersects(OpenFlags::SYNC | OpenFlags::DSYNC);
                match result {
                    Ok(()) if done < from.len() => {}
                    Err(Stop::Error(e)) if done == 0 => return Poll::Ready(Err(e)),
                    Ok(()) | Err(Stop::Error(_)) => {
                        return Poll::Ready(Ok((done, core.handles.get(handle).is_ok_and(syncs))));
                    }
                    Err(Stop::Wait(wait)) => {
                        core.wait(wait, cx.waker());
                        return Poll::Pending;
                    }
                }
            }
        })
    }

    /// As [`Volume::write_now`], with room that was set aside.
    async fn write_promised_now(&self, handle: Handle, offset: u64, from: &dyn Source) -> Result<()> {
        /// Gives back what is left when the write is over, or given up.
        struct Room<'a>(&'a Shared, u64);
        impl Drop for Room<'_> {
            fn drop(&mut self) {
                if self.1 > 0 {
                    self.0.lock().space.give_aside(self.1);
                }
            }
        }
        let mut room = Room(&self.inner.shared, fs::room_for(offset, from.len()));
        let (mut done, mut ticket) = (0, None);
        poll_fn(|cx| {
            loop {
                let (mut core, piece) = (room.0.lock(), (from, WRITE_CHUNK));
                match core.write_promised((handle, offset), piece, &mut room.1, &mut done, &mut ticket) {
                    Ok(()) if done < from.len() => {}
                    Ok(()) => return Poll::Ready(Ok(())),
                    Err(Stop::Error(e)) => return Poll::Ready(Err(e)),
                    Err(Stop::Wait(wait)) => {
                        core.wait(wait, cx.waker());
                        return Poll::Pending;
                    }
                }
            }
        })
        .await
    }

    fn write_atomic_now<'a>(
        &'a self,
        handle: Handle,
        pieces: &'a [(u64, &'a [u8])],
    ) -> impl Future<Output = Result<()>> + Send + 'a {
        let mut ticket = None;
        self.op(move |core| core.write_atomic(handle, pieces, &mut ticket))
    }

    fn handle(&self, handle: Handle) -> Result<Open> {
        self.inner.shared.lock().handles.get(handle).copied()
    }

    /// A handle has got a lock. Who closed it in between has found none of its, and nobody would ever give this one up. `BadHandle`.
    fn is_open_still(&self, ino: Ino, handle: Handle) -> Result<()> {
        self.handle(handle).map(drop).inspect_err(|_| self.inner.shared.locks.release_handle(ino, handle))
    }
}

impl Inner {
    async fn close(&self) -> Result<()> {
        let mut closing = clean::Closing::default();
        poll_fn(|cx| {
            let mut core = self.shared.lock();
            match core.close(&mut closing) {
                Ok(()) => Poll::Ready(Ok(())),
                Err(Stop::Error(e)) => {
                    core.give_up();
                    Poll::Ready(Err(e))
                }
                Err(Stop::Wait(wait)) => {
                    core.wait(wait, cx.waker());
                    Poll::Pending
                }
            }
        })
        .await
    }

    fn join(&self) {
        if let Some(thread) = self.worker.lock().take() {
            self.shared.call_worker();
            let _ = thread.join();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.worker.get_mut().is_some() {
            let _ = self.shared.block_on(self.close());
            self.join();
        }
    }
}

//! Direct transfers as calls: begun under the lock, and forgotten when nobody waits for them any more (`crate::direct`).

use super::Volume;
use crate::core::{Core, Res, Stop, Synchronous, Wait};
use crate::shared::Shared;
use fs::{ArenaId, BufRef, Error, Handle, Memory, OpenFlags, Result};
use media::Arena;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

impl Volume {
    pub(super) fn lend_memory_now(&self, memory: Arc<dyn Memory>) -> Result<ArenaId> {
        let shared = &self.inner.shared;
        let arena = Arena::of(memory).map_err(|_| Error::Invalid("memory must begin and end at pages"))?;
        // Pinning it takes time: without the lock.
        let id = shared.media.register(Arc::new(arena)).map_err(Error::Media)?;
        shared.lock().memory_lent(id);
        Ok(id)
    }

    pub(super) async fn write_direct_now(
        &self,
        handle: Handle,
        offset: u64,
        from: BufRef,
    ) -> Result<Option<usize>> {
        let (mut ticket, mut flags) = (None, OpenFlags::empty());
        let begin = |core: &mut Core| {
            flags = core.handles.get(handle).map(|open| open.flags)?;
            core.write_direct(handle, offset, from, &mut ticket)
        };
        let written = self.direct(begin).await?;
        if written.is_some() {
            self.synced(Synchronous::Everything).await?;
            if flags.intersects(OpenFlags::SYNC | OpenFlags::DSYNC) {
                self.sync_all().await?;
            }
        }
        Ok(written)
    }

    /// A direct transfer: of how many bytes, or `None` when it must go the ordinary way.
    pub(super) async fn direct(
        &self,
        mut begin: impl FnMut(&mut Core) -> Res<Option<(u32, usize)>> + Send,
    ) -> Result<Option<usize>> {
        /// Forgets the call when nobody waits for it any more.
        struct Call<'a>(&'a Shared, u32);
        impl Drop for Call<'_> {
            fn drop(&mut self) {
                self.0.lock().abandon_direct(self.1);
            }
        }
        let shared = &*self.inner.shared;
        let mut begun: Option<(Call<'_>, usize)> = None;
        poll_fn(move |cx| {
            let mut core = shared.lock();
            let done = match &begun {
                Some((call, n)) => core.direct_result(call.1).map(|()| Some(*n)),
                None => match begin(&mut core) {
                    Ok(Some((call, n))) => {
                        begun = Some((Call(shared, call), n));
                        Err(Stop::Wait(Wait::Direct(call)))
                    }
                    other => other.map(|_| None),
                },
            };
            let result = match done {
                Ok(done) => Ok(done),
                Err(Stop::Error(e)) => Err(e),
                Err(Stop::Wait(wait)) => {
                    core.wait(wait, cx.waker());
                    return Poll::Pending;
                }
            };
            // The engine has forgotten it: there is nothing to abandon.
            std::mem::forget(begun.take());
            Poll::Ready(result)
        })
        .await
    }
}

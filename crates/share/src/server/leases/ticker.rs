//! The thread that looks after leases: what stands in windows for long is written, as usual write-back does not see it there; windows that are not
//! used any more go, so that others can have them. Sleeps while there are no leases.

use super::*;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long what a client wrote may stand in a window.
const AGE: Duration = Duration::from_secs(1);
/// Looks in a row at which nothing was dirty, after which a window goes.
const IDLE: u32 = 20;

impl<F: FileSystem> Leases<F> {
    async fn look_after(&self, lease: &Arc<Lease>) -> Result<()> {
        if lease.ending.load(Ordering::SeqCst) {
            return self.recall(lease).await;
        }
        self.keep(lease).await?;
        let _turn = lease.turn().await;
        lease.windows.lock().iter_mut().for_each(|window| window.idle += 1);
        self.take_back(lease, |window| window.idle > IDLE).await?;
        self.forget_empty(lease);
        Ok(())
    }

    fn tick(&self) {
        for lease in self.all(|_| true) {
            if let Err(e) = self.fs.block_on(self.look_after(&lease)) {
                tracing::warn!("inode {}: what was acknowledged cannot be written: {e}", lease.ino.0);
            }
        }
    }
}

/// See the module.
pub(crate) struct Ticker {
    stop: Arc<dyn Fn() + Send + Sync>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Ticker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticker").finish_non_exhaustive()
    }
}

impl Ticker {
    /// Starts the thread, and has `leases` asked by all doors until it is stopped.
    pub fn start<F: FileSystem>(leases: Arc<Leases<F>>) -> std::io::Result<Ticker> {
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = {
            let (leases, stopping) = (leases.clone(), stopping.clone());
            Arc::new(move || {
                let _table = leases.table.lock();
                stopping.store(true, Ordering::SeqCst);
                leases.news.notify_all();
            })
        };
        let lender: Arc<dyn Lender> = leases.clone();
        leases.fs.lend(lender.clone());
        let thread = std::thread::Builder::new().name("freehold-leases".into()).spawn(move || {
            while !stopping.load(Ordering::SeqCst) {
                {
                    let mut table = leases.table.lock();
                    while table.leases.is_empty() && !stopping.load(Ordering::SeqCst) {
                        leases.news.wait(&mut table);
                    }
                    let due = Instant::now() + AGE;
                    while !stopping.load(Ordering::SeqCst)
                        && !leases.news.wait_until(&mut table, due).timed_out()
                    {}
                }
                leases.tick();
            }
            for lease in leases.all(|_| true) {
                let _ = leases.fs.block_on(leases.close(&lease));
            }
            leases.fs.unlend(&lender);
        })?;
        Ok(Ticker { stop, thread: Some(thread) })
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        (self.stop)();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

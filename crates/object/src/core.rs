//! The engine's shared state, and its worker.
//!
//! All talk with the store happens on one thread with a tokio runtime of its own; calls come from any thread. A call that needs the store becomes
//! a task of the runtime, which goes on when its caller has given up: so nothing is ever left half-done. What needs memory only is done by the
//! caller.
//!
//! Order of locks: `namespace`, the turns of files (of several in the order of their inodes' numbers, unless `namespace` is held alone), the tree, the state of a file.
//! Only the first two are held across waits.

use crate::budget::Budget;
use crate::handles::Open;
use crate::names;
use crate::options::Options;
use crate::progress::Progress;
use crate::store::{Condition, ETag, Store, StoreError};
use crate::tree::Tree;
use fs::{Error, Handle, LockTable, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::runtime;
use tokio::sync::{Notify, RwLock, Semaphore};

/// See the module.
pub struct Core<S> {
    pub store: Arc<S>,
    pub options: Options,
    pub tree: Mutex<Tree>,
    pub opens: Mutex<HashMap<Handle, Arc<Open>>>,
    pub scans: Mutex<HashMap<Handle, Arc<crate::list::Scan>>>,
    pub last_handle: AtomicU64,
    pub locks: LockTable,
    pub writes: Arc<Budget>,
    /// What may have been asked for ahead of readers: more than there is memory for, as answers need none before they arrive.
    pub asked: Arc<Budget>,
    pub reads: Arc<Budget>,
    /// When those who do not read were looked for last, to give what is read ahead for them to others.
    pub looked: Mutex<Instant>,
    /// Tokens for requests that carry data to the store.
    pub uploads: Semaphore,
    /// Tokens for small requests of which many are made at once.
    pub small: Arc<Semaphore>,
    /// Held alone while a directory is moved, shared by all that give or change objects by name, or begin to write one.
    pub namespace: RwLock<()>,
    pub progress: Progress,
    pub runtime: runtime::Handle,
    /// When the door went, or the first of what it left was abandoned.
    ends: OnceLock<Instant>,
}

/// Small requests at a time.
pub const SMALL_REQUESTS: usize = 64;

/// The thread of the runtime. Stops it when dropped.
pub struct Worker {
    stop: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts it.
    pub fn start() -> io::Result<(Worker, runtime::Handle)> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let stop = Arc::new(Notify::new());
        let stopped = stop.clone();
        let run = move || runtime.block_on(stopped.notified());
        let thread = std::thread::Builder::new().name("freehold-object".into()).spawn(run)?;
        Ok((Worker { stop, thread: Some(thread) }, handle))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the worker of an object store panicked");
        }
    }
}

impl<S: Store> Core<S> {
    /// With nothing known. `Invalid` (prefix).
    pub fn new(store: S, options: Options, runtime: runtime::Handle) -> Result<Arc<Core<S>>> {
        let root = names::root(&options.prefix)?;
        Ok(Arc::new(Core {
            tree: Mutex::new(Tree::new(root, options.defaults, options.inodes, options.listed_attributes)),
            opens: Mutex::default(),
            scans: Mutex::default(),
            last_handle: AtomicU64::new(0),
            locks: LockTable::new(),
            writes: Arc::new(Budget::new(options.write_memory)),
            asked: Arc::new(Budget::new(options.read_memory + options.read_memory / 2)),
            reads: Arc::new(Budget::new(options.read_memory)),
            looked: Mutex::new(Instant::now()),
            uploads: Semaphore::new(options.uploads.max(1)),
            small: Arc::new(Semaphore::new(SMALL_REQUESTS)),
            namespace: RwLock::new(()),
            progress: Progress::default(),
            runtime,
            ends: OnceLock::new(),
            store: Arc::new(store),
            options,
        }))
    }

    /// Runs a future on the worker, to its end even if the caller goes away. `Closed` when the worker has stopped.
    pub async fn spawn<T: Send + 'static>(
        &self,
        future: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        match self.runtime.spawn(future).await {
            Ok(done) => done,
            Err(e) if e.is_panic() => {
                tracing::error!("a call panicked");
                Err(Error::Remote { errno: libc::EIO, message: "a call panicked".into() })
            }
            Err(_) => Err(Error::Closed),
        }
    }

    /// The moment so long after the end of the door, which is now if it did not come before.
    pub fn ends_by(&self, after: Duration) -> Instant {
        *self.ends.get_or_init(Instant::now) + after
    }

    /// `ReadOnly` when nothing may be changed.
    pub fn writable(&self) -> Result<()> {
        if self.options.read_only { Err(Error::ReadOnly) } else { Ok(()) }
    }

    /// A condition as the store can take it. What it cannot was asked by [`Core::check`] just before.
    pub fn condition(&self, on: &Condition) -> Condition {
        if self.store.abilities().conditional { on.clone() } else { Condition::Always }
    }

    /// Looks whether a condition holds, where the store does not do it itself.
    pub async fn check(&self, key: &str, on: &Condition) -> std::result::Result<(), StoreError> {
        if self.store.abilities().conditional || *on == Condition::Always {
            return Ok(());
        }
        self.compare(key, on).await
    }

    /// Asks whether a condition holds.
    pub async fn compare(&self, key: &str, on: &Condition) -> std::result::Result<(), StoreError> {
        let found = match self.store.head(key).await {
            Ok(object) => Some(object.etag),
            Err(StoreError::NotFound) => None,
            Err(e) => return Err(e),
        };
        let holds = match on {
            Condition::Always => true,
            Condition::Absent => found.is_none(),
            Condition::Is(etag) => found.as_ref() == Some(etag),
        };
        if holds { Ok(()) } else { Err(StoreError::Precondition) }
    }

    /// Removes an object if it is in this state (or gone).
    pub async fn delete_if(&self, key: &str, etag: &ETag) -> std::result::Result<(), StoreError> {
        let on = Condition::Is(etag.clone());
        if self.store.abilities().conditional_delete {
            return self.store.delete(key, &on).await;
        }
        match self.compare(key, &on).await {
            Ok(()) => self.store.delete(key, &Condition::Always).await,
            Err(e) => Err(e),
        }
    }
}

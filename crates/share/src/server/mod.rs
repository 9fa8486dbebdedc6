//! The manager's side: one thread that takes requests of all sessions out of their memory and runs them.
//!
//! A request becomes a future of the file system that is polled here; most end at once, the others when whoever they wait for
//! wakes them. When nothing happens the thread first looks for a while (`spin::Patience`), then tells the clients that it sleeps and does so.
//!
//! Nothing a client does can hold up the thread: it never waits for a client, copies what it reads from shared memory before it looks
//! at it, and forgets a client whose process or connection ends, with everything that it held.

mod arena;
mod closer;
mod descriptions;
mod direct;
mod directories;
mod drains;
mod ear;
mod execute;
mod holds;
mod leases;
mod locks;
mod payload;
pub mod place;
mod poller;
pub mod rights;
mod session;
pub mod stats;
mod stuck;
mod tasks;
mod wakes;

use crate::changes::Changes;
use crate::spin::Patience;
use arena::Arenas;
use descriptions::{Descriptions, Keeper};
use directories::Directories;
use drains::Drains;
use ear::Ear;
use fs::FileSystem;
use fs::leases::Lender;
use fs::watched::Watched;
use leases::{Leases, Ticker};
use parking_lot::Mutex;
use place::Place;
use poller::Poller;
use rights::Rights;
use stats::Board;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use stuck::Guard;
use tasks::Bell;

/// How a server works.
#[derive(Clone, Debug)]
pub struct Options {
    /// Sessions at a time; further clients are refused (`EMFILE`).
    pub sessions_max: usize,
    /// The only user, besides root, who may have a session; others are refused (`EACCES`). `None`: everybody may, and sees
    /// what permissions allow.
    pub only_user: Option<u32>,
    /// Open handles of one session (`ENFILE`).
    pub handles_max: usize,
    /// Bytes of file pages that clients read without a message, 4 GiB at most; 0: none.
    pub pages_max: usize,
    /// Windows of 2 MiB of files that clients may overwrite without a message (write leases); 0: none.
    pub lease_windows_max: usize,
    /// Directories in which clients may make and remove files without waiting for an answer (directory leases); 0: none.
    pub directories_max: usize,
    /// Files that a client has made in other directories, and may write to and close without waiting while it has them open: so many of one client; 0: none.
    pub new_files_max: usize,
    /// How long a directory is not lent again to which somebody else came; twice as long each time it happens again.
    pub directory_pause: Duration,
    /// How long the thread looks for work before it sleeps.
    pub patience: Patience,
    /// What is served, so that clients of a manager that has ended know whether another one has their files, and all that they did to them.
    /// The default: nobody can know.
    pub opening: fs::Opening,
    /// For how long others may wait for a lock of a client that is stopped, or makes no calls; then its session is ended. `None`: for
    /// ever, as POSIX has it.
    pub lock_timeout: Option<Duration>,
    /// When the server is stopped: for how long nothing may move before what is not done is given up.
    pub stop_patience: Duration,
    /// Where the thread runs, and the memory of sessions is; `None`: anywhere.
    pub place: Option<Place>,
    /// Whose fsync and fdatasync are answered with order alone.
    pub ordered: fs::Ordered,
    /// What clients of the manager before this one had open; and, once this one is stopped, what they have open then.
    pub rights: Arc<Rights>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            sessions_max: 4096,
            only_user: None,
            handles_max: 1 << 16,
            pages_max: 128 << 20,
            lease_windows_max: 0,
            directories_max: 0,
            new_files_max: 0,
            directory_pause: Duration::from_secs(1),
            patience: Patience::default(),
            opening: fs::Opening::default(),
            lock_timeout: None,
            stop_patience: Duration::from_secs(60),
            place: None,
            ordered: fs::Ordered::default(),
            rights: Arc::default(),
        }
    }
}

impl Options {
    /// With leases of all kinds, so that clients need not wait for what nobody else can see yet: as many as `freehold serve` gives.
    pub fn lending(self) -> Options {
        Options { lease_windows_max: 64, directories_max: 256, new_files_max: 1024, ..self }
    }
}

/// What a server did and has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Sessions now.
    pub sessions: u64,
    /// Calls answered.
    pub calls: u64,
    /// Handles open in sessions now.
    pub handles: u64,
    /// Times the thread slept.
    pub sleeps: u64,
}

/// Serves a file system to other processes until it is stopped or dropped.
#[derive(Debug)]
pub struct Server {
    bell: Arc<Bell>,
    counters: Arc<Mutex<Counters>>,
    board: Arc<Board>,
    path: PathBuf,
    thread: Option<JoinHandle<bool>>,
    /// Ends sessions that keep others waiting.
    guard: Option<Guard>,
    /// Looks after write leases.
    ticker: Option<Ticker>,
    /// Looks after locks that outlive their sessions.
    keeper: Option<Keeper>,
}

impl Server {
    /// Serves a file system that nobody else changes.
    ///
    /// # Errors
    /// As [`Server::start_at_door`].
    pub fn start<F: FileSystem>(fs: Arc<F>, path: &Path, options: Options) -> io::Result<Server> {
        Server::start_at_door(Watched::new(fs), path, options)
    }

    /// Serves a file system that others change too, through doors of their own. Listens at `path` and starts the thread.
    ///
    /// # Errors
    /// `AddrInUse` when another manager serves there; those of sockets and of memory.
    pub fn start_at_door<F: FileSystem>(fs: Watched<F>, path: &Path, options: Options) -> io::Result<Server> {
        let listener = crate::socket::listen(path)?;
        let bell = Arc::new(Bell::new()?);
        let counters = Arc::<Mutex<Counters>>::default();
        let fs = Arc::new(fs);
        let board = Arc::new(Board::new(&fs));
        let changes = Arc::new(Changes::new()?);
        // Clients must hear of what other clients change, so they do not listen at the door that they use.
        let door = fs.door();
        let ear = Arc::new(Ear {
            arenas: Arc::new(Arenas::new(changes.clone(), options.pages_max)),
            changes: changes.clone(),
            holders: Arc::default(),
        });
        door.watch(ear.clone());
        let leases = Arc::new(Leases::new(fs.door(), ear.clone(), options.lease_windows_max));
        let drains = Arc::new(Drains::new(bell.clone()));
        let (most, pause) = ((options.directories_max, options.new_files_max), options.directory_pause);
        let directories = Arc::new(Directories::new(fs.door(), drains.clone(), most, pause));
        let lender: Arc<dyn Lender> = directories.clone();
        fs.lend(lender.clone());
        let ticker = Ticker::start(leases.clone())?;
        let descriptions = Arc::<Descriptions>::default();
        let leaves_nameless = options.opening.number != 0;
        let rights = options.rights.clone();
        rights.keep(&door);
        let keeper = Keeper::start(fs.door(), (descriptions.clone(), rights), leaves_nameless)?;
        let (lock_timeout, place) = (options.lock_timeout, options.place.clone());
        let poller = Poller::new(
            fs.clone(),
            (&ear, leases, directories, drains, descriptions),
            listener,
            bell.clone(),
            (counters.clone(), board.clone()),
            options,
        )?;
        let thread = std::thread::Builder::new().name("freehold-share".into()).spawn(move || {
            if let Some(Err(e)) = place.as_ref().map(Place::enter) {
                tracing::warn!("sessions are served anywhere on this machine: {e}");
            }
            let all_done = match changes.hold() {
                Ok(_holding) => poller.run(),
                Err(e) => {
                    tracing::error!("sessions are not served: {e}");
                    true
                }
            };
            door.unlend(&lender);
            door.unwatch();
            all_done
        })?;
        let mut server = Server {
            bell,
            counters,
            board,
            path: path.into(),
            thread: Some(thread),
            guard: None,
            ticker: Some(ticker),
            keeper: Some(keeper),
        };
        if let Some(timeout) = lock_timeout {
            server.guard = Some(Guard::start(server.observer(), timeout)?);
        }
        Ok(server)
    }

    /// What it did and has; a little behind the truth while it is busy.
    pub fn counters(&self) -> Counters {
        *self.counters.lock()
    }

    /// Where clients connect.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Ends all sessions: calls that were begun are answered, but for those that wait for a lock, which are given up like those that were not
    /// begun; handles and locks are released. False: something that clients count as done was given up, as nothing moved for
    /// [`Options::stop_patience`].
    pub fn stop(mut self) -> bool {
        self.end()
    }

    fn end(&mut self) -> bool {
        drop(self.guard.take());
        let mut all_done = true;
        if let Some(thread) = self.thread.take() {
            // As long as this one listens no other can have its socket there.
            let _ = std::fs::remove_file(&self.path);
            self.bell.stop();
            all_done = thread.join().unwrap_or(false);
            drop(self.ticker.take());
            drop(self.keeper.take());
        }
        all_done
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

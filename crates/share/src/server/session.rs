//! One client as the manager sees it.

use super::stats::Tally;
use super::windows::{Window, Windows};
use crate::region::{Region, SlotNo};
use crate::socket;
use foldhash::fast::FixedState;
use format::shared::{MAGIC, Reply, SLOTS, WindowMessage};
use fs::{Cred, Error, FileSystem, Handle, Ino, LockOwner, Result};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Waker;
use zerocopy::{FromZeros, IntoBytes};

/// What calls need to know of their client; shared with the futures that run them.
pub(crate) struct Client {
    pub session: u64,
    pub region: Region,
    /// As the kernel reports it for the socket.
    pub cred: Cred,
    pub handles_max: usize,
    pub tally: Tally,
    /// Of all clients.
    pub windows: Arc<Windows>,
    /// Over which descriptors are handed to it.
    pub socket: Arc<OwnedFd>,
    held: Mutex<Held>,
}

/// What is given back when the client is gone.
#[derive(Default)]
struct Held {
    /// With the inodes behind them.
    handles: HashMap<Handle, Ino, FixedState>,
    /// Under which record locks were taken.
    owners: HashSet<LockOwner>,
    gone: bool,
}

impl Client {
    pub fn new(
        session: u64,
        region: Region,
        cred: Cred,
        handles_max: usize,
        windows: Arc<Windows>,
        socket: Arc<OwnedFd>,
        tally: Tally,
    ) -> Client {
        Client { session, region, cred, handles_max, windows, socket, tally, held: Mutex::default() }
    }

    /// Hands a window of a file to the client. False when its socket is full.
    pub fn give(&self, ino: Ino, generation: u32, place: u32, window: &Window) -> bool {
        let message = WindowMessage {
            magic: MAGIC.into(),
            number: window.number().into(),
            ino: ino.0.into(),
            generation: generation.into(),
            place: place.into(),
        };
        socket::send(&*self.socket, message.as_bytes(), &[window.reader()]).is_ok()
    }

    /// A handle that this client has open.
    pub fn handle(&self, number: u64) -> Result<Handle> {
        let handle = Handle(number);
        if self.held.lock().handles.contains_key(&handle) { Ok(handle) } else { Err(Error::BadHandle) }
    }

    /// Whether it may open one more.
    pub fn may_open(&self) -> Result<()> {
        if self.held.lock().handles.len() < self.handles_max { Ok(()) } else { Err(Error::TooManyOpen) }
    }

    /// The client has this handle now.
    pub fn opened(&self, handle: Handle, ino: Ino) {
        self.held.lock().handles.insert(handle, ino);
    }

    /// The inode behind a handle.
    pub fn inode(&self, handle: Handle) -> Result<Ino> {
        self.held.lock().handles.get(&handle).copied().ok_or(Error::BadHandle)
    }

    /// The client gives a handle back; no other call of it can use it any more.
    pub fn closes(&self, number: u64) -> Result<Handle> {
        let handle = Handle(number);
        if self.held.lock().handles.remove(&handle).is_some() { Ok(handle) } else { Err(Error::BadHandle) }
    }

    /// Number of open handles.
    pub fn handles(&self) -> usize {
        self.held.lock().handles.len()
    }

    /// Owners of one client never meet those of another.
    pub fn owner(&self, owner: u64) -> LockOwner {
        LockOwner(self.session << 32 | (owner ^ owner >> 32) & 0xffff_ffff)
    }

    /// As [`Client::owner`], for taking locks. None when the client is gone: nobody would release them.
    pub fn locks(&self, owner: u64) -> Result<LockOwner> {
        let owner = self.owner(owner);
        let mut held = self.held.lock();
        if held.gone {
            return Err(Error::Closed);
        }
        held.owners.insert(owner);
        Ok(owner)
    }

    /// Gives back everything the client held. When it is the manager that ends, files without names stay open: they would go with their
    /// handles, and the client may come for them again.
    pub async fn clean_up<F: FileSystem>(&self, fs: &F, manager_ends: bool) {
        let (handles, owners) = {
            let mut held = self.held.lock();
            held.gone = true;
            (std::mem::take(&mut held.handles), std::mem::take(&mut held.owners))
        };
        for (handle, ino) in handles {
            for &owner in &owners {
                let _ = fs.flush(handle, owner).await;
            }
            if manager_ends && fs.getattr(ino, Some(handle)).await.is_ok_and(|attr| attr.nlink == 0) {
                continue;
            }
            if let Err(e) = fs.release(handle).await {
                tracing::warn!("session {}: closing a file that its client left open: {e}", self.session);
            }
        }
    }

    /// Answers that a call was given up.
    pub fn interrupted(&self, slot: SlotNo) {
        self.region.put(slot, &Reply { errno: libc::EINTR.into(), ..Reply::new_zeroed() });
        self.region.answered(slot);
    }
}

pub(crate) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The task that cleans up behind a client stands behind those of the slots.
pub(crate) const CLEAN_UP: usize = SLOTS;

/// A client with a session.
pub(crate) struct Session {
    pub client: Arc<Client>,
    /// Of the slots, and of the end.
    pub tasks: [Option<Task>; SLOTS + 1],
    pub wakers: Vec<Option<Waker>>,
    /// The manager looks at its doorbell; otherwise the client must write to the eventfd.
    pub active: bool,
    /// When it last did something, in rounds of the poller.
    pub last: u64,
    pub ending: bool,
    pub event: OwnedFd,
}

/// A connection, which becomes a session with the client's first message.
pub(crate) struct Connection {
    pub socket: Arc<OwnedFd>,
    /// Readable when the process has ended, although others may have the socket still.
    pub process: Option<OwnedFd>,
    pub pid: i32,
    pub cred: Cred,
    pub session: Option<Session>,
}

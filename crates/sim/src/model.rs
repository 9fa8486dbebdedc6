//! The reference model: the one definition of what is correct. A whole file system in plain maps behind one lock.
//!
//! It does what Linux does on a local file system (ext4), errors and their precedence included; where the contract says
//! something else, the contract holds, and `host` says so at the place where it evens the difference out. Simplicity
//! goes before speed everywhere. Choices that POSIX leaves open:
//! - Access times are relatime: a read of at least one byte asked for, a readdir or a readlink moves the access time if it
//!   is not later than mtime or than ctime, or is a day old. NOATIME on the handle prevents it.
//! - Directory offsets: 1 is behind ".", 2 behind "..", then 3, 4, ... in the order in which entries were made; a rename
//!   moves its entry to the end. An offset is never used again in the same directory.
//! - An inode exists while it has a name or is open; until then every method finds it, with or without a handle.
//! - Size of a directory: 0. Inode numbers are never used again. Holes are known by 4 KiB page.
//! - Record locks of an inode go away when nobody has it open.
//!
//! Not modelled: durability (fsync, barrier and sync only check their arguments; crash tests take a [`Snapshot`] for
//! every epoch), lack of space, I/O errors, leases.
//!
//! Tested against the kernel's file system in `tests/host.rs`, against itself and against wrong variants in
//! `tests/canaries.rs`.

mod attrs;
pub mod data;
mod files;
mod filesystem;
mod locks;
mod names;
mod node;
mod rules;

use crate::snapshot::Snapshot;
use fs::{Attr, Cred, Error, FileType, Handle, Ino, OpenFlags, Result, Time};
use locks::Locks;
pub(crate) use node::{Body, Node};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// Where the model takes the time from.
pub type Clock = Arc<dyn Fn() -> Time + Send + Sync>;

/// The clock of the machine.
pub fn system_clock() -> Clock {
    Arc::new(Time::now)
}

/// A clock that stands still until a test moves it. Clones show the same time.
#[derive(Clone, Default)]
pub struct HandClock(Arc<AtomicI64>);

impl HandClock {
    /// Sets the time, in whole seconds since 1970.
    pub fn set(&self, sec: i64) {
        self.0.store(sec, Ordering::SeqCst);
    }

    /// The clock as the model takes it.
    pub fn clock(&self) -> Clock {
        let hand = self.0.clone();
        Arc::new(move || Time { sec: hand.load(Ordering::SeqCst), nsec: 0 })
    }
}

/// A file system in memory. See the module documentation.
pub struct Model {
    state: Mutex<State>,
    clock: Clock,
}

impl Model {
    /// An empty volume: a root directory of mode 0755 that belongs to root.
    pub fn new(clock: Clock) -> Model {
        let now = clock();
        let attr = Attr {
            ino: Ino::ROOT,
            generation: 0,
            kind: FileType::Directory,
            perm: 0o755,
            nlink: 2,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            xattrs: false,
        };
        let root = Arc::new(Node::new(attr, Body::directory(Ino::ROOT)));
        Model::with_nodes(BTreeMap::from([(Ino::ROOT, root)]), Ino::ROOT.0, clock)
    }

    /// A volume with the tree of a snapshot, as it is after a crash or a mount: nothing is open or locked, and inodes
    /// without a name are gone. Inode numbers are those of the snapshot.
    pub fn from_snapshot(snapshot: &Snapshot, clock: Clock) -> Model {
        let mut nodes = (*snapshot.nodes).clone();
        nodes.retain(|_, node| node.attr.nlink > 0);
        Model::with_nodes(nodes, snapshot.last_ino, clock)
    }

    fn with_nodes(nodes: BTreeMap<Ino, Arc<Node>>, last_ino: u64, clock: Clock) -> Model {
        let state =
            State { nodes, last_ino, opens: BTreeMap::new(), last_handle: 0, locks: Locks::default() };
        Model { state: Mutex::new(state), clock }
    }

    /// The tree as it is now. Contents are shared, so a snapshot costs a map entry per inode.
    pub fn snapshot(&self) -> Snapshot {
        let state = self.state.lock();
        Snapshot { nodes: Arc::new(state.nodes.clone()), last_ino: state.last_ino }
    }
}

/// What the generator of operations asks.
impl Model {
    pub(crate) fn kind(&self, ino: Ino) -> Option<FileType> {
        self.state.lock().node(ino).ok().map(|node| node.attr.kind)
    }

    pub(crate) fn child(&self, dir: Ino, name: &[u8]) -> Option<Ino> {
        self.state.lock().node(dir).ok()?.dir().ok()?.get(name)
    }

    pub(crate) fn is_empty(&self, dir: Ino) -> bool {
        self.state.lock().node(dir).is_ok_and(|node| node.dir().is_ok_and(|dir| dir.entries.is_empty()))
    }

    pub(crate) fn opened(&self, handle: Handle) -> Option<(Ino, OpenFlags, bool)> {
        let state = self.state.lock();
        state.handle(handle).ok().map(|open| (open.ino, open.flags, open.directory))
    }

    pub(crate) fn xattr_names(&self, ino: Ino) -> Vec<Vec<u8>> {
        let state = self.state.lock();
        state.node(ino).map(|node| node.xattrs.keys().cloned().collect()).unwrap_or_default()
    }
}

/// An open file or directory. Its cred decides about set-id bits when data are written through it.
#[derive(Clone)]
struct Open {
    ino: Ino,
    flags: OpenFlags,
    cred: Cred,
    directory: bool,
}

/// Everything. `nodes` holds exactly the inodes that have a name or are open.
struct State {
    nodes: BTreeMap<Ino, Arc<Node>>,
    last_ino: u64,
    opens: BTreeMap<Handle, Open>,
    last_handle: u64,
    locks: Locks,
}

impl State {
    fn node(&self, ino: Ino) -> Result<&Node> {
        self.nodes.get(&ino).map(|node| &**node).ok_or(Error::Stale)
    }

    fn node_mut(&mut self, ino: Ino) -> Result<&mut Node> {
        self.nodes.get_mut(&ino).map(Arc::make_mut).ok_or(Error::Stale)
    }

    fn handle(&self, handle: Handle) -> Result<&Open> {
        self.opens.get(&handle).ok_or(Error::BadHandle)
    }

    /// A handle that is open for what `need` names.
    fn open_for(&self, handle: Handle, need: OpenFlags) -> Result<Open> {
        let open = self.handle(handle)?;
        if open.flags.contains(need) { Ok(open.clone()) } else { Err(Error::BadHandle) }
    }

    /// As `open_for`, of a regular file. Directories are open for reading alone.
    fn file(&self, handle: Handle, need: OpenFlags) -> Result<Open> {
        let open = self.open_for(handle, need)?;
        if open.directory { Err(Error::IsDirectory) } else { Ok(open) }
    }

    /// Puts a new inode into the map; the caller gives it a name or opens it.
    fn add_node(&mut self, attr: Attr, body: Body) -> Ino {
        self.last_ino += 1;
        let ino = Ino(self.last_ino);
        self.nodes.insert(ino, Arc::new(Node::new(Attr { ino, ..attr }, body)));
        ino
    }

    fn add_open(&mut self, open: Open) -> Handle {
        self.last_handle += 1;
        let handle = Handle(self.last_handle);
        self.opens.insert(handle, open);
        handle
    }

    fn is_open(&self, ino: Ino) -> bool {
        self.opens.values().any(|open| open.ino == ino)
    }

    /// Frees the inode when it has no name and is not open.
    fn drop_if_unused(&mut self, ino: Ino) {
        if !self.is_open(ino) {
            self.locks.forget(ino);
            if self.node(ino).is_ok_and(|node| node.attr.nlink == 0) {
                self.nodes.remove(&ino);
            }
        }
    }
}

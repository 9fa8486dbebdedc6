//! Several doors to one file system: each learns what changed through the others.
//!
//! Doors keep things: a kernel keeps names, attributes and pages, a session keeps what its clients have mapped. A change that comes
//! through one door makes that stale behind the others. [`Watched`] stands between the doors and the engine; every door has one of its own
//! ([`Watched::door`]) and tells through it what it wants to hear ([`Watched::watch`]). A call that changes something returns only when
//! the watchers of the other doors have been told, so that whoever sees the call return sees the change everywhere.
//!
//! They are told too when the call failed or was given up half-way, as nobody knows then what it changed. A watcher that cannot take a
//! change in at once says so, and the call waits as a future ([`Told`]); it has given back the turns that others could wait for.
//!
//! A door that fills its cache while another one changes the same thing must look again after it has filled it: what it was told before
//! it had anything to drop does not come twice. Times of access are not told.
//!
//! Tested here with the cases of each call, and by the doors' own tests.

mod filesystem;
mod lent;

use crate::contract::FileSystem;
use crate::cred::Cred;
use crate::error::{Error, Result};
use crate::leases::{Call, Caller, Changing, Lent};
use crate::passes::Passes;
use crate::turns::{Turn, Turns};
use crate::types::*;
use foldhash::fast::FixedState;
use format::Ino;
use parking_lot::{Mutex, RwLock};
use smallvec::{SmallVec, smallvec};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a call changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Bytes of a file from `start` to before `end` (`u64::MAX`: all behind), and its attributes.
    Data {
        /// The file.
        ino: Ino,
        /// First byte.
        start: u64,
        /// Behind the last byte.
        end: u64,
    },
    /// Attributes of an inode.
    Attr {
        /// The inode.
        ino: Ino,
    },
    /// A name was made, removed, or leads elsewhere; and the attributes of its directory.
    Name {
        /// The directory.
        parent: Ino,
        /// The name.
        name: &'a [u8],
    },
}

/// Ready when a watcher has taken a change in.
pub type Told = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Hears of changes.
pub trait Watcher: Send + Sync {
    /// Something changed through another door. Called on the thread of the call that changed it, which may be the only one that gets others on: what
    /// takes long, or waits for anybody, is to go on elsewhere. The call returns when what is returned here is ready.
    fn changed(&self, change: &Change<'_>) -> Option<Told>;

    /// Whether this door may keep anything of an inode, be it a name in it. What it gets to know only later it asks for once more when it is about to keep
    /// it. Doors that take in every change at once need not say.
    fn keeps(&self, _ino: Ino) -> bool {
        false
    }

    /// A file may be about to lose its last name, or to be opened by fewer than before. A door that opens files without asking the engine
    /// says who has this one open so; each is opened by the engine, as its owner may open it now, before the change is made.
    fn undeclared(&self, _ino: Ino) -> Undeclared {
        Undeclared::default()
    }
}

/// What opened a file without the engine.
pub trait Opener: Send + Sync {
    /// Who did.
    fn cred(&self) -> &Cred;
    /// How.
    fn flags(&self) -> OpenFlags;
    /// The engine has it open now as this handle, which is given back if there is nobody any more who could close it.
    fn opened(self: Box<Self>, handle: Handle) -> std::result::Result<(), Handle>;
}

/// See [`Watcher::undeclared`].
#[derive(Default)]
pub struct Undeclared {
    /// Who has the file open.
    pub openers: Vec<Box<dyn Opener>>,
    /// Until this is dropped nobody opens the file so.
    pub until: Option<Box<dyn Send + Sync>>,
}

#[derive(Default)]
pub(crate) struct Hub {
    doors: AtomicU64,
    pub(crate) watchers: RwLock<Vec<(u64, Arc<dyn Watcher>)>>,
    pub(crate) files: RwLock<OpenFiles>,
    pub(crate) lent: Lent,
    /// Files that calls have opened that were given up.
    strays: Mutex<Vec<Handle>>,
    /// Whoever changes what a name leads to must know what it led to before, whichever door another one comes through.
    names: Turns,
    passes: Passes,
}

/// A file that a call has opened, until the caller has its handle. A call that is given up before leaves it to the next that closes one.
struct Opened<'a> {
    hub: &'a Hub,
    handle: Handle,
}

impl Opened<'_> {
    /// The caller has it.
    fn taken(self) -> Handle {
        std::mem::ManuallyDrop::new(self).handle
    }
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        self.hub.strays.lock().push(self.handle);
    }
}

/// What must be known of an open file to say what a call on it changes.
#[derive(Clone, Copy)]
pub(crate) struct OpenFile {
    pub ino: Ino,
    pub flags: OpenFlags,
}

/// All open files, of all doors.
#[derive(Default)]
pub(crate) struct OpenFiles {
    files: HashMap<Handle, OpenFile, FixedState>,
    /// How often each is open.
    openers: HashMap<Ino, usize, FixedState>,
}

impl OpenFiles {
    pub fn get(&self, handle: Handle) -> Option<OpenFile> {
        self.files.get(&handle).copied()
    }

    /// How often a file is open.
    pub fn openers(&self, ino: Ino) -> usize {
        self.openers.get(&ino).copied().unwrap_or(0)
    }

    fn insert(&mut self, handle: Handle, file: OpenFile) {
        self.remove(handle);
        self.files.insert(handle, file);
        *self.openers.entry(file.ino).or_default() += 1;
    }

    fn remove(&mut self, handle: Handle) {
        let Some(file) = self.files.remove(&handle) else { return };
        if let Entry::Occupied(mut openers) = self.openers.entry(file.ino) {
            *openers.get_mut() -= 1;
            if *openers.get() == 0 {
                openers.remove();
            }
        }
    }
}

/// A file system with several doors, as one of them sees it. See the module documentation. Clones are the same door.
pub struct Watched<F> {
    fs: Arc<F>,
    pub(crate) hub: Arc<Hub>,
    door: u64,
    pub(crate) caller: Caller,
}

impl<F> Clone for Watched<F> {
    fn clone(&self) -> Self {
        Watched { fs: self.fs.clone(), hub: self.hub.clone(), door: self.door, caller: self.caller }
    }
}

/// Tells the other doors what a call changes, when the call is over, however it ends.
struct Telling<'a, F> {
    watched: &'a Watched<F>,
    changes: SmallVec<[Change<'a>; 4]>,
    /// What the call did under this turn is done. A kernel that is told may first have to end a call of its own on that name, which waits for the
    /// turn in another door.
    turn: Option<Turn<'a>>,
}

impl<'a, F> Telling<'a, F> {
    /// Gives a turn back before anybody is told.
    fn after(mut self, turn: Turn<'a>) -> Telling<'a, F> {
        self.turn = Some(turn);
        self
    }

    /// Makes the call, tells of it, and waits until that was taken in.
    async fn over<T>(self, call: impl Future<Output = T>) -> T {
        let result = call.await;
        self.end().await;
        result
    }

    /// As [`Telling::over`], of a call that changes names. If it was refused nobody is told: nothing is stale, and a kernel that hears of a name takes it from those who stand
    /// in the directory that it leads to.
    async fn over_name<T>(mut self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let result = call.await;
        self.unless_refused(&result);
        self.end().await;
        result
    }

    /// A call that changes names is over. (Where a rename can end half-way, as of a directory in a bucket, there is one door.)
    fn unless_refused<T>(&mut self, result: &Result<T>) {
        use Error::*;
        if let Err(
            Exists | NotFound | IsDirectory | NotDirectory | NotEmpty | IntoItself | AccessDenied
            | NotPermitted,
        ) = result
        {
            self.changes.clear();
        }
    }

    /// The call is over. If it was made, nobody but who made it can keep anything of the names that it changed, and who made it knew before; what else is stale, if
    /// anything, is `still`. Nobody waits: whoever waits for the call may keep another one from being told.
    fn among_us<T>(mut self, result: &Result<T>, still: Option<Change<'a>>) {
        if result.is_ok() {
            self.changes = still.into_iter().collect();
        }
    }

    /// The call is over.
    async fn end(mut self) {
        self.turn = None;
        for told in self.watched.tell(&std::mem::take(&mut self.changes)) {
            told.await;
        }
    }
}

impl<F> Drop for Telling<'_, F> {
    fn drop(&mut self) {
        // Of a call that was given up, nobody waits for the end.
        self.turn = None;
        self.watched.tell(&self.changes);
    }
}

impl<F> Watched<F> {
    pub(crate) fn file(&self, handle: Handle) -> Option<OpenFile> {
        self.hub.files.read().get(handle)
    }

    /// Tells the other doors; what is returned is still to be waited for.
    pub(crate) fn tell(&self, changes: &[Change<'_>]) -> SmallVec<[Told; 1]> {
        let mut later = SmallVec::new();
        if changes.is_empty() {
            return later;
        }
        let others: SmallVec<[Arc<dyn Watcher>; 2]> = {
            let watchers = self.hub.watchers.read();
            watchers.iter().filter(|(door, _)| *door != self.door).map(|(_, w)| w.clone()).collect()
        };
        for watcher in others {
            later.extend(changes.iter().filter_map(|change| watcher.changed(change)));
        }
        later
    }

    fn telling<'a>(&'a self, changes: SmallVec<[Change<'a>; 4]>) -> Telling<'a, F> {
        Telling { watched: self, changes, turn: None }
    }
}

impl<F: FileSystem> Watched<F> {
    /// A file system with one door.
    pub fn new(fs: Arc<F>) -> Watched<F> {
        Watched { fs, hub: Arc::default(), door: 0, caller: 0 }
    }

    /// One more door to the same file system.
    pub fn door(&self) -> Watched<F> {
        let door = self.hub.doors.fetch_add(1, Ordering::Relaxed) + 1;
        Watched { door, ..self.clone() }
    }

    /// This door for the calls of one caller, who passes what is lent to it (`fs::leases`).
    pub fn calling(&self, caller: Caller) -> Watched<F> {
        Watched { caller, ..self.clone() }
    }

    /// The file system behind the doors. What is changed there directly, nobody is told.
    pub fn inner(&self) -> &Arc<F> {
        &self.fs
    }

    /// From now on `watcher` hears what changes through other doors than this one.
    pub fn watch(&self, watcher: Arc<dyn Watcher>) {
        self.hub.watchers.write().push((self.door, watcher));
    }

    /// This door hears no more.
    pub fn unwatch(&self) {
        self.hub.watchers.write().retain(|(door, _)| *door != self.door);
    }

    /// Whether there is anybody to tell.
    fn heard(&self) -> bool {
        self.hub.watchers.read().iter().any(|(door, _)| *door != self.door)
    }

    /// A file was opened.
    fn opened(&self, handle: Handle, ino: Ino, flags: OpenFlags) -> Opened<'_> {
        self.hub.files.write().insert(handle, OpenFile { ino, flags });
        Opened { hub: &self.hub, handle }
    }

    /// Keeps an inode, and with it its number, until the handle is released: no other door hears of it, and nobody's lease ends. `Stale`: it is another one;
    /// `Invalid`: neither file nor directory.
    ///
    /// # Errors
    /// As said above, and those of opening.
    pub async fn pin(&self, (ino, generation): (Ino, u32)) -> Result<Handle>
    where
        F: FileSystem,
    {
        if self.lends_directories() {
            // It may have been made a moment ago, by a call that was posted.
            self.drained().await?;
        }
        let all = Cred { checked: true, ..Cred::root() };
        let handle = match self.fs.getattr(ino, None).await?.kind {
            FileType::Directory => self.fs.opendir(&all, ino).await?,
            FileType::Regular => self.fs.open(&all, ino, OpenFlags::READ).await?,
            _ => return Err(Error::Invalid("only files and directories can be pinned")),
        };
        match self.fs.getattr(ino, Some(handle)).await {
            Ok(attr) if attr.generation == generation => Ok(handle),
            _ => self.fs.release(handle).await.and(Err(Error::Stale)),
        }
    }

    /// How a file is open. `None`: it is not.
    pub fn opened_with(&self, handle: Handle) -> Option<OpenFlags> {
        self.file(handle).map(|file| file.flags)
    }

    /// A name by which the open file can be looked up through other doors, in any directory, until it is closed (`fs::passes`). `BadHandle`.
    ///
    /// # Errors
    /// As said above.
    pub fn pass(&self, handle: Handle) -> Result<Vec<u8>> {
        self.file(handle).map(|_| self.hub.passes.of(handle)).ok_or(Error::BadHandle)
    }

    /// A file is no longer open.
    fn closed(&self, handle: Handle) {
        self.hub.files.write().remove(handle);
        let Some((name, dirs)) = self.hub.passes.end(handle) else { return };
        for parent in dirs {
            // Through its own door nobody looks a pass up. Nor does anybody wait until it is forgotten: nobody asks for it again, and the kernel, which is
            // looking something up in that directory now, may be waiting for this very close, as all that a session has posted comes before others.
            self.tell(&[Change::Name { parent, name: &name }]);
        }
    }

    /// Closes what calls had opened that were given up.
    async fn release_strays(&self) {
        loop {
            let Some(handle) = self.hub.strays.lock().pop() else { return };
            self.closed(handle);
            let _ = self.fs.release(handle).await;
        }
    }

    /// The inode of a name that is about to lose it; `None` when there is nobody to tell or no such name.
    async fn victim(&self, parent: Ino, name: &[u8]) -> Option<Ino> {
        if !self.heard() && !self.lends() {
            return None;
        }
        let cred = Cred { checked: true, ..Cred::root() };
        self.fs.lookup(&cred, parent, name).await.ok().map(|a| a.ino)
    }

    /// Takes the turn of names, of which the last may be taken from a directory, or leads to a file that may be emptied. That one is settled before: nothing must be
    /// made there any more that is not there yet. Until the result is dropped there will be no lease on it. Also what that name leads to, and what came of
    /// settling it: what a directory says then, its lender keeps for the next sync.
    async fn leaving(
        &self,
        names: &[(Ino, &[u8])],
    ) -> (Turn<'_>, Option<Changing<'_>>, Option<Ino>, Result<()>) {
        let last = names.last().copied();
        let victim = async || match last {
            Some((parent, name)) => self.victim(parent, name).await,
            None => None,
        };
        loop {
            let before = victim().await;
            let changing = before.map(|ino| self.changing(ino));
            let settled = match before {
                Some(ino) => self.settle(ino, Call::Other).await,
                None => Ok(()),
            };
            let turn = self.hub.names.take(names).await;
            let now = victim().await;
            if now.is_none() || now == before {
                return (turn, changing, now, settled);
            }
        }
    }

    /// Before `ino` may lose its last name, or be opened by fewer: whoever has it open has it open with the engine from now on, and until what
    /// is returned is dropped nobody opens it in another way. On an error that must not be done: somebody would lose what he has open.
    async fn declared(&self, ino: Option<Ino>) -> Result<SmallVec<[Box<dyn Send + Sync>; 1]>> {
        use Error::*;
        let Some(ino) = ino else { return Ok(SmallVec::new()) };
        let all: SmallVec<[Undeclared; 2]> =
            self.hub.watchers.read().iter().map(|(_, watcher)| watcher.undeclared(ino)).collect();
        let mut held = SmallVec::new();
        for Undeclared { openers, until } in all {
            held.extend(until);
            for opener in openers {
                let handle = match self.fs.open(opener.cred(), ino, opener.flags()).await {
                    Ok(handle) => handle,
                    // Who may not open it never had it open.
                    Err(AccessDenied | NotPermitted | Stale | IsDirectory | Invalid(_)) => continue,
                    Err(e) => return Err(e),
                };
                self.opened(handle, ino, opener.flags()).taken();
                if let Err(handle) = opener.opened(handle) {
                    let _ = self.release(handle).await;
                }
            }
        }
        Ok(held)
    }

    fn telling_name<'a>(&'a self, parent: Ino, name: &'a [u8], inode: Option<Ino>) -> Telling<'a, F> {
        let mut changes = smallvec![Change::Name { parent, name }];
        changes.extend(inode.map(|ino| Change::Attr { ino }));
        self.telling(changes)
    }

    /// Tells of an open that may empty the file.
    fn telling_open(&self, ino: Ino, flags: OpenFlags) -> Telling<'_, F> {
        let empties = flags.contains(OpenFlags::TRUNCATE);
        self.telling(empties.then_some(Change::Data { ino, start: 0, end: u64::MAX }).into_iter().collect())
    }

    /// Tells of a range of an open file; all of it when nobody knows the file's range.
    fn telling_data(&self, handle: Handle, start: u64, len: u64) -> Telling<'_, F> {
        let change = |file: OpenFile| Change::Data { ino: file.ino, start, end: start.saturating_add(len) };
        self.telling(self.file(handle).map(change).into_iter().collect())
    }

    async fn size(&self, file: OpenFile, handle: Handle) -> Option<u64> {
        self.fs.getattr(file.ino, Some(handle)).await.ok().map(|a| a.size)
    }
}

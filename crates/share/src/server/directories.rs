//! Directory leases: clients make and remove files and directories in a directory without waiting for us (see `format::shared`).
//!
//! A lease is for one directory and one session. It says that nobody else makes, removes, finds or lists names there, so the client, which was told all
//! names, knows that its creates and unlinks will succeed: what it posts under the lease counts as done. Every call of anybody else that names the directory,
//! or something that was made so, first ends the lease (`fs::leases`): its word is taken away, and what was posted before is run. Nobody waits for the client.
//! What makes everything durable or ordered waits for what was posted, and leaves the leases. What a killed client had posted is run.
//!
//! Data of files that were made under a lease is posted as well, and the closing of them. Whoever else comes to such a file ends the lease as if
//! he had come to the directory. A directory that was made under a lease stands under it like the one that the lease is on: its maker knows all names there, of which there were none.
//!
//! What is posted says when it was made, since its maker may tell of it before it is: a time from before the lease, or later than now, is not believed.
//!
//! What a create could still lack was set aside before (`fs::FileSystem::promise`): the inode, whose number the client knows, and the handle. So was
//! room for what is written (`fs::FileSystem::set_room_aside`): each lease has some, and posted writes take what they may need out of it; client and manager count alike. The
//! names in the directory, its permissions and the directory itself change by nobody else's call; a client that changes them itself does not use its lease any more.
//! All the same every check of an ordinary call is made. What is posted under a lease that is over, or with an inode that was not promised to this session,
//! is refused without having done anything; honest clients have not acknowledged it.
//!
//! Nobody keeps anything of the directory while there is a lease: what clients kept ends when it begins, and they cannot get it again without ending it; a
//! kernel that has the directory keeps it from being lent ([`fs::watched::Watcher::keeps`]). Directories that others come to are not lent for
//! a while, each time longer.
//!
//! Files that a session makes by messages, where it has no lease on the directory, stand under a lease of their own while it has them open ([`new_files`]); so do files that were there
//! and that it alone has open, when it writes to them.
//!
//! Bounded: leases, inodes promised to one session and to all, new files of one session, room of one lease and of all, directories that are remembered. Tested in
//! tests/all/directories.rs, tests/all/new_files.rs, tests/all/lent_again.rs and tests/all/directories_random.rs, attacked in tests/all/directory_attacks.rs.

mod new_files;
mod numbers;
mod table;

use super::drains::Drains;
use super::session::Client;
use format::shared::DIRECTORIES;
use fs::leases::{Call, Caller, Lender, Settling};
use fs::watched::{Change, Watched};
use fs::{Access, Attr, Error, FileSystem, FileType, Ino, Promise, Result, Time};
pub(crate) use new_files::MakingFiles;
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};
use table::{Lease, Promised, Shared, Table};

/// Names in a directory that is lent, and the bytes of them all, each with its length.
const NAMES_MAX: usize = 4096;
const NAME_BYTES_MAX: usize = 60 << 10;
/// Inodes that are promised to one session, and to all.
pub(crate) const PROMISES_MAX: usize = 256;
const PROMISES_ALL: usize = 4096;
/// Pages of room for data that one lease has, and all of them.
const ROOM_MAX: u64 = 1024;
const ROOM_ALL: u64 = 8192;
/// Directories of which it is remembered that others came to them.
const SHARED_MAX: usize = 4096;
/// How often the time doubles for which such a directory is not lent.
const DOUBLINGS: u32 = 8;

/// What a client is told with a lease.
pub(crate) struct Granted {
    pub number: u64,
    pub attr: Attr,
    pub names: Vec<Vec<u8>>,
}

/// What the calls of a client can want of directory leases.
pub(crate) trait Making: MakingFiles {
    /// Lends a directory to a session, in a place of its memory; what it had there before is over. `None`: not now.
    fn grant<'a>(
        &'a self,
        client: &'a Client,
        dir: Ino,
        place: usize,
    ) -> Pin<Box<dyn Future<Output = Result<Option<Granted>>> + Send + 'a>>;

    /// Promises inodes to a session.
    fn promise(&self, session: u64, most: usize) -> Vec<Promise>;

    /// What was promised to a session, to be made now, and when that was, if the client is right. `Stale`: it was not promised, or the directory is not
    /// under a lease of this session with this number (any more); then the promise is over.
    fn begin(&self, session: u64, ino: Ino, lease: (Ino, u64), time: Time) -> Result<(Promise, Time)>;

    /// Whether a directory is under a lease of this session with this number.
    fn admits(&self, session: u64, lease: (Ino, u64)) -> bool;

    /// Pages of room that the lease with this number has now, after it was given more. 0: there is no such lease, or no room.
    fn room(&self, session: u64, number: u64) -> u64;

    /// Takes pages out of the room of the lease with this number, under which a file was made or is lent: for data that is to be written now. `Stale`: it is not, or the directory
    /// is not lent to this session (any more), or the lease has not so much.
    fn spend(&self, session: u64, file: Ino, number: u64, pages: u64) -> Result<()>;

    /// What was begun is made, or failed.
    fn end(&self, promise: Promise, lease: (Ino, u64), result: &Result<Attr>);

    /// A file that was made under a lease is there no longer.
    fn removed(&self, ino: Ino);

    /// A session has removed a directory: it has no lease on it any more.
    fn removed_dir(&self, session: u64, dir: Ino);

    /// Something that may have been acknowledged failed.
    fn failed(&self, error: &Error);

    /// From now on a session acknowledges nothing more; or every one, and none is begun.
    fn revoke(&self, session: Option<u64>);

    /// A session is over, and everything that it had posted is done.
    fn part(&self, session: u64);
}

/// All directory leases of a server.
pub(crate) struct Directories<F> {
    /// A door of their own: all others are told.
    fs: Watched<F>,
    drains: Arc<Drains>,
    /// Who has its lock may make calls of the engine that wait for nothing but the engine's.
    table: Mutex<Table>,
    next: AtomicU64,
    /// Most directories that are lent to all clients, and new files to one.
    directories_max: usize,
    new_files_max: usize,
    /// How long a directory is not lent to which somebody came for the first time.
    pause: Duration,
    /// Something that was acknowledged could not be done, and no sync has said so yet.
    lost: AtomicBool,
}

impl<F: FileSystem> Directories<F> {
    pub fn new(
        fs: Watched<F>,
        drains: Arc<Drains>,
        (directories_max, new_files_max): (usize, usize),
        pause: Duration,
    ) -> Directories<F> {
        Directories {
            fs,
            drains,
            table: Mutex::default(),
            next: AtomicU64::new(1),
            directories_max,
            new_files_max,
            pause,
            lost: AtomicBool::new(false),
        }
    }

    fn forget(&self, table: &mut Table, lease: &Lease) {
        if table.leases.remove(&lease.number).is_none() {
            return;
        }
        let room = lease.room.swap(0, Ordering::Relaxed);
        if room > 0 {
            table.room -= room;
            self.fs.inner().give_room_back(room);
        }
        let Some(dir) = lease.dir else { return self.forget_new(table, lease) };
        table.dirs.remove(&dir);
        match table.dirs.is_empty() {
            true => table.made.clear(),
            false => table.made.remove_all(lease.number),
        }
        self.fs.lease_ends();
    }

    /// Somebody else comes: ends a lease when everything that was acknowledged under it is done.
    async fn recall(&self, lease: &Lease) {
        lease.revoke();
        self.drains.drain(Some(lease.session)).await;
        let mut table = self.table.lock();
        if !table.leases.contains_key(&lease.number) {
            return;
        }
        self.forget(&mut table, lease);
        let Some(dir) = lease.dir else { return };
        if self.pause.is_zero() {
            return;
        }
        if table.shared.len() >= SHARED_MAX {
            table.shared.clear();
        }
        let now = Instant::now();
        let shared = table.shared.entry(dir).or_insert(Shared { until: now, times: 0 });
        // It was quiet for so long as it was not lent.
        if now.saturating_duration_since(shared.until) > self.pause * (1 << shared.times) {
            shared.times = 0;
        }
        shared.until = now + self.pause * (1 << shared.times);
        shared.times = (shared.times + 1).min(DOUBLINGS);
    }

    async fn settle_inode(&self, ino: Ino, caller: Caller) {
        loop {
            let (lease, promised) = {
                let table = self.table.lock();
                let lease = table.on(ino).find(|lease| lease.session != caller).cloned();
                (lease, table.promised.get(&ino).map(|p| p.session).filter(|&session| session != caller))
            };
            match (lease, promised) {
                // There may be another one.
                (Some(lease), _) => self.recall(&lease).await,
                // Somebody has its number: it may have been made, and that not run yet.
                (None, Some(session)) => {
                    self.drains.drain(Some(session)).await;
                    let table = self.table.lock();
                    if table.promised.contains_key(&ino) || table.on(ino).next().is_none() {
                        return;
                    }
                }
                (None, None) => return,
            }
        }
    }

    /// Makes a lease known. `None`: the directory or the place is taken, or others came there not long ago.
    fn begin_lease(&self, client: &Client, dir: Ino, place: usize) -> Option<Arc<Lease>> {
        let mut table = self.table.lock();
        // Everything that this session had posted is done: this call was run behind it.
        let before = table.leases.values().find(|l| l.session == client.session && l.place == place).cloned();
        if let Some(before) = before {
            before.revoke();
            self.forget(&mut table, &before);
        }
        let shared = table.shared.get(&dir).is_some_and(|shared| Instant::now() < shared.until);
        // One that somebody else has made stands under his lease until this client comes to it.
        let is_lent = table.dirs.contains_key(&dir) || table.on(dir).any(|l| l.session != client.session);
        if shared || is_lent || table.dirs.len() >= self.directories_max {
            return None;
        }
        let lease = self.add(&mut table, client, Some(dir), place);
        table.dirs.insert(dir, lease.number);
        self.fs.lease_begins();
        Some(lease)
    }

    fn add(&self, table: &mut Table, client: &Client, dir: Option<Ino>, place: usize) -> Arc<Lease> {
        let lease = Arc::new(Lease {
            dir,
            session: client.session,
            place,
            number: self.next.fetch_add(1, Ordering::Relaxed),
            region: client.region.clone(),
            since: Time::now(),
            room: AtomicU64::new(0),
            ending: AtomicBool::new(false),
        });
        table.leases.insert(lease.number, lease.clone());
        lease
    }

    /// Gives a lease room for data, so many pages or fewer; how many it has then.
    fn set_room_aside(&self, table: &mut Table, lease: &Lease, most: u64) -> u64 {
        let have = lease.room.load(Ordering::Relaxed);
        let most = most.saturating_sub(have).min(ROOM_ALL.saturating_sub(table.room));
        let more = self.fs.inner().set_room_aside(most).unwrap_or(0);
        table.room += more;
        lease.room.store(have + more, Ordering::Relaxed);
        have + more
    }

    /// What the client must know, if nobody else has to do with the directory.
    async fn known(&self, client: &Client, dir: Ino) -> Option<(Attr, Vec<Vec<u8>>)> {
        let engine = self.fs.inner();
        // Calls that begin from now on see the lease. One that changes names and has not seen it is counted; what others keep, they must ask for again.
        if self.fs.is_changing(dir)
            || self.fs.keeps(dir)
            || !self.fs.changed_now(&Change::Attr { ino: dir })
            || self.fs.is_changing(dir)
        {
            return None;
        }
        let attr = engine.getattr(dir, None).await.ok()?;
        let fits = attr.kind == FileType::Directory && attr.nlink > 0 && attr.perm & 0o1000 == 0;
        if !fits || fs::perm::check(&client.cred, &attr, Access::WRITE | Access::EXEC).is_err() {
            return None;
        }
        let names = engine.names(dir, NAMES_MAX).ok()?;
        let bytes: usize = names.iter().map(|name| name.len() + 1).sum();
        (bytes <= NAME_BYTES_MAX).then_some((attr, names))
    }
}

impl<F: FileSystem> Making for Directories<F> {
    fn grant<'a>(
        &'a self,
        client: &'a Client,
        dir: Ino,
        place: usize,
    ) -> Pin<Box<dyn Future<Output = Result<Option<Granted>>> + Send + 'a>> {
        Box::pin(async move {
            if place >= DIRECTORIES {
                return Err(Error::Invalid("no such lease"));
            }
            let Some(lease) = self.begin_lease(client, dir, place) else { return Ok(None) };
            let known = self.known(client, dir).await;
            let mut table = self.table.lock();
            if let Some((attr, names)) = known.filter(|_| !lease.ending.load(Ordering::SeqCst)) {
                client.region.directory(place).store(lease.number, Ordering::SeqCst);
                fence(Ordering::SeqCst);
                // Whoever ends it at this moment has looked at the word before, or sees it.
                if !lease.ending.load(Ordering::SeqCst) {
                    return Ok(Some(Granted { number: lease.number, attr, names }));
                }
                lease.revoke();
            }
            self.forget(&mut table, &lease);
            Ok(None)
        })
    }

    fn promise(&self, session: u64, most: usize) -> Vec<Promise> {
        let mut table = self.table.lock();
        let room = PROMISES_MAX.saturating_sub(table.promised_to(session));
        let room = room.min(PROMISES_ALL.saturating_sub(table.promised.len()));
        let all = self.fs.inner().promise(most.min(room)).unwrap_or_default();
        for &promise in &all {
            self.is_gone(&mut table, promise.ino);
            table.promised.insert(promise.ino, Promised { session, promise, begun: false });
        }
        all
    }

    fn begin(&self, session: u64, ino: Ino, lease: (Ino, u64), time: Time) -> Result<(Promise, Time)> {
        let mut table = self.table.lock();
        let since = table.admits(session, lease).map(|lease| lease.since);
        let promised = table.promised.get_mut(&ino).filter(|p| p.session == session && !p.begun);
        let promised = promised.ok_or(Error::Stale)?;
        let promise = promised.promise;
        if let Some(since) = since {
            promised.begun = true;
            return Ok((promise, time.max(since).min(Time::now())));
        }
        table.promised.remove(&ino);
        drop(table);
        self.fs.inner().give_back(&[promise]);
        Err(Error::Stale)
    }

    fn admits(&self, session: u64, lease: (Ino, u64)) -> bool {
        self.table.lock().admits(session, lease).is_some()
    }

    fn room(&self, session: u64, number: u64) -> u64 {
        let mut table = self.table.lock();
        let lease = table.of(session, number).cloned();
        lease.map_or(0, |lease| self.set_room_aside(&mut table, &lease, ROOM_MAX))
    }

    fn spend(&self, session: u64, file: Ino, number: u64, pages: u64) -> Result<()> {
        let mut table = self.table.lock();
        let under = table.made.get(file).or_else(|| table.new.of(file));
        let lease = under.filter(|&under| under == number).and_then(|number| table.of(session, number));
        let lease = lease.ok_or(Error::Stale)?;
        let left = lease.room.load(Ordering::Relaxed).checked_sub(pages).ok_or(Error::Stale)?;
        lease.room.store(left, Ordering::Relaxed);
        table.room -= pages;
        Ok(())
    }

    fn end(&self, promise: Promise, lease: (Ino, u64), result: &Result<Attr>) {
        let mut table = self.table.lock();
        table.promised.remove(&promise.ino);
        match result {
            Ok(_) => table.made.insert(promise.ino, lease.1),
            Err(e) => {
                drop(table);
                self.fs.inner().give_back(&[promise]);
                self.failed(e);
            }
        }
    }

    fn removed(&self, ino: Ino) {
        self.table.lock().made.remove(ino);
    }

    fn removed_dir(&self, session: u64, dir: Ino) {
        let mut table = self.table.lock();
        table.made.remove(dir);
        let lease = table.on(dir).find(|lease| lease.session == session).cloned();
        if let Some(lease) = lease {
            lease.revoke();
            self.forget(&mut table, &lease);
        }
    }

    fn failed(&self, error: &Error) {
        // What a client does wrong is answered to nobody else. That too many files are open is not its fault (`Watcher::undeclared`).
        if matches!(error, Error::Media(_) | Error::Corrupt(_) | Error::TooManyOpen) {
            tracing::error!("a change that was acknowledged is lost: {error}");
            self.lost.store(true, Ordering::SeqCst);
        }
    }

    fn revoke(&self, session: Option<u64>) {
        let mut table = self.table.lock();
        if session.is_none() {
            self.end_files(&mut table);
        }
        let which = |lease: &&Arc<Lease>| session.is_none_or(|session| lease.session == session);
        table.leases.values().filter(which).for_each(|lease| lease.revoke());
    }

    fn part(&self, session: u64) {
        let mut table = self.table.lock();
        let leases: Vec<_> = table.leases.values().filter(|l| l.session == session).cloned().collect();
        leases.iter().for_each(|lease| self.forget(&mut table, lease));
        let left: Vec<Promise> =
            table.promised.values().filter(|p| p.session == session && !p.begun).map(|p| p.promise).collect();
        for promise in &left {
            table.promised.remove(&promise.ino);
        }
        drop(table);
        self.fs.inner().give_back(&left);
    }
}

impl<F: FileSystem> Lender for Directories<F> {
    fn lends(&self, ino: Ino, caller: Caller) -> bool {
        self.table.lock().lends(ino, caller)
    }

    fn may_lend(&self, ino: Ino, caller: Caller) -> bool {
        self.table.try_lock().is_none_or(|table| table.lends(ino, caller))
    }

    fn lends_directories(&self) -> bool {
        !self.table.lock().dirs.is_empty()
    }

    fn drain(&self) -> Settling<'_> {
        Box::pin(async {
            self.drains.drain(None).await;
            Ok(())
        })
    }

    fn settle(&self, file: Option<(Ino, Call)>, caller: Caller) -> Settling<'_> {
        Box::pin(async move {
            match file {
                // That tells nobody anything; and it is posted one way, and must not wait for what others have posted.
                Some((_, Call::Close(_))) => {}
                Some((ino, _)) => self.settle_inode(ino, caller).await,
                None => {
                    self.drains.drain(None).await;
                    if self.lost.swap(false, Ordering::SeqCst) {
                        let text = "changes that were acknowledged could not be made".into();
                        return Err(Error::from_errno(libc::EIO, text));
                    }
                }
            }
            Ok(())
        })
    }
}

//! New files that a session makes by messages, as others may make names in the directory too: nobody else knows such a file when it is made, so its maker posts
//! what it writes to it, and that it is closed, as in a directory of its own.
//!
//! There is one lease for all files of a session that it has made so and not closed since. Which inode one will be is known before it is made (out of a stock of
//! promised ones): whoever finds the name finds the lease. He ends it, for all of these files; the next file that the session makes stands under
//! another one. So it lasts where files are written before others look at them. Closed files are nobody's.
//!
//! A file that is there already comes under that lease when the session writes to it by a message, wants that, and is the only one who has it open: databases have
//! files open for long, of which one program comes to one now and then. As with every lease, it is first known that the file is lent, and then looked for who did not
//! know it: what others keep of the file they must ask for again, and while somebody changes it, it is not lent.

use super::*;
use foldhash::fast::FixedState;
use format::shared::NEW_FILES;
use fs::Handle;
use smallvec::{SmallVec, smallvec};
use std::collections::HashMap;

/// Inodes that are promised at a time.
const STOCK: usize = 32;
/// Handles of one file through which something may be posted.
const HANDLES_MAX: usize = 256;
/// Pages of room that a lease has at first.
const ROOM: u64 = 256;

/// A file is being lent: the number of the lease, and its pages of room for data, or 0 if the client has been told of it before; `None`: it is not lent.
type Lends<'a> = Pin<Box<dyn Future<Output = Option<(u64, u64)>> + Send + 'a>>;

/// What the calls of a client can want of its lease on new files.
pub(crate) trait MakingFiles: Send + Sync {
    /// A file that a session is about to make by a message, under its lease. `None`: as an ordinary one.
    fn new_file<'a>(&'a self, client: &Client) -> Option<NewFile<'a>>;

    /// What was promised for such a file was not made.
    fn not_made(&self, promise: Promise);

    /// Lends a file to the session that has just written to it through this handle, if it is nobody else's.
    fn lend<'a>(&'a self, client: &'a Client, file: Ino, handle: Handle) -> Lends<'a>;

    /// A client closes a file.
    fn closed(&self, file: Ino, handle: Handle);
}

/// A file that is about to be made. If it is not, dropping this forgets it.
pub(crate) struct NewFile<'a> {
    making: &'a dyn MakingFiles,
    /// Until it is made.
    pub promise: Option<Promise>,
    pub handle: Handle,
    /// The lease: its number, and pages of room for data.
    pub lease: (u64, u64),
}

impl Drop for NewFile<'_> {
    fn drop(&mut self) {
        if let Some(promise) = self.promise.take() {
            self.making.not_made(promise);
        }
    }
}

/// The lease of a session, and files under it.
struct Own {
    number: u64,
    files: usize,
}

struct File {
    session: u64,
    number: u64,
    /// With which it was made or lent, and others of the session that were told of that: as long as one of them is open something may be posted.
    handles: SmallVec<[Handle; 1]>,
    /// Nobody else keeps anything of it.
    told: bool,
}

impl File {
    /// Whether something may be posted through this handle from now on.
    fn is_told_to(&mut self, handle: Handle) -> bool {
        let is_known = self.handles.contains(&handle);
        let may = self.told && (is_known || self.handles.len() < HANDLES_MAX);
        if may && !is_known {
            self.handles.push(handle);
        }
        may
    }
}

#[derive(Default)]
pub(super) struct NewFiles {
    /// By session.
    leases: HashMap<u64, Own, FixedState>,
    files: HashMap<Ino, File, FixedState>,
    stock: Vec<Promise>,
    /// No more are made.
    over: bool,
}

impl NewFiles {
    /// The number of the lease under which a file was made.
    pub fn of(&self, file: Ino) -> Option<u64> {
        self.files.get(&file).map(|file| file.number)
    }

    /// Whether there was such a file, and it was the last one under its lease.
    fn remove(&mut self, file: Ino) -> bool {
        let Some(File { session, number, .. }) = self.files.remove(&file) else { return false };
        let own = self.leases.get_mut(&session).filter(|own| own.number == number);
        own.is_some_and(|own| {
            own.files -= 1;
            own.files == 0
        })
    }
}

impl<F: FileSystem> MakingFiles for Directories<F> {
    fn new_file<'a>(&'a self, client: &Client) -> Option<NewFile<'a>> {
        let mut table = self.table.lock();
        let table = &mut *table;
        let lease = self.own_lease(table, client.session)?;
        if table.new.stock.is_empty() {
            let stock = self.fs.inner().promise(STOCK).unwrap_or_default();
            stock.iter().for_each(|promise| self.is_gone(table, promise.ino));
            table.new.stock = stock;
        }
        let promise = table.new.stock.pop()?;
        let lease = lease.unwrap_or_else(|| self.begin_new(table, client));
        self.add_new(table, &lease, promise.ino, (promise.handle, true));
        let lease = (lease.number, lease.room.load(Ordering::Relaxed));
        Some(NewFile { making: self, promise: Some(promise), handle: promise.handle, lease })
    }

    fn lend<'a>(&'a self, client: &'a Client, file: Ino, handle: Handle) -> Lends<'a> {
        Box::pin(async move {
            {
                let mut table = self.table.lock();
                // One that it has made under a lease that lasts, and opened again.
                let own = table.on(file).find(|lease| lease.session == client.session).map(|own| own.number);
                if let Some(number) = own {
                    let known = table.new.files.get_mut(&file);
                    return known.is_none_or(|known| known.is_told_to(handle)).then_some((number, 0));
                }
            }
            // Others who have it open would end the lease soon. That the client has windows of it is no obstacle.
            let is_lent = self.fs.is_lent(file) && !client.leases.lends_to(client.session, file);
            if self.fs.openers(file) > 1 || is_lent {
                return None;
            }
            let lease = {
                let mut table = self.table.lock();
                let table = &mut *table;
                if table.on(file).next().is_some() || table.promised.contains_key(&file) {
                    return None;
                }
                let lease = self.own_lease(table, client.session)?;
                let lease = lease.unwrap_or_else(|| self.begin_new(table, client));
                if lease.room.load(Ordering::Relaxed) == 0 && self.set_room_aside(table, &lease, ROOM) == 0 {
                    return None;
                }
                self.add_new(table, &lease, file, (handle, false));
                lease
            };
            // Calls that begin from now on see the lease. What others keep of the file, they must ask for again. Should this be given up here, nobody posts anything to
            // the file, and the lease on it ends when others come to it or it is closed.
            self.fs.changed(&Change::Data { ino: file, start: 0, end: u64::MAX }).await;
            let mut table = self.table.lock();
            let is_this = |f: &&mut File| f.number == lease.number && f.handles.contains(&handle);
            // Somebody has come to it meanwhile, or has closed it.
            let lent = table.new.files.get_mut(&file).filter(is_this)?;
            // A call that changes the file and has not seen the lease is counted still.
            lent.told = !self.fs.is_changing(file);
            if !lent.told {
                self.is_gone(&mut table, file);
                return None;
            }
            Some((lease.number, lease.room.load(Ordering::Relaxed)))
        })
    }

    fn not_made(&self, promise: Promise) {
        let mut table = self.table.lock();
        self.is_gone(&mut table, promise.ino);
        match table.new.over {
            true => self.fs.inner().give_back(&[promise]),
            false => table.new.stock.push(promise),
        }
    }

    fn closed(&self, file: Ino, handle: Handle) {
        let mut table = self.table.lock();
        let Some(known) = table.new.files.get_mut(&file) else { return };
        let Some(at) = known.handles.iter().position(|&known| known == handle) else { return };
        known.handles.swap_remove(at);
        let number = known.number;
        if !known.handles.is_empty() || !table.new.remove(file) {
            return;
        }
        self.fs.lease_ends();
        // Nothing is posted under it now. Where many have room, who needs none leaves his to others.
        if table.room > ROOM_ALL / 2
            && let Some(lease) = table.leases.get(&number).cloned()
        {
            lease.revoke();
            self.forget(&mut table, &lease);
        }
    }
}

impl<F: FileSystem> Directories<F> {
    /// The lease of a session on its new files, if it has one. `None`: no more files come under it.
    fn own_lease(&self, table: &Table, session: u64) -> Option<Option<Arc<Lease>>> {
        if self.new_files_max == 0 || table.new.over {
            return None;
        }
        match table.new.leases.get(&session) {
            Some(own) if own.files >= self.new_files_max => None,
            Some(own) => {
                table.leases.get(&own.number).filter(|l| !l.ending.load(Ordering::SeqCst)).cloned().map(Some)
            }
            None => Some(None),
        }
    }

    /// Begins such a lease.
    fn begin_new(&self, table: &mut Table, client: &Client) -> Arc<Lease> {
        let lease = self.add(table, client, None, NEW_FILES);
        self.set_room_aside(table, &lease, ROOM);
        table.new.leases.insert(client.session, Own { number: lease.number, files: 0 });
        client.region.directory(NEW_FILES).store(lease.number, Ordering::SeqCst);
        lease
    }

    /// A file comes under it.
    fn add_new(&self, table: &mut Table, lease: &Lease, file: Ino, (handle, told): (Handle, bool)) {
        let (session, number) = (lease.session, lease.number);
        table.new.files.insert(file, File { session, number, handles: smallvec![handle], told });
        if let Some(own) = table.new.leases.get_mut(&session) {
            own.files += 1;
            if own.files == 1 {
                self.fs.lease_begins();
            }
        }
    }

    /// What has this number stands under no lease any more.
    pub(super) fn is_gone(&self, table: &mut Table, ino: Ino) {
        table.made.remove(ino);
        if table.new.remove(ino) {
            self.fs.lease_ends();
        }
    }

    /// A lease on new files is over.
    pub(super) fn forget_new(&self, table: &mut Table, lease: &Lease) {
        let own = table.new.leases.remove(&lease.session);
        if own.is_some_and(|own| own.files > 0) {
            table.new.files.retain(|_, file| file.number != lease.number);
            self.fs.lease_ends();
        }
    }

    /// No more files are made.
    pub(super) fn end_files(&self, table: &mut Table) {
        table.new.over = true;
        self.fs.inner().give_back(&std::mem::take(&mut table.new.stock));
    }
}

//! What a connection was promised: order, or durability at each commit.
//!
//! SQLite syncs for two reasons. Within a transaction (journal before database, database before the journal goes) only the order counts. At its
//! end the application wants to know that it is there. The first is a barrier; it notes that a wait is owed. The second comes
//! as SQLITE_FCNTL_COMMIT_PHASETWO, once for each transaction in every journal mode and after the journal is gone, and pays.
//!
//! Some syncs wait themselves. With full durability: that of a database in WAL mode, which ends a checkpoint and is not followed by that. In both modes, those of a
//! transaction over several databases, which may be on several file systems: what one of them has in order says nothing about the others.
//! - The super-journal is durable before a journal names it.
//! - Its removal commits all databases at once, so before it each has its journal and its pages durable. SQLite gives the super-journal's name
//!   before it syncs the database (SQLITE_FCNTL_SYNC in `sqlite3PagerSync`). The journal is on the same volume and was synced before.
//! - Who rolls such a database back, and is the last, removes the super-journal too. If the pages that he brought back were lost then, the journal would be
//!   there again, and be ignored. Nothing is named before this sync, but SQLite has just asked whether the super-journal is there
//!   (`pager_playback`).
//!
//! The ends of the journals, after the super-journal's, need no wait: one that names a super-journal that is gone is ignored.

use crate::abi;
use fs::client::BlockingFile;
use share::Remote;
use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

thread_local! {
    /// SQLite asked in this thread for a super-journal, and has neither opened it nor synced a database since.
    static LOOKED_FOR: Cell<bool> = const { Cell::new(false) };
}

/// SQLite asks whether a super-journal is there (`true`), or opens it. From there to the sync a rollback stays in one thread and does nothing else.
pub(crate) fn super_journal_is_looked_for(so: bool) {
    LOOKED_FOR.set(so);
}

/// What the files of one connection to one database share.
#[derive(Debug, Default)]
pub(crate) struct Commit {
    /// Transactions are ordered and not waited for.
    pub ordered: AtomicBool,
    /// A sync was answered with a barrier, and the wait for it is still to come.
    owed: AtomicBool,
    /// The next sync of the database ends its part of a transaction over several, or of the rollback of one.
    of_several: AtomicBool,
    /// WALs that are open.
    pub wals: AtomicUsize,
}

impl Commit {
    fn is_ordered(&self) -> bool {
        self.ordered.load(Ordering::Relaxed)
    }

    /// SQLITE_FCNTL_SYNC: the database is synced next; `named`: its transaction has a super-journal.
    pub fn announce(&self, named: bool) {
        self.of_several.store(LOOKED_FOR.take() || named, Ordering::Relaxed);
    }

    /// A sync of one of the files. `kind`: one of SQLite's kinds of files.
    pub fn sync(&self, file: &BlockingFile<Remote>, kind: c_int) -> fs::Result<()> {
        let waits = match kind {
            abi::OPEN_SUPER_JOURNAL => true,
            abi::OPEN_MAIN_DB => {
                let ends_checkpoint = self.wals.load(Ordering::Relaxed) > 0;
                self.of_several.swap(false, Ordering::Relaxed) || (ends_checkpoint && !self.is_ordered())
            }
            _ => false,
        };
        if waits {
            file.fdatasync()?;
            self.owed.store(false, Ordering::Relaxed);
            return Ok(());
        }
        if !self.is_ordered() {
            self.owed.store(true, Ordering::Relaxed);
        }
        file.fdatabarrier()
    }

    /// The transaction is committed, its journal gone: waits if that is owed. `file`: the database.
    pub fn committed(&self, file: &BlockingFile<Remote>) -> fs::Result<()> {
        if !self.owed.swap(false, Ordering::Relaxed) || self.is_ordered() {
            return Ok(());
        }
        let done = file.fsync();
        if done.is_err() {
            self.owed.store(true, Ordering::Relaxed);
        }
        done
    }

    /// The name of what is promised.
    pub fn name(&self) -> &'static str {
        if self.is_ordered() { "ordered" } else { "full" }
    }

    /// Sets it by name; false: there is no such thing.
    pub fn set(&self, name: &[u8]) -> bool {
        let ordered = match name.to_ascii_lowercase().as_slice() {
            b"ordered" => true,
            b"full" => false,
            _ => return false,
        };
        self.ordered.store(ordered, Ordering::Relaxed);
        true
    }
}

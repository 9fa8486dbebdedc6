//! What a connection was promised: order, or durability at each commit.
//!
//! SQLite syncs for two reasons. Within a transaction (journal before database, database before the journal goes) only the order counts. At its
//! end the application wants to know that it is there. The first is a barrier; it notes that a wait is owed. The second comes
//! as SQLITE_FCNTL_COMMIT_PHASETWO, once for each transaction in every journal mode and after the journal is gone, and pays.
//!
//! Three syncs are not followed by it, and wait themselves: those of a super-journal, whose removal is the commit point of several databases, perhaps
//! on several file systems, and is durable in both modes; and, with full durability, that of a database in WAL mode, which ends a
//! checkpoint.

use crate::abi;
use fs::client::BlockingFile;
use share::Remote;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// What the files of one connection to one database share.
#[derive(Debug, Default)]
pub(crate) struct Commit {
    /// Transactions are ordered and not waited for.
    pub ordered: AtomicBool,
    /// A sync was answered with a barrier, and the wait for it is still to come.
    owed: AtomicBool,
    /// WALs that are open.
    pub wals: AtomicUsize,
}

impl Commit {
    fn is_ordered(&self) -> bool {
        self.ordered.load(Ordering::Relaxed)
    }

    /// A sync of one of the files. `kind`: one of SQLite's kinds of files.
    pub fn sync(&self, file: &BlockingFile<Remote>, kind: c_int) -> fs::Result<()> {
        let ends_checkpoint = kind == abi::OPEN_MAIN_DB && self.wals.load(Ordering::Relaxed) > 0;
        if kind == abi::OPEN_SUPER_JOURNAL || (ends_checkpoint && !self.is_ordered()) {
            file.fdatasync()?;
            if ends_checkpoint {
                self.owed.store(false, Ordering::Relaxed);
            }
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

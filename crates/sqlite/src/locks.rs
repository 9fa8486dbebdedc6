//! SQLite's lock protocol for databases, as its VFS for Unix has it (sqlite3 os_unix.c, "Posix Advisory Locking"): the same bytes, as record locks of
//! the session, so that both exclude each other. Each connection is an owner of its own: other connections of the process are others, and
//! closing one of them takes nothing from the rest, which is what makes POSIX locks hard to use within a process.

use crate::abi::*;
use fs::client::BlockingFile;
use fs::{Error, LockKind};
use share::Remote;
use std::ffi::c_int;

const PENDING_BYTE: u64 = 0x4000_0000;
const RESERVED_BYTE: u64 = PENDING_BYTE + 1;
const SHARED_FIRST: u64 = PENDING_BYTE + 2;
const SHARED_SIZE: u64 = 510;

type Db = BlockingFile<Remote>;

/// Tries to get a lock, never waiting. `Ok(false)`: somebody else has one in the way.
pub(crate) fn try_lock(file: &Db, kind: LockKind, at: u64, len: u64) -> fs::Result<bool> {
    match file.lock_range(kind, at, len, false) {
        Ok(()) => Ok(true),
        Err(Error::WouldBlock) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Raises the lock from `level` to `want`. `Ok(false)`: somebody is in the way; `level` says what is held in any case.
pub(crate) fn lock(file: &Db, level: &mut c_int, want: c_int) -> fs::Result<bool> {
    if *level >= want {
        return Ok(true);
    }
    if want == LOCK_SHARED {
        // Who has the pending lock lets nobody new in.
        if !try_lock(file, LockKind::Shared, PENDING_BYTE, 1)? {
            return Ok(false);
        }
        let got = try_lock(file, LockKind::Shared, SHARED_FIRST, SHARED_SIZE);
        file.unlock_range(PENDING_BYTE, 1)?;
        if got? {
            *level = LOCK_SHARED;
            return Ok(true);
        }
        return Ok(false);
    }
    if want == LOCK_RESERVED {
        if !try_lock(file, LockKind::Exclusive, RESERVED_BYTE, 1)? {
            return Ok(false);
        }
        *level = LOCK_RESERVED;
        return Ok(true);
    }
    if *level < LOCK_PENDING {
        if !try_lock(file, LockKind::Exclusive, PENDING_BYTE, 1)? {
            return Ok(false);
        }
        *level = LOCK_PENDING;
    }
    if want == LOCK_EXCLUSIVE {
        if !try_lock(file, LockKind::Exclusive, SHARED_FIRST, SHARED_SIZE)? {
            return Ok(false);
        }
        *level = LOCK_EXCLUSIVE;
    }
    Ok(true)
}

/// Lowers the lock to `want`, which is SHARED or NONE.
pub(crate) fn unlock(file: &Db, level: &mut c_int, want: c_int) -> fs::Result<()> {
    if *level <= want {
        return Ok(());
    }
    if want == LOCK_SHARED {
        if *level == LOCK_EXCLUSIVE && !try_lock(file, LockKind::Shared, SHARED_FIRST, SHARED_SIZE)? {
            return Err(Error::WouldBlock);
        }
        file.unlock_range(PENDING_BYTE, 2)?;
    } else {
        file.unlock_range(PENDING_BYTE, 2 + SHARED_SIZE)?;
    }
    *level = want;
    Ok(())
}

/// Whether anybody has reserved the database.
pub(crate) fn is_reserved(file: &Db, level: c_int) -> fs::Result<bool> {
    Ok(level > LOCK_SHARED || file.test_range(LockKind::Exclusive, RESERVED_BYTE, 1)?.is_some())
}

//! A VFS for SQLite: databases on Freehold volumes, used in sessions, past the kernel.
//!
//! ```text
//! sqlite3                               any program with SQLite 3.32 or newer
//! .load libfreehold_sqlite              the VFS "freehold" becomes the default one
//! .open file:/mnt/my.db?durability=ordered
//! ```
//!
//! Paths below a mounted volume that offers sessions are served here; all others by the VFS that was the default before, wholly. What a
//! transaction costs and what is promised, for each journal mode, says docs/SQLITE.md. In short: the syncs within a transaction, which are there for
//! order alone, become barriers; the wait for durability comes once, at the commit point, or with `durability=ordered` never.
//!
//! Invariants:
//! - With full durability, a commit that asked for a sync returns success only after an fsync that was begun after the last change of the
//!   transaction, the removal of its journal included; of that of several databases, the removal of the super-journal (`commit`).
//! - With either durability, of several databases in a transaction all are durable before the super-journal is removed, and what a rollback brought
//!   back in one of them is too (`commit`).
//! - Whoever had a file open in a session that ended uses no other session: its locks are gone (`volumes`). All its calls fail.
//! - Locks are those of SQLite's own VFS for Unix, on the same bytes, and its `-shm` file is the same too, mapped through the kernel's
//!   mount: connections with either VFS exclude each other as they should (`locks`, `shm`).
//!
//! Tested in `tests/vfs.rs` (in-process), through power cuts in `tests/power.rs` and `tests/several.rs`, and, with programs, mounts and killed servers, in `freehold/tests/sqlite.rs`.

pub mod abi;
mod commit;
mod file;
mod locks;
mod shm;
mod vfs;
mod volumes;

use std::ffi::{c_char, c_int, c_void};

/// Makes the VFS "freehold" known to the SQLite in this process, as the default one if `default`. Once is enough; a second call
/// changes nothing but which one is the default. Returns SQLite's result code.
pub fn register(host: &abi::Host, default: bool) -> Result<(), c_int> {
    vfs::register(host, default)
}

/// [`register()`] with the functions of an ffi module (`rusqlite::ffi`, `libsqlite3_sys`).
///
/// # Safety
/// It expands to `unsafe` transmutations of SQLite's functions to the types of [`abi`], which are the same in C.
#[macro_export]
macro_rules! register {
    ($($ffi:ident)::+, $default:expr) => {{
        // SAFETY: the same functions, with the types of `abi` in the place of the generated ones.
        let host = unsafe {
            $crate::abi::Host {
                libversion_number: std::mem::transmute::<*const (), _>($($ffi)::+::sqlite3_libversion_number as *const ()),
                malloc64: std::mem::transmute::<*const (), _>($($ffi)::+::sqlite3_malloc64 as *const ()),
                vfs_find: std::mem::transmute::<*const (), _>($($ffi)::+::sqlite3_vfs_find as *const ()),
                vfs_register: std::mem::transmute::<*const (), _>($($ffi)::+::sqlite3_vfs_register as *const ()),
                uri_parameter: std::mem::transmute::<*const (), _>($($ffi)::+::sqlite3_uri_parameter as *const ()),
                database_file_object:
                    std::mem::transmute::<*const (), _>($($ffi)::+::sqlite3_database_file_object as *const ()),
            }
        };
        $crate::register(&host, $default)
    }};
}

/// Entry point of the loadable extension, and for C programs that are linked with this library: give it to `sqlite3_auto_extension`, and
/// open a connection. The VFS becomes the default one and stays for the life of the process.
///
/// # Safety
/// Called by SQLite with its table of functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_freeholdsqlite_init(
    _db: *mut c_void,
    message: *mut *mut c_char,
    table: *const *const c_void,
) -> c_int {
    if table.is_null() {
        return abi::ERROR;
    }
    // SAFETY: as the caller says.
    let Some(host) = (unsafe { abi::Host::from_table(table) }) else {
        return abi::ERROR;
    };
    match register(&host, true) {
        Ok(()) => abi::OK_LOAD_PERMANENTLY,
        Err(code) => {
            if !message.is_null() {
                // SAFETY: SQLite frees it.
                unsafe { *message = vfs::text(&host, "freehold: there is no default VFS to build on") };
            }
            code
        }
    }
}

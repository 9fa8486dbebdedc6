//! SQLite's C interface, as far as a VFS needs it (sqlite3.h and sqlite3ext.h). Written out here, because a loadable extension must
//! call the SQLite that loads it and must not be linked with one; the layouts are checked against the real ones in
//! tests/vfs.rs.

#![allow(missing_docs, reason = "the names are SQLite's, and are explained in its headers")]

use std::ffi::{c_char, c_int, c_void};

/// `sqlite3_file`: what SQLite allocates for an open file begins with this.
#[repr(C)]
pub struct File {
    pub methods: *const IoMethods,
}

type Fd = *mut File;
type V = *mut Vfs;

#[repr(C)]
pub struct IoMethods {
    pub version: c_int,
    pub close: unsafe extern "C" fn(Fd) -> c_int,
    pub read: unsafe extern "C" fn(Fd, *mut c_void, c_int, i64) -> c_int,
    pub write: unsafe extern "C" fn(Fd, *const c_void, c_int, i64) -> c_int,
    pub truncate: unsafe extern "C" fn(Fd, i64) -> c_int,
    pub sync: unsafe extern "C" fn(Fd, c_int) -> c_int,
    pub file_size: unsafe extern "C" fn(Fd, *mut i64) -> c_int,
    pub lock: unsafe extern "C" fn(Fd, c_int) -> c_int,
    pub unlock: unsafe extern "C" fn(Fd, c_int) -> c_int,
    pub check_reserved_lock: unsafe extern "C" fn(Fd, *mut c_int) -> c_int,
    pub file_control: unsafe extern "C" fn(Fd, c_int, *mut c_void) -> c_int,
    pub sector_size: unsafe extern "C" fn(Fd) -> c_int,
    pub device_characteristics: unsafe extern "C" fn(Fd) -> c_int,
    pub shm_map: unsafe extern "C" fn(Fd, c_int, c_int, c_int, *mut *mut c_void) -> c_int,
    pub shm_lock: unsafe extern "C" fn(Fd, c_int, c_int, c_int) -> c_int,
    pub shm_barrier: unsafe extern "C" fn(Fd),
    pub shm_unmap: unsafe extern "C" fn(Fd, c_int) -> c_int,
}

#[repr(C)]
pub struct Vfs {
    pub version: c_int,
    pub file_bytes: c_int,
    pub path_max: c_int,
    pub next: *mut Vfs,
    pub name: *const c_char,
    pub app_data: *mut c_void,
    pub open: unsafe extern "C" fn(V, *const c_char, Fd, c_int, *mut c_int) -> c_int,
    pub delete: unsafe extern "C" fn(V, *const c_char, c_int) -> c_int,
    pub access: unsafe extern "C" fn(V, *const c_char, c_int, *mut c_int) -> c_int,
    pub full_pathname: unsafe extern "C" fn(V, *const c_char, c_int, *mut c_char) -> c_int,
    pub dl_open: Option<unsafe extern "C" fn(V, *const c_char) -> *mut c_void>,
    pub dl_error: Option<unsafe extern "C" fn(V, c_int, *mut c_char)>,
    pub dl_sym: Option<unsafe extern "C" fn(V, *mut c_void, *const c_char) -> *mut c_void>,
    pub dl_close: Option<unsafe extern "C" fn(V, *mut c_void)>,
    pub randomness: unsafe extern "C" fn(V, c_int, *mut c_char) -> c_int,
    pub sleep: unsafe extern "C" fn(V, c_int) -> c_int,
    pub current_time: unsafe extern "C" fn(V, *mut f64) -> c_int,
    pub get_last_error: unsafe extern "C" fn(V, c_int, *mut c_char) -> c_int,
    pub current_time_int64: Option<unsafe extern "C" fn(V, *mut i64) -> c_int>,
    pub set_system_call: *mut c_void,
    pub get_system_call: *mut c_void,
    pub next_system_call: *mut c_void,
}

/// The functions of the SQLite in this process that are used here.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Host {
    pub libversion_number: unsafe extern "C" fn() -> c_int,
    pub malloc64: unsafe extern "C" fn(u64) -> *mut c_void,
    pub vfs_find: unsafe extern "C" fn(*const c_char) -> *mut Vfs,
    pub vfs_register: unsafe extern "C" fn(*mut Vfs, c_int) -> c_int,
    pub uri_parameter: unsafe extern "C" fn(*const c_char, *const c_char) -> *const c_char,
    pub database_file_object: unsafe extern "C" fn(*const c_char) -> *mut File,
}

impl Host {
    /// From the table of functions that SQLite gives to extensions (`sqlite3_api_routines`). `None`: it is older than
    /// 3.32, and its table too short.
    ///
    /// # Safety
    /// It is the table.
    pub unsafe fn from_table(table: *const *const c_void) -> Option<Host> {
        // SAFETY: the table has had a function at these places since 3.8, and at the last since 3.32.
        unsafe {
            let at = |place: usize| table.add(place).read();
            let libversion_number =
                std::mem::transmute::<*const c_void, unsafe extern "C" fn() -> c_int>(at(67));
            if libversion_number() < VERSION_MIN {
                return None;
            }
            let places = [at(67), at(197), at(141), at(142), at(189), at(251)];
            if places.iter().any(|p| p.is_null()) {
                return None;
            }
            Some(std::mem::transmute::<[*const c_void; 6], Host>(places))
        }
    }
}

/// SQLite 3.32: the first that tells the database of a journal.
pub const VERSION_MIN: c_int = 3_032_000;

pub const OK: c_int = 0;
pub const ERROR: c_int = 1;
pub const OK_LOAD_PERMANENTLY: c_int = 256;
pub const BUSY: c_int = 5;
pub const IOERR: c_int = 10;
pub const NOTFOUND: c_int = 12;
pub const FULL: c_int = 13;
pub const CANTOPEN: c_int = 14;
pub const MISUSE: c_int = 21;
pub const READONLY_DIRECTORY: c_int = 1544;
pub const CANTOPEN_ISDIR: c_int = 526;
pub const CANTOPEN_SYMLINK: c_int = 1550;
pub const IOERR_READ: c_int = 266;
pub const IOERR_SHORT_READ: c_int = 522;
pub const IOERR_WRITE: c_int = 778;
pub const IOERR_FSYNC: c_int = 1034;
pub const IOERR_DIR_FSYNC: c_int = 1290;
pub const IOERR_TRUNCATE: c_int = 1546;
pub const IOERR_FSTAT: c_int = 1802;
pub const IOERR_UNLOCK: c_int = 2058;
pub const IOERR_DELETE: c_int = 2570;
pub const IOERR_ACCESS: c_int = 3338;
pub const IOERR_CHECKRESERVEDLOCK: c_int = 3594;
pub const IOERR_LOCK: c_int = 3850;
pub const IOERR_CLOSE: c_int = 4106;
pub const IOERR_SHMOPEN: c_int = 4618;
pub const IOERR_SHMSIZE: c_int = 4874;
pub const IOERR_SHMLOCK: c_int = 5130;
pub const IOERR_SHMMAP: c_int = 5386;
pub const IOERR_DELETE_NOENT: c_int = 5898;
pub const IOERR_COMMIT_ATOMIC: c_int = 7690;

pub const OPEN_READONLY: c_int = 1;
pub const OPEN_READWRITE: c_int = 2;
pub const OPEN_CREATE: c_int = 4;
pub const OPEN_DELETEONCLOSE: c_int = 8;
pub const OPEN_EXCLUSIVE: c_int = 0x10;
pub const OPEN_MAIN_DB: c_int = 0x100;
pub const OPEN_MAIN_JOURNAL: c_int = 0x800;
pub const OPEN_SUPER_JOURNAL: c_int = 0x4000;
pub const OPEN_WAL: c_int = 0x8_0000;
pub const OPEN_NOFOLLOW: c_int = 0x100_0000;

pub const ACCESS_EXISTS: c_int = 0;
pub const ACCESS_READWRITE: c_int = 1;

pub const LOCK_NONE: c_int = 0;
pub const LOCK_SHARED: c_int = 1;
pub const LOCK_RESERVED: c_int = 2;
pub const LOCK_PENDING: c_int = 3;
pub const LOCK_EXCLUSIVE: c_int = 4;

pub const SHM_UNLOCK: c_int = 1;
pub const SHM_SHARED: c_int = 4;

pub const IOCAP_POWERSAFE_OVERWRITE: c_int = 0x1000;
pub const IOCAP_BATCH_ATOMIC: c_int = 0x4000;

pub const FCNTL_LOCKSTATE: c_int = 1;
pub const FCNTL_LAST_ERRNO: c_int = 4;
pub const FCNTL_SIZE_HINT: c_int = 5;
pub const FCNTL_CHUNK_SIZE: c_int = 6;
pub const FCNTL_PERSIST_WAL: c_int = 10;
pub const FCNTL_VFSNAME: c_int = 12;
pub const FCNTL_POWERSAFE_OVERWRITE: c_int = 13;
pub const FCNTL_PRAGMA: c_int = 14;
pub const FCNTL_HAS_MOVED: c_int = 20;
pub const FCNTL_SYNC: c_int = 21;
pub const FCNTL_COMMIT_PHASETWO: c_int = 22;
pub const FCNTL_BEGIN_ATOMIC_WRITE: c_int = 31;
pub const FCNTL_COMMIT_ATOMIC_WRITE: c_int = 32;
pub const FCNTL_ROLLBACK_ATOMIC_WRITE: c_int = 33;

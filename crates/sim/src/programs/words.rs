//! Names of flags and errors in calls and answers.

use std::io;

const FLAGS: &[(&str, i32)] = &[
    ("0", 0),
    ("RDONLY", libc::O_RDONLY),
    ("WRONLY", libc::O_WRONLY),
    ("RDWR", libc::O_RDWR),
    ("CREAT", libc::O_CREAT),
    ("EXCL", libc::O_EXCL),
    ("TRUNC", libc::O_TRUNC),
    ("APPEND", libc::O_APPEND),
    ("DIRECTORY", libc::O_DIRECTORY),
    ("NOFOLLOW", libc::O_NOFOLLOW),
    ("PATH", libc::O_PATH),
    ("TMPFILE", libc::O_TMPFILE),
    ("CLOEXEC", libc::O_CLOEXEC),
    ("NONBLOCK", libc::O_NONBLOCK),
    ("DSYNC", libc::O_DSYNC),
    ("SYMLINK_NOFOLLOW", libc::AT_SYMLINK_NOFOLLOW),
    ("SYMLINK_FOLLOW", libc::AT_SYMLINK_FOLLOW),
    ("EMPTY_PATH", libc::AT_EMPTY_PATH),
    ("REMOVEDIR", libc::AT_REMOVEDIR),
    ("EACCESS", libc::AT_EACCESS),
    ("NOREPLACE", libc::RENAME_NOREPLACE as i32),
    ("EXCHANGE", libc::RENAME_EXCHANGE as i32),
    ("SET", libc::SEEK_SET),
    ("CUR", libc::SEEK_CUR),
    ("END", libc::SEEK_END),
    ("KEEP_SIZE", libc::FALLOC_FL_KEEP_SIZE),
    ("PUNCH_HOLE", libc::FALLOC_FL_PUNCH_HOLE),
    ("ZERO_RANGE", libc::FALLOC_FL_ZERO_RANGE),
    ("SH", libc::LOCK_SH),
    ("EX", libc::LOCK_EX),
    ("UN", libc::LOCK_UN),
    ("NB", libc::LOCK_NB),
    ("RDLCK", libc::F_RDLCK),
    ("WRLCK", libc::F_WRLCK),
    ("UNLCK", libc::F_UNLCK),
    ("SETLK", libc::F_SETLK),
    ("GETLK", libc::F_GETLK),
    ("OFD_SETLK", libc::F_OFD_SETLK),
    ("OFD_GETLK", libc::F_OFD_GETLK),
    ("XCREATE", libc::XATTR_CREATE),
    ("XREPLACE", libc::XATTR_REPLACE),
    ("RWF_APPEND", libc::RWF_APPEND),
    ("RWF_DSYNC", libc::RWF_DSYNC),
    ("RWF_NOWAIT", libc::RWF_NOWAIT),
    ("PROT_READ", libc::PROT_READ),
    ("PROT_WRITE", libc::PROT_WRITE),
    ("SHARED", libc::MAP_SHARED),
    ("PRIVATE", libc::MAP_PRIVATE),
];

/// The value of names with `+` between them; a number is itself.
pub fn flags(word: &str) -> i32 {
    let value = |name: &str| match FLAGS.iter().find(|(known, _)| *known == name) {
        Some(&(_, value)) => value,
        None => name.parse().unwrap_or_else(|_| panic!("a flag that there is: {name}")),
    };
    word.split('+').map(value).fold(0, |all, flag| all | flag)
}

/// An error by its name in C where the usual ones are concerned, else by its number.
pub fn error(e: &io::Error) -> String {
    let Some(number) = e.raw_os_error() else { return format!("error: {e}") };
    unsafe extern "C" {
        fn strerrorname_np(number: i32) -> *const std::ffi::c_char;
    }
    // SAFETY: a constant string, or null.
    let name = unsafe { strerrorname_np(number) };
    if name.is_null() {
        return format!("errno {number}");
    }
    // SAFETY: a constant string.
    unsafe { std::ffi::CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

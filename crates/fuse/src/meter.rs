//! Which class of calls a request of the kernel is counted in: its opcode. The classes are called as in sessions, so that both doors
//! can be put beside each other; what only FUSE has is called as in fuse.h.

/// The classes, by opcode.
pub const CLASSES: [&str; 53] = {
    use crate::abi::op::*;
    let names = [
        (LOOKUP, "lookup"),
        (FORGET, "forget"),
        (GETATTR, "getattr"),
        (SETATTR, "setattr"),
        (READLINK, "readlink"),
        (SYMLINK, "symlink"),
        (MKNOD, "mknod"),
        (MKDIR, "mkdir"),
        (UNLINK, "unlink"),
        (RMDIR, "rmdir"),
        (RENAME, "rename"),
        (LINK, "link"),
        (OPEN, "open"),
        (READ, "read"),
        (WRITE, "write"),
        (STATFS, "statfs"),
        (RELEASE, "release"),
        (FSYNC, "fsync"),
        (SETXATTR, "setxattr"),
        (GETXATTR, "getxattr"),
        (LISTXATTR, "listxattr"),
        (REMOVEXATTR, "removexattr"),
        (FLUSH, "flush"),
        (OPENDIR, "opendir"),
        (READDIR, "readdir"),
        (RELEASEDIR, "releasedir"),
        (FSYNCDIR, "fsyncdir"),
        (GETLK, "getlk"),
        (SETLK, "setlk"),
        (SETLKW, "setlkw"),
        (ACCESS, "access"),
        (CREATE, "create"),
        (INTERRUPT, "interrupt"),
        (DESTROY, "destroy"),
        (IOCTL, "ioctl"),
        (BATCH_FORGET, "batch_forget"),
        (FALLOCATE, "fallocate"),
        (READDIRPLUS, "readdirplus"),
        (RENAME2, "rename2"),
        (LSEEK, "seek"),
        (COPY_FILE_RANGE, "copy_range"),
        (SYNCFS, "sync"),
        (TMPFILE, "tmpfile"),
        (STATX, "statx"),
    ];
    let (mut all, mut i) = (["unknown"; 53], 0);
    while i < names.len() {
        all[names[i].0 as usize] = names[i].1;
        i += 1;
    }
    all
};

/// The class of a request.
pub fn class(opcode: u32) -> usize {
    Some(opcode as usize).filter(|&n| n < CLASSES.len()).unwrap_or(0)
}

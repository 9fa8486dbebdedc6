//! Ending a connection from the kernel's side. For each FUSE connection there is a file `abort` in a file system of its own (fusectl), which belongs to
//! the user who mounted it. It ends the connection wherever its mounts are: bound to other places, copied into other mount namespaces, or taken out of
//! sight while files are open. umount(2) by force does so for root alone, and needs a mount that can be named.
//!
//! Tested by `tests/mount/ends.rs`.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

/// Where systems have that file system.
const USUAL: &str = "/sys/fs/fuse/connections";

/// The right to end one FUSE connection.
#[derive(Debug)]
pub struct Connection(File);

impl Connection {
    /// The connection behind the mounts with this number (`major:minor`, as mountinfo shows it). Numbers are used again, and this is the one that has it now: who
    /// sees afterwards that the one that is meant is still there has got that.
    ///
    /// # Errors
    /// `NotFound` where there is none, or the file system of connections is not mounted and this process may not mount it; `PermissionDenied` for those
    /// who have not mounted it. `InvalidInput`: such a number is none of a FUSE mount.
    pub fn of(device: &str) -> io::Result<Connection> {
        let number = device.strip_prefix("0:").and_then(|minor| minor.parse::<u32>().ok());
        let number = number.ok_or(io::ErrorKind::InvalidInput)?;
        let name = format!("{number}/abort");
        let opened = OpenOptions::new().write(true).open(Path::new(USUAL).join(&name));
        let file = match opened {
            // Minimal systems and containers do not have it there.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let tree = mount_unseen().map_err(|_| e)?;
                let inside = format!("/proc/self/fd/{}/{name}", tree.as_raw_fd());
                OpenOptions::new().write(true).open(inside)
            }
            done => done,
        };
        file.map(Connection)
    }

    /// Ends the connection: every call of those who use it fails from then on. Without effect when it has ended already.
    ///
    /// # Errors
    /// Those of write(2).
    pub fn abort(&self) -> io::Result<()> {
        (&self.0).write_all(b"1")
    }
}

/// The file system of connections at no place in the tree, which takes root.
fn mount_unseen() -> io::Result<OwnedFd> {
    const FSOPEN_CLOEXEC: libc::c_uint = 1;
    const FSCONFIG_CMD_CREATE: libc::c_uint = 6;
    const FSMOUNT_CLOEXEC: libc::c_uint = 1;
    let owned = |rc: libc::c_long| match rc {
        // SAFETY: the calls below return a new descriptor that nobody else has.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(rc as libc::c_int) }),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: the name is a NUL-terminated string.
    let context = owned(unsafe { libc::syscall(libc::SYS_fsopen, c"fusectl".as_ptr(), FSOPEN_CLOEXEC) })?;
    let (fd, none) = (context.as_raw_fd(), std::ptr::null::<libc::c_char>());
    // SAFETY: an open descriptor; this command takes neither a key nor a value.
    if unsafe { libc::syscall(libc::SYS_fsconfig, fd, FSCONFIG_CMD_CREATE, none, none, 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: an open descriptor and flags.
    owned(unsafe { libc::syscall(libc::SYS_fsmount, fd, FSMOUNT_CLOEXEC, 0) })
}

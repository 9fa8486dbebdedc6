//! Calls that give the host's inodes names in roundabout ways: create, tmpfile, link.

use super::HostFs;
use super::calls::{self, Fd, check, magic};
use super::filesystem::{EMPTY, PATH_ONLY, as_caller, c_name, open_flags};
use fs::*;
use std::os::fd::AsRawFd;

impl HostFs {
    pub(super) fn host_create(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &[u8],
        perm: u16,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let mut state = self.state.lock();
        let dir = state.inode(self.real_ino(parent))?;
        let name = c_name(name)?;
        let mut bits = open_flags(flags)? | libc::O_CREAT | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        if flags.contains(OpenFlags::EXCLUSIVE) {
            bits |= libc::O_EXCL;
        }
        // What is no regular file is refused here, after a look as the caller (who may not be allowed to): special files
        // must not be opened, and in a sticky directory the kernel says EACCES whatever fs.protected_regular is.
        let exclusive = flags.contains(OpenFlags::EXCLUSIVE);
        if let Ok(fd) = as_caller(cred, || Fd::open_at(dir, &name, PATH_ONLY, 0))
            && !exclusive
        {
            match fd.stat()?.st_mode & libc::S_IFMT {
                libc::S_IFREG => {}
                libc::S_IFDIR => return Err(Error::IsDirectory),
                libc::S_IFLNK => return Err(Error::SymlinkLoop),
                _ => return Err(Error::Invalid("only regular files are opened")),
            }
        }
        let file = as_caller(cred, || Fd::open_at(dir, &name, bits, perm as u32))?;
        let ino = state.keep(Fd::reopen(file.as_raw_fd(), libc::O_PATH)?)?;
        let attr = self.attr(&state, file.as_raw_fd())?;
        Ok((attr, state.add_open(file, ino, flags, cred, false)))
    }

    pub(super) fn host_tmpfile(
        &self,
        cred: &Cred,
        parent: Ino,
        perm: u16,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let mut state = self.state.lock();
        let dir = state.inode(self.real_ino(parent))?;
        let mut bits = open_flags(flags)? & !libc::O_TRUNC | libc::O_TMPFILE;
        if flags.contains(OpenFlags::EXCLUSIVE) {
            bits |= libc::O_EXCL;
        }
        let file = as_caller(cred, || Fd::open_at(libc::AT_FDCWD, &magic(dir), bits, perm as u32));
        // In a removed directory ext4 says EPERM and tmpfs makes the file; here it is as for every new name.
        let gone = calls::stat(dir)?.st_nlink == 0;
        let file = match file {
            Ok(_) | Err(Error::NotPermitted) if gone => return Err(Error::NotFound),
            file => file?,
        };
        let ino = state.keep(Fd::reopen(file.as_raw_fd(), libc::O_PATH)?)?;
        let attr = self.attr(&state, file.as_raw_fd())?;
        Ok((attr, state.add_open(file, ino, flags, cred, false)))
    }

    pub(super) fn host_link(&self, cred: &Cred, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        let state = self.state.lock();
        let fd = state.inode(self.real_ino(ino))?;
        let dir = state.inode(self.real_ino(parent))?;
        let name = c_name(name)?;
        let from = magic(fd);
        let link = || {
            let follow = libc::AT_SYMLINK_FOLLOW;
            // SAFETY: both paths end with NUL.
            check(unsafe { libc::linkat(libc::AT_FDCWD, from.as_ptr(), dir, name.as_ptr(), follow) })
        };
        match as_caller(cred, link) {
            Err(Error::NotPermitted) => {
                // fs.protected_hardlinks refuses more than POSIX does, and earlier: check the directory as the caller, then
                // link as root.
                as_caller(cred, || {
                    let flags = libc::AT_EMPTY_PATH | libc::AT_EACCESS;
                    let mask = libc::W_OK | libc::X_OK;
                    // SAFETY: the path ends with NUL.
                    check(unsafe { libc::syscall(libc::SYS_faccessat2, dir, EMPTY.as_ptr(), mask, flags) })
                })?;
                link()?;
            }
            done => {
                done?;
            }
        }
        self.attr(&state, fd)
    }
}

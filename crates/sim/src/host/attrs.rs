//! Attributes and extended attributes of the host's inodes.

use super::calls::{check, magic};
use super::filesystem::{as_caller, offset};
use super::{HostFs, State};
use fs::*;
use std::ffi::CString;
use std::os::fd::AsRawFd;

/// The name of an extended attribute. What has no known namespace is refused here: the kernel would look at the mode bits
/// first, the contract does not.
fn xattr_name(name: &[u8]) -> Result<CString> {
    let known = [&b"user."[..], b"trusted.", b"security."];
    match known.iter().find_map(|prefix| name.strip_prefix(*prefix)) {
        None => Err(Error::NotSupported("namespace of the extended attribute")),
        Some(b"") => Err(Error::Invalid("extended attribute without a name")),
        Some(_) => CString::new(name).map_err(|_| Error::Invalid("name")),
    }
}

impl HostFs {
    /// Sets what `set` names, one after the other.
    pub(super) fn set(&self, state: &State, cred: &Cred, ino: u64, set: &SetAttr) -> Result<()> {
        let mut by_handle = None;
        if let Some(handle) = set.handle {
            let open = state.handle(handle)?;
            let writes = open.flags.contains(OpenFlags::WRITE) && !open.directory;
            if open.ino != ino || set.size.is_some() && !writes {
                return Err(Error::BadHandle);
            }
            by_handle = Some(open.fd.as_raw_fd());
        }
        let fd = state.inode(ino)?;
        as_caller(cred, || {
            if set.uid.is_some() || set.gid.is_some() {
                let (uid, gid) = (set.uid.unwrap_or(u32::MAX), set.gid.unwrap_or(u32::MAX));
                // SAFETY: the path ends with NUL.
                check(unsafe { libc::fchownat(fd, c"".as_ptr(), uid, gid, libc::AT_EMPTY_PATH) })?;
            }
            if let Some(perm) = set.perm {
                // SAFETY: the path ends with NUL.
                check(unsafe { libc::chmod(magic(fd).as_ptr(), perm as u32) })?;
            }
            if let Some(size) = set.size {
                let size = offset(size)?;
                match by_handle {
                    // SAFETY: a call on a descriptor.
                    Some(fd) => check(unsafe { libc::ftruncate(fd, size) })?,
                    // SAFETY: the path ends with NUL.
                    None => check(unsafe { libc::truncate(magic(fd).as_ptr(), size) })?,
                };
            }
            if set.atime.is_some() || set.mtime.is_some() {
                let time = |t: Option<SetTime>| match t {
                    None => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT },
                    Some(SetTime::Now) => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW },
                    Some(SetTime::At(t)) => libc::timespec { tv_sec: t.sec, tv_nsec: t.nsec as i64 },
                };
                let times = [time(set.atime), time(set.mtime)];
                // SAFETY: path and times are valid.
                check(unsafe { libc::utimensat(fd, c"".as_ptr(), times.as_ptr(), libc::AT_EMPTY_PATH) })?;
            }
            Ok(())
        })
    }

    pub(super) fn host_getxattr(&self, cred: &Cred, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let state = self.state.lock();
        let path = magic(state.inode(self.real_ino(ino))?);
        let name = xattr_name(name)?;
        let mut value = vec![0u8; format::limits::XATTR_VALUE_MAX];
        as_caller(cred, || {
            let to = value.as_mut_ptr().cast();
            // SAFETY: paths end with NUL and the buffer is valid for its length.
            let n = check(unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), to, value.len()) } as i64)?;
            value.truncate(n as usize);
            Ok(())
        })?;
        Ok(value)
    }

    pub(super) fn host_listxattr(&self, cred: &Cred, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let state = self.state.lock();
        let path = magic(state.inode(self.real_ino(ino))?);
        let mut names = vec![0u8; 64 << 10];
        as_caller(cred, || {
            let to = names.as_mut_ptr().cast();
            // SAFETY: the path ends with NUL and the buffer is valid for its length.
            let n = check(unsafe { libc::listxattr(path.as_ptr(), to, names.len()) } as i64)?;
            names.truncate(n as usize);
            Ok(())
        })?;
        Ok(names.split(|&b| b == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect())
    }

    pub(super) fn host_setxattr(
        &self,
        cred: &Cred,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        let state = self.state.lock();
        let path = magic(state.inode(self.real_ino(ino))?);
        let name = xattr_name(name)?;
        let (from, len) = (value.as_ptr().cast(), value.len());
        as_caller(cred, || {
            // SAFETY: paths end with NUL and the value is valid for its length.
            check(unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), from, len, flags.bits() as i32) })
        })
        .map(|_| ())
    }

    pub(super) fn host_removexattr(&self, cred: &Cred, ino: Ino, name: &[u8]) -> Result<()> {
        let state = self.state.lock();
        let path = magic(state.inode(self.real_ino(ino))?);
        let name = xattr_name(name)?;
        // SAFETY: paths end with NUL.
        as_caller(cred, || check(unsafe { libc::removexattr(path.as_ptr(), name.as_ptr()) })).map(|_| ())
    }
}

//! The contract over a directory of the host.

use super::calls::{self, Fd, check};
use super::identity::Identity;
use super::{HostFs, State};
use fs::*;
use std::ffi::CString;
use std::os::fd::{AsRawFd, RawFd};

pub(super) const PATH_ONLY: i32 = libc::O_PATH | libc::O_NOFOLLOW;
pub(super) const EMPTY: &std::ffi::CStr = c"";
const DIRECT_UNIT: u64 = 512;

/// A name as the kernel takes it. Bad ones cannot be passed on and are answered here.
pub(super) fn c_name(name: &[u8]) -> Result<CString> {
    if name.is_empty() || name.contains(&b'/') {
        return Err(Error::Invalid("name"));
    }
    CString::new(name).map_err(|_| Error::Invalid("name"))
}

pub(super) fn as_caller<T>(cred: &Cred, call: impl FnOnce() -> Result<T>) -> Result<T> {
    let identity = Identity::take(cred)?;
    let result = call();
    drop(identity);
    result
}

pub(super) fn offset(value: u64) -> Result<i64> {
    i64::try_from(value).map_err(|_| Error::TooLarge)
}

/// Flags of open(2). Durability flags and DIRECT are not passed on.
pub(super) fn open_flags(flags: OpenFlags) -> Result<i32> {
    let mut out = match (flags.contains(OpenFlags::READ), flags.contains(OpenFlags::WRITE)) {
        (true, true) => libc::O_RDWR,
        (true, false) => libc::O_RDONLY,
        (false, true) => libc::O_WRONLY,
        // The kernel's access mode 3 is something else.
        (false, false) => return Err(Error::Invalid("neither for reading nor for writing")),
    };
    let pairs = [
        (OpenFlags::APPEND, libc::O_APPEND),
        (OpenFlags::TRUNCATE, libc::O_TRUNC),
        (OpenFlags::NOATIME, libc::O_NOATIME),
    ];
    for (flag, bit) in pairs {
        if flags.contains(flag) {
            out |= bit;
        }
    }
    Ok(out)
}

impl State {
    /// Refuses what is not a regular file, as the contract wants it. The kernel would open devices and FIFOs.
    fn must_be_file(&self, fd: RawFd, flags: OpenFlags) -> Result<()> {
        match calls::stat(fd)?.st_mode & libc::S_IFMT {
            libc::S_IFREG => Ok(()),
            libc::S_IFDIR if flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE) => {
                Err(Error::IsDirectory)
            }
            _ => Err(Error::Invalid("only regular files are opened")),
        }
    }

    fn check_direct(&self, handle: Handle, offset: u64, len: usize) -> Result<()> {
        let odd = !offset.is_multiple_of(DIRECT_UNIT) || !(len as u64).is_multiple_of(DIRECT_UNIT);
        if self.handle(handle)?.flags.contains(OpenFlags::DIRECT) && odd {
            return Err(Error::Invalid("a direct transfer is not a multiple of 512"));
        }
        Ok(())
    }
}

impl HostFs {
    /// Makes an inode by one of the kernel's calls on (directory, name), and returns its attributes.
    fn make(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &[u8],
        call: impl FnOnce(RawFd, *const libc::c_char) -> i32,
    ) -> Result<Attr> {
        let mut state = self.state.lock();
        let dir = state.inode(self.real_ino(parent))?;
        let name = c_name(name)?;
        as_caller(cred, || check(call(dir, name.as_ptr())))?;
        self.found(&mut state, Fd::open_at(dir, &name, PATH_ONLY, 0)?)
    }

    fn found(&self, state: &mut State, fd: Fd) -> Result<Attr> {
        let attr = self.attr(state, fd.as_raw_fd())?;
        state.keep(fd)?;
        Ok(attr)
    }

    fn remove(&self, cred: &Cred, parent: Ino, name: &[u8], flags: i32) -> Result<()> {
        let state = self.state.lock();
        let dir = state.inode(self.real_ino(parent))?;
        let name = c_name(name)?;
        // SAFETY: the name ends with NUL.
        as_caller(cred, || check(unsafe { libc::unlinkat(dir, name.as_ptr(), flags) })).map(|_| ())
    }

    /// Opens what an `O_PATH` descriptor leads to.
    fn open_inode(&self, state: &mut State, cred: &Cred, ino: u64, flags: OpenFlags) -> Result<Handle> {
        let fd = state.inode(ino)?;
        state.must_be_file(fd, flags)?;
        let bits = open_flags(flags)?;
        let file = as_caller(cred, || Fd::reopen(fd, bits))?;
        Ok(state.add_open(file, ino, flags, cred, false))
    }
}

impl FileSystem for HostFs {
    async fn lookup(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<Attr> {
        let mut state = self.state.lock();
        let parent = self.real_ino(parent);
        let dir = state.inode(parent)?;
        let up = name == b"..";
        let own = name == b"." || up && parent == self.root;
        let c_name = match name {
            _ if own => CString::from(c"."),
            b".." => CString::from(c".."),
            name => c_name(name)?,
        };
        let fd = as_caller(cred, || Fd::open_at(dir, &c_name, PATH_ONLY, 0))?;
        if up && calls::stat(dir)?.st_nlink == 0 {
            // The kernel still knows where a removed directory was.
            return Err(Error::NotFound);
        }
        self.found(&mut state, fd)
    }

    async fn getattr(&self, ino: Ino, handle: Option<Handle>) -> Result<Attr> {
        let state = self.state.lock();
        if let Some(handle) = handle
            && state.handle(handle)?.ino != self.real_ino(ino)
        {
            return Err(Error::BadHandle);
        }
        self.attr(&state, state.inode(self.real_ino(ino))?)
    }

    async fn setattr(&self, cred: &Cred, ino: Ino, set: SetAttr) -> Result<Attr> {
        let state = self.state.lock();
        let ino = self.real_ino(ino);
        self.set(&state, cred, ino, &set)?;
        self.attr(&state, state.inode(ino)?)
    }

    async fn access(&self, cred: &Cred, ino: Ino, mask: Access) -> Result<()> {
        let state = self.state.lock();
        let fd = state.inode(self.real_ino(ino))?;
        let flags = libc::AT_EMPTY_PATH | libc::AT_EACCESS;
        as_caller(cred, || {
            // SAFETY: the path ends with NUL. The raw call has the flags, unlike the C library's function.
            let call = unsafe {
                libc::syscall(libc::SYS_faccessat2, fd, EMPTY.as_ptr(), mask.bits() as libc::c_int, flags)
            };
            check(call).map(|_| ())
        })
    }

    async fn readlink(&self, cred: &Cred, ino: Ino) -> Result<Vec<u8>> {
        let state = self.state.lock();
        let fd = state.inode(self.real_ino(ino))?;
        // With an empty path the kernel would say ENOENT.
        if calls::stat(fd)?.st_mode & libc::S_IFMT != libc::S_IFLNK {
            return Err(Error::Invalid("not a symlink"));
        }
        let mut target = vec![0u8; format::limits::PATH_MAX];
        as_caller(cred, || {
            let to = target.as_mut_ptr().cast();
            // SAFETY: path and buffer are valid.
            let n = check(unsafe { libc::readlinkat(fd, EMPTY.as_ptr(), to, target.len()) } as i64)?;
            target.truncate(n as usize);
            Ok(())
        })?;
        Ok(target)
    }

    async fn mknod(&self, cred: &Cred, parent: Ino, name: &[u8], mode: u32, rdev: u64) -> Result<Attr> {
        // SAFETY: the name ends with NUL.
        self.make(cred, parent, name, |dir, name| unsafe { libc::mknodat(dir, name, mode, rdev) })
    }

    async fn mkdir(&self, cred: &Cred, parent: Ino, name: &[u8], perm: u16) -> Result<Attr> {
        // SAFETY: the name ends with NUL.
        self.make(cred, parent, name, |dir, name| unsafe { libc::mkdirat(dir, name, perm as u32) })
    }

    async fn symlink(&self, cred: &Cred, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        let target = CString::new(target).map_err(|_| Error::Invalid("target"))?;
        // SAFETY: both end with NUL.
        self.make(cred, parent, name, |dir, name| unsafe { libc::symlinkat(target.as_ptr(), dir, name) })
    }

    async fn link(&self, cred: &Cred, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.host_link(cred, ino, parent, name)
    }

    async fn unlink(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<()> {
        self.remove(cred, parent, name, 0)
    }

    async fn rmdir(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<()> {
        self.remove(cred, parent, name, libc::AT_REMOVEDIR)
    }

    async fn rename(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        if flags.contains(RenameFlags::NOREPLACE | RenameFlags::EXCHANGE) {
            return Err(Error::Invalid("both to replace nothing and to exchange"));
        }
        let state = self.state.lock();
        let dir = state.inode(self.real_ino(parent))?;
        let new_dir = state.inode(self.real_ino(new_parent))?;
        let (name, new_name) = (c_name(name)?, c_name(new_name)?);
        let (from, to) = (name.as_ptr(), new_name.as_ptr());
        as_caller(cred, || {
            // SAFETY: both names end with NUL.
            check(unsafe { libc::renameat2(dir, from, new_dir, to, flags.bits()) })
        })
        .map(|_| ())
    }

    async fn open(&self, cred: &Cred, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        let mut state = self.state.lock();
        self.open_inode(&mut state, cred, self.real_ino(ino), flags)
    }

    async fn create(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &[u8],
        perm: u16,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        self.host_create(cred, parent, name, perm, flags)
    }

    async fn tmpfile(&self, cred: &Cred, parent: Ino, perm: u16, flags: OpenFlags) -> Result<(Attr, Handle)> {
        self.host_tmpfile(cred, parent, perm, flags)
    }

    async fn read(&self, handle: Handle, at: u64, to: &mut [u8]) -> Result<usize> {
        let state = self.state.lock();
        let open = state.handle(handle)?;
        if open.flags.contains(OpenFlags::READ) {
            state.check_direct(handle, at, to.len())?;
        }
        let (fd, at) = (open.fd.as_raw_fd(), offset(at)?);
        let mut done = 0;
        loop {
            let part = &mut to[done..];
            // SAFETY: the buffer is valid for its length.
            let n = unsafe { libc::pread(fd, part.as_mut_ptr().cast(), part.len(), at + done as i64) };
            done += check(n as i64)? as usize;
            if n == 0 || done == to.len() {
                return Ok(done);
            }
        }
    }

    async fn write(&self, handle: Handle, at: u64, from: &[u8]) -> Result<usize> {
        let state = self.state.lock();
        let open = state.handle(handle)?;
        let append = open.flags.contains(OpenFlags::APPEND);
        let start = if append { open.fd.stat()?.st_size as u64 } else { at };
        if open.flags.contains(OpenFlags::WRITE) {
            state.check_direct(handle, start, from.len())?;
        }
        let (fd, at) = (open.fd.as_raw_fd(), offset(at)?);
        as_caller(&open.cred, || {
            // SAFETY: the buffer is valid for its length.
            let n = unsafe { libc::pwrite(fd, from.as_ptr().cast(), from.len(), at) };
            Ok(check(n as i64)? as usize)
        })
    }

    async fn flush(&self, handle: Handle, owner: LockOwner) -> Result<()> {
        let mut state = self.state.lock();
        let ino = state.handle(handle)?.ino;
        state.locks.remove(&(ino, owner));
        Ok(())
    }

    async fn release(&self, handle: Handle) -> Result<()> {
        let mut state = self.state.lock();
        let open = state.opens.remove(&handle).ok_or(Error::BadHandle)?;
        if !state.opens.values().any(|other| other.ino == open.ino) {
            state.locks.retain(|(ino, _), _| *ino != open.ino);
        }
        Ok(())
    }

    async fn fsync(&self, handle: Handle, _datasync: bool) -> Result<()> {
        self.state.lock().handle(handle).map(|_| ())
    }

    async fn barrier(&self, handle: Handle, _datasync: bool) -> Result<()> {
        self.state.lock().handle(handle).map(|_| ())
    }

    async fn sync(&self) -> Result<()> {
        Ok(())
    }

    async fn opendir(&self, cred: &Cred, ino: Ino) -> Result<Handle> {
        let mut state = self.state.lock();
        let ino = self.real_ino(ino);
        let fd = state.inode(ino)?;
        let dir = as_caller(cred, || Fd::reopen(fd, libc::O_RDONLY | libc::O_DIRECTORY))?;
        Ok(state.add_open(dir, ino, OpenFlags::READ, cred, true))
    }

    async fn readdir(
        &self,
        handle: Handle,
        from: u64,
        sink: &mut (dyn FnMut(DirEntry<'_>) -> bool + Send),
    ) -> Result<()> {
        let mut out = Vec::new();
        {
            let mut state = self.state.lock();
            let open = state.handle(handle)?;
            if !open.directory {
                // Before the offset is set, which files take as well.
                return Err(Error::NotDirectory);
            }
            let (dir, own) = (open.fd.as_raw_fd(), open.ino);
            // SAFETY: a call on a descriptor. Offsets are the file system's cookies and may use all bits.
            if unsafe { libc::lseek(dir, from as i64, libc::SEEK_SET) } as u64 != from {
                return Err(Error::Invalid("offset"));
            }
            loop {
                let entries = calls::getdents(dir)?;
                if entries.is_empty() {
                    break;
                }
                for entry in entries {
                    let name = match &entry.name[..] {
                        b".." if own == self.root => CString::from(c"."),
                        name => CString::new(name).map_err(|_| Error::Invalid("name"))?,
                    };
                    let fd = Fd::open_at(dir, &name, PATH_ONLY, 0)?;
                    let attr = self.found(&mut state, fd)?;
                    out.push((entry.name, entry.offset, attr));
                }
            }
        }
        for (name, next_offset, attr) in out {
            if !sink(DirEntry { name: &name, next_offset, attr }) {
                break;
            }
        }
        Ok(())
    }

    async fn statfs(&self) -> Result<StatFs> {
        let state = self.state.lock();
        let fd = state.inode(self.root)?;
        // SAFETY: all zeros is a valid value.
        let mut s: libc::statfs = unsafe { std::mem::zeroed() };
        // SAFETY: `s` is a valid place for the result.
        check(unsafe { libc::fstatfs(fd, &mut s) })?;
        Ok(StatFs {
            block_size: s.f_bsize as u32,
            blocks: s.f_blocks,
            blocks_free: s.f_bfree,
            blocks_available: s.f_bavail,
            inodes: s.f_files,
            inodes_free: s.f_ffree,
            name_max: s.f_namelen as u32,
        })
    }

    async fn getxattr(&self, cred: &Cred, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.host_getxattr(cred, ino, name)
    }

    async fn listxattr(&self, cred: &Cred, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.host_listxattr(cred, ino)
    }

    async fn setxattr(
        &self,
        cred: &Cred,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        self.host_setxattr(cred, ino, name, value, flags)
    }

    async fn removexattr(&self, cred: &Cred, ino: Ino, name: &[u8]) -> Result<()> {
        self.host_removexattr(cred, ino, name)
    }

    async fn fallocate(&self, handle: Handle, what: Fallocate, at: u64, len: u64) -> Result<()> {
        let state = self.state.lock();
        let open = state.handle(handle)?;
        let keep = |keep_size: bool| if keep_size { libc::FALLOC_FL_KEEP_SIZE } else { 0 };
        let mode = match what {
            Fallocate::Allocate { keep_size } => keep(keep_size),
            Fallocate::PunchHole => libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            Fallocate::ZeroRange { keep_size } => libc::FALLOC_FL_ZERO_RANGE | keep(keep_size),
        };
        let (fd, at, len) = (open.fd.as_raw_fd(), offset(at)?, offset(len)?);
        // SAFETY: a call on a descriptor.
        as_caller(&open.cred, || check(unsafe { libc::fallocate(fd, mode, at, len) })).map(|_| ())
    }

    async fn seek(&self, handle: Handle, from: u64, what: Seek) -> Result<u64> {
        let state = self.state.lock();
        let open = state.handle(handle)?;
        if open.directory {
            return Err(Error::IsDirectory);
        }
        let whence = match what {
            Seek::Data => libc::SEEK_DATA,
            Seek::Hole => libc::SEEK_HOLE,
        };
        // SAFETY: a call on a descriptor.
        check(unsafe { libc::lseek(open.fd.as_raw_fd(), offset(from)?, whence) }).map(|at| at as u64)
    }

    async fn copy_range(&self, from: Handle, from_at: u64, to: Handle, to_at: u64, len: u64) -> Result<u64> {
        let state = self.state.lock();
        let source = state.handle(from)?;
        let target = state.handle(to)?;
        let (mut from_at, mut to_at) = (offset(from_at)?, offset(to_at)?);
        as_caller(&target.cred, || {
            // SAFETY: both offsets are valid places.
            check(unsafe {
                libc::copy_file_range(
                    source.fd.as_raw_fd(),
                    &mut from_at,
                    target.fd.as_raw_fd(),
                    &mut to_at,
                    len as usize,
                    0,
                )
            } as i64)
        })
        .map(|n| n as u64)
    }

    async fn getlk(&self, handle: Handle, owner: LockOwner, lock: RecordLock) -> Result<Option<RecordLock>> {
        self.host_getlk(handle, owner, lock)
    }

    async fn setlk(
        &self,
        handle: Handle,
        owner: LockOwner,
        lock: std::result::Result<RecordLock, (u64, u64)>,
        wait: bool,
    ) -> Result<()> {
        self.host_setlk(handle, owner, lock, wait)
    }

    async fn flock(&self, handle: Handle, kind: Option<LockKind>, wait: bool) -> Result<()> {
        self.host_flock(handle, kind, wait)
    }
}

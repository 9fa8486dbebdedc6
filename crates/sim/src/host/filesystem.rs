//! The contract over a directory of the host.

use super::calls::{self, Fd, check, magic};
use super::identity::Identity;
use super::{HostFs, State};
use fs::*;
use std::ffi::CString;
use std::os::fd::{AsRawFd, RawFd};

const PATH_ONLY: i32 = libc::O_PATH | libc::O_NOFOLLOW;
const EMPTY: &std::ffi::CStr = c"";
const DIRECT_UNIT: u64 = 512;

/// A name as the kernel takes it. Bad ones cannot be passed on and are answered here.
fn c_name(name: &[u8]) -> Result<CString> {
    if name.is_empty() || name.contains(&b'/') {
        return Err(Error::Invalid("name"));
    }
    if name == b"." || name == b".." {
        return Err(Error::Exists);
    }
    CString::new(name).map_err(|_| Error::Invalid("name"))
}

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

fn as_caller<T>(cred: &Cred, call: impl FnOnce() -> Result<T>) -> Result<T> {
    let identity = Identity::take(cred)?;
    let result = call();
    drop(identity);
    result
}

fn offset(value: u64) -> Result<i64> {
    i64::try_from(value).map_err(|_| Error::TooLarge)
}

/// Flags of open(2). Durability flags and DIRECT are not passed on.
fn open_flags(flags: OpenFlags) -> Result<i32> {
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

    /// The descriptor on which an owner's locks on an inode stand.
    fn lock_fd(&mut self, ino: u64, owner: LockOwner) -> Result<RawFd> {
        if !self.locks.contains_key(&(ino, owner)) {
            let fd = Fd::reopen(self.inode(ino)?, libc::O_RDWR)?;
            self.locks.insert((ino, owner), fd);
        }
        Ok(self.locks[&(ino, owner)].as_raw_fd())
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

    /// Sets what `set` names, one after the other.
    fn set(&self, state: &State, cred: &Cred, ino: u64, set: &SetAttr) -> Result<()> {
        let fd = state.inode(ino)?;
        let mut by_handle = None;
        if let Some(handle) = set.handle {
            let open = state.handle(handle)?;
            let writes = open.flags.contains(OpenFlags::WRITE) && !open.directory;
            if open.ino != ino || set.size.is_some() && !writes {
                return Err(Error::BadHandle);
            }
            by_handle = Some(open.fd.as_raw_fd());
        }
        as_caller(cred, || {
            if set.uid.is_some() || set.gid.is_some() {
                let (uid, gid) = (set.uid.unwrap_or(u32::MAX), set.gid.unwrap_or(u32::MAX));
                // SAFETY: the path ends with NUL.
                check(unsafe { libc::fchownat(fd, EMPTY.as_ptr(), uid, gid, libc::AT_EMPTY_PATH) })?;
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
                check(unsafe { libc::utimensat(fd, EMPTY.as_ptr(), times.as_ptr(), libc::AT_EMPTY_PATH) })?;
            }
            Ok(())
        })
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
        // SAFETY: both names end with NUL.
        as_caller(cred, || {
            check(unsafe { libc::renameat2(dir, name.as_ptr(), new_dir, new_name.as_ptr(), flags.bits()) })
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

    async fn tmpfile(&self, cred: &Cred, parent: Ino, perm: u16, flags: OpenFlags) -> Result<(Attr, Handle)> {
        let mut state = self.state.lock();
        let dir = state.inode(self.real_ino(parent))?;
        let mut bits = open_flags(flags)? & !libc::O_TRUNC | libc::O_TMPFILE;
        if flags.contains(OpenFlags::EXCLUSIVE) {
            bits |= libc::O_EXCL;
        }
        let file = as_caller(cred, || Fd::open_at(libc::AT_FDCWD, &magic(dir), bits, perm as u32))?;
        let ino = state.keep(Fd::reopen(file.as_raw_fd(), libc::O_PATH)?)?;
        let attr = self.attr(&state, file.as_raw_fd())?;
        Ok((attr, state.add_open(file, ino, flags, cred, false)))
    }

    async fn read(&self, handle: Handle, at: u64, to: &mut [u8]) -> Result<usize> {
        let state = self.state.lock();
        let open = state.file(handle, OpenFlags::READ)?;
        state.check_direct(handle, at, to.len())?;
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
        let open = state.file(handle, OpenFlags::WRITE)?;
        let append = open.flags.contains(OpenFlags::APPEND);
        let start = if append { open.fd.stat()?.st_size as u64 } else { at };
        state.check_direct(handle, start, from.len())?;
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
                return Err(Error::BadHandle);
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

    async fn listxattr(&self, cred: &Cred, ino: Ino) -> Result<Vec<Vec<u8>>> {
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

    async fn setxattr(
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
        // SAFETY: paths end with NUL and the value is valid for its length.
        as_caller(cred, || {
            check(unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), from, len, flags.bits() as i32) })
        })
        .map(|_| ())
    }

    async fn removexattr(&self, cred: &Cred, ino: Ino, name: &[u8]) -> Result<()> {
        let state = self.state.lock();
        let path = magic(state.inode(self.real_ino(ino))?);
        let name = xattr_name(name)?;
        // SAFETY: paths end with NUL.
        as_caller(cred, || check(unsafe { libc::removexattr(path.as_ptr(), name.as_ptr()) })).map(|_| ())
    }

    async fn fallocate(&self, handle: Handle, what: Fallocate, at: u64, len: u64) -> Result<()> {
        let state = self.state.lock();
        let open = state.handle(handle)?;
        if len == 0 {
            return Err(Error::Invalid("empty range"));
        }
        state.file(handle, OpenFlags::WRITE)?;
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
        let open = state.file(handle, OpenFlags::empty())?;
        let whence = match what {
            Seek::Data => libc::SEEK_DATA,
            Seek::Hole => libc::SEEK_HOLE,
        };
        // SAFETY: a call on a descriptor.
        check(unsafe { libc::lseek(open.fd.as_raw_fd(), offset(from)?, whence) }).map(|at| at as u64)
    }

    async fn copy_range(&self, from: Handle, from_at: u64, to: Handle, to_at: u64, len: u64) -> Result<u64> {
        let state = self.state.lock();
        let source = state.file(from, OpenFlags::READ)?;
        let target = state.file(to, OpenFlags::WRITE)?;
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
        let mut state = self.state.lock();
        let ino = state.file(handle, OpenFlags::empty())?.ino;
        let fd = state.lock_fd(ino, owner)?;
        let mut flock = to_flock(Some(lock.kind), lock.start, lock.end)?;
        // SAFETY: `flock` is a valid place.
        check(unsafe { libc::fcntl(fd, libc::F_OFD_GETLK, &mut flock) })?;
        let kind = match flock.l_type as i32 {
            libc::F_UNLCK => return Ok(None),
            libc::F_RDLCK => LockKind::Shared,
            _ => LockKind::Exclusive,
        };
        let start = flock.l_start as u64;
        let end = if flock.l_len == 0 { u64::MAX } else { start + flock.l_len as u64 - 1 };
        Ok(Some(RecordLock { start, end, kind, pid: 0 }))
    }

    async fn setlk(
        &self,
        handle: Handle,
        owner: LockOwner,
        lock: std::result::Result<RecordLock, (u64, u64)>,
        wait: bool,
    ) -> Result<()> {
        if wait {
            return Err(Error::NotSupported("waiting for locks of the host"));
        }
        let mut state = self.state.lock();
        let ino = state.file(handle, OpenFlags::empty())?.ino;
        let mut flock = match lock {
            Err((start, end)) => to_flock(None, start, end)?,
            Ok(lock) => {
                let need = match lock.kind {
                    LockKind::Shared => OpenFlags::READ,
                    LockKind::Exclusive => OpenFlags::WRITE,
                };
                state.file(handle, need)?;
                to_flock(Some(lock.kind), lock.start, lock.end)?
            }
        };
        let fd = state.lock_fd(ino, owner)?;
        // SAFETY: `flock` is a valid place.
        check(unsafe { libc::fcntl(fd, libc::F_OFD_SETLK, &mut flock) }).map(|_| ())
    }

    async fn flock(&self, handle: Handle, kind: Option<LockKind>, wait: bool) -> Result<()> {
        if wait {
            return Err(Error::NotSupported("waiting for locks of the host"));
        }
        let mut state = self.state.lock();
        let open = state.opens.get_mut(&handle).ok_or(Error::BadHandle)?;
        let fd = open.fd.as_raw_fd();
        // SAFETY: a call on a descriptor.
        let call = |kind| check(unsafe { libc::flock(fd, flock_op(kind) | libc::LOCK_NB) });
        if let Err(e) = call(kind) {
            // The kernel gives the old lock back before it tries the new one.
            call(open.flock)?;
            return Err(e);
        }
        open.flock = kind;
        Ok(())
    }
}

fn flock_op(kind: Option<LockKind>) -> i32 {
    match kind {
        None => libc::LOCK_UN,
        Some(LockKind::Shared) => libc::LOCK_SH,
        Some(LockKind::Exclusive) => libc::LOCK_EX,
    }
}

fn to_flock(kind: Option<LockKind>, start: u64, end: u64) -> Result<libc::flock> {
    let kind = match kind {
        None => libc::F_UNLCK,
        Some(LockKind::Shared) => libc::F_RDLCK,
        Some(LockKind::Exclusive) => libc::F_WRLCK,
    };
    let len = if end >= i64::MAX as u64 { 0 } else { offset(end - start + 1)? };
    Ok(libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: offset(start)?,
        l_len: len,
        l_pid: 0,
    })
}

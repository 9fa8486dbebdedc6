//! What a session of the header is with: a manager's volume, or a bucket.

use fs::*;
use object::ObjectFs;
use object::s3::S3;
use share::Remote;
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Instant;

/// See the module. It is a file system as each of them is.
pub(crate) enum Engine {
    /// A volume that somebody else serves.
    Volume(Remote),
    /// A bucket that this process itself talks to the store about.
    Bucket(ObjectFs<S3>),
}

/// A call of whichever it is.
macro_rules! of {
    ($engine:expr, $fs:ident => $call:expr) => {
        match $engine {
            Engine::Volume($fs) => $call,
            Engine::Bucket($fs) => $call,
        }
    };
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Engine::Volume(remote) => remote.fmt(f),
            Engine::Bucket(_) => f.write_str("a bucket"),
        }
    }
}

impl Engine {
    /// The session with the manager, if it is one.
    pub fn remote(&self) -> Option<&Remote> {
        match self {
            Engine::Volume(remote) => Some(remote),
            Engine::Bucket(_) => None,
        }
    }

    /// As `block_on`, of a future that other threads wake too, until the time is over (`None`: never).
    pub fn wait_until<T: Future>(&self, future: T, until: Option<Instant>) -> Option<T::Output> {
        match self {
            Engine::Volume(remote) => remote.wait_until(future, until),
            Engine::Bucket(_) => sleep_until(future, until),
        }
    }
}

/// Wakes a thread. The flag counts wake-ups that the thread's calls inside of the future have slept through.
struct Sleeper {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

fn sleep_until<T: Future>(future: T, until: Option<Instant>) -> Option<T::Output> {
    let mut future = pin!(future);
    let sleeper = Arc::new(Sleeper { thread: std::thread::current(), woken: AtomicBool::new(false) });
    let waker = Waker::from(sleeper.clone());
    loop {
        if let Poll::Ready(out) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(out);
        }
        while !sleeper.woken.swap(false, Ordering::AcqRel) {
            match until.map(|until| until.saturating_duration_since(Instant::now())) {
                None => std::thread::park(),
                Some(left) if left.is_zero() => return None,
                Some(left) => std::thread::park_timeout(left),
            }
        }
    }
}

impl FileSystem for Engine {
    fn block_on<T: Future>(&self, future: T) -> T::Output {
        of!(self, fs => fs.block_on(future))
    }

    async fn lookup(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<Attr> {
        of!(self, fs => fs.lookup(cred, parent, name).await)
    }

    async fn walk(&self, cred: &Cred, base: Ino, path: &[u8]) -> Result<Attr> {
        of!(self, fs => fs.walk(cred, base, path).await)
    }

    fn find_now(&self, cred: &Cred, base: Ino, path: &[u8]) -> Option<(Ino, FileType)> {
        of!(self, fs => fs.find_now(cred, base, path))
    }

    fn walk_now(&self, cred: &Cred, base: Ino, path: &[u8]) -> Option<Result<Attr>> {
        of!(self, fs => fs.walk_now(cred, base, path))
    }

    fn read_now(&self, handle: Handle, offset: u64, to: &mut [u8]) -> Option<Result<usize>> {
        of!(self, fs => fs.read_now(handle, offset, to))
    }

    async fn getattr(&self, ino: Ino, handle: Option<Handle>) -> Result<Attr> {
        of!(self, fs => fs.getattr(ino, handle).await)
    }

    async fn setattr(&self, cred: &Cred, ino: Ino, set: SetAttr) -> Result<Attr> {
        of!(self, fs => fs.setattr(cred, ino, set).await)
    }

    async fn access(&self, cred: &Cred, ino: Ino, mask: Access) -> Result<()> {
        of!(self, fs => fs.access(cred, ino, mask).await)
    }

    async fn readlink(&self, cred: &Cred, ino: Ino) -> Result<Vec<u8>> {
        of!(self, fs => fs.readlink(cred, ino).await)
    }

    async fn mknod(&self, cred: &Cred, parent: Ino, name: &[u8], mode: u32, rdev: u64) -> Result<Attr> {
        of!(self, fs => fs.mknod(cred, parent, name, mode, rdev).await)
    }

    async fn mkdir(&self, cred: &Cred, parent: Ino, name: &[u8], perm: u16) -> Result<Attr> {
        of!(self, fs => fs.mkdir(cred, parent, name, perm).await)
    }

    async fn symlink(&self, cred: &Cred, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        of!(self, fs => fs.symlink(cred, parent, name, target).await)
    }

    async fn link(&self, cred: &Cred, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        of!(self, fs => fs.link(cred, ino, parent, name).await)
    }

    async fn unlink(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<()> {
        of!(self, fs => fs.unlink(cred, parent, name).await)
    }

    async fn rmdir(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<()> {
        of!(self, fs => fs.rmdir(cred, parent, name).await)
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
        of!(self, fs => fs.rename(cred, parent, name, new_parent, new_name, flags).await)
    }

    async fn open(&self, cred: &Cred, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        of!(self, fs => fs.open(cred, ino, flags).await)
    }

    async fn open_exact(&self, cred: &Cred, exactly: (Ino, u32), flags: OpenFlags) -> Result<Handle> {
        of!(self, fs => fs.open_exact(cred, exactly, flags).await)
    }

    async fn create(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &[u8],
        perm: u16,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        of!(self, fs => fs.create(cred, parent, name, perm, flags).await)
    }

    async fn tmpfile(&self, cred: &Cred, parent: Ino, perm: u16, flags: OpenFlags) -> Result<(Attr, Handle)> {
        of!(self, fs => fs.tmpfile(cred, parent, perm, flags).await)
    }

    async fn read(&self, handle: Handle, offset: u64, to: &mut [u8]) -> Result<usize> {
        of!(self, fs => fs.read(handle, offset, to).await)
    }

    async fn write(&self, handle: Handle, offset: u64, from: &[u8]) -> Result<usize> {
        of!(self, fs => fs.write(handle, offset, from).await)
    }

    async fn write_atomic(&self, handle: Handle, pieces: &[(u64, &[u8])]) -> Result<()> {
        of!(self, fs => fs.write_atomic(handle, pieces).await)
    }

    fn commits_at_close(&self) -> bool {
        of!(self, fs => fs.commits_at_close())
    }

    async fn flush(&self, handle: Handle, owner: LockOwner) -> Result<()> {
        of!(self, fs => fs.flush(handle, owner).await)
    }

    async fn release(&self, handle: Handle) -> Result<()> {
        of!(self, fs => fs.release(handle).await)
    }

    async fn fsync(&self, handle: Handle, datasync: bool) -> Result<()> {
        of!(self, fs => fs.fsync(handle, datasync).await)
    }

    async fn barrier(&self, handle: Handle, datasync: bool) -> Result<()> {
        of!(self, fs => fs.barrier(handle, datasync).await)
    }

    async fn sync(&self) -> Result<()> {
        of!(self, fs => fs.sync().await)
    }

    async fn opendir(&self, cred: &Cred, ino: Ino) -> Result<Handle> {
        of!(self, fs => fs.opendir(cred, ino).await)
    }

    async fn readdir(
        &self,
        handle: Handle,
        offset: u64,
        sink: &mut (dyn FnMut(DirEntry<'_>) -> bool + Send),
    ) -> Result<()> {
        of!(self, fs => fs.readdir(handle, offset, sink).await)
    }

    async fn statfs(&self) -> Result<StatFs> {
        of!(self, fs => fs.statfs().await)
    }

    async fn getxattr(&self, cred: &Cred, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        of!(self, fs => fs.getxattr(cred, ino, name).await)
    }

    async fn listxattr(&self, cred: &Cred, ino: Ino) -> Result<Vec<Vec<u8>>> {
        of!(self, fs => fs.listxattr(cred, ino).await)
    }

    async fn setxattr(
        &self,
        cred: &Cred,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        of!(self, fs => fs.setxattr(cred, ino, name, value, flags).await)
    }

    async fn removexattr(&self, cred: &Cred, ino: Ino, name: &[u8]) -> Result<()> {
        of!(self, fs => fs.removexattr(cred, ino, name).await)
    }

    async fn fallocate(&self, handle: Handle, what: Fallocate, offset: u64, len: u64) -> Result<()> {
        of!(self, fs => fs.fallocate(handle, what, offset, len).await)
    }

    async fn seek(&self, handle: Handle, offset: u64, what: Seek) -> Result<u64> {
        of!(self, fs => fs.seek(handle, offset, what).await)
    }

    async fn copy_range(
        &self,
        from: Handle,
        from_offset: u64,
        to: Handle,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        of!(self, fs => fs.copy_range(from, from_offset, to, to_offset, len).await)
    }

    async fn getlk(&self, handle: Handle, owner: LockOwner, lock: RecordLock) -> Result<Option<RecordLock>> {
        of!(self, fs => fs.getlk(handle, owner, lock).await)
    }

    async fn setlk(
        &self,
        handle: Handle,
        owner: LockOwner,
        lock: std::result::Result<RecordLock, (u64, u64)>,
        wait: bool,
    ) -> Result<()> {
        of!(self, fs => fs.setlk(handle, owner, lock, wait).await)
    }

    async fn flock(&self, handle: Handle, kind: Option<LockKind>, wait: bool) -> Result<()> {
        of!(self, fs => fs.flock(handle, kind, wait).await)
    }
}

//! A file system that makes every call wait for another thread before it goes on with the one inside: what a device does to an
//! engine. It shows that requests that wait are served like those that are ready at once. Looking up the name "panic" panics, and listing fails at the name
//! "fails".

use fs::*;
use std::future::{Future, poll_fn};
use std::sync::mpsc::{Sender, channel};
use std::task::{Poll, Waker};

/// See the module documentation.
pub struct Later<F> {
    inner: F,
    wake: Sender<Waker>,
}

impl<F: Sync> Later<F> {
    /// Around `inner`, with one thread that wakes.
    pub fn new(inner: F) -> Later<F> {
        let (wake, wakers) = channel::<Waker>();
        std::thread::spawn(move || wakers.iter().for_each(Waker::wake));
        Later { inner, wake }
    }

    fn pause(&self) -> impl Future<Output = ()> + Send {
        let mut asked = false;
        poll_fn(move |cx| {
            if std::mem::replace(&mut asked, true) {
                return Poll::Ready(());
            }
            let _ = self.wake.send(cx.waker().clone());
            Poll::Pending
        })
    }
}

macro_rules! delegate {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty;)*) => { $(
        async fn $name(&self $(, $arg: $ty)*) -> Result<$out> {
            self.pause().await;
            self.inner.$name($($arg),*).await
        }
    )* };
}

impl<F: FileSystem> FileSystem for Later<F> {
    async fn lookup(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.pause().await;
        assert!(name != b"panic", "planted panic");
        self.inner.lookup(cred, parent, name).await
    }

    async fn readdir(
        &self,
        handle: Handle,
        offset: u64,
        sink: &mut (dyn FnMut(DirEntry<'_>) -> bool + Send),
    ) -> Result<()> {
        self.pause().await;
        let mut fails = false;
        let mut until = |entry: DirEntry<'_>| {
            fails = entry.name == b"fails";
            !fails && sink(entry)
        };
        self.inner.readdir(handle, offset, &mut until).await?;
        if fails { Err(Error::Invalid("planted")) } else { Ok(()) }
    }

    delegate! {
        getattr(ino: Ino, handle: Option<Handle>) -> Attr;
        setattr(cred: &Cred, ino: Ino, set: SetAttr) -> Attr;
        access(cred: &Cred, ino: Ino, mask: Access) -> ();
        readlink(cred: &Cred, ino: Ino) -> Vec<u8>;
        mknod(cred: &Cred, parent: Ino, name: &[u8], mode: u32, rdev: u64) -> Attr;
        mkdir(cred: &Cred, parent: Ino, name: &[u8], perm: u16) -> Attr;
        symlink(cred: &Cred, parent: Ino, name: &[u8], target: &[u8]) -> Attr;
        link(cred: &Cred, ino: Ino, parent: Ino, name: &[u8]) -> Attr;
        unlink(cred: &Cred, parent: Ino, name: &[u8]) -> ();
        rmdir(cred: &Cred, parent: Ino, name: &[u8]) -> ();
        rename(cred: &Cred, parent: Ino, name: &[u8], to: Ino, new: &[u8], flags: RenameFlags) -> ();
        open(cred: &Cred, ino: Ino, flags: OpenFlags) -> Handle;
        create(cred: &Cred, parent: Ino, name: &[u8], perm: u16, flags: OpenFlags) -> (Attr, Handle);
        tmpfile(cred: &Cred, parent: Ino, perm: u16, flags: OpenFlags) -> (Attr, Handle);
        read(handle: Handle, offset: u64, to: &mut [u8]) -> usize;
        write(handle: Handle, offset: u64, from: &[u8]) -> usize;
        flush(handle: Handle, owner: LockOwner) -> ();
        release(handle: Handle) -> ();
        fsync(handle: Handle, datasync: bool) -> ();
        barrier(handle: Handle, datasync: bool) -> ();
        sync() -> ();
        opendir(cred: &Cred, ino: Ino) -> Handle;
        statfs() -> StatFs;
        getxattr(cred: &Cred, ino: Ino, name: &[u8]) -> Vec<u8>;
        listxattr(cred: &Cred, ino: Ino) -> Vec<Vec<u8>>;
        setxattr(cred: &Cred, ino: Ino, name: &[u8], value: &[u8], flags: XattrFlags) -> ();
        removexattr(cred: &Cred, ino: Ino, name: &[u8]) -> ();
        fallocate(handle: Handle, what: Fallocate, offset: u64, len: u64) -> ();
        seek(handle: Handle, offset: u64, what: Seek) -> u64;
        copy_range(from: Handle, from_offset: u64, to: Handle, to_offset: u64, len: u64) -> u64;
        getlk(handle: Handle, owner: LockOwner, lock: RecordLock) -> Option<RecordLock>;
        setlk(handle: Handle, owner: LockOwner, lock: std::result::Result<RecordLock, (u64, u64)>, wait: bool) -> ();
        flock(handle: Handle, kind: Option<LockKind>, wait: bool) -> ();
    }
}

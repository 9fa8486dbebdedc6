//! The kernel is told of what sessions change: while it waits for them, while it has things locked, and beside answers that say what was before.

use crate::helpers::*;
use fs::{Client, Cred, FileSystem, Ino, RenameFlags, Watched};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// A volume with a kernel that is told of changes.
fn mounted() -> (Watched<block::Volume>, tempfile::TempDir, fuse::Mount) {
    let media = Arc::new(media::RamMedia::new(64 << 20).unwrap());
    block::mkfs(media.clone(), &Default::default()).unwrap();
    mounted_from(media)
}

fn mounted_from(media: Arc<dyn media::Media>) -> (Watched<block::Volume>, tempfile::TempDir, fuse::Mount) {
    let doors = Watched::new(Arc::new(block::Volume::open(media, Default::default()).unwrap()));
    let dir = tempfile::tempdir().unwrap();
    let mount = fuse::mount(Arc::new(doors.clone()), dir.path(), Default::default()).unwrap();
    doors.watch(Arc::new(mount.notifications()));
    (doors, dir, mount)
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// One thread makes two calls of sessions. The first has the turn of a name and waits for the device; the kernel makes that name, so it has
/// its directory locked and waits for the turn; the second has changed another name in that directory.
#[test]
fn the_kernel_is_told_while_it_waits_for_a_suspended_call() {
    if !can_mount() {
        return;
    }
    let device = Arc::new(sim::gate::Gate::new(64 << 20).unwrap());
    block::mkfs(device.clone(), &Default::default()).unwrap();
    let volume = block::Volume::open(device.clone(), Default::default()).unwrap();
    Client::new(Arc::new(volume.clone()), Cred::root()).blocking().write("/cold", b"x").unwrap();
    volume.close_blocking().unwrap();
    let (doors, dir, mount) = mounted_from(device.clone());
    let (session, cred) = (doors.door(), Cred::root());
    std::fs::write(dir.path().join("known"), b"x").unwrap();
    assert!(dir.path().join("absent").symlink_metadata().is_err());

    let woken = Arc::new(Woken(AtomicBool::new(false)));
    let waker = Waker::from(woken.clone());
    let mut cx = Context::from_waker(&waker);
    // The rest of a file that nobody has used yet is to be read.
    device.close_for_all();
    let renamed = session.rename(&cred, Ino::ROOT, b"cold", Ino::ROOT, b"taken", RenameFlags::default());
    let mut first: Pin<Box<_>> = Box::pin(renamed);
    assert!(first.as_mut().poll(&mut cx).is_pending());
    let taken = dir.path().join("taken");
    let kernel = std::thread::spawn(move || std::fs::create_dir(taken));
    std::thread::sleep(Duration::from_millis(300));
    assert!(!kernel.is_finished(), "it waits for the turn");

    let mut second: Pin<Box<_>> = Box::pin(session.unlink(&cred, Ino::ROOT, b"known"));
    assert!(second.as_mut().poll(&mut cx).is_pending(), "the kernel has its directory locked");
    device.open();
    // Both have the kernel told, and are woken when it has taken that in.
    let mut renamed = first.as_mut().poll(&mut cx);
    let mut unlinked = Poll::Pending;
    eventually("the calls end", || {
        if woken.0.swap(false, Ordering::SeqCst) {
            if renamed.is_pending() {
                renamed = first.as_mut().poll(&mut cx);
            }
            if unlinked.is_pending() {
                unlinked = second.as_mut().poll(&mut cx);
            }
        }
        renamed.is_ready() && unlinked.is_ready()
    });
    assert!(matches!((renamed, unlinked), (Poll::Ready(Ok(_)), Poll::Ready(Ok(())))));
    assert_eq!(kernel.join().unwrap().unwrap_err().raw_os_error(), Some(libc::EEXIST));
    assert!(dir.path().join("known").symlink_metadata().is_err(), "what it kept is gone");
    unmount(&mount);
}

/// What changes no name takes none from those who have it: a rename of a name to itself, or to another one of the same file, and what is refused.
#[test]
fn a_name_that_stays_is_kept() {
    if !can_mount() {
        return;
    }
    let (doors, dir, mount) = mounted();
    let (session, cred) = (doors.door(), Cred::root());
    for name in ["d", "other", "other/full"] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
    }
    std::fs::write(dir.path().join("f"), b"x").unwrap();
    std::fs::hard_link(dir.path().join("f"), dir.path().join("g")).unwrap();
    let held = ["d", "f", "g"].map(|name| {
        let path = dir.path().join(name);
        (std::fs::File::open(&path).unwrap(), path)
    });
    let rename = |from: &[u8], to: &[u8]| {
        fs::block_on(session.rename(&cred, Ino::ROOT, from, Ino::ROOT, to, RenameFlags::default()))
    };
    assert_eq!((rename(b"d", b"d"), rename(b"f", b"g"), rename(b"g", b"g")), (Ok(()), Ok(()), Ok(())));
    assert_eq!(rename(b"d", b"other"), Err(fs::Error::NotEmpty));
    assert!(fs::block_on(session.mkdir(&cred, Ino::ROOT, b"d", 0o755)).is_err());
    for (file, path) in &held {
        let name = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        assert_eq!(name, *path);
    }
    assert_eq!((rename(b"d", b"e"), dir.path().join("d").exists()), (Ok(()), false));
    drop(held);
    unmount(&mount);
}

/// A program reads what a session has just appended, while another changes attributes of the file and makes links to it through the kernel: answers that
/// say how long the file was before. The kernel itself counts attributes as valid an instant before it has the size, so a few reads may be short.
#[test]
fn answers_with_older_attributes_do_not_count() {
    if !can_mount() {
        return;
    }
    let (doors, dir, mount) = mounted();
    let path = dir.path().join("file");
    let file = std::fs::File::create(&path).unwrap();
    let (session, cred) = (doors.door(), Cred::root());
    let ino = fs::block_on(session.lookup(&cred, Ino::ROOT, b"file")).unwrap().ino;
    let handle = fs::block_on(session.open(&cred, ino, fs::OpenFlags::WRITE)).unwrap();
    let (over, begun) = (AtomicBool::new(false), Instant::now());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut links = (0..).map(|number| dir.path().join(format!("link{number}")));
            // Not for ever, should the other thread fail.
            while !over.load(Ordering::Relaxed) && begun.elapsed() < Duration::from_secs(20) {
                (0..20).for_each(|_| std::os::unix::fs::fchown(&file, Some(0), Some(0)).unwrap());
                std::fs::hard_link(&path, links.next().unwrap()).unwrap();
            }
        });
        let reader = std::fs::File::open(&path).unwrap();
        let (mut at, mut short) = (0, 0u64);
        while begun.elapsed() < Duration::from_secs(2) {
            let bytes = [7; 100];
            assert_eq!(fs::block_on(session.write(handle, at, &bytes)).unwrap(), 100);
            let mut read = [0; 100];
            let n = reader.read_at(&mut read, at).unwrap();
            short += (n < 100) as u64;
            at += 100;
        }
        over.store(true, Ordering::Relaxed);
        let calls = at / 100;
        println!("{short} of {calls}");
        assert!(short <= 2 + calls / 1000, "{short} of {calls}");
    });
    drop(file);
    unmount(&mount);
}

/// Memory that is not there until somebody says what it holds (userfaultfd(2)): who touches it waits.
struct Absent {
    at: *mut libc::c_void,
    faults: OwnedFd,
}

// SAFETY: the memory is touched by the kernel alone.
unsafe impl Sync for Absent {}

impl Absent {
    const LEN: usize = 64 << 10;

    /// `None` where the kernel has no such thing.
    fn new() -> Option<Absent> {
        const API: u64 = 0xc018_aa3f;
        const REGISTER: u64 = 0xc020_aa00;
        // SAFETY: a system call without memory.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
        if fd < 0 {
            return None;
        }
        // SAFETY: a descriptor that is nobody else's.
        let faults = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: memory of its own.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), Self::LEN, protection, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        // struct uffdio_api, and struct uffdio_register for pages that are missing.
        let (mut api, mut register) = ([0xaau64, 0, 0], [at as u64, Self::LEN as u64, 1, 0]);
        // SAFETY: structures as these requests have them.
        unsafe {
            check(libc::ioctl(fd as i32, API, api.as_mut_ptr())).unwrap();
            check(libc::ioctl(fd as i32, REGISTER, register.as_mut_ptr())).unwrap();
        }
        Some(Absent { at, faults })
    }

    /// Waits until somebody touches it.
    fn touched(&self) {
        let mut message = [0u64; 4];
        let len = size_of_val(&message);
        // SAFETY: memory of its own, of this length.
        let read = unsafe { libc::read(self.faults.as_raw_fd(), message.as_mut_ptr().cast(), len) };
        check(read as i64).unwrap();
    }

    /// It is memory like any other.
    fn filled(&self) {
        const UNREGISTER: u64 = 0x8010_aa01;
        let mut range = [self.at as u64, Self::LEN as u64];
        // SAFETY: a structure as this request has it.
        check(unsafe { libc::ioctl(self.faults.as_raw_fd(), UNREGISTER, range.as_mut_ptr()) }).unwrap();
    }
}

impl Drop for Absent {
    fn drop(&mut self) {
        self.filled();
        // SAFETY: mapped by `new`; nobody uses it any more.
        unsafe { libc::munmap(self.at, Self::LEN) };
    }
}

/// Somebody lists directories into memory that is not there, so that the kernel has them locked for ever: changes in them wait, others do not.
#[test]
fn locked_directories_hold_up_nobody_else() {
    if !can_mount() {
        return;
    }
    let (doors, dir, mount) = mounted();
    let (session, cred) = (doors.door(), Cred::root());
    let names = ["a", "b", "c", "d"];
    let made = names.map(|name| {
        std::fs::create_dir(dir.path().join(name)).unwrap();
        std::fs::write(dir.path().join(name).join("known"), b"x").unwrap();
        fs::block_on(session.lookup(&cred, Ino::ROOT, name.as_bytes())).unwrap().ino
    });
    let locked = [(); 3].map(|()| Absent::new());
    if locked.iter().any(Option::is_none) {
        println!("skipped: no userfaultfd");
        return;
    }
    let locked = locked.map(Option::unwrap);
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for (at, memory) in locked.iter().enumerate() {
            let listed = std::fs::File::open(dir.path().join(names[at])).unwrap();
            scope.spawn(move || {
                let (memory, len) = (memory, Absent::LEN);
                // SAFETY: the memory is there until this thread has ended.
                check(unsafe { libc::syscall(libc::SYS_getdents64, listed.as_raw_fd(), memory.at, len) })
                    .unwrap()
            });
            memory.touched();
        }
        for (at, parent) in made.into_iter().enumerate() {
            let (session, cred, done) = (&session, &cred, &done);
            scope.spawn(move || {
                fs::block_on(session.unlink(cred, parent, b"known")).unwrap();
                done.fetch_or(1 << at, Ordering::SeqCst);
            });
            std::thread::sleep(Duration::from_millis(20));
        }
        let ended = || done.load(Ordering::SeqCst);
        let begun = Instant::now();
        while ended() != 0b1000 && begun.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_millis(100));
        let before = ended();
        // Whatever was found: others than this test may be waiting.
        locked.iter().for_each(Absent::filled);
        assert_eq!(before, 0b1000);
        eventually("the others end", || ended() == 0b1111);
    });
    for name in names {
        assert_eq!(errno(dir.path().join(name).join("known").symlink_metadata()), libc::ENOENT, "{name}");
    }
    unmount(&mount);
}

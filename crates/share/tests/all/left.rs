//! Files that are left to who has a description, and inodes that stay what they are by pins; what clients get by lying about either.

use crate::rig::{NEW, Rig, volume};
use fs::{Cred, Error, FileSystem, Handle, Ino, OpenFlags};
use rustix::fs::{MemfdFlags, SealFlags};
use share::{Description, Remote};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// A memory, and a description of it that stands for byte 9.
fn description() -> (OwnedFd, OwnedFd) {
    let memory = rustix::fs::memfd_create(c"test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    let description = again(&memory).unwrap();
    // SAFETY: all zeros is a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_start, lock.l_len) = (libc::F_WRLCK as _, 9, 1);
    // SAFETY: the argument is what the command needs.
    assert_eq!(unsafe { libc::fcntl(description.as_raw_fd(), libc::F_OFD_SETLK, &lock) }, 0);
    (memory, description)
}

fn again(fd: &OwnedFd) -> std::io::Result<OwnedFd> {
    Ok(std::fs::File::options()
        .read(true)
        .write(true)
        .open(format!("/proc/self/fd/{}", fd.as_raw_fd()))?
        .into())
}

fn about<T>(memory: &OwnedFd, call: impl FnOnce(&Description<'_>) -> T) -> T {
    about_at(memory, 9, call)
}

fn about_at<T>(memory: &OwnedFd, at: u64, call: impl FnOnce(&Description<'_>) -> T) -> T {
    let open = || again(memory);
    call(&Description { memory: rustix::fs::fstat(memory).unwrap().st_ino, at, open: &open })
}

struct One(Remote);

impl One {
    fn new<F: FileSystem>(rig: &Rig<F>) -> One {
        One(Remote::connect(rig.dir.path().join("socket")).unwrap())
    }

    fn inode(&self, name: &[u8]) -> (Ino, u32) {
        let attr = self.0.block_on(self.0.lookup(&Cred::of_process(), Ino::ROOT, name)).unwrap();
        (attr.ino, attr.generation)
    }

    fn open(&self, inode: (Ino, u32), flags: OpenFlags) -> Handle {
        self.0.block_on(self.0.open_exact(&Cred::of_process(), inode, flags)).unwrap()
    }

    fn leave(&self, handle: Handle, memory: &OwnedFd) -> fs::Result<()> {
        about(memory, |description| self.0.block_on(self.0.leave(handle, description)))
    }

    fn open_left(&self, inode: (Ino, u32), flags: OpenFlags, memory: &OwnedFd) -> fs::Result<Handle> {
        about(memory, |description| self.0.block_on(self.0.open_left(inode, flags, description)))
    }
}

fn rig() -> Rig<block::Volume> {
    let rig = Rig::new(volume(64 << 20));
    rig.beside.open("f", NEW).unwrap().write_all_at(b"here", 0).unwrap();
    rig
}

#[test]
fn a_file_without_a_name_is_opened_by_whom_it_was_left_to() {
    let rig = rig();
    let (memory, description) = description();
    let a = One::new(&rig);
    let file = a.inode(b"f");
    let handle = a.open(file, OpenFlags::READ | OpenFlags::WRITE);
    a.leave(handle, &memory).unwrap();
    a.leave(handle, &memory).expect("once more");
    rig.beside.unlink("f").unwrap();
    drop(a);
    // Long enough for the manager to have noticed the end of that session.
    std::thread::sleep(Duration::from_millis(200));
    let b = One::new(&rig);
    let handle = b.open_left(file, OpenFlags::READ, &memory).unwrap();
    let mut bytes = [0; 4];
    assert_eq!(b.0.block_on(b.0.read(handle, 0, &mut bytes)), Ok(4));
    assert_eq!(&bytes, b"here");
    b.0.block_on(b.0.release(handle)).unwrap();
    b.open_left(file, OpenFlags::WRITE, &memory)
        .map(|handle| b.0.block_on(b.0.release(handle)).unwrap())
        .unwrap();
    // With the description it goes.
    drop((description, memory));
    let begun = Instant::now();
    while rig.doors.block_on(rig.doors.getattr(file.0, None)).is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(10), "it is still there");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// As another user than root, whom the permissions would stop.
#[test]
fn no_more_is_opened_than_was_left() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can become somebody else");
    }
    let rig = rig();
    rig.beside.chmod("f", 0o000).unwrap();
    let socket = rig.dir.path().join("socket");
    let (memory, _description) = description();
    let (other_memory, _other) = description();
    let as_user = |user: u32, group: u32, groups: &'static [u32]| {
        let socket = socket.clone();
        // The raw calls change this thread alone.
        std::thread::spawn(move || {
            // SAFETY: changes groups and user of this thread, which ends; the list lives for ever.
            unsafe {
                let all = groups.as_ptr();
                assert_eq!(libc::syscall(libc::SYS_setgroups, groups.len(), all), 0);
                assert_eq!(libc::syscall(libc::SYS_setresgid, group, group, group), 0);
                assert_eq!(libc::syscall(libc::SYS_setresuid, user, user, user), 0);
            }
            One(Remote::connect(socket).unwrap())
        })
        .join()
        .unwrap()
    };
    let file = One::new(&rig).inode(b"f");
    rig.beside.chmod("f", 0o444).unwrap();
    let a = as_user(4321, 4321, &[5, 6]);
    let handle = a.open(file, OpenFlags::READ);
    rig.beside.chmod("f", 0o000).unwrap();
    let (b, stranger) = (as_user(4321, 4321, &[5, 6]), as_user(4322, 4321, &[5, 6]));
    let refused = |one: &One, flags, memory: &OwnedFd| one.open_left(file, flags, memory).unwrap_err();
    assert_eq!(refused(&b, OpenFlags::READ, &memory), Error::AccessDenied, "nothing was left");
    a.leave(handle, &memory).unwrap();
    b.open_left(file, OpenFlags::READ, &memory).unwrap();
    assert_eq!(refused(&b, OpenFlags::WRITE, &memory), Error::AccessDenied, "for reading only");
    assert_eq!(refused(&b, OpenFlags::READ | OpenFlags::TRUNCATE, &memory), Error::AccessDenied);
    assert_eq!(refused(&b, OpenFlags::READ, &other_memory), Error::AccessDenied, "another description");
    assert_eq!(refused(&stranger, OpenFlags::READ, &memory), Error::AccessDenied, "another user");
    // It was opened with the credentials as a whole.
    let (group, fewer) = (as_user(4321, 4322, &[5, 6]), as_user(4321, 4321, &[5]));
    assert_eq!(refused(&group, OpenFlags::READ, &memory), Error::AccessDenied, "another group");
    assert_eq!(refused(&fewer, OpenFlags::READ, &memory), Error::AccessDenied, "other groups");
    // What it does not have open it cannot leave, nor another file by the same description.
    assert_eq!(stranger.leave(handle, &memory), Err(Error::BadHandle));
    rig.beside.open("g", NEW).unwrap();
    rig.beside.chmod("g", 0o666).unwrap();
    let g = b.inode(b"g");
    assert_eq!(b.leave(b.open(g, OpenFlags::READ), &memory), Err(Error::BadHandle));
    b.open_left(g, OpenFlags::WRITE, &memory).expect("an ordinary open");
}

/// What others could open for themselves, as it looks now, takes no room from what they could not.
#[test]
fn files_with_names_leave_room_for_those_without() {
    let rig = rig();
    let (memory, _description) = description();
    let a = One::new(&rig);
    let file = a.inode(b"f");
    let handles: Vec<_> = (0..2100).map(|_| a.open(file, OpenFlags::READ)).collect();
    let leave = |n: usize| {
        let left = |description: &Description<'_>| a.0.block_on(a.0.leave(handles[n], description));
        about_at(&memory, n as u64, left)
    };
    let left = (0..).take_while(|&n| leave(n).is_ok()).count();
    assert_eq!((left, leave(left)), (1024, Err(Error::TooManyOpen)));
    rig.beside.unlink("f").unwrap();
    let left = (0..).take_while(|&n| leave(n).is_ok()).count();
    assert_eq!((left, leave(left)), (2048, Err(Error::TooManyOpen)));
    // One that goes makes room for another.
    a.0.block_on(a.0.release(handles[7])).unwrap();
    let begun = Instant::now();
    while leave(left).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(10), "nobody has that description");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(leave(left + 1), Err(Error::TooManyOpen));
}

#[test]
fn a_slot_is_not_used_again_while_it_is_pinned() {
    let rig = rig();
    let (a, b) = (One::new(&rig), One::new(&rig));
    rig.beside.mkdir("d", 0o755).unwrap();
    let dir = a.inode(b"d");
    let pin = a.0.block_on(a.0.pin(dir)).unwrap();
    assert!(a.0.has(&pin));
    rig.beside.rmdir("d").unwrap();
    let made = |count: usize| -> Vec<Ino> {
        let make = |i| {
            rig.beside.mkdir(format!("n{i}"), 0o755).unwrap();
            rig.beside.stat(format!("n{i}")).unwrap().ino.on_medium()
        };
        let all = (0..count).map(make).collect();
        (0..count).for_each(|i| rig.beside.rmdir(format!("n{i}")).unwrap());
        all
    };
    assert!(!made(20).contains(&dir.0.on_medium()), "it is taken");
    assert_eq!(a.0.block_on(a.0.getattr(dir.0, None)).unwrap().nlink, 0);
    a.0.block_on(a.0.unpin(pin)).unwrap();
    assert!(made(20).contains(&dir.0.on_medium()), "it is free");
    assert!(matches!(a.0.block_on(a.0.pin(dir)), Err(Error::Stale)));
    // With its session a pin goes, too.
    rig.beside.mkdir("d", 0o700).unwrap();
    let again = b.inode(b"d");
    let _pin = b.0.block_on(b.0.pin(again)).unwrap();
    rig.beside.rmdir("d").unwrap();
    assert!(!made(20).contains(&again.0.on_medium()));
    drop(b);
    let begun = Instant::now();
    while !made(20).contains(&again.0.on_medium()) {
        assert!(begun.elapsed() < Duration::from_secs(10), "it is never given back");
        std::thread::sleep(Duration::from_millis(5));
    }
}

//! Clients that want to see or keep what is not theirs: pages in arenas, and files that they say they have open.
//!
//! As tests/all/hostile.rs, with the same attacker.

use crate::attacker::*;
use format::shared::*;
use fs::{Client, Cred};
use rustix::mm::{MapFlags, ProtFlags};
use share::{Remote, server::Options};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What of an arena is mapped.
const LEN: usize = arena_bytes(64);

/// The pages of an arena, as its clients can map them.
struct Pages(*mut u8);

impl Pages {
    fn of(attacker: &Attacker) -> Pages {
        let map = |prot| {
            // SAFETY: a new mapping at an address that the kernel chooses.
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), LEN, prot, MapFlags::SHARED, &attacker.arena, 0) }
        };
        assert!(map(ProtFlags::READ | ProtFlags::WRITE).is_err(), "mapped for writing");
        assert!(rustix::io::pwrite(&attacker.arena, &[1], 5000).is_err(), "written to");
        assert!(rustix::fs::ftruncate(&attacker.arena, 0).is_err());
        Pages(map(ProtFlags::READ).unwrap().cast())
    }

    fn contain(&self, what: &[u8]) -> bool {
        // SAFETY: within the mapping; nobody changes the pages while the test looks at them.
        let pages = unsafe { std::slice::from_raw_parts(self.0.add(ARENA_DATA_AT), 64 * 4096) };
        pages.windows(what.len()).any(|w| w == what)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours.
        unsafe {
            let _ = rustix::mm::munmap(self.0.cast(), LEN);
        }
    }
}

/// Becomes somebody else, in this thread alone.
fn become_stranger() {
    // SAFETY: plain system calls without memory arguments, but for setgroups with a null list of length 0.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<u32>()), 0);
        assert_eq!(libc::syscall(libc::SYS_setresgid, 4321, 4321, 4321), 0);
        assert_eq!(libc::syscall(libc::SYS_setresuid, 4321, 4321, 4321), 0);
    }
}

#[test]
fn pages_are_seen_by_their_readers_alone() {
    if Cred::of_process().uid != 0 {
        return eprintln!("skipped: needs root to become somebody else");
    }
    let (server, dir) = server(Options::default());
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let fs = Client::new(Arc::new(Remote::connect(server.path()).unwrap()), Cred::root()).blocking();
    for (name, text, perm) in [("/secret", "a secret", 0o600), ("/open", "no secret", 0o644)] {
        fs.write(name, text.as_bytes()).unwrap();
        fs.chmod(name, perm).unwrap();
    }
    let (secret, open) = (fs.stat("/secret").unwrap().ino.0, fs.stat("/open").unwrap().ino.0);
    let path = server.path();
    let attack = |mine: u64, refused: Option<u64>| {
        let attacker = Attacker::new(path);
        let opens = |ino, flags: u32| attacker.call(&Request { flags: flags.into(), ..request(OPEN, ino) });
        let reads =
            |handle: u64| attacker.call(&Request { flags: 1.into(), len: 9.into(), ..request(READ, handle) });
        if let Some(ino) = refused {
            assert_eq!(opens(ino, 1).errno.get(), libc::EACCES);
        } else {
            let writer = opens(mine, 2).value.get();
            assert_eq!(reads(writer).errno.get(), libc::EBADF, "through a handle for writing");
        }
        let reply = reads(opens(mine, 1).value.get());
        assert_eq!((reply.errno.get(), reply.pages.get()), (0, 1));
        attacker
    };
    // Root reads both, and root's clients can see them.
    let (one, two) = (attack(secret, None), attack(open, None));
    for attacker in [&one, &two] {
        let pages = Pages::of(attacker);
        assert!(pages.contain(b"a secret") && pages.contain(b"no secret"));
    }
    std::thread::scope(|s| {
        let stranger = s.spawn(|| {
            become_stranger();
            let attacker = attack(open, Some(secret));
            let pages = Pages::of(&attacker);
            assert!(!pages.contain(b"a secret") && pages.contain(b"no secret"));
            // What is shown when a file is closed is what the client may read; and only of that it says that it has read it.
            let closes = |name: &str, perm: u16| {
                fs.write(name, format!("text of {name}")).unwrap();
                fs.chmod(name, perm).unwrap();
                fs.chown(name, Some(4321), None).unwrap();
                let ino = fs.stat(name).unwrap().ino.0;
                let writer = attacker.call(&Request { flags: 2.into(), ..request(OPEN, ino) });
                let closed = attacker.call(&request(RELEASE, writer.value.get()));
                assert_eq!((writer.errno.get(), closed.errno.get()), (0, 0));
                assert_eq!(pages.contain(format!("text of {name}").as_bytes()), perm & 0o400 != 0, "{name}");
                (ino, fs.stat(name).unwrap().generation as u64)
            };
            for (name, perm, errno) in [("/drop", 0o200, libc::EACCES), ("/both", 0o600, 0)] {
                let (ino, generation) = closes(name, perm);
                let was_read = Request { other: generation.into(), ..request(WAS_READ, ino) };
                assert_eq!(attacker.call(&was_read).errno.get(), errno);
                let other = Request { other: (generation + 1).into(), ..request(WAS_READ, ino) };
                let refused = if errno == 0 { libc::ESTALE } else { errno };
                assert_eq!(attacker.call(&other).errno.get(), refused);
            }
            // Who has it open reads on when others may no longer open it, but not where others look.
            let handle = attacker.call(&Request { flags: 1.into(), ..request(OPEN, open) }).value.get();
            fs.chmod("/open", 0o600).unwrap();
            fs.write("/open", b"by now it is one").unwrap();
            let read = Request { flags: 1.into(), len: 99.into(), ..request(READ, handle) };
            let reply = attacker.call(&read);
            assert_eq!((reply.errno.get(), reply.pages.get()), (0, 0));
            assert!(reply.len.get() > 16 && !pages.contain(b"by now it is one"));
        });
        stranger.join().unwrap();
    });
    still_there(&server);
}

/// What a client says it holds is what it could have opened.
#[test]
fn holds_of_what_may_not_be_opened() {
    if Cred::of_process().uid != 0 {
        return eprintln!("skipped: needs root to become somebody else");
    }
    const UNHOLD: u16 = 38;
    let (server, dir) = server(Options::default());
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let fs = Client::new(Arc::new(Remote::connect(server.path()).unwrap()), Cred::root()).blocking();
    fs.write("/open", b"x").unwrap();
    fs.chmod("/open", 0o666).unwrap();
    let open = fs.stat("/open").unwrap().ino.0;
    std::thread::scope(|s| {
        let stranger = s.spawn(|| {
            become_stranger();
            let attacker = Attacker::new(server.path());
            assert_eq!(attacker.call(&Request { flags: 1.into(), ..request(OPEN, open) }).errno.get(), 0);
            let word = |line: usize, i: usize| attacker.long(HOLDS_AT + (line * HOLDS_IN_LINE + i) * 8);
            for round in 0..100 {
                fs.write("/secret", b"x").unwrap();
                fs.chmod("/secret", 0o600).unwrap();
                let attr = fs.stat("/secret").unwrap();
                let ino = attr.ino.0;
                // It says so of everything there is, in all ways.
                for line in 0..HOLD_LINES {
                    for i in 0..HOLDS_IN_LINE {
                        let of = if line == hold_line(ino) { ino } else { round * 7 + i as u64 };
                        word(line, i).store(hold_word(of, i & 1 == 0, i & 2 == 0), Ordering::SeqCst);
                    }
                }
                fs.chmod("/secret", 0o400).unwrap();
                let again = Request { flags: 3.into(), extra: 1.into(), ..request(OPEN, ino) };
                assert_eq!(attacker.call(&again).errno.get(), libc::EACCES);
                let other = (attr.generation as u64).into();
                let read = Request { flags: 3.into(), other, len: 9.into(), ..request(READ, ino) };
                assert_eq!(attacker.call(&read).errno.get(), libc::EACCES);
                fs.unlink("/secret").unwrap();
                assert_ne!(attacker.call(&again).errno.get(), 0);
                attacker.call(&request(UNHOLD, ino));
                attacker.call(&request(UNHOLD, u64::MAX));
            }
        });
        stranger.join().unwrap();
    });
    still_there(&server);
}

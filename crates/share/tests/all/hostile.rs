//! Clients that do not keep to the rules, written without the client's code: raw memory and a raw socket.
//!
//! Each line of the threat model (docs/SECURITY.md, "Sessions") that names no other file is attacked here or in hostile_pages.rs. After every attack the server must still serve
//! another client, and the attacker must have got nothing.

use crate::attacker::*;
use format::shared::*;
use fs::client::OpenOptions as Open;
use fs::{Client, Cred, FileSystem, LockKind, OpenFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{RecvFlags, SendFlags};
use share::{Remote, server::Options};
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

#[test]
fn handles_of_others_and_forged_ones() {
    let (server, _dir) = server(Options::default());
    let fs = Client::new(Arc::new(Remote::connect(server.path()).unwrap()), Cred::root()).blocking();
    let file = fs.open("/secret", Open::new().read(true).write(true).create(true)).unwrap();
    file.write_all_at(b"secret", 0).unwrap();
    fs.write("/own", b"own").unwrap();
    let (secret, own) = (fs.stat("/secret").unwrap().ino.0, fs.stat("/own").unwrap().ino.0);
    let (attacker, other) = (Attacker::new(server.path()), Attacker::new(server.path()));
    let open = |who: &Attacker, ino| who.call(&Request { flags: 3.into(), ..request(OPEN, ino) }).value.get();
    let (own, theirs) = (open(&attacker, own), open(&other, secret));
    // Size 0, as `share::wire::set_attr` writes it.
    let mut truncate = [0u64; 18];
    truncate[9] = 1;
    let of_the_client = file.handle().0;
    for handle in [theirs, 0, u64::MAX, theirs + 1, of_the_client, of_the_client - 1] {
        assert_ne!(handle, own);
        // Every call that takes a handle, or the number of a pin.
        let mut calls: Vec<Request> =
            [READ, 19, 20, 21, 22, 23, 26, 32, 33, 34, 35, 36, 37, 39, 40, 47, 48, 52, 54, 55]
                .map(|op| Request { len: 100.into(), other: handle.into(), ..request(op, handle) })
                .into();
        let about = |op, object| Request { flags: 1.into(), other: handle.into(), ..request(op, object) };
        calls.push(about(4, 1));
        calls.push(Request { second: (size_of_val(&truncate) as u32).into(), ..about(5, secret) });
        // Out of a file of its own, and into one.
        for (from, to) in [(own, handle), (handle, own)] {
            calls.push(Request { len: 3.into(), other: to.into(), ..request(34, from) });
        }
        let is_refused = |r: &&Request| {
            // What failed before has said why in the same place.
            attacker.bytes(PAYLOAD_AT, truncate.as_bytes());
            attacker.call(r).errno.get() == libc::EBADF
        };
        let taken: Vec<_> = calls.iter().filter(|r| !is_refused(r)).map(|r| (r.op, r.object)).collect();
        assert!(taken.is_empty(), "with handle {handle}: operation and object {taken:?}");
    }
    assert_eq!((fs.read("/secret").unwrap(), fs.read("/own").unwrap()), (b"secret".into(), b"own".into()));
}

#[test]
fn requests_of_random_bytes() {
    let (server, _dir) = server(Options::default());
    let attacker = Attacker::new(server.path());
    let mut x = 88172645463325252u64;
    let mut random = move || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    for round in 0..20_000 {
        let mut bytes = [0; 64];
        bytes.chunks_exact_mut(8).for_each(|c| c.copy_from_slice(&random().to_le_bytes()));
        let mut r = Request::read_from_bytes(&bytes).unwrap();
        if round % 4 != 0 {
            // Near to something that makes sense.
            r.op = ((random() % OPS as u64) as u16).into();
            r.object = (random() % 4).into();
            r.first = ((random() % 20) as u16).into();
            r.second = ((random() % 300) as u32).into();
            r.flags = (r.flags.get() & 0x1ff).into();
            r.len = (random() % 100_000).into();
            r.offset = (random() % 100_000).into();
        }
        // Waiting for a lock would be a legal wish without an end.
        if matches!(r.op.get(), 36 | 37) {
            r.flags = 0.into();
        }
        attacker.call(&r);
    }
    assert_eq!(attacker.call(&request(OPS, 0)).errno.get(), libc::EOPNOTSUPP, "there is another call");
    still_there(&server);
}

#[test]
fn memory_that_changes_all_the_time() {
    let (server, _dir) = server(Options::default());
    let attacker = Attacker::new(server.path());
    // Of each operation some are answered.
    let all_are_answered =
        || server.stats().door.calls.iter().filter(|c| c.calls() > 0).count() >= OPS as usize;
    let (begun, mut x, mut rounds) = (Instant::now(), 1u64, 0);
    while begun.elapsed() < Duration::from_secs(1) || !all_are_answered() {
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "{rounds} rounds: {:?}",
            server.stats().door.calls
        );
        rounds += 1;
        for slot in 0..SLOTS {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let mut r = request((x >> 48) as u16 % (OPS + 1), 1);
            (r.first, r.second) = (((x >> 20) as u16).into(), ((x >> 30) as u32 & 0x1ffff).into());
            attacker.post(slot, &r);
            // The request changes while it is looked at, and the word says what it likes.
            attacker.bytes(Attacker::slot(slot) + 64 + 2, &[0xff; 6]);
            attacker.word(Attacker::slot(slot)).store((x >> 50) as u32, Ordering::SeqCst);
        }
        attacker.ring(u64::MAX);
        attacker.long(offset_of!(SessionHeader, cancel)).store(x, Ordering::SeqCst);
        attacker.word(offset_of!(SessionHeader, asleep)).store(x as u32, Ordering::SeqCst);
        attacker.word(offset_of!(SessionHeader, throng)).store(x as u32, Ordering::SeqCst);
        attacker.bytes(0, &x.to_le_bytes());
    }
    still_there(&server);
}

#[test]
fn memory_cannot_be_taken_away() {
    let (server, _dir) = server(Options::default());
    let attacker = Attacker::new(server.path());
    assert!(rustix::fs::ftruncate(&attacker.memory, 0).is_err());
    assert!(rustix::fs::ftruncate(&attacker.memory, 1 << 40).is_err());
    let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    let _ = rustix::fs::fallocate(&attacker.memory, hole, 0, SESSION_BYTES as u64);
    attacker.ring(u64::MAX);
    still_there(&server);
}

#[test]
fn too_many_of_everything() {
    let options = Options { sessions_max: 40, handles_max: 100, ..Options::default() };
    let (server, _dir) = server(options);
    // Connections that say nothing, and some that say nonsense.
    let silent: Vec<OwnedFd> = (0..20).map(|_| connect(server.path())).collect();
    for bytes in [&b""[..], b"x", &[0; 64], &[0xff; 200]] {
        let socket = connect(server.path());
        let _ = rustix::net::send(&socket, bytes, SendFlags::empty());
        drop(socket);
    }
    still_there(&server);
    let many: Vec<_> = (0..60).filter_map(|_| Remote::connect(server.path()).ok()).collect();
    assert!(many.len() <= 20, "{} sessions", many.len());
    drop((many, silent));
    let begun = Instant::now();
    while Remote::connect(server.path()).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
    still_there(&server);
    // Handles of one session end at the limit, those of others do not.
    let remote = Arc::new(Remote::connect(server.path()).unwrap());
    let fs = Client::new(remote, Cred::root()).blocking();
    let files: Vec<_> = (0..120)
        .map_while(|i| fs.open(format!("/f{i}"), Open::new().write(true).create(true)).ok())
        .collect();
    assert_eq!(files.len(), 100);
    still_there(&server);
}

/// Whatever they are: files, directories and pins.
#[test]
fn all_that_a_session_has_open_counts() {
    const OPENDIR: u16 = 25;
    const MAX: usize = 12;
    let (server, _dir) = server(Options { handles_max: MAX, ..Options::default() });
    let fs = Client::new(Arc::new(Remote::connect(server.path()).unwrap()), Cred::root()).blocking();
    fs.write("/f", b"").unwrap();
    fs.mkdir("/d", 0o755).unwrap();
    let (file, dir) = (fs.stat("/f").unwrap(), fs.stat("/d").unwrap());
    let pin = Request { other: (dir.generation as u64).into(), ..request(PIN, dir.ino.0) };
    let open = Request { flags: 1.into(), ..request(OPEN, file.ino.0) };
    let opendir = request(OPENDIR, dir.ino.0);
    for all in [&[open][..], &[opendir], &[pin], &[open, opendir, pin]] {
        let attacker = Attacker::new(server.path());
        let mut opened = Vec::new();
        for r in all.iter().cycle().take(MAX) {
            let reply = attacker.call(r);
            assert_eq!(reply.errno.get(), 0, "operation {}, with {} open", r.op, opened.len());
            opened.push((r.op.get(), reply.value.get()));
        }
        for r in [open, opendir, pin] {
            assert_eq!(attacker.call(&r).errno.get(), libc::ENFILE, "operation {} beside {opened:?}", r.op);
        }
        // What is given back makes room for one.
        let (op, number) = opened[0];
        let close = request(if op == PIN { UNPIN } else { RELEASE }, number);
        assert_eq!(attacker.call(&close).errno.get(), 0);
        assert_eq!(attacker.call(&all[0]).errno.get(), 0);
        assert_eq!(attacker.call(&pin).errno.get(), libc::ENFILE);
    }
    still_there(&server);
}

#[test]
fn another_language_is_refused() {
    let (server, _dir) = server(Options::default());
    let socket = connect(server.path());
    let hello = Hello { magic: MAGIC.into(), version: (VERSION + 1).into(), ..Hello::new_zeroed() };
    rustix::net::send(&socket, hello.as_bytes(), SendFlags::empty()).unwrap();
    let mut bytes = [0u8; size_of::<Welcome>()];
    let (n, _) = rustix::net::recv(&socket, &mut bytes, RecvFlags::empty()).unwrap();
    assert_eq!(n, bytes.len());
    assert_eq!(Welcome::read_from_bytes(&bytes).unwrap().errno.get(), libc::EPROTONOSUPPORT);
    still_there(&server);
}

/// Credentials are those of the process, whatever a call says; root's files stay root's.
#[test]
fn credentials_come_from_the_kernel() {
    if Cred::of_process().uid != 0 {
        return eprintln!("skipped: needs root to become somebody else");
    }
    let (server, dir) = server(Options::default());
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let root = Client::new(Arc::new(Remote::connect(server.path()).unwrap()), Cred::root()).blocking();
    root.write("/secret", b"x").unwrap();
    root.chmod("/secret", 0o600).unwrap();
    root.write("/readable", b"x").unwrap();
    root.mkdir("/tmp", 0o1777).unwrap();
    root.chmod("/tmp", 0o1777).unwrap();
    let protected = std::fs::read("/proc/sys/fs/protected_hardlinks").is_ok_and(|word| word[0] != b'0');
    let path = server.path().to_path_buf();
    let child = std::thread::spawn(move || {
        // File system credentials of this thread alone: the raw calls do not reach the others.
        // SAFETY: plain system calls without memory arguments, but for setgroups with a null list of length 0.
        unsafe {
            assert_eq!(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<u32>()), 0);
            assert_eq!(libc::syscall(libc::SYS_setresgid, 4321, 4321, 4321), 0);
            assert_eq!(libc::syscall(libc::SYS_setresuid, 4321, 4321, 4321), 0);
        }
        // Calls that claim to be root's.
        let remote = Arc::new(Remote::connect(path).unwrap());
        let fs = Client::new(remote.clone(), Cred::root()).blocking();
        let attr = fs.stat("/secret").unwrap();
        assert_eq!((attr.uid, attr.perm), (0, 0o600));
        assert_eq!(fs.read("/secret"), Err(fs::Error::AccessDenied));
        assert_eq!(fs.write("/new", b"x"), Err(fs::Error::AccessDenied));
        assert_eq!(fs.chmod("/secret", 0o666).unwrap_err(), fs::Error::NotPermitted);
        // A name in a directory of one's own keeps a file of somebody else alive.
        assert_eq!(fs.link("/readable", "/tmp/kept").is_err(), protected);
        fs.write("/tmp/own", b"x").unwrap();
        fs.link("/tmp/own", "/tmp/own2").unwrap();
        let root = Cred::root();
        let opened = remote.block_on(remote.open(&root, attr.ino, fs::OpenFlags::READ));
        assert_eq!(opened, Err(fs::Error::AccessDenied));
    });
    child.join().unwrap();
}

#[test]
fn memory_of_a_session_is_private() {
    let (server, _dir) = server(Options::default());
    let (a, b) = (Attacker::new(server.path()), Attacker::new(server.path()));
    a.bytes(PAYLOAD_AT, b"private");
    let mut seen = [0; 7];
    // SAFETY: within the mapping.
    unsafe { std::ptr::copy_nonoverlapping(b.base.add(PAYLOAD_AT), seen.as_mut_ptr(), 7) }
    assert_eq!(seen, [0; 7]);
    assert!(a.memory.as_fd().try_clone_to_owned().is_ok());
}

#[test]
fn changes_can_only_be_read() {
    let (server, _dir) = server(Options::default());
    let attacker = Attacker::new(server.path());
    let changes = &attacker.changes;
    let map = |prot| {
        // SAFETY: a new mapping at an address that the kernel chooses.
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4096, prot, MapFlags::SHARED, changes, 0) }
    };
    map(ProtFlags::READ).expect("for reading");
    assert!(map(ProtFlags::READ | ProtFlags::WRITE).is_err());
    assert!(rustix::fs::ftruncate(changes, 0).is_err());
    assert!(rustix::io::pwrite(changes, &[1], 0).is_err());
    if rustix::process::geteuid().is_root() {
        let path = format!("/proc/self/fd/{}", changes.as_raw_fd());
        // Another user who was given the descriptor; of a thread of its own, as the raw call changes no other.
        std::thread::spawn(move || {
            // SAFETY: changes the user of this thread, which ends.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 12345, 12345, 12345) }, 0);
            assert!(std::fs::File::options().write(true).open(path).is_err());
        })
        .join()
        .unwrap();
    }
}

/// A record lock belongs to whoever has the file open: who closes it without giving the lock up loses it all the same.
#[test]
fn locks_end_with_the_last_handle() {
    const SETLK: u16 = 36;
    let (server, _dir) = server(Options::default());
    let fs = Client::new(Arc::new(Remote::connect(server.path()).unwrap()), Cred::root()).blocking();
    let file = fs.open("/f", Open::new().read(true).write(true).create(true)).unwrap();
    let ino = file.metadata().unwrap().ino.0;
    let attacker = Attacker::new(server.path());
    let open = || {
        let reply = attacker.call(&Request { flags: 3.into(), ..request(OPEN, ino) });
        assert_eq!(reply.errno.get(), 0);
        reply.value.get()
    };
    let lock = |handle, wait: u32| Request {
        mode: 1.into(),
        len: 99.into(),
        extra: 7.into(),
        flags: wait.into(),
        ..request(SETLK, handle)
    };
    let mine = |wait| file.lock_range(LockKind::Exclusive, 0, 10, wait);
    // With two handles the first to be closed takes nothing along.
    let (one, two) = (open(), open());
    assert_eq!(attacker.call(&lock(one, 0)).errno.get(), 0);
    assert_eq!(attacker.call(&request(RELEASE, one)).errno.get(), 0);
    assert_eq!(mine(false), Err(fs::Error::WouldBlock));
    assert_eq!(attacker.call(&request(RELEASE, two)).errno.get(), 0);
    mine(false).unwrap();
    // Closed while a call waits for the lock, which then gets it.
    let handle = open();
    attacker.post(1, &lock(handle, 1));
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(attacker.call(&request(RELEASE, handle)).errno.get(), 0);
    assert_eq!(attacker.call(&request(READ, handle)).errno.get(), libc::EBADF);
    file.unlock_range(0, 10).unwrap();
    assert_eq!(attacker.reply(1).errno.get(), 0);
    mine(false).unwrap();
    file.unlock_range(0, 10).unwrap();
    // Closed while a call waits, which is then given up with the session.
    mine(false).unwrap();
    let handle = open();
    attacker.post(1, &lock(handle, 1));
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(attacker.call(&request(RELEASE, handle)).errno.get(), 0);
    drop(attacker);
    let begun = Instant::now();
    while server.counters().sessions > 1 {
        assert!(begun.elapsed() < Duration::from_secs(5));
        fs.stat("/").unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    file.unlock_range(0, 10).unwrap();
    mine(false).unwrap();
    still_there(&server);
}

/// Whoever may read a directory but not search it learns names and kinds, and nothing else about what is in it.
#[test]
fn a_directory_that_may_be_read_but_not_searched() {
    if Cred::of_process().uid != 0 {
        return eprintln!("skipped: needs root to become somebody else");
    }
    let (server, dir) = server(Options::default());
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let root = Client::new(Arc::new(Remote::connect(server.path()).unwrap()), Cred::root()).blocking();
    root.mkdir("/d", 0o744).unwrap();
    root.mkdir("/d/sub", 0o755).unwrap();
    root.write("/d/file", b"something").unwrap();
    root.mkdir("/open", 0o755).unwrap();
    root.write("/open/file", b"something").unwrap();
    let want = root.stat("/d/file").unwrap();
    let path = server.path().to_path_buf();
    let stranger = std::thread::spawn(move || {
        // Credentials of this thread alone: the raw calls do not reach the others.
        // SAFETY: plain system calls without memory arguments, but for setgroups with a null list of length 0.
        unsafe {
            assert_eq!(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<u32>()), 0);
            assert_eq!(libc::syscall(libc::SYS_setresgid, 4321, 4321, 4321), 0);
            assert_eq!(libc::syscall(libc::SYS_setresuid, 4321, 4321, 4321), 0);
        }
        let fs = Client::new(Arc::new(Remote::connect(path).unwrap()), Cred::root()).blocking();
        // Twice: what was told is not taken for attributes later either.
        for _ in 0..2 {
            let mut all: Vec<_> = fs.read_dir("/d").unwrap().map(|e| e.unwrap()).collect();
            all.sort_by(|a, b| a.name.cmp(&b.name));
            let [file, sub] = &all[..] else { panic!("{all:?}") };
            assert_eq!((file.name.to_str(), sub.name.to_str()), (Some("file"), Some("sub")));
            assert_eq!((file.attr.ino, file.attr.kind), (want.ino, want.kind));
            assert_eq!((sub.attr.kind, sub.attr.perm, sub.attr.nlink), (fs::FileType::Directory, 0, 0));
            let a = &file.attr;
            assert_eq!((a.size, a.blocks, a.perm, a.nlink, a.mtime.sec, a.generation), (0, 0, 0, 0, 0, 0));
            assert_eq!(fs.stat("/d/file").unwrap_err(), fs::Error::AccessDenied);
            assert_eq!(fs.read("/d/file").unwrap_err(), fs::Error::AccessDenied);
        }
        let all: Vec<_> = fs.read_dir("/open").unwrap().map(|e| e.unwrap()).collect();
        assert_eq!((all.len(), all[0].attr.size, fs.stat("/open/file").unwrap().size), (1, 9, 9));
    });
    stranger.join().unwrap();
    still_there(&server);
}

/// Lengths and slots of long calls are the client's to say; the memory behind them is its own, and ends.
#[test]
fn long_calls_end_with_the_memory() {
    let (server, _dir) = server(Options::default());
    let fs = Client::new(Arc::new(Remote::connect(server.path()).unwrap()), Cred::root()).blocking();
    fs.write("/long", vec![7; 2 << 20]).unwrap();
    let ino = fs.stat("/long").unwrap().ino.0;
    let attacker = Attacker::new(server.path());
    let open = Request { flags: (OpenFlags::READ | OpenFlags::WRITE).bits().into(), ..request(OPEN, ino) };
    let handle = attacker.call(&open).value.get();
    let write = |slot: usize, first: u16, second: usize| {
        let r = Request { first: first.into(), second: (second as u32).into(), ..request(WRITE, handle) };
        attacker.post(slot, &r);
        attacker.reply(slot)
    };
    for (slot, first, second) in [
        (0, 0, CALL_DATA_MAX + 1),
        (0, 0, u32::MAX as usize),
        (SLOTS - 1, 0, PAYLOAD_MAX + 1),
        (SLOTS - 1, u16::MAX, PAYLOAD_MAX - 1000),
        (SLOTS - 6, 1, 6 * PAYLOAD_MAX),
    ] {
        assert_eq!(write(slot, first, second).errno.get(), libc::EINVAL, "slot {slot}, {first} and {second}");
    }
    assert_eq!(write(SLOTS - 1, 0, PAYLOAD_MAX).value.get(), PAYLOAD_MAX as u64);
    for (slot, extra, most) in [
        (0, 0, DATA_MAX),
        (0, u64::MAX, CALL_DATA_MAX),
        (SLOTS - 1, u64::MAX, DATA_MAX),
        (SLOTS - 2, 64, PAYLOAD_MAX + DATA_MAX),
    ] {
        let r = Request { len: u64::MAX.into(), extra: extra.into(), ..request(READ, handle) };
        attacker.post(slot, &r);
        let reply = attacker.reply(slot);
        assert_eq!((reply.errno.get(), reply.len.get() as usize), (0, most), "slot {slot}, {extra} behind");
    }
    // Other calls have one slot.
    let r = Request { second: (DATA_MAX as u32 + 1).into(), ..request(SETXATTR, ino) };
    assert_eq!(attacker.call(&r).errno.get(), libc::EINVAL);
    still_there(&server);
}

/// A call that opens its file first opens nothing that could not be opened, and leaves nothing open when it fails.
#[test]
fn calls_that_open_what_they_may_not() {
    let (server, _dir) = server(Options::default());
    let fs = Client::new(Arc::new(Remote::connect(server.path()).unwrap()), Cred::root()).blocking();
    fs.write("/f", b"there").unwrap();
    let attr = fs.stat("/f").unwrap();
    let attacker = Attacker::new(server.path());
    let opens = |op: u16, flags: u32, generation: u64, ino: u64| {
        let r = Request {
            flags: OPENS.into(),
            mode: flags.into(),
            other: generation.into(),
            len: 100.into(),
            ..request(op, ino)
        };
        attacker.call(&r)
    };
    let (read, write) = (OpenFlags::READ.bits(), OpenFlags::WRITE.bits());
    let (ino, generation) = (attr.ino.0, attr.generation as u64);
    for (op, flags, generation, ino, errno) in [
        (READ, u32::MAX, generation, ino, libc::EINVAL),
        (READ, read, generation + 1, ino, libc::ESTALE),
        (READ, read, generation, u64::MAX, libc::ESTALE),
        // Opened, and then not for this.
        (WRITE, read, generation, ino, libc::EBADF),
        (READ, write, generation, ino, libc::EBADF),
    ] {
        let reply = opens(op, flags, generation, ino);
        assert_eq!((reply.errno.get(), reply.handle.get()), (errno, 0), "operation {op}, flags {flags:#x}");
    }
    // Calls that cannot do this take what stands there for a handle.
    assert_eq!(opens(32, read | write, generation, ino).errno.get(), libc::EBADF);
    let reply = opens(READ, read, generation, ino);
    assert!(reply.errno.get() == 0 && reply.handle.get() != 0);
    let close = request(RELEASE, reply.handle.get());
    assert_eq!(attacker.call(&close).errno.get(), 0);
    assert_eq!(attacker.call(&close).errno.get(), libc::EBADF, "it was one handle");
    drop(attacker);
    drop(fs);
    let begun = Instant::now();
    while server.counters().handles != 0 {
        assert!(begun.elapsed() < Duration::from_secs(5), "something was left open");
        std::thread::sleep(Duration::from_millis(5));
    }
    still_there(&server);
}

/// Those who connect as fast as they can, and are refused, keep nobody from his calls.
#[test]
fn connecting_without_end() {
    let (server, _dir) = server(Options { sessions_max: 2, ..Options::default() });
    let (client, _second) =
        (Remote::connect(server.path()).unwrap(), Remote::connect(server.path()).unwrap());
    let over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    drop(connect(server.path()));
                }
            });
        }
        // Others end after that, so that a call which waits for them ends, too.
        const PATIENCE: Duration = Duration::from_secs(20);
        threads.spawn(|| {
            let begun = Instant::now();
            while !over.load(Ordering::Relaxed) && begun.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(10));
            }
            over.store(true, Ordering::Relaxed);
        });
        let (begun, mut calls) = (Instant::now(), 0);
        // On a machine that does much besides a call takes long, but not until nobody connects any more.
        while begun.elapsed() < Duration::from_secs(2) || calls <= 20 {
            client.block_on(client.ping()).unwrap();
            calls += 1;
            assert!(!over.load(Ordering::Relaxed), "{calls} calls in {PATIENCE:?}");
        }
        over.store(true, Ordering::Relaxed);
    });
}

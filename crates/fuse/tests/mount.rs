//! The door over the reference model, through real system calls on a real mount. Needs root and /dev/fuse; without them each
//! test says so and passes. Every test here runs on the model itself (requests are ready at once) and on one that makes every
//! request wait, with and without write-back cache. Mounts themselves, from beginning to end, are tested in `life` and `ends`,
//! requests for barriers in `barriers`, what the kernel is told in `told`, and what it keeps to itself or has dropped in `kept`.

#[path = "mount/barriers.rs"]
mod barriers;
#[path = "mount/ends.rs"]
mod ends;
#[path = "mount/helpers.rs"]
mod helpers;
#[path = "mount/kept.rs"]
mod kept;
mod later;
#[path = "mount/life.rs"]
mod life;
#[path = "mount/told.rs"]
mod told;

use helpers::*;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

#[test]
fn files_directories_and_names() {
    on_mounts(|dir, _| {
        let (a, b) = (dir.join("a"), dir.join("b"));
        let data: Vec<u8> = (0..3_000_001u32).map(|i| ((i * 7) >> 3) as u8).collect();
        fs::write(&a, &data).unwrap();
        assert!(fs::read(&a).unwrap() == data);
        fs::hard_link(&a, &b).unwrap();
        assert_eq!(fs::metadata(&a).unwrap().nlink(), 2);
        fs::remove_file(&a).unwrap();
        assert_eq!(fs::metadata(&b).unwrap().nlink(), 1);
        assert_eq!(fs::metadata(&a).unwrap_err().kind(), ErrorKind::NotFound);
        symlink("b", &a).unwrap();
        assert_eq!(fs::read_link(&a).unwrap(), Path::new("b"));
        assert!(fs::read(&a).unwrap() == data);
        let sub = dir.join("sub");
        fs::create_dir(&sub).unwrap();
        for i in 0..1500 {
            File::create(sub.join(format!("file-with-a-rather-long-name-{i}"))).unwrap();
        }
        for _ in 0..2 {
            let mut names: Vec<_> = fs::read_dir(&sub).unwrap().map(|e| e.unwrap().file_name()).collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), 1500);
        }
        fs::remove_file(sub.join("file-with-a-rather-long-name-7")).unwrap();
        assert_eq!(fs::read_dir(&sub).unwrap().count(), 1499);
        assert_eq!(errno(fs::remove_dir(&sub)), libc::ENOTEMPTY);
        // The kernel has other limits for names, so that the engine's answer comes through.
        assert_eq!(errno(File::create(dir.join("x".repeat(256)))), libc::ENAMETOOLONG);
        let exchange = |x: &Path, y: &Path, flags| {
            // SAFETY: both names are NUL-terminated and live during the call.
            check(unsafe {
                libc::renameat2(libc::AT_FDCWD, c(x).as_ptr(), libc::AT_FDCWD, c(y).as_ptr(), flags)
            })
        };
        exchange(&b, &sub, libc::RENAME_EXCHANGE).unwrap();
        assert!(b.is_dir() && sub.is_file());
        assert_eq!(errno(exchange(&b, &sub, libc::RENAME_NOREPLACE)), libc::EEXIST);
        fs::set_permissions(&sub, fs::Permissions::from_mode(0o4751)).unwrap();
        assert_eq!(fs::metadata(&sub).unwrap().mode() & 0o7777, 0o4751);
        assert!(fs::metadata(&sub).unwrap().created().is_ok(), "birth time comes by statx");
    });
}

#[test]
fn data_operations() {
    on_mounts(|dir, _| {
        let path = dir.join("f");
        let f = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        f.write_all_at(b"end", 1 << 20).unwrap();
        f.sync_all().unwrap();
        let seek = |from, whence| {
            // SAFETY: an open descriptor.
            check(unsafe { libc::lseek(f.as_raw_fd(), from, whence) })
        };
        assert_eq!(errno(seek(2 << 20, libc::SEEK_DATA)), libc::ENXIO);
        let fallocate = |mode, offset, len| {
            // SAFETY: an open descriptor.
            check(unsafe { libc::fallocate(f.as_raw_fd(), mode, offset, len) })
        };
        fallocate(0, 0, 2 << 20).unwrap();
        assert_eq!(f.metadata().unwrap().len(), 2 << 20);
        f.write_all_at(&[7; 65536], 0).unwrap();
        fallocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 4096, 4096).unwrap();
        let mut page = [1u8; 4096];
        f.read_exact_at(&mut page, 4096).unwrap();
        assert_eq!(page, [0; 4096]);
        assert_eq!(errno(fallocate(libc::FALLOC_FL_COLLAPSE_RANGE, 0, 4096)), libc::EOPNOTSUPP);
        let g = File::create(dir.join("g")).unwrap();
        let (mut from, mut to) = (8192i64, 0i64);
        // SAFETY: open descriptors and two valid offsets.
        let n = check(unsafe {
            libc::copy_file_range(f.as_raw_fd(), &mut from, g.as_raw_fd(), &mut to, 8192, 0) as i64
        });
        assert_eq!(n.unwrap(), 8192);
        assert_eq!(fs::read(dir.join("g")).unwrap(), [7; 8192]);
        // SAFETY: an open descriptor and a writable i32.
        let flags = check(unsafe { libc::ioctl(f.as_raw_fd(), 0x5401, &mut [0i32; 32]) });
        assert_eq!(errno(flags), libc::ENOTTY);
        f.set_len(10).unwrap();
        assert_eq!(fs::read(&path).unwrap(), [7; 10]);
        drop(OpenOptions::new().write(true).truncate(true).open(&path).unwrap());
        assert_eq!(f.metadata().unwrap().len(), 0);
        // O_TMPFILE, then a name.
        let mut t =
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_TMPFILE).open(dir).unwrap();
        t.write_all(b"unnamed").unwrap();
        let (from, to) =
            (CString::new(format!("/proc/self/fd/{}", t.as_raw_fd())).unwrap(), c(&dir.join("t")));
        // SAFETY: both names are NUL-terminated and live during the call.
        check(unsafe {
            libc::linkat(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), libc::AT_SYMLINK_FOLLOW)
        })
        .unwrap();
        assert_eq!(fs::read(dir.join("t")).unwrap(), b"unnamed");
        // Deleted while open.
        fs::remove_file(dir.join("t")).unwrap();
        t.seek(SeekFrom::Start(2)).unwrap();
        let mut text = String::new();
        t.read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), t.metadata().unwrap().nlink()), ("named", 0));
    });
}

#[test]
fn appending_mapping_and_direct() {
    on_mounts(|dir, _| {
        let path = dir.join("f");
        fs::write(&path, vec![b'x'; 10_000]).unwrap();
        for extra in [libc::O_APPEND, libc::O_DIRECT, libc::O_APPEND | libc::O_DIRECT] {
            let f = OpenOptions::new().read(true).write(true).custom_flags(extra).open(&path).unwrap();
            // SAFETY: maps 10,000 bytes of an open file; the pointer is used within them and before munmap.
            unsafe {
                let flags = libc::PROT_READ | libc::PROT_WRITE;
                let at = libc::mmap(std::ptr::null_mut(), 10_000, flags, libc::MAP_SHARED, f.as_raw_fd(), 0);
                assert!(at != libc::MAP_FAILED, "{extra:#o}: {}", io::Error::last_os_error());
                let bytes = at.cast::<u8>();
                bytes.write_volatile(b'm');
                bytes.add(9_999).write_volatile(b'n');
                check(libc::msync(at, 10_000, libc::MS_SYNC)).unwrap();
                libc::munmap(at, 10_000);
            }
            drop(f);
            let now = fs::read(&path).unwrap();
            assert_eq!((now.len(), now[0], now[9_999]), (10_000, b'm', b'n'), "{extra:#o}");
        }
        let mut f = OpenOptions::new().append(true).open(&path).unwrap();
        f.write_all(b"tail").unwrap();
        // SAFETY: an open descriptor. Without O_APPEND a write goes where it is told.
        check(unsafe { libc::fcntl(f.as_raw_fd(), libc::F_SETFL, 0) }).unwrap();
        f.write_all_at(b"head", 0).unwrap();
        let now = fs::read(&path).unwrap();
        assert_eq!((now.len(), &now[..4], &now[10_000..]), (10_004, &b"head"[..], &b"tail"[..]));
        // Appending by many at a time loses nothing.
        fs::write(&path, b"").unwrap();
        std::thread::scope(|s| {
            for t in 0..4u8 {
                let mut f = OpenOptions::new().append(true).open(&path).unwrap();
                s.spawn(move || (0..200).for_each(|_| f.write_all(&[t; 50]).unwrap()));
            }
        });
        let all = fs::read(&path).unwrap();
        assert_eq!(all.len(), 4 * 200 * 50);
        assert!(all.chunks(50).all(|c| c.iter().all(|b| *b == c[0])));
        let d = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
        let mut unaligned = vec![0u8; 1000];
        assert_eq!(errno(d.read_at(&mut unaligned, 100)), libc::EINVAL);
    });
}

#[test]
fn extended_attributes() {
    on_mounts(|dir, _| {
        let path = dir.join("f");
        File::create(&path).unwrap();
        let (path, name) = (c(&path), CString::new("user.colour").unwrap());
        let value = b"blue";
        // SAFETY: names are NUL-terminated; buffers are given with their lengths.
        unsafe {
            let set =
                |flags| check(libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), 4, flags));
            let get = |room: &mut [u8]| {
                check(
                    libc::getxattr(path.as_ptr(), name.as_ptr(), room.as_mut_ptr().cast(), room.len()) as i64
                )
            };
            assert_eq!(errno(get(&mut [0; 8])), libc::ENODATA);
            assert_eq!(errno(set(libc::XATTR_REPLACE)), libc::ENODATA);
            set(0).unwrap();
            assert_eq!(errno(set(libc::XATTR_CREATE)), libc::EEXIST);
            let mut room = [0u8; 8];
            assert_eq!((get(&mut []).unwrap(), get(&mut room).unwrap(), &room[..4]), (4, 4, &value[..]));
            assert_eq!(errno(get(&mut [0; 3])), libc::ERANGE);
            let list = |room: &mut [u8]| {
                check(libc::listxattr(path.as_ptr(), room.as_mut_ptr().cast(), room.len()) as i64)
            };
            assert_eq!((list(&mut []).unwrap(), list(&mut [0; 100]).unwrap()), (12, 12));
            assert_eq!(errno(list(&mut [0; 3])), libc::ERANGE);
            check(libc::removexattr(path.as_ptr(), name.as_ptr())).unwrap();
            assert_eq!(errno(check(libc::removexattr(path.as_ptr(), name.as_ptr()))), libc::ENODATA);
        }
    });
}

static SIGNALS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count_signal(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::SeqCst);
}

fn record_lock(f: &File, command: libc::c_int, kind: libc::c_int) -> io::Result<i64> {
    // SAFETY: an all-zero flock is valid, and the call gets an open descriptor and that flock.
    unsafe {
        let mut lock: libc::flock = std::mem::zeroed();
        lock.l_type = kind as _;
        check(libc::fcntl(f.as_raw_fd(), command, &mut lock))
    }
}

#[test]
fn locks_and_interrupts() {
    // SAFETY: the handler only adds to an atomic; no SA_RESTART, so that calls end with EINTR.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count_signal as *const () as usize;
        libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
    }
    on_mounts(|dir, _| {
        let path = dir.join("f");
        let open =
            || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        let (f, g) = (open(), open());
        let flock = |f: &File, how| {
            // SAFETY: an open descriptor.
            check(unsafe { libc::flock(f.as_raw_fd(), how) })
        };
        // flock(2) locks belong to open files, and know nothing of record locks.
        flock(&f, libc::LOCK_EX).unwrap();
        assert_eq!(errno(flock(&g, libc::LOCK_EX | libc::LOCK_NB)), libc::EWOULDBLOCK);
        record_lock(&g, libc::F_SETLK, libc::F_WRLCK).unwrap();
        // A caller that waits gives way to a signal.
        let (tx, rx) = std::sync::mpsc::channel();
        std::thread::scope(|s| {
            s.spawn(|| {
                // SAFETY: pthread_self has no preconditions.
                tx.send(unsafe { libc::pthread_self() }).unwrap();
                assert_eq!(errno(flock(&g, libc::LOCK_EX)), libc::EINTR);
                tx.send(0).unwrap();
            });
            let thread = rx.recv().unwrap();
            std::thread::sleep(Duration::from_millis(50));
            let began = Instant::now();
            loop {
                // SAFETY: the thread runs until it has sent its second message.
                unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
                if rx.recv_timeout(Duration::from_millis(100)).is_ok() {
                    break;
                }
                assert!(began.elapsed() < Duration::from_secs(5), "the lock did not give way");
            }
        });
        assert!(SIGNALS.load(Ordering::SeqCst) > 0);
        // A process that waits can be killed.
        let mut waiting = Command::new("flock").arg(&path).arg("true").spawn().unwrap();
        std::thread::sleep(Duration::from_millis(100));
        waiting.kill().unwrap();
        let began = Instant::now();
        while waiting.try_wait().unwrap().is_none() {
            assert!(began.elapsed() < Duration::from_secs(5), "the process did not die");
            std::thread::sleep(Duration::from_millis(10));
        }
        // The lock is free again, and goes to one who waits.
        std::thread::scope(|s| {
            let waits = s.spawn(|| flock(&g, libc::LOCK_EX));
            std::thread::sleep(Duration::from_millis(50));
            flock(&f, libc::LOCK_UN).unwrap();
            waits.join().unwrap().unwrap();
        });
        // Locks of open file descriptions end with the description.
        record_lock(&g, libc::F_SETLK, libc::F_UNLCK).unwrap();
        record_lock(&f, libc::F_OFD_SETLK, libc::F_WRLCK).unwrap();
        assert_eq!(errno(record_lock(&g, libc::F_OFD_SETLK, libc::F_WRLCK)), libc::EAGAIN);
        drop(f);
        let began = Instant::now();
        while record_lock(&g, libc::F_OFD_SETLK, libc::F_WRLCK).is_err() {
            assert!(began.elapsed() < Duration::from_secs(5), "the lock outlived its file");
        }
    });
}

#[test]
fn set_id_bits_and_capabilities_go_with_a_write() {
    on_mounts(|dir, _| {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
        let path = dir.join("f");
        fs::write(&path, b"x").unwrap();
        let capability = CString::new("security.capability").unwrap();
        // Revision 2, nothing permitted: valid, and removed like any other.
        let value = [0u8, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
        // SAFETY: NUL-terminated names, a buffer with its length.
        check(unsafe {
            libc::setxattr(c(&path).as_ptr(), capability.as_ptr(), value.as_ptr().cast(), value.len(), 0)
        })
        .unwrap();
        let mode = || fs::metadata(&path).unwrap().mode() & 0o7777;
        fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"root").unwrap();
        assert_eq!(mode(), 0o6777, "root may keep them");
        // SAFETY: as above.
        let left = check(unsafe {
            libc::getxattr(c(&path).as_ptr(), capability.as_ptr(), std::ptr::null_mut(), 0) as i64
        });
        assert_eq!(errno(left), libc::ENODATA);
        let script = format!("printf user >> {}", path.display());
        let done = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", &script])
            .status()
            .unwrap();
        assert!(done.success());
        assert_eq!(mode(), 0o777);
    });
}

#[test]
fn supplementary_groups_count() {
    on_mounts(|dir, _| {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
        let secret = dir.join("secret");
        fs::create_dir(&secret).unwrap();
        fs::write(secret.join("f"), b"x").unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o2750)).unwrap();
        std::os::unix::fs::chown(&secret, None, Some(4242)).unwrap();
        let run = |groups: &str, script: &str| {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=65534", "--regid=65534", groups, "sh", "-c", script]);
            command.stderr(std::process::Stdio::null()).current_dir(dir).status().unwrap().success()
        };
        assert!(run("--groups=4242", "cat secret/f"));
        assert!(!run("--clear-groups", "cat secret/f"), "a cached name is no way in");
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o2770)).unwrap();
        assert!(run("--groups=4242", "echo new > secret/g"));
        assert_eq!(fs::metadata(secret.join("g")).unwrap().gid(), 4242);
    });
}

/// Random operations through cached, direct, appending and mapped access to one file, against a vector of bytes.
#[test]
fn cached_direct_and_mapped_access_agree() {
    const MAX: usize = 1 << 18;
    on_mounts(|dir, _| {
        let path = dir.join("f");
        let open = |flags| {
            let mut o = OpenOptions::new();
            o.read(true).write(true).create(true).truncate(false).custom_flags(flags).open(&path).unwrap()
        };
        let files = [open(0), open(libc::O_DIRECT), open(libc::O_APPEND), open(libc::O_SYNC)];
        let mut bytes: Vec<u8> = Vec::new();
        let mut memory = vec![0u8; MAX + 4096];
        let shift = memory.as_ptr().align_offset(4096);
        let mut seed = 88_172_645_463_325_252u64;
        for step in 0..1500 {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            let (what, which) = (seed % 8, (seed >> 8) as usize % files.len());
            let mut at = (seed >> 16) as usize % (MAX / 2);
            let mut len = (seed >> 40) as usize % 20_000 + 1;
            if which == 1 {
                (at, len) = (at & !511, (len + 511) & !511);
            }
            let (file, fill, end) = (&files[which], step as u8 | 1, at + len);
            let room = &mut memory[shift..shift + len.max(1)];
            match what {
                0..=2 => {
                    room.fill(fill);
                    assert_eq!(file.write_at(room, at as u64).unwrap(), len);
                    let at = if which == 2 { bytes.len() } else { at };
                    bytes.resize(bytes.len().max(at + len), 0);
                    bytes[at..at + len].fill(fill);
                }
                3 | 4 => {
                    let n = file.read_at(room, at as u64).unwrap();
                    assert_eq!(
                        n,
                        bytes.len().saturating_sub(at).min(len),
                        "step {step}, file {which}, {at}+{len}"
                    );
                    assert!(
                        room[..n] == bytes[at.min(bytes.len())..][..n],
                        "step {step}, file {which}, {at}+{len}"
                    );
                }
                5 => {
                    file.set_len(at as u64).unwrap();
                    bytes.resize(at, 0);
                }
                6 if end <= bytes.len() => {
                    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                    // SAFETY: an open descriptor.
                    check(unsafe { libc::fallocate(file.as_raw_fd(), mode, at as i64, len as i64) }).unwrap();
                    bytes[at..end].fill(0);
                }
                7 if end <= bytes.len() => {
                    // In a process of its own: munmap writes back with the address space locked, which the threads that serve would need.
                    // SAFETY: the child makes system calls and touches memory that is there, nothing else, and ends. It maps the file up to
                    // `end`, which it reaches, and uses it within that and before munmap.
                    let child = check(unsafe {
                        let child = libc::fork();
                        if child == 0 {
                            let prot = libc::PROT_READ | libc::PROT_WRITE;
                            let fd = file.as_raw_fd();
                            let map = libc::mmap(std::ptr::null_mut(), end, prot, libc::MAP_SHARED, fd, 0);
                            if map == libc::MAP_FAILED {
                                libc::_exit(2);
                            }
                            let all = std::slice::from_raw_parts_mut(map.cast::<u8>(), end);
                            let same = all[at..end] == bytes[at..end];
                            all[at..end].fill(fill);
                            let done =
                                libc::msync(map, end, libc::MS_SYNC) == 0 && libc::munmap(map, end) == 0;
                            libc::_exit(if same && done { 0 } else { 1 });
                        }
                        child
                    })
                    .unwrap();
                    let mut status = 0;
                    // SAFETY: waits for the child just made.
                    check(unsafe { libc::waitpid(child as i32, &mut status, 0) }).unwrap();
                    assert_eq!(status, 0, "step {step}: mapped");
                    bytes[at..end].fill(fill);
                }
                _ => {}
            }
            // Appending must not run away.
            if bytes.len() > MAX {
                files[0].set_len(1000).unwrap();
                bytes.truncate(1000);
            }
            assert_eq!(files[0].metadata().unwrap().len(), bytes.len() as u64, "step {step}");
        }
        files[0].sync_all().unwrap();
        assert!(fs::read(&path).unwrap() == bytes);
    });
}

#[test]
fn a_running_program_is_not_truncated() {
    on_mounts(|dir, _| {
        let program = dir.join("sleep");
        fs::copy("/bin/sleep", &program).unwrap();
        let len = fs::metadata(&program).unwrap().len();
        // A child of another test may have the descriptor for a moment with which the program was written.
        let late = Instant::now() + Duration::from_secs(5);
        let mut running = loop {
            match Command::new(&program).arg("10").spawn() {
                Err(e) if e.raw_os_error() == Some(libc::ETXTBSY) && Instant::now() < late => {
                    std::thread::yield_now()
                }
                done => break done.unwrap(),
            }
        };
        assert_eq!(errno(OpenOptions::new().write(true).open(&program)), libc::ETXTBSY);
        // SAFETY: a NUL-terminated name.
        let opened = check(unsafe { libc::open(c(&program).as_ptr(), libc::O_RDONLY | libc::O_TRUNC) });
        assert_eq!(errno(opened), libc::ETXTBSY);
        std::thread::sleep(Duration::from_millis(20));
        assert!(running.try_wait().unwrap().is_none());
        assert_eq!(fs::metadata(&program).unwrap().len(), len);
        running.kill().unwrap();
        running.wait().unwrap();
    });
}

#[test]
fn many_reads_wait_at_a_time() {
    on_mounts(|dir, _| {
        let path = dir.join("f");
        let data: Vec<u8> = (0..4u32 << 20).map(|i| (i >> 12) as u8).collect();
        fs::write(&path, &data).unwrap();
        std::thread::scope(|s| {
            for t in 0..32u64 {
                let (path, data) = (&path, &data);
                s.spawn(move || {
                    let f = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
                    let mut page = vec![0u8; 8192];
                    let at = page.as_ptr().align_offset(512);
                    let page = &mut page[at..at + 4096];
                    for i in 0..100u64 {
                        let offset = (t * 100 + i) * 4096 % (4 << 20);
                        f.read_exact_at(page, offset).unwrap();
                        assert!(page == &data[offset as usize..][..4096]);
                    }
                });
            }
        });
    });
}

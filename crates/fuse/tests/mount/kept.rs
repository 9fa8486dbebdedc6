//! What the kernel keeps to itself, and what it has dropped and is asked for again.

use crate::helpers::*;
use crate::later;
use fuse::MountOptions;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is written to a mapping, or through a write-back cache, is with the kernel alone when somebody looks for data: it is found, and with one thread
/// for all requests too. Of a write-back cache nobody can tell where holes are.
#[test]
fn data_that_the_kernel_keeps_are_no_hole() {
    if !can_mount() {
        return;
    }
    const PAGE: usize = 4096;
    const LEN: usize = 256 * PAGE;
    for (waits, options) in [(false, ""), (true, "threads=1"), (true, "shared"), (false, "writeback")] {
        println!("waits: {waits}, options: '{options}'");
        let dir = tempfile::tempdir().unwrap();
        let parsed = MountOptions::parse(options).unwrap();
        let mount = match waits {
            true => fuse::mount(Arc::new(later::Later::new(model())), dir.path(), parsed),
            false => fuse::mount(Arc::new(model()), dir.path(), parsed),
        };
        let (mount, path) = (mount.unwrap(), dir.path().join("f"));
        let f = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        f.set_len(LEN as u64).unwrap();
        let other = File::open(&path).unwrap();
        let seek = |file: &File, from: usize, whence| {
            // SAFETY: an open descriptor.
            check(unsafe { libc::lseek(file.as_raw_fd(), from as i64, whence) }).unwrap() as usize
        };
        if options == "writeback" {
            f.write_all_at(b"written", 4 * PAGE as u64).unwrap();
            assert_eq!((seek(&other, 0, libc::SEEK_DATA), seek(&other, 0, libc::SEEK_HOLE)), (0, LEN));
        } else {
            let mut found = Vec::new();
            // SAFETY: maps LEN bytes of an open file; the pointer is used within them and before munmap, which finds nothing to be written back.
            unsafe {
                let (prot, fd) = (libc::PROT_READ | libc::PROT_WRITE, f.as_raw_fd());
                let at = libc::mmap(std::ptr::null_mut(), LEN, prot, libc::MAP_SHARED, fd, 0);
                assert!(at != libc::MAP_FAILED, "{}", io::Error::last_os_error());
                for page in [100, 50, 50, 75] {
                    at.cast::<u8>().add(page * PAGE).write_volatile(1);
                    let data = seek(&other, 0, libc::SEEK_DATA);
                    found.push((data / PAGE, seek(&other, data, libc::SEEK_HOLE) / PAGE));
                }
                check(libc::msync(at, LEN, libc::MS_SYNC)).unwrap();
                libc::munmap(at, LEN);
            }
            assert_eq!(found, [(100, 101), (50, 51), (50, 51), (50, 51)]);
            assert_eq!(seek(&other, 51 * PAGE, libc::SEEK_DATA), 75 * PAGE);
        }
        drop((f, other));
        unmount(&mount);
    }
}

/// Makes this thread one of an ordinary user.
fn become_ordinary() {
    // SAFETY: the calls themselves, which in Linux are about this thread alone.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<u32>()), 0);
        assert_eq!(libc::syscall(libc::SYS_setresgid, 4321, 4321, 4321), 0);
        assert_eq!(libc::syscall(libc::SYS_setresuid, 4321, 4321, 4321), 0);
    }
}

/// A change through a mapping leaves set-id bits as they are, whoever makes it and has it written back; calls that change data clear them.
#[test]
fn changes_through_a_mapping_leave_set_id_bits() {
    on_mounts(|dir, _| {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
        let path = dir.join("f");
        fs::write(&path, b"before").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
        let mode = || fs::metadata(&path).unwrap().mode() & 0o7777;
        let changes = || {
            become_ordinary();
            let f = OpenOptions::new().read(true).write(true).open(&path).unwrap();
            // SAFETY: maps six bytes of an open file, of which one is written to before munmap.
            unsafe {
                let (prot, fd) = (libc::PROT_READ | libc::PROT_WRITE, f.as_raw_fd());
                let at = libc::mmap(std::ptr::null_mut(), 6, prot, libc::MAP_SHARED, fd, 0);
                assert!(at != libc::MAP_FAILED, "{}", io::Error::last_os_error());
                at.cast::<u8>().write_volatile(b'B');
                check(libc::msync(at, 6, libc::MS_SYNC)).unwrap();
                libc::munmap(at, 6);
            }
            assert_eq!((fs::read(&path).unwrap(), mode()), (b"Before".to_vec(), 0o6777));
            f.write_all_at(b"after ", 0).unwrap();
        };
        std::thread::scope(|s| s.spawn(changes).join().unwrap());
        assert_eq!((fs::read(&path).unwrap(), mode()), (b"after ".to_vec(), 0o777));
        let calls: [fn(i32) -> i64; 3] = [
            // SAFETY: a call about an open file, as those below.
            |fd| unsafe { libc::fallocate(fd, 0, 0, 8192) as i64 },
            // SAFETY: as above.
            |fd| unsafe { libc::ftruncate(fd, 100) as i64 },
            // SAFETY: as above; the offsets live as long as the call.
            |fd| unsafe { libc::syscall(libc::SYS_copy_file_range, fd, &mut 0i64, fd, &mut 50i64, 5, 0) - 5 },
        ];
        for (i, call) in calls.into_iter().enumerate() {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
            let calls = || {
                become_ordinary();
                let f = OpenOptions::new().read(true).write(true).open(&path).unwrap();
                assert_eq!(call(f.as_raw_fd()), 0, "{i}: {}", io::Error::last_os_error());
            };
            std::thread::scope(|s| s.spawn(calls).join().unwrap());
            assert_eq!(mode(), 0o777, "{i}");
        }
    });
}

/// A handle that a program keeps (NFS, name_to_handle_at) leads to its inode although the kernel has dropped that, also with another name by then.
#[test]
fn kept_handles_outlive_what_the_kernel_keeps() {
    on_mounts(|dir, mount| {
        let (sub, file) = (dir.join("sub"), dir.join("sub/file"));
        fs::create_dir(&sub).unwrap();
        fs::write(&file, b"content").unwrap();
        let numbers = [&file, &sub].map(|path| fs::metadata(path).unwrap().ino());
        let mut handles = [&file, &sub].map(|path| handle_of(path));
        fs::rename(&file, sub.join("renamed")).unwrap();
        let dropped = |ino: &u64| !mount.notifier().has(::fs::Ino(*ino));
        let until = Instant::now() + Duration::from_secs(10);
        while !numbers.iter().all(dropped) {
            assert!(Instant::now() < until, "the kernel drops what nobody uses");
            fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
            std::thread::sleep(Duration::from_millis(10));
        }
        let root = File::open(dir).unwrap();
        let mut open = |which: usize, flags| {
            let handle = (&raw mut handles[which]).cast();
            // SAFETY: an open descriptor, and a handle as the kernel made it.
            let opened = check(unsafe { libc::open_by_handle_at(root.as_raw_fd(), handle, flags) });
            // SAFETY: a new descriptor that nobody else has.
            opened.map(|fd| unsafe { File::from_raw_fd(fd as i32) })
        };
        let mut text = String::new();
        open(0, libc::O_RDONLY).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "content");
        // The way up from a directory is asked for too.
        let directory = open(1, libc::O_RDONLY | libc::O_DIRECTORY).unwrap();
        let place = fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd())).unwrap();
        assert_eq!(place.file_name(), sub.file_name());
        drop(directory);
        fs::remove_file(sub.join("renamed")).unwrap();
        assert_eq!(errno(open(0, libc::O_RDONLY)), libc::ESTALE);
    });
}

/// `struct file_handle` with room for the largest.
#[repr(C)]
struct FileHandle {
    bytes: u32,
    kind: i32,
    handle: [u8; 128],
}

fn handle_of(path: &Path) -> FileHandle {
    let mut handle = FileHandle { bytes: 128, kind: 0, handle: [0; 128] };
    let (path, mut mount) = (c(path), 0);
    let room = (&raw mut handle).cast();
    // SAFETY: a NUL-terminated name, and room as the handle says.
    check(unsafe { libc::name_to_handle_at(libc::AT_FDCWD, path.as_ptr(), room, &mut mount, 0) }).unwrap();
    handle
}

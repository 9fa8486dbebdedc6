//! Files and block devices: exclusion, read-only, geometry, errors, submitters that end, memory beyond one registered piece.
//!
//! The test on a loop device needs root and is skipped without.

use media::blocking::Blocking;
use media::uring::Options;
use media::{Arena, BufRef, Completion, Media, MediaError, Op, Request, UringMedia, Wait};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

fn image(home: &tempfile::TempDir, bytes: u64) -> PathBuf {
    let path = home.path().join("image");
    std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
    path
}

fn open(path: &Path) -> Result<UringMedia, MediaError> {
    UringMedia::open(path, Options::default())
}

fn read_only(path: &Path) -> Result<UringMedia, MediaError> {
    UringMedia::open(path, Options { read_only: true, ..Options::default() })
}

fn finish(media: &UringMedia, n: usize) -> Vec<Completion> {
    media.kick();
    let mut done = Vec::new();
    while done.len() < n {
        let before = done.len();
        media.reap(&mut done, Wait::For(Some(Duration::from_secs(30))));
        assert!(done.len() > before, "requests do not complete");
    }
    done
}

#[test]
fn one_writer_or_many_readers() {
    let home = tempfile::tempdir().unwrap();
    let path = image(&home, 1 << 20);
    let busy = |result: Result<UringMedia, MediaError>| {
        let error = result.err().expect("opened twice");
        assert_eq!(error.errno(), libc::EBUSY, "{error}");
        assert!(error.to_string().contains("somebody else"), "{error}");
    };
    // Again and again: a closed medium must not stay locked while the kernel takes its ring apart.
    for _ in 0..50 {
        let writer = open(&path).unwrap();
        busy(open(&path));
        busy(read_only(&path));
        drop(writer);
        let readers = [read_only(&path).unwrap(), read_only(&path).unwrap()];
        busy(open(&path));
        drop(readers);
    }
}

#[test]
fn read_only_refuses_changes() {
    let home = tempfile::tempdir().unwrap();
    let media = read_only(&image(&home, 1 << 20)).unwrap();
    let arena = media.register(Arc::new(Arena::new(4096).unwrap())).unwrap();
    let buf = BufRef { arena, offset: 0, len: 4096 };
    media.submit(Request::transfer(Op::Write, 0, buf, 1));
    media.submit(Request::range(Op::Discard, 0, 4096, 1));
    media.submit(Request::range(Op::WriteZeroes, 0, 4096, 1));
    let refused = finish(&media, 3);
    assert!(refused.iter().all(|c| matches!(c.result, Err(MediaError::Refused { .. }))));
    media.submit(Request::transfer(Op::Read, 0, buf, 2));
    media.submit(Request::flush(2));
    finish(&media, 2).into_iter().for_each(|c| c.result.unwrap());
}

#[test]
fn what_cannot_be_opened() {
    let home = tempfile::tempdir().unwrap();
    let errno = |path: &Path| open(path).err().unwrap().errno();
    assert_eq!(errno(&home.path().join("nothing")), libc::ENOENT);
    assert_eq!(errno(home.path()), libc::EINVAL);
    assert_eq!(errno(Path::new("/dev/null")), libc::EINVAL);
    assert_eq!(errno(&image(&home, 100)), libc::EINVAL);
}

#[test]
fn geometry_of_a_file() {
    let home = tempfile::tempdir().unwrap();
    let path = image(&home, (1 << 20) + 700);
    let media = open(&path).unwrap();
    let geometry = media.geometry();
    assert_eq!(geometry.bytes % geometry.sector as u64, 0);
    assert!(geometry.bytes <= (1 << 20) + 512 && geometry.bytes >= 1 << 20);
    assert_eq!(geometry.atomic_unit, geometry.sector);
    assert!(geometry.volatile_cache && !geometry.barrier);
    assert_eq!(geometry.name, path.display().to_string());
}

/// A file that was cut behind our back: no progress is an error, not an endless loop.
#[test]
fn short_reads_are_errors() {
    let home = tempfile::tempdir().unwrap();
    let path = image(&home, 1 << 20);
    let media = open(&path).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(8192).unwrap();
    let arena = media.register(Arc::new(Arena::new(1 << 16).unwrap())).unwrap();
    let buf = |offset, len| BufRef { arena, offset, len };
    media.submit(Request::transfer(Op::Read, 4096, buf(0, 16384), 1));
    match finish(&media, 1).pop().unwrap().result {
        Err(MediaError::Short { moved: 4096, asked: 16384, op: "read", offset: 4096, .. }) => {}
        other => panic!("{other:?}"),
    }
    let bufs = [buf(0, 512), buf(4096, 8192), buf(32768, 4096)];
    media.submit(Request::vectored(Op::Read, 0, bufs[..].into(), 1));
    match finish(&media, 1).pop().unwrap().result {
        Err(MediaError::Short { moved: 8192, asked: 12800, .. }) => {}
        other => panic!("{other:?}"),
    }
}

/// Kernel workers belong to the thread that submitted. Requests must complete when it has ended, too.
#[test]
fn submitters_may_end() {
    let home = tempfile::tempdir().unwrap();
    let media = Arc::new(open(&image(&home, 16 << 20)).unwrap());
    let arena = media.register(Arc::new(Arena::new(1 << 20).unwrap())).unwrap();
    for _ in 0..30 {
        let submitter = std::thread::spawn({
            let media = media.clone();
            move || {
                for n in 0..16 {
                    let buf = BufRef { arena, offset: n * 65536, len: 65536 };
                    media.submit(Request::transfer(Op::Write, n << 20, buf, n));
                    media.submit(Request::flush(100 + n));
                    media.submit(Request::range(Op::WriteZeroes, (n << 20) + 65536, 65536, 200 + n));
                }
                media.kick();
            }
        });
        submitter.join().unwrap();
        finish(&media, 48).into_iter().for_each(|c| c.result.unwrap());
    }
}

/// From now on the kernel takes no entries from this thread: io_uring_enter(2) with some to submit fails with `errno`.
fn take_nothing(errno: i32) {
    use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};
    let code = |bits: u32| bits as u16;
    let load = |k| libc::sock_filter { code: code(BPF_LD | BPF_W | BPF_ABS), jt: 0, jf: 0, k };
    let is = |k, jt, jf| libc::sock_filter { code: code(BPF_JMP | BPF_JEQ | BPF_K), jt, jf, k };
    let end = |k| libc::sock_filter { code: code(BPF_RET | BPF_K), jt: 0, jf: 0, k };
    let data = |at: usize| at as u32;
    let mut filter = [
        load(data(std::mem::offset_of!(libc::seccomp_data, nr))),
        is(libc::SYS_io_uring_enter as u32, 0, 3),
        // The second argument, its low half.
        load(
            data(std::mem::offset_of!(libc::seccomp_data, args))
                + 8
                + if cfg!(target_endian = "big") { 4 } else { 0 },
        ),
        is(0, 1, 0),
        end(libc::SECCOMP_RET_ERRNO | errno as u32),
        end(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: a filter for this thread alone, which the kernel copies.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let done = libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program);
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }
}

/// What the kernel has no memory for when it is kicked is handed over by whoever reaps.
#[test]
fn what_the_kernel_did_not_take_is_handed_over_later() {
    let home = tempfile::tempdir().unwrap();
    let media = Arc::new(open(&image(&home, 1 << 20)).unwrap());
    let arena = media.register(Arc::new(Arena::new(1 << 16).unwrap())).unwrap();
    for (round, errno) in [libc::EAGAIN, libc::EBUSY, libc::EAGAIN].into_iter().enumerate() {
        let submitter = std::thread::spawn({
            let media = media.clone();
            move || {
                take_nothing(errno);
                for n in 0..4 {
                    let buf = BufRef { arena, offset: n * 4096, len: 4096 };
                    media.submit(Request::transfer(Op::Write, n * 4096, buf, n));
                }
                media.kick();
            }
        });
        submitter.join().unwrap();
        assert_eq!(media.in_flight(), 4);
        let mut done = Vec::new();
        let begun = std::time::Instant::now();
        while done.len() < 4 && begun.elapsed() < Duration::from_secs(10) {
            // Without waiting, too: an attendant's worker comes by like that.
            let wait = if round == 1 { Wait::No } else { Wait::For(Some(Duration::from_secs(10))) };
            media.reap(&mut done, wait);
        }
        assert_eq!(done.len(), 4, "requests do not complete");
        done.into_iter().for_each(|c| c.result.unwrap());
    }
}

/// Buffers in the second registered piece, and one that lies in two pieces.
#[test]
fn large_arenas() {
    let home = tempfile::tempdir().unwrap();
    let media = open(&image(&home, 1 << 20)).unwrap();
    let arena = Arc::new(Arena::new((1 << 30) + 65536).unwrap());
    let id = media.register(arena.clone()).unwrap();
    for (token, offset) in [(1 << 30) - 4096, 1 << 30, (1 << 30) + 4096, 0].into_iter().enumerate() {
        let buf = BufRef { arena: id, offset, len: 8192 };
        let data = vec![token as u8 + 1; 8192];
        arena.copy_in(offset, &data);
        media.submit(Request::transfer(Op::Write, 0, buf, 1));
        finish(&media, 1).pop().unwrap().result.unwrap();
        arena.zero(offset, 8192);
        media.submit(Request::transfer(Op::Read, 0, buf, 1));
        finish(&media, 1).pop().unwrap().result.unwrap();
        let mut back = vec![0; 8192];
        arena.copy_out(offset, &mut back);
        assert!(back == data, "buffer at {offset}");
    }
}

/// Detaches the device however the test ends.
struct Loop(String);

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// What sysfs says of a device.
fn said_of(device: &Path, file: &str) -> String {
    let path = Path::new("/sys/class/block").join(device.file_name().unwrap()).join(file);
    std::fs::read_to_string(path).unwrap().trim().to_string()
}

/// Flushes that the device was asked for.
fn flushes(device: &Path) -> u64 {
    said_of(device, "stat").split_whitespace().nth(15).unwrap().parse().unwrap()
}

#[test]
fn block_device() {
    let home = tempfile::tempdir().unwrap();
    let path = image(&home, 32 << 20);
    let made = Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(&path).output();
    let Some(output) = made.ok().filter(|output| output.status.success()) else {
        eprintln!("skipped: no loop device to be had");
        return;
    };
    let device = Loop(String::from_utf8(output.stdout).unwrap().trim().to_string());
    let path = Path::new(&device.0);
    for _ in 0..10 {
        let media = Arc::new(open(path).unwrap());
        assert_eq!(open(path).err().unwrap().errno(), libc::EBUSY);
        assert_eq!(read_only(path).err().unwrap().errno(), libc::EBUSY);
        let geometry = media.geometry();
        assert_eq!(geometry.bytes, 32 << 20);
        assert!(media.is_direct() && geometry.atomic_unit <= 4096);
        assert_eq!(geometry.volatile_cache, said_of(path, "queue/write_cache") != "write through");
        let plain = Blocking::new(media.clone()).unwrap();
        let data: Vec<u8> = (0..5 << 20).map(|i| (i / 511) as u8).collect();
        plain.write(4096, &data).unwrap();
        let before = flushes(path);
        plain.flush().unwrap();
        assert!(flushes(path) > before || !geometry.volatile_cache, "the device was not asked to flush");
        plain.range(Op::WriteZeroes, 8192, 1 << 20).unwrap();
        plain.range(Op::Discard, 16 << 20, 1 << 20).unwrap();
        let mut back = vec![1; data.len()];
        plain.read(4096, &mut back).unwrap();
        assert!(back[..4096] == data[..4096]);
        assert!(back[4096..4096 + (1 << 20)].iter().all(|b| *b == 0));
        assert!(back[4096 + (1 << 20)..] == data[4096 + (1 << 20)..]);
    }
}

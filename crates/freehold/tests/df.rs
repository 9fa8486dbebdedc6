//! `freehold df` beside servers that do not answer. Without /dev/fuse, or without root and fusermount3, each of the tests only says
//! that it was skipped.

mod common;

use common::{Place, can_mount, eventually, is_root, server, signal};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;

/// Whether none of the threads of a process runs: SIGSTOP reaches each of them only when it runs next.
fn stands_still(pid: u32) -> bool {
    std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().all(|task| {
        let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
    })
}

#[test]
fn a_server_that_stands_still_does_not_stop_df() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    let still = p.volume("still.img");
    p.volume("b.img");
    let (mnt, alive) = (p.mkdir("mnt"), p.mkdir("alive"));
    p.line("mount still.img mnt").ok();
    p.line("mount b.img alive").ok();
    let pid = server(&still);
    signal(pid, libc::SIGSTOP);
    eventually("it stands still", || stands_still(pid));
    let all = p.line("df");
    let named = p.line("df mnt");
    signal(pid, libc::SIGCONT);
    assert!(all.out.contains(&*alive.to_string_lossy()), "{all:?}");
    assert!(all.err.contains(&*mnt.to_string_lossy()) && all.err.contains("has not answered"), "{all:?}");
    named.fails(&["has not answered"]);
    p.line("df mnt").ok();
    p.line("umount mnt").ok();
    p.line("umount alive").ok();
}

/// A server of FUSE that takes requests and answers none but the first, which the kernel needs.
struct Taker {
    device: File,
}

impl Taker {
    fn mount(at: &std::path::Path) -> Taker {
        let mut device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0\0", device.as_raw_fd());
        let target = std::ffi::CString::new(at.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: all strings end with zero and live until the call returns.
        let done = unsafe {
            libc::mount(
                c"taker".as_ptr(),
                target.as_ptr(),
                c"fuse.freehold".as_ptr(),
                0,
                options.as_ptr().cast(),
            )
        };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        let mut request = vec![0; 1 << 17];
        assert!(device.read(&mut request).unwrap() > 40, "FUSE_INIT");
        // struct fuse_out_header, and struct fuse_init_out with version 7.31, max_write 4096, and nothing else.
        let mut answer = vec![0; 16 + 64];
        answer[..4].copy_from_slice(&80u32.to_ne_bytes());
        answer[8..16].copy_from_slice(&request[8..16]);
        for (at, value) in [(16, 7u32), (20, 31), (36, 4096), (40, 1)] {
            answer[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        }
        device.write_all(&answer).unwrap();
        Taker { device }
    }
}

#[test]
fn a_request_that_was_taken_does_not_keep_df() {
    if !can_mount() || !is_root() {
        println!("skipped: needs root");
        return;
    }
    let p = Place::new();
    let mnt = p.mkdir("mnt");
    let taker = Taker::mount(&mnt);
    let mut device = taker.device.try_clone().unwrap();
    let take = std::thread::spawn(move || while device.read(&mut [0; 1 << 17]).is_ok() {});
    let asked = std::time::Instant::now();
    let mut df = p.command().args(["df", "mnt"]).stderr(std::process::Stdio::piped()).spawn().unwrap();
    while df.try_wait().unwrap().is_none() && asked.elapsed().as_secs() < 30 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let ended = df.try_wait().unwrap();
    // The kernel answers everybody now.
    std::process::Command::new("umount").args(["-i", "-f", "-l"]).arg(&mnt).status().unwrap();
    take.join().unwrap();
    let mut text = String::new();
    df.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(ended.and_then(|e| e.code()), Some(1), "{text}");
    assert!(text.contains("has not answered"), "{text}");
}

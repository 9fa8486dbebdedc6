//! Barriers are asked for by ioctl, and other requests refused. What barriers do is tested in freehold/tests/order.rs.

use crate::helpers::*;
use ::fs::descriptor::{IOC_BARRIER, IOC_DATABARRIER, fbarrier, fdatabarrier};
use fuse::MountOptions;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

#[test]
fn barriers_by_ioctl() {
    if !can_mount() {
        return;
    }
    for options in ["", "writeback"] {
        let dir = tempfile::tempdir().unwrap();
        let mount =
            fuse::mount(Arc::new(model()), dir.path(), MountOptions::parse(options).unwrap()).unwrap();
        let f = File::create(dir.path().join("f")).unwrap();
        f.write_all_at(b"data", 0).unwrap();
        let (read_only, directory) =
            (File::open(dir.path().join("f")).unwrap(), File::open(dir.path()).unwrap());
        let ask = |file: &File, request: u32| {
            // SAFETY: an open descriptor; none of these requests gets as far as its argument.
            check(unsafe { libc::ioctl(file.as_raw_fd(), request as libc::Ioctl, 0) })
        };
        for file in [&f, &read_only, &directory] {
            for request in [IOC_BARRIER, IOC_DATABARRIER] {
                let asked = ask(file, request);
                match options {
                    "" => assert_eq!(asked.unwrap(), 0),
                    _ => assert_eq!(errno(asked), libc::ENOTTY, "the kernel keeps writes"),
                }
                // Others are refused one by one, and these go on being answered.
                for other in [0x5401, IOC_DATABARRIER + 1, IOC_BARRIER - 1, request | 1 << 30] {
                    assert_eq!(errno(ask(file, other)), libc::ENOTTY, "{other:x}");
                }
            }
            // Both functions, whatever way they take.
            fbarrier(file.as_raw_fd()).unwrap();
            fdatabarrier(file.as_raw_fd()).unwrap();
        }
        drop((f, read_only, directory));
        unmount(&mount);
    }
}

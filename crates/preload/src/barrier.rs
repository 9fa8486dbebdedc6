//! fbarrier and fdatabarrier: order without durability (BarrierFS). libc has no such functions, so programs find these by dlsym(3), or call
//! `fs::descriptor`, `fh_barrier_fd` or the ioctl, which all lead here for descriptors of ours.
//!
//! On a file or directory of a volume the barrier is the session's. On other descriptors it is what `fs::descriptor::kernel_barrier` makes of it: the
//! FUSE mount's ioctl, else fsync(2) or fdatasync(2). As for fsync(2), what stands in buffers of stdio is to be flushed before. Where tested: `freehold/tests/order.rs`.

use crate::hook::{self, Out, Res, fail};
use crate::mounts;
use crate::table;
use fs::FileSystem;
use fs::descriptor::{barrier_of, kernel_barrier};
use libc::{c_int, c_ulong};

fn ours(fd: c_int, datasync: bool) -> Res<c_int> {
    if mounts::is_own(fd) {
        return fail(libc::EBADF);
    }
    let open = table::get(fd).ok_or(Out::Libc)?;
    let handle = open.handle()?;
    open.mount.run(|fs| fs.barrier(handle, datasync))?;
    Ok(0)
}

fn theirs(fd: c_int, datasync: bool) -> c_int {
    // A signal handler on top of a call of ours: the kernel's descriptor is only a place holder, of which nothing could be promised.
    let done = if table::is_ours(fd) {
        Err(libc::EBADF)
    } else {
        kernel_barrier(fd, datasync).map_err(|e| e.raw_os_error().unwrap_or(libc::EIO))
    };
    match done {
        Ok(()) => 0,
        Err(errno) => {
            hook::set_errno(errno);
            -1
        }
    }
}

/// The ioctl of FUSE mounts, on a descriptor of ours. `None`: it is another request.
pub(crate) fn by_ioctl(fd: c_int, request: c_ulong) -> Option<Res<c_int>> {
    let datasync = u32::try_from(request).ok().and_then(barrier_of)?;
    Some(ours(fd, datasync))
}

/// Everything done before on the volume of `fd` persists before anything done later.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn fbarrier(fd: c_int) -> c_int {
    hook::run(|| ours(fd, false), || theirs(fd, false))
}

/// As [`fbarrier`]; times of the file may be left out.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn fdatabarrier(fd: c_int) -> c_int {
    hook::run(|| ours(fd, true), || theirs(fd, true))
}

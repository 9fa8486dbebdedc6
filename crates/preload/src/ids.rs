//! Programs that change who they are. A session has the credentials of its beginning, and the manager knows of no others; so while a
//! process has other ones, its paths go to the FUSE mount, where the kernel knows who asks. With the first credentials again (seteuid back),
//! paths go to the session again. What is open stays open, as everywhere; mode, owner and times cannot be set through it meanwhile (`EPERM`).
//!
//! Effective user and group and the supplementary groups count, those of the process: `setfsuid` and raw system calls, which can give a thread
//! its own, are not seen.
//!
//! Where tested: tests/all/programs.rs, and with pjdfstest under `freehold run` (scripts/conformance.sh).

use crate::hook::{Res, hook};
use crate::{mounts, table};
use fs::Cred;
use libc::{c_char, c_int, gid_t, size_t, uid_t};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// The credentials with which the first session of this process began. Never freed.
static BEGUN: AtomicPtr<Cred> = AtomicPtr::new(std::ptr::null_mut());
static OTHERS: AtomicBool = AtomicBool::new(false);

/// Whether the process has other credentials than its sessions.
#[inline]
pub(crate) fn others() -> bool {
    OTHERS.load(Ordering::Relaxed)
}

/// A session is about to begin, or has. All sessions of a process have one set of credentials, which this gives: none begins while there are others.
#[inline]
pub(crate) fn begin() -> &'static Cred {
    // SAFETY: made by Box::into_raw and never freed once it is there.
    unsafe { BEGUN.load(Ordering::Acquire).as_ref() }.unwrap_or_else(begin_first)
}

#[cold]
fn begin_first() -> &'static Cred {
    let now = Box::into_raw(Box::new(Cred::of_process()));
    match BEGUN.compare_exchange(std::ptr::null_mut(), now, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: as above.
        Ok(_) => unsafe { &*now },
        Err(other) => {
            // SAFETY: nobody has seen the new one; the other one is as above.
            unsafe {
                drop(Box::from_raw(now));
                &*other
            }
        }
    }
}

/// A child of fork begins sessions of its own.
pub(crate) fn after_fork() {
    BEGUN.store(std::ptr::null_mut(), Ordering::Release);
    OTHERS.store(false, Ordering::Relaxed);
}

/// Makes a call that may change the credentials. What this process has from another one and did not use yet it opens before: the new ones may forbid that.
fn changes(call: impl FnOnce() -> c_int) -> Res<c_int> {
    // A child of vfork has its own credentials, and our memory.
    if mounts::borrowed_memory() {
        return Ok(call());
    }
    if !others() {
        let opens = table::ours_in(0, usize::MAX).into_iter().filter_map(table::get);
        opens.for_each(|open| _ = open.handle());
    }
    let answer = call();
    if answer == 0 {
        let errno = crate::hook::errno();
        // SAFETY: made by Box::into_raw and never freed once it is there.
        if let Some(begun) = unsafe { BEGUN.load(Ordering::Acquire).as_ref() } {
            let now = Cred::of_process();
            let same = (now.uid, now.gid, &now.groups) == (begun.uid, begun.gid, &begun.groups);
            OTHERS.store(!same, Ordering::Relaxed);
        }
        crate::hook::set_errno(errno);
    }
    Ok(answer)
}

hook! {
    fn setuid(uid: uid_t) -> c_int { changes(|| setuid::real(uid)) }
    fn seteuid(uid: uid_t) -> c_int { changes(|| seteuid::real(uid)) }
    fn setreuid(ruid: uid_t, euid: uid_t) -> c_int { changes(|| setreuid::real(ruid, euid)) }
    fn setresuid(ruid: uid_t, euid: uid_t, suid: uid_t) -> c_int { changes(|| setresuid::real(ruid, euid, suid)) }
    fn setgid(gid: gid_t) -> c_int { changes(|| setgid::real(gid)) }
    fn setegid(gid: gid_t) -> c_int { changes(|| setegid::real(gid)) }
    fn setregid(rgid: gid_t, egid: gid_t) -> c_int { changes(|| setregid::real(rgid, egid)) }
    fn setresgid(rgid: gid_t, egid: gid_t, sgid: gid_t) -> c_int { changes(|| setresgid::real(rgid, egid, sgid)) }
    fn setgroups(count: size_t, groups: *const gid_t) -> c_int { changes(|| setgroups::real(count, groups)) }
    fn initgroups(user: *const c_char, group: gid_t) -> c_int { changes(|| initgroups::real(user, group)) }
}

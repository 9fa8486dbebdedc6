//! Taking on a caller's identity for one system call, in the calling thread alone.

use fs::{Cred, Result};
use std::ptr;

/// The thread has a caller's identity until this is dropped.
pub struct Identity {
    root: bool,
}

impl Identity {
    /// Takes on this identity. The thread must be root's.
    pub fn take(cred: &Cred) -> Result<Identity> {
        let root = cred.uid == 0 && cred.gid == 0 && cred.groups.is_empty();
        if !root {
            set(cred.uid, cred.gid, &cred.groups)?;
        }
        Ok(Identity { root })
    }
}

impl Drop for Identity {
    fn drop(&mut self) {
        if !self.root {
            // A thread that cannot become root again would spoil every later result.
            set_uid(0).and_then(|()| set(0, 0, &[])).expect("the thread becomes root again");
        }
    }
}

/// The groups first: afterwards the right to set them is gone.
fn set(uid: u32, gid: u32, groups: &[u32]) -> Result<()> {
    // SAFETY: the list is valid for its length; the raw call changes this thread only.
    super::check(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), ptr_of(groups)) })?;
    let keep = u32::MAX;
    // SAFETY: changes the effective group of this thread only.
    super::check(unsafe { libc::syscall(libc::SYS_setresgid, keep, gid, keep) })?;
    set_uid(uid)
}

fn set_uid(uid: u32) -> Result<()> {
    let keep = u32::MAX;
    // SAFETY: changes the effective user of this thread only; real and saved stay root's.
    super::check(unsafe { libc::syscall(libc::SYS_setresuid, keep, uid, keep) })?;
    Ok(())
}

fn ptr_of(groups: &[u32]) -> *const u32 {
    if groups.is_empty() { ptr::null() } else { groups.as_ptr() }
}

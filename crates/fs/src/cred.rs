//! Who makes a call.

use std::sync::Arc;

/// Credentials of a caller. Doors take them from the kernel, never from the caller's own words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cred {
    /// File system user id.
    pub uid: u32,
    /// File system group id.
    pub gid: u32,
    /// Supplementary groups, sorted.
    pub groups: Arc<[u32]>,
    /// Permissions were already checked above the contract, by a kernel that knows more about the caller (FUSE with
    /// `default_permissions`): the engine applies the effects of identity (ownership of new files, set-id rules), but
    /// refuses nothing.
    pub checked: bool,
    /// Writes through the handles that it opens leave set-id bits: it says by itself when these go, as a kernel does that also writes back pages whose
    /// change through a mapping leaves them (FUSE_HANDLE_KILLPRIV_V2).
    pub keeps_set_ids: bool,
}

impl Cred {
    /// The superuser.
    pub fn root() -> Cred {
        Cred { uid: 0, gid: 0, groups: Arc::new([]), checked: false, keeps_set_ids: false }
    }

    /// The effective user, group and groups of this process.
    pub fn of_process() -> Cred {
        // SAFETY: these calls only read the process's credentials; the buffer's length is given.
        let (uid, gid, groups) = unsafe {
            let n = libc::getgroups(0, std::ptr::null_mut()).max(0);
            let mut groups = vec![0u32; n as usize];
            let n = libc::getgroups(n, groups.as_mut_ptr()).max(0);
            groups.truncate(n as usize);
            (libc::geteuid(), libc::getegid(), groups)
        };
        Cred::user(uid, gid, &groups)
    }

    /// A user with these groups.
    pub fn user(uid: u32, gid: u32, groups: &[u32]) -> Cred {
        let mut groups = groups.to_vec();
        groups.sort_unstable();
        Cred { uid, gid, groups: groups.into(), ..Cred::root() }
    }

    /// Whether the caller may do anything (root, or checked before).
    pub fn privileged(&self) -> bool {
        self.uid == 0 || self.checked
    }

    /// Whether `gid` is one of the caller's groups.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.binary_search(&gid).is_ok()
    }
}

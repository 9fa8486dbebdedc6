//! Permission and identity rules of the model, as Linux has them for a local file system.
//!
//! They are written here a second time on purpose, independent of `fs::perm` that engines use: a mistake that the engine
//! shared with its judge would be found by nobody. Two questions are kept apart: what may be refused
//! ([`Cred::privileged`], also true for callers that were checked above the contract) and what the caller's identity
//! causes (only user 0 keeps set-id bits when it writes or truncates; a checked caller does not).
//!
//! Tested against the kernel in `tests/host.rs`.

use fs::{Access, Attr, Cred, Error, FileType, Result, SetAttr, SetTime, Time};

const SET_UID: u16 = 0o4000;
const SET_GID: u16 = 0o2000;
const STICKY: u16 = 0o1000;
const GROUP_EXEC: u16 = 0o010;

fn owns(cred: &Cred, attr: &Attr) -> bool {
    cred.privileged() || cred.uid == attr.uid
}

/// Whether set-group-id of `gid` may stay when this caller makes or changes a file. Callers that were checked above got
/// their mode from a kernel that decided this.
fn keeps_set_gid(cred: &Cred, gid: u32) -> bool {
    cred.privileged() || cred.in_group(gid)
}

/// `AccessDenied` unless the mode bits allow all that is asked.
pub fn may(cred: &Cred, attr: &Attr, asked: Access) -> Result<()> {
    if cred.checked {
        return Ok(());
    }
    let granted = if cred.uid == 0 {
        let exec = attr.kind == FileType::Directory || attr.perm & 0o111 != 0;
        Access::READ | Access::WRITE | if exec { Access::EXEC } else { Access::empty() }
    } else {
        let shift = match () {
            _ if cred.uid == attr.uid => 6,
            _ if cred.in_group(attr.gid) => 3,
            _ => 0,
        };
        Access::from_bits_truncate((attr.perm >> shift & 7) as u32)
    };
    if granted.contains(asked) { Ok(()) } else { Err(Error::AccessDenied) }
}

/// Whether the caller may remove `victim`'s name from `dir` (also by renaming it or over it).
pub fn may_remove(cred: &Cred, dir: &Attr, victim: &Attr) -> Result<()> {
    may(cred, dir, Access::WRITE | Access::EXEC)?;
    if dir.perm & STICKY != 0 && !cred.privileged() && cred.uid != victim.uid && cred.uid != dir.uid {
        return Err(Error::NotPermitted);
    }
    Ok(())
}

/// Owner, group and permission bits of a new inode.
pub fn identity(cred: &Cred, dir: &Attr, kind: FileType, perm: u16) -> (u32, u32, u16) {
    let inherits = dir.perm & SET_GID != 0;
    let gid = if inherits { dir.gid } else { cred.gid };
    let mut perm = perm & 0o7777;
    if kind == FileType::Directory {
        perm = perm & 0o1777 | if inherits { SET_GID } else { 0 };
    } else if inherits
        && perm & (SET_GID | GROUP_EXEC) == SET_GID | GROUP_EXEC
        && !keeps_set_gid(cred, dir.gid)
    {
        perm &= !SET_GID;
    }
    (cred.uid, gid, perm)
}

/// Permission bits after the data were changed by this caller.
pub fn after_write(cred: &Cred, attr: &Attr) -> u16 {
    if cred.uid == 0 || attr.kind != FileType::Regular { attr.perm } else { without_set_id(cred, attr) }
}

/// The same of a write through a handle that this caller has opened.
pub fn after_write_through(cred: &Cred, attr: &Attr) -> u16 {
    if cred.keeps_set_ids { attr.perm } else { after_write(cred, attr) }
}

/// Without the set-user-id bit, and without set-group-id where that means "runs as the group" or the caller is no member.
fn without_set_id(cred: &Cred, attr: &Attr) -> u16 {
    let mut perm = attr.perm & !SET_UID;
    if perm & GROUP_EXEC != 0 || !keeps_set_gid(cred, attr.gid) {
        perm &= !SET_GID;
    }
    perm
}

/// All checks of setattr but that of the handle. `by_handle`: the call came through a handle open for writing.
pub fn may_set(cred: &Cred, attr: &Attr, set: &SetAttr, by_handle: bool) -> Result<()> {
    if let Some(size) = set.size {
        match attr.kind {
            FileType::Regular => {}
            FileType::Directory => return Err(Error::IsDirectory),
            _ => return Err(Error::Invalid("size of what is not a regular file")),
        }
        if !by_handle {
            may(cred, attr, Access::WRITE)?;
        }
        if size > format::limits::FILE_SIZE_MAX {
            return Err(Error::TooLarge);
        }
    }
    if set.perm.is_some() && attr.kind == FileType::Symlink {
        return Err(Error::NotSupported("mode of a symlink"));
    }
    let owner = cred.uid == attr.uid;
    if set.uid.is_some_and(|uid| !(cred.privileged() || owner && uid == attr.uid)) {
        return Err(Error::NotPermitted);
    }
    if set.gid.is_some_and(|gid| !(cred.privileged() || owner && (gid == attr.gid || cred.in_group(gid)))) {
        return Err(Error::NotPermitted);
    }
    if set.perm.is_some() && !owns(cred, attr) {
        return Err(Error::NotPermitted);
    }
    match (set.atime, set.mtime) {
        (None, None) => Ok(()),
        (Some(SetTime::Now), Some(SetTime::Now)) if owns(cred, attr) => Ok(()),
        (Some(SetTime::Now), Some(SetTime::Now)) => may(cred, attr, Access::WRITE),
        _ if owns(cred, attr) => Ok(()),
        _ => Err(Error::NotPermitted),
    }
}

/// What setattr does to the attributes. The size itself is the contents' business.
pub fn set(cred: &Cred, attr: &mut Attr, set: &SetAttr, now: Time) {
    let at = |t: SetTime| match t {
        SetTime::Now => now,
        SetTime::At(t) => t,
    };
    if set.size.is_some() {
        // Also when the size is the one that the file has.
        attr.perm = after_write(cred, attr);
        (attr.mtime, attr.ctime) = (now, now);
    }
    if set.uid.is_some() || set.gid.is_some() {
        if attr.kind != FileType::Directory {
            attr.perm = without_set_id(cred, attr);
        }
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        attr.ctime = now;
    }
    if let Some(perm) = set.perm {
        attr.perm = perm & 0o7777;
        if !keeps_set_gid(cred, attr.gid) {
            attr.perm &= !SET_GID;
        }
        attr.ctime = now;
    }
    if set.atime.is_some() || set.mtime.is_some() {
        attr.atime = set.atime.map_or(attr.atime, at);
        attr.mtime = set.mtime.map_or(attr.mtime, at);
        attr.ctime = now;
    }
}

/// Whether the caller may open with NOATIME.
pub fn may_skip_atime(cred: &Cred, attr: &Attr) -> Result<()> {
    if owns(cred, attr) { Ok(()) } else { Err(Error::NotPermitted) }
}

/// Whether a read at `now` moves the access time (relatime: at most once a day while nothing changes).
pub fn moves_atime(attr: &Attr, now: Time) -> bool {
    attr.atime <= attr.mtime || attr.atime <= attr.ctime || now.sec - attr.atime.sec >= 24 * 60 * 60
}

/// Whether the caller may read or write this extended attribute.
pub fn may_xattr(cred: &Cred, attr: &Attr, name: &[u8], write: bool) -> Result<()> {
    if name.is_empty() || name.len() > format::limits::NAME_MAX {
        return Err(Error::BufferTooSmall);
    }
    let known = [&b"user."[..], b"trusted.", b"security."];
    match known.iter().find_map(|prefix| name.strip_prefix(*prefix)) {
        None => return Err(Error::NotSupported("namespace of the extended attribute")),
        Some(b"") => return Err(Error::Invalid("extended attribute without a name")),
        Some(_) => {}
    }
    let refused = if write { Error::NotPermitted } else { Error::NoAttribute };
    if name.starts_with(b"user.") {
        if !matches!(attr.kind, FileType::Regular | FileType::Directory) {
            return Err(refused);
        }
        let sticky = attr.kind == FileType::Directory && attr.perm & STICKY != 0;
        if write && sticky && !owns(cred, attr) {
            return Err(Error::NotPermitted);
        }
        return may(cred, attr, if write { Access::WRITE } else { Access::READ });
    }
    let everyone = name.starts_with(b"security.") && !write;
    if everyone || cred.privileged() { Ok(()) } else { Err(refused) }
}

/// Whether listxattr shows this name to the caller.
pub fn lists_xattr(cred: &Cred, name: &[u8]) -> bool {
    cred.privileged() || !name.starts_with(b"trusted.")
}

#[cfg(test)]
mod tests {
    //! The engines' rules (`fs::perm`) against these, on random callers and inodes.

    use super::*;
    use fs::{Ino, perm};
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    const NOW: Time = Time { sec: 1000, nsec: 1 };
    const KINDS: [FileType; 5] =
        [FileType::Regular, FileType::Regular, FileType::Directory, FileType::Symlink, FileType::Fifo];

    struct Dice(SmallRng);

    impl Dice {
        fn of<T: Copy>(&mut self, choices: &[T]) -> T {
            choices[self.0.random_range(0..choices.len())]
        }
        fn maybe<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
            self.0.random_bool(0.4).then(|| make(self))
        }
        fn cred(&mut self) -> Cred {
            let (uid, gid) = (self.of(&[0, 1, 2]), self.of(&[0, 1, 2]));
            let mut cred = if uid == 0 { Cred::root() } else { Cred::user(uid, gid, &[3]) };
            cred.checked = self.0.random_bool(0.2);
            cred.keeps_set_ids = self.0.random_bool(0.2);
            cred
        }
        fn attr(&mut self) -> Attr {
            let t = Time { sec: 1, nsec: 0 };
            Attr {
                ino: Ino(9),
                generation: 0,
                kind: self.of(&KINDS),
                perm: self.0.random_range(0..=0o7777),
                nlink: 1,
                uid: self.of(&[0, 1, 2]),
                gid: self.of(&[0, 1, 2, 3]),
                rdev: 0,
                size: 100,
                blocks: 8,
                atime: t,
                mtime: t,
                ctime: t,
                btime: t,
                xattrs: false,
            }
        }
        fn when(&mut self) -> SetTime {
            self.of(&[SetTime::Now, SetTime::Now, SetTime::At(Time { sec: 7, nsec: 7 })])
        }
        fn set(&mut self) -> SetAttr {
            let mut set = SetAttr::default();
            // Mostly one thing at a time, as system calls ask for it.
            for what in 0..self.of(&[1, 1, 1, 3]) {
                match (self.0.random_range(0..4), what) {
                    (0, _) => set.perm = Some(self.0.random_range(0..=0o7777)),
                    (1, _) => {
                        set.uid = self.maybe(|d| d.of(&[0, 1, 2]));
                        set.gid = self.maybe(|d| d.of(&[0, 1, 2, 3]));
                    }
                    (2, _) => set.size = Some(self.of(&[0, 100, 200, u64::MAX])),
                    _ => {
                        set.atime = self.maybe(Self::when);
                        set.mtime = self.maybe(Self::when);
                    }
                }
            }
            set
        }
    }

    #[test]
    fn the_rules_of_engines_are_the_same() {
        let mut dice = Dice(SmallRng::seed_from_u64(1));
        for round in 0..200_000 {
            let (cred, attr, dir) = (dice.cred(), dice.attr(), dice.attr());
            let asked = Access::from_bits_truncate(dice.0.random_range(0..8));
            let say = format!("round {round}: {cred:?} {attr:?}");
            assert_eq!(perm::check(&cred, &attr, asked), may(&cred, &attr, asked), "{say} {asked:?}");
            assert_eq!(
                perm::check_delete(&cred, &dir, &attr),
                may_remove(&cred, &dir, &attr),
                "{say} {dir:?}"
            );
            if attr.kind != FileType::Symlink {
                let theirs = perm::new_inode(&cred, &dir, attr.kind, attr.perm);
                assert_eq!(theirs, identity(&cred, &dir, attr.kind, attr.perm), "{say} {dir:?}");
            }
            let name =
                dice.of(&[&b"user.a"[..], b"trusted.a", b"security.a", b"user.", b"user", b"other.a", b""]);
            let write = dice.0.random();
            let errno = |r: Result<()>| r.map_err(|e| e.errno());
            let theirs = errno(perm::check_xattr(&cred, &attr, name, write));
            assert_eq!(theirs, errno(may_xattr(&cred, &attr, name, write)), "{say} {name:?} {write}");
            if attr.kind == FileType::Regular {
                let theirs = perm::after_write(perm::Writer::through_handle(&cred, &attr), attr.perm);
                assert_eq!(theirs, after_write_through(&cred, &attr), "{say}");
            }
            let (change, by_handle) = (dice.set(), dice.0.random());
            let theirs = perm::setattr(&cred, &attr, &change, by_handle, NOW);
            let ours = may_set(&cred, &attr, &change, by_handle).map(|()| {
                let mut new = attr;
                set(&cred, &mut new, &change, NOW);
                new.size = change.size.unwrap_or(new.size);
                new
            });
            match (theirs, ours) {
                // Which of several reasons to refuse comes first is not settled.
                (Err(_), Err(_)) => {}
                (theirs, ours) => assert_eq!(theirs, ours, "{say} {change:?} {by_handle}"),
            }
        }
    }
}

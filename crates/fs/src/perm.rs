//! Permission checks and the effects of identity, as pure functions, so that all engines and the reference model decide alike.
//!
//! The rules are POSIX's; where POSIX leaves a choice they are Linux's (fs/namei.c `generic_permission`, `may_delete`;
//! fs/attr.c `setattr_prepare`, `notify_change`; fs/inode.c `inode_init_owner`, `mode_strip_sgid`; fs/xattr.c
//! `xattr_permission`). The capabilities of Linux are all held by uid 0 and by nobody else.
//!
//! [`Cred::checked`] callers were let through by a kernel, so nothing is refused to them for who they are. What is refused
//! to root as well (the size of a directory, an unknown attribute namespace) is refused to them too.

use crate::cred::Cred;
use crate::error::{Error, Result};
use crate::types::*;
use format::limits::{FILE_SIZE_MAX, NAME_MAX};

const S_ISUID: u16 = 0o4000;
const S_ISGID: u16 = 0o2000;
const S_ISVTX: u16 = 0o1000;
const S_IXGRP: u16 = 0o0010;
const S_IXUGO: u16 = 0o0111;

/// Whether the caller may do `want`. `AccessDenied`.
///
/// Exactly one class of mode bits counts: the owner's, else the group's, else the others'. Root passes, except that executing
/// what is not a directory needs an x bit for someone.
pub fn check(cred: &Cred, attr: &Attr, want: Access) -> Result<()> {
    if cred.checked {
        return Ok(());
    }
    let class = if cred.uid == attr.uid {
        attr.perm >> 6
    } else if cred.in_group(attr.gid) {
        attr.perm >> 3
    } else {
        attr.perm
    };
    let overridden = cred.uid == 0
        && (attr.kind == FileType::Directory || !want.contains(Access::EXEC) || attr.perm & S_IXUGO != 0);
    if want.bits() & !(class as u32) & 7 == 0 || overridden { Ok(()) } else { Err(Error::AccessDenied) }
}

/// Whether the caller may remove or rename the entry of `dir` that leads to `victim`. `AccessDenied` (no write or search
/// permission), `NotPermitted` (sticky directory, and the caller owns neither).
pub fn check_delete(cred: &Cred, dir: &Attr, victim: &Attr) -> Result<()> {
    check(cred, dir, Access::WRITE | Access::EXEC)?;
    let sticky = dir.perm & S_ISVTX != 0;
    if sticky && cred.uid != victim.uid && cred.uid != dir.uid && !cred.privileged() {
        return Err(Error::NotPermitted);
    }
    Ok(())
}

/// Whether the caller may give another name to a file where hard links are protected (proc_sys_fs(5), `protected_hardlinks`): to its own,
/// and to what it may read and write anyway and is no program with set-id bits. `NotPermitted`.
pub fn check_link(cred: &Cred, attr: &Attr) -> Result<()> {
    let set_id = attr.perm & S_ISUID != 0 || attr.perm & (S_ISGID | S_IXGRP) == S_ISGID | S_IXGRP;
    let owns = cred.uid == attr.uid || cred.privileged();
    let may = || check(cred, attr, Access::READ | Access::WRITE).is_ok();
    if owns || attr.kind == FileType::Regular && !set_id && may() { Ok(()) } else { Err(Error::NotPermitted) }
}

/// Owner, group and permission bits of an inode that the caller makes in `dir`. `perm` is what was asked for, umask applied.
///
/// In a set-group-id directory the group is the directory's, and new directories get the bit too. A caller outside that group
/// gets no set-group-id program there. mkdir ignores set-id bits; symlinks always have mode 0777.
pub fn new_inode(cred: &Cred, dir: &Attr, kind: FileType, perm: u16) -> (u32, u32, u16) {
    let inherit = dir.perm & S_ISGID != 0;
    let gid = if inherit { dir.gid } else { cred.gid };
    let perm = match kind {
        FileType::Symlink => 0o777,
        FileType::Directory => (perm & (0o777 | S_ISVTX)) | if inherit { S_ISGID } else { 0 },
        _ => {
            let program = perm & (S_ISGID | S_IXGRP) == S_ISGID | S_IXGRP;
            let strip = inherit && program && !cred.privileged() && !cred.in_group(dir.gid);
            if strip { perm & 0o7777 & !S_ISGID } else { perm & 0o7777 }
        }
    };
    (cred.uid, gid, perm)
}

/// Checks a setattr and returns the attributes as they are afterwards; the engine then moves the data when the size differs.
/// `writable_handle`: `set.handle` is open for writing, which stands in for write permission when the size is set.
///
/// Errors: `IsDirectory`, `Invalid` (size of what is not a regular file; a time with too many nanoseconds; id 0xffff_ffff),
/// `TooLarge`, `NotSupported` (mode of a symlink), `AccessDenied` (size, or both times to `Now`, without write permission),
/// `NotPermitted` (not the owner: mode, group, a certain time, or one time alone; not root: another owner, a foreign group).
///
/// Set-id bits: a chown of anything but a directory clears set-user-id, and set-group-id of programs, even for root; a change
/// of size does so for unprivileged callers; a chmod by someone outside the group clears set-group-id. A `perm` in the same
/// call is taken as the final word about set-id bits as far as chown and size are concerned. For [`Cred::checked`] callers it
/// is the final word altogether, because the FUSE kernel module either sends the mode that it computed along with the new
/// owner or size, or (FUSE_HANDLE_KILLPRIV) sends none and leaves the clearing to us.
pub fn setattr(cred: &Cred, attr: &Attr, set: &SetAttr, writable_handle: bool, now: Time) -> Result<Attr> {
    let owner = cred.uid == attr.uid || cred.privileged();
    let mut new = *attr;
    if let Some(size) = set.size {
        match attr.kind {
            FileType::Regular => {}
            FileType::Directory => return Err(Error::IsDirectory),
            _ => return Err(Error::Invalid("only regular files have a size that can be set")),
        }
        if !writable_handle {
            check(cred, attr, Access::WRITE)?;
        }
        if size > FILE_SIZE_MAX {
            return Err(Error::TooLarge);
        }
        new.size = size;
        new.mtime = now;
        if set.perm.is_none() && cred.uid != 0 {
            new.perm = killed(cred, attr);
        }
    }
    if set.perm.is_some() && attr.kind == FileType::Symlink {
        return Err(Error::NotSupported("the mode of a symlink"));
    }
    if let Some(uid) = set.uid {
        valid_id(uid)?;
        // Giving the file to the one who has it is all that an owner may do.
        let allowed = cred.privileged() || (owner && uid == attr.uid);
        if !allowed {
            return Err(Error::NotPermitted);
        }
        new.uid = uid;
    }
    if let Some(gid) = set.gid {
        valid_id(gid)?;
        let allowed = cred.privileged() || (owner && (gid == attr.gid || cred.in_group(gid)));
        if !allowed {
            return Err(Error::NotPermitted);
        }
        new.gid = gid;
    }
    let chown = set.uid.is_some() || set.gid.is_some();
    if let Some(perm) = set.perm {
        if !owner {
            return Err(Error::NotPermitted);
        }
        let keep_sgid = cred.privileged() || cred.in_group(new.gid);
        new.perm = perm & 0o7777 & if keep_sgid { !0 } else { !S_ISGID };
    } else if chown && attr.kind != FileType::Directory {
        new.perm = killed(cred, attr);
    }
    set_times(cred, attr, set, owner, now, &mut new)?;
    if (SetAttr { handle: None, ..*set }) != SetAttr::default() {
        new.ctime = now;
    }
    Ok(new)
}

/// The part of setattr about times.
fn set_times(cred: &Cred, attr: &Attr, set: &SetAttr, owner: bool, now: Time, new: &mut Attr) -> Result<()> {
    match (set.atime, set.mtime) {
        (None, None) => {}
        // Only setting both to the current time is what anyone may do who could as well read and write the file.
        (Some(SetTime::Now), Some(SetTime::Now)) if owner => {}
        (Some(SetTime::Now), Some(SetTime::Now)) => check(cred, attr, Access::WRITE)?,
        _ if owner => {}
        _ => return Err(Error::NotPermitted),
    }
    for (from, to) in [(set.atime, &mut new.atime), (set.mtime, &mut new.mtime)] {
        match from {
            None => {}
            Some(SetTime::Now) => *to = now,
            Some(SetTime::At(t)) if t.nsec < 1_000_000_000 => *to = t,
            Some(SetTime::At(_)) => return Err(Error::Invalid("nanoseconds of a time")),
        }
    }
    Ok(())
}

fn valid_id(id: u32) -> Result<()> {
    if id == u32::MAX { Err(Error::Invalid("user or group id")) } else { Ok(()) }
}

/// The permission bits after a chown, or after a truncation by an unprivileged caller (Linux `setattr_should_drop_suidgid`).
fn killed(cred: &Cred, attr: &Attr) -> u16 {
    let mut perm = attr.perm & !S_ISUID;
    // Without group execution, set-group-id meant mandatory locking once: members of the group may keep it.
    if perm & S_IXGRP != 0 || !(cred.privileged() || cred.in_group(attr.gid)) {
        perm &= !S_ISGID;
    }
    perm
}

/// Who writes, as far as set-id bits are concerned: taken when a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writer {
    /// Root: set-id bits stay.
    pub root: bool,
    /// A member of the file's group: without group execution, set-group-id stays.
    pub in_group: bool,
}

impl Writer {
    /// The caller as a writer of a file with these attributes.
    pub fn new(cred: &Cred, attr: &Attr) -> Writer {
        Writer { root: cred.uid == 0, in_group: cred.checked || cred.in_group(attr.gid) }
    }

    /// The same of somebody who has opened it, for writes through the handle.
    pub fn through_handle(cred: &Cred, attr: &Attr) -> Writer {
        let writer = Writer::new(cred, attr);
        Writer { root: writer.root || cred.keeps_set_ids, ..writer }
    }
}

/// The permission bits after a write: an unprivileged writer clears set-user-id, and set-group-id of programs or of others'
/// groups.
pub fn after_write(writer: Writer, perm: u16) -> u16 {
    if writer.root {
        perm
    } else if perm & S_IXGRP != 0 || !writer.in_group {
        perm & !(S_ISUID | S_ISGID)
    } else {
        perm & !S_ISUID
    }
}

/// Whether the caller may read or write (set or remove) the extended attribute `name`.
///
/// Errors: `BufferTooSmall` (an empty name or one above 255 bytes: `ERANGE`, as Linux has it), `Invalid` (NUL, or nothing
/// behind the namespace), `NotSupported` (namespace; `system.*`, hence ACLs), and by namespace:
/// - `user.*`: only regular files and directories have them (`NotPermitted`, `NoAttribute` for reading); the sticky directory
///   of another user is `NotPermitted` for writing; else the mode bits decide (`AccessDenied`).
/// - `trusted.*`: for root only (`NotPermitted`, `NoAttribute` for reading).
/// - `security.*`: everyone reads, root writes (`NotPermitted`).
pub fn check_xattr(cred: &Cred, attr: &Attr, name: &[u8], write: bool) -> Result<()> {
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(Error::BufferTooSmall);
    }
    if name.contains(&0) {
        return Err(Error::Invalid("NUL in the name of an attribute"));
    }
    let refused = if write { Error::NotPermitted } else { Error::NoAttribute };
    let dot = name.iter().position(|&b| b == b'.').unwrap_or(name.len());
    let (namespace, rest) = name.split_at(dot);
    match namespace {
        b"user" | b"trusted" | b"security" if rest == b"." => {
            return Err(Error::Invalid("nothing behind the namespace of an attribute"));
        }
        b"user" | b"trusted" | b"security" if rest.is_empty() => {}
        b"user" => {
            if !matches!(attr.kind, FileType::Regular | FileType::Directory) {
                return Err(refused);
            }
            let sticky = attr.kind == FileType::Directory && attr.perm & S_ISVTX != 0;
            if write && sticky && cred.uid != attr.uid && !cred.privileged() {
                return Err(Error::NotPermitted);
            }
            return check(cred, attr, if write { Access::WRITE } else { Access::READ });
        }
        b"trusted" => return if cred.privileged() { Ok(()) } else { Err(refused) },
        b"security" => return if !write || cred.privileged() { Ok(()) } else { Err(Error::NotPermitted) },
        _ => {}
    }
    Err(Error::NotSupported("this namespace of extended attributes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use format::Ino;

    const NOW: Time = Time { sec: 1000, nsec: 1 };

    fn attr(kind: FileType, uid: u32, gid: u32, perm: u16) -> Attr {
        let t = Time { sec: 1, nsec: 0 };
        let ino = Ino(9);
        Attr {
            ino,
            generation: 0,
            kind,
            perm,
            nlink: 1,
            uid,
            gid,
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
    fn file(uid: u32, gid: u32, perm: u16) -> Attr {
        attr(FileType::Regular, uid, gid, perm)
    }
    fn dir(uid: u32, gid: u32, perm: u16) -> Attr {
        attr(FileType::Directory, uid, gid, perm)
    }
    fn checked(uid: u32) -> Cred {
        Cred { checked: true, ..Cred::user(uid, uid, &[]) }
    }

    #[test]
    fn links_to_files_of_others() {
        let me = Cred::user(5, 5, &[]);
        let of = |uid, perm| check_link(&me, &attr(FileType::Regular, uid, 5, perm)).is_ok();
        assert!(of(5, 0) && of(5, 0o4755) && of(6, 0o666) && of(6, 0o660) && of(6, 0o2660));
        assert!(!of(6, 0o644) && !of(6, 0o606) && !of(6, 0o4666) && !of(6, 0o2676));
        assert!(check_link(&me, &attr(FileType::Symlink, 6, 5, 0o777)).is_err());
        assert!(check_link(&Cred::root(), &attr(FileType::Regular, 6, 5, 0o4000)).is_ok());
    }

    #[test]
    fn one_class_decides() {
        let (r, w, x) = (Access::READ, Access::WRITE, Access::EXEC);
        let f = file(1, 10, 0o074);
        assert_eq!(check(&Cred::user(1, 10, &[]), &f, r), Err(Error::AccessDenied));
        assert_eq!(check(&Cred::user(2, 5, &[7, 10]), &f, r | w | x), Ok(()));
        assert_eq!(check(&Cred::user(2, 5, &[7]), &f, r), Ok(()));
        assert_eq!(check(&Cred::user(2, 5, &[7]), &f, r | w), Err(Error::AccessDenied));
        assert_eq!(check(&checked(3), &f, w), Ok(()));
        assert_eq!(check(&Cred::user(3, 3, &[]), &f, Access::empty()), Ok(()));
    }

    #[test]
    fn root_executes_only_what_someone_may() {
        let root = Cred::root();
        assert_eq!(check(&root, &file(1, 1, 0), Access::READ | Access::WRITE), Ok(()));
        assert_eq!(check(&root, &file(1, 1, 0o666), Access::EXEC), Err(Error::AccessDenied));
        assert_eq!(check(&root, &file(1, 1, 0o001), Access::EXEC | Access::READ), Ok(()));
        assert_eq!(check(&root, &dir(1, 1, 0), Access::EXEC), Ok(()));
    }

    #[test]
    fn sticky_directories() {
        let d = dir(1, 1, 0o1777);
        let f = file(2, 2, 0o666);
        assert_eq!(check_delete(&Cred::user(1, 1, &[]), &d, &f), Ok(()));
        assert_eq!(check_delete(&Cred::user(2, 2, &[]), &d, &f), Ok(()));
        assert_eq!(check_delete(&Cred::root(), &d, &f), Ok(()));
        assert_eq!(check_delete(&Cred::user(3, 3, &[]), &d, &f), Err(Error::NotPermitted));
        assert_eq!(check_delete(&Cred::user(3, 3, &[]), &dir(1, 1, 0o1775), &f), Err(Error::AccessDenied));
        assert_eq!(check_delete(&Cred::user(3, 3, &[]), &dir(1, 1, 0o777), &f), Ok(()));
    }

    #[test]
    fn ownership_of_new_inodes() {
        let me = Cred::user(5, 50, &[60]);
        let plain = dir(1, 70, 0o777);
        let setgid = dir(1, 70, 0o2777);
        assert_eq!(new_inode(&me, &plain, FileType::Regular, 0o6755), (5, 50, 0o6755));
        assert_eq!(new_inode(&me, &setgid, FileType::Regular, 0o6755), (5, 70, 0o4755));
        assert_eq!(new_inode(&me, &setgid, FileType::Regular, 0o2745), (5, 70, 0o2745));
        assert_eq!(new_inode(&me, &dir(1, 60, 0o2777), FileType::Regular, 0o2755), (5, 60, 0o2755));
        assert_eq!(new_inode(&Cred::root(), &setgid, FileType::Regular, 0o2755), (0, 70, 0o2755));
        assert_eq!(new_inode(&checked(5), &setgid, FileType::Regular, 0o2755), (5, 70, 0o2755));
        assert_eq!(new_inode(&me, &setgid, FileType::Directory, 0o755), (5, 70, 0o2755));
        assert_eq!(new_inode(&me, &plain, FileType::Directory, 0o7755), (5, 50, 0o1755));
        assert_eq!(new_inode(&me, &setgid, FileType::Symlink, 0o600), (5, 70, 0o777));
    }

    fn chown(uid: Option<u32>, gid: Option<u32>) -> SetAttr {
        SetAttr { uid, gid, ..SetAttr::default() }
    }

    #[test]
    fn chown_rules() {
        let me = Cred::user(5, 50, &[60]);
        let f = file(5, 50, 0o6755);
        let go = |cred: &Cred, f: &Attr, set: SetAttr| setattr(cred, f, &set, false, NOW);
        let new = go(&me, &f, chown(Some(5), Some(60))).unwrap();
        assert_eq!((new.uid, new.gid, new.perm, new.ctime, new.mtime), (5, 60, 0o755, NOW, f.mtime));
        assert_eq!(go(&me, &f, chown(Some(6), None)), Err(Error::NotPermitted));
        assert_eq!(go(&me, &f, chown(None, Some(70))), Err(Error::NotPermitted));
        assert_eq!(go(&me, &file(6, 50, 0o777), chown(None, Some(50))), Err(Error::NotPermitted));
        assert_eq!(go(&Cred::root(), &f, chown(Some(9), Some(9))).unwrap().perm, 0o755);
        assert_eq!(go(&Cred::root(), &file(5, 50, 0o6745), chown(Some(9), None)).unwrap().perm, 0o2745);
        assert_eq!(go(&Cred::root(), &dir(5, 50, 0o6755), chown(Some(9), None)).unwrap().perm, 0o6755);
        assert!(matches!(go(&Cred::root(), &f, chown(Some(u32::MAX), None)), Err(Error::Invalid(_))));
    }

    #[test]
    fn chmod_rules() {
        let mode = |perm| SetAttr { perm: Some(perm), ..SetAttr::default() };
        let me = Cred::user(5, 50, &[]);
        let go = |cred: &Cred, f: &Attr, set: SetAttr| setattr(cred, f, &set, false, NOW);
        assert_eq!(go(&me, &file(5, 50, 0), mode(0o6755)).unwrap().perm, 0o6755);
        assert_eq!(go(&me, &file(5, 60, 0), mode(0o6755)).unwrap().perm, 0o4755);
        assert_eq!(go(&Cred::root(), &file(5, 60, 0), mode(0o6755)).unwrap().perm, 0o6755);
        assert_eq!(go(&checked(5), &file(5, 60, 0), mode(0o6755)).unwrap().perm, 0o6755);
        assert_eq!(go(&me, &file(6, 50, 0o777), mode(0)), Err(Error::NotPermitted));
        assert!(go(&Cred::root(), &attr(FileType::Symlink, 0, 0, 0o777), mode(0)).is_err());
    }

    #[test]
    fn times_rules() {
        let other = Cred::user(6, 60, &[]);
        let (now, at) = (Some(SetTime::Now), Some(SetTime::At(Time { sec: 7, nsec: 8 })));
        let go = |f: &Attr, atime, mtime| {
            setattr(&other, f, &SetAttr { atime, mtime, ..SetAttr::default() }, false, NOW)
        };
        assert_eq!(go(&file(5, 5, 0o666), now, now).unwrap().atime, NOW);
        assert_eq!(go(&file(5, 5, 0o664), now, now), Err(Error::AccessDenied));
        assert_eq!(go(&file(5, 5, 0o666), now, None), Err(Error::NotPermitted));
        assert_eq!(go(&file(5, 5, 0o666), now, at), Err(Error::NotPermitted));
        let mine = go(&file(6, 5, 0), None, at).unwrap();
        assert_eq!(
            (mine.mtime, mine.atime, mine.ctime),
            (Time { sec: 7, nsec: 8 }, file(0, 0, 0).atime, NOW)
        );
        let bad = Some(SetTime::At(Time { sec: 0, nsec: 1_000_000_000 }));
        assert!(matches!(go(&file(6, 5, 0), bad, None), Err(Error::Invalid(_))));
        assert_eq!(go(&file(5, 5, 0), None, None), Ok(file(5, 5, 0)), "nothing asked, nothing changed");
    }

    #[test]
    fn truncation_rules() {
        let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };
        let me = Cred::user(5, 5, &[]);
        let f = file(6, 5, 0o6775);
        let new = setattr(&me, &f, &size(7), false, NOW).unwrap();
        assert_eq!((new.size, new.mtime, new.ctime, new.perm), (7, NOW, NOW, 0o775));
        assert_eq!(setattr(&Cred::root(), &f, &size(7), false, NOW).unwrap().perm, 0o6775);
        assert_eq!(setattr(&me, &file(6, 6, 0o775), &size(7), false, NOW), Err(Error::AccessDenied));
        assert!(setattr(&me, &file(6, 6, 0o775), &size(7), true, NOW).is_ok());
        assert_eq!(setattr(&me, &dir(5, 5, 0o777), &size(7), false, NOW), Err(Error::IsDirectory));
        assert_eq!(setattr(&me, &f, &size(FILE_SIZE_MAX + 1), false, NOW), Err(Error::TooLarge));
        let both = SetAttr { perm: Some(0o4775), ..size(7) };
        assert_eq!(setattr(&checked(5), &f, &both, false, NOW).unwrap().perm, 0o4775);
        assert_eq!(setattr(&checked(5), &f, &size(7), false, NOW).unwrap().perm, 0o775);
    }

    #[test]
    fn writes_clear_set_id() {
        let writer = |root, in_group| Writer { root, in_group };
        assert_eq!(after_write(writer(false, true), 0o6755), 0o755);
        assert_eq!(after_write(writer(false, true), 0o6745), 0o2745);
        assert_eq!(after_write(writer(false, false), 0o6745), 0o745);
        assert_eq!(after_write(writer(true, false), 0o6755), 0o6755);
        let me = Cred::user(5, 50, &[]);
        let through = |cred: &Cred| after_write(Writer::through_handle(cred, &file(5, 60, 0)), 0o6755);
        let keeps = Cred { keeps_set_ids: true, ..checked(5) };
        assert_eq!([&me, &checked(5), &keeps, &Cred::root()].map(through), [0o755, 0o755, 0o6755, 0o6755]);
    }

    #[test]
    fn attribute_namespaces() {
        let me = Cred::user(5, 5, &[]);
        let f = file(5, 5, 0o600);
        let link = attr(FileType::Symlink, 5, 5, 0o777);
        let (yes, no) = (true, false);
        assert_eq!(check_xattr(&me, &f, b"user.x", yes), Ok(()));
        assert_eq!(check_xattr(&me, &file(6, 6, 0o644), b"user.x", no), Ok(()));
        assert_eq!(check_xattr(&me, &file(6, 6, 0o644), b"user.x", yes), Err(Error::AccessDenied));
        assert_eq!(check_xattr(&me, &link, b"user.x", yes), Err(Error::NotPermitted));
        assert_eq!(check_xattr(&Cred::root(), &link, b"user.x", no), Err(Error::NoAttribute));
        assert_eq!(check_xattr(&me, &dir(6, 6, 0o1777), b"user.x", yes), Err(Error::NotPermitted));
        assert_eq!(check_xattr(&me, &dir(6, 6, 0o1777), b"user.x", no), Ok(()));
        assert_eq!(check_xattr(&me, &f, b"trusted.x", no), Err(Error::NoAttribute));
        assert_eq!(check_xattr(&me, &f, b"trusted.x", yes), Err(Error::NotPermitted));
        assert_eq!(check_xattr(&Cred::root(), &link, b"trusted.x", yes), Ok(()));
        assert_eq!(check_xattr(&me, &file(6, 6, 0), b"security.x", no), Ok(()));
        assert_eq!(check_xattr(&me, &f, b"security.x", yes), Err(Error::NotPermitted));
        for name in [&b"system.posix_acl_access"[..], b"x", b"user", b"users.x", b".x"] {
            assert!(matches!(check_xattr(&Cred::root(), &f, name, no), Err(Error::NotSupported(_))));
        }
        assert!(matches!(check_xattr(&me, &f, b"user.", no), Err(Error::Invalid(_))));
        assert_eq!(check_xattr(&me, &f, b"", no), Err(Error::BufferTooSmall));
        let mut long = b"user.".to_vec();
        long.resize(256, b'x');
        assert_eq!(check_xattr(&me, &f, &long, no), Err(Error::BufferTooSmall));
        assert_eq!(check_xattr(&me, &f, &long[..255], no), Ok(()));
    }
}

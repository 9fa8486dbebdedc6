//! Requests about attributes: stat, chmod and the like, extended attributes, space.
//!
//! Set-id bits and file capabilities: the kernel leaves clearing them to us (`HANDLE_KILLPRIV_V2`), which spares it a question
//! before each write. It says when set-id bits must go; capabilities, which go with every change of content or owner, the engine drops.

use crate::abi::{self, Fattr, InHeader};
use crate::device::{take, take_name};
use crate::door::{Answer, Door, Errno, MALFORMED, Outcome, kernel_cred, raw_attr, split};
use fs::{Access, Attr, Cred, Error, FileSystem, FileType, Handle, Ino, SetAttr, SetTime, Time, XattrFlags};

impl<F: FileSystem> Door<F> {
    fn attr_out(&self, attr: &Attr) -> Answer {
        let (attr_valid, attr_valid_nsec) = split(self.options.attr_timeout);
        Answer::of(&abi::AttrOut { attr_valid, attr_valid_nsec, dummy: 0, attr: raw_attr(attr) })
    }

    pub(crate) async fn getattr(&self, head: &InHeader, body: &[u8]) -> Outcome {
        let (a, _) = take::<abi::GetAttrIn>(body).ok_or(MALFORMED)?;
        let handle = (a.flags & abi::GETATTR_FH != 0).then_some(Handle(a.fh));
        self.known.attr(Ino(head.nodeid));
        let attr = self.asks(head, self.fs.getattr(Ino(head.nodeid), handle)).await?;
        Ok(self.attr_out(&attr))
    }

    pub(crate) async fn statx(&self, head: &InHeader, body: &[u8]) -> Outcome {
        let (q, _) = take::<abi::StatxIn>(body).ok_or(MALFORMED)?;
        let handle = (q.flags & abi::GETATTR_FH != 0).then_some(Handle(q.fh));
        self.known.attr(Ino(head.nodeid));
        let a = self.asks(head, self.fs.getattr(Ino(head.nodeid), handle)).await?;
        let (attr_valid, attr_valid_nsec) = split(self.options.attr_timeout);
        let time = |t: Time| abi::SxTime { sec: t.sec, nsec: t.nsec, reserved: 0 };
        Ok(Answer::of(&abi::StatxOut {
            attr_valid,
            attr_valid_nsec,
            mask: libc::STATX_BASIC_STATS | libc::STATX_BTIME,
            blksize: 4096,
            nlink: a.nlink,
            uid: a.uid,
            gid: a.gid,
            mode: a.mode() as u16,
            ino: a.ino.0,
            size: a.size,
            blocks: a.blocks,
            atime: time(a.atime),
            btime: time(a.btime),
            ctime: time(a.ctime),
            mtime: time(a.mtime),
            rdev_major: libc::major(a.rdev),
            rdev_minor: libc::minor(a.rdev),
            ..Default::default()
        }))
    }

    pub(crate) async fn setattr(&self, head: &InHeader, body: &[u8]) -> Outcome {
        let (a, _) = take::<abi::SetAttrIn>(body).ok_or(MALFORMED)?;
        let valid = Fattr::from_bits_truncate(a.valid);
        let time = |set: Fattr, now: Fattr, sec: i64, nsec: u32| {
            let at = if valid.contains(now) { SetTime::Now } else { SetTime::At(Time { sec, nsec }) };
            valid.contains(set).then_some(at)
        };
        let set = SetAttr {
            perm: valid.contains(Fattr::MODE).then_some((a.mode & 0o7777) as u16),
            uid: valid.contains(Fattr::UID).then_some(a.uid),
            gid: valid.contains(Fattr::GID).then_some(a.gid),
            size: valid.contains(Fattr::SIZE).then_some(a.size),
            atime: time(Fattr::ATIME, Fattr::ATIME_NOW, a.atime, a.atimensec),
            mtime: time(Fattr::MTIME, Fattr::MTIME_NOW, a.mtime, a.mtimensec),
            handle: valid.contains(Fattr::FH).then_some(Handle(a.fh)),
        };
        let ino = Ino(head.nodeid);
        self.known.changing(ino);
        if let Some(handle) = set.handle {
            self.changes(head, handle.0);
        }
        let mut attr = self.fs.setattr(&self.cred(head), ino, set).await?;
        let changes = set.size.is_some() || set.uid.is_some() || set.gid.is_some();
        if changes && valid.contains(Fattr::KILL_SUIDGID) {
            attr = self.kill_suid_of(ino, set.handle, attr).await?;
        }
        Ok(self.attr_out(&attr))
    }

    /// Clears the set-id bits of a file as a write by an ordinary user does.
    pub(crate) async fn kill_suid(&self, ino: Ino, handle: Handle) -> Result<(), Errno> {
        let attr = self.fs.getattr(ino, Some(handle)).await?;
        self.kill_suid_of(ino, Some(handle), attr).await.map(drop)
    }

    async fn kill_suid_of(&self, ino: Ino, handle: Option<Handle>, attr: Attr) -> Result<Attr, Errno> {
        // Set-group-id without group execution is no privilege (it once meant mandatory locking).
        let sgid = if attr.perm & 0o010 != 0 { 0o2000 } else { 0 };
        if attr.kind != FileType::Regular || attr.perm & (0o4000 | sgid) == 0 {
            return Ok(attr);
        }
        let set = SetAttr { perm: Some(attr.perm & !(0o4000 | sgid)), handle, ..SetAttr::default() };
        Ok(self.fs.setattr(&kernel_cred(), ino, set).await?)
    }

    pub(crate) async fn access(&self, head: &InHeader, body: &[u8]) -> Outcome {
        let (a, _) = take::<abi::AccessIn>(body).ok_or(MALFORMED)?;
        // Only a mount without default_permissions asks, so here nothing was checked before.
        let cred = Cred { checked: false, ..self.cred(head) };
        let mask = Access::from_bits(a.mask).ok_or(Errno(libc::EINVAL))?;
        self.asks(head, self.fs.access(&cred, Ino(head.nodeid), mask)).await?;
        Ok(Answer::Empty)
    }

    pub(crate) async fn statfs(&self) -> Outcome {
        let s = self.fs.statfs().await?;
        Ok(Answer::of(&abi::StatfsOut {
            blocks: s.blocks,
            bfree: s.blocks_free,
            bavail: s.blocks_available,
            files: s.inodes,
            ffree: s.inodes_free,
            bsize: s.block_size,
            namelen: s.name_max,
            frsize: s.block_size,
            ..Default::default()
        }))
    }

    pub(crate) async fn getxattr(&self, head: &InHeader, body: &[u8]) -> Outcome {
        let (a, rest) = take::<abi::GetXattr>(body).ok_or(MALFORMED)?;
        let (name, _) = take_name(rest).ok_or(MALFORMED)?;
        // The kernel keeps access control lists like attributes.
        self.known.attr(Ino(head.nodeid));
        let cred = self.cred(head);
        sized(self.asks(head, self.fs.getxattr(&cred, Ino(head.nodeid), name)).await?, a.size)
    }

    pub(crate) async fn listxattr(&self, head: &InHeader, body: &[u8]) -> Outcome {
        let (a, _) = take::<abi::GetXattr>(body).ok_or(MALFORMED)?;
        // Which names are shown to whom the kernel leaves to the file system.
        let cred = Cred { checked: false, ..self.cred(head) };
        let names = self.asks(head, self.fs.listxattr(&cred, Ino(head.nodeid))).await?;
        let list = names.iter().flat_map(|n| n.iter().copied().chain([0])).collect();
        sized(list, a.size)
    }

    pub(crate) async fn setxattr(&self, head: &InHeader, body: &[u8]) -> Outcome {
        let (a, rest) = take::<abi::SetXattrIn>(body).ok_or(MALFORMED)?;
        let (name, rest) = take_name(rest).ok_or(MALFORMED)?;
        let value = rest.get(..a.size as usize).ok_or(MALFORMED)?;
        let flags = XattrFlags::from_bits(a.flags).ok_or(Errno(libc::EINVAL))?;
        self.fs.setxattr(&self.cred(head), Ino(head.nodeid), name, value, flags).await?;
        Ok(Answer::Empty)
    }

    pub(crate) async fn removexattr(&self, head: &InHeader, body: &[u8]) -> Outcome {
        let (name, _) = take_name(body).ok_or(MALFORMED)?;
        self.fs.removexattr(&self.cred(head), Ino(head.nodeid), name).await?;
        Ok(Answer::Empty)
    }
}

/// The size protocol of extended attributes: asked with 0 the length is told, otherwise the value must fit.
fn sized(value: Vec<u8>, room: u32) -> Outcome {
    match room as usize {
        0 => Ok(Answer::of(&abi::GetXattr { size: value.len() as u32, padding: 0 })),
        room if value.len() > room => Err(Error::BufferTooSmall.into()),
        _ => Ok(Answer::Bytes(value)),
    }
}

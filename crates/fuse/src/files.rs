//! Requests about open files: open, transfer, sync, lock.

use crate::abi::{self, InHeader, op};
use crate::device::take;
use crate::door::{Answer, Door, Errno, MALFORMED, Outcome, Small, kernel_cred};
use crate::interrupt::Gives;
use crate::options::MountOptions;
use fs::descriptor::barrier_of;
use fs::watched::Change;
use fs::{Attr, Fallocate, FileSystem, Handle, Ino, LockKind, LockOwner, OpenFlags, RecordLock, Seek};

impl<F: FileSystem> Door<F> {
    /// How a file that is opened with `flags` is opened in the engine, and what the kernel is told about it.
    pub(crate) fn flags_for(&self, flags: u32) -> (OpenFlags, u32) {
        flags_for(flags, &self.options, self.caps, self.minor)
    }

    /// Whether the engine places what is written with these flags: the kernel would put it where it believes the end to be, which another
    /// door may have moved. A bucket, which takes files at their closes, has no other door.
    fn places(&self, flags: OpenFlags) -> bool {
        flags.contains(OpenFlags::APPEND)
            && self.changers.is_none()
            && !self.caps.contains(abi::Init::WRITEBACK_CACHE)
    }

    /// Remembers an open file and makes the reply of open, or with `attr` that of create. `asked`: the flags of open(2).
    pub(crate) fn opened(
        &self,
        head: &InHeader,
        handle: Handle,
        flags: OpenFlags,
        (asked, open_flags): (u32, u32),
        attr: Option<&Attr>,
    ) -> Answer {
        let ino = attr.map_or(Ino(head.nodeid), |attr| attr.ino);
        let asked = OpenFlags::from_posix(asked as i32);
        if flags.contains(OpenFlags::WRITE) {
            self.changes(head, handle.0);
        }
        self.handles.add(handle, ino, flags, asked.intersects(OpenFlags::SYNC | OpenFlags::DSYNC));
        let small = match attr {
            Some(attr) => Small::new().with(&self.entry(attr)),
            None => Small::new(),
        };
        Answer::Opened(small.with(&abi::OpenOut { fh: handle.0, open_flags, backing_id: 0 }), handle)
    }

    pub(crate) async fn open(&self, head: &InHeader, body: &[u8]) -> Outcome {
        let (a, _) = take::<abi::OpenIn>(body).ok_or(MALFORMED)?;
        let (flags, tell) = self.flags_for(a.flags);
        let ino = Ino(head.nodeid);
        let cred = self.cred(head);
        // Another door may have replaced the file since the kernel looked its name up, and its number may be used again: then ESTALE makes it look again.
        let handle = match self.known.generation(ino) {
            Some(generation) => self.asks(head, self.fs.open_exact(&cred, (ino, generation), flags)).await?,
            None => self.asks(head, self.fs.open(&cred, ino, flags)).await?,
        };
        Ok(self.opened(head, handle, flags, (a.flags, tell), None))
    }

    /// Whoever sent a request changes the file of `fh`, or opened it in order to.
    pub(crate) fn changes(&self, head: &InHeader, fh: u64) {
        if let Some(changers) = &self.changers {
            changers.note(fh, head.pid);
        }
    }

    /// Closes a file or directory in the engine, and what belongs to it.
    pub(crate) async fn close(&self, fh: u64) -> fs::Result<()> {
        for second in self.forget(fh).await.into_iter().flatten() {
            let _ = self.fs.release(second).await;
        }
        self.fs.release(Handle(fh)).await
    }

    /// As `close`, of a file that no program has got.
    pub(crate) async fn abandon(&self, fh: u64) -> fs::Result<()> {
        for second in self.forget(fh).await.into_iter().flatten() {
            let _ = self.fs.abandon(second).await;
        }
        self.fs.abandon(Handle(fh)).await
    }

    /// Forgets a file, and returns the second handles that belong to it.
    async fn forget(&self, fh: u64) -> [Option<Handle>; 2] {
        let (seconds, owners) = self.handles.remove(fh);
        if let Some(changers) = &self.changers {
            changers.forget(fh);
        }
        // Locks of open file descriptions have the description as owner, which no flush ever names.
        for owner in owners {
            let _ = self.fs.setlk(Handle(fh), owner_of(owner), Err((0, u64::MAX)), false).await;
        }
        seconds
    }

    pub(crate) async fn release(&self, body: &[u8]) -> Outcome {
        let (a, _) = take::<abi::ReleaseIn>(body).ok_or(MALFORMED)?;
        self.close(a.fh).await?;
        Ok(Answer::Empty)
    }

    pub(crate) async fn flush(&self, head: &InHeader, body: &[u8]) -> Outcome {
        let (a, _) = take::<abi::FlushIn>(body).ok_or(MALFORMED)?;
        let (handle, owner) = (Handle(a.fh), owner_of(a.lock_owner));
        self.handles.flushed(a.fh, a.lock_owner);
        match &self.changers {
            Some(changers) if !changers.may_include(a.fh, head.pid) => {
                self.fs.setlk(handle, owner, Err((0, u64::MAX)), false).await?;
            }
            _ => self.fs.flush(handle, owner).await?,
        }
        Ok(Answer::Empty)
    }

    pub(crate) async fn read(&self, head: &InHeader, a: abi::ReadIn, to: &mut [u8]) -> Outcome {
        let size = (a.size as usize).min(to.len());
        // Appending makes no difference to reads.
        let now = OpenFlags::from_posix(a.flags as i32) | OpenFlags::APPEND;
        self.known.pages(Ino(head.nodeid));
        let cred = kernel_cred();
        let handle = self.handles.transfer(&*self.fs, &cred, Ino(head.nodeid), a.fh, now);
        let handle = self.asks(head, handle).await?;
        if size >= LENT_MIN {
            let pages = self.asks(head, self.fs.read_pages(handle, a.offset, size)).await?;
            self.meter.moved(pages.len() as u64, 0);
            return Ok(Answer::Pages(pages));
        }
        let n = self.asks(head, self.fs.read(handle, a.offset, &mut to[..size])).await?;
        self.meter.moved(n.min(size) as u64, 0);
        Ok(Answer::InBuffer(n.min(size)))
    }

    pub(crate) async fn write(&self, head: &InHeader, body: &[u8]) -> Outcome {
        let (a, data) = take::<abi::WriteIn>(body).ok_or(MALFORMED)?;
        let data = data.get(..a.size as usize).ok_or(MALFORMED)?;
        let ino = Ino(head.nodeid);
        self.known.pages(ino);
        let now = match a.write_flags & abi::WRITE_CACHE {
            0 => OpenFlags::from_posix(a.flags as i32),
            _ => OpenFlags::empty(),
        };
        let appends = self.places(now);
        let handle = match appends {
            true => self.handles.appending(&*self.fs, &kernel_cred(), ino, a.fh, now).await?,
            false => self.handles.transfer(&*self.fs, &kernel_cred(), ino, a.fh, now).await?,
        };
        if a.write_flags & abi::WRITE_KILL_SUIDGID != 0 {
            self.kill_suid(ino, handle).await?;
        }
        self.changes(head, a.fh);
        let n = self.fs.write(handle, a.offset, data).await?;
        self.meter.moved(0, n as u64);
        // The kernel takes the bytes for the end of the file as it knows that, and keeps them in its pages there. That is the wrong place, or lacks what is
        // before it, when another door has moved the end. Dropping the pages waits for this answer, so for an instant behind it they can be seen. (Past the
        // pages, with FOPEN_DIRECT_IO, they would never be there, but then readers who fill a page from the end of the file meanwhile keep zeros in
        // place of what was appended, without another door too.)
        if appends
            && self.fs.getattr(ino, Some(handle)).await.is_ok_and(|now| now.size != a.offset + n as u64)
        {
            drop(self.notifications.tell(&Change::Data { ino, start: 0, end: u64::MAX }));
        }
        Ok(Answer::of(&abi::WriteOut { size: n as u32, padding: 0 }))
    }

    pub(crate) async fn fsync(&self, head: &InHeader, body: &[u8]) -> Outcome {
        let (a, _) = take::<abi::FsyncIn>(body).ok_or(MALFORMED)?;
        let (handle, datasync) = (Handle(a.fh), a.fsync_flags & abi::FSYNC_DATASYNC != 0);
        let ordered = &self.options.ordered;
        // The kernel follows writes to files opened with O_SYNC or O_DSYNC by an fsync, which must be one.
        if ordered.is_off() || self.handles.is_synchronous(a.fh) {
            self.fs.fsync(handle, datasync).await?;
        } else {
            let program = ordered.has_program(head.pid as i32);
            ordered.sync(&*self.fs, (handle, Ino(head.nodeid)), datasync, program).await?;
        }
        Ok(Answer::Empty)
    }

    /// Barriers; other requests are `ENOTTY`, each for itself (after `ENOSYS` the kernel would ask no more).
    pub(crate) async fn ioctl(&self, body: &[u8]) -> Outcome {
        let (a, _) = take::<abi::IoctlIn>(body).ok_or(MALFORMED)?;
        // With its write-back cache the kernel keeps writes that have returned, and sends them when it likes: nothing could be promised of
        // them. Who then calls fsync has those of one file sent.
        let keeps_writes = self.caps.contains(abi::Init::WRITEBACK_CACHE);
        let Some(datasync) = barrier_of(a.cmd).filter(|_| !keeps_writes) else {
            return Err(Errno(libc::ENOTTY));
        };
        self.fs.barrier(Handle(a.fh), datasync).await?;
        Ok(Answer::of(&abi::IoctlOut { result: 0, flags: 0, in_iovs: 0, out_iovs: 0 }))
    }

    /// What an ordinary user's change of a file's data takes away, where the kernel has no flag to ask for it.
    async fn changed(&self, head: &InHeader, ino: Ino, handle: Handle) -> Result<(), Errno> {
        self.changes(head, handle.0);
        if head.uid != 0 { self.kill_suid(ino, handle).await } else { Ok(()) }
    }

    pub(crate) async fn fallocate(&self, head: &InHeader, body: &[u8]) -> Outcome {
        let (a, _) = take::<abi::FallocateIn>(body).ok_or(MALFORMED)?;
        let keep_size = a.mode as i32 & libc::FALLOC_FL_KEEP_SIZE != 0;
        let what = match a.mode as i32 & !libc::FALLOC_FL_KEEP_SIZE {
            0 => Fallocate::Allocate { keep_size },
            libc::FALLOC_FL_PUNCH_HOLE if keep_size => Fallocate::PunchHole,
            libc::FALLOC_FL_ZERO_RANGE => Fallocate::ZeroRange { keep_size },
            _ => return Err(Errno(libc::EOPNOTSUPP)),
        };
        self.changed(head, Ino(head.nodeid), Handle(a.fh)).await?;
        self.fs.fallocate(Handle(a.fh), what, a.offset, a.length).await?;
        Ok(Answer::Empty)
    }

    pub(crate) async fn lseek(&self, head: &InHeader, body: &[u8]) -> Outcome {
        let (a, _) = take::<abi::LseekIn>(body).ok_or(MALFORMED)?;
        // With its write-back cache the kernel alone knows what was written. It asks no more after this, and takes everything up to the end for data.
        if self.caps.contains(abi::Init::WRITEBACK_CACHE) {
            return Err(Errno(libc::ENOSYS));
        }
        let what = match a.whence as i32 {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return Err(Errno(libc::EINVAL)),
        };
        // What programs have stored in mappings the kernel sends when it likes, and not because it is about to ask this.
        let ino = Ino(head.nodeid);
        if self.handles.may_be_mapped(ino) && a.offset <= OFFSET_MAX {
            self.notifications.write_back(ino, a.offset).await;
        }
        let offset = self.fs.seek(Handle(a.fh), a.offset, what).await?;
        Ok(Answer::of(&abi::LseekOut { offset }))
    }

    pub(crate) async fn copy(&self, head: &InHeader, body: &[u8]) -> Outcome {
        let (a, _) = take::<abi::CopyIn>(body).ok_or(MALFORMED)?;
        let to = Ino(a.nodeid_out);
        self.changed(head, to, Handle(a.fh_out)).await?;
        // The reply's length has 32 bits.
        let len = a.len.min(1 << 30);
        let n = self.fs.copy_range(Handle(a.fh_in), a.off_in, Handle(a.fh_out), a.off_out, len).await?;
        Ok(Answer::of(&abi::WriteOut { size: n as u32, padding: 0 }))
    }

    pub(crate) async fn getlk(&self, body: &[u8]) -> Outcome {
        let (a, _) = take::<abi::LkIn>(body).ok_or(MALFORMED)?;
        let lock = record_lock(&a)?.map_err(|_| Errno(libc::EINVAL))?;
        let out = match self.fs.getlk(Handle(a.fh), owner_of(a.owner), lock).await? {
            None => abi::LkOut { start: a.start, end: a.end, kind: libc::F_UNLCK as u32, pid: 0 },
            Some(l) => abi::LkOut {
                start: l.start,
                end: l.end.min(OFFSET_MAX),
                kind: match l.kind {
                    LockKind::Shared => libc::F_RDLCK as u32,
                    LockKind::Exclusive => libc::F_WRLCK as u32,
                },
                pid: l.pid,
            },
        };
        Ok(Answer::of(&out))
    }

    pub(crate) async fn setlk(&self, head: &InHeader, body: &[u8]) -> Outcome {
        let (a, _) = take::<abi::LkIn>(body).ok_or(MALFORMED)?;
        let lock = record_lock(&a)?;
        let (handle, wait) = (Handle(a.fh), head.opcode == op::SETLKW);
        if a.lk_flags & abi::LK_FLOCK != 0 {
            let kind = lock.ok().map(|l| l.kind);
            self.interrupts.guard(head.unique, Gives::Soon, self.fs.flock(handle, kind, wait)).await?;
        } else {
            let owner = owner_of(a.owner);
            let call = self.fs.setlk(handle, owner, lock, wait);
            self.interrupts.guard(head.unique, Gives::Soon, call).await?;
            if lock.is_ok() {
                self.handles.locked(a.fh, a.owner);
            }
        }
        Ok(Answer::Empty)
    }
}

/// The kernel's number of an owner of record locks, of which one bit is not the door's. It looks random: two that differ in nothing else are not met.
fn owner_of(number: u64) -> LockOwner {
    LockOwner(number & u64::MAX >> 1)
}

/// See [`Door::flags_for`].
fn flags_for(flags: u32, options: &MountOptions, caps: abi::Init, minor: u32) -> (OpenFlags, u32) {
    let mut open = OpenFlags::from_posix(flags as i32) - OpenFlags::EXCLUSIVE;
    let mut tell = if options.exclusive { abi::FOPEN_KEEP_CACHE } else { 0 };
    if options.noatime {
        open |= OpenFlags::NOATIME;
    }
    let direct = open.contains(OpenFlags::DIRECT);
    if caps.contains(abi::Init::WRITEBACK_CACHE) {
        // The kernel places appended bytes itself (it may know a size that we do not know yet), and reads the rest of
        // partly written pages through any handle. Direct transfers stay the kernel's own matter, since it alone knows
        // of a hole behind our end of the file.
        open -= OpenFlags::APPEND;
        if open.contains(OpenFlags::WRITE) {
            open |= OpenFlags::READ;
        }
        if !direct {
            // It follows O_SYNC writes by an fsync.
            open -= OpenFlags::SYNC | OpenFlags::DSYNC;
        }
    } else if direct {
        // Without the word the transfers are as direct, one after the other, and drop pages on their own.
        if minor >= abi::MINOR_DIRECT {
            tell |= abi::FOPEN_DIRECT_IO | abi::FOPEN_PARALLEL_DIRECT_WRITES;
        }
    } else if options.direct_writes && !open.contains(OpenFlags::READ) {
        tell |= abi::FOPEN_DIRECT_IO;
    }
    (open, tell)
}

/// Reads of so many bytes are answered out of the engine's memory, smaller ones out of the request's buffer: a loan has a cost of its own.
const LENT_MIN: usize = 32 << 10;

/// The kernel's "to the end of the file".
const OFFSET_MAX: u64 = i64::MAX as u64;

/// The lock that is asked for, or the range to be released.
fn record_lock(a: &abi::LkIn) -> Result<Result<RecordLock, (u64, u64)>, Errno> {
    let end = if a.end >= OFFSET_MAX { u64::MAX } else { a.end };
    let kind = match a.kind as i32 {
        libc::F_RDLCK => LockKind::Shared,
        libc::F_WRLCK => LockKind::Exclusive,
        libc::F_UNLCK => return Ok(Err((a.start, end))),
        _ => return Err(Errno(libc::EINVAL)),
    };
    Ok(Ok(RecordLock { start: a.start, end, kind, pid: a.pid }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direct_files_go_past_the_pages_only_where_those_are_dropped() {
        let past = abi::FOPEN_DIRECT_IO | abi::FOPEN_PARALLEL_DIRECT_WRITES;
        let (own, shared) =
            (MountOptions::default(), MountOptions { exclusive: false, ..Default::default() });
        let told = |options: &MountOptions, caps, minor, flags: i32| {
            let (open, tell) = flags_for(flags as u32, options, caps, minor);
            assert_eq!(
                open.contains(OpenFlags::DIRECT),
                flags & libc::O_DIRECT != 0,
                "the engine checks offsets"
            );
            tell
        };
        let (none, direct) = (abi::Init::empty(), libc::O_RDWR | libc::O_DIRECT);
        for minor in [31, 36, 38, 39, 42, 44] {
            assert_eq!(told(&own, none, minor, direct), abi::FOPEN_KEEP_CACHE, "7.{minor}");
            assert_eq!(told(&shared, none, minor, direct), 0, "7.{minor}");
        }
        for minor in [45, 46, 99] {
            assert_eq!(told(&own, none, minor, direct), abi::FOPEN_KEEP_CACHE | past, "7.{minor}");
            assert_eq!(told(&shared, none, minor, direct), past, "7.{minor}");
            assert_eq!(told(&own, none, minor, libc::O_RDWR), abi::FOPEN_KEEP_CACHE);
            assert_eq!(
                told(&shared, abi::Init::WRITEBACK_CACHE, minor, direct),
                0,
                "the kernel's own matter"
            );
        }
        let bucket = MountOptions { direct_writes: true, ..shared };
        assert_eq!(told(&bucket, none, 38, libc::O_WRONLY), abi::FOPEN_DIRECT_IO);
        assert_eq!(told(&bucket, none, 38, libc::O_RDWR), 0);
    }
}

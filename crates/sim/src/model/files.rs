//! Open files of the model: opening, data, scans of directories.

use super::names::{New, is_dots};
use super::node::FIRST_OFFSET;
use super::rules;
use super::{Open, State};
use format::limits::FILE_SIZE_MAX;
use fs::{
    Access, Attr, Cred, Error, Fallocate, FileType, Handle, Ino, OpenFlags, Result, Seek, SetAttr, Time,
};
use std::ops::Range;

/// An entry of a scan: name, offset behind it, attributes.
pub type Listed = (Vec<u8>, u64, Attr);

/// Sizes and offsets of DIRECT transfers are multiples of this.
const DIRECT_UNIT: u64 = 512;

impl State {
    pub(super) fn open(&mut self, cred: &Cred, ino: Ino, flags: OpenFlags, now: Time) -> Result<Handle> {
        let attr = self.node(ino)?.attr();
        let changes = flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE);
        match attr.kind {
            FileType::Regular => {}
            FileType::Directory if changes => return Err(Error::IsDirectory),
            _ => return Err(Error::Invalid("only regular files are opened")),
        }
        if !flags.intersects(OpenFlags::READ | OpenFlags::WRITE) {
            return Err(Error::Invalid("neither for reading nor for writing"));
        }
        let mut asked = Access::empty();
        asked.set(Access::READ, flags.contains(OpenFlags::READ));
        asked.set(Access::WRITE, changes);
        rules::may(cred, &attr, asked)?;
        if flags.contains(OpenFlags::NOATIME) {
            rules::may_skip_atime(cred, &attr)?;
        }
        let handle = self.add_open(Open { ino, flags, cred: cred.clone(), directory: false });
        if flags.contains(OpenFlags::TRUNCATE) {
            let node = self.node_mut(ino)?;
            let set = SetAttr { size: Some(0), ..SetAttr::default() };
            rules::set(cred, &mut node.attr, &set, now);
            node.data_mut()?.set_size(0);
            node.drop_capability();
        }
        Ok(handle)
    }

    pub(super) fn create(
        &mut self,
        cred: &Cred,
        dir: Ino,
        name: &[u8],
        perm: u16,
        flags: OpenFlags,
        now: Time,
    ) -> Result<(Attr, Handle)> {
        self.may_search(cred, dir)?;
        if is_dots(name) && !flags.contains(OpenFlags::EXCLUSIVE) {
            return Err(Error::IsDirectory);
        }
        let Some(ino) = self.entry(dir, name)? else {
            if !flags.intersects(OpenFlags::READ | OpenFlags::WRITE) {
                return Err(Error::Invalid("neither for reading nor for writing"));
            }
            let attr = self.make(cred, dir, name, New::file(perm), now)?;
            let open = Open { ino: attr.ino, flags, cred: cred.clone(), directory: false };
            return Ok((attr, self.add_open(open)));
        };
        match self.node(ino)?.attr.kind {
            _ if flags.contains(OpenFlags::EXCLUSIVE) => return Err(Error::Exists),
            FileType::Symlink => return Err(Error::SymlinkLoop),
            FileType::Directory => return Err(Error::IsDirectory),
            _ => {}
        }
        let handle = self.open(cred, ino, flags, now)?;
        Ok((self.node(ino)?.attr(), handle))
    }

    pub(super) fn tmpfile(
        &mut self,
        cred: &Cred,
        dir: Ino,
        perm: u16,
        flags: OpenFlags,
        now: Time,
    ) -> Result<(Attr, Handle)> {
        let parent = self.node(dir)?;
        if !flags.contains(OpenFlags::WRITE) {
            return Err(Error::Invalid("a file without a name that cannot be written"));
        }
        parent.dir()?;
        rules::may(cred, &parent.attr, Access::WRITE | Access::EXEC)?;
        if parent.attr.nlink == 0 {
            return Err(Error::NotFound);
        }
        let ino = self.make_node(cred, dir, New::file(perm), now)?;
        let node = self.node_mut(ino)?;
        node.linkable = !flags.contains(OpenFlags::EXCLUSIVE);
        let attr = node.attr();
        Ok((attr, self.add_open(Open { ino, flags, cred: cred.clone(), directory: false })))
    }

    pub(super) fn release(&mut self, handle: Handle) -> Result<()> {
        let open = self.opens.remove(&handle).ok_or(Error::BadHandle)?;
        self.locks.release(open.ino, super::locks::Who::Handle(handle), 0, u64::MAX);
        self.drop_if_unused(open.ino);
        Ok(())
    }

    pub(super) fn read(&mut self, handle: Handle, offset: u64, to: &mut [u8], now: Time) -> Result<usize> {
        let open = self.file(handle, OpenFlags::READ)?;
        check_direct(&open, offset, to.len())?;
        let node = self.node_mut(open.ino)?;
        let n = node.data()?.read(offset, to);
        if !to.is_empty() && !open.flags.contains(OpenFlags::NOATIME) {
            node.was_read(now);
        }
        Ok(n)
    }

    pub(super) fn overwritable(&self, handle: Handle, offset: u64, len: u64) -> Result<Vec<Range<u64>>> {
        const PAGE: u64 = 4096;
        let open = self.file(handle, OpenFlags::WRITE)?;
        let prompt = OpenFlags::APPEND | OpenFlags::DIRECT | OpenFlags::SYNC | OpenFlags::DSYNC;
        if open.flags.intersects(prompt) {
            return Err(Error::NotSupported("overwriting later"));
        }
        let size = self.node(open.ino)?.data()?.size();
        let (start, end) =
            (offset.next_multiple_of(PAGE), offset.saturating_add(len).min(size) / PAGE * PAGE);
        Ok(Some(start..end).filter(|r| r.start < r.end).into_iter().collect())
    }

    pub(super) fn write(&mut self, handle: Handle, offset: u64, from: &[u8], now: Time) -> Result<usize> {
        let open = self.file(handle, OpenFlags::WRITE)?;
        let append = open.flags.contains(OpenFlags::APPEND);
        let node = self.node_mut(open.ino)?;
        let offset = if append { node.data()?.size() } else { offset };
        check_direct(&open, offset, from.len())?;
        if from.is_empty() {
            return Ok(0);
        }
        let room = FILE_SIZE_MAX.saturating_sub(offset);
        if room == 0 {
            return Err(Error::TooLarge);
        }
        let n = room.min(from.len() as u64) as usize;
        node.data_mut()?.write(offset, &from[..n]);
        self.was_written(&open, now)?;
        Ok(n)
    }

    /// Times, set-id bits and capabilities after the data were changed through this handle.
    fn was_written(&mut self, open: &Open, now: Time) -> Result<()> {
        let node = self.node_mut(open.ino)?;
        node.attr.perm = rules::after_write_through(&open.cred, &node.attr);
        node.drop_capability();
        node.changed(now);
        Ok(())
    }

    pub(super) fn fallocate(
        &mut self,
        handle: Handle,
        what: Fallocate,
        offset: u64,
        len: u64,
        now: Time,
    ) -> Result<()> {
        self.handle(handle)?;
        if len == 0 {
            return Err(Error::Invalid("empty range"));
        }
        let open = self.file(handle, OpenFlags::WRITE)?;
        let end = offset.checked_add(len).filter(|&end| end <= FILE_SIZE_MAX).ok_or(Error::TooLarge)?;
        let data = self.node_mut(open.ino)?.data_mut()?;
        let keep_size = match what {
            Fallocate::Allocate { keep_size } => keep_size,
            Fallocate::PunchHole => {
                data.clear(offset, len);
                true
            }
            Fallocate::ZeroRange { keep_size } => {
                data.clear(offset, len);
                keep_size
            }
        };
        if !keep_size && end > data.size() {
            data.set_size(end);
        }
        self.was_written(&open, now)
    }

    pub(super) fn seek(&self, handle: Handle, offset: u64, what: Seek) -> Result<u64> {
        let open = self.file(handle, OpenFlags::empty())?;
        let data = self.node(open.ino)?.data()?;
        if offset >= data.size() {
            return Err(Error::NoSuchOffset);
        }
        match what {
            Seek::Data => data.next_data(offset).ok_or(Error::NoSuchOffset),
            Seek::Hole => Ok(data.next_hole(offset)),
        }
    }

    pub(super) fn copy_range(
        &mut self,
        from: Handle,
        from_offset: u64,
        to: Handle,
        to_offset: u64,
        len: u64,
        now: Time,
    ) -> Result<u64> {
        let (source, target) = (self.handle(from)?, self.handle(to)?);
        if source.directory || target.directory {
            return Err(Error::IsDirectory);
        }
        let source = self.file(from, OpenFlags::READ)?;
        let target = self.file(to, OpenFlags::WRITE)?;
        if target.flags.contains(OpenFlags::APPEND) {
            return Err(Error::BadHandle);
        }
        let len = len.min(self.node(source.ino)?.data()?.size().saturating_sub(from_offset));
        let apart =
            to_offset >= from_offset.saturating_add(len) || from_offset >= to_offset.saturating_add(len);
        if source.ino == target.ino && !apart {
            return Err(Error::Invalid("ranges overlap"));
        }
        if len == 0 {
            return Ok(0);
        }
        let room = FILE_SIZE_MAX.saturating_sub(to_offset);
        if room == 0 {
            return Err(Error::TooLarge);
        }
        let len = len.min(room);
        let mut done = 0;
        while done < len {
            let mut part = vec![0; (len - done).min(1 << 20) as usize];
            self.node(source.ino)?.data()?.read(from_offset + done, &mut part);
            self.node_mut(target.ino)?.data_mut()?.write(to_offset + done, &part);
            done += part.len() as u64;
        }
        // The source counts as read when the copy is done: within one file this moves its access time.
        self.was_written(&target, now)?;
        if !source.flags.contains(OpenFlags::NOATIME) {
            self.node_mut(source.ino)?.was_read(now);
        }
        Ok(len)
    }

    pub(super) fn opendir(&mut self, cred: &Cred, ino: Ino) -> Result<Handle> {
        let node = self.node(ino)?;
        node.dir()?;
        rules::may(cred, &node.attr, Access::READ)?;
        Ok(self.add_open(Open { ino, flags: OpenFlags::READ, cred: cred.clone(), directory: true }))
    }

    /// All entries behind `offset`.
    pub(super) fn list(&mut self, handle: Handle, offset: u64, now: Time) -> Result<Vec<Listed>> {
        let open = self.handle(handle)?.clone();
        if !open.directory {
            return Err(Error::NotDirectory);
        }
        let node = self.node_mut(open.ino)?;
        if node.attr.nlink == 0 {
            return Err(Error::NotFound);
        }
        node.was_read(now);
        let node = self.node(open.ino)?;
        let dir = node.dir()?;
        let mut out = Vec::new();
        for (own, name, ino) in [(1, &b"."[..], open.ino), (2, b"..", dir.parent)] {
            if offset < own {
                out.push((name.to_vec(), own, self.node(ino)?.attr()));
            }
        }
        for (&own, (name, ino)) in dir.entries.range(offset.max(FIRST_OFFSET - 1) + 1..) {
            out.push((name.to_vec(), own, self.node(*ino)?.attr()));
        }
        Ok(out)
    }
}

fn check_direct(open: &Open, offset: u64, len: usize) -> Result<()> {
    let odd = !offset.is_multiple_of(DIRECT_UNIT) || !(len as u64).is_multiple_of(DIRECT_UNIT);
    if open.flags.contains(OpenFlags::DIRECT) && odd {
        return Err(Error::Invalid("a direct transfer is not a multiple of 512"));
    }
    Ok(())
}

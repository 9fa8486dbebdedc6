//! Requests about names: lookup, make, remove, rename, list.

use crate::abi::{self, InHeader, op};
use crate::device::{take, take_name};
use crate::door::{Answer, Door, Errno, MALFORMED, Outcome, kernel_cred, rdev_from_kernel, split};
use fs::{DirEntry, Error, FileSystem, Handle, Ino, OpenFlags, RenameFlags};
use zerocopy::IntoBytes;

impl<F: FileSystem> Door<F> {
    pub(crate) async fn lookup(&self, head: &InHeader, body: &[u8]) -> Outcome {
        let (name, _) = take_name(body).ok_or(MALFORMED)?;
        if name == b"." {
            // The kernel has dropped the inode, and somebody has a handle of it (NFS, open_by_handle_at). It need not be a directory.
            let attr = self.asks(head, self.fs.getattr(Ino(head.nodeid), None)).await?;
            return Ok(Answer::of(&self.entry(&self.given(Some(head), attr).await?)));
        }
        self.known.name(Ino(head.nodeid), name);
        match self.asks(head, self.fs.lookup(&self.cred(head), Ino(head.nodeid), name)).await {
            Ok(attr) => Ok(Answer::of(&self.entry(&self.given(Some(head), attr).await?))),
            Err(Error::NotFound) if !self.options.negative_timeout.is_zero() => {
                // Node 0 with a validity: the kernel remembers that there is nothing.
                let (entry_valid, entry_valid_nsec) = split(self.options.negative_timeout);
                Ok(Answer::of(&abi::EntryOut { entry_valid, entry_valid_nsec, ..Default::default() }))
            }
            Err(e) => Err(e.into()),
        }
    }

    pub(crate) async fn mknod(&self, head: &InHeader, body: &[u8]) -> Outcome {
        let (a, rest) = take::<abi::MknodIn>(body).ok_or(MALFORMED)?;
        let (name, _) = take_name(rest).ok_or(MALFORMED)?;
        let rdev = rdev_from_kernel(a.rdev);
        self.known.name(Ino(head.nodeid), name);
        let attr = self.fs.mknod(&self.cred(head), Ino(head.nodeid), name, a.mode, rdev).await?;
        Ok(Answer::of(&self.entry(&self.given(None, attr).await?)))
    }

    pub(crate) async fn mkdir(&self, head: &InHeader, body: &[u8]) -> Outcome {
        let (a, rest) = take::<abi::MkdirIn>(body).ok_or(MALFORMED)?;
        let (name, _) = take_name(rest).ok_or(MALFORMED)?;
        let perm = (a.mode & 0o7777) as u16;
        self.known.name(Ino(head.nodeid), name);
        let attr = self.fs.mkdir(&self.cred(head), Ino(head.nodeid), name, perm).await?;
        Ok(Answer::of(&self.entry(&self.given(None, attr).await?)))
    }

    pub(crate) async fn symlink(&self, head: &InHeader, body: &[u8]) -> Outcome {
        let (name, rest) = take_name(body).ok_or(MALFORMED)?;
        let (target, _) = take_name(rest).ok_or(MALFORMED)?;
        self.known.name(Ino(head.nodeid), name);
        let attr = self.fs.symlink(&self.cred(head), Ino(head.nodeid), name, target).await?;
        Ok(Answer::of(&self.entry(&self.given(None, attr).await?)))
    }

    pub(crate) async fn readlink(&self, head: &InHeader) -> Outcome {
        let cred = self.cred(head);
        Ok(Answer::Bytes(self.asks(head, self.fs.readlink(&cred, Ino(head.nodeid))).await?))
    }

    pub(crate) async fn link(&self, head: &InHeader, body: &[u8]) -> Outcome {
        let (a, rest) = take::<abi::LinkIn>(body).ok_or(MALFORMED)?;
        let (name, _) = take_name(rest).ok_or(MALFORMED)?;
        self.known.name(Ino(head.nodeid), name);
        self.known.changing(Ino(a.oldnodeid));
        let attr = self.fs.link(&self.cred(head), Ino(a.oldnodeid), Ino(head.nodeid), name).await?;
        Ok(Answer::of(&self.entry(&self.given(None, attr).await?)))
    }

    pub(crate) async fn remove(&self, head: &InHeader, body: &[u8]) -> Outcome {
        let (name, _) = take_name(body).ok_or(MALFORMED)?;
        let (cred, parent) = (self.cred(head), Ino(head.nodeid));
        self.known.name(parent, name);
        match head.opcode {
            op::RMDIR => self.fs.rmdir(&cred, parent, name).await?,
            _ => self.fs.unlink(&cred, parent, name).await?,
        }
        Ok(Answer::Empty)
    }

    pub(crate) async fn rename(&self, head: &InHeader, body: &[u8]) -> Outcome {
        let (new_parent, flags, rest) = if head.opcode == op::RENAME2 {
            let (a, rest) = take::<abi::Rename2In>(body).ok_or(MALFORMED)?;
            (a.newdir, a.flags, rest)
        } else {
            let (a, rest) = take::<abi::RenameIn>(body).ok_or(MALFORMED)?;
            (a.newdir, 0, rest)
        };
        let (name, rest) = take_name(rest).ok_or(MALFORMED)?;
        let (new_name, _) = take_name(rest).ok_or(MALFORMED)?;
        // RENAME_WHITEOUT (overlayfs) is the flag the contract does not have.
        let flags = RenameFlags::from_bits(flags).ok_or(Errno(libc::EINVAL))?;
        let cred = self.cred(head);
        self.known.name(Ino(head.nodeid), name);
        self.known.name(Ino(new_parent), new_name);
        self.fs.rename(&cred, Ino(head.nodeid), name, Ino(new_parent), new_name, flags).await?;
        Ok(Answer::Empty)
    }

    pub(crate) async fn create(&self, head: &InHeader, body: &[u8]) -> Outcome {
        let (a, rest) = take::<abi::CreateIn>(body).ok_or(MALFORMED)?;
        let (name, _) = take_name(rest).ok_or(MALFORMED)?;
        let perm = (a.mode & 0o7777) as u16;
        let (flags, reply_flags) = self.flags_for(a.flags);
        self.known.name(Ino(head.nodeid), name);
        // The kernel checked that the caller may make the file, not that he may open one that another door made
        // since. So an existing file is never opened here: ESTALE makes the kernel look the name up again and check.
        let (cred, flags_new) = (self.cred(head), flags | OpenFlags::EXCLUSIVE);
        // An engine that commits at a close makes nothing before: dropped, there is no file.
        let made = self.asks(head, self.fs.create(&cred, Ino(head.nodeid), name, perm, flags_new)).await;
        let (attr, handle) = match made {
            Err(Error::Exists) if OpenFlags::from_posix(a.flags as i32).contains(OpenFlags::EXCLUSIVE) => {
                return Err(Errno(libc::EEXIST));
            }
            Err(Error::Exists) => return Err(Errno(libc::ESTALE)),
            other => other?,
        };
        // By its handle: a file whose name is gone again by now is open all the same.
        let new = self.known.looked_up(attr.ino, attr.generation);
        let attr = if new { self.fs.getattr(attr.ino, Some(handle)).await.unwrap_or(attr) } else { attr };
        Ok(self.opened(head, handle, flags, (a.flags, reply_flags), Some(&attr)))
    }

    pub(crate) async fn tmpfile(&self, head: &InHeader, body: &[u8]) -> Outcome {
        let (a, _) = take::<abi::CreateIn>(body).ok_or(MALFORMED)?;
        let perm = (a.mode & 0o7777) as u16;
        let (mut flags, reply_flags) = self.flags_for(a.flags);
        flags |= OpenFlags::from_posix(a.flags as i32) & OpenFlags::EXCLUSIVE;
        let (attr, handle) = self.fs.tmpfile(&self.cred(head), Ino(head.nodeid), perm, flags).await?;
        // Nobody else knows it yet.
        self.known.looked_up(attr.ino, attr.generation);
        Ok(self.opened(head, handle, flags, (a.flags, reply_flags), Some(&attr)))
    }

    pub(crate) async fn opendir(&self, head: &InHeader) -> Outcome {
        let cred = self.cred(head);
        let handle = self.asks(head, self.fs.opendir(&cred, Ino(head.nodeid))).await?;
        // The kernel is not asked to keep the list (FOPEN_CACHE_DIR): of two programs that list a directory while a name is made, the one that began before can put what it
        // found into the list of the one that began behind (Linux 6.18, fuse_add_dirent_to_cache), and then the name is not listed until the directory changes again.
        Ok(self.opened(head, handle, OpenFlags::READ, (0, 0), None))
    }

    pub(crate) async fn readdir(&self, head: &InHeader, a: abi::ReadIn, to: &mut [u8]) -> Outcome {
        let (dir, plus, request) = (Ino(head.nodeid), head.opcode == op::READDIRPLUS, head);
        let room = (a.size as usize).min(to.len());
        let mut used = 0;
        // Where entries stand that the kernel did not know before.
        let mut new = Vec::new();
        let mut take_entry = |e: DirEntry<'_>| {
            let head = if plus { size_of::<abi::EntryOut>() } else { 0 } + size_of::<abi::Dirent>();
            let len = (head + e.name.len()).next_multiple_of(8);
            if used + len > room {
                return false;
            }
            let place = &mut to[used..used + len];
            let (entry, rest) = place.split_at_mut(head - size_of::<abi::Dirent>());
            if plus {
                // Entries with a node count as looked up; "." and ".." must not have one.
                let dots = e.name == b"." || e.name == b"..";
                let out = if dots { abi::EntryOut::default() } else { self.entry(&e.attr) };
                entry.copy_from_slice(out.as_bytes());
                if !dots
                    && (self.known.name(dir, e.name) | self.known.looked_up(e.attr.ino, e.attr.generation))
                {
                    new.push((used, e.name.to_vec(), (e.attr.ino, e.attr.generation)));
                }
            }
            let dirent = abi::Dirent {
                ino: e.attr.ino.0,
                off: e.next_offset,
                namelen: e.name.len() as u32,
                kind: e.attr.kind as u32,
            };
            let (fixed, name) = rest.split_at_mut(size_of::<abi::Dirent>());
            fixed.copy_from_slice(dirent.as_bytes());
            name[..e.name.len()].copy_from_slice(e.name);
            name[e.name.len()..].fill(0);
            used += len;
            true
        };
        let listed = self.asks(request, self.fs.readdir(Handle(a.fh), a.offset, &mut take_entry)).await;
        // What was found before counts as looked up, and is told; who goes on behind it hears of the error.
        if used == 0 {
            listed?;
        }
        for (at, name, inode) in new {
            let entry = &mut to[at..at + size_of::<abi::EntryOut>()];
            let out = match self.asks(head, self.fs.lookup(&kernel_cred(), dir, &name)).await {
                Ok(attr) if (attr.ino, attr.generation) == inode => self.entry(&attr),
                // Another door was faster: the kernel has to ask for both.
                _ => abi::EntryOut {
                    entry_valid: 0,
                    entry_valid_nsec: 0,
                    attr_valid: 0,
                    attr_valid_nsec: 0,
                    ..read_entry(entry)
                },
            };
            entry.copy_from_slice(out.as_bytes());
        }
        Ok(Answer::InBuffer(used))
    }
}

fn read_entry(bytes: &[u8]) -> abi::EntryOut {
    take(bytes).map_or_else(Default::default, |(entry, _)| entry)
}

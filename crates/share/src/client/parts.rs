//! Reading and writing: what can be done without a message is, and the rest in as many messages as it takes.

use super::Remote;
use super::files::OpenFile;
use crate::wire::{self, Op, request};
use format::shared::{ANSWER_PAGES, CALL_DATA_MAX};
use fs::{Error, Handle, OpenFlags, Result};

/// Bytes of a file that are asked for together, through the arena.
const THROUGH_ARENA_MAX: usize = ANSWER_PAGES * 4096;

impl Remote {
    /// As `FileSystem::read`.
    pub(super) async fn read_parts(&self, handle: Handle, offset: u64, to: &mut [u8]) -> Result<usize> {
        let file = self.file(handle);
        let size = file.and_then(|file| self.kept().size(file.ino)).unwrap_or(0);
        let is_long = wire::is_long_read(to.len(), size);
        let through = file.filter(|file| file.through_arena);
        let again = |file: OpenFile| {
            let session = self.now();
            // A file that has no place in the arena would only drive out what is there.
            size <= session.arena.bytes() && session.long_reads.again(file.ino, offset, to.len())
        };
        let again = through.is_some_and(|file| is_long && again(file));
        let mut through_arena = through.is_some() && (!is_long || again);
        let mut done = 0;
        loop {
            let at = offset.saturating_add(done as u64);
            if let Some(n) = self.read_here(handle, at, &mut to[done..]) {
                return Ok(done + n);
            }
            let most = if through_arena { THROUGH_ARENA_MAX - (at % 4096) as usize } else { CALL_DATA_MAX };
            let want = (to.len() - done).min(most);
            let part = &mut to[done..][..want];
            let (n, asked) = match self.ask_data((handle, file), (through_arena, again), at, part).await {
                Err(Error::Interrupted) if done > 0 => return Ok(done),
                // A short count would look like the end of the file.
                Err(e) => return Err(e),
                Ok(None) => {
                    // It changed, or had to make room, in this moment.
                    through_arena = false;
                    continue;
                }
                Ok(Some(got)) => got,
            };
            done += n;
            if n < asked || done == to.len() {
                return Ok(done);
            }
        }
    }

    /// As `FileSystem::write`.
    pub(super) async fn write_parts(&self, handle: Handle, offset: u64, from: &[u8]) -> Result<usize> {
        if self.write_now(handle, offset, from) {
            return Ok(from.len());
        }
        self.writes(handle);
        let serial = self.now().serial;
        let mut done = self.write_posted(handle, offset, from).await?;
        if done == from.len() && done > 0 {
            self.wrote(handle, offset, done, serial).await;
            return Ok(done);
        }
        let flags = self.file(handle).map_or(OpenFlags::empty(), |file| file.flags);
        let (direct, appends) = (flags.contains(OpenFlags::DIRECT), flags.contains(OpenFlags::APPEND));
        loop {
            let part = &from[done..][..(from.len() - done).min(CALL_DATA_MAX)];
            let mut r = request(Op::Write, handle.0);
            r.flags = ((direct as u32 * wire::DIRECT) | (appends as u32 * wire::APPENDS)).into();
            let at = offset.saturating_add(done as u64);
            let asks = self.asks_for(handle);
            let before = self.inode(handle).filter(|_| asks).and_then(|ino| self.link.resizes.now(ino));
            (r.offset, r.extra) = (at.into(), (asks as u64).into());
            match self.call_with(r, b"", part).await {
                Err(e) if done == 0 => return Err(e),
                Err(_) => return Ok(done),
                Ok(answer) => {
                    let sent = part.len().min(answer.room);
                    let n = (answer.value as usize).min(sent);
                    let serial = answer.session();
                    let end = Some(answer.pages).filter(|&end| end > 0);
                    self.learn_left(&answer);
                    self.has_waited(handle, (at, n), (asks, before), &answer);
                    drop(answer);
                    self.link.written(handle, serial);
                    if appends {
                        self.link.appended(handle, end);
                    }
                    done += n;
                    if n < sent || done == from.len() {
                        self.wrote(handle, offset, done, serial).await;
                        return Ok(done);
                    }
                }
            }
        }
    }
}

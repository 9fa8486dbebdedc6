//! Pages that this client reads without a message: the arena of its credentials, mapped for reading (see `format::shared` and the manager's side,
//! `server::arena`).

use super::Session;
use crate::memory::{self, Mapping};
use crate::wire::{Op, request};
use format::shared::{
    ARENA_DATA_AT, ARENA_PAGES, PAGE_PLACES_AT, PIECE_PAGES, PageHeader, Request, arena_bytes, mark,
    page_places,
};
use fs::{Attr, Ino, Time};
use std::io;
use std::mem::offset_of;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

const PAGE: u64 = 4096;
const CHUNK: u64 = PIECE_PAGES as u64;

/// Pages that are mapped where there is no place for all: 128 MiB.
const FEW: usize = 1 << 15;

#[derive(Debug)]
pub(super) struct Arena {
    memory: Arc<Mapping>,
    /// How many it has.
    pages: usize,
    is_over: AtomicBool,
}

impl Arena {
    /// Maps the memory of an arena, or as much as there is a place for.
    pub fn map(fd: impl AsFd) -> io::Result<Arena> {
        let bytes = usize::try_from(rustix::fs::fstat(&fd)?.st_size).unwrap_or(0);
        let pages = (bytes.saturating_sub(ARENA_DATA_AT) / PAGE as usize).min(ARENA_PAGES);
        memory::check_sealed(&fd, arena_bytes(pages))?;
        // A program whose address space is bounded (RLIMIT_AS) may have no place for all: what it does not see it asks for.
        let map = |pages: usize| Mapping::read_only(&fd, arena_bytes(pages)).map(|memory| (memory, pages));
        let (memory, pages) = map(pages).or_else(|_| map(pages.min(FEW)))?;
        Ok(Arena { memory: Arc::new(memory), pages, is_over: AtomicBool::new(false) })
    }

    /// Bytes of its pages.
    pub fn bytes(&self) -> u64 {
        self.pages as u64 * PAGE
    }

    /// Nothing is read any more: sessions stay, and with them would the memory of their managers. Zeros are an arena in which nothing is, and whoever copies a page at this moment
    /// looks at its header again afterwards, which is zero when anything of the page was.
    pub fn forget(&self) {
        if !self.is_over.swap(true, Ordering::Relaxed) {
            self.memory.forget();
        }
    }

    /// Its memory.
    pub fn memory(&self) -> Arc<Mapping> {
        self.memory.clone()
    }

    /// Copies a part of a page of a file. False when the page is not here, or has not all of that part.
    #[inline]
    fn copy(&self, (ino, generation): (Ino, u32), page: u64, within: usize, to: &mut [u8]) -> bool {
        page_places(ino.0, page).into_iter().any(|place| {
            let number = self.memory.word(PAGE_PLACES_AT + 4 * place).load(Ordering::Acquire) as usize;
            if !(1..=self.pages).contains(&number) {
                return false;
            }
            let at = number - 1;
            let header = at * size_of::<PageHeader>();
            let word = self.memory.long(header + offset_of!(PageHeader, word));
            let held = word.load(Ordering::Acquire);
            let said = |field: usize| self.memory.long(header + field).load(Ordering::Relaxed);
            if held & 1 == 0
                || said(offset_of!(PageHeader, ino)) != ino.0
                || said(offset_of!(PageHeader, page)) != page
            {
                return false;
            }
            // The word of two fields. The file may be longer by now, and what is to be copied lie behind what it was.
            let both = said(offset_of!(PageHeader, generation));
            if both as u32 != generation || within + to.len() > (both >> 32) as usize {
                return false;
            }
            self.memory.copy_out(ARENA_DATA_AT + at * PAGE as usize + within, to);
            fence(Ordering::Acquire);
            word.load(Ordering::Relaxed) == held
        })
    }

    /// Copies a part of a file, as much of it as is here; it may have changed meanwhile.
    #[inline]
    fn copy_file(&self, inode: (Ino, u32), offset: u64, to: &mut [u8]) -> usize {
        let mut done = 0;
        while done < to.len() {
            let at = offset + done as u64;
            let within = (at % PAGE) as usize;
            let n = (PAGE as usize - within).min(to.len() - done);
            if !self.copy(inode, at / PAGE, within, &mut to[done..done + n]) {
                break;
            }
            done += n;
        }
        done
    }
}

impl Session {
    /// Reads, if all that is needed is here and holds: everything that was asked for, up to the end of the file.
    pub(super) fn read_here(&self, ino: Ino, noatime: bool, offset: u64, to: &mut [u8]) -> Option<usize> {
        // The last is whether the manager must be told.
        let look = |attr: &Attr, told: bool| {
            let moves = !noatime && !told && attr.moves_atime(Time::now());
            (attr.size, (attr.ino, attr.generation), moves)
        };
        let kept = self.kept.noted_data(ino, look);
        let ((size, inode, moves), noted) = match kept {
            Some((found @ (_, _, false), noted)) => (found, noted),
            // Others may have asked for them, or moved the time of access meanwhile, which the memory of changes does not tell.
            _ => match self.kept.noticed_inode(ino) {
                Some((attr, noted)) => (look(&attr, false), noted),
                None => kept?,
            },
        };
        let len = size.saturating_sub(offset).min(to.len() as u64) as usize;
        let read = self.copy_noted(inode, noted, offset, &mut to[..len])? == len;
        // The manager knows whether reading nothing is a read.
        (read && (!moves || len > 0 && self.tells_read(inode))).then_some(len)
    }

    /// Tells the manager that a file was read that was written since it was read last. False when that cannot be done without waiting.
    #[cold]
    fn tells_read(&self, (ino, generation): (Ino, u32)) -> bool {
        let told = self.tell(&Request { other: (generation as u64).into(), ..request(Op::WasRead, ino.0) });
        if told {
            self.kept.posted_read(ino);
        }
        told
    }

    /// Copies what is here of a file whose attributes held at `noted`; `None` if they do no longer.
    pub(super) fn copy_noted(
        &self,
        (ino, generation): (Ino, u32),
        noted: u64,
        offset: u64,
        to: &mut [u8],
    ) -> Option<usize> {
        let done = self.arena.copy_file((ino, generation), offset, to);
        // The file had this size and these bytes at one moment: now.
        if !self.kept.unchanged(ino, noted) {
            return None;
        }
        let end = (offset + done as u64).div_ceil(PAGE * CHUNK);
        for chunk in offset / PAGE / CHUNK..end {
            self.region.mark(mark(ino.0, chunk), true);
        }
        Some(done)
    }
}

#[cfg(test)]
mod tests {
    use crate::client::Remote;
    use crate::server::{Options, Server};
    use fs::FileSystem;
    use std::sync::Arc;

    /// What is mapped at an address, as the system names it.
    fn mapped_at(address: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let at = |line: &&str| {
            let (start, rest) = line.split_once('-').unwrap();
            let end = rest.split(' ').next().unwrap();
            let [start, end] = [start, end].map(|n| usize::from_str_radix(n, 16).unwrap());
            (start..end).contains(&address)
        };
        maps.lines().find(at).expect("something is mapped there").to_string()
    }

    #[test]
    fn the_memory_of_managers_before_is_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let model = Arc::new(sim::Model::new(sim::HandClock::default().clock()));
        let start = || {
            let opening = fs::Opening { volume: [1; 16], number: 7, after: [0; 4] };
            Server::start(model.clone(), &path, Options { opening, ..Options::default() }).unwrap()
        };
        let mut server = start();
        let remote = Remote::connect(&path).unwrap();
        let mut sessions = Vec::new();
        for _ in 0..5 {
            sessions.push(remote.now().clone());
            drop(server);
            server = start();
            remote.block_on(remote.ping()).unwrap();
        }
        for session in &sessions {
            let mapped = mapped_at(session.arena.memory.range().0.addr());
            assert!(!mapped.contains("memfd"), "{mapped}");
        }
        assert!(mapped_at(remote.now().arena.memory.range().0.addr()).contains("memfd"));
    }
}

//! The calls by which bytes of a file are read and written: what one has written by any of them, all others read by any.

use super::kinds::{Kind, Object};
use super::objects::done;
use super::worker::Worker;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::ptr::null_mut;

const PAGE: u64 = 4096;
/// How many there are.
const WAYS: usize = 8;
/// The one that `maps` may be.
const MAPPED: usize = 5;

/// One of them.
pub(super) struct Way {
    number: usize,
    path: PathBuf,
    /// A file of this thread's.
    scratch: PathBuf,
    /// Mappings, or calls that go past the page cache: file systems of the kernel do not promise that one shows what the other does.
    maps: Option<i32>,
}

impl Way {
    /// Any, to the file of an object.
    pub fn any(worker: &mut Worker, object: &Object) -> Way {
        let kind = [libc::MAP_PRIVATE, libc::MAP_SHARED][worker.one_of(2)];
        Way {
            number: worker.one_of(WAYS),
            path: worker.path(object, ""),
            scratch: worker.scratch(),
            maps: (object.kind == Kind::Word || object.is_common()).then_some(kind),
        }
    }

    /// Whether the kernel reads, whoever asks.
    pub fn is_through_mount(&self) -> bool {
        self.number == MAPPED && self.maps.is_some()
    }

    /// Reads eight bytes that lie in one page, as a number.
    pub fn read(&self, file: &File, at: u64) -> io::Result<u64> {
        let mut word = [0; 8];
        let n = match self.number {
            0 => {
                let mut file = file;
                file.seek(SeekFrom::Start(at))?;
                file.read(&mut word)?
            }
            1 => {
                let part = libc::iovec { iov_base: word.as_mut_ptr().cast(), iov_len: 8 };
                // SAFETY: a place of this length.
                count(unsafe { libc::preadv(file.as_raw_fd(), &part, 1, at as i64) })?
            }
            2 => through_pipe(
                |end| {
                    let mut from = at as i64;
                    // SAFETY: descriptors, and a place for the offset.
                    count(unsafe { libc::splice(file.as_raw_fd(), &mut from, end, null_mut(), 8, 0) })
                },
                &mut word,
            )?,
            3 => through_pipe(
                |end| {
                    let mut from = at as i64;
                    // SAFETY: as above.
                    count(unsafe { libc::sendfile(end, file.as_raw_fd(), &mut from, 8) })
                },
                &mut word,
            )?,
            4 => {
                let (scratch, mut from) = (self.scratch()?, at as i64);
                // SAFETY: as above.
                let n = unsafe {
                    libc::copy_file_range(file.as_raw_fd(), &mut from, scratch.as_raw_fd(), null_mut(), 8, 0)
                };
                scratch.read_exact_at(&mut word[..count(n)?], 0)?;
                n as usize
            }
            MAPPED => match self.maps {
                Some(kind) => mapped(file, kind, at, &mut word)?,
                None => self.past_the_cache(at, &mut word)?,
            },
            _ => file.read_at(&mut word, at)?,
        };
        if n == 8 {
            Ok(u64::from_le_bytes(word))
        } else {
            Err(io::Error::other(format!("{n} bytes of 8 were read")))
        }
    }

    fn past_the_cache(&self, at: u64, word: &mut [u8; 8]) -> io::Result<usize> {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&self.path)?;
        // Somewhere in it is a whole page.
        let mut room = vec![0u8; 2 * PAGE as usize];
        let skip = room.as_ptr().align_offset(PAGE as usize);
        let page = &mut room[skip..skip + PAGE as usize];
        let got = file.read_at(page, at / PAGE * PAGE)?;
        let within = (at % PAGE) as usize;
        let found = &page[within..got.max(within)];
        let n = found.len().min(8);
        word[..n].copy_from_slice(&found[..n]);
        Ok(n)
    }

    /// Writes eight bytes that lie in one page.
    pub fn write(&self, file: &File, word: &[u8; 8], at: u64) -> io::Result<()> {
        let mut own = file;
        let n = match self.number {
            0 => {
                own.seek(SeekFrom::Start(at))?;
                own.write(word)?
            }
            1 => {
                let part = libc::iovec { iov_base: word.as_ptr().cast_mut().cast(), iov_len: 8 };
                // SAFETY: bytes of this length, which are read.
                count(unsafe { libc::pwritev(file.as_raw_fd(), &part, 1, at as i64) })?
            }
            2 => {
                let (from, mut end) = pipe()?;
                end.write_all(word)?;
                let mut to = at as i64;
                // SAFETY: descriptors, and a place for the offset.
                count(unsafe { libc::splice(from.as_raw_fd(), null_mut(), file.as_raw_fd(), &mut to, 8, 0) })?
            }
            way @ (3 | 4) => {
                let scratch = self.scratch()?;
                scratch.write_all_at(word, 0)?;
                let (mut from, mut to) = (0, at as i64);
                if way == 3 {
                    own.seek(SeekFrom::Start(at))?;
                    // SAFETY: as above.
                    count(unsafe { libc::sendfile(file.as_raw_fd(), scratch.as_raw_fd(), &mut from, 8) })?
                } else {
                    // SAFETY: as above.
                    count(unsafe {
                        libc::copy_file_range(scratch.as_raw_fd(), &mut from, file.as_raw_fd(), &mut to, 8, 0)
                    })?
                }
            }
            _ => file.write_at(word, at)?,
        };
        if n == 8 { Ok(()) } else { Err(io::Error::other(format!("{n} bytes of 8 were written"))) }
    }

    /// An empty file of this thread's.
    fn scratch(&self) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&self.scratch)
    }
}

/// Reads in a mapping that lasts as long as that.
fn mapped(file: &File, kind: i32, at: u64, word: &mut [u8; 8]) -> io::Result<usize> {
    let (page, within) = (at / PAGE * PAGE, (at % PAGE) as usize);
    // SAFETY: a new mapping of a page that the file has, and a volatile read of eight bytes of it.
    unsafe {
        let map = libc::mmap(null_mut(), PAGE as usize, libc::PROT_READ, kind, file.as_raw_fd(), page as i64);
        if map == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        *word = map.byte_add(within).cast::<[u8; 8]>().read_volatile();
        done(libc::munmap(map, PAGE as usize))?;
    }
    Ok(8)
}

/// What somebody puts into a pipe, at most a word.
fn through_pipe(put: impl FnOnce(i32) -> io::Result<usize>, word: &mut [u8; 8]) -> io::Result<usize> {
    let (mut from, end) = pipe()?;
    let n = put(end.as_raw_fd())?;
    from.read_exact(&mut word[..n])?;
    Ok(n)
}

fn pipe() -> io::Result<(File, File)> {
    let mut ends = [-1; 2];
    // SAFETY: a place for two descriptors, which are new.
    unsafe {
        done(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC))?;
        Ok((File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])))
    }
}

fn count(n: isize) -> io::Result<usize> {
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

//! Memory that two processes map. The other side may change any byte at any time, so nothing here gives out references to
//! plain memory: bytes are copied, words are atomic.

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// What the processor can map by one entry of its tables.
pub(crate) const HUGE: usize = 2 << 20;

/// Bytes of a line of the processor's caches.
const LINE: usize = 64;

/// A shared mapping.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping has no thread affinity, and all access goes through copies and atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// Memory of `len` bytes that nobody can shrink or grow any more: whoever maps it never gets SIGBUS.
pub(crate) fn sealed(name: &CStr, len: usize) -> io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, len as u64)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

/// Memory of `len` bytes that others can only read: a mapping for the owner, and a descriptor for them. Nobody can change its size;
/// only the owner of the process, and root, can open it for writing.
pub(crate) fn published(name: &CStr, len: usize) -> io::Result<(Mapping, OwnedFd)> {
    let fd = sealed(name, len)?;
    rustix::fs::fchmod(&fd, Mode::RUSR)?;
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let reader = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    Ok((Mapping::new(&fd, len)?, reader))
}

/// Fails unless `fd` has at least `len` bytes, now and for ever.
pub(crate) fn check_sealed(fd: impl AsFd, len: usize) -> io::Result<()> {
    let seals = rustix::fs::fcntl_get_seals(&fd)?;
    if !seals.contains(SealFlags::SHRINK) || rustix::fs::fstat(&fd)?.st_size < len as i64 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "memory of the other side is not sealed"));
    }
    Ok(())
}

impl Mapping {
    /// Maps the first `len` bytes of `fd` for reading and writing. The descriptor may be closed afterwards.
    pub fn new(fd: impl AsFd, len: usize) -> io::Result<Mapping> {
        Mapping::with(fd, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps the first `len` bytes of `fd` for reading: nothing of it may be written.
    pub fn read_only(fd: impl AsFd, len: usize) -> io::Result<Mapping> {
        Mapping::with(fd, len, ProtFlags::READ)
    }

    fn with(fd: impl AsFd, len: usize, prot: ProtFlags) -> io::Result<Mapping> {
        // SAFETY: a new mapping at an address that the kernel chooses touches no existing memory, nor does one in place of what we have mapped.
        let base = unsafe {
            match len {
                ..HUGE => rustix::mm::mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, fd, 0)?,
                _ => {
                    let room = Room::new(len)?;
                    rustix::mm::mmap(room.base, len, prot, MapFlags::SHARED | MapFlags::FIXED, fd, 0)?;
                    std::mem::ManuallyDrop::new(room).base
                }
            }
        };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { base, len })
    }

    /// Has whole huge pages, of which all pages are there, become such for all who map them, whatever the system does with shared memory otherwise.
    /// That copies them, so it takes a while.
    ///
    /// # Errors
    /// `EINVAL` where the kernel cannot do that, or before Linux 6.1; `ENOMEM`, `EAGAIN`, `EBUSY` not now.
    pub fn join(&self, offset: usize, len: usize) -> io::Result<()> {
        let at = self.at(offset, len);
        // SAFETY: a range of the mapping; what is in it stays.
        match unsafe { libc::madvise(at.cast(), len, libc::MADV_COLLAPSE) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Whether all pages of a range are there.
    pub fn is_there(&self, offset: usize, len: usize) -> bool {
        let (at, mut pages) = (self.at(offset, len), vec![0u8; len.div_ceil(4096)]);
        // SAFETY: a range of the mapping, and a byte for each of its pages.
        let asked = unsafe { libc::mincore(at.cast(), len, pages.as_mut_ptr()) };
        asked == 0 && pages.iter().all(|page| page & 1 == 1)
    }

    /// Has all of its pages there, where the system does that: whoever maps it after that gets many of them at each fault, and none that is new.
    pub fn fill(&self) {
        // SAFETY: nothing in it changes.
        let _ = unsafe {
            rustix::mm::madvise(self.base.as_ptr().cast(), self.len, rustix::mm::Advice::LinuxPopulateWrite)
        };
    }

    /// Where it is, and how long.
    pub fn range(&self) -> (*mut u8, usize) {
        (self.base.as_ptr(), self.len)
    }

    /// Address of `len` bytes at `offset`. Panics when they are not within the mapping.
    #[inline]
    pub fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset <= self.len && len <= self.len - offset, "range outside of the mapping");
        // SAFETY: the range was just checked to lie within the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// The word at `offset`, a multiple of 4.
    #[inline]
    pub fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4));
        // SAFETY: in the mapping and aligned, which begins at a page; all sides use this word atomically or copy it.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4).cast()) }
    }

    /// The long word at `offset`, a multiple of 8.
    #[inline]
    pub fn long(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8));
        // SAFETY: as in `word`.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }

    /// Gives whole pages back to the system: they read as zeros, in all mappings. What cannot be given back stays.
    pub fn discard(&self, offset: usize, len: usize) {
        let at = self.at(offset, len);
        // SAFETY: a range of the mapping, to which no references exist; its bytes may change at any time anyway.
        let _ = unsafe { rustix::mm::madvise(at.cast(), len, rustix::mm::Advice::LinuxRemove) };
    }

    /// Puts zeros in the place of all of it, for this process alone, which take no memory: what is there goes when nobody else has it. Nothing of it is written
    /// afterwards.
    pub fn forget(&self) {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: in place of what we have mapped. Who reads it at this moment may find either, as if the other side had written that.
        let _ = unsafe {
            rustix::mm::mmap_anonymous(self.base.as_ptr().cast(), self.len, ProtFlags::READ, flags)
        };
    }

    /// Copies `from` to `offset`.
    pub fn copy_in(&self, offset: usize, from: &[u8]) {
        let to = self.at(offset, from.len());
        // SAFETY: the range was checked; `from` is another object, as no reference to the mapping's bytes exists.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
    }

    /// As [`Mapping::copy_in`], past the caches of the processor where it can do that: for what this processor does not read soon.
    pub fn stream_in(&self, offset: usize, from: &[u8]) {
        let (head, lines) = lines(self.at(offset, from.len()), from.len());
        self.copy_in(offset, &from[..head]);
        // SAFETY: the range was checked and begins at a line; `from` is another object, as in `copy_in`.
        unsafe { stream(self.at(offset + head, lines), &from[head..][..lines]) };
        self.copy_in(offset + head + lines, &from[head + lines..]);
    }

    /// Copies bytes at `offset` to `to`.
    pub fn copy_out(&self, offset: usize, to: &mut [u8]) {
        let from = self.at(offset, to.len());
        // SAFETY: as in `copy_in`. When the other side writes meanwhile the copy is a mixture, which is checked afterwards
        // like anything else that comes from there.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) }
    }
}

/// Of so many bytes at an address, how many come before the first whole line of a cache, and how many are whole lines.
fn lines(at: *mut u8, len: usize) -> (usize, usize) {
    let head = at.align_offset(LINE).min(len);
    (head, (len - head) / LINE * LINE)
}

/// Copies whole lines.
///
/// # Safety
/// As many bytes as `from` has can be written at `to`, which is a multiple of [`LINE`], and `from` is not among them.
unsafe fn stream(to: *mut u8, from: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller sees to the addresses. SSE2 is there on every such processor. The fence makes what was stored visible before anything that is stored afterwards, as with ordinary stores.
    unsafe {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
        let (from, to, parts) = (from.as_ptr().cast::<__m128i>(), to.cast::<__m128i>(), from.len() / 16);
        for part in (0..parts).step_by(LINE / 16) {
            let line = [0, 1, 2, 3].map(|i| _mm_loadu_si128(from.add(part + i)));
            (0..line.len()).for_each(|i| _mm_stream_si128(to.add(part + i), line[i]));
        }
        _mm_sfence();
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: as above.
    unsafe {
        std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len())
    }
}

/// Addresses at which nothing is yet, from a multiple of [`HUGE`] on.
struct Room {
    base: *mut libc::c_void,
    len: usize,
}

impl Room {
    fn new(len: usize) -> io::Result<Room> {
        let whole = len.checked_add(HUGE).ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: new, and what is not needed of it is given back; nothing refers to it.
        unsafe {
            let all = rustix::mm::mmap_anonymous(std::ptr::null_mut(), whole, ProtFlags::empty(), flags)?;
            let before = all.addr().next_multiple_of(HUGE) - all.addr();
            let base = all.cast::<u8>().add(before);
            if before > 0 {
                let _ = rustix::mm::munmap(all, before);
            }
            let behind = len.next_multiple_of(4096);
            let _ = rustix::mm::munmap(base.add(behind).cast(), whole - before - behind);
            Ok(Room { base: base.cast(), len })
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // SAFETY: nothing was mapped there.
        unsafe {
            let _ = rustix::mm::munmap(self.base, self.len);
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no reference into it outlives it.
        unsafe {
            let _ = rustix::mm::munmap(self.base.as_ptr().cast(), self.len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn two_mappings_of_one_memory() {
        let fd = sealed(c"test", 8192).unwrap();
        check_sealed(&fd, 8192).unwrap();
        assert!(check_sealed(&fd, 8193).is_err());
        assert!(rustix::fs::ftruncate(&fd, 0).is_err(), "sealed");
        let (a, b) = (Mapping::new(&fd, 8192).unwrap(), Mapping::new(&fd, 8192).unwrap());
        a.copy_in(100, b"hello");
        let mut back = [0; 5];
        b.copy_out(100, &mut back);
        assert_eq!(&back, b"hello");
        a.word(4096).store(7, Ordering::Release);
        assert_eq!(b.long(4096).load(Ordering::Acquire), 7);
    }

    #[test]
    fn streamed_bytes_come_to_their_place_and_no_other() {
        let memory = Mapping::new(sealed(c"test", 8192).unwrap(), 8192).unwrap();
        let from: Vec<u8> = (0..700).map(|i| i as u8 | 1).collect();
        for (at, len) in [0, 1, 15, 63, 64, 65].into_iter().flat_map(|at| (0..=400).map(move |len| (at, len)))
        {
            memory.copy_in(1000, &[0; 800]);
            memory.stream_in(1024 + at, &from[at..at + len]);
            let mut there = [7; 800];
            memory.copy_out(1000, &mut there);
            let expected = (0..800).map(|i| {
                let byte = (i as usize).checked_sub(24 + at).filter(|&byte| byte < len);
                byte.map_or(0, |byte| from[at + byte])
            });
            assert!(expected.eq(there), "{len} bytes at {at}");
        }
    }

    #[test]
    fn large_memory_lies_where_huge_pages_can() {
        let len = 2 * HUGE + 4096;
        let (ours, theirs) = published(c"test", len).unwrap();
        let seen = Mapping::read_only(&theirs, len).unwrap();
        for mapping in [&ours, &seen] {
            assert_eq!(mapping.range().0.addr() % HUGE, 0);
        }
        (0..HUGE).step_by(4096).for_each(|at| ours.copy_in(at, &[at as u8 | 1]));
        match ours.join(0, HUGE) {
            Ok(()) => assert!(huge_bytes(&ours) >= HUGE as u64),
            Err(e) => println!("no huge page: {e}"),
        }
        let mut byte = [0];
        seen.copy_out(HUGE - 4096, &mut byte);
        assert_eq!(byte, [1]);
        ours.copy_in(len - 1, b"x");
        seen.copy_out(len - 1, &mut byte);
        assert_eq!(&byte, b"x");
    }

    /// How much of a mapping the kernel says is mapped by huge pages, once it is touched.
    fn huge_bytes(mapping: &Mapping) -> u64 {
        let mut byte = [0];
        mapping.copy_out(0, &mut byte);
        let all = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let at = format!("{:x}-", mapping.range().0.addr());
        let of = all.lines().skip_while(|line| !line.starts_with(&at));
        let line = of.take(30).find(|line| line.starts_with("ShmemPmdMapped:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    }

    #[test]
    fn published_memory_can_only_be_read() {
        let (ours, theirs) = published(c"test", 4096).unwrap();
        check_sealed(&theirs, 4096).unwrap();
        let seen = Mapping::read_only(&theirs, 4096).unwrap();
        ours.long(8).store(5, Ordering::Release);
        assert_eq!(seen.long(8).load(Ordering::Acquire), 5);
        assert!(Mapping::new(&theirs, 4096).is_err(), "mapped for writing");
        assert!(rustix::io::write(&theirs, b"x").is_err());
        assert_eq!(rustix::fs::fstat(&theirs).unwrap().st_mode & 0o777, 0o400);
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn beyond_the_end() {
        let fd = sealed(c"test", 4096).unwrap();
        Mapping::new(fd, 4096).unwrap().copy_in(4090, &[0; 7]);
    }
}

//! Memory for transfers: page aligned, never moved, shared between the engine, the device and clients.
//!
//! An arena is bytes, not objects: it is only read and written by copying. Who may touch which part when is decided by the
//! page cache (`fs::cache`): a frame that a transfer or a reader uses is not written. A copy that races with another by
//! mistake would give torn bytes, as it would on a device.

use std::fmt::Debug;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// Number of an arena among those registered with one medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ArenaId(pub u16);

/// Bytes of a registered arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufRef {
    /// Which arena.
    pub arena: ArenaId,
    /// Where in it, bytes.
    pub offset: u64,
    /// How many bytes.
    pub len: u32,
}

/// Memory that somebody else has mapped, and that others may write at any time.
///
/// # Safety
/// The range is mapped for reading and writing, and access to it never faults, as long as the value lives.
pub unsafe trait Memory: Debug + Send + Sync {
    /// Where it begins, and how many bytes it has. Always the same.
    fn range(&self) -> (*mut u8, usize);
}

/// A range of anonymous memory, zero at first, given back to the system when dropped; or of somebody else's ([`Arena::of`]).
#[derive(Debug)]
pub struct Arena {
    base: NonNull<u8>,
    len: usize,
    theirs: Option<Arc<dyn Memory>>,
}

// SAFETY: an arena is plain memory without thread affinity; all access goes through copies that need no exclusive
// reference (see the module documentation for who may touch what).
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

static DEAR: AtomicBool = AtomicBool::new(false);

/// Huge pages take much longer to have than as much memory in small ones, or no longer do: somebody has measured it.
pub fn set_huge_pages_dear(dear: bool) {
    DEAR.store(dear, Ordering::Relaxed);
}

/// Whether memory had better be had in small pages now; see [`set_huge_pages_dear`].
pub fn are_huge_pages_dear() -> bool {
    DEAR.load(Ordering::Relaxed)
}

/// Arenas begin at a multiple of this, so that the kernel can back them with huge pages.
const ALIGN: usize = 2 << 20;

impl Arena {
    /// Memory of `len` bytes, rounded up to whole 4 KiB pages, at an address that is a multiple of 2 MiB.
    pub fn new(len: usize) -> io::Result<Arena> {
        let len = len.max(4096).next_multiple_of(4096);
        let whole = len.checked_add(ALIGN).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: an anonymous private mapping at an address that the kernel chooses touches no existing memory.
        let raw = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                whole,
                rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                rustix::mm::MapFlags::PRIVATE | rustix::mm::MapFlags::NORESERVE,
            )?
        };
        let start = (raw as usize).next_multiple_of(ALIGN);
        let (front, back) = (start - raw as usize, whole - (start - raw as usize) - len);
        // SAFETY: both ranges are the unused ends of the mapping made above, and no reference to them exists.
        unsafe {
            if front > 0 {
                let _ = rustix::mm::munmap(raw, front);
            }
            if back > 0 {
                let _ = rustix::mm::munmap((start + len) as *mut _, back);
            }
            let _ = rustix::mm::madvise(start as *mut _, len, rustix::mm::Advice::LinuxHugepage);
        }
        let base = NonNull::new(start as *mut u8).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Arena { base, len, theirs: None })
    }

    /// Memory of somebody else, who may change it at any time: what is transferred from there is whatever it was at that moment, and nothing that
    /// was found in it holds a moment later. `InvalidInput`: it does not begin and end at 4 KiB pages.
    pub fn of(memory: Arc<dyn Memory>) -> io::Result<Arena> {
        let (base, len) = memory.range();
        let base = NonNull::new(base).ok_or(io::ErrorKind::InvalidInput)?;
        if len == 0 || !len.is_multiple_of(4096) || !(base.as_ptr() as usize).is_multiple_of(4096) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Arena { base, len, theirs: Some(memory) })
    }

    /// Whether it is somebody else's.
    pub fn is_theirs(&self) -> bool {
        self.theirs.is_some()
    }

    /// Size in bytes.
    #[allow(clippy::len_without_is_empty, reason = "an arena is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Address of `len` bytes at `offset`. Panics when they are not within the arena.
    pub fn ptr(&self, offset: u64, len: usize) -> *mut u8 {
        let offset = offset as usize;
        assert!(offset <= self.len && len <= self.len - offset, "range outside of the arena");
        // SAFETY: the offset was just checked to lie within the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Copies `from` into the arena.
    pub fn copy_in(&self, offset: u64, from: &[u8]) {
        let to = self.ptr(offset, from.len());
        // SAFETY: `ptr` checked the range; `from` is a separate object because arenas hand out no references that outlive
        // a call of `with`.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
    }

    /// Copies bytes of the arena to `to`.
    pub fn copy_out(&self, offset: u64, to: &mut [u8]) {
        let from = self.ptr(offset, to.len());
        // SAFETY: as in `copy_in`.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) }
    }

    /// Copies within the arena; the ranges must not overlap.
    pub fn copy_within(&self, from: u64, to: u64, len: usize) {
        assert!(from.abs_diff(to) >= len as u64, "ranges overlap");
        let (from, to) = (self.ptr(from, len), self.ptr(to, len));
        // SAFETY: both ranges were checked to lie within the arena and not to overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
    }

    /// Sets bytes to zero.
    pub fn zero(&self, offset: u64, len: usize) {
        let to = self.ptr(offset, len);
        // SAFETY: `ptr` checked the range.
        unsafe { std::ptr::write_bytes(to, 0, len) }
    }

    /// Has the system find memory for a range where there is none yet. Changes no byte, whoever else writes there meanwhile.
    pub fn touch(&self, offset: u64, len: usize) {
        let from = self.ptr(offset, len);
        // SAFETY: the range was checked, and nothing in it changes; Linux 5.14 has this.
        if unsafe { rustix::mm::madvise(from.cast(), len, rustix::mm::Advice::LinuxPopulateWrite) }.is_ok() {
            return;
        }
        for at in (0..len).step_by(4096) {
            // SAFETY: the byte is within the range that was checked, and an atomic byte has no alignment.
            let byte = unsafe { AtomicU8::from_ptr(from.add(at)) };
            // A store of nothing but zero over zero: a load would do with the page of zeros that all share.
            let _ = byte.compare_exchange(0, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Whether the system is to find memory in huge pages, from `offset` to the end, where there is none yet. An arena begins with them.
    pub fn by_huge_pages(&self, offset: u64, huge: bool) {
        let len = self.len - (offset as usize).min(self.len);
        let advice = match huge {
            true => rustix::mm::Advice::LinuxHugepage,
            false => rustix::mm::Advice::LinuxNoHugepage,
        };
        if len > 0 && self.theirs.is_none() {
            // SAFETY: the range was cut to the arena, and nothing in it changes. Where it is refused, all is as it was.
            let _ = unsafe { rustix::mm::madvise(self.ptr(offset, len).cast(), len, advice) };
        }
    }

    /// Calls `f` with the bytes.
    ///
    /// # Safety
    /// Nobody (device or thread) may write these bytes during the call: never to be used for memory that is somebody else's.
    pub unsafe fn with<R>(&self, offset: u64, len: usize, f: impl FnOnce(&[u8]) -> R) -> R {
        let from = self.ptr(offset, len);
        // SAFETY: the range was checked; the caller vouches that it is not written meanwhile.
        f(unsafe { std::slice::from_raw_parts(from, len) })
    }

    /// Calls `f` with the bytes, to be changed.
    ///
    /// # Safety
    /// Nobody (device or thread) may read or write these bytes during the call.
    pub unsafe fn with_mut<R>(&self, offset: u64, len: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
        let to = self.ptr(offset, len);
        // SAFETY: the range was checked; the caller vouches that nobody else uses it meanwhile.
        f(unsafe { std::slice::from_raw_parts_mut(to, len) })
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if self.theirs.is_some() {
            return;
        }
        // SAFETY: the mapping is ours, `len` bytes long, and no reference into it outlives the arena.
        unsafe {
            let _ = rustix::mm::munmap(self.base.as_ptr().cast(), self.len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_within_bounds() {
        let arena = Arena::new(8192).unwrap();
        arena.copy_in(4090, b"boundary");
        let mut back = [0; 8];
        arena.copy_out(4090, &mut back);
        assert_eq!(&back, b"boundary");
        arena.zero(4090, 4);
        arena.copy_out(4090, &mut back);
        assert_eq!(&back, b"\0\0\0\0dary");
        assert_eq!(arena.ptr(0, 1) as usize % ALIGN, 0);
    }

    #[test]
    fn memory_of_somebody_else() {
        #[derive(Debug)]
        struct Theirs(Arena, usize);
        // SAFETY: the arena within is mapped as long as this lives.
        unsafe impl Memory for Theirs {
            fn range(&self) -> (*mut u8, usize) {
                (self.0.ptr(0, self.1), self.1)
            }
        }
        let theirs = Arc::new(Theirs(Arena::new(8192).unwrap(), 8192));
        let arena = Arena::of(theirs.clone()).unwrap();
        arena.copy_in(4096, b"seen by both");
        drop(arena);
        let mut back = [0; 12];
        theirs.0.copy_out(4096, &mut back);
        assert_eq!(&back, b"seen by both");
        assert!(Arena::of(Arc::new(Theirs(Arena::new(8192).unwrap(), 4097))).is_err());
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn range_behind_the_end() {
        Arena::new(4096).unwrap().ptr(4095, 2);
    }
}

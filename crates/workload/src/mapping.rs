//! Memory that a process and the processes forked from it share: an anonymous shared mapping.

use std::io;
use std::ops::Deref;
use std::ptr::NonNull;

/// Types that may stand in memory shared between processes.
///
/// # Safety
///
/// All zero bytes are a value of the type, every change goes through atomics, and it holds no pointer and needs no drop.
pub unsafe trait Plain: Sync {}

// SAFETY: an atomic of plain bits, of which zero is one.
unsafe impl Plain for std::sync::atomic::AtomicU32 {}

/// A slice of zeroed `T`, shared with the processes that are forked while it exists.
pub struct Mapping<T: Plain> {
    start: NonNull<T>,
    len: usize,
}

// SAFETY: it owns its memory, to which it gives shared references only; `Plain` types are `Sync`.
unsafe impl<T: Plain> Send for Mapping<T> {}
// SAFETY: as above.
unsafe impl<T: Plain> Sync for Mapping<T> {}

impl<T: Plain> Mapping<T> {
    /// Maps `len` values. Errors: there is no memory (ENOMEM).
    pub fn new(len: usize) -> io::Result<Mapping<T>> {
        assert!(align_of::<T>() <= 4096 && size_of::<T>() > 0, "a type that pages can hold");
        let bytes = len.max(1).checked_mul(size_of::<T>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast::<T>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { start, len })
    }
}

impl<T: Plain> Deref for Mapping<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the mapping holds `len` values, which began as zeros (a value, by `Plain`), and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Plain> Drop for Mapping<T> {
    fn drop(&mut self) {
        // SAFETY: the memory was mapped by `new` with this length, and no reference into it outlives `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len.max(1) * size_of::<T>()) };
    }
}

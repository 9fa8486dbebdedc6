//! Memory for the big tables of the index, in huge pages where the system gives them.
//!
//! A stat in random order touches a handful of cache lines in hundreds of megabytes; with pages of 4 KiB each of them costs
//! a walk of the page table besides.

use allocator_api2::alloc::{AllocError, Allocator, Global, Layout};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ptr::NonNull;

pub(crate) const HUGE: usize = 2 << 20;

/// Large blocks are mappings of their own, aligned to huge pages and advised for them; the others come from the global
/// allocator. (Memory that the global allocator gives a second time is cut into small pages already.)
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HugePages;

/// Bytes of the mapping for a large block; `None` for others.
fn mapping(layout: Layout) -> Option<usize> {
    (layout.size() >= 2 * HUGE && layout.align() <= HUGE).then(|| layout.size().next_multiple_of(HUGE))
}

/// Maps `bytes`, a multiple of a huge page, at an address that is one too.
fn map(bytes: usize) -> Result<NonNull<u8>, AllocError> {
    let wide = bytes.checked_add(HUGE).ok_or(AllocError)?;
    let (access, kind) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new anonymous mapping, at an address that the kernel chooses, touches nobody's memory.
    let raw = unsafe { mmap_anonymous(std::ptr::null_mut(), wide, access, kind) }.map_err(|_| AllocError)?;
    let skip = raw.align_offset(HUGE);
    // SAFETY: the address is within the mapping: it is longer than `bytes` by a huge page.
    let start = unsafe { raw.byte_add(skip) };
    // SAFETY: both ends, and the advised middle, are parts of the mapping that nobody has seen yet. Failures change nothing
    // but how much memory is used.
    unsafe {
        if skip > 0 {
            let _ = munmap(raw, skip);
        }
        if skip < HUGE {
            let _ = munmap(start.byte_add(bytes), HUGE - skip);
        }
        if !media::are_huge_pages_dear() {
            let _ = madvise(start, bytes, Advice::LinuxHugepage);
        }
    }
    NonNull::new(start.cast()).ok_or(AllocError)
}

// SAFETY: every block comes from and goes back to where `mapping` says, which depends on its layout alone; blocks stay valid
// until then wherever the allocator value is moved. Mappings are aligned to huge pages, which is at least what is asked for.
unsafe impl Allocator for HugePages {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let raw = match mapping(layout) {
            Some(bytes) => map(bytes)?,
            None => return Global.allocate(layout),
        };
        Ok(NonNull::slice_from_raw_parts(raw, layout.size()))
    }

    unsafe fn deallocate(&self, ptr: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller passes a block of `allocate` with its layout.
        unsafe {
            match mapping(layout) {
                Some(bytes) => drop(munmap(ptr.as_ptr().cast(), bytes)),
                None => Global.deallocate(ptr, layout),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_blocks_are_aligned() {
        let mut v = allocator_api2::vec::Vec::<u64, HugePages>::with_capacity_in(1 << 20, HugePages);
        v.extend(0..1000);
        assert_eq!(v.as_ptr() as usize % HUGE, 0);
        v.truncate(10);
        v.shrink_to_fit();
        assert_eq!(v.iter().sum::<u64>(), 45);
    }
}

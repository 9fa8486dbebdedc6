//! Memory for the big tables of the index, in huge pages where the system gives them.
//!
//! A stat in random order touches a handful of cache lines in hundreds of megabytes; with pages of 4 KiB each of them costs
//! a walk of the page table besides.

use allocator_api2::alloc::{AllocError, Allocator, Layout};
use std::ptr::NonNull;

pub(crate) const HUGE: usize = 2 << 20;

/// The system's allocator; large blocks are aligned to and advised for huge pages.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HugePages;

fn widen(layout: Layout) -> Layout {
    match layout.size() >= 2 * HUGE {
        true => layout.align_to(HUGE).unwrap_or(layout),
        false => layout,
    }
}

// SAFETY: every block comes from and goes back to the global allocator with the same layout, which `widen` derives from the
// caller's alone; blocks stay valid until then wherever the allocator value is moved.
unsafe impl Allocator for HugePages {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let wide = widen(layout);
        if wide.size() == 0 {
            return Ok(NonNull::slice_from_raw_parts(layout.dangling_ptr(), 0));
        }
        // SAFETY: the size is not zero.
        let raw = NonNull::new(unsafe { std::alloc::alloc(wide) }).ok_or(AllocError)?;
        if wide.align() >= HUGE {
            let whole = wide.size() / HUGE * HUGE;
            // SAFETY: the range is the block's own; the advice changes no content.
            let _ =
                unsafe { rustix::mm::madvise(raw.as_ptr().cast(), whole, rustix::mm::Advice::LinuxHugepage) };
        }
        Ok(NonNull::slice_from_raw_parts(raw, layout.size()))
    }

    unsafe fn deallocate(&self, ptr: NonNull<u8>, layout: Layout) {
        let wide = widen(layout);
        if wide.size() > 0 {
            // SAFETY: the caller passes a block of `allocate` with its layout.
            unsafe { std::alloc::dealloc(ptr.as_ptr(), wide) }
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

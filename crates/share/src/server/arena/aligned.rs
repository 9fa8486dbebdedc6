//! Which pages are read at a time.

use super::{PAGE, PIECE_BYTES};

/// A read as it is made for an arena: whole pages, perhaps more of the last chunk than was asked for.
pub(crate) struct Aligned {
    /// First byte, at a page.
    pub start: u64,
    /// Bytes.
    pub len: usize,
    /// Pages up to the last that was asked for.
    pub(super) asked: usize,
    /// It has pages that were not asked for.
    pub is_more: bool,
    /// It goes on from what was read before, to the end of the file in the end.
    pub goes_on: bool,
    /// The size of the file.
    pub(super) size: u64,
    /// It may be made [wider](Aligned::widen).
    pub may_be_wider: bool,
    /// The clock from before the file is read.
    pub(super) noted: u64,
}

impl Aligned {
    /// The file has this size: what lies beyond was not asked for.
    pub fn ends_at(&mut self, size: u64) {
        self.size = size;
        let pages = size.saturating_sub(self.start).div_ceil(PAGE as u64);
        self.asked = self.asked.min(usize::try_from(pages).unwrap_or(usize::MAX));
    }

    /// The clock from before the file is read.
    pub fn noted(&self) -> u64 {
        self.noted
    }

    /// Where the whole piece begins in which it lies.
    pub fn piece(&self) -> u64 {
        self.start - self.start % PIECE_BYTES as u64
    }

    /// Makes it the whole piece in which it lies.
    pub fn widen(&mut self) {
        let piece = self.piece();
        self.asked += (self.start - piece) as usize / PAGE;
        (self.start, self.len, self.is_more) = (piece, PIECE_BYTES, true);
    }

    pub(super) fn first(&self) -> u64 {
        self.start / PAGE as u64
    }
}

//! Large files that are read from one end to the other, a little at a time. Most of them are read once: so they take little memory and drive nothing out, until they are
//! read again. (Long reads of large files are answered with the data until they are made again, for the same reason.)

use std::collections::VecDeque;
use std::ops::Range;

/// Files up to this size stay as they are read, bytes.
const SMALL: u64 = 16 << 20;
/// So many pieces of others stay behind a reader, for those who read along with him.
const BEHIND: usize = 8;

/// What those who read one page after the other have had of a file.
#[derive(Debug, Default)]
pub(super) struct Pass {
    /// Pieces that were put in, the oldest first.
    there: VecDeque<u64>,
    /// From the first to the last that went.
    gone: Range<u64>,
}

impl Pass {
    /// Whether this piece is read for the second time.
    pub fn is_again(&self, piece: u64) -> bool {
        self.gone.contains(&piece)
    }

    /// A piece of a file of this size was put in that need not stay. Which one goes for it.
    pub fn goes_on(&mut self, piece: u64, size: u64) -> Option<u64> {
        if size <= SMALL || self.there.back() == Some(&piece) {
            return None;
        }
        self.there.push_back(piece);
        if self.there.len() <= BEHIND {
            return None;
        }
        let gone = self.there.pop_front()?;
        self.gone = match self.gone.is_empty() {
            true => gone..gone + 1,
            false => self.gone.start.min(gone)..self.gone.end.max(gone + 1),
        };
        Some(gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_pieces_stay_behind() {
        let (large, behind) = (SMALL + 1, BEHIND as u64);
        let mut pass = Pass::default();
        for piece in 0..100 {
            assert!(!pass.is_again(piece));
            // It is put in step by step.
            for step in 0..3 {
                let goes = (step == 0 && piece >= behind).then(|| piece - behind);
                assert_eq!(pass.goes_on(piece, large), goes, "{piece}");
            }
        }
        assert!((0..200).all(|piece| pass.is_again(piece) == (piece < 100 - behind)));
        assert_eq!(pass.goes_on(0, large), Some(100 - behind));
        let mut pass = Pass::default();
        assert!((0..100).all(|piece| pass.goes_on(piece, SMALL).is_none() && !pass.is_again(piece)));
    }
}

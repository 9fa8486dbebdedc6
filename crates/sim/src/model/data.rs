//! Contents of a file: a sparse map of 4 KiB pages that are shared between the model and its snapshots.
//!
//! Invariants: a page that is absent reads as zeros; no page begins at or behind the size; bytes of the last page behind
//! the size are zero, so growing a file shows zeros. A page that is present may still be all zeros: whether zeros are
//! data or a hole is not part of the contract, and [`Data::same`] does not tell them apart.
//!
//! Tested at the end of this file, by `fsx` and against the host's file system in `tests/host.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes in a page.
pub const PAGE: u64 = 4096;
type Page = [u8; PAGE as usize];
static ZEROS: Page = [0; PAGE as usize];

/// Contents and size of a file. A clone shares all pages.
#[derive(Clone, Default)]
pub struct Data {
    size: u64,
    pages: BTreeMap<u64, Arc<Page>>,
}

impl Data {
    /// The size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Number of pages that are present.
    pub fn pages(&self) -> u64 {
        self.pages.len() as u64
    }

    /// The pages that are present, as (offset, bytes).
    pub fn present(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.pages.iter().map(|(n, page)| (n * PAGE, &page[..]))
    }

    /// Reads at `offset` and returns the number of bytes, less than asked only at the end.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> usize {
        let len = self.size.saturating_sub(offset).min(to.len() as u64) as usize;
        let to = &mut to[..len];
        to.fill(0);
        for piece in pieces(offset, len as u64) {
            if let Some(page) = self.pages.get(&piece.page) {
                to[piece.at..piece.at + piece.len].copy_from_slice(&page[piece.from..piece.from + piece.len]);
            }
        }
        len
    }

    /// Writes at `offset`; the size grows as needed.
    pub fn write(&mut self, offset: u64, from: &[u8]) {
        for piece in pieces(offset, from.len() as u64) {
            let page = self.pages.entry(piece.page).or_insert_with(|| Arc::new(ZEROS));
            Arc::make_mut(page)[piece.from..piece.from + piece.len]
                .copy_from_slice(&from[piece.at..piece.at + piece.len]);
        }
        if !from.is_empty() {
            self.size = self.size.max(offset + from.len() as u64);
        }
    }

    /// Cuts the file or extends it with a hole.
    pub fn set_size(&mut self, size: u64) {
        if size < self.size {
            self.clear(size, self.size.next_multiple_of(PAGE) - size);
        }
        self.size = size;
    }

    /// Makes the range read as zeros. The size stays, and so do pages that are in it only in part, that with the end of the file too.
    pub fn clear(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len).min(self.size.next_multiple_of(PAGE));
        if offset >= end {
            return;
        }
        let (first, last) = (offset / PAGE, (end - 1) / PAGE);
        let whole = offset.div_ceil(PAGE)..end / PAGE;
        if !whole.is_empty() {
            let mut behind = self.pages.split_off(&whole.start);
            self.pages.append(&mut behind.split_off(&whole.end));
        }
        for n in [first, last] {
            if let Some(page) = self.pages.get_mut(&n) {
                let from = offset.saturating_sub(n * PAGE) as usize;
                let to = (end - n * PAGE).min(PAGE) as usize;
                Arc::make_mut(page)[from..to].fill(0);
            }
        }
    }

    /// Offset of the first page at or behind `offset` that is present, no lower than `offset`.
    pub fn next_data(&self, offset: u64) -> Option<u64> {
        let (n, _) = self.pages.range(offset / PAGE..).next()?;
        Some((n * PAGE).max(offset))
    }

    /// Offset of the first hole at or behind `offset`; the end of the file counts as one.
    pub fn next_hole(&self, offset: u64) -> u64 {
        let mut n = offset / PAGE;
        while self.pages.contains_key(&n) {
            n += 1;
        }
        (n * PAGE).max(offset).min(self.size)
    }

    /// `Ok` when both read the same, else the first offset that differs (or the smaller size) and why.
    pub fn same(&self, other: &Data) -> Result<(), (u64, &'static str)> {
        if self.size != other.size {
            return Err((self.size.min(other.size), "size"));
        }
        let mut numbers: Vec<u64> = self.pages.keys().chain(other.pages.keys()).copied().collect();
        numbers.sort_unstable();
        numbers.dedup();
        for n in numbers {
            let (a, b) = (self.pages.get(&n), other.pages.get(&n));
            if matches!((a, b), (Some(a), Some(b)) if Arc::ptr_eq(a, b)) {
                continue;
            }
            let (a, b) = (a.map_or(&ZEROS, |p| p), b.map_or(&ZEROS, |p| p));
            if let Some(at) = a.iter().zip(b).position(|(a, b)| a != b) {
                return Err((n * PAGE + at as u64, "contents"));
            }
        }
        Ok(())
    }

    /// The byte at `offset`, for messages.
    pub fn byte(&self, offset: u64) -> Option<u8> {
        let mut byte = [0];
        (self.read(offset, &mut byte) == 1).then_some(byte[0])
    }
}

/// The part of a range that lies in one page: page number, start within the page, start within the range, length.
struct Piece {
    page: u64,
    from: usize,
    at: usize,
    len: usize,
}

fn pieces(offset: u64, len: u64) -> impl Iterator<Item = Piece> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done;
        let n = (PAGE - at % PAGE).min(len - done);
        let piece = Piece { page: at / PAGE, from: (at % PAGE) as usize, at: done as usize, len: n as usize };
        done += n;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::SmallRng};

    #[test]
    fn same_as_a_vector_of_bytes() {
        for seed in 0..40 {
            let mut rng = SmallRng::seed_from_u64(seed);
            let (mut data, mut bytes) = (Data::default(), Vec::<u8>::new());
            for step in 0..200 {
                let (offset, len) = (rng.random_range(0..20_000u64), rng.random_range(0..9_000usize));
                match rng.random_range(0..4) {
                    0 | 1 => {
                        let from: Vec<u8> = (0..len).map(|_| rng.random()).collect();
                        data.write(offset, &from);
                        if len > 0 {
                            bytes.resize(bytes.len().max(offset as usize + len), 0);
                            bytes[offset as usize..offset as usize + len].copy_from_slice(&from);
                        }
                    }
                    2 => {
                        data.set_size(offset);
                        bytes.resize(offset as usize, 0);
                    }
                    _ => {
                        data.clear(offset, len as u64);
                        let end = bytes.len().min(offset as usize + len);
                        bytes.get_mut(offset as usize..end).into_iter().for_each(|part| part.fill(0));
                    }
                }
                let mut found = vec![1; 30_000];
                let n = data.read(0, &mut found);
                assert_eq!(&found[..n], &bytes[..], "seed {seed} step {step}");
                assert!(data.pages.keys().all(|n| n * PAGE < data.size), "page behind the end");
            }
        }
    }

    #[test]
    fn a_clone_shares_and_keeps() {
        let mut data = Data::default();
        data.write(1 << 43, b"far");
        let old = data.clone();
        data.write(1 << 43, b"new");
        assert_eq!(old.same(&data), Err((1 << 43, "contents")));
        assert_eq!((old.next_data(5), old.next_hole(5)), (Some(1 << 43), 5));
        data.set_size(0);
        assert_eq!(data.pages(), 0);
    }
}

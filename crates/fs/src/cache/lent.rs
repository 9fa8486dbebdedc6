//! Bytes lent out of the page cache: reading without a copy.
//!
//! A loan pins its frames, and a pinned frame is immutable (see [`super`]): what a reader holds does not change under it,
//! whatever becomes of the file. Memory that is lent cannot be used for anything else, so lenders bound what is lent at
//! one time and copy what goes beyond.

use super::{FrameNo, PAGE, Pins};
use media::Arena;
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;

/// Who lends pages, and wants to know when they come back.
pub trait Lender: Send + Sync {
    /// A loan of this many bytes has ended; its frames are no longer pinned.
    fn returned(&self, bytes: usize);
}

/// Bytes of a file as they were when they were read, mostly in the memory into which the device wrote them.
#[derive(Debug, Default)]
pub struct Pages {
    parts: SmallVec<[Part; 2]>,
    len: usize,
    loan: Option<Loan>,
}

enum Part {
    /// Memory that this part keeps alive.
    Owned(Box<dyn AsRef<[u8]> + Send + Sync>),
    /// Bytes of the arena in pinned frames.
    Lent {
        offset: u64,
        len: usize,
    },
    Zeros(usize),
}

struct Loan {
    arena: Arc<Arena>,
    pins: Pins,
    lender: Arc<dyn Lender>,
    bytes: usize,
}

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

impl Pages {
    /// Bytes that are not lent out of the page cache, but come with their memory.
    pub fn owned(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Pages {
        let mut pages = Pages::default();
        pages.push_owned(bytes);
        pages
    }

    /// An empty loan of up to `bytes` bytes, to be filled with [`Pages::push_frame`] and [`Pages::push_zeros`].
    pub fn lent(arena: Arc<Arena>, pins: Pins, lender: Arc<dyn Lender>, bytes: usize) -> Pages {
        Pages { parts: SmallVec::new(), len: 0, loan: Some(Loan { arena, pins, lender, bytes }) }
    }

    /// Appends `len` bytes at `at` of a frame that the caller has pinned once for this loan.
    pub fn push_frame(&mut self, frame: FrameNo, at: u64, len: usize) {
        assert!(self.loan.is_some() && at as usize + len <= PAGE);
        self.len += len;
        let start = frame.offset() + at;
        match self.parts.last_mut() {
            // Only whole frames are joined, so that each frame of a part is pinned once.
            Some(Part::Lent { offset, len: before }) if at == 0 && *offset + *before as u64 == start => {
                *before += len
            }
            _ => self.parts.push(Part::Lent { offset: start, len }),
        }
    }

    /// Appends bytes that come with their memory.
    pub fn push_owned(&mut self, bytes: impl AsRef<[u8]> + Send + Sync + 'static) {
        self.len += bytes.as_ref().len();
        self.parts.push(Part::Owned(Box::new(bytes)));
    }

    /// Appends zeros.
    pub fn push_zeros(&mut self, len: usize) {
        self.len += len;
        match self.parts.last_mut() {
            Some(Part::Zeros(before)) => *before += len,
            _ => self.parts.push(Part::Zeros(len)),
        }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none: the read began at or behind the end of the file.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes, in as few slices as memory allows.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().flat_map(move |part| {
            let (first, mut zeros) = match part {
                Part::Owned(bytes) => ((**bytes).as_ref(), 0),
                Part::Lent { offset, len } => (self.lent_bytes(*offset, *len), 0),
                Part::Zeros(len) => (&[][..], *len),
            };
            let zeros = std::iter::from_fn(move || {
                let n = zeros.min(ZEROS.len());
                zeros -= n;
                (n > 0).then(|| &ZEROS[..n])
            });
            Some(first).filter(|bytes| !bytes.is_empty()).into_iter().chain(zeros)
        })
    }

    fn lent_bytes(&self, offset: u64, len: usize) -> &[u8] {
        let Some(loan) = &self.loan else { return &[] };
        // SAFETY: `ptr` checks the range. Its frames were pinned before they were pushed and stay so until `self` is
        // dropped; pinned frames are neither written nor reused, and the arena lives as long as the loan.
        unsafe { std::slice::from_raw_parts(loan.arena.ptr(offset, len), len) }
    }

    /// Gives all bytes back; the loan stays.
    pub fn clear(&mut self) {
        self.len = 0;
        for part in std::mem::take(&mut self.parts) {
            if let (Some(loan), Part::Lent { offset, len }) = (&self.loan, part) {
                let frames = offset / PAGE as u64..(offset + len as u64).div_ceil(PAGE as u64);
                frames.for_each(|f| loan.pins.unpin(FrameNo(f as u32)));
            }
        }
    }

    /// A copy of all bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.len);
        self.slices().for_each(|slice| all.extend_from_slice(slice));
        all
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.clear();
        self.loan.iter().for_each(|loan| loan.lender.returned(loan.bytes));
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Owned(bytes) => write!(f, "{} bytes", (**bytes).as_ref().len()),
            Part::Lent { offset, len } => write!(f, "{len} bytes lent at {offset}"),
            Part::Zeros(len) => write!(f, "{len} zeros"),
        }
    }
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "up to {} bytes", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{PageCache, PageKey};
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Default)]
    struct Count(AtomicUsize);
    impl Lender for Count {
        fn returned(&self, bytes: usize) {
            self.0.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    #[test]
    fn lent_frames_outlive_their_page() {
        let mut cache = PageCache::new(Arc::new(Arena::new(8 * PAGE).unwrap()));
        let (first, n) = cache.insert_run(PageKey { file: 1, page: 0 }, 2).unwrap();
        assert_eq!(n, 2);
        let second = FrameNo(first.0 + 1);
        for (frame, byte) in [(first, 1u8), (second, 2)] {
            cache.arena().copy_in(frame.offset(), &[byte; PAGE]);
            cache.set_valid(frame);
            cache.pin(frame);
        }
        let lender = Arc::new(Count::default());
        let mut pages = Pages::lent(cache.arena().clone(), cache.pins().clone(), lender.clone(), 3 * PAGE);
        pages.push_frame(first, 4000, 96);
        pages.push_frame(second, 0, 10);
        pages.push_zeros(100_000);
        let want = [&[1; 96][..], &[2; 10], &[0; 100_000]].concat();
        cache.remove(first);
        let new = cache.replace(second, false).unwrap();
        cache.arena().zero(new.offset(), PAGE);
        assert_eq!((pages.len(), pages.to_vec()), (want.len(), want));
        assert_eq!(pages.slices().count(), 3, "neighbouring frames are one slice");
        assert!(cache.is_pinned(first) && cache.is_pinned(second));
        drop(pages);
        assert!(!cache.is_pinned(first) && !cache.is_pinned(second));
        assert_eq!(lender.0.load(Ordering::Relaxed), 3 * PAGE);
    }
}

//! Images that were seen already in one run, so that equal ones are mounted once.
//!
//! Images of one run differ only where the run wrote, so these pages tell them apart: two hashes of 64 bits each over all of
//! them. Two images that differ are taken for one with a chance of about 2^-128 for each pair. The engine puts random
//! numbers into what it writes, so images of different runs are never equal.

use crate::compare::Picture;
use media::SimFlash;
use media::flash::{Event, Trace};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

const PAGE: u64 = 4096;
/// Runs that wrote to more pages have few equal images, and comparing them costs as much as mounting them.
const PAGES_MAX: usize = 2048;

/// What the images of one run show.
pub(super) struct Memo {
    /// Pages that the run wrote; `None`: too many.
    pages: Option<Vec<u64>>,
    seen: HashMap<[u64; 2], Arc<Picture>>,
}

impl Memo {
    pub fn new(trace: &Trace) -> Memo {
        let mut pages = BTreeSet::new();
        for event in trace.events() {
            if let Event::Submit(write) = event
                && pages.len() <= PAGES_MAX
            {
                pages.extend(write.offset / PAGE..(write.offset + write.len).div_ceil(PAGE));
            }
        }
        let few = pages.len() <= PAGES_MAX;
        Memo { pages: few.then(|| pages.into_iter().collect()), seen: HashMap::new() }
    }

    /// What `image` shows, by `look` unless it is known. An image that cannot be read is not kept.
    pub fn get(
        &mut self,
        image: &SimFlash,
        look: impl FnOnce() -> Result<Picture, String>,
    ) -> Result<Arc<Picture>, String> {
        let Some(pages) = &self.pages else { return look().map(Arc::new) };
        let key = hash(image, pages);
        if let Some(known) = self.seen.get(&key) {
            return Ok(known.clone());
        }
        let picture = Arc::new(look()?);
        self.seen.insert(key, picture.clone());
        Ok(picture)
    }
}

fn hash(image: &SimFlash, pages: &[u64]) -> [u64; 2] {
    let mut bytes = [0; PAGE as usize];
    let (mut a, mut b) = (0x243F_6A88_85A3_08D3u64, 0x1319_8A2E_0370_7344u64);
    for page in pages {
        image.peek(page * PAGE, &mut bytes);
        for word in bytes.chunks_exact(8) {
            let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            a = (a ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
            b = (b.rotate_left(23) ^ word).wrapping_mul(0xD6E8_FEB8_6659_FD93) ^ (b >> 31);
        }
    }
    [a, b]
}

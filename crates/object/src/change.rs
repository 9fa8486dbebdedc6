//! What is changed of a file and not in the store yet: an overlay over the old object.
//!
//! A byte of the file is, in this order: in an upload that is not completed (`sent`, from the start of the file on), in memory, in the old object
//! (below `kept`), or zero. Invariants: extents are not empty, do not overlap, and lie between `sent` and `size`; `kept <= size`.
//!
//! Tested against a vector of bytes below, and with what makes an object of it in `plan`.

use crate::pool::Buffer;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;

/// Where bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In parts of an upload that is not completed: they cannot be read.
    Sent,
    /// In memory.
    Memory,
    /// In the old object, at the same offset.
    Old,
    /// Nowhere: zeros.
    Hole,
}

/// What an extent takes at least, however few bytes it has: its place in the map, and the allocator's.
const EXTENT: u64 = 100;

/// Memory that counts for an extent of so many bytes.
fn cost(len: usize) -> u64 {
    EXTENT.max(len as u64)
}

/// See the module.
#[derive(Debug, Default)]
pub struct Change {
    size: u64,
    kept: u64,
    sent: u64,
    extents: BTreeMap<u64, Buffer>,
    bytes: u64,
}

impl Change {
    /// No change of an object of `size` bytes.
    pub fn none(size: u64) -> Change {
        Change { size, kept: size, ..Change::default() }
    }

    /// Size of the file.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// From where on bytes are not in an upload.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Whether bytes behind what was sent may be those of the old object.
    pub fn keeps(&self) -> bool {
        self.kept > self.sent
    }

    /// Memory that counts for the bytes in it.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the file is the old object of `size` bytes, unchanged.
    pub fn is_none(&self, size: u64) -> bool {
        self.sent == 0 && self.bytes == 0 && self.size == size && self.kept == size
    }

    /// Puts bytes at `offset`, which must not be below `sent`. Memory is taken in pieces of `piece` bytes at most. Returns by how many bytes the
    /// memory grew.
    pub fn write(&mut self, mut offset: u64, mut from: &[u8], piece: usize) -> u64 {
        assert!(offset >= self.sent, "what was sent is not written again");
        let before = self.bytes;
        self.size = self.size.max(offset + from.len() as u64);
        while !from.is_empty() {
            let next = self.extents.range(offset + 1..).next().map_or(u64::MAX, |(&start, _)| start);
            let room = ((next - offset) as usize).min(from.len());
            let n = match self.extents.range_mut(..=offset).next_back() {
                Some((&start, extent)) if offset < start + extent.len() as u64 => {
                    let at = (offset - start) as usize;
                    let n = (extent.len() - at).min(from.len());
                    extent[at..at + n].copy_from_slice(&from[..n]);
                    n
                }
                Some((&start, extent)) if offset == start + extent.len() as u64 && extent.len() < piece => {
                    let n = room.min(piece - extent.len());
                    self.bytes += cost(extent.len() + n) - cost(extent.len());
                    extent.extend(&from[..n], piece);
                    n
                }
                before => {
                    // Who has filled a piece will most likely fill the next one.
                    let follows = before.is_some_and(|(&start, e)| start + e.len() as u64 == offset)
                        || (offset == self.sent && offset > 0);
                    let n = room.min(piece);
                    let mut extent = Buffer::with_capacity(if follows { piece } else { n });
                    extent.extend(&from[..n], n);
                    self.extents.insert(offset, extent);
                    self.bytes += cost(n);
                    n
                }
            };
            offset += n as u64;
            from = &from[n..];
        }
        self.bytes - before
    }

    /// Sets the size; what is cut off is gone, what is added is zero. The size must not be below `sent`. Returns by how many bytes the memory
    /// shrank.
    pub fn truncate(&mut self, size: u64) -> u64 {
        assert!(size >= self.sent, "what was sent is not cut");
        let before = self.bytes;
        self.bytes -= self.extents.split_off(&size).values().map(|e| cost(e.len())).sum::<u64>();
        if let Some((&start, extent)) = self.extents.iter_mut().next_back() {
            let keep = extent.len().min((size - start) as usize);
            self.bytes -= cost(extent.len()) - cost(keep);
            extent.truncate(keep);
        }
        self.kept = self.kept.min(size);
        self.size = size;
        before - self.bytes
    }

    /// Where the bytes of a range are, in order, up to the end of the file.
    pub fn places(&self, range: Range<u64>) -> Vec<(Range<u64>, Place)> {
        let mut out: Vec<(Range<u64>, Place)> = Vec::new();
        let end = range.end.min(self.size);
        let mut at = range.start;
        let mut push = |range: Range<u64>, place| match out.last_mut() {
            Some((last, same)) if *same == place && last.end == range.start => last.end = range.end,
            _ => out.push((range, place)),
        };
        if at < self.sent.min(end) {
            push(at..self.sent.min(end), Place::Sent);
            at = self.sent.min(end);
        }
        while at < end {
            let covering = self.extents.range(..=at).next_back();
            let in_memory = covering.map(|(&start, e)| start + e.len() as u64).filter(|&e| e > at);
            let next = self.extents.range(at + 1..).next().map_or(end, |(&start, _)| start.min(end));
            let (to, place) = match in_memory {
                Some(to) => (to.min(end), Place::Memory),
                None if at < self.kept => (next.min(self.kept), Place::Old),
                None => (next, Place::Hole),
            };
            push(at..to, place);
            at = to;
        }
        out
    }

    /// Copies what is in memory of a range that lies there in whole.
    pub fn copy(&self, range: Range<u64>, to: &mut [u8]) {
        let mut at = range.start;
        while at < range.end {
            let (&start, extent) = self.extents.range(..=at).next_back().expect("the range is in memory");
            let from = (at - start) as usize;
            let n = (extent.len() - from).min((range.end - at) as usize);
            assert!(n > 0, "the range is in memory");
            to[(at - range.start) as usize..][..n].copy_from_slice(&extent[from..from + n]);
            at += n as u64;
        }
    }

    /// Bytes that stand in memory without a gap from `sent` on.
    pub fn ready(&self) -> u64 {
        let mut at = self.sent;
        for (&start, extent) in self.extents.range(self.sent..) {
            if start != at {
                break;
            }
            at += extent.len() as u64;
        }
        at - self.sent
    }

    /// Takes the first `len` bytes of what is [`Change::ready`] out of memory: from now on they count as sent. Also returns by how much the
    /// memory shrank.
    pub fn send(&mut self, len: usize) -> (Bytes, u64) {
        assert!(len as u64 <= self.ready());
        let before = self.bytes;
        let whole = self.extents.get(&self.sent).is_some_and(|e| e.len() == len);
        let bytes = match whole {
            true => self.extents.remove(&self.sent).expect("it is there").freeze(),
            false => {
                let mut out = Buffer::zeroed(len);
                self.copy(self.sent..self.sent + len as u64, &mut out);
                self.forget(self.sent + len as u64);
                return (out.freeze(), before - self.bytes);
            }
        };
        self.bytes -= cost(len);
        self.sent += len as u64;
        (bytes, cost(len))
    }

    /// What was sent is an object by now, and with it what the old one had: all of that is at the same place in the new one.
    pub fn land(&mut self) {
        self.kept = self.kept.max(self.sent);
        self.sent = 0;
    }

    /// From now on the bytes up to `to` count as sent. What of them was in memory is forgotten; returns how many bytes that was.
    pub fn forget(&mut self, to: u64) -> u64 {
        assert!(self.sent <= to && to <= self.size);
        let before = self.bytes;
        let mut rest = self.extents.split_off(&to);
        if let Some((start, mut last)) = self.extents.pop_last()
            && start + last.len() as u64 > to
        {
            rest.insert(to, last.split_off((to - start) as usize));
        }
        self.extents = rest;
        self.bytes = self.extents.values().map(|e| cost(e.len())).sum();
        self.sent = to;
        before - self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The bytes that the change stands for.
    fn bytes(change: &Change, old: &[u8], sent: &[u8]) -> Vec<u8> {
        let mut out = vec![0; change.size() as usize];
        for (range, place) in change.places(0..u64::MAX) {
            let r = range.start as usize..range.end as usize;
            match place {
                Place::Memory => change.copy(range, &mut out[r]),
                Place::Old => out[r.clone()].copy_from_slice(&old[r]),
                Place::Sent => out[r.clone()].copy_from_slice(&sent[r]),
                Place::Hole => {}
            }
        }
        out
    }

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, usize, u8),
        Truncate(u64),
        Send(usize),
        Copy(u64),
        Land,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..120u64, 1..40usize, 1..255u8).prop_map(|(o, n, b)| Step::Write(o, n, b)),
            1 => (0..150u64).prop_map(Step::Truncate),
            1 => (1..30usize).prop_map(Step::Send),
            1 => (1..30u64).prop_map(Step::Copy),
            1 => Just(Step::Land),
        ];
        proptest::collection::vec(step, 1..30)
    }

    proptest! {
        #[test]
        fn as_a_vector_of_bytes(mut old in proptest::collection::vec(any::<u8>(), 0..100), steps in steps(), piece in 1..20usize) {
            let (mut change, mut model, mut sent) = (Change::none(old.len() as u64), old.clone(), Vec::new());
            let mut memory = 0;
            for step in steps {
                match step {
                    Step::Write(offset, n, b) => {
                        let offset = offset + change.sent();
                        let data: Vec<u8> = (0..n).map(|i| b.wrapping_add(i as u8)).collect();
                        memory += change.write(offset, &data, piece);
                        let end = offset as usize + n;
                        model.resize(model.len().max(end), 0);
                        model[offset as usize..end].copy_from_slice(&data);
                    }
                    Step::Truncate(size) => {
                        let size = size.max(change.sent());
                        memory -= change.truncate(size);
                        model.resize(size as usize, 0);
                    }
                    Step::Send(n) => {
                        let n = n.min(change.ready() as usize);
                        let (bytes, shrank) = change.send(n);
                        memory -= shrank;
                        sent.extend_from_slice(&bytes);
                    }
                    Step::Copy(n) => {
                        let to = (change.sent() + n).min(change.size());
                        sent.extend_from_slice(&model[sent.len()..to as usize]);
                        memory -= change.forget(to);
                    }
                    Step::Land => {
                        change.land();
                        (old, sent) = (model.clone(), Vec::new());
                    }
                }
                prop_assert_eq!(change.bytes(), memory);
                prop_assert_eq!(change.extents.values().map(|e| cost(e.len())).sum::<u64>(), memory);
                prop_assert_eq!(&bytes(&change, &old, &sent), &model);
            }
        }
    }

    #[test]
    fn a_stream_leaves_without_being_copied() {
        let mut change = Change::none(0);
        for i in 0..32 {
            change.write(i * 128, &[i as u8; 128], 1024);
        }
        assert_eq!(change.extents.len(), 4);
        let at = change.extents.values().nth(1).unwrap().as_ptr();
        assert_eq!((change.send(1024).0.len(), change.send(1024).0.as_ptr()), (1024, at));
        assert!(!change.is_none(0));
    }
}

//! Sparse bytes of a simulated device, shared between copies.
//!
//! A tree with 64 children per node over 4 KiB pages. A subtree of one repeated byte is that byte, so that a fresh device
//! and a discard of all of it cost nothing. Copies share nodes until one of them writes: a copy costs one reference count,
//! a write after it costs one page and one node per level.

use std::sync::Arc;

const PAGE: u64 = 4096;
const FAN: u64 = 64;
const FAN_BITS: u32 = FAN.trailing_zeros();

#[derive(Clone)]
enum Node {
    /// All bytes are this one.
    Fill(u8),
    /// Level 0: bytes of one page.
    Page(Arc<[u8; PAGE as usize]>),
    /// Level 1 and above.
    Inner(Arc<[Node; FAN as usize]>),
}

/// What is put into a range.
#[derive(Clone, Copy)]
enum Source<'a> {
    Bytes(&'a [u8]),
    Fill(u8),
}

/// Bytes of a device. Zero at first.
#[derive(Clone)]
pub struct Contents {
    root: Node,
    /// Level of the root.
    level: u32,
}

/// Bytes that a node spans.
fn span(level: u32) -> u64 {
    PAGE << (level * FAN_BITS)
}

impl Contents {
    /// Zeros, `bytes` of them or more (at most 2^60).
    pub fn new(bytes: u64) -> Contents {
        assert!(bytes <= 1 << 60, "device too large to simulate");
        let level = (0..).find(|&level| span(level) >= bytes).unwrap_or(0);
        Contents { root: Node::Fill(0), level }
    }

    /// Copies bytes out. The range must lie within the contents.
    pub fn read(&self, offset: u64, to: &mut [u8]) {
        assert!(offset + to.len() as u64 <= span(self.level));
        get(&self.root, self.level, offset, to);
    }

    /// Replaces bytes. The range must lie within the contents.
    pub fn write(&mut self, offset: u64, from: &[u8]) {
        self.put(offset, from.len() as u64, Source::Bytes(from));
    }

    /// Sets a range to one byte. The range must lie within the contents.
    pub fn fill(&mut self, offset: u64, len: u64, byte: u8) {
        self.put(offset, len, Source::Fill(byte));
    }

    fn put(&mut self, offset: u64, len: u64, source: Source<'_>) {
        assert!(offset + len <= span(self.level));
        if len > 0 {
            put(&mut self.root, self.level, offset, len, source);
        }
    }
}

fn get(node: &Node, level: u32, at: u64, to: &mut [u8]) {
    match node {
        Node::Fill(byte) => to.fill(*byte),
        Node::Page(page) => to.copy_from_slice(&page[at as usize..at as usize + to.len()]),
        Node::Inner(children) => {
            let step = span(level - 1);
            let (mut at, mut to) = (at, to);
            while !to.is_empty() {
                let inside = at % step;
                let n = (step - inside).min(to.len() as u64);
                let (part, rest) = to.split_at_mut(n as usize);
                get(&children[(at / step) as usize], level - 1, inside, part);
                (at, to) = (at + n, rest);
            }
        }
    }
}

fn put(node: &mut Node, level: u32, at: u64, len: u64, source: Source<'_>) {
    if let (Source::Fill(byte), true) = (source, len == span(level)) {
        *node = Node::Fill(byte);
        return;
    }
    if let Node::Fill(byte) = *node {
        *node = match level {
            0 => Node::Page(Arc::new([byte; PAGE as usize])),
            _ => Node::Inner(Arc::new(std::array::from_fn(|_| Node::Fill(byte)))),
        };
    }
    match node {
        Node::Page(page) => {
            let part = &mut Arc::make_mut(page)[at as usize..(at + len) as usize];
            match source {
                Source::Bytes(from) => part.copy_from_slice(from),
                Source::Fill(byte) => part.fill(byte),
            }
        }
        Node::Inner(children) => {
            let children = Arc::make_mut(children);
            let step = span(level - 1);
            let mut done = 0;
            while done < len {
                let inside = (at + done) % step;
                let n = (step - inside).min(len - done);
                let part = match source {
                    Source::Bytes(from) => Source::Bytes(&from[done as usize..(done + n) as usize]),
                    Source::Fill(byte) => Source::Fill(byte),
                };
                put(&mut children[((at + done) / step) as usize], level - 1, inside, n, part);
                done += n;
            }
        }
        Node::Fill(_) => unreachable!("replaced above"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn like_a_vector() {
        let mut model = vec![0u8; 3 << 20];
        let mut contents = Contents::new(model.len() as u64);
        let mut x = 7u64;
        for round in 0..400u32 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = (x >> 20) as usize % (model.len() - 1);
            let len = ((x >> 44) as usize % 400_000).min(model.len() - at);
            if round % 3 == 0 {
                model[at..at + len].fill(round as u8);
                contents.fill(at as u64, len as u64, round as u8);
            } else {
                let data: Vec<u8> = (0..len).map(|i| (i as u32 ^ round) as u8).collect();
                model[at..at + len].copy_from_slice(&data);
                contents.write(at as u64, &data);
            }
        }
        let mut all = vec![1; model.len()];
        contents.read(0, &mut all);
        assert!(all == model);
    }

    #[test]
    fn copies_are_independent() {
        let mut one = Contents::new(8 << 40);
        one.fill(0, 8 << 40, 0xDD);
        one.write((5 << 40) + 1, b"one");
        let mut two = one.clone();
        two.write((5 << 40) + 1, b"two");
        let mut back = [0; 5];
        one.read(5 << 40, &mut back);
        assert_eq!(&back, b"\xddone\xdd");
        two.read(5 << 40, &mut back);
        assert_eq!(&back, b"\xddtwo\xdd");
    }
}

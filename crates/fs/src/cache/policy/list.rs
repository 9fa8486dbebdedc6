//! Entries found by key and linked in queues: what LRU and S3-FIFO are made of.
//!
//! Invariants: an entry is in exactly one queue; a queue's `len` and `bytes` are those of its entries. Links are indexes
//! into one vector, and slots of entries that were taken out are used again, so there is no `unsafe` and little memory.

use super::Key;
use hashbrown::HashMap;

const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Node<K> {
    key: K,
    size: u64,
    /// Uses since the entry last moved; what it means is the policy's business.
    count: u8,
    queue: u8,
    prev: u32,
    next: u32,
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    head: u32,
    tail: u32,
    len: usize,
    bytes: u64,
}

/// `Q` queues over one index.
#[derive(Debug)]
pub(super) struct Queues<K, const Q: usize> {
    nodes: Vec<Node<K>>,
    unused: Vec<u32>,
    index: HashMap<K, u32, foldhash::fast::FixedState>,
    queues: [Queue; Q],
}

impl<K: Key, const Q: usize> Queues<K, Q> {
    pub(super) fn new() -> Self {
        let empty = Queue { head: NONE, tail: NONE, len: 0, bytes: 0 };
        let index = HashMap::with_hasher(foldhash::fast::FixedState::with_seed(0x5eed));
        Queues { nodes: Vec::new(), unused: Vec::new(), index, queues: [empty; Q] }
    }

    pub(super) fn len(&self, queue: usize) -> usize {
        self.queues[queue].len
    }

    pub(super) fn bytes(&self, queue: usize) -> u64 {
        self.queues[queue].bytes
    }

    /// Where the entry is.
    pub(super) fn queue_of(&self, key: K) -> Option<usize> {
        self.index.get(&key).map(|&n| self.nodes[n as usize].queue as usize)
    }

    /// The entry that has been in the queue for the longest time, and its count.
    pub(super) fn front(&self, queue: usize) -> Option<(K, u8)> {
        let head = self.queues[queue].head;
        (head != NONE).then(|| (self.nodes[head as usize].key, self.nodes[head as usize].count))
    }

    /// Puts a new entry at the end of a queue. Requires that it is in none.
    pub(super) fn push(&mut self, queue: usize, key: K, size: u64) {
        let node = Node { key, size, count: 0, queue: queue as u8, prev: NONE, next: NONE };
        let n = match self.unused.pop() {
            Some(n) => {
                self.nodes[n as usize] = node;
                n
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
        };
        let before = self.index.insert(key, n);
        debug_assert!(before.is_none(), "entry is already in a queue");
        self.link(queue, n);
    }

    /// Moves an entry to the end of a queue and gives it a count. Requires that it is there.
    pub(super) fn shift(&mut self, queue: usize, key: K, count: u8) {
        let n = self.index[&key];
        self.unlink(n);
        self.nodes[n as usize].count = count;
        self.link(queue, n);
    }

    /// Counts a use, up to `most`, and takes note of the size. Requires that the entry is there.
    pub(super) fn used(&mut self, key: K, size: u64, most: u8) {
        let node = &mut self.nodes[self.index[&key] as usize];
        node.count = (node.count + 1).min(most);
        let queue = &mut self.queues[node.queue as usize];
        queue.bytes = queue.bytes - node.size + size;
        node.size = size;
    }

    /// Takes an entry out, whichever queue it is in; its size.
    pub(super) fn take(&mut self, key: K) -> Option<u64> {
        let n = self.index.remove(&key)?;
        self.unlink(n);
        self.unused.push(n);
        Some(self.nodes[n as usize].size)
    }

    fn link(&mut self, queue: usize, n: u32) {
        let q = &mut self.queues[queue];
        let tail = q.tail;
        q.tail = n;
        q.len += 1;
        q.bytes += self.nodes[n as usize].size;
        if tail == NONE {
            q.head = n;
        } else {
            self.nodes[tail as usize].next = n;
        }
        let node = &mut self.nodes[n as usize];
        (node.prev, node.next, node.queue) = (tail, NONE, queue as u8);
    }

    fn unlink(&mut self, n: u32) {
        let Node { prev, next, queue, size, .. } = self.nodes[n as usize];
        let q = &mut self.queues[queue as usize];
        q.len -= 1;
        q.bytes -= size;
        match prev {
            NONE => q.head = next,
            p => self.nodes[p as usize].next = next,
        }
        match next {
            NONE => self.queues[queue as usize].tail = prev,
            x => self.nodes[x as usize].prev = prev,
        }
    }
}

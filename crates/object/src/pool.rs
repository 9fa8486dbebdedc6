//! Memory for large pieces of data, used again.
//!
//! Memory that comes fresh from the system is cleared page by page when it is touched first, which costs as much as copying into it. So a buffer that
//! is not needed any more is kept for the next one, as long as others are in use: an idle mount keeps none. With many in use none is kept either: those
//! that are half full would take as much memory as full ones.

use bytes::Bytes;
use parking_lot::Mutex;
use std::ops::{Deref, DerefMut};

/// Smaller buffers are left to the allocator, bytes.
const LEAST: usize = 256 << 10;
/// More buffers in use are many.
const MANY: usize = 16;
/// Most memory that is kept, bytes.
const KEPT: usize = 40 << 20;

static SHELF: Mutex<Shelf> = Mutex::new(Shelf { free: Vec::new(), kept: 0, used: 0 });

struct Shelf {
    free: Vec<Vec<u8>>,
    /// Bytes in `free`.
    kept: usize,
    /// Buffers in use.
    used: usize,
}

impl Shelf {
    /// Memory for `n` bytes that is there; the last one put back is the likeliest to be in the processor's cache.
    fn take(&mut self, n: usize) -> Option<Vec<u8>> {
        self.used += 1;
        if self.used > MANY {
            return None;
        }
        let fits = |bytes: &Vec<u8>| (n..=2 * n).contains(&bytes.capacity());
        let bytes = self.free.remove(self.free.iter().rposition(fits)?);
        self.kept -= bytes.capacity();
        Some(bytes)
    }

    /// Takes memory back. What is returned is to be freed.
    fn put(&mut self, mut bytes: Vec<u8>) -> Vec<Vec<u8>> {
        self.used -= 1;
        bytes.clear();
        if self.used >= MANY || self.kept + bytes.capacity() > KEPT {
            return vec![bytes];
        }
        self.kept += bytes.capacity();
        self.free.push(bytes);
        if self.used > 0 {
            return Vec::new();
        }
        self.kept = 0;
        std::mem::take(&mut self.free)
    }
}

/// Bytes in such memory. As a vector, which must not be replaced.
#[derive(Debug, Default)]
pub struct Buffer(Vec<u8>);

impl Buffer {
    /// An empty one that can hold `n` bytes.
    pub fn with_capacity(n: usize) -> Buffer {
        if n < LEAST {
            return Buffer(Vec::with_capacity(n));
        }
        let found = SHELF.lock().take(n);
        Buffer(found.unwrap_or_else(|| Vec::with_capacity(n)))
    }

    /// `n` zeros.
    pub fn zeroed(n: usize) -> Buffer {
        let mut buffer = Buffer::with_capacity(n);
        buffer.0.resize(n, 0);
        buffer
    }

    /// Appends bytes. When there is no room for them, memory for `whole` bytes in all is taken first.
    pub fn extend(&mut self, from: &[u8], whole: usize) {
        if self.0.len() + from.len() > self.0.capacity() {
            let mut larger = Buffer::with_capacity(whole.max(self.0.len() + from.len()));
            larger.0.extend_from_slice(&self.0);
            *self = larger;
        }
        self.0.extend_from_slice(from);
    }

    /// The bytes from `at` on, which are not in here any more.
    pub fn split_off(&mut self, at: usize) -> Buffer {
        let mut tail = Buffer::with_capacity(self.0.len() - at);
        tail.0.extend_from_slice(&self.0[at..]);
        self.0.truncate(at);
        tail
    }

    /// Cuts it to `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }

    /// The bytes, not to be changed any more. The memory is put back when the last of their owners is gone.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.0.capacity() >= LEAST {
            let rest = SHELF.lock().put(std::mem::take(&mut self.0));
            // Not under the lock.
            drop(rest);
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_while_some_is_in_use() {
        let mut shelf = Shelf { free: Vec::new(), kept: 0, used: 0 };
        assert!(shelf.take(LEAST).is_none() && shelf.take(8 * LEAST).is_none());
        assert!(shelf.put(vec![1; 8 * LEAST]).is_empty());
        assert!(shelf.take(3 * LEAST).is_none(), "too large for that");
        let again = shelf.take(6 * LEAST).unwrap();
        assert_eq!((again.len(), again.capacity(), shelf.kept), (0, 8 * LEAST, 0));
        assert!(shelf.put(again).is_empty());
        assert_eq!(shelf.put(Vec::with_capacity(KEPT)).len(), 1, "no more than that is kept");
        assert_eq!((shelf.put(Vec::with_capacity(LEAST)).len(), shelf.kept), (2, 0), "nobody needs any");
    }

    #[test]
    fn grows_and_is_cut() {
        let mut buffer = Buffer::with_capacity(2);
        buffer.extend(b"ab", 10);
        buffer.extend(b"cdef", 10);
        let tail = buffer.split_off(4);
        assert_eq!((&*buffer, &*tail), (&b"abcd"[..], &b"ef"[..]));
        buffer.truncate(1);
        assert_eq!(&*buffer.freeze(), b"a");
    }
}

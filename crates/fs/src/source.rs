//! What a write takes its bytes from.

/// Bytes that are to be written. Others may change them meanwhile, as a client can with memory that it shares with its manager: an engine
/// copies them once, to where they belong, and looks at its copy only.
pub trait Source: Send + Sync {
    /// How many there are.
    fn len(&self) -> usize;

    /// Copies `to.len()` bytes from `at` on. What is copied a second time need not be the same. Panics when there are not so many.
    fn copy(&self, at: usize, to: &mut [u8]);

    /// All of them, where nobody can change them.
    fn bytes(&self) -> Option<&[u8]>;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Source for &[u8] {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn copy(&self, at: usize, to: &mut [u8]) {
        to.copy_from_slice(&self[at..at + to.len()]);
    }

    fn bytes(&self) -> Option<&[u8]> {
        Some(self)
    }
}

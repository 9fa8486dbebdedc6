//! What the workloads do, over any file system: the library of Freehold, and system calls on a mounted directory.
//!
//! Both sides get the same paths (one directory below the root, relative) and make the call that a careful program would
//! make; neither is given a short cut that the other could not have.

use super::sample::DeviceOps;
use anyhow::Result;

/// A relative path made of `dir/` and a letter with seven digits, ready for both sides (with and without NUL).
#[derive(Clone, Copy)]
pub struct Name {
    bytes: [u8; 32],
    len: usize,
}

impl Name {
    /// The template: number 0.
    pub fn new(dir: &str, letter: u8) -> Name {
        let mut name = Name { bytes: [0; 32], len: dir.len() + 9 };
        assert!(name.len < 32, "a directory name of at most 22 bytes");
        name.bytes[..dir.len()].copy_from_slice(dir.as_bytes());
        name.bytes[dir.len()] = b'/';
        name.bytes[dir.len() + 1] = letter;
        name.set(0);
        name
    }

    /// Changes the number.
    #[inline]
    pub fn set(&mut self, number: u32) -> &Name {
        let mut n = number;
        for i in (self.len - 7..self.len).rev() {
            self.bytes[i] = b'0' + (n % 10) as u8;
            n /= 10;
        }
        self
    }

    /// For the library.
    #[inline]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }

    /// For system calls.
    #[inline]
    pub fn as_c_str(&self) -> &std::ffi::CStr {
        std::ffi::CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// O_WRONLY | O_CREAT | O_EXCL
    New,
    /// O_WRONLY | O_CREAT | O_EXCL | O_APPEND
    NewAppend,
    /// O_RDONLY
    Read,
    /// O_RDWR
    Write,
}

/// A file system under test. Calls may come from many threads.
pub trait Subject: Sync {
    /// An open file.
    type File: Send + Sync;
    /// Makes a directory.
    fn mkdir(&self, dir: &str) -> Result<()>;
    /// Opens or makes a file.
    fn open(&self, name: &Name, how: How) -> Result<Self::File>;
    /// Closes it.
    fn close(&self, file: Self::File) -> Result<()>;
    /// Size, by path.
    fn stat(&self, name: &Name) -> Result<u64>;
    /// Removes a name.
    fn unlink(&self, name: &Name) -> Result<()>;
    /// Removes an empty directory.
    fn rmdir(&self, dir: &str) -> Result<()>;
    /// Moves a name.
    fn rename(&self, from: &Name, to: &Name) -> Result<()>;
    /// Number of entries and sum of their names' lengths, without the dots.
    fn list(&self, dir: &str) -> Result<(u64, u64)>;
    /// Reads at an offset; all of it, or an error.
    fn read_at(&self, file: &Self::File, to: &mut [u8], offset: u64) -> Result<()>;
    /// Writes at an offset (at the end, when opened so); all of it, or an error.
    fn write_at(&self, file: &Self::File, from: &[u8], offset: u64) -> Result<()>;
    /// fsync(2)
    fn fsync(&self, file: &Self::File) -> Result<()>;
    /// Order between what was done before and what is done later, without waiting; `None` where there is no such call.
    fn barrier(&self, _file: &Self::File) -> Option<Result<()>> {
        None
    }
    /// syncfs(2)
    fn sync(&self) -> Result<()>;
    /// Makes the next reads come from the device.
    fn drop_caches(&self) -> Result<()>;
    /// Requests to the device so far.
    fn device(&self) -> Option<DeviceOps>;
}

/// Numbers that look random and are the same in every run (SplitMix64).
pub struct Random(pub u64);

impl Random {
    /// The next one.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// The numbers below `n` in random order.
    pub fn order(&mut self, n: u32) -> Vec<u32> {
        let mut order: Vec<u32> = (0..n).collect();
        for i in (1..n as usize).rev() {
            order.swap(i, (self.draw() % (i as u64 + 1)) as usize);
        }
        order
    }

    /// Bytes that do not compress.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len.div_ceil(8)).flat_map(|_| self.draw().to_le_bytes()).take(len).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let mut name = Name::new("d0", b'f');
        assert_eq!(name.set(1_234_567).as_str(), "d0/f1234567");
        assert_eq!(name.set(42).as_c_str().to_bytes(), b"d0/f0000042");
    }

    #[test]
    fn an_order_has_each_number_once() {
        let mut order = Random(1).order(1000);
        assert_ne!(order[..10], (0..10).collect::<Vec<u32>>()[..]);
        order.sort_unstable();
        assert!(order.iter().copied().eq(0..1000));
    }
}

//! Memory that the device reads and writes itself, for files that were opened with DIRECT: nothing is copied.
//!
//! A transfer may outlive the call that began it, so the memory is not the caller's: it comes from a pool ([`Buffers`]) that the engine keeps
//! alive, and a buffer is handed over with the call and comes back with its result (as io_uring's registered buffers are used). Of a call that is
//! given up before its end the buffer is lost for the pool, as nobody says when the device is done with it.
//!
//! Tested in `block/tests/fixed.rs`.

use super::{Client, File};
use crate::contract::FileSystem;
use crate::error::{Error, Result};
use media::{Arena, ArenaId, BufRef, Memory};
use parking_lot::Mutex;
use std::fmt::{Debug, Formatter};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Buffers are whole blocks.
const UNIT: usize = 4096;

/// Memory of our own that is lent.
#[derive(Debug)]
struct Lent(Arena);

// SAFETY: the arena is mapped for reading and writing as long as it lives, which this value has it do.
unsafe impl Memory for Lent {
    fn range(&self) -> (*mut u8, usize) {
        (self.0.ptr(0, self.0.len()), self.0.len())
    }
}

/// A pool of buffers of one size, for calls such as [`File::read_fixed_at`]. Clones are the same pool.
pub struct Buffers<F: FileSystem>(Arc<Pool<F>>);

struct Pool<F: FileSystem> {
    fs: Arc<F>,
    memory: Arc<Lent>,
    /// What the engine calls it; `None`: it has no use for it, and copies.
    id: Option<ArenaId>,
    /// Of each buffer, bytes.
    size: usize,
    free: Mutex<Vec<usize>>,
}

impl<F: FileSystem> Drop for Pool<F> {
    fn drop(&mut self) {
        // Transfers that are under way keep the memory until they are over.
        if let Some(id) = self.id {
            self.fs.return_memory(id);
        }
    }
}

impl<F: FileSystem> Clone for Buffers<F> {
    fn clone(&self) -> Self {
        Buffers(self.0.clone())
    }
}

impl<F: FileSystem> Debug for Buffers<F> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buffers")
            .field("size", &self.0.size)
            .field("free", &self.0.free.lock().len())
            .finish()
    }
}

impl<F: FileSystem> Client<F> {
    /// A pool of `count` buffers of `size` bytes. With engines that have no device, calls copy between them and the cache. `Invalid` (no buffers, or not of whole
    /// blocks of 4 KiB), `TooLarge` (so much memory is not to be had), `Media` (it cannot be pinned, or mapped for the device: see RLIMIT_MEMLOCK in getrlimit(2)).
    pub fn buffers(&self, count: usize, size: usize) -> Result<Buffers<F>> {
        if count == 0 || size == 0 || !size.is_multiple_of(UNIT) || u32::try_from(size).is_err() {
            return Err(Error::Invalid("buffers must be some, and of whole blocks of 4 KiB"));
        }
        let whole = count.checked_mul(size).ok_or(Error::TooLarge)?;
        let memory = Arc::new(Lent(Arena::new(whole).map_err(|_| Error::TooLarge)?));
        let fs = self.fs().clone();
        let id = match fs.lend_memory(memory.clone()) {
            Ok(id) => Some(id),
            Err(Error::NotSupported(_)) => None,
            Err(e) => return Err(e),
        };
        let free = Mutex::new((0..count).rev().map(|n| n * size).collect());
        Ok(Buffers(Arc::new(Pool { fs, memory, id, size, free })))
    }
}

impl<F: FileSystem> Buffers<F> {
    /// A buffer that nobody uses, of the whole size and with whatever it was left with; `None`: all are in use.
    pub fn take(&self) -> Option<Buffer<F>> {
        let at = self.0.free.lock().pop()?;
        Some(Buffer { pool: self.0.clone(), at, len: self.0.size, is_lost: false })
    }
}

/// A buffer of a pool, to which it goes back when dropped. Its bytes are nobody else's.
pub struct Buffer<F: FileSystem> {
    pool: Arc<Pool<F>>,
    /// Where it is in the pool's memory.
    at: usize,
    len: usize,
    /// A transfer may be under way.
    is_lost: bool,
}

impl<F: FileSystem> Buffer<F> {
    /// How many of its bytes are transferred and seen from now on: at most the size of the pool's buffers (`Invalid`).
    pub fn resize(&mut self, len: usize) -> Result<()> {
        if len > self.pool.size {
            return Err(Error::Invalid("length of a buffer"));
        }
        self.len = len;
        Ok(())
    }

    fn place(&self) -> *mut u8 {
        self.pool.memory.0.ptr(self.at as u64, self.len)
    }
}

impl<F: FileSystem> Drop for Buffer<F> {
    fn drop(&mut self) {
        if !self.is_lost {
            self.pool.free.lock().push(self.at);
        }
    }
}

impl<F: FileSystem> Debug for Buffer<F> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buffer").field("at", &self.at).field("len", &self.len).finish()
    }
}

impl<F: FileSystem> Deref for Buffer<F> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `ptr` checked the range, which is mapped as long as the pool lives; the buffer has it alone: no other has this place until it is dropped,
        // and while a transfer is under way it is within the call (`transfer`), where nobody reaches its bytes.
        unsafe { std::slice::from_raw_parts(self.place(), self.len) }
    }
}

impl<F: FileSystem> DerefMut for Buffer<F> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.place(), self.len) }
    }
}

impl<F: FileSystem> File<F> {
    /// As [`File::read_at`] into a buffer, which is filled by the device itself where that can be: the file was opened with DIRECT, offset and length are those of whole
    /// blocks of 4 KiB, and nothing of it is in the page cache. Otherwise it is copied. Bytes behind those that were read are what they were.
    pub async fn read_fixed_at(&self, mut buffer: Buffer<F>, offset: u64) -> (Buffer<F>, Result<usize>) {
        let direct = async |to| self.fs().read_direct(self.handle(), offset, to).await;
        match self.transfer(&mut buffer, direct).await {
            Ok(None) => {}
            done => return (buffer, done.map(Option::unwrap_or_default)),
        }
        let read = self.read_at(&mut buffer, offset).await;
        (buffer, read)
    }

    /// As [`File::write_at`] from a buffer, which the device reads itself where that can be: as for [`File::read_fixed_at`], and it overwrites what has been
    /// written before. The device has what is written so when this returns; durable it is after [`File::fsync`].
    pub async fn write_fixed_at(&self, mut buffer: Buffer<F>, offset: u64) -> (Buffer<F>, Result<usize>) {
        let direct = async |from| self.fs().write_direct(self.handle(), offset, from).await;
        match self.transfer(&mut buffer, direct).await {
            Ok(None) => {}
            done => return (buffer, done.map(Option::unwrap_or_default)),
        }
        let written = self.write_at(&buffer, offset).await;
        (buffer, written)
    }

    /// `None`: it has to go through the cache.
    async fn transfer(
        &self,
        buffer: &mut Buffer<F>,
        direct: impl AsyncFnOnce(BufRef) -> Result<Option<usize>>,
    ) -> Result<Option<usize>> {
        let Some(arena) = buffer.pool.id.filter(|_| Arc::ptr_eq(&buffer.pool.fs, self.fs())) else {
            return Ok(None);
        };
        // Stays so when the call is given up here.
        buffer.is_lost = true;
        let done = direct(BufRef { arena, offset: buffer.at as u64, len: buffer.len as u32 }).await;
        buffer.is_lost = false;
        done
    }
}

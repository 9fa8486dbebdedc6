//! io_uring without any file system of ours: the yardstick of the data rows.
//!
//! One thread, O_DIRECT, registered file and buffers, a fixed number of requests in flight: what fio does with
//! `--ioengine=io_uring --direct=1 --fixedbufs --registerfiles`.

use super::stop;
use anyhow::{Context, Result, ensure};
use io_uring::{IoUring, opcode, types};
use media::Arena;
use rustix::fs::{Mode, OFlags};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// A file, a ring, and memory for the requests in flight.
pub struct Raw {
    // Dropped before the memory that its requests name.
    ring: IoUring,
    fd: OwnedFd,
    memory: Arena,
    block: usize,
    depth: usize,
}

impl Drop for Raw {
    /// A ring that is closed gives its file back some time later: until then the file system could not be unmounted.
    fn drop(&mut self) {
        let _ = self.ring.submitter().unregister_files();
    }
}

impl Raw {
    /// Opens a file that exists (or makes it), for requests of `block` bytes, `depth` at a time.
    pub fn open(path: &Path, block: usize, depth: usize) -> Result<Raw> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::DIRECT | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::from_raw_mode(0o600))
            .with_context(|| format!("opening {} for direct I/O", path.display()))?;
        let memory = Arena::new(block * depth)?;
        memory.copy_in(0, &super::subject::Random(7).bytes(block * depth));
        let entries = (depth as u32).next_power_of_two();
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(entries)
            .or_else(|_| IoUring::new(entries))
            .context("making an io_uring")?;
        let vectors: Vec<libc::iovec> = (0..depth)
            .map(|i| libc::iovec { iov_base: memory.ptr((i * block) as u64, block).cast(), iov_len: block })
            .collect();
        // SAFETY: the memory belongs to this object and is not touched by anybody else while requests are in flight; the
        // kernel keeps its pages pinned as long as the ring exists.
        unsafe { ring.submitter().register_buffers(&vectors) }.context("registering memory")?;
        ring.submitter().register_files(&[fd.as_raw_fd()])?;
        Ok(Raw { ring, fd, memory, block, depth })
    }

    /// Allocates the file.
    pub fn allocate(&self, bytes: u64) -> Result<()> {
        Ok(rustix::fs::fallocate(&self.fd, rustix::fs::FallocateFlags::empty(), 0, bytes)?)
    }

    /// Reads or writes one block at each of the offsets, as many at a time as the depth says. Returns how many there were.
    pub fn run(&mut self, write: bool, mut offsets: impl Iterator<Item = u64>) -> Result<u64> {
        let (mut free, mut flying, mut done) = ((0..self.depth).collect::<Vec<_>>(), 0, 0);
        let mut stopped = false;
        loop {
            while !stopped && let Some(slot) = free.pop() {
                let Some(offset) = offsets.next() else {
                    stopped = true;
                    break;
                };
                let memory = self.memory.ptr((slot * self.block) as u64, self.block);
                let (file, len) = (types::Fixed(0), self.block as u32);
                let entry = if write {
                    opcode::WriteFixed::new(file, memory, len, slot as u16).offset(offset).build()
                } else {
                    opcode::ReadFixed::new(file, memory, len, slot as u16).offset(offset).build()
                };
                // SAFETY: the memory of a free slot is used by no other request and lives as long as the ring; the
                // ring has an entry for each slot.
                unsafe { self.ring.submission().push(&entry.user_data(slot as u64)) }?;
                flying += 1;
            }
            if flying == 0 {
                return Ok(done);
            }
            match self.ring.submit_and_wait(1) {
                Err(e) if e.raw_os_error() != Some(libc::EINTR) => return Err(e.into()),
                _ => stopped |= stop::check().is_err(),
            }
            for completion in self.ring.completion() {
                let (n, slot) = (completion.result(), completion.user_data());
                if n < 0 {
                    return Err(std::io::Error::from_raw_os_error(-n).into());
                }
                ensure!(n as usize == self.block, "moved {n} of {} bytes", self.block);
                free.push(slot as usize);
                flying -= 1;
                done += 1;
            }
        }
    }

    /// fdatasync(2)
    pub fn flush(&self) -> Result<()> {
        Ok(rustix::fs::fdatasync(&self.fd)?)
    }

    /// Mean seconds of a 4 KiB (one block) overwrite with fdatasync, over `n` of them.
    pub fn flush_cost(&mut self, n: u32) -> Result<f64> {
        let start = std::time::Instant::now();
        for i in 0..n as u64 {
            stop::check()?;
            self.run(true, std::iter::once(i * self.block as u64))?;
            self.flush()?;
        }
        Ok(start.elapsed().as_secs_f64() / n.max(1) as f64)
    }
}

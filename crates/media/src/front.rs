//! What all media do with a request before they look at it: know the arenas, refuse what breaks the rules, count.
//!
//! The rules are the same everywhere, so that an engine which works on one medium is not refused by another:
//! - offset and length of reads, writes, discards and zeroing are multiples of the sector and lie within the device;
//! - so are offset and length of each buffer (direct I/O needs it), and buffers lie within registered arenas;
//! - a transfer is not empty, not larger than `max_transfer`, and has at most [`MAX_BUFS`] buffers;
//! - [`Flags::BARRIER`] only where the geometry has it; flags only on writes.
//!
//! Tested in tests/conformance.rs.

use crate::counters::{Counters, Meter};
use crate::{Arena, ArenaId, BufRef, Flags, Geometry, MediaError, Op, Request};
use parking_lot::RwLock;
use std::sync::Arc;

/// Most buffers of one transfer (IOV_MAX of Linux).
pub const MAX_BUFS: usize = 1024;

/// The common part of every medium.
pub(crate) struct Front {
    pub(crate) geometry: Geometry,
    pub(crate) meter: Meter,
    /// By [`ArenaId`]; `None`: it was unregistered.
    arenas: RwLock<Vec<Option<Arc<Arena>>>>,
}

impl Front {
    pub(crate) fn new(geometry: Geometry) -> Front {
        assert!(geometry.sector.is_power_of_two() && geometry.atomic_unit.is_power_of_two());
        assert!(geometry.sector >= 512 && geometry.atomic_unit >= geometry.sector);
        assert!(geometry.bytes.is_multiple_of(geometry.sector as u64));
        Front { geometry, meter: Meter::default(), arenas: RwLock::new(Vec::new()) }
    }

    pub(crate) fn counters(&self) -> Counters {
        self.meter.read()
    }

    pub(crate) fn refused(&self, why: &'static str) -> MediaError {
        MediaError::Refused { device: self.geometry.name.clone(), why }
    }

    pub(crate) fn io(&self, request: &Request, errno: i32) -> MediaError {
        let device = self.geometry.name.clone();
        MediaError::Io { device, op: op_name(request.op), offset: request.offset, errno }
    }

    pub(crate) fn short(&self, request: &Request, moved: u64) -> MediaError {
        let (device, op) = (self.geometry.name.clone(), op_name(request.op));
        MediaError::Short { device, op, offset: request.offset, moved, asked: request.len }
    }

    pub(crate) fn gone(&self) -> MediaError {
        MediaError::Gone { device: self.geometry.name.clone() }
    }

    pub(crate) fn register(&self, arena: Arc<Arena>) -> Result<ArenaId, MediaError> {
        let mut arenas = self.arenas.write();
        let place = arenas.iter().position(Option::is_none).unwrap_or(arenas.len());
        let id = u16::try_from(place).map_err(|_| self.refused("too many arenas"))?;
        put(&mut arenas, place, Some(arena));
        Ok(ArenaId(id))
    }

    pub(crate) fn unregister(&self, id: ArenaId) {
        if let Some(place) = self.arenas.write().get_mut(id.0 as usize) {
            *place = None;
        }
    }

    /// A registered arena.
    pub(crate) fn arena(&self, id: ArenaId) -> Option<Arc<Arena>> {
        self.arenas.read().get(id.0 as usize).cloned().flatten()
    }

    fn with<R>(&self, buf: &BufRef, f: impl FnOnce(&Arena) -> R) -> R {
        let arenas = self.arenas.read();
        f(arenas[buf.arena.0 as usize].as_ref().expect("arenas of requests under way are registered"))
    }

    /// Address of a buffer of an admitted request. It stays valid until the request has completed, because no arena is unregistered
    /// before.
    pub(crate) fn address(&self, buf: &BufRef) -> *mut u8 {
        self.with(buf, |arena| arena.ptr(buf.offset, buf.len as usize))
    }

    /// Copies bytes to the beginning of a buffer of an admitted request.
    pub(crate) fn copy_in(&self, buf: &BufRef, from: &[u8]) {
        self.with(buf, |arena| arena.copy_in(buf.offset, from));
    }

    /// Copies the beginning of a buffer of an admitted request.
    pub(crate) fn copy_out(&self, buf: &BufRef, to: &mut [u8]) {
        self.with(buf, |arena| arena.copy_out(buf.offset, to));
    }

    /// Fills a buffer of an admitted request.
    pub(crate) fn poison(&self, buf: &BufRef, byte: u8) {
        let memory = self.address(buf);
        // SAFETY: `address` checked the range, and the engine leaves memory of requests in flight alone.
        unsafe { std::ptr::write_bytes(memory, byte, buf.len as usize) }
    }

    /// Refuses or counts a request.
    pub(crate) fn admit(&self, request: &Request) -> Result<(), MediaError> {
        self.check(request)?;
        self.meter.count(request);
        Ok(())
    }

    fn check(&self, request: &Request) -> Result<(), MediaError> {
        let g = &self.geometry;
        let refuse = |why| Err(self.refused(why));
        let aligned = |n: u64| n & (g.sector as u64 - 1) == 0;
        if request.op != Op::Write && request.flags != Flags::NONE {
            return refuse("flags on something that is not a write");
        }
        if request.flags.contains(Flags::BARRIER) && !g.barrier {
            return refuse("barrier on a device that has none");
        }
        let transfer = matches!(request.op, Op::Read | Op::Write);
        if !transfer && !request.bufs.is_empty() {
            return refuse("memory for an operation that transfers nothing");
        }
        if request.op == Op::Flush {
            return if request.len == 0 { Ok(()) } else { refuse("a flush has no length") };
        }
        if !aligned(request.offset) || !aligned(request.len) {
            return refuse("not aligned to sectors");
        }
        if request.offset.checked_add(request.len).is_none_or(|end| end > g.bytes) {
            return refuse("beyond the end of the device");
        }
        if !transfer {
            return Ok(());
        }
        if request.len == 0 {
            return refuse("empty transfer");
        }
        if request.len > g.max_transfer as u64 || request.bufs.len() > MAX_BUFS {
            return refuse("transfer too large");
        }
        let arenas = self.arenas.read();
        let mut sum = 0;
        for buf in &request.bufs {
            let Some(Some(arena)) = arenas.get(buf.arena.0 as usize) else {
                return refuse("memory is not registered");
            };
            if !aligned(buf.offset) || !aligned(buf.len as u64) || buf.len == 0 {
                return refuse("buffer not aligned to sectors");
            }
            if buf.offset.checked_add(buf.len as u64).is_none_or(|end| end > arena.len() as u64) {
                return refuse("buffer beyond the end of its arena");
            }
            sum += buf.len as u64;
        }
        if sum == request.len { Ok(()) } else { refuse("length differs from that of the buffers") }
    }
}

/// Sets what belongs to an arena, in a list by [`ArenaId`].
pub(crate) fn put<T: Default>(list: &mut Vec<T>, place: usize, what: T) {
    if list.len() <= place {
        list.resize_with(place + 1, T::default);
    }
    list[place] = what;
}

/// Name of an operation in messages.
pub(crate) fn op_name(op: Op) -> &'static str {
    match op {
        Op::Read => "read",
        Op::Write => "write",
        Op::Flush => "flush",
        Op::Discard => "discard",
        Op::WriteZeroes => "write zeroes",
    }
}

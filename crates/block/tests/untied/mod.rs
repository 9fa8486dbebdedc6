//! A layer between engine and device that unties log records from the data they cover.
//!
//! Every cover of a record (format: `format::log`) is made to name the first superblock, which never changes, with its right
//! checksum. So recovery finds each record's data whole, whatever became of them. Checksums of records and their chain
//! are made to fit. On request every write also gets the barrier flag.

use format::limits::BLOCK_SIZE;
use format::log::{Cover, Record, SegmentAssignment, cover_crc};
use format::superblock::SUPERBLOCKS;
use format::{BlockNo, crc32c};
use media::{
    Arena, ArenaId, BufRef, Completion, Flags, Geometry, Media, MediaError, Op, Request, SimFlash, Wait,
};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use zerocopy::IntoBytes;

/// Memory for records that were changed: used in turn, and far more than can be in flight.
const MEMORY: usize = 32 << 20;
/// Where the checksum of a record stands, and that of the record before.
const CRC: std::ops::Range<usize> = 8..12;
const CHAIN: std::ops::Range<usize> = 12..16;

pub struct Untied {
    flash: Arc<SimFlash>,
    barriers: bool,
    memory: (Arc<Arena>, ArenaId),
    /// What every cover becomes.
    cover: Cover,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    arenas: HashMap<u16, Arc<Arena>>,
    /// Checksums of records as the engine made them, and as they are on the device.
    chain: HashMap<u32, u32>,
    next: usize,
}

impl Untied {
    pub fn new(flash: Arc<SimFlash>, barriers: bool) -> Untied {
        let arena = Arc::new(Arena::new(MEMORY).unwrap());
        let id = flash.register(arena.clone()).unwrap();
        let mut block = [0; BLOCK_SIZE];
        let BlockNo(at) = SUPERBLOCKS[0];
        flash.peek(at * BLOCK_SIZE as u64, &mut block);
        let cover =
            Cover { block: at.into(), count: 1.into(), data_crc: cover_crc(&[crc32c(&block)]).into() };
        let arenas = HashMap::from([(id.0, arena.clone())]);
        let state = Mutex::new(State { arenas, ..State::default() });
        Untied { flash, barriers, memory: (arena, id), cover, state }
    }

    /// The record that a request writes, untied; `None`: it is no record.
    fn untie(&self, state: &mut State, request: &Request) -> Option<Vec<u8>> {
        let mut bytes = Vec::with_capacity(request.len as usize);
        for buf in &request.bufs {
            let mut part = vec![0; buf.len as usize];
            state.arenas[&buf.arena.0].copy_out(buf.offset, &mut part);
            bytes.extend(part);
        }
        let record = Record::parse(&bytes).ok()?;
        let (head, assignments) = (record.header, record.assignments.len());
        let covers = record.covers.len();
        let at = size_of_val(&head) + assignments * size_of::<SegmentAssignment>();
        let size = size_of::<Cover>();
        for i in 0..covers {
            bytes[at + i * size..][..size].copy_from_slice(self.cover.as_bytes());
        }
        let chain = head.chain.get();
        let chain = *state.chain.get(&chain).unwrap_or(&chain);
        bytes[CHAIN].copy_from_slice(&chain.to_le_bytes());
        bytes[CRC].fill(0);
        let crc = crc32c(&bytes);
        bytes[CRC].copy_from_slice(&crc.to_le_bytes());
        state.chain.insert(head.crc.get(), crc);
        Some(bytes)
    }
}

impl Media for Untied {
    fn geometry(&self) -> &Geometry {
        self.flash.geometry()
    }
    fn register(&self, arena: Arc<Arena>) -> Result<ArenaId, MediaError> {
        let mut state = self.state.lock().unwrap();
        let id = self.flash.register(arena.clone())?;
        state.arenas.insert(id.0, arena);
        Ok(id)
    }
    fn unregister(&self, arena: ArenaId) {
        self.flash.unregister(arena);
    }
    fn submit(&self, mut request: Request) {
        if request.op == Op::Write {
            let mut state = self.state.lock().unwrap();
            if let Some(bytes) = self.untie(&mut state, &request) {
                if state.next + bytes.len() > MEMORY {
                    state.next = 0;
                }
                let (arena, id) = &self.memory;
                arena.copy_in(state.next as u64, &bytes);
                let buf = BufRef { arena: *id, offset: state.next as u64, len: bytes.len() as u32 };
                state.next += bytes.len();
                request.bufs = [buf].into_iter().collect();
            }
            if self.barriers {
                request.flags = Flags(request.flags.0 | Flags::BARRIER.0);
            }
        }
        self.flash.submit(request);
    }
    fn kick(&self) {
        self.flash.kick();
    }
    fn reap(&self, out: &mut Vec<Completion>, wait: Wait) {
        self.flash.reap(out, wait);
    }
    fn wake(&self) {
        self.flash.wake();
    }
}

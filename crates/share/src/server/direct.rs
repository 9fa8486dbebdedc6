//! Direct transfers between the medium and the payload memory of a client's slots, for files that it has opened with DIRECT: the manager copies nothing.
//!
//! The memory is the client's to change at any time; the engine knows that (`fs::FileSystem::lend_memory`), and the device reaches nothing else of the
//! client's. A slot whose transfer is under way is not answered before it is over, whatever its client wants: the memory would be another
//! call's, and the device would write into that.

use super::session::Client;
use crate::region::{Payloads, SlotNo};
use format::shared::SLOTS;
use fs::{ArenaId, BufRef, FileSystem};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Clients of this process whose memory is lent at a time. Where a device is driven by the process, that of each, 4.75 MiB, is pinned; further
/// clients have their data copied.
const CLIENTS_MAX: usize = 64;

static CLIENTS: AtomicUsize = AtomicUsize::new(0);

/// Whole blocks of this size are transferred directly.
const BLOCK: usize = 4096;

/// The memory of one client.
#[derive(Default)]
pub(super) struct Lent {
    /// Once it was asked for: under which number it is known, if it is.
    id: OnceLock<Option<ArenaId>>,
    /// Slots with a transfer under way.
    transfers: AtomicU64,
}

/// The payload memory of a slot, for one transfer.
pub(super) struct Place<'a> {
    lent: &'a Lent,
    slot: SlotNo,
    pub memory: BufRef,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.lent.transfers.fetch_and(!(1 << self.slot), Ordering::Relaxed);
    }
}

impl Lent {
    /// The client has ended.
    pub fn give_back<F: FileSystem>(&self, fs: &F) {
        // Whoever asks from now on is told that there is none.
        if let Some(id) = self.id.get_or_init(|| None) {
            fs.return_memory(*id);
            CLIENTS.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Client {
    /// Whether a slot must not be answered now.
    pub fn is_transferring(&self, slot: SlotNo) -> bool {
        slot < SLOTS && self.lent.transfers.load(Ordering::Relaxed) & 1 << slot != 0
    }

    /// The first `len` bytes of a slot's payload memory, if they and `offset` in a file are such that a transfer can be a direct one.
    pub(super) fn place<F: FileSystem>(
        &self,
        fs: &F,
        slot: SlotNo,
        (offset, len): (u64, usize),
    ) -> Option<Place<'_>> {
        if len == 0 || !len.is_multiple_of(BLOCK) || !offset.is_multiple_of(BLOCK as u64) {
            return None;
        }
        let arena = (*self.lent.id.get_or_init(|| self.lend(fs)))?;
        let memory = BufRef { arena, offset: Payloads::offset(slot), len: len as u32 };
        self.lent.transfers.fetch_or(1 << slot, Ordering::Relaxed);
        Some(Place { lent: &self.lent, slot, memory })
    }

    fn lend<F: FileSystem>(&self, fs: &F) -> Option<ArenaId> {
        let one_more = |clients: usize| (clients < CLIENTS_MAX).then_some(clients + 1);
        CLIENTS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        match fs.lend_memory(Payloads::of(&self.region)) {
            Ok(id) => Some(id),
            Err(e) => {
                tracing::debug!("session {}: no direct transfers: {e}", self.session);
                CLIENTS.fetch_sub(1, Ordering::Relaxed);
                None
            }
        }
    }
}

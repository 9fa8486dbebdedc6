//! A lock lease as both sides see it: the number of its grant and the two tables. Layout and protocol: `format::shared::locks`.

use crate::memory::Mapping;
use format::shared::{
    LEASED_LOCKS, LOCK_LEASE_BYTES, LOCK_LEASES, LOCK_TABLES_AT, LOCKS_AT, LockImage, LockLeaseHeader,
    LockTableImage,
};
use fs::locks::ranges::Ranges;
use fs::{LockKind, LockOwner, RecordLock};
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Looks for a table that its client does not change meanwhile: an honest one does so once after its lease has ended.
const LOOKS: usize = 4;

/// One lock lease.
#[derive(Clone, Copy)]
pub(crate) struct Locked<'a> {
    memory: &'a Mapping,
    at: usize,
}

impl<'a> Locked<'a> {
    /// The lease in a place of a session's memory, below [`LOCK_LEASES`].
    pub fn new(memory: &'a Mapping, place: usize) -> Locked<'a> {
        assert!(place < LOCK_LEASES);
        Locked { memory, at: LOCKS_AT + place * LOCK_LEASE_BYTES }
    }

    /// Number of the lease, or 0.
    pub fn grant(&self) -> &'a AtomicU64 {
        self.memory.long(self.at + offset_of!(LockLeaseHeader, grant))
    }

    fn current(&self) -> &'a AtomicU64 {
        self.memory.long(self.at + offset_of!(LockLeaseHeader, current))
    }

    fn table_at(&self, current: u64) -> usize {
        self.at + LOCK_TABLES_AT + (current & 1) as usize * size_of::<LockTableImage>()
    }

    /// Says what is held: the manager when a lease begins, then the client. One thread at a time. False, and nothing was said, when there is no room for it.
    pub fn publish(&self, held: &Ranges) -> bool {
        let mut image = LockTableImage::new_zeroed();
        let mut count = 0;
        for (owner, lock) in held.all() {
            let Some(place) = image.locks.get_mut(count) else { return false };
            let kind = (lock.kind == LockKind::Exclusive) as u32;
            let (start, end) = (lock.start.into(), lock.end.into());
            let lock =
                LockImage { start, end, owner: owner.0.into(), kind: kind.into(), pid: lock.pid.into() };
            place.copy_from_slice(lock.as_bytes());
            count += 1;
        }
        image.count = (count as u64).into();
        let next = self.current().load(Ordering::Relaxed).wrapping_add(1);
        let bytes = offset_of!(LockTableImage, locks) + count * size_of::<LockImage>();
        self.memory.copy_in(self.table_at(next), &image.as_bytes()[..bytes]);
        self.current().store(next, Ordering::SeqCst);
        true
    }

    /// What is held, as the other side says; anything, if it does not keep to the rules.
    pub fn read(&self) -> Vec<(LockOwner, RecordLock)> {
        let mut bytes = [0; size_of::<LockTableImage>()];
        for _ in 0..LOOKS {
            let current = self.current().load(Ordering::SeqCst);
            self.memory.copy_out(self.table_at(current), &mut bytes);
            std::sync::atomic::fence(Ordering::SeqCst);
            if self.current().load(Ordering::SeqCst) == current {
                break;
            }
        }
        let image = LockTableImage::read_from_bytes(&bytes).expect("it has this size");
        let count = image.count.get().min(LEASED_LOCKS as u64) as usize;
        let read = |bytes: &[u8; 32]| {
            let image = LockImage::read_from_bytes(bytes).expect("it has this size");
            let kind = match image.kind.get() {
                0 => LockKind::Shared,
                1 => LockKind::Exclusive,
                _ => return None,
            };
            let (start, end) = (image.start.get(), image.end.get());
            let lock = RecordLock { start, end, kind, pid: image.pid.get() };
            (start <= end).then_some((LockOwner(image.owner.get()), lock))
        };
        image.locks[..count].iter().filter_map(read).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory;
    use format::shared::SESSION_BYTES;

    fn lock(start: u64, kind: LockKind) -> RecordLock {
        RecordLock { start, end: start, kind, pid: 7 }
    }

    #[test]
    fn what_is_said_is_read() {
        let fd = memory::sealed(c"test", SESSION_BYTES).unwrap();
        let (client, manager) =
            (Mapping::new(&fd, SESSION_BYTES).unwrap(), Mapping::new(&fd, SESSION_BYTES).unwrap());
        for place in [0, LOCK_LEASES - 1] {
            let (client, manager) = (Locked::new(&client, place), Locked::new(&manager, place));
            assert!(manager.read().is_empty());
            let mut held = Ranges::default();
            for n in 0..LEASED_LOCKS as u64 {
                let kind = if n % 2 == 0 { LockKind::Shared } else { LockKind::Exclusive };
                held.insert(LockOwner(n % 3), lock(2 * n, kind));
                assert!(client.publish(&held));
                assert_eq!(manager.read(), held.all().collect::<Vec<_>>());
            }
            let before = manager.read();
            held.insert(LockOwner(1), lock(1000, LockKind::Shared));
            assert!(!client.publish(&held), "no room");
            assert_eq!(manager.read(), before);
            assert!(client.publish(&Ranges::default()));
            assert!(manager.read().is_empty());
        }
    }

    #[test]
    fn nothing_in_there_is_believed() {
        let fd = memory::sealed(c"test", SESSION_BYTES).unwrap();
        let memory = Mapping::new(&fd, SESSION_BYTES).unwrap();
        let lease = Locked::new(&memory, 3);
        memory.copy_in(lease.table_at(0), &[0xff; size_of::<LockTableImage>()]);
        assert!(lease.read().is_empty(), "neither kind is one");
        let mut held = Ranges::default();
        held.insert(LockOwner(1), RecordLock { start: 5, end: u64::MAX, kind: LockKind::Shared, pid: 1 });
        lease.publish(&held);
        let entry =
            lease.table_at(lease.current().load(Ordering::SeqCst)) + offset_of!(LockTableImage, locks);
        memory.copy_in(entry, &9u64.to_le_bytes());
        memory.copy_in(entry + 8, &8u64.to_le_bytes());
        assert!(lease.read().is_empty(), "it ends before it begins");
    }
}

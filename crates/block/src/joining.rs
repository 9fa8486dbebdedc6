//! What joins the running epoch, and how long its record becomes by that.
//!
//! Each change counts what it may add to the record ([`Running::bytes`]), and whoever makes one asks first: an epoch that has grown to half of the longest
//! record is closed. A record that is longer than `LOG_RECORD_MAX` would be written, and no recovery would take it for one.
//!
//! Tested by `tests/long_records.rs` and `volume/held_up.rs`.

use crate::core::{Core, Res, Stop, Wait};
use crate::inode::{IN_CHECKPOINT, Inode, SINCE_CHECKPOINT, Slot};
use format::limits::{BLOCK_SIZE, LOG_RECORD_MAX, XATTR_INLINE_MAX};

impl Core {
    /// As [`Core::writable`], and waits while the running epoch must not grow.
    pub fn admit(&mut self) -> Res<()> {
        self.writable()?;
        self.room_in_epoch()?;
        if self.order_ends_epoch() {
            self.close_epoch(false)?;
        }
        self.let_checkpoint_by(0)
    }

    /// Whether the running epoch should be closed, because its record becomes long.
    pub fn is_long(&self) -> bool {
        self.running.bytes > self.log.record_max() / 2
    }

    /// Waits while the running epoch must not grow; closes one that has grown enough. Whatever may join many inodes to it one after the other asks first: a record
    /// that is longer than `LOG_RECORD_MAX` no recovery would take for one.
    pub fn room_in_epoch(&mut self) -> Res<()> {
        if self.running.gate.is_some() {
            return Err(Stop::Wait(Wait::Progress));
        }
        if self.is_long() {
            self.close_epoch(false)?;
        }
        Ok(())
    }

    /// The inode, to be changed: joins it to the running epoch. The tail must be in memory (or empty) unless the inode is
    /// about to be freed.
    pub fn edit(&mut self, slot: Slot) -> &mut Inode {
        if self.slab.get(slot).flags & IN_CHECKPOINT != 0 {
            self.stash(slot);
        }
        self.join_epoch(slot);
        let inode = self.slab.get_mut(slot);
        if let Some(tail) = &mut inode.tail {
            tail.changes = tail.changes.wrapping_add(1);
        }
        inode
    }

    fn join_epoch(&mut self, slot: Slot) {
        let inode = self.slab.get_mut(slot);
        let epoch = self.running.epoch;
        if inode.epoch == epoch && inode.flags & SINCE_CHECKPOINT != 0 {
            return;
        }
        inode.epoch = epoch;
        if inode.flags & SINCE_CHECKPOINT == 0 {
            inode.flags |= SINCE_CHECKPOINT;
            self.since_checkpoint.push(slot);
        }
        let inode = self.slab.get(slot);
        let mut bytes = 224 + inode.name.bytes().len();
        if let Some(tail) = &inode.tail {
            bytes += match &tail.data {
                crate::inode::Data::Inline(data) => data.len(),
                crate::inode::Data::Extents(map) => map.len().min(128) * 24,
            } + format::xattr::encoded_len(&tail.xattrs).min(XATTR_INLINE_MAX);
        }
        self.running.slots.push(slot);
        self.running.bytes += bytes;
        self.note_change();
    }

    /// The running epoch is no longer empty: its age counts from now.
    pub fn note_change(&mut self) {
        if self.running.since.is_none() {
            let now = self.monotonic();
            self.running.since = Some(now);
            let due = now + self.options.dirty_age_max;
            if self.worker_deadline.is_none_or(|d| d > due) {
                self.wake_worker = true;
            }
        }
    }

    /// Nobody is to be told that an epoch is durable whose record no recovery would read. What `Core::room_in_epoch` and the callers of `place_overwrite` see to is
    /// twice as much at most.
    pub fn hold_record_max(&mut self, bytes: usize, counted: usize) {
        debug_assert!(bytes <= counted + 2 * BLOCK_SIZE, "a record of {bytes} bytes, counted as {counted}");
        let ring = self.log.capacity() as usize * BLOCK_SIZE;
        if bytes > LOG_RECORD_MAX.min(ring / 2) {
            self.latch(format!("a record of {bytes} bytes, which is too long"));
        }
    }
}

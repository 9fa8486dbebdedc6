//! Room for nodes of extent trees, which the next commit writes to new blocks although the old ones are free only behind it.
//!
//! Who makes pages dirty that may add extents counts the nodes of that file first ([`Core::expect_nodes`]): so a write is refused on a full volume, and
//! not the commit that everybody waits for. The count is an upper bound until the commit has placed them; data must leave so much room and some of the
//! blocks that are kept for metadata ([`Core::keep`]). What changes a tree otherwise is counted afterwards, out of these.

use crate::core::{Core, Res};
use crate::inode::Slot;

impl Core {
    /// Blocks that data must leave free.
    pub fn keep(&self) -> u64 {
        self.keep_min.max(self.nodes + self.keep_min / 4)
    }

    /// Whether the commit will find room for the nodes of a file to which `extents` may be added, when `blocks` are taken for them now.
    pub fn has_room_for_nodes(&self, slot: Slot, extents: u64, blocks: u64) -> bool {
        let Some(tail) = &self.slab.get(slot).tail else { return true };
        let nodes = tail.extents().map_or(0, |map| map.nodes_max(tail.grows + extents));
        let need = self.space.reserved() + blocks + self.nodes - tail.nodes + nodes;
        nodes <= tail.nodes || self.space.free_now() >= need
    }

    /// Pages of a file of the running epoch are about to become dirty that may add `extents`. Waits for a checkpoint, `NoSpace` when that does not help.
    pub fn expect_nodes(&mut self, slot: Slot, extents: u64, ticket: &mut Option<u64>) -> Res<()> {
        // What was set aside for a write must be enough for it.
        if !self.has_room_for_nodes(slot, extents, 0) && !self.space.is_drawing() {
            return self.wait_for_space(ticket);
        }
        self.tail_mut(slot).grows += extents;
        self.count_nodes(slot);
        Ok(())
    }

    /// The tree of a file, or what may be added to it, is another one than before.
    pub fn count_nodes(&mut self, slot: Slot) {
        let Some(tail) = &mut self.slab.get_mut(slot).tail else { return };
        let nodes = match tail.extents() {
            Some(map) => map.nodes_max(tail.grows),
            None => {
                tail.grows = 0;
                0
            }
        };
        self.nodes = self.nodes + nodes - std::mem::replace(&mut tail.nodes, nodes);
    }

    /// A commit has placed the nodes of a file.
    pub fn placed_nodes(&mut self, slot: Slot) {
        let tail = self.slab.get_mut(slot).tail.as_mut();
        let Some(tail) = tail.filter(|tail| tail.nodes + tail.grows > 0) else { return };
        tail.grows = 2 * tail.dirty.count();
        self.count_nodes(slot);
    }
}

//! What a server hears of changes, through whichever door they come.

use super::arena::Arenas;
use super::holds::Holders;
use crate::changes::Changes;
use fs::Ino;
use fs::watched::{Change, Told, Undeclared, Watcher};
use std::sync::Arc;

/// Tells everything of a server that keeps something of the file system.
pub(crate) struct Ear {
    pub changes: Arc<Changes>,
    pub arenas: Arc<Arenas>,
    pub holders: Arc<Holders>,
}

impl Watcher for Ear {
    fn changed(&self, change: &Change<'_>) -> Option<Told> {
        self.changes.changed(change);
        self.arenas.changed(change);
        None
    }

    fn undeclared(&self, ino: Ino) -> Undeclared {
        self.holders.undeclared(&self.changes, ino)
    }
}

//! A tree at one moment, taken from the model: what a file system is compared with after a crash.

use crate::model::Node;
use fs::Ino;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The tree of a [`crate::Model`] at one moment. Cheap to make, to clone and to keep: contents are shared.
#[derive(Clone)]
pub struct Snapshot {
    pub(crate) nodes: Arc<BTreeMap<Ino, Arc<Node>>>,
    pub(crate) last_ino: u64,
}

//! The block engine: a file system on an SSD that user space owns (UHSFS), ordered by epochs (BarrierFS).
//!
//! Space is cut into segments with elastic roles (`space`); an inode is one self-describing block (`inode`, `slab`, `tails`); the
//! indexes live in memory (`index`); all changes join epochs (`epoch`) that one log record each commits (`ring`); data is
//! allocated when it is written back (`pages`, `writeback`); checkpoints bring things home (`checkpoint`); a stop leaves an
//! index (`clean`); mount finds the longest prefix of whole epochs (`load`, `recover`, `derive`). The state is one struct
//! (`core`) that operations change under one lock (`names`, `files`), driven by a worker (`worker`).

mod barrier;
mod checkpoint;
mod clean;
mod core;
mod covers;
mod derive;
mod direct;
mod discard;
mod driver;
pub mod dump;
mod epoch;
mod extents;
mod files;
pub mod fsck;
mod group;
mod handles;
mod huge;
mod index;
mod inode;
mod io;
mod joining;
mod load;
mod loans;
mod mkfs;
mod names;
mod nametable;
mod pages;
mod rangeset;
mod reads;
mod recover;
mod ring;
mod scratch;
mod shared;
mod slab;
mod space;
mod tails;
mod volume;
mod worker;
mod writeback;

pub use crate::core::{Clock, Counters, OpenOptions, RealClock, Synchronous};
pub use crate::mkfs::{MkfsOptions, MkfsReport, mkfs};
pub use crate::volume::{CacheUsage, Volume};
pub use crate::worker::Worker;

//! The waist of the house: one contract ([`FileSystem`]) between the doors above and the engines below, and what both
//! sides share: credentials and permission checks, errors with their errno, path walking, file locks, the page cache.

pub mod block_on;
pub mod cache;
pub mod client;
pub mod contract;
pub mod cred;
pub mod descriptor;
pub mod error;
pub mod join;
pub mod leases;
pub mod locks;
pub mod meter;
pub mod ordered;
mod passes;
pub mod path;
pub mod perm;
pub mod source;
pub mod turns;
pub mod types;
pub mod units;
pub mod watched;

pub use block_on::{Idle, Interrupt, block_on, block_on_lending, lends};
pub use cache::Pages;
pub use client::{Blocking, Client, File, OpenOptions};
pub use contract::{ATOMIC_WRITE_MAX, FileSystem};
pub use cred::Cred;
pub use error::{Error, Result};
pub use format::Ino;
pub use join::{join_all, join_polled};
pub use locks::{Keeper, LockTable};
pub use media::{ArenaId, BufRef, Memory};
pub use meter::Meter;
pub use ordered::Ordered;
pub use source::Source;
pub use types::*;
pub use watched::Watched;

//! Sessions: many processes use one file system through shared memory (UHSFS, "Sharing").
//!
//! The [`server`] side runs in the manager and is given any file system behind the contract; the [`client`] side is itself
//! such a file system, so that everything above the contract works over it unchanged. A session begins on a Unix socket, which
//! says who the client is; from then on calls go through memory that both map (layout: `format::shared`), 64 bytes and a
//! payload each way, without a system call while both sides are busy.
//!
//! The client is not trusted: see docs/SECURITY.md. Who waits looks at a word for a while, then sleeps on it: [`spin`].

mod changes;
pub mod client;
mod knock;
mod leased;
pub mod lock;
mod locked;
mod memory;
pub mod mounts;
mod notices;
pub mod offers;
mod record;
mod region;
pub mod server;
mod socket;
pub mod spin;
mod streams;
mod wire;
mod yields;

pub use client::{Connect, Description, Pin, Queue, Remote, Target};
pub use server::Server;

/// Name of a socket by which the sessions of whatever is mounted at `point` are found, whoever serves it: programs whose manager has
/// ended look there for the next one.
pub fn name_at(point: &[u8]) -> String {
    let mix = |h: u64, &b: &u8| (h ^ b as u64).wrapping_mul(0x0100_0000_01b3);
    format!("at-{:016x}.sock", point.iter().fold(0xcbf2_9ce4_8422_2325, mix))
}

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
mod memory;
mod region;
pub mod server;
mod socket;
pub mod spin;
mod wire;

pub use client::Remote;
pub use server::Server;

//! Development only: the reference model of the file system, generators of operations, and checkers.
//!
//! - [`model`]: the one definition of what is correct, a file system in plain maps.
//! - [`snapshot`], [`compare`]: a tree at one moment, and the comparison of trees.
//! - [`ops`]: random operations over the whole contract, executed on any file system.
//! - [`differential`]: the same operations on two file systems, every outcome compared, failures made small.
//! - [`crash`]: power failures at every moment of a run, what they leave compared with the states that were passed through.
//! - [`fsx`]: random data operations on one file against a vector of bytes, over the contract or a real path.
//! - [`programs`]: random system calls of several programs, in an ordinary directory and on a volume.
//! - [`together`]: several programs on the same files at the same time; what one was told holds for all.
//! - [`s3`]: an object store in memory behind HTTP, whose network and service fail when they are told to.
//! - [`timed`]: a flash device, a host and journaling in virtual time: what order costs, in the way of BarrierFS.
//! - [`host`]: a directory of the host's file system behind the contract; the model is proven against it.

pub mod compare;
pub mod crash;
pub mod differential;
pub mod driver;
pub mod fsx;
pub mod gate;
pub mod host;
pub mod model;
pub mod ops;
pub mod programs;
pub mod s3;
pub mod snapshot;
pub mod timed;
pub mod together;

pub use driver::{Blocking, Driver, Ticking};
pub use gate::{Buffer, Gate};
pub use host::HostFs;
pub use model::{Clock, HandClock, Model, system_clock};
pub use ops::{Generator, Knobs, Op, Outcome, Tolerance};
pub use snapshot::Snapshot;

//! A flash device, the host stack above it and a journaling file system, in virtual time (BarrierFS, FAST'18).
//!
//! What the paper measured on hardware with a barrier command is run here on a simulated device: events on an agenda, nanoseconds
//! that nobody waits for, and every choice made by a seed. The same arguments give the same figures, to the nanosecond, on any
//! machine.
//!
//! - [`clock`]: the agenda and the random numbers.
//! - [`profile`]: devices and hosts, with the origin of each number.
//! - [`device`]: command queue, link, cache, dies, flush, and the barrier flag in each of the paper's three ways.
//! - [`stack`]: the host: the scheduler of the crate `sched`, dispatch, interrupts, context switches.
//! - [`modes`]: one caller who writes at random and keeps order in four ways.
//! - [`journal`]: ext4's journaling, and dual-mode journaling.
//! - [`power`]: the power is cut at random moments, and what has persisted is compared with the epochs.
//! - [`nvme`], [`separation`]: another device, with several queues, and what it gains when requests are separated by class (UHSFS).
//! - [`figures`]: the paper's figures as tables and pictures.
//!
//! Not modelled: processors that are busy (threads wait for each other and for the device only), reads of the mapping table, wear,
//! a cache that absorbs overwrites, damaged pages. The crash tests of the engine use [`media::SimFlash`], which has no time and
//! more freedom.
//!
//! Tested in tests/timed.rs and tests/timed_power.rs.

pub mod clock;
pub mod device;
pub mod figures;
pub mod journal;
pub mod modes;
pub mod nvme;
pub mod power;
pub mod profile;
pub mod separation;
pub mod stack;

mod cache;

pub use clock::Ns;
pub use device::Flash;
pub use profile::{Barrier, Host, Profile};
pub use stack::Stack;

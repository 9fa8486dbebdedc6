//! The order layer between an engine and a device that has barriers (BarrierFS, FAST'18, section 3).
//!
//! An engine says which writes have an order and where one epoch ends; the layer decides what leaves next. It holds three
//! promises, and the device's barrier flag ([`media::Flags::BARRIER`]) a fourth:
//! 1. *Issue order = dispatch order, by epochs.* No request of an epoch leaves before the flagged request of the epoch before.
//!    Requests of one epoch may leave in any order, and adjacent ones are merged; never those of two epochs.
//! 2. *Barrier reassignment.* Whoever leaves last of an epoch carries the flag, whichever request the barrier came with.
//! 3. *Order-preserving dispatch.* The next request leaves as soon as the one before was handed over, not when its transfer
//!    has completed. Nobody waits for the device to keep an order.
//! 4. The device serves a flagged write after everything that it was given before and ahead of everything behind, and
//!    persists epochs in their order.
//!
//! Requests without an order (*orderless*: reads, flushes, discards, write-back that nobody waits for) cross epochs freely.
//! Classes take turns, so none of them is starved.
//!
//! - [`Scheduler`]: the queues; a plain data structure without threads, time or device.
//! - [`Sink`], [`dispatch_one`], [`pump`]: from the queues to whatever takes commands: a device, or a simulated one.
//! - [`OrderLayer`]: the same over a [`media::Media`]; refuses a medium without barriers.
//!
//! The original stops accepting requests of any kind while a closed epoch is in the queue. Here the following epochs queue up
//! behind it and orderless requests go on, so that nobody who submits has to wait.
//!
//! [`queues`] is another matter: which of a device's queues takes a request (UHSFS's elastic separation). [`Separated`] does that over a medium
//! that has several.
//!
//! Tested in tests/scheduler.rs (exhaustive and random), tests/layer.rs (over the simulated flash, with power failures),
//! tests/queues.rs and tests/separated.rs.

mod dispatch;
mod layer;
mod pool;
pub mod queues;
mod scheduler;
mod separated;

pub use dispatch::{Sink, dispatch_one, pump};
pub use layer::{Carrier, OrderError, OrderLayer};
pub use scheduler::{Command, Config, Counters, Refusal, Refused, Request, Scheduler, Turns};
pub use separated::Separated;

/// In which order requests of one pool leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discipline {
    /// As they came.
    Arrival,
    /// By ascending offset from the last request that left, then from the lowest again.
    Ascending,
}

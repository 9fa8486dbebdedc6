//! What a host and an NVMe controller exchange: registers, queue entries, data structures.
//!
//! Section numbers are those of the NVM Express Base Specification, revision 1.4. These bytes are the controller's, not
//! Freehold's, so they are not part of `docs/FORMAT.md`. The driver that uses them is `media::nvme`.
//!
//! Tested by that driver's tests, whose simulated controller reads and writes the same structures.

pub mod health;
pub mod identify;
pub mod queue;
pub mod register;

pub use health::Health;
pub use identify::{Controller, LbaFormat, Namespace};
pub use queue::{Completion, DeallocateRange, SglDescriptor, Status, Submission};

//! NVMe controllers of this machine: which there are, who uses them, and taking one from the kernel's driver for a driver in
//! user space (VFIO), and back; and what a claimed one tells of itself ([`Machine::inspect`]).
//!
//! A controller is *claimed* when it is bound to `vfio-pci` in place of the kernel's driver: its block devices are gone then, and whoever may open
//! its node in `/dev/vfio` may drive it. [`Machine::claim`] does that, [`Machine::release`] undoes it, [`Machine::list`] only looks.
//!
//! What always holds:
//! - A controller is not taken while anything uses one of its namespaces: the namespaces are opened exclusively (`O_EXCL`) before the last
//!   look, and held until the kernel's driver has let go, so that no mount, swap or volume manager gets in between.
//! - Before the first change a record of what was there is saved ([`Record`]), and it is removed after the last step of giving back. Whatever
//!   is interrupted, at whatever step, by `SIGKILL` too: `release` leads back to what was before the claim.
//! - All is idempotent: claiming twice, releasing twice, releasing what nobody claimed.
//! - One command at a time changes anything (a lock on a file).
//!
//! Everything is looked up below a root directory, and everything that changes the machine goes through [`Kernel`]: tests bring a tree of files
//! and a kernel of their own. Tested in `tests/device.rs`, and with a real kernel in `lab/tests/claim.sh`. For operators: docs/DEVICES.md.

mod claim;
mod controller;
mod error;
mod facts;
mod machine;
mod nodes;
mod record;
mod release;
mod uses;

pub use claim::Claimed;
pub use controller::{Claim, Controller, Namespace};
pub use error::DeviceError;
pub use facts::{Facts, Fitness, Format, Space};
pub use machine::{Host, Kernel, Machine};
pub use media::nvme::PciAddress;
pub use record::{Record, Step};
pub use release::Released;
pub use uses::Use;

/// The driver that hands devices to user space.
const VFIO: &str = "vfio-pci";

/// Of this module.
pub type Result<T> = std::result::Result<T, DeviceError>;

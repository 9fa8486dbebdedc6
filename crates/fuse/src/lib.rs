//! The FUSE door: any program of the machine uses a volume through a kernel mount of it.
//!
//! [`mount`] takes any [`fs::FileSystem`] and returns a [`Mount`]. Each request of the kernel is one call of the contract
//! (`door`), run on the thread that received it when it need not wait, otherwise on a small pool (`exec`).
//!
//! # The protocol is spoken here, not by a library
//! The crate `fuser` 0.18 was read for this. It answers FUSE_INTERRUPT with ENOSYS, after which the kernel lets nobody out of a
//! blocked lock request, not even by SIGKILL; it drops the flag that tells flock(2) from fcntl(2) locks, and those of
//! set-id clearing at open and truncate; it does not know O_TMPFILE and statx. The protocol itself is small (`abi`).
//!
//! # Who checks permissions
//! The kernel does: every mount has `default_permissions`. A FUSE request carries the caller's user and one group, not
//! the supplementary groups, so the engine could not decide rightly; and names in the kernel's cache are walked without any
//! request, so the engine would not be asked. The kernel compares the attributes that the engine reports with the caller's full
//! credentials. The contract sees [`fs::Cred`] with `checked` set: it refuses nothing, and applies the effects of identity
//! (owner and group of new files, inheritance of set-group-id). The sticky bit, `chown`, `utimes` and access(2) are decided
//! in the kernel too. The umask is applied by the kernel (`FUSE_DONT_MASK` is not asked for; POSIX ACLs are not offered).
//! CREATE never opens an existing file, because the kernel checked only that the caller may make one.
//!
//! # What the kernel keeps
//! With `exclusive` (the default) names, attributes and data stay in the kernel for as long as it likes: all changes come
//! through this mount, and the kernel updates what it keeps at each of them. Doors beside this one need `shared`, or
//! [`Notifier`]. Times of access therefore change when data are read from the engine, not from the page cache.
//!
//! # Limits that come from FUSE
//! - sync(2) and syncfs(2) do not reach a FUSE server (the kernel sends FUSE_SYNCFS to virtiofs only): use fsync.
//! - An inode without a name lives while a file is open. One that is only walked to (O_PATH, a current directory
//!   that was removed) is gone, and stat of it gives `ESTALE`.
//! - A flock(2) lock goes with the last close of its file, but the kernel tells so a moment after close(2) returned.
//!
//! Tested by `tests/mount.rs` and `scripts/pjdfstest.sh`.

mod abi;
mod attrs;
mod device;
mod door;
mod exec;
mod files;
mod handles;
mod interrupt;
mod names;
mod options;
mod session;
mod sys;

pub use device::Notifier;
pub use options::{FOREVER, MAX_TRANSFER, MountOptions};
pub use session::{Mount, mount};
pub use sys::has_program;

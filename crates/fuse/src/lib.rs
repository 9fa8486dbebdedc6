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
//! [`Notifications`]. What a program appends goes to the end of the file all the same, also where the kernel does not know it, which then drops its pages.
//! Times of access therefore change when data are read from the engine, not from the page cache.
//! What programs store in mappings reaches the engine when the kernel likes; who asks for data or holes of a file that may be mapped so has it
//! written first, which drops the file's pages.
//!
//! # Figures behind the defaults
//! Two processors, the reference model behind the door, one client, operations per second unless said otherwise; the machine had
//! other load, so only ratios count.
//!
//! | timeouts | stat | absent name | `ls -l` entries | create | rename |
//! |---|---|---|---|---|---|
//! | forever | 382,000 | 363,000 | 317,000 | 16,000 | 25,800 |
//! | 1 s | 307,000 | 358,000 | 324,000 | 13,900 | 26,000 |
//! | 0 | 27,000 | 32,000 | 20,000 | 10,800 | 5,300 |
//!
//! So any timeout at all is worth a factor of ten; 1 s (`shared`) costs little more than forever (`exclusive`).
//!
//! | | 100 B writes | 4 KiB writes | 4 KiB + fsync | 200 B appends | create + 2 KiB + close | 1 MiB writes + fsync |
//! |---|---|---|---|---|---|---|
//! | write-through | 27,000 | 11,000 | 7,300 to 16,900 | 17,700 to 25,800 | 3,000 to 3,900 | 200 to 390 MiB/s |
//! | `writeback` | 548,000 to 668,000 | 200,000 to 234,000 | 6,000 to 6,700 | 730,000 to 748,000 | 1,600 to 2,800 | 505 to 538 MiB/s |
//!
//! Write-back is off all the same: with it data reach the engine when and in the order the kernel likes, up to half a minute late, so
//! that after a crash the volume would not be in a state between two calls of the program; other doors see writes late, appends
//! of two doors overwrite each other, nobody is told where a file has holes, and a close or fsync costs more. Programs that want many small writes use stdio's buffers.
//!
//! Direct 4 KiB reads of two jobs: 24,000 with one thread, 109,000 with two, 117,000 with four; writes 61,000, 100,000 and 45,000.
//! So there are as many threads as processors (at least 2, at most 8).
//!
//! # Limits that come from FUSE
//! - The serving process must not map files of its own mount: munmap waits for write-back while it holds the address space,
//!   which the serving threads need. (Reading and writing them is fine.)
//! - sync(2) and syncfs(2) do not reach a FUSE server (the kernel sends FUSE_SYNCFS to virtiofs only): use fsync.
//! - An inode without a name lives while a file is open. One that is only walked to (O_PATH, a current directory
//!   that was removed) is gone, and stat of it gives `ESTALE`.
//! - A flock(2) lock goes with the last close of its file, but the kernel tells so a moment after close(2) returned.
//!
//! Tested by `tests/mount.rs` and `scripts/pjdfstest.sh`.

mod abi;
mod attrs;
mod changers;
mod connection;
mod device;
mod door;
mod ending;
mod exec;
mod files;
mod handles;
mod interrupt;
mod known;
mod meter;
mod names;
mod notifications;
mod options;
mod receive;
mod session;
mod sys;

pub use connection::Connection;
pub use device::Notifier;
pub use notifications::Notifications;
pub use options::{FOREVER, MAX_TRANSFER, MountOptions};
pub use session::{Mount, mount};
pub use sys::{has_program, remount};

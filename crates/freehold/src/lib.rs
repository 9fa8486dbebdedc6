//! Freehold: a file system in user space, on an image file, a block device or an NVMe controller.
//!
//! This is the facade. Here concrete types are wired together (those of buckets in the library for C, too): a medium ([`media::UringMedia`] or
//! [`media::NvmeMedia`]), the
//! block engine ([`Volume`]) or that of buckets ([`Bucket`]), the file API ([`Client`]) and the FUSE door ([`mount()`]). The command `freehold` is built on it.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let image = dir.path().join("disk.img");
//! use freehold::{Allocation, Client, Cred, MkfsOptions, VolumeOptions};
//!
//! freehold::create_image(&image, 64 << 20, Allocation::Sparse)?;
//! freehold::mkfs(&image, &MkfsOptions { label: "scratch".into(), ..MkfsOptions::default() })?;
//!
//! let volume = freehold::open(&image, VolumeOptions::default())?;
//! let files = freehold::client(&volume, Cred::root()).blocking();
//! files.mkdir("/notes", 0o755)?;
//! files.write("/notes/today", "water the plants")?;
//!
//! // Durable when fsync returns; `Client::sync` does it for the whole volume.
//! files.open("/notes/today", freehold::OpenOptions::new().read(true))?.fsync()?;
//! assert_eq!(files.read("/notes/today")?, b"water the plants");
//!
//! // A clean stop: the next open need not look at the log.
//! volume.close_blocking()?;
//! # Ok(())
//! # }
//! ```
//!
//! Files of a bucket have the same calls. What a close has returned from is in the store:
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use freehold::{Client, Cred};
//!
//! let logs = freehold::Bucket::parse("s3://logs/2026", "endpoint=http://127.0.0.1:9000")?.open()?;
//! let files = Client::new(logs.into(), Cred::of_process()).blocking();
//! files.write("/today", "nothing new")?;
//! # Ok(())
//! # }
//! ```
//!
//! The same calls are async on the [`Client`] itself. Past the page cache and many at a time, between the device and [`Buffers`] that are registered with it, by a
//! thread that looks for completions instead of sleeping ([`join_polled`]):
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let image = dir.path().join("disk.img");
//! # freehold::create_image(&image, 64 << 20, freehold::Allocation::Sparse)?;
//! # freehold::mkfs(&image, &freehold::MkfsOptions::default())?;
//! # let volume = freehold::open(&image, freehold::VolumeOptions::default())?;
//! use freehold::FileSystem;
//!
//! let files = freehold::client(&volume, freehold::Cred::root());
//! files.blocking().write("/table", vec![7; 1 << 20])?;
//! let options = freehold::OpenOptions::new().read(true).direct(true);
//! let table = volume.block_on(files.open("/table", options))?;
//! let buffers = files.buffers(32, 4096)?;
//! let reader = async |first: u64| {
//!     let mut buffer = buffers.take().expect("one for each reader");
//!     for page in (first..256).step_by(32) {
//!         let (back, read) = table.read_fixed_at(buffer, page * 4096).await;
//!         assert_eq!((read?, back[0]), (4096, 7));
//!         buffer = back;
//!     }
//!     freehold::Result::Ok(())
//! };
//! freehold::join_polled(&volume, (0..32).map(reader).collect())?;
//! # volume.block_on(table.close())?;
//! # volume.close_blocking()?;
//! # Ok(())
//! # }
//! ```
//!
//! One process owns an open volume: a second open of the image fails
//! with `EBUSY` until the first one closed it or its process ended.

pub mod bench;
pub mod bucket;
pub mod control;
pub mod device;
mod image;
mod medium;
pub mod memory;
pub mod metrics;
pub mod mounts;
pub mod observe;
pub mod options;
pub mod patience;
mod rights;
pub mod service;
pub mod sessions;

pub use block::{Counters, MkfsOptions, MkfsReport, OpenOptions as VolumeOptions, Synchronous, Volume};
pub use fs::client::{Buffer, Buffers};
pub use fs::{
    Attr, Blocking, Client, Cred, Error, File, FileSystem, FileType, OpenOptions, Result, StatFs, Time,
    join_all, join_polled,
};
pub use fuse::{Mount, MountOptions, remount};
pub use image::{Allocated, Allocation, create_image, foreign_content, identity};
use media::Media;
pub use medium::{absolute, nvme_address};
pub use object::Bucket;
pub use share::Remote;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Opens the medium at `path`: an image file or a block device, by io_uring with direct I/O where there is such, or, as
/// `nvme:0000:00:04.0`, the NVMe controller at this PCI address, which is bound to vfio-pci and driven by this process: its first active
/// namespace, or `nvme:0000:00:04.0n2`, that with the identifier 2.
///
/// # Errors
/// `Media`: it does not exist, must not be opened, somebody else uses it (`EBUSY`), is read-only (`EROFS`).
pub fn medium(path: impl AsRef<Path>, read_only: bool) -> Result<Arc<dyn Media>> {
    Ok(medium::open_media(path.as_ref(), read_only, None)?)
}

/// Makes an empty volume in an image file or on a block device, of the medium's size. Everything on it is lost. An image whose
/// space was reserved keeps it.
///
/// # Errors
/// `Exists` (there is a volume, or something else of value, see [`foreign_content`], and `force` is not set), `Invalid` (size, label),
/// `Media`.
pub fn mkfs(path: impl AsRef<Path>, options: &MkfsOptions) -> Result<MkfsReport> {
    let path = path.as_ref();
    if !options.force && foreign_content(path)?.is_some() {
        return Err(Error::Exists);
    }
    let reserved = image::is_reserved(path);
    let report = block::mkfs(medium(path, false)?, options)?;
    if reserved {
        // The engine has discarded all of the medium, which gives the space of a file back.
        create_image(path, report.bytes, Allocation::Full)?;
    }
    Ok(report)
}

/// Opens the volume in an image file or on a block device. After an unclean stop the log is taken over.
///
/// # Errors
/// `NotAVolume`, `Corrupt`, `Media` (`EBUSY`: another process has it open), `Busy` (`read_only`, and the log of an unclean stop
/// would have to be written home first).
pub fn open(path: impl AsRef<Path>, options: VolumeOptions) -> Result<Volume> {
    let medium = medium(path, options.read_only)?;
    Volume::open(medium, options)
}

/// A user of an open volume, with these credentials, in its root directory.
pub fn client(volume: &Volume, cred: Cred) -> Client<Volume> {
    Client::new(Arc::new(volume.clone()), cred)
}

/// A user of a volume that another process serves with `-o share=SOCKET`, in its root directory. Permissions are those of this
/// process, whose credentials the server learns from the kernel.
///
/// # Errors
/// Those of connect(2): `NotFound` and `ConnectionRefused` when nobody serves there; `PermissionDenied` when the server serves another
/// user alone; `InvalidData` when it speaks another version.
pub fn connect(socket: impl AsRef<Path>) -> io::Result<Client<Remote>> {
    Ok(Client::new(Arc::new(Remote::connect(socket)?), Cred::of_process()))
}

/// Mounts an open volume at the directory `at` by FUSE, served by threads of this process. Returns when it can be used.
///
/// # Errors
/// As [`fuse::mount`]. After an error nothing is mounted, and the volume is still open.
pub fn mount(volume: &Volume, at: impl AsRef<Path>, options: MountOptions) -> io::Result<Mount> {
    fuse::mount(Arc::new(volume.clone()), at.as_ref(), options)
}

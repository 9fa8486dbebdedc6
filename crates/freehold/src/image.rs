//! Image files and what stands on a device before mkfs: making images, and recognising what somebody else left there.
//!
//! Tested at the end of this file and in `tests/cli.rs`.

use crate::{Error, Result};
use format::limits::BLOCK_SIZE;
use format::superblock::{SUPERBLOCKS, Superblock};
use media::MediaError;
use rustix::fs::FallocateFlags;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// How the space of an image file is taken from the file system that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// At once, so that writes into the image neither wait for allocation nor run out of space.
    Full,
    /// When it is first written.
    Sparse,
}

/// How the space of an image was taken, see [`create_image`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocated {
    /// As asked.
    AsAsked,
    /// The file system below cannot reserve space; the image is sparse.
    SparseInstead,
}

fn failed(path: &Path, doing: &'static str, e: io::Error) -> Error {
    let errno = e.raw_os_error().unwrap_or(libc::EIO);
    MediaError::Setup { device: path.display().to_string(), doing, errno }.into()
}

/// Makes an image file of `bytes` bytes, which its owner alone can read, whatever may be read in the volume; or extends one that is shorter. A longer one
/// stays as it is, and so do the permissions of one that is there.
///
/// # Errors
/// `Media` with the system's errno. A file that was made is removed again.
pub fn create_image(path: impl AsRef<Path>, bytes: u64, how: Allocation) -> Result<Allocated> {
    let path = path.as_ref();
    let existed = path.exists();
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
    let file = file.map_err(|e| failed(path, "creating it", e))?;
    let sized = set_size(&file, bytes, how);
    if sized.is_err() && !existed {
        let _ = std::fs::remove_file(path);
    }
    sized.map_err(|e| failed(path, "giving it its size", e))
}

fn set_size(file: &File, bytes: u64, how: Allocation) -> io::Result<Allocated> {
    let old = file.metadata()?.len();
    if how == Allocation::Full && bytes > 0 {
        // tmpfs gives up, and takes back what it had reserved, when any signal comes.
        let reserve = || rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes);
        match rustix::io::retry_on_intr(reserve) {
            Ok(()) => return Ok(Allocated::AsAsked),
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {}
            Err(e) => {
                // What was reserved before it failed is given back.
                let _ = file.set_len(old);
                return Err(e.into());
            }
        }
    }
    if bytes > old {
        file.set_len(bytes)?;
    }
    Ok(if how == Allocation::Full { Allocated::SparseInstead } else { Allocated::AsAsked })
}

/// Whether all space of an image file is taken.
pub(crate) fn is_reserved(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.blocks() * 512 >= m.len())
}

/// Whether it is a block device that takes no writes.
pub(crate) fn is_read_only_device(path: &Path) -> bool {
    let Ok(meta) = std::fs::metadata(path) else { return false };
    let number = format!("{}:{}", libc::major(meta.rdev()), libc::minor(meta.rdev()));
    meta.file_type().is_block_device()
        && std::fs::read(format!("/sys/dev/block/{number}/ro")).is_ok_and(|ro| ro.starts_with(b"1"))
}

/// Signatures of those who may own a device: name, offset, bytes.
const SIGNATURES: &[(&str, u64, &[u8])] = &[
    ("an ext2, ext3 or ext4 file system", 0x438, b"\x53\xef"),
    ("an XFS file system", 0, b"XFSB"),
    ("a Btrfs file system", 0x10040, b"_BHRfS_M"),
    ("an F2FS file system", 0x400, b"\x10\x20\xf5\xf2"),
    ("an EROFS file system", 0x400, b"\xe2\xe1\xf5\xe0"),
    ("a bcachefs file system", 0x1018, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"),
    ("a SquashFS file system", 0, b"hsqs"),
    ("an NTFS file system", 3, b"NTFS    "),
    ("an exFAT file system", 3, b"EXFAT   "),
    ("a FAT file system", 0x36, b"FAT1"),
    ("a FAT file system", 0x52, b"FAT32"),
    ("an ISO 9660 file system", 0x8001, b"CD001"),
    ("swap space", 0xff6, b"SWAPSPACE2"),
    ("a LUKS volume", 0, b"LUKS\xba\xbe"),
    ("an LVM physical volume", 0x200, b"LABELONE"),
    ("a member of a Linux RAID", 0x1000, b"\xfc\x4e\x2b\xa9"),
    ("a partition table (GPT)", 0x200, b"EFI PART"),
    ("a partition table (MBR) or boot sector", 0x1fe, b"\x55\xaa"),
];

/// What of value, other than a Freehold volume, seems to be on a device or in a file: `None` when nothing is. Files count as
/// empty when their first MiB is zeros; on block devices only known signatures count, because old data is normal there.
///
/// # Errors
/// `Media`: it cannot be opened or read.
pub fn foreign_content(path: impl AsRef<Path>) -> Result<Option<&'static str>> {
    let path = path.as_ref();
    if crate::nvme_address(path).is_some() {
        return Ok(foreign(&head_of_controller(path)?.0));
    }
    let look = || -> io::Result<Option<&'static str>> {
        let mut file = File::open(path)?;
        let mut head = Vec::new();
        file.by_ref().take(1 << 20).read_to_end(&mut head)?;
        if SUPERBLOCKS.iter().any(|b| superblock(&head, b.byte()).is_some()) {
            return Ok(None);
        }
        if let Some(name) = foreign(&head) {
            return Ok(Some(name));
        }
        let regular = !file.metadata()?.file_type().is_block_device();
        Ok((regular && head.iter().any(|&b| b != 0)).then_some("data of another kind"))
    };
    look().map_err(|e| failed(path, "looking at what it holds", e))
}

/// Whose signature stands in the first MiB, unless there is a superblock of ours.
fn foreign(head: &[u8]) -> Option<&'static str> {
    if SUPERBLOCKS.iter().any(|b| superblock(head, b.byte()).is_some()) {
        return None;
    }
    let is = |at: u64, magic: &[u8]| head.get(at as usize..).is_some_and(|rest| rest.starts_with(magic));
    SIGNATURES.iter().find(|(_, at, magic)| is(*at, magic)).map(|(name, ..)| *name)
}

/// The first MiB of an NVMe controller, and its size. It must be free.
fn head_of_controller(path: &Path) -> Result<(Vec<u8>, u64)> {
    let medium = crate::medium(path, true)?;
    let bytes = medium.geometry().bytes;
    let mut head = vec![0; bytes.min(1 << 20) as usize];
    media::blocking::Blocking::new(medium)?.read(0, &mut head)?;
    Ok((head, bytes))
}

fn superblock(head: &[u8], at: u64) -> Option<Superblock> {
    Superblock::parse(head.get(at as usize..at as usize + BLOCK_SIZE)?).ok()
}

/// The superblock of the volume on a device or in an image, and the size of that in bytes. Needs no lock: a superblock does not
/// change after mkfs.
///
/// # Errors
/// `Media`; `NotAVolume` when neither copy is whole.
pub fn identity(path: impl AsRef<Path>) -> Result<(Superblock, u64)> {
    let path = path.as_ref();
    if crate::nvme_address(path).is_some() {
        let (head, size) = head_of_controller(path)?;
        let found = SUPERBLOCKS.iter().find_map(|b| superblock(&head, b.byte()));
        return found
            .map(|sb| (sb, size))
            .ok_or_else(|| Error::NotAVolume("neither copy of the superblock is whole".into()));
    }
    let look = || -> io::Result<(Option<Superblock>, u64)> {
        let mut file = File::open(path)?;
        let size = file.seek(SeekFrom::End(0))?;
        let mut block = vec![0; BLOCK_SIZE];
        for at in SUPERBLOCKS {
            let whole = size >= at.byte() + BLOCK_SIZE as u64;
            if whole
                && file.read_exact_at(&mut block, at.byte()).is_ok()
                && let Some(sb) = superblock(&block, 0)
            {
                return Ok((Some(sb), size));
            }
        }
        Ok((None, size))
    };
    let (sb, size) = look().map_err(|e| failed(path, "reading its superblock", e))?;
    sb.map(|sb| (sb, size)).ok_or_else(|| Error::NotAVolume("neither copy of the superblock is whole".into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn other_file_systems_are_recognised() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        for (name, at, magic) in SIGNATURES {
            create_image(&path, 2 << 20, Allocation::Sparse).unwrap();
            assert_eq!(foreign_content(&path).unwrap(), None);
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            file.write_all_at(magic, *at).unwrap();
            assert_eq!(foreign_content(&path).unwrap(), Some(*name));
            std::fs::remove_file(&path).unwrap();
        }
        File::create(&path).unwrap().write_all(b"%PDF-1.7").unwrap();
        assert_eq!(foreign_content(&path).unwrap(), Some("data of another kind"));
        assert!(matches!(identity(&path), Err(Error::NotAVolume(_))));
    }

    #[test]
    fn images_are_their_owners_alone() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let mode = || path.metadata().unwrap().mode() & 0o7777;
        create_image(&path, 1 << 20, Allocation::Sparse).unwrap();
        assert_eq!(mode(), 0o600);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        create_image(&path, 2 << 20, Allocation::Full).unwrap();
        assert_eq!(mode(), 0o640, "they may be given to others");
    }

    #[test]
    fn images_grow_and_never_shrink() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        create_image(&path, 4 << 20, Allocation::Full).unwrap();
        create_image(&path, 1 << 20, Allocation::Sparse).unwrap();
        assert_eq!(path.metadata().unwrap().len(), 4 << 20);
        create_image(&path, 8 << 20, Allocation::Full).unwrap();
        assert_eq!(path.metadata().unwrap().len(), 8 << 20);
    }
}

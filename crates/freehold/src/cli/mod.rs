//! The subcommands, and what they share.

pub mod cat;
pub mod cp;
mod daemon;
pub mod df;
pub mod dump;
mod explain;
pub mod fsck;
pub mod helper;
mod host;
mod inside;
mod log;
pub mod ls;
pub mod mkfs;
pub mod mount;
pub mod serve;
mod show;
mod tree;
pub mod umount;

use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Whether it is a block device.
fn is_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device())
}

/// A UUID as it is usually written.
fn uuid(bytes: &[u8; 16]) -> String {
    let hex: Vec<String> = bytes.iter().map(|b| format!("{b:02x}")).collect();
    [0..4, 4..6, 6..8, 8..10, 10..16].map(|part| hex[part].concat()).join("-")
}

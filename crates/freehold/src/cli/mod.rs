//! The subcommands, and what they share.

mod ask;
pub mod cat;
pub mod clients;
pub mod cp;
mod daemon;
pub mod device;
pub mod df;
pub mod dump;
mod explain;
mod facts;
pub mod fsck;
pub mod helper;
mod host;
mod inside;
mod log;
pub mod ls;
pub mod mkfs;
pub mod mount;
pub mod object;
mod opening;
pub mod output;
pub mod run;
pub mod serve;
mod show;
pub mod top;
mod tree;
pub mod umount;

use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// An end with an exit code of its own.
#[derive(Debug)]
pub struct Exit {
    pub code: u8,
    /// What is said to the user; empty when everything has been said.
    pub message: String,
}

impl Exit {
    /// The exit code of a command that failed with `e`.
    pub fn code_of(e: &anyhow::Error) -> u8 {
        e.downcast_ref::<Exit>().map_or(1, |exit| exit.code)
    }

    /// Says `e` on standard error, unless there is nothing left to say.
    pub fn tell(name: &str, e: &anyhow::Error) {
        if e.downcast_ref::<Exit>().is_none_or(|exit| !exit.message.is_empty()) {
            eprintln!("{name}: {e:#}");
        }
    }
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Exit {}

/// Whether it is a block device.
fn is_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device())
}

/// A UUID as it is usually written.
fn uuid(bytes: &[u8; 16]) -> String {
    let hex: Vec<String> = bytes.iter().map(|b| format!("{b:02x}")).collect();
    [0..4, 4..6, 6..8, 8..10, 10..16].map(|part| hex[part].concat()).join("-")
}

//! What a device answers when it fails.

/// A failed request, or a device that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MediaError {
    /// The device answered with an error number.
    #[error("{device}: {op} at byte {offset}: {}", std::io::Error::from_raw_os_error(*.errno))]
    Io {
        /// Which device.
        device: String,
        /// What was asked: "read", "write", "flush", "discard".
        op: &'static str,
        /// Where, bytes.
        offset: u64,
        /// errno(3) value.
        errno: i32,
    },
    /// Fewer bytes than asked for were transferred.
    #[error("{device}: {op} at byte {offset} moved {moved} of {asked} bytes")]
    Short {
        /// Which device.
        device: String,
        /// What was asked.
        op: &'static str,
        /// Where, bytes.
        offset: u64,
        /// Bytes transferred.
        moved: u64,
        /// Bytes asked for.
        asked: u64,
    },
    /// The request is not one that the device takes: misaligned, beyond the end, memory that is not registered.
    #[error("{device}: request refused: {why}")]
    Refused {
        /// Which device.
        device: String,
        /// The broken rule.
        why: &'static str,
    },
    /// The device is gone.
    #[error("{device}: device is gone")]
    Gone {
        /// Which device.
        device: String,
    },
    /// Opening or preparing the device failed.
    #[error("{device}: {doing}: {}", std::io::Error::from_raw_os_error(*.errno))]
    Setup {
        /// Which device.
        device: String,
        /// What was tried.
        doing: &'static str,
        /// errno(3) value.
        errno: i32,
    },
}

impl MediaError {
    /// The errno(3) value that fits best.
    pub fn errno(&self) -> i32 {
        match self {
            MediaError::Io { errno, .. } | MediaError::Setup { errno, .. } => *errno,
            MediaError::Gone { .. } => libc::ENODEV,
            MediaError::Short { .. } | MediaError::Refused { .. } => libc::EIO,
        }
    }
}

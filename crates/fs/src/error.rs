//! Errors of the contract. Inside, they say what happened; the errno is decided here and nowhere else.

use format::FormatError;
use media::MediaError;

/// Result of a call of the contract.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed. [`Error::errno`] gives the number that a door reports.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "each message says what the variant means")]
pub enum Error {
    #[error("no such file or directory")]
    NotFound,
    #[error("file exists")]
    Exists,
    #[error("not a directory")]
    NotDirectory,
    #[error("is a directory")]
    IsDirectory,
    #[error("directory is not empty")]
    NotEmpty,
    #[error("permission denied")]
    AccessDenied,
    #[error("operation not permitted")]
    NotPermitted,
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    #[error("name is too long (255 bytes at most; paths 4095)")]
    NameTooLong,
    #[error("too many levels of symbolic links")]
    SymlinkLoop,
    #[error("file is too large (1 EiB at most)")]
    TooLarge,
    #[error("no space left on volume")]
    NoSpace,
    #[error("no such open file")]
    BadHandle,
    #[error("inode no longer exists")]
    Stale,
    #[error("too many names for one file")]
    TooManyLinks,
    #[error("volume is read-only")]
    ReadOnly,
    #[error("volume was latched read-only after an I/O error: {0}")]
    Latched(String),
    #[error("no such attribute")]
    NoAttribute,
    #[error("value does not fit (attribute values: 65,536 bytes; all attributes of an inode: 131,072)")]
    AttributeTooLarge,
    #[error("buffer is too small")]
    BufferTooSmall,
    #[error("not supported: {0}")]
    NotSupported(&'static str),
    #[error("lock is held by another")]
    WouldBlock,
    #[error("waiting for the lock would never end")]
    Deadlock,
    #[error("too many locks")]
    TooManyLocks,
    #[error("no data or hole at or behind this offset")]
    NoSuchOffset,
    #[error("interrupted")]
    Interrupted,
    #[error("both are on different volumes")]
    CrossDevice,
    #[error("a directory cannot be moved into itself")]
    IntoItself,
    #[error("too many open files")]
    TooManyOpen,
    #[error("volume is being closed")]
    Closed,
    #[error("volume is in use: {0}")]
    Busy(String),
    #[error("device: {0}")]
    Media(#[from] MediaError),
    #[error("damaged: {0}")]
    Corrupt(#[from] FormatError),
    #[error("not a Freehold volume: {0}")]
    NotAVolume(String),
    #[error("{message}")]
    Remote { errno: i32, message: String },
}

impl Error {
    /// The errno(3) value of this error.
    pub fn errno(&self) -> i32 {
        use libc::*;
        match self {
            Error::NotFound => ENOENT,
            Error::Exists => EEXIST,
            Error::NotDirectory => ENOTDIR,
            Error::IsDirectory => EISDIR,
            Error::NotEmpty => ENOTEMPTY,
            Error::AccessDenied => EACCES,
            Error::NotPermitted => EPERM,
            Error::Invalid(_) | Error::IntoItself => EINVAL,
            Error::NameTooLong => ENAMETOOLONG,
            Error::SymlinkLoop => ELOOP,
            Error::TooLarge => EFBIG,
            Error::NoSpace => ENOSPC,
            Error::BadHandle => EBADF,
            Error::Stale => ESTALE,
            Error::TooManyLinks => EMLINK,
            Error::ReadOnly => EROFS,
            Error::Latched(_) => EIO,
            Error::NoAttribute => ENODATA,
            Error::AttributeTooLarge => E2BIG,
            Error::BufferTooSmall => ERANGE,
            Error::NotSupported(_) => EOPNOTSUPP,
            Error::WouldBlock => EAGAIN,
            Error::Deadlock => EDEADLK,
            Error::TooManyLocks => ENOLCK,
            Error::NoSuchOffset => ENXIO,
            Error::Interrupted => EINTR,
            Error::CrossDevice => EXDEV,
            Error::TooManyOpen => ENFILE,
            Error::Closed => ESHUTDOWN,
            Error::Busy(_) => EBUSY,
            Error::Media(e) => match e.errno() {
                ENODEV => ENODEV,
                _ => EIO,
            },
            Error::Corrupt(_) => EUCLEAN,
            Error::NotAVolume(_) => EINVAL,
            Error::Remote { errno, .. } => *errno,
        }
    }

    /// The error that another process reported: the variant with this errno where there is only one, else [`Error::Remote`]
    /// with what that process said.
    pub fn from_errno(errno: i32, message: String) -> Error {
        const PLAIN: [Error; 25] = [
            Error::NotFound,
            Error::Exists,
            Error::NotDirectory,
            Error::IsDirectory,
            Error::NotEmpty,
            Error::AccessDenied,
            Error::NotPermitted,
            Error::NameTooLong,
            Error::SymlinkLoop,
            Error::TooLarge,
            Error::NoSpace,
            Error::BadHandle,
            Error::Stale,
            Error::TooManyLinks,
            Error::ReadOnly,
            Error::NoAttribute,
            Error::AttributeTooLarge,
            Error::BufferTooSmall,
            Error::WouldBlock,
            Error::Deadlock,
            Error::TooManyLocks,
            Error::NoSuchOffset,
            Error::Interrupted,
            Error::CrossDevice,
            Error::TooManyOpen,
        ];
        match PLAIN.into_iter().find(|e| e.errno() == errno) {
            Some(e) => e,
            None if errno == libc::ESHUTDOWN => Error::Closed,
            None => Error::Remote { errno, message },
        }
    }
}

impl From<Error> for std::io::Error {
    fn from(e: Error) -> Self {
        std::io::Error::from_raw_os_error(e.errno())
    }
}

//! What a store's error is to those who call the file system. The only place where that is decided.

use crate::store::{Obstacle, StoreError};
use fs::Error;

/// The error of the contract, with `what` was to be done for the text.
pub fn of(what: &str, e: StoreError) -> Error {
    let message = format!("{what}: {e}");
    match e {
        StoreError::NotFound => Error::NotFound,
        // The object is not the one that was opened.
        StoreError::Precondition => Error::Stale,
        StoreError::Denied(_) => {
            tracing::error!("{message}");
            Error::AccessDenied
        }
        StoreError::NotSupported(what) => Error::NotSupported(what),
        StoreError::Full(_) => {
            tracing::error!("{message}");
            Error::NoSpace
        }
        StoreError::InTheWay(obstacle, _) => {
            tracing::warn!("{message}");
            match obstacle {
                Obstacle::ParentIsFile => Error::NotDirectory,
                Obstacle::IsDirectory => Error::IsDirectory,
                Obstacle::NotEmpty => Error::NotEmpty,
            }
        }
        StoreError::NoSuchBucket(_)
        | StoreError::Refused(_)
        | StoreError::Damaged(_)
        | StoreError::Unavailable(_) => {
            tracing::error!("{message}");
            Error::Remote { errno: libc::EIO, message }
        }
    }
}

//! A bucket as a file system (US3FS, and beyond it): [`ObjectFs`].
//!
//! [`Bucket`] opens one by its URL. [`store`] is what the engine asks of an object store. Nothing is kept in a bucket that other tools for it would not understand; what they have
//! put there is shown as [`names`] and [`attrs`] say.
//!
//! - Names: `tree` holds what is known of the bucket, `lookup` and `list` ask for what is not, or no longer.
//! - Data: `change` is how an open file differs from its object, `stream` sends parts as they fill, `plan` cuts the rest, `commit` makes the object.
//!   `readahead` reads.
//! - `making`, `setting` and `rename` change names and attributes.
//! - [`checksum`]: that of a whole follows from those of its pieces. `progress` tells how far operations are that take long. `budget` bounds memory,
//!   `pool` keeps it for the next use. `core` says on which thread what runs, and in which order locks are taken.
//!
//! What a program may rely on, and what not, is written in docs/SEMANTICS.md.

pub mod attrs;
pub mod bucket;
mod budget;
mod change;
pub mod checksum;
mod commit;
mod core;
mod error;
mod file;
mod filesystem;
mod given;
mod handles;
mod inode;
mod list;
mod lookup;
mod making;
pub mod names;
pub mod options;
pub mod plan;
mod pool;
pub mod progress;
mod read;
mod readahead;
mod rename;
pub mod s3;
mod setting;
pub mod store;
mod stream;
mod tree;
mod tried;

pub use bucket::Bucket;
pub use filesystem::ObjectFs;
pub use options::Options;

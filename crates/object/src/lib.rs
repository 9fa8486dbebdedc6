//! A bucket as a file system (US3FS, and beyond it).
//!
//! [`store`] is what the engine asks of an object store. Nothing is kept in a bucket that other tools for it would not understand.

pub mod attrs;
pub mod budget;
pub mod change;
pub mod names;
pub mod plan;
pub mod s3;
pub mod store;

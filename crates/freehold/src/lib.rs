//! Freehold: a file system that user space owns. See [`bench`] for how it is measured.

pub mod bench;

//! The library for C programs: `include/freehold.h` over a session with a manager ([`share::Remote`]), or over a bucket
//! ([`object::ObjectFs`]).
//!
//! The header is the contract; here is how it is kept:
//! - No panic crosses the border: every function runs inside of [`border::guard`], which turns one into `-EIO`.
//! - What C holds are boxes that were given away. Files and queues keep their session alive, so that objects may be freed in any
//!   order.
//! - A NULL where an object belongs is `-EINVAL`, where memory or a string belongs `-EFAULT`. Other wrong pointers cannot be
//!   noticed; that they are right is what the `SAFETY` comments refer to as "the header".
//!
//! Tested by `tests/c.rs`, which compiles C programs and runs them against a served volume, and against a bucket of a simulated store.

mod border;
mod dirs;
mod engine;
mod files;
mod names;
mod queue;
mod session;
mod xattrs;

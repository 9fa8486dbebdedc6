//! The engine over stores that fail: what it is built of is compiled once for all of these tests.

mod crash;
mod files;
mod growing;
mod names;
mod others;
mod rig;
mod stack;

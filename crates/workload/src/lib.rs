//! Filebench's personalities fileserver, varmail, webserver and webproxy, as a program that does nothing but ordinary file calls.
//! It runs unchanged on any mounted file system, and on one that a library loaded before it (LD_PRELOAD) provides. It knows
//! nothing of Freehold.
//!
//! # What is run
//!
//! The parameters are those of table 7 of the UHSFS paper, "Filebench's default configuration"; the columns that the table leaves
//! out, and the flows, are from `workloads/*.f` of Filebench 1.5 ([`personality`]):
//!
//! | | files | mean size | directory width | exist at start | append | one read or write | threads |
//! |---|---|---|---|---|---|---|---|
//! | fileserver | 10000 | 128 KiB | 20 | 80 % | < 16 KiB | 1 MiB | 50 |
//! | varmail | 1000 | 16 KiB | 1000000 | 80 % | < 16 KiB | 1 MiB | 16 |
//! | webserver | 1000, and a log | 16 KiB | 20 | 100 % | < 16 KiB | 1 MiB | 100 |
//! | webproxy | 10000 | 16 KiB | 1000000 | 80 % | < 16 KiB | 1 MiB | 100 |
//!
//! Each thread repeats the personality's flow:
//!
//! - fileserver: create, write whole, close; open, append, close; open, read whole, close; delete; stat
//! - varmail: delete; create, append, fsync, close; open, read whole, append, fsync, close; open, read whole, close
//! - webserver: ten times open, read whole, close; append to the log
//! - webproxy: delete; create, append, close; five times open, read whole, close
//!
//! # What is counted
//!
//! As in Filebench each step of the flow is one operation, however many calls it takes (a read of a whole file is a seek and
//! reads until one returns nothing; an append is a seek to the end and a write). Making the file set before the run and removing
//! it afterwards are not counted; making is reported by itself. A round that the deadline cuts off counts as far as it came. The
//! length of the run is from the common start to the end of the last operation that was under way at the deadline.
//!
//! # Where it differs from Filebench
//!
//! - Exactly four fifths of a set exist at the start, and deletion passes over files that are open, where Filebench tosses coins
//!   and drops the deletion: so the number of files stays where it is, and every round has every operation ([`states`]).
//! - It does not look at the parent directory before it creates a file, and opening the log, once per thread, is not counted.
//! - A file that is longer than one write gets its planned length; Filebench writes too much to it.
//! - A set that is there already is an error; Filebench removes it.
//! - Nothing limits the length of the log or pauses between rounds.
//!
//! # How it works
//!
//! [`run()`] plans the set from the seed ([`plan`]), forks the processes before any of them touches a file, and leads them through
//! the phases over shared memory ([`board`]). Which file an operation works on is decided across all processes ([`states`]).
//! The first failing call ends the run; the report names call, path and errno. A process that dies, or does not come back after
//! the deadline, ends it too. With one thread the same seed gives the same calls; with more, each thread draws the same lengths,
//! and only who gets which file differs.
//!
//! Tested in each module, and as a whole in `tests/run.rs`.

pub mod board;
pub mod calls;
pub mod config;
pub mod flow;
pub mod mapping;
pub mod personality;
pub mod plan;
mod process;
pub mod random;
pub mod report;
mod run;
pub mod signals;
pub mod states;
pub mod tally;

pub use config::{Config, Invalid};
pub use personality::{Kind, Personality};
pub use report::Report;
pub use run::{Error, run};

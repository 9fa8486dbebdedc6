//! What the processes of a run tell each other, in shared memory: the phase they are in, when to stop, errors and tallies.
//!
//! The parent sets the phase; each process does the phase's work and then notes that it has finished it. Nobody sets a phase
//! before all living processes have finished the one before. Within a phase, work is handed out by a counter, so that it does
//! not matter which processes are alive. Waiting is done by looking at a word every 100 microseconds.

use crate::calls::{Errno, now_ns};
use crate::mapping::Plain;
use crate::personality::KINDS;
use crate::tally::SharedTally;
use std::ffi::CStr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64};
use std::time::Duration;

/// The most processes of a run.
pub const PROCESSES_MAX: usize = 256;
/// The first errors are kept; further ones are counted.
const RECORDS: usize = 8;
/// Bytes of a path that an error keeps; the rest is cut off.
const PATH_MAX: usize = 1024;
/// How often a waiting thread looks.
pub const LOOK: Duration = Duration::from_micros(100);

/// What the processes do, in this order; after an error the first three may be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Phase {
    /// Nothing yet.
    Wait,
    /// One process makes the directories.
    MakeDirs,
    /// All make files.
    MakeFiles,
    /// All repeat the flow.
    Run,
    /// All remove files.
    RemoveFiles,
    /// One process removes the directories.
    RemoveDirs,
    /// All end.
    End,
}

impl Phase {
    const ALL: [Phase; 7] = [
        Phase::Wait,
        Phase::MakeDirs,
        Phase::MakeFiles,
        Phase::Run,
        Phase::RemoveFiles,
        Phase::RemoveDirs,
        Phase::End,
    ];

    fn from_word(word: u32) -> Phase {
        Phase::ALL.get(word as usize).copied().unwrap_or(Phase::End)
    }
}

/// Set by signals that ask for an end; looked at by every thread of the process.
pub static INTERRUPTED: AtomicBool = AtomicBool::new(false);

const GOING: u32 = 0;
const FAILED: u32 = 1;
const ASKED: u32 = 2;

/// The shared memory. All zeros is its first state.
#[repr(C)]
pub struct Board {
    phase: AtomicU32,
    stop: AtomicU32,
    finished: [AtomicU32; PROCESSES_MAX],
    next: [AtomicU32; Phase::ALL.len()],
    /// Threads that wait for the start of the run.
    pub ready: AtomicU32,
    /// When the run started; 0 before.
    pub start_ns: AtomicU64,
    /// When the last thread ended.
    pub end_ns: AtomicU64,
    /// Directories that were made: the first of the plan.
    pub dirs_made: AtomicU32,
    /// Files that were made before the run, and their bytes.
    pub files_made: AtomicU64,
    /// Bytes written into them.
    pub bytes_made: AtomicU64,
    /// Files that were removed after the run.
    pub files_removed: AtomicU64,
    /// Rounds of the flow that were completed.
    pub rounds: AtomicU64,
    /// Operations by kind.
    pub tallies: [SharedTally; KINDS],
    errors: AtomicU32,
    records: [Record; RECORDS],
}

// SAFETY: nothing but atomics of plain bits, and arrays of such.
unsafe impl Plain for Board {}

#[repr(C)]
struct Record {
    complete: AtomicU32,
    errno: AtomicI32,
    call: AtomicU32,
    path_len: AtomicU32,
    path: [AtomicU8; PATH_MAX],
}

/// Calls that errors name.
pub const CALLS: [&str; 12] = [
    "open",
    "write",
    "read",
    "lseek",
    "close",
    "unlink",
    "stat",
    "fsync",
    "mkdir",
    "rmdir",
    "pick a file",
    "start a thread",
];

/// A call of [`CALLS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum Call {
    Open,
    Write,
    Read,
    Seek,
    Close,
    Unlink,
    Stat,
    Fsync,
    Mkdir,
    Rmdir,
    Pick,
    Thread,
}

/// An error as a process has noted it.
#[derive(Clone, Debug)]
pub struct Noted {
    /// The call that failed.
    pub call: &'static str,
    /// The file.
    pub path: String,
    /// The errno.
    pub errno: i32,
}

impl Board {
    /// The phase now.
    pub fn phase(&self) -> Phase {
        Phase::from_word(self.phase.load(Acquire))
    }

    /// Begins `phase`; called by the parent only.
    pub fn begin(&self, phase: Phase) {
        self.phase.store(phase as u32, Release);
    }

    /// Process `i` has finished `phase`.
    pub fn finish(&self, i: usize, phase: Phase) {
        self.finished[i].store(phase as u32, Release);
    }

    /// Whether process `i` has finished `phase`.
    pub fn has_finished(&self, i: usize, phase: Phase) -> bool {
        self.finished[i].load(Acquire) >= phase as u32
    }

    /// The next piece of work of `phase`, counted from 0.
    pub fn take(&self, phase: Phase) -> usize {
        self.next[phase as usize].fetch_add(1, AcqRel) as usize
    }

    /// Whether the work is to end now, because of an error or a signal.
    pub fn stopped(&self) -> bool {
        if INTERRUPTED.load(Relaxed) {
            self.interrupt();
        }
        self.stop.load(Relaxed) != GOING
    }

    /// Ends the work because somebody asked for it. Tidying up still follows.
    pub fn interrupt(&self) {
        let _ = self.stop.compare_exchange(GOING, ASKED, Relaxed, Relaxed);
    }

    /// Whether somebody asked for the end.
    pub fn interrupted(&self) -> bool {
        self.stop.load(Relaxed) == ASKED
    }

    /// Notes that `call` on `path` failed, and ends the work.
    pub fn fail(&self, call: Call, path: &CStr, errno: Errno) {
        self.stop.store(FAILED, Relaxed);
        let i = self.errors.fetch_add(1, AcqRel) as usize;
        let Some(record) = self.records.get(i) else { return };
        let bytes = &path.to_bytes()[..path.to_bytes().len().min(PATH_MAX)];
        record.errno.store(errno.0, Relaxed);
        record.call.store(call as u32, Relaxed);
        record.path_len.store(bytes.len() as u32, Relaxed);
        record.path.iter().zip(bytes).for_each(|(to, &from)| to.store(from, Relaxed));
        record.complete.store(1, Release);
    }

    /// How many calls failed.
    pub fn error_count(&self) -> u32 {
        self.errors.load(Acquire)
    }

    /// The first errors.
    pub fn errors(&self) -> Vec<Noted> {
        let complete = self.records.iter().filter(|r| r.complete.load(Acquire) == 1);
        complete
            .map(|r| {
                let len = (r.path_len.load(Relaxed) as usize).min(PATH_MAX);
                let path: Vec<u8> = r.path[..len].iter().map(|b| b.load(Relaxed)).collect();
                Noted {
                    call: CALLS.get(r.call.load(Relaxed) as usize).copied().unwrap_or("?"),
                    path: String::from_utf8_lossy(&path).into_owned(),
                    errno: r.errno.load(Relaxed),
                }
            })
            .collect()
    }

    /// Waits at the start of the run until the parent lets all threads go; false when the run is not to be.
    pub fn wait_for_start(&self) -> bool {
        self.ready.fetch_add(1, AcqRel);
        while self.start_ns.load(Acquire) == 0 {
            if self.stopped() || self.phase() > Phase::Run {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }

    /// Lets all waiting threads go.
    pub fn start(&self) {
        self.start_ns.store(now_ns(), Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::Mapping;

    #[test]
    fn errors_are_kept_with_path_and_errno_and_stop_the_work() {
        let board = &Mapping::<Board>::new(1).unwrap()[0];
        assert!(!board.stopped());
        for _ in 0..RECORDS + 2 {
            board.fail(Call::Fsync, c"/a/b", Errno(libc::EIO));
        }
        assert!(board.stopped() && !board.interrupted());
        assert_eq!(board.error_count() as usize, RECORDS + 2);
        let errors = board.errors();
        assert_eq!(errors.len(), RECORDS);
        assert_eq!((errors[0].call, errors[0].path.as_str(), errors[0].errno), ("fsync", "/a/b", libc::EIO));
        assert_eq!(CALLS[Call::Thread as usize], "start a thread");
    }
}

//! One of the processes of a run: it does the work of each phase that the parent begins.

use crate::board::{Board, Call, LOOK, Phase};
use crate::calls::{self, Errno, Fd};
use crate::flow::{Failure, Flow, Stage, Until, at, write_file};
use crate::personality::Kind;
use crate::random::Random;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::thread::{Builder, sleep};

/// Threads that make and remove files; more would not make a device faster.
const MAKERS_MAX: u32 = 16;
/// Stack of a thread; its buffers are on the heap.
const STACK: usize = 256 << 10;

/// A process.
pub struct Process<'a> {
    /// Its number, from 0.
    pub index: usize,
    /// The process that began the run.
    pub parent: libc::pid_t,
    /// What its threads work with.
    pub stage: Stage<'a>,
    /// The flow of each thread.
    pub flow: &'a [Kind],
    /// When the flow ends.
    pub until: Until,
    /// Its threads have the numbers from here on.
    pub first_thread: u32,
    /// Its number of threads.
    pub threads: u32,
    /// The seed of the run.
    pub seed: u64,
}

impl Process<'_> {
    /// Does phase after phase until the last, or until the parent is gone.
    pub fn run(&self) {
        let board = self.stage.board;
        // SAFETY: asks for a signal when the parent ends; no memory is involved. It can only fail for a signal that is none.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM as libc::c_ulong) };
        let mut last = Phase::Wait;
        while last != Phase::End {
            let phase = board.phase();
            if phase == last {
                // SAFETY: getppid only returns a number.
                if unsafe { libc::getppid() } != self.parent {
                    return;
                }
                sleep(LOOK);
                continue;
            }
            match phase {
                Phase::Wait | Phase::End => {}
                Phase::MakeDirs => self.once(phase, |b| self.make_dirs(b)),
                Phase::MakeFiles => self.in_threads(self.threads.min(MAKERS_MAX), |_| self.make_files()),
                Phase::Run => self.in_threads(self.threads, |i| {
                    let random = Random::new(self.seed, 1 + u64::from(self.first_thread + i));
                    Flow::new(&self.stage, random).run(self.flow, self.until);
                }),
                Phase::RemoveFiles => self.in_threads(self.threads.min(MAKERS_MAX), |_| self.remove_files()),
                Phase::RemoveDirs => self.once(phase, |b| self.remove_dirs(b)),
            }
            board.finish(self.index, phase);
            last = phase;
        }
    }

    /// Does `work` in the process that comes first.
    fn once(&self, phase: Phase, work: impl FnOnce(&Board)) {
        if self.stage.board.take(phase) == 0 {
            work(self.stage.board);
        }
    }

    fn in_threads(&self, count: u32, work: impl Fn(u32) + Sync) {
        std::thread::scope(|scope| {
            for i in 0..count {
                let work = &work;
                let thread = Builder::new().stack_size(STACK).spawn_scoped(scope, move || work(i));
                if let Err(error) = thread {
                    let errno = Errno(error.raw_os_error().unwrap_or(libc::EAGAIN));
                    self.stage.board.fail(Call::Thread, c"", errno);
                    return;
                }
            }
        });
    }

    fn make_dirs(&self, board: &Board) {
        for dir in &self.stage.plan.dirs {
            if board.stopped() {
                return;
            }
            if let Err(errno) = calls::mkdir(dir) {
                return board.fail(Call::Mkdir, dir, errno);
            }
            board.dirs_made.fetch_add(1, AcqRel);
        }
    }

    fn make_files(&self) {
        let board = self.stage.board;
        while let Some(file) = self.stage.plan.any(board.take(Phase::MakeFiles)) {
            if board.stopped() {
                return;
            }
            if !file.exists {
                continue;
            }
            let make = || -> Result<u64, Failure<'_>> {
                let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR;
                let fd = Fd::open(&file.path, flags).map_err(at(Call::Open, file))?;
                let io_size = self.stage.parameters.io_size;
                let bytes =
                    write_file(&fd, file.size, io_size, self.stage.data).map_err(at(Call::Write, file))?;
                fd.close().map_err(at(Call::Close, file))?;
                Ok(bytes)
            };
            match make() {
                Ok(bytes) => {
                    board.files_made.fetch_add(1, Relaxed);
                    board.bytes_made.fetch_add(bytes, Relaxed);
                }
                Err(Failure(call, file, errno)) => return board.fail(call, &file.path, errno),
            }
        }
    }

    /// Removes whatever files of the plan there are: after an error nobody knows which exist.
    fn remove_files(&self) {
        let board = self.stage.board;
        if (board.dirs_made.load(Acquire) as usize) < self.stage.plan.dirs.len() {
            return;
        }
        while let Some(file) = self.stage.plan.any(board.take(Phase::RemoveFiles)) {
            match calls::unlink(&file.path) {
                Ok(()) => drop(board.files_removed.fetch_add(1, Relaxed)),
                Err(Errno(libc::ENOENT)) => {}
                Err(errno) => board.fail(Call::Unlink, &file.path, errno),
            }
        }
    }

    fn remove_dirs(&self, board: &Board) {
        let made = board.dirs_made.load(Acquire) as usize;
        for dir in self.stage.plan.dirs[..made].iter().rev() {
            if let Err(errno) = calls::rmdir(dir) {
                return board.fail(Call::Rmdir, dir, errno);
            }
        }
    }
}

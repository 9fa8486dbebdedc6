//! The parent of a run: it plans the set, forks the processes, begins one phase after the other and gathers the results.
//!
//! The parent never touches the files, and forks before any process does: so a library loaded before the program begins its
//! work in each process by itself. A process that dies, or a call that does not return long after the deadline, ends the run.

use crate::board::{Board, INTERRUPTED, LOOK, Phase};
use crate::calls::now_ns;
use crate::config::{Config, Invalid};
use crate::flow::{Stage, Until};
use crate::mapping::Mapping;
use crate::personality::Parameters;
use crate::plan::Plan;
use crate::process::Process;
use crate::random::Random;
use crate::report::{Made, Report};
use crate::states::States;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

/// How long processes may take to end after the last phase.
const END: Duration = Duration::from_secs(10);
/// What a process ends with when it panicked.
const PANICKED: i32 = 101;

/// Why a run did not even begin.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration cannot be run.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// There is no memory or no process for it.
    #[error("cannot {0}: {1}")]
    System(&'static str, #[source] io::Error),
}

/// Makes the set, runs, tidies up. Failures of file calls stand in the report.
///
/// It forks: call it while no other thread of the program is at work that a fork would disturb. SIGINT and SIGTERM end it
/// early when `signals::catch` was called before.
///
/// Errors: the configuration cannot be run, or the system has no memory or process left.
pub fn run(config: &Config) -> Result<Report, Error> {
    let parameters = config.parameters()?;
    let plan = Plan::new(&config.dir, &parameters, config.seed).map_err(|_| Invalid::Path)?;
    let no_memory = |error| Error::System("share memory", error);
    let board = Mapping::<Board>::new(1).map_err(no_memory)?;
    let states = States::new(plan.files.iter().map(|f| f.exists)).map_err(no_memory)?;
    let mut data = vec![0; 2 * parameters.io_size.max(parameters.append_size) as usize];
    Random::new(config.seed, u64::MAX).fill(&mut data);

    // SAFETY: getpid only returns a number.
    let parent = unsafe { libc::getpid() };
    let mut run = Run { board: &board[0], children: Vec::new(), problems: Vec::new() };
    let mut first_thread = 0;
    for i in 0..config.processes {
        let stage =
            Stage { plan: &plan, states: &states, board: &board[0], parameters: &parameters, data: &data };
        let threads = share(parameters.threads, config.processes, i);
        let process = Process {
            index: i as usize,
            parent,
            stage,
            flow: config.personality.flow(),
            until: Until {
                after_ns: u64::try_from(config.time.as_nanos()).unwrap_or(u64::MAX),
                rounds: config.rounds.unwrap_or(u64::MAX),
            },
            first_thread,
            threads,
            seed: config.seed,
        };
        first_thread += threads;
        run.fork(&process).map_err(|error| Error::System("fork", error))?;
    }
    Ok(run.phases(config, &parameters, &plan))
}

/// The share of part `i` of `parts`; the parts differ by at most one.
fn share(whole: u32, parts: u32, i: u32) -> u32 {
    whole / parts + u32::from(i < whole % parts)
}

struct Child {
    pid: libc::pid_t,
    alive: bool,
}

struct Run<'a> {
    board: &'a Board,
    children: Vec<Child>,
    problems: Vec<String>,
}

impl Run<'_> {
    fn fork(&mut self, process: &Process<'_>) -> io::Result<()> {
        // SAFETY: the child runs only `Process::run`, which needs nothing of other threads of the parent, and then leaves
        // by `_exit` without running anything of the parent's.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                let done = catch_unwind(AssertUnwindSafe(|| process.run()));
                // SAFETY: ends this process at once; nothing is left to do.
                unsafe { libc::_exit(if done.is_ok() { 0 } else { PANICKED }) }
            }
            pid => {
                self.children.push(Child { pid, alive: true });
                Ok(())
            }
        }
    }

    fn phases(mut self, config: &Config, parameters: &Parameters, plan: &Plan) -> Report {
        let board = self.board;
        let making = now_ns();
        let mut made_ns = 0;
        for phase in [Phase::MakeDirs, Phase::MakeFiles] {
            if !board.stopped() {
                self.phase(phase, None);
                made_ns = now_ns() - making;
            }
        }
        if !board.stopped() {
            self.flow(config, parameters.threads);
        }
        let removing = now_ns();
        if !config.keep {
            self.phase(Phase::RemoveFiles, None);
            self.phase(Phase::RemoveDirs, None);
        }
        let removed_ns = now_ns() - removing;
        self.phase(Phase::End, Some(now_ns() + END.as_nanos() as u64));
        self.reap_all();

        let start = board.start_ns.load(Acquire);
        let run_ns = if start == 0 { 0 } else { board.end_ns.load(Acquire).saturating_sub(start) };
        let made = |count: u64, bytes, ns| Made::new(count, plan.dirs.len() as u64, bytes, ns);
        let mut report = Report::new(config, parameters, board, run_ns);
        report.made = made(board.files_made.load(Relaxed), board.bytes_made.load(Relaxed), made_ns);
        report.removed = (!config.keep).then(|| made(board.files_removed.load(Relaxed), 0, removed_ns));
        report.problems = std::mem::take(&mut self.problems);
        report
    }

    /// The phase in which the flow is repeated: all threads start together.
    fn flow(&mut self, config: &Config, threads: u32) {
        let board = self.board;
        board.begin(Phase::Run);
        while board.ready.load(Acquire) < threads && !self.look() {
            std::thread::sleep(LOOK);
        }
        if board.stopped() {
            return self.phase(Phase::Run, None);
        }
        board.start();
        let longest = config.time.saturating_add(config.patience).as_nanos();
        let limit = now_ns().saturating_add(u64::try_from(longest).unwrap_or(u64::MAX));
        self.phase(Phase::Run, Some(limit));
    }

    /// Begins `phase` and waits until all living processes have finished it; kills them when it is not over at `limit`.
    fn phase(&mut self, phase: Phase, limit: Option<u64>) {
        self.board.begin(phase);
        let mut pause = LOOK;
        loop {
            self.look();
            let mut living = self.children.iter().enumerate().filter(|(_, c)| c.alive);
            if living.all(|(i, _)| self.board.has_finished(i, phase)) {
                return;
            }
            if limit.is_some_and(|limit| now_ns() > limit) {
                let late = self.children.iter().enumerate();
                let late: Vec<usize> = late
                    .filter(|(i, c)| c.alive && !self.board.has_finished(*i, phase))
                    .map(|(i, _)| i)
                    .collect();
                for i in late {
                    self.problems
                        .push(format!("process {i} did not finish {phase:?} in time and was killed"));
                    // SAFETY: the process is our child and has not been waited for, so the number is still its own.
                    unsafe { libc::kill(self.children[i].pid, libc::SIGKILL) };
                    self.reap(i, 0);
                }
                self.board.interrupt();
                return;
            }
            std::thread::sleep(pause);
            // A long phase needs no exact end: the threads note themselves when they ended.
            pause = (pause * 2).min(Duration::from_millis(5));
        }
    }

    /// Takes note of signals and of processes that have ended before their time. True when the work is to end.
    fn look(&mut self) -> bool {
        for i in 0..self.children.len() {
            if self.children[i].alive && self.board.phase() != Phase::End {
                self.reap(i, libc::WNOHANG);
            }
        }
        if INTERRUPTED.load(Relaxed) {
            self.board.interrupt();
        }
        self.board.stopped()
    }

    /// Waits for process `i`; one that ended otherwise than it should is a problem, and ends the work.
    fn reap(&mut self, i: usize, flags: libc::c_int) {
        let mut status = 0;
        // SAFETY: the process is our child and has not been waited for; `status` has room for the answer.
        let pid = unsafe { libc::waitpid(self.children[i].pid, &mut status, flags) };
        if pid != self.children[i].pid {
            return;
        }
        self.children[i].alive = false;
        let how = match status {
            _ if libc::WIFSIGNALED(status) => format!("by signal {}", libc::WTERMSIG(status)),
            _ if libc::WEXITSTATUS(status) != 0 => format!("with status {}", libc::WEXITSTATUS(status)),
            _ if self.board.phase() != Phase::End => "before its time".to_owned(),
            _ => return,
        };
        self.problems.push(format!("process {i} ended {how}"));
        self.board.interrupt();
    }

    /// Waits for the processes that are left, which have nothing more to do.
    fn reap_all(&mut self) {
        for i in 0..self.children.len() {
            while self.children[i].alive {
                self.reap(i, 0);
            }
        }
    }
}

impl Drop for Run<'_> {
    /// When a fork failed, the processes that there are already end.
    fn drop(&mut self) {
        self.board.begin(Phase::End);
        self.reap_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up() {
        assert_eq!([0, 1, 2].map(|i| share(16, 3, i)), [6, 5, 5]);
        assert_eq!([0, 1].map(|i| share(2, 2, i)), [1, 1]);
    }
}

//! Several programs, each of several threads, that work on the same files at the same time. What each has been told holds for all.
//!
//! Verifies: that a call which begins after another one has returned sees what that has changed, whoever made the two and in whichever way (past the kernel
//! under `freehold run`, through the mount, as another user, in a child, by which call: `ways`), and never something that is older than what was seen before; that one of many wins where one can; that nothing which was
//! appended is lost, torn or there twice; that nothing fails that must not, and nothing hangs.
//! Does not verify: what is seen while a change is under way, beyond that it is the state before or after (`register`); access times; crashes.
//!
//! Canary: in `tests/together.rs`.

mod exclusion;
mod kinds;
mod objects;
mod register;
mod ways;
mod worker;

pub use worker::work;

use crate::programs::Start;
use register::{OBJECTS, Shared};
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

/// A program that has not ended so long after it was told to hangs.
const LONGEST: Duration = Duration::from_secs(30);
/// Nothing is said to be under way for longer than this.
const PHASE: Duration = Duration::from_millis(200);
/// Objects that are worked on at a time: few, so that programs meet.
const AT_ONCE: usize = 3;

/// What is to be done.
#[derive(Clone, Debug)]
pub struct Plan {
    /// A directory that is there and may be changed.
    pub dir: PathBuf,
    /// One for each program.
    pub starts: Vec<Start>,
    /// The last program is served by the kernel, the others are not: what the kernel does its own way is left out (docs/SEMANTICS.md, "FUSE").
    pub through_mount: bool,
    /// Threads of each.
    pub threads: usize,
    /// How long.
    pub time: Duration,
    /// Of the random choices.
    pub seed: u64,
    /// Kinds of objects, or a part of their names; none: all.
    pub kinds: Vec<String>,
    /// Changes are said to be made before they are, which must be found.
    pub early: bool,
}

/// Has all programs work, says what they did, and whether everything held.
pub fn run(plan: &Plan) -> io::Result<bool> {
    let dir = plan.dir.join(format!("together.{}", std::process::id()));
    std::fs::create_dir(&dir)?;
    std::fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o777))?;
    let (file, shared) = Shared::make()?;
    shared.early.store(plan.early.into(), std::sync::atomic::Ordering::Relaxed);
    kinds::make_all(&dir)?;
    let mut programs = Vec::new();
    for (number, start) in plan.starts.iter().enumerate() {
        let arguments = [number, plan.threads, file.as_raw_fd() as usize].map(|n| n.to_string());
        let through_mount = plan.through_mount && number + 1 == plan.starts.len();
        let mut command = start.command();
        command.arg("--worker").arg(&dir).args(["--seed", &plan.seed.to_string()]);
        command.args(["--number", &arguments[0], "--threads", &arguments[1], "--shared", &arguments[2]]);
        command.args(through_mount.then_some("--through-mount"));
        programs.push(command.current_dir(&dir).spawn()?);
    }
    let mut rng = <rand::rngs::SmallRng as rand::SeedableRng>::seed_from_u64(plan.seed);
    let is_meant = |kind: &str| plan.kinds.is_empty() || plan.kinds.iter().any(|part| kind.contains(part));
    let objects: Vec<usize> = (0..OBJECTS).filter(|&object| is_meant(&kinds::name(object))).collect();
    let end = Instant::now() + plan.time;
    while Instant::now() < end && !shared.has_failed() && programs.iter_mut().all(runs) {
        let some = rand::seq::index::sample(&mut rng, objects.len(), AT_ONCE.min(objects.len()));
        shared.work_on(some.iter().map(|i| objects[i]));
        std::thread::sleep(PHASE);
    }
    shared.stop();
    let mut good = true;
    for (number, program) in programs.iter_mut().enumerate() {
        good &= ended(number, program, &shared)?;
    }
    good &= !shared.has_failed();
    if good {
        // As they are now, and as one who has done nothing yet sees them: the caller, and us.
        good = objects::look_at_all(&dir, &shared);
    }
    println!("{}", shared.summary());
    println!("{}", if good { "everything held" } else { "NOT everything held" });
    if good {
        std::fs::remove_dir_all(&dir)?;
    }
    Ok(good)
}

fn runs(program: &mut Child) -> bool {
    matches!(program.try_wait(), Ok(None))
}

/// Waits for a program that was told to end; one that hangs is killed.
fn ended(number: usize, program: &mut Child, shared: &Shared) -> io::Result<bool> {
    let end = Instant::now() + LONGEST;
    loop {
        if let Some(status) = program.try_wait()? {
            if !status.success() {
                println!("program {number}: {status}");
            }
            return Ok(status.success());
        }
        if Instant::now() > end {
            println!("program {number} hangs: {}", shared.under_way(number));
            program.kill()?;
            program.wait()?;
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

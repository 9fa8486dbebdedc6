//! Power failures at every moment of a run, and what they leave compared with the states that were passed through.
//!
//! A workload of [`Op`]s runs on an engine over [`SimFlash`] with the reference model beside it; the device keeps a trace.
//! Afterwards every moment of the trace is visited ([`moments`]) and, at each, images are made from the durable contents and
//! subsets of the writes that were not durable yet, torn at the device's atomic unit ([`subsets`]). Each image is mounted and
//! its whole tree read. Verified (docs/SEMANTICS.md):
//! 1. it mounts, and every file, name and attribute can be read;
//! 2. the tree is exactly one that the model had between two calls (or between two chunks of a long write), not older than
//!    the last acknowledged sync and not newer than the call in flight;
//! 3. unless [`Rig::strict`]: single atomic units of pages that were there already may hold what a later call wrote, but
//!    nothing that was written behind a barrier or sync which the tree does not contain;
//! 4. the volume goes on: more operations, a clean stop and a reopen, and power failures during recovery, during those
//!    operations and during the stop, checked in the same way; a recovered state is never lost again and nothing that it
//!    lacked comes back;
//! 5. what [`Rig::audit`] checks, such as that free space is the same however it was found.
//!
//! [`ace`] and [`bounded`] make small workloads, [`clients`] long ones of several clients.
//!
//! Not verified: times, sizes of directories, allocated blocks, concurrent calls but syncs and barriers, real devices.
//! Canaries: devices that lie and engines without order must be caught (crates/block/tests/order_canaries.rs).

pub mod ace;
pub mod bounded;
pub mod clients;
mod memo;
pub mod moments;
mod record;
pub mod subsets;
mod verify;

use crate::driver::Driver;
use crate::model::{HandClock, Model};
use crate::ops::Op;
use crate::snapshot::Snapshot;
use fs::FileSystem;
use media::SimFlash;
use moments::Moment;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use record::Recording;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// An engine under test, driven by one thread.
pub trait Rig {
    /// Its file system.
    type Fs: FileSystem;
    /// What runs its futures. `before_op` may let background work happen.
    type Driver: Driver;

    /// Opens the volume on a device.
    fn open(&self, media: Arc<SimFlash>) -> fs::Result<(Arc<Self::Fs>, Self::Driver)>;
    /// Stops it cleanly.
    fn close(&self, fs: &Self::Fs, driver: &Self::Driver) -> fs::Result<()>;
    /// Overwrites are never seen early.
    fn strict(&self) -> bool;
    /// Writes may end early because there is no space.
    fn full(&self, _fs: &Self::Fs) -> bool {
        false
    }
    /// For canaries: the engine is not given this operation, as one would be that does nothing for it.
    fn ignores(&self, _op: &Op) -> bool {
        false
    }
    /// Checks a device on which the volume is in a state that was found right. Called now and then.
    fn audit(&self, _media: &SimFlash) -> Result<(), String> {
        Ok(())
    }
}

/// What to enumerate.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Seed of everything that is sampled.
    pub seed: u64,
    /// Most moments of a trace that are visited; fewer moments are all visited.
    pub moments: usize,
    /// All subsets are tried when there are at most so many units.
    pub exhaustive: usize,
    /// Subsets of each kind, and of the random ones, when there are more.
    pub sampled: usize,
    /// One in so many images is used further (0: none).
    pub go_on: usize,
    /// Moments visited, and subsets of each kind, in such a further run.
    pub deeper: (usize, usize),
    /// Power fails only after this operation has begun: what is before it was visited with another workload.
    pub from: usize,
    /// Stop the volume cleanly in the end, and let power fail during that as well.
    pub stop: bool,
}

impl Settings {
    /// Few moments and subsets of everything; nothing is used further.
    pub const SMALL: Settings = Settings {
        seed: 0,
        moments: 12,
        exhaustive: 4,
        sampled: 1,
        go_on: 0,
        deeper: (8, 1),
        from: 0,
        stop: true,
    };
}

/// What was enumerated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Crash states that were checked: an image at a moment.
    pub states: usize,
    /// Images that were mounted for it: equal ones of one run once.
    pub mounted: usize,
    /// Moments of traces that were visited.
    pub moments: usize,
    /// Images after which the volume was used further.
    pub went_on: usize,
    /// States that were not the newest possible one.
    pub older: usize,
    /// States with overwrites that were seen early.
    pub early: usize,
}

impl Report {
    /// Adds the numbers of another report.
    pub fn add(&mut self, other: &Report) {
        self.states += other.states;
        self.mounted += other.mounted;
        self.moments += other.moments;
        self.went_on += other.went_on;
        self.older += other.older;
        self.early += other.early;
    }
}

/// Something that broke a promise, told with everything needed to see it again.
pub type Failure = String;

/// Runs `ops` on the volume of `media`, whose tree is that of `start`, and enumerates power failures. `next` is what is done
/// on recovered volumes.
pub fn explore<R: Rig>(
    rig: &R,
    media: Arc<SimFlash>,
    start: &Snapshot,
    ops: &[Op],
    next: &[Op],
    settings: Settings,
) -> Result<Report, Failure> {
    let mut run =
        Run { rig, next, settings, rng: SmallRng::seed_from_u64(settings.seed), report: Report::default() };
    let told = |e| format!("crash seed {}: {e}\nworkload: {}", settings.seed, crate::ops::code(ops));
    run.explore(media, start, ops, settings.moments, settings.sampled, true).map_err(told)?;
    Ok(run.report)
}

/// As [`explore`], of a workload that was run by somebody else: `run` executes it on the device and keeps the states.
fn explore_run<R: Rig>(
    rig: &R,
    media: Arc<SimFlash>,
    settings: Settings,
    run: impl FnOnce() -> Result<Recording, Failure>,
) -> Result<Report, Failure> {
    let rng = SmallRng::seed_from_u64(settings.seed);
    let mut all =
        Run { rig, next: &[], settings: Settings { go_on: 0, ..settings }, rng, report: Report::default() };
    media.set_trace(true);
    let recording = run()?;
    all.visit(&media, recording, settings.moments, settings.sampled, true)?;
    Ok(all.report)
}

/// The tree of a volume that was just made.
pub fn empty() -> Snapshot {
    Model::new(HandClock::default().clock()).snapshot()
}

/// Executes operations without enumeration and returns the tree that they leave: what a workload begins with. The volume
/// is stopped cleanly if `close`, else left as it is after the last operation.
pub fn prepare<R: Rig>(
    rig: &R,
    media: Arc<SimFlash>,
    start: &Snapshot,
    ops: &[Op],
    close: bool,
) -> Result<Snapshot, Failure> {
    let recording = record::record(rig, media, start, ops, close)?;
    Ok(recording.states.last().expect("there is a first state").snapshot.clone())
}

struct Run<'a, R> {
    rig: &'a R,
    next: &'a [Op],
    settings: Settings,
    rng: SmallRng,
    report: Report,
}

impl<R: Rig> Run<'_, R> {
    fn explore(
        &mut self,
        media: Arc<SimFlash>,
        start: &Snapshot,
        ops: &[Op],
        moments: usize,
        sampled: usize,
        outer: bool,
    ) -> Result<(), Failure> {
        media.set_trace(true);
        let stop = self.settings.stop || !outer;
        let recording = record::record(self.rig, media.clone(), start, ops, stop)?;
        self.visit(&media, recording, moments, sampled, outer)
    }

    /// Visits the moments of a run whose trace the device holds.
    fn visit(
        &mut self,
        media: &SimFlash,
        mut recording: Recording,
        moments: usize,
        sampled: usize,
        outer: bool,
    ) -> Result<(), Failure> {
        let trace = media.take_trace().ok_or("the trace is gone")?;
        recording.events = trace.events().len();
        let from = if outer { self.settings.from } else { 0 };
        let all = moments::find(&trace, &recording, from);
        let chosen = moments::choose(all, moments, &mut self.rng);
        let mut seen = HashSet::new();
        let mut memo = memo::Memo::new(&trace);
        let mut cursor = trace.cursor();
        for moment in chosen {
            while cursor.index() < moment.index {
                cursor.step();
            }
            let state = cursor.state();
            let units: Vec<(u64, u32)> =
                state.pending().flat_map(|w| (0..w.units()).map(|u| (w.id, u))).collect();
            let exhaustive = if outer { self.settings.exhaustive } else { self.settings.exhaustive.min(3) };
            self.report.moments += 1;
            for subset in subsets::subsets(&units, exhaustive, sampled, &mut self.rng) {
                let mut hash = DefaultHasher::new();
                (moment.durable, moment.floor).hash(&mut hash);
                units
                    .iter()
                    .zip(&subset)
                    .filter(|(_, kept)| **kept)
                    .for_each(|(unit, _)| unit.hash(&mut hash));
                if !seen.insert(hash.finish()) {
                    continue;
                }
                let mut kept = subset.iter();
                let image = state.crash_image(|_, _| kept.next().copied().unwrap_or(false));
                self.image(image, &recording, &moment, &mut memo, outer)
                    .map_err(|e| format!("{e}\n  {}", subsets::tell(state, &subset)))?;
            }
        }
        Ok(())
    }

    fn image(
        &mut self,
        image: SimFlash,
        recording: &Recording,
        moment: &Moment,
        memo: &mut memo::Memo,
        outer: bool,
    ) -> Result<(), Failure> {
        let told = |e| {
            let (index, of) = (moment.index, recording.events);
            let (floor, top) = (moment.floor, moment.top);
            let what = if outer { "power failure" } else { "second power failure" };
            let op = recording.states[top].op;
            let first = recording.states[floor].op.unwrap_or(0);
            let last = (op.unwrap_or(0) + 4).min(recording.told.len());
            let ops: String = recording.told[first.min(last)..last].concat();
            format!("{what} at event {index} of {of} (operation {op:?}, states {floor}..={top}): {e}{ops}")
        };
        self.report.states += 1;
        let unit = image.config().atomic_unit as u64;
        let again = image.crash_image(|_, _| true);
        let (rig, mounted) = (self.rig, &mut self.report.mounted);
        let look = || {
            *mounted += 1;
            verify::look(rig, Arc::new(image))
        };
        let picture = memo.get(&again, look).map_err(told)?;
        let strict = rig.strict();
        let found = verify::verify(&picture, strict, unit, recording, moment).map_err(told)?;
        self.report.older += (found.state < moment.top) as usize;
        self.report.early += found.early as usize;
        let go_on = self.settings.go_on;
        if outer && !found.early && go_on > 0 && self.rng.random_range(0..go_on) == 0 {
            self.report.went_on += 1;
            self.rig.audit(&again).map_err(|e| told(format!("audit: {e}")))?;
            let start = recording.states[found.state].snapshot.clone();
            let (moments, sampled) = self.settings.deeper;
            self.explore(Arc::new(again), &start, self.next, moments, sampled, false).map_err(told)?;
        }
        Ok(())
    }
}

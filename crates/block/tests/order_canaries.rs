//! What the explorer of crash states (`sim::crash`) must find, each within a bounded number of states, or it is blind:
//! devices that lie about flushes, forced writes and barriers, and engines without order. The last are made from the real one: a
//! layer between it and the device takes from each log record the checksums of the data, so that nothing but the order in
//! which writes happen to arrive keeps data before the record that names them; or syncs and barriers do nothing.
//!
//! With a barrier on each write and a device that keeps barriers, that same engine is right again (which shows that it is the
//! order that is missing, and that the simulated device has barriers), and wrong on a device that takes barriers and
//! ignores them.

mod rig;
mod untied;

use block::Volume;
use media::SimFlash;
use media::flash::Lies;
use rig::{ByHand, Setup};
use sim::crash::bounded::{self, Workload};
use sim::crash::{self, Report, Rig, Settings, ace};
use sim::ops::{Op, Op::*};
use std::sync::Arc;
use untied::Untied;

/// The engine with something taken from it.
#[derive(Clone)]
struct Weak {
    setup: Setup,
    /// Records do not say what the data were.
    untied: bool,
    /// Every write is a barrier.
    barriers: bool,
    /// Calls that do nothing.
    ignores: fn(&Op) -> bool,
}

impl Weak {
    fn new(setup: Setup) -> Weak {
        Weak { setup, untied: false, barriers: false, ignores: |_| false }
    }
}

impl Rig for Weak {
    type Fs = Volume;
    type Driver = ByHand;

    fn open(&self, media: Arc<SimFlash>) -> fs::Result<(Arc<Volume>, ByHand)> {
        match self.untied {
            true => self.setup.start_on(Arc::new(Untied::new(media, self.barriers))),
            false => self.setup.start(media),
        }
    }
    fn close(&self, volume: &Volume, driver: &ByHand) -> fs::Result<()> {
        self.setup.close(volume, driver)
    }
    fn strict(&self) -> bool {
        self.setup.strict
    }
    fn ignores(&self, op: &Op) -> bool {
        (self.ignores)(op)
    }
}

/// Most states in which a canary must be found.
const STATES_MAX: usize = 1500;

/// Explores workloads until something is found. Returns what, and the states before.
fn run(weak: &Weak, workloads: impl Iterator<Item = Workload>) -> (Report, Option<String>) {
    let setup = Setup { lies: Lies::default(), ..weak.setup.clone() };
    let media = setup.make();
    let start = crash::prepare(&setup, media.clone(), &crash::empty(), &ace::tree(), true).unwrap();
    let mut bytes = vec![0; setup.bytes as usize];
    media.peek(0, &mut bytes);
    // A device that lies is made by lying from the beginning.
    let liar = weak.setup.make();
    liar.poke(0, &bytes);
    let mut total = Report::default();
    for (n, workload) in workloads.enumerate() {
        let settings =
            Settings { seed: n as u64, from: workload.from, exhaustive: 5, stop: false, ..Settings::SMALL };
        let fresh = Arc::new(liar.crash_image(|_, _| true));
        match crash::explore(weak, fresh, &start, &workload.ops, &[], settings) {
            Ok(report) => total.add(&report),
            Err(why) => return (total, Some(why)),
        }
    }
    (total, None)
}

#[track_caller]
fn is_caught(weak: &Weak, workloads: impl Iterator<Item = Workload>) {
    let (report, why) = run(weak, workloads);
    let why = why.unwrap_or_else(|| panic!("not caught: {report:?}"));
    let head: String = why.lines().take(4).collect::<Vec<_>>().join("\n");
    println!("caught after {} states: {head}", report.states);
    // Only what power failures show counts.
    assert!(why.contains("power failure at event"), "{why}");
    assert!(report.states <= STATES_MAX, "only after {} states", report.states);
}

/// Operations that write data, each with a persistence point of this kind behind it.
fn writes(kind: usize) -> impl Iterator<Item = Workload> {
    let steps = bounded::steps().into_iter().filter(|s| matches!(s.ops.last(), Some(Write { .. })));
    steps.map(move |step| {
        let ops = bounded::opening();
        let from = ops.len();
        let idle = if kind > 2 { vec![StatFs; 7] } else { Vec::new() };
        Workload { ops: [ops, step.ops, bounded::point(kind, step.handle), idle].concat(), from }
    })
}

fn lying(lies: Lies) -> Weak {
    Weak::new(Setup { lies, ..Setup::on(0, true) })
}

#[test]
fn a_device_that_lies_about_flushes() {
    is_caught(&lying(Lies { flush: true, ..Lies::default() }), writes(1));
}

#[test]
fn a_device_that_lies_about_forced_writes() {
    is_caught(&lying(Lies { fua: true, ..Lies::default() }), bounded::ones().into_iter().step_by(5));
}

#[test]
fn an_engine_whose_sync_does_nothing() {
    let ignores = |op: &Op| matches!(op, Fsync { .. } | Sync);
    is_caught(&Weak { ignores, ..Weak::new(Setup::on(0, true)) }, writes(1));
}

/// On a volume without `strict`: overwrites keep no order but that of barriers.
#[test]
fn an_engine_whose_barrier_does_nothing() {
    let overwrite = |handle, pattern| Write { handle, offset: 0, len: 4096, pattern };
    let workload = |first: u8, second: u8| {
        let ops = bounded::opening();
        let from = ops.len();
        let body =
            vec![overwrite(first, 1), Barrier { handle: first, datasync: false }, overwrite(second, 2)];
        Workload { ops: [ops, body, vec![StatFs; 9]].concat(), from }
    };
    let all = || [workload(0, 2), workload(2, 0)].into_iter();
    let honest = Weak::new(Setup::on(0, false));
    assert_eq!(run(&honest, all()).1, None);
    is_caught(&Weak { ignores: |op| matches!(op, Barrier { .. }), ..honest }, all());
}

#[test]
fn an_engine_without_order_between_data_and_record() {
    for kind in [1, 3] {
        is_caught(&Weak { untied: true, ..Weak::new(Setup::on(0, true)) }, writes(kind));
    }
}

#[test]
fn a_device_that_lies_about_barriers() {
    let ordered =
        Weak { untied: true, barriers: true, ..Weak::new(Setup { discard: false, ..Setup::on(3, true) }) };
    let (report, why) = run(&ordered, writes(3));
    assert_eq!(why, None, "with barriers that hold there is order");
    println!("barriers that hold: {report:?}");
    let setup = Setup { lies: Lies { barrier: true, ..Lies::default() }, ..ordered.setup.clone() };
    is_caught(&Weak { setup, ..ordered }, writes(3));
}

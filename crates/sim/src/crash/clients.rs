//! Long workloads of several clients, each with handles of its own, on the same files and names.
//!
//! Calls that change something are made one after another, by one client or another, so the model knows every state. Syncs and
//! barriers are not waited for by the others: a client that syncs stands still until its call returns, and meanwhile the others go
//! on. A sync promises what was done before it was called, from the moment at which it returns; a barrier orders what is
//! called after it has returned.

use super::ace::{ROOT, RW, WHO};
use super::record::{BEGIN, CLOSED, END, Recording, State, on_the_model};
use super::{Failure, Report, Rig, Settings};
use crate::driver::{Blocking, Driver};
use crate::model::{HandClock, Model};
use crate::ops::{self, Op, Op::*, Space, Tolerance};
use fs::FileSystem;
use media::SimFlash;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::cell::{Cell, RefCell};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

/// Files that all clients use, names 0..FILES of the root; names above lead to what comes and goes.
const FILES: u8 = 4;

/// Makes the files that all clients use.
pub fn tree() -> Vec<Op> {
    let mut ops = Vec::new();
    for name in 0..FILES {
        ops.push(Create {
            who: WHO,
            dir: ROOT,
            name,
            perm: 0o644,
            flags: RW,
            node_into: 8 + name,
            into: name,
        });
        ops.push(Write { handle: name, offset: 0, len: 9000 * (1 + name as u32), pattern: name as u32 });
    }
    ops.push(MkDir { who: WHO, dir: ROOT, name: 6, perm: 0o755, into: 1 });
    ops.push(Sync);
    ops
}

/// What a client does first: it finds and opens what is there.
fn opening() -> Vec<Op> {
    let mut ops = vec![Lookup { who: WHO, dir: ROOT, name: 6, into: 1 }];
    for name in 0..FILES {
        ops.push(Lookup { who: WHO, dir: ROOT, name, into: 8 + name });
        ops.push(Open { who: WHO, node: 8 + name, flags: RW, into: name });
    }
    ops
}

fn some(rng: &mut SmallRng) -> Op {
    let (handle, dir) = (rng.random_range(0..FILES + 1), rng.random_range(0..2));
    let (name, other) = (rng.random_range(4..6), rng.random_range(4..6));
    let offset = match rng.random_range(0..3) {
        0 => rng.random_range(0..16u64) * 4096,
        1 => rng.random_range(0..60_000),
        _ => rng.random_range(0..3u64) * 4096,
    };
    let len = [100, 4096, 4096, 8192, 30_000, 70_000][rng.random_range(0..6)];
    match rng.random_range(0..100) {
        0..46 => Write { handle, offset, len, pattern: rng.random() },
        46..50 => Truncate { who: WHO, node: 8 + handle, size: offset, handle: None },
        50..54 => {
            let all = [Space::Allocate, Space::AllocateKeep, Space::Punch, Space::Zero, Space::ZeroKeep];
            Fallocate { handle, what: all[rng.random_range(0..5)], offset, len: len as u64 }
        }
        54..57 => SetXattr { who: WHO, node: 8 + handle, attr: 0, len, pattern: rng.random(), flags: 0 },
        57..62 => Create { who: WHO, dir, name, perm: 0o644, flags: RW, node_into: 8 + FILES, into: FILES },
        62..66 => Rename { who: WHO, dir, name, new_dir: 1 - dir, new_name: other, flags: 0 },
        66..69 => Unlink { who: WHO, dir, name },
        69..71 => Link { who: WHO, node: 8 + handle, dir, name },
        71..74 => Read { handle, offset, len },
        74..80 => StatFs,
        80..85 => Fsync { handle, datasync: false },
        85..88 => Fsync { handle, datasync: true },
        88..94 => Barrier { handle, datasync: false },
        94..99 => Barrier { handle, datasync: true },
        _ => Sync,
    }
}

/// Runs `count` operations of `clients` clients on a volume whose tree is that of [`tree`], given as `start`, and enumerates
/// power failures as [`super::explore`] does.
pub fn explore<R: Rig>(
    rig: &R,
    media: Arc<SimFlash>,
    start: &crate::Snapshot,
    (clients, count): (usize, usize),
    settings: Settings,
) -> Result<Report, Failure> {
    let device = media.clone();
    super::explore_run(rig, media, settings, || record(rig, device, start, clients, count, settings.seed))
        .map_err(|e| format!("{clients} clients, {count} operations, seed {}: {e}", settings.seed))
}

type Call<'a> = Pin<Box<dyn Future<Output = fs::Result<()>> + 'a>>;

/// Syncs and barriers that have not returned.
struct Beside<'a, D> {
    driver: D,
    media: &'a SimFlash,
    /// Client, number of the operation, call.
    waiting: RefCell<Vec<(usize, usize, Call<'a>)>>,
    /// The newest operation that has begun.
    newest: Cell<usize>,
    told: RefCell<Vec<String>>,
    /// As in [`Recording`].
    closing: RefCell<Vec<(usize, usize)>>,
    syncs: RefCell<Vec<usize>>,
    failed: RefCell<Option<String>>,
}

impl<D: Driver> Beside<'_, D> {
    fn is_waiting(&self, client: usize) -> bool {
        self.waiting.borrow().iter().any(|w| w.0 == client)
    }

    fn poll(&self, ops: &[Op], cx: &mut std::task::Context<'_>) {
        self.waiting.borrow_mut().retain_mut(|(_, index, call)| {
            let Poll::Ready(result) = call.as_mut().poll(cx) else { return true };
            match result {
                Ok(()) => {
                    let durable = !matches!(ops[*index], Barrier { .. });
                    if durable {
                        self.syncs.borrow_mut().push(*index);
                    }
                    self.closing.borrow_mut().push((*index, self.newest.get()));
                    self.told.borrow_mut()[*index] += &format!(", which returns in {}", self.newest.get());
                    self.media.mark(END + *index as u64);
                }
                Err(e) => *self.failed.borrow_mut() = Some(format!("operation {index}: {e}")),
            }
            false
        });
    }
}

/// The driver of the calls that are made beside the waiting ones.
struct With<'a, 'b, D>(&'a Beside<'b, D>, &'a [Op]);

impl<D: Driver> Driver for With<'_, '_, D> {
    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        self.0.driver.block_on(std::future::poll_fn(|cx| {
            self.0.poll(self.1, cx);
            future.as_mut().poll(cx)
        }))
    }
}

fn record<R: Rig>(
    rig: &R,
    media: Arc<SimFlash>,
    start: &crate::Snapshot,
    clients: usize,
    count: usize,
    seed: u64,
) -> Result<Recording, Failure> {
    let clock = HandClock::default();
    let model = Model::from_snapshot(start, clock.clock());
    let (fs, driver) = rig.open(media.clone()).map_err(|e| format!("open failed: {e}"))?;
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut states = vec![State { snapshot: model.snapshot(), op: None }];
    let (mut slots, mut ops) = (Vec::new(), Vec::new());
    for _ in 0..clients {
        slots.push((ops::State::default(), ops::State::default()));
    }
    let beside = Beside {
        driver,
        media: &media,
        waiting: RefCell::default(),
        newest: Cell::new(0),
        told: RefCell::default(),
        closing: RefCell::default(),
        syncs: RefCell::default(),
        failed: RefCell::default(),
    };
    // Who does what is decided by the seed alone, but that who waits does nothing.
    let mut todo: Vec<(usize, Op)> =
        (0..clients).flat_map(|c| opening().into_iter().map(move |op| (c, op))).rev().collect();
    while ops.len() < count || !todo.is_empty() {
        let (client, op) = todo.pop().unwrap_or_else(|| (rng.random_range(0..clients), some(&mut rng)));
        let index = ops.len();
        ops.push(op.clone());
        beside.told.borrow_mut().push(format!("\n    operation {index}: client {client}, {op:?}"));
        beside.driver.before_op(index);
        clock.set(crate::driver::FIRST_TICK + index as i64);
        beside.newest.set(index);
        media.mark(BEGIN + index as u64);
        let with = With(&beside, &ops);
        let (a, b) = &mut slots[client];
        if beside.is_waiting(client) {
            with.block_on(std::future::poll_fn(|_| match beside.is_waiting(client) {
                true => Poll::Pending,
                false => Poll::Ready(()),
            }));
        }
        let call: Option<Call<'_>> = match op {
            Fsync { handle, datasync } => a.open_handle(handle).map(|h| Box::pin(fs.fsync(h, datasync)) as _),
            Barrier { handle, datasync } => {
                a.open_handle(handle).map(|h| Box::pin(fs.barrier(h, datasync)) as _)
            }
            Sync => Some(Box::pin(fs.sync())),
            _ => None,
        };
        if let Some(call) = call {
            beside.waiting.borrow_mut().push((client, index, call));
            // Where everything before it is there, and nothing that came while it was under way.
            states.push(State { snapshot: model.snapshot(), op: Some(index) });
        } else {
            let found = ops::execute(&with, &*fs, a, &op);
            media.mark(END + index as u64);
            let Some(op) = on_the_model(rig.full(&fs), &op, &found) else { continue };
            let expected = ops::execute(&Blocking, &model, b, &op);
            states.push(State { snapshot: model.snapshot(), op: Some(index) });
            beside.told.borrow_mut()[index] += &format!(", to state {}", states.len() - 1);
            if !expected.same(&found, Tolerance::TIMES) {
                return Err(format!("operation {index}, {op:?}: expected {expected:?}, found {found:?}"));
            }
        }
        if let Some(why) = beside.failed.take() {
            return Err(why);
        }
    }
    let with = With(&beside, &ops);
    with.block_on(std::future::poll_fn(|_| match beside.waiting.borrow().is_empty() {
        true => Poll::Ready(()),
        false => Poll::Pending,
    }));
    for (a, _) in &mut slots {
        ops::execute::close_all(&with, &*fs, a);
    }
    rig.close(&fs, &beside.driver).map_err(|e| format!("close failed: {e}"))?;
    media.mark(CLOSED);
    let (closing, syncs) = (beside.closing.into_inner(), beside.syncs.into_inner());
    Ok(Recording { states, closing, syncs, events: 0, told: beside.told.into_inner() })
}

//! Operations that take long, as they go on: what those see who watch a mount, and what is logged of them every few seconds.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often one that goes on is logged.
const TELL: Duration = Duration::from_secs(5);

/// What takes long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// A directory is moved object by object.
    Rename,
    /// A directory is listed that has more names than one answer of the store.
    List,
}

impl Operation {
    /// All of them.
    pub const ALL: [Operation; 2] = [Operation::Rename, Operation::List];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Rename => "rename",
            Operation::List => "list",
        }
    }
}

/// One that goes on.
#[derive(Clone, Debug)]
pub struct Running {
    /// What it is.
    pub operation: Operation,
    /// Of which keys.
    pub keys: String,
    /// What is being done with objects now, as a participle.
    pub step: &'static str,
    /// Objects with which that is done.
    pub done: u64,
    /// Of how many, where that is known.
    pub total: Option<u64>,
    /// When it began.
    pub begun: Instant,
}

impl fmt::Display for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.operation.name(), self.keys, self.done)?;
        if let Some(total) = self.total {
            write!(f, " of {total}")?;
        }
        write!(f, " objects {} in {} s", self.step, self.begun.elapsed().as_secs())
    }
}

/// Sums of all operations of one sort.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Those that are over.
    pub over: u64,
    /// Objects that steps were done with, of those that go on too. Each step counts for itself.
    pub objects: u64,
}

#[derive(Debug, Default)]
struct Table {
    last: u64,
    running: BTreeMap<u64, (Running, Instant)>,
    sums: BTreeMap<Operation, Sums>,
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Mutex<Table>>);

impl Progress {
    /// Those that go on, the oldest first.
    pub fn running(&self) -> Vec<Running> {
        self.0.lock().running.values().map(|(running, _)| running.clone()).collect()
    }

    /// The sums of a sort.
    pub fn sums(&self, operation: Operation) -> Sums {
        self.0.lock().sums.get(&operation).copied().unwrap_or_default()
    }

    /// One begins; it is over when what is returned is dropped.
    pub fn begin(&self, operation: Operation, keys: String, step: &'static str) -> Going {
        let mut table = self.0.lock();
        table.last += 1;
        let (number, begun) = (table.last, Instant::now());
        let running = Running { operation, keys, step, done: 0, total: None, begun };
        table.running.insert(number, (running, begun));
        Going { progress: self.clone(), number }
    }
}

/// An operation that goes on.
#[derive(Debug)]
pub struct Going {
    progress: Progress,
    number: u64,
}

impl Going {
    /// The next step begins, of so many objects.
    pub fn step(&self, step: &'static str, total: u64) {
        if let Some((running, _)) = self.progress.0.lock().running.get_mut(&self.number) {
            (running.step, running.done, running.total) = (step, 0, Some(total));
        }
    }

    /// The step is done with `n` more objects.
    pub fn add(&self, n: u64) {
        let mut table = self.progress.0.lock();
        let Some((running, told)) = table.running.get_mut(&self.number) else { return };
        running.done += n;
        let operation = running.operation;
        if told.elapsed() >= TELL {
            *told = Instant::now();
            tracing::info!("{running}");
        }
        table.sums.entry(operation).or_default().objects += n;
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        let mut table = self.progress.0.lock();
        let Some((running, told)) = table.running.remove(&self.number) else { return };
        table.sums.entry(running.operation).or_default().over += 1;
        // Of those that were told the end is told too.
        if told > running.begun {
            tracing::info!("{running}; over");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_counted_until_it_is_over() {
        let progress = Progress::default();
        let going = progress.begin(Operation::Rename, "a/ to b/".into(), "copied");
        let other = progress.begin(Operation::List, "c/".into(), "listed");
        going.add(3);
        going.step("removed", 3);
        going.add(1);
        let running = progress.running();
        assert_eq!(running.len(), 2);
        assert_eq!((running[0].done, running[0].total, running[0].step), (1, Some(3), "removed"));
        assert_eq!(running[0].to_string(), "rename a/ to b/: 1 of 3 objects removed in 0 s");
        assert_eq!(running[1].to_string(), "list c/: 0 objects listed in 0 s");
        drop((going, other));
        assert!(progress.running().is_empty());
        assert_eq!(progress.sums(Operation::Rename), Sums { over: 1, objects: 4 });
        assert_eq!(progress.sums(Operation::List), Sums { over: 1, objects: 0 });
    }
}

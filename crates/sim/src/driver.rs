//! How futures of a file system are run: on the calling thread, or by a test that drives an engine by hand.

use std::future::Future;

/// Runs futures to their end. Tests that drive an engine without threads implement it with their own loop.
pub trait Driver {
    /// Runs this future to its end.
    fn block_on<T>(&self, future: impl Future<Output = T>) -> T;

    /// Begins a future, and gives it up when it has had to wait for as long as `patience`, any number, says: `None`. Drivers that sleep until a future is
    /// over never do.
    fn give_up<T>(&self, future: impl Future<Output = T>, _patience: u32) -> Option<T> {
        Some(self.block_on(future))
    }

    /// Called before each operation of a sequence, with its number: the place to move clocks.
    fn before_op(&self, _index: usize) {}

    /// Called at the end of a sequence, with nothing open. What is wrong with the file system although nobody could see it, if anything is.
    fn at_end(&self) -> Option<String> {
        None
    }
}

/// Sleeps on the calling thread while a future waits ([`fs::block_on()`]).
#[derive(Clone, Copy, Debug, Default)]
pub struct Blocking;

impl Driver for Blocking {
    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        fs::block_on(future)
    }
}

impl<D: Driver> Driver for &D {
    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        (**self).block_on(future)
    }
    fn give_up<T>(&self, future: impl Future<Output = T>, patience: u32) -> Option<T> {
        (**self).give_up(future, patience)
    }
    fn before_op(&self, index: usize) {
        (**self).before_op(index);
    }
    fn at_end(&self) -> Option<String> {
        (**self).at_end()
    }
}

/// Like [`Blocking`]; each operation moves a clock to a second of its own, so every time tells which operation set it.
#[derive(Clone)]
pub struct Ticking(pub crate::HandClock);

impl Default for Ticking {
    /// The clock stands one second before the first operation.
    fn default() -> Ticking {
        let clock = crate::HandClock::default();
        clock.set(FIRST_TICK - 1);
        Ticking(clock)
    }
}

/// The time of operation 0 under [`Ticking`], seconds since 1970.
pub const FIRST_TICK: i64 = 1_000_000_000;

impl Driver for Ticking {
    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        fs::block_on(future)
    }
    fn before_op(&self, index: usize) {
        self.0.set(FIRST_TICK + index as i64);
    }
}

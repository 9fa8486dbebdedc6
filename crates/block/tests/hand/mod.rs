//! Runs a volume by hand: the test owns the only thread and the clock.

use block::Worker;
use sim::{Driver, HandClock};
use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// The test's clock as the engine takes it.
pub struct TestClock(pub HandClock);

impl block::Clock for TestClock {
    fn now(&self) -> fs::Time {
        (self.0.clock())()
    }
    fn monotonic(&self) -> Duration {
        let now = self.now();
        Duration::new(now.sec.max(0) as u64, now.nsec)
    }
}

/// Polls a future and steps the worker in turn. `between` is called after every step.
#[derive(Clone)]
pub struct ByHand {
    pub worker: Rc<RefCell<Worker>>,
    pub clock: HandClock,
    pub between: Rc<dyn Fn()>,
}

impl ByHand {
    pub fn new(worker: Worker, clock: HandClock) -> ByHand {
        ByHand { worker: Rc::new(RefCell::new(worker)), clock, between: Rc::new(|| {}) }
    }
}

impl Driver for ByHand {
    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..200_000 {
            let polled = future.as_mut().poll(&mut cx);
            (self.between)();
            if let Poll::Ready(out) = polled {
                return out;
            }
            self.worker.borrow_mut().step();
            (self.between)();
        }
        panic!("the operation does not end");
    }
    fn before_op(&self, index: usize) {
        self.clock.set(sim::driver::FIRST_TICK + index as i64);
    }
}

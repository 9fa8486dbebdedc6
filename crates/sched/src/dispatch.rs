//! Order-preserving dispatch: the next command is handed over as soon as the one before was (BarrierFS, section 3.3).

use crate::scheduler::{Command, Scheduler};

/// What takes commands: a device, or a simulated one. It serves a command that carries the barrier flag after all that it was
/// given before, and before all that it is given later.
pub trait Sink<T> {
    /// Whether it takes a command now.
    fn room(&self) -> bool;

    /// Takes a command. Called only while there is room.
    fn dispatch(&mut self, command: Command<T>);
}

/// Hands over one command, if one is there and the sink has room. Says whether it did.
pub fn dispatch_one<T>(scheduler: &mut Scheduler<T>, sink: &mut impl Sink<T>) -> bool {
    if !sink.room() {
        return false;
    }
    match scheduler.next_command() {
        Some(command) => {
            sink.dispatch(command);
            true
        }
        None => false,
    }
}

/// Hands over commands until the sink is full or the queues are empty. Returns how many. To be called again when the sink
/// has room again.
pub fn pump<T>(scheduler: &mut Scheduler<T>, sink: &mut impl Sink<T>) -> usize {
    let mut count = 0;
    while dispatch_one(scheduler, sink) {
        count += 1;
    }
    count
}

//! Many threads of one program that wait for the manager at a time.
//!
//! To wake a thread takes longer than most calls. Where many threads wait, there is always one that can go on: a thread that lets the others go
//! first, most of which have something to ask for as well, often finds its answer when it has its turn again, and then nobody had to wake it, and the manager at most once for all.
//! That is so while those who go first wait soon themselves ([`Yields`]).

use crate::spin::processors;
use crate::yields::{ALONE, Yields};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Waiting threads for each processor, from which on there is always one that can go on.
const MANY: usize = 2;
/// What they may lose ([`Yields::new`]): others of them go on meanwhile on the other processors.
const TOGETHER: u64 = 2;

/// Threads of a session that wait for answers.
#[derive(Debug)]
pub(super) struct Throng {
    /// How many they are, also those that sleep.
    waiting: AtomicUsize,
    many: usize,
    /// Of those who wait among many, and of others.
    together: Yields,
    alone: Yields,
}

impl Default for Throng {
    fn default() -> Throng {
        let (together, alone) = (Yields::new(TOGETHER), Yields::new(ALONE));
        Throng { waiting: AtomicUsize::new(0), many: MANY * processors(), together, alone }
    }
}

/// A thread that waits, for as long as it does.
pub(super) struct Waiting<'a>(&'a Throng);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}

impl Throng {
    /// The calling thread waits from now on.
    pub fn enter(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Relaxed);
        Waiting(self)
    }

    /// See [`Yields::offer`]; for a thread that is one of few.
    pub fn offer(&self) -> bool {
        self.alone.offer()
    }
}

impl Waiting<'_> {
    /// Whether so few threads wait that the others need no processor of theirs.
    pub fn are_few(&self) -> bool {
        self.0.waiting.load(Relaxed) <= self.0.many
    }

    /// Lets others have the processor for a turn, if there are many who wait soon themselves.
    pub fn let_others_go_first(&self) {
        if !self.are_few() {
            self.0.together.offer();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_few_wait_everybody_sleeps() {
        let throng = Throng { many: 2, ..Throng::default() };
        let waiting = [throng.enter(), throng.enter()];
        waiting[0].let_others_go_first();
        drop(throng.enter());
        waiting[0].let_others_go_first();
        assert!(waiting[0].are_few() && throng.together.is_new());
        let third = throng.enter();
        assert!(!waiting[0].are_few() && !third.are_few());
        waiting[0].let_others_go_first();
        assert!(!throng.together.is_new() && throng.alone.is_new());
    }
}

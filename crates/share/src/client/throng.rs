//! Many threads of one program that wait for the manager at a time.
//!
//! To wake a thread takes longer than most calls. Where many threads wait, there is always one that can go on: a thread that lets the others go
//! first, most of which have something to ask for as well, often finds its answer when it has its turn again, and then nobody had to wake it, and the manager at most once for all.
//! That is so while those who go first wait soon themselves ([`Yields`]).

use crate::spin::processors;
use crate::yields::{ALONE, Yields};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

/// Waiting threads for each processor, from which on there is always one that can go on.
const MANY: usize = 2;
/// So many times as many are told of to the manager: it may sleep, as the processors have enough to do until it is woken.
const TOLD: usize = 2;
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
pub(super) struct Waiting<'a> {
    throng: &'a Throng,
    /// The word by which the manager is told whether there are many.
    told: &'a AtomicU32,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let waiting = self.throng.waiting.fetch_sub(1, Relaxed) - 1;
        // Not to and fro with each of them: the manager reads it in a line of its own.
        if waiting <= self.throng.many {
            tell(self.told, false);
        }
    }
}

fn tell(told: &AtomicU32, are_many: bool) {
    if told.load(Relaxed) != are_many as u32 {
        told.store(are_many as u32, Relaxed);
    }
}

impl Throng {
    /// The calling thread waits from now on; `told` says to the manager whether many do.
    pub fn enter<'a>(&'a self, told: &'a AtomicU32) -> Waiting<'a> {
        if self.waiting.fetch_add(1, Relaxed) >= TOLD * self.many {
            tell(told, true);
        }
        Waiting { throng: self, told }
    }

    /// See [`Yields::offer`]; for a thread that is one of few.
    pub fn offer(&self) -> bool {
        self.alone.offer()
    }
}

impl Waiting<'_> {
    /// Whether so few threads wait that the others need no processor of theirs.
    pub fn are_few(&self) -> bool {
        self.throng.waiting.load(Relaxed) <= self.throng.many
    }

    /// Lets others have the processor for a turn, if there are many who wait soon themselves.
    pub fn let_others_go_first(&self) {
        if !self.are_few() {
            self.throng.together.offer();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_few_wait_everybody_sleeps() {
        let (throng, told) = (Throng { many: 2, ..Throng::default() }, AtomicU32::new(0));
        let enter = || throng.enter(&told);
        let waiting = [enter(), enter()];
        waiting[0].let_others_go_first();
        assert!(waiting[0].are_few() && throng.together.is_new());
        let third = enter();
        assert!(!waiting[0].are_few() && !third.are_few());
        waiting[0].let_others_go_first();
        assert!(!throng.together.is_new() && throng.alone.is_new());
    }

    #[test]
    fn the_manager_is_told_of_many() {
        let (throng, told) = (Throng { many: 2, ..Throng::default() }, AtomicU32::new(0));
        let enter = || throng.enter(&told);
        let mut waiting: Vec<Waiting> = (0..4).map(|_| enter()).collect();
        assert_eq!(told.load(Relaxed), 0);
        waiting.push(enter());
        assert_eq!(told.load(Relaxed), 1);
        waiting.truncate(3);
        assert_eq!(told.load(Relaxed), 1, "soon there may be as many again");
        waiting.truncate(2);
        assert_eq!(told.load(Relaxed), 0);
    }
}

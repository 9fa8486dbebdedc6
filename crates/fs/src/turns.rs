//! One call at a time for each name: who must know what a name leads to, and then change it, takes its turn.

use foldhash::fast::FixedState;
use format::Ino;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::future::poll_fn;
use std::hash::BuildHasher;
use std::task::{Poll, Waker};

/// Names whose turn somebody has. Different names may count as one.
#[derive(Debug, Default)]
pub struct Turns {
    /// Few at a time: one for each call that is under way.
    taken: Mutex<Vec<Taken>>,
}

#[derive(Debug)]
struct Taken {
    name: u64,
    waiting: Vec<Waker>,
}

/// The turn of one or two names, until it is dropped.
#[derive(Debug)]
pub struct Turn<'a> {
    turns: &'a Turns,
    names: SmallVec<[u64; 2]>,
}

impl Turns {
    /// Waits for the turn of all these names.
    pub async fn take(&self, names: &[(Ino, &[u8])]) -> Turn<'_> {
        let mut all: SmallVec<[u64; 2]> =
            names.iter().map(|(dir, name)| FixedState::with_seed(dir.0).hash_one(name)).collect();
        // Always in the same order, so that two who want the same never wait for each other.
        all.sort_unstable();
        all.dedup();
        let mut turn = Turn { turns: self, names: SmallVec::new() };
        for name in all {
            poll_fn(|cx| {
                let mut taken = self.taken.lock();
                match taken.iter_mut().find(|t| t.name == name) {
                    Some(t) => {
                        if !t.waiting.iter().any(|w| w.will_wake(cx.waker())) {
                            t.waiting.push(cx.waker().clone());
                        }
                        Poll::Pending
                    }
                    None => {
                        taken.push(Taken { name, waiting: Vec::new() });
                        Poll::Ready(())
                    }
                }
            })
            .await;
            turn.names.push(name);
        }
        turn
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut waiting = Vec::new();
        {
            let mut taken = self.turns.taken.lock();
            for name in &self.names {
                if let Some(at) = taken.iter().position(|t| t.name == *name) {
                    waiting.append(&mut taken.swap_remove(at).waiting);
                }
            }
        }
        waiting.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_on;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn one_at_a_time() {
        let turns = Turns::default();
        let inside: [AtomicUsize; 3] = Default::default();
        let names: [&[u8]; 3] = [b"a", b"b", b"c"];
        std::thread::scope(|s| {
            for thread in 0..4usize {
                let (turns, inside) = (&turns, &inside);
                s.spawn(move || {
                    for i in 0..3000usize {
                        let (one, two) = ((i + thread) % 3, (i * 7 + thread * 2) % 3);
                        let dir = Ino(1);
                        let turn = block_on(turns.take(&[(dir, names[one]), (dir, names[two])]));
                        for at in [Some(one), (two != one).then_some(two)].into_iter().flatten() {
                            assert_eq!(inside[at].fetch_add(1, Ordering::SeqCst), 0);
                        }
                        for at in [Some(one), (two != one).then_some(two)].into_iter().flatten() {
                            inside[at].fetch_sub(1, Ordering::SeqCst);
                        }
                        drop(turn);
                    }
                });
            }
        });
        assert!(turns.taken.lock().is_empty());
    }

    #[test]
    fn who_gives_up_keeps_nobody_waiting() {
        let turns = Turns::default();
        let (a, b): (&[u8], &[u8]) = (b"a", b"b");
        let first = block_on(turns.take(&[(Ino(1), a)]));
        let both = [(Ino(1), a), (Ino(1), b)];
        let mut second = Box::pin(turns.take(&both));
        let waker = Waker::noop();
        assert!(second.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_pending());
        drop(second);
        drop(first);
        drop(block_on(turns.take(&[(Ino(1), b), (Ino(1), a)])));
        assert!(turns.taken.lock().is_empty());
    }
}

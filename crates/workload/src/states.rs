//! Which file of the set an operation works on, decided between all threads of all processes without a lock.
//!
//! Each file has a word: whether it exists, whether an operation is just changing that (busy), and how many threads have it open.
//! As in Filebench, files are picked in rotation: one rotor goes over the existing files and is shared by opening, deleting and
//! looking, another goes over those that do not exist. A busy file is passed over. Filebench drops a deletion when the file
//! picked happens to be open, without counting it; here the rotor goes on to the next one that is not open.
//!
//! A thread has at most one file open and one busy. So with a fifth of the files missing at the start and five files for each
//! thread, which `Config::validate` demands, every pick succeeds: of the missing fifth every other thread can have taken one.

use crate::mapping::{Mapping, Plain};
use std::io;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

const EXISTS: u32 = 1 << 31;
const BUSY: u32 = 1 << 30;
const OPEN: u32 = BUSY - 1;
/// Rounds over the whole set before a pick gives up: a file can slip behind a rotor that is passing by, but not for ever.
const PATIENCE: usize = 1000;

/// The words of all files.
pub struct States {
    words: Mapping<AtomicU32>,
    rotors: Mapping<Rotors>,
}

#[repr(C)]
struct Rotors {
    existing: AtomicU32,
    missing: AtomicU32,
}

// SAFETY: two atomics of plain bits.
unsafe impl Plain for Rotors {}

/// What an operation wants to do with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// To make one that does not exist.
    Create,
    /// To open or look at one that exists.
    Use,
    /// To delete one that exists and is not open.
    Delete,
}

impl Want {
    fn fits(self, word: u32) -> bool {
        word & BUSY == 0
            && match self {
                Want::Create => word == 0,
                Want::Use => word & EXISTS != 0,
                Want::Delete => word == EXISTS,
            }
    }
}

impl States {
    /// The states of files of which `exist` says whether they exist. Errors: no memory.
    pub fn new(exist: impl ExactSizeIterator<Item = bool>) -> io::Result<States> {
        let words = Mapping::<AtomicU32>::new(exist.len())?;
        for (word, exists) in words.iter().zip(exist) {
            word.store(if exists { EXISTS } else { 0 }, Relaxed);
        }
        Ok(States { words, rotors: Mapping::new(1)? })
    }

    /// Picks a file and marks it busy; exactly one of the ending calls below must follow. None: all are in use.
    pub fn pick(&self, want: Want) -> Option<usize> {
        let n = self.words.len();
        let rotor = match want {
            Want::Create => &self.rotors[0].missing,
            Want::Use | Want::Delete => &self.rotors[0].existing,
        };
        for _ in 0..PATIENCE {
            let start = rotor.load(Relaxed) as usize;
            for i in (start..n).chain(0..start.min(n)) {
                let word = self.words[i].load(Relaxed);
                if want.fits(word)
                    && self.words[i].compare_exchange(word, word | BUSY, AcqRel, Relaxed).is_ok()
                {
                    rotor.store(i as u32 + 1, Relaxed);
                    return Some(i);
                }
            }
            std::thread::yield_now();
        }
        None
    }

    /// File `i`, picked to create or use, is open now and exists.
    pub fn opened(&self, i: usize) {
        self.end(i, |word| ((word | EXISTS) & !BUSY) + 1);
    }

    /// File `i`, picked to delete, is gone.
    pub fn deleted(&self, i: usize) {
        self.end(i, |_| 0);
    }

    /// File `i`, picked for any purpose, is as it was before.
    pub fn untouched(&self, i: usize) {
        self.end(i, |word| word & !BUSY);
    }

    fn end(&self, i: usize, change: impl Fn(u32) -> u32) {
        let former = self.words[i].fetch_update(AcqRel, Acquire, |word| Some(change(word)));
        assert!(former.is_ok_and(|word| word & BUSY != 0), "file {i} was not picked");
    }

    /// A thread has closed file `i`, which it had opened.
    pub fn closed(&self, i: usize) {
        let former = self.words[i].fetch_sub(1, AcqRel);
        assert!(former & OPEN > 0, "file {i} was not open");
    }

    /// How many files exist.
    pub fn existing(&self) -> usize {
        self.words.iter().filter(|word| word.load(Relaxed) & EXISTS != 0).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(exist: &[bool]) -> States {
        States::new(exist.iter().copied()).unwrap()
    }

    #[test]
    fn picks_go_round_and_pass_over_the_busy() {
        let s = states(&[true, true, false, true]);
        assert_eq!([s.pick(Want::Use), s.pick(Want::Use), s.pick(Want::Use)], [Some(0), Some(1), Some(3)]);
        assert_eq!(s.pick(Want::Use), None);
        s.untouched(1);
        assert_eq!(s.pick(Want::Use), Some(1));
    }

    #[test]
    fn what_is_open_is_not_deleted_but_opened_again() {
        let s = states(&[true, false]);
        assert_eq!(s.pick(Want::Use), Some(0));
        s.opened(0);
        assert_eq!(s.pick(Want::Delete), None);
        assert_eq!(s.pick(Want::Use), Some(0));
        s.opened(0);
        s.closed(0);
        assert_eq!(s.pick(Want::Delete), None);
        s.closed(0);
        assert_eq!(s.pick(Want::Delete), Some(0));
        s.deleted(0);
        assert_eq!(s.existing(), 0);
    }

    #[test]
    fn create_takes_only_what_is_missing() {
        let s = states(&[true, false]);
        assert_eq!(s.pick(Want::Create), Some(1));
        assert_eq!(s.pick(Want::Create), None);
        s.opened(1);
        s.closed(1);
        assert_eq!(s.existing(), 2);
    }

    /// Threads that create and delete at random never take the same file and never run dry.
    #[test]
    fn threads_do_not_collide() {
        let (threads, n) = (4, 20);
        let exist: Vec<bool> = (0..n).map(|i| i % 5 != 0).collect();
        let s = states(&exist);
        let owner: Vec<AtomicU32> = (0..n).map(|_| AtomicU32::new(0)).collect();
        std::thread::scope(|scope| {
            for id in 1..=threads {
                let (s, owner) = (&s, &owner);
                scope.spawn(move || {
                    for _ in 0..2000 {
                        let i = s.pick(Want::Create).unwrap();
                        assert_eq!(owner[i].swap(id, Relaxed), 0);
                        assert_eq!(owner[i].swap(0, Relaxed), id);
                        s.opened(i);
                        s.closed(i);
                        let i = s.pick(Want::Delete).unwrap();
                        assert_eq!(owner[i].swap(id, Relaxed), 0);
                        assert_eq!(owner[i].swap(0, Relaxed), id);
                        s.deleted(i);
                    }
                });
            }
        });
        assert_eq!(s.existing(), 16);
    }
}

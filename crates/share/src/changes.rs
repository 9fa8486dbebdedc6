//! What changed, for clients that keep things: see `format::shared` for the rule.
//!
//! Raising a word takes the clock first. A client took its own note of the clock before it asked; when the answer did not show the
//! change yet, the change took the clock later, so the word ends above the note. When the answer did show it, the word may end above the
//! note all the same: then the client asks once more. Invariant: nothing that a client holds to be valid was changed by a call that
//! has returned.

use crate::memory::{self, Mapping};
use foldhash::fast::FixedState;
use format::shared::{
    CHANGE_WORDS, CHANGES_BYTES, ChangesHeader, Kept, MAGIC, NOTHING_HOLDS, OWNER_DIED, VERSION, change_word,
};
use fs::Ino;
use fs::watched::Change;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::marker::PhantomData;
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const WORDS_AT: usize = size_of::<ChangesHeader>();
const CLOCK: usize = offset_of!(ChangesHeader, clock);
const PROCESSOR: usize = offset_of!(ChangesHeader, processor);
const HOLDER: usize = offset_of!(ChangesHeader, holder);
const _: () = assert!(size_of::<libc::pthread_mutex_t>() <= 64);

/// The processor that the calling thread is on, and one more; 0 when the kernel does not tell.
pub(crate) fn processor() -> u32 {
    // SAFETY: a call without arguments.
    (unsafe { libc::sched_getcpu() } + 1) as u32
}

/// The manager's side: told by `fs::Watched` of what changes through any door.
#[derive(Debug)]
pub(crate) struct Changes {
    memory: Mapping,
    reader: OwnedFd,
    /// Words that allow nothing, and for how many.
    blocked: Mutex<HashMap<usize, usize, FixedState>>,
}

/// Until this is dropped nobody keeps the attributes of an inode.
#[derive(Debug)]
pub(crate) struct Blocked {
    changes: Arc<Changes>,
    word: usize,
}

impl Drop for Blocked {
    fn drop(&mut self) {
        self.changes.unblock(self.word);
    }
}

impl Changes {
    pub fn new() -> io::Result<Changes> {
        let (memory, reader) = memory::published(c"freehold changes", CHANGES_BYTES)?;
        // Clients look at words all over it.
        memory.fill();
        memory.copy_in(offset_of!(ChangesHeader, magic), &MAGIC.to_le_bytes());
        memory.copy_in(offset_of!(ChangesHeader, version), &VERSION.to_le_bytes());
        Ok(Changes { memory, reader, blocked: Mutex::default() })
    }

    /// Until the result is dropped, or the calling thread ends in whatever way, clients see that somebody tells of changes.
    pub fn hold(&self) -> io::Result<Holding<'_>> {
        let check = |rc: i32| if rc == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(rc)) };
        let mut attr = MaybeUninit::uninit();
        let mutex = self.mutex();
        // SAFETY: the mutex lies in the mapping and is aligned; it is initialised once, before the memory is given to anybody.
        unsafe {
            check(libc::pthread_mutexattr_init(attr.as_mut_ptr()))?;
            check(libc::pthread_mutexattr_setpshared(attr.as_mut_ptr(), libc::PTHREAD_PROCESS_SHARED))?;
            check(libc::pthread_mutexattr_setrobust(attr.as_mut_ptr(), libc::PTHREAD_MUTEX_ROBUST))?;
            check(libc::pthread_mutex_init(mutex, attr.as_ptr()))?;
            check(libc::pthread_mutex_lock(mutex))?;
        }
        Ok(Holding { changes: self, _thread: PhantomData })
    }

    fn mutex(&self) -> *mut libc::pthread_mutex_t {
        std::ptr::from_ref(self.memory.word(HOLDER)).cast_mut().cast()
    }

    /// For clients.
    pub fn reader(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }

    /// The clock.
    pub fn now(&self) -> u64 {
        self.memory.long(CLOCK).load(Ordering::SeqCst)
    }

    /// Says on which processor the calling thread takes requests.
    pub fn runs_here(&self) {
        let word = self.memory.word(PROCESSOR);
        let here = processor();
        if word.load(Ordering::Relaxed) != here {
            word.store(here, Ordering::Relaxed);
        }
    }

    /// Says that nobody takes requests now: where that will go on is not known.
    pub fn runs_nowhere(&self) {
        self.memory.word(PROCESSOR).store(0, Ordering::Relaxed);
    }

    /// Whether a file has not changed since `noted`.
    pub fn holds_still(&self, ino: Ino, noted: u64) -> bool {
        self.memory.long(WORDS_AT + 8 * change_word(Kept::Attr(ino.0))).load(Ordering::SeqCst) <= noted
    }

    /// What clients keep of an inode's attributes holds no longer, and nothing holds until the result is dropped.
    pub fn block(self: &Arc<Changes>, ino: Ino) -> Blocked {
        let word = change_word(Kept::Attr(ino.0));
        let mut blocked = self.blocked.lock();
        *blocked.entry(word).or_default() += 1;
        self.memory.long(WORDS_AT + 8 * word).swap(NOTHING_HOLDS, Ordering::SeqCst);
        Blocked { changes: self.clone(), word }
    }

    fn unblock(&self, word: usize) {
        let mut blocked = self.blocked.lock();
        let Some(count) = blocked.get_mut(&word) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        blocked.remove(&word);
        // Changes before this could not raise the word further: it ends above all of them. Those that come meanwhile raise it behind this.
        let now = self.memory.long(CLOCK).fetch_add(1, Ordering::SeqCst) + 1;
        self.memory.long(WORDS_AT + 8 * word).store(now, Ordering::SeqCst);
    }

    /// Raises the words of what changed.
    pub fn changed(&self, change: &Change<'_>) {
        match *change {
            Change::Data { ino, .. } => self.raise(&[Kept::Attr(ino.0)]),
            Change::Attr { ino } => self.raise(&[Kept::Attr(ino.0), Kept::Access(ino.0)]),
            Change::Name { parent, name } => self.raise(&[Kept::Name(parent.0, name), Kept::Attr(parent.0)]),
        }
    }

    fn raise(&self, kept: &[Kept<'_>]) {
        let now = self.memory.long(CLOCK).fetch_add(1, Ordering::SeqCst) + 1;
        for &kept in kept {
            let word = self.memory.long(WORDS_AT + 8 * change_word(kept));
            // Others may raise it further at the same time.
            if word.fetch_max(now, Ordering::SeqCst) == NOTHING_HOLDS {
                // Whoever lets it go now may have taken the clock before.
                let _blocked = self.blocked.lock();
                word.fetch_max(now, Ordering::SeqCst);
            }
        }
    }
}

/// See [`Changes::hold`]. Stays in its thread.
pub(crate) struct Holding<'a> {
    changes: &'a Changes,
    _thread: PhantomData<*const ()>,
}

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        // SAFETY: this thread locked it, and the mapping is still there.
        unsafe { libc::pthread_mutex_unlock(self.changes.mutex()) };
    }
}

/// The client's side.
#[derive(Debug)]
pub(crate) struct Seen(Mapping);

/// Where a change of something that is kept would be seen: looked up once, and looked at often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word(u32);

impl Word {
    pub fn of(kept: Kept<'_>) -> Word {
        Word(change_word(kept) as u32)
    }

    /// Of nothing.
    pub const NONE: Word = Word(0);

    /// From [`Word::number`]; any other number is some word.
    #[inline]
    pub fn again(number: u32) -> Word {
        Word(number.min(CHANGE_WORDS as u32 - 1))
    }

    #[inline]
    pub fn number(self) -> u32 {
        self.0
    }
}

impl Seen {
    pub fn map(fd: impl AsFd) -> io::Result<Seen> {
        memory::check_sealed(&fd, CHANGES_BYTES)?;
        Mapping::read_only(fd, CHANGES_BYTES).map(Seen)
    }

    /// Whether somebody tells of changes.
    #[inline]
    pub fn alive(&self) -> bool {
        let word = self.0.word(HOLDER).load(Ordering::Acquire);
        word != 0 && word & OWNER_DIED == 0
    }

    /// The clock, to be noted before something is asked for that is to be kept.
    pub fn now(&self) -> u64 {
        self.0.long(CLOCK).load(Ordering::SeqCst)
    }

    /// Whether the calling thread keeps the manager from running: both are on one processor, as far as the manager has said.
    pub fn in_the_way(&self) -> bool {
        let there = self.0.word(PROCESSOR).load(Ordering::Relaxed);
        there != 0 && there == processor()
    }

    /// Whether what was asked for at `noted` still holds.
    #[inline]
    pub fn holds(&self, kept: Kept<'_>, noted: u64) -> bool {
        self.same(Word::of(kept), noted)
    }

    /// As [`Seen::holds`].
    #[inline]
    pub fn same(&self, word: Word, noted: u64) -> bool {
        self.0.long(WORDS_AT + 8 * word.0 as usize).load(Ordering::Acquire) <= noted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use format::shared::ACCESS_WORDS;

    const ROUNDS: usize = 2_000_000;

    #[test]
    fn who_shares_a_processor_is_in_the_way() {
        let changes = Changes::new().unwrap();
        let seen = Seen::map(changes.reader()).unwrap();
        assert!(!seen.in_the_way(), "nobody has said anything");
        std::thread::scope(|s| {
            s.spawn(|| {
                let all = rustix::thread::sched_getaffinity(None).unwrap();
                let of = |n: usize| (0..rustix::thread::CpuSet::MAX_CPU).filter(|&c| all.is_set(c)).nth(n);
                let stay_on = |processor| {
                    let mut one = rustix::thread::CpuSet::new();
                    one.set(processor);
                    rustix::thread::sched_setaffinity(None, &one).unwrap();
                };
                stay_on(of(0).unwrap());
                changes.runs_here();
                assert!(seen.in_the_way());
                if let Some(other) = of(1) {
                    stay_on(other);
                    assert!(!seen.in_the_way());
                    changes.runs_here();
                    assert!(seen.in_the_way());
                }
                changes.runs_nowhere();
                assert!(!seen.in_the_way());
            });
        });
    }

    #[test]
    fn what_changed_no_longer_holds() {
        let changes = Changes::new().unwrap();
        let seen = Seen::map(changes.reader()).unwrap();
        let all =
            [Kept::Attr(7), Kept::Access(7), Kept::Name(7, b"name"), Kept::Attr(8), Kept::Name(8, b"name")];
        let check = |change: Option<Change<'_>>, gone: &[Kept<'_>]| {
            let noted = seen.now();
            if let Some(change) = change {
                changes.changed(&change);
            }
            for kept in all {
                assert_eq!(seen.holds(kept, noted), !gone.contains(&kept), "{kept:?} after {change:?}");
                assert!(seen.holds(kept, seen.now()));
            }
        };
        check(None, &[]);
        let ino = Ino(7);
        check(Some(Change::Data { ino, start: 0, end: 1 }), &[Kept::Attr(7)]);
        check(Some(Change::Attr { ino }), &[Kept::Attr(7), Kept::Access(7)]);
        check(Some(Change::Name { parent: ino, name: b"name" }), &[Kept::Attr(7), Kept::Name(7, b"name")]);
    }

    #[test]
    fn a_blocked_word_allows_nothing() {
        let changes = Arc::new(Changes::new().unwrap());
        let seen = Seen::map(changes.reader()).unwrap();
        let holds = || seen.holds(Kept::Attr(7), seen.now());
        let before = seen.now();
        let (one, two) = (changes.block(Ino(7)), changes.block(Ino(7)));
        assert!(!holds() && seen.holds(Kept::Attr(8), before));
        drop(one);
        changes.changed(&Change::Attr { ino: Ino(7) });
        assert!(!holds());
        let during = seen.now();
        changes.changed(&Change::Attr { ino: Ino(7) });
        drop(two);
        assert!(holds());
        assert!(!seen.holds(Kept::Attr(7), before) && !seen.holds(Kept::Attr(7), during));
    }

    #[test]
    fn a_change_while_a_word_is_let_go_is_seen_at_once() {
        let changes = Arc::new(Changes::new().unwrap());
        let seen = Seen::map(changes.reader()).unwrap();
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    drop(changes.block(Ino(7)));
                }
            });
            let stale = (0..ROUNDS).any(|_| {
                let noted = seen.now();
                changes.changed(&Change::Attr { ino: Ino(7) });
                (0..8).any(|_| seen.holds(Kept::Attr(7), noted))
            });
            over.store(true, Ordering::Relaxed);
            assert!(!stale, "as if it had not changed");
        });
    }

    #[test]
    fn the_end_of_the_holder_is_seen() {
        for forgets in [false, true] {
            ends(forgets);
        }
    }

    fn ends(forgets: bool) {
        let changes = std::sync::Arc::new(Changes::new().unwrap());
        let seen = Seen::map(changes.reader()).unwrap();
        assert!(!seen.alive());
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let (held, is_held) = std::sync::mpsc::channel();
        let holder = std::thread::spawn(move || {
            let holding = changes.hold().unwrap();
            // What a thread that is killed does: the mutex stays locked, and the memory is there.
            if forgets {
                std::mem::forget((holding, changes.clone()));
            }
            held.send(()).unwrap();
            let _ = ended.recv();
        });
        is_held.recv().unwrap();
        assert!(seen.alive());
        drop(end);
        holder.join().unwrap();
        assert!(!seen.alive());
    }

    #[test]
    fn words_are_spread() {
        let mut counts = vec![0u8; CHANGE_WORDS];
        for i in 0..20_000u64 {
            counts[change_word(Kept::Attr(i))] += 1;
            counts[change_word(Kept::Name(1, format!("f{i:07}").as_bytes()))] += 1;
        }
        let (access, others) = counts.split_at_mut(ACCESS_WORDS);
        assert!(access.iter().all(|&n| n == 0), "all names of a directory would go with one of those");
        for i in 0..20_000u64 {
            access[change_word(Kept::Access(i))] += 1;
        }
        for counts in [access, others] {
            assert!(counts.iter().all(|&n| n < 10), "{:?}", counts.iter().max());
        }
    }
}

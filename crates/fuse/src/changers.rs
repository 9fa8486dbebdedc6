//! Who changes an open file, for engines that do more at a close than release locks: a bucket takes the file then.
//!
//! A child of fork(2) has all descriptors of its parent and closes them at exec or exit, each time with a FLUSH. Were those closes like the parent's, a
//! program that starts another one while it writes would have half a file made visible, and send the rest as a second change. So a close counts
//! when the process that closes may have changed the file through this handle: it opened it, wrote, cut, copied or reserved. Whoever changed it
//! closes it, too, at the latest when it ends.
//!
//! Requests name the thread, not the process. That of a close is mostly one that changed; otherwise /proc tells of which processes they are,
//! and where it does not (a thread has ended, or lives in another namespace) the close counts.

use parking_lot::Mutex;
use std::collections::HashMap;

/// Threads of one handle that are remembered; with more, every close counts.
const REMEMBERED: usize = 16;

/// Threads that changed files, by handle.
#[derive(Default)]
pub struct Changers(Mutex<HashMap<u64, Vec<u32>>>);

impl Changers {
    /// A `thread` changes a file through `fh`, or opened it in order to.
    pub fn note(&self, fh: u64, thread: u32) {
        let mut all = self.0.lock();
        let threads = all.entry(fh).or_default();
        if threads.len() <= REMEMBERED && !threads.contains(&thread) {
            threads.push(thread);
        }
    }

    /// Whether the process of `thread` may have changed the file of `fh`.
    pub fn may_include(&self, fh: u64, thread: u32) -> bool {
        let threads = match self.0.lock().get(&fh) {
            Some(threads) if threads.len() <= REMEMBERED && !threads.contains(&thread) => threads.clone(),
            _ => return true,
        };
        let Some(closing) = process_of(thread) else { return true };
        threads.into_iter().any(|thread| process_of(thread).is_none_or(|process| process == closing))
    }

    /// A handle is closed.
    pub fn forget(&self, fh: u64) {
        self.0.lock().remove(&fh);
    }
}

/// The process of a thread, while there is one.
fn process_of(thread: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn this_thread() -> u32 {
        // SAFETY: gettid has no preconditions.
        unsafe { libc::gettid() as u32 }
    }

    #[test]
    fn threads_of_a_process_are_one() {
        let (changers, main) = (Changers::default(), this_thread());
        changers.note(1, main);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_ne!(this_thread(), main);
                assert!(changers.may_include(1, this_thread()));
            });
        });
        let mut other = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(!changers.may_include(1, other.id()));
        changers.note(1, other.id());
        assert!(changers.may_include(1, other.id()));
        changers.forget(1);
        assert!(changers.may_include(1, main));
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn who_is_not_known_counts() {
        let (changers, main) = (Changers::default(), this_thread());
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        changers.note(1, child.id());
        assert!(changers.may_include(1, main), "the process that changed it has ended");
        changers.note(2, main);
        assert!(changers.may_include(2, 0), "of another namespace");
        for thread in 1..=REMEMBERED as u32 + 1 {
            changers.note(3, thread);
        }
        assert!(changers.may_include(3, main));
    }
}

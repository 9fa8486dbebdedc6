//! Clients that keep others waiting.
//!
//! A client that does nothing holds up nobody by that: the manager never waits for clients, and writers never wait for readers. The one thing
//! that others can wait for is a lock, and a lock may be held for as long as its holder likes. So nothing is done about it unless an operator
//! wants that (`Options::lock_timeout`): then a session is ended when calls of others have waited so long for its locks, and its client
//! cannot be at work on what they protect, as far as can be seen from here: its process is stopped (SIGSTOP, a debugger, a frozen terminal), or it
//! has made no call for that long and has none under way. The latter is a guess: a program that computes for long while it holds a lock
//! looks the same.
//!
//! Tested in tests/stuck.rs.

use super::stats::{Observer, SessionStats};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Looks again and again, until it is dropped.
#[derive(Debug)]
pub(super) struct Guard {
    over: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Guard {
    pub fn start(observer: Observer, timeout: Duration) -> io::Result<Guard> {
        let over = Arc::<(Mutex<bool>, Condvar)>::default();
        let end = over.clone();
        let pause = (timeout / 4).clamp(Duration::from_millis(20), Duration::from_secs(5));
        let thread = std::thread::Builder::new().name("freehold-stuck".into()).spawn(move || {
            let mut over = end.0.lock();
            while !*over {
                if end.1.wait_for(&mut over, pause).timed_out() {
                    look(&observer, timeout);
                }
            }
        })?;
        Ok(Guard { over, thread: Some(thread) })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        *self.over.0.lock() = true;
        self.over.1.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn look(observer: &Observer, timeout: Duration) {
    for s in observer.stats().sessions.iter().filter(|s| s.waiting > 0 && s.waited >= timeout) {
        let why = match is_stopped(s.pid) {
            true => "its process is stopped",
            false if is_silent(s, timeout) => "it makes no calls",
            false => continue,
        };
        tracing::warn!(
            pid = s.pid,
            session = s.session,
            "others have waited for {:.1} s for locks of this client, and {why}",
            s.waited.as_secs_f64()
        );
        observer.evict(s.session);
    }
}

fn is_silent(s: &SessionStats, timeout: Duration) -> bool {
    s.idle >= timeout && s.calls_now == 0
}

/// Whether a process is stopped, by a signal or a debugger. Of one that cannot be seen: no.
fn is_stopped(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name in parentheses may hold anything.
    let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
    pid > 0 && matches!(state, Some('T' | 't'))
}

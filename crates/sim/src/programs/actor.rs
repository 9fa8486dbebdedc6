//! One of the programs: makes the calls that it is told, and says what came out.
//!
//! A call is a line of words, its answer another line. A path is a word: `T/…` below the directory of the case, `@2/…` relative to
//! the descriptor in slot 2 (`@2` is that descriptor with an empty path), `P2` the descriptor in slot 2 below /proc/self/fd, `-` the
//! empty path, anything else relative to the current directory. Flags are names with `+` between them ([`words`]).

use super::words::{self, flags};
use super::{calls, streams};
use std::ffi::CString;
use std::io::{self, BufRead, Write};
use std::os::fd::RawFd;

/// Descriptors that a program keeps.
pub(super) const SLOTS: usize = 6;

/// Streams that a program keeps.
pub(super) const STREAMS: usize = 2;

/// A stream of stdio, or none.
#[derive(Clone, Copy)]
pub(super) struct Stream(pub *mut libc::FILE);

impl Stream {
    pub const NONE: Stream = Stream(std::ptr::null_mut());
}

// SAFETY: a stream has a lock of its own.
unsafe impl Send for Stream {}

/// What came out of a call: a line, or an error.
pub(super) type Answer = io::Result<String>;

/// What one program has open, and where the case lives.
pub struct Actor {
    /// The directory of the case.
    pub(super) top: String,
    pub(super) slots: [Option<RawFd>; SLOTS],
    /// Streams that stay open from call to call.
    pub(super) streams: [Stream; STREAMS],
    /// It has replaced itself, by a call that has no answer yet.
    replaced: bool,
}

/// A path as a call takes it.
pub(super) struct Place {
    /// `AT_FDCWD`, or a descriptor.
    pub at: RawFd,
    pub path: CString,
}

/// A result of a call that is negative when it failed.
pub(super) fn check(n: impl Into<i64>) -> io::Result<i64> {
    match n.into() {
        n if n < 0 => Err(io::Error::last_os_error()),
        n => Ok(n),
    }
}

/// The words of a call, taken one after the other. A line is made by the generator: what is not there is a mistake in it.
pub(super) struct Words<'a>(std::str::SplitAsciiWhitespace<'a>);

impl<'a> Words<'a> {
    pub fn next(&mut self) -> &'a str {
        self.0.next().expect("a call with all of its words")
    }
    pub fn number(&mut self) -> i64 {
        self.next().parse().expect("a number")
    }
    pub fn flags(&mut self) -> i32 {
        flags(self.next())
    }
    pub fn rest(&mut self) -> String {
        self.0.by_ref().collect::<Vec<_>>().join(" ")
    }
}

impl Actor {
    /// A program that begins in `top`, which is its current directory already, with what it had open before it replaced itself.
    pub fn new(top: &str, slots: Option<&str>) -> Actor {
        let mut open = [None; SLOTS];
        for (slot, word) in open.iter_mut().zip(slots.unwrap_or("").split(',')) {
            *slot = word.parse().ok();
        }
        Actor {
            top: top.to_owned(),
            slots: open,
            streams: [Stream::NONE; STREAMS],
            replaced: slots.is_some(),
        }
    }

    /// Makes calls until there are no more.
    pub fn run(mut self) {
        let mut lines = io::stdin().lock();
        let mut line = String::new();
        if self.replaced {
            println!("replaced");
        }
        while lines.read_line(&mut line).is_ok_and(|n| n > 0) {
            let answer = self.answer(line.trim_end());
            // Nobody listens any more: the comparison is over.
            if io::stdout().write_all(format!("{answer}\n").as_bytes()).is_err() {
                return;
            }
            line.clear();
        }
    }

    pub(super) fn answer(&mut self, line: &str) -> String {
        match self.perform(line) {
            Ok(answer) => answer.replace(&self.top, "T").replace('\n', "\\n"),
            Err(e) => words::error(&e),
        }
    }

    fn perform(&mut self, line: &str) -> Answer {
        let mut words = Words(line.split_ascii_whitespace());
        let call = words.next();
        match call {
            "fork" => calls::forked(self, &words.rest()),
            "thread" => {
                let rest = words.rest();
                std::thread::scope(|scope| scope.spawn(|| Ok(self.answer(&rest))).join())
                    .expect("no call panics")
            }
            "exec" => calls::replaced(self),
            _ => match calls::by_name(self, call, &mut words) {
                Some(answer) => answer,
                None => streams::by_name(self, call, &mut words)
                    .unwrap_or_else(|| panic!("a call that there is: {line}")),
            },
        }
    }

    /// The descriptor in a slot, -1 when it is empty.
    pub(super) fn fd(&self, words: &mut Words<'_>) -> RawFd {
        self.slots[words.number() as usize].unwrap_or(-1)
    }

    /// Puts a new descriptor into a slot; what was there is closed.
    pub(super) fn keep(&mut self, slot: usize, make: impl FnOnce(&Actor) -> i32) -> Answer {
        let old = self.slots[slot];
        let fd = check(make(self))? as RawFd;
        self.slots[slot] = Some(fd);
        if let Some(old) = old.filter(|&old| old != fd) {
            // SAFETY: a descriptor of this slot alone.
            check(unsafe { libc::close(old) })?;
        }
        Ok(format!("descriptor {fd}"))
    }

    /// After a change of the current directory: who has come out of the case, by a symlink, goes back.
    pub(super) fn moved(&self, changed: i32) -> Answer {
        check(changed)?;
        // One that was removed has no name, and is left alone.
        match std::env::current_dir() {
            Ok(now) if !now.starts_with(&self.top) => {
                std::env::set_current_dir(&self.top).map(|()| "back".to_owned())
            }
            _ => Ok("0".to_owned()),
        }
    }

    pub(super) fn place(&self, words: &mut Words<'_>) -> Place {
        let word = words.next();
        let fd = |digit: &str| self.slots[digit.parse::<usize>().expect("a slot")].unwrap_or(-1);
        let (at, path) = match word.as_bytes()[0] {
            b'T' => (libc::AT_FDCWD, format!("{}{}", self.top, &word[1..])),
            b'P' => (libc::AT_FDCWD, format!("/proc/self/fd/{}", fd(&word[1..]))),
            b'@' => (fd(&word[1..2]), word[2..].trim_start_matches('/').to_owned()),
            b'-' => (libc::AT_FDCWD, String::new()),
            _ => (libc::AT_FDCWD, word.to_owned()),
        };
        Place { at, path: CString::new(path).expect("no zero byte") }
    }
}

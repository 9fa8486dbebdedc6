//! One of the programs: its threads work until they are told to stop.

use super::exclusion;
use super::kinds::{self, Kind, Object, object};
use super::objects::{change, look, open};
use super::register::{OF_PROGRAM, Shared};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

/// One thread.
pub(super) struct Worker<'a> {
    /// The directory of all, and whether it is the current one, too.
    dir: PathBuf,
    is_there: bool,
    pub shared: &'a Shared,
    /// Its number among those of all programs.
    pub thread: usize,
    pub is_root: bool,
    pub through_mount: bool,
    rng: SmallRng,
    /// Files that stay open: to read and write, and to append.
    kept: HashMap<(usize, bool), File>,
    /// Records that it has appended to each log; and those of all that were found there.
    pub logged: HashMap<usize, u64>,
    pub found_logged: u64,
}

impl<'a> Worker<'a> {
    pub fn new(dir: PathBuf, shared: &'a Shared, thread: usize, seed: u64) -> Worker<'a> {
        Worker {
            is_there: std::env::current_dir().is_ok_and(|now| now == dir),
            dir,
            shared,
            thread,
            // SAFETY: a system call without arguments.
            is_root: unsafe { libc::geteuid() } == 0,
            through_mount: false,
            rng: SmallRng::seed_from_u64(seed.wrapping_mul(1 << 8) + thread as u64),
            kept: HashMap::new(),
            logged: HashMap::new(),
            found_logged: 0,
        }
    }

    pub fn one_of(&mut self, many: usize) -> usize {
        self.rng.random_range(0..many)
    }

    /// Whether it is the first thread of its program.
    pub fn is_first(&self) -> bool {
        self.thread.is_multiple_of(OF_PROGRAM)
    }

    /// A name of an object, one way or the other.
    pub fn path(&mut self, object: &Object, tag: &str) -> PathBuf {
        let name = object.name(tag);
        let is_relative = self.is_there && self.rng.random();
        if is_relative { name.into() } else { self.dir.join(name) }
    }

    /// A name of this thread's own.
    pub fn scratch(&self) -> PathBuf {
        self.dir.join(format!("scratch{}", self.thread))
    }

    /// Uses the file of an object that is kept open.
    pub fn file_kept<T>(
        &mut self,
        object: &Object,
        with: impl FnOnce(&File) -> io::Result<T>,
    ) -> io::Result<T> {
        self.opened(object, false, with)
    }

    /// Uses the file of an object that is opened for this alone.
    pub fn fresh<T>(&mut self, object: &Object, with: impl FnOnce(&File) -> io::Result<T>) -> io::Result<T> {
        with(&open(self.path(object, ""), false)?)
    }

    /// Uses the file of an object, kept open or not.
    pub fn file<T>(&mut self, object: &Object, with: impl FnOnce(&File) -> io::Result<T>) -> io::Result<T> {
        match self.one_of(40) {
            0 => drop(self.kept.remove(&(object.number, false))),
            1..10 => return self.fresh(object, with),
            _ => {}
        }
        self.file_kept(object, with)
    }

    /// Uses the file of an object to append.
    pub fn appending<T>(
        &mut self,
        object: &Object,
        with: impl FnOnce(&File) -> io::Result<T>,
    ) -> io::Result<T> {
        self.opened(object, true, with)
    }

    fn opened<T>(
        &mut self,
        object: &Object,
        appending: bool,
        with: impl FnOnce(&File) -> io::Result<T>,
    ) -> io::Result<T> {
        let key = (object.number, appending);
        if !self.kept.contains_key(&key) {
            let file = open(self.path(object, ""), appending)?;
            self.kept.insert(key, file);
        }
        with(&self.kept[&key])
    }

    /// Does something with one of the objects that are worked on.
    fn step(&mut self) -> io::Result<()> {
        let focus = self.shared.focus();
        let Some(nth) = (focus.count_ones() as usize).checked_sub(1) else {
            std::thread::yield_now();
            return Ok(());
        };
        let nth = self.one_of(nth + 1);
        let number = (0..64).filter(|bit| focus >> bit & 1 == 1).nth(nth).unwrap_or(0);
        let object = object(number);
        self.shared.begins(self.thread, number);
        let way = self.one_of(400);
        let what = if (1..120).contains(&way) { "changes" } else { "looks" };
        let done = match object.kind {
            Kind::Alone(by) => exclusion::alone(&object, by, self),
            Kind::Log => exclusion::append(&object, self),
            _ if way == 0 => self.look_in_child(&object),
            _ if way < 120 => change(&object, self),
            _ => look(&object, self),
        };
        self.shared.ends(self.thread);
        done.map_err(|e| {
            io::Error::other(format!("{}: thread {} {what}: {e}", kinds::name(number), self.thread))
        })
    }

    /// A child of this program looks, which has what the program has.
    fn look_in_child(&mut self, object: &Object) -> io::Result<()> {
        // SAFETY: the child makes calls of the file system, asks for memory, which libc allows, and ends.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                let held = look(object, self);
                if let Err(e) = &held {
                    self.shared.fail(&format!(
                        "{}: a child of thread {}: {e}",
                        kinds::name(object.number),
                        self.thread
                    ));
                }
                // SAFETY: a child that has nothing to tidy up.
                unsafe { libc::_exit(held.is_err().into()) }
            }
            child => {
                let mut status = 0;
                // SAFETY: a place for the status.
                while unsafe { libc::waitpid(child, &mut status, 0) } < 0 {
                    let e = io::Error::last_os_error();
                    if e.kind() != io::ErrorKind::Interrupted {
                        return Err(e);
                    }
                }
                if status == 0 {
                    Ok(())
                } else {
                    Err(io::Error::other(format!("a child ended with {status}")))
                }
            }
        }
    }
}

/// Works as program `number`, with so many threads, until the memory of the descriptor says that it is over. Whether nothing failed.
pub fn work(
    dir: &Path,
    number: usize,
    threads: usize,
    shared: RawFd,
    seed: u64,
    through_mount: bool,
) -> io::Result<bool> {
    let shared = Shared::map(shared)?;
    // SAFETY: a number.
    unsafe { libc::umask(0) };
    std::thread::scope(|scope| {
        for thread in 0..threads.min(OF_PROGRAM) {
            scope.spawn(move || {
                let mut worker = Worker::new(dir.to_owned(), &shared, number * OF_PROGRAM + thread, seed);
                worker.through_mount = through_mount;
                while !shared.is_stopped() {
                    if let Err(e) = worker.step() {
                        shared.fail(&e.to_string());
                    }
                }
            });
        }
    });
    Ok(!shared.has_failed())
}

//! What only one can have, and what many append.

use super::kinds::{Object, name};
use super::objects::{done, is_stale};
use super::worker::Worker;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

/// How one of many is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// flock(2).
    Flock,
    /// A record lock of fcntl(2), which belongs to a process.
    Record,
    /// Who makes a file.
    NewFile,
    Directory,
    /// Who renames a file away.
    Rename,
    /// Who makes a link to a file.
    Link,
}

/// What one appends to the log: who, the how many, and that again.
const RECORD: usize = 24;

fn refused<T>(worker: &Worker<'_>, result: io::Result<T>, as_expected: &[i32]) -> io::Result<Option<T>> {
    match result {
        // As in `look`.
        Err(e) if worker.through_mount && is_stale(&e) => {
            worker.shared.repeated.fetch_add(1, Ordering::Relaxed);
            Ok(None)
        }
        Err(e) if e.raw_os_error().is_some_and(|errno| as_expected.contains(&errno)) => Ok(None),
        result => result.map(Some),
    }
}

/// Tries to be alone, once; counts in a file while it is.
pub(super) fn alone(object: &Object, by: By, worker: &mut Worker) -> io::Result<()> {
    // It would be that of all threads.
    if by == By::Record && !worker.is_first() {
        return Ok(());
    }
    let register = &worker.shared.registers[object.number];
    let mine = worker.path(object, &format!("mine{}", worker.thread));
    let (lock, token) = (worker.path(object, "lock"), worker.path(object, "token"));
    let record = |worker: &mut Worker, kind: i32| {
        worker.file_kept(object, |file| {
            // SAFETY: zeros are a value of it.
            let mut lock: libc::flock = unsafe { std::mem::zeroed() };
            (lock.l_type, lock.l_len) = (kind as i16, 1);
            // SAFETY: a lock to read.
            done(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &lock) })
        })
    };
    let flock = |worker: &mut Worker, how: i32| {
        // SAFETY: numbers.
        worker.file_kept(object, |file| done(unsafe { libc::flock(file.as_raw_fd(), how) }))
    };
    let (tried, as_expected): (io::Result<()>, &[i32]) = match by {
        By::Flock => (flock(worker, libc::LOCK_EX | libc::LOCK_NB), &[libc::EWOULDBLOCK]),
        By::Record => (record(worker, libc::F_WRLCK), &[libc::EAGAIN, libc::EACCES]),
        By::NewFile => {
            let made = OpenOptions::new().write(true).create_new(true).open(&lock);
            (made.map(drop), &[libc::EEXIST])
        }
        By::Directory => (fs::create_dir(&lock), &[libc::EEXIST]),
        By::Rename => (fs::rename(&token, &mine), &[libc::ENOENT]),
        By::Link => (fs::hard_link(worker.path(object, ""), &lock), &[libc::EEXIST]),
    };
    let taken = refused(worker, tried, as_expected)?.is_some();
    if !taken {
        return Ok(());
    }
    let others = register.alone.fetch_add(1, Ordering::SeqCst);
    let passed = register.passed.load(Ordering::SeqCst);
    let mut word = [0; 8];
    worker.file_kept(object, |file| file.read_exact_at(&mut word, 0))?;
    let counted = u64::from_le_bytes(word);
    worker.file_kept(object, |file| file.write_all_at(&(counted + 1).to_le_bytes(), 0))?;
    register.passed.store(passed + 1, Ordering::SeqCst);
    register.alone.fetch_sub(1, Ordering::SeqCst);
    if others != 0 || counted != passed {
        let what = format!("{others} others were alone at the same time, {counted} counted of {passed}");
        worker.shared.fail(&format!("{}: thread {}: {what}", name(object.number), worker.thread));
    }
    match by {
        By::Flock => flock(worker, libc::LOCK_UN),
        By::Record => record(worker, libc::F_UNLCK),
        By::NewFile | By::Link => fs::remove_file(lock),
        By::Directory => fs::remove_dir(lock),
        By::Rename => fs::rename(mine, token),
    }
}

/// Whether the file has the count.
pub(super) fn counted(object: &Object, worker: &mut Worker) -> io::Result<bool> {
    let mut word = [0; 8];
    worker.file_kept(object, |file| file.read_exact_at(&mut word, 0))?;
    let (counted, passed) =
        (u64::from_le_bytes(word), worker.shared.registers[object.number].passed.load(Ordering::SeqCst));
    if counted != passed {
        println!("{}: {counted} counted of {passed}", name(object.number));
    }
    Ok(counted == passed)
}

/// Appends a record to the log.
pub(super) fn append(object: &Object, worker: &mut Worker) -> io::Result<()> {
    // The kernel cuts what it appends where it believes a page to end (docs/SEMANTICS.md, "FUSE").
    if worker.through_mount {
        return Ok(());
    }
    let number = worker.logged.entry(object.number).or_insert(0);
    *number += 1;
    let words = [worker.thread as u64, *number, *number ^ worker.thread as u64];
    let record = words.map(u64::to_le_bytes).concat();
    worker.shared.appended[worker.thread].fetch_add(1, Ordering::SeqCst);
    worker.appending(object, |mut file| io::Write::write_all(&mut file, &record))
}

/// Whether all records are there, each once, and those of each thread in their order.
pub(super) fn all_there(object: &Object, worker: &mut Worker) -> io::Result<bool> {
    let bytes = fs::read(worker.path(object, ""))?;
    let mut last = [0u64; super::register::THREADS];
    for (at, record) in bytes.chunks(RECORD).enumerate() {
        let word = |i: usize| {
            let bytes = record.get(8 * i..8 * i + 8);
            bytes.and_then(|bytes| bytes.try_into().ok()).map_or(u64::MAX, u64::from_le_bytes)
        };
        let (thread, number) = (word(0), word(1));
        let is_next = last.get_mut(thread as usize).is_some_and(|last| {
            *last += 1;
            *last == number && word(2) == number ^ thread
        });
        if !is_next {
            println!("{}: record {at} is {thread}, {number}, {}", name(object.number), word(2));
            return Ok(false);
        }
    }
    worker.found_logged += (bytes.len() / RECORD) as u64;
    Ok(true)
}

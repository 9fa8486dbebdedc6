//! How objects are changed, and how they are looked at.

use super::exclusion;
use super::kinds::*;
use super::register::{Found, OBJECTS, Shared};
use super::ways::Way;
use super::worker::Worker;
use std::ffi::CString;
use std::fs::{self, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, UNIX_EPOCH};

/// How often is looked again, a millisecond later, through the mount.
const INSTANTS: usize = 20;

/// Looks at the last state of each, and at all that was appended.
pub(super) fn look_at_all(dir: &Path, shared: &Shared) -> bool {
    let mut worker = Worker::new(dir.to_owned(), shared, 0, 0);
    let all_held = (0..OBJECTS).map(object).all(|object| {
        let held = match object.kind {
            Kind::Alone(_) => exclusion::counted(&object, &mut worker),
            Kind::Log => exclusion::all_there(&object, &mut worker),
            _ => look(&object, &mut worker).map(|()| true),
        };
        match held {
            Ok(true) => !shared.has_failed(),
            Ok(false) => false,
            Err(e) => {
                println!("{}: {e}", name(object.number));
                false
            }
        }
    });
    let (found, appended) = (worker.found_logged, shared.appended());
    if all_held && found != appended {
        println!("{found} records of {appended} that were appended");
    }
    all_held && found == appended
}

fn number_in(bytes: &[u8]) -> u64 {
    bytes.try_into().map(u64::from_le_bytes).unwrap_or(u64::MAX)
}

/// Makes the next state of an object, if it is our turn.
pub(super) fn change(object: &Object, worker: &mut Worker) -> io::Result<()> {
    let shared = worker.shared;
    // The owner's rights.
    if matches!(object.kind, Kind::Mode | Kind::Times) && !worker.is_root {
        return Ok(());
    }
    let early = shared.early.load(Ordering::Relaxed) != 0;
    let (thread, how) = (worker.thread, (early, !worker.through_mount));
    let made = shared.registers[object.number].change(thread, how, |state| make(object, worker, state));
    made.map_or(Ok(()), |made| made.map(drop))
}

fn make(object: &Object, worker: &mut Worker, state: u64) -> io::Result<()> {
    let path = worker.path(object, "");
    match object.kind {
        Kind::Word => {
            let way = Way::any(worker, object);
            worker.file(object, |file| way.write(file, &state.to_le_bytes(), object.at()))
        }
        Kind::Pages => {
            let bytes = state.to_le_bytes().repeat(PAGES / 8);
            worker.file(object, |file| file.write_all_at(&bytes, PAGES_AT))
        }
        Kind::Hole if state % 2 == 1 => {
            let way = Way::any(worker, object);
            worker.file(object, |file| way.write(file, &state.to_le_bytes(), 4096))
        }
        Kind::Hole => worker.file(object, |file| {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: numbers.
            done(unsafe { libc::fallocate(file.as_raw_fd(), mode, 4096, 4096) })
        }),
        Kind::Size => {
            let (old, new) = (size_of_state(state - 1), size_of_state(state));
            match worker.one_of(3) {
                0 if new > old => worker.file(object, |file| file.write_all_at(b"x", new - 1)),
                // SAFETY: a string that ends with zero.
                1 => done(unsafe { libc::truncate(c_path(&path).as_ptr(), new as i64) }),
                _ => worker.file(object, |file| file.set_len(new)),
            }
        }
        Kind::Tail => {
            let record = [state.to_le_bytes(), (!state).to_le_bytes()].concat();
            // Where the kernel knows the end to be, it appends.
            if worker.through_mount || worker.one_of(2) == 0 {
                return worker.file(object, |file| file.write_all_at(&record, (state - 1) * RECORD));
            }
            worker.appending(object, |mut file| io::Write::write_all(&mut file, &record))
        }
        Kind::Emptied => match (state % 2, worker.one_of(2)) {
            (1, 0) => worker.file(object, |file| file.write_all_at(&state.to_le_bytes(), 0)),
            (1, _) => OpenOptions::new().write(true).open(path)?.write_all_at(&state.to_le_bytes(), 0),
            (_, 0) => OpenOptions::new().write(true).truncate(true).open(path).map(drop),
            _ => worker.file(object, |file| file.set_len(0)),
        },
        Kind::Name => match state % 6 {
            1 => OpenOptions::new().write(true).create_new(true).open(path).map(drop),
            3 => fs::create_dir(path),
            5 => symlink("nowhere", path),
            4 => fs::remove_dir(path),
            _ => fs::remove_file(path),
        },
        Kind::Replaced => {
            let other = worker.path(object, &format!("new{}", worker.thread));
            fs::write(&other, state.to_le_bytes())?;
            fs::rename(other, path)
        }
        Kind::Exchanged => {
            let [a, b] = ["a", "b"].map(|tag| c_path(&worker.path(object, tag)));
            let at = libc::AT_FDCWD;
            // SAFETY: strings that end with zero.
            done(unsafe { libc::renameat2(at, a.as_ptr(), at, b.as_ptr(), libc::RENAME_EXCHANGE) })
        }
        Kind::Moved | Kind::MovedDirectory => {
            let [old, new] = [state - 1, state].map(|state| worker.path(object, &(state % 3).to_string()));
            fs::rename(old, new)
        }
        Kind::Symlink => {
            let other = worker.path(object, &format!("new{}", worker.thread));
            symlink(state.to_string(), &other)?;
            fs::rename(other, path)
        }
        Kind::Mode => {
            let mode = Permissions::from_mode(state as u32 % 512);
            match worker.one_of(2) {
                0 => fs::set_permissions(path, mode),
                _ => worker.file(object, |file| file.set_permissions(mode)),
            }
        }
        Kind::Times => worker.file(object, |file| file.set_modified(UNIX_EPOCH + Duration::from_secs(state))),
        Kind::Attribute => {
            let value = state.to_le_bytes();
            let (path, name) = (c_path(&path), c"user.state");
            // SAFETY: strings that end with zero, and bytes of that length.
            done(unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), 8, 0) })
        }
        Kind::Links => {
            let (old, new) = (links_of_state(state - 1), links_of_state(state));
            let other = worker.path(object, &old.max(new).to_string());
            if new < old {
                return fs::remove_file(other);
            }
            // The kernel refuses by the number of names that it knows (docs/SEMANTICS.md, "FUSE"). ln(1) asks first, too.
            fs::metadata(&path)?;
            fs::hard_link(path, other)
        }
        Kind::Listing => {
            let [old, new] = [state - 1, state].map(|state| worker.path(object, &format!("/{state}")));
            fs::rename(old, new)
        }
        Kind::Many => {
            let name = (state - 1) % MANY;
            let other = worker.path(object, &format!("/{name}"));
            if many_of_state(state).contains(&name) {
                OpenOptions::new().write(true).create_new(true).open(other).map(drop)
            } else {
                fs::remove_file(other)
            }
        }
        Kind::Alone(_) | Kind::Log => Ok(()),
    }
}

/// Looks at an object; what does not hold ends everything.
pub(super) fn look(object: &Object, worker: &mut Worker) -> io::Result<()> {
    let shared = worker.shared;
    // What is under way may be in the kernel's memory already, or not yet.
    let way = Way::any(worker, object);
    let alike = !worker.through_mount && !way.is_through_mount();
    let mut look = || loop {
        match shared.registers[object.number].look(alike, |first| find(object, worker, &way, first)) {
            // The name led elsewhere each time before the kernel came to what it had led to.
            Err(e) if !alike && is_stale(&e) => _ = shared.repeated.fetch_add(1, Ordering::Relaxed),
            looked => return looked,
        }
    };
    let mut held = look()?;
    if !alike && object.is_of_pages() {
        // Threads that ask at the same time, or write beside a session, may find what was there before, for an instant (docs/SEMANTICS.md, "FUSE").
        for _ in 0..INSTANTS {
            if held.is_ok() {
                break;
            }
            shared.late.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(1));
            held = look()?;
        }
    }
    if let Err(what) = held {
        shared.fail(&format!("{}: thread {} found {what}", name(object.number), worker.thread));
    }
    Ok(())
}

fn state(found: u64, of: fn(u64) -> u64) -> Found {
    Found::State(found.to_string(), Box::new(move |state| of(state) == found))
}

fn find(object: &Object, worker: &mut Worker, way: &Way, first: u64) -> io::Result<Found> {
    let path = worker.path(object, "");
    let word_at = |worker: &mut Worker, at| {
        let mut word = [0; 8];
        let n = worker.file(object, |file| file.read_at(&mut word, at))?;
        Ok::<_, io::Error>((n, number_in(&word)))
    };
    let here = |path: &Path| match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    };
    Ok(match object.kind {
        Kind::Word => state(worker.file(object, |file| way.read(file, object.at()))?, |state| state),
        Kind::Pages => {
            let (from, len) = (worker.one_of(PAGES / 8) * 8, (worker.one_of(PAGES / 8) + 1) * 8);
            let mut bytes = vec![0; len.min(PAGES - from)];
            worker.file(object, |file| file.read_exact_at(&mut bytes, PAGES_AT + from as u64))?;
            let words = || bytes.chunks_exact(8).map(number_in);
            Found::Between(words().min().unwrap_or(0), words().max().unwrap_or(0))
        }
        Kind::Hole => {
            let found = worker.file(object, |file| way.read(file, 4096))?;
            state(found, |state| if state % 2 == 1 { state } else { 0 })
        }
        Kind::Size => match worker.one_of(4) {
            0 => state(worker.file(object, |file| file.metadata())?.len(), size_of_state),
            // Many pages at once are not one state where the kernel reads.
            1 if !worker.through_mount => {
                let n = worker.file(object, |file| file.read_at(&mut [0; 50_000], 0))? as u64;
                Found::Quiet(format!("{n} bytes"), n == size_of_state(first))
            }
            // There the kernel goes by the size that it knows.
            2 if !worker.through_mount => {
                // SAFETY: numbers.
                let end = worker
                    .fresh(object, |file| Ok(unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_END) }))?;
                state(end as u64, size_of_state)
            }
            _ => state(fs::metadata(path)?.len(), size_of_state),
        },
        Kind::Tail if first > 0 && !worker.through_mount && worker.one_of(2) == 0 => {
            let (n, word) = word_at(worker, (first - 1) * RECORD)?;
            let found = if n == 8 && word == first { first } else { 0 };
            Found::State(format!("{n} bytes, {word}"), Box::new(move |state| state == found))
        }
        Kind::Tail => state(fs::metadata(path)?.len(), |state| state * RECORD),
        Kind::Emptied => {
            let (n, word) = word_at(worker, 0)?;
            let fits = move |state: u64| if state % 2 == 1 { n == 8 && word == state } else { n == 0 };
            // Where the kernel has a page it reads what it has, and the size before or after.
            if worker.through_mount {
                Found::Quiet(format!("{n} bytes, {word}"), fits(first))
            } else {
                Found::State(format!("{n} bytes, {word}"), Box::new(fits))
            }
        }
        Kind::Name => {
            let kind = here(&path)?.map(|meta| meta.file_type());
            let kind = kind.map_or(0, |kind| 1 + u64::from(kind.is_dir()) + 2 * u64::from(kind.is_symlink()));
            state(kind, kind_of_state)
        }
        Kind::Replaced => {
            let mut word = [0; 8];
            fs::File::open(path)?.read_exact_at(&mut word, 0)?;
            state(number_in(&word), |state| state)
        }
        Kind::Exchanged => {
            let found = u64::from(fs::read(worker.path(object, "a"))? == b"b");
            state(found, |state| state % 2)
        }
        Kind::Moved | Kind::MovedDirectory => {
            let tag = if object.kind == Kind::Moved { "" } else { "/in/file" };
            let place = first % 3;
            let is_there = here(&worker.path(object, &format!("{place}{tag}")))?.is_some();
            Found::State(
                format!("there: {is_there}"),
                Box::new(move |state| (state % 3 == place) == is_there),
            )
        }
        Kind::Symlink => {
            let target = fs::read_link(path)?;
            state(target.to_string_lossy().parse().unwrap_or(u64::MAX), |state| state)
        }
        Kind::Mode => state(u64::from(fs::metadata(path)?.mode()) & 0o777, |state| state % 512),
        Kind::Times => match worker.one_of(2) {
            0 => state(fs::metadata(path)?.mtime() as u64, |state| state),
            _ => state(worker.file(object, |file| file.metadata())?.mtime() as u64, |state| state),
        },
        Kind::Attribute => {
            let mut value = [0u8; 8];
            let (path, name) = (c_path(&path), c"user.state");
            // SAFETY: strings that end with zero, and a place of that length.
            let n = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), 8) };
            if n < 0 && io::Error::last_os_error().raw_os_error() != Some(libc::ENODATA) {
                return Err(io::Error::last_os_error());
            }
            state(number_in(&value), |state| state)
        }
        Kind::Links => state(fs::metadata(path)?.nlink(), links_of_state),
        Kind::Listing => {
            let names = names(&path)?;
            let is_right = names == [first];
            Found::Quiet(format!("{names:?}"), is_right)
        }
        Kind::Many => {
            let names = names(&path)?;
            let is_right = names == many_of_state(first);
            Found::Quiet(format!("{names:?}"), is_right)
        }
        Kind::Alone(_) | Kind::Log => Found::Quiet(String::new(), true),
    })
}

/// Names of a directory, which are numbers, in order.
fn names(path: &Path) -> io::Result<Vec<u64>> {
    let name = |entry: io::Result<fs::DirEntry>| {
        Ok(entry?.file_name().to_string_lossy().parse().unwrap_or(u64::MAX))
    };
    let mut names = fs::read_dir(path)?.map(name).collect::<io::Result<Vec<_>>>()?;
    names.sort_unstable();
    Ok(names)
}

pub(super) fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("no zero byte")
}

/// Whether a call through the mount is to be made once more.
pub(super) fn is_stale(e: &io::Error) -> bool {
    e.raw_os_error() == Some(libc::ESTALE)
}

/// A call that gives 0, or -1.
pub(super) fn done(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// An object's file, opened to read and write.
pub(super) fn open(path: PathBuf, appending: bool) -> io::Result<fs::File> {
    OpenOptions::new().read(true).write(true).append(appending).custom_flags(libc::O_CLOEXEC).open(path)
}

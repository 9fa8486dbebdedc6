//! Calls on names, attributes, descriptors and locks, and those that make processes.

use super::actor::{Actor, Answer, Place, SLOTS, Words, check};
use super::data;
use libc::{c_char, c_int, c_void};
use std::ffi::{CStr, CString};
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::FromRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Times before this are those that a program has set; later ones are the clock's and are not told.
const SET_TIMES: i64 = 1_000_000_000;

fn done(n: impl Into<i64>) -> Answer {
    check(n).map(|n| n.to_string())
}

/// A call by its name; `None` when it is not one of these.
pub(super) fn by_name(actor: &mut Actor, call: &str, words: &mut Words<'_>) -> Option<Answer> {
    if let Some(answer) = descriptors(actor, call, words).or_else(|| data::by_name(actor, call, words)) {
        return Some(answer);
    }
    if !NAMES.contains(&call) {
        return None;
    }
    let place = actor.place(words);
    Some(names(actor, call, &place, words))
}

/// The calls whose first word is a path.
const NAMES: &[&str] = &[
    "stat",
    "lstat",
    "statat",
    "statx",
    "access",
    "accessat",
    "chmod",
    "chmodat",
    "lchown",
    "chownat",
    "times",
    "truncate",
    "mkdir",
    "rmdir",
    "unlink",
    "unlinkat",
    "symlink",
    "readlink",
    "link",
    "linkat",
    "rename",
    "renameat2",
    "chdir",
    "realpath",
    "setxattr",
    "lsetxattr",
    "getxattr",
    "lgetxattr",
    "listxattr",
    "removexattr",
    "pathconf",
];

fn names(actor: &Actor, call: &str, place: &Place, words: &mut Words<'_>) -> Answer {
    let (at, path) = (place.at, place.path.as_ptr());
    // SAFETY: of all calls below: strings that end with zero, and places that are written in full before they are read.
    unsafe {
        match call {
            "stat" => told(|to| libc::stat(path, to)),
            "lstat" => told(|to| libc::lstat(path, to)),
            "statat" => told(|to| libc::fstatat(at, path, to, words.flags())),
            "statx" => told_more(at, path, words.flags()),
            "access" => done(libc::access(path, words.flags())),
            "accessat" => done(libc::faccessat(at, path, words.flags(), words.flags())),
            "chmod" => done(libc::chmod(path, words.number() as u32)),
            "chmodat" => done(libc::fchmodat(at, path, words.number() as u32, 0)),
            "lchown" => done(libc::lchown(path, words.number() as u32, words.number() as u32)),
            "chownat" => {
                done(libc::fchownat(at, path, words.number() as u32, words.number() as u32, words.flags()))
            }
            "times" => done(libc::utimensat(at, path, times(words).as_ptr(), words.flags())),
            "truncate" => done(libc::truncate(path, words.number())),
            "mkdir" => done(libc::mkdirat(at, path, words.number() as u32)),
            "rmdir" => done(libc::rmdir(path)),
            "unlink" => done(libc::unlink(path)),
            "unlinkat" => done(libc::unlinkat(at, path, words.flags())),
            "symlink" => {
                let target = actor.place(words);
                done(libc::symlinkat(target.path.as_ptr(), at, path))
            }
            "readlink" => {
                let mut to = vec![0u8; words.number() as usize];
                let n = check(libc::readlinkat(at, path, to.as_mut_ptr().cast(), to.len()) as i64)?;
                Ok(String::from_utf8_lossy(&to[..n as usize]).into_owned())
            }
            "link" | "linkat" | "rename" | "renameat2" => {
                let new = actor.place(words);
                let to = new.path.as_ptr();
                match call {
                    "link" => done(libc::link(path, to)),
                    "linkat" => done(libc::linkat(at, path, new.at, to, words.flags())),
                    "rename" => done(libc::renameat(at, path, new.at, to)),
                    _ => done(libc::renameat2(at, path, new.at, to, words.flags() as u32)),
                }
            }
            "chdir" => actor.moved(libc::chdir(path)),
            "realpath" => {
                let found = libc::realpath(path, std::ptr::null_mut());
                if found.is_null() {
                    return Err(io::Error::last_os_error());
                }
                let text = CStr::from_ptr(found).to_string_lossy().into_owned();
                libc::free(found.cast());
                Ok(text)
            }
            "pathconf" => done(libc::pathconf(path, libc::_PC_NAME_MAX)),
            _ => attribute(call, path, words),
        }
    }
}

fn attribute(call: &str, path: *const c_char, words: &mut Words<'_>) -> Answer {
    let mut to = vec![0u8; 4096];
    let place: *mut c_void = to.as_mut_ptr().cast();
    let name = if call == "listxattr" {
        CString::default()
    } else {
        CString::new(words.next()).expect("no zero byte")
    };
    let name = name.as_ptr();
    // SAFETY: strings that end with zero, a buffer with its length.
    let n = unsafe {
        match call {
            "setxattr" | "lsetxattr" => {
                let (value, flags) = (words.next(), words.flags());
                let (bytes, len) = (value.as_ptr().cast(), value.len());
                let set = if call == "setxattr" { libc::setxattr } else { libc::lsetxattr };
                return done(set(path, name, bytes, len, flags));
            }
            "removexattr" => return done(libc::removexattr(path, name)),
            "getxattr" => libc::getxattr(path, name, place, words.number() as usize),
            "lgetxattr" => libc::lgetxattr(path, name, place, words.number() as usize),
            _ => libc::listxattr(path, place.cast(), to.len()),
        }
    };
    let n = check(n as i64)? as usize;
    let mut found: Vec<_> =
        to[..n].split(|&byte| byte == 0).map(|part| String::from_utf8_lossy(part).into_owned()).collect();
    // What a security module of the host adds is not the program's.
    found.retain(|name| !name.starts_with("security."));
    found.sort();
    Ok(format!("{n}: {}", found.join(" ")))
}

fn times(words: &mut Words<'_>) -> [libc::timespec; 2] {
    [words.number(), words.number()].map(|sec| match sec {
        -1 => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW },
        -2 => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT },
        sec => libc::timespec { tv_sec: sec, tv_nsec: 5 },
    })
}

fn told(ask: impl FnOnce(*mut libc::stat) -> c_int) -> Answer {
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    check(ask(stat.as_mut_ptr()))?;
    // SAFETY: the call has written it.
    let s = unsafe { stat.assume_init() };
    Ok(attributes(s.st_mode, s.st_nlink, s.st_uid, s.st_gid, s.st_size, (s.st_mtime, s.st_mtime_nsec)))
}

fn told_more(at: c_int, path: *const c_char, flags: c_int) -> Answer {
    let mut statx = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: a string that ends with zero, and room for the answer.
    check(unsafe { libc::statx(at, path, flags, libc::STATX_BASIC_STATS, statx.as_mut_ptr()) })?;
    // SAFETY: the call has written it.
    let s = unsafe { statx.assume_init() };
    let modified = (s.stx_mtime.tv_sec, s.stx_mtime.tv_nsec.into());
    Ok(attributes(s.stx_mode.into(), s.stx_nlink.into(), s.stx_uid, s.stx_gid, s.stx_size as i64, modified))
}

/// What every file system must say alike: not the size of a directory, nor that of a symlink, which has the path of the case in it, nor the permissions
/// of one, which below /proc say what a descriptor may.
fn attributes(mode: u32, links: u64, uid: u32, gid: u32, size: i64, modified: (i64, i64)) -> String {
    let kind = mode & libc::S_IFMT;
    let size = if [libc::S_IFDIR, libc::S_IFLNK].contains(&kind) { 0 } else { size };
    let modified =
        if modified.0 < SET_TIMES { format!("{}.{}", modified.0, modified.1) } else { "lately".to_owned() };
    let mode = if kind == libc::S_IFLNK { kind } else { mode };
    format!("mode {mode:o}, {links} links, owner {uid}:{gid}, {size} bytes, modified {modified}")
}

fn descriptors(actor: &mut Actor, call: &str, words: &mut Words<'_>) -> Option<Answer> {
    // SAFETY: of all calls below: descriptors, numbers, strings that end with zero, and places that are written before they are read.
    Some(unsafe {
        match call {
            "open" => {
                let slot = words.number() as usize;
                let (place, flags, mode) = (actor.place(words), words.flags(), words.number() as u32);
                actor.keep(slot, |_| match place.at {
                    libc::AT_FDCWD => libc::open(place.path.as_ptr(), flags, mode),
                    at => libc::openat(at, place.path.as_ptr(), flags, mode),
                })
            }
            "close" => {
                let fd = actor.slots[words.number() as usize].take();
                done(libc::close(fd.unwrap_or(-1)))
            }
            "dup" | "dup_above" | "dup3" => {
                let slot = words.number() as usize;
                let fd = actor.fd(words);
                match call {
                    "dup" => actor.keep(slot, |_| libc::dup(fd)),
                    "dup_above" => actor.keep(slot, |_| libc::fcntl(fd, libc::F_DUPFD, 40)),
                    // Onto the descriptor that stands there.
                    _ => match actor.slots[slot] {
                        Some(onto) => done(libc::dup2(fd, onto)),
                        None => actor.keep(slot, |_| libc::dup3(fd, 60 + slot as c_int, libc::O_CLOEXEC)),
                    },
                }
            }
            "fstat" => told(|to| libc::fstat(actor.fd(words), to)),
            "fchmod" => done(libc::fchmod(actor.fd(words), words.number() as u32)),
            "fchown" => done(libc::fchown(actor.fd(words), words.number() as u32, words.number() as u32)),
            "futimens" => done(libc::futimens(actor.fd(words), times(words).as_ptr())),
            "ftruncate" => done(libc::ftruncate(actor.fd(words), words.number())),
            "fallocate" => {
                done(libc::fallocate(actor.fd(words), words.flags(), words.number(), words.number()))
            }
            "posix_fallocate" => {
                Ok(libc::posix_fallocate(actor.fd(words), words.number(), words.number()).to_string())
            }
            "fsync" => done(libc::fsync(actor.fd(words))),
            "fdatasync" => done(libc::fdatasync(actor.fd(words))),
            "fchdir" => actor.moved(libc::fchdir(actor.fd(words))),
            "umask" => done(libc::umask(words.number() as u32)),
            "getcwd" => {
                let mut to = [0 as c_char; 4096];
                match libc::getcwd(to.as_mut_ptr(), to.len()).is_null() {
                    true => Err(io::Error::last_os_error()),
                    false => Ok(CStr::from_ptr(to.as_ptr()).to_string_lossy().into_owned()),
                }
            }
            "getfl" => done(libc::fcntl(actor.fd(words), libc::F_GETFL)),
            "setfl" => done(libc::fcntl(actor.fd(words), libc::F_SETFL, words.flags())),
            "getfd" => done(libc::fcntl(actor.fd(words), libc::F_GETFD)),
            "setfd" => done(libc::fcntl(actor.fd(words), libc::F_SETFD, words.number() as c_int)),
            "flock" => done(libc::flock(actor.fd(words), words.flags() | libc::LOCK_NB)),
            "lock" => {
                let (fd, command) = (actor.fd(words), words.flags());
                let mut lock: libc::flock = std::mem::zeroed();
                lock.l_type = words.flags() as i16;
                lock.l_whence = words.flags() as i16;
                (lock.l_start, lock.l_len) = (words.number(), words.number());
                check(libc::fcntl(fd, command, &mut lock)).map(|_| match command {
                    // Whose it is differs by nature; that it is somebody's does not.
                    libc::F_GETLK | libc::F_OFD_GETLK => {
                        format!("{} {} {}", lock.l_type, lock.l_start, lock.l_len)
                    }
                    _ => "0".to_owned(),
                })
            }
            "fgetxattr" | "fsetxattr" => {
                let (fd, name) = (actor.fd(words), CString::new(words.next()).expect("no zero byte"));
                let mut to = [0u8; 256];
                if call == "fsetxattr" {
                    let value = words.next();
                    return Some(done(libc::fsetxattr(
                        fd,
                        name.as_ptr(),
                        value.as_ptr().cast(),
                        value.len(),
                        0,
                    )));
                }
                check(libc::fgetxattr(fd, name.as_ptr(), to.as_mut_ptr().cast(), to.len()) as i64)
                    .map(|n| String::from_utf8_lossy(&to[..n as usize]).into_owned())
            }
            _ => return None,
        }
    })
}

/// A child makes the call, with all that is open, and ends.
pub(super) fn forked(actor: &mut Actor, call: &str) -> Answer {
    let mut ends = [0; 2];
    // SAFETY: a place for two descriptors. High numbers: they take none that the program's next open would get.
    unsafe {
        check(libc::pipe(ends.as_mut_ptr()))?;
        for end in &mut ends {
            let high = check(libc::fcntl(*end, libc::F_DUPFD, 200))? as c_int;
            check(libc::close(*end))?;
            *end = high;
        }
    }
    // SAFETY: the actor has one thread here; the child makes calls, writes and ends.
    match check(unsafe { libc::fork() })? {
        0 => {
            let answer = actor.answer(call);
            // SAFETY: the bytes are there; the child ends without running what the parent registered.
            unsafe {
                libc::write(ends[1], answer.as_ptr().cast(), answer.len());
                libc::_exit(0);
            }
        }
        child => {
            // SAFETY: the child has its own.
            check(unsafe { libc::close(ends[1]) })?;
            let mut answer = String::new();
            // SAFETY: the end for reading is this one's alone.
            unsafe { std::fs::File::from_raw_fd(ends[0]) }.read_to_string(&mut answer)?;
            let mut status = 0;
            // SAFETY: a place for the status.
            check(unsafe { libc::waitpid(child as i32, &mut status, 0) })?;
            Ok(format!("child ended with {status}: {answer}"))
        }
    }
}

/// The program replaces itself and goes on: descriptors that are closed by that are gone.
pub(super) fn replaced(actor: &Actor) -> Answer {
    let open = |slot: usize| {
        let fd = actor.slots[slot].filter(|&fd| {
            // SAFETY: a number.
            let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
            flags >= 0 && flags & libc::FD_CLOEXEC == 0
        });
        fd.map_or("-".to_owned(), |fd| fd.to_string())
    };
    let slots: Vec<_> = (0..SLOTS).map(open).collect();
    let own = std::env::current_exe()?;
    Err(Command::new(own).args(["--actor", &actor.top, &format!("--slots={}", slots.join(","))]).exec())
}

//! Random system calls of several programs, one after the other, in two places that must look alike: an ordinary directory, and a
//! volume that each program reaches in its own way (past the kernel under `freehold run`, or through the mount).
//!
//! Verifies: what every call returns, errors included; numbers of new descriptors; names, types, permissions, owners, link counts,
//! sizes and times that were set; every byte that is read, by whichever call; what children, threads and replaced programs find in
//! what was open; what a program sees of what the others did just before. At the end of a case, the whole tree, by every program.
//! Does not verify: calls at the same time, times of the clock, access times, sizes of directories, inode numbers, blocks.
//!
//! A difference is made small: the fewest calls that still show one. Canary: in `tests/programs.rs`.

mod actor;
mod calls;
mod data;
mod generate;
mod streams;
mod words;

pub use actor::Actor;
pub use generate::{Call, Generator};

use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// A call that takes longer hangs.
const LONGEST: Duration = Duration::from_secs(10);

/// Whether an answer in the second place is one that is said to differ (docs/SEMANTICS.md). What comes after it is not the same, either.
fn is_known(line: &str, answers: &[String; 2], through_mount: bool) -> bool {
    let calls = |names: &[&str]| line.split(' ').any(|word| names.contains(&word));
    // Of a child, what it says at the end.
    let [plain, answer] = [0, 1].map(|i| answers[i].rsplit(": ").next().unwrap_or_default());
    match answer {
        // Where the kernel stands in a directory that is gone a FUSE server cannot help it; a program that was replaced there finds itself where the kernel says.
        "ESTALE" | "EIO" => through_mount || !line.contains("T/"),
        // A shared mapping is the mount's, which asks for the permissions of the file.
        "ENODEV" => calls(&["map"]),
        // Nothing is kept by a directory's descriptor, or one of O_PATH, when the program replaces itself, and no symlink ever.
        "ENOENT"
            if answers[0].contains(", 0 links, ")
                || plain == data::ONE_FILE
                || plain.starts_with('E') && line.contains('@') =>
        {
            true
        }
        _ if plain == data::OF_DIRECTORY || answer == data::OF_DIRECTORY => true,
        // It looks into each directory on the way, also where libc goes by the text.
        "EACCES" => calls(&["realpath"]),
        // What a descriptor was opened as, wherever that is by now.
        _ if line.contains("readlink P") || through_mount && line.contains(" P") => true,
        // The kernel goes by the size that it knows, and locks directories for itself.
        _ => through_mount && calls(&["sendfile", "copy_range", "lseek", "lock", "flock"]),
    }
}

/// How a program is started.
#[derive(Clone, Debug)]
pub struct Start {
    /// The command and its arguments; the arguments of an actor come behind them.
    pub command: Vec<String>,
    /// The user, who is also the group; `None` to stay who we are.
    pub user: Option<u32>,
}

impl Start {
    /// Three programs with words before their own command `own`, one of them as another user where we may do that, and one with other words.
    pub fn four(own: &str, under: &str, last: &str) -> Vec<Start> {
        // SAFETY: a system call without arguments.
        let root = unsafe { libc::geteuid() } == 0;
        let start = |under: &str, user: Option<u32>| {
            let command = under.split_whitespace().chain([own]).map(str::to_owned).collect();
            Start { command, user: user.filter(|_| root) }
        };
        vec![start(under, None), start(under, None), start(under, Some(1000)), start(last, None)]
    }

    /// The command, to which the program's own arguments can be added.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]);
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command
    }
}

/// A directory, and how the programs there are started.
#[derive(Clone, Debug)]
pub struct Place {
    /// Cases are made below it.
    pub dir: PathBuf,
    /// One for each program.
    pub starts: Vec<Start>,
    /// What is done there now and then, for a shell.
    pub interlude: Option<String>,
}

/// Instead of a call: what is done in a place while no call is made there.
pub const INTERLUDE: &str = "interlude";

impl Place {
    fn interlude(&self) -> String {
        let Some(command) = &self.interlude else { return "done".to_owned() };
        match Command::new("sh").args(["-c", command]).status() {
            Ok(status) if status.success() => "done".to_owned(),
            other => format!("{command}: {other:?}"),
        }
    }
}

/// A call that came out differently.
#[derive(Debug)]
pub struct Difference {
    /// The calls up to it.
    pub calls: Vec<Call>,
    /// What came out in each place.
    pub answers: [String; 2],
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.calls.iter().try_for_each(|call| writeln!(f, "{} {}", call.actor, call.line))?;
        writeln!(f, "   first place: {}", self.answers[0])?;
        writeln!(f, "  second place: {}", self.answers[1])
    }
}

/// One program that runs.
struct Program {
    child: Child,
    calls: ChildStdin,
    answers: Receiver<String>,
}

impl Program {
    fn start(start: &Start, top: &Path) -> io::Result<Program> {
        let mut command = start.command();
        command.arg("--actor").arg(top).current_dir(top).env("LC_ALL", "C");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let calls = child.stdin.take().expect("a pipe");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let (send, answers) = channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| send.send(line)));
        Ok(Program { child, calls, answers })
    }

    fn answer(&mut self, line: &str) -> String {
        if self.calls.write_all(format!("{line}\n").as_bytes()).is_err() {
            return "the program is gone".to_owned();
        }
        match self.answers.recv_timeout(LONGEST) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => "the program hangs".to_owned(),
            Err(RecvTimeoutError::Disconnected) => "the program has ended".to_owned(),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes the calls in both places, in directories of this name that are removed afterwards. An answer that is not the same ends it, also one that is known to differ.
/// How many gave the same, and what did not.
pub fn compare(places: &[Place; 2], name: &str, calls: &[Call]) -> io::Result<(usize, Option<Difference>)> {
    let tops = [0, 1].map(|i| places[i].dir.join(name));
    let mut programs = Vec::new();
    for (place, top) in places.iter().zip(&tops) {
        std::fs::create_dir(top)?;
        std::fs::set_permissions(top, PermissionsExt::from_mode(0o777))?;
        let mut started =
            place.starts.iter().map(|start| Program::start(start, top)).collect::<io::Result<Vec<_>>>()?;
        if place.interlude.is_some() {
            // All of them are there before anything is done. This is a call that needs nothing of the place.
            started.iter_mut().for_each(|program| _ = program.answer("getfd 0"));
        }
        programs.push(started);
    }
    let at_last = (0..programs[0].len()).map(|actor| Call { actor, line: "tree T".to_owned() });
    let (mut same, mut found) = (0, None);
    for (i, call) in calls.iter().cloned().chain(at_last).enumerate() {
        let answers = match call.line.as_str() {
            INTERLUDE => [0, 1].map(|place: usize| places[place].interlude()),
            line => [0, 1].map(|place: usize| programs[place][call.actor].answer(line)),
        };
        if answers[0] != answers[1] && is_known(&call.line, &answers, call.actor + 1 == programs[1].len()) {
            break;
        }
        // Of two paths with something wrong, either may be told first.
        let of_two =
            call.line.split(' ').any(|word| ["rename", "renameat2", "link", "linkat"].contains(&word));
        let refused = |answer: &String| answer.rsplit(' ').next().is_some_and(|word| word.starts_with('E'));
        if answers[0] != answers[1] && !(of_two && answers.iter().all(refused)) {
            let mut calls = calls[..i.min(calls.len())].to_vec();
            calls.push(call);
            found = Some(Difference { calls, answers });
            break;
        }
        same += 1;
    }
    drop(programs);
    for top in &tops {
        // Its programs may have moved it away, or put something else there.
        let removed = remove_tree(top).or_else(|_| std::fs::remove_file(top));
        removed.or_else(|e| if e.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(e) })?;
    }
    Ok((same, found))
}

/// Also what nobody but root may look into as it is.
fn remove_tree(top: &Path) -> io::Result<()> {
    fn open_up(dir: &Path) -> io::Result<()> {
        std::fs::set_permissions(dir, PermissionsExt::from_mode(0o700))?;
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                open_up(&entry.path())?;
            }
        }
        Ok(())
    }
    match std::fs::remove_dir_all(top) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            open_up(top)?;
            std::fs::remove_dir_all(top)
        }
        done => done,
    }
}

/// Leaves out calls as long as there is still a difference.
pub fn smaller(places: &[Place; 2], name: &str, mut least: Difference) -> io::Result<Difference> {
    let mut part = least.calls.len().div_ceil(2);
    let mut tries = 0;
    loop {
        let (mut from, before) = (0, least.calls.len());
        while from < least.calls.len() {
            let mut calls = least.calls.clone();
            calls.drain(from..(from + part).min(calls.len()));
            tries += 1;
            match compare(places, &format!("{name}.{tries}"), &calls)? {
                (_, Some(other)) if other.calls.len() < least.calls.len() => least = other,
                _ => from += part,
            }
        }
        if part == 1 && least.calls.len() == before {
            return Ok(least);
        }
        part = (part / 2).max(1);
    }
}

/// Keeps what programs do as root within these directories: the rest can be read only, for this process and those that it starts.
pub fn confine(to: &[&Path]) -> io::Result<()> {
    let mount = |source: &Path, to: &Path, flags| {
        let [source, to] =
            [source, to].map(|path| std::ffi::CString::new(path.as_os_str().as_encoded_bytes()));
        // SAFETY: strings that end with zero.
        match unsafe {
            libc::mount(source?.as_ptr(), to?.as_ptr(), std::ptr::null(), flags, std::ptr::null())
        } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: numbers.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let none = Path::new("none");
    mount(none, Path::new("/"), libc::MS_REC | libc::MS_PRIVATE)?;
    let points = || -> io::Result<Vec<PathBuf>> {
        let table = std::fs::read_to_string("/proc/self/mountinfo")?;
        Ok(table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from).collect())
    };
    // Where a directory is on a file system of its own, that stays what it is; else the directory becomes a mount, as only mounts can be told apart.
    let before = points()?;
    let mut kept = Vec::new();
    for &dir in to {
        let point =
            before.iter().filter(|point| dir.starts_with(point)).max_by_key(|point| point.as_os_str().len());
        match point.filter(|point| !to.iter().all(|dir| dir.starts_with(point))) {
            Some(point) => kept.push(point.as_path()),
            None => mount(dir, dir, libc::MS_BIND).map(|()| kept.push(dir))?,
        }
    }
    for point in points()?.iter().filter(|point| !kept.iter().any(|kept| point.starts_with(kept))) {
        let remounted = mount(none, point, libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY);
        // What lies below another mount cannot be reached, by us or by the programs.
        if point == Path::new("/") {
            remounted?;
        }
    }
    Ok(())
}

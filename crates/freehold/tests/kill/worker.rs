//! The programs that are killed, and those that look what is left. They are this test's executable again, told what to do by the
//! environment, and know nothing of Freehold: ordinary calls in a directory that may be a mount or taken over by `freehold run`.

use super::history::{File as Was, Op, State, content};
use super::pages;
use crate::common::Random;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Workers of one loop.
pub const WORKERS: usize = 6;
/// Locks that they fight for, of each sort.
pub const LOCKS: usize = 3;
const FILES: usize = 24;
const LEN_MAX: u64 = 96 << 10;
/// Held open, half of them without a name.
const OPEN: usize = 8;

/// The machine's clock, nanoseconds.
pub fn now() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// What the environment asks this process to be.
pub fn main() {
    let Some(role) = variable("KILL_ROLE") else { return };
    let mount = PathBuf::from(variable("KILL_MOUNT").unwrap());
    let out = PathBuf::from(variable("KILL_OUT").unwrap());
    let number = || variable("KILL_NUMBER").unwrap().parse::<u64>().unwrap();
    match role.as_str() {
        "work" => work(&mount, &out, number() as usize, variable("KILL_SEED").unwrap().parse().unwrap()),
        "make" => make(&mount),
        "look" => std::fs::write(&out, look(&mount)).unwrap(),
        "locks" => std::fs::write(&out, locks(&mount)).unwrap(),
        role => panic!("{role}"),
    }
}

/// The directories of a new volume.
fn make(mount: &Path) {
    for n in 0..WORKERS {
        for dir in [format!("w{n}/d0"), format!("w{n}/d1")] {
            std::fs::create_dir_all(mount.join(dir)).unwrap();
        }
    }
    for dir in ["shared", "locks", "pages"] {
        std::fs::create_dir(mount.join(dir)).unwrap();
    }
    for n in 0..WORKERS {
        let mut file = File::create(mount.join(format!("pages/w{n}"))).unwrap();
        file.write_all(&pages::content(0).repeat(pages::PAGES)).unwrap();
        file.sync_all().unwrap();
    }
    for lock in lock_files() {
        File::create(mount.join(lock)).unwrap().sync_all().unwrap();
    }
}

fn lock_files() -> Vec<String> {
    let own = (0..WORKERS).flat_map(|n| [format!("locks/own-flock{n}"), format!("locks/own-record{n}")]);
    own.chain((0..LOCKS).flat_map(|n| [format!("locks/flock{n}"), format!("locks/record{n}")])).collect()
}

/// Takes a lock of the sort that the name says.
fn lock(file: &File, name: &str, wait: bool) -> io::Result<()> {
    let fd = file.as_raw_fd();
    let result = if name.contains("flock") {
        // SAFETY: flock has no memory arguments.
        unsafe { libc::flock(fd, libc::LOCK_EX | if wait { 0 } else { libc::LOCK_NB }) }
    } else {
        // SAFETY: all zeros is a valid flock, and it lives during the call.
        unsafe {
            let mut all: libc::flock = std::mem::zeroed();
            (all.l_type, all.l_len) = (libc::F_WRLCK as _, 100);
            libc::fcntl(fd, if wait { libc::F_SETLKW } else { libc::F_SETLK }, &all)
        }
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn open_lock(mount: &Path, name: &str) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(mount.join(name))
}

/// A lock that nobody alive holds: it may take the manager a moment to hear that somebody died.
fn soon(mount: &Path, name: &str) -> io::Result<File> {
    let begun = Instant::now();
    loop {
        let file = open_lock(mount, name)?;
        match lock(&file, name, false) {
            Ok(()) => return Ok(file),
            Err(e) if begun.elapsed() > Duration::from_secs(5) => {
                return Err(io::Error::new(e.kind(), format!("{name} is not free: {e}")));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

/// Takes every lock there is, at once.
fn locks(mount: &Path) -> String {
    let begun = Instant::now();
    let taken: io::Result<Vec<File>> = lock_files().iter().map(|name| soon(mount, name)).collect();
    match taken {
        Ok(taken) => format!("{} locks in {} ms", taken.len(), begun.elapsed().as_millis()),
        Err(e) => format!("failed: {e}"),
    }
}

/// All files, one line each: name, number as the content says, length. `bad` where the content is not what it must be.
fn look(mount: &Path) -> String {
    let (mut text, mut todo, mut entries) = (String::new(), vec![mount.to_path_buf()], 0);
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            entries += 1;
            if path.is_dir() {
                todo.push(path);
                continue;
            }
            let name = path.strip_prefix(mount).unwrap().to_str().unwrap().to_string();
            if name.starts_with("locks/") {
                continue;
            }
            let mut bytes = Vec::new();
            // Whoever is not dead goes on: what is theirs is not looked at by those who asked.
            let Ok(mut file) = File::open(&path) else { continue };
            if let Some(owner) = name.strip_prefix("pages/") {
                text.push_str(&look_at_pages(&mut file, owner));
                continue;
            }
            if let Err(e) = file.read_to_end(&mut bytes) {
                text.push_str(&format!("bad {name} {e}\n"));
                continue;
            }
            let id = bytes.first_chunk::<8>().map_or(0, |w| u64::from_le_bytes(*w));
            let want = content(id, 0, bytes.len() as u64);
            match bytes.len() {
                1..8 => text.push_str(&format!("bad {name} too short\n")),
                _ if bytes == want => text.push_str(&format!("file {name} {id} {}\n", bytes.len())),
                len => {
                    let at = bytes.iter().zip(&want).position(|(a, b)| a != b).unwrap();
                    text.push_str(&format!("bad {name} of {len} bytes differs at {at}\n"));
                }
            }
        }
    }
    let space = rustix::fs::statvfs(mount).unwrap();
    text.push_str(&format!("used {entries} {}\n", space.f_files - space.f_ffree));
    text
}

/// What the pages of a worker's file show, in a line.
fn look_at_pages(file: &mut File, owner: &str) -> String {
    let mut bytes = Vec::new();
    if let Err(e) = file.read_to_end(&mut bytes) {
        return format!("bad pages/{owner} {e}\n");
    }
    let all: Result<Vec<String>, String> =
        bytes.chunks(pages::PAGE).map(|p| pages::shown(p).map(|(a, b)| format!("{a}-{b}"))).collect();
    match all {
        Ok(all) => format!("pages {owner} {}\n", all.join(",")),
        Err(e) => format!("bad pages/{owner} {e}\n"),
    }
}

struct Worker<'a> {
    mount: &'a Path,
    journal: File,
    number: usize,
    random: Random,
    state: State,
    open: BTreeMap<String, File>,
    orphans: Vec<File>,
    next_id: u64,
    pages: File,
    /// The same, opened with O_DIRECT: for every other page.
    direct: File,
}

/// Bytes that begin where transfers of O_DIRECT may begin.
#[repr(align(4096))]
struct Aligned([u8; pages::PAGE]);

/// Works until it is killed. Everything it does to files is in the journal, before and after.
fn work(mount: &Path, dir: &Path, number: usize, seed: u64) {
    let text = std::fs::read_to_string(dir.join(format!("state{number}"))).unwrap();
    let mut lines = text.lines();
    let next_id = lines.next().unwrap().parse().unwrap();
    let parse = |l: &str| {
        let [name, id, len] = l.split(' ').collect::<Vec<_>>()[..] else { panic!("{l}") };
        (name.to_string(), Was { id: id.parse().unwrap(), len: len.parse().unwrap() })
    };
    let state = lines.map(parse).collect();
    let journal =
        OpenOptions::new().create(true).append(true).open(dir.join(format!("journal{number}"))).unwrap();
    let (open, orphans) = (BTreeMap::new(), Vec::new());
    let open_pages = |flags| {
        let mut how = OpenOptions::new();
        std::os::unix::fs::OpenOptionsExt::custom_flags(how.read(true).write(true), flags);
        how.open(mount.join(format!("pages/w{number}"))).unwrap()
    };
    let (pages, direct, random) = (open_pages(0), open_pages(libc::O_DIRECT), Random(seed));
    let mut w = Worker { mount, journal, number, random, state, open, orphans, next_id, pages, direct };
    let failed = |mut w: Worker<'_>, e: io::Error| {
        let _ = w.journal.write_all(format!("failed {e:?}\n").as_bytes());
        std::process::exit(3);
    };
    // The locks of whoever was this worker before.
    let names = [format!("locks/own-flock{number}"), format!("locks/own-record{number}")];
    let own: io::Result<Vec<File>> = names.iter().map(|n| soon(mount, n)).collect();
    let _own = match own {
        Ok(own) => own,
        Err(e) => return failed(w, e),
    };
    loop {
        let done = match w.random.below(100) {
            0..8 => w.fight(dir),
            8..20 => w.overwrite(),
            n => w.step(n),
        };
        if let Err(e) = done {
            return failed(w, e);
        }
        std::thread::sleep(Duration::from_micros(w.random.below(600)));
    }
}

impl Worker<'_> {
    /// Takes a lock that others want, and sees to it that nobody else has it: the kernel's lock on a file outside of the volume tells.
    fn fight(&mut self, dir: &Path) -> io::Result<()> {
        let sort = ["flock", "record"][self.random.below(2) as usize];
        let name = format!("locks/{sort}{}", self.random.below(LOCKS as u64));
        let file = open_lock(self.mount, &name)?;
        lock(&file, &name, true)?;
        let mut how = OpenOptions::new();
        let witness = how.create(true).truncate(false).read(true).write(true);
        let witness = witness.open(dir.join(name.replace('/', "-")))?;
        let mut said = [0; 16];
        if lock(&witness, "flock", false).is_err() {
            let n = witness.read_at(&mut said, 0)?;
            let who = String::from_utf8_lossy(&said[..n]).trim().to_string();
            // Who has been killed may still be on the way out.
            std::thread::sleep(Duration::from_millis(500));
            let status = std::fs::read_to_string(format!("/proc/{who}/status")).unwrap_or_default();
            if !status.is_empty() && !status.contains("State:\tZ") && !status.contains("State:\tX") {
                return Err(io::Error::other(format!("{name} was held by {who} as well")));
            }
            lock(&witness, "flock", true)?;
        }
        witness.write_all_at(format!("{:<16}", std::process::id()).as_bytes(), 0)?;
        std::thread::sleep(Duration::from_micros(self.random.below(1500)));
        drop(witness);
        drop(file);
        Ok(())
    }

    fn journalled(&mut self, op: Op, call: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        self.journal.write_all(format!("begin {} {}\n", now(), op.line()).as_bytes())?;
        call(self)?;
        self.journal.write_all(format!("end {}\n", now()).as_bytes())?;
        op.apply(&mut self.state);
        Ok(())
    }

    fn new_name(&mut self) -> String {
        let (n, i) = (self.number, self.random.below(FILES as u64));
        match self.random.below(4) {
            0 => format!("shared/w{n}-f{i}"),
            1 => format!("w{n}/d1/f{i}"),
            2 => format!("w{n}/f{i}"),
            _ => format!("w{n}/d0/f{i}"),
        }
    }

    fn some_name(&mut self) -> Option<String> {
        let at = self.random.below(self.state.len() as u64) as usize;
        self.state.keys().nth(at).cloned()
    }

    /// A file that is open for appending, or is opened now.
    fn opened(&mut self, name: &str) -> io::Result<&File> {
        if self.open.len() >= OPEN
            && let Some(first) = self.open.keys().nth(self.random.below(OPEN as u64) as usize).cloned()
            && first != name
        {
            self.open.remove(&first);
        }
        if !self.open.contains_key(name) {
            let sync = if self.random.below(8) == 0 { libc::O_DSYNC } else { 0 };
            let mut how = OpenOptions::new();
            std::os::unix::fs::OpenOptionsExt::custom_flags(how.read(true).append(true), sync);
            self.open.insert(name.into(), how.open(self.mount.join(name))?);
        }
        Ok(&self.open[name])
    }

    /// Overwrites some pages, often the same ones; looks at some.
    fn overwrite(&mut self) -> io::Result<()> {
        let all = if self.random.below(2) == 0 { 4 } else { pages::PAGES as u64 };
        for _ in 0..self.random.below(60) {
            let (page, version) = (self.random.below(all) as usize, self.next_id);
            self.next_id += 1;
            let at = (page * pages::PAGE) as u64;
            let mut bytes = Box::new(Aligned([0; pages::PAGE]));
            bytes.0.copy_from_slice(&pages::content(version));
            self.journalled(Op::Overwrite { page, version }, |w| {
                let file = if page % 2 == 1 { &w.direct } else { &w.pages };
                file.write_all_at(&bytes.0, at)
            })?;
            if self.random.below(8) == 0 {
                let file = if self.random.below(2) == 0 { &self.direct } else { &self.pages };
                file.read_exact_at(&mut bytes.0, at)?;
                if pages::shown(&bytes.0) != Ok((version, version)) {
                    return Err(io::Error::other(format!("page {page} does not show {version}")));
                }
            }
        }
        Ok(())
    }

    fn step(&mut self, dice: u64) -> io::Result<()> {
        let mount = self.mount.to_path_buf();
        let name = self.some_name();
        match (dice, name) {
            (20..34, _) | (_, None) if self.state.len() < FILES => {
                let name = self.new_name();
                if self.state.contains_key(&name) {
                    return Ok(());
                }
                let id = self.next_id;
                self.next_id += 1;
                let mut made = None;
                self.journalled(Op::Create { name: name.clone(), id }, |_| {
                    made = Some(File::options().write(true).create_new(true).open(mount.join(&name))?);
                    Ok(())
                })?;
                // Many are written to at once, through the descriptor with which they were made: nobody may wait for that.
                let Some(mut file) = made else { return Ok(()) };
                let mut len = 0;
                for _ in 0..self.random.below(4) {
                    let most = if self.random.below(3) == 0 { 40 << 10 } else { 900 };
                    let grow = 8 + self.random.below(most);
                    if len + grow > LEN_MAX {
                        break;
                    }
                    let bytes = content(id, len, len + grow);
                    len += grow;
                    self.journalled(Op::Append { name: name.clone(), len }, |_| file.write_all(&bytes))?;
                }
                Ok(())
            }
            (34..70, Some(name)) => {
                let was = self.state[&name];
                let grow = if self.random.below(3) == 0 {
                    8 + self.random.below(40 << 10)
                } else {
                    8 + self.random.below(900)
                };
                if was.len + grow > LEN_MAX {
                    return Ok(());
                }
                let bytes = content(was.id, was.len, was.len + grow);
                self.journalled(Op::Append { name: name.clone(), len: was.len + grow }, |w| {
                    w.opened(&name)?.write_all(&bytes)
                })
            }
            (70..82, Some(from)) => {
                let to = self.new_name();
                if to == from {
                    return Ok(());
                }
                self.journalled(Op::Rename { from: from.clone(), to: to.clone() }, |w| {
                    std::fs::rename(mount.join(&from), mount.join(&to))?;
                    let replaced = w.open.remove(&to);
                    w.orphan(replaced);
                    if let Some(file) = w.open.remove(&from) {
                        w.open.insert(to, file);
                    }
                    Ok(())
                })
            }
            (82..90, Some(name)) => self.journalled(Op::Unlink { name: name.clone() }, |w| {
                std::fs::remove_file(mount.join(&name))?;
                let file = w.open.remove(&name);
                w.orphan(file);
                Ok(())
            }),
            (90.., Some(name)) => self.journalled(Op::Sync, |w| w.opened(&name)?.sync_all()),
            _ => Ok(()),
        }
    }

    /// A file without a name stays open for a while, and is written to.
    fn orphan(&mut self, file: Option<File>) {
        let Some(mut file) = file else { return };
        let _ = file.write_all(b"nobody reads this");
        self.orphans.push(file);
        if self.orphans.len() > OPEN {
            let at = self.random.below(OPEN as u64) as usize;
            self.orphans.swap_remove(at);
        }
    }
}

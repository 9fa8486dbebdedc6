//! Kill loops: programs work on a served volume, through `freehold run` and through the kernel, and are killed at random moments; so is the server.
//!
//! Verifies that whoever is killed harms nobody else: a killed program did exactly what it did; its locks, open files and files without a name are
//! given back; the server's memory and descriptors do not grow. And after the server is killed: fsck finds nothing, the volume
//! is mounted again, each program's files are in a state that they passed through, no older than any fsync that
//! returned to anybody (docs/SEMANTICS.md, "After a crash"), nobody's lock is left, and no file without a name. So is each page that is overwritten, for
//! itself, most of them without a message to the server, or directly (O_DIRECT).
//! Two programs never hold a lock at the same time; a file outside of the volume is the witness.
//!
//! For 20 seconds, or `FREEHOLD_KILL_SECONDS` (scripts/kill-loop.sh), from the seed `FREEHOLD_KILL_SEED`. The seed decides what is done, not when it
//! happens. Does not verify power failures, which need the medium to forget (`block/tests/power.rs`).

mod common;
#[path = "kill/history.rs"]
mod history;
#[path = "kill/pages.rs"]
mod pages;
#[path = "kill/worker.rs"]
mod worker;

use common::{Place, Random, can_mount, eventually, library};
use freehold::control;
use history::{File, State, Step};
use pages::{Pages, Shown};
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use worker::WORKERS;

#[test]
#[ignore = "the part of other processes"]
fn other_process() {
    worker::main();
}

/// How programs come to the volume.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Door {
    Session,
    Kernel,
}

struct Member {
    child: Option<Child>,
    /// Durable at the last start of the server.
    base: State,
    /// What was done since.
    steps: Vec<Step>,
    pages: Pages,
    next_id: u64,
}

/// What somebody found who looked.
struct Seen {
    files: State,
    /// Pages of each worker.
    pages: BTreeMap<usize, Vec<Shown>>,
    /// Names, and inodes in use.
    entries: u64,
    used: u64,
}

/// A server at a quiet moment; memory in KiB.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "the whole of it is printed")]
struct Sample {
    rss: u64,
    /// Of that what is not shared with clients.
    anon: u64,
    descriptors: usize,
    threads: usize,
}

struct Loop {
    p: Place,
    image: PathBuf,
    random: Random,
    members: Vec<Member>,
    server: u32,
    /// Inodes in use beyond the files that have names.
    hidden: u64,
    kills: [u64; 2],
    synced: u64,
    /// Overwrites that were lost with servers, as nobody had made them durable.
    overwritten: usize,
}

/// Runs a command, which must end in time.
#[track_caller]
fn limited(mut command: Command, what: &str) -> common::Said {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > Duration::from_secs(60) {
            let _ = child.kill();
            panic!("{what} does not end");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.wait_with_output().unwrap().into()
}

/// Whether a file is the worker's.
fn is_of(name: &str, worker: usize) -> bool {
    name.starts_with(&format!("w{worker}/"))
        || name.starts_with(&format!("shared/w{worker}-"))
        || name == format!("pages/w{worker}")
}

impl Loop {
    fn new(seed: u64) -> Loop {
        let p = Place::new();
        p.run(["mkfs", "a.img", "--size", "192m", "--sparse"]).ok();
        let image = p.path("a.img");
        p.mkdir("mnt");
        p.mkdir("out");
        let members = (0..WORKERS).map(|n| Member {
            child: None,
            base: State::new(),
            steps: Vec::new(),
            pages: Pages::new(),
            next_id: (n as u64 + 1) << 40 | 1,
        });
        let members = members.collect();
        let random = Random(seed);
        let mut all = Loop {
            p,
            image,
            random,
            members,
            server: 0,
            hidden: 0,
            kills: [0; 2],
            synced: 0,
            overwritten: 0,
        };
        all.mount();
        limited(all.role("make", 0, Door::Kernel), "making the directories").ok();
        let seen = all.look(Door::Kernel, None);
        all.hidden = seen.used - seen.entries;
        all
    }

    fn mount(&mut self) {
        let mut command = self.p.command();
        // The cache is small, so that the server reaches its full size soon.
        command.args(["mount", "a.img", "mnt", "-o", "cache=8m,dirty_age=0.3,resume=0", "--log", "log"]);
        limited(command, "mount").ok();
        self.server = freehold::mounts::lock_holder(&self.image).expect("a server").pid;
    }

    /// This program again, in another role.
    fn role(&self, role: &str, number: usize, door: Door) -> Command {
        let test = std::env::current_exe().unwrap();
        let mut command = match door {
            Door::Kernel => Command::new(test),
            Door::Session => {
                let mut command = self.p.command();
                command.env("FREEHOLD_PRELOAD", library()).arg("run").arg(test);
                command
            }
        };
        let out = if role == "work" { self.p.path("out") } else { self.p.path("out").join(role) };
        command.args(["other_process", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
        command.env("KILL_ROLE", role).env("KILL_MOUNT", self.p.path("mnt")).env("KILL_OUT", out);
        command.env("KILL_NUMBER", number.to_string());
        command
    }

    fn out(&self, name: &str) -> PathBuf {
        self.p.path("out").join(name)
    }

    /// What is there: the files, how many names there are, and inodes in use. Contents are checked, if only one worker is dead then only its own: a file
    /// that loses its name while it is looked at is written to.
    fn look(&self, door: Door, dead: Option<usize>) -> Seen {
        limited(self.role("look", 0, door), "looking").ok();
        let text = std::fs::read_to_string(self.out("look")).unwrap();
        let mut seen = Seen { files: State::new(), pages: BTreeMap::new(), entries: 0, used: 0 };
        for line in text.lines() {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["file", name, id, len] => {
                    let file = File { id: id.parse().unwrap(), len: len.parse().unwrap() };
                    seen.files.insert(name.into(), file);
                }
                ["pages", owner, all] => {
                    let one = |page: &str| {
                        page.split_once('-').map(|(a, b)| (a.parse().unwrap(), b.parse().unwrap()))
                    };
                    let all = all.split(',').map(|page| one(page).unwrap()).collect();
                    seen.pages.insert(owner[1..].parse().unwrap(), all);
                }
                ["used", entries, used] => {
                    (seen.entries, seen.used) = (entries.parse().unwrap(), used.parse().unwrap());
                }
                ["bad", name, ..] if dead.is_some_and(|n| !is_of(name, n)) => {}
                _ => panic!("{line}"),
            }
        }
        seen
    }

    /// Those files that are the worker's.
    fn of(state: &State, n: usize) -> State {
        state.iter().filter(|(name, _)| is_of(name, n)).map(|(n, f)| (n.clone(), *f)).collect()
    }

    /// Starts a worker, which goes on from where the last one was killed.
    fn start(&mut self, n: usize) {
        let seed = self.random.next();
        let m = &self.members[n];
        let mut now = m.base.clone();
        m.steps.iter().for_each(|s| s.op.apply(&mut now));
        let lines: String = now.iter().map(|(name, f)| format!("{name} {} {}\n", f.id, f.len)).collect();
        std::fs::write(self.out(&format!("state{n}")), format!("{}\n{lines}", m.next_id)).unwrap();
        let _ = std::fs::remove_file(self.out(&format!("journal{n}")));
        let door = if n % 3 == 2 { Door::Kernel } else { Door::Session };
        let mut command = self.role("work", n, door);
        let errors = std::fs::File::create(self.out(&format!("errors{n}"))).unwrap();
        command.env("KILL_SEED", seed.to_string()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
        self.members[n].child = Some(command.spawn().unwrap());
    }

    /// Kills a worker and takes over its journal; the last call may have had an effect or not.
    fn kill(&mut self, n: usize, server_lives: bool) {
        let Some(mut child) = self.members[n].child.take() else { return };
        let _ = child.kill();
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "a killed program (worker {n}) does not end");
            std::thread::sleep(Duration::from_millis(1));
        };
        self.kills[0] += 1;
        let text = std::fs::read_to_string(self.out(&format!("journal{n}"))).unwrap_or_default();
        let (steps, failed) = history::journal(&text);
        if server_lives {
            let errors = std::fs::read_to_string(self.out(&format!("errors{n}"))).unwrap();
            let was_killed = status.signal() == Some(libc::SIGKILL);
            assert!(failed.is_none() && was_killed, "worker {n}: {failed:?} {status:?} {errors}");
        }
        let last_id = steps.iter().rev().find_map(|s| match s.op {
            history::Op::Create { id, .. } | history::Op::Overwrite { version: id, .. } => Some(id),
            _ => None,
        });
        let m = &mut self.members[n];
        m.pages.extend(&steps);
        m.next_id = last_id.map_or(m.next_id, |id| id + 1);
        m.steps.extend(steps);
        if server_lives {
            self.settle(child.id(), n);
        }
    }

    /// A worker was killed, the server lives: nothing but the last call can be in doubt.
    fn settle(&mut self, pid: u32, n: usize) {
        let gone = || {
            let shown = control::ask(&self.image).unwrap();
            shown.sessions.iter().all(|s| s.pid != pid as i32)
        };
        eventually("the session of a killed program ends", gone);
        let door = if self.random.below(2) == 0 { Door::Session } else { Door::Kernel };
        let seen = self.look(door, Some(n));
        let got = Self::of(&seen.files, n);
        let m = &mut self.members[n];
        m.pages.now(&seen.pages[&n]).unwrap_or_else(|e| panic!("worker {n} was killed: {e}"));
        let open = m.steps.last().is_some_and(|s| s.ended.is_none());
        let least = m.steps.len() - open as usize;
        let (done, state) = history::moment(&m.base, &m.steps, least, &got)
            .unwrap_or_else(|e| panic!("worker {n} was killed: {e}"));
        // A part of an append is an append.
        let mut kept = done;
        if done < m.steps.len() {
            let mut before = m.base.clone();
            m.steps[..done].iter().for_each(|s| s.op.apply(&mut before));
            if let Some(Step { op: history::Op::Append { name, len }, .. }) = m.steps.get_mut(done)
                && state[name.as_str()].len > before[name.as_str()].len
            {
                *len = state[name.as_str()].len;
                kept += 1;
            }
        }
        m.steps.truncate(kept);
        // What was under way has ended by now, if it had an effect.
        if let Some(last) = m.steps.last_mut() {
            last.ended.get_or_insert_with(worker::now);
        }
    }

    /// Kills all workers at once and waits until nothing of them is left; then every lock is to be had, and there are no files without a name.
    fn quiet(&mut self) -> Sample {
        for child in self.members.iter_mut().filter_map(|m| m.child.as_mut()) {
            let _ = child.kill();
        }
        self.order().into_iter().for_each(|n| self.kill(n, true));
        let image = self.image.clone();
        let nobody = || control::ask(&image).unwrap().sessions.is_empty();
        eventually("all sessions end", nobody);
        self.locks_are_free();
        let begun = Instant::now();
        loop {
            let Seen { entries, used, .. } = self.look(Door::Kernel, None);
            if used - entries == self.hidden {
                break;
            }
            assert!(
                begun.elapsed() < Duration::from_secs(10),
                "files without names are left: {used} - {entries}, {}",
                self.hidden
            );
        }
        eventually("all sessions end", nobody);
        self.sample()
    }

    fn order(&mut self) -> Vec<usize> {
        let mut all: Vec<usize> = (0..WORKERS).collect();
        for i in (1..all.len()).rev() {
            all.swap(i, self.random.below(i as u64 + 1) as usize);
        }
        all
    }

    fn locks_are_free(&mut self) {
        let door = if self.random.below(2) == 0 { Door::Session } else { Door::Kernel };
        limited(self.role("locks", 0, door), "taking locks").ok();
        let said = std::fs::read_to_string(self.out("locks")).unwrap();
        assert!(!said.starts_with("failed"), "{said}");
    }

    fn sample(&self) -> Sample {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.server)).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|l| l.strip_prefix(name)).unwrap();
            line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
        };
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", self.server)).unwrap().count();
        let threads = field("Threads:") as usize;
        Sample { rss: field("VmRSS:"), anon: field("RssAnon:"), descriptors, threads }
    }

    /// Kills the server while everybody works, mounts the volume again, and looks what is left.
    fn kill_server(&mut self) {
        // SAFETY: kill has no memory arguments; the process is the server that was started here.
        assert_eq!(unsafe { libc::kill(self.server as i32, libc::SIGKILL) }, 0);
        self.kills[1] += 1;
        for n in self.order() {
            std::thread::sleep(Duration::from_micros(self.random.below(4000)));
            self.kill(n, false);
        }
        let ended = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.server));
            stat.map_or(true, |s| s.rsplit(')').next().is_some_and(|s| s.trim().starts_with('Z')))
        };
        eventually("a killed server ends", ended);
        let mut umount = self.p.command();
        umount.args(["umount", "mnt"]);
        limited(umount, "umount").ok();
        let mut fsck = self.p.command();
        fsck.args(["fsck", "a.img"]);
        let said = limited(fsck, "fsck");
        assert!(said.code == Some(0) && said.out.contains("clean"), "{said:?}");
        self.mount();
        let door = if self.random.below(2) == 0 { Door::Session } else { Door::Kernel };
        let seen = self.look(door, None);
        let state = seen.files;
        assert_eq!(seen.used - seen.entries, self.hidden, "files without names are left");
        let syncs = self.members.iter().flat_map(|m| &m.steps);
        let syncs = syncs.filter(|s| s.op == history::Op::Sync && s.ended.is_some());
        let (count, last) = syncs.fold((0, 0), |(n, last), s| (n + 1, last.max(s.began)));
        self.synced += count;
        for n in 0..WORKERS {
            let got = Self::of(&state, n);
            let m = &mut self.members[n];
            let least = m.steps.iter().take_while(|s| s.ended.is_some_and(|t| t < last)).count();
            let found = history::moment(&m.base, &m.steps, least, &got);
            let (_, state) = found.unwrap_or_else(|e| panic!("the server was killed; worker {n}: {e}"));
            m.base = state;
            m.steps.clear();
            let lost = m.pages.after_crash(&seen.pages[&n], last);
            self.overwritten += lost.unwrap_or_else(|e| panic!("the server was killed; worker {n}: {e}"));
        }
        let ours: usize = (0..WORKERS).map(|n| self.members[n].base.len()).sum();
        assert_eq!(ours, state.len(), "files that nobody made");
        self.locks_are_free();
        assert_eq!(self.stale_sockets(), Vec::<String>::new());
    }

    /// Sockets of servers that are gone. Whoever looks for volumes clears them away, unless another mount has got the number of theirs meanwhile.
    fn stale_sockets(&self) -> Vec<String> {
        self.p.line("run --list").ok();
        let mounts = freehold::mounts::list().unwrap();
        let names = std::fs::read_dir(self.p.path("run")).unwrap().flatten();
        let names = names.map(|e| e.file_name().to_string_lossy().into_owned());
        let is_mounted =
            |name: &String| mounts.iter().any(|m| *name == format!("{}.sock", m.device.replace(':', "-")));
        // The name of the mount point leads to one of them.
        let leads = |name: &String| name.starts_with("at-") && self.p.path("run").join(name).exists();
        names.filter(|name| !is_mounted(name) && !leads(name)).collect()
    }

    /// One life of a server, in which programs are killed.
    fn life(&mut self, until: Instant) {
        (0..WORKERS).for_each(|n| self.start(n));
        while Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20 + self.random.below(150)));
            let n = self.random.below(WORKERS as u64) as usize;
            self.kill(n, true);
            self.start(n);
        }
    }

    fn end(mut self) {
        let last = self.quiet();
        let mut umount = self.p.command();
        umount.args(["umount", "mnt"]);
        limited(umount, "umount").ok();
        assert!(self.p.line("fsck a.img").ok().contains("clean"));
        assert_eq!(self.stale_sockets(), Vec::<String>::new());
        let log = std::fs::read_to_string(self.p.path("log")).unwrap();
        let is_bad =
            |l: &&str| (l.contains("WARN") || l.contains("ERROR")) && !l.contains("a client was refused");
        assert_eq!(log.lines().find(is_bad), None);
        let [programs, servers] = self.kills;
        println!(
            "killed {programs} programs and {servers} servers; {} syncs held, {} overwrites before none lost; last {last:?}",
            self.synced, self.overwritten
        );
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        for child in self.members.iter_mut().filter_map(|m| m.child.as_mut()) {
            let _ = child.kill();
        }
        if std::thread::panicking() {
            // Whoever hangs in the mount is freed by the end of its server.
            // SAFETY: kill has no memory arguments; the process was started here.
            unsafe { libc::kill(self.server as i32, libc::SIGKILL) };
            let log = std::fs::read_to_string(self.p.path("log")).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("the end of the server's log:\n{}", lines[lines.len().saturating_sub(20)..].join("\n"));
        }
    }
}

/// Memory of clients that nobody has any more would show up here.
fn shared_memory_files() -> usize {
    let names = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    names.filter(|e| e.file_name().to_string_lossy().contains("freehold")).count()
}

#[test]
fn programs_and_servers_are_killed() {
    if !can_mount() {
        return;
    }
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let seconds = number("FREEHOLD_KILL_SECONDS").unwrap_or(20).max(10);
    let seed = number("FREEHOLD_KILL_SEED").unwrap_or_else(|| std::process::id().into());
    println!("{seconds} seconds from seed {seed}");
    let (begun, shm) = (Instant::now(), shared_memory_files());
    let all = Duration::from_secs(seconds);
    let mut l = Loop::new(seed);
    // Short lives of servers, then a long one. At the same moment of each life, servers are alike.
    let mut first = Vec::new();
    while begun.elapsed() < all * 2 / 3 {
        let life = Duration::from_millis(300 + l.random.below(1500));
        l.life(Instant::now() + life);
        if l.random.below(3) == 0 {
            first.push(l.quiet());
            l.life(Instant::now() + life / 3);
        }
        l.kill_server();
    }
    let mut samples = Vec::new();
    let step = (all / 3) / 8;
    while begun.elapsed() < all || samples.is_empty() {
        l.life(Instant::now() + step);
        samples.push(l.quiet());
    }
    println!("servers after short lives: {first:?}");
    println!("a server in a long life: {samples:?}");
    // Of a short loop the first moment must do, when the caches are not full yet.
    let warm = samples[samples.len() / 4];
    let last = samples[samples.len() - 1];
    assert!(last.descriptors <= warm.descriptors + 2, "descriptors grow: {warm:?} {last:?}");
    assert!(last.threads <= warm.threads + 16, "threads grow: {warm:?} {last:?}");
    assert!(last.anon <= warm.anon + warm.anon / 8 + (4 << 10), "memory grows: {warm:?} {last:?}");
    l.end();
    assert_eq!(shared_memory_files(), shm, "shared memory is left");
}

//! Power failures of a real server: processes work on a volume that another process serves from an image file; a layer over the medium
//! notes every write and flush (`media::logged`). The server is killed with SIGKILL. Then power failures are made from what was
//! noted: at random moments, with random subsets of what no flush had made durable, torn at the device's atomic unit. Of each,
//! fsck finds nothing, the volume opens, and (docs/SEMANTICS.md, "After a crash"):
//! 1. each process's files are in a state that they passed through, no older than the last fsync, fdatasync or sync of anybody
//!    that had returned by then;
//! 2. if a call's effect is there, so is that of every call, of whatever process, that had returned before it began;
//! 3. each sector of the pages that are overwritten in place shows something that was written there, no older than what a sync
//!    had made durable, or a barrier had ordered before anything that is there;
//! 4. the same again after a second power failure, right after recovery.
//!
//! One of the images becomes the image file with which the next server begins, after `freehold fsck`.
//!
//! For 4 seconds, or `FREEHOLD_POWER_SECONDS`, from the seed `FREEHOLD_POWER_SEED` (scripts/crash-explore.sh). The seed decides what is
//! done, not when. Canary: a log without its flushes, which must be noticed (`lost_flushes_are_noticed`).

#[path = "power/check.rs"]
mod check;
mod common;
#[path = "kill/history.rs"]
mod history;
#[path = "power/worker.rs"]
mod worker;

use check::{Member, Seen};
use common::{Place, Random, eventually};
use freehold::{Cred, VolumeOptions};
use media::flash::{Config, Contents, CrashState, Event, Order};
use media::logged::{self, Log};
use media::{Media, SimFlash};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use worker::WORKERS;

const BYTES: u64 = 64 << 20;

#[test]
#[ignore = "the part of other processes"]
fn other_process() {
    worker::main();
}

struct Loop {
    p: Place,
    random: Random,
    members: Vec<Member>,
    /// Servers killed, crash states, those in which something was lost, calls that were made.
    counts: [usize; 4],
}

/// What is there, by whoever opens the volume.
fn look(flash: Arc<SimFlash>) -> Result<Seen, String> {
    let options =
        VolumeOptions { cache_bytes: 8 << 20, dirty_bytes_max: 4 << 20, ..VolumeOptions::default() };
    let volume = freehold::Volume::open(flash, options).map_err(|e| format!("does not open: {e}"))?;
    check::look(&freehold::client(&volume, Cred::root()).blocking())
        .map_err(|e| format!("cannot be read: {e}"))
}

fn fsck(flash: &SimFlash) -> Result<(), String> {
    let copy = Arc::new(flash.crash_image(|_, _| true));
    let report = block::fsck::check(copy, &block::fsck::FsckOptions::default(), &mut |_| {});
    let report = report.map_err(|e| format!("fsck: {e}"))?;
    match report.damage().next() {
        None => Ok(()),
        Some(problem) => Err(format!("fsck: {problem}")),
    }
}

impl Loop {
    fn new(seed: u64) -> Loop {
        let p = Place::new();
        p.run(["mkfs", "a.img", "--size", "64m", "--sparse"]).ok();
        let members = (0..WORKERS).map(|_| Member::default()).collect();
        let mut all = Loop { p, random: Random(seed), members, counts: [0; 4] };
        let mut server = all.serve();
        all.role("make", 0).status().expect("a process").success().then_some(()).expect("files are made");
        end(&mut server);
        all
    }

    /// This program again, in another role.
    fn role(&mut self, role: &str, number: usize) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["other_process", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
        command
            .env("POWER_ROLE", role)
            .env("POWER_AT", self.p.path(""))
            .env("POWER_NUMBER", number.to_string());
        command.env("POWER_SEED", self.random.next().to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    fn serve(&mut self) -> Child {
        let _ = std::fs::remove_file(self.p.path("ready"));
        let _ = std::fs::remove_file(self.p.path("socket"));
        let server = self.role("serve", 0).spawn().unwrap();
        let ready = self.p.path("ready");
        eventually("the server is ready", || ready.exists());
        server
    }

    fn contents(&self) -> Contents {
        let mut contents = Contents::new(BYTES);
        let mut file = std::fs::File::open(self.p.path("a.img")).unwrap();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        for (i, page) in bytes.chunks(4096).enumerate().filter(|(_, page)| page.iter().any(|b| *b != 0)) {
            contents.write(i as u64 * 4096, page);
        }
        contents
    }

    /// The device as crash states of this image have it.
    fn config(&mut self) -> Config {
        let media = worker::medium(&self.p.path("a.img"));
        let g = media.geometry();
        assert!(g.volatile_cache && !g.barrier, "an image file has a cache below it");
        Config {
            sector: g.sector,
            atomic_unit: g.atomic_unit,
            max_transfer: g.max_transfer,
            order: Order::Shuffled { batch: 4 },
            seed: self.random.next(),
            wait_when_idle: true,
            ..Config::new(BYTES)
        }
    }

    /// One life of a server: everybody works, everybody is killed. Returns what was noted.
    fn life(&mut self) -> Log {
        let (config, contents) = (self.config(), self.contents());
        let mut server = self.serve();
        let mut workers: Vec<Child> = (0..WORKERS)
            .map(|n| {
                std::fs::write(self.p.path(&format!("state{n}")), self.members[n].lines()).unwrap();
                self.role("work", n).stderr(Stdio::null()).spawn().unwrap()
            })
            .collect();
        std::thread::sleep(Duration::from_millis(300 + self.random.below(700)));
        end(&mut server);
        workers.iter_mut().for_each(end);
        // What the killed server had on its way may reach the file until the kernel has given up its lock.
        drop(worker::medium(&self.p.path("a.img")));
        self.counts[0] += 1;
        for (n, member) in self.members.iter_mut().enumerate() {
            let text = std::fs::read_to_string(self.p.path(&format!("journal{n}"))).unwrap_or_default();
            member.steps = history::journal(&text).0;
            self.counts[3] += member.steps.len();
        }
        Log::read(&self.p.path("log"), config, contents).unwrap()
    }

    /// Makes and checks `count` crash states of what was noted; the last of them becomes the image.
    fn crashes(&mut self, log: &Log, count: usize) -> Result<(), String> {
        let mut moments: Vec<usize> =
            (0..count).map(|_| self.random.below(log.events.len() as u64 + 1) as usize).collect();
        moments.push(log.events.len());
        moments.sort_unstable();
        let last = moments[self.random.below(moments.len() as u64) as usize];
        let mut next = None;
        log.at(&moments, |moment, state| -> Result<(), String> {
            let time = moment.checked_sub(1).map_or(0, |i| log.events[i].0);
            let image = self.cut(state);
            let told =
                |e: String| format!("power failure at event {moment} of {}, {time}: {e}", log.events.len());
            let raw = image.crash_image(|_, _| true);
            fsck(&image).map_err(told)?;
            let image = Arc::new(image);
            let seen = look(image.clone()).map_err(told)?;
            let found = check::check(&self.members, &seen, time).map_err(told)?;
            self.counts[1] += 1;
            self.counts[2] += found.lost as usize;
            let again = Arc::new(self.cut(&image.crash_state()));
            let again = look(again).map_err(|e| told(format!("the second time: {e}")))?;
            if again != seen {
                return Err(told("recovered, and lost in a second power failure".into()));
            }
            if moment == last {
                next = Some((raw, found));
            }
            Ok(())
        })?;
        let (raw, found) = next.expect("the last moment is one of them");
        self.members = found.members;
        let image = std::fs::File::create(self.p.path("a.img")).unwrap();
        image.set_len(BYTES).unwrap();
        let mut page = [0; 4096];
        for at in (0..BYTES).step_by(4096) {
            raw.peek(at, &mut page);
            if page.iter().any(|b| *b != 0) {
                image.write_all_at(&page, at).unwrap();
            }
        }
        let said = self.p.line("fsck a.img");
        assert!(said.code == Some(0) && said.out.contains("clean"), "{said:?}");
        Ok(())
    }

    /// A power failure: units are kept or lost by one of several characters of loss.
    fn cut(&mut self, state: &CrashState) -> SimFlash {
        let character = self.random.below(5);
        let random = &mut self.random;
        let mut whole = (u64::MAX, false);
        state.crash_image(|write, _| match character {
            0 => false,
            1 => random.below(8) > 0,
            2 => random.below(8) == 0,
            3 => random.below(2) == 0,
            _ => {
                // Writes as a whole.
                if whole.0 != write.id {
                    whole = (write.id, random.below(2) == 0);
                }
                whole.1
            }
        })
    }
}

/// Kills a process that was started here.
fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|v| v.parse().ok())
}

#[test]
fn power_fails_under_a_real_server() {
    let seconds = number("FREEHOLD_POWER_SECONDS").unwrap_or(4);
    let seed = number("FREEHOLD_POWER_SEED").unwrap_or_else(|| std::process::id().into());
    println!("{seconds} seconds from seed {seed}");
    let begun = Instant::now();
    let mut l = Loop::new(seed);
    // A slow machine takes longer until enough was at stake.
    let is_enough = |[servers, _, lost, calls]: [usize; 4]| servers >= 2 && calls > 100 && lost > 5;
    while !is_enough(l.counts) || begun.elapsed() < Duration::from_secs(seconds) {
        assert!(begun.elapsed() < Duration::from_secs(seconds + 120), "nothing was at stake: {:?}", l.counts);
        let log = l.life();
        l.crashes(&log, 24).unwrap_or_else(|e| panic!("{e}"));
    }
    let [servers, states, lost, calls] = l.counts;
    println!(
        "{servers} servers killed, {calls} calls noted; {states} crash states, {lost} of them without the newest calls: 0 violations"
    );
}

/// The canary: when what flushes had made durable may be lost, that must show.
#[test]
fn lost_flushes_are_noticed() {
    let mut l = Loop::new(7);
    for _ in 0..4 {
        let mut log = l.life();
        log.events.retain(|(_, event)| !matches!(event, Event::FlushDone { .. }));
        for (_, event) in &mut log.events {
            if let Event::Submit(write) = event {
                write.flags = media::Flags::NONE;
            }
        }
        if let Err(why) = l.crashes(&log, 24) {
            println!("noticed: {}", why.lines().take(3).collect::<Vec<_>>().join("\n"));
            assert!(l.counts[1] < 200, "only after {} states", l.counts[1]);
            return;
        }
    }
    panic!("lost flushes are not noticed");
}

#[test]
fn clocks_are_those_of_journals() {
    let (first, second) = (worker::now(), logged::now());
    assert!(first <= second && second - first < 1_000_000_000);
}

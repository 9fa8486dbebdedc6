//! Directories read through the kernel while names come and go: every scan gives what was there from its beginning to its end,
//! whoever else scans, and ends.

mod common;

use common::{Place, Random, can_mount, library};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// A scan under way.
struct Scan {
    dir: File,
    given: BTreeMap<String, usize>,
    /// Names that were there from its beginning on.
    lasting: BTreeSet<String>,
}

impl Scan {
    /// Reads on, as much as fits `room` bytes; false at the end.
    fn read(&mut self, room: usize) -> bool {
        let mut buffer = vec![0u8; room];
        // SAFETY: the buffer is valid for its length.
        let n = unsafe {
            libc::syscall(libc::SYS_getdents64, self.dir.as_raw_fd(), buffer.as_mut_ptr(), buffer.len())
        };
        assert!(n >= 0, "{}", std::io::Error::last_os_error());
        let mut at = 0;
        while at < n as usize {
            // struct linux_dirent64: ino (8), offset (8), record length (2), type (1), name with NUL.
            let len = u16::from_ne_bytes([buffer[at + 16], buffer[at + 17]]) as usize;
            let name = buffer[at + 19..at + len].split(|&b| b == 0).next().unwrap();
            *self.given.entry(String::from_utf8(name.to_vec()).unwrap()).or_default() += 1;
            at += len;
        }
        n > 0
    }

    fn check(&self, what: &str) {
        for name in &self.lasting {
            assert_eq!(self.given.get(name), Some(&1), "{what}: {name}");
        }
        let twice = self.given.iter().find(|(_, times)| **times > 1);
        assert_eq!(twice, None, "{what}");
    }
}

#[test]
fn scans_in_turn_with_changes() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    p.volume("a.img");
    let mnt = p.mkdir("mnt");
    for options in ["", "-o shared"] {
        p.line(&format!("mount a.img mnt {options}")).ok();
        for seed in 1..40 {
            let dir = mnt.join(format!("{seed}"));
            std::fs::create_dir(&dir).unwrap();
            let (mut random, mut names, mut scans) = (Random(seed), BTreeSet::new(), Vec::new());
            for step in 0..400 {
                let what = format!("seed {seed}, step {step}, options '{options}'");
                match random.below(12) {
                    0..4 => {
                        // Names of one length, so that requests of several scans end at the same entries.
                        let name = format!("{step:040}");
                        File::create(dir.join(&name)).unwrap();
                        names.insert(name);
                    }
                    4 => {
                        let Some(name) = names.pop_first() else { continue };
                        std::fs::remove_file(dir.join(&name)).unwrap();
                        scans.iter_mut().for_each(|s: &mut Scan| _ = s.lasting.remove(&name));
                    }
                    5 => {
                        let Some(name) = names.last() else { continue };
                        File::create(mnt.join("new")).unwrap();
                        std::fs::rename(mnt.join("new"), dir.join(name)).unwrap();
                    }
                    6 if scans.len() < 4 => {
                        let (dir, given) = (File::open(&dir).unwrap(), BTreeMap::new());
                        scans.push(Scan { dir, given, lasting: names.clone() });
                    }
                    _ if scans.is_empty() => {}
                    _ => {
                        let n = random.below(scans.len() as u64) as usize;
                        if !scans[n].read([80, 600, 4096][random.below(3) as usize]) {
                            scans.swap_remove(n).check(&what);
                        }
                    }
                }
            }
            // What the kernel has kept of all that is the list of the directory.
            let mut all = Scan { dir: File::open(&dir).unwrap(), given: BTreeMap::new(), lasting: names };
            while all.read(4096) {}
            all.check(&format!("seed {seed}, options '{options}'"));
            assert_eq!(all.given.len(), all.lasting.len() + 2, "seed {seed}, options '{options}'");
            std::fs::remove_dir_all(&dir).unwrap();
        }
        p.line("umount mnt").ok();
    }
}

/// A program makes names through its session; who looks at each name of the directory comes to an end.
#[test]
fn a_scan_ends_while_another_program_makes_names() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    p.run(["mkfs", "a.img", "--size", "1g", "--sparse"]).ok();
    let mnt = p.mkdir("mnt");
    p.line("mount a.img mnt").ok();
    std::fs::create_dir(mnt.join("d")).unwrap();
    let makes = "i=0; while :; do : > mnt/d/$i; i=$((i + 1)); done";
    let mut maker = p.command();
    maker.env("FREEHOLD_PRELOAD", library()).args(["run", "--", "sh", "-c", makes]);
    let mut maker = maker.stdin(Stdio::null()).spawn().unwrap();
    common::eventually("names are made", || std::fs::metadata(mnt.join("d/500")).is_ok());
    let (begun, mut given) = (Instant::now(), 0);
    for entry in std::fs::read_dir(mnt.join("d")).unwrap() {
        assert!(begun.elapsed() < Duration::from_secs(30), "the scan goes on after {given} names");
        given += entry.unwrap().metadata().is_ok_and(|m| m.size() == 0) as u64;
        // Many names are made in this time.
        std::thread::sleep(Duration::from_micros(200));
    }
    assert!(given >= 500, "{given}");
    assert!(maker.try_wait().unwrap().is_none(), "the maker has ended");
    maker.kill().unwrap();
    maker.wait().unwrap();
    p.line("umount mnt").ok();
}

//! Every second while one program, mostly, makes calls of one or two kinds again and again on one file, through a few descriptors: what a program is lent, keeps or
//! reckons comes to be by that, and ends with most other calls.

use super::{Generator, NAMES};
use rand::Rng;
use rand::rngs::SmallRng;

/// What is done for a while.
#[derive(Clone, Copy)]
pub(super) struct Mood {
    name: &'static str,
    kinds: [Kind; 2],
    /// Descriptors that are used, and how likely it is, in percent, that one is opened or closed, and that another program comes.
    slots: usize,
    moves: u32,
    pub others: u32,
}

#[derive(Clone, Copy)]
enum Kind {
    /// To the end, and a write there.
    Append,
    Write,
    Overwrite,
    Read,
    ReadAt,
    Size,
    Status,
    Cut,
    Remove,
    Lock,
    /// Locks, and becomes another program.
    Exec,
}

const KINDS: &[Kind] = &[
    Kind::Append,
    Kind::Append,
    Kind::Append,
    Kind::Write,
    Kind::Write,
    Kind::Overwrite,
    Kind::Read,
    Kind::ReadAt,
    Kind::Size,
    Kind::Status,
    Kind::Cut,
    Kind::Remove,
    Kind::Lock,
    Kind::Lock,
    Kind::Exec,
];

impl Generator {
    /// How the next calls are to be: every second time as all are.
    pub(super) fn change_mood(&mut self) {
        self.left = self.rng.random_range(20..120);
        let half = self.chance(50);
        let kinds: [Kind; 2] = std::array::from_fn(|_| KINDS[self.rng.random_range(0..KINDS.len())]);
        let pick = |rng: &mut SmallRng, of: [u32; 3]| of[rng.random_range(0..3)];
        let (slots, name) = (self.rng.random_range(2..5), self.one(NAMES));
        let (moves, others) = (pick(&mut self.rng, [1, 5, 20]), pick(&mut self.rng, [0, 0, 20]));
        // What is locked is seen by others alone.
        let locks = kinds.iter().any(|kind| matches!(kind, Kind::Lock | Kind::Exec));
        let others = if locks { 30 } else { others };
        self.mood = half.then_some(Mood { name, kinds, slots, moves, others });
        if half {
            self.next = (0..slots).map(|slot| format!("open {slot} {name} RDWR+CREAT 420")).collect();
        }
    }

    pub(super) fn call_of(&mut self, mood: &Mood) -> String {
        let (slot, len, offset) = (self.rng.random_range(0..mood.slots), self.length(), self.offset());
        let number = self.rng.random_range(0..1000);
        if self.chance(mood.moves) {
            let flags = self.one(&["RDWR", "RDWR", "RDWR+CREAT", "RDWR+CREAT+APPEND", "RDONLY"]);
            return format!("open {slot} {} {flags} 420", mood.name);
        }
        if self.chance(mood.moves) {
            return format!("close {slot}");
        }
        match mood.kinds[self.rng.random_range(0..mood.kinds.len())] {
            Kind::Append => {
                self.next.push_back(format!("write {slot} {number} {len}"));
                format!("lseek {slot} 0 END")
            }
            Kind::Write => format!("write {slot} {number} {len}"),
            Kind::Overwrite => format!("pwrite {slot} {number} {len} {offset}"),
            Kind::Read => format!("read {slot} {len}"),
            Kind::ReadAt => format!("pread {slot} {len} {offset}"),
            Kind::Size => format!("fstat {slot}"),
            Kind::Status => format!("stat {}", mood.name),
            Kind::Cut => format!("ftruncate {slot} {offset}"),
            Kind::Remove => format!("unlink {}", mood.name),
            Kind::Lock => self.lock(slot),
            Kind::Exec => match self.rng.random_range(0..6) {
                0 => "exec".to_owned(),
                1 => format!("setfd {slot} {}", self.one(&["0", "0", "1"])),
                _ => self.lock(slot),
            },
        }
    }
}

//! Random calls of several programs. Names and descriptors are few, so that most calls find something.

mod mood;

use super::actor::{SLOTS, STREAMS};
use mood::Mood;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::VecDeque;

/// One call of one program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Which program.
    pub actor: usize,
    /// The call, in the words that an actor knows.
    pub line: String,
}

/// Makes calls from a seed.
pub struct Generator {
    rng: SmallRng,
    actors: usize,
    /// The program that made the last call: often it makes the next one, too.
    last: usize,
    /// What is done now; `None`: anything. And for how many calls still.
    mood: Option<Mood>,
    left: u32,
    /// What the same program does next.
    next: VecDeque<String>,
}

const OPEN: &[&str] = &[
    "RDONLY",
    "RDWR",
    "WRONLY",
    "RDWR+CREAT",
    "RDWR+CREAT",
    "RDWR+CREAT+EXCL",
    "RDWR+CREAT+TRUNC",
    "WRONLY+CREAT+APPEND",
    "RDWR+CREAT+APPEND",
    "RDWR+TRUNC",
    "RDONLY+DIRECTORY",
    "RDONLY+DIRECTORY",
    "RDONLY+NOFOLLOW",
    "PATH",
    "PATH+NOFOLLOW",
    "RDWR+CREAT+CLOEXEC",
    "RDONLY+CREAT+DIRECTORY",
    "RDWR+NONBLOCK",
    "RDWR+DSYNC",
    "RDONLY+TRUNC",
];
const NAMES: &[&str] = &["a", "b", "c", "e"];
const DIRS: &[&str] = &["d", "f"];

impl Generator {
    /// Calls of this many programs.
    pub fn new(seed: u64, actors: usize) -> Generator {
        Generator {
            rng: SmallRng::seed_from_u64(seed),
            actors,
            last: 0,
            mood: None,
            left: 0,
            next: VecDeque::new(),
        }
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.rng.random_range(0..of.len())]
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.rng.random_range(0..100) < percent
    }

    fn slot(&mut self) -> usize {
        self.rng.random_range(0..SLOTS)
    }

    /// A name, mostly of a file, or of a directory, below none to two directories.
    fn relative(&mut self, dir: bool) -> String {
        let mut path = String::new();
        for _ in 0..self.one(&["0", "0", "0", "1", "1", "2"]).parse().unwrap_or(0) {
            path += self.one(DIRS);
            path += self.one(&["/", "/", "/", "/", "//", "/./", "/../d/"]);
        }
        let likely = self.chance(90);
        path += if likely == dir { self.one(DIRS) } else { self.one(NAMES) };
        if self.chance(3) {
            path += self.one(&["/", "/.", "/x", "//"]);
        }
        path
    }

    /// A path that a call takes, without a descriptor.
    fn path(&mut self, dir: bool) -> String {
        let relative = self.relative(dir);
        match self.rng.random_range(0..100) {
            0..45 => relative,
            45..94 => format!("T/{relative}"),
            94..97 => format!("P{}", self.slot()),
            97 => "-".to_owned(),
            98 => "T".to_owned(),
            _ => ".".to_owned(),
        }
    }

    /// As [`Self::path`], for calls that take a descriptor with it.
    fn place(&mut self, dir: bool) -> String {
        match self.rng.random_range(0..5) {
            0 => format!("@{}/{}", self.slot(), self.relative(dir)),
            _ => self.path(dir),
        }
    }

    /// Where a symlink leads, which is not below /proc: what is found there are the programs' own descriptors.
    fn target(&mut self) -> String {
        let relative = self.relative(false);
        if self.chance(50) { relative } else { format!("T/{relative}") }
    }

    /// Where a link is made, which is not below /proc: there names that do not exist are refused in another way.
    fn new_name(&mut self) -> String {
        match self.rng.random_range(0..3) {
            0 => format!("@{}/{}", self.slot(), self.relative(false)),
            1 => self.relative(false),
            _ => format!("T/{}", self.relative(false)),
        }
    }

    fn mode(&mut self) -> u32 {
        [0o644, 0o600, 0o666, 0o755, 0o777, 0o400, 0, 0o2755, 0o4711, 0o1777][self.rng.random_range(0..10)]
    }

    fn length(&mut self) -> u64 {
        match self.rng.random_range(0..20) {
            0..8 => self.rng.random_range(0..200),
            8..14 => self.rng.random_range(0..9000),
            14..17 => 4096 * self.rng.random_range(1..5),
            17..19 => self.rng.random_range(0..70_000),
            _ => self.rng.random_range(0..400_000),
        }
    }

    fn offset(&mut self) -> u64 {
        match self.rng.random_range(0..20) {
            0..8 => 0,
            8..13 => self.rng.random_range(0..6000),
            13..17 => 4096 * self.rng.random_range(0..6),
            17..19 => self.rng.random_range(0..100_000),
            _ => self.rng.random_range(0..1_000_000),
        }
    }

    fn seconds(&mut self) -> i64 {
        [-1, -2, 0, 1_000, 77_777_777, 999_999_999][self.rng.random_range(0..6)]
    }

    fn call(&mut self) -> String {
        match self.rng.random_range(0..100) {
            0..16 => self.open(),
            16..36 => self.bytes(),
            36..50 => self.names(),
            50..63 => self.asking(),
            63..72 => self.attributes(),
            72..84 => self.descriptors(),
            84..87 => self.locks(),
            87..94 => self.streams(),
            94..96 => format!("fork {}", self.simple()),
            96..98 => format!("thread {}", self.simple()),
            98 => "exec".to_owned(),
            _ => self.shell(),
        }
    }

    /// A call that makes no descriptor: where it is made by another process it would be nobody's.
    fn simple(&mut self) -> String {
        match self.rng.random_range(0..6) {
            0..3 => self.bytes(),
            3 => self.names(),
            4 => self.asking(),
            _ => self.attributes(),
        }
    }

    fn open(&mut self) -> String {
        let (slot, mode) = (self.slot(), self.mode());
        let flags = self.one(OPEN);
        if self.chance(6) {
            let dir = if self.chance(60) { "T".to_owned() } else { self.path(true) };
            return format!("open {slot} {dir} RDWR+TMPFILE {mode}");
        }
        let place = self.place(flags.contains("DIRECTORY"));
        format!("open {slot} {place} {flags} {mode}")
    }

    fn bytes(&mut self) -> String {
        let (slot, len, offset) = (self.slot(), self.length(), self.offset());
        let number = self.rng.random_range(0..1000);
        match self.rng.random_range(0..24) {
            0..3 => format!("read {slot} {len}"),
            3..5 => format!("pread {slot} {len} {offset}"),
            5 => format!("readv {slot} {len}"),
            6 => format!("preadv {slot} {len} {offset}"),
            7..11 => format!("write {slot} {number} {len}"),
            11..14 => format!("pwrite {slot} {number} {len} {offset}"),
            14 => format!("writev {slot} {number} {len}"),
            15 => {
                // Where the kernel knows the end of a file to be, it appends so (docs/SEMANTICS.md, "FUSE").
                let append = if self.last + 1 == self.actors { "0" } else { "RWF_APPEND" };
                let (flags, offset) =
                    (self.one(&["0", append, "RWF_DSYNC"]), if self.chance(30) { -1 } else { offset as i64 });
                format!("pwritev2 {slot} {number} {len} {offset} {flags}")
            }
            16..18 => {
                let (whence, sign) =
                    (self.one(&["SET", "CUR", "END"]), if self.chance(20) { "-" } else { "" });
                format!("lseek {slot} {sign}{offset} {whence}")
            }
            18 => format!("copy_range {slot} {} {len}", self.slot()),
            19 => format!("sendfile {slot} {} {len}", self.slot()),
            20..22 => {
                let access = self.one(&["PROT_READ", "PROT_READ", "PROT_READ+PROT_WRITE"]);
                let (kind, page) = (self.one(&["PRIVATE", "SHARED"]), self.rng.random_range(0..4));
                format!("map {slot} {access} {kind} {page} {} {number}", self.rng.random_range(1..5))
            }
            22 => format!("ftruncate {slot} {offset}"),
            _ => {
                let mode = self.one(&[
                    "0",
                    "KEEP_SIZE",
                    "PUNCH_HOLE+KEEP_SIZE",
                    "ZERO_RANGE",
                    "ZERO_RANGE+KEEP_SIZE",
                ]);
                format!("fallocate {slot} {mode} {offset} {len}")
            }
        }
    }

    fn names(&mut self) -> String {
        let mode = self.mode() | 0o700;
        match self.rng.random_range(0..20) {
            0..4 => format!("mkdir {} {mode}", self.place(true)),
            4 => format!("rmdir {}", self.path(true)),
            5..8 => format!("unlink {}", self.path(false)),
            8 => format!("unlinkat {} {}", self.place(false), self.one(&["0", "REMOVEDIR"])),
            9 => format!("symlink {} {}", self.place(false), self.target()),
            10..12 => format!("link {} {}", self.path(false), self.new_name()),
            12 => {
                let old = if self.chance(40) { format!("P{}", self.slot()) } else { self.place(false) };
                format!("linkat {old} {} {}", self.new_name(), self.one(&["0", "SYMLINK_FOLLOW"]))
            }
            13..17 => {
                let dir = self.chance(30);
                format!("rename {} {}", self.place(dir), self.place(dir))
            }
            17 => {
                let dir = self.chance(30);
                format!(
                    "renameat2 {} {} {}",
                    self.place(dir),
                    self.place(dir),
                    self.one(&["0", "NOREPLACE", "EXCHANGE"])
                )
            }
            _ => format!("remove {}", self.path(false)),
        }
    }

    fn asking(&mut self) -> String {
        let dir = self.chance(20);
        match self.rng.random_range(0..22) {
            0..4 => format!("stat {}", self.path(dir)),
            4..7 => format!("lstat {}", self.path(dir)),
            7 => format!("statat {} {}", self.place(dir), self.one(&["0", "SYMLINK_NOFOLLOW"])),
            8 => {
                let place = if self.chance(40) { format!("@{}", self.slot()) } else { self.place(dir) };
                format!("statx {place} {}", self.one(&["0", "SYMLINK_NOFOLLOW", "EMPTY_PATH"]))
            }
            9..12 => format!("fstat {}", self.slot()),
            12 => format!("access {} {}", self.path(dir), self.rng.random_range(0..8)),
            13 => format!(
                "accessat {} {} {}",
                self.place(dir),
                self.rng.random_range(0..8),
                self.one(&["0", "EACCESS"])
            ),
            14..16 => format!("readlink {} {}", self.place(false), self.one(&["100", "100", "3"])),
            16 => format!("realpath {}", self.path(dir)),
            17 => format!("list {}", self.path(true)),
            18 => format!("fdlist {}", self.slot()),
            19 => "getcwd".to_owned(),
            20 => format!("pathconf {}", self.path(dir)),
            _ => format!("tree {}", if self.chance(50) { "T".to_owned() } else { self.path(true) }),
        }
    }

    fn attributes(&mut self) -> String {
        let (slot, mode, dir) = (self.slot(), self.mode(), self.chance(20));
        let (uid, gid) = (self.one(&["-1", "0", "1000", "1001"]), self.one(&["0", "1000"]));
        let name = self.one(&["user.a", "user.b", "trusted.c"]);
        match self.rng.random_range(0..20) {
            0..3 => format!("chmod {} {mode}", self.path(dir)),
            3 => format!("chmodat {} {mode}", self.place(dir)),
            4 => format!("fchmod {slot} {mode}"),
            5 => format!("lchown {} {uid} {gid}", self.path(dir)),
            6 => format!("chownat {} {uid} {gid} {}", self.place(dir), self.one(&["0", "SYMLINK_NOFOLLOW"])),
            7 => format!("fchown {slot} {uid} {gid}"),
            8..10 => {
                let flags = self.one(&["0", "SYMLINK_NOFOLLOW"]);
                format!("times {} {} {} {flags}", self.place(dir), self.seconds(), self.seconds())
            }
            10 => format!("futimens {slot} {} {}", self.seconds(), self.seconds()),
            11..13 => format!("truncate {} {}", self.path(dir), self.offset()),
            13 => format!(
                "setxattr {} {name} value{mode} {}",
                self.path(dir),
                self.one(&["0", "XCREATE", "XREPLACE"])
            ),
            14 => format!("lsetxattr {} {name} value{mode} 0", self.path(dir)),
            15 => format!(
                "{} {} {name} {}",
                self.one(&["getxattr", "lgetxattr"]),
                self.path(dir),
                self.one(&["0", "4", "100"])
            ),
            16 => format!("listxattr {}", self.path(dir)),
            17 => format!("removexattr {} {name}", self.path(dir)),
            18 => format!("fsetxattr {slot} {name} value{mode}"),
            _ => format!("fgetxattr {slot} {name}"),
        }
    }

    fn descriptors(&mut self) -> String {
        let slot = self.slot();
        match self.rng.random_range(0..22) {
            0..4 => format!("close {slot}"),
            4..6 => format!("dup {slot} {}", self.slot()),
            6..8 => format!("dup3 {slot} {}", self.slot()),
            8 => format!("dup_above {slot} {}", self.slot()),
            9..11 => format!("{} {slot}", self.one(&["fsync", "fdatasync"])),
            11 => format!("posix_fallocate {slot} {} {}", self.offset(), self.length()),
            12..15 => format!("chdir {}", self.path(true)),
            15 => format!("fchdir {slot}"),
            16 => format!("umask {}", self.one(&["18", "63", "0"])),
            17 => format!("getfl {slot}"),
            18 => format!("setfl {slot} {}", self.one(&["0", "APPEND", "NONBLOCK", "APPEND+NONBLOCK"])),
            19 => format!("getfd {slot}"),
            20 => format!("setfd {slot} {}", self.one(&["0", "1"])),
            _ => "chdir T".to_owned(),
        }
    }

    fn locks(&mut self) -> String {
        let slot = self.slot();
        if self.chance(40) {
            return format!("flock {slot} {}", self.one(&["SH", "EX", "UN"]));
        }
        self.lock(slot)
    }

    fn lock(&mut self, slot: usize) -> String {
        let command = self.one(&["SETLK", "SETLK", "GETLK", "OFD_SETLK", "OFD_SETLK", "OFD_GETLK"]);
        let kind = match command {
            // Kernels since 6.4 look for the description's own locks then.
            "OFD_GETLK" => self.one(&["RDLCK", "WRLCK"]),
            _ => self.one(&["RDLCK", "WRLCK", "UNLCK"]),
        };
        let (from, len) = (self.rng.random_range(0..300), self.rng.random_range(0..200));
        format!("lock {slot} {command} {kind} {} {from} {len}", self.one(&["SET", "SET", "CUR", "END"]))
    }

    fn streams(&mut self) -> String {
        let lines = self.rng.random_range(0..400);
        if self.chance(50) {
            let slot = self.rng.random_range(0..STREAMS);
            return match self.rng.random_range(0..7) {
                0..2 => {
                    let mode = self.one(&["w", "a", "r+", "w+", "a+", "r"]);
                    format!("stream {slot} open {} {mode}", self.path(false))
                }
                2..4 => format!("stream {slot} put {lines}"),
                4 => format!("stream {slot} get {}", self.length()),
                5 => format!("stream {slot} seek {}", self.offset()),
                _ => format!("stream {slot} close 0"),
            };
        }
        match self.rng.random_range(0..5) {
            0..2 => {
                let mode = self.one(&["w", "a", "r+", "w+", "a+", "wx", "r"]);
                format!("puts {} {mode} {lines} {}", self.path(false), self.rng.random_range(0..300))
            }
            2..4 => format!(
                "gets {} {} {} {}",
                self.path(false),
                self.one(&["r", "r+", "re"]),
                lines % 20,
                self.offset()
            ),
            _ => format!("fdopen {} {}", self.slot(), self.one(&["r", "w", "r+", "a", "a+"])),
        }
    }

    fn shell(&mut self) -> String {
        let which = self.one(&["append", "copy", "move", "input", "both", "find"]);
        format!("shell {which} {} {} {}", self.slot(), self.path(false), self.path(which == "both"))
    }
}

impl Iterator for Generator {
    type Item = Call;

    fn next(&mut self) -> Option<Call> {
        if self.left == 0 && self.next.is_empty() {
            self.change_mood();
        }
        if let Some(line) = self.next.pop_front() {
            return Some(Call { actor: self.last, line });
        }
        self.left -= 1;
        let mood = self.mood;
        if self.chance(mood.map_or(40, |mood| mood.others)) {
            self.last = self.rng.random_range(0..self.actors);
        }
        let line = match mood {
            Some(mood) => self.call_of(&mood),
            None => self.call(),
        };
        Some(Call { actor: self.last, line })
    }
}

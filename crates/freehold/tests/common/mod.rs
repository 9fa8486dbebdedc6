//! A place for a test: a directory, the command, and what must be cleaned up after it.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// Random numbers from a seed (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ x >> 31
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
}

/// What a run of the command said.
#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Said {
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out
    }
    /// It failed with exit code 1, and the message holds all of `parts`.
    #[track_caller]
    pub fn fails(self, parts: &[&str]) {
        assert_eq!(self.code, Some(1), "{self:?}");
        assert!(parts.iter().all(|p| self.err.contains(p)), "{parts:?} not all in {:?}", self.err);
        assert!(!self.err.contains("panicked"), "{self:?}");
    }
}

impl From<Output> for Said {
    fn from(o: Output) -> Said {
        let text = |b: Vec<u8>| String::from_utf8_lossy(&b).into_owned();
        Said { code: o.status.code(), out: text(o.stdout), err: text(o.stderr) }
    }
}

pub struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Place {
        Place { dir: tempfile::tempdir().unwrap() }
    }
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
    /// The command, in this place.
    pub fn command(&self) -> Command {
        self.command_of(Path::new(env!("CARGO_BIN_EXE_freehold")))
    }
    /// Another program, in this place.
    pub fn command_of(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.dir.path()).env_remove("FREEHOLD_LOG").env_remove("NOTIFY_SOCKET");
        // Volumes of others on this machine are not seen, nor ours by them.
        command.env("FREEHOLD_RUN_DIR", self.path("run"));
        command
    }
    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Said {
        self.command().args(args).output().unwrap().into()
    }
    /// Runs a command line without quotes.
    pub fn line(&self, line: &str) -> Said {
        self.run(line.split_whitespace())
    }
    /// An empty volume.
    pub fn volume(&self, name: &str) -> PathBuf {
        self.run(["mkfs", name, "--size", "96m", "--sparse"]).ok();
        self.path(name)
    }
    pub fn mkdir(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }
    pub fn is_mounted(&self, name: &str) -> bool {
        freehold::mounts::at(&self.path(name)).unwrap().is_some()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let root = self.dir.path().canonicalize().unwrap_or_else(|_| self.dir.path().into());
        for m in freehold::mounts::list().unwrap_or_default() {
            if m.point.starts_with(&root) {
                let _ = Command::new(env!("CARGO_BIN_EXE_freehold"))
                    .arg("umount")
                    .arg("-f")
                    .arg(&m.point)
                    .output();
            }
        }
    }
}

/// Waits until `done`, at most ten seconds.
#[track_caller]
pub fn eventually(what: &str, done: impl Fn() -> bool) {
    for _ in 0..1000 {
        if done() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("not in ten seconds: {what}");
}

pub fn signal(pid: u32, signal: i32) {
    // SAFETY: kill has no memory preconditions; pid is a server that the test started.
    assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0);
}

/// The server of an image.
pub fn server(image: &Path) -> u32 {
    freehold::mounts::lock_holder(image).expect("somebody serves it").pid
}

/// `freehold serve`, started, with its messages up to the point where `volumes` are served.
pub fn serve(p: &Place, config: &str, volumes: usize) -> Child {
    std::fs::write(p.path("v.toml"), config).unwrap();
    let mut command = p.command();
    let mut child = command.args(["serve", "--config", "v.toml"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut seen = 0;
    while seen < volumes {
        match lines.next() {
            Some(line) => seen += line.unwrap().contains("is served at") as usize,
            None => panic!("serve ended early: {:?}", child.wait()),
        }
    }
    // The rest must be read, or the server would wait for the pipe.
    std::thread::spawn(move || lines.for_each(drop));
    child
}

/// Whether this process is root.
pub fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0)
}

/// A tree with one of everything that an unprivileged user can make.
pub fn make_tree(at: &Path) {
    use std::os::unix::fs::{PermissionsExt, symlink};
    std::fs::create_dir_all(at.join("d/empty")).unwrap();
    std::fs::write(at.join("small"), "small").unwrap();
    std::fs::write(at.join("empty"), "").unwrap();
    let big: Vec<u8> =
        (0..3_000_000u32).flat_map(|i| (i.wrapping_mul(2_654_435_761) >> 13).to_le_bytes()).collect();
    std::fs::write(at.join("d/big"), &big).unwrap();
    std::fs::hard_link(at.join("d/big"), at.join("d/same")).unwrap();
    symlink("../small", at.join("d/link")).unwrap();
    symlink("nowhere", at.join("dangling")).unwrap();
    let sparse = std::fs::File::create(at.join("sparse")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"island", 7 << 20).unwrap();
    sparse.set_len(32 << 20).unwrap();
    std::fs::write(at.join("a name with spaces, ünïcode\nand a line"), "x").unwrap();
    std::fs::set_permissions(at.join("small"), PermissionsExt::from_mode(0o640)).unwrap();
    std::fs::set_permissions(at.join("d/empty"), PermissionsExt::from_mode(0o1711)).unwrap();
    let old = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
    let file = std::fs::File::options().write(true).open(at.join("small")).unwrap();
    file.set_times(std::fs::FileTimes::new().set_modified(old).set_accessed(old)).unwrap();
}

/// Everything about a tree that a copy must keep, one line a file, in order.
pub fn describe(at: &Path) -> Vec<String> {
    use std::os::unix::fs::MetadataExt;
    let (mut lines, mut todo) = (Vec::new(), vec![at.to_path_buf()]);
    let mut inodes = std::collections::HashMap::new();
    while let Some(dir) = todo.pop() {
        let mut names: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().path()).collect();
        names.sort();
        for path in names {
            let m = path.symlink_metadata().unwrap();
            let first =
                inodes.entry(m.ino()).or_insert_with(|| path.strip_prefix(at).unwrap().to_path_buf()).clone();
            let content = match m.file_type() {
                t if t.is_symlink() => format!("{:?}", path.read_link().unwrap()),
                t if t.is_dir() => {
                    todo.push(path.clone());
                    String::new()
                }
                _ => {
                    let hash = |h: u64, b: &u8| (h ^ *b as u64).wrapping_mul(0x100_0000_01b3);
                    let bytes = std::fs::read(&path).unwrap();
                    format!("{} {:x}", bytes.len(), bytes.iter().fold(0xcbf2_9ce4_8422_2325, hash))
                }
            };
            let links = if m.is_dir() { 0 } else { m.nlink() };
            lines.push(format!(
                "{:?} {:o} {links} {}:{} {}.{} first {first:?} {content}",
                path.strip_prefix(at).unwrap(),
                m.mode(),
                m.uid(),
                m.gid(),
                m.mtime(),
                m.mtime_nsec()
            ));
        }
    }
    lines
}

/// Whether volumes can be mounted here.
pub fn can_mount() -> bool {
    let can = Path::new("/dev/fuse").exists() && (is_root() || fuse::has_program("fusermount3"));
    if !can {
        println!("skipped: needs /dev/fuse, and root or fusermount3");
    }
    can
}

/// The library for `freehold run`, built together with this test.
pub fn library() -> PathBuf {
    built("libfreehold_preload.so")
}

/// A library that was built together with this test.
pub fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    let found = [deps.join(name), deps.parent().unwrap().join(name)];
    let newest = found.into_iter().filter_map(|p| Some((p.metadata().ok()?.modified().ok()?, p))).max();
    newest.expect("the library is built together with its tests").1
}

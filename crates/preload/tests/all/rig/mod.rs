//! A volume served to programs under the library: the same commands run there and in an ordinary directory.

use block::{MkfsOptions, OpenOptions, Volume};
use media::ram::RamMedia;
use share::{Server, server::Options};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where programs find the volume. Nothing is there for the kernel.
pub const MOUNT: &str = "/freehold-test";

pub struct Rig {
    #[allow(dead_code, reason = "not every test looks at it")]
    pub server: Server,
    /// An ordinary directory.
    pub plain: tempfile::TempDir,
    /// Where programs stand at first.
    pub work: tempfile::TempDir,
    socket: PathBuf,
    library: PathBuf,
    _dir: tempfile::TempDir,
}

/// The library, beside this test or above it, whichever is newer.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    let name = "libfreehold_preload.so";
    let found = [deps.join(name), deps.parent().unwrap().join(name)];
    let newest = found.into_iter().filter_map(|p| Some((p.metadata().ok()?.modified().ok()?, p))).max();
    newest.expect("the library is built together with its tests").1
}

impl Rig {
    pub fn new() -> Rig {
        let media = Arc::new(RamMedia::new(256 << 20).unwrap());
        block::mkfs(media.clone(), &MkfsOptions::default()).unwrap();
        let volume = Arc::new(Volume::open(media, OpenOptions::default()).unwrap());
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        // What programs do is posted under leases where that can be, as users have it.
        let server = Server::start(volume, &socket, Options::default().lending()).unwrap();
        Rig {
            server,
            plain: tempfile::tempdir().unwrap(),
            work: tempfile::tempdir().unwrap(),
            socket,
            library: library(),
            _dir: dir,
        }
    }

    /// Runs a script of bash under the library, in the ordinary directory. `$T` is `at`.
    pub fn bash(&self, script: &str, at: &Path) -> Output {
        self.run("bash", &["-c".into(), script.into()], at)
    }

    pub fn run(&self, program: &str, args: &[OsString], at: &Path) -> Output {
        let mut command = Command::new(program);
        command.args(args).env("T", at).env("LC_ALL", "C").env("TZ", "UTC").current_dir(self.work.path());
        command.env("LD_PRELOAD", &self.library);
        command.env("FREEHOLD_MOUNTS", format!("{MOUNT}={}", self.socket.display()));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let begun = Instant::now();
        // Output is small: it fits into the pipes.
        while child.try_wait().unwrap().is_none() {
            if begun.elapsed() > Duration::from_secs(60) {
                child.kill().unwrap();
                let out = child.wait_with_output().unwrap();
                panic!("{program} {args:?} at {at:?} hangs: {out:?}");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        child.wait_with_output().unwrap()
    }

    /// Runs the script, which ends well, in both places and compares what it prints.
    pub fn same(&self, script: &str) {
        let outs = [self.plain.path(), Path::new(MOUNT)].map(|at| {
            let out = self.bash(script, at);
            let place = at.to_str().unwrap();
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(place, "$T");
            (out.status.code(), text(&out.stdout), text(&out.stderr))
        });
        assert_eq!(outs[0].0, Some(0), "what fails everywhere shows nothing: {:?} {script}", outs[0]);
        assert_eq!(outs[0], outs[1], "ordinary directory (left) and volume (right) differ for: {script}");
        assert!(!outs[1].2.contains("cannot be preloaded"), "{}", outs[1].2);
        // What a script does not do in either place is the same, too.
        assert!(!outs[1].2.contains("Traceback"), "{}", outs[1].2);
    }

    /// A rig for scripts of python3; `None` where there is none.
    #[allow(dead_code, reason = "not every test needs it")]
    pub fn with_python() -> Option<Rig> {
        let rig = Rig::new();
        if rig.bash("python3 -c 0", rig.plain.path()).status.code() == Some(0) {
            return Some(rig);
        }
        eprintln!("skipped: there is no python3");
        None
    }

    /// As [`Rig::same`] a script of python; `t` is the directory.
    #[allow(dead_code, reason = "not every test needs it")]
    pub fn same_python(&self, script: &str) {
        let head = "import os, sys, ctypes, threading, fcntl, errno, subprocess\nt = os.environ['T']\nj = os.path.join\n\
                    libc = ctypes.CDLL(None, use_errno=True)\n\
                    def tries(f):\n    try: return f()\n    except OSError as e: return errno.errorcode[e.errno]\n";
        std::fs::write(self.work.path().join("script.py"), format!("{head}{script}")).unwrap();
        self.same("python3 script.py");
    }
}

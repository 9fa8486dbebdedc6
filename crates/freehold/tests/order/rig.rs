//! A volume on simulated flash with a mount and sessions, and what its calls cost the device.

use crate::common::library;
use block::{MkfsOptions, OpenOptions, Volume};
use fs::{Blocking, Client, Cred, Ordered, Watched};
use fuse::MountOptions;
use media::flash::{Config, Order, SimFlash};
use share::{Remote, Server};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

pub struct Rig {
    pub flash: Arc<SimFlash>,
    volume: Volume,
    mount: fuse::Mount,
    server: Server,
    point: PathBuf,
    dir: tempfile::TempDir,
}

/// What calls cost.
#[derive(Debug)]
pub struct Cost {
    pub barriers: u64,
    pub epochs: u64,
    /// Flushes of the device.
    pub flushes: u64,
    pub writes: u64,
    /// Epochs that became durable.
    pub durable: u64,
}

/// Whoever reads a volume that a power failure left opens it so, too.
pub fn options() -> OpenOptions {
    // Nothing becomes durable by itself.
    OpenOptions { dirty_age_max: Duration::from_secs(3600), ..OpenOptions::default() }
}

impl Rig {
    pub fn new(ordered: Ordered, mount: &str) -> Rig {
        let order = Order::Shuffled { batch: 4 };
        let config = Config { wait_when_idle: true, order, seed: 11, ..Config::new(96 << 20) };
        let flash = Arc::new(SimFlash::new(config).unwrap());
        block::mkfs(flash.clone(), &MkfsOptions::default()).unwrap();
        let volume = Volume::open(flash.clone(), options()).unwrap();
        let doors = Watched::new(Arc::new(volume.clone()));
        let dir = tempfile::tempdir().unwrap();
        let point = dir.path().join("mnt");
        std::fs::create_dir(&point).unwrap();
        let mount = MountOptions { ordered: ordered.clone(), ..MountOptions::parse(mount).unwrap() };
        let mount = fuse::mount(Arc::new(doors.clone()), &point, mount).unwrap();
        let options = share::server::Options { ordered, lease_windows_max: 64, ..Default::default() };
        let server = Server::start_at_door(doors.door(), &dir.path().join("socket"), options).unwrap();
        Rig { flash, volume, mount, server, point, dir }
    }

    pub fn point(&self) -> &Path {
        &self.point
    }

    /// A new session.
    pub fn session(&self) -> Blocking<Remote> {
        let remote = Remote::connect(self.dir.path().join("socket")).unwrap();
        Client::new(Arc::new(remote), Cred::of_process()).blocking()
    }

    /// What `calls` cost, with nothing left over from before.
    pub fn counted(&self, calls: impl FnOnce()) -> Cost {
        let now = || (self.volume.counters(), self.flash.counters(), self.volume.epochs().1);
        let before = now();
        calls();
        let after = now();
        Cost {
            barriers: after.0.barriers - before.0.barriers,
            epochs: after.0.epochs - before.0.epochs,
            flushes: after.1.flushes - before.1.flushes,
            writes: after.1.writes - before.1.writes,
            durable: after.2 - before.2,
        }
    }

    /// Runs the program under one of its names, under the library or without. What it says.
    pub fn program(&self, preloaded: bool, name: &str, args: &[&Path]) -> String {
        let mut command = Command::new(compiled().unwrap().path(name));
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if preloaded {
            let socket = self.dir.path().join("socket");
            command.env("LD_PRELOAD", library());
            command.env("FREEHOLD_MOUNTS", format!("{}={}", self.point().display(), socket.display()));
        }
        let mut child = command.spawn().unwrap();
        let begun = Instant::now();
        while child.try_wait().unwrap().is_none() {
            if begun.elapsed() > Duration::from_secs(60) {
                let _ = child.kill();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success(), "{name} {args:?}: {out:?}");
        String::from_utf8(out.stdout).unwrap()
    }

    pub fn done(self) {
        self.mount.unmount_now().unwrap();
        self.mount.wait();
        self.server.stop();
        self.volume.close_blocking().unwrap();
    }
}

/// The program, under two names.
pub struct Program(PathBuf);

impl Program {
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

/// Compiles it, once. `None` where there is no compiler.
pub fn compiled() -> Option<&'static Program> {
    static DONE: OnceLock<Option<Program>> = OnceLock::new();
    let compile = || {
        if Command::new("cc").arg("--version").output().is_ok_and(|o| o.status.success()) {
            let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("order-{}", std::process::id()));
            std::fs::create_dir_all(&dir).unwrap();
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/order.c");
            let mut cc = Command::new("cc");
            cc.args(["-std=gnu99", "-Wall", "-Wextra", "-Werror", "-O1"]).arg(source);
            let out = cc.arg("-o").arg(dir.join("order")).arg("-ldl").output().unwrap();
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
            std::fs::copy(dir.join("order"), dir.join("orderly")).unwrap();
            return Some(Program(dir));
        }
        println!("skipped: there is no C compiler");
        None
    };
    DONE.get_or_init(compile).as_ref()
}

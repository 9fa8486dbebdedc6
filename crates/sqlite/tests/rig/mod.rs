//! Volumes on simulated flash, served in this process; databases on them are at `/flash/...` and `/second/...`, which exist nowhere else.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use block::{MkfsOptions, OpenOptions, Volume};
use fs::watched::Watched;
use media::flash::{Config, SimFlash};
use rusqlite::{Connection, OpenFlags};
use share::Server;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::time::Duration;

pub const MOUNTS: [&str; 2] = ["/flash", "/second"];

static DIR: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let dir = tempfile::tempdir().unwrap();
    let said = MOUNTS.map(|at| format!("{at}={}{at}", dir.path().display())).join(";");
    // SAFETY: once, at the beginning of each test, and nobody else in this process asks for it meanwhile.
    unsafe { std::env::set_var("FREEHOLD_MOUNTS", said) };
    freehold_sqlite::register!(rusqlite::ffi, false).unwrap();
    dir
});

/// One volume at a time is at a mount.
static ONE: Mutex<()> = Mutex::new(());

/// To be held by a test for as long as it has a [`Rig`]: others may run in the same process.
pub fn one() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(|e| e.into_inner())
}

/// Registers the VFS, as a [`Rig`] does by itself.
pub fn register() {
    LazyLock::force(&DIR);
}

pub struct Rig {
    pub flash: Arc<SimFlash>,
    pub volume: Arc<Volume>,
    server: Option<Server>,
}

impl Rig {
    /// An empty volume.
    pub fn new(seed: u64, atomic_unit: u32) -> Rig {
        Rig::new_at(0, seed, atomic_unit)
    }

    /// The same at another of the mounts.
    pub fn new_at(mount: usize, seed: u64, atomic_unit: u32) -> Rig {
        let flash = SimFlash::new(Config { seed, atomic_unit, ..Config::new(96 << 20) }).unwrap();
        let mkfs = MkfsOptions { log_bytes: Some(8 << 20), ..MkfsOptions::default() };
        let flash = Arc::new(flash);
        block::mkfs(flash.clone(), &mkfs).unwrap();
        Rig::open_at(mount, flash)
    }

    pub fn open(flash: Arc<SimFlash>) -> Rig {
        Rig::open_at(0, flash)
    }

    pub fn open_at(mount: usize, flash: Arc<SimFlash>) -> Rig {
        let options = OpenOptions {
            cache_bytes: 16 << 20,
            dirty_bytes_max: 1 << 20,
            // Nothing becomes durable by itself while a test counts.
            dirty_age_max: Duration::from_secs(600),
            ..OpenOptions::default()
        };
        let volume = Arc::new(Volume::open(flash.clone(), options).unwrap());
        let options = share::server::Options { opening: volume.opening(), ..Default::default() };
        let doors = Watched::new(volume.clone());
        let socket = socket(mount);
        let server = Server::start_at_door(doors.door(), &socket, options).unwrap();
        Rig { flash, volume, server: Some(server) }
    }

    /// A connection; `parameters` of the URI, "" for none.
    pub fn connect(&self, name: &str, parameters: &str) -> Connection {
        connect(name, parameters).unwrap()
    }

    /// Times that somebody waited for the device until something was durable.
    pub fn waits(&self) -> u64 {
        let counters = self.volume.counters();
        counters.flushes + counters.fua_records
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }
}

/// Where the manager of a mount listens.
pub fn socket(mount: usize) -> std::path::PathBuf {
    DIR.path().join(&MOUNTS[mount][1..])
}

/// Somebody who listens at a mount, and says nothing to those who come.
pub fn silent(mount: usize) -> std::os::fd::OwnedFd {
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    let path = socket(mount);
    let bytes = path.as_os_str().as_encoded_bytes();
    // SAFETY: all zeros is a valid value; the calls get it, and a descriptor that is ours.
    unsafe {
        let mut at: libc::sockaddr_un = std::mem::zeroed();
        at.sun_family = libc::AF_UNIX as _;
        at.sun_path.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from as _);
        let listener = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
        assert!(listener >= 0);
        let listener = OwnedFd::from_raw_fd(listener);
        let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
        assert_eq!(libc::bind(listener.as_raw_fd(), (&raw const at).cast(), len), 0);
        assert_eq!(libc::listen(listener.as_raw_fd(), 8), 0);
        listener
    }
}

pub fn connect(name: &str, parameters: &str) -> rusqlite::Result<Connection> {
    let uri = format!("file:{}/{name}?vfs=freehold&{parameters}", MOUNTS[0]);
    let connection = Connection::open_with_flags(uri, OpenFlags::default() | OpenFlags::SQLITE_OPEN_URI)?;
    connection.busy_timeout(Duration::from_secs(20))?;
    Ok(connection)
}

/// Sets the journal mode, which must succeed.
#[track_caller]
pub fn journal(connection: &Connection, mode: &str) {
    if mode == "wal" {
        // There is no kernel mount, and so no memory to share.
        connection.execute_batch("pragma locking_mode = exclusive").unwrap();
    }
    let pragma = format!("pragma journal_mode = {mode}");
    let got: String = connection.query_row(&pragma, [], |row| row.get(0)).unwrap();
    assert_eq!(got, mode);
}

#[track_caller]
pub fn number(connection: &Connection, sql: &str) -> i64 {
    connection.query_row(sql, [], |row| row.get(0)).unwrap()
}

#[track_caller]
pub fn check(connection: &Connection) {
    let said: String = connection.query_row("pragma integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(said, "ok");
}

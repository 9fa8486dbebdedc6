//! A volume on simulated flash, served in this process; databases on it are at `/flash/...`, which exists nowhere else.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use block::{MkfsOptions, OpenOptions, Volume};
use fs::watched::Watched;
use media::flash::{Config, SimFlash};
use rusqlite::{Connection, OpenFlags};
use share::Server;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::time::Duration;

pub const MOUNT: &str = "/flash";

static DIR: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let dir = tempfile::tempdir().unwrap();
    let said = format!("{MOUNT}={}", dir.path().join("socket").display());
    // SAFETY: once, at the beginning of each test, and nobody else in this process asks for it meanwhile.
    unsafe { std::env::set_var("FREEHOLD_MOUNTS", said) };
    freehold_sqlite::register!(rusqlite::ffi, false).unwrap();
    dir
});

/// One volume at a time is mounted.
static ONE: Mutex<()> = Mutex::new(());

/// To be held by a test for as long as it has a [`Rig`]: others may run in the same process.
pub fn one() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(|e| e.into_inner())
}

pub struct Rig {
    pub flash: Arc<SimFlash>,
    pub volume: Arc<Volume>,
    server: Option<Server>,
}

impl Rig {
    /// An empty volume.
    pub fn new(seed: u64, atomic_unit: u32) -> Rig {
        let flash = SimFlash::new(Config { seed, atomic_unit, ..Config::new(96 << 20) }).unwrap();
        let mkfs = MkfsOptions { log_bytes: Some(8 << 20), ..MkfsOptions::default() };
        let flash = Arc::new(flash);
        block::mkfs(flash.clone(), &mkfs).unwrap();
        Rig::open(flash)
    }

    pub fn open(flash: Arc<SimFlash>) -> Rig {
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
        let server = Server::start_at_door(doors.door(), &DIR.path().join("socket"), options).unwrap();
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

pub fn connect(name: &str, parameters: &str) -> rusqlite::Result<Connection> {
    let uri = format!("file:{MOUNT}/{name}?vfs=freehold&{parameters}");
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

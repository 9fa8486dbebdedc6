//! Transactions over several databases, on several file systems, through crashes of one of them: two volumes on simulated flash, or a volume and a
//! plain directory of a kernel that goes on.
//!
//! Verifies, for the journal modes that have super-journals and both durabilities: at whatever moment a volume loses what was not durable, all
//! databases of the transaction have it or none, and are whole, in whatever order they are opened, and also when the volumes crash
//! once more right after that. Canary: crashes must be seen on both sides of the commit point.

mod rig;

use fs::FileSystem;
use media::SimFlash;
use media::flash::{Event, Trace};
use rig::{MOUNTS, Rig, check, number, one};
use rusqlite::{Connection, OpenFlags, ffi};
use std::ffi::{CStr, c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex};

type Watch = Box<dyn FnMut(&str) + Send>;

/// Told of each file that SQLite opens, and of each that it deletes, before and after that.
static WATCH: Mutex<Option<Watch>> = Mutex::new(None);
/// A file of this name cannot be opened.
static REFUSED: Mutex<Option<&'static str>> = Mutex::new(None);

fn step(what: &str) {
    if let Some(watch) = WATCH.lock().unwrap().as_mut() {
        watch(what);
    }
}

/// The VFS, of which a copy is registered that lets these tests watch.
static VFS: LazyLock<usize> = LazyLock::new(|| {
    rig::register();
    // SAFETY: a VFS lives for ever once it is registered, and does not look at which one it is called through.
    unsafe {
        let vfs = ffi::sqlite3_vfs_find(c"freehold".as_ptr());
        let watched = ffi::sqlite3_vfs {
            zName: c"watched".as_ptr(),
            pNext: std::ptr::null_mut(),
            xOpen: Some(open),
            xDelete: Some(delete),
            ..*vfs
        };
        assert_eq!(ffi::sqlite3_vfs_register(Box::leak(Box::new(watched)), 0), ffi::SQLITE_OK);
        vfs as usize
    }
});

unsafe extern "C" fn open(
    vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    // SAFETY: SQLite's arguments.
    unsafe {
        if !name.is_null() {
            let path = CStr::from_ptr(name).to_string_lossy();
            if REFUSED.lock().unwrap().is_some_and(|refused| path.ends_with(refused)) {
                (*file).pMethods = std::ptr::null();
                step("refused");
                return ffi::SQLITE_CANTOPEN;
            }
            step(&format!("before opening {path}"));
        }
        (*(*VFS as *mut ffi::sqlite3_vfs)).xOpen.unwrap()(vfs, name, file, flags, out)
    }
}

unsafe extern "C" fn delete(vfs: *mut ffi::sqlite3_vfs, name: *const c_char, sync: c_int) -> c_int {
    // SAFETY: SQLite's arguments.
    unsafe {
        let path = CStr::from_ptr(name).to_string_lossy();
        step(&format!("before deleting {path}"));
        let done = (*(*VFS as *mut ffi::sqlite3_vfs)).xDelete.unwrap()(vfs, name, sync);
        step(&format!("after deleting {path}"));
        done
    }
}

fn connect(path: &Path, parameters: &str) -> Connection {
    LazyLock::force(&VFS);
    let uri = format!("file:{}?vfs=watched&{parameters}", path.display());
    Connection::open_with_flags(uri, OpenFlags::default() | OpenFlags::SQLITE_OPEN_URI).unwrap()
}

/// Where a database is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum On {
    Directory,
    Volume(usize),
}

/// Files of a plain directory.
type Files = Vec<(PathBuf, Vec<u8>)>;

fn files(dir: &Path) -> Files {
    let paths = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    paths.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

const ROWS: i64 = 600;

/// Two databases, and what the crashes of a transaction over them are made from.
struct Pair {
    dir: tempfile::TempDir,
    on: [On; 2],
    parameters: String,
}

impl Pair {
    fn path(&self, database: usize) -> PathBuf {
        let name = ["one.db", "two.db"][database];
        match self.on[database] {
            On::Directory => self.dir.path().join(name),
            On::Volume(mount) => Path::new(MOUNTS[mount]).join(name),
        }
    }

    /// A connection to both, with their tables in version 0.
    fn begin(&self, mode: &str) -> Connection {
        let connection = connect(&self.path(0), &self.parameters);
        let two = format!("file:{}?vfs=watched&{}", self.path(1).display(), self.parameters);
        connection.execute("attach ? as two", [two]).unwrap();
        for schema in ["main", "two"] {
            let pragma = format!("pragma {schema}.journal_mode = {mode}");
            assert_eq!(connection.query_row(&pragma, [], |row| row.get::<_, String>(0)).unwrap(), mode);
            let sql = format!(
                "create table {schema}.t(id integer primary key, v integer, b blob);
                create index {schema}.i on t(v);
                with recursive n(i) as (select 1 union all select i + 1 from n where i < {ROWS})
                insert into {schema}.t select i, 0, zeroblob(200) from n;
                pragma {schema}.cache_size = 20"
            );
            connection.execute_batch(&sql).unwrap();
        }
        connection
    }

    /// The version of both databases, which must be the same, after opening the second one alone first if `second_first`.
    fn version(&self, second_first: bool, what: &str) -> i64 {
        let version = |database: usize| {
            let connection = connect(&self.path(database), &self.parameters);
            check(&connection);
            let sum = number(&connection, "select sum(v) from t");
            assert_eq!(sum % ROWS, 0, "{what}: half of a transaction in one database");
            sum / ROWS
        };
        let versions = if second_first {
            let two = version(1);
            [version(0), two]
        } else {
            [version(0), version(1)]
        };
        assert_eq!(versions[0], versions[1], "{what}: {:?}", self.on);
        versions[0]
    }

    /// Opens the volumes that the databases are on.
    fn volumes(&self, images: [SimFlash; 2]) -> Vec<Rig> {
        let used = images.into_iter().enumerate().filter(|(mount, _)| self.on.contains(&On::Volume(*mount)));
        used.map(|(mount, image)| Rig::open_at(mount, Arc::new(image))).collect()
    }

    /// The version after a crash that left this. `again`: and after another one of the volumes, right after the databases were opened.
    fn after(
        &self,
        files: &Files,
        images: [SimFlash; 2],
        (second_first, again): (bool, bool),
        what: &str,
    ) -> i64 {
        for entry in std::fs::read_dir(self.dir.path()).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
        files.iter().for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
        let mut rigs = self.volumes(images);
        let version = self.version(second_first, what);
        if again {
            for mount in 0..rigs.len() {
                let image = rigs[mount].flash.crash_image(|_, _| false);
                drop(rigs.remove(mount));
                rigs.insert(mount, Rig::open_at(mount, Arc::new(image)));
            }
            let what = format!("{what}, and once more");
            assert_eq!(self.version(second_first, &what), version, "{what}: {:?}", self.on);
        }
        version
    }
}

/// Which of the writes that are not durable are there.
type Keep = fn(u64) -> bool;
const NONE: Keep = |_| false;
const ALL: Keep = |_| true;
const SOME: Keep = |i| !(i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40).is_multiple_of(3);

fn image(trace: &Trace, at: usize, keep: Keep) -> SimFlash {
    let mut i = at as u64;
    trace.state_at(at).crash_image(|_, _| {
        i += 1;
        keep(i)
    })
}

/// Crashes at moments of a transaction: at each step, and of what the volumes did between them. Returns how often it was there, and how
/// often not.
fn crash(on: [On; 2], mode: &str, durability: &str) -> [usize; 2] {
    let pair = Pair { dir: tempfile::tempdir().unwrap(), on, parameters: format!("durability={durability}") };
    let rigs = [0, 1].map(|mount| Rig::new_at(mount, 3 + mount as u64, 512));
    let connection = pair.begin(mode);
    rigs.iter().for_each(|rig| rig.volume.block_on(rig.volume.sync()).unwrap());
    let flashes = [0, 1].map(|i| rigs[i].flash.clone());
    flashes.iter().for_each(|flash| flash.set_trace(true));
    let moments = Arc::new(Mutex::new(Vec::new()));
    *WATCH.lock().unwrap() = Some(Box::new({
        let (dir, moments, flashes) = (pair.dir.path().to_path_buf(), moments.clone(), flashes.clone());
        move |what| {
            let mut moments = moments.lock().unwrap();
            flashes.iter().for_each(|flash| flash.mark(moments.len() as u64));
            moments.push((what.to_string(), files(&dir)));
        }
    }));
    step("before the transaction");
    let sql =
        "begin; update t set v = 1, b = zeroblob(300); update two.t set v = 1, b = zeroblob(300); commit";
    connection.execute_batch(sql).unwrap();
    step("after the commit");
    *WATCH.lock().unwrap() = None;
    let traces = flashes.map(|flash| flash.take_trace().unwrap());
    drop((connection, rigs));

    let moments = std::mem::take(&mut *moments.lock().unwrap());
    let marks = [0, 1].map(|i| {
        let is_mark = |k: &usize| matches!(traces[i].events()[*k], Event::Mark(_));
        (0..traces[i].events().len()).filter(is_mark).collect::<Vec<usize>>()
    });
    let mut seen = [0, 0];
    let mut tried = 0;
    let mut attempt = |files: &Files, at: [usize; 2], keep: [Keep; 2], what: &str| {
        let images = [0, 1].map(|i| image(&traces[i], at[i], keep[i]));
        tried += 1;
        let how = (tried % 2 == 0, tried % 3 == 0);
        let version = pair.after(files, images, how, &format!("{mode}, {durability}, {what}"));
        seen[version as usize] += 1;
        version
    };
    for k in 1..moments.len() {
        let (what, now) = &moments[k];
        let here = [0, 1].map(|i| marks[i][k]);
        let both = on.contains(&On::Volume(1));
        let other = if both { [NONE, ALL] } else { [SOME, SOME] };
        for keep in &[[NONE, NONE], [ALL, NONE], other] {
            let version = attempt(now, here, *keep, what);
            assert!(version == 1 || what != "after the commit", "{mode}, {durability}: not durable");
        }
        // What a volume did until then. The second database is committed when the first has been, so the other side is at the end of
        // this if it holds the first one, and at its beginning if it holds the second.
        for (database, place) in on.iter().enumerate() {
            let On::Volume(volume) = *place else { continue };
            let other = if database == 1 { k } else { k - 1 };
            let (from, to) = (marks[volume][k - 1], marks[volume][k]);
            for at in (from + 1..to).step_by(((to - from) / 2).max(1)) {
                let mut point = [0, 1].map(|i| marks[i][other]);
                point[volume] = at;
                let keep = if at % 2 == 0 { NONE } else { SOME };
                attempt(&moments[other].1, point, [keep, keep], &format!("{at} on the way to: {what}"));
            }
        }
    }
    println!("{on:?} {mode} {durability}: {} steps, {seen:?} of versions in {tried} crashes", moments.len());
    seen
}

const ON: [[On; 2]; 3] =
    [[On::Directory, On::Volume(0)], [On::Volume(0), On::Directory], [On::Volume(0), On::Volume(1)]];

fn crash_everywhere(mode: &str, durabilities: &[&str]) {
    let _one = one();
    for on in ON {
        for durability in durabilities {
            let seen = crash(on, mode, durability);
            assert!(seen.iter().all(|&n| n > 0), "crashes on one side of the commit point alone");
        }
    }
}

#[test]
fn all_or_none_with_journals_that_are_deleted() {
    crash_everywhere("delete", &["full", "ordered"]);
}

#[test]
fn all_or_none_with_journals_that_are_truncated() {
    crash_everywhere("truncate", &["full"]);
}

#[test]
fn all_or_none_with_journals_that_are_kept() {
    crash_everywhere("persist", &["ordered"]);
}

/// The commit fails after some databases have their pages: they are rolled back, and nothing of the transaction comes again when what
/// was not durable is lost, though its super-journal is gone.
#[test]
fn none_where_a_commit_fails_half_way() {
    let _one = one();
    for on in ON {
        let parameters = "durability=full".to_string();
        let pair = Pair { dir: tempfile::tempdir().unwrap(), on, parameters };
        let rigs = [0, 1].map(|mount| Rig::new_at(mount, 3, 512));
        let connection = pair.begin("delete");
        let three = format!("file:{}/three.db?vfs=watched", MOUNTS[0]);
        connection.execute("attach ? as three", [three]).unwrap();
        connection.execute_batch("create table three.u(v)").unwrap();
        rigs.iter().for_each(|rig| rig.volume.block_on(rig.volume.sync()).unwrap());
        let all = [0, 1].map(|i| rigs[i].volume.clone());
        // Meanwhile somebody else syncs.
        let sync = move || all.iter().for_each(|volume| volume.block_on(volume.sync()).unwrap());
        *WATCH.lock().unwrap() = Some(Box::new(move |what| {
            if what == "refused" {
                sync();
            }
        }));
        // Its journal is made late, by the commit itself.
        *REFUSED.lock().unwrap() = Some("three.db-journal");
        let sql = "begin; insert into three.u values(1); update t set v = 1; update two.t set v = 1; commit";
        let failed = connection.execute_batch(sql);
        if !connection.is_autocommit() {
            connection.execute_batch("rollback").unwrap();
        }
        *REFUSED.lock().unwrap() = None;
        *WATCH.lock().unwrap() = None;
        assert!(failed.is_err());
        let files = files(pair.dir.path());
        let images = [0, 1].map(|i| rigs[i].flash.crash_image(|_, _| false));
        drop((connection, rigs));
        assert_eq!(pair.after(&files, images, (true, true), "a commit that failed"), 0);
    }
}

/// A database whose manager does not answer keeps nobody from databases elsewhere.
#[test]
fn who_waits_for_one_manager_waits_alone() {
    let _one = one();
    let rig = Rig::new(1, 4096);
    let before = rig.connect("db", "");
    before.execute_batch("create table t (x)").unwrap();
    let silent = rig::silent(1);
    let open = |path: String| {
        let flags = OpenFlags::default() | OpenFlags::SQLITE_OPEN_URI;
        Connection::open_with_flags(format!("file:{path}?vfs=freehold"), flags)
    };
    let stuck = std::thread::spawn(move || open(format!("{}/db", MOUNTS[1])).is_err());
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(!stuck.is_finished());
    let (done, others) = std::sync::mpsc::channel();
    let dir = tempfile::tempdir().unwrap();
    let plain = dir.path().join("db");
    std::thread::spawn(move || {
        for path in [format!("{}/db", MOUNTS[0]), plain.to_str().unwrap().into()] {
            let connection = open(path).unwrap();
            connection.execute_batch("create table if not exists u (x); insert into u values (7)").unwrap();
            done.send(number(&connection, "select count(*) from u")).unwrap();
        }
    });
    for _ in 0..2 {
        let counted = others.recv_timeout(std::time::Duration::from_secs(30));
        assert_eq!(counted, Ok(1), "it waits, too");
    }
    before.execute_batch("insert into t values (1)").unwrap();
    drop(silent);
    assert!(stuck.join().unwrap(), "nobody was there");
    let _ = std::fs::remove_file(rig::socket(1));
}

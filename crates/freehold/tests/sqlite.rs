//! SQLite on mounted volumes, by programs: the extension in the unmodified shell; processes with it, and with SQLite's own VFS through the kernel and
//! under `freehold run`, on one database; and servers that are killed.
//!
//! Verifies: all of them exclude each other in rollback and WAL mode; after a killed server the database is whole, holds every
//! transaction whose durable commit returned, and of ordered ones a prefix; a killed program leaves nothing locked. Power cuts
//! that lose writes are the matter of `sqlite/tests/power.rs`. Tests that need the shell `sqlite3` say so and pass where there is none.

mod common;

use common::{Place, Said, can_mount, eventually, library};
use rusqlite::{Connection, OpenFlags};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How a program comes to the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Extension,
    Kernel,
    Run,
}

/// The extension, built together with this test.
fn extension() -> PathBuf {
    common::built("libfreehold_sqlite.so")
}

fn has_shell() -> bool {
    let found =
        Command::new("sqlite3").arg("--version").stdout(Stdio::null()).status().is_ok_and(|s| s.success());
    if !found {
        println!("skipped: needs the shell sqlite3");
    }
    found
}

fn mounted() -> Place {
    let p = Place::new();
    // So large that whoever inserts until it is killed does not fill it.
    p.run(["mkfs", "a.img", "--size", "4g", "--sparse"]).ok();
    p.mkdir("mnt");
    p.line("mount a.img mnt").ok();
    p
}

/// A shell that runs `script` on the database; statements that find it busy wait.
fn shell(p: &Place, way: Way, db: &Path, script: &str) -> Command {
    let mut command = match way {
        Way::Run => {
            let mut command = p.command();
            command.args(["run", "sqlite3"]).env("FREEHOLD_PRELOAD", library());
            command
        }
        _ => Command::new("sqlite3"),
    };
    command.env("FREEHOLD_RUN_DIR", p.path("run")).arg("-bail").arg(":memory:");
    if way == Way::Extension {
        command.arg("-cmd").arg(format!(".load {}", extension().display()));
    }
    command.arg("-cmd").arg(format!(".open {}", db.display())).arg("-cmd").arg(".timeout 30000");
    command.arg(script);
    command
}

fn ask(p: &Place, way: Way, db: &Path, script: &str) -> String {
    Said::from(shell(p, way, db, script).output().unwrap()).ok().trim().to_string()
}

#[test]
fn the_shell_loads_the_extension() {
    if !can_mount() || !has_shell() {
        return;
    }
    let p = mounted();
    for mode in ["delete", "truncate", "persist", "wal"] {
        for durability in ["full", "ordered"] {
            let db = p.path(&format!("mnt/{mode}-{durability}.db"));
            let said = ask(
                &p,
                Way::Extension,
                &db,
                &format!(
                    "pragma freehold_durability = {durability}; pragma journal_mode = {mode};
                     create table t(v); insert into t values(1); insert into t values(2);
                     begin; delete from t; rollback; begin; insert into t values(3); commit;
                     select sum(v) from t; pragma integrity_check;"
                ),
            );
            assert_eq!(said, format!("{durability}\n{mode}\n6\nok"));
            // What the kernel and others see is the same.
            assert_eq!(ask(&p, Way::Kernel, &db, "select sum(v) from t; pragma integrity_check;"), "6\nok");
            assert_eq!(ask(&p, Way::Run, &db, "insert into t values(4); select sum(v) from t;"), "10");
            assert_eq!(
                ask(&p, Way::Extension, &db, "select sum(v) from t; pragma integrity_check;"),
                "10\nok"
            );
        }
    }
    let left =
        std::fs::read_dir(p.path("mnt")).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let left: Vec<String> =
        left.filter(|name| !name.ends_with(".db") && !name.ends_with("journal")).collect();
    assert!(left.is_empty(), "{left:?}");
    // A database elsewhere is served as ever.
    let db = p.path("plain.db");
    assert_eq!(
        ask(&p, Way::Extension, &db, "create table t(v); insert into t values(7); select v from t;"),
        "7"
    );
    assert!(db.exists());
}

#[test]
fn processes_with_either_vfs_exclude_each_other() {
    if !can_mount() || !has_shell() {
        return;
    }
    let p = mounted();
    for mode in ["delete", "wal"] {
        let db = p.path(&format!("mnt/{mode}.db"));
        let said = ask(
            &p,
            Way::Extension,
            &db,
            &format!("pragma journal_mode = {mode}; create table t(n); insert into t values(0);"),
        );
        assert_eq!(said, mode);
        const EACH: usize = 40;
        let script = "update t set n = n + 1;".repeat(EACH);
        let ways = [Way::Extension, Way::Kernel, Way::Extension, Way::Kernel, Way::Run];
        let mut logs = (0..).map(|n| p.path(&format!("{mode}-{n}.log")));
        let children = ways.map(|way| {
            let (mut command, log) = (shell(&p, way, &db, &script), logs.next().unwrap());
            command.arg("-cmd").arg(format!(".log {}", log.display()));
            (way, log, command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
        });
        for (way, log, child) in children {
            let said = Said::from(child.wait_with_output().unwrap());
            let log = std::fs::read_to_string(log).unwrap_or_default();
            assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{mode} {way:?}: {log}");
        }
        let want = format!("{}\nok", EACH * ways.len());
        for way in [Way::Kernel, Way::Extension] {
            assert_eq!(ask(&p, way, &db, "select n from t; pragma integrity_check;"), want, "{mode} {way:?}");
        }
    }
}

/// The part of other processes: inserts numbers and says which were committed, until something fails.
#[test]
#[ignore = "the part of other processes"]
fn inserter() {
    let Ok(db) = std::env::var("SQLITE_TEST_DB") else { return };
    let mode = std::env::var("SQLITE_TEST_MODE").unwrap();
    let connection = connect(Path::new(&db), &std::env::var("SQLITE_TEST_DURABILITY").unwrap());
    let got: String =
        connection.query_row(&format!("pragma journal_mode = {mode}"), [], |row| row.get(0)).unwrap();
    assert_eq!(got, mode);
    let table = "create table if not exists t(id integer primary key, v blob)";
    connection.execute_batch(table).unwrap();
    let mut last: i64 =
        connection.query_row("select coalesce(max(id), 0) from t", [], |row| row.get(0)).unwrap();
    loop {
        last += 1;
        let v = vec![last as u8; (last as usize * 37) % 9000];
        if connection.execute("insert into t values(?, ?)", (last, v)).is_err() {
            return;
        }
        println!("\n{last}");
    }
}

fn connect(db: &Path, durability: &str) -> Connection {
    freehold_sqlite::register!(rusqlite::ffi, false).unwrap();
    let uri = format!("file:{}?vfs=freehold&durability={durability}", db.display());
    let connection =
        Connection::open_with_flags(uri, OpenFlags::default() | OpenFlags::SQLITE_OPEN_URI).unwrap();
    connection.busy_timeout(Duration::from_secs(20)).unwrap();
    connection
}

/// Starts an inserter, kills the server or the inserter itself a while after its first commit, and returns the last number whose commit
/// was said.
fn insert_until_killed(p: &Place, (mode, durability): (&str, &str), for_ms: u64, server: bool) -> i64 {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "inserter", "--ignored", "--nocapture"]);
    command.env("SQLITE_TEST_DB", p.path("mnt/kill.db")).env("FREEHOLD_RUN_DIR", p.path("run"));
    command.env("SQLITE_TEST_MODE", mode).env("SQLITE_TEST_DURABILITY", durability);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let out = child.stdout.take().unwrap();
    let (begins, begun) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let lines = BufReader::new(out).lines().map_while(Result::ok);
        let numbers = lines.filter_map(|line| line.trim().parse().ok());
        let told = numbers.inspect(|_| {
            // Nobody listens any more behind the first one.
            let _ = begins.send(());
        });
        told.last().unwrap_or(0)
    });
    begun.recv_timeout(Duration::from_secs(40)).expect("the inserter begins");
    std::thread::sleep(Duration::from_millis(for_ms));
    if server {
        let pid = freehold::mounts::lock_holder(&p.path("a.img")).unwrap().pid;
        // SAFETY: our own server.
        unsafe { libc::kill(pid as i32, libc::SIGKILL) };
    } else {
        child.kill().unwrap();
    }
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(40), "the inserter is stuck");
        std::thread::sleep(Duration::from_millis(5));
    }
    let last: i64 = reader.join().unwrap();
    if server {
        eventually("the server is gone", || freehold::mounts::lock_holder(&p.path("a.img")).is_none());
        p.line("umount -f mnt").ok();
        p.line("mount a.img mnt").ok();
    }
    last
}

/// What the database holds: rows 1 to that one.
fn rows(p: &Place) -> i64 {
    let db = p.path("mnt/kill.db");
    // Through the kernel, with SQLite's own VFS, which plays hot journals back.
    let connection = Connection::open(db).unwrap();
    connection.busy_timeout(Duration::from_secs(20)).unwrap();
    let said: String = connection.query_row("pragma integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(said, "ok");
    let query = "select count(*), coalesce(max(id), 0), coalesce(sum(length(v) = id * 37 % 9000), 0) from t";
    let (count, max, good) = connection
        .query_row(query, [], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?)))
        .unwrap();
    assert_eq!((count, good), (max, max), "a row is missing before others, or wrong");
    max
}

#[test]
fn killed_servers_lose_no_durable_transaction_and_keep_the_order_of_others() {
    if !can_mount() {
        return;
    }
    for mode in ["delete", "persist", "wal"] {
        for durability in ["full", "ordered"] {
            let p = mounted();
            for round in 0..3 {
                let last = insert_until_killed(&p, (mode, durability), 400 + 170 * round, true);
                let found = rows(&p);
                println!("{mode} {durability}: {last} committed, {found} there");
                assert!(found <= last + 1);
                assert!(durability != "full" || found >= last, "{mode}: {last} committed, {found} there");
                assert!(last > 0, "nothing was inserted");
            }
        }
    }
}

#[test]
fn killed_programs_leave_nothing_locked() {
    if !can_mount() {
        return;
    }
    for mode in ["delete", "wal"] {
        let p = mounted();
        for round in 0..4 {
            let last = insert_until_killed(&p, (mode, "full"), 300 + 90 * round, false);
            let found = rows(&p);
            assert!(last <= found && found <= last + 1, "{mode}: {last} committed, {found} there");
        }
    }
}

//! Single-row inserts with SQLite, each a transaction: what they cost on the host's file system with full sync, on a volume with SQLite's own VFS
//! under `freehold run`, and with the VFS of `freehold_sqlite`, durable and ordered.
//!
//! ```text
//! cargo bench -p freehold --bench sqlite -- [ROWS] [DIRECTORY]
//! ```
//!
//! The image of the volume is in the same directory as the database of the host, so that both have the same medium below. Beside the ratios stands
//! what one flush of it costs, which is what they come from; with a WAL, `synchronous=NORMAL` is the fair rival of order alone. Each figure is
//! the median of three runs in processes of their own, the ways in turn.

use rusqlite::{Connection, OpenFlags};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const MODES: [&str; 4] = ["delete", "truncate", "persist", "wal"];
const WAYS: [&str; 5] = ["host full", "host normal", "run", "vfs full", "vfs ordered"];
const ROUNDS: usize = 3;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    if let [first, db, way, mode, rows] = &words[..]
        && first == "--part"
    {
        return part(Path::new(db), way, mode, rows.parse().expect("a number"));
    }
    let rows: u32 = words.first().map_or(300, |word| word.parse().expect("ROWS is a number"));
    let dir = tempfile::tempdir_in(words.get(1).map_or(".", |word| word)).expect("a directory");
    let image = dir.path().join("a.img");
    let mnt = dir.path().join("mnt");
    std::fs::create_dir(&mnt).expect("a directory");
    let freehold = |words: &[&str]| {
        let done = command(dir.path()).args(words).output().expect("it can be started");
        assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
    };
    freehold(&["mkfs", &image.to_string_lossy(), "--size", "512m"]);
    freehold(&["mount", &image.to_string_lossy(), &mnt.to_string_lossy()]);
    let flush = flush_cost(dir.path());
    println!(
        "SQLite {}, {rows} inserts, one flush of the medium: {:.0} us",
        rusqlite::version(),
        micros(flush)
    );
    println!(
        "{:10} {:>12} {:>12} {:>12} {:>12} {:>12}   us for each insert",
        "journal", WAYS[0], WAYS[1], WAYS[2], WAYS[3], WAYS[4]
    );
    for mode in MODES {
        let mut all = vec![Vec::new(); WAYS.len()];
        for round in 0..ROUNDS {
            for (way, took) in WAYS.iter().zip(&mut all) {
                let at = if way.starts_with("host") { dir.path() } else { &mnt };
                let db = at.join(format!("{mode}-{}-{round}.db", way.replace(' ', "-")));
                took.push(measure(dir.path(), &db, way, mode, rows));
            }
        }
        let medians: Vec<f64> = all.into_iter().map(median).collect();
        let figures: String = medians.iter().map(|us| format!(" {us:12.0}")).collect();
        let ratios =
            medians[2..].iter().map(|us| format!("{:.1}", medians[0] / us)).collect::<Vec<_>>().join(", ");
        println!("{mode:10}{figures}   host full is {ratios} times as long");
    }
    freehold(&["umount", &mnt.to_string_lossy()]);
}

fn command(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_freehold"));
    command.env("FREEHOLD_RUN_DIR", dir.join("run")).env("FREEHOLD_PRELOAD", library());
    command
}

/// The preload library, built together with this program.
fn library() -> PathBuf {
    let own = std::env::current_exe().expect("a path");
    own.with_file_name("libfreehold_preload.so")
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// An overwrite of a block and a flush, less the overwrite.
fn flush_cost(dir: &Path) -> Duration {
    let file = std::fs::File::create(dir.join("flush")).expect("a file");
    let once = |i: u32| {
        file.write_all_at(&[i as u8; 4096], 0).expect("it can be written");
        let begun = Instant::now();
        file.sync_data().expect("it can be synced");
        begun.elapsed()
    };
    once(0);
    let mut all: Vec<Duration> = (1..100).map(once).collect();
    all.sort();
    all[all.len() / 2]
}

/// Microseconds for an insert, in a process of its own.
fn measure(dir: &Path, db: &Path, way: &str, mode: &str, rows: u32) -> f64 {
    let own = std::env::current_exe().expect("a path");
    let mut child = match way {
        "run" => {
            let mut child = command(dir);
            child.arg("run").arg(own);
            child
        }
        _ => Command::new(own),
    };
    child.arg("--part").arg(db).args([way, mode, &rows.to_string()]).env("FREEHOLD_RUN_DIR", dir.join("run"));
    let said = child.output().expect("it can be started");
    let text = String::from_utf8_lossy(&said.stdout);
    assert!(said.status.success(), "{way} {mode}: {text} {}", String::from_utf8_lossy(&said.stderr));
    text.trim().parse().expect("a number")
}

/// The part of the other process.
fn part(db: &Path, way: &str, mode: &str, rows: u32) {
    freehold_sqlite::register!(rusqlite::ffi, false).expect("the VFS is registered");
    let parameters = match way {
        "vfs full" => "?vfs=freehold",
        "vfs ordered" => "?vfs=freehold&durability=ordered",
        _ => "",
    };
    let uri = format!("file:{}{parameters}", db.display());
    let flags = OpenFlags::default() | OpenFlags::SQLITE_OPEN_URI;
    let connection = Connection::open_with_flags(uri, flags).expect("it opens");
    let got: String =
        connection.query_row(&format!("pragma journal_mode = {mode}"), [], |row| row.get(0)).expect("a mode");
    assert_eq!(got, mode);
    let synchronous = if way == "host normal" { "normal" } else { "full" };
    let start = format!("pragma synchronous = {synchronous}; create table t(id integer primary key, v text)");
    connection.execute_batch(&start).expect("a table");
    let mut insert = connection
        .prepare("insert into t values(?, 'a hundred bytes or so of text, as a row has them')")
        .expect("sql");
    insert.execute([0]).expect("a row");
    let begun = Instant::now();
    for id in 1..=rows {
        insert.execute([id]).expect("a row");
    }
    println!("{}", micros(begun.elapsed()) / rows as f64);
}

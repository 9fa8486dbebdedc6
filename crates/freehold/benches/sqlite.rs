//! Single-row inserts with SQLite, each a transaction: what they cost on ext4 with full sync, on a volume with SQLite's own VFS
//! under `freehold run`, and with the VFS of `freehold_sqlite`, durable and ordered.
//!
//! ```text
//! cargo bench -p freehold --bench sqlite -- [ROWS] [DIRECTORY]
//! ```
//!
//! The images of the volume and of ext4 are in the same directory as the database of the host, so that all have the same disk below. `ext4` is on a loop
//! device, as in `freehold bench`; it needs root and is left out without. `host` is the file system of the directory itself. Beside the ratios stands
//! what one flush of it costs, which is what they come from; with a WAL, `synchronous=NORMAL` is the fair rival of order alone. Each figure is
//! the median of three runs in processes of their own, the ways in turn.

use freehold::bench::{Kind, Lab};
use rusqlite::{Connection, OpenFlags};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const MODES: [&str; 4] = ["delete", "truncate", "persist", "wal"];
/// How a database is used, and where: the first word.
const WAYS: [&str; 6] = ["ext4 full", "host full", "host normal", "run full", "vfs full", "vfs ordered"];
const ROUNDS: usize = 3;
const IMAGE_BYTES: u64 = 512 << 20;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    if let [first, db, way, mode, rows] = &words[..]
        && first == "--part"
    {
        return part(Path::new(db), way, mode, rows.parse().expect("a number"));
    }
    let rows: u32 = words.first().map_or(300, |word| word.parse().expect("ROWS is a number"));
    let dir = tempfile::tempdir_in(words.get(1).map_or(".", |word| word)).expect("a directory");
    let mnt = dir.path().join("mnt");
    std::fs::create_dir(&mnt).expect("a directory");
    let lab = Lab::new(dir.path(), IMAGE_BYTES).expect("a place for images");
    let image = lab.image(Kind::Freehold).expect("an image");
    let peer = lab.peer(Kind::Ext4).inspect_err(|e| println!("without ext4 on a loop device: {e:#}")).ok();
    let freehold = |words: &[&str]| {
        let done = command(dir.path()).args(words).output().expect("it can be started");
        assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
    };
    freehold(&["mkfs", "--force", &image.to_string_lossy()]);
    freehold(&["mount", &image.to_string_lossy(), &mnt.to_string_lossy()]);
    let flush = flush_cost(dir.path());
    println!("SQLite {}, {rows} inserts; page and flush: {:.0} us", rusqlite::version(), micros(flush));
    if let Some(peer) = &peer {
        println!("the same on ext4 on a loop device: {:.0} us", micros(flush_cost(&peer.dir)));
    }
    let places = |way: &str| match way.split(' ').next() {
        Some("ext4") => peer.as_ref().map(|peer| peer.dir.clone()),
        Some("host") => Some(dir.path().to_owned()),
        _ => Some(mnt.clone()),
    };
    let heads: String = WAYS.iter().map(|way| format!(" {way:>12}")).collect();
    println!("{:10}{heads}   us for each insert", "journal");
    for mode in MODES {
        let mut all = vec![Vec::new(); WAYS.len()];
        for round in 0..ROUNDS {
            for (way, took) in WAYS.iter().zip(&mut all) {
                let Some(at) = places(way) else { continue };
                let db = at.join(format!("{mode}-{}-{round}.db", way.replace(' ', "-")));
                took.push(measure(dir.path(), &db, way, mode, rows));
            }
        }
        let medians: Vec<Option<f64>> = all.into_iter().map(median).collect();
        let figures: String =
            medians.iter().map(|us| us.map_or(format!(" {:12}", ""), |us| format!(" {us:12.0}"))).collect();
        println!("{mode:10}{figures}");
        for (peer, us) in WAYS[..2].iter().zip(&medians).filter_map(|(peer, us)| Some((peer, (*us)?))) {
            let ratios: String =
                medians[3..].iter().flatten().map(|ours| format!(" {:11.1}x", us / ours)).collect();
            println!("{:10} {:38}{ratios}", "", format!("{peer} is so many times as long as"));
        }
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

fn median(mut all: Vec<f64>) -> Option<f64> {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied()
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
        "run full" => {
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

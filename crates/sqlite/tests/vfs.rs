//! The VFS in-process, with SQLite linked to the test: what a transaction costs the device in each journal mode, locks among connections,
//! what happens when the manager ends, and that the C interface is what SQLite says it is.

mod rig;

use freehold_sqlite::abi;
use rig::{Rig, check, connect, journal, number, one};
use rusqlite::{Connection, ErrorCode, ffi};
use std::ffi::{CString, c_char, c_int, c_void};
use std::mem::{offset_of, size_of};
use std::sync::Mutex;

const MODES: [&str; 5] = ["delete", "truncate", "persist", "memory", "wal"];

fn is_code(result: rusqlite::Result<impl std::fmt::Debug>, code: ErrorCode) {
    match result {
        Err(rusqlite::Error::SqliteFailure(e, _)) => assert_eq!(e.code, code),
        other => panic!("{other:?}"),
    }
}

#[test]
fn layouts_are_those_of_sqlite() {
    macro_rules! same {
        ($ours:ty, $theirs:ty: $($a:ident $b:ident,)*) => {
            $(assert_eq!(offset_of!($ours, $a), offset_of!($theirs, $b), stringify!($b));)*
        };
    }
    same!(abi::Vfs, ffi::sqlite3_vfs: version iVersion, file_bytes szOsFile, name zName, open xOpen, delete xDelete,
        access xAccess, full_pathname xFullPathname, dl_open xDlOpen, randomness xRandomness, sleep xSleep,
        current_time xCurrentTime, get_last_error xGetLastError, current_time_int64 xCurrentTimeInt64,
        next_system_call xNextSystemCall,);
    assert_eq!(size_of::<abi::Vfs>(), size_of::<ffi::sqlite3_vfs>());
    same!(abi::IoMethods, ffi::sqlite3_io_methods: version iVersion, close xClose, read xRead, write xWrite,
        truncate xTruncate, sync xSync, file_size xFileSize, lock xLock, check_reserved_lock xCheckReservedLock,
        file_control xFileControl, device_characteristics xDeviceCharacteristics, shm_map xShmMap,
        shm_lock xShmLock, shm_barrier xShmBarrier, shm_unmap xShmUnmap,);
    assert_eq!(abi::FCNTL_SYNC, ffi::SQLITE_FCNTL_SYNC);
    assert_eq!(abi::FCNTL_COMMIT_PHASETWO, ffi::SQLITE_FCNTL_COMMIT_PHASETWO);
    assert_eq!(abi::FCNTL_BEGIN_ATOMIC_WRITE, ffi::SQLITE_FCNTL_BEGIN_ATOMIC_WRITE);
    assert_eq!(abi::IOCAP_BATCH_ATOMIC, ffi::SQLITE_IOCAP_BATCH_ATOMIC);
    assert_eq!(abi::IOCAP_POWERSAFE_OVERWRITE, ffi::SQLITE_IOCAP_POWERSAFE_OVERWRITE);
}

#[test]
#[allow(clippy::missing_transmute_annotations, reason = "the type is the parameter's")]
fn the_table_of_extensions_is_read_rightly() {
    static SEEN: Mutex<Option<[usize; 6]>> = Mutex::new(None);
    unsafe extern "C" fn look(_: *mut c_void, _: *mut *mut c_char, table: *const *const c_void) -> c_int {
        // SAFETY: SQLite calls it with its table.
        let host = unsafe { abi::Host::from_table(table) }.unwrap();
        // SAFETY: six pointers.
        *SEEN.lock().unwrap() = Some(unsafe { std::mem::transmute::<abi::Host, [usize; 6]>(host) });
        0
    }
    // SAFETY: an entry point of an extension.
    unsafe {
        let entry: unsafe extern "C" fn(*mut c_void, *mut *mut c_char, *const *const c_void) -> c_int = look;
        ffi::sqlite3_auto_extension(Some(std::mem::transmute::<*const (), _>(entry as *const ())));
    }
    drop(Connection::open_in_memory().unwrap());
    // SAFETY: takes the entry point away again.
    unsafe { ffi::sqlite3_reset_auto_extension() };
    let want = [
        ffi::sqlite3_libversion_number as *const () as usize,
        ffi::sqlite3_malloc64 as *const () as usize,
        ffi::sqlite3_vfs_find as *const () as usize,
        ffi::sqlite3_vfs_register as *const () as usize,
        ffi::sqlite3_uri_parameter as *const () as usize,
        ffi::sqlite3_database_file_object as *const () as usize,
    ];
    assert_eq!(SEEN.lock().unwrap().take(), Some(want));
}

/// Device waits of so many transactions, and of what they write.
fn cost(parameters: &str, mode: &str, rows: i64, payload: usize) -> u64 {
    let rig = Rig::new(7, 4096);
    let connection = rig.connect("cost.db", parameters);
    journal(&connection, mode);
    connection.execute_batch("create table t(id integer primary key, v blob)").unwrap();
    connection.execute("insert into t values(0, ?)", [vec![1u8; payload]]).unwrap();
    let before = rig.waits();
    for id in 1..=rows {
        connection.execute("insert into t values(?, ?)", (id, vec![id as u8; payload])).unwrap();
    }
    let waits = rig.waits() - before;
    assert_eq!(number(&connection, "select count(*) from t"), rows + 1);
    check(&connection);
    println!("{mode} {parameters}: {waits} waits for {rows} transactions, {:?}", rig.volume.counters());
    waits
}

#[test]
fn one_wait_for_each_durable_transaction_and_none_for_ordered_ones() {
    let _one = one();
    for mode in MODES {
        assert_eq!(cost("", mode, 20, 100), 20, "{mode}");
        assert_eq!(cost("durability=ordered", mode, 20, 100), 0, "{mode}");
    }
}

#[test]
fn one_wait_also_where_a_transaction_is_too_large_for_one_atomic_write() {
    let _one = one();
    for mode in MODES {
        assert_eq!(cost("durability=full", mode, 8, 300_000), 8, "{mode}");
        assert_eq!(cost("durability=ordered", mode, 8, 300_000), 0, "{mode}");
    }
}

#[test]
fn nobody_waits_where_nothing_was_to_be_synced() {
    let _one = one();
    let rig = Rig::new(7, 4096);
    let connection = rig.connect("off.db", "");
    connection.execute_batch("create table t(v); pragma synchronous = off").unwrap();
    let before = rig.waits();
    connection.execute_batch("insert into t values(1); insert into t values(2); select * from t").unwrap();
    assert_eq!(rig.waits(), before);
    connection.execute_batch("pragma synchronous = full; insert into t values(3)").unwrap();
    assert_eq!(rig.waits(), before + 1);
}

#[test]
fn small_commits_are_atomic_writes_and_need_no_journal() {
    let _one = one();
    let rig = Rig::new(7, 4096);
    let connection = rig.connect("batch.db", "");
    let is_on = "select sqlite_compileoption_used('ENABLE_BATCH_ATOMIC_WRITE')";
    assert_eq!(
        number(&connection, is_on),
        1,
        "the tests' SQLite is built without batch atomic commits (.cargo/config.toml)"
    );
    connection.execute_batch("create table t(id integer primary key, v)").unwrap();
    let before = rig.volume.counters();
    for id in 0..10 {
        connection.execute("insert into t values(?, 'some text')", [id]).unwrap();
    }
    let counters = rig.volume.counters();
    assert_eq!(counters.atomic_writes - before.atomic_writes, 10);
    // More pages than one atomic write takes go by a journal.
    connection.execute("insert into t values(100, zeroblob(1000000))", []).unwrap();
    assert_eq!(rig.volume.counters().atomic_writes, counters.atomic_writes);
    check(&connection);
}

#[test]
fn rollback_brings_back_what_was() {
    let _one = one();
    for mode in MODES {
        let rig = Rig::new(7, 4096);
        let connection = rig.connect("back.db", "");
        journal(&connection, mode);
        // A cache of ten pages, so that changes spill into the file before the end.
        connection
            .execute_batch("pragma cache_size = 10; create table t(id integer primary key, v)")
            .unwrap();
        let sql = "with recursive n(i) as (select 1 union all select i + 1 from n where i < 400)
                   insert into t select i, zeroblob(500) from n";
        connection.execute_batch(sql).unwrap();
        connection
            .execute_batch("begin; update t set v = randomblob(900); delete from t where id > 50")
            .unwrap();
        assert_eq!(number(&connection, "select count(*) from t"), 50);
        connection.execute_batch("rollback").unwrap();
        assert_eq!(number(&connection, "select sum(length(v)) from t where v = zeroblob(500)"), 200_000);
        check(&connection);
    }
}

#[test]
fn connections_of_one_process_exclude_each_other() {
    let _one = one();
    let rig = Rig::new(7, 4096);
    let (a, b) = (rig.connect("lock.db", ""), rig.connect("lock.db", ""));
    b.busy_timeout(std::time::Duration::ZERO).unwrap();
    a.execute_batch("create table t(v); begin immediate; insert into t values(1)").unwrap();
    assert_eq!(number(&b, "select count(*) from t"), 0);
    is_code(b.execute_batch("begin immediate"), ErrorCode::DatabaseBusy);
    // Closing a third one takes no lock from the first.
    drop(rig.connect("lock.db", ""));
    is_code(b.execute_batch("begin immediate"), ErrorCode::DatabaseBusy);
    a.execute_batch("commit").unwrap();
    b.execute_batch("begin; select * from t; insert into t values(2)").unwrap();
    is_code(a.execute_batch("pragma busy_timeout = 0; begin exclusive"), ErrorCode::DatabaseBusy);
    b.execute_batch("commit").unwrap();
    assert_eq!(number(&a, "select count(*) from t"), 2);
}

#[test]
fn threads_count_to_a_sum() {
    let _one = one();
    let rig = Rig::new(7, 4096);
    rig.connect("sum.db", "").execute_batch("create table t(n); insert into t values(0)").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let connection = rig.connect("sum.db", "durability=ordered");
                (0..50).for_each(|_| connection.execute_batch("update t set n = n + 1").unwrap());
            });
        }
    });
    let connection = rig.connect("sum.db", "");
    assert_eq!(number(&connection, "select n from t"), 200);
    check(&connection);
}

#[test]
fn durability_is_chosen_and_shown() {
    let _one = one();
    let rig = Rig::new(7, 4096);
    let shown = |c: &Connection, sql: &str| c.query_row(sql, [], |row| row.get::<_, String>(0));
    let connection = rig.connect("which.db", "");
    assert_eq!(shown(&connection, "pragma freehold_durability").unwrap(), "full");
    assert_eq!(shown(&connection, "pragma freehold_durability = ordered").unwrap(), "ordered");
    assert!(shown(&connection, "pragma freehold_durability = perhaps").is_err());
    assert_eq!(shown(&connection, "pragma freehold_durability").unwrap(), "ordered");
    let connection = rig.connect("which.db", "durability=ordered");
    assert_eq!(shown(&connection, "pragma freehold_durability").unwrap(), "ordered");
    is_code(connect("which.db", "durability=sometimes"), ErrorCode::CannotOpen);
}

#[test]
fn a_wal_is_not_shared_where_there_is_no_memory_to_share() {
    let _one = one();
    let rig = Rig::new(7, 4096);
    let connection = rig.connect("wal.db", "");
    let mode = |c: &Connection| c.query_row("pragma journal_mode = wal", [], |row| row.get::<_, String>(0));
    assert_eq!(mode(&connection).unwrap(), "delete");
    journal(&connection, "wal");
    connection.execute_batch("create table t(v)").unwrap();
    let other = rig.connect("wal.db", "");
    other.busy_timeout(std::time::Duration::ZERO).unwrap();
    assert!(other.query_row("select count(*) from t", [], |row| row.get::<_, i64>(0)).is_err());
}

#[test]
fn several_databases_are_one_transaction() {
    let _one = one();
    let rig = Rig::new(7, 4096);
    let connection = rig.connect("one.db", "durability=ordered");
    connection.execute_batch("attach 'file:/flash/two.db?vfs=freehold' as two").unwrap();
    connection.execute_batch("create table t(v); create table two.u(v)").unwrap();
    let before = rig.waits();
    connection.execute_batch("begin; insert into t values(1); insert into u values(1); commit").unwrap();
    // The super-journal, each database, and the removal; the connection to the second one has full durability, and nothing is left to wait for.
    assert_eq!(rig.waits() - before, 4);
    let before = rig.waits();
    connection.execute_batch("insert into t values(2); delete from t where v = 2").unwrap();
    assert_eq!(rig.waits(), before, "transactions over one database are as before");
    assert_eq!(number(&connection, "select (select count(*) from t) + (select count(*) from u)"), 2);
}

#[test]
fn who_was_connected_to_a_manager_that_ended_starts_again() {
    let _one = one();
    let rig = Rig::new(7, 4096);
    let connection = rig.connect("end.db", "");
    connection.execute_batch("create table t(v); begin immediate; insert into t values(1)").unwrap();
    let flash = rig.flash.clone();
    drop(rig);
    let rig = Rig::open(std::sync::Arc::new(flash.crash_image(|_, _| true)));
    assert!(connection.execute_batch("commit").is_err());
    // While it is open nobody else of this process goes on beside it.
    is_code(connect("end.db", ""), ErrorCode::CannotOpen);
    drop(connection);
    let connection = rig.connect("end.db", "");
    assert_eq!(number(&connection, "select count(*) from t"), 0);
    connection.execute_batch("insert into t values(2)").unwrap();
    check(&connection);
}

/// What SQLite learns from the VFS about whether a file is there.
fn exists(path: &str) -> Result<bool, c_int> {
    let (path, mut there) = (CString::new(path).unwrap(), -1);
    // SAFETY: a method of a VFS, with what it takes.
    let code = unsafe {
        let vfs = ffi::sqlite3_vfs_find(c"freehold".as_ptr());
        (*vfs).xAccess.unwrap()(vfs, path.as_ptr(), ffi::SQLITE_ACCESS_EXISTS, &mut there)
    };
    if code == ffi::SQLITE_OK { Ok(there == 1) } else { Err(code) }
}

#[test]
fn names_are_looked_up_with_the_manager_that_is_there_now() {
    let _one = one();
    let rig = Rig::new(7, 4096);
    let connection = rig.connect("name.db", "");
    connection.execute_batch("create table t(v)").unwrap();
    assert_eq!(exists("/flash/name.db"), Ok(true));
    let flash = rig.flash.clone();
    drop(rig);
    let _rig = Rig::open(std::sync::Arc::new(flash.crash_image(|_, _| true)));
    // Not for those who still have something open that the old one knew of.
    assert_eq!(exists("/flash/name.db"), Err(ffi::SQLITE_IOERR_ACCESS));
    drop(connection);
    assert_eq!(exists("/flash/name.db"), Ok(true));
}

#[test]
fn a_super_journal_is_not_taken_for_absent_where_nobody_can_tell() {
    let _one = one();
    let _rig = Rig::new(7, 4096);
    let dir = tempfile::tempdir().unwrap();
    // Looking through it fails, as through the mount of a server that was killed.
    std::os::unix::fs::symlink("dead", dir.path().join("dead")).unwrap();
    let at = |name: &str| exists(&format!("{}/{name}", dir.path().display()));
    assert_eq!(at("dead/one.db-mj1A2B3C9F0"), Err(ffi::SQLITE_IOERR_ACCESS));
    assert_eq!(at("dead/one.db-journal"), Ok(false));
    assert_eq!(at("one.db-mj1A2B3C9F0"), Ok(false));
    assert_eq!(at("missing/one.db-mj1A2B3C9F0"), Ok(false));
    assert_eq!(exists("/flash/one.db-mj1A2B3C9F0"), Ok(false));
    std::fs::write(dir.path().join("one.db-mj1A2B3C9F0"), "names").unwrap();
    assert_eq!(at("one.db-mj1A2B3C9F0"), Ok(true));
}

#[test]
fn other_paths_are_the_business_of_the_vfs_below() {
    let _one = one();
    let rig = Rig::new(7, 4096);
    let dir = tempfile::tempdir().unwrap();
    let uri = format!("file:{}?vfs=freehold", dir.path().join("plain.db").display());
    let connection = Connection::open(uri).unwrap();
    let mode: String = connection.query_row("pragma journal_mode = wal", [], |row| row.get(0)).unwrap();
    assert_eq!(mode, "wal");
    connection.execute_batch("create table t(v); insert into t values(1)").unwrap();
    assert!(dir.path().join("plain.db-shm").exists());
    check(&connection);
    drop(rig);
}

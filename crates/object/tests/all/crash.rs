//! A mount that stops at every call of the store, one after the other. What a mount finds that comes after it: every close that was
//! acknowledged, nothing half-written, and of what was renamed at least one name.

use crate::rig::*;
use fs::FileSystem;
use std::collections::BTreeMap;

/// What a run was told is done: for each path the contents that it may have by now. `None`: it may be absent.
type Expected = BTreeMap<String, Vec<Option<Vec<u8>>>>;

/// A run of closes over new and old files, large and small, with changes in the middle, truncation and appends. Stops at the first error.
fn run(rig: &Rig, expected: &mut Expected) -> fs::Result<()> {
    let versions: [(&str, Vec<u8>); 6] = [
        ("small", b"one".to_vec()),
        ("large", pattern(1, 3000)),
        ("small", b"two, longer".to_vec()),
        ("large", pattern(2, 2500)),
        ("d/in", pattern(3, 700)),
        ("empty", Vec::new()),
    ];
    rig.mkdir("d")?;
    for (path, bytes) in versions {
        // Until the close returns both are possible.
        let may = expected.entry(path.into()).or_insert_with(|| vec![None]);
        may.push(Some(bytes.clone()));
        rig.write(path, &bytes)?;
        expected.insert(path.into(), vec![Some(bytes)]);
    }
    // A change in the middle and at the end of an old object.
    let mut bytes = pattern(2, 2500);
    bytes[1200..1210].copy_from_slice(b"0123456789");
    bytes.extend_from_slice(b"the end");
    expected.get_mut("large").unwrap().push(Some(bytes.clone()));
    let handle = rig.open("large")?;
    rig.write_at(handle, 1200, b"0123456789")?;
    rig.write_at(handle, 2500, b"the end")?;
    rig.close(handle)?;
    expected.insert("large".into(), vec![Some(bytes)]);
    // Removal.
    expected.get_mut("small").unwrap().push(None);
    rig.unlink("small")?;
    expected.insert("small".into(), vec![None]);
    Ok(())
}

fn check(rig: &Rig, expected: &Expected, what: &str) {
    for (path, may) in expected {
        let found = match rig.read(path) {
            Ok(bytes) => Some(bytes),
            Err(fs::Error::NotFound) => None,
            Err(e) => panic!("{what}: {path}: {e}"),
        };
        assert!(may.contains(&found), "{what}: {path} has {:?} bytes", found.map(|f| f.len()));
    }
}

fn stops(abilities: object::store::Abilities) -> u64 {
    let mut at = 0;
    loop {
        let mut over = false;
        for seed in 0..2 {
            let bucket = bucket();
            let mut expected = Expected::new();
            let faults = Faults { stop_at: Some(at), waiting: 100, seed, ..Faults::default() };
            let rig = mount_with(&bucket, abilities.clone(), options(), faults, 3);
            let done = run(&rig, &mut expected);
            drop(rig);
            check(&mount(&bucket), &expected, &format!("stopped at call {at}, seed {seed}"));
            over = done.is_ok();
        }
        if over {
            return at;
        }
        at += 1;
    }
}

#[test]
fn stopped_at_every_call() {
    let calls = stops(SMALL);
    assert!(calls > 120, "{calls} calls");
}

#[test]
fn stopped_at_every_call_of_a_poor_store() {
    let poor =
        object::store::Abilities { conditional: false, conditional_delete: false, part_copy: false, ..SMALL };
    let calls = stops(poor);
    assert!(calls > 120, "{calls} calls");
}

/// A directory is renamed; the mount stops; another one finds every file under one of the names at least, and can repeat the rename.
#[test]
fn a_rename_of_a_directory_stopped_at_every_call() {
    let files: BTreeMap<String, Vec<u8>> =
        (0..8u64).map(|i| (format!("sub/{i}"), pattern(i, 100 + 900 * i as usize))).collect();
    for at in 0.. {
        let mut over = false;
        for seed in 0..2 {
            let bucket = bucket();
            let before = mount(&bucket);
            before.mkdir("from").unwrap();
            before.mkdir("from/sub").unwrap();
            for (path, bytes) in &files {
                before.write(&format!("from/{path}"), bytes).unwrap();
            }
            let faults = Faults { stop_at: Some(at), waiting: 100, seed, ..Faults::default() };
            let rig = mount_with(&bucket, SMALL, options(), faults, 3);
            over = rig.rename("from", "to").is_ok();
            drop(rig);
            let after = mount(&bucket);
            let whole =
                |dir: &str| files.iter().all(|(p, b)| after.read(&format!("{dir}/{p}")).as_ref() == Ok(b));
            assert!(whole("from") || whole("to"), "stopped at call {at}: neither name has all of it");
            if after.find("from").is_ok() {
                after.rename("from", "to").unwrap_or_else(|e| panic!("stopped at call {at}: {e}"));
            }
            assert!(whole("to"), "stopped at call {at}");
            assert_eq!(after.list("").unwrap(), ["to"]);
            assert!(
                bucket.lock().objects.values().all(|(_, o)| !o.metadata.contains_key("freehold-moving-to"))
            );
        }
        if over {
            assert!(at > 25, "{at} calls");
            return;
        }
    }
}

/// Once everything is copied the new directory is in use: what is closed there stays when the rename is repeated.
#[test]
fn a_rename_that_is_repeated_undoes_no_close() {
    let mut tried = 0;
    for at in 0.. {
        let bucket = bucket();
        let before = mount(&bucket);
        before.mkdir("from").unwrap();
        for i in 0..8 {
            before.write(&format!("from/{i}"), &pattern(i, 100)).unwrap();
        }
        let faults = Faults { stop_at: Some(at), waiting: 100, seed: at, ..Faults::default() };
        let rig = mount_with(&bucket, SMALL, options(), faults, 3);
        let over = rig.rename("from", "to").is_ok();
        drop(rig);
        let removing = {
            let left = bucket.lock().keys().iter().filter(|key| key.starts_with("from/")).count();
            (1..9).contains(&left)
        };
        if removing {
            tried += 1;
            let after = mount(&bucket);
            let handle = after.open("to/3").unwrap();
            after.write_at(handle, 0, b"new").unwrap();
            after.close(handle).unwrap();
            after.write("to/7", b"newer").unwrap();
            after.write("to/more", b"more").unwrap();
            let set = fs::SetAttr { perm: Some(0o700), ..Default::default() };
            let to = after.find("to").unwrap().ino;
            after.run(after.fs.setattr(&fs::Cred::root(), to, set)).unwrap();
            // Who writes there would lose it.
            let handle = after.open("to/3").unwrap();
            assert!(matches!(after.rename("from", "to"), Err(fs::Error::Busy(_))));
            after.close(handle).unwrap();
            after.rename("from", "to").unwrap_or_else(|e| panic!("stopped at call {at}: {e}"));
            for rig in [after, mount(&bucket)] {
                assert_eq!(rig.read("to/3").unwrap(), [b"new", &pattern(3, 100)[3..]].concat(), "call {at}");
                assert_eq!(rig.read("to/7").unwrap(), b"newer", "stopped at call {at}");
                assert_eq!(rig.read("to/5").unwrap(), pattern(5, 100), "stopped at call {at}");
                assert_eq!(rig.list("").unwrap(), ["to"], "stopped at call {at}");
                assert_eq!(rig.list("to").unwrap().len(), 9, "stopped at call {at}");
                assert_eq!(rig.find("to").unwrap().perm, 0o700, "stopped at call {at}");
            }
        }
        if over {
            break;
        }
    }
    assert!(tried >= 4, "{tried} times in the middle of removing");
}

/// What is written below the old name after everything was copied is nobody's to remove.
#[test]
fn a_rename_that_is_repeated_keeps_what_is_new_below_the_old_name() {
    let bucket = bucket();
    let rig = mount(&bucket);
    rig.mkdir("from").unwrap();
    for i in 0..4 {
        rig.write(&format!("from/{i}"), &pattern(i, 100)).unwrap();
    }
    rig.fs.store().refuse("delete", Some(object::store::StoreError::Denied("no".into())));
    assert!(rig.rename("from", "to").is_err());
    drop(rig);
    let after = mount(&bucket);
    after.write("from/2", b"changed").unwrap();
    after.write("from/more", b"more").unwrap();
    after.rename("from", "to").unwrap();
    let again = mount(&bucket);
    assert_eq!(again.list("from").unwrap(), ["2"]);
    assert_eq!(again.read("from/2").unwrap(), b"changed");
    assert_eq!(again.read("to/2").unwrap(), pattern(2, 100));
    assert_eq!(again.list("to").unwrap(), ["0", "1", "2", "3", "more"]);
}

/// Calls fail now and then; what is acknowledged is there, and what is not can be tried again.
#[test]
fn failing_calls_lose_nothing_that_was_acknowledged() {
    let (mut refused, mut done) = (0, 0);
    for seed in 0..60 {
        let bucket = bucket();
        let faults = Faults { failing: 30, waiting: 200, seed, ..Faults::default() };
        let rig = mount_with(&bucket, SMALL, options(), faults, 3);
        let mut expected = Expected::new();
        for round in 0..12u64 {
            let path = format!("f{}", round % 4);
            let bytes = pattern(seed * 100 + round, (round as usize * 397) % 3000);
            expected.entry(path.clone()).or_insert_with(|| vec![None]).push(Some(bytes.clone()));
            // Cut and written in one open, as most programs do it: O_TRUNC may be acknowledged by a fsync in between.
            expected.get_mut(&path).unwrap().push(Some(Vec::new()));
            match rig.write(&path, &bytes) {
                Ok(()) => {
                    expected.insert(path, vec![Some(bytes)]);
                    done += 1;
                }
                Err(_) => {
                    // One of its writes may have failed, and the close then made what came before.
                    let before = bytes.chunks(50).scan(0, |len, chunk| {
                        *len += chunk.len();
                        Some(Some(bytes[..*len].to_vec()))
                    });
                    expected.get_mut(&path).unwrap().extend(before);
                    refused += 1;
                }
            }
        }
        // Uploads are given up in the background.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while rig.fs.memory()[0].0 != 0 {
            assert!(
                std::time::Instant::now() < until,
                "seed {seed}: memory of what failed is not given back"
            );
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        drop(rig);
        check(&mount(&bucket), &expected, &format!("seed {seed}"));
    }
    assert!(refused > 30 && done > 300, "{refused} refused, {done} done");
}

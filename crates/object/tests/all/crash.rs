//! A mount that stops at every call of the store, one after the other. What a mount finds that comes after it: every close that was
//! acknowledged, nothing half-written, and of what was renamed at least one name.

use crate::rig::*;
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

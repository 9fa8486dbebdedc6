//! Files that grow while the store refuses what they consist of: memory is bounded, who writes is told, and nothing is lost when it takes things again.

use crate::rig::*;
use crate::stack;
use fs::{Cred, Error, FileSystem, SetAttr};
use object::store::{Abilities, StoreError};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sim::s3::{Crc, Features, Rates, Server};

fn denied() -> Option<StoreError> {
    Some(StoreError::Denied("no".into()))
}

#[test]
fn who_writes_is_told_that_parts_are_refused() {
    let rig = mount(&bucket());
    let handle = rig.create("f").unwrap();
    let bytes = pattern(1, 100_000);
    rig.fs.store().refuse("part", denied());
    let mut at = 0;
    let refused = loop {
        match rig.write_at(handle, at as u64, &bytes[at..at + 100]) {
            Ok(()) => at += 100,
            Err(e) => break e,
        }
        assert!(at < 50_000, "nobody hears of it");
        std::thread::sleep(std::time::Duration::from_micros(100));
    };
    assert_eq!(refused, Error::AccessDenied);
    let kept = rig.fs.memory()[0].0;
    assert!(kept <= 4096 + 1000, "{kept} bytes");
    for _ in 0..20 {
        assert_eq!(rig.write_at(handle, at as u64, &bytes[at..at + 100]), Err(Error::AccessDenied));
    }
    assert!(rig.fs.memory()[0].0 <= kept, "they keep nothing");
    assert!(rig.bucket.lock().keys().is_empty());
    // The store takes them again: all that was acknowledged is there.
    rig.fs.store().refuse("part", None);
    for (n, chunk) in bytes[at..].chunks(100).enumerate() {
        rig.write_at(handle, (at + n * 100) as u64, chunk).unwrap();
    }
    assert!(rig.bucket.lock().keys().is_empty(), "and nothing is seen before the close");
    rig.close(handle).unwrap();
    assert_eq!(rig.bucket.lock().body("f"), Some(&bytes[..]));
    assert_eq!(rig.fs.memory()[0].0, 0);
}

#[test]
fn a_file_without_a_name_has_a_share_of_the_memory() {
    let rig = mount(&bucket());
    let handle = rig.create("f").unwrap();
    rig.unlink("f").unwrap();
    let bytes = pattern(1, 50);
    let mut kept = 0;
    let full = loop {
        match rig.write_at(handle, kept as u64, &bytes) {
            Ok(()) => kept += bytes.len(),
            Err(e) => break e,
        }
        assert!(kept < 50_000, "it grows without bound");
    };
    assert_eq!(full, Error::NoSpace);
    assert!((500..=1024).contains(&kept), "{kept} bytes");
    assert_eq!(rig.read_at(handle, 50, 50).unwrap(), bytes);
    // Others go on.
    rig.write("g", &pattern(2, 20_000)).unwrap();
    rig.close(handle).unwrap();
    assert_eq!(rig.fs.memory()[0].0, 0);
    assert_eq!(rig.list("").unwrap(), ["g"]);
}

/// The end of a file is less than a part must have. What is written behind it after a failed fsync makes another part of it.
#[test]
fn a_file_grows_after_an_fsync_that_failed() {
    for old in [0, 300, 1000, 5000] {
        let rig = mount(&bucket());
        let mut expected = pattern(1, old);
        rig.write("f", &expected).unwrap();
        let handle = rig.open("f").unwrap();
        for call in ["complete", "part", "part_copy", "put"] {
            rig.fs.store().refuse(call, denied());
        }
        let mut failed = 0;
        for round in 0..6 {
            let more = pattern(round, 100 + 9 * round as usize);
            if rig.write_at(handle, expected.len() as u64, &more).is_ok() {
                expected.extend(&more);
            }
            failed += u64::from(rig.run(rig.fs.fsync(handle, false)).is_err());
            if round == 2 {
                // Parts arrive from now on; nothing is completed still.
                rig.fs.store().refuse("part", None);
                rig.fs.store().refuse("part_copy", None);
            }
        }
        assert!(failed >= 3, "{failed} failed");
        rig.fs.store().refuse("complete", None);
        rig.fs.store().refuse("put", None);
        rig.close(handle).unwrap_or_else(|e| panic!("{old} bytes: {e}"));
        assert!(rig.read("f").unwrap() == expected, "{old} bytes");
        let [(used, _), _] = rig.fs.memory();
        assert_eq!((used, rig.bucket.lock().unfinished()), (0, 0), "{old} bytes");
    }
}

/// As the test before, over HTTP, with the parts of S3.
#[test]
fn a_file_grows_after_an_fsync_that_failed_in_s3() {
    let server =
        Server::start(Features { part_min: 5 << 20, ..Features::ALL }, sim::s3::Faults::none()).unwrap();
    let paths = stack::mount(&server);
    let bytes = pattern(1, 20 << 20);
    let handle = paths.create("f").unwrap();
    let mut at = 0;
    let mut grow = |to: usize| {
        for chunk in bytes[at..to].chunks(256 << 10) {
            paths.write_at(handle, at as u64, chunk).unwrap();
            at += chunk.len();
        }
    };
    server.look(|bucket| bucket.refuse("POST", "uploadId", 403, "AccessDenied"));
    for to in [12 << 20, (13 << 20) + 17, 19 << 20] {
        grow(to);
        assert_eq!(paths.run(paths.fs.fsync(handle, false)), Err(Error::AccessDenied));
    }
    grow(20 << 20);
    server.look(|bucket| bucket.allow());
    paths.close(handle).unwrap();
    assert!(server.look(|bucket| *bucket.objects()["f"].body == bytes && bucket.uploads() == 0));
}

/// Random writes, most of them at the end, with fsyncs of which many fail: the one that succeeds makes what was acknowledged.
#[test]
fn random_changes_between_failing_fsyncs() {
    let (mut failed, mut done) = (0, 0);
    for seed in 0..60 {
        let mut random = StdRng::seed_from_u64(seed);
        let part_min = [1, 64, 100][seed as usize % 3];
        let part_copy = seed % 4 != 3;
        // What cannot be copied in parts is copied at once.
        let single_max = if part_copy { SMALL.single_max } else { 1 << 20 };
        let abilities = Abilities { part_min, part_copy, single_max, ..SMALL };
        let faults = Faults { failing: 60, waiting: 100, seed, ..Faults::default() };
        let bucket = bucket();
        let rig = mount_with(&bucket, abilities, options(), faults, 3);
        let Some(handle) = (0..50).find_map(|_| rig.create("f").ok()) else { panic!("seed {seed}") };
        let mut expected = Vec::new();
        for step in 0..60 {
            let at = match random.random_range(0..8) {
                0 => random.random_range(0..=expected.len()),
                _ => expected.len(),
            };
            let more = pattern(step, random.random_range(1..200));
            // A write that fails has changed nothing.
            if rig.write_at(handle, at as u64, &more).is_ok() {
                expected.resize(expected.len().max(at + more.len()), 0);
                expected[at..at + more.len()].copy_from_slice(&more);
            }
            if random.random_range(0..4) == 0 {
                match rig.run(rig.fs.fsync(handle, false)) {
                    Ok(()) => {
                        done += 1;
                        assert!(bucket.lock().body("f") == Some(&expected[..]), "seed {seed}, step {step}");
                    }
                    Err(_) => failed += 1,
                }
            }
        }
        rig.fs.store().set_failing(0);
        // Parts that are on their way in the background may have been chosen to fail before.
        rig.fs.store().wait_until_quiet();
        rig.close(handle).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert!(bucket.lock().body("f") == Some(&expected[..]), "seed {seed}");
        assert_eq!(rig.fs.memory()[0].0, 0, "seed {seed}");
    }
    assert!(failed > 50 && done > 200, "{failed} failed, {done} done");
}

/// That nothing is there is believed when it was asked for once more.
#[test]
fn a_file_is_not_given_up_for_one_answer() {
    for (old, more, call) in [
        (0, 500, "complete"),
        (0, 500, "part"),
        (20, 10, "put"),
        (5000, 500, "part_copy"),
        (5000, 9, "complete"),
    ] {
        let rig = mount(&bucket());
        let bytes = pattern(1, old + more);
        rig.write("f", &bytes[..old]).unwrap();
        let handle = rig.open("f").unwrap();
        rig.fs.store().refuse(call, Some(StoreError::NotFound));
        rig.write_at(handle, old as u64, &bytes[old..]).unwrap();
        let made = rig.run(rig.fs.fsync(handle, false));
        assert!(matches!(made, Err(Error::Remote { errno: libc::EIO, .. })), "{call}: {made:?}");
        rig.fs.store().refuse(call, None);
        rig.close(handle).unwrap_or_else(|e| panic!("{call}: {e}"));
        assert!(rig.read("f").unwrap() == bytes, "{call}");
    }
}

/// The store makes the object, and nobody hears of it: the file goes on from that object.
#[test]
fn an_fsync_whose_answer_is_lost_is_followed_by_another() {
    for (old, more, call) in
        [(0, 20, "put"), (20, 10, "put"), (0, 500, "complete"), (0, 512, "complete"), (5000, 500, "complete")]
    {
        for again in [0, 10, 1000] {
            let what = format!("{call} after {old} and {more} bytes, then {again}");
            let rig = mount(&bucket());
            let bytes = pattern(1, old + more + again);
            rig.write("f", &bytes[..old]).unwrap();
            let handle = rig.open("f").unwrap();
            let mut at = old;
            let mut grow = |n: usize| {
                for chunk in bytes[at..at + n].chunks(50) {
                    rig.write_at(handle, at as u64, chunk).unwrap();
                    at += chunk.len();
                }
            };
            grow(more);
            rig.fs.store().answer_late(call, None);
            let made = rig.run(rig.fs.fsync(handle, false));
            assert!(matches!(made, Err(Error::Remote { errno: libc::EIO, .. })), "{what}: {made:?}");
            // What is open is not taken for replaced by somebody else.
            assert_eq!(rig.find("f").unwrap().size, (old + more) as u64, "{what}");
            if old > 0 {
                assert!(rig.read_at(handle, 5, 10).unwrap() == bytes[5..15], "{what}");
            }
            grow(again);
            assert_eq!(rig.run(rig.fs.fsync(handle, false)), Ok(()), "{what}");
            assert!(rig.bucket.lock().body("f") == Some(&bytes[..]), "{what}");
            let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
            let ino = rig.find("f").unwrap().ino;
            rig.run(rig.fs.setattr(&Cred::root(), ino, set)).unwrap();
            rig.close(handle).unwrap();
            assert!(rig.read("f").unwrap() == bytes, "{what}");
            assert_eq!(mount(&rig.bucket).find("f").unwrap().perm, 0o600, "{what}");
            let [(used, _), _] = rig.fs.memory();
            assert_eq!((used, rig.bucket.lock().unfinished()), (0, 0), "{what}");
        }
    }
}

/// As the test before; but what the store has made is replaced by somebody before it is asked again.
#[test]
fn what_others_make_of_an_object_whose_answer_was_lost_stays() {
    for (len, call) in [(20, "put"), (500, "complete")] {
        let bucket = bucket();
        let (here, there) = (mount(&bucket), mount(&bucket));
        let handle = here.create("f").unwrap();
        here.write_at(handle, 0, &pattern(1, len)).unwrap();
        here.fs.store().answer_late(call, None);
        assert!(here.run(here.fs.fsync(handle, false)).is_err());
        there.write("f", &pattern(2, len)).unwrap();
        assert_eq!(here.run(here.fs.fsync(handle, false)), Err(Error::Stale), "{call}");
        assert_eq!(here.close(handle), Err(Error::Stale), "{call}");
        assert!(here.read("f").unwrap() == pattern(2, len), "{call}");
    }
}

/// As the first of them, over HTTP, with a network that stays away.
#[test]
fn an_fsync_whose_answer_is_lost_in_s3() {
    let all = Features { part_min: 1, ..Features::ALL };
    let kinds = [
        all,
        Features { md5_etags: false, checksums: &[Crc::CRC64NVME], ..all },
        Features { part_min: 1, part_copy: true, conditional: true, ..Features::FEW },
    ];
    let run = |features| {
        let server = Server::start(features, sim::s3::Faults::none()).unwrap();
        let paths = stack::mount_hasty(&server);
        // The large one has left but for its completion.
        for len in [100, 6 << 14] {
            let bytes = pattern(1, len + 100);
            let path = format!("f{len}");
            let handle = paths.create(&path).unwrap();
            for (n, chunk) in bytes[..len].chunks(4096).enumerate() {
                paths.write_at(handle, n as u64 * 4096, chunk).unwrap();
            }
            let unheard = Rates { reset_after: 1000, ..Rates::default() };
            while paths.fs.memory()[0].0 > 100 {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            server.set_faults(sim::s3::Faults::new(unheard, 1));
            assert!(paths.run(paths.fs.fsync(handle, false)).is_err(), "{len} bytes");
            server.set_faults(sim::s3::Faults::none());
            paths.write_at(handle, len as u64, &bytes[len..]).unwrap();
            assert_eq!(paths.run(paths.fs.fsync(handle, false)), Ok(()), "{len} bytes");
            paths.close(handle).unwrap();
            assert!(server.look(|bucket| *bucket.objects()[&path].body == bytes), "{len} bytes");
        }
    };
    std::thread::scope(|s| {
        for features in kinds {
            s.spawn(move || run(features));
        }
    });
}

/// The object of a large file is there, and a change of what it says of itself is not.
#[test]
fn attributes_that_could_not_be_sent_are_sent_with_the_next_fsync() {
    let rig = mount(&bucket());
    let bytes = pattern(1, 9000);
    let begin = |path: &str| {
        let handle = rig.create(path).unwrap();
        rig.write_at(handle, 0, &bytes).unwrap();
        let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
        rig.run(rig.fs.setattr(&Cred::root(), rig.find(path).unwrap().ino, set)).unwrap();
        rig.fs.store().refuse("part_copy", denied());
        for _ in 0..2 {
            assert_eq!(rig.run(rig.fs.fsync(handle, false)), Err(Error::AccessDenied));
        }
        assert!(rig.bucket.lock().body(path) == Some(&bytes[..]));
        handle
    };
    let handle = begin("kept");
    assert_eq!(rig.find("kept").unwrap().perm, 0o600);
    rig.fs.store().refuse("part_copy", None);
    assert_eq!(rig.run(rig.fs.fsync(handle, false)), Ok(()));
    assert_eq!(mount(&rig.bucket).find("kept").unwrap().perm, 0o600);
    rig.close(handle).unwrap();
    rig.unlink("kept").unwrap();
    // It is in the store, so it is removed there.
    let handle = begin("removed");
    rig.unlink("removed").unwrap();
    assert!(rig.bucket.lock().keys().is_empty());
    rig.close(handle).unwrap();
    let [(used, _), _] = rig.fs.memory();
    assert_eq!((used, rig.bucket.lock().unfinished()), (0, 0));
}

/// What may be in the store is removed there, although nobody has heard of it.
#[test]
fn a_file_whose_making_was_not_heard_of_is_removed() {
    for (len, call) in [(20, "put"), (500, "complete")] {
        let rig = mount(&bucket());
        let handle = rig.create("f").unwrap();
        rig.write_at(handle, 0, &pattern(1, len)).unwrap();
        rig.fs.store().answer_late(call, None);
        assert!(rig.run(rig.fs.fsync(handle, false)).is_err());
        rig.unlink("f").unwrap();
        rig.close(handle).unwrap();
        assert!(rig.bucket.lock().keys().is_empty(), "{call}");
    }
}

/// A byte here and there takes more memory than a byte.
#[test]
fn many_small_changes_are_counted_as_what_they_take() {
    let options = object::Options { part_size: 40_000, write_memory: 1 << 20, ..options() };
    let rig = mount_with(&bucket(), SMALL, options, Faults::default(), 3);
    let handle = rig.create("f").unwrap();
    let count = 4000;
    for n in 0..count {
        if n == 1000 {
            let used = rig.fs.memory()[0].0;
            assert!((80_000..120_000).contains(&used), "{used} bytes");
        }
        rig.write_at(handle, 2 * n, b"x").unwrap();
    }
    let most = rig.fs.memory()[0].1;
    assert!(most < 200_000, "{most} bytes");
    assert!(rig.bucket.lock().body("f").is_some_and(|body| body.len() > 2000), "it is made in between");
    rig.close(handle).unwrap();
    assert_eq!(rig.read("f").unwrap().iter().filter(|byte| **byte == b'x').count(), count as usize);
    assert_eq!(rig.fs.memory()[0].0, 0);
}

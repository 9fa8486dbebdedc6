//! Files that are made by messages and written without waiting.
//!
//! Verifies, over the block engine, in directories that several clients make names in: that what is written to a new file is posted, and that the file is closed; that everybody sees
//! each write when it has returned, by whatever way they come to the file (paths, handles, other names, listings, other doors); that all of it is in order with everything
//! else, in anybody's sync, and there after its client or the manager has ended; that it does not fail on a full volume; and that files that are
//! closed are lent to nobody. Random calls against a model, with files that stay open. Clients that do not keep to the rules: tests/all/new_file_attacks.rs.

use crate::rig::{NEW, Rig, bytes, volume, volume_on_flash, without_power};
use block::Volume;
use fs::client::{BlockingFile, OpenOptions as Open};
use fs::{Blocking, Client, Cred, FileSystem, RenameFlags};
use share::Remote;
use sim::{Model, system_clock};
use std::sync::Arc;

/// Nothing is lent any more, a moment after the last file was closed.
fn is_quiet<F: FileSystem>(rig: &Rig<F>) -> bool {
    rig.calls();
    !rig.doors.lends()
}

#[test]
fn nobody_waits_for_the_data_of_new_files() {
    let rig = Rig::shared(volume(256 << 20));
    rig.beside.mkdir("d", 0o777).unwrap();
    let clients = [rig.client(), rig.client()];
    let n = 3000;
    let len = |i: u32| if i.is_multiple_of(100) { 200_000 } else { 1 + i as usize * 37 % 9000 };
    for i in 0..n {
        let file = clients[i as usize % 2].open(format!("d/f{i}"), NEW).unwrap();
        let data = bytes(i, len(i));
        let (first, rest) = data.split_at(data.len() / 3);
        file.write_all_at(first, 0).unwrap();
        file.write_all_at(rest, first.len() as u64).unwrap();
        file.close().unwrap();
    }
    rig.calls();
    let (made, posted) = (rig.count("create"), rig.count("post_write"));
    let waited: u64 = ["write", "promise", "room"].iter().map(|name| rig.count(name)).sum();
    println!("{made} made by messages, {posted} writes posted, {waited} messages beside them");
    assert_eq!((made, rig.count("post_create")), (n as u64, 0));
    assert!(posted >= 2 * n as u64 - 10 && waited < 100, "{posted} posted, {waited} waited for");
    assert!(is_quiet(&rig), "files that are closed are nobody's");
    for i in 0..n {
        let (name, want) = (format!("d/f{i}"), bytes(i, len(i)));
        let who = &clients[(i as usize + 1) % 2];
        assert_eq!(who.stat(&name).unwrap().size, want.len() as u64);
        assert!(who.read(&name).unwrap() == want, "{name}");
        assert!(rig.beside.read(&name).unwrap() == want, "{name}");
    }
}

#[test]
fn who_made_a_file_knows_it() {
    let rig = Rig::shared(volume(256 << 20));
    rig.beside.mkdir("d", 0o777).unwrap();
    let client = rig.client();
    let n = 2000u32;
    for i in 0..n {
        let file = client.open(format!("d/f{i}"), NEW).unwrap();
        file.write_all_at(&bytes(i, 1 + i as usize % 9000), 0).unwrap();
        if i % 50 == 0 {
            // Closed with a name more than it had, with none, with other attributes.
            match i / 50 % 4 {
                0 => drop(client.link(format!("d/f{i}"), format!("d/g{i}")).unwrap()),
                1 => client.unlink(format!("d/f{i}")).unwrap(),
                2 => drop(client.chmod(format!("d/f{i}"), 0o600).unwrap()),
                _ => drop(client.open(format!("d/f{i}"), Open::new().write(true)).unwrap()),
            }
        }
        file.close().unwrap();
    }
    rig.calls();
    let asked = || ["walk", "lookup", "getattr", "open"].map(|name| rig.count(name)).iter().sum::<u64>();
    let before = asked();
    let attrs: Vec<_> = (0..n).map(|i| client.stat(format!("d/f{i}"))).collect();
    for i in (0..n).filter(|i| i % 50 > 0) {
        drop(client.open(format!("d/f{i}"), Open::new().read(true)).unwrap());
    }
    rig.calls();
    println!("{} of {n} files were asked for", asked() - before);
    assert!(asked() - before < 200, "{} messages", asked() - before);
    for (i, attr) in attrs.into_iter().enumerate() {
        assert_eq!(attr, rig.beside.stat(format!("d/f{i}")), "f{i}");
    }
}

#[test]
fn everybody_sees_the_data_at_once() {
    let rig = Rig::shared(volume(128 << 20));
    rig.beside.mkdir("d", 0o777).unwrap();
    let (a, b) = (rig.client(), rig.client());
    for i in 0..3000u32 {
        let (name, data, more) = (format!("d/f{i}"), bytes(i, 10 + i as usize % 7000), bytes(i + 1, 5000));
        let (file, beside) = (a.open(&name, NEW).unwrap(), a.open(format!("d/beside{i}"), NEW).unwrap());
        file.write_all_at(&data, 0).unwrap();
        beside.write_all_at(&more, 0).unwrap();
        match i % 8 {
            0 => assert!(b.read(&name).unwrap() == data),
            1 => assert!(rig.beside.read(&name).unwrap() == data),
            2 => assert_eq!(b.stat(&name).unwrap().size, data.len() as u64),
            3 => {
                let entries = b.read_dir("d").unwrap().map(Result::unwrap);
                let sizes: Vec<u64> = entries
                    .filter(|e| e.name.to_string_lossy() == format!("f{i}"))
                    .map(|e| e.attr.size)
                    .collect();
                assert_eq!(sizes, [data.len() as u64]);
            }
            4 => {
                rig.beside.rename(&name, format!("d/moved{i}"), RenameFlags::empty()).unwrap();
                file.write_all_at(&more, 0).unwrap();
                assert!(b.read(format!("d/moved{i}")).unwrap()[..5000] == more);
            }
            5 => {
                b.link(&name, format!("d/other{i}")).unwrap();
                file.write_all_at(&more, 0).unwrap();
                assert!(rig.beside.read(format!("d/other{i}")).unwrap()[..5000] == more);
            }
            6 => {
                let theirs = b.open(&name, Open::new().read(true).write(true).create(true)).unwrap();
                file.write_all_at(&more, data.len() as u64).unwrap();
                assert!(b.read(&name).unwrap() == [&data[..], &more].concat());
                theirs.write_all_at(b"theirs", 0).unwrap();
                assert!(&a.read(&name).unwrap()[..6] == b"theirs");
            }
            _ => {
                b.unlink(&name).unwrap();
                file.write_all_at(&more, 0).unwrap();
                let attr = file.metadata().unwrap();
                assert_eq!((attr.nlink, attr.size), (0, data.len().max(5000) as u64));
                let mut back = vec![0; 5000];
                assert_eq!(file.read_at(&mut back, 0).unwrap(), 5000);
                assert!(back == more);
            }
        }
        // The lease is over, or not.
        beside.write_all_at(&data, 5000).unwrap();
        assert!(b.read(format!("d/beside{i}")).unwrap() == [&more[..], &data].concat());
    }
    drop((a, b));
    println!("{} posted", rig.count("post_write"));
    assert!(rig.count("post_write") > 6000);
    assert!(is_quiet(&rig));
}

#[test]
fn many_threads_of_many_clients() {
    let rig = Rig::shared(volume(256 << 20));
    rig.beside.mkdir("d", 0o777).unwrap();
    std::thread::scope(|s| {
        for who in 0..3 {
            let client = Arc::new(rig.client());
            for thread in 0..4u32 {
                let (client, rig) = (client.clone(), &rig);
                s.spawn(move || {
                    for i in 0..300u32 {
                        let (name, of) = (format!("d/{who}-{thread}-{i}"), who * 100 + thread * 10 + i);
                        let data = bytes(of, 1 + (of as usize * 7919) % 150_000);
                        let file = client.open(&name, NEW).unwrap();
                        data.chunks(50_000).enumerate().for_each(|(n, part)| {
                            file.write_all_at(part, n as u64 * 50_000).unwrap();
                        });
                        if i % 3 > 0 {
                            file.close().unwrap();
                        }
                        // Often while its next file is written: that ends the lease.
                        assert!(rig.beside.read(&name).unwrap() == data, "{name}");
                        if i % 4 > 0 {
                            client.unlink(&name).unwrap();
                        }
                    }
                });
            }
        }
    });
    println!("{} posted, {} written by messages", rig.count("post_write"), rig.count("write"));
    assert!(rig.count("post_write") > 1000);
    assert_eq!(rig.beside.read_dir("d").unwrap().count(), 3 * 4 * 75);
    assert!(is_quiet(&rig));
}

#[test]
fn it_outlives_its_client_and_its_manager() {
    let mut rig = Rig::shared(volume(128 << 20));
    rig.beside.mkdir("d", 0o777).unwrap();
    for round in 0..60 {
        let client = rig.client();
        let files: Vec<_> = (0..50).map(|i| client.open(format!("d/{round}-{i}"), NEW).unwrap()).collect();
        let write = |what: &[u8], at| files.iter().for_each(|file| file.write_all_at(what, at).unwrap());
        write(b"before", 0);
        if round % 3 == 0 {
            // The manager goes, and another one comes.
            rig.serve();
            write(b"after", 6);
        } else {
            // As it is when a process ends: nobody closes anything.
            std::mem::forget(files);
            drop(client);
        }
        let want: &[u8] = if round % 3 == 0 { b"beforeafter" } else { b"before" };
        for i in 0..50 {
            assert_eq!(rig.beside.read(format!("d/{round}-{i}")).unwrap(), want, "{round} {i}");
        }
    }
    assert!(is_quiet(&rig), "leases of clients that are gone");
}

#[test]
fn none_fails_on_a_full_volume() {
    let rig = Rig::shared(volume(40 << 20));
    rig.beside.mkdir("d", 0o777).unwrap();
    let client = rig.client();
    let file = client.open("d/f", NEW).unwrap();
    file.write_all_at(b"begun", 0).unwrap();
    // All that promises leave.
    let fill = rig.beside.open("fill", NEW).unwrap();
    let mut at = 0;
    for size in [1 << 20, 4096] {
        while fill.write_all_at(&vec![1; size], at).is_ok() {
            at += size as u64;
        }
    }
    let (before, posted) = (rig.count("post_write"), || rig.count("post_write"));
    let mut size = 0;
    for page in 0..2000u64 {
        if file.write_all_at(&[page as u8; 4096], page * 4096).is_err() {
            break;
        }
        size = (page + 1) * 4096;
    }
    let at_once = posted() - before;
    println!("{size} bytes were written, by {at_once} posted writes");
    assert!(at_once >= 50, "what room there was is there");
    let all = rig.beside.read("d/f").unwrap();
    assert_eq!(all.len() as u64, size);
    assert!(all.chunks(4096).enumerate().all(|(n, page)| page.iter().all(|&b| b == n as u8)));
    rig.beside.sync().unwrap();
}

#[test]
fn it_is_in_the_sync_of_anybody() {
    let (flash, volume) = volume_on_flash(64 << 20);
    let rig = Rig::shared(volume);
    rig.beside.mkdir("d", 0o777).unwrap();
    let (a, b) = (rig.client(), rig.client());
    let other = b.open("other", NEW).unwrap();
    for round in 0..16u32 {
        let files: Vec<_> = (0..20).map(|i| a.open(format!("d/{round}-{i}"), NEW).unwrap()).collect();
        for (i, file) in files.iter().enumerate() {
            file.write_all_at(&bytes(round + i as u32, 300 * i), 0).unwrap();
        }
        match round % 4 {
            0 => other.fsync().unwrap(),
            1 => rig.beside.sync().unwrap(),
            2 => b.sync().unwrap(),
            _ => files[19].fsync().unwrap(),
        }
        let after = without_power(&flash);
        for i in 0..20 {
            let want = bytes(round + i as u32, 300 * i);
            assert!(after.read(format!("d/{round}-{i}")).unwrap() == want, "round {round}, file {i}");
        }
    }
}

/// The same calls of the model and of two clients and a door beside them, with files that stay open.
struct Both {
    rig: Rig<Volume>,
    clients: [Blocking<Remote>; 2],
    model: Blocking<Model>,
    open: Vec<(String, Opened, BlockingFile<Model>)>,
}

enum Opened {
    Client(BlockingFile<Remote>),
    Beside(BlockingFile<fs::Watched<Volume>>),
}

/// Does the same with whichever it is.
macro_rules! with {
    ($opened:expr, $file:ident => $what:expr) => {
        match $opened {
            Opened::Client($file) => $what,
            Opened::Beside($file) => $what,
        }
    };
}

impl Both {
    fn step(&mut self, (kind, who, name, n): (u64, u64, String, u64), at: &str) {
        let Both { rig, clients, model, open } = self;
        let errno = |e: fs::Error| e.errno();
        let how = Open::new().read(true).write(true).create(true);
        let how = if n % 3 > 0 { how.create_new(true) } else { how };
        // By one of the clients or through the other door.
        macro_rules! both {
            ($fs:ident => $what:expr) => {{
                let want = {
                    let $fs = &*model;
                    $what
                };
                let got = match who {
                    0..2 => {
                        let $fs = &clients[who as usize];
                        $what
                    }
                    _ => {
                        let $fs = &rig.beside;
                        $what
                    }
                };
                assert_eq!(got, want, "{at}: {kind} {name} {n} by {who}");
            }};
        }
        match kind {
            0..30 => {
                let want = model.open(&name, how).map_err(errno);
                let got = match who {
                    0..2 => clients[who as usize].open(&name, how).map(Opened::Client),
                    _ => rig.beside.open(&name, how).map(Opened::Beside),
                };
                match (got.map_err(errno), want) {
                    (Ok(file), Ok(twin)) => open.push((name, file, twin)),
                    (got, want) => assert_eq!(got.map(drop), want.map(drop), "{at}: {name}"),
                }
            }
            30..60 if !open.is_empty() => {
                let of = (n as usize * 31 + kind as usize) % open.len();
                let (name, file, twin) = &open[of];
                let (offset, data) = ((n * 7919) % 40_000, vec![n as u8 | 1; (n * n) as usize % 70_000]);
                let want = twin.write_at(&data, offset).map_err(errno);
                let got = with!(file, file => file.write_at(&data, offset).map_err(errno));
                assert_eq!(got, want, "{at}: write to {name}");
                // Who looks at once would see a write that is on its way.
                if n % 3 == 0 {
                    let want = model.read(name).map_err(errno);
                    let got = if who < 2 { rig.beside.read(name) } else { clients[0].read(name) };
                    assert!(
                        got.map_err(errno) == want,
                        "{at}: {name} after a write of {} at {offset}",
                        data.len()
                    );
                }
            }
            60..66 if !open.is_empty() => {
                let (name, file, twin) = &open[n as usize % open.len()];
                let mut bytes = [vec![0; 30_000], vec![0; 30_000]];
                let offset = n * 13 % 40_000;
                let want = twin.read_at(&mut bytes[0], offset).map_err(errno);
                let got = with!(file, file => file.read_at(&mut bytes[1], offset).map_err(errno));
                assert_eq!(got, want, "{at}: read of {name}");
                assert!(bytes[0] == bytes[1], "{at}: {name} holds something else");
                let size = with!(file, file => file.metadata().map(|attr| (attr.size, attr.nlink)));
                let want = twin.metadata().map(|attr| (attr.size, attr.nlink));
                assert_eq!(size.map_err(errno), want.map_err(errno), "{at}: attributes of {name}");
            }
            66..80 if open.len() > 6 => {
                let (.., file, twin) = open.swap_remove(n as usize % open.len());
                assert_eq!(with!(file, file => file.close()).is_ok(), twin.close().is_ok());
            }
            80..86 => both!(fs => fs.read(&name).map_err(errno)),
            86..90 => both!(fs => fs.stat(&name).map(|attr| (attr.size, attr.nlink)).map_err(errno)),
            90..93 => both!(fs => fs.unlink(&name).map_err(errno)),
            93..95 => {
                let other = format!("d/{}", n % 40);
                both!(fs => fs.rename(&name, &other, RenameFlags::empty()).map_err(errno))
            }
            95 => both!(fs => fs.truncate(&name, n).map(|attr| attr.size).map_err(errno)),
            96 => both!(fs => fs.sync().map_err(errno)),
            _ => {}
        }
    }
}

#[test]
fn the_same_answers_as_without_leases() {
    let seeds: u64 = std::env::var("FREEHOLD_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(16);
    let mut posted = 0;
    for seed in 0..seeds {
        let rig = Rig::shared(volume(128 << 20));
        let clients = [rig.client(), rig.client()];
        let model = Client::new(Arc::new(Model::new(system_clock())), Cred::of_process()).blocking();
        model.mkdir("d", 0o777).unwrap();
        rig.beside.mkdir("d", 0o777).unwrap();
        let mut both = Both { rig, clients, model, open: Vec::new() };
        let mut random = 0x5eed + seed;
        let mut below = |n: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % n
        };
        for call in 0..3000 {
            // One of the clients does most of it.
            let who = [0, 0, 0, 0, 0, 0, 0, 1, 1, 2][below(10) as usize];
            let what = (below(97), who, format!("d/{}", below(40)), below(6000));
            both.step(what, &format!("seed {seed}, call {call}"));
        }
        posted += both.rig.count("post_write");
    }
    println!("{posted} writes were posted");
    assert!(posted > 100 * seeds, "{posted}");
}

//! Names by which other doors find files that a session has open (`fs::passes`).

use crate::rig::between::Gate;
use crate::rig::*;
use fs::watched::{Change, Told, Watcher};
use fs::{Cred, Error, FileSystem, Ino, OpenFlags};
use parking_lot::Mutex;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// A door that notes the names it is told of.
#[derive(Default)]
struct Names(Mutex<Vec<(Ino, Vec<u8>)>>);

impl Watcher for Names {
    fn changed(&self, change: &Change<'_>) -> Option<Told> {
        if let Change::Name { parent, name } = *change {
            self.0.lock().push((parent, name.to_vec()));
        }
        None
    }
}

#[test]
fn a_file_without_its_name_is_found_by_its_pass() {
    let rig = Rig::new(volume(64 << 20));
    let told = Arc::new(Names::default());
    rig.doors.watch(told.clone());
    let (client, other) = (rig.client(), rig.client());
    let remote = client.client().fs().clone();
    let pass = |file: &fs::File<share::Remote>| remote.block_on(remote.pass(file.handle()));
    client.mkdir("d", 0o755).unwrap();
    let dir = client.stat("d").unwrap().ino;
    let file = client.open("d/f", NEW).unwrap();
    file.write_all_at(b"here", 0).unwrap();
    client.unlink("d/f").unwrap();

    let ino = file.ino();
    let name = pass(&file).unwrap();
    assert_eq!(pass(&file).unwrap(), name, "one for each open file");
    let doors = rig.doors.clone();
    let find = |dir: Ino, name: &[u8]| doors.block_on(doors.lookup(&Cred::root(), dir, name));
    for dir in [Ino::ROOT, dir, dir] {
        let attr = find(dir, &name).unwrap();
        assert_eq!((attr.ino, attr.size, attr.nlink), (ino, 4, 0));
    }
    let handle = doors.block_on(doors.open(&Cred::root(), ino, OpenFlags::READ)).unwrap();
    assert_eq!(client.read_dir("d").unwrap().count() + rig.beside.read_dir("d").unwrap().count(), 0);
    // Each client has a handle of its own, and nobody that of another.
    assert!(matches!(
        other.client().fs().block_on(other.client().fs().pass(file.handle())),
        Err(Error::BadHandle)
    ));
    let mut wrong = name.clone();
    *wrong.last_mut().unwrap() ^= 1;
    assert!(matches!(find(Ino::ROOT, &wrong), Err(Error::NotFound)));

    let known = told.0.lock().len();
    file.close().unwrap();
    // A close is posted; another call of the client comes after it.
    client.stat("d").unwrap();
    remote.block_on(remote.ping()).unwrap();
    assert!(matches!(find(Ino::ROOT, &name), Err(Error::NotFound)));
    let mut ended = told.0.lock().split_off(known);
    ended.sort();
    let mut want = vec![(Ino::ROOT, name.clone()), (dir, name.clone())];
    want.sort();
    assert_eq!(ended, want, "who may know the name is told that it is gone");
    // Who has opened it has it open.
    let mut bytes = [0; 10];
    assert_eq!(doors.block_on(doors.read(handle, 0, &mut bytes)).unwrap(), 4);
    doors.block_on(doors.release(handle)).unwrap();
    assert!(matches!(doors.block_on(doors.getattr(ino, None)), Err(Error::Stale)), "and with them it goes");
}

/// A client that dies closes nothing itself.
#[test]
fn passes_end_with_their_session() {
    let mut rig = Rig::new(volume(64 << 20));
    let client = rig.client();
    let file = client.open("f", NEW).unwrap();
    let remote = client.client().fs().clone();
    let name = remote.block_on(remote.pass(file.handle())).unwrap();
    let doors = rig.doors.clone();
    let found = || doors.block_on(doors.lookup(&Cred::root(), Ino::ROOT, &name)).is_ok();
    assert!(found());
    drop(rig.server.take());
    assert!(!found());
    std::mem::forget(file);
}

/// A door that takes in a change of a name when it is let, like a kernel that is busy with that name.
struct Busy(Arc<Gate>);

impl Watcher for Busy {
    fn changed(&self, change: &Change<'_>) -> Option<Told> {
        let Change::Name { .. } = change else { return None };
        let gate = self.0.clone();
        Some(Box::pin(async move { gate.passes().await }))
    }
}

/// What a kernel looks up may be what its session has just posted, or come behind that: a close that waited for the kernel would wait for itself.
#[test]
fn a_close_waits_for_no_kernel() {
    let rig = Rig::new(volume(64 << 20));
    let (client, open) = (rig.client(), Arc::new(Gate::default()));
    let file = client.open("f", NEW).unwrap();
    let remote = client.client().fs().clone();
    let name = remote.block_on(remote.pass(file.handle())).unwrap();
    assert!(rig.doors.block_on(rig.doors.lookup(&Cred::root(), Ino::ROOT, &name)).is_ok());
    rig.doors.door().watch(Arc::new(Busy(open.clone())));
    // And everything that comes behind it.
    let (closes, closed) = mpsc::channel();
    let closing = std::thread::spawn({
        let remote = remote.clone();
        move || {
            file.close().unwrap();
            remote.block_on(remote.ping()).unwrap();
            let _ = closes.send(());
        }
    });
    let answered = closed.recv_timeout(Duration::from_secs(10));
    open.opens();
    closing.join().unwrap();
    assert!(answered.is_ok(), "it waits for the kernel");
    let found = rig.doors.block_on(rig.doors.lookup(&Cred::root(), Ino::ROOT, &name));
    assert!(matches!(found, Err(Error::NotFound)));
}

/// Whoever has a pass may look it up wherever he says: each directory in which that was done is remembered until the close, and told then.
#[test]
fn a_pass_is_looked_up_in_few_directories() {
    let rig = Rig::new(volume(64 << 20));
    let told = Arc::new(Names::default());
    rig.doors.watch(told.clone());
    let client = rig.client();
    let file = client.open("f", NEW).unwrap();
    let remote = client.client().fs().clone();
    let name = remote.block_on(remote.pass(file.handle())).unwrap();
    let find = |dir: Ino| rig.doors.block_on(rig.doors.lookup(&Cred::root(), dir, &name));
    let begun = std::time::Instant::now();
    for ino in 1 << 20..(1 << 20) + 100_000 {
        assert!(find(Ino(ino)).is_err(), "there is no such directory");
    }
    assert_eq!(find(file.ino()), Err(Error::NotDirectory));
    let own = |dir: &str| {
        client.mkdir(dir, 0o700).unwrap();
        client.stat(dir).unwrap().ino
    };
    let other = Cred::user(7, 7, &[]);
    let closed = rig.doors.block_on(rig.doors.lookup(&other, own("closed"), &name));
    assert_eq!(closed, Err(Error::AccessDenied), "it may not be searched");
    let dirs: Vec<Ino> = (0..20).map(|n| own(&format!("d{n}"))).collect();
    let found = dirs.iter().filter(|dir| find(**dir).is_ok()).count();
    assert!(find(dirs[0]).is_ok() && find(dirs[19]) == Err(Error::NotFound));
    told.0.lock().clear();
    file.close().unwrap();
    remote.block_on(remote.ping()).unwrap();
    assert_eq!((told.0.lock().len(), found), (16, 16));
    assert!(begun.elapsed() < Duration::from_secs(20));
}

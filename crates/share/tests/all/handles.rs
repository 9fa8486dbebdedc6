//! Several handles of one file, of one client, which writes to it without waiting.
//!
//! Verifies that the length which each of them says is that of the file, whichever of them it was written by, and that nothing is lost when one of them is
//! closed, be it the one that the file was made or lent with, while another one is written to.

use crate::rig::{Random, Rig, volume};
use fs::{Cred, FileSystem, Handle, Ino, OpenFlags};
use share::Remote;

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// A file, and what it must hold.
struct Trial<'a> {
    client: &'a Remote,
    ino: Ino,
    handles: Vec<Handle>,
    want: Vec<u8>,
}

impl Trial<'_> {
    fn open(&mut self) {
        let opened = self.client.block_on(self.client.open(&Cred::root(), self.ino, RW));
        self.handles.push(opened.unwrap());
    }

    fn close(&mut self, at: usize) {
        self.client.block_on(self.client.release(self.handles.swap_remove(at))).unwrap();
    }

    fn write(&mut self, handle: Handle, at: usize, data: &[u8]) {
        assert_eq!(self.client.block_on(self.client.write(handle, at as u64, data)).unwrap(), data.len());
        self.want.resize(self.want.len().max(at + data.len()), 0);
        self.want[at..][..data.len()].copy_from_slice(data);
    }

    fn step(&mut self, n: u64, random: &mut Random) {
        let which = random.below(self.handles.len() as u64) as usize;
        let (handle, data) = (self.handles[which], vec![n as u8; 1 + random.below(3000) as usize]);
        match random.below(20) {
            0 => self.open(),
            1 if self.handles.len() > 1 => self.close(which),
            2..5 => self.write(handle, random.below(self.want.len() as u64 + 1) as usize, &data),
            _ => {
                let end = match self.client.size_now(handle) {
                    Some(size) => size,
                    None => self.client.block_on(self.client.getattr(self.ino, Some(handle))).unwrap().size,
                };
                assert_eq!(end, self.want.len() as u64, "at step {n}, of {} handles", self.handles.len());
                self.write(handle, end as usize, &data);
            }
        }
    }
}

#[test]
fn all_handles_have_one_length_and_none_is_the_last_before_it_is() {
    let mut posted = 0;
    for seed in 0..8 {
        let fs = volume(256 << 20);
        // With leases on directories, and on new files alone.
        let rig = if seed % 2 == 0 { Rig::new(fs) } else { Rig::shared(fs) };
        let client = Remote::connect(rig.server.as_ref().unwrap().path()).unwrap();
        let (cred, mut random) = (Cred::root(), Random(seed + 1));
        // It keeps the lease on new files where it is, whatever becomes of the others.
        let made = client.block_on(client.create(&cred, Ino::ROOT, b"kept", 0o644, RW)).unwrap();
        for n in 0..30 {
            let name = format!("f{n}");
            let handle = match n % 3 {
                // One that was there, and is lent when it is written to.
                0 => {
                    rig.beside.write(format!("/{name}"), b"").unwrap();
                    let ino = rig.beside.stat(format!("/{name}")).unwrap().ino;
                    (ino, client.block_on(client.open(&cred, ino, RW)).unwrap())
                }
                _ => {
                    let made = client.create(&cred, Ino::ROOT, name.as_bytes(), 0o644, RW);
                    let (attr, handle) = client.block_on(made).unwrap();
                    (attr.ino, handle)
                }
            };
            let mut trial =
                Trial { client: &client, ino: handle.0, handles: vec![handle.1], want: Vec::new() };
            if n % 3 == 1 {
                trial.open();
                (0..8).for_each(|i| trial.write(trial.handles[1], trial.want.len(), &[i; 100]));
                trial.close(0);
            }
            (0..80).for_each(|n| trial.step(n, &mut random));
            client.block_on(client.write(made.1, n * 10, b"0123456789")).unwrap();
            if n % 2 == 0 {
                assert!(rig.beside.read(format!("/{name}")).unwrap() == trial.want, "{name} of seed {seed}");
            }
            while !trial.handles.is_empty() {
                trial.close(0);
            }
            assert!(rig.beside.read(format!("/{name}")).unwrap() == trial.want, "{name} of seed {seed}");
        }
        client.block_on(client.release(made.1)).unwrap();
        assert_eq!(rig.beside.read("/kept").unwrap(), b"0123456789".repeat(30));
        rig.calls();
        posted += rig.count("post_write");
    }
    println!("{posted} posted");
    assert!(posted > 3000, "{posted}");
}

/// More handles than the manager tells of the lease.
#[test]
fn nothing_is_lost_through_any_of_many() {
    let rig = Rig::shared(volume(64 << 20));
    let client = Remote::connect(rig.server.as_ref().unwrap().path()).unwrap();
    let (attr, made) = client.block_on(client.create(&Cred::root(), Ino::ROOT, b"f", 0o644, RW)).unwrap();
    let mut trial = Trial { client: &client, ino: attr.ino, handles: vec![made], want: Vec::new() };
    (0..299).for_each(|_| trial.open());
    for i in 0..300 * 8 {
        trial.write(trial.handles[i % 300], trial.want.len(), &[i as u8; 11]);
    }
    (0..299).for_each(|_| trial.close(0));
    (0..8).for_each(|i| trial.write(trial.handles[0], trial.want.len(), &[i; 11]));
    assert!(rig.beside.read("/f").unwrap() == trial.want);
    trial.close(0);
    rig.calls();
    let posted = rig.count("post_write");
    println!("{posted} posted");
    assert!(posted > 500 && !rig.doors.lends(), "{posted}");
}

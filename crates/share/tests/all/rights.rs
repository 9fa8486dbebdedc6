//! What clients have open goes on with the next manager, where the permissions alone would not let them open it again; and nobody gets more by that than who had it
//! open had.
//!
//! Only root can become others, which this needs; skipped for them.

use crate::attacker::{Attacker, OPEN, request};
use crate::rig::{NEW, Rig, volume};
use block::Volume;
use format::shared::Request;
use fs::{Cred, FileSystem, Handle, Ino, OpenFlags, block_on};
use share::server::rights::{Right, Rights};
use share::{Remote, Server, server::Options};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const BOTH: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
const LONG: Duration = Duration::from_secs(600);

type What = Box<dyn FnOnce(&Remote) + Send>;

/// Does things as another user.
struct User {
    to: Option<Sender<What>>,
    thread: Option<JoinHandle<()>>,
}

fn become_user(user: u32, groups: &[u32]) {
    // SAFETY: changes groups and user of this thread, which ends; the list is read at once.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()), 0);
        assert_eq!(libc::syscall(libc::SYS_setresgid, user, user, user), 0);
        assert_eq!(libc::syscall(libc::SYS_setresuid, user, user, user), 0);
    }
}

impl User {
    fn new(socket: PathBuf, user: u32, groups: &'static [u32]) -> User {
        let (to, all) = channel::<What>();
        let thread = std::thread::spawn(move || {
            become_user(user, groups);
            let remote = Remote::connect(socket).unwrap();
            all.into_iter().for_each(|what| what(&remote));
        });
        User { to: Some(to), thread: Some(thread) }
    }

    fn run<T: Send + 'static>(&self, what: impl FnOnce(&Remote) -> T + Send + 'static) -> T {
        let (said, done) = channel();
        let what = Box::new(move |remote: &Remote| said.send(what(remote)).unwrap());
        self.to.as_ref().unwrap().send(what).unwrap();
        done.recv().unwrap()
    }

    fn open(&self, ino: Ino, flags: OpenFlags) -> fs::Result<Handle> {
        self.run(move |remote| block_on(remote.open(&Cred::of_process(), ino, flags)))
    }

    fn reads(&self, handle: Handle) -> Result<Vec<u8>, i32> {
        self.run(move |remote| {
            let mut bytes = vec![0; 9];
            let n = block_on(remote.read(handle, 0, &mut bytes)).map_err(|e| e.errno())?;
            bytes.truncate(n);
            Ok(bytes)
        })
    }

    fn writes(&self, handle: Handle) -> Result<usize, i32> {
        self.run(move |remote| block_on(remote.write(handle, 0, b"more")).map_err(|e| e.errno()))
    }
}

impl Drop for User {
    fn drop(&mut self) {
        drop(self.to.take());
        let _ = self.thread.take().unwrap().join();
    }
}

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: only root can become somebody else");
    }
    is_root
}

/// Stops the manager, and starts one that gets what that one has left.
fn restart(rig: &mut Rig<Volume>, rights: &mut Arc<Rights>, within: Duration) -> Vec<Right> {
    drop(rig.server.take());
    let left = rights.left();
    serve(rig, rights, left.clone(), within);
    left
}

fn serve(rig: &mut Rig<Volume>, rights: &mut Arc<Rights>, left: Vec<Right>, within: Duration) {
    drop(rig.server.take());
    *rights = Arc::new(Rights::new(left, within));
    let opening = fs::Opening { volume: [1; 16], number: 7, after: [0; 4] };
    let options = Options { opening, rights: rights.clone(), ..Options::default() }.lending();
    let path = rig.dir.path().join("socket");
    rig.server = Some(Server::start_at_door(rig.doors.door(), &path, options).unwrap());
}

/// A rig with two files that anybody may use.
fn rig() -> (Rig<Volume>, Arc<Rights>, [Ino; 2]) {
    let mut rig = Rig::new(volume(64 << 20));
    let inodes = ["f", "g"].map(|name| {
        let file = rig.beside.open(name, NEW).unwrap();
        file.write_all_at(b"here", 0).unwrap();
        rig.beside.chmod(name, 0o666).unwrap();
        file.ino()
    });
    let mut rights = Arc::default();
    serve(&mut rig, &mut rights, Vec::new(), LONG);
    (rig, rights, inodes)
}

#[test]
fn what_is_open_goes_on() {
    if !is_root() {
        return;
    }
    let (mut rig, mut rights, [f, g]) = rig();
    let user = User::new(rig.dir.path().join("socket"), 4321, &[5, 6]);
    let (both, reads) = (user.open(f, BOTH).unwrap(), user.open(g, OpenFlags::READ).unwrap());
    assert_eq!(user.reads(both), Ok(b"here".into()));
    rig.beside.chmod("f", 0o6010).unwrap();
    rig.beside.chmod("g", 0).unwrap();
    // Several managers come before it is used, and by then its name is gone.
    for _ in 0..3 {
        assert_eq!(restart(&mut rig, &mut rights, LONG).len(), 2);
    }
    rig.beside.unlink("f").unwrap();
    restart(&mut rig, &mut rights, LONG);
    assert_eq!((user.writes(both), user.reads(both)), (Ok(4), Ok(b"more".into())));
    let perm = rig.doors.block_on(rig.doors.getattr(f, None)).unwrap().perm;
    assert_eq!(perm, 0o010, "set-id bits go with what others write");
    assert_eq!((user.reads(reads), user.writes(reads)), (Ok(b"here".into()), Err(libc::EBADF)));
    assert_eq!(user.open(g, OpenFlags::READ), Err(fs::Error::AccessDenied), "an ordinary open");
    // What was closed is not open any more.
    user.run(move |remote| block_on(remote.release(reads)).unwrap());
    serve(&mut rig, &mut rights, Vec::new(), LONG);
    assert_eq!(
        user.reads(both),
        Err(libc::EIO),
        "one that knows nothing, as after a manager that was killed"
    );
}

#[test]
fn nobody_gets_more() {
    if !is_root() {
        return;
    }
    let (mut rig, mut rights, [f, g]) = rig();
    let socket = rig.dir.path().join("socket");
    let user = User::new(socket.clone(), 4321, &[5, 6]);
    let handle = user.open(g, OpenFlags::READ).unwrap();
    let generation = rig.beside.stat("g").unwrap().generation;
    for name in ["f", "g"] {
        rig.beside.chmod(name, 0).unwrap();
    }
    let within = Duration::from_secs(2);
    let left = restart(&mut rig, &mut rights, within);
    let want = Right { cred: (4321, 4321, vec![5, 6]), inode: (g, generation), access: OpenFlags::READ };
    assert_eq!(left, [want]);
    let opens =
        |who: u32, groups: &'static [u32], ino: Ino, generation: u32, flags: OpenFlags, extra: u64| {
            let socket = socket.clone();
            let opens = std::thread::spawn(move || {
                become_user(who, groups);
                let open = Request { flags: flags.bits().into(), mode: 1.into(), ..request(OPEN, ino.0) };
                let about = Request { other: (generation as u64).into(), extra: extra.into(), ..open };
                Attacker::new(&socket).call(&about).errno.get()
            });
            opens.join().unwrap()
        };
    let (read, groups) = (OpenFlags::READ, &[5, 6]);
    let begun = Instant::now();
    assert_eq!(opens(4321, groups, g, generation, read, 3), 0);
    assert_eq!(opens(4322, groups, g, generation, read, 3), libc::EACCES);
    assert_eq!(opens(4321, &[5], g, generation, read, 3), libc::EACCES, "other groups");
    assert_eq!(opens(4321, groups, g, generation, BOTH, 3), libc::EACCES);
    assert_eq!(opens(4321, groups, g, generation, read | OpenFlags::TRUNCATE, 3), libc::EACCES);
    assert_eq!(opens(4321, groups, g, generation + 1, read, 3), libc::ESTALE);
    assert_eq!(opens(4321, groups, g, generation, read, 0), libc::EACCES, "an ordinary open");
    assert_eq!(opens(4321, groups, f, generation, read, 3), libc::EACCES);
    assert!(begun.elapsed() < within, "too slow to tell anything");
    // Who comes too late has the permissions alone, and nothing is kept for him.
    rig.beside.unlink("g").unwrap();
    std::thread::sleep(within + Duration::from_millis(500));
    assert_ne!(opens(4321, groups, g, generation, read, 3), 0);
    assert!(rig.doors.block_on(rig.doors.getattr(g, None)).is_err(), "it is there still");
    assert_eq!(user.reads(handle), Err(libc::EIO));
}

//! Calls on names that their program gives up half-way, in directories under a lease: each of them takes effect or does not, until two answers later at the latest, and what
//! the session says of names from then on is what is there (by the engine itself, of which leases know nothing).

use crate::rig::{NEW, Random, Rig, volume};
use block::Volume;
use fs::{Blocking, Client, Cred, Error, FileSystem, RenameFlags};
use share::Remote;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// What is known of a name.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Known {
    There,
    Missing,
    /// A call that was given up may decide it, still or again.
    Open,
}

const NAMES: usize = 24;

struct Names {
    known: [Known; NAMES],
    /// For messages of what went wrong.
    done: Vec<String>,
}

impl Names {
    /// What is there when nothing is under way.
    fn settle(&mut self, engine: &Blocking<Volume>) {
        self.done.push("settled".into());
        for name in 0..NAMES {
            let there = if engine.stat(path(name)).is_ok() { Known::There } else { Known::Missing };
            self.saw(name, (there, there));
            self.known[name] = there;
        }
    }

    /// A call found it so, and left it so.
    fn saw(&mut self, name: usize, (found, left): (Known, Known)) {
        let known = self.known[name];
        assert!(
            known == found || known == Known::Open,
            "{name} is {known:?}, and was {found:?}: {:#?}",
            self.done
        );
        if known != Known::Open {
            self.known[name] = left;
        }
    }

    fn answered(&mut self, (kind, a, b): (u64, usize, usize), result: Result<(), Error>) {
        use Known::{Missing, There};
        self.done.push(format!("{kind} {a} {b} {result:?}"));
        match (kind, result) {
            (CREATE, Ok(())) => self.saw(a, (Missing, There)),
            (CREATE, Err(Error::Exists)) => self.saw(a, (There, There)),
            (UNLINK, Ok(())) => self.saw(a, (There, Missing)),
            (RENAME, Ok(())) if a != b => {
                self.saw(a, (There, Missing));
                if self.known[b] != Known::Open {
                    self.known[b] = There;
                }
            }
            (STAT | RENAME, Ok(())) => self.saw(a, (There, There)),
            (UNLINK | STAT | RENAME, Err(Error::NotFound)) => self.saw(a, (Missing, Missing)),
            (kind, result) => panic!("{kind}: {result:?}"),
        }
    }
}

const CREATE: u64 = 0;
const UNLINK: u64 = 1;
const STAT: u64 = 2;
const RENAME: u64 = 3;

fn path(name: usize) -> String {
    format!("{}/{name}", if name.is_multiple_of(4) { "q" } else { "p" })
}

async fn call<F: FileSystem>(of: &Blocking<F>, kind: u64, (a, b): (usize, usize)) -> Result<(), Error> {
    let (client, a, b) = (of.client(), path(a), path(b));
    match kind {
        CREATE => client.open(a, NEW).await.map(drop),
        UNLINK => client.unlink(a).await,
        STAT => client.stat(a).await.map(drop),
        _ => client.rename(a, b, RenameFlags::empty()).await,
    }
}

/// Begins a call and gives it up, unless it is over by then.
fn give_up(
    client: &Blocking<Remote>,
    random: &mut Random,
    kind: u64,
    (a, b): (usize, usize),
) -> Option<Result<(), Error>> {
    let mut call = pin!(call(client, kind, (a, b)));
    for _ in 0..1 + random.below(3) {
        if let Poll::Ready(result) = call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return Some(result);
        }
        (0..random.below(300)).for_each(|_| std::hint::spin_loop());
    }
    None
}

/// What one session says in so many calls, and what is there at the end. How many calls were given up, and how many posted.
fn session((rig, engine): (&Rig<Volume>, &Blocking<Volume>), random: &mut Random, calls: u32) -> (u64, u64) {
    let client = rig.client();
    let mut names = Names { known: [Known::Open; NAMES], done: Vec::new() };
    // All names are to be of files that are made here: to move what was found ends the leases.
    (0..NAMES).for_each(|name| drop(rig.beside.unlink(path(name))));
    // For the leases.
    for name in ["p", "q"].iter().flat_map(|dir| (0..40).map(move |n| format!("{dir}/more{n}"))) {
        drop(client.open(&name, NEW).unwrap());
        client.unlink(&name).unwrap();
    }
    names.settle(engine);
    let posted = || rig.count("post_create") + rig.count("post_unlink");
    let (mut gave_up, before) = (0, posted());
    for _ in 0..calls {
        let gives_up = random.below(8) == 0;
        let kind = match random.below(if gives_up { 12 } else { 20 }) {
            0..6 => CREATE,
            6..9 => UNLINK,
            9..12 => RENAME,
            _ => STAT,
        };
        let (a, b) = (random.below(NAMES as u64) as usize, random.below(NAMES as u64) as usize);
        if gives_up {
            match give_up(&client, random, kind, (a, b)) {
                Some(result) => names.answered((kind, a, b), result),
                None => {
                    gave_up += 1;
                    names.done.push(format!("{kind} {a} {b} given up"));
                    names.known[a] = Known::Open;
                    if kind == RENAME {
                        names.known[b] = Known::Open;
                    }
                }
            }
        } else if random.below(8) == 0 {
            // Whoever was answered twice knows that what he gave up before is over.
            (0..2).for_each(|_| client.sync().unwrap());
            names.settle(engine);
        } else {
            names.answered((kind, a, b), fs::block_on(call(&client, kind, (a, b))));
        }
    }
    (0..2).for_each(|_| client.sync().unwrap());
    names.settle(engine);
    (0..NAMES).for_each(|n| names.answered((STAT, n, n), client.stat(path(n)).map(drop)));
    (gave_up, posted() - before)
}

#[test]
fn calls_on_names_that_are_given_up() {
    let volume = volume(128 << 20);
    let (rig, engine) = (Rig::new(volume.clone()), Client::new(volume, Cred::root()).blocking());
    for dir in ["p", "q"] {
        rig.beside.mkdir(dir, 0o755).unwrap();
    }
    let mut random = Random(0x91fe);
    let (mut gave_up, mut posted) = (0, 0);
    let is_much = |gave_up, posted| gave_up > 100 && posted > 1000;
    // How many calls are posted depends on how fast the machine is: on a slow one it takes more sessions.
    for n in 0..600 {
        if n >= 150 && is_much(gave_up, posted) {
            break;
        }
        let one = session((&rig, &engine), &mut random, 40);
        (gave_up, posted) = (gave_up + one.0, posted + one.1);
    }
    println!("{gave_up} given up, {posted} posted");
    assert!(is_much(gave_up, posted), "{gave_up} {posted}");
}

/// Nobody else knows of what such a call has opened.
#[test]
fn what_calls_have_opened_that_are_given_up_is_closed() {
    use fs::OpenFlags as Flags;
    let rig = Rig::shared(volume(64 << 20));
    let client = rig.client();
    let ino = client.open("f", NEW).unwrap().ino();
    let remote = client.client().fs().clone();
    let (me, mut cx) = (Cred::of_process(), Context::from_waker(Waker::noop()));
    let handles = || {
        // Time for what was posted before, and for a look at the counters.
        remote.block_on(remote.ping()).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(30));
        remote.block_on(remote.ping()).unwrap();
        rig.server.as_ref().unwrap().counters().handles
    };
    let (dir, flags) = (fs::Ino::ROOT, Flags::READ | Flags::NOATIME);
    // What is answered at once is the program's.
    let close = |polled: Poll<fs::Result<fs::Handle>>| {
        if let Poll::Ready(opened) = polled {
            remote.block_on(remote.release(opened.unwrap())).unwrap();
        }
    };
    for n in 0..100 {
        let mut open = pin!(remote.open(&me, ino, flags));
        let mut opendir = pin!(remote.opendir(&me, dir));
        let mut tmpfile = pin!(remote.tmpfile(&me, dir, 0o600, Flags::WRITE));
        close(open.as_mut().poll(&mut cx));
        close(opendir.as_mut().poll(&mut cx));
        close(tmpfile.as_mut().poll(&mut cx).map_ok(|(_, handle)| handle));
        if n % 3 == 0 {
            // They are answered before they are given up.
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
    let begun = std::time::Instant::now();
    while handles() != 0 {
        assert!(begun.elapsed().as_secs() < 10, "{} are open still", handles());
    }
}

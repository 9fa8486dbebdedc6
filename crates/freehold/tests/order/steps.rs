//! Steps that leave their number behind in three ways: in a new block, over a block, and in a name. What a step of side b left must
//! not be there without what the same step of side a left, when there is a barrier between them.

use crate::rig;
use block::Volume;
use fs::client::{BlockingFile, OpenOptions as Open};
use fs::descriptor::{fbarrier, fdatabarrier};
use fs::{Blocking, Client, Cred, FileSystem, RenameFlags};
use media::flash::Trace;
use share::Remote;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const PAGE: usize = 4096;
const RW: Open = Open::new().read(true).write(true);

/// Pages that are added, and pages that are overwritten: much and little by turns, two steps each, so that what lies between two barriers fits into a log
/// record at one time and not at another. Not more than one message of a session has.
fn pages(i: u64) -> (usize, usize) {
    if matches!(i % 4, 1 | 2) { (15, 8) } else { (1, 1) }
}

/// Where a step adds.
fn begin(i: u64) -> u64 {
    (1..i).map(|before| (pages(before).0 * PAGE) as u64).sum()
}

fn filled(i: u64, pages: usize) -> Vec<u8> {
    i.to_le_bytes().repeat(pages * PAGE / 8)
}

/// The names of a side: where it adds blocks, where it overwrites one, and the name that is its number.
pub fn name(side: char, what: usize, i: u64) -> String {
    [format!("{side}-new"), format!("{side}-over"), format!("{side}-at-{i}")][what].clone()
}

/// Who makes steps of one side.
pub trait Hand {
    fn step(&mut self, i: u64);
    fn barrier(&self, datasync: bool);
}

pub struct InSession {
    side: char,
    session: Blocking<Remote>,
    new: BlockingFile<Remote>,
    over: BlockingFile<Remote>,
}

impl InSession {
    pub fn new(session: &Blocking<Remote>, side: char) -> InSession {
        let open = |what| session.open(name(side, what, 0), RW).unwrap();
        InSession { side, session: session.clone(), new: open(0), over: open(1) }
    }
}

impl Hand for InSession {
    fn step(&mut self, i: u64) {
        let (added, over) = pages(i);
        self.new.write_all_at(&filled(i, added), begin(i)).unwrap();
        self.over.write_all_at(&filled(i, over), 0).unwrap();
        let at = |i| name(self.side, 2, i);
        self.session.rename(at(i - 1), at(i), RenameFlags::empty()).unwrap();
    }
    fn barrier(&self, datasync: bool) {
        if datasync { self.new.fdatabarrier().unwrap() } else { self.over.fbarrier().unwrap() }
    }
}

pub struct OnMount {
    side: char,
    point: PathBuf,
    new: File,
    over: File,
}

impl OnMount {
    pub fn new(point: &Path, side: char) -> OnMount {
        let open =
            |what| File::options().read(true).write(true).open(point.join(name(side, what, 0))).unwrap();
        OnMount { side, point: point.into(), new: open(0), over: open(1) }
    }
}

impl Hand for OnMount {
    fn step(&mut self, i: u64) {
        let (added, over) = pages(i);
        self.new.write_all_at(&filled(i, added), begin(i)).unwrap();
        self.over.write_all_at(&filled(i, over), 0).unwrap();
        let at = |i| self.point.join(name(self.side, 2, i));
        std::fs::rename(at(i - 1), at(i)).unwrap();
    }
    fn barrier(&self, datasync: bool) {
        if datasync { fdatabarrier(self.new.as_raw_fd()) } else { fbarrier(self.over.as_raw_fd()) }.unwrap();
    }
}

/// Longer than the worker leaves an epoch with a barrier alone, at one of three places of a step: epochs end before, between and behind the sides.
pub fn pause(i: u64, place: u64) {
    if i % 3 == place {
        std::thread::sleep(std::time::Duration::from_millis(15));
    }
}

/// Makes what both sides begin with, durable.
pub fn both_sides(session: &Blocking<Remote>) {
    for side in ['a', 'b'] {
        for what in 0..3 {
            let file = session.open(name(side, what, 0), RW.create(true)).unwrap();
            if what == 1 {
                file.write_all_at(&filled(0, 8), 0).unwrap();
            }
        }
    }
    session.sync().unwrap();
}

/// How far each side has come, in each of the three ways: side a with all of its step, side b with any part of it.
pub fn sides(volume: &Volume) -> ([u64; 3], [u64; 3]) {
    let client = Client::new(Arc::new(volume.clone()), Cred::root()).blocking();
    (side(&client, 'a'), side(&client, 'b'))
}

fn side<F: FileSystem>(client: &Blocking<F>, side: char) -> [u64; 3] {
    let stamps = |what| -> Vec<u64> {
        let bytes = client.read(name(side, what, 0)).unwrap();
        assert_eq!(bytes.len() % PAGE, 0, "a page of {side} was written in part");
        let stamp = |page: &[u8]| {
            let stamp = u64::from_le_bytes(page[..8].try_into().unwrap());
            assert!(page == filled(stamp, 1), "a page of {side} is torn");
            stamp
        };
        bytes.chunks(PAGE).map(stamp).collect()
    };
    let (new, over) = (stamps(0), stamps(1));
    let added = new.last().copied().unwrap_or(0);
    let expected: Vec<u64> = (1..=added).flat_map(|i| vec![i; pages(i).0]).collect();
    assert_eq!(new, expected, "what {side} added is not what was written, as a whole");
    let is_whole = |i: &u64| {
        let behind = (1..=*i).rev().find(|&i| pages(i).1 > 1).unwrap_or(0);
        over.iter().skip(1).all(|&stamp| stamp >= behind)
    };
    let overwritten = match (side, over.first()) {
        (_, None) => 0,
        ('a', Some(&first)) => (0..=first).rev().find(is_whole).unwrap_or(0),
        _ => over.iter().copied().max().unwrap_or(0),
    };
    let prefix = format!("{side}-at-");
    let entries = client.read_dir("/").unwrap();
    let mut at = entries.filter_map(|e| e.unwrap().name.to_str()?.strip_prefix(&prefix)?.parse::<u64>().ok());
    let number = at.next().expect("it has a name");
    assert_eq!(at.next(), None, "it has one name");
    [added, overwritten, number]
}

/// Power failures at `points` moments of a recording, three each: how many left something of side b without what was before it. The seed is that of
/// the rig.
pub fn violations(trace: Trace, points: usize) -> usize {
    let mut random = 7u64;
    let mut next = move |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let events = trace.events().len();
    let every = (events / points).max(1);
    let (mut cursor, mut found, mut furthest) = (trace.cursor(), 0, 0);
    loop {
        if cursor.index() % every == every - 1 || cursor.index() == events {
            for kept in [50, 95, 100] {
                let image = cursor.state().crash_image(|_, _| next(100) < kept);
                let volume = Volume::open(Arc::new(image), rig::options()).unwrap();
                let (a, b) = sides(&volume);
                furthest = furthest.max(b[0]);
                if a.iter().min() < b.iter().max() {
                    found += 1;
                    println!("event {} of {events}, {kept} % kept: a {a:?}, b {b:?}", cursor.index());
                }
                volume.close_blocking().unwrap();
            }
        }
        if cursor.step().is_none() {
            break;
        }
    }
    assert!(
        events > points / 2 && furthest > 10,
        "{events} events, b came to {furthest}: too little was looked at"
    );
    found
}

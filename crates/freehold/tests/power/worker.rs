//! The processes of the test: the server over a medium that is noted, and programs that work in sessions with it. They are this test's
//! executable again, told what to do by the environment.

use super::check::{FILES_OF_PAGES, PAGE, PAGES, content_of_page};
use super::history::{Op, State, content};
use crate::common::Random;
use freehold::{OpenOptions, VolumeOptions};
use fs::RenameFlags;
use fs::client::{Blocking, BlockingFile};
use media::{Logged, UringMedia};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Programs at a time.
pub const WORKERS: usize = 4;
const FILES: usize = 16;
const LEN_MAX: u64 = 96 << 10;
type Session = Blocking<freehold::Remote>;

/// The machine's clock, nanoseconds.
pub fn now() -> u64 {
    media::logged::now()
}

/// What the environment asks this process to be.
pub fn main() {
    let Ok(role) = std::env::var("POWER_ROLE") else { return };
    let at = PathBuf::from(std::env::var("POWER_AT").unwrap());
    let number = |name: &str| std::env::var(name).unwrap().parse::<u64>().unwrap();
    match role.as_str() {
        "serve" => serve(&at),
        "make" => make(&freehold::connect(at.join("socket")).unwrap().blocking()),
        "work" => work(&at, number("POWER_NUMBER") as usize, number("POWER_SEED")),
        role => panic!("{role}"),
    }
}

/// Opens an image, when the last server of it is really gone.
pub fn medium(image: &Path) -> UringMedia {
    freehold::patience::retry(image, || Ok(UringMedia::open(image, Default::default())?)).unwrap()
}

/// Serves until it is killed.
fn serve(at: &Path) {
    let media = medium(&at.join("a.img"));
    let media = Arc::new(Logged::new(media, &at.join("log")).unwrap());
    let options = VolumeOptions {
        cache_bytes: 8 << 20,
        dirty_bytes_max: 1 << 20,
        dirty_age_max: Duration::from_millis(150),
        ..VolumeOptions::default()
    };
    let volume = freehold::Volume::open(media, options).unwrap();
    let _server = share::Server::start(Arc::new(volume), &at.join("socket"), Default::default()).unwrap();
    File::create(at.join("ready")).unwrap();
    // Whoever started this process ends it; should they be gone, it does not stay for ever.
    std::thread::sleep(Duration::from_secs(120));
}

/// The files of a new volume, durable.
fn make(s: &Session) {
    for n in 0..WORKERS {
        s.create_dir_all(format!("/w{n}/d")).unwrap();
    }
    s.create_dir_all("/pages").unwrap();
    for name in FILES_OF_PAGES {
        s.write(format!("/pages/{name}"), content_of_page(0).repeat(PAGES)).unwrap();
    }
    s.sync().unwrap();
}

struct Worker {
    session: Session,
    journal: File,
    number: usize,
    random: Random,
    state: State,
    open: BTreeMap<String, BlockingFile<freehold::Remote>>,
    pages: BlockingFile<freehold::Remote>,
    next_id: u64,
}

fn work(at: &Path, number: usize, seed: u64) {
    let session = freehold::connect(at.join("socket")).unwrap().blocking();
    let text = std::fs::read_to_string(at.join(format!("state{number}"))).unwrap();
    let (state, next_id) = super::check::parse(&text, number);
    let journal = File::create(at.join(format!("journal{number}"))).unwrap();
    let pages = format!("/pages/{}", FILES_OF_PAGES[number]);
    let pages = session.open(pages, OpenOptions::new().read(true).write(true)).unwrap();
    let open = BTreeMap::new();
    let mut w = Worker { session, journal, number, random: Random(seed), state, open, pages, next_id };
    while let Ok(()) = w.step() {
        std::thread::sleep(Duration::from_micros(w.random.below(1500)));
    }
}

impl Worker {
    fn journalled(&mut self, op: Op, call: impl FnOnce(&mut Self) -> fs::Result<()>) -> io::Result<()> {
        self.journal.write_all(format!("begin {} {}\n", now(), op.line()).as_bytes())?;
        call(self)?;
        self.journal.write_all(format!("end {}\n", now()).as_bytes())?;
        op.apply(&mut self.state);
        Ok(())
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn new_name(&mut self) -> String {
        let (n, i) = (self.number, self.random.below(FILES as u64));
        if self.random.below(2) == 0 { format!("w{n}/f{i}") } else { format!("w{n}/d/f{i}") }
    }

    fn opened(&mut self, name: &str) -> fs::Result<&BlockingFile<freehold::Remote>> {
        if !self.open.contains_key(name) {
            let file = self.session.open(format!("/{name}"), OpenOptions::new().read(true).append(true))?;
            self.open.insert(name.into(), file);
        }
        Ok(&self.open[name])
    }

    fn step(&mut self) -> io::Result<()> {
        let dice = self.random.below(100);
        let some = self.random.below(self.state.len().max(1) as u64) as usize;
        match (dice, self.state.keys().nth(some).cloned()) {
            (0..30, _) => {
                for _ in 0..self.random.below(6) {
                    let (page, version) = (self.random.below(PAGES as u64) as usize, self.id());
                    self.journalled(Op::Overwrite { page, version }, |w| {
                        w.pages.write_all_at(&content_of_page(version), (page * PAGE) as u64)
                    })?;
                }
                Ok(())
            }
            (30..36, _) => self.journalled(Op::Sync, |w| match dice {
                30..32 => w.pages.fsync(),
                32..35 => w.pages.fdatasync(),
                _ => w.session.sync(),
            }),
            (36..48, _) => self.journalled(Op::Barrier, |w| match dice % 2 {
                0 => w.pages.fbarrier(),
                _ => w.pages.fdatabarrier(),
            }),
            (48..58, _) | (_, None) if self.state.len() < FILES => {
                let (name, id) = (self.new_name(), self.id());
                if self.state.contains_key(&name) {
                    return Ok(());
                }
                self.journalled(Op::Create { name: name.clone(), id }, |w| {
                    let how = OpenOptions::new().write(true).create_new(true);
                    w.session.open(format!("/{name}"), how).map(drop)
                })
            }
            (58..84, Some(name)) => {
                let was = self.state[&name];
                let most = if self.random.below(3) == 0 { 40 << 10 } else { 900 };
                let grow = 8 + self.random.below(most);
                if was.len + grow > LEN_MAX {
                    return Ok(());
                }
                let bytes = content(was.id, was.len, was.len + grow);
                self.journalled(Op::Append { name: name.clone(), len: was.len + grow }, |w| {
                    let file = w.opened(&name)?;
                    let mut done = 0;
                    while done < bytes.len() {
                        done += file.append(&bytes[done..])?;
                    }
                    Ok(())
                })
            }
            (84..92, Some(from)) => {
                let to = self.new_name();
                if to == from {
                    return Ok(());
                }
                self.journalled(Op::Rename { from: from.clone(), to: to.clone() }, |w| {
                    w.session.rename(format!("/{from}"), format!("/{to}"), RenameFlags::empty())?;
                    w.open.remove(&to);
                    if let Some(file) = w.open.remove(&from) {
                        w.open.insert(to, file);
                    }
                    Ok(())
                })
            }
            (92.., Some(name)) => self.journalled(Op::Unlink { name: name.clone() }, |w| {
                w.open.remove(&name);
                w.session.unlink(format!("/{name}"))
            }),
            _ => Ok(()),
        }
    }
}

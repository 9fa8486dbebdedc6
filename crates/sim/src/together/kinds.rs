//! What is changed and looked at: one kind of state of a file system each, twice, in a directory of its own and in a common one.

use super::exclusion::By;
use super::register::OBJECTS;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::UNIX_EPOCH;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Eight bytes of a file that has those of others beside.
    Word,
    /// Pages of a file, and parts of them, full of one number.
    Pages,
    /// A word of a page that is now and then a hole.
    Hole,
    Size,
    /// Records at the end of a file.
    Tail,
    /// A file that is emptied and written.
    Emptied,
    /// What a name leads to: nothing, a file, a directory, a symlink.
    Name,
    /// A file that another one replaces.
    Replaced,
    /// Two files that exchange their names.
    Exchanged,
    /// A file that goes from name to name.
    Moved,
    /// A directory that does.
    MovedDirectory,
    Symlink,
    Mode,
    Times,
    Attribute,
    /// Names of a file.
    Links,
    /// A directory with one name, another one each time.
    Listing,
    /// A directory with many names.
    Many,
    /// What only one can have.
    Alone(By),
    /// Records that many append.
    Log,
}

const KINDS: [Kind; 26] = [
    Kind::Word,
    Kind::Pages,
    Kind::Hole,
    Kind::Size,
    Kind::Tail,
    Kind::Emptied,
    Kind::Name,
    Kind::Replaced,
    Kind::Exchanged,
    Kind::Moved,
    Kind::MovedDirectory,
    Kind::Symlink,
    Kind::Mode,
    Kind::Times,
    Kind::Attribute,
    Kind::Links,
    Kind::Listing,
    Kind::Many,
    Kind::Alone(By::Flock),
    Kind::Alone(By::Record),
    Kind::Alone(By::NewFile),
    Kind::Alone(By::Directory),
    Kind::Alone(By::Rename),
    Kind::Alone(By::Link),
    Kind::Log,
    Kind::Word,
];
const _: () = assert!(2 * KINDS.len() == OBJECTS);

/// Bytes and place of `Kind::Pages`.
pub(super) const PAGES_AT: u64 = 3000;
pub(super) const PAGES: usize = 10_000;
/// Names of `Kind::Many`.
pub(super) const MANY: u64 = 40;
/// A record of `Kind::Tail`.
pub(super) const RECORD: u64 = 16;

/// One of them.
#[derive(Clone, Copy)]
pub(super) struct Object {
    pub number: usize,
    pub kind: Kind,
}

pub(super) fn object(number: usize) -> Object {
    Object { number, kind: KINDS[number % KINDS.len()] }
}

/// Words for one.
pub(super) fn name(number: usize) -> String {
    format!("object {number} ({:?})", KINDS[number % KINDS.len()])
}

/// Makes what all of them begin with.
pub(super) fn make_all(dir: &Path) -> io::Result<()> {
    let all = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode));
    for object in (0..OBJECTS).map(object) {
        let at = dir.join(object.directory());
        if !at.exists() {
            fs::create_dir(&at)?;
            all(&at, 0o777)?;
        }
        let file = |tag: &str, bytes: &[u8]| {
            let path = dir.join(object.name(tag));
            fs::write(&path, bytes).and_then(|()| all(&path, 0o666))
        };
        let directory = |tag: &str| {
            let path = dir.join(object.name(tag));
            fs::create_dir(&path).and_then(|()| all(&path, 0o777))
        };
        match object.kind {
            Kind::Name => {}
            Kind::Exchanged => {
                file("a", b"a")?;
                file("b", b"b")?;
            }
            Kind::Moved => file("0", b"")?,
            Kind::MovedDirectory => {
                directory("0")?;
                directory("0/in")?;
                file("0/in/file", b"")?;
            }
            Kind::Symlink => symlink("0", dir.join(object.name("")))?,
            Kind::Listing => {
                directory("")?;
                file("/0", b"")?;
            }
            Kind::Many => directory("")?,
            Kind::Word => {
                // One file for all.
                let path = dir.join(object.name(""));
                fs::write(&path, [0; 20_000]).and_then(|()| all(&path, 0o666))?;
            }
            Kind::Mode => {
                file("", b"")?;
                all(&dir.join(object.name("")), 0)?;
            }
            Kind::Times => {
                file("", b"")?;
                fs::File::options().write(true).open(dir.join(object.name("")))?.set_modified(UNIX_EPOCH)?;
            }
            Kind::Pages | Kind::Hole => file("", &[0; PAGES_AT as usize + PAGES])?,
            Kind::Replaced => file("", &[0; 8])?,
            Kind::Alone(by) => {
                file("", &[0; 8])?;
                if by == By::Rename {
                    file("token", b"")?;
                }
            }
            _ => file("", b"")?,
        }
    }
    Ok(())
}

pub(super) fn size_of_state(state: u64) -> u64 {
    state * 7919 % 50_000
}

pub(super) fn links_of_state(state: u64) -> u64 {
    [1, 2, 3, 4, 3, 2][state as usize % 6]
}

/// Names of `Kind::Many` in a state: each step makes or removes the next one.
pub(super) fn many_of_state(state: u64) -> Vec<u64> {
    let steps = |name: u64| (state + MANY - 1 - name) / MANY;
    (0..MANY).filter(|&name| steps(name) % 2 == 1).collect()
}

/// What is found under a name in a state.
pub(super) fn kind_of_state(state: u64) -> u64 {
    [0, 1, 0, 2, 0, 3][state as usize % 6]
}

impl Object {
    /// Whether it is where many others are.
    pub fn is_common(&self) -> bool {
        self.number < KINDS.len()
    }

    fn directory(&self) -> String {
        if self.is_common() { "common".to_owned() } else { format!("own{}", self.number) }
    }

    /// A name, below the directory of all.
    pub fn name(&self, tag: &str) -> String {
        match self.kind {
            Kind::Word => "common/words".to_owned(),
            _ => format!("{}/{:?}{}", self.directory(), self.kind, tag).replace(['(', ')'], ""),
        }
    }

    /// Whether it is what the kernel keeps as pages, and the size that says where they end.
    pub fn is_of_pages(&self) -> bool {
        use Kind::*;
        matches!(self.kind, Word | Pages | Hole | Size | Tail | Emptied)
    }

    /// Where its word is.
    pub fn at(&self) -> u64 {
        self.number as u64 * 264
    }
}

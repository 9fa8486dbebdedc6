//! Ordered durability: fsync and fdatasync that are answered with order alone (BarrierFS, section 6: what becomes of programs that
//! sync for order when they are given just that).
//!
//! An operator names programs, subtrees, or everything. The doors ask here, since they know who calls; the engine sees a barrier instead
//! of a sync. It is off unless it was asked for: a program that was told "durable" and was given order loses, in a power failure, what it did
//! last, though never something in the middle.
//!
//! What stays durable: sync(2) and syncfs(2) as far as they reach a door, and writes to files opened with O_SYNC or O_DSYNC.
//! What cannot be told (the process is not seen, the file has no name, the engine knows no ancestry) is durable, too.
//!
//! A program says its own name (prctl): that is no way around anything, as all it can give away is the durability of its own syncs.
//!
//! Tested here, in `block/tests/ordered.rs` and through each door in `freehold/tests/order.rs`.

use crate::contract::FileSystem;
use crate::cred::Cred;
use crate::error::Result;
use crate::types::Handle;
use format::Ino;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Bytes of a program's name that the kernel keeps (TASK_COMM_LEN without its NUL).
const COMM_MAX: usize = 15;

/// Whose fsync and fdatasync are answered with order. `Default`: nobody's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ordered {
    /// Everybody's.
    pub all: bool,
    /// Those of these programs: by the name that the kernel has of the process, or the file name of its executable.
    pub programs: Vec<OsString>,
    /// Those on files and directories at or below these paths, which begin at the root of the volume and have no symlinks in them.
    pub paths: Vec<PathBuf>,
}

/// What a sync was answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synced {
    /// Everything done before is durable.
    Durable,
    /// Everything done before persists before anything done later.
    Ordered,
}

impl Ordered {
    /// Whether every sync is durable.
    pub fn is_off(&self) -> bool {
        !self.all && self.programs.is_empty() && self.paths.is_empty()
    }

    /// Reads `sqlite3:postgres`.
    ///
    /// # Errors
    /// A sentence that says what is expected.
    pub fn parse_programs(text: &str) -> std::result::Result<Vec<OsString>, String> {
        let all: Vec<OsString> = text.split(':').map(OsString::from).collect();
        let is_name = |name: &OsString| !name.is_empty() && !name.as_bytes().contains(&b'/');
        match all.iter().all(is_name) {
            true => Ok(all),
            false => {
                Err("expected names of programs with colons between them, as in sqlite3:postgres".into())
            }
        }
    }

    /// Reads `/a:/b/c`.
    ///
    /// # Errors
    /// A sentence that says what is expected.
    pub fn parse_paths(text: &str) -> std::result::Result<Vec<PathBuf>, String> {
        let all: Vec<PathBuf> = text.split(':').map(PathBuf::from).collect();
        let is_plain = |path: &PathBuf| {
            path.is_absolute()
                && path.components().all(|c| matches!(c, Component::RootDir | Component::Normal(_)))
        };
        match all.iter().all(is_plain) {
            true => Ok(all),
            false => Err("expected paths that begin at the root of the volume, with colons between them, \
                          as in /mail:/build/cache"
                .into()),
        }
    }

    /// Whether the syncs of this process are answered with order whatever file they are for. `pid` may be that of a thread, and 0 where it is
    /// not known. Costs two looks into /proc where programs are named, else nothing.
    pub fn has_program(&self, pid: i32) -> bool {
        self.all || (!self.programs.is_empty() && pid > 0 && self.names(pid).any(|name| self.is_one(&name)))
    }

    fn names(&self, pid: i32) -> impl Iterator<Item = OsString> {
        let comm = move || {
            let mut text = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
            text.pop_if(|b| *b == b'\n');
            Some(OsStr::from_bytes(&text).to_os_string())
        };
        let executable = move || {
            let path = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
            Some(path.file_name()?.to_os_string())
        };
        std::iter::once_with(comm).chain(std::iter::once_with(executable)).flatten()
    }

    fn is_one(&self, name: &OsStr) -> bool {
        let name = name.as_bytes();
        let cut = |program: &OsString| &program.as_bytes()[..program.len().min(COMM_MAX)] == name;
        self.programs.iter().any(|program| program.as_bytes() == name || cut(program))
    }

    /// Whether syncs of this file are answered with order whoever asks. Decided by where the file is now, by the name that its inode keeps;
    /// costs a walk of each path and of the file's ancestors, in memory.
    pub async fn has_file<F: FileSystem>(&self, fs: &F, ino: Ino) -> bool {
        let cred = Cred { checked: true, ..Cred::root() };
        for path in &self.paths {
            let top = fs.walk(&cred, Ino::ROOT, path.as_os_str().as_bytes()).await;
            if top.is_ok_and(|top| fs.is_within(ino, top.ino)) {
                return true;
            }
        }
        false
    }

    /// Answers an fsync (`datasync`: fdatasync) of the file `ino`, open as `handle`. `program`: what [`Ordered::has_program`] says of who
    /// asks.
    ///
    /// # Errors
    /// Those of [`FileSystem::fsync`] and [`FileSystem::barrier`].
    pub async fn sync<F: FileSystem>(
        &self,
        fs: &F,
        (handle, ino): (Handle, Ino),
        datasync: bool,
        program: bool,
    ) -> Result<Synced> {
        if program || self.has_file(fs, ino).await {
            fs.barrier(handle, datasync).await?;
            return Ok(Synced::Ordered);
        }
        fs.fsync(handle, datasync).await?;
        Ok(Synced::Durable)
    }
}

/// For logs: `all programs`, or `sqlite3, postgres, files below /mail`.
impl fmt::Display for Ordered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.all {
            return f.write_str("all programs");
        }
        let programs = self.programs.iter().map(|p| p.to_string_lossy().into_owned());
        let below = |path: &PathBuf| format!("files below {}", Path::display(path));
        let all: Vec<String> = programs.chain(self.paths.iter().map(below)).collect();
        f.write_str(if all.is_empty() { "nobody" } else { "" })?;
        f.write_str(&all.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(programs: &[&str]) -> Ordered {
        Ordered { programs: programs.iter().map(OsString::from).collect(), ..Ordered::default() }
    }

    #[test]
    fn programs_by_either_name() {
        let pid = std::process::id() as i32;
        let executable = std::env::current_exe().unwrap().file_name().unwrap().to_os_string();
        let named = |program: OsString| Ordered { programs: vec![program], ..Ordered::default() };
        assert!(named(executable).has_program(pid));
        let comm = std::fs::read_to_string("/proc/self/comm").unwrap();
        assert!(of(&["other", comm.trim_end()]).has_program(pid));
        let long = format!("{}-and-more", "x".repeat(COMM_MAX));
        assert!(of(&[&long]).is_one(OsStr::new("xxxxxxxxxxxxxxx")), "the kernel cuts names");
        assert!(!of(&[&long]).is_one(OsStr::new("xxxxxxxxxxxxxx")));
        for pid in [0, -1, i32::MAX] {
            assert!(!of(&["sqlite3"]).has_program(pid), "{pid}");
        }
        assert!(!of(&["no such program"]).has_program(pid) && !Ordered::default().has_program(pid));
        assert!(Ordered { all: true, ..Ordered::default() }.has_program(0));
    }

    #[test]
    fn what_is_said() {
        assert_eq!(Ordered::parse_programs("a:b").unwrap(), ["a", "b"]);
        assert_eq!(Ordered::parse_paths("/a:/b/c").unwrap(), [Path::new("/a"), Path::new("/b/c")]);
        assert!(["", "a:", "a:/usr/bin/b"].iter().all(|text| Ordered::parse_programs(text).is_err()));
        assert!(["", "a", "/a:b", "/a/../b"].iter().all(|text| Ordered::parse_paths(text).is_err()));
        let both = Ordered { paths: vec!["/a".into()], ..of(&["p", "q"]) };
        assert_eq!(both.to_string(), "p, q, files below /a");
        assert_eq!(Ordered { all: true, ..both }.to_string(), "all programs");
        assert_eq!(Ordered::default().to_string(), "nobody");
    }
}

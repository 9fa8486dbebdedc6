//! Listing a directory, page by page: memory is needed for two pages of the store, however many names there are.
//!
//! Order: ".", "..", the files that are only known here, then the names of the store. An offset is the number of entries before it. Going on where the
//! last call ended is what a scan is made for; another offset begins again from the start and counts.
//!
//! A store lists `a` before `a-b` before `a/`: whether object `a` is hidden behind a directory of that name shows only later. An object is held
//! back until the listing is beyond `a/`; all that are held begin with one another, so there are never more than a name has bytes.

use crate::core::Core;
use crate::error;
use crate::inode::{About, Inode};
use crate::lookup::Found;
use crate::names;
use crate::progress::{Going, Operation};
use crate::store::{Entry, Object, Page, Round, Store, StoreError};
use fs::{Attr, Error, Ino, Result};
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Mutex;
use tokio::task::{JoinHandle, JoinSet};

/// Directories with more names are not kept in memory as a whole.
const COMPLETE_MAX: u64 = 20_000;

/// An open directory.
pub struct Scan {
    /// The directory.
    pub dir: Ino,
    state: Mutex<State>,
}

impl Scan {
    /// At its beginning.
    pub fn new(dir: Ino) -> Scan {
        Scan { dir, state: Mutex::default() }
    }
}

/// An entry: its name and attributes.
pub type Row = (Box<str>, Attr);

#[derive(Default)]
struct State {
    /// Offset of the first row that is not given yet.
    at: u64,
    rows: VecDeque<Row>,
    started: Option<Started>,
}

impl State {
    /// The rows from `offset` on that are here.
    fn ready(&mut self, offset: u64) -> Option<Vec<Row>> {
        self.started.as_ref()?;
        let skip = offset.checked_sub(self.at)?.min(self.rows.len() as u64);
        self.rows.drain(..skip as usize);
        self.at += skip;
        (!self.rows.is_empty()).then(|| self.rows.iter().cloned().collect())
    }
}

struct Started {
    since: Instant,
    version: u64,
    key: String,
    local: HashSet<Box<str>>,
    held: Vec<(Box<str>, Object)>,
    after: Option<String>,
    round: Round,
    over: bool,
    names: u64,
    /// The next page is asked for while somebody looks at this one.
    ahead: bool,
    next: Option<Ahead>,
    /// From the second page on.
    going: Option<Going>,
}

/// A page that was asked for before it is wanted.
struct Ahead {
    since: Instant,
    version: u64,
    page: JoinHandle<std::result::Result<Page, StoreError>>,
}

/// A name of a page, settled: an object, or a directory with what a listing tells of it.
type Name = (Box<str>, Option<Object>);

impl Started {
    /// Settles what a page says, in which objects of `key` itself are left out.
    fn settle(&mut self, entries: Vec<Entry>) -> Vec<Name> {
        let mut out = Vec::new();
        for entry in entries {
            let (name, object) = match entry {
                Entry::Object(key, object) => (key, Some(object)),
                Entry::Prefix(key) => (key, None),
            };
            let Some(rest) = name.strip_prefix(&self.key) else { continue };
            // Held objects whose directory would have come by now are files.
            while let Some((held, _)) = self.held.last()
                && !(rest.starts_with(&**held) && rest.as_bytes()[held.len()..].first() <= Some(&b'/'))
            {
                out.extend(self.held.pop().map(|(name, object)| (name, Some(object))));
            }
            let name = match &object {
                Some(_) => rest,
                None => rest.strip_suffix('/').unwrap_or(rest),
            };
            if !names::shown(name) {
                continue;
            }
            match object {
                Some(object) => self.held.push((name.into(), object)),
                None => {
                    // The object of that name is hidden.
                    self.held.retain(|(held, _)| **held != *name);
                    out.push((name.into(), None));
                }
            }
        }
        out
    }
}

impl<S: Store> Core<S> {
    /// Some entries of a directory from `offset` on, with the offset of the first; none at the end. `NotFound` when the directory was removed.
    pub async fn rows(self: &Arc<Self>, scan: &Arc<Scan>, offset: u64) -> Result<Vec<Row>> {
        if let Some(rows) = scan.state.lock().await.ready(offset) {
            return Ok(rows);
        }
        // Whoever asks may go away in the middle of a page, whose names must not be passed over then.
        let (core, scan) = (self.clone(), scan.clone());
        self.spawn(async move { core.rows_on_worker(&scan, offset).await }).await
    }

    async fn rows_on_worker(self: &Arc<Self>, scan: &Arc<Scan>, offset: u64) -> Result<Vec<Row>> {
        let mut state = scan.state.lock().await;
        if offset < state.at || state.started.is_none() {
            *state = State::default();
            self.start(scan.dir, &mut state).await?;
        }
        loop {
            if let Some(rows) = state.ready(offset) {
                return Ok(rows);
            }
            let State { started: Some(started), rows, .. } = &mut *state else { return Ok(Vec::new()) };
            if started.over {
                return Ok(Vec::new());
            }
            if let Err(e) = self.page(scan.dir, started, rows).await {
                // A part of the page may have been taken in: the next call begins anew.
                *state = State::default();
                return Err(e);
            }
        }
    }

    async fn start(self: &Arc<Self>, dir: Ino, state: &mut State) -> Result<()> {
        let this = self.attr_now(dir).await?;
        let parent = self.tree.lock().get(dir)?.parent;
        let up = self.attr_now(parent).await.unwrap_or(this);
        let tree = self.tree.lock();
        if !tree.get(dir)?.linked {
            return Err(Error::NotFound);
        }
        let directory = tree.directory(dir)?;
        state.rows.extend([(".".into(), this), ("..".into(), up)]);
        let mut local = HashSet::new();
        for (name, &ino) in &directory.children {
            if tree.get(ino)?.checked.is_none() {
                state.rows.push_back((name.clone(), tree.attr(ino)?));
                local.insert(name.clone());
            }
        }
        state.started = Some(Started {
            since: Instant::now(),
            version: directory.version,
            key: tree.key(dir)?,
            local,
            held: Vec::new(),
            after: None,
            round: Round::default(),
            over: false,
            names: 0,
            ahead: true,
            next: None,
            going: None,
        });
        Ok(())
    }

    /// Asks for the names of a directory, without their attributes: all of them are known then, if they fit on a page.
    pub async fn list_names(self: &Arc<Self>, dir: Ino) -> Result<()> {
        let (version, key, local) = {
            let tree = self.tree.lock();
            let directory = tree.directory(dir)?;
            let mut local = HashSet::new();
            for (name, &ino) in &directory.children {
                if tree.get(ino)?.checked.is_none() {
                    local.insert(name.clone());
                }
            }
            (directory.version, tree.key(dir)?, local)
        };
        let mut started = Started {
            since: Instant::now(),
            version,
            key,
            local,
            held: Vec::new(),
            after: None,
            round: Round::default(),
            over: false,
            names: 0,
            ahead: false,
            next: None,
            going: None,
        };
        self.names(dir, &mut started).await?;
        if started.over {
            return self.all_listed(dir, &started);
        }
        self.tree.lock().directory_mut(dir)?.large = Some(Instant::now());
        Ok(())
    }

    /// Takes in the names of one more page of the store.
    async fn names(self: &Arc<Self>, dir: Ino, started: &mut Started) -> Result<Vec<(Ino, Box<str>)>> {
        let ask = |after: Option<String>| {
            let (core, key) = (self.clone(), started.key.clone());
            self.runtime.spawn(async move { core.store.list(&key, true, after.as_deref()).await })
        };
        let version = self.tree.lock().directory(dir)?.version;
        // One that is older than what was made and removed here would bring back the past.
        let current = |next: &Ahead| next.version == version && next.since.elapsed() < self.options.expiry;
        let (asked, page) = match started.next.take().filter(current) {
            Some(next) => (next.since, next.page),
            None => (Instant::now(), ask(started.after.clone())),
        };
        let page = page.await.map_err(|_| Error::Closed)?.map_err(|e| error::of(&started.key, e))?;
        if started.ahead && page.next.is_some() {
            let (since, page) = (Instant::now(), ask(page.next.clone()));
            started.next = Some(Ahead { since, version, page });
        }
        let mut settled = started.settle(page.entries);
        started.after = started.round.next(page.next).map_err(|e| error::of(&started.key, e))?;
        if started.after.is_none() {
            started.over = true;
            settled.extend(started.held.drain(..).map(|(name, object)| (name, Some(object))));
        }
        settled.retain(|(name, _)| !started.local.contains(name));
        started.names += settled.len() as u64;
        if started.ahead && !started.over && started.going.is_none() {
            started.going = Some(self.progress.begin(Operation::List, started.key.clone(), "listed"));
        }
        if let Some(going) = &started.going {
            going.add(settled.len() as u64);
        }
        if started.over {
            started.going = None;
        }
        self.listed(dir, settled, asked)
    }

    /// Takes in one more page of the store.
    async fn page(self: &Arc<Self>, dir: Ino, started: &mut Started, rows: &mut VecDeque<Row>) -> Result<()> {
        let inos = self.names(dir, started).await?;
        let unknown: Vec<(Ino, String)> = {
            let tree = self.tree.lock();
            let plain = |&(ino, _): &(Ino, Box<str>)| tree.get(ino).is_ok_and(|i| i.about.is_none());
            inos.iter().filter(|row| plain(row)).map(|(ino, name)| (*ino, name.to_string())).collect()
        };
        if !self.options.listed_attributes && !unknown.is_empty() {
            let core = self.clone();
            self.spawn(async move { core.ask_attributes(dir, unknown).await }).await?;
        }
        {
            let tree = self.tree.lock();
            // What was removed meanwhile is left out.
            rows.extend(inos.into_iter().filter_map(|(ino, name)| Some((name, tree.attr(ino).ok()?))));
        }
        if started.over { self.all_listed(dir, started) } else { Ok(()) }
    }

    /// After the last page: what it did not have is gone, and all names are known, unless some were made or removed here meanwhile.
    fn all_listed(&self, dir: Ino, started: &Started) -> Result<()> {
        let mut tree = self.tree.lock();
        let directory = tree.directory(dir)?;
        if started.version != directory.version || directory.children.len() as u64 > COMPLETE_MAX {
            return Ok(());
        }
        let since = started.since;
        let gone: Vec<Box<str>> = {
            let seen = |ino: &Ino| {
                let inode = tree.get(*ino);
                inode.is_ok_and(|i| i.is_dirty() || i.checked.is_none_or(|at| at >= since))
            };
            let children = tree.directory(dir)?.children.iter();
            children.filter(|(_, ino)| !seen(ino)).map(|(name, _)| name.clone()).collect()
        };
        for name in gone {
            tree.lose(dir, &name);
        }
        let directory = tree.directory_mut(dir)?;
        // Fewer: some were forgotten already for want of room.
        if directory.children.len() as u64 >= started.names {
            directory.complete = Some(since);
        }
        directory.misses = 0;
        Ok(())
    }

    /// Takes in names of a listing that was `asked` for then, and returns their inodes.
    fn listed(&self, dir: Ino, names: Vec<Name>, asked: Instant) -> Result<Vec<(Ino, Box<str>)>> {
        let mut tree = self.tree.lock();
        let mut out = Vec::with_capacity(names.len());
        for (name, object) in names {
            let known = tree.directory(dir)?.children.get(&name).copied();
            let other = match known {
                Some(ino) => tree.get(ino)?.directory.is_some() != object.is_none(),
                None => false,
            };
            if let (Some(ino), true) = (known, other)
                && (tree.get(ino)?.is_newer(asked) || !tree.lose(dir, &name))
            {
                out.push((ino, name));
                continue;
            }
            let ino = match known.filter(|_| !other) {
                Some(ino) => ino,
                None => tree.add(Inode {
                    parent: dir,
                    name: name.clone(),
                    about: None,
                    etag: None,
                    size: 0,
                    modified: fs::Time::now(),
                    told: None,
                    changed: None,
                    checked: Some(Instant::now()),
                    directory: object.is_none().then(Box::default),
                    file: None,
                    opens: 0,
                    linked: true,
                    moving: false,
                })?,
            };
            let inode = tree.get_mut(ino)?;
            if inode.checked.is_some() && !inode.is_dirty() && !inode.is_newer(asked) {
                match object {
                    Some(object) => {
                        let modified = object.modified.into();
                        // A copy onto itself changes metadata and time, but not always the ETag.
                        let same = inode.etag.as_ref() == Some(&object.etag);
                        if !same || inode.told != Some(modified) {
                            // Of an open file the object that was opened counts; whoever opens it next asks.
                            inode.about = None;
                            if inode.file.is_none() {
                                (inode.etag, inode.size) = (Some(object.etag), object.size);
                                inode.told(modified, same);
                            }
                        }
                        inode.checked = Some(Instant::now());
                    }
                    // Its marker may have changed.
                    None => {
                        let current = inode.checked.is_some_and(|at| at.elapsed() < self.options.expiry);
                        if !current {
                            inode.about = None;
                        }
                        inode.checked = Some(Instant::now());
                    }
                }
            }
            out.push((ino, name));
        }
        Ok(out)
    }

    /// Asks for the attributes of files and directories that were only listed, many at a time.
    async fn ask_attributes(self: &Arc<Self>, dir: Ino, unknown: Vec<(Ino, String)>) -> Result<()> {
        let mut tasks = JoinSet::new();
        for (ino, name) in unknown {
            let core = self.clone();
            tasks.spawn(async move {
                let _token = core.small.clone().acquire_owned().await;
                let (key, is_dir) = {
                    let tree = core.tree.lock();
                    let Ok(inode) = tree.get(ino) else { return Ok(()) };
                    (tree.key(ino)?, inode.directory.is_some())
                };
                let asked = Instant::now();
                let found = match core.store.head(&key).await {
                    Ok(object) if is_dir => Found::Directory(Some(object)),
                    Ok(object) => Found::File(object),
                    Err(StoreError::NotFound) if is_dir => Found::Directory(None),
                    // Removed since it was listed.
                    Err(StoreError::NotFound) => return Ok(()),
                    Err(e) => return Err(error::of(&key, e)),
                };
                core.found(dir, &name, found, asked)?;
                Ok(())
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.map_err(|_| Error::Closed)??;
        }
        Ok(())
    }

    /// Whether keys stand below a directory beside its marker. Also those that cannot be shown.
    pub async fn has_entries(&self, key: &str) -> Result<bool> {
        let (mut after, mut round) = (None, Round::default());
        loop {
            let page = self.store.list(key, true, after.as_deref()).await.map_err(|e| error::of(key, e))?;
            let other = |entry: &Entry| match entry {
                Entry::Object(k, _) | Entry::Prefix(k) => k.starts_with(key) && k != key,
            };
            if page.entries.iter().any(other) {
                return Ok(true);
            }
            after = round.next(page.next).map_err(|e| error::of(key, e))?;
            if after.is_none() {
                return Ok(false);
            }
        }
    }

    /// Keeps a directory that may have lost its last key: gives it a marker if nothing stands below it any more.
    pub async fn keep(self: &Arc<Self>, dir: Ino) -> Result<()> {
        let (key, about) = {
            let tree = self.tree.lock();
            let inode = tree.get(dir)?;
            if dir == Ino::ROOT || inode.etag.is_some() {
                return Ok(());
            }
            let default = || crate::attrs::Attrs::default_of(fs::FileType::Directory, &self.options.defaults);
            let about = inode.about.as_deref().cloned().unwrap_or_else(|| About::new(default()));
            (tree.key(dir)?, about)
        };
        if self.has_entries(&key).await? {
            return Ok(());
        }
        let etag = self.put_marker(&key, &about).await?;
        if let Ok(inode) = self.tree.lock().get_mut(dir) {
            inode.etag = etag.or(inode.etag.take());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ETag;
    use std::time::UNIX_EPOCH;

    fn object(key: &str) -> Entry {
        let object = Object {
            size: 1,
            etag: ETag("\"e\"".into()),
            modified: UNIX_EPOCH,
            content_type: None,
            metadata: Default::default(),
            headers: Default::default(),
        };
        Entry::Object(key.into(), object)
    }

    #[test]
    fn what_is_both_file_and_directory_is_a_directory_also_across_pages() {
        let mut keys = vec![
            object("d/"),
            object("d/a"),
            object("d/a-b"),
            object("d/a-b-"),
            Entry::Prefix("d/a-b/".into()),
            object("d/a."),
            Entry::Prefix("d/a/".into()),
            Entry::Prefix("d//".into()),
            Entry::Prefix("d/../".into()),
            object("d/."),
            object("d/b"),
        ];
        keys.sort_by_key(|e| match e {
            Entry::Object(k, _) | Entry::Prefix(k) => k.clone(),
        });
        for size in 1..=keys.len() {
            let mut started = Started {
                since: Instant::now(),
                version: 0,
                key: "d/".into(),
                local: HashSet::new(),
                held: Vec::new(),
                after: None,
                round: Round::default(),
                over: false,
                names: 0,
                ahead: false,
                next: None,
                going: None,
            };
            let mut out = Vec::new();
            for page in keys.chunks(size) {
                out.extend(started.settle(page.to_vec()));
            }
            out.extend(started.held.drain(..).map(|(name, object)| (name, Some(object))));
            let mut names: Vec<(&str, bool)> = out.iter().map(|(n, o)| (&**n, o.is_none())).collect();
            names.sort();
            let expected = [("a", true), ("a-b", true), ("a-b-", false), ("a.", false), ("b", false)];
            assert_eq!(names, expected, "pages of {size}");
        }
    }
}

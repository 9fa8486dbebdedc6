//! What a name leads to, asked of the store when what is known of it has expired.
//!
//! A name is a directory when keys begin with it and a '/', else a file when there is an object of that key (see [`crate::names`]). Of a new name both
//! are asked at once. A file that was one before is asked for as one alone: that it has become hidden behind a directory shows when
//! it is gone or its directory is listed.
//!
//! Who makes many files asks for as many names that are not there. Of a directory that fits on a page of a listing, all names are asked for at once
//! then: what is not among them is known to be absent for as long as the listing counts.

use crate::core::Core;
use crate::error;
use crate::inode::{About, Inode};
use crate::names;
use crate::store::{Entry, Object, Store, StoreError};
use fs::{Attr, Error, FileType, Ino, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// So many names that are not there make it worth while to ask for all names of a directory.
const MISSES: u32 = 2;
/// For how long a directory is taken to be as large as it was found.
const LARGE: Duration = Duration::from_secs(60);

/// What the store says of a name.
pub enum Found {
    /// No file and no directory.
    Nothing,
    /// An object.
    File(Object),
    /// A directory, with its marker where it has one.
    Directory(Option<Object>),
}

impl<S: Store> Core<S> {
    /// The inode called `name`, known well enough. `NotFound`, `NotDirectory`, `Stale`, those of [`names::check`].
    pub async fn resolve(self: &Arc<Self>, dir: Ino, name: &[u8]) -> Result<Ino> {
        let name = match name {
            b"." | b".." => {
                let tree = self.tree.lock();
                tree.directory(dir)?;
                return Ok(if name == b"." { dir } else { tree.get(dir)?.parent });
            }
            name => names::check(name)?,
        };
        let known = self.tree.lock().known(dir, name, self.options.expiry)?;
        match known {
            Some(known) => known.ok_or(Error::NotFound),
            None => self.look_again(dir, name).await,
        }
    }

    /// Asks the store about a name.
    pub async fn look_again(self: &Arc<Self>, dir: Ino, name: &str) -> Result<Ino> {
        let (core, name) = (self.clone(), name.to_string());
        self.spawn(async move { core.look_on_worker(dir, &name).await }).await
    }

    async fn look_on_worker(self: &Arc<Self>, dir: Ino, name: &str) -> Result<Ino> {
        loop {
            let (key, kind, all) = {
                let mut tree = self.tree.lock();
                let kind = tree.directory(dir)?.children.get(name).map(|&ino| tree.get(ino).map(Inode::kind));
                let kind = kind.transpose()?;
                let key = tree.child_key(dir, name, false)?;
                let directory = tree.directory_mut(dir)?;
                let small = directory.large.is_none_or(|at| at.elapsed() > LARGE);
                let all = kind.is_none() && small && directory.misses >= MISSES;
                if all {
                    // Others who ask meanwhile ask for their names alone.
                    directory.misses = 0;
                }
                (key, kind, all)
            };
            if all {
                self.list_names(dir).await?;
                if let Some(known) = self.tree.lock().known(dir, name, self.options.expiry)? {
                    return known.ok_or(Error::NotFound);
                }
            }
            let asked = Instant::now();
            let found = self.query(&key, kind).await.map_err(|e| error::of(&key, e))?;
            let old = {
                let tree = self.tree.lock();
                let directory = tree.directory(dir)?;
                let since = |at: &Instant| *at >= asked;
                // The answer may be older than what was done here: the name was removed or its directory moved. That it was made is seen below, unless that
                // is forgotten.
                let went = !matches!(found, Found::Nothing) && directory.absent.get(name).is_some_and(since);
                went || directory.forgot.as_ref().is_some_and(since)
                    || tree.child_key(dir, name, false)? != key
            };
            if old {
                continue;
            }
            return self.found(dir, name, found, asked)?.ok_or(Error::NotFound);
        }
    }

    async fn query(&self, key: &str, kind: Option<FileType>) -> std::result::Result<Found, StoreError> {
        let below = format!("{key}/");
        let head = async {
            match self.store.head(key).await {
                Ok(object) => Ok(Some(object)),
                Err(StoreError::NotFound) => Ok(None),
                Err(e) => Err(e),
            }
        };
        let list = async {
            let Some(first) = self.store.first(&below).await? else { return Ok(None) };
            match first {
                Entry::Object(first, _) if first == below => match self.store.head(&below).await {
                    Ok(marker) => Ok(Some(Some(marker))),
                    Err(StoreError::NotFound) => Ok(Some(None)),
                    Err(e) => Err(e),
                },
                Entry::Object(first, _) | Entry::Prefix(first) if !first.starts_with(&below) => Ok(None),
                _ => Ok(Some(None)),
            }
        };
        let found = match kind {
            Some(FileType::Directory) => match list.await? {
                Some(marker) => Found::Directory(marker),
                None => head.await?.map_or(Found::Nothing, Found::File),
            },
            Some(_) => match head.await? {
                Some(object) => Found::File(object),
                None => list.await?.map_or(Found::Nothing, Found::Directory),
            },
            None if below.len() > names::KEY_MAX => head.await?.map_or(Found::Nothing, Found::File),
            None => match tokio::join!(head, list) {
                (_, Ok(Some(marker))) => Found::Directory(marker),
                (object, list) => {
                    list?;
                    object?.map_or(Found::Nothing, Found::File)
                }
            },
        };
        Ok(found)
    }

    /// Takes in what the store said of a name, for which it was `asked` then.
    pub fn found(&self, dir: Ino, name: &str, found: Found, asked: Instant) -> Result<Option<Ino>> {
        let mut tree = self.tree.lock();
        let known = tree.directory(dir)?.children.get(name).copied();
        // What is only here, or changed here, is not undone by what is elsewhere.
        if let Some(ino) = known
            && (tree.get(ino)?.checked.is_none() || tree.get(ino)?.is_newer(asked))
        {
            return Ok(Some(ino));
        }
        let (object, is_dir) = match found {
            Found::Nothing => {
                if let Some(ino) = known
                    && !tree.lose(dir, name)
                {
                    // Its marker is gone, but not what was made below it here.
                    if let Some(inode) = tree.get_mut(ino).ok().filter(|inode| inode.directory.is_some()) {
                        inode.etag = None;
                    }
                    return Ok(Some(ino));
                }
                tree.note_absent(dir, name);
                return Ok(None);
            }
            Found::File(object) => (Some(object), false),
            Found::Directory(marker) => (marker, true),
        };
        let known = match known {
            Some(ino) if tree.get(ino)?.directory.is_some() == is_dir => Some(ino),
            Some(ino) if !tree.lose(dir, name) => return Ok(Some(ino)),
            _ => None,
        };
        let key = tree.child_key(dir, name, is_dir)?;
        let about = match &object {
            Some(object) => About::of(&key, object, &self.options.defaults),
            None => About::new(crate::attrs::Attrs::default_of(FileType::Directory, &self.options.defaults)),
        };
        let ino = match known {
            Some(ino) => ino,
            None => tree.add(Inode {
                parent: dir,
                name: name.into(),
                about: None,
                etag: None,
                size: 0,
                modified: fs::Time::now(),
                told: None,
                changed: None,
                checked: Some(Instant::now()),
                directory: is_dir.then(Box::default),
                file: None,
                opens: 0,
                linked: true,
                moving: false,
            })?,
        };
        let inode = tree.get_mut(ino)?;
        inode.checked = Some(Instant::now());
        // Nobody writes in between.
        let file = inode.file.clone();
        let mut state = file.as_ref().map(|file| file.state.lock());
        if state.as_ref().is_some_and(|state| state.is_dirty() || state.copying) {
            return Ok(Some(ino));
        }
        inode.about = Some(Box::new(about));
        let same = object.as_ref().is_some_and(|object| inode.etag.as_ref() == Some(&object.etag));
        (inode.etag, inode.size) = match &object {
            Some(object) => (Some(object.etag.clone()), object.size),
            None => (None, 0),
        };
        if let Some(object) = object {
            inode.told(object.modified.into(), same);
        }
        if let (Some(state), Some(etag)) = (&mut state, &inode.etag)
            && state.base.as_ref() != Some(etag)
            && state.stream.is_none()
            && !state.gone
        {
            // Open and unchanged here, changed elsewhere: this is what the next open sees.
            state.replaced += 1;
            (state.base, state.base_size) = (Some(etag.clone()), inode.size);
            state.change = crate::change::Change::none(inode.size);
        }
        Ok(Some(ino))
    }

    /// Attributes of an inode as they are shown: those of a listing, where an option says that they are enough, else as `attr_now`.
    pub async fn attr_shown(self: &Arc<Self>, ino: Ino) -> Result<Attr> {
        match self.is_only_listed(ino)? {
            true => self.tree.lock().attr(ino),
            false => self.attr_now(ino).await,
        }
    }

    /// Whether what is known of an inode is from a listing, and an option says that this is enough. `Stale`.
    pub fn is_only_listed(&self, ino: Ino) -> Result<bool> {
        let tree = self.tree.lock();
        let inode = tree.get(ino)?;
        let current = inode.checked.is_some_and(|at| at.elapsed() < self.options.expiry);
        Ok(self.options.listed_attributes
            && inode.about.is_none()
            && current
            && inode.linked
            && ino != Ino::ROOT)
    }

    /// Attributes of an inode, asked for again if they have expired. `Stale`.
    pub async fn attr_now(self: &Arc<Self>, ino: Ino) -> Result<Attr> {
        let (parent, name) = {
            let tree = self.tree.lock();
            let inode = tree.get(ino)?;
            let here = inode.checked.is_none() || !inode.linked || inode.is_dirty();
            let current = inode.checked.is_some_and(|at| at.elapsed() < self.options.expiry);
            if ino != Ino::ROOT && (here || (current && inode.about.is_some())) {
                return tree.attr(ino);
            }
            (inode.parent, inode.name.to_string())
        };
        if ino == Ino::ROOT {
            return self.root_attr().await;
        }
        match self.look_again(parent, &name).await {
            Ok(found) if found == ino => self.tree.lock().attr(ino),
            Ok(_) | Err(Error::NotFound) => {
                let tree = self.tree.lock();
                let inode = tree.get(ino)?;
                // It has been renamed meanwhile.
                let moved = inode.linked && (inode.parent, &*inode.name) != (parent, name.as_str());
                if moved { tree.attr(ino) } else { Err(Error::Stale) }
            }
            Err(e) => Err(e),
        }
    }

    /// Attributes of the root: those of the marker of the prefix, where there is one.
    async fn root_attr(self: &Arc<Self>) -> Result<Attr> {
        let (key, known) = {
            let tree = self.tree.lock();
            let root = tree.get(Ino::ROOT)?;
            let current = root.checked.is_some_and(|at| at.elapsed() < self.options.expiry);
            (tree.key(Ino::ROOT)?, current)
        };
        if !key.is_empty() && !known {
            let (core, asked) = (self.clone(), key.clone());
            let head = self.spawn(async move { Ok(core.store.head(&asked).await) }).await?;
            let mut tree = self.tree.lock();
            let root = tree.get_mut(Ino::ROOT)?;
            root.checked = Some(Instant::now());
            match head {
                Ok(object) => {
                    root.about = Some(Box::new(About::of(&key, &object, &self.options.defaults)));
                    (root.etag, root.modified) = (Some(object.etag), object.modified.into());
                }
                Err(StoreError::NotFound) => {}
                Err(e) => return Err(error::of(&key, e)),
            }
        }
        let mut tree = self.tree.lock();
        let root = tree.get_mut(Ino::ROOT)?;
        if root.about.is_none() {
            let attrs = crate::attrs::Attrs::default_of(FileType::Directory, &self.options.defaults);
            root.about = Some(Box::new(About::new(attrs)));
        }
        tree.attr(Ino::ROOT)
    }
}

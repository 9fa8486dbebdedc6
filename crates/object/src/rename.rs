//! Renaming: by the store where it can, else by copies within the store, and then removal of the old keys.
//!
//! A file: the copy makes the new name lead to the whole file in one step of the store; then the old key is removed, if it is still the object
//! that was copied. A crash in between leaves both names.
//!
//! A directory is moved object by object, side by side:
//! 1. The old directory's marker says where it goes ([`MOVING`] in its metadata).
//! 2. Everything is copied; nothing is removed before all of it is there.
//! 3. The old directory's marker says that ([`COPIED`]). Then the old objects are removed, each only if it is what was copied, the marker last.
//!
//! So no file is lost at any point of a crash: until step 3 the old directory is whole, from step 3 on the new one is. The rename is not atomic for
//! those who look: they may see files twice. Repeating it (`mv -T`) goes on where it was. Before step 3 what the new directory has counts for nothing as
//! long as the old one's marker names it, and what is there already, of the same state, is not copied again. From step 3 on the new directory may be in use:
//! what it has stays, and only what it lacks is copied.
//! What others write below the old name meanwhile is not moved and not removed; it keeps the old directory.

use crate::attrs::{Attrs, percent_encode};
use crate::core::Core;
use crate::error;
use crate::file::File;
use crate::inode::About;
use crate::names;
use crate::progress::{Going, Operation};
use crate::store::{Condition, Description, ETag, Entry, Object, Round, STORAGE_CLASS, Store, StoreError};
use crate::tree::Tree;
use bytes::Bytes;
use fs::*;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::task::JoinSet;

/// Metadata of the marker of a directory that is being moved: the new key, percent-encoded, or what stands for it ([`goal`]).
pub const MOVING: &str = "freehold-moving-to";
/// Metadata of such a marker: all of it has been copied.
pub const COPIED: &str = "freehold-moving-copied";
/// Longest key that is written there as it is, bytes.
const GOAL_MOST: usize = 256;
/// Stores tell times in whole seconds: what is later than that by less may be older.
const SECOND: Duration = Duration::from_secs(1);

/// What an earlier rename has done that is repeated now.
#[derive(Clone, Copy)]
enum Earlier {
    /// There was none.
    Nothing,
    /// Some is copied.
    Begun,
    /// All of it was copied then.
    Copied(SystemTime),
}

impl<S: Store> Core<S> {
    /// As [`FileSystem::rename`].
    pub async fn rename(
        self: &Arc<Self>,
        cred: &Cred,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        while !self.rename_as_found(cred, from, to, flags).await? {}
        Ok(())
    }

    /// False: one of the names leads elsewhere by now.
    async fn rename_as_found(
        self: &Arc<Self>,
        cred: &Cred,
        (dir, name): (Ino, &[u8]),
        (new_dir, new_name): (Ino, &[u8]),
        flags: RenameFlags,
    ) -> Result<bool> {
        if flags.contains(RenameFlags::EXCHANGE) {
            return Err(match flags.contains(RenameFlags::NOREPLACE) {
                true => Error::Invalid("both flags of rename"),
                false => Error::NotSupported("exchanging names in a bucket"),
            });
        }
        for name in [name, new_name] {
            if matches!(name, b"." | b"..") {
                return Err(Error::Busy("'.' and '..' cannot be renamed".into()));
            }
        }
        let from_dir = self.attr_now(dir).await?;
        let to_dir = self.attr_now(new_dir).await?;
        for dir in [&from_dir, &to_dir] {
            if dir.kind != FileType::Directory {
                return Err(Error::NotDirectory);
            }
            perm::check(cred, dir, Access::EXEC)?;
        }
        let ino = self.resolve(dir, name).await?;
        let moved = self.attr_now(ino).await?;
        let to = names::check(new_name)?;
        let target = match self.resolve(new_dir, new_name).await {
            Ok(target) => Some(self.attr_now(target).await?),
            Err(Error::NotFound) => None,
            Err(e) => return Err(e),
        };
        self.writable()?;
        perm::check_delete(cred, &from_dir, &moved)?;
        let is_dir = moved.kind == FileType::Directory;
        if is_dir && self.tree.lock().is_within(new_dir, ino) {
            return Err(Error::IntoItself);
        }
        match &target {
            None => perm::check(cred, &to_dir, Access::WRITE | Access::EXEC)?,
            Some(_) if flags.contains(RenameFlags::NOREPLACE) => return Err(Error::Exists),
            Some(target) if target.ino == ino => return Ok(true),
            Some(target) => {
                perm::check_delete(cred, &to_dir, target)?;
                match (is_dir, target.kind == FileType::Directory) {
                    (true, false) => return Err(Error::NotDirectory),
                    (false, true) => return Err(Error::IsDirectory),
                    _ => {}
                }
            }
        }
        let target = target.map(|target| target.ino);
        let names = Names { from: (dir, names::check(name)?), ino, to: (new_dir, to), target };
        let done = match is_dir {
            true => self.rename_directory(&names).await?,
            false => self.rename_file(&names, flags.contains(RenameFlags::NOREPLACE)).await?,
        };
        if !done {
            return Ok(false);
        }
        if let Err(e) = self.keep(dir).await {
            tracing::warn!("an empty directory may be gone: {e}");
        }
        Ok(true)
    }

    async fn rename_file(self: &Arc<Self>, names: &Names<'_>, absent: bool) -> Result<bool> {
        let files = self.use_files(names.target.into_iter().chain([names.ino]));
        let done = self.rename_alone(&files, names, absent).await;
        self.leave_files(files).await;
        done
    }

    /// `files`: that of `ino`, and that of the target.
    async fn rename_alone(
        self: &Arc<Self>,
        files: &[Arc<File>],
        names: &Names<'_>,
        absent: bool,
    ) -> Result<bool> {
        let &Names { ino, to: (new_dir, name), target, .. } = names;
        let _names = self.namespace.read().await;
        // What replaces a file waits until nobody makes an object of that. All take turns in the same order.
        let mut turns = Vec::with_capacity(files.len());
        for file in files {
            turns.push(file.turn.write().await);
        }
        if !names.hold(&self.tree.lock()) {
            return Ok(false);
        }
        if let Some(file) = files.iter().find(|file| file.ino == ino) {
            // What is on its way is on its way to the old name.
            self.commit_alone(file).await?;
        }
        let (from, to, etag, size, class) = {
            let tree = self.tree.lock();
            let inode = tree.get(ino)?;
            let etag = inode.etag.clone().ok_or(Error::Stale)?;
            let class = inode.about.as_ref().is_some_and(|about| about.headers.contains_key(STORAGE_CLASS));
            (tree.key(ino)?, tree.child_key(new_dir, name, false)?, etag, inode.size, class)
        };
        let _moving = self.moving(ino)?;
        let on = if absent { Condition::Absent } else { Condition::Always };
        let failed = |e| match e {
            StoreError::Precondition if absent => Error::Exists,
            e => error::of(&from, e),
        };
        let new_etag = if self.store.abilities().rename {
            self.store.rename(&from, &to, &etag, &on).await.map_err(failed)?;
            match self.store.head(&to).await {
                Ok(object) => Some(object.etag),
                Err(e) => {
                    tracing::warn!("{to}: moved, and not found: {e}");
                    None
                }
            }
        } else {
            let source = (from.as_str(), &etag, size);
            let copied = match absent {
                true => self.copy_absent(source, &to, class).await?,
                false => self.copy_kept(source, &to, class).await.map_err(|e| error::of(&from, e))?,
            };
            match self.delete_if(&from, &etag).await {
                Ok(()) | Err(StoreError::NotFound) => {}
                // Both are there now: the new one is what was asked for, the old one is somebody else's.
                Err(StoreError::Precondition) => {
                    tracing::warn!("{from}: changed by somebody else while it was renamed; it stays")
                }
                Err(e) => return Err(error::of(&from, e)),
            }
            Some(copied)
        };
        self.forget_target(target);
        let mut tree = self.tree.lock();
        tree.rename(ino, new_dir, name)?;
        let inode = tree.get_mut(ino)?;
        inode.change(Time::now());
        if new_etag.is_none() {
            inode.about = None;
        }
        if let Some(file) = &inode.file {
            file.state.lock().base = new_etag.clone().or(Some(etag.clone()));
        }
        inode.stored(new_etag.or(Some(etag)));
        Ok(true)
    }

    /// From now on it is our doing if the name of an inode is gone in the store, until the value that is returned is dropped. `Stale`.
    fn moving(self: &Arc<Self>, ino: Ino) -> Result<Moving<S>> {
        self.tree.lock().get_mut(ino)?.moving = true;
        Ok(Moving(self.clone(), ino))
    }

    /// What was replaced has no name any more; what of it was on its way is given up.
    fn forget_target(self: &Arc<Self>, target: Option<Ino>) {
        let tree = self.tree.lock();
        let Some(file) = target.and_then(|t| tree.get(t).ok()?.file.clone()) else { return };
        let mut state = file.state.lock();
        state.gone = true;
        if let Some(stream) = state.stream.take() {
            stream.abandon(self);
        }
    }

    async fn rename_directory(self: &Arc<Self>, names: &Names<'_>) -> Result<bool> {
        let &Names { ino, to: (new_dir, name), target, .. } = names;
        let _names = self.namespace.write().await;
        if !names.hold(&self.tree.lock()) {
            return Ok(false);
        }
        let (from, to, mut about) = {
            let tree = self.tree.lock();
            let inode = tree.get(ino)?;
            let default = || Attrs::default_of(FileType::Directory, &self.options.defaults);
            let about = inode.about.as_deref().cloned().unwrap_or_else(|| About::new(default()));
            (tree.key(ino)?, tree.child_key(new_dir, name, true)?, about)
        };
        let resumed =
            about.metadata.get(MOVING).is_some_and(|said| *said == goal(&to) || *said == percent_encode(&to));
        let earlier = match resumed && about.metadata.contains_key(COPIED) {
            true => Earlier::Copied(self.store.head(&from).await.map_err(|e| error::of(&from, e))?.modified),
            false if resumed => Earlier::Begun,
            false => Earlier::Nothing,
        };
        if let Some(target) = target
            && resumed
        {
            // What is known of it goes with this inode; and what it has may be other files than those of the old directory. Nobody is to lose what he writes.
            let tree = self.tree.lock();
            let mut inodes = tree.within(target);
            if let Earlier::Copied(_) = earlier {
                inodes.extend(tree.within(ino));
            }
            if inodes.into_iter().any(|ino| tree.get(ino).is_ok_and(|inode| inode.file.is_some())) {
                return Err(Error::Busy(
                    "a file is open in a directory whose rename is to be completed".into(),
                ));
            }
        } else if let Some(target) = target {
            let local = {
                let tree = self.tree.lock();
                let mut children = tree.directory(target)?.children.values();
                children.any(|&ino| tree.get(ino).is_ok_and(|i| i.checked.is_none()))
            };
            if local || self.has_entries(&to).await? {
                return Err(Error::NotEmpty);
            }
        }
        // What is open below is made whole first; nothing below is given or changed while `namespace` is held alone.
        let files: Vec<Arc<File>> = {
            let tree = self.tree.lock();
            tree.within(ino).into_iter().filter_map(|i| tree.get(i).ok()?.file.clone()).collect()
        };
        let mut turns = Vec::new();
        for file in &files {
            turns.push(file.turn.write().await);
            self.commit_alone(file).await?;
        }
        about.metadata.insert(MOVING.into(), goal(&to));
        let mut plain = about.clone();
        plain.metadata.retain(|name, _| name != MOVING && name != COPIED);
        let _moving = self.moving(ino)?;
        let going = self.progress.begin(Operation::Rename, format!("{from} to {to}"), "copied");
        let kept = match earlier {
            Earlier::Copied(_) => match self.store.head(&to).await {
                Ok(object) => Some(object),
                Err(StoreError::NotFound) => None,
                Err(e) => return Err(error::of(&to, e)),
            },
            Earlier::Nothing | Earlier::Begun => {
                about.metadata.remove(COPIED);
                self.mark(ino, &from, &about).await?;
                None
            }
        };
        let moved = self.copy_all(&from, &to, earlier, &going).await?;
        // The new directory's own marker is the last of the copies: it says nothing of a move.
        let new_marker = match kept {
            Some(object) => {
                plain = About::of(&to, &object, &self.options.defaults);
                object.etag
            }
            None => {
                let done = self.store.put(&to, Bytes::new(), &marker_of(&plain)?, &Condition::Always).await;
                done.map_err(|e| error::of(&to, e))?
            }
        };
        if !matches!(earlier, Earlier::Copied(_)) {
            about.metadata.insert(COPIED.into(), "all".into());
            self.mark(ino, &from, &about).await?;
        }
        self.delete_all(&moved, &going).await?;
        self.store.delete(&from, &Condition::Always).await.map_err(|e| error::of(&from, e))?;
        let mut tree = self.tree.lock();
        tree.rename(ino, new_dir, name)?;
        for ino in tree.within(ino) {
            let key = tree.key(ino)?;
            let inode = tree.get_mut(ino)?;
            if let Earlier::Copied(_) = earlier {
                inode.about = None;
            }
            let copied =
                moved.binary_search_by(|m| m.to.as_str().cmp(&key)).ok().map(|i| moved[i].new.clone());
            if let (Some(etag), true) = (copied, inode.directory.is_none()) {
                if let Some(file) = &inode.file {
                    file.state.lock().base = Some(etag.clone());
                }
                (inode.etag, inode.changed) = (Some(etag), Some(Instant::now()));
            }
            if let Some(directory) = &mut inode.directory {
                directory.complete = None;
            }
        }
        let inode = tree.get_mut(ino)?;
        inode.about = Some(Box::new(plain));
        inode.change(Time::now());
        inode.stored(Some(new_marker));
        Ok(true)
    }

    /// Notes in the marker of a directory where it goes, or that it is there.
    async fn mark(&self, ino: Ino, key: &str, about: &About) -> Result<()> {
        let marker = self.tree.lock().get(ino)?.etag.clone();
        let on = marker.map_or(Condition::Absent, Condition::Is);
        let done = match self.check(key, &on).await {
            Ok(()) => self.store.put(key, Bytes::new(), &marker_of(about)?, &self.condition(&on)).await,
            Err(e) => Err(e),
        };
        let etag = done.map_err(|e| error::of(key, e))?;
        let mut tree = self.tree.lock();
        let inode = tree.get_mut(ino)?;
        inode.about = Some(Box::new(about.clone()));
        inode.stored(Some(etag));
        Ok(())
    }

    /// Copies everything below one key below another, but the marker itself. Sorted by the new key.
    async fn copy_all(
        self: &Arc<Self>,
        from: &str,
        to: &str,
        earlier: Earlier,
        going: &Going,
    ) -> Result<Vec<Moved>> {
        let (mut tasks, mut after, mut moved) = (JoinSet::new(), None, Vec::new());
        let mut round = Round::default();
        let mut failed = Ok(());
        loop {
            let page =
                self.store.list(from, false, after.as_deref()).await.map_err(|e| error::of(from, e))?;
            for entry in page.entries {
                let Entry::Object(key, object) = entry else { continue };
                let Some(rest) = key.strip_prefix(from).filter(|rest| !rest.is_empty()) else { continue };
                let new_key = format!("{to}{rest}");
                if new_key.len() > names::KEY_MAX {
                    failed = Err(Error::NameTooLong);
                    break;
                }
                let token = self.small.clone().acquire_owned().await;
                let core = self.clone();
                tasks.spawn(async move {
                    let _token = token;
                    let new = core.copy_one(&key, &object, &new_key, earlier).await;
                    let moved = |new| Moved { from: key.clone(), old: object.etag, to: new_key, new };
                    new.map(|new| new.map(moved)).map_err(|e| error::of(&key, e))
                });
                while let Some(done) = tasks.try_join_next() {
                    going.add(1);
                    moved.push(done.map_err(|_| Error::Closed)?);
                }
            }
            after = round.next(page.next).map_err(|e| error::of(from, e))?;
            if after.is_none() || failed.is_err() {
                break;
            }
        }
        while let Some(done) = tasks.join_next().await {
            going.add(1);
            moved.push(done.map_err(|_| Error::Closed)?);
        }
        failed?;
        let moved = moved.into_iter().filter_map(Result::transpose);
        let mut moved = moved.collect::<Result<Vec<Moved>>>()?;
        moved.sort_by(|a, b| a.to.cmp(&b.to));
        Ok(moved)
    }

    /// The ETag of the copy; `None`: it is not to be moved.
    async fn copy_one(
        self: &Arc<Self>,
        from: &str,
        object: &Object,
        to: &str,
        earlier: Earlier,
    ) -> std::result::Result<Option<ETag>, StoreError> {
        let there = match earlier {
            Earlier::Nothing => None,
            Earlier::Begun | Earlier::Copied(_) => match self.store.head(to).await {
                Ok(there) => Some(there),
                Err(StoreError::NotFound) => None,
                Err(e) => return Err(e),
            },
        };
        match (earlier, there) {
            (Earlier::Copied(then), Some(there)) => {
                let newer = object.modified >= then + SECOND && there.etag != object.etag;
                if newer {
                    tracing::warn!("{from}: changed since it was copied to {to}; it stays");
                }
                return Ok((!newer).then_some(there.etag));
            }
            // A copy of the same object is there already. (The ETag of one in parts may change with a copy: then it is made again.)
            (Earlier::Begun, Some(there))
                if there.etag == object.etag && there.modified >= object.modified =>
            {
                return Ok(Some(there.etag));
            }
            _ => {}
        }
        let class = object.headers.contains_key(STORAGE_CLASS);
        self.copy_kept((from, &object.etag, object.size), to, class).await.map(Some)
    }

    /// Copies an object with all that it says of itself. `class`: also where it is kept, which a copy within the store does not take over.
    pub async fn copy_kept(
        self: &Arc<Self>,
        (from, etag, size): (&str, &ETag, u64),
        to: &str,
        class: bool,
    ) -> std::result::Result<ETag, StoreError> {
        let about = match class {
            true => Some(Description::of(self.store.head(from).await?)),
            false => None,
        };
        self.copy_object((from, etag, size), to, about.as_ref()).await
    }

    /// Removes what was moved.
    async fn delete_all(self: &Arc<Self>, moved: &[Moved], going: &Going) -> Result<()> {
        going.step("removed", moved.len() as u64);
        let (mut tasks, mut out) = (JoinSet::new(), Ok(()));
        for one in moved {
            let token = self.small.clone().acquire_owned().await;
            while let Some(done) = tasks.try_join_next() {
                going.add(1);
                out = out.and(done.map_err(|_| Error::Closed)?);
            }
            let (core, key, etag) = (self.clone(), one.from.clone(), one.old.clone());
            tasks.spawn(async move {
                let _token = token;
                match core.delete_if(&key, &etag).await {
                    Ok(()) | Err(StoreError::NotFound) => Ok(()),
                    Err(StoreError::Precondition) => {
                        tracing::warn!(
                            "{key}: changed by somebody else while its directory was renamed; it stays"
                        );
                        Ok(())
                    }
                    Err(e) => Err(error::of(&key, e)),
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            going.add(1);
            out = out.and(done.map_err(|_| Error::Closed)?);
        }
        out
    }
}

/// What says in metadata, which has little room, that a directory goes to this key.
fn goal(key: &str) -> String {
    let whole = percent_encode(key);
    if whole.len() <= GOAL_MOST {
        return whole;
    }
    let hash = ring::digest::digest(&ring::digest::SHA256, key.as_bytes());
    hash.as_ref().iter().fold("sha256:".to_string(), |text, byte| text + &format!("{byte:02x}"))
}

fn marker_of(about: &About) -> Result<crate::store::Description> {
    let mut description = about.description()?;
    description.content_type = Some(crate::attrs::DIRECTORY_TYPE.into());
    Ok(description)
}

/// What the names of a rename were found to lead to.
struct Names<'a> {
    from: (Ino, &'a str),
    ino: Ino,
    to: (Ino, &'a str),
    target: Option<Ino>,
}

impl Names<'_> {
    /// Whether they do still.
    fn hold(&self, tree: &Tree) -> bool {
        let child = |(dir, name)| tree.child(dir, name);
        child(self.from) == Some(self.ino) && child(self.to) == self.target
    }
}

/// See [`Core::moving`].
struct Moving<S: Store>(Arc<Core<S>>, Ino);

impl<S: Store> Drop for Moving<S> {
    fn drop(&mut self) {
        if let Ok(inode) = self.0.tree.lock().get_mut(self.1) {
            inode.moving = false;
        }
    }
}

/// An object that was copied.
#[derive(Debug)]
struct Moved {
    from: String,
    old: ETag,
    to: String,
    new: ETag,
}

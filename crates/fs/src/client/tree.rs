//! Calls that do more than one thing: whole files, whole trees.

use super::{Client, File, OpenOptions, ReadDir, bytes, fresh, ordinary};
use crate::contract::FileSystem;
use crate::error::{Error, Result};
use crate::types::*;
use format::Ino;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

impl<F: FileSystem> Client<F> {
    /// The content of a file. `AccessDenied`, `IsDirectory`, `TooLarge` (for memory).
    pub async fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let mut file = self.open(path, OpenOptions::new().read(true)).await?;
        if file.kind() == FileType::Directory {
            return Err(Error::IsDirectory);
        }
        let mut content = Vec::new();
        file.read_to_end(&mut content).await?;
        file.close().await?;
        Ok(content)
    }

    /// Writes a whole file, made or emptied before; not durable until synced. `AccessDenied`, `IsDirectory`, `TooLarge`. An error
    /// may leave the file empty or with the first part.
    pub async fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<()> {
        let options = OpenOptions::new().write(true).create(true).truncate(true);
        let file = self.open(path, options).await?;
        file.write_all_at(content.as_ref(), 0).await?;
        file.close().await
    }

    /// Copies the content and permission bits of a file to another, made or emptied before, and returns the number of bytes.
    /// `AccessDenied`, `IsDirectory`, `Invalid` (both are the same file, or the source is not a regular file). An error may leave a part.
    pub async fn copy(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<u64> {
        let from = self.open(from, OpenOptions::new().read(true)).await?;
        if from.kind() == FileType::Directory {
            return Err(Error::IsDirectory);
        }
        let perm = from.metadata().await?.perm;
        let to = self.open(to, OpenOptions::new().write(true).create(true).mode(perm & 0o777)).await?;
        if from.ino() == to.ino() {
            return Err(Error::Invalid("a file cannot be copied onto itself"));
        }
        to.set_len(0).await?;
        let mut done = 0;
        loop {
            match from.copy_range(done, &to, done, 1 << 30).await? {
                0 => break,
                n => done += n,
            }
        }
        to.chmod(perm).await?;
        from.close().await?;
        to.close().await?;
        Ok(done)
    }

    /// Makes a directory and all those on the way that do not exist, with mode 0777 less the umask.
    /// `Exists` (as something else than a directory), `AccessDenied`. An error leaves the directories made before it.
    pub async fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = bytes(&path);
        let is_end = |at: usize| path[at] != b'/' && path.get(at + 1).is_none_or(|&b| b == b'/');
        let ends: Vec<usize> = (0..path.len()).filter(|&at| is_end(at)).map(|at| at + 1).collect();
        // Back to the longest prefix that exists or can be made, then forth again.
        let mut made = ends.len();
        let mut last = Err(Error::Exists);
        while made > 0 {
            last = self.mkdir_bytes(&path[..ends[made - 1]], 0o777).await;
            match last {
                Err(Error::NotFound) if made > 1 => made -= 1,
                _ => break,
            }
        }
        for &end in &ends[made..] {
            match last {
                Ok(_) | Err(Error::Exists) => last = self.mkdir_bytes(&path[..end], 0o777).await,
                Err(e) => return Err(e),
            }
        }
        match last {
            Ok(_) => Ok(()),
            Err(Error::Exists) => {
                let attr = fresh!(self.resolve(path, true))?;
                if attr.kind == FileType::Directory { Ok(()) } else { Err(Error::Exists) }
            }
            Err(e) => Err(e),
        }
    }

    /// Removes a directory with all that is in it. Symlinks are removed, never followed, and nobody who exchanges names
    /// meanwhile can lead the call elsewhere: it goes by inodes.
    /// `NotDirectory`, `AccessDenied`, `NotEmpty` (entries are made all the time), `Busy` ("/", ".", ".."). An error leaves
    /// what was not yet removed.
    pub async fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = bytes(&path);
        fresh!(self.remove_tree(path))
    }

    async fn remove_tree(&self, path: &[u8]) -> Result<()> {
        let (parent, name, _) = self.parent(path).await?;
        if !ordinary(name) {
            return Err(Error::Busy("\"/\", \".\" and \"..\" cannot be removed".into()));
        }
        let top = self.fs().lookup(self.cred(), parent, name).await?;
        if top.kind != FileType::Directory {
            return Err(Error::NotDirectory);
        }
        // A directory is met twice: emptied of all but directories, and, when those are gone, removed.
        let mut todo = vec![(parent, name.to_vec(), top.ino, false)];
        while let Some((parent, name, ino, emptied)) = todo.pop() {
            if emptied {
                gone(self.fs().rmdir(self.cred(), parent, &name).await)?;
            } else {
                todo.push((parent, name, ino, true));
                for (name, child) in self.remove_files(ino).await? {
                    todo.push((ino, name, child, false));
                }
            }
        }
        Ok(())
    }

    /// Removes everything but directories from a directory, and returns those.
    async fn remove_files(&self, ino: Ino) -> Result<Vec<(Vec<u8>, Ino)>> {
        let handle = match self.fs().opendir(self.cred(), ino).await {
            Ok(handle) => handle,
            Err(Error::Stale) => return Ok(Vec::new()),
            Err(e) => return Err(e),
        };
        let flags = OpenFlags::READ;
        let dir = File::new(self.shared.clone(), ino, FileType::Directory, handle, flags);
        let mut scan = ReadDir::new(dir)?;
        let mut dirs = Vec::new();
        while let Some(entry) = scan.next().await {
            let entry = entry?;
            if entry.attr.kind == FileType::Directory {
                dirs.push((entry.name.as_bytes().to_vec(), entry.attr.ino));
            } else {
                gone(self.fs().unlink(self.cred(), ino, entry.name.as_bytes()).await)?;
            }
        }
        scan.close().await?;
        Ok(dirs)
    }
}

/// What is gone already need not be removed.
fn gone(removed: Result<()>) -> Result<()> {
    match removed {
        Err(Error::NotFound | Error::Stale) => Ok(()),
        done => done,
    }
}

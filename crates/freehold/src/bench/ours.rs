//! Freehold in this process: the library's blocking calls by path, and the async calls of its files.

use super::sample::DeviceOps;
use super::subject::{How, Name, Subject};
use crate::medium::{Device, open_media};
use anyhow::{Context, Result, ensure};
use block::{MkfsOptions, Volume};
use fs::client::BlockingFile;
use fs::{Blocking, Client, Cred, OpenOptions, RenameFlags};
use media::uring::Options;
use media::{Arena, ArenaId, Completion, Geometry, Media, MediaError, Request, UringMedia, Wait};
use std::path::Path;
use std::sync::Arc;

/// An open volume.
pub struct Ours {
    /// The engine.
    pub volume: Volume,
    media: Arc<dyn Device>,
    /// Its calls in this process.
    pub client: Blocking<Volume>,
}

/// A medium that does not offer discard: mkfs must leave the image file allocated, as the peers' mkfs is told to.
struct Undiscarded(UringMedia, Geometry);

impl Media for Undiscarded {
    fn geometry(&self) -> &Geometry {
        &self.1
    }
    fn register(&self, arena: Arc<Arena>) -> Result<ArenaId, MediaError> {
        self.0.register(arena)
    }
    fn unregister(&self, arena: ArenaId) {
        self.0.unregister(arena);
    }
    fn submit(&self, request: Request) {
        self.0.submit(request)
    }
    fn kick(&self) {
        self.0.kick()
    }
    fn reap(&self, out: &mut Vec<Completion>, wait: Wait) {
        self.0.reap(out, wait)
    }
    fn wake(&self) {
        self.0.wake()
    }
}

/// Makes a volume with default options on an image or device.
pub fn mkfs(path: &Path) -> Result<()> {
    let media = UringMedia::open(path, Options::default())?;
    let geometry = Geometry { discard: false, ..media.geometry().clone() };
    let options = MkfsOptions { force: true, owner: owner(), ..MkfsOptions::default() };
    block::mkfs(Arc::new(Undiscarded(media, geometry)), &options).context("making a volume")?;
    Ok(())
}

fn owner() -> (u32, u32) {
    let cred = Cred::of_process();
    (cred.uid, cred.gid)
}

impl Ours {
    /// Opens a volume on any medium with default options, but for the size of the page cache when one is given.
    pub fn open(path: &Path, cache_bytes: Option<usize>) -> Result<Ours> {
        let media = open_media(path, false, None)?;
        let mut options = block::OpenOptions::default();
        if let Some(bytes) = cache_bytes {
            options.cache_bytes = bytes;
            options.dirty_bytes_max = options.dirty_bytes_max.min(bytes / 2);
        }
        let volume = Volume::open(media.clone(), options).context("opening the volume")?;
        let client = Client::new(Arc::new(volume.clone()), Cred::of_process()).blocking();
        Ok(Ours { volume, media, client })
    }

    /// Stops the volume cleanly.
    pub fn close(self) -> Result<()> {
        Ok(self.volume.close_blocking()?)
    }
}

impl Subject for Ours {
    type File = BlockingFile<Volume>;

    fn mkdir(&self, dir: &str) -> Result<()> {
        self.client.mkdir(dir, 0o755)?;
        Ok(())
    }

    #[inline]
    fn open(&self, name: &Name, how: How) -> Result<Self::File> {
        const NEW: OpenOptions = OpenOptions::new().write(true).create_new(true).mode(0o644);
        let options = match how {
            How::New => NEW,
            How::NewAppend => NEW.append(true),
            How::Read => OpenOptions::new().read(true),
            How::Write => OpenOptions::new().read(true).write(true),
        };
        Ok(self.client.open(name.as_str(), options)?)
    }

    #[inline]
    fn close(&self, file: Self::File) -> Result<()> {
        Ok(file.close()?)
    }

    #[inline]
    fn stat(&self, name: &Name) -> Result<u64> {
        Ok(self.client.stat(name.as_str())?.size)
    }

    #[inline]
    fn unlink(&self, name: &Name) -> Result<()> {
        Ok(self.client.unlink(name.as_str())?)
    }

    #[inline]
    fn rmdir(&self, dir: &str) -> Result<()> {
        Ok(self.client.rmdir(dir)?)
    }

    #[inline]
    fn rename(&self, from: &Name, to: &Name) -> Result<()> {
        Ok(self.client.rename(from.as_str(), to.as_str(), RenameFlags::empty())?)
    }

    fn list(&self, dir: &str) -> Result<(u64, u64)> {
        let (mut n, mut bytes) = (0, 0);
        for entry in self.client.read_dir(dir)? {
            bytes += entry?.name.len() as u64;
            n += 1;
        }
        Ok((n, bytes))
    }

    fn read_at(&self, file: &Self::File, to: &mut [u8], offset: u64) -> Result<()> {
        let n = file.read_at(to, offset)?;
        ensure!(n == to.len(), "read {n} of {} bytes", to.len());
        Ok(())
    }

    fn write_at(&self, file: &Self::File, from: &[u8], offset: u64) -> Result<()> {
        Ok(file.write_all_at(from, offset)?)
    }

    fn fsync(&self, file: &Self::File) -> Result<()> {
        Ok(file.fsync()?)
    }

    fn barrier(&self, file: &Self::File) -> Option<Result<()>> {
        Some(file.fbarrier().map_err(Into::into))
    }

    fn sync(&self) -> Result<()> {
        Ok(self.client.sync()?)
    }

    fn drop_caches(&self) -> Result<()> {
        Ok(fs::block_on(self.volume.drop_caches())?)
    }

    fn device(&self) -> Option<DeviceOps> {
        let (media, engine) = (self.media.counters(), self.volume.counters());
        Some(DeviceOps {
            reads: media.reads,
            writes: media.writes,
            flushes: media.flushes,
            bytes_read: media.bytes_read,
            bytes_written: media.bytes_written,
            log_blocks: engine.log_blocks,
            epochs: engine.epochs,
        })
    }
}

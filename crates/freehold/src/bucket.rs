//! A bucket of an object store in service: its URL and options, the engine over the S3 client, and the mount.

use fuse::{Mount, MountOptions};
use object::progress::Operation;
use object::s3::{Kind, S3};
use object::{Bucket, ObjectFs};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::observe::Door;
use crate::options::{format_size, parse_address};

pub use object::bucket::is_url;

/// Where a bucket is, how it is used, and how it is mounted.
#[derive(Clone, Debug)]
pub struct BucketOptions {
    /// Where it is, and how the engine uses it.
    pub bucket: Bucket,
    /// How it is mounted.
    pub mount: MountOptions,
    /// Where metrics are told over HTTP; `None`: nowhere.
    pub metrics: Option<SocketAddr>,
}

impl BucketOptions {
    /// Reads words of `-o`. What is not the bucket's is an option of the mount ([`MountOptions`]). With `sloppy` words that nobody understands are
    /// passed over.
    ///
    /// # Errors
    /// A sentence that names the word that is not understood or whose value is wrong, or says what is wrong with the URL.
    pub fn parse<'a>(
        url: &str,
        words: impl IntoIterator<Item = &'a str>,
        sloppy: bool,
    ) -> Result<BucketOptions, String> {
        let words = object::bucket::words(words);
        let bucket = Bucket::new(url, &words)?;
        let mount = MountOptions {
            exclusive: false,
            direct_writes: true,
            fsname: url.into(),
            ..MountOptions::default()
        };
        let mut options = BucketOptions { bucket, mount, metrics: None };
        let mut timeouts = false;
        for word in words {
            timeouts |= word.contains("timeout=");
            if let Err(e) = options.set(word)
                && !(sloppy && MountOptions::is_unknown(&e))
            {
                return Err(e);
            }
        }
        if !timeouts {
            let expiry = options.bucket.engine.expiry;
            let mount = &mut options.mount;
            (mount.entry_timeout, mount.attr_timeout, mount.negative_timeout) = (expiry, expiry, expiry);
        }
        options.bucket.set_read_only(options.mount.read_only);
        Ok(options)
    }

    fn set(&mut self, word: &str) -> Result<(), String> {
        if let Some(address) = word.strip_prefix("metrics=") {
            self.metrics = Some(parse_address(address).map_err(|e| format!("option '{word}': {e}"))?);
            return Ok(());
        }
        // By the type the other commands know what is theirs.
        if word.split('=').next() == Some("subtype") {
            return Err(format!("option '{word}': the type is always fuse.freehold"));
        }
        if self.bucket.set(word)? { Ok(()) } else { self.mount.set(word) }
    }
}

/// An open and mounted bucket.
pub struct BucketService {
    /// The engine.
    pub fs: Arc<ObjectFs<S3>>,
    /// The door.
    pub mount: Mount,
    url: String,
    begun: Instant,
}

/// Everything that is counted of a bucket in service.
#[derive(Clone, Debug, Default)]
pub struct BucketSnapshot {
    /// What is served.
    pub url: String,
    /// Seconds since it is served.
    pub uptime_seconds: f64,
    /// Files that are open.
    pub opens: usize,
    /// Files and directories of which something is in memory.
    pub known: usize,
    /// Data on their way to the store, bytes, and the most that there was.
    pub writing: (u64, u64),
    /// Data that were read ahead, bytes, and the most that there was.
    pub reading: (u64, u64),
    /// Requests to the store by their names in the S3 API, repeated ones too.
    pub requests: Vec<(&'static str, u64)>,
    /// Requests that were sent again.
    pub retries: u64,
    /// Bytes of bodies sent.
    pub sent: u64,
    /// Bytes of bodies received.
    pub received: u64,
    /// Operations on many objects, by sort.
    pub operations: Vec<Operations>,
    /// Calls through the mount.
    pub door: Door,
}

/// Operations of one sort on many objects.
#[derive(Clone, Debug, Default)]
pub struct Operations {
    /// Its name.
    pub operation: &'static str,
    /// Those that go on.
    pub running: u64,
    /// Objects of their present steps, where that is known.
    pub total: u64,
    /// Objects with which these steps are done.
    pub done: u64,
    /// Those that are over.
    pub over: u64,
    /// Objects that steps were done with, in all.
    pub objects: u64,
}

impl BucketService {
    /// Mounts an open bucket at `point`.
    ///
    /// # Errors
    /// Those of [`fuse::mount`].
    pub fn start(fs: ObjectFs<S3>, point: &Path, options: &BucketOptions) -> io::Result<BucketService> {
        let fs = Arc::new(fs);
        let mount = fuse::mount(fs.clone(), point, options.mount.clone())?;
        Ok(BucketService { fs, mount, url: options.mount.fsname.clone(), begun: Instant::now() })
    }

    /// Everything now.
    pub fn snapshot(&self) -> BucketSnapshot {
        let counters = self.fs.store().counters();
        let [writing, reading] = self.fs.memory();
        let (progress, running) = (self.fs.progress(), self.fs.progress().running());
        let operations = Operation::ALL.iter().map(|&operation| {
            let these = || running.iter().filter(|r| r.operation == operation);
            let sums = progress.sums(operation);
            Operations {
                operation: operation.name(),
                running: these().count() as u64,
                total: these().filter_map(|r| r.total).sum(),
                done: these().map(|r| r.done).sum(),
                over: sums.over,
                objects: sums.objects,
            }
        });
        BucketSnapshot {
            url: self.url.clone(),
            uptime_seconds: self.begun.elapsed().as_secs_f64(),
            opens: self.fs.opens(),
            known: self.fs.known(),
            writing,
            reading,
            requests: Kind::ALL.iter().map(|&kind| (kind.name(), counters.requests(kind))).collect(),
            retries: counters.retries(),
            sent: counters.sent(),
            received: counters.received(),
            operations: operations.collect(),
            door: Door::new("fuse", self.mount.meter().stats()),
        }
    }

    /// What goes on, in lines for people.
    pub fn report(&self) -> Vec<String> {
        let s = self.snapshot();
        let requests: Vec<String> =
            s.requests.iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{name} {n}")).collect();
        let size = format_size;
        let mut lines = vec![
            format!("{}: {:.0} s, {} files open, {} known", s.url, s.uptime_seconds, s.opens, s.known),
            format!("requests: {} ({} sent again)", requests.join(", "), s.retries),
            format!("sent {}, received {}", size(s.sent), size(s.received)),
            format!(
                "memory: {} for writing (at most {}), {} for reading (at most {})",
                size(s.writing.0),
                size(s.writing.1),
                size(s.reading.0),
                size(s.reading.1)
            ),
        ];
        lines.extend(self.fs.progress().running().iter().map(ToString::to_string));
        lines
    }

    /// Unmounts. When after `patience` files are still open, or it is mounted at other places too, all its mounts end by force: what of the files is
    /// not closed is lost.
    ///
    /// # Errors
    /// Those of [`Mount::unmount_within`]; something is still mounted then.
    pub fn stop(&self, patience: Duration) -> io::Result<()> {
        self.mount.unmount_within(patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_a_bucket() {
        let words =
            ["endpoint=http://127.0.0.1:9000,region=x,ro", "uid=5,expiry=3,noexec,metrics=[::1]:9464"];
        let o = BucketOptions::parse("s3://logs/2026", words, false).unwrap();
        assert_eq!(o.bucket.config.endpoint.as_deref(), Some("http://127.0.0.1:9000"));
        assert!(o.bucket.engine.read_only && !o.bucket.config.writable);
        assert!(o.mount.read_only && !o.mount.exec && !o.mount.exclusive);
        assert_eq!((o.bucket.engine.defaults.uid, o.metrics.unwrap().port()), (5, 9464));
        assert_eq!(o.mount.attr_timeout, Duration::from_secs(3));
        assert_eq!(o.mount.fsname, "s3://logs/2026");
        for bad in ["wibble", "umask=9", "metrics=x", "subtype=x"] {
            let e = BucketOptions::parse("s3://logs", [bad], false).err().unwrap();
            assert!(e.contains(bad), "{e}");
        }
        assert!(BucketOptions::parse("s3://logs", ["wibble"], true).is_ok());
        assert!(BucketOptions::parse("s3://", [], false).is_err());
    }
}

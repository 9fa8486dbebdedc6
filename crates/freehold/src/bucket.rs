//! A bucket of an object store in service: its URL and options, the engine over the S3 client, and the mount.

use fuse::{Mount, MountOptions};
use object::progress::Operation;
use object::s3::{Config, Environment, Kind, S3, Source};
use object::store::StoreError;
use object::{ObjectFs, Options};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::observe::Door;
use crate::options::{format_size, parse_address, parse_size};

/// Whether a source names a bucket.
pub fn is_url(source: &Path) -> bool {
    source.to_str().is_some_and(|text| text.starts_with("s3://"))
}

/// Where a bucket is, and how it is used.
#[derive(Clone, Debug)]
pub struct BucketOptions {
    /// How the store is reached.
    pub config: Config,
    /// How the engine uses it.
    pub engine: Options,
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
        let words: Vec<&str> =
            words.into_iter().flat_map(|w| w.split(',')).map(str::trim).filter(|w| !w.is_empty()).collect();
        let profile = words.iter().rev().find_map(|w| w.strip_prefix("profile="));
        let environment = match profile {
            Some(name) => Environment::of_process().with_profile(name),
            None => Environment::of_process(),
        };
        let config = Config::new(url, environment)?;
        let mut engine = Options::default();
        // SAFETY: these calls have no preconditions.
        (engine.defaults.uid, engine.defaults.gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        let mount = MountOptions {
            exclusive: false,
            direct_writes: true,
            fsname: url.into(),
            ..MountOptions::default()
        };
        let mut options = BucketOptions { config, engine, mount, metrics: None };
        let mut timeouts = false;
        for word in words {
            timeouts |= word.contains("timeout=");
            if let Err(e) = options.set(word)
                && !(sloppy && e.contains("unknown"))
            {
                return Err(e);
            }
        }
        if !timeouts {
            let expiry = options.engine.expiry;
            let mount = &mut options.mount;
            (mount.entry_timeout, mount.attr_timeout, mount.negative_timeout) = (expiry, expiry, expiry);
        }
        options.engine.read_only = options.mount.read_only;
        options.config.writable = !options.mount.read_only;
        Ok(options)
    }

    fn set(&mut self, word: &str) -> Result<(), String> {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        let wrong = |what: &str| format!("option '{word}': expected {what}");
        let size = || parse_size(value).map_err(|e| format!("option '{word}': {e}"));
        let (config, engine) = (&mut self.config, &mut self.engine);
        match key {
            "endpoint" => config.endpoint = Some(value.into()),
            "region" => config.region = Some(value.into()),
            "profile" => {}
            "path_style" if word == key => config.path_style = Some(true),
            "virtual_host" if word == key => config.path_style = Some(false),
            "anonymous" if word == key => config.credentials = Source::Anonymous,
            // A server in the background leaves the directory where it was started.
            "ca" => {
                let path = std::path::absolute(value).map_err(|e| format!("option '{word}': {e}"))?;
                config.authorities = Some(path);
            }
            "uid" => engine.defaults.uid = value.parse().map_err(|_| wrong("a number"))?,
            "gid" => engine.defaults.gid = value.parse().map_err(|_| wrong("a number"))?,
            "umask" => {
                let mask = u16::from_str_radix(value, 8).ok().filter(|&mask| mask <= 0o777);
                engine.defaults.umask = mask.ok_or_else(|| wrong("an octal number up to 777"))?;
            }
            "part_size" => engine.part_size = size()?.clamp(1 << 20, 5 << 30),
            "cache" => {
                let memory = size()?.max(16 << 20);
                (engine.write_memory, engine.read_memory) = (memory / 2, memory / 2);
            }
            "window" => engine.read_ahead = size()?,
            "uploads" => {
                let n = value.parse().ok().filter(|&n| (1..=256).contains(&n));
                engine.uploads = n.ok_or_else(|| wrong("a number from 1 to 256"))?;
            }
            "expiry" => {
                let seconds = value.parse().ok().filter(|s| (0.0..=86400.0).contains(s));
                engine.expiry = Duration::from_secs_f64(seconds.ok_or_else(|| wrong("seconds up to 86400"))?);
            }
            "metrics" => {
                self.metrics = Some(parse_address(value).map_err(|e| format!("option '{word}': {e}"))?)
            }
            "listed_attributes" if word == key => engine.listed_attributes = true,
            _ => return self.mount.set(word),
        }
        Ok(())
    }

    /// Opens the bucket.
    ///
    /// # Errors
    /// Those of the store, in words that say what to do: no such bucket, wrong key, no network.
    pub fn open(&self) -> Result<ObjectFs<S3>, StoreError> {
        let config = self.config.clone();
        ObjectFs::start(move || S3::open(config), self.engine.clone())
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

    /// Unmounts. When files are still open after `patience`, they lose their mount: what of them is not closed is lost.
    ///
    /// # Errors
    /// Those of umount(2); it is still mounted then.
    pub fn stop(&self, patience: Duration) -> io::Result<()> {
        let until = std::time::Instant::now() + patience;
        loop {
            match self.mount.unmount() {
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {}
                other => return other,
            }
            if std::time::Instant::now() >= until {
                return self.mount.unmount_now();
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_a_bucket() {
        let words =
            ["endpoint=http://127.0.0.1:9000,region=x,ro", "uid=5,umask=077,cache=64m,expiry=3,noexec"];
        let o = BucketOptions::parse("s3://logs/2026", words, false).unwrap();
        assert_eq!((o.config.bucket.as_str(), o.config.prefix.as_str()), ("logs", "2026/"));
        assert_eq!(o.config.endpoint.as_deref(), Some("http://127.0.0.1:9000"));
        assert!(
            o.engine.read_only
                && o.mount.read_only
                && !o.config.writable
                && !o.mount.exec
                && !o.mount.exclusive
        );
        assert_eq!((o.engine.defaults.uid, o.engine.defaults.umask), (5, 0o077));
        assert_eq!((o.engine.write_memory, o.engine.read_memory), (32 << 20, 32 << 20));
        assert_eq!(o.mount.attr_timeout, Duration::from_secs(3));
        assert_eq!(o.mount.fsname, "s3://logs/2026");
        for bad in ["wibble", "umask=9", "uid=x", "uploads=0", "cache=x", "expiry=-1", "path_style=1"] {
            let e = BucketOptions::parse("s3://logs", [bad], false).err().unwrap();
            assert!(e.contains(bad.split('=').next().unwrap()), "{e}");
        }
        assert!(BucketOptions::parse("s3://logs", ["wibble"], true).is_ok());
        assert!(BucketOptions::parse("s3://", [], false).is_err());
        assert!(is_url(Path::new("s3://logs")) && !is_url(Path::new("/srv/s3:")));
    }
}

//! A bucket as people name it: its URL, and words of options that say how it is reached and used. Every door that opens buckets reads them here.

use crate::ObjectFs;
use crate::options::Options;
use crate::s3::{Config, Environment, S3, Source};
use crate::store::StoreError;
use fs::units::parse_size;
use std::path::Path;
use std::time::Duration;

/// Whether a source names a bucket.
pub fn is_url(source: &Path) -> bool {
    source.to_str().is_some_and(|text| text.starts_with("s3://"))
}

/// The words of a list of options, which commas part.
pub fn words<'a>(lists: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    lists.into_iter().flat_map(|w| w.split(',')).map(str::trim).filter(|w| !w.is_empty()).collect()
}

/// Where a bucket is, and how it is used.
#[derive(Clone, Debug)]
pub struct Bucket {
    /// How the store is reached.
    pub config: Config,
    /// How the engine uses it.
    pub engine: Options,
}

impl Bucket {
    /// A bucket by its URL, as the environment and the profile say that is named among `words`. What others have put there without saying whose it
    /// is belongs to the user of this process. The other words are for [`Bucket::set`].
    ///
    /// # Errors
    /// A sentence that says what is wrong with the URL, the profile or its files.
    pub fn new(url: &str, words: &[&str]) -> Result<Bucket, String> {
        let profile = words.iter().rev().find_map(|w| w.strip_prefix("profile="));
        let environment = match profile {
            Some(name) => Environment::of_process().with_profile(name),
            None => Environment::of_process(),
        };
        let config = Config::new(url, environment)?;
        let mut engine = Options::default();
        // SAFETY: these calls have no preconditions.
        (engine.defaults.uid, engine.defaults.gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        Ok(Bucket { config, engine })
    }

    /// As [`Bucket::new`], with all that a list of options says: `ro`, `rw`, and what [`Bucket::set`] knows.
    ///
    /// # Errors
    /// As of [`Bucket::new`] and [`Bucket::set`], and for words that are not known.
    pub fn parse(url: &str, options: &str) -> Result<Bucket, String> {
        let words = words([options]);
        let mut bucket = Bucket::new(url, &words)?;
        for word in words {
            match word {
                "ro" => bucket.set_read_only(true),
                "rw" => bucket.set_read_only(false),
                _ if bucket.set(word)? => {}
                _ => return Err(format!("unknown option '{word}'")),
            }
        }
        Ok(bucket)
    }

    /// Reads a word. False: it is none of a bucket's.
    ///
    /// # Errors
    /// A sentence that names the word whose value is wrong.
    pub fn set(&mut self, word: &str) -> Result<bool, String> {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        let wrong = |what: &str| format!("option '{word}': expected {what}");
        let size = || parse_size(value).map_err(|e| format!("option '{word}': {e}"));
        let Bucket { config, engine } = self;
        match key {
            "endpoint" if value.starts_with("http://") || value.starts_with("https://") => {
                config.endpoint = Some(value.into());
            }
            "endpoint" => return Err(wrong("a URL that begins with http:// or https://")),
            "region" => config.region = Some(value.into()),
            // Read before all others.
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
            "listed_attributes" if word == key => engine.listed_attributes = true,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Whether nothing may be changed.
    pub fn set_read_only(&mut self, on: bool) {
        self.engine.read_only = on;
        self.config.writable = !on;
    }

    /// Opens it.
    ///
    /// # Errors
    /// Those of the store, in words that say what to do: no such bucket, wrong key, no network.
    pub fn open(&self) -> Result<ObjectFs<S3>, StoreError> {
        let config = self.config.clone();
        ObjectFs::start(move || S3::open(config), self.engine.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_bucket() {
        let b = Bucket::parse(
            "s3://logs/2026",
            "endpoint=http://127.0.0.1:9000, region=x,,ro,uid=5,umask=077,cache=64m,expiry=3",
        )
        .unwrap();
        assert_eq!((b.config.bucket.as_str(), b.config.prefix.as_str()), ("logs", "2026/"));
        assert_eq!(b.config.endpoint.as_deref(), Some("http://127.0.0.1:9000"));
        assert!(b.engine.read_only && !b.config.writable);
        assert_eq!((b.engine.defaults.uid, b.engine.defaults.umask), (5, 0o077));
        assert_eq!((b.engine.write_memory, b.engine.read_memory), (32 << 20, 32 << 20));
        assert_eq!(b.engine.expiry, Duration::from_secs(3));
        assert!(!Bucket::parse("s3://logs", "ro,rw").unwrap().engine.read_only);
        for bad in
            ["wibble", "umask=9", "uid=x", "uploads=0", "cache=x", "expiry=-1", "path_style=1", "endpoint=x"]
        {
            let e = Bucket::parse("s3://logs", bad).unwrap_err();
            assert!(e.contains(bad.split('=').next().unwrap()), "{e}");
        }
        assert!(Bucket::parse("s3://", "").is_err() && Bucket::parse("/srv", "").is_err());
        assert!(is_url(Path::new("s3://logs")) && !is_url(Path::new("/srv/s3:")));
    }
}

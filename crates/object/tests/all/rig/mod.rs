//! A bucket in memory that behaves as the strictest S3 does, and mounts of it that can fail, wait and stop at any call.
//!
//! A [`Bucket`] is what is durable; each [`Mount`] is one client of it with faults of its own. When a mount stops, its calls have no answer any more;
//! the one at which it stopped may have taken effect or not.
#![allow(dead_code, reason = "each test uses a part of it")]

mod bucket;
mod paths;

use bytes::Bytes;
use fs::OpenFlags;
use object::store::*;
use object::{ObjectFs, Options};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub use bucket::Bucket;
use bucket::{Pending, etag};
pub use paths::Paths;

/// What goes wrong with the calls of one mount.
#[derive(Clone, Default)]
pub struct Faults {
    /// Stops with this call (from 0); its effect happens if the seed says so.
    pub stop_at: Option<u64>,
    /// Of 1,000 calls so many fail without an effect.
    pub failing: u32,
    /// Of 1,000 calls so many wait a little.
    pub waiting: u32,
    /// The answer to the next head is on its way for so many milliseconds.
    pub late: Arc<AtomicU64>,
    /// Between reading and writing of the next copy there are so many milliseconds.
    pub slow_copy: Arc<AtomicU64>,
    pub seed: u64,
}

/// One client of a bucket.
pub struct Mount {
    pub bucket: Arc<Mutex<Bucket>>,
    abilities: Abilities,
    faults: Mutex<(Faults, StdRng)>,
    calls: Arc<AtomicU64>,
    under_way: AtomicU64,
    page: usize,
    refused: Mutex<Vec<(&'static str, StoreError)>>,
    slow: Mutex<Vec<(&'static str, Duration)>>,
    /// Calls that are done and whose answers come late; `None`: never.
    late: Mutex<Vec<(&'static str, Option<Duration>)>>,
    /// A key that each listing has, wherever it belongs.
    foreign: Mutex<Option<String>>,
    /// Listings have no end.
    endless: AtomicBool,
}

impl Mount {
    /// Of 1,000 calls so many fail from now on.
    pub fn set_failing(&self, failing: u32) {
        self.faults.lock().0.failing = failing;
    }

    /// Waits until all calls have been answered, and those who made them have had time to take that in.
    pub fn wait_until_quiet(&self) {
        const LONG: Duration = Duration::from_millis(20);
        let mut since = Instant::now();
        while since.elapsed() < LONG {
            if self.under_way.load(Ordering::SeqCst) > 0 {
                since = Instant::now();
            }
            std::thread::sleep(LONG / 10);
        }
    }

    /// From now on each listing has this key too.
    pub fn list_foreign(&self, key: &str) {
        *self.foreign.lock() = Some(key.to_string());
    }

    /// From now on listings go round for ever, in three pages of one and the same.
    pub fn list_endless(&self) {
        self.endless.store(true, Ordering::SeqCst);
    }

    /// From now on calls of this name are refused.
    pub fn refuse(&self, name: &'static str, error: Option<StoreError>) {
        self.refused.lock().retain(|(refused, _)| *refused != name);
        self.refused.lock().extend(error.map(|error| (name, error)));
    }

    /// The next call of this name takes so long.
    pub fn slow(&self, name: &'static str, time: Duration) {
        self.slow.lock().push((name, time));
    }

    /// Whether all calls that were to be slow have begun.
    pub fn all_slow(&self) -> bool {
        self.slow.lock().is_empty()
    }

    /// The next call of this name is done, and its answer comes so much later; `None`: it is lost.
    pub fn answer_late(&self, name: &'static str, time: Option<Duration>) {
        self.late.lock().push((name, time));
    }

    async fn call<T>(&self, name: &'static str, run: impl FnOnce(&mut Bucket) -> Result<T>) -> Result<T> {
        struct UnderWay<'a>(&'a AtomicU64);
        impl Drop for UnderWay<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        self.under_way.fetch_add(1, Ordering::SeqCst);
        let _under_way = UnderWay(&self.under_way);
        let number = self.calls.fetch_add(1, Ordering::SeqCst);
        let (stopped, effect, fails, wait) = {
            let (faults, rng) = &mut *self.faults.lock();
            let wait = rng.random_range(0..1000) < faults.waiting;
            let fails = rng.random_range(0..1000) < faults.failing;
            let stopped = faults.stop_at.is_some_and(|at| number >= at);
            (stopped, faults.stop_at == Some(number) && rng.random::<bool>(), fails, wait)
        };
        if wait {
            tokio::time::sleep(Duration::from_micros(300)).await;
        }
        let slow = {
            let mut slow = self.slow.lock();
            let found = slow.iter().position(|(slow, _)| *slow == name);
            found.map(|at| slow.remove(at).1)
        };
        if let Some(time) = slow {
            tokio::time::sleep(time).await;
        }
        if stopped && !effect || fails {
            return Err(StoreError::Unavailable("no answer".into()));
        }
        let refused = self.refused.lock().iter().find(|(refused, _)| *refused == name).cloned();
        if let Some((_, error)) = refused {
            return Err(error);
        }
        let done = {
            let mut bucket = self.bucket.lock();
            *bucket.calls.entry(name).or_default() += 1;
            run(&mut bucket)
        };
        let late = {
            let mut late = self.late.lock();
            let found = late.iter().position(|(late, _)| *late == name);
            found.map(|at| late.remove(at).1)
        };
        match late {
            Some(Some(time)) => tokio::time::sleep(time).await,
            Some(None) => return Err(StoreError::Unavailable("no answer".into())),
            None => {}
        }
        if name == "head" {
            let late = self.faults.lock().0.late.swap(0, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(late)).await;
        }
        if stopped { Err(StoreError::Unavailable("no answer".into())) } else { done }
    }
}

impl Store for Mount {
    fn abilities(&self) -> &Abilities {
        &self.abilities
    }

    async fn head(&self, key: &str) -> Result<Object> {
        self.call("head", |b| Ok(b.object(key, None)?.1.clone())).await
    }

    async fn get(&self, key: &str, range: Range<u64>, state: Option<&ETag>) -> Result<(Bytes, Object)> {
        self.call("get", |b| {
            let (body, object) = b.object(key, state)?.clone();
            let end = range.end.min(object.size);
            let bytes = body.slice(range.start.min(end) as usize..end as usize);
            b.moved.1 += bytes.len() as u64;
            Ok((bytes, object))
        })
        .await
    }

    async fn put(&self, key: &str, body: Bytes, about: &Description, on: &Condition) -> Result<ETag> {
        assert!(!key.is_empty() && key.len() <= 1024 && body.len() as u64 <= self.abilities.single_max);
        assert!(self.abilities.conditional || *on == Condition::Always);
        self.call("put", |b| {
            b.holds(key, on)?;
            b.moved.0 += body.len() as u64;
            Ok(b.put(key, body, about, 0))
        })
        .await
    }

    async fn copy(
        &self,
        from: &str,
        to: &str,
        about: Option<&Description>,
        source: Option<&ETag>,
    ) -> Result<ETag> {
        assert!(from != to || about.is_some(), "S3 refuses a copy onto itself that changes nothing");
        let slow = self.faults.lock().0.slow_copy.swap(0, Ordering::SeqCst);
        let mut read = None;
        if slow > 0 {
            read = Some(self.bucket.lock().object(from, source)?.clone());
            tokio::time::sleep(Duration::from_millis(slow)).await;
        }
        self.call("copy", |b| {
            let (body, object) = match read {
                Some(read) => read,
                None => b.object(from, source)?.clone(),
            };
            if object.size > self.abilities.single_max {
                return Err(StoreError::Refused("too large".into()));
            }
            let mut same = Description::of(object);
            // As S3 does.
            same.headers.remove(STORAGE_CLASS);
            Ok(b.put(to, body, about.unwrap_or(&same), 0))
        })
        .await
    }

    async fn rename(&self, from: &str, to: &str, source: &ETag, on: &Condition) -> Result<()> {
        if !self.abilities.rename {
            return Err(StoreError::NotSupported("rename"));
        }
        self.call("rename", |b| {
            b.object(from, Some(source))?;
            b.holds(to, on)?;
            let object = b.objects.remove(from).expect("it is there");
            b.objects.insert(to.into(), object);
            Ok(())
        })
        .await
    }

    async fn delete(&self, key: &str, on: &Condition) -> Result<()> {
        assert!(self.abilities.conditional_delete || *on == Condition::Always);
        self.call("delete", |b| {
            if b.objects.contains_key(key) {
                b.holds(key, on)?;
                b.objects.remove(key);
            }
            Ok(())
        })
        .await
    }

    async fn list(&self, prefix: &str, delimiter: bool, after: Option<&str>) -> Result<Page> {
        let after = after.unwrap_or("").to_string();
        let (foreign, endless) = (self.foreign.lock().clone(), self.endless.load(Ordering::SeqCst));
        self.call("list", |b| {
            let mut entries: Vec<Entry> = Vec::new();
            if endless {
                let marker =
                    b.objects.get(prefix).map(|(_, object)| Entry::Object(prefix.into(), object.clone()));
                let next = match after.as_str() {
                    "A" => "B",
                    "B" => "C",
                    _ => "A",
                };
                return Ok(Page { entries: marker.into_iter().collect(), next: Some(next.into()) });
            }
            let mut last = String::new();
            for (key, (_, object)) in b.objects.range(prefix.to_string()..) {
                let Some(rest) = key.strip_prefix(prefix) else { break };
                let entry = match rest.find('/') {
                    Some(at) if delimiter => Entry::Prefix(format!("{prefix}{}", &rest[..=at])),
                    _ => Entry::Object(key.clone(), Object { metadata: Metadata::new(), ..object.clone() }),
                };
                let name = match &entry {
                    Entry::Prefix(name) | Entry::Object(name, _) => name.clone(),
                };
                if name <= after || name == last {
                    continue;
                }
                if entries.len() == self.page {
                    return Ok(Page { entries, next: Some(last) });
                }
                last = name;
                entries.push(entry);
            }
            if let Some(key) = foreign {
                let object = b.objects.values().next().expect("there is an object").1.clone();
                entries.push(Entry::Object(key, object));
            }
            Ok(Page { entries, next: None })
        })
        .await
    }

    async fn begin(&self, key: &str, about: &Description) -> Result<UploadId> {
        self.call("begin", |b| {
            b.last += 1;
            let id = format!("upload-{}", b.last);
            let pending = Pending { key: key.into(), about: about.clone(), parts: BTreeMap::new() };
            b.uploads.insert(id.clone(), pending);
            Ok(UploadId(id))
        })
        .await
    }

    async fn part(&self, key: &str, upload: &UploadId, number: u16, body: Bytes) -> Result<Part> {
        assert!(number >= 1 && number <= self.abilities.parts_most);
        assert!(body.len() as u64 <= self.abilities.part_max);
        self.call("part", |b| {
            b.moved.0 += body.len() as u64;
            let upload = b.uploads.get_mut(&upload.0).filter(|u| u.key == key).ok_or(StoreError::NotFound)?;
            let (size, etag) = (body.len() as u64, etag(&body, 0));
            upload.parts.insert(number, (body, etag.clone()));
            Ok(Part { number, size, etag, checksum: None, arrived: None })
        })
        .await
    }

    async fn part_copy(
        &self,
        key: &str,
        upload: &UploadId,
        number: u16,
        from: &str,
        range: Range<u64>,
        source: &ETag,
    ) -> Result<Part> {
        assert!(self.abilities.part_copy && number >= 1 && number <= self.abilities.parts_most);
        assert!(range.end - range.start <= self.abilities.part_max);
        self.call("part_copy", |b| {
            let (body, _) = b.object(from, Some(source))?.clone();
            if range.end > body.len() as u64 {
                return Err(StoreError::Refused("range".into()));
            }
            let body = body.slice(range.start as usize..range.end as usize);
            let upload = b.uploads.get_mut(&upload.0).filter(|u| u.key == key).ok_or(StoreError::NotFound)?;
            let etag = etag(&body, 0);
            upload.parts.insert(number, (body, etag.clone()));
            Ok(Part { number, size: 0, etag, checksum: None, arrived: None })
        })
        .await
    }

    async fn complete(&self, key: &str, upload: &UploadId, parts: &[Part], on: &Condition) -> Result<ETag> {
        assert!(self.abilities.conditional || *on == Condition::Always);
        self.call("complete", |b| {
            let pending = b.uploads.get(&upload.0).filter(|u| u.key == key).ok_or(StoreError::NotFound)?;
            let mut body = Vec::new();
            let mut number = 0;
            for (i, part) in parts.iter().enumerate() {
                let (bytes, etag) =
                    pending.parts.get(&part.number).ok_or(StoreError::Refused("no part".into()))?;
                let small = (bytes.len() as u64) < self.abilities.part_min && i + 1 < parts.len();
                if part.number <= number || *etag != part.etag || small {
                    return Err(StoreError::Refused(format!(
                        "part {} of {} bytes",
                        part.number,
                        bytes.len()
                    )));
                }
                number = part.number;
                body.extend_from_slice(bytes);
            }
            if parts.is_empty() {
                return Err(StoreError::Refused("no parts".into()));
            }
            b.holds(key, on)?;
            let about = b.uploads.remove(&upload.0).expect("it is there").about;
            let etag = b.put(key, body.into(), &about, parts.len());
            b.made.insert(upload.0.clone(), etag.clone());
            Ok(etag)
        })
        .await
    }

    async fn completed(
        &self,
        key: &str,
        upload: &UploadId,
        _: &[Part],
        _: &Range<SystemTime>,
    ) -> Result<Option<ETag>> {
        self.call("completed", |b| {
            let made = b.made.get(&upload.0);
            Ok(made.filter(|made| b.objects.get(key).is_some_and(|(_, now)| now.etag == **made)).cloned())
        })
        .await
    }

    async fn abort(&self, _key: &str, upload: &UploadId) -> Result<()> {
        self.call("abort", |b| {
            b.uploads.remove(&upload.0);
            Ok(())
        })
        .await
    }

    async fn uploads(&self, prefix: &str) -> Result<Vec<Upload>> {
        self.call("uploads", |b| {
            let all = b.uploads.iter().filter(|(_, u)| u.key.starts_with(prefix));
            let upload = |(id, u): (&String, &Pending)| Upload {
                key: u.key.clone(),
                id: UploadId(id.clone()),
                begun: Some(UNIX_EPOCH),
            };
            Ok(all.map(upload).collect())
        })
        .await
    }

    async fn parts(&self, key: &str, upload: &UploadId) -> Result<Vec<Part>> {
        self.call("parts", |b| {
            let upload = b.uploads.get(&upload.0).filter(|u| u.key == key).ok_or(StoreError::NotFound)?;
            let part = |(n, (b, e)): (&u16, &(Bytes, ETag))| Part {
                number: *n,
                size: b.len() as u64,
                etag: e.clone(),
                checksum: None,
                arrived: None,
            };
            Ok(upload.parts.iter().map(part).collect())
        })
        .await
    }
}

/// What the store of a test can do: small parts, so that small files have many.
pub const SMALL: Abilities = Abilities {
    part_min: 64,
    part_max: 1 << 20,
    parts_most: 10_000,
    single_max: 4096,
    conditional: true,
    conditional_delete: true,
    part_copy: true,
    rename: false,
};

/// Options of a test: parts of 64 bytes, nothing is believed for longer than a call.
pub fn options() -> Options {
    Options {
        part_size: 64,
        expiry: Duration::ZERO,
        write_memory: 4096,
        read_memory: 1 << 20,
        ..Options::default()
    }
}

/// A new bucket.
pub fn bucket() -> Arc<Mutex<Bucket>> {
    Arc::default()
}

/// A bucket, its file system, and the number of calls made so far.
pub struct Rig {
    pub paths: Paths<Mount>,
    pub bucket: Arc<Mutex<Bucket>>,
    pub calls: Arc<AtomicU64>,
}

impl Rig {
    /// Calls of this name that the bucket has seen.
    pub fn count(&self, name: &str) -> u64 {
        self.bucket.lock().count(name)
    }
}

impl std::ops::Deref for Rig {
    type Target = Paths<Mount>;

    fn deref(&self) -> &Paths<Mount> {
        &self.paths
    }
}

/// Mounts a bucket.
pub fn mount_with(
    bucket: &Arc<Mutex<Bucket>>,
    abilities: Abilities,
    options: Options,
    faults: Faults,
    page: usize,
) -> Rig {
    let calls = Arc::<AtomicU64>::default();
    let rng = StdRng::seed_from_u64(faults.seed);
    let mount = Mount {
        bucket: bucket.clone(),
        abilities,
        faults: Mutex::new((faults, rng)),
        calls: calls.clone(),
        under_way: AtomicU64::new(0),
        page,
        refused: Mutex::default(),
        slow: Mutex::default(),
        late: Mutex::default(),
        foreign: Mutex::default(),
        endless: AtomicBool::new(false),
    };
    let fs = ObjectFs::start(move || async move { Ok(mount) }, options).unwrap();
    Rig { paths: Paths { fs: Arc::new(fs) }, bucket: bucket.clone(), calls }
}

/// Mounts a bucket with the usual settings.
pub fn mount(bucket: &Arc<Mutex<Bucket>>) -> Rig {
    mount_with(bucket, SMALL, options(), Faults::default(), 3)
}

pub const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// Bytes that tell where they stand.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = StdRng::seed_from_u64(seed);
    (0..len).map(|_| rng.random_range(1..=255)).collect()
}

//! What an operator can see of a served volume: one [`Snapshot`] of everything that is counted, taken at any time from any thread.
//!
//! It is what the control socket answers ([`crate::control`]), what the metrics are made of ([`crate::metrics`]) and what
//! `freehold clients` and `freehold top` show. All counters run from the start of the service and are never reset; whoever wants rates
//! takes two snapshots. Taking one costs a short hold of the engine's lock and wakes nobody who serves; an NVMe controller is asked for its
//! health, every ten seconds at most.
//!
//! Tested here and in `tests/observe.rs`.

use crate::device::{Facts, Fitness};
use crate::medium;
use crate::{Mount, Volume};
use fs::meter::{self, DoorStats};
use fs::{FileSystem, Meter, Ordered};
use serde::{Deserialize, Serialize};
use share::server::stats::Observer;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Everything that is counted of one served volume.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Snapshot {
    /// What is served and where.
    pub volume: VolumeInfo,
    /// Space and inodes; none when the volume is being closed.
    pub space: Option<Space>,
    /// The engine.
    pub engine: Engine,
    /// Its page cache.
    pub cache: Cache,
    /// The device or image file; none when the volume is being closed.
    pub media: Option<Device>,
    /// The NVMe controller that its server drives.
    #[serde(default)]
    pub controller: Option<Controller>,
    /// Calls by the door they came through: `fuse`, and `share` where sessions are served.
    pub doors: Vec<Door>,
    /// Sessions over shared memory, oldest first.
    pub sessions: Vec<Session>,
}

/// What is served and where.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct VolumeInfo {
    /// The image or device.
    pub image: String,
    /// Where it is mounted.
    pub mountpoint: String,
    /// The serving process.
    pub pid: u32,
    /// Version of Freehold that serves it.
    pub version: String,
    /// Seconds since it is served.
    pub uptime_seconds: f64,
    /// Why nothing more is written, when an error has made it so.
    pub latched: Option<String>,
    /// Whose fsync and fdatasync give order instead of durability, when there is anybody.
    #[serde(default)]
    pub ordered: Option<String>,
}

/// Space and inodes of a volume.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Space {
    /// All there is.
    pub bytes: u64,
    /// Not used.
    pub bytes_free: u64,
    /// Not used, and to be had by ordinary users.
    pub bytes_available: u64,
    /// Inodes in use.
    pub inodes_used: u64,
    /// Inodes that could be made.
    pub inodes_free: u64,
}

/// What the block engine did; see [`block::Counters`].
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "they are those of block::Counters, where each is explained")]
pub struct Engine {
    /// The epoch that changes join.
    pub epoch: u64,
    /// The newest durable epoch.
    pub epoch_durable: u64,
    pub epochs: u64,
    #[serde(default)]
    pub barriers: u64,
    pub flushes: u64,
    pub log_blocks: u64,
    pub data_blocks: u64,
    pub overwritten_blocks: u64,
    pub logged_pages: u64,
    pub read_blocks: u64,
    #[serde(default)]
    pub direct_read_blocks: u64,
    #[serde(default)]
    pub direct_written_blocks: u64,
    pub checkpoints: u64,
    pub inode_blocks: u64,
    pub throttled: u64,
}

/// A page cache.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Cache {
    /// Its size.
    pub bytes: u64,
    /// Bytes of pages that hold something.
    pub bytes_used: u64,
    /// Bytes of pages that are not written yet.
    pub bytes_dirty: u64,
    /// Pages that reads found in memory.
    pub hits: u64,
    /// Pages that reads waited for.
    pub misses: u64,
    /// Clean pages that made room for others.
    pub evictions: u64,
}

/// A device or image file; see [`media::Counters`].
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "they are those of media::Counters, where each is explained")]
pub struct Device {
    /// Requests under way now.
    pub in_flight: u64,
    /// Requests that it works on at the same time.
    pub queue_depth: u64,
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
    pub discards: u64,
    pub zeroes: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub bytes_discarded: u64,
    pub bytes_zeroed: u64,
    pub kicks: u64,
}

/// How an NVMe controller and its driver fare.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Controller {
    /// Commands that took too long, and were to be aborted.
    pub aborts: u64,
    /// Resets.
    pub resets: u64,
    /// Events that it reported without being asked.
    pub events: u64,
    /// Doorbells in memory that it may have missed, and was told of a second time.
    pub nudges: u64,
    /// Its health, as of some seconds ago at most; none when it does not answer.
    pub health: Option<Fitness>,
}

/// What came through a door.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Door {
    /// Its name.
    pub name: String,
    /// Bytes of file data read.
    pub bytes_read: u64,
    /// Bytes of file data written.
    pub bytes_written: u64,
    /// The classes of calls that there were.
    pub calls: Vec<Calls>,
}

/// Calls of one class.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Calls {
    /// The class: the name of the call.
    pub call: String,
    /// How many.
    pub count: u64,
    /// How many of them failed. A name that is not there is an error in a session, and an answer for the kernel.
    pub errors: u64,
    /// Their time together, nanoseconds.
    pub sum_ns: u64,
    /// The longest, nanoseconds.
    pub max_ns: u64,
    /// Number of calls that took less than so many nanoseconds, and not less than the bucket before ends at. Empty ones are left out.
    pub buckets: Vec<(u64, u64)>,
}

/// A session over shared memory.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Session {
    /// Its number, never used twice by a server.
    pub session: u64,
    /// The client's process; 0 when the server cannot see it.
    pub pid: i32,
    /// The client's user.
    pub uid: u32,
    /// Calls answered.
    pub calls: u64,
    /// Open handles.
    pub handles: u64,
    /// Bytes of file data read.
    pub bytes_read: u64,
    /// Bytes of file data written.
    pub bytes_written: u64,
    /// Since it began.
    pub age_seconds: f64,
    /// Since its last call.
    pub idle_seconds: f64,
    /// Calls under way.
    pub calls_now: u64,
    /// Files on which it holds locks, counted once for each sort.
    pub locks: u64,
    /// Since it got the oldest of them; 0 without any.
    pub locks_seconds: f64,
    /// Calls of others that wait for its locks, those through the mount included.
    pub waiting: u64,
    /// How long the one that has waited longest does; 0 without any.
    pub waiting_seconds: f64,
    /// All its syncs give order instead of durability.
    #[serde(default)]
    pub ordered: bool,
}

impl Calls {
    /// Those since `earlier` was taken. The longest is then known by its bucket alone.
    pub fn since(&self, earlier: Option<&Calls>) -> Calls {
        let Some(earlier) = earlier else { return self.clone() };
        let before = |end: u64| earlier.buckets.iter().find(|b| b.0 == end).map_or(0, |b| b.1);
        let left = self.buckets.iter().map(|&(end, n)| (end, n.saturating_sub(before(end))));
        let buckets: Vec<(u64, u64)> = left.filter(|b| b.1 > 0).collect();
        Calls {
            call: self.call.clone(),
            count: self.count.saturating_sub(earlier.count),
            errors: self.errors.saturating_sub(earlier.errors),
            sum_ns: self.sum_ns.saturating_sub(earlier.sum_ns),
            max_ns: buckets.last().map_or(0, |b| b.0).min(self.max_ns),
            buckets,
        }
    }

    /// The time that this part (0 to 1) of the calls did not exceed, nanoseconds; up to 25 % too much. 0 without calls.
    pub fn percentile_ns(&self, part: f64) -> u64 {
        let wanted = ((self.count as f64 * part).ceil() as u64).max(1);
        let mut seen = 0;
        for &(end, n) in &self.buckets {
            seen += n;
            if seen >= wanted {
                return end.min(self.max_ns);
            }
        }
        self.buckets.last().map_or(0, |b| b.0.min(self.max_ns))
    }
}

impl Door {
    pub(crate) fn new(name: &str, stats: DoorStats) -> Door {
        let calls = stats.calls.into_iter().map(|c| {
            let filled = c.buckets.iter().enumerate().filter(|(_, n)| **n > 0);
            let buckets = filled.map(|(i, n)| (meter::bucket_end_ns(i), *n)).collect();
            let (call, count) = (c.name.to_string(), c.calls());
            Calls { call, count, errors: c.errors, sum_ns: c.sum_ns, max_ns: c.max_ns, buckets }
        });
        let (bytes_read, bytes_written) = (stats.bytes_read, stats.bytes_written);
        Door { name: name.into(), bytes_read, bytes_written, calls: calls.collect() }
    }
}

/// Looks at a volume in service.
pub struct Observed {
    image: String,
    point: String,
    begun: Instant,
    volume: Volume,
    /// The volume keeps it; it must be let go with the volume, so that the image is free then.
    media: Weak<dyn medium::Device>,
    fuse: Arc<Meter>,
    share: Option<Observer>,
    ordered: Option<String>,
    /// When the controller was asked for its health last, and what it said.
    health: Mutex<Option<(Instant, Option<Fitness>)>>,
}

/// The health of a controller is not asked for more often than this.
const HEALTH_AGE: Duration = Duration::from_secs(10);

impl Observed {
    /// A volume in `image`, on `media`, mounted at `point`.
    pub(crate) fn new(
        (image, point): (&Path, &Path),
        volume: &Volume,
        media: Weak<dyn medium::Device>,
        mount: &Mount,
        (share, ordered): (Option<Observer>, &Ordered),
    ) -> Observed {
        let ordered = (!ordered.is_off()).then(|| ordered.to_string());
        let text = |path: &Path| {
            let path = crate::absolute(path).unwrap_or_else(|_| path.into());
            path.to_string_lossy().into_owned()
        };
        let (image, point, fuse) = (text(image), text(point), mount.meter().clone());
        let (begun, volume, health) = (Instant::now(), volume.clone(), Mutex::default());
        Observed { image, point, begun, volume, media, fuse, share, ordered, health }
    }

    /// Everything now.
    pub fn snapshot(&self) -> Snapshot {
        let volume = VolumeInfo {
            image: self.image.clone(),
            mountpoint: self.point.clone(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").into(),
            uptime_seconds: self.begun.elapsed().as_secs_f64(),
            latched: self.volume.latched(),
            ordered: self.ordered.clone(),
        };
        let share = self.share.as_ref().map(Observer::stats);
        let mut doors = vec![Door::new("fuse", self.fuse.stats())];
        let mut sessions = Vec::new();
        if let Some(stats) = share {
            doors.push(Door::new("share", stats.door));
            sessions.extend(stats.sessions.into_iter().map(|s| Session {
                session: s.session,
                pid: s.pid,
                uid: s.uid,
                calls: s.calls,
                handles: s.handles,
                bytes_read: s.bytes_read,
                bytes_written: s.bytes_written,
                age_seconds: s.age.as_secs_f64(),
                idle_seconds: s.idle.as_secs_f64(),
                calls_now: s.calls_now,
                locks: s.locks,
                locks_seconds: s.locks_held.as_secs_f64(),
                waiting: s.waiting,
                waiting_seconds: s.waited.as_secs_f64(),
                ordered: s.ordered,
            }));
        }
        let (engine, cache, space) = (self.engine(), self.cache(), self.space());
        let (media, controller) = (self.device(), self.controller());
        Snapshot { volume, space, engine, cache, media, controller, doors, sessions }
    }

    /// Ends a session by force. False when there is none of this number.
    pub(crate) fn evict(&self, session: u64) -> bool {
        self.share.as_ref().is_some_and(|share| share.evict(session))
    }

    /// What the volume's NVMe controller tells of itself; a sentence, when it cannot be asked.
    pub(crate) fn inspect(&self) -> Result<Facts, String> {
        let media = self.media.upgrade().ok_or("the volume is being closed")?;
        let nvme = media.nvme().ok_or("the volume is not on a controller that its server drives")?;
        let inspection = nvme.inspect().map_err(|e| e.to_string())?;
        Ok(Facts { served: true, ..Facts::new(&inspection) })
    }

    fn space(&self) -> Option<Space> {
        let s = fs::block_on(self.volume.statfs()).ok()?;
        let bytes = |blocks: u64| blocks.saturating_mul(s.block_size as u64);
        Some(Space {
            bytes: bytes(s.blocks),
            bytes_free: bytes(s.blocks_free),
            bytes_available: bytes(s.blocks_available),
            inodes_used: s.inodes.saturating_sub(s.inodes_free),
            inodes_free: s.inodes_free,
        })
    }

    fn engine(&self) -> Engine {
        let c = self.volume.counters();
        let (epoch, epoch_durable) = self.volume.epochs();
        Engine {
            epoch,
            epoch_durable,
            epochs: c.epochs,
            barriers: c.barriers,
            flushes: c.flushes,
            log_blocks: c.log_blocks,
            data_blocks: c.data_blocks,
            overwritten_blocks: c.overwritten_blocks,
            logged_pages: c.logged_pages,
            read_blocks: c.read_blocks,
            direct_read_blocks: c.direct_read_blocks,
            direct_written_blocks: c.direct_written_blocks,
            checkpoints: c.checkpoints,
            inode_blocks: c.inode_blocks,
            throttled: c.throttled,
        }
    }

    fn cache(&self) -> Cache {
        let (usage, c) = (self.volume.cache_usage(), self.volume.counters());
        Cache {
            bytes: usage.bytes,
            bytes_used: usage.used,
            bytes_dirty: usage.dirty,
            hits: c.read_hits,
            misses: c.read_misses,
            evictions: self.volume.cache_counters().evictions,
        }
    }

    fn device(&self) -> Option<Device> {
        let media = self.media.upgrade()?;
        let c = media.counters();
        Some(Device {
            in_flight: media.in_flight() as u64,
            queue_depth: media.geometry().queue_depth as u64,
            reads: c.reads,
            writes: c.writes,
            flushes: c.flushes,
            discards: c.discards,
            zeroes: c.zeroes,
            bytes_read: c.bytes_read,
            bytes_written: c.bytes_written,
            bytes_discarded: c.bytes_discarded,
            bytes_zeroed: c.bytes_zeroed,
            kicks: c.kicks,
        })
    }

    fn controller(&self) -> Option<Controller> {
        let media = self.media.upgrade()?;
        let nvme = media.nvme()?;
        let media::nvme::Health { aborts, resets, events, nudges } = nvme.health();
        let mut asked = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        let health = match &*asked {
            Some((when, health)) if when.elapsed() < HEALTH_AGE => health.clone(),
            _ => {
                let health = nvme.smart().ok().map(|page| Fitness::new(&page));
                *asked = Some((Instant::now(), health.clone()));
                health
            }
        };
        Some(Controller { aborts, resets, events, nudges, health })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_and_differences() {
        let early = Calls { count: 2, sum_ns: 300, max_ns: 150, buckets: vec![(160, 2)], ..Calls::default() };
        let buckets = vec![(160, 100), (1024, 1), (4096, 1)];
        let late = Calls { count: 102, sum_ns: 9000, max_ns: 4000, buckets, ..Calls::default() };
        let new = late.since(Some(&early));
        assert_eq!((new.count, new.sum_ns, new.max_ns), (100, 8700, 4000));
        assert_eq!(
            (new.percentile_ns(0.5), new.percentile_ns(0.99), new.percentile_ns(1.0)),
            (160, 1024, 4000)
        );
        let none = late.since(Some(&late));
        assert_eq!((none.count, none.percentile_ns(0.5), none.max_ns), (0, 0, 0));
        assert_eq!(Calls::default().percentile_ns(0.99), 0);
    }

    #[test]
    fn a_snapshot_goes_through_json() {
        let meter = Meter::new(&["read"]);
        meter.count(0, std::time::Duration::from_micros(3), true);
        let doors = vec![Door::new("fuse", meter.stats())];
        let text = serde_json::to_string(&Snapshot { doors, ..Snapshot::default() }).unwrap();
        let back: Snapshot = serde_json::from_str(&text).unwrap();
        let calls = &back.doors[0].calls[0];
        assert_eq!((calls.call.as_str(), calls.count, calls.errors, calls.max_ns), ("read", 1, 1, 3000));
        assert_eq!(calls.percentile_ns(0.5), 3000);
    }
}

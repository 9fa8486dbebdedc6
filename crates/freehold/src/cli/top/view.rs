//! What happened between two snapshots, as rates.

use crate::cli::ask;
use freehold::observe::{Calls, Device, Session, Snapshot};
use serde_json::{Value, json};
use std::time::Duration;

/// One interval.
pub struct View {
    pub now: Snapshot,
    pub seconds: f64,
    /// Calls by door and class; busiest first.
    pub calls: Vec<Row>,
    /// Calls of all classes by door, a second.
    pub doors: Vec<(String, f64)>,
    /// File data, bytes a second.
    pub read: f64,
    pub written: f64,
    /// Part of the pages that reads found in memory; none when nothing was read.
    pub hit_rate: Option<f64>,
    /// Pages thrown out, a second.
    pub evictions: f64,
    pub device: Option<Rates>,
    /// Most active first.
    pub clients: Vec<Client>,
}

pub struct Row {
    pub door: String,
    pub rate: f64,
    pub calls: Calls,
}

/// A device, a second.
pub struct Rates {
    pub reads: f64,
    pub writes: f64,
    pub flushes: f64,
    pub read: f64,
    pub written: f64,
    pub now: Device,
}

pub struct Client {
    pub session: Session,
    pub program: String,
    pub rate: f64,
    pub moved: f64,
}

impl View {
    pub fn new(before: &Snapshot, now: &Snapshot, time: Duration) -> View {
        let seconds = time.as_secs_f64().max(1e-6);
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        let (mut calls, mut doors, mut read, mut written) = (Vec::new(), Vec::new(), 0.0, 0.0);
        for door in &now.doors {
            let earlier = before.doors.iter().find(|d| d.name == door.name);
            read += rate(door.bytes_read, earlier.map_or(0, |d| d.bytes_read));
            written += rate(door.bytes_written, earlier.map_or(0, |d| d.bytes_written));
            let mut sum = 0.0;
            for c in &door.calls {
                // What did not exist in the snapshot before has happened since, unless there is none.
                let seen = earlier.and_then(|d| d.calls.iter().find(|e| e.call == c.call));
                let since = c.since(seen);
                if since.count > 0 {
                    let rate = since.count as f64 / seconds;
                    sum += rate;
                    calls.push(Row { door: door.name.clone(), rate, calls: since });
                }
            }
            doors.push((door.name.clone(), sum));
        }
        calls.sort_by(|a, b| b.rate.total_cmp(&a.rate).then(a.calls.call.cmp(&b.calls.call)));
        let (hits, misses) = (
            now.cache.hits.saturating_sub(before.cache.hits),
            now.cache.misses.saturating_sub(before.cache.misses),
        );
        let hit_rate = (hits + misses > 0).then(|| hits as f64 / (hits + misses) as f64);
        let device = now.media.map(|now| {
            let old = before.media.unwrap_or_default();
            Rates {
                reads: rate(now.reads, old.reads),
                writes: rate(now.writes, old.writes),
                flushes: rate(now.flushes, old.flushes),
                read: rate(now.bytes_read, old.bytes_read),
                written: rate(now.bytes_written, old.bytes_written),
                now,
            }
        });
        let client = |s: &Session| {
            let old = before.sessions.iter().find(|o| o.session == s.session).cloned().unwrap_or_default();
            let bytes = |s: &Session| s.bytes_read + s.bytes_written;
            Client {
                session: s.clone(),
                program: ask::program(s.pid),
                rate: rate(s.calls, old.calls),
                moved: rate(bytes(s), bytes(&old)),
            }
        };
        let mut clients: Vec<Client> = now.sessions.iter().map(client).collect();
        clients.sort_by(|a, b| {
            let idle = a.session.idle_seconds.total_cmp(&b.session.idle_seconds);
            b.rate.total_cmp(&a.rate).then(idle)
        });
        let evictions = rate(now.cache.evictions, before.cache.evictions);
        let now = now.clone();
        View { now, seconds, calls, doors, read, written, hit_rate, evictions, device, clients }
    }

    pub fn json(&self) -> Value {
        let calls = |r: &Row| {
            let c = &r.calls;
            json!({
                "door": r.door, "call": c.call, "per_second": r.rate, "count": c.count, "errors": c.errors,
                "p50_ns": c.percentile_ns(0.5), "p99_ns": c.percentile_ns(0.99), "max_ns": c.max_ns,
            })
        };
        let client = |c: &Client| {
            json!({
                "pid": c.session.pid, "program": c.program, "uid": c.session.uid, "session": c.session.session,
                "handles": c.session.handles, "calls": c.session.calls, "calls_per_second": c.rate,
                "bytes_per_second": c.moved, "idle_seconds": c.session.idle_seconds,
            })
        };
        let device = self.device.as_ref().map(|d| {
            json!({
                "reads_per_second": d.reads, "writes_per_second": d.writes, "flushes_per_second": d.flushes,
                "read_bytes_per_second": d.read, "written_bytes_per_second": d.written,
                "in_flight": d.now.in_flight, "queue_depth": d.now.queue_depth,
            })
        });
        json!({
            "volume": self.now.volume, "space": self.now.space, "seconds": self.seconds,
            "calls": self.calls.iter().map(calls).collect::<Value>(),
            "read_bytes_per_second": self.read, "written_bytes_per_second": self.written,
            "cache": {
                "bytes": self.now.cache.bytes, "bytes_used": self.now.cache.bytes_used,
                "bytes_dirty": self.now.cache.bytes_dirty, "hit_rate": self.hit_rate,
                "evictions_per_second": self.evictions,
            },
            "device": device,
            "clients": self.clients.iter().map(client).collect::<Value>(),
        })
    }
}

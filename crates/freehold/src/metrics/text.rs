//! Snapshots in the text format of Prometheus, version 0.0.4.
//!
//! Names begin with `freehold_` and end with their base unit, counters with `_total`. Every sample has the label `volume`, the
//! image; samples of calls also `door` and `call`. All samples of a name stand together under its HELP and TYPE.

use crate::device::Fitness;
use crate::observe::{Calls, Door, Snapshot};
use std::fmt::Write;

/// Bounds of the histograms: every second power of two from 256 ns to 17 s. They are bounds of the buckets below (`fs::meter`), so
/// that nothing is guessed.
const BOUNDS: std::ops::RangeInclusive<u32> = 8..=34;

/// A number of a volume.
type Value = fn(&Snapshot) -> Option<f64>;

/// Name, type, explanation, value.
const NUMBERS: &[(&str, &str, &str, Value)] = &[
    ("uptime_seconds", "gauge", "Time since the volume is served", |s| Some(s.volume.uptime_seconds)),
    ("read_only_latched", "gauge", "1 when an error has made the volume read-only", |s| {
        Some(s.volume.latched.is_some() as u8 as f64)
    }),
    ("space_bytes", "gauge", "Size of the volume", |s| Some(s.space?.bytes as f64)),
    ("space_free_bytes", "gauge", "Free space of the volume", |s| Some(s.space?.bytes_free as f64)),
    ("space_available_bytes", "gauge", "Space to be had by ordinary users", |s| {
        Some(s.space?.bytes_available as f64)
    }),
    ("inodes_used", "gauge", "Inodes in use", |s| Some(s.space?.inodes_used as f64)),
    ("inodes_free", "gauge", "Inodes that could be made", |s| Some(s.space?.inodes_free as f64)),
    ("cache_bytes", "gauge", "Size of the page cache", |s| Some(s.cache.bytes as f64)),
    ("cache_used_bytes", "gauge", "Pages of the cache that hold something", |s| {
        Some(s.cache.bytes_used as f64)
    }),
    ("cache_dirty_bytes", "gauge", "Pages of the cache not written yet", |s| {
        Some(s.cache.bytes_dirty as f64)
    }),
    ("cache_hits_total", "counter", "Pages that reads found in memory", |s| Some(s.cache.hits as f64)),
    ("cache_misses_total", "counter", "Pages that reads waited for", |s| Some(s.cache.misses as f64)),
    ("cache_evictions_total", "counter", "Clean pages that made room for others", |s| {
        Some(s.cache.evictions as f64)
    }),
    ("epochs_total", "counter", "Epochs committed", |s| Some(s.engine.epochs as f64)),
    ("log_blocks_total", "counter", "Blocks of log records", |s| Some(s.engine.log_blocks as f64)),
    ("data_blocks_total", "counter", "Data blocks written to new places", |s| {
        Some(s.engine.data_blocks as f64)
    }),
    ("overwritten_blocks_total", "counter", "Data blocks overwritten in place", |s| {
        Some(s.engine.overwritten_blocks as f64)
    }),
    ("logged_pages_total", "counter", "Data blocks whose content went into the log", |s| {
        Some(s.engine.logged_pages as f64)
    }),
    ("read_blocks_total", "counter", "Blocks read for file data, ahead or not", |s| {
        Some(s.engine.read_blocks as f64)
    }),
    (
        "direct_read_blocks_total",
        "counter",
        "Those of them that went from the device to the memory of clients",
        |s| Some(s.engine.direct_read_blocks as f64),
    ),
    (
        "direct_written_blocks_total",
        "counter",
        "Blocks overwritten in place from the memory of clients",
        |s| Some(s.engine.direct_written_blocks as f64),
    ),
    ("checkpoints_total", "counter", "Checkpoints completed", |s| Some(s.engine.checkpoints as f64)),
    ("inode_blocks_total", "counter", "Inode blocks written by checkpoints", |s| {
        Some(s.engine.inode_blocks as f64)
    }),
    ("barriers_total", "counter", "Barriers, syncs answered with order included", |s| {
        Some(s.engine.barriers as f64)
    }),
    ("throttled_writes_total", "counter", "Times a writer waited for dirty pages to be written", |s| {
        Some(s.engine.throttled as f64)
    }),
    ("device_requests_in_flight", "gauge", "Requests under way at the device", |s| {
        Some(s.media?.in_flight as f64)
    }),
    ("device_queue_depth", "gauge", "Requests that the device works on at the same time", |s| {
        Some(s.media?.queue_depth as f64)
    }),
    ("device_reads_total", "counter", "Reads of the device", |s| Some(s.media?.reads as f64)),
    ("device_writes_total", "counter", "Writes of the device", |s| Some(s.media?.writes as f64)),
    ("device_flushes_total", "counter", "Flushes of the device", |s| Some(s.media?.flushes as f64)),
    ("device_discards_total", "counter", "Discards of the device", |s| Some(s.media?.discards as f64)),
    ("device_read_bytes_total", "counter", "Bytes read from the device", |s| {
        Some(s.media?.bytes_read as f64)
    }),
    ("device_written_bytes_total", "counter", "Bytes written to the device", |s| {
        Some(s.media?.bytes_written as f64)
    }),
    ("device_discarded_bytes_total", "counter", "Bytes discarded on the device", |s| {
        Some(s.media?.bytes_discarded as f64)
    }),
    ("nvme_aborts_total", "counter", "Commands of the controller that were to be aborted", |s| {
        Some(s.controller.as_ref()?.aborts as f64)
    }),
    ("nvme_resets_total", "counter", "Resets of the controller", |s| {
        Some(s.controller.as_ref()?.resets as f64)
    }),
    ("nvme_events_total", "counter", "Events that the controller reported", |s| {
        Some(s.controller.as_ref()?.events as f64)
    }),
    ("nvme_nudges_total", "counter", "Doorbells in memory that were rung a second time", |s| {
        Some(s.controller.as_ref()?.nudges as f64)
    }),
    ("nvme_warnings", "gauge", "Critical warnings of the controller now", |s| {
        Some(health(s)?.warnings.len() as f64)
    }),
    ("nvme_temperature_celsius", "gauge", "Temperature of the controller", |s| {
        Some(health(s)?.temperature as f64)
    }),
    ("nvme_spare_ratio", "gauge", "Spare of the controller that is left", |s| {
        Some(health(s)?.spare as f64 / 100.0)
    }),
    ("nvme_used_ratio", "gauge", "Part of its expected life that the controller has used up", |s| {
        Some(health(s)?.used as f64 / 100.0)
    }),
    ("nvme_media_errors_total", "counter", "Errors of its media that the controller could not repair", |s| {
        Some(health(s)?.media_errors as f64)
    }),
    ("nvme_unsafe_shutdowns_total", "counter", "Times that the controller lost power unprepared", |s| {
        Some(health(s)?.unsafe_shutdowns as f64)
    }),
    ("sessions", "gauge", "Sessions over shared memory", |s| Some(s.sessions.len() as f64)),
    ("session_handles", "gauge", "Handles open in sessions", |s| {
        Some(s.sessions.iter().map(|s| s.handles).sum::<u64>() as f64)
    }),
];

fn health(s: &Snapshot) -> Option<&Fitness> {
    s.controller.as_ref()?.health.as_ref()
}

/// What every page begins with.
pub(super) fn begin() -> String {
    let mut out = String::with_capacity(64 << 10);
    let version = env!("CARGO_PKG_VERSION");
    head(&mut out, "build_info", "gauge", "The version of Freehold");
    line(&mut out, "build_info", &[("version", version)], 1.0);
    out
}

/// The metrics of some volumes, as text.
pub fn exposition(volumes: impl IntoIterator<Item = Snapshot>) -> String {
    let all: Vec<Snapshot> = volumes.into_iter().collect();
    let mut out = begin();
    for (name, kind, help, value) in NUMBERS {
        head(&mut out, name, kind, help);
        for s in &all {
            if let Some(value) = value(s) {
                line(&mut out, name, &[("volume", &s.volume.image)], value);
            }
        }
    }
    doors(&mut out, || all.iter().flat_map(|s| s.doors.iter().map(move |d| (s.volume.image.as_str(), d))));
    out
}

/// The metrics of doors, each with the name of its volume.
pub(super) fn doors<'a, I: Iterator<Item = (&'a str, &'a Door)>>(out: &mut String, doors: impl Fn() -> I) {
    for (name, help, value) in [
        ("read_bytes_total", "Bytes of file data read", (|d| d.bytes_read) as fn(&Door) -> u64),
        ("written_bytes_total", "Bytes of file data written", |d| d.bytes_written),
    ] {
        head(out, name, "counter", help);
        for (volume, d) in doors() {
            line(out, name, &[("volume", volume), ("door", &d.name)], value(d) as f64);
        }
    }
    let calls = || doors().flat_map(|(volume, d)| d.calls.iter().map(move |c| (volume, d, c)));
    let name = "call_errors_total";
    head(out, name, "counter", "Calls that failed, in sessions those for names that are not there included");
    for (volume, d, c) in calls() {
        line(out, name, &labels(volume, d, c), c.errors as f64);
    }
    head(out, "call_duration_seconds", "histogram", "How long calls took");
    for (volume, d, c) in calls() {
        histogram(out, &labels(volume, d, c), c);
    }
}

fn labels<'a>(volume: &'a str, d: &'a Door, c: &'a Calls) -> [(&'static str, &'a str); 3] {
    [("volume", volume), ("door", &d.name), ("call", &c.call)]
}

fn histogram(out: &mut String, labels: &[(&str, &str)], calls: &Calls) {
    let name = "call_duration_seconds";
    let bucket = |out: &mut String, bound: &str, count: u64| {
        let all: Vec<_> = labels.iter().copied().chain([("le", bound)]).collect();
        line(out, &format!("{name}_bucket"), &all, count as f64);
    };
    for power in BOUNDS.step_by(2) {
        let below = calls.buckets.iter().filter(|b| b.0 <= 1 << power).map(|b| b.1).sum();
        bucket(out, &format!("{}", (1u64 << power) as f64 / 1e9), below);
    }
    // The count is that of the buckets, so that both are of the same moment.
    let count = calls.buckets.iter().map(|b| b.1).sum();
    bucket(out, "+Inf", count);
    line(out, &format!("{name}_sum"), labels, calls.sum_ns as f64 / 1e9);
    line(out, &format!("{name}_count"), labels, count as f64);
}

pub(super) fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(out, "# HELP freehold_{name} {help}.\n# TYPE freehold_{name} {kind}");
}

pub(super) fn line(out: &mut String, name: &str, labels: &[(&str, &str)], value: f64) {
    let _ = write!(out, "freehold_{name}{{");
    for (i, (label, text)) in labels.iter().enumerate() {
        let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let comma = if i > 0 { "," } else { "" };
        let _ = write!(out, "{comma}{label}=\"{text}\"");
    }
    let _ = writeln!(out, "}} {value}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::{Controller, VolumeInfo};

    #[test]
    fn names_labels_and_histograms() {
        let buckets = vec![(160, 3), (320, 1), (1 << 40, 1)];
        let calls =
            Calls { call: "read".into(), count: 5, errors: 2, sum_ns: 2_000_000_000, buckets, max_ns: 9 };
        let door = Door { name: "fuse".into(), bytes_read: 7, calls: vec![calls], ..Door::default() };
        let volume = VolumeInfo { image: "/a \"b\"\\\n".into(), ..VolumeInfo::default() };
        let health = Some(Fitness { spare: 95, temperature: -3, ..Fitness::default() });
        let controller = Some(Controller { resets: 4, health, ..Controller::default() });
        let text = exposition([Snapshot { volume, controller, doors: vec![door], ..Snapshot::default() }]);
        let at = "volume=\"/a \\\"b\\\"\\\\\\n\"";
        for wanted in [
            format!("freehold_nvme_resets_total{{{at}}} 4\n"),
            format!("freehold_nvme_spare_ratio{{{at}}} 0.95\n"),
            format!("freehold_nvme_temperature_celsius{{{at}}} -3\n"),
            format!("freehold_read_bytes_total{{{at},door=\"fuse\"}} 7\n"),
            format!("freehold_call_errors_total{{{at},door=\"fuse\",call=\"read\"}} 2\n"),
            format!("_bucket{{{at},door=\"fuse\",call=\"read\",le=\"0.000000256\"}} 3\n"),
            format!("_bucket{{{at},door=\"fuse\",call=\"read\",le=\"0.000001024\"}} 4\n"),
            format!("_bucket{{{at},door=\"fuse\",call=\"read\",le=\"+Inf\"}} 5\n"),
            format!("_sum{{{at},door=\"fuse\",call=\"read\"}} 2\n"),
            format!("_count{{{at},door=\"fuse\",call=\"read\"}} 5\n"),
        ] {
            assert!(text.contains(&wanted), "{wanted} is not in\n{text}");
        }
        assert!(!text.contains("freehold_space_bytes{"), "what is not known is left out");
        for (name, kind, ..) in NUMBERS {
            assert_eq!(name.ends_with("_total"), *kind == "counter", "{name}");
        }
    }
}

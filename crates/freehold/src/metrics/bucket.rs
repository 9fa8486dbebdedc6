//! The metrics of a mounted bucket. As those of volumes, with the bucket's URL for the volume; what concerns the store has `store_` in its name.

use super::text::{begin, doors, head, line};
use crate::bucket::BucketSnapshot;

/// A number of a bucket.
type Value = fn(&BucketSnapshot) -> f64;

/// Name, type, explanation, value.
const NUMBERS: &[(&str, &str, &str, Value)] = &[
    ("uptime_seconds", "gauge", "Time since the volume is served", |s| s.uptime_seconds),
    ("files_open", "gauge", "Files that are open", |s| s.opens as f64),
    ("inodes_known", "gauge", "Files and directories of which something is in memory", |s| s.known as f64),
    ("write_memory_bytes", "gauge", "Data in memory on their way to the store", |s| s.writing.0 as f64),
    ("write_memory_max_bytes", "gauge", "The most that there was of it", |s| s.writing.1 as f64),
    ("read_memory_bytes", "gauge", "Data in memory that were read ahead", |s| s.reading.0 as f64),
    ("read_memory_max_bytes", "gauge", "The most that there was of it", |s| s.reading.1 as f64),
    ("store_retries_total", "counter", "Requests to the store that were sent again", |s| s.retries as f64),
    ("store_sent_bytes_total", "counter", "Bytes of bodies sent to the store", |s| s.sent as f64),
    ("store_received_bytes_total", "counter", "Bytes of bodies received from the store", |s| {
        s.received as f64
    }),
];

/// The metrics of a bucket, as text; `None`: it is no longer in service.
pub(super) fn exposition(snapshot: Option<BucketSnapshot>) -> String {
    let (mut out, all) = (begin(), snapshot.as_slice());
    for (name, kind, help, value) in NUMBERS {
        head(&mut out, name, kind, help);
        for s in all {
            line(&mut out, name, &[("volume", &s.url)], value(s));
        }
    }
    let name = "store_requests_total";
    head(&mut out, name, "counter", "Requests to the store, repeated ones too");
    for s in all {
        for (request, count) in &s.requests {
            line(&mut out, name, &[("volume", &s.url), ("request", request)], *count as f64);
        }
    }
    let sums = || all.iter().flat_map(|s| s.operations.iter().map(move |o| (s, o)));
    let mut numbers = |name: &str, kind: &str, help: &str, value: fn(&crate::bucket::Operations) -> u64| {
        head(&mut out, name, kind, help);
        for (s, o) in sums() {
            line(&mut out, name, &[("volume", &s.url), ("operation", o.operation)], value(o) as f64);
        }
    };
    numbers("long_operations", "gauge", "Operations on many objects that go on", |o| o.running);
    numbers(
        "long_operation_objects",
        "gauge",
        "Objects of those that go on: of the present step, where known",
        |o| o.total,
    );
    numbers("long_operation_objects_done", "gauge", "Objects with which the present step is done", |o| {
        o.done
    });
    numbers("long_operations_total", "counter", "Operations on many objects that are over", |o| o.over);
    numbers("long_operation_objects_total", "counter", "Objects that steps of them were done with", |o| {
        o.objects
    });
    doors(&mut out, || all.iter().map(|s| (s.url.as_str(), &s.door)));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_called_so() {
        for (name, kind, ..) in NUMBERS {
            assert_eq!(name.ends_with("_total"), *kind == "counter", "{name}");
        }
        let snapshot =
            BucketSnapshot { url: "s3://b".into(), requests: vec![("PutObject", 3)], ..Default::default() };
        let text = exposition(Some(snapshot));
        assert!(
            text.contains("freehold_store_requests_total{volume=\"s3://b\",request=\"PutObject\"} 3\n"),
            "{text}"
        );
        assert!(!exposition(None).contains("volume="));
    }
}

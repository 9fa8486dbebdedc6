//! What is measured, how it is judged, and where it is kept until the report.
//!
//! A row is one question ("how many empty files are made per second"); each subject answers it once for each repetition with a
//! [`Sample`]. The median of the samples counts. Goals compare medians.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Instant;

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Freehold in this process, on an image file.
    Freehold,
    /// Freehold in this process, on a loop device as the kernel's file systems have it.
    FreeholdLoop,
    /// ext4 on a loop device, through system calls.
    Ext4,
    /// The same, which writes data to its journal too.
    Ext4Journal,
    /// XFS on a loop device, through system calls.
    Xfs,
    /// io_uring on a plain file, O_DIRECT, registered buffers.
    Raw,
    /// io_uring on a file of ext4, O_DIRECT, registered buffers.
    Ext4Direct,
    /// Freehold in this process, without barriers.
    Unordered,
    /// Freehold through its FUSE mount.
    Fuse,
    /// libfuse's passthrough over ext4.
    Passthrough,
    /// Ordinary programs on a volume, under `freehold run`.
    Run,
}

impl Kind {
    /// Name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Freehold => "freehold",
            Kind::FreeholdLoop => "freehold@loop",
            Kind::Ext4 => "ext4",
            Kind::Ext4Journal => "ext4 data=journal",
            Kind::Unordered => "unordered",
            Kind::Xfs => "xfs",
            Kind::Raw => "raw",
            Kind::Ext4Direct => "ext4 O_DIRECT",
            Kind::Fuse => "freehold fuse",
            Kind::Passthrough => "passthrough",
            Kind::Run => "freehold run",
        }
    }
}

/// Requests to the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceOps {
    /// Reads.
    pub reads: u64,
    /// Writes, durable ones (FUA) too.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Blocks of log records (Freehold only).
    pub log_blocks: u64,
    /// Epochs committed (Freehold only).
    pub epochs: u64,
}

impl DeviceOps {
    /// What was added since `earlier`.
    pub fn since(&self, earlier: &DeviceOps) -> DeviceOps {
        DeviceOps {
            reads: self.reads.saturating_sub(earlier.reads),
            writes: self.writes.saturating_sub(earlier.writes),
            flushes: self.flushes.saturating_sub(earlier.flushes),
            bytes_read: self.bytes_read.saturating_sub(earlier.bytes_read),
            bytes_written: self.bytes_written.saturating_sub(earlier.bytes_written),
            log_blocks: self.log_blocks.saturating_sub(earlier.log_blocks),
            epochs: self.epochs.saturating_sub(earlier.epochs),
        }
    }
}

/// One measurement.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sample {
    /// The figure that counts, in the unit of the row.
    pub value: f64,
    /// Wall time, seconds.
    pub seconds: f64,
    /// Operations done in that time.
    pub ops: u64,
    /// Processor time of this process (user and system), seconds. Kernel threads are not in it.
    pub cpu_seconds: f64,
    /// Busy time of all processors of the machine, seconds: with kernel threads, and with whatever else ran.
    pub machine_cpu_seconds: f64,
    /// Requests to the device, where it is known.
    pub device: Option<DeviceOps>,
    /// How far the processors were from each other just before, seconds ([`super::exchange`]), where several processes were measured.
    #[serde(default)]
    pub line_round_trip: Option<f64>,
}

/// When a row passes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// The subject's rate is at least this many times the other's.
    AtLeast(Kind, f64),
    /// The subject's figure is at most this many times the other's.
    AtMost(Kind, f64),
    /// The subject's figure is at most this.
    Max(f64),
}

/// One question.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What `--only` selects by, for example `create`.
    pub name: String,
    /// Unit of the figures.
    pub unit: &'static str,
    /// State of the caches, and whatever else a reader must know.
    pub note: String,
    /// Whose goal it is: Freehold in process, or through FUSE.
    pub subject: Kind,
    /// When it passes.
    pub goal: Option<Goal>,
    /// Why the goal cannot be judged from this run, if so.
    pub unjudged: Option<String>,
    /// All samples.
    pub samples: BTreeMap<Kind, Vec<Sample>>,
}

impl Row {
    /// The median figure of a subject.
    pub fn median(&self, kind: Kind) -> Option<f64> {
        let mut values: Vec<f64> = self.samples.get(&kind)?.iter().map(|s| s.value).collect();
        if values.is_empty() {
            return None;
        }
        values.sort_by(f64::total_cmp);
        let n = values.len();
        Some(if n % 2 == 1 { values[n / 2] } else { (values[n / 2 - 1] + values[n / 2]) / 2.0 })
    }

    /// The subject's figure divided by another's.
    pub fn ratio(&self, kind: Kind) -> Option<f64> {
        let other = self.median(kind)?;
        (other != 0.0).then_some(self.median(self.subject)? / other)
    }

    /// Whether the goal is reached; `None` when it cannot be judged.
    pub fn passed(&self) -> Option<bool> {
        if self.unjudged.is_some() {
            return None;
        }
        Some(match self.goal? {
            Goal::AtLeast(kind, min) => self.ratio(kind)? >= min,
            Goal::AtMost(kind, max) => self.ratio(kind)? <= max,
            Goal::Max(max) => self.median(self.subject)? <= max,
        })
    }
}

/// The rows of a run, in the order in which they were first measured.
#[derive(Debug, Default)]
pub struct Results {
    /// The rows.
    pub rows: Vec<Row>,
    /// What could not be measured, and why.
    pub skipped: Vec<String>,
}

impl Results {
    /// Finds a row or makes it.
    pub fn row(&mut self, name: &str, unit: &'static str) -> &mut Row {
        let at = match self.rows.iter().position(|r| r.name == name) {
            Some(at) => at,
            None => {
                self.rows.push(Row {
                    name: name.to_string(),
                    unit,
                    note: String::new(),
                    subject: Kind::Freehold,
                    goal: None,
                    unjudged: None,
                    samples: BTreeMap::new(),
                });
                self.rows.len() - 1
            }
        };
        &mut self.rows[at]
    }

    /// Adds a sample.
    pub fn add(&mut self, name: &str, unit: &'static str, kind: Kind, sample: Sample) {
        self.row(name, unit).samples.entry(kind).or_default().push(sample);
    }

    /// Notes that something was left out.
    pub fn skip(&mut self, why: impl Into<String>) {
        let why = why.into();
        if !self.skipped.contains(&why) {
            self.skipped.push(why);
        }
    }
}

/// Clocks and counters at one moment.
pub struct Stamp {
    at: Instant,
    cpu: f64,
    machine: f64,
    device: Option<DeviceOps>,
}

impl Stamp {
    /// Reads the clocks; `device` are the subject's counters now.
    pub fn now(device: Option<DeviceOps>) -> Stamp {
        Stamp { device, cpu: process_cpu(), machine: machine_cpu(), at: Instant::now() }
    }

    /// Wall seconds since then.
    pub fn elapsed(&self) -> f64 {
        self.at.elapsed().as_secs_f64()
    }

    /// Everything since then; `value` is `ops` per second.
    pub fn rate(&self, ops: u64, device: Option<DeviceOps>) -> Sample {
        let seconds = self.elapsed();
        let (cpu, machine) = (process_cpu() - self.cpu, machine_cpu() - self.machine);
        Sample {
            value: ops as f64 / seconds.max(1e-9),
            seconds,
            ops,
            cpu_seconds: cpu,
            machine_cpu_seconds: machine,
            device: device.zip(self.device).map(|(now, then)| now.since(&then)),
            line_round_trip: None,
        }
    }
}

/// User and system time of this process, seconds.
pub fn process_cpu() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

/// Busy time of all processors since the machine started, seconds (resolution 10 ms).
fn machine_cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let first = text.lines().next().unwrap_or_default();
    let ticks: Vec<u64> = first.split_whitespace().skip(1).filter_map(|w| w.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal
    let busy: u64 = ticks.iter().enumerate().filter(|(i, _)| !matches!(i, 3 | 4 | 8..)).map(|(_, t)| t).sum();
    busy as f64 / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(values: &[(Kind, f64)], goal: Goal) -> Row {
        let mut results = Results::default();
        for &(kind, value) in values {
            results.add("x", "ops/s", kind, Sample { value, ..Sample::default() });
        }
        results.row("x", "ops/s").goal = Some(goal);
        results.rows.remove(0)
    }

    #[test]
    fn medians_and_goals() {
        let samples =
            [(Kind::Freehold, 9.0), (Kind::Freehold, 30.0), (Kind::Freehold, 10.0), (Kind::Ext4, 2.0)];
        let r = row(&samples, Goal::AtLeast(Kind::Ext4, 5.0));
        assert_eq!(r.median(Kind::Freehold), Some(10.0));
        assert_eq!(r.ratio(Kind::Ext4), Some(5.0));
        assert_eq!(r.passed(), Some(true));
        assert_eq!(row(&samples, Goal::AtLeast(Kind::Ext4, 5.1)).passed(), Some(false));
        assert_eq!(row(&samples, Goal::AtLeast(Kind::Xfs, 1.0)).passed(), None);
        assert_eq!(row(&samples, Goal::Max(9.9)).passed(), Some(false));
    }
}

//! What to run, and which of it cannot be run.

use crate::board::PROCESSES_MAX;
use crate::personality::{Parameters, Personality};
use std::path::PathBuf;
use std::time::Duration;

/// The most files of a set and the most threads of a run.
const FILES_MAX: f64 = 10_000_000.0;
const THREADS_MAX: u32 = 8192;
/// A set that changes has this many files for each thread, so that a file can always be picked (module `states`).
const FILES_PER_THREAD: u32 = 5;

/// A run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which of the four.
    pub personality: Personality,
    /// The directory in which the sets (`bigfileset`, `logfiles`) are made. It must exist, the sets must not.
    pub dir: PathBuf,
    /// Factor of the number of files.
    pub scale: f64,
    /// Number of processes.
    pub processes: u32,
    /// Threads in all processes together; None: the personality's.
    pub threads: Option<u32>,
    /// How long the flow is repeated.
    pub time: Duration,
    /// Rounds of the flow after which a thread ends before the time is over.
    pub rounds: Option<u64>,
    /// Decides everything random.
    pub seed: u64,
    /// Leave the files behind.
    pub keep: bool,
    /// How long after the deadline calls may take to return; then their processes are killed.
    pub patience: Duration,
}

impl Config {
    /// The personality on `dir` as in table 7: one process, for 60 seconds.
    pub fn new(personality: Personality, dir: impl Into<PathBuf>) -> Config {
        Config {
            personality,
            dir: dir.into(),
            scale: 1.0,
            processes: 1,
            threads: None,
            time: Duration::from_secs(60),
            rounds: None,
            seed: 1,
            keep: false,
            patience: Duration::from_secs(120),
        }
    }

    /// The parameters of this run: the personality's, with the scale and the number of threads applied.
    ///
    /// Errors: numbers that are out of range or do not fit each other.
    pub fn parameters(&self) -> Result<Parameters, Invalid> {
        let mut parameters = self.personality.parameters();
        let files = (f64::from(parameters.files) * self.scale).round();
        if !(self.scale > 0.0 && (1.0..=FILES_MAX).contains(&files)) {
            return Err(Invalid::Scale { scale: self.scale, most: FILES_MAX });
        }
        parameters.files = files as u32;
        parameters.threads = self.threads.unwrap_or(parameters.threads);
        if !(1..=THREADS_MAX).contains(&parameters.threads) {
            return Err(Invalid::Threads { threads: parameters.threads, most: THREADS_MAX });
        }
        let most = (PROCESSES_MAX as u32).min(parameters.threads);
        if !(1..=most).contains(&self.processes) {
            return Err(Invalid::Processes { processes: self.processes, most });
        }
        if self.time.is_zero() {
            return Err(Invalid::Time);
        }
        let needed = parameters.threads * FILES_PER_THREAD;
        if !parameters.read_only && parameters.files < needed {
            return Err(Invalid::FewFiles { files: parameters.files, threads: parameters.threads, needed });
        }
        Ok(parameters)
    }
}

/// Why a configuration cannot be run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs)]
pub enum Invalid {
    #[error("scale {scale}: the set must have between 1 and {most} files")]
    Scale { scale: f64, most: f64 },
    #[error("{threads} threads: there must be between 1 and {most}")]
    Threads { threads: u32, most: u32 },
    #[error("{processes} processes: there must be between 1 and {most}, and a thread for each")]
    Processes { processes: u32, most: u32 },
    #[error("a run of 0 seconds")]
    Time,
    #[error(
        "{files} files are too few for {threads} threads, which need {needed}: raise --scale or lower --threads"
    )]
    FewFiles { files: u32, threads: u32, needed: u32 },
    #[error("the path of the directory holds a zero byte")]
    Path,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_7_can_be_run_and_scaled() {
        for personality in Personality::ALL {
            let mut config = Config::new(personality, "/x");
            assert_eq!(config.parameters().unwrap(), personality.parameters());
            config.scale = 0.05;
            config.threads = Some(4);
            assert_eq!(config.parameters().unwrap().files, personality.parameters().files / 20);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let with = |change: fn(&mut Config)| {
            let mut config = Config::new(Personality::Varmail, "/x");
            change(&mut config);
            config.parameters().unwrap_err()
        };
        for scale in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e9, 1e-9] {
            let mut config = Config::new(Personality::Varmail, "/x");
            config.scale = scale;
            assert!(matches!(config.parameters(), Err(Invalid::Scale { .. })), "{scale}");
        }
        assert!(matches!(with(|c| c.threads = Some(0)), Invalid::Threads { .. }));
        assert!(matches!(with(|c| c.threads = Some(u32::MAX)), Invalid::Threads { .. }));
        assert!(matches!(with(|c| c.processes = 0), Invalid::Processes { .. }));
        assert!(matches!(with(|c| c.processes = 17), Invalid::Processes { most: 16, .. }));
        assert!(matches!(with(|c| c.time = Duration::ZERO), Invalid::Time));
        assert!(matches!(with(|c| c.scale = 0.01), Invalid::FewFiles { files: 10, needed: 80, .. }));
    }
}

//! Generated traces: what eight processes that share a cache access, file by file.

/// Processes in each trace.
pub const PROCESSES: usize = 8;
/// Files that all may use come first, then each process's own, then those of the scans.
const SHARED: usize = 2_000;
const OWN: usize = 2_000;
const SCANNED: usize = 8_000;
const FILES: usize = SHARED + OWN * PROCESSES + SCANNED;

/// One use of a whole file.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    pub process: u8,
    pub file: u32,
}

/// Who uses what.
#[derive(Debug)]
pub struct Trace {
    pub name: &'static str,
    pub accesses: Vec<Access>,
    /// Of each file.
    pub sizes: Vec<u64>,
}

impl Trace {
    /// Bytes of a cache that holds this share of all files that the trace uses.
    pub fn capacity(&self, share: f64) -> u64 {
        let mut used = vec![false; self.sizes.len()];
        self.accesses.iter().for_each(|a| used[a.file as usize] = true);
        let bytes: u64 = self.sizes.iter().zip(used).filter(|(_, u)| *u).map(|(s, _)| s).sum();
        (bytes as f64 * share) as u64
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// From 0 up to 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
    fn below(&mut self, n: usize) -> usize {
        (self.unit() * n as f64) as usize
    }
}

/// Draws ranks: the first is the most frequent.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(n: usize, exponent: f64) -> Zipf {
        let mut sum = 0.0;
        let ranks = (1..=n).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        Zipf(ranks.collect())
    }
    fn draw(&self, random: &mut Random) -> usize {
        let total = self.0[self.0.len() - 1];
        let x = random.unit() * total;
        self.0.partition_point(|&sum| sum <= x).min(self.0.len() - 1)
    }
}

/// All traces, each with a seed of its own. Sizes are 4 KiB, or 4 KiB to 4 MiB, small ones being more frequent.
pub fn all(seed: u64, accesses: usize, varied: bool) -> Vec<Trace> {
    let kinds: [(&'static str, Kind); 7] = [
        ("own files", own),
        ("shared and own", shared_and_own),
        ("neighbours", neighbours),
        ("scan", scan),
        ("phases", phases),
        ("pauses", pauses),
        ("loop", endless_loop),
    ];
    let make = |(i, (name, kind)): (usize, (&'static str, Kind))| {
        let mut random = Random(seed + i as u64);
        let sizes = (0..FILES)
            .map(|_| if varied { 4096 << (10.0 * random.unit().powi(2)) as u32 } else { 4096 })
            .collect();
        let mut made =
            Making { random, own: Zipf::new(OWN, 0.9), shared: Zipf::new(SHARED, 0.9), at: 0, accesses };
        let accesses = (0..accesses)
            .map(|at| {
                made.at = at;
                let process = made.random.below(PROCESSES);
                Access { process: process as u8, file: kind(&mut made, process) as u32 }
            })
            .collect();
        Trace { name, accesses, sizes }
    };
    kinds.into_iter().enumerate().map(make).collect()
}

struct Making {
    random: Random,
    own: Zipf,
    shared: Zipf,
    /// Number of the access that is being made, out of `accesses`.
    at: usize,
    accesses: usize,
}

/// Which file a process uses now.
type Kind = fn(&mut Making, usize) -> usize;

/// Each process has its own hot files.
fn own(m: &mut Making, process: usize) -> usize {
    SHARED + process * OWN + m.own.draw(&mut m.random)
}

/// Half of the uses are of files that all use.
fn shared_and_own(m: &mut Making, process: usize) -> usize {
    if m.random.unit() < 0.5 { m.shared.draw(&mut m.random) } else { own(m, process) }
}

/// Each process's hot files are also the lukewarm ones of its neighbour.
fn neighbours(m: &mut Making, process: usize) -> usize {
    let rank = m.own.draw(&mut m.random) + if m.random.unit() < 0.5 { OWN / 2 } else { 0 };
    SHARED + (process * OWN + rank) % (OWN * PROCESSES)
}

/// As [`shared_and_own`], while two processes read many files one after the other, each once in a round.
fn scan(m: &mut Making, process: usize) -> usize {
    if process < 2 { FILES - SCANNED + m.at / 4 % SCANNED } else { shared_and_own(m, process) }
}

/// As [`shared_and_own`], but what is hot is another set five times in the trace.
fn phases(m: &mut Making, process: usize) -> usize {
    let phase = m.at * 5 / m.accesses;
    let file = shared_and_own(m, process);
    if file < SHARED {
        (file + phase * 700) % SHARED
    } else {
        SHARED + (file - SHARED + phase * 700) % (OWN * PROCESSES)
    }
}

/// All use the shared files, then nobody does for a while, in turns.
fn pauses(m: &mut Making, process: usize) -> usize {
    if (m.at / 4_000).is_multiple_of(2) { shared_and_own(m, process) } else { own(m, process) }
}

/// Two processes go round and round through more than a small or middle cache holds; the others as [`shared_and_own`].
fn endless_loop(m: &mut Making, process: usize) -> usize {
    if process < 2 { FILES - SCANNED + m.at / 4 % (SCANNED * 3 / 8) } else { shared_and_own(m, process) }
}

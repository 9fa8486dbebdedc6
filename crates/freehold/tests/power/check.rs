//! What may be there after a power failure, by what the programs noted.

use super::history::{File, Op, State, Step, content, moment};
use fs::Blocking;
use fs::FileSystem;
use std::collections::BTreeMap;

/// Pages of each program's file of pages, and bytes of one.
pub const PAGES: usize = 24;
pub const PAGE: usize = 4096;
const SECTOR: usize = 512;
const SECTORS: usize = PAGE / SECTOR;
pub const FILES_OF_PAGES: [&str; 4] = ["w0", "w1", "w2", "w3"];

/// What a page holds: the number of the write, in every word.
pub fn content_of_page(version: u64) -> Vec<u8> {
    version.to_le_bytes().repeat(PAGE / 8)
}

/// What somebody found who looked: files, and of each sector of the pages the number that it shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub files: State,
    pub sectors: BTreeMap<usize, Vec<u64>>,
}

/// Reads everything; contents must be what follows from their numbers.
pub fn look<F: FileSystem>(s: &Blocking<F>) -> Result<Seen, String> {
    let mut seen = Seen::default();
    let mut todo = vec![String::new()];
    while let Some(dir) = todo.pop() {
        let entries = s.read_dir(format!("/{dir}")).map_err(|e| format!("/{dir}: {e}"))?;
        for entry in entries {
            let entry = entry.map_err(|e| format!("/{dir}: {e}"))?;
            let name = entry.name.to_string_lossy().into_owned();
            let name = if dir.is_empty() { name } else { format!("{dir}/{name}") };
            let attr = s.stat(format!("/{name}")).map_err(|e| format!("/{name}: {e}"))?;
            if attr.kind == fs::FileType::Directory {
                todo.push(name);
                continue;
            }
            let bytes = s.read(format!("/{name}")).map_err(|e| format!("/{name}: {e}"))?;
            if let Some(owner) = name.strip_prefix("pages/w") {
                let owner = owner.parse().map_err(|e| format!("{name}: {e}"))?;
                seen.sectors.insert(owner, sectors(&name, &bytes)?);
                continue;
            }
            let len = bytes.len() as u64;
            let id = bytes.first_chunk::<8>().map_or(0, |w| u64::from_le_bytes(*w));
            if let Some(at) = bytes.iter().zip(&content(id, 0, len)).position(|(a, b)| a != b) {
                return Err(format!("/{name} of {len} bytes differs at {at}"));
            }
            seen.files.insert(name, File { id, len });
        }
    }
    Ok(seen)
}

fn sectors(name: &str, bytes: &[u8]) -> Result<Vec<u64>, String> {
    if bytes.len() != PAGES * PAGE {
        return Err(format!("/{name} has {} bytes", bytes.len()));
    }
    let one = |(i, sector): (usize, &[u8])| {
        let mut words =
            sector.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().expect("eight bytes")));
        let first = words.next().expect("a sector has words");
        match words.all(|w| w == first) {
            true => Ok(first),
            false => Err(format!("/{name}: sector {i} is torn")),
        }
    };
    bytes.chunks_exact(SECTOR).enumerate().map(one).collect()
}

/// One program.
#[derive(Clone, Debug)]
pub struct Member {
    /// What was there when the server began.
    pub base: State,
    /// Of each sector of its pages.
    pub sectors: Vec<u64>,
    /// What was done since.
    pub steps: Vec<Step>,
    /// Larger than every number used so far.
    pub next_id: u64,
}

impl Default for Member {
    fn default() -> Member {
        Member { base: State::new(), sectors: vec![0; PAGES * SECTORS], steps: Vec::new(), next_id: 0 }
    }
}

impl Member {
    /// The base as text, for the program to begin with.
    pub fn lines(&self) -> String {
        let files = self.base.iter().map(|(name, f)| format!("{name} {} {}\n", f.id, f.len));
        format!("{}\n{}", self.next_id, files.collect::<String>())
    }
}

/// Reads what [`Member::lines`] wrote: the files, and the last number used. Numbers of programs differ in their upper bits.
pub fn parse(text: &str, number: usize) -> (State, u64) {
    let mut lines = text.lines();
    let next: u64 = lines.next().and_then(|l| l.parse().ok()).expect("a number");
    let state = lines.map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let file = File { id: words[1].parse().expect("a number"), len: words[2].parse().expect("a length") };
        (words[0].to_string(), file)
    });
    (state.collect(), next.max((number as u64 + 1) << 40))
}

/// What a crash state turned out to be.
pub struct Found {
    /// With what is there as their base.
    pub members: Vec<Member>,
    /// Calls that had returned are not there.
    pub lost: bool,
}

fn is_mine(name: &str, n: usize) -> bool {
    name.starts_with(&format!("w{n}/"))
}

fn changes(op: &Op) -> bool {
    !matches!(op, Op::Overwrite { .. } | Op::Sync | Op::Barrier)
}

/// Whether `seen` may be there after a power failure at `time`.
pub fn check(members: &[Member], seen: &Seen, time: u64) -> Result<Found, String> {
    // What had not begun does not count, and what had not returned had not.
    let steps: Vec<Vec<Step>> = members
        .iter()
        .map(|m| {
            let begun = m.steps.iter().filter(|s| s.began <= time).cloned();
            begun.map(|s| Step { ended: s.ended.filter(|t| *t <= time), ..s }).collect()
        })
        .collect();
    let all = || steps.iter().flatten();
    let returned_before = |of: fn(&Op) -> bool, before: u64| {
        let them = all().filter(move |s| of(&s.op) && s.ended.is_some_and(|t| t < before));
        them.map(|s| s.began).max().unwrap_or(0)
    };
    let synced = returned_before(|op| *op == Op::Sync, u64::MAX);
    let newest_page = all()
        .filter(|s| matches!(s.op, Op::Overwrite { version, .. } if seen.sectors.values().any(|v| v.contains(&version))))
        .map(|s| s.began)
        .max()
        .unwrap_or(0);
    // What had returned before this time must be there: raised by what is seen, until it stays.
    let (mut least_files, mut rounds) = (synced, 0);
    let (found, least_pages) = loop {
        let mut found = Vec::new();
        let mut newest = 0;
        for (n, m) in members.iter().enumerate() {
            let got: State = seen
                .files
                .iter()
                .filter(|(name, _)| is_mine(name, n))
                .map(|(n, f)| (n.clone(), *f))
                .collect();
            let least = steps[n].iter().take_while(|s| s.ended.is_some_and(|t| t < least_files)).count();
            let (done, state) = moment(&m.base, &steps[n], least, &got).map_err(|e| {
                format!("program {n}, synced {synced}, what returned before {least_files} must be there: {e}")
            })?;
            let last = steps[n][..done].iter().rev().find(|s| changes(&s.op));
            newest = newest.max(last.map_or(0, |s| s.began));
            found.push((done, state));
        }
        let ordered = |op: &Op| matches!(op, Op::Sync | Op::Barrier);
        let closed = returned_before(ordered, newest.max(newest_page)).max(synced);
        let least = newest.max(closed).max(least_files);
        rounds += 1;
        if least == least_files || rounds > 1000 {
            break (found, closed);
        }
        least_files = least;
    };
    if let Some(name) = seen.files.keys().find(|name| (0..members.len()).all(|n| !is_mine(name, n))) {
        return Err(format!("/{name}: nobody made it"));
    }
    let mut lost = false;
    let mut next = Vec::new();
    for (n, (m, (done, state))) in members.iter().zip(found).enumerate() {
        let got = seen.sectors.get(&n).ok_or_else(|| format!("the pages of program {n} are gone"))?;
        lost |= pages(m, &steps[n], got, least_pages).map_err(|e| format!("program {n}: {e}"))?;
        lost |= steps[n][done..].iter().any(|s| changes(&s.op) && s.ended.is_some());
        let next_id = (n as u64 + 1) << 40;
        let used = m.steps.iter().filter_map(|s| match s.op {
            Op::Create { id, .. } | Op::Overwrite { version: id, .. } => Some(id),
            _ => None,
        });
        let next_id = used.max().unwrap_or(next_id).max(m.next_id);
        next.push(Member { base: state, sectors: got.clone(), steps: Vec::new(), next_id });
    }
    Ok(Found { members: next, lost })
}

/// Each sector shows something written there, no older than what had returned before `least`. Whether something is lost.
fn pages(m: &Member, steps: &[Step], got: &[u64], least: u64) -> Result<bool, String> {
    let mut lost = false;
    for page in 0..PAGES {
        let writes: Vec<(u64, Option<u64>)> = steps
            .iter()
            .filter_map(|s| match s.op {
                Op::Overwrite { page: p, version } if p == page => Some((version, s.ended)),
                _ => None,
            })
            .collect();
        let must = writes.iter().rposition(|w| w.1.is_some_and(|t| t < least));
        let sectors = got.iter().zip(&m.sectors).enumerate();
        for (sector, (&shows, &base)) in sectors.skip(page * SECTORS).take(SECTORS) {
            let at = writes.iter().position(|w| w.0 == shows);
            let fine = match (at, must) {
                (Some(at), Some(must)) => at >= must,
                (Some(_), None) => true,
                (None, must) => must.is_none() && shows == base,
            };
            if !fine {
                return Err(format!(
                    "page {page}, sector {sector} shows {shows}; before {base}, then {writes:?}, what returned before {least} must be there"
                ));
            }
            lost |= writes.last().is_some_and(|w| w.1.is_some() && w.0 != shows);
        }
    }
    Ok(lost)
}

#[test]
fn what_is_missing_is_found() {
    let step = |op, began, ended| Step { op, began, ended: Some(ended) };
    let create = |name: &str, id| Op::Create { name: name.into(), id };
    let mut members = vec![Member::default(), Member::default()];
    members[0].steps = vec![
        step(create("w0/a", 1), 10, 20),
        step(Op::Overwrite { page: 0, version: 5 }, 21, 22),
        step(Op::Barrier, 25, 30),
    ];
    members[1].steps = vec![step(create("w1/b", 2), 40, 50), step(Op::Sync, 60, 70)];
    let seen = |names: &[&str], first: u64| {
        let files = names.iter().map(|n| (n.to_string(), File { id: 0, len: 0 })).collect();
        let mut sectors = vec![0; PAGES * SECTORS];
        sectors[..SECTORS].fill(first);
        Seen { files, sectors: [(0, sectors), (1, vec![0; PAGES * SECTORS])].into() }
    };
    let may = |names: &[&str], first, time| check(&members, &seen(names, first), time).map(|f| f.lost);
    assert_eq!(
        (may(&["w0/a", "w1/b"], 5, 80), may(&[], 0, 55), may(&["w0/a"], 0, 55)),
        (Ok(false), Ok(true), Ok(true))
    );
    assert_eq!(may(&[], 5, 55), Ok(true));
    // A later file without an earlier one; without the page that a barrier has ordered; a sync; before it was made.
    assert!(may(&["w1/b"], 5, 55).is_err() && may(&["w0/a", "w1/b"], 0, 55).is_err());
    assert!(may(&["w0/a"], 5, 75).is_err() && may(&["w0/a", "w1/b"], 5, 35).is_err());
    assert!(may(&["w0/a"], 6, 55).is_err() && may(&["w0/a", "w9"], 5, 55).is_err());
}

//! Which of the pending units a power failure keeps.

use media::flash::CrashState;
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

/// Subsets of `units` (number of the write, number of the unit): all of them when there are at most `exhaustive`; else
/// none, all, and up to `sampled` of each kind: one write missing, one write alone, one unit missing, one unit alone, the
/// first so many, whole writes by chance, units by chance.
pub fn subsets(
    units: &[(u64, u32)],
    exhaustive: usize,
    sampled: usize,
    rng: &mut SmallRng,
) -> Vec<Vec<bool>> {
    let n = units.len();
    if n <= exhaustive {
        return (0..1usize << n).map(|bits| (0..n).map(|i| bits >> i & 1 == 1).collect()).collect();
    }
    let mut out = vec![vec![true; n], vec![false; n]];
    let mut writes: Vec<u64> = units.iter().map(|u| u.0).collect();
    writes.dedup();
    let some = |rng: &mut SmallRng, of: usize| {
        let mut all: Vec<usize> = (0..of).collect();
        all.shuffle(rng);
        all.truncate(sampled);
        all
    };
    for alone in [false, true] {
        for w in some(rng, writes.len()) {
            out.push(units.iter().map(|u| (u.0 == writes[w]) == alone).collect());
        }
        for at in some(rng, n) {
            out.push((0..n).map(|i| (i == at) == alone).collect());
        }
    }
    for at in some(rng, n) {
        out.push((0..n).map(|i| i < at).collect());
    }
    for round in 0..2 * sampled {
        let chance = rng.random_range(0.05..0.95);
        let kept: Vec<bool> = writes.iter().map(|_| rng.random_bool(chance)).collect();
        if round % 2 == 0 {
            out.push(
                units
                    .iter()
                    .map(|u| writes.iter().position(|w| *w == u.0).is_some_and(|w| kept[w]))
                    .collect(),
            );
        } else {
            out.push(units.iter().map(|_| rng.random_bool(chance)).collect());
        }
    }
    out
}

/// The subset in words.
pub(super) fn tell(state: &CrashState, subset: &[bool]) -> String {
    let mut kept = subset.iter();
    let mut out = String::from("writes that were not durable, with the units that were kept:");
    for write in state.pending() {
        let units: String = (0..write.units())
            .map(|_| if kept.next().copied().unwrap_or(false) { '#' } else { '.' })
            .collect();
        let head: Vec<u8> = write.data().iter().take(8).copied().collect();
        let done = if write.completed { "done" } else { "in flight" };
        out += &format!(
            "\n    {:?} block {} + {} bytes {done} {units} \"{}\"",
            write.change,
            write.offset / 4096,
            write.len,
            head.escape_ascii()
        );
    }
    out
}

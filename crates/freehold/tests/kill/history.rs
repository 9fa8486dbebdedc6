//! What one worker did and what is left of it: names, and for each the file behind it. The content of a file follows from its number and length.

use std::collections::BTreeMap;
use std::fmt::Write;

/// A file: a number that no other file ever has, and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct File {
    pub id: u64,
    pub len: u64,
}

/// Names, as paths from the mount point, and files.
pub type State = BTreeMap<String, File>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Create {
        name: String,
        id: u64,
    },
    /// The length afterwards.
    Append {
        name: String,
        len: u64,
    },
    Rename {
        from: String,
        to: String,
    },
    Unlink {
        name: String,
    },
    /// A page of the worker's own file of pages, which is no part of the state: see `pages`.
    Overwrite {
        page: usize,
        version: u64,
    },
    Sync,
    /// Order alone.
    Barrier,
}

impl Op {
    pub fn apply(&self, state: &mut State) {
        match self {
            Op::Create { name, id } => {
                state.insert(name.clone(), File { id: *id, len: 0 });
            }
            Op::Append { name, len } => {
                state.get_mut(name).expect("appended to a file that is there").len = *len
            }
            Op::Rename { from, to } => {
                let file = state.remove(from).expect("renamed a file that is there");
                state.insert(to.clone(), file);
            }
            Op::Unlink { name } => {
                state.remove(name);
            }
            Op::Overwrite { .. } | Op::Sync | Op::Barrier => {}
        }
    }

    pub fn line(&self) -> String {
        match self {
            Op::Create { name, id } => format!("create {name} {id}"),
            Op::Append { name, len } => format!("append {name} {len}"),
            Op::Rename { from, to } => format!("rename {from} {to}"),
            Op::Unlink { name } => format!("unlink {name} -"),
            Op::Overwrite { page, version } => format!("overwrite {page} {version}"),
            Op::Sync => "sync - -".into(),
            Op::Barrier => "barrier - -".into(),
        }
    }

    fn parse(kind: &str, first: &str, second: &str) -> Op {
        let (name, number) = (first.to_string(), || second.parse().unwrap());
        match kind {
            "create" => Op::Create { name, id: number() },
            "append" => Op::Append { name, len: number() },
            "rename" => Op::Rename { from: name, to: second.into() },
            "unlink" => Op::Unlink { name },
            "overwrite" => Op::Overwrite { page: first.parse().unwrap(), version: number() },
            "sync" => Op::Sync,
            "barrier" => Op::Barrier,
            _ => panic!("journal: {kind} {first} {second}"),
        }
    }
}

/// A call: when it began and, if it returned, when. Nanoseconds of the machine's clock.
#[derive(Clone, Debug)]
pub struct Step {
    pub op: Op,
    pub began: u64,
    pub ended: Option<u64>,
}

/// Reads a journal: `begin TIME OP NAME ARGUMENT` and `end TIME` in turn; a call that failed ends it. The last line may be cut off.
pub fn journal(text: &str) -> (Vec<Step>, Option<String>) {
    let mut steps: Vec<Step> = Vec::new();
    for line in text.split_inclusive('\n').filter_map(|l| l.strip_suffix('\n')) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["begin", time, op, first, second] => {
                let op = Op::parse(op, first, second);
                steps.push(Step { op, began: time.parse().unwrap(), ended: None });
            }
            ["end", time] => steps.last_mut().unwrap().ended = Some(time.parse().unwrap()),
            ["failed", ..] => return (steps, Some(line.into())),
            _ => panic!("journal: {line}"),
        }
    }
    (steps, None)
}

/// The word of a file's content at `index`: first its number, then what follows from it.
pub fn word(id: u64, index: u64) -> u64 {
    if index == 0 {
        return id;
    }
    let mut x = id.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ index.wrapping_mul(0xD1B5_4A32_D192_ED03);
    x ^= x >> 29;
    x = x.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x ^ x >> 32
}

/// Bytes `from..to` of a file's content.
pub fn content(id: u64, from: u64, to: u64) -> Vec<u8> {
    let words = (from / 8..to.div_ceil(8)).flat_map(|i| word(id, i).to_le_bytes());
    words.skip((from % 8) as usize).take((to - from) as usize).collect()
}

/// Whether what is there is what the history says. The number of an empty file cannot be seen.
fn agrees(want: &State, got: &State) -> bool {
    want.len() == got.len()
        && want
            .iter()
            .zip(got)
            .all(|((a, x), (b, y))| a == b && x.len == y.len && (x.len == 0 || x.id == y.id))
}

/// The moment of a history that `got` is: after so many steps, no fewer than `least`, and the state then. Of the step that follows, if
/// it was under way when somebody was killed, a part of an append may be there.
pub fn moment(base: &State, steps: &[Step], least: usize, got: &State) -> Result<(usize, State), String> {
    let mut state = base.clone();
    for done in 0..=steps.len() {
        if done >= least {
            if agrees(&state, got) {
                return Ok((done, state));
            }
            if let Some(Step { op: Op::Append { name, len }, .. }) = steps.get(done)
                && let (Some(before), Some(now)) = (state.get(name).copied(), got.get(name))
                && (before.len..*len).contains(&now.len)
            {
                let mut partly = state.clone();
                partly.insert(name.clone(), File { len: now.len, ..before });
                if agrees(&partly, got) {
                    return Ok((done, partly));
                }
            }
        }
        if let Some(step) = steps.get(done) {
            step.op.apply(&mut state);
        }
    }
    // Said as what differs from the earliest and the last moment that it may be.
    let at = |n: usize| {
        let mut state = base.clone();
        steps[..n].iter().for_each(|s| s.op.apply(&mut state));
        state
    };
    let mut text = format!("what is there is no state after {least} to {} calls\n", steps.len());
    for (when, state) in [("earliest", at(least)), ("last", at(steps.len()))] {
        for name in state.keys().chain(got.keys()).collect::<std::collections::BTreeSet<_>>() {
            if state.get(name) != got.get(name) {
                let _ = writeln!(text, "  {when} {name}: {:?}, there: {:?}", state.get(name), got.get(name));
            }
        }
    }
    for (i, step) in steps.iter().enumerate().skip(least.saturating_sub(3)).take(60) {
        let _ = writeln!(text, "  {i}: {} {} {:?}", step.op.line(), step.began, step.ended);
    }
    Err(text)
}

#[test]
fn moments_are_found() {
    let step = |op| Step { op, began: 0, ended: Some(1) };
    let steps = [
        step(Op::Create { name: "a".into(), id: 7 }),
        step(Op::Append { name: "a".into(), len: 100 }),
        step(Op::Rename { from: "a".into(), to: "b".into() }),
        step(Op::Unlink { name: "b".into() }),
    ];
    let (base, one) =
        (State::new(), |name: &str, len| State::from([(name.to_string(), File { id: 7, len })]));
    let find = |least, got: &State| moment(&base, &steps, least, got).map(|(n, _)| n);
    assert_eq!((find(0, &base), find(1, &base), find(2, &one("b", 100))), (Ok(0), Ok(4), Ok(3)));
    assert_eq!((find(0, &one("a", 60)), find(0, &one("a", 0))), (Ok(1), Ok(1)));
    assert!(find(3, &one("a", 100)).is_err() && find(0, &one("b", 99)).is_err());
    let text: String = steps.iter().map(|s| format!("begin 5 {}\nend 6\n", s.op.line())).collect();
    let (read, failed) = journal(&format!("{text}begin 7 create c"));
    assert!(read.iter().zip(&steps).all(|(a, b)| a.op == b.op) && read.len() == 4 && failed.is_none());
    assert_eq!(content(9, 3, 30), content(9, 0, 40)[3..30]);
}

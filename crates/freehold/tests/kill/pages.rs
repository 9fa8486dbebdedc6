//! What workers overwrite: a file of pages for each, every page full of the number of the write that it shows. Overwrites keep no order among pages, so
//! each page has a history of its own.

use super::history::{Op, Step};

/// Pages of a worker's file.
pub const PAGES: usize = 96;
/// Bytes of one.
pub const PAGE: usize = 4096;

/// What a page shows: the smallest and the largest number in it, which are one but for a write that was cut off.
pub type Shown = (u64, u64);

/// What a page holds.
pub fn content(version: u64) -> Vec<u8> {
    version.to_le_bytes().repeat(PAGE / 8)
}

/// What is in a page; an error when that was never written there.
pub fn shown(bytes: &[u8]) -> Result<Shown, String> {
    let all = || bytes.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().unwrap()));
    let (least, most) = (all().min().unwrap_or(0), all().max().unwrap_or(0));
    match bytes.len() == PAGE && all().all(|w| w == least || w == most) {
        true => Ok((least, most)),
        false => Err(format!("a page of {} bytes from {least} to {most}", bytes.len())),
    }
}

/// What pages may show after the server was killed, or now.
#[derive(Clone, Debug)]
pub struct Pages {
    /// Of each page what it may show, oldest first, and when each was acknowledged.
    may: Vec<Vec<(Shown, Option<u64>)>>,
}

impl Pages {
    pub fn new() -> Pages {
        Pages { may: vec![vec![((0, 0), Some(0))]; PAGES] }
    }

    /// Steps that were made.
    pub fn extend(&mut self, steps: &[Step]) {
        for step in steps {
            if let Op::Overwrite { page, version } = step.op {
                self.may[page].push(((version, version), step.ended));
            }
        }
    }

    /// The server lives: each page shows what was written there last, or some of what was just being written.
    pub fn now(&mut self, got: &[Shown]) -> Result<(), String> {
        for (page, (may, got)) in self.may.iter_mut().zip(got).enumerate() {
            let last = may.len() - 1;
            let least = if may[last].1.is_some() { last } else { last - 1 };
            if !may[least..].iter().any(|m| m.0 == *got) && !is_cut(&may[least..], *got) {
                return Err(format!("page {page} shows {got:?}: {:?}", &may[least..]));
            }
            match may[last].1 {
                Some(_) => {}
                // What was under way has ended by now.
                None => may[last] = (*got, Some(super::worker::now())),
            }
        }
        Ok(())
    }

    /// The server was killed, and everything acknowledged before `synced` was made durable: how many writes were lost.
    pub fn after_crash(&mut self, got: &[Shown], synced: u64) -> Result<usize, String> {
        let mut lost = 0;
        for (page, (may, got)) in self.may.iter_mut().zip(got).enumerate() {
            let least = may.iter().rposition(|m| m.1.is_some_and(|t| t < synced)).unwrap_or(0);
            match may.iter().rposition(|m| m.0 == *got) {
                Some(at) if at >= least => lost += may.len() - 1 - at,
                _ if may[least..].windows(2).any(|two| is_cut(two, *got)) => {}
                _ => return Err(format!("page {page} shows {got:?}, not one of {:?}", &may[least..])),
            }
            *may = vec![(*got, Some(0))];
        }
        Ok(lost)
    }
}

/// Whether a page is between two writes.
fn is_cut(may: &[(Shown, Option<u64>)], got: Shown) -> bool {
    may.len() == 2 && got == (may[0].0.0.min(may[1].0.0), may[0].0.1.max(may[1].0.1))
}

#[test]
fn pages_have_histories() {
    let step = |page, version, ended| Step { op: Op::Overwrite { page, version }, began: 0, ended };
    let mut pages = Pages::new();
    pages.extend(&[step(0, 1, Some(10)), step(1, 2, Some(20)), step(0, 3, Some(30)), step(2, 4, None)]);
    let show = |first: &[Shown]| [first, &vec![(0, 0); PAGES - first.len()]].concat();
    assert!(pages.clone().now(&show(&[(3, 3), (2, 2), (4, 4)])).is_ok());
    assert!(pages.clone().now(&show(&[(3, 3), (2, 2), (0, 4)])).is_ok());
    assert!(pages.clone().now(&show(&[(1, 1), (2, 2), (4, 4)])).is_err());
    assert!(pages.clone().now(&show(&[(1, 3), (2, 2), (4, 4)])).is_err());
    let crash = |got: &[Shown], synced| pages.clone().after_crash(&show(got), synced).map(drop);
    assert!(crash(&[(0, 0)], 5).is_ok() && crash(&[(1, 1)], 15).is_ok() && crash(&[(1, 3)], 15).is_ok());
    assert!(
        crash(&[(0, 0)], 15).is_err()
            && crash(&[(3, 3)], 25).is_err()
            && crash(&[(1, 1), (2, 2)], 35).is_err()
    );
    assert!(crash(&[(3, 3), (2, 2)], 35).is_ok() && crash(&[(5, 5)], 5).is_err());
    assert_eq!(shown(&content(7)), Ok((7, 7)));
    assert!(shown(&[content(7), vec![0]].concat()).is_err() && shown(&[1, 0, 0, 0, 0, 0, 0, 0, 2]).is_err());
}

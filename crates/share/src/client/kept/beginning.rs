//! The directory into which the paths of a thread lead: programs call one file after the other of a directory, and to look up each name of the way to it
//! costs more than the rest of a stat.
//!
//! What stands here is what the names said, and holds as long as what is kept of each of them would.

use super::names::{Name, text_is, word};
use super::{Kept, Target};
use crate::changes::Word;
use crate::client::records::{Record, Words};
use fs::{FileType, Ino};
use smallvec::SmallVec;
use std::cell::Cell;
use std::sync::atomic::Ordering;

/// Words of a beginning, and names in it.
const TEXT_WORDS: usize = 16;
const NAMES_MAX: usize = 6;
/// A record: generation of the directory | which state of which [`Kept`] | where the path begins | the directory | its length | number of names | the beginning, up
/// to and with its last slash | for each of its names, the clock and the words of the changes.
const TEXT: usize = 6;
const NAMES: usize = TEXT + TEXT_WORDS;
const RECORD: usize = NAMES + 2 * NAMES_MAX;

/// Of a thread. A signal handler that comes in between is seen by the count of the record.
struct Last {
    record: Record<RECORD>,
    /// A directory into which the path before led in another way.
    missed: Cell<u64>,
}

thread_local! {
    static LAST: Last = const { Last { record: Record::new(), missed: Cell::new(0) } };
}

impl Kept {
    /// The directory to which the beginning of a path leads, and how long that beginning is, if it is known and still holds.
    #[inline]
    pub(super) fn beginning(&self, base: Ino, path: &[u8]) -> Option<(Target, usize)> {
        let read = |record: &Words<'_, RECORD>| {
            let len = record.get(4) as usize;
            let is = record.get(1) == self.state.load(Ordering::Acquire)
                && record.get(2) == base.0
                && len <= path.len().min(TEXT_WORDS * 8)
                && text_is(path[..len].chunks(8), |at| record.get(TEXT + at));
            let names = (record.get(5) as usize).min(NAMES_MAX);
            let holds = |name: usize| {
                let (noted, words) = (record.get(NAMES + 2 * name), record.get(NAMES + 2 * name + 1));
                [words as u32, (words >> 32) as u32]
                    .into_iter()
                    .all(|word| self.seen.same(Word::again(word), noted))
            };
            let dir = Target {
                ino: Ino(record.get(3)),
                generation: record.get(0) as u32,
                kind: FileType::Directory,
            };
            (is && (0..names).all(holds)).then_some((dir, len))
        };
        LAST.with(|last| last.record.read(read)).flatten()
    }

    /// Paths led into this directory from `base` on, and what stands here was of no use. At the second time in a row it is remembered.
    #[inline(never)]
    pub(super) fn begins(&self, base: Ino, path: &[u8], into: Ino) {
        if LAST.with(|last| last.missed.replace(into.0)) != into.0 {
            return;
        }
        let state = self.state.load(Ordering::Acquire);
        let Some(len) = path.iter().rposition(|&b| b == b'/').map(|at| at + 1) else { return };
        let names: SmallVec<[&[u8]; NAMES_MAX]> =
            path[..len].split(|&b| b == b'/').filter(|name| !name.is_empty()).collect();
        if len > TEXT_WORDS * 8 || names.len() > NAMES_MAX {
            return;
        }
        let (mut at, mut dir, mut new) = (base, None, [0; RECORD]);
        for (n, name) in names.iter().enumerate() {
            let Some(Name { target: Some(target), noted, words }) = self.entry(at, name) else { return };
            let [low, high] = words.map(|word| word.number() as u64);
            (new[NAMES + 2 * n], new[NAMES + 2 * n + 1]) = (noted, low | high << 32);
            (at, dir) = (target.ino, Some(target));
        }
        let Some(dir) = dir.filter(|dir| dir.kind == FileType::Directory) else { return };
        (new[0], new[1], new[2], new[3]) = (dir.generation as u64, state, base.0, dir.ino.0);
        (new[4], new[5]) = (len as u64, names.len() as u64);
        for (to, bytes) in new[TEXT..].iter_mut().zip(path[..len].chunks(8)) {
            *to = word(bytes);
        }
        LAST.with(|last| {
            // Not in a signal handler that came while it was being written.
            if last.record.read(|_| ()).is_some() {
                last.record.write(&new);
                last.missed.set(0);
            }
        });
    }

    /// Something went of which nobody else tells.
    pub(super) fn changes_state(&self) {
        self.state.store(super::next_state(), Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Since;
    use super::super::tests::alone;
    use super::*;
    use crate::changes::Changes;
    use fs::watched::Change;

    struct Tree {
        changes: Changes,
        kept: Kept,
    }

    /// Knows `a/b/c/f1` and `a/b/c/f2`, and what stands beside them: each directory is the inode 10 times that of its parent (1) and one more, files count on.
    fn tree() -> Tree {
        let changes = Changes::new().unwrap();
        let kept = alone(&changes);
        let tree = Tree { changes, kept };
        tree.learn();
        tree
    }

    impl Tree {
        fn learn(&self) {
            let since = Since { clock: self.kept.now(), posts: self.kept.posts() };
            let dir = |ino| Target { ino: Ino(ino), generation: ino as u32, kind: FileType::Directory };
            let file = |ino| Target { kind: FileType::Regular, ..dir(ino) };
            let names: [(u64, &[u8], Target); 6] = [
                (1, b"a", dir(11)),
                (11, b"b", dir(111)),
                (111, b"c", dir(1111)),
                (1111, b"f1", file(5)),
                (1111, b"f2", file(6)),
                (111, b"g", file(7)),
            ];
            for (parent, name, target) in names {
                self.kept.learn_name(since, Ino(parent), name, Some(target));
            }
        }

        /// What paths lead to; each is asked for twice.
        fn all(&self) -> Vec<Option<u64>> {
            let mut all = Vec::new();
            for path in ["a/b/c/f1", "a/b/c/f2", "a/b/g", "a/b/c/f1", "/a//b/c/f2", "a/b", "a/b/c/", "f1"] {
                let follow = || self.kept.follow(Ino(1), path.as_bytes());
                let first = follow();
                assert_eq!(first, follow(), "{path}");
                assert_eq!(follow().map(|found| found.0), first.map(|found| found.0), "{path}");
                all.push(first.map(|(ino, target)| {
                    assert_eq!(target.map(|t| (t.ino, t.generation)), Some((ino, ino.0 as u32)));
                    ino.0
                }));
            }
            all
        }

        fn begins(&self, path: &str) -> Option<u64> {
            self.kept.beginning(Ino(1), path.as_bytes()).map(|(dir, _)| dir.ino.0)
        }
    }

    const ALL: [Option<u64>; 8] = [Some(5), Some(6), Some(7), Some(5), Some(6), Some(111), Some(1111), None];

    #[test]
    fn paths_lead_where_they_did() {
        let tree = tree();
        assert_eq!(tree.all(), ALL);
        let twice = |path: &str| (0..2).map(|_| tree.kept.follow(Ino(1), path.as_bytes())).last().flatten();
        twice("a/b/c/f1").unwrap();
        assert_eq!(tree.begins("a/b/c/f2"), Some(1111));
        assert_eq!(tree.begins("a/b/c/"), Some(1111));
        assert_eq!((tree.begins("a/b/c"), tree.begins("a/b/d/f1"), tree.begins("a/b")), (None, None, None));
        assert_eq!(tree.kept.beginning(Ino(2), b"a/b/c/f1").map(|(dir, _)| dir.ino), None, "of another one");
        // A way that is once taken changes nothing.
        tree.kept.follow(Ino(1), b"a/b/g").unwrap();
        assert_eq!(tree.begins("a/b/c/f2"), Some(1111));
        twice("a/b/g").unwrap();
        assert_eq!((tree.begins("a/b/c/f1"), tree.begins("a/b/x")), (Some(111), Some(111)));
        // Of another thread.
        std::thread::scope(|s| s.spawn(|| assert_eq!(tree.begins("a/b/x"), None)).join().unwrap());
    }

    #[test]
    fn what_changes_on_the_way_is_seen() {
        let tree = tree();
        let (a, b, c) = (Ino(1), Ino(11), Ino(111));
        let changes = [
            Change::Name { parent: a, name: b"a" },
            Change::Name { parent: b, name: b"b" },
            Change::Name { parent: c, name: b"c" },
            Change::Attr { ino: a },
            Change::Attr { ino: b },
            Change::Attr { ino: c },
        ];
        let inside = |tree: &Tree| tree.kept.follow(Ino(1), b"a/b/c/f1").map(|found| found.0.0);
        for change in changes {
            assert_eq!((inside(&tree), inside(&tree)), (Some(5), Some(5)));
            assert_eq!(tree.begins("a/b/c/f1"), Some(1111));
            tree.changes.changed(&change);
            assert_eq!((tree.begins("a/b/c/f1"), inside(&tree)), (None, None), "{change:?}");
            tree.learn();
        }
        // What is in the directory has nothing to do with the way to it.
        assert_eq!((inside(&tree), inside(&tree)), (Some(5), Some(5)));
        tree.changes.changed(&Change::Name { parent: Ino(1111), name: b"f1" });
        assert_eq!((inside(&tree), tree.begins("a/b/c/f1")), (None, Some(1111)));
    }

    #[test]
    fn what_this_client_does_itself_is_seen() {
        let tree = tree();
        let inside = || tree.kept.follow(Ino(1), b"a/b/c/f1").map(|found| found.0.0);
        let goes: [&dyn Fn(); 3] =
            [&|| tree.kept.posted_rmdir(Ino(111), b"c", Ino(1111)), &|| tree.kept.forget(), &|| {
                tree.kept.forget_names()
            }];
        for go in goes {
            assert_eq!((inside(), inside(), tree.begins("a/b/c/f1")), (Some(5), Some(5), Some(1111)));
            go();
            assert_eq!((inside(), tree.begins("a/b/c/f1")), (None, None));
            tree.learn();
        }
        // A file that goes leaves it.
        assert_eq!((inside(), inside()), (Some(5), Some(5)));
        tree.kept.posted(Ino(1111), b"f1", Some(Ino(5)));
        assert_eq!((inside(), tree.begins("a/b/c/f1")), (None, Some(1111)));
        // Another client's.
        assert!(alone(&tree.changes).beginning(Ino(1), b"a/b/c/f1").is_none());
    }

    #[test]
    fn long_ways_are_looked_up() {
        let tree = tree();
        let since = Since { clock: tree.kept.now(), posts: tree.kept.posts() };
        let dir = |ino| Target { ino: Ino(ino), generation: 0, kind: FileType::Directory };
        let long = "x".repeat(100);
        for (n, name) in [&long, &long, "d", "e", "f", "g", "h"].iter().enumerate() {
            let n = n as u64;
            tree.kept.learn_name(since, Ino(1 + n), name.as_bytes(), Some(dir(2 + n)));
        }
        let follow = |base: u64, path: &str| {
            (0..3).map(|_| tree.kept.follow(Ino(base), path.as_bytes()).unwrap().0.0).last()
        };
        assert_eq!(follow(1, &format!("{long}/{long}/d")), Some(4));
        assert_eq!(follow(1, &format!("{long}/{long}/d/e/f/g/h")), Some(8));
        assert_eq!(tree.begins(&format!("{long}/{long}/d")), None);
        assert_eq!(follow(3, "d/e/f/g/h"), Some(8));
        assert_eq!(
            tree.kept.beginning(Ino(3), b"d/e/f/g/h").map(|(dir, len)| (dir.ino.0, len)),
            Some((7, 8))
        );
    }
}

//! What messages may do to names in directories under a lease, before they are answered and afterwards.
//!
//! A name that a message may make stands in the table from before it goes out, so nothing is posted of it meanwhile. One that a message may remove does, too: the
//! manager runs what is posted before messages that it finds at the same time, so a file that was posted then could be the one that goes. When the last such message is answered and
//! one of them has removed the name, or found that it is not there, it is free again: as long as no message was under way that may have made it since. So whoever
//! removes and makes the files that he found in a directory waits for each name once, and not again.

use super::table::Dir;
use super::*;
use crate::client::call::Answer;

/// Messages of one kind that are under way.
#[derive(Default)]
pub(super) struct UnderWay {
    last: u64,
    numbers: SmallVec<[u64; 8]>,
}

impl UnderWay {
    /// The number of the one that began last.
    pub fn last(&self) -> u64 {
        self.last
    }

    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Another one begins; its number.
    fn begin(&mut self) -> u64 {
        self.last += 1;
        self.numbers.push(self.last);
        self.last
    }

    fn over(&mut self, number: u64) {
        if let Some(at) = self.numbers.iter().position(|&n| n == number) {
            self.numbers.swap_remove(at);
        }
    }

    /// Whether all that began with this number or before are over.
    pub fn are_after(&self, number: u64) -> bool {
        self.numbers.iter().all(|&n| n > number)
    }
}

/// A call that changes names: where it began. One that is not answered may be done at any time: its number stays in the table, so no directory that is lent later is settled.
struct Changing<'a> {
    remote: &'a Remote,
    /// The session, and its number in that one's table.
    serial: u64,
    number: u64,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.remote.link.changing.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<'a> Changing<'a> {
    /// Begins one; `begin` says so in the table.
    fn begin<T>(remote: &'a Remote, begin: impl FnOnce(&mut Table) -> (u64, T)) -> (Changing<'a>, T) {
        let session = remote.now();
        let mut table = session.directories.table.lock();
        remote.link.changing.fetch_add(1, Ordering::SeqCst);
        let (number, more) = begin(&mut table);
        (Changing { remote, serial: session.serial, number }, more)
    }

    /// It was answered; `over` says so in the table, if it is there still.
    fn over(self, over: impl FnOnce(&mut Table, u64)) {
        let session = self.remote.now();
        if session.serial == self.serial {
            over(&mut session.directories.table.lock(), self.number);
        }
    }
}

/// A call that may make names.
pub(in crate::client) struct Naming<'a> {
    call: Changing<'a>,
    names: SmallVec<[(Ino, &'a [u8]); 2]>,
}

impl Naming<'_> {
    /// It was answered.
    pub fn over(self) {
        let Naming { call, names } = self;
        call.over(|table, number| table.named(&names, number));
    }
}

/// A call that may remove a name.
pub(in crate::client) struct Removing<'a> {
    call: Changing<'a>,
    name: (Ino, &'a [u8]),
    /// If the name stands in the table.
    there: Option<There>,
}

/// Which one of the entries with this name in the table it was.
#[derive(Clone, Copy)]
pub(super) struct There {
    dir: u64,
    /// As [`Known::number`], if no message was under way that may make it.
    number: Option<u64>,
}

impl Removing<'_> {
    /// It was answered.
    pub fn over(self, answer: &Result<Answer<'_>>) {
        let Removing { call, name, there } = self;
        let is_gone = matches!(answer, Ok(_) | Err(Error::NotFound));
        call.over(|table, number| table.removed(name, (number, there), is_gone));
    }
}

impl Table {
    /// A message is about to go out that may make these names; its number.
    fn names(&mut self, names: &[(Ino, &[u8])]) -> u64 {
        let number = self.naming.begin();
        names.iter().for_each(|&name| self.may_be_made(name, number));
        number
    }

    /// It was answered.
    fn named(&mut self, names: &[(Ino, &[u8])], number: u64) {
        self.naming.over(number);
        for &(dir, name) in names {
            // It has come to stand here since.
            if self.dirs.get(&dir).is_some_and(|dir| dir.since.0 >= number) {
                self.may_be_made((dir, name), number);
            }
        }
    }

    fn may_be_made(&mut self, (dir, name): (Ino, &[u8]), number: u64) {
        if let Some((known, _)) = self.may_be(dir, name) {
            (known.number, known.gone) = (known.number.max(number), false);
        }
    }

    /// A name is there when the directory is lent. A message that may remove it was possibly done before somebody else made what is there now, and is
    /// not answered yet: as if that had been made by a message that began and ended after it.
    pub fn listed(&mut self, dir: Ino, name: &[u8]) {
        let Some((known, _)) = self.may_be(dir, name) else { return };
        known.gone = false;
        if known.removing > 0 {
            let number = self.naming.begin();
            self.may_be_made((dir, name), number);
            self.naming.over(number);
        }
    }

    /// Whether all messages are over that may make or remove names in a directory and began before it came to stand here.
    pub fn is_settled(&self, dir: &Dir) -> bool {
        self.naming.are_after(dir.since.0) && self.removing.are_after(dir.since.1)
    }

    /// A message is about to go out that may remove a name; its number.
    fn removes(&mut self, name: (Ino, &[u8])) -> (u64, Option<There>) {
        (self.removing.begin(), self.removes_known(name))
    }

    fn removes_known(&mut self, (parent, name): (Ino, &[u8])) -> Option<There> {
        let dir = self.dirs.get(&parent)?.number;
        let (known, is_new) = self.may_be(parent, name)?;
        known.removing = known.removing.saturating_add(1);
        known.gone |= is_new;
        let number = known.number;
        Some(There { dir, number: self.naming.are_after(number).then_some(number) })
    }

    /// It was answered.
    fn removed(
        &mut self,
        (parent, name): (Ino, &[u8]),
        (number, there): (u64, Option<There>),
        is_gone: bool,
    ) {
        self.removing.over(number);
        let Some(there) = there else { return };
        let dir = self.dirs.get_mut(&parent).filter(|dir| dir.number == there.dir);
        let Some(known) = dir.and_then(|dir| dir.names.get_mut(name)).filter(|known| known.removing > 0)
        else {
            return;
        };
        if known.removing < u8::MAX {
            known.removing -= 1;
        }
        known.gone |= is_gone && there.number == Some(known.number);
        if known.gone && known.removing == 0 {
            self.remove(parent, name);
        }
    }
}

impl Remote {
    /// A message is about to go out that may make these names.
    pub(in crate::client) fn naming<'a>(&'a self, names: &[(Ino, &'a [u8])]) -> Naming<'a> {
        let (call, ()) = Changing::begin(self, |table| (table.names(names), ()));
        Naming { call, names: SmallVec::from_slice(names) }
    }

    /// A message is about to go out that may remove a name: it may be there, or not.
    pub(in crate::client) fn removing<'a>(&'a self, parent: Ino, name: &'a [u8]) -> Removing<'a> {
        let (call, there) = Changing::begin(self, |table| table.removes((parent, name)));
        Removing { call, name: (parent, name), there }
    }

    /// Whether the table of this session does not tell which messages are under way: there are some that began in another one, or some that were given up.
    pub(super) fn has_others(&self, table: &Table) -> bool {
        self.link.changing.load(Ordering::SeqCst) != table.naming.len() + table.removing.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: Ino = Ino(7);

    /// A directory under a lease, in which `old` is.
    fn lent() -> Table {
        let mut table = Table::default();
        table.begin(0, 1, Some(DIR), 0);
        table.may_be(DIR, b"old").unwrap();
        table
    }

    fn is_free(table: &Table, name: &[u8]) -> bool {
        let dir = &table.dirs[&DIR];
        table.is_settled(dir) && !dir.names.contains_key(name)
    }

    impl Table {
        fn answered(&mut self, name: &[u8], removal: (u64, Option<There>), is_gone: bool) {
            self.removed((DIR, name), removal, is_gone);
        }
    }

    #[test]
    fn what_was_removed_is_free() {
        let mut table = lent();
        assert!(!is_free(&table, b"old") && is_free(&table, b"new"));
        let there = table.removes((DIR, b"old"));
        table.answered(b"old", there, false);
        assert!(!is_free(&table, b"old"), "it could not be removed");
        let there = table.removes((DIR, b"old"));
        table.answered(b"old", there, true);
        assert!(is_free(&table, b"old"));
        // One that is not there, and may be made by a message meanwhile.
        let there = table.removes((DIR, b"new"));
        assert!(!is_free(&table, b"new"), "what is made now could be removed");
        table.answered(b"new", there, false);
        assert!(is_free(&table, b"new"));
        let there = table.removes((DIR, b"new"));
        let naming = table.names(&[(DIR, b"new")]);
        table.answered(b"new", there, true);
        assert!(!is_free(&table, b"new"), "it may have been made after it was removed");
        table.named(&[(DIR, b"new")], naming);
        assert!(!is_free(&table, b"new"));
        let there = table.removes((DIR, b"new"));
        table.answered(b"new", there, true);
        assert!(is_free(&table, b"new") && is_free(&table, b"old"));
    }

    #[test]
    fn of_two_who_remove_it_the_last_one_counts() {
        let mut table = lent();
        let (first, second) = (table.removes((DIR, b"old")), table.removes((DIR, b"old")));
        table.answered(b"old", first, true);
        assert!(!is_free(&table, b"old"), "the other may remove what is made now");
        table.answered(b"old", second, false);
        assert!(is_free(&table, b"old"));
        let all: Vec<_> = (0..300).map(|_| table.removes((DIR, b"old"))).collect();
        for (n, there) in all.into_iter().enumerate() {
            assert!(!is_free(&table, b"old"), "after {n}");
            table.answered(b"old", there, true);
        }
        assert!(!is_free(&table, b"old"), "they were too many to count");
    }

    #[test]
    fn what_was_being_made_when_it_was_removed_may_be_there() {
        let mut table = lent();
        let name: (Ino, &[u8]) = (DIR, b"old");
        let (first, second) = (table.names(&[name]), table.names(&[name]));
        table.named(&[name], second);
        let there = table.removes((DIR, b"old"));
        table.named(&[name], first);
        table.answered(b"old", there, true);
        assert!(!is_free(&table, b"old"), "the first may have come after the removal");
        let there = table.removes((DIR, b"old"));
        let other = table.names(&[(DIR, b"other")]);
        table.answered(b"old", there, true);
        assert!(is_free(&table, b"old"), "another name has nothing to do with it");
        table.named(&[(DIR, b"other")], other);
    }

    #[test]
    fn who_began_before_the_lease_counts_too() {
        let mut table = Table::default();
        let naming = table.names(&[(DIR, b"a")]);
        let removing = table.removes((DIR, b"b"));
        assert!(removing.1.is_none());
        table.begin(0, 1, Some(DIR), 0);
        assert!(!is_free(&table, b"a") && !is_free(&table, b"c"), "nothing is known before these are over");
        table.named(&[(DIR, b"a")], naming);
        assert!(!is_free(&table, b"c"));
        table.answered(b"b", removing, true);
        assert!(is_free(&table, b"c") && is_free(&table, b"b") && !is_free(&table, b"a"));
        // Later ones do not matter.
        table.names(&[(DIR, b"d")]);
        table.removes((DIR, b"e"));
        assert!(is_free(&table, b"c") && !is_free(&table, b"d"));
        // The directory has been given up and lent again meanwhile.
        let there = table.removes((DIR, b"old"));
        table.end(0);
        table.begin(0, 2, Some(DIR), 0);
        table.may_be(DIR, b"old").unwrap();
        table.answered(b"old", there, true);
        assert!(table.dirs[&DIR].names.contains_key(&b"old"[..]));
    }

    #[test]
    fn what_is_listed_with_the_lease_may_be_newer_than_a_removal() {
        let mut table = Table::default();
        table.begin(0, 0, Some(DIR), 0);
        let before = table.removes((DIR, b"x"));
        // It is done; somebody else makes the name; the directory is lent; and only now the answer is seen.
        table.listed(DIR, b"x");
        table.leases[0].as_mut().unwrap().number = 1;
        assert!(!is_free(&table, b"x"));
        table.answered(b"x", before, true);
        assert!(!is_free(&table, b"x"), "it was another one that was removed");
        let after = table.removes((DIR, b"x"));
        table.answered(b"x", after, true);
        assert!(is_free(&table, b"x"), "nobody else makes it now");
        // Of a name that nobody removes meanwhile nothing else is different.
        table.listed(DIR, b"y");
        let there = table.removes((DIR, b"y"));
        table.answered(b"y", there, true);
        assert!(is_free(&table, b"y"));
    }
}

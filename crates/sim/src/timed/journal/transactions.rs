//! Transactions: the running one, those that are committing, and pages that belong to several of them.
//!
//! Life: running (metadata pages join) -> committing (its descriptor and commit block are written) -> committed (gone from here).
//! A page that joins while a committing transaction holds it is a *conflict* ([`Conflict`]).

use std::collections::{BTreeSet, VecDeque};

/// A metadata page.
pub type Page = u32;

/// What happens to a page that joins while a committing transaction holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Conflict {
    /// Whoever changes it waits until that transaction is committed (ext4, as the paper describes it).
    Wait,
    /// It goes to a list; the running transaction commits only when the list is empty (BarrierFS, section 4.4).
    List,
    /// It is copied, and joins at once (Freehold).
    Copy,
}

/// A transaction.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    /// Counts up from 1.
    pub number: u64,
    /// Pages that belong to it.
    pub pages: BTreeSet<Page>,
    /// Callers that asked for it to commit and wait: threads, and whether for durability or for order only.
    pub waiters: Vec<(usize, bool)>,
    /// Somebody asked for durability.
    pub durable: bool,
    /// Its commit block is with the device.
    pub dispatched: bool,
    /// Its commit block has been transferred.
    pub transferred: bool,
}

/// All transactions that are not committed.
pub struct Transactions {
    how: Conflict,
    /// The one that pages join.
    pub running: Transaction,
    /// Oldest first.
    pub committing: VecDeque<Transaction>,
    conflicts: BTreeSet<Page>,
    /// Conflicts so far.
    pub conflicts_seen: u64,
}

impl Transactions {
    /// A first transaction.
    pub fn new(how: Conflict) -> Transactions {
        let running = Transaction { number: 1, ..Transaction::default() };
        Transactions {
            how,
            running,
            committing: VecDeque::new(),
            conflicts: BTreeSet::new(),
            conflicts_seen: 0,
        }
    }

    /// A committing transaction holds the page.
    fn held(&self, page: Page) -> bool {
        self.committing.iter().any(|t| t.pages.contains(&page))
    }

    /// Lets pages join the running transaction. Returns how many of them a committing transaction holds, or, with
    /// [`Conflict::Wait`], `None` if there are any: then none has joined.
    pub fn join(&mut self, pages: &[Page]) -> Option<u64> {
        let held: Vec<Page> = pages.iter().copied().filter(|page| self.held(*page)).collect();
        self.conflicts_seen += held.len() as u64;
        if self.how == Conflict::Wait && !held.is_empty() {
            return None;
        }
        self.running.pages.extend(pages);
        if self.how == Conflict::List {
            for page in &held {
                self.running.pages.remove(page);
            }
            self.conflicts.extend(&held);
        }
        Some(held.len() as u64)
    }

    /// Whether somebody waits for the running transaction.
    pub fn wanted(&self) -> bool {
        !self.running.waiters.is_empty()
    }

    /// Whether no conflict keeps the running transaction from committing.
    pub fn may_commit(&self) -> bool {
        self.conflicts.is_empty()
    }

    /// The running transaction commits, another one runs. Returns its number and how many pages it has.
    pub fn commit(&mut self) -> (u64, u64) {
        assert!(self.may_commit(), "committing over conflicts");
        let next = Transaction { number: self.running.number + 1, ..Transaction::default() };
        let mut committing = std::mem::replace(&mut self.running, next);
        committing.durable = committing.waiters.iter().any(|(_, durable)| *durable);
        let known = (committing.number, committing.pages.len() as u64);
        self.committing.push_back(committing);
        known
    }

    /// The oldest committing transaction is committed: its pages are free.
    pub fn finish_oldest(&mut self) -> Option<Transaction> {
        let finished = self.committing.pop_front()?;
        let free: Vec<Page> = self.conflicts.iter().copied().filter(|page| !self.held(*page)).collect();
        for page in free {
            self.conflicts.remove(&page);
            self.running.pages.insert(page);
        }
        Some(finished)
    }

    /// A committing transaction.
    pub fn find(&mut self, number: u64) -> Option<&mut Transaction> {
        self.committing.iter_mut().find(|t| t.number == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conflicts_on_the_list_keep_the_running_transaction() {
        let mut t = Transactions::new(Conflict::List);
        t.join(&[1, 2]).unwrap();
        t.commit();
        assert_eq!(t.join(&[2, 3]), Some(1));
        assert!(!t.may_commit());
        t.finish_oldest();
        assert!(t.may_commit());
        assert_eq!(t.running.pages, BTreeSet::from([2, 3]));
    }

    #[test]
    fn a_page_held_twice_is_free_when_both_are_committed() {
        let mut t = Transactions::new(Conflict::Copy);
        for _ in 0..2 {
            t.join(&[7]).unwrap();
            t.commit();
        }
        t.how = Conflict::List;
        assert_eq!(t.join(&[7]), Some(1));
        t.finish_oldest();
        assert!(!t.may_commit(), "the second still holds it");
        t.finish_oldest();
        assert!(t.may_commit());
    }

    #[test]
    fn copies_join_and_waits_do_not() {
        let mut t = Transactions::new(Conflict::Copy);
        t.join(&[1]).unwrap();
        t.commit();
        assert_eq!(t.join(&[1]), Some(1));
        assert!(t.may_commit() && t.running.pages.contains(&1));
        t.how = Conflict::Wait;
        assert_eq!(t.join(&[1, 9]), None);
        assert!(!t.running.pages.contains(&9));
    }
}

//! Looking ahead: what was made without a message is known to the manager alone, and who looks at one of many new files mostly looks at the next one
//! then (`ls -l` of an unpacked archive). So a client that asks for names in the order in which it made them asks for some more with each message.

use super::table::Dir;
use super::*;
use std::collections::VecDeque;

/// Names whose order is remembered in one directory: of the last ones that were made.
const ORDER_MAX: usize = 1 << 16;
/// Names that are asked for ahead at first.
const AHEAD: usize = 4;

/// Names in the order in which they were made here.
#[derive(Default)]
pub(super) struct Made {
    order: VecDeque<Name>,
    /// How many were made before the first of them.
    before: u64,
    /// Which one comes next, if names are asked for in their order; and how many were asked for ahead the last time.
    next: u64,
    ahead: usize,
}

impl Made {
    /// Another one was made. Returns which one it is, from 1 on.
    pub fn add(&mut self, name: &[u8]) -> u64 {
        if self.order.len() == ORDER_MAX {
            self.order.pop_front();
            self.before += 1;
        }
        self.order.push_back(SmallVec::from_slice(name));
        self.before + self.order.len() as u64
    }

    /// Somebody asks for this one. Which names are to be asked for with it.
    fn ahead(&mut self, nth: u64) -> impl Iterator<Item = &Name> {
        // Some of them may be known.
        let is_next = (self.next..self.next + wire::WALK_AHEAD as u64).contains(&nth);
        self.ahead = match self.next > 0 && is_next {
            true => (self.ahead * 2).clamp(AHEAD, wire::WALK_AHEAD),
            false => 0,
        };
        let from = nth.saturating_sub(self.before).min(self.order.len() as u64) as usize;
        let until = (from + self.ahead).min(self.order.len());
        self.next = self.before + until as u64 + 1;
        self.order.range(from..until)
    }
}

impl Remote {
    /// A name is about to be asked for. Others of its directory that are to be asked for with it, with slashes between them.
    pub(in crate::client) fn look_ahead(&self, base: Ino, path: &[u8]) -> Vec<u8> {
        let directories = &self.now().directories;
        if !directories.any() {
            return Vec::new();
        }
        let (head, name) = match path.iter().rposition(|&b| b == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&path[..0], path),
        };
        let Some(parent) = self.kept().follow(base, head).map(|(ino, _)| ino) else { return Vec::new() };
        let mut table = directories.table.lock();
        let Some(known) = table.made(parent, name) else { return Vec::new() };
        let Some(Dir { names, made, .. }) = table.dirs.get_mut(&parent) else { return Vec::new() };
        let mut out = Vec::new();
        for name in made.ahead(known.number).filter(|&name| names.contains_key(name)) {
            if !out.is_empty() {
                out.push(b'/');
            }
            out.extend_from_slice(name);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_in_order_gets_more_and_more() {
        let mut made = Made::default();
        for n in 1..200u64 {
            assert_eq!(made.add(format!("{n}").as_bytes()), n);
        }
        let number = |name: &Name| String::from_utf8_lossy(name).parse::<u64>().unwrap();
        let mut asked = |n: u64| made.ahead(n).map(number).collect::<Vec<u64>>();
        let none: Vec<u64> = Vec::new();
        assert_eq!(asked(20), none, "once is no order");
        assert_eq!(asked(21), [22, 23, 24, 25]);
        assert_eq!(asked(26), (27..35).collect::<Vec<_>>());
        assert_eq!(asked(35).len(), 16);
        assert_eq!(asked(52).len(), 31);
        assert_eq!(asked(90).len(), 31, "what is between is known");
        assert_eq!(asked(30), none, "he jumps");
        assert_eq!(asked(500), none);
        assert_eq!(asked(197), none);
        assert_eq!(asked(198), [199], "there are no more");
    }

    #[test]
    fn the_last_names_are_remembered() {
        let mut made = Made::default();
        let many = ORDER_MAX as u64 + 10;
        (1..=many).for_each(|n| assert_eq!(made.add(b"name"), n));
        assert_eq!(made.order.len(), ORDER_MAX);
        assert_eq!(made.ahead(many - 5).count(), 0);
        assert_eq!(made.ahead(many - 4).count(), 4);
        // Long forgotten: what is asked for ahead is only not what comes next.
        assert_eq!(made.ahead(2).count(), 0);
    }
}

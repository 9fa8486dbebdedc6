//! Names: every inode but the root hangs in a directory that leads up to the root, under a name that is there once.

use super::report::Problem;
use super::{Node, Pass, report::Severity};
use crate::index::{COOKIE_MAX, FIRST_COOKIE};
use std::collections::{HashMap, HashSet};

const ROOT: u64 = 1;

/// Checks all names and plans what becomes of those that cannot stay.
pub(super) fn check(pass: &mut Pass<'_>) {
    let mut inos: Vec<u64> = pass.nodes.keys().copied().collect();
    inos.sort_unstable();
    root(pass);
    heirs(pass, &inos);
    let mut stray: Vec<u64> = Vec::new();
    for &ino in &inos {
        if ino == ROOT || pass.gone.contains(&ino) {
            continue;
        }
        let node = &pass.nodes[&ino];
        let (link, parent, target) = (node.link, node.parent, node.target);
        if link && !pass.nodes.get(&target).is_some_and(|t| !t.link && !t.dir) {
            let p = Problem::damage("name", "additional name of an inode that is not there");
            pass.damaged(ino, p.values(format!("inode {target}"), "nothing").lost("the name"));
            pass.edit(ino).free = true;
            pass.gone.insert(ino);
            continue;
        }
        if parent == 0 {
            pass.report.counts.orphans += 1;
            continue;
        }
        let there = parent == ROOT || pass.nodes.get(&parent).is_some_and(|p| p.dir);
        if !there {
            let p = Problem::damage("name", format!("directory {parent} is not there"))
                .lost("its place in the tree");
            pass.damaged(ino, p);
            stray.push(ino);
        }
    }
    duplicates(pass, &inos, &mut stray);
    reachable(pass, &inos, &mut stray);
    stray.sort_unstable();
    stray.dedup();
    pass.stray = stray;
}

fn root(pass: &mut Pass<'_>) {
    let good = pass.nodes.get(&ROOT).is_some_and(|r| r.dir && r.parent == ROOT && r.name.is_empty());
    if !good {
        pass.damaged(
            ROOT,
            Problem::damage("inode", "root directory is missing").lost("its owner, mode and attributes"),
        );
        pass.edit(ROOT).make_root = true;
    }
}

/// Where an inode without a name of its own has additional ones, the first of them becomes its own: it is no orphan.
fn heirs(pass: &mut Pass<'_>, inos: &[u64]) {
    for &ino in inos {
        let link = &pass.nodes[&ino];
        let (target, parent, cookie) = (link.target, link.parent, link.cookie);
        let orphan = |t: &&Node| !t.link && !t.dir && t.parent == 0;
        if !link.link || parent == 0 || pass.nodes.get(&target).filter(orphan).is_none() {
            continue;
        }
        let name = link.name.clone();
        pass.damaged(target, Problem::damage("name", "has no name of its own, but an additional one"));
        pass.edit(target).rename = Some((parent, name.to_vec(), cookie));
        pass.edit(ino).free = true;
        pass.gone.insert(ino);
        if let Some(node) = pass.nodes.get_mut(&target) {
            (node.parent, node.name, node.cookie) = (parent, name, cookie);
        }
    }
}

/// Names and positions that two inodes claim in the same directory: the older one has to go.
fn duplicates(pass: &mut Pass<'_>, inos: &[u64], stray: &mut Vec<u64>) {
    let mut by_age: Vec<u64> =
        inos.iter().copied().filter(|i| *i != ROOT && !pass.gone.contains(i)).collect();
    by_age.sort_unstable_by_key(|i| (std::cmp::Reverse(pass.nodes[i].epoch), *i));
    let mut names: HashMap<(u64, &[u8]), u64> = HashMap::with_capacity(by_age.len());
    let mut cookies: HashSet<(u64, u64)> = HashSet::with_capacity(by_age.len());
    let (mut twice, mut unplaced) = (Vec::new(), Vec::new());
    for &ino in &by_age {
        let node = &pass.nodes[&ino];
        if node.parent == 0 {
            continue;
        }
        if let Some(other) = names.insert((node.parent, &node.name), ino) {
            names.insert((node.parent, &node.name), other);
            twice.push((ino, other));
        }
        let fits = (FIRST_COOKIE..COOKIE_MAX).contains(&node.cookie);
        if !fits || !cookies.insert((node.parent, node.cookie)) {
            unplaced.push(ino);
        }
    }
    for (ino, other) in twice {
        let p = Problem::damage("name", format!("inode {other}, which is newer, has the same name"));
        pass.damaged(ino, p.lost("its name; it gets another in /lost+found"));
        stray.push(ino);
    }
    let mut next: HashMap<u64, u64> = HashMap::new();
    if !unplaced.is_empty() {
        for node in pass.nodes.values().filter(|n| n.cookie < COOKIE_MAX) {
            let entry = next.entry(node.parent).or_insert(FIRST_COOKIE);
            *entry = (*entry).max(node.cookie + 1);
        }
    }
    for ino in unplaced {
        let node = &pass.nodes[&ino];
        let entry = next.entry(node.parent).or_insert(FIRST_COOKIE);
        // Behind the last one that may be given, what others have left free.
        while *entry >= COOKIE_MAX || !cookies.insert((node.parent, *entry)) {
            *entry = if *entry >= COOKIE_MAX { FIRST_COOKIE } else { *entry + 1 };
        }
        let (found, cookie) = (node.cookie, *entry);
        let p = Problem::damage("name", "position in the directory is taken or out of range");
        pass.damaged(ino, p.values(cookie, found));
        pass.edit(ino).cookie = Some(cookie);
    }
}

/// Follows every directory up to the root. What ends elsewhere is cut off there: a ring at its oldest directory.
fn reachable(pass: &mut Pass<'_>, inos: &[u64], stray: &mut Vec<u64>) {
    let already: HashSet<u64> = stray.iter().copied().collect();
    let mut good: HashSet<u64> = [ROOT].into();
    let mut cut = Vec::new();
    for &ino in inos {
        if !pass.nodes[&ino].dir {
            continue;
        }
        let (mut path, mut on_path) = (Vec::new(), HashSet::new());
        let mut at = ino;
        let end = loop {
            if good.contains(&at) || already.contains(&at) {
                break None;
            }
            if !on_path.insert(at) {
                let ring = path.iter().position(|&i| i == at).unwrap_or(0);
                break path[ring..]
                    .iter()
                    .copied()
                    .min_by_key(|i| (pass.nodes[i].epoch, *i))
                    .map(|i| (i, true));
            }
            path.push(at);
            match pass.nodes.get(&at) {
                Some(node) if node.parent == 0 => {
                    // A directory without a name: it is empty unless something is wrong. It leads nowhere, and is never
                    // good; what stands in it does when it has its new place.
                    path.pop();
                    break path.last().map(|&i| (i, false));
                }
                Some(node) => at = node.parent,
                None => break None,
            }
        };
        if let Some((i, ring)) = end {
            cut.push((i, ring));
        }
        good.extend(path);
    }
    for (ino, ring) in cut {
        let what = if ring { "directories form a ring" } else { "stands in a directory that has no name" };
        pass.damaged(ino, Problem::damage("name", what).lost("its place in the tree"));
        stray.push(ino);
    }
    let nameless: Vec<u64> = inos
        .iter()
        .copied()
        .filter(|i| {
            let n = &pass.nodes[i];
            let removed = pass.nodes.get(&n.parent).is_some_and(|p| p.dir && p.parent == 0);
            !n.dir && n.parent != 0 && n.parent != ROOT && removed
        })
        .collect();
    for ino in nameless {
        let p =
            Problem::damage("name", "stands in a directory that has no name").lost("its place in the tree");
        pass.damaged(ino, p);
        stray.push(ino);
    }
    if pass.report.counts.orphans > 0 {
        let n = pass.report.counts.orphans;
        let note =
            format!("{n} without a name were open when the volume was last used; the next mount frees them");
        pass.report.add(Problem::new(Severity::Note, "inode", note));
    }
}

/// A path of an inode, for people. Bounded, whatever the names say.
pub(super) fn path(pass: &Pass<'_>, ino: u64) -> Option<String> {
    let mut parts = Vec::new();
    let mut at = ino;
    for _ in 0..256 {
        if at == ROOT {
            let parts: Vec<String> =
                parts.iter().rev().map(|p: &&[u8]| String::from_utf8_lossy(p).into_owned()).collect();
            return Some(format!("/{}", parts.join("/")));
        }
        let node = pass.nodes.get(&at)?;
        if node.parent == 0 {
            return None;
        }
        parts.push(&node.name[..]);
        at = node.parent;
    }
    None
}

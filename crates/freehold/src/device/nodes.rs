//! Which device a node is, whatever it is called: containers and mknod(1) give nodes other names, and udev(7) makes links to them.

use super::Machine;
use crate::mounts::known;
use rustix::fs::{AtFlags, CWD, FileType, Statx, StatxFlags};
use std::path::Path;

/// The number of a device. Block and character devices have numbers of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Number {
    is_block: bool,
    major: u32,
    minor: u32,
}

impl Number {
    /// Of the text of an attribute `dev` in sysfs: `259:1`.
    fn parse(is_block: bool, text: &str) -> Option<Number> {
        let (major, minor) = text.split_once(':')?;
        Some(Number { is_block, major: major.parse().ok()?, minor: minor.parse().ok()? })
    }

    /// `None`: it is no device.
    fn of(stat: &Statx) -> Option<Number> {
        let is_block = match FileType::from_raw_mode(stat.stx_mode.into()) {
            FileType::BlockDevice => true,
            FileType::CharacterDevice => false,
            _ => return None,
        };
        Some(Number { is_block, major: stat.stx_rdev_major, minor: stat.stx_rdev_minor })
    }

    /// Of the file behind a link in `/proc/PID/fd`, which leads there without the path, and so without a look at any mount. What a server
    /// would have to be asked for is not.
    pub(super) fn of_open(link: &Path) -> Option<Number> {
        let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        Number::of(&rustix::fs::statx(CWD, link, flags, StatxFlags::TYPE).ok()?)
    }
}

/// A node by which a device can be used.
pub(super) struct Node {
    /// What it is usually called: `/dev/nvme0n1`.
    pub(super) path: String,
    number: Option<Number>,
}

impl Node {
    /// Without `/dev/`.
    pub(super) fn name(&self) -> &str {
        self.path.strip_prefix("/dev/").unwrap_or(&self.path)
    }

    /// Whether it is what has this name, or this number.
    pub(super) fn is(&self, path: &str, number: Option<Number>) -> bool {
        self.path == path || (number.is_some() && number == self.number)
    }
}

/// Where the path leads that somebody has given to the kernel.
pub(super) struct Target {
    given: String,
    /// Without symlinks.
    path: Option<String>,
    number: Option<Number>,
}

impl Target {
    pub(super) fn is(&self, node: &Node) -> bool {
        node.is(&self.given, self.number) || self.path.as_deref() == Some(&node.path)
    }
}

impl<K> Machine<K> {
    /// The node of a device that stands in this class of sysfs.
    pub(super) fn node_of(&self, path: String, class: &str) -> Node {
        let name = path.rsplit('/').next().unwrap_or_default();
        let number = Number::parse(class == "block", &self.text(format!("sys/class/{class}/{name}/dev")));
        Node { path, number }
    }

    /// Where a path leads. Outside of `/dev` it may stand on a file system whose server does not answer: there the kernel is asked for no more than
    /// it knows already.
    pub(super) fn target(&self, given: String) -> Target {
        let Some(below) = given.strip_prefix('/') else { return Target { given, path: None, number: None } };
        let at = self.at(below);
        let mut stat = known(&at);
        let mut path = None;
        if below.starts_with("dev/") {
            stat = stat.or_else(|| rustix::fs::statx(CWD, &at, AtFlags::empty(), StatxFlags::TYPE).ok());
            let real = [&at, &self.root].map(|p| std::fs::canonicalize(p).ok());
            if let [Some(real), Some(root)] = real {
                path = real.strip_prefix(root).ok().map(|p| format!("/{}", p.display()));
            }
        }
        Target { number: stat.as_ref().and_then(Number::of), given, path }
    }
}

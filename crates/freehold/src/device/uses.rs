//! What uses a controller: mounts, swap, what is built on its block devices, programs.
//!
//! Seen without touching anything, and so not all of it: what the kernel holds without a trace in `/sys` or `/proc` (a journal on a device of its
//! own, file systems of out-of-tree modules) is found by [`Kernel::hold`](super::Kernel::hold) alone, and open files of other users by root alone.

use super::controller::Controller;
use super::nodes::{Node, Number};
use super::{Machine, PciAddress};
use share::mounts::MountInfo;
use std::collections::HashSet;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// One use. `device` is the name of the block device that is used, a partition or the whole: `nvme0n1p1`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Use {
    /// It is mounted.
    Mount {
        /// What of it.
        device: String,
        /// Where.
        point: PathBuf,
        /// Type of the file system.
        file_system: String,
        /// A process that sees the mount, when this one does not: it is in another mount namespace.
        pid: Option<u32>,
    },
    /// It is swap space.
    Swap {
        /// What of it.
        device: String,
    },
    /// Another block device stands on it (device mapper, RAID, bcache, loop), or a file system of several devices.
    Part {
        /// What of it.
        device: String,
        /// Of what.
        of: String,
    },
    /// A process has it open.
    Open {
        /// The node: `/dev/nvme0n1`, `/dev/nvme0`, `/dev/vfio/12`.
        device: String,
        /// The process.
        pid: u32,
        /// Name of its program.
        program: String,
    },
    /// Somebody who cannot be seen holds it exclusively.
    Held {
        /// What of it.
        device: String,
    },
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Use::Mount { device, point, file_system, pid } => {
                write!(f, "{device} is mounted at {} ({file_system})", point.display())?;
                pid.map_or(Ok(()), |pid| write!(f, " in the mount namespace of process {pid}"))
            }
            Use::Swap { device } => write!(f, "{device} is swap space"),
            Use::Part { device, of } => write!(f, "{device} is a part of {of}"),
            Use::Open { device, pid, program } => write!(f, "{device} is open in process {pid} ({program})"),
            Use::Held { device } => {
                write!(f, "{device} is held by the kernel or a program that cannot be seen from here")
            }
        }
    }
}

/// A device that a process has open.
pub(super) struct OpenDevice {
    /// What the process calls it.
    node: String,
    number: Option<Number>,
    pid: u32,
    program: String,
}

/// A block device: a namespace, or a partition of one.
struct Block {
    name: String,
    /// `major:minor`.
    number: String,
}

impl<K> Machine<K> {
    /// What uses a controller. `open`: as of [`Machine::open_devices`].
    pub(super) fn uses(&self, c: &Controller, open: &[OpenDevice]) -> Vec<Use> {
        let mut found = Vec::new();
        // What a record remembers are names that others may have by now.
        let is_driven = self.character_device(c.address).is_some();
        let blocks = if is_driven { self.blocks(c) } else { Vec::new() };
        self.mounts(&blocks, &mut found);
        self.swaps(&blocks, &mut found);
        let nodes = self.nodes(c.address, &blocks);
        self.builds(&blocks, &nodes, &mut found);
        for o in open {
            let Some(node) = nodes.iter().find(|n| n.is(&o.node, o.number)) else { continue };
            let open = Use::Open { device: node.path.clone(), pid: o.pid, program: o.program.clone() };
            // By two names.
            if !found.contains(&open) {
                found.push(open);
            }
        }
        found
    }

    /// The block devices of a controller's namespaces, with their partitions.
    fn blocks(&self, c: &Controller) -> Vec<Block> {
        let mut all = Vec::new();
        for namespace in &c.namespaces {
            let dir = Path::new("sys/class/block").join(&namespace.name);
            let parts = self.names(&dir).into_iter();
            let parts = parts.filter(|part| self.at(dir.join(part).join("partition")).exists());
            for name in std::iter::once(namespace.name.clone()).chain(parts) {
                let number = self.text(format!("sys/class/block/{name}/dev"));
                all.push(Block { name, number });
            }
        }
        all
    }

    /// The nodes in `/dev` through which a controller can be used.
    fn nodes(&self, address: PciAddress, blocks: &[Block]) -> Vec<Node> {
        let mut nodes: Vec<Node> =
            blocks.iter().map(|b| self.node_of(format!("/dev/{}", b.name), "block")).collect();
        let generic = blocks.iter().filter_map(|b| Some(format!("/dev/ng{}", b.name.strip_prefix("nvme")?)));
        nodes.extend(generic.map(|path| self.node_of(path, "nvme-generic")));
        let own = self.character_device(address);
        nodes.extend(own.map(|name| self.node_of(format!("/dev/{name}"), "nvme")));
        let device = self.vfio_device(address);
        let group = self.node(address).map(|node| node.display().to_string());
        nodes.extend(group.filter(|g| Some(g) != device.as_ref()).map(|path| self.node_of(path, "vfio")));
        nodes.extend(device.map(|path| self.node_of(path, "vfio-dev")));
        nodes
    }

    fn mounts(&self, blocks: &[Block], found: &mut Vec<Use>) {
        if blocks.is_empty() {
            return;
        }
        let table = |path: PathBuf| std::fs::read(path).map(|t| share::mounts::table(&t)).unwrap_or_default();
        let is_of = |m: &MountInfo, b: &Block| {
            (!b.number.is_empty() && m.device == b.number)
                // File systems of several devices, and those of user space, have numbers of their own.
                || m.source.as_bytes().strip_prefix(b"/dev/") == Some(b.name.as_bytes())
        };
        let mut seen = HashSet::new();
        let mut note = |m: &MountInfo, pid: Option<u32>, found: &mut Vec<Use>| {
            for b in blocks.iter().filter(|b| is_of(m, b)) {
                // What is seen here is not told again for every container that sees it, too.
                if pid.is_none() || seen.insert(b.name.clone()) {
                    let (device, point, file_system) = (b.name.clone(), m.point.clone(), m.kind.clone());
                    found.push(Use::Mount { device, point, file_system, pid });
                }
                seen.insert(b.name.clone());
            }
        };
        table(self.at("proc/self/mountinfo")).iter().for_each(|m| note(m, None, found));
        let mut namespaces: HashSet<PathBuf> =
            std::fs::read_link(self.at("proc/self/ns/mnt")).into_iter().collect();
        for pid in self.processes() {
            let Ok(namespace) = std::fs::read_link(self.at(format!("proc/{pid}/ns/mnt"))) else { continue };
            if namespaces.insert(namespace) {
                let mounts = table(self.at(format!("proc/{pid}/mountinfo")));
                mounts.iter().for_each(|m| note(m, Some(pid), found));
            }
        }
    }

    fn swaps(&self, blocks: &[Block], found: &mut Vec<Use>) {
        let table = self.text("proc/swaps");
        let spaces: HashSet<&str> =
            table.lines().skip(1).filter_map(|l| l.split_whitespace().next()).collect();
        let swap = blocks.iter().filter(|b| spaces.contains(format!("/dev/{}", b.name).as_str()));
        found.extend(swap.map(|b| Use::Swap { device: b.name.clone() }));
    }

    fn builds(&self, blocks: &[Block], nodes: &[Node], found: &mut Vec<Use>) {
        let mut note = |device: &str, of: String| found.push(Use::Part { device: device.into(), of });
        for b in blocks {
            for holder in self.names(format!("sys/class/block/{}/holders", b.name)) {
                // What people call it.
                let name = self.text(format!("sys/class/block/{holder}/dm/name"));
                note(&b.name, if name.is_empty() { holder } else { format!("{holder} ({name})") });
            }
        }
        let named = |path: PathBuf| {
            let target = self.target(self.text(path));
            nodes.iter().find(|n| target.is(n)).map(|n| n.name().to_owned())
        };
        for name in self.names("sys/class/block").into_iter().filter(|n| n.starts_with("loop")) {
            let backing = named(format!("sys/class/block/{name}/loop/backing_file").into());
            backing.into_iter().for_each(|device| note(&device, name.clone()));
        }
        for volume in self.names("sys/fs/btrfs") {
            for device in self.names(format!("sys/fs/btrfs/{volume}/devices")) {
                let parts = blocks.iter().filter(|b| b.name == device);
                parts.for_each(|b| note(&b.name, format!("btrfs {volume}")));
            }
        }
        // Served to other machines by the kernel's own target: namespaces, or the controller as it is.
        for target in self.names("sys/kernel/config/nvmet/subsystems") {
            let dir = PathBuf::from(format!("sys/kernel/config/nvmet/subsystems/{target}"));
            let spaces = dir.join("namespaces");
            let served = self.names(&spaces).into_iter().map(|number| spaces.join(number));
            for part in served.chain([dir.join("passthru")]) {
                let device = named(part.join("device_path"));
                device.into_iter().for_each(|device| note(&device, format!("nvmet {target}")));
            }
        }
    }

    /// The devices that processes have open, this process aside.
    pub(super) fn open_devices(&self) -> Vec<OpenDevice> {
        let mut found = Vec::new();
        for pid in self.processes().into_iter().filter(|pid| *pid != std::process::id()) {
            let dir = format!("proc/{pid}/fd");
            let mut devices: Vec<(String, Option<Number>)> = Vec::new();
            for fd in self.names(&dir) {
                let link = self.at(Path::new(&dir).join(fd));
                // Links are read; the paths in them are never looked up, as that could wait for a mount.
                let Ok(to) = std::fs::read_link(&link) else { continue };
                let node = to.to_string_lossy();
                // Others are sockets, pipes and the like.
                let number = if node.starts_with('/') { Number::of_open(&link) } else { None };
                let is_called = |start: &&str| node.starts_with(*start);
                if number.is_some() || ["/dev/nvme", "/dev/ng", "/dev/vfio/"].iter().any(is_called) {
                    devices.push((node.into_owned(), number));
                }
            }
            devices.sort();
            devices.dedup();
            let program = self.text(format!("proc/{pid}/comm"));
            let name = |(node, number)| OpenDevice { node, number, pid, program: program.clone() };
            found.extend(devices.into_iter().map(name));
        }
        found
    }

    fn processes(&self) -> Vec<u32> {
        self.names("proc").iter().filter_map(|name| name.parse().ok()).collect()
    }
}

/// Whether a use is a process that may just be looking, as udev(7) does when a device appears.
pub(super) fn may_pass(u: &Use) -> bool {
    matches!(u, Use::Open { .. })
}

//! Where the threads that serve a volume run, and where their memory is: on the node of the volume's device (UHSFS, "NUMA").
//!
//! A machine with several memory nodes has devices that stand nearer to one of them. The threads of a volume are then bound to the processors
//! of that node, and prefer its memory; so is the memory of sessions, whoever touches it first. With one node, or a device that says nothing,
//! everything stays as it is. Threads inherit both from whoever starts them, so it is enough that the one which opens the volume has a [`Place`].
//!
//! What the machine looks like is read from files below a directory like `/sys`, so that tests can have another machine.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Which node an operator wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numa {
    /// That of the device.
    #[default]
    Auto,
    /// None.
    Off,
    /// This one.
    Node(u32),
}

/// A node, and its processors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its number.
    pub node: u32,
    /// Numbers of its processors. A node may have none: then threads run where they like.
    pub processors: Vec<usize>,
}

/// MPOL_PREFERRED of set_mempolicy(2): other nodes help out.
const PREFERRED: libc::c_int = 1;
/// Bits of the masks of nodes that are handed to the kernel.
const NODES_MAX: u32 = 1024;

/// Reads a list like `0-3,8,10-11`.
fn list(text: &str) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for part in text.trim().split(',').filter(|p| !p.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if last.checked_sub(first)? > 1 << 16 {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

/// The number of the device that an image is on, or that it is.
fn device_of(image: &Path) -> io::Result<(u32, u32)> {
    let meta = std::fs::metadata(image)?;
    let is_device = meta.mode() & libc::S_IFMT == libc::S_IFBLK;
    let device = if is_device { meta.rdev() } else { meta.dev() };
    Ok((libc::major(device), libc::minor(device)))
}

/// The node that a block device says it is on. Partitions and what stands above a device say it by the device.
fn node_of((major, minor): (u32, u32), sys: &Path) -> Option<u32> {
    let at = std::fs::canonicalize(sys.join(format!("dev/block/{major}:{minor}"))).ok()?;
    let top = std::fs::canonicalize(sys).ok()?;
    at.ancestors().take_while(|a| a.starts_with(&top)).find_map(|a| {
        let said =
            ["device/numa_node", "numa_node"].iter().find_map(|f| std::fs::read_to_string(a.join(f)).ok())?;
        // A device on no node in particular says -1.
        said.trim().parse::<u32>().ok()
    })
}

/// The place for a volume in `image` on the machine that `sys` (else `/sys`) describes. `None`: anywhere.
///
/// # Errors
/// A sentence, when the operator named a node that does not exist.
pub fn choose(numa: Numa, image: &Path, sys: Option<&Path>) -> Result<Option<Place>, String> {
    choose_at(numa, || device_of(image).ok(), sys.unwrap_or(Path::new("/sys")))
}

fn choose_at(
    numa: Numa,
    device: impl FnOnce() -> Option<(u32, u32)>,
    sys: &Path,
) -> Result<Option<Place>, String> {
    let nodes: PathBuf = sys.join("devices/system/node");
    let online =
        std::fs::read_to_string(nodes.join("online")).ok().and_then(|t| list(&t)).unwrap_or_default();
    let node = match numa {
        Numa::Off => return Ok(None),
        Numa::Node(node) if online.contains(&node) => node,
        // A machine without nodes has one.
        Numa::Node(0) if online.is_empty() => return Ok(None),
        Numa::Node(node) => {
            return Err(format!("option 'numa={node}': this machine has no memory node {node}"));
        }
        Numa::Auto => match device().and_then(|d| node_of(d, sys)) {
            Some(node) if online.contains(&node) => node,
            _ => return Ok(None),
        },
    };
    if online.len() < 2 || node >= NODES_MAX {
        return Ok(None);
    }
    let processors =
        std::fs::read_to_string(nodes.join(format!("node{node}/cpulist"))).ok().and_then(|t| list(&t));
    let processors = processors.unwrap_or_default().into_iter().map(|p| p as usize).collect();
    Ok(Some(Place { node, processors }))
}

fn checked(done: libc::c_long) -> io::Result<()> {
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

impl Place {
    fn mask(&self) -> [libc::c_ulong; NODES_MAX as usize / 64] {
        let mut mask = [0; NODES_MAX as usize / 64];
        mask[self.node as usize / 64] |= 1 << (self.node % 64);
        mask
    }

    /// Binds the calling thread, and those that it starts from now on.
    ///
    /// # Errors
    /// Those of set_mempolicy(2) and sched_setaffinity(2): `EINVAL` when none of the processors may be used.
    pub fn enter(&self) -> io::Result<()> {
        let mask = self.mask();
        // One more than there are bits: the kernel leaves the last one out.
        let bits = NODES_MAX as libc::c_ulong + 1;
        // SAFETY: the kernel reads NODES_MAX bits, which the mask has.
        checked(unsafe { libc::syscall(libc::SYS_set_mempolicy, PREFERRED, mask.as_ptr(), bits) })?;
        if self.processors.is_empty() {
            return Ok(());
        }
        let mut set = rustix::thread::CpuSet::new();
        let most = rustix::thread::CpuSet::MAX_CPU;
        self.processors.iter().filter(|&&p| p < most).for_each(|&p| set.set(p));
        Ok(rustix::thread::sched_setaffinity(None, &set)?)
    }

    /// Has shared memory, which nobody has touched yet, come from the node, whoever touches it.
    ///
    /// # Errors
    /// Those of mbind(2).
    pub(crate) fn bind(&self, memory: &crate::memory::Mapping) -> io::Result<()> {
        let (mask, bits) = (self.mask(), NODES_MAX as libc::c_ulong + 1);
        let (at, len) = memory.range();
        // SAFETY: the mapping is alive, and only where its pages come from changes; the kernel reads NODES_MAX bits, which the mask has.
        checked(unsafe { libc::syscall(libc::SYS_mbind, at, len, PREFERRED, mask.as_ptr(), bits, 0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A machine with nodes 0 and 1, and devices on them.
    fn machine(online: &str) -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = sys.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("devices/system/node/online", online);
        put("devices/system/node/node0/cpulist", "0-3,8-11\n");
        put("devices/system/node/node1/cpulist", "4-7,12-15\n");
        put("devices/pci/nvme/nvme0/numa_node", "1\n");
        put("devices/pci/nvme/nvme0/nvme0n1/nvme0n1p2/partition", "2\n");
        put("devices/pci/ata/sda/device/numa_node", "0\n");
        put("devices/pci/virtio/vda/device/numa_node", "-1\n");
        put("devices/virtual/block/loop0/size", "1\n");
        std::fs::create_dir_all(sys.path().join("dev/block")).unwrap();
        for (name, at) in [
            ("259:0", "pci/nvme/nvme0/nvme0n1"),
            ("259:2", "pci/nvme/nvme0/nvme0n1/nvme0n1p2"),
            ("8:0", "pci/ata/sda"),
            ("254:0", "pci/virtio/vda"),
            ("7:0", "virtual/block/loop0"),
        ] {
            symlink(sys.path().join("devices").join(at), sys.path().join("dev/block").join(name)).unwrap();
        }
        sys
    }

    #[test]
    fn which_node_is_chosen() {
        let sys = machine("0-1\n");
        let choose = |numa, device| choose_at(numa, || Some(device), sys.path());
        let (zero, one) = ([0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]);
        let place = |node, processors: [usize; 8]| Ok(Some(Place { node, processors: processors.into() }));
        assert_eq!(choose(Numa::Auto, (259, 0)), place(1, one));
        assert_eq!(choose(Numa::Auto, (259, 2)), place(1, one), "a partition");
        assert_eq!(choose(Numa::Auto, (8, 0)), place(0, zero));
        for nowhere in [(254, 0), (7, 0), (1, 1)] {
            assert_eq!(choose(Numa::Auto, nowhere), Ok(None));
        }
        assert_eq!(choose_at(Numa::Auto, || None, sys.path()), Ok(None));
        assert_eq!(choose(Numa::Node(0), (259, 0)), place(0, zero));
        assert!(choose(Numa::Node(2), (259, 0)).unwrap_err().contains("node 2"));
        assert_eq!(choose(Numa::Off, (259, 0)), Ok(None));
    }

    #[test]
    fn one_node_is_no_choice() {
        for sys in [machine("0\n"), machine("")] {
            for numa in [Numa::Auto, Numa::Off, Numa::Node(0)] {
                assert_eq!(choose_at(numa, || Some((8, 0)), sys.path()), Ok(None));
            }
            assert!(choose_at(Numa::Node(1), || None, sys.path()).is_err());
        }
        assert_eq!(choose_at(Numa::Auto, || Some((8, 0)), Path::new("/nowhere")), Ok(None));
        assert_eq!(list("0-2,7,9-9\n"), Some(vec![0, 1, 2, 7, 9]));
        for bad in ["x", "3-1", "0-99999999", "1-"] {
            assert_eq!(list(bad), None, "{bad}");
        }
    }

    /// The calls, on whatever this machine is: its first node has memory and at least one processor that may be used.
    #[test]
    fn the_calls_are_understood() {
        let allowed = rustix::thread::sched_getaffinity(None).unwrap();
        let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|&p| allowed.is_set(p)).unwrap();
        let place = Place { node: 0, processors: vec![first] };
        std::thread::spawn(move || {
            match place.enter() {
                // Containers forbid it, and kernels without nodes do not know it.
                Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => {
                    return eprintln!("skipped: {e}");
                }
                entered => entered.unwrap(),
            }
            let (mut mode, mut mask) = (0, [0 as libc::c_ulong; NODES_MAX as usize / 64]);
            let to = mask.as_mut_ptr();
            let bits = NODES_MAX as libc::c_ulong + 1;
            // SAFETY: mode and mask live during the call and have room for what the kernel writes.
            let got = unsafe { libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, to, bits, 0, 0) };
            assert_eq!((got, mode, mask[0]), (0, PREFERRED, 1));
            // Those that it starts inherit it.
            let inherited = std::thread::spawn(|| rustix::thread::sched_getaffinity(None).unwrap());
            let inherited = inherited.join().unwrap();
            assert!(inherited.count() == 1 && inherited.is_set(first));
            let fd = crate::memory::sealed(c"test", 8192).unwrap();
            let memory = crate::memory::Mapping::new(&fd, 8192).unwrap();
            place.bind(&memory).unwrap();
            memory.copy_in(5000, b"there");
            let beyond = Place { node: 900, processors: Vec::new() };
            assert!(beyond.bind(&memory).is_err() && beyond.enter().is_err(), "a node that is not there");
        })
        .join()
        .unwrap();
    }
}

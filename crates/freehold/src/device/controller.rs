//! What sysfs tells of NVMe controllers.

use super::uses::Use;
use super::{DeviceError, Machine, PciAddress, Result, VFIO};
use std::path::PathBuf;

/// Class code of NVMe controllers: mass storage, non-volatile memory, NVMe (PCI Code and ID Assignment, 1.1.1.9).
const NVME: u32 = 0x01_08_02;

/// A controller, as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controller {
    /// Where it stands.
    pub address: PciAddress,
    /// Vendor and device: `1b36:0010`.
    pub id: String,
    /// Its model; as all that only its driver knows, the one of the claim's record while it is claimed, else empty.
    pub model: String,
    /// Its serial number.
    pub serial: String,
    /// Its firmware's revision.
    pub firmware: String,
    /// Its namespaces; while it is claimed, those that it had.
    pub namespaces: Vec<Namespace>,
    /// The NUMA node that it is at, where the machine has several.
    pub numa_node: Option<u32>,
    /// Number of its IOMMU group.
    pub iommu_group: Option<String>,
    /// Its driver.
    pub driver: Option<String>,
    /// Whether it was claimed.
    pub claim: Option<Claim>,
    /// What uses it, as far as can be seen without touching it.
    pub uses: Vec<Use>,
}

/// A namespace: a block device, while the kernel drives the controller.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Namespace {
    /// Name of the block device: `nvme0n1`.
    pub name: String,
    /// Size.
    pub bytes: u64,
}

/// What became of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It stands.
    Stands,
    /// It, or the release, was interrupted: `release` puts it in order.
    Interrupted,
}

impl<K> Machine<K> {
    /// All NVMe controllers, by address. Changes nothing, opens no device, and needs no permissions, but sees the open files of other
    /// users' processes only as root.
    ///
    /// # Errors
    /// `Step`: there is no list of PCI devices.
    pub fn list(&self) -> Result<Vec<Controller>> {
        let dir = self.at("sys/bus/pci/devices");
        std::fs::read_dir(&dir).map_err(DeviceError::step("reading", &dir))?;
        let addresses = self.names(&dir).into_iter().filter_map(|name| name.parse::<PciAddress>().ok());
        let nvme = addresses.filter(|a| class(&self.text(attribute(*a, "class"))) == Some(NVME));
        let mut all: Vec<Controller> = nvme.map(|a| self.look(a)).collect();
        all.sort_by_key(|c| c.address);
        let processes = self.open_devices();
        for c in &mut all {
            c.uses = self.uses(c, &processes);
        }
        Ok(all)
    }

    /// The controller at an address, without what uses it.
    ///
    /// # Errors
    /// `Absent`, `NotNvme`.
    pub(super) fn controller(&self, address: PciAddress) -> Result<Controller> {
        if !self.at(attribute(address, "")).exists() {
            return Err(DeviceError::Absent { address });
        }
        let text = self.text(attribute(address, "class"));
        if class(&text) != Some(NVME) {
            return Err(DeviceError::NotNvme { address, class: text });
        }
        Ok(self.look(address))
    }

    fn look(&self, address: PciAddress) -> Controller {
        let id = |name| self.text(attribute(address, name)).trim_start_matches("0x").to_owned();
        let names = self.names(attribute(address, "nvme"));
        let dir = names.first().map(|name| attribute(address, "nvme").join(name));
        let own = |name: &str| dir.as_ref().map(|d| self.text(d.join(name))).unwrap_or_default();
        let mut c = Controller {
            address,
            id: format!("{}:{}", id("vendor"), id("device")),
            model: own("model"),
            serial: own("serial"),
            firmware: own("firmware_rev"),
            namespaces: dir.as_ref().map(|d| self.namespaces(&self.names(d))).unwrap_or_default(),
            // -1: the machine does not say, or has one node.
            numa_node: self.text(attribute(address, "numa_node")).parse().ok(),
            iommu_group: self.link_name(attribute(address, "iommu_group")),
            driver: self.driver(address),
            claim: None,
            uses: Vec::new(),
        };
        if let Some(record) = self.record(address) {
            let stands = record.stands() && c.driver.as_deref() == Some(VFIO);
            c.claim = Some(if stands { Claim::Stands } else { Claim::Interrupted });
            if dir.is_none() {
                (c.model, c.serial, c.firmware) = (record.model, record.serial, record.firmware);
                c.namespaces = record.namespaces;
            }
        }
        c
    }

    /// The driver of a device.
    pub(super) fn driver(&self, address: PciAddress) -> Option<String> {
        self.link_name(attribute(address, "driver"))
    }

    /// What the kernel's driver says of a controller: `live`, `connecting`, ... Empty: no such driver has it, or none that is ready.
    pub(super) fn state(&self, address: PciAddress) -> String {
        let name = self.character_device(address);
        name.map(|name| self.text(attribute(address, "nvme").join(name).join("state"))).unwrap_or_default()
    }

    /// Name of the controller's character device: `nvme0`.
    pub(super) fn character_device(&self, address: PciAddress) -> Option<String> {
        self.names(attribute(address, "nvme")).into_iter().next()
    }

    /// The namespaces among the entries of a controller's directory. Where several controllers lead to one namespace (multipath), the entry is a
    /// hidden path, `nvme0c1n1`, and the block device is that of the subsystem, `nvme0n1`.
    fn namespaces(&self, entries: &[String]) -> Vec<Namespace> {
        let names = entries.iter().filter_map(|name| block_device(name));
        names
            .map(|name| {
                let sectors: u64 = self.text(format!("sys/class/block/{name}/size")).parse().unwrap_or(0);
                // Of 512 bytes, whatever the device's own are.
                Namespace { bytes: sectors << 9, name }
            })
            .collect()
    }

    /// The node by which iommufd takes a device that `vfio-pci` has, where the kernel can do that.
    pub(super) fn vfio_device(&self, address: PciAddress) -> Option<String> {
        let name = self.names(attribute(address, "vfio-dev")).into_iter().next()?;
        Some(format!("/dev/vfio/devices/{name}"))
    }

    /// The node by which a device that `vfio-pci` has is opened: that of its group, unless the kernel has none.
    pub(super) fn node(&self, address: PciAddress) -> Option<PathBuf> {
        let group = self.link_name(attribute(address, "iommu_group"))?;
        // Without an IOMMU the kernel makes a group for the device when it is bound.
        let is_bare = self.text(format!("sys/kernel/iommu_groups/{group}/name")) == "vfio-noiommu";
        let node = format!("/dev/vfio/{}{group}", if is_bare { "noiommu-" } else { "" });
        let has_groups = self.at(node.trim_start_matches('/')).exists();
        Some(self.vfio_device(address).filter(|_| !has_groups).unwrap_or(node).into())
    }
}

/// An attribute of a PCI device in sysfs, below the root.
pub(super) fn attribute(address: PciAddress, name: &str) -> PathBuf {
    format!("sys/bus/pci/devices/{address}/{name}").into()
}

fn class(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

/// The block device that an entry of a controller's directory leads to.
fn block_device(entry: &str) -> Option<String> {
    let numbers = entry.strip_prefix("nvme")?;
    let (subsystem, namespace) = numbers.split_once('n')?;
    let subsystem =
        subsystem.split_once('c').map_or(subsystem, |(s, path)| if is_number(path) { s } else { "" });
    (is_number(subsystem) && is_number(namespace)).then(|| format!("nvme{subsystem}n{namespace}"))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::block_device;

    #[test]
    fn entries_of_controllers() {
        assert_eq!(block_device("nvme0n1").as_deref(), Some("nvme0n1"));
        assert_eq!(block_device("nvme0c12n3").as_deref(), Some("nvme0n3"));
        for other in ["ng0n1", "nvme0", "nvme0c1", "hwmon1", "nvmen1", "nvme0n1p1", "nvme0cn1", "nvme"] {
            assert_eq!(block_device(other), None, "{other}");
        }
    }
}

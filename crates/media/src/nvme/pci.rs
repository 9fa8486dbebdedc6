//! Addresses of PCI functions, and what sysfs says of them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Domain, bus, device and function: `0000:00:04.0`. The domain may be left out when it is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress {
    /// Domain (segment).
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device, below 32.
    pub device: u8,
    /// Function, below 8.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

/// Text that is no address of a PCI function.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the address of a PCI function, such as 0000:00:04.0: {0}")]
pub struct NoAddress(String);

impl FromStr for PciAddress {
    type Err = NoAddress;

    fn from_str(text: &str) -> Result<PciAddress, NoAddress> {
        let parse = || {
            let hex = |s: &str, digits: usize| {
                let fits = !s.is_empty() && s.len() <= digits && s.bytes().all(|b| b.is_ascii_hexdigit());
                fits.then(|| u32::from_str_radix(s, 16).ok()).flatten()
            };
            let (rest, function) = text.rsplit_once('.')?;
            let (rest, device) = rest.rsplit_once(':')?;
            let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
            Some(PciAddress {
                domain: hex(domain, 8)?,
                bus: hex(bus, 2)? as u8,
                device: hex(device, 2).filter(|d| *d < 32)? as u8,
                function: hex(function, 1).filter(|f| *f < 8)? as u8,
            })
        };
        parse().ok_or_else(|| NoAddress(text.into()))
    }
}

impl PciAddress {
    /// Its directory in sysfs.
    pub fn sysfs(&self) -> PathBuf {
        PathBuf::from(format!("/sys/bus/pci/devices/{self}"))
    }

    /// The NUMA node that sysfs names; `None` where it names none.
    pub fn numa_node(&self) -> Option<u32> {
        let text = std::fs::read_to_string(self.sysfs().join("numa_node")).ok()?;
        u32::try_from(text.trim().parse::<i32>().ok()?).ok()
    }

    /// The character device by which iommufd takes it (Linux 6.6); `None`: it is not bound to vfio-pci, or the kernel has none.
    pub fn vfio_device(&self) -> Option<PathBuf> {
        let mut devices = std::fs::read_dir(self.sysfs().join("vfio-dev")).ok()?;
        Some(Path::new("/dev/vfio/devices").join(devices.next()?.ok()?.file_name()))
    }

    /// Number of its IOMMU group.
    pub fn iommu_group(&self) -> std::io::Result<u32> {
        let link = std::fs::read_link(self.sysfs().join("iommu_group"))?;
        let name = link.file_name().and_then(|n| n.to_str()).and_then(|n| n.parse().ok());
        name.ok_or_else(|| std::io::Error::from_raw_os_error(libc::ENODEV))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, full) in [
            ("0000:00:04.0", "0000:00:04.0"),
            ("00:1F.7", "0000:00:1f.7"),
            ("4:0.1", "0000:04:00.1"),
            ("10000:e1:00.0", "10000:e1:00.0"),
        ] {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), full);
        }
        for text in [
            "",
            "0000:00:04",
            "00:20.0",
            "00:04.8",
            "00:004.0",
            "0:0:0:0.0",
            "zz:04.0",
            "04.0",
            "00:+4.0",
            "../00:04.0",
        ] {
            assert!(text.parse::<PciAddress>().is_err(), "{text}");
        }
    }
}

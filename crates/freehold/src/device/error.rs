//! Why a controller is not taken or given back.

use super::{PciAddress, Use};
use std::io;
use std::path::PathBuf;

/// A refusal, or a step that failed: each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// Not a PCI address.
    #[error("{text:?} is not a PCI address such as 0000:04:00.0. See them with: freehold device list")]
    Address {
        /// What was given.
        text: String,
    },
    /// No device has the address.
    #[error("there is no PCI device {address}. See what there is with: freehold device list")]
    Absent {
        /// Where nothing is.
        address: PciAddress,
    },
    /// The device is not an NVMe controller.
    #[error(
        "{address} is not an NVMe controller (its PCI class is {class}). See them with: freehold device list"
    )]
    NotNvme {
        /// The device.
        address: PciAddress,
        /// Its class code, as sysfs has it.
        class: String,
    },
    /// Somebody uses it.
    #[error("{address} is in use: {}. Stop that first", joined(.by))]
    InUse {
        /// The device.
        address: PciAddress,
        /// By whom: at least one.
        by: Vec<Use>,
    },
    /// The kernel is just finding out what it holds, and somebody could begin to use that.
    #[error("{address} is starting, or its namespaces are changing. Try again in a moment")]
    Changing {
        /// The device.
        address: PciAddress,
    },
    /// A driver has it that is not the kernel's own, whose users cannot be seen.
    #[error(
        "{address} belongs to the driver {driver}, and who uses it through that cannot be seen. Unbind it first"
    )]
    Foreign {
        /// The device.
        address: PciAddress,
        /// Its driver.
        driver: String,
    },
    /// Its IOMMU group holds devices that the kernel drives, so that the kernel would not hand it out.
    #[error(
        "{address} cannot be claimed alone: its IOMMU group {group} also holds {}. Devices of one group can reach each other's memory, so \
         the kernel gives them to user space together or not at all. Unbind the others, claim them in the same call when they are NVMe \
         controllers, or put the controller into another slot",
        drivers(.others)
    )]
    Group {
        /// The device.
        address: PciAddress,
        /// Number of the group.
        group: String,
        /// The other devices that are in the way, and their drivers.
        others: Vec<(String, String)>,
    },
    /// Nothing keeps the device from reaching all memory.
    #[error(
        "{address} has no IOMMU group: the machine has no IOMMU, or it is off (VT-d or AMD-Vi in the firmware's settings; intel_iommu=on on the \
         kernel's command line of an Intel machine). Without one a device that goes wrong can overwrite any memory. On a machine where \
         that is acceptable: --no-iommu"
    )]
    NoIommu {
        /// The device.
        address: PciAddress,
    },
    /// The kernel cannot hand devices out.
    #[error("this kernel has no {missing}. {advice}")]
    NoVfio {
        /// What is missing.
        missing: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// Another command is at work.
    #[error(
        "another freehold device command is at work and has not ended in {seconds} s. Try again when it has"
    )]
    Locked {
        /// How long was waited.
        seconds: u64,
    },
    /// Only the kernel's driver can ask it, or nobody can.
    #[error(
        "{address} is not claimed ({}), so Freehold cannot ask it. {}",
        .driver.as_deref().map_or("it has no driver".into(), |d| format!("its driver is {d}")), unclaimed(*.address, .device)
    )]
    NotClaimed {
        /// The device.
        address: PciAddress,
        /// The driver that it has.
        driver: Option<String>,
        /// The character device that the kernel's driver made for it.
        device: Option<String>,
    },
    /// It could not be asked.
    #[error("{address} could not be asked: {why}")]
    Inspection {
        /// The device.
        address: PciAddress,
        /// What happened.
        why: String,
        /// errno(3) value.
        errno: i32,
    },
    /// A step failed.
    #[error("{doing} {}: {}{}", .path.display(), io::Error::from_raw_os_error(*.errno), advice(*.errno))]
    Step {
        /// What was tried: "writing", "opening".
        doing: &'static str,
        /// On which file.
        path: PathBuf,
        /// errno(3) value.
        errno: i32,
    },
    /// The kernel took the order, and the device has another driver than it should.
    #[error("{address} should have the driver {wanted}, but has {}. The kernel's log says why: dmesg | tail", .has.as_deref().unwrap_or("none"))]
    Unwilling {
        /// The device.
        address: PciAddress,
        /// The driver that it should have.
        wanted: String,
        /// The driver that it has.
        has: Option<String>,
    },
    /// The kernel's driver has the controller back, and cannot work with it.
    #[error(
        "{address} has been given back to the kernel's driver, but its namespaces have not appeared in {seconds} s. The kernel's log says why: \
         dmesg | tail"
    )]
    NotBack {
        /// The device.
        address: PciAddress,
        /// How long was waited.
        seconds: u64,
    },
    /// A claim failed, and what it had done could not be undone.
    #[error(
        "{first}. Then it could not be given back: {second}. Try again with: freehold device release {address}"
    )]
    Stranded {
        /// The device.
        address: PciAddress,
        /// Why the claim failed.
        first: Box<DeviceError>,
        /// Why it could not be undone.
        second: Box<DeviceError>,
    },
}

impl DeviceError {
    /// The errno(3) value that fits best.
    pub fn errno(&self) -> i32 {
        match self {
            DeviceError::Address { .. } | DeviceError::NotNvme { .. } => libc::EINVAL,
            DeviceError::Absent { .. } => libc::ENODEV,
            DeviceError::InUse { .. } | DeviceError::Foreign { .. } | DeviceError::Group { .. } => {
                libc::EBUSY
            }
            DeviceError::NoIommu { .. } | DeviceError::NoVfio { .. } => libc::EOPNOTSUPP,
            DeviceError::Changing { .. } | DeviceError::Locked { .. } => libc::EAGAIN,
            DeviceError::Step { errno, .. } | DeviceError::Inspection { errno, .. } => *errno,
            DeviceError::NotClaimed { .. } => libc::ENOTCONN,
            DeviceError::Unwilling { .. } => libc::EIO,
            DeviceError::NotBack { .. } => libc::ETIMEDOUT,
            DeviceError::Stranded { first, .. } => first.errno(),
        }
    }

    /// As the error of a step.
    pub(super) fn step(
        doing: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> DeviceError {
        let path = path.into();
        move |e| DeviceError::Step { doing, path, errno: e.raw_os_error().unwrap_or(libc::EIO) }
    }
}

fn unclaimed(address: PciAddress, device: &Option<String>) -> String {
    let claim = format!("freehold device claim {address}");
    match device {
        Some(name) => format!("Ask the kernel's driver: nvme smart-log /dev/{name}   Or take it: {claim}"),
        None => format!("Take it: {claim}"),
    }
}

fn joined(uses: &[Use]) -> String {
    uses.iter().map(Use::to_string).collect::<Vec<_>>().join("; ")
}

fn drivers(devices: &[(String, String)]) -> String {
    devices.iter().map(|(at, driver)| format!("{at} (driver {driver})")).collect::<Vec<_>>().join(", ")
}

fn advice(errno: i32) -> &'static str {
    match errno {
        libc::EACCES | libc::EPERM => ". Only root may take devices from the kernel, and give them back",
        libc::EROFS => ". Containers usually see /sys read-only: do it outside",
        _ => "",
    }
}

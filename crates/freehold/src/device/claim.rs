//! Taking a controller from the kernel's driver.
//!
//! ```text
//! hold the namespaces; look who uses them         refuse, nothing has changed
//! record: claiming, and what was there before
//! driver_override = vfio-pci                      from here on release has something to undo
//! unbind from nvme                                its block devices are gone
//! drivers_probe                                   vfio-pci takes it: /dev/vfio/GROUP
//! record: claimed
//! ```

use super::controller::attribute;
use super::uses::may_pass;
use super::{Controller, DeviceError, Kernel, Machine, PciAddress, Record, Result, Step, Use, VFIO};
use std::any::Any;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Where vfio says whether it hands out devices without an IOMMU.
const NO_IOMMU: &str = "sys/module/vfio/parameters/enable_unsafe_noiommu_mode";

/// How long a process may have a device open that is only looking at it.
const LOOKING: Duration = Duration::from_secs(1);

/// A claimed controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// Which.
    pub address: PciAddress,
    /// The node by which it is opened, if the kernel has told its group.
    pub node: Option<PathBuf>,
    /// Whether it had been bound to `vfio-pci` before.
    pub already: bool,
}

impl<K: Kernel> Machine<K> {
    /// Takes controllers from the kernel's driver: all of them, or after an error none. Those that `vfio-pci` has already are left as they are.
    /// `no_iommu`: take those without an IOMMU group, too, which then may reach all memory.
    ///
    /// # Errors
    /// `Absent`, `NotNvme`; `InUse`, `Foreign`, `Changing`, `Group`, `NoIommu`, `NoVfio`: refused, nothing has changed. `Step`, `Unwilling`: a step failed, and what
    /// had been done is undone. `Stranded`: that failed, too. `Locked`.
    pub fn claim(&self, addresses: &[PciAddress], no_iommu: bool) -> Result<Vec<Claimed>> {
        let _lock = self.lock()?;
        let mut all = Vec::new();
        for (n, address) in addresses.iter().enumerate() {
            if !addresses[..n].contains(address) {
                all.push(self.controller(*address)?);
            }
        }
        let (bound, todo): (Vec<_>, Vec<_>) = all.iter().partition(|c| c.driver.as_deref() == Some(VFIO));
        for c in &todo {
            self.check_driver(c)?;
        }
        let mut holds = Vec::new();
        for c in &todo {
            holds.push(self.hold(c)?);
        }
        for c in &todo {
            self.check_group(c, addresses, no_iommu)?;
        }
        if !todo.is_empty() {
            self.check_vfio(no_iommu && todo.iter().any(|c| c.iommu_group.is_none()))?;
        }
        for c in bound {
            // An interrupted claim had come so far, or an interrupted release no further.
            if let Some(mut record) = self.record(c.address).filter(|r| !r.stands()) {
                self.write(attribute(c.address, "driver_override"), VFIO)?;
                record.step = Step::Claimed;
                self.save(c.address, &record)?;
            }
        }
        for (n, c) in todo.iter().enumerate() {
            if let Err(first) = self.take(c) {
                // As long as its old namespaces are held the kernel would give new ones other names.
                drop(holds);
                return Err(self.undo(&todo[..=n], first));
            }
        }
        let claimed = |c: &Controller| {
            let (address, already) = (c.address, c.driver.as_deref() == Some(VFIO));
            Claimed { address, node: self.node(address), already }
        };
        Ok(all.iter().map(claimed).collect())
    }

    /// Only the kernel's own driver is known to leave a device in order, and its users can be seen, once it has found all namespaces.
    fn check_driver(&self, c: &Controller) -> Result<()> {
        let address = c.address;
        match c.driver.as_deref() {
            None => Ok(()),
            Some("nvme") => match self.state(address).as_str() {
                "" | "new" | "connecting" | "resetting" => Err(DeviceError::Changing { address }),
                _ => Ok(()),
            },
            Some(driver) => Err(DeviceError::Foreign { address, driver: driver.into() }),
        }
    }

    /// The kernel gives a group to user space when each of its devices has no driver, one that hands it out, or the one of PCI bridges.
    fn check_group(&self, c: &Controller, together: &[PciAddress], no_iommu: bool) -> Result<()> {
        let address = c.address;
        let Some(group) = c.iommu_group.clone() else {
            return if no_iommu { Ok(()) } else { Err(DeviceError::NoIommu { address }) };
        };
        let mut others = Vec::new();
        for name in self.names(format!("sys/kernel/iommu_groups/{group}/devices")) {
            let is_ours = name.parse::<PciAddress>().is_ok_and(|a| a == address || together.contains(&a));
            let driver = self.link_name(format!("sys/bus/pci/devices/{name}/driver"));
            match driver {
                Some(d) if !is_ours && !matches!(d.as_str(), VFIO | "pcieport" | "pci-stub") => {
                    others.push((name, d))
                }
                _ => {}
            }
        }
        if others.is_empty() { Ok(()) } else { Err(DeviceError::Group { address, group, others }) }
    }

    fn check_vfio(&self, bare: bool) -> Result<()> {
        if !self.at("sys/bus/pci/drivers/vfio-pci").exists() {
            self.kernel.load(VFIO);
        }
        if !self.at("sys/bus/pci/drivers/vfio-pci").exists() {
            let advice = "Load it: modprobe vfio-pci (option CONFIG_VFIO_PCI of the kernel)";
            return Err(DeviceError::NoVfio { missing: "driver vfio-pci", advice });
        }
        if bare && !self.at(NO_IOMMU).exists() {
            let advice = "It was built without CONFIG_VFIO_NOIOMMU: use a machine with an IOMMU";
            return Err(DeviceError::NoVfio { missing: "way to hand out devices without an IOMMU", advice });
        }
        Ok(())
    }

    /// Holds the namespaces of a controller that nobody uses.
    fn hold(&self, c: &Controller) -> Result<Vec<Box<dyn Any>>> {
        let address = c.address;
        let mut holds = Vec::new();
        // Without the kernel's driver there are none, and their names may be those of others by now.
        if self.character_device(address).is_none() {
            return Ok(holds);
        }
        for namespace in &c.namespaces {
            let path = self.at(format!("dev/{}", namespace.name));
            match self.kernel.hold(&path) {
                Ok(hold) => holds.push(hold),
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {
                    let mut by = self.uses(c, &self.open_devices());
                    if by.is_empty() {
                        by.push(Use::Held { device: namespace.name.clone() });
                    }
                    return Err(DeviceError::InUse { address, by });
                }
                Err(e) => return Err(DeviceError::step("opening", path)(e)),
            }
        }
        let until = Instant::now() + self.patience.min(LOOKING);
        loop {
            let by = self.uses(c, &self.open_devices());
            if by.is_empty() {
                return Ok(holds);
            }
            if !by.iter().all(may_pass) || Instant::now() >= until {
                return Err(DeviceError::InUse { address, by });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn take(&self, c: &Controller) -> Result<()> {
        let address = c.address;
        let name = address.to_string();
        // After an interrupted claim what counts is what was there before that one.
        let mut record = match self.record(address) {
            Some(mut record) => {
                record.driver = c.driver.clone().or(record.driver);
                record
            }
            None => {
                let before = self.text(attribute(address, "driver_override"));
                let before = (!["", "(null)", VFIO].contains(&before.as_str())).then_some(before);
                self.first_record(c, before)
            }
        };
        record.step = Step::Claiming;
        let is_bare = c.iommu_group.is_none();
        let allow = is_bare && self.text(NO_IOMMU) != "Y";
        record.needs_no_iommu |= is_bare;
        record.allowed_no_iommu |= allow;
        self.save(address, &record)?;
        if allow {
            self.write(NO_IOMMU, "Y")?;
        }
        self.write(attribute(address, "driver_override"), VFIO)?;
        if c.driver.is_some() {
            // One that has appeared since is not held, and may be mounted by now.
            if self.controller(address)?.namespaces != c.namespaces {
                return Err(DeviceError::Changing { address });
            }
            self.write(attribute(address, "driver/unbind"), &name)?;
        }
        self.write("sys/bus/pci/drivers_probe", &name)?;
        let has = self.driver(address);
        if has.as_deref() != Some(VFIO) {
            return Err(DeviceError::Unwilling { address, wanted: VFIO.into(), has });
        }
        record.step = Step::Claimed;
        self.save(address, &record)
    }

    /// Gives back what a failed claim had taken. The error to answer with.
    fn undo(&self, taken: &[&Controller], first: DeviceError) -> DeviceError {
        // Nothing was changed where no record could be saved.
        for c in taken.iter().rev().filter(|c| self.record(c.address).is_some()) {
            if let Err(second) = self.give_back(c.address) {
                return DeviceError::Stranded {
                    address: c.address,
                    first: first.into(),
                    second: second.into(),
                };
            }
        }
        first
    }

    /// Forbids again what a claim has allowed, or leaves that to another claim that needs it.
    pub(super) fn forbid_no_iommu(&self, address: PciAddress) -> Result<()> {
        // Of older versions only those that have allowed it are known to need it.
        let needs = |r: &Record| r.needs_no_iommu || r.allowed_no_iommu;
        let others = self.records().into_iter().filter(|(at, r)| *at != address && needs(r));
        let mut others: Vec<_> = others.collect();
        if others.iter().any(|(_, r)| r.allowed_no_iommu) {
            return Ok(());
        }
        match others.first_mut() {
            Some((heir, record)) => {
                record.allowed_no_iommu = true;
                self.save(*heir, record)
            }
            None => self.write(NO_IOMMU, "N"),
        }
    }
}

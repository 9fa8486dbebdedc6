//! Giving a controller back to the driver that it had.
//!
//! ```text
//! look who has it open, for a moment              refuse, nothing has changed
//! record: releasing
//! driver_override as it was
//! unbind from vfio-pci
//! bind to the driver that it had                  its block devices are there again
//! remove the record
//! ```
//! Each step is left out where sysfs shows that it has happened, so that this leads to the same end from whatever was interrupted.

use super::controller::attribute;
use super::{Controller, DeviceError, Kernel, Machine, Namespace, PciAddress, Result, Step, VFIO};
use std::time::{Duration, Instant};

/// How long a server may still have it open: umount(8) returns before the server of the mount has ended.
const ENDING: Duration = Duration::from_secs(2);

/// A controller that user space does not drive any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Released {
    /// Which.
    pub address: PciAddress,
    /// Its driver now.
    pub driver: Option<String>,
    /// Its namespaces, as far as that driver has made block devices of them.
    pub namespaces: Vec<Namespace>,
    /// Whether nobody had claimed it, and nothing was done.
    pub already: bool,
}

impl<K: Kernel> Machine<K> {
    /// Gives a controller back, and waits until its block devices are there. Also after an interrupted claim or release; one that has no record
    /// of a claim but is bound to `vfio-pci` goes to the kernel's default driver.
    ///
    /// # Errors
    /// `Absent`, `NotNvme`; `InUse`: somebody drives it, nothing has changed. `Step`, `Unwilling`: a step failed, and calling again goes on
    /// there. `NotBack`: it was given back, and does not work. `Locked`.
    pub fn release(&self, address: PciAddress) -> Result<Released> {
        let _lock = self.lock()?;
        let c = match self.controller(address) {
            // It was pulled out while it was claimed.
            Err(e @ DeviceError::Absent { .. }) => {
                if self.record(address).is_some_and(|r| r.allowed_no_iommu) {
                    self.forbid_no_iommu(address)?;
                }
                self.forget(address)?;
                return Err(e);
            }
            c => c?,
        };
        let record = self.record(address);
        let is_bound = c.driver.as_deref() == Some(VFIO);
        if record.is_none() && !is_bound {
            return Ok(self.released(c, true));
        }
        // Without a driver it may be on its way out of the machine, which waits for whoever has it open, and so would we.
        if is_bound || c.driver.is_none() {
            let until = Instant::now() + ENDING;
            while let Err(e) = self.check_free(&c) {
                if Instant::now() >= until {
                    return Err(e);
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        self.give_back(address)?;
        if self.driver(address).as_deref() == Some("nvme") {
            self.wait(address, record.map_or(0, |r| r.namespaces.len()))?;
        }
        Ok(self.released(self.controller(address)?, false))
    }

    fn released(&self, c: Controller, already: bool) -> Released {
        Released { address: c.address, driver: c.driver, namespaces: c.namespaces, already }
    }

    /// Unbinding would wait for whoever has it open, for ever.
    fn check_free(&self, c: &Controller) -> Result<()> {
        let address = c.address;
        let by = self.uses(c, &self.open_devices());
        if !by.is_empty() {
            return Err(DeviceError::InUse { address, by });
        }
        let Some(node) = self.node(address) else { return Ok(()) };
        // A group is opened once at a time, and not while iommufd has a device of it: this also finds whoever cannot be seen, where the
        // kernel has groups. Other errors say that it is not open.
        match self.kernel.hold(&self.at(node.strip_prefix("/").unwrap_or(&node))) {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => Err(DeviceError::InUse {
                address,
                by: vec![super::Use::Held { device: node.display().to_string() }],
            }),
            _ => Ok(()),
        }
    }

    /// The steps, without looking who uses it.
    pub(super) fn give_back(&self, address: PciAddress) -> Result<()> {
        let name = address.to_string();
        let record = self.record(address);
        if let Some(mut record) = record.clone() {
            record.step = Step::Releasing;
            self.save(address, &record)?;
        }
        if self.text(attribute(address, "driver_override")) == VFIO {
            // An empty line takes the override away.
            let before = record.as_ref().and_then(|r| r.driver_override.clone());
            self.write(attribute(address, "driver_override"), before.as_deref().unwrap_or("\n"))?;
        }
        if self.driver(address).as_deref() == Some(VFIO) {
            self.write(attribute(address, "driver/unbind"), &name)?;
        }
        if self.driver(address).is_none() {
            match record.as_ref().map(|r| r.driver.as_deref()) {
                // It had none, and stays without.
                Some(None) => {}
                Some(Some(driver)) => {
                    if !self.at(format!("sys/bus/pci/drivers/{driver}")).exists() {
                        self.kernel.load(driver);
                    }
                    self.write(format!("sys/bus/pci/drivers/{driver}/bind"), &name)?;
                    let has = self.driver(address);
                    if has.as_deref() != Some(driver) {
                        return Err(DeviceError::Unwilling { address, wanted: driver.into(), has });
                    }
                }
                None => self.write("sys/bus/pci/drivers_probe", &name)?,
            }
        }
        if record.is_some_and(|r| r.allowed_no_iommu) {
            self.forbid_no_iommu(address)?;
        }
        self.forget(address)
    }

    /// Waits until the controller works, and has at least so many namespaces.
    fn wait(&self, address: PciAddress, namespaces: usize) -> Result<()> {
        let until = Instant::now() + self.patience;
        loop {
            let c = self.controller(address)?;
            if self.state(address) == "live" && c.namespaces.len() >= namespaces {
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(DeviceError::NotBack { address, seconds: self.patience.as_secs() });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

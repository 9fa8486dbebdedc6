//! What a claim remembers, so that it can be undone by another process: one file for each controller, `/run/freehold/devices/ADDRESS`.
//!
//! Saved as a whole before the step that it speaks of, removed after the last one. It does not survive a reboot, and neither does what it is
//! about: a record of another boot counts as none.

use super::{Controller, DeviceError, Kernel, Machine, Namespace, PciAddress, Result};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Of all that Freehold keeps for a boot: sockets are in it, too.
const OWN: &str = "run/freehold";
const DIRECTORY: &str = "run/freehold/devices";
const VERSION: u32 = 1;

/// How far a claim is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Anything of it may have happened.
    Claiming,
    /// All of it has happened.
    Claimed,
    /// Anything of giving back may have happened.
    Releasing,
}

/// What there was before a claim, and how far the claim is.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Record {
    version: u32,
    /// The boot in which it was made.
    boot: String,
    /// How far the claim is.
    pub step: Step,
    /// The driver before.
    pub driver: Option<String>,
    /// `driver_override` before.
    pub driver_override: Option<String>,
    /// Whether the claim has allowed the kernel to hand out devices without an IOMMU, or one before that has left it to this one to forbid it again.
    pub allowed_no_iommu: bool,
    /// Whether the claim needs that, whoever has allowed it. Older versions did not write it down.
    #[serde(default)]
    pub needs_no_iommu: bool,
    /// What only the driver knew: see [`Controller`].
    pub model: String,
    /// As there.
    pub serial: String,
    /// As there.
    pub firmware: String,
    /// As there.
    pub namespaces: Vec<Namespace>,
}

impl Record {
    /// Whether the claim was completed, and nobody has begun to undo it.
    pub fn stands(&self) -> bool {
        self.step == Step::Claimed
    }
}

/// The right to change devices: held by one process at a time, which loses it when it ends.
pub struct Lock(#[expect(dead_code, reason = "it is held, not read")] OwnedFd);

impl<K> Machine<K> {
    pub(super) fn record_file(&self, address: PciAddress) -> PathBuf {
        self.at(DIRECTORY).join(address.to_string())
    }

    /// The record of a claim, if there is one of this boot.
    pub(super) fn record(&self, address: PciAddress) -> Option<Record> {
        let text = std::fs::read(self.record_file(address)).ok()?;
        let record: Record = serde_json::from_slice(&text).ok()?;
        (record.version == VERSION && record.boot == self.boot()).then_some(record)
    }

    /// The records of all claims.
    pub(super) fn records(&self) -> Vec<(PciAddress, Record)> {
        let addresses = self.names(DIRECTORY).into_iter().filter_map(|name| name.parse::<PciAddress>().ok());
        addresses.filter_map(|a| Some((a, self.record(a)?))).collect()
    }

    /// The record with which a claim begins.
    pub(super) fn first_record(&self, c: &Controller, driver_override: Option<String>) -> Record {
        Record {
            version: VERSION,
            boot: self.boot(),
            step: Step::Claiming,
            driver: c.driver.clone(),
            driver_override,
            allowed_no_iommu: false,
            needs_no_iommu: false,
            model: c.model.clone(),
            serial: c.serial.clone(),
            firmware: c.firmware.clone(),
            namespaces: c.namespaces.clone(),
        }
    }

    fn boot(&self) -> String {
        self.text("proc/sys/kernel/random/boot_id")
    }

    /// Waits for the right to change devices.
    ///
    /// # Errors
    /// `Locked`: another process has it, and keeps it. `Step`: this user may not.
    pub(super) fn lock(&self) -> Result<Lock> {
        for dir in [OWN, DIRECTORY].map(|d| self.at(d)) {
            make(&dir).map_err(DeviceError::step("making", &dir))?;
        }
        let path = self.at(DIRECTORY).join("lock");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|e| DeviceError::step("opening", &path)(e.into()))?;
        let until = Instant::now() + self.patience;
        loop {
            match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Lock(fd)),
                Err(Errno::WOULDBLOCK) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(Errno::WOULDBLOCK) => {
                    return Err(DeviceError::Locked { seconds: self.patience.as_secs() });
                }
                Err(e) => return Err(DeviceError::step("locking", &path)(e.into())),
            }
        }
    }
}

/// Makes a directory into which everybody may look, whatever the umask says.
fn make(dir: &Path) -> io::Result<()> {
    match std::fs::create_dir(dir) {
        Ok(()) => std::fs::set_permissions(dir, PermissionsExt::from_mode(0o755)),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(e),
    }
}

impl<K: Kernel> Machine<K> {
    /// Saves a record: before anything that it speaks of.
    pub(super) fn save(&self, address: PciAddress, record: &Record) -> Result<()> {
        let path = self.record_file(address);
        let text = serde_json::to_vec_pretty(record).expect("a record is plain data");
        self.kernel.save(&path, &text).map_err(DeviceError::step("writing", path))
    }

    /// Removes a record: after everything that it speaks of.
    pub(super) fn forget(&self, address: PciAddress) -> Result<()> {
        let path = self.record_file(address);
        self.kernel.remove(&path).map_err(DeviceError::step("removing", path))
    }
}

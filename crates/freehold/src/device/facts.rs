//! What a controller tells of itself, for people and scripts. Sizes are bytes, temperatures degrees Celsius.
//!
//! Only who drives a controller can ask it. So whoever serves a volume on it is asked first, over the control socket of that volume; when
//! nobody does, and the controller is claimed, it is started for the time of the question. While the kernel drives it there are
//! nvme(1) and smartctl(8).
//!
//! Numbers that the controller counts in 128 bits end at the greatest of 64 bits here.

use super::{DeviceError, Machine, PciAddress, Result, VFIO};
use crate::control;
use format::nvme::identify::{FUSES_COMPARE_AND_WRITE, OACS_NAMES, oncs};
use format::nvme::{Health, Namespace, health};
use media::MediaError;
use media::nvme::{Inspection, vfio::VfioBus};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// A controller and its namespaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// The model.
    pub model: String,
    /// The serial number.
    pub serial: String,
    /// The firmware's revision.
    pub firmware: String,
    /// Version of the specification that it follows.
    pub version: String,
    /// All of its memory, when it tells.
    pub capacity: Option<u64>,
    /// The part of it that belongs to no namespace.
    pub unallocated: Option<u64>,
    /// Largest transfer of one command (MDTS); `None`: no limit.
    pub transfer_max: Option<u64>,
    /// I/O queue pairs that it gives, or, where [`Facts::served`], those in use.
    pub queues: u16,
    /// Entries of the longest queue (CAP.MQES).
    pub queue_entries_max: u32,
    /// Whether the volatile write cache is on; `None`: it has none.
    pub write_cache: Option<bool>,
    /// Scatter gather lists are there.
    pub sgl: bool,
    /// Optional admin commands that are there.
    pub admin_commands: Vec<String>,
    /// Optional NVM commands that are there.
    pub nvm_commands: Vec<String>,
    /// The active namespaces.
    pub namespaces: Vec<Space>,
    /// How it fares.
    pub health: Fitness,
    /// A volume on it is being served, and its server was asked.
    #[serde(default)]
    pub served: bool,
}

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// Its identifier.
    pub id: u32,
    /// Its size.
    pub bytes: u64,
    /// What may be allocated of it at the same time.
    pub capacity: u64,
    /// What is allocated.
    pub used: u64,
    /// A logical block.
    pub block: u64,
    /// Aligned writes of so many bytes are kept or lost as a whole when power fails (AWUPF, NAWUPF).
    pub atomic_write: u64,
    /// The same while the power is on (AWUN, NAWUN).
    pub atomic_write_normal: u64,
    /// The formats that it can have.
    pub formats: Vec<Format>,
    /// IEEE Extended Unique Identifier, in hexadecimal.
    pub eui64: Option<String>,
    /// Globally Unique Identifier, in hexadecimal.
    pub nguid: Option<String>,
}

/// An LBA format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Format {
    /// A logical block.
    pub block: u64,
    /// The metadata of a block.
    pub metadata: u16,
    /// It is in use.
    pub now: bool,
    /// How fast it is: 0 best, 1 better, 2 good, 3 degraded.
    pub performance: u8,
}

/// The health of a controller (log page SMART / Health Information).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fitness {
    /// What it warns of; none is good.
    pub warnings: Vec<String>,
    /// Its temperature.
    pub temperature: i32,
    /// From which temperature it warns, when it tells.
    pub temperature_warning: Option<i32>,
    /// From which temperature it may stop working, when it tells.
    pub temperature_critical: Option<i32>,
    /// Its sensors.
    pub sensors: Vec<i32>,
    /// Spare that is left, percent.
    pub spare: u8,
    /// From which spare it warns, percent.
    pub spare_threshold: u8,
    /// The part of its expected life that is used up, percent; may be above 100.
    pub used: u8,
    /// Bytes that hosts have read.
    pub bytes_read: u64,
    /// Bytes that hosts have written.
    pub bytes_written: u64,
    /// Commands that read.
    pub reads: u64,
    /// Commands that wrote.
    pub writes: u64,
    /// Minutes for which it was busy with commands.
    pub busy_minutes: u64,
    /// Times that it was switched on.
    pub power_cycles: u64,
    /// Hours for which it was on.
    pub power_on_hours: u64,
    /// Times that it lost power unprepared.
    pub unsafe_shutdowns: u64,
    /// Errors of the media that it could not repair.
    pub media_errors: u64,
    /// Entries of its error log, over its life.
    pub error_entries: u64,
    /// Minutes above the temperature of the warning.
    pub warning_minutes: u32,
    /// Minutes above the critical temperature.
    pub critical_minutes: u32,
}

impl Facts {
    /// What stands in the answers of a controller.
    pub fn new(i: &Inspection) -> Facts {
        let c = &i.controller;
        let told = |bytes: u128| (bytes != 0).then(|| clamp(bytes));
        let names = |bits: u16, names: &[&str]| -> Vec<String> {
            let set = names.iter().enumerate().filter(|(bit, _)| bits >> bit & 1 == 1);
            set.map(|(_, name)| name.to_string()).collect()
        };
        let mut nvm_commands = names(c.oncs.get(), &oncs::NAMES);
        if c.fuses.get() & FUSES_COMPARE_AND_WRITE != 0 {
            nvm_commands.push("compare and write as one".into());
        }
        let version = i.version;
        Facts {
            model: c.model(),
            serial: c.serial(),
            firmware: c.firmware(),
            version: match (version >> 16, version >> 8 & 0xFF, version & 0xFF) {
                (major, minor, 0) => format!("{major}.{minor}"),
                (major, minor, tertiary) => format!("{major}.{minor}.{tertiary}"),
            },
            capacity: told(c.tnvmcap.get()),
            unallocated: told(c.unvmcap.get()),
            transfer_max: match c.mdts {
                0 => None,
                n => 1u64.checked_shl(12 + i.cap.mpsmin() + n as u32),
            },
            queues: i.queues,
            queue_entries_max: i.cap.entries_max(),
            write_cache: i.write_cache,
            sgl: matches!(c.sgls.get() & 3, 1 | 2),
            admin_commands: names(c.oacs.get(), &OACS_NAMES),
            nvm_commands,
            namespaces: i.namespaces.iter().map(|(id, n)| Space::new(*id, n, i)).collect(),
            health: Fitness {
                temperature_warning: celsius(c.wctemp.get()),
                temperature_critical: celsius(c.cctemp.get()),
                ..Fitness::new(&i.health)
            },
            served: false,
        }
    }
}

impl Space {
    fn new(id: u32, n: &Namespace, i: &Inspection) -> Space {
        // A shift that no controller may ask for leaves nothing.
        let size = |lbads: u8| 1u64.checked_shl(lbads.into()).unwrap_or(0);
        let block = size(n.format().lbads);
        let bytes = |blocks: u64| blocks.saturating_mul(block);
        let (normal, power_fail) = match n.has_atomics() {
            true => (n.nawun.get(), n.nawupf.get()),
            false => (i.controller.awun.get(), i.controller.awupf.get()),
        };
        let formats = n.lbaf.iter().take(n.nlbaf as usize + 1).enumerate();
        let hex = |id: &[u8]| {
            let is_told = id.iter().any(|b| *b != 0);
            is_told.then(|| id.iter().map(|b| format!("{b:02x}")).collect())
        };
        Space {
            id,
            bytes: bytes(n.nsze.get()),
            capacity: bytes(n.ncap.get()),
            used: bytes(n.nuse.get()),
            block,
            atomic_write: bytes(power_fail as u64 + 1),
            atomic_write_normal: bytes(normal as u64 + 1),
            formats: formats
                .filter(|(_, f)| f.lbads != 0)
                .map(|(at, f)| Format {
                    block: size(f.lbads),
                    metadata: f.metadata.get(),
                    now: at == (n.flbas & 0xF) as usize,
                    performance: f.rp & 3,
                })
                .collect(),
            eui64: hex(&n.eui64),
            nguid: hex(&n.nguid),
        }
    }
}

impl Fitness {
    /// What stands in the log page; the thresholds of temperatures do not.
    pub(crate) fn new(h: &Health) -> Fitness {
        let data = |units: u128| clamp(units.saturating_mul(health::DATA_UNIT));
        Fitness {
            warnings: h.warnings(),
            temperature: h.temperature.get() as i32 - KELVIN,
            temperature_warning: None,
            temperature_critical: None,
            sensors: h.sensors.iter().filter_map(|s| celsius(s.get())).collect(),
            spare: h.spare,
            spare_threshold: h.spare_threshold,
            used: h.used,
            bytes_read: data(h.data_read.get()),
            bytes_written: data(h.data_written.get()),
            reads: clamp(h.read_commands.get()),
            writes: clamp(h.write_commands.get()),
            busy_minutes: clamp(h.busy_minutes.get()),
            power_cycles: clamp(h.power_cycles.get()),
            power_on_hours: clamp(h.power_on_hours.get()),
            unsafe_shutdowns: clamp(h.unsafe_shutdowns.get()),
            media_errors: clamp(h.media_errors.get()),
            error_entries: clamp(h.error_entries.get()),
            warning_minutes: h.warning_minutes.get(),
            critical_minutes: h.critical_minutes.get(),
        }
    }
}

/// Zero degrees Celsius, kelvins.
const KELVIN: i32 = 273;

/// A temperature; 0 kelvins: it is not told.
fn celsius(kelvins: u16) -> Option<i32> {
    (kelvins != 0).then(|| kelvins as i32 - KELVIN)
}

fn clamp(n: u128) -> u64 {
    n.try_into().unwrap_or(u64::MAX)
}

impl<K> Machine<K> {
    /// Asks a controller that is claimed what it is and how it fares; see the module. Nothing on it is changed.
    ///
    /// # Errors
    /// `Absent`, `NotNvme`; `NotClaimed`; `InUse`: something other than a served volume drives it; `Inspection`: it cannot be
    /// opened, or does not answer.
    pub fn inspect(&self, address: PciAddress) -> Result<Facts> {
        let mut c = self.controller(address)?;
        if c.driver.as_deref() != Some(VFIO) {
            let device = self.character_device(address);
            return Err(DeviceError::NotClaimed { address, driver: c.driver, device });
        }
        let failed =
            |e: MediaError| DeviceError::Inspection { address, why: e.to_string(), errno: e.errno() };
        let name = PathBuf::from(format!("nvme:{address}"));
        match control::inspect(&name) {
            Ok(Ok(facts)) => return Ok(facts),
            Ok(Err(why)) => return Err(DeviceError::Inspection { address, why, errno: libc::EIO }),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                let why = "a volume on it is served by another user: only that user and root may ask".into();
                return Err(DeviceError::Inspection { address, why, errno: libc::EPERM });
            }
            // Nobody serves it, or an older version that does not know the question.
            Err(_) => {}
        }
        match VfioBus::open(address) {
            Ok(bus) => media::nvme::inspect(Arc::new(bus)).map(|i| Facts::new(&i)).map_err(failed),
            Err(e) if e.errno() == libc::EBUSY => {
                c.uses = self.uses(&c, &self.open_devices());
                match c.uses.is_empty() {
                    true => Err(failed(e)),
                    false => Err(DeviceError::InUse { address, by: c.uses }),
                }
            }
            Err(e) => Err(failed(e)),
        }
    }
}

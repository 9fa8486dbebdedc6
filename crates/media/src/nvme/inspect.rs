//! What a controller tells of itself: its capabilities, its namespaces, its health.
//!
//! Either from a medium that drives it ([`NvmeMedia::inspect`]), beside its requests, or from a controller that nobody drives
//! ([`inspect`]), which is started for that, with its admin queue alone, and shut down again. Nothing on it is changed. Whatever
//! it is formatted to is told, what the driver itself does not take included.

use super::admin::{self, Admin, Trouble};
use super::bus::Bus;
use super::dma::{Carver, DmaMemory, PAGE};
use super::ring::Ring;
use super::{NvmeMedia, Options, start};
use crate::MediaError;
use format::nvme::identify::VWC_PRESENT;
use format::nvme::register::{self, Cap};
use format::nvme::{Controller, Health, Namespace};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for a controller to shut down, whose own estimate is not asked for.
const SHUTDOWN: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// Register CAP.
    pub cap: Cap,
    /// Register VS: the version of the specification that it follows; major 31:16, minor 15:8, tertiary 7:0.
    pub version: u32,
    /// Identify Controller.
    pub controller: Controller,
    /// The active namespaces: identifier, Identify Namespace.
    pub namespaces: Vec<(u32, Namespace)>,
    /// The volatile write cache is on; `None`: there is none.
    pub write_cache: Option<bool>,
    /// I/O queue pairs that it gives, or, while a medium drives it, those that this uses.
    pub queues: u16,
    /// The log page SMART / Health Information, over all namespaces.
    pub health: Health,
}

/// Starts a controller that nobody drives, asks it, and shuts it down.
///
/// # Errors
/// `Setup`: it is gone, not fit for this driver, or does not answer; or memory cannot be had.
pub fn inspect(bus: Arc<dyn Bus>) -> Result<Inspection, MediaError> {
    let name = bus.name().to_owned();
    let trouble = |t: Trouble| t.setup(&name);
    let cap = start::capabilities(&*bus).map_err(trouble)?;
    start::reach_admin(&*bus, cap).map_err(trouble)?;
    let rings = Ring::bytes(admin::ENTRIES);
    let memory =
        DmaMemory::new(bus.clone(), rings.iter().sum::<usize>() + PAGE).map_err(|e: io::Error| {
            let errno = e.raw_os_error().unwrap_or(libc::EIO);
            MediaError::Setup { device: name.clone(), doing: "allocating memory for queues", errno }
        })?;
    let mut carver = Carver::new(memory);
    let rings = rings.map(|n| carver.take(n));
    // What goes wrong from here on, `Admin` stops the controller or cuts it off before its memory goes.
    let mut admin = Admin::new(bus.clone(), cap, rings, carver.take(PAGE), Options::default().admin_timeout);
    admin.stop().map_err(trouble)?;
    admin.start().map_err(trouble)?;
    let asked = admin.number_of_queues(u16::MAX).and_then(|queues| ask(&mut admin, &*bus, cap, queues));
    let ended = admin.shut_down(SHUTDOWN);
    let inspection = asked.map_err(trouble)?;
    if let Err(trouble) = ended {
        tracing::warn!(device = name, "shutting it down: {}", trouble.told().0);
    }
    Ok(inspection)
}

impl NvmeMedia {
    /// Asks the controller. Requests go on meanwhile.
    ///
    /// # Errors
    /// `Gone`; `Setup`: it does not answer. Nothing more is asked then before it does after all, or was reset, which is done when requests do
    /// not end either.
    pub fn inspect(&self) -> Result<Inspection, MediaError> {
        if self.dead.load(std::sync::atomic::Ordering::SeqCst) {
            return Err(self.context.front.gone());
        }
        let cap = start::capabilities(&*self.bus);
        let mut admin = self.admin.lock();
        let asked = cap.and_then(|cap| ask(&mut admin, &*self.bus, cap, self.pairs.len() as u16));
        asked.map_err(|trouble| trouble.setup(self.bus.name()))
    }

    /// Asks for the log page SMART / Health Information alone.
    ///
    /// # Errors
    /// Those of [`NvmeMedia::inspect`].
    pub fn smart(&self) -> Result<Health, MediaError> {
        if self.dead.load(std::sync::atomic::Ordering::SeqCst) {
            return Err(self.context.front.gone());
        }
        self.admin.lock().health().map_err(|trouble| trouble.setup(self.bus.name()))
    }
}

fn ask(admin: &mut Admin, bus: &dyn Bus, cap: Cap, queues: u16) -> Result<Inspection, Trouble> {
    let version = bus.read32(register::VS);
    let controller = admin.identify_controller()?;
    let mut namespaces = Vec::new();
    for nsid in admin.namespaces(0)? {
        namespaces.push((nsid, admin.identify_namespace(nsid)?));
    }
    let write_cache = match controller.vwc & VWC_PRESENT {
        0 => None,
        _ => Some(admin.write_cache()?.unwrap_or(true)),
    };
    let health = admin.health()?;
    Ok(Inspection { cap, version, controller, namespaces, write_cache, queues, health })
}

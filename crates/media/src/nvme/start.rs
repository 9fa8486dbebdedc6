//! Bringing a controller up: the first time, and after a reset (NVMe 1.4, section 7.6.1).

use super::admin::{self, Admin, Trouble};
use super::bus::Bus;
use super::dma::{Carver, DmaMemory, PAGE};
use super::limits::Limits;
use super::pair::{Context, PLACES_MAX, Pair};
use super::recover::Watch;
use super::ring::{self, Ring, Shadow};
use super::{NvmeMedia, Options};
use crate::front::Front;
use crate::{Geometry, MediaError};
use format::nvme::register::{self, Cap};
use parking_lot::{Mutex, RwLock};
use rustix::event::EventfdFlags;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// Largest transfer that the medium takes, bytes. Commands are cut from it.
const MAX_TRANSFER: u32 = 2 << 20;

/// The first time. The controller may be in any state.
pub(super) fn start(bus: Arc<dyn Bus>, options: Options) -> Result<NvmeMedia, MediaError> {
    let name = bus.name().to_owned();
    let trouble = |t: Trouble| t.setup(&name);
    let system = |doing, e: io::Error| {
        let errno = e.raw_os_error().unwrap_or(libc::EIO);
        MediaError::Setup { device: name.clone(), doing, errno }
    };
    let cap = capabilities(&*bus).map_err(trouble)?;
    let queues =
        (1..=options.queues.clamp(1, 64)).take_while(|q| is_reachable(&*bus, cap, *q)).count() as u16;
    if queues == 0 {
        return Err(trouble(OUT_OF_REACH));
    }
    let entries = (options.depth.clamp(1, PLACES_MAX) as u32 + 1).min(cap.entries_max()) as u16;
    let memory = DmaMemory::new(bus.clone(), bytes(queues, entries))
        .map_err(|e| system("allocating memory for queues", e))?;
    let mut carver = Carver::new(memory);
    let rings = Ring::bytes(admin::ENTRIES).map(|n| carver.take(n));
    let mut admin = Admin::new(bus.clone(), cap, rings, carver.take(PAGE), options.admin_timeout);
    admin.stop().map_err(trouble)?;
    admin.start().map_err(trouble)?;
    let nsid = namespace(&mut admin, options.namespace).map_err(trouble)?;
    let limits = identify(&mut admin, cap, nsid).map_err(trouble)?;
    let volatile_cache = limits.cache && admin.write_cache().map_err(trouble)?.unwrap_or(true);
    let queues = admin.number_of_queues(queues).map_err(trouble)?;
    let shadow = options.shadow_doorbells && limits.shadow && ring::shadow_fits(queues, cap.dstrd());
    let shadow = shadow.then(|| Arc::new(Shadow { doorbells: carver.take(PAGE), events: carver.take(PAGE) }));
    let zeros = carver.take(PAGE);
    let mut make_pair = |id| {
        let rings = Ring::bytes(entries).map(|n| carver.take(n));
        let ring = Ring::new(bus.clone(), id, entries, cap.dstrd(), rings);
        Mutex::new(Pair::new(ring, (1..entries).map(|_| [carver.take(PAGE), carver.take(PAGE)]).collect()))
    };
    let pairs: Vec<_> = (1..=queues).map(&mut make_pair).collect();
    let geometry = Geometry {
        name: name.clone(),
        bytes: limits.blocks * limits.lba,
        sector: limits.lba as u32,
        atomic_unit: limits.cut.unit as u32,
        volatile_cache,
        barrier: false,
        discard: limits.deallocate,
        queue_depth: queues as u32 * (entries as u32 - 1),
        max_transfer: MAX_TRANSFER,
        numa_node: bus.numa_node(),
    };
    let alarm = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|e| system("making an eventfd", e.into()))?;
    let context = Context {
        front: Front::new(geometry),
        limits,
        arenas: RwLock::new(Vec::new()),
        zeros,
        written: AtomicU64::new(0),
        flushed: AtomicU64::new(0),
        progress: AtomicU64::new(0),
    };
    let media = NvmeMedia {
        context,
        options,
        admin_needed: admin.needed(),
        admin: Mutex::new(admin),
        unrung: pairs.iter().map(|_| AtomicBool::new(false)).collect(),
        pairs,
        shadow,
        mapped: Mutex::new(Vec::new()),
        reaper: Mutex::new(Watch::new()),
        refused: Mutex::new(Vec::new()),
        any_refused: AtomicBool::new(false),
        dead: AtomicBool::new(false),
        woken: AtomicBool::new(false),
        waiting: AtomicBool::new(false),
        aborts: AtomicU64::new(0),
        resets: AtomicU64::new(0),
        events: AtomicU64::new(0),
        nudges: AtomicU64::new(0),
        alarm,
        bus,
    };
    give_queues(&media, &mut media.admin.lock()).map_err(trouble)?;
    Ok(media)
}

const OUT_OF_REACH: Trouble = Trouble::Unfit("its doorbells are out of reach");

/// Whether the doorbells of a queue pair are among the registers that are mapped.
fn is_reachable(bus: &dyn Bus, cap: Cap, queue: u16) -> bool {
    register::cq_head_doorbell(queue, cap.dstrd()) as u64 + 4 <= bus.registers() as u64
}

/// Fails when the doorbells of the admin queue are out of reach.
pub(super) fn reach_admin(bus: &dyn Bus, cap: Cap) -> Result<(), Trouble> {
    if is_reachable(bus, cap, 0) { Ok(()) } else { Err(OUT_OF_REACH) }
}

/// What a controller can do, if it is one for this driver.
pub(super) fn capabilities(bus: &dyn Bus) -> Result<Cap, Trouble> {
    let cap = Cap(bus.read64(register::CAP));
    if cap.0 == u64::MAX {
        return Err(Trouble::Gone);
    }
    if !cap.has_nvm_command_set() || cap.mpsmin() != 0 {
        return Err(Trouble::Unfit("it is not a controller for 4 KiB pages and the NVM command set"));
    }
    // 3.1.1: the smallest value is 1h.
    if cap.entries_max() < 2 {
        return Err(Trouble::Unfit("its queues have a single entry"));
    }
    Ok(cap)
}

/// Bytes of everything that [`start`] takes from one piece of memory.
fn bytes(queues: u16, entries: u16) -> usize {
    let rings = |entries| Ring::bytes(entries).iter().sum::<usize>();
    // The answers to admin commands, two pages of shadow doorbells, zeros.
    let fixed = rings(admin::ENTRIES) + 4 * PAGE;
    fixed + queues as usize * (rings(entries) + 2 * PAGE * (entries as usize - 1))
}

/// The active namespace with this identifier, or with the smallest.
fn namespace(admin: &mut Admin, wanted: Option<u32>) -> Result<u32, Trouble> {
    let after = wanted.map_or(0, |nsid| nsid.saturating_sub(1));
    let next = admin.namespaces(after)?.first().copied();
    next.filter(|nsid| wanted.is_none_or(|w| *nsid == w)).ok_or(Trouble::NoNamespace)
}

fn identify(admin: &mut Admin, cap: Cap, nsid: u32) -> Result<Limits, Trouble> {
    let controller = admin.identify_controller()?;
    let namespace = admin.identify_namespace(nsid)?;
    Limits::new(cap, &controller, &namespace, nsid).map_err(Trouble::Unfit)
}

/// Makes the I/O queues known to a controller that has none, and opens the pairs.
fn give_queues(media: &NvmeMedia, admin: &mut Admin) -> Result<(), Trouble> {
    let shadow = match &media.shadow {
        Some(shadow) if admin.set_shadow(shadow)? => Some(shadow),
        _ => None,
    };
    let interrupts = media.options.interrupts && media.bus.interrupt().is_some();
    for pair in &media.pairs {
        let ring = {
            let mut pair = pair.lock();
            pair.renew(shadow.cloned());
            pair.ring_facts()
        };
        // Without the lock: whoever submits meanwhile does not wait for the controller.
        admin.create_queues(ring, interrupts)?;
        pair.lock().open();
    }
    admin.want_warnings()?;
    admin.ask_event();
    Ok(())
}

/// After a reset: the controller is stopped, and no pair has commands under way.
pub(super) fn restart(media: &NvmeMedia, admin: &mut Admin) -> Result<(), Trouble> {
    admin.start()?;
    let limits = &media.context.limits;
    let cap = Cap(media.bus.read64(register::CAP));
    if identify(admin, cap, limits.nsid)? != *limits {
        return Err(Trouble::Unfit("it is another one after a reset"));
    }
    if limits.cache {
        // The setting is not kept over a reset unless it was saved (5.21.1). Where it cannot be set, the cache must have been taken for one that is on.
        let on = media.context.front.geometry.volatile_cache;
        if !admin.set_write_cache(on)? && !on {
            return Err(Trouble::Unfit("its write cache may be on after a reset"));
        }
    }
    let queues = media.pairs.len() as u16;
    if admin.number_of_queues(queues)? < queues {
        return Err(Trouble::Unfit("it has fewer queues after a reset"));
    }
    give_queues(media, admin)
}

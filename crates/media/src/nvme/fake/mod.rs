//! A simulated NVMe controller behind the driver's [`Bus`]: registers, queues in the driver's memory, an IOMMU, a medium with a
//! volatile cache. A thread plays the firmware.
//!
//! It keeps the rules of the specification and notes when the driver does not ([`FakeController::violations`]): memory that is not
//! mapped, PRPs that are not allowed, identifiers used twice, transfers beyond its limits, invalid doorbells. Within the rules it is
//! unkind: commands are carried out in any order, memory is looked at as late as possible, a reset carries out some commands
//! and not others. [`Fault`]s do the rest. The power may fail at any moment ([`FakeController::crash_image`]).

mod admin;
mod io;
mod memory;
mod state;

use super::bus::Bus;
use crate::SimFlash;
use crate::flash::{CrashState, PendingWrite};
use format::nvme::register;
use parking_lot::{Condvar, Mutex};
use rustix::event::EventfdFlags;
use state::State;
use std::io as sysio;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::JoinHandle;
use std::time::Duration;

/// What kind of controller to simulate.
#[derive(Clone, Debug)]
pub struct Config {
    /// Size of the namespace, bytes.
    pub bytes: u64,
    /// Identifier of the namespace, the only one that is active.
    pub nsid: u32,
    /// Logical block, bytes: 512 or 4096.
    pub lba: u32,
    /// Atomic write unit when power fails, logical blocks.
    pub atomic_blocks: u16,
    /// A volatile write cache is present, and on.
    pub volatile_cache: bool,
    /// That is off after each reset.
    pub cache_off: bool,
    /// A reset loses what is in the cache alone.
    pub reset_loses_cache: bool,
    /// MDTS: transfers of 2^this pages; 0 no limit.
    pub mdts: u8,
    /// Entries of the longest queue, at least 2.
    pub entries_max: u32,
    /// I/O queue pairs.
    pub queues: u16,
    /// CAP.DSTRD.
    pub dstrd: u32,
    /// Write Zeroes is there.
    pub write_zeroes: bool,
    /// Dataset Management is there.
    pub deallocate: bool,
    /// SGLs are there.
    pub sgl: bool,
    /// Doorbell Buffer Config is there.
    pub shadow_doorbells: bool,
    /// Interrupts are there.
    pub interrupts: bool,
    /// Bytes of metadata behind each logical block: the driver does not take such a namespace, but tells of it.
    pub metadata: u16,
    /// Critical Warning of its health.
    pub warning: u8,
    /// Decides everything random.
    pub seed: u64,
}

impl Config {
    /// A usual one of today: 512-byte blocks, 4 KiB atomic, volatile cache, everything optional but shadow doorbells.
    pub fn new(bytes: u64) -> Config {
        Config {
            bytes,
            nsid: 1,
            lba: 512,
            atomic_blocks: 8,
            volatile_cache: true,
            cache_off: false,
            reset_loses_cache: false,
            mdts: 5,
            entries_max: 1024,
            queues: 4,
            dstrd: 0,
            write_zeroes: true,
            deallocate: true,
            sgl: true,
            shadow_doorbells: false,
            interrupts: true,
            metadata: 0,
            warning: 0,
            seed: 1,
        }
    }

    /// Nearly the least that the specification allows: transfers of two pages at most, queues of two entries, nothing optional.
    pub fn least(bytes: u64) -> Config {
        Config {
            atomic_blocks: 1,
            volatile_cache: false,
            mdts: 1,
            entries_max: 2,
            queues: 1,
            dstrd: 2,
            write_zeroes: false,
            deallocate: false,
            sgl: false,
            ..Config::new(bytes)
        }
    }
}

/// What goes wrong with a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Ends with this status (format of the status field without the phase tag).
    Status(u16),
    /// Never completes. `done`: it is carried out all the same. `abortable`: an Abort completes it.
    Lost {
        /// It is carried out.
        done: bool,
        /// Abort helps.
        abortable: bool,
    },
    /// Completes so much later.
    Delay(Duration),
    /// Completes twice.
    Twice,
    /// The controller answers nothing any more, admin commands included, until it is reset.
    Hang,
    /// The controller sets CSTS.CFS.
    Fatal,
    /// The controller resets itself: CSTS.RDY is 0, and everything is forgotten.
    Restart,
    /// The controller is removed: registers read as all ones.
    Remove,
}

/// A fault that waits for its command.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Of an admin command. Those are only delayed, or end with a status.
    pub admin: bool,
    /// Opcode of the command; `None` for any.
    pub opcode: Option<u8>,
    /// Such commands that pass before one fails.
    pub after: u64,
    /// All such commands fail from then on.
    pub forever: bool,
    /// What happens.
    pub failure: Failure,
}

impl Fault {
    /// The next I/O command with this opcode.
    pub fn next(opcode: Option<u8>, failure: Failure) -> Fault {
        Fault { admin: false, opcode, after: 0, forever: false, failure }
    }

    /// The next admin command with this opcode is answered so much later.
    pub fn delay_admin(opcode: u8, by: Duration) -> Fault {
        Fault { admin: true, ..Fault::next(Some(opcode), Failure::Delay(by)) }
    }

    /// The next admin command with this opcode ends with this status.
    pub fn refuse_admin(opcode: u8, status: u16) -> Fault {
        Fault { admin: true, ..Fault::next(Some(opcode), Failure::Status(status)) }
    }
}

struct Shared {
    state: Mutex<State>,
    /// Something changed that the firmware should look at.
    rung: Condvar,
    stop: AtomicBool,
}

/// The controller.
pub struct FakeController {
    config: Config,
    shared: Arc<Shared>,
    interrupt: Arc<OwnedFd>,
    firmware: Option<JoinHandle<()>>,
}

impl FakeController {
    /// A controller with a namespace full of zeros.
    pub fn new(config: Config) -> Arc<FakeController> {
        let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let interrupt = Arc::new(fd.expect("an eventfd"));
        let state = Mutex::new(State::new(config.clone(), interrupt.clone()));
        let shared = Arc::new(Shared { state, rung: Condvar::new(), stop: AtomicBool::new(false) });
        let firmware = std::thread::spawn({
            let shared = shared.clone();
            move || {
                let mut state = shared.state.lock();
                while !shared.stop.load(SeqCst) {
                    match state.step() {
                        // Others want the registers as well.
                        state::Next::Again => parking_lot::MutexGuard::bump(&mut state),
                        state::Next::After(time) => drop(shared.rung.wait_for(&mut state, time)),
                    }
                }
            }
        });
        Arc::new(FakeController { config, shared, interrupt, firmware: Some(firmware) })
    }

    /// A controller with the contents of a simulated device.
    pub fn with_contents(config: Config, from: &SimFlash) -> Arc<FakeController> {
        let controller = FakeController::new(config);
        let mut bytes = vec![0; 1 << 20];
        for at in (0..controller.config.bytes).step_by(bytes.len()) {
            let part = &mut bytes[..(controller.config.bytes - at).min(1 << 20) as usize];
            from.peek(at, part);
            controller.shared.state.lock().poke(at, part);
        }
        controller
    }

    /// Adds a fault to those that wait.
    pub fn inject(&self, fault: Fault) {
        self.shared.state.lock().faults.push(fault);
    }

    /// Removes all faults that wait.
    pub fn clear_faults(&self) {
        self.shared.state.lock().faults.clear();
    }

    /// From now on clearing CC.EN does not stop it; nor does a reset of the function if `for_good`.
    pub fn refuse_to_stop(&self, for_good: bool) {
        let mut state = self.shared.state.lock();
        (state.stops, state.resettable) = (false, !for_good);
    }

    /// When it is told to shut down it reports a fatal error instead.
    pub fn die_at_shutdown(&self) {
        self.shared.state.lock().dies_at_shutdown = true;
    }

    /// Its firmware does nothing, until told otherwise.
    pub fn stall(&self, on: bool) {
        self.shared.state.lock().stalled = on;
        self.shared.rung.notify_all();
    }

    /// Removes the controller.
    pub fn remove(&self) {
        self.shared.state.lock().gone = true;
    }

    /// Completes an asynchronous event request, if there is one, with this dword 0. False if there is none.
    pub fn report(&self, event: u32) -> bool {
        let done = self.shared.state.lock().report(event);
        self.shared.rung.notify_all();
        done
    }

    /// What the driver did that it must not.
    pub fn violations(&self) -> Vec<String> {
        self.shared.state.lock().violations.clone()
    }

    /// I/O commands carried out, by opcode.
    pub fn commands(&self, opcode: u8) -> u64 {
        self.shared.state.lock().carried_out[opcode as usize]
    }

    /// Writes to doorbells.
    pub fn doorbells(&self) -> u64 {
        self.shared.state.lock().doorbells
    }

    /// Pieces of memory that are mapped for the device.
    pub fn mapped(&self) -> usize {
        self.shared.state.lock().memory.pieces()
    }

    /// What reads would see now.
    pub fn peek(&self, offset: u64, to: &mut [u8]) {
        self.shared.state.lock().visible.read(offset, to);
    }

    /// What a power failure now might leave; writes that have not completed are in flight.
    pub fn crash_state(&self) -> CrashState {
        self.shared.state.lock().crash_state()
    }

    /// The device after a power failure now that keeps those units for which `choose` says so.
    pub fn crash_image(&self, choose: impl FnMut(&PendingWrite, u32) -> bool) -> SimFlash {
        self.crash_state().crash_image(choose)
    }
}

impl Drop for FakeController {
    fn drop(&mut self) {
        {
            // Under the lock, so that the firmware is not between looking and waiting.
            let _state = self.shared.state.lock();
            self.shared.stop.store(true, SeqCst);
            self.shared.rung.notify_all();
        }
        if let Some(firmware) = self.firmware.take()
            && let Err(panic) = firmware.join()
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

// SAFETY: the simulated IOMMU knows what is mapped, and the firmware reaches memory through it alone.
unsafe impl Bus for FakeController {
    fn name(&self) -> &str {
        "nvme:simulated"
    }

    fn numa_node(&self) -> Option<u32> {
        None
    }

    fn registers(&self) -> u32 {
        64 << 10
    }

    fn read32(&self, at: u32) -> u32 {
        self.shared.state.lock().read(at)
    }

    fn write32(&self, at: u32, value: u32) {
        let mut state = self.shared.state.lock();
        state.write(at, value);
        // The firmware is a thread of its own, as real ones are: it looks when it comes to it.
        if at >= register::DOORBELLS || at == register::CC {
            self.shared.rung.notify_all();
        }
    }

    unsafe fn map(&self, address: *mut u8, len: usize) -> sysio::Result<u64> {
        Ok(self.shared.state.lock().memory.map(address, len))
    }

    fn unmap(&self, device_address: u64, _len: usize) {
        self.shared.state.lock().memory.unmap(device_address);
    }

    fn interrupt(&self) -> Option<BorrowedFd<'_>> {
        self.config.interrupts.then(|| self.interrupt.as_fd())
    }

    fn cut_off(&self) {
        self.shared.state.lock().memory.cut_off();
    }

    fn reset(&self) -> sysio::Result<()> {
        if self.shared.state.lock().reset_function() {
            Ok(())
        } else {
            Err(sysio::Error::from_raw_os_error(libc::EIO))
        }
    }
}

//! Devices and hosts, and where each number comes from.
//!
//! Sources: *\[paper\]* the text of BarrierFS (FAST'18), sections 1, 3 and 6, and its Table 1; *\[sheet\]* what the makers published
//! about the model or its interface; *\[chosen\]* a typical value for flash of that time, or fitted so that one measured
//! figure of the paper, named beside it, comes out. Fitted are rates and single latencies only: no ratio of modes is put in, but
//! for the 5 % that the paper assumes for a barrier write on the desktop device.

use super::clock::{MS, Ns, US};

/// How the device honours the barrier flag of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Barrier {
    /// Not at all: commands and cached data go in any order. What devices without the flag do; one that has it and does this lies.
    Ignored,
    /// In-order write-back: an epoch is programmed when those before it have been.
    InOrder,
    /// Transactional write-back: the cache is written as one unit, which counts as a whole or not at all.
    Transactional,
    /// In-order recovery: the device is one log, programmed in any order; after a power failure the log ends at the first page
    /// that was not programmed.
    Recovery,
}

impl Barrier {
    /// The ways to honour it.
    pub const HONEST: [Barrier; 3] = [Barrier::InOrder, Barrier::Transactional, Barrier::Recovery];

    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            Barrier::Ignored => "ignored",
            Barrier::InOrder => "in-order write-back",
            Barrier::Transactional => "transactional write-back",
            Barrier::Recovery => "in-order recovery",
        }
    }
}

/// A flash device. A unit is 4 KiB.
#[derive(Clone, Debug)]
pub struct Profile {
    /// For tables.
    pub name: &'static str,
    /// Buses to the dies.
    pub channels: u32,
    /// Dies on each channel.
    pub ways: u32,
    /// Units that a die programs at once: page size times planes.
    pub units_per_program: u32,
    /// Time of one program.
    pub program_ns: Ns,
    /// Time until a die has read a page.
    pub read_ns: Ns,
    /// Time of a unit on its channel.
    pub bus_ns: Ns,
    /// Time of the controller for each command, before its data moves.
    pub command_ns: Ns,
    /// Further time of the controller for a write with the barrier flag.
    pub barrier_ns: Ns,
    /// Time of a unit on the link to the host.
    pub link_ns: Ns,
    /// Commands that the device holds.
    pub queue_depth: u32,
    /// Size of the write-back cache, units.
    pub cache_units: u32,
    /// The cache survives power failures.
    pub protected: bool,
    /// Time of a flush once the data is programmed.
    pub flush_ns: Ns,
    /// Programs, one after the other, that make the mapping table durable in a flush that had data to write.
    pub map_programs: u32,
    /// A flush waits until the queue in front of it is empty, and nothing is served until it is done (ATA: it cannot be queued).
    pub flush_exclusive: bool,
    /// Programs of a die between two collections of garbage; 0: never collects.
    pub gc_interval: u32,
    /// Time for which a collection keeps the die.
    pub gc_ns: Ns,
    /// What the barrier flag does.
    pub barrier: Barrier,
}

impl Profile {
    /// A phone's UFS 2.0 device: one channel, queue depth 16 \[paper\].
    pub fn phone() -> Profile {
        Profile {
            name: "phone (UFS)",
            channels: 1,
            ways: 4,
            // 16 KiB pages in two planes, MLC [chosen].
            units_per_program: 8,
            // One bit to a cell, as phones program what a flush waits for; about 0.33 ms for a flush. Fitted to ext4's fsync of 1.29 ms
            // [paper, table 1].
            program_ns: 180 * US,
            read_ns: 60 * US,
            // 400 MB/s: ONFI 3 [sheet].
            bus_ns: 10 * US,
            // 70 us to serve a write of 4 KiB [paper, 6.3], less the link.
            command_ns: 63 * US,
            // The paper gives none for this firmware.
            barrier_ns: 0,
            // 600 MB/s: two lanes of HS-G3 [sheet].
            link_ns: 7 * US,
            queue_depth: 16,
            // 1 MiB [chosen]: phones' controllers have little memory.
            cache_units: 256,
            protected: false,
            flush_ns: 60 * US,
            map_programs: 0,
            flush_exclusive: false,
            // A block of 256 programs [chosen]; the longest fsync of 10,000 is 33 ms on ext4 [paper, table 1].
            gc_interval: 256,
            gc_ns: 15 * MS,
            // The firmware that the paper's authors changed is a log with in-order recovery [paper, 3.2].
            barrier: Barrier::Recovery,
        }
    }

    /// A desktop SSD without power protection, like the 850 PRO: SATA 3.0, queue depth 32, 8 channels \[paper\].
    pub fn desktop() -> Profile {
        Profile {
            name: "desktop SSD (SATA)",
            channels: 8,
            ways: 4,
            // Two planes of 16 KiB [chosen].
            units_per_program: 8,
            // Flash with three bits to a cell [paper, 6.3]; with one program for the mapping a flush takes 2.6 ms, somewhat less than
            // half of ext4's fsync of 5.95 ms [paper, table 1].
            program_ns: 1300 * US,
            read_ns: 80 * US,
            bus_ns: 10 * US,
            // 90,000 random writes per second [sheet], with the link.
            command_ns: 3_600,
            // The paper assumes that barrier writes cost 5 % here, and nothing on the protected one [paper, 6].
            barrier_ns: 550,
            // 550 MB/s [sheet].
            link_ns: 7_400,
            queue_depth: 32,
            // 32 MiB of the 512 MiB on board [chosen]: most holds the mapping table.
            cache_units: 8192,
            protected: false,
            flush_ns: 100 * US,
            map_programs: 1,
            flush_exclusive: true,
            // The longest fsync of 10,000 is about three times the mean [paper, table 1].
            gc_interval: 512,
            gc_ns: 9 * MS,
            barrier: Barrier::Recovery,
        }
    }

    /// A server's SSD whose capacitors save the cache, like the 843TN: SATA 3.0, queue depth 32, 8 channels \[paper\].
    pub fn protected() -> Profile {
        Profile {
            name: "power-protected SSD (SATA)",
            program_ns: 900 * US,
            // Fitted to an fsync of 0.15 ms on ext4 [paper, table 1], together with the host's context switch.
            command_ns: 8 * US,
            barrier_ns: 0,
            protected: true,
            flush_ns: 8 * US,
            map_programs: 0,
            gc_ns: 4 * MS,
            ..Profile::desktop()
        }
    }

    /// A device of `channels` channels whose flash, not its link, is the limit: for the sweep of figure 1. One channel takes about
    /// 7,000 random writes per second, as device A and, with 32 channels, device G of the paper.
    pub fn array(channels: u32) -> Profile {
        Profile {
            name: "array",
            channels,
            ways: 1,
            units_per_program: 4,
            program_ns: 500 * US,
            read_ns: 60 * US,
            bus_ns: 10 * US,
            command_ns: US,
            barrier_ns: 0,
            // 2 GB/s: four lanes of PCIe 2.0 [sheet].
            link_ns: 2 * US,
            queue_depth: 32,
            cache_units: 128 * channels,
            protected: false,
            flush_ns: 100 * US,
            map_programs: 0,
            flush_exclusive: false,
            gc_interval: 128,
            gc_ns: 3 * MS,
            barrier: Barrier::Recovery,
        }
    }

    /// The same device with another treatment of barriers.
    pub fn with(self, barrier: Barrier) -> Profile {
        Profile { barrier, ..self }
    }

    /// The three devices of the paper's experiments.
    pub fn all() -> [Profile; 3] {
        [Profile::phone(), Profile::desktop(), Profile::protected()]
    }

    /// The host that the paper used with this device.
    pub fn host(&self) -> Host {
        if self.queue_depth == 16 { Host::phone() } else { Host::server() }
    }

    /// All dies.
    pub fn dies(&self) -> u32 {
        self.channels * self.ways
    }
}

/// What the host's software costs.
#[derive(Clone, Debug)]
pub struct Host {
    /// write(2) of 4 KiB into the page cache.
    pub write_ns: Ns,
    /// A synchronizing call until its request is in the scheduler's queue.
    pub submit_ns: Ns,
    /// Handing one command to the device. Commands are handed over one after the other.
    pub dispatch_ns: Ns,
    /// From the device's completion to the end of its interrupt.
    pub interrupt_ns: Ns,
    /// From there until a thread that slept runs: a context switch. The mean; each takes between half and one and a half of it.
    pub wake_ns: Ns,
    /// Further time until the second of several threads is woken, and so on: whoever wakes them does it one after the other.
    pub signal_ns: Ns,
    /// Copying a page that a committing transaction holds.
    pub copy_ns: Ns,
    /// Between two ticks of the timer. A file's times change once in each.
    pub tick_ns: Ns,
    /// Requests that the scheduler holds before it makes writers wait (Linux: nr_requests).
    pub queued_max: usize,
}

impl Host {
    /// A phone. The wake-up is fitted to ext4's fsync of 1.29 ms \[paper, table 1\]; the 160 us that the paper saw between
    /// dispatching D and JD would make fsync longer than it measured.
    pub fn phone() -> Host {
        Host {
            write_ns: 15 * US,
            submit_ns: 10 * US,
            dispatch_ns: 10 * US,
            interrupt_ns: 10 * US,
            wake_ns: 70 * US,
            signal_ns: 5 * US,
            copy_ns: 4 * US,
            // 100 ticks per second [chosen: Android of that time].
            tick_ns: 10 * MS,
            queued_max: 128,
        }
    }

    /// A server or PC. The wake-up is fitted to an fsync of 0.15 ms on ext4 over the power-protected SSD \[paper, table 1\].
    pub fn server() -> Host {
        Host {
            write_ns: 2 * US,
            submit_ns: US,
            dispatch_ns: 2 * US,
            interrupt_ns: 2 * US,
            wake_ns: 10 * US,
            signal_ns: 2 * US,
            copy_ns: US,
            // 250 ticks per second [chosen: the kernel's default].
            tick_ns: 4 * MS,
            queued_max: 128,
        }
    }
}

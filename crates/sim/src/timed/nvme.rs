//! An NVMe SSD with several submission queues, for what separating requests by class is worth (UHSFS, section 2.2 and tables 4 to 6).
//!
//! The structure is that of published simulators of such devices (MQSim, FAST'18): the controller takes commands from the queues in turn, those of one
//! queue in their order, and works on a bounded number of each queue's at a time (there "queue fetch size"). A write needs room in the write cache; while there is
//! none it waits at the head of its queue, and what is behind it in that queue waits too. A read is cut into pages of dies. A die
//! serves reads before programs, but one program after each read while the cache is full. Reads in a row overlap sensing and
//! transfer; a program behind a read waits for the end of that transfer.
//!
//! Numbers are those of the paper's drive (HGST SN260): rates that the paper measured (its table 9), see [`Profile::sn260`]. No gain of separation is
//! put in.
//!
//! Not modelled: reads that hit the write cache, garbage collection (the paper's drive was far from full), a mapping table that does not fit into
//! memory, suspended programs.
//!
//! Tested in tests/timed_nvme.rs.

use super::clock::{Agenda, Ns, Random, US};
use sched::queues::Direction;
use std::collections::VecDeque;

/// A device. A unit is 4 KiB.
#[derive(Clone, Debug)]
pub struct Profile {
    /// For tables.
    pub name: &'static str,
    /// Commands of one queue that the device works on at a time.
    pub window: u32,
    /// Time of the controller for each command.
    pub fetch_ns: Ns,
    /// Time of a unit on the link to the device, and from it.
    pub link_ns: Ns,
    /// Buses, and dies on each.
    pub channels: u32,
    /// Dies on each channel.
    pub ways: u32,
    /// Time of a unit on a bus.
    pub bus_ns: Ns,
    /// Units of a page, which a die reads at once.
    pub page_units: u32,
    /// Time until it has.
    pub read_ns: Ns,
    /// Units that a die programs at once.
    pub program_units: u32,
    /// Time of one program.
    pub program_ns: Ns,
    /// Size of the write cache, units.
    pub cache_units: u32,
}

impl Profile {
    /// The paper's HGST SN260, eight lanes of PCIe 3.0.
    pub fn sn260() -> Profile {
        Profile {
            name: "SN260",
            // [chosen] half of the smallest depth that the paper measured with.
            window: 8,
            // 1,200,000 reads of 4 KiB in a second [sheet].
            fetch_ns: 800,
            // 6,400 MB/s [paper, table 9].
            link_ns: 640,
            // [chosen] 128 dies, of which reads of 4 KiB at depth 32 keep a quarter busy.
            channels: 16,
            ways: 8,
            // 800 MB/s: ONFI 4 [sheet].
            bus_ns: 5_120,
            page_units: 4,
            // 508,928 reads of 4 KiB in a second at depth 32 [paper, table 9] are 63 us each.
            read_ns: 54 * US,
            program_units: 8,
            // 2,291 MB/s [paper, table 9].
            program_ns: 1_790 * US,
            // 16 MiB [chosen].
            cache_units: 4096,
        }
    }

    /// All dies.
    pub fn dies(&self) -> u32 {
        self.channels * self.ways
    }
}

/// A command.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// Returned when it is complete.
    pub id: u64,
    /// Which way.
    pub direction: Direction,
    /// First unit.
    pub unit: u64,
    /// How many units; not more than the cache has.
    pub units: u32,
}

#[derive(Debug)]
enum Event {
    /// The controller has read a command of this queue.
    Fetched(usize, Command),
    /// Pages of a read were sensed.
    Sensed {
        die: usize,
        page: Page,
    },
    /// A die can begin something else.
    Free(usize),
    Programmed {
        die: usize,
    },
    /// A page of a read has left, or a write is in the cache.
    Moved {
        queue: usize,
        id: u64,
    },
}

/// A page of a read.
#[derive(Clone, Copy, Debug)]
struct Page {
    queue: usize,
    id: u64,
    units: u32,
}

#[derive(Debug, Default)]
struct Die {
    reads: VecDeque<Page>,
    programs: u32,
    busy: bool,
    /// The last thing it began was a read.
    read: bool,
}

/// The device.
pub struct Nvme {
    profile: Profile,
    agenda: Agenda<Event>,
    random: Random,
    /// Not taken by the controller yet.
    submitted: Vec<VecDeque<Command>>,
    /// Taken and not complete.
    working: Vec<u32>,
    /// A write at the head of its queue that has no room.
    stalled: Vec<Option<Command>>,
    turn: usize,
    fetching: bool,
    link: [Ns; 2],
    buses: Vec<Ns>,
    dies: Vec<Die>,
    /// Units in the cache, and those of them that no program has been planned for.
    cached: u32,
    unplanned: u32,
    next_die: usize,
    /// Pages that are left of reads of several.
    left: std::collections::HashMap<u64, u32>,
    complete: Vec<u64>,
}

impl Nvme {
    /// An idle device with so many queues.
    pub fn new(profile: Profile, queues: usize, seed: u64) -> Nvme {
        Nvme {
            agenda: Agenda::default(),
            random: Random(seed),
            submitted: vec![VecDeque::new(); queues],
            working: vec![0; queues],
            stalled: vec![None; queues],
            turn: 0,
            fetching: false,
            link: [0; 2],
            buses: vec![0; profile.channels as usize],
            dies: (0..profile.dies()).map(|_| Die::default()).collect(),
            cached: 0,
            unplanned: 0,
            next_die: 0,
            left: Default::default(),
            complete: Vec::new(),
            profile,
        }
    }

    /// Puts a command into a queue.
    pub fn submit(&mut self, now: Ns, queue: usize, command: Command) {
        assert!(command.units > 0 && command.units <= self.profile.cache_units, "larger than the cache");
        self.submitted[queue].push_back(command);
        self.fetch(now);
    }

    /// When something happens inside next.
    pub fn next_time(&self) -> Option<Ns> {
        self.agenda.next_time()
    }

    /// Lets everything happen up to `now`, which must not lie behind [`Nvme::next_time`]. Returns the commands that completed.
    pub fn advance(&mut self, now: Ns) -> Vec<u64> {
        while let Some(event) = self.agenda.pop(now) {
            match event {
                Event::Fetched(queue, command) => {
                    self.fetching = false;
                    self.begin(now, queue, command);
                }
                Event::Sensed { die, page } => self.sensed(now, die, page),
                Event::Free(die) => {
                    self.dies[die].busy = false;
                    self.serve(now, die);
                }
                Event::Programmed { die } => {
                    self.cached -= self.profile.program_units;
                    self.dies[die].busy = false;
                    self.make_room(now);
                    self.serve(now, die);
                }
                Event::Moved { queue, id } => self.moved(queue, id),
            }
            self.fetch(now);
        }
        std::mem::take(&mut self.complete)
    }

    /// Takes the next command, of the next queue in turn that has one which may be taken.
    fn fetch(&mut self, now: Ns) {
        if self.fetching {
            return;
        }
        let count = self.submitted.len();
        let ready = |queue: &usize| {
            !self.submitted[*queue].is_empty()
                && self.working[*queue] < self.profile.window
                && self.stalled[*queue].is_none()
        };
        let Some(queue) = (1..=count).map(|i| (self.turn + i) % count).find(ready) else { return };
        self.turn = queue;
        if let Some(command) = self.submitted[queue].pop_front() {
            self.working[queue] += 1;
            self.fetching = true;
            self.agenda.at(now + self.profile.fetch_ns, Event::Fetched(queue, command));
        }
    }

    fn begin(&mut self, now: Ns, queue: usize, command: Command) {
        match command.direction {
            Direction::Read => self.begin_read(now, queue, command),
            Direction::Write if self.cached + command.units <= self.profile.cache_units => {
                self.begin_write(now, queue, command);
            }
            Direction::Write => self.stalled[queue] = Some(command),
        }
    }

    fn begin_read(&mut self, now: Ns, queue: usize, command: Command) {
        let (pages, dies) = (self.profile.page_units as u64, self.dies.len() as u64);
        let (first, last) = (command.unit / pages, (command.unit + command.units as u64 - 1) / pages);
        self.left.insert(command.id, (last - first + 1) as u32);
        for page in first..=last {
            let (from, to) = (command.unit.max(page * pages), (page + 1) * pages);
            let units = (command.unit + command.units as u64).min(to) - from;
            // Neighbouring pages lie on neighbouring channels.
            let die = (page % dies) as usize;
            self.dies[die].reads.push_back(Page { queue, id: command.id, units: units as u32 });
            self.serve(now, die);
        }
    }

    fn begin_write(&mut self, now: Ns, queue: usize, command: Command) {
        self.cached += command.units;
        self.unplanned += command.units;
        self.left.insert(command.id, 1);
        let moved = self.moves(now, Direction::Write, command.units);
        self.agenda.at(moved, Event::Moved { queue, id: command.id });
        while self.unplanned >= self.profile.program_units {
            self.unplanned -= self.profile.program_units;
            self.next_die = (self.next_die + 1) % self.dies.len();
            self.dies[self.next_die].programs += 1;
            self.serve(now, self.next_die);
        }
    }

    /// When units have moved over the link.
    fn moves(&mut self, now: Ns, direction: Direction, units: u32) -> Ns {
        let link = &mut self.link[direction as usize];
        *link = now.max(*link) + units as u64 * self.profile.link_ns;
        *link
    }

    /// Writes that waited for room go on, one queue after the other.
    fn make_room(&mut self, now: Ns) {
        let count = self.stalled.len();
        let first = self.random.below(count as u64) as usize;
        for queue in (0..count).map(|i| (first + i) % count) {
            let room = self.profile.cache_units - self.cached;
            if let Some(command) = self.stalled[queue].take_if(|c| c.units <= room) {
                self.begin_write(now, queue, command);
            }
        }
    }

    /// Begins something on a die that does nothing.
    fn serve(&mut self, now: Ns, number: usize) {
        let full = self.stalled.iter().any(Option::is_some);
        let bus = number % self.profile.channels as usize;
        let die = &mut self.dies[number];
        if die.busy {
            return;
        }
        let program = die.programs > 0 && (die.reads.is_empty() || (full && die.read));
        if program {
            (die.busy, die.read) = (true, false);
            die.programs -= 1;
            let data = self.profile.program_units as u64 * self.profile.bus_ns;
            self.buses[bus] = now.max(self.buses[bus]) + data;
            self.agenda.at(self.buses[bus] + self.profile.program_ns, Event::Programmed { die: number });
        } else if let Some(page) = die.reads.pop_front() {
            (die.busy, die.read) = (true, true);
            self.agenda.at(now + self.profile.read_ns, Event::Sensed { die: number, page });
        }
    }

    fn sensed(&mut self, now: Ns, number: usize, page: Page) {
        let bus = number % self.profile.channels as usize;
        let over = now.max(self.buses[bus]) + page.units as u64 * self.profile.bus_ns;
        self.buses[bus] = over;
        let moved = self.moves(over, Direction::Read, page.units);
        self.agenda.at(moved, Event::Moved { queue: page.queue, id: page.id });
        let full = self.stalled.iter().any(Option::is_some);
        let die = &mut self.dies[number];
        let programs_next = die.reads.is_empty() || (full && die.programs > 0);
        let free = if programs_next { over } else { now };
        self.agenda.at(free, Event::Free(number));
    }

    fn moved(&mut self, queue: usize, id: u64) {
        if let Some(left) = self.left.get_mut(&id) {
            *left -= 1;
            if *left == 0 {
                self.left.remove(&id);
                self.working[queue] -= 1;
                self.complete.push(id);
            }
        }
    }
}

//! A simulated controller, the driver on it, and memory.

use media::nvme::fake::{Config, FakeController};
use media::nvme::{NvmeMedia, Options};
use media::{Arena, ArenaId, BufRef, Completion, Media, MediaError, Op, Request, Wait};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub const SIZE: u64 = 8 << 20;
pub const ARENA: u64 = 4 << 20;

pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

pub struct Rig {
    pub media: NvmeMedia,
    pub controller: Arc<FakeController>,
    pub arena: Arc<Arena>,
    pub id: ArenaId,
}

pub fn patient() -> Options {
    Options { queues: 2, depth: 32, ..Options::default() }
}

/// Short times, for commands that are lost.
pub fn impatient() -> Options {
    Options { timeout: Duration::from_millis(250), admin_timeout: Duration::from_millis(400), ..patient() }
}

/// Controllers of many kinds.
pub fn kinds() -> Vec<Config> {
    let all = Config::new(SIZE);
    let small = Config { sgl: false, queues: 2, entries_max: 3, ..all.clone() };
    vec![
        all.clone(),
        Config::least(SIZE),
        Config { mdts: 1, ..small.clone() },
        Config { mdts: 2, ..small },
        Config { lba: 4096, atomic_blocks: 1, sgl: false, ..all.clone() },
        Config { atomic_blocks: 3, sgl: false, shadow_doorbells: true, dstrd: 1, ..all.clone() },
        Config { nsid: 7, mdts: 0, write_zeroes: false, interrupts: false, volatile_cache: false, ..all },
    ]
}

impl Rig {
    pub fn new(config: Config, options: Options) -> Rig {
        Rig::on(FakeController::new(config), options)
    }

    pub fn on(controller: Arc<FakeController>, options: Options) -> Rig {
        let media = NvmeMedia::start(controller.clone(), options).unwrap();
        let arena = Arc::new(Arena::new(ARENA as usize).unwrap());
        let id = media.register(arena.clone()).unwrap();
        Rig { media, controller, arena, id }
    }

    pub fn buf(&self, offset: u64, len: u32) -> BufRef {
        BufRef { arena: self.id, offset, len }
    }

    /// What stands in memory there.
    pub fn bytes(&self, bufs: &[BufRef]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for buf in bufs {
            let at = bytes.len();
            bytes.resize(at + buf.len as usize, 0);
            self.arena.copy_out(buf.offset, &mut bytes[at..]);
        }
        bytes
    }

    pub fn finish(&self, n: usize) -> Vec<Completion> {
        self.media.kick();
        let (mut done, start) = (Vec::new(), Instant::now());
        while done.len() < n {
            self.media.reap(&mut done, Wait::For(Some(Duration::from_secs(1))));
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "requests do not end: {:?}",
                self.media.health()
            );
        }
        done.sort_by_key(|c| c.token);
        done
    }

    pub fn one(&self, request: Request) -> Result<(), MediaError> {
        self.media.submit(request);
        self.finish(1).pop().unwrap().result
    }

    pub fn write(&self, place: u64, byte: u8) -> Result<(), MediaError> {
        self.arena.copy_in(0, &[byte; 4096]);
        self.one(Request::transfer(Op::Write, place, self.buf(0, 4096), 1))
    }

    pub fn read(&self, place: u64) -> Result<u8, MediaError> {
        self.one(Request::transfer(Op::Read, place, self.buf(8192, 4096), 2))?;
        let mut back = [0; 4096];
        self.arena.copy_out(8192, &mut back);
        assert!(back.iter().all(|b| *b == back[0]), "a page is torn");
        Ok(back[0])
    }

    pub fn flush(&self) -> Result<(), MediaError> {
        self.one(Request::flush(3))
    }

    /// Ends it; the driver has kept the rules and left nothing behind.
    pub fn end(self) -> Arc<FakeController> {
        drop(self.media);
        assert_eq!(self.controller.violations(), [""; 0]);
        assert_eq!(self.controller.mapped(), 0);
        self.controller
    }
}

pub fn errno(result: Result<impl std::fmt::Debug, MediaError>) -> i32 {
    result.unwrap_err().errno()
}

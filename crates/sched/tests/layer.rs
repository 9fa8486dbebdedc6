//! The order layer over the simulated flash device: order survives power failures, failures latch, a medium without barriers is
//! refused.

use media::flash::{self, Fault, Lies, Order};
use media::{Arena, ArenaId, BufRef, Completion, Media, Op, RamMedia, Request, SimFlash, Wait};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sched::{Carrier, Config, OrderError, OrderLayer, Refusal};
use std::sync::Arc;

const BLOCK: u32 = 4096;
const SIZE: u64 = 4 << 20;
const CARRIER: u64 = SIZE - BLOCK as u64;

struct Rig {
    flash: Arc<SimFlash>,
    layer: OrderLayer,
    arena: Arc<Arena>,
    id: ArenaId,
}

fn device(seed: u64, lies: Lies) -> flash::Config {
    let order = Order::Shuffled { batch: 3 };
    flash::Config { barrier: true, order, seed, lies, ..flash::Config::new(SIZE) }
}

impl Rig {
    fn new(config: flash::Config) -> Rig {
        let flash = Arc::new(SimFlash::new(config).unwrap());
        let arena = Arc::new(Arena::new(SIZE as usize).unwrap());
        let id = flash.register(arena.clone()).unwrap();
        let carrier = Carrier { offset: CARRIER, buf: BufRef { arena: id, offset: CARRIER, len: BLOCK } };
        let config = Config { queued_max: 1000, ..Config::default() };
        let layer = OrderLayer::new(flash.clone(), config, carrier).unwrap();
        Rig { flash, layer, arena, id }
    }

    /// A write of the block `block`, whose bytes are `byte`.
    fn write(&self, block: u64, byte: u8) -> Request {
        let offset = block * BLOCK as u64;
        self.arena.copy_in(offset, &[byte; BLOCK as usize]);
        Request::transfer(Op::Write, offset, BufRef { arena: self.id, offset, len: BLOCK }, block)
    }

    fn reap(&self, all: &mut Vec<Completion>) {
        self.layer.reap(all, Wait::For(None));
    }
}

fn byte(flash: &SimFlash, block: u64) -> u8 {
    let mut byte = [0];
    flash.peek(block * BLOCK as u64, &mut byte);
    byte[0]
}

/// Writes 20 epochs of 1 to 4 blocks, cuts the power somewhere, and says whether what is left is a prefix of epochs.
fn prefix_survives(seed: u64, lies: Lies) -> bool {
    let mut random = StdRng::seed_from_u64(seed);
    let rig = Rig::new(device(seed, lies));
    let mut epochs = vec![1];
    let mut reaped = Vec::new();
    for block in 1..60 {
        let epoch = rig.layer.submit_ordered(rig.write(block * 2, block as u8)).unwrap();
        epochs.push(epoch);
        if random.random_ratio(1, 3) {
            rig.layer.barrier();
        }
        if random.random_ratio(1, 4) {
            rig.reap(&mut reaped);
        }
    }
    rig.layer.kick();
    let image = rig.flash.crash_image(|_, _| random.random_ratio(2, 3));
    let kept: Vec<bool> = (1..60).map(|block| byte(&image, block * 2) == block as u8).collect();
    let lost = kept.iter().position(|kept| !kept).map_or(u64::MAX, |i| epochs[i + 1]);
    kept.iter().enumerate().all(|(i, kept)| !kept || epochs[i + 1] <= lost)
}

#[test]
fn power_failures_leave_a_prefix_of_epochs() {
    for seed in 0..300 {
        assert!(prefix_survives(seed, Lies::default()), "seed {seed}");
    }
    let liar = Lies { barrier: true, ..Lies::default() };
    let caught = (0..300).filter(|&seed| !prefix_survives(seed, liar)).count();
    assert!(caught > 100, "a device that ignores barriers was noticed in {caught} of 300 runs only");
}

#[test]
fn all_that_was_submitted_completes_under_its_own_token() {
    let rig = Rig::new(device(1, Lies::default()));
    for block in 0..200 {
        let request = rig.write(block, block as u8);
        match block % 3 {
            0 => rig.layer.submit(request).unwrap(),
            _ => {
                assert_eq!(rig.layer.submit_ordered(request), Ok(1 + (block - 1) / 7))
            }
        }
        if block % 7 == 0 {
            rig.layer.barrier();
        }
    }
    rig.layer.submit(Request::flush(1000)).unwrap();
    let mut all = Vec::new();
    for _ in 0..1000 {
        rig.reap(&mut all);
    }
    let mut tokens: Vec<u64> = all.iter().map(|c| c.token).collect();
    tokens.sort_unstable();
    assert!(all.iter().all(|c| c.result.is_ok()));
    assert_eq!(tokens, (0..200).chain([1000]).collect::<Vec<_>>());
    assert!((0..200).all(|block| byte(&rig.flash, block) == block as u8));
    let c = rig.layer.counters();
    assert!(c.merged > 0 && c.dispatched < 201, "adjacent blocks were not merged");
    // Every seventh block has a barrier behind it; the first of these 29 has nothing ordered before it.
    assert_eq!(c.barriers, 28);
}

#[test]
fn a_delimiter_is_a_write_of_the_carrier() {
    let rig = Rig::new(device(2, Lies::default()));
    rig.arena.copy_in(CARRIER, &[0xCA; BLOCK as usize]);
    rig.layer.submit_ordered(rig.write(1, 1)).unwrap();
    rig.layer.kick();
    assert_eq!(rig.layer.barrier(), 1);
    rig.layer.submit_ordered(rig.write(2, 2)).unwrap();
    let mut all = Vec::new();
    (0..10).for_each(|_| rig.reap(&mut all));
    assert_eq!(all.len(), 2, "nobody sees the carrier's completion");
    assert_eq!((byte(&rig.flash, CARRIER / BLOCK as u64), rig.layer.counters().delimiters), (0xCA, 1));
    let lost = rig.flash.crash_image(|write, _| write.offset != BLOCK as u64);
    assert_eq!(
        (byte(&lost, 1), byte(&lost, 2)),
        (0, 0),
        "the second epoch does not survive without the first"
    );
}

#[test]
fn a_failed_write_stops_what_is_ordered_behind_it() {
    let rig = Rig::new(device(3, Lies::default()));
    let block = BLOCK as u64;
    rig.flash.inject(Fault::bad_range(Some(Op::Write), 2 * block..3 * block));
    // More than the device takes at once, an epoch each: the last ones wait in the layer when the first fails.
    for number in 1..=400 {
        rig.layer.submit_ordered(rig.write(2 * number, 1)).unwrap();
        rig.layer.barrier();
    }
    rig.layer.submit(rig.write(1, 4)).unwrap();
    let mut all = Vec::new();
    (0..1000).for_each(|_| rig.reap(&mut all));
    let failed = all.iter().filter(|c| c.result.is_err()).count();
    assert_eq!(all.len(), 401);
    assert!(
        (100..300).contains(&failed),
        "{failed} failed: the first, and those that the device did not have yet"
    );
    assert!(all.iter().any(|c| c.token == 2 && c.result.is_err()));
    assert!(all.iter().any(|c| c.token == 1 && c.result.is_ok()));
    let refused = rig.layer.submit_ordered(rig.write(2, 2)).unwrap_err();
    assert!(matches!(refused, OrderError::Latched(_)));
    assert_eq!(refused.errno(), libc::EIO);
    rig.layer.submit(rig.write(3, 3)).unwrap();
}

#[test]
fn media_and_requests_that_do_not_fit_are_refused() {
    let ram = Arc::new(RamMedia::new(SIZE).unwrap());
    let arena = Arc::new(Arena::new(BLOCK as usize).unwrap());
    let buf = BufRef { arena: ram.register(arena).unwrap(), offset: 0, len: BLOCK };
    let refused = OrderLayer::new(ram, Config::default(), Carrier { offset: 0, buf }).err().unwrap();
    assert!(matches!(refused, OrderError::NoBarrier { .. }));
    assert_eq!(refused.errno(), libc::EOPNOTSUPP);

    let flash = Arc::new(SimFlash::new(device(0, Lies::default())).unwrap());
    for offset in [1, SIZE] {
        let refused =
            OrderLayer::new(flash.clone(), Config::default(), Carrier { offset, buf }).err().unwrap();
        assert_eq!(refused.errno(), libc::EINVAL);
    }
    let rig = Rig::new(device(0, Lies::default()));
    assert_eq!(rig.layer.submit_ordered(Request::flush(0)), Err(OrderError::Refused(Refusal::NotOrderable)));
    rig.layer.submit_ordered(rig.write(1, 1)).unwrap();
    assert_eq!(rig.layer.submit_ordered(rig.write(1, 1)), Err(OrderError::Refused(Refusal::Overlap)));
}

//! Random data operations on one file of the engine, against a vector of bytes (`sim::fsx`): a million of them, with a cache so
//! small that pages are written back and thrown out all the time, and checkpoints in between.

mod rig;

use rig::Setup;
use sim::fsx::{Config, OverContract, run};

fn file(strict: bool, seeds: std::ops::Range<u64>, ops: u64) {
    for seed in seeds {
        let setup = Setup { cache_bytes: 1 << 20, dirty_bytes_max: 256 << 10, ..Setup::new(strict, seed) };
        let (volume, driver) = setup.start(setup.make()).unwrap();
        let mut target = OverContract::new(volume.clone(), driver.clone(), b"file").unwrap();
        let config = Config { seed, ops, size_max: 2 << 20, ..Config::default() };
        let compared = run(&mut target, config).unwrap_or_else(|failure| panic!("{failure}"));
        target.close().unwrap();
        sim::Driver::block_on(&driver, volume.close()).unwrap();
        println!("seed {seed}: {compared} bytes compared, {:?}", volume.counters());
    }
}

#[test]
fn plain() {
    file(false, 1..5, 125_000);
}

#[test]
fn strict() {
    file(true, 11..15, 125_000);
}

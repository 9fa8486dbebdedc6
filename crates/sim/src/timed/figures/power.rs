//! Power failures (beside the paper's table 2): which device and which system keep what they promise.

use super::{Figure, Size, Table, whole};
use crate::timed::clock::MS;
use crate::timed::journal::{Load, System};
use crate::timed::power::{Tally, cut_epochs, cut_journal};
use crate::timed::profile::{Barrier, Profile};

/// Power failures on each device, with each treatment of barriers.
pub fn power(size: Size) -> Figure {
    let mut table = Table::new(&[
        "device",
        "barrier flag",
        "epochs: cuts",
        "broken",
        "journal: cuts each",
        "EXT4-DR broken",
        "EXT4-OD",
        "BFS-DR",
        "BFS-OD",
        "copy-OD",
    ]);
    for profile in Profile::all() {
        for barrier in Barrier::HONEST.into_iter().chain([Barrier::Ignored]) {
            let profile = profile.clone().with(barrier);
            let runs = size.of(50);
            let epochs = (0..runs)
                .map(|seed| cut_epochs(&profile, &profile.host(), seed, 40 * MS, 20))
                .fold(Tally::default(), Tally::join);
            let runs = size.of(50);
            let systems = [System::EXT4_DR, System::EXT4_OD, System::BFS_DR, System::BFS_OD, System::COPY_OD];
            let [a, b, c, d, e] = systems.map(|system| {
                let run = |seed| {
                    let load = Load { threads: 4, seed, ..Load::new(0) };
                    cut_journal(&profile, &profile.host(), system, load, 40 * MS, 20)
                };
                whole((0..runs).map(run).fold(Tally::default(), Tally::join).broken as f64)
            });
            let (all, broken) = (whole(epochs.cuts as f64), whole(epochs.broken as f64));
            let cuts = whole(20.0 * runs as f64);
            table.row([
                profile.name.to_string(),
                barrier.name().to_string(),
                all,
                broken,
                cuts,
                a,
                b,
                c,
                d,
                e,
            ]);
        }
    }
    Figure { title: "Power failures: how many left something that must not be", table, plots: Vec::new() }
}

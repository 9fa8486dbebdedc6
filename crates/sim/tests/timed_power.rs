//! Power failures on the timed flash device: honest devices keep epochs and flushes in each of the paper's three ways, a device that
//! ignores barriers is caught, and so is a file system that expects order of a device without asking for it.

use sim::timed::clock::MS;
use sim::timed::journal::{Load, System};
use sim::timed::power::{Tally, cut_epochs, cut_journal};
use sim::timed::{Barrier, Profile};

fn epochs(profile: &Profile) -> Tally {
    (0..10)
        .map(|seed| cut_epochs(profile, &profile.host(), seed, 40 * MS, 30))
        .fold(Tally::default(), Tally::join)
}

#[test]
fn epochs_survive_in_each_way_to_honour_the_flag() {
    for profile in Profile::all() {
        for barrier in Barrier::HONEST {
            let tally = epochs(&profile.clone().with(barrier));
            assert_eq!(
                (tally.cuts, tally.broken),
                (300, 0),
                "{} {barrier:?}: {:?}",
                profile.name,
                tally.first
            );
        }
    }
}

#[test]
fn a_device_that_ignores_the_flag_is_caught() {
    for profile in Profile::all() {
        let tally = epochs(&profile.clone().with(Barrier::Ignored));
        // Where programs are slow the flushes of the load hide it often.
        assert!(tally.broken >= 15, "{}: caught {} times in 300", profile.name, tally.broken);
        let why = tally.first.unwrap_or_default();
        assert!(why.contains("is kept") && why.contains("is lost"), "{why}");
    }
}

fn journal(profile: &Profile, system: System) -> Tally {
    let run = |seed| {
        let load = Load { threads: 4, seed, ..Load::new(0) };
        cut_journal(profile, &profile.host(), system, load, 40 * MS, 20)
    };
    (0..5).map(run).fold(Tally::default(), Tally::join)
}

#[test]
fn journals_can_be_replayed_after_any_power_failure() {
    for profile in Profile::all() {
        for barrier in Barrier::HONEST {
            let profile = profile.clone().with(barrier);
            for system in [System::EXT4_DR, System::BFS_DR, System::BFS_OD, System::COPY_DR, System::COPY_OD]
            {
                let tally = journal(&profile, system);
                assert_eq!(
                    (tally.cuts, tally.broken),
                    (100, 0),
                    "{} {barrier:?} {}: {:?}",
                    profile.name,
                    system.name(),
                    tally.first
                );
            }
        }
    }
}

#[test]
fn a_journal_without_flushes_or_barriers_is_caught() {
    // ext4 with flushes needs no barriers; with nobarrier, and dual-mode journaling over a liar, what is left may not be replayed.
    let liar = Profile::desktop().with(Barrier::Ignored);
    assert_eq!(journal(&liar, System::EXT4_DR).broken, 0);
    for system in [System::EXT4_OD, System::BFS_OD, System::COPY_OD] {
        let tally = journal(&liar, system);
        assert!(tally.broken >= 5, "{}: caught {} times in 100", system.name(), tally.broken);
    }
}

//! The same calls at random, of several processes that share files by name and by fork, in an ordinary directory and on a volume: each must answer the same.
//!
//! What a call answers depends on what was posted, kept or lent before, by this process or another one; here such states come together that nobody thought
//! of. A script of python3 (random_calls.py); skipped where there is none. `FREEHOLD_SEEDS=N` runs more (scripts/calls-seeds.sh).

use crate::rig::Rig;
use std::path::Path;

const STEPS: usize = 1500;

#[test]
fn answers_are_those_of_an_ordinary_directory() {
    let Some(rig) = Rig::with_python() else { return };
    let script = rig.work.path().join("random_calls.py");
    std::fs::write(&script, include_str!("random_calls.py")).unwrap();
    let seeds = std::env::var("FREEHOLD_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(12);
    for seed in 0..seeds {
        let answers =
            [("plain", rig.plain.path()), ("volume", Path::new(crate::rig::MOUNT))].map(|(place, at)| {
                let answers = rig.work.path().join(place);
                let call =
                    format!("python3 {} $T/r{seed} {seed} {STEPS} > {}", script.display(), answers.display());
                let out = rig.bash(&call, at);
                assert!(out.status.success(), "{place}, seed {seed}: {out:?}");
                std::fs::read_to_string(answers).unwrap()
            });
        let [plain, volume] = answers.each_ref().map(|all| all.lines());
        assert!(plain.clone().count() >= STEPS);
        if let Some((at, (plain, volume))) = plain.clone().zip(volume).enumerate().find(|(_, (a, b))| a != b)
        {
            let before: Vec<_> = answers[0].lines().take(at).skip(at.saturating_sub(40)).collect();
            panic!(
                "seed {seed}, after\n{}\nan ordinary directory:\n{plain}\nthe volume:\n{volume}",
                before.join("\n")
            );
        }
        assert_eq!(answers[0], answers[1]);
    }
}

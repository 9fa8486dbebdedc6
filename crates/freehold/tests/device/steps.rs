//! Claims and releases that end in their middle: by a kill at each step, or because a step fails.

use super::*;

/// Machines to interrupt: with IOMMU and without, with a driver before and without.
fn kinds() -> Vec<(Fake, bool)> {
    let bare = Fake::new();
    bare.controller(A, None);
    let idle = two();
    idle.unbind(A);
    vec![(two(), false), (bare, true), (idle, false)]
}

#[test]
fn killed_at_every_step_of_a_claim() {
    for (fake, bare) in kinds() {
        let before = fake.everything();
        let claim = || fake.machine().claim(&[at(A)], bare);
        for step in 0.. {
            let done = fake.ending(step, End::Dies, claim);
            if step > 0 {
                // One that was killed can be seen.
                let expected = if done.is_some() { Claim::Stands } else { Claim::Interrupted };
                assert_eq!(fake.machine().list().unwrap()[0].claim, Some(expected), "killed at step {step}");
            }
            fake.machine().release(at(A)).unwrap();
            assert_eq!(fake.everything(), before, "killed at step {step}");
            // Instead of giving it back: claiming it after all.
            if done.is_none() {
                assert!(fake.ending(step, End::Dies, claim).is_none());
                claim().unwrap();
                assert_eq!(fake.driver(A).as_deref(), Some("vfio-pci"));
                assert_eq!(fake.machine().list().unwrap()[0].claim, Some(Claim::Stands));
                fake.machine().release(at(A)).unwrap();
                assert_eq!(fake.everything(), before, "killed at step {step}, and claimed again");
                continue;
            }
            assert!(step >= 4, "only {step} steps were tried");
            break;
        }
    }
}

#[test]
fn killed_at_every_step_of_a_release() {
    for (fake, bare) in kinds() {
        let before = fake.everything();
        let claim = || fake.machine().claim(&[at(A)], bare);
        // After a claim that was killed at step `first`, or completed.
        for first in 0.. {
            let mut is_whole = false;
            for second in 0.. {
                is_whole = fake.ending(first, End::Dies, claim).is_some();
                let done = fake.ending(second, End::Dies, || fake.machine().release(at(A)).unwrap());
                if done.is_none() && second > first {
                    // Instead of going on: claiming it again.
                    claim().unwrap();
                    assert_eq!(fake.machine().list().unwrap()[0].claim, Some(Claim::Stands));
                }
                fake.machine().release(at(A)).unwrap();
                assert_eq!(fake.everything(), before, "killed at steps {first} and {second}");
                if done.is_some() {
                    break;
                }
            }
            if is_whole {
                break;
            }
        }
    }
}

#[test]
fn steps_that_fail_are_undone() {
    for (fake, bare) in kinds() {
        let before = fake.everything();
        for step in 0.. {
            let done = fake.ending(step, End::Fails, || fake.machine().claim(&[at(A)], bare)).unwrap();
            if done.is_ok() {
                fake.machine().release(at(A)).unwrap();
                break;
            }
            assert_eq!(done.unwrap_err().errno(), libc::EIO);
            assert_eq!(fake.everything(), before, "failed at step {step}");
        }
        // Undoing fails, too: it is said, and a release puts it in order.
        for step in 1.. {
            let done = fake.ending(step, End::KeepsFailing, || fake.machine().claim(&[at(A)], bare)).unwrap();
            if done.is_ok() {
                fake.machine().release(at(A)).unwrap();
                break;
            }
            let e = done.unwrap_err();
            assert!(
                matches!(e, DeviceError::Stranded { .. })
                    && e.to_string().contains("freehold device release"),
                "{e}"
            );
            fake.machine().release(at(A)).unwrap();
            assert_eq!(fake.everything(), before, "failed from step {step} on");
        }
    }
}

#[test]
fn of_several_all_or_none() {
    let fake = two();
    let before = fake.everything();
    let both = [at(A), at(B)];
    fake.machine().claim(&both, false).unwrap();
    let steps = fake.steps();
    both.iter().for_each(|a| drop(fake.machine().release(*a).unwrap()));
    for step in 0..steps {
        fake.ending(step, End::Fails, || fake.machine().claim(&both, false)).unwrap().unwrap_err();
        assert_eq!(fake.everything(), before, "failed at step {step}");
    }
    // The second is in use: the first is not touched.
    fake.process(77, "fio", "/dev/nvme5n1p1");
    let used = fake.everything();
    assert_eq!(fake.machine().claim(&both, false).unwrap_err().errno(), libc::EBUSY);
    assert_eq!(fake.everything(), used);
}

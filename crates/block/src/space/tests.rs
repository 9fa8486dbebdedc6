use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

proptest! {
    #[test]
    fn never_gives_a_block_twice(ops in prop::collection::vec((0u8..5, 1u32..700), 1..200)) {
        let mut space = Space::new(8);
        let mut used: HashSet<u64> = (0..512).collect();
        let mut runs: Vec<Run> = Vec::new();
        for (op, n) in ops {
            let got = match op {
                0 => space.alloc(n, None),
                1 => {
                    let goal = runs.last().map(|r| BlockNo(r.block.0 + r.count as u64));
                    space.alloc_growing(n, goal, 1 << (n % 10))
                }
                2 => space.alloc_segments(n / 256 + 1, None).map(|(s, c)| Run { block: s.first_block(), count: c * 512 }),
                3 => space.alloc_exact(n.min(512)),
                _ => {
                    if !runs.is_empty() {
                        let run = runs.swap_remove(n as usize % runs.len());
                        (run.block.0..run.block.0 + run.count as u64).for_each(|b| { used.remove(&b); });
                        if n % 2 == 0 { space.free(run) } else {
                            space.quarantine(run, 5);
                            space.release(5);
                        }
                    }
                    None
                }
            };
            if let Some(run) = got {
                for b in run.block.0..run.block.0 + run.count as u64 {
                    prop_assert!(b < space.total() && used.insert(b), "block {} given twice", b);
                }
                runs.push(run);
            }
            prop_assert_eq!(space.free_now(), space.total() - used.len() as u64);
            for b in 0..space.total() {
                prop_assert_eq!(space.is_free(Run { block: BlockNo(b), count: 1 }), !used.contains(&b));
            }
        }
    }
}

#[test]
fn files_that_grow_side_by_side_stay_in_few_pieces() {
    let mut s = Space::new(40);
    let mut ends: [Option<BlockNo>; 4] = [None; 4];
    let mut pieces = [0; 4];
    for blocks in 0..2000u32 {
        for file in 0..4 {
            let room = if blocks == 0 { 1 } else { (2 * blocks).next_power_of_two().clamp(8, SEG) };
            let run = s.alloc_growing(1, ends[file], room).unwrap();
            pieces[file] += (ends[file] != Some(run.block)) as u32;
            ends[file] = Some(BlockNo(run.block.0 + 1));
        }
    }
    assert!(pieces.iter().all(|&n| n <= 16), "{pieces:?}");
}

#[test]
fn quarantine_holds_until_its_epoch_is_recorded() {
    let mut s = Space::new(4);
    let run = s.alloc(10, None).unwrap();
    let free = s.free_now();
    s.quarantine(run, 7);
    assert!(s.release(6).is_empty());
    assert_eq!((s.free_now(), s.available()), (free, free + 10));
    assert_eq!(s.release(9), [run]);
    assert_eq!(s.free_now(), free + 10);
}

#[test]
fn the_next_free_block() {
    let mut space = Space::new(8);
    let first = SegNo(2).first_block();
    let run = |at: u32, count| Run { block: BlockNo(first.0 + at as u64), count };
    assert_eq!(space.next_free(2, 100), Some(100), "of a free segment");
    let all = space.alloc_segments(1, Some(SegNo(2))).unwrap();
    assert_eq!((all, space.next_free(2, 0)), ((SegNo(2), 1), None));
    let free = [(3, 1), (63, 2), (127, 1), (192, 64), (511, 1)];
    free.iter().for_each(|&(at, count)| space.free(run(at, count)));
    for from in 0..SEG {
        let naive = (from..SEG).find(|&at| space.free_run_at(run(at, 1).block, 1).is_some());
        assert_eq!(space.next_free(2, from), naive, "from {from} on");
    }
    assert_eq!(space.best_run(2, 100), Some(run(192, 64)));
    assert_eq!(space.best_run(2, 2), Some(run(63, 2)));
    assert_eq!(space.best_run(2, 1), Some(run(3, 1)));
}

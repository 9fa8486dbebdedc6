use super::*;

fn cache(frames: usize) -> PageCache {
    PageCache::new(Arc::new(Arena::new(frames * PAGE).unwrap()))
}

fn key(page: u64) -> PageKey {
    PageKey { file: 7, page }
}

/// Brings pages in, as reads do.
fn bring_in(c: &mut PageCache, key: PageKey, max: usize) -> (FrameNo, usize) {
    let (first, n) = c.insert_run(key, max).unwrap();
    (0..n as u32).for_each(|i| c.set_valid(FrameNo(first.0 + i)));
    (first, n)
}

/// Reads a page, which is brought in if it is not there. Whether it was there.
fn read(c: &mut PageCache, key: PageKey) -> bool {
    let there = c.lookup(key).is_some();
    if !there {
        bring_in(c, key, 1);
        c.lookup(key);
    }
    there
}

#[test]
fn runs_are_neighbours_and_what_is_used_again_stays() {
    let mut c = cache(8);
    assert_eq!(bring_in(&mut c, key(0), 8), (FrameNo(0), 8));
    for _ in 0..2 {
        c.lookup(key(2));
        c.lookup(key(5));
    }
    assert_eq!(bring_in(&mut c, key(100), 8), (FrameNo(0), 2), "stops at the page that was used");
    assert!(c.find(key(2)).is_some() && c.find(key(0)).is_none());
    assert_eq!(c.counters().evictions, 2);
    c.check_queues();
}

#[test]
fn what_is_read_once_drives_out_nothing_that_is_used() {
    let mut c = cache(1000);
    let hot = || (0..700).map(key);
    for _ in 0..3 {
        hot().for_each(|key| _ = read(&mut c, key));
    }
    for page in 0..10_000 {
        read(&mut c, key(10_000 + page));
    }
    let lost = hot().filter(|&key| !read(&mut c, key)).count();
    assert!(lost <= 700 / 200, "{lost}");
    // And what is used no longer goes.
    for _ in 0..20 {
        (0..700).for_each(|page| _ = read(&mut c, key(50_000 + page)));
    }
    let there = (0..700).filter(|&page| c.find(key(50_000 + page)).is_some()).count();
    assert!(there >= 650, "{there}");
    c.check_queues();
}

#[test]
fn what_was_read_ahead_is_there_when_it_is_wanted() {
    let mut c = cache(1000);
    for _ in 0..3 {
        (0..800).for_each(|page| _ = read(&mut c, key(page)));
    }
    // Four readers, each of whom has 32 pages ahead of him; the small queue's share is less than that.
    let file = |reader: u64, page| PageKey { file: 100 + reader, page };
    for page in 0..2000 {
        for reader in 0..4 {
            if page % 32 == 0 {
                let mut at = page;
                while at < page + 32 {
                    at += bring_in(&mut c, file(reader, at), (page + 32 - at) as usize).1 as u64;
                }
            }
            assert!(c.lookup(file(reader, page)).is_some(), "{page}");
        }
    }
    c.check_queues();
}

#[test]
fn a_frame_costs_a_bounded_number_of_steps() {
    let mut c = cache(20_000);
    for _ in 0..5 {
        (0..20_000).for_each(|page| _ = read(&mut c, key(page)));
    }
    let moved = |c: &PageCache| c.frames.iter().filter(|frame| frame.place == Place::Main).count();
    for (frame, page) in (1..=10).zip(20_000..) {
        assert!(!read(&mut c, key(page)));
        assert!(moved(&c) <= frame * 256, "all others are used a lot");
    }
    c.check_queues();
}

#[test]
fn to_read_a_page_in_pieces_is_one_use() {
    let mut c = cache(1000);
    (0..900).for_each(|page| _ = (read(&mut c, key(page)), read(&mut c, key(page))));
    for page in 0..5000 {
        (0..4).for_each(|_| _ = read(&mut c, key(10_000 + page)));
    }
    assert!((0..900).all(|page| c.find(key(page)).is_none()), "neither was used again");
}

#[test]
fn pages_stand_where_they_belong_whatever_happens() {
    let mut c = cache(64);
    let mut seed = 1u64;
    let mut draw = |n: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % n
    };
    let mut pinned = Vec::new();
    for step in 0..200_000 {
        let key = key(draw(200));
        match (draw(12), c.find(key)) {
            (0..6, Some(_)) => _ = c.lookup(key),
            (0..6, None) => {
                let max =
                    (0..8).take_while(|i| c.find(PageKey { page: key.page + i, ..key }).is_none()).count();
                if let Some((first, n)) = c.insert_run(key, max) {
                    for frame in (first.0..).take(n).map(FrameNo) {
                        match draw(4) {
                            0 => c.remove(frame),
                            1 => {
                                c.set_dirty(frame, true);
                                c.set_valid(frame);
                            }
                            _ => c.set_valid(frame),
                        }
                    }
                }
            }
            (6, Some(f)) if pinned.len() < 16 => {
                c.pin(f);
                pinned.push(f);
            }
            (7, _) if !pinned.is_empty() => c.unpin(pinned.swap_remove(draw(pinned.len() as u64) as usize)),
            (8, Some(f)) => c.remove(f),
            (9, Some(f)) if c.dirty() < 32 => c.set_dirty(f, true),
            (10, Some(f)) => c.set_dirty(f, false),
            (11, Some(f)) if c.is_pinned(f) => _ = c.replace(f, step % 2 == 0),
            (11, None) if draw(500) == 0 => c.drop_clean(),
            _ => {}
        }
        if step % 64 == 0 {
            c.check_queues();
        }
    }
}

#[test]
fn dirty_and_pinned_frames_stay() {
    let mut c = cache(2);
    let a = bring_in(&mut c, key(0), 1).0;
    let b = bring_in(&mut c, key(1), 1).0;
    c.set_dirty(a, true);
    c.pin(b);
    assert_eq!(c.dirty(), 1);
    assert!(c.insert(key(2)).is_none());
    c.unpin(b);
    assert_eq!(c.insert(key(2)), Some(b));
    c.check_queues();
}

#[test]
fn a_pinned_page_is_replaced_not_changed() {
    let mut c = cache(4);
    let a = c.insert(key(0)).unwrap();
    c.set_valid(a);
    c.set_dirty(a, true);
    c.arena().copy_in(a.offset(), b"old");
    c.pin(a);
    let b = c.replace(a, true).unwrap();
    c.arena().copy_in(b.offset(), b"new");
    assert_eq!(c.find(key(0)), Some(b));
    assert!(c.is_dirty(b) && c.dirty() == 1);
    let mut old = [0; 3];
    c.arena().copy_out(a.offset(), &mut old);
    assert_eq!(&old, b"old");
    c.unpin(a);
    assert_eq!(c.free.free(), 3, "the old frame was freed with its pin");
}

#[test]
fn a_copy_of_what_is_on_its_way_to_the_medium_stays_until_it_is_there() {
    let mut c = cache(32);
    let written = bring_in(&mut c, key(0), 1).0;
    c.set_dirty(written, true);
    c.set_dirty(written, false);
    c.pin(written);
    // Somebody wants to change it, and somebody else has what is there; then neither goes on.
    let copy = c.replace(written, true).unwrap();
    c.pin(copy);
    let second = c.replace(copy, true).unwrap();
    c.unpin(copy);
    c.drop_clean();
    for page in 100..1000 {
        read(&mut c, key(page));
        assert_eq!(c.find(key(0)), Some(second), "the medium does not have it yet");
    }
    c.check_queues();
    c.unpin(written);
    (1000..2000).for_each(|page| _ = read(&mut c, key(page)));
    assert_eq!(c.find(key(0)), None);
}

#[test]
fn pins_dropped_outside_are_noticed() {
    let mut c = cache(1);
    let a = c.insert(key(0)).unwrap();
    c.pin(a);
    c.remove(a);
    assert!(c.insert(key(1)).is_none());
    c.pins().clone().unpin(a);
    assert!(c.insert(key(1)).is_some());
}

#[test]
fn used_frames_come_before_fresh_ones_unless_they_are_scattered() {
    let mut c = cache(1024);
    let (first, n) = c.insert_run(key(0), 256).unwrap();
    assert_eq!((first, n), (FrameNo(0), 256));
    // Every other frame of the first half is free again.
    (0..64).for_each(|i| c.remove(FrameNo(2 * i)));
    assert_eq!(c.insert_run(key(1000), 1).unwrap().0, FrameNo(0));
    assert_eq!(c.insert_run(key(2000), 64).unwrap(), (FrameNo(256), 64), "one long run of fresh frames");
    // And the second half: it is found, if not at once.
    (128..256).for_each(|i| c.remove(FrameNo(i)));
    let mut runs = (0..16).map(|i| c.insert_run(key(3000 + 64 * i), 64).unwrap());
    assert!(runs.any(|run| run == (FrameNo(128), 64)));
    assert_eq!(c.insert_run(key(9000), 512).unwrap(), (FrameNo(192), 64));
    // What is scattered is used up before anything is thrown out.
    let mut at = 10_000;
    while c.free.free() > 0 {
        at += bring_in(&mut c, key(at), 512).1 as u64;
    }
    assert_eq!(c.counters().evictions, 0);
    c.insert_run(key(at), 512).unwrap();
    assert!(c.counters().evictions > 0);
}

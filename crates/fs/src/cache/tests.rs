use super::*;

fn cache(frames: usize) -> PageCache {
    PageCache::new(Arc::new(Arena::new(frames * PAGE).unwrap()))
}

fn key(page: u64) -> PageKey {
    PageKey { file: 7, page }
}

#[test]
fn runs_are_neighbours_and_eviction_gives_a_second_chance() {
    let mut c = cache(8);
    let (first, n) = c.insert_run(key(0), 8).unwrap();
    assert_eq!((first, n), (FrameNo(0), 8));
    c.lookup(key(2));
    let (first, n) = c.insert_run(key(100), 8).unwrap();
    assert_eq!((first, n), (FrameNo(0), 2), "stops at the page that was used");
    assert!(c.find(key(2)).is_some() && c.find(key(0)).is_none());
    assert_eq!(c.counters().evictions, 2);
}

#[test]
fn dirty_and_pinned_frames_stay() {
    let mut c = cache(2);
    let a = c.insert(key(0)).unwrap();
    let b = c.insert(key(1)).unwrap();
    c.set_dirty(a, true);
    c.pin(b);
    assert_eq!(c.dirty(), 1);
    assert!(c.insert(key(2)).is_none());
    c.unpin(b);
    assert_eq!(c.insert(key(2)), Some(b));
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
        at += c.insert_run(key(at), 512).unwrap().1 as u64;
    }
    assert_eq!(c.counters().evictions, 0);
    c.insert_run(key(at), 512).unwrap();
    assert!(c.counters().evictions > 0);
}

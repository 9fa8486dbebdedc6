use super::*;
use std::sync::atomic::AtomicBool;

const W: usize = 8;

fn hash(key: u64) -> u64 {
    let mixed = (key ^ key >> 31).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9)
}

/// All words of a record follow from its key and `n`.
fn words(key: u64, n: u64) -> [u64; W] {
    std::array::from_fn(|i| match i {
        0 => n & 0xffff_ffff,
        1 => key,
        _ => key.wrapping_mul(i as u64) ^ n,
    })
}

fn put(table: &Records<W>, key: u64, n: u64) {
    table.write().put(hash(key), |w| w.get(1) == key, |_| true, &words(key, n));
}

fn get(table: &Records<W>, key: u64) -> Option<[u64; W]> {
    let mut words = [0; W];
    table
        .find(hash(key), |w| {
            words = w.all();
            words[1] == key
        })
        .then_some(words)
}

#[test]
fn bytes_of_words() {
    let word = u64::from_le_bytes([0, 7, 1, 0x80, 7, 0xff, 6, 0]);
    for (byte, at) in
        [(7, vec![1, 4]), (0, vec![0, 7]), (0x80, vec![3]), (0xff, vec![5]), (1, vec![2]), (8, vec![])]
    {
        assert_eq!(places(word, byte).collect::<Vec<_>>(), at, "{byte}");
    }
}

#[test]
fn bits_say_which_bucket() {
    for buckets in 1..70 {
        let size = Size::of(buckets);
        assert_eq!(size.buckets(), buckets);
        assert!((0..1000u32).all(|bits| size.which(bits) < buckets));
        assert!((0..buckets).all(|at| size.which(at as u32) == at));
    }
}

#[test]
fn records_are_found_until_they_are_taken_away() {
    let table = Records::default();
    assert_eq!(get(&table, 1), None);
    table.write().remove(hash(1), |_| true);
    let most = 40_000;
    for key in 1..=most {
        put(&table, key, 5);
        assert_eq!(get(&table, key), Some(words(key, 5)));
    }
    let found = |n| (1..=most).filter(|&key| get(&table, key) == Some(words(key, n))).count() as u64;
    let count = || table.writing.lock().count as u64;
    assert!(found(5) == most && count() == most);
    (1..=most).for_each(|key| put(&table, key, 6));
    assert!(found(6) == most && found(5) == 0 && count() == most);
    table.write().remove(hash(7), |w| w.get(1) == 7);
    assert_eq!((get(&table, 7), get(&table, 8)), (None, Some(words(8, 6))));
    table.write().clear();
    assert_eq!((found(6), count()), (0, 0));
    put(&table, 7, 1);
    assert_eq!(get(&table, 7), Some(words(7, 1)));
}

#[test]
fn a_full_table_forgets_what_is_old() {
    let table = Records::default();
    let room = (MOST * BUCKET) as u64;
    (1..=3 * room).for_each(|key| put(&table, key, 0));
    let found = (1..=3 * room).filter(|&key| get(&table, key).is_some()).count() as u64;
    assert!(found == table.writing.lock().count as u64 && found <= room && found > room * 9 / 10);
    assert_eq!(get(&table, 3 * room), Some(words(3 * room, 0)));
    assert_eq!(table.size().buckets(), MOST);
}

/// Whoever looks sees whole records, while the table grows and others write.
#[test]
fn nobody_sees_halves_of_records() {
    let (table, over) = (Records::default(), AtomicBool::new(false));
    let keys = 2000;
    std::thread::scope(|scope| {
        let look = || {
            let mut seen = 0;
            while !over.load(Ordering::Relaxed) {
                for key in 1..=keys {
                    if let Some(found) = get(&table, key) {
                        assert_eq!(found, words(key, found[0]), "{key}");
                        seen += 1;
                    }
                }
            }
            seen
        };
        let lookers = [scope.spawn(look), scope.spawn(look)];
        for n in 0..300 {
            for key in (1..=keys).filter(|key| (key + n) % 3 != 0) {
                put(&table, key, n);
            }
            for key in (1..=keys).filter(|key| (key ^ n) % 7 == 0) {
                table.write().remove(hash(key), |w| w.get(1) == key);
            }
        }
        over.store(true, Ordering::Relaxed);
        assert!(lookers.into_iter().all(|looker| looker.join().unwrap() > 0));
    });
}

//! Tables of records that threads find without a lock, and without writing anything: what all of them write, be it only a lock, goes
//! from processor to processor, and in programs of many threads most calls did little else than wait for that.
//!
//! A record is a number of words. The lower half of the first counts how often it was written, and is odd while that is going on: who finds it odd, or another one
//! after looking at the words, has seen nothing (a sequence lock). Who writes takes the lock of all.
//!
//! A record stands in one of two buckets, which its hash says (the first that has room), and each bucket has a word with a part of the hash of each of its
//! records. The table grows by one bucket at a time (linear hashing), so that nobody waits while all of it is put elsewhere; what moves may not be found for a
//! moment. It is a cache: when there is no room, new records take the place of old ones.

use crate::lock::{Mutex, MutexGuard};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};

/// Records in a bucket, each with a byte in the bucket's word.
const BUCKET: usize = 8;
/// Buckets of new records, whose memory is a whole number of pages.
const FIRST: usize = 8;
/// Most buckets. Addresses are taken for all of them, and memory for those that there are.
const MOST: usize = 8192;
/// Records for which there is a bucket: with more of them, both that one may stand in are full too often.
const MEAN: usize = 3;
/// Buckets that are added at once at most, when both are full nevertheless.
const STEPS: usize = 64;
/// How often somebody looks again at a record that is being written before waiting for who does it.
const LOOKS: usize = 64;

/// A record.
#[repr(align(64))]
struct Record<const W: usize>([AtomicU64; W]);

/// The words of a record as somebody sees them who looks at it. They may be of several records, which is noticed later: whatever is
/// made of them must not be used before that.
pub(super) struct Words<'a, const W: usize> {
    record: &'a Record<W>,
    first: u64,
}

impl<const W: usize> Words<'_, W> {
    /// A word; of word 0 the upper half.
    #[inline]
    pub fn get(&self, at: usize) -> u64 {
        match at {
            0 => self.first >> 32,
            _ => self.record.0[at].load(Ordering::Relaxed),
        }
    }

    /// All of them.
    pub fn all(&self) -> [u64; W] {
        std::array::from_fn(|at| self.get(at))
    }
}

impl<const W: usize> Record<W> {
    /// What `f` says of its words; `None` while it is being written.
    #[inline]
    fn read<T>(&self, f: impl FnOnce(&Words<'_, W>) -> T) -> Option<T> {
        let first = self.0[0].load(Ordering::Acquire);
        if first & 1 == 1 {
            return None;
        }
        let seen = f(&Words { record: self, first });
        fence(Ordering::Acquire);
        (self.0[0].load(Ordering::Relaxed) == first).then_some(seen)
    }

    /// Writes all of it. Only who has the lock of all does.
    fn write(&self, words: &[u64; W]) {
        let first = self.0[0].load(Ordering::Relaxed);
        self.0[0].store(first | 1, Ordering::Relaxed);
        fence(Ordering::Release);
        for (to, word) in self.0.iter().zip(words).skip(1) {
            to.store(*word, Ordering::Relaxed);
        }
        let count = (first as u32 | 1).wrapping_add(1);
        self.0[0].store(words[0] << 32 | count as u64, Ordering::Release);
    }
}

/// A bucket: the bytes of its records, 0 where there is none, and the records.
struct Bucket<'a, const W: usize> {
    bytes: &'a AtomicU64,
    records: &'a [Record<W>; BUCKET],
}

/// The byte that a record with this hash has.
#[inline]
fn byte_of(hash: u64) -> u8 {
    ((hash >> 48) as u8).max(1)
}

/// Where in a bucket's word this byte stands.
#[inline]
fn places(word: u64, byte: u8) -> impl Iterator<Item = usize> {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGH: u64 = ONES << 7;
    let differs = word ^ (ONES * byte as u64);
    let mut found = !(((differs & !HIGH) + !HIGH) | differs) & HIGH;
    std::iter::from_fn(move || {
        let at = (found != 0).then(|| found.trailing_zeros() as usize / 8);
        found &= found.wrapping_sub(1);
        at
    })
}

impl<const W: usize> Bucket<'_, W> {
    fn set_byte(&self, at: usize, byte: u8) {
        let word = self.bytes.load(Ordering::Relaxed) & !(0xff << (8 * at));
        self.bytes.store(word | (byte as u64) << (8 * at), Ordering::Release);
    }

    /// A place for a record.
    fn room(&self) -> Option<usize> {
        places(self.bytes.load(Ordering::Relaxed), 0).next()
    }

    /// Those that are taken.
    fn taken(&self) -> impl Iterator<Item = usize> + use<W> {
        let bytes = self.bytes.load(Ordering::Relaxed);
        (0..BUCKET).filter(move |at| bytes >> (8 * at) & 0xff != 0)
    }

    fn put(&self, at: usize, hash: u64, words: &[u64; W]) {
        self.records[at].write(words);
        self.set_byte(at, byte_of(hash));
    }

    fn take_away(&self, at: usize) {
        self.set_byte(at, 0);
        self.records[at].write(&[0; W]);
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Records<const W: usize> {
    /// How many buckets there are, and above that the bits that say which of them.
    size: AtomicU64,
    /// The words of all buckets, and behind them their records; null as long as there is none.
    memory: AtomicPtr<u8>,
    writing: Aligned<Mutex<Writing>>,
}

/// Apart from what is only read.
#[derive(Debug)]
#[repr(align(64))]
struct Aligned<T>(T);

#[derive(Debug, Default)]
struct Writing {
    /// Records that there are.
    count: usize,
    /// Which of a full bucket goes next.
    turn: usize,
}

impl<const W: usize> Default for Records<W> {
    fn default() -> Records<W> {
        Records {
            size: AtomicU64::new(0),
            memory: AtomicPtr::new(std::ptr::null_mut()),
            writing: Aligned(Mutex::default()),
        }
    }
}

/// Of a table that may be written until this is dropped.
pub(super) struct Writer<'a, const W: usize> {
    table: &'a Records<W>,
    state: MutexGuard<'a, Writing>,
}

/// Which buckets there are.
#[derive(Clone, Copy)]
struct Size(u64);

impl Size {
    fn of(buckets: usize) -> Size {
        Size(buckets as u64 | (buckets.next_power_of_two() as u64 - 1) << 32)
    }

    #[inline]
    fn buckets(self) -> usize {
        self.0 as u32 as usize
    }

    /// The bucket that these bits say.
    #[inline]
    fn which(self, bits: u32) -> usize {
        let mask = (self.0 >> 32) as u32;
        let (at, smaller) = (bits & mask, bits & mask >> 1);
        (if at < self.0 as u32 { at } else { smaller }) as usize
    }

    /// The first bucket that a record with this hash may be in.
    #[inline]
    fn first(self, hash: u64) -> usize {
        self.which(hash as u32)
    }

    /// The other one.
    #[inline]
    fn second(self, hash: u64) -> usize {
        self.which((hash >> 24) as u32)
    }

    fn both(self, hash: u64) -> [usize; 2] {
        [self.first(hash), self.second(hash)]
    }
}

impl<const W: usize> Records<W> {
    /// Where the records of the first bucket begin, and how many bytes those of a bucket are.
    const RECORDS_AT: usize = MOST * size_of::<AtomicU64>();
    const RECORDS: usize = size_of::<[Record<W>; BUCKET]>();

    #[inline]
    fn size(&self) -> Size {
        Size(self.size.load(Ordering::Acquire))
    }

    /// One of the buckets that there are.
    #[inline]
    fn bucket(&self, at: usize) -> Bucket<'_, W> {
        let start = self.memory.load(Ordering::Relaxed);
        assert!(at < MOST && !start.is_null(), "there is no such bucket");
        // SAFETY: the memory has a word and records for each bucket that there is, zero or as they were written, and lives as long as these.
        unsafe {
            let bytes = &*start.cast::<AtomicU64>().add(at);
            let records = &*start.add(Self::RECORDS_AT + at * Self::RECORDS).cast::<[Record<W>; BUCKET]>();
            Bucket { bytes, records }
        }
    }

    /// Whether there is a record with this hash of which `f` says that it is the right one. `f` may write down what is in it, which counts only if this is so:
    /// what goes through several hands on the way costs more than to find it.
    #[inline]
    pub fn find(&self, hash: u64, mut f: impl FnMut(&Words<'_, W>) -> bool) -> bool {
        let size = self.size();
        if size.buckets() == 0 {
            return false;
        }
        self.find_in(size.first(hash), hash, &mut f) || self.find_in(size.second(hash), hash, &mut f)
    }

    #[inline]
    fn find_in(&self, at: usize, hash: u64, f: &mut impl FnMut(&Words<'_, W>) -> bool) -> bool {
        let bucket = self.bucket(at);
        places(bucket.bytes.load(Ordering::Acquire), byte_of(hash)).any(|place| {
            let record = &bucket.records[place];
            match record.read(&mut *f) {
                Some(is) => is,
                None => self.wait(record, f),
            }
        })
    }

    /// The record was being written.
    #[cold]
    fn wait(&self, record: &Record<W>, f: &mut impl FnMut(&Words<'_, W>) -> bool) -> bool {
        for _ in 0..LOOKS {
            std::hint::spin_loop();
            if let Some(is) = record.read(&mut *f) {
                return is;
            }
        }
        // Whoever writes it may have to wait for a processor.
        let _writer = self.write();
        record.read(f) == Some(true)
    }

    /// Waits until nobody else writes.
    pub fn write(&self) -> Writer<'_, W> {
        Writer { table: self, state: self.writing.0.lock() }
    }
}

impl<const W: usize> Writer<'_, W> {
    fn buckets(&self) -> usize {
        self.table.size().buckets()
    }

    /// The record with this hash of which `is` says so.
    fn at(&self, hash: u64, is: impl Fn(&Words<'_, W>) -> bool) -> Option<(Bucket<'_, W>, usize)> {
        let size = Some(self.table.size()).filter(|size| size.buckets() > 0)?;
        size.both(hash).into_iter().find_map(|at| {
            let bucket = self.table.bucket(at);
            let mut places = places(bucket.bytes.load(Ordering::Relaxed), byte_of(hash));
            let place = places.find(|&place| bucket.records[place].read(&is) == Some(true))?;
            Some((bucket, place))
        })
    }

    /// Its words.
    pub fn get(&self, hash: u64, is: impl Fn(&Words<'_, W>) -> bool) -> Option<[u64; W]> {
        let (bucket, place) = self.at(hash, is)?;
        bucket.records[place].read(|words| words.all())
    }

    /// Takes it away.
    pub fn remove(&mut self, hash: u64, is: impl Fn(&Words<'_, W>) -> bool) {
        if let Some((bucket, place)) = self.at(hash, is) {
            bucket.take_away(place);
            self.state.count -= 1;
        }
    }

    /// Puts words in the place of that record, or in a new one. Of word 0 the lower half counts. `hash_of` is the hash of any record.
    pub fn put(
        &mut self,
        hash: u64,
        is: impl Fn(&Words<'_, W>) -> bool,
        words: &[u64; W],
        hash_of: impl Fn(&[u64; W]) -> u64,
    ) {
        debug_assert_eq!(hash_of(words), hash);
        if let Some((bucket, place)) = self.at(hash, is) {
            return bucket.records[place].write(words);
        }
        if self.state.count >= self.buckets() * MEAN {
            self.grow(&hash_of);
        }
        if self.buckets() == 0 {
            // There is no memory.
            return;
        }
        let room = |writer: &Self| {
            let both = writer.table.size().both(hash).map(|at| writer.table.bucket(at));
            both.into_iter().find_map(|bucket| Some((bucket.room()?, bucket)))
        };
        for _ in 0..STEPS {
            let few = self.state.count < self.buckets() * MEAN / 2;
            if few || self.buckets() == MOST || room(self).is_some() {
                break;
            }
            self.grow(&hash_of);
        }
        match room(self) {
            Some((place, bucket)) => {
                bucket.put(place, hash, words);
                self.state.count += 1;
            }
            None => {
                self.state.turn += 1;
                let at = self.table.size().first(hash);
                self.table.bucket(at).put(self.state.turn % BUCKET, hash, words);
            }
        }
    }

    /// Adds a bucket, and puts there what belongs there; or the first ones.
    fn grow(&mut self, hash_of: &impl Fn(&[u64; W]) -> u64) {
        let before = self.buckets();
        // Memory for as many more as there are.
        if before == MOST || (before == 0 || before.is_power_of_two()) && !self.table.provide(before) {
            return;
        }
        if before == 0 {
            return self.table.size.store(Size::of(FIRST).0, Ordering::Release);
        }
        let size = Size::of(before + 1);
        self.table.size.store(size.0, Ordering::Release);
        let from = before - (1 << before.ilog2());
        let (from, to) = ((self.table.bucket(from), from), (self.table.bucket(before), before));
        for place in from.0.taken() {
            let Some(words) = from.0.records[place].read(|words| words.all()) else { continue };
            let hash = hash_of(&words);
            if size.both(hash).contains(&from.1) {
                continue;
            }
            if let Some(room) = to.0.room() {
                to.0.put(room, hash, &words);
            } else {
                self.state.count -= 1;
            }
            from.0.take_away(place);
        }
    }

    /// Takes all away.
    pub fn clear(&mut self) {
        for bucket in (0..self.buckets()).map(|at| self.table.bucket(at)) {
            bucket.taken().for_each(|place| bucket.take_away(place));
        }
        self.state.count = 0;
    }
}

impl<const W: usize> Records<W> {
    /// Gets memory for as many buckets as there are, or for the first ones. Only who has the lock does.
    fn provide(&self, buckets: usize) -> bool {
        let (use_it, whole) =
            (MprotectFlags::READ | MprotectFlags::WRITE, Self::RECORDS_AT + MOST * Self::RECORDS);
        let mut start = self.memory.load(Ordering::Relaxed);
        if start.is_null() {
            let null = std::ptr::null_mut();
            // SAFETY: new addresses, and the words of the buckets made memory; of nobody else.
            unsafe {
                let Ok(new) = mmap_anonymous(null, whole, ProtFlags::empty(), MapFlags::PRIVATE) else {
                    return false;
                };
                if mprotect(new, Self::RECORDS_AT, use_it).is_err() {
                    let _ = munmap(new, whole);
                    return false;
                }
                start = new.cast();
            }
            self.memory.store(start, Ordering::Release);
        }
        let at = Self::RECORDS_AT + buckets * Self::RECORDS;
        let bytes = buckets.max(FIRST) * Self::RECORDS;
        // SAFETY: a part of the above that nobody has used.
        unsafe { mprotect(start.add(at).cast(), bytes, use_it).is_ok() }
    }
}

impl<const W: usize> Drop for Records<W> {
    fn drop(&mut self) {
        let start = *self.memory.get_mut();
        if !start.is_null() {
            // SAFETY: mapped by `provide` with that length, and nobody else has these.
            let _ = unsafe { munmap(start.cast(), Self::RECORDS_AT + MOST * Self::RECORDS) };
        }
    }
}

#[cfg(test)]
mod tests;

//! Tables of records that threads find without a lock, and without writing anything: what all of them write, be it only a lock, goes
//! from processor to processor, and in programs of many threads most calls did little else than wait for that.
//!
//! Who writes records takes the lock of all.
//!
//! A record stands in one of two buckets, which its hash says (the first that has room). Each bucket has a word with a part of the hash of each of its records, by
//! which they are found, and another part that says where they go when it is split. The table grows by one bucket at a time (linear hashing), so that nobody
//! waits while all of it is put elsewhere; what moves may not be found for a moment. It is a cache: when there is no room, new records take the place of old ones.

use crate::lock::{Apart, Mutex, MutexGuard};
use crate::record::places;
pub(super) use crate::record::{Record, Words};
use format::shared::notice_byte as byte_of;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Records in a bucket, each with a byte in the bucket's word.
const BUCKET: usize = 8;
/// Buckets of new records, whose memory is a whole number of pages.
const FIRST: usize = 8;
/// Most buckets. Addresses are taken for all of them, and memory for those that there are.
const MOST: usize = 8192;
/// Bytes of records for which memory is had at once.
const PIECE: usize = 64 << 10;
/// Records for which there is a bucket.
const MEAN: usize = 5;
/// How often somebody looks again at a record that is being written before waiting for who does it.
const LOOKS: usize = 64;

/// A bucket: the bytes of its records, 0 where there is none; the lower halves of their hashes, for who has the lock; and the records.
struct Bucket<'a, const W: usize> {
    bytes: &'a AtomicU64,
    hashes: &'a [AtomicU32; BUCKET],
    records: &'a [Record<W>; BUCKET],
}

impl<const W: usize> Bucket<'_, W> {
    fn byte(&self, at: usize) -> u8 {
        (self.bytes.load(Ordering::Relaxed) >> (8 * at)) as u8
    }

    fn set_byte(&self, at: usize, byte: u8) {
        let word = self.bytes.load(Ordering::Relaxed) & !(0xff << (8 * at));
        self.bytes.store(word | (byte as u64) << (8 * at), Ordering::Release);
    }

    /// A place for a record.
    fn room(&self) -> Option<usize> {
        places(self.bytes.load(Ordering::Relaxed), 0).next()
    }

    fn put(&self, at: usize, (byte, hash): (u8, u32), words: &[u64; W]) {
        self.records[at].write(words);
        self.hashes[at].store(hash, Ordering::Relaxed);
        self.set_byte(at, byte);
    }

    /// Moves a record to where there is room in another bucket.
    fn move_to(&self, at: usize, to: &Bucket<'_, W>, room: usize) {
        if let Some(words) = self.records[at].read(|words| words.all()) {
            to.put(room, (self.byte(at), self.hashes[at].load(Ordering::Relaxed)), &words);
        }
        self.take_away(at);
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
    writing: Apart<Mutex<Writing>>,
}

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
            writing: Apart::default(),
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
    fn first(self, hash: u32) -> usize {
        self.which(hash)
    }

    /// The other one, which other bits say.
    #[inline]
    fn second(self, hash: u32) -> usize {
        self.which(hash >> MOST.ilog2())
    }

    fn both(self, hash: u32) -> [usize; 2] {
        [self.first(hash), self.second(hash)]
    }
}

impl<const W: usize> Records<W> {
    /// Where the hashes and the records of the first bucket begin, and how many bytes the records of one are.
    const HASHES_AT: usize = MOST * size_of::<AtomicU64>();
    const RECORDS_AT: usize = Self::HASHES_AT + MOST * size_of::<[AtomicU32; BUCKET]>();
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
        // SAFETY: the memory has a word, hashes and records for each bucket that there is, zero or as they were written, and lives as long as these.
        unsafe {
            let bytes = &*start.cast::<AtomicU64>().add(at);
            let hashes = &*start.add(Self::HASHES_AT).cast::<[AtomicU32; BUCKET]>().add(at);
            let records = &*start.add(Self::RECORDS_AT + at * Self::RECORDS).cast::<[Record<W>; BUCKET]>();
            Bucket { bytes, hashes, records }
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
        self.find_in(size.first(hash as u32), hash, &mut f)
            || self.find_in(size.second(hash as u32), hash, &mut f)
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
        Writer { table: self, state: self.writing.lock() }
    }
}

impl<'a, const W: usize> Writer<'a, W> {
    fn buckets(&self) -> usize {
        self.table.size().buckets()
    }

    /// The record with this hash of which `is` says so.
    fn at(&self, hash: u64, is: impl Fn(&Words<'_, W>) -> bool) -> Option<(Bucket<'a, W>, usize)> {
        let size = Some(self.table.size()).filter(|size| size.buckets() > 0)?;
        size.both(hash as u32).into_iter().find_map(|at| {
            let bucket = self.table.bucket(at);
            let mut places = places(bucket.bytes.load(Ordering::Relaxed), byte_of(hash));
            let place = places.find(|&place| bucket.records[place].read(&is) == Some(true))?;
            Some((bucket, place))
        })
    }

    /// Takes it away.
    pub fn remove(&mut self, hash: u64, is: impl Fn(&Words<'_, W>) -> bool) {
        if let Some((bucket, place)) = self.at(hash, is) {
            bucket.take_away(place);
            self.state.count -= 1;
        }
    }

    /// Puts words in the place of that record, if `may` says so of it, or in a new one. Of word 0 the lower half counts.
    pub fn put(
        &mut self,
        hash: u64,
        is: impl Fn(&Words<'_, W>) -> bool,
        may: impl FnOnce(&Words<'_, W>) -> bool,
        words: &[u64; W],
    ) {
        if let Some((bucket, place)) = self.at(hash, is) {
            let record = &bucket.records[place];
            if record.read(may) == Some(true) {
                record.write(words);
            }
            return;
        }
        if self.state.count >= self.buckets() * MEAN {
            self.grow();
        }
        let kept = (byte_of(hash), hash as u32);
        match self.room(hash as u32).or_else(|| self.make_room(hash as u32)) {
            Some((bucket, place)) => {
                bucket.put(place, kept, words);
                self.state.count += 1;
            }
            // Without memory there are none.
            None if self.buckets() == 0 => {}
            None => {
                self.state.turn += 1;
                let at = self.table.size().first(hash as u32);
                self.table.bucket(at).put(self.state.turn % BUCKET, kept, words);
            }
        }
    }

    /// A place for a record with this hash.
    fn room(&self, hash: u32) -> Option<(Bucket<'a, W>, usize)> {
        let size = Some(self.table.size()).filter(|size| size.buckets() > 0)?;
        size.both(hash).into_iter().find_map(|at| {
            let bucket = self.table.bucket(at);
            let place = bucket.room()?;
            Some((bucket, place))
        })
    }

    /// As [`Writer::room`], where both buckets are full: a record goes to the other bucket that it may be in.
    #[cold]
    fn make_room(&self, hash: u32) -> Option<(Bucket<'a, W>, usize)> {
        let size = Some(self.table.size()).filter(|size| size.buckets() > 0)?;
        let all = size.both(hash).into_iter().flat_map(|at| (0..BUCKET).map(move |place| (at, place)));
        let (from, place, to, room) = all.into_iter().find_map(|(at, place)| {
            let from = self.table.bucket(at);
            let other =
                size.both(from.hashes[place].load(Ordering::Relaxed)).into_iter().find(|&to| to != at)?;
            let to = self.table.bucket(other);
            let room = to.room()?;
            Some((from, place, to, room))
        })?;
        from.move_to(place, &to, room);
        Some((from, place))
    }

    /// Adds a bucket, and puts there what belongs there; or the first ones.
    fn grow(&mut self) {
        let before = self.buckets();
        if before == MOST || !self.table.provide(before) {
            return;
        }
        if before == 0 {
            return self.table.size.store(Size::of(FIRST).0, Ordering::Release);
        }
        let size = Size::of(before + 1);
        self.table.size.store(size.0, Ordering::Release);
        let at = before - (1 << before.ilog2());
        let (from, to) = (self.table.bucket(at), self.table.bucket(before));
        for place in (0..BUCKET).filter(|&place| from.byte(place) != 0) {
            if size.both(from.hashes[place].load(Ordering::Relaxed)).contains(&at) {
                continue;
            }
            // There is as much room as there were records.
            if let Some(room) = to.room() {
                from.move_to(place, &to, room);
            }
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.state.count
    }

    /// Takes all away.
    pub fn clear(&mut self) {
        for bucket in (0..self.buckets()).map(|at| self.table.bucket(at)) {
            (0..BUCKET).filter(|&place| bucket.byte(place) != 0).for_each(|place| bucket.take_away(place));
        }
        self.state.count = 0;
    }
}

impl<const W: usize> Records<W> {
    /// Has memory ready for one bucket more than so many. Only who has the lock does.
    fn provide(&self, buckets: usize) -> bool {
        let start = self.memory.load(Ordering::Relaxed);
        let start = if start.is_null() { self.take_addresses() } else { start };
        let at = Self::RECORDS_AT + buckets * Self::RECORDS;
        // Addresses can be used for as many buckets as there are, and then for as many more.
        let ready = (buckets + 1).next_power_of_two().max(FIRST) - buckets;
        if buckets == 0 || buckets.is_power_of_two() {
            if start.is_null() {
                return false;
            }
            let (bytes, how) = (ready * Self::RECORDS, MprotectFlags::READ | MprotectFlags::WRITE);
            // SAFETY: a part of the addresses that nobody has used.
            if unsafe { mprotect(start.add(at).cast(), bytes, how) }.is_err() {
                return false;
            }
        }
        let piece = (PIECE / Self::RECORDS).next_power_of_two();
        if buckets.is_multiple_of(piece) && buckets > 0 {
            // Memory is had in larger pieces than a fault gives, and where the system does not do that, by faults.
            let bytes = piece.min(ready) * Self::RECORDS;
            // SAFETY: as above, of addresses that can be used.
            let _ = unsafe { madvise(start.add(at).cast(), bytes, Advice::LinuxPopulateWrite) };
        }
        true
    }

    /// Addresses for all buckets, of which only their words and hashes can be used. Null if there are none.
    fn take_addresses(&self) -> *mut u8 {
        let (null, whole) = (std::ptr::null_mut(), Self::RECORDS_AT + MOST * Self::RECORDS);
        // SAFETY: new addresses, of nobody else.
        let start = unsafe {
            let Ok(start) = mmap_anonymous(null, whole, ProtFlags::empty(), MapFlags::PRIVATE) else {
                return null.cast();
            };
            if mprotect(start, Self::RECORDS_AT, MprotectFlags::READ | MprotectFlags::WRITE).is_err() {
                let _ = munmap(start, whole);
                return null.cast();
            }
            start.cast()
        };
        self.memory.store(start, Ordering::Release);
        start
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

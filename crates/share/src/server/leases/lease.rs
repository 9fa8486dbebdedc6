//! One lease: what the manager itself knows of it. Nothing here waits for anything but other work on the same lease ([`Turn`]).

use crate::leased::{Leased, PAGE, WINDOW};
use crate::region::Region;
use format::shared::WINDOW_PAGES;
use fs::turns::{Turn, Turns};
use fs::{Handle, Ino};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

/// Most pages that are written at once.
const RUN: usize = 64;
const PAGE64: u64 = PAGE as u64;

/// One bit for each page of a window.
#[derive(Clone, Copy, Default)]
pub(super) struct Pages([u64; WINDOW_PAGES / 64]);

impl Pages {
    pub fn has(&self, page: usize) -> bool {
        self.0[page / 64] >> (page % 64) & 1 != 0
    }
    pub fn set(&mut self, page: usize, to: bool) {
        let bit = 1 << (page % 64);
        if to {
            self.0[page / 64] |= bit;
        } else {
            self.0[page / 64] &= !bit;
        }
    }
}

/// A window that was granted.
pub(super) struct Window {
    /// Where it is in the memory of its session.
    pub slot: usize,
    /// Where it is in the file, in windows.
    pub place: u64,
    /// Pages that the client may write.
    pub open: Pages,
    /// Pages that were taken from the client and may not be in the file yet.
    pending: Pages,
    /// Pages became dirty, and those that are were not all found since.
    looks: bool,
    /// Looks in a row at which nothing was dirty.
    pub idle: u32,
    /// The client wants the memory for another window.
    pub memory_stays: bool,
}

impl Window {
    pub fn new(slot: usize, place: u64, open: Pages) -> Window {
        Window { slot, place, open, pending: Pages::default(), looks: false, idle: 0, memory_stays: false }
    }

    /// The part of a range of the file that lies here, in pages.
    fn within(&self, range: &Range<u64>) -> Range<usize> {
        let begin = self.place.saturating_mul(WINDOW);
        let cut = |at: u64| at.saturating_sub(begin).min(WINDOW);
        (cut(range.start) / PAGE64) as usize..cut(range.end).div_ceil(PAGE64) as usize
    }

    /// Whether a range of the file touches a page that the client may write.
    pub fn concerns(&self, range: &Range<u64>) -> bool {
        self.within(range).any(|page| self.open.has(page))
    }

    /// The bytes of the file that it covers.
    pub fn bytes(&self) -> Range<u64> {
        let begin = self.place.saturating_mul(WINDOW);
        begin..begin.saturating_add(WINDOW)
    }
}

/// Somebody sees to it that what was written gets into the file; see [`Lease::orders`].
pub(super) struct Orders<'a> {
    lease: &'a Lease,
    /// Nobody else knows that something was written.
    lost: bool,
}

impl Orders<'_> {
    /// It is there.
    pub fn done(mut self) {
        self.lost = false;
    }
}

impl Drop for Orders<'_> {
    fn drop(&mut self) {
        if self.lost {
            let windows = self.lease.windows.lock();
            windows.iter().for_each(|w| self.lease.view(w.slot).written().store(1, Ordering::SeqCst));
        }
        self.lease.ordering.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The lease of one client on one file.
pub(super) struct Lease {
    pub ino: Ino,
    pub session: u64,
    pub handle: Handle,
    pub region: Arc<Region>,
    /// Nobody else keeps anything of the file any more; nothing is granted before.
    pub told: AtomicBool,
    /// Nothing more is granted; it ends when all is written.
    pub ending: AtomicBool,
    /// How many see to it that what was written gets into the file.
    ordering: AtomicUsize,
    /// By their place. Windows come and go only in somebody's turn.
    pub windows: Mutex<Vec<Window>>,
    turns: Turns,
}

impl Lease {
    pub fn new(ino: Ino, session: u64, handle: Handle, region: Arc<Region>) -> Lease {
        Lease {
            ino,
            session,
            handle,
            region,
            told: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            ordering: AtomicUsize::new(0),
            windows: Mutex::default(),
            turns: Turns::default(),
        }
    }

    /// Waits until nobody else works on the lease; nobody does while the result is there.
    pub async fn turn(&self) -> Turn<'_> {
        self.turns.take(&[(self.ino, b"")]).await
    }

    pub fn view(&self, slot: usize) -> Leased<'_> {
        Leased::new(self.region.memory(), slot)
    }

    /// Tells the client that these windows are no longer granted. What it acknowledged before it could know is dirty now.
    pub fn take_back(&self, which: impl Fn(&Window) -> bool) {
        let mut any = false;
        for window in self.windows.lock().iter().filter(|w| which(w)) {
            self.view(window.slot).grant().store(0, Ordering::SeqCst);
            any = true;
        }
        if any {
            fence(Ordering::SeqCst);
        }
    }

    /// The next pages that the client wrote, within a range of the file: where they belong, and their bytes. They count as taken until
    /// [`Lease::written`] says that they are in the file.
    pub fn next(&self, range: Range<u64>, looks: &mut u32) -> Option<(u64, Vec<u8>)> {
        let mut windows = self.windows.lock();
        for window in windows.iter_mut() {
            let view = Leased::new(self.region.memory(), window.slot);
            // Nothing has become dirty since all that was dirty was taken: who has done so since says so before it acknowledges anything.
            if !window.looks && view.written().load(Ordering::SeqCst) == 0 {
                continue;
            }
            let pages = window.within(&range);
            // Only where it was allowed, whatever the words say.
            let wanted =
                |w: &Window, page: usize| w.pending.has(page) || (w.open.has(page) && view.is_dirty(page));
            let Some(first) = pages.clone().find(|&page| wanted(window, page)) else {
                window.looks &= pages != (0..WINDOW_PAGES);
                continue;
            };
            let end = (first..pages.end.min(first + RUN))
                .find(|&page| !wanted(window, page))
                .unwrap_or(pages.end.min(first + RUN));
            let mut bytes = vec![0; (end - first) * PAGE];
            for (page, to) in (first..end).zip(bytes.chunks_exact_mut(PAGE)) {
                window.pending.set(page, true);
                view.take(page, to, looks);
            }
            window.idle = 0;
            return Some((window.bytes().start + first as u64 * PAGE64, bytes));
        }
        None
    }

    /// What [`Lease::next`] gave is in the file.
    pub fn written(&self, offset: u64, len: usize) {
        let mut windows = self.windows.lock();
        if let Some(window) = windows.iter_mut().find(|w| w.place == offset / WINDOW) {
            let first = (offset % WINDOW) as usize / PAGE;
            (first..first + len / PAGE).for_each(|page| window.pending.set(page, false));
        }
    }

    /// `None` when everything that the client wrote is in the file. Else it is to be written before the result is told that it was.
    pub fn orders(&self) -> Option<Orders<'_>> {
        let others = self.ordering.fetch_add(1, Ordering::SeqCst) != 0;
        let mut orders = Orders { lease: self, lost: false };
        for window in self.windows.lock().iter_mut() {
            let written = self.view(window.slot).written().swap(0, Ordering::SeqCst) != 0;
            window.looks |= written;
            orders.lost |= written;
        }
        if orders.lost {
            // Who saw that it was said already, has made a page dirty before.
            fence(Ordering::SeqCst);
        }
        // What somebody else is writing at this moment is not in the file yet.
        (orders.lost || others).then_some(orders)
    }

    /// An offset in a window in which the client has read since this was asked last.
    pub fn was_read(&self) -> Option<u64> {
        let windows = self.windows.lock();
        let read = windows.iter().filter(|w| self.view(w.slot).read().swap(0, Ordering::Relaxed) != 0);
        read.map(|w| w.bytes().start).last()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory;
    use format::shared::SESSION_BYTES;

    fn lease() -> Lease {
        let fd = memory::sealed(c"test", SESSION_BYTES).unwrap();
        let region = Arc::new(Region::map(&fd).unwrap());
        let lease = Lease::new(Ino(5), 1, Handle(2), region);
        let mut open = Pages::default();
        (10..20).for_each(|page| open.set(page, true));
        lease.view(3).reset(|page| open.has(page));
        lease.windows.lock().push(Window::new(3, 7, open));
        lease
    }

    #[test]
    fn what_is_written_is_taken_once() {
        let lease = lease();
        let view = lease.view(3);
        assert!(!view.write(9, 0, &[1; PAGE]), "a page that is not open");
        assert!(!view.write(10, 5, &[1; 100]), "a part of a page that is not there");
        assert!(
            view.write(10, 0, &[1; PAGE]) && view.write(11, 0, &[2; PAGE]) && view.write(13, 0, &[3; PAGE])
        );
        assert!(view.write(10, 5, &[9; 100]));
        let base = 7 * WINDOW;
        let all = 0..u64::MAX;
        let (at, bytes) = lease.next(base + 11 * PAGE64..base + 11 * PAGE64 + 1, &mut 10).unwrap();
        assert_eq!((at, bytes.len()), (base + 11 * PAGE64, PAGE));
        lease.written(at, PAGE);
        let (at, bytes) = lease.next(all.clone(), &mut 10).unwrap();
        assert_eq!((at, bytes.len(), bytes[4], bytes[5]), (base + 10 * PAGE64, PAGE, 1, 9));
        // It was taken, but not written: it comes again.
        assert_eq!(lease.next(all.clone(), &mut 10).unwrap().0, at);
        lease.written(at, PAGE);
        let (at, _) = lease.next(all.clone(), &mut 10).unwrap();
        assert_eq!(at, base + 13 * PAGE64);
        lease.written(at, PAGE);
        assert!(lease.next(all.clone(), &mut 10).is_none());
        drop(lease.orders().expect("written"));
        let orders = lease.orders().expect("and given up");
        lease.orders().expect("somebody is at it").done();
        orders.done();
        assert!(lease.orders().is_none());
        let mut back = [0; 10];
        assert!(view.copy(10, 100, &mut back) && back == [9, 9, 9, 9, 9, 1, 1, 1, 1, 1]);
        assert!(
            view.write(10, 0, &[4; PAGE]) && lease.orders().is_some() && lease.next(all, &mut 10).is_some()
        );
    }

    #[test]
    fn windows_are_looked_through_until_nothing_is_left() {
        let lease = lease();
        let (view, base, all) = (lease.view(3), 7 * WINDOW, 0..u64::MAX);
        assert!(lease.next(all.clone(), &mut 10).is_none());
        assert!(view.write(10, 0, &[1; PAGE]));
        let orders = lease.orders().expect("written");
        // Where somebody looks at other pages first, or does not write what he has taken.
        assert!(lease.next(base..base + 5 * PAGE64, &mut 10).is_none());
        assert!(lease.next(all.clone(), &mut 10).is_some() && lease.next(all.clone(), &mut 10).is_some());
        lease.written(base + 10 * PAGE64, PAGE);
        assert!(lease.next(all.clone(), &mut 10).is_none());
        orders.done();
        // What nobody says is not looked for.
        view.word(12).fetch_or(format::shared::lease::DIRTY, Ordering::SeqCst);
        assert!(lease.next(all.clone(), &mut 10).is_none());
        view.written().store(1, Ordering::SeqCst);
        assert!(lease.next(all, &mut 10).is_some());
    }

    #[test]
    fn a_page_that_is_being_written_for_ever() {
        let lease = lease();
        let view = lease.view(3);
        assert!(view.write(12, 0, &[1; PAGE]));
        view.word(12).fetch_or(format::shared::lease::BUSY, Ordering::SeqCst);
        view.word(300).store(u64::MAX, Ordering::SeqCst);
        let mut looks = 100;
        let (_, bytes) = lease.next(0..u64::MAX, &mut looks).unwrap();
        assert_eq!((bytes.len(), bytes[0], looks), (PAGE, 1, 0), "as it is");
        assert!(view.is_dirty(12) && !view.write(12, 0, &[2; PAGE]));
    }
}

//! Pages that all clients who have a file open read without a message (UHSFS: page headers and page buffers).
//!
//! A window is a piece of one file of [`WINDOW_PAGES`] pages, with a word for each page that says whether it is there (layout and rule of
//! reading: `format::shared`). It is memory of its own, which nobody else's pages ever use, and its descriptor is handed over
//! when a client has just read through a handle of that file; so whoever has it was allowed to read the file, as with a mapping of it.
//! Clients can only read it.
//!
//! A page is put in when the manager has read it for somebody, unless the file changed since before it was read, and taken out before the
//! call that changes it returns. The memory of all windows is bounded: a window that is given up gives its pages back to the system
//! even where clients have it mapped still.

use crate::changes::Changes;
use crate::memory::{self, Mapping};
use format::shared::{WINDOW_BYTES, WINDOW_DATA_AT, WINDOW_PAGES};
use fs::Ino;
use fs::watched::{Change, Watcher};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const PAGE: usize = 4096;
/// Most pages that are read ahead for a client that reads one after the other.
const AHEAD_MAX: usize = 16;
/// Most windows: each costs a descriptor.
const WINDOWS_MAX: usize = 512;

/// All windows of a server.
#[derive(Debug)]
pub(crate) struct Windows {
    changes: Arc<Changes>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    files: HashMap<Ino, File>,
    /// Windows by when they were last of use: number of the use, then where it is.
    uses: BTreeMap<u64, (Ino, u64)>,
    next: u64,
    windows: usize,
    pages: usize,
    pages_max: usize,
}

/// The windows of one file, by their place in it.
#[derive(Debug)]
struct File {
    generation: u32,
    windows: HashMap<u64, Arc<Window>>,
}

/// One window.
#[derive(Debug)]
pub(crate) struct Window {
    number: u64,
    memory: Mapping,
    reader: OwnedFd,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    pages: usize,
    used: u64,
    /// Where a reader is who reads one page after the other, and how many pages it was given last.
    next: usize,
    given: usize,
}

impl Window {
    fn new(number: u64) -> io::Result<Window> {
        let (memory, reader) = memory::published(c"freehold window", WINDOW_BYTES)?;
        let inner = Mutex::new(Inner { pages: 0, used: 0, next: usize::MAX, given: 1 });
        Ok(Window { number, memory, reader, inner })
    }

    /// Tells it from all others.
    pub fn number(&self) -> u64 {
        self.number
    }
    /// For clients.
    pub fn reader(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }

    /// Puts a page in. True when it was not there.
    fn put(&self, page: usize, bytes: &[u8]) -> bool {
        let head = self.memory.long(8 * page);
        let before = head.load(Ordering::Relaxed);
        if before & 1 == 1 {
            return false;
        }
        // Who still copies what was there before sees one of these two changes of the word.
        head.store(before + 2, Ordering::SeqCst);
        std::sync::atomic::fence(Ordering::SeqCst);
        let at = WINDOW_DATA_AT + page * PAGE;
        self.memory.copy_in(at, bytes);
        if bytes.len() < PAGE {
            self.memory.copy_in(at + bytes.len(), &[0; PAGE][bytes.len()..]);
        }
        head.store(before + 3, Ordering::Release);
        true
    }

    /// Takes pages out; how many were there.
    fn take(&self, pages: Range<usize>) -> usize {
        let mut taken = 0;
        for page in pages {
            let head = self.memory.long(8 * page);
            let before = head.load(Ordering::Relaxed);
            if before & 1 == 1 {
                head.store(before + 1, Ordering::SeqCst);
                taken += 1;
            }
        }
        taken
    }
}

/// A read as it is made for a window: whole pages, perhaps more than was asked for.
pub(crate) struct Aligned {
    /// First byte, at a page.
    pub start: u64,
    /// Bytes.
    pub len: usize,
    /// The clock from before the file is read.
    noted: u64,
}

impl Windows {
    /// The clock of the changes.
    pub fn clock(&self) -> u64 {
        self.changes.now()
    }

    /// No windows yet; all of them together will have `bytes` at most.
    pub fn new(changes: Arc<Changes>, bytes: usize) -> Windows {
        Windows { changes, state: Mutex::new(State { pages_max: bytes / PAGE, ..State::default() }) }
    }

    /// What to read for a client that wants `len` bytes at `offset`, at most `max` bytes. `None` when windows are of no use for it.
    pub fn plan(&self, ino: Ino, offset: u64, len: usize, max: usize) -> Option<Aligned> {
        let noted = self.changes.now();
        let start = offset & !(PAGE as u64 - 1);
        let end = offset.checked_add(len as u64)?.checked_next_multiple_of(PAGE as u64)?;
        let mut pages = ((end - start) as usize) / PAGE;
        let (place, page) = place(start);
        let state = self.state.lock();
        if state.pages_max == 0 || pages * PAGE > max || len == 0 {
            return None;
        }
        if let Some(window) = state.files.get(&ino).and_then(|f| f.windows.get(&place)) {
            let mut inner = window.inner.lock();
            let in_order = inner.next == page;
            let most = AHEAD_MAX.min(max / PAGE).min(WINDOW_PAGES - page);
            if in_order {
                pages = pages.max((inner.given * 2).min(most));
            }
            (inner.next, inner.given) = (page + pages, pages);
        }
        Some(Aligned { start, len: pages * PAGE, noted })
    }

    /// Puts in what was read as `plan` said: `bytes`, less than planned at the end of the file. Returns the window in which the first
    /// page stands, if it does.
    pub fn fill(&self, ino: Ino, generation: u32, plan: &Aligned, bytes: &[&[u8]]) -> Option<Arc<Window>> {
        let got: usize = bytes.iter().map(|b| b.len()).sum();
        let mut pages = Pages { bytes, at: 0 };
        let mut state = self.state.lock();
        if got == 0 || !self.changes.holds_still(ino, plan.noted) {
            return None;
        }
        if state.files.get(&ino).is_some_and(|f| f.generation != generation) {
            state.drop_file(ino);
        }
        let mut first = None;
        let mut buffer = [0; PAGE];
        for start in (plan.start..plan.start + got as u64).step_by(PAGE) {
            let len = pages.next(&mut buffer);
            let (place, page) = place(start);
            let window = state.window(ino, generation, place)?;
            if window.put(page, &buffer[..len]) {
                window.inner.lock().pages += 1;
                state.pages += 1;
            }
            first.get_or_insert(window);
        }
        state.shrink();
        first
    }

    /// The window in which this byte of a file stands, if there is one: the generation of the inode, the place in the file, and it.
    pub fn find(&self, ino: Ino, offset: u64) -> Option<(u32, u32, Arc<Window>)> {
        let mut state = self.state.lock();
        let place = place(offset).0;
        let file = state.files.get(&ino)?;
        // Its number on the wire is that of a file of 8 PiB at most.
        let found = (file.generation, u32::try_from(place).ok()?, file.windows.get(&place)?.clone());
        state.use_now(ino, place);
        Some(found)
    }

    /// Bytes of all windows, and their number.
    #[cfg(test)]
    pub fn size(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.pages * PAGE, state.windows)
    }
}

/// The window of an offset, and the page in it.
fn place(offset: u64) -> (u64, usize) {
    let page = offset / PAGE as u64;
    (page / WINDOW_PAGES as u64, (page % WINDOW_PAGES as u64) as usize)
}

/// Bytes in pieces, page by page.
struct Pages<'a> {
    bytes: &'a [&'a [u8]],
    /// Bytes of the first piece that were taken.
    at: usize,
}

impl Pages<'_> {
    /// Copies the next page, or what is left of it.
    fn next(&mut self, to: &mut [u8; PAGE]) -> usize {
        let mut len = 0;
        while let Some(piece) = self.bytes.first()
            && len < PAGE
        {
            let n = (piece.len() - self.at).min(PAGE - len);
            to[len..len + n].copy_from_slice(&piece[self.at..self.at + n]);
            len += n;
            self.at += n;
            if self.at == piece.len() {
                (self.bytes, self.at) = (&self.bytes[1..], 0);
            }
        }
        len
    }
}

impl State {
    /// The window at `place` of a file, made if it is not there. `None`: the system gives no more memory or descriptors.
    fn window(&mut self, ino: Ino, generation: u32, place: u64) -> Option<Arc<Window>> {
        let file = self.files.entry(ino).or_insert_with(|| File { generation, windows: HashMap::new() });
        if let Some(window) = file.windows.get(&place) {
            let window = window.clone();
            self.use_now(ino, place);
            return Some(window);
        }
        if self.windows >= WINDOWS_MAX {
            self.drop_oldest();
        }
        self.next += 1;
        let window = match Window::new(self.next) {
            Ok(window) => Arc::new(window),
            Err(e) => {
                tracing::warn!("no window for clients: {e}");
                return None;
            }
        };
        let file = self.files.entry(ino).or_insert_with(|| File { generation, windows: HashMap::new() });
        file.windows.insert(place, window.clone());
        self.windows += 1;
        self.use_now(ino, place);
        Some(window)
    }

    fn use_now(&mut self, ino: Ino, place: u64) {
        let Some(window) = self.files.get(&ino).and_then(|f| f.windows.get(&place)) else { return };
        self.next += 1;
        let before = std::mem::replace(&mut window.inner.lock().used, self.next);
        self.uses.remove(&before);
        self.uses.insert(self.next, (ino, place));
    }

    fn shrink(&mut self) {
        while self.pages > self.pages_max && self.windows > 1 {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        if let Some((_, (ino, place))) = self.uses.pop_first() {
            self.drop_window(ino, place);
        }
    }

    fn drop_file(&mut self, ino: Ino) {
        let places: Vec<u64> =
            self.files.get(&ino).map_or(Vec::new(), |f| f.windows.keys().copied().collect());
        places.into_iter().for_each(|place| self.drop_window(ino, place));
        self.files.remove(&ino);
    }

    fn drop_window(&mut self, ino: Ino, place: u64) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        let Some(window) = file.windows.remove(&place) else { return };
        if file.windows.is_empty() {
            self.files.remove(&ino);
        }
        let inner = window.inner.lock();
        self.uses.remove(&inner.used);
        self.windows -= 1;
        self.pages -= inner.pages;
        window.take(0..WINDOW_PAGES);
        window.memory.discard(WINDOW_DATA_AT, WINDOW_BYTES - WINDOW_DATA_AT);
    }
}

impl Watcher for Windows {
    fn changed(&self, change: &Change<'_>) {
        self.changes.changed(change);
        let Change::Data { ino, start, end } = *change else { return };
        let state = &mut *self.state.lock();
        let Some(file) = state.files.get(&ino) else { return };
        let (first, last) = (start / PAGE as u64, end.div_ceil(PAGE as u64));
        for (&place, window) in &file.windows {
            let begin = place * WINDOW_PAGES as u64;
            let within = |page: u64| page.saturating_sub(begin).min(WINDOW_PAGES as u64) as usize;
            let taken = window.take(within(first)..within(last));
            window.inner.lock().pages -= taken;
            state.pages -= taken;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: Ino = Ino(7);

    fn there(window: &Window, page: usize) -> bool {
        window.memory.long(8 * page).load(Ordering::SeqCst) & 1 == 1
    }

    fn windows(pages: usize) -> Windows {
        Windows::new(Arc::new(Changes::new().unwrap()), pages * PAGE)
    }

    #[test]
    fn pages_come_and_go() {
        let windows = windows(1000);
        let plan = windows.plan(INO, 5000, 10, 1 << 16).unwrap();
        assert_eq!((plan.start, plan.len), (4096, 4096));
        let window = windows.fill(INO, 1, &plan, &[&[1; 1000], &[2; 3096]]).unwrap();
        let mut bytes = [0; 2];
        window.memory.copy_out(WINDOW_DATA_AT + PAGE + 999, &mut bytes);
        assert_eq!((bytes, there(&window, 0), there(&window, 1)), ([1, 2], false, true));
        // The end of the file is filled up with zeros.
        let plan = windows.plan(INO, 8192, 4096, 1 << 16).unwrap();
        windows.fill(INO, 1, &plan, &[&[3; 100]]).unwrap();
        window.memory.copy_out(WINDOW_DATA_AT + 2 * PAGE + 99, &mut bytes);
        assert_eq!((bytes, windows.size()), ([3, 0], (2 * PAGE, 1)));
        windows.changed(&Change::Data { ino: INO, start: 8191, end: 8192 });
        assert_eq!((there(&window, 1), there(&window, 2), windows.size().0), (false, true, PAGE));
        windows.changed(&Change::Data { ino: INO, start: 0, end: u64::MAX });
        assert_eq!((there(&window, 2), windows.size().0), (false, 0));
    }

    #[test]
    fn what_changed_while_it_was_read_is_left_out() {
        let windows = windows(1000);
        let plan = windows.plan(INO, 0, 4096, 1 << 16).unwrap();
        windows.changed(&Change::Data { ino: INO, start: 0, end: 1 });
        assert!(windows.fill(INO, 1, &plan, &[&[1; 4096]]).is_none());
        assert_eq!(windows.size(), (0, 0));
    }

    #[test]
    fn an_inode_that_became_another_file() {
        let windows = windows(1000);
        let plan = windows.plan(INO, 0, 4096, 1 << 16).unwrap();
        let old = windows.fill(INO, 1, &plan, &[&[1; 4096]]).unwrap();
        let plan = windows.plan(INO, 4096, 4096, 1 << 16).unwrap();
        let new = windows.fill(INO, 2, &plan, &[&[2; 4096]]).unwrap();
        assert_ne!(old.number(), new.number());
        assert!(!there(&old, 0) && !there(&new, 0) && there(&new, 1));
        let mut bytes = [9; 1];
        old.memory.copy_out(WINDOW_DATA_AT, &mut bytes);
        assert_eq!(bytes, [0], "its memory was given back");
    }

    #[test]
    fn memory_is_bounded() {
        let windows = windows(8);
        let mut all = Vec::new();
        for i in 0..6u64 {
            let at = i * (WINDOW_PAGES * PAGE) as u64;
            let plan = windows.plan(INO, at, 3 * PAGE, 1 << 16).unwrap();
            all.push(windows.fill(INO, 1, &plan, &[&[1; 3 * PAGE]]).unwrap());
            windows.find(INO, 0);
            assert!(windows.size().0 <= 8 * PAGE);
        }
        let left: Vec<bool> = all.iter().map(|w| there(w, 0)).collect();
        assert_eq!(left, [true, false, false, false, false, true], "the one in use stays");
    }

    #[test]
    fn reading_in_order_reads_ahead() {
        let windows = windows(1000);
        let mut at = 0;
        for wanted in [1, 1, 2, 4, 8, 16, 16] {
            let plan = windows.plan(INO, at * PAGE as u64, PAGE, 1 << 16).unwrap();
            assert_eq!(plan.len / PAGE, wanted, "at page {at}");
            windows.fill(INO, 1, &plan, &[&vec![1; plan.len]]).unwrap();
            at += wanted as u64;
        }
        assert_eq!(windows.plan(INO, 0, PAGE, 1 << 16).unwrap().len, PAGE);
        assert!(windows.plan(INO, 0, 1 << 17, 1 << 16).is_none());
    }
}

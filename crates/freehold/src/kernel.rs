//! The kernel as one who keeps things: it is told what changes in sessions.
//!
//! Telling it may have to wait for the lock that it has on a directory, an inode or a page while a request of its own is under way, and that request may
//! wait for the very call that tells. So a thread does it that nobody else needs, and calls wait as futures, having given back what others could
//! wait for (`fs::watched`). Most changes concern nothing that the kernel keeps, and cost a look.
//!
//! Tested here and in `tests/mount.rs`.

use fs::Ino;
use fs::watched::{Change, Told, Watcher};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// What must be told: a [`Change`] that owns what it speaks of.
#[derive(Debug)]
enum News {
    Data { ino: Ino, start: u64, end: u64 },
    Attr { ino: Ino },
    Name { parent: Ino, name: Vec<u8> },
}

impl From<&Change<'_>> for News {
    fn from(change: &Change<'_>) -> News {
        match *change {
            Change::Data { ino, start, end } => News::Data { ino, start, end },
            Change::Attr { ino } => News::Attr { ino },
            Change::Name { parent, name } => News::Name { parent, name: name.to_vec() },
        }
    }
}

impl News {
    /// The inode, or the directory, for whose lock in the kernel telling it may wait.
    fn locked(&self) -> Ino {
        match self {
            News::Data { ino, .. } | News::Attr { ino } => *ino,
            News::Name { parent, .. } => *parent,
        }
    }
}

/// The kernel takes things in at once, unless somebody has it hold a lock.
const SLOW: Duration = Duration::from_secs(5);

#[derive(Default)]
struct State {
    /// In order of what was changed.
    queue: VecDeque<News>,
    /// How much was ever put there, and how much of that the kernel has taken in.
    sent: u64,
    done: u64,
    /// Calls, with what they wait for.
    waiting: Vec<(u64, Waker)>,
    /// What it is being told of, and since when; until that was complained of.
    telling: Option<(Instant, Ino)>,
    over: bool,
}

impl State {
    /// Of which inode the kernel has not taken something in for long. Said once.
    fn stuck(&mut self, now: Instant) -> Option<Ino> {
        let slow = |(since, _): &mut (Instant, Ino)| now.saturating_duration_since(*since) >= SLOW;
        self.telling.take_if(slow).map(|(_, ino)| ino)
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn run(&self, notifier: &fuse::Notifier) {
        loop {
            let news = {
                let mut state = self.lock();
                loop {
                    match state.queue.pop_front() {
                        Some(news) => {
                            state.telling = Some((Instant::now(), news.locked()));
                            break news;
                        }
                        None if state.over => return,
                        None => state = self.work.wait(state).unwrap_or_else(|e| e.into_inner()),
                    }
                }
            };
            let begun = Instant::now();
            tell(notifier, &news);
            if begun.elapsed() >= SLOW {
                let (ino, seconds) = (news.locked().0, begun.elapsed().as_secs());
                tracing::warn!("the kernel has taken in a change of inode {ino} after {seconds} seconds");
            }
            let ready: Vec<Waker> = {
                let mut state = self.lock();
                state.telling = None;
                state.done += 1;
                let done = state.done;
                state.waiting.extract_if(.., |(number, _)| *number <= done).map(|(_, waker)| waker).collect()
            };
            ready.into_iter().for_each(Waker::wake);
        }
    }
}

fn tell(notifier: &fuse::Notifier, news: &News) {
    let told = match news {
        News::Data { ino, start, end } => notifier.data(*ino, *start, *end),
        News::Attr { ino } => notifier.attr(*ino),
        News::Name { parent, name } => notifier.name(*parent, name),
    };
    // Without a mount nobody keeps anything.
    if let Err(e) = told
        && !matches!(e.raw_os_error(), Some(libc::ENODEV | libc::ENOTCONN | libc::ENOTDIR))
    {
        tracing::warn!("the kernel did not take in {news:?}: {e}");
    }
}

/// See the module. The thread ends when this is dropped.
pub(crate) struct Kernel {
    notifier: fuse::Notifier,
    shared: Arc<Shared>,
}

impl Kernel {
    /// Starts the thread.
    pub fn start(notifier: fuse::Notifier) -> io::Result<Kernel> {
        let shared = Arc::<Shared>::default();
        let (told, of) = (shared.clone(), notifier.clone());
        std::thread::Builder::new().name("freehold-kernel".into()).spawn(move || told.run(&of))?;
        Ok(Kernel { notifier, shared })
    }

    fn concerns(&self, change: &Change<'_>) -> bool {
        match *change {
            Change::Data { ino, .. } => self.notifier.keeps_data(ino),
            Change::Attr { ino } => self.notifier.keeps_attr(ino),
            Change::Name { parent, name } => self.notifier.keeps_name(parent, name),
        }
    }
}

impl Watcher for Kernel {
    fn keeps(&self, ino: Ino) -> bool {
        ino == Ino::ROOT || self.notifier.has(ino)
    }

    fn changed(&self, change: &Change<'_>) -> Option<Told> {
        if !self.concerns(change) {
            return None;
        }
        let mut state = self.shared.lock();
        state.queue.push_back(News::from(change));
        state.sent += 1;
        let (number, shared) = (state.sent, self.shared.clone());
        let stuck = state.stuck(Instant::now());
        drop(state);
        self.shared.work.notify_one();
        if let Some(Ino(ino)) = stuck {
            tracing::warn!(
                "the kernel does not take in a change of inode {ino}: somebody has it hold that locked; changes by sessions wait"
            );
        }
        Some(Box::pin(poll_fn(move |cx| {
            let mut state = shared.lock();
            if state.done >= number {
                return Poll::Ready(());
            }
            state.waiting.retain(|(of, _)| *of != number);
            state.waiting.push((number, cx.waker().clone()));
            Poll::Pending
        })))
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.shared.lock().over = true;
        self.shared.work.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fs::leases::{Call, Caller, Lender, Settling};
    use fs::{Cred, FileSystem, Watched};
    use std::os::unix::fs::FileExt;
    use std::pin::Pin;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::task::{Context, Wake};

    /// Keeps whoever settles waiting while it is closed.
    #[derive(Default)]
    struct Gate {
        closed: AtomicBool,
        ino: AtomicU64,
    }

    impl Lender for Gate {
        fn lends(&self, ino: Ino, _: Caller) -> bool {
            ino.0 == self.ino.load(Ordering::SeqCst)
        }

        fn may_lend(&self, ino: Ino, caller: Caller) -> bool {
            self.lends(ino, caller)
        }

        fn settle(&self, _: Option<(Ino, Call)>, _: Caller) -> Settling<'_> {
            Box::pin(poll_fn(|_| match self.closed.load(Ordering::SeqCst) {
                true => Poll::Pending,
                false => Poll::Ready(Ok(())),
            }))
        }
    }

    fn can_mount() -> bool {
        // SAFETY: geteuid has no preconditions.
        let can = unsafe { libc::geteuid() } == 0 && std::path::Path::new("/dev/fuse").exists();
        if !can {
            println!("skipped: needs root and /dev/fuse");
        }
        can
    }

    /// A volume with a kernel that is told of changes.
    fn mounted() -> (Watched<block::Volume>, tempfile::TempDir, fuse::Mount) {
        let media = Arc::new(media::RamMedia::new(64 << 20).unwrap());
        block::mkfs(media.clone(), &Default::default()).unwrap();
        let doors = Watched::new(Arc::new(block::Volume::open(media, Default::default()).unwrap()));
        let dir = tempfile::tempdir().unwrap();
        let mount = fuse::mount(Arc::new(doors.clone()), dir.path(), Default::default()).unwrap();
        doors.watch(Arc::new(Kernel::start(mount.notifier()).unwrap()));
        (doors, dir, mount)
    }

    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    fn eventually(what: &str, mut is: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !is() {
            assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn a_kernel_that_is_stuck_is_complained_of_once() {
        let mut state = State::default();
        let begun = Instant::now();
        assert_eq!(state.stuck(begun), None);
        let news = News::Name { parent: Ino(7), name: b"x".to_vec() };
        state.telling = Some((begun, news.locked()));
        assert_eq!(state.stuck(begun + SLOW / 2), None);
        assert_eq!(state.stuck(begun + SLOW), Some(Ino(7)));
        assert_eq!(state.stuck(begun + SLOW * 2), None);
    }

    /// One thread makes two calls of sessions. The first has the turn of a name and waits for the device; the kernel makes that name, so it has
    /// its directory locked and waits for the turn; the second has changed another name in that directory.
    #[test]
    fn the_kernel_is_told_while_it_waits_for_a_suspended_call() {
        if !can_mount() {
            return;
        }
        let (doors, dir, mount) = mounted();
        let gate = Arc::new(Gate::default());
        doors.lend(gate.clone());
        // Without a lease nobody asks.
        doors.lease_begins();

        let session = doors.door();
        let cred = Cred::root();
        let ino =
            fs::block_on(session.mknod(&cred, Ino::ROOT, b"file", libc::S_IFREG | 0o644, 0)).unwrap().ino;
        gate.ino.store(ino.0, Ordering::SeqCst);
        std::fs::write(dir.path().join("known"), b"x").unwrap();
        assert!(dir.path().join("absent").symlink_metadata().is_err());

        let woken = Arc::new(Woken(AtomicBool::new(false)));
        let waker = Waker::from(woken.clone());
        let mut cx = Context::from_waker(&waker);
        gate.closed.store(true, Ordering::SeqCst);
        let mut first: Pin<Box<_>> = Box::pin(session.link(&cred, ino, Ino::ROOT, b"taken"));
        assert!(first.as_mut().poll(&mut cx).is_pending());
        let taken = dir.path().join("taken");
        let kernel = std::thread::spawn(move || std::fs::create_dir(taken));
        std::thread::sleep(Duration::from_millis(300));
        assert!(!kernel.is_finished(), "it waits for the turn");

        let mut second: Pin<Box<_>> = Box::pin(session.unlink(&cred, Ino::ROOT, b"known"));
        assert!(second.as_mut().poll(&mut cx).is_pending(), "the kernel has its directory locked");
        gate.closed.store(false, Ordering::SeqCst);
        // Both have the kernel told, and are woken when it has taken that in.
        let mut linked = first.as_mut().poll(&mut cx);
        let mut unlinked = Poll::Pending;
        eventually("the calls end", || {
            if woken.0.swap(false, Ordering::SeqCst) {
                if linked.is_pending() {
                    linked = first.as_mut().poll(&mut cx);
                }
                if unlinked.is_pending() {
                    unlinked = second.as_mut().poll(&mut cx);
                }
            }
            linked.is_ready() && unlinked.is_ready()
        });
        assert!(matches!((linked, unlinked), (Poll::Ready(Ok(_)), Poll::Ready(Ok(())))));
        assert_eq!(kernel.join().unwrap().unwrap_err().raw_os_error(), Some(libc::EEXIST));
        assert!(dir.path().join("known").symlink_metadata().is_err(), "what it kept is gone");
        doors.lease_ends();
        mount.unmount().unwrap();
        mount.wait();
    }

    /// A program reads what a session has just appended, while another changes attributes of the file and makes links to it through the kernel: answers that
    /// say how long the file was before. The kernel itself counts attributes as valid an instant before it has the size, so a few reads may be short.
    #[test]
    fn answers_with_older_attributes_do_not_count() {
        if !can_mount() {
            return;
        }
        let (doors, dir, mount) = mounted();
        let path = dir.path().join("file");
        let file = std::fs::File::create(&path).unwrap();
        let (session, cred) = (doors.door(), Cred::root());
        let ino = fs::block_on(session.lookup(&cred, Ino::ROOT, b"file")).unwrap().ino;
        let handle = fs::block_on(session.open(&cred, ino, fs::OpenFlags::WRITE)).unwrap();
        let (over, begun) = (AtomicBool::new(false), Instant::now());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut links = (0..).map(|number| dir.path().join(format!("link{number}")));
                // Not for ever, should the other thread fail.
                while !over.load(Ordering::Relaxed) && begun.elapsed() < Duration::from_secs(20) {
                    (0..20).for_each(|_| std::os::unix::fs::fchown(&file, Some(0), Some(0)).unwrap());
                    std::fs::hard_link(&path, links.next().unwrap()).unwrap();
                }
            });
            let reader = std::fs::File::open(&path).unwrap();
            let (mut at, mut short) = (0, 0u64);
            while begun.elapsed() < Duration::from_secs(2) {
                let bytes = [7; 100];
                assert_eq!(fs::block_on(session.write(handle, at, &bytes)).unwrap(), 100);
                let mut read = [0; 100];
                let n = reader.read_at(&mut read, at).unwrap();
                short += (n < 100) as u64;
                at += 100;
            }
            over.store(true, Ordering::Relaxed);
            assert!(short * 1000 < at / 100, "{short} of {}", at / 100);
        });
        drop(file);
        mount.unmount().unwrap();
        mount.wait();
    }
}

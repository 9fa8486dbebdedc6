//! Writes that are refused when they have begun, or have to wait when they are done; and what is not told to be durable.

use super::*;
use crate::core::Wait;
use crate::inode::Slot;
use crate::space::Run;
use crate::writeback::Purpose;
use fs::client::{BlockingFile, OpenOptions as Open};
use fs::{Client, Cred};
use media::ram::RamMedia;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Waker};
use std::time::Duration;

const PAGE: usize = 4096;

/// A volume that nobody drives: what is on its way to the medium stays there.
fn undriven() -> (Volume, Worker, BlockingFile<Volume>, Slot) {
    undriven_with(OpenOptions::default())
}

fn undriven_with(options: OpenOptions) -> (Volume, Worker, BlockingFile<Volume>, Slot) {
    let media = Arc::new(RamMedia::new(256 << 20).unwrap());
    crate::mkfs(media.clone(), &Default::default()).unwrap();
    let (volume, worker) = Volume::open_manual(media, options).unwrap();
    volume.inner.shared.lock().keep_min = 1;
    let client = Client::new(Arc::new(volume.clone()), Cred::root()).blocking();
    let file = client.open("/f", Open::new().read(true).write(true).create(true)).unwrap();
    let slot = volume.handle(file.handle()).unwrap().slot;
    (volume, worker, file, slot)
}

struct Woken(AtomicBool);

impl std::task::Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The worker has done all it can.
fn settle(worker: &mut Worker) {
    while worker.step() {}
}

fn take_all(core: &mut Core) -> Vec<Run> {
    std::iter::from_fn(|| core.space.alloc(512, None)).collect()
}

/// One step of a write of a page, by a caller who has waited for a checkpoint already.
fn write(core: &mut Core, handle: Handle, byte: u8, page: usize, done: &mut usize) -> Res<()> {
    let bytes = vec![byte; PAGE];
    core.write(handle, ((page * PAGE) as u64, 1), &bytes.as_slice(), PAGE, done, &mut Some(0))
}

fn holds(file: &BlockingFile<Volume>, page: usize, byte: u8) -> bool {
    let mut bytes = [0; PAGE];
    assert_eq!(file.read_at(&mut bytes, (page * PAGE) as u64), Ok(PAGE));
    bytes == [byte; PAGE]
}

/// Pages on their way to the medium get other frames when they are overwritten. One that is refused then shows what it held, and not what was in that memory;
/// and for lack of space nothing is refused that takes none.
#[test]
fn a_page_on_its_way_that_may_not_be_overwritten_holds_what_it_held() {
    let (volume, _worker, file, slot) = undriven();
    let lock = || volume.inner.shared.lock();
    let pieces = format::extent::EXTENTS_INLINE_MAX;
    for i in 0..pieces {
        file.write_all_at(&[7; PAGE], (2 * i * PAGE) as u64).unwrap();
    }
    {
        let mut core = lock();
        assert!(core.write_back_all(Purpose::Memory).is_ok());
        take_all(&mut core);
        let frame = core.cache.find(crate::pages::key(slot, 0)).unwrap();
        assert!(core.cache.is_pinned(frame) && !core.cache.is_dirty(frame));
        assert!(matches!(write(&mut core, file.handle(), 8, 0, &mut 0), Ok(())));
    }
    assert!(holds(&file, 0, 8));
    {
        let mut core = lock();
        // More than any volume has room for.
        core.tail_mut(slot).grows += 1 << 20;
        let refused = write(&mut core, file.handle(), 9, 2, &mut 0);
        assert!(matches!(refused, Err(Stop::Error(Error::NoSpace))));
    }
    assert!(holds(&file, 2, 7));
}

/// All bytes of a write are taken, and then it has to wait for blocks that its pages may go to: when there are some it is done, and not too large.
#[test]
fn a_write_that_waits_when_it_is_done_is_done() {
    let (volume, _worker, file, slot) = undriven();
    // So many that whole windows are dispatched with the next write: with this one there is none.
    file.write_all_at(&vec![7; 1023 * PAGE], 0).unwrap();
    file.write_all_at(&[7; PAGE], 1100 * PAGE as u64).unwrap();
    let mut core = volume.inner.shared.lock();
    let taken = take_all(&mut core);
    let mut done = 0;
    let waits = write(&mut core, file.handle(), 8, 1022, &mut done);
    assert!(matches!(waits, Err(Stop::Wait(_))) && done == PAGE, "{done}");
    taken.into_iter().for_each(|run| core.space.free(run));
    assert!(matches!(write(&mut core, file.handle(), 8, 1022, &mut done), Ok(())));
    assert_eq!(core.slab.get(slot).size, 1101 * PAGE as u64);
    drop(core);
    assert!(holds(&file, 1022, 8));
}

/// As above, through a handle whose writes go to the medium before they are done.
#[test]
fn a_direct_write_that_waits_when_it_is_done_goes_to_the_medium() {
    let (volume, _worker, file, slot) = undriven();
    file.write_all_at(&[7; 2 * PAGE], 0).unwrap();
    let flags = OpenFlags::WRITE | OpenFlags::DIRECT;
    let mut core = volume.inner.shared.lock();
    let direct = core.open_slot(&Cred::root(), slot, flags, false);
    let taken = take_all(&mut core);
    let mut done = 0;
    let waits = write(&mut core, direct, 8, 1, &mut done);
    assert!(matches!(waits, Err(Stop::Wait(_))) && done == PAGE, "{done}");
    taken.into_iter().for_each(|run| core.space.free(run));
    assert!(matches!(write(&mut core, direct, 8, 1, &mut done), Ok(())));
    assert!(core.slab.get(slot).tail.as_ref().unwrap().dirty.is_empty());
    drop(core);
    assert!(holds(&file, 1, 8));
}

/// An append waits in its middle, and the file is cut meanwhile: the rest stands at the new end, without a hole before it.
#[test]
fn an_append_goes_on_at_the_end_of_a_file_that_was_cut() {
    for cut in [0, 5000] {
        let options = OpenOptions { cache_bytes: 2 << 20, ..OpenOptions::default() };
        let (volume, mut worker, file, slot) = undriven_with(options);
        let bytes: Vec<u8> = (0..3u32 << 20).map(|i| (i >> 12) as u8).collect();
        let mut core = volume.inner.shared.lock();
        let handle = core.open_slot(&Cred::root(), slot, OpenFlags::WRITE | OpenFlags::APPEND, false);
        let (mut done, mut is_cut) = (0, None);
        while done < bytes.len() {
            match core.write(handle, (0, 1), &bytes.as_slice(), PAGE, &mut done, &mut None) {
                Err(Stop::Wait(_)) => {}
                ended => ended.unwrap(),
            }
            drop(core);
            settle(&mut worker);
            core = volume.inner.shared.lock();
            if done > cut && is_cut.is_none() {
                assert!(core.truncate(slot, cut as u64, &mut None).is_ok());
                is_cut = Some(done);
            }
        }
        drop(core);
        let at = is_cut.unwrap();
        assert!(at < bytes.len(), "it did not wait");
        let expected = [&bytes[..cut], &bytes[at..]].concat();
        let mut found = vec![0; bytes.len()];
        let mut read = Box::pin(volume.read(file.handle(), 0, &mut found));
        let len = loop {
            match read.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(len) => break len.unwrap(),
                Poll::Pending => settle(&mut worker),
            }
        };
        drop(read);
        assert!(found[..len] == expected, "{len} bytes instead of {}", expected.len());
        assert_eq!(volume.appended(handle), Some(len as u64));
    }
}

/// All frames are pinned when a write looks for one, and let go before it says that it waits for one: nobody will wake it, so it looks once more.
#[test]
fn who_found_no_frame_looks_once_more() {
    let options = OpenOptions { cache_bytes: 2 << 20, ..OpenOptions::default() };
    let (volume, mut worker, file, _) = undriven_with(options);
    file.write_all_at(&[7; PAGE], 0).unwrap();
    settle(&mut worker);
    let mut core = volume.inner.shared.lock();
    let mut pages = 0..;
    while let Some(frame) = core.cache.insert(crate::pages::key(0, pages.next().unwrap())) {
        core.cache.pin(frame);
    }
    let waits = write(&mut core, file.handle(), 8, 1, &mut 0);
    assert!(matches!(waits, Err(Stop::Wait(Wait::Progress))), "{waits:?}");
    let woken = Arc::new(Woken(AtomicBool::new(false)));
    core.wait(Wait::Progress, &woken.clone().into());
    drop(core);
    assert!(woken.0.load(Ordering::Relaxed));
    // From now on who lets one go says so.
    assert!(volume.inner.shared.starving.load(Ordering::Relaxed));
    let mut core = volume.inner.shared.lock();
    let waits = write(&mut core, file.handle(), 8, 1, &mut 0);
    assert!(matches!(waits, Err(Stop::Wait(Wait::Progress))), "{waits:?}");
    woken.0.store(false, Ordering::Relaxed);
    core.wait(Wait::Progress, &woken.clone().into());
    drop(core);
    assert!(!woken.0.load(Ordering::Relaxed), "it looks for ever");
}

/// A commit is held back for syncs that do not come, and gets old, and then waits for room in the log: what it waits for is nothing that time brings.
#[test]
fn nobody_keeps_time_for_a_commit_that_waits_for_the_log() {
    let options = OpenOptions { dirty_age_max: Duration::from_millis(2), ..OpenOptions::default() };
    let (volume, mut worker, file, _) = undriven_with(options);
    let lock = || volume.inner.shared.lock();
    file.write_all_at(&[7; PAGE], 0).unwrap();
    // Its home writes are on their way, and stay there.
    let mut checkpoint = Box::pin(volume.checkpoint());
    assert!(checkpoint.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let goes_home = |core: &Core| core.checkpointing.is_some() && core.flush_wanted <= core.durable;
    let steps = (0..100).take_while(|_| !goes_home(&lock()) && worker.step()).count();
    file.write_all_at(&[8; PAGE], 0).unwrap();
    let mut core = lock();
    assert!(goes_home(&core), "after {steps} steps");
    let (epoch, durable, now) = (core.running.epoch, core.durable, core.monotonic());
    core.group.closed(durable, now.saturating_sub(Duration::from_millis(1)));
    assert!(core.gather(2));
    core.log.head += core.log.free() - 1;
    assert!(matches!(core.sync_point(), Ok(e) if e == epoch));
    std::thread::sleep(Duration::from_millis(5));
    core.background();
    assert!(core.close_wanted && core.running.epoch == epoch);
    let now = core.monotonic();
    assert!(core.deadline().is_none_or(|until| until > now), "{:?} at {now:?}", core.deadline());
}

/// Who has synced what would be lost with a record that no recovery reads is told so.
#[test]
fn what_is_in_a_record_that_is_too_long_is_not_durable() {
    for log in [8 << 20, 128 << 20] {
        let media = Arc::new(RamMedia::new(512 << 20).unwrap());
        let made = crate::MkfsOptions { log_bytes: Some(log), ..Default::default() };
        crate::mkfs(media.clone(), &made).unwrap();
        let volume = Volume::open(media, OpenOptions::default()).unwrap();
        let longest = format::limits::LOG_RECORD_MAX.min(log as usize / 2);
        let hold = |bytes| volume.inner.shared.lock().hold_record_max(bytes, bytes);
        hold(longest);
        fs::block_on(volume.sync()).unwrap();
        hold(longest + PAGE);
        assert!(matches!(fs::block_on(volume.sync()), Err(Error::Latched(_))));
    }
}

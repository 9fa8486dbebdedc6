//! Room for what a commit writes besides data: who needs more of it is refused before, and should a commit fail all who share it are told.

use super::*;
use crate::space::Run;
use format::extent::EXTENTS_INLINE_MAX;
use fs::client::OpenOptions as Open;
use fs::{Client, Cred, Fallocate};
use media::ram::RamMedia;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::mpsc::channel;
use std::task::{Context, Waker};
use std::time::Duration;

const PAGE: u64 = 4096;
const KEEP: Fallocate = Fallocate::Allocate { keep_size: true };

/// A commit finds no block for a node, as no volume lets it happen: who waits for it is told, and does not wait for ever.
#[test]
fn a_commit_without_room_fails_for_all_who_share_it() {
    let media = Arc::new(RamMedia::new(64 << 20).unwrap());
    crate::mkfs(media.clone(), &Default::default()).unwrap();
    let volume = Volume::open(media, OpenOptions::default()).unwrap();
    let client = Client::new(Arc::new(volume.clone()), Cred::root()).blocking();
    let open = |name: &str| client.open(name, Open::new().read(true).write(true).create(true)).unwrap();
    let (ended, all) = channel();
    let stop = Arc::new(AtomicBool::new(false));
    let refused = Arc::new(AtomicU32::new(0));
    for i in 0..4 {
        let (file, ended) = (open(&format!("/f{i}")), ended.clone());
        let (stop, refused) = (stop.clone(), refused.clone());
        std::thread::spawn(move || {
            let mut n = 0u16;
            while !stop.load(Ordering::Relaxed) {
                n = n.wrapping_add(1);
                file.chmod(n % 512).unwrap();
                match file.fsync() {
                    Ok(()) => {}
                    Err(Error::NoSpace) => _ = refused.fetch_add(1, Ordering::Relaxed),
                    Err(e) => panic!("{e}"),
                }
            }
            ended.send(()).unwrap();
        });
    }
    let pieces = open("/pieces");
    for i in 0..=2 * EXTENTS_INLINE_MAX as u64 {
        pieces.fallocate(KEEP, 2 * i * PAGE, PAGE).unwrap();
    }
    for i in 0..200 {
        pieces.fsync().unwrap();
        let mut taken: Vec<Run> = Vec::new();
        {
            let mut core = volume.inner.shared.lock();
            taken.extend(std::iter::from_fn(|| core.space.alloc(512, None)));
        }
        pieces.fallocate(Fallocate::PunchHole, 2 * i * PAGE, PAGE).unwrap();
        std::thread::sleep(Duration::from_millis(2));
        {
            let mut core = volume.inner.shared.lock();
            taken.into_iter().for_each(|run| core.space.free(run));
        }
        pieces.fallocate(KEEP, 2 * i * PAGE, PAGE).unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    for _ in 0..4 {
        all.recv_timeout(Duration::from_secs(30)).expect("one waits for ever");
    }
    assert!(refused.load(Ordering::Relaxed) > 0);
    drop(pieces);
    volume.close_blocking().unwrap();
}

/// A commit that is refused is refused for all who have joined it, also when somebody syncs again before they hear of it.
#[test]
fn who_syncs_next_takes_no_refusal_away() {
    let media = Arc::new(RamMedia::new(64 << 20).unwrap());
    crate::mkfs(media.clone(), &Default::default()).unwrap();
    let (volume, mut worker) = Volume::open_manual(media, OpenOptions::default()).unwrap();
    let client = Client::new(Arc::new(volume.clone()), Cred::root()).blocking();
    let file = client.open("/f", Open::new().write(true).create(true)).unwrap();
    let cx = &mut Context::from_waker(Waker::noop());
    let [mut before, mut joined, mut next] = [(); 3].map(|()| Box::pin(volume.sync()));
    assert!(before.as_mut().poll(cx).is_pending());
    file.chmod(0o600).unwrap();
    assert!(joined.as_mut().poll(cx).is_pending());
    volume.inner.shared.lock().refuse_joined(&Error::NoSpace);
    assert!(next.as_mut().poll(cx).is_pending(), "there is a commit on its way");
    assert_eq!(joined.as_mut().poll(cx), Poll::Ready(Err(Error::NoSpace)));
    while worker.step() {}
    assert_eq!(
        (before.as_mut().poll(cx), next.as_mut().poll(cx)),
        (Poll::Ready(Ok(())), Poll::Ready(Ok(())))
    );
}

/// Who waits while a volume is stopped that cannot be stopped cleanly is told.
#[test]
fn who_waits_is_told_that_a_volume_is_given_up() {
    let media = Arc::new(RamMedia::new(64 << 20).unwrap());
    crate::mkfs(media.clone(), &Default::default()).unwrap();
    let (volume, _worker) = Volume::open_manual(media, OpenOptions::default()).unwrap();
    let client = Client::new(Arc::new(volume.clone()), Cred::root()).blocking();
    client.open("/f", Open::new().write(true).create(true)).unwrap();
    let (ended, told) = channel();
    let syncs = volume.clone();
    std::thread::spawn(move || ended.send(fs::block_on(syncs.sync())));
    let waits = || !volume.inner.shared.lock().durable_waiters.is_empty();
    let begun = std::time::Instant::now();
    while !waits() {
        assert!(begun.elapsed() < Duration::from_secs(30), "it does not wait");
        std::thread::sleep(Duration::from_millis(1));
    }
    volume.inner.shared.lock().give_up();
    let result = told.recv_timeout(Duration::from_secs(30)).expect("it waits for ever");
    assert!(matches!(result, Err(Error::Latched(_))), "{result:?}");
}

/// Scattered writes into space that was allocated before, on a volume that has no other: each may need a node of the extent tree more. Where there is no room for it
/// the write is refused; no commit is, and what was written is there.
#[test]
fn scattered_writes_into_the_last_space_are_refused_before_a_commit_is() {
    let media = Arc::new(RamMedia::new(64 << 20).unwrap());
    crate::mkfs(media.clone(), &Default::default()).unwrap();
    let volume = Volume::open(media.clone(), OpenOptions::default()).unwrap();
    // So small a volume has enough for all nodes that can be on it.
    volume.inner.shared.lock().keep_min = 16;
    let client = Client::new(Arc::new(volume.clone()), Cred::root()).blocking();
    let file = client.open("/f", Open::new().read(true).write(true).create(true)).unwrap();
    let (mut pages, mut more) = (0, 8192);
    while more > 0 {
        match file.fallocate(Fallocate::Allocate { keep_size: false }, pages * PAGE, more * PAGE) {
            Ok(()) => pages += more,
            Err(Error::NoSpace) => more /= 2,
            Err(e) => panic!("{e}"),
        }
    }
    assert!(pages > 8000);
    let (mut written, mut refused) = (Vec::new(), 0);
    for round in 0..8 {
        for page in (2 * round..pages).step_by(16) {
            match file.write_all_at(&[page as u8; PAGE as usize], page * PAGE) {
                Ok(()) => written.push(page),
                Err(Error::NoSpace) => refused += 1,
                Err(e) => panic!("{e}"),
            }
        }
        file.fsync().unwrap_or_else(|e| panic!("round {round}: {e}"));
    }
    assert!(refused > 100 && written.len() > 500, "{refused} were refused, {} not", written.len());
    assert_eq!(volume.inner.shared.lock().nodes, 0);
    volume.close_blocking().unwrap();
    drop((file, client, volume));
    let report = crate::fsck::check(media.clone(), &Default::default(), &mut |_| {}).unwrap();
    assert!(report.is_clean(), "{report:?}");
    let volume = Volume::open(media, OpenOptions::default()).unwrap();
    let client = Client::new(Arc::new(volume.clone()), Cred::root()).blocking();
    let file = client.open("/f", Open::new().read(true).write(true)).unwrap();
    for page in written {
        let mut bytes = [0; PAGE as usize];
        assert_eq!(file.read_at(&mut bytes, page * PAGE), Ok(PAGE as usize));
        assert!(bytes == [page as u8; PAGE as usize], "page {page}");
    }
    file.set_len(0).unwrap();
    file.fsync().unwrap();
    file.write_all_at(&vec![1; 4 << 20], 0).unwrap();
    drop(file);
    volume.close_blocking().unwrap();
}

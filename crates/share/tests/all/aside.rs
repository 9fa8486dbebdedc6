//! Queues whose thread must go on while there is no manager.

use crate::rig::*;
use fs::FileSystem;
use share::Queue;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

type Request = dyn Future<Output = fs::Result<usize>>;

#[test]
fn nobody_waits_for_the_next_manager_in_a_queue() {
    let mut rig = Rig::new(volume(64 << 20));
    let client = rig.client();
    let remote = client.client().fs().clone();
    let opened: fs::File<share::Remote> = client.open("f", NEW).unwrap().into();
    let file: &'static fs::File<share::Remote> = Box::leak(Box::new(opened));
    remote.block_on(file.write_all_at(b"here", 0)).unwrap();
    remote.block_on(file.fsync()).unwrap();
    drop(rig.server.take());

    let mut queue: Queue<Request> = Queue::aside();
    let request = |text: &'static [u8], at| -> Pin<Box<Request>> {
        let call = async move { file.write_at(text, at).await };
        Box::pin(call)
    };
    let mut longest = Duration::ZERO;
    let mut poll = |queue: &mut Queue<Request>, limit: Duration| {
        let begun = Instant::now();
        let turn = poll_fn(|cx| {
            queue.poll(cx);
            if queue.under_way() == 0 { Poll::Ready(()) } else { Poll::Pending }
        });
        let done = remote.wait_until(turn, Some(begun + limit)).is_some();
        longest = longest.max(begun.elapsed().saturating_sub(limit));
        done
    };
    for n in 0..8 {
        queue.push(Some(&remote), request(b"more", 4 + 4 * n));
        assert!(!poll(&mut queue, Duration::ZERO), "done without a manager");
    }
    for _ in 0..10 {
        assert!(!poll(&mut queue, Duration::from_millis(30)), "done without a manager");
    }
    rig.serve();
    let begun = Instant::now();
    while !poll(&mut queue, Duration::from_millis(50)) {
        assert!(begun.elapsed() < Duration::from_secs(20), "nothing goes on with the next manager");
    }
    assert!(longest < Duration::from_secs(1), "a poll took {longest:?} more than its limit");
    for _ in 0..8 {
        assert_eq!(queue.take().unwrap().unwrap(), 4);
    }
    let mut bytes = [0; 50];
    assert_eq!(remote.block_on(file.read_at(&mut bytes, 0)).unwrap(), 36);
    assert_eq!(&bytes[..36], b"heremoremoremoremoremoremoremoremore");
}

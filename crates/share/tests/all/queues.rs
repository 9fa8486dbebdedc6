//! Several queues of one client.

use crate::rig::*;
use fs::FileSystem;
use share::Queue;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

type Request = dyn Future<Output = fs::Result<usize>>;

/// One queue has requests in all places, and nobody polls it, as the thread that does so waits for what is in others.
#[test]
fn a_queue_goes_on_while_nobody_polls_another_one() {
    let rig = Rig::new(volume(64 << 20));
    let client = rig.client();
    let remote = client.client().fs().clone();
    let opened: fs::File<share::Remote> = client.open("f", NEW).unwrap().into();
    let file: &'static fs::File<share::Remote> = Box::leak(Box::new(opened));
    let request =
        |at: u64| -> Pin<Box<Request>> { Box::pin(async move { file.write_at(b"page", at).await }) };
    let poll = |queue: &mut Queue<Request>, all: bool| {
        let turn = poll_fn(|cx| {
            queue.poll(cx);
            if !all || queue.under_way() == 0 { Poll::Ready(()) } else { Poll::Pending }
        });
        remote.wait_until(turn, Some(Instant::now() + Duration::from_secs(20))).is_some()
    };
    let mut first: Queue<Request> = Queue::default();
    (0..100).for_each(|n| first.push(Some(&remote), request(4 * n)));
    assert!(poll(&mut first, false));
    let mut others: Vec<Queue<Request>> = (0..3).map(|_| Queue::default()).collect();
    for (n, queue) in others.iter_mut().enumerate() {
        (0..5).for_each(|m| queue.push(Some(&remote), request(400 + 4 * (5 * n as u64 + m))));
    }
    for queue in &mut others {
        assert!(poll(queue, true), "it waits for a place: {queue:?}");
    }
    assert!(poll(&mut first, true));
    for queue in others.iter_mut().chain([&mut first]) {
        while let Some(result) = queue.take() {
            assert_eq!(result, Ok(4));
        }
    }
    let mut bytes = [0; 500];
    assert_eq!(remote.block_on(file.read_at(&mut bytes, 0)), Ok(460));
    assert!(bytes[..460].chunks(4).all(|four| four == b"page"));
}

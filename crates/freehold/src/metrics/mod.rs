//! Metrics over HTTP, for Prometheus: `GET /metrics` and nothing else.
//!
//! Not a web server: a connection is one request and one answer. What comes in is bounded in bytes (`REQUEST_MAX`), time
//! (`PATIENCE`) and number (`CONNECTIONS`), and looked at as bytes only. There is no encryption and no password, so the address should be
//! one that only those who may know can reach; the metrics name images and URLs of buckets, not users or files.
//!
//! An exporter whom nobody asks sleeps in accept. Tested here and in `tests/observe.rs`.

mod bucket;
mod text;

use crate::bucket::BucketService;
use crate::observe::Observed;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use text::exposition;

/// Longest request, bytes.
const REQUEST_MAX: usize = 8 << 10;
/// Time for a request to come and for its answer to be taken.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections at a time; further ones are closed at once.
const CONNECTIONS: usize = 8;

/// A port where nobody is answered yet.
#[derive(Debug)]
pub struct Listener(TcpListener);

impl Listener {
    /// Takes the port.
    ///
    /// # Errors
    /// Those of bind(2), with the address in the text.
    pub fn bind(at: SocketAddr) -> io::Result<Listener> {
        let failed = |e: io::Error| io::Error::new(e.kind(), format!("metrics at {at}: {e}"));
        TcpListener::bind(at).map(Listener).map_err(failed)
    }

    /// Where it is, with the port that the system has chosen if that was 0.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Answers from now on, about these volumes as long as they are in service.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn serve(self, volumes: Vec<Weak<Observed>>) -> io::Result<Exporter> {
        self.serve_page(move || exposition(volumes.iter().filter_map(Weak::upgrade).map(|v| v.snapshot())))
    }

    /// Answers from now on, about a bucket as long as it is in service.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn serve_bucket(self, bucket: Weak<BucketService>) -> io::Result<Exporter> {
        self.serve_page(move || bucket::exposition(bucket.upgrade().map(|b| b.snapshot())))
    }

    fn serve_page(self, page: impl Fn() -> String + Send + Sync + 'static) -> io::Result<Exporter> {
        let (address, over) = (self.address()?, Arc::<AtomicBool>::default());
        let (stop, page) = (over.clone(), Arc::new(page));
        let thread = std::thread::Builder::new().name("freehold-metric".into()).spawn(move || {
            let busy = Arc::<AtomicUsize>::default();
            for stream in self.0.incoming() {
                if stop.load(Ordering::Acquire) {
                    return;
                }
                let Ok(stream) = stream else {
                    // Out of descriptors, perhaps: no hurry then.
                    std::thread::sleep(Duration::from_millis(10));
                    continue;
                };
                if busy.load(Ordering::Acquire) >= CONNECTIONS {
                    continue;
                }
                let one = Counted::new(busy.clone());
                let page = page.clone();
                let answering = std::thread::Builder::new().name("freehold-metric".into()).spawn(move || {
                    let _one = one;
                    if let Err(e) = answer(stream, &*page) {
                        tracing::debug!("metrics: {e}");
                    }
                });
                if let Err(e) = answering {
                    tracing::warn!("metrics: no thread for an answer: {e}");
                }
            }
        })?;
        Ok(Exporter { address, over, thread: Some(thread) })
    }
}

/// Answers until it is dropped; then its port is free.
#[derive(Debug)]
pub struct Exporter {
    address: SocketAddr,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Exporter {
    /// Where it answers.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        // Wakes the thread. What listens everywhere is reached here.
        let mut to = self.address;
        match to {
            SocketAddr::V4(a) if a.ip().is_unspecified() => to.set_ip(Ipv4Addr::LOCALHOST.into()),
            SocketAddr::V6(a) if a.ip().is_unspecified() => to.set_ip(Ipv6Addr::LOCALHOST.into()),
            _ => {}
        }
        let woken = TcpStream::connect_timeout(&to, Duration::from_secs(1));
        if let Some(thread) = self.thread.take().filter(|_| woken.is_ok()) {
            let _ = thread.join();
        }
    }
}

/// One of the connections, as long as it lives.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(all: Arc<AtomicUsize>) -> Counted {
        all.fetch_add(1, Ordering::AcqRel);
        Counted(all)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn answer(mut stream: TcpStream, page: impl FnOnce() -> String) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    let request = receive(&mut stream, until)?;
    let (status, with_body, body) = match judge(&request) {
        Asked::Metrics { head } => ("200 OK", !head, page()),
        Asked::Wrong(status) => (status, true, format!("{status}\nThe metrics are at /metrics.\n")),
    };
    let kind = match status {
        "200 OK" => "text/plain; version=0.0.4; charset=utf-8",
        _ => "text/plain; charset=utf-8",
    };
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    let len = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\n{allow}Connection: close\r\n\r\n"
    );
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(head.as_bytes())?;
    if with_body {
        stream.write_all(body.as_bytes())?;
    }
    // What is left unread would reset the connection, and with it the answer.
    stream.shutdown(Shutdown::Write)?;
    let (mut rest, mut left) = ([0; 1024], 64);
    while left > 0 && wait(&stream, until).is_ok() && stream.read(&mut rest).is_ok_and(|n| n > 0) {
        left -= 1;
    }
    Ok(())
}

/// The next read waits until then at most.
fn wait(stream: &TcpStream, until: Instant) -> io::Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    stream.set_read_timeout(Some(left))
}

/// Reads up to the empty line, the end, or the limit.
fn receive(stream: &mut TcpStream, until: Instant) -> io::Result<Vec<u8>> {
    let (mut request, mut part) = (Vec::new(), [0; 1024]);
    while !is_whole(&request) && request.len() < REQUEST_MAX {
        wait(stream, until)?;
        match stream.read(&mut part)? {
            0 => break,
            n => request.extend_from_slice(&part[..n]),
        }
    }
    Ok(request)
}

fn is_whole(request: &[u8]) -> bool {
    request.windows(4).any(|w| w == b"\r\n\r\n") || request.windows(2).any(|w| w == b"\n\n")
}

#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Metrics { head: bool },
    Wrong(&'static str),
}

/// What a request is answered with.
fn judge(request: &[u8]) -> Asked {
    if !is_whole(request) {
        let too_long = request.len() >= REQUEST_MAX;
        return Asked::Wrong(if too_long {
            "431 Request Header Fields Too Large"
        } else {
            "400 Bad Request"
        });
    }
    let line = request.split(|&b| b == b'\r' || b == b'\n').next().unwrap_or(b"");
    let mut words = line.split(|&b| b == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Asked::Wrong("400 Bad Request");
    };
    if !version.starts_with(b"HTTP/1.") {
        return Asked::Wrong("505 HTTP Version Not Supported");
    }
    // Some add a query, which changes nothing.
    if target.split(|&b| b == b'?').next() != Some(b"/metrics") {
        return Asked::Wrong("404 Not Found");
    }
    match method {
        b"GET" => Asked::Metrics { head: false },
        b"HEAD" => Asked::Metrics { head: true },
        _ => Asked::Wrong("405 Method Not Allowed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exporter() -> Exporter {
        Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap().serve(Vec::new()).unwrap()
    }

    fn say(to: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(to).unwrap();
        let _ = stream.write_all(request);
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }

    #[test]
    fn requests_good_and_bad() {
        let exporter = exporter();
        let long = [b"GET /metrics HTTP/1.1\r\nX: ".as_slice(), &[b'a'; 2 * REQUEST_MAX]].concat();
        for (request, status) in [
            (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".as_slice(), "200"),
            (b"GET /metrics?x=%00 HTTP/1.0\n\n", "200"),
            (b"HEAD /metrics HTTP/1.1\r\n\r\n", "200"),
            (b"GET / HTTP/1.1\r\n\r\n", "404"),
            (b"GET /metrics/../etc HTTP/1.1\r\n\r\n", "404"),
            (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "405"),
            (b"GET /metrics HTTP/2\r\n\r\n", "505"),
            (b"GET /metrics\r\n\r\n", "400"),
            (b"GET /metrics HTTP/1.1 x\r\n\r\n", "400"),
            (b"GET /metrics HTTP/1.1\r\nHo", "400"),
            (b"", "400"),
            (b"\r\n\r\n", "400"),
            (b"\x16\x03\x01\x02\x00\xff\xfe\x00\n\n", "400"),
            (&long, "431"),
        ] {
            let answer = say(exporter.address(), request);
            let shown = request.escape_ascii().to_string();
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{shown:.60}: {answer:?}");
            assert_eq!(
                answer.contains("# HELP"),
                status == "200" && !request.starts_with(b"HEAD"),
                "{answer}"
            );
        }
    }

    #[test]
    fn silent_and_random_clients_are_in_nobodys_way() {
        let exporter = exporter();
        let silent: Vec<_> = (0..3).map(|_| TcpStream::connect(exporter.address()).unwrap()).collect();
        let mut seed = 1u64;
        for len in 0..200 {
            let bytes: Vec<u8> = (0..len * 7)
                .map(|_| {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (seed >> 40) as u8
                })
                .collect();
            say(exporter.address(), &bytes);
        }
        assert!(say(exporter.address(), b"GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
        let at = exporter.address();
        drop((silent, exporter));
        let start = Instant::now();
        while TcpStream::connect(at).is_ok() {
            assert!(start.elapsed() < PATIENCE, "the port is free again");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn no_more_connections_than_the_limit() {
        let exporter = exporter();
        let silent: Vec<_> =
            (0..4 * CONNECTIONS).map(|_| TcpStream::connect(exporter.address()).unwrap()).collect();
        // Those beyond the limit are closed at once, without an answer.
        let mut last = silent.last().unwrap();
        last.set_read_timeout(Some(PATIENCE / 2)).unwrap();
        assert!(!matches!(last.read(&mut [0; 16]), Ok(1..)));
        drop(silent);
        let start = Instant::now();
        while !say(exporter.address(), b"GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200") {
            assert!(start.elapsed() < 2 * PATIENCE, "it answers again");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

//! A network that is further away: stands between clients of an HTTP service and the service, delays every request, and counts them.
//!
//! A request is delayed once, when its head has come, whatever its length; bodies and answers pass as fast as they can (splice(2): they are not
//! copied). So what it adds is latency alone. HTTP/1.1 without TLS, with `Content-Length`; a request with a chunked body ends its connection.
//!
//! Says its address on standard output, and for each line on standard input a line of JSON: how many requests of each method there were
//! since the last one.

use clap::Parser;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io::{self, BufRead, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Bytes that a pipe takes at a time.
const PIPE: usize = 1 << 20;
/// Longest head of a request, bytes.
const HEAD_MOST: usize = 64 << 10;

/// Delays and counts the requests of an HTTP service.
#[derive(Parser)]
#[command(name = "freehold-slow-net")]
struct Arguments {
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Where the service is.
    #[arg(long)]
    to: SocketAddr,
    /// Milliseconds that each request waits.
    #[arg(long, default_value_t = 20)]
    delay: u64,
}

type Counts = Arc<Mutex<BTreeMap<String, u64>>>;

fn main() -> io::Result<()> {
    let a = Arguments::parse();
    let listener = TcpListener::bind(a.listen)?;
    println!("{}", listener.local_addr()?);
    io::stdout().flush()?;
    let counts = Counts::default();
    let told = counts.clone();
    thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            if line.is_err() {
                break;
            }
            let counts = std::mem::take(&mut *told.lock());
            let pairs: Vec<String> = counts.iter().map(|(method, n)| format!("\"{method}\": {n}")).collect();
            println!("{{{}}}", pairs.join(", "));
            let _ = io::stdout().flush();
        }
        // Whoever started it has gone.
        std::process::exit(0);
    });
    for client in listener.incoming() {
        let (client, counts) = (client?, counts.clone());
        thread::spawn(move || {
            let delay = Duration::from_millis(a.delay);
            if let Err(e) = TcpStream::connect(a.to).and_then(|server| relay(client, server, delay, &counts))
            {
                eprintln!("freehold-slow-net: {e}");
            }
        });
    }
    Ok(())
}

/// Passes on what both sides say until one of them ends.
fn relay(mut client: TcpStream, mut server: TcpStream, delay: Duration, counts: &Counts) -> io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (answers, asker) = (server.try_clone()?, client.try_clone()?);
    let back = thread::spawn(move || {
        let pipe = Pipe::new()?;
        while pipe.pass(&answers, &asker, PIPE as u64)? > 0 {}
        // It may be closed already.
        let _ = asker.shutdown(Shutdown::Both);
        io::Result::Ok(())
    });
    let done = requests(&mut client, &mut server, delay, counts);
    // Nothing more is asked; what is still to be answered is.
    let _ = server.shutdown(Shutdown::Write);
    let answered = back.join().map_err(|_| io::Error::other("a thread panicked"))?;
    match done.and(answered) {
        Err(e) if matches!(e.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) => Ok(()),
        done => done,
    }
}

/// Passes on requests until there are no more.
fn requests(
    client: &mut TcpStream,
    server: &mut TcpStream,
    delay: Duration,
    counts: &Counts,
) -> io::Result<()> {
    let pipe = Pipe::new()?;
    let mut buffer = Vec::new();
    loop {
        let head = loop {
            if let Some(at) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            if buffer.len() > HEAD_MOST {
                return Err(io::Error::other("the head of a request is too long"));
            }
            let mut more = [0; 16 << 10];
            match client.read(&mut more)? {
                0 => return Ok(()),
                n => buffer.extend_from_slice(&more[..n]),
            }
        };
        let (method, len) = parse(&buffer[..head])?;
        *counts.lock().entry(method).or_default() += 1;
        thread::sleep(delay);
        let here = (buffer.len() - head).min(usize::try_from(len).unwrap_or(usize::MAX));
        server.write_all(&buffer[..head + here])?;
        buffer.drain(..head + here);
        let mut rest = len - here as u64;
        while rest > 0 {
            match pipe.pass(client, server, rest)? {
                0 => return Err(io::ErrorKind::ConnectionReset.into()),
                n => rest -= n,
            }
        }
    }
}

/// Method of a request, and length of its body.
fn parse(head: &[u8]) -> io::Result<(String, u64)> {
    let text = String::from_utf8_lossy(head);
    let mut lines = text.split("\r\n");
    let method = lines.next().and_then(|line| line.split(' ').next()).unwrap_or_default().to_owned();
    let mut len = 0;
    for line in lines {
        let Some((name, value)) = line.split_once(':') else { continue };
        if name.eq_ignore_ascii_case("content-length") {
            len = value.trim().parse().map_err(|_| io::Error::other("content-length is no number"))?;
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            return Err(io::Error::other("a request has a chunked body"));
        }
    }
    Ok((method, len))
}

/// What splice(2) needs between two sockets.
struct Pipe {
    from: OwnedFd,
    to: OwnedFd,
}

impl Pipe {
    fn new() -> io::Result<Pipe> {
        let mut ends = [0; 2];
        // SAFETY: the pointer is that of two ints.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: both are open, and nobody else's.
        let pipe = unsafe { Pipe { from: OwnedFd::from_raw_fd(ends[0]), to: OwnedFd::from_raw_fd(ends[1]) } };
        // SAFETY: a plain call on an open descriptor. A smaller pipe does too.
        unsafe { libc::fcntl(pipe.to.as_raw_fd(), libc::F_SETPIPE_SZ, PIPE as libc::c_int) };
        Ok(pipe)
    }

    /// Passes on up to `most` bytes of what there is, waiting for some. 0 at the end.
    fn pass(&self, from: &TcpStream, to: &TcpStream, most: u64) -> io::Result<u64> {
        let most = most.min(PIPE as u64) as usize;
        let taken = splice(from.as_raw_fd(), self.to.as_raw_fd(), most)?;
        let mut rest = taken;
        while rest > 0 {
            match splice(self.from.as_raw_fd(), to.as_raw_fd(), rest)? {
                0 => return Err(io::ErrorKind::BrokenPipe.into()),
                n => rest -= n,
            }
        }
        Ok(taken as u64)
    }
}

fn splice(from: i32, to: i32, len: usize) -> io::Result<usize> {
    loop {
        // SAFETY: no memory is given; the descriptors are those of live values.
        let n = unsafe {
            libc::splice(from, std::ptr::null_mut(), to, std::ptr::null_mut(), len, libc::SPLICE_F_MOVE)
        };
        match usize::try_from(n) {
            Ok(n) => return Ok(n),
            Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn each_request_is_counted_and_delayed_once_and_bytes_pass_unchanged() {
        let service = TcpListener::bind("127.0.0.1:0").unwrap();
        let door = TcpListener::bind("127.0.0.1:0").unwrap();
        let (to, at) = (service.local_addr().unwrap(), door.local_addr().unwrap());
        let body: Vec<u8> = (0..3_000_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
        let expected = body.clone();
        thread::spawn(move || {
            let (mut asked, _) = service.accept().unwrap();
            for _ in 0..2 {
                let mut whole =
                    vec![0; b"PUT /x HTTP/1.1\r\nContent-Length: 3000000\r\n\r\n".len() + expected.len()];
                asked.read_exact(&mut whole).unwrap();
                assert!(whole.ends_with(&expected));
                asked.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
            }
        });
        let counts = Counts::default();
        let told = counts.clone();
        thread::spawn(move || {
            let (client, _) = door.accept().unwrap();
            relay(client, TcpStream::connect(to).unwrap(), Duration::from_millis(50), &told)
        });
        let mut client = TcpStream::connect(at).unwrap();
        for _ in 0..2 {
            let begun = Instant::now();
            client.write_all(b"PUT /x HTTP/1.1\r\nContent-Length: 3000000\r\n\r\n").unwrap();
            client.write_all(&body).unwrap();
            let mut answer = [0; 19];
            client.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"HTTP/1.1 200 OK\r\n\r\n");
            assert!(begun.elapsed() >= Duration::from_millis(50));
        }
        assert_eq!(counts.lock().get("PUT"), Some(&2));
        assert!(parse(b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n").is_err());
    }
}

//! Where messages of servers go: the terminal or journal, syslog, or a file.
//!
//! Threads that serve requests write them, so nobody waits for who takes them: a message that does not go through at once is dropped, and the next one that
//! does says how many were.

use anyhow::Context;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::{self, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

/// From now on messages go there: those that FREEHOLD_LOG wants, a level or levels of targets (`info,block=debug`), or important ones.
fn begin(log: impl Layer<Registry> + Send + Sync) {
    let said = std::env::var("FREEHOLD_LOG").ok().and_then(|said| said.parse().ok());
    let filter = said.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    let _ = tracing_subscriber::registry().with(log.with_filter(filter)).try_init();
}

/// Messages go to standard error.
pub fn to_terminal() {
    // Colours are for people, not for journals and files.
    let layer = fmt::layer().with_ansi(io::stderr().is_terminal());
    match Stream::new(io::stderr()) {
        Ok(stream) => begin(layer.with_writer(Log::new(Sink::Stream(stream)))),
        Err(_) => begin(layer.with_writer(io::stderr)),
    }
}

/// Messages go to the end of a file.
pub fn to_file(path: &Path) -> anyhow::Result<()> {
    let file = File::options().append(true).create(true).open(path);
    let file = file.with_context(|| format!("cannot open the log {}", path.display()))?;
    begin(fmt::layer().with_ansi(false).with_writer(Arc::new(file)));
    Ok(())
}

/// Messages go to syslog (facility daemon); where there is none, to the kernel's log if that can be written.
pub fn to_syslog() {
    let socket = Socket::new("/dev/log");
    let sink = match socket.connected.is_some() {
        true => Sink::Socket(socket),
        false => match File::options().write(true).open("/dev/kmsg") {
            Ok(file) => Sink::Kernel(file),
            Err(_) => return,
        },
    };
    begin(fmt::layer().with_ansi(false).without_time().with_level(false).with_writer(Log::new(sink)));
}

enum Sink {
    Socket(Socket),
    Kernel(File),
    Stream(Stream),
}

struct State {
    sink: Sink,
    /// Messages since the last that went through.
    dropped: u64,
}

#[derive(Clone)]
struct Log(Arc<Mutex<State>>);

impl Log {
    fn new(sink: Sink) -> Log {
        Log(Arc::new(Mutex::new(State { sink, dropped: 0 })))
    }

    fn say(&self, severity: u8, text: &str) {
        const DAEMON: u8 = 3 << 3;
        let mut state = self.0.lock().unwrap_or_else(|e| e.into_inner());
        let dropped = match state.dropped {
            0 => String::new(),
            n => format!("({n} messages before this one were dropped, which nobody took in time) "),
        };
        let line = |end: &str| {
            let (priority, pid) = (DAEMON | severity, std::process::id());
            format!("<{priority}>freehold[{pid}]: {dropped}{}{end}", text.trim_end())
        };
        let sent = match &mut state.sink {
            Sink::Socket(socket) => socket.send(line("").as_bytes()),
            Sink::Kernel(file) => file.write(line("\n").as_bytes()).map(drop),
            Sink::Stream(stream) => stream.send(format!("{dropped}{text}").as_bytes()),
        };
        state.dropped = if sent.is_ok() { 0 } else { state.dropped + 1 };
    }
}

/// A socket of datagrams whose other end may be made anew.
struct Socket {
    path: PathBuf,
    connected: Option<UnixDatagram>,
}

impl Socket {
    fn new(path: impl Into<PathBuf>) -> Socket {
        let mut socket = Socket { path: path.into(), connected: None };
        socket.connect();
        socket
    }

    fn connect(&mut self) -> Option<&UnixDatagram> {
        let connect = || {
            let socket = UnixDatagram::unbound()?;
            socket.set_nonblocking(true)?;
            socket.connect(&self.path).map(|()| socket)
        };
        self.connected = connect().ok();
        self.connected.as_ref()
    }

    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        if let Some(socket) = &self.connected {
            match socket.send(message) {
                // There, but slow.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Err(e),
                Err(_) => {}
                Ok(_) => return Ok(()),
            }
        }
        // Whoever listened there was started again.
        self.connect().ok_or(io::ErrorKind::NotConnected)?.send(message).map(drop)
    }
}

/// Standard error: a terminal, a pipe, the socket of a journal, a file.
struct Stream {
    file: File,
    is_socket: bool,
    /// What is missing of the last message.
    rest: Vec<u8>,
}

impl Stream {
    /// Writes to where `to` leads.
    fn new(to: impl AsFd) -> io::Result<Stream> {
        let file = File::from(to.as_fd().try_clone_to_owned()?);
        let kind = file.metadata()?.file_type();
        let is_socket = kind.is_socket();
        // Opened anew, as whoever has the same pipe or terminal need not know of writes that do not wait.
        let anew = match kind.is_fifo() || kind.is_char_device() {
            true => {
                let path = format!("/proc/self/fd/{}", file.as_raw_fd());
                File::options().write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path).ok()
            }
            false => None,
        };
        Ok(Stream { file: anew.unwrap_or(file), is_socket, rest: Vec::new() })
    }

    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        while !self.rest.is_empty() {
            let n = self.put(&self.rest)?;
            self.rest.drain(..n);
        }
        let mut done = 0;
        while done < message.len() {
            match self.put(&message[done..]) {
                Ok(n) => done += n,
                Err(e) if done == 0 => return Err(e),
                Err(_) => {
                    self.rest = message[done..].to_vec();
                    break;
                }
            }
        }
        Ok(())
    }

    fn put(&self, bytes: &[u8]) -> io::Result<usize> {
        // Where it could not be opened anew, so much can be written to a pipe that takes anything.
        const PIECE: usize = 4096;
        let mut poll = libc::pollfd { fd: self.file.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: one valid pollfd.
        if !self.is_socket && unsafe { libc::poll(&mut poll, 1, 0) } != 1 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let n = match self.is_socket {
            true => {
                let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
                // SAFETY: an open descriptor, and bytes that live during the call.
                unsafe { libc::send(self.file.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) }
            }
            false => return (&self.file).write(&bytes[..bytes.len().min(PIECE)]),
        };
        if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) }
    }
}

/// One message on its way.
struct Message {
    log: Log,
    severity: u8,
    text: Vec<u8>,
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Message;
    fn make_writer(&'a self) -> Message {
        Message { log: self.clone(), severity: 6, text: Vec::new() }
    }
    fn make_writer_for(&'a self, meta: &tracing::Metadata<'_>) -> Message {
        let severity = match *meta.level() {
            tracing::Level::ERROR => 3,
            tracing::Level::WARN => 4,
            tracing::Level::INFO => 6,
            _ => 7,
        };
        Message { log: self.clone(), severity, text: Vec::new() }
    }
}

impl Write for Message {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        self.log.say(self.severity, &String::from_utf8_lossy(&self.text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

    const MANY: usize = 5000;

    /// Says so much that nobody could keep it, and returns how much of it was dropped.
    fn flood(log: &Log) -> u64 {
        let begun = Instant::now();
        (0..MANY).for_each(|i| log.say(6, &format!("message {i} {}\n", "x".repeat(300))));
        assert!(begun.elapsed() < Duration::from_secs(10), "it waits for who does not listen");
        let dropped = log.0.lock().unwrap().dropped;
        assert!(dropped > 0 && dropped < MANY as u64);
        dropped
    }

    /// Whole lines, of which the last says how many are missing.
    #[track_caller]
    fn check(lines: &[String], dropped: u64, said: u64) {
        let (last, lines) = lines.split_last().unwrap();
        assert_eq!(lines.len() as u64 + dropped, MANY as u64);
        assert!(lines.iter().enumerate().all(|(i, line)| line.contains(&format!("message {i} x"))));
        assert!(
            last.contains(&format!("({said} messages before this one")) && last.ends_with("again"),
            "{last}"
        );
    }

    #[test]
    fn syslog_that_does_not_listen_and_is_started_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let listen = || {
            let socket = UnixDatagram::bind(&path).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        };
        let lines = |socket: &UnixDatagram| {
            let mut bytes = [0; 1000];
            let mut all = Vec::new();
            while let Ok(n) = socket.recv(&mut bytes) {
                all.push(String::from_utf8_lossy(&bytes[..n]).into_owned());
            }
            all
        };
        let listener = listen();
        let log = Log::new(Sink::Socket(Socket::new(&path)));
        let dropped = flood(&log);
        let mut all = lines(&listener);
        log.say(4, "again\n");
        all.extend(lines(&listener));
        check(&all, dropped, dropped);
        assert!(all.last().unwrap().starts_with("<28>freehold["));
        drop(listener);
        log.say(4, "lost");
        std::fs::remove_file(&path).unwrap();
        log.say(4, "lost");
        let listener = listen();
        log.say(4, "back");
        log.say(4, "once more");
        let all = lines(&listener);
        assert!(all.len() == 2 && all[0].contains("(2 messages") && all[0].ends_with("back"), "{all:?}");
        assert!(all[1].ends_with(": once more"), "{all:?}");
    }

    #[test]
    fn pipes_and_sockets_that_are_full() {
        let (mut from, to) = std::io::pipe().unwrap();
        let (mut other, journal) = UnixStream::pair().unwrap();
        let pipe = Log::new(Sink::Stream(Stream::new(&to).unwrap()));
        let socket = Log::new(Sink::Stream(Stream::new(&journal).unwrap()));
        // Whoever else has the pipe goes on as before.
        // SAFETY: an open descriptor.
        assert_eq!(unsafe { libc::fcntl(to.as_raw_fd(), libc::F_GETFL) } & libc::O_NONBLOCK, 0);
        drop((to, journal));
        let all: [(&Log, &mut (dyn Read + Send)); 2] = [(&pipe, &mut from), (&socket, &mut other)];
        for (log, end) in all {
            let dropped = flood(log);
            let (text, tries) = std::thread::scope(|s| {
                let reader = s.spawn(|| {
                    let (mut text, mut buffer) = (Vec::new(), [0; 4096]);
                    while !text.ends_with(b"again\n") {
                        let n = end.read(&mut buffer).unwrap();
                        assert!(n > 0, "it ends without the last message");
                        text.extend_from_slice(&buffer[..n]);
                    }
                    String::from_utf8(text).unwrap()
                });
                let mut tries = 0;
                loop {
                    log.say(4, "again\n");
                    if log.0.lock().unwrap().dropped == 0 {
                        break (reader.join().unwrap(), tries);
                    }
                    tries += 1;
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            check(&text.lines().map(String::from).collect::<Vec<_>>(), dropped, dropped + tries);
        }
    }
}

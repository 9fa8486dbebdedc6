//! Where messages go: the terminal for commands, syslog or a file for servers in the background.

use anyhow::Context;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::Arc;
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
    begin(fmt::layer().with_ansi(io::stderr().is_terminal()).with_writer(io::stderr));
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
    let socket = UnixDatagram::unbound().and_then(|s| s.connect("/dev/log").map(|()| s));
    let sink = match socket {
        Ok(socket) => Sink::Socket(Arc::new(socket)),
        Err(_) => match File::options().write(true).open("/dev/kmsg") {
            Ok(file) => Sink::Kernel(Arc::new(file)),
            Err(_) => return,
        },
    };
    begin(fmt::layer().with_ansi(false).without_time().with_level(false).with_writer(sink));
}

#[derive(Clone)]
enum Sink {
    Socket(Arc<UnixDatagram>),
    Kernel(Arc<File>),
}

/// One message on its way to syslog.
struct Message {
    sink: Sink,
    severity: u8,
    text: Vec<u8>,
}

impl<'a> MakeWriter<'a> for Sink {
    type Writer = Message;
    fn make_writer(&'a self) -> Message {
        Message { sink: self.clone(), severity: 6, text: Vec::new() }
    }
    fn make_writer_for(&'a self, meta: &tracing::Metadata<'_>) -> Message {
        let severity = match *meta.level() {
            tracing::Level::ERROR => 3,
            tracing::Level::WARN => 4,
            tracing::Level::INFO => 6,
            _ => 7,
        };
        Message { sink: self.clone(), severity, text: Vec::new() }
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
        const DAEMON: u8 = 3 << 3;
        let text = String::from_utf8_lossy(&self.text);
        let line =
            format!("<{}>freehold[{}]: {}", DAEMON | self.severity, std::process::id(), text.trim_end());
        let _ = match &self.sink {
            Sink::Socket(socket) => socket.send(line.as_bytes()),
            Sink::Kernel(file) => (&**file).write(format!("{line}\n").as_bytes()),
        };
    }
}

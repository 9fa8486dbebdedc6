//! What `mount` and `serve` share: signals, the loop of a server, and telling whoever started it that it is ready.

use super::explain;
use anyhow::{Context, bail};
use freehold::bucket::BucketService;
use freehold::service::Service;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a stopping server waits for files that are still open.
const PATIENCE: Duration = Duration::from_secs(3);

/// Has the server of a bucket say what it does.
const REPORT: i32 = libc::SIGUSR1;

/// The signals that stop a server. They are blocked in all threads and taken by one.
pub struct Signals(libc::sigset_t);

impl Signals {
    /// Blocks SIGTERM and SIGINT, and ignores SIGHUP and SIGPIPE. Must be called before threads are started.
    pub fn block() -> Signals {
        // SAFETY: the set is initialised by sigemptyset before it is used, and SIG_IGN is a valid disposition.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGTERM);
            libc::sigaddset(&mut set, libc::SIGINT);
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            libc::signal(libc::SIGHUP, libc::SIG_IGN);
            libc::signal(libc::SIGPIPE, libc::SIG_IGN);
            Signals(set)
        }
    }

    /// As well [`REPORT`], which asks a server what it does. Must be called before threads are started.
    pub fn with_report(mut self) -> Signals {
        // SAFETY: the set was initialised by `block`.
        unsafe {
            libc::sigaddset(&mut self.0, REPORT);
            libc::pthread_sigmask(libc::SIG_BLOCK, &self.0, std::ptr::null_mut());
        }
        self
    }

    /// One that has come and was not taken yet.
    pub fn pending(&self) -> Option<i32> {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the set and the time are initialised, and nothing is wanted but the number.
        let signal = unsafe { libc::sigtimedwait(&self.0, std::ptr::null_mut(), &now) };
        (signal > 0).then_some(signal)
    }

    fn wait(&self) -> i32 {
        let mut signal = 0;
        // SAFETY: both pointers are to valid, initialised variables.
        while unsafe { libc::sigwait(&self.0, &mut signal) } != 0 {}
        signal
    }
}

enum Event {
    Signal(i32),
    Ended(usize, freehold::Result<()>),
}

/// Threads that stop services, each one: none waits for those who use another.
#[derive(Default)]
struct Stopping(Vec<JoinHandle<()>>);

impl Stopping {
    fn begin(&mut self, service: Arc<Service>) {
        let stop = |service: &Service| {
            if let Err(e) = service.stop(PATIENCE) {
                tracing::error!("cannot unmount {}: {e}", service.point().display());
            }
        };
        let there = service.clone();
        match std::thread::Builder::new().name("freehold-stop".into()).spawn(move || stop(&there)) {
            Ok(thread) => self.0.push(thread),
            // Then after each other.
            Err(_) => stop(&service),
        }
    }

    /// Waits for them. The process must not end while one of them lets go of a device.
    fn join(self) {
        for thread in self.0 {
            if thread.join().is_err() {
                tracing::error!("a thread that stops a volume panicked");
            }
        }
    }
}

/// Stops services that were started beside others which were not.
///
/// # Errors
/// Names the volumes that could not be closed cleanly.
pub fn stop(services: Vec<Service>) -> anyhow::Result<()> {
    let services: Vec<Arc<Service>> = services.into_iter().map(Arc::new).collect();
    let mut stopping = Stopping::default();
    services.iter().for_each(|service| stopping.begin(service.clone()));
    let mut failed = Vec::new();
    for service in services {
        if let Err(e) = service.finish() {
            failed.push(format!("{:#}", explain::volume(e, service.image())));
        }
    }
    stopping.join();
    not_closed(&failed)
}

fn not_closed(failed: &[String]) -> anyhow::Result<()> {
    if !failed.is_empty() {
        bail!("not closed cleanly: {}", failed.join("; "));
    }
    Ok(())
}

/// Serves until every mount is gone. SIGTERM and SIGINT unmount all; files that are open after a few seconds lose their mount.
///
/// # Errors
/// Names the volumes that could not be closed cleanly. Those of starting a thread; then all are closed.
pub fn serve(services: Vec<Service>, signals: Signals) -> anyhow::Result<()> {
    let (tx, events) = mpsc::channel();
    let signal = tx.clone();
    let signals = std::thread::Builder::new()
        .name("freehold-signal".into())
        .spawn(move || while signal.send(Event::Signal(signals.wait())).is_ok() {});
    // The process must not end while volumes are open.
    if let Err(e) = signals {
        stop(services)?;
        return Err(e).context("cannot start a thread");
    }
    let services: Vec<Arc<Service>> = services.into_iter().map(Arc::new).collect();
    let (mut failed, mut stopping) = (Vec::new(), Stopping::default());
    let finish = |i: usize| {
        let (service, tx) = (services[i].clone(), tx.clone());
        move || {
            let ended = service.finish();
            drop(service);
            let _ = tx.send(Event::Ended(i, ended));
        }
    };
    let started = (0..services.len()).try_for_each(|i| {
        let thread = std::thread::Builder::new().name("freehold-finish".into());
        thread.spawn(finish(i)).map(drop).map_err(|e| (i, e))
    });
    if let Err((i, _)) = started {
        services.iter().for_each(|service| stopping.begin(service.clone()));
        (i..services.len()).for_each(|i| finish(i)());
    }
    let mut services: Vec<Option<Arc<Service>>> = services.into_iter().map(Some).collect();
    while services.iter().any(Option::is_some) {
        match events.recv()? {
            Event::Signal(signal) => {
                tracing::info!("stopping (signal {signal})");
                notify("STOPPING=1");
                services.iter().flatten().for_each(|service| stopping.begin(service.clone()));
            }
            Event::Ended(i, ended) => {
                let Some(service) = services[i].take() else { continue };
                let image = service.image();
                match ended {
                    Ok(()) => tracing::info!("{}: closed", image.display()),
                    Err(e) => {
                        let why = format!("{:#}", explain::volume(e, image));
                        tracing::error!("{why}");
                        failed.push(why);
                    }
                }
            }
        }
    }
    stopping.join();
    not_closed(&failed)?;
    started.map_err(|(_, e)| e).context("cannot start a thread")
}

/// Serves a bucket until its mount is gone. SIGTERM and SIGINT unmount it; files that are open after a few seconds lose their mount. SIGUSR1 has
/// it write what it does into the log.
///
/// # Errors
/// Those of starting a thread.
pub fn serve_bucket(service: Arc<BucketService>, signals: Signals) -> anyhow::Result<()> {
    let stopping = Arc::downgrade(&service);
    std::thread::Builder::new()
        .name("freehold-signal".into())
        .spawn(move || {
            loop {
                let signal = signals.wait();
                let Some(service) = stopping.upgrade() else { return };
                if signal == REPORT {
                    service.report().iter().for_each(|line| tracing::info!("{line}"));
                    continue;
                }
                tracing::info!("stopping (signal {signal})");
                notify("STOPPING=1");
                if let Err(e) = service.stop(PATIENCE) {
                    tracing::error!("cannot unmount: {e}");
                }
            }
        })
        .context("cannot start a thread")?;
    service.mount.wait();
    Ok(())
}

/// Tells systemd (or whoever set NOTIFY_SOCKET) how the server stands.
pub fn notify(state: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let bytes = name.as_encoded_bytes();
    let address = match bytes.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&name),
    };
    let sent = address.and_then(|a| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &a));
    if let Err(e) = sent {
        tracing::warn!("cannot notify {}: {e}", name.display());
    }
}

/// Says `text` on standard output, to the process that started this one, and closes that.
///
/// # Errors
/// Nobody listens any more.
pub fn report(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    let null = std::fs::File::options().write(true).open("/dev/null")?;
    // SAFETY: both are open descriptors; standard output goes on as /dev/null.
    unsafe { libc::dup2(null.as_raw_fd(), 1) };
    Ok(())
}

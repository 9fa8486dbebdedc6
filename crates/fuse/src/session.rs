//! The life of a mount: attach, agree with the kernel (INIT), threads, end.
//!
//! `mount` returns when INIT was answered and the threads run. Each thread has a descriptor of its own
//! (`FUSE_DEV_IOC_CLONE`), blocks in read, and costs nothing while idle. When the kernel ends the connection (unmounted by us or
//! from outside, or aborted) every read fails; a last thread then interrupts what waits for locks, lets running requests end,
//! closes in the engine what is still open (what no program has closed is
//! abandoned, see [`FileSystem::abandon`]), and lets go of the engine.

use crate::abi::{self, InHeader, Init, InitIn, InitOut, op};
use crate::device::{Buffer, BufferPool, Device, Notifier, REQUEST_AT, Reply, take};
use crate::door::{Door, serve};
use crate::ending::End;
use crate::exec::Executor;
use crate::known::Known;
use crate::notifications::Notifications;
use crate::options::MountOptions;
use crate::receive::{Ears, Receivers};
use crate::sys::{self, Attached};
use fs::{FileSystem, Meter};
use parking_lot::Mutex;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use zerocopy::IntoBytes;

/// Threads that go on with requests that had to wait.
const WORKERS: usize = 2;

/// A mounted volume. Dropping it unmounts, even if files are open. See `ending` for that.
pub struct Mount {
    pub(crate) device: Arc<Device>,
    known: Arc<Known>,
    notifications: Notifications,
    pub(crate) point: PathBuf,
    /// `major:minor`.
    pub(crate) number: Option<String>,
    pub(crate) attached: Mutex<Option<Attached>>,
    pub(crate) end: Arc<End>,
    meter: Arc<Meter>,
}

/// Mounts `fs` at the directory `mountpoint`, served by background threads. Returns when it can be used.
///
/// Needs root, or `fusermount3` on the search path. With `auto_unmount` the helper unmounts when this process dies.
///
/// # Errors
/// Those of mount(2) and of opening `/dev/fuse`; what `fusermount3` says; `Unsupported` for kernels before Linux 5.2. After an
/// error nothing is mounted.
pub fn mount<F: FileSystem>(fs: Arc<F>, mountpoint: &Path, options: MountOptions) -> io::Result<Mount> {
    let mut buffer = Buffer::new(crate::options::MAX_TRANSFER as usize)?;
    let (file, attached) = sys::attach(mountpoint, &options)?;
    let device = Arc::new(Device::new(file));
    let end = Arc::new(End::default());
    let meter = Arc::new(Meter::new(&crate::meter::CLASSES));
    let known = Arc::new(Known::default());
    let begun = handshake(&device, &mut buffer, &options)
        .and_then(|agreed| Ok((agreed, Notifications::start(Notifier::new(device.clone(), known.clone()))?)));
    let ((caps, minor), notifications) = match begun {
        Ok(begun) => begun,
        Err(e) => {
            let _ = attached.detach(true);
            attached.finish();
            return Err(e);
        }
    };
    // From here on, dropping it detaches again.
    let mount = Mount {
        device: device.clone(),
        known: known.clone(),
        notifications: notifications.clone(),
        point: attached.mountpoint.clone(),
        number: attached.device_number.clone(),
        attached: Mutex::new(Some(attached)),
        end: end.clone(),
        meter: meter.clone(),
    };
    let read_ahead = options.read_ahead;
    let door = Arc::new(Door {
        changers: fs.commits_at_close().then(Default::default),
        fs,
        options,
        caps,
        minor,
        handles: Default::default(),
        interrupts: Default::default(),
        known,
        notifications,
        meter,
    });
    let started = start(door, device, end.clone());
    if let Err(e) = started {
        end.set_over();
        if let Some(attached) = mount.attached.lock().take() {
            let _ = attached.detach(true);
            attached.finish();
        }
        return Err(e);
    }
    if let Some(attached) = &*mount.attached.lock() {
        attached.set_read_ahead(read_ahead);
    }
    Ok(mount)
}

/// Answers INIT and returns what both sides can do, and the minor version that the kernel speaks.
fn handshake(device: &Arc<Device>, buffer: &mut Buffer, options: &MountOptions) -> io::Result<(Init, u32)> {
    let unsupported = |what: String| io::Error::new(io::ErrorKind::Unsupported, what);
    loop {
        let Some(len) = device.receive(buffer)? else {
            return Err(io::Error::new(io::ErrorKind::NotConnected, "unmounted before it was ready"));
        };
        let (head, body) = take::<InHeader>(&buffer[REQUEST_AT..][..len])
            .ok_or_else(|| unsupported("the kernel sent a request that is too short".into()))?;
        let reply = Reply::new(device.clone(), head.unique);
        if head.opcode != op::INIT {
            reply.error(libc::EIO);
            return Err(unsupported(format!(
                "the kernel's first request was {} instead of INIT",
                head.opcode
            )));
        }
        // Kernels before 7.36 send a shorter body.
        let mut whole = InitIn::default();
        let n = body.len().min(size_of::<InitIn>());
        whole.as_mut_bytes()[..n].copy_from_slice(&body[..n]);
        let (major, minor) = (whole.major, whole.minor);
        if major > abi::MAJOR {
            // The kernel then offers our version.
            reply.data(InitOut { major: abi::MAJOR, minor: abi::MINOR, ..Default::default() }.as_bytes());
            continue;
        }
        if major < abi::MAJOR || minor < abi::MINOR_MIN {
            reply.error(libc::EPROTO);
            return Err(unsupported(format!(
                "the kernel speaks FUSE {major}.{minor}; {}.{} is needed",
                abi::MAJOR,
                abi::MINOR_MIN
            )));
        }
        let offered = whole.flags as u64
            | if whole.flags as u64 & Init::INIT_EXT.bits() != 0 { (whole.flags2 as u64) << 32 } else { 0 };
        let caps = wanted(options) & Init::from_bits_truncate(offered);
        let out = InitOut {
            major: abi::MAJOR,
            minor: abi::MINOR.min(minor),
            max_readahead: options.read_ahead,
            flags: caps.bits() as u32,
            flags2: (caps.bits() >> 32) as u32,
            max_background: options.max_background,
            congestion_threshold: (options.max_background / 4).saturating_mul(3).max(1),
            max_write: options.max_write,
            time_gran: 1,
            max_pages: (options.max_write.max(options.max_read) / 4096) as u16,
            ..Default::default()
        };
        tracing::debug!(?caps, kernel = minor, "FUSE connection");
        return if reply.data(out.as_bytes()) {
            Ok((caps, minor))
        } else {
            Err(io::Error::new(io::ErrorKind::NotConnected, "unmounted before it was ready"))
        };
    }
}

/// What we ask the kernel for.
///
/// Not `ATOMIC_O_TRUNC`: with it OPEN truncates before the kernel finds that the file is being executed (`O_RDONLY|O_TRUNC`), so
/// the caller gets `ETXTBSY` and the running program loses its text. Without it truncation is a SETATTR after the OPEN.
fn wanted(o: &MountOptions) -> Init {
    let mut want = Init::ASYNC_READ
        | Init::POSIX_LOCKS
        | Init::FLOCK_LOCKS
        | Init::FILE_OPS
        | Init::EXPORT_SUPPORT
        | Init::BIG_WRITES
        | Init::DO_READDIRPLUS
        | Init::READDIRPLUS_AUTO
        | Init::ASYNC_DIO
        | Init::PARALLEL_DIROPS
        | Init::HANDLE_KILLPRIV_V2
        | Init::MAX_PAGES
        | Init::CACHE_SYMLINKS
        | Init::DIRECT_IO_ALLOW_MMAP
        | Init::INIT_EXT;
    want |= if o.exclusive { Init::EXPLICIT_INVAL_DATA } else { Init::AUTO_INVAL_DATA };
    if o.writeback {
        want |= Init::WRITEBACK_CACHE;
    }
    want
}

/// Starts the threads.
fn start<F: FileSystem>(door: Arc<Door<F>>, device: Arc<Device>, end: Arc<End>) -> io::Result<()> {
    let cpus = std::thread::available_parallelism().map_or(2, |n| n.get());
    let threads = if door.options.threads > 0 { door.options.threads } else { cpus.clamp(2, 8) };
    let pool = Arc::new(BufferPool::new(crate::options::MAX_TRANSFER as usize));
    let back = pool.clone();
    let exec = Executor::new(Box::new(move |buffer| back.put(buffer)));
    let all = Arc::new(Receivers::default());
    let mut receivers = Vec::new();
    for i in 0..threads {
        // A descriptor that cannot be duplicated is shared; that costs speed only.
        let waits = if i == 0 { device.clone() } else { device.duplicate().map_or(device.clone(), Arc::new) };
        let ears = Ears { waits, looks: device.duplicate_without_waiting().ok().map(Arc::new) };
        let (door, exec, pool, all) = (door.clone(), exec.clone(), pool.clone(), all.clone());
        receivers.push(Builder::new().name(format!("fuse-{i}")).spawn(move || {
            let run = |from: &Arc<Device>, buffer, len, task: &mut _| {
                exec.run_here(task, serve(door.clone(), from.clone(), buffer, len))
            };
            all.receive(&ears, &pool, run, &mut exec.task())
        })?);
    }
    let mut workers = Vec::new();
    for i in 0..WORKERS {
        let exec = exec.clone();
        workers.push(Builder::new().name(format!("fuse-wait-{i}")).spawn(move || exec.work())?);
    }
    if door.changers.is_some() {
        let door = door.clone();
        workers.push(Builder::new().name("fuse-signals".into()).spawn(move || door.interrupts.look())?);
    }
    Builder::new().name("fuse-end".into()).spawn(move || {
        join(receivers);
        door.fs.hurry();
        door.interrupts.close();
        exec.stop();
        join(workers);
        let clean = *end.clean.lock();
        for handle in door.handles.drain() {
            let closed = match clean {
                true => fs::block_on(door.fs.release(handle)),
                // Nobody has closed it: its program is told by its next call that it has lost the file.
                false => fs::block_on(door.fs.abandon(handle)),
            };
            if let Err(e) = closed {
                tracing::debug!(error = %e, "closing a file that was open at the end of the mount");
            }
        }
        drop(door);
        end.set_over();
    })?;
    Ok(())
}

fn join(threads: Vec<JoinHandle<()>>) {
    for t in threads {
        if t.join().is_err() {
            tracing::error!("a thread of the FUSE door panicked");
        }
    }
}

impl Mount {
    /// What the kernel asked for, and how long it took.
    pub fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    /// Has the kernel told of changes made through other doors: it is what watches for this one.
    pub fn notifications(&self) -> Notifications {
        self.notifications.clone()
    }

    /// Tells the kernel about changes made through other doors.
    pub fn notifier(&self) -> Notifier {
        Notifier::new(self.device.clone(), self.known.clone())
    }
}

//! A volume in service: open, mounted, and closed when the mount ends, whoever ended it.
//!
//! Life: [`Service::start`] opens and mounts; [`Service::finish`], on a thread that may wait, returns when the mount is gone and
//! the volume is closed; [`Service::stop`], from any other thread, makes the mount go.
//!
//! # Who wants to know when the image is free again
//! umount(2) returns before the volume behind a FUSE mount is closed. So each service listens on a Unix socket in the abstract
//! namespace, named after the image; [`Watch`] connects to it before unmounting and reads how the volume was closed. Nothing
//! is accepted over it. Without the socket (another network namespace) there is still the lock on the image.
//!
//! A second socket answers questions about the volume while it is served: see [`crate::control`].
//!
//! Tested in `tests/mount.rs`.

use crate::control::Control;
use crate::metrics::Exporter;
use crate::observe::Observed;
use crate::options::{ServeOptions, Share};
use crate::{Error, Mount, Result, Volume, rights, sessions};
use fs::{Cred, FileSystem, Ino, Ordered, Watched};
use share::server::place::{self, Place};
use share::server::rights::Rights;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// Why a volume could not be put into service.
#[derive(Debug)]
pub enum StartError {
    /// The volume could not be opened.
    Open(Error),
    /// It was opened, but could not be mounted; it is closed again.
    Mount(io::Error),
}

/// An open and mounted volume.
pub struct Service {
    image: PathBuf,
    point: PathBuf,
    volume: Volume,
    mount: Mount,
    /// Serves other processes over shared memory, until the mount is gone.
    sessions: Mutex<Option<Sessions>>,
    news: Option<News>,
    observed: Arc<Observed>,
    control: Mutex<Option<Control>>,
    exporter: Mutex<Option<Arc<Exporter>>>,
}

impl Service {
    /// Opens the volume in `image`, waiting a little for its last user to end, and mounts it at `point`.
    ///
    /// # Errors
    /// See [`StartError`]; nothing is open or mounted then.
    pub fn start(
        image: &Path,
        point: &Path,
        options: &ServeOptions,
    ) -> std::result::Result<Service, StartError> {
        let numa = match (options.numa, crate::nvme_address(image)) {
            (place::Numa::Auto, Some(address)) => {
                address.numa_node().map_or(place::Numa::Off, place::Numa::Node)
            }
            (numa, _) => numa,
        };
        let place = place::choose(numa, image, None).map_err(|e| StartError::Mount(io::Error::other(e)))?;
        let Some(place) = place else { return Service::start_here(image, point, options, None) };
        // All threads of the volume are started from one that is where they shall be; this one stays as it is.
        let start = || {
            match place.enter() {
                Ok(()) => tracing::info!("{}: served on memory node {}", image.display(), place.node),
                Err(e) => tracing::warn!("{}: served anywhere on this machine: {e}", image.display()),
            }
            Service::start_here(image, point, options, Some(place.clone()))
        };
        std::thread::scope(|s| s.spawn(start).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    fn start_here(
        image: &Path,
        point: &Path,
        options: &ServeOptions,
        place: Option<Place>,
    ) -> std::result::Result<Service, StartError> {
        let open = || {
            let media = crate::medium::open_media(image, options.volume.read_only, options.queues)?;
            let watched = Arc::downgrade(&media);
            Ok((Volume::open(media, options.volume.clone())?, watched))
        };
        let (volume, media) = crate::patience::retry(image, open).map_err(StartError::Open)?;
        let mut mount_options = options.mount.clone();
        mount_options.ordered = options.ordered.clone();
        warn_of_order(&options.ordered, &volume, image);
        if mount_options.fsname.is_empty() {
            mount_options.fsname = source(image);
        }
        let doors = Watched::new(Arc::new(volume.clone()));
        let started = fuse::mount(Arc::new(doors.clone()), point, mount_options).and_then(|mount| {
            let sessions = match open_sessions((&volume, &doors), &mount, point, options, place) {
                // Nobody has asked for it.
                Err(e) if options.share == Share::Usual => {
                    tracing::warn!("{}: served without sessions: {e}", point.display());
                    None
                }
                sessions => sessions?,
            };
            Ok((mount, sessions))
        });
        let (mount, sessions) = match started {
            Ok(started) => started,
            Err(e) => {
                if let Err(close) = volume.close_blocking() {
                    tracing::error!("{}: {close}", image.display());
                }
                return Err(StartError::Mount(e));
            }
        };
        let news = News::open(image).inspect_err(|e| {
            tracing::warn!("{}: nobody can be told when it is closed: {e}", image.display())
        });
        let observer = sessions.as_ref().map(|sessions| sessions.server.observer());
        let observed =
            Arc::new(Observed::new((image, point), &volume, media, &mount, (observer, &options.ordered)));
        let control = Control::open(image, Arc::downgrade(&observed))
            .inspect_err(|e| tracing::warn!("{}: nobody can ask about it: {e}", image.display()));
        let control = Mutex::new(control.ok());
        let (image, point, sessions) = (image.into(), point.into(), Mutex::new(sessions));
        let (news, exporter) = (news.ok(), Mutex::default());
        Ok(Service { image, point, volume, mount, sessions, news, observed, control, exporter })
    }

    /// The image or device.
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// Where it is mounted.
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// The volume.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// For looking at it while it is in service.
    pub fn observed(&self) -> Weak<Observed> {
        Arc::downgrade(&self.observed)
    }

    /// Keeps `exporter` until the volume is closed, so that its port is free again when those who wait for that hear of it.
    pub fn keep(&self, exporter: Arc<Exporter>) {
        *self.exporter.lock().unwrap_or_else(|e| e.into_inner()) = Some(exporter);
    }

    /// Unmounts. When after `patience` files are still open, or it is mounted at other places too, all mounts of the volume end by force: calls on them
    /// fail from then on.
    ///
    /// # Errors
    /// Those of [`fuse::Mount::unmount_within`]: something is still mounted then, and [`Service::finish`] closes the volume all the same.
    pub fn stop(&self, patience: Duration) -> io::Result<()> {
        self.mount.unmount_within(patience)
    }

    /// Waits until the mount is gone, or [`Service::stop`] has failed, then closes the volume.
    ///
    /// # Errors
    /// Those of [`Volume::close`]: what was not synced may be lost, and the next open will take over the log.
    pub fn finish(&self) -> Result<()> {
        self.mount.wait();
        if let Some(Sessions { server, place, rights }) =
            self.sessions.lock().unwrap_or_else(|e| e.into_inner()).take()
        {
            // The next server at this place waits until this one is no longer to be found there.
            drop(place);
            if !server.stop() {
                tracing::error!(
                    "{}: changes of programs are lost, as they could not be made",
                    self.image.display()
                );
                self.volume.has_lost_some();
            }
            if let Err(e) = rights::leave(&self.volume.opening(), rights.left()) {
                tracing::warn!("what programs have open is not told to the next server: {e}");
            }
        }
        drop(self.control.lock().unwrap_or_else(|e| e.into_inner()).take());
        let closed = self.volume.close_blocking();
        drop(self.exporter.lock().unwrap_or_else(|e| e.into_inner()).take());
        if let Some(news) = &self.news {
            news.tell(&closed);
        }
        closed
    }
}

/// Other processes are served beside the mount.
struct Sessions {
    server: share::Server,
    place: sessions::Place,
    rights: Arc<Rights>,
}

/// What the kernel shows as the source of mounts of the volume in `image`: its path without symlinks, or the name of its NVMe controller.
pub fn source(image: &Path) -> String {
    let path = match crate::nvme_address(image) {
        Some(_) => image.to_path_buf(),
        None => std::fs::canonicalize(image).unwrap_or_else(|_| image.to_path_buf()),
    };
    path.to_string_lossy().into_owned()
}

/// Says in the log whose syncs are not durable, and which of the paths lead nowhere now.
fn warn_of_order(ordered: &Ordered, volume: &Volume, image: &Path) {
    if ordered.is_off() {
        return;
    }
    let image = image.display();
    tracing::warn!("{image}: fsync and fdatasync give order, not durability, for {ordered}");
    let cred = Cred { checked: true, ..Cred::root() };
    for path in &ordered.paths {
        if let Err(e) = fs::block_on(volume.walk(&cred, Ino::ROOT, path.as_os_str().as_bytes())) {
            tracing::warn!("{image}: {} of ordered_paths is not there now: {e}", path.display());
        }
    }
}

/// Begins to serve other processes beside the mount, when that is wanted and there is a place for it.
fn open_sessions(
    (volume, doors): (&Volume, &Watched<Volume>),
    mount: &Mount,
    point: &Path,
    options: &ServeOptions,
    node: Option<Place>,
) -> io::Result<Option<Sessions>> {
    // A client needs three descriptors; the kernel's default is for programs that have few.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
    if let Err(e) = rustix::process::setrlimit(rustix::process::Resource::Nofile, raised) {
        tracing::warn!("the number of clients is limited by that of descriptors: {e}");
    }
    let Some(place) = sessions::Place::make(point, &options.share)? else { return Ok(None) };
    doors.watch(Arc::new(mount.notifications()));
    // SAFETY: geteuid has no preconditions.
    let only_user = (!options.mount.allow_other).then(|| unsafe { libc::geteuid() });
    let (opening, lock_timeout) = (volume.opening(), options.lock_timeout);
    let rights = Arc::new(Rights::new(rights::take(&opening), options.volume.orphans_kept));
    let sessions = share::server::Options {
        only_user,
        opening,
        lock_timeout,
        place: node,
        pages_max: options.shared_cache(),
        ordered: options.ordered.clone(),
        rights: rights.clone(),
        ..Default::default()
    };
    let sessions = if options.write_leases { sessions.lending() } else { sessions };
    let at = &place.socket;
    let server = share::Server::start_at_door(doors.door(), at, sessions)
        .map_err(|e| io::Error::new(e.kind(), format!("sessions at {}: {e}", at.display())))?;
    Ok(Some(Sessions { server, place, rights }))
}

/// The name of a socket: device and inode number of the image, or the number of the device, or the address of the controller;
/// and `suffix`.
pub(crate) fn address(image: &Path, suffix: &str) -> io::Result<SocketAddr> {
    if let Some(address) = crate::nvme_address(image) {
        return SocketAddr::from_abstract_name(format!("freehold-nvme-{address}{suffix}"));
    }
    let meta = std::fs::metadata(image)?;
    let name = match meta.mode() & libc::S_IFMT == libc::S_IFBLK {
        true => format!("freehold-device-{}{suffix}", meta.rdev()),
        false => format!("freehold-image-{}-{}{suffix}", meta.dev(), meta.ino()),
    };
    SocketAddr::from_abstract_name(name)
}

/// Most watchers at a time. Whoever comes then is sent away, and waits for the lock on the image instead.
const WATCHERS: usize = 64;
const CLOSED: &str = "closed";

struct News {
    address: SocketAddr,
    watchers: Arc<Mutex<Vec<UnixStream>>>,
    over: Arc<AtomicBool>,
}

impl News {
    fn open(image: &Path) -> io::Result<News> {
        let address = address(image, "")?;
        let listener = UnixListener::bind_addr(&address)?;
        let (watchers, over) = (Arc::<Mutex<Vec<UnixStream>>>::default(), Arc::<AtomicBool>::default());
        let news = News { address, watchers: watchers.clone(), over: over.clone() };
        std::thread::Builder::new().name("freehold-news".into()).spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::Acquire) {
                    return;
                }
                let Ok(stream) = stream else {
                    std::thread::sleep(Duration::from_millis(10));
                    continue;
                };
                // Anybody may connect: nobody else's watchers shall take the place of those whom it concerns.
                if !peer_uid(&stream).is_ok_and(is_trusted) {
                    continue;
                }
                let mut watchers = watchers.lock().unwrap_or_else(|e| e.into_inner());
                watchers.retain(|watcher| !has_left(watcher));
                // The greeting says that this watcher is on the list.
                if watchers.len() < WATCHERS && (&stream).write_all(b"serving\n").is_ok() {
                    watchers.push(stream);
                }
            }
        })?;
        Ok(news)
    }

    fn tell(&self, closed: &Result<()>) {
        let text = match closed {
            Ok(()) => CLOSED.to_string(),
            Err(e) => e.to_string(),
        };
        for mut stream in self.watchers.lock().unwrap_or_else(|e| e.into_inner()).drain(..) {
            let _ = stream.set_nonblocking(true);
            let _ = stream.write_all(text.as_bytes());
        }
    }
}

impl Drop for News {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        // Wakes the thread, which then lets go of the name.
        let _ = UnixStream::connect_addr(&self.address);
    }
}

/// How a service ended, as far as it could be seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The volume was closed cleanly.
    Closed,
    /// The server said what went wrong.
    Failed(String),
    /// The server ended without a word: it was killed.
    Died,
}

/// Watches the service of an image from another process.
pub struct Watch(UnixStream);

impl Watch {
    /// Connects to whoever serves `image`.
    ///
    /// # Errors
    /// `ConnectionRefused` when nobody can be reached; `PermissionDenied` when the socket belongs to somebody else than root
    /// or this user, whose word counts nothing; `UnexpectedEof` when the server, of another user than this one who is not root, or with too many watchers, tells nothing.
    pub fn new(image: &Path) -> io::Result<Watch> {
        let mut stream = UnixStream::connect_addr(&address(image, "")?)?;
        if !is_trusted(peer_uid(&stream)?) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let mut greeting = [0; 8];
        stream.read_exact(&mut greeting)?;
        Ok(Watch(stream))
    }

    /// Waits for the end of the service, at most `patience`.
    ///
    /// # Errors
    /// `WouldBlock` when the time is over.
    pub fn wait(mut self, patience: Duration) -> io::Result<Ended> {
        // None at all is no time that can be set.
        self.0.set_read_timeout(Some(patience.max(Duration::from_millis(1))))?;
        let mut text = String::new();
        match self.0.read_to_string(&mut text) {
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Ok(Ended::Died),
            Err(e) => return Err(e),
            Ok(_) => {}
        }
        Ok(match text.as_str() {
            "" => Ended::Died,
            CLOSED => Ended::Closed,
            _ => Ended::Failed(text),
        })
    }
}

/// Whether the other end of a connection is closed.
fn has_left(stream: &UnixStream) -> bool {
    let mut poll = libc::pollfd { fd: stream.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: one valid pollfd.
    let n = unsafe { libc::poll(&mut poll, 1, 0) };
    n == 1 && poll.revents & (libc::POLLHUP | libc::POLLERR) != 0
}

/// Root, and the user of this process.
pub(crate) fn is_trusted(uid: u32) -> bool {
    // SAFETY: geteuid has no preconditions.
    uid == 0 || uid == unsafe { libc::geteuid() }
}

/// The user at the other end, as the kernel reports it.
pub(crate) fn peer_uid(stream: &UnixStream) -> io::Result<u32> {
    let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the pointers are to a ucred and its length, which live during the call.
    let rc = unsafe {
        let to = (&raw mut cred).cast();
        libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, to, &mut len)
    };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(cred.uid) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Others connect as often as they like: who may know hears how it was closed, and is not told of a death that was none.
    #[test]
    fn watchers_of_others_take_nobodys_place() {
        // SAFETY: geteuid has no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            println!("skipped: needs root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        std::fs::write(&image, "x").unwrap();
        let news = News::open(&image).unwrap();
        let watch = Watch::new(&image).unwrap();
        let address = address(&image, "").unwrap();
        let others = std::thread::spawn(move || {
            // SAFETY: of this thread alone (glibc's setresuid changes all threads), which ends soon.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 4321, 4321, 4321) }, 0);
            let connect = |_| {
                let stream = UnixStream::connect_addr(&address).unwrap();
                stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                let mut said = String::new();
                let sent_away = (&stream).read_to_string(&mut said).is_ok();
                assert!(sent_away && said.is_empty(), "{said}");
                stream
            };
            (0..2 * WATCHERS).map(connect).collect::<Vec<_>>()
        });
        let others = others.join().unwrap();
        // Those who have left take no place either, and too many of ours are sent away.
        (0..2 * WATCHERS).for_each(|_| drop(Watch::new(&image).unwrap()));
        let more: Vec<_> = (0..WATCHERS + 3).map(|_| Watch::new(&image)).collect();
        assert!(more[..WATCHERS - 1].iter().all(|more| more.is_ok()));
        assert!(
            more[WATCHERS - 1..].iter().all(|more| {
                more.as_ref().is_err_and(|e| matches!(e.kind(), io::ErrorKind::UnexpectedEof))
            })
        );
        news.tell(&Ok(()));
        assert_eq!(watch.wait(Duration::from_secs(10)).unwrap(), Ended::Closed);
        drop((news, others));
    }
}

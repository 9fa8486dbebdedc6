//! Which paths are on a volume that offers sessions, and the session of each: one for all connections of the process.
//!
//! The paths are found as `freehold run` finds them, or are said in `FREEHOLD_MOUNTS`; they are looked up again whenever a database is opened.
//!
//! A session is not resumed when its manager ends: locks would be lost on the way, and a connection that goes on with a journal, and not with the locks
//! that protect it, destroys a database. So all calls of the session fail from then on. A new one begins when a database is opened and no file
//! of the old one is open any more; until then nobody can do anything through another session to the names of a database that is still open
//! here. A child of fork begins sessions of its own.

use fs::{Blocking, Client, Cred, Error, FileSystem, OpenOptions};
use parking_lot::Mutex;
use share::mounts::MountInfo;
use share::offers::{self, Reach};
use share::{Connect, Remote};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A session with the manager of a volume.
#[derive(Debug)]
pub(crate) struct Session {
    remote: Arc<Remote>,
    cred: Cred,
    /// The volume is mounted for the kernel at the same place.
    pub is_mounted: bool,
    /// The manager knows atomic writes, as far as we know.
    pub is_atomic: AtomicBool,
    /// A call found that it has ended.
    ended: AtomicBool,
    /// In which it was begun.
    pid: u32,
}

impl Session {
    fn begin(socket: &Path, is_mounted: bool) -> std::io::Result<Arc<Session>> {
        let connect = Connect { resume: Duration::ZERO, ..Connect::at(socket) };
        Ok(Arc::new(Session {
            remote: Arc::new(Remote::connect_with(connect)?),
            cred: Cred::of_process(),
            is_mounted,
            is_atomic: AtomicBool::new(true),
            ended: AtomicBool::new(false),
            pid: std::process::id(),
        }))
    }

    /// A user of the volume: with each, record locks have another owner.
    pub fn client(&self) -> Blocking<Remote> {
        let mut client = Client::new(self.remote.clone(), self.cred.clone());
        client.set_umask(0);
        client.blocking()
    }

    pub fn is_root(&self) -> bool {
        self.cred.uid == 0
    }

    /// Whether this process may use it: not the child of the one that began it.
    pub fn is_ours(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Notes when a call says that the manager is gone.
    pub fn heed<T>(&self, result: fs::Result<T>) -> fs::Result<T> {
        if let Err(Error::Closed) = result {
            self.ended.store(true, Ordering::Relaxed);
        }
        result
    }
}

#[derive(Debug)]
struct Volume {
    /// Where it is mounted: absolute, without a slash at its end.
    prefix: Vec<u8>,
    /// `None`: what is below is not ours.
    socket: Option<PathBuf>,
    is_mounted: bool,
    session: Option<Arc<Session>>,
}

impl Volume {
    /// Files of it are open here.
    fn is_in_use(&self) -> bool {
        self.session.as_ref().is_some_and(|s| Arc::strong_count(s) > 1)
    }
}

#[derive(Debug, Default)]
struct Table {
    volumes: Vec<Volume>,
    pid: u32,
}

static TABLE: Mutex<Table> = Mutex::new(Table { volumes: Vec::new(), pid: 0 });

/// A path on a volume.
pub(crate) struct Place {
    pub session: Arc<Session>,
    /// Within the volume.
    pub path: PathBuf,
}

/// Where volumes are, and the socket of each; `None`: what is below is not ours.
type Found = Vec<(Vec<u8>, Option<PathBuf>)>;

/// Whether a path is a place or below it.
fn is_below(path: &[u8], prefix: &[u8]) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// Looks which volumes there are, which may wait for those who serve them. `None`: none where `path` leads.
fn look(path: &[u8], mounts: &[MountInfo]) -> Option<Found> {
    // SAFETY: asks for a number.
    let is_secure = unsafe { libc::getauxval(libc::AT_SECURE) != 0 };
    let said = std::env::var_os("FREEHOLD_MOUNTS").filter(|_| !is_secure);
    let mut found: Found = match &said {
        Some(said) => {
            let pairs = offers::parse(said.as_bytes()).into_iter();
            pairs.map(|(p, socket)| (p, Some(PathBuf::from(OsStr::from_bytes(&socket))))).collect()
        }
        None => {
            let is_here = |m: &MountInfo| m.is_freehold() && is_below(path, m.point.as_os_str().as_bytes());
            if !mounts.iter().any(is_here) {
                return None;
            }
            let mut found = Vec::new();
            for offer in offers::list_of(mounts) {
                let Reach::Session(socket) = offer.reach else { continue };
                found.push((offer.point.as_os_str().as_bytes().to_vec(), Some(socket)));
                found.extend(offer.inner.iter().map(|p| (p.as_os_str().as_bytes().to_vec(), None)));
            }
            found
        }
    };
    // The innermost decides; of two at one place the volume.
    found.sort_by_key(|(p, socket)| (std::cmp::Reverse(p.len()), socket.is_none()));
    Some(found)
}

impl Table {
    /// Notes which volumes there are.
    fn note(&mut self, found: Found, mounts: &[MountInfo]) {
        let mounted = |p: &Path| mounts.iter().any(|m| m.point == p && m.is_freehold() && m.root == "/");
        let mut old = std::mem::take(&mut self.volumes);
        for (prefix, socket) in found {
            let is_mounted = mounted(Path::new(OsStr::from_bytes(&prefix)));
            let known = old.iter().position(|v| v.prefix == prefix);
            let session = known.and_then(|i| old.swap_remove(i).session);
            self.volumes.push(Volume { prefix, socket, is_mounted, session });
        }
        // Whose files are open here keeps its place, whatever became of the mount.
        self.volumes.extend(old.into_iter().filter(Volume::is_in_use));
        self.volumes.sort_by_key(|v| std::cmp::Reverse(v.prefix.len()));
    }

    /// The volume to which a path leads, if it offers sessions.
    fn volume(&mut self, path: &[u8]) -> Option<&mut Volume> {
        self.volumes.iter_mut().find(|v| is_below(path, &v.prefix)).filter(|v| v.socket.is_some())
    }
}

/// What is known of the volume to which a path leads.
enum Known {
    /// Its session, which may be used.
    Session(Arc<Session>),
    /// Of its session it must be asked whether that has ended. What keeps the session of its files is not counted among these.
    Ask(Arc<Remote>),
    /// It has no session.
    Begin(PathBuf, bool),
}

/// Where a path leads; `None`: not to a volume that offers sessions. `opening`: a database is about to be opened there. Whoever is waited for keeps nobody
/// from databases elsewhere.
pub(crate) fn find(path: &[u8], opening: bool) -> fs::Result<Option<Place>> {
    let is_new = {
        let mut table = TABLE.lock();
        let pid = std::process::id();
        let is_new = table.pid != pid;
        if is_new {
            // The sessions are the parent's, which goes on using their memory: they are left behind.
            for volume in table.volumes.drain(..) {
                std::mem::forget(volume.session);
            }
        }
        is_new
    };
    if is_new || opening {
        let mounts = share::mounts::list().unwrap_or_default();
        let found = look(path, &mounts);
        let mut table = TABLE.lock();
        table.pid = std::process::id();
        match found {
            Some(found) => table.note(found, &mounts),
            None => table.volumes.retain(|v| v.is_in_use() || !is_below(path, &v.prefix)),
        }
    }
    let mut asks = opening;
    loop {
        let (known, at) = {
            let mut table = TABLE.lock();
            let Some(volume) = table.volume(path) else { return Ok(None) };
            let socket = volume.socket.clone().unwrap_or_default();
            let known = match &volume.session {
                // Where nothing is open here, a name may be all that somebody asks for: of a super-journal, for a database on another volume.
                Some(session) if asks || Arc::strong_count(session) == 1 => {
                    Known::Ask(session.remote.clone())
                }
                Some(session) => Known::Session(session.clone()),
                None => Known::Begin(socket, volume.is_mounted),
            };
            (known, volume.prefix.len())
        };
        let session = match known {
            Known::Session(session) => session,
            Known::Ask(remote) => {
                let answer = remote.block_on(remote.ping());
                match asked(path, &remote, answer)? {
                    Some(session) => session,
                    None => continue,
                }
            }
            Known::Begin(socket, is_mounted) => match Session::begin(&socket, is_mounted) {
                Ok(session) => match begun(path, &socket, session) {
                    Some(session) => session,
                    // Somebody else was faster, or it leads elsewhere by now.
                    None => {
                        asks = false;
                        continue;
                    }
                },
                // The kernel serves those who may not have a session.
                Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied && is_mounted => {
                    return Ok(None);
                }
                Err(e) => {
                    return Err(Error::from_errno(e.raw_os_error().unwrap_or(libc::EIO), e.to_string()));
                }
            },
        };
        let rest = &path[at..];
        let path = PathBuf::from(OsStr::from_bytes(if rest.is_empty() { b"/" } else { rest }));
        return Ok(Some(Place { session, path }));
    }
}

/// The session of a volume was asked whether it has ended, and says by itself if it has. `None`: there is another one now, or none.
fn asked(path: &[u8], remote: &Arc<Remote>, answer: fs::Result<()>) -> fs::Result<Option<Arc<Session>>> {
    let mut table = TABLE.lock();
    let Some(volume) = table.volume(path) else { return Ok(None) };
    let Some(session) = volume.session.as_ref().filter(|s| Arc::ptr_eq(&s.remote, remote)) else {
        return Ok(None);
    };
    let _ = session.heed(answer);
    if !session.ended.load(Ordering::Relaxed) {
        return Ok(Some(session.clone()));
    }
    if Arc::strong_count(session) > 1 {
        return Err(Error::Closed);
    }
    volume.session = None;
    Ok(None)
}

/// A session was begun for a volume, which has it from now on. `None`: that has another one, and this one is not needed.
fn begun(path: &[u8], socket: &Path, session: Arc<Session>) -> Option<Arc<Session>> {
    let mut table = TABLE.lock();
    let volume = table.volume(path).filter(|v| v.session.is_none() && v.socket.as_deref() == Some(socket))?;
    Some(volume.session.insert(session).clone())
}

/// How a new file of SQLite is opened for reading and writing.
pub(crate) const READ_WRITE: OpenOptions = OpenOptions::new().read(true).write(true);

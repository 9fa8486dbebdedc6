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

impl Table {
    /// Looks which volumes there are.
    fn look(&mut self) {
        let mounts = share::mounts::list().unwrap_or_default();
        let mounted = |p: &Path| mounts.iter().any(|m| m.point == p && m.is_freehold() && m.root == "/");
        // SAFETY: asks for a number.
        let is_secure = unsafe { libc::getauxval(libc::AT_SECURE) != 0 };
        let said = std::env::var_os("FREEHOLD_MOUNTS").filter(|_| !is_secure);
        let mut found: Vec<(Vec<u8>, Option<PathBuf>)> = match &said {
            Some(said) => {
                let pairs = offers::parse(said.as_bytes()).into_iter();
                pairs.map(|(p, socket)| (p, Some(PathBuf::from(OsStr::from_bytes(&socket))))).collect()
            }
            None => {
                let mut found = Vec::new();
                for offer in offers::list().unwrap_or_default() {
                    let Reach::Session(socket) = offer.reach else { continue };
                    found.push((offer.point.as_os_str().as_bytes().to_vec(), Some(socket)));
                    found.extend(offer.inner.iter().map(|p| (p.as_os_str().as_bytes().to_vec(), None)));
                }
                found
            }
        };
        // The innermost decides; of two at one place the volume.
        found.sort_by_key(|(p, socket)| (std::cmp::Reverse(p.len()), socket.is_none()));
        let mut old = std::mem::take(&mut self.volumes);
        for (prefix, socket) in found {
            let is_mounted = mounted(Path::new(OsStr::from_bytes(&prefix)));
            let known = old.iter().position(|v| v.prefix == prefix);
            let session = known.and_then(|i| old.swap_remove(i).session);
            self.volumes.push(Volume { prefix, socket, is_mounted, session });
        }
        // Whose files are open here keeps its place, whatever became of the mount.
        let in_use = |v: &Volume| v.session.as_ref().is_some_and(|s| Arc::strong_count(s) > 1);
        self.volumes.extend(old.into_iter().filter(in_use));
        self.volumes.sort_by_key(|v| std::cmp::Reverse(v.prefix.len()));
    }
}

/// Where a path leads; `None`: not to a volume that offers sessions. `opening`: a database is about to be opened there.
pub(crate) fn find(path: &[u8], opening: bool) -> fs::Result<Option<Place>> {
    let mut table = TABLE.lock();
    let pid = std::process::id();
    if table.pid != pid {
        // The sessions are the parent's, which goes on using their memory: they are left behind.
        for volume in table.volumes.drain(..) {
            std::mem::forget(volume.session);
        }
        table.pid = pid;
        table.look();
    } else if opening {
        table.look();
    }
    let below = |v: &&mut Volume| {
        path.strip_prefix(&v.prefix[..]).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
    };
    let Some(volume) = table.volumes.iter_mut().find(below) else { return Ok(None) };
    let Some(socket) = &volume.socket else { return Ok(None) };
    let rest = &path[volume.prefix.len()..];
    let path = PathBuf::from(OsStr::from_bytes(if rest.is_empty() { b"/" } else { rest }));
    // Where nothing is open here, a name may be all that somebody asks for: of a super-journal, for a database on another volume.
    if let Some(session) = &volume.session
        && (opening || Arc::strong_count(session) == 1)
    {
        // It says by itself whether it has ended.
        let _ = session.heed(session.remote.block_on(session.remote.ping()));
        if session.ended.load(Ordering::Relaxed) {
            if Arc::strong_count(session) > 1 {
                return Err(Error::Closed);
            }
            volume.session = None;
        }
    }
    let session = match &volume.session {
        Some(session) => session.clone(),
        None => match Session::begin(socket, volume.is_mounted) {
            Ok(session) => volume.session.insert(session).clone(),
            // The kernel serves those who may not have a session.
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied && volume.is_mounted => {
                return Ok(None);
            }
            Err(e) => return Err(Error::from_errno(e.raw_os_error().unwrap_or(libc::EIO), e.to_string())),
        },
    };
    Ok(Some(Place { session, path }))
}

/// How a new file of SQLite is opened for reading and writing.
pub(crate) const READ_WRITE: OpenOptions = OpenOptions::new().read(true).write(true);

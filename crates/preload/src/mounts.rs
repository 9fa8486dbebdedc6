//! Which paths are ours: `FREEHOLD_MOUNTS`, and a session for each mount, opened at first use.
//!
//! The library is off without the variable, and in set-user-id programs. Everything lives as long as the process: mounts are made once;
//! a session is left behind (never freed) by a child of fork, which opens one of its own.

use crate::hook::{Res, fail, inside};
use crate::pool;
use fs::{Cred, FileSystem};
use libc::c_int;
use share::Remote;
use share::lock::Mutex;
use std::future::poll_fn;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::pin::pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A path that a manager serves.
pub(crate) struct Mount {
    /// Absolute, normal, without a slash at its end.
    pub prefix: Vec<u8>,
    socket: Vec<u8>,
    /// Others are mounted below it.
    pub has_inner: bool,
    /// Names the mount to other processes.
    pub hash: u64,
    /// Device number that stat reports, once somebody has asked; 0 until then.
    dev: AtomicU64,
    /// Where the kernel has no mount.
    dev_without: u64,
    session: AtomicPtr<Remote>,
    connecting: Mutex<()>,
    /// The process in which the manager could not be reached, so that it is not asked each time.
    failed: AtomicU32,
    /// The process that has waited for a manager in vain.
    gave_up: AtomicU32,
}

const UNKNOWN: u32 = 0;
const STARTING: u32 = 1;
const OFF: u32 = 2;
const ON: u32 = 3;

/// In a page of its own, which a child with a copy of our memory finds empty, however it was made ([`copied`]).
static STATE: Page = Page(AtomicU32::new(UNKNOWN));

#[repr(align(4096))]
struct Page(AtomicU32);

impl Deref for Page {
    type Target = AtomicU32;
    #[inline]
    fn deref(&self) -> &AtomicU32 {
        &self.0
    }
}

/// Whether the kernel does that.
static EMPTIES: AtomicBool = AtomicBool::new(false);

static MOUNTS: OnceLock<Vec<Mount>> = OnceLock::new();
static PID: AtomicU32 = AtomicU32::new(0);
/// Grows with every fork on the way from the first process to this one: handles belong to one value of it.
static LIFE: AtomicU64 = AtomicU64::new(1);
/// `FREEHOLD_RESUME`: seconds for which calls wait for another manager when theirs has ended.
static RESUME: OnceLock<u64> = OnceLock::new();
/// How often is looked for the next manager.
const LOOK: Duration = Duration::from_millis(20);
/// The permission bits that new files do not get, once something was made or the program has set them: most programs never need them, and only a text of the kernel's that
/// is long to make tells them.
static UMASK: AtomicU32 = AtomicU32::new(UMASK_UNKNOWN);
const UMASK_UNKNOWN: u32 = u32::MAX;

/// Whether there is anything to do for the library.
#[inline]
pub(crate) fn active() -> bool {
    match STATE.load(Ordering::Acquire) {
        ON => true,
        UNKNOWN => start_early(),
        _ => false,
    }
}

/// A call of another library's constructor, before ours has run. It starts the library, except where the program has an allocator of its own:
/// such a one reads its settings (jemalloc: by readlink) while it holds the lock that our first allocation would wait for. Then it is libc's.
#[cold]
fn start_early() -> bool {
    if MOUNTS.get().is_some() { copied() } else { allocator_is_libcs() && start() }
}

/// The first call in a child that has a copy of our memory and was made past our sight, or by clone, which runs no handlers: as after fork.
#[cold]
fn copied() -> bool {
    if STATE.compare_exchange(UNKNOWN, STARTING, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return STATE.load(Ordering::Acquire) == ON;
    }
    let _inside = inside();
    let before = crate::hook::errno();
    // Who has its parent's descriptors too, as they are, cannot have sessions of its own: the kernel serves it.
    let on = !shares_descriptors();
    if on {
        begin_anew();
    }
    STATE.store(if on { ON } else { OFF }, Ordering::Release);
    crate::hook::set_errno(before);
    on
}

/// Whether this process and the one whose memory it has a copy of have one table of descriptors (CLONE_FILES).
fn shares_descriptors() -> bool {
    const KCMP_FILES: libc::c_long = 2;
    // SAFETY: numbers are compared.
    unsafe {
        libc::syscall(libc::SYS_kcmp, libc::getpid(), pid(), KCMP_FILES, 0, 0) == 0
            && libc::getpid() as u32 != pid()
    }
}

/// Has the kernel empty the page of the state for children. It can do so with whole pages only, which are larger on some machines.
fn empty_for_children() {
    let page = std::ptr::from_ref(&STATE).cast_mut().cast();
    // SAFETY: the page has nothing but the state; a number is asked for.
    let done = unsafe {
        libc::sysconf(libc::_SC_PAGESIZE) == size_of::<Page>() as i64
            && libc::madvise(page, size_of::<Page>(), libc::MADV_WIPEONFORK) == 0
    };
    EMPTIES.store(done, Ordering::Release);
}

/// Whether malloc is that of libc, which makes no calls that are hooked. Itself it allocates nothing.
fn allocator_is_libcs() -> bool {
    let object = |function: *const libc::c_void| {
        // SAFETY: all zeros is a valid value, which the call fills.
        unsafe {
            let mut info: libc::Dl_info = std::mem::zeroed();
            (libc::dladdr(function, &mut info) != 0).then_some(info.dli_fbase)
        }
    };
    let of_libc = object(libc::gnu_get_libc_version as *const libc::c_void);
    of_libc.is_some() && object(libc::malloc as *const libc::c_void) == of_libc
}

/// Starts the library, once. Calls that come meanwhile, also those that the start itself brings about, go to libc.
#[cold]
pub(crate) fn start() -> bool {
    if STATE.compare_exchange(UNKNOWN, STARTING, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return false;
    }
    let _inside = inside();
    let mounts = read_mounts();
    let on = !mounts.is_empty();
    let _ = MOUNTS.set(mounts);
    if !on {
        STATE.store(OFF, Ordering::Release);
        return false;
    }
    PID.store(std::process::id(), Ordering::Relaxed);
    crate::spawn::find();
    crate::limits::ask();
    if let Some(seconds) = std::env::var("FREEHOLD_RESUME").ok().and_then(|s| s.parse().ok()) {
        let _ = RESUME.set(seconds);
    }
    // SAFETY: the handler is a function that lives as long as the library, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(crate::left::before_fork), Some(pool::end_start), Some(after_fork)) };
    crate::table::adopt();
    crate::cwd::begin_first();
    empty_for_children();
    STATE.store(ON, Ordering::Release);
    for fd in 0..3 {
        crate::stdio::follow(fd);
    }
    true
}

fn read_mounts() -> Vec<Mount> {
    // SAFETY: the environment is not changed while we look, as of any caller of getenv.
    let value = unsafe {
        if libc::getauxval(libc::AT_SECURE) != 0 {
            return Vec::new();
        }
        let value = libc::getenv(c"FREEHOLD_MOUNTS".as_ptr());
        if value.is_null() {
            return Vec::new();
        }
        std::ffi::CStr::from_ptr(value).to_bytes()
    };
    let mut mounts: Vec<Mount> = share::offers::parse(value)
        .into_iter()
        .enumerate()
        .map(|(i, (prefix, socket))| Mount {
            hash: prefix
                .iter()
                .fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ b as u64).wrapping_mul(0x0100_0000_01b3)),
            dev: AtomicU64::new(0),
            dev_without: libc::makedev(0xfee, i as u32),
            prefix,
            socket,
            has_inner: false,
            session: AtomicPtr::default(),
            connecting: Mutex::new(()),
            failed: AtomicU32::new(0),
            gave_up: AtomicU32::new(0),
        })
        .collect();
    // The innermost mount decides.
    mounts.sort_by_key(|m| std::cmp::Reverse(m.prefix.len()));
    for i in 0..mounts.len() {
        let below = [&mounts[i].prefix[..], b"/"].concat();
        mounts[i].has_inner = mounts.iter().any(|m| m.prefix.starts_with(&below));
    }
    mounts
}

/// The device number of a kernel mount at `path`, if there is one. Its server, which may hang, is not asked.
fn kernel_dev(path: &[u8]) -> Option<u64> {
    let path = std::ffi::CString::new(path).ok()?;
    let how = libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT | libc::AT_STATX_DONT_SYNC;
    // SAFETY: all zeros is a valid value, which the call fills; the path is a C string.
    let st = unsafe {
        let mut st: libc::statx = std::mem::zeroed();
        let done = libc::syscall(libc::SYS_statx, libc::AT_FDCWD, path.as_ptr(), how, 0, &raw mut st);
        (done == 0).then_some(st)?
    };
    let is_root = st.stx_attributes & libc::STATX_ATTR_MOUNT_ROOT as u64 != 0;
    is_root.then(|| libc::makedev(st.stx_dev_major, st.stx_dev_minor))
}

fn kernel_umask() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("Umask:"))?;
    u32::from_str_radix(line.trim(), 8).ok()
}

/// The permission bits that new files do not get.
pub(crate) fn umask_now() -> u32 {
    let known = UMASK.load(Ordering::Relaxed);
    if known != UMASK_UNKNOWN {
        return known;
    }
    let mask = kernel_umask().unwrap_or(0o022);
    // A child of vfork may have another one than its parent, whose memory this is.
    if borrowed_memory() {
        return mask;
    }
    // Another thread may have set it meanwhile.
    UMASK.compare_exchange(UMASK_UNKNOWN, mask, Ordering::Relaxed, Ordering::Relaxed).err().unwrap_or(mask)
}

/// The program has changed it.
pub(crate) fn umask_is(mask: u32) {
    UMASK.store(mask & 0o777, Ordering::Relaxed);
}

/// Whether there is no manager at all, rather than one that does not want us.
fn nobody_listens(e: &std::io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ECONNREFUSED | libc::ENOENT))
}

/// The number of this process, as of the last fork.
pub(crate) fn pid() -> u32 {
    PID.load(Ordering::Relaxed)
}

/// Whether this is a child of vfork, which must leave our memory (its parent's) alone.
pub(crate) fn borrowed_memory() -> bool {
    pool::is_child_with_memory()
}

/// A child of vfork is about to be made. It has our memory, so it can begin no session: for the files that it has from us, we do now.
pub(crate) fn begin_for_child() {
    if active() && !borrowed_memory() {
        let was_inside = crate::hook::is_inside();
        let _inside = inside();
        let opens = crate::table::ours_in(0, usize::MAX).into_iter().filter_map(crate::table::get);
        opens.for_each(|open| _ = open.mount.session());
        if !was_inside {
            crate::left::before_start();
        }
    }
}

/// To which session handles belong.
pub(crate) fn life() -> u64 {
    LIFE.load(Ordering::Relaxed)
}

pub(crate) extern "C" fn after_fork() {
    // Handlers that run before this one may have made calls.
    if !EMPTIES.load(Ordering::Acquire) || STATE.load(Ordering::Acquire) != ON {
        begin_anew();
        STATE.store(ON, Ordering::Release);
    }
}

/// In a child that has a copy of our memory: the sessions and what belongs to them are its parent's.
fn begin_anew() {
    PID.store(std::process::id(), Ordering::Relaxed);
    LIFE.fetch_add(1, Ordering::Relaxed);
    crate::ids::after_fork();
    crate::slot::after_fork();
    crate::rings::after_fork();
    crate::parked::after_fork();
    pool::after_fork();
    crate::table::after_fork();
    crate::cwd::after_fork();
    crate::stdio::after_fork();
    crate::aio::after_fork();
    crate::mapped::after_fork();
    for mount in mounts() {
        // SAFETY: we are the only thread.
        unsafe { crate::hook::free(&mount.connecting) };
        let old = mount.session.swap(std::ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: made by Box::into_raw and never freed.
        if let Some(old) = unsafe { old.as_ref() } {
            for fd in old.descriptors() {
                // SAFETY: our copies of the parent's descriptors; the session is never used here.
                unsafe { libc::syscall(libc::SYS_close, fd.as_raw_fd()) };
            }
        }
    }
}

pub(crate) fn mounts() -> &'static [Mount] {
    MOUNTS.get().map_or(&[], |m| m)
}

pub(crate) fn by_hash(hash: u64) -> Option<&'static Mount> {
    mounts().iter().find(|m| m.hash == hash)
}

/// Credentials to pass along, those of the sessions: the manager takes its own from the kernel.
pub(crate) fn cred() -> &'static Cred {
    crate::ids::begin()
}

impl Mount {
    /// The device number that stat reports: that of the kernel's mount.
    pub(crate) fn dev(&self) -> u64 {
        // Nobody waits for a thread that asks: a mount that this one lies in may hang.
        match self.dev.load(Ordering::Relaxed) {
            0 => {
                let dev = kernel_dev(&self.prefix).unwrap_or(self.dev_without);
                self.dev.store(dev, Ordering::Relaxed);
                dev
            }
            dev => dev,
        }
    }

    /// The session, begun now if need be. `None`: the manager cannot be reached, or this is a child of vfork whose parent has none; the kernel serves this path. Where that can do
    /// so no more, as its manager was killed, the next one is waited for.
    pub(crate) fn session(&'static self) -> Option<&'static Remote> {
        // SAFETY: made by Box::into_raw below and never freed.
        if let Some(remote) = unsafe { self.session.load(Ordering::Acquire).as_ref() } {
            return Some(remote);
        }
        // A child of vfork would leave its parent a session whose descriptors only the child has.
        if self.failed.load(Ordering::Relaxed) == pid() || borrowed_memory() {
            return None;
        }
        match self.begin_session() {
            Err(e) if nobody_listens(&e) && self.is_dead() => self.wait_for_session(),
            begun => begun.ok(),
        }
        .or_else(|| {
            self.failed.store(pid(), Ordering::Relaxed);
            None
        })
    }

    fn begin_session(&'static self) -> std::io::Result<&'static Remote> {
        let _one = self.connecting.lock();
        // SAFETY: as above.
        if let Some(remote) = unsafe { self.session.load(Ordering::Acquire).as_ref() } {
            return Ok(remote);
        }
        crate::ids::begin();
        let remote: &'static Remote = Box::leak(Box::new(Remote::connect_with(self.connect())?));
        self.session.store(std::ptr::from_ref(remote).cast_mut(), Ordering::Release);
        Ok(remote)
    }

    /// As [`Mount::session`], when the manager has ended: calls of processes that have a session wait for the next one, so others do, too.
    fn wait_for_session(&'static self) -> Option<&'static Remote> {
        let until = Instant::now().checked_add(self.connect().resume);
        while until.is_none_or(|until| Instant::now() < until) {
            std::thread::sleep(LOOK);
            match self.begin_session() {
                Err(e) if nobody_listens(&e) => {}
                begun => return begun.ok(),
            }
        }
        self.gave_up.store(pid(), Ordering::Relaxed);
        None
    }

    /// The session, for a file that another process has left to this one.
    fn session_for_file(&'static self) -> Option<&'static Remote> {
        self.session().or_else(|| {
            let may = !borrowed_memory() && self.gave_up.load(Ordering::Relaxed) != pid();
            if may { self.wait_for_session() } else { None }
        })
    }

    /// Whether the kernel has the mount, and nobody who serves it.
    fn is_dead(&self) -> bool {
        let Ok(path) = std::ffi::CString::new(&self.prefix[..]) else { return false };
        // SAFETY: a C string of our own; all zeros is a valid value, which the call fills.
        unsafe {
            let mut st: libc::statfs = std::mem::zeroed();
            libc::syscall(libc::SYS_statfs, path.as_ptr(), &mut st) != 0
                && crate::hook::errno() == libc::ENOTCONN
        }
    }

    /// Where the manager listens, or another one that serves the mount after it.
    fn connect(&self) -> share::Connect {
        use std::os::unix::ffi::OsStrExt;
        let socket = std::path::PathBuf::from(std::ffi::OsStr::from_bytes(&self.socket));
        let next = socket.with_file_name(share::name_at(&self.prefix));
        let mut connect = share::Connect::at(socket);
        connect.sockets.push(next);
        if let Some(seconds) = RESUME.get() {
            connect.resume = std::time::Duration::from_secs(*seconds);
        }
        connect
    }

    /// The session, for a path that begins here. `None` also while the process has other credentials than it, has another root directory, has the kernel read and write, or may not have our memory.
    pub(crate) fn for_paths(&'static self) -> Option<&'static Remote> {
        let elsewhere = crate::ids::others()
            || crate::root::changed()
            || crate::rings::used()
            || crate::limits::too_small();
        if elsewhere { None } else { self.session() }
    }

    /// Runs calls of the session. `EIO` without one.
    pub(crate) fn run<T, U: Future<Output = fs::Result<T>>>(
        &'static self,
        call: impl FnOnce(&'static Remote) -> U,
    ) -> Res<T> {
        let Some(remote) = self.session_for_file() else { return fail(libc::EIO) };
        Ok(remote.block_on(call(remote))?)
    }

    /// The number of the volume's opening by its manager; 0 when that is not known.
    pub(crate) fn opening(&'static self) -> u64 {
        self.session().map_or(0, |remote| remote.opening())
    }

    /// Runs a call, and does `work` while the manager is at it; `None` where nobody had to wait. `EIO` without a session.
    pub(crate) fn run_with<T, W, U: Future<Output = fs::Result<T>>>(
        &'static self,
        call: impl FnOnce(&'static Remote) -> U,
        work: impl FnOnce() -> W,
    ) -> Res<(fs::Result<T>, Option<W>)> {
        let Some(remote) = self.session() else { return fail(libc::EIO) };
        let mut call = pin!(call(remote));
        let (mut work, mut worked) = (Some(work), None);
        let result = remote.block_on(poll_fn(|cx| {
            let polled = call.as_mut().poll(cx);
            // The request is on its way.
            if polled.is_pending()
                && let Some(work) = work.take()
            {
                worked = Some(work());
            }
            polled
        }));
        Ok((result, worked))
    }

    /// Whether `fd` is a descriptor that the session needs.
    fn owns(&self, fd: c_int) -> bool {
        // SAFETY: as in `session`.
        let session = unsafe { self.session.load(Ordering::Acquire).as_ref() };
        session.is_some_and(|s| s.descriptors().iter().any(|d| d.as_raw_fd() == fd))
    }
}

/// Whether `fd` is one of the library's own, which the program must not touch.
pub(crate) fn is_own(fd: c_int) -> bool {
    share::client::high::range().contains(&fd)
        && (mounts().iter().any(|m| m.owns(fd))
            || crate::slot::is_own(fd)
            || pool::is_own(fd)
            || crate::cwd::is_own(fd)
            || crate::mapped::is_own(fd))
}

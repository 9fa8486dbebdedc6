//! Attaching to and detaching from the kernel's tree: mount(2) for root, `fusermount3` for others and for `auto_unmount`.
//!
//! The helper's protocol: it is started with one end of a socket named in `_FUSE_COMMFD`, mounts, and sends the descriptor of
//! `/dev/fuse` over it. With `auto_unmount` it stays and unmounts when the socket closes.

use crate::options::{MountOptions, is_root};
use std::ffi::{CString, OsStr};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::Builder;
use std::time::Duration;

const HELPER: &str = "fusermount3";

/// A place in the tree where a FUSE connection hangs.
pub struct Attached {
    /// Absolute path, symlinks resolved.
    pub mountpoint: PathBuf,
    /// `major:minor` of the mount, which tells it from later ones at the same place.
    pub device_number: Option<String>,
    /// The helper that waits for our end, with our end of its socket.
    helper: Option<(Child, UnixStream)>,
}

fn c_string(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a name holds a NUL byte"))
}

/// Mounts and returns the descriptor from which requests come.
pub fn attach(mountpoint: &Path, options: &MountOptions) -> io::Result<(File, Attached)> {
    let mountpoint = std::fs::canonicalize(mountpoint)?;
    if !std::fs::metadata(&mountpoint)?.is_dir() {
        return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
    }
    let directly = is_root() && !options.auto_unmount;
    if options.nosymfollow && !directly {
        // The helper does not know the word, and a mount that follows them all the same would be worse than none.
        let why = "option 'nosymfollow' needs root, and no 'auto_unmount'";
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    }
    let (file, helper) = if directly {
        (mount_directly(&mountpoint, options)?, None)
    } else {
        let (file, child, socket) = mount_by_helper(&mountpoint, options)?;
        if options.auto_unmount {
            (file, Some((child, socket)))
        } else {
            drop(socket);
            reap(child)?;
            (file, None)
        }
    };
    let here = topmost_mount(&mountpoint).filter(|line| line.kind.starts_with("fuse"));
    let follows = here.as_ref().is_some_and(|line| !line.options.split(',').any(|o| o == "nosymfollow"));
    let attached = Attached { mountpoint, device_number: here.map(|line| line.number), helper };
    if options.nosymfollow && follows {
        attached.detach(true)?;
        let why = "option 'nosymfollow' needs Linux 5.10";
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    }
    Ok((file, attached))
}

fn mount_directly(mountpoint: &Path, o: &MountOptions) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
    // SAFETY: getuid and getgid have no preconditions.
    let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
    let data = format!(
        "fd={},rootmode=40000,user_id={uid},group_id={gid},max_read={},default_permissions{}",
        file.as_raw_fd(),
        o.max_read,
        if o.allow_other { ",allow_other" } else { "" }
    );
    let (source, target) = (c_string(o.fsname.as_bytes())?, c_string(mountpoint.as_os_str().as_bytes())?);
    let (kind, data) = (c_string(format!("fuse.{}", o.subtype).as_bytes())?, c_string(data.as_bytes())?);
    // SAFETY: all four are NUL-terminated strings that live during the call.
    let rc = unsafe {
        libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), o.flags(), data.as_ptr().cast())
    };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(file) }
}

/// Changes the flags of a mount that is there (`mount -o remount`) as `words` of the `-o` syntax say: read-only or not, set-id bits, device nodes,
/// programs, symbolic links. What is not named stays as it was, and so does what is not a flag.
///
/// # Errors
/// Those of mount(2): `EPERM` without root, `EINVAL` when nothing is mounted there, `EBUSY` when files are open for writing. `InvalidInput`: a word has a wrong
/// value. `Unsupported`: what the server does about access times and synchronous writes would have to change, and it does as it was started.
/// `ReadOnlyFilesystem` where the server itself changes nothing, whatever the kernel lets through; the mount stays read-only then.
pub fn remount<'a>(mountpoint: &Path, words: impl IntoIterator<Item = &'a str>) -> io::Result<()> {
    let target = c_string(mountpoint.as_os_str().as_bytes())?;
    let there = topmost_mount(mountpoint).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?.flags();
    let mut options = there.clone();
    for word in words {
        match options.set(word) {
            Err(e) if !MountOptions::is_unknown(&e) => {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, e));
            }
            _ => {}
        }
    }
    let of_server = |o: &MountOptions| [o.noatime, o.sync, o.dirsync];
    let differs = of_server(&there).into_iter().zip(of_server(&options)).position(|(is, asked)| is != asked);
    if let Some(which) = differs {
        let how = if of_server(&there)[which] { "with" } else { "without" };
        let which = ["noatime", "sync", "dirsync"][which];
        let why = format!("its server was started {how} {which}: unmount it, and mount it anew");
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    }
    let set = |flags: libc::c_ulong| {
        let (none, flags) = (std::ptr::null(), flags | libc::MS_REMOUNT);
        // SAFETY: the target is a NUL-terminated string that lives during the call; a remount takes no other strings.
        let rc = unsafe { libc::mount(none, target.as_ptr(), none, flags, std::ptr::null()) };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    set(options.flags())?;
    if options.read_only || !refuses_changes(&target) {
        return Ok(());
    }
    set(options.flags() | libc::MS_RDONLY)?;
    let why = "its server was started read-only (ro): unmount it, and mount it anew without ro";
    Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, why))
}

/// Asks the server behind a mount that the kernel lets change for a change that is none: the removal of an attribute that is not there.
fn refuses_changes(target: &CString) -> bool {
    let name = c"user.freehold.none";
    // SAFETY: both strings are NUL-terminated and live during the call.
    let rc = unsafe { libc::lremovexattr(target.as_ptr(), name.as_ptr()) };
    rc < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EROFS)
}

fn mount_by_helper(mountpoint: &Path, o: &MountOptions) -> io::Result<(File, Child, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    let fd = theirs.as_raw_fd();
    let mut command = Command::new(HELPER);
    command.arg("-o").arg(o.helper_words()).arg("--").arg(mountpoint);
    command.env("_FUSE_COMMFD", fd.to_string()).stdin(Stdio::null());
    // With `auto_unmount` it lives as long as the mount: who waits for the end of our standard output must not wait for it.
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    // SAFETY: between fork and exec only fcntl is called, which is async-signal-safe; `theirs` is open until spawn returns.
    unsafe {
        command.pre_exec(move || match libc::fcntl(fd, libc::F_SETFD, 0) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
    let mut child = command.spawn().map_err(|e| {
        io::Error::new(e.kind(), format!("cannot run {HELPER} (package fuse3), needed here to mount: {e}"))
    })?;
    drop(theirs);
    match receive_descriptor(&ours) {
        Ok(fd) => Ok((File::from(fd), child, ours)),
        Err(e) => {
            drop(ours);
            let mut said = String::new();
            if let Some(mut stderr) = child.stderr.take() {
                let _ = stderr.read_to_string(&mut said);
            }
            let _ = child.wait();
            let said = said.trim();
            Err(if said.is_empty() { e } else { io::Error::new(io::ErrorKind::PermissionDenied, said) })
        }
    }
}

fn receive_descriptor(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0u8; 1];
    let mut iov = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // u64 keeps the control buffer aligned for a cmsghdr.
    let mut control = [0u64; 8];
    // SAFETY: an all-zero msghdr is valid; its pointers are set below.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = &mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.as_mut_ptr().cast();
    msg.msg_controllen = size_of_val(&control) as _;
    let n = loop {
        // SAFETY: msg points to one iovec and a control buffer that live during the call, with their lengths.
        let n = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut msg, libc::MSG_CMSG_CLOEXEC) };
        if n >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            break n;
        }
    };
    if n < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: msg was filled by recvmsg; the macros stay within the control buffer, and a SCM_RIGHTS message of at least
    // CMSG_LEN(4) bytes holds a descriptor that is now ours.
    unsafe {
        let head = libc::CMSG_FIRSTHDR(&msg);
        if n > 0
            && !head.is_null()
            && (*head).cmsg_level == libc::SOL_SOCKET
            && (*head).cmsg_type == libc::SCM_RIGHTS
            && (*head).cmsg_len as usize >= libc::CMSG_LEN(4) as usize
        {
            let fd = std::ptr::read_unaligned(libc::CMSG_DATA(head).cast::<libc::c_int>());
            return Ok(OwnedFd::from_raw_fd(fd));
        }
    }
    Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("{HELPER} did not mount")))
}

fn reap(mut child: Child) -> io::Result<()> {
    child.stderr.take();
    child.wait().map(drop)
}

/// A line of mountinfo, as far as it is needed here.
struct Line {
    /// `major:minor`.
    number: String,
    point: PathBuf,
    /// Options of this mount.
    options: String,
    /// Type.
    kind: String,
    /// Options of the file system.
    of_all: String,
}

impl Line {
    /// The options that are flags of mount(2).
    fn flags(&self) -> MountOptions {
        let has = |word| self.options.split(',').chain(self.of_all.split(',')).any(|o| o == word);
        MountOptions {
            read_only: has("ro"),
            suid: !has("nosuid"),
            dev: !has("nodev"),
            exec: !has("noexec"),
            nosymfollow: has("nosymfollow"),
            noatime: has("noatime"),
            sync: has("sync"),
            dirsync: has("dirsync"),
            ..MountOptions::default()
        }
    }
}

/// What is mounted in this namespace, in the order in which it was.
fn table() -> io::Result<Vec<Line>> {
    let text = std::fs::read("/proc/self/mountinfo")?;
    let line = |line: &[u8]| {
        let mut fields = line.split(|&b| b == b' ');
        let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
        let (number, point) = (text(fields.nth(2)?), unescape(fields.nth(1)?).into());
        let options = text(fields.next()?);
        let mut behind = fields.skip_while(|f| *f != b"-");
        let (kind, of_all) = (text(behind.nth(1)?), text(behind.nth(1)?));
        Some(Line { number, point, options, kind, of_all })
    };
    Ok(text.split(|&b| b == b'\n').filter_map(line).collect())
}

/// The mount that is on top at `mountpoint`.
fn topmost_mount(mountpoint: &Path) -> Option<Line> {
    table().ok()?.into_iter().rfind(|line| line.point == mountpoint)
}

/// Undoes the octal escapes of mountinfo.
fn unescape(text: &[u8]) -> std::ffi::OsString {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        let octal = (*first == b'\\')
            .then(|| tail.get(..3).and_then(|d| std::str::from_utf8(d).ok()))
            .flatten()
            .and_then(|d| u8::from_str_radix(d, 8).ok());
        match octal {
            Some(byte) => {
                out.push(byte);
                rest = &tail[3..];
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    std::ffi::OsString::from_vec(out)
}

/// What of a mount is seen at its mount point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// It is there, on top.
    Top,
    /// It is there, and something else is mounted over it.
    Covered,
    /// It is not there: somebody has unmounted it, perhaps lazily, or moved it.
    Nothing,
}

impl Attached {
    fn seen(&self) -> Seen {
        let (Some(number), Ok(table)) = (&self.device_number, table()) else { return Seen::Top };
        let mut here = table.iter().rev().filter(|line| line.point == self.mountpoint);
        match here.next() {
            Some(top) if top.number == *number => Seen::Top,
            _ if here.any(|line| line.number == *number) => Seen::Covered,
            _ => Seen::Nothing,
        }
    }

    /// Detaches, and returns whether there was something to detach. `force` does it although files are open: for root their requests fail from then on,
    /// for others the connection goes on for them.
    pub fn detach(&self, force: bool) -> io::Result<bool> {
        match self.seen() {
            Seen::Top => {}
            Seen::Nothing => return Ok(false),
            Seen::Covered => {
                return Err(io::Error::other(format!(
                    "something else is mounted over {}; unmount that first",
                    self.mountpoint.display()
                )));
            }
        }
        let flags = libc::UMOUNT_NOFOLLOW | if force { libc::MNT_FORCE | libc::MNT_DETACH } else { 0 };
        let target = c_string(self.mountpoint.as_os_str().as_bytes())?;
        // SAFETY: target is a NUL-terminated string that lives during the call.
        if unsafe { libc::umount2(target.as_ptr(), flags) } == 0 {
            return Ok(true);
        }
        let e = io::Error::last_os_error();
        match e.raw_os_error() {
            Some(libc::EPERM) => {}
            // No longer a mount point, since a moment ago.
            Some(libc::EINVAL) => return Ok(false),
            _ => return Err(e),
        }
        let mut command = Command::new(HELPER);
        command.arg("-u").args(force.then_some("-z")).arg("--").arg(&self.mountpoint).stdin(Stdio::null());
        let out = command.output()?;
        if out.status.success() {
            return Ok(true);
        }
        if self.seen() == Seen::Nothing {
            return Ok(false);
        }
        let said = String::from_utf8_lossy(&out.stderr).trim().to_string();
        Err(if said.contains("busy") {
            io::Error::from_raw_os_error(libc::EBUSY)
        } else {
            io::Error::other(said)
        })
    }

    /// Sets how far the kernel reads ahead on this mount. INIT can only lower it; raising it takes root.
    pub fn set_read_ahead(&self, bytes: u32) {
        if let Some(number) = &self.device_number {
            let path = format!("/sys/class/bdi/{number}/read_ahead_kb");
            if let Err(e) = std::fs::write(path, (bytes / 1024).to_string()) {
                tracing::debug!(error = %e, "read-ahead stays as the kernel chose it");
            }
        }
    }

    /// Ends the helper, if one waits.
    pub fn finish(self) {
        if let Some((child, socket)) = self.helper {
            drop(socket);
            let _ = reap(child);
        }
    }
}

/// Writes dirty pages of the mounts with this number back, as far as that works within `patience`: where one of them can be seen here. The thread that still
/// waits then ends with the connection.
pub fn write_back(number: &str, patience: Duration) {
    let Ok(table) = table() else { return };
    let Some(place) = table.into_iter().rfind(|line| line.number == number).map(|line| line.point) else {
        return;
    };
    let device =
        number.split_once(':').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    let (done, end) = mpsc::channel();
    let write = move || {
        let Ok(dir) = File::open(place) else { return };
        // Not of what may be mounted over it.
        if dir.metadata().is_ok_and(|m| Some((libc::major(m.dev()), libc::minor(m.dev()))) == device) {
            // SAFETY: an open descriptor.
            unsafe { libc::syncfs(dir.as_raw_fd()) };
        }
        drop(dir);
        let _ = done.send(());
    };
    if Builder::new().name("fuse-write-back".into()).spawn(write).is_ok() {
        let _ = end.recv_timeout(patience);
    }
}

/// Whether `program` is found on the search path.
pub fn has_program(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsStr::new("/usr/bin:/bin").to_owned());
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_escapes() {
        assert_eq!(unescape(b"/a\\040b\\134c\\"), OsStr::new("/a b\\c\\"));
        let root = topmost_mount(Path::new("/")).unwrap();
        assert!(root.number.contains(':') && !root.kind.is_empty() && root.options.contains('r'));
        assert!(topmost_mount(Path::new("/no such place")).is_none());
    }
}

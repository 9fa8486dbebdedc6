//! Where everything is looked up, and the one way by which anything is changed.

use super::{DeviceError, Result};
use rustix::fs::{Mode, OFlags};
use std::any::Any;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// What changes the machine. Each call is a step after which a process may die.
pub trait Kernel {
    /// Writes an attribute of sysfs that exists, at once.
    fn write(&self, attribute: &Path, value: &str) -> io::Result<()>;
    /// Puts a file in place as a whole: afterwards it is the old one or the new one.
    fn save(&self, file: &Path, content: &[u8]) -> io::Result<()>;
    /// Removes a file; none is no error.
    fn remove(&self, file: &Path) -> io::Result<()>;
    /// Opens a device so that nobody else opens it exclusively, mounts it, or builds on it until the answer is dropped.
    ///
    /// # Errors
    /// `EBUSY`: somebody has done so.
    fn hold(&self, node: &Path) -> io::Result<Box<dyn Any>>;
    /// Loads a module, if it can.
    fn load(&self, module: &str);
}

/// The kernel that runs.
#[derive(Debug)]
pub struct Host;

impl Kernel for Host {
    fn write(&self, attribute: &Path, value: &str) -> io::Result<()> {
        // Without O_CREAT and O_TRUNC: an attribute that is not there is an error.
        let fd = rustix::fs::open(attribute, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        // One write(2), as the kernel takes each as a value of its own.
        rustix::io::write(&fd, value.as_bytes())?;
        Ok(())
    }

    fn save(&self, file: &Path, content: &[u8]) -> io::Result<()> {
        let new = file.with_extension("new");
        std::fs::write(&new, content)?;
        std::fs::rename(&new, file)
    }

    fn remove(&self, file: &Path) -> io::Result<()> {
        match std::fs::remove_file(file) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }

    fn hold(&self, node: &Path) -> io::Result<Box<dyn Any>> {
        // For reading: closing a device that was open for writing makes udev(7) look at it again.
        let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(Box::new(rustix::fs::open(node, flags, Mode::empty())?))
    }

    fn load(&self, module: &str) {
        // It fails where the module is a part of the kernel, too: whoever asked looks at what is there then.
        let _ = Command::new("modprobe").arg(module).stdin(Stdio::null()).stderr(Stdio::null()).status();
    }
}

/// A machine whose `/sys`, `/proc`, `/dev` and `/run` are looked up below a directory.
pub struct Machine<K = Host> {
    pub(super) root: PathBuf,
    pub(super) kernel: K,
    /// How long a controller may take to be back, and another command to end.
    pub(super) patience: Duration,
}

impl Machine {
    /// This machine, or, where `root` is not `/`, what a test has put there.
    pub fn new(root: impl Into<PathBuf>) -> Machine {
        Machine::with(root, Host, Duration::from_secs(10))
    }
}

impl<K> Machine<K> {
    /// A machine with a kernel of its own. `patience`: how long is waited for controllers and for other commands.
    pub fn with(root: impl Into<PathBuf>, kernel: K, patience: Duration) -> Machine<K> {
        Machine { root: root.into(), kernel, patience }
    }

    /// `path` without its leading `/`, below the root.
    pub(super) fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join(path)
    }

    /// The text of a file without the white space around it; empty when it cannot be read.
    pub(super) fn text(&self, path: impl AsRef<Path>) -> String {
        let bytes = std::fs::read(self.at(path)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).trim().to_owned()
    }

    /// The last component of what a symlink names.
    pub(super) fn link_name(&self, path: impl AsRef<Path>) -> Option<String> {
        let to = std::fs::read_link(self.at(path)).ok()?;
        Some(to.file_name()?.to_string_lossy().into_owned())
    }

    /// The names in a directory, sorted; none when it cannot be read.
    pub(super) fn names(&self, dir: impl AsRef<Path>) -> Vec<String> {
        let entries = std::fs::read_dir(self.at(dir)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
        names.sort();
        names
    }
}

impl<K: Kernel> Machine<K> {
    /// Writes an attribute of sysfs.
    pub(super) fn write(&self, attribute: impl AsRef<Path>, value: &str) -> Result<()> {
        let path = self.at(attribute);
        tracing::debug!(path = %path.display(), value, "writing");
        self.kernel.write(&path, value).map_err(DeviceError::step("writing", path))
    }
}

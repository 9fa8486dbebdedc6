//! Image files, loop devices and mounts: made for the run, and taken away again whatever happens.
//!
//! Everything lives in one directory of the run. Guards undo what they did, in the reverse order, when they are dropped; they
//! know what they made and touch nothing else. A killed benchmark (SIGKILL) leaves its directory and mounts behind.
//!
//! All images have the same size, are allocated and written once before anything is measured, and stay allocated (no mkfs
//! discards), so that the file system below has nothing to do during a measurement but to pass requests on.

use super::ours::{self, Ours};
use super::raw::Raw;
use super::sample::Kind;
use super::stop;
use super::sys::Sys;
use anyhow::{Context, Result, bail};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The place of a run.
pub struct Lab {
    dir: PathBuf,
    /// Size of each image, bytes.
    pub size: u64,
    files: RefCell<Vec<PathBuf>>,
    dirs: RefCell<Vec<PathBuf>>,
    /// How the peers are mounted, as the kernel says.
    pub mount_options: RefCell<Vec<String>>,
}

impl Lab {
    /// Makes the directory of the run in `parent`.
    pub fn new(parent: &Path, size: u64) -> Result<Lab> {
        let dir = parent.join(format!("freehold-bench-{}", std::process::id()));
        let (files, dirs) = (RefCell::default(), RefCell::new(vec![dir.clone()]));
        std::fs::create_dir(&dir).with_context(|| format!("making {}", dir.display()))?;
        Ok(Lab { dir, size, files, dirs, mount_options: RefCell::default() })
    }

    /// The image of a subject, allocated and written; made at the first call.
    pub fn image(&self, kind: Kind) -> Result<PathBuf> {
        let name = match kind {
            Kind::Freehold | Kind::FreeholdLoop | Kind::Unordered | Kind::Fuse | Kind::Run => "freehold.img",
            Kind::Ext4 | Kind::Ext4Journal | Kind::Ext4Direct | Kind::Passthrough => "ext4.img",
            Kind::Xfs => "xfs.img",
            Kind::Raw => "raw.img",
        };
        let path = self.dir.join(name);
        if !self.files.borrow().contains(&path) {
            self.files.borrow_mut().push(path.clone());
            const BLOCK: usize = 1 << 20;
            let mut raw = Raw::open(&path, BLOCK, 8)?;
            raw.allocate(self.size).context("allocating an image")?;
            raw.run(true, (0..self.size / BLOCK as u64).map(|i| i * BLOCK as u64))
                .context("writing an image")?;
            raw.flush()?;
            stop::check()?;
        }
        Ok(path)
    }

    /// A directory to mount something at.
    pub fn mountpoint(&self, name: &str) -> Result<PathBuf> {
        let path = self.dir.join(name);
        if !self.dirs.borrow().contains(&path) {
            std::fs::create_dir(&path)?;
            self.dirs.borrow_mut().push(path.clone());
        }
        Ok(path)
    }

    /// Registers a file that the run makes, so that it goes away with it.
    pub fn scratch_file(&self, name: &str) -> PathBuf {
        let path = self.dir.join(name);
        self.files.borrow_mut().push(path.clone());
        path
    }

    /// A freshly made volume of ours, open.
    pub fn freehold(&self, cache_bytes: Option<usize>) -> Result<Ours> {
        let image = self.image(Kind::Freehold)?;
        ours::mkfs(&image)?;
        Ours::open(&image, cache_bytes)
    }

    /// The same on a loop device.
    pub fn freehold_on_loop(&self, cache_bytes: Option<usize>) -> Result<(Ours, Loop)> {
        let device = Loop::attach(&self.image(Kind::FreeholdLoop)?)?;
        ours::mkfs(&device.path)?;
        Ok((Ours::open(&device.path, cache_bytes)?, device))
    }

    /// A freshly made file system of the kernel, mounted.
    pub fn peer(&self, kind: Kind) -> Result<Mounted> {
        let device = Loop::attach(&self.image(kind)?)?;
        let path = device.path.to_string_lossy().into_owned();
        let fstype = if kind == Kind::Xfs { "xfs" } else { "ext4" };
        match kind {
            Kind::Xfs => run("mkfs.xfs", &["-q", "-f", "-K", &path])?,
            // What is lazy by default would go on in the background of the measurement.
            _ => {
                let extended = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
                run("mkfs.ext4", &["-q", "-F", "-E", extended, &path])?
            }
        };
        let dir = self.mountpoint(&format!("{fstype}.mnt"))?;
        let options = if kind == Kind::Ext4Journal { "data=journal" } else { "defaults" };
        run("mount", &["-t", fstype, "-o", options, &path, &dir.to_string_lossy()])?;
        let mount = MountGuard { dir: dir.clone() };
        self.note_options(fstype, &dir, &device.path);
        Ok(Mounted { sys: Sys::new(&dir, Some(&device.path))?, dir, _mount: mount, _device: device })
    }

    fn note_options(&self, fstype: &str, dir: &Path, device: &Path) {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let dir = dir.to_string_lossy();
        let line = mounts.lines().find(|l| l.split(' ').nth(1) == Some(&dir)).unwrap_or_default();
        let mut text = format!("{fstype}: {}", line.split(' ').nth(3).unwrap_or("?"));
        if let Some(name) = device.file_name() {
            let options = Path::new("/proc/fs/ext4").join(name).join("options");
            let options = std::fs::read_to_string(options).unwrap_or_default();
            if let Some(mode) = options.lines().find(|l| l.starts_with("data=")) {
                text += &format!(", journal mode {mode}");
            }
        }
        let mut all = self.mount_options.borrow_mut();
        if !all.contains(&text) {
            all.push(text);
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for file in self.files.get_mut() {
            if let Err(e) = std::fs::remove_file(&*file)
                && e.kind() != std::io::ErrorKind::NotFound
            {
                eprintln!("could not remove {}: {e}", file.display());
            }
        }
        for dir in self.dirs.get_mut().iter().rev() {
            if let Err(e) = std::fs::remove_dir(dir) {
                eprintln!("could not remove {}: {e}", dir.display());
            }
        }
    }
}

/// A loop device with direct I/O.
pub struct Loop {
    /// `/dev/loopN`
    pub path: PathBuf,
}

impl Loop {
    /// Attaches an image to a free loop device.
    pub fn attach(image: &Path) -> Result<Loop> {
        let image = image.to_string_lossy();
        let name = run("losetup", &["--find", "--show", "--direct-io=on", &image])?;
        let device = Loop { path: PathBuf::from(name.trim()) };
        let base = device.path.file_name().unwrap_or_default().to_os_string();
        let direct = std::fs::read_to_string(Path::new("/sys/block").join(base).join("loop/dio"));
        if direct.is_ok_and(|d| d.trim() != "1") {
            bail!(
                "{} has no direct I/O: images must lie on a file system that has it",
                device.path.display()
            );
        }
        Ok(device)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if let Err(e) = run("losetup", &["--detach", &self.path.to_string_lossy()]) {
            eprintln!("{e:#}");
        }
    }
}

/// Unmounts a directory.
pub struct MountGuard {
    /// Where it is mounted.
    pub dir: PathBuf,
}

impl Drop for MountGuard {
    fn drop(&mut self) {
        let dir = self.dir.to_string_lossy();
        for attempt in 0..50 {
            match run("umount", &[&dir]) {
                Ok(_) => return,
                Err(e) if attempt == 49 => eprintln!("{e:#}"),
                Err(_) => std::thread::sleep(std::time::Duration::from_millis(100)),
            }
        }
    }
}

/// A mounted file system of the kernel. The fields are dropped in this order: descriptor, mount, loop device.
pub struct Mounted {
    /// Its root, for workloads.
    pub sys: Sys,
    /// Where it is mounted.
    pub dir: PathBuf,
    _mount: MountGuard,
    _device: Loop,
}

/// Runs a program to its end and returns what it printed. An error says what is missing, or what the program said.
pub fn run(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(find(program)?)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("running {program}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{program} {}: {} ({})", args.join(" "), said.trim(), output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Where a program is, or which package to install.
pub fn find(program: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    if let Some(found) = places.map(|dir| dir.join(program)).find(|p| p.is_file()) {
        return Ok(found);
    }
    let package = match program {
        "mkfs.ext4" => "e2fsprogs",
        "mkfs.xfs" => "xfsprogs",
        "losetup" | "mount" | "umount" => "util-linux and mount",
        "cc" => "gcc",
        "pkg-config" => "pkg-config",
        other => other,
    };
    bail!("{program} was not found: install {package}")
}

/// Whether a subject can be measured here, or why not.
pub fn available(kind: Kind) -> Result<()> {
    let programs: &[&str] = match kind {
        Kind::Freehold | Kind::Unordered | Kind::Raw => return Ok(()),
        Kind::FreeholdLoop => &["losetup"],
        Kind::Xfs => &["losetup", "mkfs.xfs", "mount", "umount"],
        Kind::Ext4 | Kind::Ext4Journal | Kind::Ext4Direct => &["losetup", "mkfs.ext4", "mount", "umount"],
        Kind::Fuse | Kind::Run => &[],
        Kind::Passthrough => &["losetup", "mkfs.ext4", "mount", "umount", "cc", "pkg-config"],
    };
    if !rustix::process::geteuid().is_root() {
        bail!("{} needs root (loop devices, mounts)", kind.name());
    }
    programs.iter().try_for_each(|p| find(p).map(drop))
}

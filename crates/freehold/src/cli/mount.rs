//! `freehold mount`: serves one volume, in a process of its own.
//!
//! In the background means: this program starts itself again in a session of its own and waits for a line on that one's
//! standard output: [`READY`], or why it did not work.

use super::daemon::{self, Signals};
use super::opening::Opening;
use super::{explain, log};
use anyhow::{Context, anyhow, bail};
use freehold::bucket::{self, BucketOptions, BucketService};
use freehold::metrics::Listener;
use freehold::mounts;
use freehold::options::ServeOptions;
use freehold::service::Service;
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

const READY: &str = "ready";

/// Serve a volume at a directory, for all programs (FUSE)
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  freehold mount disk.img /mnt               in the background; returns when /mnt is ready
  freehold mount disk.img /mnt -o noatime,cache=1g
  freehold mount /dev/nvme1n1 /data -o ro
  freehold mount --foreground disk.img /mnt  until ctrl-C or SIGTERM
  freehold umount /mnt
  freehold mount s3://backups/2026 /mnt      a bucket of an object store, or what is below a prefix of it

In /etc/fstab (after make install):
  /srv/disk.img      /data  freehold  noatime,nofail   0  0
  s3://backups/2026  /mnt   freehold  _netdev,nofail   0  0

Options (-o), separated by commas:
  ro, noatime, noexec, suid, dev, sync, dirsync         as for other file systems
  allow_other, noallow_other                            may other users enter? [root: yes]
  cache=SIZE                                            page cache of the engine [an eighth of the memory]
  shared_cache=SIZE                                     copies of its pages that programs under freehold run read without asking,
                                                        4g at most; 0: none [half of the page cache, but at least 128m]
  dirty=SIZE, dirty_age=SECONDS                         what may be unwritten, and how long [a quarter of the cache but at least 128m, 5]
  resume=SECONDS                                        how long files without a name, which programs had open when a server ended,
                                                        wait for these programs to come back [30]
  discard                                               tell the device what is free
  share, share=SOCKET, noshare                          serve sessions over shared memory, for freehold run and the
                                                        libraries: at the usual place [yes], at SOCKET, or not
  lock_timeout=SECONDS                                  end sessions that keep others waiting for a lock so long, and are
                                                        stopped or make no calls [0: none]
  nowrite_leases                                        programs may not overwrite pages of files, nor make and remove files,
                                                        without waiting for an answer; after a crash without a sync less of that
                                                        is missing (docs/SEMANTICS.md)
  ordered, ordered_programs=NAME:NAME,                  fsync and fdatasync give order instead of durability: after a power failure
  ordered_paths=/DIR:/DIR, durable                      the last of what was synced may be missing, but nothing in the middle;
                                                        for everybody, for programs of these names, for files below these
                                                        directories of the volume [durable for all] (docs/SEMANTICS.md)
  queues=threads, turns, classes, auto                  which queue of a controller (nvme:ADDRESS) takes a request: that of
                                                        the thread, the next, one of its class, or the faster of these two
  numa=auto, numa=off, numa=NODE                        serve it where its device is, anywhere, or on this memory node
  metrics=ADDRESS:PORT                                  metrics for Prometheus, at http://ADDRESS:PORT/metrics
  writeback, timeout=SECONDS, max_read=, max_write=,
  read_ahead=, threads=, shared, auto_unmount           details of FUSE, see crates/fuse (for mount(8) and in /etc/fstab 'shared' is
                                                        a word about propagation, which does not come here)
  nosymfollow                                           symbolic links are not followed (as root)

Options of a bucket, beside ro and those of FUSE (keys come from the environment, profile files, or the machine's identity):
  endpoint=URL, region=NAME, profile=NAME, ca=FILE      where the store is, and which profile has its keys (before those in the
                                                        environment)
  path_style, virtual_host, anonymous                   how a bucket is addressed; without keys
  uid=, gid=, umask=                                    of objects that do not say [yours, 022]
  expiry=SECONDS                                        for how long what is known of a name counts [1]
  fsname=NAME                                           what /proc/mounts shows as the source [the URL]
  listed_attributes                                     owners and modes are not asked for by listings
  metrics=ADDRESS:PORT                                  as above; SIGUSR1 has the server write what it has done, and what goes
                                                        on, into its log
  cache=SIZE, part_size=SIZE, uploads=NUMBER, window=SIZE
                                                        memory for data [74m], first parts [4m or the store's least],
                                                        uploads at a time [8], reading ahead [50m]")]
pub struct Args {
    /// Image file, block device, or bucket
    #[arg(value_name = "IMAGE|DEVICE|s3://BUCKET")]
    image: PathBuf,
    /// Where: an existing directory
    dir: PathBuf,
    /// Options, see below
    #[arg(short, long = "options", value_name = "OPTIONS")]
    options: Vec<String>,
    /// Stay in the foreground, with messages on the terminal
    #[arg(long, short = 'F')]
    foreground: bool,
    /// Append messages to this file (in the background: instead of syslog)
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Tell metrics at http://ADDRESS:PORT/metrics (as -o metrics=)
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// Ignore options that are not understood
    #[arg(long, short)]
    sloppy: bool,
    /// This is the server, started by another `freehold mount`
    #[arg(long, hide = true)]
    server: bool,
}

impl Args {
    /// What mount(8) asks its helper for.
    pub fn from_helper(image: PathBuf, dir: PathBuf, options: Vec<String>, sloppy: bool) -> Args {
        Args { image, dir, options, foreground: false, log: None, metrics: None, sloppy, server: false }
    }
}

/// For `remount`: the words of all `-o`, without those that the kernel shows in /proc/mounts and mount(8) hands back.
fn remount_words(options: &[String]) -> Option<Vec<String>> {
    let words = || options.iter().flat_map(|o| o.split(',')).map(str::trim);
    let shown = |w: &&str| {
        let key = w.split('=').next().unwrap_or(w);
        !matches!(key, "remount" | "user_id" | "group_id" | "rootmode" | "fd" | "blksize")
    };
    words().any(|w| w == "remount").then(|| words().filter(shown).map(String::from).collect())
}

/// Changes the flags of the mount at `dir`; the server, of a volume or of a bucket, goes on as it is.
fn remount(dir: &Path, words: &[String]) -> anyhow::Result<()> {
    let Some(mount) = mounts::at(dir)?.filter(mounts::MountInfo::is_freehold) else {
        bail!("no volume is mounted on {}", dir.display());
    };
    let words = words.iter().map(String::as_str);
    freehold::remount(&mount.point, words).with_context(|| format!("cannot remount {}", dir.display()))
}

pub fn run(args: Args) -> anyhow::Result<()> {
    if let Some(words) = remount_words(&args.options) {
        return remount(&args.dir, &words);
    }
    if bucket::is_url(&args.image) {
        return run_bucket(args);
    }
    // Wrong options are found before anything is started.
    let options = ServeOptions::parse(args.options.iter().map(String::as_str), args.sloppy)
        .map_err(|e| anyhow!("{e} (see freehold mount --help)"))?;
    if args.server {
        let Err(e) = serve(&args, &options) else { return Ok(()) };
        let _ = daemon::report(&format!("{e:#}"));
        return Err(e);
    }
    check_place(&args.dir)?;
    if args.foreground { serve(&args, &options) } else { start(&args) }
}

/// Refuses places where a mount would be a mistake.
fn check_place(dir: &Path) -> anyhow::Result<()> {
    let Some(m) = mounts::at(dir).unwrap_or(None) else { return Ok(()) };
    if m.is_freehold() {
        let (at, source) = (dir.display(), m.source.display());
        // One that is served is not asked: its server may hang.
        if mounts::lock_holder(Path::new(&m.source)).is_none() && m.is_dead() {
            return Err(explain::dead(dir));
        }
        bail!("{source} is mounted at {at} already. Stop it with: freehold umount {at}");
    }
    Ok(())
}

/// As `run`, of a bucket.
fn run_bucket(args: Args) -> anyhow::Result<()> {
    let url = args.image.to_str().unwrap_or_default();
    let options = BucketOptions::parse(url, args.options.iter().map(String::as_str), args.sloppy)
        .map_err(|e| anyhow!("{e} (see freehold mount --help)"))?;
    if args.server {
        // Only now: options and variables may name files from where the command was given.
        std::env::set_current_dir("/").context("cannot go to /")?;
        let Err(e) = serve_bucket(&args, &options) else { return Ok(()) };
        let _ = daemon::report(&format!("{e:#}"));
        return Err(e);
    }
    check_place(&args.dir)?;
    if args.foreground { serve_bucket(&args, &options) } else { start(&args) }
}

fn serve_bucket(args: &Args, options: &BucketOptions) -> anyhow::Result<()> {
    let signals = begin(args)?.with_report();
    // What is given back then really is: the allocator would keep what pieces of data are made of for ever, in places where others do not fit.
    // SAFETY: a plain call without pointers.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, 256 << 10) };
    let (url, dir) = (args.image.display(), &args.dir);
    let metrics = args.metrics.or(options.metrics).map(Listener::bind).transpose()?;
    let opening = Opening::watch(args.server)?;
    let fs = options.bucket.open().map_err(|e| anyhow!("{url}: {e}"))?;
    drop(opening);
    let service = BucketService::start(fs, dir, options).map_err(|e| explain::host(e, "mounting at", dir))?;
    let service = Arc::new(service);
    tracing::info!("{url} is served at {}", dir.display());
    let _exporter = metrics.map(|m| m.serve_bucket(Arc::downgrade(&service))).transpose()?;
    if args.server && daemon::report(READY).is_err() {
        // Whoever asked for it has gone.
        service.stop(std::time::Duration::ZERO)?;
    }
    daemon::notify("READY=1");
    daemon::serve_bucket(service, signals)
}

/// What comes first in the process of a server: its name, its signals, its log.
fn begin(args: &Args) -> anyhow::Result<Signals> {
    if args.server {
        // It was started as /proc/self/exe; ps and pgrep are to find it by its name.
        // SAFETY: the name is a NUL-terminated string of at most 16 bytes.
        unsafe { libc::prctl(libc::PR_SET_NAME, c"freehold".as_ptr()) };
    }
    let signals = Signals::block();
    match (&args.log, args.server) {
        (Some(file), _) => log::to_file(file)?,
        (None, true) => log::to_syslog(),
        (None, false) => log::to_terminal(),
    }
    Ok(signals)
}

fn serve(args: &Args, options: &ServeOptions) -> anyhow::Result<()> {
    let signals = begin(args)?;
    let (image, dir) = (&args.image, &args.dir);
    let metrics = args.metrics.or(options.metrics).map(Listener::bind).transpose()?;
    let service = Service::start(image, dir, options).map_err(|e| explain::start(e, image, dir))?;
    tracing::info!("{} is served at {}", image.display(), dir.display());
    if let Some(metrics) = metrics {
        service.keep(Arc::new(metrics.serve(vec![service.observed()])?));
    }
    if args.server && daemon::report(READY).is_err() {
        // Whoever asked for it has gone.
        service.stop(std::time::Duration::ZERO)?;
    }
    daemon::notify("READY=1");
    daemon::serve(vec![service], signals)
}

fn start(args: &Args) -> anyhow::Result<()> {
    let absolute = |p: &Path| std::path::absolute(p).with_context(|| format!("{}", p.display()));
    let (mut ours, theirs) = std::io::pipe().context("cannot make a pipe")?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("freehold").arg("mount").arg("--server");
    if let Some(file) = &args.log {
        command.arg("--log").arg(absolute(file)?);
    }
    command.args(args.sloppy.then_some("--sloppy"));
    if let Some(at) = args.metrics {
        command.arg("--metrics").arg(at.to_string());
    }
    for options in &args.options {
        command.arg("-o").arg(options);
    }
    command
        .arg("--")
        .arg(match bucket::is_url(&args.image) {
            true => args.image.clone(),
            false => freehold::absolute(&args.image).with_context(|| format!("{}", args.image.display()))?,
        })
        .arg(absolute(&args.dir)?);
    if !bucket::is_url(&args.image) {
        command.current_dir("/");
    }
    command.stdin(Stdio::null()).stdout(theirs).stderr(Stdio::null());
    // SAFETY: setsid and close_range are async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            // What a shell or a test left open must not live as long as the mount.
            libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
            Ok(())
        });
    }
    let mut child = command.spawn().context("cannot start the server")?;
    drop(command);
    let mut said = String::new();
    ours.read_to_string(&mut said).context("cannot hear from the server")?;
    if said == READY {
        return Ok(());
    }
    let status = child.wait().context("cannot wait for the server")?;
    if said.is_empty() {
        bail!("the server ended before it was ready ({status}); try --foreground to see more");
    }
    bail!("{said}")
}

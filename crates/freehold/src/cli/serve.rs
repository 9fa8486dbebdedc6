//! `freehold serve`: many volumes in one process, as a configuration file says.

use super::daemon::{self, Signals};
use super::{explain, log, umount};
use anyhow::{Context, anyhow, bail};
use freehold::metrics::Listener;
use freehold::mounts::{self, MountInfo};
use freehold::options::{ServeOptions, parse_address};
use freehold::service::{self, Service};
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Serve the volumes of a configuration file, in the foreground
#[derive(clap::Args)]
#[command(after_help = "\
The file is TOML, with a section for each volume:
  metrics = \"127.0.0.1:9464\"       # optional, for Prometheus

  [[volume]]
  image = \"/srv/disk.img\"        # or a block device, or nvme:0000:00:04.0; relative to the directory of the file
  mountpoint = \"/data\"
  options = \"noatime,cache=1g\"   # optional, as after mount -o

SIGTERM and SIGINT unmount and close all volumes; programs that still have files open after 3 \
seconds lose them, also where a volume is mounted at other places (bind mounts, containers). While volumes are \
still being opened, the signal counts when the one at hand is open. A mount that a killed server left is cleared away \
at the start. SIGHUP is ignored: after a change of the file, restart. A volume that is unmounted \
from outside is closed, the others go on; the process ends with the last one. It tells systemd when it is ready (Type=notify), see contrib/freehold.service.

Exit codes: 0 all volumes were closed cleanly; 1 one could not be started or not be closed.")]
pub struct Args {
    /// The configuration file
    #[arg(long, short, value_name = "FILE")]
    config: PathBuf,
    /// Append messages to this file instead of standard error
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Tell metrics at http://ADDRESS:PORT/metrics (instead of where the file says)
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_address)]
    metrics: Option<SocketAddr>,
    /// Serve the other volumes when one cannot be started (and exit with 1 in the end)
    #[arg(long)]
    keep_going: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    metrics: Option<String>,
    volume: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    image: PathBuf,
    mountpoint: PathBuf,
    #[serde(default)]
    options: String,
}

/// What a configuration file asks for.
struct Plan {
    metrics: Option<SocketAddr>,
    /// Image, mount point, options.
    volumes: Vec<(PathBuf, PathBuf, ServeOptions)>,
}

impl Plan {
    /// Reads the text of `file`.
    fn parse(text: &str, file: &Path) -> anyhow::Result<Plan> {
        let name = file.display();
        let config: Config =
            toml::from_str(text).map_err(|e| anyhow!("{name}: {}", e.to_string().trim_end()))?;
        if config.volume.is_empty() {
            bail!("{name} names no volume");
        }
        let metrics = config.metrics.as_deref().map(parse_address).transpose();
        let metrics = metrics.map_err(|e| anyhow!("{name}: metrics: {e}"))?;
        let base = std::path::absolute(file).with_context(|| format!("{name}"))?;
        let base = base.parent().unwrap_or(Path::new("/"));
        let mut volumes = Vec::new();
        let cache = format!("cache={}", freehold::memory::usual_cache(config.volume.len()));
        for entry in &config.volume {
            let options = ServeOptions::parse([&*cache, entry.options.as_str()], false)
                .map_err(|e| anyhow!("{name}: {}: {e}", entry.image.display()))?;
            if options.metrics.is_some() {
                bail!("{name}: metrics are those of all volumes; write them at the top of the file");
            }
            let image = match freehold::nvme_address(&entry.image) {
                Some(_) => entry.image.clone(),
                None => base.join(&entry.image),
            };
            volumes.push((image, base.join(&entry.mountpoint), options));
        }
        Ok(Plan { metrics, volumes })
    }
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let signals = Signals::block();
    match &args.log {
        Some(file) => log::to_file(file)?,
        None => log::to_terminal(),
    }
    let name = args.config.display();
    let text = std::fs::read_to_string(&args.config).with_context(|| format!("cannot read {name}"))?;
    let plan = Plan::parse(&text, &args.config)?;
    let at = args.metrics.or(plan.metrics);
    let all = plan.volumes;
    let metrics = at.map(Listener::bind).transpose()?;
    let (mut services, mut failed) = (Vec::new(), Vec::new());
    let mut stopped = None;
    for (image, point, options) in &all {
        // What is opened after a crash may take minutes, and the next as long again.
        stopped = signals.pending();
        if stopped.is_some() {
            break;
        }
        let started = make_room(image, point).and_then(|()| {
            Service::start(image, point, options).map_err(|e| explain::start(e, image, point))
        });
        match started {
            Ok(service) => {
                tracing::info!("{} is served at {}", image.display(), point.display());
                services.push(service);
            }
            Err(e) => {
                tracing::error!("{e:#}");
                failed.push(e);
                if !args.keep_going {
                    break;
                }
            }
        }
    }
    if let Some(signal) = stopped {
        tracing::info!("stopping (signal {signal}) before all volumes are served");
        daemon::notify("STOPPING=1");
        daemon::stop(services)?;
    } else if !failed.is_empty() && !args.keep_going {
        daemon::stop(services)?;
    } else if !services.is_empty() {
        if let Some(metrics) = metrics {
            let exporter = Arc::new(metrics.serve(services.iter().map(Service::observed).collect())?);
            services.iter().for_each(|service| service.keep(exporter.clone()));
        }
        daemon::notify("READY=1");
        daemon::serve(services, signals)?;
    }
    match failed.len() {
        0 => Ok(()),
        1 if args.log.is_some() => Err(failed.remove(0)),
        // The log has said why, on the same terminal or in the same journal.
        n => bail!("{n} of {} volumes could not be served", all.len()),
    }
}

/// Refuses a place where another volume is served. What a killed server of this same volume left is cleared away: the service
/// is started again by systemd, with nobody there to do it.
fn make_room(image: &Path, point: &Path) -> anyhow::Result<()> {
    let Some(m) = mounts::at(point).unwrap_or(None).filter(MountInfo::is_freehold) else { return Ok(()) };
    let (at, source) = (point.display(), m.source.display());
    if m.source == *service::source(image) && umount::is_dead(&m) {
        umount::unmount(&m, umount::How::Abort)
            .with_context(|| format!("clearing away the dead mount at {at}"))?;
        tracing::warn!("{at}: its server had died; the mount is cleared away");
        return Ok(());
    }
    bail!("{source} is mounted at {at} already. Stop it with: freehold umount {at}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> anyhow::Result<Plan> {
        Plan::parse(text, Path::new("/etc/freehold.toml"))
    }

    #[test]
    fn the_example_is_understood() {
        let text = include_str!("../../../../contrib/freehold.toml");
        let plan = parse(text).unwrap();
        assert_eq!(plan.metrics, Some("127.0.0.1:9464".parse().unwrap()));
        let [(image, point, options)] = &plan.volumes[..] else { panic!("one volume") };
        assert_eq!((image.as_path(), point.as_path()), (Path::new("/srv/disk.img"), Path::new("/data")));
        assert!(options.volume.noatime);
        // What is commented out as well.
        let more: String = text
            .lines()
            .map(|l| l.strip_prefix("# [[volume]]").map_or(l, |_| "[[volume]]"))
            .map(|l| match l.strip_prefix("# ") {
                Some(word) if word.contains(" = ") => format!("{word}\n"),
                _ => format!("{l}\n"),
            })
            .collect();
        assert_eq!(parse(&more).unwrap().volumes[1].0, Path::new("/dev/nvme1n1"));
    }

    /// A server was killed; of the mount that it left is known which controller or image it was of.
    #[test]
    fn what_a_killed_server_left_is_cleared_away() {
        // SAFETY: geteuid has no preconditions.
        if unsafe { libc::geteuid() } != 0 || !Path::new("/dev/fuse").exists() {
            println!("skipped: needs root and /dev/fuse");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (point, image) = (dir.path().join("mnt"), dir.path().join("image"));
        std::fs::create_dir(&point).unwrap();
        std::fs::write(&image, "x").unwrap();
        for name in [Path::new("nvme:0000:00:1f.7"), &image] {
            let options = fuse::MountOptions { fsname: service::source(name), ..Default::default() };
            let engine = Arc::new(sim::Model::new(sim::model::system_clock()));
            let mount = fuse::mount(engine, &point, options).unwrap();
            let m = mounts::at(&point).unwrap().unwrap();
            assert_eq!(mounts::of_image(name).unwrap().as_slice(), std::slice::from_ref(&m));
            make_room(name, &point).unwrap_err();
            fuse::Connection::of(&m.device).unwrap().abort().unwrap();
            mount.wait();
            let other = make_room(Path::new("nvme:0000:00:1f.6"), &point).unwrap_err();
            assert!(other.to_string().contains("already"), "{other}");
            make_room(name, &point).unwrap();
            assert!(mounts::at(&point).unwrap().is_none());
        }
    }

    #[test]
    fn metrics_stand_at_the_top() {
        let volume = "[[volume]]\nimage = 'a'\nmountpoint = 'b'\n";
        let plan = parse(&format!("metrics = '[::]:1'\n{volume}")).unwrap();
        assert_eq!((plan.metrics.unwrap().port(), plan.volumes[0].0.as_path()), (1, Path::new("/etc/a")));
        for (text, part) in [
            (format!("metrics = 'here'\n{volume}"), "not an address"),
            (format!("metrics = 9464\n{volume}"), "metrics"),
            (format!("{volume}options = 'metrics=127.0.0.1:1'"), "at the top"),
        ] {
            let e = parse(&text).err().unwrap().to_string();
            assert!(e.contains(part), "{e}");
        }
    }
}

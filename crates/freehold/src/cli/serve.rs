//! `freehold serve`: many volumes in one process, as a configuration file says.

use super::daemon::{self, Signals};
use super::{explain, log, umount};
use anyhow::{Context, anyhow, bail};
use freehold::mounts::{self, MountInfo};
use freehold::options::ServeOptions;
use freehold::service::Service;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// Serve the volumes of a configuration file, in the foreground
#[derive(clap::Args)]
#[command(after_help = "\
The file is TOML, with a section for each volume:
  [[volume]]
  image = \"/srv/disk.img\"        # or a block device; relative to the directory of the file
  mountpoint = \"/data\"
  options = \"noatime,cache=1g\"   # optional, as after mount -o

SIGTERM and SIGINT unmount and close all volumes; programs that still have files open after 3 \
seconds lose them. A mount that a killed server left is cleared away \
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
    /// Serve the other volumes when one cannot be started (and exit with 1 in the end)
    #[arg(long)]
    keep_going: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
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

pub fn run(args: Args) -> anyhow::Result<()> {
    let signals = Signals::block();
    match &args.log {
        Some(file) => log::to_file(file)?,
        None => log::to_terminal("info"),
    }
    let name = args.config.display();
    let text = std::fs::read_to_string(&args.config).with_context(|| format!("cannot read {name}"))?;
    let config: Config =
        toml::from_str(&text).map_err(|e| anyhow!("{name}: {}", e.to_string().trim_end()))?;
    if config.volume.is_empty() {
        bail!("{name} names no volume");
    }
    let base = std::path::absolute(&args.config).with_context(|| format!("{name}"))?;
    let base = base.parent().unwrap_or(Path::new("/"));
    let mut all = Vec::new();
    for entry in &config.volume {
        let options = ServeOptions::parse([entry.options.as_str()], false)
            .map_err(|e| anyhow!("{name}: {}: {e}", entry.image.display()))?;
        all.push((base.join(&entry.image), base.join(&entry.mountpoint), options));
    }
    let (mut services, mut failed) = (Vec::new(), Vec::new());
    for (image, point, options) in &all {
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
    if !failed.is_empty() && !args.keep_going {
        for service in &services {
            let image = service.image();
            let stopped = service.stop(std::time::Duration::from_secs(1));
            stopped.with_context(|| format!("unmounting {}", service.point().display()))?;
            service.finish().map_err(|e| explain::volume(e, image))?;
        }
    } else if !services.is_empty() {
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
    let is_ours = image.canonicalize().is_ok_and(|i| m.source == i.as_os_str());
    if is_ours && umount::is_dead(&m) {
        umount::unmount(&m.point, true).with_context(|| format!("clearing away the dead mount at {at}"))?;
        tracing::warn!("{at}: its server had died; the mount is cleared away");
        return Ok(());
    }
    bail!("{source} is mounted at {at} already. Stop it with: freehold umount {at}")
}

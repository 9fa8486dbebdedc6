//! `freehold df`.

use super::{Exit, explain, show};
use freehold::options::format_size;
use freehold::{StatFs, mounts};
use serde_json::json;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// How long a mounted volume has to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Show the space of volumes, mounted or not
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  freehold df                  all mounted volumes
  freehold df /mnt disk.img    a mounted one, and an image that nobody serves
  freehold df --json disk.img")]
pub struct Args {
    /// Directories in mounted volumes, image files, block devices
    #[arg(value_name = "DIR|IMAGE")]
    targets: Vec<PathBuf>,
    /// Tell it as JSON, sizes in bytes
    #[arg(long)]
    json: bool,
}

struct Line {
    volume: String,
    space: StatFs,
    point: Option<PathBuf>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let mut targets = args.targets;
    let is_all = targets.is_empty();
    if is_all {
        let all = mounts::list().map_err(|e| anyhow::anyhow!("cannot read the table of mounts: {e}"))?;
        targets = all.into_iter().filter(|m| m.is_freehold()).map(|m| m.point).collect();
    }
    let (mut lines, mut failed) = (Vec::new(), false);
    for line in targets.iter().map(|target| look(target)) {
        match line {
            Ok(line) => lines.push(line),
            // A dead mount does not hide the others.
            Err(e) if is_all => {
                eprintln!("freehold: {e:#}");
                failed = true;
            }
            Err(e) => return Err(e),
        }
    }
    tell(&lines, args.json);
    if failed { Err(Exit { code: 1, message: String::new() }.into()) } else { Ok(()) }
}

fn tell(lines: &[Line], json: bool) {
    if json {
        println!("{:#}", lines.iter().map(Line::json).collect::<serde_json::Value>());
        return;
    }
    let head = ["Volume", "Size", "Used", "Avail", "Use%", "Inodes", "Mounted on"].map(String::from);
    let rows: Vec<Vec<String>> = std::iter::once(head.to_vec()).chain(lines.iter().map(Line::row)).collect();
    print!("{}", show::table(&rows, &[6]));
}

fn look(target: &Path) -> anyhow::Result<Line> {
    let meta = in_time(target, |path| path.metadata()).map_err(|e| explain::host(e, "looking at", target))?;
    let inside = if meta.is_dir() {
        Some(target.to_path_buf())
    } else {
        // A served image is asked through its mount.
        let served = mounts::of_image(target).unwrap_or_default();
        served.into_iter().rev().find(|m| m.is_freehold()).map(|m| m.point)
    };
    let Some(dir) = inside else {
        let volume = explain::open(target, true)?;
        let space =
            fs::block_on(freehold::FileSystem::statfs(&volume)).map_err(|e| explain::volume(e, target))?;
        return Ok(Line { volume: target.display().to_string(), space, point: None });
    };
    let s = in_time(&dir, |path| Ok(rustix::fs::statvfs(path)?))
        .map_err(|e| explain::host(e, "looking at", &dir))?;
    let space = StatFs {
        block_size: s.f_frsize as u32,
        blocks: s.f_blocks,
        blocks_free: s.f_bfree,
        blocks_available: s.f_bavail,
        inodes: s.f_files,
        inodes_free: s.f_ffree,
        name_max: s.f_namemax as u32,
    };
    let whole = std::fs::canonicalize(&dir).map_err(|e| explain::host(e, "looking at", &dir))?;
    let all = mounts::list().unwrap_or_default();
    let mount = whole.ancestors().find_map(|a| all.iter().rev().find(|m| m.point == a));
    let volume = mount.map_or(dir.display().to_string(), |m| m.source.display().to_string());
    Ok(Line { volume, space, point: mount.map(|m| m.point.clone()) })
}

/// Asks about a path, which may lead to a server that does not answer: then this says so, and whoever asked waits until the program ends.
fn in_time<T: Send + 'static>(
    path: &Path,
    ask: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (answer, answered) = mpsc::channel();
    let whole = path.to_path_buf();
    std::thread::Builder::new().spawn(move || answer.send(ask(&whole)))?;
    answered.recv_timeout(PATIENCE).unwrap_or_else(|_| {
        let text = format!("whoever serves it has not answered for {} seconds", PATIENCE.as_secs());
        Err(io::Error::new(io::ErrorKind::TimedOut, text))
    })
}

impl Line {
    fn bytes(&self, blocks: u64) -> u64 {
        blocks.saturating_mul(self.space.block_size as u64)
    }

    fn row(&self) -> Vec<String> {
        let s = &self.space;
        let used = s.blocks.saturating_sub(s.blocks_free);
        let reachable = used + s.blocks_available;
        let percent = if reachable == 0 { 0 } else { (used * 100).div_ceil(reachable) };
        vec![
            self.volume.clone(),
            format_size(self.bytes(s.blocks)),
            format_size(self.bytes(used)),
            format_size(self.bytes(s.blocks_available)),
            format!("{percent}%"),
            s.inodes.saturating_sub(s.inodes_free).to_string(),
            self.point.as_ref().map_or("-".into(), |p| p.display().to_string()),
        ]
    }

    fn json(&self) -> serde_json::Value {
        let s = &self.space;
        json!({
            "volume": self.volume, "mountpoint": self.point,
            "bytes": self.bytes(s.blocks), "bytes_used": self.bytes(s.blocks.saturating_sub(s.blocks_free)),
            "bytes_free": self.bytes(s.blocks_free), "bytes_available": self.bytes(s.blocks_available),
            "inodes_used": s.inodes.saturating_sub(s.inodes_free), "inodes_free": s.inodes_free,
        })
    }
}

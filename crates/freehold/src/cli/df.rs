//! `freehold df`.

use super::{Exit, explain, show};
use freehold::options::format_size;
use freehold::{StatFs, mounts};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::ffi::OsString;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
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
    /// What [`ask`] runs: tells what the system says about the targets
    #[arg(long, hide = true)]
    here: bool,
}

struct Line {
    volume: String,
    space: StatFs,
    point: Option<PathBuf>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    if args.here {
        let told: Vec<_> = args.targets.iter().map(|target| Told::by_system(target)).collect();
        println!("{}", json!(told));
        return Ok(());
    }
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
    explain::not_bucket(target)?;
    let mut told = ask(target).map_err(|e| explain::host(e, "looking at", target))?;
    if !told.is_dir {
        // A served image is asked through its mount.
        let served = mounts::of_image(target).unwrap_or_default();
        match served.into_iter().rev().find(|m| m.is_freehold()) {
            Some(m) => told = ask(&m.point).map_err(|e| explain::host(e, "looking at", &m.point))?,
            None => {
                let volume = explain::open(target, true)?;
                let space = fs::block_on(freehold::FileSystem::statfs(&volume))
                    .map_err(|e| explain::volume(e, target))?;
                return Ok(Line { volume: target.display().to_string(), space, point: None });
            }
        }
    }
    let whole = PathBuf::from(told.whole);
    let all = mounts::list().unwrap_or_default();
    let mount = whole.ancestors().find_map(|a| all.iter().rev().find(|m| m.point == a));
    let volume = mount.map_or(target.display().to_string(), |m| m.source.display().to_string());
    Ok(Line { volume, space: told.space, point: mount.map(|m| m.point.clone()) })
}

/// What the system says about a path, or an errno.
#[derive(Serialize, Deserialize)]
struct Told {
    is_dir: bool,
    /// Without symbolic links.
    whole: OsString,
    #[serde(with = "Space")]
    space: StatFs,
}

/// [`StatFs`], for serde.
#[derive(Serialize, Deserialize)]
#[serde(remote = "StatFs")]
struct Space {
    block_size: u32,
    blocks: u64,
    blocks_free: u64,
    blocks_available: u64,
    inodes: u64,
    inodes_free: u64,
    name_max: u32,
}

impl Told {
    fn by_system(path: &Path) -> Result<Told, i32> {
        let look = || {
            let is_dir = path.metadata()?.is_dir();
            let s = rustix::fs::statvfs(path)?;
            let space = StatFs {
                block_size: s.f_frsize as u32,
                blocks: s.f_blocks,
                blocks_free: s.f_bfree,
                blocks_available: s.f_bavail,
                inodes: s.f_files,
                inodes_free: s.f_ffree,
                name_max: s.f_namemax as u32,
            };
            Ok(Told { is_dir, whole: path.canonicalize()?.into(), space })
        };
        look().map_err(|e: io::Error| e.raw_os_error().unwrap_or(libc::EIO))
    }
}

/// Asks the system about a path, which may lead to a server that does not answer.
///
/// A process of its own asks: the kernel ends nobody whose request a server has taken, not even by SIGKILL, before the server
/// answers or ends. A thread would keep this program with it.
fn ask(path: &Path) -> io::Result<Told> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["df", "--here", "--"])
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut said = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let (answer, answered) = mpsc::channel();
    std::thread::Builder::new().spawn(move || {
        let mut text = Vec::new();
        answer.send(said.read_to_end(&mut text).map(|_| text))
    })?;
    let Ok(text) = answered.recv_timeout(PATIENCE) else {
        // It ends when it can; nobody waits for that.
        let _ = child.kill();
        let text = format!("whoever serves it has not answered for {} seconds", PATIENCE.as_secs());
        return Err(io::Error::new(io::ErrorKind::TimedOut, text));
    };
    child.wait()?;
    let told: [Result<Told, i32>; 1] = serde_json::from_slice(&text?)?;
    let [told] = told;
    told.map_err(io::Error::from_raw_os_error)
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

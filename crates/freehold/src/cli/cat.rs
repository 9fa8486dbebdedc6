//! `freehold cat`.

use super::inside::Inside;
use super::tree::{Place, Tree};
use anyhow::{Context, bail};
use freehold::FileType;
use std::ffi::OsString;
use std::io::Write;

/// Write files of an image that is not mounted to standard output
#[derive(clap::Args)]
#[command(after_help = "Example:\n  freehold cat disk.img:/etc/motd")]
pub struct Args {
    /// Files
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    files: Vec<OsString>,
}

fn kind(kind: FileType) -> &'static str {
    match kind {
        FileType::Regular => "regular file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        _ => "device, FIFO or socket",
    }
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let mut buffer = vec![0; 1 << 20];
    for word in &args.files {
        let (image, path) = Place::parse_inside(word)?;
        let inside = Inside::open(&image, true, 0)?;
        match inside.look(&path, true)? {
            None => bail!("{} does not exist", inside.show(&path)),
            Some(n) if n.attr.kind == FileType::Regular => {}
            Some(n) => bail!("{} is not a regular file but a {}", inside.show(&path), kind(n.attr.kind)),
        }
        let mut file = inside.open(&path, true)?;
        let mut at = 0;
        loop {
            let n = file.read_at(&mut buffer, at)?;
            if n == 0 {
                break;
            }
            out.write_all(&buffer[..n]).context("writing")?;
            at += n as u64;
        }
        drop(file);
        inside.close()?;
    }
    out.flush().context("writing")
}

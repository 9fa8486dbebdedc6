//! `freehold dump`. Tested in `tests/fsck.rs`.

use super::{Exit, explain};
use anyhow::anyhow;
use block::dump::{What, run as dump};
use freehold::Error;
use std::path::PathBuf;

/// Show a structure of a volume that nobody serves
#[derive(clap::Args)]
#[command(after_help = "\
WHAT is one of
  superblock, checkpoints, table, log    the structures that there are once
  inode N, block N, segment N            one of many, by its number
  path /a/b, or just /a/b                the inode that a path leads to
Their fields are explained in docs/FORMAT.md. Nothing is written.

Examples:
  freehold dump disk.img superblock
  freehold dump disk.img /etc/fstab
  freehold dump --json disk.img inode 17")]
pub struct Args {
    /// Image file or block device
    #[arg(value_name = "IMAGE|DEVICE")]
    image: PathBuf,
    /// What to show
    #[arg(value_name = "WHAT", required = true)]
    what: Vec<String>,
    /// Tell it as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let words = args.what.join(" ");
    let what = What::parse(&words).map_err(|e| {
        let why = match e {
            Error::Invalid(why) => why.to_string(),
            e => e.to_string(),
        };
        Exit { code: 2, message: format!("cannot show '{words}': {why}. See freehold dump --help") }
    })?;
    let medium = explain::medium(&args.image, true)?;
    let name = args.image.display();
    dump(medium, &what, args.json, &mut std::io::stdout().lock()).map_err(|e| match e {
        Error::NotFound => anyhow!("{name}: there is no {words}"),
        Error::Invalid(why) => anyhow!("{name}: {words}: {why}"),
        e => explain::volume(e, &args.image),
    })
}

//! `freehold dump`.

use super::explain;
use block::dump::{What, run as dump};
use std::path::PathBuf;

/// Show a structure of a volume that nobody serves
#[derive(clap::Args)]
#[command(after_help = "\
WHAT is one of: superblock, checkpoints, table, log, `inode N`, `block N`, `segment N`, `path /a/b`.

Examples:
  freehold dump disk.img superblock
  freehold dump disk.img path /etc/fstab
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
    let what =
        What::parse(&args.what.join(" ")).map_err(|e| anyhow::anyhow!("{e}; see `freehold dump --help`"))?;
    let medium = freehold::medium(&args.image, true).map_err(|e| explain::volume(e, &args.image))?;
    dump(medium, &what, args.json, &mut std::io::stdout().lock()).map_err(|e| explain::volume(e, &args.image))
}

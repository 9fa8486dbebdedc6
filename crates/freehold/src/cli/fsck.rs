//! `freehold fsck`.

use super::explain;
use block::fsck::{FsckOptions, Progress, Report, Severity, check};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::path::PathBuf;

/// Check a volume that nobody serves, and repair it
#[derive(clap::Args)]
#[command(after_help = "\
Everything on the medium is checked, and what is derived from it compared; contents of files are not.
Exit status: 0 nothing is damaged, 1 damage was found (and is still there), 2 wrong usage.

Examples:
  freehold fsck disk.img              look, and write nothing
  freehold fsck --repair disk.img     put in order what can be, and tell what is lost")]
pub struct Args {
    /// Image file or block device
    #[arg(value_name = "IMAGE|DEVICE")]
    image: PathBuf,
    /// Repair what is damaged
    #[arg(long)]
    repair: bool,
    /// Tell everything as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let medium = freehold::medium(&args.image, !args.repair).map_err(|e| explain::volume(e, &args.image))?;
    let bar = ProgressBar::new(0);
    if !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    bar.set_style(ProgressStyle::with_template("{msg:24} {wide_bar} {pos}/{len}")?);
    let options = FsckOptions { repair: args.repair };
    let report = check(medium, &options, &mut |p: Progress| {
        bar.set_message(p.phase);
        bar.set_length(p.total);
        bar.set_position(p.done);
    })
    .map_err(|e| explain::volume(e, &args.image))?;
    bar.finish_and_clear();
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        tell(&args, &report);
    }
    anyhow::ensure!(report.is_clean(), "{}: {}", args.image.display(), advice(&args));
    Ok(())
}

fn advice(args: &Args) -> &'static str {
    match args.repair {
        true => "the volume is damaged beyond what can be repaired",
        false => "the volume is damaged; --repair puts in order what can be",
    }
}

fn tell(args: &Args, report: &Report) {
    for problem in &report.problems {
        let mark = match (problem.severity, problem.repaired) {
            (Severity::Note, _) => "note",
            (_, true) => "repaired",
            (Severity::Damage, false) => "damage",
            (Severity::Fatal, false) => "fatal",
        };
        println!("{mark}: {problem}");
    }
    let c = &report.counts;
    println!(
        "{}: {} files, {} directories, {} blocks in use, {} free{}",
        args.image.display(),
        c.files,
        c.directories,
        c.blocks_used,
        c.blocks - c.blocks_used,
        if report.is_clean() { ": clean" } else { "" },
    );
}

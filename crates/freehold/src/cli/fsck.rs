//! `freehold fsck`. Its exit codes are those of fsck(8), because fsck(8) calls it as `fsck.freehold`, see `cli::helper`.
//!
//! Tested in `tests/fsck.rs`.

use super::{Exit, explain};
use block::fsck::{FsckOptions, Progress, Report, Severity, check};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::path::PathBuf;

/// Damage was found, and is repaired.
const REPAIRED: u8 = 1;
/// Damage is left.
const DAMAGED: u8 = 4;
/// It could not be checked.
pub const FAILED: u8 = 8;
/// The command line is wrong.
pub const USAGE: u8 = 16;

/// Check a volume that nobody serves, and repair it
#[derive(clap::Args)]
#[command(after_help = "\
Everything on the medium is checked, and what is derived from it compared; contents of files are \
not. A volume whose server was killed needs no repair: the next mount takes its log over.

Exit codes, as of fsck(8):
  0   nothing is damaged
  1   damage was repaired
  4   damage is left
  8   it could not be checked: in use, no such file, no volume
  16  wrong usage

Examples:
  freehold fsck disk.img              look, and write nothing
  cp --sparse=always disk.img copy    before a repair
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

impl Args {
    /// What fsck(8) asks its helper for.
    pub fn from_helper(image: PathBuf, repair: bool) -> Args {
        Args { image, repair, json: false }
    }

    /// For tests of that.
    #[cfg(test)]
    pub fn repairs(&self) -> bool {
        self.repair
    }
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let report = look(&args).map_err(|e| Exit { code: FAILED, message: format!("{e:#}") })?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        tell(&args, &report);
    }
    match verdict(&args, &report) {
        (0, _) => Ok(()),
        (code, message) => Err(Exit { code, message }.into()),
    }
}

fn look(args: &Args) -> anyhow::Result<Report> {
    let medium = explain::medium(&args.image, !args.repair)?;
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
    });
    bar.finish_and_clear();
    report.map_err(|e| explain::volume(e, &args.image))
}

/// Whether there is a volume at all.
fn is_volume(report: &Report) -> bool {
    !report.damage().any(|p| p.severity == Severity::Fatal && p.structure == "superblock")
}

fn is_fatal(report: &Report) -> bool {
    report.damage().any(|p| p.severity == Severity::Fatal && !p.repaired)
}

/// Exit code, and what is to be done.
fn verdict(args: &Args, report: &Report) -> (u8, String) {
    let name = args.image.display();
    if report.damage().any(|p| p.structure == "superblock" && p.what.contains("shorter")) {
        let message = format!(
            "{name} is shorter than the volume in it: the image was cut off, or its copy is not complete. \
             Get the whole image, then check again"
        );
        return (FAILED, message);
    }
    if !is_volume(report) {
        let message = format!(
            "{name} holds no Freehold volume, or one whose superblock and its copy are both lost. That cannot be \
             repaired: look whether it is the right image, or take a backup"
        );
        return (FAILED, message);
    }
    if report.is_clean() {
        let code = if report.damage().next().is_some() { REPAIRED } else { 0 };
        return (code, String::new());
    }
    let message = match (is_fatal(report), args.repair) {
        (true, _) => format!("{name} is damaged beyond what can be repaired. Take a backup"),
        (false, true) => format!(
            "{name} is still damaged. Run it again; if that changes nothing, save what can be read (freehold \
             mount -o ro, or freehold cp) and take a backup for the rest"
        ),
        (false, false) => format!(
            "{name} is damaged. Make a copy, then put in order what can be with: freehold fsck --repair {name}"
        ),
    };
    (DAMAGED, message)
}

fn tell(args: &Args, report: &Report) {
    for problem in &report.problems {
        let mark = match (problem.severity, problem.repaired) {
            (Severity::Note, _) => "note",
            (_, true) => "repaired",
            (Severity::Damage, false) => "damage",
            (Severity::Fatal, false) => "fatal",
        };
        // The mark says already what is repaired.
        let mut problem = problem.clone();
        problem.repaired = false;
        println!("{mark}: {problem}");
    }
    if report.omitted > 0 {
        println!("and {} more", report.omitted);
    }
    if is_fatal(report) {
        return;
    }
    let c = &report.counts;
    let end = match (report.is_clean(), report.damage().next().is_some(), report.stopped_cleanly) {
        (false, ..) => "",
        (true, true, _) if report.problems.iter().any(|p| p.structure == "name" && p.repaired) => {
            ": repaired (what lost its directory is in /lost+found)"
        }
        (true, true, _) => ": repaired",
        (true, false, true) => ": clean",
        (true, false, false) => ": clean (it was not closed; the next mount takes over its log)",
    };
    println!(
        "{}: {} files, {} directories, {} blocks in use, {} free{end}",
        args.image.display(),
        c.files,
        c.directories,
        c.blocks_used,
        c.blocks - c.blocks_used,
    );
}

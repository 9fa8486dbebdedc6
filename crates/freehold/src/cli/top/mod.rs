//! `freehold top`: a served volume, live.

mod screen;
mod terminal;
mod view;

use super::ask;
use anyhow::{anyhow, bail};
use freehold::observe::Snapshot;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use terminal::{Event, Terminal};
use view::View;

/// Watch what a served volume does, live
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  freehold top                      the only mounted volume, until q or ctrl-C
  freehold top /mnt --interval 5
  freehold top /mnt --once          one look of a second, for scripts and mails
  freehold top /mnt --json          a line of JSON each second; with --once one line

Calls are shown by the door they came through: fuse is the kernel's mount, share the sessions over \
shared memory. p50 and p99: that part of the calls took no longer (up to 25% too much). Errors \
of share include names that were not found. Only the user who serves a volume, and root, may ask.")]
pub struct Args {
    /// Directory in a mounted volume, image file or block device
    #[arg(value_name = "DIR|IMAGE")]
    target: Option<PathBuf>,
    /// Seconds between two looks
    #[arg(long, short, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// Show one interval and end
    #[arg(long, short = '1')]
    once: bool,
    /// Tell it as JSON, one line for each interval
    #[arg(long)]
    json: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|s| (0.05..=3600.0).contains(s));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "expected seconds from 0.05 to 3600".to_string())
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let mut images = ask::images(args.target.as_deref())?;
    let image = match images.len() {
        0 => bail!("no volume is mounted"),
        1 => images.remove(0),
        _ => {
            let all: Vec<String> = images.iter().map(|i| format!("\n  {}", i.display())).collect();
            bail!("several volumes are mounted; say which one:{}", all.concat());
        }
    };
    let first = look(&image)?;
    if args.json || args.once {
        return lines(&args, &image, first);
    }
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        bail!("this is not a terminal; use --once or --json");
    }
    live(&args, &image, first)
}

/// A snapshot, and when it was taken.
type Look = (Snapshot, Instant);

fn look(image: &Path) -> anyhow::Result<Look> {
    Ok((ask::ask(image)?, Instant::now()))
}

fn view(before: &Look, now: &Look) -> View {
    View::new(&before.0, &now.0, now.1.duration_since(before.1))
}

fn lines(args: &Args, image: &Path, mut before: Look) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    loop {
        std::thread::sleep(args.interval);
        let now = look(image)?;
        let view = view(&before, &now);
        match args.json {
            true => writeln!(out, "{}", view.json())?,
            // For a reader of text every row counts, and long lines do no harm.
            false => out.write_all(screen::draw(&view, (160, usize::MAX)).join("\n").as_bytes())?,
        }
        out.flush()?;
        if args.once {
            if !args.json {
                writeln!(out)?;
            }
            return Ok(());
        }
        before = now;
    }
}

fn live(args: &Args, image: &Path, first: Look) -> anyhow::Result<()> {
    let mut terminal = Terminal::open().map_err(|e| anyhow!("cannot use the terminal: {e}"))?;
    let (mut before, mut now) = (first.clone(), first);
    let mut next = Instant::now() + args.interval.min(Duration::from_millis(300));
    loop {
        terminal.show(&screen::draw(&view(&before, &now), terminal.size()))?;
        match terminal.wait(next.saturating_duration_since(Instant::now()))? {
            Event::Quit => return Ok(()),
            Event::Redraw => {}
            Event::Timeout => {
                // The terminal is put back before the error is said, because it is dropped first.
                before = std::mem::replace(&mut now, look(image)?);
                next = Instant::now() + args.interval;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals() {
        assert_eq!(interval("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["0", "-1", "nan", "1e9", "x", ""] {
            assert!(interval(bad).is_err(), "{bad}");
        }
    }
}

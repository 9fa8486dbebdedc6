//! `freehold object`: what stands in a bucket that a mount does not show.

use super::show;
use anyhow::{Context, anyhow, bail};
use freehold::bucket::BucketOptions;
use freehold::options::format_size;
use object::store::{Store, StoreError, Upload};
use object::{ObjectFs, s3::S3};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Look at a bucket of an object store, and clean up unfinished uploads
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  freehold object ls s3://backups/2026            unfinished uploads below a prefix
  freehold object parts s3://backups -o endpoint=http://127.0.0.1:9000
  freehold object gc s3://backups --older 7       give up those that were begun more than 7 days ago

An upload is unfinished while a program writes a large file, and stays so when the machine that sent it dies. Its parts are \
not seen, but cost space. gc leaves those alone of which a part came lately, and names those of which the store tells no \
time. Options (-o) are those of freehold mount s3://...")]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// The unfinished uploads: how old they are, and for which keys
    Ls(Of),
    /// The unfinished uploads with the parts that they have
    Parts(Of),
    /// Give up unfinished uploads that are old
    Gc {
        #[command(flatten)]
        of: Of,
        /// Begun more than so many days ago, with no part that came since
        #[arg(long, value_name = "DAYS", default_value_t = 7.0)]
        older: f64,
        /// Only say what would be given up
        #[arg(long, short = 'n')]
        dry_run: bool,
    },
}

#[derive(clap::Args)]
struct Of {
    /// The bucket, and a prefix of keys
    #[arg(value_name = "s3://BUCKET[/PREFIX]")]
    url: String,
    /// Options, as for freehold mount
    #[arg(short, long = "options", value_name = "OPTIONS")]
    options: Vec<String>,
}

impl Of {
    fn open(&self) -> anyhow::Result<ObjectFs<S3>> {
        // Looking needs no probing of what the store can write.
        let words = self.options.iter().map(String::as_str).chain(["ro"]);
        let options = BucketOptions::parse(&self.url, words, false).map_err(|e| anyhow!("{e}"))?;
        options.bucket.open().map_err(|e| anyhow!("{}: {e}", self.url))
    }
}

/// How long ago that was; not at all where the store's clock is ahead.
fn age(time: SystemTime) -> Duration {
    time.elapsed().unwrap_or_default()
}

/// What becomes of an upload.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    /// It is given up.
    Old,
    /// It is young, or somebody writes it still.
    Alive,
    /// Nobody knows how old it is.
    Unknown,
}

/// Decides by when an upload was begun, and when its newest part came; `None`: that is not told, or there is none.
fn fate(begun: Option<SystemTime>, newest: Option<SystemTime>, oldest: Duration) -> Fate {
    match newest.max(begun) {
        None => Fate::Unknown,
        Some(time) if age(time) >= oldest => Fate::Old,
        Some(_) => Fate::Alive,
    }
}

pub fn run(args: Args) -> anyhow::Result<()> {
    match args.what {
        What::Ls(of) => list(&of, false),
        What::Parts(of) => list(&of, true),
        What::Gc { of, older, dry_run } => gc(&of, older, dry_run),
    }
}

fn list(of: &Of, with_parts: bool) -> anyhow::Result<()> {
    let fs = Arc::new(of.open()?);
    let uploads = fs.ask(|store| async move { store.uploads("").await }).context("listing uploads")?;
    let bar = show::progress_of(uploads.len() as u64);
    for upload in &uploads {
        bar.inc(1);
        let hours = upload.begun.map(|begun| age(begun).as_secs() / 3600);
        let age = hours.map_or_else(|| "unknown".into(), |h| format!("{:>4} d {:>2} h", h / 24, h % 24));
        let key = show::name(upload.key.as_bytes());
        bar.suspend(|| println!("{age:>11}  {key}  {}", upload.id.0));
        if with_parts {
            let (key, id) = (upload.key.clone(), upload.id.clone());
            let parts = fs.ask(|store| async move { store.parts(&key, &id).await })?;
            let total: u64 = parts.iter().map(|part| part.size).sum();
            bar.suspend(|| {
                for part in &parts {
                    println!("    part {:>5}  {}", part.number, format_size(part.size));
                }
                println!("    {} parts, {}", parts.len(), format_size(total));
            });
        }
    }
    if uploads.is_empty() {
        println!("no unfinished uploads");
    }
    Ok(())
}

fn gc(of: &Of, days: f64, dry_run: bool) -> anyhow::Result<()> {
    if !(0.0..=36500.0).contains(&days) {
        bail!("--older {days}: expected a number of days");
    }
    let fs = of.open()?;
    let uploads = fs.ask(|store| async move { store.uploads("").await }).context("listing uploads")?;
    let oldest = Duration::from_secs_f64(days * 86400.0);
    // Those that are young need no question.
    let may = |upload: &Upload| fate(upload.begun, None, oldest) != Fate::Alive;
    let uploads: Vec<_> = uploads.into_iter().filter(may).collect();
    let bar = show::progress_of(uploads.len() as u64);
    let (mut old, mut unknown) = (0, 0);
    for upload in &uploads {
        bar.inc(1);
        let name = show::name(upload.key.as_bytes());
        let (key, id) = (upload.key.clone(), upload.id.clone());
        let parts = match fs.ask(|store| async move { store.parts(&key, &id).await }) {
            Ok(parts) => parts,
            // Completed or given up meanwhile.
            Err(StoreError::NotFound) => continue,
            Err(e) => {
                return Err(e).with_context(|| format!("listing the parts of an upload of {}", upload.key));
            }
        };
        let newest = parts.iter().filter_map(|part| part.arrived).max();
        match fate(upload.begun, newest, oldest) {
            Fate::Alive => continue,
            Fate::Unknown => {
                unknown += 1;
                bar.suspend(|| {
                    println!("left alone {name}  {}  (the store does not tell its age)", upload.id.0)
                });
                continue;
            }
            Fate::Old => old += 1,
        }
        if !dry_run {
            let (key, id) = (upload.key.clone(), upload.id.clone());
            fs.ask(|store| async move { store.abort(&key, &id).await })
                .with_context(|| format!("giving up an upload of {}", upload.key))?;
        }
        let done = if dry_run { "would give up" } else { "given up" };
        bar.suspend(|| println!("{done} {name}  {}", upload.id.0));
    }
    bar.finish_and_clear();
    println!("{old} of more than {days} days");
    if unknown > 0 {
        println!("{unknown} of unknown age");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upload_is_as_old_as_its_newest_part() {
        const DAY: Duration = Duration::from_secs(86400);
        let ago = |days: u32| Some(SystemTime::now() - DAY * days);
        let fate = |begun, newest| fate(begun, newest, DAY * 7);
        assert_eq!(fate(ago(8), None), Fate::Old);
        assert_eq!(fate(ago(8), ago(8)), Fate::Old);
        assert_eq!(fate(ago(6), None), Fate::Alive);
        assert_eq!(fate(ago(30), ago(1)), Fate::Alive, "somebody writes it still");
        assert_eq!(fate(None, ago(8)), Fate::Old, "it was begun before");
        assert_eq!(fate(None, ago(1)), Fate::Alive);
        assert_eq!(fate(None, None), Fate::Unknown);
        // The store's clock is ahead.
        assert_eq!(fate(Some(SystemTime::now() + DAY), None), Fate::Alive);
    }
}

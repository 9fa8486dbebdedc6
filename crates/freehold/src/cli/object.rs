//! `freehold object`: what stands in a bucket that a mount does not show.

use super::show;
use anyhow::{Context, anyhow, bail};
use freehold::bucket::BucketOptions;
use freehold::options::format_size;
use object::store::Store;
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
not seen, but cost space. Options (-o) are those of freehold mount s3://...")]
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
        /// Begun more than so many days ago
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

fn age(begun: SystemTime) -> Duration {
    begun.elapsed().unwrap_or_default()
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
        let hours = age(upload.begun).as_secs() / 3600;
        let key = show::name(upload.key.as_bytes());
        bar.suspend(|| println!("{:>4} d {:>2} h  {key}  {}", hours / 24, hours % 24, upload.id.0));
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
    let old: Vec<_> = uploads.into_iter().filter(|upload| age(upload.begun) >= oldest).collect();
    let bar = show::progress_of(old.len() as u64);
    for upload in &old {
        let key = show::name(upload.key.as_bytes());
        if !dry_run {
            let (key, id) = (upload.key.clone(), upload.id.clone());
            fs.ask(|store| async move { store.abort(&key, &id).await })
                .with_context(|| format!("giving up an upload of {}", upload.key))?;
        }
        bar.inc(1);
        let done = if dry_run { "would give up" } else { "given up" };
        bar.suspend(|| println!("{done} {key}  {}", upload.id.0));
    }
    bar.finish_and_clear();
    println!("{} of more than {days} days", old.len());
    Ok(())
}

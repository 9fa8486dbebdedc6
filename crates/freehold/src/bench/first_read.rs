//! Rows of a program that reads a file which nobody has read since the volume was mounted: `dd`, from one end to the other.

use super::driver::Bench;
use super::exchange;
use super::programs::{Place, Served, is_full, sample};
use super::sample::{Goal, Kind};
use super::{ours, stop};
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::{Command, Stdio};

/// Row, and bytes of each read as `dd` has them.
const READS: &[(&str, &str)] = &[("first-read-16k", "16k"), ("first-read-128k", "128k")];

pub fn describe(bench: &mut Bench) {
    for (name, _) in READS {
        let note = "dd reads a file of 512 MiB that nobody has read since the volume was mounted";
        let goal = Some(Goal::AtLeast(Kind::Ext4, 1.0));
        bench.describe(name, "MB/s", goal, note).subject = Kind::Run;
    }
}

/// On a volume of its own in the image, which is mounted anew before each read.
pub fn ours(bench: &mut Bench, freehold: &Path, image: &Path, dir: &Path) -> Result<()> {
    ours::mkfs(image)?;
    let start = || Served::start(freehold, image, dir.to_path_buf(), "allow_other");
    let place = Place { kind: Kind::Run, dir, under: Some(freehold) };
    let served = start()?;
    write(bench, &place)?;
    drop(served);
    for read in READS {
        let served = start()?;
        self::read(bench, &place, read)?;
        drop(served);
    }
    Ok(())
}

/// On a mounted file system of the kernel, which forgets what it has read before each read.
pub fn peer(bench: &mut Bench, place: &Place<'_>) -> Result<()> {
    write(bench, place)?;
    for read in READS {
        rustix::fs::sync();
        std::fs::write("/proc/sys/vm/drop_caches", "3").context("dropping the kernel's caches")?;
        self::read(bench, place, read)?;
    }
    Ok(())
}

fn write(bench: &Bench, place: &Place<'_>) -> Result<()> {
    let count = if is_full(bench) { "count=512" } else { "count=4" };
    let mut to = std::ffi::OsString::from("of=");
    to.push(place.dir.join("first"));
    let mut dd = place.command(Path::new("dd"));
    dd.arg("if=/dev/zero").arg(to).args(["bs=1M", count, "conv=fsync"]);
    copied(dd).map(drop)
}

fn read(bench: &mut Bench, place: &Place<'_>, (row, size): &(&str, &str)) -> Result<()> {
    let mut from = std::ffi::OsString::from("if=");
    from.push(place.dir.join("first"));
    let mut dd = place.command(Path::new("dd"));
    dd.arg(from).arg("of=/dev/null").arg(format!("bs={size}"));
    let apart = exchange::round_trip();
    let (bytes, seconds) = copied(dd)?;
    let found = sample(bytes / 1e6 / seconds, seconds, 0, apart);
    bench.results.add(row, "MB/s", place.kind, found);
    Ok(())
}

/// Runs `dd` and returns how many bytes it has copied, and in how many seconds by its own clock.
fn copied(mut dd: Command) -> Result<(f64, f64)> {
    let out = dd.env("LC_ALL", "C").stdin(Stdio::null()).output().context("starting dd")?;
    stop::check()?;
    let said = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "dd: {} ({})", said.trim(), out.status);
    parse(&said).with_context(|| format!("dd said {said:?}"))
}

fn parse(said: &str) -> Option<(f64, f64)> {
    let line = said.lines().last()?;
    let bytes = line.split(' ').next()?.parse().ok()?;
    let seconds = line.split(" copied, ").nth(1)?.split(' ').next()?.parse().ok()?;
    Some((bytes, seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_dd_says() {
        let said = "32768+0 records in\n32768+0 records out\n536870912 bytes (537 MB, 512 MiB) copied, 0.262343 s, 2.0 GB/s\n";
        assert_eq!(parse(said), Some((536870912.0, 0.262343)));
        assert_eq!(parse("5 bytes copied, 4.2e-05 s, 119 kB/s"), Some((5.0, 4.2e-5)));
        assert_eq!(parse("dd: failed"), None);
        assert_eq!(parse(""), None);
    }
}

//! What `clients` and `top` share: which volumes are meant, and asking those who serve them.

use super::explain;
use anyhow::{anyhow, bail};
use freehold::bucket::is_url;
use freehold::control;
use freehold::mounts::{self, MountInfo};
use freehold::observe::Snapshot;
use std::io;
use std::path::{Path, PathBuf};

/// The images behind a mount point, a directory in a mount, an image or a device; without any, those of all mounts.
pub fn images(target: Option<&Path>) -> anyhow::Result<Vec<PathBuf>> {
    let Some(target) = target else {
        let all = mounts::list().map_err(|e| anyhow!("cannot read the table of mounts: {e}"))?;
        let mut images: Vec<PathBuf> =
            all.into_iter().filter(MountInfo::is_freehold).map(|m| m.source.into()).collect();
        images.retain(|image| !is_url(image));
        images.sort();
        images.dedup();
        return Ok(images);
    };
    explain::not_bucket(target)?;
    let exact = mounts::at(target).map_err(|e| explain::host(e, "looking for", target))?;
    if let Some(m) = exact.filter(MountInfo::is_freehold) {
        return image_of(m);
    }
    let meta = std::fs::metadata(target).map_err(|e| explain::host(e, "looking at", target))?;
    if !meta.is_dir() {
        return Ok(vec![target.into()]);
    }
    let whole = std::fs::canonicalize(target).map_err(|e| explain::host(e, "looking at", target))?;
    let all = mounts::list().map_err(|e| anyhow!("cannot read the table of mounts: {e}"))?;
    let mount = whole.ancestors().find_map(|a| all.iter().rev().find(|m| m.point == a));
    match mount {
        Some(m) if m.is_freehold() => image_of(m.clone()),
        _ => bail!("{} is not in a mounted volume", target.display()),
    }
}

fn image_of(mount: MountInfo) -> anyhow::Result<Vec<PathBuf>> {
    let image = PathBuf::from(mount.source);
    explain::not_bucket(&image)?;
    Ok(vec![image])
}

/// Asks whoever serves the volume in `image`.
pub fn ask(image: &Path) -> anyhow::Result<Snapshot> {
    control::ask(image).map_err(|e| failed(image, e))
}

/// Ends a session of the volume in `image`. False when there is none of this number.
pub fn evict(image: &Path, session: u64) -> anyhow::Result<bool> {
    control::evict(image, session).map_err(|e| failed(image, e))
}

fn failed(image: &Path, e: io::Error) -> anyhow::Error {
    let name = image.display();
    match e.kind() {
        io::ErrorKind::NotFound => anyhow!("{name} does not exist (or is not to be seen from here)"),
        io::ErrorKind::ConnectionRefused => {
            anyhow!("nobody serves {name}, or by a version of Freehold that cannot be asked")
        }
        io::ErrorKind::PermissionDenied => {
            anyhow!("{name} is served by another user: only that user and root may ask")
        }
        io::ErrorKind::InvalidData => anyhow!("{name} is served by another version of Freehold ({e})"),
        _ => anyhow!("asking whoever serves {name}: {e}"),
    }
}

/// The state of a process, a letter as in ps(1).
pub fn state(pid: i32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
    state.unwrap_or("-").into()
}

/// The name of a process, for people.
pub fn program(pid: i32) -> String {
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    match super::show::name(name.trim_ascii_end()) {
        name if name.is_empty() => "-".into(),
        name => name,
    }
}

/// A time in few characters: `250ns`, `1.5us`, `20ms`, `3.0s`, `5m`, `7h`, `9d`.
pub fn short_time(seconds: f64) -> String {
    let with = |n: f64, unit: &str| if n < 9.95 { format!("{n:.1}{unit}") } else { format!("{n:.0}{unit}") };
    match seconds {
        s if s <= 0.0 => "0".into(),
        s if s < 999.5e-9 => format!("{:.0}ns", s * 1e9),
        s if s < 999.5e-6 => with(s * 1e6, "us"),
        s if s < 999.5e-3 => with(s * 1e3, "ms"),
        s if s < 120.0 => with(s, "s"),
        s if s < 7200.0 => format!("{:.0}m", s / 60.0),
        s if s < 172_800.0 => format!("{:.0}h", s / 3600.0),
        s => format!("{:.0}d", s / 86400.0),
    }
}

/// A number in few characters: `999`, `12.3k`, `4.5M`.
pub fn short_number(n: f64) -> String {
    match n {
        n if n > 0.0 && n < 9.95 && n.fract() > 0.001 => format!("{n:.1}"),
        n if n < 9999.5 => format!("{n:.0}"),
        n if n < 999_950.0 => format!("{:.1}k", n / 1e3),
        n if n < 999.95e6 => format!("{:.1}M", n / 1e6),
        n => format!("{:.1}G", n / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_forms() {
        for (seconds, text) in [
            (0.0, "0"),
            (250e-9, "250ns"),
            (1.5e-6, "1.5us"),
            (20.4e-3, "20ms"),
            (0.9999, "1.0s"),
            (119.0, "119s"),
            (3600.0, "60m"),
            (86400.0, "24h"),
            (1e6, "12d"),
        ] {
            assert_eq!(short_time(seconds), text);
        }
        for (n, text) in [(0.0, "0"), (1.25, "1.2"), (999.0, "999"), (12_345.0, "12.3k"), (4.5e6, "4.5M")] {
            assert_eq!(short_number(n), text);
        }
    }

    #[test]
    fn nobody_serves_a_plain_file() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        std::fs::write(&image, "x").unwrap();
        assert_eq!(images(Some(&image)).unwrap(), std::slice::from_ref(&image));
        assert!(ask(&image).unwrap_err().to_string().contains("nobody serves"));
        assert!(images(Some(dir.path())).unwrap_err().to_string().contains("not in a mounted volume"));
        assert!(images(Some(&dir.path().join("none"))).is_err());
        assert!(images(Some(Path::new("s3://logs"))).unwrap_err().to_string().contains("is a bucket"));
        assert!(program(std::process::id() as i32).len() > 1 && program(0) == "-");
    }
}

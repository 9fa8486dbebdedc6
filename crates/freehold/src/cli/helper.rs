//! The other names of this program: helpers of mount(8), umount(8), mkfs(8) and fsck(8). Their command lines are given by those.
//!
//! - `mount.freehold`, `mount.fuse.freehold`: `SPEC DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`
//! - `umount.freehold`, `umount.fuse.freehold`: `DIR [-nlfvr] [-N NAMESPACE] [-t TYPE]`. With -l it returns at once, and ends nothing
//! - `mkfs.freehold`: as `freehold mkfs`
//! - `fsck.freehold`: `[-apynfvVrl] [-C[FD]] [-t TYPE] DEVICE`. With -a, -p or -y it repairs, with -n or nothing it only looks

use super::{Exit, fsck, mount, umount};
use anyhow::bail;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Exit codes of mount(8).
const USAGE: u8 = 1;
const FAILURE: u8 = 32;

/// Does what a helper is called for. For `mkfs.freehold` the words become those of `freehold mkfs`.
pub fn called_by_other_name(words: &mut Vec<OsString>) -> Option<ExitCode> {
    let name = Path::new(words.first()?).file_name()?.to_str()?.to_string();
    let done = match name.as_str() {
        "mount.freehold" | "mount.fuse.freehold" => mount_args(&words[1..]).map(|args| args.map(mount::run)),
        "umount.freehold" | "umount.fuse.freehold" => {
            umount_args(&words[1..]).map(|args| Some(umount::run(args)))
        }
        "fsck.freehold" => return Some(fsck_run(&words[1..])),
        "mkfs.freehold" => {
            words.splice(..1, ["freehold", "mkfs"].map(OsString::from));
            return None;
        }
        _ => return None,
    };
    Some(match done {
        Ok(None | Some(Ok(()))) => ExitCode::SUCCESS,
        Ok(Some(Err(e))) => {
            eprintln!("{name}: {e:#}");
            FAILURE.into()
        }
        Err(e) => {
            eprintln!("{name}: {e:#}");
            USAGE.into()
        }
    })
}

/// Words of a helper's command line, flags that were given, and values of `-o`.
struct Line {
    words: Vec<PathBuf>,
    flags: String,
    options: Vec<String>,
}

fn parse(given: &[OsString], known: &str) -> anyhow::Result<Line> {
    let mut line = Line { words: Vec::new(), flags: String::new(), options: Vec::new() };
    let mut rest = given.iter();
    while let Some(word) = rest.next() {
        let Some(flags) = word.as_bytes().strip_prefix(b"-").filter(|f| !f.is_empty()) else {
            line.words.push(word.into());
            continue;
        };
        for (i, &flag) in flags.iter().enumerate() {
            if matches!(flag, b'o' | b't' | b'N') {
                // The value is the rest of the word, or the next word.
                let value = match &flags[i + 1..] {
                    [] => rest.next().map(OsString::as_os_str),
                    value => Some(OsStr::from_bytes(value)),
                };
                let Some(value) = value else { bail!("-{} needs a value", flag as char) };
                if flag == b'o' {
                    line.options.push(value.to_string_lossy().into_owned());
                }
                break;
            }
            if !known.as_bytes().contains(&flag) {
                bail!("unknown flag -{}", (flag as char).escape_default());
            }
            line.flags.push(flag as char);
        }
    }
    Ok(line)
}

/// `None`: only checked (-f).
fn mount_args(given: &[OsString]) -> anyhow::Result<Option<mount::Args>> {
    let line = parse(given, "sfnvrw")?;
    let [image, dir] = line.words.as_slice() else {
        bail!("usage: mount.freehold IMAGE|DEVICE DIR [-sfnv] [-o OPTIONS]")
    };
    let mut options = line.options;
    if line.flags.contains('r') {
        options.push("ro".into());
    }
    let args = mount::Args::from_helper(image.clone(), dir.clone(), options, line.flags.contains('s'));
    Ok((!line.flags.contains('f')).then_some(args))
}

fn umount_args(given: &[OsString]) -> anyhow::Result<umount::Args> {
    let line = parse(given, "nlfvrc")?;
    let [target] = line.words.as_slice() else { bail!("usage: umount.freehold DIR [-nlfvr]") };
    let (force, lazy) = (line.flags.contains('f'), line.flags.contains('l'));
    Ok(umount::Args::from_helper(target.clone(), force, lazy))
}

fn fsck_run(given: &[OsString]) -> ExitCode {
    let name = "fsck.freehold";
    match fsck_args(given) {
        Ok(None) => {
            println!("{name} {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        Ok(Some(args)) => match fsck::run(args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => {
                Exit::tell(name, &e);
                Exit::code_of(&e).into()
            }
        },
        Err(e) => {
            eprintln!("{name}: {e:#}");
            fsck::USAGE.into()
        }
    }
}

/// `None`: the version is asked for (-V without a device).
fn fsck_args(given: &[OsString]) -> anyhow::Result<Option<fsck::Args>> {
    // -C, where to tell the progress, has its number in the same word or none.
    let is_progress = |word: &&OsString| word.as_bytes().starts_with(b"-C");
    let given: Vec<OsString> = given.iter().filter(|w| !is_progress(w)).cloned().collect();
    let line = parse(&given, "apynfvVrl")?;
    match line.words.as_slice() {
        [] if line.flags.contains('V') => Ok(None),
        [device] => {
            let repair = line.flags.contains(['a', 'p', 'y']) && !line.flags.contains('n');
            Ok(Some(fsck::Args::from_helper(device.clone(), repair)))
        }
        _ => bail!("usage: fsck.freehold [-apynfv] [-C[FD]] IMAGE|DEVICE"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_of_mount() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let line = parse(&words("/dev/x /mnt -sv -o rw,noatime -oro -t fuse.freehold"), "sfnv").unwrap();
        assert_eq!((line.words.len(), line.flags.as_str()), (2, "sv"));
        assert_eq!(line.options, ["rw,noatime", "ro"]);
        assert!(parse(&words("a b -q"), "sfnv").is_err() && parse(&words("a -o"), "s").is_err());
        assert!(mount_args(&words("a b -f")).unwrap().is_none() && mount_args(&words("a")).is_err());
    }

    #[test]
    fn command_lines_of_fsck() {
        let args = |text: &str| {
            let words: Vec<OsString> = text.split_whitespace().map(OsString::from).collect();
            fsck_args(&words).map(|args| args.map(|args| args.repairs()))
        };
        for repairs in ["-a x", "-p x", "x -y", "-fy -C0 x", "-a -C x", "-V -a x"] {
            assert_eq!(args(repairs).unwrap(), Some(true), "{repairs}");
        }
        for looks in ["x", "-n x", "-f -v x", "-an x"] {
            assert_eq!(args(looks).unwrap(), Some(false), "{looks}");
        }
        assert_eq!(args("-V").unwrap(), None);
        assert!(args("").is_err() && args("-a x y").is_err() && args("-q x").is_err());
    }
}

//! A program that writes files and is told, close by close, what is done.

use crate::common::Random;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::IntoRawFd;
use std::path::Path;

/// For each name what may be there; with more than one state, whoever wrote was not told which. `None`: nothing.
pub type May = BTreeMap<String, Vec<Option<Vec<u8>>>>;

/// Closes, and tells what close(2) says.
pub fn close(file: File) -> io::Result<()> {
    // SAFETY: the descriptor is this function's own.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn write(file: io::Result<File>, bytes: &[u8]) -> io::Result<()> {
    let mut file = file?;
    let done = bytes.chunks(100_000).try_for_each(|part| file.write_all(part));
    let closed = close(file);
    done.and(closed)
}

/// Works in a directory until a call fails. Names in `may` are those of the directory.
pub fn work(dir: &Path, random: &mut Random, may: &mut May, done: &mut u64) {
    loop {
        let name = random.below(6).to_string();
        let path = dir.join(&name);
        let states = may.entry(name.clone()).or_insert_with(|| vec![None]);
        let known = (states.len() == 1).then(|| states[0].clone()).flatten();
        let size = [500, 70_000, 1 << 20, 3 << 20][random.below(4) as usize];
        let bytes = content(random, size);
        let failed = match (random.below(8), known) {
            (0..=3, _) => {
                states.push(Some(bytes.clone()));
                let ended = write(File::create(&path), &bytes);
                settle(may, &name, ended, Some(bytes))
            }
            (4 | 5, Some(mut all)) => {
                all.extend(&bytes);
                states.push(Some(all.clone()));
                let ended = write(File::options().append(true).open(&path), &bytes);
                settle(may, &name, ended, Some(all))
            }
            (6, Some(_)) => {
                states.push(None);
                let ended = std::fs::remove_file(&path);
                settle(may, &name, ended, None)
            }
            (7, Some(all)) => {
                let to = format!("{name}-moved");
                may.entry(name.clone()).or_default().push(None);
                may.entry(to.clone()).or_insert_with(|| vec![None]).push(Some(all.clone()));
                let ended = std::fs::rename(&path, dir.join(&to));
                let failed = ended.is_err();
                if !failed {
                    may.insert(name, vec![None]);
                    may.insert(to, vec![Some(all)]);
                }
                failed
            }
            _ => false,
        };
        if failed {
            return;
        }
        *done += 1;
    }
}

/// Random bytes up to so many.
fn content(random: &mut Random, most: u64) -> Vec<u8> {
    let len = 1 + random.below(most) as usize;
    (0..len.div_ceil(8)).flat_map(|_| random.below(u64::MAX).to_le_bytes()).take(len).collect()
}

/// What was acknowledged is so. Whether the call failed.
fn settle(may: &mut May, name: &str, ended: io::Result<()>, state: Option<Vec<u8>>) -> bool {
    if ended.is_ok() {
        may.insert(name.into(), vec![state]);
    }
    ended.is_err()
}

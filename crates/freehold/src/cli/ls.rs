//! `freehold ls`.

use super::inside::Inside;
use super::show;
use super::tree::{Place, Tree};
use anyhow::bail;
use freehold::{Attr, FileType};
use serde_json::json;
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// List files of an image that is not mounted
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  freehold ls disk.img
  freehold ls -lR disk.img:/etc
  freehold ls --json -R disk.img | jq '.[].path'")]
pub struct Args {
    /// Images, or files and directories in them
    #[arg(required = true, value_name = "IMAGE[:/PATH]")]
    places: Vec<OsString>,
    /// Show type, permissions, owner, size, time of change
    #[arg(short)]
    long: bool,
    /// Go into directories
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Show the directory itself instead of what is in it
    #[arg(short)]
    directory: bool,
    /// Tell it as JSON: path, type, mode, owner, size, times, target
    #[arg(long)]
    json: bool,
}

struct Item {
    name: Vec<u8>,
    path: PathBuf,
    attr: Attr,
    target: Option<PathBuf>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut all = Vec::new();
    let several = args.places.len() > 1;
    for word in &args.places {
        let (image, path) = Place::parse_inside(word)?;
        let inside = Inside::open(&image, true, 0)?;
        let Some(node) = inside.look(&path, false)? else { bail!("{} does not exist", inside.show(&path)) };
        if node.attr.kind != FileType::Directory || args.directory {
            let item = item(&inside, path.as_os_str().as_bytes().to_vec(), path.clone(), node.attr)?;
            if args.json { all.push(json(&item)) } else { print(&mut out, &[item], args.long)? }
        } else {
            let mut todo = vec![path];
            while let Some(dir) = todo.pop() {
                let items = list(&inside, &dir)?;
                if args.recursive {
                    let is_dir = |i: &&Item| i.attr.kind == FileType::Directory;
                    todo.extend(items.iter().rev().filter(is_dir).map(|i| i.path.clone()));
                }
                if args.json {
                    all.extend(items.iter().map(json));
                    continue;
                }
                if args.recursive || several {
                    let title = if several { inside.show(&dir) } else { dir.display().to_string() };
                    writeln!(out, "{}:", show::name(title.as_bytes()))?;
                }
                print(&mut out, &items, args.long)?;
                if args.recursive || several {
                    writeln!(out)?;
                }
            }
        }
        inside.close()?;
    }
    if args.json {
        writeln!(out, "{:#}", serde_json::Value::Array(all))?;
    }
    out.flush()?;
    Ok(())
}

fn list(inside: &Inside, dir: &Path) -> anyhow::Result<Vec<Item>> {
    let mut items = Vec::new();
    for entry in inside.files.read_dir(dir).map_err(|e| inside.error(e, dir))? {
        let entry = entry.map_err(|e| inside.error(e, dir))?;
        let path = dir.join(&entry.name);
        items.push(item(inside, entry.name.into_vec(), path, entry.attr)?);
    }
    items.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(items)
}

fn item(inside: &Inside, name: Vec<u8>, path: PathBuf, attr: Attr) -> anyhow::Result<Item> {
    let target = if attr.kind == FileType::Symlink { Some(inside.read_link(&path)?) } else { None };
    Ok(Item { name, path, attr, target })
}

/// Names go out as they are, and escaped on a terminal, which they could command.
fn visible(bytes: &[u8]) -> Vec<u8> {
    if std::io::stdout().is_terminal() { show::name(bytes).into_bytes() } else { bytes.to_vec() }
}

fn print(out: &mut impl Write, items: &[Item], long: bool) -> anyhow::Result<()> {
    let row = |i: &Item| {
        let a = &i.attr;
        let size = match a.kind {
            FileType::CharDevice | FileType::BlockDevice => {
                format!("{},{}", libc::major(a.rdev), libc::minor(a.rdev))
            }
            _ => a.size.to_string(),
        };
        vec![
            show::mode(a.mode()),
            a.nlink.to_string(),
            a.uid.to_string(),
            a.gid.to_string(),
            size,
            show::time(a.mtime),
        ]
    };
    let rows: Vec<Vec<String>> = if long { items.iter().map(row).collect() } else { Vec::new() };
    let table = show::table(&rows, &[]);
    let mut lines = table.lines();
    for i in items {
        if let Some(line) = lines.next() {
            write!(out, "{line}  ")?;
        }
        out.write_all(&visible(&i.name))?;
        if let (Some(target), true) = (&i.target, long) {
            out.write_all(b" -> ")?;
            out.write_all(&visible(target.as_os_str().as_bytes()))?;
        }
        out.write_all(b"\n")?;
    }
    Ok(())
}

fn json(i: &Item) -> serde_json::Value {
    let a = &i.attr;
    let kind = match a.kind {
        FileType::Regular => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        FileType::CharDevice => "char-device",
        FileType::BlockDevice => "block-device",
    };
    let time = |t: freehold::Time| t.sec as f64 + t.nsec as f64 / 1e9;
    json!({
        "path": i.path.to_string_lossy(), "type": kind, "mode": format!("{:04o}", a.perm), "ino": a.ino.0, "nlink": a.nlink,
        "uid": a.uid, "gid": a.gid, "size": a.size, "allocated": a.blocks * 512,
        "mtime": time(a.mtime), "ctime": time(a.ctime), "atime": time(a.atime),
        "target": i.target.as_ref().map(|t| t.to_string_lossy()),
    })
}

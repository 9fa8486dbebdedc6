//! `freehold cp`: copies between this machine and images that nobody serves, in any direction.
//!
//! Everything is kept that both sides know: types, permissions, owners (onto the host: as root), times, extended
//! attributes, symlinks, hard links inside of what is copied, holes. Nothing is written through a symlink, so that an image from
//! elsewhere cannot lead a copy out of its target.

use super::host::Host;
use super::inside::Inside;
use super::show;
use super::tree::{Node, Place, Tree};
use anyhow::{Context, bail};
use freehold::FileType;
use indicatif::{HumanBytes, ProgressBar};
use serde_json::json;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Copy files into, out of and between images that are not mounted
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  freehold cp -r src disk.img:/backup  a tree into an image: as /backup, or into that directory
  freehold cp disk.img:/etc/motd .     a file out of it
  freehold cp -r a.img:/ b.img:/old    from image to image

Permissions, owners, times, extended attributes, symlinks, hard links and holes are kept; what \
cannot be kept is told. Owners and set-id bits on this machine are kept for root only. Without -r a \
symlink that is named is followed; with -r symlinks are copied as such. When it returns \
successfully, what was copied into an image is durable. Into and out of a mounted volume, use cp.")]
pub struct Args {
    /// What to copy: PATH or IMAGE:/PATH
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<OsString>,
    /// Where to: PATH or IMAGE:/PATH; several sources need a directory
    target: OsString,
    /// Copy directories with all that is in them
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Do not say what was copied
    #[arg(short, long)]
    quiet: bool,
    /// Tell the result as JSON
    #[arg(long)]
    json: bool,
}

/// The trees that take part; images by their canonical path.
struct Trees {
    host: Host,
    images: BTreeMap<PathBuf, Inside>,
}

impl Trees {
    fn get(&self, place: &Place) -> anyhow::Result<(&dyn Tree, PathBuf)> {
        match place {
            Place::Host(path) => Ok((&self.host, path.clone())),
            Place::Inside { image, path } => {
                let inside = self.images.get(&canonical(image)?).context("image is open")?;
                Ok((inside, path.clone()))
            }
        }
    }
}

fn canonical(image: &Path) -> anyhow::Result<PathBuf> {
    image.canonicalize().with_context(|| format!("{}", image.display()))
}

/// The image that a path of this machine means, when it looks like IMAGE:/PATH and no directory is called so.
fn missing_image(path: &Path) -> Option<String> {
    let text = path.to_str()?;
    let image = text.split_once(":/").map(|(image, _)| image).or(text.strip_suffix(':'))?;
    (!image.is_empty() && !Path::new(&format!("{image}:")).exists()).then(|| image.to_string())
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let sources: Vec<Place> = args.sources.iter().map(|s| Place::parse(s)).collect();
    let target = Place::parse(&args.target);
    for place in sources.iter().chain([&target]) {
        if let Place::Host(path) = place
            && let Some(image) = missing_image(path)
        {
            bail!("there is no image file or device {image}. Make it first: freehold mkfs {image} --size 8G");
        }
    }
    let mut trees = Trees { host: Host, images: BTreeMap::new() };
    // The target first: it is opened for writing, also when it is a source too.
    for place in std::iter::once(&target).chain(&sources) {
        if let Place::Inside { image, .. } = place
            && !trees.images.contains_key(&canonical(image)?)
        {
            let number = trees.images.len() as u64;
            let inside = Inside::open(image, *place != target, number)?;
            trees.images.insert(canonical(image)?, inside);
        }
    }
    let start = Instant::now();
    let bar = show::progress();
    let copied = copy_all(&trees, &sources, &target, &args, &bar);
    bar.finish_and_clear();
    // Also after an error: what was copied before it stays.
    let closed: anyhow::Result<Vec<()>> = trees.images.into_values().map(Inside::close).collect();
    let done = copied?;
    closed?;
    let seconds = start.elapsed().as_secs_f64();
    for (name, files) in &done.lost {
        eprintln!(
            "freehold: attribute {name} could not be kept ({files} {})",
            if *files == 1 { "file" } else { "files" }
        );
    }
    if args.json {
        println!(
            "{}",
            json!({
                "files": done.files, "directories": done.directories, "others": done.others, "links": done.links,
                "bytes": done.bytes, "seconds": seconds, "attributes_lost": done.lost,
            })
        );
    } else if !args.quiet {
        let counts = [
            (done.files, "file", "files"),
            (done.directories, "directory", "directories"),
            (done.others, "symlink or special file", "symlinks and special files"),
            (done.links, "hard link", "hard links"),
        ];
        let some = counts.iter().filter(|c| c.0 > 0);
        let words: Vec<String> =
            some.map(|&(n, one, many)| format!("{n} {}", if n == 1 { one } else { many })).collect();
        println!("{}, {} in {seconds:.2} s", words.join(", "), HumanBytes(done.bytes));
    }
    Ok(())
}

fn copy_all(
    trees: &Trees,
    sources: &[Place],
    target: &Place,
    args: &Args,
    bar: &ProgressBar,
) -> anyhow::Result<Done> {
    let (to, target_path) = trees.get(target)?;
    let into = to.look(&target_path, true)?.is_some_and(|n| n.attr.kind == FileType::Directory);
    if !into && sources.len() > 1 {
        bail!("{} is not a directory; several sources need one", to.show(&target_path));
    }
    let mut done = Done::default();
    for source in sources {
        let (from, path) = trees.get(source)?;
        let Some(node) = from.look(&path, !args.recursive)? else {
            bail!("{} does not exist", from.show(&path));
        };
        if node.attr.kind == FileType::Directory && !args.recursive {
            bail!("{} is a directory; copy it with -r", from.show(&path));
        }
        let to_path = match own_name(&path) {
            Some(name) if into => target_path.join(name),
            _ => target_path.clone(),
        };
        // Making room would take it from everybody: /dev/null is named where nothing is to be kept.
        if let Some(old) = to.look(&to_path, false)?
            && !matches!(old.attr.kind, FileType::Regular | FileType::Directory | FileType::Symlink)
        {
            let shown = to.show(&to_path);
            bail!(
                "{shown} is a device, FIFO or socket, and stays as it is; freehold cat writes into such things"
            );
        }
        let follow = !args.recursive;
        let mut copy = Copy {
            from,
            to,
            links: HashMap::new(),
            made: None,
            done: &mut done,
            bar,
            buffer: vec![0; 1 << 20],
        };
        copy.any(&path, &to_path, &node, follow)?;
    }
    Ok(done)
}

/// The name under which a source goes into a directory. "/", ".", ".." and what ends so stand for what is in them.
fn own_name(path: &Path) -> Option<&OsStr> {
    let bytes = path.as_os_str().as_bytes();
    if bytes == b"." || bytes.ends_with(b"/.") { None } else { path.file_name() }
}

#[derive(Default)]
struct Done {
    files: u64,
    directories: u64,
    others: u64,
    links: u64,
    bytes: u64,
    lost: BTreeMap<String, u64>,
}

/// The copy of one source.
struct Copy<'a> {
    from: &'a dyn Tree,
    to: &'a dyn Tree,
    /// Files with more than one name: where the first of them was copied to.
    links: HashMap<(u64, u64), PathBuf>,
    /// The directory that the copy began with, on the target's side.
    made: Option<(u64, u64)>,
    done: &'a mut Done,
    bar: &'a ProgressBar,
    buffer: Vec<u8>,
}

impl Copy<'_> {
    fn any(&mut self, path: &Path, to: &Path, node: &Node, follow: bool) -> anyhow::Result<()> {
        let attr = &node.attr;
        let old = self.to.look(to, false)?;
        if let Some(old) = &old {
            if old.identity() == node.identity() {
                bail!("{} and {} are the same file", self.from.show(path), self.to.show(to));
            }
            let was_directory = old.attr.kind == FileType::Directory;
            if was_directory != (attr.kind == FileType::Directory) {
                let not = if was_directory { "is a directory" } else { "is not a directory" };
                bail!("{} {not}; it is not replaced by {}", self.to.show(to), self.from.show(path));
            }
        }
        if attr.kind == FileType::Directory {
            self.directory(path, to, node, old.is_none())?;
            return self.dress(path, to, node);
        }
        // A regular file is overwritten where it is; anything else makes room.
        let first = self.links.get(&node.identity()).filter(|_| attr.nlink > 1).cloned();
        let both_regular = |old: &Node| old.attr.kind == FileType::Regular && attr.kind == FileType::Regular;
        if let Some(old) = old
            && !(both_regular(&old) && old.attr.nlink == 1 && first.is_none())
        {
            self.to.unlink(to)?;
        }
        if let Some(first) = first {
            self.done.links += 1;
            return self.to.link(&first, to);
        }
        if attr.nlink > 1 {
            self.links.insert(node.identity(), to.to_path_buf());
        }
        match attr.kind {
            FileType::Regular => self.content(path, to, attr.size, follow)?,
            FileType::Symlink => self.to.symlink(&self.from.read_link(path)?, to)?,
            _ => self.to.mknod(to, attr)?,
        }
        match attr.kind {
            FileType::Regular => self.done.files += 1,
            _ => self.done.others += 1,
        }
        self.dress(path, to, node)
    }

    fn directory(&mut self, path: &Path, to: &Path, node: &Node, new: bool) -> anyhow::Result<()> {
        if self.made == Some(node.identity()) {
            bail!("{} cannot be copied into itself", self.from.show(path));
        }
        // Listed before anything is made in the target, which may lie inside.
        let names = self.from.list(path)?;
        if new {
            self.to.mkdir(to)?;
        }
        if self.made.is_none() {
            self.made = self.to.look(to, false)?.map(|n| n.identity());
        }
        self.done.directories += 1;
        for name in names {
            let (child, copy) = (path.join(&name), to.join(&name));
            // What disappeared meanwhile is not copied.
            if let Some(node) = self.from.look(&child, false)? {
                self.any(&child, &copy, &node, false)?;
            }
        }
        Ok(())
    }

    fn content(&mut self, path: &Path, to: &Path, size: u64, follow: bool) -> anyhow::Result<()> {
        if self.done.files.is_multiple_of(64) {
            self.bar.set_message(show::name(path.as_os_str().as_encoded_bytes()));
        }
        let mut source = self.from.open(path, follow)?;
        let mut sink = self.to.create(to)?;
        // Files of the kernel (/proc) say that they are empty: what can be read of them counts.
        let told = size > 0;
        let size = if told { size } else { u64::MAX };
        let mut at = 0;
        while at < size
            && let Some((start, end)) = if told { source.data(at)? } else { Some((at, size)) }
        {
            at = start;
            while at < end {
                let want = self.buffer.len().min((end - at) as usize);
                let n = source.read_at(&mut self.buffer[..want], at)?;
                if n == 0 {
                    break;
                }
                sink.write_at(&self.buffer[..n], at)?;
                at += n as u64;
                self.done.bytes += n as u64;
                self.bar.inc(n as u64);
            }
            if at < end {
                // It became shorter while it was read, or did not tell its size.
                return sink.set_len(at);
            }
        }
        sink.set_len(size.max(at))
    }

    fn dress(&mut self, path: &Path, to: &Path, node: &Node) -> anyhow::Result<()> {
        let xattrs = self.from.xattrs(path)?;
        for name in self.to.dress(to, &node.attr, &xattrs)? {
            *self.done.lost.entry(name).or_default() += 1;
        }
        Ok(())
    }
}

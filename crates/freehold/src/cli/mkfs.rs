//! `freehold mkfs`.

use super::explain;
use anyhow::{Context, bail};
use format::limits::VOLUME_MIN;
use freehold::options::{format_size, parse_size};
use freehold::{Allocated, Allocation, MkfsOptions, mounts};
use std::path::PathBuf;

/// Make an empty volume in an image file or on a block device
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  freehold mkfs disk.img --size 8G                 a new image; its space is reserved at once
  freehold mkfs disk.img --size 1t --sparse        an image that takes space as it is filled
  freehold mkfs /dev/nvme1n1 --label scratch       a whole device
  freehold mkfs nvme:0000:00:04.0                  an NVMe controller that is bound to vfio-pci; with n2 behind it, its namespace 2
  freehold mkfs disk.img --size 8G --force         again, over what it holds")]
pub struct Args {
    /// Image file or block device
    #[arg(value_name = "IMAGE|DEVICE")]
    image: PathBuf,
    /// Size of the image: makes it or extends it (at least 32m; not for devices, which are taken whole)
    #[arg(long, short, value_parser = parse_size)]
    size: Option<u64>,
    /// Name of the volume, at most 64 bytes
    #[arg(long, short = 'L', default_value = "")]
    label: String,
    /// Order all overwrites and make each of them atomic, also those that no sync or barrier follows
    #[arg(long)]
    strict: bool,
    /// Size of the log, 8m to 1g [default: a 64th of the volume, 8m to 256m]
    #[arg(long, value_parser = parse_size)]
    log_size: Option<u64>,
    /// Leave the image sparse: it takes space when it is written
    #[arg(long)]
    sparse: bool,
    /// Overwrite a volume, or what looks like somebody else's data
    #[arg(long, short)]
    force: bool,
    /// Tell the result as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let image = &args.image;
    let name = image.display();
    explain::not_bucket(image)?;
    let is_controller = freehold::nvme_address(image).is_some();
    let exists = is_controller || image.exists();
    let is_device = is_controller || exists && super::is_device(image);
    if exists && !is_device && !image.is_file() {
        bail!("{name} is neither an image file nor a block device");
    }
    if exists {
        if !is_controller && let Some(m) = mounts::of_image(image).context("looking for mounts")?.first() {
            bail!("{name} is mounted at {} as {}. Unmount it first", m.point.display(), m.kind);
        }
        if !args.force {
            let found = freehold::foreign_content(image).map_err(|e| explain::volume(e, image))?;
            if let Some(what) = found {
                bail!("{name} holds {what}. To lose that and make a volume there, use --force");
            }
            if freehold::identity(image).is_ok() {
                bail!("{name} holds a Freehold volume already. To lose that and make a new one, use --force");
            }
        }
    }
    if !exists && image.to_str().is_some_and(|name| name.starts_with("nvme:")) {
        bail!("{name} names no controller; write nvme:0000:04:00.0 (freehold device list shows addresses)");
    }
    match args.size {
        Some(_) if is_device => bail!("{name} is a block device: a volume takes all of it. Leave out --size"),
        Some(_) if !exists && std::path::absolute(image).is_ok_and(|p| p.starts_with("/dev")) => {
            bail!("there is no device {name}")
        }
        None if !exists && image.starts_with("/dev") => bail!("there is no device {name}"),
        None if !exists => bail!("{name} does not exist. To make an image file, say how large: --size 8G"),
        Some(size) => {
            if size < VOLUME_MIN {
                bail!("{name}: a volume needs at least {}", format_size(VOLUME_MIN));
            }
            if exists {
                let old = image.metadata().map_err(|e| explain::host(e, "looking at", image))?.len();
                if size < old {
                    bail!(
                        "{name} has {} already, and images are not made smaller. Leave out --size, or remove \
                         the file first",
                        format_size(old)
                    );
                }
                // While somebody uses it, its size must stay.
                freehold::patience::until_free(image).map_err(|e| explain::volume(e, image))?;
            }
            let how = if args.sparse { Allocation::Sparse } else { Allocation::Full };
            let made = freehold::create_image(image, size, how).map_err(|e| explain::volume(e, image))?;
            if made == Allocated::SparseInstead {
                eprintln!("freehold: the file system below cannot reserve space; the image is sparse");
            }
        }
        None => {}
    }
    // SAFETY: these calls have no preconditions.
    let owner = unsafe { (libc::geteuid(), libc::getegid()) };
    let options = MkfsOptions {
        label: args.label.clone(),
        strict: args.strict,
        log_bytes: args.log_size,
        uuid: None,
        force: args.force,
        owner,
    };
    let made = freehold::patience::retry(image, || freehold::mkfs(image, &options));
    if made.is_err() && !exists {
        let _ = std::fs::remove_file(image);
    }
    let report = made.map_err(|e| explain::volume(e, image))?;
    let uuid = super::uuid(&report.uuid);
    if args.json {
        let all = serde_json::json!({
            "image": image, "bytes": report.bytes, "log_bytes": report.log_bytes, "uuid": uuid,
            "label": args.label, "strict": args.strict,
        });
        println!("{all}");
    } else {
        let label = if args.label.is_empty() { String::new() } else { format!(" '{}'", args.label) };
        println!(
            "{name}: volume{label} of {}, log {}, {uuid}",
            format_size(report.bytes),
            format_size(report.log_bytes)
        );
    }
    Ok(())
}

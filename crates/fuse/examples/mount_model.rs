//! Mounts the reference model: `mount_model [--later] DIR [OPTIONS]` with OPTIONS as in `mount -o`. Ends when DIR is
//! unmounted. With `--later` every call of the contract waits once. For `scripts/pjdfstest.sh` and for measuring the door
//! without an engine.

#[path = "../tests/later/mod.rs"]
mod later;

use fuse::MountOptions;
use std::path::Path;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().init();
    let mut args = std::env::args().skip(1).peekable();
    let waits = args.next_if_eq("--later").is_some();
    let dir = args.next().ok_or("usage: mount_model [--later] DIR [OPTIONS]")?;
    let options = MountOptions::parse(&args.next().unwrap_or_default())?;
    let model = sim::Model::new(sim::model::system_clock());
    let dir = Path::new(&dir);
    let mount = match waits {
        true => fuse::mount(Arc::new(later::Later::new(model)), dir, options)?,
        false => fuse::mount(Arc::new(model), dir, options)?,
    };
    println!("mounted");
    mount.wait();
    Ok(())
}

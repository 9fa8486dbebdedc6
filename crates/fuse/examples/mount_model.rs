//! Mounts the reference model: `mount_model DIR [OPTIONS]` with OPTIONS as in `mount -o`. Ends when DIR is unmounted.
//! For `scripts/pjdfstest.sh` and for measuring the door without an engine.

use fuse::MountOptions;
use std::path::Path;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_env_filter(tracing_subscriber::EnvFilter::from_default_env()).init();
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or("usage: mount_model DIR [OPTIONS]")?;
    let options = MountOptions::parse(&args.next().unwrap_or_default())?;
    let model = Arc::new(sim::Model::new(sim::model::system_clock()));
    let mount = fuse::mount(model, Path::new(&dir), options)?;
    println!("mounted");
    mount.wait();
    Ok(())
}

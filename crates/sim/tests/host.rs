//! The model against the host's file system.

use sim::differential::*;
use sim::host::HostTicking;
use sim::*;
use std::path::Path;
use std::sync::Arc;

fn model() -> Side<Model, Ticking> {
    let driver = Ticking::default();
    Side::new(Model::new(driver.0.clock()), driver)
}

fn host(parent: &str) -> Side<HostFs, Blocking> {
    Side::new(HostFs::temporary(Path::new(parent)).expect("a directory of the host"), Blocking)
}

fn host_ticking(parent: &str) -> Side<HostFs, HostTicking> {
    let fs = Arc::new(HostFs::temporary(Path::new(parent)).expect("a directory of the host"));
    Side::new(fs.clone(), HostTicking(fs))
}

#[test]
fn same_as_ext4() {
    assert_same(model, || host("/tmp"), 0..8, Knobs::host(), 4000, Settings::default());
}

#[test]
fn same_times_as_ext4() {
    let settings = Settings { tolerance: Tolerance::NONE, tree_every: 0, ..Settings::default() };
    assert_same(model, || host_ticking("/tmp"), 0..2, Knobs::host(), 1000, settings);
}

//! Ends by force of mounts that cannot be ended by taking them from their place: their connection goes on elsewhere.

use crate::helpers::*;
use fuse::{Mount, MountOptions};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn run(program: &str, args: &[&Path]) {
    let done = Command::new(program).args(args).status().unwrap();
    assert!(done.success(), "{program} {args:?}");
}

fn device(point: &Path) -> String {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let is_it = |line: &&str| line.split(' ').nth(4) == point.to_str();
    table.lines().rfind(is_it).unwrap().split(' ').nth(2).unwrap().to_string()
}

/// Ends `mount` on a thread that is given up when it hangs.
#[track_caller]
fn ends(mount: Mount, patience: Duration) -> Mount {
    let begun = Instant::now();
    let thread = std::thread::spawn(move || {
        mount.unmount_within(patience).unwrap();
        mount
    });
    while !thread.is_finished() {
        assert!(begun.elapsed() < Duration::from_secs(20), "it hangs");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(begun.elapsed() >= patience, "nobody has closed the file");
    thread.join().unwrap()
}

#[test]
fn what_is_used_elsewhere_ends_by_force() {
    if !can_mount() {
        return;
    }
    let engine = Arc::new(model());
    for how in ["bound", "bound and idle", "lazy", "covered", "covered and forced", "bound and dropped"] {
        println!("{how}");
        let place = tempfile::tempdir().unwrap();
        let (point, other) = (place.path().join("point"), place.path().join("other"));
        fs::create_dir(&point).unwrap();
        fs::create_dir(&other).unwrap();
        let mount = fuse::mount(engine.clone(), &point, MountOptions::default()).unwrap();
        let bound = how.starts_with("bound");
        if bound {
            run("mount", &[Path::new("--bind"), &point, &other]);
        }
        let file = File::create(if bound { &other } else { &point }.join("file")).unwrap();
        file.write_all_at(how.as_bytes(), 0).unwrap();
        let file = (how != "bound and idle").then_some(file);
        match how {
            "lazy" => run("umount", &[Path::new("-l"), &point]),
            "covered" | "covered and forced" => {
                run(
                    "mount",
                    &["-t", "tmpfs", "none"].map(Path::new).into_iter().chain([&*point]).collect::<Vec<_>>(),
                );
                let e = mount.unmount().unwrap_err().to_string();
                assert!(e.contains("something else is mounted over"), "{e}");
                assert!(mount.is_mounted() && file.as_ref().unwrap().metadata().is_ok());
            }
            _ => {}
        }
        if how == "covered" {
            unmount_outside(&point);
        }
        match how {
            "bound and dropped" => drop(mount),
            _ => assert!(!ends(mount, Duration::from_millis(300)).is_mounted()),
        }
        if let Some(file) = file {
            assert_eq!(errno(file.write_at(b"x", 0)), libc::ENOTCONN, "{how}");
        }
        match how {
            "covered and forced" => {
                unmount_outside(&point);
                unmount_outside(&point);
            }
            _ if bound => {
                assert_eq!(errno(fs::read_dir(&other)), libc::ENOTCONN);
                unmount_outside(&other);
            }
            _ => {}
        }
        assert_eq!(fs::read_dir(&point).unwrap().count(), 0, "{how}: nothing is mounted there");
        assert_eq!(Arc::strong_count(&engine), 1, "{how}: the engine is let go");
        // What was written is there.
        let mount = fuse::mount(engine.clone(), &point, MountOptions::default()).unwrap();
        assert_eq!(fs::read(point.join("file")).unwrap(), how.as_bytes());
        unmount(&mount);
    }
}

/// Who waits patiently is not forced: the last user elsewhere ends in time.
#[test]
fn an_end_elsewhere_is_waited_for() {
    if !can_mount() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let (point, other) = (place.path().join("point"), place.path().join("other"));
    fs::create_dir(&point).unwrap();
    fs::create_dir(&other).unwrap();
    let mount = fuse::mount(Arc::new(model()), &point, MountOptions::default()).unwrap();
    run("mount", &[Path::new("--bind"), &point, &other]);
    std::thread::scope(|s| {
        let end = s.spawn(|| mount.unmount_within(Duration::from_secs(60)));
        std::thread::sleep(Duration::from_millis(300));
        fs::write(other.join("file"), "written meanwhile").unwrap();
        assert!(!end.is_finished());
        unmount_outside(&other);
        end.join().unwrap().unwrap();
    });
    assert!(!mount.is_mounted());
}

#[test]
fn connections_are_those_of_mounts() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mount = fuse::mount(Arc::new(model()), dir.path(), MountOptions::default()).unwrap();
    let number = device(dir.path());
    for (bad, kind) in [
        ("8:1", std::io::ErrorKind::InvalidInput),
        ("0:x", std::io::ErrorKind::InvalidInput),
        ("0:999999", std::io::ErrorKind::NotFound),
    ] {
        assert_eq!(fuse::Connection::of(bad).unwrap_err().kind(), kind, "{bad}");
    }
    let connection = fuse::Connection::of(&number).unwrap();
    unmount(&mount);
    // The number may be that of another mount by now.
    let other = fuse::mount(Arc::new(model()), dir.path(), MountOptions::default()).unwrap();
    connection.abort().unwrap();
    fs::write(dir.path().join("file"), "still here").unwrap();
    unmount(&other);
}

#[test]
fn symbolic_links_that_are_not_followed() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let options = MountOptions::parse("nosymfollow").unwrap();
    let mount = fuse::mount(Arc::new(model()), dir.path(), options).unwrap();
    fs::write(dir.path().join("file"), "x").unwrap();
    std::os::unix::fs::symlink("file", dir.path().join("link")).unwrap();
    assert_eq!(errno(File::open(dir.path().join("link"))), libc::ELOOP);
    assert_eq!(fs::read_link(dir.path().join("link")).unwrap(), Path::new("file"));
    unmount(&mount);
    let options = MountOptions::parse("nosymfollow,auto_unmount").unwrap();
    let e = fuse::mount(Arc::new(model()), dir.path(), options).err().unwrap();
    assert!(e.to_string().contains("nosymfollow"), "{e}");
}

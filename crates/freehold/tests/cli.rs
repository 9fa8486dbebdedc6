//! The command on images that nobody serves: mkfs, df, ls, cp, cat, and what it says when something is wrong.

mod common;

use common::{Place, describe, make_tree};
use std::os::unix::fs::MetadataExt;

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn mkfs_makes_what_it_says() {
    let p = Place::new();
    let said = p.line("mkfs a.img --size 64m --label töst --json").ok();
    let report = json(&said);
    assert_eq!((report["bytes"].as_u64(), report["label"].as_str()), (Some(64 << 20), Some("töst")));
    let meta = p.path("a.img").metadata().unwrap();
    assert_eq!(meta.len(), 64 << 20);
    assert!(meta.blocks() * 512 >= 64 << 20, "its space is reserved");
    p.line("mkfs b.img --size 64m --sparse --strict --log-size 16m").ok();
    assert!(p.path("b.img").metadata().unwrap().blocks() * 512 < 32 << 20, "it is sparse");
    let (sb, _) = freehold::identity(p.path("b.img")).unwrap();
    assert_eq!(sb.strict.get(), 1);
    // Extended by --size, and then the volume is larger.
    p.line("mkfs b.img --size 128m --force").ok();
    assert_eq!(freehold::identity(p.path("b.img")).unwrap().0.segments(), 64);
}

#[test]
fn mkfs_refuses_what_would_do_harm() {
    let p = Place::new();
    p.line("mkfs a.img").fails(&["does not exist", "--size"]);
    p.line("mkfs no/such/a.img --size 64m").fails(&["no such directory"]);
    for size in ["0", "1m", "31m"] {
        p.line(&format!("mkfs a.img --size {size}")).fails(&["32 MiB"]);
    }
    p.line("mkfs a.img --size 900000t --sparse").fails(&["a.img", "size"]);
    p.line("mkfs /dev/no-such-device --size 64m").fails(&["no device"]);
    p.line("mkfs /dev/no-such-device").fails(&["no device"]);
    assert!(!p.path("a.img").exists(), "nothing is left of an image that was not made");
    p.line("mkfs a.img --size 64m --log-size 60m").fails(&["log"]);
    p.line("mkfs . --size 64m").fails(&["neither an image file nor a block device"]);
    p.line("mkfs /dev/null --size 64m --force").fails(&["neither"]);
    std::fs::write(p.path("thesis.pdf"), "%PDF").unwrap();
    p.line("mkfs thesis.pdf --size 64m").fails(&["another kind", "--force"]);
    assert_eq!(std::fs::read(p.path("thesis.pdf")).unwrap(), b"%PDF");
    p.volume("b.img");
    p.line("mkfs b.img").fails(&["Freehold volume already", "--force"]);
    p.line("mkfs b.img --size 64m --force").fails(&["96 MiB already", "not made smaller"]);
    assert_eq!(p.line("mkfs b.img --size wibble").code, Some(2));
    assert_eq!(p.line("mkfs").code, Some(2));
    if let Ok(made) = std::process::Command::new("mke2fs").arg("-q").arg(p.path("e.img")).arg("64m").status()
    {
        assert!(made.success());
        p.line("mkfs e.img").fails(&["ext4", "--force"]);
        p.line("mkfs e.img --force").ok();
    }
    // No image of that name is made.
    for size in ["", " --size 64m"] {
        p.line(&format!("mkfs nvme:0000:00:04{size}")).fails(&["names no controller", "device list"]);
    }
    assert!(!p.path("nvme:0000:00:04").exists());
}

#[test]
fn errors_say_what_to_do() {
    let p = Place::new();
    p.line("ls nothing.img").fails(&["no image file", "nothing.img"]);
    p.line("df nothing.img").fails(&["nothing.img", "No such file"]);
    std::fs::write(p.path("empty"), "").unwrap();
    p.line("ls empty").fails(&["empty", "freehold mkfs"]);
    std::fs::write(p.path("text"), [b'x'; 1 << 20]).unwrap();
    p.line("ls text").fails(&["no Freehold volume", "freehold mkfs"]);
    p.volume("a.img");
    p.line("ls a.img:/missing").fails(&["a.img:/missing", "does not exist"]);
    p.line("cat a.img:/").fails(&["not a regular file but a directory"]);
    std::fs::write(p.path("small"), "x").unwrap();
    p.line("cp small none.img:/").fails(&["no image file or device none.img", "freehold mkfs"]);
    p.line("cp none.img:/x .").fails(&["no image file or device none.img"]);
    p.line("cp a.img:/missing .").fails(&["does not exist"]);
    p.mkdir("d");
    p.line("cp d a.img:/").fails(&["-r"]);
    p.line("mount a.img nowhere").fails(&["nowhere", "mkdir"]);
    p.line("mount a.img d -o wibble").fails(&["wibble"]);
    p.line("mount none.img d").fails(&["does not exist", "freehold mkfs"]);
    p.line("umount d").fails(&["not mounted"]);
    p.line("serve --config none.toml").fails(&["none.toml"]);
    assert_eq!(p.line("wibble").code, Some(2));
    assert!(p.line("mount --help").ok().contains("/etc/fstab"));
}

#[test]
fn one_process_at_a_time_writes() {
    let p = Place::new();
    let image = p.volume("a.img");
    let volume = freehold::open(&image, Default::default()).unwrap();
    let me = format!("process {}", std::process::id());
    p.line("ls a.img").fails(&["in use", &me]);
    p.line("mkfs a.img --force").fails(&["in use", &me]);
    volume.close_blocking().unwrap();
    drop(volume);
    p.line("ls a.img").ok();
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let options = freehold::VolumeOptions { read_only: true, ..Default::default() };
            freehold::open(&image, options).unwrap()
        })
        .collect();
    p.line("ls a.img").ok();
    p.line("cp a.img a.img:/x").fails(&["in use"]);
    drop(readers);
}

#[test]
fn a_user_who_is_leaving_is_waited_for() {
    let p = Place::new();
    let image = p.volume("a.img");
    let volume = freehold::open(&image, Default::default()).unwrap();
    let leaving = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(200));
        volume.close_blocking().unwrap();
    });
    p.line("ls a.img").ok();
    leaving.join().unwrap();
    let volume = freehold::open(&image, Default::default()).unwrap();
    let start = std::time::Instant::now();
    p.line("ls a.img").fails(&["in use"]);
    assert!(start.elapsed().as_secs() < 3, "who stays is told of soon");
    volume.close_blocking().unwrap();
}

#[test]
fn images_below_loop_devices_are_left_alone() {
    let p = Place::new();
    let image = p.volume("a.img");
    let run = |program: &str, args: &[&str]| {
        let out = std::process::Command::new(program).args(args).current_dir(p.path("")).output().ok()?;
        out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_string())
    };
    let Some(device) = common::is_root().then(|| run("losetup", &["-f", "--show", "a.img"])).flatten() else {
        println!("skipped: needs root and loop devices");
        return;
    };
    p.mkdir("mnt");
    let volume = freehold::open(&image, Default::default()).unwrap();
    let by_device = p.line(&format!("ls {device}"));
    volume.close_blocking().unwrap();
    drop(volume);
    let alone = p.line(&format!("ls {device}"));
    // One that takes no writes.
    run("losetup", &["-d", &device]).expect("the device is free");
    let read_only = run("losetup", &["-r", "-f", "--show", "a.img"]).unwrap();
    let write = ["mkfs --force", "fsck --repair", "mount -F"].map(|line| {
        p.line(&format!("{line} {read_only} {}", if line.starts_with("mount") { "mnt" } else { "" }))
    });
    let read = p.line(&format!("ls {read_only}"));
    run("losetup", &["-d", &read_only]).expect("the device is free");
    for said in write {
        assert!(said.code != Some(0) && said.err.contains("read-only"), "{said:?}");
    }
    read.ok();
    let device = run("losetup", &["-f", "--show", "a.img"]).unwrap();
    let mounted = common::can_mount().then(|| {
        let mounted = p.line(&format!("mount {device} mnt"));
        let said = ["ls a.img", "mkfs a.img --force", "fsck a.img"].map(|line| p.line(line));
        (mounted, said, p.line("umount a.img"))
    });
    run("losetup", &["-d", &device]).expect("the device is free");
    by_device.fails(&["in use by process"]);
    alone.ok();
    let Some((mounted, said, umounted)) = mounted else { return };
    mounted.ok();
    for said in said {
        assert!(said.code != Some(0) && said.err.contains("mounted at"), "{said:?}");
    }
    umounted.ok();
}

#[test]
fn trees_survive_the_way_in_and_out() {
    let p = Place::new();
    p.volume("a.img");
    p.volume("b.img");
    let src = p.mkdir("src");
    make_tree(&src);
    let report = json(&p.line("cp --json -r src a.img:/copy").ok());
    assert_eq!((report["links"].as_u64(), report["directories"].as_u64()), (Some(1), Some(3)));
    assert!(report["bytes"].as_u64().unwrap() < 14_000_000, "holes are not copied");
    // Into an existing directory, from image to image, and out again.
    p.line("cp -r a.img:/copy b.img:/").ok();
    p.line("cp -r b.img:/copy out").ok();
    assert_eq!(describe(&src), describe(&p.path("out")));
    assert!(p.path("out/sparse").metadata().unwrap().blocks() * 512 < 8 << 20, "holes stay holes");
    // Again over the copy: the same result.
    p.line("cp -r a.img:/copy/. out").ok();
    assert_eq!(describe(&src), describe(&p.path("out")));
    assert_eq!(p.line("cat b.img:/copy/d/link b.img:/copy/small").ok(), "smallsmall");
    // A named symlink is followed without -r.
    p.line("cp b.img:/copy/d/link followed").ok();
    assert_eq!(std::fs::read(p.path("followed")).unwrap(), b"small");
    assert!(p.path("followed").symlink_metadata().unwrap().is_file());
    // Within one image.
    p.line("cp -r a.img:/copy a.img:/again").ok();
    p.line("cp -r a.img:/again out2").ok();
    assert_eq!(describe(&src), describe(&p.path("out2")));
}

#[test]
fn attributes_of_files_are_kept() {
    let p = Place::new();
    p.volume("a.img");
    std::fs::write(p.path("f"), "x").unwrap();
    let set = |path, name: &str, value: &[u8]| {
        rustix::fs::lsetxattr(p.path(path), name, value, rustix::fs::XattrFlags::empty())
    };
    if set("f", "user.colour", b"blue").is_err() {
        eprintln!("no user attributes on the file system of the test directory: nothing to test");
        return;
    }
    p.line("cp f a.img:/f").ok();
    p.line("cp a.img:/f g").ok();
    let mut value = [0u8; 16];
    let n = rustix::fs::lgetxattr(p.path("g"), "user.colour", &mut value[..]).unwrap();
    assert_eq!(&value[..n], b"blue");
}

#[test]
fn cp_is_not_led_astray() {
    let p = Place::new();
    p.volume("a.img");
    let src = p.mkdir("src");
    make_tree(&src);
    p.line("cp -r src a.img:/x").ok();
    p.line("cp -r a.img:/x a.img:/x/d/inside").fails(&["into itself"]);
    p.line("cp a.img:/x/small a.img:/x/small").fails(&["same file"]);
    p.line("cp -r src a.img:/x/small").fails(&["not a directory"]);
    p.line("cp a.img:/x/small src src2").fails(&["not a directory"]);
    // A symlink in the target is replaced, not written through.
    std::fs::write(p.path("precious"), "precious").unwrap();
    p.mkdir("out");
    std::os::unix::fs::symlink("../precious", p.path("out/small")).unwrap();
    p.line("cp a.img:/x/small out").ok();
    assert_eq!(std::fs::read(p.path("precious")).unwrap(), b"precious");
    assert_eq!(std::fs::read(p.path("out/small")).unwrap(), b"small");
}

/// What is there for others is named as a target, or copied to where something of its name is.
#[test]
fn cp_leaves_devices_and_fifos_where_they_are() {
    let p = Place::new();
    p.volume("a.img");
    std::fs::write(p.path("f"), "x").unwrap();
    p.line("cp f a.img:/fifo").ok();
    p.mkdir("out");
    for fifo in ["fifo", "out/fifo"] {
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, p.path(fifo), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    }
    for target in ["fifo", "out"] {
        for line in ["cp", "cp -r"] {
            p.line(&format!("{line} a.img:/fifo {target}"))
                .fails(&["fifo is a device, FIFO", "freehold cat"]);
        }
    }
    for fifo in ["fifo", "out/fifo"] {
        let kind = p.path(fifo).symlink_metadata().unwrap().file_type();
        assert!(std::os::unix::fs::FileTypeExt::is_fifo(&kind), "{fifo}");
    }
}

#[test]
fn cp_reads_files_that_do_not_tell_their_size() {
    let p = Place::new();
    p.volume("a.img");
    assert_eq!(std::fs::metadata("/proc/version").unwrap().len(), 0);
    p.line("cp /proc/version /proc/cpuinfo a.img:/").ok();
    assert_eq!(p.line("cat a.img:/version").ok(), std::fs::read_to_string("/proc/version").unwrap());
    assert!(p.line("cat a.img:/cpuinfo").ok().contains("processor"));
    std::fs::write(p.path("empty"), "").unwrap();
    p.line("cp empty a.img:/").ok();
    assert_eq!(p.line("cat a.img:/empty").ok(), "");
}

#[test]
fn ls_and_df_tell_what_is_there() {
    let p = Place::new();
    p.volume("a.img");
    let src = p.mkdir("src");
    make_tree(&src);
    p.line("cp -r src a.img:/").ok();
    assert_eq!(p.line("ls a.img").ok(), "src\n");
    let long = p.line("ls -l a.img:/src").ok();
    assert!(
        long.lines().any(|l| l.starts_with("-rw-r-----") && l.ends_with("  small") && l.contains("2001-09-")),
        "{long}"
    );
    assert!(long.contains("dangling -> nowhere"));
    let all = p.line("ls -R a.img").ok();
    assert!(all.contains("/src/d:\n") && all.contains("\nsame\n"), "{all}");
    let list = json(&p.line("ls -R --json a.img").ok());
    let same = list.as_array().unwrap().iter().find(|i| i["path"] == "/src/d/same").unwrap();
    assert_eq!((same["nlink"].as_u64(), same["size"].as_u64()), (Some(2), Some(12_000_000)));
    let space = json(&p.line("df --json a.img").ok());
    let (used, bytes) = (space[0]["bytes_used"].as_u64().unwrap(), space[0]["bytes"].as_u64().unwrap());
    assert!(used >= 12_000_000 && used < bytes && bytes <= 96 << 20, "{space}");
    assert!(p.line("df a.img").ok().contains("96 MiB"));
}

/// What a full disk does to the output of commands.
#[test]
fn output_that_is_lost_is_an_error() {
    let p = Place::new();
    p.volume("a.img");
    for (line, code) in [("df a.img", 1), ("fsck a.img", 8), ("device list", 1), ("bench --list", 1)] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = p.command();
        let out = command
            .args(line.split_whitespace())
            .stdout(full)
            .stderr(std::process::Stdio::piped())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "{line}: {said}");
        assert!(said.contains("cannot write to standard output: No space left"), "{line}: {said}");
        assert!(!said.contains("panicked"), "{line}: {said}");
    }
}

//! What options do to the command, and what a remount changes.

use crate::common::{Place, can_mount, eventually, is_root, server, signal};

/// The helper that unmounts when its server dies lives as long as that; who mounts does not wait for it.
#[test]
fn a_mount_with_auto_unmount_returns() {
    if !can_mount() || !fuse::has_program("fusermount3") {
        println!("skipped: needs fusermount3");
        return;
    }
    let p = Place::new();
    let image = p.volume("a.img");
    p.mkdir("mnt");
    let mut command = p.command();
    let mut child = command.args(["mount", "a.img", "mnt", "-o", "auto_unmount"]).spawn().unwrap();
    eventually("it returns", || {
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{}/stat", child.id())) else { return true };
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" Z"))
    });
    assert!(child.wait().unwrap().success() && p.is_mounted("mnt"));
    signal(server(&image), libc::SIGKILL);
    eventually("it is unmounted", || !p.is_mounted("mnt"));
}

/// What is not named stays, and what would be another server's is refused.
#[test]
fn a_remount_changes_what_is_named() {
    if !can_mount() || !is_root() {
        return;
    }
    let p = Place::new();
    p.volume("a.img");
    let mnt = p.mkdir("mnt");
    let has = |word: &str| {
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
        let line = mounts.lines().find(|line| line.contains(mnt.to_str().unwrap())).unwrap();
        line.split(' ').nth(3).unwrap().split(',').any(|w| w == word)
    };
    let shown = || ["ro", "nosuid", "nodev", "noexec", "noatime", "sync"].map(has);
    p.line("mount a.img mnt -o suid,noexec,sync").ok();
    assert_eq!(shown(), [false, false, true, true, false, true]);
    p.line("mount a.img mnt -o remount,ro,cache=64m,fsname=x").ok();
    assert_eq!(shown(), [true, false, true, true, false, true]);
    p.line("mount a.img mnt -o remount,rw,exec,dev").ok();
    assert_eq!(shown(), [false, false, false, false, false, true]);
    for (word, part) in
        [("noatime", "without noatime"), ("async", "with sync"), ("dirsync", "without dirsync")]
    {
        p.line(&format!("mount a.img mnt -o remount,ro,{word}")).fails(&[part, "unmount it"]);
        assert_eq!(shown(), [false, false, false, false, false, true], "{word}");
    }
    p.line("umount mnt").ok();
    p.line("mount a.img mnt -o noatime,dirsync").ok();
    p.line("mount a.img mnt -o remount,ro").ok();
    assert!(has("ro") && has("noatime") && has("dirsync"));
    p.line("mount a.img mnt -o remount,relatime").fails(&["with noatime"]);
    // Without any patience it says how far it has got, if the volume is not closed by then.
    let said = p.line("umount --timeout 0 mnt");
    let waits = said.err.contains("server goes on") && !said.err.contains("duration");
    assert!(said.code == Some(0) || waits, "{said:?}");
}

//! Servers that are stopped while others use their mounts, at other places too, as root and as an ordinary user: they end in time, and what was written is
//! there. And killed ones that do not come to an end.

mod common;

use common::{Place, can_mount, eventually, is_root, serve, signal};
use fs::{Client, Cred, FileSystem, Ino, Watched};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

/// How a process ended, when it did within 30 seconds.
#[track_caller]
fn ended(child: &mut Child) -> Option<i32> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if begun.elapsed() > Duration::from_secs(30) {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("it hangs");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn is_clean(p: &Place, image: &str) -> bool {
    let report: serde_json::Value =
        serde_json::from_str(&p.line(&format!("fsck --json {image}")).ok()).unwrap();
    report["stopped_cleanly"] == true
}

fn run(program: &str, args: &[&Path]) {
    assert!(Command::new(program).args(args).status().unwrap().success(), "{program} {args:?}");
}

/// A new namespace has all mounts that there are, and keeps them in use: no test of this file makes one while another unmounts.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(|e| e.into_inner())
}

/// For a new namespace: it lets go of all volumes but the one at `$keep`.
const LET_GO: &str = r#"
    mount --make-rprivate /
    grep " fuse.freehold " /proc/mounts | cut -d " " -f 2 | while read at; do test "$at" = "$keep" || umount -l "$at" 2>/dev/null || :; done
"#;

const CONFIG: &str = "\
[[volume]]
image = 'a.img'
mountpoint = 'a'
[[volume]]
image = 'b.img'
mountpoint = 'b'
";

/// Each of two volumes is used in a way that unmounting does not end; none makes the other wait.
#[test]
fn a_server_whose_volumes_are_used_elsewhere_stops() {
    if !can_mount() || !is_root() {
        return;
    }
    let (_alone, p) = (alone(), Place::new());
    let (a, b, other) = (p.mkdir("a"), p.mkdir("b"), p.mkdir("other"));
    p.volume("a.img");
    p.volume("b.img");
    let mut child = serve(&p, CONFIG, 2);
    run("mount", &[Path::new("--bind"), &a, &other]);
    let mut bound = std::fs::File::create(other.join("file")).unwrap();
    let mut open = std::fs::File::create(b.join("file")).unwrap();
    for file in [&mut bound, &mut open] {
        file.write_all(b"written").unwrap();
    }
    run("umount", &[Path::new("-l"), &b]);
    signal(child.id(), libc::SIGTERM);
    assert_eq!(ended(&mut child), Some(0));
    for file in [&mut bound, &mut open] {
        assert!(file.write_all(b"more").is_err());
    }
    drop((bound, open));
    // A process that another test is just starting has the files, for a moment.
    eventually("umount", || Command::new("umount").arg(&other).status().unwrap().success());
    assert!(!p.is_mounted("a") && !p.is_mounted("b"));
    for image in ["a.img", "b.img"] {
        assert!(is_clean(&p, image), "{image}");
        assert_eq!(p.line(&format!("cat {image}:/file")).ok(), "written");
    }
}

/// A copy of the mount in a namespace of its own, as containers have it, with a process that uses it.
#[test]
fn a_server_whose_volume_is_used_in_another_namespace_stops() {
    if !can_mount() || !is_root() {
        return;
    }
    let (_alone, p) = (alone(), Place::new());
    let a = p.mkdir("a");
    p.mkdir("b");
    p.volume("a.img");
    p.volume("b.img");
    let mut child = serve(&p, CONFIG, 2);
    std::fs::write(a.join("file"), "written").unwrap();
    let ready = p.path("ready");
    let script = format!("set -e; keep=$1; {LET_GO} cd \"$1\"; exec 3<file; touch \"$2\"; exec sleep 1000");
    let mut user = Command::new("unshare");
    user.args(["--mount", "--propagation", "private", "sh", "-c", &script, "sh"]).arg(&a).arg(&ready);
    let mut user = user.spawn().unwrap();
    eventually("the namespace is there", || ready.exists());
    signal(child.id(), libc::SIGTERM);
    let code = ended(&mut child);
    user.kill().unwrap();
    user.wait().unwrap();
    assert_eq!(code, Some(0));
    assert!(is_clean(&p, "a.img") && is_clean(&p, "b.img"));
    assert_eq!(p.line("cat a.img:/file").ok(), "written");
}

/// The signal came while the first volume was being opened: the next one is not.
#[test]
fn a_signal_before_all_volumes_are_open() {
    if !can_mount() {
        return;
    }
    let (_alone, p) = (alone(), Place::new());
    p.mkdir("a");
    p.mkdir("b");
    p.volume("a.img");
    p.volume("b.img");
    std::fs::write(p.path("v.toml"), CONFIG).unwrap();
    let mut command = p.command();
    command.args(["serve", "--config", "v.toml"]).stderr(Stdio::piped());
    // SAFETY: calls between fork and exec that are async-signal-safe; what is pending and blocked stays so.
    unsafe {
        command.pre_exec(|| {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGTERM);
            libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            libc::kill(libc::getpid(), libc::SIGTERM);
            Ok(())
        });
    }
    let out = command.output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(0), "{said}");
    assert!(said.contains("before all volumes are served") && !said.contains("is served at"), "{said}");
    assert!(!p.is_mounted("a") && !p.is_mounted("b"));
}

/// An ordinary user serves a volume, on which he has a file open: where the kernel's file system of connections is, and where it is not.
#[test]
fn mounts_of_ordinary_users_end_by_force() {
    if !can_mount() || !is_root() || !["setpriv", "unshare", "fusermount3"].into_iter().all(fuse::has_program)
    {
        println!("skipped: needs root, setpriv, unshare and fusermount3");
        return;
    }
    // The helper wants a user with a name: nobody.
    const USER: u32 = 65534;
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    assert!(users.lines().any(|line| line.split(':').nth(2) == Some("65534")), "there is nobody");
    let (_alone, p) = (alone(), Place::new());
    std::fs::set_permissions(p.path(""), PermissionsExt::from_mode(0o755)).unwrap();
    // What cargo built may lie where others cannot go.
    std::fs::copy(env!("CARGO_BIN_EXE_freehold"), p.path("freehold")).unwrap();
    let (image, mnt) = (p.volume("a.img"), p.mkdir("mnt"));
    p.line("mount a.img mnt").ok();
    chown(&mnt, Some(USER), Some(USER)).unwrap();
    p.line("umount mnt").ok();
    for path in [&image, &mnt, &p.path("")] {
        chown(path, Some(USER), Some(USER)).unwrap();
    }
    let script = r#"
        set -e
        keep=; LET_GO
        umount /sys/fs/fuse/connections 2>/dev/null || true
        test "$1" = without || mount -t fusectl none /sys/fs/fuse/connections
        # Where it is root's alone it is everybody's here.
        case $(stat -c %a /dev/fuse) in
        *[67]) ;;
        *)
            mknod fuse-"$1-$2" c 10 229
            chmod 666 fuse-"$1-$2"
            mount --bind fuse-"$1-$2" /dev/fuse
            ;;
        esac
        exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -ec '
            timeout -s KILL 60 ./freehold mount --foreground a.img mnt -o noshare,lazytime,read_ahead=64k 2>log-"$1" &
            n=0
            until grep -q " $PWD/mnt fuse.freehold " /proc/mounts; do n=$((n + 1)); test $n -lt 200; sleep 0.05; done
            test "$(cat /sys/class/bdi/"$(mountpoint -d mnt)"/read_ahead_kb)" = 64
            exec 3>mnt/"$1"
            echo written >&3
            case $2 in
            signal) kill -TERM $! ;;
            force) timeout -s KILL 20 ./freehold umount --force mnt ;;
            esac
            wait $!
            ! echo more >&3
        ' sh "$1-$2" "$2"
    "#;
    for (control, how) in [("without", "signal"), ("with", "signal"), ("with", "force")] {
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-c", &script.replace("LET_GO", LET_GO), "sh", control, how])
            .current_dir(p.path(""));
        let out = command.env_remove("FREEHOLD_LOG").env("FREEHOLD_RUN_DIR", p.path("run")).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        let log = std::fs::read_to_string(p.path(&format!("log-{control}-{how}"))).unwrap_or_default();
        assert!(out.status.success(), "{control} {how}: {said}{log}");
        assert!(is_clean(&p, "a.img"), "{control} {how}");
        assert_eq!(p.line(&format!("cat a.img:/{control}-{how}")).ok(), "written\n");
    }
}

/// What the next test kills: a server that has the kernel told of a change in a directory, which the kernel has locked for a program whose call waits for the
/// device. It says so, and waits.
#[test]
#[ignore = "another process of the test below"]
fn other_process() {
    let Some(image) = std::env::var_os("HELD_UP_IMAGE") else { return };
    let file = std::fs::File::open(&image).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let device = Arc::new(sim::gate::Gate::new(64 << 20).unwrap());
    block::mkfs(device.clone(), &Default::default()).unwrap();
    let volume = block::Volume::open(device.clone(), Default::default()).unwrap();
    Client::new(Arc::new(volume.clone()), Cred::root()).blocking().write("/cold", b"x").unwrap();
    volume.close_blocking().unwrap();
    let doors = Watched::new(Arc::new(block::Volume::open(device.clone(), Default::default()).unwrap()));
    let options = fuse::MountOptions { fsname: image.into_string().unwrap(), ..Default::default() };
    let mount = fuse::mount(Arc::new(doors.clone()), Path::new("mnt"), options).unwrap();
    doors.watch(Arc::new(mount.notifications()));
    let (session, cred) = (doors.door(), Cred::root());
    let names: Vec<String> = (0..500).map(|i| format!("known{i}")).collect();
    names.iter().for_each(|name| std::fs::write(Path::new("mnt").join(name), b"x").unwrap());
    let mut cx = Context::from_waker(Waker::noop());
    // The rest of a file that nobody has used yet is to be read; until then it has the turn of a name for which the program waits.
    device.close_for_all();
    let mut renamed =
        Box::pin(session.rename(&cred, Ino::ROOT, b"cold", Ino::ROOT, b"taken", Default::default()));
    assert!(renamed.as_mut().poll(&mut cx).is_pending());
    let mut program = Command::new("mkdir").arg("mnt/taken").stderr(Stdio::null()).spawn().unwrap();
    // Until the program is so far, the kernel takes changes in.
    'told: for name in names {
        let mut changed = Box::pin(session.unlink(&cred, Ino::ROOT, name.as_bytes()));
        let begun = Instant::now();
        while changed.as_mut().poll(&mut cx).is_pending() {
            if begun.elapsed() > Duration::from_secs(1) {
                println!("held up");
                break 'told;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    program.wait().unwrap();
}

/// A killed server does not end by itself when the kernel has it wait for a lock of a program that waits for the server. Whoever clears its mount away frees
/// both.
#[test]
fn killed_servers_that_do_not_end_are_cleared_away() {
    if !can_mount() || !is_root() {
        return;
    }
    let (_alone, p) = (alone(), Place::new());
    let image = p.volume("a.img");
    p.mkdir("mnt");
    let config = "[[volume]]\nimage = 'a.img'\nmountpoint = 'mnt'\n";
    for by_serve in [false, true] {
        let mut command = p.command_of(&std::env::current_exe().unwrap());
        command.args(["other_process", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
        let mut child = command.env("HELD_UP_IMAGE", &image).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("held up")));
        child.kill().unwrap();
        std::thread::sleep(Duration::from_millis(500));
        assert!(child.try_wait().unwrap().is_none(), "the kernel lets it end");
        if by_serve {
            let mut service = serve(&p, config, 1);
            signal(service.id(), libc::SIGTERM);
            assert_eq!(ended(&mut service), Some(0));
        } else {
            let said = p.line("umount mnt");
            assert!(said.err.contains("had died"), "{said:?}");
            said.ok();
        }
        assert_eq!(ended(&mut child), None);
        assert!(!p.is_mounted("mnt"));
    }
}

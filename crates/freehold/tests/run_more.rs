//! `freehold run` beside a real mount, where what the kernel thinks counts: files that a program makes longer while it has them mapped, or that both
//! append to, current directories that others move, limits of the size of files, and servers that hang. What programs say and leave is compared with an
//! ordinary directory.
//!
//! Without /dev/fuse, and the mappings without gcc, this is skipped. Growth by other processes is not tested, as nothing is promised for it
//! (docs/SEMANTICS.md).

mod common;

use common::{Place, Said, can_mount, eventually, library};
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mounted volume, and an ordinary directory.
struct Rig {
    p: Place,
    mnt: PathBuf,
    plain: PathBuf,
}

impl Rig {
    fn new() -> Option<Rig> {
        if !can_mount() {
            return None;
        }
        let p = Place::new();
        p.volume("a.img");
        let (mnt, plain) = (p.mkdir("mnt"), p.mkdir("plain"));
        p.line("mount a.img mnt").ok();
        Some(Rig { p, mnt, plain })
    }

    /// Runs a program with the ordinary directory as its last argument, and under `freehold run` with the volume: it says the same, ends in the same way
    /// and leaves the same files.
    #[track_caller]
    fn same(&self, program: &str, args: &[&str]) {
        let mut under = self.p.command();
        under.env("FREEHOLD_PRELOAD", library()).args(["run", "--", program]);
        let runs = [(Command::new(program), &self.plain), (under, &self.mnt)];
        let [want, got] = runs.map(|(mut command, at)| {
            command.args(args).arg(at).env("LC_ALL", "C").current_dir(self.p.path(""));
            let out = command.output().unwrap();
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(at.to_str().unwrap(), "$T");
            (out.status.code(), text(&out.stdout), text(&out.stderr))
        });
        assert_eq!(want, got, "ordinary directory (left) and volume (right) differ");
        let (want, got) = (left(&self.plain), left(&self.mnt));
        let names = |files: &[(PathBuf, Vec<u8>)]| {
            files.iter().map(|(name, bytes)| (name.clone(), bytes.len())).collect::<Vec<_>>()
        };
        assert_eq!(names(&want), names(&got), "what is left differs");
        assert!(want == got, "what is left differs");
    }

    /// Makes a program `a` in C; false when there is no compiler.
    fn compile(&self, source: &str) -> bool {
        std::fs::write(self.p.path("a.c"), source).unwrap();
        if !Command::new("gcc").arg("--version").output().is_ok_and(|out| out.status.success()) {
            println!("skipped: there is no gcc");
            return false;
        }
        let mut gcc = Command::new("gcc");
        gcc.args([
            "-O1",
            "-Werror=implicit-function-declaration",
            "-Werror=int-conversion",
            "-o",
            "a",
            "a.c",
        ]);
        Said::from(gcc.current_dir(self.p.path("")).output().unwrap()).ok();
        true
    }

    #[track_caller]
    fn done(self) {
        self.p.line("umount mnt").ok();
        assert!(self.p.line("fsck a.img").ok().contains("clean"));
    }
}

/// The bytes of each file, by name.
fn left(at: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let paths = std::fs::read_dir(at).unwrap().map(|e| e.unwrap().path());
    let name = |path: &Path| path.strip_prefix(at).unwrap().to_path_buf();
    let mut files: Vec<_> =
        paths.filter(|p| p.is_file()).map(|p| (name(&p), std::fs::read(&p).unwrap())).collect();
    files.sort();
    files
}

#[test]
fn files_grow_while_they_are_mapped() {
    let Some(rig) = Rig::new() else { return };
    if !rig.compile(include_str!("run/mapped.c")) {
        return;
    }
    rig.same("./a", &[]);
    rig.done();
}

#[test]
fn children_of_vfork_leave_their_parents_alone() {
    let Some(rig) = Rig::new() else { return };
    if !rig.compile(include_str!("run/vfork.c")) {
        return;
    }
    for at in [&rig.mnt, &rig.plain] {
        std::fs::write(at.join("in"), "content").unwrap();
    }
    let program = rig.p.path("a");
    for before in ["starts", "names", "looks", "opens", "writes"] {
        let to = if before == "writes" { "> log" } else { "" };
        let script = format!("cd \"$1\" && exec timeout 60 {} {before} \"$1\" {to}", program.display());
        rig.same("sh", &["-c", &script, "sh"]);
    }
    rig.done();
}

/// As programs make memory that their children share.
#[test]
fn files_without_their_names_are_mapped() {
    let Some(rig) = Rig::new() else { return };
    if !Command::new("python3").arg("--version").output().is_ok_and(|o| o.status.success()) {
        return println!("skipped: there is no python3");
    }
    std::fs::write(rig.p.path("a.py"), include_str!("run/nameless.py")).unwrap();
    rig.same("python3", &["a.py"]);
    let space = || rustix::fs::statvfs(&rig.mnt).unwrap().f_bfree;
    let free = space();
    rig.same(
        "python3",
        &["-c", "import os, sys\nfor n in ['new', 'kept', 'hard']: os.unlink(sys.argv[1] + '/' + n)"],
    );
    assert!(space() > free, "what is mapped by nobody any more is given back");
    rig.done();
}

/// The kernel believes the end of the file to be where it was when it last asked: neither the volume nor its pages may have the bytes there.
#[test]
fn appends_through_both_doors() {
    let Some(rig) = Rig::new() else { return };
    let log = rig.mnt.join("log");
    for later in [false, true] {
        std::fs::write(&log, b"").unwrap();
        let flags = if later { 0 } else { libc::O_APPEND };
        let mut here =
            std::fs::File::options().read(true).write(true).custom_flags(flags).open(&log).unwrap();
        if later {
            // SAFETY: an open descriptor.
            assert_eq!(unsafe { libc::fcntl(here.as_raw_fd(), libc::F_SETFL, libc::O_APPEND) }, 0);
        }
        let mut want = Vec::new();
        for round in 0..4u8 {
            let mut there = rig.p.command();
            there.env("FREEHOLD_PRELOAD", library()).args([
                "run",
                "--",
                "bash",
                "-c",
                "printf %083d 0 >> $0",
            ]);
            assert!(there.arg(&log).status().unwrap().success());
            want.extend([b'0'; 83]);
            let bytes = [b'a' + round; 5000];
            here.write_all(&bytes).unwrap();
            want.extend(bytes);
            eventually("the kernel has the same", || std::fs::read(&log).unwrap() == want);
        }
    }
    rig.p.line("umount mnt").ok();
    assert_eq!(rig.p.line("cat a.img:/log").ok().len(), 4 * 5083);
    rig.p.line("mount a.img mnt").ok();
    rig.done();
}

/// Of moved directories the programs that are started there know where they are, too, and so do those below a path that no call can take.
#[test]
fn current_directories_that_move() {
    let Some(rig) = Rig::new() else { return };
    const MOVED: &str = "T=$1; cd $T; mkdir -p a/b/c; cd a/b/c; mv $T/a $T/moved
        /bin/pwd; pwd -P; bash -c 'pwd -P; /bin/pwd'; mkdir -p $T/a/b/c; /bin/pwd; bash -c /bin/pwd; echo x > here; ls $T/moved/b/c $T/a/b/c
        cd ..; mv $T/moved/b $T/up; /bin/pwd; cd c; /bin/pwd; cd $T; rm -r a moved up";
    rig.same("bash", &["-c", MOVED, "bash"]);
    let deep = "cd $1; for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25; do mkdir $(printf %0200d $i); cd -P $(printf %0200d $i) 2> /dev/null || echo no; done; /bin/pwd; bash -c 'echo in > f; ls'; ls";
    rig.same("bash", &["-c", deep, "bash"]);
    // A directory that was open before it was renamed, and has a successor of its name.
    const OPENED: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
int main(int n, char **a) {
    chdir(a[1]); mkdir("p", 0755); int d = open("p", O_RDONLY | O_DIRECTORY); rename("p", "q"); mkdir("p", 0755); printf("%d\n", fchdir(d)); fflush(stdout);
    system("echo x > made; /bin/pwd; ls ../p ../q"); chdir(a[1]); return system("rm -r p q");
}
"#;
    if rig.compile(OPENED) {
        rig.same(rig.p.path("a").to_str().unwrap(), &[]);
    }
    rig.done();
}

/// Also below what the library's own memory of a file has (512 bytes), where the kernel would end the program at its first file, or at the first process that it starts with one.
#[test]
fn limits_of_the_size_of_files() {
    let Some(rig) = Rig::new() else { return };
    const LIMITS: &str = "T=$1; exec 2> /dev/null; seq 100000 > $T/big
        (ulimit -f 8; cat $T/big | wc -c; cat $T/big > $T/small; echo $?; truncate -s 100000 $T/x; echo $?; ls $T; bash -c \"cp $T/big $T/small2\"; echo $?)
        (ulimit -f 1000; cat $T/big $T/big > $T/copy; echo $?; bash -c \"cat $T/big $T/big >> $T/more\"; echo $?
        truncate -s 1024001 $T/x; echo $?; truncate -s 1024000 $T/x; echo $?; fallocate -l 2000000 $T/x; echo $?; truncate -s 5 $T/x
        trap '' XFSZ; dd if=/dev/zero of=$T/dd bs=100000 count=20 status=none; echo $?; dd if=/dev/zero of=$T/dd bs=1 seek=1024000 count=1 status=none; echo $?)
        cat $T/big $T/big $T/big > $T/whole; echo $?; (ulimit -f 1000; exec 5<> $T/whole; echo x >&5; echo $?)
        (exec 5> $T/early; ulimit -f 0; /bin/echo x >&5; echo $?; /bin/true >&5; echo $?; /bin/echo x > $T/none; echo $?); cat $T/early $T/none; ls $T";
    rig.same("bash", &["-c", LIMITS, "bash"]);
    rig.done();
}

/// Nor programs that start after it began to hang. Device numbers are those of the kernel's mounts, whoever asks first.
#[test]
fn a_server_that_hangs_stops_nobody_else() {
    let Some(rig) = Rig::new() else { return };
    let still = rig.p.volume("still.img");
    let at = rig.p.mkdir("still");
    rig.p.line("mount still.img still").ok();
    let server = freehold::mounts::lock_holder(&still).unwrap().pid;
    // When it stands still, what the kernel knows of its directory is out of date. Nothing may be started until then. In the end it goes on in any case.
    let script = "pause() { local end=$((SECONDS + 2)); while [ $SECONDS -lt $end ]; do :; done; }
        echo > $2/f; pause; kill -STOP $1; pause; (pause; pause; pause; pause; pause; kill -CONT $1) & begun=$SECONDS
        stat -c %d $3; [ $((SECONDS - begun)) -lt 8 ] && echo soon; kill -CONT $1; kill $!; stat -c %d $2 $3";
    let mut run = rig.p.command();
    run.env("FREEHOLD_PRELOAD", library()).args(["run", "--", "bash", "-c", script, "bash"]);
    let out = run.arg(server.to_string()).args([&at, &rig.mnt]).output().unwrap();
    let [mnt, still] = [&rig.mnt, &at].map(|dir| std::fs::metadata(dir).unwrap().dev());
    assert_eq!(String::from_utf8_lossy(&out.stdout), format!("{mnt}\nsoon\n{still}\n{mnt}\n"), "{out:?}");
    rig.p.line("umount still").ok();
    rig.done();
}

/// Who follows a log through the mount sees what is appended there, while it is appended.
#[test]
fn a_log_is_followed() {
    const LINES: usize = 4000;
    let Some(rig) = Rig::new() else { return };
    let log = rig.mnt.join("log");
    std::fs::write(&log, b"").unwrap();
    let append = |letter: u8| {
        let mut file = std::fs::File::options().append(true).open(&log).unwrap();
        for n in 0..LINES {
            let mut line = vec![letter; n % 70];
            line.push(b'\n');
            file.write_all(&line).unwrap();
        }
    };
    let whole: usize = (0..LINES).map(|n| n % 70 + 1).sum::<usize>() * 4;
    let mut seen = Vec::new();
    std::thread::scope(|s| {
        (b'a'..=b'd').for_each(|letter| drop(s.spawn(move || append(letter))));
        let mut file = std::fs::File::open(&log).unwrap();
        let mut piece = [0; 3000];
        while seen.len() < whole {
            let n = file.read(&mut piece).unwrap();
            seen.extend_from_slice(&piece[..n]);
        }
    });
    assert!(!seen.contains(&0), "bytes that nobody wrote");
    assert!(seen == std::fs::read(&log).unwrap(), "what was followed is not what is there");
    rig.done();
}

/// A program that is started in a volume and uses nothing of it begins no session; one that does is where it was started.
#[test]
fn sessions_are_begun_by_those_who_need_one() {
    let Some(rig) = Rig::new() else { return };
    std::fs::create_dir(rig.mnt.join("d")).unwrap();
    std::fs::write(rig.mnt.join("d/f"), "content").unwrap();
    let run = |args: &[&str]| {
        let mut command = rig.p.command();
        command
            .env("FREEHOLD_PRELOAD", library())
            .args(["run", "--"])
            .args(args)
            .current_dir(rig.mnt.join("d"));
        let out = command.output().unwrap();
        assert!(out.status.success(), "{out:?}");
        String::from_utf8(out.stdout).unwrap()
    };
    // Sessions are numbered in the order in which they begin.
    let newest = || {
        let held = rig.mnt.join("d/f");
        let mut holds = rig.p.command();
        holds.env("FREEHOLD_PRELOAD", library()).args(["run", "--", "tail", "-f"]).arg(&held);
        let mut holds = holds.stdout(std::process::Stdio::null()).spawn().unwrap();
        let number = || {
            let all: serde_json::Value =
                serde_json::from_str(&rig.p.line("clients --json mnt").ok()).unwrap();
            all.as_array()?.iter().filter_map(|s| s["session"].as_u64()).max()
        };
        eventually("a session", || number().is_some());
        let newest = number().unwrap();
        holds.kill().unwrap();
        holds.wait().unwrap();
        eventually("its end", || number().is_none());
        newest
    };
    // `freehold run` connects as well, to see whether sessions are offered.
    let (first, before) = (newest(), newest());
    let usual = before - first;
    for _ in 0..5 {
        run(&["true"]);
        assert_eq!(run(&["echo", "said"]), "said\n");
    }
    assert_eq!(newest() - before, 10 * (usual - 1) + usual);
    assert_eq!(run(&["cat", "f"]), "content");
    assert_eq!(run(&["sh", "-c", "cat ../d/f; cd ..; ls -d d"]), "contentd\n");
    assert_eq!(run(&["pwd", "-P"]).trim_end(), rig.mnt.join("d").to_str().unwrap());
    rig.done();
}

/// What a process sees from another root directory is what is there, also by a path that led to the mount before, and nothing of what is above.
#[test]
fn other_root_directories() {
    let Some(rig) = Rig::new().filter(|_| common::is_root()) else { return };
    if !Command::new("python3").arg("--version").output().is_ok_and(|o| o.status.success()) {
        return println!("skipped: there is no python3");
    }
    let script = r#"
import os, sys
t = sys.argv[1]
def say(*paths): print([(p, os.path.exists(p), sorted(os.listdir(p)) if os.path.isdir(p) else None) for p in paths], os.getcwd())
os.makedirs(t + '/jail/d'); open(t + '/secret', 'w').write('s'); f = open(t + '/jail/f', 'w+')
def inside(*how):
    pid = os.fork()
    if pid: return print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    try:
        for step in how: step()
        say('/', '.', '/f', '/secret', t, t + '/secret', '../secret', '/../secret', 'secret')
        open('/new', 'a').write('n'); f.write('x'); f.flush(); print(open('/new').read(), open('/f').read())
        os.makedirs(t); open(t + '/secret', 'w').write('other'); say(t, t + '/secret'); os.remove(t + '/secret'); os.removedirs(t)
    except OSError as e: print(e)
    sys.stdout.flush(); os._exit(0)
sys.stdout.flush()
os.chdir(t); os.listdir(t)
inside(lambda: os.chroot(t + '/jail'), lambda: os.chdir('/'))
inside(lambda: os.chdir('jail'), lambda: os.chroot('.'))
inside(lambda: os.chroot(t + '/none'))
say(t, 'secret')
"#;
    std::fs::write(rig.p.path("a.py"), script).unwrap();
    rig.same("python3", &["a.py"]);
    rig.done();
}

/// What sessions are refused changes nothing for programs that use the mount: who stands in a directory still does, and what is open has its name.
#[test]
fn refused_changes_are_not_told() {
    let Some(rig) = Rig::new() else { return };
    let dir = rig.mnt.join("d");
    std::fs::create_dir_all(dir.join("sub")).unwrap();
    let path = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let file = std::fs::File::create(path("f")).unwrap();
    let mut shell = Command::new("bash");
    // Does without what pwd(1) does when the kernel does not know.
    const ASKS: &str = "while read line; do readlink /proc/self/cwd; done";
    shell
        .args(["-c", ASKS])
        .current_dir(&dir)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped());
    let mut shell = shell.spawn().unwrap();
    let calls = format!(
        "import os\ndef tries(f, *a):\n    try: f(*a)\n    except OSError: return\n    assert False, f\n\
         for f, *a in [(os.mkdir, '{d}'), (os.unlink, '{d}'), (os.rmdir, '{d}'), (os.rename, '{f}', '{d}'), (os.rename, '{d}', '{d}/sub/x'), (os.symlink, 'x', '{d}'), (os.link, '{f}', '{d}'), \
         (os.open, '{d}', os.O_CREAT | os.O_EXCL), (os.mkdir, '{f}')]: tries(f, *a)\nopen('{f}', 'a').close()",
        d = dir.display(),
        f = path("f"),
    );
    let mut under = rig.p.command();
    let done = under
        .env("FREEHOLD_PRELOAD", library())
        .args(["run", "--", "python3", "-c", &calls])
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    shell.stdin.take().unwrap().write_all(b"\n").unwrap();
    let mut said = String::new();
    shell.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    shell.wait().unwrap();
    assert_eq!(said.trim_end(), dir.canonicalize().unwrap().to_str().unwrap());
    let name = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    assert_eq!(name, dir.canonicalize().unwrap().join("f"));
    drop(file);
    rig.done();
}

/// What is ignored and blocked stays so, as services and `trap '' PIPE` want it.
#[test]
fn signals_are_left_as_they_were() {
    let Some(rig) = Rig::new() else { return };
    let signals = |run: &[&OsStr]| {
        let mut command = rig.p.command_of(Path::new("env"));
        command.env("FREEHOLD_PRELOAD", library()).args(["--ignore-signal=PIPE", "--block-signal=USR1"]);
        let out =
            command.args(run).args(["grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"]).output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    };
    let want = signals(&[]);
    assert_eq!(want.lines().filter(|l| !l.ends_with("0000000000000000")).count(), 2, "{want}");
    assert_eq!(signals(&[env!("CARGO_BIN_EXE_freehold"), "run", "--"].map(OsStr::new)), want);
}

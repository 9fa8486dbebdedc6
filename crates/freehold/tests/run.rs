//! `freehold run`: real programs in sessions, beside a real mount. What they print, how they end and what they leave is compared with an
//! ordinary directory, and both ways into the volume with each other. Without /dev/fuse each test only says that it was skipped.
//!
//! Programs and calls one by one are tested in `crates/preload/tests`, the kernel's caches beside sessions in `mount.rs`.

mod common;

use common::{Place, Said, can_mount, is_root, library};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// A mounted volume, and an ordinary directory.
struct Rig {
    p: Place,
    mnt: PathBuf,
    plain: PathBuf,
}

impl Rig {
    fn new(options: &str) -> Rig {
        let p = Place::new();
        p.volume("a.img");
        let (mnt, plain) = (p.mkdir("mnt"), p.mkdir("plain"));
        p.line(&format!("mount a.img mnt --log log {options}")).ok();
        p.mkdir("work");
        Rig { p, mnt, plain }
    }

    fn command(&self) -> Command {
        let mut command = self.p.command();
        command.env("FREEHOLD_PRELOAD", library()).env("LC_ALL", "C").env("TZ", "UTC").stdin(Stdio::null());
        command
    }

    /// A script of bash under `freehold run`.
    fn bash(&self, script: &str) -> Said {
        self.command().args(["run", "--", "timeout", "120", "bash", "-c", script]).output().unwrap().into()
    }

    /// Makes the program `a` of this source, in `work`. False without gcc, or without one of the libraries.
    fn compiles(&self, source: &str, libraries: &[&str]) -> bool {
        if !has("gcc") {
            return false;
        }
        let work = self.p.path("work");
        let gcc = |source: &str| -> Said {
            std::fs::write(work.join("a.c"), source).unwrap();
            let mut gcc = Command::new("gcc");
            // Newer compilers take neither of these anyway.
            gcc.args(["-O1", "-Werror=implicit-function-declaration", "-Werror=int-conversion"]);
            gcc.args(["-o", "a", "a.c"]).args(libraries.iter().map(|l| format!("-l{l}")));
            gcc.current_dir(&work).output().unwrap().into()
        };
        if gcc("int main(void) { return 0; }").code != Some(0) {
            println!("skipped: there are not all of {libraries:?}");
            return false;
        }
        gcc(source).ok();
        true
    }

    /// Runs a script under `freehold run` in the volume and without it in the ordinary directory. What it says and how it ends must be the same, and
    /// what it leaves, as the kernel sees it.
    #[track_caller]
    fn same(&self, script: &str) {
        const LEFT: &str = "cd \"$T\" && find . ! -type d -printf '%P %y %m %s %n %l\\n' -o -printf '%P %y %m\\n' | sort && find . -type f -print0 | sort -z | xargs -0r sha256sum";
        let run = |under: bool, script: &str, at: &Path| {
            let words: &[&str] = if under { &["run", "--"] } else { &[] };
            let mut command = if under { self.command() } else { Command::new("timeout") };
            if under {
                command.args(words).arg("timeout");
            }
            command.args(["120", "bash", "-c", script]).env("T", at).env("LC_ALL", "C").env("TZ", "UTC");
            let out = command.current_dir(self.p.path("work")).stdin(Stdio::null()).output().unwrap();
            let place = at.to_str().unwrap();
            let said = Said::from(out);
            (said.code, said.out.replace(place, "$T"), said.err.replace(place, "$T"))
        };
        let (want, got) = (run(false, script, &self.plain), run(true, script, &self.mnt));
        assert_eq!(want, got, "ordinary directory (left) and volume (right) differ for: {script}");
        assert_eq!(
            run(false, LEFT, &self.plain),
            run(false, LEFT, &self.mnt),
            "what is left differs for: {script}"
        );
    }

    #[track_caller]
    fn done(self) {
        self.p.line("umount mnt").ok();
        assert!(self.p.line("fsck a.img").ok().contains("clean"));
        let left: Vec<_> = std::fs::read_dir(self.p.path("run")).into_iter().flatten().flatten().collect();
        assert!(left.is_empty(), "{left:?}");
        let log = std::fs::read_to_string(self.p.path("log")).unwrap();
        let is_bad =
            |l: &str| (l.contains("WARN") || l.contains("ERROR")) && !l.contains("a client was refused");
        assert!(!log.lines().any(is_bad), "{log}");
    }
}

fn has(program: &str) -> bool {
    let ok = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let ok = ok.is_ok_and(|s| s.success());
    if !ok {
        println!("skipped: there is no {program}");
    }
    ok
}

#[test]
fn programs_as_in_an_ordinary_directory() {
    if !can_mount() {
        return;
    }
    let rig = Rig::new("");
    for script in [
        "mkdir -p $T/a/b/c && ls -R $T/a; mkdir $T/a; seq 1 20000 > $T/n; wc $T/n; sha256sum < $T/n; sort -rn $T/n | head -n 2",
        "cp $T/n $T/m && cmp $T/n $T/m; mv $T/m $T/a/m; ln -s a/b $T/s; ln $T/n $T/n2; stat -c '%h %s %a %F' $T/n $T/s; chmod 640 $T/n2; ls -l $T/n | cut -c1-10",
        "dd if=/dev/zero of=$T/z bs=4096 count=100 2>/dev/null; dd if=$T/n of=$T/z bs=10 seek=3 count=2 conv=notrunc 2>/dev/null; truncate -s 12345 $T/t; touch -d '2001-02-03 04:05:06' $T/t; stat -c '%y %s' $T/t",
        "cp -r $T/a $T/copy; rm -r $T/a; find $T | sort; cat $T/none; echo $?; ls $T/none; rmdir $T/copy",
        "cat $T/n | grep 7 | tee $T/sevens | tail -n 1; (echo a; seq 3) > $T/g; echo b >> $T/g; cat < $T/g; exec 3> $T/h; echo x >&3; seq 2 >&3; exec 3>&-; cat $T/h",
        "cd $T && echo here > rel && ls && pwd && (cd copy && pwd -P && cat ../rel); mkfifo -m 600 $T/fifo; (echo through > $T/fifo &) ; cat $T/fifo",
        "set -o pipefail; yes | head -n 100000 > $T/yes; wc -c < $T/yes; head -c 1000000 /dev/zero | sha256sum; cat $T/yes | false; echo ${PIPESTATUS[*]}; sed -i s/y/no/ $T/yes; wc -c $T/yes; rm $T/yes",
        "mkdir -p $T/d/e; seq 1000 > $T/d/x; ln -s x $T/d/l; ln $T/d/x $T/d/hard; cp /etc/passwd $T/d/e; tar cf $T/t.tar --mtime=@0 -C $T d; tar tf $T/t.tar | sort; mkdir $T/un; tar xf $T/t.tar -C $T/un; diff -r $T/d $T/un/d && echo same; tar czf - -C $T d | tar tzf - | wc -l; rm $T/t.tar",
        // Programs in the volume are started by the kernel, through the mount.
        "printf '#!/bin/sh\\necho script \"$@\"\\n' > $T/prog; chmod +x $T/prog; $T/prog 1 2; cp /bin/true $T/true; $T/true; echo $?",
    ] {
        rig.same(script);
    }
    if has("sqlite3") {
        rig.same("sqlite3 $T/db 'create table t(a,b); insert into t values(1,2),(3,4); select * from t;'; sqlite3 $T/db 'begin; update t set b=b+1; commit; select sum(b) from t; pragma integrity_check'");
        // With its shared memory, which is mapped.
        rig.same("sqlite3 $T/wal 'pragma journal_mode=wal; create table t(a); insert into t values(7); select * from t;'; sqlite3 $T/wal 'insert into t select a+1 from t; select * from t; pragma integrity_check'; rm -f $T/wal*");
    }
    if has("python3") {
        rig.same("mkdir $T/py; cd $T/py; cat > m.py <<'X'\nimport os, sys, shutil, json\ndef f(t):\n    os.makedirs(t + '/p/q'); json.dump(list(range(100)), open(t + '/p/j', 'w')); shutil.copytree(t + '/p', t + '/r')\n    print(sorted((r[len(t):], sorted(d), sorted(f)) for r, d, f in os.walk(t)), json.load(open(t + '/r/j'))[-1])\nX\nPYTHONDONTWRITEBYTECODE=1 python3 -c \"import m, os; m.f(os.getcwd())\"; echo $?");
    }
    if has("gcc") {
        rig.same("mkdir $T/c; cd $T/c; printf '#include <stdio.h>\\n#include \"v.h\"\\nint main(void){puts(V);return 3;}\\n' > m.c; echo '#define V \"compiled\"' > v.h; gcc -O1 -o prog m.c && ./prog; echo $?; gcc -c m.c && ar rc l.a m.o && ar t l.a; rm prog m.o l.a");
    }
    rig.done();
}

/// A shell under `freehold run` that lives on, with descriptors and whatever else it keeps.
struct Shell {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Shell {
    fn new(rig: &Rig) -> Shell {
        let mut command = rig.command();
        command
            .args(["run", "bash", "--norc"])
            .env("T", &rig.mnt)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Shell { child, to, from }
    }

    /// What a command says, without the last end of line.
    fn say(&mut self, command: &str) -> String {
        writeln!(self.to, "{command}\necho; echo =end=").unwrap();
        let mut said = String::new();
        loop {
            let begin = said.len();
            assert!(self.from.read_line(&mut said).unwrap() > 0, "the shell ended: {said}");
            if &said[begin..] == "=end=\n" {
                said.truncate(begin);
                return said.trim_end().to_string();
            }
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn both_ways_into_the_volume_agree() {
    if !can_mount() {
        return;
    }
    let rig = Rig::new("");
    let mnt = &rig.mnt;
    let mut shell = Shell::new(&rig);
    for round in 0..10u32 {
        let f = mnt.join(format!("f{round}"));
        let name = format!("$T/f{round}");
        // Known to both: that it is not there.
        assert!(!f.exists());
        assert_eq!(shell.say(&format!("[ -e {name} ] || echo none")), "none");
        // Written there, read here, while it stays open there.
        shell.say(&format!("exec 5<> {name}; echo one >&5"));
        assert_eq!(std::fs::read_to_string(&f).unwrap(), "one\n");
        shell.say("echo two >&5");
        assert_eq!(
            (std::fs::read_to_string(&f).unwrap().as_str(), f.metadata().unwrap().len()),
            ("one\ntwo\n", 8)
        );
        // Written here, read there, through the open descriptor and by another program.
        std::fs::OpenOptions::new().append(true).open(&f).unwrap().write_all(b"three\n").unwrap();
        assert_eq!(shell.say("read l <&5; echo $l"), "three");
        assert_eq!(shell.say(&format!("cat {name}; stat -c %s {name}")), "one\ntwo\nthree\n14");
        std::fs::write(&f, b"x\n").unwrap();
        assert_eq!(shell.say(&format!("cat {name}; stat -c %s {name}")), "x\n2");
        // Times, modes, sizes.
        shell.say(&format!(
            "touch -d @{} {name}; chmod 604 {name}; truncate -s 5000 {name}",
            1_000_000 + round
        ));
        let m = f.metadata().unwrap();
        assert_eq!((m.len(), m.mode() & 0o777), (5000, 0o604));
        shell.say(&format!("touch -d @{} {name}", 1_000_000 + round));
        assert_eq!(f.metadata().unwrap().mtime(), i64::from(1_000_000 + round));
        let file = std::fs::File::options().write(true).open(&f).unwrap();
        file.set_len(77).unwrap();
        let time = std::time::UNIX_EPOCH + Duration::from_secs(2_000_000 + u64::from(round));
        file.set_times(std::fs::FileTimes::new().set_modified(time)).unwrap();
        std::fs::set_permissions(&f, PermissionsExt::from_mode(0o640)).unwrap();
        let (ino, dev) = (f.metadata().unwrap().ino(), f.metadata().unwrap().dev());
        let want = format!("77 640 1 {ino} {dev} {}", 2_000_000 + round);
        assert_eq!(shell.say(&format!("stat -c '%s %a %h %i %d %Y' {name}")), want);
        // Names.
        shell.say(&format!("mv {name} $T/moved; mkdir -p $T/d; ln $T/moved $T/d/hard"));
        assert!(!f.exists() && mnt.join("moved").metadata().unwrap().nlink() == 2);
        std::fs::rename(mnt.join("moved"), mnt.join("back")).unwrap();
        assert_eq!(
            shell.say("ls $T/moved 2>/dev/null; stat -c %h $T/back; echo $T/*"),
            format!("2\n{0}/back {0}/d", mnt.display())
        );
        std::fs::remove_file(mnt.join("back")).unwrap();
        assert_eq!(shell.say("ls $T; ls $T/d; stat -c %h $T/d/hard"), "d\nhard\n1");
        shell.say("rm -r $T/d");
        assert!(!mnt.join("d/hard").exists() && std::fs::read_dir(mnt).unwrap().next().is_none());
        // The file lives on where it is open.
        assert_eq!(shell.say("echo more >&5 && exec 5>&- && echo ok"), "ok");
    }
    // Locks.
    std::fs::write(mnt.join("lock"), "").unwrap();
    let file = std::fs::File::open(mnt.join("lock")).unwrap();
    file.lock().unwrap();
    assert_eq!(shell.say("flock -n $T/lock true || echo held"), "held");
    drop(file);
    assert_eq!(shell.say("flock -n $T/lock echo free"), "free");
    // A program locks what its parent has open.
    assert_eq!(
        shell.say("exec 6< $T/lock; flock -n 6 && echo mine; flock -n $T/lock true || echo held"),
        "mine\nheld"
    );
    let file = std::fs::File::open(mnt.join("lock")).unwrap();
    assert!(file.try_lock().is_err(), "nor through the mount");
    assert_eq!(shell.say("exec 6<&-; flock -n $T/lock echo free"), "free");
    // The manager hears of the end of a process a little later than its parent.
    common::eventually("the lock of a program that has ended is free", || file.try_lock().is_ok());
    drop((file, shell));
    rig.done();
}

#[test]
fn mappings_that_are_shared_and_written() {
    if !can_mount() || !has("python3") {
        return;
    }
    let rig = Rig::new("");
    let script = r#"
import mmap, os, subprocess, sys
f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
os.write(f, b'a' * 20000)
m = mmap.mmap(f, 20000, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
assert m[:3] == b'aaa'
m[5000:5006] = b'mapped'
m.flush()
print(os.pread(f, 6, 5000))
print(subprocess.run(['dd', 'if=' + sys.argv[1], 'bs=1', 'skip=5000', 'count=6', 'status=none'], capture_output=True).stdout)
os.pwrite(f, b'written', 12000)
print(m[12000:12007])
subprocess.run(['dd', 'of=' + sys.argv[1], 'bs=1', 'seek=100', 'conv=notrunc', 'status=none'], input=b'by another')
print(m[100:110])
m.close()
os.close(f)
"#;
    std::fs::write(rig.p.path("map.py"), script).unwrap();
    rig.same("python3 ../map.py $T/map");
    let bytes = std::fs::read(rig.mnt.join("map")).unwrap();
    assert_eq!((&bytes[5000..5006], &bytes[12000..12007]), (&b"mapped"[..], &b"written"[..]));
    rig.done();
}

#[test]
fn what_is_found_and_how_it_ends() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    p.volume("a.img");
    let (mnt, other) = (p.mkdir("mnt"), p.mkdir("other"));
    let run = |line: &str| -> Said {
        p.command().env("FREEHOLD_PRELOAD", library()).args(line.split(' ')).output().unwrap().into()
    };
    let listed = |at: &Path| {
        let text = run("run --list").ok();
        text.lines().find(|l| l.starts_with(&format!("{} ", at.display()))).map(str::to_string)
    };
    // Nothing of ours is served. Others on this machine may have mounts; this place has no sockets of theirs.
    run("run -- true").fails(&["volume", "mount"]);
    assert_eq!(listed(&mnt), None);
    assert_eq!(run("run").code, Some(2));
    p.line("mount a.img mnt -o noshare").ok();
    run("run -- true").fails(&["none of the mounted volumes", "offers no sessions"]);
    assert!(listed(&mnt).unwrap().contains("none: its server offers no sessions"));
    p.line("umount mnt").ok();
    // The usual place, and a named socket with a link from there.
    for options in ["", "-o share", "-o share=/SOCKET"] {
        let socket = p.path("named");
        p.line(&format!("mount a.img mnt {}", options.replace("/SOCKET", socket.to_str().unwrap()))).ok();
        let line = listed(&mnt).unwrap();
        assert!(line.contains("run/0-") && line.contains("a.img"), "{line}");
        assert_eq!(options.contains('='), socket.exists());
        let missing = p.command().env("FREEHOLD_PRELOAD", "/nowhere.so").args(["run", "true"]).output();
        Said::from(missing.unwrap()).fails(&["there is no file /nowhere.so"]);
        assert_eq!(run("run -- true").code, Some(0));
        assert_eq!(run("run false").code, Some(1));
        assert_eq!(run("run -- no-such-program").code, Some(127));
        assert_eq!(run("run -- /etc").code, Some(126));
        let killed = p
            .command()
            .env("FREEHOLD_PRELOAD", library())
            .args(["run", "sh", "-c", "kill -USR1 $$"])
            .status();
        assert_eq!(killed.unwrap().signal(), Some(libc::SIGUSR1));
        // It is set, once, however often.
        let env = run("run -- env").ok();
        assert!(env.lines().any(|l| l.starts_with(&format!("FREEHOLD_MOUNTS={}=", mnt.display()))), "{env}");
        let freehold = env!("CARGO_BIN_EXE_freehold");
        let twice = run(&format!("run -- {freehold} run env")).ok();
        let preload = |text: &str| text.lines().find(|l| l.starts_with("LD_PRELOAD")).map(str::to_string);
        assert_eq!(preload(&env), preload(&twice));
        p.line("umount mnt").ok();
        assert_eq!((listed(&mnt), std::fs::read_dir(p.path("run")).unwrap().count()), (None, 0));
    }
    // What is mounted below a volume is not the volume's.
    p.line("mount a.img mnt").ok();
    std::fs::create_dir(mnt.join("inner")).unwrap();
    p.volume("b.img");
    p.line("mount b.img mnt/inner -o noshare").ok();
    let inner = mnt.join("inner/f");
    assert_eq!(run(&format!("run -- touch {}", inner.display())).code, Some(0));
    assert!(inner.exists());
    let script = "cd mnt && ln -s inner/f link && echo 1 > inner/g && echo 2 >> link && cat inner/g inner/f && cd inner && ls && ls .. && rm f g && rm ../link; rmdir ../inner 2> /dev/null || echo busy";
    let said: Said = p
        .command()
        .env("FREEHOLD_PRELOAD", library())
        .args(["run", "sh", "-c", script])
        .output()
        .unwrap()
        .into();
    assert_eq!(said.ok(), "1\n2\nf\ng\ninner\nlink\nbusy\n");
    std::fs::write(&inner, "").unwrap();
    p.line("umount mnt/inner").ok();
    assert!(!inner.exists());
    // A server that was killed leaves a socket: it is passed over, and goes with the next mount or list.
    let server = freehold::mounts::lock_holder(&p.path("a.img")).unwrap().pid;
    // SAFETY: kill has no memory preconditions; pid is a server that this test started.
    assert_eq!(unsafe { libc::kill(server as i32, libc::SIGKILL) }, 0);
    common::eventually("the server is gone", || freehold::mounts::lock_holder(&p.path("a.img")).is_none());
    common::eventually("its socket is dead", || listed(&mnt).is_some_and(|l| l.contains("does not answer")));
    // And the name of its mount point.
    assert_eq!(std::fs::read_dir(p.path("run")).unwrap().count(), 2);
    p.line("umount mnt").ok();
    assert_eq!(listed(&mnt), None);
    assert_eq!(std::fs::read_dir(p.path("run")).unwrap().count(), 0);
    // A read-only mount is left to the kernel.
    p.line("mount a.img other -o ro").ok();
    assert!(listed(&other).unwrap().contains("read-only"));
    p.line("umount other").ok();
}

/// Has the kernel write and read a page of a file by liburing and by libaio: what was opened by then is read by calls, too.
const ASYNCHRONOUS: &str = include_str!("run/rings.c");

#[test]
fn the_kernel_reads_and_writes_for_a_program() {
    if !can_mount() || !has("gcc") {
        return;
    }
    let rig = Rig::new("");
    if !rig.compiles(ASYNCHRONOUS, &["uring", "aio"]) {
        return;
    }
    rig.same("./a $T/f; echo $?; head -c 6 $T/f; wc -c < $T/f");
    rig.done();
}

/// Makes a ring by syscall(2), beside threads that open, copy and close files, and has it read and write what was open before.
const OWN_RING: &str = include_str!("run/own_ring.c");

#[test]
fn the_kernel_gets_files_that_are_open() {
    if !can_mount() || !has("gcc") || cfg!(not(target_arch = "x86_64")) {
        return;
    }
    let rig = Rig::new("");
    if !rig.compiles(OWN_RING, &["pthread"]) {
        return;
    }
    for _ in 0..5 {
        rig.same("./a $T/f; echo $?; cat $T/f; rm $T/f*");
    }
    rig.done();
}

/// Requests of libaio for a file of the volume and for one of the kernel's, in one context.
const REQUESTS: &str = include_str!("run/requests.c");

#[test]
fn requests_of_libaio() {
    if !can_mount() || !has("gcc") {
        return;
    }
    let rig = Rig::new("");
    if !rig.compiles(REQUESTS, &["aio", "pthread"]) {
        return;
    }
    rig.same("./a $T/f ./other; echo $?; sha256sum < ./other");
    let said = rig.bash(&format!("./work/a {}/g ./work/other", rig.mnt.display()));
    assert!(said.code == Some(0) && !said.out.contains("wrong"), "{said:?}");
    rig.done();
}

#[test]
fn other_users() {
    if !can_mount() || !is_root() || !has("setpriv") {
        return;
    }
    for (options, may) in [("-o allow_other", true), ("-o noallow_other", false)] {
        let rig = Rig::new(options);
        for dir in [rig.p.path(""), rig.mnt.clone()] {
            std::fs::set_permissions(dir, PermissionsExt::from_mode(0o755)).unwrap_or_default();
        }
        std::fs::create_dir(rig.mnt.join("theirs")).unwrap();
        std::os::unix::fs::chown(rig.mnt.join("theirs"), Some(12345), Some(12345)).unwrap();
        std::fs::write(rig.mnt.join("secret"), "secret").unwrap();
        std::fs::set_permissions(rig.mnt.join("secret"), PermissionsExt::from_mode(0o600)).unwrap();
        // What cargo built may lie where others cannot go.
        for (from, to) in [
            (PathBuf::from(env!("CARGO_BIN_EXE_freehold")), "freehold"),
            (library(), "libfreehold_preload.so"),
        ] {
            std::fs::copy(from, rig.p.path(to)).unwrap();
        }
        let theirs = |script: &str| -> Said {
            let mut command = Command::new("setpriv");
            command
                .args(["--reuid", "12345", "--regid", "12345", "--clear-groups"])
                .arg(rig.p.path("freehold"));
            command
                .env("FREEHOLD_RUN_DIR", rig.p.path("run"))
                .env("T", &rig.mnt)
                .env_remove("FREEHOLD_PRELOAD");
            command.args(["run", "sh", "-c", script]).current_dir("/").output().unwrap().into()
        };
        let said =
            theirs("echo x > $T/theirs/f && stat -c '%u %s' $T/theirs/f; cat $T/secret; echo no > $T/new");
        if may {
            assert_eq!(said.out, "12345 2\n", "{said:?}");
            assert_eq!(said.err.matches("ermission denied").count(), 2, "{said:?}");
            assert_eq!(std::fs::metadata(rig.mnt.join("theirs/f")).unwrap().uid(), 12345);
        } else {
            said.fails(&["for another user alone"]);
        }
        rig.done();
    }
}

/// Whoever may write to a directory can put a socket of his own where a server's was.
#[test]
fn no_socket_is_taken_from_a_directory_of_others() {
    if !can_mount() {
        return;
    }
    let rig = Rig::new("");
    let dir = rig.p.path("run");
    let offered = || {
        let said = rig.p.line("run --list").ok();
        let place = rig.mnt.to_str().unwrap();
        let line = said.lines().find(|l| l.starts_with(place)).expect("it is mounted").to_string();
        assert!(line.contains(".sock") != line.contains("none: its server offers no sessions"), "{line}");
        line.contains(".sock")
    };
    let mode = |bits| std::fs::set_permissions(&dir, PermissionsExt::from_mode(bits)).unwrap();
    for bits in [0o777, 0o1777, 0o775, 0o770, 0o757, 0o702] {
        mode(bits);
        assert!(!offered(), "mode {bits:o}");
        let mut run = rig.command();
        Said::from(run.args(["run", "true"]).output().unwrap()).fails(&["offers no sessions"]);
        mode(0o755);
        assert!(offered(), "after mode {bits:o}");
    }
    if is_root() {
        std::os::unix::fs::chown(&dir, Some(12345), None).unwrap();
        assert!(!offered(), "it is somebody else's");
        std::os::unix::fs::chown(&dir, Some(0), None).unwrap();
        assert!(offered());
    }
    rig.done();
}

#[test]
fn starting_a_program_costs_little() {
    if !can_mount() {
        return;
    }
    let rig = Rig::new("");
    let of = |command: &mut dyn FnMut() -> Command| {
        let mut times: Vec<Duration> = (0..25)
            .map(|_| {
                let begun = Instant::now();
                assert!(command().status().unwrap().success());
                begun.elapsed()
            })
            .collect();
        times.sort();
        // Others use the machine too: the fastest says what it costs.
        times[0]
    };
    let plain = of(&mut || Command::new("/bin/true"));
    let under = of(&mut || {
        let mut command = rig.command();
        command.args(["run", "/bin/true"]);
        command
    });
    // As its children are started, without the search.
    let env = rig.bash("env").ok();
    let child = of(&mut || {
        let mut command = Command::new("/bin/true");
        let set = env.lines().filter_map(|l| l.split_once('='));
        command.envs(set.filter(|(k, _)| matches!(*k, "FREEHOLD_MOUNTS" | "LD_PRELOAD")));
        command
    });
    println!("/bin/true: plain {plain:?}, under freehold run {under:?}, as its child {child:?}");
    assert!(under < plain + Duration::from_millis(20), "plain {plain:?}, under freehold run {under:?}");
    rig.done();
}

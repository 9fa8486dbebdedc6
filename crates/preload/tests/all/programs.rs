//! Real programs under the library, compared with the same programs in an ordinary directory.
//!
//! The volume has no mount in the kernel, so whatever goes past the library is seen as a missing file. Verifies what programs print and how they
//! end; does not verify speed, mappings that are shared and written, or the FUSE mount beside it.

use crate::rig::{MOUNT, Rig};

#[test]
fn the_kernel_knows_nothing_of_the_volume() {
    assert!(!std::path::Path::new(MOUNT).exists());
    let rig = Rig::new();
    let out = rig.bash("echo hello > $T/f && cat $T/f && wc -c < $T/f", MOUNT.as_ref());
    assert_eq!(String::from_utf8_lossy(&out.stdout), "hello\n6\n", "{out:?}");
    assert!(!std::path::Path::new(MOUNT).exists());
    assert!(rig.server.counters().calls > 5);
}

#[test]
fn coreutils() {
    let rig = Rig::new();
    for script in [
        "mkdir -p $T/a/b/c && ls -R $T/a; mkdir $T/a; echo $?; rmdir $T/a; echo $?",
        "seq 1 20000 > $T/n; wc $T/n; head -n 3 $T/n; tail -n 2 $T/n; sha256sum < $T/n; sort -rn $T/n | head -n 2",
        "cp $T/n $T/m && cmp $T/n $T/m && stat -c '%s %a %F %h' $T/m; cp /etc/hostname $T/h; cp $T/h h2; cmp h2 /etc/hostname",
        "dd if=/dev/zero of=$T/z bs=4096 count=100 2>/dev/null; stat -c %s $T/z; dd if=$T/n of=$T/z bs=10 seek=3 count=2 conv=notrunc 2>/dev/null; sha256sum < $T/z",
        "mv $T/m $T/a/m; ls $T/a; mv $T/a/m $T/a/b; ls $T/a $T/a/b; mv $T/none $T/x; echo $?",
        "ln -s a/b $T/s; readlink $T/s; ls $T/s/; ln $T/n $T/n2; stat -c %h $T/n; ln -s /etc/hostname $T/out; cmp $T/out /etc/hostname; ls -l $T/s | cut -c1-10",
        "touch -d '2001-02-03 04:05:06' $T/t; stat -c '%y' $T/t; chmod 640 $T/t; ls -l $T/t | cut -c1-10; truncate -s 12345 $T/t; stat -c %s $T/t",
        "cat $T/none; echo $?; cat $T/n/x; echo $?; cat $T/a; echo $?; ls $T/none; echo $?",
        "cp -r $T/a $T/copy; find $T/copy | sort; rm -r $T/copy; ls $T/copy; rm -rf $T/a; ls $T",
        "split -l 7000 $T/n $T/part.; ls $T; cat $T/part.* | cmp - $T/n; tee $T/tee < $T/n | tail -n 1; comm -3 $T/tee $T/n; paste $T/h $T/h | wc -l",
        "cp $T/h h2; mv h2 $T/h3 && cmp $T/h3 /etc/hostname; mv $T/h3 h4; ls $T/h3; cmp h4 /etc/hostname; install -m 700 $T/n $T/inst; stat -c %a $T/inst; rm h4",
        "realpath $T/./a/../n $T/s; mktemp -p $T x.XXXXXX | wc -l; du -s --apparent-size $T/n2 | cut -f1; df $T > /dev/null; echo $?",
    ] {
        rig.same(script);
    }
}

#[test]
fn redirections() {
    let rig = Rig::new();
    for script in [
        "echo one > $T/f; echo two >> $T/f; cat $T/f; cat < $T/f",
        "(echo a; cat $T/f; echo b; seq 3; echo c) > $T/g; cat $T/g",
        "exec 3> $T/h; echo x >&3; seq 2 >&3; echo y >&3; exec 3>&-; cat $T/h",
        "exec 4< $T/h; read a <&4; echo $a; read b <&4; echo $b; cat <&4; exec 4<&-",
        "while read l; do echo \"<$l>\"; done < $T/g; ls $T/none 2> $T/err; wc -l < $T/err",
        "for i in 1 2 3; do echo $i; (exec sh -c 'echo in $0' $i); done > $T/loop; cat $T/loop; set -C; echo no > $T/loop; echo $?",
        "{ echo first; python3 -c 'print(\"second\")'; echo third; } > $T/mix 2>&1; cat $T/mix",
        "cat > $T/doc <<X\nline $((1+1))\nX\ncat $T/doc; [ -f $T/doc ] && [ ! -d $T/doc ] && [ -s $T/doc ] && echo yes; echo $T/*",
        "mkdir $T/cd; cd $T/cd && echo in > x && cat x && pwd -P && (cd .. && ls cd/x) && sh -c 'cat x; cd /; ls x' ; (cd /; cat x); python3 -c 'import os, subprocess; print(os.getcwd() == os.environ[\"PWD\"]); subprocess.run([\"cat\", \"x\"]); subprocess.run([\"pwd\"], cwd=\"/etc\")'",
        "cd $T && echo here > rel && echo * && pwd && [ -e ./rel ] && cd .. && [ ! -e rel ] && echo out",
    ] {
        rig.same(script);
    }
}

#[test]
fn archives_and_databases() {
    let rig = Rig::new();
    for script in [
        "mkdir -p $T/d/e; seq 1000 > $T/d/x; ln -s x $T/d/l; ln $T/d/x $T/d/hard; cp /etc/hostname $T/d/e; tar cf $T/t.tar -C $T d; tar tf $T/t.tar | sort",
        "mkdir $T/un; tar xf $T/t.tar -C $T/un; diff -r $T/d $T/un/d && echo same; tar czf - -C $T d | tar tzf - | wc -l; gzip -k $T/t.tar; zcat $T/t.tar.gz | cmp - $T/t.tar; grep -c 9 $T/d/x; sed -i s/1/one/ $T/d/x; head -n 2 $T/d/x",
        "sqlite3 $T/db 'create table t(a,b); insert into t values(1,2),(3,4); select * from t;'; sqlite3 $T/db 'begin; update t set b=b+1; commit; select sum(b) from t; pragma integrity_check'; ls $T",
        "awk '{s+=$1} END {print s}' $T/d/hard; cd /; diff $T/d/hard $T/un/d/x; echo $?",
    ] {
        rig.same(script);
    }
}

#[test]
fn version_control() {
    let rig = Rig::new();
    if rig.bash("git --version", rig.plain.path()).status.code() != Some(0) {
        return eprintln!("skipped: there is no git");
    }
    // Without a FUSE mount programs that git starts do not know where it stands: the ones it starts by itself are off.
    let git = "g() { git -C $T/repo -c user.email=a@b -c user.name=n -c commit.gpgsign=false -c maintenance.auto=false -c gc.auto=0 \"$@\"; }; git init -q $T/repo; g config core.fsmonitor false";
    rig.same(&format!("{git}; seq 100 > $T/repo/f; mkdir $T/repo/d; echo x > $T/repo/d/g; g add f d/g; g commit -qm first; g log --format=%s; g status --short; echo y >> $T/repo/f; g diff --stat; g commit -qam second; g checkout -q HEAD~; wc -l < $T/repo/f; g cat-file --batch-all-objects --batch-check | wc -l; g ls-files"));
}

const PYTHON: &str = r#"
import os, json, shutil, sys, tempfile, subprocess, fcntl, mmap
t = sys.argv[1]
j = os.path.join
os.makedirs(j(t, 'a/b'))
with open(j(t, 'a/data.json'), 'w') as f: json.dump({'x': list(range(1000))}, f)
print(json.load(open(j(t, 'a/data.json')))['x'][-1])
shutil.copy(j(t, 'a/data.json'), j(t, 'a/b/copy')); shutil.copytree(j(t, 'a'), j(t, 'c'))
print(sorted((r[len(t):], sorted(d), sorted(f)) for r, d, f in os.walk(t)))
shutil.rmtree(j(t, 'c')); print(os.path.exists(j(t, 'c')), sorted(os.listdir(t)))
with open(j(t, 'bin'), 'wb+') as f:
    f.write(b'0123456789' * 1000); f.seek(5); print(f.read(4), f.tell()); f.truncate(77); f.seek(0, 2); print(f.tell())
    f.flush(); os.fsync(f.fileno()); print(os.fstat(f.fileno()).st_size, os.pread(f.fileno(), 3, 2))
    fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB); fcntl.flock(f, fcntl.LOCK_SH)
    m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ); print(m[3:6], len(m)); m.close()
    d = os.dup(f.fileno()); os.lseek(f.fileno(), 3, 0); print(os.read(d, 2)); os.close(d)
for call in (lambda: open(j(t, 'none')), lambda: os.mkdir(j(t, 'a')), lambda: os.rmdir(j(t, 'a')), lambda: open(j(t, 'a'), 'w'),
             lambda: os.readlink(j(t, 'bin')), lambda: os.listdir(j(t, 'bin')), lambda: open(j(t, 'bin/x')), lambda: os.open(j(t, 'bin'), os.O_CREAT | os.O_EXCL)):
    try: call(); print('no error')
    except OSError as e: print(e.errno)
with open(j(t, 'out'), 'w') as f: subprocess.run(['sh', '-c', 'echo from child; exit 3'], stdout=f); f.write('parent\n')
print(open(j(t, 'out')).read().split())
fd = os.open(t, os.O_RDONLY); print(os.stat('bin', dir_fd=fd).st_size, sorted(os.listdir(fd))); os.mkdir('viafd', dir_fd=fd); os.close(fd)
with os.scandir(t) as it: print(sorted((e.name, e.is_dir()) for e in it))
os.chdir(t); open('rel', 'w').write('r'); print(os.getcwd()[len(t):] == '', os.path.realpath('rel')[len(t):]); os.rename('rel', 'viafd/rel2'); os.chdir('viafd'); print(os.listdir('.'), open('../bin').read(3)); os.chdir('/')
r = os.fork()
if r == 0:
    open(j(t, 'forked'), 'w').write('child'); os._exit(0)
os.waitpid(r, 0); print(open(j(t, 'forked')).read())
with tempfile.TemporaryDirectory(dir=t) as d: open(j(d, 'q'), 'w').close(); print(os.listdir(d))
os.symlink('bin', j(t, 'sym')); print(os.lstat(j(t, 'sym')).st_size, os.stat(j(t, 'sym')).st_size, os.path.islink(j(t, 'sym'))); os.utime(j(t, 'bin'), (5, 6)); print(os.stat(j(t, 'bin')).st_mtime)
os.link(j(t, 'bin'), j(t, 'hard')); os.chmod(j(t, 'hard'), 0o604); print(oct(os.stat(j(t, 'bin')).st_mode), os.access(j(t, 'bin'), os.R_OK)); os.unlink(j(t, 'hard'))
try:
    import sqlite3
    c = sqlite3.connect(j(t, 'db')); c.execute('create table t(a)'); c.executemany('insert into t values(?)', [(i,) for i in range(500)]); c.commit(); print(c.execute('select sum(a) from t').fetchone()); c.close()
except ImportError: print('no sqlite3')
"#;

#[test]
fn python() {
    let rig = Rig::new();
    if rig.bash("python3 -c 0", rig.plain.path()).status.code() != Some(0) {
        return eprintln!("skipped: there is no python3");
    }
    std::fs::write(rig.work.path().join("script.py"), PYTHON).unwrap();
    rig.same("mkdir $T/p; python3 script.py $T/p");
}

const OTHER_USER: &str = r#"
import os, sys
f = sys.argv[1] + '/f'
fd = os.open(f, os.O_RDWR | os.O_CREAT, 0o600)
def tried(what):
    try: return what()
    except OSError as e: return e.errno
os.seteuid(65534)
print(tried(lambda: open(f)) in (2, 13), tried(lambda: os.fchmod(fd, 0o666)), os.write(fd, b'abc'))
os.seteuid(0)
print(os.stat(f).st_size, oct(os.stat(f).st_mode), open(f).read())
os.setegid(65534)
print(tried(lambda: open(f)) == 2 if sys.argv[1].startswith('/freehold-test') else True)
"#;

/// A program that gives up its rights has none through the session that it began before: it is led to the mount. There is none
/// here for the kernel, so the file is not found; in the ordinary directory it may not be opened.
#[test]
fn programs_that_become_another_user() {
    let rig = Rig::new();
    // SAFETY: asks for a number.
    let root = unsafe { libc::geteuid() } == 0;
    if !root || rig.bash("python3 -c 0", rig.plain.path()).status.code() != Some(0) {
        return eprintln!("skipped: this needs root and python3");
    }
    std::fs::write(rig.work.path().join("script.py"), OTHER_USER).unwrap();
    rig.same("mkdir -m 700 $T/p; python3 script.py $T/p");
    // A child that becomes another one before it uses the volume is refused what its parent may.
    rig.same_python(
        r#"
os.makedirs(j(t, 'd/in')); os.chmod(j(t, 'd'), 0o700); open(j(t, 'd/f'), 'w').write('f'); paths = ['d/.', 'd/./', 'd/in', 'd/./f', 'd/f']
def say(): print([tries(lambda: os.stat(j(t, p)).st_size and 0) for p in paths], tries(lambda: open(j(t, 'd/f')).read()), flush=True)
say()
if os.fork() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534); say(); os._exit(0)
os.wait(); say()
"#,
    );
}

#[test]
fn without_a_manager_the_kernel_is_asked() {
    let rig = Rig::new();
    let script =
        "export FREEHOLD_MOUNTS=$T=/nowhere/socket; echo a > $T/f; cat $T/f; mkdir $T/d && cd $T/d && pwd";
    let out = rig.bash(script, rig.plain.path());
    let want = format!("a\n{}/d\n", rig.plain.path().display());
    assert_eq!(String::from_utf8_lossy(&out.stdout), want, "{out:?}");
}

/// Whoever has a directory to himself makes and removes files there without asking for anything, however he names it.
#[test]
fn new_files_are_not_asked_for() {
    let rig = Rig::new();
    let asked = || -> u64 {
        let calls = rig.server.stats().door.calls;
        calls
            .iter()
            .filter(|class| matches!(class.name, "lookup" | "walk" | "getattr"))
            .map(|class| class.calls())
            .sum()
    };
    const MAKE_AND_REMOVE: &str = "import os, sys
for i in range(2000): open(sys.argv[1] + str(i), 'x').close()
for i in range(2000): os.unlink(sys.argv[1] + str(i))";
    for path in ["f", "./f", ".//./f", "$T/d/f", "$T/./d/f"] {
        let before = asked();
        let script = format!(
            "mkdir $T/d && cd $T/d && python3 -c \"{MAKE_AND_REMOVE}\" {path} && cd .. && rmdir d && echo done"
        );
        let out = rig.bash(&script, MOUNT.as_ref());
        assert_eq!(String::from_utf8_lossy(&out.stdout), "done\n", "{path}: {out:?}");
        let asked = asked() - before;
        println!("{path}: {asked} questions for 4000 calls");
        assert!(asked < 400, "{path}: {asked} questions for 4000 calls");
    }
}

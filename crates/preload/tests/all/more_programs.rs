//! Large programs, and what was found with them: rsync, make and gcc, Java, node, paths that name descriptors, calls by number.
//!
//! As `programs.rs`: the same commands in an ordinary directory and in a volume that the kernel does not know, so without what needs the
//! mount (executing files of the volume, shared writable mappings). A program that is not installed is skipped with a message.

use crate::rig::{MOUNT, Rig};

/// A rig, if all these programs are there.
fn rig(programs: &[&str]) -> Option<Rig> {
    let rig = Rig::new();
    for program in programs {
        // Wrappers of other programs' versions may be there for nothing.
        let there = rig.bash(&format!("command -v {program} && {program} --version"), rig.plain.path());
        if there.status.code() != Some(0) {
            eprintln!("skipped: there is no {program}");
            return None;
        }
    }
    Some(rig)
}

#[test]
fn paths_that_name_descriptors() {
    let rig = Rig::new();
    for script in [
        "echo hello > $T/a; cat /dev/stdin < $T/a; cat /dev/fd/3 3< $T/a; cat /proc/self/fd/0 < $T/a; cp /dev/stdin $T/c < $T/a; cat $T/c",
        "(echo out > /dev/stdout) > $T/o; cat $T/o; (echo err > /dev/stderr) 2> $T/e; cat $T/e; (echo 1; echo 2 >> /dev/stdout; echo 3) > $T/o; cat $T/o; echo w > /proc/self/fd/5 5> $T/p; cat $T/p; cp $T/a /dev/stdout > $T/d; cat $T/d",
        "stat -L -c '%s %F' /dev/fd/3 3< $T/a; [ -f /dev/stdin ] < $T/a && echo file; [ /dev/fd/3 -ef $T/a ] 3< $T/a && echo same; readlink /proc/self/fd/3 3< $T/a; readlink -f /dev/fd/3 3< $T/a; realpath /dev/stdin < $T/a",
        "exec 5<> $T/gone 6< $T; rm $T/gone; readlink /proc/self/fd/5 /proc/self/fd/6; exec 6>&-; echo kept >&5; cat /proc/self/fd/5 /dev/fd/5; exec 5>&-; cat /dev/fd/5; echo $?",
        "ls /proc/self/fd/3/ 3< $T | sort; cat /dev/fd/3/a 3< $T; cat /dev/fd/3/a 3< $T/a; echo $?; chmod 600 /dev/fd/3 3< $T/a; stat -c %a $T/a; truncate -s 3 /dev/fd/8 8<> $T/a; cat $T/a; (set -C; echo no > /dev/fd/3) 3> $T/x; echo $?",
        "tar cf /dev/stdout -C $T a c > /dev/fd/7 7> $T/t.tar; tar tf /dev/stdin < $T/t.tar; echo 'echo sourced $1' > $T/s; . /dev/stdin < $T/s; bash /dev/fd/3 x 3< $T/s; awk '{ print > \"/dev/stderr\" }' $T/c 2> $T/aw; cat $T/aw",
    ] {
        rig.same(script);
    }
}

#[test]
fn wide_streams() {
    let Some(rig) = rig(&["rev"]) else { return };
    rig.same("export LC_ALL=C.UTF-8; printf 'h\\303\\251llo\\nabc\\n' > $T/u; rev $T/u; rev < $T/u; rev $T/u > $T/o; cat $T/o; printf 'a\\b_b\\n\\tx\\n' > $T/c; col -x < $T/c > $T/d; cat $T/d; printf '\\377\\n' > $T/bad; rev $T/bad; echo $?");
}

#[test]
fn calls_by_number_and_sendfile() {
    let Some(rig) = rig(&["python3"]) else { return };
    std::fs::write(
        rig.work.path().join("script.py"),
        r#"
import ctypes, fcntl, os, platform, socket, sys
t = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True); libc.syscall.restype = ctypes.c_long
a = os.open(t + '/a', os.O_CREAT | os.O_RDWR); os.write(a, b'0123456789' * 20000)
b = os.open(t + '/b', os.O_CREAT | os.O_RDWR)
print(os.sendfile(b, a, 5, 70000), os.fstat(b).st_size, os.pread(b, 5, 0), os.lseek(b, 0, 1), os.lseek(a, 3, 0), os.sendfile(b, a, None, 4), os.lseek(a, 0, 1), os.pread(b, 9, 69998), os.sendfile(b, a, 10**6, 5))
x, y = socket.socketpair(); print(os.sendfile(x.fileno(), a, 1, 7), y.recv(99), x.sendfile(open(t + '/a', 'rb'), 2, 3), y.recv(99))
r, w = os.pipe(); os.write(w, b'pipe')
try: os.sendfile(b, r, None, 4)
except OSError as e: print(e.errno)
def fails(call, *a):
    try: return call(*a)
    except OSError as e: return e.errno
os.mkdir(t + '/dir'); kinds = [a, os.open(t + '/a', 0), os.open(t + '/b', 1), os.open(t + '/b', 1025), os.open(t + '/dir', 0)]
print([[(fails(os.sendfile, i, j, 0, 2), fails(os.copy_file_range, j, i, 2, 0, 200000)) for j in kinds] for i in kinds], fails(os.sendfile, a, r, 0, 2))
for fd in a, kinds[4]: os.set_blocking(fd, False); print(os.get_blocking(fd)); os.set_blocking(fd, True); print(os.get_blocking(fd), fails(fcntl.ioctl, fd, 0x541b, bytes(4)))
os.rmdir(t + '/dir'); [os.close(fd) for fd in kinds[1:5]]; os.truncate(t + '/a', 200000); os.truncate(t + '/b', 70000)
if platform.machine() == 'x86_64':
    room = ctypes.create_string_buffer(256); print(libc.syscall(332, a, b'', 0x1000, 0xfff, room), int.from_bytes(room.raw[40:48], 'little'))
    print(libc.syscall(326, a, ctypes.byref(ctypes.c_long(1)), b, ctypes.byref(ctypes.c_long(0)), 9, 0), os.pread(b, 9, 0))
    print(libc.syscall(316, -100, (t + '/b').encode(), -100, (t + '/c').encode(), 0), os.listdir(t) and sorted(os.listdir(t)))
    # The number is free for others afterwards, and leads where they have it.
    print(libc.syscall(3, a)); r, w = os.pipe(); os.write(w, b'through'); print(r == a, os.read(r, 9))
"#,
    )
    .unwrap();
    rig.same("mkdir $T/p; python3 script.py $T/p");
}

/// As many bytes as the pipe has room for, or has; none is lost where the file takes none.
#[test]
fn splices() {
    let Some(rig) = rig(&["python3"]) else { return };
    std::fs::write(
        rig.work.path().join("script.py"),
        r#"
import ctypes, fcntl, os, platform, resource, signal, sys
t = sys.argv[1]
a = os.open(t + '/a', os.O_CREAT | os.O_RDWR); os.write(a, bytes(i % 251 for i in range(300000)))
b = os.open(t + '/b', os.O_CREAT | os.O_RDWR)
r, w = os.pipe(); NOW = os.SPLICE_F_NONBLOCK
def tries(*a, **k):
    try: return os.splice(*a, **k)
    except OSError as e: return e.errno
def at(fd): return os.lseek(fd, 0, 1)
# Files into pipes: by the offset given, by the file's own, to the end; a full pipe.
print(tries(a, w, 5, offset_src=7), os.read(r, 9), at(a), os.lseek(a, 299990, 0), tries(a, w, 50), os.read(r, 50), at(a), tries(a, w, 50), at(a))
os.lseek(a, 0, 0); n = tries(a, w, 10**6); print(n, at(a), tries(a, w, 9, flags=NOW), at(a), len(os.read(r, 4096)), tries(a, w, 10**6, flags=NOW), at(a))
whole = b''
while len(whole) < at(a) - 4096: whole += os.read(r, 9999)
print(whole == bytes(i % 251 for i in range(4096, at(a))), tries(r, b, 9, flags=NOW))
# Pipes into files: what there is, at most; over its end; by the offset given.
os.write(w, b'0123456789' * 500); print(tries(r, b, 10), at(b), tries(r, b, 10**6), at(b), os.fstat(b).st_size)
os.write(w, b'abc'); print(tries(r, b, 9, offset_dst=6000), at(b), os.fstat(b).st_size, os.pread(b, 12, 4995), os.pread(b, 9, 5995))
if os.fork() == 0: os.write(w, b'waited for'); os._exit(0)
print(tries(r, b, 99), at(b)); os.wait()
# A limit: the rest stays in the pipe.
signal.signal(signal.SIGXFSZ, signal.SIG_IGN); os.ftruncate(b, 0); os.lseek(b, 0, 0); os.write(w, b'0123456789')
resource.setrlimit(resource.RLIMIT_FSIZE, (4, resource.RLIM_INFINITY)); print(tries(r, b, 10), tries(r, b, 10), at(b)); resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
print(os.read(r, 99), os.pread(b, 9, 0))
# What is refused.
os.mkdir(t + '/dir'); p = os.open(t + '/b', os.O_WRONLY | os.O_APPEND); d = os.open(t + '/dir', 0); o = os.open(t + '/a', os.O_RDONLY); os.write(w, b'stays'); null = os.open('/dev/null', os.O_RDWR)
print([tries(x, y, 3, flags=NOW) for x in (a, b, p, d, o, r, w, null, 77) for y in (a, b, p, d, o, r, w, null, 77)])
print(tries(a, w, 3, offset_src=0, offset_dst=0), tries(r, b, 3, offset_src=0, offset_dst=0), tries(a, w, 3, flags=64), tries(a, w, 0), tries(a, w, 3, offset_src=-1))
os.set_blocking(r, False); print(os.read(r, 99999)[-8:]); print(tries(r, b, 3)); os.set_blocking(r, True); os.close(w); print(tries(r, b, 3)); os.close(r)
r, w = os.pipe(); os.close(r); signal.signal(signal.SIGPIPE, signal.SIG_IGN); print(tries(a, w, 3), at(a))
if platform.machine() == 'x86_64':
    r, w = os.pipe(); libc = ctypes.CDLL(None); libc.syscall.restype = ctypes.c_long; print(libc.syscall(275, a, ctypes.byref(ctypes.c_long(1)), w, None, ctypes.c_long(4), 0), os.read(r, 9))
"#,
    )
    .unwrap();
    rig.same("mkdir $T/p; python3 script.py $T/p");
}

/// A signal ends the waiting for a lock, unless its handler says that calls go on.
#[test]
fn signals_while_waiting_for_locks() {
    let Some(rig) = rig(&["flock", "python3"]) else { return };
    rig.same("cd $T; touch l; (sleep 0.5; flock -w 0.5 l echo no; echo $?) & flock l sleep 3; wait; flock -w 0.2 l echo yes");
    std::fs::write(
        rig.work.path().join("script.py"),
        r#"
import fcntl, os, signal, sys, time
path = sys.argv[1]
class Alarm(Exception): pass
def ring(*_): raise Alarm
if os.fork() == 0:
    f = open(path, 'r+'); fcntl.lockf(f, fcntl.LOCK_EX); open(path + '.ready', 'w').close(); time.sleep(4); os._exit(0)
while not os.path.exists(path + '.ready'): time.sleep(0.01)
f = open(path, 'r+')
signal.signal(signal.SIGALRM, ring); signal.setitimer(signal.ITIMER_REAL, 0.3); begun = time.time()
try: fcntl.lockf(f, fcntl.LOCK_EX); print('locked')
except Alarm: print('interrupted', time.time() - begun < 3)
# With SA_RESTART it goes on waiting, and the handler is called later.
signal.signal(signal.SIGALRM, lambda *_: None); signal.siginterrupt(signal.SIGALRM, False)
signal.setitimer(signal.ITIMER_REAL, 0.2); fcntl.lockf(f, fcntl.LOCK_EX); print('locked', time.time() - begun > 3); os.wait()
# However soon it comes, it is not missed (a machine that is busy may handle it before the call: then the next one ends it). Signals that are ignored end nothing.
fcntl.lockf(f, fcntl.LOCK_UN); os.unlink(path + '.ready')
holder = os.fork()
if holder == 0:
    f = open(path, 'r+'); fcntl.lockf(f, fcntl.LOCK_EX); open(path + '.ready', 'w').close(); time.sleep(60); os._exit(0)
while not os.path.exists(path + '.ready'): time.sleep(0.01)
signal.signal(signal.SIGALRM, ring); signal.signal(signal.SIGUSR1, signal.SIG_IGN); late = 0
for i in range(100):
    os.kill(os.getpid(), signal.SIGUSR1); begun = time.time()
    try: signal.setitimer(signal.ITIMER_REAL, 0.001 + 0.00003 * i, 1); fcntl.lockf(f, fcntl.LOCK_EX); print('locked')
    except Alarm: late += time.time() - begun > 0.9
signal.setitimer(signal.ITIMER_REAL, 0); print(late < 10); os.kill(holder, signal.SIGKILL); os.wait(); fcntl.lockf(f, fcntl.LOCK_EX); print('locked')
"#,
    )
    .unwrap();
    rig.same("touch $T/m; python3 script.py $T/m");
}

#[test]
fn rsync() {
    let Some(rig) = rig(&["rsync"]) else { return };
    for script in [
        "cd $T; mkdir -p s/d s/e; for i in 1 2 3 4 5; do seq 1 ${i}000 > s/d/$i; done; ln s/d/5 s/hard; ln -s d/5 s/sl; touch -d @1234567.5 s/d/1; chmod 600 s/d/2; rsync -aHAX s/ t/; diff -r s t && stat -c '%a %h %Y %n' t/* t/d/1 t/d/2 | grep -v ' [et]$' | awk '{ print $1, $2 }'; stat -c %y t/d/1",
        "cd $T; echo more >> s/d/3; rm s/d/4; touch t/extra; touch -d @1400000000 t t/d t/d/3; touch -d @1500000000 s/d/3 s/d s; rsync -aHAXi --delete s/ t/; diff -r s t; echo $?",
        "cd $T; seq 1 5000 | sed s/77/x/ > s/d/5; touch -d @99 s/d/5; rsync -a --inplace --no-whole-file s/ t/; cmp s/d/5 t/d/5; echo tail >> s/d/5; rsync -a --append s/d/5 t/d/5; cmp s/d/5 t/d/5; rsync -a --link-dest=../t s/ u/; stat -c %h u/d/2; rsync -a --backup --suffix=.old --checksum --temp-dir=$T/s/e s/d/1 u/d/2; ls u/d",
    ] {
        rig.same(script);
    }
}

#[test]
fn make_and_gcc() {
    let Some(rig) = rig(&["make", "gcc", "ar", "strip"]) else { return };
    let script = r#"mkdir $T/p; cd $T/p
for i in 1 2 3; do printf '#include "h.h"\nint f%d(int x) { return x * %d + K; }\n' $i $i > f$i.c; done; echo '#define K 3' > h.h
printf 'int f1(int), f2(int), f3(int);\nint main(void) { return f1(1) + f2(2) + f3(3); }\n' > main.c
printf 'OBJ = f1.o f2.o f3.o\nCFLAGS = -MMD\nall: prog\nlib.a: $(OBJ)\n\tar rcs $@ $^\nprog: main.o lib.a\n\t$(CC) -o $@ $^\n-include *.d\nclean:\n\trm -f *.o *.d lib.a prog\n' > Makefile
make -j2 2>&1 | sort; cp prog /tmp/freehold-make.$$; /tmp/freehold-make.$$; echo $?; rm /tmp/freehold-make.$$; make; touch h.h; make -n | grep -c cc; ar t lib.a; nm lib.a | grep -c ' T '; strip -o small prog && [ -s small ] && echo stripped; gcc -save-temps=obj -c f1.c; ls; make -s clean; ls"#;
    rig.same(script);
}

const JAVA: &str = r#"
import java.io.*; import java.nio.*; import java.nio.channels.*; import java.nio.file.*; import java.nio.file.attribute.*; import java.util.*; import java.util.stream.*;
public class T {
  interface Try { Object go() throws Exception; }
  static void t(Try what) { try { System.out.println(what.go()); } catch (Throwable e) { System.out.println(e); } }
  public static void main(String[] v) throws Exception {
    Path d = Paths.get(v[0]), f = d.resolve("f");
    t(() -> Files.writeString(f, "hello\nworld\n")); t(() -> Files.readAllLines(f)); t(() -> Files.write(f, new byte[1], StandardOpenOption.CREATE_NEW));
    t(() -> Files.setAttribute(f, "lastModifiedTime", FileTime.fromMillis(1234567890123L)));
    t(() -> Files.copy(f, d.resolve("g"), StandardCopyOption.REPLACE_EXISTING, StandardCopyOption.COPY_ATTRIBUTES)); t(() -> Files.getLastModifiedTime(d.resolve("g")));
    t(() -> Files.move(d.resolve("g"), Paths.get("moved"), StandardCopyOption.REPLACE_EXISTING)); t(() -> Files.move(Paths.get("moved"), d.resolve("h"))); t(() -> Files.getLastModifiedTime(d.resolve("h")));
    t(() -> Files.createDirectories(d.resolve("a/b"))); t(() -> Files.createLink(d.resolve("a/l"), f)); t(() -> Files.createSymbolicLink(d.resolve("a/s"), Paths.get("../f"))); t(() -> d.resolve("a/s").toRealPath());
    t(() -> { try (Stream<Path> s = Files.walk(d)) { return s.map(p -> d.relativize(p).toString()).sorted().collect(Collectors.toList()); } });
    t(() -> PosixFilePermissions.toString(Files.getPosixFilePermissions(Files.setPosixFilePermissions(f, PosixFilePermissions.fromString("rw-r-----")))));
    t(() -> { try (RandomAccessFile r = new RandomAccessFile(d.resolve("raf").toFile(), "rw")) { r.writeInt(7); r.writeUTF("abc"); r.setLength(300); r.seek(0); return r.readInt() + r.readUTF() + r.getFilePointer() + " " + r.length(); } });
    t(() -> { try (FileChannel c = FileChannel.open(d.resolve("ch"), StandardOpenOption.CREATE, StandardOpenOption.READ, StandardOpenOption.WRITE); FileLock l = c.tryLock()) { c.write(ByteBuffer.wrap("Z".getBytes()), 10); ByteBuffer r = ByteBuffer.allocateDirect(20); c.read(r, 0); c.force(true); c.truncate(8); return r.position() + " " + c.size() + l.isValid(); } });
    t(() -> { try (FileChannel a = FileChannel.open(f); FileChannel b = FileChannel.open(d.resolve("tt"), StandardOpenOption.CREATE, StandardOpenOption.WRITE)) { return a.transferTo(0, a.size(), b) + " " + b.transferFrom(a, 2, 5) + " " + b.size(); } });
    t(() -> { try (FileChannel c = FileChannel.open(f)) { return c.map(FileChannel.MapMode.READ_ONLY, 0, 5).get(1); } });
    t(() -> { Path p = Files.createTempFile(d, "x", ".t"); Files.delete(p); return Files.exists(p); }); t(() -> { Files.delete(d.resolve("a")); return 1; });
    t(() -> new ProcessBuilder("cat").redirectInput(f.toFile()).redirectOutput(d.resolve("po").toFile()).start().waitFor() + Files.readString(d.resolve("po")));
  }
}
"#;

#[test]
fn java() {
    let Some(rig) = rig(&["javac", "java", "jar"]) else { return };
    std::fs::write(rig.work.path().join("T.java"), JAVA).unwrap();
    rig.same("mkdir $T/d $T/src; cp T.java $T/src; javac -d $T/classes $T/src/T.java && ls $T/classes && jar cfe $T/t.jar T -C $T/classes . && jar tf $T/t.jar && java -XX:TieredStopAtLevel=1 -jar $T/t.jar $T/d; ls -a $T/d");
}

const NODE: &str = r#"
const fs = require('fs'), fsp = fs.promises, cp = require('child_process'), zlib = require('zlib'), { pipeline } = require('stream/promises');
const T = process.argv[2];
const t = async (n, f) => { try { console.log(n, await f() ?? ''); } catch (e) { console.log(n, '!', e.code || e.message); } };
(async () => {
  const p = n => T + '/' + n;
  await t('write', () => fs.writeFileSync(p('a'), 'hello')); await t('append', () => { fs.appendFileSync(p('a'), ' world'); return fs.readFileSync(p('a'), 'utf8') }); await t('new', () => fs.writeFileSync(p('a'), '', { flag: 'wx' })); await t('none', () => fs.accessSync(p('zz')));
  await t('stat', () => { const s = fs.statSync(p('a')), f = fs.openSync(p('a')), q = fs.fstatSync(f); fs.closeSync(f); return [s.size, q.size, s.ino == q.ino, q.isFile()] });
  await t('copy', () => { fs.mkdirSync(p('d/e'), { recursive: true }); fs.copyFileSync(p('a'), p('d/c')); fs.cpSync(p('d'), p('d2'), { recursive: true }); return [fs.readFileSync(p('d2/c'), 'utf8'), fs.readdirSync(T, { withFileTypes: true }).map(e => e.name + e.isDirectory()).sort().join()] });
  await t('fd', () => { const f = fs.openSync(p('fd'), 'w+'); fs.writeSync(f, 'abcdef'); fs.writeSync(f, Buffer.from('ZZ'), 0, 2, 2); const b = Buffer.alloc(10), n = fs.readSync(f, b, 0, 10, 0); fs.ftruncateSync(f, 4); fs.fsyncSync(f); fs.futimesSync(f, 1, 2); const s = fs.fstatSync(f); fs.closeSync(f); return [b.toString('latin1', 0, n), s.size, s.mtimeMs] });
  await t('many', async () => (await Promise.all([...Array(60).keys()].map(async i => { await fsp.writeFile(p('m' + i), '' + i); const x = +(await fsp.readFile(p('m' + i))); await fsp.unlink(p('m' + i)); return x }))).reduce((a, b) => a + b));
  await t('handle', async () => { const h = await fsp.open(p('fh'), 'w+'); await h.write('hello'); const s = await h.stat(); await h.truncate(2); await h.close(); return [s.size, (await fsp.readFile(p('fh'))).length] });
  await t('pipeline', async () => { fs.writeFileSync(p('big'), Buffer.alloc(1e6, 'abc')); await pipeline(fs.createReadStream(p('big')), zlib.createGzip(), fs.createWriteStream(p('gz'))); await pipeline(fs.createReadStream(p('gz')), zlib.createGunzip(), fs.createWriteStream(p('big2'))); return fs.readFileSync(p('big')).equals(fs.readFileSync(p('big2'))) });
  // After the files above: the pipes to a child have numbers that files had.
  await t('exec', () => cp.execSync(`cat ${p('a')}; echo; echo more`, { encoding: 'utf8' })); await t('spawn', () => { const o = fs.openSync(p('so'), 'w'); cp.spawnSync('sh', ['-c', 'echo out; echo err >&2'], { stdio: ['ignore', o, o] }); fs.closeSync(o); return fs.readFileSync(p('so'), 'utf8') });
  await t('stdin', () => cp.execSync(`node -p "fs.readFileSync('/dev/stdin', 'utf8')" < ${p('a')}`, { encoding: 'utf8' }));
  await t('require', () => { fs.writeFileSync(p('mod.js'), 'module.exports = 42'); return require(p('mod.js')) }); await t('rm', () => { fs.rmSync(p('d2'), { recursive: true }); return fs.readdirSync(T).sort().join() });
})();
"#;

#[test]
fn node() {
    let Some(rig) = rig(&["node"]) else { return };
    std::fs::write(rig.work.path().join("t.js"), NODE).unwrap();
    rig.same("mkdir $T/d; node t.js $T/d");
}

#[test]
fn the_kernel_still_knows_nothing() {
    assert!(!std::path::Path::new(MOUNT).exists());
}

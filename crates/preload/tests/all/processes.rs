//! What is particular to the library: paths that come and go, descriptors across processes, programs that close everything.
//!
//! Scripts of python3, compared with the same in an ordinary directory; skipped where there is none.

use crate::rig::Rig;

/// As [`Rig::same_python`].
fn same(rig: &Rig, script: &str) {
    rig.same_python(script);
}

#[test]
fn paths() {
    let Some(rig) = Rig::with_python() else { return };
    same(
        &rig,
        r#"
os.makedirs(j(t, 'd/e')); open(j(t, 'd/f'), 'w').write('f')
os.symlink(t + '/d', j(t, 'abs')); os.symlink('/etc', j(t, 'etc')); os.symlink('../../../../../../../../../etc/hostname', j(t, 'd/up')); os.symlink('loop', j(t, 'loop'))
os.symlink('d/new', j(t, 'dangling')); os.symlink(t + '/d/new2', j(t, 'dangling2'))
for p in ['abs/f', 'abs/../d/f', 'd/./e/../f', 'd//f', 'd/f/', 'd/f/.', 'd/f/..', 'loop', 'loop/x', 'etc/hostname', 'etc/../etc/hostname', 'd/up', '../..' + t + '/d/f',
          'none/../d/f', 'dangling', 'x' * 256, 'd/' * 3000 + 'f', 'etc/none', 'abs', 'abs/', '', '.', 'd/e/../..']:
    print(p[:30], tries(lambda: os.stat(j(t, p)).st_mode), tries(lambda: os.lstat(j(t, p)).st_mode), tries(lambda: open(j(t, p)).read(3)))
open(j(t, 'dangling'), 'w').write('1'); open(j(t, 'dangling2'), 'w').write('2'); print(sorted(os.listdir(j(t, 'd'))))
print(tries(lambda: os.open(j(t, 'dangling'), os.O_CREAT | os.O_EXCL)), tries(lambda: os.open(j(t, 'abs/f'), os.O_NOFOLLOW)), tries(lambda: os.open(j(t, 'abs'), os.O_NOFOLLOW)))
print(tries(lambda: os.open(j(t, 'd'), os.O_CREAT | os.O_WRONLY)), tries(lambda: os.open(j(t, 'd/f'), os.O_DIRECTORY)), tries(lambda: os.open(j(t, 'q/'), os.O_CREAT | os.O_WRONLY)))
print(os.path.realpath(j(t, 'abs/up')), os.path.realpath(j(t, 'etc')), os.path.realpath(j(t, 'abs/e'))[len(t):])
for f in [lambda: os.rmdir(j(t, 'd/.')), lambda: os.rmdir(j(t, 'd/e/..')), lambda: os.unlink(j(t, 'd')), lambda: os.unlink(j(t, 'd/f/')), lambda: os.rename(j(t, 'd'), j(t, 'd/e/x')),
          lambda: os.rename(j(t, 'd/f'), j(t, 'd/e')), lambda: os.link(j(t, 'd'), j(t, 'l')), lambda: os.mkdir(j(t, 'd/f/x')), lambda: os.symlink('', j(t, 'empty')), lambda: os.truncate(j(t, 'd'), 0),
          lambda: os.rename(j(t, 'd/f'), j(t, 'd/f')), lambda: os.mkdir(j(t, 'slash/')), lambda: os.rmdir(j(t, 'slash/')), lambda: os.chmod(j(t, 'none'), 0), lambda: os.rename(j(t, 'd/f'), '/proc/here'), lambda: os.getxattr(j(t, 'd/f'), 'user.none')]:
    print(tries(f))
os.chdir(j(t, 'd/e')); print(os.stat('../f').st_size, os.stat('../../d').st_nlink, sorted(os.listdir('..'))); os.chdir('..'); print(os.getcwd()[len(t):]); os.chdir('/'); print(os.stat(t[1:] + '/d/f').st_size)
os.chdir(j(t, 'etc')); print(os.getcwd())
"#,
    );
}

#[test]
fn descriptors_across_processes() {
    let Some(rig) = Rig::with_python() else { return };
    same(
        &rig,
        r#"
f = os.open(j(t, 'f'), os.O_CREAT | os.O_RDWR); os.set_inheritable(f, True)
os.write(f, b'parent ')
if os.fork() == 0: os.write(f, b'child '); os._exit(0)
os.wait(); os.write(f, b'parent '); print(os.lseek(f, 0, 1))
subprocess.run(['python3', '-c', f'import os; os.write({f}, b"exec "); print(os.lseek({f}, 0, 1))'], pass_fds=[f]); os.write(f, b'end'); print(os.pread(f, 100, 0))
os.lseek(f, 0, 0); subprocess.run(['cat'], stdin=f); print(os.lseek(f, 0, 1)); sys.stdout.flush()
subprocess.run(['sh', '-c', 'echo err >&2; echo out'], stdout=f, stderr=f); os.posix_spawn('/bin/sh', ['sh', '-c', 'echo spawned >&9'], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, f, 9)]); os.wait(); print(os.pread(f, 100, 0))
os.system(f'echo system >&{f}'); p = os.popen(f'cat {t}/f'); print(p.read()); p.close()
d = os.dup2(f, 50); os.close(f); print(os.write(50, b'x'), tries(lambda: os.write(f, b'x'))); os.close(50); print(tries(lambda: os.fstat(50)))
a = os.open(j(t, 'a'), os.O_CREAT | os.O_WRONLY | os.O_APPEND); b = os.open(j(t, 'a'), os.O_RDWR)
os.write(b, b'1234'); os.write(a, b'5'); print(os.lseek(a, 0, 1), os.read(b, 9), tries(lambda: os.read(a, 1)), oct(fcntl.fcntl(a, fcntl.F_GETFL) & 0o3003))
fcntl.fcntl(b, fcntl.F_SETFL, os.O_APPEND); os.lseek(b, 0, 0); os.write(b, b'6'); print(os.pread(b, 9, 0), fcntl.fcntl(b, fcntl.F_GETFD))
fcntl.lockf(b, fcntl.LOCK_EX); fcntl.flock(b, fcntl.LOCK_EX); sys.stdout.flush()
if os.fork() == 0:
    c = os.open(j(t, 'a'), os.O_RDWR); print(tries(lambda: fcntl.lockf(c, fcntl.LOCK_EX | fcntl.LOCK_NB)), tries(lambda: fcntl.flock(c, fcntl.LOCK_EX | fcntl.LOCK_NB))); sys.stdout.flush(); os._exit(0)
os.wait(); os.close(os.open(j(t, 'a'), os.O_RDONLY))
# Whichever descriptor of the file is closed, the process loses its record locks.
if os.fork() == 0:
    c = os.open(j(t, 'a'), os.O_RDWR); print(tries(lambda: fcntl.lockf(c, fcntl.LOCK_EX | fcntl.LOCK_NB))); sys.stdout.flush(); os._exit(0)
os.wait(); os.unlink(j(t, 'a')); print(os.fstat(b).st_nlink, os.pread(b, 3, 0), os.pwritev(b, [b'ab', b'cd'], 0), os.preadv(b, [bytearray(3), bytearray(9)], 0))
"#,
    );
}

/// A lock of flock(2) belongs to the open file description, whichever process has it.
#[test]
fn locks_go_with_descriptions() {
    let Some(rig) = Rig::with_python() else { return };
    let script = r#"
import time, signal
NB = fcntl.LOCK_EX | fcntl.LOCK_NB
def other(kind=NB):
    # Another description, in another process; in the kernel it is closed before its process is waited for.
    code = f'import fcntl, os, sys; f = os.open(sys.argv[1], os.O_RDWR)\ntry: fcntl.flock(f, {kind}); print("got it", flush=True)\nexcept OSError: print("locked", flush=True)\nfcntl.flock(f, 8)'
    sys.stdout.flush(); subprocess.run(['python3', '-c', code, j(t, 'f')])
def comes(what):
    for i in range(500):
        try: fcntl.flock(what, NB); fcntl.flock(what, fcntl.LOCK_UN); print('free'); return
        except OSError: time.sleep(0.01)
    print('never free')
open(j(t, 'f'), 'w').close(); probe = os.open(j(t, 'f'), os.O_RDWR)
# The parent closes, the child has it still; then the child is killed.
r, w = os.pipe(); f = os.open(j(t, 'f'), os.O_RDWR); fcntl.flock(f, fcntl.LOCK_EX)
child = os.fork()
if child == 0: os.read(r, 1); os._exit(0)
os.close(f); other(); other(fcntl.LOCK_SH | fcntl.LOCK_NB); os.kill(child, signal.SIGKILL); os.wait(); comes(probe); other()
# The parent ends, as daemons do.
sys.stdout.flush()
if os.fork() == 0:
    f = os.open(j(t, 'f'), os.O_RDWR); fcntl.flock(f, fcntl.LOCK_EX)
    if os.fork(): os._exit(0)
    os.read(r, 1); os._exit(0)
os.wait(); other(); os.write(w, b'x'); comes(probe)
# The child unlocks, converts, and locks for its parent.
f = os.open(j(t, 'f'), os.O_RDWR); fcntl.flock(f, fcntl.LOCK_EX)
def child(do):
    if os.fork() == 0: do(); os._exit(0)
    os.wait()
child(lambda: fcntl.flock(f, fcntl.LOCK_UN)); other()
child(lambda: fcntl.flock(f, NB)); other(); child(lambda: os.close(f)); other()
child(lambda: fcntl.flock(f, fcntl.LOCK_SH)); other(); other(fcntl.LOCK_SH | fcntl.LOCK_NB); os.close(f); other()
"#;
    same(&rig, script);
    rig.same("exec 9>$T/l; flock -n 9 && echo mine; flock -n $T/l echo no || echo locked; exec 9>&-; flock -n $T/l echo free");
    rig.same("( flock -n 9 || echo not; flock -n $T/l echo no || echo locked; flock -u 9; flock -n $T/l echo free ) 9>$T/l");
    rig.same("exec 8>$T/l; flock 8; bash -c 'exec 8>&-; true'; flock -n $T/l echo no || echo locked; exec 8>&-; flock -n $T/l echo free");
}

#[test]
fn programs_that_close_everything() {
    let Some(rig) = Rig::with_python() else { return };
    same(
        &rig,
        r#"
open(j(t, 'f'), 'w').write('x'); os.closerange(3, 2000); print(open(j(t, 'f')).read())
f = os.open(j(t, 'f'), os.O_RDWR); libc.close_range(3, 0xffffffff, 0); print(tries(lambda: os.fstat(f)), open(j(t, 'f')).read())
for fd in range(600, 1000): tries(lambda: os.dup2(0, fd))
print(open(j(t, 'f')).read())
os.closerange(0, 1); f = os.open(j(t, 'f'), os.O_RDONLY); print(f)
"#,
    );
}

#[test]
fn c_streams() {
    let Some(rig) = Rig::with_python() else { return };
    same(
        &rig,
        r#"
libc.fopen.restype = ctypes.c_void_p; libc.freopen.restype = ctypes.c_void_p; libc.fdopen.restype = ctypes.c_void_p
P = ctypes.c_void_p; path = j(t, 's').encode()
f = libc.fopen(path, b'w+'); print(libc.fputs(b'hello world\n', P(f)) >= 0, libc.ftell(P(f)), libc.fileno(P(f)) > 2, libc.fseek(P(f), 6, 0)); b = ctypes.create_string_buffer(20); libc.fgets(b, 20, P(f)); print(b.value, libc.feof(P(f)), libc.fclose(P(f)))
f = libc.fopen(path, b'a'); libc.fprintf(P(f), b'%d\n', 7); libc.fclose(P(f)); print(open(path).read(), libc.fopen(j(t, 'no/x').encode(), b'r'), libc.fopen(path, b'wx'))
fd = os.open(path, os.O_RDONLY); f = libc.fdopen(fd, b'r'); libc.fgets(b, 20, P(f)); print(b.value, libc.fdopen(fd, b'w'), libc.fclose(P(f)), tries(lambda: os.fstat(fd)))
sys.stdout.flush(); o = ctypes.c_void_p.in_dll(libc, 'stdout'); libc.freopen(j(t, 'o').encode(), b'w', o); libc.puts(b'to file'); libc.printf(b'%s\n', b'more'); libc.fflush(None); sys.stderr.write(open(j(t, 'o')).read())
libc.puts(b'at exit')
"#,
    );
    rig.same("cat $T/o");
}

#[test]
fn many_threads() {
    let Some(rig) = Rig::with_python() else { return };
    same(
        &rig,
        r#"
def work(n):
    for i in range(60):
        p = j(t, f'{n}-{i}'); fd = os.open(p, os.O_CREAT | os.O_RDWR); os.write(fd, p.encode()); assert os.pread(fd, 999, 0) == p.encode(); os.close(fd)
        if i % 2: os.unlink(p)
        if i % 20 == 0: subprocess.run(['true'])
threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
[x.start() for x in threads]; [x.join() for x in threads]; print(len(os.listdir(t)), sorted(os.listdir(t))[:3])
"#,
    );
}

/// Paths that are known are found as those that are not: in directories that move, from others, by other names.
#[test]
fn known_paths() {
    let Some(rig) = Rig::with_python() else { return };
    same(
        &rig,
        r#"
os.makedirs(j(t, 'a/b/c')); open(j(t, 'a/b/c/f'), 'w').write('f'); os.symlink('b', j(t, 'a/l')); os.symlink('c/f', j(t, 'a/b/s')); os.mkdir(j(t, 'a/.x')); open(j(t, 'a/.x/..y'), 'w').write('12')
names = ['f', 'c/f', 'b/c/f', 'a/b/c/f', './c/f', '../b/c/f', 'l/c/f', 's', 'b/s', 'b/s/', 'c/f/', 'c/', 'c/.', 'b//c', '.x/..y', '.x/../.x', 'none/f', 'c/f/x', '', '.', 'new']
d = os.open(j(t, 'a/b'), os.O_RDONLY)
def look(at):
    out = []
    for n in names:
        for _ in range(2):
            out.append((n, tries(lambda: os.stat(n).st_size * (not os.path.isdir(n))), tries(lambda: oct(os.lstat(n).st_mode)), tries(lambda: oct(os.stat(n, dir_fd=d).st_mode)), tries(lambda: os.access(n, os.X_OK, dir_fd=d)),
                tries(lambda: oct(os.stat(j(at, n)).st_mode)), tries(lambda: open(n).read()), tries(lambda: os.close(os.open(n, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=d)))))
    print(out)
for at in [j(t, 'a'), j(t, 'a/b'), t, '/']: os.chdir(at); look(at)
def where(n): f = os.open(n, os.O_CREAT | os.O_RDWR, dir_fd=d); p = os.readlink(f'/proc/self/fd/{f}')[len(t):]; os.close(f); os.unlink(n, dir_fd=d); return p
print(where('new'), where('c/new'), where('../l/new'), tries(lambda: where('s/new')), tries(lambda: where('x' * 300)))
os.chdir(j(t, 'a/b')); f = os.open('c/f', os.O_RDWR); print(os.readlink(f'/proc/self/fd/{f}')[len(t):], os.getcwd()[len(t):])
os.rename(j(t, 'a/b/c'), j(t, 'c')); look(j(t, 'a/b')); os.rename(j(t, 'a'), j(t, 'moved')); look(j(t, 'moved/b')); os.mkdir(j(t, 'moved/b/c')); look(j(t, 'moved/b')); os.rmdir(j(t, 'moved/b/c')); look(j(t, 'moved/b'))
os.write(f, b'more'); print(os.stat(j(t, 'c/f')).st_size, open(j(t, 'c/f')).read(), os.stat('../../c/f').st_size); os.unlink(j(t, 'c/f')); print(tries(lambda: os.stat(j(t, 'c/f'))), tries(lambda: open(j(t, 'c/f'))), os.fstat(f).st_nlink)
open(j(t, 'c/f'), 'w'); print(os.stat(j(t, 'c/f')).st_size, os.fstat(f).st_size); os.chmod(j(t, 'c/f'), 0o600); print(oct(os.stat(j(t, 'c/f')).st_mode)); os.truncate(j(t, 'c/f'), 9); print(os.stat(j(t, 'c/f')).st_size)
"#,
    );
}

/// Threads that look at descriptors while others close and open them: each sees the file that was meant, or none.
#[test]
fn threads_that_share_descriptors() {
    let Some(rig) = Rig::with_python() else { return };
    same(
        &rig,
        r#"
os.mkdir(j(t, 'd')); files = [j(t, f'd/{n}') for n in range(6)]
for p in files: open(p, 'w').write(p)
stop = []; wrong = []
def open_and_close(n):
    for i in range(400):
        p = files[(n + i) % 6]; fd = os.open(p, os.O_RDONLY); e = os.dup(fd)
        if os.pread(fd, 999, 0) != p.encode() or os.pread(e, 999, 0) != p.encode(): wrong.append(p)
        os.close(fd); os.close(e)
def look():
    while not stop:
        for fd in range(3, 40):
            try: got = os.pread(fd, 999, 0).decode()
            except (OSError, UnicodeDecodeError): got = None
            if got and got.startswith(t) and got not in files: wrong.append(got)
lookers = [threading.Thread(target=look) for _ in range(2)]; workers = [threading.Thread(target=open_and_close, args=(n,)) for n in range(4)]
for x in lookers + workers: x.start()
for x in workers: x.join()
stop.append(1); [x.join() for x in lookers]; print(wrong, len(os.listdir(j(t, 'd'))))
"#,
    );
}

#[test]
fn many_files_and_directories_of_children() {
    let Some(rig) = Rig::with_python() else { return };
    same(
        &rig,
        r#"
fds = [os.open(j(t, f'f{i}'), os.O_CREAT | os.O_RDWR) for i in range(650)]
for i in range(0, 650, 2): os.close(fds[i])
for i in range(1, 650, 2): os.write(fds[i], b'%d' % i)
print(os.pread(fds[649], 9, 0), open(j(t, 'f511')).read(), len(os.listdir(t)))
d = os.open(t, os.O_RDONLY); print(len(os.listdir(d)), len(os.listdir(d))); os.close(d)
subprocess.run(['pwd'], cwd='/'); here = os.getcwd(); print(here == os.getcwd())
stop = []
def replace():
    while not stop: open(j(t, 'new'), 'w').close(); os.rename(j(t, 'new'), j(t, 'f1'))
x = threading.Thread(target=replace); x.start()
for i in range(300): open(j(t, 'f1')).close(); os.stat(j(t, 'f1'))
for i in range(20):
    r = os.fork()
    if r == 0: os.pread(fds[3], 1, 0); open(j(t, 'f5')).close(); os._exit(0)
    print(os.waitpid(r, 0)[1], end=' ')
stop.append(1); x.join(); print('done')
"#,
    );
}

/// A description that another process still has is not used for the next file, however that process came by it.
#[test]
fn descriptions_are_used_again_when_nobody_has_them() {
    let Some(rig) = Rig::with_python() else { return };
    same(
        &rig,
        r#"
import socket, array
def turn(name, start, wait):
    for i in range(40): os.close(os.open(j(t, 'warm'), os.O_CREAT | os.O_RDWR))
    f = os.open(j(t, name), os.O_CREAT | os.O_WRONLY); os.set_inheritable(f, True)
    what = start(f, f'sleep 0.2; echo {name} >&9')
    os.close(f)
    others = [os.open(j(t, f'{name}-{i}'), os.O_CREAT | os.O_RDWR) for i in range(40)]
    wait(what)
    for o in others: os.write(o, b'mine')
    print(name, open(j(t, name)).read(), {os.pread(o, 9, 0) for o in others})
    for o in others: os.close(o)
def fork(f, script):
    if os.fork() == 0: os.dup2(f, 9); os.execv('/bin/sh', ['sh', '-c', script])
def spawn(f, script): os.posix_spawn('/bin/sh', ['sh', '-c', script], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, f, 9)])
def system(f, script): os.system(f'({script}) 9>&{f} &')
def popen(f, script): return libc_popen(f'exec 9>&{f}; {script}'.encode(), b'r')
libc_popen = libc.popen; libc_popen.restype = ctypes.c_void_p; libc.pclose.argtypes = [ctypes.c_void_p]
ours, theirs = socket.socketpair()
def send(f, script):
    socket.send_fds(ours, [script.encode()], [f])
    return receiver
if (receiver := os.fork()) == 0:
    script, fds, _, _ = socket.recv_fds(theirs, 1000, 1)
    os.dup2(fds[0], 9); os.execv('/bin/sh', ['sh', '-c', script.decode()])
turn('send', send, lambda p: os.waitpid(p, 0))
for i in range(2):
    turn(f'fork{i}', fork, lambda _: os.wait()); turn(f'spawn{i}', spawn, lambda _: os.wait())
    turn(f'popen{i}', popen, libc.pclose); turn(f'system{i}', system, lambda _: __import__('time').sleep(0.6))
# Lowest free numbers, flags of the kernel, and offsets that begin at zero.
a = os.open(j(t, 'warm'), os.O_RDWR); os.write(a, b'12345'); os.close(a)
b = os.open(j(t, 'warm'), os.O_RDONLY); c = os.open(j(t, 'warm'), os.O_RDONLY | os.O_APPEND); print(a == b, c - b, os.lseek(b, 0, 1), os.get_inheritable(b), os.read(b, 9))
threads = [threading.Thread(target=lambda n=n: [os.close(os.open(j(t, 'warm'), os.O_RDONLY)) for _ in range(300)]) for n in range(4)]
for th in threads: th.start()
for i in range(10):
    if os.fork() == 0: os._exit(0)
    os.wait()
for th in threads: th.join()
print(os.read(c, 3))
"#,
    );
}

/// The path of the current directory is the one that it has now, however it came by that, and however long that is.
#[test]
fn current_directories_that_move() {
    let Some(rig) = Rig::with_python() else { return };
    same(
        &rig,
        r#"
libc.getcwd.restype = ctypes.c_void_p
def pwd(): print(subprocess.run(['/bin/pwd'], capture_output=True).stdout.decode().strip()[len(t):] or 'none'); sys.stdout.flush()
def cwd(n):
    room = ctypes.create_string_buffer(n)
    return len(room.value) - len(t) if libc.getcwd(room, n) else errno.errorcode[ctypes.get_errno()]
os.makedirs(j(t, 'a/b/c')); os.chdir(j(t, 'a/b/c')); os.rename(j(t, 'a'), j(t, 'moved')); print(os.getcwd()[len(t):]); pwd()
os.makedirs(j(t, 'a/b/c')); print(os.getcwd()[len(t):]); pwd(); os.chdir('..'); print(os.getcwd()[len(t):]); os.chdir('c')
os.rename(j(t, 'moved/b/c'), j(t, 'c2')); print(os.getcwd()[len(t):], os.path.realpath('x')[len(t):]); os.rmdir(j(t, 'c2')); print(tries(os.getcwd))
os.chdir(t)
for i in range(24):
    os.mkdir('d' * 200); os.chdir('d' * 200); print(cwd(10), cwd(4096), cwd(9000))
d = os.open('.', os.O_RDONLY); os.chdir('/'); os.fchdir(d); print(cwd(9000))
"#,
    );
}

/// Directories read without a stream, and with one that goes on from there.
#[test]
fn entries_of_directories() {
    let Some(rig) = Rig::with_python() else { return };
    same(
        &rig,
        r#"
d = j(t, 'd'); os.mkdir(d); os.mkdir(j(d, 'sub')); os.symlink('x', j(d, 'link'))
for i in range(600): open(j(d, 'a file with a name that is not short %d' % i), 'w').close()
libc.getdents64.restype = libc.syscall.restype = ctypes.c_ssize_t
def named(fd, room): return libc.getdents64(fd, room, len(room))
def numbered(fd, room): return libc.syscall(217, fd, room, ctypes.c_size_t(len(room)))
def entries(fd, size, get):
    room = ctypes.create_string_buffer(size); raw = memoryview(room).cast('B')
    while True:
        n = get(fd, room)
        if n <= 0: return
        at = 0
        while at < n:
            ino, off = (int.from_bytes(raw[at + i:at + i + 8], 'little') for i in (0, 8)); length = int.from_bytes(raw[at + 16:at + 18], 'little')
            yield bytes(raw[at + 19:at + length]).split(b'\0')[0].decode(), ino, off, raw[at + 18]
            at += length
        assert at == n
for get in [named] + ([numbered] if os.uname().machine == 'x86_64' else []):
    for size in 96, 4096, 1 << 20:
        fd = os.open(d, os.O_RDONLY); seen = list(entries(fd, size, get)); os.lseek(fd, 0, 0)
        print(len(seen), sorted((n, kind, n == '..' or ino == os.lstat(j(d, n)).st_ino) for n, ino, _, kind in seen)[::50], len(set(n for n, *_ in seen)))
        # From any entry on, and by two descriptors of one description.
        os.lseek(fd, seen[99][2], 0); rest = list(entries(os.dup(fd), size, get)); print([n for n, *_ in rest] == [n for n, *_ in seen[100:]])
        print(list(entries(fd, size, get)), os.lseek(fd, 0, 0), len(os.listdir(fd)))
    fd = os.open(d, os.O_RDONLY); bad = lambda fd, size: (get(fd, ctypes.create_string_buffer(size)), ctypes.get_errno())
    print(bad(fd, 16), bad(fd, 0), bad(os.open(j(d, 'a file with a name that is not short 1'), os.O_RDWR), 4096), bad(999, 4096))
    os.mkdir(j(t, 'gone')); fd = os.open(j(t, 'gone'), os.O_RDONLY); os.rmdir(j(t, 'gone')); print(get(fd, ctypes.create_string_buffer(999)))
os.chdir(d); libc.getwd.restype = ctypes.c_char_p; print(libc.getwd(ctypes.create_string_buffer(4096)))
"#,
    );
}

/// What another program could not open once more it has all the same.
#[test]
fn files_without_names_across_processes() {
    let Some(rig) = Rig::with_python() else { return };
    same(
        &rig,
        r#"
def opened(name, mode=0o600, flags=os.O_RDWR):
    f = os.open(j(t, name), os.O_CREAT | flags, mode); os.set_inheritable(f, True); os.write(f, b'of ' + name.encode()); os.lseek(f, 0, 0); return f
cat = lambda f: print(subprocess.run(['cat'], stdin=f, capture_output=True)); sys.stdout.flush()
# Started with it, and replaced: by an exec the session ends.
f = opened('gone'); os.unlink(j(t, 'gone')); cat(f); os.lseek(f, 0, 0)
n = os.open(t, os.O_TMPFILE | os.O_RDWR, 0o400); os.set_inheritable(n, True); os.write(n, b'no name'); os.lseek(n, 0, 0)
m = opened('forbidden', 0); os.chmod(j(t, 'forbidden'), 0)
if os.fork() == 0:
    print([os.read(x, 99) for x in (f, n, m)]); sys.stdout.flush()
    for x in (f, n, m): os.lseek(x, 3, 0)
    os.execvp('python3', ['python3', '-c', f'import os\nfor x in ({f}, {n}, {m}): print(os.read(x, 99), os.write(x, b"!"), os.fstat(x).st_nlink)'])
os.wait(); print([os.pread(x, 99, 0) for x in (f, n, m)])
# Its name goes after the exec, and before the first use.
g = opened('later'); sys.stdout.flush()
if os.fork() == 0:
    os.execvp('sh', ['sh', '-c', f'rm {t}/later; cat <&{g}'])
os.wait()
# Who had it first closes it, in each way that there is, and its name goes, before the other uses it for the first time; that had a turn before the other was begun.
def closed_before_use(close):
    g = opened('given'); r, w = os.pipe(); sys.stdout.flush()
    if os.fork() == 0:
        os.close(w); os.read(r, 1); print(os.read(g, 99), os.write(g, b'!'), os.pread(g, 99, 0), os.fstat(g).st_nlink); sys.stdout.flush(); os._exit(0)
    os.close(r); close(g); os.unlink(j(t, 'given')); os.close(w); os.wait()
    print(tries(lambda: os.fstat(g)))
closed_before_use(os.close); closed_before_use(lambda g: os.closerange(g, g + 1))
closed_before_use(lambda g: (os.chmod(j(t, 'given'), 0), os.close(g)))
def replaced(g): n = os.open('/dev/null', os.O_RDWR); os.dup2(n, g); os.close(n); os.close(g)
closed_before_use(replaced)
def copied(g): n = os.dup(g); os.close(g); os.close(n)
closed_before_use(copied)
# Who becomes another program has closed it, too.
r, w = os.pipe(); over, end = os.pipe(); sys.stdout.flush()
if os.fork() == 0:
    g = os.open(j(t, 'given'), os.O_CREAT | os.O_RDWR, 0o600); os.write(g, b'of given'); os.lseek(g, 0, 0)
    if os.fork() == 0:
        os.close(w); os.read(r, 1); print(os.read(g, 99), os.fstat(g).st_nlink); sys.stdout.flush(); os._exit(0)
    os.set_inheritable(end, False); os.execvp('true', ['true'])
os.wait(); os.unlink(j(t, 'given')); os.close(w); os.close(end); os.read(over, 1)
# Or who just ends, or is killed.
for end in [lambda: os._exit(0), lambda: os.kill(os.getpid(), 9)]:
    r, w = os.pipe(); over, ended = os.pipe(); sys.stdout.flush()
    if os.fork() == 0:
        g = os.open(j(t, 'given'), os.O_CREAT | os.O_RDWR, 0o600); os.write(g, b'of given'); os.lseek(g, 0, 0)
        if os.fork() == 0:
            os.close(w); os.read(r, 1); print(os.read(g, 99), os.write(g, b'!'), os.fstat(g).st_nlink); sys.stdout.flush(); os._exit(0)
        end()
    os.wait(); os.unlink(j(t, 'given')); os.close(w); os.close(ended); os.read(over, 1)
# A here-document that does not fit into a pipe is such a file, made by the child itself.
os.environ['TMPDIR'] = t; doc = 'x' * 70000
print(len(subprocess.run(['bash', '-c', f'cat <<END\n{doc}\nEND'], capture_output=True).stdout), len(subprocess.run(['bash', '-c', 'wc -c <<< "$0"', doc], capture_output=True).stdout))
# Locks go on as they were.
l = opened('locked'); fcntl.flock(l, fcntl.LOCK_EX); os.unlink(j(t, 'locked')); open(j(t, 'other'), 'w'); sys.stdout.flush()
os.system(f'flock -n {l} && echo mine'); fcntl.flock(l, fcntl.LOCK_UN); os.system(f'cat <&{l}'); print(sorted(os.listdir(t)))
"#,
    );
}

/// Who stands in a directory that is gone stands nowhere, not in the next one that is made; so does who has a descriptor of O_PATH.
#[test]
fn directories_that_are_gone() {
    let Some(rig) = Rig::with_python() else { return };
    same(
        &rig,
        r#"
def others(script): subprocess.run(['sh', '-c', script], cwd='/')
for i in range(3):
    os.mkdir(j(t, 'd')); os.chdir(j(t, 'd')); p = os.open(j(t, 'd'), os.O_PATH); q = os.open(j(t, 'd'), os.O_RDONLY)
    if i == 1: open(j(t, 'file'), 'w'); r = os.open(j(t, 'file'), os.O_PATH)
    others(f'rmdir {t}/d; rm -f {t}/file; mkdir {t}/e {t}/f; touch {t}/g; mkdir {t}/e/sub')
    tell = [lambda: open('x', 'w'), lambda: os.mkdir('x'), lambda: os.listdir('.'), lambda: os.getcwd(), lambda: os.stat('sub'), lambda: os.stat('.').st_nlink, lambda: os.stat('x', dir_fd=p),
            lambda: os.mkdir('x', dir_fd=p), lambda: os.mkdir('x', dir_fd=q), lambda: os.fstat(p).st_nlink, lambda: os.fstat(q).st_nlink, lambda: os.fchdir(q), lambda: os.listdir(q), lambda: os.fstat(r).st_nlink if i == 1 else 0]
    print([tries(f) for f in tell]); sys.stdout.flush()
    if os.fork() == 0: print([tries(f) for f in tell]); sys.stdout.flush(); os._exit(0)
    os.wait(); os.chdir(t); os.close(p); os.close(q); print(sorted(os.listdir(t)), os.listdir(j(t, 'f'))); others(f'rm -r {t}/e {t}/f {t}/g')
"#,
    );
}

/// What streams that append do with the offset, which others have too.
#[test]
fn streams_that_append() {
    let Some(rig) = Rig::with_python() else { return };
    same(
        &rig,
        r#"
libc.fopen.restype = libc.fdopen.restype = libc.freopen.restype = ctypes.c_void_p; libc.ftell.restype = ctypes.c_long
path = j(t, 'log').encode(); V = ctypes.c_void_p
for mode in [b'a', b'a+', b'a', b'w', b'a', b'r+', b'ae']:
    s = V(libc.fopen(path, mode)); print(mode, libc.ftell(s), libc.fputs(b'a line' + mode, s) >= 0, libc.ftell(s), libc.fclose(s), open(path, 'rb').read())
for mode in [b'a', b'a+', b'r', b'r+']:
    fd = os.open(path, os.O_RDWR); os.lseek(fd, 3, 0); s = V(libc.fdopen(os.dup(fd), mode)); print(mode, libc.ftell(s), oct(fcntl.fcntl(fd, fcntl.F_GETFL)), os.lseek(fd, 0, 1))
    libc.fputs(b'more', s); libc.fclose(s); print(os.lseek(fd, 0, 1), os.write(fd, b'-'), open(path, 'rb').read()); os.close(fd)
s = V(libc.fopen(path, b'r')); s = V(libc.freopen(path, b'a', s)); print(libc.ftell(s), libc.fclose(s))
fd = os.open(path, os.O_RDWR); print(os.pwritev(fd, [b'ap', b'pended'], 2, getattr(os, 'RWF_APPEND', 16)), os.lseek(fd, 0, 1), libc.pwritev2 is not None, open(path, 'rb').read())
for flags in [os.O_RDONLY, os.O_WRONLY | os.O_APPEND, os.O_RDWR | os.O_NOFOLLOW | os.O_SYNC, os.O_PATH, os.O_RDONLY | os.O_NONBLOCK]: print(oct(fcntl.fcntl(os.open(path, flags), fcntl.F_GETFL)))
print([oct(fcntl.fcntl(os.open(t, flags, 0o600), fcntl.F_GETFL)) for flags in (os.O_DIRECTORY, os.O_TMPFILE | os.O_RDWR)], tries(lambda: os.open(t + '/none/x', os.O_CREAT | os.O_DIRECTORY)))
"#,
    );
}

/// Of two paths of which one is the kernel's, what is wrong is told as between any two file systems.
#[test]
fn names_on_two_file_systems() {
    let Some(rig) = Rig::with_python() else { return };
    same(
        &rig,
        r#"
open(j(t, 'f'), 'w'); os.mkdir(j(t, 'd'))
for call in (os.rename, os.link, os.replace):
    for a, b in [(j(t, 'f'), '/proc/none/x'), ('/proc/none/x', j(t, 'g')), ('/proc/version', j(t, 'none/g')), (j(t, 'none'), '/proc/here'), (j(t, 'f'), '/proc/version/x')]: print(call.__name__, tries(lambda: call(a, b)))
print(tries(lambda: os.rename(j(t, 'f'), j(t, 'd/' * 2050 + 'x'))), tries(lambda: os.link(j(t, 'd/' * 2050 + 'x'), j(t, 'g'))))
print(tries(lambda: os.rename('x', 'y', src_dir_fd=77, dst_dir_fd=os.open(t, 0))), tries(lambda: os.link('/proc/version', j(t, 'f'))), tries(lambda: os.symlink('', j(t, 'none/x'))), tries(lambda: os.symlink('x', j(t, 'd/'))))
print(tries(lambda: os.link(j(t, 'd'), j(t, 'f'))), tries(lambda: os.link(j(t, 'd'), j(t, 'new/'))), tries(lambda: os.rename(j(t, 'f'), j(t, 'd/.'))), tries(lambda: os.mkdir(j(t, 'f/.'))), tries(lambda: os.remove(j(t, 'd/.'))))
print(tries(lambda: os.sendfile(77, os.open(j(t, 'f'), 0), 0, 9)), tries(lambda: os.utime(j(t, 'none'), ns=(0, 0))), tries(lambda: os.truncate(os.open(j(t, 'f'), os.O_PATH), 0)))
"#,
    );
}

/// What is sent through a socket is the same open file at the other end, whatever became of its name and of who sent it.
#[test]
fn descriptors_in_messages() {
    let Some(rig) = Rig::with_python() else { return };
    same(
        &rig,
        r#"
import socket
a, b = socket.socketpair(); f = os.open(j(t, 'f'), os.O_CREAT | os.O_RDWR | os.O_APPEND, 0); g = os.open(j(t, 'g'), os.O_CREAT | os.O_RDWR); d = os.open(t, os.O_RDONLY)
os.write(f, b'written '); os.write(g, b'0123456789'); os.lseek(g, 4, 0); os.unlink(j(t, 'f')); sys.stdout.flush()
if os.fork() == 0:
    os.close(f); os.close(g); os.close(d); os.unlink(j(t, 'g'))
    for i in range(2):
        text, got, _, _ = socket.recv_fds(b, 99, 9)
        print(text, len(got), [tries(lambda: os.read(x, 3)) for x in got[:2]], os.lseek(got[0], 0, 1), os.write(got[0], b'there '), os.fstat(got[1]).st_nlink, sorted(os.listdir(got[2])), got[0]); sys.stdout.flush()
        b.send(b'done')
    subprocess.run(['cat'], stdin=got[1]); os._exit(0)
for i in range(2): socket.send_fds(a, [b'some'], [f, g, d]); print(a.recv(4), os.lseek(g, 0, 1), os.pread(f, 99, 0)); sys.stdout.flush()
for x in (f, g, d): os.close(x)
os.wait()
# Within one process, and a message without descriptors.
h = os.open(j(t, 'h'), os.O_CREAT | os.O_RDWR); socket.send_fds(a, [b'own'], [h]); _, got, _, _ = socket.recv_fds(b, 99, 9); os.write(h, b'one'); os.close(h); print(os.write(got[0], b'two'), os.pread(got[0], 9, 0)); a.send(b'x'); print(socket.recv_fds(b, 9, 9)[:2])
"#,
    );
}

/// Who appends finds the offset behind its own bytes, whatever others append at the same time.
#[test]
fn offsets_behind_what_was_appended() {
    let Some(rig) = Rig::with_python() else { return };
    same(
        &rig,
        r#"
def appends(who):
    fd, wrong = os.open(j(t, 'log'), os.O_RDWR | os.O_CREAT | os.O_APPEND), 0
    for i in range(600):
        mine = b'%d %6d\n' % (who, i)
        os.write(fd, mine)
        end = os.lseek(fd, 0, os.SEEK_CUR)
        wrong += os.pread(fd, len(mine), end - len(mine)) != mine
    return wrong
children = []
for who in range(4):
    pid = os.fork()
    if pid == 0: os._exit(min(appends(who), 255))
    children.append(pid)
print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children], os.stat(j(t, 'log')).st_size, len(set(open(j(t, 'log')))))
"#,
    );
}

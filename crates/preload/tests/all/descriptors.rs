//! Descriptors that are closed, and the numbers of those that come after them: as in the kernel, although those that were closed last stay there for
//! the next files.

use crate::rig::{MOUNT, Rig};

const HEAD: &str = r#"
for n in 'abc': open(j(t, n), 'w').write(n)
def o(n, flags=os.O_RDONLY): return os.open(j(t, n), flags)
# Closes a descriptor, does something, and says what, and which numbers are free then. Twice: the first time there is nothing to use again.
def after(f, flags=0):
    for _ in range(2):
        fd = libc.open(j(t, 'a').encode(), flags); assert libc.close(fd) == 0; print(fd, f(fd)); free()
def free():
    fds = [o('a'), os.open('/dev/null', os.O_RDONLY), o('b'), os.dup(2)]; print(fds, os.pread(fds[0], 9, 0), os.pread(fds[2], 9, 0)); [os.close(f) for f in fds]
def listed(): return sorted(int(f) for f in os.listdir('/proc/self/fd') if int(f) < 64)
LIST = "import os; print(sorted(int(f) for f in os.listdir('/proc/self/fd') if int(f) < 64), flush=True)"
"#;

fn same(script: &str) {
    let Some(rig) = Rig::with_python() else { return };
    rig.same_python(&format!("{HEAD}{script}"));
}

/// That these tests test something: descriptors that were closed are there until a call goes to libc, as many as there is room for.
#[test]
fn the_last_ones_stay() {
    let Some(rig) = Rig::with_python() else { return };
    let script = r#"
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.close(libc.open(b'%s/f', 0o102, 0o644))
def opened(n): return [libc.open(b'%s/f', 0) for _ in range(n)]
def closed(fds):
    for fd in fds: libc.close(fd)
def says(fd): return libc.isatty(fd), ctypes.get_errno()
a, b, c = sorted(opened(3)); closed([b, a, c])
print(*map(says, [a, b, c])); print(libc.fcntl(a, 1), ctypes.get_errno(), *map(says, [a, b, c]))
fds = sorted(opened(20)); closed(fds[8:]); closed(fds[:8])
there = [says(fd)[1] for fd in fds]; libc.fcntl(a, 1)
print(there, {says(fd)[1] for fd in fds})
"#
    .replace("%s", MOUNT);
    let out = rig.run("python3", &["-c".into(), script.into()], rig.plain.path());
    let [tty, bad] = [25, 9].map(|errno| format!("(0, {errno}) (0, {errno}) (0, {errno})"));
    let there: Vec<_> = (0..20).map(|fd| if fd < 8 { 25 } else { 9 }).collect();
    let want = format!("{tty}\n-1 9 {bad}\n{there:?} {{9}}\n");
    assert_eq!(String::from_utf8_lossy(&out.stdout), want, "{out:?}");
}

#[test]
fn closed_is_closed() {
    same(
        r#"
import select
class Poll(ctypes.Structure): _fields_ = [('fd', ctypes.c_int), ('events', ctypes.c_short), ('got', ctypes.c_short)]
def says(call):
    def f(fd): ctypes.set_errno(0); r = tries(lambda: call(fd)); return r, errno.errorcode.get(ctypes.get_errno())
    return f
b = ctypes.create_string_buffer(4096)
for call in [lambda fd: libc.close(fd), lambda fd: libc.fcntl(fd, fcntl.F_GETFD), lambda fd: libc.fcntl(fd, fcntl.F_GETFL), lambda fd: libc.read(fd, b, 1), lambda fd: libc.pread(fd, b, 1, 0),
             lambda fd: libc.write(fd, b, 1), lambda fd: libc.lseek(fd, 0, 0), lambda fd: libc.lseek(fd, 5, 1), lambda fd: libc.fstat(fd, b), lambda fd: libc.fsync(fd), lambda fd: libc.ftruncate(fd, 0),
             lambda fd: libc.fchmod(fd, 0o600), lambda fd: libc.dup(fd), lambda fd: libc.dup2(fd, 40), lambda fd: libc.fchdir(fd), lambda fd: libc.openat(fd, b'x', 0), lambda fd: libc.flock(fd, 2), lambda fd: libc.syscall(3, fd),
             lambda fd: libc.fgetxattr(fd, b'user.x', b, 9), lambda fd: libc.posix_fadvise(fd, 0, 0, 0), lambda fd: libc.ioctl(fd, 0x5451), lambda fd: libc.fdopen(fd, b'r') == 0, lambda fd: libc.poll(ctypes.byref(Poll(fd, 1, 0)), 1, 0), lambda fd: select.select([fd], [], [], 0), lambda fd: libc.fdopendir(fd) == 0]:
    after(says(call)); after(says(call), os.O_CLOEXEC)
"#,
    );
}

#[test]
fn numbers_are_the_lowest() {
    same(
        r#"
import socket
def two(fds): os.close(fds[1]); return fds[0]
for f in [lambda fd: o('b'), lambda fd: os.open('/dev/null', os.O_RDONLY), lambda fd: os.dup(0), lambda fd: fcntl.fcntl(0, fcntl.F_DUPFD, 3), lambda fd: os.dup2(0, fd), lambda fd: os.dup2(0, fd, False), lambda fd: o('b', os.O_RDONLY | os.O_NOFOLLOW), lambda fd: socket.socket().detach(), lambda fd: os.eventfd(0), lambda fd: two(os.pipe())]:
    for flags in 0, os.O_CLOEXEC:
        kept = []
        def keep(fd): kept.append(f(fd)); return kept[-1], os.get_inheritable(kept[-1])
        after(keep, flags); print(kept); [os.close(k) for k in kept]
# Lower numbers become free while others are open, or parked.
a, n, b, c = o('a'), os.open('/dev/null', 0), o('b'), o('c'); os.close(c); os.close(n); free(); os.close(b); free(); os.close(a); free()
n, a, m, b = os.open('/dev/null', 0), o('a'), os.open('/dev/null', 0), o('b'); os.close(n); os.close(b); free(); os.close(a); free(); os.close(m); free()
a, b, c = o('a'), o('b'), o('c'); os.close(a); os.close(b); free(); os.close(c); free()
a, b, c = o('a'), o('b'), o('c'); os.close(c); os.close(a); free(); os.close(b); free()
a = o('a'); d = os.dup(a); os.close(a); free(); os.close(d); free(); d = os.dup2(o('a'), 20); os.close(20); free()
a = o('a'); os.closerange(3, 30); free(); a = o('a'); os.close(a); os.closerange(3, 30); free(); libc.close_range(3, 30, 0); free()
# The standard ones.
if os.fork() == 0: os.close(0); print(o('a'), o('b')); os.close(0); print(os.open('/dev/null', 0), listed(), flush=True); os._exit(0)
os.wait(); f = libc.fopen; f.restype = ctypes.c_void_p
for _ in range(3): s = f(j(t, 'a').encode(), b'r'); print(libc.fileno(ctypes.c_void_p(s)), libc.fclose(ctypes.c_void_p(s))); free(); os.listdir(t); free()
"#,
    );
}

#[test]
fn numbers_are_the_lowest_of_several() {
    same(
        r#"
import itertools, random, socket
def opened(how): return [f() for f in how]
ours = [lambda n=n: o(n) for n in 'abc']; pipe = lambda: os.pipe(); sock = lambda: socket.socket().detach(); null = lambda: os.open('/dev/null', os.O_RDONLY)
cloexec = lambda: libc.open(j(t, 'a').encode(), os.O_CLOEXEC); stays = lambda: libc.open(j(t, 'a').encode(), 0)
def end(fds):
    for f in fds: end(f) if isinstance(f, tuple) else os.close(f)
for then in [ours, [pipe], [sock] * 3, [null, ours[0], null], [ours[0], pipe], [cloexec] * 3, [stays] * 3, [stays, cloexec, stays], [ours[0], sock, ours[1]]]:
    for how in ours, [cloexec] * 3, [stays, cloexec, stays]:
        for order in itertools.permutations(range(3)):
            fds = opened(how)
            for i in order: os.close(fds[i])
            again = opened(then); print(order, fds, again); end(again)
# Some go where others are open, or more than stay.
dice = random.Random(1); fds = []; done = []
for i in range(4000):
    if dice.random() < len(fds) / 24:
        at = dice.randrange(len(fds)); os.close(fds[at]); del fds[at]
    else:
        call = dice.choice(ours + [cloexec, stays] * 2 + ([null, sock, lambda: os.dup(0)] if i % 200 < 20 else [])); fds.append(call()); done.append(fds[-1])
print(done); end(fds); free()
for n in 5, 8, 9, 20:
    for order in sorted, lambda f: sorted(f, reverse=True), lambda f: dice.sample(f, n):
        fds = [o('a') for _ in range(n)]; [os.close(f) for f in order(fds)]; again = [o('b') for _ in range(n)]; print(fds, again, {os.pread(f, 9, 0) for f in again}); end(again)
"#,
    );
}

#[test]
fn programs_and_processes_get_none() {
    same(
        r#"
import time
def start(f):
    def g(fd): sys.stdout.flush(); f(); return 'started'
    after(g); after(g, os.O_CLOEXEC)
def forked(f):
    sys.stdout.flush(); pid = os.fork()
    if pid == 0:
        try: f()
        finally: os._exit(1)
    os.waitpid(pid, 0)
run = ['python3', '-c', LIST]; P = ctypes.c_char_p; args = (P * 4)(b'python3', b'-c', LIST.encode(), None); py = __import__('shutil').which('python3').encode(); env = (P * 1)(None)
start(lambda: subprocess.run(run)); start(lambda: subprocess.run(run, close_fds=False)); start(lambda: os.system('python3 -c "' + LIST + '"')); start(lambda: print(subprocess.check_output(run)))
start(lambda: os.waitpid(os.posix_spawnp('python3', run, os.environ), 0)); start(lambda: forked(lambda: print(listed(), flush=True))); start(lambda: forked(lambda: os.execvp('python3', run)))
def closed(): fds = [libc.open(j(t, 'a').encode(), 0) for _ in range(3)]; [os.close(fds[i]) for i in (2, 0, 1)]
several = lambda f: lambda: (closed(), f(), closed())
start(several(lambda: subprocess.run(run, close_fds=False))); start(several(lambda: os.system('python3 -c "' + LIST + '"'))); start(several(lambda: os.waitpid(os.posix_spawnp('python3', run, os.environ), 0))); start(several(lambda: forked(lambda: print(listed(), flush=True))))
for become in [lambda: os.execvp('python3', run), lambda: libc.execl(py, py, b'-c', LIST.encode(), None), lambda: libc.execlp(b'python3', b'python3', b'-c', LIST.encode(), None), lambda: libc.execvp(b'python3', args),
               lambda: libc.execv(py, args), lambda: libc.execle(py, py, b'-c', LIST.encode(), None, env), lambda: libc.syscall(59, py, args, env), lambda: libc.fexecve(os.open(py, os.O_RDONLY), args, env)]:
    def do(): closed(); closed(); become()
    forked(do)
# One that does not get there goes on; so do children whose parents had one.
forked(lambda: (closed(), libc.execl(b'/none', b'none', None), free(), closed(), free(), print(listed(), flush=True)))
forked(lambda: (closed(), free(), closed(), forked(lambda: (free(), closed(), free())), free()))
# Flags that change: the next file has its own.
for change in [lambda f: os.set_inheritable(f, True), lambda f: fcntl.fcntl(f, fcntl.F_SETFD, 0), lambda f: libc.ioctl(f, 0x5450), lambda f: os.dup2(f, f + 1, True) and (os.close(f), os.dup2(f + 1, f, True), os.close(f + 1))]:
    for _ in range(2): f = o('a'); change(f); os.close(f); g = o('b'); print(f, g, os.get_inheritable(g)); sys.stdout.flush(); subprocess.run(run, close_fds=False); os.close(g)
"#,
    );
}

/// Threads open and close files while others start processes, and use files of the kernel: each has its own.
#[test]
fn threads() {
    same(
        r#"
stop = []; wrong = []
def work(n):
    for i in range(1500):
        name = 'abc'[(n + i) % 3]; fd = o(name) if i % 2 else libc.open(j(t, name).encode(), 0)
        if os.pread(fd, 9, 0) != name.encode(): wrong.append(name)
        if i % 7 == 0:
            k = os.open('/proc/self/comm', os.O_RDONLY)
            if not os.read(k, 99).startswith(b'python'): wrong.append('kernel')
            os.close(k)
        os.close(fd)
def start():
    while not stop: subprocess.run(['true'], close_fds=False)
workers = [threading.Thread(target=work, args=(n,)) for n in range(4)]; starter = threading.Thread(target=start)
for x in workers + [starter]: x.start()
for x in workers: x.join()
stop.append(1); starter.join(); print(wrong); free()
"#,
    );
}

/// A call by number closes none of the library's own descriptors, which programs can find in /proc.
#[test]
fn own_descriptors_stay() {
    same(
        r#"
fds = [o('a', os.O_RDWR) for _ in range(20)]; [os.close(f) for f in fds]
own = [int(f) for f in os.listdir('/proc/self/fd') if int(f) >= 700]
number = 3 if os.uname().machine == 'x86_64' else 57
print({(libc.syscall(number, f), ctypes.get_errno()) for f in own} <= {(-1, 9)}, open(j(t, 'a')).read()); free()
"#,
    );
}

/// What lockf(3) says of a file that others have locked to read it, and to write it.
#[test]
fn locks_that_are_tested() {
    same(
        r#"
for kind in [fcntl.LOCK_SH, fcntl.LOCK_EX]:
    there, done = os.pipe(), os.pipe()
    if os.fork() == 0: f = o('a', os.O_RDWR); fcntl.lockf(f, kind); os.write(there[1], b'x'); os.read(done[0], 1); fcntl.lockf(f, fcntl.LOCK_UN); os._exit(0)
    os.read(there[0], 1); f = o('a', os.O_RDWR); ctypes.set_errno(0); print(libc.lockf(f, 3, ctypes.c_long(0)), ctypes.get_errno(), libc.lockf(f, 2, ctypes.c_long(0))); os.write(done[1], b'x'); os.wait()
    print(libc.lockf(f, 3, ctypes.c_long(0)), libc.lockf(f, 2, ctypes.c_long(0))); os.close(f)
"#,
    );
}

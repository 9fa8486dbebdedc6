//! Record locks of programs that become others (exec): they stay, as in the kernel, until the process closes a descriptor of the file or ends.
//!
//! Scripts of python3, compared with the same in an ordinary directory; skipped where there is none.

use crate::rig::Rig;

/// Programs that do as they are told, and whether others can lock.
const HEAD: &str = r#"
import time, signal
NB = fcntl.LOCK_EX | fcntl.LOCK_NB
TOLD = 'import os, sys, fcntl, struct\nfor line in open(0, "rb", 0): print(eval(line), flush=True)'
open(j(t, 'f'), 'w').write('x' * 100)
def other(start, len=1):
    sys.stdout.flush(); pid = os.fork()
    if pid == 0:
        print(tries(lambda: fcntl.lockf(os.open(j(t, 'f'), os.O_RDWR), NB, len, start)) or 'free'); sys.stdout.flush(); os._exit(0)
    os.waitpid(pid, 0)
def comes(start):
    probe = os.open(j(t, 'f'), os.O_RDWR)
    for i in range(500):
        try: fcntl.lockf(probe, NB, 1, start); print('free'); break
        except OSError: time.sleep(0.01)
    else: print('never free')
    os.close(probe)
def opens(number=50, flags=os.O_RDWR):
    fd = os.open(j(t, 'f'), flags); os.dup2(fd, number, inheritable=True); os.close(fd)
def locks(number=50):
    opens(number); fcntl.lockf(number, NB, 10, 0)
def program(before, argv=['python3', '-c', TOLD]):
    'Another process does something, and becomes a program.'
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, close_fds=False, preexec_fn=before)
def ask(p, what):
    p.stdin.write(what + '\n'); p.stdin.flush(); print(what[:16], p.stdout.readline().strip())
def end(p):
    p.stdin.close(); p.wait()
CLOSE = 'os.close(50)'
"#;

fn same(rig: &Rig, script: &str) {
    rig.same_python(&format!("{HEAD}{script}"));
}

#[test]
fn they_stay_until_a_descriptor_is_closed() {
    let Some(rig) = Rig::with_python() else { return };
    same(
        &rig,
        r#"
p = program(locks); ask(p, '1'); other(0, 10); other(9); other(10)
# They are the program's own: taken again, given up in part.
probe = os.open(j(t, 'f'), os.O_RDWR); at = __import__('struct').pack('hhqqi', fcntl.F_WRLCK, 0, 0, 1, 0)
print(__import__('struct').unpack('hhqqi', fcntl.fcntl(probe, fcntl.F_GETLK, at)[:28])[4] == p.pid); os.close(probe)
ask(p, 'fcntl.lockf(50, fcntl.LOCK_EX | fcntl.LOCK_NB, 4, 8)'); other(11)
ask(p, 'fcntl.lockf(50, fcntl.LOCK_UN, 5, 0)'); other(0, 5); other(5)
ask(p, 'struct.unpack("hhqqi", fcntl.fcntl(50, fcntl.F_GETLK, struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0))[:28])[0] == fcntl.F_UNLCK')
# A child has none, and closes nothing of its parent's.
ask(p, '[os.waitpid(pid, 0)[1] if pid else os._exit(os.close(50) or 0) for pid in [os.fork()]]'); other(5)
ask(p, CLOSE); other(5); end(p)
# It is the first that a program does; or it opens the file once more, and closes that.
p = program(locks); ask(p, '1'); other(0); ask(p, CLOSE); other(0); end(p)
p = program(locks); ask(p, f'os.close(os.open("{t}/f", os.O_RDONLY))'); other(0); end(p)
# Of two descriptions, whichever is closed.
p = program(lambda: (opens(51), locks())); ask(p, '1'); other(0); ask(p, 'os.close(51)'); other(0); end(p)
p = program(lambda: (opens(51), locks(), fcntl.lockf(51, NB, 10, 5))); ask(p, 'os.read(51, 3)'); other(0); ask(p, CLOSE); other(0); ask(p, 'fcntl.lockf(51, fcntl.LOCK_EX | fcntl.LOCK_NB, 4, 8)'); other(9); end(p); comes(9)
"#,
    );
}

#[test]
fn they_end_with_the_process() {
    let Some(rig) = Rig::with_python() else { return };
    same(
        &rig,
        r#"
p = program(locks); ask(p, '1'); other(0); end(p); comes(0)
p = program(locks); ask(p, 'os.pread(50, 3, 0)'); other(0); p.kill(); p.wait(); comes(0)
# A program that has no library, and one that became a third, without using the file.
p = program(locks, ['env', '-i', '/bin/sleep', '100']); time.sleep(0.3); other(0); p.kill(); p.wait(); comes(0)
again = lambda code: f'os.execv("{sys.executable}", ["python3", "-c", {code!r}])'
p = program(locks); p.stdin.write(again(TOLD) + '\n'); p.stdin.flush(); ask(p, '1'); other(0); ask(p, CLOSE); other(0); end(p)
p = program(locks); ask(p, 'os.pread(50, 3, 0)'); p.stdin.write(again(TOLD) + '\n'); p.stdin.flush(); ask(p, 'fcntl.lockf(50, fcntl.LOCK_EX | fcntl.LOCK_NB, 4, 20)'); other(0); other(20)
p.stdin.write(again(TOLD) + '\n'); p.stdin.flush(); ask(p, '1'); other(0); other(20); p.kill(); p.wait(); comes(0); comes(20)
# The name is gone meanwhile.
p = program(lambda: (locks(), os.rename(j(t, 'f'), j(t, 'g')), open(j(t, 'f'), 'w').close())); ask(p, 'os.fstat(50).st_nlink'); other(0); os.rename(j(t, 'g'), j(t, 'f')); other(0); end(p); comes(0)
"#,
    );
}

#[test]
fn descriptors_that_exec_closes_end_them() {
    let Some(rig) = Rig::with_python() else { return };
    same(
        &rig,
        r#"
def beside():
    global kept; kept = os.open(j(t, 'f'), os.O_RDONLY); locks()
def alone():
    global kept; kept = os.open(j(t, 'f'), os.O_RDWR); fcntl.lockf(kept, NB, 10, 0)
p = program(beside); ask(p, '1'); other(0); end(p)
p = program(alone); ask(p, '1'); other(0); end(p)
# What cannot be started changes nothing, and what follows counts.
def fails(then):
    def do():
        locks(); tries(lambda: os.execv('/none', ['none'])); tries(lambda: os.execv(j(t, 'f'), ['f'])); then()
    return do
p = program(fails(lambda: other(0))); ask(p, '1'); other(0); end(p); comes(0)
p = program(fails(lambda: fcntl.lockf(50, fcntl.LOCK_UN))); ask(p, '1'); other(0); end(p)
p = program(fails(lambda: os.close(os.open(j(t, 'f'), os.O_RDONLY)))); ask(p, '1'); other(0); end(p)
p = program(fails(lambda: os.set_inheritable(50, False))); ask(p, '1'); other(0); end(p)
p = program(fails(lambda: fcntl.lockf(50, NB, 4, 20))); ask(p, '1'); other(0); other(20); end(p); comes(20)
# Children that exec have nothing of their parent's, and take nothing from it.
locks(); p = program(lambda: None); ask(p, 'os.pread(50, 2, 0)'); other(0); ask(p, CLOSE); other(0); end(p); other(0)
os.close(50); other(0)
"#,
    );
}

//! Programs under `freehold run` go on when their server ends and another one serves the volume after it.
//!
//! Scripts of python3 that stop where the test restarts the server; skipped without it or without /dev/fuse.

mod common;

use common::{Place, can_mount, library};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const HEAD: &str = "import os, sys, fcntl, errno, threading\nt = os.environ['T']\nj = os.path.join\n\
    def tries(f):\n    try: return f()\n    except OSError as e: return errno.errorcode[e.errno]\n\
    def pause():\n    print('pause', flush=True); sys.stdin.readline()\n";

struct Rig {
    p: Place,
}

impl Rig {
    fn new() -> Option<Rig> {
        let python = Command::new("python3").args(["-c", "0"]).status();
        if !can_mount() || !python.is_ok_and(|s| s.success()) {
            println!("skipped: there is no /dev/fuse or no python3");
            return None;
        }
        let p = Place::new();
        p.volume("a.img");
        p.mkdir("mnt");
        let rig = Rig { p };
        rig.mount();
        Some(rig)
    }

    fn mount(&self) {
        self.p.line("mount a.img mnt --log log").ok();
    }

    fn start(&self, script: &str) -> Child {
        let mut command = self.p.command();
        command.env("FREEHOLD_PRELOAD", library()).env("T", self.p.path("mnt"));
        command.args(["run", "--", "timeout", "100", "python3", "-c", &format!("{HEAD}{script}")]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    }

    fn stop(&self) {
        // The program may stand in the mount.
        self.p.line("umount -f mnt").ok();
    }

    fn kill_server(&self) {
        let pid = freehold::mounts::lock_holder(&self.p.path("a.img")).expect("it is served").pid;
        // SAFETY: no memory is involved; the process is a server of this test.
        assert_eq!(unsafe { libc::kill(pid as i32, libc::SIGKILL) }, 0);
        common::eventually("the server is gone", || {
            freehold::mounts::lock_holder(&self.p.path("a.img")).is_none()
        });
    }

    fn kill(&self) {
        self.kill_server();
        self.p.line("umount -f mnt");
        let said = self.p.line("fsck a.img");
        assert!(matches!(said.code, Some(0 | 1)), "{said:?}");
    }

    fn end(&self, killed: bool) {
        if killed { self.kill() } else { self.stop() }
    }

    /// Runs a script that pauses once; meanwhile `restart` is done. What it says afterwards.
    fn across(&self, script: &str, restart: impl FnOnce()) -> String {
        self.around(script, restart, || {})
    }

    /// As [`Rig::across`]; `beside` is done while the script goes on.
    fn around(&self, script: &str, restart: impl FnOnce(), beside: impl FnOnce()) -> String {
        let mut child = self.start(script);
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert_eq!(line, "pause\n");
        restart();
        writeln!(child.stdin.take().unwrap(), "on").unwrap();
        beside();
        let mut said = String::new();
        out.read_to_string(&mut said).unwrap();
        assert!(child.wait().unwrap().success(), "{said}");
        said
    }

    fn done(self) {
        self.stop();
        assert!(self.p.line("fsck a.img").ok().contains("clean"));
    }
}

const FILES: &str = r#"
f = os.open(j(t, 'f'), os.O_CREAT | os.O_RDWR); g = os.open(j(t, 'g'), os.O_CREAT | os.O_RDWR); os.write(f, b'one'); a = os.open(j(t, 'a'), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
os.mkdir(j(t, 'd')); d = os.open(j(t, 'd'), os.O_RDONLY); os.close(os.open(j(t, 'd/x'), os.O_CREAT | os.O_WRONLY)); os.chdir(j(t, 'd'))
os.write(a, b'1'); os.fsync(a); locked = [os.open(j(t, f'l{i}'), os.O_CREAT | os.O_RDWR) for i in range(4)]
fcntl.flock(locked[0], fcntl.LOCK_EX); fcntl.lockf(locked[1], fcntl.LOCK_EX, 10, 5); fcntl.lockf(locked[1], fcntl.LOCK_UN, 5, 5)
fcntl.flock(locked[2], fcntl.LOCK_EX); fcntl.flock(locked[2], fcntl.LOCK_UN); fcntl.lockf(locked[3], fcntl.LOCK_EX, 10, 5); fcntl.lockf(locked[3], fcntl.LOCK_UN)
c = os.open(j(t, 'closed'), os.O_CREAT | os.O_RDWR); os.fsync(f); os.write(g, b'not synced'); os.write(c, b'lost'); os.close(c); h = os.open(j(t, 'new'), os.O_CREAT | os.O_RDWR); os.write(h, b'new')
n = os.open(j(t, 'nameless'), os.O_CREAT | os.O_RDWR); os.unlink(j(t, 'nameless')); os.write(n, b'nobody sees me')
pause()
print(os.pread(f, 9, 0), os.write(f, b'two'), os.pread(f, 9, 0), os.fstat(f).st_size, os.listdir(d), os.stat('x').st_size, os.write(a, b'2'))
print(tries(lambda: os.pread(g, 99, 0)), tries(lambda: os.fsync(f)), tries(lambda: os.fsync(g)), tries(lambda: os.fsync(g)), tries(lambda: os.write(h, b'er')), tries(lambda: os.fsync(a)))
c = os.open(j(t, 'closed'), os.O_RDWR); print(tries(lambda: os.fsync(c)), tries(lambda: os.fsync(c)))
print([tries(lambda: os.write(l, b'x')) for l in locked], tries(lambda: fcntl.flock(locked[0], fcntl.LOCK_UN)), [tries(lambda: os.close(l)) for l in locked])
l = os.open(j(t, 'l0'), os.O_RDWR); print(tries(lambda: fcntl.flock(l, fcntl.LOCK_EX | fcntl.LOCK_NB)), os.write(l, b'x'))
print(tries(lambda: os.pread(n, 99, 0)), os.path.exists(j(t, 'nameless')))
print(tries(lambda: os.close(g)), tries(lambda: os.close(h)), open(j(t, 'a')).read(), os.pread(f, 9, 0), os.fstat(a).st_size, os.listdir(d))
"#;

#[test]
fn a_server_that_was_stopped_takes_nothing_with_it() {
    let Some(rig) = Rig::new() else { return };
    let said = rig.across(FILES, || {
        rig.stop();
        std::thread::scope(|s| {
            s.spawn(|| {
                std::thread::sleep(Duration::from_millis(300));
                rig.mount();
            });
        });
    });
    let want = "b'one' 3 b'onetwo' 6 ['x'] 0 1\nb'not synced' None None None 2 None\nNone None\n['EIO', 'EIO', 1, 1] EIO [None, None, None, None]\nNone 1\nb'nobody sees me' False\nNone None 12 b'onetwo' 2 ['x']\n";
    assert_eq!(said, want);
    rig.done();
}

#[test]
fn a_server_that_was_killed_takes_what_was_not_synced_and_says_so() {
    let Some(rig) = Rig::new() else { return };
    let said = rig.across(FILES, || {
        rig.kill();
        rig.mount();
    });
    // What was written to `g` and to `closed`, and the file `new`, were never synced; each is said once.
    let want = "b'one' 3 b'onetwo' 6 ['x'] 0 1\nb'' None EIO None EIO None\nEIO None\n['EIO', 'EIO', 1, 1] EIO [None, None, None, None]\nNone 1\nEIO False\nNone None 12 b'onetwo' 2 ['x']\n";
    assert_eq!(said, want);
    rig.done();
}

const LOST: &str = r#"
h = os.open(j(t, 'new'), os.O_CREAT | os.O_RDWR); os.write(h, b'lost')
pause()
print(tries(lambda: os.pread(h, 99, 0)), tries(lambda: os.pwrite(h, b'XX', 0)), tries(lambda: os.ftruncate(h, 0)), tries(lambda: os.fstat(h)))
"#;

/// The next server has given the lost file's place to another program's file, before this one made its first call.
/// What a user could not open any more: made without the permission, lost it since, has no name, or is a child's alone by then.
const CLOSED: &str = r#"
if os.geteuid() == 0: os.setgroups([]); os.setgid(4321); os.setuid(4321)
def opens(name, mode, *flags): return os.open(j(t, 'u', name), os.O_RDWR | sum(flags), mode)
a, b, e = opens('a', 0o400, os.O_CREAT), opens('b', 0o600, os.O_CREAT), opens('e', 0o444, os.O_CREAT | os.O_EXCL)
n, r = opens('', 0o400, os.O_TMPFILE), os.open(j(t, 'u/b'), os.O_RDONLY)
for f in (a, b, n, e): os.write(f, b'one')
os.fchmod(b, 0); c = opens('c', 0o400, os.O_CREAT); os.write(c, b'child'); go, gone = os.pipe(), os.pipe()
if os.fork() == 0:
    os.read(go[0], 1); os.write(gone[1], repr((tries(lambda: os.pread(c, 9, 0)), tries(lambda: os.write(c, b'ren')))).encode()); os._exit(0)
os.close(c); os.unlink(j(t, 'u/e'))
def all():
    print([tries(lambda: os.pread(f, 9, 0)) for f in (a, b, n, e, r)], [tries(lambda: os.write(f, b'+')) for f in (a, b, n, e, r)])
pause(); all(); print(tries(lambda: opens('a', 0)), tries(lambda: opens('b', 0)), tries(lambda: os.open(j(t, 'u/b'), os.O_RDONLY)))
os.write(go[1], b'x'); print(os.read(gone[0], 99).decode())
"#;

#[test]
fn what_could_not_be_opened_any_more_goes_on() {
    let Some(rig) = Rig::new() else { return };
    let user = |rig: &Rig| {
        // SAFETY: a number is asked for.
        let options = if unsafe { libc::geteuid() } == 0 { " -o allow_other" } else { "" };
        rig.p.line(&format!("mount a.img mnt --log log{options}")).ok();
    };
    rig.stop();
    user(&rig);
    let dir = rig.p.path("mnt/u");
    std::fs::create_dir(&dir).unwrap();
    std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o777)).unwrap();
    for killed in [false, true] {
        let said = rig.across(CLOSED, || {
            rig.end(killed);
            user(&rig);
        });
        let of_five = |one: &str| format!("[{}]", [one; 5].join(", "));
        let (data, wrote) = match killed {
            false => ("[b'one', b'one', b'one', b'one', b'one']".into(), "[1, 1, 1, 1, 'EBADF']".into()),
            true => (of_five("'EIO'"), of_five("'EIO'").replace("'EIO']", "'EBADF']")),
        };
        let child = if killed { "('EBADF', 'EBADF')" } else { "(b'child', 3)" };
        assert_eq!(said, format!("{data} {wrote}\nEACCES EACCES EACCES\n{child}\n"), "killed: {killed}");
        std::fs::read_dir(&dir).unwrap().for_each(|e| std::fs::remove_file(e.unwrap().path()).unwrap());
    }
    rig.done();
}

/// Where a program stands, and those that it has started and starts: the kernel's mount is another one by then.
#[test]
fn programs_stand_where_they_stood() {
    let Some(rig) = Rig::new() else { return };
    let script = r#"
import subprocess
os.makedirs(j(t, 'd/e'), exist_ok=True); os.chdir(j(t, 'd')); open('here', 'w').write('text'); open('e/here', 'w').write('below'); P = subprocess.PIPE
for p in ('here', 'e/here', 'e', '.', '..'): f = os.open(p, os.O_RDONLY); os.fsync(f); os.close(f)
def starts(): print([subprocess.run(c, stdout=P, stderr=subprocess.DEVNULL).stdout.decode().replace(t, '') for c in (['cat', 'here'], ['sh', '-c', 'cat here; cd e; cat here; pwd -P'], ['pwd'])])
waiting = [subprocess.Popen(c, stdin=P, stdout=P) for c in (['cat', '-', 'here'], ['sh', '-c', 'read x; cat here; cd e; cat here; sh -c "cd ..; cat here"'])]
while any(b'python' in open(f'/proc/{p.pid}/cmdline', 'rb').read() for p in waiting): pass
import time; time.sleep(0.2)
pause(); starts(); print([p.communicate(b'x\n')[0].decode() for p in waiting], os.getcwd()[len(t):], open('new', 'w').write('abc'), sorted(os.listdir('.')))
os.chdir('e'); starts(); sys.stdout.flush()
if os.fork() == 0: os.execvp('cat', ['cat', 'here'])
os.wait()
"#;
    for killed in [false, true] {
        let said = rig.across(script, || {
            rig.end(killed);
            rig.mount();
        });
        let want = "['text', 'textbelow/d/e\\n', '/d\\n']\n['x\\ntext', 'textbelowtext'] /d 3 ['e', 'here', 'new']\n['below', 'belowbelow/d/e\\n', '/d/e\\n']\nbelow";
        assert_eq!(said, want, "killed: {killed}");
    }
    rig.done();
}

#[test]
fn a_descriptor_of_a_lost_file_does_not_lead_to_another() {
    let Some(rig) = Rig::new() else { return };
    // One of so many gets that place.
    let theirs: Vec<_> = (0..300).map(|n| rig.p.path(&format!("mnt/theirs{n}"))).collect();
    let said = rig.across(LOST, || {
        rig.kill();
        rig.mount();
        theirs.iter().for_each(|path| std::fs::write(path, b"theirs").unwrap());
    });
    assert_eq!(said, "EIO EIO EIO EIO\n");
    assert!(theirs.iter().all(|path| std::fs::read(path).unwrap() == b"theirs"));
    rig.done();
}

/// Overwrites under a write lease: `o` has them, `e` is open too and has none.
const LEASED: &str = r#"
page = lambda n: bytes([n]) * 4096
for name in 'oe': f = open(j(t, name), 'wb'); f.write(page(1) * 64); f.flush(); os.fsync(f.fileno()); f.close()
o = os.open(j(t, 'o'), os.O_RDWR); e = os.open(j(t, 'e'), os.O_RDWR)
for n in range(2, 101): [os.pwrite(o, page(n), p * 4096) for p in range(8)]
pause()
shows = lambda: [os.pread(o, 4096, p * 4096) for p in range(9)]
first = shows(); print([len(set(b)) for b in first], first[8] == page(1), {b[0] for b in first[:8]} <= KEPT)
print(tries(lambda: os.fsync(e)), tries(lambda: os.fsync(o)), tries(lambda: os.fsync(o)))
for n in range(101, 200): [os.pwrite(o, page(n), p * 4096) for p in range(8)]
print([b[0] for b in shows()], tries(lambda: os.fsync(o)), tries(lambda: os.close(o)))
o = os.open(j(t, 'o'), os.O_RDONLY); print([b[0] for b in shows()])
"#;

#[test]
fn overwrites_under_a_lease() {
    let Some(rig) = Rig::new() else { return };
    let want = |fsync: &str| {
        let after = "[199, 199, 199, 199, 199, 199, 199, 199, 1]";
        format!("[1, 1, 1, 1, 1, 1, 1, 1, 1] True True\nNone {fsync} None\n{after} None None\n{after}\n")
    };
    let said = rig.across(&LEASED.replace("KEPT", "{100}"), || {
        rig.stop();
        rig.mount();
    });
    assert_eq!(said, want("None"), "the server was stopped");
    // What was not synced is lost, each page for itself, and the file's next sync says so.
    let said = rig.across(&LEASED.replace("KEPT", "set(range(1, 101))"), || {
        rig.kill();
        rig.mount();
    });
    assert_eq!(said, want("EIO"), "the server was killed");
    rig.done();
}

/// Calls under way while servers stop are done once.
#[test]
fn calls_under_way_are_done_once() {
    let Some(rig) = Rig::new() else { return };
    let script = r#"
pause()
def work(n):
    a = os.open(j(t, f'log{n}'), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for i in range(3000):
        os.mkdir(j(t, f'{n}-{i}')); os.write(a, b'%05d' % i)
        if i % 2: os.rename(j(t, f'{n}-{i}'), j(t, f'{n}+{i}'))
        else: os.rmdir(j(t, f'{n}-{i}'))
    os.close(a); done.append(n)
done = []
threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
[x.start() for x in threads]; [x.join() for x in threads]
print(sorted(done), len(os.listdir(t)), [open(j(t, f'log{n}')).read() == ''.join('%05d' % i for i in range(3000)) for n in range(3)])
"#;
    let restarts = || {
        for _ in 0..4 {
            std::thread::sleep(Duration::from_millis(100));
            rig.stop();
            rig.mount();
        }
    };
    let said = rig.around(script, || {}, restarts);
    assert_eq!(said, "[0, 1, 2] 4503 [True, True, True]\n");
    rig.done();
}

/// What a lease of the server before allowed is not taken for one of the next server, whose leases have the same numbers.
#[test]
fn leases_of_another_server_do_not_count() {
    let Some(rig) = Rig::new() else { return };
    let script = r#"
new = lambda name: os.open(j(t, name), os.O_CREAT | os.O_RDWR)
f = new('f'); os.write(f, b'a')
pause()
g = new('g'); os.write(g, b'g'); print(os.pwrite(f, b'B', 0), tries(lambda: os.fsync(f)), os.pread(f, 9, 0), open(j(t, 'f')).read())
"#;
    let said = rig.across(script, || {
        rig.stop();
        rig.mount();
    });
    assert_eq!(said, "1 None b'B' B\n");
    rig.done();
}

/// A program that is as far ahead of its server as it may be when that is killed.
#[test]
fn who_waits_for_a_server_that_is_killed_finds_the_next() {
    let Some(rig) = Rig::new() else { return };
    let script = r#"
import time
os.mkdir(j(t, 'own')); d = os.open(j(t, 'own'), os.O_RDONLY); os.fsync(d)
pause()
end = time.monotonic() + 3; n = 0
while time.monotonic() < end:
    n += 1; name = j(t, f'own/{n % 100}'); tries(lambda: os.close(os.open(name, os.O_CREAT | os.O_WRONLY))); tries(lambda: os.unlink(name))
x = os.open(j(t, 'own/x'), os.O_CREAT | os.O_WRONLY); tries(lambda: os.fsync(x)); print(tries(lambda: os.fsync(x)))
"#;
    let killed = || {
        std::thread::sleep(Duration::from_millis(500));
        common::signal(common::server(&rig.p.path("a.img")), libc::SIGSTOP);
        std::thread::sleep(Duration::from_millis(500));
        rig.kill();
        rig.mount();
    };
    let said = rig.around(script, || {}, killed);
    assert_eq!(said, "None\n");
    rig.done();
}

/// Nobody comes: calls fail after their time, and soon from then on.
#[test]
fn without_a_server_calls_fail_in_the_end() {
    let Some(rig) = Rig::new() else { return };
    let script = "f = os.open(j(t, 'f'), os.O_CREAT | os.O_RDWR)\npause()\nprint(tries(lambda: os.pread(f, 1, 0)), tries(lambda: os.write(f, b'x')), tries(lambda: os.close(f)))\n";
    let begun = std::time::Instant::now();
    // The time is shortened for this program.
    let mut command = rig.p.command();
    command.env("FREEHOLD_PRELOAD", library()).env("T", rig.p.path("mnt")).env("FREEHOLD_RESUME", "1");
    command.args(["run", "--", "timeout", "100", "python3", "-c", &format!("{HEAD}{script}")]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    rig.stop();
    writeln!(child.stdin.take().unwrap(), "on").unwrap();
    let mut said = String::new();
    out.read_to_string(&mut said).unwrap();
    assert!(child.wait().unwrap().success(), "{said}");
    assert_eq!(said, "EIO EIO None\n");
    assert!(begun.elapsed() < Duration::from_secs(20));
    rig.mount();
    rig.done();
}

/// Programs are started while nobody serves the volume, by others that have no session: one gets an open file, the other one has a path.
const STARTS: &str = r#"
import subprocess
f = os.open(j(t, 'f'), os.O_CREAT | os.O_RDWR); os.write(f, b'one '); os.fsync(f)
p = subprocess.Popen(['sh', '-c', 'read x; exec /bin/echo two'], stdin=subprocess.PIPE, stdout=f)
q = subprocess.Popen(['sh', '-c', 'read x; exec cat ' + j(t, 'g')], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
pause()
for s in p, q: s.stdin.write(b'\n'); s.stdin.flush()
print(p.wait(), q.communicate()[0], q.wait(), os.pread(f, 99, 0))
"#;

#[test]
fn programs_that_start_meanwhile_wait_too() {
    for killed in [false, true] {
        let Some(rig) = Rig::new() else { return };
        std::fs::write(rig.p.path("mnt/g"), "there").unwrap();
        let stop = || match killed {
            true => rig.kill_server(),
            false => rig.stop(),
        };
        let again = || {
            std::thread::sleep(Duration::from_millis(500));
            rig.p.line("umount -f mnt");
            rig.mount();
        };
        let said = rig.around(STARTS, stop, again);
        // Where the mount is gone, too, the kernel knows of no such path.
        let path = if killed { "b'there' 0" } else { "b'' 1" };
        assert_eq!(said, format!("0 {path} b'one two\\n'\n"));
        rig.done();
    }
}

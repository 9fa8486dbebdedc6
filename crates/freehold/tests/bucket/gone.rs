//! A store that does not answer: programs can leave, and who mounts is told.

use super::common::{Place, can_mount, eventually};
use super::store::Store;
use super::{SMALL_PARTS, signal, umount};
use sim::s3::{Faults, Rates};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Starts a program that waits for the store, sends it a signal, and returns how long it lives after that.
fn lives(command: &mut Command, number: i32) -> Duration {
    let mut child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert!(child.try_wait().unwrap().is_none(), "{command:?} waits for nothing");
    let begun = Instant::now();
    signal(child.id(), number);
    while child.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(10), "{command:?} goes on after signal {number}");
        std::thread::sleep(Duration::from_millis(10));
    }
    begun.elapsed()
}

#[test]
fn programs_can_be_ended_while_the_store_is_silent() {
    if !can_mount() {
        return;
    }
    let (p, store) = (Place::new(), Store::new(SMALL_PARTS));
    let Some(simulated) = store.simulated() else { return };
    let mnt = p.mkdir("mnt");
    store.mount(&p, &mnt, "");
    std::fs::write(mnt.join("a"), "content").unwrap();
    std::fs::create_dir(mnt.join("d")).unwrap();
    std::thread::sleep(Duration::from_millis(1100));
    simulated.set_faults(Faults::new(Rates { silence: 1000, ..Default::default() }, 1));
    let at = |program: &str, name: &str| {
        let mut command = Command::new(program);
        command.arg(mnt.join(name));
        command
    };
    let now = Duration::from_millis(1500);
    assert!(lives(&mut at("cat", "a"), libc::SIGKILL) < now);
    assert!(lives(&mut at("ls", "d"), libc::SIGINT) < now);
    assert!(lives(&mut at("stat", "b"), libc::SIGTERM) < now);
    assert!(lives(&mut at("mkdir", "e"), libc::SIGKILL) < now);
    assert!(lives(&mut at("rm", "a"), libc::SIGKILL) < now);
    // A signal that a program survives: its call fails when it has taken long.
    let script = format!("trap 'exit 7' USR1; : < {}", mnt.join("a").display());
    assert!(lives(Command::new("sh").args(["-c", &script]), libc::SIGUSR1) < Duration::from_secs(4));
    simulated.set_faults(Faults::none());
    eventually("it is unmounted", || {
        let _ = p.line("umount --force mnt");
        !p.is_mounted("mnt")
    });
}

/// A signal that a program survives ends no call of a store that answers.
#[test]
fn signals_are_not_noticed_while_the_store_answers() {
    if !can_mount() {
        return;
    }
    let (p, store) = (Place::new(), Store::new(SMALL_PARTS));
    let mnt = p.mkdir("mnt");
    store.mount(&p, &mnt, ",expiry=0");
    std::fs::write(mnt.join("a"), "content").unwrap();
    if let Some(server) = store.simulated() {
        server.set_faults(Faults::new(Rates { delay: 1000, ..Default::default() }, 1));
    }
    // A timer whose signal comes every millisecond, and a shell that reads.
    let script = format!(
        "import signal\n\
         signal.signal(signal.SIGALRM, lambda *_: None)\n\
         signal.setitimer(signal.ITIMER_REAL, .001, .001)\n\
         libc = __import__('ctypes').CDLL(None, use_errno=True)\n\
         bad = [libc.access(b'{0}', 4) for _ in range(50)]\n\
         signal.setitimer(signal.ITIMER_REAL, 0)\n\
         assert not any(bad), bad",
        mnt.join("a").display()
    );
    let said = Command::new("python3").args(["-c", &script]).output();
    match said {
        Ok(said) => assert!(said.status.success(), "{said:?}"),
        Err(e) => println!("skipped: python3: {e}"),
    }
    umount(&p, "mnt");
}

/// Nobody listens at the endpoint: that is told soon, and a signal ends the waiting at once.
#[test]
fn a_mount_that_nobody_answers() {
    let (p, store) = (Place::new(), Store::new(SMALL_PARTS));
    p.mkdir("mnt");
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let endpoint = format!("endpoint=http://{free}");
    let begun = Instant::now();
    let said = store.command(&p).args(["mount", "s3://bucket", "mnt", "-o", &endpoint]).output().unwrap();
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(!said.status.success() && text.contains("refused"), "{text}");
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    for number in [libc::SIGTERM, libc::SIGINT] {
        let mut command = store.command(&p);
        command.args(["mount", "-F", "s3://bucket", "mnt", "-o", &endpoint]);
        assert!(lives(&mut command, number) < Duration::from_secs(2));
    }
}

/// Files are named as they are from where the command is given, also for a server in the background.
#[test]
fn relative_names_of_files() {
    if !can_mount() {
        return;
    }
    let (p, store) = (Place::new(), Store::new(SMALL_PARTS));
    if store.simulated().is_none() {
        return;
    }
    p.mkdir("mnt");
    let keys = format!("[other]\naws_access_key_id = {}\naws_secret_access_key = s\n", sim::s3::KEY_ID);
    std::fs::write(p.path("keys"), keys).unwrap();
    let certificate = Path::new("/etc/ssl/certs/ca-certificates.crt");
    let mut options = "profile=other".to_string();
    if let Ok(all) = std::fs::read_to_string(certificate) {
        let end = all.find("-----END CERTIFICATE-----").unwrap() + 26;
        std::fs::write(p.path("ca.pem"), &all[..end]).unwrap();
        options.push_str(",ca=ca.pem");
    }
    let mut command = store.command(&p);
    // The keys in variables are wrong: those of the profile that was asked for count.
    command.env("AWS_ACCESS_KEY_ID", "nobody").env("AWS_SHARED_CREDENTIALS_FILE", "keys");
    let said = command.args(["mount", "s3://bucket", "mnt", "-o", &options]).output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    umount(&p, "mnt");
    let mut command = store.command(&p);
    let said = command.args(["mount", "s3://bucket", "mnt", "-o", "profile=nobody"]).output().unwrap();
    assert!(String::from_utf8_lossy(&said.stderr).contains("no profile nobody"), "{said:?}");
}

/// A server that was started read-only stays so, and `remount,rw` says it.
#[test]
fn a_read_only_server_is_not_remounted() {
    if !can_mount() {
        return;
    }
    let (p, store) = (Place::new(), Store::new(SMALL_PARTS));
    let mnt = p.mkdir("mnt");
    for (options, may) in [(",ro", false), ("", true)] {
        store.mount(&p, &mnt, options);
        let remount = |access: &str| {
            let words = ["mount", "s3://bucket", mnt.to_str().unwrap(), "-o", access];
            store.command(&p).args(words).output().unwrap()
        };
        assert!(remount("remount,ro,fsname=other").status.success());
        let said = remount("remount,rw");
        assert_eq!(said.status.success(), may, "{said:?}");
        let written = std::fs::write(mnt.join("a"), "x");
        match may {
            true => written.unwrap(),
            false => {
                assert!(String::from_utf8_lossy(&said.stderr).contains("without ro"), "{said:?}");
                let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
                let line = mounts.lines().find(|line| line.contains(mnt.to_str().unwrap())).unwrap();
                assert!(line.split(' ').nth(3).unwrap().starts_with("ro"), "{line}");
                assert_eq!(written.unwrap_err().raw_os_error(), Some(libc::EROFS));
            }
        }
        umount(&p, "mnt");
    }
}

#[test]
fn what_is_for_volumes_says_so() {
    if !can_mount() {
        return;
    }
    let (p, store) = (Place::new(), Store::new(SMALL_PARTS));
    let mnt = p.mkdir("mnt");
    store.mount(&p, &mnt, "");
    for line in ["clients mnt", "top --once mnt", "clients s3://bucket", "df s3://bucket"] {
        p.line(line).fails(&["s3://bucket is a bucket", "freehold object ls"]);
    }
    p.line("df mnt").ok();
    umount(&p, "mnt");
}

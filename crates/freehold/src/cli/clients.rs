//! `freehold clients`: who has a session, who keeps others waiting, and ending a session by force.

use super::{Exit, ask, show};
use freehold::observe::{Session, Snapshot};
use serde_json::json;
use std::path::PathBuf;

/// Show the processes that use served volumes over shared memory, or end a session
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  freehold clients             of all mounted volumes
  freehold clients /mnt        of one; its image or device does as well
  freehold clients --json /mnt
  freehold clients --evict 7 /mnt      session 7 ends: its calls fail, its locks are free

Locks is the number of files on which a client holds locks, Held how long it has the oldest, Waiting how \
many calls wait for them and for how long. State is that of its process as ps(1) has it: T is stopped. \
A client that is stopped holds nobody up but by its locks; it keeps them until it gives them up, ends, or is \
evicted (see lock_timeout in mount --help).

Fsync is what the client's fsync gives: durability, or on a volume mounted with -o ordered or ordered_programs= order alone. \
durable* is said where others, or some files, have order alone; a line below the table says which.

Programs that come through the kernel are not clients: see who uses a mount with fuser -vm DIR. \
Only the user who serves a volume, and root, may ask.")]
pub struct Args {
    /// Directory in a mounted volume, image file or block device
    #[arg(value_name = "DIR|IMAGE")]
    target: Option<PathBuf>,
    /// Tell it as JSON, times in seconds
    #[arg(long)]
    json: bool,
    /// End this session by force. The program's calls on the volume fail from then on
    #[arg(long, value_name = "SESSION", requires = "target", conflicts_with = "json")]
    evict: Option<u64>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    if let Some(session) = args.evict {
        for image in ask::images(args.target.as_deref())? {
            if !ask::evict(&image, session)? {
                anyhow::bail!("{} has no session {session} (see freehold clients)", image.display());
            }
        }
        return Ok(());
    }
    let (mut all, mut failed) = (Vec::new(), false);
    for image in ask::images(args.target.as_deref())? {
        match ask::ask(&image) {
            Ok(snapshot) => all.push(snapshot),
            // One that cannot be asked does not hide the others.
            Err(e) if args.target.is_none() => {
                eprintln!("freehold: {e:#}");
                failed = true;
            }
            Err(e) => return Err(e),
        }
    }
    let rows = || all.iter().flat_map(|s| s.sessions.iter().map(move |c| (s, c)));
    if args.json {
        println!("{:#}", rows().map(|(s, c)| client(s, c)).collect::<serde_json::Value>());
    } else {
        let head = [
            "Pid", "Program", "State", "User", "Session", "Handles", "Calls", "Age", "Idle", "Locks", "Held",
            "Waiting", "Fsync", "Volume",
        ]
        .map(String::from);
        let lines: Vec<Vec<String>> =
            std::iter::once(head.to_vec()).chain(rows().map(|(s, c)| row(s, c))).collect();
        print!("{}", show::table(&lines, &[1, 2, 12, 13]));
        for s in &all {
            if let Some(ordered) = &s.volume.ordered {
                println!(
                    "{}: fsync gives order, not durability, for {ordered}",
                    show::name(s.volume.mountpoint.as_bytes())
                );
            }
        }
    }
    if failed { Err(Exit { code: 1, message: String::new() }.into()) } else { Ok(()) }
}

fn row(s: &Snapshot, c: &Session) -> Vec<String> {
    vec![
        c.pid.to_string(),
        ask::program(c.pid),
        ask::state(c.pid),
        c.uid.to_string(),
        c.session.to_string(),
        c.handles.to_string(),
        c.calls.to_string(),
        ask::short_time(c.age_seconds),
        ask::short_time(c.idle_seconds),
        c.locks.to_string(),
        if c.locks > 0 { ask::short_time(c.locks_seconds) } else { "-".into() },
        match c.waiting {
            0 => "-".into(),
            n => format!("{n} ({})", ask::short_time(c.waiting_seconds)),
        },
        match (&s.volume.ordered, c.ordered) {
            (_, true) => "order",
            (Some(_), false) => "durable*",
            (None, false) => "durable",
        }
        .into(),
        show::name(s.volume.mountpoint.as_bytes()),
    ]
}

fn client(s: &Snapshot, c: &Session) -> serde_json::Value {
    json!({
        "volume": s.volume.image, "mountpoint": s.volume.mountpoint, "pid": c.pid,
        "program": ask::program(c.pid), "uid": c.uid, "session": c.session, "handles": c.handles,
        "calls": c.calls, "bytes_read": c.bytes_read, "bytes_written": c.bytes_written,
        "age_seconds": c.age_seconds, "idle_seconds": c.idle_seconds,
        "state": ask::state(c.pid), "calls_now": c.calls_now, "locks": c.locks, "locks_seconds": c.locks_seconds,
        "waiting": c.waiting, "waiting_seconds": c.waiting_seconds, "ordered": c.ordered,
        "volume_ordered": s.volume.ordered,
    })
}

//! `freehold run`: starts a program with the preload library, so that it uses volumes in sessions, without the kernel.
//!
//! The program takes the place of this process: exit code, signals and job control are its own.

use super::{Exit, show};
use anyhow::{Context, anyhow, bail};
use freehold::sessions::{self, Offer, Reach};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

const LIBRARY: &str = "libfreehold_preload.so";
/// A socket at which nobody ever answers: paths below go to the kernel.
const NOBODY: &[u8] = b"/dev/null";

/// Run a program that uses mounted volumes past the kernel
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  freehold mount disk.img /mnt
  freehold run tar xf src.tar -C /mnt     as tar, but its files are written without system calls
  freehold run -- make -C /mnt/src -j4    and so do all programs that it starts
  freehold run --list                     which volumes can be used like that

The program sees the same files under the same paths, with the same permissions. Programs that run without it, \
through the mount, see its changes at once and it sees theirs. Exit code and signals are the program's own.

All volumes that are mounted here and that this user may enter are served in this way (see -o share and allow_other \
in freehold mount --help); other paths are as always. Static and set-user-id programs, and the things that \
only a kernel can do (starting programs, shared writable mappings, device files), use the mount.

The library is looked for as $FREEHOLD_PRELOAD, beside this program, in ../lib/freehold and in ../lib. \
A volume mounted by hand is added with FREEHOLD_MOUNTS='/mnt=SOCKET;...' and LD_PRELOAD, without this command.

Exit codes: those of the program; 1 nothing is served, 2 wrong usage, 126 the program cannot be started, 127 there is none.")]
pub struct Args {
    /// Show the mounted volumes, and how programs of this user reach them
    #[arg(long, conflicts_with = "program")]
    list: bool,
    /// The program and its arguments
    #[arg(
        value_name = "PROGRAM",
        trailing_var_arg = true,
        allow_hyphen_values = false,
        required_unless_present = "list"
    )]
    program: Vec<OsString>,
}

impl Args {
    /// What the words of a command line mean in the usual case, `freehold run PROGRAM ...`, where it does not take a parser of all commands, which is a
    /// good part of what starting a program costs.
    pub fn plain(words: &[OsString]) -> Option<Args> {
        let rest = words.strip_prefix(&[words.first()?.clone(), "run".into()])?;
        let program = match rest {
            [dashes, program @ ..] if dashes == "--" => program,
            [first, ..] if first.as_bytes().starts_with(b"-") => return None,
            program => program,
        };
        (!program.is_empty()).then(|| Args { list: false, program: program.to_vec() })
    }
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let offers = sessions::list().context("cannot read the table of mounts")?;
    if args.list {
        return list(&offers);
    }
    let mounts = variable(&offers)?;
    let library = library()?;
    let (name, words) = args.program.split_first().ok_or_else(|| anyhow!("no program is named"))?;
    let mut command = Command::new(name);
    command.args(words).env("FREEHOLD_MOUNTS", mounts).env("LD_PRELOAD", preload(&library)?);
    keep_signals(&mut command);
    let e = command.exec();
    let code = if e.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
    Err(Exit { code, message: format!("cannot start {}: {e}", name.display()) }.into())
}

/// Whether SIGPIPE was ignored when the process began. Rust ignores it before `main`.
static PIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);

#[used]
#[unsafe(link_section = ".init_array")]
static NOTE: extern "C" fn() = {
    extern "C" fn note() {
        // SAFETY: asks for the action, into memory that is there and may be zeros.
        let action = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(libc::SIGPIPE, std::ptr::null(), &mut action);
            action
        };
        PIPE_WAS_IGNORED.store(action.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
    }
    note
};

/// Signals that are ignored or blocked are the program's as they were this one's, as with any exec; `Command` would have them at their defaults.
fn keep_signals(command: &mut Command) {
    // SAFETY: asks for the mask, into memory that is there and may be zeros.
    let mask = unsafe {
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut mask);
        mask
    };
    let restore = move || {
        // SAFETY: a valid disposition, and a mask that was in force; there is one thread.
        unsafe {
            if PIPE_WAS_IGNORED.load(Ordering::Relaxed) {
                libc::signal(libc::SIGPIPE, libc::SIG_IGN);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &mask, std::ptr::null_mut());
        }
        Ok(())
    };
    // SAFETY: nothing but the calls above.
    unsafe { command.pre_exec(restore) };
}

fn list(offers: &[Offer]) -> anyhow::Result<()> {
    if offers.is_empty() {
        println!("no volume is mounted (see freehold mount --help)");
        return Ok(());
    }
    let mut rows = vec![["Mounted on", "Volume", "Sessions"].map(String::from).to_vec()];
    for o in offers {
        let how = match &o.reach {
            Reach::Session(socket) => socket.display().to_string(),
            Reach::Kernel(why) => format!("none: {why}"),
        };
        rows.push(vec![o.point.display().to_string(), o.image.display().to_string(), how]);
    }
    print!("{}", show::table(&rows, &[0, 1, 2]));
    Ok(())
}

/// The value of `FREEHOLD_MOUNTS`.
fn variable(offers: &[Offer]) -> anyhow::Result<OsString> {
    let mut parts: Vec<(&Path, &[u8])> = Vec::new();
    let mut reasons = String::new();
    for o in offers {
        let point = o.point.display();
        match &o.reach {
            Reach::Session(socket) if can_be_said(&o.point) && can_be_said(socket) => {
                parts.push((&o.point, socket.as_os_str().as_bytes()));
            }
            Reach::Session(_) => reasons.push_str(&format!("\n  {point}: its path holds ';' or '='")),
            Reach::Kernel(why) => reasons.push_str(&format!("\n  {point}: {why}")),
        }
    }
    if parts.is_empty() {
        let text = "a program can use them as always, without freehold run";
        match reasons.as_str() {
            "" => bail!("no volume is mounted here. Mount one first: freehold mount IMAGE DIR"),
            reasons => bail!("none of the mounted volumes can be used in sessions ({text}):{reasons}"),
        }
    }
    // What is mounted below a volume is not the volume's.
    let inner = offers.iter().filter(|o| matches!(o.reach, Reach::Session(_))).flat_map(|o| &o.inner);
    for point in inner {
        if !can_be_said(point) {
            bail!(
                "cannot say that another file system is mounted at {}: its path holds ';' or '='",
                point.display()
            );
        }
        if parts.iter().all(|(known, _)| *known != point.as_path()) {
            parts.push((point, NOBODY));
        }
    }
    let parts: Vec<Vec<u8>> =
        parts.iter().map(|(p, s)| [p.as_os_str().as_bytes(), b"=", s].concat()).collect();
    Ok(OsString::from_vec(parts.join(&b';')))
}

/// Whether a path can stand in the variable.
fn can_be_said(path: &Path) -> bool {
    !path.as_os_str().as_bytes().iter().any(|b| b";=".contains(b))
}

/// `LD_PRELOAD` with the library before what is there already.
fn preload(library: &Path) -> anyhow::Result<OsString> {
    let separates = |b: &u8| b" :\t\n".contains(b);
    let bytes = library.as_os_str().as_bytes();
    if bytes.iter().any(separates) {
        bail!("{}: the dynamic linker takes no path with spaces or colons", library.display());
    }
    let before = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    let others = before.as_bytes().split(separates);
    let others = others
        .filter(|p| !p.is_empty() && Path::new(OsStr::from_bytes(p)).file_name() != Some(LIBRARY.as_ref()));
    Ok(OsString::from_vec(std::iter::once(bytes).chain(others).collect::<Vec<_>>().join(&b':')))
}

/// Where the preload library is.
fn library() -> anyhow::Result<PathBuf> {
    if let Some(named) = std::env::var_os("FREEHOLD_PRELOAD").filter(|n| !n.is_empty()) {
        let path = std::path::absolute(PathBuf::from(named)).context("FREEHOLD_PRELOAD")?;
        return match path.is_file() {
            true => Ok(path),
            false => bail!("FREEHOLD_PRELOAD: there is no file {}", path.display()),
        };
    }
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let beside = own.parent().unwrap_or(Path::new("/"));
    let above = beside.parent().unwrap_or(beside);
    let places = [beside.to_path_buf(), above.join("lib/freehold"), above.join("lib")];
    let found = places.iter().map(|p| p.join(LIBRARY)).find(|p| p.is_file());
    found.ok_or_else(|| {
        let looked: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
        anyhow!("{LIBRARY} is not in {}. Install it there, or name it in FREEHOLD_PRELOAD", looked.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Whole {
        #[command(subcommand)]
        command: Command,
    }

    #[derive(clap::Subcommand)]
    enum Command {
        Run(Args),
    }

    #[test]
    fn plain_command_lines_mean_what_the_parser_says() {
        for (line, plain) in [
            ("freehold run true", true),
            ("freehold run ls -l --help -- x", true),
            ("freehold run -- ls -l -- x", true),
            ("freehold run -- -x y", true),
            ("freehold run --", false),
            ("freehold run", false),
            ("freehold run --list", false),
            ("freehold run --help", false),
            ("freehold run -x true", false),
            ("freehold", false),
            ("freehold mount run", false),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let got = Args::plain(&words).map(|a| a.program);
            assert_eq!(got.is_some(), plain, "{line}");
            if let Some(got) = got {
                let Command::Run(parsed) = Whole::try_parse_from(&words).ok().unwrap().command;
                assert_eq!(got, parsed.program, "{line}");
            }
        }
    }
}

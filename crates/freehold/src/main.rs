//! The command `freehold`. Each subcommand is a module of `cli` (or a module of its own, when it is large) with `Args` and `run`.
//!
//! Called by another name (`mount.freehold`, `umount.fuse.freehold`, `mkfs.freehold`, `fsck.freehold`) it is the helper which
//! mount(8), umount(8), mkfs(8) and fsck(8) look for: see `cli::helper`.

mod cli;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// A file system in user space, on an image file or a block device
#[derive(Parser)]
#[command(name = "freehold", version, max_term_width = 100, propagate_version = true)]
#[command(after_help = "\
Examples:
  freehold mkfs disk.img --size 8G        make a volume in an image file
  freehold mount disk.img /mnt            serve it at /mnt, in the background
  freehold umount /mnt                    stop that, and wait until the volume is closed
  freehold run make -C /mnt/src           run a program that uses it past the kernel
  freehold cp -r src disk.img:/src        copy into an image that is not mounted
  freehold fsck disk.img                  check a volume that is not mounted
  freehold serve --config volumes.toml    serve many volumes in one process
  freehold top /mnt                       watch what a served volume does
  freehold mount s3://bucket/dir /mnt     a bucket of an object store as a file system
  freehold device list                    NVMe controllers, who uses them, and which are free

Exit codes: 0 done, 1 failed, 2 wrong usage (fsck has those of fsck(8), see freehold fsck --help).
Set FREEHOLD_LOG=debug (or info, warn, error) to see more or less of what happens inside.")]
struct Freehold {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Mkfs(cli::mkfs::Args),
    Mount(cli::mount::Args),
    Umount(cli::umount::Args),
    Serve(cli::serve::Args),
    Clients(cli::clients::Args),
    Top(cli::top::Args),
    Run(cli::run::Args),
    Df(cli::df::Args),
    Ls(cli::ls::Args),
    Cp(cli::cp::Args),
    Cat(cli::cat::Args),
    Fsck(cli::fsck::Args),
    Dump(cli::dump::Args),
    Device(cli::device::Args),
    Object(cli::object::Args),
    Bench(freehold::bench::BenchArgs),
    // A new subcommand: its `Args` here, its `run` in `main`.
}

fn main() -> ExitCode {
    // Writing to a closed pipe ends the program quietly, as it does other commands.
    // SAFETY: no other thread runs yet, and the default action is a valid disposition.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let mut words: Vec<_> = std::env::args_os().collect();
    if let Some(done) = cli::helper::called_by_other_name(&mut words) {
        return done;
    }
    let is_fsck = words.get(1).is_some_and(|w| w == "fsck");
    let plain = cli::run::Args::plain(&words).map(Command::Run);
    let command = match plain.map_or_else(|| Freehold::try_parse_from(words).map(|f| f.command), Ok) {
        Ok(command) => command,
        Err(e) => {
            let _ = e.print();
            // fsck(8) has a code of its own for wrong usage.
            let code = if is_fsck && e.use_stderr() { cli::fsck::USAGE } else { e.exit_code() as u8 };
            return code.into();
        }
    };
    let failed = if is_fsck { cli::fsck::FAILED } else { 1 };
    let done = cli::output::or_exit(failed, || match command {
        Command::Mkfs(args) => cli::mkfs::run(args),
        Command::Mount(args) => cli::mount::run(args),
        Command::Umount(args) => cli::umount::run(args),
        Command::Serve(args) => cli::serve::run(args),
        Command::Clients(args) => cli::clients::run(args),
        Command::Top(args) => cli::top::run(args),
        Command::Run(args) => cli::run::run(args),
        Command::Df(args) => cli::df::run(args),
        Command::Ls(args) => cli::ls::run(args),
        Command::Cp(args) => cli::cp::run(args),
        Command::Cat(args) => cli::cat::run(args),
        Command::Dump(args) => cli::dump::run(args),
        Command::Fsck(args) => cli::fsck::run(args),
        Command::Device(args) => cli::device::run(args),
        Command::Object(args) => cli::object::run(args),
        Command::Bench(args) => freehold::bench::run(args),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            let code = cli::Exit::code_of(&e);
            cli::Exit::tell("freehold", &e);
            code.into()
        }
    }
}

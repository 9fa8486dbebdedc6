//! `libfreehold_preload.so`: unmodified dynamic programs use Freehold volumes at user-space speed.
//!
//! ```text
//! freehold run program                 finds the mounts, and sets for the program:
//! FREEHOLD_MOUNTS='/mnt/a=/run/freehold/a.sock;/mnt/b=/run/freehold/b.sock' LD_PRELOAD=libfreehold_preload.so program
//! ```
//!
//! Calls of libc with a path below one of the mounts, or with a descriptor opened there, are calls of a session with the manager
//! ([`share::Remote`]), begun at the first of them. All others go to libc: without the variable, in set-user-id programs, when the
//! manager cannot be reached (then the FUSE mount below serves the path), and for calls that our own code makes.
//!
//! It also has what libc has not: `fbarrier` and `fdatabarrier` (`barrier`).
//!
//! When the manager ends, calls wait for another one that serves the volume at the same place (`share::Connect`; `FREEHOLD_RESUME`: for how many seconds).
//!
//! It begins with its constructor, which is the last before main, or with the first call before that; only with the constructor where the program has an allocator of its
//! own (jemalloc): files that the constructors of other libraries use then are those of the FUSE mount.
//!
//! How it is made: [`hook`](self) replaces functions; `mounts` has the sessions; `path` decides where a path leads; `arena`, `description` and `table`
//! make open files of descriptors; then one file for each family of calls.
//!
//! An open file survives dup, fork, clone, vfork, posix_spawn and exec, with its offset and the locks that are its own shared (see `slot`); the other process opens
//! the inode again at first use, which is also possible where it has no name any more or a mode that forbids it by then (`left`). Record locks of the process stay over exec (`left::before_exec`).
//!
//! Paths of /dev and /proc that name a descriptor of ours are followed (`named`), but not those of another process's descriptors, which show
//! our memory.
//!
//! What is not served here and goes to the FUSE mount under the same path: exec and dlopen of files, FIFOs, sockets and devices,
//! bind, inotify and fanotify, `name_to_handle_at`, `ftw`, `nftw`, `glob`, libc's own `fts` (where `nftw` and `fts` change the current directory: `walks`), `wordexp`, `tmpnam`, `mount`, io_uring's paths,
//! static programs and raw system calls; and whatever a process opens that has set up an io_uring (`rings`). Through a descriptor of ours these
//! fail: io_uring and raw system calls, also those of AIO (`EBADF` for reads, `EPERM` for writes; calls by syscall(2) are served as far as `numbers` says), most of ioctl (`ENOTTY`),
//! `wprintf` and its kin on streams, `psiginfo` and what libc itself says to descriptor 2 of a damaged heap or stack before it aborts. Shared writable mappings need the FUSE mount,
//! and others see what is written to them after msync (`mmap`).
//! The library's own descriptors have the first free numbers from 700 on, or the highest that the process may have: dup2 to one of these is `EBADF`, and closing it too. The files that were closed last may keep their numbers in the kernel
//! until the next call that is not ours (`parked`): calls that libc makes for itself find them there. A static program that moves the offset
//! of a file that it inherited makes it useless for all who share it (`EPERM`, `EBADF`).
//! A process that is stopped (SIGSTOP) in the middle of a call that moves an offset lets those who share that wait until it goes on.
//! Signals end waits for locks and nothing else. A signal handler that uses files of a volume while the same thread
//! is inside of a call of ours, also by a stream (exit(3) writes what is in their buffers), is refused in the same way (`EBADF`, `EPERM`) instead of waiting for itself. Who waits for a lock while most of the session's calls do asks for it
//! again and again, and is not found in circles of such (`EDEADLK`). Descriptors from 65536 on are refused. freopen(3) of a stream of libc's, with a file of ours, gives another
//! stream; the old one is left, and useless. C++ streams that took
//! `stdout` before a redirection keep the old one. Where there is no FUSE mount, static programs
//! started by one that went into a volume do not know it. A program that changes its user or groups uses the FUSE mount from then on (`ids`), and so does one that changes its root directory (`root`).
//!
//! For Linux with glibc. Tested on x86-64, in `tests/`, with real programs; not yet tried on aarch64.

mod aio;
mod anchor;
mod attrs;
mod barrier;
mod cwd;
mod daemons;
mod description;
mod dirs;
mod fds;
mod hook;
mod ids;
mod left;
mod lexical;
mod limits;
mod mapped;
mod memory;
mod messages;
mod mmap;
mod mounts;
mod named;
mod names;
mod numbers;
mod open;
mod parked;
mod path;
mod plain;
mod pool;
mod posix_aio;
mod realpath;
mod rings;
mod root;
mod rw;
mod sendfile;
mod signals;
mod slot;
mod sockets;
mod spawn;
mod splice;
mod stat;
mod stdio;
mod table;
mod upward;
mod walks;
mod wide;
mod xattr;

/// Starts the library before main, so that redirected standard streams are ours from the beginning, and by nobody's call but the loader's: none
/// of the program's locks is held.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = {
    extern "C" fn begin() {
        let _ = std::panic::catch_unwind(mounts::start);
    }
    begin
};

//! Calls that give descriptors to other processes: seen only so that `pool` knows which descriptions others can have. And syscall(2).

use crate::hook::{Out, Res, errno, fail, hook, outside};
use crate::{pool, table};
use libc::{c_char, c_int, c_void, pid_t};
use std::sync::atomic::Ordering;

/// Notes what goes away in a message.
///
/// # Safety
/// `message` is null or a message header.
unsafe fn sent(message: *const libc::msghdr) -> Res<()> {
    // SAFETY: as the caller says.
    for fd in unsafe { crate::sockets::descriptors_in(message) } {
        if let Some(open) = table::get(fd) {
            open.shared.store(true, Ordering::Relaxed);
            crate::left::before_sending(fd, &open)?;
        }
    }
    Ok(())
}

/// As [`sent`], of several.
///
/// # Safety
/// `messages` is null or so many message headers.
unsafe fn sent_many(messages: *const libc::mmsghdr, n: usize) -> Res<()> {
    // SAFETY: as the caller says.
    (0..if messages.is_null() { 0 } else { n.min(1024) })
        .try_for_each(|i| unsafe { sent(&raw const (*messages.add(i)).msg_hdr) })
}

type Given = *const c_void;
type Strings = *const *mut c_char;

/// What calls of the family of posix_spawn return: an error number. `-1` comes from [`hook`] when this libc has no such function.
fn spawned(result: c_int) -> c_int {
    if result == -1 { libc::ENOSYS } else { result }
}

hook! {
    fn posix_spawn(pid: *mut pid_t, path: *const c_char, a: Given, b: Given, argv: Strings, env: Strings) -> c_int {
        let _starting = pool::starting();
        Ok(outside(|| posix_spawn::real(pid, path, a, b, argv, env)))
    }
    fn posix_spawnp(pid: *mut pid_t, file: *const c_char, a: Given, b: Given, argv: Strings, env: Strings) -> c_int {
        let _starting = pool::starting();
        Ok(outside(|| posix_spawnp::real(pid, file, a, b, argv, env)))
    }
    fn pidfd_spawn(pidfd: *mut c_int, path: *const c_char, a: Given, b: Given, argv: Strings, env: Strings) -> c_int {
        let _starting = pool::starting();
        Ok(spawned(outside(|| pidfd_spawn::real(pidfd, path, a, b, argv, env))))
    }
    fn pidfd_spawnp(pidfd: *mut c_int, file: *const c_char, a: Given, b: Given, argv: Strings, env: Strings) -> c_int {
        let _starting = pool::starting();
        Ok(spawned(outside(|| pidfd_spawnp::real(pidfd, file, a, b, argv, env))))
    }
    fn _Fork() -> pid_t {
        // Unlike fork it runs no handlers.
        crate::left::before_start();
        pool::begin_start();
        let pid = outside(|| _Fork::real());
        if pid == 0 {
            crate::mounts::after_fork();
        } else {
            pool::end_start();
        }
        if pid < 0 { fail(errno()) } else { Ok(pid) }
    }
    fn system(command: *const c_char) -> c_int {
        let _starting = pool::starting();
        Ok(outside(|| system::real(command)))
    }
    fn popen(command: *const c_char, kind: *const c_char) -> *mut libc::FILE {
        let _starting = pool::starting();
        let stream = outside(|| popen::real(command, kind));
        if stream.is_null() { fail(errno()) } else { Ok(stream) }
    }
    fn wordexp(words: *const c_char, to: *mut c_void, flags: c_int) -> c_int {
        let _starting = pool::starting();
        Ok(outside(|| wordexp::real(words, to, flags)))
    }
    fn sendmsg(socket: c_int, message: *const libc::msghdr, flags: c_int) -> isize {
        sent(message)?;
        Err(Out::Libc)
    }
    fn sendmmsg(socket: c_int, messages: *mut libc::mmsghdr, n: libc::c_uint, flags: c_int) -> c_int {
        sent_many(messages, n as usize)?;
        Err(Out::Libc)
    }
}

/// vfork and clone return twice, or on another stack, and exec not at all, so nothing can be done behind them: marks are set (what clone makes may be a thread), the
/// parked descriptors are closed, and libc's function goes on in place of ours.
#[cfg(target_arch = "x86_64")]
mod onward {
    use crate::{parked, pool, table};
    use libc::{c_int, c_long, c_void};
    use share::lock::UNKNOWN;
    use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

    extern "C" fn none() -> c_int {
        crate::hook::set_errno(libc::ENOSYS);
        -1
    }

    macro_rules! onward {
        ($($name:ident as $text:literal, $before:path => $next:ident,)*) => {
            $(
                static $next: AtomicPtr<c_void> = AtomicPtr::new(none as *mut c_void);

                /// # Safety
                /// As of libc's function, which gets the registers and the stack as they are.
                #[unsafe(naked)]
                #[unsafe(no_mangle)]
                unsafe extern "C" fn $name() {
                    std::arch::naked_asm!(
                        "endbr64",
                        "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                        "call {before}",
                        "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                        "jmp qword ptr [rip + {next}]",
                        before = sym $before,
                        next = sym $next,
                    )
                }
            )*

            /// Finds libc's functions.
            #[cold]
            pub(crate) fn find() {
                for (to, name) in [$((&$next, $text)),*] {
                    // SAFETY: the name ends with NUL.
                    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
                    if !found.is_null() {
                        to.store(found, Ordering::Release);
                    }
                }
                FOUND.store(true, Ordering::Release);
            }
        };
    }
    onward! {
        vfork as c"vfork", before_vfork => VFORK,
        __vfork as c"__vfork", before_vfork => UNDERLINED_VFORK,
        clone as c"clone", before_clone => CLONE,
        __clone as c"__clone", before_clone => UNDERLINED_CLONE,
        execve as c"execve", before_exec => EXECVE,
        execveat as c"execveat", before_exec => EXECVEAT,
        fexecve as c"fexecve", before_exec => FEXECVE,
        execv as c"execv", before_exec => EXECV,
        execvp as c"execvp", before_exec => EXECVP,
        execvpe as c"execvpe", before_exec => EXECVPE,
        execl as c"execl", before_exec => EXECL,
        execlp as c"execlp", before_exec => EXECLP,
        execle as c"execle", before_exec => EXECLE,
    }

    static FOUND: AtomicBool = AtomicBool::new(false);

    /// Other libraries' constructors may make these calls before the library has begun.
    fn found() {
        if !FOUND.load(Ordering::Acquire) {
            find();
        }
    }

    extern "C" fn before_vfork() {
        crate::mounts::begin_for_child();
        pool::begin_vfork();
        found();
    }

    extern "C" fn before_clone() {
        UNKNOWN.store(true, Ordering::SeqCst);
        crate::mounts::begin_for_child();
        pool::never_again();
        parked::close_for_start();
        table::publish();
        found();
    }

    extern "C" fn before_exec() {
        crate::left::before_exec();
        parked::leave();
        table::publish();
        found();
    }

    /// Whether a message that a program sends by number cannot go, as a file of ours is in it.
    fn is_refused(number: c_long, messages: usize, count: usize) -> bool {
        if crate::hook::is_inside() || !crate::mounts::active() {
            return false;
        }
        let _inside = crate::hook::inside();
        // SAFETY: the program's arguments, as of the functions of libc.
        let sent = unsafe {
            match number {
                libc::SYS_sendmsg => super::sent(messages as *const libc::msghdr),
                _ => super::sent_many(messages as *const libc::mmsghdr, count),
            }
        };
        let Err(crate::hook::Out::Errno(errno)) = sent else { return false };
        crate::hook::set_errno(errno);
        true
    }

    /// syscall(2), for those who start processes by number, and those whose calls of files we serve (`numbers`).
    #[unsafe(no_mangle)]
    unsafe extern "C" fn syscall(
        number: c_long,
        a: usize,
        b: usize,
        c: usize,
        d: usize,
        e: usize,
        f: usize,
    ) -> c_long {
        match number {
            libc::SYS_clone | libc::SYS_clone3 => before_clone(),
            libc::SYS_fork | libc::SYS_vfork => before_vfork(),
            libc::SYS_execve | libc::SYS_execveat => before_exec(),
            libc::SYS_io_uring_setup => crate::rings::before_setup(b),
            libc::SYS_sendmsg | libc::SYS_sendmmsg if is_refused(number, b, c) => return -1,
            _ => {}
        }
        // SAFETY: the arguments are the caller's.
        if let Some(done) = unsafe { crate::numbers::served(number, [a, b, c, d, e, f]) } {
            return done;
        }
        if !crate::hook::is_inside() {
            parked::close();
        }
        let result: isize;
        // SAFETY: what the kernel does is the caller's will; the kernel's convention for registers on x86-64.
        unsafe {
            std::arch::asm!(
                "syscall",
                inlateout("rax") number as isize => result,
                in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
                lateout("rcx") _, lateout("r11") _,
                options(nostack),
            );
        }
        if (-4095..0).contains(&result) {
            crate::hook::set_errno(-result as c_int);
            return -1;
        }
        result as c_long
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use onward::find;

/// There, nothing is ever used again (`pool`).
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn find() {}

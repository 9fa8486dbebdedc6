//! daemon(3), login_tty(3) and forkpty(3): libc's change directory and descriptors without calls that we see, so they are made here of those that we do.

use crate::hook::{Res, errno, fail, hook, outside};
use libc::{c_char, c_int, pid_t, termios, winsize};

/// Makes a call of the family of fork(2), with which libc runs what the program and we have for that.
fn start() -> Res<pid_t> {
    // SAFETY: as of the program's call, whose only thread the child goes on with.
    let pid = outside(|| unsafe { libc::fork() });
    if pid < 0 { fail(errno()) } else { Ok(pid) }
}

/// Has the standard descriptors lead to where `fd` leads, which is closed.
///
/// # Safety
/// `fd` is the caller's to close.
unsafe fn standard(fd: c_int) -> Res<()> {
    for number in 0..3 {
        // Another thread may be opening that one.
        // SAFETY: only descriptors are touched.
        while outside(|| unsafe { crate::fds::dup2(fd, number) }) == -1 {
            if errno() != libc::EBUSY {
                return fail(errno());
            }
        }
    }
    if fd > 2 {
        // SAFETY: as the caller says.
        outside(|| unsafe { crate::fds::close(fd) });
    }
    Ok(())
}

/// # Safety
/// `fd` is the caller's to close.
unsafe fn log_in(fd: c_int) -> Res<()> {
    // SAFETY: calls that touch the process and the descriptor only.
    unsafe {
        libc::setsid();
        if libc::ioctl(fd, libc::TIOCSCTTY, 0) == -1 {
            return fail(errno());
        }
        standard(fd)
    }
}

/// /dev/null, if it is that.
fn null() -> Res<c_int> {
    // SAFETY: a C string of our own; all zeros is a valid value, which the call fills.
    unsafe {
        let fd = outside(|| crate::open::open(c"/dev/null".as_ptr(), libc::O_RDWR, 0));
        if fd < 0 {
            return fail(errno());
        }
        let mut st: libc::stat = std::mem::zeroed();
        let known = libc::syscall(libc::SYS_fstat, fd, &mut st) == 0;
        if known && st.st_mode & libc::S_IFMT == libc::S_IFCHR && st.st_rdev == libc::makedev(1, 3) {
            return Ok(fd);
        }
        outside(|| crate::fds::close(fd));
        fail(libc::ENODEV)
    }
}

hook! {
    fn daemon(stays: c_int, keeps: c_int) -> c_int {
        if start()? != 0 {
            libc::_exit(0);
        }
        if libc::setsid() == -1 {
            return fail(errno());
        }
        if stays == 0 {
            outside(|| crate::cwd::chdir(c"/".as_ptr()));
        }
        if keeps == 0 {
            standard(null()?)?;
        }
        Ok(0)
    }
    fn login_tty(fd: c_int) -> c_int {
        log_in(fd)?;
        Ok(0)
    }
    fn forkpty(to: *mut c_int, name: *mut c_char, terminal: *const termios, window: *const winsize) -> pid_t {
        let (mut ours, mut theirs) = (-1, -1);
        crate::parked::close();
        if libc::openpty(&mut ours, &mut theirs, name, terminal, window) == -1 {
            return fail(errno());
        }
        match start() {
            Ok(0) => {
                outside(|| crate::fds::close(ours));
                if log_in(theirs).is_err() {
                    libc::_exit(1);
                }
                Ok(0)
            }
            started => {
                outside(|| crate::fds::close(theirs));
                match started {
                    Ok(_) => *to = ours,
                    Err(_) => _ = outside(|| crate::fds::close(ours)),
                }
                started
            }
        }
    }
}

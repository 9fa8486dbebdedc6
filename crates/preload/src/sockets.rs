//! Calls that are always the kernel's, and look at the program's descriptors or make some: they must find these as the program knows them (`parked`).

use crate::hook::{Out, hook};
use libc::{c_int, c_uint, nfds_t, socklen_t, ssize_t};

type Set = *mut libc::fd_set;
type Signals = *const libc::sigset_t;

hook! {
    fn pipe(to: *mut c_int) -> c_int { Err(Out::Libc) }
    fn pipe2(to: *mut c_int, flags: c_int) -> c_int { Err(Out::Libc) }
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int { Err(Out::Libc) }
    fn socketpair(domain: c_int, kind: c_int, protocol: c_int, to: *mut c_int) -> c_int { Err(Out::Libc) }
    fn accept(socket: c_int, address: *mut libc::sockaddr, len: *mut socklen_t) -> c_int { Err(Out::Libc) }
    fn accept4(socket: c_int, address: *mut libc::sockaddr, len: *mut socklen_t, flags: c_int) -> c_int { Err(Out::Libc) }
    fn recvmsg(socket: c_int, message: *mut libc::msghdr, flags: c_int) -> ssize_t { Err(Out::Libc) }
    fn epoll_create(size: c_int) -> c_int { Err(Out::Libc) }
    fn epoll_create1(flags: c_int) -> c_int { Err(Out::Libc) }
    fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut libc::epoll_event) -> c_int { Err(Out::Libc) }
    fn eventfd(value: c_uint, flags: c_int) -> c_int { Err(Out::Libc) }
    fn signalfd(fd: c_int, signals: Signals, flags: c_int) -> c_int { Err(Out::Libc) }
    fn timerfd_create(clock: c_int, flags: c_int) -> c_int { Err(Out::Libc) }
    fn inotify_init1(flags: c_int) -> c_int { Err(Out::Libc) }
    fn memfd_create(name: *const libc::c_char, flags: c_uint) -> c_int { Err(Out::Libc) }
    fn poll(fds: *mut libc::pollfd, n: nfds_t, timeout: c_int) -> c_int { Err(Out::Libc) }
    fn ppoll(fds: *mut libc::pollfd, n: nfds_t, timeout: *const libc::timespec, mask: Signals) -> c_int { Err(Out::Libc) }
    fn select(n: c_int, read: Set, write: Set, except: Set, timeout: *mut libc::timeval) -> c_int { Err(Out::Libc) }
    fn pselect(n: c_int, read: Set, write: Set, except: Set, timeout: *const libc::timespec, mask: Signals) -> c_int { Err(Out::Libc) }
}

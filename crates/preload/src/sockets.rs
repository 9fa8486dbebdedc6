//! Calls that are always the kernel's, and look at the program's descriptors or make some: they must find these as the program knows them (`parked`). What comes in a
//! message may be one of ours that another process has sent.

use crate::hook::{Out, errno, fail, hook, outside};
use crate::{parked, table};
use libc::{c_int, c_uint, nfds_t, socklen_t, ssize_t};

type Set = *mut libc::fd_set;
type Signals = *const libc::sigset_t;

/// The descriptors that a message carries (SCM_RIGHTS).
///
/// # Safety
/// `message` is null or a message header.
pub(crate) unsafe fn descriptors_in(message: *const libc::msghdr) -> Vec<c_int> {
    let mut found = Vec::new();
    // SAFETY: as the caller says; the control messages are walked as cmsg(3) says.
    unsafe {
        let Some(message) = message.as_ref() else { return found };
        let mut head = libc::CMSG_FIRSTHDR(message);
        while let Some(control) = head.as_ref() {
            if control.cmsg_level == libc::SOL_SOCKET && control.cmsg_type == libc::SCM_RIGHTS {
                let bytes = control.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                let fds = libc::CMSG_DATA(head).cast::<c_int>();
                found.extend((0..bytes / size_of::<c_int>()).map(|i| fds.add(i).read_unaligned()));
            }
            head = libc::CMSG_NXTHDR(message, head);
        }
    }
    found
}

/// A message has come.
///
/// # Safety
/// As of [`descriptors_in`].
unsafe fn received(message: *const libc::msghdr) {
    // SAFETY: as the caller says.
    let descriptors = unsafe { descriptors_in(message) };
    // SAFETY: it always succeeds. Of another user's memory nothing is believed.
    let user = unsafe { libc::geteuid() };
    descriptors.into_iter().for_each(|fd| table::adopt_one(fd, Some(user)));
}

hook! {
    fn pipe(to: *mut c_int) -> c_int { Err(Out::Libc) }
    fn pipe2(to: *mut c_int, flags: c_int) -> c_int { Err(Out::Libc) }
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int { Err(Out::Libc) }
    fn socketpair(domain: c_int, kind: c_int, protocol: c_int, to: *mut c_int) -> c_int { Err(Out::Libc) }
    fn accept(socket: c_int, address: *mut libc::sockaddr, len: *mut socklen_t) -> c_int { Err(Out::Libc) }
    fn accept4(socket: c_int, address: *mut libc::sockaddr, len: *mut socklen_t, flags: c_int) -> c_int { Err(Out::Libc) }
    fn recvmsg(socket: c_int, message: *mut libc::msghdr, flags: c_int) -> ssize_t {
        if message.as_ref().is_none_or(|message| message.msg_controllen == 0) {
            return Err(Out::Libc);
        }
        parked::close();
        let n = outside(|| recvmsg::real(socket, message, flags));
        if n < 0 {
            return fail(errno());
        }
        received(message);
        Ok(n)
    }
    fn recvmmsg(socket: c_int, messages: *mut libc::mmsghdr, n: c_uint, flags: c_int, timeout: *mut libc::timespec) -> c_int {
        parked::close();
        let got = outside(|| recvmmsg::real(socket, messages, n, flags, timeout));
        if got < 0 {
            return fail(errno());
        }
        (0..got as usize).for_each(|i| received(&raw const (*messages.add(i)).msg_hdr));
        Ok(got)
    }
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

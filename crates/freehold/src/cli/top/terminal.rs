//! The terminal while a picture is on it: the second screen, no echo, no cursor. However the program ends, short of SIGKILL, it is
//! left as it was found: on errors and panics when it is dropped, on signals because they come as events.

use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// What a terminal is taken for that does not say its size.
const SIZE: (usize, usize) = (80, 24);

/// What ended a wait.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// The time is over.
    Timeout,
    /// `q`, ctrl-C, or a signal that ends programs.
    Quit,
    /// The size may have changed.
    Redraw,
}

/// Standard input and output, while this lives.
pub struct Terminal {
    before: libc::termios,
    signals: OwnedFd,
    mask: libc::sigset_t,
}

impl Terminal {
    /// Takes the terminal over. Signals that end programs are blocked in this thread from then on, and become [`Event::Quit`].
    pub fn open() -> io::Result<Terminal> {
        let mut before = MaybeUninit::uninit();
        // SAFETY: the pointer is to a termios, which is initialised when the call succeeds.
        let mut raw: libc::termios = unsafe {
            check(libc::tcgetattr(0, before.as_mut_ptr()))?;
            before.assume_init()
        };
        let before = raw;
        // SAFETY: the sets are initialised by sigemptyset and pthread_sigmask before they are used.
        let (signals, mask) = unsafe {
            let (mut set, mut mask): (libc::sigset_t, libc::sigset_t) =
                (std::mem::zeroed(), std::mem::zeroed());
            libc::sigemptyset(&mut set);
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGWINCH] {
                libc::sigaddset(&mut set, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, &mut mask);
            let fd = check(libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))?;
            (OwnedFd::from_raw_fd(fd), mask)
        };
        let terminal = Terminal { before, signals, mask };
        // Keys come one by one and unseen; ctrl-C and ctrl-Z are keys.
        raw.c_lflag &= !(libc::ICANON | libc::ECHO | libc::ISIG);
        (raw.c_cc[libc::VMIN], raw.c_cc[libc::VTIME]) = (0, 0);
        // SAFETY: raw is a whole termios.
        check(unsafe { libc::tcsetattr(0, libc::TCSAFLUSH, &raw) })?;
        write_out(ENTER)?;
        Ok(terminal)
    }

    /// Columns and rows now.
    pub fn size(&self) -> (usize, usize) {
        // SAFETY: an all-zero winsize is valid, and the pointer is to one.
        let size = unsafe {
            let mut size: libc::winsize = std::mem::zeroed();
            libc::ioctl(1, libc::TIOCGWINSZ, &mut size);
            size
        };
        match (size.ws_col as usize, size.ws_row as usize) {
            (0, _) | (_, 0) => SIZE,
            size => size,
        }
    }

    /// Replaces the picture. Lines are overwritten rather than erased before, so that nothing flickers.
    pub fn show(&mut self, lines: &[String]) -> io::Result<()> {
        let mut out = String::from("\x1b[H");
        for (i, line) in lines.iter().enumerate() {
            out += if i > 0 { "\r\n" } else { "" };
            out += line;
            out += "\x1b[K";
        }
        out += "\x1b[J";
        write_out(&out)
    }

    /// Waits for a key or a signal.
    pub fn wait(&mut self, time: Duration) -> io::Result<Event> {
        let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut both = [poll(0), poll(self.signals.as_raw_fd())];
        let ms = time.as_millis().min(3_600_000) as i32;
        // SAFETY: the pointer is to two pollfds.
        match check(unsafe { libc::poll(both.as_mut_ptr(), 2, ms) }) {
            Ok(0) => return Ok(Event::Timeout),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(Event::Redraw),
            done => done?,
        };
        if both[1].revents != 0 {
            let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
            let len = size_of::<libc::signalfd_siginfo>();
            // SAFETY: the pointer is to so many bytes; the structure is looked at only when all of them were read.
            let signal = unsafe {
                let got = libc::read(self.signals.as_raw_fd(), info.as_mut_ptr().cast(), len);
                (got == len as isize).then(|| info.assume_init().ssi_signo as i32)
            };
            if signal.is_some_and(|s| s != libc::SIGWINCH) {
                return Ok(Event::Quit);
            }
        }
        if both[0].revents != 0 {
            let mut keys = [0u8; 64];
            // SAFETY: the pointer is to 64 bytes.
            let n = unsafe { libc::read(0, keys.as_mut_ptr().cast(), keys.len()) };
            // Nothing although there should be something: the terminal is gone.
            let gone = n <= 0;
            if gone || keys[..n as usize].iter().any(|k| matches!(k, b'q' | b'Q' | 3 | 4)) {
                return Ok(Event::Quit);
            }
        }
        Ok(Event::Redraw)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = write_out(LEAVE);
        // SAFETY: both are what the system returned before.
        unsafe {
            libc::tcsetattr(0, libc::TCSAFLUSH, &self.before);
            libc::pthread_sigmask(libc::SIG_SETMASK, &self.mask, std::ptr::null_mut());
        }
    }
}

fn check(rc: i32) -> io::Result<i32> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc) }
}

fn write_out(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

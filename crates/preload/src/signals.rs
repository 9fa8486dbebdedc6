//! Signals while a call waits: kept back, and looked at again and again, so that none comes unseen between a look and the sleep behind it.

use std::marker::PhantomData;

/// Those that a program raises by what it does: kept back they would end it.
const RAISED: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// While it lives, this thread handles no signals, except where [`Held::interrupted`] lets them through.
pub struct Held {
    /// What the program keeps back itself.
    own: libc::sigset_t,
    all: libc::sigset_t,
    /// The mask is that of this thread.
    _here: PhantomData<*const ()>,
}

impl Held {
    /// Begins to keep signals back.
    pub fn begin() -> Held {
        // SAFETY: sets are plain bytes, which sigfillset and pthread_sigmask fill.
        unsafe {
            let (mut own, mut all) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&mut all);
            for signal in RAISED {
                libc::sigdelset(&mut all, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut own);
            Held { own, all, _here: PhantomData }
        }
    }

    /// Whether there is a signal whose handler ends waiting (no SA_RESTART). It is handled when `self` is dropped. All others take effect here.
    pub fn interrupted(&self) -> bool {
        let mut any = false;
        for signal in self.waiting() {
            match action(signal) {
                Some(action) if handles(&action) && action.sa_flags & libc::SA_RESTART == 0 => return true,
                _ => any = true,
            }
        }
        if any {
            set(libc::SIG_SETMASK, &self.own);
            set(libc::SIG_BLOCK, &self.all);
        }
        false
    }

    /// The signals that only we keep back.
    fn waiting(&self) -> impl Iterator<Item = libc::c_int> {
        // SAFETY: as above; sigpending fills the set, sigismember reads sets.
        let (own, pending) = unsafe {
            let mut pending = std::mem::zeroed();
            libc::sigpending(&mut pending);
            (self.own, pending)
        };
        // SAFETY: as above.
        let is_in = |set: &libc::sigset_t, signal| unsafe { libc::sigismember(set, signal) == 1 };
        (1..=libc::SIGRTMAX()).filter(move |&signal| is_in(&pending, signal) && !is_in(&own, signal))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        set(libc::SIG_SETMASK, &self.own);
    }
}

fn set(how: libc::c_int, mask: &libc::sigset_t) {
    // SAFETY: the set is one that libc filled.
    unsafe { libc::pthread_sigmask(how, mask, std::ptr::null_mut()) };
}

fn action(signal: libc::c_int) -> Option<libc::sigaction> {
    // SAFETY: only asks; a structure of zeros is a valid one.
    unsafe {
        let mut action = std::mem::zeroed();
        (libc::sigaction(signal, std::ptr::null(), &mut action) == 0).then_some(action)
    }
}

fn handles(action: &libc::sigaction) -> bool {
    !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN)
}

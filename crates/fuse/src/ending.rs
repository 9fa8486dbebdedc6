//! How a mount ends.
//!
//! A mount is taken away from its place, but the kernel ends the connection only when nothing uses it any more: it goes on where the mount is bound to another
//! place or copied into another mount namespace, and for files that are open when it is unmounted lazily, which is all that others than root can do with it then.
//! So who must come to an end ([`Mount::unmount_within`]) has the kernel end the connection itself ([`Connection`]), and where that cannot be had
//! gives it up: nobody waits for it any more, what is behind it may be closed, and it ends with this process.
//!
//! Tested by `tests/mount/ends.rs`.

use crate::connection::Connection;
use crate::session::Mount;
use crate::sys;
use parking_lot::{Condvar, Mutex};
use std::io;
use std::time::{Duration, Instant};

/// How long one who ends a mount waits until he tries again.
const AGAIN: Duration = Duration::from_millis(50);
/// How long the kernel may take to end a connection that nobody uses, or that was ended by force.
const ENDING: Duration = Duration::from_millis(200);
/// For how long dirty pages are written back before files lose their mount.
const WRITING_BACK: Duration = Duration::from_secs(60);

/// What is known of the end of a mount.
#[derive(Default)]
pub struct End {
    state: Mutex<State>,
    changed: Condvar,
    /// Whether we have unmounted while nothing was open: then whatever is still known as open was closed. Held while that is tried.
    pub clean: Mutex<bool>,
}

#[derive(Default)]
struct State {
    /// The mount is gone and everything behind it is closed.
    over: bool,
    /// It goes on, and nobody can do anything about that.
    given_up: bool,
}

impl End {
    /// The mount is gone and everything behind it is closed.
    pub fn set_over(&self) {
        self.state.lock().over = true;
        self.changed.notify_all();
    }

    fn give_up(&self) {
        self.state.lock().given_up = true;
        self.changed.notify_all();
    }
}

impl Mount {
    /// Waits until the mount is gone, through [`Mount::unmount`], `umount` from outside, or an aborted connection, and everything
    /// that was open in it is closed in the engine. Or until [`Mount::unmount_within`] has failed: then requests still come.
    pub fn wait(&self) {
        let mut state = self.end.state.lock();
        while !(state.over || state.given_up) {
            self.end.changed.wait(&mut state);
        }
    }

    /// Whether requests still come.
    pub fn is_mounted(&self) -> bool {
        !self.end.state.lock().over && !self.device.is_gone()
    }

    /// Unmounts and waits for the end. Nothing happens when it is gone already. Where the file system is mounted at other places too (bind mounts, other mount
    /// namespaces), or was unmounted lazily while files were open, it is waited until nobody uses these any more.
    ///
    /// # Errors
    /// `EBUSY` while files are open below it; it then stays mounted. So it does when something else is mounted over it.
    pub fn unmount(&self) -> io::Result<()> {
        self.detach()?;
        self.wait();
        Ok(())
    }

    /// As [`Mount::unmount_within`] without patience.
    ///
    /// # Errors
    /// Those of [`Mount::unmount_within`].
    pub fn unmount_now(&self) -> io::Result<()> {
        self.unmount_within(Duration::ZERO)
    }

    /// Unmounts and waits for the end. When after `patience` files are still open, or the file system is still mounted at other places or under something
    /// else, the connection ends by force: calls on what is open fail from then on, and other mounts of it are dead.
    ///
    /// # Errors
    /// Why it could be neither unmounted nor ended by force. Requests then still come, and nobody waits for their end any more.
    pub fn unmount_within(&self, patience: Duration) -> io::Result<()> {
        let until = Instant::now().checked_add(patience);
        loop {
            let tried = self.detach();
            if !self.is_mounted() {
                self.wait();
                return Ok(());
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                let why = tried.err().map_or("it is in use elsewhere".into(), |e| e.to_string());
                tracing::warn!("{}: ending it by force: {why}", self.point.display());
                return self.force();
            }
            let mut state = self.end.state.lock();
            if !state.over {
                self.end.changed.wait_for(&mut state, AGAIN);
            }
        }
    }

    /// Takes the mount from its place, if nothing is open below it.
    fn detach(&self) -> io::Result<()> {
        let mut attached = self.attached.lock();
        let Some(it) = &*attached else { return Ok(()) };
        if self.is_mounted() {
            let mut clean = self.end.clean.lock();
            let detached = it.detach(false);
            // It may live on in another namespace, and end there by force.
            *clean = matches!(detached, Ok(true)) && self.device.is_gone();
            drop(clean);
            detached?;
        }
        if let Some(it) = attached.take() {
            it.finish();
        }
        Ok(())
    }

    fn force(&self) -> io::Result<()> {
        if let Some(number) = &self.number {
            sys::write_back(number, WRITING_BACK);
        }
        let mut attached = self.attached.lock();
        let detached = attached.as_ref().map_or(Ok(false), |it| it.detach(true));
        if detached.is_ok()
            && let Some(it) = attached.take()
        {
            it.finish();
        }
        drop(attached);
        let ended = if self.is_gone_soon() { Ok(()) } else { self.abort() };
        if let Err(e) = ended {
            self.end.give_up();
            return Err(detached.err().unwrap_or(e));
        }
        self.wait();
        Ok(())
    }

    /// Has the kernel end the connection.
    fn abort(&self) -> io::Result<()> {
        let number = self.number.as_deref().ok_or(io::ErrorKind::NotFound)?;
        let connection = Connection::of(number);
        // Numbers are used again: it is that of this mount as long as this mount is there.
        if !self.is_mounted() {
            return Ok(());
        }
        let named = |e: io::Error| {
            io::Error::new(e.kind(), format!("its FUSE connection cannot be ended by force: {e}"))
        };
        connection.and_then(|connection| connection.abort()).map_err(named)?;
        match self.is_gone_soon() {
            true => Ok(()),
            false => Err(io::Error::other("the kernel does not end its FUSE connection")),
        }
    }

    fn is_gone_soon(&self) -> bool {
        let begun = Instant::now();
        while self.is_mounted() {
            if begun.elapsed() > ENDING {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(e) = self.unmount_now() {
            tracing::error!(error = %e, "cannot unmount");
        }
    }
}

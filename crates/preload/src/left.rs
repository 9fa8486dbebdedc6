//! Open files that other processes have: those could not open them once more when a name is gone, or a mode forbids it, by the time of their first use. So a file is
//! left to whoever gets the description (`share::Remote::leave`) before a process is started, which is once for each file; and when this process, which did not have it
//! open then, closes it or becomes another program. Who has the description then opens the file as it was open.
//!
//! Where tested: `tests/all/processes.rs`.

use crate::description::{LOCKING, Open, State};
use crate::hook::{Res, fail, inside, is_inside};
use crate::{ids, mounts, table};
use fs::{FileType, Handle, OpenFlags};
use libc::c_int;
use share::Description;
use std::sync::atomic::Ordering;

/// A process is about to be started, which gets all descriptors, and begins where the kernel stands.
pub(crate) fn before_start() {
    crate::cwd::before_start();
    for (fd, open) in all() {
        // What cannot be left is opened once more, if that is possible.
        let _ = leave(fd, &open);
    }
}

/// This process is about to become another program, which gets those descriptors that are not closed by that; of the others there may be copies elsewhere.
#[cfg(target_arch = "x86_64")]
pub(crate) fn before_exec() {
    if is_inside() || !mounts::active() || mounts::borrowed_memory() {
        return;
    }
    let _inside = inside();
    crate::cwd::before_start();
    // SAFETY: a number.
    let stays = |fd: c_int| unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFD) } & i64::from(libc::FD_CLOEXEC) == 0;
    // All of them: this session ends now, and with it the handles, before the program comes to use any.
    let all: Vec<_> = all().collect();
    for (fd, open) in all.iter().filter(|(fd, open)| stays(*fd) || !open.is_alone()) {
        let _ = leave(*fd, open);
    }
    if !LOCKING.load(Ordering::Relaxed) {
        return;
    }
    for (_, open) in &all {
        // One that is closed ends them, through whichever they were taken.
        let stay = all.iter().filter(|(_, other)| other.is_same_file(open)).all(|(fd, _)| stays(*fd));
        let _ = open.keep_locks(stay);
    }
}

/// This process has closed its last descriptor of what others may have. They have it without us, whatever becomes of its name.
pub(crate) fn at_end(state: &State) {
    if state.slot.is_published() {
        let _ = leave(state.slot.descriptor(), state);
    }
}

/// A descriptor is about to be sent to another process, or is that of a child of vfork, after which this one may close it.
pub(crate) fn before_sending(fd: c_int, open: &Open) -> Res<()> {
    open.slot.publish(fd)?;
    let _ = leave(fd, open);
    Ok(())
}

/// fork(2) is about to be made: by the program, not by what it does in a signal handler on top of a call of ours.
pub(crate) extern "C" fn before_fork() {
    if !is_inside() && mounts::active() {
        let _inside = inside();
        before_start();
    }
    crate::pool::begin_start();
}

fn all() -> impl Iterator<Item = (c_int, Open)> {
    table::ours_in(0, usize::MAX).into_iter().filter_map(|fd| Some((fd, table::get(fd)?)))
}

/// Leaves the file to who has the description, if that has not been done.
fn leave(fd: c_int, open: &State) -> Res<()> {
    let Some(handle) = open.handle_if_open().filter(|_| open.kind == FileType::Regular) else {
        return Ok(());
    };
    if ids::others() || open.is_left() { Ok(()) } else { open.leave(fd, handle) }
}

impl State {
    /// Whether the manager that there is now knows that the file is left to who has the description.
    fn is_left(&self) -> bool {
        let left = self.slot.left.load(Ordering::Relaxed);
        left != 0 && left == self.mount.opening()
    }

    /// Leaves the file, which has this handle here, to who has the description behind `fd`.
    fn leave(&self, fd: c_int, handle: Handle) -> Res<()> {
        // The program's own descriptor may lead to something else at any time.
        self.slot.publish(fd)?;
        let fd = self.slot.descriptor();
        self.watch(fd)?;
        self.slot.with_description(fd, |description| self.mount.run(|fs| fs.leave(handle, description)))?;
        self.slot.left.store(self.mount.opening(), Ordering::Relaxed);
        Ok(())
    }

    /// Another handle of a file that cannot be opened by its permissions, or not any more: as one to whom it was left. `EBADF`.
    pub(crate) fn open_left(&self, flags: OpenFlags) -> Res<Handle> {
        let Some(fd) = table::descriptor_of(self.slot) else { return fail(libc::EBADF) };
        if let Some(handle) = self.handle_if_open().filter(|_| !self.is_left()) {
            self.leave(fd, handle)?;
        }
        let inode = (self.ino, self.generation());
        let open =
            |description: &Description<'_>| self.mount.run(|fs| fs.open_left(inode, flags, description));
        let fd = if self.slot.is_published() { self.slot.descriptor() } else { fd };
        self.slot.with_description(fd, open).or(fail(libc::EBADF))
    }
}

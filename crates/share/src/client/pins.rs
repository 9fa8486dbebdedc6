//! Inodes that stay what they are without being open: the current directory, and what a descriptor of O_PATH is of.

use super::Remote;
use crate::wire::{Op, request};
use fs::{Ino, Result};

/// An inode that its number is not taken from, also when its last name is gone. It ends with [`Remote::unpin`] or with the session.
#[derive(Debug)]
pub struct Pin {
    number: u64,
    /// Serial of the session.
    session: u64,
}

impl Remote {
    /// Pins a file or directory, whatever its permissions are: nothing can be read or written by that.
    ///
    /// # Errors
    /// `Stale`: it is gone, even if another one has its number by now; `Invalid`: neither file nor directory; `TooManyOpen`.
    pub async fn pin(&self, (ino, generation): (Ino, u32)) -> Result<Pin> {
        let mut r = request(Op::Pin, ino.0);
        r.other = (generation as u64).into();
        let answer = self.call(r).await?;
        Ok(Pin { number: answer.value, session: answer.session() })
    }

    /// Whether it is of the session that there is now.
    pub fn has(&self, pin: &Pin) -> bool {
        pin.session == self.now().serial
    }

    /// Gives a pin back; one of an earlier session went with that.
    ///
    /// # Errors
    /// None of a pin that is there.
    pub async fn unpin(&self, pin: Pin) -> Result<()> {
        self.close_there(pin.session, request(Op::Unpin, pin.number)).await
    }
}

//! How a file is opened.

use crate::error::{Error, Result};
use crate::types::OpenFlags;

/// How a file is opened; see open(2). All are off at first, and the mode is 0666.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    pub(super) flags: OpenFlags,
    pub(super) create: bool,
    pub(super) nofollow: bool,
    pub(super) directory: bool,
    pub(super) tmpfile: bool,
    pub(super) mode: u16,
}

macro_rules! flag_setters {
    ($($(#[$doc:meta])* $name:ident => $flag:ident;)*) => {
        $($(#[$doc])*
        #[must_use]
        pub const fn $name(mut self, on: bool) -> Self {
            let bit = OpenFlags::$flag.bits();
            let bits = self.flags.bits() & !bit | if on { bit } else { 0 };
            self.flags = OpenFlags::from_bits_retain(bits);
            self
        })*
    };
}

macro_rules! field_setters {
    ($($(#[$doc:meta])* $name:ident: $ty:ty;)*) => {
        $($(#[$doc])*
        #[must_use]
        pub const fn $name(mut self, $name: $ty) -> Self {
            self.$name = $name;
            self
        })*
    };
}

impl OpenOptions {
    /// Nothing is asked for yet: say at least `read`, `write` or `append`.
    pub const fn new() -> OpenOptions {
        OpenOptions {
            flags: OpenFlags::empty(),
            create: false,
            nofollow: false,
            directory: false,
            tmpfile: false,
            mode: 0o666,
        }
    }

    flag_setters! {
        /// Allows reading.
        read => READ;
        /// Allows writing.
        write => WRITE;
        /// Sets the size to 0; needs `write` or `append`.
        truncate => TRUNCATE;
        /// Transfers bypass the page cache (O_DIRECT); offsets and lengths must be multiples of 512.
        direct => DIRECT;
        /// Each write is durable with all metadata when it returns (O_SYNC).
        sync => SYNC;
        /// Each write is durable, with the metadata needed to read it, when it returns (O_DSYNC).
        dsync => DSYNC;
        /// Reads leave the access time alone (O_NOATIME); for the owner and root.
        noatime => NOATIME;
    }

    field_setters! {
        /// Makes the file when it does not exist (O_CREAT), where a symlink to nothing points, too.
        create: bool;
        /// Fails with `SymlinkLoop` when the path ends at a symlink (O_NOFOLLOW).
        nofollow: bool;
        /// Fails with `NotDirectory` unless the path leads to a directory (O_DIRECTORY).
        directory: bool;
        /// Makes a file without a name in the directory that the path leads to (O_TMPFILE); needs `write`.
        tmpfile: bool;
        /// Permission bits of a file that is made, before the umask is applied.
        mode: u16;
    }

    /// Allows writing, and has every write go to the end of the file (O_APPEND). Off, it leaves alone whether writing is allowed.
    #[must_use]
    pub const fn append(mut self, on: bool) -> Self {
        let (append, old) = (OpenFlags::APPEND.bits(), self.flags.bits());
        let bits = if on { old | append | OpenFlags::WRITE.bits() } else { old & !append };
        self.flags = OpenFlags::from_bits_retain(bits);
        self
    }

    /// Makes the file, and fails with `Exists` when anything has its name, a symlink too (O_CREAT with O_EXCL). With `tmpfile`: the
    /// file may never get a name.
    #[must_use]
    pub const fn create_new(mut self, on: bool) -> Self {
        let bit = OpenFlags::EXCLUSIVE.bits();
        let bits = self.flags.bits() & !bit | if on { bit } else { 0 };
        self.flags = OpenFlags::from_bits_retain(bits);
        self.create = on;
        self
    }

    /// Refuses what contradicts itself.
    pub(super) fn check(&self) -> Result<()> {
        let flags = self.flags;
        if !flags.intersects(OpenFlags::READ | OpenFlags::WRITE) {
            return Err(Error::Invalid("open neither for reading nor for writing"));
        }
        if flags.contains(OpenFlags::TRUNCATE) && !flags.contains(OpenFlags::WRITE) {
            return Err(Error::Invalid("truncation needs write access"));
        }
        if self.directory && self.create && !self.tmpfile {
            return Err(Error::Invalid("open does not make directories"));
        }
        if self.tmpfile && !flags.contains(OpenFlags::WRITE) {
            return Err(Error::Invalid("a temporary file needs write access"));
        }
        Ok(())
    }
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions::new()
    }
}

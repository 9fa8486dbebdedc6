//! What is told of an open file to the programs that get its descriptor: the contents of the memory (a memfd) behind that. Read by clients alone; the manager believes
//! nothing of it.

use crate::layout::media_struct;
use zerocopy::little_endian::{U32, U64};

/// Bytes of a path that an [`OpenFile`] has room for.
pub const OPEN_PATH_MAX: usize = 464;

media_struct! {
    /// An open file description, as it was opened. Behind it the memory ends, and is sealed (F_SEAL_WRITE).
    pub struct OpenFile: 512 {
        /// "FHSHARED"
        magic: U64,
        /// which volume: a hash of the path at which it is mounted
        mount: U64,
        /// the inode
        ino: U64,
        /// of a working directory: a hash of where the kernel is meanwhile; else 0
        kernel_cwd: U64,
        /// the inode's generation
        generation: U32,
        /// as given to open(2), with what fcntl(F_SETFL) changed until it was told
        flags: U32,
        /// `FileType` as a number; 0x100 more: where the process stands
        kind: U32,
        /// bytes of the path, and one; 0 when it is not known
        path_len: U32,
        /// below the mount, beginning with a slash unless empty
        path: [u8; 464],
    }
}

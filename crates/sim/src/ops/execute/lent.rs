//! Memory that is lent to a file system: transfers of whole blocks go through it where the file system takes it, so that what is tested of data is tested of
//! direct transfers too.

use crate::gate::Buffer;
use fs::{ArenaId, BufRef, FileSystem, Handle, Result};
use media::Arena;
use std::sync::Arc;

const BLOCK: usize = 4096;
const BYTES: usize = 256 << 10;

/// Memory of one program, once it has been lent.
#[derive(Default)]
pub(super) struct Lent(Option<Option<(ArenaId, Arc<Buffer>)>>);

impl Lent {
    fn place<F: FileSystem>(&mut self, fs: &F, offset: u64, len: usize) -> Option<(BufRef, &Arena)> {
        if len == 0 || len > BYTES || !len.is_multiple_of(BLOCK) || !offset.is_multiple_of(BLOCK as u64) {
            return None;
        }
        let lent = self.0.get_or_insert_with(|| {
            let buffer = Arc::new(Buffer(Arena::new(BYTES).ok()?));
            Some((fs.lend_memory(buffer.clone()).ok()?, buffer))
        });
        let (arena, buffer) = lent.as_ref()?;
        Some((BufRef { arena: *arena, offset: 0, len: len as u32 }, &buffer.0))
    }

    /// Reads directly, if that can be done.
    pub async fn read<F: FileSystem>(
        &mut self,
        fs: &F,
        (handle, offset, len): (Handle, u64, usize),
    ) -> Result<Option<Vec<u8>>> {
        let Some((to, arena)) = self.place(fs, offset, len) else { return Ok(None) };
        let n = fs.read_direct(handle, offset, to).await?;
        Ok(n.map(|n| {
            let mut bytes = vec![0; n];
            arena.copy_out(0, &mut bytes);
            bytes
        }))
    }

    /// Writes directly, if that can be done. What is in the memory changes as soon as the call is over.
    pub async fn write<F: FileSystem>(
        &mut self,
        fs: &F,
        (handle, offset): (Handle, u64),
        bytes: &[u8],
    ) -> Result<Option<usize>> {
        let Some((from, arena)) = self.place(fs, offset, bytes.len()) else { return Ok(None) };
        arena.copy_in(0, bytes);
        let n = fs.write_direct(handle, offset, from).await;
        arena.zero(0, bytes.len());
        n
    }
}

//! What comes with a request, and what goes with its answer.

use super::arena::Aligned;
use super::execute::telling;
use super::session::Client;
use crate::region::{Region, SlotNo};
use crate::wire::{self, GARBLED, Op};
use format::shared::{CALL_DATA_MAX, DATA_MAX, PAYLOAD_MAX, Request, SLOTS};
use fs::{Access, Attr, Error, FileSystem, Handle, Ino, Pages, Result, Source, Watched};
use smallvec::SmallVec;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// The payload of an answer while it is written, straight into shared memory.
pub(super) struct Out<'a> {
    pub client: &'a Arc<Client>,
    pub slot: SlotNo,
    pub len: usize,
    /// Bytes that it may have.
    pub room: usize,
    /// See `format::shared::Reply`.
    pub pages: u64,
    pub noted: u64,
    pub handle: u64,
    pub unheld: u64,
    pub lent: u64,
    pub lent_room: u64,
}

impl<'a> Out<'a> {
    pub fn new(client: &'a Arc<Client>, slot: SlotNo, request: &Request) -> Out<'a> {
        let behind = match request.op.get() == Op::Read as u16 {
            true => request.extra.get().min(SLOTS as u64) as usize,
            false => 0,
        };
        let room = ((1 + behind) * PAYLOAD_MAX).min(Region::payload_room(slot));
        let (pages, noted, handle, unheld, lent, lent_room) = (0, 0, 0, 0, 0, 0);
        Out { client, slot, len: 0, room, pages, noted, handle, unheld, lent, lent_room }
    }

    /// Bytes of data that there is room for, beside names or attributes.
    pub fn data_max(&self) -> usize {
        (self.room - (PAYLOAD_MAX - DATA_MAX)).min(CALL_DATA_MAX)
    }

    /// Attributes of what `name` was just made to lead to, such that the client can keep them: as of a moment that it is told. `before`:
    /// the clock from before it was made.
    pub async fn made<F: FileSystem>(
        &mut self,
        fs: &Watched<F>,
        parent: Ino,
        name: &[u8],
        attr: &Attr,
        before: u64,
    ) -> Result<()> {
        let noted = self.client.arenas.clock();
        // Of a file that was there the name has not changed; then the one change may be that of somebody who has written to it.
        let is_only_change = noted == before + 1 && self.client.arenas.holds_still(attr.ino, before);
        let now = match is_only_change {
            true => Ok(*attr),
            false => fs.lookup(&self.client.cred, parent, name).await,
        };
        telling::name(fs, self.client, (parent, name), &now, noted);
        match now {
            Ok(now) if now.ino == attr.ino => {
                self.noted = noted;
                self.attr(&now)
            }
            _ => self.attr(attr),
        }
    }

    /// Tells which of the inodes with this number was opened.
    pub async fn generation<F: FileSystem>(&mut self, fs: &F, ino: Ino, handle: Handle) {
        self.noted = fs.getattr(ino, Some(handle)).await.map_or(0, |attr| attr.generation as u64);
    }

    pub fn push(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.len() > self.room - self.len {
            return Err(Error::BufferTooSmall);
        }
        self.client.region.put_payload(self.slot, self.len, bytes);
        self.len += bytes.len();
        Ok(())
    }

    /// Appends `len` bytes behind the first `skip`, as far as there are any.
    pub fn pages(&mut self, pages: &Pages, mut skip: usize, mut len: usize) -> Result<()> {
        for piece in pages.slices() {
            let from = skip.min(piece.len());
            let piece = &piece[from..];
            skip -= from;
            let n = piece.len().min(len);
            len -= n;
            self.push(&piece[..n])?;
        }
        Ok(())
    }

    /// Puts pages that were read into the client's arena, unless they are there; says how many of them can be found there.
    pub fn through_arena(
        &mut self,
        (ino, attr): (Ino, &Attr),
        plan: &mut Aligned,
        pages: &Pages,
        (offset, len): (u64, usize),
        again: bool,
    ) {
        let client = self.client;
        let is_long = !again && wire::is_long_read(len, attr.size);
        // A file without names may get its number used again unseen; and who has opened a file may read it when others no longer may.
        if is_long || attr.nlink == 0 || fs::perm::check(&client.cred, attr, Access::READ).is_err() {
            return;
        }
        plan.ends_at(attr.size);
        // Who asks for it all again gets it all.
        plan.goes_on &= !again;
        let there =
            client.arenas.find(client, ino, attr.generation, plan, pages.len()).unwrap_or_else(|| {
                let pieces: SmallVec<[&[u8]; 4]> = pages.slices().collect();
                client.arenas.fill(client, ino, attr.generation, plan, &pieces)
            });
        self.pages = there as u64;
        self.noted = attr.size.saturating_sub(offset).min(len as u64);
    }

    /// Attributes that a change of an inode left behind, such that the client can keep them; or those that the change itself told.
    pub async fn left<F: FileSystem>(
        &mut self,
        fs: &Watched<F>,
        (ino, handle): (Ino, Option<Handle>),
        told: Option<&Attr>,
    ) -> Result<()> {
        let noted = self.client.arenas.clock();
        // What the client itself writes there under a lease it need not hear of: it goes by the size alone, which such writes leave as it is. It is told of the change when
        // the lease ends.
        let own = handle.is_some() && self.client.leases.lends_to(self.client.session, ino);
        let now = if own { fs.inner().getattr(ino, handle).await } else { fs.getattr(ino, handle).await };
        match (now, told) {
            (Ok(now), _) => {
                self.noted = noted;
                if !own {
                    telling::inode(fs, self.client, &now, noted);
                }
                self.attr(&now)
            }
            (Err(_), Some(attr)) => self.attr(attr),
            (Err(_), None) => Ok(()),
        }
    }

    /// As [`Out::left`], of a file that is about to be closed, without waiting for what others have of it.
    pub async fn left_now<F: FileSystem>(&mut self, fs: &Watched<F>, handle: Handle) -> Result<()> {
        let (ino, noted) = (self.client.inode(handle)?, self.client.arenas.clock());
        match fs.inner().getattr(ino, Some(handle)).await {
            // Whoever gets a lease from now on has that told afterwards.
            Ok(attr) if !fs.lends_on(ino) => {
                self.noted = noted;
                telling::inode(fs, self.client, &attr, noted);
                self.attr(&attr)
            }
            _ => Ok(()),
        }
    }

    pub fn attr(&mut self, attr: &Attr) -> Result<()> {
        self.push(wire::attr_image(attr).as_bytes())
    }
}

/// The payload of a request. The client may change its memory at any time: what is looked at is copied, which the data of writes is not.
pub(super) struct Payload<'a> {
    /// Both parts, of a write the first alone.
    copied: SmallVec<[u8; 128]>,
    first: usize,
    data: Shown<'a>,
}

/// Data in shared memory, which the engine copies to where it belongs.
pub(super) struct Shown<'a> {
    client: &'a Client,
    slot: SlotNo,
    at: usize,
    len: usize,
}

impl Source for Shown<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn copy(&self, at: usize, to: &mut [u8]) {
        assert!(at + to.len() <= self.len, "there are not so many bytes");
        self.client.region.get_payload(self.slot, self.at + at, to);
    }

    fn bytes(&self) -> Option<&[u8]> {
        None
    }
}

impl<'a> Payload<'a> {
    pub fn take(client: &'a Client, slot: SlotNo, request: &Request) -> Result<Payload<'a>> {
        let (first, second) = (request.first.get() as usize, request.second.get() as usize);
        let is = |op: Op| request.op.get() == op as u16;
        let (data_max, room) = match is(Op::Write) {
            true => (CALL_DATA_MAX, Region::payload_room(slot)),
            false => (DATA_MAX, PAYLOAD_MAX),
        };
        if second > data_max || first + second > room {
            return Err(GARBLED);
        }
        let (copy, len) = match is(Op::Write) || is(Op::PostWrite) {
            true => (first, second),
            false => (first + second, 0),
        };
        let mut copied = SmallVec::from_elem(0, copy);
        client.region.get_payload(slot, 0, &mut copied);
        Ok(Payload { copied, first, data: Shown { client, slot, at: first, len } })
    }
    pub fn first(&self) -> &[u8] {
        &self.copied[..self.first]
    }
    /// Of a request that is no write.
    pub fn second(&self) -> &[u8] {
        &self.copied[self.first..]
    }
    /// Writes the data of a write, directly if the client has opened the file so and that can be done.
    pub async fn write<F: FileSystem>(
        &self,
        fs: &F,
        request: &Request,
        handle: Handle,
        offset: u64,
    ) -> Result<usize> {
        let Shown { client, slot, at, len } = self.data;
        if request.flags.get() & wire::DIRECT != 0
            && at == 0
            && let Some(place) = client.place(fs, slot, (offset, len))
            && let Some(n) = fs.write_direct(handle, offset, place.memory).await?
        {
            return Ok(n);
        }
        fs.write_from(handle, offset, &self.data).await
    }
    /// Of a write.
    pub fn data(&self) -> &Shown<'a> {
        &self.data
    }
}

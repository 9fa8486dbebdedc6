//! Data of files that were made here under a lease, or lent since, written and closed without waiting.
//!
//! What is posted so takes room that was set aside before, so that it cannot fail: the lease has some, which is counted down here as the manager will count
//! it when it comes to each write. More of it is asked for by one thread at a time, with the count at 0 meanwhile: the answer is what the lease has when all that was
//! posted before is done.

use super::answers::asked;
use super::*;
use format::limits::FILE_SIZE_MAX;
use format::shared::DATA_MAX;

/// Whether what is written to a new file that is opened so can be posted: it goes to where the call says, some time.
pub(in crate::client) fn may_post(flags: OpenFlags) -> bool {
    use OpenFlags as Flags;
    flags.contains(Flags::WRITE)
        && !flags.intersects(Flags::APPEND | Flags::DIRECT | Flags::SYNC | Flags::DSYNC)
}

/// Room that is being asked for, for the lease with this number.
struct AskingRoom<'a> {
    directories: &'a Directories,
    lent: u64,
    room: u64,
}

impl Drop for AskingRoom<'_> {
    fn drop(&mut self) {
        let mut table = self.directories.table.lock();
        let Some(lease) = table.lease_mut(self.lent) else { return };
        (lease.asking, lease.room) = (false, self.room);
        if self.room < fs::room_for(1, DATA_MAX) + 1 {
            lease.pause = PAUSE;
        }
    }
}

impl Directories {
    /// Posts a write to a file that was made under a lease.
    fn write(
        &self,
        session: &Session,
        file: &OpenFile,
        (handle, offset, data): (Handle, u64, &[u8]),
        slot: Option<SlotNo>,
    ) -> Posting<()> {
        let need = fs::room_for(offset, data.len());
        let place = |table: &mut Table| {
            let place = table.place_of(file.lent).ok_or(Posting::Message)?;
            let lease = table.leases[place].as_mut().ok_or(Posting::Message)?;
            if lease.room >= need {
                return Ok(place);
            }
            if lease.asking || lease.pause > 0 {
                lease.pause = lease.pause.saturating_sub(1);
                return Err(Posting::Message);
            }
            Err(Posting::Room)
        };
        if let Err(other) = place(&mut self.table.lock()) {
            slot.inspect(|slot| session.give_slot(*slot));
            return other;
        }
        let Some(slot) = slot.or_else(|| session.slot_to_post()) else { return Posting::Full };
        let mut request = request(Op::PostWrite, file.remote.0);
        (request.offset, request.second) = (offset.into(), (data.len() as u32).into());
        // While others may post.
        session.region.put_payload(slot, 0, data);
        let mut table = self.table.lock();
        // A window may have been granted meanwhile ([`Directories::unless_posted`]): what is written there must not come before this.
        let place = match place(&mut table) {
            Ok(place) if !session.leases.touches(session, handle, offset, data.len()) => place,
            other => {
                session.give_slot(slot);
                return other.err().unwrap_or(Posting::Message);
            }
        };
        let spend = |table: &mut Table| {
            table.leases[place].iter_mut().for_each(|lease| lease.room -= need);
        };
        match self.send(session, table, slot, Post { place, request, name: b"" }, spend) {
            true => Posting::Done(()),
            false => Posting::Ask(slot, ()),
        }
    }

    /// The number of what was posted last.
    pub fn last_posted(&self) -> u64 {
        self.table.lock().last_posted()
    }

    /// Has a window used of a file, unless writes to it are posted and something was posted since `last`: the manager would write what was posted over what is written in the
    /// window from now on.
    pub fn unless_posted(&self, last: u64, may_be_posted: impl FnOnce() -> bool, uses: impl FnOnce()) {
        let table = self.table.lock();
        if table.last_posted() == last || !may_be_posted() {
            uses();
        }
    }

    /// Posts that a file which was made under a lease is closed.
    fn close(&self, session: &Session, file: &OpenFile, request: &Request) -> Posting<()> {
        let table = self.table.lock();
        let Some(place) = table.place_of(file.lent) else { return Posting::Message };
        // Of a file that was made by a message something is told when it is closed.
        let nth = (place != NEW_FILES)
            .then(|| session.region.put_close(file.remote.0, table.last_posted()))
            .flatten();
        if let Some(nth) = nth {
            return self.closes(session, table, place, nth);
        }
        let Some(slot) = session.slot_to_post() else { return Posting::Full };
        let mut request = *request;
        if place == NEW_FILES {
            request.flags = wire::LEFT.into();
        }
        match self.send(session, table, slot, Post { place, request, name: b"" }, |_| {}) {
            true => Posting::Done(()),
            false => Posting::Ask(slot, ()),
        }
    }

    /// A file is to be closed, as the `nth`.
    fn closes(
        &self,
        session: &Session,
        mut table: MutexGuard<'_, Table>,
        place: usize,
        nth: u64,
    ) -> Posting<()> {
        let number = table.leases[place].as_ref().map_or(0, |lease| lease.number);
        // As in `send`.
        if session.has_lease(place, number) {
            drop(table);
            session.ring();
            return Posting::Done(());
        }
        table.end(place);
        self.counted(&table);
        drop(table);
        session.wait_closed(nth);
        Posting::Done(())
    }

    /// Room is to be asked for; `None`: somebody does, or the lease is over.
    fn asks_room(&self, lent: u64) -> Option<AskingRoom<'_>> {
        let mut table = self.table.lock();
        let lease = table.lease_mut(lent).filter(|lease| !lease.asking)?;
        (lease.asking, lease.room) = (true, 0);
        Some(AskingRoom { directories: self, lent, room: 0 })
    }
}

impl Session {
    /// Closes a file that was made here without waiting, if that can be done: closed before anybody else can come to it. The file is of this session.
    pub(in crate::client) fn close_posted(&self, file: &OpenFile, request: &Request) -> bool {
        if file.session != self.serial {
            return false;
        }
        loop {
            match self.directories.close(self, file, request) {
                Posting::Full if self.wait_for_room() => {}
                Posting::Done(()) => return true,
                Posting::Ask(slot, ()) => {
                    // Whatever the answer is, there is nothing more to close.
                    let _ = self.answer_in(slot);
                    return true;
                }
                _ => return false,
            }
        }
    }
}

impl Remote {
    /// Writes the first bytes of `from` without waiting for the manager, as far as that can be done: how many.
    pub(in crate::client) async fn write_posted(
        &self,
        handle: Handle,
        offset: u64,
        from: &[u8],
    ) -> Result<usize> {
        let session: &Arc<Session> = self.now();
        let Some(file) = self.file(handle).filter(|file| file.lent != 0) else { return Ok(0) };
        if session.leases.touches(session, handle, offset, from.len()) {
            return Ok(0);
        }
        let fits = offset.checked_add(from.len() as u64).is_some_and(|end| end <= FILE_SIZE_MAX);
        if !fits || !may_post(file.flags) || file.session != session.serial {
            return Ok(0);
        }
        self.link.keeps_order()?;
        let (mut done, mut slot) = (0, None);
        while done < from.len() {
            let part = &from[done..][..(from.len() - done).min(DATA_MAX)];
            let before = self.before_posting(&self.file(handle).unwrap_or(file));
            match session.directories.write(session, &file, (handle, offset + done as u64, part), slot.take())
            {
                Posting::Done(()) => {}
                Posting::Full if session.waits_for_slot(&mut slot).await => continue,
                Posting::Room if self.asks_room(session, file.lent).await => continue,
                Posting::Ask(slot, ()) => match asked(session.answer_in(slot), true) {
                    Some(Ok(())) => {}
                    Some(Err(e)) if done == 0 => return Err(e),
                    _ => break,
                },
                _ => break,
            }
            session.kept.posted_data(file.ino);
            self.link.written(handle, session.serial);
            done += part.len();
            self.has_posted(handle, file.ino, before, offset + done as u64);
        }
        Ok(done)
    }

    /// Whether the lease has got room.
    async fn asks_room(&self, session: &Arc<Session>, lent: u64) -> bool {
        let Some(mut asking) = session.directories.asks_room(lent) else { return false };
        let mut r = request(Op::Room, 0);
        r.extra = lent.into();
        if let Ok(answer) = session.call(r, b"", b"").await {
            asking.room = answer.value;
        }
        asking.room > 0
    }
}

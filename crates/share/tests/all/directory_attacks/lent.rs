//! What an attacker does with directory leases, and the numbers of the calls for that.

use crate::attacker::*;
use format::shared::*;

/// By a message, without a lease.
pub(super) const MAKE: u16 = 16;
pub(super) const LEND: u16 = 41;
pub(super) const PROMISE: u16 = 42;
pub(super) const CREATE: u16 = 43;
pub(super) const UNLINK: u16 = 44;
pub(super) const WRITE: u16 = 45;
pub(super) const ROOM: u16 = 46;
pub(super) const MKDIR: u16 = 49;
pub(super) const RMDIR: u16 = 50;

/// What a lease brings.
pub(super) struct Lent {
    pub(super) dir: u64,
    pub(super) number: u64,
    pub(super) inodes: Vec<u64>,
}

/// What an attacker does with directory leases.
impl Attacker {
    pub(super) fn payload(&self, len: usize) -> Vec<u8> {
        // SAFETY: within the mapping; nobody writes there now.
        unsafe { std::slice::from_raw_parts(self.base.add(PAYLOAD_AT), len).to_vec() }
    }
    pub(super) fn inodes(bytes: &[u8]) -> Vec<u64> {
        bytes.chunks(24).map(|p| u64::from_le_bytes(p[..8].try_into().unwrap())).collect()
    }
    pub(super) fn lend(&self, dir: u64, place: u32) -> Option<Lent> {
        let reply = self.call(&Request { mode: place.into(), len: 16.into(), ..request(LEND, dir) });
        assert_eq!(reply.errno.get(), 0);
        let bytes = self.payload(reply.len.get() as usize);
        (reply.value.get() != 0).then(|| {
            let at = size_of::<AttrImage>();
            let count = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
            let inodes = Attacker::inodes(&bytes[at + 8..][..24 * count]);
            Lent { dir, number: reply.value.get(), inodes }
        })
    }
    /// Has something stand in a slot as a posted request, without its bit.
    pub(super) fn stand_as(&self, slot: usize, r: &Request, name: &[u8], number: u64) {
        self.bytes(PAYLOAD_AT + slot * PAYLOAD_MAX, name);
        self.stand(slot, &Request { first: (name.len() as u16).into(), more: number.into(), ..*r });
    }
    pub(super) fn create_under(&self, lent: &Lent, ino: u64) -> Request {
        Request {
            mode: 0o644.into(),
            flags: 3.into(),
            other: ino.into(),
            extra: lent.number.into(),
            ..request(CREATE, lent.dir)
        }
    }
    /// A write of so many bytes.
    pub(super) fn write(&self, lent: &Lent, handle: u64, offset: u64, len: usize) -> Request {
        let r = Request { offset: offset.into(), extra: lent.number.into(), ..request(WRITE, handle) };
        Request { second: (len as u32).into(), ..r }
    }
    /// Has a file made under a lease, and says its handle.
    pub(super) fn made(&self, lent: &Lent, ino: u64, name: &[u8]) -> u64 {
        assert_eq!(self.posted_as(&self.create_under(lent, ino), name), 0);
        self.reply(3).value.get()
    }
    pub(super) fn room(&self, number: u64) -> u64 {
        let reply = self.call(&Request { extra: number.into(), ..request(ROOM, 0) });
        assert_eq!(reply.errno.get(), 0);
        reply.value.get()
    }
    /// Posts one, and waits for what became of it.
    pub(super) fn posted_as(&self, r: &Request, name: &[u8]) -> i32 {
        self.stand_as(3, r, name, 1);
        self.send(1 << 3);
        self.reply(3).errno.get()
    }
}

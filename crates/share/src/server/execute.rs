//! Running one call: the request is taken apart and checked, the file system is asked, the answer is written.

mod foresight;
mod locking;
mod posted;
mod reading;
pub(super) mod telling;

pub(crate) use posted::close;

use super::descriptions::Memory;
use super::payload::{Out, Payload};
use super::session::Client;
use crate::region::SlotNo;
use crate::wire::{self, GARBLED, Op};
use format::shared::{DATA_MAX, Reply, Request};
use fs::ordered::Synced;
use fs::{
    Access, Attr, Cred, DirEntry, Error, Fallocate, FileSystem, Handle, Ino, OpenFlags, RenameFlags, Result,
    Seek, Source, Time, Watched, XattrFlags,
};
use std::sync::Arc;
use std::time::Instant;

/// Runs the call in a slot and answers it. It is begun at `begun`; says when it was over.
pub(crate) async fn execute<F: FileSystem>(
    fs: &Watched<F>,
    client: &Arc<Client>,
    slot: SlotNo,
    one_way: bool,
    begun: Instant,
) -> Instant {
    let _under_way = client.tally.begin();
    let request: Request = client.region.get(slot);
    let locks = matches!(Op::from_u16(request.op.get()), Some(Op::Setlk | Op::Flock));
    client.may_wait_for_lock(slot, locks && request.flags.get() & 1 != 0);
    let mut out = Out::new(client, slot, &request);
    let reply = match open_and_run(fs, request, &mut out, one_way).await {
        Ok(value) => Reply {
            value: value.into(),
            len: (out.len as u32).into(),
            pages: out.pages.into(),
            noted: out.noted.into(),
            handle: out.handle.into(),
            unheld: out.unheld.into(),
            lent: out.lent.into(),
            lent_room: out.lent_room.into(),
            errno: 0.into(),
        },
        Err(e) => {
            let (reply, text) = wire::failure(&e);
            client.region.put_payload(slot, 0, &text);
            reply
        }
    };
    client.region.put(slot, &reply);
    client.wakes.answered(&client.region, slot);
    client.tally.count(&request, &reply, begun)
}

fn flags<B: bitflags::Flags<Bits = u32>>(request: &Request) -> Result<B> {
    B::from_bits(request.flags.get()).ok_or(Error::Invalid("unknown flags"))
}

fn perm(request: &Request) -> u16 {
    (request.mode.get() & 0o7777) as u16
}

/// Attributes of which only inode number and kind are told; with no names, so that clients do not keep them.
fn nothing_but_kind(attr: &Attr) -> Attr {
    let never = Time { sec: 0, nsec: 0 };
    Attr {
        ino: attr.ino,
        kind: attr.kind,
        generation: 0,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: never,
        mtime: never,
        ctime: never,
        btime: never,
        xattrs: true,
    }
}

/// How a file is opened for a client.
struct Opens {
    flags: OpenFlags,
    generation: Option<u32>,
    /// It is one of the client's holds.
    held: bool,
    /// It was left to who has this description.
    left: Option<(Arc<Memory>, u64)>,
    /// It was open in a session with an earlier manager.
    had: bool,
}

/// Opens a file for a client.
async fn open<F: FileSystem>(fs: &F, client: &Arc<Client>, ino: Ino, opens: &Opens) -> Result<Handle> {
    client.may_open()?;
    // It was opened for the client when that was allowed for the last time.
    let is_left = |(memory, at): &(Arc<Memory>, u64)| {
        client.descriptions.is_left(client, (memory, *at), ino, opens.flags)
    };
    let had = |generation| opens.had && client.rights.allow(&client.cred, (ino, generation), opens.flags);
    let again = opens.held && client.may_open_again(ino, opens.flags)
        || opens.left.as_ref().is_some_and(is_left)
        || opens.generation.is_some_and(had);
    let checked = again.then(|| Cred { checked: true, ..client.cred.clone() });
    let cred = checked.as_ref().unwrap_or(&client.cred);
    let handle = match opens.generation {
        Some(generation) => fs.open_exact(cred, (ino, generation), opens.flags).await?,
        None => fs.open(cred, ino, opens.flags).await?,
    };
    client.holders.admit(client);
    client.opened(handle, ino);
    Ok(handle)
}

/// Creates a file for a client; under the lease on its new files, if it is new and the client wants to post its data.
async fn create<F: FileSystem>(
    fs: &Watched<F>,
    out: &mut Out<'_>,
    name: (Ino, &[u8]),
    (perm, flags): (u16, OpenFlags),
    posts: bool,
) -> Result<(Attr, Handle)> {
    let client = out.client;
    let posts = posts && flags.contains(OpenFlags::WRITE);
    if let Some(mut new) = posts.then(|| client.directories.new_file(client)).flatten() {
        match fs.create_known(&client.cred, name, (perm, flags), &mut new.promise).await {
            Ok(attr) => {
                (out.lent, out.lent_room) = new.lease;
                return Ok((attr, new.handle));
            }
            Err(Error::Exists) if !flags.contains(OpenFlags::EXCLUSIVE) => {}
            Err(e) => return Err(e),
        }
    }
    fs.create(&client.cred, name.0, name.1, perm, flags).await
}

/// Runs a call, which may have the file opened first.
async fn open_and_run<F: FileSystem>(
    fs: &Watched<F>,
    mut r: Request,
    out: &mut Out<'_>,
    one_way: bool,
) -> Result<u64> {
    let (mut opened, file) = (None, r.object.get());
    let may_open = Op::from_u16(r.op.get()).is_some_and(Op::may_open);
    if may_open && r.flags.get() & wire::OPENS != 0 {
        if one_way {
            return Err(GARBLED);
        }
        let flags = OpenFlags::from_bits(r.mode.get()).ok_or(Error::Invalid("unknown flags"))?;
        let opens =
            Opens { flags, generation: Some(r.other.get() as u32), held: true, left: None, had: false };
        let handle = open(fs, out.client, Ino(file), &opens).await?;
        (r.object, r.flags) = (handle.0.into(), (r.flags.get() & !(wire::OPENS | wire::OF_INODE)).into());
        opened = Some(handle);
    }
    let done = run(fs, &r, out, one_way).await;
    match (opened, &done) {
        (None, _) => {}
        (Some(handle), Ok(_)) => {
            let clock = out.client.arenas.clock();
            let is_unheld = !out.client.has_opened(Ino(file));
            (out.handle, out.unheld) = (handle.0, if is_unheld { clock } else { 0 });
        }
        (Some(handle), Err(_)) => {
            if let Some(handle) = out.client.closes(handle.0)? {
                out.client.close(fs, handle).await?;
            }
        }
    }
    done
}

async fn run<F: FileSystem>(fs: &Watched<F>, r: &Request, out: &mut Out<'_>, one_way: bool) -> Result<u64> {
    let op = Op::from_u16(r.op.get()).ok_or(Error::NotSupported("unknown call"))?;
    // Others wait for what was posted one way: it must wait for nobody's.
    if one_way != posted::is(op) && !(one_way && matches!(op, Op::Release | Op::Unhold | Op::WasRead)) {
        return Err(GARBLED);
    }
    let client = out.client;
    let cred = &client.cred;
    let (ino, object) = (Ino(r.object.get()), r.object.get());
    let (offset, len) = (r.offset.get(), r.len.get());
    let p = Payload::take(client, out.slot, r)?;
    let before = client.arenas.clock();
    let opened = |handle: Handle, ino: Ino| {
        client.opened(handle, ino);
        handle.0
    };
    if op.is_ordered() && client.leases.has(client.session) {
        client.leases.order(client.session).await?;
    }
    match op {
        Op::Ping => {}
        Op::Lookup => out.attr(&telling::lookup(fs, client, ino, p.first()).await?)?,
        Op::Walk => {
            let names = p.first().split(|&b| b == b'/').filter(|n| !n.is_empty());
            match names.clone().count() {
                1..=wire::WALK_NAMES => {
                    let (mut dir, mut at) = (ino, ino);
                    for name in names {
                        let attr = telling::lookup(fs, client, at, name).await?;
                        out.attr(&attr)?;
                        (dir, at) = (at, attr.ino);
                    }
                    let more = p.second().split(|&b| b == b'/').filter(|n| !n.is_empty());
                    for name in more.take(wire::WALK_AHEAD) {
                        // Whoever wants it asks for it.
                        let Ok(attr) = telling::lookup(fs, client, dir, name).await else { break };
                        out.attr(&attr)?;
                    }
                }
                _ => out.attr(&fs.walk(cred, ino, p.first()).await?)?,
            }
        }
        Op::Getattr => {
            let handle = match r.flags.get() {
                0 => None,
                1 => Some(client.handle(r.other.get())?),
                _ => return Err(GARBLED),
            };
            let attr = fs.getattr(ino, handle).await?;
            telling::inode(fs, client, &attr, before);
            out.attr(&attr)?
        }
        Op::Setattr => {
            let mut set = wire::read_set_attr(p.second())?;
            set.handle = match r.flags.get() {
                0 => None,
                1 => Some(client.handle(r.other.get())?),
                _ => return Err(GARBLED),
            };
            let handle = set.handle;
            let attr = fs.setattr(cred, ino, set).await?;
            out.left(fs, (attr.ino, handle), Some(&attr)).await?;
        }
        Op::Access => fs.access(cred, ino, flags::<Access>(r)?).await?,
        Op::Readlink => {
            out.push(&fs.readlink(cred, ino).await?)?;
            telling::was_read(fs, client, ino).await;
        }
        Op::Mknod => {
            let attr = fs.mknod(cred, ino, p.first(), r.mode.get(), r.extra.get()).await?;
            out.made(fs, ino, p.first(), &attr, before).await?;
        }
        Op::Mkdir => {
            let attr = fs.mkdir(cred, ino, p.first(), perm(r)).await?;
            out.made(fs, ino, p.first(), &attr, before).await?;
        }
        Op::Symlink => {
            let attr = fs.symlink(cred, ino, p.first(), p.second()).await?;
            out.made(fs, ino, p.first(), &attr, before).await?;
        }
        Op::Link => {
            if protects_hard_links()
                && let Err(refused) = fs::perm::check_link(cred, &fs.getattr(ino, None).await?)
            {
                // As the kernel has it: what is wrong with the new name comes first.
                return Err(match fs.lookup(cred, Ino(r.other.get()), p.first()).await {
                    Ok(_) => Error::Exists,
                    Err(Error::NotFound) => refused,
                    Err(e) => e,
                });
            }
            out.attr(&fs.link(cred, ino, Ino(r.other.get()), p.first()).await?)?
        }
        Op::Unlink => fs.unlink(cred, ino, p.first()).await?,
        Op::Rmdir => {
            let gone = fs.rmdir_told(cred, ino, p.first()).await?;
            gone.inspect(|&gone| client.directories.removed_dir(client.session, gone));
            return Ok(gone.map_or(0, |gone| gone.0));
        }
        Op::Rename => {
            let to = Ino(r.other.get());
            fs.rename(cred, ino, p.first(), to, p.second(), flags::<RenameFlags>(r)?).await?;
        }
        Op::Open => {
            let generation = (r.mode.get() == 1).then_some(r.other.get() as u32);
            let left = match r.extra.get() {
                2 => Some((client.shown(r.more.get(), len)?, offset)),
                _ => None,
            };
            let had = left.is_some() || r.extra.get() == wire::HAD_OPEN;
            let opens = Opens { flags: flags(r)?, generation, held: r.extra.get() == 1, left, had };
            let handle = open(fs, client, ino, &opens).await?;
            match generation {
                Some(generation) => out.noted = generation as u64,
                None => out.generation(fs, ino, handle).await,
            }
            return Ok(handle.0);
        }
        Op::Unhold => {
            for handle in client.held_no_longer(ino) {
                fs.release(handle).await?;
            }
        }
        Op::Create | Op::Tmpfile => {
            client.may_open()?;
            let how = (perm(r), flags::<OpenFlags>(r)?);
            let (attr, handle) = match op {
                Op::Create => create(fs, out, (ino, p.first()), how, r.extra.get() == 1).await?,
                _ => fs.tmpfile(cred, ino, how.0, how.1).await?,
            };
            let handle = opened(handle, attr.ino);
            client.holders.admit(client);
            match op {
                Op::Create => out.made(fs, ino, p.first(), &attr, before).await?,
                _ => out.attr(&attr)?,
            }
            return Ok(handle);
        }
        Op::Read if r.flags.get() & wire::OF_INODE != 0 => {
            return reading::read_once(fs, r, out, (ino, r.other.get() as u32)).await;
        }
        Op::WasRead => return reading::was_read(fs, client, (ino, r.other.get() as u32)).await,
        Op::Read => {
            let handle = client.handle(object)?;
            return reading::read(fs, r, out, handle, client.inode(handle)?).await;
        }
        Op::Lease => {
            let (handle, slot) = (client.handle(object)?, r.mode.get() as usize);
            return client.leases.grant(client, handle, offset, slot).await;
        }
        Op::LendLocks => return client.lend_locks(fs, client.handle(object)?, r.mode.get() as usize),
        Op::Pass => out.push(&fs.pass(client.handle(object)?)?)?,
        Op::LendDirectory => {
            let directories = &client.directories;
            let Some(granted) = directories.grant(client, ino, r.mode.get() as usize).await? else {
                return Ok(0);
            };
            let promised = client.promised(len)?;
            out.push(&wire::lent(&granted.attr, &promised, &granted.names))?;
            return Ok(granted.number);
        }
        Op::Promise => out.push(&wire::promises(&client.promised(len)?))?,
        Op::PostCreate | Op::PostMkdir => return posted::make(fs, client, op, r, p.first()).await,
        Op::PostUnlink | Op::PostRmdir => return posted::remove(fs, client, op, r, p.first()).await,
        Op::PostWrite => return posted::write(fs, client, r, p.data()).await,
        Op::Room => return Ok(client.directories.room(client.session, r.extra.get())),
        Op::Write => {
            let handle = client.handle(object)?;
            let n = p.write(fs, r, handle, offset).await?;
            if r.flags.get() & wire::APPENDS != 0 {
                out.pages = fs.inner().appended(handle).unwrap_or(0);
            }
            let file = client.inode(handle)?;
            if r.extra.get() == 1
                && let Some(lease) = client.directories.lend(client, file, handle).await
            {
                (out.lent, out.lent_room) = lease;
            }
            out.left(fs, (file, Some(handle)), None).await?;
            return Ok(n as u64);
        }
        Op::WriteAtomic => {
            let pieces = wire::read_pieces(p.first(), p.second())?;
            let handle = client.handle(object)?;
            fs.write_atomic(handle, &pieces).await?;
            out.left(fs, (client.inode(handle)?, Some(handle)), None).await?;
        }
        Op::Flush => {
            let (handle, owner) = (client.handle(object)?, client.owner(r.extra.get()));
            fs.flush(handle, owner).await?;
            client.unlocked(handle, owner);
        }
        Op::Release => {
            if r.flags.get() & wire::LEFT != 0 {
                out.left_now(fs, client.handle(object)?).await?;
            }
            let file = client.inode(Handle(object));
            if let Some(handle) = client.closes(object)? {
                let looked = client.close_or_keep(fs, handle).await?;
                // Others wait for what was posted one way, but nobody for this: who has a lock closes with a message.
                if let Some(looked) = looked.filter(|_| !one_way) {
                    looked.over().await;
                }
            }
            foresight::closed(fs, client, file?).await;
        }
        Op::Fsync => {
            let (handle, datasync) = (client.handle(object)?, r.flags.get() & 1 != 0);
            let order = &client.order;
            if order.of.is_off() {
                fs.fsync(handle, datasync).await?;
            } else {
                let file = (handle, client.inode(handle)?);
                if order.of.sync(fs, file, datasync, order.program).await? == Synced::Ordered {
                    return Ok(wire::ORDERED);
                }
            }
        }
        Op::Barrier => fs.barrier(client.handle(object)?, r.flags.get() & 1 != 0).await?,
        Op::Sync => fs.sync().await?,
        Op::Opendir => {
            client.may_open()?;
            let handle = fs.opendir(cred, ino).await?;
            let number = opened(handle, ino);
            out.generation(fs, ino, handle).await;
            return Ok(number);
        }
        Op::Readdir => {
            let mut entries = Vec::new();
            let handle = client.handle(object)?;
            // Who may read a directory but not search it learns names, and nothing about what they lead to.
            let ino = client.inode(handle)?;
            let dir = fs.getattr(ino, None).await;
            let searches = dir.is_ok_and(|dir| fs::perm::check(cred, &dir, Access::EXEC).is_ok());
            let mut push = |e: DirEntry<'_>| {
                let attr = if searches { e.attr } else { nothing_but_kind(&e.attr) };
                wire::push_entry(&mut entries, &DirEntry { attr, ..e }, DATA_MAX)
            };
            fs.readdir(handle, offset, &mut push).await?;
            telling::was_read(fs, client, ino).await;
            out.push(&entries)?;
        }
        Op::Statfs => out.push(&wire::statfs(&fs.statfs().await?))?,
        Op::Getxattr => out.push(&fs.getxattr(cred, ino, p.first()).await?)?,
        Op::Listxattr => out.push(&wire::names(&fs.listxattr(cred, ino).await?))?,
        Op::Setxattr => {
            fs.setxattr(cred, ino, p.first(), p.second(), flags::<XattrFlags>(r)?).await?;
        }
        Op::Removexattr => fs.removexattr(cred, ino, p.first()).await?,
        Op::Fallocate => {
            let what = match r.mode.get() {
                0 => Fallocate::Allocate { keep_size: false },
                1 => Fallocate::Allocate { keep_size: true },
                2 => Fallocate::PunchHole,
                3 => Fallocate::ZeroRange { keep_size: false },
                4 => Fallocate::ZeroRange { keep_size: true },
                _ => return Err(GARBLED),
            };
            fs.fallocate(client.handle(object)?, what, offset, len).await?;
        }
        Op::Seek => {
            let what = if r.mode.get() == 1 { Seek::Hole } else { Seek::Data };
            return fs.seek(client.handle(object)?, offset, what).await;
        }
        Op::CopyRange => {
            let (from, to) = (client.handle(object)?, client.handle(r.other.get())?);
            return fs.copy_range(from, offset, to, r.extra.get(), len).await;
        }
        Op::Getlk => locking::test(fs, client, r, out).await?,
        Op::Setlk => return locking::record(fs, client, r).await,
        Op::Flock => return locking::whole(fs, client, r).await,
        Op::Pin => {
            client.may_open()?;
            let pin = fs.pin((ino, r.other.get() as u32)).await?;
            client.pins(pin);
            return Ok(pin.0);
        }
        Op::Unpin => fs.release(client.unpins(object)?).await?,
        Op::Leave => {
            let handle = client.handle(object)?;
            let (ino, memory) = (client.inode(handle)?, client.shown(r.more.get(), r.other.get())?);
            let access = fs.opened_with(handle).ok_or(Error::BadHandle)?;
            // For its name and mode, which no lease is about.
            let attr = fs.inner().getattr(ino, Some(handle)).await?;
            client.descriptions.leave(client, (&memory, offset), (handle, &attr), access)?;
        }
        Op::KeepLocks => client.keep_locks(fs, client.handle(object)?, r.flags.get() & 1 != 0).await?,
    }
    Ok(0)
}

/// Whether this system protects hard links, which the kernel does for those of a mount. Asked each time, as it may be changed.
fn protects_hard_links() -> bool {
    std::fs::read("/proc/sys/fs/protected_hardlinks").is_ok_and(|word| word.first() != Some(&b'0'))
}

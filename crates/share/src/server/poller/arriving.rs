//! How clients come: a connection, which becomes a session with its first message.

use super::{DOORBELL, KINDS, LISTENER, PROCESS, Poller, SOCKET};
use crate::region::Region;
use crate::server::closer::Line;
use crate::server::descriptions::Descriptions;
use crate::server::session::{Client, Connection, Order, Session, Stream, TASKS};
use crate::{memory, socket};
use format::shared::{Hello, MAGIC, SESSION_BYTES, Show, Shown, VERSION, Welcome};
use fs::FileSystem;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// How many are let in at a time: the sessions that there are have work, too.
const AT_A_TIME: usize = 16;

/// How often it is said that clients are refused.
const SAID: Duration = Duration::from_secs(1);

/// Clients that were refused.
#[derive(Default)]
pub(super) struct Refusals {
    said: Option<Instant>,
    /// Since then.
    more: u64,
}

impl Refusals {
    fn say(&mut self, why: &io::Error) {
        if self.said.is_some_and(|said| said.elapsed() < SAID) {
            self.more += 1;
            return;
        }
        match std::mem::take(&mut self.more) {
            0 => tracing::warn!("a client was refused: {why}"),
            more => tracing::warn!("a client was refused, and {more} before it: {why}"),
        }
        self.said = Some(Instant::now());
    }
}

impl<F: FileSystem> Poller<F> {
    /// Takes in who knocks.
    pub(super) fn accept(&mut self) {
        for _ in 0..AT_A_TIME {
            if self.closer.closing() >= self.options.sessions_max {
                return self.let_in(false);
            }
            let socket = match socket::accept(&self.listener) {
                Ok(Some(socket)) => socket,
                Ok(None) => return,
                Err(e) => {
                    // Out of descriptors: clients wait in the queue of the socket.
                    self.refusals.say(&e);
                    std::thread::sleep(Duration::from_millis(1));
                    return;
                }
            };
            if let Err(e) = self.welcome_socket(socket) {
                self.refusals.say(&e);
            }
        }
    }

    /// Looks for those who knock, or not.
    fn let_in(&mut self, lets_in: bool) {
        let flags = if lets_in { EventFlags::IN } else { EventFlags::empty() };
        match epoll::modify(&self.epoll, &self.listener, EventData::new_u64(LISTENER), flags) {
            Ok(()) => self.is_full = !lets_in,
            Err(e) => tracing::error!("looking for clients: {e}"),
        }
    }

    /// A socket that took long may be closed.
    pub(super) fn let_in_again(&mut self) {
        if self.is_full && self.closer.closing() < self.options.sessions_max {
            self.let_in(true);
        }
    }

    /// Nobody is let in any more, and closing the socket of those who knock closes nothing of theirs.
    pub(super) fn turn_away(&mut self) {
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        while let Ok(Some(socket)) = socket::accept(&self.listener) {
            let uid = socket::peer(&socket).map_or(u32::MAX, |(_, cred)| cred.uid);
            drop(Line::new(socket, uid, &self.closer));
        }
    }

    fn welcome_socket(&mut self, socket: OwnedFd) -> io::Result<()> {
        let peer = socket::peer(&socket);
        let uid = peer.as_ref().map_or(u32::MAX, |(_, cred)| cred.uid);
        let line = Line::new(socket, uid, &self.closer);
        let refuse = |errno: i32| {
            let no = Welcome { errno: errno.into(), ..welcome(0) };
            let _ = socket::send(&line, no.as_bytes(), &[]);
        };
        let sessions = self.connections.len() + self.closer.closing();
        if sessions >= self.options.sessions_max {
            refuse(libc::EMFILE);
            return Err(io::Error::other(format!("{sessions} sessions already")));
        }
        let (pid, cred) = peer?;
        if self.options.only_user.is_some_and(|uid| cred.uid != uid && cred.uid != 0) {
            refuse(libc::EACCES);
            return Err(io::Error::other(format!("user {} may not use this volume", cred.uid)));
        }
        let id = self.next;
        self.next += 1;
        let add = |fd: BorrowedFd<'_>, kind: u64| {
            epoll::add(&self.epoll, fd, EventData::new_u64(id << KINDS | kind), EventFlags::IN)
        };
        add(line.as_fd(), SOCKET)?;
        // A process of another PID namespace has no number here: then the socket alone tells.
        let process = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        if let Some(process) = &process {
            add(process.as_fd(), PROCESS)?;
        }
        let line = Arc::new(line);
        self.connections.insert(id, Connection { line, hears: false, process, pid, cred, session: None });
        Ok(())
    }

    /// Something came over a socket: the first message, or the end; or, while nobody listens, the end.
    pub(super) fn heard(&mut self, id: u64, flags: EventFlags) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.hears {
            if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
                self.end(id);
            }
            return;
        }
        let mut bytes = [0; size_of::<Hello>() + 1];
        let len = match socket::head(&*connection.line, &mut bytes) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
            Ok(head) if head.brings => return self.takes_elsewhere(id),
            Ok(head) if connection.session.is_none() => head.len,
            _ => return self.end(id),
        };
        socket::skip(&*connection.line);
        let hello = Hello::read_from_bytes(&bytes[..len]).ok().filter(|h| h.magic.get() == MAGIC);
        let Some(hello) = hello else { return self.end(id) };
        if hello.version.get() != VERSION {
            let no = Welcome { errno: libc::EPROTONOSUPPORT.into(), ..welcome(0) };
            let _ = socket::send(&*connection.line, no.as_bytes(), &[]);
            return self.end(id);
        }
        if let Err(e) = self.begin(id) {
            match e.kind() {
                // It was killed meanwhile.
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                    tracing::debug!("a client that wanted a session is gone");
                }
                _ => tracing::warn!("a session could not begin: {e}"),
            }
            self.end(id);
        }
    }

    /// A message with descriptors has come, which only sessions may send.
    fn takes_elsewhere(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Some(session) = connection.session.as_ref().filter(|s| !s.ending) else { return self.end(id) };
        // It comes to the end of the socket all the same.
        let nothing = (EventData::new_u64(id << KINDS | SOCKET), EventFlags::empty());
        if epoll::modify(&self.epoll, &*connection.line, nothing.0, nothing.1).is_err() {
            return self.end(id);
        }
        connection.hears = true;
        // Until it is begun this keeps no socket: that of a session which ends first counts as one that waits to be closed.
        let (line, client) = (Arc::downgrade(&connection.line), Arc::downgrade(&session.client));
        let (descriptions, bell) = (self.descriptions.clone(), self.bell.clone());
        self.closer.run(connection.line.uid, move || {
            let Some(line) = line.upgrade() else { return };
            // Closed last, and without anything of the session: that may never end.
            let _left = {
                let (good, left) = shown(&line, &descriptions, &client);
                bell.heard(id, good);
                drop((line, descriptions, client));
                left
            };
        });
    }

    /// A message was taken elsewhere.
    pub(super) fn listen_again(&mut self, id: u64, good: bool) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.hears = false;
        let data = EventData::new_u64(id << KINDS | SOCKET);
        if !good || epoll::modify(&self.epoll, &*connection.line, data, EventFlags::IN).is_err() {
            self.end(id);
        }
    }

    /// Gives a client its memory.
    fn begin(&mut self, id: u64) -> io::Result<()> {
        let Some(pid) = self.connections.get(&id).map(|connection| connection.pid) else { return Ok(()) };
        let owners = self.owners_for(id, pid);
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let fd = memory::sealed(c"freehold session", SESSION_BYTES)?;
        let region = Region::map(&fd)?;
        if let Some(place) = &self.options.place
            && let Err(e) = place.bind(region.memory())
        {
            tracing::debug!("memory of a session stays anywhere: {e}");
        }
        region.initialise();
        region.asleep().store(1, Ordering::SeqCst);
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&self.epoll, &event, EventData::new_u64(id << KINDS | DOORBELL), EventFlags::IN)?;
        let tally = self.board.tally(connection.pid);
        let arena = self.arenas.of(&connection.cred)?;
        let fds = [fd.as_fd(), event.as_fd(), self.changes.reader(), arena.reader()];
        let opening = &self.options.opening;
        let welcome = Welcome {
            volume: opening.volume,
            opening: opening.number.into(),
            after: opening.after.map(Into::into),
            ..welcome(id)
        };
        socket::send(&*connection.line, welcome.as_bytes(), &fds)?;
        let ordered = &self.options.ordered;
        let order = Order { of: ordered.clone(), program: ordered.has_program(connection.pid) };
        let client = Client::new(
            (id, owners),
            (Arc::new(region), self.wakes.clone()),
            (connection.cred.clone(), order, self.options.rights.clone()),
            self.options.handles_max,
            (self.arenas.clone(), arena, self.holders.clone()),
            (self.leases.clone(), self.directories.clone(), self.descriptions.clone()),
            tally,
        );
        let client = Arc::new(client);
        self.arenas.enter(&client);
        self.board.add(&client);
        connection.session = Some(Session {
            client,
            tasks: std::array::from_fn(|_| None),
            clean_up: None,
            stream: Stream::default(),
            wakers: vec![None; TASKS],
            active: false,
            last: self.round,
            ending: false,
            outlived: false,
            event,
        });
        tracing::debug!(pid = connection.pid, session = id, "a session begins");
        self.takes_over(id);
        Ok(())
    }
}

/// Takes a message of a session with which a memory is shown, and answers it. Whether it was one; and what came with it that is of no use.
fn shown(line: &Line, descriptions: &Descriptions, client: &Weak<Client>) -> (bool, Vec<OwnedFd>) {
    let mut bytes = [0; size_of::<Show>() + 1];
    let Ok((n, fds)) = socket::receive(line, &mut bytes) else { return (false, Vec::new()) };
    let show = Show::read_from_bytes(&bytes[..n]).ok().filter(|s| s.magic.get() == MAGIC);
    let (Some(_), Some(client)) = (show, client.upgrade()) else { return (false, fds) };
    let [fd] = match <[OwnedFd; 1]>::try_from(fds) {
        Ok(one) => one,
        Err(fds) => return (false, fds),
    };
    let (errno, number, left) = match descriptions.show(fd, line) {
        Ok(memory) => (0, client.shows(memory), None),
        Err((e, fd)) => (e.errno(), 0, Some(fd)),
    };
    let answer = Shown { errno: errno.into(), number: number.into() };
    // Who does not take the answer waits for it in vain.
    let _ = socket::send(line, answer.as_bytes(), &[]);
    (true, left.into_iter().collect())
}

fn welcome(session: u64) -> Welcome {
    Welcome { magic: MAGIC.into(), version: VERSION.into(), session: session.into(), ..Welcome::new_zeroed() }
}

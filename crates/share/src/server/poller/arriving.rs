//! How clients come: a connection, which becomes a session with its first message.

use super::{DOORBELL, KINDS, PROCESS, Poller, SOCKET};
use crate::region::Region;
use crate::server::session::{Client, Connection, Order, Session, Stream, TASKS};
use crate::{memory, socket};
use format::shared::{Hello, MAGIC, SESSION_BYTES, Show, Shown, VERSION, Welcome};
use fs::FileSystem;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

impl<F: FileSystem> Poller<F> {
    /// Takes in who knocks.
    pub(super) fn accept(&mut self) {
        loop {
            let socket = match socket::accept(&self.listener) {
                Ok(Some(socket)) => socket,
                Ok(None) => return,
                Err(e) => {
                    // Out of descriptors: clients wait in the queue of the socket.
                    tracing::error!("accepting a client: {e}");
                    std::thread::sleep(std::time::Duration::from_millis(1));
                    return;
                }
            };
            if let Err(e) = self.welcome_socket(socket) {
                tracing::warn!("a client was refused: {e}");
            }
        }
    }

    fn welcome_socket(&mut self, socket: OwnedFd) -> io::Result<()> {
        let refuse = |errno: i32| {
            let no = Welcome { errno: errno.into(), ..welcome(0) };
            let _ = socket::send(&socket, no.as_bytes(), &[]);
        };
        if self.connections.len() >= self.options.sessions_max {
            refuse(libc::EMFILE);
            return Err(io::Error::other(format!("{} sessions already", self.connections.len())));
        }
        let (pid, cred) = socket::peer(&socket)?;
        if self.options.only_user.is_some_and(|uid| cred.uid != uid && cred.uid != 0) {
            refuse(libc::EACCES);
            return Err(io::Error::other(format!("user {} may not use this volume", cred.uid)));
        }
        let id = self.next;
        self.next += 1;
        let add = |fd: &OwnedFd, kind: u64| {
            epoll::add(&self.epoll, fd, EventData::new_u64(id << KINDS | kind), EventFlags::IN)
        };
        add(&socket, SOCKET)?;
        // A process of another PID namespace has no number here: then the socket alone tells.
        let process = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        if let Some(process) = &process {
            add(process, PROCESS)?;
        }
        self.connections.insert(id, Connection { socket, process, pid, cred, session: None });
        Ok(())
    }

    /// Something came over a socket: the first message, or the end.
    pub(super) fn heard(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let mut bytes = [0; size_of::<Hello>() + 1];
        let got = socket::receive(&connection.socket, &mut bytes);
        if got.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock) {
            return;
        }
        let hello = match (got, &connection.session) {
            (Ok((n, _)), None) => Hello::read_from_bytes(&bytes[..n]).ok(),
            (Ok((n, fds)), Some(session)) => {
                let show = Show::read_from_bytes(&bytes[..n]).ok().filter(|s| s.magic.get() == MAGIC);
                let (Some(_), Ok([fd])) = (show, <[OwnedFd; 1]>::try_from(fds)) else { return self.end(id) };
                let (errno, number) =
                    match self.descriptions.show(fd).and_then(|memory| session.client.shows(memory)) {
                        Ok(number) => (0, number),
                        Err(e) => (e.errno(), 0),
                    };
                let answer = Shown { errno: errno.into(), number: number.into() };
                // Who does not take the answer waits for it in vain.
                let _ = socket::send(&connection.socket, answer.as_bytes(), &[]);
                return;
            }
            _ => None,
        };
        let Some(hello) = hello.filter(|h| h.magic.get() == MAGIC) else { return self.end(id) };
        if hello.version.get() != VERSION {
            let no = Welcome { errno: libc::EPROTONOSUPPORT.into(), ..welcome(0) };
            let _ = socket::send(&connection.socket, no.as_bytes(), &[]);
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

    /// Gives a client its memory.
    fn begin(&mut self, id: u64) -> io::Result<()> {
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
        socket::send(&connection.socket, welcome.as_bytes(), &fds)?;
        let ordered = &self.options.ordered;
        let order = Order { of: ordered.clone(), program: ordered.has_program(connection.pid) };
        let client = Client::new(
            id,
            (Arc::new(region), self.wakes.clone()),
            (connection.cred.clone(), order),
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
            event,
        });
        tracing::debug!(pid = connection.pid, session = id, "a session begins");
        Ok(())
    }
}

fn welcome(session: u64) -> Welcome {
    Welcome { magic: MAGIC.into(), version: VERSION.into(), session: session.into(), ..Welcome::new_zeroed() }
}

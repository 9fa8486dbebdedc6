//! Files that clients have open without a message (UHSFS: the table of open files is shared memory).
//!
//! A client that knows a name and the attributes behind it can decide itself whether it may open the file. It then only writes the inode into
//! its holds (layout and rule: `format::shared`), and the engine does not hear of the file until it is used in a way that needs it. What
//! must not happen is that the file is taken away meanwhile: before a call removes a name or changes who may open the file
//! ([`Watcher::undeclared`]), those who hold it are looked for, and the file is opened for them as they may open it at that moment.
//!
//! The words are the client's, who may write anything there: it gets what it could have got by opening the file.

use super::session::Client;
use crate::changes::{Blocked, Changes};
use format::shared::{HOLDS_IN_LINE, hold_line};
use fs::watched::{Opener, Undeclared};
use fs::{Cred, Handle, Ino, OpenFlags};
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Clients that may have holds: as many as are looked at for each name that is removed.
const CLIENTS_MAX: usize = 128;

/// The clients that may have holds.
#[derive(Default)]
pub(crate) struct Holders {
    clients: RwLock<Vec<Arc<Client>>>,
}

impl Holders {
    /// This client opens files. From now on its holds are looked at, if there are not too many such clients.
    pub fn admit(&self, client: &Arc<Client>) {
        if client.region.may_hold().load(Ordering::Relaxed) != 0 {
            return;
        }
        let mut clients = self.clients.write();
        if clients.len() < CLIENTS_MAX && !clients.iter().any(|c| c.session == client.session) {
            clients.push(client.clone());
            client.region.may_hold().store(1, Ordering::SeqCst);
        }
    }

    /// This client is gone.
    pub fn part(&self, session: u64) {
        self.clients.write().retain(|c| c.session != session);
    }

    /// See [`fs::watched::Watcher::undeclared`].
    pub fn undeclared(&self, changes: &Arc<Changes>, ino: Ino) -> Undeclared {
        // Also where nobody opens files so: the first who does must not open this one.
        let blocked: Blocked = changes.block(ino);
        let clients = self.clients.read();
        let openers = clients.iter().filter_map(|client| {
            let flags = held(client, ino);
            // What it has it keeps for as long as it holds the file: whoever changes that again and again opens nothing more.
            (!flags.is_empty() && !client.may_open_again(ino, flags))
                .then(|| Box::new(Hold { client: client.clone(), ino, flags }) as Box<dyn Opener>)
        });
        Undeclared { openers: openers.collect(), until: Some(Box::new(blocked)) }
    }
}

/// How a client holds a file; empty: not at all.
pub(crate) fn held(client: &Client, ino: Ino) -> OpenFlags {
    let line = hold_line(ino.0);
    let words = (0..HOLDS_IN_LINE).map(|i| client.region.hold(line, i).load(Ordering::SeqCst));
    words.filter(|word| word >> 2 == ino.0).fold(OpenFlags::empty(), |mut flags, word| {
        flags.set(OpenFlags::READ, word & 1 != 0 || flags.contains(OpenFlags::READ));
        flags.set(OpenFlags::WRITE, word & 2 != 0 || flags.contains(OpenFlags::WRITE));
        flags
    })
}

struct Hold {
    client: Arc<Client>,
    ino: Ino,
    flags: OpenFlags,
}

impl Opener for Hold {
    fn cred(&self) -> &Cred {
        &self.client.cred
    }
    fn flags(&self) -> OpenFlags {
        self.flags
    }
    fn opened(self: Box<Self>, handle: Handle) -> Result<(), Handle> {
        if self.client.holds_open(self.ino, handle, self.flags) { Ok(()) } else { Err(handle) }
    }
}

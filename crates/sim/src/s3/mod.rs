//! An object store in memory that speaks the S3 API over HTTP, and whose network and service fail when they are told to.
//!
//! It is for clients that must survive what servers that work cannot be made to do on demand: connections that break before a request was done or
//! after it, errors of the service, bodies that are cut or changed on their way, listings of the past, silence. Every decision is drawn
//! from a seed, in the order in which requests come. It looks for the access key and does not verify signatures; that and the fine print of
//! the API are tested against servers that others wrote.
//!
//! - [`bucket`]: objects and uploads, and what each request does to them; [`features`]: which of it there is.
//! - [`faults`]: what goes wrong, drawn from a seed.
//! - `message`: requests and answers. `wire`: HTTP, and where a fault strikes.

pub mod bucket;
pub mod faults;
pub mod features;
mod message;
mod wire;

pub use bucket::{Bucket, Times};
pub use faults::{Faults, Rates};
pub use features::{Crc, Features};

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// The name of its only bucket.
pub const BUCKET: &str = "bucket";
/// The access key that it knows.
pub const KEY_ID: &str = "tester";

/// What all connections share.
struct Shared {
    bucket: Mutex<Bucket>,
    faults: Mutex<Faults>,
    /// Those that are open, by number.
    connections: Mutex<BTreeMap<u64, TcpStream>>,
    stops: AtomicBool,
}

/// A server that runs until it is dropped.
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
}

impl Server {
    /// Listens on a port of this machine alone.
    pub fn start(features: Features, faults: Faults) -> std::io::Result<Server> {
        Server::start_at("127.0.0.1:0".parse().expect("an address"), features, faults)
    }

    /// Listens there.
    pub fn start_at(at: SocketAddr, features: Features, faults: Faults) -> std::io::Result<Server> {
        let listener = TcpListener::bind(at)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            bucket: Mutex::new(Bucket::new(features)),
            faults: Mutex::new(faults),
            connections: Mutex::default(),
            stops: AtomicBool::new(false),
        });
        let serving = shared.clone();
        std::thread::spawn(move || {
            for (number, stream) in (0..).zip(listener.incoming()) {
                if serving.stops.load(SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                if let Ok(kept) = stream.try_clone() {
                    serving.connections.lock().insert(number, kept);
                }
                let serving = serving.clone();
                // A connection that fails has ended; so has its thread.
                std::thread::spawn(move || {
                    drop(wire::serve(&serving, stream));
                    serving.connections.lock().remove(&number);
                });
            }
        });
        Ok(Server { shared, address })
    }

    /// Address for clients: `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Looks at what is there, past network and faults.
    pub fn look<T>(&self, at: impl FnOnce(&mut Bucket) -> T) -> T {
        at(&mut self.shared.bucket.lock())
    }

    /// From now on these faults.
    pub fn set_faults(&self, faults: Faults) {
        *self.shared.faults.lock() = faults;
    }

    /// How many connections are open, or have a request under way whose client may be gone already.
    pub fn connections(&self) -> usize {
        self.shared.connections.lock().len()
    }

    /// How many faults have struck.
    pub fn struck(&self) -> u64 {
        self.shared.faults.lock().struck()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stops.store(true, SeqCst);
        for stream in self.shared.connections.lock().values() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        // Wakes whoever waits for a connection.
        let _ = TcpStream::connect(self.address);
    }
}

//! HTTP/1.1 with pooled connections, over TCP or TLS, with a limit for every wait.
//!
//! A request is given up when nothing moves for as long as [`Patience::silence`]: no byte of the body leaves, the answer does not begin, or no
//! byte of it comes. How long a whole request takes is not limited, for that is a matter of its size. Payload is not copied on its way out; on
//! its way in the pieces are put together once.

use super::counters::Counters;
use crate::budget::Room;
use crate::pool::Buffer;
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::{Client, Error, connect::HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::{ClientConfig, RootCertStore, pki_types::CertificateDer, pki_types::pem::PemObject};
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

/// Most that is read from a connection at a time, bytes: each connection keeps a buffer of that size.
const READ_MOST: usize = 256 << 10;
/// How much of a body is given away at a time: the grain in which its progress is seen.
const PIECE: usize = 128 << 10;

/// How long to wait.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For a connection.
    pub connect: Duration,
    /// For the next sign of life of a request under way.
    pub silence: Duration,
}

/// An answer, whole.
#[derive(Debug)]
pub struct Answer {
    /// Status.
    pub status: StatusCode,
    /// Headers.
    pub headers: HeaderMap,
    /// Body.
    pub body: Bytes,
}

impl Answer {
    /// A header's value, if it is visible ASCII.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Broken {
    /// No connection was made: the request was not sent.
    #[error("{0}")]
    Connect(String),
    /// The server's certificate is not accepted; trying again is no help.
    #[error("certificate of the server is not accepted: {0}")]
    Certificate(String),
    /// The connection broke; the request may have been done.
    #[error("{0}")]
    Lost(String),
    /// The answer is longer than can be.
    #[error("answer is longer than {0} bytes")]
    TooLong(usize),
}

/// A pool of connections.
#[derive(Debug)]
pub struct Http {
    client: Client<HttpsConnector<HttpConnector>, Sending>,
    patience: Patience,
}

impl Http {
    /// A pool that keeps up to `idle` idle connections for each host, and trusts the system's certificate authorities or, with `authorities`,
    /// those in that PEM file alone.
    pub fn new(patience: Patience, idle: usize, authorities: Option<&Path>) -> Result<Http, String> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(patience.connect));
        tcp.set_keepalive(Some(Duration::from_secs(60)));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("TLS: {error}"))?
            .with_root_certificates(roots(authorities)?)
            .with_no_client_auth();
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            // Stores close what has idled for a while; S3 after about a minute, others sooner.
            .pool_idle_timeout(Duration::from_secs(15))
            .pool_max_idle_per_host(idle)
            .http1_max_buf_size(READ_MOST)
            .build(connector);
        Ok(Http { client, patience })
    }

    /// Sends a request and takes the whole answer in, which must not be longer than `most` bytes; what it asked for not before there is `room`.
    pub async fn send(
        &self,
        request: Request<Bytes>,
        most: usize,
        room: Option<&Room>,
        counters: Option<&Counters>,
    ) -> Result<Answer, Broken> {
        let gone = Arc::new(AtomicUsize::new(0));
        let request = request.map(|rest| Sending { rest, gone: gone.clone() });
        let mut answer = pin!(self.client.request(request));
        let mut seen = 0;
        let answer = loop {
            match tokio::time::timeout(self.patience.silence, answer.as_mut()).await {
                Ok(answer) => break answer.map_err(|error| broken(&error))?,
                Err(_) if gone.load(Relaxed) > seen => seen = gone.load(Relaxed),
                Err(_) => return Err(self.silent("no answer")),
            }
        };
        let (head, mut body) = answer.into_parts();
        let expected = body.size_hint().exact().unwrap_or(0);
        if expected > most as u64 {
            return Err(Broken::TooLong(most));
        }
        if let Some(room) = room
            && head.status.is_success()
        {
            room.enter().await;
        }
        let mut whole = Pieces::new(expected as usize);
        loop {
            let next = poll_fn(|context| Pin::new(&mut body).poll_frame(context));
            let frame = match tokio::time::timeout(self.patience.silence, next).await {
                Ok(Some(frame)) => frame.map_err(|error| Broken::Lost(told(&error)))?,
                Ok(None) => break,
                Err(_) => return Err(self.silent("answer stops in the middle")),
            };
            if let Ok(data) = frame.into_data() {
                if let Some(counters) = counters {
                    counters.answered(data.len());
                }
                if whole.len() + data.len() > most {
                    return Err(Broken::TooLong(most));
                }
                whole.add(&data);
            }
        }
        Ok(Answer { status: head.status, headers: head.headers, body: whole.into_bytes() })
    }

    fn silent(&self, what: &str) -> Broken {
        Broken::Lost(format!("{what} for {} s", self.patience.silence.as_secs()))
    }
}

/// The authorities to trust.
fn roots(authorities: Option<&Path>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = authorities {
        let told = |error: &dyn std::fmt::Display| format!("certificates of {}: {error}", path.display());
        for certificate in CertificateDer::pem_file_iter(path).map_err(|error| told(&error))? {
            roots.add(certificate.map_err(|error| told(&error))?).map_err(|error| told(&error))?;
        }
        if roots.is_empty() {
            return Err(told(&"there are none in it"));
        }
        return Ok(roots);
    }
    // A system may have some that cannot be read: the others count. Without any, plain HTTP still works, and TLS says what is wrong.
    for certificate in rustls_native_certs::load_native_certs().certs {
        let _ = roots.add(certificate);
    }
    Ok(roots)
}

/// Sorts out why a request failed.
fn broken(error: &Error) -> Broken {
    let text = told(error);
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(rustls::Error::InvalidCertificate(why)) = error.downcast_ref() {
            return Broken::Certificate(why.to_string());
        }
        // An io::Error passes over the error that it is made of, and there may be several around each other.
        let inner = error.downcast_ref::<std::io::Error>().and_then(|error| error.get_ref());
        cause = match inner {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    if error.is_connect() { Broken::Connect(text) } else { Broken::Lost(text) }
}

/// An error with its causes.
fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}

/// A body on its way out.
struct Sending {
    rest: Bytes,
    /// How much of it was given to the connection.
    gone: Arc<AtomicUsize>,
}

impl Body for Sending {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        let most = self.rest.len().min(PIECE);
        let piece = self.rest.split_to(most);
        self.gone.fetch_add(piece.len(), Relaxed);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

/// The pieces of an answer, put together. Each is copied, also one that comes alone: it is a part of its connection's buffer, which may be much larger
/// and would stay as long as the piece.
struct Pieces {
    whole: Buffer,
    expected: usize,
}

impl Pieces {
    fn new(expected: usize) -> Pieces {
        Pieces { whole: Buffer::default(), expected }
    }

    fn len(&self) -> usize {
        self.whole.len()
    }

    fn add(&mut self, data: &[u8]) {
        let whole = self.expected.max(2 * self.whole.len());
        self.whole.extend(data, whole);
    }

    fn into_bytes(self) -> Bytes {
        self.whole.freeze()
    }
}

/// Waits, with whatever runtime polls it.
pub fn pause(time: Duration) -> impl Future<Output = ()> + Send {
    tokio::time::sleep(time)
}

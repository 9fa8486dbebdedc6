//! A service of a test: answers requests of HTTP, one by one, as a function says. Over TLS where it has a certificate.

use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A request that came. Names of headers in lower case.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub target: String,
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

impl Request {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

/// An answer: status, headers, body.
pub type Answer = (u16, Vec<(&'static str, String)>, String);

/// An answer without headers.
pub fn plain(status: u16, body: impl Into<String>) -> Answer {
    (status, Vec::new(), body.into())
}

/// The answer of a bucket in which nothing is.
pub fn empty_bucket() -> Answer {
    plain(200, "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>")
}

/// The answer of a store that refuses.
pub fn error(status: u16, code: &str) -> Answer {
    plain(status, format!("<Error><Code>{code}</Code><Message>told</Message></Error>"))
}

/// Runs as long as the test; every request is kept.
pub struct Service {
    pub address: String,
    pub seen: Arc<Mutex<Vec<Request>>>,
}

impl Service {
    pub fn start(answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Service {
        Service::serve(None, answer)
    }

    /// Over TLS, as 127.0.0.1, with a certificate that an authority of its own has signed. Returns the authority's, in PEM.
    pub fn start_tls(answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> (Service, String) {
        let authority_key = rcgen::KeyPair::generate().unwrap();
        let mut authority = rcgen::CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let authority = authority.self_signed(&authority_key).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let own = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let own = own.signed_by(&key, &authority, &authority_key).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![own.der().clone()], key)
            .unwrap();
        (Service::serve(Some(Arc::new(config)), answer), authority.pem())
    }

    fn serve(
        tls: Option<Arc<ServerConfig>>,
        answer: impl Fn(&Request) -> Answer + Send + Sync + 'static,
    ) -> Service {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let address = format!("{scheme}://{}", listener.local_addr().unwrap());
        let seen = Arc::<Mutex<Vec<Request>>>::default();
        let (keeps, answer) = (seen.clone(), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (tls, keeps, answer) = (tls.clone(), keeps.clone(), answer.clone());
                // A connection that fails has ended; so has its thread.
                std::thread::spawn(move || match tls {
                    Some(tls) => {
                        let connection = ServerConnection::new(tls).unwrap();
                        drop(converse(StreamOwned::new(connection, stream), &keeps, &*answer));
                    }
                    None => drop(converse::<TcpStream>(stream, &keeps, &*answer)),
                });
            }
        });
        Service { address, seen }
    }

    /// The requests that came so far.
    pub fn seen(&self) -> Vec<Request> {
        self.seen.lock().unwrap().clone()
    }
}

fn converse<T: Read + Write>(
    stream: T,
    keeps: &Mutex<Vec<Request>>,
    answer: &dyn Fn(&Request) -> Answer,
) -> Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let mut words = line.split_whitespace().map(str::to_owned);
        let (Some(method), Some(target)) = (words.next(), words.next()) else { return Ok(()) };
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            stream.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let length = headers.get("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        stream.read_exact(&mut body)?;
        let request = Request { method, target, headers, body: String::from_utf8_lossy(&body).into_owned() };
        let (status, headers, body) = answer(&request);
        let head = request.method == "HEAD";
        keeps.lock().unwrap().push(request);
        let mut text = format!("HTTP/1.1 {status} Told\r\ncontent-length: {}\r\n", body.len());
        headers.iter().for_each(|(name, value)| text.push_str(&format!("{name}: {value}\r\n")));
        let body = if head { "" } else { &body };
        stream.get_mut().write_all(format!("{text}\r\n{body}").as_bytes())?;
        stream.get_mut().flush()?;
    }
}

//! HTTP/1.1 as far as clients of object stores need it, and where a fault strikes.

use super::faults::Fault;
use super::message::{Answer, Request};
use super::{BUCKET, Shared};
use percent_encoding::percent_decode_str;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Error, ErrorKind, Result, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// Longest body, bytes.
const BODY_MOST: usize = 256 << 20;
/// How long silence lasts, unless the server ends.
const SILENCE: Duration = Duration::from_secs(30);

/// Serves a connection until it ends.
pub(super) fn serve(shared: &Shared, stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::with_capacity(256 << 10, stream.try_clone()?);
    let mut writer = stream;
    while let Some(mut request) = read(&mut reader, &mut writer)? {
        let fault = shared.faults.lock().draw();
        let broken = |writer: &TcpStream| writer.shutdown(Shutdown::Both);
        let refusal = match fault {
            Some(Fault::ResetBefore) => return broken(&writer),
            Some(Fault::ErrorBefore) => Some(Answer::error(500, "InternalError")),
            Some(Fault::SlowDown) => Some(Answer::error(503, "SlowDown").with("retry-after", "0")),
            Some(Fault::Delay(time)) => {
                std::thread::sleep(time);
                None
            }
            Some(Fault::FlipRequest) if !request.body.is_empty() => {
                let at = shared.faults.lock().choose(request.body.len());
                request.body[at] ^= 1;
                None
            }
            _ => None,
        };
        let stale = fault == Some(Fault::Stale);
        let mut answer = refusal.unwrap_or_else(|| shared.bucket.lock().serve(&request, stale));
        match fault {
            Some(Fault::ResetAfter) => return broken(&writer),
            Some(Fault::ErrorAfter) => answer = Answer::error(500, "InternalError"),
            // Only where a checksum can tell.
            Some(Fault::FlipAnswer) if answer.is_summed() => {
                let at = shared.faults.lock().choose(answer.body.len());
                if let Some(byte) = answer.body.get_mut(at) {
                    *byte ^= 1;
                }
            }
            Some(Fault::Silence) => {
                let until = Instant::now() + SILENCE;
                while Instant::now() < until && !shared.stops.load(SeqCst) {
                    std::thread::sleep(Duration::from_millis(20));
                }
                return broken(&writer);
            }
            _ => {}
        }
        let head = request.method == "HEAD";
        let length = match fault {
            Some(Fault::Endless) if request.method == "GET" && !request.key.is_empty() => 1 << 62,
            _ => answer.length(),
        };
        let mut text = format!("HTTP/1.1 {} Simulated\r\ncontent-length: {length}\r\n", answer.status);
        for (name, value) in &answer.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str("\r\n");
        writer.write_all(text.as_bytes())?;
        if fault == Some(Fault::Cut) && !head && !answer.body.is_empty() {
            writer.write_all(&answer.body[..answer.body.len() / 2])?;
            return broken(&writer);
        }
        if !head {
            writer.write_all(&answer.body)?;
        }
    }
    Ok(())
}

/// The next request; `None`: the connection has ended between two.
fn read(reader: &mut impl BufRead, writer: &mut impl Write) -> Result<Option<Request>> {
    let wrong = |what: &str| Error::new(ErrorKind::InvalidData, what.to_owned());
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let (Some(method), Some(target)) = (words.next(), words.next()) else { return Err(wrong("no request")) };
    let (method, (path, query)) = (method.to_owned(), target.split_once('?').unwrap_or((target, "")));
    let decoded = |text: &str| percent_decode_str(text).decode_utf8().map(|text| text.into_owned());
    let path = decoded(path).map_err(|_| wrong("path is not UTF-8"))?;
    let mut parameters = BTreeMap::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        parameters.insert(name.to_owned(), decoded(value).map_err(|_| wrong("query is not UTF-8"))?);
    }
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').ok_or_else(|| wrong("no header"))?;
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length: usize =
        headers.get("content-length").map_or(Ok(0), |text| text.parse()).map_err(|_| wrong("length"))?;
    if length > BODY_MOST {
        return Err(wrong("body is too long"));
    }
    if headers.get("expect").is_some_and(|text| text.eq_ignore_ascii_case("100-continue")) {
        writer.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let path = path.trim_start_matches('/');
    let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
    let (bucket, key) = (bucket == BUCKET, key.to_owned());
    Ok(Some(Request { method, bucket, key, query: parameters, headers, body }))
}

//! One call: signed, sent, judged, and sent again where that may help.

use super::clock;
use super::config::{Config, Payload, Place};
use super::counters::{Counters, Kind};
use super::credentials::Provider;
use super::encode;
use super::error::{self, About, Verdict};
use super::http::{Answer, Broken, Http, pause};
use super::retry::Backoff;
use super::sign::{EMPTY_SHA256, Keys, Signing, UNSIGNED, sha256};
use super::xml;
use crate::budget::Room;
use crate::store::{Result, StoreError};
use bytes::Bytes;
use http::{Method, Request};
use parking_lot::RwLock;
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
use std::time::{Instant, SystemTime};
use tokio::sync::{Semaphore, watch};

/// Most that an answer in XML can be long: a listing of 1,000 keys of 1 KiB, each byte encoded as three.
const XML_MOST: usize = 16 << 20;
/// Clocks that differ by so many seconds are why a request was refused; stores allow a quarter of an hour.
const SKEW_LEAST: u64 = 300;
/// Where a bucket is taken to be until the store names another region.
const REGION: &str = "us-east-1";

/// A request before it is signed.
#[derive(Debug)]
pub(super) struct Call<'a> {
    /// What it is counted as.
    pub kind: Kind,
    /// Method.
    pub method: Method,
    /// The whole key; `None`: the bucket itself.
    pub key: Option<&'a str>,
    /// Query, not yet encoded.
    pub query: Vec<(&'a str, &'a str)>,
    /// Headers besides those of the signature; names in lower case.
    pub headers: Vec<(Cow<'a, str>, String)>,
    /// Body.
    pub body: Bytes,
    /// Most that the answer's body can be long.
    pub most: usize,
    /// Where the answer's body waits for memory.
    pub room: Option<&'a Room>,
    /// Looks at a success before it is believed; what does not fit is asked for again.
    pub fits: fn(&Answer) -> std::result::Result<(), String>,
}

impl<'a> Call<'a> {
    /// A call without query, headers and body, whose answer is empty or in XML.
    pub fn new(kind: Kind, method: Method, key: Option<&'a str>) -> Call<'a> {
        let (query, headers, body) = (Vec::new(), Vec::new(), Bytes::new());
        Call { kind, method, key, query, headers, body, most: XML_MOST, room: None, fits: |_| Ok(()) }
    }

    /// With a parameter.
    pub fn ask(mut self, name: &'a str, value: &'a str) -> Call<'a> {
        self.query.push((name, value));
        self
    }

    /// With a header.
    pub fn with(mut self, name: impl Into<Cow<'a, str>>, value: impl Into<String>) -> Call<'a> {
        self.headers.push((name.into(), value.into()));
        self
    }
}

/// How a call ended.
#[derive(Debug)]
pub(super) struct Outcome {
    /// The answer, or why there is none.
    pub result: Result<Answer>,
    /// An earlier try of this call may have been done: what the result says of the store's state may come from that.
    pub doubt: bool,
}

/// Everything that calls share.
#[derive(Debug)]
pub(super) struct Caller {
    pub config: Config,
    pub counters: Arc<Counters>,
    http: Arc<Http>,
    provider: Provider,
    permits: Semaphore,
    /// The region, and the place that follows from it.
    site: RwLock<(String, Place)>,
    /// How many seconds the store's clock is ahead.
    ahead: AtomicI64,
    /// Whether the store has answered anything.
    reached: AtomicBool,
    /// After this nothing is tried again.
    end: watch::Sender<Option<Instant>>,
}

impl Caller {
    /// Nothing is asked of the store yet. Errors: `Refused` (of the configuration), `Denied` (no credentials).
    pub fn new(config: Config) -> Result<Caller> {
        let region = config.region.clone().unwrap_or_else(|| REGION.into());
        let http = Http::new(config.patience, config.parallel, config.authorities.as_deref());
        let http = Arc::new(http.map_err(StoreError::Refused)?);
        let place = Place::new(&config, &region).map_err(StoreError::Refused)?;
        let provider = Provider::new(&config.credentials, &config.environment, &region, http.clone());
        Ok(Caller {
            counters: Arc::default(),
            http,
            provider: provider.map_err(StoreError::Denied)?,
            permits: Semaphore::new(config.parallel.max(1)),
            site: RwLock::new((region, place)),
            ahead: AtomicI64::new(0),
            reached: AtomicBool::new(false),
            end: watch::Sender::new(None),
            config,
        })
    }

    /// Makes a call, with as many tries as it needs and the deadline allows.
    pub async fn call(&self, call: &Call<'_>) -> Outcome {
        self.tries(call, false).await
    }

    /// As `call`; but that a checksum does not fit is no reason to try again: it is the answer.
    pub async fn once(&self, call: &Call<'_>) -> Result<Answer> {
        self.tries(call, true).await.result
    }

    async fn tries(&self, call: &Call<'_>, damage_is_final: bool) -> Outcome {
        let begun = Instant::now();
        let mut backoff = Backoff::new(self.config.deadline);
        let (mut doubt, mut corrections) = (false, 0);
        loop {
            let attempt = self.attempt(call, backoff.tries() + corrections > 0);
            let done = match backoff.tries() {
                // One that goes well comes to its end, however long it is.
                0 => attempt.await,
                tries => tokio::select! {
                    done = attempt => done,
                    () = self.ended() => {
                        let error = StoreError::Unavailable(format!("{}: given up", call.kind.name()));
                        return Outcome { result: Err(late(error, tries)), doubt: true };
                    }
                },
            };
            let verdict = match done {
                Ok(answer) => return Outcome { result: Ok(answer), doubt },
                Err(verdict) => verdict,
            };
            let (error, wait, done) = match verdict {
                Verdict::Final(error) => return Outcome { result: Err(error), doubt },
                Verdict::Again { error: error @ StoreError::Damaged(_), .. } if damage_is_final => {
                    return Outcome { result: Err(error), doubt };
                }
                Verdict::Again { error, wait, done } => (error, wait, done),
                // Each of these is put right once or twice; more often it is not what it seems.
                Verdict::Region(region) if corrections < 2 && self.moves(&region) => {
                    corrections += 1;
                    continue;
                }
                Verdict::Region(region) => {
                    let text = format!("the bucket {} is in region {region}", self.config.bucket);
                    return Outcome { result: Err(StoreError::Denied(text)), doubt };
                }
                Verdict::Skew(ahead) if corrections < 2 => {
                    tracing::warn!(
                        "the store's clock is {ahead} s ahead of this machine's; requests are dated by it"
                    );
                    self.ahead.store(ahead, Relaxed);
                    corrections += 1;
                    continue;
                }
                Verdict::Skew(ahead) => {
                    let text = format!(
                        "the store's clock is {ahead} s ahead of this machine's, and it refuses both times"
                    );
                    return Outcome { result: Err(StoreError::Denied(text)), doubt };
                }
                Verdict::Expired(_) if corrections < 2 => {
                    corrections += 1;
                    continue;
                }
                Verdict::Expired(error) => return Outcome { result: Err(error), doubt },
            };
            doubt |= done;
            if !self.reached.load(Relaxed) {
                backoff.end_by(begun + self.config.first);
            }
            match backoff.next(wait) {
                Some(wait) => {
                    tracing::debug!("{} again in {} ms: {error}", call.kind.name(), wait.as_millis());
                    tokio::select! {
                        () = pause(wait) => {}
                        () = self.ended() => return Outcome { result: Err(late(error, backoff.tries())), doubt },
                    }
                }
                None => return Outcome { result: Err(late(error, backoff.tries())), doubt },
            }
        }
    }

    /// From now on nothing is tried again after `until`.
    pub fn hurry(&self, until: Instant) {
        self.end.send_replace(Some(until));
    }

    /// Waits until nothing is to be tried again any more.
    async fn ended(&self) {
        let mut end = self.end.subscribe();
        let until = end.wait_for(Option::is_some).await.ok().and_then(|until| *until);
        match until {
            Some(until) => tokio::time::sleep_until(until.into()).await,
            // Not while somebody calls.
            None => std::future::pending().await,
        }
    }

    /// One try.
    async fn attempt(&self, call: &Call<'_>, again: bool) -> std::result::Result<Answer, Verdict> {
        let keys = self.provider.keys().await.map_err(|lack| match lack.passes {
            true => Verdict::Again { error: StoreError::Unavailable(lack.text), wait: None, done: false },
            false => Verdict::Final(StoreError::Denied(lack.text)),
        })?;
        let permit = self.permits.acquire().await.expect("it is never closed");
        let request = self.request(call, keys.as_ref()).map_err(Verdict::Final)?;
        self.counters.asked(call.kind, again, call.body.len());
        let answer = self.http.send(request, call.most, call.room, Some(&self.counters)).await;
        drop(permit);
        let lost =
            |error: String, done| Verdict::Again { error: StoreError::Unavailable(error), wait: None, done };
        let name = call.kind.name();
        let answer = answer.map_err(|error| match error {
            Broken::Connect(text) => lost(text, false),
            Broken::Lost(text) => lost(format!("{name}: {text}"), true),
            Broken::Certificate(_) => Verdict::Final(StoreError::Unavailable(error.to_string())),
            Broken::TooLong(_) => Verdict::Final(StoreError::Refused(format!("{name}: {error}"))),
        })?;
        self.reached.store(true, Relaxed);
        let failed = call.kind != Kind::Get && xml::is_error(&answer.body);
        if answer.status.is_success() && !failed {
            return match (call.fits)(&answer) {
                Ok(()) => Ok(answer),
                Err(text) => Err(Verdict::Again {
                    error: StoreError::Damaged(format!("{name}: {text}")),
                    wait: None,
                    done: true,
                }),
            };
        }
        let mut verdict = self.judge(call, keys.as_ref(), &answer);
        if let (Some(keys), Method::HEAD, 400 | 403) = (&keys, call.method.clone(), answer.status.as_u16())
            && let Some(better) = self.learn(call, keys, &answer, &verdict).await
        {
            verdict = better;
        }
        Err(match (verdict, keys) {
            (Verdict::Expired(error), Some(keys)) if !self.provider.expired(&keys) => Verdict::Final(error),
            (verdict, _) => verdict,
        })
    }

    /// What an answer that is no success means.
    fn judge(&self, call: &Call<'_>, keys: Option<&Keys>, answer: &Answer) -> Verdict {
        let (action, bucket) = (call.kind.name(), &self.config.bucket);
        let key_id = keys.map(|keys| keys.id.as_str());
        error::judge(answer, About { action, bucket, key_id, head: call.method == Method::HEAD })
    }

    /// Why a HEAD was refused, whose answer has no body that would say it: by the clock of the store, else by a GET of a byte. `None`: that is not told, or
    /// it is what the `verdict` says.
    async fn learn(
        &self,
        call: &Call<'_>,
        keys: &Keys,
        answer: &Answer,
        verdict: &Verdict,
    ) -> Option<Verdict> {
        match verdict {
            Verdict::Final(_) => {}
            // Amazon names the region with every refusal.
            Verdict::Region(region) if self.site.read().0 == *region => {}
            _ => return None,
        }
        if let Some(theirs) = answer.header("date").and_then(clock::http) {
            let ahead = clock::ahead(theirs, SystemTime::now());
            if ahead.abs_diff(self.ahead.load(Relaxed)) > SKEW_LEAST {
                return Some(Verdict::Skew(ahead));
            }
        }
        let mut get = Call::new(call.kind, Method::GET, call.key).with("range", "bytes=0-0");
        get.query.clone_from(&call.query);
        let request = self.request(&get, Some(keys)).ok()?;
        let permit = self.permits.acquire().await.expect("it is never closed");
        self.counters.asked(call.kind, true, 0);
        let answer = self.http.send(request, XML_MOST, None, Some(&self.counters)).await.ok()?;
        drop(permit);
        match self.judge(&get, Some(keys), &answer) {
            _ if answer.status.is_success() => None,
            better @ (Verdict::Final(StoreError::Denied(_)) | Verdict::Expired(_) | Verdict::Skew(_)) => {
                Some(better)
            }
            better @ (Verdict::Region(_) | Verdict::Again { .. }) => Some(better),
            Verdict::Final(_) => None,
        }
    }

    /// Signs a call.
    fn request(&self, call: &Call<'_>, keys: Option<&Keys>) -> Result<Request<Bytes>> {
        let (region, place) = self.site.read().clone();
        let path = match call.key {
            Some(key) => format!("{}/{}", place.base, encode::path(key)),
            None if place.base.is_empty() => "/".to_owned(),
            None => place.base.clone(),
        };
        let query = encode::sorted(&call.query);
        let uri = match query.as_str() {
            "" => format!("{}://{}{path}", place.scheme, place.authority),
            query => format!("{}://{}{path}?{query}", place.scheme, place.authority),
        };
        let mut request = Request::builder().method(call.method.clone()).uri(uri);
        for (name, value) in &call.headers {
            request = request.header(&**name, value);
        }
        if let Some(keys) = keys {
            let at = clock::stamp(SystemTime::now(), self.ahead.load(Relaxed));
            let hash;
            let payload = match self.config.payload {
                _ if call.body.is_empty() => EMPTY_SHA256,
                // A list of parts is short, and has no checksum of its own.
                Payload::Auto if place.protects() && call.method != Method::POST => UNSIGNED,
                Payload::Unsigned => UNSIGNED,
                Payload::Auto | Payload::Signed => {
                    hash = sha256(&call.body);
                    &hash
                }
            };
            let mut own = vec![("x-amz-content-sha256", payload), ("x-amz-date", at.as_str())];
            own.extend(keys.token.as_ref().map(|token| ("x-amz-security-token", token.reveal())));
            let mut signed = own.clone();
            signed.push(("host", &place.authority));
            signed.extend(call.headers.iter().map(|(name, value)| (&**name, value.as_str())));
            let signing = Signing {
                method: call.method.as_str(),
                path: &path,
                query: &query,
                headers: &signed,
                payload,
                at: &at,
                region: &region,
                service: "s3",
            };
            request = request.header("authorization", signing.authorization(keys));
            for (name, value) in own {
                request = request.header(name, value);
            }
        }
        request
            .body(call.body.clone())
            .map_err(|error| StoreError::Refused(format!("{}: {error}", call.kind.name())))
    }

    /// Goes on in another region. `false`: it is the one that was asked already.
    fn moves(&self, region: &str) -> bool {
        let mut site = self.site.write();
        if site.0 == region {
            return false;
        }
        let Ok(place) = Place::new(&self.config, region) else { return false };
        tracing::info!("bucket {} is in region {region}", self.config.bucket);
        *site = (region.to_owned(), place);
        true
    }
}

/// The error of the last try, with how many there were.
fn late(error: StoreError, tries: u32) -> StoreError {
    match error {
        StoreError::Unavailable(text) => StoreError::Unavailable(format!("{text} ({tries} tries)")),
        StoreError::Damaged(text) => StoreError::Damaged(format!("{text} ({tries} tries)")),
        other => other,
    }
}

//! Objects, unfinished uploads, and what each request of the S3 API does to them. Each request is done wholly or not at all.

use super::KEY_ID;
use base64::{Engine, prelude::BASE64_STANDARD};
use crc_fast::{CrcAlgorithm, checksum};
use md5::{Digest, Md5};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use ring::digest::{SHA256, digest};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::SystemTime;

/// How many changes back a listing of the past goes.
const PAST: usize = 8;
/// Names of one page of a listing.
const PAGE: usize = 100;

/// What this server can do: servers differ.
#[derive(Clone, Copy, Debug)]
pub struct Features {
    /// Conditions on puts and completions are obeyed; else they are dropped in silence.
    pub conditional: bool,
    /// Conditions on deletes are obeyed; else they are dropped in silence.
    pub conditional_delete: bool,
    /// UploadPartCopy is there.
    pub part_copy: bool,
    /// RenameObject is there; else it is taken for a PutObject without a body.
    pub rename: bool,
    /// CRC64NVME is verified and kept; else it is dropped in silence.
    pub crc64nvme: bool,
    /// Smallest part but the last, bytes.
    pub part_min: usize,
    /// ETags are MD5 sums; else they are numbers.
    pub md5_etags: bool,
    /// Listings write a space as '+'.
    pub plus: bool,
}

impl Features {
    /// Everything there is, with parts of at least 16 KiB.
    pub const ALL: Features = Features {
        conditional: true,
        conditional_delete: true,
        part_copy: true,
        rename: true,
        crc64nvme: true,
        part_min: 16 << 10,
        md5_etags: true,
        plus: true,
    };
    /// What the oldest servers have.
    pub const FEW: Features = Features {
        conditional: false,
        conditional_delete: false,
        part_copy: false,
        rename: false,
        crc64nvme: false,
        part_min: 16 << 10,
        md5_etags: false,
        plus: false,
    };
}

/// A request, decoded.
#[derive(Debug)]
pub(super) struct Request {
    pub method: String,
    /// It is for the bucket that there is.
    pub bucket: bool,
    pub key: String,
    pub query: BTreeMap<String, String>,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Request {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// The key that a header names as a source.
    fn source(&self, name: &str) -> Option<String> {
        let decoded = percent_decode_str(self.header(name)?).decode_utf8().ok()?;
        Some(decoded.trim_start_matches('/').split_once('/')?.1.to_owned())
    }
}

/// An answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Length that is told of a body that is not sent.
    head: Option<usize>,
}

impl Answer {
    fn new(status: u16, body: impl Into<Vec<u8>>) -> Answer {
        Answer { status, headers: Vec::new(), body: body.into(), head: None }
    }

    pub(super) fn error(status: u16, code: &str) -> Answer {
        Answer::new(
            status,
            format!("<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code><Message>told</Message></Error>"),
        )
    }

    pub(super) fn with(mut self, name: &str, value: impl Into<String>) -> Answer {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// It carries the checksum of its body.
    pub(super) fn is_summed(&self) -> bool {
        self.head.is_none() && self.headers.iter().any(|(name, _)| name == "x-amz-checksum-crc64nvme")
    }

    pub(super) fn length(&self) -> usize {
        self.head.unwrap_or(self.body.len())
    }
}

/// An object.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Its content.
    pub body: Arc<Vec<u8>>,
    /// Its ETag, with quotes.
    pub etag: String,
    /// Headers that come back: `content-type` and user metadata.
    pub headers: BTreeMap<String, String>,
    /// CRC64NVME in base64.
    pub sum: Option<String>,
    modified: SystemTime,
}

/// A part: content, ETag, and checksum.
type Uploaded = (Arc<Vec<u8>>, String, Option<String>);

#[derive(Debug)]
struct Unfinished {
    key: String,
    headers: BTreeMap<String, String>,
    parts: BTreeMap<u16, Uploaded>,
}

/// The bucket.
#[derive(Debug)]
pub struct Bucket {
    features: Features,
    objects: BTreeMap<String, Stored>,
    uploads: BTreeMap<String, Unfinished>,
    /// What the last changes replaced, the newest at the end.
    past: VecDeque<(String, Option<Stored>)>,
    /// Renames by their tokens: a repeated one is answered like the first.
    renames: BTreeMap<String, ()>,
    next: u64,
}

type Done = Result<Answer, Answer>;

impl Bucket {
    pub(super) fn new(features: Features) -> Bucket {
        let (objects, uploads, past, renames) = Default::default();
        Bucket { features, objects, uploads, past, renames, next: 0 }
    }

    /// The objects there are.
    pub fn objects(&self) -> &BTreeMap<String, Stored> {
        &self.objects
    }

    /// Turns a bit of an object, as a medium may; nothing else changes.
    pub fn rot(&mut self, key: &str, at: usize) {
        if let Some(byte) =
            self.objects.get_mut(key).and_then(|object| Arc::make_mut(&mut object.body).get_mut(at))
        {
            *byte ^= 1;
        }
    }

    /// How many uploads are not finished.
    pub fn uploads(&self) -> usize {
        self.uploads.len()
    }

    pub(super) fn serve(&mut self, request: &Request, stale: bool) -> Answer {
        if !request
            .header("authorization")
            .is_some_and(|text| text.contains(&format!("Credential={KEY_ID}/")))
        {
            return Answer::error(403, "InvalidAccessKeyId");
        }
        if !request.bucket {
            return Answer::error(404, "NoSuchBucket");
        }
        let signed = request.header("x-amz-content-sha256").filter(|said| *said != "UNSIGNED-PAYLOAD");
        let sum = digest(&SHA256, &request.body);
        if signed.is_some_and(|said| said != hex(sum.as_ref())) {
            return Answer::error(400, "XAmzContentSHA256Mismatch");
        }
        self.dispatch(request, stale).unwrap_or_else(|answer| answer)
    }

    fn dispatch(&mut self, request: &Request, stale: bool) -> Done {
        let has = |name: &str| request.query.contains_key(name);
        match request.method.as_str() {
            "GET" if has("uploads") => Ok(self.list_uploads(request)),
            "GET" if request.key.is_empty() => Ok(self.list(request, stale)),
            "GET" if has("uploadId") => self.list_parts(request),
            "GET" | "HEAD" => self.get(request),
            "PUT" if has("uploadId") => self.part(request),
            "PUT" if self.features.rename && has("renameObject") => self.rename(request),
            "PUT" if request.headers.contains_key("x-amz-copy-source") => self.copy(request),
            "PUT" => self.put(request),
            "POST" if has("uploads") => Ok(self.begin(request)),
            "POST" if has("uploadId") => self.complete(request),
            "DELETE" if has("uploadId") => match self.uploads.remove(&request.query["uploadId"]) {
                Some(_) => Ok(Answer::new(204, "")),
                None => Err(Answer::error(404, "NoSuchUpload")),
            },
            "DELETE" => self.delete(request),
            _ => Err(Answer::error(405, "MethodNotAllowed")),
        }
    }

    /// Whether the key is in the state that the request asks for.
    fn obeyed(&self, request: &Request, able: bool) -> Result<(), Answer> {
        let now = self.objects.get(&request.key).map(|object| object.etag.as_str());
        let absent = request.header("if-none-match").is_some() && now.is_some();
        let other = request.header("if-match").is_some_and(|etag| Some(etag) != now);
        if able && (absent || other) { Err(Answer::error(412, "PreconditionFailed")) } else { Ok(()) }
    }

    /// The checksum of a body that was verified.
    fn verified(&self, request: &Request) -> Result<Option<String>, Answer> {
        let sum = BASE64_STANDARD.encode(checksum(CrcAlgorithm::Crc64Nvme, &request.body).to_be_bytes());
        let said = request.header("x-amz-checksum-crc64nvme").filter(|_| self.features.crc64nvme);
        let md5 = request.header("content-md5");
        if said.is_some_and(|said| said != sum)
            || md5.is_some_and(|said| said != BASE64_STANDARD.encode(Md5::digest(&request.body)))
        {
            return Err(Answer::error(400, "BadDigest"));
        }
        Ok(self.features.crc64nvme.then_some(sum))
    }

    fn etag(&mut self, body: &[u8]) -> String {
        self.next += 1;
        if self.features.md5_etags {
            format!("\"{}\"", hex(&Md5::digest(body)))
        } else {
            format!("\"v{}\"", self.next)
        }
    }

    /// Puts an object, or nothing, in the place of a key.
    fn set(&mut self, key: &str, object: Option<Stored>) {
        let before = match object {
            Some(object) => self.objects.insert(key.to_owned(), object),
            None => self.objects.remove(key),
        };
        if self.past.len() == PAST {
            self.past.pop_front();
        }
        self.past.push_back((key.to_owned(), before));
    }

    fn put(&mut self, request: &Request) -> Done {
        let sum = self.verified(request)?;
        self.obeyed(request, self.features.conditional)?;
        let (etag, body) = (self.etag(&request.body), Arc::new(request.body.clone()));
        let object =
            Stored { body, etag: etag.clone(), headers: kept(request), sum, modified: SystemTime::now() };
        self.set(&request.key, Some(object));
        Ok(Answer::new(200, "").with("etag", etag))
    }

    fn get(&mut self, request: &Request) -> Done {
        let object = self.objects.get(&request.key).ok_or_else(|| Answer::error(404, "NoSuchKey"))?;
        self.obeyed(request, true)?;
        let size = object.body.len();
        let mut answer = match request.header("range").and_then(range) {
            Some((first, _)) if first >= size => return Err(Answer::error(416, "InvalidRange")),
            Some((first, last)) => {
                let last = last.min(size - 1);
                let said = format!("bytes {first}-{last}/{size}");
                Answer::new(206, &object.body[first..=last]).with("content-range", said)
            }
            None => Answer::new(200, object.body.as_slice()),
        };
        if request.method == "HEAD" {
            (answer.head, answer.body) = (Some(size), Vec::new());
        }
        answer = answer.with("etag", &object.etag).with("last-modified", http_time(object.modified));
        for (name, value) in &object.headers {
            answer = answer.with(name, value);
        }
        if let (Some(sum), None, Some(_)) =
            (&object.sum, request.header("range"), request.header("x-amz-checksum-mode"))
        {
            answer = answer.with("x-amz-checksum-crc64nvme", sum).with("x-amz-checksum-type", "FULL_OBJECT");
        }
        Ok(answer)
    }

    /// An object that a header names, in the state that another asks for.
    fn from(&self, request: &Request, what: &str) -> Result<Stored, Answer> {
        let key = request
            .source(&format!("x-amz-{what}-source"))
            .ok_or_else(|| Answer::error(400, "InvalidArgument"))?;
        let object = self.objects.get(&key).ok_or_else(|| Answer::error(404, "NoSuchKey"))?;
        match request.header(&format!("x-amz-{what}-source-if-match")) {
            Some(etag) if etag != object.etag => Err(Answer::error(412, "PreconditionFailed")),
            _ => Ok(object.clone()),
        }
    }

    fn copy(&mut self, request: &Request) -> Done {
        let mut object = self.from(request, "copy")?;
        if request.header("x-amz-metadata-directive") == Some("REPLACE") {
            object.headers = kept(request);
        }
        object.modified = SystemTime::now();
        let etag = object.etag.clone();
        self.set(&request.key, Some(object));
        Ok(Answer::new(200, format!("<CopyObjectResult><ETag>{}</ETag></CopyObjectResult>", escaped(&etag))))
    }

    fn rename(&mut self, request: &Request) -> Done {
        let token = request.header("x-amz-client-token").unwrap_or_default().to_owned();
        if !token.is_empty() && self.renames.contains_key(&token) {
            return Ok(Answer::new(200, ""));
        }
        let object = self.from(request, "rename")?;
        self.obeyed(request, true)?;
        let from = request.source("x-amz-rename-source").expect("it was found");
        self.set(&from, None);
        self.set(&request.key, Some(object));
        self.renames.insert(token, ());
        Ok(Answer::new(200, ""))
    }

    fn delete(&mut self, request: &Request) -> Done {
        if self.objects.contains_key(&request.key) {
            self.obeyed(request, self.features.conditional_delete)?;
            self.set(&request.key, None);
        }
        Ok(Answer::new(204, ""))
    }

    /// The objects as they were some changes ago.
    fn before(&self) -> BTreeMap<String, Stored> {
        let mut objects = self.objects.clone();
        for (key, object) in self.past.iter().rev() {
            match object {
                Some(object) => drop(objects.insert(key.clone(), object.clone())),
                None => drop(objects.remove(key)),
            }
        }
        objects
    }

    fn list(&mut self, request: &Request, stale: bool) -> Answer {
        let get = |name: &str| request.query.get(name).map_or("", String::as_str);
        let (prefix, delimiter, after) = (get("prefix"), get("delimiter"), get("continuation-token"));
        let most = get("max-keys").parse().unwrap_or(PAGE);
        let past = stale.then(|| self.before());
        let now = past.as_ref().unwrap_or(&self.objects);
        let mut text = format!(
            "<ListBucketResult><EncodingType>url</EncodingType><Prefix>{}</Prefix>",
            self.encoded(prefix)
        );
        let (mut count, mut last, mut truncated) = (0, String::new(), false);
        for (key, object) in now.range(prefix.max(after).to_owned()..) {
            if !key.starts_with(prefix) {
                break;
            }
            let common = key[prefix.len()..].find(delimiter).filter(|_| !delimiter.is_empty());
            let name = common.map_or(key.as_str(), |at| &key[..prefix.len() + at + 1]);
            if name <= after || name == last {
                continue;
            }
            if count == most {
                truncated = true;
                break;
            }
            (count, last) = (count + 1, name.to_owned());
            let name = self.encoded(name);
            text.push_str(&match common {
                Some(_) => format!("<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>"),
                None => format!(
                    "<Contents><Key>{name}</Key><LastModified>{}</LastModified><ETag>{}</ETag><Size>{}</Size></Contents>",
                    iso_time(object.modified),
                    escaped(&object.etag),
                    object.body.len()
                ),
            });
        }
        if truncated {
            text.push_str(&format!("<NextContinuationToken>{}</NextContinuationToken>", escaped(&last)));
        }
        Answer::new(200, format!("{text}<IsTruncated>{truncated}</IsTruncated></ListBucketResult>"))
    }

    fn begin(&mut self, request: &Request) -> Answer {
        self.next += 1;
        let id = format!("u{}", self.next);
        let (key, headers) = (request.key.clone(), kept(request));
        self.uploads.insert(id.clone(), Unfinished { key, headers, parts: BTreeMap::new() });
        let name = "InitiateMultipartUploadResult";
        Answer::new(200, format!("<{name}><UploadId>{id}</UploadId></{name}>"))
    }

    fn part(&mut self, request: &Request) -> Done {
        let copied = request.headers.contains_key("x-amz-copy-source");
        let number = request.query.get("partNumber").and_then(|text| text.parse().ok());
        let number = number.ok_or_else(|| Answer::error(400, "InvalidArgument"))?;
        if !self.uploads.contains_key(&request.query["uploadId"]) {
            return Err(Answer::error(404, "NoSuchUpload"));
        }
        let (body, sum) = if copied {
            if !self.features.part_copy {
                return Err(Answer::error(501, "NotImplemented"));
            }
            let source = self.from(request, "copy")?;
            let (first, last) =
                request.header("x-amz-copy-source-range").and_then(range).unwrap_or((0, usize::MAX));
            let body =
                source.body.get(first..=last).ok_or_else(|| Answer::error(416, "InvalidRange"))?.to_vec();
            let sum = BASE64_STANDARD.encode(checksum(CrcAlgorithm::Crc64Nvme, &body).to_be_bytes());
            (body, self.features.crc64nvme.then_some(sum))
        } else {
            (request.body.clone(), self.verified(request)?)
        };
        let etag = self.etag(&body);
        let upload = self.uploads.get_mut(&request.query["uploadId"]).expect("it was found");
        upload.parts.insert(number, (Arc::new(body), etag.clone(), sum.clone()));
        let sum = sum.map_or(String::new(), |sum| format!("<ChecksumCRC64NVME>{sum}</ChecksumCRC64NVME>"));
        Ok(match copied {
            true => Answer::new(
                200,
                format!("<CopyPartResult><ETag>{}</ETag>{sum}</CopyPartResult>", escaped(&etag)),
            ),
            false => Answer::new(200, "").with("etag", etag),
        })
    }

    fn complete(&mut self, request: &Request) -> Done {
        let id = &request.query["uploadId"];
        let upload = self.uploads.get(id).ok_or_else(|| Answer::error(404, "NoSuchUpload"))?;
        self.obeyed(request, self.features.conditional)?;
        let text = String::from_utf8_lossy(&request.body);
        let (mut body, mut sums, mut count) = (Vec::new(), Md5::new(), 0);
        let named: Vec<&str> = text.split("<Part>").skip(1).collect();
        for (at, part) in named.iter().enumerate() {
            let field = |tag: &str| Some(part.split_once(&format!("<{tag}>"))?.1.split_once('<')?.0);
            let number = field("PartNumber").and_then(|text| text.parse::<u16>().ok()).unwrap_or(0);
            let etag = field("ETag").unwrap_or_default().replace("&quot;", "\"");
            let Some((data, found, sum)) = upload.parts.get(&number) else {
                return Err(Answer::error(400, "InvalidPart"));
            };
            let other = field("ChecksumCRC64NVME").is_some_and(|said| Some(said) != sum.as_deref());
            if *found != etag || other {
                return Err(Answer::error(400, "InvalidPart"));
            }
            if data.len() < self.features.part_min && at + 1 < named.len() {
                return Err(Answer::error(400, "EntityTooSmall"));
            }
            body.extend_from_slice(data);
            sums.update(Md5::digest(data.as_slice()));
            count += 1;
        }
        let sum = BASE64_STANDARD.encode(checksum(CrcAlgorithm::Crc64Nvme, &body).to_be_bytes());
        if count == 0 || request.header("x-amz-checksum-crc64nvme").is_some_and(|said| said != sum) {
            return Err(Answer::error(400, "BadDigest"));
        }
        self.next += 1;
        let etag = match self.features.md5_etags {
            true => format!("\"{}-{count}\"", hex(&sums.finalize())),
            false => format!("\"v{}\"", self.next),
        };
        let upload = self.uploads.remove(id).expect("it was found");
        let sum = self.features.crc64nvme.then_some(sum);
        let (body, modified) = (Arc::new(body), SystemTime::now());
        self.set(
            &upload.key,
            Some(Stored { body, etag: etag.clone(), headers: upload.headers, sum, modified }),
        );
        let name = "CompleteMultipartUploadResult";
        Ok(Answer::new(200, format!("<{name}><ETag>{}</ETag></{name}>", escaped(&etag))))
    }

    fn list_uploads(&self, request: &Request) -> Answer {
        let prefix = request.query.get("prefix").map_or("", String::as_str);
        let mut text = "<ListMultipartUploadsResult><EncodingType>url</EncodingType>".to_owned();
        let now = iso_time(SystemTime::now());
        for (id, upload) in self.uploads.iter().filter(|(_, upload)| upload.key.starts_with(prefix)) {
            let key = self.encoded(&upload.key);
            text.push_str(&format!(
                "<Upload><Key>{key}</Key><UploadId>{id}</UploadId><Initiated>{now}</Initiated></Upload>"
            ));
        }
        Answer::new(200, text + "<IsTruncated>false</IsTruncated></ListMultipartUploadsResult>")
    }

    fn list_parts(&self, request: &Request) -> Done {
        let upload =
            self.uploads.get(&request.query["uploadId"]).ok_or_else(|| Answer::error(404, "NoSuchUpload"))?;
        let after = request.query.get("part-number-marker").and_then(|text| text.parse().ok()).unwrap_or(0);
        let mut text = "<ListPartsResult>".to_owned();
        for (number, (body, etag, _)) in upload.parts.range(after + 1..).take(2) {
            let (etag, size) = (escaped(etag), body.len());
            text.push_str(&format!(
                "<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag><Size>{size}</Size></Part>"
            ));
        }
        let truncated = upload.parts.range(after + 1..).count() > 2;
        Ok(Answer::new(200, format!("{text}<IsTruncated>{truncated}</IsTruncated></ListPartsResult>")))
    }

    /// A key as listings write it.
    fn encoded(&self, key: &str) -> String {
        let text = utf8_percent_encode(key, NON_ALPHANUMERIC).to_string().replace("%2F", "/");
        if self.features.plus { text.replace("%20", "+") } else { text.replace("%2B", "+") }
    }
}

/// The headers that are kept with an object.
fn kept(request: &Request) -> BTreeMap<String, String> {
    let ours = |name: &str| name == "content-type" || name.starts_with("x-amz-meta-");
    request
        .headers
        .iter()
        .filter(|(name, _)| ours(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// First and last byte of a range.
fn range(text: &str) -> Option<(usize, usize)> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    Some((first.parse().ok()?, last.parse().unwrap_or(usize::MAX)))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn http_time(time: SystemTime) -> String {
    stamp(time).strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

fn iso_time(time: SystemTime) -> String {
    stamp(time).strftime("%Y-%m-%dT%H:%M:%S.000Z").to_string()
}

fn stamp(time: SystemTime) -> jiff::Timestamp {
    jiff::Timestamp::try_from(time).unwrap_or(jiff::Timestamp::UNIX_EPOCH)
}

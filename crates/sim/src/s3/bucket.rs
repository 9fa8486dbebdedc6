//! Objects, unfinished uploads, and what each request of the S3 API does to them. Each request is done wholly or not at all.

use super::KEY_ID;
use super::features::{Crc, Features};
use super::message::{Answer, Request, escaped, hex, http_time, iso_time, kept, range};
use base64::{Engine, prelude::BASE64_STANDARD};
use md5::{Digest, Md5};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use ring::digest::{SHA256, digest};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::SystemTime;

/// How many changes back a listing of the past goes.
const PAST: usize = 8;
/// Names of one page of a listing.
const PAGE: usize = 100;

/// An object.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Its content.
    pub body: Arc<Vec<u8>>,
    /// Its ETag, with quotes.
    pub etag: String,
    /// Headers that come back: `content-type` and user metadata.
    pub headers: BTreeMap<String, String>,
    /// Its checksum, in base64.
    pub sum: Option<(&'static Crc, String)>,
    modified: SystemTime,
}

/// A part: content, ETag, and checksum.
type Uploaded = (Arc<Vec<u8>>, String, Option<(&'static Crc, String)>);

/// When an upload was begun, and when its parts came.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// `None`: listings do not tell.
    pub begun: Option<SystemTime>,
    /// `None`: listings do not tell.
    pub parts: Option<SystemTime>,
}

#[derive(Debug)]
struct Unfinished {
    key: String,
    headers: BTreeMap<String, String>,
    parts: BTreeMap<u16, Uploaded>,
    /// What the object is to have.
    crc: Option<&'static Crc>,
    times: Times,
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
    refused: Vec<Refusal>,
}

/// Requests that are refused: by their method and a parameter that they have, with a status and a body.
#[derive(Clone, Debug)]
struct Refusal {
    method: &'static str,
    parameter: &'static str,
    status: u16,
    body: String,
}

type Done = Result<Answer, Answer>;

impl Bucket {
    pub(super) fn new(features: Features) -> Bucket {
        let (objects, uploads, past, renames) = Default::default();
        Bucket { features, objects, uploads, past, renames, next: 0, refused: Vec::new() }
    }

    /// From now on requests of a method that have this parameter ("": that have none) are answered with an error of this code; without one, as a proxy does.
    pub fn refuse(&mut self, method: &'static str, parameter: &'static str, status: u16, code: &str) {
        let body = match code {
            "" => "<html>told by nobody</html>".to_owned(),
            code => format!("<Error><Code>{code}</Code><Message>told</Message></Error>"),
        };
        self.refused.push(Refusal { method, parameter, status, body });
    }

    /// From now on nothing is refused.
    pub fn allow(&mut self) {
        self.refused.clear();
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

    /// Gives an object a header, as somebody may who has other ways to the store.
    pub fn set_header(&mut self, key: &str, name: &str, value: &str) {
        if let Some(object) = self.objects.get_mut(key) {
            object.headers.insert(name.to_owned(), value.to_owned());
        }
    }

    /// Gives an object a checksum of another sort, as if the same content had been put again: an ETag that is a sum of it stays.
    pub fn sum_anew(&mut self, key: &str, crc: &'static Crc) {
        if let Some(object) = self.objects.get_mut(key) {
            object.sum = Some((crc, crc.of(&object.body)));
        }
    }

    /// Gives the unfinished uploads of a key other times.
    pub fn date_uploads(&mut self, key: &str, times: Times) {
        self.uploads.values_mut().filter(|upload| upload.key == key).for_each(|upload| upload.times = times);
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
        let meant = |refusal: &&Refusal| match refusal.parameter {
            "" => request.query.is_empty(),
            parameter => request.query.contains_key(parameter),
        };
        if let Some(refusal) = self.refused.iter().filter(|r| r.method == request.method).find(meant) {
            return Answer::new(refusal.status, refusal.body.as_str());
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

    /// The checksum of a body that was verified; one of its own where the request names none.
    fn verified(&self, request: &Request) -> Result<Option<(&'static Crc, String)>, Answer> {
        let known = self.features.checksums;
        let named = known.iter().find_map(|crc| request.header(crc.header).map(|said| (crc, said)));
        let sum = named.map(|(crc, _)| crc).or(known.first()).map(|crc| (crc, crc.of(&request.body)));
        let md5 = request.header("content-md5");
        if named.is_some_and(|(crc, said)| crc.of(&request.body) != said)
            || md5.is_some_and(|said| said != BASE64_STANDARD.encode(Md5::digest(&request.body)))
        {
            return Err(Answer::error(400, "BadDigest"));
        }
        Ok(sum)
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
        if let (Some((crc, sum)), None, Some(_)) =
            (&object.sum, request.header("range"), request.header("x-amz-checksum-mode"))
        {
            answer = answer.with(crc.header, sum).with("x-amz-checksum-type", "FULL_OBJECT");
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
        let class = "x-amz-storage-class";
        if request.header("x-amz-metadata-directive") == Some("REPLACE") {
            object.headers = kept(request);
        }
        object.headers.remove(class);
        object.headers.extend(request.header(class).map(|named| (class.to_owned(), named.to_owned())));
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
            if self.features.echo { self.encoded(prefix) } else { escaped(prefix) }
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
                    "<Contents><Key>{name}</Key><LastModified>{}</LastModified><ETag>{}</ETag><Size>{}</Size>\
                     <StorageClass>{}</StorageClass></Contents>",
                    iso_time(object.modified),
                    escaped(&object.etag),
                    object.body.len(),
                    object.headers.get("x-amz-storage-class").map_or("STANDARD", String::as_str)
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
        let named = request.header("x-amz-checksum-algorithm");
        let known = self.features.checksums;
        let crc = known.iter().find(|crc| Some(crc.name) == named).or(known.first());
        let times = Times { begun: Some(SystemTime::now()), parts: Some(SystemTime::now()) };
        self.uploads.insert(id.clone(), Unfinished { key, headers, parts: BTreeMap::new(), crc, times });
        let name = "InitiateMultipartUploadResult";
        Answer::new(200, format!("<{name}><UploadId>{id}</UploadId></{name}>"))
    }

    fn part(&mut self, request: &Request) -> Done {
        let copied = request.headers.contains_key("x-amz-copy-source");
        let number = request.query.get("partNumber").and_then(|text| text.parse().ok());
        let number = number.ok_or_else(|| Answer::error(400, "InvalidArgument"))?;
        let upload = self.uploads.get(&request.query["uploadId"]);
        let crc = upload.ok_or_else(|| Answer::error(404, "NoSuchUpload"))?.crc;
        let (body, sum) = if copied {
            if !self.features.part_copy {
                return Err(Answer::error(501, "NotImplemented"));
            }
            let source = self.from(request, "copy")?;
            let (first, last) =
                request.header("x-amz-copy-source-range").and_then(range).unwrap_or((0, usize::MAX));
            let body =
                source.body.get(first..=last).ok_or_else(|| Answer::error(416, "InvalidRange"))?.to_vec();
            let sum = crc.map(|crc| (crc, crc.of(&body)));
            (body, sum)
        } else {
            (request.body.clone(), self.verified(request)?)
        };
        let etag = self.etag(&body);
        let upload = self.uploads.get_mut(&request.query["uploadId"]).expect("it was found");
        upload.times.parts = Some(SystemTime::now());
        upload.parts.insert(number, (Arc::new(body), etag.clone(), sum.clone()));
        let sum = sum.map_or(String::new(), |(crc, sum)| {
            let name = crc.name;
            format!("<Checksum{name}>{sum}</Checksum{name}>")
        });
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
            let other = Crc::ALL.iter().any(|crc| {
                let said = field(&format!("Checksum{}", crc.name));
                said.is_some_and(|said| {
                    sum.as_ref().is_none_or(|sum| (sum.0.name, &*sum.1) != (crc.name, said))
                })
            });
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
        let whole = |crc: &Crc| match self.features.composite && crc.name == Crc::CRC32C.name {
            true => format!("{}-{count}", crc.of(b"of sums")),
            false => crc.of(&body),
        };
        let wrong = |crc: &Crc| request.header(crc.header).is_some_and(|said| said != whole(crc));
        if count == 0 || self.features.checksums.iter().any(wrong) {
            return Err(Answer::error(400, "BadDigest"));
        }
        self.next += 1;
        let etag = match self.features.md5_etags {
            true => format!("\"{}-{count}\"", hex(&sums.finalize())),
            false => format!("\"v{}\"", self.next),
        };
        let upload = self.uploads.remove(id).expect("it was found");
        let sum = upload.crc.map(|crc| (crc, whole(crc)));
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
        for (id, upload) in self.uploads.iter().filter(|(_, upload)| upload.key.starts_with(prefix)) {
            let key = self.encoded(&upload.key);
            let begun = told("Initiated", upload.times.begun);
            text.push_str(&format!("<Upload><Key>{key}</Key><UploadId>{id}</UploadId>{begun}</Upload>"));
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
            let came = told("LastModified", upload.times.parts);
            text.push_str(&format!(
                "<Part><PartNumber>{number}</PartNumber>{came}<ETag>{etag}</ETag><Size>{size}</Size></Part>"
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

/// A time as XML has it, if it is told.
fn told(tag: &str, time: Option<SystemTime>) -> String {
    time.map_or(String::new(), |time| format!("<{tag}>{}</{tag}>", iso_time(time)))
}

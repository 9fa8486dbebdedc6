//! Whole objects: head, get, put, copy, rename, delete.

use super::S3;
use super::call::{Call, Outcome};
use super::checksum;
use super::clock;
use super::counters::Kind;
use super::encode;
use super::http::Answer;
use super::sign::hex;
use super::xml;
use crate::budget::Room;
use crate::store::{
    Condition, Description, ETag, KEPT_HEADERS, Metadata, Object, Result, STORAGE_CLASS, StoreError,
    can_be_sent,
};
use bytes::Bytes;
use http::{Method, StatusCode};
use rand::Rng;
use std::ops::Range;
use std::time::SystemTime;

/// Most that an answer can be long that tells of an error, bytes.
const ERROR_MOST: usize = 64 << 10;
/// Most that is read of an object whose size nobody has asked for, bytes.
const WHOLE_MOST: u64 = 1 << 30;
/// What user metadata begins with in a header.
const META: &str = "x-amz-meta-";

/// The headers of a condition on the key that is written.
pub(super) fn conditioned<'a>(mut call: Call<'a>, on: &Condition) -> Call<'a> {
    match on {
        Condition::Always => {}
        Condition::Absent => call.headers.push(("if-none-match".into(), "*".into())),
        Condition::Is(etag) => call.headers.push(("if-match".into(), etag.0.to_string())),
    }
    call
}

/// An ETag with its quotes: some stores leave them out in XML.
pub(super) fn etag(text: &str) -> ETag {
    let text = text.trim();
    match text.starts_with(['"', 'W']) {
        true => ETag(text.into()),
        false => ETag(format!("\"{text}\"").into()),
    }
}

/// The ETag of an answer's headers.
pub(super) fn etag_of(answer: &Answer) -> Result<ETag> {
    answer.header("etag").map(etag).ok_or_else(|| StoreError::Unavailable("the store names no ETag".into()))
}

/// An answer was lost, a repetition was refused, and things are not as the call was to make them: perhaps it was done, and somebody else has
/// changed them since. Nobody may take that for "nothing was changed".
pub(super) fn unknown(kind: Kind) -> StoreError {
    let name = kind.name();
    StoreError::Unavailable(format!(
        "{name}: the answer was lost, and what is there now does not tell whether it was done"
    ))
}

/// What of a header that a store tells is sent again; `None`: nothing, because it is the default or of the transfer alone.
pub(super) fn kept(name: &str, value: &str) -> Option<String> {
    let value = match name {
        STORAGE_CLASS if value == "STANDARD" => return None,
        // Some stores keep how a body was once sent.
        "content-encoding" => {
            let codings = value.split(',').map(str::trim).filter(|coding| *coding != "aws-chunked");
            codings.collect::<Vec<_>>().join(",")
        }
        _ => value.trim().to_owned(),
    };
    (!value.is_empty()).then_some(value)
}

/// What the headers of an answer say of an object of that size.
fn object(answer: &Answer, size: u64) -> Result<Object> {
    let mut metadata = Metadata::new();
    for (name, value) in &answer.headers {
        if let Some(name) = name.as_str().strip_prefix(META) {
            metadata.insert(name.to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned());
        }
    }
    let mut headers = Metadata::new();
    for name in KEPT_HEADERS {
        if let Some(value) = answer.header(name) {
            headers.extend(kept(name, value).map(|value| (name.to_owned(), value)));
        }
    }
    Ok(Object {
        headers,
        size,
        etag: etag_of(answer)?,
        modified: answer.header("last-modified").and_then(clock::http).unwrap_or(SystemTime::UNIX_EPOCH),
        content_type: answer.header("content-type").map(str::to_owned),
        metadata,
    })
}

/// First byte, byte behind the last, and size of the whole object that an answer has.
fn extent(answer: &Answer) -> std::result::Result<(u64, u64, u64), String> {
    if answer.status != StatusCode::PARTIAL_CONTENT {
        let size = answer.body.len() as u64;
        return Ok((0, size, size));
    }
    let said = answer.header("content-range").unwrap_or_default();
    let parsed = || {
        let (range, size) = said.strip_prefix("bytes ")?.split_once('/')?;
        let (first, last) = range.split_once('-')?;
        Some((first.parse().ok()?, last.parse::<u64>().ok()?.checked_add(1)?, size.parse().ok()?))
    };
    parsed().ok_or_else(|| format!("content-range {said:?} cannot be understood"))
}

/// Whether a get's body is what its headers say: as long as the range, and with the checksum where it is the whole object.
fn fits(answer: &Answer) -> std::result::Result<(), String> {
    let (first, end, size) = extent(answer)?;
    if end.checked_sub(first) != Some(answer.body.len() as u64) || end > size {
        return Err(format!("{} bytes came of the range {first}..{end} of {size}", answer.body.len()));
    }
    match (first, end == size) {
        (0, true) => checksum::verify(&answer.headers, &answer.body),
        _ => Ok(()),
    }
}

impl S3 {
    /// `Store::head`.
    pub(super) async fn head_if(&self, key: &str, state: Option<&ETag>) -> Result<Object> {
        let whole = self.whole(key)?;
        let call = Call::new(Kind::Head, Method::HEAD, Some(&whole));
        let mut call = call.with("x-amz-checksum-mode", "ENABLED");
        if let Some(etag) = state {
            call = call.with("if-match", &*etag.0);
        }
        let answer = self.caller.call(&call).await.result?;
        let size = answer.header("content-length").and_then(|text| text.parse().ok());
        let size =
            size.ok_or_else(|| StoreError::Unavailable("HeadObject: the store names no size".into()))?;
        let object = object(&answer, size)?;
        self.sums.note(key, &object.etag, &answer.headers);
        Ok(object)
    }

    /// A call that reads an object whole, which has no more bytes than `most`, and verifies it.
    pub(super) fn reads<'a>(&self, whole: &'a str, most: u64) -> Call<'a> {
        let call = Call::new(Kind::Get, Method::GET, Some(whole)).with("x-amz-checksum-mode", "ENABLED");
        Call { fits, most: (most as usize).max(ERROR_MOST), ..call }
    }

    /// `Store::get`.
    pub(super) async fn get_range(
        &self,
        key: &str,
        range: Range<u64>,
        state: Option<&ETag>,
        room: Option<&Room>,
    ) -> Result<(Bytes, Object)> {
        if range.start >= range.end {
            return Ok((Bytes::new(), self.head_if(key, state).await?));
        }
        let whole = self.whole(key)?;
        let most = if range == (0..u64::MAX) { WHOLE_MOST } else { range.end - range.start };
        let mut call = self.reads(&whole, most);
        call.room = room;
        if range != (0..u64::MAX) {
            call = call.with("range", format!("bytes={}-{}", range.start, range.end - 1));
        }
        if let Some(etag) = state {
            call = call.with("if-match", &*etag.0);
        }
        let answer = match self.caller.call(&call).await.result {
            Ok(answer) => answer,
            // The range begins behind the end.
            Err(error @ StoreError::Refused(_)) => {
                let object = self.head_if(key, state).await?;
                return if range.start >= object.size { Ok((Bytes::new(), object)) } else { Err(error) };
            }
            Err(error) => return Err(error),
        };
        let (first, end, size) = extent(&answer).map_err(StoreError::Damaged)?;
        let object = object(&answer, size)?;
        if state.is_some_and(|state| *state != object.etag) {
            return Err(StoreError::Precondition);
        }
        let wanted = range.start.min(size)..range.end.min(size);
        if first > wanted.start || end < wanted.end {
            return Err(StoreError::Damaged(format!(
                "GetObject: {first}..{end} came where {wanted:?} was asked for"
            )));
        }
        let body = answer.body.slice((wanted.start - first) as usize..(wanted.end - first) as usize);
        Ok((body, object))
    }

    /// A call that makes an object, with its description.
    pub(super) fn described<'a>(&self, mut call: Call<'a>, about: &Description) -> Result<Call<'a>> {
        if let Some(media) = &about.content_type {
            call = call.with("content-type", media);
        }
        for (name, value) in &about.headers {
            call = call.with(name.clone(), value);
        }
        for (name, value) in &about.metadata {
            if !can_be_sent(name, value) {
                return Err(StoreError::Refused(format!("metadata {name:?} cannot be sent")));
            }
            call = call.with(format!("{META}{}", name.to_ascii_lowercase()), value.trim());
        }
        Ok(call)
    }

    /// `Store::put`, whose abilities are not looked at.
    pub(super) async fn put_if(
        &self,
        key: &str,
        body: Bytes,
        about: &Description,
        on: &Condition,
    ) -> Result<ETag> {
        let whole = self.whole(key)?;
        let (name, sum) = self.sum.header(&body);
        let mut call = Call::new(Kind::Put, Method::PUT, Some(&whole)).with(name, sum);
        call = conditioned(self.described(call, about)?, on);
        call.body = body;
        let Outcome { result, doubt } = self.caller.call(&call).await;
        match result {
            Ok(answer) => etag_of(&answer),
            // A first try may have made what this one finds: then the object is what was to be made.
            Err(StoreError::Precondition) if doubt => match self.is_made(key, &call.body, about).await? {
                Some(etag) => Ok(etag),
                None => Err(unknown(Kind::Put)),
            },
            Err(error) => Err(error),
        }
    }

    /// The ETag of an object that has this content and this description.
    async fn is_made(&self, key: &str, body: &Bytes, about: &Description) -> Result<Option<ETag>> {
        let whole = self.whole(key)?;
        let found = match self.head_if(key, None).await {
            // Read whole, so that it is verified; and in that state.
            Ok(object) if object.size == body.len() as u64 && object.metadata == about.metadata => {
                let call = self.reads(&whole, object.size).with("if-match", &*object.etag.0);
                self.caller.call(&call).await.result
            }
            Ok(_) => return Ok(None),
            Err(error) => Err(error),
        };
        match found {
            Ok(there) => Ok((there.body == *body).then_some(etag_of(&there)?)),
            Err(StoreError::NotFound | StoreError::Precondition) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The header that names a source.
    pub(super) fn source(&self, whole: &str) -> String {
        format!("/{}/{}", encode::path(&self.caller.config.bucket), encode::path(whole))
    }

    /// `Store::copy`.
    pub(super) async fn copy_if(
        &self,
        from: &str,
        to: &str,
        about: Option<&Description>,
        state: Option<&ETag>,
    ) -> Result<ETag> {
        let (source, target) = (self.whole(from)?, self.whole(to)?);
        let mut call =
            Call::new(Kind::Copy, Method::PUT, Some(&target)).with("x-amz-copy-source", self.source(&source));
        if let Some(etag) = state {
            call = call.with("x-amz-copy-source-if-match", &*etag.0);
        }
        if let Some(about) = about {
            call = self.described(call.with("x-amz-metadata-directive", "REPLACE"), about)?;
        }
        let Outcome { result, doubt } = self.caller.call(&call).await;
        match result {
            Ok(answer) => xml::read::<xml::Made>(&answer.body)
                .map(|made| etag(&made.etag))
                .map_err(StoreError::Unavailable),
            // A first try onto itself may have changed the state that it was to begin from.
            Err(StoreError::Precondition) if doubt && from == to => {
                let now = self.head_if(to, None).await?;
                match about {
                    Some(about) if about.metadata == now.metadata => Ok(now.etag),
                    _ => Err(unknown(Kind::Copy)),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// `Store::rename`, whose abilities are not looked at.
    pub(super) async fn rename_if(&self, from: &str, to: &str, state: &ETag, on: &Condition) -> Result<()> {
        let (source, target) = (self.whole(from)?, self.whole(to)?);
        // The same in all tries: the store knows a repetition by it.
        let token = hex(&rand::rng().random::<[u8; 16]>());
        let call = Call::new(Kind::Rename, Method::PUT, Some(&target))
            .ask("renameObject", "")
            .with("x-amz-rename-source", self.source(&source))
            .with("x-amz-rename-source-if-match", &*state.0)
            .with("x-amz-client-token", token);
        let Outcome { result, doubt } = self.caller.call(&conditioned(call, on)).await;
        match result {
            Ok(_) => Ok(()),
            Err(error @ (StoreError::NotFound | StoreError::Precondition)) if doubt => {
                match (self.head_if(from, None).await, self.head_if(to, None).await) {
                    // Done by an earlier try: the source has left, and its state is at the target.
                    (Err(StoreError::NotFound), Ok(object)) if object.etag == *state => Ok(()),
                    // It is where it was.
                    (Ok(object), _) if object.etag == *state => Err(error),
                    _ => Err(unknown(Kind::Rename)),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// `Store::delete`, whose abilities are not looked at.
    pub(super) async fn delete_if(&self, key: &str, on: &Condition) -> Result<()> {
        let whole = self.whole(key)?;
        let call = conditioned(Call::new(Kind::Delete, Method::DELETE, Some(&whole)), on);
        let Outcome { result, doubt } = self.caller.call(&call).await;
        match result {
            Ok(_) | Err(StoreError::NotFound) => Ok(()),
            // Stores differ in what a condition says of an object that is not there.
            Err(StoreError::Precondition) => match self.head_if(key, None).await {
                Err(StoreError::NotFound) if doubt || matches!(on, Condition::Is(_)) => Ok(()),
                _ if doubt => Err(unknown(Kind::Delete)),
                _ => Err(StoreError::Precondition),
            },
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderMap;

    fn answer(status: u16, range: Option<&str>, body: &'static [u8]) -> Answer {
        let mut headers = HeaderMap::new();
        if let Some(range) = range {
            headers.insert("content-range", range.parse().unwrap());
        }
        Answer { status: StatusCode::from_u16(status).unwrap(), headers, body: Bytes::from_static(body) }
    }

    #[test]
    fn a_body_must_fit_its_range() {
        assert!(fits(&answer(200, None, b"abc")).is_ok());
        assert!(fits(&answer(206, Some("bytes 2-4/10"), b"abc")).is_ok());
        for wrong in
            ["bytes 2-5/10", "bytes 2-4/4", "bytes 4-2/10", "bytes */10", "bytes 0-18446744073709551615/1"]
        {
            assert!(fits(&answer(206, Some(wrong), b"abc")).is_err(), "{wrong}");
        }
        assert!(fits(&answer(206, None, b"abc")).is_err());
    }

    #[test]
    fn etags_have_quotes() {
        assert_eq!(&*etag("abc").0, "\"abc\"");
        assert_eq!(&*etag("\"abc\"").0, "\"abc\"");
        assert_eq!(&*etag("W/\"abc\"").0, "W/\"abc\"");
    }
}

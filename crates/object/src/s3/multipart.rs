//! Uploads in parts.

use super::call::{Call, Outcome};
use super::checksum::{self, Sum, TYPE, WHOLE};
use super::clock;
use super::counters::Kind;
use super::http::Answer;
use super::objects::{conditioned, etag, etag_of, unknown};
use super::xml;
use super::{Mixed, S3};
use crate::checksum::{Checksum, Crc};
use crate::store::{Condition, Description, ETag, Part, Result, StoreError, Upload, UploadId};
use bytes::Bytes;
use http::Method;
use std::ops::{Range, RangeBounds};
use std::time::{Duration, SystemTime};

/// By how much a time of the store may be before the same of this machine: it is in whole seconds.
pub(super) const CLOCKS: Duration = Duration::from_secs(2);

impl S3 {
    /// `Store::begin`. `kept`: the store is to keep checksums, if it can. A try whose answer was lost leaves an upload behind that nobody knows;
    /// [`S3::all_uploads`] finds it.
    pub(super) async fn begin_upload(&self, key: &str, about: &Description, kept: bool) -> Result<UploadId> {
        let whole = self.whole(key)?;
        let mut call = Call::new(Kind::Begin, Method::POST, Some(&whole)).ask("uploads", "");
        if let (true, Sum::Crc(crc)) = (kept, self.sum) {
            call = call.with("x-amz-checksum-algorithm", crc.name()).with(TYPE, WHOLE);
        }
        call = self.described(call, about)?;
        call.fits = |answer| xml::read::<xml::Begun>(&answer.body).map(drop);
        let answer = self.caller.call(&call).await.result?;
        let begun: xml::Begun = xml::read(&answer.body).map_err(StoreError::Unavailable)?;
        if !kept {
            self.unkept.lock().insert(begun.upload_id.clone());
        }
        Ok(UploadId(begun.upload_id))
    }

    /// Which checksums of an upload the store keeps.
    fn keeps(&self, upload: &UploadId) -> Option<Crc> {
        self.kept().filter(|_| !self.unkept.lock().contains(&upload.0))
    }

    /// Which checksums the store keeps, unless it is told not to.
    fn kept(&self) -> Option<Crc> {
        match self.sum {
            Sum::Crc(crc) => Some(crc),
            Sum::Md5 => None,
        }
    }

    /// `Store::part`.
    pub(super) async fn upload_part(
        &self,
        key: &str,
        upload: &UploadId,
        number: u16,
        body: Bytes,
    ) -> Result<Part> {
        let (whole, number_text) = (self.whole(key)?, number.to_string());
        let kept = self.keeps(upload);
        let checksum = kept.map(|crc| crc.of(&body));
        let (name, sum) = match checksum {
            Some(sum) => (sum.crc.header(), sum.text()),
            None if self.mixed == Mixed::Md5 => Sum::Md5.header(&body),
            None => self.sum.header(&body),
        };
        let mut call = Call::new(Kind::Part, Method::PUT, Some(&whole))
            .ask("partNumber", &number_text)
            .ask("uploadId", &upload.0)
            .with(name, sum);
        let size = body.len() as u64;
        call.body = body;
        let answer = self.caller.call(&call).await.result?;
        Ok(Part { number, size, etag: etag_of(&answer)?, checksum, arrived: None })
    }

    /// `Store::part_copy`, whose abilities are not looked at.
    pub(super) async fn copy_part(
        &self,
        key: &str,
        upload: &UploadId,
        number: u16,
        from: &str,
        range: Range<u64>,
        state: &ETag,
    ) -> Result<Part> {
        if range.is_empty() {
            return Err(StoreError::Refused(format!("UploadPartCopy: range {range:?} is empty")));
        }
        let (whole, source, number_text) = (self.whole(key)?, self.whole(from)?, number.to_string());
        let mut call = Call::new(Kind::PartCopy, Method::PUT, Some(&whole))
            .ask("partNumber", &number_text)
            .ask("uploadId", &upload.0)
            .with("x-amz-copy-source", self.source(&source))
            .with("x-amz-copy-source-range", format!("bytes={}-{}", range.start, range.end - 1))
            .with("x-amz-copy-source-if-match", &*state.0);
        call.fits = |answer| xml::read::<xml::Made>(&answer.body).map(drop);
        let answer = self.caller.call(&call).await.result?;
        let made: xml::Made = xml::read(&answer.body).map_err(StoreError::Unavailable)?;
        Ok(Part {
            number,
            size: range.end - range.start,
            etag: etag(&made.etag),
            checksum: self.kept().and_then(|crc| made.checksum(crc)),
            arrived: None,
        })
    }

    /// The checksum of what these parts of an upload make.
    pub(super) fn sum_of(&self, upload: &UploadId, parts: &[Part]) -> Option<Checksum> {
        // An upload that another client began may have parts without sums: then none is named.
        let sums = parts.iter().map(|part| (part.checksum, part.size));
        let kept = self.keeps(upload).filter(|_| !parts.is_empty());
        kept.and_then(|crc| checksum::combined(crc, sums))
    }

    /// A call that completes an upload, and the checksum that it names.
    pub(super) fn completes<'a>(
        &self,
        whole: &'a str,
        upload: &'a UploadId,
        parts: &[Part],
        on: &Condition,
    ) -> (Call<'a>, Option<Checksum>) {
        let sum = self.sum_of(upload, parts);
        let mut call = Call::new(Kind::Complete, Method::POST, Some(whole)).ask("uploadId", &upload.0);
        call = conditioned(call.with("content-type", "application/xml"), on);
        if let Some(sum) = sum {
            call = call.with(sum.crc.header(), sum.text()).with(TYPE, WHOLE);
        }
        call.body = Bytes::from(xml::completion(parts, sum.is_some()));
        call.fits = |answer| xml::read::<xml::Made>(&answer.body).map(drop);
        (call, sum)
    }

    /// The ETag that the answer to it names.
    pub(super) fn completed(answer: &Answer) -> Result<ETag> {
        let made: xml::Made = xml::read(&answer.body).map_err(StoreError::Unavailable)?;
        Ok(etag(&made.etag))
    }

    /// `Store::complete`, whose abilities are not looked at.
    pub(super) async fn complete_upload(
        &self,
        key: &str,
        upload: &UploadId,
        parts: &[Part],
        on: &Condition,
    ) -> Result<ETag> {
        let whole = self.whole(key)?;
        let (call, sum) = self.completes(&whole, upload, parts, on);
        let begun = SystemTime::now();
        let Outcome { result, doubt } = self.caller.call(&call).await;
        match result {
            Ok(answer) => {
                self.unkept.lock().remove(&upload.0);
                Self::completed(&answer)
            }
            // The upload has gone, or its object stands in the way of its own condition: by an earlier try, perhaps.
            Err(error @ (StoreError::NotFound | StoreError::Precondition)) if doubt => {
                match self.is_completed(key, parts, sum, begun..).await? {
                    Some(etag) => Ok(etag),
                    // An upload that is there was not completed.
                    None if self.all_parts(key, upload).await.is_ok() => Err(error),
                    None => Err(unknown(Kind::Complete)),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// The ETag of the object, if it is what these parts make: by its checksum, else by an ETag that is the sum of the parts' sums, else by its
    /// size and its time. `when`: what that may be.
    pub(super) async fn is_completed(
        &self,
        key: &str,
        parts: &[Part],
        sum: Option<Checksum>,
        when: impl RangeBounds<SystemTime>,
    ) -> Result<Option<ETag>> {
        let whole = self.whole(key)?;
        let call = Call::new(Kind::Head, Method::HEAD, Some(&whole)).with("x-amz-checksum-mode", "ENABLED");
        let answer: Answer = match self.caller.call(&call).await.result {
            Ok(answer) => answer,
            Err(StoreError::NotFound) => return Ok(None),
            Err(error) => return Err(error),
        };
        let etag = etag_of(&answer)?;
        let made = match (sum, checksum::told(&answer.headers)) {
            (Some(ours), Some(theirs)) if ours.crc == theirs.crc => ours == theirs,
            _ => match checksum::etag_of_parts(parts.iter().map(|part| &*part.etag.0)) {
                Some(expected) => *etag.0 == *expected,
                None => {
                    let size: u64 = parts.iter().map(|part| part.size).sum();
                    let known = parts.iter().all(|part| part.size > 0);
                    let modified = answer.header("last-modified").and_then(clock::http);
                    let late = modified.is_some_and(|time| when.contains(&(time + CLOCKS)));
                    known && late && answer.header("content-length") == Some(size.to_string().as_str())
                }
            },
        };
        Ok(made.then_some(etag))
    }

    /// `Store::abort`.
    pub(super) async fn abort_upload(&self, key: &str, upload: &UploadId) -> Result<()> {
        let whole = self.whole(key)?;
        let call = Call::new(Kind::Abort, Method::DELETE, Some(&whole)).ask("uploadId", &upload.0);
        match self.caller.call(&call).await.result {
            Ok(_) | Err(StoreError::NotFound) => {
                self.unkept.lock().remove(&upload.0);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// `Store::uploads`.
    pub(super) async fn all_uploads(&self, prefix: &str) -> Result<Vec<Upload>> {
        let whole = format!("{}{prefix}", self.caller.config.prefix);
        let mut uploads = self.uploads_of(&whole).await?;
        // MinIO takes a prefix for a whole key, and lists all uploads without one.
        if uploads.is_empty() && !whole.is_empty() {
            uploads = self.uploads_of("").await?;
        }
        let ours = self.caller.config.prefix.as_str();
        let relative = uploads.into_iter().filter(|upload| upload.key.starts_with(&whole));
        Ok(relative.map(|upload| Upload { key: upload.key[ours.len()..].to_owned(), ..upload }).collect())
    }

    /// What the store lists for a prefix, with whole keys.
    async fn uploads_of(&self, whole: &str) -> Result<Vec<Upload>> {
        let mut uploads: Vec<Upload> = Vec::new();
        loop {
            let marker = uploads.last().map(|upload| (upload.key.clone(), upload.id.0.clone()));
            let mut call = Call::new(Kind::Uploads, Method::GET, None)
                .ask("uploads", "")
                .ask("prefix", whole)
                .ask("encoding-type", "url");
            if let Some((key, id)) = &marker {
                call = call.ask("key-marker", key).ask("upload-id-marker", id);
            }
            call.fits = |answer| xml::read::<xml::Uploads>(&answer.body).map(drop);
            let answer = self.caller.call(&call).await.result?;
            let page: xml::Uploads = xml::read(&answer.body).map_err(StoreError::Unavailable)?;
            for upload in page.uploads {
                let Some(key) = self.decoded(&upload.key, &page.encoding_type).await? else { continue };
                let begun = clock::iso(&upload.initiated);
                uploads.push(Upload { key, id: UploadId(upload.upload_id), begun });
            }
            if !page.is_truncated {
                return Ok(uploads);
            }
            if marker == uploads.last().map(|upload| (upload.key.clone(), upload.id.0.clone())) {
                return Err(StoreError::Unavailable(
                    "ListMultipartUploads: the listing does not go on".into(),
                ));
            }
        }
    }

    /// `Store::parts`.
    pub(super) async fn all_parts(&self, key: &str, upload: &UploadId) -> Result<Vec<Part>> {
        let whole = self.whole(key)?;
        let mut parts: Vec<Part> = Vec::new();
        loop {
            let marker = parts.last().map(|part| part.number.to_string());
            let mut call = Call::new(Kind::Parts, Method::GET, Some(&whole)).ask("uploadId", &upload.0);
            if let Some(marker) = &marker {
                call = call.ask("part-number-marker", marker);
            }
            call.fits = |answer| xml::read::<xml::Parts>(&answer.body).map(drop);
            let answer = self.caller.call(&call).await.result?;
            let page: xml::Parts = xml::read(&answer.body).map_err(StoreError::Unavailable)?;
            let before = parts.len();
            parts.extend(page.parts.into_iter().map(|part| Part {
                number: part.part_number,
                size: part.size,
                etag: etag(&part.etag),
                checksum: self.kept().and_then(|crc| part.checksum(crc)),
                arrived: clock::iso(&part.last_modified),
            }));
            parts.sort_by_key(|part| part.number);
            parts.dedup_by_key(|part| part.number);
            if !page.is_truncated {
                return Ok(parts);
            }
            if parts.len() == before {
                return Err(StoreError::Unavailable("ListParts: the listing does not go on".into()));
            }
        }
    }
}

//! What an answer that is not a success means: whether to try again, and what to tell the caller.

use super::clock;
use super::http::Answer;
use super::xml::{self, Complaint};
use crate::store::{Obstacle, StoreError};
use http::StatusCode;
use std::time::{Duration, SystemTime};

/// What to do about it.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Trying again would change nothing.
    Final(StoreError),
    /// Try again, not before that time where the store named one. `done`: the request may have been done nevertheless.
    Again { error: StoreError, wait: Option<Duration>, done: bool },
    /// The bucket is in another region.
    Region(String),
    /// The store's clock is so many seconds ahead of ours.
    Skew(i64),
    /// The keys have expired.
    Expired(StoreError),
}

/// What a call is about, for texts.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    /// Name in the S3 API.
    pub action: &'static str,
    /// The bucket.
    pub bucket: &'a str,
    /// The access key.
    pub key_id: Option<&'a str>,
    /// The answer has no body, whatever it says.
    pub head: bool,
}

/// Judges an answer that is an error, by its code, or by its status where there is no body (HeadObject).
pub fn judge(answer: &Answer, about: About<'_>) -> Verdict {
    let complaint: Complaint = xml::read(&answer.body).unwrap_or_default();
    let status = answer.status;
    let text = match (complaint.code.as_str(), complaint.message.as_str()) {
        ("", _) => format!("{}: {status}", about.action),
        (code, "") => format!("{}: {code}", about.action),
        (code, message) => format!("{}: {code}: {message}", about.action),
    };
    let region = complaint.region.as_deref().or(answer.header("x-amz-bucket-region"));
    let again =
        |done| Verdict::Again { error: StoreError::Unavailable(text.clone()), wait: asked(answer), done };
    match complaint.code.as_str() {
        "NoSuchKey" | "NoSuchUpload" | "NoSuchVersion" => Verdict::Final(StoreError::NotFound),
        "NoSuchBucket" => Verdict::Final(StoreError::NoSuchBucket(about.bucket.into())),
        "PreconditionFailed" => Verdict::Final(StoreError::Precondition),
        // Another request for the same key is under way; S3 asks to try again. The third is Ceph's word.
        "ConditionalRequestConflict" | "OperationAborted" | "ConcurrentModification" => again(false),
        // Trying again makes no room. The words of MinIO and Ceph; others say it by status 507.
        "XMinioStorageFull"
        | "XMinioAdminBucketQuotaExceeded"
        | "InsufficientStorage"
        | "QuotaExceeded"
        | "StorageFull" => Verdict::Final(StoreError::Full(text)),
        // Of stores that keep keys as files: versitygw's words, and MinIO's.
        "ObjectParentIsFile" | "XMinioParentIsObject" => {
            Verdict::Final(StoreError::InTheWay(Obstacle::ParentIsFile, text))
        }
        "ExistingObjectIsDirectory" | "XMinioObjectExistsAsDirectory" => {
            Verdict::Final(StoreError::InTheWay(Obstacle::IsDirectory, text))
        }
        "DirectoryNotEmpty" | "ErrDirectoryNotEmpty" => {
            Verdict::Final(StoreError::InTheWay(Obstacle::NotEmpty, text))
        }
        // The second is versitygw's word, with status 404.
        "InvalidAccessKeyId" | "XAdminUserNotFound" => Verdict::Final(StoreError::Denied(format!(
            "the store does not know the access key {} ({text})",
            about.key_id.unwrap_or_default()
        ))),
        "SignatureDoesNotMatch" => Verdict::Final(StoreError::Denied(format!(
            "the secret key does not belong to the access key {} ({text})",
            about.key_id.unwrap_or_default()
        ))),
        "ExpiredToken" | "TokenRefreshRequired" | "ExpiredTokenException" => {
            Verdict::Expired(StoreError::Denied(format!("the credentials have expired ({text})")))
        }
        "RequestTimeTooSkewed" | "RequestExpired" => match answer.header("date").and_then(clock::http) {
            Some(theirs) => Verdict::Skew(clock::ahead(theirs, SystemTime::now())),
            None => {
                Verdict::Final(StoreError::Denied(format!("the clock of this machine is wrong ({text})")))
            }
        },
        "AuthorizationHeaderMalformed"
        | "PermanentRedirect"
        | "TemporaryRedirect"
        | "IllegalLocationConstraintException" => match region {
            Some(region) => Verdict::Region(region.to_owned()),
            None => Verdict::Final(StoreError::Denied(format!("the bucket is in another region ({text})"))),
        },
        "SlowDown"
        | "SlowDownRead"
        | "SlowDownWrite"
        | "ServiceUnavailable"
        | "Throttling"
        | "ThrottlingException"
        | "RequestLimitExceeded"
        | "TooManyRequests"
        | "BandwidthLimitExceeded"
        | "XMinioServerNotInitialized" => again(false),
        "InternalError" | "InternalFailure" | "RequestTimeout" | "RequestTimeoutException" => again(true),
        // What came is not what was sent.
        "BadDigest"
        | "InvalidDigest"
        | "XAmzContentSHA256Mismatch"
        | "IncompleteBody"
        | "XAmzContentChecksumMismatch" => {
            Verdict::Again { error: StoreError::Damaged(text), wait: None, done: false }
        }
        "NotImplemented" | "MethodNotAllowed" => Verdict::Final(StoreError::NotSupported(about.action)),
        code => by_status(status, code, text, region, asked(answer), about),
    }
}

fn by_status(
    status: StatusCode,
    code: &str,
    text: String,
    region: Option<&str>,
    wait: Option<Duration>,
    about: About<'_>,
) -> Verdict {
    match (status, region) {
        (StatusCode::MOVED_PERMANENTLY | StatusCode::TEMPORARY_REDIRECT, Some(region)) => {
            Verdict::Region(region.to_owned())
        }
        // HeadBucket and HeadObject in the wrong region: no body says why.
        (StatusCode::BAD_REQUEST, Some(region)) if code.is_empty() => Verdict::Region(region.to_owned()),
        // What else is not found is not the object.
        (StatusCode::NOT_FOUND, _) if code == "NotFound" || code.is_empty() && about.head => {
            Verdict::Final(StoreError::NotFound)
        }
        // A store says what it is that it did not find; this is the page of somebody on the way to it, who perhaps finds the store the next time.
        (StatusCode::NOT_FOUND, _) if code.is_empty() => {
            Verdict::Again { error: StoreError::Unavailable(text), wait, done: true }
        }
        (StatusCode::PRECONDITION_FAILED, _) => Verdict::Final(StoreError::Precondition),
        (StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED, _) => {
            let who =
                about.key_id.map_or_else(|| "nobody (anonymous)".to_owned(), |id| format!("access key {id}"));
            Verdict::Final(StoreError::Denied(format!("the store forbids it to {who} ({text})")))
        }
        (StatusCode::NOT_IMPLEMENTED | StatusCode::METHOD_NOT_ALLOWED, _) => {
            Verdict::Final(StoreError::NotSupported(about.action))
        }
        (StatusCode::INSUFFICIENT_STORAGE, _) => Verdict::Final(StoreError::Full(text)),
        // A conflict without a word that says that it passes (above) stays one.
        (StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS, _) => {
            Verdict::Again { error: StoreError::Unavailable(text), wait, done: true }
        }
        (status, _) if status.is_server_error() || status.is_success() => {
            Verdict::Again { error: StoreError::Unavailable(text), wait, done: true }
        }
        _ => Verdict::Final(StoreError::Refused(text)),
    }
}

/// How long the store asks to wait, if it does and that makes sense.
fn asked(answer: &Answer) -> Option<Duration> {
    let seconds: u64 = answer.header("retry-after")?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds.min(600)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use http::HeaderMap;

    fn verdict(status: u16, headers: &[(&'static str, &str)], code: &str) -> Verdict {
        verdict_of(status, headers, code, false)
    }

    fn verdict_of(status: u16, headers: &[(&'static str, &str)], code: &str, head: bool) -> Verdict {
        let body = match code {
            "" => String::new(),
            code => format!("<Error><Code>{code}</Code><Message>told</Message></Error>"),
        };
        let mut all = HeaderMap::new();
        for (name, value) in headers {
            all.insert(*name, value.parse().unwrap());
        }
        let answer =
            Answer { status: StatusCode::from_u16(status).unwrap(), headers: all, body: Bytes::from(body) };
        judge(&answer, About { action: "PutObject", bucket: "logs", key_id: Some("AKID"), head })
    }

    #[test]
    fn causes_are_named() {
        assert_eq!(
            verdict(404, &[], "NoSuchBucket"),
            Verdict::Final(StoreError::NoSuchBucket("logs".into()))
        );
        assert_eq!(verdict_of(404, &[], "", true), Verdict::Final(StoreError::NotFound));
        assert_eq!(verdict(404, &[], "NotFound"), Verdict::Final(StoreError::NotFound));
        assert_eq!(verdict(412, &[], ""), Verdict::Final(StoreError::Precondition));
        assert_eq!(
            verdict(501, &[], "NotImplemented"),
            Verdict::Final(StoreError::NotSupported("PutObject"))
        );
        assert!(matches!(verdict(404, &[], "NoSuchAnything"), Verdict::Final(StoreError::Refused(_))));
        for (code, word) in [
            ("InvalidAccessKeyId", "does not know the access key AKID"),
            ("SignatureDoesNotMatch", "secret key"),
            ("AccessDenied", "forbids"),
            ("RequestTimeTooSkewed", "clock"),
            ("AuthorizationHeaderMalformed", "region"),
        ] {
            let Verdict::Final(StoreError::Denied(text)) = verdict(403, &[], code) else { panic!("{code}") };
            assert!(text.contains(word), "{text}");
        }
        let Verdict::Final(StoreError::Refused(text)) = verdict(400, &[], "EntityTooSmall") else { panic!() };
        assert!(text.contains("EntityTooSmall: told"), "{text}");
    }

    #[test]
    fn conflicts_that_stay_and_full_stores_are_final() {
        let of = |status, code| match verdict(status, &[], code) {
            Verdict::Final(error) => crate::error::of("key", error).errno(),
            verdict => panic!("{status} {code}: {verdict:?}"),
        };
        for (status, code, errno) in [
            (409, "ObjectParentIsFile", libc::ENOTDIR),
            (400, "XMinioParentIsObject", libc::ENOTDIR),
            (409, "ExistingObjectIsDirectory", libc::EISDIR),
            (409, "DirectoryNotEmpty", libc::ENOTEMPTY),
            (409, "BucketAlreadyExists", libc::EIO),
            (409, "", libc::EIO),
            (507, "", libc::ENOSPC),
            (507, "InsufficientStorage", libc::ENOSPC),
            (507, "XMinioStorageFull", libc::ENOSPC),
            (403, "QuotaExceeded", libc::ENOSPC),
            (400, "XMinioAdminBucketQuotaExceeded", libc::ENOSPC),
        ] {
            assert_eq!(of(status, code), errno, "{status} {code}");
        }
        for code in ["OperationAborted", "ConditionalRequestConflict"] {
            assert!(matches!(verdict(409, &[], code), Verdict::Again { done: false, .. }), "{code}");
        }
    }

    #[test]
    fn another_region_is_followed() {
        let headers = [("x-amz-bucket-region", "eu-west-1")];
        assert_eq!(verdict(301, &headers, "PermanentRedirect"), Verdict::Region("eu-west-1".into()));
        assert_eq!(verdict(400, &headers, ""), Verdict::Region("eu-west-1".into()));
    }

    #[test]
    fn what_passes_is_tried_again() {
        let Verdict::Again { wait, done: false, .. } = verdict(503, &[("retry-after", "3")], "SlowDown")
        else {
            panic!()
        };
        assert_eq!(wait, Some(Duration::from_secs(3)));
        for (status, code) in [
            (500, "InternalError"),
            (500, ""),
            (502, ""),
            (404, ""),
            (200, "InternalError"),
            (400, "RequestTimeout"),
        ] {
            assert!(
                matches!(verdict(status, &[], code), Verdict::Again { done: true, .. }),
                "{status} {code}"
            );
        }
        assert!(matches!(
            verdict(400, &[], "BadDigest"),
            Verdict::Again { error: StoreError::Damaged(_), .. }
        ));
        assert!(matches!(verdict(400, &[], "ExpiredToken"), Verdict::Expired(_)));
    }

    #[test]
    fn a_wrong_clock_is_measured_by_the_stores() {
        let now = jiff::Timestamp::now().strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
        let Verdict::Skew(ahead) = verdict(403, &[("date", &now)], "RequestTimeTooSkewed") else { panic!() };
        assert!(ahead.abs() <= 2);
    }
}

//! What a store can do, found by asking it.
//!
//! Stores that speak the S3 API differ in what of it they honour, and some drop what they do not know in silence: a condition that is not looked
//! at would let one writer overwrite another. So each ability is tried on keys of this probe alone, where the right answer is known, when a
//! client that may write is opened: some 30 to 40 requests. Amazon's own service is not asked: its documentation says it.
//! A client that may not write asks nothing and has no ability that writing needs.

use super::call::Call;
use super::checksum::Sum;
use super::counters::Kind;
use super::sign::hex;
use super::{Mixed, S3};
use crate::checksum::Crc;
use crate::store::{Abilities, Condition, Description, ETag, Part, Result, StoreError};
use bytes::Bytes;
use http::Method;
use rand::Rng;
use std::time::Instant;

/// What the keys of a probe begin with, behind the client's own prefix.
pub const PROBE: &str = ".freehold-probe-";

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// What Amazon S3 documents of its general purpose buckets.
pub(super) const AMAZON: Abilities = Abilities {
    part_min: 5 * MIB,
    part_max: 5 * GIB,
    parts_most: 10_000,
    single_max: 5 * GIB,
    conditional: true,
    conditional_delete: true,
    part_copy: true,
    rename: false,
};

/// The limits of S3, and no ability besides.
pub(super) const NOTHING: Abilities =
    Abilities { conditional: false, conditional_delete: false, part_copy: false, rename: false, ..AMAZON };

/// Whether a store said no where it must. Errors that say nothing of that end the probe.
fn refused(result: Result<impl Sized>) -> Result<bool> {
    match result {
        Ok(_) => Ok(false),
        Err(StoreError::Precondition) => Ok(true),
        Err(StoreError::NotSupported(_) | StoreError::Refused(_) | StoreError::InTheWay(..)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// What a store did; `None`: it did not. Errors that say nothing of that end the probe.
fn known<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(done) => Ok(Some(done)),
        Err(
            StoreError::NotSupported(_)
            | StoreError::Refused(_)
            | StoreError::NotFound
            | StoreError::Precondition
            | StoreError::InTheWay(..)
            | StoreError::Denied(_),
        ) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a store did something.
fn done(result: Result<impl Sized>) -> Result<bool> {
    Ok(known(result)?.is_some())
}

/// What came of copying a part.
#[derive(PartialEq, Eq)]
enum Copied {
    Right,
    /// The object's checksum is not that of its content: no reader that verifies could read it.
    Wrong,
    Refused,
}

impl S3 {
    /// Finds out, and removes what it made. Where an answer was lost that would have told, everything is tried anew on other keys, as long as there is
    /// time.
    pub(super) async fn probe(&mut self) -> Result<()> {
        let until = Instant::now() + self.caller.config.deadline;
        loop {
            match self.probe_once().await {
                Err(StoreError::Unavailable(text)) if Instant::now() < until => {
                    tracing::debug!("finding out what the store can do, again: {text}");
                }
                done => return done,
            }
        }
    }

    async fn probe_once(&mut self) -> Result<()> {
        let name = format!("{PROBE}{}", hex(&rand::rng().random::<[u8; 8]>()));
        let keys = ["", "-parts", "-moved", "-sum", "-copy"].map(|end| format!("{name}{end}"));
        let found = self.try_out(&keys).await;
        for key in &keys {
            let removed = self.delete_if(key, &Condition::Always).await;
            // What was found counts first.
            if found.is_ok() {
                removed?;
            }
        }
        self.abilities = found?;
        Ok(())
    }

    async fn try_out(&mut self, keys: &[String; 5]) -> Result<Abilities> {
        let [key, parts, moved, sum, copy] = keys;
        let nothing = Description::default();
        self.sum = self.verifies(sum).await?;
        // With that checksum: versitygw gives the one of the whole to a part that is copied from it.
        let state = self.put_if(key, Bytes::from_static(b"12"), &nothing, &Condition::Always).await?;
        // A try before this one may have ended between finding out and verifying.
        self.mixed = Mixed::Kept;
        let mut copied = self.copies_parts(key, copy, &state).await?;
        if copied != Copied::Right && self.sum != Sum::Md5 {
            // Perhaps without checksums that the store keeps.
            self.mixed = Mixed::Verified;
            copied = self.copies_parts(key, copy, &state).await?;
            if copied != Copied::Right {
                self.mixed = Mixed::Kept;
            } else if !self.verifies_unkept(copy).await? {
                self.mixed = Mixed::Md5;
            }
        }
        let other = Condition::Is(ETag("\"00000000000000000000000000000000\"".into()));
        let unseen = async {
            let upload = self.begin_upload(key, &nothing, true).await?;
            let part = self.upload_part(key, &upload, 1, Bytes::from_static(b"1")).await?;
            let conditional = refused(self.complete_upload(key, &upload, &[part], &Condition::Absent).await);
            self.abort_upload(key, &upload).await?;
            conditional
        };
        let (small, unseen) = tokio::join!(self.small_parts(parts), unseen);
        let (part_min, mut conditional) = (if small? { 1 } else { AMAZON.part_min }, unseen?);
        for on in [&Condition::Absent, &other] {
            conditional &= refused(self.put_if(key, Bytes::from_static(b"2"), &nothing, on).await)?;
        }
        let conditional_delete = refused(self.delete_if(key, &other).await)?;
        let rename = self.renames(key, moved).await?;
        let part_copy = copied == Copied::Right;
        Ok(Abilities { part_min, conditional, conditional_delete, part_copy, rename, ..AMAZON })
    }

    /// Whether an object can be made of a part of another, and be read with its checksum.
    async fn copies_parts(&self, from: &str, to: &str, state: &ETag) -> Result<Copied> {
        let kept = self.mixed == Mixed::Kept;
        let upload = self.begin_upload(to, &Description::default(), kept).await?;
        let made = match self.copy_part(to, &upload, 1, from, 0..1, state).await {
            Ok(part) => self.complete_upload(to, &upload, &[part], &Condition::Always).await.map(drop),
            Err(error) => Err(error),
        };
        if !done(made)? {
            self.abort_upload(to, &upload).await?;
            return Ok(Copied::Refused);
        }
        let whole = self.whole(to)?;
        // What is damaged on its way is right another time.
        for _ in 0..3 {
            match self.caller.once(&self.reads(&whole, 1)).await {
                Ok(answer) if *answer.body == *b"1" => return Ok(Copied::Right),
                Ok(_) => break,
                Err(StoreError::Damaged(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Copied::Wrong)
    }

    /// Which checksum the store verifies: it must refuse a wrong one, and keep a right one of a whole object that was made of parts.
    async fn verifies(&mut self, key: &str) -> Result<Sum> {
        for crc in Crc::ALL {
            self.sum = Sum::Crc(crc);
            let whole = self.whole(key)?;
            let call = Call::new(Kind::Put, Method::PUT, Some(&whole));
            // CRC64NVME is never composite.
            if self.refuses(call).await? && (crc == Crc::Crc64Nvme || self.sums_wholes(key, crc).await?) {
                return Ok(self.sum);
            }
        }
        Ok(Sum::Md5)
    }

    /// Whether the store refuses a body with a wrong checksum.
    async fn refuses(&self, call: Call<'_>) -> Result<bool> {
        let (name, wrong) = self.sum.header(b"other");
        let mut call = call.with(name, wrong);
        call.body = Bytes::from_static(b"these");
        match self.caller.once(&call).await {
            Err(StoreError::Damaged(_) | StoreError::Refused(_)) => Ok(true),
            Ok(_) | Err(StoreError::NotSupported(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether an object that is made of parts has the checksum of the whole.
    async fn sums_wholes(&self, key: &str, crc: Crc) -> Result<bool> {
        let nothing = Description::default();
        let Some(upload) = known(self.begin_upload(key, &nothing, true).await)? else { return Ok(false) };
        let body = Bytes::from_static(b"1");
        let made = match self.upload_part(key, &upload, 1, body.clone()).await {
            Ok(part) => {
                let whole = self.whole(key)?;
                let (call, _) = self.completes(&whole, &upload, &[part], &Condition::Always);
                self.caller.once(&call).await.and_then(|answer| Self::completed(&answer))
            }
            Err(error) => Err(error),
        };
        let made = match made {
            // So looks a sum of parts' sums.
            Err(StoreError::Damaged(_)) => None,
            made => known(made)?,
        };
        let Some(state) = made else {
            self.abort_upload(key, &upload).await?;
            return Ok(false);
        };
        // Asking for the object notes its checksum.
        self.head_if(key, Some(&state)).await?;
        Ok(self.sums.get(key, &state) == Some(crc.of(&body)))
    }

    /// Whether the store verifies checksums of parts that it does not keep: it must take a right one and refuse a wrong one.
    async fn verifies_unkept(&self, key: &str) -> Result<bool> {
        let upload = self.begin_upload(key, &Description::default(), false).await?;
        let right = done(self.upload_part(key, &upload, 1, Bytes::from_static(b"these")).await)?;
        let whole = self.whole(key)?;
        let call = Call::new(Kind::Part, Method::PUT, Some(&whole))
            .ask("partNumber", "1")
            .ask("uploadId", &upload.0);
        let wrong = self.refuses(call).await?;
        self.abort_upload(key, &upload).await?;
        Ok(right && wrong)
    }

    /// Whether parts may be smaller than those of S3.
    async fn small_parts(&self, key: &str) -> Result<bool> {
        let upload = self.begin_upload(key, &Description::default(), true).await?;
        let mut parts: Vec<Part> = Vec::new();
        for number in 1..=2 {
            parts.push(self.upload_part(key, &upload, number, Bytes::from_static(b"1")).await?);
        }
        match done(self.complete_upload(key, &upload, &parts, &Condition::Always).await) {
            Ok(true) => Ok(true),
            other => {
                self.abort_upload(key, &upload).await?;
                other
            }
        }
    }

    /// Whether an object can be moved, with its content, from a key that is empty then.
    async fn renames(&self, from: &str, to: &str) -> Result<bool> {
        let state = match self.head_if(from, None).await {
            Ok(object) => object,
            // A condition on the delete before was dropped.
            Err(StoreError::NotFound) => {
                self.put_if(from, Bytes::from_static(b"1"), &Description::default(), &Condition::Always)
                    .await?;
                self.head_if(from, None).await?
            }
            Err(error) => return Err(error),
        };
        if !done(self.rename_if(from, to, &state.etag, &Condition::Absent).await)? {
            return Ok(false);
        }
        // A store that does not know it may have made an empty object.
        let left = matches!(self.head_if(from, None).await, Err(StoreError::NotFound));
        let there = match self.head_if(to, None).await {
            Ok(object) => object.size == state.size && object.etag == state.etag,
            Err(StoreError::NotFound) => false,
            Err(error) => return Err(error),
        };
        Ok(left && there)
    }
}

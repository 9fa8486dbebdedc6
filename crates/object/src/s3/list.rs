//! Listings by pages.

use super::S3;
use super::call::Call;
use super::clock;
use super::counters::Kind;
use super::encode;
use super::objects::{etag, kept};
use super::xml::{self, Listing};
use crate::store::{Entry, Metadata, Object, Page, Result, STORAGE_CLASS, StoreError};
use http::Method;
use std::time::SystemTime;

/// So often a listing that came damaged is asked for again.
const DAMAGED: u32 = 5;

/// How a store that encodes keys in its answers does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writing {
    /// Percent-encoded, with '+' for itself.
    Percent,
    /// Percent-encoded, with '+' for a space.
    Form,
}

impl Writing {
    /// How a store writes that answers the prefix "+ " so. Whoever encodes the plus uses it for the space, if at all. `None`: it does not
    /// encode the prefix, which says nothing of keys.
    fn of(echo: &str) -> Option<Writing> {
        let found = if echo.starts_with('+') { Writing::Percent } else { Writing::Form };
        (!echo.contains(' ')).then_some(found)
    }
}

impl S3 {
    /// `Store::list`. `most`: not more names than that.
    pub(super) async fn list_page(
        &self,
        prefix: &str,
        delimiter: bool,
        after: Option<&str>,
        most: Option<&str>,
    ) -> Result<Page> {
        let whole = format!("{}{prefix}", self.caller.config.prefix);
        let listing = self.listing(&whole, delimiter, after, most).await?;
        let mut entries = Vec::with_capacity(listing.contents.len() + listing.common_prefixes.len());
        for object in &listing.contents {
            let Some(key) = self.relative(&object.key, &listing.encoding_type).await? else { continue };
            let modified = clock::iso(&object.last_modified).unwrap_or(SystemTime::UNIX_EPOCH);
            let etag = etag(&object.etag);
            let class = object.storage_class.as_deref().and_then(|class| kept(STORAGE_CLASS, class));
            let headers = class.map(|class| (STORAGE_CLASS.to_owned(), class)).into_iter().collect();
            let object = Object {
                size: object.size,
                etag,
                modified,
                content_type: None,
                metadata: Metadata::new(),
                headers,
            };
            entries.push(Entry::Object(key, object));
        }
        for common in &listing.common_prefixes {
            entries.extend(self.relative(&common.prefix, &listing.encoding_type).await?.map(Entry::Prefix));
        }
        // Both kinds in one order, that of the keys' bytes.
        entries.sort_by(|one, other| one.key().cmp(other.key()));
        let next = match (listing.is_truncated, listing.next_continuation_token) {
            (true, Some(token)) if Some(token.as_str()) != after => Some(token),
            (true, _) => {
                return Err(StoreError::Unavailable("ListObjectsV2: the listing does not go on".into()));
            }
            (false, _) => None,
        };
        Ok(Page { entries, next })
    }

    /// One page as the store wrote it. `most`: not more names than that.
    pub(super) async fn listing(
        &self,
        whole: &str,
        delimiter: bool,
        after: Option<&str>,
        most: Option<&str>,
    ) -> Result<Listing> {
        let mut call = Call::new(Kind::List, Method::GET, None)
            .ask("list-type", "2")
            .ask("prefix", whole)
            .ask("encoding-type", "url");
        for (name, value) in
            [("delimiter", delimiter.then_some("/")), ("continuation-token", after), ("max-keys", most)]
        {
            if let Some(value) = value {
                call = call.ask(name, value);
            }
        }
        // Reading it takes long, so that it is done once.
        let mut tries = 0;
        loop {
            match self.caller.call(&call).await.result {
                Ok(answer) => match xml::read(&answer.body) {
                    Err(text) if tries >= DAMAGED => return Err(StoreError::Unavailable(text)),
                    Err(_) => tries += 1,
                    Ok(listing) => return Ok(listing),
                },
                // A bucket is always there to be listed, if it exists.
                Err(StoreError::NotFound) => {
                    return Err(StoreError::NoSuchBucket(self.caller.config.bucket.clone()));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// A key of an answer, without the prefix of this client. `None`: nothing that this client can speak of, which is logged.
    async fn relative(&self, written: &str, encoding: &Option<String>) -> Result<Option<String>> {
        let Some(key) = self.decoded(written, encoding).await? else { return Ok(None) };
        let prefix = self.caller.config.prefix.as_str();
        let relative = key.strip_prefix(prefix).map(str::to_owned);
        if relative.is_none() {
            tracing::warn!("the listing has a key that does not begin with {prefix:?}: {key}");
        }
        Ok(relative)
    }

    /// A whole key of an answer. `None`: it is not UTF-8, which is logged.
    pub(super) async fn decoded(&self, written: &str, encoding: &Option<String>) -> Result<Option<String>> {
        let writing = match encoding.as_deref() {
            // Only a plus is written in two manners.
            Some("url") if written.contains('+') => match self.writing.get() {
                Some(&known) => known,
                None => match self.find_writing(written).await? {
                    Some(found) => *self.writing.get_or_init(|| async { found }).await,
                    // It is gone, or an upload that has no object yet; those that do not encode prefixes write keys as forms do.
                    None => Writing::Form,
                },
            },
            Some("url") => Writing::Percent,
            // A store that does not encode says nothing of it, or names no encoding.
            _ => return Ok(Some(written.to_owned())),
        };
        let key = encode::decoded(written, writing == Writing::Form);
        if key.is_none() {
            tracing::warn!("the listing has a key that is not UTF-8: {written}");
        }
        Ok(key)
    }

    /// Finds out how keys are written: by a prefix that comes back in the answer, or by what is listed under either name that this one, which
    /// has a plus, can mean. A space that is a plus in a listing is written as forms do; a plus that is one is not. `None`: nothing is.
    async fn find_writing(&self, written: &str) -> Result<Option<Writing>> {
        if let Some(found) = Writing::of(&self.listing("+ ", false, None, Some("1")).await?.prefix) {
            return Ok(Some(found));
        }
        for writing in [Writing::Form, Writing::Percent] {
            let Some(key) = encode::decoded(written, writing == Writing::Form) else { continue };
            let there = self.listing(&key, false, None, Some("1")).await?;
            if there.contents.iter().any(|object| object.key.starts_with(written)) {
                return Ok(Some(writing));
            }
        }
        Ok(None)
    }
}

impl Entry {
    fn key(&self) -> &str {
        match self {
            Entry::Object(key, _) | Entry::Prefix(key) => key,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_writing_is_told_by_an_echo() {
        assert_eq!(Writing::of("%2B+"), Some(Writing::Form));
        assert_eq!(Writing::of("%2B%20"), Some(Writing::Form));
        assert_eq!(Writing::of("+%20"), Some(Writing::Percent));
        assert_eq!(Writing::of("+ "), None);
    }
}

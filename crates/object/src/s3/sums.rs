//! Checksums of whole objects that the store has told lately, for who reads these objects in pieces: a piece has no checksum of its own.

use super::checksum::told;
use crate::checksum::Checksum;
use crate::store::ETag;
use http::HeaderMap;
use parking_lot::Mutex;
use std::collections::HashMap;

/// How many are kept.
const MOST: usize = 4096;

/// See the module.
#[derive(Debug, Default)]
pub struct Sums(Mutex<HashMap<(Box<str>, ETag), Checksum>>);

impl Sums {
    /// Keeps what headers tell of an object in a state.
    pub fn note(&self, key: &str, etag: &ETag, headers: &HeaderMap) {
        let Some(sum) = told(headers) else { return };
        let mut all = self.0.lock();
        if all.len() >= MOST {
            all.clear();
        }
        all.insert((key.into(), etag.clone()), sum);
    }

    /// That of an object in a state.
    pub fn get(&self, key: &str, etag: &ETag) -> Option<Checksum> {
        self.0.lock().get(&(key.into(), etag.clone())).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::Crc;

    #[test]
    fn what_is_known_belongs_to_a_state() {
        let (sums, mut headers) = (Sums::default(), HeaderMap::new());
        let (one, two) = (ETag("\"1\"".into()), ETag("\"2\"".into()));
        sums.note("a", &one, &headers);
        headers.insert("x-amz-checksum-crc64nvme", "AAAAAAAAAAE=".parse().unwrap());
        sums.note("a", &two, &headers);
        let sum = Checksum { crc: Crc::Crc64Nvme, value: 1 };
        assert_eq!((sums.get("a", &one), sums.get("a", &two), sums.get("b", &two)), (None, Some(sum), None));
        headers.insert("x-amz-checksum-type", "COMPOSITE".parse().unwrap());
        sums.note("b", &two, &headers);
        assert_eq!(sums.get("b", &two), None);
        headers.remove("x-amz-checksum-type");
        (0..MOST).for_each(|n| sums.note(&n.to_string(), &one, &headers));
        assert!(sums.0.lock().len() <= MOST && sums.get("4095", &one).is_some());
    }
}

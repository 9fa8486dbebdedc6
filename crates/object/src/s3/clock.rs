//! Points in time as the S3 API writes them.

use jiff::Timestamp;
use std::time::{Duration, SystemTime};

/// As in `x-amz-date`: `20130524T000000Z`. `offset`: how many seconds the store's clock is ahead of ours.
pub fn stamp(now: SystemTime, offset: i64) -> String {
    let seconds = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs() as i64);
    let at = Timestamp::from_second(seconds.saturating_add(offset)).unwrap_or(Timestamp::UNIX_EPOCH);
    at.strftime("%Y%m%dT%H%M%SZ").to_string()
}

/// A time in XML or JSON: `2009-10-12T17:50:30.000Z`.
pub fn iso(text: &str) -> Option<SystemTime> {
    text.trim().parse::<Timestamp>().ok().map(SystemTime::from)
}

/// A time in a header: `Wed, 12 Oct 2009 17:50:00 GMT`.
pub fn http(text: &str) -> Option<SystemTime> {
    jiff::fmt::rfc2822::parse(text.trim()).ok().map(|zoned| zoned.timestamp().into())
}

/// How many seconds `theirs` is ahead of `ours`.
pub fn ahead(theirs: SystemTime, ours: SystemTime) -> i64 {
    match theirs.duration_since(ours) {
        Ok(more) => more.as_secs() as i64,
        Err(less) => -(less.duration().as_secs() as i64),
    }
}

/// How long after `now` the time is; zero where it has passed.
pub fn left(until: SystemTime, now: SystemTime) -> Duration {
    until.duration_since(now).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_written() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_369_353_600);
        assert_eq!(stamp(at, 0), "20130524T000000Z");
        assert_eq!(stamp(at, -61), "20130523T235859Z");
        assert_eq!(iso("2013-05-24T00:00:00.000Z"), Some(at));
        assert_eq!(http("Fri, 24 May 2013 00:00:00 GMT"), Some(at));
        assert_eq!(iso("yesterday"), None);
        assert_eq!(http("yesterday"), None);
        assert_eq!(ahead(at, at + Duration::from_secs(5)), -5);
    }
}

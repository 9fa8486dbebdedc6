//! Asynchronous events: what a controller says without being asked (NVMe 1.4, section 5.2).

use format::nvme::health::{self, Health};
use std::fmt;
use zerocopy::FromBytes;

/// What is asked to be told of: the critical warnings of NVM subsystems with no persistent memory region, bits 0 to 4 (5.21.1.11).
pub(super) const WANTED: u32 = 0x1F;

const ERROR: u8 = 0;
const HEALTH: u8 = 1;
const NOTICE: u8 = 2;

/// One of them.
#[derive(Clone, Debug)]
pub(super) struct Event {
    kind: u8,
    information: u8,
    /// The log page that says more.
    pub page: u32,
    /// What the health log warned of when it was read.
    warnings: Vec<String>,
}

impl Event {
    /// Dword 0 of the completion: type 2:0, information 15:8, log page 23:16.
    pub fn new(dw0: u32) -> Event {
        let [kind, information, page, _] = dw0.to_le_bytes();
        Event { kind: kind & 7, information, page: page.into(), warnings: Vec::new() }
    }

    /// With what stands in its log page.
    pub fn with(mut self, page: &[u8; size_of::<Health>()]) -> Event {
        if self.kind == HEALTH && self.page == health::LOG_PAGE {
            self.warnings = Health::read_from_bytes(page).map_or(Vec::new(), |health| health.warnings());
        }
        self
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match (self.kind, self.information) {
            (ERROR, 0) => "an error: a doorbell of no queue was written",
            (ERROR, 1) => "an error: an invalid value was written to a doorbell",
            (ERROR, 2) => "an error: its diagnosis of itself failed",
            (ERROR, 3) => "an error inside that lasts",
            (ERROR, 4) => "an error inside that has passed",
            (ERROR, 5) => "an error: its firmware could not be loaded",
            (HEALTH, 0) => "a warning: it is less reliable",
            (HEALTH, 1) => "a warning: a temperature is beyond a threshold",
            (HEALTH, 2) => "a warning: the available spare is below its threshold",
            (NOTICE, 0) => "a notice: a namespace was changed",
            (NOTICE, 1) => "a notice: its firmware is being exchanged",
            (kind, information) => {
                return write!(f, "an event of type {kind}, information {information:#x}");
            }
        };
        f.write_str(words)?;
        match self.warnings.is_empty() {
            true => Ok(()),
            false => write!(f, " (now: {})", self.warnings.join("; ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::{FromZeros, IntoBytes};

    #[test]
    fn events_in_words() {
        assert_eq!(Event::new(0x0001_0000).to_string(), "an error: a doorbell of no queue was written");
        assert_eq!(Event::new(0x0004_0002).to_string(), "a notice: a namespace was changed");
        assert_eq!(Event::new(0x00C0_1107).to_string(), "an event of type 7, information 0x11");
        let mut page = Health::new_zeroed();
        page.critical_warning = 0b1001;
        let page: &[u8; 512] = page.as_bytes().try_into().unwrap();
        let event = Event::new(0x0002_0201);
        assert_eq!(event.page, health::LOG_PAGE);
        assert_eq!(event.to_string(), "a warning: the available spare is below its threshold");
        let told = event.with(page).to_string();
        let now = format!("(now: {}; {})", health::WARNINGS[0], health::WARNINGS[3]);
        assert!(told.ends_with(&now), "{told}");
        assert_eq!(Event::new(0x0001_0300).with(page).to_string(), "an error inside that lasts");
    }
}

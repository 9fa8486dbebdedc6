//! The log page SMART / Health Information (section 5.14.1.2).

use crate::layout::media_struct;
use zerocopy::little_endian::{U16, U32, U128};

/// Log Page Identifier of [`Health`] (5.14.1.2).
pub const LOG_PAGE: u32 = 0x02;
/// What each bit of `Health::critical_warning` says, from bit 0; also what the same bit of the feature Asynchronous Event Configuration asks
/// to be told of (5.21.1.11).
pub const WARNINGS: [&str; 6] = [
    "the available spare is below its threshold",
    "a temperature is beyond a threshold",
    "reliability is degraded by errors of the media or inside",
    "the media are read-only",
    "the backup of volatile memory has failed",
    "the persistent memory region is read-only or unreliable",
];
/// Bytes of a unit in which data read and written are counted: 1000 times 512, rounded up.
pub const DATA_UNIT: u128 = 512_000;

media_struct! {
    /// SMART / Health Information (5.14.1.2). Counters are those of the controller's life, over all power cycles.
    pub struct Health: 512 {
        /// Critical Warning, see `WARNINGS`
        critical_warning: u8,
        /// Composite Temperature, kelvins
        temperature: U16,
        /// Available Spare, percent
        spare: u8,
        /// Available Spare Threshold, percent
        spare_threshold: u8,
        /// Percentage Used of the life that the vendor expects; may be above 100, 255 stands for more
        used: u8,
        /// Endurance Group Critical Warning Summary
        endurance_warning: u8,
        /// Reserved
        reserved7: [u8; 25],
        /// Data Units Read, see `DATA_UNIT`
        data_read: U128,
        /// Data Units Written
        data_written: U128,
        /// Host Read Commands
        read_commands: U128,
        /// Host Write Commands
        write_commands: U128,
        /// Controller Busy Time, minutes
        busy_minutes: U128,
        /// Power Cycles
        power_cycles: U128,
        /// Power On Hours
        power_on_hours: U128,
        /// Unsafe Shutdowns: power was lost without a shutdown
        unsafe_shutdowns: U128,
        /// Media and Data Integrity Errors
        media_errors: U128,
        /// Number of Error Information Log Entries
        error_entries: U128,
        /// Warning Composite Temperature Time, minutes
        warning_minutes: U32,
        /// Critical Composite Temperature Time, minutes
        critical_minutes: U32,
        /// Temperature Sensors 1 to 8, kelvins; 0 there is none
        sensors: [U16; 8],
        /// Thermal management: transitions and times
        thermal: [U32; 4],
        /// Reserved
        reserved232: [u8; 280],
    }
}

impl Health {
    /// What it warns of, in words; nothing is good.
    pub fn warnings(&self) -> Vec<String> {
        let set = (0..8).filter(|bit| self.critical_warning >> bit & 1 == 1);
        let told = |bit: usize| match WARNINGS.get(bit) {
            Some(words) => words.to_string(),
            None => format!("a warning of unknown meaning, bit {bit}"),
        };
        let group = "an endurance group has a critical warning";
        set.map(told).chain((self.endurance_warning != 0).then(|| group.to_string())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn fields_stand_where_the_specification_puts_them() {
        assert_eq!((offset_of!(Health, temperature), offset_of!(Health, used)), (1, 5));
        assert_eq!((offset_of!(Health, data_read), offset_of!(Health, data_written)), (32, 48));
        assert_eq!((offset_of!(Health, read_commands), offset_of!(Health, busy_minutes)), (64, 96));
        assert_eq!((offset_of!(Health, power_cycles), offset_of!(Health, unsafe_shutdowns)), (112, 144));
        assert_eq!((offset_of!(Health, media_errors), offset_of!(Health, error_entries)), (160, 176));
        assert_eq!((offset_of!(Health, warning_minutes), offset_of!(Health, sensors)), (192, 200));
        assert_eq!((offset_of!(Health, thermal), offset_of!(Health, reserved232)), (216, 232));
    }
}

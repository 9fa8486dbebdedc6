//! Where a device stands on the PCI buses.

use super::DeviceError;
use std::fmt;
use std::str::FromStr;

/// A PCI address, written `0000:04:00.0`: domain, bus, device, function. Ordered as they are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl fmt::Display for Address {
    /// As the kernel names the device in sysfs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

impl FromStr for Address {
    type Err = DeviceError;

    /// As lspci(8) writes it, with the domain or without (then 0000).
    fn from_str(text: &str) -> Result<Address, DeviceError> {
        let hex = |digits: &str, max: u32| {
            // from_str_radix would take a sign.
            let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
            u32::from_str_radix(digits, 16).ok().filter(|n| plain && *n <= max)
        };
        let parse = || {
            let (rest, function) = text.rsplit_once('.')?;
            let (rest, device) = rest.rsplit_once(':')?;
            let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
            Some(Address {
                domain: hex(domain, u32::MAX)?,
                bus: hex(bus, 0xff)? as u8,
                device: hex(device, 0x1f)? as u8,
                function: hex(function, 7)? as u8,
            })
        };
        parse().ok_or_else(|| DeviceError::Address { text: text.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        for (text, whole) in
            [("0000:04:00.0", "0000:04:00.0"), ("4:0.1", "0000:04:00.1"), ("10000:E1:1f.7", "10000:e1:1f.7")]
        {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), whole);
        }
        for wrong in
            ["", "nvme0", "/dev/nvme0n1", "04:00", "04:20.0", "04:00.8", "+4:00.0", "../4:00.0", "4:0.0 "]
        {
            assert_eq!(wrong.parse::<Address>().unwrap_err().errno(), libc::EINVAL, "{wrong}");
        }
    }
}

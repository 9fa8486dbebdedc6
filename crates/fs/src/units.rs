//! Sizes as people write and read them, in options and reports of every door and engine.

/// Reads a size: a number, with a fraction if you like, and a suffix k, m, g or t (powers of 1024; `KiB`, `MB`, ... mean the
/// same).
///
/// # Errors
/// A sentence that says what a size looks like.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is not a size; write it as in 512m, 8G or 1.5t");
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().to_ascii_lowercase();
    let shift = match unit.strip_suffix("ib").or(unit.strip_suffix('b')).unwrap_or(&unit) {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(wrong()),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift).ok_or_else(wrong);
    }
    let bytes = number.parse::<f64>().map_err(|_| wrong())? * (1u64 << shift) as f64;
    if bytes < (1u64 << 60) as f64 { Ok(bytes as u64) } else { Err(wrong()) }
}

/// A size for people: `1.5 GiB`.
pub fn format_size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut unit = 0;
    let mut value = bytes as f64;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 || value.fract() == 0.0 {
        format!("{value} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("4k", 4096),
            ("8G", 8 << 30),
            ("1.5GiB", 3 << 29),
            ("2TB", 2 << 40),
            ("7 MiB", 7 << 20),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for bad in ["", "g", "8x", "-1", "1e9", "99999999999g", "1.2.3m", "."] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
        assert_eq!(format_size(1023), "1023 B");
        assert_eq!(format_size(3 << 29), "1.5 GiB");
        assert_eq!(format_size(8 << 30), "8 GiB");
        assert_eq!(format_size((1 << 30) - 1), "1.0 GiB");
    }
}

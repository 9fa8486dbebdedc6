//! What can be wrong with bytes read from a medium.

use crate::ids::BlockNo;
use std::fmt;

/// Result of parsing bytes of the format.
pub type Result<T> = std::result::Result<T, FormatError>;

/// Bytes that are not what the format says. Carries what was expected and what was found; the place is added by the
/// caller that knows it with [`FormatError::at`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct FormatError {
    /// The structure that was parsed.
    pub structure: &'static str,
    /// The block it was read from, when known.
    pub block: Option<BlockNo>,
    /// What is wrong with it.
    pub fault: Fault,
}

/// The kinds of damage that a parser tells apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The magic number is another.
    Magic {
        /// What the format says.
        expected: u64,
        /// What was read.
        found: u64,
    },
    /// The checksum over the bytes differs from the one stored with them.
    Checksum {
        /// What was stored.
        stored: u32,
        /// What the bytes give.
        computed: u32,
    },
    /// A field holds a value outside of its range.
    Range {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The largest value allowed.
        max: u64,
    },
    /// The bytes end before the structure does.
    Short {
        /// Bytes needed.
        need: usize,
        /// Bytes there.
        have: usize,
    },
    /// A rule between fields or entries is broken.
    Rule(&'static str),
}

impl FormatError {
    /// An error without a place.
    pub fn new(structure: &'static str, fault: Fault) -> Self {
        FormatError { structure, block: None, fault }
    }
    /// The same error with the block it was read from.
    pub fn at(mut self, block: BlockNo) -> Self {
        self.block = Some(block);
        self
    }
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.structure)?;
        if let Some(block) = self.block {
            write!(f, " at {block:?}")?;
        }
        match &self.fault {
            Fault::Magic { expected, found } => write!(f, ": magic is {found:#x}, expected {expected:#x}"),
            Fault::Checksum { stored, computed } => {
                write!(f, ": checksum is {computed:#010x}, stored {stored:#010x}")
            }
            Fault::Range { field, value, max } => write!(f, ": {field} is {value}, at most {max} allowed"),
            Fault::Short { need, have } => write!(f, ": {have} bytes, {need} needed"),
            Fault::Rule(rule) => write!(f, ": {rule}"),
        }
    }
}

/// Fails with [`Fault::Range`] when `value` exceeds `max`.
pub fn check_range(structure: &'static str, field: &'static str, value: u64, max: u64) -> Result<()> {
    if value > max {
        return Err(FormatError::new(structure, Fault::Range { field, value, max }));
    }
    Ok(())
}

/// Fails with [`Fault::Rule`] unless `holds`.
pub fn check_rule(structure: &'static str, holds: bool, rule: &'static str) -> Result<()> {
    if !holds {
        return Err(FormatError::new(structure, Fault::Rule(rule)));
    }
    Ok(())
}

/// Fails with [`Fault::Magic`] unless both are equal.
pub fn check_magic(structure: &'static str, expected: u64, found: u64) -> Result<()> {
    if expected != found {
        return Err(FormatError::new(structure, Fault::Magic { expected, found }));
    }
    Ok(())
}

/// Fails with [`Fault::Checksum`] unless both are equal.
pub fn check_crc(structure: &'static str, stored: u32, computed: u32) -> Result<()> {
    if stored != computed {
        return Err(FormatError::new(structure, Fault::Checksum { stored, computed }));
    }
    Ok(())
}

/// Fails with [`Fault::Short`] when there are fewer than `need` bytes.
pub fn check_len(structure: &'static str, have: usize, need: usize) -> Result<()> {
    if have < need {
        return Err(FormatError::new(structure, Fault::Short { need, have }));
    }
    Ok(())
}

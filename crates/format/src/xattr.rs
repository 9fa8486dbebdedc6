//! Extended attributes: encoded in a row, in the inode block when they fit there, else in blocks of their own.
//!
//! Encoding of one attribute: name length (u16), zero (u16), value length (u32), name with its namespace prefix, value.

use crate::error::{Result, check_len, check_magic, check_range, check_rule};
use crate::ids::Ino;
use crate::layout::media_struct;
use crate::limits::*;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

/// "FHXA"
pub const MAGIC: u32 = u32::from_le_bytes(*b"FHXA");
const NAME: &str = "extended attributes";
const ENTRY: usize = 8;

media_struct! {
    /// Header in front of extended attributes that stand in blocks of their own.
    pub struct XattrHeader: 16 {
        /// "FHXA"
        magic: U32,
        /// bytes of the attributes behind this header
        len: U32,
        /// the inode they belong to
        ino: U64,
    }
}

/// One attribute: its full name, such as `user.author`, and its value.
pub type Xattr = (Box<[u8]>, Box<[u8]>);

/// Bytes that these attributes take.
pub fn encoded_len(xattrs: &[Xattr]) -> usize {
    xattrs.iter().map(|(n, v)| ENTRY + n.len() + v.len()).sum()
}

/// The attributes in a row.
pub fn encode(xattrs: &[Xattr]) -> Vec<u8> {
    let mut out = Vec::with_capacity(encoded_len(xattrs));
    for (name, value) in xattrs {
        out.extend_from_slice(&(name.len() as u16).to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&(value.len() as u32).to_le_bytes());
        out.extend_from_slice(name);
        out.extend_from_slice(value);
    }
    out
}

/// The reverse of [`encode`].
pub fn decode(mut bytes: &[u8]) -> Result<Vec<Xattr>> {
    let mut out = Vec::new();
    while !bytes.is_empty() {
        check_len(NAME, bytes.len(), ENTRY)?;
        let name_len = u16::from_le_bytes([bytes[0], bytes[1]]) as usize;
        check_rule(NAME, bytes[2] == 0 && bytes[3] == 0, "reserved bytes are not zero")?;
        let value_len = u32::from_le_bytes(bytes[4..8].try_into().expect("four bytes")) as usize;
        check_range(NAME, "name length", name_len as u64, NAME_MAX as u64)?;
        check_rule(NAME, name_len > 0, "empty name")?;
        check_range(NAME, "value length", value_len as u64, XATTR_VALUE_MAX as u64)?;
        check_len(NAME, bytes.len(), ENTRY + name_len + value_len)?;
        let (name, rest) = bytes[ENTRY..].split_at(name_len);
        let (value, rest) = rest.split_at(value_len);
        out.push((name.into(), value.into()));
        bytes = rest;
    }
    Ok(out)
}

/// The bytes for blocks of their own: header and attributes.
pub fn encode_outside(ino: Ino, xattrs: &[Xattr]) -> Vec<u8> {
    let body = encode(xattrs);
    let header = XattrHeader { magic: MAGIC.into(), len: (body.len() as u32).into(), ino: ino.0.into() };
    [header.as_bytes(), &body].concat()
}

/// Checks bytes read from blocks of their own (their checksum stands in the inode) and returns the attributes.
pub fn decode_outside(bytes: &[u8], ino: Ino) -> Result<Vec<Xattr>> {
    check_len(NAME, bytes.len(), size_of::<XattrHeader>())?;
    let (header, body) = XattrHeader::read_from_prefix(bytes).expect("length was checked");
    check_magic(NAME, MAGIC as u64, header.magic.get() as u64)?;
    check_rule(NAME, header.ino.get() == ino.0, "belong to another inode")?;
    check_len(NAME, body.len(), header.len.get() as usize)?;
    decode(&body[..header.len.get() as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_truncation() {
        let xattrs: Vec<Xattr> =
            vec![(b"user.a"[..].into(), b"1"[..].into()), (b"user.b"[..].into(), b""[..].into())];
        let bytes = encode(&xattrs);
        assert_eq!(bytes.len(), encoded_len(&xattrs));
        assert_eq!(decode(&bytes).unwrap(), xattrs);
        for n in 1..bytes.len() {
            let cut = decode(&bytes[..n]);
            assert!(cut.is_err() || cut.unwrap().len() < 2);
        }
        let outside = encode_outside(Ino(4), &xattrs);
        assert_eq!(decode_outside(&outside, Ino(4)).unwrap(), xattrs);
        assert!(decode_outside(&outside, Ino(5)).is_err());
    }
}

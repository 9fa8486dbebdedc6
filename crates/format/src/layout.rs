//! The field tables of on-media structures: one declaration gives the struct, its compile-time size check and the table
//! that documentation and `freehold dump` print.

use std::fmt::Write;

/// One field of a structure.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name in the code.
    pub name: &'static str,
    /// Its byte offset in the structure.
    pub offset: usize,
    /// Its size in bytes.
    pub size: usize,
    /// Its type, as written in the code.
    pub ty: &'static str,
    /// What it means.
    pub doc: &'static str,
}

/// The table of one structure.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Name of the structure.
    pub name: &'static str,
    /// What the structure is.
    pub doc: &'static str,
    /// Bytes.
    pub size: usize,
    /// All fields in order, without gaps.
    pub fields: &'static [Field],
}

/// A structure with a field table.
pub trait Layout {
    /// The table of this structure.
    fn table() -> Table;
}

impl Table {
    /// The table in Markdown.
    pub fn markdown(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(out, "### {} ({} bytes)\n\n{}\n", self.name, self.size, self.doc.trim());
        let _ = writeln!(out, "| offset | size | field | meaning |\n|---:|---:|---|---|");
        for f in self.fields {
            let _ = writeln!(out, "| {} | {} | `{}` | {} |", f.offset, f.size, f.name, f.doc.trim());
        }
        out
    }

    /// One line a field with the value found in `bytes`: integers as numbers, longer fields in hexadecimal.
    pub fn describe(&self, bytes: &[u8]) -> Vec<(&'static str, String)> {
        self.fields
            .iter()
            .filter_map(|f| {
                let raw = bytes.get(f.offset..f.offset + f.size)?;
                let value = match raw.len() {
                    1 | 2 | 4 | 8 => {
                        let mut le = [0; 8];
                        le[..raw.len()].copy_from_slice(raw);
                        let v = u64::from_le_bytes(le);
                        if f.name.contains("magic") || f.name.contains("crc") {
                            format!("{v:#x}")
                        } else if f.name == "mode" {
                            format!("{v:#o}")
                        } else {
                            v.to_string()
                        }
                    }
                    _ => raw.iter().map(|b| format!("{b:02x}")).collect(),
                };
                Some((f.name, value))
            })
            .collect()
    }
}

const BEGIN: &str = "<!-- generated: begin -->\n";
const END: &str = "<!-- generated: end -->";

/// The generated part of `docs/FORMAT.md`: limits, and the tables of all structures.
pub fn generated() -> String {
    use crate::limits::*;
    let mut out = String::from("\n### Sizes and limits\n\n| name | value | meaning |\n|---|---:|---|\n");
    let rows: [(&str, u64, &str); 16] = [
        ("VERSION", crate::superblock::VERSION as u64, "version of the format"),
        ("BLOCK_SIZE", BLOCK_SIZE as u64, "bytes in a block"),
        ("SEGMENT_SIZE", SEGMENT_SIZE as u64, "bytes in a segment"),
        ("SEGMENT_BLOCKS", SEGMENT_BLOCKS as u64, "blocks in a segment"),
        ("VOLUME_MIN", VOLUME_MIN, "bytes of the smallest volume"),
        ("VOLUME_MAX", VOLUME_MAX, "bytes of the largest volume"),
        ("LOG_SEGMENTS_MAX", LOG_SEGMENTS_MAX as u64, "segments of the longest log ring"),
        ("LOG_RECORD_MAX", LOG_RECORD_MAX as u64, "bytes of the longest record"),
        ("INODE_SEGMENTS_MAX", INODE_SEGMENTS_MAX as u64, "entries of the inode segment table"),
        (
            "TAIL_MAX",
            TAIL_MAX as u64,
            "bytes of an inode's tail: inline data, extents, root of the extent tree",
        ),
        ("EXTENTS_INLINE_MAX", crate::extent::EXTENTS_INLINE_MAX as u64, "extents in an inode"),
        ("NODE_ENTRIES", crate::extent::NODE_ENTRIES as u64, "entries in a node of the extent tree"),
        ("NAME_MAX", NAME_MAX as u64, "bytes of a name"),
        ("XATTR_INLINE_MAX", XATTR_INLINE_MAX as u64, "bytes of extended attributes in the inode"),
        (
            "XATTR_TOTAL_MAX",
            XATTR_TOTAL_MAX as u64,
            "bytes of all extended attributes of an inode, header included",
        ),
        ("FILE_SIZE_MAX", FILE_SIZE_MAX, "bytes of the largest file"),
    ];
    for (name, value, meaning) in rows {
        let _ = writeln!(out, "| `{name}` | {value} | {meaning} |");
    }
    for table in crate::all_layouts() {
        let _ = write!(out, "\n{}", table.markdown());
    }
    out.push('\n');
    out
}

/// Cuts a document into what stands before, in and behind the generated part; `None` without its markers.
pub fn split_generated(text: &str) -> Option<(&str, &str, &str)> {
    let start = text.find(BEGIN)? + BEGIN.len();
    let end = start + text[start..].find(END)?;
    Some((&text[..start], &text[start..end], &text[end..]))
}

/// Declares an on-media structure: `struct Name: SIZE { field: type, ... }`, a doc comment on each.
macro_rules! media_struct {
    (
        $(#[doc = $sdoc:literal])+
        pub struct $name:ident : $size:literal {
            $( $(#[doc = $doc:literal])+ $field:ident : $ty:ty ),+ $(,)?
        }
    ) => {
        $(#[doc = $sdoc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq,
                 zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable,
                 zerocopy::KnownLayout, zerocopy::Unaligned)]
        #[repr(C)]
        pub struct $name {
            $( $(#[doc = $doc])+ pub $field: $ty ),+
        }
        const _: () = assert!(std::mem::size_of::<$name>() == $size);
        impl $crate::layout::Layout for $name {
            fn table() -> $crate::layout::Table {
                const FIELDS: &[$crate::layout::Field] = &[
                    $( $crate::layout::Field {
                        name: stringify!($field),
                        offset: std::mem::offset_of!($name, $field),
                        size: std::mem::size_of::<$ty>(),
                        ty: stringify!($ty),
                        doc: concat!($($doc),+),
                    } ),+
                ];
                $crate::layout::Table {
                    name: stringify!($name),
                    doc: concat!($($sdoc),+),
                    size: $size,
                    fields: FIELDS,
                }
            }
        }
    };
}
pub(crate) use media_struct;

#[cfg(test)]
mod tests {
    #[test]
    fn tables_have_no_gaps() {
        for table in crate::all_layouts() {
            let mut at = 0;
            for field in table.fields {
                assert_eq!(field.offset, at, "{}.{}", table.name, field.name);
                at += field.size;
            }
            assert_eq!(at, table.size, "{}", table.name);
        }
    }
}

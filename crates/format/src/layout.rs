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

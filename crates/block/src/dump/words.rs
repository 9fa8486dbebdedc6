//! Single structures in words, and words as lines: fields by the format's tables, extents and nodes, images of inodes, records
//! of the log, bytes that are nothing known.
//!
//! Reads only the bytes that it is given; whatever they hold, something is said. Tested in tests/dump.rs.

use super::Dump;
use format::extent::{Extent, NodeEntry, NodeHeader};
use format::inode::{TailKind, parse_compact};
use format::layout::Table;
use format::log::Record;
use serde_json::{Map, Value, json};

/// Indented lines: `name: value`.
pub(super) fn print(value: &Value, depth: usize, out: &mut String) {
    let pad = "  ".repeat(depth);
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match value {
                    Value::Object(_) | Value::Array(_) => {
                        out.push_str(&format!("{pad}{key}:\n"));
                        print(value, depth + 1, out);
                    }
                    Value::String(s) => out.push_str(&format!("{pad}{key}: {}\n", shown(s))),
                    other => out.push_str(&format!("{pad}{key}: {other}\n")),
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                match item {
                    Value::Object(map) if map.values().all(|v| !v.is_object() && !v.is_array()) => {
                        let line: Vec<String> = map
                            .iter()
                            .map(|(k, v)| format!("{k} {}", v.as_str().map_or_else(|| v.to_string(), shown)))
                            .collect();
                        out.push_str(&format!("{pad}- {}\n", line.join(", ")));
                    }
                    Value::Object(_) | Value::Array(_) => {
                        out.push_str(&format!("{pad}-\n"));
                        print(item, depth + 1, out);
                    }
                    Value::String(s) => out.push_str(&format!("{pad}- {}\n", shown(s))),
                    other => out.push_str(&format!("{pad}- {other}\n")),
                }
            }
        }
        other => out.push_str(&format!("{pad}{other}\n")),
    }
}

/// A text of the volume's as a terminal may have it: control characters in it are written out.
fn shown(text: &str) -> String {
    let escape = |c: char| if c.is_control() { c.escape_default().collect() } else { String::from(c) };
    text.chars().map(escape).collect()
}

/// The fields of a structure, as the format's table describes them.
pub(super) fn fields(table: Table, bytes: &[u8]) -> Map<String, Value> {
    let value = |s: String| s.parse::<u64>().map_or(Value::String(s), Value::from);
    table.describe(bytes).into_iter().map(|(name, v)| (name.to_string(), value(v))).collect()
}

fn name(bytes: &[u8]) -> Value {
    Value::String(String::from_utf8_lossy(bytes).into_owned())
}

fn extent(e: &Extent) -> Value {
    json!({"file_block": e.file_block.get(), "block": e.block.get(), "count": e.count.get(), "unwritten": e.unwritten()})
}

fn entry(e: &NodeEntry) -> Value {
    json!({"file_block": e.file_block.get(), "block": e.block.get(), "count": e.count.get()})
}

pub(super) fn describe_record(record: &Record<'_>, out: &mut Map<String, Value>) {
    let assignments =
        record.assignments.iter().map(|a| json!({"index": a.index.get(), "segment": a.segment.get()}));
    let covers = record
        .covers
        .iter()
        .map(|c| json!({"block": c.block.get(), "count": c.count.get(), "crc": format!("{:#x}", c.data_crc.get())}));
    let pages = record
        .pages
        .iter()
        .map(|p| json!({"inode": p.ino.get(), "file_block": p.file_block.get(), "block": p.block.get()}));
    let images = record.inodes().map(|image| match image {
        Ok((bytes, v)) => json!({
            "inode": v.ino().0, "kind": format!("{:?}", v.kind), "parent": v.header.parent.get(),
            "name": name(v.name), "size": v.header.size.get(), "bytes": bytes.len(),
        }),
        Err(e) => json!({"damaged": e.to_string()}),
    });
    for (key, list) in [
        ("assigned_segments", assignments.collect::<Vec<_>>()),
        ("covered_blocks", covers.collect()),
        ("logged_pages", pages.collect()),
        ("images", images.collect()),
    ] {
        if !list.is_empty() {
            out.insert(key.into(), list.into());
        }
    }
}

/// Lines of 16 bytes, runs of equal lines told once.
pub(super) fn hex(block: &[u8]) -> Value {
    let mut lines: Vec<Value> = Vec::new();
    let mut last: Option<&[u8]> = None;
    let mut skipped = false;
    for (i, row) in block.chunks(16).enumerate() {
        if last == Some(row) {
            if !skipped {
                lines.push("*".into());
            }
            skipped = true;
            continue;
        }
        (last, skipped) = (Some(row), false);
        let bytes: Vec<String> = row.iter().map(|b| format!("{b:02x}")).collect();
        let text: String =
            row.iter().map(|&b| if (32..127).contains(&b) { b as char } else { '.' }).collect();
        lines.push(format!("{:04x}  {}  {text}", i * 16, bytes.join(" ")).into());
    }
    lines.into()
}

impl Dump<'_> {
    pub(super) fn node(&self, block: &[u8], out: &mut Map<String, Value>) {
        let (count, level) =
            (u16::from_le_bytes([block[4], block[5]]), u16::from_le_bytes([block[6], block[7]]));
        let body = block[size_of::<NodeHeader>()..].chunks_exact(size_of::<Extent>()).take(count as usize);
        let list = body.map(|raw| {
            let e = <Extent as zerocopy::FromBytes>::read_from_bytes(raw).expect("whole entry");
            let n = <NodeEntry as zerocopy::FromBytes>::read_from_bytes(raw).expect("whole entry");
            if level == 0 { extent(&e) } else { entry(&n) }
        });
        out.insert(if level == 0 { "extents" } else { "entries" }.into(), list.collect());
    }

    pub(super) fn describe_inode(&self, bytes: &[u8], out: &mut Map<String, Value>) {
        let Ok(view) = parse_compact(bytes) else { return };
        out.insert("name".into(), name(view.name));
        match view.tail_kind {
            TailKind::None => {}
            TailKind::Inline => drop(out.insert("inline".into(), name(view.tail))),
            TailKind::Extents => {
                drop(out.insert("extents".into(), view.extents().iter().map(extent).collect()))
            }
            TailKind::Tree => drop(out.insert("tree".into(), view.tree_root().iter().map(entry).collect())),
        }
        if let Ok(xattrs) = format::xattr::decode(view.xattrs)
            && !xattrs.is_empty()
        {
            let map: Map<String, Value> =
                xattrs.iter().map(|(n, v)| (String::from_utf8_lossy(n).into_owned(), name(v))).collect();
            out.insert("xattrs".into(), map.into());
        }
    }
}

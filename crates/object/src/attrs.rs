//! Attributes of files as user metadata of objects, in the words of other tools.
//!
//! | name | value | also understood by |
//! |---|---|---|
//! | `uid`, `gid` | decimal | s3fs, rclone (`--metadata`) |
//! | `mtime` | seconds since 1970 with a fraction of up to nine digits | s3fs, rclone |
//! | `atime` | the same; only where a program has set it | s3fs, rclone |
//! | `mode` | type and permission bits, decimal | s3fs |
//! | `xattr` | JSON object of names and base64 values, percent-encoded | s3fs |
//!
//! rclone writes `mode` in octal. Both are read: a decimal number whose type bits name a file type counts as s3fs's, else the digits are taken as
//! octal: `33188` and `100644` are the same. Of the modes of files, directories and symlinks (which have all permissions) one alone means something
//! in both ways: `41471` is s3fs's symlink, never a directory of mode 1471. A number without type bits is octal with a leading zero, decimal without.
//! The target of a symlink is the content of its object, as s3fs has it. FIFOs, sockets and devices are empty objects with such a mode, decimal alone, and
//! of devices the number as `rdev`, hexadecimal as rclone has it. A directory is an object whose key ends with '/'.
//!
//! What an object does not say is taken from [`Defaults`]: owner and umask are options, times are those at which the store completed the
//! object. What cannot be understood counts as not said.

use crate::store::{Metadata, Object};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fs::{Error, FileType, Result, Time};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use std::collections::BTreeMap;

/// Most bytes of user metadata of one object, names and values together (S3's limit).
pub const METADATA_MAX: usize = 2048;
/// Media type of markers of directories.
pub const DIRECTORY_TYPE: &str = "application/x-directory";

/// Extended attributes by name.
pub type Xattrs = BTreeMap<Box<[u8]>, Box<[u8]>>;

/// What objects of others get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Defaults {
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Permission bits that they do not get.
    pub umask: u16,
}

/// Attributes that stand in metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attrs {
    /// What it is.
    pub kind: FileType,
    /// Permission, set-id and sticky bits.
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of the data; `None`: when the store completed the object.
    pub mtime: Option<Time>,
    /// Last access, as a program has set it; `None`: that of the last change. Reading changes nothing.
    pub atime: Option<Time>,
    /// Number of a device.
    pub rdev: u64,
    /// Extended attributes; most objects have none.
    pub xattrs: Option<Box<Xattrs>>,
}

impl Attrs {
    /// Of an object that says nothing.
    pub fn default_of(kind: FileType, defaults: &Defaults) -> Attrs {
        let all = if kind == FileType::Directory { 0o777 } else { 0o666 };
        Attrs {
            kind,
            perm: all & !defaults.umask,
            uid: defaults.uid,
            gid: defaults.gid,
            mtime: None,
            atime: None,
            rdev: 0,
            xattrs: None,
        }
    }

    /// Of the object with this key, of which `head` or `get` told.
    pub fn of(key: &str, object: &Object, defaults: &Defaults) -> Attrs {
        let directory = key.ends_with('/');
        let meta = &object.metadata;
        let mode = meta.get("mode").and_then(|text| parse_mode(text));
        let kind = match mode.map(|(kind, _)| kind) {
            _ if directory => FileType::Directory,
            // Only what a file system can show by its content. Directories end with '/'.
            Some(Some(FileType::Symlink)) => FileType::Symlink,
            Some(Some(kind)) if kind != FileType::Directory && object.size == 0 => kind,
            _ => FileType::Regular,
        };
        let mut attrs = Attrs::default_of(kind, defaults);
        if let Some((_, perm)) = mode {
            attrs.perm = perm;
        }
        if kind == FileType::Symlink {
            attrs.perm = 0o777;
        }
        let number = |name: &str| meta.get(name).and_then(|t| t.trim().parse::<u32>().ok());
        attrs.uid = number("uid").filter(|&id| id != u32::MAX).unwrap_or(attrs.uid);
        attrs.gid = number("gid").filter(|&id| id != u32::MAX).unwrap_or(attrs.gid);
        attrs.mtime = meta.get("mtime").and_then(|t| parse_time(t));
        attrs.atime = meta.get("atime").and_then(|t| parse_time(t));
        if matches!(kind, FileType::CharDevice | FileType::BlockDevice) {
            attrs.rdev = meta.get("rdev").and_then(|t| u64::from_str_radix(t.trim(), 16).ok()).unwrap_or(0);
        }
        attrs.xattrs =
            meta.get("xattr").and_then(|t| parse_xattrs(t)).filter(|x| !x.is_empty()).map(Box::new);
        attrs
    }

    /// Puts them into metadata, and leaves what others have put there. `AttributeTooLarge` when it would be more than a store takes.
    pub fn write(&self, meta: &mut Metadata) -> Result<()> {
        let mut put = |name: &str, value: String| meta.insert(name.into(), value);
        put("uid", self.uid.to_string());
        put("gid", self.gid.to_string());
        put("mode", (self.kind.mode_bits() | self.perm as u32).to_string());
        if self.rdev != 0 {
            put("rdev", format!("{:x}", self.rdev));
        }
        for (name, time) in [("mtime", self.mtime), ("atime", self.atime)] {
            match time {
                Some(t) => meta.insert(name.into(), format_time(t)),
                None => meta.remove(name),
            };
        }
        match &self.xattrs {
            Some(xattrs) if !xattrs.is_empty() => meta.insert("xattr".into(), format_xattrs(xattrs)?),
            _ => meta.remove("xattr"),
        };
        let bytes: usize = meta.iter().map(|(name, value)| name.len() + value.len()).sum();
        if bytes > METADATA_MAX { Err(Error::AttributeTooLarge) } else { Ok(()) }
    }
}

/// Whether a number may be a mode as s3fs writes it. Octal modes of directories with a sticky bit look like symlinks of odd permissions.
fn is_decimal(mode: u32) -> bool {
    FileType::from_mode(mode).is_some_and(|kind| kind != FileType::Symlink || mode & 0o7777 == 0o777)
}

/// Type, where it is said, and permission bits.
fn parse_mode(text: &str) -> Option<(Option<FileType>, u16)> {
    let text = text.trim();
    let split = |mode: u32| (FileType::from_mode(mode), (mode & 0o7777) as u16);
    if !text.starts_with('0')
        && let Ok(mode) = text.parse::<u32>()
        && mode <= 0o177_777
        && (mode <= 0o7777 || is_decimal(mode))
    {
        return Some(split(mode));
    }
    let mode = u32::from_str_radix(text, 8).ok().filter(|&mode| mode <= 0o177_777)?;
    Some(split(mode))
}

fn parse_time(text: &str) -> Option<Time> {
    let (whole, fraction) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
    let sec: i64 = whole.parse().ok()?;
    if !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let nine: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nsec: u32 = nine.parse().ok()?;
    // "-1.25" is a quarter of a second before -1.
    Some(match whole.starts_with('-') && nsec > 0 {
        true => Time { sec: sec.checked_sub(1)?, nsec: 1_000_000_000 - nsec },
        false => Time { sec, nsec },
    })
}

fn format_time(t: Time) -> String {
    match (t.sec < 0, t.nsec) {
        (_, 0) => t.sec.to_string(),
        (false, nsec) => format!("{}.{nsec:09}", t.sec),
        (true, nsec) => format!("-{}.{:09}", -(t.sec + 1), 1_000_000_000 - nsec),
    }
}

fn parse_xattrs(text: &str) -> Option<Xattrs> {
    let json: BTreeMap<String, String> = serde_json::from_str(&percent_decode(text)?).ok()?;
    let pairs = json.into_iter().map(|(name, value)| {
        Some((name.into_bytes().into_boxed_slice(), STANDARD.decode(value).ok()?.into_boxed_slice()))
    });
    pairs.collect()
}

fn format_xattrs(xattrs: &Xattrs) -> Result<String> {
    let mut json = BTreeMap::new();
    for (name, value) in xattrs {
        let name =
            std::str::from_utf8(name).map_err(|_| Error::Invalid("names of attributes are UTF-8 here"))?;
        json.insert(name, STANDARD.encode(value));
    }
    let text = serde_json::to_string(&json).map_err(|_| Error::Invalid("names of attributes"))?;
    Ok(percent_encode(&text))
}

/// What stands for itself in percent-encoded text.
const PLAIN: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Everything but letters, digits and `-_.~` as `%XX`.
pub fn percent_encode(text: &str) -> String {
    utf8_percent_encode(text, &PLAIN).to_string()
}

/// What [`percent_encode`] encoded; `None` if that is not UTF-8.
pub fn percent_decode(text: &str) -> Option<String> {
    percent_decode_str(text).decode_utf8().ok().map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ETag;
    use proptest::prelude::*;
    use std::time::UNIX_EPOCH;

    const DEFAULTS: Defaults = Defaults { uid: 7, gid: 8, umask: 0o022 };

    fn object(pairs: &[(&str, &str)]) -> Object {
        let metadata = pairs.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
        let headers = Metadata::new();
        Object {
            size: 3,
            etag: ETag("\"e\"".into()),
            modified: UNIX_EPOCH,
            content_type: None,
            metadata,
            headers,
        }
    }

    #[test]
    fn modes_of_both_tools() {
        let regular = |text: &str| (Attrs::of("f", &object(&[("mode", text)]), &DEFAULTS)).perm;
        for text in ["33188", "100644", "0100644", "0644", "420"] {
            assert_eq!(regular(text), 0o644, "{text}");
        }
        for text in ["rubbish", "", "-1", "99999999999", "888888"] {
            assert_eq!(regular(text), 0o666 & !0o022, "{text}");
        }
        for text in ["41471", "120777"] {
            assert_eq!(Attrs::of("l", &object(&[("mode", text)]), &DEFAULTS).kind, FileType::Symlink);
        }
        // No mode of one tool reads as another mode of the other.
        for (kind, perms) in [
            (FileType::Regular, 0..=0o7777u16),
            (FileType::Directory, 0..=0o7777),
            (FileType::Symlink, 0o777..=0o777),
        ] {
            for perm in perms {
                let mode = kind.mode_bits() | perm as u32;
                assert_eq!(parse_mode(&mode.to_string()), Some((Some(kind), perm)));
                if mode != 0o41471 {
                    assert_eq!(parse_mode(&format!("{mode:o}")), Some((Some(kind), perm)), "{mode:o}");
                }
            }
        }
    }

    #[test]
    fn special_files_are_empty_objects() {
        let device = Attrs { rdev: 0x103, ..Attrs::default_of(FileType::BlockDevice, &DEFAULTS) };
        let mut meta = Metadata::new();
        device.write(&mut meta).unwrap();
        assert_eq!((meta["mode"].as_str(), meta["rdev"].as_str()), ("24996", "103"));
        let empty = Object { size: 0, metadata: meta.clone(), ..object(&[]) };
        assert_eq!(Attrs::of("b", &empty, &DEFAULTS), device);
        // With content it is a file.
        assert_eq!(Attrs::of("b", &Object { size: 1, ..empty }, &DEFAULTS).kind, FileType::Regular);
        for kind in [FileType::Fifo, FileType::Socket, FileType::CharDevice] {
            let mode = (kind.mode_bits() | 0o600).to_string();
            let empty = Object { size: 0, ..object(&[("mode", &mode)]) };
            let attrs = Attrs::of("s", &empty, &DEFAULTS);
            assert_eq!((attrs.kind, attrs.perm), (kind, 0o600));
        }
    }

    #[test]
    fn what_is_not_said_is_the_default() {
        let file = Attrs::of("f", &object(&[]), &DEFAULTS);
        assert_eq!((file.uid, file.gid, file.perm, file.mtime), (7, 8, 0o644, None));
        let dir = Attrs::of("d/", &object(&[("mode", "33188"), ("uid", "x")]), &DEFAULTS);
        assert_eq!((dir.kind, dir.perm, dir.uid), (FileType::Directory, 0o644, 7));
        assert_eq!(Attrs::of("d/", &object(&[]), &DEFAULTS).perm, 0o755);
        let odd = object(&[("mtime", "now"), ("xattr", "%zz"), ("gid", "4294967295")]);
        assert_eq!(Attrs::of("f", &odd, &DEFAULTS), file);
    }

    #[test]
    fn times() {
        let t = |sec, nsec| Some(Time { sec, nsec });
        assert_eq!(parse_time("1700000000.25"), t(1_700_000_000, 250_000_000));
        assert_eq!(parse_time("1700000000"), t(1_700_000_000, 0));
        assert_eq!(parse_time("-1.25"), t(-2, 750_000_000));
        assert_eq!(parse_time("1.1234567891"), t(1, 123_456_789));
        assert_eq!((parse_time("1.2x"), parse_time("")), (None, None));
    }

    #[test]
    fn foreign_metadata_stays_and_the_limit_holds() {
        let mut meta = Metadata::from([("colour".into(), "red".into()), ("mtime".into(), "5".into())]);
        let mut attrs = Attrs::default_of(FileType::Regular, &DEFAULTS);
        attrs.write(&mut meta).unwrap();
        assert_eq!(meta.get("colour").map(String::as_str), Some("red"));
        assert_eq!(meta.get("mtime"), None);
        let value = vec![1; METADATA_MAX].into_boxed_slice();
        attrs.xattrs = Some(Box::new(Xattrs::from([(b"user.a"[..].into(), value)])));
        assert_eq!(attrs.write(&mut meta), Err(Error::AttributeTooLarge));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            perm in 0..0o10000u16, uid in 0..u32::MAX, gid in 0..u32::MAX,
            mtime in proptest::option::of((-9_000_000_000i64..9_000_000_000, 0..1_000_000_000u32)),
            atime in proptest::option::of((-9_000_000_000i64..9_000_000_000, 0..1_000_000_000u32)),
            xattrs in proptest::collection::btree_map("user\\.[a-zäö\"\\\\% ]{1,8}", proptest::collection::vec(any::<u8>(), 0..40), 0..4),
        ) {
            let [mtime, atime] = [mtime, atime].map(|t| t.map(|(sec, nsec)| Time { sec, nsec }));
            let xattrs: Xattrs = xattrs.into_iter().map(|(n, v)| (n.into_bytes().into(), v.into())).collect();
            let xattrs = (!xattrs.is_empty()).then(|| Box::new(xattrs));
            let attrs = Attrs { kind: FileType::Regular, perm, uid, gid, mtime, atime, rdev: 0, xattrs };
            let mut meta = Metadata::new();
            attrs.write(&mut meta).unwrap();
            prop_assert!(meta.values().all(|v| v.bytes().all(|b| b.is_ascii_graphic())));
            let object = Object { metadata: meta, ..object(&[]) };
            prop_assert_eq!(Attrs::of("f", &object, &DEFAULTS), attrs);
        }
    }
}

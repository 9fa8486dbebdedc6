//! Keys and names: which keys of a bucket are files, which are directories, and which cannot be shown.
//!
//! A key is split at '/'. Below a mount of `s3://bucket/some/prefix` stand the keys that begin with `some/prefix/`. What is defined:
//! - `a/b/` (an object, of any size) is the marker of directory `a/b`: it holds its attributes, and keeps it while it is empty. A directory without
//!   a marker is there as long as something is below it.
//! - Where both `a` and `a/...` are keys, the directory is shown and the object `a` is not. It is neither changed nor removed.
//! - A key with an empty component (`a//b`), a component `.` or `..`, one above 255 bytes, or one with a NUL byte is not shown. Neither is
//!   what stands below it. A directory that holds such keys only is shown empty, and cannot be removed (`NotEmpty`).
//! - Names that are not UTF-8 cannot be made (`Invalid`), nor can keys above 1024 bytes (`NameTooLong`).
//!
//! Tested below.

use fs::{Error, Result};

/// Longest key, bytes (S3's limit).
pub const KEY_MAX: usize = 1024;

/// The name as it can stand in a key. `NameTooLong`, `Invalid`, and as the contract has it for "." and "..": `Exists`.
pub fn check(name: &[u8]) -> Result<&str> {
    match name {
        b"" => Err(Error::NotFound),
        b"." | b".." => Err(Error::Exists),
        _ if name.len() > format::limits::NAME_MAX => Err(Error::NameTooLong),
        _ if name.contains(&b'/') || name.contains(&0) => Err(Error::Invalid("'/' or NUL in a name")),
        _ => std::str::from_utf8(name).map_err(|_| Error::Invalid("names in a bucket are UTF-8")),
    }
}

/// Whether a component of a key can be shown as a name.
pub fn shown(name: &str) -> bool {
    check(name.as_bytes()).is_ok()
}

/// The key of `name` in the directory whose keys begin with `dir`; of a directory with '/' at the end. `NameTooLong`.
pub fn key(dir: &str, name: &str, directory: bool) -> Result<String> {
    let slash = if directory { "/" } else { "" };
    if dir.len() + name.len() + slash.len() > KEY_MAX {
        return Err(Error::NameTooLong);
    }
    Ok([dir, name, slash].concat())
}

/// What stands before all keys of a mount: nothing, or the prefix with one '/' at the end. `Invalid` for a prefix that could not be shown.
pub fn root(prefix: &str) -> Result<String> {
    let parts: Vec<&str> = prefix.split('/').filter(|part| !part.is_empty()).collect();
    if !parts.iter().all(|part| shown(part)) {
        return Err(Error::Invalid("the prefix has a component that is no name"));
    }
    match parts.is_empty() {
        true => Ok(String::new()),
        false => Ok(parts.join("/") + "/"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_cannot_be() {
        assert_eq!(check(b""), Err(Error::NotFound));
        assert_eq!((check(b"."), check(b"..")), (Err(Error::Exists), Err(Error::Exists)));
        assert_eq!(check(&[b'n'; 256]), Err(Error::NameTooLong));
        for bad in [&b"a/b"[..], b"a\0b", b"\xff"] {
            assert!(matches!(check(bad), Err(Error::Invalid(_))));
        }
        for good in ["...", " ", "a\nb", "%2F", "ä+&?#", &"n".repeat(255)] {
            assert_eq!(check(good.as_bytes()), Ok(good));
        }
    }

    #[test]
    fn keys_and_roots() {
        assert_eq!(key("a/", "b", true).unwrap(), "a/b/");
        assert_eq!(key(&"d".repeat(1000), &"n".repeat(24), false).unwrap().len(), KEY_MAX);
        assert_eq!(key(&"d".repeat(1000), &"n".repeat(24), true), Err(Error::NameTooLong));
        for (prefix, keys) in [("", ""), ("/", ""), ("a", "a/"), ("a/b/", "a/b/"), ("//a//b", "a/b/")] {
            assert_eq!(root(prefix).unwrap(), keys);
        }
        assert!(root("a/../b").is_err());
    }
}

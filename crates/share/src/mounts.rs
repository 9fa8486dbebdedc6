//! Which volumes a process sees mounted: `/proc/self/mountinfo`.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// One line of `/proc/self/mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountInfo {
    /// The kernel's number of this mount.
    pub id: u64,
    /// `major:minor` of what is mounted.
    pub device: String,
    /// What of it: `/`, or the directory that a bind mount shows.
    pub root: OsString,
    /// Where.
    pub point: PathBuf,
    /// Whether nothing can be changed through it.
    pub read_only: bool,
    /// Its peer group, of which mounts in other namespaces can be, too.
    pub shared: Option<u64>,
    /// The peer group that it follows.
    pub master: Option<u64>,
    /// Type, for FUSE with the subtype: `fuse.freehold`.
    pub kind: String,
    /// The source, for Freehold the image or device.
    pub source: OsString,
}

impl MountInfo {
    /// Whether Freehold serves it.
    pub fn is_freehold(&self) -> bool {
        self.kind == "fuse.freehold"
    }

    /// Whether it answers. Dead mounts, whose server was killed, give `ENOTCONN`.
    pub fn is_dead(&self) -> bool {
        let dead = |e: io::Error| matches!(e.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED));
        std::fs::symlink_metadata(&self.point).err().is_some_and(dead)
            || rustix::fs::statvfs(&self.point).err().is_some_and(|e| dead(e.into()))
    }
}

/// All mounts of this process's namespace, in the order in which they were made.
pub fn list() -> io::Result<Vec<MountInfo>> {
    Ok(table(&std::fs::read("/proc/self/mountinfo")?))
}

/// The mounts in the text of a `/proc/PID/mountinfo`.
pub fn table(text: &[u8]) -> Vec<MountInfo> {
    text.split(|&b| b == b'\n').filter_map(parse).collect()
}

/// Fields: id, parent, major:minor, root, mount point, options, optional fields, "-", type, source, options.
fn parse(line: &[u8]) -> Option<MountInfo> {
    let mut fields = line.split(|&b| b == b' ');
    let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<u64>().ok();
    let id = number(fields.next()?)?;
    let device = String::from_utf8(fields.nth(1)?.to_vec()).ok()?;
    let (root, point) = (unescape(fields.next()?), unescape(fields.next()?).into());
    let is_ro = |options: &[u8]| options.split(|&b| b == b',').any(|o| o == b"ro");
    let mut read_only = is_ro(fields.next()?);
    let (mut shared, mut master) = (None, None);
    for field in fields.by_ref().take_while(|f| *f != b"-") {
        shared = field.strip_prefix(b"shared:").and_then(number).or(shared);
        master = field.strip_prefix(b"master:").and_then(number).or(master);
    }
    let kind = String::from_utf8(fields.next()?.to_vec()).ok()?;
    let source = unescape(fields.next()?);
    read_only |= fields.next().is_some_and(is_ro);
    Some(MountInfo { id, device, root, point, read_only, shared, master, kind, source })
}

/// Undoes the octal escapes of mountinfo.
fn unescape(text: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        let digits = tail.get(..3).and_then(|d| std::str::from_utf8(d).ok());
        match digits.filter(|_| *first == b'\\').and_then(|d| u8::from_str_radix(d, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &tail[3..];
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::path::Path;

    #[test]
    fn a_line_of_mountinfo() {
        let line =
            b"36 35 0:42 / /mnt/a\\040b rw,noatime master:1 - fuse.freehold /srv/x\\054y.img rw,user_id=0";
        let m = parse(line).unwrap();
        assert_eq!((m.id, m.shared, m.master), (36, None, Some(1)));
        assert_eq!((m.device.as_str(), m.kind.as_str()), ("0:42", "fuse.freehold"));
        assert_eq!(
            (m.point.as_path(), m.source.as_os_str()),
            (Path::new("/mnt/a b"), OsStr::new("/srv/x,y.img"))
        );
        assert!(m.is_freehold() && !m.read_only && m.root == "/" && parse(b"").is_none());
        let bound = parse(b"37 35 0:42 /sub /mnt/b ro shared:2 master:3 - fuse.freehold /srv/x rw").unwrap();
        assert_eq!((bound.shared, bound.master), (Some(2), Some(3)));
        assert!(bound.read_only && bound.root == "/sub");
    }
}

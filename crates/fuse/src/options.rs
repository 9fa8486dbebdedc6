//! How a volume is mounted: [`MountOptions`] and its `mount -o` syntax.
//!
//! Defaults are the figures' choice: see the table in the crate's documentation ([`crate`]). Tested at the end of this file.

use fs::units::parse_size;
use std::time::Duration;

/// A timeout that never ends (136 years).
pub const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);

/// Largest transfer of one request in bytes: 256 pages, the kernel's own limit (`/proc/sys/fs/fuse/max_pages_limit`).
pub const MAX_TRANSFER: u32 = 1 << 20;

/// How what is said of a word begins that is not known.
const UNKNOWN: &str = "unknown mount option";

/// Of mount(2): `nosymfollow`.
const MS_NOSYMFOLLOW: libc::c_ulong = 256;

/// How a volume is mounted. `Default` is what `mount` without `-o` does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// Name shown as the source in `/proc/mounts`, usually the device.
    pub fsname: String,
    /// Shown as type `fuse.<subtype>`.
    pub subtype: String,
    /// Mount read-only.
    pub read_only: bool,
    /// Other users than the one who mounts may enter. Default: yes for root, no for others (who also need
    /// `user_allow_other` in /etc/fuse.conf).
    pub allow_other: bool,
    /// Unmount when this process dies; needs `fusermount3`.
    pub auto_unmount: bool,
    /// Set-id bits of executables have an effect.
    pub suid: bool,
    /// Device nodes can be opened.
    pub dev: bool,
    /// Files can be executed.
    pub exec: bool,
    /// Symbolic links are not followed; needs root, Linux 5.10, and no `auto_unmount`.
    pub nosymfollow: bool,
    /// Reads do not update access times.
    pub noatime: bool,
    /// Every write is synchronous, as with O_SYNC.
    pub sync: bool,
    /// Changes of directories are synchronous.
    pub dirsync: bool,
    /// The volume's files change through this mount only: cached names, attributes and data stay valid until the kernel
    /// itself changes them. Turn it off (`shared`) when other doors write too; then open invalidates cached data
    /// that changed, and the timeouts bound how long old attributes are seen unless [`crate::Notifier`] is used.
    pub exclusive: bool,
    /// How long the kernel may keep a name.
    pub entry_timeout: Duration,
    /// How long the kernel may keep attributes.
    pub attr_timeout: Duration,
    /// How long the kernel may remember that a name does not exist.
    pub negative_timeout: Duration,
    /// The kernel collects buffered writes and sends them later.
    pub writeback: bool,
    /// Most bytes in one read request (page multiple, at most [`MAX_TRANSFER`]).
    pub max_read: u32,
    /// Most bytes in one write request (page multiple, at most [`MAX_TRANSFER`]).
    pub max_write: u32,
    /// How far the kernel reads ahead, in bytes (best effort: needs root).
    pub read_ahead: u32,
    /// Asynchronous requests (read-ahead, direct asynchronous I/O, write-back) on the way at a time.
    pub max_background: u16,
    /// Threads that receive requests; 0 chooses by the number of processors.
    pub threads: usize,
    /// What is written through descriptors that cannot read goes past the page cache: for volumes whose next reader has it from elsewhere anyway,
    /// because open drops what the kernel keeps. No words of the `-o` syntax: it is a matter of what is mounted.
    pub direct_writes: bool,
    /// Whose fsync and fdatasync are answered with order alone; no words of the `-o` syntax here, as other doors need it too.
    pub ordered: fs::Ordered,
}

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            fsname: "freehold".into(),
            subtype: "freehold".into(),
            read_only: false,
            allow_other: is_root(),
            auto_unmount: false,
            suid: false,
            dev: false,
            exec: true,
            nosymfollow: false,
            noatime: false,
            sync: false,
            dirsync: false,
            exclusive: true,
            entry_timeout: FOREVER,
            attr_timeout: FOREVER,
            negative_timeout: FOREVER,
            writeback: false,
            max_read: MAX_TRANSFER,
            max_write: MAX_TRANSFER,
            read_ahead: MAX_TRANSFER,
            max_background: 256,
            threads: 0,
            direct_writes: false,
            ordered: fs::Ordered::default(),
        }
    }
}

/// Whether this process may mount without a helper.
pub(crate) fn is_root() -> bool {
    // SAFETY: geteuid has no preconditions.
    unsafe { libc::geteuid() == 0 }
}

impl MountOptions {
    /// Parses what follows `-o`: words separated by commas, in the order of mount(8), later ones winning.
    ///
    /// Understood: `ro rw suid nosuid dev nodev exec noexec atime noatime relatime strictatime sync async dirsync defaults
    /// default_permissions allow_other noallow_other auto_unmount fsname= subtype= max_read= max_write= read_ahead=
    /// max_background= threads= entry_timeout= attr_timeout= negative_timeout= timeout=` (seconds with fraction, or `forever`)
    /// `exclusive shared writeback nowriteback nosymfollow symfollow`, those that mount(8) keeps for itself
    /// (`auto noauto user nouser users group owner nofail _netdev comment= x-*`), and without effect what other file systems know:
    /// `nodiratime diratime lazytime nolazytime norelatime nostrictatime silent loud iversion noiversion`. Sizes take the suffixes k and m.
    ///
    /// # Errors
    /// A sentence that names the word that is not understood or whose value is wrong.
    pub fn parse(text: &str) -> Result<MountOptions, String> {
        let mut o = MountOptions::default();
        for word in text.split(',').map(str::trim).filter(|w| !w.is_empty()) {
            o.set(word)?;
        }
        Ok(o)
    }

    /// Whether that is what [`MountOptions::set`] says of a word that it does not know, whatever stands in the word.
    pub fn is_unknown(why: &str) -> bool {
        why.starts_with(UNKNOWN)
    }

    /// Applies one word of the `-o` syntax. Errors as [`MountOptions::parse`].
    pub fn set(&mut self, word: &str) -> Result<(), String> {
        if let Some((key, value)) = word.split_once('=') {
            return self.set_value(key, value, word);
        }
        match word {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "suid" => self.suid = true,
            "nosuid" => self.suid = false,
            "dev" => self.dev = true,
            "nodev" => self.dev = false,
            "exec" => self.exec = true,
            "noexec" => self.exec = false,
            "nosymfollow" => self.nosymfollow = true,
            "symfollow" => self.nosymfollow = false,
            "noatime" => self.noatime = true,
            "atime" | "relatime" | "strictatime" => self.noatime = false,
            "sync" => self.sync = true,
            "async" => self.sync = false,
            "dirsync" => self.dirsync = true,
            "allow_other" => self.allow_other = true,
            "noallow_other" => self.allow_other = false,
            "auto_unmount" => self.auto_unmount = true,
            "exclusive" => self.exclusive = true,
            "shared" => {
                self.exclusive = false;
                for t in [&mut self.entry_timeout, &mut self.attr_timeout, &mut self.negative_timeout] {
                    *t = (*t).min(Duration::from_secs(1));
                }
            }
            "writeback" => self.writeback = true,
            "nowriteback" => self.writeback = false,
            "defaults"
            | "default_permissions"
            | "auto"
            | "noauto"
            | "user"
            | "nouser"
            | "users"
            | "nofail"
            | "_netdev" => {}
            // What the engine does anyway or never: it decides on times of access by `noatime` alone, and writes them with other changes.
            "nodiratime" | "diratime" | "lazytime" | "nolazytime" | "norelatime" | "nostrictatime"
            | "silent" | "loud" | "iversion" | "noiversion" | "group" | "nogroup" | "owner" | "noowner"
            | "nousers" => {}
            w if w.starts_with("x-") || w.starts_with("X-") => {}
            "fsname" | "subtype" | "max_read" | "max_write" | "read_ahead" | "max_background" | "threads"
            | "entry_timeout" | "attr_timeout" | "negative_timeout" | "timeout" => {
                return Err(format!("mount option '{word}' needs a value, as in '{word}=...'"));
            }
            _ => return Err(format!("{UNKNOWN} '{word}'")),
        }
        Ok(())
    }

    fn set_value(&mut self, key: &str, value: &str, word: &str) -> Result<(), String> {
        let wrong = |what: &str| format!("mount option '{word}': {what}");
        match key {
            "fsname" | "subtype" => {
                if value.is_empty() || value.contains(|c: char| c.is_control()) {
                    return Err(wrong("the name must not be empty or hold control characters"));
                }
                if key == "fsname" { self.fsname = value.into() } else { self.subtype = value.into() }
            }
            "max_read" | "max_write" => {
                let n = parse_size(value)
                    .ok()
                    .filter(|n| n % 4096 == 0 && (4096..=MAX_TRANSFER as u64).contains(n));
                let n = n.ok_or_else(|| wrong("expected a multiple of 4096 from 4k to 1m"))? as u32;
                if key == "max_read" { self.max_read = n } else { self.max_write = n }
            }
            "read_ahead" => {
                self.read_ahead = parse_size(value)
                    .ok()
                    .filter(|n| *n <= 1 << 30)
                    .ok_or_else(|| wrong("expected a size of at most 1024m"))?
                    as u32;
            }
            "max_background" => {
                self.max_background =
                    value.parse().ok().filter(|n| *n > 0).ok_or_else(|| wrong("expected 1 to 65535"))?;
            }
            "threads" => {
                self.threads = value
                    .parse()
                    .ok()
                    .filter(|n| *n <= 256)
                    .ok_or_else(|| wrong("expected 0 (automatic) to 256"))?;
            }
            "entry_timeout" | "attr_timeout" | "negative_timeout" | "timeout" => {
                let t = seconds(value).ok_or_else(|| wrong("expected seconds or 'forever'"))?;
                match key {
                    "entry_timeout" => self.entry_timeout = t,
                    "attr_timeout" => self.attr_timeout = t,
                    "negative_timeout" => self.negative_timeout = t,
                    _ => (self.entry_timeout, self.attr_timeout, self.negative_timeout) = (t, t, t),
                }
            }
            k if k.starts_with("x-") || k.starts_with("X-") => {}
            // For people who read fstab.
            "comment" => {}
            // Without its value it would be known; mount(8) gives some of its own words one.
            _ if key != "user" && MountOptions::default().set(key).is_ok() => {
                return Err(wrong("it takes no value"));
            }
            _ => return Err(format!("{UNKNOWN} '{key}'")),
        }
        Ok(())
    }

    /// Mount flags of mount(2).
    pub(crate) fn flags(&self) -> libc::c_ulong {
        let pairs = [
            (self.read_only, libc::MS_RDONLY),
            (!self.suid, libc::MS_NOSUID),
            (!self.dev, libc::MS_NODEV),
            (!self.exec, libc::MS_NOEXEC),
            (self.nosymfollow, MS_NOSYMFOLLOW),
            (self.noatime, libc::MS_NOATIME),
            (self.sync, libc::MS_SYNCHRONOUS),
            (self.dirsync, libc::MS_DIRSYNC),
        ];
        pairs.iter().filter(|(on, _)| *on).fold(0, |all, (_, f)| all | f)
    }

    /// The option string for `fusermount3 -o`.
    pub(crate) fn helper_words(&self) -> String {
        let escape = |s: &str| s.replace('\\', "\\\\").replace(',', "\\,");
        let mut words = vec![
            format!("fsname={}", escape(&self.fsname)),
            format!("subtype={}", escape(&self.subtype)),
            format!("max_read={}", self.max_read),
            "default_permissions".to_string(),
        ];
        let pairs = [
            (self.read_only, "ro"),
            (self.suid, "suid"),
            (self.dev, "dev"),
            (!self.exec, "noexec"),
            (self.noatime, "noatime"),
            (self.sync, "sync"),
            (self.dirsync, "dirsync"),
            (self.allow_other, "allow_other"),
            (self.auto_unmount, "auto_unmount"),
        ];
        words.extend(pairs.iter().filter(|(on, _)| *on).map(|(_, w)| w.to_string()));
        words.join(",")
    }
}

/// Seconds with a fraction, or "forever".
fn seconds(text: &str) -> Option<Duration> {
    if text == "forever" {
        return Some(FOREVER);
    }
    let s: f64 = text.parse().ok()?;
    (s >= 0.0).then(|| Duration::try_from_secs_f64(s).unwrap_or(FOREVER).min(FOREVER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_syntax() {
        let o =
            MountOptions::parse("ro,noatime,allow_other,fsname=/dev/x,max_read=128k,timeout=0.5").unwrap();
        assert!(o.read_only && o.noatime && o.allow_other);
        assert_eq!((o.fsname.as_str(), o.max_read), ("/dev/x", 131_072));
        assert_eq!(o.entry_timeout, Duration::from_millis(500));
        assert_eq!(MountOptions::parse("attr_timeout=forever").unwrap().attr_timeout, FOREVER);
        assert_eq!(MountOptions::parse("attr_timeout=1e30").unwrap().attr_timeout, FOREVER);
        assert_eq!(MountOptions::parse("").unwrap(), MountOptions::default());
        assert_eq!(MountOptions::parse("shared").unwrap().attr_timeout, Duration::from_secs(1));
        assert!(!MountOptions::parse("ro,rw").unwrap().read_only);
    }

    #[test]
    fn words_of_fstab() {
        for word in [
            "nodiratime",
            "diratime",
            "lazytime",
            "nolazytime",
            "norelatime",
            "nostrictatime",
            "silent",
            "loud",
            "iversion",
            "noiversion",
            "group",
            "owner",
            "comment=a disk",
            "comment=",
            "x-gvfs-show",
            "x-systemd.requires=/a",
            "X-mount.mkdir",
        ] {
            assert_eq!(MountOptions::parse(word).unwrap(), MountOptions::default(), "{word}");
        }
        let o = MountOptions::parse("nosymfollow").unwrap();
        assert!(o.nosymfollow && o.flags() & MS_NOSYMFOLLOW != 0);
        assert!(!MountOptions::parse("nosymfollow,symfollow").unwrap().nosymfollow);
        assert_eq!(MountOptions::default().flags() & MS_NOSYMFOLLOW, 0);
        for bad in ["lazytime=1", "nosymfollow=0"] {
            assert!(MountOptions::parse(bad).unwrap_err().contains("takes no value"), "{bad}");
        }
    }

    #[test]
    fn errors_name_the_word() {
        for bad in [
            "wibble",
            "max_read=5",
            "max_write=2m",
            "threads=-1",
            "timeout=x",
            "timeout=-1",
            "fsname=",
            "fsname",
            "max_background=0",
            "color=red",
            "attr_timeout=NaN",
        ] {
            let e = MountOptions::parse(&format!("ro,{bad}")).unwrap_err();
            assert!(e.contains(bad.split('=').next().unwrap()), "{e}");
        }
    }

    #[test]
    fn helper_options_escape_commas() {
        let o = MountOptions { fsname: "a,b".into(), ..MountOptions::default() };
        assert!(o.helper_words().starts_with("fsname=a\\,b,subtype=freehold,"));
    }
}

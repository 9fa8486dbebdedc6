//! What follows `-o`: the door's options ([`fuse::MountOptions`]) and those of the engine, in one list.

use crate::{Synchronous, VolumeOptions, memory};
use fs::Ordered;
pub use fs::units::{format_size, parse_size};
use fuse::MountOptions;
use sched::queues::Mode;
use share::server::place::Numa;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Most that `shared_cache=` can be: what an arena has room for.
const SHARED_CACHE_MAX: u64 = (format::shared::ARENA_PAGES * 4096) as u64;

/// Options of a served volume.
#[derive(Clone)]
pub struct ServeOptions {
    /// How the volume is opened.
    pub volume: VolumeOptions,
    /// How it is mounted. `fsname` is empty; the service puts the image's path there.
    pub mount: MountOptions,
    /// Where other processes begin sessions over shared memory.
    pub share: Share,
    /// Bytes of file pages that programs read there without a message; `None`: see [`ServeOptions::shared_cache`].
    pub shared_cache_bytes: Option<usize>,
    /// Where metrics are told over HTTP; `None`: nowhere.
    pub metrics: Option<SocketAddr>,
    /// For how long a stopped or silent client of shared memory may keep others waiting for its locks; `None`: for ever. See
    /// [`share::server::Options::lock_timeout`].
    pub lock_timeout: Option<Duration>,
    /// Whether programs may overwrite pages of files, and make and remove files, without waiting for an answer. See
    /// [`share::server::Options::lease_windows_max`], [`share::server::Options::directories_max`] and [`share::server::Options::new_files_max`].
    pub write_leases: bool,
    /// On which memory node it is served.
    pub numa: Numa,
    /// How requests are placed among the queues of an NVMe controller that Freehold drives itself; `None`: each thread has its own.
    pub queues: Option<Mode>,
    /// Whose fsync and fdatasync are answered with order alone, through each door.
    pub ordered: Ordered,
}

/// Where other processes begin sessions over shared memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Share {
    /// Nowhere.
    Off,
    /// At the usual place, see [`crate::sessions`]. Where there is none the volume is served without sessions.
    #[default]
    Usual,
    /// At this socket.
    At(PathBuf),
}

impl ServeOptions {
    /// Parses words separated by commas, later ones winning. Beside those of [`MountOptions::parse`]:
    /// `cache=` (bytes of the page cache), `shared_cache=` (bytes of pages that programs read without a message, 0: none), `dirty=` (most bytes not yet written), `dirty_age=` (seconds until changes are
    /// durable by themselves), `engine_read_ahead=` (bytes), `discard`, `nodiscard`, `share=` (path of a socket),
    /// `share` (at the usual place, as without the word), `noshare`,
    /// `metrics=` (address and port), `lock_timeout=` (seconds, 0: none), `write_leases`, `nowrite_leases`,
    /// `resume=` (seconds that files without a name are kept for programs that had them open when a server ended),
    /// `numa=` (`auto`, `off` or the number of a memory node), `queues=` (`threads`, `turns`, `classes` or `auto`), `ordered` (fsync and fdatasync give order, not durability), `durable` (as
    /// without the three words), `ordered_programs=` (those of these programs, with colons between them), `ordered_paths=` (those on files
    /// below these paths of the volume). `ro` and `noatime` hold for volume and mount; `fsname=` and `subtype=` are refused.
    /// Sizes take the suffixes k, m, g, t.
    ///
    /// With `sloppy` (mount -s) unknown words are left out.
    ///
    /// # Errors
    /// A sentence that names the word that is not understood or whose value is wrong.
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>, sloppy: bool) -> Result<ServeOptions, String> {
        let mount = MountOptions { fsname: String::new(), ..MountOptions::default() };
        // Programs wait as long for a server that is started again.
        let volume = VolumeOptions {
            orphans_kept: Duration::from_secs(30),
            cache_bytes: memory::usual_cache(1) as usize,
            dirty_bytes_max: 0,
            ..VolumeOptions::default()
        };
        let mut all = ServeOptions {
            volume,
            mount,
            share: Share::default(),
            shared_cache_bytes: None,
            metrics: None,
            lock_timeout: None,
            write_leases: true,
            numa: Numa::default(),
            queues: None,
            ordered: Ordered::default(),
        };
        for word in texts.into_iter().flat_map(|t| t.split(',')).map(str::trim).filter(|w| !w.is_empty()) {
            match all.set(word) {
                Err(e) if !(sloppy && MountOptions::is_unknown(&e)) => return Err(e),
                _ => {}
            }
        }
        let v = &mut all.volume;
        v.read_only = all.mount.read_only;
        v.noatime = all.mount.noatime;
        v.synchronous = match (all.mount.sync, all.mount.dirsync) {
            (true, _) => Synchronous::Everything,
            (false, true) => Synchronous::Directories,
            (false, false) => Synchronous::Nothing,
        };
        if all.share == Share::Off {
            v.orphans_kept = Duration::ZERO;
        }
        if all.mount.sync && !all.ordered.is_off() {
            return Err("option 'sync' wants each write durable, which 'ordered' would undo".into());
        }
        if v.dirty_bytes_max == 0 {
            v.dirty_bytes_max = (v.cache_bytes / 4).max(128 << 20);
        }
        // The engine wants at most half of the cache to be dirty.
        v.dirty_bytes_max = v.dirty_bytes_max.min(v.cache_bytes / 2);
        Ok(all)
    }

    /// Bytes of file pages that programs read over shared memory without a message: copies of what is in the page cache, so half as many where nothing else is said, but
    /// no less than 128 MiB. They take memory as they are used.
    pub fn shared_cache(&self) -> usize {
        let usual = (self.volume.cache_bytes as u64 / 2).clamp(128 << 20, SHARED_CACHE_MAX) as usize;
        self.shared_cache_bytes.unwrap_or(usual)
    }

    fn set(&mut self, word: &str) -> Result<(), String> {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        let bytes = |least: u64, most: u64| {
            let size = parse_size(value).map_err(|e| format!("option '{word}': {e}"))?;
            if !(least..=most).contains(&size) {
                let (least, most) = (format_size(least), format_size(most));
                return Err(format!("option '{word}': expected a size from {least} to {most}"));
            }
            Ok(size as usize)
        };
        let v = &mut self.volume;
        match key {
            "cache" => v.cache_bytes = bytes(8 << 20, 1 << 40)?,
            "shared_cache" => self.shared_cache_bytes = Some(bytes(0, SHARED_CACHE_MAX)?),
            "dirty" => v.dirty_bytes_max = bytes(1 << 20, 1 << 40)?,
            "engine_read_ahead" => v.read_ahead_max = bytes(0, 1 << 30)?,
            "dirty_age" => {
                let seconds = value.parse().ok().filter(|s| (0.01..=3600.0).contains(s));
                let wrong = || format!("option '{word}': expected seconds from 0.01 to 3600");
                v.dirty_age_max = Duration::from_secs_f64(seconds.ok_or_else(wrong)?);
            }
            "resume" => {
                let seconds = value.parse::<u32>().ok().filter(|&s| s <= 3600);
                let wrong = || format!("option '{word}': expected whole seconds, at most 3600");
                v.orphans_kept = Duration::from_secs(seconds.ok_or_else(wrong)?.into());
            }
            "noshare" if value.is_empty() => self.share = Share::Off,
            "share" if word == key => self.share = Share::Usual,
            "share" => {
                if !value.starts_with('/') {
                    return Err(format!("option '{word}': expected the absolute path of a socket"));
                }
                self.share = Share::At(value.into());
            }
            "metrics" => {
                self.metrics = Some(parse_address(value).map_err(|e| format!("option '{word}': {e}"))?)
            }
            "queues" => {
                self.queues = match value {
                    "threads" => None,
                    "turns" => Some(Mode::RoundRobin),
                    "classes" => Some(Mode::Separated),
                    "auto" => Some(Mode::Automatic),
                    _ => return Err(format!("option '{word}': expected threads, turns, classes or auto")),
                }
            }
            "numa" => {
                self.numa = match value {
                    "auto" => Numa::Auto,
                    "off" => Numa::Off,
                    node => {
                        let wrong =
                            |_| format!("option '{word}': expected auto, off or the number of a memory node");
                        Numa::Node(node.parse().map_err(wrong)?)
                    }
                }
            }
            "lock_timeout" => {
                let seconds = value.parse().ok().filter(|s| *s == 0.0 || (0.1..=1e6).contains(s));
                let wrong = || format!("option '{word}': expected seconds from 0.1 to 1000000, or 0");
                let seconds: f64 = seconds.ok_or_else(wrong)?;
                self.lock_timeout = (seconds > 0.0).then(|| Duration::from_secs_f64(seconds));
            }
            "write_leases" if value.is_empty() => self.write_leases = true,
            "nowrite_leases" if value.is_empty() => self.write_leases = false,
            "ordered" if value.is_empty() => self.ordered.all = true,
            "durable" if value.is_empty() => self.ordered = Ordered::default(),
            "ordered_programs" => {
                let programs = Ordered::parse_programs(value).map_err(|e| format!("option '{word}': {e}"))?;
                self.ordered.programs.extend(programs);
            }
            "ordered_paths" => {
                let paths = Ordered::parse_paths(value).map_err(|e| format!("option '{word}': {e}"))?;
                self.ordered.paths.extend(paths);
            }
            "discard" if value.is_empty() => v.discard = true,
            "nodiscard" if value.is_empty() => v.discard = false,
            // By these the other commands find a mount, its image and its server.
            "fsname" => {
                return Err(format!(
                    "option '{word}': the source of a mount is always the image of the volume"
                ));
            }
            "subtype" => return Err(format!("option '{word}': the type of a mount is always fuse.freehold")),
            "noshare" | "write_leases" | "nowrite_leases" | "ordered" | "durable" | "discard"
            | "nodiscard" => return Err(format!("option '{word}': it takes no value")),
            _ => return self.mount.set(word),
        }
        Ok(())
    }
}

/// Reads where to listen: `127.0.0.1:9464`, `[::1]:9464`.
///
/// # Errors
/// A sentence that says what an address looks like.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("'{text}' is not an address and a port; write it as in 127.0.0.1:9464"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_both_sides() {
        let o =
            ServeOptions::parse(["ro,cache=64m,dirty=60m", "noatime,discard,dirty_age=0.5"], false).unwrap();
        assert!(o.volume.read_only && o.mount.read_only && o.mount.noatime && o.volume.discard);
        assert_eq!((o.volume.cache_bytes, o.volume.dirty_bytes_max), (64 << 20, 32 << 20));
        assert_eq!(o.volume.dirty_age_max, Duration::from_millis(500));
        let shared = |text| ServeOptions::parse([text], false).unwrap().shared_cache();
        assert_eq!(
            ["cache=64m", "cache=1g", "cache=64g", "cache=1g,shared_cache=0", "shared_cache=3g"].map(shared),
            [128 << 20, 512 << 20, 4 << 30, 0, 3 << 30]
        );
        let dirty = |text| ServeOptions::parse([text], false).unwrap().volume.dirty_bytes_max;
        assert_eq!(
            [dirty("cache=4g"), dirty("cache=256m"), dirty("cache=64m")],
            [1 << 30, 128 << 20, 32 << 20]
        );
        assert!(o.mount.fsname.is_empty() && o.metrics.is_none());
        let o = ServeOptions::parse(["metrics=[::1]:9464"], false).unwrap();
        assert_eq!(o.metrics.unwrap().port(), 9464);
        assert!(o.mount.fsname.is_empty() && o.share == Share::Usual);
        let share = |text| ServeOptions::parse([text], false).unwrap().share;
        assert_eq!(share("share=/a/b"), Share::At("/a/b".into()));
        assert_eq!((share("noshare"), share("noshare,share")), (Share::Off, Share::Usual));
        let timeout = |text| ServeOptions::parse([text], false).unwrap().lock_timeout;
        let numa = |text| ServeOptions::parse([text], false).unwrap().numa;
        assert_eq!((numa("rw"), numa("numa=off"), numa("numa=1")), (Numa::Auto, Numa::Off, Numa::Node(1)));
        let queues = |text: &str| ServeOptions::parse([text], false).unwrap().queues;
        assert_eq!((queues("rw"), queues("queues=classes,queues=threads")), (None, None));
        assert_eq!(
            ["turns", "classes", "auto"].map(|how| queues(&format!("queues={how}"))),
            [Mode::RoundRobin, Mode::Separated, Mode::Automatic].map(Some)
        );
        assert_eq!(timeout("lock_timeout=2.5"), Some(Duration::from_millis(2500)));
        assert_eq!((timeout("lock_timeout=3,lock_timeout=0"), timeout("rw")), (None, None));
        let synchronous = |text| ServeOptions::parse([text], false).unwrap().volume.synchronous;
        assert_eq!(
            ["rw", "dirsync", "sync", "sync,dirsync", "sync,async"].map(synchronous),
            [
                Synchronous::Nothing,
                Synchronous::Directories,
                Synchronous::Everything,
                Synchronous::Everything,
                Synchronous::Nothing
            ]
        );
        let leases = |text| ServeOptions::parse([text], false).unwrap().write_leases;
        assert_eq!(
            (leases("rw"), leases("nowrite_leases"), leases("nowrite_leases,write_leases")),
            (true, false, true)
        );
        let ordered = |text| ServeOptions::parse([text], false).unwrap().ordered;
        assert!(ordered("rw").is_off() && ordered("ordered").all && ordered("ordered,durable").is_off());
        let some = ordered("ordered_programs=sqlite3:postgres,ordered_paths=/a/b,ordered_paths=/c");
        assert_eq!(some.to_string(), "sqlite3, postgres, files below /a/b, files below /c");
        let both = ServeOptions::parse(["sync", "ordered_paths=/a"], false).err().unwrap();
        assert!(both.contains("'sync'"), "{both}");
        for bad in [
            "wibble",
            "write_leases=1",
            "ordered=1",
            "ordered_paths",
            "ordered_paths=a",
            "ordered_programs=",
            "ordered_programs=/bin/sh",
            "durable=0",
            "numa",
            "numa=-1",
            "queues",
            "queues=4",
            "lock_timeout",
            "lock_timeout=-1",
            "lock_timeout=inf",
            "cache",
            "cache=1",
            "shared_cache",
            "shared_cache=5g",
            "discard=2",
            "dirty_age=nan",
            "resume=-1",
            "cache=x",
            "share=here",
            "metrics=9464",
            "share=",
            "noshare=1",
            "colour=red",
        ] {
            let e = ServeOptions::parse([bad], false).err().unwrap();
            assert!(e.contains(bad.split('=').next().unwrap()), "{e}");
        }
        for bad in ["fsname=/x", "fsname", "subtype=x", "subtype"] {
            for sloppy in [false, true] {
                let e = ServeOptions::parse([bad], sloppy).err().unwrap();
                assert!(e.contains(bad) && e.contains("always"), "{e}");
            }
        }
        for bad in
            ["ordered=1", "durable=1", "discard=x", "noshare=1", "nowrite_leases=1", "ro=1", "noatime=0"]
        {
            let e = ServeOptions::parse([bad], false).err().unwrap();
            assert!(e.contains("takes no value"), "{e}");
            // Nor is it one of those that are ignored because they are not known.
            assert!(ServeOptions::parse([bad], true).is_err(), "{bad}");
        }
        assert!(ServeOptions::parse(["wibble,colour=red,ro"], true).is_ok_and(|o| o.volume.read_only));
        assert!(ServeOptions::parse(["cache=1"], true).is_err());
        assert!(ServeOptions::parse(["max_read=unknown"], true).is_err(), "the value is wrong, not the word");
    }
}

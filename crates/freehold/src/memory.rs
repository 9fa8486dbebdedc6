//! How much memory there is for page caches.

use std::path::Path;

/// Bytes of the page cache of each of so many volumes, where nothing else is said: an eighth of the memory for all of them, but no less than 256 MiB for
/// each unless that is half of the memory. A cache takes memory as it is used, and keeps what it has taken.
pub fn usual_cache(volumes: usize) -> u64 {
    let all = available();
    (all / 8 / volumes.max(1) as u64).max(256 << 20).min(all / 2).max(8 << 20)
}

/// Bytes of memory that this process may use: the machine's, or the limit of its control group where that is less.
fn available() -> u64 {
    // SAFETY: calls without pointers.
    let (pages, page) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    let all = pages.max(0) as u64 * page.max(0) as u64;
    group_limit().map_or(all, |limit| limit.min(all))
}

/// The least limit of the control group and those around it (cgroups(7), version 2).
fn group_limit() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let limit = |group: &Path| {
        let text =
            std::fs::read_to_string(Path::new("/sys/fs/cgroup").join(group).join("memory.max")).ok()?;
        text.trim().parse().ok()
    };
    Path::new(own).ancestors().filter_map(limit).min()
}

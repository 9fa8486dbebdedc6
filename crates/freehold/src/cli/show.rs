//! How things look on the terminal: tables, times, names, progress.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// A table with left-aligned first and right-aligned other columns (but for those in `left`).
pub fn table(rows: &[Vec<String>], left: &[usize]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|t| t.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let cells = row.iter().enumerate().map(|(c, text)| {
            let pad = " ".repeat(widths[c] - text.chars().count());
            if c == 0 || left.contains(&c) { format!("{text}{pad}") } else { format!("{pad}{text}") }
        });
        out += cells.collect::<Vec<_>>().join("  ").trim_end();
        out.push('\n');
    }
    out
}

/// A name for people: what would confuse a terminal is escaped.
pub fn name(bytes: &[u8]) -> String {
    let escape =
        |c: char| if c.is_control() || c == '\\' { c.escape_default().to_string() } else { c.to_string() };
    match std::str::from_utf8(bytes) {
        Ok(text) => text.chars().map(escape).collect(),
        Err(_) => bytes.escape_ascii().to_string(),
    }
}

/// A time in the local zone: `2026-05-04 13:37`.
pub fn time(t: freehold::Time) -> String {
    let sec: libc::time_t = t.sec;
    // SAFETY: an all-zero tm is valid; both pointers are to local variables.
    let tm = unsafe {
        let mut tm: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&sec, &mut tm).is_null() {
            return t.sec.to_string();
        }
        tm
    };
    let (year, month) = (tm.tm_year as i64 + 1900, tm.tm_mon + 1);
    format!("{year:04}-{month:02}-{:02} {:02}:{:02}", tm.tm_mday, tm.tm_hour, tm.tm_min)
}

/// Type and permissions as ls shows them: `drwxr-xr-x`.
pub fn mode(mode: u32) -> String {
    let kind = match mode & libc::S_IFMT {
        libc::S_IFDIR => 'd',
        libc::S_IFLNK => 'l',
        libc::S_IFIFO => 'p',
        libc::S_IFSOCK => 's',
        libc::S_IFBLK => 'b',
        libc::S_IFCHR => 'c',
        _ => '-',
    };
    let mut text: Vec<char> = std::iter::once(kind).chain("rwxrwxrwx".chars()).collect();
    for (bit, c) in text[1..].iter_mut().enumerate() {
        if mode & (0o400 >> bit) == 0 {
            *c = '-';
        }
    }
    for (bit, at, with, without) in [(0o4000, 3, 's', 'S'), (0o2000, 6, 's', 'S'), (0o1000, 9, 't', 'T')] {
        if mode & bit != 0 {
            text[at] = if text[at] == 'x' { with } else { without };
        }
    }
    text.into_iter().collect()
}

/// Progress of a work whose size in bytes is not known before. Shown on a terminal only.
pub fn progress() -> ProgressBar {
    bar(ProgressBar::no_length, "{spinner} {binary_bytes:>10}  {binary_bytes_per_sec:>12}  {wide_msg}")
}

/// Progress of a work on so many things. Shown on a terminal only.
pub fn progress_of(total: u64) -> ProgressBar {
    bar(|| ProgressBar::new(total), "{spinner} {human_pos} of {human_len}  {per_sec}  {wide_msg}")
}

fn bar(make: impl FnOnce() -> ProgressBar, template: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, style) = (make(), ProgressStyle::with_template(template));
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_names_tables() {
        assert_eq!(mode(0o40755), "drwxr-xr-x");
        assert_eq!(mode(0o104644), "-rwSr--r--");
        assert_eq!(mode(0o41777), "drwxrwxrwt");
        assert_eq!(name(b"a\nb"), "a\\nb");
        assert_eq!(name("häuser".as_bytes()), "häuser");
        assert_eq!(name(b"\xff"), "\\xff");
        let rows = [vec!["a".into(), "10".into()], vec!["bbb".into(), "7".into()]];
        assert_eq!(table(&rows, &[]), "a    10\nbbb   7\n");
    }
}

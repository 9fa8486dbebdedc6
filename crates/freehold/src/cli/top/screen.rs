//! The picture: lines of text that fit into a terminal of a given size. Nothing here knows of terminals.

use super::view::View;
use crate::cli::ask::{short_number, short_time};
use crate::cli::show;
use freehold::options::format_size;

/// Draws a view into so many columns and rows. Each line has at most that many characters and none that moves the cursor.
pub fn draw(view: &View, (columns, rows): (usize, usize)) -> Vec<String> {
    let mut lines = head(view);
    // What is left is shared: calls get as much as clients leave free, at least half.
    let room = rows.saturating_sub(lines.len() + 2);
    let (calls, clients) = (view.calls.len() + 1, view.clients.len() + 1);
    let for_calls = calls.min((room / 2).max(room.saturating_sub(clients)));
    let for_clients = clients.min(room.saturating_sub(for_calls));
    lines.push(String::new());
    table(&mut lines, &call_rows(view), for_calls, &[1]);
    lines.push(String::new());
    table(&mut lines, &client_rows(view), for_clients, &[1]);
    lines.truncate(rows);
    lines.iter().map(|l| l.chars().take(columns).collect::<String>().trim_end().to_string()).collect()
}

fn head(view: &View) -> Vec<String> {
    let (v, cache) = (&view.now.volume, &view.now.cache);
    let name = |text: &str| show::name(text.as_bytes());
    let mut lines = vec![format!(
        "{} on {}   up {}   process {}",
        name(&v.image),
        name(&v.mountpoint),
        short_time(v.uptime_seconds),
        v.pid
    )];
    let engine = &view.now.engine;
    let pending = engine.epoch.saturating_sub(engine.epoch_durable + 1);
    lines.push(match view.now.space {
        Some(s) => format!(
            "space   {} of {} used   {} inodes   epoch {}, {} on the way",
            format_size(s.bytes.saturating_sub(s.bytes_free)),
            format_size(s.bytes),
            s.inodes_used,
            engine.epoch,
            pending
        ),
        None => "space   not known: the volume is being closed".into(),
    });
    let hits = view.hit_rate.map_or("-".into(), |h| format!("{:.1}%", h * 100.0));
    lines.push(format!(
        "cache   {} of {} used   {} dirty   {hits} hits   {} evictions/s",
        format_size(cache.bytes_used),
        format_size(cache.bytes),
        format_size(cache.bytes_dirty),
        short_number(view.evictions)
    ));
    if let Some(d) = &view.device {
        lines.push(format!(
            "device  {} reads/s {}/s   {} writes/s {}/s   {} flushes/s   queue {} of {}",
            short_number(d.reads),
            format_size(d.read as u64),
            short_number(d.writes),
            format_size(d.written as u64),
            short_number(d.flushes),
            d.now.in_flight,
            d.now.queue_depth
        ));
    }
    let doors: Vec<String> = view.doors.iter().map(|(n, r)| format!("{n} {}/s", short_number(*r))).collect();
    lines.push(format!(
        "calls   {}   read {}/s   written {}/s",
        doors.join("   "),
        format_size(view.read as u64),
        format_size(view.written as u64)
    ));
    if let Some(why) = &v.latched {
        lines.push(format!("READ-ONLY since an error: {}", name(why)));
    }
    lines
}

fn call_rows(view: &View) -> Vec<Vec<String>> {
    let head = ["Door", "Call", "Per second", "p50", "p99", "max", "Errors"].map(String::from).to_vec();
    let row = |r: &super::view::Row| {
        let time = |ns: u64| short_time(ns as f64 / 1e9);
        let c = &r.calls;
        vec![
            r.door.clone(),
            c.call.clone(),
            short_number(r.rate),
            time(c.percentile_ns(0.5)),
            time(c.percentile_ns(0.99)),
            time(c.max_ns),
            c.errors.to_string(),
        ]
    };
    std::iter::once(head).chain(view.calls.iter().map(row)).collect()
}

fn client_rows(view: &View) -> Vec<Vec<String>> {
    let head = ["Pid", "Program", "User", "Session", "Handles", "Calls/s", "Data/s", "Calls", "Idle"];
    let row = |c: &super::view::Client| {
        let s = &c.session;
        vec![
            s.pid.to_string(),
            c.program.clone(),
            s.uid.to_string(),
            s.session.to_string(),
            s.handles.to_string(),
            short_number(c.rate),
            format_size(c.moved as u64),
            short_number(s.calls as f64),
            short_time(s.idle_seconds),
        ]
    };
    std::iter::once(head.map(String::from).to_vec()).chain(view.clients.iter().map(row)).collect()
}

/// The first `most` rows, the last of which says how many are missing.
fn table(lines: &mut Vec<String>, rows: &[Vec<String>], most: usize, left: &[usize]) {
    let text = show::table(rows, left);
    let all: Vec<&str> = text.lines().collect();
    if all.len() <= most {
        lines.extend(all.iter().map(|l| l.to_string()));
    } else if most > 1 {
        lines.extend(all[..most - 1].iter().map(|l| l.to_string()));
        lines.push(format!("... and {} more", all.len() - most + 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use freehold::observe::{Calls, Device, Door, Session, Snapshot};
    use std::time::Duration;

    fn busy(n: u64) -> Snapshot {
        let calls = (0..20).map(|i| {
            let count = n * (i + 1);
            let buckets = vec![(1280, count)];
            Calls { call: format!("call{i}"), count, sum_ns: count * 1000, max_ns: 1200, buckets, errors: n }
        });
        let door =
            Door { name: "share".into(), calls: calls.collect(), bytes_read: n << 20, ..Door::default() };
        let sessions = (0..40).map(|i| Session { session: i, pid: -1, calls: n * i, ..Session::default() });
        let mut all = Snapshot { doors: vec![door], sessions: sessions.collect(), ..Snapshot::default() };
        (all.cache.hits, all.cache.misses, all.media) = (3 * n, n, Some(Device::default()));
        all.volume.image = "/a\x1b[2J/very/long/name/of/an/image/".repeat(4);
        all
    }

    #[test]
    fn it_fits_and_nothing_in_it_moves_the_cursor() {
        let view = View::new(&busy(0), &busy(10), Duration::from_secs(2));
        for (columns, rows) in [(80, 24), (40, 10), (1, 1), (200, 100), (80, 3), (0, 0)] {
            let lines = draw(&view, (columns, rows));
            assert!(lines.len() <= rows, "{rows} rows: {lines:#?}");
            for line in &lines {
                assert!(line.chars().count() <= columns && !line.chars().any(char::is_control), "{line:?}");
            }
        }
        let text = draw(&view, (80, 24)).join("\n");
        for part in ["75.0% hits", "call19", "and 14 more", "Program", "1.2us", "5 MiB/s", "1050/s"] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert_eq!(text.lines().count(), 24);
    }

    #[test]
    fn nothing_happened() {
        let view = View::new(&Snapshot::default(), &Snapshot::default(), Duration::ZERO);
        let text = draw(&view, (80, 24)).join("\n");
        assert!(text.contains("- hits") && text.contains("being closed"), "{text}");
        assert!(
            view.json()["cache"]["hit_rate"].is_null() && view.json()["calls"].as_array().unwrap().is_empty()
        );
    }
}

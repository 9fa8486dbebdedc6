//! The table and the JSON file.

use super::driver::Bench;
use super::machine::Machine;
use super::sample::{Goal, Kind, Row};
use anyhow::Result;
use serde_json::{Value, json};

/// Prints the table, the reasons of what is missing, and what failed. `ended`: why the run ended early, if it did.
pub fn print(bench: &Bench, ended: Option<&str>) {
    let rows: Vec<&Row> = bench.results.rows.iter().filter(|r| !r.samples.is_empty()).collect();
    print!("{}", tables(&rows));
    for options in bench.lab.mount_options.borrow().iter() {
        println!("mounted {options}");
    }
    println!("\nnotes (caches, and what is counted):");
    rows.iter().for_each(|r| println!("  {:<20} {}", r.name, r.note));
    let costs: Vec<String> = rows.iter().filter_map(|r| cost(r)).collect();
    if !costs.is_empty() {
        println!("\ncost of one operation of the subject (processor us of the process; device requests):");
        costs.iter().for_each(|line| println!("  {line}"));
    }
    bench.results.skipped.iter().for_each(|s| println!("left out: {s}"));
    bench.failures.iter().for_each(|s| println!("FAILED: {s}"));
    if let Some(why) = ended {
        println!(
            "NOT ALL WAS MEASURED ({why}): rows are missing, and those at the end may lack subjects or repetitions"
        );
    }
}

/// Prints rows that have just been measured, on standard error, with the seconds since the start.
pub fn progress(rows: &[Row], seconds: f64) {
    let rows: Vec<&Row> = rows.iter().filter(|r| !r.samples.is_empty()).collect();
    if !rows.is_empty() {
        eprintln!("measured until now ({seconds:.0} s):\n{}", tables(&rows));
    }
}

/// A table for each subject, with the columns of those who were measured beside it.
fn tables(rows: &[&Row]) -> String {
    let in_process = [
        Kind::Freehold,
        Kind::FreeholdLoop,
        Kind::Ext4,
        Kind::Ext4Journal,
        Kind::Xfs,
        Kind::Raw,
        Kind::Ext4Direct,
        Kind::Unordered,
    ];
    let mounted = [Kind::Fuse, Kind::Passthrough, Kind::Ext4];
    let programs = [Kind::Run, Kind::Ext4, Kind::Xfs];
    let all = [(Kind::Freehold, &in_process[..]), (Kind::Fuse, &mounted[..]), (Kind::Run, &programs[..])];
    let mut text = String::new();
    for (subject, kinds) in all {
        let rows: Vec<&Row> = rows.iter().copied().filter(|r| r.subject == subject).collect();
        // The subject's own column is always there, also when it failed or was not reached.
        let kinds: Vec<Kind> = kinds
            .iter()
            .copied()
            .filter(|k| *k == subject || rows.iter().any(|r| r.samples.contains_key(k)))
            .collect();
        if !rows.is_empty() {
            text += &table(&rows, &kinds);
            text.push('\n');
        }
    }
    text
}

fn table(rows: &[&Row], kinds: &[Kind]) -> String {
    let mut lines = Vec::new();
    let mut head = vec!["test".to_string(), "unit".into()];
    head.extend(kinds.iter().map(|k| k.name().to_string()));
    head.extend(kinds[1..].iter().filter(|k| **k != Kind::FreeholdLoop).map(|k| format!("vs {}", k.name())));
    head.extend(["goal".into(), "".into()]);
    lines.push(head);
    for row in rows {
        let mut line = vec![row.name.clone(), row.unit.to_string()];
        line.extend(kinds.iter().map(|k| row.median(*k).map_or("-".into(), figure)));
        let others = kinds[1..].iter().filter(|k| **k != Kind::FreeholdLoop);
        line.extend(others.map(|k| row.ratio(*k).map_or("-".into(), |r| format!("{r:.2}x"))));
        line.push(row.goal.map_or("-".into(), goal));
        line.push(verdict(row).into());
        lines.push(line);
    }
    let columns = lines[0].len();
    let widths: Vec<usize> =
        (0..columns).map(|c| lines.iter().map(|l| l[c].chars().count()).max().unwrap_or(0)).collect();
    let mut text = String::new();
    for line in lines {
        for (c, cell) in line.iter().enumerate() {
            let width = widths[c];
            text += &if c < 2 { format!("{cell:<width$}  ") } else { format!("{cell:>width$}  ") };
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

fn verdict(row: &Row) -> &'static str {
    match (row.goal, row.passed()) {
        (None, _) => "",
        (_, Some(true)) => "pass",
        (_, Some(false)) => "FAIL",
        (_, None) => "not judged",
    }
}

fn goal(goal: Goal) -> String {
    match goal {
        Goal::AtLeast(kind, n) => format!(">= {n}x {}", kind.name()),
        Goal::AtMost(kind, n) => format!("<= {n}x {}", kind.name()),
        Goal::Max(n) => format!("<= {n}"),
    }
}

/// A figure with about four digits.
pub fn figure(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => {
            let digits = format!("{v:.0}");
            let mut out = String::new();
            for (i, c) in digits.chars().enumerate() {
                if i > 0 && (digits.len() - i).is_multiple_of(3) {
                    out.push(' ');
                }
                out.push(c);
            }
            out
        }
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 1.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

fn cost(row: &Row) -> Option<String> {
    let samples = row.samples.get(&row.subject)?;
    let ops: u64 = samples.iter().map(|s| s.ops).sum();
    // Of bytes, the cost is that of a MiB.
    let (ops, of) = if row.unit == "MB/s" { (ops >> 20, "MiB") } else { (ops, "op") };
    // What programs of their own did is not counted.
    if ops == 0 || row.subject == Kind::Run {
        return None;
    }
    let sum = |f: &dyn Fn(&super::sample::Sample) -> f64| samples.iter().map(f).sum::<f64>() / ops as f64;
    let device =
        |f: &dyn Fn(&super::sample::DeviceOps) -> u64| sum(&|s| s.device.as_ref().map_or(0, f) as f64);
    let mut line = format!("{:<20} {:.2} us/{of}", row.name, sum(&|s| s.cpu_seconds) * 1e6);
    if samples.iter().any(|s| s.device.is_some()) {
        line += &format!(
            ", {:.3} reads, {:.3} writes, {:.3} flushes, {:.0} B written, {:.3} log blocks",
            device(&|d| d.reads),
            device(&|d| d.writes),
            device(&|d| d.flushes),
            device(&|d| d.bytes_written),
            device(&|d| d.log_blocks)
        );
    }
    Some(line)
}

/// Everything, for machines. `ended`: why the run ended early, if it did.
pub fn json(bench: &Bench, machine: &Machine, ended: Option<&str>) -> Result<String> {
    let rows: Vec<Value> = bench
        .results
        .rows
        .iter()
        .filter(|r| !r.samples.is_empty())
        .map(|r| {
            let medians: serde_json::Map<String, Value> =
                r.samples.keys().map(|k| (k.name().to_string(), json!(r.median(*k)))).collect();
            let ratios: serde_json::Map<String, Value> = r
                .samples
                .keys()
                .filter(|k| **k != r.subject)
                .map(|k| (k.name().to_string(), json!(r.ratio(*k))))
                .collect();
            json!({
                "name": r.name, "unit": r.unit, "note": r.note, "subject": r.subject, "goal": r.goal,
                "passed": r.passed(), "unjudged": r.unjudged, "median": medians, "ratio": ratios,
                "samples": r.samples,
            })
        })
        .collect();
    let document = json!({
        "machine": machine,
        "scale": bench.scale,
        "image_bytes": bench.lab.size,
        "mounts": *bench.lab.mount_options.borrow(),
        "rows": rows,
        "left_out": bench.results.skipped,
        "failures": bench.failures,
        "ended_early": ended,
    });
    Ok(serde_json::to_string_pretty(&document)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures() {
        assert_eq!(figure(1_234_567.0), "1 234 567");
        assert_eq!(figure(999.4), "999");
        assert_eq!(figure(12.34), "12.3");
        assert_eq!(figure(0.0123), "0.012");
    }
}

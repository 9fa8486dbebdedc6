//! Table 1 and figures 11 to 13: fsync and fbarrier with ext4's journaling and with dual-mode journaling.

use super::modes::{file, over_time, window};
use super::plot::{Plot, Scale, Series, Shape};
use super::{Figure, Size, Table, times, whole};
use crate::timed::clock::MS;
use crate::timed::journal::{Load, Report, System, run};
use crate::timed::profile::Profile;

fn measure(profile: &Profile, system: System, load: Load) -> Report {
    run(profile, &profile.host(), system, load)
}

/// Table 1: latency of fsync behind a write that allocates.
pub fn latency(size: Size) -> Figure {
    let mut table =
        Table::new(&["device", "system", "mean ms", "median", "99 %", "99.9 %", "99.99 %", "mean of EXT4's"]);
    let mut plots = Vec::new();
    let mut bars: Vec<Vec<(f64, f64)>> = vec![Vec::new(); 2];
    for (i, profile) in Profile::all().iter().enumerate() {
        let mut first = None;
        for (s, system) in [System::EXT4_DR, System::BFS_DR].into_iter().enumerate() {
            let r = measure(profile, system, Load::new(size.of(50_000)));
            let ms = |ns: f64| format!("{:.3}", ns / MS as f64);
            let [median, p99, p999, p9999] = [5_000, 9_900, 9_990, 9_999].map(|p| ms(r.percentile(p) as f64));
            let base = *first.get_or_insert(r.mean());
            let share = format!("{:.0} %", 100.0 * r.mean() / base);
            table.row([
                profile.name.into(),
                system.name().into(),
                ms(r.mean()),
                median,
                p99,
                p999,
                p9999,
                share,
            ]);
            bars[s].push((i as f64, r.mean() / MS as f64));
        }
    }
    let names = [System::EXT4_DR.name(), System::BFS_DR.name()];
    let series =
        names.iter().zip(bars).map(|(name, points)| Series { name: name.to_string(), points }).collect();
    let plot = Plot {
        title: "Mean latency of fsync, one thread that allocates".into(),
        x: String::new(),
        y: "milliseconds".into(),
        x_scale: Scale::Linear,
        y_scale: Scale::Logarithmic,
        shape: Shape::Bars(Profile::all().iter().map(|p| p.name.to_string()).collect()),
        series,
    };
    plots.push(("table1-fsync.svg".into(), plot));
    Figure { title: "Table 1: latency of fsync", table, plots }
}

const SYSTEMS: [System; 4] = [System::EXT4_DR, System::BFS_DR, System::EXT4_OD, System::BFS_OD];

/// Figure 11: context switches of the caller.
pub fn switches(size: Size) -> Figure {
    let mut table = Table::new(&[
        "device",
        "EXT4-DR",
        "BFS-DR",
        "EXT4-OD",
        "BFS-OD",
        "calls/s EXT4-DR",
        "BFS-DR",
        "EXT4-OD",
        "BFS-OD",
    ]);
    let mut bars: Vec<Vec<(f64, f64)>> = vec![Vec::new(); 4];
    for (i, profile) in Profile::all().iter().enumerate() {
        let reports = SYSTEMS.map(|system| {
            let load = Load { allocating: false, ..Load::new(size.of(20_000)) };
            measure(profile, system, load)
        });
        for (bar, r) in bars.iter_mut().zip(&reports) {
            bar.push((i as f64, r.switches));
        }
        let [a, b, c, d] = [0, 1, 2, 3].map(|n: usize| format!("{:.2}", reports[n].switches));
        let [e, f, g, h] = [0, 1, 2, 3].map(|n: usize| whole(reports[n].rate));
        table.row([profile.name.to_string(), a, b, c, d, e, f, g, h]);
    }
    let series =
        SYSTEMS.iter().zip(bars).map(|(s, points)| Series { name: s.name().into(), points }).collect();
    let plot = Plot {
        title: "Context switches of the caller for each fsync or fbarrier".into(),
        x: String::new(),
        y: "context switches".into(),
        x_scale: Scale::Linear,
        y_scale: Scale::Linear,
        shape: Shape::Bars(Profile::all().iter().map(|p| p.name.to_string()).collect()),
        series,
    };
    let title = "Figure 11: context switches of the caller for each call, 4 KiB overwrites";
    Figure { title, table, plots: vec![("fig11-switches.svg".into(), plot)] }
}

/// Figure 12: the depth of the device's queue under fsync and fbarrier of BarrierFS.
pub fn dual_depth(size: Size) -> Figure {
    let mut table = Table::new(&["device", "system", "mean depth", "highest", "of"]);
    let mut plots = Vec::new();
    for profile in [Profile::phone(), Profile::desktop()] {
        let mut series = Vec::new();
        for system in [System::EXT4_DR, System::BFS_DR, System::BFS_OD] {
            let allocating = system != System::BFS_OD;
            let load = Load { allocating, trace: true, warm_up: 0, ..Load::new(size.of(20_000)) };
            let r = measure(&profile, system, load);
            table.row([
                profile.name.to_string(),
                system.name().to_string(),
                format!("{:.2}", r.depth.1),
                r.depth.0.to_string(),
                profile.queue_depth.to_string(),
            ]);
            series.push(Series { name: system.name().into(), points: window(&r.depth_changes, 0, 10 * MS) });
        }
        let title = format!("Commands in the queue, fsync and fbarrier, {}", profile.name);
        plots.push((format!("fig12-depth-{}.svg", file(&profile)), over_time(title, series)));
    }
    let title = "Figure 12: queue depth under fsync (DR) and fbarrier (OD)";
    Figure { title, table, plots }
}

/// Figure 13: fxmark's DWSL, by threads: each allocates a block of its own file and calls fsync.
pub fn scaling(size: Size) -> Figure {
    let mut table = Table::new(&[
        "device",
        "metadata pages",
        "threads",
        "EXT4-DR",
        "BFS-DR",
        "BFS / EXT4",
        "copy-DR",
        "copy / EXT4",
        "conflicts per BFS commit",
    ]);
    let mut plots = Vec::new();
    for profile in [Profile::desktop(), Profile::protected()] {
        let mut series = Vec::new();
        for (shared_pages, pages) in [(true, "shared"), (false, "own")] {
            let systems = [System::EXT4_DR, System::BFS_DR, System::COPY_DR];
            let mut lines: [Vec<(f64, f64)>; 3] = Default::default();
            for threads in [1, 2, 4, 6, 8, 10, 12] {
                let calls = size.of(6_000);
                let load = || Load { threads, shared_pages, ..Load::new(calls) };
                let reports = systems.map(|system| measure(&profile, system, load()));
                let [ext4, bfs, copy] = [0, 1, 2].map(|n: usize| reports[n].rate);
                let conflicts = reports[1].conflicts as f64 / reports[1].commits.max(1) as f64;
                table.row([
                    profile.name.to_string(),
                    pages.to_string(),
                    threads.to_string(),
                    whole(ext4),
                    whole(bfs),
                    times(bfs / ext4),
                    whole(copy),
                    times(copy / ext4),
                    format!("{conflicts:.2}"),
                ]);
                for (line, rate) in lines.iter_mut().zip([ext4, bfs, copy]) {
                    line.push((threads as f64, rate));
                }
            }
            for (system, points) in systems.iter().zip(lines) {
                series.push(Series { name: format!("{} {pages}", system.name()), points });
            }
        }
        let plot = Plot {
            title: format!("DWSL: allocating write and fsync, {}", profile.name),
            x: "threads".into(),
            y: "calls per second".into(),
            x_scale: Scale::Linear,
            y_scale: Scale::Linear,
            shape: Shape::Lines,
            series,
        };
        plots.push((format!("fig13-dwsl-{}.svg", file(&profile)), plot));
    }
    let title =
        "Figure 13: journaling by threads (DWSL: allocating write and fsync, each thread its own file)";
    Figure { title, table, plots }
}

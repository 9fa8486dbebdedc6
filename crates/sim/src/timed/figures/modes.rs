//! Figures 1, 9 and 10: random writes whose order is kept in several ways.

use super::plot::{Plot, Scale, Series, Shape};
use super::{Figure, Size, Table, percent, times, whole};
use crate::timed::clock::{MS, Ns};
use crate::timed::modes::{Load, Mode, Report, run};
use crate::timed::profile::{Barrier, Profile};

fn measure(profile: &Profile, mode: Mode, size: Size) -> Report {
    let load = Load::new(mode);
    let writes = size.of(load.writes);
    run(profile, &profile.host(), Load { writes, ..load })
}

/// Figure 1: what order costs, by the number of channels.
pub fn channels(size: Size) -> Figure {
    let mut table = Table::new(&[
        "channels",
        "unordered IOPS",
        "XnF IOPS",
        "XnF / unordered",
        "barrier IOPS",
        "barrier / unordered",
    ]);
    let mut lines: [Vec<(f64, f64)>; 3] = Default::default();
    for channels in [1, 2, 4, 8, 16, 32] {
        let profile = Profile::array(channels);
        let modes = [Mode::Unordered, Mode::TransferAndFlush, Mode::Barrier];
        let [p, xnf, b] = modes.map(|mode| measure(&profile, mode, size).iops);
        table.row([channels.to_string(), whole(p), whole(xnf), percent(xnf, p), whole(b), percent(b, p)]);
        for (line, iops) in lines.iter_mut().zip([p, b, xnf]) {
            line.push((channels as f64, iops));
        }
    }
    let names = ["unordered", "barrier", "transfer-and-flush"];
    let series =
        names.iter().zip(lines).map(|(name, points)| Series { name: name.to_string(), points }).collect();
    let plot = Plot {
        title: "Ordered and unordered random writes by channels".into(),
        x: "channels".into(),
        y: "writes of 4 KiB per second".into(),
        x_scale: Scale::Logarithmic,
        y_scale: Scale::Logarithmic,
        shape: Shape::Lines,
        series,
    };
    let title = "Figure 1: ordered against unordered writes, by channels";
    Figure { title, table, plots: vec![("fig01-channels.svg".into(), plot)] }
}

/// Figure 9: 4 KiB random writes in four modes on three devices.
pub fn random_writes(size: Size) -> Figure {
    let mut table = Table::new(&[
        "device",
        "mode",
        "IOPS",
        "of unordered",
        "over XnF",
        "queue depth",
        "switches per write",
    ]);
    let mut bars: Vec<Vec<(f64, f64)>> = vec![Vec::new(); Mode::ALL.len()];
    for (i, profile) in Profile::all().iter().enumerate() {
        let reports = Mode::ALL.map(|mode| measure(profile, mode, size));
        let (slowest, unordered) = (reports[0].iops, reports[3].iops);
        for (m, (mode, r)) in Mode::ALL.iter().zip(&reports).enumerate() {
            table.row([
                profile.name.to_string(),
                mode.name().to_string(),
                whole(r.iops),
                percent(r.iops, unordered),
                times(r.iops / slowest),
                format!("{:.1}", r.depth_mean),
                format!("{:.2}", r.switches),
            ]);
            bars[m].push((i as f64, 100.0 * r.iops / unordered));
        }
    }
    let series = Mode::ALL
        .iter()
        .zip(bars)
        .map(|(mode, points)| Series { name: mode.name().into(), points })
        .collect();
    let plot = Plot {
        title: "4 KiB random writes in order, percent of unordered".into(),
        x: String::new(),
        y: "percent of unordered".into(),
        x_scale: Scale::Linear,
        y_scale: Scale::Logarithmic,
        shape: Shape::Bars(Profile::all().iter().map(|p| p.name.to_string()).collect()),
        series,
    };
    let title = "Figure 9: 4 KiB random writes, by how their order is kept";
    Figure { title, table, plots: vec![("fig09-random-writes.svg".into(), plot)] }
}

/// Beside figure 9: the three ways to honour the flag, by the size of an epoch.
pub fn epochs(size: Size) -> Figure {
    let mut table = Table::new(&["device", "way", "1 write per epoch", "4", "16", "64", "256"]);
    let mut plots = Vec::new();
    for profile in Profile::all().into_iter().filter(|p| !p.protected) {
        let unordered = measure(&profile, Mode::Unordered, size).iops;
        let mut series = Vec::new();
        for way in Barrier::HONEST {
            let sizes = [1, 4, 16, 64, 256];
            let shares = sizes.map(|epoch| {
                let load = Load { epoch, writes: size.of(20_000), ..Load::new(Mode::Barrier) };
                100.0 * run(&profile.clone().with(way), &profile.host(), load).iops / unordered
            });
            let [a, b, c, d, e] = shares.map(|share| percent(share, 100.0));
            table.row([profile.name.to_string(), way.name().to_string(), a, b, c, d, e]);
            let points = sizes.iter().zip(shares).map(|(size, share)| (*size as f64, share)).collect();
            series.push(Series { name: way.name().into(), points });
        }
        let plot = Plot {
            title: format!("Barrier writes by way and size of the epoch, {}", profile.name),
            x: "writes in an epoch".into(),
            y: "percent of unordered".into(),
            x_scale: Scale::Logarithmic,
            y_scale: Scale::Linear,
            shape: Shape::Lines,
            series,
        };
        plots.push((format!("fig09-ways-{}.svg", file(&profile)), plot));
    }
    let title = "Beside figure 9: the three ways to honour the barrier flag, percent of unordered";
    Figure { title, table, plots }
}

/// Figure 10: the depth of the device's queue over time.
pub fn depth(size: Size) -> Figure {
    let mut table = Table::new(&["device", "mode", "mean depth", "highest", "of"]);
    let mut plots = Vec::new();
    for profile in [Profile::desktop(), Profile::phone()] {
        let mut series = Vec::new();
        for mode in [Mode::WaitOnTransfer, Mode::Barrier] {
            let load = Load { trace: true, writes: size.of(20_000), ..Load::new(mode) };
            let r = run(&profile, &profile.host(), load);
            table.row([
                profile.name.to_string(),
                mode.name().to_string(),
                format!("{:.2}", r.depth_mean),
                r.depth_max.to_string(),
                profile.queue_depth.to_string(),
            ]);
            series.push(Series { name: mode.name().into(), points: window(&r.depth, 0, 5 * MS) });
        }
        let title = format!("Commands in the device's queue, {}", profile.name);
        plots.push((format!("fig10-depth-{}.svg", file(&profile)), over_time(title, series)));
    }
    let title = "Figure 10: queue depth, waiting for transfers and with barriers";
    Figure { title, table, plots }
}

/// Changes between two moments, in milliseconds from the first.
pub(super) fn window(changes: &[(Ns, u32)], from: Ns, to: Ns) -> Vec<(f64, f64)> {
    let inside = changes.iter().filter(|(at, _)| (from..to).contains(at));
    inside.map(|(at, depth)| ((at - from) as f64 / MS as f64, *depth as f64)).collect()
}

pub(super) fn over_time(title: String, series: Vec<Series>) -> Plot {
    let (x, y) = ("milliseconds".to_string(), "commands".to_string());
    let (x_scale, y_scale, shape) = (Scale::Linear, Scale::Linear, Shape::Steps);
    Plot { title, x, y, x_scale, y_scale, shape, series }
}

/// The first word of a device's name, for files.
pub(super) fn file(profile: &Profile) -> &'static str {
    profile.name.split([' ', '-']).next().unwrap_or_default()
}

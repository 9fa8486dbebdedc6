//! What `freehold device info` and `smart` print.

use super::show;
use freehold::device::{Facts, Format, PciAddress, Space};
use freehold::options::format_size;
use serde_json::{Value, json};

/// All but the health, as an object.
pub fn info_object(address: PciAddress, facts: &Facts) -> Value {
    let mut all = json!(facts);
    if let Some(fields) = all.as_object_mut() {
        fields.remove("health");
        fields.insert("address".into(), address.to_string().into());
    }
    all
}

/// The health, as an object.
pub fn smart_object(address: PciAddress, facts: &Facts) -> Value {
    let mut all = json!(facts.health);
    if let Some(fields) = all.as_object_mut() {
        fields.insert("address".into(), address.to_string().into());
        fields.insert("model".into(), facts.model.as_str().into());
        fields.insert("serial".into(), facts.serial.as_str().into());
    }
    all
}

/// All but the health, as text.
pub fn info(address: PciAddress, facts: &Facts) -> String {
    let or_none = |names: &[String]| if names.is_empty() { "none".into() } else { names.join(", ") };
    let size_or = |bytes: Option<u64>, none: &str| bytes.map_or(none.into(), format_size);
    let mut rows = vec![
        ("address", address.to_string()),
        ("model", text(&facts.model)),
        ("serial number", text(&facts.serial)),
        ("firmware", text(&facts.firmware)),
        ("nvme version", facts.version.clone()),
        ("capacity", size_or(facts.capacity, "not told")),
        ("largest transfer", size_or(facts.transfer_max, "no limit")),
        (
            "queue pairs",
            match facts.served {
                true => {
                    format!(
                        "{} in use by a served volume, of up to {} entries",
                        facts.queues, facts.queue_entries_max
                    )
                }
                false => format!("{}, of up to {} entries", facts.queues, facts.queue_entries_max),
            },
        ),
        (
            "write cache",
            match facts.write_cache {
                None => "none that loses data",
                Some(true) => "volatile, on",
                Some(false) => "volatile, off",
            }
            .into(),
        ),
        ("scatter gather lists", if facts.sgl { "yes" } else { "no" }.into()),
        ("admin commands", or_none(&facts.admin_commands)),
        ("nvm commands", or_none(&facts.nvm_commands)),
    ];
    if let Some(bytes) = facts.unallocated.filter(|bytes| *bytes > 0) {
        rows.insert(6, ("in no namespace", format_size(bytes)));
    }
    let mut out = lines(&rows);
    for n in &facts.namespaces {
        out += &format!("\nnamespace {}\n", n.id);
        out += &lines(&namespace(n));
    }
    out
}

fn namespace(n: &Space) -> Vec<(&'static str, String)> {
    let mut rows = vec![
        ("size", format_size(n.bytes)),
        ("allocated", format!("{} of {}", format_size(n.used), format_size(n.capacity))),
        ("logical block", format_size(n.block)),
        (
            "atomic write",
            format!(
                "{} when power fails, {} otherwise",
                format_size(n.atomic_write),
                format_size(n.atomic_write_normal)
            ),
        ),
        ("formats", n.formats.iter().map(format_of).collect::<Vec<_>>().join(", ")),
    ];
    rows.extend(n.eui64.clone().map(|id| ("eui64", id)));
    rows.extend(n.nguid.clone().map(|id| ("nguid", id)));
    rows
}

fn format_of(f: &Format) -> String {
    let metadata = match f.metadata {
        0 => String::new(),
        bytes => format!(" and {bytes} B of metadata"),
    };
    format!("{}{metadata}{}", format_size(f.block), if f.now { " (in use)" } else { "" })
}

/// The health, as text.
pub fn smart(address: PciAddress, facts: &Facts) -> String {
    let h = &facts.health;
    let degrees = |t: Option<i32>| t.map_or("not told".into(), |t| format!("{t} C"));
    let mut rows = vec![
        ("controller", format!("{address}, {}, serial number {}", text(&facts.model), text(&facts.serial))),
        ("warnings", if h.warnings.is_empty() { "none".into() } else { h.warnings.join("; ") }),
        ("temperature", format!("{} C", h.temperature)),
        (
            "temperature limits",
            format!(
                "warning {}, critical {}",
                degrees(h.temperature_warning),
                degrees(h.temperature_critical)
            ),
        ),
        (
            "time beyond limits",
            format!("warning {} min, critical {} min", h.warning_minutes, h.critical_minutes),
        ),
    ];
    if !h.sensors.is_empty() {
        let all: Vec<String> = h.sensors.iter().map(|t| format!("{t} C")).collect();
        rows.push(("sensors", all.join(", ")));
    }
    rows.extend([
        ("spare", format!("{} %, warning below {} %", h.spare, h.spare_threshold)),
        ("life used", format!("{} %", h.used)),
        ("read", format!("{} in {} commands", format_size(h.bytes_read), h.reads)),
        ("written", format!("{} in {} commands", format_size(h.bytes_written), h.writes)),
        ("busy", format!("{} min", h.busy_minutes)),
        ("power", format!("on for {} h, {} times", h.power_on_hours, h.power_cycles)),
        ("unsafe shutdowns", h.unsafe_shutdowns.to_string()),
        ("media errors", h.media_errors.to_string()),
        ("error log entries", h.error_entries.to_string()),
    ]);
    lines(&rows)
}

/// What a device says may hold anything.
fn text(said: &str) -> String {
    if said.is_empty() { "-".into() } else { show::name(said.as_bytes()) }
}

fn lines(rows: &[(&str, String)]) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|(name, value)| vec![name.to_string(), value.clone()]).collect();
    show::table(&rows, &[1])
}

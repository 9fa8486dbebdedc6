//! `freehold device`: NVMe controllers, taking them from the kernel's driver and back, and what they tell of themselves.

use super::{Exit, facts, show};
use freehold::device::{Claim, Controller, DeviceError, Machine, Namespace, PciAddress, Released};
use freehold::options::format_size;
use serde_json::json;
use std::path::PathBuf;

/// Show NVMe controllers, hand them to user space, and give them back to the kernel
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  freehold device list                       what there is, and what uses it
  freehold device claim 0000:04:00.0         from the kernel's driver to vfio-pci; its block devices go
  freehold device release 0000:04:00.0       back to the kernel's driver; its block devices are there again
  freehold device info 0000:04:00.0          what a claimed one can do, and its namespaces
  freehold device smart 0000:04:00.0         how it fares

None of them writes to the device. A controller that anything uses is not taken, and one that a program drives is \
not given back. See docs/DEVICES.md.")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
    /// Where /sys, /proc, /dev and /run are looked for
    #[arg(long, global = true, hide = true, default_value = "/", value_name = "DIR")]
    root: PathBuf,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Show the NVMe controllers, their drivers, and what uses them
    #[command(after_help = "\
Group is the IOMMU group: devices of one group can only be handed to user space together. In use is what can be seen without \
touching the device; claim looks closer. Open files of other users' programs are seen by root only.")]
    List {
        /// Tell it as JSON, sizes in bytes
        #[arg(long)]
        json: bool,
    },
    /// Take controllers from the kernel's driver, for a driver in user space
    #[command(after_help = "\
Several are taken together or not at all. One that is claimed already stays so. Refused: a controller that is mounted, swapped to, a \
part of another device, or open in a program; one whose IOMMU group holds other devices that the kernel drives. What is interrupted is \
put in order by freehold device release.")]
    Claim {
        /// PCI addresses, as freehold device list shows them
        #[arg(required = true, value_name = "ADDRESS", value_parser = address)]
        addresses: Vec<PciAddress>,
        /// Take controllers without an IOMMU, too: they, and whoever drives them, can then overwrite all memory
        #[arg(long)]
        no_iommu: bool,
    },
    /// Give controllers back to the driver that they had
    #[command(after_help = "\
Returns when their block devices are there again. Does nothing to a controller that is not claimed. Refused: a controller that a \
program drives.")]
    Release {
        /// PCI addresses, as freehold device list shows them
        #[arg(required = true, value_name = "ADDRESS", value_parser = address)]
        addresses: Vec<PciAddress>,
    },
    /// Show what a claimed controller can do, and its namespaces
    #[command(after_help = ASKED)]
    Info(Asked),
    /// Show the health of a claimed controller (its SMART log)
    #[command(after_help = ASKED)]
    Smart(Asked),
}

const ASKED: &str = "\
The controller itself is asked: by whoever serves a volume on it (the user who does, or root, may have that done), or, when nobody drives it, by \
this command, as root or the owner of its node in /dev/vfio. Nothing on it is changed. One that the kernel drives is left to nvme(1) and \
smartctl(8).

Exit codes: 0 it was asked, 1 it could not be, 2 wrong usage.";

#[derive(clap::Args)]
struct Asked {
    /// PCI address, as freehold device list shows it, with nvme: before it or not
    #[arg(value_name = "ADDRESS", value_parser = address)]
    address: PciAddress,
    /// Tell it as JSON; sizes in bytes, temperatures in degrees Celsius
    #[arg(long)]
    json: bool,
}

fn address(text: &str) -> Result<PciAddress, String> {
    let parsed = text.strip_prefix("nvme:").unwrap_or(text).parse();
    parsed.map_err(|_| DeviceError::Address { text: text.into() }.to_string())
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let machine = Machine::new(args.root);
    match args.command {
        Command::List { json } => list(&machine, json),
        Command::Claim { addresses, no_iommu } => claim(&machine, &addresses, no_iommu),
        Command::Release { addresses } => release(&machine, &addresses),
        Command::Info(Asked { address, json }) => {
            let facts = machine.inspect(address)?;
            match json {
                true => println!("{:#}", facts::info_object(address, &facts)),
                false => print!("{}", facts::info(address, &facts)),
            }
            Ok(())
        }
        Command::Smart(Asked { address, json }) => {
            let facts = machine.inspect(address)?;
            match json {
                true => println!("{:#}", facts::smart_object(address, &facts)),
                false => print!("{}", facts::smart(address, &facts)),
            }
            Ok(())
        }
    }
}

fn list(machine: &Machine, json: bool) -> anyhow::Result<()> {
    let all = machine.list()?;
    if json {
        println!("{:#}", all.iter().map(object).collect::<serde_json::Value>());
        return Ok(());
    }
    if all.is_empty() {
        println!("no NVMe controllers here");
        return Ok(());
    }
    let head = ["Address", "Model", "Serial", "Firmware", "Namespaces", "Node", "Group", "Driver", "In use"]
        .map(String::from);
    let rows: Vec<Vec<String>> = std::iter::once(head.to_vec()).chain(all.iter().map(row)).collect();
    print!("{}", show::table(&rows, &[1, 2, 3, 4, 7, 8]));
    Ok(())
}

fn row(c: &Controller) -> Vec<String> {
    let or_dash = |text: String| if text.is_empty() { "-".into() } else { show::name(text.as_bytes()) };
    let driver = c.driver.as_deref().unwrap_or("none");
    vec![
        c.address.to_string(),
        or_dash(c.model.clone()),
        or_dash(c.serial.clone()),
        or_dash(c.firmware.clone()),
        or_dash(namespaces(&c.namespaces)),
        c.numa_node.map_or("-".into(), |n| n.to_string()),
        or_dash(c.iommu_group.clone().unwrap_or_default()),
        match c.claim {
            Some(Claim::Stands) => format!("{driver} (claimed)"),
            Some(Claim::Interrupted) => {
                format!("{driver} (interrupted: freehold device release {})", c.address)
            }
            None => driver.into(),
        },
        or_dash(c.uses.iter().map(|u| u.to_string()).collect::<Vec<_>>().join("; ")),
    ]
}

fn namespaces(all: &[Namespace]) -> String {
    all.iter().map(|n| format!("{} {}", n.name, format_size(n.bytes))).collect::<Vec<_>>().join(", ")
}

fn object(c: &Controller) -> serde_json::Value {
    json!({
        "address": c.address.to_string(), "id": c.id, "model": c.model, "serial": c.serial, "firmware": c.firmware,
        "namespaces": c.namespaces, "numa_node": c.numa_node, "iommu_group": c.iommu_group, "driver": c.driver,
        "claim": c.claim.map(|claim| match claim {
            Claim::Stands => "stands",
            Claim::Interrupted => "interrupted",
        }),
        "uses": c.uses,
    })
}

fn claim(machine: &Machine, addresses: &[PciAddress], no_iommu: bool) -> anyhow::Result<()> {
    for c in machine.claim(addresses, no_iommu)? {
        let how = if c.already { "was bound to vfio-pci already" } else { "is claimed" };
        match c.node {
            Some(node) => println!("{} {how}: {}", c.address, node.display()),
            None => println!("{} {how}", c.address),
        }
    }
    Ok(())
}

fn release(machine: &Machine, addresses: &[PciAddress]) -> anyhow::Result<()> {
    let mut failed = false;
    for address in addresses {
        match machine.release(*address) {
            Ok(r) => println!("{}", released(&r)),
            // One that cannot be given back does not keep the others.
            Err(e) if addresses.len() > 1 => {
                eprintln!("freehold: {e}");
                failed = true;
            }
            Err(e) => return Err(e.into()),
        }
    }
    if failed { Err(Exit { code: 1, message: String::new() }.into()) } else { Ok(()) }
}

fn released(r: &Released) -> String {
    let how = if r.already { "was not claimed" } else { "is given back" };
    let driver = r.driver.as_deref().map_or("no driver".into(), |d| format!("driver {d}"));
    match namespaces(&r.namespaces) {
        none if none.is_empty() => format!("{} {how}: {driver}", r.address),
        some => format!("{} {how}: {driver}, {some}", r.address),
    }
}

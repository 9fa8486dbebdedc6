//! What `freehold device info` and `smart` are made of, from a simulated controller's own words; and whom they refuse. The commands on a
//! controller: `lab/tests/driver.sh`.

#[path = "device/fake.rs"]
#[allow(dead_code, reason = "most of it is for tests/device.rs")]
mod fake;

use fake::Fake;
use freehold::device::Facts;
use media::nvme::fake::{Config, FakeController};
use media::nvme::inspect;
use std::process::Command;

const A: &str = "0000:04:00.0";

fn facts(config: Config) -> Facts {
    Facts::new(&inspect(FakeController::new(config)).unwrap())
}

#[test]
fn everything_is_told_in_bytes() {
    let f = facts(Config { queues: 6, warning: 0b1001, ..Config::new(64 << 20) });
    assert_eq!((f.model.as_str(), f.version.as_str()), ("Simulated", "1.4"));
    assert_eq!((f.serial.as_str(), f.firmware.as_str()), ("SIM00000000000000001", "1.0"));
    assert_eq!((f.transfer_max, f.queues, f.queue_entries_max), (Some(128 << 10), 6, 1024));
    assert_eq!((f.capacity, f.write_cache, f.sgl, f.served), (None, Some(true), true, false));
    assert_eq!(f.nvm_commands, ["dataset management", "write zeroes"]);
    assert!(f.admin_commands.is_empty());
    let [n] = &f.namespaces[..] else { panic!("{f:?}") };
    assert_eq!((n.id, n.bytes, n.capacity, n.used), (1, 64 << 20, 64 << 20, 64 << 20));
    assert_eq!((n.block, n.atomic_write, n.atomic_write_normal), (512, 4096, 4096));
    let formats: Vec<_> = n.formats.iter().map(|f| (f.block, f.metadata, f.now)).collect();
    assert_eq!(formats, [(4096, 0, false), (512, 0, true)]);
    assert_eq!((n.eui64.as_deref(), n.nguid.as_deref()), (Some("73696d756c617465"), None));
    let h = &f.health;
    assert_eq!((h.temperature, h.spare, h.spare_threshold, h.used), (37, 100, 10, 3));
    assert_eq!(h.warnings.len(), 2);
    assert!(h.warnings[0].contains("spare") && h.warnings[1].contains("read-only"), "{:?}", h.warnings);
    assert_eq!(h.power_cycles, u64::MAX, "more than 64 bits hold");
    // As it goes over a control socket.
    assert_eq!(serde_json::from_slice::<Facts>(&serde_json::to_vec(&f).unwrap()).unwrap(), f);
}

#[test]
fn the_least_of_controllers() {
    let f = facts(Config { metadata: 8, shadow_doorbells: true, mdts: 0, ..Config::least(8 << 20) });
    assert_eq!((f.transfer_max, f.write_cache, f.sgl, f.queue_entries_max), (None, None, false, 2));
    assert_eq!(f.admin_commands, ["doorbell buffer config"]);
    assert!(f.nvm_commands.is_empty());
    assert_eq!(f.namespaces[0].formats[1].metadata, 8);
    assert!(f.health.warnings.is_empty());
}

#[test]
fn whom_the_commands_refuse() {
    let fake = Fake::new();
    fake.controller(A, Some("12"));
    fake.device("0000:00:1f.2", "0x010601", Some("3"));
    let run = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_freehold"));
        let out = command.arg("device").args(words).arg("--root").arg(fake.root()).output().unwrap();
        (out.status.code(), String::from_utf8(out.stderr).unwrap())
    };
    for command in ["info", "smart"] {
        for (address, code, words) in [
            (A, 1, "its driver is nvme"),
            ("nvme:0000:04:00.0", 1, "nvme smart-log /dev/nvme"),
            ("0000:00:1f.2", 1, "not an NVMe controller"),
            ("0000:07:00.0", 1, "no PCI device"),
            ("nvme0", 2, "not a PCI address"),
        ] {
            let (status, said) = run(&[command, address]);
            assert_eq!(status, Some(code), "{said}");
            assert!(said.contains(words), "{said}");
        }
    }
}

//! Claiming and releasing NVMe controllers on a machine of files: refusals, and what is left when a step fails or the process is killed.
//! A real kernel's turn is `lab/tests/claim.sh`.

#[path = "device/fake.rs"]
mod fake;
#[path = "device/steps.rs"]
mod steps;

use fake::{End, Fake};
use freehold::device::{Claim, DeviceError, PciAddress, Use};

const A: &str = "0000:04:00.0";
const B: &str = "0000:05:00.0";

fn at(text: &str) -> PciAddress {
    text.parse().unwrap()
}

/// Two controllers, each in an IOMMU group of its own.
fn two() -> Fake {
    let fake = Fake::new();
    fake.controller(A, Some("12"));
    fake.controller(B, Some("13"));
    fake
}

/// `claim` of `A` is refused with this errno and these words, and nothing has changed.
#[track_caller]
fn refused(fake: &Fake, errno: i32, words: &[&str]) {
    let before = fake.everything();
    let e = fake.machine().claim(&[at(A)], false).unwrap_err();
    let said = e.to_string();
    assert_eq!(e.errno(), errno, "{said}");
    assert!(words.iter().all(|w| said.contains(w)), "{words:?} not all in {said:?}");
    assert_eq!(fake.everything(), before);
}

#[test]
fn a_list_tells_what_is_there() {
    let fake = two();
    fake.put("sys/bus/pci/devices/0000:05:00.0/numa_node", "1\n");
    fake.device("0000:00:1f.2", "0x010601", Some("3"));
    fake.device("0000:06:00.0", "0x010802", None);
    let all = fake.machine().list().unwrap();
    assert_eq!(all.iter().map(|c| c.address).collect::<Vec<_>>(), [at(A), at(B), at("6:0.0")]);
    let c = &all[0];
    assert_eq!((c.model.as_str(), c.serial.as_str(), c.firmware.as_str()), ("A model of ours", "S4", "1.2"));
    assert_eq!((c.id.as_str(), c.driver.as_deref()), ("1b36:0010", Some("nvme")));
    assert_eq!((c.numa_node, c.iommu_group.as_deref()), (None, Some("12")));
    assert_eq!((c.namespaces[0].name.as_str(), c.namespaces[0].bytes), ("nvme4n1", 2 << 30));
    assert_eq!((c.namespaces.len(), c.claim, c.uses.len()), (1, None, 0));
    assert_eq!(all[1].numa_node, Some(1));
    assert_eq!((all[2].driver.as_deref(), all[2].namespaces.len()), (None, 0));
}

#[test]
fn users_are_seen_and_nothing_is_taken_from_them() {
    let mount = "30 22 259:41 / /srv rw - xfs /dev/nvme4n1p1 rw\n";
    type Prepare = fn(&Fake);
    let cases: [(Prepare, Use); 12] = [
        (
            |f| f.put("proc/self/mountinfo", "30 22 259:41 / /srv rw - xfs /dev/root rw\n"),
            Use::Mount {
                device: "nvme4n1p1".into(),
                point: "/srv".into(),
                file_system: "xfs".into(),
                pid: None,
            },
        ),
        (
            // Several devices, or user space: the number is not the device's.
            |f| f.put("proc/self/mountinfo", "30 22 0:42 / /v rw - fuse.freehold /dev/nvme4n1 rw\n"),
            Use::Mount {
                device: "nvme4n1".into(),
                point: "/v".into(),
                file_system: "fuse.freehold".into(),
                pid: None,
            },
        ),
        (
            |f| f.put("proc/swaps", "Filename Type\n/dev/nvme4n1p2 partition 1 0 -2\n"),
            Use::Swap { device: "nvme4n1p2".into() },
        ),
        (
            |f| {
                f.put("sys/class/block/nvme4n1p2/holders/dm-0", "");
                f.put("sys/class/block/dm-0/dm/name", "vg-root\n");
            },
            Use::Part { device: "nvme4n1p2".into(), of: "dm-0 (vg-root)".into() },
        ),
        (
            |f| f.put("sys/class/block/loop3/loop/backing_file", "/dev/nvme4n1\n"),
            Use::Part { device: "nvme4n1".into(), of: "loop3".into() },
        ),
        (
            |f| f.put("sys/fs/btrfs/ab-cd/devices/nvme4n1p1", ""),
            Use::Part { device: "nvme4n1p1".into(), of: "btrfs ab-cd".into() },
        ),
        (
            |f| f.put("sys/kernel/config/nvmet/subsystems/x/namespaces/1/device_path", "/dev/nvme4n1\n"),
            Use::Part { device: "nvme4n1".into(), of: "nvmet x".into() },
        ),
        (
            // By the name of a link.
            |f| {
                f.link("../../nvme4n1", "dev/disk/by-id/nvme-S4");
                f.put(
                    "sys/kernel/config/nvmet/subsystems/x/namespaces/1/device_path",
                    "/dev/disk/by-id/nvme-S4\n",
                );
            },
            Use::Part { device: "nvme4n1".into(), of: "nvmet x".into() },
        ),
        (
            // The controller as it is.
            |f| f.put("sys/kernel/config/nvmet/subsystems/x/passthru/device_path", "/dev/nvme4\n"),
            Use::Part { device: "nvme4".into(), of: "nvmet x".into() },
        ),
        (
            // A node of another name, by the number of one that every machine has.
            |f| {
                f.put("sys/class/nvme/nvme4/dev", "1:3\n");
                f.process(77, "smartd", "/dev/null");
                f.link("/dev/null", "proc/77/fd/4");
                f.link("/dev/zero", "proc/77/fd/5");
            },
            Use::Open { device: "/dev/nvme4".into(), pid: 77, program: "smartd".into() },
        ),
        (
            |f| {
                f.put("sys/class/nvme-generic/ng4n1/dev", "1:3\n");
                // A block device of that number is another one.
                f.put("sys/class/block/nvme5n1/dev", "1:3\n");
                f.process(77, "fio", "/dev/null");
            },
            Use::Open { device: "/dev/ng4n1".into(), pid: 77, program: "fio".into() },
        ),
        (
            |f| f.process(77, "smartd", "/dev/nvme4"),
            Use::Open { device: "/dev/nvme4".into(), pid: 77, program: "smartd".into() },
        ),
    ];
    for (prepare, expected) in cases {
        let fake = two();
        prepare(&fake);
        let all = fake.machine().list().unwrap();
        assert_eq!((&all[0].uses[..], all[1].uses.len()), (&[expected.clone()][..], 0));
        refused(&fake, libc::EBUSY, &["in use", &expected.to_string(), "Stop that first"]);
    }
    // In a container, whose table of mounts is another; what all see is told once.
    let fake = two();
    fake.link("mnt:[1]", "proc/self/ns/mnt");
    for (pid, table) in [(8, mount), (9, mount)] {
        fake.link(&format!("mnt:[{pid}]"), &format!("proc/{pid}/ns/mnt"));
        fake.put(&format!("proc/{pid}/mountinfo"), table);
    }
    let uses = fake.machine().list().unwrap().remove(0).uses;
    assert!(matches!(&uses[..], [Use::Mount { pid: Some(8 | 9), .. }]), "{uses:?}");
    refused(&fake, libc::EBUSY, &["mounted at /srv (xfs) in the mount namespace of process"]);
}

#[test]
fn what_cannot_be_seen_is_found_by_opening() {
    let fake = two();
    fake.held.borrow_mut().insert("dev/nvme4n1".into());
    assert_eq!(fake.machine().list().unwrap()[0].uses, []);
    refused(&fake, libc::EBUSY, &["nvme4n1 is held by"]);
    // Without a node nobody can tell.
    let fake = two();
    std::fs::remove_file(fake.path("dev/nvme4n1")).unwrap();
    refused(&fake, libc::ENOENT, &["opening", "nvme4n1"]);
}

#[test]
fn a_path_of_several_leads_to_the_namespace_that_they_share() {
    let fake = two();
    let dir = fake.path("sys/bus/pci/devices/0000:04:00.0/nvme/nvme4");
    std::fs::rename(dir.join("nvme4n1"), dir.join("nvme4c7n1")).unwrap();
    fake.put("proc/self/mountinfo", "30 22 259:40 / /srv rw - xfs /dev/nvme4n1 rw\n");
    assert_eq!(fake.machine().list().unwrap()[0].namespaces[0].name, "nvme4n1");
    refused(&fake, libc::EBUSY, &["mounted at /srv"]);
}

#[test]
fn what_the_kernel_is_just_finding_is_left_to_it() {
    let fake = two();
    fake.put("sys/bus/pci/devices/0000:04:00.0/nvme/nvme4/state", "connecting\n");
    refused(&fake, libc::EAGAIN, &["is starting", "Try again"]);
    std::fs::remove_dir_all(fake.path("sys/bus/pci/devices/0000:04:00.0/nvme")).unwrap();
    refused(&fake, libc::EAGAIN, &["is starting"]);
    // A namespace that appears, and may be mounted, when all others are held.
    let fake = two();
    let late = "sys/bus/pci/devices/0000:04:00.0/nvme/nvme4/nvme4n2/size";
    fake.put(late, "");
    let expected = fake.everything();
    std::fs::remove_dir_all(fake.path(late).parent().unwrap()).unwrap();
    fake.appears.replace(Some(late.into()));
    let e = fake.machine().claim(&[at(A)], false).unwrap_err();
    assert_eq!(e.errno(), libc::EAGAIN, "{e}");
    assert_eq!(fake.everything(), expected);
}

#[test]
fn what_is_no_controller_is_refused() {
    let fake = Fake::new();
    refused(&fake, libc::ENODEV, &["no PCI device", "freehold device list"]);
    fake.device(A, "0x010601", Some("12"));
    refused(&fake, libc::EINVAL, &["not an NVMe controller", "0x010601"]);
    assert_eq!(fake.machine().release(at(A)).unwrap_err().errno(), libc::EINVAL);
    let fake = two();
    fake.unbind(A);
    fake.bind(A, "uio_pci_generic");
    refused(&fake, libc::EBUSY, &["uio_pci_generic", "Unbind it first"]);
}

#[test]
fn groups_are_taken_whole() {
    let fake = two();
    fake.device("0000:04:00.1", "0x020000", Some("12"));
    fake.device("0000:03:00.0", "0x060400", Some("12"));
    fake.bind("0000:03:00.0", "pcieport");
    // A bridge, and a device without a driver, are not in the way.
    fake.machine().claim(&[at(A)], false).unwrap();
    fake.machine().release(at(A)).unwrap();
    fake.bind("0000:04:00.1", "e1000");
    refused(&fake, libc::EBUSY, &["IOMMU group 12", "0000:04:00.1 (driver e1000)"]);
    // Two controllers in one group: alone neither, together both.
    let fake = Fake::new();
    fake.controller(A, Some("12"));
    fake.controller(B, Some("12"));
    let before = fake.everything();
    refused(&fake, libc::EBUSY, &["0000:05:00.0 (driver nvme)", "same call"]);
    let claimed = fake.machine().claim(&[at(A), at(B), at(A)], false).unwrap();
    assert_eq!(
        claimed.iter().map(|c| (c.address, c.already)).collect::<Vec<_>>(),
        [(at(A), false), (at(B), false)]
    );
    for address in [A, B] {
        fake.machine().release(at(address)).unwrap();
    }
    assert_eq!(fake.everything(), before);
}

#[test]
fn a_kernel_that_cannot_hand_out_devices() {
    let fake = two();
    std::fs::create_dir(fake.path("modules")).unwrap();
    std::fs::rename(fake.path("sys/bus/pci/drivers/vfio-pci"), fake.path("modules/not-here")).unwrap();
    refused(&fake, libc::EOPNOTSUPP, &["vfio-pci", "modprobe"]);
    // Where the module is there it is loaded.
    std::fs::rename(fake.path("modules/not-here"), fake.path("modules/vfio-pci")).unwrap();
    fake.machine().claim(&[at(A)], false).unwrap();
}

#[test]
fn claimed_and_given_back() {
    let fake = two();
    let before = fake.everything();
    let claimed = fake.machine().claim(&[at(A)], false).unwrap().remove(0);
    assert_eq!((claimed.node.unwrap().to_str(), claimed.already), (Some("/dev/vfio/12"), false));
    assert_eq!(fake.driver(A).as_deref(), Some("vfio-pci"));
    assert!(fake.path("dev/vfio/12").exists() && !fake.path("dev/nvme4n1").exists());
    let c = fake.machine().list().unwrap().remove(0);
    // What only the kernel's driver knew is remembered.
    assert_eq!((c.claim, c.serial.as_str(), c.namespaces[0].bytes), (Some(Claim::Stands), "S4", 2 << 30));
    assert!(fake.machine().claim(&[at(A)], false).unwrap()[0].already);
    let released = fake.machine().release(at(A)).unwrap();
    assert_eq!((released.driver.as_deref(), released.already), (Some("nvme"), false));
    assert_eq!(released.namespaces[0].name, "nvme4n1");
    assert_eq!(fake.everything(), before);
    // Again, and what was never claimed.
    for address in [A, B] {
        assert!(fake.machine().release(at(address)).unwrap().already);
    }
    assert_eq!(fake.everything(), before);
}

#[test]
fn what_was_there_before_is_there_again() {
    // An override of somebody else's, and no driver at all.
    let fake = two();
    fake.put("sys/bus/pci/devices/0000:04:00.0/driver_override", "nvme\n");
    fake.unbind(B);
    let before = fake.everything();
    fake.machine().claim(&[at(A), at(B)], false).unwrap();
    fake.machine().release(at(A)).unwrap();
    fake.machine().release(at(B)).unwrap();
    assert_eq!(fake.everything(), before);
    // Without a record it is the kernel's choice.
    fake.machine().claim(&[at(B)], false).unwrap();
    std::fs::remove_file(fake.path("run/freehold/devices/0000:05:00.0")).unwrap();
    assert_eq!(fake.machine().release(at(B)).unwrap().driver.as_deref(), Some("nvme"));
    // A record of another boot is none.
    fake.machine().claim(&[at(A)], false).unwrap();
    fake.unbind(A);
    fake.put("sys/bus/pci/devices/0000:04:00.0/driver_override", "(null)\n");
    fake.bind(A, "nvme");
    fake.put("proc/sys/kernel/random/boot_id", "second-boot\n");
    assert_eq!(fake.machine().list().unwrap()[0].claim, None);
    assert!(fake.machine().release(at(A)).unwrap().already);
}

#[test]
fn what_a_program_drives_is_not_given_back() {
    let fake = two();
    fake.machine().claim(&[at(A)], false).unwrap();
    fake.process(99, "server", "/dev/vfio/12");
    let before = fake.everything();
    let e = fake.machine().release(at(A)).unwrap_err();
    assert_eq!(e.errno(), libc::EBUSY);
    assert!(e.to_string().contains("/dev/vfio/12 is open in process 99 (server)"), "{e}");
    std::fs::remove_dir_all(fake.path("proc/99")).unwrap();
    fake.held.borrow_mut().insert("dev/vfio/12".into());
    assert_eq!(fake.machine().release(at(A)).unwrap_err().errno(), libc::EBUSY);
    fake.process(99, "server", "/dev/vfio/12");
    assert_eq!(fake.everything(), before);
    fake.held.borrow_mut().clear();
    std::fs::remove_dir_all(fake.path("proc/99")).unwrap();
    fake.machine().release(at(A)).unwrap();
}

/// With iommufd a device has a node of its own, and the kernel may have none for its group.
#[test]
fn what_iommufd_has_is_not_given_back() {
    let fake = two();
    fake.machine().claim(&[at(A)], false).unwrap();
    std::fs::create_dir_all(fake.path(&format!("sys/bus/pci/devices/{A}/vfio-dev/vfio3"))).unwrap();
    let node = || fake.machine().claim(&[at(A)], false).unwrap()[0].node.clone().unwrap();
    assert_eq!(node().to_str(), Some("/dev/vfio/12"), "whoever may open the group needs nothing else");
    std::fs::remove_file(fake.path("dev/vfio/12")).unwrap();
    assert_eq!(node().to_str(), Some("/dev/vfio/devices/vfio3"));
    fake.process(99, "server", "/dev/vfio/devices/vfio3");
    let e = fake.machine().release(at(A)).unwrap_err();
    assert!(e.to_string().contains("/dev/vfio/devices/vfio3 is open in process 99 (server)"), "{e}");
    std::fs::remove_dir_all(fake.path("proc/99")).unwrap();
    fake.machine().release(at(A)).unwrap();
}

#[test]
fn a_controller_that_does_not_come_back_is_told() {
    let fake = two();
    fake.machine().claim(&[at(A)], false).unwrap();
    fake.works.set(false);
    let e = fake.machine().release(at(A)).unwrap_err();
    assert_eq!(e.errno(), libc::ETIMEDOUT, "{e}");
    assert_eq!(fake.driver(A).as_deref(), Some("nvme"));
    assert!(fake.machine().release(at(A)).unwrap().already, "there is nothing left to undo");
}

#[test]
fn pulled_out_while_it_was_claimed() {
    let fake = two();
    fake.machine().claim(&[at(A)], false).unwrap();
    fake.unbind(A);
    std::fs::remove_dir_all(fake.path("sys/bus/pci/devices/0000:04:00.0")).unwrap();
    assert_eq!(fake.machine().release(at(A)).unwrap_err().errno(), libc::ENODEV);
    assert!(!fake.path("run/freehold/devices/0000:04:00.0").exists());
}

#[test]
fn without_an_iommu_only_when_asked() {
    let fake = Fake::new();
    fake.controller(A, None);
    fake.controller(B, None);
    let before = fake.everything();
    let allowed = || fake.text("sys/module/vfio/parameters/enable_unsafe_noiommu_mode");
    refused(&fake, libc::EOPNOTSUPP, &["no IOMMU group", "--no-iommu"]);
    fake.machine().claim(&[at(A)], true).unwrap();
    fake.machine().claim(&[at(B)], true).unwrap();
    assert_eq!(allowed(), "Y");
    // It is allowed for as long as a claim needs it.
    fake.machine().release(at(B)).unwrap();
    fake.machine().release(at(A)).unwrap();
    assert_eq!(fake.everything(), before);
    // Not undone where it was the administrator's wish.
    fake.put("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y\n");
    fake.machine().claim(&[at(A)], true).unwrap();
    fake.machine().release(at(A)).unwrap();
    assert_eq!(allowed(), "Y");
    std::fs::remove_file(fake.path("sys/module/vfio/parameters/enable_unsafe_noiommu_mode")).unwrap();
    let e = fake.machine().claim(&[at(A)], true).unwrap_err();
    assert_eq!(e.errno(), libc::EOPNOTSUPP, "{e}");
}

/// What no longer needs an IOMMU may be given back in any order, or be gone: it is allowed for as long as one claim needs it, and no longer.
#[test]
fn without_an_iommu_for_as_long_as_it_is_needed() {
    let fake = Fake::new();
    fake.controller(A, None);
    fake.controller(B, None);
    let before = fake.everything();
    let allowed = || fake.text("sys/module/vfio/parameters/enable_unsafe_noiommu_mode");
    let claim = || [A, B].map(|a| drop(fake.machine().claim(&[at(a)], true).unwrap()));
    for order in [[A, B], [B, A]] {
        claim();
        fake.machine().release(at(order[0])).unwrap();
        assert_eq!(allowed(), "Y", "{order:?}");
        fake.machine().release(at(order[1])).unwrap();
        assert_eq!(fake.everything(), before, "{order:?}");
    }
    // Killed at any step of that.
    for step in 0.. {
        claim();
        let done = fake.ending(step, End::Dies, || fake.machine().release(at(A)).unwrap());
        assert_eq!(allowed(), "Y", "killed at step {step}");
        fake.machine().release(at(A)).unwrap();
        assert_eq!(allowed(), "Y", "killed at step {step}");
        fake.machine().release(at(B)).unwrap();
        assert_eq!(fake.everything(), before, "killed at step {step}");
        if done.is_some() {
            assert!(step > 4, "only {step} steps were tried");
            break;
        }
    }
    // Records of an older version.
    claim();
    for address in [A, B] {
        let path = fake.path(&format!("run/freehold/devices/{address}"));
        let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(record.as_object_mut().unwrap().remove("needs_no_iommu"), Some(true.into()));
        std::fs::write(&path, serde_json::to_vec(&record).unwrap()).unwrap();
    }
    assert!(fake.machine().list().unwrap().iter().all(|c| c.claim == Some(Claim::Stands)));
    fake.machine().release(at(B)).unwrap();
    fake.machine().release(at(A)).unwrap();
    assert_eq!(fake.everything(), before);
    // Pulled out while it was claimed.
    claim();
    for (address, still) in [(A, "Y"), (B, "N")] {
        fake.unbind(address);
        std::fs::remove_dir_all(fake.path(&format!("sys/bus/pci/devices/{address}"))).unwrap();
        assert_eq!(fake.machine().release(at(address)).unwrap_err().errno(), libc::ENODEV);
        assert_eq!(allowed(), still);
        assert!(!fake.path(&format!("run/freehold/devices/{address}")).exists());
    }
}

#[test]
fn a_driver_that_does_not_take_it() {
    let fake = two();
    let before = fake.everything();
    fake.refuses.set(true);
    let e = fake.machine().claim(&[at(A)], false).unwrap_err();
    assert!(matches!(e, DeviceError::Unwilling { has: None, .. }) && e.errno() == libc::EIO, "{e}");
    assert_eq!(fake.everything(), before);
}

#[test]
fn one_command_at_a_time() {
    let fake = two();
    fake.machine().claim(&[at(A)], false).unwrap();
    let lock = std::fs::File::open(fake.path("run/freehold/devices/lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let e = fake.machine().release(at(A)).unwrap_err();
    assert_eq!(e.errno(), libc::EAGAIN, "{e}");
    assert_eq!(fake.machine().list().unwrap()[0].claim, Some(Claim::Stands), "looking is free");
    drop(lock);
    fake.machine().release(at(A)).unwrap();
}

/// `freehold device WORDS` on a machine of files: exit code, standard output, standard error.
fn command(fake: &Fake, words: &str) -> (Option<i32>, String, String) {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_freehold"));
    command.arg("device").args(words.split(' ')).arg("--root").arg(fake.root()).env_remove("FREEHOLD_LOG");
    let o = command.output().unwrap();
    let text = |b: Vec<u8>| String::from_utf8(b).unwrap();
    (o.status.code(), text(o.stdout), text(o.stderr))
}

#[test]
fn the_command_lists_and_refuses() {
    let fake = two();
    fake.put("proc/self/mountinfo", "30 22 259:41 / /srv\\040x rw - xfs /dev/root rw\n");
    let (code, said, _) = command(&fake, "list");
    let lines: Vec<Vec<&str>> = said.lines().map(|l| l.split("  ").map(str::trim).collect()).collect();
    let row = |n: usize| lines[n].iter().filter(|w| !w.is_empty()).copied().collect::<Vec<_>>();
    assert_eq!((code, lines.len()), (Some(0), 3), "{said}");
    let used = "nvme4n1p1 is mounted at /srv x (xfs)";
    let expected = [A, "A model of ours", "S4", "1.2", "nvme4n1 2 GiB", "-", "12", "nvme", used];
    assert_eq!(row(1), expected);
    assert_eq!(row(2)[7..], ["nvme", "-"]);
    let (code, said, _) = command(&fake, "list --json");
    let all: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(code, Some(0));
    assert_eq!(all[0]["address"], A);
    assert_eq!(all[0]["namespaces"][0]["bytes"], 2u64 << 30);
    assert_eq!(
        (&all[0]["uses"][0]["kind"], &all[0]["uses"][0]["point"]),
        (&"mount".into(), &"/srv x".into())
    );
    assert!(
        all[0]["numa_node"].is_null() && all[0]["claim"].is_null() && all[1]["uses"] == serde_json::json!([])
    );
    let before = fake.everything();
    let (code, _, said) = command(&fake, "claim 0000:04:00.0");
    assert!(code == Some(1) && said.contains(used), "{said}");
    let (code, said, _) = command(&fake, "release 04:00.0 05:00.0");
    assert!(code == Some(0) && said.matches("was not claimed: driver nvme").count() == 2, "{said}");
    let (code, said, failed) = command(&fake, "release 05:00.0 07:00.0");
    assert!(code == Some(1) && said.contains(B) && failed.contains("no PCI device 0000:07:00.0"), "{failed}");
    for wrong in ["claim nvme0", "claim", "release /dev/nvme0n1"] {
        assert_eq!(command(&fake, wrong).0, Some(2), "{wrong}");
    }
    assert_eq!(fake.everything(), before);
    let empty = Fake::new();
    assert_eq!(command(&empty, "list").1, "no NVMe controllers here\n");
    assert_eq!(command(&empty, "list --json").1, "[]\n");
}

#[test]
fn the_command_repairs_what_was_interrupted() {
    let fake = two();
    let before = fake.everything();
    // Killed before the first change of the machine.
    assert!(fake.ending(1, End::Dies, || fake.machine().claim(&[at(A)], false)).is_none());
    let (_, said, _) = command(&fake, "list");
    assert!(said.contains("nvme (interrupted: freehold device release 0000:04:00.0)"), "{said}");
    let (code, said, _) = command(&fake, "release 0000:04:00.0");
    assert!(code == Some(0) && said.contains("is given back: driver nvme, nvme4n1 2 GiB"), "{said}");
    assert_eq!(fake.everything(), before);
}

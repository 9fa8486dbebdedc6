//! A machine in a directory: the files of sysfs, proc and dev that tell of NVMe controllers, and a kernel that does to them what a real one
//! does when its attributes are written. It dies, or fails, at a step that a test chooses.

use freehold::device::{Kernel, Machine};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

/// What happens at the step that was chosen, which is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The process is killed.
    Dies,
    /// The step fails, and later ones do not.
    Fails,
    /// It and all later ones fail.
    KeepsFailing,
}

pub struct Fake {
    dir: tempfile::TempDir,
    /// Paths that somebody has open exclusively, below the root.
    pub held: RefCell<HashSet<String>>,
    /// What the machine under test holds.
    holding: Rc<RefCell<Vec<PathBuf>>>,
    steps: Cell<usize>,
    end: Cell<Option<(usize, End)>>,
    /// Whether controllers work again after they were bound to the kernel's driver.
    pub works: Cell<bool>,
    /// Whether `vfio-pci` takes no devices.
    pub refuses: Cell<bool>,
    /// A file that is there after the next write to an attribute.
    pub appears: RefCell<Option<String>>,
}

/// The payload of a death.
struct Death;

impl Fake {
    pub fn new() -> Fake {
        let dir = tempfile::tempdir().unwrap();
        let fake = Fake {
            dir,
            held: RefCell::default(),
            holding: Rc::default(),
            steps: Cell::new(0),
            end: Cell::new(None),
            works: Cell::new(true),
            refuses: Cell::new(false),
            appears: RefCell::new(None),
        };
        for driver in ["nvme", "vfio-pci", "pcieport", "e1000"] {
            fake.put(&format!("sys/bus/pci/drivers/{driver}/bind"), "");
        }
        fake.put("sys/bus/pci/drivers_probe", "");
        fake.put("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "N\n");
        fake.put("proc/sys/kernel/random/boot_id", "first-boot\n");
        fake.put("proc/swaps", "Filename\t\t\t\tType\t\tSize\n");
        fake.put("proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n");
        std::fs::create_dir_all(fake.path("sys/bus/pci/devices")).unwrap();
        std::fs::create_dir_all(fake.path("dev/vfio")).unwrap();
        std::fs::create_dir_all(fake.path("run")).unwrap();
        fake
    }

    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    pub fn put(&self, path: &str, text: &str) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub fn link(&self, to: &str, path: &str) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(to, path).unwrap();
    }

    pub fn text(&self, path: &str) -> String {
        std::fs::read_to_string(self.path(path)).unwrap().trim().into()
    }

    /// A machine under test. It waits for nothing long.
    pub fn machine(&self) -> Machine<&Fake> {
        Machine::with(self.root(), self, Duration::from_millis(40))
    }

    /// A PCI device that is no controller.
    pub fn device(&self, address: &str, class: &str, group: Option<&str>) {
        let dir = format!("sys/bus/pci/devices/{address}");
        for (name, text) in [
            ("class", class),
            ("vendor", "0x1b36"),
            ("device", "0x0010"),
            ("numa_node", "-1"),
            ("driver_override", "(null)"),
        ] {
            self.put(&format!("{dir}/{name}"), &format!("{text}\n"));
        }
        if let Some(group) = group {
            self.link(&format!("../../../../kernel/iommu_groups/{group}"), &format!("{dir}/iommu_group"));
            self.put(&format!("sys/kernel/iommu_groups/{group}/devices/{address}"), "");
        }
    }

    /// An NVMe controller under the kernel's driver, with one namespace of two partitions. It is called after its bus: `nvme4`.
    pub fn controller(&self, address: &str, group: Option<&str>) {
        self.device(address, "0x010802", group);
        self.bind(address, "nvme");
    }

    pub fn driver(&self, address: &str) -> Option<String> {
        let to = std::fs::read_link(self.path(&format!("sys/bus/pci/devices/{address}/driver"))).ok()?;
        Some(to.file_name()?.to_str()?.into())
    }

    pub fn bind(&self, address: &str, driver: &str) {
        let dir = format!("sys/bus/pci/devices/{address}");
        self.link(&format!("../../../../bus/pci/drivers/{driver}"), &format!("{dir}/driver"));
        // The kernel's links lead from the device to the driver's directory, so that `driver/unbind` is there.
        std::fs::create_dir_all(self.path(&format!("sys/bus/pci/drivers/{driver}"))).unwrap();
        let number = number(address);
        if let ("vfio-pci", Some(group)) = (driver, self.group(address)) {
            self.put(&format!("dev/vfio/{group}"), "");
        }
        if driver != "nvme" {
            return;
        }
        let (own, name) = (format!("{dir}/nvme/nvme{number}"), format!("nvme{number}n1"));
        let state = if self.works.get() { "live\n" } else { "dead\n" };
        for (attribute, text) in [
            ("model", "A model of ours      \n"),
            ("serial", &format!("S{number}    \n")),
            ("firmware_rev", "1.2 \n"),
            ("state", state),
        ] {
            self.put(&format!("{own}/{attribute}"), text);
        }
        if !self.works.get() {
            return;
        }
        std::fs::create_dir_all(self.path(&format!("{own}/{name}"))).unwrap();
        std::fs::create_dir_all(self.path(&format!("{own}/hwmon{number}"))).unwrap();
        self.put(&format!("sys/class/block/{name}/size"), "4194304\n");
        self.put(&format!("sys/class/block/{name}/dev"), &format!("259:{}\n", number * 10));
        for part in 1..=2 {
            self.put(&format!("sys/class/block/{name}/{name}p{part}/partition"), &format!("{part}\n"));
            self.put(&format!("sys/class/block/{name}p{part}/dev"), &format!("259:{}\n", number * 10 + part));
        }
        self.put(&format!("dev/{name}"), "");
    }

    pub fn unbind(&self, address: &str) {
        let dir = format!("sys/bus/pci/devices/{address}");
        std::fs::remove_file(self.path(&format!("{dir}/driver"))).unwrap();
        let name = format!("nvme{}n1", number(address));
        let gone =
            ["".into(), "p1".into(), "p2".into()].map(|p: String| format!("sys/class/block/{name}{p}"));
        for dir in gone.into_iter().chain([format!("{dir}/nvme")]) {
            let _ = std::fs::remove_dir_all(self.path(&dir));
        }
        let _ = std::fs::remove_file(self.path(&format!("dev/{name}")));
        if let Some(group) = self.group(address) {
            let _ = std::fs::remove_file(self.path(&format!("dev/vfio/{group}")));
        }
    }

    fn group(&self, address: &str) -> Option<String> {
        let to = std::fs::read_link(self.path(&format!("sys/bus/pci/devices/{address}/iommu_group"))).ok()?;
        Some(to.file_name()?.to_str()?.into())
    }

    /// A process that has a node open.
    pub fn process(&self, pid: u32, program: &str, node: &str) {
        self.put(&format!("proc/{pid}/comm"), &format!("{program}\n"));
        self.link(node, &format!("proc/{pid}/fd/3"));
    }

    /// Runs `f`, to which `end` happens at step `at` (from 0). `None`: it died.
    pub fn ending<T>(&self, at: usize, end: End, f: impl FnOnce() -> T) -> Option<T> {
        self.steps.set(0);
        self.end.set(Some((at, end)));
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
        self.end.set(None);
        match done {
            Ok(done) => Some(done),
            Err(payload) if payload.is::<Death>() => None,
            Err(payload) => std::panic::resume_unwind(payload),
        }
    }

    /// Steps since the last call of `ending`, or ever.
    pub fn steps(&self) -> usize {
        self.steps.get()
    }

    fn step(&self) -> io::Result<()> {
        let now = self.steps.get();
        self.steps.set(now + 1);
        match self.end.get() {
            Some((at, End::Dies)) if now == at => std::panic::resume_unwind(Box::new(Death)),
            Some((at, End::Fails)) if now == at => Err(io::Error::from_raw_os_error(libc::EIO)),
            Some((at, End::KeepsFailing)) if now >= at => Err(io::Error::from_raw_os_error(libc::EIO)),
            _ => Ok(()),
        }
    }

    /// Every file, directory and link, with what is in it; of `run` only the records.
    pub fn everything(&self) -> Vec<String> {
        let (mut lines, mut todo) = (Vec::new(), vec![self.root().to_path_buf()]);
        while let Some(dir) = todo.pop() {
            for entry in std::fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                let name = path.strip_prefix(self.root()).unwrap().display().to_string();
                if path.is_symlink() {
                    lines.push(format!("{name} -> {}", path.read_link().unwrap().display()));
                } else if path.is_dir() {
                    todo.push(path);
                } else if name != "run/freehold/devices/lock" {
                    lines.push(format!("{name}: {}", std::fs::read_to_string(&path).unwrap().trim()));
                }
            }
        }
        lines.sort();
        lines
    }

    fn react(&self, attribute: &str, value: &str) -> io::Result<()> {
        let errno = io::Error::from_raw_os_error;
        let words: Vec<&str> = attribute.split('/').collect();
        match words[..] {
            ["sys", "bus", "pci", "devices", at, "driver_override"] => {
                let text = if value == "\n" { "(null)" } else { value };
                self.put(attribute, &format!("{text}\n"));
                assert!(self.path(&format!("sys/bus/pci/devices/{at}")).exists());
            }
            ["sys", "bus", "pci", "devices", at, "driver", "unbind"] => {
                assert_eq!(at, value);
                let driver = self.driver(at).ok_or(errno(libc::ENOENT))?;
                let namespace = self.path(&format!("dev/nvme{}n1", number(at)));
                let is_held = self.holding.borrow().contains(&namespace);
                assert!(
                    driver != "nvme" || is_held || !namespace.exists(),
                    "{at} could be mounted meanwhile"
                );
                self.unbind(at);
            }
            ["sys", "bus", "pci", "drivers_probe"] => {
                let wanted = self.text(&format!("sys/bus/pci/devices/{value}/driver_override"));
                let driver = if wanted == "(null)" { "nvme" } else { &wanted };
                let refused = driver == "vfio-pci" && self.refuses.get();
                if !refused
                    && self.driver(value).is_none()
                    && self.path(&format!("sys/bus/pci/drivers/{driver}")).exists()
                {
                    self.bind(value, driver);
                }
            }
            ["sys", "bus", "pci", "drivers", driver, "bind"] => {
                let wanted = self.text(&format!("sys/bus/pci/devices/{value}/driver_override"));
                if self.driver(value).is_some() || (wanted != "(null)" && wanted != driver) {
                    return Err(errno(libc::ENODEV));
                }
                self.bind(value, driver);
            }
            ["sys", "module", ..] => self.put(attribute, &format!("{value}\n")),
            _ => panic!("{attribute} is not to be written"),
        }
        Ok(())
    }
}

/// The bus of an address as a number.
fn number(address: &str) -> u32 {
    u32::from_str_radix(address.split(':').nth(1).unwrap(), 16).unwrap()
}

struct Hold(Rc<RefCell<Vec<PathBuf>>>, PathBuf);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.borrow_mut().retain(|p| *p != self.1);
    }
}

impl Kernel for &Fake {
    fn write(&self, attribute: &Path, value: &str) -> io::Result<()> {
        self.step()?;
        if let Some(path) = self.appears.take() {
            self.put(&path, "");
        }
        let attribute = attribute.strip_prefix(self.root()).unwrap();
        self.react(attribute.to_str().unwrap(), value)
    }

    fn save(&self, file: &Path, content: &[u8]) -> io::Result<()> {
        self.step()?;
        freehold::device::Host.save(file, content)
    }

    fn remove(&self, file: &Path) -> io::Result<()> {
        self.step()?;
        freehold::device::Host.remove(file)
    }

    fn hold(&self, node: &Path) -> io::Result<Box<dyn Any>> {
        let name = node.strip_prefix(self.root()).unwrap().to_str().unwrap();
        if self.held.borrow().contains(name) {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        std::fs::File::open(node)?;
        self.holding.borrow_mut().push(node.into());
        Ok(Box::new(Hold(self.holding.clone(), node.into())))
    }

    fn load(&self, module: &str) {
        // What a test has prepared.
        let _ = std::fs::rename(
            self.path(&format!("modules/{module}")),
            self.path(&format!("sys/bus/pci/drivers/{module}")),
        );
    }
}

//! Which NVMe drives a machine has, who uses them, and giving them to VFIO and back.

use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::NvmeError;

/// PCI class of NVMe controllers, and of bridges without the last byte.
const CLASS_NVME: u32 = 0x01_08_02;
const CLASS_BRIDGE: u32 = 0x06_04;
/// Bytes at the start of a block device where file systems, partition tables and volume managers
/// have their signatures.
const SIGNATURE_AREA: usize = 1 << 20;
/// How long the kernel may take to bind a driver.
const BIND_TIME: Duration = Duration::from_secs(10);

/// The files by which the kernel tells of its devices.
#[derive(Debug, Clone)]
pub struct Machine {
    root: PathBuf,
}

/// An NVMe drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drive {
    /// PCI address.
    pub address: String,
    /// Model, while the kernel's driver holds it.
    pub model: Option<String>,
    /// The driver that holds it.
    pub driver: Option<String>,
    /// The number of its IOMMU group.
    pub iommu_group: Option<u32>,
    /// Other devices of the group, each with its driver; bridges apart.
    pub group_others: Vec<String>,
    /// The kernel's device of the controller, such as `/dev/nvme0`.
    pub controller: Option<PathBuf>,
    /// Its block devices.
    pub blocks: Vec<BlockDevice>,
    /// Processes that use it through VFIO.
    pub processes: Vec<u32>,
}

/// A namespace as a block device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockDevice {
    /// Its name, such as `nvme0n1`.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// What uses it: mounts, swap, other block devices. Nothing may take it away.
    pub users: Vec<String>,
    /// What lies on it.
    pub contents: Vec<String>,
    /// Whether only a store of Isobath lies on it.
    pub is_store: bool,
}

impl Drive {
    /// What uses it, in words.
    pub fn users(&self) -> Vec<String> {
        let processes = self.processes.iter().map(|pid| format!("process {pid}"));
        let blocks = self
            .blocks
            .iter()
            .flat_map(|block| block.users.iter().cloned());
        blocks.chain(processes).collect()
    }
}

fn read(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

/// The last part of what a link leads to.
fn link(path: &Path) -> Option<String> {
    let target = fs::read_link(path).ok()?;
    Some(target.file_name()?.to_string_lossy().into_owned())
}

/// Names in a directory, sorted; none if it cannot be read.
fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Whether this is `0000:01:00.0`, or the like.
fn is_address(text: &str) -> bool {
    let hex = |part: &str, digits: usize| {
        part.len() == digits && part.bytes().all(|b| b.is_ascii_hexdigit())
    };
    let parts: Vec<&str> = text.split([':', '.']).collect();
    let lengths_fit = match parts[..] {
        [domain, bus, device, function] => {
            (hex(domain, 4) || hex(domain, 8)) && hex(bus, 2) && hex(device, 2) && hex(function, 1)
        }
        _ => false,
    };
    lengths_fit && text.matches(':').count() == 2
}

impl Machine {
    /// The machine that this runs on.
    pub fn this() -> Machine {
        Machine::at("/")
    }

    /// A machine whose `sys`, `proc` and `dev` are in another directory.
    pub fn at(root: impl Into<PathBuf>) -> Machine {
        Machine { root: root.into() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn device(&self, address: &str) -> PathBuf {
        self.path("sys/bus/pci/devices").join(address)
    }

    /// All NVMe drives, by address.
    pub fn drives(&self) -> Vec<Drive> {
        let all = names(&self.path("sys/bus/pci/devices"));
        all.iter()
            .filter_map(|address| self.drive(address).ok())
            .collect()
    }

    /// The drive of that address.
    ///
    /// # Errors
    /// [`NvmeError::BadAddress`], [`NvmeError::NoSuchDevice`], [`NvmeError::NotNvme`].
    pub fn drive(&self, address: &str) -> Result<Drive, NvmeError> {
        let address = address.to_owned();
        if !is_address(&address) {
            return Err(NvmeError::BadAddress { address });
        }
        let path = self.device(&address);
        let class = self.class(&address);
        let Some(class) = class else {
            return Err(NvmeError::NoSuchDevice { address });
        };
        if class != CLASS_NVME {
            return Err(NvmeError::NotNvme { address, class });
        }
        let iommu_group = link(&path.join("iommu_group")).and_then(|name| name.parse().ok());
        // The kernel's driver gives each controller one directory.
        let controller = names(&path.join("nvme")).into_iter().next();
        let directory = controller.as_ref().map(|name| path.join("nvme").join(name));
        Ok(Drive {
            model: directory
                .as_ref()
                .and_then(|path| read(&path.join("model"))),
            driver: link(&path.join("driver")),
            group_others: iommu_group
                .map_or(Vec::new(), |group| self.group_others(&address, group)),
            controller: controller.map(|name| self.path("dev").join(name)),
            blocks: directory.map_or(Vec::new(), |path| self.blocks(&path)),
            processes: iommu_group.map_or(Vec::new(), |group| self.processes(group)),
            iommu_group,
            address,
        })
    }

    fn class(&self, address: &str) -> Option<u32> {
        let text = read(&self.device(address).join("class"))?;
        u32::from_str_radix(text.trim_start_matches("0x"), 16).ok()
    }

    /// Devices of a group that keep it from being given to a process, each with its driver.
    pub(crate) fn group_others(&self, address: &str, group: u32) -> Vec<String> {
        let all = names(&self.path(&format!("sys/kernel/iommu_groups/{group}/devices")));
        let describe = |other: &String| {
            let is_bridge = self
                .class(other)
                .is_some_and(|class| class >> 8 == CLASS_BRIDGE);
            let driver = link(&self.device(other).join("driver"));
            match driver {
                _ if other == address || is_bridge => None,
                Some(driver) => Some(format!("{other} ({driver})")),
                None => Some(format!("{other} (no driver)")),
            }
        };
        all.iter().filter_map(describe).collect()
    }

    /// Whether a group exists without an IOMMU.
    pub(crate) fn is_noiommu(&self, group: u32) -> bool {
        let name = read(&self.path(&format!("sys/kernel/iommu_groups/{group}/name")));
        name.as_deref() == Some("vfio-noiommu")
            || self.path(&format!("dev/vfio/noiommu-{group}")).exists()
    }

    /// Processes that have the group open, as far as this process may see.
    fn processes(&self, group: u32) -> Vec<u32> {
        let wanted = format!("/dev/vfio/{group}");
        let numbers = names(&self.path("proc"))
            .into_iter()
            .filter_map(|name| name.parse().ok());
        let uses = |pid: &u32| {
            let files = self.path(&format!("proc/{pid}/fd"));
            let leads = |name: &String| fs::read_link(files.join(name)).ok();
            names(&files)
                .iter()
                .filter_map(leads)
                .any(|file| file.as_os_str() == wanted.as_str())
        };
        numbers.filter(uses).collect()
    }

    fn blocks(&self, controller: &Path) -> Vec<BlockDevice> {
        let mut found: Vec<String> = Vec::new();
        for name in names(controller) {
            // A path of several to a namespace is `nvme0c1n1`; its block device is `nvme0n1`.
            let plain = match (name.find('c'), name.rfind('n')) {
                (Some(c), Some(n)) if c < n => format!("{}{}", &name[..c], &name[n..]),
                _ => name,
            };
            if self.path("sys/class/block").join(&plain).exists() && !found.contains(&plain) {
                found.push(plain);
            }
        }
        found.into_iter().map(|name| self.block(name)).collect()
    }

    fn block(&self, name: String) -> BlockDevice {
        let directory = self.path("sys/class/block").join(&name);
        let sectors: u64 = read(&directory.join("size"))
            .and_then(|text| text.parse().ok())
            .unwrap_or(0);
        let mut partitions = names(&directory);
        partitions.retain(|part| directory.join(part).join("partition").exists());
        let mut users = Vec::new();
        let mut contents = Vec::new();
        for part in std::iter::once(&name).chain(&partitions) {
            let path = if part == &name {
                directory.clone()
            } else {
                directory.join(part)
            };
            users.extend(self.mounts(part, &path));
            let holders = names(&path.join("holders"));
            users.extend(
                holders
                    .iter()
                    .map(|holder| format!("{part} is part of {holder}")),
            );
        }
        if !partitions.is_empty() {
            contents.push(format!(
                "{name} has a partition table: {}",
                partitions.join(", ")
            ));
        }
        let device = self.path("dev").join(&name);
        let mut is_store = false;
        match start_of(&device) {
            // Opening it alone finds users that nothing else tells of.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                if users.is_empty() {
                    users.push(format!("{name} is in use"));
                }
            }
            Err(error) => contents.push(format!("{name} cannot be read: {error}")),
            Ok(start) => match signature(&start) {
                Some(STORE) => is_store = contents.is_empty(),
                Some(what) => contents.push(format!("{name} has {what}")),
                None => {}
            },
        }
        BlockDevice {
            name,
            bytes: sectors * 512,
            users,
            contents,
            is_store,
        }
    }

    /// Where a block device is mounted, or swapped to.
    fn mounts(&self, name: &str, directory: &Path) -> Vec<String> {
        let device = format!("/dev/{name}");
        let number = read(&directory.join("dev"));
        let mut found = Vec::new();
        for line in read(&self.path("proc/self/mountinfo"))
            .unwrap_or_default()
            .lines()
        {
            let fields: Vec<&str> = line.split(' ').collect();
            let source = fields
                .iter()
                .position(|field| *field == "-")
                .map(|at| at + 2);
            let is_it = fields.get(2).copied() == number.as_deref()
                || source.and_then(|at| fields.get(at)) == Some(&device.as_str());
            if let (true, Some(at)) = (is_it, fields.get(4)) {
                found.push(format!("{name} is mounted at {at}"));
            }
        }
        let swaps = read(&self.path("proc/swaps")).unwrap_or_default();
        if swaps
            .lines()
            .any(|line| line.split_whitespace().next() == Some(&device))
        {
            found.push(format!("{name} is swap space"));
        }
        found
    }

    /// Takes a drive from the kernel and gives it to vfio-pci. Nothing is written to it.
    ///
    /// # Errors
    /// [`NvmeError::InUse`] if anything uses it, or lies on it and `force` is not set (a store of
    /// Isobath may lie on it); [`NvmeError::NoIommu`], [`NvmeError::GroupShared`],
    /// [`NvmeError::NoModule`], or a failure of the system.
    pub fn bind(&self, address: &str, force: bool) -> Result<(), NvmeError> {
        let drive = self.drive(address)?;
        if drive.driver.as_deref() == Some("vfio-pci") {
            return Ok(());
        }
        let address = drive.address.clone();
        let users = drive.users();
        if !users.is_empty() {
            return Err(NvmeError::InUse {
                address,
                reasons: users,
                forcible: false,
            });
        }
        let blocks = drive.blocks.iter();
        let mut contents: Vec<String> = blocks.flat_map(|b| b.contents.iter().cloned()).collect();
        if drive.driver.as_deref() != Some("nvme") {
            let holder = drive.driver.as_deref().unwrap_or("no driver");
            contents.push(format!("{holder} holds it, so what lies on it is unknown"));
        }
        if !contents.is_empty() && !force {
            return Err(NvmeError::InUse {
                address,
                reasons: contents,
                forcible: true,
            });
        }
        let Some(group) = drive.iommu_group.filter(|group| !self.is_noiommu(*group)) else {
            return Err(NvmeError::NoIommu { address });
        };
        let harmless = ["(vfio-pci)", "(no driver)", "(pci-stub)"];
        let others = drive.group_others;
        if others
            .iter()
            .any(|other| !harmless.iter().any(|end| other.ends_with(end)))
        {
            return Err(NvmeError::GroupShared {
                address,
                group,
                others,
            });
        }
        let module = self.path("sys/bus/pci/drivers/vfio-pci");
        if !module.exists() {
            return Err(NvmeError::NoModule {
                path: module,
                module: "vfio-pci",
            });
        }
        self.change_driver(&address, "vfio-pci", Some("vfio-pci"))
    }

    /// Gives a drive back to the kernel's driver.
    ///
    /// # Errors
    /// [`NvmeError::InUse`] while a process uses it, or a failure of the system.
    pub fn unbind(&self, address: &str) -> Result<(), NvmeError> {
        let drive = self.drive(address)?;
        if drive.driver.as_deref() == Some("nvme") {
            return Ok(());
        }
        let users = drive.users();
        if !users.is_empty() {
            return Err(NvmeError::InUse {
                address: drive.address,
                reasons: users,
                forcible: false,
            });
        }
        self.change_driver(&drive.address, "nvme", None)
    }

    /// Has the kernel bind the driver `wanted`; `only` is the one that it may bind from now on.
    fn change_driver(
        &self,
        address: &str,
        wanted: &str,
        only: Option<&str>,
    ) -> Result<(), NvmeError> {
        let device = self.device(address);
        let write = |path: PathBuf, text: &str| match fs::write(&path, text) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Err(NvmeError::PermissionDenied { path })
            }
            Err(source) => Err(NvmeError::Os {
                path,
                action: "write to",
                source,
            }),
        };
        // A new line takes the preference away.
        write(device.join("driver_override"), only.unwrap_or("\n"))?;
        if device.join("driver").exists() {
            write(device.join("driver/unbind"), address)?;
        }
        write(self.path("sys/bus/pci/drivers_probe"), address)?;
        let deadline = Instant::now() + BIND_TIME;
        while link(&device.join("driver")).as_deref() != Some(wanted) {
            if Instant::now() > deadline {
                return Err(NvmeError::Os {
                    path: device.join("driver"),
                    action: "change",
                    source: io::ErrorKind::TimedOut.into(),
                });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

/// How a block device begins, read while nobody else uses it.
fn start_of(path: &Path) -> io::Result<Vec<u8>> {
    let file = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_EXCL)
        .open(path)?;
    let mut start = vec![0; SIGNATURE_AREA];
    let mut done = 0;
    while done < start.len() {
        match file.read_at(&mut start[done..], done as u64)? {
            0 => break,
            n => done += n,
        }
    }
    Ok(start)
}

const STORE: &str = "a store of Isobath";

/// What lies on a block device that begins so.
fn signature(start: &[u8]) -> Option<&'static str> {
    // A store comes behind all that may have been made over one.
    const SIGNATURES: &[(usize, &[u8], &str)] = &[
        (512, b"EFI PART", "a partition table (GPT)"),
        (4096, b"EFI PART", "a partition table (GPT)"),
        (0, b"XFSB", "a file system (XFS)"),
        (1080, b"\x53\xef", "a file system (ext2, ext3 or ext4)"),
        (0x1_0040, b"_BHRfS_M", "a file system (Btrfs)"),
        (0x400, b"\x10\x20\xf5\xf2", "a file system (F2FS)"),
        (3, b"NTFS", "a file system (NTFS)"),
        (0, b"LUKS\xba\xbe", "an encrypted volume (LUKS)"),
        (512, b"LABELONE", "a physical volume (LVM)"),
        (4096, b"\xfc\x4e\x2b\xa9", "a member of a RAID (md)"),
        (0, b"\xfc\x4e\x2b\xa9", "a member of a RAID (md)"),
        (4086, b"SWAPSPACE2", "swap space"),
        (510, b"\x55\xaa", "a partition table, or a boot sector"),
        (0, b"ISOBATH\0", STORE),
        (0x8000, b"ISOBATH\0", STORE),
        (
            0,
            b"ISOB",
            "a volume or log of Isobath, which the kernel's driver serves",
        ),
    ];
    let has = |(at, bytes, _): &&(usize, &[u8], &str)| start[*at..].starts_with(bytes);
    let known = SIGNATURES.iter().find(has).map(|(_, _, what)| *what);
    known.or_else(|| start.iter().any(|b| *b != 0).then_some("data at its start"))
}

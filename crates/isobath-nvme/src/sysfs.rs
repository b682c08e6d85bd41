//! Which NVMe drives a machine has, who uses them, and giving them to VFIO and back.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::NvmeError;
use crate::users::{Node, Process};

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
    /// Loop devices and NVMe targets of the kernel that use its device files.
    pub kernel_users: Vec<String>,
    /// Processes that have its device files open, those of VFIO among them, as far as this process
    /// may see.
    pub processes: Vec<Process>,
    /// The open files of a process which this one may not see.
    hidden: Option<PathBuf>,
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
        let kernel = self.kernel_users.iter().cloned();
        let processes = self.processes.iter().map(Process::to_string);
        let blocks = self
            .blocks
            .iter()
            .flat_map(|block| block.users.iter().cloned());
        blocks.chain(kernel).chain(processes).collect()
    }
}

pub(crate) fn read(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

/// The last part of what a link leads to.
fn link(path: &Path) -> Option<String> {
    let target = fs::read_link(path).ok()?;
    Some(target.file_name()?.to_string_lossy().into_owned())
}

/// Names in a directory, sorted; none if it cannot be read.
pub(crate) fn names(path: &Path) -> Vec<String> {
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
        self.look(address, &[])
    }

    /// The drive of that address; `ours` are descriptors by which this process claims it.
    fn look(&self, address: &str, ours: &[RawFd]) -> Result<Drive, NvmeError> {
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
        let blocks = directory
            .as_ref()
            .map_or(Vec::new(), |path| self.blocks(path));
        let nodes = self.nodes(&path, directory.as_deref(), &blocks, iommu_group);
        let (processes, hidden) = self.openers(&nodes, ours);
        Ok(Drive {
            model: directory
                .as_ref()
                .and_then(|path| read(&path.join("model"))),
            driver: link(&path.join("driver")),
            group_others: iommu_group
                .map_or(Vec::new(), |group| self.group_others(&address, group)),
            controller: controller.map(|name| self.path("dev").join(name)),
            blocks,
            kernel_users: self.kernel_users(&nodes),
            processes,
            hidden,
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

    /// The device files by which a drive is used: through the kernel's driver, and through VFIO.
    fn nodes(
        &self,
        device: &Path,
        controller: Option<&Path>,
        blocks: &[BlockDevice],
        group: Option<u32>,
    ) -> Vec<Node> {
        let mut nodes = Vec::new();
        let generic = self.path("sys/class/nvme-generic");
        for block in blocks {
            let directory = self.path("sys/class/block").join(&block.name);
            nodes.push(Node::block(&block.name, &directory));
            for part in partitions(&directory) {
                nodes.push(Node::block(&part, &directory.join(&part)));
            }
            let name = generic_name(&block.name);
            let directory = generic.join(&name);
            nodes.push(Node::character(name, &directory));
        }
        if let Some(directory) = controller {
            nodes.extend(directory.file_name().map(|name| {
                let name = name.to_string_lossy().into_owned();
                Node::character(name, directory)
            }));
            for name in generics(directory) {
                let directory = directory.join(&name);
                nodes.push(Node::character(name, &directory));
            }
        }
        if let Some(group) = group {
            let directory = self.path(&format!("sys/class/vfio/{group}"));
            nodes.push(Node::character(format!("vfio/{group}"), &directory));
        }
        let devices = device.join("vfio-dev");
        for name in names(&devices) {
            let directory = devices.join(&name);
            nodes.push(Node::character(format!("vfio/devices/{name}"), &directory));
        }
        nodes
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
        let partitions = partitions(&directory);
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
    /// Its block devices are claimed from before they are looked at until the kernel's driver has
    /// let it go, so that nothing can mount them in between.
    ///
    /// # Errors
    /// [`NvmeError::InUse`] if anything uses it, or lies on it and `force` is not set (a store of
    /// Isobath may lie on it); [`NvmeError::NoIommu`], [`NvmeError::GroupShared`],
    /// [`NvmeError::NoModule`], or a failure of the system; [`NvmeError::BindUndone`] if vfio-pci
    /// does not take it.
    pub fn bind(&self, address: &str, force: bool) -> Result<(), NvmeError> {
        let drive = self.drive(address)?;
        if drive.driver.as_deref() == Some("vfio-pci") {
            return Ok(());
        }
        if let Some(other) = drive.driver.as_deref().filter(|name| *name != "nvme") {
            return Err(in_use(&drive, format!("{other} holds it")));
        }
        refuse_if_used(&drive)?;
        let claims = self.claim(&drive)?;
        let ours: Vec<RawFd> = claims.iter().map(AsRawFd::as_raw_fd).collect();
        let claimed: Vec<String> = drive.blocks.into_iter().map(|block| block.name).collect();
        // What it holds is looked at again, now that no other process can claim it.
        let drive = self.look(address, &ours)?;
        refuse_if_used(&drive)?;
        if !drive.blocks.iter().map(|block| &block.name).eq(&claimed) {
            return Err(in_use(&drive, "its namespaces are changing".to_owned()));
        }
        let blocks = drive.blocks.iter();
        let mut contents: Vec<String> = blocks.flat_map(|b| b.contents.iter().cloned()).collect();
        contents.extend(self.unknown_contents(&drive));
        let address = drive.address.clone();
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
        let preference = self.device(&address).join("driver_override");
        let before = read(&preference).filter(|name| !name.is_empty() && name != "(null)");
        write(preference, "vfio-pci")?;
        let detached = self.detach(&address);
        // The kernel frees the names of its devices when they are closed.
        drop(claims);
        let bound = detached.and_then(|()| self.attach(&address, "vfio-pci"));
        bound.map_err(|cause| self.undo_bind(address, before, drive.driver, cause))
    }

    /// Opens the block devices of a drive for this process alone. A claim of a whole device
    /// excludes those of its partitions.
    fn claim(&self, drive: &Drive) -> Result<Vec<fs::File>, NvmeError> {
        let claim = |block: &BlockDevice| {
            let path = self.path("dev").join(&block.name);
            let opened = fs::OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_EXCL)
                .open(&path);
            opened.map_err(|source| match source.raw_os_error() {
                Some(libc::EBUSY) => in_use(drive, format!("{} is in use", block.name)),
                Some(libc::EACCES | libc::EPERM) => NvmeError::PermissionDenied { path },
                _ => NvmeError::Os {
                    path,
                    action: "open",
                    source,
                },
            })
        };
        drive.blocks.iter().map(claim).collect()
    }

    /// Why the block devices of a drive may not be all that it holds.
    fn unknown_contents(&self, drive: &Drive) -> Vec<String> {
        let mut reasons = Vec::new();
        if drive.driver.is_none() {
            reasons.push("no driver holds it, so what lies on it is unknown".to_owned());
            return reasons;
        }
        if drive.blocks.is_empty() {
            reasons.push(
                "the kernel shows no namespace of it (yet), so what lies on it is unknown"
                    .to_owned(),
            );
        }
        let name = drive.controller.as_deref().and_then(Path::file_name);
        let Some(name) = name else { return reasons };
        let directory = self.device(&drive.address).join("nvme").join(name);
        let state = read(&directory.join("state")).filter(|state| state != "live");
        reasons.extend(state.map(|state| format!("its controller is not live, but {state}")));
        for generic in generics(&directory) {
            let has_block = |block: &BlockDevice| generic_name(&block.name) == generic;
            if !drive.blocks.iter().any(has_block) {
                reasons.push(format!(
                    "{generic} has no block device, so what lies on it is unknown"
                ));
            }
        }
        reasons
    }

    /// Gives a drive back to the kernel's driver.
    ///
    /// # Errors
    /// [`NvmeError::InUse`] while a process uses it, or if a driver other than vfio-pci holds it;
    /// a failure of the system.
    pub fn unbind(&self, address: &str) -> Result<(), NvmeError> {
        let drive = self.drive(address)?;
        match drive.driver.as_deref() {
            Some("nvme") => return Ok(()),
            Some("vfio-pci") | None => {}
            Some(other) => return Err(in_use(&drive, format!("{other} holds it"))),
        }
        refuse_if_used(&drive)?;
        let address = &drive.address;
        // A new line takes the preference away.
        write(self.device(address).join("driver_override"), "\n")?;
        self.detach(address)?;
        self.attach(address, "nvme")
    }

    /// Takes a device from its driver.
    fn detach(&self, address: &str) -> Result<(), NvmeError> {
        let driver = self.device(address).join("driver");
        match driver.exists() {
            true => write(driver.join("unbind"), address),
            false => Ok(()),
        }
    }

    /// Has the kernel look for a driver, which must be `wanted`.
    fn attach(&self, address: &str, wanted: &str) -> Result<(), NvmeError> {
        let driver = self.device(address).join("driver");
        write(self.path("sys/bus/pci/drivers_probe"), address)?;
        let deadline = Instant::now() + BIND_TIME;
        while link(&driver).as_deref() != Some(wanted) {
            if Instant::now() > deadline {
                return Err(NvmeError::Os {
                    path: driver,
                    action: "change",
                    source: io::ErrorKind::TimedOut.into(),
                });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Gives a drive that could not be bound back to the driver that had it.
    fn undo_bind(
        &self,
        address: String,
        preference: Option<String>,
        driver: Option<String>,
        cause: NvmeError,
    ) -> NvmeError {
        let device = self.device(&address);
        let undone = write(
            device.join("driver_override"),
            preference.as_deref().unwrap_or("\n"),
        );
        let holder = || link(&device.join("driver"));
        let undone = match driver {
            Some(driver) if holder().as_ref() != Some(&driver) => undone
                .and_then(|()| self.detach(&address))
                .and_then(|()| self.attach(&address, &driver)),
            _ => undone,
        };
        NvmeError::BindUndone {
            cause: Box::new(cause),
            failed: undone.err().map(Box::new),
            driver: holder(),
            address,
        }
    }
}

fn in_use(drive: &Drive, reason: String) -> NvmeError {
    NvmeError::InUse {
        address: drive.address.clone(),
        reasons: vec![reason],
        forcible: false,
    }
}

/// Refuses a drive that anything uses, or that a process may use unseen.
fn refuse_if_used(drive: &Drive) -> Result<(), NvmeError> {
    let reasons = drive.users();
    if !reasons.is_empty() {
        return Err(NvmeError::InUse {
            address: drive.address.clone(),
            reasons,
            forcible: false,
        });
    }
    match drive.hidden.clone() {
        Some(path) => Err(NvmeError::PermissionDenied { path }),
        None => Ok(()),
    }
}

/// Names of a block device's partitions.
fn partitions(block: &Path) -> Vec<String> {
    let mut parts = names(block);
    parts.retain(|part| block.join(part).join("partition").exists());
    parts
}

/// The character device of a namespace: `ng0n1` for the block device `nvme0n1`.
fn generic_name(block: &str) -> String {
    format!("ng{}", block.trim_start_matches("nvme"))
}

/// Character devices of a controller's namespaces.
fn generics(controller: &Path) -> Vec<String> {
    let mut found = names(controller);
    found.retain(|name| name.starts_with("ng"));
    found
}

fn write(path: PathBuf, text: &str) -> Result<(), NvmeError> {
    fs::write(&path, text).map_err(|source| match source.kind() {
        io::ErrorKind::PermissionDenied => NvmeError::PermissionDenied { path },
        _ => NvmeError::Os {
            path,
            action: "write to",
            source,
        },
    })
}

/// How a block device begins. It is not claimed: a look must not get in the way of a mount.
fn start_of(path: &Path) -> io::Result<Vec<u8>> {
    let file = fs::File::open(path)?;
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

//! What the machine is and what it spends: free space, CPU time, names.

use std::fs;
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::LabError;

/// CPU time (user and system) that this process has spent in all its threads.
#[must_use]
pub fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(
        u64::try_from(now.tv_sec).unwrap_or(0),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    )
}

/// Bytes that this process has moved to and from block devices, as the kernel
/// counts them (`/proc/self/io`): `(read, written)`. Zero if the kernel does
/// not say.
///
/// Direct I/O counts when it is sent. A buffered write counts when it makes a page of the page
/// cache dirty, not when the kernel writes that page: a page that is written again before then
/// counts once, and one whose file is removed before then stays counted. File systems in memory
/// count nothing.
#[must_use]
pub(crate) fn device_bytes() -> (u64, u64) {
    let text = fs::read_to_string("/proc/self/io").unwrap_or_default();
    let field = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
            .unwrap_or(0)
    };
    (field("read_bytes:"), field("write_bytes:"))
}

/// CPU time of the machine since it started, over all cores, in hundredths of a second; zeros if
/// the kernel does not say.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CpuTicks {
    pub(crate) total: u64,
    /// User and system time.
    pub(crate) busy: u64,
    /// What the hypervisor gave to others.
    pub(crate) stolen: u64,
}

impl CpuTicks {
    pub(crate) fn now() -> CpuTicks {
        CpuTicks::parse(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// The first line of /proc/stat: cpu user nice system idle iowait irq softirq steal guest
    /// guest_nice. Guest time is part of user time already.
    pub(crate) fn parse(stat: &str) -> CpuTicks {
        let line = stat.lines().next().unwrap_or_default();
        let numbers = line.split_ascii_whitespace().skip(1).take(8);
        let ticks: Vec<u64> = numbers.map(|t| t.parse().unwrap_or(0)).collect();
        CpuTicks {
            total: ticks.iter().sum(),
            busy: ticks.iter().take(3).sum(),
            stolen: ticks.get(7).copied().unwrap_or(0),
        }
    }

    /// Share stolen since `before`; `None` if no time was counted.
    pub(crate) fn stolen_since(self, before: CpuTicks) -> Option<f64> {
        let total = self.total.checked_sub(before.total).filter(|t| *t > 0)?;
        Some(self.stolen.saturating_sub(before.stolen) as f64 / total as f64)
    }
}

/// CPU time that the hypervisor has taken from this machine since it started.
#[must_use]
pub(crate) fn steal_time() -> Duration {
    Duration::from_millis(CpuTicks::now().stolen * 10)
}

/// Space on the file system of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct FreeSpace {
    /// Bytes that this user can still write.
    pub available_bytes: u64,
    /// Bytes of the file system.
    pub total_bytes: u64,
}

/// Space on the file system that holds `path`, or would hold it: the nearest
/// existing directory above counts.
///
/// # Errors
/// [`LabError::Io`] if the system does not say.
pub fn free_space(path: &Path) -> Result<FreeSpace, LabError> {
    let existing = nearest_existing(path);
    let stat = rustix::fs::statvfs(&existing)
        .map_err(std::io::Error::from)
        .map_err(LabError::io("read the free space of", &existing))?;
    Ok(FreeSpace {
        available_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
        total_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
    })
}

fn nearest_existing(path: &Path) -> PathBuf {
    let start = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    start
        .ancestors()
        .find(|p| p.exists())
        .map_or_else(|| PathBuf::from("/"), Path::to_path_buf)
}

/// The machine of a measurement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Name of the CPU.
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Release of the kernel.
    pub kernel: String,
    /// Type of the file system that holds the data.
    pub file_system: String,
    /// The block device under it, by name and model.
    pub device: String,
}

impl Machine {
    /// Describes this machine and the drive under `path`; what cannot be
    /// found out says "unknown".
    #[must_use]
    pub fn here(path: &Path) -> Machine {
        let mount = mount_of(path);
        Machine {
            cpu: proc_field("/proc/cpuinfo", "model name"),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory_bytes(),
            kernel: read_line("/proc/sys/kernel/osrelease"),
            device: mount.device(),
            file_system: mount.file_system,
        }
    }
}

/// Bytes of memory of this machine; 0 if that cannot be found out.
pub(crate) fn memory_bytes() -> u64 {
    proc_field("/proc/meminfo", "MemTotal")
        .trim_end_matches(" kB")
        .parse::<u64>()
        .map_or(0, |kib| kib * 1024)
}

fn read_line(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

fn proc_field(file: &str, name: &str) -> String {
    fs::read_to_string(file)
        .ok()
        .and_then(|text| {
            text.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                (key.trim() == name).then(|| value.trim().to_owned())
            })
        })
        .unwrap_or_else(|| "unknown".to_owned())
}

/// File systems that live in memory. Linux 6.6 and later accept O_DIRECT on them, and still every
/// read is a copy.
const IN_MEMORY: [(u64, &str); 2] = [(0x0102_1994, "tmpfs"), (0x8584_58f6, "ramfs")];
/// Block devices that live in memory: their names begin with one of these.
const MEMORY_DISKS: [&str; 2] = ["ram", "zram"];

/// The file system or block device under `path` by name, if it lives in memory. A path that does
/// not exist has what its nearest directory has.
pub(crate) fn in_memory(path: &Path) -> Option<String> {
    let existing = nearest_existing(path);
    let kind = rustix::fs::statfs(&existing).ok()?.f_type as u64 & 0xffff_ffff;
    let found = IN_MEMORY.iter().find(|(magic, _)| *magic == kind);
    if let Some((_, name)) = found {
        return Some((*name).to_owned());
    }
    let disk = mount_of(&existing).disk?.name;
    let in_memory = |start: &&str| {
        let number = disk.strip_prefix(*start);
        number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    MEMORY_DISKS.iter().any(in_memory).then_some(disk)
}

/// The mount that holds a path.
pub(crate) struct Mount {
    /// Type of the file system.
    pub(crate) file_system: String,
    /// Its source.
    source: String,
    /// The disk under that, below partitions, loop devices and mappings.
    disk: Option<Disk>,
}

/// A whole disk.
struct Disk {
    name: String,
    model: Option<String>,
}

impl Mount {
    /// The device by name and model.
    pub(crate) fn device(&self) -> String {
        match self.model() {
            Some(model) => format!("{} ({model})", self.source),
            None => self.source.clone(),
        }
    }

    fn model(&self) -> Option<&str> {
        self.disk.as_ref()?.model.as_deref()
    }

    /// What tells kinds of drives apart: the disk's model or, if it has none, its name.
    pub(crate) fn drive_kind(&self) -> Option<&str> {
        let name = self.disk.as_ref().map(|disk| disk.name.as_str());
        self.model().or(name)
    }
}

/// The mount that holds `path`.
pub(crate) fn mount_of(path: &Path) -> Mount {
    mount_above(path, LAYERS_MAX)
}

/// Layers of loop devices, partitions and mappings between a file and a disk.
const LAYERS_MAX: usize = 8;

fn mount_above(path: &Path, layers: usize) -> Mount {
    let mut mount = Mount {
        file_system: "unknown".to_owned(),
        source: "unknown".to_owned(),
        disk: None,
    };
    let Ok(meta) = fs::metadata(nearest_existing(path)) else {
        return mount;
    };
    let number = numbers(meta.st_dev());
    // Any program may have something mounted at a place that is not UTF-8.
    let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let mounts = String::from_utf8_lossy(&mounts);
    // Fields: id parent major:minor root mount-point options... - type source ...
    let found = mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut fields = right.split(' ');
        (left.split(' ').nth(2)? == number).then(|| Some((fields.next()?, fields.next()?)))?
    });
    if let Some((file_system, source)) = found {
        (mount.file_system, mount.source) = (file_system.to_owned(), source.to_owned());
    }
    let block = |number: &str| Path::new("/sys/dev/block").join(number);
    mount.disk = disk_of(&block(&number), layers).or_else(|| {
        // Some file systems have device numbers of their own; what they are made on has a node.
        let node = fs::metadata(&mount.source).ok()?;
        disk_of(&block(&numbers(node.st_rdev())), layers)
    });
    mount
}

fn numbers(device: u64) -> String {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    format!("{major}:{minor}")
}

/// The disk under a block device: of a partition the whole, of a loop device the disk of its file,
/// of a mapping that below it.
fn disk_of(device: &Path, layers: usize) -> Option<Disk> {
    let device = fs::canonicalize(device).ok()?;
    let below = layers.checked_sub(1)?;
    if device.join("partition").exists() {
        return disk_of(device.parent()?, below);
    }
    if let Ok(file) = fs::read_to_string(device.join("loop/backing_file")) {
        return mount_above(Path::new(file.trim()), below).disk;
    }
    let mapped = fs::read_dir(device.join("slaves")).ok();
    let mut mapped: Vec<PathBuf> = mapped
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.path())
        .collect();
    mapped.sort();
    if let Some(first) = mapped.first() {
        return disk_of(first, below);
    }
    let model = fs::read_to_string(device.join("device/model"));
    Some(Disk {
        name: device.file_name()?.to_string_lossy().into_owned(),
        model: model.ok().map(|model| model.trim().to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_space_of_a_file_that_does_not_exist_yet() {
        let dir = tempfile::tempdir().unwrap();
        let there = free_space(&dir.path().join("a/b/c")).unwrap();
        assert!(there.total_bytes > 0 && there.available_bytes <= there.total_bytes);
    }

    #[test]
    fn memory_is_no_drive() {
        let shared = Path::new("/dev/shm");
        if mount_of(shared).file_system == "tmpfs" {
            assert_eq!(in_memory(&shared.join("a/b")).as_deref(), Some("tmpfs"));
            assert!(mount_of(shared).drive_kind().is_none());
        }
        assert_eq!(in_memory(Path::new("/sys")), None);
    }

    #[test]
    fn cpu_time_grows_with_work() {
        let before = cpu_time();
        let mut sum = 0u64;
        while cpu_time() < before + Duration::from_millis(2) {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(sum > 0);
    }

    #[test]
    fn the_kernels_ticks_are_read_by_their_places() {
        let before = CpuTicks::parse("cpu  10 0 10 70 0 0 0 10 5 0\ncpu0 1 2 3\n");
        let after = CpuTicks::parse("cpu  20 0 20 130 0 0 0 30 9 0\n");
        assert!((after.stolen_since(before).unwrap() - 0.2).abs() < 1e-12);
        assert!(before.stolen_since(before).is_none());
        let ticks = CpuTicks::parse("cpu  1 2 4 100 50 6 7 8 9 10\ncpu0 1");
        assert_eq!((ticks.busy, ticks.total), (7, 178));
        assert!(CpuTicks::now().total > 0);
    }

    #[test]
    fn this_machine_has_a_name() {
        let machine = Machine::here(Path::new("/tmp"));
        assert!(machine.cores >= 1 && machine.memory_bytes > 1 << 20);
        assert_ne!(machine.kernel, "unknown");
    }
}

//! What the machine is and what it spends: free space, CPU time, names.

use std::fs;
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

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
/// counts them (`/proc/self/io`): `(read, written)`. Zero where the kernel does
/// not say.
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

/// CPU time that the hypervisor has taken from this machine since it started (`/proc/stat`); zero where the kernel does
/// not say.
#[must_use]
pub(crate) fn steal_time() -> Duration {
    cores_spent(&[8])
}

/// CPU time that interrupts took of this machine since boot; no process is charged for it.
#[cfg(feature = "rocksdb")]
pub(crate) fn interrupt_time() -> Duration {
    cores_spent(&[6, 7])
}

/// Sum of these columns of all cores' line: cpu user nice system idle iowait irq softirq steal, in hundredths of a second.
fn cores_spent(columns: &[usize]) -> Duration {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let words: Vec<&str> = text
        .lines()
        .next()
        .map(|line| line.split_whitespace().collect())
        .unwrap_or_default();
    let of = columns
        .iter()
        .filter_map(|&at| words.get(at)?.parse::<u64>().ok());
    Duration::from_millis(of.sum::<u64>() * 10)
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
/// [`LabError::Io`] where the system does not say.
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

/// What a measurement ran on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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
        let (file_system, device) = mount_of(path);
        Machine {
            cpu: proc_field("/proc/cpuinfo", "model name"),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory_bytes(),
            kernel: read_line("/proc/sys/kernel/osrelease"),
            file_system,
            device,
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

/// File system type and device of the mount that holds `path`.
fn mount_of(path: &Path) -> (String, String) {
    let unknown = || ("unknown".to_owned(), "unknown".to_owned());
    let Ok(meta) = fs::metadata(nearest_existing(path)) else {
        return unknown();
    };
    let device = meta.st_dev();
    let number = format!(
        "{}:{}",
        rustix::fs::major(device),
        rustix::fs::minor(device)
    );
    // Any program may have something mounted at a place that is not UTF-8.
    let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let mounts = String::from_utf8_lossy(&mounts);
    // Fields: id parent major:minor root mount-point options... - type source ...
    let Some((kind, source)) = mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        if left.split(' ').nth(2)? != number {
            return None;
        }
        let mut fields = right.split(' ');
        Some((fields.next()?.to_owned(), fields.next()?.to_owned()))
    }) else {
        return unknown();
    };
    let block = PathBuf::from(format!("/sys/dev/block/{number}"));
    let model = [block.join("device/model"), block.join("../device/model")]
        .into_iter()
        .find_map(|p| fs::read_to_string(p).ok());
    let source = match model {
        Some(model) => format!("{source} ({})", model.trim()),
        None => source,
    };
    (kind, source)
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
    fn cpu_time_grows_with_work() {
        let before = cpu_time();
        let mut sum = 0u64;
        while cpu_time() < before + Duration::from_millis(2) {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(sum > 0);
    }

    #[test]
    fn this_machine_has_a_name() {
        let machine = Machine::here(Path::new("/tmp"));
        assert!(machine.cores >= 1 && machine.memory_bytes > 1 << 20);
        assert_ne!(machine.kernel, "unknown");
    }
}

//! What the kernel tells about the drive under a path, and about time stolen by the hypervisor.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use isobath_model::profile::Hardware;

use crate::Machine;

/// The machine, and the drive under `path`; what cannot be found out is `None`.
pub(super) fn hardware(path: &Path, machine: &Machine) -> Hardware {
    let mut found = Hardware {
        cpu_model: Some(machine.cpu.clone()).filter(|c| c != "unknown"),
        cpu_count: u32::try_from(machine.cores).unwrap_or(u32::MAX),
        memory_bytes: machine.memory_bytes,
        ..Hardware::default()
    };
    let Some(drive) = drive_of(path) else {
        return found;
    };
    let text = |name: &str| {
        let text = fs::read_to_string(drive.join(name)).ok()?;
        Some(text.trim().to_owned()).filter(|t| !t.is_empty())
    };
    found.drive_model = text("device/model");
    found.drive_firmware = text("device/firmware_rev").or_else(|| text("device/rev"));
    found.drive_transport = transport(&drive);
    // The kernel counts in sectors of 512 bytes, whatever the drive's block is.
    found.drive_capacity_bytes = text("size").and_then(|s| Some(s.parse::<u64>().ok()? * 512));
    found.drive_queue_requests = text("queue/nr_requests").and_then(|s| s.parse().ok());
    found.logical_block_bytes = text("queue/logical_block_size").and_then(|s| s.parse().ok());
    found.volatile_write_cache = text("queue/write_cache").map(|s| s == "write back");
    found
}

/// The scheduler in force of the drive under `path`: the one in brackets.
pub(super) fn io_scheduler(path: &Path) -> Option<String> {
    let text = fs::read_to_string(drive_of(path)?.join("queue/scheduler")).ok()?;
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

/// The directory under /sys of the whole drive that holds `path` (or is `path`).
fn drive_of(path: &Path) -> Option<PathBuf> {
    let absolute = std::path::absolute(path).ok()?;
    let meta = absolute.ancestors().find_map(|p| fs::metadata(p).ok())?;
    let device = match meta.file_type().is_block_device() {
        true => meta.rdev(),
        false => meta.dev(),
    };
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let block = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    // A partition is a directory inside its drive's.
    if block.join("partition").exists() {
        return block.parent().map(Path::to_path_buf);
    }
    Some(block)
}

fn transport(drive: &Path) -> Option<String> {
    let name = drive.file_name()?.to_str()?;
    let known = [
        ("nvme", "nvme"),
        ("vd", "virtio"),
        ("sd", "scsi"),
        ("pmem", "pmem"),
    ];
    let (_, transport) = known.iter().find(|(prefix, _)| name.starts_with(prefix))?;
    Some((*transport).to_owned())
}

/// CPU time of the machine: all of it, and what the hypervisor gave to others.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CpuTicks {
    total: u64,
    stolen: u64,
}

impl CpuTicks {
    pub(super) fn now() -> CpuTicks {
        CpuTicks::parse(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// The first line of /proc/stat: user nice system idle iowait irq softirq steal guest guest_nice. Guest time is part of
    /// user time already.
    fn parse(stat: &str) -> CpuTicks {
        let line = stat.lines().next().unwrap_or_default();
        let ticks: Vec<u64> = line
            .split_ascii_whitespace()
            .skip(1)
            .take(8)
            .map(|t| t.parse().unwrap_or(0))
            .collect();
        CpuTicks {
            total: ticks.iter().sum(),
            stolen: ticks.get(7).copied().unwrap_or(0),
        }
    }

    /// Share stolen since `before`; `None` if no time was counted.
    pub(super) fn stolen_since(self, before: CpuTicks) -> Option<f64> {
        let total = self.total.checked_sub(before.total).filter(|t| *t > 0)?;
        Some(self.stolen.saturating_sub(before.stolen) as f64 / total as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_the_eighth_number() {
        let before = CpuTicks::parse("cpu  10 0 10 70 0 0 0 10 5 0\ncpu0 1 2 3\n");
        let after = CpuTicks::parse("cpu  20 0 20 130 0 0 0 30 9 0\n");
        assert!((after.stolen_since(before).unwrap() - 0.2).abs() < 1e-12);
        assert!(before.stolen_since(before).is_none());
        assert!(CpuTicks::now().total > 0);
    }
}

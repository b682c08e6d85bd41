//! The kernel's report about the drive under a path, and about who uses it.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use isobath_model::profile::Hardware;

use crate::Machine;
use crate::machine::CpuTicks;

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
pub(super) fn drive_of(path: &Path) -> Option<PathBuf> {
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

/// Of the bytes that the drive moved, others may have asked for this share.
const OTHERS_BYTES: f64 = 0.05;
/// Of the CPU time of all cores, others may have used this share.
const OTHERS_CPU: f64 = 0.25;
/// A slice shorter than this says nothing about CPU: the kernel counts in ticks of 10 ms.
const CPU_TIME_MIN_S: f64 = 0.1;

/// I/O of this process and of all processes so far, to detect whether others disturb a measurement.
#[derive(Debug, Clone, Copy)]
pub(super) struct Traffic {
    /// Bytes that the drive read and wrote for all processes; `None` if the kernel does not say.
    drive_bytes: Option<u64>,
    own_bytes: u64,
    /// Of all processes.
    ticks: CpuTicks,
    own_cpu_s: f64,
}

impl Traffic {
    pub(super) fn now(drive: Option<&Path>) -> Traffic {
        let drive_bytes = drive
            .and_then(|d| fs::read_to_string(d.join("stat")).ok())
            .and_then(|text| drive_bytes(&text));
        let (read, written) = crate::machine::device_bytes();
        Traffic {
            drive_bytes,
            own_bytes: read + written,
            ticks: CpuTicks::now(),
            own_cpu_s: crate::cpu_time().as_secs_f64(),
        }
    }

    /// Whether others used the drive or the CPU between `before` and now, more than a little.
    pub(super) fn disturbed_since(&self, before: &Traffic) -> bool {
        let own = self.own_bytes.saturating_sub(before.own_bytes);
        let drive = self
            .drive_bytes
            .zip(before.drive_bytes)
            .map(|(now, then)| now.saturating_sub(then));
        // A kernel that counts nothing for this process counts it for none.
        let of_drive =
            drive.is_some_and(|all| own > 0 && all as f64 * (1.0 - OTHERS_BYTES) > own as f64);
        let ticks = self.ticks.total.saturating_sub(before.ticks.total) as f64;
        let busy = self.ticks.busy.saturating_sub(before.ticks.busy) as f64;
        let own_ticks = (self.own_cpu_s - before.own_cpu_s) * TICKS_PER_S;
        let enough = ticks > CPU_TIME_MIN_S * TICKS_PER_S;
        of_drive || (enough && busy - own_ticks > OTHERS_CPU * ticks)
    }
}

/// `USER_HZ`, the same on every Linux.
const TICKS_PER_S: f64 = 100.0;

/// Bytes read and written by a drive: the third and seventh field of its `stat`, in sectors of 512
/// bytes.
fn drive_bytes(stat: &str) -> Option<u64> {
    let fields: Vec<u64> = stat
        .split_ascii_whitespace()
        .filter_map(|f| f.parse().ok())
        .collect();
    Some((fields.get(2)? + fields.get(6)?) * 512)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic(drive_mib: u64, own_mib: u64, busy_ticks: u64, own_cpu_s: f64) -> Traffic {
        Traffic {
            drive_bytes: Some(drive_mib << 20),
            own_bytes: own_mib << 20,
            ticks: CpuTicks {
                total: 1000 + 100 * u64::from(drive_mib > 0),
                busy: busy_ticks,
                stolen: 0,
            },
            own_cpu_s,
        }
    }

    #[test]
    fn other_processes_are_counted_apart_from_this_one() {
        let before = traffic(0, 0, 500, 1.0);
        let disturbed = |now: Traffic| now.disturbed_since(&before);
        assert!(!disturbed(traffic(100, 100, 530, 1.25)));
        assert!(disturbed(traffic(120, 100, 530, 1.25)), "the drive");
        assert!(disturbed(traffic(100, 100, 580, 1.25)), "the CPU");
        assert!(
            !disturbed(traffic(120, 0, 530, 1.25)),
            "a kernel that does not count"
        );
    }

    #[test]
    fn the_kernels_counters_are_read_by_their_places() {
        let stat = "  11 2 100 4 55 6 300 8 0 9 10 0 0 0 0 1 2";
        assert_eq!(drive_bytes(stat), Some(400 * 512));
        assert_eq!(drive_bytes("1 2"), None);
    }
}

//! Bytes that a real drive received and wrote to flash, from its SMART logs: WA-D if the drive
//! reports it.
//!
//! The host's bytes are in the standard log (NVMe base specification, log 02h, "Data Units
//! Written": thousands of 512-byte units). The flash's bytes are in a vendor's log: the OCP data
//! centre specification's C0h, Intel's CAh, Samsung's CAh or Micron's FBh. `nvme` (nvme-cli)
//! fetches them; what it cannot fetch is unknown, never zero.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;

/// A drive's lifetime counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct DriveWrites {
    /// Bytes that the host wrote.
    pub host_bytes: u128,
    /// Bytes programmed into flash.
    pub nand_bytes: u128,
}

/// A vendor's log with a counter of flash writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VendorLog {
    /// Open Compute Project, "Datacenter NVMe SSD Specification", SMART / Health Information
    /// Extended (C0h).
    Ocp,
    /// Intel and Solidigm, additional SMART attributes (CAh).
    Intel,
    /// Samsung, extended SMART of data centre drives (CAh).
    Samsung,
    /// Micron, vendor-specific health (FBh).
    Micron,
}

/// Bytes of every log.
const LOG_BYTES: usize = 512;

const LOGS: [VendorLog; 4] = [
    VendorLog::Ocp,
    VendorLog::Micron,
    VendorLog::Intel,
    VendorLog::Samsung,
];

/// The identifier at the end of the OCP log: AFD514C97C6F4F9CA4F2BFEA2810AFC5h, least significant
/// byte first.
const OCP_GUID: [u8; 16] = [
    0xc5, 0xaf, 0x10, 0x28, 0xea, 0xbf, 0xf2, 0xa4, 0x9c, 0x4f, 0x6f, 0x7c, 0xc9, 0x14, 0xd5, 0xaf,
];
/// Bytes per unit of Intel's counters.
const INTEL_UNIT: u128 = 32 << 20;
/// Bytes of one of Intel's attributes.
const INTEL_ITEM: usize = 12;
const INTEL_NAND_WRITTEN: u8 = 0xf4;
const INTEL_HOST_WRITTEN: u8 = 0xf5;

impl VendorLog {
    fn id(self) -> u8 {
        match self {
            VendorLog::Ocp => 0xc0,
            VendorLog::Intel | VendorLog::Samsung => 0xca,
            VendorLog::Micron => 0xfb,
        }
    }

    /// The PCI vendor ids whose drives have this log; none for a log of every vendor.
    fn vendors(self) -> &'static [u16] {
        match self {
            VendorLog::Ocp => &[],
            VendorLog::Intel => &[0x8086, 0x025e],
            VendorLog::Samsung => &[0x144d],
            VendorLog::Micron => &[0x1344],
        }
    }

    /// Bytes programmed into flash, from the log's bytes; `None` if this is not such a log.
    fn nand_bytes(self, log: &[u8]) -> Option<u128> {
        let counted = match self {
            VendorLog::Ocp => {
                if log.get(496..512)? != OCP_GUID {
                    return None;
                }
                number(log, 0, 16)?
            }
            VendorLog::Intel => intel(log, INTEL_NAND_WRITTEN)?,
            VendorLog::Samsung => number(log, 280, 16)?,
            // Multi-level cells and single-level cells are counted apart.
            VendorLog::Micron => number(log, 0, 16)?.checked_add(number(log, 16, 16)?)?,
        };
        (counted > 0).then_some(counted)
    }

    /// Bytes that the host wrote, if the vendor's log counts them in units that go with its
    /// flash writes.
    fn host_bytes(self, log: &[u8]) -> Option<u128> {
        match self {
            VendorLog::Intel => intel(log, INTEL_HOST_WRITTEN),
            VendorLog::Samsung => number(log, 264, 16),
            VendorLog::Ocp | VendorLog::Micron => None,
        }
    }
}

/// A number of `len` bytes, least significant first.
fn number(log: &[u8], at: usize, len: usize) -> Option<u128> {
    let bytes = log.get(at..at + len)?;
    let number = bytes.iter().rev();
    Some(number.fold(0, |number, byte| number << 8 | u128::from(*byte)))
}

/// One of Intel's attributes: key, two reserved bytes, normalised value, a reserved byte, six bytes
/// of raw value.
fn intel(log: &[u8], key: u8) -> Option<u128> {
    let item = log.chunks_exact(INTEL_ITEM).find(|item| item[0] == key)?;
    number(item, 5, 6)?.checked_mul(INTEL_UNIT)
}

/// Bytes that the host wrote, from the standard SMART log (02h).
fn host_bytes(log: &[u8]) -> Option<u128> {
    number(log, 48, 16)?.checked_mul(512_000)
}

/// The NVMe controller under the file system of `path`, or why there is none.
pub(super) fn controller_of(path: &Path) -> Result<PathBuf, String> {
    let device = crate::Machine::here(path).device;
    controller_named(&device).ok_or_else(|| format!("{device} is no NVMe drive of this machine"))
}

/// The controller of a namespace, or of a partition of one, that is named first.
fn controller_named(device: &str) -> Option<PathBuf> {
    let name = device.split(' ').next().unwrap_or_default();
    let name = name.rsplit('/').next().unwrap_or_default();
    let rest = name.strip_prefix("nvme")?;
    let digits = rest.chars().take_while(char::is_ascii_digit).count();
    (digits > 0).then(|| format!("/dev/nvme{}", &rest[..digits]).into())
}

/// Reads a drive's counters.
///
/// # Errors
/// Why they are unknown, in words for a verdict.
pub(super) fn read(controller: &Path) -> Result<DriveWrites, String> {
    let name = controller.file_name().unwrap_or_default().to_string_lossy();
    let vendor = std::fs::read_to_string(format!("/sys/class/nvme/{name}/device/vendor"));
    let vendor = vendor.unwrap_or_default();
    let vendor = u16::from_str_radix(vendor.trim().trim_start_matches("0x"), 16).unwrap_or(0);
    of_logs(vendor, |id| fetch(controller, id))
}

/// The counters in the logs of a drive of this PCI vendor.
fn of_logs(
    vendor: u16,
    fetch: impl Fn(u8) -> Result<Vec<u8>, String>,
) -> Result<DriveWrites, String> {
    let standard = fetch(0x02)?;
    for log in LOGS {
        if !log.vendors().is_empty() && !log.vendors().contains(&vendor) {
            continue;
        }
        let Ok(bytes) = fetch(log.id()) else {
            continue;
        };
        if let Some(nand_bytes) = log.nand_bytes(&bytes) {
            // A counter of 0 is of a log that does not have it.
            let host = log.host_bytes(&bytes).filter(|&counted| counted > 0);
            let host = host.or_else(|| host_bytes(&standard));
            let host_bytes = host.ok_or("the drive's SMART log is too short")?;
            return Ok(DriveWrites {
                host_bytes,
                nand_bytes,
            });
        }
    }
    Err("the drive has no log of flash writes that is known here".to_owned())
}

fn fetch(controller: &Path, id: u8) -> Result<Vec<u8>, String> {
    let answer = Command::new("nvme")
        .arg("get-log")
        .arg(controller)
        .args([
            format!("--log-id={id}"),
            format!("--log-len={LOG_BYTES}"),
            "--raw-binary".to_owned(),
        ])
        .output()
        .map_err(|error| format!("nvme-cli cannot be run ({error})"))?;
    match answer.status.success() && answer.stdout.len() >= LOG_BYTES {
        true => Ok(answer.stdout),
        false => Err(format!("{} refuses log {id:#04x}", controller.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(log: &mut [u8], at: usize, number: u128, len: usize) {
        log[at..at + len].copy_from_slice(&number.to_le_bytes()[..len]);
    }

    #[test]
    fn the_standard_log_counts_thousands_of_sectors() {
        let mut log = [0u8; 512];
        put(&mut log, 48, 123_456, 16);
        assert_eq!(host_bytes(&log), Some(123_456 * 512_000));
        assert_eq!(host_bytes(&log[..60]), None);
    }

    #[test]
    fn the_ocp_log_is_recognised_by_its_identifier() {
        let mut log = [0u8; 512];
        put(&mut log, 0, 987_654_321_000, 16);
        assert_eq!(VendorLog::Ocp.nand_bytes(&log), None);
        log[496..].copy_from_slice(&OCP_GUID);
        assert_eq!(VendorLog::Ocp.nand_bytes(&log), Some(987_654_321_000));
        assert_eq!(VendorLog::Ocp.nand_bytes(&log[..500]), None);
    }

    #[test]
    fn intel_items_are_found_by_their_key() {
        let mut log = [0u8; 512];
        for (place, (key, raw)) in [(0xab, 1), (0xad, 77), (0xf4, 5000), (0xf5, 2000)]
            .into_iter()
            .enumerate()
        {
            let at = place * INTEL_ITEM;
            log[at] = key;
            log[at + 3] = 100;
            put(&mut log, at + 5, raw, 6);
        }
        assert_eq!(VendorLog::Intel.nand_bytes(&log), Some(5000 << 25));
        assert_eq!(VendorLog::Intel.host_bytes(&log), Some(2000 << 25));
        assert_eq!(VendorLog::Intel.nand_bytes(&[0; 512]), None);
    }

    /// The readings of an Intel drive as nvme-cli decoded them in a public report of 2020
    /// (linux-nvme/nvme-cli, issue 814), put back into the places of the log: key, normalised value
    /// 100, raw value of six bytes.
    #[test]
    fn the_published_readings_of_an_intel_drive() {
        let readings: [(u8, u128); 14] = [
            (0xab, 0),
            (0xac, 0),
            (0xad, 4_295_098_369),
            (0xb8, 0),
            (0xc7, 0),
            (0xe2, 65_535),
            (0xe3, 65_535),
            (0xe4, 65_535),
            (0xea, 0),
            (0xf0, 0),
            (0xf3, 0),
            (0xf4, 40_262),
            (0xf5, 45_197),
            (0xf6, 0),
        ];
        let mut log = [0u8; 512];
        for (item, (key, raw)) in log.chunks_exact_mut(INTEL_ITEM).zip(readings) {
            (item[0], item[3]) = (key, 100);
            put(item, 5, raw, 6);
        }
        // 1.23 TiB to flash for 1.38 TiB of the host's.
        assert_eq!(VendorLog::Intel.nand_bytes(&log), Some(1_350_968_541_184));
        assert_eq!(VendorLog::Intel.host_bytes(&log), Some(1_516_559_663_104));
    }

    #[test]
    fn samsung_and_micron_have_fixed_places() {
        let mut log = [0u8; 512];
        put(&mut log, 264, 4 << 40, 16);
        put(&mut log, 280, 6 << 40, 16);
        assert_eq!(VendorLog::Samsung.nand_bytes(&log), Some(6 << 40));
        assert_eq!(VendorLog::Samsung.host_bytes(&log), Some(4 << 40));
        let mut log = [0u8; 512];
        put(&mut log, 0, 10 << 40, 16);
        put(&mut log, 16, 1 << 40, 16);
        assert_eq!(VendorLog::Micron.nand_bytes(&log), Some(11 << 40));
        assert_eq!(
            VendorLog::Micron.nand_bytes(&[0; 512]),
            None,
            "absent is unknown"
        );
        assert_eq!(VendorLog::Micron.nand_bytes(&log[..20]), None);
    }

    #[test]
    fn each_vendor_has_its_own_log_and_the_standard_one_counts_what_it_lacks() {
        let mut standard = vec![0u8; 512];
        put(&mut standard, 48, 3, 16);
        let mut intel = vec![0u8; 512];
        (intel[0], intel[INTEL_ITEM]) = (INTEL_NAND_WRITTEN, INTEL_HOST_WRITTEN);
        put(&mut intel, 5, 9, 6);
        put(&mut intel, INTEL_ITEM + 5, 4, 6);
        let mut samsung = vec![0u8; 512];
        put(&mut samsung, 280, 70, 16);
        let mut micron = vec![0u8; 512];
        put(&mut micron, 16, 50, 16);
        let of = |vendor, id, log: &[u8]| {
            let read = of_logs(vendor, |asked| match asked {
                2 => Ok(standard.clone()),
                _ if asked == id => Ok(log.to_vec()),
                _ => Err("refused".to_owned()),
            });
            read.ok().map(|drive| (drive.host_bytes, drive.nand_bytes))
        };
        let host = 3 * 512_000;
        for vendor in [0x8086, 0x025e] {
            assert_eq!(of(vendor, 0xca, &intel), Some((4 << 25, 9 << 25)));
        }
        assert_eq!(
            of(0x144d, 0xca, &samsung),
            Some((host, 70)),
            "no counter of its own"
        );
        assert_eq!(of(0x1344, 0xfb, &micron), Some((host, 50)));
        // The same numbers of logs mean something else on other vendors' drives.
        assert_eq!(of(0x1344, 0xca, &intel), None);
        assert_eq!(of(0x144d, 0xfb, &micron), None);
        assert_eq!(of(0, 0xca, &samsung), None);
        // Erased, or counters at their end.
        assert_eq!(of(0x1344, 0xfb, &[0xff; 512]), None);
        assert_eq!(of(0x8086, 0xca, &[0xff; 512]), None);
        assert_eq!(of(0, 0xc0, &[0xff; 512]), None);
    }

    #[test]
    fn controllers_are_named_by_their_namespaces() {
        let named = |device| controller_named(device).map(|path| path.display().to_string());
        assert_eq!(named("/dev/nvme12n1p2 (of 2)"), Some("/dev/nvme12".into()));
        assert_eq!(named("nvme0n1"), Some("/dev/nvme0".into()));
        for other in ["/dev/vda", "nvme", "nvmen1", ""] {
            assert_eq!(named(other), None);
        }
    }
}

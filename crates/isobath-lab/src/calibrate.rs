//! What Isobath takes of this machine's CPU, measured on a memory device: the constants behind the
//! advice.

use std::ops::Bound;
use std::path::Path;
use std::time::Duration;

use isobath::{Durability, Options, Store, Tree};
use isobath_flash::rng::Rng;
use isobath_model::advise::IsobathCosts;
use serde::{Deserialize, Serialize};

use crate::{LabError, Monitor, Stage, Unit, cpu_time, synced};

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Calibration {
    /// Records of 8 + 120 bytes.
    pub records: u32,
    /// Operations per constant.
    pub operations: u32,
}

impl Calibration {
    /// A calibration with so many records, and with as many operations, but a million at most.
    #[must_use]
    pub fn of(records: u32) -> Self {
        Self {
            records: records.max(1),
            operations: records.clamp(1, OPERATIONS_MAX),
        }
    }
}

const OPERATIONS_MAX: u32 = 1_000_000;

pub(crate) const KEY_BYTES: usize = 8;
pub(crate) const VALUE_BYTES: usize = 120;
const RECORD_BYTES: u64 = (KEY_BYTES + VALUE_BYTES) as u64;
const SCANNED_RECORDS: usize = 100;
/// Of a lookup that misses, the pool of the second store holds one page in so many.
const MISS_SHARE: u64 = 8;

/// Measures lookups, updates and scans in the pool, and lookups and updates that miss it, one at a
/// time on one worker.
///
/// Costs are CPU time of the whole process, so that other processes disturb them little; this one
/// must be idle otherwise.
///
/// # Errors
/// Those of the store; [`LabError::Interrupted`].
pub fn calibrate(
    calibration: Calibration,
    monitor: &dyn Monitor,
) -> Result<IsobathCosts, LabError> {
    monitor.begin(Stage {
        name: "calibrating",
        total: Some(5),
        unit: Unit::Items,
    });
    let data = u64::from(calibration.records) * RECORD_BYTES;
    let pool = Bench::open(calibration, 2 * data + (64 << 20))?;
    let step = |bench: &Bench, operation| {
        monitor.check()?;
        let us = bench.cpu_us(operation)?;
        monitor.advance(1);
        Ok::<f64, LabError>(us)
    };
    // An update looks its record up, too; of the pages that it changes, some are written while the
    // next ones are.
    let updates = |bench: &Bench| {
        // Until as many changed pages are written as change.
        bench.cpu_us(Operation::Put)?;
        let before = bench.store.stats();
        let us = step(bench, Operation::Put)?;
        let after = bench.store.stats();
        let each = |pages: u64| pages as f64 / f64::from(calibration.operations);
        Ok::<Updates, LabError>(Updates {
            us,
            read: each(after.page_reads - before.page_reads),
            // The cleaner's pages are copied, checked and written as others are.
            written: each(
                after.page_writes + after.relocations - before.page_writes - before.relocations,
            ),
        })
    };
    let hit_us = step(&pool, Operation::Get)?;
    let scan_us = step(&pool, Operation::Scan)?;
    let in_pool = updates(&pool)?;
    pool.close()?;
    let small = Bench::open(calibration, (data / MISS_SHARE).max(MIN_POOL_BYTES))?;
    let before = small.store.stats().page_reads;
    let missing_us = step(&small, Operation::Get)?;
    let reads = small.store.stats().page_reads - before;
    let misses = reads as f64 / f64::from(calibration.operations);
    if misses < MIN_MISSES {
        return Err(LabError::Request(format!(
            "{} records fit into the smallest pool; calibrate with more",
            calibration.records
        )));
    }
    let out_of_pool = updates(&small)?;
    small.close()?;
    let miss_us = ((missing_us - hit_us) / misses).max(SHORTEST_US);
    let page_written_us = (out_of_pool.us - in_pool.us - out_of_pool.read * miss_us)
        / (out_of_pool.written - in_pool.written).max(f64::MIN_POSITIVE);
    let page_written_us = page_written_us.max(SHORTEST_US);
    let write_us = in_pool.us - hit_us - in_pool.written * page_written_us;
    Ok(IsobathCosts {
        hit_us,
        miss_us,
        write_us: write_us.max(SHORTEST_US),
        scanned_record_us: ((scan_us - hit_us) / SCANNED_RECORDS as f64).max(SHORTEST_US),
        source: format!(
            "{} records on this machine, memory device",
            calibration.records
        ),
        page_written_us,
        // A memory device has no flushes.
        synced: IsobathCosts::default().synced,
        is_write_measured: true,
        is_page_written_measured: true,
    })
}

/// What updates took.
struct Updates {
    /// CPU each, µs.
    us: f64,
    /// Pages that each read and wrote.
    read: f64,
    written: f64,
}

/// The smallest pool that a miss is measured with, bytes, and the least share of its lookups that
/// miss.
const MIN_POOL_BYTES: u64 = 2 << 20;
const MIN_MISSES: f64 = 0.25;

/// No constant is below this, however the clock disturbs it, µs.
const SHORTEST_US: f64 = 0.001;

/// A file of costs. What else is in it is of an engine that is not calibrated.
#[derive(Serialize, Deserialize)]
struct Costs<C> {
    isobath: C,
}

/// Measures Isobath on a memory device, and its synced commits in a new directory below
/// `directory`, which is removed.
///
/// # Errors
/// Those of the store and the files; [`LabError::Interrupted`].
pub fn calibrate_all(
    calibration: Calibration,
    directory: &Path,
    monitor: &dyn Monitor,
) -> Result<IsobathCosts, LabError> {
    let place = directory.join(format!("isobath-calibration-{}", std::process::id()));
    std::fs::create_dir(&place).map_err(LabError::io("create", &place))?;
    let synced = synced::measure(&place, calibration);
    std::fs::remove_dir_all(&place).map_err(LabError::io("remove", &place))?;
    let synced = synced?;
    Ok(IsobathCosts {
        synced,
        ..calibrate(calibration, monitor)?
    })
}

/// Writes costs as JSON.
///
/// # Errors
/// Those of the file.
pub fn write_costs(path: &Path, costs: &IsobathCosts) -> Result<(), LabError> {
    let text = serde_json::to_string_pretty(&Costs { isobath: costs }).unwrap_or_default();
    crate::drive_model::write_whole(path, &(text + "\n"))
}

/// Reads what [`write_costs`] wrote.
///
/// # Errors
/// [`LabError::Input`] with the file and what is wrong in it.
pub fn read_costs(path: &Path) -> Result<IsobathCosts, LabError> {
    let text = std::fs::read_to_string(path).map_err(LabError::io("read", path))?;
    let Costs { isobath: own } = serde_json::from_str::<Costs<IsobathCosts>>(&text)
        .map_err(|error| LabError::input(path, error.to_string()))?;
    // What is a difference of two measurements may be 0.
    let all = [
        ("isobath.hit_us", own.hit_us, true),
        ("isobath.miss_us", own.miss_us, true),
        ("isobath.write_us", own.write_us, true),
        ("isobath.scanned_record_us", own.scanned_record_us, true),
        ("isobath.page_written_us", own.page_written_us, true),
        ("isobath.synced.wake_us", own.synced.wake_us, false),
        ("isobath.synced.commit_us", own.synced.commit_us, false),
    ];
    for (field, us, is_positive) in all {
        let rule = match is_positive {
            true => "it must be a number above 0",
            false => "it must not be below 0",
        };
        if !us.is_finite() || us < 0.0 || is_positive && us == 0.0 {
            return Err(LabError::input(path, format!("{field} is {us}: {rule}")));
        }
    }
    Ok(own)
}

/// Record `n`'s key: bytes that sort as the numbers do.
pub(crate) fn key_of(n: u64) -> [u8; KEY_BYTES] {
    let mut key = n.to_le_bytes();
    key.reverse();
    key
}

#[derive(Debug, Clone, Copy)]
enum Operation {
    Get,
    Put,
    Scan,
}

/// A store on a memory device.
struct Bench {
    store: Store,
    tree: Tree,
    calibration: Calibration,
}

impl Bench {
    fn open(calibration: Calibration, pool_bytes: u64) -> Result<Self, LabError> {
        // The advice counts flushes apart.
        let options = Options::new()
            .pool_bytes(pool_bytes)
            .workers(1)
            .tasks_per_worker(8)
            .durability(Durability::None);
        let store = Store::in_memory(&options)?;
        let tree = store.create_tree("calibration")?;
        let records = 0..u64::from(calibration.records);
        tree.bulk_load(records.map(|n| (key_of(n), [0; VALUE_BYTES])))?;
        let bench = Self {
            store,
            tree,
            calibration,
        };
        // Whatever is read for the first time is read here.
        bench.cpu_us(Operation::Scan)?;
        bench.cpu_us(Operation::Get)?;
        Ok(bench)
    }

    /// CPU per operation, µs.
    fn cpu_us(&self, operation: Operation) -> Result<f64, LabError> {
        let Calibration {
            records,
            operations,
        } = self.calibration;
        let count = match operation {
            Operation::Scan => (operations / SCANNED_RECORDS as u32).max(1),
            _ => operations.max(1),
        };
        let tree = self.tree.clone();
        let work = move || -> Result<Duration, isobath::Error> {
            let mut rng = Rng::new(1);
            let mut value = Vec::new();
            let before = cpu_time();
            for _ in 0..count {
                let key = key_of(u64::from(rng.below(records)));
                match operation {
                    Operation::Get => {
                        tree.get_into(&key, &mut value)?;
                    }
                    Operation::Put => tree.insert(key, [1; VALUE_BYTES])?,
                    Operation::Scan => {
                        let bounds = (Bound::Included(&key[..]), Bound::Unbounded);
                        tree.scan_first(bounds, SCANNED_RECORDS, |_, _| {})?;
                    }
                }
            }
            Ok(cpu_time().saturating_sub(before))
        };
        let took = self.store.spawn(work).join()??;
        Ok(took.as_secs_f64() * 1e6 / f64::from(count))
    }

    fn close(self) -> Result<(), LabError> {
        drop(self.tree);
        Ok(self.store.close()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Silent;

    /// Costs depend on the machine; that each was measured and survives its file does not.
    #[test]
    fn costs_are_measured_and_read_back() {
        let small = Calibration {
            records: 100_000,
            operations: 20_000,
        };
        let costs = calibrate(small, &Silent).unwrap();
        assert!(costs.is_write_measured && costs.is_page_written_measured);
        assert!(costs.source.contains("100000 records"));
        let all = [
            costs.hit_us,
            costs.miss_us,
            costs.write_us,
            costs.scanned_record_us,
            costs.page_written_us,
        ];
        assert!(
            all.iter().all(|us| us.is_finite() && *us > 0.0),
            "{costs:?}"
        );
        // Other tests of the process disturb what is measured, but no measurement is the reference
        // machine's.
        let reference = IsobathCosts::default();
        assert_ne!(costs.page_written_us, reference.page_written_us);
        let tiny = Calibration {
            records: 1000,
            operations: 1000,
        };
        let error = calibrate(tiny, &Silent).unwrap_err().to_string();
        assert!(error.contains("calibrate with more"), "{error}");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("costs.json");
        write_costs(&path, &costs).unwrap();
        assert_eq!(read_costs(&path).unwrap(), costs);
        std::fs::write(&path, "{\"isobath\": {\"hit_us\": 1}}").unwrap();
        assert!(
            read_costs(&path)
                .unwrap_err()
                .to_string()
                .contains("miss_us")
        );
        let refused = |costs: &IsobathCosts, field: &str| {
            write_costs(&path, costs).unwrap();
            let error = read_costs(&path).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        };
        let mut bad = costs.clone();
        bad.hit_us = -1.0;
        refused(&bad, "isobath.hit_us is -1");
        // Commits that never wait cost nothing more.
        let mut bad = costs;
        bad.synced.wake_us = 0.0;
        bad.synced.commit_us = -1.0;
        refused(&bad, "isobath.synced.commit_us is -1");
    }
}

//! Settings for Isobath: a B-tree over an out-of-place page store.

use serde::{Deserialize, Serialize};

use super::cache::hit_share;
use super::drive::{CHUNK_PAGES, DriveView};
use super::scan_reads::{Leaves, ScanReads};
use super::synced::{SyncedCosts, group_of};
use super::write_back::WriteBack;
use super::{AdviseError, Constant, Demand, EngineAdvice, GIB, Reason, at_cores, predict};
use crate::point::PAGE_BYTES;
use crate::workload::{Durability, Workload};

/// How the page store picks segments to clean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CleaningPolicy {
    /// Most free space first: as good as any where updates are uniform, and the cheapest to decide.
    Greedy,
    /// Learned death rates: pages that die at about the same time share segments. Costs 4 bytes of
    /// memory per page.
    LifeTable,
}

/// Settings that a store is opened with.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct IsobathSettings {
    /// Worker threads.
    pub workers: u32,
    /// I/Os in flight per worker.
    pub depth_per_worker: u32,
    /// Tasks per worker.
    pub tasks_per_worker: u32,
    /// Bytes per segment.
    pub segment_bytes: u64,
    /// Share of the page store's segments that holds live pages.
    pub fill_factor: f64,
    /// Bytes of the buffer pool.
    pub pool_bytes: u64,
    /// Cleaning policy.
    pub cleaning: CleaningPolicy,
    /// Durability of commits.
    pub durability: Durability,
}

const PAGE: f64 = PAGE_BYTES as f64;
/// Header and fence keys of a leaf, bytes.
const LEAF_HEADER_BYTES: f64 = 64.0;
/// Slot and lengths per record, bytes.
const RECORD_OVERHEAD_BYTES: f64 = 12.0;
/// What random inserts leave B-tree leaves filled to: ln 2. Records loaded in order fill them.
const LEAF_FILL_INSERTED: f64 = std::f64::consts::LN_2;
const LEAF_FILL_LOADED: f64 = 1.0;
/// Values outside of leaves that a scan reads together.
const READ_AHEAD_VALUES: f64 = 16.0;
/// Values above this live in extents outside of the leaf, referred to by this many bytes.
const INLINE_BYTES_MAX: f64 = 1024.0;
const EXTENT_REFERENCE_BYTES: f64 = 24.0;
/// Memory beside the pool: stacks, staging, cleaning, log buffers; and the mapping table's bytes
/// per page.
const FIXED_MEMORY_BYTES: f64 = 64.0 * 1024.0 * 1024.0;
const MAPPING_BYTES_PER_PAGE: f64 = 8.0;
/// And life-table's.
const HISTORY_BYTES_PER_PAGE: f64 = 4.0;
/// Share of the memory that is the pool's, whatever else takes.
const POOL_SHARE_MIN: f64 = 0.25;
/// Share of the pool that may be dirty.
const DIRTY_SHARE: f64 = 1.0 / 8.0;
/// Log record header, bytes.
const LOG_HEADER_BYTES: f64 = 40.0;

/// Isobath's CPU costs, µs, as `isobath advise --calibrate` measured them on the reference machine
/// (2.3 GHz; docs/results/advice-constants.json) or on this one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IsobathCosts {
    /// A lookup of a record in the pool.
    pub hit_us: f64,
    /// What a page miss takes beside its I/O.
    pub miss_us: f64,
    /// An update of a record in the pool, its log record included.
    pub write_us: f64,
    /// A record scanned in the pool.
    pub scanned_record_us: f64,
    /// A page written back, pages that cleaning moves among them, its I/O excluded.
    pub page_written_us: f64,
    /// Synced commits; the reference machine's where a file of costs from before they were measured
    /// has none.
    #[serde(default = "synced")]
    pub synced: SyncedCosts,
    /// Where those come from that were measured.
    pub source: String,
    /// Whether `write_us` was measured, too.
    pub is_write_measured: bool,
    /// Whether `page_written_us` was measured, too; files of costs from before it was have a goal
    /// of the design.
    #[serde(default)]
    pub is_page_written_measured: bool,
}

/// By 2 and 64 tasks. One write with a flush takes less than the write and the flush that the probe
/// times, by more than a wake takes.
fn synced() -> SyncedCosts {
    SyncedCosts {
        wake_us: 0.0,
        commit_us: 5.9,
    }
}

impl Default for IsobathCosts {
    fn default() -> Self {
        Self {
            hit_us: 0.99,
            miss_us: 1.64,
            write_us: 1.45,
            scanned_record_us: 0.028,
            page_written_us: 1.65,
            synced: synced(),
            source: "the reference machine, docs/benchmarks.md".into(),
            is_write_measured: true,
            is_page_written_measured: true,
        }
    }
}

impl IsobathCosts {
    /// The costs, one by one, with their sources.
    pub(super) fn constants(&self) -> Vec<Constant> {
        let goal = || "a goal of the design".to_owned();
        let constant = |what, us, is_measured: bool| Constant {
            engine: "Isobath",
            what,
            us,
            is_measured,
            source: match is_measured {
                true => self.source.clone(),
                false => goal(),
            },
        };
        let reference = Self::default();
        let synced = |what, us| Constant {
            source: match self.synced == reference.synced {
                true => reference.source.clone(),
                false => self.source.clone(),
            },
            ..constant(what, us, true)
        };
        vec![
            constant("lookup in the pool", self.hit_us, true),
            constant("page miss beside its I/O", self.miss_us, true),
            constant("update in the pool", self.write_us, self.is_write_measured),
            constant("record scanned", self.scanned_record_us, true),
            constant(
                "page written beside its I/O",
                self.page_written_us,
                self.is_page_written_measured,
            ),
            synced("wake of those that waited for a flush", self.synced.wake_us),
            synced("synced commit beside its flush", self.synced.commit_us),
        ]
    }
}

/// Fill factors outside of this make no sense: below, space is wasted without less cleaning worth
/// having; above, cleaning explodes.
const FILL_MIN: f64 = 0.5;
const FILL_MAX: f64 = 0.9;
const FILL_DEFAULT: f64 = 0.8;

/// Pages written per page that the tree writes, at fill factor `fill` under uniform updates
/// (equation 4 of the MDC paper). Skewed updates under MDC do better; this bounds them.
fn cleaning_write_amplification(fill: f64) -> f64 {
    1.0 + isobath_flash::analysis::wamp(isobath_flash::analysis::emptiness(fill))
}

/// The tree's shape for a workload.
struct Shape {
    leaf_records: f64,
    leaf_pages: f64,
    extent_pages_per_record: f64,
    extent_pages: f64,
}

impl Shape {
    fn of(workload: &Workload) -> Self {
        let outside = workload.record_bytes() > INLINE_BYTES_MAX;
        let fill = match workload.inserts > 0.0 {
            true => LEAF_FILL_INSERTED,
            false => LEAF_FILL_LOADED,
        };
        let inline = workload.key_bytes
            + RECORD_OVERHEAD_BYTES
            + if outside {
                EXTENT_REFERENCE_BYTES
            } else {
                workload.value_bytes
            };
        let leaf_records = ((PAGE - LEAF_HEADER_BYTES) * fill / inline).max(1.0);
        let extent_pages_per_record = if outside {
            (workload.value_bytes / PAGE).ceil()
        } else {
            0.0
        };
        Self {
            leaf_records,
            leaf_pages: (workload.record_count / leaf_records).max(1.0),
            extent_pages_per_record,
            extent_pages: extent_pages_per_record * workload.record_count,
        }
    }

    fn pages(&self) -> f64 {
        self.leaf_pages + self.extent_pages
    }
}

pub(super) fn advise(
    drive: &DriveView<'_>,
    workload: &Workload,
    depth: u32,
    costs: &IsobathCosts,
) -> Result<EngineAdvice<IsobathSettings>, AdviseError> {
    let shape = Shape::of(workload);
    // Where nothing is written the default does no harm.
    let cleaning = match workload.zipf_exponent > 0.0 || workload.writes() <= 0.0 {
        true => CleaningPolicy::LifeTable,
        false => CleaningPolicy::Greedy,
    };
    let mapping_bytes = mapping_bytes(&shape, cleaning);
    let pool_bytes = (workload.memory_bytes - FIXED_MEMORY_BYTES - mapping_bytes)
        .max(workload.memory_bytes * POOL_SHARE_MIN);
    let (fill_factor, fill_reason) = fill_factor(workload, &shape)?;
    let store = (pool_bytes, fill_factor, cleaning);
    let demand_beside = |at_cores: f64| {
        let demand = demand(drive, workload, &shape, store, (depth, at_cores), costs)?;
        let predicted = predict(drive, workload, &demand, demand.deepest)?;
        Ok::<_, AdviseError>((demand, predicted))
    };
    // At first as if no client was at the cores.
    let (_, predicted) = demand_beside(0.0)?;
    let (demand, predicted) = demand_beside(at_cores(workload, &predicted))?;
    let bound_us = demand
        .drive_us
        .max(demand.cpu_us / f64::from(workload.core_count))
        .max(1e-3);
    // A quarter more than the CPU that is needed, so that cleaning and bursts do not queue behind
    // requests.
    let workers = ((1.25 * demand.cpu_us / bound_us).ceil() as u32).clamp(1, workload.core_count);
    let depth_per_worker = depth.div_ceil(workers);
    let tasks_per_worker = tasks_for(depth_per_worker);
    let settings = IsobathSettings {
        workers,
        depth_per_worker,
        tasks_per_worker,
        segment_bytes: SEGMENT_BYTES,
        fill_factor,
        pool_bytes: pool_bytes as u64,
        cleaning,
        durability: workload.durability,
    };
    let reasons = reasons(&settings, workload, &demand, depth, fill_reason);
    Ok(EngineAdvice {
        settings,
        predicted,
        reasons,
    })
}

/// Bytes of the mapping table, and of what the policy knows of each page.
fn mapping_bytes(shape: &Shape, cleaning: CleaningPolicy) -> f64 {
    let per_page = match cleaning {
        CleaningPolicy::Greedy => MAPPING_BYTES_PER_PAGE,
        CleaningPolicy::LifeTable => MAPPING_BYTES_PER_PAGE + HISTORY_BYTES_PER_PAGE,
    };
    per_page * shape.pages()
}

/// Says that the store takes more memory than there is; `None` if it does not.
pub(super) fn memory_warning(workload: &Workload, settings: &IsobathSettings) -> Option<String> {
    let mapping = mapping_bytes(&Shape::of(workload), settings.cleaning);
    let needed = settings.pool_bytes as f64 + FIXED_MEMORY_BYTES + mapping;
    (needed > workload.memory_bytes).then(|| {
        format!(
            "Isobath takes {:.1} GiB of memory, more than machine.memory_bytes: {:.1} GiB of them for the mapping table.",
            needed / GIB,
            mapping / GIB
        )
    })
}

pub(super) const SEGMENT_BYTES: u64 = 2 * 1024 * 1024;
const TASKS_MIN: u32 = 8;
const TASKS_MAX: u32 = 1024;

/// Half as many tasks again as I/Os in flight, so that some compute while the others wait.
pub(super) fn tasks_for(depth_per_worker: u32) -> u32 {
    (depth_per_worker + depth_per_worker / 2).clamp(TASKS_MIN, TASKS_MAX)
}

fn fill_factor(workload: &Workload, shape: &Shape) -> Result<(f64, String), AdviseError> {
    let needed_bytes = shape.pages() * PAGE;
    if workload.writes() <= 0.0
        && workload
            .capacity_bytes
            .is_none_or(|c| needed_bytes <= FILL_MAX * c)
    {
        return Ok((
            FILL_MAX,
            "nothing is written, so nothing needs cleaning and space can be saved".into(),
        ));
    }
    let Some(capacity_bytes) = workload.capacity_bytes else {
        return Ok((
            FILL_DEFAULT,
            "no drive.capacity_bytes was given; 0.8 is the usual compromise".into(),
        ));
    };
    let fill = needed_bytes / capacity_bytes;
    if fill > FILL_MAX {
        return Err(AdviseError::DoesNotFit {
            needed_bytes,
            capacity_bytes,
            min_bytes: needed_bytes / FILL_MAX,
        });
    }
    let chosen = fill.max(FILL_MIN);
    let because = format!(
        "pages need {:.1} GiB of {:.1}; at this fill cleaning writes {:.2} pages per page of the tree",
        needed_bytes / GIB,
        capacity_bytes / GIB,
        cleaning_write_amplification(chosen)
    );
    Ok((chosen, because))
}

fn demand(
    drive: &DriveView<'_>,
    workload: &Workload,
    shape: &Shape,
    (pool_bytes, fill_factor, cleaning): (f64, f64, CleaningPolicy),
    (depth, at_cores): (u32, f64),
    costs: &IsobathCosts,
) -> Result<Demand, AdviseError> {
    let pages = shape.pages();
    let hits = |bytes: f64| {
        hit_share(
            bytes / PAGE,
            pages,
            workload.record_count,
            workload.zipf_exponent,
        )
    };
    let miss = 1.0 - hits(pool_bytes);
    let has_extent = if shape.extent_pages_per_record > 0.0 {
        1.0
    } else {
        0.0
    };
    // A record outside its leaf takes a second access, of all its pages in one I/O.
    let extent = shape.extent_pages_per_record;
    let extents = |records: f64| miss * has_extent * records;
    let scan = ScanReads::of(
        workload.scan_records,
        &Leaves {
            records: shape.leaf_records,
            miss,
            order: workload.order_on_drive(),
            write_back: write_back(workload, shape, (pool_bytes, fill_factor, cleaning)),
            scan_share: workload.scans,
        },
    );
    // Leaves that are read one by one, and reads of several.
    let leaf_reads =
        (workload.point_reads + workload.writes()) * miss + workload.scans * scan.alone;
    let long_reads = workload.scans * scan.together;
    let extent_reads =
        workload.point_reads * extents(1.0) + workload.scans * extents(workload.scan_records);
    // An update of a page that is dirty already costs no further write.
    let leaf_writes = 1.0 - hits(pool_bytes * DIRTY_SHARE);
    let tree_pages = workload.writes() * (leaf_writes + extent);
    let stored_pages = tree_pages * cleaning_write_amplification(fill_factor);
    let logged = match has_extent > 0.0 {
        true => workload.key_bytes,
        false => workload.record_bytes(),
    };
    // All commits that wait share one flush, of whole pages if they are synced.
    let group = group_of(workload);
    let group_pages = group * (logged + LOG_HEADER_BYTES) / PAGE;
    let is_synced = workload.durability == Durability::Synced;
    let flushed_pages = if is_synced {
        group_pages.ceil()
    } else {
        group_pages
    };
    let log_pages = workload.writes() * flushed_pages / group;
    let flush_us = if is_synced {
        drive.flush_us(flushed_pages)?
    } else {
        0.0
    };
    let write_depth = depth.min(WRITE_DEPTH_MAX);
    let ios = leaf_reads + long_reads + extent_reads;
    // How often a client waits for reads: leaves that are asked for together are read together, a
    // window at a time, and so are values.
    let waits = leaf_reads
        + workload.scans * scan.windows.min(scan.together)
        + workload.point_reads * extents(1.0)
        + workload.scans * extents(workload.scan_records) / READ_AHEAD_VALUES;
    let of_a_client = (ios / waits.max(1e-9)).max(1.0);
    // No more reads are in flight than the clients wait for that are not at the cores.
    let waiting = (f64::from(workload.clients) - at_cores).max(1.0);
    let in_flight = (waiting * of_a_client).min(f64::from(depth));
    let drive_us = leaf_reads * drive.page_read_us(in_flight)?
        + long_reads * drive.random_read_us(in_flight, scan.pages_together)?
        + extent_reads * drive.random_read_us(in_flight, extent)?
        + (stored_pages + log_pages) * drive.bulk_page_us(write_depth, 0.0)?
        // Cleaning reads what it moves.
        + (stored_pages - tree_pages) * drive.bulk_page_us(write_depth, 1.0)?;
    let leaves = (workload.point_reads + workload.writes()) * miss + workload.scans * scan.leaves;
    let page_reads = leaves + extent_reads * extent;
    // Each page of a read has its frame, its checksum and its word in the mapping table.
    let cpu_us = costs.hit_us
        + ios * drive.cpu_us_per_io()
        + (leaves + extent_reads) * costs.miss_us
        + workload.writes() * costs.write_us
        + stored_pages * costs.page_written_us
        + workload.scans * workload.scan_records * costs.scanned_record_us;
    let (leaf_us, extent_us) = (
        drive.read_latency_us(1)?,
        drive.random_read_us(1u32, extent)?,
    );
    let point_alone_us = costs.hit_us + miss * (costs.miss_us + leaf_us + has_extent * extent_us);
    let together = (scan.together / scan.windows.max(1e-9)).clamp(1.0, f64::from(depth));
    let leaves_us = scan.alone * leaf_us
        + scan.together * drive.random_read_us(together.ceil() as u32, scan.pages_together)?;
    let scan_alone_us = costs.hit_us
        + leaves_us
        + extents(workload.scan_records) * extent_us / READ_AHEAD_VALUES
        + workload.scan_records * costs.scanned_record_us;
    let write_alone_us = costs.hit_us + costs.write_us + miss * leaf_us + flush_us;
    Ok(Demand {
        drive_us,
        cpu_us,
        // Groups are flushed one after another.
        serial_us: match is_synced {
            true => workload.writes() * costs.synced.serial_us(flush_us, group),
            false => 0.0,
        },
        serial: "log flushes",
        alone_us: workload.point_reads * point_alone_us
            + workload.scans * scan_alone_us
            + workload.writes() * write_alone_us,
        point_read_alone_us: point_alone_us,
        page_reads,
        read_ios: Some(ios),
        point_read_accesses: miss * (1.0 + has_extent),
        point_read_cpu_us: costs.hit_us + miss * costs.miss_us,
        // Values are written and read by chunks.
        largest_io_pages: match extent_reads > 0.0 {
            true => extent.min(CHUNK_PAGES),
            false => scan.pages_together.max(1.0),
        },
        deepest: in_flight.ceil() as u32,
        reads: ios,
        pages_read: leaf_reads
            + long_reads * scan.pages_together
            + extent_reads * extent
            + (stored_pages - tree_pages),
        pages_written: stored_pages + log_pages,
        written_bytes: (stored_pages + log_pages) * PAGE,
        space_amplification: pages * PAGE / fill_factor / workload.data_bytes(),
    })
}

/// How leaves are written back, if that says which lie beside each other: skew has life-table sort
/// them otherwise, and leaves that were split are numbered in another order than their keys'.
fn write_back(
    workload: &Workload,
    shape: &Shape,
    (pool_bytes, fill_factor, cleaning): (f64, f64, CleaningPolicy),
) -> Option<WriteBack> {
    let is_even = workload.zipf_exponent <= 0.0 && workload.inserts <= 0.0;
    is_even.then(|| {
        WriteBack::of(
            shape.leaf_pages,
            pool_bytes / PAGE,
            workload.core_count,
            fill_factor.min(FILL_DEFAULT),
            cleaning == CleaningPolicy::LifeTable,
        )
    })
}

/// Writes of 256 KiB saturate a drive at less depth than small reads do.
const WRITE_DEPTH_MAX: u32 = 16;

fn reasons(
    settings: &IsobathSettings,
    workload: &Workload,
    demand: &Demand,
    depth: u32,
    fill_reason: String,
) -> Vec<Reason> {
    let reason = |setting, value: String, because: String| Reason {
        setting,
        value,
        because,
    };
    vec![
        reason(
            "workers",
            settings.workers.to_string(),
            format!(
                "an operation takes {:.1} µs of CPU and {:.1} µs of the drive; more workers than that needs would idle",
                demand.cpu_us, demand.drive_us
            ),
        ),
        reason(
            "depth_per_worker",
            settings.depth_per_worker.to_string(),
            format!("{depth} reads in flight reach 95% of what the drive was measured to give; more only adds latency"),
        ),
        reason(
            "tasks_per_worker",
            settings.tasks_per_worker.to_string(),
            "half as many tasks again as I/Os in flight, so that some compute while the others wait".into(),
        ),
        reason(
            "segment_bytes",
            settings.segment_bytes.to_string(),
            "the default; the drive's own reclaim unit is not in the profile".into(),
        ),
        reason("fill_factor", format!("{:.2}", settings.fill_factor), fill_reason),
        reason(
            "pool_bytes",
            settings.pool_bytes.to_string(),
            format!(
                "{}; an operation then reads {:.2} pages from the drive",
                match settings.pool_bytes as f64 > POOL_SHARE_MIN * workload.memory_bytes {
                    true => "memory less 64 MiB and the mapping table",
                    false => "a quarter of the memory, since the mapping table leaves less",
                },
                demand.page_reads
            ),
        ),
        match settings.cleaning {
            CleaningPolicy::Greedy => reason(
                "cleaning",
                "greedy".into(),
                "updates are uniform: no segment is about to lose pages faster than another".into(),
            ),
            CleaningPolicy::LifeTable if workload.writes() <= 0.0 => reason(
                "cleaning",
                "life-table".into(),
                "the default: nothing is written".into(),
            ),
            CleaningPolicy::LifeTable => reason(
                "cleaning",
                "life-table".into(),
                format!(
                    "updates are skewed (Zipf {:.2}): simulated as an engine cleans, it moves a third to a half fewer pages than mdc",
                    workload.zipf_exponent
                ),
            ),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::cleaning_write_amplification;

    /// Table 1 of the MDC paper at F = 0.8: one page of the tree costs 1/E pages written, E = 0.37.
    #[test]
    fn a_cleaned_segment_gives_back_its_empty_part() {
        assert!((1.0 / cleaning_write_amplification(0.8) - 0.371).abs() < 5e-4);
        // Its Wamp at F = 0.5 is 0.255.
        assert!((cleaning_write_amplification(0.5) - 1.255).abs() < 1e-4);
    }
}

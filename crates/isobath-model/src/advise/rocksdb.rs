//! Settings for RocksDB: fanout, file size, L0 triggers, background jobs, subcompactions, single
//! level or not.
//!
//! They follow from the paper's levels and the drive alone. Both trees are given Isobath's CPU
//! costs, so that they differ by what they read and write; what RocksDB's code takes beyond that
//! is measured by `isobath bench compare`.

use serde::Serialize;

use super::cache::{hit_share, miss_shares};
use super::drive::DriveView;
use super::isobath::IsobathCosts;
use super::synced::group_of;
use super::{AdviseError, Demand, EngineAdvice, GIB, Predicted, Reason, at_cores, predict};
use crate::lsm::{Layout, LsmStore};
use crate::point::PAGE_BYTES;
use crate::workload::{Durability, Workload};

/// What is written into the OPTIONS file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RocksdbSettings {
    /// Levels: fanout `F` and L0 files `C`, or a single level.
    pub layout: Layout,
    /// `T`: target SST file size, bytes.
    pub file_bytes: u64,
    /// `level0_file_num_compaction_trigger`.
    pub l0_trigger_files: u32,
    /// `level0_slowdown_writes_trigger`.
    pub l0_slowdown_files: u32,
    /// `level0_stop_writes_trigger`.
    pub l0_stop_files: u32,
    /// `max_background_jobs`.
    pub background_jobs: u32,
    /// `max_subcompactions`.
    pub subcompactions: u32,
    /// Bloom filter bits per key; 0 for none.
    pub filter_bits_per_key: u32,
    /// Block cache, bytes.
    pub block_cache_bytes: u64,
    /// Memtable, bytes.
    pub write_buffer_bytes: u64,
    /// User threads that reach the predicted rate.
    pub user_threads: u32,
    /// Levels that the data fill.
    pub level_count: u32,
}

const MIB: u64 = 1024 * 1024;
const FILE_BYTES: u64 = 64 * MIB;
const WRITE_BUFFER_BYTES_MAX: u64 = 64 * MIB;
/// Memtables at most, of one size each, and the share of the memory that they may take together.
pub(super) const MEMTABLES: u64 = 3;
const MEMTABLE_SHARE: f64 = 0.25;
const FILTER_BITS_PER_KEY: u32 = 10;
/// False positives of ten bits per key.
const FILTER_FALSE_POSITIVE_SHARE: f64 = 0.01;
/// Index and filter blocks, bytes per record: ten bits of filter and a 4 KiB block's index entry.
const METADATA_BYTES_PER_RECORD: f64 = 2.0;
/// Overwritten and deleted records that wait for compaction, as a share of the data, for fanout F:
/// 1/F of it lies above the last level; a single level holds none.
const SPACE_SLACK: f64 = 0.05;

/// Sequence number, type and lengths of a record in a block, bytes.
const BLOCK_BYTES_PER_RECORD: f64 = 12.0;
/// Log record header, bytes.
const LOG_HEADER_BYTES: f64 = 24.0;

/// Fanouts that are compared; the paper's tables span 2..32.
const FANOUTS: [u32; 7] = [2, 4, 6, 8, 10, 16, 32];
/// L0 files and L1 files of leveled layouts.
const L0_FILES: u32 = 4;
pub(super) fn advise(
    drive: &DriveView<'_>,
    workload: &Workload,
    costs: &IsobathCosts,
) -> Result<EngineAdvice<RocksdbSettings>, AdviseError> {
    let mut candidates = Vec::new();
    let leveled = FANOUTS.iter().map(|&fanout| Layout::Leveled {
        fanout,
        l0_files: L0_FILES,
    });
    for layout in leveled.chain([Layout::SingleLevel]) {
        let settings = settings(workload, layout);
        let predicted = predicted(drive, workload, &settings, costs)?;
        candidates.push((predicted, settings));
    }
    let lives = |p: &Predicted| {
        p.endurance_years
            .is_none_or(|years| years >= workload.lifetime_years)
    };
    let meets = |p: &Predicted| {
        workload
            .target_operations_per_s
            .is_none_or(|t| p.operations_per_s >= t)
    };
    let fits = |p: &Predicted| {
        workload
            .capacity_bytes
            .is_none_or(|c| p.space_amplification * workload.data_bytes() <= c)
    };
    // Endurance, target and space first; then the rate; among rates within the drive model's error,
    // the least flash.
    let rank = |p: &Predicted| (u8::from(!fits(p)), u8::from(!lives(p)), u8::from(!meets(p)));
    let best_rank = candidates
        .iter()
        .map(|(p, _)| rank(p))
        .min()
        .unwrap_or_default();
    let fastest = candidates
        .iter()
        .filter(|(p, _)| rank(p) == best_rank)
        .map(|(p, _)| p.operations_per_s)
        .fold(0.0, f64::max);
    // A store that is only read is loaded once; then only the rate counts.
    let tie_share = match workload.writes() > 0.0 {
        true => RATE_TIE_SHARE,
        false => 0.0,
    };
    let slower = |p: &Predicted| u8::from(p.operations_per_s < fastest * (1.0 - tie_share));
    let key = |p: &Predicted| (rank(p), slower(p));
    let mut chosen = &candidates[0];
    for candidate in &candidates[1..] {
        let (new, old) = (&candidate.0, &chosen.0);
        let wear = new.write_amplification.total_cmp(&old.write_amplification);
        if key(new).cmp(&key(old)).then(wear).is_lt() {
            chosen = candidate;
        }
    }
    let (predicted, settings) = chosen.clone();
    let reasons = reasons(&settings, &predicted, &candidates, workload);
    Ok(EngineAdvice {
        settings,
        predicted,
        reasons,
    })
}

/// What an LSM tree with these settings does on the drive, with the CPU costs of Isobath.
fn predicted(
    drive: &DriveView<'_>,
    workload: &Workload,
    settings: &RocksdbSettings,
    costs: &IsobathCosts,
) -> Result<Predicted, AdviseError> {
    let deepest = settings.user_threads.min(drive.concurrency_max);
    let beside = |at_cores: f64| {
        // Threads that are at the cores read nothing.
        let reading = (f64::from(settings.user_threads) - at_cores).max(1.0);
        let reading = reading.min(f64::from(drive.concurrency_max));
        let demand = demand(drive, workload, settings, costs, reading)?;
        predict(drive, workload, &demand, deepest)
    };
    // At first as if no client was at the cores.
    let predicted = beside(0.0)?;
    beside(at_cores(workload, &predicted))
}

/// Rates closer than this count as equal.
const RATE_TIE_SHARE: f64 = 0.05;

fn settings(workload: &Workload, layout: Layout) -> RocksdbSettings {
    let jobs = workload.core_count.max(2);
    let point_queries = workload.point_reads > 0.0;
    let single = layout == Layout::SingleLevel;
    // A single level merges whatever has gathered in L0 with everything: the more at once, the less
    // is rewritten.
    let (trigger, slowdown, stop) = if single {
        (8, 24, 36)
    } else {
        (L0_FILES, 20, 36)
    };
    // Memtables and cache together take what there is, and no more; index and filter blocks live in
    // the cache.
    let memtable = workload.memory_bytes * MEMTABLE_SHARE / MEMTABLES as f64;
    let write_buffer_bytes = ((memtable as u64) / MIB * MIB).clamp(MIB, WRITE_BUFFER_BYTES_MAX);
    let cache = workload.memory_bytes - (MEMTABLES * write_buffer_bytes) as f64;
    let level_count = store(workload, point_queries).level_bytes(layout).len() as u32;
    RocksdbSettings {
        layout,
        file_bytes: FILE_BYTES,
        l0_trigger_files: trigger,
        l0_slowdown_files: slowdown,
        l0_stop_files: stop,
        background_jobs: jobs,
        subcompactions: if single { jobs } else { jobs.min(L0_FILES) },
        filter_bits_per_key: if point_queries {
            FILTER_BITS_PER_KEY
        } else {
            0
        },
        block_cache_bytes: cache as u64,
        write_buffer_bytes,
        user_threads: workload.clients,
        level_count,
    }
}

fn store(workload: &Workload, filtered: bool) -> LsmStore {
    LsmStore {
        data_bytes: workload.data_bytes(),
        file_bytes: FILE_BYTES as f64,
        filter_false_positive_share: filtered.then_some(FILTER_FALSE_POSITIVE_SHARE),
        l0_slowdown_files: 20,
    }
}

fn demand(
    drive: &DriveView<'_>,
    workload: &Workload,
    settings: &RocksdbSettings,
    costs: &IsobathCosts,
    threads: f64,
) -> Result<Demand, AdviseError> {
    let page = PAGE_BYTES as f64;
    let record_bytes = workload.record_bytes();
    let jobs = settings.background_jobs;
    let mut store = store(workload, settings.filter_bits_per_key > 0);
    store.l0_slowdown_files = settings.l0_slowdown_files;
    store.file_bytes = settings.file_bytes as f64;
    let work = store.steady_work(settings.layout, jobs);
    let blocks = workload.data_bytes() / page;
    let hits = hit_share(
        data_cache_bytes(workload, settings) / page,
        blocks,
        workload.record_count,
        workload.zipf_exponent,
    );
    let scan_data =
        workload.scan_records * (workload.record_bytes() + BLOCK_BYTES_PER_RECORD) / page;
    let reads = level_reads(workload, settings, &store, scan_data, hits);
    let query_blocks = reads.per_query;
    // Iterators read ahead of themselves from the third block on that they read from the drive,
    // once more than the scan needs.
    let ahead = if (1.0 - hits) * scan_data > 2.0 {
        1.0 - hits
    } else {
        0.0
    };
    let scan_blocks = reads.per_scan + ahead;
    // A record that is larger than a block has a block of its own.
    let block_pages = (record_bytes / page).ceil().max(1.0);
    let page_reads =
        workload.point_reads * query_blocks * block_pages + workload.scans * scan_blocks;
    let rewritten = work.write_amplification;
    // All writers that wait form a group with one flush, of whole pages where commits are synced.
    let group = group_of(workload);
    let group_pages = group * (record_bytes + LOG_HEADER_BYTES) / page;
    let is_synced = workload.durability == Durability::Synced;
    let flushed_pages = if is_synced {
        group_pages.ceil()
    } else {
        group_pages
    };
    let flush_us = if is_synced {
        drive.flush_us(flushed_pages)?
    } else {
        0.0
    };
    let log_bytes = flushed_pages * page / group;
    let written_bytes = workload.writes() * (rewritten * record_bytes + log_bytes);
    let compacted_pages = workload.writes() * (rewritten - 1.0) * record_bytes / page;
    let bulk_depth = jobs.min(16);
    let bulk_us = written_bytes / page * drive.bulk_page_us(bulk_depth, 0.0)?
        + compacted_pages * drive.bulk_page_us(bulk_depth, 1.0)?;
    let query_us = drive.random_read_us(threads, block_pages)?;
    let drive_us = workload.point_reads * query_blocks * query_us
        + workload.scans * scan_blocks * drive.page_read_us(threads)?
        + bulk_us;
    // A record that compaction rewrites is scanned, and is its part of a page that is written.
    let rewrite_cpu_us = costs.scanned_record_us + costs.page_written_us * record_bytes / page;
    let block_cpu_us = costs.miss_us + drive.cpu_us_per_io();
    let point_cpu_us = costs.hit_us + query_blocks * block_cpu_us;
    let scan_cpu_us =
        costs.hit_us + workload.scan_records * costs.scanned_record_us + scan_blocks * block_cpu_us;
    let put_us = costs.hit_us + costs.write_us;
    let cpu_us = workload.point_reads * point_cpu_us
        + workload.scans * scan_cpu_us
        + workload.writes() * (put_us + rewritten * rewrite_cpu_us);
    // L0 → L1 and L1 → L2 exclude each other; subcompactions split each of them.
    let page_us_alone = drive.bulk_page_us(1, 0.0)? + drive.bulk_page_us(1, 1.0)?;
    let rewrite_us_alone = rewrite_cpu_us + record_bytes / page * page_us_alone;
    let compaction_us =
        work.serial_rewrites * rewrite_us_alone / f64::from(settings.subcompactions);
    // Groups are flushed one after another, beside compaction.
    let log_us = match is_synced {
        true => costs.synced.serial_us(flush_us, group),
        false => 0.0,
    };
    let (serial, serial_us) = match log_us > compaction_us {
        true => ("log flushes", log_us),
        false => ("compaction", compaction_us),
    };
    let point_alone_us = point_cpu_us + query_blocks * drive.random_read_us(1, block_pages)?;
    Ok(Demand {
        drive_us,
        cpu_us,
        serial_us: workload.writes() * serial_us,
        serial,
        alone_us: workload.point_reads * point_alone_us
            // Blocks are read one after another.
            + workload.scans * (scan_cpu_us + scan_blocks * drive.read_latency_us(1)?)
            + workload.writes() * (put_us + flush_us),
        point_read_alone_us: point_alone_us,
        page_reads,
        read_ios: None,
        point_read_accesses: query_blocks,
        point_read_cpu_us: point_cpu_us,
        largest_io_pages: if page_reads > 0.0 { block_pages } else { 1.0 },
        // Each thread that reads waits for a read of its own.
        deepest: if page_reads > 0.0 {
            settings.user_threads
        } else {
            1
        },
        reads: workload.point_reads * query_blocks + workload.scans * scan_blocks,
        pages_read: page_reads + compacted_pages,
        pages_written: written_bytes / page,
        written_bytes,
        space_amplification: 1.0 + SPACE_SLACK + slack_of(settings.layout),
    })
}

/// Blocks that are read from the drive.
struct LevelReads {
    per_query: f64,
    per_scan: f64,
}

/// Blocks read from the drive per query and per scan. Every run costs a block to position, without
/// filters a query, too, and the records themselves lie in the blocks that hold them. Upper levels
/// are small, and as much goes to each of them as to the last, so that the cache holds them. `hits`
/// is the share of accesses that find their block among the hottest.
fn level_reads(
    workload: &Workload,
    settings: &RocksdbSettings,
    store: &LsmStore,
    scan_data: f64,
    hits: f64,
) -> LevelReads {
    let page = PAGE_BYTES as f64;
    let wasted = store.filter_false_positive_share.unwrap_or(1.0);
    // Runs and bytes of each level, L0 first.
    let l0 = l0_runs(workload, settings);
    let mut levels = vec![(l0, l0 * store.file_bytes)];
    levels.extend(
        store
            .level_bytes(settings.layout)
            .iter()
            .map(|&bytes| (1.0, bytes)),
    );
    let all: f64 = levels.iter().map(|level| level.1).sum();
    // Blocks that one query and one scan use of each level.
    let query = |level: usize| {
        let below: f64 = levels[level + 1..].iter().map(|level| level.1).sum();
        (wasted * levels[level].0 * below + levels[level].1) / all
    };
    let scan = |level: usize| levels[level].0 + levels[level].1 / all * scan_data;
    let set = |level: usize| {
        let accesses = workload.point_reads * query(level) + workload.scans * scan(level);
        (levels[level].1 / page, accesses)
    };
    let sets: Vec<(f64, f64)> = (0..levels.len()).map(set).collect();
    let misses = miss_shares(data_cache_bytes(workload, settings) / page, &sets);
    // Where records follow a law, the hottest of them stay, too.
    let reads = |of: &dyn Fn(usize) -> f64| {
        let missing = misses.iter().enumerate();
        missing
            .map(|(level, miss)| of(level) * miss.min(1.0 - hits))
            .sum()
    };
    LevelReads {
        per_query: reads(&query),
        per_scan: reads(&scan),
    }
}

/// What of the block cache is left for records, once index and filter blocks are in it.
fn data_cache_bytes(workload: &Workload, settings: &RocksdbSettings) -> f64 {
    (settings.block_cache_bytes as f64 - metadata_bytes(workload)).max(0.0)
}

fn metadata_bytes(workload: &Workload) -> f64 {
    METADATA_BYTES_PER_RECORD * workload.record_count
}

/// Says that index and filter blocks are larger than the cache that they live in; `None` if they
/// are not.
pub(super) fn memory_warning(workload: &Workload, settings: &RocksdbSettings) -> Option<String> {
    let (needed, cache) = (metadata_bytes(workload), settings.block_cache_bytes as f64);
    (needed > cache).then(|| {
        format!(
            "RocksDB's index and filter blocks take {:.1} GiB, more than its block cache of {:.1} GiB: they are read again and again, which its rates leave out.",
            needed / GIB,
            cache / GIB
        )
    })
}

/// Files that lie in L0 on average while records are written; each is a run that scans merge.
fn l0_runs(workload: &Workload, settings: &RocksdbSettings) -> f64 {
    let files = match settings.layout {
        _ if workload.writes() <= 0.0 => 0,
        Layout::SingleLevel => settings.l0_slowdown_files,
        Layout::Leveled { .. } => settings.l0_trigger_files,
    };
    f64::from(files) / 2.0
}

fn slack_of(layout: Layout) -> f64 {
    match layout {
        Layout::Leveled { fanout, .. } => 1.0 / f64::from(fanout.max(2)),
        // One whole-level merge in flight holds its inputs until it is done.
        Layout::SingleLevel => 1.0,
    }
}

fn describe(layout: Layout) -> String {
    match layout {
        Layout::Leveled { fanout, l0_files } => {
            format!("leveled, fanout {fanout}, {l0_files} files in L0 and L1")
        }
        Layout::SingleLevel => "a single level".into(),
    }
}

fn reasons(
    settings: &RocksdbSettings,
    predicted: &Predicted,
    candidates: &[(Predicted, RocksdbSettings)],
    workload: &Workload,
) -> Vec<Reason> {
    let reason = |setting, value: String, because: String| Reason {
        setting,
        value,
        because,
    };
    let others: Vec<String> = candidates
        .iter()
        .filter(|(_, s)| s.layout != settings.layout)
        .map(|(p, s)| {
            format!(
                "{} ({:.0}/s, write amplification {:.1})",
                match s.layout {
                    Layout::Leveled { fanout, .. } => format!("F = {fanout}"),
                    Layout::SingleLevel => "single level".into(),
                },
                p.operations_per_s,
                p.write_amplification
            )
        })
        .collect();
    let mut all = vec![
        reason(
            "layout",
            describe(settings.layout),
            format!(
                "{:.0} operations/s and write amplification {:.1} are predicted, against {}",
                predicted.operations_per_s,
                predicted.write_amplification,
                others.join(", ")
            ),
        ),
        reason(
            "target_file_size_base",
            settings.file_bytes.to_string(),
            "64 MiB amortizes the cost of starting a file and leaves many files to compact side by side".into(),
        ),
        reason(
            "level0 triggers",
            format!("{} / {} / {}", settings.l0_trigger_files, settings.l0_slowdown_files, settings.l0_stop_files),
            match settings.layout {
                Layout::SingleLevel => "every merge rewrites the whole level, so many files must gather first".into(),
                Layout::Leveled { .. } => "L0 as large as L1, so that their merge rewrites each byte twice".into(),
            },
        ),
        reason(
            "max_background_jobs",
            settings.background_jobs.to_string(),
            format!("one per core; with one, flushes wait for compactions ({} cores)", workload.core_count),
        ),
        reason(
            "max_subcompactions",
            settings.subcompactions.to_string(),
            "only L0 → L1 is split by subcompactions, into at most as many parts as there are files in L1".into(),
        ),
    ];
    if settings.filter_bits_per_key > 0 {
        let because = "one false positive in a hundred: a lookup reads about one block however many levels there are";
        all.push(reason(
            "filter_policy",
            format!("{} bits per key", settings.filter_bits_per_key),
            because.into(),
        ));
    }
    all
}

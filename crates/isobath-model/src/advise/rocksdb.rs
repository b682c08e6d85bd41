//! Settings for RocksDB: fanout, file size, L0 triggers, background jobs, subcompactions, single level or not.

use serde::{Deserialize, Serialize};

use super::cache::{hit_share, miss_shares};
use super::drive::DriveView;
use super::synced::{SyncedCosts, group_of};
use super::{
    AdviseError, Constant, Demand, EngineAdvice, GIB, Predicted, Reason, at_cores, predict,
};
use crate::lsm::{EngineModel, Layout, LsmStore, Mix};
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
/// Overwritten and deleted records that wait for compaction, as a share of the data, for fanout F: 1/F of it lies above the last
/// level; a single level holds none.
const SPACE_SLACK: f64 = 0.05;

/// What RocksDB takes of the CPU, µs: as `isobath advise --calibrate` measured 7.8 on the reference machine (2.3 GHz; docs/benchmarks.md, "The
/// constants of the advice") or on this one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RocksdbCosts {
    /// A lookup of a record that is in the block cache.
    pub lookup_us: f64,
    /// A block that is read, beside its I/O.
    pub block_above_io_us: f64,
    /// A block that is read, with its I/O, which the calling thread waits for while others run. Where it was measured, runs take this
    /// instead of the last one and what the profile says of I/Os, which go to the drive in batches there.
    #[serde(default)]
    pub block_us: Option<f64>,
    /// A write into memtable and log.
    pub write_us: f64,
    /// A record that a flush or a compaction writes.
    pub rewritten_record_us: f64,
    /// A byte of it.
    pub rewritten_byte_us: f64,
    /// A record scanned.
    pub scanned_record_us: f64,
    /// What a scan takes more that reads the drive: its iterator reads ahead, through a buffer of its own. Like the next two, it is
    /// the reference machine's where a file of costs from before it has none.
    #[serde(default = "scan_ahead_us")]
    pub scan_ahead_us: f64,
    /// A byte of a write, of what is longer than 128 bytes.
    #[serde(default = "write_byte_us")]
    pub write_byte_us: f64,
    /// What a write takes more when it waits for another one.
    #[serde(default = "write_wait_us")]
    pub write_wait_us: f64,
    /// Synced commits.
    #[serde(default = "synced")]
    pub synced: SyncedCosts,
    /// What interrupts take of the machine for each I/O that a thread waits for, which counts as no thread's CPU time. Like the next one, it is the
    /// reference machine's where a file of costs from before it has none.
    #[serde(default = "interrupt_us")]
    pub interrupt_us: f64,
    /// How much longer one large I/O takes with a buffer of ordinary memory, as RocksDB's are, than with one in huge pages, as the
    /// probe's are.
    #[serde(default = "scattered_ratio")]
    pub scattered_ratio: f64,
    /// What the drive gave in the same minutes. Runs take the profile's rates times what this says of them; without it, the profile's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drive: Option<ThreadedIo>,
    /// What many threads did that wait for the drive, in the same minutes. Runs take from it how much of the cores such threads get; without
    /// it, all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<WaitingThreads>,
    /// What a page of 4 KiB that a compaction reads or writes takes beside its CPU time, in the same minutes and by RocksDB's own account: its
    /// buffers, how far it reads ahead, and the syncs of its files included. Without it, what the drive takes for large I/Os.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compaction_page_us: Option<f64>,
    /// Where they come from.
    pub source: String,
}

/// What a drive gave to threads that wait for one I/O each, as RocksDB's do: wall time of all of them together, µs. A profile is of
/// another minute, and of I/Os that one thread starts many of.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ThreadedIo {
    /// Threads of the next one.
    pub threads: u32,
    /// A random read of 4 KiB.
    pub read_us: f64,
    /// Threads of the next two.
    pub jobs: u32,
    /// A page of 4 KiB, in writes of 1 MiB into new files.
    pub large_written_page_us: f64,
    /// A page of 4 KiB, in reads of 1 MiB.
    pub large_read_page_us: f64,
}

/// Lookups by many threads, of which most wait for a block from the drive. The drive announces many blocks at once and wakes their threads
/// on the core that it interrupts; another core idles until it has taken one of them over, so that threads that wait get less than all cores.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct WaitingThreads {
    /// How many.
    pub threads: u32,
    /// Lookups per second of all of them.
    pub lookups_per_s: f64,
    /// Blocks that each reads.
    pub reads: f64,
}

/// Scans of 100 records that miss, less those that hit, less the blocks that lookups miss.
fn scan_ahead_us() -> f64 {
    14.2
}

/// Writes of 120 and 4,000 bytes by one thread.
fn write_byte_us() -> f64 {
    0.0015
}

/// Writes by 32 threads and by one.
fn write_wait_us() -> f64 {
    3.8
}

/// By 2 and 64 threads.
fn synced() -> SyncedCosts {
    SyncedCosts {
        wake_us: 41.3,
        commit_us: 14.6,
    }
}

/// Softirq time of lookups that miss, by 32 threads on two cores.
fn interrupt_us() -> f64 {
    1.25
}

/// Reads of 256 KiB, one at a time.
fn scattered_ratio() -> f64 {
    1.01
}

impl Default for RocksdbCosts {
    fn default() -> Self {
        Self {
            lookup_us: 3.65,
            block_above_io_us: 6.1,
            block_us: Some(8.8),
            write_us: 4.57,
            rewritten_record_us: 0.332,
            rewritten_byte_us: 0.000_98,
            scanned_record_us: 0.26,
            scan_ahead_us: scan_ahead_us(),
            write_byte_us: write_byte_us(),
            write_wait_us: write_wait_us(),
            synced: synced(),
            interrupt_us: interrupt_us(),
            scattered_ratio: scattered_ratio(),
            drive: None,
            waiting: None,
            compaction_page_us: None,
            source: "RocksDB 7.8 on the reference machine, docs/benchmarks.md".into(),
        }
    }
}

impl RocksdbCosts {
    /// The costs, one by one, with where they come from. What a file of costs lacks has been filled in with the reference machine's value,
    /// which no measurement hits to the last bit.
    pub(super) fn constants(&self) -> Vec<Constant> {
        let reference = Self::default();
        let constant = |what, cost: fn(&Self) -> f64| Constant {
            engine: "RocksDB",
            what,
            us: cost(self),
            is_measured: true,
            source: match cost(self).to_bits() == cost(&reference).to_bits() {
                true => reference.source.clone(),
                false => self.source.clone(),
            },
        };
        let block = constant("block read with its I/O, in runs", |costs| {
            costs.block_us.unwrap_or(0.0)
        });
        let mut all = vec![
            constant("lookup", |costs| costs.lookup_us),
            constant("block read beside its I/O", |costs| costs.block_above_io_us),
            constant("write", |costs| costs.write_us),
            constant("record rewritten by compaction", |costs| {
                costs.rewritten_record_us
            }),
            constant("byte rewritten by compaction", |costs| {
                costs.rewritten_byte_us
            }),
            constant("record scanned", |costs| costs.scanned_record_us),
            constant("scan that reads ahead", |costs| costs.scan_ahead_us),
            constant("byte written, beyond 128 of a record", |costs| {
                costs.write_byte_us
            }),
            constant("write that waits for another", |costs| costs.write_wait_us),
            constant("interrupts of an I/O, in runs", |costs| costs.interrupt_us),
            constant("wake of those that waited for a flush", |costs| {
                costs.synced.wake_us
            }),
            constant("synced commit beside its flush", |costs| {
                costs.synced.commit_us
            }),
        ];
        all.extend(self.block_us.map(|_| block));
        all
    }
}

/// Sequence number, type and lengths of a record in a block, bytes.
pub(super) const BLOCK_BYTES_PER_RECORD: f64 = 12.0;
/// Log record header, bytes.
pub(super) const LOG_HEADER_BYTES: f64 = 24.0;

/// Fanouts that are compared; the paper's tables span 2..32.
const FANOUTS: [u32; 7] = [2, 4, 6, 8, 10, 16, 32];
/// L0 files and L1 files of leveled layouts.
const L0_FILES: u32 = 4;
/// Of what a write takes more that waits for another, the part of the thread that writes for both.
pub(super) const LEADERS_SHARE: f64 = 0.5;

pub(super) fn advise(
    drive: &DriveView<'_>,
    workload: &Workload,
    engine: Option<&EngineModel>,
    costs: &RocksdbCosts,
) -> Result<EngineAdvice<RocksdbSettings>, AdviseError> {
    let mut candidates = Vec::new();
    let leveled = FANOUTS.iter().map(|&fanout| Layout::Leveled {
        fanout,
        l0_files: L0_FILES,
    });
    for layout in leveled.chain([Layout::SingleLevel]) {
        let settings = settings(workload, layout);
        let mut predicted = predict_with(drive, workload, &settings, costs)?;
        if let Some(engine) = engine {
            measured_rate(engine, workload, &settings, &mut predicted);
        }
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
    // Endurance, target and space first; then the rate; among rates within the drive model's error, the least flash.
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
    let tie_share = match engine {
        _ if workload.writes() <= 0.0 => 0.0,
        Some(_) => RATE_TIE_SHARE_BY_RUNS,
        None => RATE_TIE_SHARE,
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

/// What RocksDB is predicted to do with these settings.
pub(super) fn predict_with(
    drive: &DriveView<'_>,
    workload: &Workload,
    settings: &RocksdbSettings,
    costs: &RocksdbCosts,
) -> Result<Predicted, AdviseError> {
    let deepest = settings.user_threads.min(drive.concurrency_max);
    let beside = |at_cores: f64, waits: f64| {
        // Threads that are at the cores read nothing.
        let reading = (f64::from(settings.user_threads) - at_cores).max(1.0);
        let reading = reading.min(f64::from(drive.concurrency_max));
        let demand = demand(drive, workload, settings, costs, reading, waits)?;
        predict(drive, workload, &demand, deepest)
    };
    // A writer waits if another one writes: where commits are synced, all do but the one that flushes; else as many as find the log busy at
    // the rate that follows, found from above.
    let mut waits = match workload.writes() > 0.0 && workload.clients > 1 {
        true => 1.0,
        false => 0.0,
    };
    // At first as if no client was at the cores.
    let mut predicted = beside(0.0, waits)?;
    let computing = at_cores(workload, &predicted);
    for _ in 0..ROUNDS {
        predicted = beside(computing, waits)?;
        let busy = predicted.operations_per_s * workload.writes() * put_us(workload, costs) / 1e6;
        if workload.durability == Durability::Synced || busy > waits - WAITS_TOLERANCE {
            break;
        }
        waits = 0.5 * (waits + busy);
    }
    Ok(predicted)
}

/// Until the share of writers that wait is what follows from it; each round halves what is missing.
const WAITS_TOLERANCE: f64 = 0.01;
const ROUNDS: u32 = 10;

/// CPU time of a write into memtable and log that waits for no other, µs.
pub(super) fn put_us(workload: &Workload, costs: &RocksdbCosts) -> f64 {
    let larger = (workload.record_bytes() - MEASURED_WRITE_BYTES).max(0.0);
    costs.write_us + larger * costs.write_byte_us
}

/// Bytes of the record that the cost of a write was measured with.
const MEASURED_WRITE_BYTES: f64 = 128.0;

/// Puts the rate that runs of the engine itself predict in place of the structural one. The interval becomes the runs' own.
fn measured_rate(
    engine: &EngineModel,
    workload: &Workload,
    settings: &RocksdbSettings,
    predicted: &mut Predicted,
) {
    let mix = Mix {
        queries: workload.point_reads,
        scans: workload.scans,
        inserts: workload.writes(),
        threads: settings.user_threads,
        jobs: settings.background_jobs,
    };
    let filtered = engine.store.filter_false_positive_share.is_some();
    let engine = engine.for_store(LsmStore {
        file_bytes: engine.store.file_bytes,
        ..store(workload, filtered)
    });
    let Some(us) = engine.mix_us(settings.layout, &mix) else {
        return;
    };
    let before = predicted.operations_per_s;
    predicted.set_rate(1e6 / us, RUNS_ERROR_FACTOR);
    if workload.target_operations_per_s.is_none() {
        let faster = predicted.operations_per_s / before;
        predicted.drive_writes_bytes_per_s *= faster;
        predicted.endurance_years = predicted.endurance_years.map(|years| years / faster);
    }
    predicted.limited_by = "the engine, by its own runs";
}

/// Nine in ten of Table 3's and 4's cells lie within this factor of what calibrated runs predict.
const RUNS_ERROR_FACTOR: f64 = 1.12;

/// Rates closer than this count as equal.
const RATE_TIE_SHARE: f64 = 0.05;
/// With runs of the engine itself, differences are known better.
const RATE_TIE_SHARE_BY_RUNS: f64 = EngineModel::TIE_SHARE;

fn settings(workload: &Workload, layout: Layout) -> RocksdbSettings {
    let jobs = workload.core_count.max(2);
    let point_queries = workload.point_reads > 0.0;
    let single = layout == Layout::SingleLevel;
    // A single level merges whatever has gathered in L0 with everything: the more at once, the less is rewritten.
    let (trigger, slowdown, stop) = if single {
        (8, 24, 36)
    } else {
        (L0_FILES, 20, 36)
    };
    // Memtables and cache together take what there is, and no more; index and filter blocks live in the cache.
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
    costs: &RocksdbCosts,
    threads: f64,
    waits: f64,
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
    // Iterators read ahead of themselves from the third block on that they read from the drive, once more than the scan needs.
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
    // In a group one thread writes and flushes for all, and wakes them one by one.
    let (put_us, wait_us) = (put_us(workload, costs), waits * costs.write_wait_us);
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
    let rewrite_cpu_us = costs.rewritten_record_us + costs.rewritten_byte_us * record_bytes;
    let point_cpu_us =
        costs.lookup_us + query_blocks * (costs.block_above_io_us + drive.cpu_us_per_io());
    let scan_cpu_us = costs.lookup_us
        + workload.scan_records * costs.scanned_record_us
        + scan_blocks * (costs.block_above_io_us + drive.cpu_us_per_io());
    let cpu_us = workload.point_reads * point_cpu_us
        + workload.scans * scan_cpu_us
        + workload.writes() * (put_us + wait_us + rewritten * rewrite_cpu_us);
    // L0 → L1 and L1 → L2 exclude each other; subcompactions split each of them.
    let page_us_alone = drive.bulk_page_us(1, 0.0)? + drive.bulk_page_us(1, 1.0)?;
    let rewrite_us_alone = rewrite_cpu_us + record_bytes / page * page_us_alone;
    let serial_us = workload.writes() * work.serial_rewrites * rewrite_us_alone
        / f64::from(settings.subcompactions);
    // Groups are written one after another, beside compaction.
    let (log, log_us) = match is_synced {
        true => ("log flushes", costs.synced.serial_us(flush_us, group)),
        false => ("log writes", put_us + LEADERS_SHARE * wait_us),
    };
    let (serial, serial_us) = match workload.writes() * log_us > serial_us {
        true => (log, workload.writes() * log_us),
        false => ("compaction", serial_us),
    };
    let point_alone_us = point_cpu_us + query_blocks * drive.random_read_us(1, block_pages)?;
    Ok(Demand {
        drive_us,
        cpu_us,
        serial_us,
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

/// Blocks read from the drive per query and per scan. Every run costs a block to position, without filters a query, too, and
/// the records themselves lie in the blocks that hold them. Upper levels are small, and as much goes to each of them
/// as to the last, so that the cache holds them. `hits` is the share of accesses that find their block among the hottest.
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

/// Says that index and filter blocks are larger than the cache that they live in; `None` where they are not.
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

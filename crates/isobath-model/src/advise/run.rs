//! What RocksDB does in a run of some seconds that begins with all data in one compacted run: what `advise --rates` measures.
//!
//! The advice is about the steady state; a run of seconds is far from it. Beside that, this model knows what the benchmark
//! knows: the law by which records are chosen, blocks that end at a page's end, and that clients wait for cores and drive in turn.

use super::block_cache::{BlockSet, misses};
use super::drive::DriveView;
use super::filling::{Filled, Filling};
use super::law::{Class, Law, classes};
use super::queue::Stations;
use super::rocksdb::{BLOCK_BYTES_PER_RECORD, LEADERS_SHARE, LOG_HEADER_BYTES, put_us};
use super::{AdviseError, Demand, Predicted, RocksdbCosts, RocksdbSettings, ThreadedIo, predict};
use crate::lsm::{Layout, LsmStore};
use crate::point::PAGE_BYTES;
use crate::workload::Workload;

/// A run of a benchmark.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Run {
    /// How records are chosen.
    pub law: Law,
    /// Seconds before it is measured.
    pub warm_up_s: f64,
    /// Seconds that are measured.
    pub duration_s: f64,
}

/// Checksum, restart point and length at the end of a block.
const BLOCK_TRAILER_BYTES: f64 = 13.0;
/// What the cache counts for a block beside its bytes: handle, key, the block's own object.
const CACHE_ENTRY_BYTES: f64 = 100.0;
/// A record's node, lengths and sequence number in a memtable.
const MEMTABLE_BYTES_PER_RECORD: f64 = 24.0;
/// Bytes that a drive's read is a multiple of, where the profile does not say.
const SECTOR_BYTES: f64 = 512.0;
/// Repetitions until rate and demands agree; each halves the logarithm of their difference.
const ROUNDS: u32 = 30;

/// How records lie in blocks.
struct Blocks {
    records: f64,
    /// Pages of the drive that a block takes, and pages' worth of bytes that a read of it moves.
    pages: f64,
    read_pages: f64,
    cached_bytes: f64,
    /// Bytes in files, per record.
    record_bytes: f64,
}

impl Blocks {
    fn of(workload: &Workload, drive: &DriveView<'_>) -> Blocks {
        let page = PAGE_BYTES as f64;
        let entry = workload.record_bytes() + BLOCK_BYTES_PER_RECORD;
        let records = ((page - BLOCK_TRAILER_BYTES) / entry).floor().max(1.0);
        let payload = records * entry + BLOCK_TRAILER_BYTES;
        let pages = (payload / page).ceil();
        let sector = drive.profile.hardware.logical_block_bytes;
        let sector = sector.map_or(SECTOR_BYTES, f64::from);
        Blocks {
            records,
            pages,
            read_pages: (payload / sector).ceil() * sector / page,
            cached_bytes: payload + CACHE_ENTRY_BYTES,
            record_bytes: pages * page / records,
        }
    }
}

/// A sorted run that reads look into.
struct SortedRun {
    /// Distinct records.
    records: f64,
    /// Successive writes that it holds; none for the run that was loaded.
    writes: Option<f64>,
    /// How much of the time it is there.
    weight: f64,
    /// Writes after which its blocks are others.
    lifetime: Option<f64>,
}

struct Model<'m, 'd> {
    drive: &'m DriveView<'d>,
    workload: &'m Workload,
    settings: &'m RocksdbSettings,
    costs: &'m RocksdbCosts,
    run: &'m Run,
    classes: Vec<Class>,
    blocks: Blocks,
    rates: Rates,
}

/// What the drive takes in the run's minutes, by the profile: times a ratio that was measured then, where it was.
struct Rates {
    /// For random reads, large writes and large reads.
    random: f64,
    written: f64,
    read: f64,
}

impl Rates {
    fn of(drive: &DriveView<'_>, io: Option<&ThreadedIo>) -> Result<Rates, AdviseError> {
        let Some(io) = io else {
            return Ok(Rates {
                random: 1.0,
                written: 1.0,
                read: 1.0,
            });
        };
        Ok(Rates {
            random: io.read_us / drive.random_read_us(io.threads, 1.0)?,
            written: io.large_written_page_us / drive.bulk_page_us(io.jobs, 0.0)?,
            read: io.large_read_page_us / drive.bulk_page_us(io.jobs, 1.0)?,
        })
    }
}

/// What one operation takes at some rate.
struct Costs {
    ios: f64,
    client_cpu_us: f64,
    background_cpu_us: f64,
    /// What the cores do for it beside the process's threads.
    interrupts_us: f64,
    bulk_us: f64,
    written_bytes: f64,
    page_reads: f64,
    get_cpu_us: f64,
    get_ios: f64,
    done_share: f64,
    /// What writers pay, of the clients' CPU, and what of it excludes all other writers.
    put_cpu_us: f64,
    serial_us: f64,
}

/// What RocksDB is predicted to do in such a run.
pub(super) fn predict_run(
    drive: &DriveView<'_>,
    workload: &Workload,
    settings: &RocksdbSettings,
    costs: &RocksdbCosts,
    run: &Run,
) -> Result<Predicted, AdviseError> {
    let model = Model {
        drive,
        workload,
        settings,
        costs,
        run,
        classes: classes(run.law, workload.record_count),
        blocks: Blocks::of(workload, drive),
        rates: Rates::of(drive, costs.drive.as_ref())?,
    };
    model.predict()
}

impl Model<'_, '_> {
    fn predict(&self) -> Result<Predicted, AdviseError> {
        let clients = self.workload.clients;
        // What the host took of them while the drive was probed, it takes from the engine, too.
        let stolen = self.drive.profile.steal_share.unwrap_or(0.0);
        let cores = f64::from(self.workload.core_count) * (1.0 - stolen);
        let mut read_rates = Vec::new();
        for k in 1..=clients.min(self.drive.concurrency_max) {
            read_rates.push(1e6 / self.random_read_us(k)?);
        }
        let alone_us = self.alone_us(cores)?;
        // What clients would do where writers are not slowed down, and clients that run or wait for a core.
        let (mut asked, mut at_cpu) = (START_PER_S, f64::from(clients));
        let mut costs = self.costs_at(asked, f64::from(clients) / cores)?;
        let mut limited_by = "CPU";
        for _ in 0..ROUNDS {
            let per_s = asked * costs.done_share;
            let background = per_s * (costs.background_cpu_us + costs.interrupts_us) / 1e6;
            let left = 1.0 - (per_s * costs.bulk_us / 1e6).min(BACKGROUND_MAX);
            let rates: Vec<f64> = read_rates.iter().map(|rate| rate * left).collect();
            let idle = Self::idle_cores(alone_us, cores, costs.client_cpu_us, costs.ios);
            let flow = Stations {
                clients,
                cpu_us: costs.client_cpu_us,
                cores: (cores - idle - background).max(cores * (1.0 - BACKGROUND_MAX)),
                ios: costs.ios,
                ios_per_s: &rates,
            }
            .flow();
            at_cpu = (at_cpu * flow.at_cpu.max(1e-3)).sqrt();
            // The leader of a group writes for all of it, one group after another.
            let groups = 1e6 / costs.serial_us.max(1e-3);
            limited_by = match () {
                () if costs.done_share < SLOWED_SHARE => "compaction",
                () if groups < flow.per_s => "log writes",
                () if flow.at_cpu > 0.5 * f64::from(clients) => "CPU",
                () => "drive",
            };
            asked = (asked * flow.per_s.min(groups).max(1.0)).sqrt();
            // Of the clients that write, one runs; the others of its group wait for it.
            let writers = at_cpu * costs.put_cpu_us / costs.client_cpu_us;
            let runnable = at_cpu - writers + writers.min(1.0);
            let stretch = ((runnable + 1.0) / cores).max(1.0);
            costs = self.costs_at(asked, stretch)?;
        }
        let per_s = asked * costs.done_share;
        self.predicted(per_s, &costs, limited_by)
    }

    /// How long one core works alone, for each thread that the drive wakes on it, until the others take threads over, µs: what makes the
    /// network of the two stations give the rate that lookups were measured at. Halvings of a bounded range.
    fn alone_us(&self, cores: f64) -> Result<f64, AdviseError> {
        let Some(waiting) = self.costs.waiting else {
            return Ok(0.0);
        };
        let mut ios_per_s = Vec::new();
        for k in 1..=waiting.threads.min(self.drive.concurrency_max) {
            ios_per_s.push(1e6 / self.random_read_us(k)?);
        }
        let cpu_us = self.costs.lookup_us + waiting.reads * self.io_cpu_us();
        let interrupts = waiting.lookups_per_s * waiting.reads * self.costs.interrupt_us / 1e6;
        let per_s = |alone_us: f64| {
            let idle = Self::idle_cores(alone_us, cores, cpu_us, waiting.reads);
            let stations = Stations {
                clients: waiting.threads,
                cpu_us,
                cores: (cores - idle - interrupts).max(cores * (1.0 - BACKGROUND_MAX)),
                ios: waiting.reads,
                ios_per_s: &ios_per_s,
            };
            stations.flow().per_s
        };
        let (mut low, mut high) = (0.0, ALONE_US_MAX);
        if per_s(low) <= waiting.lookups_per_s {
            return Ok(0.0);
        }
        for _ in 0..40 {
            let middle = 0.5 * (low + high);
            match per_s(middle) > waiting.lookups_per_s {
                true => low = middle,
                false => high = middle,
            }
        }
        Ok(high)
    }

    /// Cores that idle on average though threads are ready. One interrupt wakes the threads of many reads on one core, which works alone for
    /// a time; then all cores share what is left.
    fn idle_cores(alone_us: f64, cores: f64, cpu_us: f64, ios: f64) -> f64 {
        let others_us = alone_us * (cores - 1.0).max(0.0) * ios;
        let busy = cores * cpu_us / (cpu_us + others_us).max(f64::MIN_POSITIVE);
        cores - busy.max(cores.min(1.0))
    }

    /// CPU time of a block that a thread waits for, µs.
    fn io_cpu_us(&self) -> f64 {
        let costs = self.costs;
        let above_io = || costs.block_above_io_us + self.drive.cpu_us_per_io();
        costs.block_us.unwrap_or_else(above_io)
    }

    fn predicted(
        &self,
        per_s: f64,
        costs: &Costs,
        limited_by: &'static str,
    ) -> Result<Predicted, AdviseError> {
        let threads = self.workload.clients.min(self.drive.concurrency_max);
        let cpu_us = costs.client_cpu_us + costs.background_cpu_us;
        let read_us = self.random_read_us(1)?;
        // A drive that was measured beside the run may be faster than the profile's fastest point.
        let moved = f64::from(u8::from(self.costs.drive.is_none()));
        let demand = Demand {
            drive_us: 1e6 / per_s,
            cpu_us,
            serial_us: 0.0,
            serial: limited_by,
            alone_us: costs.client_cpu_us + costs.ios * read_us,
            point_read_alone_us: costs.get_cpu_us + costs.get_ios * read_us,
            page_reads: costs.page_reads,
            read_ios: None,
            point_read_accesses: costs.get_ios,
            point_read_cpu_us: costs.get_cpu_us,
            largest_io_pages: self.blocks.pages,
            deepest: self.workload.clients,
            reads: moved * costs.ios,
            pages_read: moved * costs.page_reads,
            pages_written: moved * costs.written_bytes / PAGE_BYTES as f64,
            written_bytes: costs.written_bytes,
            space_amplification: 1.0,
        };
        let mut predicted = predict(self.drive, self.workload, &demand, threads)?;
        let spread = predicted.operations_per_s / predicted.operations_per_s_range.0;
        predicted.set_rate(per_s, spread);
        predicted.limited_by = limited_by;
        Ok(predicted)
    }

    /// Wall time of a block's read with `k` in flight, µs.
    fn random_read_us(&self, k: u32) -> Result<f64, AdviseError> {
        Ok(self.rates.random * self.drive.random_read_us(k, self.blocks.pages)?)
    }

    fn large_write_page_us(&self, k: u32) -> Result<f64, AdviseError> {
        Ok(self.rates.written * self.drive.bulk_page_us(k, 0.0)?)
    }

    fn large_read_page_us(&self, k: u32) -> Result<f64, AdviseError> {
        Ok(self.rates.read * self.drive.bulk_page_us(k, 1.0)?)
    }

    /// Of the writes, those that insert.
    fn insert_share(&self) -> f64 {
        self.workload.inserts / self.workload.writes().max(f64::MIN_POSITIVE)
    }

    /// Distinct records among so many successive writes.
    fn distinct(&self, writes: f64) -> f64 {
        let inserts = self.insert_share();
        let updates = writes * (1.0 - inserts);
        let updated = self.classes.iter();
        let updated: f64 = match updates > 0.0 {
            true => updated
                .map(|c| c.count * -(-c.share * updates).exp_m1())
                .sum(),
            false => 0.0,
        };
        writes * inserts + updated
    }

    /// How probably so many successive writes, up to now but for `newer` ones, hold the newest version of a record.
    fn holds(&self, class: &Class, newer: f64, writes: f64) -> f64 {
        let inserts = self.insert_share();
        if matches!(self.run.law, Law::Latest(_)) {
            // By age: so many of the records of the class are among them.
            let (first, last) = (newer * inserts, (newer + writes) * inserts);
            let half = 0.5 * (class.count - 1.0).max(0.0);
            let (youngest, oldest) = (class.rank - half - 1.0, class.rank + half);
            return ((last.min(oldest) - first.max(youngest)) / class.count).clamp(0.0, 1.0);
        }
        let rate = class.share * (1.0 - inserts);
        (-rate * newer).exp() * -(-rate * writes).exp_m1()
    }

    fn filled(&self, per_s: f64, stretch: f64) -> Result<Filled, AdviseError> {
        let record = self.blocks.record_bytes;
        let (page, data) = (PAGE_BYTES as f64, self.workload.record_count);
        let store = LsmStore {
            data_bytes: data * record,
            file_bytes: self.settings.file_bytes as f64,
            filter_false_positive_share: None,
            l0_slowdown_files: self.settings.l0_slowdown_files,
        };
        let levels = store.level_bytes(self.settings.layout).len();
        let mut targets = Vec::new();
        if let Layout::Leveled { fanout, l0_files } = self.settings.layout {
            let first = f64::from(l0_files.max(1)) * store.file_bytes / record;
            let target = |at: usize| first * f64::from(fanout).powi(at as i32);
            targets = (0..levels.saturating_sub(1)).map(target).collect();
        }
        let io_us = match self.costs.compaction_page_us {
            Some(us) => 2.0 * us,
            None => {
                let drive_us = self.large_write_page_us(1)? + self.large_read_page_us(1)?;
                self.costs.scattered_ratio * drive_us
            }
        };
        let rewrite_us = stretch * self.rewrite_cpu_us() + record / page * io_us;
        let in_memtable = self.workload.record_bytes() + MEMTABLE_BYTES_PER_RECORD;
        let filling = Filling {
            distinct: &|writes| self.distinct(writes),
            memtable: (self.settings.write_buffer_bytes as f64 / in_memtable).max(1.0),
            file: store.file_bytes / record,
            targets,
            data,
            trigger_files: f64::from(self.settings.l0_trigger_files),
            slowdown_files: f64::from(self.settings.l0_slowdown_files),
            stop_files: f64::from(self.settings.l0_stop_files),
            record_bytes: self.workload.record_bytes(),
            rewrite_s: rewrite_us / 1e6,
            writes_per_s: per_s * self.workload.writes(),
            warm_up_s: self.run.warm_up_s,
            duration_s: self.run.duration_s,
        };
        Ok(filling.run())
    }

    fn rewrite_cpu_us(&self) -> f64 {
        self.costs.rewritten_record_us + self.costs.rewritten_byte_us * self.workload.record_bytes()
    }

    /// The sorted runs, the newest first, behind a memtable of so many writes.
    fn sorted_runs(&self, filled: &Filled) -> Vec<SortedRun> {
        let memtable_bytes = self.workload.record_bytes() + MEMTABLE_BYTES_PER_RECORD;
        let memtable = self.settings.write_buffer_bytes as f64 / memtable_bytes;
        let mut runs = Vec::new();
        let mut left = filled.l0_files;
        // Bound: files at which writers stop.
        while left > 1e-3 {
            runs.push(SortedRun {
                records: self.distinct(memtable),
                writes: Some(memtable),
                weight: left.min(1.0),
                lifetime: filled.l0_interval,
            });
            left -= 1.0;
        }
        for (at, &records) in filled.levels.iter().enumerate() {
            if records < 1.0 {
                continue;
            }
            let lifetime = match at {
                0 => filled.l0_interval,
                _ => filled.lifetimes.get(at - 1).copied().flatten(),
            };
            runs.push(SortedRun {
                records,
                writes: Some(self.writes_of(records)),
                weight: 1.0,
                lifetime,
            });
        }
        runs.push(SortedRun {
            records: self.workload.record_count,
            writes: None,
            weight: 1.0,
            lifetime: filled.lifetimes.last().copied().flatten(),
        });
        runs
    }

    /// Writes among which so many records are distinct; halvings of a bounded range.
    fn writes_of(&self, records: f64) -> f64 {
        let (mut low, mut high) = (records, records * WRITES_PER_RECORD_MAX);
        for _ in 0..40 {
            let middle = 0.5 * (low + high);
            match self.distinct(middle) < records {
                true => low = middle,
                false => high = middle,
            }
        }
        high
    }

    fn costs_at(&self, per_s: f64, stretch: f64) -> Result<Costs, AdviseError> {
        let (workload, costs) = (self.workload, self.costs);
        let writes = workload.writes();
        let filled = match writes > 0.0 {
            true => self.filled(per_s, stretch)?,
            false => Filled {
                done_share: 1.0,
                ..Filled::default()
            },
        };
        let runs = self.sorted_runs(&filled);
        let sets = self.block_sets(&runs, &filled);
        let cached = self.settings.block_cache_bytes as f64 / self.blocks.cached_bytes;
        let missed = misses(
            cached,
            &sets.iter().map(|s| s.0.clone()).collect::<Vec<_>>(),
        );
        let ios: f64 = sets
            .iter()
            .zip(&missed)
            .map(|((set, _), m)| set.accesses() * m)
            .sum();
        // Of the accesses to a set, some are lookups'.
        let get_ios: f64 = sets
            .iter()
            .zip(&missed)
            .map(|((_, gets), m)| gets * m)
            .sum();
        let probed: f64 = sets.iter().map(|(_, gets)| gets).sum();
        // Each run that is looked into takes what a lookup in one run takes, and so does a memtable that is not empty.
        let memtable = f64::from(u8::from(writes > 0.0));
        let get_cpu_us = costs.lookup_us * (probed + memtable);
        let present: f64 = runs.iter().map(|run| run.weight).sum();
        // From the third block on an iterator reads ahead, through a buffer of its own.
        let ahead = match workload.scan_records / self.blocks.records > READ_AHEAD_BLOCKS {
            true => costs.scan_ahead_us,
            false => 0.0,
        };
        let scan_cpu_us = costs.lookup_us * (present + memtable)
            + ahead
            + workload.scan_records * costs.scanned_record_us;
        let put_us = put_us(workload, costs);
        // Writes go one group after another: another write is under way for that share of the time, in which its thread waits for a core
        // as others do.
        let waits = match workload.clients {
            0 | 1 => 0.0,
            _ => (per_s * writes * put_us * stretch / 1e6).min(1.0),
        };
        let io_cpu_us = self.io_cpu_us();
        let put_cpu_us = writes * (put_us + waits * costs.write_wait_us);
        let client_cpu_us = workload.point_reads * get_cpu_us
            + workload.scans * scan_cpu_us
            + ios * io_cpu_us
            + put_cpu_us;
        let record = self.blocks.record_bytes;
        let page = PAGE_BYTES as f64;
        let files = (filled.flushed + filled.rewritten) * record;
        let log = workload.record_bytes() + LOG_HEADER_BYTES;
        let jobs = self.settings.background_jobs;
        let bulk_us = writes * (files + log) / page * self.large_write_page_us(jobs)?
            + writes * filled.reread * record / page * self.large_read_page_us(jobs)?;
        Ok(Costs {
            ios,
            client_cpu_us,
            interrupts_us: ios * costs.interrupt_us,
            background_cpu_us: writes * (filled.flushed + filled.reread) * self.rewrite_cpu_us(),
            bulk_us,
            written_bytes: writes * (files + log),
            page_reads: ios * self.blocks.read_pages + writes * filled.reread * record / page,
            get_cpu_us: get_cpu_us + get_ios * io_cpu_us,
            get_ios,
            done_share: filled.done_share,
            put_cpu_us,
            serial_us: writes * (put_us + waits * LEADERS_SHARE * costs.write_wait_us),
        })
    }

    /// The blocks of each run, as lookups and scans use them, and the lookups that come to each per lookup.
    fn block_sets(&self, runs: &[SortedRun], filled: &Filled) -> Vec<(BlockSet, f64)> {
        let (workload, all) = (self.workload, self.workload.record_count);
        let writes = workload.writes();
        let mut newer = filled.in_memtable;
        let mut sets = Vec::new();
        for run in runs {
            // Lookups come here that found nothing in newer writes.
            let reaches = |class: &Class| 1.0 - self.holds(class, 0.0, newer);
            let blocks = (run.records / self.blocks.records).max(1.0);
            let keys = all / blocks;
            // A scan uses a block if it begins in its keys or so many records before; where there is a scan, lookups' keys
            // are counted as a part of those.
            let span = match workload.scans > 0.0 {
                true => keys + workload.scan_records - 1.0,
                false => keys,
            };
            let rate = |class: &Class| {
                let gets = workload.point_reads * reaches(class) * keys / span;
                class.share * run.weight * (gets + workload.scans)
            };
            let mut set = BlockSet::scattered(blocks, span, &self.classes, rate);
            set.lifetime = run.lifetime.map(|lifetime| lifetime / writes);
            let gets = self.classes.iter();
            let gets: f64 = gets.map(|c| c.count * c.share * reaches(c)).sum();
            sets.push((set, gets * run.weight));
            newer += run.weight * run.writes.unwrap_or(0.0);
        }
        sets
    }
}

/// Blocks that an iterator reads one by one before it reads ahead.
const READ_AHEAD_BLOCKS: f64 = 2.0;
/// Where the search for the rate begins.
const START_PER_S: f64 = 20_000.0;
/// Where fewer of the writes than these are done, writers wait for compaction.
const SLOWED_SHARE: f64 = 0.98;
/// The longest such time that is believed, µs.
const ALONE_US_MAX: f64 = 1000.0;
/// What background work takes of cores or drive at most.
const BACKGROUND_MAX: f64 = 0.9;
/// A level that holds so much fewer records than were written to it is taken for complete.
const WRITES_PER_RECORD_MAX: f64 = 1e6;

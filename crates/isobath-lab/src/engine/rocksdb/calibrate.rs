//! What RocksDB takes of this machine's CPU, measured in a directory.
//!
//! Costs of the caller are CPU time of its thread, so that flushes and compactions in the background do not count; what these
//! take, RocksDB says itself.

use std::ffi::CStr;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use isobath_flash::rng::Rng;
use isobath_io::{AlignedBuf, HUGE_PAGE};
use isobath_model::advise::{RocksdbCosts, SyncedCosts, WaitingThreads};

use super::ffi::{Batch, Config, Db};
use super::{BLOCK_BYTES, LOAD_BATCH, failed, on_threads};
use crate::calibrate::{
    Calibration, KEY_BYTES, MIN_MISSES, SCANNED_RECORDS, SHORTEST_US, VALUE_BYTES, in_place, key_of,
};
use crate::machine::interrupt_time;
use crate::{LabError, Monitor, Stage, Unit, synced};

/// Bytes of the larger values: compaction's cost per byte follows from two sizes.
const LARGE_VALUE_BYTES: usize = 4000;
/// Of the records, so many have large values.
const LARGE_SHARE: u32 = 32;
const MEMTABLE_BYTES: usize = 16 << 20;
/// Of lookups that read the drive, one in so many of the others.
const MISSING_SHARE: u32 = 20;
/// Threads of what waits, for the drive or for one another: as many as `advise --rates` has by default. A call that waits costs
/// more where others run in between, and what it needs has left the caches: 16 µs for a block on the reference machine, 3 by one thread.
const THREADS: u32 = 32;
/// Of the data, the cache of such lookups holds one part in so many.
const CACHE_SHARE: u64 = 8;
/// So many threads serve the drive faster: lookups for each one that a thread alone does.
const MORE_BY_THREADS: u32 = 4;
/// What a single thread draws its records with; others have the numbers behind it.
const SEED: u64 = 1;
/// Scans that read the drive, of so many lookups that do.
const LOOKUPS_PER_MISSING_SCAN: u32 = 10;
/// Bytes of a large read: the writes of a compaction are as large.
const LARGE_READ_BYTES: usize = 1 << 20;
/// Pairs of readings of a file.
const READINGS: usize = 9;
/// Parts of each measurement; its result is their median, so that what disturbs one or two of them does not count.
const PARTS: u32 = 5;

/// Measures every cost of [`RocksdbCosts`] with a database in a new directory below `directory`, which is removed.
///
/// # Errors
/// RocksDB's own, those of files, and [`LabError::Interrupted`].
pub(crate) fn calibrate(
    calibration: Calibration,
    directory: &Path,
    monitor: &dyn Monitor,
) -> Result<RocksdbCosts, LabError> {
    in_place(directory, |place| measure(calibration, place, monitor))
}

fn measure(
    calibration: Calibration,
    place: &Path,
    monitor: &dyn Monitor,
) -> Result<RocksdbCosts, LabError> {
    monitor.begin(Stage {
        name: "calibrating RocksDB",
        total: Some(4),
        unit: Unit::Items,
    });
    let step = || {
        monitor.advance(1);
        monitor.check()
    };
    let Calibration {
        records,
        operations,
    } = calibration;
    let data = u64::from(records) * (KEY_BYTES + VALUE_BYTES) as u64;
    // Lookups come before writes: all records lie in one sorted run then, so that a lookup that misses reads one block.
    let path = place.join("small");
    let cached = 2 * data + (64 << 20);
    let bench = Bench::load(&path, cached, records, VALUE_BYTES)?;
    step()?;
    let lookup_us = bench.lookup_us(operations, SEED)?;
    let scan_us = bench.scan_us((operations / SCANNED_RECORDS as u32).max(1), SEED)?;
    drop(bench);
    step()?;
    let cache = data / CACHE_SHARE;
    let bench = Bench::open(&path, cache, records, VALUE_BYTES, Opening::Loaded)?;
    let files = bench.file_bytes()?;
    let misses = 1.0 - cache as f64 / files as f64;
    if misses < MIN_MISSES {
        return Err(LabError::Request(format!(
            "{records} records fit into the smallest cache; calibrate with more"
        )));
    }
    let count = (operations / MISSING_SHARE).max(1);
    // Fills the cache, with other blocks than are looked up then.
    bench.lookup_us(count, SEED)?;
    let one_missing_us = bench.lookup_us(count, SEED + 1)?;
    let io_us = bench.io_us(count)?;
    let interrupts = interrupt_time();
    let missing = bench.by_threads(count * MORE_BY_THREADS, Bench::lookup_us)?;
    let missing_us = missing.cpu_us;
    let interrupts = interrupt_time().saturating_sub(interrupts);
    let ios = f64::from(count * MORE_BY_THREADS) * misses;
    let scans = count * MORE_BY_THREADS / LOOKUPS_PER_MISSING_SCAN;
    let missing_scan_us = bench.by_threads(scans, Bench::scan_us)?.cpu_us;
    let scattered_ratio = bench.scattered_ratio()?;
    drop(bench);
    step()?;
    let bench = Bench::open(&path, cached, records, VALUE_BYTES, Opening::Loaded)?;
    let write_us = bench.put_us(operations, SEED)?;
    let small_us = bench.compactions()?.cpu_us;
    let waiting_us = bench.by_threads(operations, Bench::put_us)?.cpu_us;
    drop(bench);
    let large = records.div_ceil(LARGE_SHARE);
    let bench = Bench::load(&place.join("large"), 64 << 20, large, LARGE_VALUE_BYTES)?;
    let large_put_us = bench.put_us(large, SEED)?;
    let Compactions {
        cpu_us: large_us,
        io_us: large_io_us,
    } = bench.compactions()?;
    step()?;
    let byte_us = (large_us - small_us).max(0.0) / (LARGE_VALUE_BYTES - VALUE_BYTES) as f64;
    let small_bytes = (KEY_BYTES + VALUE_BYTES) as f64;
    let block_us = (missing_us - lookup_us) / misses;
    let one_block_us = (one_missing_us - lookup_us) / misses;
    // A scan ends in another block than it begins in, and misses as often as a lookup.
    let scan_blocks = 1.0 + SCANNED_RECORDS as f64 * small_bytes / BLOCK_BYTES as f64;
    Ok(RocksdbCosts {
        lookup_us,
        block_above_io_us: (one_block_us - io_us).max(SHORTEST_US),
        block_us: Some(block_us.max(SHORTEST_US)),
        write_us,
        rewritten_record_us: (small_us - small_bytes * byte_us).max(SHORTEST_US),
        rewritten_byte_us: byte_us.max(SHORTEST_US * 1e-3),
        scanned_record_us: ((scan_us - lookup_us) / SCANNED_RECORDS as f64).max(SHORTEST_US),
        scan_ahead_us: (missing_scan_us - scan_us - scan_blocks * misses * block_us).max(0.0),
        write_byte_us: (large_put_us - write_us).max(0.0)
            / (LARGE_VALUE_BYTES - VALUE_BYTES) as f64,
        write_wait_us: (waiting_us - write_us).max(0.0),
        synced: synced_costs(place, calibration)?,
        interrupt_us: interrupts.as_secs_f64() * 1e6 / ios,
        scattered_ratio,
        drive: None,
        waiting: Some(WaitingThreads {
            threads: THREADS,
            lookups_per_s: missing.per_s,
            reads: misses,
        }),
        // With its key, a large value fills a page.
        compaction_page_us: Some(large_io_us),
        source: format!("{records} records on this machine"),
    })
}

/// Synced commits by few and many threads.
fn synced_costs(place: &Path, calibration: Calibration) -> Result<SyncedCosts, LabError> {
    let records = calibration.records.min(synced::RECORDS);
    let path = place.join("synced");
    drop(Bench::load(
        &path,
        synced::POOL_BYTES,
        records,
        VALUE_BYTES,
    )?);
    let bench = Bench::open(
        &path,
        synced::POOL_BYTES,
        records,
        VALUE_BYTES,
        Opening::Synced,
    )?;
    synced::costs(place, calibration.operations, |threads, each| {
        let took = Instant::now();
        on_threads(threads, |thread| bench.put_us(each, u64::from(thread)))?;
        let commits = each.div_ceil(PARTS) * PARTS * threads;
        Ok(f64::from(commits) / took.elapsed().as_secs_f64())
    })
}

/// CPU time of the calling thread.
fn thread_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(
        u64::try_from(now.tv_sec).unwrap_or(0),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    )
}

/// How a database is opened.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Opening {
    /// It is made; writes are not synced.
    New,
    /// As it is; writes are not synced.
    Loaded,
    /// As it is; writes are synced.
    Synced,
}

/// What many threads did at once.
struct ByThreads {
    /// CPU per call, µs.
    cpu_us: f64,
    /// Calls per second of all.
    per_s: f64,
}

struct Bench {
    db: Db,
    path: PathBuf,
    records: u32,
    value: Vec<u8>,
}

impl Bench {
    fn open(
        path: &Path,
        cache_bytes: u64,
        records: u32,
        value_bytes: usize,
        opening: Opening,
    ) -> Result<Bench, LabError> {
        let options = format!(
            "block_based_table_factory={{block_size={BLOCK_BYTES};block_cache={cache_bytes};block_align=true}}"
        );
        let config = Config {
            create: opening == Opening::New,
            tables: &[],
            options,
            background_jobs: 2,
            write_buffer_bytes: MEMTABLE_BYTES,
            memtable_bytes: MEMTABLE_BYTES * 2,
            file_bytes: MEMTABLE_BYTES as u64,
            level_base_bytes: 4 * MEMTABLE_BYTES as u64,
            log: true,
            sync: opening == Opening::Synced,
            transactions: false,
        };
        Ok(Bench {
            db: Db::open(path, &config).map_err(failed)?,
            path: path.to_owned(),
            records,
            value: vec![1; value_bytes],
        })
    }

    /// A new database with all records in the cache, as far as they fit.
    fn load(
        path: &Path,
        cache_bytes: u64,
        records: u32,
        value_bytes: usize,
    ) -> Result<Bench, LabError> {
        let bench = Bench::open(path, cache_bytes, records, value_bytes, Opening::New)?;
        let mut batch = Batch::new();
        for n in 0..records {
            bench
                .db
                .add(&mut batch, 0, &key_of(u64::from(n)), &bench.value);
            if (n as usize + 1).is_multiple_of(LOAD_BATCH) {
                bench.db.write(&mut batch).map_err(failed)?;
            }
        }
        bench.db.write(&mut batch).map_err(failed)?;
        bench.db.flush().map_err(failed)?;
        bench.db.compact();
        bench
            .db
            .scan(0, &key_of(0), &mut |_, _| true)
            .map_err(failed)?;
        Ok(bench)
    }

    /// CPU of the caller per call, µs: the median of several parts.
    fn us(
        &self,
        count: u32,
        seed: u64,
        mut call: impl FnMut(&[u8]) -> Result<(), LabError>,
    ) -> Result<f64, LabError> {
        let mut rng = Rng::new(seed);
        let calls = count.div_ceil(PARTS).max(1);
        let mut parts = Vec::new();
        for _ in 0..PARTS {
            let before = thread_time();
            for _ in 0..calls {
                call(&key_of(u64::from(rng.below(self.records))))?;
            }
            let took = thread_time().saturating_sub(before);
            parts.push(took.as_secs_f64() * 1e6 / f64::from(calls));
        }
        parts.sort_by(f64::total_cmp);
        Ok(parts[parts.len() / 2])
    }

    fn lookup_us(&self, count: u32, seed: u64) -> Result<f64, LabError> {
        self.us(count, seed, |key| {
            let found = self.db.get(0, key, |_| {}).map_err(failed)?;
            match found {
                true => Ok(()),
                false => Err(LabError::Rival {
                    engine: "RocksDB",
                    message: "a record that was loaded is not there".to_owned(),
                }),
            }
        })
    }

    fn scan_us(&self, count: u32, seed: u64) -> Result<f64, LabError> {
        self.us(count, seed, |key| {
            let mut left = SCANNED_RECORDS;
            let mut visit = |_: &[u8], _: &[u8]| {
                left -= 1;
                left > 0
            };
            self.db.scan(0, key, &mut visit).map_err(failed)
        })
    }

    fn put_us(&self, count: u32, seed: u64) -> Result<f64, LabError> {
        self.us(count, seed, |key| {
            self.db.put(0, key, &self.value).map_err(failed)
        })
    }

    /// What many threads do at once.
    fn by_threads(
        &self,
        count: u32,
        measure: impl Fn(&Bench, u32, u64) -> Result<f64, LabError> + Copy + Send,
    ) -> Result<ByThreads, LabError> {
        let each = (count / THREADS).max(1);
        let took = on_threads(THREADS, move |thread| {
            let began = Instant::now();
            let cpu_us = measure(self, each, SEED + 2 + u64::from(thread))?;
            // Parts are rounded up to whole calls.
            let calls = each.div_ceil(PARTS) * PARTS;
            Ok((cpu_us, f64::from(calls) / began.elapsed().as_secs_f64()))
        })?;
        Ok(ByThreads {
            cpu_us: took.iter().map(|(us, _)| us).sum::<f64>() / f64::from(THREADS),
            per_s: took.iter().map(|(_, per_s)| per_s).sum(),
        })
    }

    /// What compactions took, once all records have been compacted.
    fn compactions(&self) -> Result<Compactions, LabError> {
        self.db.flush().map_err(failed)?;
        self.db.compact();
        let stats = self.db.property(0, STATS).unwrap_or_default();
        compactions(&stats).ok_or_else(|| LabError::Rival {
            engine: "RocksDB",
            message: format!("its statistics say nothing of compactions:\n{stats}"),
        })
    }

    fn sst_files(&self) -> Result<Vec<PathBuf>, LabError> {
        let entries = std::fs::read_dir(&self.path).map_err(LabError::io("list", &self.path))?;
        let paths = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
        Ok(paths
            .filter(|path| path.extension().is_some_and(|e| e == "sst"))
            .collect())
    }

    fn file_bytes(&self) -> Result<u64, LabError> {
        let files = self.sst_files()?;
        let bytes = |path: &PathBuf| path.metadata().map(|meta| meta.len()).unwrap_or(0);
        Ok(files.iter().map(bytes).sum())
    }

    /// The largest file, opened to be read past the page cache, with its path and length.
    fn largest_file(&self) -> Result<(File, PathBuf, u64), LabError> {
        let length = |path: &PathBuf| path.metadata().map(|meta| meta.len()).unwrap_or(0);
        let files = self.sst_files()?;
        let path = files.into_iter().max_by_key(length);
        let path = path.unwrap_or_else(|| self.path.clone());
        let file = File::options()
            .read(true)
            .custom_flags(rustix::fs::OFlags::DIRECT.bits().cast_signed())
            .open(&path)
            .map_err(LabError::io("open", &path))?;
        let bytes = length(&path);
        Ok((file, path, bytes))
    }

    /// How much longer a large read takes into ordinary memory, which lies in scattered pages of 4 KiB, than into huge pages: the median
    /// of pairs of readings of a whole file.
    fn scattered_ratio(&self) -> Result<f64, LabError> {
        let (file, path, bytes) = self.largest_file()?;
        let mut ordinary = AlignedBuf::new(LARGE_READ_BYTES);
        let mut huge = AlignedBuf::new(LARGE_READ_BYTES.max(HUGE_PAGE));
        let seconds = |buffer: &mut AlignedBuf| -> Result<f64, LabError> {
            let buffer = &mut buffer.as_mut_slice()[..LARGE_READ_BYTES];
            // Its memory is there before time counts.
            buffer.fill(1);
            let began = Instant::now();
            for at in (0..bytes / LARGE_READ_BYTES as u64).map(|n| n * LARGE_READ_BYTES as u64) {
                file.read_exact_at(buffer, at)
                    .map_err(LabError::io("read", &path))?;
            }
            Ok(began.elapsed().as_secs_f64())
        };
        let mut ratios = Vec::new();
        for _ in 0..READINGS {
            ratios.push(seconds(&mut ordinary)? / seconds(&mut huge)?.max(f64::MIN_POSITIVE));
        }
        ratios.sort_by(f64::total_cmp);
        Ok(ratios[ratios.len() / 2].max(1.0))
    }

    /// CPU per plain read of a block from one of the files, past the page cache, µs.
    fn io_us(&self, count: u32) -> Result<f64, LabError> {
        let (file, path, bytes) = self.largest_file()?;
        let blocks = bytes / 4096;
        let mut buffer = AlignedBuf::new(BLOCK_BYTES);
        let mut rng = Rng::new(2);
        self.us(count, SEED, |_| {
            let block = u64::from(rng.below(blocks.max(1) as u32));
            file.read_at(buffer.as_mut_slice(), block * 4096)
                .map(|_| ())
                .map_err(LabError::io("read", &path))
        })
    }
}

const STATS: &CStr = c"rocksdb.cfstats-no-file-histogram";

/// What compactions took, by RocksDB's own account.
#[derive(Debug, PartialEq)]
struct Compactions {
    /// CPU per record that they read, µs.
    cpu_us: f64,
    /// Time beside that per record that they read or wrote, µs.
    io_us: f64,
}

/// From the table of RocksDB's statistics: what it says of all levels less what it says of L0, which flushes write.
fn compactions(stats: &str) -> Option<Compactions> {
    let header: Vec<&str> = stats
        .lines()
        .find(|line| line.starts_with("Level"))?
        .split_whitespace()
        .collect();
    let column = |row: &str, name: &str| -> Option<f64> {
        let line = stats
            .lines()
            .find(|line| line.split_whitespace().next() == Some(row))?;
        // A size takes two words.
        let at = header.iter().position(|column| *column == name)? + 1;
        let word = line.split_whitespace().nth(at)?;
        let (number, unit) = match word.chars().last()? {
            'K' => (&word[..word.len() - 1], 1e3),
            'M' => (&word[..word.len() - 1], 1e6),
            'G' => (&word[..word.len() - 1], 1e9),
            _ => (word, 1.0),
        };
        number.parse::<f64>().ok().map(|number| number * unit)
    };
    let below_l0 = |name| Some(column("Sum", name)? - column("L0", name).unwrap_or(0.0));
    let (cpu_s, keys) = (below_l0("CompMergeCPU(sec)")?, below_l0("KeyIn")?);
    let (all_s, dropped) = (below_l0("Comp(sec)")?, below_l0("KeyDrop")?);
    (keys > 0.0).then(|| Compactions {
        cpu_us: (cpu_s * 1e6 / keys).max(SHORTEST_US),
        io_us: ((all_s - cpu_s) * 1e6 / (2.0 * keys - dropped)).max(SHORTEST_US),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Silent;

    #[test]
    fn statistics_are_read() {
        let stats = "\n** Compaction Stats [default] **\n\
            Level    Files   Size     Score Read(GB) Comp(sec) CompMergeCPU(sec) Comp(cnt) KeyIn KeyDrop\n\
            --------\n\
            \u{20} L0      2/0    4.50 KB   0.5      0.0   0.50   0.25         2    0       0\n\
            \u{20} L1      2/0    4.50 MB   0.5      0.0   4.50   1.00         2    2000K   500K\n\
            \u{20}Sum      4/0    4.50 MB   0.0      0.0   5.00   1.25         4    2000K   500K\n";
        let expected = Compactions {
            cpu_us: 0.5,
            io_us: 1.0,
        };
        assert_eq!(compactions(stats), Some(expected));
        assert_eq!(compactions("nothing"), None);
    }

    #[test]
    fn every_cost_is_measured() {
        let directory = tempfile::TempDir::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let small = Calibration {
            records: 200_000,
            operations: 20_000,
        };
        let costs = calibrate(small, directory.path(), &Silent).unwrap();
        let all = [
            costs.lookup_us,
            costs.write_us,
            costs.rewritten_record_us,
            costs.scanned_record_us,
            // Nothing where the lookups that should miss find what was written just before.
            costs.block_us.unwrap(),
        ];
        // None is a value that stands in for one that could not be measured.
        assert!(all.iter().all(|us| *us > SHORTEST_US), "{costs:?}");
        assert!(costs.block_above_io_us > 0.0 && costs.rewritten_byte_us > 0.0);
        let left = std::fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(left, 0, "the database is removed");
    }
}

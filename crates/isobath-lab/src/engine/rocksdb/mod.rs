//! RocksDB under the benchmark's workloads.
//!
//! Configured as the comparison needs it: blocks of 4 KiB without compression, reads and background
//! writes past the page cache, and block cache and memtables together of the pool's size. Index
//! blocks stay in memory beside that, which favours RocksDB. Sizes of memtables, files and levels
//! scale with the data (`engine/lsm.rs`).
//!
//! Transactions are optimistic ones over a snapshot: the first to commit wins, as in Isobath.

mod ffi;
mod sys;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use self::ffi::{Batch, Config, Db, Failed, Transaction};
use super::lsm::TreeSizes;
use super::txn::ended;
use super::{
    Access, Client, Decision, Ended, Engine, EngineConfig, IsolationLevel, Key, Session, Sorted,
    Tables, Visit, VisitMany, Work, path_of, run_on_threads,
};
use crate::LabError;

/// Records per write batch of the sorted load.
const LOAD_BATCH: usize = 1000;
const BLOCK_BYTES: usize = 4096;
/// Levels that RocksDB has by default.
const LEVELS: usize = 7;

pub(super) struct RocksEngine {
    db: Db,
    path: PathBuf,
    config: EngineConfig,
    sizes: TreeSizes,
}

/// RocksDB's own message as our error.
fn failed(why: Failed) -> LabError {
    match why {
        Failed::Conflict => LabError::Conflict,
        Failed::Other(message) => LabError::Rival {
            engine: "RocksDB",
            message,
        },
    }
}

impl RocksEngine {
    pub(super) fn open(config: &EngineConfig, create: bool) -> Result<RocksEngine, LabError> {
        let path = path_of(config)?;
        let tuning = &config.tuning;
        let sizes = TreeSizes::of(
            config.pool_bytes,
            config.schema.data_bytes,
            tuning.write_share,
        );
        let tables = config.schema.tables;
        let db = Db::open(
            path,
            &Config {
                create,
                tables: tables.get(1..).unwrap_or_default(),
                options: format!(
                    "block_based_table_factory={{block_size={BLOCK_BYTES};block_cache={};block_align={}}};{}",
                    sizes.block_cache_bytes,
                    tuning.block_align,
                    tuning.rocksdb_options.as_deref().unwrap_or_default()
                ),
                background_jobs: i32::try_from(tuning.jobs()).unwrap_or(i32::MAX),
                write_buffer_bytes: usize::try_from(sizes.write_buffer_bytes).unwrap_or(usize::MAX),
                memtable_bytes: usize::try_from(sizes.memtable_bytes()).unwrap_or(usize::MAX),
                file_bytes: sizes.write_buffer_bytes,
                level_base_bytes: sizes.level_base_bytes,
                log: config.space.log_bytes != Some(0),
                sync: config.space.is_synced(),
                transactions: tables.len() > 1 && tuning.isolation == IsolationLevel::Snapshot,
            },
        )
        .map_err(failed)?;
        Ok(RocksEngine {
            db,
            path: path.clone(),
            config: config.clone(),
            sizes,
        })
    }

    /// Levels that hold files, in the table that has most of them.
    fn levels(&self) -> usize {
        let holds = |table: usize, level: usize| {
            let name = format!("rocksdb.num-files-at-level{level}");
            let name = std::ffi::CString::new(name).unwrap_or_default();
            let files = self.db.property(table, &name);
            files.is_some_and(|files| files != "0")
        };
        let tables = 0..self.config.schema.tables.len();
        let levels = tables.map(|table| (0..LEVELS).filter(|&level| holds(table, level)).count());
        levels.max().unwrap_or(0)
    }
}

impl Engine for RocksEngine {
    fn version(&self) -> String {
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let version = maps
            .lines()
            .find_map(|line| line.split_once("librocksdb.so.").map(|(_, v)| v.to_owned()));
        format!("rocksdb {}", version.as_deref().unwrap_or("(static)"))
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        let (space, tuning) = (&self.config.space, &self.config.tuning);
        [
            ("threads", self.config.threads.to_string()),
            (
                "block_cache_bytes",
                self.sizes.block_cache_bytes.to_string(),
            ),
            (
                "write_buffer_bytes",
                self.sizes.write_buffer_bytes.to_string(),
            ),
            (
                "db_write_buffer_size",
                self.sizes.memtable_bytes().to_string(),
            ),
            (
                "target_file_size_base",
                self.sizes.write_buffer_bytes.to_string(),
            ),
            (
                "max_bytes_for_level_base",
                self.sizes.level_base_bytes.to_string(),
            ),
            ("levels_with_files", self.levels().to_string()),
            ("block_bytes", BLOCK_BYTES.to_string()),
            ("block_align", tuning.block_align.to_string()),
            ("compression", "none".to_owned()),
            ("direct_reads", "yes".to_owned()),
            ("direct_io_for_flush_and_compaction", "yes".to_owned()),
            (
                "async_io",
                "no: the library is built without io_uring".to_owned(),
            ),
            ("max_background_jobs", tuning.jobs().to_string()),
            ("max_open_files", "-1".to_owned()),
            (
                "write_ahead_log",
                match (space.log_bytes, space.is_synced()) {
                    (Some(0), _) => "off",
                    (_, true) => "synced at every commit",
                    (_, false) => "on, not synced",
                }
                .to_owned(),
            ),
            (
                "isolation",
                match tuning.isolation {
                    IsolationLevel::Snapshot => "snapshot: optimistic transactions",
                    IsolationLevel::Least => "least: each operation by itself",
                }
                .to_owned(),
            ),
        ]
        .into()
    }

    fn clients(&self) -> usize {
        self.config.threads
    }

    fn load_sorted(&self, table: usize, records: &mut Sorted<'_>) -> Result<(), LabError> {
        let mut batch = Batch::new();
        let mut pending = 0;
        for (key, value) in records {
            self.db.add(&mut batch, table, &key, &value);
            pending += 1;
            if pending == LOAD_BATCH {
                self.db.write(&mut batch).map_err(failed)?;
                pending = 0;
            }
        }
        self.db.write(&mut batch).map_err(failed)
    }

    fn finish_background_work(&self) -> Result<(), LabError> {
        self.db.flush().map_err(failed)?;
        self.db.compact();
        Ok(())
    }

    fn run(&self, client: Arc<Client>) -> Result<(), LabError> {
        run_on_threads(
            self.config.threads,
            || RocksSession {
                db: &self.db,
                open: None,
            },
            &*client,
        )
    }

    fn files(&self) -> Result<Vec<PathBuf>, LabError> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(LabError::io("list", &self.path))? {
            let path = entry.map_err(LabError::io("list", &self.path))?.path();
            if path.extension().is_some_and(|e| e == "sst") {
                files.push(path);
            }
        }
        files.sort();
        Ok(files)
    }

    fn close(self: Box<Self>) -> Result<(), LabError> {
        self.db.flush().map_err(failed)
    }
}

struct RocksSession<'d> {
    db: &'d Db,
    /// The transaction that is open, if any.
    open: Option<Transaction<'d>>,
}

impl Tables for RocksSession<'_> {
    fn get(&mut self, table: usize, key: &[u8], value: &mut Vec<u8>) -> Result<bool, LabError> {
        value.clear();
        let visit = |found: &[u8]| value.extend_from_slice(found);
        let get = self.db.get(self.open.as_ref(), table, key, visit);
        get.map_err(failed)
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<(), LabError> {
        let put = self.db.put(self.open.as_ref(), table, key, value);
        put.map_err(failed)
    }

    fn delete(&mut self, table: usize, key: &[u8]) -> Result<(), LabError> {
        let delete = self.db.delete(self.open.as_ref(), table, key);
        delete.map_err(failed)
    }

    fn scan(&mut self, table: usize, from: &[u8], visit: &mut Visit<'_>) -> Result<(), LabError> {
        let scan = self.db.scan(self.open.as_ref(), table, from, visit);
        scan.map_err(failed)
    }
}

impl Session for RocksSession<'_> {
    fn get_many(&mut self, keys: &[Key], visit: &mut VisitMany<'_>) -> Result<(), LabError> {
        self.db.multi_get(keys, visit).map_err(failed)
    }

    fn transact(&mut self, _: Access, work: &mut Work<'_>) -> Result<Ended, LabError> {
        self.open = self.db.begin();
        let decided = work(self);
        match (self.open.take(), decided) {
            (Some(open), Ok(Decision::Commit)) => match open.commit() {
                Ok(()) => Ok(Ended::Committed),
                Err(why) => ended(Err(failed(why))),
            },
            (Some(open), other) => {
                open.roll_back().map_err(failed)?;
                ended(other)
            }
            (None, decided) => ended(decided),
        }
    }
}

//! RocksDB under the benchmark's workload.
//!
//! Configured as the comparison needs it: blocks of 4 KiB without
//! compression, reads and background writes past the page cache, a block cache
//! of the pool's size. Index blocks stay in memory beside that cache, which
//! favours RocksDB. The write-ahead log is off, as it is for Isobath.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use super::rocksdb_ffi::{Batch, Config, Db};
use super::{Client, Counters, Engine, EngineConfig, Key, Session, Sorted, run_on_threads};
use crate::LabError;

/// Records per write batch of the sorted load.
const LOAD_BATCH: usize = 1000;
const BLOCK_BYTES: usize = 4096;

fn background_jobs() -> i32 {
    std::thread::available_parallelism().map_or(2, |n| i32::try_from(n.get()).unwrap_or(2))
}

pub(super) struct RocksEngine {
    db: Db,
    path: PathBuf,
    threads: usize,
    cache_bytes: u64,
}

/// RocksDB's own message as our error.
fn failed(message: String) -> LabError {
    LabError::Rival {
        engine: "RocksDB",
        message,
    }
}

impl RocksEngine {
    pub(super) fn open(config: &EngineConfig, create: bool) -> Result<RocksEngine, LabError> {
        let Some(path) = &config.path else {
            return Err(LabError::Request(
                "RocksDB has no memory device; leave out --memory-device".into(),
            ));
        };
        let db = Db::open(
            path,
            &Config {
                create,
                cache_bytes: config.pool_bytes,
                block_bytes: BLOCK_BYTES,
                background_jobs: background_jobs(),
            },
        )
        .map_err(failed)?;
        Ok(RocksEngine {
            db,
            path: path.clone(),
            threads: config.threads,
            cache_bytes: config.pool_bytes,
        })
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

    fn settings(&self) -> Vec<(String, String)> {
        [
            ("block_cache_bytes", self.cache_bytes.to_string()),
            ("block_bytes", BLOCK_BYTES.to_string()),
            ("compression", "none".to_owned()),
            ("direct_reads", "yes".to_owned()),
            ("direct_io_for_flush_and_compaction", "yes".to_owned()),
            ("max_background_jobs", background_jobs().to_string()),
            ("max_open_files", "-1".to_owned()),
            ("write_ahead_log", "off".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    fn clients(&self) -> usize {
        self.threads
    }

    fn load_sorted(&self, records: &mut Sorted<'_>) -> Result<(), LabError> {
        let mut batch = Batch::new();
        let mut pending = 0;
        for (key, value) in records {
            batch.put(&key, value);
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
        run_on_threads(self.threads, || RocksSession { db: &self.db }, &*client)
    }

    fn counters(&self) -> Counters {
        Counters::default()
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
}

impl Session for RocksSession<'_> {
    fn get(&mut self, key: &Key, value: &mut Vec<u8>) -> Result<bool, LabError> {
        value.clear();
        self.db
            .get(key, |found| value.extend_from_slice(found))
            .map_err(failed)
    }

    fn get_many(
        &mut self,
        keys: &[Key],
        visit: &mut (dyn FnMut(usize, Option<&[u8]>) + Send),
    ) -> Result<(), LabError> {
        self.db.multi_get(keys, visit).map_err(failed)
    }

    fn scan(
        &mut self,
        from: &Key,
        limit: usize,
        visit: &mut (dyn FnMut(&[u8], &[u8]) + Send),
    ) -> Result<usize, LabError> {
        self.db.scan(from, limit, visit).map_err(failed)
    }

    fn put(&mut self, key: &Key, value: &[u8]) -> Result<(), LabError> {
        self.db.put(key, value).map_err(failed)
    }

    fn wait_until(&mut self, when: Instant) {
        ::isobath::sleep_until(when);
    }
}

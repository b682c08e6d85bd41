//! redb under the benchmark's workload.
//!
//! A put is a transaction of its own, as in the other engines. redb has one writer at a time and no direct I/O: it reads
//! through the page cache, which the row says. Where commits need not be durable, one in [`DURABLE_EVERY`] is: redb
//! gives back pages that were replaced only then.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ::redb::{Database, Durability, ReadableDatabase, TableDefinition};

use super::{Client, Counters, Engine, EngineConfig, Key, Session, Sorted, run_on_threads};
use crate::LabError;

const TABLE: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("bench");
/// One commit in so many is durable where durability was not asked for.
const DURABLE_EVERY: u64 = 10_000;

pub(super) struct RedbEngine {
    db: Database,
    path: PathBuf,
    threads: usize,
    cache_bytes: u64,
    durability: Durability,
    commits: AtomicU64,
}

/// redb's own message as our error.
fn failed(error: impl Into<::redb::Error>) -> LabError {
    LabError::Rival {
        engine: "redb",
        message: error.into().to_string(),
    }
}

impl RedbEngine {
    pub(super) fn open(config: &EngineConfig, create: bool) -> Result<RedbEngine, LabError> {
        let Some(path) = &config.path else {
            return Err(LabError::Request(
                "redb runs on a file here; leave out --memory-device".into(),
            ));
        };
        let mut builder = Database::builder();
        builder.set_cache_size(usize::try_from(config.pool_bytes).unwrap_or(usize::MAX));
        let db = match create {
            true => builder.create(path),
            false => builder.open(path),
        };
        Ok(RedbEngine {
            db: db.map_err(failed)?,
            path: path.clone(),
            threads: config.threads,
            cache_bytes: config.pool_bytes,
            durability: match config.space.is_synced() {
                true => Durability::Immediate,
                false => Durability::None,
            },
            commits: AtomicU64::new(0),
        })
    }

    fn durability(&self) -> Durability {
        let number = self.commits.fetch_add(1, Ordering::Relaxed) + 1;
        match number.is_multiple_of(DURABLE_EVERY) {
            true => Durability::Immediate,
            false => self.durability,
        }
    }

    /// Stores records in one transaction.
    fn write<'r>(
        &self,
        durability: Durability,
        records: impl Iterator<Item = (Key, &'r [u8])>,
    ) -> Result<(), LabError> {
        let mut transaction = self.db.begin_write().map_err(failed)?;
        transaction.set_durability(durability).map_err(failed)?;
        {
            let mut table = transaction.open_table(TABLE).map_err(failed)?;
            for (key, value) in records {
                table.insert(&key[..], value).map_err(failed)?;
            }
        }
        transaction.commit().map_err(failed)
    }
}

impl Engine for RedbEngine {
    fn version(&self) -> String {
        "redb 4".to_owned()
    }

    fn settings(&self) -> Vec<(String, String)> {
        [
            ("cache_bytes", self.cache_bytes.to_string()),
            ("direct_io", "no, the page cache is used".to_owned()),
            ("durability", format!("{:?}", self.durability)),
            ("durable_every", DURABLE_EVERY.to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    fn clients(&self) -> usize {
        self.threads
    }

    fn load_sorted(&self, records: &mut Sorted<'_>) -> Result<(), LabError> {
        self.write(Durability::Immediate, records)
    }

    fn finish_background_work(&self) -> Result<(), LabError> {
        // A fill reads nothing before it writes, but readers need the table.
        self.write(Durability::Immediate, std::iter::empty())
    }

    fn run(&self, client: Arc<Client>) -> Result<(), LabError> {
        run_on_threads(self.threads, || RedbSession { engine: self }, &*client)
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }

    fn files(&self) -> Result<Vec<PathBuf>, LabError> {
        Ok(vec![self.path.clone()])
    }

    fn close(self: Box<Self>) -> Result<(), LabError> {
        self.write(Durability::Immediate, std::iter::empty())
    }
}

struct RedbSession<'e> {
    engine: &'e RedbEngine,
}

impl Session for RedbSession<'_> {
    fn get(&mut self, key: &Key, value: &mut Vec<u8>) -> Result<bool, LabError> {
        let mut found = false;
        self.get_many(std::slice::from_ref(key), &mut |_, stored| {
            value.clear();
            found = stored.is_some();
            value.extend_from_slice(stored.unwrap_or_default());
        })?;
        Ok(found)
    }

    fn get_many(
        &mut self,
        keys: &[Key],
        visit: &mut (dyn FnMut(usize, Option<&[u8]>) + Send),
    ) -> Result<(), LabError> {
        let transaction = self.engine.db.begin_read().map_err(failed)?;
        let table = transaction.open_table(TABLE).map_err(failed)?;
        for (at, key) in keys.iter().enumerate() {
            let stored = table.get(&key[..]).map_err(failed)?;
            visit(at, stored.as_ref().map(|stored| stored.value()));
        }
        Ok(())
    }

    fn scan(
        &mut self,
        from: &Key,
        limit: usize,
        visit: &mut (dyn FnMut(&[u8], &[u8]) + Send),
    ) -> Result<usize, LabError> {
        let transaction = self.engine.db.begin_read().map_err(failed)?;
        let table = transaction.open_table(TABLE).map_err(failed)?;
        let mut seen = 0;
        for record in table
            .range::<&[u8]>(&from[..]..)
            .map_err(failed)?
            .take(limit)
        {
            let (key, value) = record.map_err(failed)?;
            visit(key.value(), value.value());
            seen += 1;
        }
        Ok(seen)
    }

    fn put(&mut self, key: &Key, value: &[u8]) -> Result<(), LabError> {
        let durability = self.engine.durability();
        self.engine
            .write(durability, std::iter::once((*key, value)))
    }

    fn wait_until(&mut self, when: Instant) {
        ::isobath::sleep_until(when);
    }
}

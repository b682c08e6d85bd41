//! fjall under the benchmark's workloads.
//!
//! A log-structured merge tree per table, with blocks of 4 KiB and without compression; cache and
//! memtables together have the pool's size, and memtables, files and levels scale with the data
//! (`engine/lsm.rs`). fjall has no direct I/O: it reads through the page cache, which the settings
//! say. Each synced commit is a flush of its own, under the journal's lock.
//!
//! Transactions are those of its database with one writer. The optimistic ones are serializable, so
//! that every row that was read may conflict, and a scan reads all keys from its beginning on; the
//! workloads here would mostly run transactions again.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::fjall::{
    AbstractTree, Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable,
    SingleWriterTxDatabase, SingleWriterTxKeyspace, SingleWriterWriteTx, Snapshot,
    compaction::Leveled,
};

use super::lsm::TreeSizes;
use super::txn::ended;
use super::{
    Access, Client, Decision, Ended, Engine, EngineConfig, IsolationLevel, Key, Session, Sorted,
    Tables, Visit, VisitMany, Work, path_of, run_on_threads,
};
use crate::LabError;

/// fjall's own default for the size of a block.
const BLOCK_BYTES: usize = 4096;
/// Levels that fjall has.
const LEVELS: usize = 7;
/// fjall's own default for the files that it keeps open; more if the system allows it, as for
/// RocksDB.
const OPEN_FILES_MIN: u64 = 900;
const OPEN_FILES_MAX: u64 = 100_000;
/// How long nothing must be compacted before the data counts as at rest, and how long that is
/// waited for at most.
const QUIET: Duration = Duration::from_millis(100);
const QUIET_LOOK: Duration = Duration::from_millis(5);
const QUIET_PATIENCE: Duration = Duration::from_secs(600);

pub(super) struct FjallEngine {
    db: Database,
    tables: Vec<Keyspace>,
    /// The same database and tables, where transactions are asked for.
    transactions: Option<(SingleWriterTxDatabase, Vec<SingleWriterTxKeyspace>)>,
    path: PathBuf,
    config: EngineConfig,
    sizes: TreeSizes,
    open_files: usize,
    /// The durability that a commit waits for; none leaves its journal in the process.
    commit: Option<PersistMode>,
}

/// fjall's own message as our error.
fn failed(error: ::fjall::Error) -> LabError {
    LabError::Rival {
        engine: "fjall",
        message: error.to_string(),
    }
}

/// Files that may be open: half of what this process may have.
fn open_files() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let half = limit.current.unwrap_or(OPEN_FILES_MAX) / 2;
    usize::try_from(half.clamp(OPEN_FILES_MIN, OPEN_FILES_MAX)).unwrap_or(usize::MAX)
}

impl FjallEngine {
    pub(super) fn open(config: &EngineConfig, create: bool) -> Result<FjallEngine, LabError> {
        let path = path_of(config)?;
        // fjall makes missing stores, so a missing one is an error unless it is to be made.
        if !create && !path.exists() {
            let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
            return Err(LabError::io("open", path)(missing));
        }
        let tuning = &config.tuning;
        let sizes = TreeSizes::of(
            config.pool_bytes,
            config.schema.data_bytes,
            tuning.write_share,
        );
        let commit = match (config.space.log_bytes, config.space.is_synced()) {
            (Some(0), _) => None,
            (_, true) => Some(PersistMode::SyncData),
            (_, false) => Some(PersistMode::Buffer),
        };
        let table = || {
            let levels = Leveled::default().with_table_target_size(sizes.write_buffer_bytes);
            KeyspaceCreateOptions::default()
                .max_memtable_size(sizes.write_buffer_bytes)
                .manual_journal_persist(commit.is_none())
                .compaction_strategy(Arc::new(levels))
        };
        let open_files = open_files();
        let opened = SingleWriterTxDatabase::builder(path)
            .cache_size(sizes.block_cache_bytes)
            .worker_threads(tuning.jobs())
            .max_cached_files(Some(open_files))
            .manual_journal_persist(commit.is_none())
            .open();
        let one_writer = opened.map_err(failed)?;
        let names = config.schema.tables.iter();
        let tables = names.map(|name| one_writer.keyspace(name, table));
        let tables: Vec<_> = tables.collect::<Result<_, _>>().map_err(failed)?;
        let has_transactions = tables.len() > 1 && tuning.isolation == IsolationLevel::Snapshot;
        Ok(FjallEngine {
            // Operations that are no transactions go past the lock that lets one writer in.
            db: one_writer.inner().clone(),
            tables: tables.iter().map(|table| table.as_ref().clone()).collect(),
            transactions: has_transactions.then_some((one_writer, tables)),
            path: path.clone(),
            config: config.clone(),
            sizes,
            open_files,
            commit,
        })
    }

    /// Levels that hold tables, in the keyspace that has most of them.
    fn levels(&self) -> usize {
        let used = |table: &Keyspace| {
            let holds = |level: &usize| table.tree.level_table_count(*level).unwrap_or(0) > 0;
            (0..LEVELS).filter(holds).count()
        };
        self.tables.iter().map(used).max().unwrap_or(0)
    }
}

impl Engine for FjallEngine {
    fn version(&self) -> String {
        "fjall 3".to_owned()
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        let journal = match self.commit {
            None => "on, left in the process: fjall cannot be without it",
            Some(PersistMode::Buffer) => "on, not synced",
            Some(_) => "synced at every commit, one flush each",
        };
        let isolation = match (&self.transactions, self.config.tuning.isolation) {
            (Some(_), _) => "serializable: one writer at a time",
            (None, IsolationLevel::Snapshot) => "each operation is a transaction",
            (None, IsolationLevel::Least) => "least: each operation by itself",
        };
        [
            ("threads", self.config.threads.to_string()),
            ("cache_bytes", self.sizes.block_cache_bytes.to_string()),
            (
                "max_memtable_bytes",
                self.sizes.write_buffer_bytes.to_string(),
            ),
            (
                "table_target_bytes",
                self.sizes.write_buffer_bytes.to_string(),
            ),
            ("level_base_bytes", self.sizes.level_base_bytes.to_string()),
            ("levels_with_tables", self.levels().to_string()),
            ("block_bytes", BLOCK_BYTES.to_string()),
            ("compression", "none".to_owned()),
            ("direct_io", "no, the page cache is used".to_owned()),
            ("worker_threads", self.config.tuning.jobs().to_string()),
            ("max_cached_files", self.open_files.to_string()),
            ("journal", journal.to_owned()),
            ("isolation", isolation.to_owned()),
        ]
        .into()
    }

    fn clients(&self) -> usize {
        self.config.threads
    }

    fn load_sorted(&self, table: usize, records: &mut Sorted<'_>) -> Result<(), LabError> {
        let mut ingestion = self.tables[table].start_ingestion().map_err(failed)?;
        for (key, value) in records {
            ingestion.write(&key[..], &value[..]).map_err(failed)?;
        }
        ingestion.finish().map_err(failed)
    }

    fn finish_background_work(&self) -> Result<(), LabError> {
        self.db.persist(PersistMode::SyncAll).map_err(failed)?;
        let began = Instant::now();
        let mut quiet_since = began;
        while quiet_since.elapsed() < QUIET && began.elapsed() < QUIET_PATIENCE {
            std::thread::sleep(QUIET_LOOK);
            if self.db.active_compactions() + self.db.outstanding_flushes() > 0 {
                quiet_since = Instant::now();
            }
        }
        Ok(())
    }

    fn run(&self, client: Arc<Client>) -> Result<(), LabError> {
        run_on_threads(
            self.config.threads,
            || FjallSession { engine: self },
            &*client,
        )
    }

    fn files(&self) -> Result<Vec<PathBuf>, LabError> {
        let mut files = Vec::new();
        // Journals are no data: they are made at their full size and written little by little.
        for entry in walkdir::WalkDir::new(&self.path) {
            let entry = entry.map_err(|e| LabError::io("list", &self.path)(e.into()))?;
            let parent = entry.path().parent().and_then(|parent| parent.file_name());
            if entry.file_type().is_file() && parent.is_some_and(|name| name == "tables") {
                files.push(entry.into_path());
            }
        }
        files.sort();
        Ok(files)
    }

    fn close(self: Box<Self>) -> Result<(), LabError> {
        self.db.persist(PersistMode::SyncAll).map_err(failed)
    }
}

struct FjallSession<'e> {
    engine: &'e FjallEngine,
}

impl Tables for FjallSession<'_> {
    fn get(&mut self, table: usize, key: &[u8], value: &mut Vec<u8>) -> Result<bool, LabError> {
        value.clear();
        let found = self.engine.tables[table].get(key).map_err(failed)?;
        value.extend_from_slice(found.as_deref().unwrap_or_default());
        Ok(found.is_some())
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<(), LabError> {
        let engine = self.engine;
        if let Some((db, tables)) = &engine.transactions {
            let mut transaction = db.write_tx().durability(engine.commit);
            transaction.insert(&tables[table], key, value);
            return transaction.commit().map_err(failed);
        }
        match engine.commit {
            // Only a batch can be synced.
            Some(PersistMode::SyncData) => {
                let mut batch = engine.db.batch().durability(engine.commit);
                batch.insert(&engine.tables[table], key, value);
                batch.commit().map_err(failed)
            }
            _ => engine.tables[table].insert(key, value).map_err(failed),
        }
    }

    fn delete(&mut self, table: usize, key: &[u8]) -> Result<(), LabError> {
        let mut batch = self.engine.db.batch().durability(self.engine.commit);
        batch.remove(&self.engine.tables[table], key);
        batch.commit().map_err(failed)
    }

    fn scan(&mut self, table: usize, from: &[u8], visit: &mut Visit<'_>) -> Result<(), LabError> {
        let engine = self.engine;
        scan(&engine.db.snapshot(), &engine.tables[table], from, visit)
    }
}

impl Session for FjallSession<'_> {
    fn get_many(&mut self, keys: &[Key], visit: &mut VisitMany<'_>) -> Result<(), LabError> {
        let snapshot = self.engine.db.snapshot();
        for (at, key) in keys.iter().enumerate() {
            let found = snapshot.get(&self.engine.tables[0], key).map_err(failed)?;
            visit(at, found.as_deref());
        }
        Ok(())
    }

    fn transact(&mut self, access: Access, work: &mut Work<'_>) -> Result<Ended, LabError> {
        let engine = self.engine;
        let Some((db, tables)) = &engine.transactions else {
            return ended(work(self));
        };
        if access == Access::Read {
            return ended(work(&mut Reading {
                snapshot: db.read_tx(),
                tables: &engine.tables,
            }));
        }
        let mut writing = Writing {
            transaction: db.write_tx().durability(engine.commit),
            tables,
        };
        let decided = work(&mut writing);
        match decided {
            Ok(Decision::Commit) => writing.transaction.commit().map_err(failed)?,
            _ => writing.transaction.rollback(),
        }
        ended(decided)
    }
}

fn get(
    from: &impl Readable,
    table: impl AsRef<Keyspace>,
    key: &[u8],
    value: &mut Vec<u8>,
) -> Result<bool, LabError> {
    value.clear();
    let found = from.get(table, key).map_err(failed)?;
    value.extend_from_slice(found.as_deref().unwrap_or_default());
    Ok(found.is_some())
}

fn scan(
    from: &impl Readable,
    table: impl AsRef<Keyspace>,
    key: &[u8],
    visit: &mut Visit<'_>,
) -> Result<(), LabError> {
    for record in from.range(table, key..) {
        let (key, value) = record.into_inner().map_err(failed)?;
        if !visit(&key, &value) {
            break;
        }
    }
    Ok(())
}

/// A transaction that only reads.
struct Reading<'t> {
    snapshot: Snapshot,
    tables: &'t [Keyspace],
}

impl Tables for Reading<'_> {
    fn get(&mut self, table: usize, key: &[u8], value: &mut Vec<u8>) -> Result<bool, LabError> {
        get(&self.snapshot, &self.tables[table], key, value)
    }

    fn scan(&mut self, table: usize, from: &[u8], visit: &mut Visit<'_>) -> Result<(), LabError> {
        scan(&self.snapshot, &self.tables[table], from, visit)
    }
}

/// The one transaction that writes.
struct Writing<'t> {
    transaction: SingleWriterWriteTx<'t>,
    tables: &'t [SingleWriterTxKeyspace],
}

impl Tables for Writing<'_> {
    fn get(&mut self, table: usize, key: &[u8], value: &mut Vec<u8>) -> Result<bool, LabError> {
        get(&self.transaction, &self.tables[table], key, value)
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<(), LabError> {
        self.transaction.insert(&self.tables[table], key, value);
        Ok(())
    }

    fn delete(&mut self, table: usize, key: &[u8]) -> Result<(), LabError> {
        self.transaction.remove(&self.tables[table], key);
        Ok(())
    }

    fn scan(&mut self, table: usize, from: &[u8], visit: &mut Visit<'_>) -> Result<(), LabError> {
        scan(&self.transaction, &self.tables[table], from, visit)
    }
}

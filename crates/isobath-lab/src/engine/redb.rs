//! redb under the benchmark's workload.
//!
//! A put is a transaction of its own, as in the other engines. redb has one writer at a time and no
//! direct I/O: it reads through the page cache, which the row says. If commits need not be
//! durable, one in [`DURABLE_EVERY`] is: redb gives back pages that were replaced only then.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ::redb::{
    Database, Durability, ReadOnlyTable, ReadableDatabase, ReadableTable, Table, TableDefinition,
};

use super::txn::ended;
use super::{
    Access, Client, Decision, Ended, Engine, EngineConfig, Key, Session, Sorted, Tables, Visit,
    VisitMany, Work, path_of, run_on_threads,
};
use crate::LabError;

type Definition = TableDefinition<'static, &'static [u8], &'static [u8]>;
/// One commit in this many is durable where durability was not asked for.
const DURABLE_EVERY: u64 = 10_000;

pub(super) struct RedbEngine {
    db: Database,
    tables: Vec<Definition>,
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
        let path = path_of(config)?;
        let mut builder = Database::builder();
        builder.set_cache_size(usize::try_from(config.pool_bytes).unwrap_or(usize::MAX));
        let db = match create {
            true => builder.create(path),
            false => builder.open(path),
        };
        Ok(RedbEngine {
            db: db.map_err(failed)?,
            tables: config
                .schema
                .tables
                .iter()
                .map(|name| TableDefinition::new(name))
                .collect(),
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
    fn write<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        table: usize,
        durability: Durability,
        records: impl Iterator<Item = (K, V)>,
    ) -> Result<(), LabError> {
        let mut transaction = self.db.begin_write().map_err(failed)?;
        transaction.set_durability(durability).map_err(failed)?;
        {
            let definition = self.tables[table];
            let mut table = transaction.open_table(definition).map_err(failed)?;
            for (key, value) in records {
                table.insert(key.as_ref(), value.as_ref()).map_err(failed)?;
            }
        }
        transaction.commit().map_err(failed)
    }
}

impl Engine for RedbEngine {
    fn version(&self) -> String {
        "redb 4".to_owned()
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        [
            ("cache_bytes", self.cache_bytes.to_string()),
            ("direct_io", "no, the page cache is used".to_owned()),
            ("durability", format!("{:?}", self.durability)),
            ("durable_every", DURABLE_EVERY.to_string()),
            ("isolation", "serializable: one writer at a time".to_owned()),
        ]
        .into()
    }

    fn clients(&self) -> usize {
        self.threads
    }

    fn load_sorted(&self, table: usize, records: &mut Sorted<'_>) -> Result<(), LabError> {
        self.write(table, Durability::Immediate, records)
    }

    fn finish_background_work(&self) -> Result<(), LabError> {
        // A fill reads nothing before it writes, but readers need the table.
        self.write(0, Durability::Immediate, std::iter::empty::<(Key, &[u8])>())
    }

    fn run(&self, client: Arc<Client>) -> Result<(), LabError> {
        run_on_threads(self.threads, || RedbSession { engine: self }, &*client)
    }

    fn files(&self) -> Result<Vec<PathBuf>, LabError> {
        Ok(vec![self.path.clone()])
    }

    fn close(self: Box<Self>) -> Result<(), LabError> {
        self.write(0, Durability::Immediate, std::iter::empty::<(Key, &[u8])>())
    }
}

struct RedbSession<'e> {
    engine: &'e RedbEngine,
}

impl RedbSession<'_> {
    /// Reads a table as it is now.
    fn read<T>(
        &self,
        table: usize,
        read: impl FnOnce(&ReadOnlyTable<&'static [u8], &'static [u8]>) -> Result<T, LabError>,
    ) -> Result<T, LabError> {
        let transaction = self.engine.db.begin_read().map_err(failed)?;
        read(
            &transaction
                .open_table(self.engine.tables[table])
                .map_err(failed)?,
        )
    }
}

impl Tables for RedbSession<'_> {
    fn get(&mut self, table: usize, key: &[u8], value: &mut Vec<u8>) -> Result<bool, LabError> {
        self.read(table, |table| get(table, key, value))
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<(), LabError> {
        let durability = self.engine.durability();
        self.engine
            .write(table, durability, std::iter::once((key, value)))
    }

    fn scan(&mut self, table: usize, from: &[u8], visit: &mut Visit<'_>) -> Result<(), LabError> {
        self.read(table, |table| scan(table, from, visit))
    }
}

impl Session for RedbSession<'_> {
    fn get_many(&mut self, keys: &[Key], visit: &mut VisitMany<'_>) -> Result<(), LabError> {
        self.read(0, |table| {
            for (at, key) in keys.iter().enumerate() {
                let stored = table.get(&key[..]).map_err(failed)?;
                visit(at, stored.as_ref().map(|stored| stored.value()));
            }
            Ok(())
        })
    }

    fn transact(&mut self, access: Access, work: &mut Work<'_>) -> Result<Ended, LabError> {
        let engine = self.engine;
        if access == Access::Read {
            let transaction = engine.db.begin_read().map_err(failed)?;
            let open = |table| transaction.open_table(engine.tables[table]).map_err(failed);
            return ended(work(&mut Reading(Opened::new(engine, &open))));
        }
        let mut transaction = engine.db.begin_write().map_err(failed)?;
        transaction
            .set_durability(engine.durability())
            .map_err(failed)?;
        let open = |table| transaction.open_table(engine.tables[table]).map_err(failed);
        let decided = work(&mut Writing(Opened::new(engine, &open)));
        match decided {
            Ok(Decision::Commit) => transaction.commit().map_err(failed)?,
            _ => transaction.abort().map_err(failed)?,
        }
        ended(decided)
    }
}

/// The tables of a transaction, each opened when it is first asked for, and then kept: one that
/// writes may open a table once at a time.
struct Opened<'t, T> {
    open: &'t dyn Fn(usize) -> Result<T, LabError>,
    tables: Vec<Option<T>>,
}

impl<'t, T> Opened<'t, T> {
    fn new(engine: &RedbEngine, open: &'t dyn Fn(usize) -> Result<T, LabError>) -> Self {
        let tables = engine.tables.iter().map(|_| None).collect();
        Opened { open, tables }
    }

    fn table(&mut self, table: usize) -> Result<&mut T, LabError> {
        match &mut self.tables[table] {
            Some(open) => Ok(open),
            place => Ok(place.insert((self.open)(table)?)),
        }
    }
}

/// A transaction that only reads.
struct Reading<'t>(Opened<'t, ReadOnlyTable<&'static [u8], &'static [u8]>>);

impl Tables for Reading<'_> {
    fn get(&mut self, table: usize, key: &[u8], value: &mut Vec<u8>) -> Result<bool, LabError> {
        get(self.0.table(table)?, key, value)
    }

    fn scan(&mut self, table: usize, from: &[u8], visit: &mut Visit<'_>) -> Result<(), LabError> {
        scan(self.0.table(table)?, from, visit)
    }
}

fn get(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    key: &[u8],
    value: &mut Vec<u8>,
) -> Result<bool, LabError> {
    value.clear();
    let found = table.get(key).map_err(failed)?;
    if let Some(found) = &found {
        value.extend_from_slice(found.value());
    }
    Ok(found.is_some())
}

fn scan(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    from: &[u8],
    visit: &mut Visit<'_>,
) -> Result<(), LabError> {
    for record in table.range::<&[u8]>(from..).map_err(failed)? {
        let (key, value) = record.map_err(failed)?;
        if !visit(key.value(), value.value()) {
            break;
        }
    }
    Ok(())
}

/// A transaction that writes.
struct Writing<'t, 'x>(Opened<'t, Table<'x, &'static [u8], &'static [u8]>>);

impl Tables for Writing<'_, '_> {
    fn get(&mut self, table: usize, key: &[u8], value: &mut Vec<u8>) -> Result<bool, LabError> {
        get(self.0.table(table)?, key, value)
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<(), LabError> {
        self.0.table(table)?.insert(key, value).map_err(failed)?;
        Ok(())
    }

    fn delete(&mut self, table: usize, key: &[u8]) -> Result<(), LabError> {
        self.0.table(table)?.remove(key).map_err(failed)?;
        Ok(())
    }

    fn scan(&mut self, table: usize, from: &[u8], visit: &mut Visit<'_>) -> Result<(), LabError> {
        scan(self.0.table(table)?, from, visit)
    }
}

//! LMDB under the benchmark's workloads.
//!
//! A put is a transaction of its own, as in the other engines. LMDB has one writer at a time and
//! maps its file: it reads through the page cache, whose size it cannot bound, which the settings
//! say.

use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Arc;

use heed::types::Bytes;
use heed::{AnyTls, Database, Env, EnvFlags, EnvOpenOptions, PutFlags, RoTxn, RwTxn};

use super::txn::ended;
use super::{
    Access, Client, Decision, Ended, Engine, EngineConfig, Key, Session, Sorted, Tables, Visit,
    VisitMany, Work, path_of, run_on_threads,
};
use crate::LabError;

/// Bytes of address space that the file may grow to.
const MAP_BYTES: usize = 1 << 40;

type Table = Database<Bytes, Bytes>;

pub(super) struct LmdbEngine {
    env: Env,
    tables: Vec<Table>,
    path: PathBuf,
    threads: usize,
    is_synced: bool,
}

/// LMDB's own message as our error.
fn failed(error: heed::Error) -> LabError {
    LabError::Rival {
        engine: "LMDB",
        message: error.to_string(),
    }
}

impl LmdbEngine {
    #[expect(
        unsafe_code,
        reason = "heed leaves two requirements on the file to its caller"
    )]
    pub(super) fn open(config: &EngineConfig, create: bool) -> Result<LmdbEngine, LabError> {
        let path = path_of(config)?;
        if create {
            std::fs::create_dir_all(path).map_err(LabError::io("make", path))?;
        }
        let is_synced = config.space.is_synced();
        let mut flags = EnvFlags::NO_READ_AHEAD;
        if !is_synced {
            flags |= EnvFlags::NO_SYNC;
        }
        let tables = config.schema.tables;
        let mut options = EnvOpenOptions::new();
        options.map_size(MAP_BYTES);
        options.max_dbs(u32::try_from(tables.len()).unwrap_or(u32::MAX));
        let readers = u32::try_from(config.threads).unwrap_or(u32::MAX);
        options.max_readers(readers.saturating_add(16));
        // SAFETY: without syncing, a crash of the machine may corrupt the file; the benchmark
        // removes it, and nothing reads it after a crash.
        unsafe { options.flags(flags) };
        // SAFETY: the benchmark made the file for this run, and no other process changes or
        // truncates it.
        let env = unsafe { options.open(path) }.map_err(failed)?;
        let mut transaction = env.write_txn().map_err(failed)?;
        let tables = tables
            .iter()
            .map(|name| env.create_database(&mut transaction, Some(name)))
            .collect::<Result<_, _>>()
            .map_err(failed)?;
        transaction.commit().map_err(failed)?;
        Ok(LmdbEngine {
            env,
            tables,
            path: path.clone(),
            threads: config.threads,
            is_synced,
        })
    }
}

impl Engine for LmdbEngine {
    fn version(&self) -> String {
        let version = heed::lmdb_version();
        format!("lmdb {}.{}.{}", version.major, version.minor, version.patch)
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        let threads = self.threads.to_string();
        [
            ("threads", &threads[..]),
            ("cache_bytes", "the page cache, not bounded"),
            ("direct_io", "no, the file is mapped"),
            (
                "sync",
                if self.is_synced {
                    "every commit"
                } else {
                    "off"
                },
            ),
            ("read_ahead", "off"),
            ("isolation", "serializable: one writer at a time"),
        ]
        .map(|(name, value)| (name, value.to_owned()))
        .into()
    }

    fn clients(&self) -> usize {
        self.threads
    }

    fn load_sorted(&self, table: usize, records: &mut Sorted<'_>) -> Result<(), LabError> {
        let mut transaction = self.env.write_txn().map_err(failed)?;
        for (key, value) in records {
            self.tables[table]
                .put_with_flags(&mut transaction, PutFlags::APPEND, &key, &value)
                .map_err(failed)?;
        }
        transaction.commit().map_err(failed)
    }

    fn finish_background_work(&self) -> Result<(), LabError> {
        self.env.force_sync().map_err(failed)
    }

    fn run(&self, client: Arc<Client>) -> Result<(), LabError> {
        run_on_threads(self.threads, || LmdbSession { engine: self }, &*client)
    }

    fn files(&self) -> Result<Vec<PathBuf>, LabError> {
        Ok(vec![self.path.join("data.mdb")])
    }

    fn close(self: Box<Self>) -> Result<(), LabError> {
        self.env.force_sync().map_err(failed)?;
        self.env.prepare_for_closing().wait();
        Ok(())
    }
}

struct LmdbSession<'e> {
    engine: &'e LmdbEngine,
}

impl Tables for LmdbSession<'_> {
    fn get(&mut self, table: usize, key: &[u8], value: &mut Vec<u8>) -> Result<bool, LabError> {
        let transaction = self.engine.env.read_txn().map_err(failed)?;
        get(self.engine.tables[table], &transaction, key, value)
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<(), LabError> {
        let mut transaction = self.engine.env.write_txn().map_err(failed)?;
        self.engine.tables[table]
            .put(&mut transaction, key, value)
            .map_err(failed)?;
        transaction.commit().map_err(failed)
    }

    fn scan(&mut self, table: usize, from: &[u8], visit: &mut Visit<'_>) -> Result<(), LabError> {
        let transaction = self.engine.env.read_txn().map_err(failed)?;
        scan(self.engine.tables[table], &transaction, from, visit)
    }
}

impl Session for LmdbSession<'_> {
    fn get_many(&mut self, keys: &[Key], visit: &mut VisitMany<'_>) -> Result<(), LabError> {
        let transaction = self.engine.env.read_txn().map_err(failed)?;
        for (at, key) in keys.iter().enumerate() {
            let stored = self.engine.tables[0].get(&transaction, key);
            visit(at, stored.map_err(failed)?);
        }
        Ok(())
    }

    fn transact(&mut self, access: Access, work: &mut Work<'_>) -> Result<Ended, LabError> {
        let engine = self.engine;
        if access == Access::Read {
            let transaction = engine.env.read_txn().map_err(failed)?;
            return ended(work(&mut Reading {
                transaction: &transaction,
                tables: &engine.tables,
            }));
        }
        let mut writing = Writing {
            transaction: engine.env.write_txn().map_err(failed)?,
            tables: &engine.tables,
        };
        let decided = work(&mut writing);
        match decided {
            Ok(Decision::Commit) => writing.transaction.commit().map_err(failed)?,
            _ => writing.transaction.abort(),
        }
        ended(decided)
    }
}

fn get(
    table: Table,
    transaction: &RoTxn<'_, AnyTls>,
    key: &[u8],
    value: &mut Vec<u8>,
) -> Result<bool, LabError> {
    value.clear();
    let stored = table.get(transaction, key).map_err(failed)?;
    value.extend_from_slice(stored.unwrap_or_default());
    Ok(stored.is_some())
}

fn scan(
    table: Table,
    transaction: &RoTxn<'_, AnyTls>,
    from: &[u8],
    visit: &mut Visit<'_>,
) -> Result<(), LabError> {
    let bounds = (Bound::Included(from), Bound::Unbounded);
    for record in table.range(transaction, &bounds).map_err(failed)? {
        let (key, value) = record.map_err(failed)?;
        if !visit(key, value) {
            break;
        }
    }
    Ok(())
}

/// A transaction that only reads.
struct Reading<'t> {
    transaction: &'t RoTxn<'t>,
    tables: &'t [Table],
}

impl Tables for Reading<'_> {
    fn get(&mut self, table: usize, key: &[u8], value: &mut Vec<u8>) -> Result<bool, LabError> {
        get(self.tables[table], self.transaction, key, value)
    }

    fn scan(&mut self, table: usize, from: &[u8], visit: &mut Visit<'_>) -> Result<(), LabError> {
        scan(self.tables[table], self.transaction, from, visit)
    }
}

/// The one transaction that writes.
struct Writing<'t> {
    transaction: RwTxn<'t>,
    tables: &'t [Table],
}

impl Tables for Writing<'_> {
    fn get(&mut self, table: usize, key: &[u8], value: &mut Vec<u8>) -> Result<bool, LabError> {
        get(self.tables[table], &self.transaction, key, value)
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<(), LabError> {
        let put = self.tables[table].put(&mut self.transaction, key, value);
        put.map_err(failed)
    }

    fn delete(&mut self, table: usize, key: &[u8]) -> Result<(), LabError> {
        let removed = self.tables[table].delete(&mut self.transaction, key);
        removed.map(drop).map_err(failed)
    }

    fn scan(&mut self, table: usize, from: &[u8], visit: &mut Visit<'_>) -> Result<(), LabError> {
        scan(self.tables[table], &self.transaction, from, visit)
    }
}

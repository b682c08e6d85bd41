//! WiredTiger under the benchmark's workloads.
//!
//! B-trees with pages of 4 KiB without compression and with direct I/O for the data, as paper 001,
//! section 4.1, runs it. Transactions are WiredTiger's own, with snapshot isolation: the first to
//! change a record wins.

mod ffi;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::ffi::{Connection, Failed};
use super::txn::ended;
use super::{
    Access, Client, Decision, Ended, Engine, EngineConfig, IsolationLevel, Key, Session, Sorted,
    Tables, Visit, VisitMany, Work, path_of, run_on_threads,
};
use crate::LabError;

/// How tables are made.
const TABLE: &str = "key_format=u,value_format=u,allocation_size=4KB,leaf_page_max=4KB,internal_page_max=4KB,block_compressor=none,prefix_compression=false";
/// WiredTiger's own default of `eviction_dirty_target`, as a share.
const DIRTY_SHARE: f64 = 0.05;
/// The trigger is so many times the target, as it is by default.
const TRIGGER_TIMES: f64 = 4.0;
/// Sessions beside those of clients.
const SESSIONS_SPARE: usize = 20;
/// WiredTiger takes no more eviction threads.
const EVICTION_THREADS_MAX: usize = 20;
/// It takes no smaller cache.
const CACHE_MIN: u64 = 1 << 20;

pub(super) struct WiredTigerEngine {
    connection: Connection,
    config: EngineConfig,
    path: PathBuf,
}

/// WiredTiger's own message as our error.
fn failed(why: Failed) -> LabError {
    match why {
        Failed::Conflict => LabError::Conflict,
        Failed::Other(message) => LabError::Rival {
            engine: "WiredTiger",
            message,
        },
    }
}

/// Percent of the cache that may be dirty before it is written, and before clients help.
fn dirty_percent(config: &EngineConfig) -> (u32, u32) {
    let share = config.tuning.write_share.unwrap_or(DIRTY_SHARE);
    let target = (share * 100.0).round().clamp(1.0, 95.0);
    let trigger = (target * TRIGGER_TIMES).clamp(target + 1.0, 99.0);
    (target as u32, trigger as u32)
}

fn eviction_threads(config: &EngineConfig) -> usize {
    config.tuning.jobs().min(EVICTION_THREADS_MAX)
}

fn connection_config(config: &EngineConfig, create: bool) -> String {
    let (target, trigger) = dirty_percent(config);
    let log = match (config.space.log_bytes, config.space.is_synced()) {
        (Some(0), _) => "log=(enabled=false)".to_owned(),
        (_, synced) => format!(
            "log=(enabled=true),transaction_sync=(enabled={synced},method=fsync),checkpoint=(wait=60)"
        ),
    };
    format!(
        "create={create},exclusive={create},cache_size={},direct_io=[data],session_max={},eviction=(threads_min={jobs},threads_max={jobs}),eviction_dirty_target={target},eviction_dirty_trigger={trigger},{log}",
        config.pool_bytes.max(CACHE_MIN),
        config.threads + SESSIONS_SPARE,
        jobs = eviction_threads(config),
    )
}

impl WiredTigerEngine {
    pub(super) fn open(config: &EngineConfig, create: bool) -> Result<WiredTigerEngine, LabError> {
        let path = path_of(config)?;
        if create {
            std::fs::create_dir_all(path).map_err(LabError::io("make", path))?;
        }
        let text = connection_config(config, create);
        let connection = Connection::open(path, &text, config.schema.tables, TABLE);
        Ok(WiredTigerEngine {
            connection: connection.map_err(failed)?,
            config: config.clone(),
            path: path.clone(),
        })
    }
}

impl Engine for WiredTigerEngine {
    fn version(&self) -> String {
        // "WiredTiger 3.2.1: (a date)".
        let version = ffi::version().to_lowercase();
        version.split(':').next().unwrap_or_default().to_owned()
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        let is_least = self.config.tuning.isolation == IsolationLevel::Least;
        [
            ("threads", self.config.threads.to_string()),
            ("connection", connection_config(&self.config, false)),
            ("tables", TABLE.to_owned()),
            (
                "isolation",
                match is_least {
                    false => "snapshot",
                    true => "least: read-uncommitted, each operation by itself",
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
        let mut session = self.connection.session("", Some(table)).map_err(failed)?;
        for (key, value) in records {
            session.put(0, &key, &value).map_err(failed)?;
        }
        Ok(())
    }

    fn finish_background_work(&self) -> Result<(), LabError> {
        self.connection.checkpoint().map_err(failed)
    }

    fn run(&self, client: Arc<Client>) -> Result<(), LabError> {
        let isolation = self.config.tuning.isolation;
        let level = match isolation {
            IsolationLevel::Snapshot => "isolation=snapshot",
            IsolationLevel::Least => "isolation=read-uncommitted",
        };
        let session = || WiredTigerSession {
            session: self.connection.session(level, None),
            isolation,
        };
        run_on_threads(self.config.threads, session, &*client)
    }

    fn files(&self) -> Result<Vec<PathBuf>, LabError> {
        let tables = self.config.schema.tables.iter();
        Ok(tables
            .map(|name| self.path.join(format!("{name}.wt")))
            .collect())
    }

    fn close(self: Box<Self>) -> Result<(), LabError> {
        self.connection.close().map_err(failed)
    }
}

/// A session is opened by the thread that uses it; if that failed, the first operation says so.
struct WiredTigerSession<'e> {
    session: Result<ffi::Session<'e>, Failed>,
    isolation: IsolationLevel,
}

impl<'e> WiredTigerSession<'e> {
    fn session(&mut self) -> Result<&mut ffi::Session<'e>, LabError> {
        self.session.as_mut().map_err(|why| LabError::Rival {
            engine: "WiredTiger",
            message: format!("a session could not be opened: {why:?}"),
        })
    }
}

/// How long an operation outside transactions waits before it is tried again, at first and at most.
/// A key that a commit is flushing stays in conflict until the flush has ended; threads that tried
/// again at once would keep the cores from those that flush.
const BACK_OFF: Duration = Duration::from_micros(50);
const MAX_BACK_OFF: Duration = Duration::from_millis(2);
/// How long one operation is tried.
const PATIENCE: Duration = Duration::from_secs(60);

/// Tries an operation outside transactions again that another one was in the way of.
fn alone<T>(mut operation: impl FnMut() -> Result<T, Failed>) -> Result<T, LabError> {
    let mut since = None;
    let mut pause = BACK_OFF;
    loop {
        match operation() {
            Err(Failed::Conflict)
                if since.get_or_insert_with(Instant::now).elapsed() < PATIENCE =>
            {
                std::thread::sleep(pause);
                pause = (2 * pause).min(MAX_BACK_OFF);
            }
            other => return other.map_err(failed),
        }
    }
}

impl Tables for WiredTigerSession<'_> {
    fn get(&mut self, table: usize, key: &[u8], value: &mut Vec<u8>) -> Result<bool, LabError> {
        get(self.session()?, table, key, value)
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<(), LabError> {
        let session = self.session()?;
        alone(|| session.put(table, key, value))
    }

    fn delete(&mut self, table: usize, key: &[u8]) -> Result<(), LabError> {
        let session = self.session()?;
        alone(|| session.delete(table, key))
    }

    fn scan(&mut self, table: usize, from: &[u8], visit: &mut Visit<'_>) -> Result<(), LabError> {
        self.session()?.scan(table, from, visit).map_err(failed)
    }
}

impl Session for WiredTigerSession<'_> {
    fn get_many(&mut self, keys: &[Key], visit: &mut VisitMany<'_>) -> Result<(), LabError> {
        let session = self.session()?;
        for (at, key) in keys.iter().enumerate() {
            let get = session.get(0, key, |found| visit(at, Some(found)));
            if !get.map_err(failed)? {
                visit(at, None);
            }
        }
        Ok(())
    }

    fn transact(&mut self, _: Access, work: &mut Work<'_>) -> Result<Ended, LabError> {
        if self.isolation == IsolationLevel::Least {
            return ended(work(self));
        }
        let session = self.session()?;
        session.begin().map_err(failed)?;
        let decided = work(&mut Open { session });
        match decided {
            Ok(Decision::Commit) => match session.commit() {
                Ok(()) => Ok(Ended::Committed),
                // A commit that fails has rolled back.
                Err(why) => ended(Err(failed(why))),
            },
            other => {
                session.roll_back().map_err(failed)?;
                ended(other)
            }
        }
    }
}

fn get(
    session: &mut ffi::Session<'_>,
    table: usize,
    key: &[u8],
    value: &mut Vec<u8>,
) -> Result<bool, LabError> {
    value.clear();
    let get = session.get(table, key, |found| value.extend_from_slice(found));
    get.map_err(failed)
}

/// The session's transaction.
struct Open<'s, 'e> {
    session: &'s mut ffi::Session<'e>,
}

impl Tables for Open<'_, '_> {
    fn get(&mut self, table: usize, key: &[u8], value: &mut Vec<u8>) -> Result<bool, LabError> {
        get(self.session, table, key, value)
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<(), LabError> {
        self.session.put(table, key, value).map_err(failed)
    }

    fn delete(&mut self, table: usize, key: &[u8]) -> Result<(), LabError> {
        self.session.delete(table, key).map_err(failed)
    }

    fn scan(&mut self, table: usize, from: &[u8], visit: &mut Visit<'_>) -> Result<(), LabError> {
        self.session.scan(table, from, visit).map_err(failed)
    }
}

//! Engines under one workload: Isobath and its rivals.
//!
//! An adapter implements [`Engine`] and [`Session`]; the workload in
//! [`crate::bench`] knows nothing else. A rival lives behind a feature of its
//! own, so that a plain build is small and pure Rust.

mod bare_drive;
mod baseline;
mod config;
#[cfg(feature = "fjall")]
mod fjall;
mod isobath;
mod key;
#[cfg(feature = "lmdb")]
mod lmdb;
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
mod lsm;
mod null;
#[cfg(feature = "redb")]
mod redb;
#[cfg(feature = "rocksdb")]
mod rocksdb;
mod txn;
#[cfg(feature = "wiredtiger")]
mod wiredtiger;

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use baseline::Baseline;
pub use config::{
    Callers, DriveProfile, DriveState, EngineConfig, EngineKind, IsolationLevel, Schema,
    SimulatedDrive, SpaceConfig, Tuning,
};
pub(crate) use key::{KEY_BYTES_MAX, Key};
pub(crate) use txn::{Access, Decision, Ended, Tables, Visit, Work};

use crate::LabError;
use crate::bench::{DriveWrites, Records};

/// Records in ascending order of their keys.
pub(crate) type Sorted<'a> = dyn Iterator<Item = (Key, Cow<'a, [u8]>)> + Send + 'a;

/// One client of a benchmark, which runs until it is stopped.
pub(crate) type Client = dyn Fn(usize, &mut dyn Session) -> Result<(), LabError> + Send + Sync;

/// Counters of an engine since it was opened; differences are used.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counters {
    /// Reads sent to the device, if the engine counts them.
    pub(crate) device_reads: Option<u64>,
    /// Isobath's space counters.
    pub(crate) space: Option<SpaceCounters>,
    /// Bytes sent to the simulated SSD under the engine, and bytes that it programmed.
    pub(crate) drive: Option<DriveWrites>,
}

/// Counters of Isobath's page store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpaceCounters {
    pub(crate) page_writes: u64,
    pub(crate) relocations: u64,
    pub(crate) bytes_written: u64,
    pub(crate) live_bytes: u64,
    pub(crate) segments: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) stall_ns_max: u64,
}

/// An open engine with the ordered tables of its schema. Workloads of single operations use the
/// first.
pub(crate) trait Engine: Send + Sync {
    /// Name and version, as rows print them.
    fn version(&self) -> String;

    /// Every setting that the benchmark chose, in the engine's own words.
    fn settings(&self) -> Vec<(&'static str, String)>;

    /// The records that it will be asked for; before the load, and again after each opening.
    fn begin(&self, _: &Arc<Records>) {}

    /// Number of clients that its configuration asks for.
    fn clients(&self) -> usize;

    /// Loads records in ascending order into an empty table.
    fn load_sorted(&self, table: usize, records: &mut Sorted<'_>) -> Result<(), LabError>;

    /// Brings the data into the state in which it is measured.
    fn finish_background_work(&self) -> Result<(), LabError>;

    /// Runs as many copies of `client` at the same time as the configuration
    /// says, in the way that suits the engine; returns when all have ended.
    fn run(&self, client: Arc<Client>) -> Result<(), LabError>;

    /// Counters of now.
    fn counters(&self) -> Counters {
        Counters::default()
    }

    /// Begins to record what the configuration asks for while the clients run.
    fn start_recording(&self) -> Result<(), LabError> {
        Ok(())
    }

    /// Files that hold the data.
    fn files(&self) -> Result<Vec<PathBuf>, LabError>;

    /// Makes everything durable and closes.
    fn close(self: Box<Self>) -> Result<(), LabError>;
}

/// Is told the place of each key, and the value found.
pub(crate) type VisitMany<'v> = dyn FnMut(usize, Option<&[u8]>) + Send + 'v;

/// One client's way to the engine: operations that take effect one by one, and transactions.
pub(crate) trait Session: Tables {
    /// Reads many records of the first table; `visit` gets each position and value.
    fn get_many(&mut self, keys: &[Key], visit: &mut VisitMany<'_>) -> Result<(), LabError>;

    /// Reads up to `limit` records of the first table from `from` on; answers how many.
    fn scan_up_to(
        &mut self,
        from: &Key,
        limit: usize,
        visit: &mut (dyn FnMut(&[u8], &[u8]) + Send),
    ) -> Result<usize, LabError> {
        let mut seen = 0;
        self.scan(0, from, &mut |key, value| {
            visit(key, value);
            seen += 1;
            seen < limit
        })?;
        Ok(seen)
    }

    /// Runs `work` in one transaction, with the isolation that the configuration asks for, and ends
    /// it as `work` says. An error of `work` rolls back, too.
    fn transact(&mut self, _: Access, _: &mut Work<'_>) -> Result<Ended, LabError> {
        Err(LabError::Request(
            "an engine that keeps nothing runs no transactions".to_owned(),
        ))
    }

    /// Waits without using a core.
    fn wait_until(&mut self, when: Instant) {
        ::isobath::sleep_until(when);
    }
}

/// Opens an engine; with `create`, makes it empty first.
pub(crate) fn open(config: &EngineConfig, create: bool) -> Result<Box<dyn Engine>, LabError> {
    Ok(match config.kind {
        EngineKind::Isobath => Box::new(isobath::IsobathEngine::open(config, create)?),
        #[cfg(feature = "rocksdb")]
        EngineKind::RocksDb => Box::new(rocksdb::RocksEngine::open(config, create)?),
        #[cfg(feature = "wiredtiger")]
        EngineKind::WiredTiger => Box::new(wiredtiger::WiredTigerEngine::open(config, create)?),
        #[cfg(feature = "lmdb")]
        EngineKind::Lmdb => Box::new(lmdb::LmdbEngine::open(config, create)?),
        #[cfg(feature = "redb")]
        EngineKind::Redb => Box::new(redb::RedbEngine::open(config, create)?),
        #[cfg(feature = "fjall")]
        EngineKind::Fjall => Box::new(fjall::FjallEngine::open(config, create)?),
        EngineKind::Null => Box::new(Baseline::new(null::Nothing, config.threads)),
        EngineKind::Drive => {
            let file = bare_drive::DriveFile::open(config, create)?;
            Box::new(Baseline::new(file, config.threads))
        }
        #[allow(unreachable_patterns, reason = "a build may have all engines")]
        other => return Err(other.not_built()),
    })
}

/// The place of an engine that is never in memory.
fn path_of(config: &EngineConfig) -> Result<&PathBuf, LabError> {
    config.path.as_ref().ok_or_else(|| {
        let engine = config.kind.name();
        LabError::Request(format!(
            "{engine} has no memory device; leave out --memory-device"
        ))
    })
}

/// Removes what an engine keeps at `path`.
pub(crate) fn remove(kind: EngineKind, path: &Path) -> Result<(), LabError> {
    let outcome = match kind {
        EngineKind::Isobath | EngineKind::Redb | EngineKind::Drive => std::fs::remove_file(path),
        EngineKind::Null => return Ok(()),
        EngineKind::RocksDb | EngineKind::WiredTiger | EngineKind::Lmdb | EngineKind::Fjall => {
            std::fs::remove_dir_all(path)
        }
    };
    crate::files::removed(path, outcome)
}

/// Runs `client` on `threads` ordinary threads, each with its own session.
pub(crate) fn run_on_threads<S: Session>(
    threads: usize,
    session: impl Fn() -> S + Sync,
    client: &Client,
) -> Result<(), LabError> {
    std::thread::scope(|scope| {
        let session = &session;
        let running: Vec<_> = (0..threads)
            .map(|index| {
                std::thread::Builder::new()
                    .stack_size(256 << 10)
                    .spawn_scoped(scope, move || {
                        // Without this, a sleep ends up to 50 us late.
                        let _ =
                            rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
                        client(index, &mut session())
                    })
            })
            .collect();
        let mut result = Ok(());
        for thread in running {
            let ended = match thread {
                Err(e) => Err(LabError::Request(format!(
                    "the system refuses another thread ({e}); ask for fewer with --threads"
                ))),
                Ok(thread) => thread.join().unwrap_or_else(|_| {
                    Err(LabError::Verify(
                        "a client of the benchmark panicked".into(),
                    ))
                }),
            };
            if result.is_ok() {
                result = ended;
            }
        }
        result
    })
}

#[cfg(test)]
mod tests;

//! Engines under one workload: Isobath and its rivals.
//!
//! An adapter implements [`Engine`] and [`Session`]; the workload in
//! [`crate::bench`] knows nothing else. A rival lives behind a feature of its
//! own, so that a plain build is small and pure Rust.

mod isobath;
#[cfg(feature = "rocksdb")]
mod rocksdb;
#[cfg(feature = "rocksdb")]
mod rocksdb_ffi;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use crate::LabError;

/// A key of the benchmarks: eight bytes that sort like the number in them.
pub(crate) type Key = [u8; 8];

/// Records in ascending order of their keys.
pub(crate) type Sorted<'a> = dyn Iterator<Item = (Key, &'a [u8])> + Send + 'a;

/// What one client of a benchmark does until it is told to stop.
pub(crate) type Client = dyn Fn(usize, &mut dyn Session) -> Result<(), LabError> + Send + Sync;

/// Which engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// This engine.
    Isobath,
    /// The distribution's RocksDB.
    RocksDb,
}

/// Who calls Isobath.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Callers {
    /// Tasks on the store's workers.
    Tasks,
    /// Ordinary threads.
    Threads,
}

/// How an engine is configured; one struct for all, so that runs compare.
#[derive(Debug, Clone, Serialize)]
pub struct EngineConfig {
    /// Which engine.
    pub kind: EngineKind,
    /// Its file or directory; `None` is a memory device (Isobath only).
    pub path: Option<PathBuf>,
    /// Buffer pool or block cache, in bytes.
    pub pool_bytes: u64,
    /// Workers of Isobath; `None` is one per core.
    pub workers: Option<usize>,
    /// Tasks per worker of Isobath.
    pub tasks_per_worker: usize,
    /// I/Os in flight per worker of Isobath.
    pub depth_per_worker: u32,
    /// Threads that call a rival, or Isobath where `callers` says threads.
    pub threads: usize,
    /// Who calls Isobath.
    pub callers: Callers,
    /// How Isobath keeps room on the volume.
    pub space: SpaceConfig,
}

/// How Isobath keeps room on its volume.
#[derive(Debug, Clone, Default, Serialize)]
pub struct SpaceConfig {
    /// Cleaning policy; `None` is the engine's own choice.
    pub policy: Option<&'static str>,
    /// Share of the volume that live data may fill; `None` is the engine's own choice.
    pub fill_factor: Option<f64>,
    /// Bytes of a segment; `None` is the engine's own choice.
    pub segment_bytes: Option<u32>,
    /// Bytes of the log, 0 for none; `None` is the engine's own choice.
    pub log_bytes: Option<u64>,
    /// File or device that holds the log; `None` is the store's own file.
    pub log_path: Option<PathBuf>,
    /// Milliseconds that commits may reach the drive late; `None` waits for each,
    /// `u32::MAX` promises nothing.
    pub buffered_ms: Option<u32>,
    /// Synced commits are shown to others before they are durable.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub early_visibility: bool,
    /// Where page writes are recorded, once the data is loaded.
    #[serde(skip)]
    pub trace: Option<PathBuf>,
}

/// Counters of an engine since it was opened; differences are used.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counters {
    /// Reads sent to the device, where the engine counts them.
    pub(crate) device_reads: Option<u64>,
    /// What Isobath did to its volume.
    pub(crate) space: Option<SpaceCounters>,
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

/// An open engine that holds one ordered map of the benchmark's records.
pub(crate) trait Engine: Send + Sync {
    /// Name and version, as rows print them.
    fn version(&self) -> String;

    /// Number of clients that its configuration asks for.
    fn clients(&self) -> usize;

    /// Loads records in ascending order into the empty map.
    fn load_sorted(&self, records: &mut Sorted<'_>) -> Result<(), LabError>;

    /// Brings the data into the state in which it is measured.
    fn settle(&self) -> Result<(), LabError>;

    /// Runs as many copies of `client` at the same time as the configuration
    /// says, in the way that suits the engine; returns when all have ended.
    fn run(&self, client: Arc<Client>) -> Result<(), LabError>;

    /// Counters of now.
    fn counters(&self) -> Counters;

    /// Begins what the configuration wants recorded while the clients run.
    fn start_recording(&self) -> Result<(), LabError> {
        Ok(())
    }

    /// Files that hold the data.
    fn files(&self) -> Result<Vec<PathBuf>, LabError>;

    /// Makes everything durable and closes.
    fn close(self: Box<Self>) -> Result<(), LabError>;
}

/// One client's way to the engine.
pub(crate) trait Session {
    /// Reads a record into `value`; `false` where the key is absent.
    fn get(&mut self, key: &Key, value: &mut Vec<u8>) -> Result<bool, LabError>;

    /// Reads many records; `visit` gets each position and value.
    fn get_many(
        &mut self,
        keys: &[Key],
        visit: &mut (dyn FnMut(usize, Option<&[u8]>) + Send),
    ) -> Result<(), LabError>;

    /// Reads up to `limit` records from `from` on; answers how many.
    fn scan(
        &mut self,
        from: &Key,
        limit: usize,
        visit: &mut (dyn FnMut(&[u8], &[u8]) + Send),
    ) -> Result<usize, LabError>;

    /// Inserts or replaces a record.
    fn put(&mut self, key: &Key, value: &[u8]) -> Result<(), LabError>;

    /// Waits without using a core.
    fn wait_until(&mut self, when: Instant);
}

/// Opens an engine; with `create`, makes it empty first.
pub(crate) fn open(config: &EngineConfig, create: bool) -> Result<Box<dyn Engine>, LabError> {
    match config.kind {
        EngineKind::Isobath => Ok(Box::new(isobath::IsobathEngine::open(config, create)?)),
        EngineKind::RocksDb => open_rocksdb(config, create),
    }
}

#[cfg(feature = "rocksdb")]
fn open_rocksdb(config: &EngineConfig, create: bool) -> Result<Box<dyn Engine>, LabError> {
    Ok(Box::new(rocksdb::RocksEngine::open(config, create)?))
}

#[cfg(not(feature = "rocksdb"))]
fn open_rocksdb(_: &EngineConfig, _: bool) -> Result<Box<dyn Engine>, LabError> {
    Err(LabError::NotBuilt {
        what: "RocksDB",
        cure: "install librocksdb-dev and rebuild with `cargo build --release --features rocksdb`",
    })
}

/// Removes what an engine keeps at `path`.
pub(crate) fn remove(kind: EngineKind, path: &Path) -> Result<(), LabError> {
    let removed = match kind {
        EngineKind::Isobath => std::fs::remove_file(path),
        EngineKind::RocksDb => std::fs::remove_dir_all(path),
    };
    match removed {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(LabError::io("remove", path)(e)),
        _ => Ok(()),
    }
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

//! Engines under one workload: Isobath and its rivals.
//!
//! An adapter implements [`Engine`] and [`Session`]; the workload in
//! [`crate::bench`] knows nothing else. A rival lives behind a feature of its
//! own, so that a plain build is small and pure Rust.

mod isobath;
mod null;
#[cfg(feature = "redb")]
mod redb;
#[cfg(feature = "rocksdb")]
mod rocksdb;
#[cfg(feature = "rocksdb")]
mod rocksdb_ffi;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use crate::LabError;
use crate::bench::{DriveWrites, Records};

/// Bytes that a key has at most.
pub(crate) const KEY_BYTES_MAX: usize = 32;

/// A key of the benchmarks, in place.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Key {
    bytes: [u8; KEY_BYTES_MAX],
    len: u8,
}

impl Key {
    /// The first `len` of these bytes; the rest is not looked at.
    pub(crate) fn new(mut bytes: [u8; KEY_BYTES_MAX], len: usize) -> Key {
        let len = len.min(KEY_BYTES_MAX);
        bytes[len..].fill(0);
        Key {
            bytes,
            len: len as u8,
        }
    }
}

impl std::ops::Deref for Key {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&crate::hex(self))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Key) -> std::cmp::Ordering {
        self[..].cmp(&other[..])
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Key) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

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
    /// The crate redb.
    Redb,
    /// No engine: what the benchmark itself costs.
    Null,
}

/// A simulated SSD under Isobath, in this process.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SimulatedDrive {
    /// What kind of drive.
    pub profile: DriveProfile,
    /// Bytes that the engine may write to.
    pub capacity_bytes: u64,
    /// Share of the flash that the engine cannot write to.
    pub over_provisioning: f64,
    /// Its state before the load.
    pub state: DriveState,
    /// Static wear levelling: erases by which a superblock may lag behind the most worn one; `None` levels nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wear_difference_max: Option<u32>,
}

/// Kinds of simulated drives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DriveProfile {
    /// Erase units of 1/256 of the drive, cleaned greedily.
    Tlc,
    /// Erase units of 1/64 of the drive, cleaned by age.
    Qlc,
}

/// States of a drive before a run (paper 002, section 3.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DriveState {
    /// Everything is discarded.
    Trimmed,
    /// Written once in order, then twice its capacity at random.
    Preconditioned,
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
    /// The simulated SSD under Isobath, in place of a path.
    pub simulated: Option<SimulatedDrive>,
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

impl SpaceConfig {
    /// Whether a commit is acknowledged only once it is on the drive.
    #[cfg_attr(
        not(feature = "redb"),
        expect(dead_code, reason = "adapters with a log use it")
    )]
    pub(crate) fn is_synced(&self) -> bool {
        self.log_bytes != Some(0) && self.buffered_ms.is_none()
    }
}

/// Counters of an engine since it was opened; differences are used.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counters {
    /// Reads sent to the device, where the engine counts them.
    pub(crate) device_reads: Option<u64>,
    /// What Isobath did to its volume.
    pub(crate) space: Option<SpaceCounters>,
    /// What the simulated SSD under the engine was sent and programmed.
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

/// An open engine that holds one ordered map of the benchmark's records.
pub(crate) trait Engine: Send + Sync {
    /// Name and version, as rows print them.
    fn version(&self) -> String;

    /// Every setting that the benchmark chose, in the engine's own words.
    fn settings(&self) -> Vec<(String, String)>;

    /// The records that it will be asked for; before the load, and again after each opening.
    fn begin(&self, _: &Arc<Records>) {}

    /// Number of clients that its configuration asks for.
    fn clients(&self) -> usize;

    /// Loads records in ascending order into the empty map.
    fn load_sorted(&self, records: &mut Sorted<'_>) -> Result<(), LabError>;

    /// Brings the data into the state in which it is measured.
    fn finish_background_work(&self) -> Result<(), LabError>;

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
        EngineKind::Redb => open_redb(config, create),
        EngineKind::Null => Ok(Box::new(null::NullEngine::new(config.threads))),
    }
}

#[cfg(feature = "redb")]
fn open_redb(config: &EngineConfig, create: bool) -> Result<Box<dyn Engine>, LabError> {
    Ok(Box::new(redb::RedbEngine::open(config, create)?))
}

#[cfg(not(feature = "redb"))]
fn open_redb(_: &EngineConfig, _: bool) -> Result<Box<dyn Engine>, LabError> {
    Err(LabError::NotBuilt {
        what: "redb",
        cure: "rebuild with `cargo build --release --features redb`",
    })
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
        EngineKind::Isobath | EngineKind::Redb => std::fs::remove_file(path),
        EngineKind::Null => return Ok(()),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{KeyFormat, KeyOrder};

    fn config(kind: EngineKind, path: Option<PathBuf>) -> EngineConfig {
        EngineConfig {
            kind,
            path,
            pool_bytes: 16 << 20,
            workers: Some(1),
            tasks_per_worker: 2,
            depth_per_worker: 4,
            threads: 2,
            callers: Callers::Threads,
            space: SpaceConfig::default(),
            simulated: None,
        }
    }

    /// What every adapter must do: load, close, open, get, get many, scan, put.
    fn conforms(config: &EngineConfig) {
        let format = KeyFormat::Binary { bytes: 16 };
        let records = Arc::new(Records::new(2000, 50, format, KeyOrder::Hashed));
        let engine = open(config, true).unwrap();
        engine.begin(&records);
        engine.load_sorted(&mut records.sorted()).unwrap();
        engine.finish_background_work().unwrap();
        let engine = match config.path {
            None => engine,
            Some(_) => {
                engine.close().unwrap();
                open(config, false).unwrap()
            }
        };
        engine.begin(&records);
        assert!(!engine.settings().is_empty() && !engine.version().is_empty());
        let keeps = config.kind != EngineKind::Null;
        let known = Arc::clone(&records);
        let client = move |index: usize, session: &mut dyn Session| {
            let mut value = Vec::new();
            for at in (index as u64..2000).step_by(2) {
                assert!(session.get(&known.key(at), &mut value)?);
                assert_eq!(value, known.value(at));
            }
            let keys: Vec<Key> = [5, 2500, 7].map(|at| known.key(at)).into();
            let mut seen = Vec::new();
            session.get_many(&keys, &mut |at, value| {
                seen.push((at, value.map(<[u8]>::len)));
            })?;
            seen.sort_unstable();
            let absent = if keeps { None } else { Some(50) };
            assert_eq!(seen, [(0, Some(50)), (1, absent), (2, Some(50))]);
            let first = known.sorted().next().unwrap().0;
            let mut found = Vec::new();
            let count = session.scan(&first, 10, &mut |key, _| found.push(key.to_vec()))?;
            assert_eq!((count, found.len()), (10, 10));
            if keeps {
                assert!(found.windows(2).all(|w| w[0] < w[1]) && found[0] == first[..]);
                let new = known.key(10_000 + index as u64);
                assert!(!session.get(&new, &mut value)?);
                session.put(&new, b"new")?;
                assert!(session.get(&new, &mut value)? && value == b"new");
            }
            Ok(())
        };
        engine.run(Arc::new(client)).unwrap();
        engine.close().unwrap();
    }

    #[test]
    fn every_adapter_that_is_built_conforms() {
        let place = tempfile::tempdir().unwrap();
        conforms(&config(EngineKind::Null, None));
        conforms(&config(
            EngineKind::Isobath,
            Some(place.path().join("isobath")),
        ));
        #[cfg(feature = "redb")]
        conforms(&config(EngineKind::Redb, Some(place.path().join("redb"))));
        #[cfg(feature = "rocksdb")]
        conforms(&config(
            EngineKind::RocksDb,
            Some(place.path().join("rocksdb")),
        ));
    }
}

//! How an engine is configured: one structure for all, so that runs compare.

use std::path::PathBuf;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::LabError;
use crate::names::named;

named! {
    /// Which engine is measured.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
    #[serde(rename_all = "lowercase")]
    #[value(rename_all = "lower")]
    pub enum EngineKind {
        /// This engine.
        Isobath = "isobath",
        /// The distribution's RocksDB; needs a build with --features rocksdb.
        RocksDb = "rocksdb",
        /// The distribution's WiredTiger (GPL); needs a build with --features wiredtiger.
        WiredTiger = "wiredtiger",
        /// LMDB; needs a build with --features lmdb.
        Lmdb = "lmdb",
        /// The crate redb; needs a build with --features redb.
        Redb = "redb",
        /// The crate fjall; needs a build with --features fjall.
        Fjall = "fjall",
        /// No engine: what the benchmark itself costs.
        Null = "null",
        /// No engine: one read or write of 4 KiB in a file for each operation.
        Drive = "drive",
    }
}

impl EngineKind {
    /// Name of the file or directory that it makes if none is named.
    #[must_use]
    pub fn file_name(self) -> String {
        match self {
            EngineKind::Isobath => "isobath-bench.iso".to_owned(),
            other => format!("isobath-bench.{}", other.name()),
        }
    }

    /// Whether this build has it.
    #[must_use]
    pub fn is_built(self) -> bool {
        match self {
            EngineKind::Isobath | EngineKind::Null | EngineKind::Drive => true,
            EngineKind::RocksDb => cfg!(feature = "rocksdb"),
            EngineKind::WiredTiger => cfg!(feature = "wiredtiger"),
            EngineKind::Lmdb => cfg!(feature = "lmdb"),
            EngineKind::Redb => cfg!(feature = "redb"),
            EngineKind::Fjall => cfg!(feature = "fjall"),
        }
    }

    /// Whether [`IsolationLevel::Least`] differs from [`IsolationLevel::Snapshot`] in what the
    /// engine does: with transactions where it can run their operations one by one, without them
    /// where single operations follow the level, too.
    #[must_use]
    pub fn has_less_isolation(self, transactions: bool) -> bool {
        match self {
            EngineKind::Isobath | EngineKind::RocksDb | EngineKind::Fjall => transactions,
            EngineKind::WiredTiger => true,
            EngineKind::Lmdb | EngineKind::Redb | EngineKind::Null | EngineKind::Drive => false,
        }
    }

    /// Whether it keeps nothing and only stands beside engines.
    #[must_use]
    pub fn is_baseline(self) -> bool {
        matches!(self, EngineKind::Null | EngineKind::Drive)
    }

    /// Whether it is a library in C, which may end its process while others answer with an error.
    pub(crate) fn may_abort(self) -> bool {
        matches!(
            self,
            EngineKind::RocksDb | EngineKind::WiredTiger | EngineKind::Lmdb
        )
    }

    /// [`LabError::NotBuilt`] if this build lacks it.
    pub(crate) fn check_built(self) -> Result<(), LabError> {
        match self.is_built() {
            true => Ok(()),
            false => Err(self.not_built()),
        }
    }

    /// The error of a build without it.
    pub(super) fn not_built(self) -> LabError {
        let (what, cure) = match self {
            EngineKind::RocksDb => (
                "RocksDB",
                "install librocksdb-dev and rebuild with `cargo build --release --features rocksdb`",
            ),
            EngineKind::WiredTiger => (
                "WiredTiger",
                "install libwiredtiger-dev and rebuild with `cargo build --release --features wiredtiger`; the program is under the GPL then",
            ),
            EngineKind::Lmdb => (
                "LMDB",
                "rebuild with `cargo build --release --features lmdb`; it compiles C",
            ),
            EngineKind::Redb => (
                "redb",
                "rebuild with `cargo build --release --features redb`",
            ),
            EngineKind::Fjall => (
                "fjall",
                "rebuild with `cargo build --release --features fjall`",
            ),
            EngineKind::Isobath | EngineKind::Null | EngineKind::Drive => {
                (self.name(), "every build has it")
            }
        };
        LabError::NotBuilt { what, cure }
    }
}

/// A simulated SSD: under Isobath in this process, or with a path a virtual one under any engine.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SimulatedDrive {
    /// The kind of drive.
    pub profile: DriveProfile,
    /// Bytes that the engine may write to.
    pub capacity_bytes: u64,
    /// Share of the flash that the engine cannot write to.
    pub over_provisioning: f64,
    /// Its state before the load.
    pub state: DriveState,
    /// Static wear levelling: erases by which a superblock may lag behind the most worn one; `None`
    /// levels nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wear_difference_max: Option<u32>,
}

/// Simulated drives below this size have segments of this many bytes.
const SMALL_DRIVE_BYTES: u64 = 1 << 30;
const SMALL_DRIVE_SEGMENT_BYTES: u32 = 256 << 10;

impl SimulatedDrive {
    /// Bytes of a segment of Isobath if none are asked for; `None` is the engine's own choice.
    #[must_use]
    pub fn segment_bytes(&self) -> Option<u32> {
        (self.capacity_bytes < SMALL_DRIVE_BYTES).then_some(SMALL_DRIVE_SEGMENT_BYTES)
    }
}

named! {
    /// Kinds of simulated drives.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
    #[serde(rename_all = "lowercase")]
    pub enum DriveProfile {
        /// Erase units of 1/256 of the drive, cleaned greedily.
        Tlc = "tlc",
        /// Erase units of 1/64 of the drive, cleaned by age.
        Qlc = "qlc",
    }
}

impl DriveProfile {
    /// Megabytes per second that its flash takes in order, as the virtual SSD's profiles
    /// `enterprise-tlc` and `consumer-qlc` have.
    #[must_use]
    pub fn sequential_mb_per_s(self) -> f64 {
        match self {
            DriveProfile::Tlc => 2_600.0,
            DriveProfile::Qlc => 164.0,
        }
    }
}

named! {
    /// States of a drive before a run (paper 002, section 3.4).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
    #[serde(rename_all = "lowercase")]
    pub enum DriveState {
        /// Everything is discarded.
        Trimmed = "trimmed",
        /// Written once in order, then twice its capacity at random.
        Preconditioned = "preconditioned",
        /// As other programs left it: some pages hold data, and which is not known. It is none of
        /// the paper's states, and a pitfall.
        #[value(skip)]
        Used = "used by others",
    }
}

/// The callers of Isobath.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Callers {
    /// Tasks on the store's workers.
    Tasks,
    /// Ordinary threads.
    Threads,
}

/// How an engine is configured; one struct for all, so that runs compare.
#[derive(Debug, Clone, Serialize, Deserialize)]
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
    /// The callers of Isobath.
    pub callers: Callers,
    /// How Isobath keeps space on the volume.
    pub space: SpaceConfig,
    /// The simulated SSD under Isobath, in place of a path.
    pub simulated: Option<SimulatedDrive>,
    /// Settings that a search may choose, and that make second rows.
    pub tuning: Tuning,
    /// The tables, and how much will be in them; the workload says it.
    #[serde(skip)]
    pub schema: Schema,
}

impl EngineConfig {
    /// An engine with a cache of `pool_bytes`, without a path, and otherwise as it comes; one
    /// thread calls it, or a task on each core.
    #[must_use]
    pub fn new(kind: EngineKind, pool_bytes: u64) -> EngineConfig {
        EngineConfig {
            kind,
            path: None,
            pool_bytes,
            workers: None,
            tasks_per_worker: 1,
            depth_per_worker: 1,
            threads: 1,
            callers: match kind {
                EngineKind::Isobath => Callers::Tasks,
                _ => Callers::Threads,
            },
            space: SpaceConfig::default(),
            simulated: None,
            tuning: Tuning::default(),
            schema: Schema::default(),
        }
    }
}

/// Tables of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schema {
    /// Their names; a table's number is its place here.
    pub tables: &'static [&'static str],
    /// Bytes of keys and values that will be loaded.
    pub data_bytes: u64,
}

impl Default for Schema {
    fn default() -> Schema {
        Schema {
            tables: &["bench"],
            data_bytes: 0,
        }
    }
}

named! {
    /// The isolation of transactions.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
    #[serde(rename_all = "lowercase")]
    pub enum IsolationLevel {
        /// Snapshot isolation, or more if an engine has no less.
        #[default]
        Snapshot = "snapshot",
        // Paper 001, section 4.1.
        /// The least that the engine has: each operation alone, if it has that.
        Least = "least",
    }
}

/// Settings that a search may choose, and that make second rows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Tuning {
    /// The isolation of transactions.
    pub isolation: IsolationLevel,
    /// Background jobs (RocksDB, fjall), eviction threads (WiredTiger); `None` is one per core.
    pub background_jobs: Option<usize>,
    /// Share of the cache for what is not written yet: memtables (RocksDB, fjall), dirty pages
    /// (WiredTiger); `None` is the adapter's choice.
    pub write_share: Option<f64>,
    /// Whether RocksDB's blocks never cross a page of the drive.
    pub block_align: bool,
    /// Options in RocksDB's own text form, over all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rocksdb_options: Option<String>,
}

impl Tuning {
    /// Background jobs; one per core if nothing was chosen.
    #[cfg_attr(
        not(any(feature = "fjall", feature = "rocksdb", feature = "wiredtiger")),
        expect(
            dead_code,
            reason = "adapters of engines with background threads use it"
        )
    )]
    pub(crate) fn jobs(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(2, usize::from);
        self.background_jobs.unwrap_or_else(cores).max(1)
    }
}

/// How Isobath keeps space on its volume.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SpaceConfig {
    /// Cleaning policy; `None` is the engine's own choice.
    pub policy: Option<String>,
    /// Share of the volume that live data may fill; `None` is the engine's own choice.
    pub fill_factor: Option<f64>,
    /// Bytes of a segment; `None` is the engine's own choice.
    pub segment_bytes: Option<u32>,
    /// Bytes of the log, 0 for none; `None` is the engine's own choice.
    pub log_bytes: Option<u64>,
    /// File or device that holds the log; `None` is the store's own file.
    pub log_path: Option<PathBuf>,
    /// Milliseconds that commits may reach the drive late; `None` waits for each,
    /// `u32::MAX` guarantees nothing.
    pub buffered_ms: Option<u32>,
    /// Large trees get no overlays.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_place: bool,
    /// The file in which page writes are recorded, once the data is loaded.
    #[serde(skip)]
    pub trace: Option<PathBuf>,
}

impl SpaceConfig {
    /// Whether a commit is acknowledged only once it is on the drive.
    pub(crate) fn is_synced(&self) -> bool {
        self.log_bytes != Some(0) && self.buffered_ms.is_none()
    }
}

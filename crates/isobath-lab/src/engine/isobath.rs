//! This engine as a subject of its own benchmark.

use std::ops::Bound;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use ::isobath::{Durability, Options, PolicyKind, Store, TransactionOptions, Tree, Volume};

use super::txn::ended;
use super::{
    Access, Callers, Client, Counters, Decision, DriveState, Ended, Engine, EngineConfig,
    IsolationLevel, Key, Session, SimulatedDrive, Sorted, SpaceCounters, Tables, Visit, VisitMany,
    Work, run_on_threads,
};
use crate::LabError;
use crate::bench::{DriveWrites, shape};
use crate::page_trace::Recording;
use crate::ssd::{FlashConfig, SimulatedSsd};

/// Bytes of a page of a drive.
const SECTOR: u64 = 4096;

pub(super) struct IsobathEngine {
    store: Store,
    trees: Arc<[Tree]>,
    config: EngineConfig,
    ssd: Option<Arc<SimulatedSsd>>,
    recording: Mutex<Option<Recording>>,
}

impl IsobathEngine {
    pub(super) fn open(config: &EngineConfig, create: bool) -> Result<IsobathEngine, LabError> {
        let mut options = Options::new()
            .pool_bytes(config.pool_bytes)
            .tasks_per_worker(config.tasks_per_worker)
            .depth_per_worker(config.depth_per_worker);
        if let Some(workers) = config.workers {
            options = options.workers(workers);
        }
        let space = &config.space;
        if let Some(policy) = &space.policy {
            let policy = policy.parse::<PolicyKind>();
            options =
                options.cleaning_policy(policy.map_err(|e| LabError::Request(e.to_string()))?);
        }
        if let Some(share) = space.fill_factor {
            options = options.fill_factor(share);
        }
        if let Some(bytes) = space.segment_bytes {
            options = options.segment_bytes(bytes);
        }
        if let Some(bytes) = space.log_bytes {
            options = options.log_bytes(bytes);
        }
        if let Some(path) = &space.log_path {
            options = options.log_path(path);
        }
        options = options.overlays(!space.in_place);
        options = options.durability(match space.buffered_ms {
            None => Durability::Synced,
            Some(u32::MAX) => Durability::None,
            Some(window_ms) => Durability::Buffered { window_ms },
        });
        // With a path the drive is a virtual one, on whose file system the path lies.
        let in_process = config.simulated.filter(|_| config.path.is_none());
        let ssd = in_process.map(simulated).transpose()?;
        let store = match (&config.path, &ssd) {
            (_, Some(ssd)) => Store::create_on_volume(Volume::from_device(ssd.clone()), &options)?,
            (None, None) => Store::in_memory(&options)?,
            (Some(path), None) if create => Store::create(&[path], &options)?,
            (Some(path), None) => Store::open(&[path], &options)?,
        };
        let names = config.schema.tables.iter();
        let trees = names
            .map(|name| store.open_or_create_tree(name))
            .collect::<Result<_, _>>()?;
        Ok(IsobathEngine {
            store,
            trees,
            config: config.clone(),
            ssd,
            recording: Mutex::new(None),
        })
    }
}

impl IsobathEngine {
    fn session(&self) -> TreeSession {
        TreeSession {
            store: self.store.clone(),
            trees: Arc::clone(&self.trees),
            isolation: self.config.tuning.isolation,
        }
    }
}

/// The drive, in its state.
fn simulated(drive: SimulatedDrive) -> Result<Arc<SimulatedSsd>, LabError> {
    let mut config = FlashConfig::new(drive.capacity_bytes / SECTOR * SECTOR);
    (config.block_bytes, config.policy) = shape(&drive);
    config.cache_pages = 64;
    config.over_provisioning = drive.over_provisioning;
    config.wear_difference_max = drive.wear_difference_max;
    let ssd = SimulatedSsd::in_memory(config)?;
    ssd.trim_all()?;
    let valid = match drive.state {
        DriveState::Trimmed => Some(0),
        DriveState::Preconditioned => {
            ssd.precondition(2.0, 1)?;
            Some(drive.capacity_bytes / SECTOR)
        }
        DriveState::Used => {
            ssd.use_half(1)?;
            None
        }
    };
    // What is measured on a drive in another state than is said would be another drive's.
    match valid {
        Some(valid) if ssd.valid_pages() != valid => Err(LabError::Verify(format!(
            "the simulated SSD has {} pages that hold data where its state implies {valid}",
            ssd.valid_pages()
        ))),
        _ => Ok(ssd),
    }
}

impl Engine for IsobathEngine {
    fn version(&self) -> String {
        format!("isobath {}", env!("CARGO_PKG_VERSION"))
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        let (config, space) = (&self.config, &self.config.space);
        let own = |setting: Option<String>| setting.unwrap_or_else(|| "the engine's own".into());
        [
            ("pool_bytes", config.pool_bytes.to_string()),
            ("workers", self.store.workers().to_string()),
            ("tasks_per_worker", config.tasks_per_worker.to_string()),
            ("depth_per_worker", config.depth_per_worker.to_string()),
            ("direct_io", "yes, where the file system allows it".into()),
            ("cleaning_policy", own(space.policy.clone())),
            ("fill_factor", own(space.fill_factor.map(|f| f.to_string()))),
            (
                "segment_bytes",
                own(space.segment_bytes.map(|b| b.to_string())),
            ),
            ("log_bytes", own(space.log_bytes.map(|b| b.to_string()))),
            (
                "durability",
                match (space.log_bytes, space.buffered_ms) {
                    (Some(0), _) => "no log".into(),
                    (_, None) => "synced".into(),
                    (_, Some(u32::MAX)) => "none".into(),
                    (_, Some(ms)) => format!("buffered {ms} ms"),
                },
            ),
            (
                "isolation",
                match config.tuning.isolation {
                    IsolationLevel::Snapshot => "snapshot".into(),
                    IsolationLevel::Least => "least: each operation by itself".into(),
                },
            ),
        ]
        .into()
    }

    fn clients(&self) -> usize {
        match self.config.callers {
            Callers::Tasks => self.store.workers() * self.config.tasks_per_worker,
            Callers::Threads => self.config.threads,
        }
    }

    fn load_sorted(&self, table: usize, records: &mut Sorted<'_>) -> Result<(), LabError> {
        self.trees[table].bulk_load(records)?;
        Ok(())
    }

    fn finish_background_work(&self) -> Result<(), LabError> {
        Ok(())
    }

    fn run(&self, client: Arc<Client>) -> Result<(), LabError> {
        if self.config.callers == Callers::Threads {
            return run_on_threads(self.config.threads, || self.session(), &*client);
        }
        let workers = self.store.workers();
        let tasks: Vec<_> = (0..self.clients())
            .map(|index| {
                let client = Arc::clone(&client);
                let mut session = self.session();
                self.store
                    .spawn_on(index % workers, move || client(index, &mut session))
            })
            .collect();
        let mut result = Ok(());
        for task in tasks {
            let ended = task.join().map_err(LabError::from).and_then(|r| r);
            if result.is_ok() {
                result = ended;
            }
        }
        result
    }

    fn counters(&self) -> Counters {
        let stats = self.store.stats();
        Counters {
            device_reads: Some(stats.page_reads),
            drive: self.ssd.as_ref().map(|ssd| {
                let smart = ssd.smart();
                DriveWrites {
                    host_bytes: smart.host_written_bytes.into(),
                    nand_bytes: smart.flash_written_bytes.into(),
                }
            }),
            space: Some(SpaceCounters {
                page_writes: stats.page_writes,
                relocations: stats.relocations,
                bytes_written: stats.bytes_written,
                live_bytes: stats.live_bytes,
                segments: stats.segments,
                segment_bytes: stats.segment_bytes,
                stall_ns_max: stats.stall_ns_max,
            }),
        }
    }

    fn start_recording(&self) -> Result<(), LabError> {
        if let Some(path) = &self.config.space.trace {
            let recording = Recording::start(&self.store, path)?;
            let mut slot = self
                .recording
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            *slot = Some(recording);
        }
        Ok(())
    }

    fn files(&self) -> Result<Vec<PathBuf>, LabError> {
        Ok(self.store.paths().to_vec())
    }

    fn close(self: Box<Self>) -> Result<(), LabError> {
        let Self {
            store,
            trees,
            recording,
            ..
        } = *self;
        drop(trees);
        let recording = recording.into_inner();
        let recorded = match recording.unwrap_or_else(PoisonError::into_inner) {
            Some(recording) => recording.finish(&store),
            None => Ok(()),
        };
        store.close()?;
        recorded
    }
}

struct TreeSession {
    store: Store,
    trees: Arc<[Tree]>,
    isolation: IsolationLevel,
}

impl Tables for TreeSession {
    fn get(&mut self, table: usize, key: &[u8], value: &mut Vec<u8>) -> Result<bool, LabError> {
        Ok(self.trees[table].get_into(key, value)?)
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<(), LabError> {
        Ok(self.trees[table].insert(key, value)?)
    }

    fn delete(&mut self, table: usize, key: &[u8]) -> Result<(), LabError> {
        self.trees[table].remove(key)?;
        Ok(())
    }

    fn scan(&mut self, table: usize, from: &[u8], visit: &mut Visit<'_>) -> Result<(), LabError> {
        let bounds = (Bound::Included(from), Bound::Unbounded);
        Ok(self.trees[table].scan(bounds, visit)?)
    }
}

impl Session for TreeSession {
    fn get_many(&mut self, keys: &[Key], visit: &mut VisitMany<'_>) -> Result<(), LabError> {
        Ok(self.trees[0].get_each(keys, visit)?)
    }

    fn scan_up_to(
        &mut self,
        from: &Key,
        limit: usize,
        visit: &mut (dyn FnMut(&[u8], &[u8]) + Send),
    ) -> Result<usize, LabError> {
        let mut seen = 0;
        let bounds = (Bound::Included(&from[..]), Bound::Unbounded);
        self.trees[0].scan_first(bounds, limit, |key, value| {
            visit(key, value);
            seen += 1;
        })?;
        Ok(seen)
    }

    fn transact(&mut self, access: Access, work: &mut Work<'_>) -> Result<Ended, LabError> {
        if self.isolation == IsolationLevel::Least {
            return ended(work(self));
        }
        let options = TransactionOptions::new().read_only(access == Access::Read);
        let mut open = Open {
            transaction: self.store.begin_with(options)?,
            trees: &self.trees,
        };
        let decided = work(&mut open);
        match decided {
            Ok(Decision::Commit) => match open.transaction.commit() {
                Ok(()) => Ok(Ended::Committed),
                Err(error) => ended(Err(retryable(error))),
            },
            other => ended(other),
        }
    }
}

/// A conflict as ours, so that the workload runs the transaction again.
fn retryable(error: impl Into<::isobath::Error>) -> LabError {
    let error = error.into();
    match error.is_retryable() {
        true => LabError::Conflict,
        false => error.into(),
    }
}

/// A transaction of the store.
struct Open<'s> {
    transaction: ::isobath::Transaction,
    trees: &'s [Tree],
}

impl Tables for Open<'_> {
    fn get(&mut self, table: usize, key: &[u8], value: &mut Vec<u8>) -> Result<bool, LabError> {
        let found = self.transaction.get_into(&self.trees[table], key, value);
        found.map_err(retryable)
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<(), LabError> {
        let put = self.transaction.insert(&self.trees[table], key, value);
        put.map_err(retryable)
    }

    fn delete(&mut self, table: usize, key: &[u8]) -> Result<(), LabError> {
        let removed = self.transaction.remove(&self.trees[table], key);
        removed.map(drop).map_err(retryable)
    }

    fn scan(&mut self, table: usize, from: &[u8], visit: &mut Visit<'_>) -> Result<(), LabError> {
        let bounds = (Bound::Included(from), Bound::Unbounded);
        let read = self.transaction.scan(&self.trees[table], bounds, visit);
        read.map_err(retryable)
    }
}

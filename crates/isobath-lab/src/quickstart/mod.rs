//! The demonstration: a person's own files stored, verified after reopening,
//! and random lookups at the speed of their drive.

mod verify;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use isobath::{Options, Store};
use serde::Serialize;

use crate::bench::{Data, Plan as RunPlan, RunReport, Workload, run_on};
use crate::engine::{EngineConfig, EngineKind};
use crate::load::{Files, Loaded, find_files, load_files};
use crate::{LabError, Monitor, Stage, Unit, free_space};

pub use verify::Verified;

/// The tree that holds the files.
pub const FILES_TREE: &str = "files";
/// Bytes of a value of the lookup part.
const VALUE_BYTES: usize = 120;
/// Data of the lookup part, in pools.
const DATA_POOLS: u64 = 10;
/// Tasks per worker, and I/Os in flight per worker.
const DEPTH_PER_WORKER: u32 = 64;
/// How long each measurement of the drive alone takes.
const DRIVE_TIME: Duration = Duration::from_secs(4);
/// How long lookups run before they are measured.
const WARM_UP: Duration = Duration::from_secs(2);

/// The plan of the demonstration.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Directory whose files are stored.
    pub from: PathBuf,
    /// The store to make.
    pub store: PathBuf,
    /// Whether the store stays.
    pub keep: bool,
    /// Most bytes of files to store.
    pub cap_bytes: u64,
    /// Buffer pool, in bytes.
    pub pool_bytes: u64,
    /// How long lookups are measured.
    pub duration: Duration,
}

/// The needs of the demonstration, found before anything is written.
#[derive(Debug, Clone, Serialize)]
pub struct Needs {
    /// Files that will be stored.
    pub files: u64,
    /// Their bytes.
    pub file_bytes: u64,
    /// Records of the lookup part.
    pub records: u64,
    /// Their bytes.
    pub record_bytes: u64,
    /// Disk space, at most.
    pub disk_bytes: u64,
    /// Disk space that is free there.
    pub free_bytes: u64,
    /// Estimated time, in seconds.
    pub seconds: u64,
}

/// The report.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Its expected needs.
    pub needs: Needs,
    /// The counts of records stored and left out.
    pub loaded: Loaded,
    /// Seconds of that, closing included.
    pub load_s: f64,
    /// The counts of records read back and compared after reopening.
    pub verified: Verified,
    /// Seconds of that.
    pub verify_s: f64,
    /// The prefix that was scanned.
    pub prefix: String,
    /// Records found under it.
    pub prefix_records: u64,
    /// Seconds of that.
    pub prefix_s: f64,
    /// The lookup part, with the drive's own limit.
    pub lookups: RunReport,
    /// Bytes of the store's file at the end.
    pub store_bytes: u64,
    /// Seconds of everything.
    pub seconds: f64,
}

/// A store that is removed when this is dropped, unless it shall stay.
struct Removed {
    path: PathBuf,
    keep: bool,
}

impl Drop for Removed {
    fn drop(&mut self) {
        if !self.keep {
            // It may be gone already; no caller is left to receive another error.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A demonstration that is ready to start.
pub struct Prepared {
    plan: Plan,
    files: Files,
    needs: Needs,
    store: Store,
    removed: Removed,
}

crate::names::opaque!(Prepared, "Prepared");

impl Prepared {
    /// Its needs.
    #[must_use]
    pub fn needs(&self) -> &Needs {
        &self.needs
    }
}

/// Lists the files, compares what they need with what is free, and makes the store, empty: what is
/// announced then begins.
///
/// # Errors
/// A directory that is missing, a store that exists or cannot be made, too little space. There is
/// no store then.
pub fn prepare(plan: Plan, monitor: &dyn Monitor) -> Result<Prepared, LabError> {
    if plan.store.exists() {
        return Err(LabError::input(
            &plan.store,
            "exists already; the quickstart makes and removes it, so remove it or choose another place with --store",
        ));
    }
    monitor.begin(Stage {
        name: "looking around",
        total: None,
        unit: Unit::Items,
    });
    let files = find_files(&plan.from, Some(plan.cap_bytes), &|_| false, monitor)?;
    let record_bytes = plan.pool_bytes * DATA_POOLS;
    // Small files share pages with their keys; pages fill to about two thirds
    // under unordered inserts, and a fifth of the volume is slack.
    let pages = files.bytes + files.list.len() as u64 * 2048;
    let disk_bytes = pages * 2 + record_bytes * 3 / 2 + (96 << 20);
    let free = free_space(&plan.store)?;
    if free.available_bytes < disk_bytes {
        return Err(LabError::NoSpace {
            path: plan.store.clone(),
            available_bytes: free.available_bytes,
            needed_bytes: disk_bytes,
            option: "--store (or store less with --cap and --pool)",
        });
    }
    let fixed = 2 * DRIVE_TIME.as_secs() + WARM_UP.as_secs() + plan.duration.as_secs();
    let needs = Needs {
        files: files.list.len() as u64,
        file_bytes: files.bytes,
        records: record_bytes / 128,
        record_bytes,
        disk_bytes,
        free_bytes: free.available_bytes,
        // The speed of a modest drive: files written, read and compared at
        // 100 MB/s, records written and read at 150 MB/s.
        seconds: fixed + files.bytes / 50_000_000 + record_bytes / 75_000_000,
    };
    let options = Options::new().pool_bytes(plan.pool_bytes);
    let store = Store::create(&plan.store, &options)?;
    let removed = Removed {
        path: plan.store.clone(),
        keep: plan.keep,
    };
    Ok(Prepared {
        plan,
        files,
        needs,
        store,
        removed,
    })
}

/// Runs the demonstration.
///
/// # Errors
/// Engine and I/O errors, and [`LabError::Verify`] if a byte is not what
/// was stored. The store is removed then too, unless it shall stay.
pub fn start(prepared: Prepared, monitor: &dyn Monitor) -> Result<Report, LabError> {
    let Prepared {
        plan,
        files,
        needs,
        store,
        removed: _removed,
    } = prepared;
    let began = Instant::now();
    let started = std::time::SystemTime::now();
    let options = Options::new().pool_bytes(plan.pool_bytes);
    let tree = store.create_tree(FILES_TREE)?;
    let loaded = load_files(&store, &tree, &files, monitor)?;
    drop(tree);
    store.close()?;
    let load_s = began.elapsed().as_secs_f64();

    let at = Instant::now();
    let store = Store::open(&[&plan.store], &options)?;
    let tree = store.tree(FILES_TREE)?;
    let verified = verify::verify(&store, &tree, &files, started, monitor)?;
    let verify_s = at.elapsed().as_secs_f64();
    let at = Instant::now();
    let prefix = fullest_directory(&files);
    let prefix_records = verify::scan_prefix(&tree, &prefix)?;
    let prefix_s = at.elapsed().as_secs_f64();
    drop(tree);
    store.close()?;

    let lookups = run_on(&lookup_plan(&plan), Data::Added, monitor)?;
    let store_bytes = std::fs::metadata(&plan.store).map_or(0, |m| m.len());
    Ok(Report {
        needs,
        loaded,
        load_s,
        verified,
        verify_s,
        prefix: crate::escape(&prefix),
        prefix_records,
        prefix_s,
        lookups,
        store_bytes,
        seconds: began.elapsed().as_secs_f64(),
    })
}

fn lookup_plan(plan: &Plan) -> RunPlan {
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let engine = EngineConfig {
        path: Some(plan.store.clone()),
        workers: Some(workers),
        tasks_per_worker: DEPTH_PER_WORKER as usize,
        depth_per_worker: DEPTH_PER_WORKER,
        ..EngineConfig::new(EngineKind::Isobath, plan.pool_bytes)
    };
    let workload = Workload {
        value_bytes: VALUE_BYTES,
        ..Workload::lookup()
    };
    let records = plan.pool_bytes * DATA_POOLS / 128;
    RunPlan {
        warm_up: WARM_UP.min(plan.duration),
        keep: true,
        drive_depth: Some(DEPTH_PER_WORKER * u32::try_from(workers).unwrap_or(1)),
        drive_duration: DRIVE_TIME.min(plan.duration),
        sample_every: Duration::from_secs(1),
        ..RunPlan::new(engine, workload, records, plan.duration)
    }
}

/// The first path component that most files share, with its `/`; empty where
/// no file lies in a directory.
fn fullest_directory(files: &Files) -> Vec<u8> {
    let mut counts: BTreeMap<&[u8], u64> = BTreeMap::new();
    for file in &files.list {
        if let Some(end) = file.key.iter().position(|b| *b == b'/') {
            *counts.entry(&file.key[..=end]).or_default() += 1;
        }
    }
    counts
        .into_iter()
        .max_by_key(|(_, count)| *count)
        .map_or_else(Vec::new, |(prefix, _)| prefix.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Silent;
    use crate::load::SourceFile;

    #[test]
    fn the_fullest_directory_is_scanned() {
        let file = |key: &str| SourceFile {
            path: PathBuf::new(),
            key: key.as_bytes().to_vec(),
            bytes: 0,
        };
        let mut files = Files::default();
        assert_eq!(fullest_directory(&files), b"");
        files.list = ["a/x", "b/x", "b/y/z", "top"].map(file).to_vec();
        assert_eq!(fullest_directory(&files), b"b/");
    }

    #[test]
    fn a_store_that_exists_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        std::fs::write(&store, "precious").unwrap();
        let plan = Plan {
            from: dir.path().to_path_buf(),
            store: store.clone(),
            keep: false,
            cap_bytes: 1 << 30,
            pool_bytes: 16 << 20,
            duration: Duration::from_secs(1),
        };
        let error = prepare(plan, &Silent).err().unwrap();
        assert!(error.to_string().contains("exists already"), "{error}");
        assert_eq!(std::fs::read(&store).unwrap(), b"precious");
    }
}

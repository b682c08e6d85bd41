//! What synced commits take beside the flush that their group shares.

use std::path::Path;
use std::time::Instant;

use isobath::{Durability, Options, Store, Tree};
use isobath_flash::rng::Rng;
use isobath_io::{Volume, VolumeOptions};
use isobath_model::advise::SyncedCosts;

use crate::calibrate::{Calibration, KEY_BYTES, VALUE_BYTES, key_of};
use crate::{LabError, Silent, probe, raw};

/// Clients that commit at once, few and many.
const FEW: u32 = 2;
const MANY: u32 = 64;
/// Of the operations of a calibration, so many commits by few clients, and so many more by many.
const COMMITS_SHARE: u32 = 100;
const MORE_BY_MANY: u32 = 8;
/// Records at most: all in memory, but so many that pages are written beside the log, as they are
/// in any store.
const RECORDS: u32 = 1_000_000;
/// Of the buffer pool.
const POOL_BYTES: u64 = 256 << 20;
/// Bytes of the file that flushes are timed in.
const FLUSHED_BYTES: u64 = 64 << 20;
/// Rounds of both numbers of clients; the median of each counts.
const ROUNDS: usize = 3;

/// A page written and flushed in a file of its own, as the probe times it, µs.
fn flush_us(place: &Path) -> Result<f64, LabError> {
    let path = place.join("flushed");
    let time = || {
        let volume = Volume::create(std::slice::from_ref(&path), &VolumeOptions::new())
            .map_err(raw::RawError::from)?;
        volume.grow(FLUSHED_BYTES).map_err(raw::RawError::from)?;
        raw::fill(&volume, FLUSHED_BYTES, 1, &Silent)?;
        probe::flush_us(&volume, FLUSHED_BYTES, 1)
    };
    let timed = time();
    std::fs::remove_file(&path).map_err(LabError::io("remove", &path))?;
    timed
}

/// Measures a store in `place`; flushes are timed beside it.
pub(crate) fn measure(place: &Path, calibration: Calibration) -> Result<SyncedCosts, LabError> {
    let records = calibration.records.min(RECORDS);
    let path = place.join("synced.iso");
    let options = Options::new()
        .pool_bytes(POOL_BYTES)
        .tasks_per_worker(MANY as usize)
        .durability(Durability::Synced);
    let store = Store::create(std::slice::from_ref(&path), &options)?;
    let tree = store.create_tree("calibration")?;
    tree.bulk_load((0..u64::from(records)).map(|n| (key_of(n), [0; VALUE_BYTES])))?;
    let commits = (calibration.operations / COMMITS_SHARE).max(FEW);
    let (mut flushes, mut few, mut many) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        flushes.push(flush_us(place)?);
        few.push(commits_per_s(&store, &tree, records, FEW, commits / FEW)?);
        let each = (commits * MORE_BY_MANY).div_ceil(MANY);
        many.push(commits_per_s(&store, &tree, records, MANY, each)?);
    }
    drop(tree);
    store.close()?;
    let [flush_us, few, many] = [flushes, few, many].map(|mut all| {
        all.sort_by(f64::total_cmp);
        all[ROUNDS / 2]
    });
    Ok(SyncedCosts::measured(flush_us, (FEW, few), (MANY, many)))
}

/// Commits per second by so many clients, of this many commits each.
fn commits_per_s(
    store: &Store,
    tree: &Tree,
    records: u32,
    clients: u32,
    commits: u32,
) -> Result<f64, LabError> {
    let began = Instant::now();
    let task = |client: u32| {
        let tree = tree.clone();
        store.spawn_on(client as usize, move || {
            let mut rng = Rng::new(u64::from(client));
            (0..commits).try_for_each(|_| {
                let key: [u8; KEY_BYTES] = key_of(u64::from(rng.below(records)));
                tree.insert(key, [1; VALUE_BYTES])
            })
        })
    };
    let tasks: Vec<_> = (0..clients).map(task).collect();
    for task in tasks {
        task.join()??;
    }
    Ok(f64::from(clients * commits) / began.elapsed().as_secs_f64())
}

//! Logs that are much too small for their writers: these slow down and wait
//! for each other's checkpoints; each wait ends, and no writer waits alone.

#![allow(missing_docs, clippy::unwrap_used, clippy::big_endian_bytes)]

use super::common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{LOG, LOG_HEADERS, Random, assert_sound, key, parameter, tiny, value};
use isobath::{
    Durability, Error, Options, Simulation, Store, Transaction, TransactionOptions, Tree, Volume,
};
use isobath_io::{FaultDevice, FaultPlan, Survivors};

const TASKS: usize = 12;
/// Bytes that each task logs.
const EACH: u64 = 512 << 10;

/// How many times as long as the mean the longest operation may take; seen are 11.
const MAX_MEANS: u64 = 50;

/// What one task receives and reports.
#[derive(Default)]
struct Watch {
    /// Steps of the simulation so far.
    now: AtomicU64,
    ended: AtomicU64,
    /// Steps of all operations, and of the one that took most.
    sum: AtomicU64,
    most: AtomicU64,
    operations: AtomicU64,
}

impl Watch {
    fn time<T>(&self, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let begin = self.now.load(Ordering::Relaxed);
        let done = work();
        let took = self.now.load(Ordering::Relaxed) - begin;
        self.sum.fetch_add(took, Ordering::Relaxed);
        self.most.fetch_max(took, Ordering::Relaxed);
        self.operations.fetch_add(1, Ordering::Relaxed);
        done
    }
}

/// Everything that logs: puts, removes, transactions, large values, trees that come
/// and go.
fn write_much(simulation: &Store, tree: &Tree, task: u64, watch: &Watch) {
    let mut random = Random::new(task);
    let mut logged = 0;
    let own = format!("own{task}");
    while logged < EACH {
        let n = random.below(3000);
        let length = random.one_of(&[20, 300, 900, 900, 6000, 30_000]);
        let bytes = value(n, length);
        let done = match random.below(20) {
            0 => watch.time(|| {
                let mine = simulation.open_or_create_tree(&own)?;
                mine.insert(&key(n), &bytes)
            }),
            1 => watch.time(|| match simulation.drop_tree(&own) {
                Err(Error::NoSuchTree { .. }) => Ok(()),
                other => other,
            }),
            2..5 => watch.time(|| tree.remove(&key(n)).map(|_| ())),
            5..9 => watch.time(|| {
                simulation.transact(TransactionOptions::new(), |transaction| {
                    for n in n..n + 20 {
                        transaction.insert(tree, &key(n), &bytes[..bytes.len().min(900)])?;
                    }
                    Ok(())
                })
            }),
            _ => watch.time(|| tree.insert(&key(n), &bytes)),
        };
        match done {
            Ok(()) | Err(Error::Conflict { .. } | Error::SnapshotTooOld) => {}
            Err(error) => panic!("task {task}: {error}"),
        }
        logged += 200 + length.min(1000) as u64;
    }
    watch.ended.fetch_add(1, Ordering::Relaxed);
}

fn overfill(seed: u64, options: &Options, log_device: bool) {
    let plan = FaultPlan::new(seed).latency_us(0..=100);
    let plan = plan.log_bytes(if log_device { LOG + LOG_HEADERS } else { 0 });
    let device = FaultDevice::new(0, plan);
    let volume = Volume::from_device(device.clone());
    let mut simulation = Simulation::new(volume, options, seed).unwrap();
    let tree = simulation.store().create_tree("t").unwrap();
    let watch = Arc::new(Watch::default());
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (store, tree) = (simulation.store().clone(), tree.clone());
            let watch = Arc::clone(&watch);
            simulation.spawn(task, move || {
                write_much(&store, &tree, seed * 100 + task as u64, &watch);
            })
        })
        .collect();
    let done = || {
        watch.now.fetch_add(1, Ordering::Relaxed);
        watch.ended.load(Ordering::Relaxed) == TASKS as u64
    };
    let steps = simulation.run_until(done, 100_000_000).unwrap();
    tasks.into_iter().for_each(|task| task.join().unwrap());
    let stats = simulation.store().stats();
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (sum, most, operations) = (read(&watch.sum), read(&watch.most), read(&watch.operations));
    println!(
        "seed {seed}, log device {log_device}: {steps} steps, {operations} operations of {} steps, at most {most}; \
         {} MiB logged, {} checkpoints, {} stalls",
        sum / operations,
        stats.log_bytes >> 20,
        stats.checkpoints,
        stats.stalls
    );
    assert!(stats.log_bytes > 5 * LOG, "the log was never full");
    assert!(stats.checkpoints > 5 && stats.stalls > 0);
    // In steps of the simulation, which no machine makes longer.
    let mean = sum / operations;
    assert!(
        most < MAX_MEANS * mean,
        "one took {most} steps, the mean is {mean}"
    );
    assert_sound(simulation.store(), None);
    simulation.close().unwrap();
}

#[test]
fn a_full_log_slows_all_writers_and_stops_none() {
    for seed in 0..parameter("ISOBATH_SEEDS", 1) {
        let options = tiny(2, 8).log_bytes(LOG);
        for log_device in [false, true] {
            for durability in [Durability::None, Durability::Synced] {
                overfill(seed, &options.clone().durability(durability), log_device);
            }
        }
    }
}

/// Leaves of one transaction that changes each of them: what that logs is more than the smallest
/// log has.
const LEAVES: u64 = 575;
/// Records of [`VALUE`] bytes that a leaf has where keys ascend, and no space for another one of
/// [`ADDED`].
const PER_LEAF: u64 = 11;
const VALUE: usize = 340;
const ADDED: usize = 200;

/// A key by whose order neighbours differ in one byte, so that leaves are filled to their ends.
fn near(n: u64) -> Vec<u8> {
    (n << 8).to_be_bytes().to_vec()
}

/// A store of full leaves with the smallest log, and its device.
fn full_leaves(leaves: u64) -> (Arc<FaultDevice>, Store, Tree) {
    let device = FaultDevice::new(0, FaultPlan::new(1).max_bytes(Some(96 << 20)));
    let volume = Volume::from_device(device.clone());
    let store = Store::create_on_volume(volume, &small_log()).unwrap();
    let tree = store.create_tree("t").unwrap();
    change_many(&store, 0..leaves * PER_LEAF, |transaction, n| {
        transaction.insert(&tree, near(n), value(n, VALUE))
    });
    store.checkpoint().unwrap();
    (device, store, tree)
}

/// Changes one record after the other, a hundred to a transaction.
fn change_many(
    store: &Store,
    numbers: impl Iterator<Item = u64>,
    change: impl Fn(&mut Transaction, u64) -> Result<(), Error>,
) {
    let numbers: Vec<u64> = numbers.collect();
    for some in numbers.chunks(100) {
        let all =
            |transaction: &mut Transaction| some.iter().try_for_each(|n| change(transaction, *n));
        store.transact(TransactionOptions::new(), all).unwrap();
    }
}

fn small_log() -> Options {
    Options::new()
        .workers(2)
        .pool_bytes(16 << 20)
        .log_bytes(LOG)
        .durability(Durability::None)
}

/// A transaction that lasts once it is committed.
fn begin(store: &Store) -> Transaction {
    let synced = TransactionOptions::new().durability(Durability::Synced);
    store.begin_with(synced).unwrap()
}

/// Inserts a record into each of this many full leaves, in one transaction.
fn split_each(store: &Store, tree: &Tree, leaves: u64) {
    let mut transaction = begin(store);
    for n in (0..leaves * PER_LEAF).step_by(PER_LEAF as usize) {
        let between = [&near(n)[..], b"x"].concat();
        transaction.insert(tree, between, value(n, ADDED)).unwrap();
    }
    transaction.commit().unwrap();
}

/// Runs a scenario until its crash comes before the checkpoint that its commit brings about: on a
/// busy machine some come after that, and leave nothing of the log to recover.
fn crashing_before_the_checkpoint(scenario: impl Fn() -> bool) {
    assert!(
        (0..30).any(|_| scenario()),
        "no run had anything to recover"
    );
}

/// The store recovers from the drive's contents when its transaction was acknowledged, and goes on
/// as it is; whether it had anything to recover.
fn has_all(device: &Arc<FaultDevice>, store: Store, records: u64) -> bool {
    let crashed = device.crash_image(Survivors::None, 0);
    assert_sound(&store, Some(records));
    store.tree("t").unwrap().insert("more", "1").unwrap();
    store.close().unwrap();
    let recovered = Store::open_on_volume(Volume::from_device(crashed), &small_log()).unwrap();
    let has_recovered = recovered.stats().recovered_log_bytes > 0;
    assert_sound(&recovered, Some(records));
    recovered.close().unwrap();
    has_recovered
}

/// Nothing of the log is free before a commit is applied, nor before a recovery has applied it.
#[test]
fn a_transaction_that_splits_more_leaves_than_the_log_has_space_for() {
    crashing_before_the_checkpoint(|| {
        let (device, store, tree) = full_leaves(LEAVES);
        split_each(&store, &tree, LEAVES);
        assert_eq!(store.stats().large_commits, 1);
        has_all(&device, store, LEAVES * (PER_LEAF + 1))
    });
}

/// A log that may grow does so instead.
#[test]
fn a_transaction_that_splits_more_leaves_than_the_log_has_space_for_now() {
    crashing_before_the_checkpoint(|| {
        let leaves = 400;
        let options = Options::new()
            .workers(2)
            .pool_bytes(64 << 20)
            .durability(Durability::None);
        let device = FaultDevice::new(0, FaultPlan::new(1));
        let volume = Volume::from_device(device.clone());
        let store = Store::create_on_volume(volume, &options).unwrap();
        let tree = store.create_tree("t").unwrap();
        // A bulk load logs little.
        let records = (0..leaves * PER_LEAF).map(|n| (near(n), value(n, VALUE)));
        tree.bulk_load(records).unwrap();
        split_each(&store, &tree, leaves);
        assert_eq!(store.stats().large_commits, 0);
        has_all(&device, store, leaves * (PER_LEAF + 1))
    });
}

/// One that looks as if it did, but only appends, is a commit like others.
#[test]
fn a_transaction_of_many_records_that_split_few_leaves_is_one_record() {
    crashing_before_the_checkpoint(|| {
        let (device, store, tree) = full_leaves(20);
        let mut transaction = begin(&store);
        for n in 0..1_000 {
            let after = near(20 * PER_LEAF + n);
            transaction.insert(&tree, after, value(n, 60)).unwrap();
        }
        transaction.commit().unwrap();
        assert_eq!(store.stats().large_commits, 0);
        has_all(&device, store, 20 * PER_LEAF + 1_000)
    });
}

#[test]
fn removals_that_could_merge_more_leaves_than_the_log_has_space_for() {
    crashing_before_the_checkpoint(|| {
        let (leaves, kept) = (1_500, 5);
        let (device, store, tree) = full_leaves(leaves);
        let more = (0..leaves * PER_LEAF).filter(|n| n % PER_LEAF >= kept);
        change_many(&store, more, |transaction, n| {
            transaction.remove(&tree, near(n)).map(drop)
        });
        store.checkpoint().unwrap();
        let mut transaction = begin(&store);
        for n in (0..leaves * PER_LEAF).step_by(PER_LEAF as usize) {
            assert!(transaction.remove(&tree, near(n)).unwrap());
        }
        transaction.commit().unwrap();
        has_all(&device, store, leaves * (kept - 1))
    });
}

/// One commit that empties more leaves than the pool has frames: pages that it has changed are
/// written before it is applied, and their records find space in the log beside its merges.
#[test]
fn removals_from_more_leaves_than_the_pool_has() {
    let options = Options::new()
        .pool_bytes(8 << 20)
        .workers(2)
        .durability(Durability::None);
    let records = 20_000u32;
    for round in 0..8 {
        let store = Store::in_memory(&options).unwrap();
        let tree = store.create_tree("t").unwrap();
        let all = (0..records).map(|n| (n.to_be_bytes(), [1; 900]));
        tree.bulk_load(all).unwrap();
        let mut transaction = store.begin().unwrap();
        match round % 2 {
            0 => drop(transaction.remove_range(&tree, ..).unwrap()),
            _ => (0..records).for_each(|n| {
                transaction.remove(&tree, n.to_be_bytes()).unwrap();
            }),
        }
        transaction.commit().unwrap();
        assert!(tree.is_empty().unwrap());
        store.close().unwrap();
    }
}

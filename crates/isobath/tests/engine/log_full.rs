//! Logs that are much too small for what is written: writers slow down and wait
//! for each other's checkpoints; each wait ends, and no writer waits alone.

#![allow(missing_docs, clippy::unwrap_used)]

use super::common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{LOG, LOG_HEADERS, Random, assert_sound, key, parameter, tiny, value};
use isobath::{Durability, Error, Options, Simulation, TransactionOptions, Tree, Volume};
use isobath_io::{FaultDevice, FaultPlan};

const TASKS: usize = 12;
/// Bytes that each task logs.
const EACH: u64 = 1 << 20;

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
fn write_much(simulation: &isobath::Store, tree: &Tree, task: u64, watch: &Watch) {
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

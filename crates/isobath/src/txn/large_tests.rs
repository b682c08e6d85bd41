//! When others see a large commit, and which part.

use std::sync::Arc;

use isobath_io::{FaultDevice, FaultPlan, Volume};

use crate::canary::Canary;
use crate::engine::WorkerState;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::txn::tree_status::Access;
use crate::{Error, Isolation, Options, Simulation, TaskHandle, TransactionOptions};

const RECORDS: u32 = 6_000;

fn key(number: u32) -> [u8; 4] {
    number.swap_bytes().to_le_bytes()
}

fn simulation() -> Simulation {
    let options = Options::new()
        .pool_bytes(16 << 20)
        .segment_bytes(64 << 10)
        .log_bytes(16 << 20)
        .transaction_bytes(64 << 10)
        .workers(2);
    let device = FaultDevice::new(0, FaultPlan::new(1).latency_us(0..=200));
    let simulation = Simulation::new(Volume::from_device(device), &options, 1).unwrap();
    let store = simulation.store();
    let large = store.create_tree("large").unwrap();
    large
        .bulk_load((0..RECORDS).map(|n| (key(n), [0; 900])))
        .unwrap();
    let small = store.create_tree("small").unwrap();
    small.insert("key", "old").unwrap();
    simulation
}

/// A transaction that changes each record of the large tree.
fn commit_large(simulation: &Simulation, isolation: Isolation) -> TaskHandle<()> {
    let store = simulation.store().clone();
    simulation.spawn(1, move || {
        let tree = store.tree("large").unwrap();
        let options = TransactionOptions::new().isolation(isolation);
        let done = store.transact(options, |transaction| {
            (0..RECORDS).try_for_each(|n| transaction.insert(&tree, key(n), [1; 900]))
        });
        done.unwrap();
        assert_eq!(store.stats().large_commits, 1);
    })
}

/// A task that has `work` done once the large commit has closed its tree and writes its run.
fn beside_its_pages<T: Send + 'static>(
    simulation: &Simulation,
    work: impl FnOnce(&WorkerState) -> T + Send + 'static,
) -> TaskHandle<T> {
    let engine = Arc::clone(simulation.engine());
    let large = simulation.store().tree("large").unwrap();
    simulation.spawn(0, move || {
        WorkerState::with_current(&engine, |local| {
            let local = local.expect("in a task");
            let yield_while = |condition: &dyn Fn() -> bool| {
                while condition() {
                    local.worker.yield_now();
                }
            };
            let allocated = || engine.pagestore.allocated_bytes();
            yield_while(&|| large.state.status.access() == Access::Granted);
            let before = allocated();
            yield_while(&|| allocated() < before + (64 << 10));
            work(local)
        })
    })
}

/// An earlier commit that is not visible, because one before it takes its time, and the large one:
/// how often single reads see that and what the earlier one has replaced.
fn seen_before_an_earlier_one(isolation: Isolation) -> usize {
    let simulation = simulation();
    let committed = commit_large(&simulation, isolation);
    let store = simulation.store().clone();
    let small = store.tree("small").unwrap();
    let changed = small.clone();
    let held = beside_its_pages(&simulation, move |local| {
        let engine = &local.engine;
        let transactions = &engine.transactions;
        let slow = transactions.tracker.register(0, &engine.log);
        let earlier = store.spawn_on(0, move || changed.insert("key", "new").unwrap());
        while !transactions.unseen.is_any() {
            local.worker.yield_now();
        }
        assert!(
            !engine.pagestore.provisional().is_empty(),
            "the large one was earlier"
        );
        while !engine.pagestore.provisional().is_empty() {
            local.worker.yield_now();
        }
        // Until its record is durable, and more.
        engine.log_tasks.wait_all_durable(&local.worker).unwrap();
        (0..2_000).for_each(|_| local.worker.yield_now());
        drop(slow);
        earlier.join().unwrap();
    });
    let large = simulation.store().tree("large").unwrap();
    let ended = Arc::new(AtomicBool::new(false));
    let done = Arc::clone(&ended);
    let read = simulation.spawn(0, move || {
        let mut found = 0;
        loop {
            let was_done = done.load(Ordering::Relaxed);
            let first = large.get(key(7)).unwrap().unwrap();
            let second = small.get("key").unwrap().unwrap();
            found += usize::from(first[0] == 1 && second == b"old");
            if was_done {
                assert_eq!((first[0], &second[..]), (1, &b"new"[..]));
                return found;
            }
            crate::yield_now();
        }
    });
    held.join().unwrap();
    committed.join().unwrap();
    ended.store(true, Ordering::Relaxed);
    let found = read.join().unwrap();
    simulation.close().unwrap();
    found
}

#[test]
fn nobody_sees_a_large_commit_before_an_earlier_one() {
    let both = [Isolation::Snapshot, Isolation::Serializable];
    assert_eq!(both.map(seen_before_an_earlier_one), [0, 0]);
    Canary::ShowRunsEarly.switch_on();
    assert!(
        both.iter()
            .all(|&isolation| seen_before_an_earlier_one(isolation) > 0)
    );
}

/// What a large commit changes is not shown to a compare-and-swap, either, before it is visible:
/// one that has looked at the tree's status before that was closed, and at its records afterwards.
#[test]
fn a_refused_compare_and_swap_waits_for_what_it_has_seen() {
    let simulation = simulation();
    let store = simulation.store().clone();
    let small = store.tree("small").unwrap();
    let engine = Arc::clone(simulation.engine());
    let held = simulation.spawn(0, move || {
        WorkerState::with_current(&engine, |local| {
            let local = local.expect("in a task");
            let transactions = &local.engine.transactions;
            let earlier = transactions.tracker.register(0, &local.engine.log);
            // In place of the large commit's record.
            local.engine.log.stamp(0);
            let trees = [small.state.tree.id];
            let swap = transactions.begin_swap(trees.into_iter()).unwrap();
            let has_ended = Arc::new(AtomicBool::new(false));
            let ended = Arc::clone(&has_ended);
            let refused = store.spawn_on(1, move || {
                let swapped = small.compare_and_swap("key", Some(b"other"), None);
                ended.store(true, Ordering::Relaxed);
                swapped.unwrap().unwrap_err().current
            });
            (0..2_000).for_each(|_| local.worker.yield_now());
            let is_early = has_ended.load(Ordering::Relaxed);
            drop((swap, earlier));
            (is_early, refused.join().unwrap())
        })
    });
    assert_eq!(held.join().unwrap(), (false, Some(b"old".to_vec())));
    simulation.close().unwrap();
}

/// A write fails between the moment when the tree gets its run and the one when the commit would be
/// visible: it never is, by any way of reading.
#[test]
fn a_large_commit_that_fails_with_its_run_in_place_is_shown_to_nobody() {
    let simulation = simulation();
    let store = simulation.store().clone();
    let has_failed = Arc::new(AtomicBool::new(false));
    let failed = Arc::clone(&has_failed);
    let committing = store.clone();
    let committed = simulation.spawn(1, move || {
        let tree = committing.tree("large").unwrap();
        let done = committing.transact(TransactionOptions::new(), |transaction| {
            (0..RECORDS).try_for_each(|n| transaction.insert(&tree, key(n), [1; 900]))
        });
        failed.store(true, Ordering::Relaxed);
        done.is_err()
    });
    let read = beside_its_pages(&simulation, move |local| {
        let engine = &local.engine;
        let (transactions, log) = (&engine.transactions, &engine.log);
        // A serializable commit: its bound is below the large one's record, its own record behind,
        // and before that another one is in flight. So the watermark stays below the large one.
        let serializable = transactions.tracker.register(0, log);
        while !engine.pagestore.provisional().is_empty() {
            local.worker.yield_now();
        }
        // Until the record is in the log.
        (0..2_000).for_each(|_| local.worker.yield_now());
        let other = transactions.tracker.register(0, log);
        serializable.is_applied(log.stamp(0));
        while !engine.buffer.pool.overlays.has_runs() {
            local.worker.yield_now();
        }
        engine.shared.poison(Error::LogOverrun);
        while !has_failed.load(Ordering::Relaxed) {
            local.worker.yield_now();
        }
        drop((serializable, other));
        let large = store.tree("large").unwrap();
        let mut shown = 0;
        let scanned = large.scan(.., |_, value| {
            shown += usize::from(value[0] == 1);
            true
        });
        let ranged = large.range(..).next().unwrap();
        let snapshot = store.snapshot().map_err(Error::from);
        let snapshot = snapshot.and_then(|snapshot| snapshot.get(&large, key(7)));
        let refused = [
            large.get(key(7)).is_err(),
            scanned.is_err(),
            ranged.is_err(),
            snapshot.is_err(),
        ];
        (refused, shown)
    });
    assert_eq!(read.join().unwrap(), ([true; 4], 0));
    assert!(committed.join().unwrap());
    assert!(simulation.close().is_err());
}

#[test]
fn snapshots_begin_while_a_merge_frees_what_it_has_replaced() {
    let simulation = simulation();
    let committed = commit_large(&simulation, Isolation::Snapshot);
    let store = simulation.store().clone();
    let begun = beside_its_pages(&simulation, move |local| {
        let transactions = &local.engine.transactions;
        while !transactions.tracker.is_ending() {
            local.worker.yield_now();
        }
        let snapshot = store.snapshot().unwrap();
        let is_early = transactions.tracker.is_ending();
        let large = store.tree("large").unwrap();
        let seen = snapshot.get(&large, key(7)).unwrap().unwrap();
        (seen[0], is_early)
    });
    assert_eq!(begun.join().unwrap(), (1, true));
    committed.join().unwrap();
    let store = simulation.store().clone();
    let has_left = simulation.spawn(0, move || {
        while store.stats().overlaid_trees > 0 {
            crate::yield_now();
        }
    });
    has_left.join().unwrap();
    assert!(!simulation.engine().transactions.tracker.is_ending());
    let report = simulation.store().check(&mut |_, _| {}).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    simulation.close().unwrap();
}

/// The system tasks do nothing while a check goes on, so that trees keep temporary overlays
/// meanwhile: the next large commit does not wait until they have left them.
#[test]
fn large_commits_go_on_beside_a_check() {
    let simulation = simulation();
    let store = simulation.store().clone();
    let has_ended = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&has_ended);
    let engine = Arc::clone(simulation.engine());
    let checking = simulation.spawn(0, move || {
        WorkerState::with_current(&engine, |local| {
            let local = local.expect("in a task");
            let pause = engine.merging.pause(local).unwrap();
            while !has_ended.load(Ordering::Relaxed) {
                local.worker.yield_now();
            }
            drop(pause);
        })
    });
    let committing = simulation.spawn(1, move || {
        let tree = store.tree("large").unwrap();
        for byte in [1, 2] {
            let done = store.transact(TransactionOptions::new(), |transaction| {
                (0..RECORDS).try_for_each(|n| transaction.insert(&tree, key(n), [byte; 900]))
            });
            done.unwrap();
        }
        ended.store(true, Ordering::Relaxed);
        assert_eq!(store.stats().large_commits, 2);
        tree.get(key(7)).unwrap().unwrap()[0]
    });
    assert_eq!(committing.join().unwrap(), 2);
    checking.join().unwrap();
    simulation.close().unwrap();
}

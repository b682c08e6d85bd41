//! Streams of changes at their edges: power cuts, waiting, closed and killed writers, and what has
//! gone since it was logged.

#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{LOG, key, parameter, tiny, value};
use isobath::{
    Change, Changes, Committed, Error, LogPosition, Options, Store, TransactionOptions, Volume,
};
use isobath_io::{Fault, FaultDevice, FaultPlan, FaultRule, IoErrorKind, Op, Survivors, Trigger};

const NOW: Duration = Duration::ZERO;
const SOON: Duration = Duration::from_secs(30);
/// A value of this many bytes has extents of its own.
const LARGE: usize = 60_000;

fn options() -> Options {
    tiny(2, 6).log_bytes(LOG).volume_limit_bytes(None)
}

fn volume(device: &Arc<FaultDevice>) -> Volume {
    Volume::from_device(Arc::clone(device) as _)
}

/// A store on `device` with the tree "t", and the position behind that.
fn store_on(device: &Arc<FaultDevice>) -> (Store, LogPosition) {
    let store = Store::create_on_volume(volume(device), &options()).unwrap();
    store.create_tree("t").unwrap();
    let from = store.log_position().unwrap();
    (store, from)
}

fn beside(device: &Arc<FaultDevice>, from: LogPosition) -> Result<Changes, Error> {
    Store::changes_beside_on_volume(volume(device), &options(), Some(from))
}

/// From now on flushes of the device fail.
fn fail_flushes(device: &FaultDevice) {
    let fault = Fault::Error(IoErrorKind::Media);
    device.add_rule(FaultRule::new(fault, Trigger::From(0)).ops(&[Op::Flush]));
}

/// What is put until nothing more comes, and why no more comes, if that is an error.
fn puts(changes: &mut Changes, wait: Duration) -> (BTreeMap<Vec<u8>, Vec<u8>>, Option<Error>) {
    let mut found = BTreeMap::new();
    loop {
        match changes.next_within(wait) {
            Ok(Some(committed)) => {
                for change in committed.changes {
                    let Change::Put { key, value, .. } = change else {
                        panic!("{change:?}");
                    };
                    found.insert(key, value);
                }
            }
            Ok(None) => return (found, None),
            Err(error) => return (found, Some(error)),
        }
    }
}

/// Everything that is in the tree "t" once the drive has lost its cache.
fn after_power_cut(device: &Arc<FaultDevice>) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let image = device.crash_image(Survivors::None, 0);
    let store = Store::open_on_volume(volume(&image), &options()).unwrap();
    let records = store.tree("t").unwrap().iter().collect::<Result<_, _>>();
    store.close().unwrap();
    records.unwrap()
}

/// A store of which a large value's commit is in the log, on the drive, and whose bytes are in the
/// drive's cache: their flush has failed.
fn with_unflushed_value(device: &Arc<FaultDevice>) -> (Store, Changes, LogPosition) {
    let (store, from) = store_on(device);
    let own = store.changes(Some(from)).unwrap();
    let tree = store.tree("t").unwrap();
    tree.insert("small", "1").unwrap();
    fail_flushes(device);
    let refused = tree.insert("large", value(1, LARGE));
    assert!(
        matches!(refused, Err(Error::Poisoned { .. })),
        "{refused:?}"
    );
    device.clear_rules();
    (store, own, from)
}

#[test]
fn what_a_stream_gives_out_survives_a_power_cut() {
    let device = FaultDevice::new(0, FaultPlan::new(1));
    let (store, mut own, _) = with_unflushed_value(&device);
    let (found, ended) = puts(&mut own, NOW);
    assert!(matches!(ended, Some(Error::Poisoned { .. })), "{ended:?}");
    assert_eq!(found.len(), 1);
    assert_eq!(found, after_power_cut(&device));
    // A failed write: closing says so.
    drop(store.close());
}

#[test]
fn what_a_stream_beside_a_writer_gives_out_survives_a_power_cut() {
    let device = FaultDevice::new(0, FaultPlan::new(1));
    let (store, _, from) = with_unflushed_value(&device);
    assert_eq!(after_power_cut(&device).len(), 1);
    let (found, ended) = puts(&mut beside(&device, from).unwrap(), NOW);
    assert!(ended.is_none(), "{ended:?}");
    assert_eq!(found.len(), 2);
    assert_eq!(found, after_power_cut(&device));
    // A failed write: closing says so.
    drop(store.close());
}

#[test]
fn a_stream_beside_a_writer_that_goes_on_flushes_nothing() {
    let device = FaultDevice::new(0, FaultPlan::new(1));
    let (store, from) = store_on(&device);
    let tree = store.tree("t").unwrap();
    let mut changes = beside(&device, from).unwrap();
    fail_flushes(&device);
    let mut count = 0;
    for n in 0..100 {
        tree.insert(key(n), "1").unwrap();
        // Next to no time: none in which the writer pauses.
        while let Some(next) = changes.next_within(Duration::from_nanos(1)).unwrap() {
            count += next.changes.len();
        }
    }
    // Of the newest ones no record says that they are durable.
    assert!((95..100).contains(&count), "{count}");
    let (found, ended) = puts(&mut changes, SOON);
    assert!(found.is_empty(), "{found:?}");
    assert!(matches!(ended, Some(Error::Io(_))), "{ended:?}");
    device.clear_rules();
    drop(tree);
    store.close().unwrap();
}

#[test]
fn the_last_commit_comes_out_of_a_stream_beside_a_writer_that_rests() {
    let device = FaultDevice::new(0, FaultPlan::new(1));
    let (store, from) = store_on(&device);
    let mut changes = beside(&device, from).unwrap();
    assert!(
        changes
            .next_within(Duration::from_millis(400))
            .unwrap()
            .is_none()
    );
    store.tree("t").unwrap().insert("a", "1").unwrap();
    let began = Instant::now();
    let last = changes.next_within(SOON).unwrap().unwrap();
    assert_eq!(last.changes.len(), 1);
    assert!(began.elapsed() < SOON / 3, "{:?}", began.elapsed());
    store.close().unwrap();
}

/// How often this thread has gone to sleep.
fn sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let count = |line: &str| {
        let count = line.strip_prefix("voluntary_ctxt_switches:")?;
        count.trim().parse().ok()
    };
    status.lines().find_map(count).unwrap()
}

#[test]
fn a_stream_that_waits_does_nothing() {
    let store = Store::in_memory(&options()).unwrap();
    let mut own = store.changes(Some(store.log_position().unwrap())).unwrap();
    let before = sleeps();
    assert!(own.next_within(Duration::from_secs(1)).unwrap().is_none());
    let slept = sleeps() - before;
    assert!(slept < 30, "it woke {slept} times");
    store.close().unwrap();
}

#[test]
fn a_stream_that_waits_is_woken_by_each_commit() {
    let store = Store::in_memory(&options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    let mut changes = store.changes(Some(store.log_position().unwrap())).unwrap();
    // The writer waits for the stream, and the stream for the writer: each wake-up counts.
    let (given, got) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let tree = &tree;
        scope.spawn(move || {
            for n in 0..2000 {
                tree.insert(key(n), "1").unwrap();
                assert_eq!(got.recv_timeout(SOON), Ok(n), "a wake-up was lost");
            }
        });
        for n in 0..2000 {
            let next = changes.next_within(Duration::MAX).unwrap().unwrap();
            assert_eq!(next.changes.len(), 1);
            given.send(n).unwrap();
        }
    });
    drop(tree);
    store.close().unwrap();
}

#[test]
fn a_stream_that_waits_in_a_task_is_woken_there() {
    let store = Store::in_memory(&options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    let mut changes = store.changes(Some(store.log_position().unwrap())).unwrap();
    let stop = changes.stop_handle();
    let waiting = Arc::new(AtomicBool::new(false));
    let says = Arc::clone(&waiting);
    let task = store.spawn_on(0, move || {
        let began = Instant::now();
        let wait = Duration::from_millis(50);
        assert!(changes.next_within(wait).unwrap().is_none());
        assert!(began.elapsed() >= wait);
        says.store(true, Ordering::SeqCst);
        let next = changes.next_within(Duration::MAX).unwrap().unwrap();
        assert_eq!(next.changes.len(), 1);
        // The time that is left of it does not end another wait.
        let next = changes.next_within(SOON).unwrap().unwrap();
        assert_eq!(next.changes.len(), 1);
        let began = Instant::now();
        isobath::sleep_until(began + wait);
        assert!(began.elapsed() >= wait);
        assert!(changes.next_within(Duration::MAX).unwrap().is_none());
    });
    while !waiting.load(Ordering::SeqCst) {
        // The task's worker runs others.
        store.spawn_on(0, || ()).join().unwrap();
    }
    std::thread::sleep(Duration::from_millis(20));
    tree.insert("a", "1").unwrap();
    std::thread::sleep(Duration::from_millis(20));
    tree.insert("b", "2").unwrap();
    std::thread::sleep(Duration::from_millis(100));
    stop.stop();
    task.join().unwrap();
    drop(tree);
    store.close().unwrap();
}

#[test]
fn closing_the_store_ends_a_stream_that_waits_in_one_of_its_tasks() {
    let store = Store::in_memory(&options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    let mut changes = store.changes(Some(store.log_position().unwrap())).unwrap();
    tree.insert("a", "1").unwrap();
    let task = store.spawn(move || {
        let first = changes.next_within(Duration::MAX).unwrap().unwrap();
        (
            first.changes.len(),
            changes.next_within(Duration::MAX).map(drop),
        )
    });
    std::thread::sleep(Duration::from_millis(100));
    drop(tree);
    let (closed, closes) = std::sync::mpsc::channel();
    std::thread::spawn(move || closed.send(store.close()));
    closes.recv_timeout(SOON).unwrap().unwrap();
    let (count, ended) = task.join().unwrap();
    assert_eq!(count, 1);
    assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
}

#[test]
fn a_failed_write_ends_the_waiting() {
    let device = FaultDevice::new(0, FaultPlan::new(1));
    let (store, from) = store_on(&device);
    let mut changes = store.changes(Some(from)).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(move || changes.next_within(Duration::MAX));
        std::thread::sleep(Duration::from_millis(50));
        fail_flushes(&device);
        let tree = store.tree("t").unwrap();
        tree.insert("large", value(1, LARGE)).unwrap_err();
        let ended = waiter.join().unwrap();
        assert!(matches!(ended, Err(Error::Poisoned { .. })), "{ended:?}");
    });
    // A failed write: closing says so.
    drop(store.close());
}

/// The changes of all transactions that there are.
fn all_changes(changes: &mut Changes) -> Vec<Committed> {
    let next = || changes.next_within(NOW).unwrap();
    std::iter::from_fn(next).collect()
}

/// A value that was replaced, and whose extent was given to others, comes out as what has replaced
/// it, with everything in between as one transaction.
#[test]
fn a_large_value_that_has_gone_takes_the_transactions_up_to_its_end_with_it() {
    let device = FaultDevice::new(0, FaultPlan::new(1));
    let (store, from) = store_on(&device);
    let tree = store.tree("t").unwrap();
    tree.insert("before", "1").unwrap();
    tree.insert("large", value(1, LARGE)).unwrap();
    tree.insert("between", "1").unwrap();
    tree.insert("large", value(2, LARGE)).unwrap();
    tree.remove("large").unwrap();
    tree.insert("behind", "1").unwrap();
    // The extents are free and used again.
    store.checkpoint().unwrap();
    for n in 0..40 {
        tree.insert(key(n), value(n, LARGE)).unwrap();
        tree.remove(key(n)).unwrap();
    }
    for mut changes in [store.changes(Some(from)), beside(&device, from)].map(Result::unwrap) {
        let all = all_changes(&mut changes);
        let puts = |committed: &Committed, name: &str| {
            let is_it = |change: &Change| match change {
                Change::Put { key, .. } => key == name.as_bytes(),
                _ => false,
            };
            committed.changes.iter().any(is_it)
        };
        let place = |name: &str| all.iter().position(|each| puts(each, name)).unwrap();
        assert_eq!(place("before"), 0);
        assert!(!all.iter().any(|each| puts(each, "large")));
        let group = &all[place("between")];
        assert!(matches!(
            group.changes.last(),
            Some(Change::Remove { key, .. }) if key == b"large"
        ));
        assert!(place("behind") > place("between"));
    }
    drop(tree);
    store.close().unwrap();
}

#[test]
fn a_tree_that_is_dropped_and_made_again_in_what_is_read_together_is_another_one() {
    let device = FaultDevice::new(0, FaultPlan::new(1));
    let (store, from) = store_on(&device);
    let write = |n: u64| {
        let tree = store.tree("t").unwrap();
        tree.insert("shared", value(n, 10)).unwrap();
        tree.insert(key(n), "1").unwrap();
    };
    for n in 0..3 {
        write(n);
        store.drop_tree("t").unwrap();
        store.create_tree("t").unwrap();
    }
    write(3);
    for mut changes in [store.changes(Some(from)), beside(&device, from)].map(Result::unwrap) {
        let mut copy = BTreeMap::from([("t".to_owned(), BTreeMap::new())]);
        let mut drops = 0;
        for committed in all_changes(&mut changes) {
            for change in committed.changes {
                match change {
                    Change::Put { tree, key, value } => {
                        copy.get_mut(&*tree).unwrap().insert(key, value);
                    }
                    Change::Create { tree } => {
                        assert!(copy.insert(tree.to_string(), BTreeMap::new()).is_none());
                    }
                    Change::Drop { tree } => {
                        assert!(copy.remove(&*tree).is_some());
                        drops += 1;
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!(drops, 3);
        let mut there = BTreeMap::from([(b"shared".to_vec(), value(3, 10))]);
        there.insert(key(3), b"1".to_vec());
        assert_eq!(copy, BTreeMap::from([("t".to_owned(), there)]));
    }
    store.close().unwrap();
}

/// Openings that log nothing leave gaps, which are no overrun, for streams that are open and for
/// such that are opened at a position before.
#[test]
fn openings_that_log_nothing_are_no_overrun() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let options = options().log_bytes(8 * LOG);
    let store = Store::create(&path, &options).unwrap();
    store.create_tree("t").unwrap();
    store.close().unwrap();
    let store = Store::open(&path, &options).unwrap();
    let mut from = store.log_position().unwrap();
    let mut open = Store::changes_beside(&path, &options, Some(from)).unwrap();
    store.close().unwrap();
    for n in 0..5 {
        for _ in 0..n {
            Store::open(&path, &options).unwrap().close().unwrap();
        }
        let store = Store::open(&path, &options).unwrap();
        store.tree("t").unwrap().insert(key(n), "1").unwrap();
        let (found, ended) = puts(&mut open, NOW);
        assert!(ended.is_none(), "{ended:?}");
        assert_eq!(found.len(), 1);
        let mut own = store.changes(Some(from)).unwrap();
        assert_eq!(puts(&mut own, NOW).0, found);
        let mut later = Store::changes_beside(&path, &options, Some(from)).unwrap();
        assert_eq!(puts(&mut later, NOW).0, found);
        from = later.position();
        drop(own);
        store.close().unwrap();
    }
}

/// A writer that is killed at any moment, also in the middle of a flush: what a stream beside it
/// has given out is there when the store is opened again, and its position is one of that store.
#[test]
fn positions_of_a_stream_beside_a_writer_outlive_its_kills() {
    for seed in 0..parameter("ISOBATH_SEEDS", 10) {
        let device = FaultDevice::new(0, FaultPlan::new(seed));
        let (store, from) = store_on(&device);
        let mut changes = beside(&device, from).unwrap();
        let tree = store.tree("t").unwrap();
        let cut = Fault::PowerLoss;
        let rule = FaultRule::new(cut, Trigger::At(seed * 13));
        device.add_rule(rule.ops(&[Op::Write, Op::WriteV, Op::Flush]));
        let mut found = BTreeMap::new();
        let mut position = from;
        for n in 0..60 {
            let length = if n % 7 == 3 { LARGE } else { 20 };
            let write = |transaction: &mut isobath::Transaction| {
                transaction.insert(&tree, key(n), value(n, length))
            };
            let committed = store.transact(TransactionOptions::new(), write);
            let (new, ended) = puts(&mut changes, NOW);
            found.extend(new);
            if ended.is_none() {
                position = changes.position();
            }
            if committed.is_err() {
                break;
            }
        }
        let survivors = if seed % 2 == 0 {
            Survivors::None
        } else {
            Survivors::Random
        };
        device.power_off();
        let image = device.crash_image(survivors, seed);
        drop((tree, changes, store.close()));
        let store = Store::open_on_volume(volume(&image), &options()).unwrap();
        let tree = store.tree("t").unwrap();
        for (key, value) in &found {
            assert_eq!(tree.get(key).unwrap().as_ref(), Some(value), "seed {seed}");
        }
        let mut later = store.changes(Some(position)).unwrap();
        let (rest, ended) = puts(&mut later, NOW);
        assert!(ended.is_none(), "seed {seed}: {ended:?}");
        found.extend(rest);
        let there: BTreeMap<_, _> = tree.iter().collect::<Result<_, _>>().unwrap();
        assert_eq!(found, there, "seed {seed}");
        drop(tree);
        store.close().unwrap();
    }
}

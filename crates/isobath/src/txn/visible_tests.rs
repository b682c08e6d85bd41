//! Commits that are applied, and that readers may not see yet.

use std::sync::Arc;

use isobath_io::{FaultDevice, FaultPlan, Volume};

use crate::engine::WorkerState;
use crate::txn::key_hash;
use crate::{Durability, Error, Options, Simulation, Store, Tree};

/// What each way of reading outside transactions finds of `a`, and whether `c` is there.
fn read(tree: &Tree) -> ([Option<Vec<u8>>; 5], [bool; 4]) {
    let mut scanned = (None, false);
    let mut take = |key: &[u8], value: &[u8]| {
        match key {
            b"a" => scanned.0 = Some(value.to_vec()),
            b"c" => scanned.1 = true,
            _ => (),
        }
        true
    };
    tree.scan(.., &mut take).unwrap();
    let ranged: Vec<_> = tree.range(..).map(Result::unwrap).collect();
    let mut many = tree.get_many(&["a", "b"]).unwrap();
    let streamed = tree.reader("a").unwrap().map(|mut reader| {
        let mut value = Vec::new();
        std::io::Read::read_to_end(&mut reader, &mut value).unwrap();
        value
    });
    let of_a = [
        tree.get("a").unwrap(),
        many.swap_remove(0),
        scanned.0,
        ranged.first().map(|record| record.1.clone()),
        streamed,
    ];
    let has_c = [
        tree.contains("c").unwrap(),
        scanned.1,
        ranged.iter().any(|record| record.0 == b"c"),
        tree.count(..).unwrap() == 3,
    ];
    (of_a, has_c)
}

/// A transaction that is applied, and stays below an earlier commit: it changes `a` and adds `c`.
#[test]
fn all_ways_of_reading_see_a_commit_once_the_watermark_has_passed_it() {
    let options = Options::new().pool_bytes(8 << 20).workers(2);
    let device = FaultDevice::new(0, FaultPlan::new(1).latency_us(0..=200));
    let simulation = Simulation::new(Volume::from_device(device), &options, 1).unwrap();
    let store = simulation.store().clone();
    let tree = store.create_tree("t").unwrap();
    tree.insert("a", "old").unwrap();
    tree.insert("b", "old").unwrap();
    let engine = Arc::clone(simulation.engine());
    let held = simulation.spawn(0, move || {
        WorkerState::with_current(&engine, |local| {
            let local = local.expect("in a task");
            let transactions = &local.engine.transactions;
            let earlier = transactions.tracker.register(0, &local.engine.log);
            // No snapshot has to wait for it.
            earlier.adds_versions();
            let (both, writer) = (tree.clone(), store.clone());
            let both = store.spawn_on(1, move || {
                let mut transaction = writer.begin().unwrap();
                transaction.insert(&both, "a", "new").unwrap();
                transaction.insert(&both, "c", "new").unwrap();
                transaction.commit().unwrap();
            });
            (0..2_000).for_each(|_| local.worker.yield_now());
            assert!(transactions.unseen.is_any(), "the transaction is applied");
            let all_of = |value: &str| [(); 5].map(|()| Some(value.as_bytes().to_vec()));
            assert_eq!(read(&tree), (all_of("old"), [false; 4]));
            let snapshot = store.snapshot().unwrap();
            drop(earlier);
            both.join().unwrap();
            assert!(!transactions.unseen.is_any());
            assert_eq!(read(&tree), (all_of("new"), [true; 4]));
            let in_snapshot = [
                snapshot.get(&tree, "a").unwrap(),
                snapshot.get_many(&tree, &["a"]).unwrap().swap_remove(0),
            ];
            assert_eq!(in_snapshot, [(); 2].map(|()| Some(b"old".to_vec())));
            assert!(!snapshot.contains(&tree, "c").unwrap());
            assert_eq!(snapshot.count(&tree, ..).unwrap(), 2);
        });
    });
    held.join().unwrap();
    simulation.close().unwrap();
}

/// In a store whose commits are seen once they are applied: one of two keys has failed half-way.
#[test]
fn readers_refuse_the_records_of_a_commit_that_has_failed_half_way_and_no_others() {
    let options = Options::new().pool_bytes(8 << 20).workers(1);
    let options = options.durability(Durability::None);
    let store = Store::in_memory(&options).unwrap();
    let tree = store.create_tree("t").unwrap();
    for key in ["a", "b", "c"] {
        tree.insert(key, "old").unwrap();
    }
    let engine = tree.runtime.engine().unwrap();
    let number = key_hash(tree.state.tree.id, b"b");
    engine.transactions.unseen.fail([number].into_iter());
    engine.shared.poison(Error::Closed);
    let is_refused = |read: Result<(), Error>| matches!(read, Err(Error::Poisoned { .. }));
    let scan = |from: &str| tree.scan(from.., |_, _| true);
    let refused = [
        tree.get("b").map(drop),
        tree.contains("b").map(drop),
        tree.get_many(&["a", "b"]).map(drop),
        scan("b"),
        tree.range(..).try_for_each(|record| record.map(drop)),
        tree.count(..).map(drop),
    ];
    assert_eq!(refused.map(is_refused), [true; 6]);
    let old = Some(b"old".to_vec());
    assert_eq!(
        (tree.get("a").unwrap(), tree.get("c").unwrap()),
        (old.clone(), old)
    );
    scan("c").unwrap();
    assert_eq!(
        (tree.range("c"..).count(), tree.count("c"..).unwrap()),
        (1, 1)
    );
    assert!(matches!(store.close(), Err(Error::Poisoned { .. })));
}

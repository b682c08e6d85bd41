//! Transactions that are larger than memory or the log may hold.

#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::ops::Bound;

use super::common;

use common::{Random, assert_sound, key, value};
use isobath::{Error, Options, Store, Transaction, Tree, Volume, WriteBatch};
use isobath_io::{FaultDevice, FaultPlan, Survivors};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Transactions spill from 64 KiB on.
fn options() -> Options {
    Options::new()
        .pool_bytes(8 << 20)
        .workers(2)
        .log_bytes(8 << 20)
        .transaction_bytes(64 << 10)
}

fn is_same(tree: &Tree, model: &Model) {
    let mut wanted = model.iter();
    for record in tree.range(..) {
        let (key, value) = record.unwrap();
        assert_eq!(wanted.next(), Some((&key, &value)));
    }
    assert_eq!(wanted.next(), None);
}

fn is_seen(transaction: &Transaction, tree: &Tree, model: &Model, random: &mut Random, keys: u64) {
    let (from, to) = (key(random.below(keys)), key(random.below(keys)));
    let bounds = (
        Bound::Included(from.clone().min(to.clone())),
        Bound::Excluded(from.clone().max(to.clone())),
    );
    if from != to {
        let wanted: Vec<_> = model.range(bounds.clone()).collect();
        let slices = (
            bounds.0.as_ref().map(Vec::as_slice),
            bounds.1.as_ref().map(Vec::as_slice),
        );
        let mut found = Vec::new();
        transaction
            .scan(tree, slices, |key, value| {
                found.push((key.to_vec(), value.to_vec()));
                true
            })
            .unwrap();
        assert!(found.iter().map(|(k, v)| (k, v)).eq(wanted.iter().copied()));
        found.clear();
        transaction
            .scan_reverse(tree, slices, |key, value| {
                found.push((key.to_vec(), value.to_vec()));
                found.len() < 700
            })
            .unwrap();
        let reverse = wanted.iter().rev().copied().take(700);
        assert!(found.iter().map(|(k, v)| (k, v)).eq(reverse));
    }
    for _ in 0..10 {
        let one = key(random.below(keys));
        assert_eq!(
            transaction.get(tree, &one).unwrap().as_ref(),
            model.get(&one)
        );
    }
}

fn change(
    transaction: &mut Transaction,
    tree: &Tree,
    model: &mut Model,
    random: &mut Random,
    keys: u64,
) {
    let one = key(random.below(keys));
    match random.below(10) {
        0..3 => {
            let existed = transaction.remove(tree, &one).unwrap();
            assert_eq!(existed, model.remove(&one).is_some());
        }
        _ => {
            let length = random.one_of(&[0, 20, 200, 200, 700, 3000]);
            let new = value(random.below(1000), length);
            transaction.insert(tree, &one, &new).unwrap();
            model.insert(one, new);
        }
    }
}

#[test]
fn random_large_transactions_do_what_a_map_does() {
    for seed in 0..6 {
        let mut random = Random::new(seed);
        let store = Store::in_memory(&options()).unwrap();
        let trees = [
            store.create_tree("a").unwrap(),
            store.create_tree("b").unwrap(),
        ];
        let mut models = [Model::new(), Model::new()];
        let keys = random.one_of(&[50, 1000, 20_000]);
        for _ in 0..6 {
            let snapshot = store.snapshot().unwrap();
            let mut transaction = store.begin().unwrap();
            let mut now = models.clone();
            let mut kept = Vec::new();
            for _ in 0..random.one_of(&[20, 2000, 6000]) {
                let at = random.below(2) as usize;
                change(
                    &mut transaction,
                    &trees[at],
                    &mut now[at],
                    &mut random,
                    keys,
                );
                match random.below(300) {
                    0 | 1 => kept.push((transaction.savepoint(), now.clone())),
                    2 if !kept.is_empty() => {
                        let back = random.below(kept.len() as u64) as usize;
                        transaction.rollback_to(kept[back].0).unwrap();
                        now = kept[back].1.clone();
                        kept.truncate(back + 1);
                    }
                    3 => is_seen(&transaction, &trees[at], &now[at], &mut random, keys),
                    _ => {}
                }
            }
            (0..2).for_each(|at| is_same(&trees[at], &models[at]));
            if random.below(4) == 0 {
                transaction.rollback();
            } else {
                transaction.commit().unwrap();
                models = now;
            }
            // What was there before, or that it is kept no longer.
            let seen = snapshot.get(&trees[0], key(1));
            assert!(seen.is_ok() || matches!(seen, Err(Error::SnapshotTooOld)));
            drop(snapshot);
            (0..2).for_each(|at| is_same(&trees[at], &models[at]));
            // Small changes go on in what was rewritten.
            for _ in 0..200 {
                let one = key(random.below(keys));
                if random.below(2) == 0 {
                    trees[0].insert(&one, b"small").unwrap();
                    models[0].insert(one, b"small".to_vec());
                } else {
                    trees[0].remove(&one).unwrap();
                    models[0].remove(&one);
                }
            }
            assert_sound(&store, None);
        }
        store.close().unwrap();
    }
}

#[test]
fn a_large_transaction_beside_others_is_atomic() {
    let store = Store::in_memory(&options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    let other = store.create_tree("other").unwrap();
    let all = |store: &Store, n: u64| {
        let mut transaction = store.begin().unwrap();
        for at in 0..2000 {
            transaction.insert(&tree, key(at), value(n, 200)).unwrap();
        }
        transaction.insert(&other, "n", value(n, 200)).unwrap();
        transaction.commit()
    };
    all(&store, 0).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    let is_done = || done.load(std::sync::atomic::Ordering::Relaxed);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut random = Random::new(3);
                while !is_done() {
                    let Ok(snapshot) = store.snapshot() else {
                        continue;
                    };
                    let (a, b) = (key(random.below(2000)), key(random.below(2000)));
                    let (a, b, c) = (
                        snapshot.get(&tree, &a),
                        snapshot.get(&tree, &b),
                        snapshot.get(&other, "n"),
                    );
                    if let (Ok(a), Ok(b), Ok(c)) = (a, b, c) {
                        assert!(a.is_some() && a == b && b == c);
                    }
                }
            });
        }
        scope.spawn(|| {
            let mut n = 0;
            while !is_done() {
                n += 1;
                tree.insert([&b"z"[..], &key(n)].concat(), b"beside")
                    .unwrap();
            }
        });
        for n in 1..20 {
            all(&store, n).unwrap();
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_sound(&store, None);
    store.close().unwrap();
}

#[test]
fn the_first_committer_wins_against_a_large_transaction() {
    let store = Store::in_memory(&options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    let fill = |transaction: &mut Transaction| {
        for at in 0..2000 {
            transaction.insert(&tree, key(at), value(1, 200)).unwrap();
        }
    };
    let mut large = store.begin().unwrap();
    fill(&mut large);
    tree.insert(key(77), b"first").unwrap();
    assert!(large.commit().unwrap_err().is_retryable());
    assert_eq!(tree.get(key(77)).unwrap().unwrap(), b"first");
    assert_eq!(tree.get(key(78)).unwrap(), None);
    // And the other way round.
    let mut small = store.begin().unwrap();
    small.insert(&tree, key(77), b"second").unwrap();
    let mut large = store.begin().unwrap();
    fill(&mut large);
    large.commit().unwrap();
    assert!(small.commit().unwrap_err().is_retryable());
    // A batch meets no conflict.
    let mut batch = WriteBatch::new();
    for at in 0..3000 {
        batch.insert(&tree, key(at), value(2, 200));
    }
    store.write(&batch).unwrap();
    assert_eq!(tree.get(key(77)).unwrap(), Some(value(2, 200)));
    assert_sound(&store, Some(3000));
    store.close().unwrap();
}

#[test]
fn a_large_transaction_is_recovered_in_full_or_not_at_all() {
    let device = FaultDevice::new(0, FaultPlan::new(1));
    let volume = || Volume::from_device(device.clone());
    let store = Store::create_on_volume(volume(), &options()).unwrap();
    let trees: Vec<Tree> = (0..3)
        .map(|n| store.create_tree(&format!("t{n}")).unwrap())
        .collect();
    for at in 0..3000 {
        for tree in &trees {
            tree.insert(key(at), value(0, 100 + at as usize % 900))
                .unwrap();
        }
    }
    let done = std::sync::atomic::AtomicBool::new(false);
    let mut images = Vec::new();
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            let mut transaction = store.begin().unwrap();
            for at in (0..3000).step_by(7) {
                for tree in &trees {
                    transaction.insert(tree, key(at), value(1, 1000)).unwrap();
                    transaction
                        .insert(tree, key(at + 10_000), value(1, 2000))
                        .unwrap();
                }
            }
            transaction.commit().unwrap();
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        while !done.load(std::sync::atomic::Ordering::Relaxed) {
            images.push(device.crash_image(Survivors::None, 0));
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        writing.join().unwrap();
        images.push(device.crash_image(Survivors::None, 0));
    });
    let (last, every) = (images.len() - 1, images.len().div_ceil(12));
    let some = images.into_iter().enumerate();
    for (at, image) in some.filter(|(at, _)| at % every == 0 || *at == last) {
        let recovered = Store::open_on_volume(Volume::from_device(image), &options()).unwrap();
        let mut states = Vec::new();
        for n in 0..3 {
            let tree = recovered.tree(&format!("t{n}")).unwrap();
            let is_new = tree.contains(key(10_000)).unwrap();
            states.push(is_new);
            for at in 0..3000 {
                let wanted = match is_new && at % 7 == 0 {
                    true => value(1, 1000),
                    false => value(0, 100 + at as usize % 900),
                };
                assert_eq!(tree.get(key(at)).unwrap(), Some(wanted));
            }
        }
        assert!(states.iter().all(|state| *state == states[0]), "{states:?}");
        assert!(states[0] || at < last);
        assert_sound(&recovered, None);
        recovered.close().unwrap();
    }
    store.close().unwrap();
}

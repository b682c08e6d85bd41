//! Transactions that are larger than memory or the log may hold.

#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::common;

use common::{Random, assert_sound, key, value};
use isobath::{
    Error, Options, Record, Store, Transaction, TransactionError, Tree, Volume, WriteBatch,
};
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
    match random.below(1000) {
        0..300 => {
            let existed = transaction.remove(tree, &one).unwrap();
            assert_eq!(existed, model.remove(&one).is_some());
        }
        300..340 => assert_eq!(transaction.pop_first(tree).unwrap(), model.pop_first()),
        340..380 => assert_eq!(transaction.pop_last(tree).unwrap(), model.pop_last()),
        380..384 => {
            let end = key(random.below(keys)).max(one.clone());
            let bounds = (Bound::Included(one), Bound::Excluded(end));
            let gone: Vec<_> = model
                .range(bounds.clone())
                .map(|(key, _)| key.clone())
                .collect();
            let removed = match random.below(3) {
                0 => transaction.retain(tree, bounds, |_, _| false).unwrap(),
                1 => transaction
                    .extract_if(tree, bounds, |_, _| true)
                    .unwrap()
                    .count() as u64,
                _ => transaction.remove_range(tree, bounds).unwrap(),
            };
            assert_eq!(removed, gone.len() as u64);
            gone.iter().for_each(|key| drop(model.remove(key)));
        }
        384 => {
            assert_eq!(transaction.clear(tree).unwrap(), model.len() as u64);
            model.clear();
        }
        385 => {
            let keep = |key: &[u8]| key.last().is_some_and(|byte| byte % 2 == 0);
            transaction.retain(tree, .., |key, _| keep(key)).unwrap();
            model.retain(|key, _| keep(key));
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
            // The earlier values, or the error that they are kept no longer.
            let seen = snapshot.get(&trees[0], key(1));
            assert!(seen.is_ok() || matches!(seen, Err(Error::SnapshotTooOld)));
            drop(snapshot);
            (0..2).for_each(|at| is_same(&trees[at], &models[at]));
            // Small changes go on in these trees.
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
        let committed = (1..20).try_for_each(|n| all(&store, n));
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        committed.unwrap();
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
    for from in (0..3000).step_by(100) {
        let mut batch = WriteBatch::new();
        for (at, tree) in (from..from + 100).flat_map(|at| trees.iter().map(move |t| (at, t))) {
            batch.insert(tree, key(at), value(0, 100 + at as usize % 900));
        }
        store.write(&batch).unwrap();
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
            // However slow this is, some dozens of images are enough.
            let pause = 5 + images.len() as u64;
            std::thread::sleep(std::time::Duration::from_millis(pause));
        }
        writing.join().unwrap();
        images.push(device.crash_image(Survivors::None, 0));
    });
    let (last, every) = (images.len() - 1, images.len().div_ceil(5));
    let some = images.into_iter().enumerate();
    for (at, image) in some.filter(|(at, _)| at % every == 0 || *at == last) {
        let recovered = Store::open_on_volume(Volume::from_device(image), &options()).unwrap();
        let mut states = Vec::new();
        for n in 0..3 {
            let tree = recovered.tree(&format!("t{n}")).unwrap();
            let is_new = tree.contains(key(10_000)).unwrap();
            states.push(is_new);
            let records = tree.range(..).collect::<Result<BTreeMap<_, _>, _>>();
            let records = records.unwrap();
            for at in 0..3000 {
                let wanted = match is_new && at % 7 == 0 {
                    true => value(1, 1000),
                    false => value(0, 100 + at as usize % 900),
                };
                assert!(records.get(&key(at)[..]) == Some(&wanted), "{at}");
            }
        }
        assert!(states.iter().all(|state| *state == states[0]), "{states:?}");
        assert!(states[0] || at < last);
        assert_sound(&recovered, None);
        recovered.close().unwrap();
    }
    store.close().unwrap();
}

/// A value that goes to chunks.
fn large(n: u64) -> Vec<u8> {
    value(n, 20_000 + n as usize % 9000)
}

#[test]
fn reads_inside_see_what_was_spilled() {
    let store = Store::in_memory(&options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    let mut model = Model::new();
    let mut put = |at: u64, value: Vec<u8>| drop(model.insert(key(at), value));
    for at in 0..3000 {
        tree.insert(key(at), value(at, 100)).unwrap();
        put(at, value(at, 100));
    }
    let mut transaction = store.begin().unwrap();
    for at in (0..4000).step_by(2) {
        transaction.insert(&tree, key(at), value(at, 300)).unwrap();
        put(at, value(at, 300));
    }
    for at in (0..4000).step_by(100) {
        transaction.insert(&tree, key(at), large(at)).unwrap();
        put(at, large(at));
    }
    let mut writer = transaction.writer(&tree, key(51)).unwrap();
    writer.append(&large(51)).unwrap();
    writer.finish().unwrap();
    put(51, large(51));
    for at in (0..4000).step_by(3) {
        let existed = transaction.remove(&tree, key(at)).unwrap();
        assert_eq!(existed, model.remove(&key(at)).is_some());
    }
    assert!(store.stats().spilled_bytes > 500_000);
    let records = |from: &mut dyn Iterator<Item = Result<(Vec<u8>, Vec<u8>), Error>>| {
        from.map(Result::unwrap).collect::<Vec<_>>()
    };
    let all: Vec<_> = model.clone().into_iter().collect();
    assert_eq!(records(&mut transaction.range(&tree, ..).unwrap()), all);
    let mut back = records(&mut transaction.range(&tree, ..).unwrap().rev());
    back.reverse();
    assert_eq!(back, all);
    // From both ends in turns, until they meet.
    let mut range = transaction.range(&tree, ..).unwrap();
    let (mut front, mut back) = (Vec::new(), Vec::new());
    let mut random = Random::new(5);
    loop {
        let (side, next) = match random.below(3) {
            0 => (&mut back, range.next_back()),
            _ => (&mut front, range.next()),
        };
        let Some(record) = next else { break };
        side.push(record.unwrap());
    }
    drop(range);
    front.extend(back.into_iter().rev());
    assert_eq!(front, all);
    let prefix = &key(1234)[..key(1234).len() - 2];
    let wanted = all.iter().filter(|(key, _)| key.starts_with(prefix));
    let found = records(&mut transaction.prefix(&tree, prefix).unwrap());
    assert!(found.iter().eq(wanted) && !found.is_empty());
    let keys: Vec<_> = (0..4100).step_by(7).map(key).collect();
    let values = transaction.get_many(&tree, &keys).unwrap();
    for (key, value) in keys.iter().zip(values) {
        assert_eq!(value.as_ref(), model.get(key));
        assert_eq!(transaction.contains(&tree, key).unwrap(), value.is_some());
        let reader = transaction.reader(&tree, key).unwrap();
        let read = reader.map(|mut reader| {
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut reader, &mut bytes).unwrap();
            bytes
        });
        assert_eq!(read, value);
    }
    transaction.commit().unwrap();
    is_same(&tree, &model);
    assert_eq!(store.stats().large_commits, 1);
    assert_sound(&store, Some(model.len() as u64));
    store.close().unwrap();
}

/// The other tasks of a worker run while a transaction writes to its temporary file: when a run is
/// written, and when runs are merged.
#[test]
fn tasks_of_one_worker_run_while_a_transaction_spills() {
    let options = options().workers(1).log_bytes(16 << 20);
    let options = options.transaction_bytes(512 << 10);
    let store = Store::in_memory(&options).unwrap();
    let tree = store.create_tree("t").unwrap();
    let turns = Arc::new(AtomicU64::new(0));
    let has_ended = Arc::new(AtomicBool::new(false));
    let (counted, ends) = (Arc::clone(&turns), Arc::clone(&has_ended));
    let other = store.spawn_on(0, move || {
        while !ends.load(Ordering::Relaxed) {
            counted.fetch_add(1, Ordering::Relaxed);
            isobath::yield_now();
        }
    });
    let spilling = store.clone();
    let spilled = store.spawn_on(0, move || {
        let mut transaction = spilling.begin().unwrap();
        // Per insert that has spilled: turns of the other task, and bytes written.
        let mut each = Vec::new();
        for n in 0..6_000 {
            let before = (
                turns.load(Ordering::Relaxed),
                spilling.stats().spilled_bytes,
            );
            transaction.insert(&tree, key(n), value(n, 800)).unwrap();
            let written = spilling.stats().spilled_bytes - before.1;
            if written > 0 {
                each.push((turns.load(Ordering::Relaxed) - before.0, written));
            }
        }
        drop(transaction);
        has_ended.store(true, Ordering::Relaxed);
        each
    });
    let each = spilled.join().unwrap();
    other.join().unwrap();
    assert!(each.len() >= 8 && each.iter().any(|(_, written)| *written > 4 << 20));
    for (turns, written) in each {
        assert!(
            turns >= written / (20 << 10),
            "{turns} turns beside {written} bytes"
        );
    }
    store.close().unwrap();
}

/// Stretches take the place of keys: neither memory nor a temporary file has what a transaction
/// removes from one key to another, and what has gone is not read again.
#[test]
fn ranges_that_are_removed_take_no_space_and_are_not_read_again() {
    let store = Store::in_memory(&options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    // More than the pool holds, so that what is read again is counted.
    let count = 12_000_u64;
    let name = |n: u64| format!("{n:020}");
    let load = || (0..count).map(|n| (name(n), [7; 1000]));
    tree.bulk_load(load()).unwrap();
    let before = store.stats();
    let pages = before.live_bytes / 4096;
    let mut transaction = store.begin().unwrap();
    let half = transaction.remove_range(&tree, ..name(count / 2)).unwrap();
    assert_eq!(half, count / 2);
    let popped = |popped: Result<Option<Record>, Error>| popped.unwrap().map(|(key, _)| key);
    for n in 0..count / 4 {
        let first = popped(transaction.pop_first(&tree));
        assert_eq!(first, Some(name(count / 2 + n).into_bytes()));
        let last = popped(transaction.pop_last(&tree));
        assert_eq!(last, Some(name(count - 1 - n).into_bytes()));
    }
    assert_eq!(transaction.iter(&tree).unwrap().count(), 0);
    let after = store.stats();
    assert_eq!(after.spilled_bytes, before.spilled_bytes);
    let reads = after.page_reads - before.page_reads;
    assert!(reads < 2 * pages, "{reads} reads of {pages} pages");
    transaction.insert(&tree, name(7), "new").unwrap();
    transaction.commit().unwrap();
    assert_eq!(store.stats().spilled_bytes, before.spilled_bytes);
    assert_eq!(tree.iter().count(), 1);

    // Programs that look for the first record and remove that.
    assert_eq!(tree.clear().unwrap(), 1);
    tree.bulk_load(load()).unwrap();
    let before = store.stats();
    let mut transaction = store.begin().unwrap();
    for n in 0..count - 2000 {
        let first = transaction.iter(&tree).unwrap().next().unwrap().unwrap().0;
        assert_eq!(first, name(n).as_bytes());
        assert!(transaction.remove(&tree, first).unwrap());
    }
    let reads = store.stats().page_reads - before.page_reads;
    assert!(reads < 2 * pages, "{reads} reads of {pages} pages");
    transaction.commit().unwrap();
    assert_eq!(tree.iter().count(), 2000);
    assert_sound(&store, None);
    store.close().unwrap();
}

/// As a commit of single removals does.
#[test]
fn a_removed_range_is_in_conflict_with_changes_of_what_it_has_seen_and_keeps_what_is_new() {
    for count in [100_u64, 5000] {
        let store = Store::in_memory(&options()).unwrap();
        let tree = store.create_tree("t").unwrap();
        for n in 0..count {
            tree.insert(key(2 * n), value(n, 40)).unwrap();
        }
        let mut transaction = store.begin().unwrap();
        assert_eq!(transaction.clear(&tree).unwrap(), count);
        tree.insert(key(7), "new").unwrap();
        tree.insert(key(9), "gone").unwrap();
        tree.remove(key(9)).unwrap();
        transaction.commit().unwrap();
        let left: Vec<_> = tree.iter().map(Result::unwrap).collect();
        assert_eq!(left, [(key(7), b"new".to_vec())]);
        for is_removed in [false, true] {
            for n in 0..count {
                tree.insert(key(2 * n), value(n, 40)).unwrap();
            }
            let mut transaction = store.begin().unwrap();
            transaction.clear(&tree).unwrap();
            match is_removed {
                true => assert!(tree.remove(key(10)).unwrap()),
                false => tree.insert(key(10), "newer").unwrap(),
            }
            let failed = transaction.commit();
            assert!(
                matches!(failed, Err(TransactionError::Conflict { .. })),
                "{failed:?}"
            );
            assert_eq!(tree.count(..).unwrap(), count + 1 - u64::from(is_removed));
        }
        store.close().unwrap();
    }
}

/// A batch of long keys is smaller than a record of the log may be.
#[test]
fn ranges_of_long_keys_are_removed_in_small_logs() {
    let store = Store::in_memory(&options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    let long = |n: u32| [&[b'k'; 1000][..], &format!("{n:08}").into_bytes()].concat();
    for n in 0..1000 {
        tree.insert(long(n), "v").unwrap();
    }
    assert_eq!(tree.remove_range(long(100)..long(500)).unwrap(), 400);
    assert_eq!(
        tree.retain(.., |key, _| key >= &long(600)[..]).unwrap(),
        200
    );
    assert_eq!(tree.clear().unwrap(), 400);
    assert_sound(&store, None);
    store.close().unwrap();
}

#[test]
fn trees_are_filled_and_emptied_in_one_commit() {
    let device = FaultDevice::new(0, FaultPlan::new(1));
    let volume = || Volume::from_device(device.clone());
    let store = Store::create_on_volume(volume(), &options()).unwrap();
    let (full, empty) = (
        store.create_tree("full").unwrap(),
        store.create_tree("empty").unwrap(),
    );
    let other = store.create_tree("other").unwrap();
    other.insert("a", "b").unwrap();
    for at in 0..3000 {
        let bytes = match at % 50 {
            0 => large(at),
            _ => value(at, 300),
        };
        full.insert(key(at), bytes).unwrap();
    }
    for round in 0..4 {
        let (from, to) = match round % 2 {
            0 => (&full, &empty),
            _ => (&empty, &full),
        };
        let mut before = store.begin().unwrap();
        before.insert(&other, "a", "c").unwrap();
        let mut transaction = store.begin().unwrap();
        let records: Vec<_> = from.range(..).map(Result::unwrap).collect();
        assert_eq!(records.len(), 3000);
        for (key, value) in &records {
            transaction.insert(to, key, value).unwrap();
            assert!(transaction.remove(from, key).unwrap());
        }
        // A tree of which nothing changes in the end stays open to others.
        let savepoint = transaction.savepoint();
        transaction.insert(&other, "a", "x").unwrap();
        transaction.rollback_to(savepoint).unwrap();
        transaction.commit().unwrap();
        before.commit().unwrap();
        assert!(from.range(..).next().is_none());
        assert!(to.range(..).map(Result::unwrap).eq(records));
        assert_sound(&store, None);
    }
    let image = device.crash_image(Survivors::None, 0);
    store.close().unwrap();
    for device in [image, device] {
        let store = Store::open_on_volume(Volume::from_device(device), &options()).unwrap();
        assert_eq!(store.tree("full").unwrap().range(..).count(), 3000);
        assert_sound(&store, Some(3001));
        store.close().unwrap();
    }
}

#[test]
fn what_cannot_be_spilled_is_refused_and_nothing_else() {
    let home = tempfile::tempdir().unwrap();
    let (here, away) = (home.path().join("here"), home.path().join("away"));
    std::fs::create_dir(&here).unwrap();
    let store = Store::create(here.join("s.isobath"), &options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    let mut transaction = store.begin().unwrap();
    let mut model = Model::new();
    let mut states = Vec::new();
    std::fs::rename(&here, &away).unwrap();
    for at in 0..1000 {
        if at % 50 == 0 {
            states.push((transaction.savepoint(), model.clone()));
        }
        match transaction.insert(&tree, key(at % 700), value(at, 200)) {
            Ok(()) => drop(model.insert(key(at % 700), value(at, 200))),
            Err(Error::Sort { directory, .. }) => assert!(directory.ends_with("here")),
            Err(error) => panic!("{error}"),
        }
        if at == 600 {
            let seen = transaction.range(&tree, ..).unwrap().map(Result::unwrap);
            assert!(seen.eq(model.clone()) && model.len() < 600);
        }
        if at == 650 {
            std::fs::rename(&away, &here).unwrap();
        }
    }
    assert!(model.len() >= 349);
    for (savepoint, model) in states.iter().rev().step_by(3) {
        transaction.rollback_to(*savepoint).unwrap();
        let seen = transaction.range(&tree, ..).unwrap().map(Result::unwrap);
        assert!(seen.eq(model.clone()));
    }
    for at in 0..2000 {
        transaction.insert(&tree, key(at), value(at, 100)).unwrap();
    }
    transaction.commit().unwrap();
    assert_sound(&store, Some(2000));
    store.close().unwrap();
}

#[test]
fn a_full_volume_refuses_a_large_commit_and_nothing_is_left_behind() {
    let limited = options()
        .log_bytes(4 << 20)
        .volume_limit_bytes(Some(24 << 20));
    let store = Store::in_memory(&limited).unwrap();
    let tree = store.create_tree("t").unwrap();
    for at in 0..2000 {
        tree.insert(key(at), value(0, 1000)).unwrap();
    }
    let before = store.stats().allocated_bytes;
    let mut refused = 0;
    for count in [40_000, 20_000, 30_000, 1000] {
        let mut transaction = store.begin().unwrap();
        for at in 0..count {
            transaction
                .insert(&tree, key(at * 2), value(1, 1000))
                .unwrap();
        }
        match transaction.commit() {
            Ok(()) => assert!(count == 1000),
            Err(error) => {
                assert!(matches!(Error::from(error), Error::VolumeFull { .. }));
                refused += 1;
                assert_eq!(store.stats().allocated_bytes, before);
                assert_eq!(tree.range(..).count(), 2000);
            }
        }
        assert_sound(&store, None);
    }
    assert_eq!(refused, 3);
    assert_eq!(tree.get(key(1998)).unwrap(), Some(value(1, 1000)));
    store.close().unwrap();
}

/// More than the pool has frames for roots, each with a value of its own pages.
#[test]
fn a_transaction_changes_hundreds_of_trees() {
    // Without a log transactions spill from 4 MiB on.
    let store = Store::in_memory(&options().log_bytes(0)).unwrap();
    let trees = (0..500).map(|n| store.create_tree(&format!("t{n}")).unwrap());
    let trees: Vec<_> = trees.collect();
    let mut transaction = store.begin().unwrap();
    for tree in &trees {
        (0..3).for_each(|at| transaction.insert(tree, key(at), value(at, 5000)).unwrap());
        (3..14).for_each(|at| transaction.insert(tree, key(at), value(at, 900)).unwrap());
    }
    transaction.commit().unwrap();
    assert!(trees.iter().all(|tree| tree.range(..).count() == 14));
    assert_eq!(store.stats().large_commits, 1);
    // Those that are smaller than the pool leave their overlays.
    while store.stats().overlaid_trees > 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_sound(&store, Some(14 * 500));
    store.close().unwrap();
}

/// The record names each large value, and each tree.
#[test]
fn what_the_log_cannot_name_is_too_large() {
    let fill = |store: &Store| {
        let tree = store.create_tree("t").unwrap();
        let mut transaction = store.begin().unwrap();
        (0..20_000).for_each(|at| transaction.insert(&tree, key(at), value(at, 1300)).unwrap());
        (transaction.commit().map_err(Error::from), tree)
    };
    let store = Store::in_memory(&options().log_bytes(4 << 20)).unwrap();
    let (result, tree) = fill(&store);
    assert!(matches!(
        result,
        Err(Error::TransactionTooLarge { bytes, limit: 131_072 }) if bytes > 131_072
    ));
    assert!(tree.range(..).next().is_none());
    assert_sound(&store, Some(0));
    // As many as the record can name, but for what it says of the tree.
    let mut transaction = store.begin().unwrap();
    (0..131_072 / 8).for_each(|at| transaction.insert(&tree, key(at), value(at, 1300)).unwrap());
    let refused = transaction.commit();
    assert!(
        matches!(refused, Err(TransactionError::TransactionTooLarge { .. })),
        "{refused:?}"
    );
    store.close().unwrap();
    // A log whose size was not given grows.
    let growing = Options::new()
        .pool_bytes(16 << 20)
        .workers(2)
        .transaction_bytes(64 << 10);
    let store = Store::in_memory(&growing).unwrap();
    let (result, tree) = fill(&store);
    result.unwrap();
    assert_eq!(tree.range(..).count(), 20_000);
    assert_sound(&store, Some(20_000));
    store.close().unwrap();
}

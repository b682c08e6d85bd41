//! Cursors compared with a `BTreeMap`, also with concurrent writers.

use std::collections::BTreeMap;
use std::ops::Bound;

use proptest::prelude::*;

use super::{TestContext, next_random};
use crate::btree::{Cursor, Direction, Tree, ValueRef};
use crate::sync::atomic::AtomicBool;
use crate::sync::atomic::Ordering::Relaxed;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn collect(ctx: &TestContext, mut cursor: Cursor) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut all = Vec::new();
    while let Some(entry) = cursor.next(ctx).unwrap() {
        all.push((entry.key.to_vec(), entry.value.bytes.to_vec()));
    }
    all
}

fn bound_strategy() -> impl Strategy<Value = Bound<Vec<u8>>> {
    let key = prop_oneof![
        (0..3000u32).prop_map(|number| format!("key{number:05}").into_bytes()),
        (0..3000u32).prop_map(|number| format!("key{number:05}{:0400}", 0).into_bytes()),
        prop::collection::vec(any::<u8>(), 0..3),
    ];
    (key, 0..3u8).prop_map(|(key, kind)| match kind {
        0 => Bound::Unbounded,
        1 => Bound::Included(key),
        _ => Bound::Excluded(key),
    })
}

fn slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(|key| &key[..])
}

fn filled(ctx: &TestContext, count: u32, step: usize) -> (Tree, Model) {
    let (tree, mut model) = (ctx.tree(), Model::new());
    for number in (0..count).step_by(step) {
        let mut key = format!("key{number:05}").into_bytes();
        if number % 5 == 0 {
            key.resize(400, b'0');
        }
        let value = vec![number as u8; number as usize % 300];
        let _ = tree.insert(ctx, &key, ValueRef::inline(&value)).unwrap();
        model.insert(key, value);
    }
    (tree, model)
}

fn in_range<'m>(
    model: &'m Model,
    lower: &'m Bound<Vec<u8>>,
    upper: &'m Bound<Vec<u8>>,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let range = (slice(lower), slice(upper));
    let all = model
        .iter()
        .filter(|(key, _)| std::ops::RangeBounds::<[u8]>::contains::<[u8]>(&range, &key[..]));
    all.map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

#[test]
fn ranges_equal_the_model() {
    let ctx = TestContext::new(4096, 1 << 16);
    let (tree, model) = filled(&ctx, 3000, 3);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(200));
    let strategy = (bound_strategy(), bound_strategy(), 0..100usize);
    let run = |(lower, upper, evict): (Bound<Vec<u8>>, Bound<Vec<u8>>, usize)| {
        ctx.evict(evict);
        let mut expected = in_range(&model, &lower, &upper);
        let cursor = |direction| Cursor::new(tree, slice(&lower), slice(&upper), direction);
        prop_assert_eq!(collect(&ctx, cursor(Direction::Forward)), expected.clone());
        expected.reverse();
        prop_assert_eq!(collect(&ctx, cursor(Direction::Reverse)), expected);
        Ok(())
    };
    runner.run(&strategy, run).unwrap();
    assert!(ctx.ahead.load(Relaxed) > 100);
}

#[test]
fn prefixes_and_an_empty_tree() {
    let ctx = TestContext::new(4096, 1 << 16);
    let empty = ctx.tree();
    let (tree, model) = filled(&ctx, 3000, 1);
    for direction in [Direction::Forward, Direction::Reverse] {
        let unbounded = Cursor::new(empty, Bound::Unbounded, Bound::Unbounded, direction);
        assert_eq!(collect(&ctx, unbounded), []);
        for prefix in [&b""[..], b"key", b"key01", b"key0123", b"kez", b"\xff"] {
            let found = collect(&ctx, Cursor::with_prefix(tree, prefix, direction));
            let expected = model.keys().filter(|key| key.starts_with(prefix)).count();
            assert_eq!(found.len(), expected);
            assert!(found.iter().all(|(key, _)| key.starts_with(prefix)));
        }
    }
}

fn count(ctx: &TestContext, tree: Tree, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> (u64, u32) {
    let mut cursor = Cursor::new(tree, lower, upper, Direction::Forward);
    let (mut records, mut rounds) = (0, 0);
    loop {
        records += cursor.count_leaves(ctx).unwrap();
        rounds += 1;
        if cursor.boundary().is_none() {
            return (records, rounds);
        }
    }
}

#[test]
fn counts_equal_the_model_and_pass_the_leaves_of_a_parent_together() {
    let ctx = TestContext::new(4096, 1 << 16);
    let (tree, model) = filled(&ctx, 3000, 1);
    let pages = ctx.live_pages();
    let (records, rounds) = count(&ctx, tree, Bound::Unbounded, Bound::Unbounded);
    assert_eq!(records, 3000);
    assert!(
        u64::from(rounds) < pages / 4,
        "{rounds} rounds, {pages} pages"
    );
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(200));
    let strategy = (bound_strategy(), bound_strategy(), 0..100usize);
    let run = |(lower, upper, evict): (Bound<Vec<u8>>, Bound<Vec<u8>>, usize)| {
        ctx.evict(evict);
        let expected = in_range(&model, &lower, &upper).len() as u64;
        let (records, _) = count(&ctx, tree, slice(&lower), slice(&upper));
        prop_assert_eq!(records, expected);
        Ok(())
    };
    runner.run(&strategy, run).unwrap();
}

/// Ends the other threads when the test's own ends, also if it fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Even keys come and go, odd keys stay.
fn disturb(ctx: &TestContext, tree: &Tree, keys: u64, seed: u64, stop: &AtomicBool) {
    let mut state = seed;
    let mut turn = 0u32;
    while !stop.load(Relaxed) {
        turn += 1;
        for _ in 0..1000 {
            let number = next_random(&mut state) % keys / 2 * 2;
            let key = format!("{number:08}");
            if turn.is_multiple_of(2) {
                let _ = tree.remove(ctx, key.as_bytes()).unwrap();
            } else {
                let value = [number as u8; 150];
                let _ = tree
                    .insert(ctx, key.as_bytes(), ValueRef::inline(&value))
                    .unwrap();
            }
        }
    }
}

fn check_scan(ctx: &TestContext, tree: Tree, keys: u64, direction: Direction) {
    let mut cursor = Cursor::new(tree, Bound::Unbounded, Bound::Unbounded, direction);
    let (mut before, mut odd): (Option<u64>, u64) = (None, 0);
    while let Some(entry) = cursor.next(ctx).unwrap() {
        let number: u64 = std::str::from_utf8(entry.key).unwrap().parse().unwrap();
        assert!(entry.value.bytes.iter().all(|&byte| byte == number as u8));
        if let Some(before) = before {
            match direction {
                Direction::Forward => assert!(before < number),
                Direction::Reverse => assert!(before > number),
            }
        }
        before = Some(number);
        odd += number % 2;
    }
    assert_eq!(odd, keys / 2, "{direction:?}");
}

#[test]
fn scans_beside_writers_see_every_lasting_key_once() {
    let (ctx, keys) = (TestContext::new(4096, 1 << 16), 20_000);
    let tree = ctx.tree();
    for number in (1..keys).step_by(2) {
        let key = format!("{number:08}");
        let value = [number as u8; 30];
        let _ = tree
            .insert(&ctx, key.as_bytes(), ValueRef::inline(&value))
            .unwrap();
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop_writers = StopOnDrop(&stop);
        for seed in 1..3 {
            let (ctx, tree, stop) = (&ctx, &tree, &stop);
            scope.spawn(move || disturb(ctx, tree, keys, seed, stop));
        }
        for round in 0..60 {
            check_scan(&ctx, tree, keys, Direction::Forward);
            check_scan(&ctx, tree, keys, Direction::Reverse);
            ctx.evict(round);
        }
    });
    tree.verify(&ctx, &mut ()).unwrap();
}

#[test]
fn a_long_scan_asks_for_pages_ahead() {
    let ctx = TestContext::new(8192, 1 << 16);
    let (tree, model) = filled(&ctx, 60_000, 1);
    for direction in [Direction::Forward, Direction::Reverse] {
        ctx.evict(8000);
        let (faults, ahead) = (ctx.faults.load(Relaxed), ctx.ahead.load(Relaxed));
        let cursor = Cursor::new(tree, Bound::Unbounded, Bound::Unbounded, direction);
        assert_eq!(collect(&ctx, cursor).len(), model.len());
        let (faults, ahead) = (
            ctx.faults.load(Relaxed) - faults,
            ctx.ahead.load(Relaxed) - ahead,
        );
        // All but the inner nodes and the first few leaves.
        assert!(faults > 1000 && ahead > faults * 9 / 10, "{faults} {ahead}");
    }
}

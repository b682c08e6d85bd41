//! The tree against a `BTreeMap`.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{TestContext, next_random};
use crate::btree::{Batch, Lookup, Old, Tree, ValueKind, ValueRef};
use crate::types::{MAX_INLINE_RECORD, MAX_INLINE_VALUE};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn check_all(ctx: &TestContext, tree: &Tree, model: &Model) {
    let shape = tree.verify(ctx, &mut ()).unwrap();
    assert_eq!(shape.records, model.len() as u64);
    assert_eq!(shape.leaf_pages + shape.inner_pages, ctx.live_pages());
    let mut value = Vec::new();
    for (key, expected) in model {
        assert_eq!(
            tree.get(ctx, key, &mut value).unwrap(),
            Some(ValueKind::Inline)
        );
        assert_eq!(&value, expected);
    }
    // Every third key asked for is absent.
    let mut keys: Vec<Vec<u8>> = model.keys().cloned().collect();
    for key in keys.iter_mut().step_by(3) {
        key.push(b'?');
        key.truncate(1024);
    }
    ctx.evict(model.len() / 20);
    let mut batch = Batch::default();
    tree.get_many(ctx, &keys, &mut batch).unwrap();
    for (index, key) in keys.iter().enumerate() {
        let found = batch.value(index).map(|value| value.bytes);
        assert_eq!(found, model.get(key).map(|value| &value[..]));
        let lookup = &batch.lookups()[index];
        assert!(matches!(lookup, Lookup::Found(..) | Lookup::Absent));
    }
}

/// Keys of a few families: long shared prefixes, adversarial neighbours, short
/// ones, all lengths.
fn key_strategy() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(prop_oneof![Just(0u8), Just(255u8), Just(7u8)], 0..6),
        any::<u64>().prop_map(|number| number.to_le_bytes().to_vec()),
        (0..40u8).prop_map(|last| [&[5u8; 1000][..], &[last]].concat()),
        (0..25usize, 0..1024usize, any::<u8>()).prop_map(|(short, long, last)| {
            let mut key = vec![b'x'; long.max(short)];
            key.push(last);
            key.truncate(1024);
            key
        }),
        prop::collection::vec(any::<u8>(), 1024..=1024),
    ]
}

#[derive(Clone, Debug)]
enum Op {
    Insert(Vec<u8>, usize, u8),
    Remove(Vec<u8>),
    RemoveSome(u8),
    Evict(usize),
}

fn op_strategy() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (key_strategy(), 0..=MAX_INLINE_VALUE, any::<u8>()).prop_map(|(k, v, b)| Op::Insert(k, v, b)),
        2 => (key_strategy(), 0..20usize, any::<u8>()).prop_map(|(k, v, b)| Op::Insert(k, v, b)),
        1 => key_strategy().prop_map(Op::Remove),
        3 => any::<u8>().prop_map(Op::RemoveSome),
        1 => (0..20usize).prop_map(Op::Evict),
    ]
}

fn apply(ctx: &TestContext, tree: &Tree, model: &mut Model, op: Op) {
    match op {
        Op::Insert(key, len, byte) => {
            let value = vec![byte; len.min(MAX_INLINE_RECORD - key.len())];
            let old = tree.insert(ctx, &key, ValueRef::inline(&value)).unwrap();
            assert_eq!(old.existed(), model.insert(key, value).is_some());
        }
        Op::Remove(key) => {
            let old = tree.remove(ctx, &key).unwrap();
            assert_eq!(old.existed(), model.remove(&key).is_some());
        }
        Op::RemoveSome(index) => {
            let key = model.keys().nth(usize::from(index) % model.len().max(1));
            if let Some(key) = key.cloned() {
                assert_eq!(tree.remove(ctx, &key).unwrap(), Old::Inline);
                model.remove(&key);
            }
        }
        Op::Evict(pages) => ctx.evict(pages),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn behaves_like_a_map(ops in prop::collection::vec(op_strategy(), 1..400)) {
        let ctx = TestContext::new(4096, 1 << 16);
        let tree = ctx.tree();
        let mut model = Model::new();
        for op in ops {
            apply(&ctx, &tree, &mut model, op);
        }
        check_all(&ctx, &tree, &model);
        empty(&ctx, &tree, &mut model);
    }
}

/// Removes everything; the tree is then one leaf.
fn empty(ctx: &TestContext, tree: &Tree, model: &mut Model) {
    for key in std::mem::take(model).into_keys() {
        assert!(tree.remove(ctx, &key).unwrap().existed());
    }
    check_all(ctx, tree, model);
    assert_eq!(ctx.live_pages(), 1);
}

#[test]
fn ten_thousand_random_records() {
    let ctx = TestContext::new(4096, 1 << 16);
    let tree = ctx.tree();
    let mut model = Model::new();
    let mut state = 42;
    for _ in 0..10_000 {
        let number = next_random(&mut state);
        let key = format!("user{number:020}").into_bytes();
        let value = vec![number as u8; (number >> 8) as usize % 200];
        let _ = tree.insert(&ctx, &key, ValueRef::inline(&value)).unwrap();
        model.insert(key, value);
    }
    check_all(&ctx, &tree, &model);
    empty(&ctx, &tree, &mut model);
}

/// Inserts 20,000 records in the order that `number` gives; returns the fill of
/// the leaves.
fn fill_after(number: impl Fn(u64) -> u64) -> f64 {
    let ctx = TestContext::new(4096, 1 << 16);
    let tree = ctx.tree();
    for index in 0..20_000 {
        let mut key = [0; 8];
        for (at, byte) in key.iter_mut().enumerate() {
            *byte = (number(index) >> (56 - 8 * at)) as u8;
        }
        let _ = tree
            .insert(&ctx, &key, ValueRef::inline(&[1; 120]))
            .unwrap();
    }
    let shape = tree.verify(&ctx, &mut ()).unwrap();
    assert_eq!(shape.records, 20_000);
    shape.leaf_fill()
}

#[test]
fn sorted_insertion_fills_pages() {
    let ascending = fill_after(|index| index);
    let descending = fill_after(|index| 1 << 40 | (20_000 - index));
    let interleaved = fill_after(|index| ((index % 7) << 32) | index);
    let mixed = fill_after(|index| index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    assert!(ascending >= 0.95, "ascending {ascending}");
    assert!(descending >= 0.95, "descending {descending}");
    assert!(interleaved >= 0.9, "interleaved {interleaved}");
    assert!((0.6..0.8).contains(&mixed), "random {mixed}");
}

#[test]
fn extents_are_handed_back() {
    let ctx = TestContext::new(64, 1 << 10);
    let tree = ctx.tree();
    let mut value = Vec::new();
    let extent = |number: u8| [number; 32];
    assert_eq!(
        tree.insert(&ctx, b"k", ValueRef::extent(&extent(1)))
            .unwrap(),
        Old::Absent
    );
    assert_eq!(
        tree.get(&ctx, b"k", &mut value).unwrap(),
        Some(ValueKind::Extent)
    );
    assert_eq!(value, extent(1));
    for (next, old) in [
        (ValueRef::inline(b"x"), Some(1)),
        (ValueRef::extent(&[2; 20]), None),
    ] {
        match (tree.insert(&ctx, b"k", next).unwrap(), old) {
            (Old::Extent(descriptor), Some(number)) => {
                assert_eq!(descriptor.bytes(), extent(number))
            }
            (Old::Inline, None) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(
        !tree
            .insert_if_absent(&ctx, b"k", ValueRef::inline(b"no"))
            .unwrap()
    );
    let Old::Extent(descriptor) = tree.remove(&ctx, b"k").unwrap() else {
        panic!("no extent");
    };
    assert_eq!(descriptor.bytes(), [2; 20]);
    assert!(
        tree.insert_if_absent(&ctx, b"k", ValueRef::inline(b"yes"))
            .unwrap()
    );
}

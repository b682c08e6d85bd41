//! Bulk loads, and freeing whole trees.

use proptest::prelude::*;

use super::{TestContext, next_random};
use crate::btree::{Cursor, Direction, Loader, NotLoaded, Tree, ValueRef, Visitor};
use crate::error::StorageError;
use std::collections::BTreeMap;
use std::ops::Bound;

pub(super) type Model = BTreeMap<Vec<u8>, Vec<u8>>;

pub(super) fn check(ctx: &TestContext, tree: Tree, model: &Model) {
    let shape = tree.verify(ctx, &mut ()).unwrap();
    assert_eq!(shape.records, model.len() as u64);
    assert_eq!(shape.leaf_pages + shape.inner_pages, ctx.live_pages());
    let mut cursor = Cursor::new(tree, Bound::Unbounded, Bound::Unbounded, Direction::Forward);
    for (key, value) in model {
        let entry = cursor.next(ctx).unwrap().unwrap();
        assert_eq!((entry.key, entry.value.bytes), (&key[..], &value[..]));
    }
    assert_eq!(cursor.next(ctx).unwrap(), None);
}

pub(super) fn load(
    ctx: &TestContext,
    tree: Tree,
    model: &Model,
    fill: usize,
) -> Result<u64, NotLoaded> {
    let mut loader = Loader::new(ctx, tree, fill, alone)?;
    for (key, value) in model {
        loader.push(key, ValueRef::inline(value))?;
    }
    loader.finish(&mut |_| {})
}

fn keys() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..12),
        2 => (any::<u16>(), 0..1000usize).prop_map(|(number, len)| {
            let mut key = format!("{number:05}").into_bytes();
            key.resize(5 + len, b'k');
            key
        }),
        1 => any::<u8>().prop_map(|last| [&[200u8; 1023][..], &[last]].concat()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn loaded_equals_inserted(
        before in prop::collection::btree_map(keys(), 0..200usize, 0..60),
        loaded in prop::collection::btree_map(keys(), 0..1000usize, 0..400),
        fill in 50..=100usize,
        evict in 0..50usize,
    ) {
        let ctx = TestContext::new(4096, 1 << 16);
        let tree = ctx.tree();
        let mut model = Model::new();
        for (key, len) in before {
            let value = vec![1; len];
            let _ = tree.insert(&ctx, &key, ValueRef::inline(&value)).unwrap();
            model.insert(key, value);
        }
        let last = model.keys().next_back().cloned();
        let loaded: Model = loaded
            .into_iter()
            .filter(|(key, _)| last.as_ref().is_none_or(|last| key > last))
            .map(|(key, len)| { let len = len.min(1280 - key.len()); (key, vec![2; len]) })
            .collect();
        ctx.evict(evict);
        prop_assert_eq!(load(&ctx, tree, &loaded, fill).unwrap(), loaded.len() as u64);
        model.extend(loaded);
        check(&ctx, tree, &model);
        // Aborted and refused loads leave everything as it was.
        let mut loader = Loader::new(&ctx, tree, fill, alone).unwrap();
        for number in 0..2000u32 {
            let key = [&[255u8; 12][..], &number.to_string().into_bytes(), &[255; 200]].concat();
            let _ = loader.push(&key, ValueRef::inline(b"value"));
        }
        loader.abort(&mut |_| {});
        check(&ctx, tree, &model);
        for key in std::mem::take(&mut model).into_keys() {
            prop_assert!(tree.remove(&ctx, &key).unwrap().existed());
        }
        check(&ctx, tree, &model);
        prop_assert_eq!(ctx.live_pages(), 1);
    }
}

fn numbered(from: u64, to: u64) -> Model {
    (from..to)
        .map(|number| {
            (
                format!("{number:010}").into_bytes(),
                vec![number as u8; 120],
            )
        })
        .collect()
}

#[test]
fn loads_fill_pages() {
    for (fill, least, most) in [(100, 0.96, 1.0), (70, 0.683, 0.717)] {
        let ctx = TestContext::new(8192, 1 << 16);
        let tree = ctx.tree();
        let model = numbered(0, 100_000);
        load(&ctx, tree, &model, fill).unwrap();
        check(&ctx, tree, &model);
        let filled = tree.verify(&ctx, &mut ()).unwrap().leaf_fill();
        assert!((least..=most).contains(&filled), "{fill}: {filled}");
    }
}

#[test]
fn repeated_appends_of_all_sizes() {
    let ctx = TestContext::new(8192, 1 << 16);
    let tree = ctx.tree();
    let (mut model, mut state, mut from) = (Model::new(), 5, 0);
    for size in [1, 1, 10, 20_000, 3, 400, 100, 60_000, 1, 5000] {
        let size = size + next_random(&mut state) % 3;
        let part = numbered(from, from + size);
        load(&ctx, tree, &part, 100).unwrap();
        model.extend(part);
        from += size;
        check(&ctx, tree, &model);
    }
}

#[test]
#[allow(
    clippy::big_endian_bytes,
    reason = "keys in the order of their numbers"
)]
fn leaves_are_as_full_as_they_should_be_on_average() {
    for length in [180, 270, 345, 420, 600, 900] {
        let ctx = TestContext::new(4096, 1 << 16);
        let tree = ctx.tree();
        let records =
            (0..2_000u32).map(|number| (format!("{number:08}").into_bytes(), vec![7; length]));
        load(&ctx, tree, &records.collect(), 94).unwrap();
        let filled = tree.verify(&ctx, &mut ()).unwrap().leaf_fill();
        // One record more or less would not be nearer.
        let nearest = 0.5 * (length + 12) as f64 / 4_032.0;
        assert!(
            (filled - 0.94).abs() <= nearest + 0.01,
            "{length}: {filled}"
        );
    }
}

#[test]
fn input_out_of_order_is_refused() {
    let ctx = TestContext::new(1024, 1 << 12);
    let tree = ctx.tree();
    let mut model = numbered(0, 1000);
    load(&ctx, tree, &model, 100).unwrap();
    let order = |result: Result<(), NotLoaded>| match result {
        Err(NotLoaded::Order { record, .. }) => record,
        other => panic!("{other:?}"),
    };
    let mut loader = Loader::new(&ctx, tree, 100, alone).unwrap();
    let value = ValueRef::inline(b"v");
    assert_eq!(order(loader.push(b"0000000999", value)), 0);
    loader.push(b"0000001000", value).unwrap();
    assert_eq!(order(loader.push(b"0000001000", value)), 1);
    assert_eq!(order(loader.push(b"0000000999x", value)), 1);
    drop(loader);
    check(&ctx, tree, &model);
    // Another task inserts beyond the load's first key before it ends.
    let mut loader = Loader::new(&ctx, tree, 100, alone).unwrap();
    for number in 0..500 {
        loader
            .push(format!("1{number:05}").as_bytes(), value)
            .unwrap();
    }
    let _ = tree.insert(&ctx, b"2", ValueRef::inline(b"")).unwrap();
    assert_eq!(order(loader.finish(&mut |_| {}).map(drop)), 0);
    model.insert(b"2".to_vec(), Vec::new());
    check(&ctx, tree, &model);
}

#[derive(Default)]
struct Census {
    pages: Vec<u64>,
    extents: Vec<Vec<u8>>,
}

impl Visitor for Census {
    fn page(&mut self, id: crate::page::PageId, _: u8) {
        self.pages.push(id.get());
    }
    fn extent(&mut self, descriptor: &[u8]) {
        self.extents.push(descriptor.to_vec());
    }
}

#[test]
fn a_tree_is_freed_in_bounded_steps() {
    let ctx = TestContext::new(8192, 1 << 16);
    let other = ctx.tree();
    let tree = ctx.tree();
    let mut loader = Loader::new(&ctx, tree, 100, alone).unwrap();
    for number in 0..100_000u32 {
        let key = format!("{number:010}");
        let descriptor = number.to_le_bytes();
        let value = if number % 100 == 0 {
            ValueRef::extent(&descriptor)
        } else {
            ValueRef::inline(&[7; 100])
        };
        loader.push(key.as_bytes(), value).unwrap();
    }
    loader.finish(&mut |_| {}).unwrap();
    let mut all = Census::default();
    tree.verify(&ctx, &mut all).unwrap();
    let unique: std::collections::HashSet<_> = all.pages.iter().collect();
    assert_eq!(unique.len(), all.pages.len());
    assert_eq!(all.pages.len() as u64, ctx.live_pages() - 1);
    ctx.evict(500);
    let mut freed = Vec::new();
    let mut steps = 0;
    let mut live = ctx.live_pages();
    while !tree
        .free_some(&ctx, 100, &mut |extent| {
            freed.push(extent.bytes().to_vec());
            Ok(())
        })
        .unwrap()
    {
        steps += 1;
        assert!(live - ctx.live_pages() <= 120 && ctx.live_pages() < live);
        live = ctx.live_pages();
        // The remaining pages are reachable, and with the freed ones are all pages.
        let mut rest = Census::default();
        tree.verify_remains(&ctx, &mut rest).unwrap();
        assert_eq!(rest.pages.len() as u64, live - 1);
        assert_eq!(rest.extents.len() + freed.len(), all.extents.len());
    }
    assert!(steps > 20);
    freed.sort();
    all.extents.sort();
    assert_eq!(freed, all.extents);
    let _ = tree.insert(&ctx, b"again", ValueRef::inline(b"")).unwrap();
    assert!(tree.free_some(&ctx, 1, &mut |_| Ok(())).unwrap());
    tree.free_root(&ctx).unwrap();
    assert_eq!(ctx.live_pages(), 1);
    let gone = tree.get(&ctx, b"x", &mut Vec::new());
    assert!(
        matches!(gone, Err(StorageError::Structure { .. })),
        "{gone:?}"
    );
    other.verify(&ctx, &mut ()).unwrap();
}

#[test]
#[should_panic(expected = "an oversized key")]
fn the_api_refuses_keys_that_are_too_long() {
    let ctx = TestContext::new(64, 1 << 16);
    let tree = ctx.tree();
    let mut loader = Loader::new(&ctx, tree, 100, alone).unwrap();
    // It never answers.
    let _ = loader.push(&[b'1'; 1025], ValueRef::inline(b"v"));
}

/// Nothing else changes the tree.
pub(super) fn alone() -> Result<(), StorageError> {
    Ok(())
}

//! Trees rewritten by merges, trims and compaction.

use std::collections::BTreeMap;
use std::ops::Bound;

use proptest::prelude::*;

use super::loads::{Model, check, load};
use super::{TestContext, next_random};
use crate::btree::{Change, Edits, Rewrite, Stretch, Tree, ValueKind, install_root};
use crate::buffer::Restart;
use crate::context::{ReadContext, WriteContext};
use crate::error::TransactionError;
use crate::page::{Lsn, PageId};

type Changes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

fn free(ctx: &TestContext, pages: &[PageId]) {
    for &id in pages {
        loop {
            let attempt = || -> Result<_, Restart> { ctx.pool().read_untouched(id)?.exclusive() };
            match attempt() {
                Ok(page) => {
                    ctx.end(&page);
                    ctx.free(page, Lsn(0));
                    break;
                }
                Err(why) => ctx.resolve(why).unwrap(),
            }
        }
    }
}

/// Edits the tree, of which `most` pages may be replaced; how many were, and where it stopped.
fn edit(
    ctx: &TestContext,
    tree: Tree,
    mut edits: Edits<'_>,
    (most, stops_at): (usize, usize),
) -> Result<(usize, Option<Vec<u8>>), TransactionError> {
    let mut rewrite = Rewrite::new(ctx, tree, 94, 8, most);
    rewrite.stops_at(stops_at);
    let done = rewrite.run(&mut edits);
    let (built, stopped) = (rewrite.built(), rewrite.stopped());
    drop(rewrite);
    match done {
        Ok(rewritten) => {
            install_root(ctx, &rewritten, ctx.log().stamp(0)).unwrap();
            free(ctx, &rewritten.replaced);
            Ok((rewritten.replaced.len(), stopped))
        }
        Err(error) => {
            free(ctx, &built);
            Err(error)
        }
    }
}

/// Rewrites the tree with `changes`; how many pages were replaced.
fn rewrite(
    ctx: &TestContext,
    tree: Tree,
    changes: &Changes,
    most: usize,
) -> Result<usize, TransactionError> {
    let changes = changes.iter().map(|(key, value)| Change {
        key: key.clone(),
        value: value.clone().map(|value| (ValueKind::Inline, value)),
    });
    let edits = Edits::Change(&mut { changes });
    edit(ctx, tree, edits, (most, usize::MAX)).map(|(replaced, _)| replaced)
}

/// Removes all keys of a stretch unread, or packs their leaves, in steps of about `pages` pages;
/// how many steps that took.
fn in_steps(ctx: &TestContext, tree: Tree, stretch: &Stretch, pages: usize, packs: bool) -> usize {
    let (mut steps, mut start) = (0, Some(stretch.start.clone()));
    while let Some(from) = start {
        let rest = Stretch {
            start: from.clone(),
            end: stretch.end.clone(),
        };
        let edits = match packs {
            true => Edits::Pack(&rest),
            false => Edits::Remove(&rest),
        };
        let edited = edit(ctx, tree, edits, (usize::MAX, pages));
        start = edited.unwrap().1;
        assert!(start.as_ref().is_none_or(|next| *next > from));
        steps += 1;
    }
    steps
}

fn apply(model: &mut Model, changes: &Changes) {
    for (key, value) in changes {
        match value {
            Some(value) => drop(model.insert(key.clone(), value.clone())),
            None => drop(model.remove(key)),
        }
    }
}

/// Keys that share much, and some that are as long as keys can be.
fn keys() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        2 => prop::collection::vec(any::<u8>(), 0..4),
        4 => (any::<u16>(), 0..1000usize).prop_map(|(number, len)| {
            let mut key = format!("{number:05}").into_bytes();
            key.resize(5 + len, b'k');
            key
        }),
        1 => (any::<u8>(), any::<u8>()).prop_map(|(middle, last)| {
            [&[200u8; 700][..], &[middle], &[150; 322], &[last]].concat()
        }),
    ]
}

fn sized(key: &[u8], length: usize, byte: u8) -> Vec<u8> {
    vec![byte; length.min(1000).min(1280 - key.len())]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn rewritten_equals_changed_one_by_one(
        before in prop::collection::btree_map(keys(), 0..1280usize, 0..500),
        is_loaded in any::<bool>(),
        rounds in prop::collection::vec(
            (
                prop::collection::btree_map(keys(), prop::option::of(0..1280usize), 0..60),
                // Of the records that are there: how many are removed or replaced in a row, from
                // where, and how many stay between.
                prop::collection::vec((any::<prop::sample::Index>(), 0..200usize, 1..4usize, any::<bool>()), 0..4),
                // What is removed unread, or packed, and in steps of how many pages.
                prop::option::of((
                    any::<prop::sample::Index>(),
                    any::<prop::sample::Index>(),
                    6..40usize,
                    any::<bool>(),
                )),
            ),
            1..5,
        ),
        evict in 0..50usize,
    ) {
        let ctx = TestContext::new(4096, 1 << 16);
        let tree = ctx.tree();
        let mut model: Model = before
            .into_iter()
            .map(|(key, length)| { let value = sized(&key, length, 1); (key, value) })
            .collect();
        if is_loaded {
            load(&ctx, tree, &model, 100).unwrap();
        } else {
            for (key, value) in &model {
                let _ = tree.insert(&ctx, key, crate::btree::ValueRef::inline(value)).unwrap();
            }
        }
        for (number, (drawn, rows, stepped)) in rounds.into_iter().enumerate() {
            let mut changes: Changes = drawn
                .into_iter()
                .map(|(key, length)| {
                    let value = length.map(|length| sized(&key, length, number as u8 + 2));
                    (key, value)
                })
                .collect();
            let all: Vec<&Vec<u8>> = model.keys().collect();
            for (from, count, step, is_removed) in rows {
                if !all.is_empty() {
                    let row = all[from.index(all.len())..].iter().step_by(step).take(count);
                    changes.extend(row.map(|key| {
                        let value = (!is_removed).then(|| sized(key, 400, number as u8 + 2));
                        ((*key).clone(), value)
                    }));
                }
            }
            ctx.evict(evict);
            let replaced = rewrite(&ctx, tree, &changes, usize::MAX).unwrap();
            apply(&mut model, &changes);
            check(&ctx, tree, &model);
            let all: Vec<&Vec<u8>> = model.keys().collect();
            if let Some((from, to, pages, packs)) = stepped.filter(|_| !all.is_empty()) {
                let (from, to) = (all[from.index(all.len())], all[to.index(all.len())]);
                let bounds = (Bound::Included(&from[..]), Bound::Excluded(&to[..]));
                if let Some(stretch) = Stretch::new(bounds) {
                    let steps = in_steps(&ctx, tree, &stretch, pages, packs);
                    prop_assert!(steps >= 1);
                    model.retain(|key, _| packs || !stretch.covers(key));
                    check(&ctx, tree, &model);
                }
            }
            // A change in place goes on from there.
            if let Some((key, _)) = model.pop_first() {
                prop_assert!(tree.remove(&ctx, &key).unwrap().existed());
            }
            let key = format!("{:05}", replaced % 60_000).into_bytes();
            let _ = tree.insert(&ctx, &key, crate::btree::ValueRef::inline(b"in place")).unwrap();
            model.insert(key, b"in place".to_vec());
            check(&ctx, tree, &model);
        }
    }
}

/// Keys that share more than a leaf without a prefix could have of three of them.
#[test]
fn long_shared_prefixes_come_and_go_with_the_fences() {
    let ctx = TestContext::new(4096, 1 << 16);
    let tree = ctx.tree();
    let name = |n: u32| [&[b'k'; 1000][..], format!("{n:08}").as_bytes()].concat();
    let mut model = Model::new();
    for n in 0..1000 {
        let _ = tree
            .insert(&ctx, &name(n), crate::btree::ValueRef::inline(b"v"))
            .unwrap();
        model.insert(name(n), b"v".to_vec());
    }
    for n in 100..500 {
        assert!(tree.remove(&ctx, &name(n)).unwrap().existed());
        model.remove(&name(n));
    }
    check(&ctx, tree, &model);
    let gone = (0..100).chain(500..600).map(|n| (name(n), None));
    let changes: Changes = gone.collect();
    rewrite(&ctx, tree, &changes, usize::MAX).unwrap();
    apply(&mut model, &changes);
    check(&ctx, tree, &model);
    for n in 600..1000 {
        assert!(tree.remove(&ctx, &name(n)).unwrap().existed());
        model.remove(&name(n));
        check(&ctx, tree, &model);
    }
}

/// Two levels above the leaves, and changes that leave most of that as it is.
#[test]
fn subtrees_without_changes_stay_as_they_are() {
    let ctx = TestContext::new(1 << 15, 1 << 17);
    let tree = ctx.tree();
    let name = |number: u64| {
        // Long separators make inner nodes small.
        let mut key = format!("{number:08}").into_bytes();
        key.resize(500, b'k');
        key.extend_from_slice(format!("{number:08}").as_bytes());
        key
    };
    let mut model: Model = (0..30_000).map(|n| (name(2 * n), vec![1; 300])).collect();
    load(&ctx, tree, &model, 100).unwrap();
    let height = tree.verify(&ctx, &mut ()).unwrap().levels;
    assert!(height >= 3, "{height}");
    let mut state = 9;
    for round in 0..40 {
        let mut changes = Changes::new();
        let from = next_random(&mut state) % 60_000;
        let (count, step) = [(1, 1), (30, 1), (600, 2), (6, 9000), (3000, 20)][round % 5];
        for at in 0..count {
            let key = name((from + at * step) % 60_000);
            let value =
                (!next_random(&mut state).is_multiple_of(3)).then(|| vec![round as u8; 250]);
            changes.insert(key, value);
        }
        let pages = ctx.live_pages();
        // A leaf and the inner node above it are two.
        let refused = rewrite(&ctx, tree, &changes, 1);
        assert!(matches!(
            refused,
            Err(TransactionError::TransactionTooLarge { .. })
        ));
        assert_eq!(ctx.live_pages(), pages);
        let replaced = rewrite(&ctx, tree, &changes, usize::MAX).unwrap();
        // Not more than each change's way from the root to its leaf.
        assert!(
            replaced <= count as usize * height as usize + 2,
            "{replaced}"
        );
        apply(&mut model, &changes);
        if round % 8 == 7 {
            check(&ctx, tree, &model);
        }
    }
    let all: Changes = std::mem::take(&mut model)
        .into_keys()
        .map(|key| (key, None))
        .collect();
    rewrite(&ctx, tree, &all, usize::MAX).unwrap();
    check(&ctx, tree, &Model::new());
    assert_eq!(ctx.live_pages(), 1);
}

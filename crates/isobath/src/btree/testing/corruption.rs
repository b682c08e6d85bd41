//! Pages that verify against their checksum but break the tree's rules: every
//! operation ends, with an error that names the page or with an answer.

use std::ops::Bound;

use super::{TestContext, next_random};
use crate::btree::{Batch, Cursor, Direction, Tree, ValueRef, Visitor};
use crate::context::{InlineContext, ReadContext};
use crate::error::StorageError;
use crate::node::Image;
use crate::page::{PAGE_SIZE, PageId, offset, put_u16, put_u64};

#[derive(Default)]
struct Pages(Vec<(PageId, u8)>);

impl Visitor for Pages {
    fn page(&mut self, id: PageId, level: u8) {
        self.0.push((id, level));
    }
    fn extent(&mut self, _: &[u8]) {}
}

fn key(number: u64) -> Vec<u8> {
    format!("{number:06}").into_bytes()
}

fn filled() -> (TestContext, Tree, Pages) {
    let ctx = TestContext::new(4096, 1 << 14);
    let tree = ctx.tree();
    for number in 0..20_000 {
        let value = [number as u8; 100];
        let _ = tree
            .insert(&ctx, &key(number), ValueRef::inline(&value))
            .unwrap();
    }
    let mut pages = Pages::default();
    let shape = tree.verify(&ctx, &mut pages).unwrap();
    assert_eq!(shape.levels, 3);
    (ctx, tree, pages)
}

fn scan(ctx: &TestContext, tree: Tree, direction: Direction) -> Result<usize, StorageError> {
    let mut cursor = Cursor::new(tree, Bound::Unbounded, Bound::Unbounded, direction);
    let mut count = 0;
    while cursor.next(ctx)?.is_some() {
        count += 1;
        assert!(count < 1_000_000, "the scan runs in a circle");
    }
    Ok(count)
}

/// Runs everything; whatever does not succeed fails with [`StorageError::Structure`].
/// Returns the number of failures.
fn exercise(ctx: &TestContext, tree: Tree) -> usize {
    let (mut value, mut failed) = (Vec::new(), 0);
    let mut note = |result: Result<(), StorageError>| match result {
        Ok(()) => {}
        Err(StorageError::Structure { .. }) => failed += 1,
        Err(other) => panic!("{other}"),
    };
    for number in (0..20_000).step_by(77) {
        note(tree.get(ctx, &key(number), &mut value).map(drop));
    }
    let keys: Vec<_> = (0..20_000).step_by(77).map(key).collect();
    note(tree.get_many(ctx, &keys, &mut Batch::default()));
    note(scan(ctx, tree, Direction::Forward).map(drop));
    note(scan(ctx, tree, Direction::Reverse).map(drop));
    for number in (0..20_000).step_by(77) {
        let value = vec![1; 600];
        note(
            tree.insert(ctx, &key(number), ValueRef::inline(&value))
                .map(drop),
        );
        note(tree.remove(ctx, &key(number + 1)).map(drop));
    }
    failed
}

#[test]
fn named_breaches_are_reported() {
    type Change = fn(&mut Image);
    let breaches: [(&str, u8, Change); 9] = [
        ("kind", 0, |image| image.0[offset::KIND] = 4),
        ("level of a leaf", 0, |image| {
            image.0[offset::LEVEL] = 1;
            image.0[offset::KIND] = 2;
        }),
        ("level of an inner node", 1, |image| {
            image.0[offset::LEVEL] = 2
        }),
        ("tree", 0, |image| image.0[offset::TREE_ID] = 77),
        ("count", 0, |image| put_u16(&mut image.0, 36, 600)),
        ("heap", 1, |image| put_u16(&mut image.0, 38, 5000)),
        ("prefix", 0, |image| put_u16(&mut image.0, 42, 900)),
        ("child 0", 1, |image| set_children(image, 0)),
        ("child that is free", 1, |image| set_children(image, 9_999)),
    ];
    for (name, level, change) in breaches {
        let (ctx, tree, pages) = filled();
        let of_level: Vec<_> = pages.0.iter().filter(|page| page.1 == level).collect();
        let victim = of_level[of_level.len() / 2].0;
        ctx.corrupt(victim, change);
        match tree.verify(&ctx, &mut ()) {
            Err(StorageError::Structure { .. }) => {}
            other => panic!("{name}: {other:?}"),
        }
        assert!(exercise(&ctx, tree) > 0, "{name} went unnoticed");
    }
}

fn set_children(image: &mut Image, id: u64) {
    let count = usize::from(u16::from_le_bytes([image.0[36], image.0[37]]));
    for child in 0..=count {
        put_u64(&mut image.0, 128 + 8 * count + 8 * child, id);
    }
}

#[test]
fn a_cycle_of_pages_ends() {
    let (ctx, tree, pages) = filled();
    let inner = pages.0.iter().filter(|page| page.1 == 1).nth(1).unwrap().0;
    for target in [tree.root, inner] {
        ctx.corrupt(inner, |image| set_children(image, target.get()));
        assert!(tree.verify(&ctx, &mut ()).is_err());
        assert!(exercise(&ctx, tree) > 0);
    }
}

/// A thread that cannot name the corrupt page hands the scan to a worker, which meets the same
/// record: none is left out, none shown twice.
#[test]
fn a_scan_that_is_handed_over_meets_the_malformed_record_again() {
    let (ctx, tree, pages) = filled();
    let leaf = pages.0.iter().filter(|page| page.1 == 0).nth(5).unwrap().0;
    // The tenth slot's record lies beyond the page.
    ctx.corrupt(leaf, |image| put_u16(&mut image.0, 64 + 8 * 10, 4095));
    for direction in [Direction::Forward, Direction::Reverse] {
        let mut cursor = Cursor::new(tree, Bound::Unbounded, Bound::Unbounded, direction);
        let mut shown = Vec::new();
        let inline = InlineContext::new(ctx.pool());
        let mut visit = |entry: crate::btree::cursor::Entry<'_>| {
            shown.push(entry.key.to_vec());
            true
        };
        while cursor.next_records(&inline).unwrap() {
            if cursor.visit_leaf(&inline, &mut visit).is_err() {
                break;
            }
        }
        assert!(cursor.next_records(&ctx).unwrap());
        let again = cursor.visit_leaf(&ctx, &mut visit);
        assert!(
            matches!(again, Err(StorageError::Structure { .. })),
            "{again:?}"
        );
        assert!(cursor.next(&ctx).is_err());
        assert!(shown.len() > 10 && shown.len() < 19_990);
        assert!(match direction {
            Direction::Forward => shown.is_sorted(),
            Direction::Reverse => shown.is_sorted_by(|a, b| a > b),
        });
    }
}

#[test]
fn random_bytes_in_node_headers_and_slots_never_hang_or_panic() {
    let (mut state, mut noticed) = (99, 0);
    for round in 0..60 {
        let (ctx, tree, pages) = filled();
        for _ in 0..4 {
            let random = next_random(&mut state);
            let inner = pages.0.iter().filter(|page| page.1 > 0).count();
            // Inner nodes are few; have them hit as often as leaves.
            let of_level = (random >> 60) % 2;
            let mut candidates = pages
                .0
                .iter()
                .filter(|page| u64::from(page.1.min(1)) == of_level);
            let some = if of_level == 1 {
                inner
            } else {
                pages.0.len() - inner
            };
            let victim = candidates.nth(random as usize % some).unwrap().0;
            ctx.corrupt(victim, |image| {
                let span = if round % 2 == 0 { 64 } else { PAGE_SIZE };
                for _ in 0..6 {
                    let random = next_random(&mut state);
                    let at = 32 + random as usize % (span - 32);
                    image.0[at] = (random >> 32) as u8;
                }
            });
        }
        let found = tree.verify(&ctx, &mut ()).is_err();
        noticed += usize::from(found || exercise(&ctx, tree) > 0);
        if found {
            exercise(&ctx, tree);
        }
    }
    assert!(noticed > 40, "{noticed}");
}

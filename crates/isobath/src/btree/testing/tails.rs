//! Loads into trees whose last keys were removed.

use super::loads::{Model, alone, check, load};
use super::{TestContext, next_random};
use crate::btree::{Loader, NotLoaded, Tree, ValueRef};
use std::sync::atomic::Ordering::Relaxed;

const PREFIXES: [&str; 3] = ["", "k", "a/rather/long/common/prefix/of/keys/"];

fn key(prefix: &str, number: u64) -> Vec<u8> {
    // Some keys are long, so that fences and separators are.
    let mut key = format!("{prefix}{number:08}").into_bytes();
    let length = key.len() + [0, 0, 0, 300][(number.wrapping_mul(0x9e37) >> 3 & 3) as usize];
    key.resize(length, b'x');
    key
}

fn insert(ctx: &TestContext, tree: Tree, model: &mut Model, key: Vec<u8>, length: usize) {
    let value = vec![1; length];
    let _ = tree.insert(ctx, &key, ValueRef::inline(&value)).unwrap();
    model.insert(key, value);
}

/// Removes the records at `from` and above, in some order. Some removals leave their leaves
/// as they are, so that empty ones stay.
fn remove_tail(ctx: &TestContext, tree: Tree, model: &mut Model, from: &[u8], state: &mut u64) {
    let mut keys: Vec<Vec<u8>> = model.split_off(from).into_keys().collect();
    match next_random(state) % 3 {
        0 => {}
        1 => keys.reverse(),
        _ => {
            for at in (1..keys.len()).rev() {
                keys.swap(at, (next_random(state) % (at as u64 + 1)) as usize);
            }
        }
    }
    let merging = next_random(state) % 3;
    for key in keys {
        let merges = merging == 0 || merging == 1 && next_random(state).is_multiple_of(8);
        ctx.has_log_space.store(merges, Relaxed);
        assert!(tree.remove(ctx, &key).unwrap().existed());
    }
    ctx.has_log_space.store(true, Relaxed);
}

#[test]
fn loads_follow_removals_from_the_end() {
    for seed in 1..=24u64 {
        let mut state = seed;
        let ctx = TestContext::new(4096, 1 << 16);
        let tree = ctx.tree();
        let mut model = Model::new();
        let prefix = PREFIXES[(seed % 3) as usize];
        let count = 20 + next_random(&mut state) % 1500;
        for number in 0..count {
            let length = (next_random(&mut state) % 700) as usize;
            insert(&ctx, tree, &mut model, key(prefix, number), length);
        }
        for _ in 0..6 {
            let from = match next_random(&mut state) % 4 {
                0 => 0,
                1 => next_random(&mut state) % count,
                _ => count - 1 - next_random(&mut state) % count.min(120),
            };
            remove_tail(&ctx, tree, &mut model, &key(prefix, from), &mut state);
            check(&ctx, tree, &model);
            ctx.evict((next_random(&mut state) % 60) as usize);
            // A few records, or all that were there and more.
            let several = match next_random(&mut state) % 3 {
                0 => 1 + next_random(&mut state) % 3,
                _ => count - from,
            };
            let loaded: Model = (from..from + several)
                .map(|number| (key(prefix, number), vec![2; (number % 500) as usize]))
                .collect();
            let done = load(&ctx, tree, &loaded, 90).unwrap();
            assert_eq!(done, loaded.len() as u64, "seed {seed}");
            model.extend(loaded);
            check(&ctx, tree, &model);
            // The tree can be used at the seam.
            for number in from.saturating_sub(3)..from + 3 {
                insert(&ctx, tree, &mut model, key(prefix, number), 40);
            }
            check(&ctx, tree, &model);
        }
    }
}

#[test]
fn an_emptied_tree_takes_any_first_key() {
    for merges in [true, false] {
        let ctx = TestContext::new(4096, 1 << 14);
        let tree = ctx.tree();
        let mut model = Model::new();
        for number in 0..3000 {
            insert(&ctx, tree, &mut model, key("k", number), 300);
        }
        ctx.has_log_space.store(merges, Relaxed);
        for key in model.keys() {
            assert!(tree.remove(&ctx, key).unwrap().existed());
        }
        ctx.has_log_space.store(true, Relaxed);
        let loaded = Model::from([(Vec::new(), vec![3; 10]), (b"k".to_vec(), vec![4; 20])]);
        assert_eq!(load(&ctx, tree, &loaded, 90).unwrap(), 2);
        check(&ctx, tree, &loaded);
    }
}

/// Many empty leaves, and the tail lost its keys while the load was built.
#[test]
fn a_tail_that_is_emptied_during_the_load_goes_with_it() {
    let mut state = 7;
    for leaves in [1, 3, 30, 400] {
        let ctx = TestContext::new(4096, 1 << 14);
        let tree = ctx.tree();
        let mut model = Model::new();
        for number in 0..20 {
            insert(&ctx, tree, &mut model, key("a", number), 300);
        }
        let loaded: Model = (0..2000)
            .map(|number| (key("b", number), vec![2; 200]))
            .collect();
        let mut loader = Loader::new(&ctx, tree, 90, alone).unwrap();
        for (key, value) in &loaded {
            loader.push(key, ValueRef::inline(value)).unwrap();
        }
        for number in 0..leaves * 12 {
            insert(&ctx, tree, &mut model, key("c", number), 300);
        }
        remove_tail(&ctx, tree, &mut model, b"c", &mut state);
        assert_eq!(loader.finish(&mut |_| {}).unwrap(), 2000);
        model.extend(loaded);
        check(&ctx, tree, &model);
    }
}

#[test]
fn a_key_above_the_load_is_still_refused() {
    let ctx = TestContext::new(4096, 1 << 14);
    let tree = ctx.tree();
    let mut model = Model::new();
    for number in 0..2000 {
        insert(&ctx, tree, &mut model, key("k", number), 300);
    }
    let last = model.pop_last().unwrap();
    let middle: Vec<Vec<u8>> = model.split_off(&key("k", 900)).into_keys().collect();
    ctx.has_log_space.store(false, Relaxed);
    for key in middle {
        assert!(tree.remove(&ctx, &key).unwrap().existed());
    }
    ctx.has_log_space.store(true, Relaxed);
    model.extend([last]);
    let loaded = Model::from([(key("k", 1000), Vec::new())]);
    let refused = load(&ctx, tree, &loaded, 90);
    assert!(
        matches!(refused, Err(NotLoaded::Order { .. })),
        "{refused:?}"
    );
    check(&ctx, tree, &model);
}

//! The tree under real threads.

use std::time::{Duration, Instant};

use super::{TestContext, next_random};
use crate::btree::{Batch, Tree, ValueRef};
use crate::sync::atomic::AtomicBool;
use crate::sync::atomic::Ordering::Relaxed;

/// Keys of varied lengths; order follows `number`.
fn key_of(number: u64) -> Vec<u8> {
    let mut key = format!("{number:06}").into_bytes();
    key.resize(6 + (number as usize * 7) % 90, b'.');
    key
}

/// A value that only its key can have, of a length that changes with `version`.
fn value_of(number: u64, version: u64) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    value.resize(8 + (version as usize * 37) % 180, number as u8);
    value
}

fn check_value(number: u64, value: &[u8]) {
    assert_eq!(value[..8], number.to_le_bytes());
    assert!(value[8..].iter().all(|&byte| byte == number as u8));
}

fn writer(ctx: &TestContext, tree: &Tree, keys: u64, seed: u64, until: Instant) {
    let mut state = seed;
    // Grows and shrinks in turns, so that pages split and merge.
    let mut turn = 0u64;
    while Instant::now() < until {
        turn += 1;
        for _ in 0..2000 {
            let random = next_random(&mut state);
            let number = (random >> 16) % keys / 2 * 2;
            if (random % 100 < 80) == (turn.is_multiple_of(2)) {
                let value = value_of(number, random >> 32);
                let _ = tree
                    .insert(ctx, &key_of(number), ValueRef::inline(&value))
                    .unwrap();
            } else {
                let _ = tree.remove(ctx, &key_of(number)).unwrap();
            }
        }
    }
}

fn reader(ctx: &TestContext, tree: &Tree, keys: u64, seed: u64, stop: &AtomicBool) -> u64 {
    let (mut state, mut value, mut found) = (seed, Vec::new(), 0);
    let mut batch = Batch::default();
    while !stop.load(Relaxed) {
        let numbers: Vec<u64> = (0..40)
            .map(|_| (next_random(&mut state) >> 16) % keys)
            .collect();
        let many: Vec<Vec<u8>> = numbers.iter().map(|&number| key_of(number)).collect();
        tree.get_many(ctx, &many, &mut batch).unwrap();
        for (index, &number) in numbers.iter().enumerate() {
            match batch.value(index) {
                Some(value) => check_value(number, value.bytes),
                None => assert!(number.is_multiple_of(2), "lost {number} of many"),
            }
        }
        let number = (next_random(&mut state) >> 16) % keys;
        let kind = tree.get(ctx, &key_of(number), &mut value).unwrap();
        if kind.is_some() {
            check_value(number, &value);
            found += 1;
        }
        // Odd keys are never removed.
        assert!(kind.is_some() || number.is_multiple_of(2), "lost {number}");
    }
    found
}

fn stress(frames: u32, keys: u64, evict: usize) {
    let ctx = TestContext::new(frames, 1 << 16);
    let tree = ctx.tree();
    for number in (1..keys).step_by(2) {
        let value = value_of(number, number);
        let _ = tree
            .insert(&ctx, &key_of(number), ValueRef::inline(&value))
            .unwrap();
    }
    let until = Instant::now() + Duration::from_millis(1500);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (1..4)
            .map(|seed| {
                let (ctx, tree) = (&ctx, &tree);
                scope.spawn(move || writer(ctx, tree, keys, seed, until))
            })
            .collect();
        let readers: Vec<_> = (11..13)
            .map(|seed| {
                let (ctx, tree, stop) = (&ctx, &tree, &stop);
                scope.spawn(move || reader(ctx, tree, keys, seed, stop))
            })
            .collect();
        while Instant::now() < until {
            ctx.evict(evict);
            std::thread::sleep(Duration::from_millis(1));
        }
        for writer in writers {
            writer.join().unwrap();
        }
        stop.store(true, Relaxed);
        for reader in readers {
            assert!(reader.join().unwrap() > 0);
        }
    });
    let shape = tree.verify(&ctx, &mut ()).unwrap();
    assert_eq!(shape.leaf_pages + shape.inner_pages, ctx.live_pages());
    // Down to nothing, by several threads at once.
    std::thread::scope(|scope| {
        for part in 0..3 {
            let (ctx, tree) = (&ctx, &tree);
            scope.spawn(move || {
                for number in (part..keys).step_by(3) {
                    let _ = tree.remove(ctx, &key_of(number)).unwrap();
                }
            });
        }
    });
    assert_eq!(tree.verify(&ctx, &mut ()).unwrap().records, 0);
    for number in 0..keys {
        let _ = tree.remove(&ctx, &key_of(number)).unwrap();
    }
    let shape = tree.verify(&ctx, &mut ()).unwrap();
    assert_eq!((shape.levels, ctx.live_pages()), (1, 1), "{shape:?}");
}

#[test]
fn few_keys_many_collisions() {
    stress(4096, 600, 0);
}

#[test]
fn many_keys() {
    stress(8192, 40_000, 0);
}

#[test]
fn many_keys_with_evictions() {
    stress(2048, 20_000, 50);
}

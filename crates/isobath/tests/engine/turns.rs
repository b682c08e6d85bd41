//! A task that finds everything in memory lets the others of its worker run.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use isobath::{Options, Store, TransactionOptions, Tree};

/// More operations than a task may do in a row.
const MANY: u32 = 10_000;

fn filled() -> (Store, Tree) {
    let options = Options::new().pool_bytes(32 << 20).workers(1).log_bytes(0);
    let store = Store::in_memory(&options).unwrap();
    let tree = store.create_tree("t").unwrap();
    for n in 0..MANY {
        tree.insert(format!("{n:06}"), [7; 100]).unwrap();
    }
    (store, tree)
}

/// Begins a task that does `operation` again and again, and one behind it. Whether the second ran
/// before the first ended.
fn lets_others_run(operation: impl Fn(&Store, &Tree, &AtomicBool) + Send + 'static) -> bool {
    let (store, tree) = filled();
    let has_run = Arc::new(AtomicBool::new(false));
    // Both are there before one of them runs.
    let seen = store
        .spawn({
            let (store, has_run) = (store.clone(), Arc::clone(&has_run));
            move || {
                let first = store.spawn({
                    let (store, has_run) = (store.clone(), Arc::clone(&has_run));
                    move || {
                        for _ in 0..MANY {
                            if has_run.load(Ordering::Relaxed) {
                                return true;
                            }
                            operation(&store, &tree, &has_run);
                        }
                        has_run.load(Ordering::Relaxed)
                    }
                });
                let second = store.spawn(move || has_run.store(true, Ordering::Relaxed));
                // Waiting here runs neither: a task that has begun goes on where it is.
                isobath::yield_now();
                let seen = first.join().unwrap();
                second.join().unwrap();
                seen
            }
        })
        .join()
        .unwrap();
    store.close().unwrap();
    seen
}

#[test]
fn lookups_let_others_run() {
    assert!(lets_others_run(|_, tree, _| {
        tree.get("000007").unwrap();
    }));
    assert!(lets_others_run(|_, tree, _| {
        tree.contains("000007").unwrap();
    }));
    assert!(lets_others_run(|_, tree, _| {
        tree.get_each(&["000007", "000008"], |_, _| ()).unwrap();
    }));
}

#[test]
fn changes_let_others_run() {
    assert!(lets_others_run(|_, tree, _| {
        tree.insert("000007", "v").unwrap();
    }));
    assert!(lets_others_run(|store, tree, _| {
        store
            .transact(TransactionOptions::new(), |transaction| {
                transaction.insert(tree, "000007", "v")
            })
            .unwrap();
    }));
}

#[test]
fn one_scan_lets_others_run() {
    assert!(lets_others_run(|_, tree, has_run| {
        let mut records = 0;
        for record in tree.range(..) {
            record.unwrap();
            records += 1;
        }
        assert_eq!(records, MANY);
        assert!(has_run.load(Ordering::Relaxed), "not during one scan");
    }));
    assert!(lets_others_run(|_, tree, has_run| {
        tree.scan(.., |_, _| true).unwrap();
        assert!(has_run.load(Ordering::Relaxed), "not during one scan");
    }));
    assert!(lets_others_run(|store, tree, has_run| {
        let snapshot = store.snapshot().unwrap();
        for record in snapshot.range(tree, ..).unwrap() {
            record.unwrap();
        }
        assert!(has_run.load(Ordering::Relaxed), "not during one scan");
    }));
}

/// Most operations of so many tasks between two of the same one, all of them in memory.
fn max_gap(tasks: usize, operation: impl Fn(&Tree) + Copy + Send + 'static) -> u32 {
    let (store, tree) = filled();
    let most = store.spawn({
        let store = store.clone();
        move || {
            let done = Arc::new(AtomicU32::new(0));
            let begun: Vec<_> = (0..tasks)
                .map(|_| {
                    let (tree, done) = (tree.clone(), Arc::clone(&done));
                    store.spawn(move || {
                        let (mut last, mut most) = (None, 0);
                        for _ in 0..MANY / 50 {
                            let now = done.fetch_add(1, Ordering::Relaxed);
                            most = most.max(last.map_or(0, |last| now - last));
                            last = Some(now);
                            operation(&tree);
                        }
                        most
                    })
                })
                .collect();
            let most = begun.into_iter().map(|task| task.join().unwrap());
            most.max().unwrap()
        }
    });
    let most = most.join().unwrap();
    store.close().unwrap();
    most
}

/// However many tasks are ready, up to 128, each waits for about as many operations of the others.
#[test]
fn the_turns_of_many_tasks_are_short() {
    for tasks in [16, 64] {
        let lookups = max_gap(tasks, |tree| {
            tree.get("000007").unwrap();
        });
        assert!(lookups <= 2_000, "{tasks} tasks: {lookups} lookups");
        let changes = max_gap(tasks, |tree| {
            tree.insert("000007", "v").unwrap();
        });
        assert!(changes <= 400, "{tasks} tasks: {changes} changes");
    }
}

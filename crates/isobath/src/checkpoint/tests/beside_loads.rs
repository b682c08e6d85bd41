//! Checkpoints beside bulk loads and large commits.

use super::*;

/// A load whose pages are built when a checkpoint begins, and are part of their tree before that
/// lists what is provisional: how many of them a crash after the checkpoint loses.
fn lost_beside_a_load() -> usize {
    let (simulation, device) = quiet();
    let tree = simulation.store().create_tree("loaded").unwrap();
    let first = |local: &WorkerState| {
        let engine = &local.engine;
        // Ids in that part of the mapping table which a checkpoint stores first.
        let mapping = &engine.buffer.pool.mapping;
        let low = PageId::FIRST_FREE.0 + 100;
        engine
            .pagestore
            .ids()
            .lock()
            .free_run(mapping, PageId(low), 100);
        let whole = local
            .engine
            .checkpoints
            .checkpoint(&local.worker, engine.log.next())
            .unwrap();
        (0..10 * IDLE_IDS / 504).for_each(|page| engine.buffer.changes.map_pages().mark_page(page));
        whole.is_whole()
    };
    assert!(in_task(&simulation, 0, first).join().unwrap());
    let loaded = in_task(&simulation, 1, move |local| {
        // The checkpoint waits for this before it lists what is provisional.
        let freeing = local.engine.pagestore.begin_freeing();
        let records = (0..40).map(|n| (key(n), [1; 900]));
        tree.bulk_load(records).unwrap();
        drop(freeing);
    });
    let second = |local: &WorkerState| {
        while local.engine.pagestore.provisional().is_empty() {
            local.worker.yield_now();
        }
        local
            .engine
            .checkpoints
            .checkpoint(&local.worker, local.engine.log.next())
            .unwrap()
    };
    assert!(in_task(&simulation, 0, second).join().unwrap().is_whole());
    loaded.join().unwrap();
    misplaced(&simulation, &device).len()
}

#[test]
fn a_checkpoint_beside_a_load_loses_none_of_its_pages() {
    assert_eq!(lost_beside_a_load(), 0);
    Canary::MarkLoadedLate.switch_on();
    assert_ne!(lost_beside_a_load(), 0);
}

/// A merge, of what a large commit has changed, that cannot free a page which it has replaced
/// before a checkpoint is written: how many pages a crash after that brings back.
fn left_by_a_merge() -> usize {
    Small {
        words_per_page: None,
        checkpoint_bytes: None,
        spill_bytes: Some(4 << 10),
        overlay_bytes: None,
    }
    .switch_on();
    // As many as one merge moves in a small volume.
    const RECORDS: u32 = 8;
    let (simulation, device) = quiet();
    let store = simulation.store().clone();
    let tree = store.create_tree("large").unwrap();
    let low = PageId::FIRST_FREE.0 + 100..PageId::FIRST_FREE.0 + 300;
    let ids = low.clone();
    let load = move |local: &WorkerState| {
        let engine = &local.engine;
        let mapping = &engine.buffer.pool.mapping;
        engine
            .pagestore
            .ids()
            .lock()
            .free_run(mapping, PageId(ids.start), 200);
        let records = (0..RECORDS).map(|n| (key(n), [1; 900]));
        tree.bulk_load(records).unwrap();
        let is_used = |id: &u64| mapping.place(PageId(*id)) != PagePlace::Free;
        ids.filter(is_used).map(PageId).collect::<Vec<_>>()
    };
    let old = in_task(&simulation, 0, load).join().unwrap();
    assert!(old.len() > 1, "{} pages", old.len());
    let committed = in_task(&simulation, 1, move |_| {
        let tree = store.tree("large").unwrap();
        let done = store.transact(TransactionOptions::new(), |transaction| {
            (0..RECORDS).try_for_each(|n| transaction.insert(&tree, key(n), [2; 900]))
        });
        done.unwrap();
        assert_eq!(store.stats().large_commits, 1);
    });
    let held = in_task(&simulation, 0, move |local| {
        let engine = &local.engine;
        let yield_while = |condition: &dyn Fn() -> bool| {
            while condition() {
                local.worker.yield_now();
            }
        };
        yield_while(&|| !engine.buffer.pool.overlays.has_runs());
        yield_while(&|| engine.pagestore.provisional().is_empty());
        // The first leaf is read, for one in its place is written.
        let latched = old.first().and_then(|&id| {
            let page = engine.buffer.pool.read_untouched(id).ok()?;
            page.exclusive().ok()
        });
        let latched = latched.expect("a page that is replaced is in memory");
        yield_while(&|| !engine.transactions.tracker.is_ending());
        let whole = local
            .engine
            .checkpoints
            .checkpoint(&local.worker, engine.log.next())
            .unwrap()
            .is_whole();
        assert!(engine.transactions.tracker.is_ending());
        drop(latched);
        whole
    });
    assert!(held.join().unwrap());
    committed.join().unwrap();
    misplaced(&simulation, &device).len()
}

#[test]
fn a_checkpoint_while_a_merge_frees_pages_leaves_none_behind() {
    assert_eq!(left_by_a_merge(), 0);
    Canary::IgnoreEnding.switch_on();
    assert_ne!(left_by_a_merge(), 0);
}

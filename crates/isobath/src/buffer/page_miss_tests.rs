//! Page ids that are out of date: what is read by them, and which readers get an error.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use isobath_io::{FaultDevice, FaultPlan, Volume};

use crate::btree::ValueKind;
use crate::buffer::PagePlace;
use crate::canary::Canary;
use crate::context::TaskContext;
use crate::engine::WorkerState;
use crate::extent::{self, Extent};
use crate::page::PageId;
use crate::{Error, How, Options, Simulation, StorageError, Switches, Tree};

fn simulation(seed: u64) -> Simulation {
    let device = FaultDevice::new(0, FaultPlan::new(seed).latency_us(0..=40));
    let options = Options::new()
        .pool_bytes(4 << 20)
        .segment_bytes(64 << 10)
        .workers(2)
        .tasks_per_worker(16);
    Simulation::new(Volume::from_device(device), &options, seed).unwrap()
}

/// The value of one chunk that is as long as a page.
const LENGTH: usize = 3700;

/// The place of `key`'s value.
fn extent_of(local: &WorkerState, tree: &Tree, key: &[u8]) -> Extent {
    let mut descriptor = Vec::new();
    let found = tree
        .state
        .tree
        .get(&TaskContext { local }, key, &mut descriptor);
    assert_eq!(found.unwrap(), Some(ValueKind::Extent));
    Extent::decode(&descriptor).unwrap()
}

fn chunk_of(tree: &Tree, key: &[u8]) -> PageId {
    tree.run(|local| Ok::<_, Error>(extent_of(local, tree, key).first().0))
        .unwrap()
}

/// Starts, on some worker, to read the chunk as if its id were a page's.
fn read_as_page(tree: &Tree, chunk: PageId) {
    tree.run(|local| {
        assert_eq!(
            local.engine.buffer.start_ahead(&local.worker, &[chunk], 8),
            1
        );
        Ok::<_, Error>(())
    })
    .unwrap();
}

#[test]
fn a_chunk_is_read_and_removed_beside_reads_by_stale_ids() {
    for seed in 0..20 {
        let simulation = simulation(seed);
        let store = simulation.store().clone();
        let tree = store.create_tree("t").unwrap();
        let before = store.stats().allocated_bytes;
        tree.insert(b"k", &[7; LENGTH]).unwrap();
        let chunk = chunk_of(&tree, b"k");
        let reader = {
            let tree = tree.clone();
            simulation.spawn(0, move || {
                for _ in 0..10 {
                    read_as_page(&tree, chunk);
                    tree.run(|local| {
                        let mut bytes = Vec::new();
                        extent::read_all(local, extent_of(local, &tree, b"k"), &mut bytes)?;
                        assert_eq!(bytes, [7; LENGTH]);
                        Ok::<_, Error>(())
                    })
                    .unwrap();
                }
                read_as_page(&tree, chunk);
                assert!(tree.remove(b"k").unwrap());
            })
        };
        let other = {
            let tree = tree.clone();
            simulation.spawn(1, move || {
                for _ in 0..20 {
                    read_as_page(&tree, chunk);
                    tree.run(|local| {
                        local.worker.yield_now();
                        Ok::<_, Error>(())
                    })
                    .unwrap();
                }
            })
        };
        reader.join().unwrap();
        other.join().unwrap();
        assert_eq!(store.stats().allocated_bytes, before, "seed {seed}");
        let report = store.check(&mut |_, _| {}).unwrap();
        assert_eq!(report.problems, Vec::<String>::new(), "seed {seed}");
        drop((tree, store));
        simulation.close().unwrap();
    }
}

#[test]
fn trusting_ids_is_found() {
    let run = std::thread::spawn(|| {
        Canary::TrustPageIds.switch_on();
        a_chunk_is_read_and_removed_beside_reads_by_stale_ids();
    });
    assert!(run.join().is_err());
}

/// Reads a tree from the volume; how often another worker, which is interrupted as the first one
/// is, sees a page being read, and how often unlatched.
fn seen_while_read(seed: u64) -> (usize, usize) {
    let device = FaultDevice::new(0, FaultPlan::new(seed).latency_us(0..=40));
    let volume = || Volume::from_device(Arc::clone(&device) as _);
    let options = Options::new()
        .pool_bytes(4 << 20)
        .segment_bytes(64 << 10)
        .workers(2)
        .tasks_per_worker(16);
    let simulation = Simulation::new(volume(), &options, seed).unwrap();
    let tree = simulation.store().create_tree("t").unwrap();
    let keys = || (0..400_u32).map(u32::to_le_bytes);
    keys().for_each(|key| tree.insert(&key, &[1; 900]).unwrap());
    drop(tree);
    simulation.close().unwrap();
    let (gap, max_steps) = (10, 60);
    Switches::new(How::EveryPass { gap, max_steps }).switch_on();
    let simulation = Simulation::open(volume(), &options, seed + 1).unwrap();
    let tree = simulation.store().tree("t").unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&done);
    let engine = Arc::clone(simulation.engine());
    let watch = simulation.spawn(1, move || {
        let (mut reads, mut unlatched) = (0, 0);
        while !ended.load(Ordering::Relaxed) {
            let ids = PageId::FIRST_FREE.0..engine.pagestore.high_water();
            for id in ids.map(PageId) {
                let PagePlace::Loading(frame) = engine.buffer.pool.mapping.place(id) else {
                    continue;
                };
                reads += 1;
                let latch = engine.buffer.pool.frames.header(frame).latch();
                let open = latch.optimistic();
                let is_loading = engine.buffer.pool.mapping.place(id) == PagePlace::Loading(frame);
                // In one state of the latch, so the frame has held one page.
                let open = open.is_some_and(|version| latch.validate(version));
                unlatched += usize::from(open && is_loading);
            }
            crate::yield_now();
        }
        (reads, unlatched)
    });
    let read = simulation.spawn(0, move || {
        keys().for_each(|key| assert!(tree.get(&key).unwrap().is_some()));
    });
    read.join().unwrap();
    done.store(true, Ordering::Relaxed);
    let seen = watch.join().unwrap();
    simulation.close().unwrap();
    seen
}

#[test]
fn a_page_is_latched_until_its_word_says_that_it_is_there() {
    let seeds = 1..=10;
    let seen: Vec<_> = seeds.clone().map(seen_while_read).collect();
    assert!(seen.iter().any(|(reads, _)| *reads > 0));
    assert!(
        seen.iter().all(|(_, unlatched)| *unlatched == 0),
        "{seen:?}"
    );
    Canary::UnlatchEarly.switch_on();
    assert!(seeds.clone().any(|seed| seen_while_read(seed).1 > 0));
}

/// A reader gets an error only if it meets the same copy again after it has looked up what names
/// it.
#[test]
fn what_is_no_page_is_corruption_at_the_second_look() {
    let simulation = simulation(1);
    let tree = simulation.store().create_tree("t").unwrap();
    for length in [LENGTH, 3 * LENGTH] {
        tree.insert(b"k", &vec![7; length]).unwrap();
        let chunk = chunk_of(&tree, b"k");
        tree.run(|local| {
            assert!(local.load_page(chunk).is_ok());
            let again = local.load_page(chunk);
            assert!(
                matches!(again, Err(StorageError::CorruptPage { page, .. }) if page == chunk.get()),
                "{again:?}"
            );
            // From the beginning.
            assert!(local.load_page(chunk).is_ok());
            Ok::<_, Error>(())
        })
        .unwrap();
        // The id belongs to another value by now: nothing says that this copy is wrong.
        tree.insert(b"k", &vec![8; length]).unwrap();
        let chunk = chunk_of(&tree, b"k");
        tree.run(|local| {
            assert!(local.load_page(chunk).is_ok());
            Ok::<_, Error>(())
        })
        .unwrap();
    }
    drop(tree);
    simulation.close().unwrap();
}

//! Where the log may begin is found by the dirty frames, in their order, and not by a look at all frames.

use std::sync::Arc;

use isobath_io::{FaultDevice, FaultPlan, Volume};

use super::WorkerState;
use crate::buffer::headers_looked_at;
use crate::canary::Canary;
use crate::page::Lsn;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::{Durability, How, Options, Simulation, Switches, TaskHandle};

fn simulation(pool_bytes: u64, seed: u64) -> Simulation {
    let options = Options::new()
        .pool_bytes(pool_bytes)
        .segment_bytes(64 << 10)
        .log_bytes(4 << 20)
        .workers(2)
        .durability(Durability::None);
    let device = FaultDevice::new(0, FaultPlan::new(seed).latency_us(0..=200));
    Simulation::new(Volume::from_device(device), &options, seed).unwrap()
}

fn in_task<T: Send + 'static>(
    simulation: &Simulation,
    worker: usize,
    work: impl FnOnce(&WorkerState) -> T + Send + 'static,
) -> TaskHandle<T> {
    let engine = Arc::clone(simulation.engine());
    simulation.spawn(worker, move || {
        WorkerState::with_current(&engine, |local| work(local.expect("in a task")))
    })
}

fn key(number: u32) -> [u8; 4] {
    number.swap_bytes().to_le_bytes()
}

fn write_all(local: &WorkerState) {
    local.flush_older_than(local.engine.log.next()).unwrap();
}

#[test]
fn a_checkpoint_looks_at_dirty_frames_only() {
    const CLEAN: u32 = 8_000;
    const DIRTY: u32 = 5;
    let simulation = simulation(64 << 20, 1);
    let tree = simulation.store().create_tree("t").unwrap();
    // Four in a page at most.
    (0..CLEAN).for_each(|n| tree.insert(&key(n), &[1; 900]).unwrap());
    in_task(&simulation, 0, write_all).join().unwrap();
    let beside = tree.clone();
    let looks = in_task(&simulation, 0, move |local| {
        let engine = &local.engine;
        assert!(engine.pool.frames.used() > CLEAN / 4);
        assert_eq!(engine.pool.dirty_table.oldest(), None);
        let before = engine.log.next();
        (0..DIRTY).for_each(|n| beside.insert(&key(n * 1_000), &[2; 900]).unwrap());
        let looked = headers_looked_at();
        let dirty = engine.pool.dirty_table.count_older(engine.log.next());
        assert_eq!(dirty, DIRTY as usize);
        let oldest = engine.oldest_unflushed(engine.log.contiguous_lsn());
        assert!(oldest >= before && oldest < engine.log.next());
        local.wait_for_ended_pages().unwrap();
        assert_eq!(headers_looked_at(), looked);
        assert_eq!(oldest, engine.oldest_change_by_scan());
        let looked = headers_looked_at();
        // All that is done until these pages are written.
        write_all(local);
        assert_eq!(engine.pool.dirty_table.oldest(), None);
        headers_looked_at() - looked
    });
    let looks = looks.join().unwrap();
    assert!(looks < u64::from(CLEAN / 20), "{looks}");
    simulation.close().unwrap();
}

#[test]
fn a_page_that_is_written_and_changed_again_holds_the_log_from_its_newer_change_on() {
    let simulation = simulation(4 << 20, 1);
    let tree = simulation.store().create_tree("t").unwrap();
    let work = in_task(&simulation, 0, move |local| {
        let engine = &local.engine;
        write_all(local);
        let mut last = Lsn(0);
        for round in 0..10 {
            let before = engine.log.next();
            tree.insert(b"key", &[round; 100]).unwrap();
            tree.insert(b"key", &[round; 200]).unwrap();
            let oldest = engine.pool.dirty_table.oldest().unwrap();
            assert!(oldest >= before && oldest > last);
            assert_eq!(oldest, engine.oldest_change_by_scan());
            assert!(engine.recovery_start() <= oldest);
            write_all(local);
            assert_eq!(engine.pool.dirty_table.oldest(), None);
            last = oldest;
        }
    });
    work.join().unwrap();
    simulation.close().unwrap();
}

/// Changes pages beside writers; how often another worker, which is interrupted everywhere as the first one is, finds a place for
/// the log's start that is behind the change of a dirty frame.
fn missed_changes(seed: u64) -> usize {
    let (gap, max_steps) = (30, 100);
    Switches::new(How::EveryPass { gap, max_steps }).switch_on();
    let simulation = simulation(1200 << 10, seed);
    let tree = simulation.store().create_tree("t").unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&done);
    let watch = in_task(&simulation, 1, move |local| {
        let engine = &local.engine;
        let mut missed = 0;
        while !ended.load(Ordering::Relaxed) {
            let start = engine.recovery_start();
            missed += usize::from(start > engine.oldest_change_by_scan());
            local.worker.yield_now();
        }
        missed
    });
    let change = move |local: &WorkerState| {
        for round in 0..60 {
            (0..5).for_each(|n| tree.insert(&key(round * 7 + n * 50), &[1; 900]).unwrap());
            // Until nothing else holds the log.
            write_all(local);
        }
    };
    in_task(&simulation, 0, change).join().unwrap();
    done.store(true, Ordering::Relaxed);
    let missed = watch.join().unwrap();
    simulation.close().unwrap();
    missed
}

#[test]
fn no_log_begins_behind_a_change_that_is_in_no_copy() {
    let seeds = 1..=10;
    assert!(seeds.clone().all(|seed| missed_changes(seed) == 0));
    Canary::LeaveTableEarly.switch_on();
    assert!(seeds.clone().any(|seed| missed_changes(seed) > 0));
}

//! A log that is full: whatever filled it, a checkpoint makes space in it.

use std::sync::Arc;
use std::task::Waker;

use isobath_io::Volume;

use crate::canary::Canary;
use crate::engine::{Engine, WorkerState};
use crate::log::{ReservationClass, ReservationRequest};
use crate::page::Lsn;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::{Durability, Options, Simulation, Stuck, TaskHandle};

const LOG_BYTES: u64 = 4 << 20;
const FILLERS: usize = 4;
/// Steps after which a simulation counts as stuck; what is tested takes a hundredth.
const STEPS: u64 = 10_000_000;

fn simulation() -> Simulation {
    let options = Options::new()
        .pool_bytes(2 << 20)
        .segment_bytes(64 << 10)
        .log_bytes(LOG_BYTES)
        .workers(2)
        .durability(Durability::None);
    let simulation = Simulation::new(Volume::in_memory(0, None), &options, 1).unwrap();
    drop(simulation.store().create_tree("t").unwrap());
    simulation
}

fn in_task<T: Send + 'static>(
    engine: &Arc<Engine>,
    simulation: &Simulation,
    work: impl FnOnce(&WorkerState) -> T + Send + 'static,
) -> TaskHandle<T> {
    let engine = Arc::clone(engine);
    simulation.spawn(0, move || {
        WorkerState::with_current(&engine, |local| work(local.expect("in a task")))
    })
}

/// Bytes of the log that a recovery would read.
fn used(engine: &Engine) -> u64 {
    engine.log.next().0 - engine.log.start().0
}

/// A mapping record of no page, made durable: with its padding it takes a whole block.
fn fill_one_block(local: &WorkerState) {
    let space = local
        .engine
        .pagestore
        .mapping_reservation(&local.worker, 1)
        .unwrap();
    let record = local.engine.buffer.log_copies(&local.worker, 0, &[]);
    drop(space);
    local
        .engine
        .log_tasks
        .wait_durable(&local.worker, record)
        .unwrap();
}

/// Tasks that log such records until the log has been filled four times; how many of them have ended.
fn start_filling(engine: &Arc<Engine>, simulation: &Simulation) -> Arc<AtomicUsize> {
    let ended = Arc::new(AtomicUsize::new(0));
    for _ in 0..FILLERS {
        let ended = Arc::clone(&ended);
        let to = engine.log.next().0 + 4 * LOG_BYTES;
        drop(in_task(engine, simulation, move |local| {
            while local.engine.log.next().0 < to {
                fill_one_block(local);
            }
            ended.fetch_add(1, Ordering::SeqCst);
        }));
    }
    ended
}

/// Dirty pages, fewer than are written unasked.
fn change_some_pages(simulation: &Simulation) {
    let tree = simulation.store().tree("t").unwrap();
    for key in 0..100_u32 {
        tree.insert(key.to_le_bytes(), [7; 200]).unwrap();
    }
}

/// A log that was filled while it was held, with the oldest changes at its very start; what came of it once it was let go.
fn filled_while_held() -> Result<u64, Stuck> {
    let mut simulation = simulation();
    let engine = Arc::clone(simulation.engine());
    let now = |local: &WorkerState| {
        local
            .engine
            .checkpoints
            .checkpoint(&local.worker, local.engine.log.next())
            .unwrap()
    };
    in_task(&engine, &simulation, now).join().unwrap();
    let start = engine.log.start();
    engine.log_tasks.hold(start);
    change_some_pages(&simulation);
    let ended = start_filling(&engine, &simulation);
    let full = || engine.log.has_reservation_waiters();
    simulation.run_until(full, STEPS)?;
    assert!(used(&engine) > LOG_BYTES / 2 && engine.log.start() == start);
    engine.log_tasks.release();
    simulation.run_until(|| ended.load(Ordering::SeqCst) == FILLERS, STEPS)
}

/// A log that was filled while no checkpoint could be written, the older half of it with nothing that any page lacks.
fn filled_without_checkpoints() -> Result<u64, Stuck> {
    let mut simulation = simulation();
    let engine = Arc::clone(simulation.engine());
    let current = engine.checkpoints.take();
    let half = |local: &WorkerState| {
        while used(&local.engine) < LOG_BYTES * 4 / 10 {
            fill_one_block(local);
        }
    };
    let write_all = |local: &WorkerState| {
        local
            .engine
            .buffer
            .flush_older_than(&local.worker, Lsn(u64::MAX))
            .unwrap()
    };
    in_task(&engine, &simulation, write_all).join().unwrap();
    in_task(&engine, &simulation, half).join().unwrap();
    change_some_pages(&simulation);
    let ended = start_filling(&engine, &simulation);
    simulation.run_until(|| engine.log.has_reservation_waiters(), STEPS)?;
    current
        .into_iter()
        .for_each(|current| engine.checkpoints.give_back(current));
    simulation.run_until(|| ended.load(Ordering::SeqCst) == FILLERS, STEPS)
}

/// A log that was filled while no checkpoint could be written, with the oldest changes at its very start.
fn filled_behind_dirty_pages() -> Result<u64, Stuck> {
    let mut simulation = simulation();
    let engine = Arc::clone(simulation.engine());
    let now = |local: &WorkerState| {
        local
            .engine
            .checkpoints
            .checkpoint(&local.worker, local.engine.log.next())
            .unwrap()
    };
    in_task(&engine, &simulation, now).join().unwrap();
    let current = engine.checkpoints.take();
    change_some_pages(&simulation);
    let ended = start_filling(&engine, &simulation);
    simulation.run_until(|| engine.log.has_reservation_waiters(), STEPS)?;
    current
        .into_iter()
        .for_each(|current| engine.checkpoints.give_back(current));
    simulation.run_until(|| ended.load(Ordering::SeqCst) == FILLERS, STEPS)
}

#[test]
fn pages_that_a_checkpoint_waits_for_get_the_last_space() {
    filled_behind_dirty_pages().unwrap();
    Canary::KeepLastSpace.switch_on();
    filled_behind_dirty_pages().expect_err("the pages got no space");
}

#[test]
fn a_log_that_was_filled_while_it_was_held_is_freed() {
    filled_while_held().unwrap();
    Canary::KeepLastSpace.switch_on();
    filled_while_held().expect_err("the pages got no space");
}

#[test]
fn a_checkpoint_frees_a_full_log_without_the_pages_that_wait_for_it() {
    filled_without_checkpoints().unwrap();
    Canary::CheckpointWaitsForItself.switch_on();
    filled_without_checkpoints().expect_err("the checkpoint waited for itself");
}

/// Records of which some 17 lie in a leaf.
const RECORDS: u32 = 28_000;
const VALUE: [u8; 200] = [7; 200];

/// Pages that a checkpoint waits for, in a volume without a spare segment, beside a log that is too
/// full for cleaning that gains little; what came of the checkpoint.
fn written_without_cleaning() -> Result<u64, Stuck> {
    let options = Options::new()
        .pool_bytes(16 << 20)
        .segment_bytes(64 << 10)
        .log_bytes(LOG_BYTES)
        .fill_factor(0.9)
        .workers(1)
        .durability(Durability::None);
    let mut simulation = Simulation::new(Volume::in_memory(0, None), &options, 1).unwrap();
    let engine = Arc::clone(simulation.engine());
    let tree = simulation.store().create_tree("t").unwrap();
    let change = |first: usize, step: usize| {
        for n in (first as u32..RECORDS).step_by(step) {
            tree.insert(n.swap_bytes().to_le_bytes(), VALUE).unwrap();
        }
    };
    tree.load((0..RECORDS).map(|n| (n.swap_bytes().to_le_bytes(), VALUE)))
        .unwrap();
    let write_all = |local: &WorkerState| {
        let (buffer, log) = (&local.engine.buffer, &local.engine.log);
        buffer
            .flush_older_than(&local.worker, Lsn(u64::MAX))
            .unwrap();
        local
            .engine
            .checkpoints
            .checkpoint(&local.worker, log.next())
            .unwrap()
    };
    // About one page of each segment is obsolete.
    change(0, 255);
    in_task(&engine, &simulation, write_all).join().unwrap();
    let current = engine.checkpoints.take();
    change(100, 140);
    let changed = engine.log.next();
    let nearly_full = |local: &WorkerState| {
        while used(&local.engine) < LOG_BYTES * 90 / 100 {
            fill_one_block(local);
        }
    };
    in_task(&engine, &simulation, nearly_full).join().unwrap();
    let mut space = engine.pagestore.space().lock();
    while space.spare_segments() > 0 {
        space.take_system().unwrap();
    }
    drop(space);
    current
        .into_iter()
        .for_each(|current| engine.checkpoints.give_back(current));
    simulation.run_until(|| engine.log.start() >= changed, STEPS)
}

#[test]
fn pages_that_a_checkpoint_waits_for_get_a_part_of_the_reserve() {
    written_without_cleaning().unwrap();
    Canary::KeepReserve.switch_on();
    written_without_cleaning().expect_err("the pages waited for cleaning");
}

/// A recovery that frees nothing of a log that is full: tasks that wait for log space get an error instead of waiting without end.
#[test]
fn a_recovery_that_stands_still_says_so() {
    let mut simulation = simulation();
    let engine = Arc::clone(simulation.engine());
    engine.shared.recover_again();
    engine.log_tasks.hold(engine.log.start());
    let filler = in_task(&engine, &simulation, |local| {
        loop {
            let space = local.engine.pagestore.mapping_reservation(&local.worker, 1);
            if space.is_err() {
                return space.err();
            }
            let _ = local.engine.buffer.log_copies(&local.worker, 0, &[]);
        }
    });
    let is_told = || engine.shared.is_poisoned();
    simulation.run_until(is_told, STEPS).unwrap();
    let told = format!("{:?}", filler.join().unwrap());
    assert!(told.contains("nothing moves any more"), "{told}");
    assert!(used(&engine) > LOG_BYTES / 2);
    assert!(simulation.close().is_err());
}

/// A commit in flight holds the area, and mapping records find no space in it; whether the commit's structure modification may go
/// on, by which it ends.
fn structure_beside_a_full_area() -> bool {
    let mut simulation = simulation();
    let engine = Arc::clone(simulation.engine());
    let log = &engine.log;
    // Nothing frees the log.
    let current = engine.checkpoints.take();
    let commit = ReservationRequest::records(1_000, ReservationClass::Commit);
    let commit = log
        .try_reserve(commit.with_splits(log.split_limit_now()))
        .unwrap();
    let ended = start_filling(&engine, &simulation);
    simulation
        .run_until(|| log.has_reservation_waiters(), STEPS)
        .unwrap();
    assert!(log.area_is_short_for_system());
    let structure = ReservationRequest::structure();
    let structure = log.queue_for_reservation(structure, Waker::noop().clone());
    let goes_on = log.granted(&structure).is_some();
    log.leave_queue(&structure);
    drop(commit);
    current
        .into_iter()
        .for_each(|current| engine.checkpoints.give_back(current));
    let filled = || ended.load(Ordering::SeqCst) == FILLERS;
    simulation.run_until(filled, STEPS).unwrap();
    goes_on
}

#[test]
fn structure_modifications_pass_what_lacks_the_area() {
    assert!(structure_beside_a_full_area());
    Canary::HoldStructuresUp.switch_on();
    assert!(!structure_beside_a_full_area());
}

/// What a commit has logged of its splits is counted once.
#[test]
fn a_commit_releases_what_its_splits_have_logged() {
    let simulation = simulation();
    let log = &simulation.engine().log;
    let request = ReservationRequest::records(1_000, ReservationClass::Commit);
    // So many small commits find space.
    let most = || {
        let small = ReservationRequest::records(0, ReservationClass::Commit);
        let all: Vec<_> = std::iter::from_fn(|| log.try_reserve(small)).collect();
        all.len()
    };
    let before = most();
    let mut commit = log.try_reserve(request.with_splits(100)).unwrap();
    let beside = most();
    assert!(beside < before / 2 + before / 4, "{beside} of {before}");
    commit.release_splits(50);
    assert!(most() > beside);
    commit.release_splits(0);
    assert!(most() + 3 > before);
}

//! Checkpoints with concurrent work: a crash leaves the store as it was.

use std::sync::Arc;

use isobath_flash::rng::Rng;
use isobath_io::{
    Fault, FaultDevice, FaultPlan, FaultRule, IoErrorKind, Op, Survivors, Trigger, Volume,
};

use crate::buffer::PagePlace;
use crate::canary::{self, Canary};
use crate::engine::{Engine, WorkerState};
use crate::extent::{self, ExtentWriter};
use crate::log::record::{Copied, Mapped};
use crate::page::{Lsn, PageId};
use crate::recovery::{open, read_superblock};
use crate::shared::Address;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::{
    Durability, Error, How, Options, Simulation, Small, Store, Switches, TransactionOptions,
};

mod beside_loads;
mod oldest_changes;

/// Ids that no page has, so that the mapping table takes some writes.
const IDLE_IDS: u64 = 504 * 40;
const VOLUME_BYTES: u64 = 24 << 20;

fn options() -> Options {
    Options::new()
        .pool_bytes(1200 << 10)
        .segment_bytes(64 << 10)
        .volume_limit_bytes(Some(VOLUME_BYTES))
        .log_bytes(4 << 20)
        .workers(2)
        .durability(Durability::None)
}

fn key(number: u32) -> [u8; 4] {
    number.swap_bytes().to_le_bytes()
}

/// Random changes by one task: values of all sizes come and go, and trees.
fn change(store: &Store, seed: u64, count: u32) {
    let mut rng = Rng::new(seed);
    let tree = store.open_or_create_tree("t").unwrap();
    for number in 0..count {
        let at = key(rng.below(3_000));
        match rng.below(16) {
            0..3 => drop(tree.remove(&at).unwrap()),
            3..9 => {
                let length = 1_500 + rng.below(9_000) as usize;
                tree.insert(&at, &vec![number as u8; length]).unwrap();
            }
            9 if rng.below(8) == 0 => {
                let name = format!("{seed}");
                let short = store.open_or_create_tree(&name).unwrap();
                short.insert(&at, &[1; 100]).unwrap();
                store.drop_tree(&name).unwrap();
            }
            _ => drop(tree.insert(&at, &vec![2; rng.below(900) as usize])),
        }
    }
}

fn checkpoint(engine: &Engine) {
    WorkerState::with_current(engine, |local| {
        let local = local.expect("in a task");
        (0..rng_steps(engine)).for_each(|_| local.worker.yield_now());
        // Most of the mapping table has changed.
        (0..IDLE_IDS / 504).for_each(|page| engine.buffer.changes.map_pages().mark_page(page));
        local
            .engine
            .checkpoints
            .checkpoint(&local.worker, engine.log.next())
            .unwrap();
    });
}

/// A number that differs from round to round.
fn rng_steps(engine: &Engine) -> u64 {
    Rng::new(engine.log.next().0).bits() % 600
}

/// Pages whose place after a crash now would not be what it is.
fn misplaced(
    simulation: &Simulation,
    device: &Arc<FaultDevice>,
) -> Vec<(u64, PagePlace, PagePlace)> {
    let engine = Arc::clone(simulation.engine());
    // Writers and cleaners may have gone on until the worker has stopped.
    while !engine.log.is_durable(engine.log.newest_record()) {
        let inside = Arc::clone(&engine);
        let flush = move || {
            WorkerState::with_current(&inside, |local| {
                let newest = inside.log.newest_record();
                let worker = &local.expect("in a task").worker;
                inside.log_tasks.wait_durable(worker, newest).unwrap();
            });
        };
        simulation.spawn(0, flush).join().unwrap();
    }
    let crashed = opened_after_crash(device);
    let count = engine.pagestore.high_water();
    let count = count.max(crashed.pagestore.high_water());
    let places = (PageId::FIRST_FREE.0..count).map(|id| {
        let is = PagePlace::from_word(engine.buffer.stored_word(PageId(id)));
        (id, is, crashed.buffer.pool.mapping.place(PageId(id)))
    });
    // The newest state of a page that is being loaded is in the log.
    let differ =
        places.filter(|(_, is, then)| is != then && !matches!(then, PagePlace::Loading(_)));
    differ.collect()
}

/// The store as it is opened after a crash now.
fn opened_after_crash(device: &Arc<FaultDevice>) -> Arc<Engine> {
    let image = Volume::from_device(device.crash_image(Survivors::Executed, 0));
    let superblock = read_superblock(&image, &[]).unwrap();
    let mut config = options().config().unwrap();
    config.sizes = superblock.sizes;
    let (frames, policy) = (options().frames(), options().policy().unwrap());
    Engine::new(open(image, superblock, &[], config, frames, policy).unwrap()).0
}

/// Pages that a crash would have misplaced after some round of a run.
fn run(seed: u64) -> Vec<(u64, PagePlace, PagePlace)> {
    let plan = FaultPlan::new(seed).latency_us(0..=200);
    let device = FaultDevice::new(0, plan.max_bytes(Some(VOLUME_BYTES)));
    let volume = Volume::from_device(Arc::clone(&device) as _);
    let simulation = Simulation::new(volume, &options(), seed).unwrap();
    let engine = Arc::clone(simulation.engine());
    let _ = (engine
        .pagestore
        .ids()
        .lock()
        .allocate_run(&engine.buffer.pool.mapping, IDLE_IDS),);
    let mut found = Vec::new();
    for round in 0..12 {
        let tasks: Vec<_> = (0..6)
            .map(|task| {
                let store = simulation.store().clone();
                let seed = seed << 16 | round << 8 | task as u64;
                simulation.spawn(task, move || change(&store, seed, 40))
            })
            .collect();
        let inside = Arc::clone(&engine);
        let checkpoints = simulation.spawn(0, move || checkpoint(&inside));
        checkpoints.join().unwrap();
        tasks.into_iter().for_each(|task| task.join().unwrap());
        found = misplaced(&simulation, &device);
        if !found.is_empty() {
            break;
        }
    }
    simulation.close().unwrap();
    found
}

/// A store, with as many ids that no page has as make a checkpoint take a while.
fn quiet() -> (Simulation, Arc<FaultDevice>) {
    let device = FaultDevice::new(0, FaultPlan::new(1).latency_us(0..=200));
    let volume = Volume::from_device(Arc::clone(&device) as _);
    let simulation = Simulation::new(volume, &options(), 1).unwrap();
    // Its pages are in the first page of the mapping table.
    let _ = simulation.store().create_tree("t").unwrap();
    let engine = simulation.engine();
    let mapping = &engine.buffer.pool.mapping;
    let _ = engine
        .pagestore
        .ids()
        .lock()
        .allocate_run(mapping, 10 * IDLE_IDS);
    (0..10 * IDLE_IDS / 504).for_each(|page| engine.buffer.changes.map_pages().mark_page(page));
    (simulation, device)
}

fn in_task<T: Send + 'static>(
    simulation: &Simulation,
    worker: usize,
    work: impl FnOnce(&WorkerState) -> T + Send + 'static,
) -> crate::TaskHandle<T> {
    let engine = Arc::clone(simulation.engine());
    simulation.spawn(worker, move || {
        WorkerState::with_current(&engine, |local| work(local.expect("in a task")))
    })
}

/// A value that is written while a checkpoint is: how many pages the next one has lost.
fn lost_beside_a_checkpoint() -> usize {
    let (simulation, device) = quiet();
    let tree = simulation.store().tree("t").unwrap();
    let inserted = in_task(&simulation, 1, move |local| {
        let changes = local.engine.buffer.changes.map_pages();
        while changes.is_marked(0) {
            local.worker.yield_now();
        }
        tree.insert(b"key", &[1; 5_000]).unwrap();
        changes.is_marked(10 * IDLE_IDS / 504)
    });
    let now = |local: &WorkerState| {
        local
            .engine
            .checkpoints
            .checkpoint(&local.worker, local.engine.log.next())
            .unwrap()
            .is_whole()
    };
    assert!(in_task(&simulation, 0, now).join().unwrap());
    assert!(inserted.join().unwrap(), "the last page came too early");
    assert!(in_task(&simulation, 0, now).join().unwrap());
    misplaced(&simulation, &device).len()
}

#[test]
fn a_page_that_is_written_beside_a_checkpoint_is_stored() {
    assert_eq!(lost_beside_a_checkpoint(), 0);
    Canary::ForgetNewPages.switch_on();
    assert_ne!(lost_beside_a_checkpoint(), 0);
}

/// A value whose chunk's record is complete when a checkpoint begins.
fn lost_between_record_and_mark() -> usize {
    let (simulation, device) = quiet();
    let tree = simulation.store().create_tree("late").unwrap();
    let first = |local: &WorkerState| {
        local
            .engine
            .checkpoints
            .checkpoint(&local.worker, local.engine.log.next())
            .unwrap()
            .is_whole()
    };
    assert!(in_task(&simulation, 0, first).join().unwrap());
    let inserted = in_task(&simulation, 1, move |_| tree.insert(b"key", &[1; 5_000]));
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
    inserted.join().unwrap().unwrap();
    misplaced(&simulation, &device).len()
}

#[test]
fn a_record_that_is_complete_has_marked_its_words() {
    assert_eq!(lost_between_record_and_mark(), 0);
    Canary::MarkLate.switch_on();
    assert_ne!(lost_between_record_and_mark(), 0);
}

/// A value that is freed, and a checkpoint that begins when the record of that is complete.
fn risen_between_record_and_mark() -> usize {
    let (simulation, device) = quiet();
    let built = in_task(&simulation, 1, |local| {
        let mut writer = ExtentWriter::new();
        writer.write(local, &[1; 5_000]).unwrap();
        let value = writer.finish(local).unwrap();
        let _ = local
            .engine
            .pagestore
            .log_free(&local.worker, &[value.token()], &[]);
        let whole = local
            .engine
            .checkpoints
            .checkpoint(&local.worker, local.engine.log.next())
            .unwrap();
        assert!(whole.is_whole());
        value
    });
    let value = built.join().unwrap();
    let before = simulation.engine().log.next();
    let freed = in_task(&simulation, 1, move |local| {
        extent::free_descriptor(local, &value.encode()).unwrap();
    });
    let second = move |local: &WorkerState| {
        let engine = &local.engine;
        let place = || engine.buffer.pool.mapping.place(value.first().0);
        while place() != PagePlace::Free || engine.log.next() == before {
            local.worker.yield_now();
        }
        local
            .engine
            .checkpoints
            .checkpoint(&local.worker, engine.log.next())
            .unwrap()
            .is_whole()
    };
    assert!(in_task(&simulation, 0, second).join().unwrap());
    freed.join().unwrap();
    misplaced(&simulation, &device).len()
}

#[test]
fn a_free_that_is_complete_has_marked_its_words() {
    assert_eq!(risen_between_record_and_mark(), 0);
    Canary::MarkLate.switch_on();
    assert_ne!(risen_between_record_and_mark(), 0);
}

/// A mapping record that no log may begin behind without the frees before it, and a backup that
/// holds the log between the two.
#[test]
fn what_holds_the_log_cuts_no_late_record_off() {
    let (simulation, _) = quiet();
    let tree = simulation.store().tree("t").unwrap();
    let work = in_task(&simulation, 0, move |local| {
        let engine = &local.engine;
        let since = engine.log.next();
        tree.insert(b"a", &[1; 100]).unwrap();
        let floor = engine.log.next();
        tree.insert(b"b", &[1; 100]).unwrap();
        let record = engine.log.newest_record();
        tree.insert(b"c", &[1; 100]).unwrap();
        // Until nothing else holds the log.
        while engine.checkpoints.recovery_start(|| ()) <= record {
            engine
                .buffer
                .flush_older_than(&local.worker, engine.log.contiguous_lsn())
                .unwrap();
            engine.log_tasks.wait_all_durable(&local.worker).unwrap();
            local.worker.yield_now();
        }
        engine.buffer.changes.add_late(&[(since, record)]);
        assert!(engine.checkpoints.recovery_start(|| ()) > record);
        engine.log_tasks.hold(floor);
        assert_eq!(engine.checkpoints.recovery_start(|| ()), since);
        engine.log_tasks.release();
    });
    work.join().unwrap();
}

/// A mapping record that is far behind the frees before it: the log may begin nowhere between them,
/// and still goes on.
#[test]
fn a_late_record_holds_the_log_for_a_while_only() {
    let (simulation, _) = quiet();
    let tree = simulation.store().tree("t").unwrap();
    let work = in_task(&simulation, 0, move |local| {
        let engine = &local.engine;
        let since = engine.log.next();
        tree.insert(b"a", &[1; 100]).unwrap();
        let record = Lsn(since.0 + (5 << 19));
        engine.buffer.changes.add_late(&[(since, record)]);
        let inside = Lsn(since.0 + 8);
        assert_eq!(engine.buffer.after_late_records(since), since);
        assert_eq!(engine.buffer.after_late_records(inside), Lsn(record.0 + 1));
        assert_eq!(engine.buffer.before_late_records(inside), since);
        let end = since.0 + (8 << 20);
        for number in 0.. {
            tree.insert(&key(number % 3_000), &[1; 100]).unwrap();
            if engine.log.next().0 > end {
                break;
            }
        }
        assert!(engine.log.start() > record);
    });
    work.join().unwrap();
}

/// A chunk that is copied between the record of its end and the end itself, and a
/// checkpoint whose log begins between the two records.
fn risen_from_between_two_records() -> usize {
    let (simulation, device) = quiet();
    let tree = simulation.store().tree("t").unwrap();
    tree.insert(b"key", &[1; 5_000]).unwrap();
    let store = simulation.store().clone();
    let copied = in_task(&simulation, 0, move |local| {
        let engine = &local.engine;
        assert!(
            local
                .engine
                .checkpoints
                .checkpoint(&local.worker, engine.log.next())
                .unwrap()
                .is_whole()
        );
        let ids = PageId::FIRST_FREE.0..engine.pagestore.high_water();
        let places = ids.map(|id| (PageId(id), engine.buffer.pool.mapping.place(PageId(id))));
        let mut chunks = places.filter_map(|(id, place)| match place {
            PagePlace::Stored(address) if address.length() != 4096 => Some((id, address)),
            _ => None,
        });
        let (page, address) = chunks.next().unwrap();
        let slot = engine.transactions.tracker.register(0, &engine.log);
        let end = local.engine.pagestore.log_free(&local.worker, &[], &[page]);
        let is_held = engine.log_tasks.oldest_end() <= end;
        assert!(is_held || canary::is_on(Canary::MissLateEnds));
        // A change that holds the log's start between the two. It ends with the slot above.
        let beside = tree.clone();
        let before = engine.log.next();
        let other = store.spawn_on(1, move || beside.insert(b"other", b"small"));
        while engine.log.next() == before {
            local.worker.yield_now();
        }
        let copy = Mapped {
            what: Copied::MovedChunk,
            page,
            version: Lsn(8),
            address,
            seq: engine.shared.seq_of(address),
        };
        let copied = local.engine.buffer.log_copies(&local.worker, 0, &[copy]);
        engine.buffer.pool.mapping.set(page, PagePlace::Free);
        engine.buffer.changes.mark(page);
        drop(slot);
        other.join().unwrap().unwrap();
        assert!(engine.log_tasks.oldest_end() > end);
        assert!(
            local
                .engine
                .checkpoints
                .checkpoint(&local.worker, end)
                .unwrap()
                .is_whole()
        );
        let start = engine.log.start();
        assert!(
            end < start && start < copied,
            "{end:?} {start:?} {copied:?}"
        );
    });
    copied.join().unwrap();
    let found = misplaced(&simulation, &device).len();
    // Its places and ids are not accounted for.
    std::mem::forget(simulation);
    found
}

#[test]
fn what_ended_before_the_log_begins_stays_dead() {
    assert_eq!(risen_from_between_two_records(), 0);
}

#[test]
fn what_ended_before_the_log_begins_rises_without_the_mend() {
    Canary::MissLateEnds.switch_on();
    assert_ne!(risen_from_between_two_records(), 0);
}

/// A value with chunks in a page of the mapping table that a checkpoint has written and others that
/// it has not, which is freed during it: how many of its chunks a crash after the checkpoint
/// leaves, and of how many.
fn left_of_a_value_that_is_freed() -> (usize, usize) {
    const PER_PAGE: u64 = 504;
    const BETWEEN: u64 = 640;
    let (simulation, device) = quiet();
    let built = in_task(&simulation, 1, |local| {
        let engine = &local.engine;
        let skip = |count| {
            let mut ids = engine.pagestore.ids().lock();
            let _ = ids
                .allocate_run(&engine.buffer.pool.mapping, count)
                .unwrap();
        };
        let mut writer = ExtentWriter::new();
        let payload = vec![1; extent::payload_bytes(&engine.shared.config)];
        for _ in 0..2 {
            writer.write(local, &payload).unwrap();
            skip(1);
        }
        // What lists the chunks is far from them.
        skip(PER_PAGE * BETWEEN);
        let value = writer.finish(local).unwrap();
        assert!(value.first().1);
        let _ = local
            .engine
            .pagestore
            .log_free(&local.worker, &[value.token()], &[]);
        assert!(
            local
                .engine
                .checkpoints
                .checkpoint(&local.worker, engine.log.next())
                .unwrap()
                .is_whole()
        );
        let ids = extent::chunk_ids(local, value).unwrap();
        let pages = ids[1].0 / PER_PAGE..=ids[0].0 / PER_PAGE;
        pages.for_each(|page| engine.buffer.changes.map_pages().mark_page(page));
        (value, ids)
    });
    let (value, ids) = built.join().unwrap();
    let early = ids[1].0 / PER_PAGE;
    let late = ids[0].0 / PER_PAGE;
    assert!(early + BETWEEN <= late && ids[2].0 / PER_PAGE == early);
    let freed = in_task(&simulation, 1, move |local| {
        let changes = local.engine.buffer.changes.map_pages();
        while changes.is_marked(early) {
            local.worker.yield_now();
        }
        extent::free_descriptor(local, &value.encode()).unwrap();
    });
    let changes = in_task(&simulation, 0, move |local| {
        assert!(
            local
                .engine
                .checkpoints
                .checkpoint(&local.worker, local.engine.log.next())
                .unwrap()
                .is_whole()
        );
        local.engine.buffer.changes.map_pages().is_marked(early)
    });
    assert!(changes.join().unwrap(), "the value was freed too early");
    let crashed = opened_after_crash(&device);
    let is_there = |id: &&PageId| crashed.buffer.pool.mapping.place(**id) != PagePlace::Free;
    let left = ids.iter().filter(is_there).count();
    freed.join().unwrap();
    (left, ids.len())
}

#[test]
fn of_a_value_all_chunks_are_free_in_a_checkpoint_or_none() {
    assert_eq!(left_of_a_value_that_is_freed(), (0, 3));
    Canary::FreeBeforeRecord.switch_on();
    assert_eq!(left_of_a_value_that_is_freed(), (2, 3));
}

/// A chunk that is freed while its token is open, and a leaf that gets its id in a split, which
/// needs no token: how many pages a crash behind a checkpoint misplaces.
fn lost_in_pages_of_an_open_token() -> usize {
    let (simulation, device) = quiet();
    let freed = in_task(&simulation, 1, |local| {
        let mut writer = ExtentWriter::new();
        writer.write(local, &[1; 5_000]).unwrap();
        let value = writer.finish(local).unwrap();
        // As by a caller that knows nothing of the token.
        extent::free_with_token(local, value, value.token() + 1).unwrap();
        local
            .engine
            .log_tasks
            .wait_all_durable(&local.worker)
            .unwrap();
        value.first().0
    });
    let id = freed.join().unwrap();
    let place = || simulation.engine().buffer.pool.mapping.place(id);
    assert_eq!(place(), PagePlace::Free);
    let tree = simulation.store().tree("t").unwrap();
    let mut keys = 0..200;
    while place() == PagePlace::Free {
        let number = keys.next().expect("a split takes the id");
        tree.insert(&key(number), &[2; 900]).unwrap();
    }
    let checkpoint = |local: &WorkerState| {
        let whole = local
            .engine
            .checkpoints
            .checkpoint(&local.worker, local.engine.log.next())
            .unwrap();
        assert!(whole.is_whole());
    };
    in_task(&simulation, 0, checkpoint).join().unwrap();
    misplaced(&simulation, &device).len()
}

#[test]
fn a_provisional_allocation_ends_with_its_page() {
    assert_eq!(lost_in_pages_of_an_open_token(), 0);
    Canary::KeepProvisionalOfFreedPages.switch_on();
    assert_ne!(lost_in_pages_of_an_open_token(), 0);
}

/// Of a store that was closed nothing is recovered, and yet no checkpoint comes before its
/// superblocks say that it is open: a task that writes one has them to itself, and opening would
/// find them gone.
#[test]
fn no_checkpoint_is_due_before_the_store_is_open() {
    let device = FaultDevice::new(0, FaultPlan::new(1));
    let volume = Volume::from_device(Arc::clone(&device) as _);
    let simulation = Simulation::new(volume, &options(), 1).unwrap();
    simulation.close().unwrap();
    let engine = opened_after_crash(&device);
    assert!(engine.shared.is_recovering());
    engine.checkpoints.end_opening();
    assert!(!engine.shared.is_recovering());
    Canary::CheckpointBeforeOpen.switch_on();
    let engine = opened_after_crash(&device);
    assert!(!engine.shared.is_recovering());
}

#[test]
fn no_superblock_is_written_once_a_write_has_failed() {
    let (simulation, _) = quiet();
    let refused = in_task(&simulation, 0, |local| {
        let engine = &local.engine;
        engine.log_tasks.wait_all_durable(&local.worker).unwrap();
        let mut current = engine.checkpoints.current.lock().take().unwrap();
        let before = current.superblock.sequence;
        engine.shared.poison(Error::LogOverrun);
        let start = engine.checkpoints.recovery_start(|| ());
        let outcome = engine.checkpoints.write(
            &mut current,
            &crate::checkpoint::writer::CheckpointIo::Task(&local.worker),
            start,
            false,
        );
        outcome.is_err() && current.superblock.sequence == before
    });
    assert!(refused.join().unwrap());
}

/// Of checkpoints one after another each writes more pages into the segment of the last one, so
/// some of them leave a segment without a page that counts. None may be free until the superblock
/// is durable, which here is never written.
#[test]
fn a_checkpoint_stays_until_the_next_superblock_is_durable() {
    for checkpoints in 0..12 {
        let (simulation, _) = quiet();
        let kept = in_task(&simulation, 0, move |local| {
            let engine = &local.engine;
            for _ in 0..checkpoints {
                let done = engine
                    .checkpoints
                    .checkpoint(&local.worker, engine.log.next());
                assert!(done.unwrap().is_whole());
            }
            engine.log_tasks.wait_all_durable(&local.worker).unwrap();
            let mut current = engine.checkpoints.current.lock().take().unwrap();
            let before: Vec<u32> = current.segments.keys().copied().collect();
            engine.shared.poison(Error::LogOverrun);
            let via = crate::checkpoint::writer::CheckpointIo::Task(&local.worker);
            let start = engine.checkpoints.recovery_start(|| ());
            let outcome = engine.checkpoints.write(&mut current, &via, start, false);
            assert!(outcome.is_err());
            before
                .iter()
                .all(|segment| current.segments.contains_key(segment))
        });
        assert!(kept.join().unwrap(), "after {checkpoints} checkpoints");
    }
}

#[test]
fn other_tasks_have_turns_while_all_frames_are_looked_at() {
    Small {
        words_per_page: Some(u64::MAX),
        checkpoint_bytes: None,
        spill_bytes: None,
        overlay_bytes: None,
    }
    .switch_on();
    let (simulation, _) = quiet();
    let tree = simulation.store().tree("t").unwrap();
    (0..1_000).for_each(|n| tree.insert(&key(n), &[1; 900]).unwrap());
    let (turns, done) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let (counted, ended) = (Arc::clone(&turns), Arc::clone(&done));
    let other = in_task(&simulation, 0, move |local| {
        while !ended.load(Ordering::Relaxed) {
            counted.fetch_add(1, Ordering::Relaxed);
            local.worker.yield_now();
        }
    });
    let look = in_task(&simulation, 0, move |local| {
        let engine = &local.engine;
        let before = turns.load(Ordering::Relaxed);
        let mut pauses = 0;
        engine.checkpoints.recovery_start(|| {
            pauses += 1;
            local.worker.yield_now();
        });
        let taken = turns.load(Ordering::Relaxed) - before;
        done.store(true, Ordering::Relaxed);
        (taken, pauses, engine.buffer.pool.frames.used())
    });
    let (taken, pauses, frames) = look.join().unwrap();
    other.join().unwrap();
    // Which task has the next turn is drawn.
    assert!(taken > 0 && frames > 100, "{taken} {frames}");
    assert!(pauses >= frames / 16 - 1, "{pauses} {frames}");
    simulation.close().unwrap();
}

#[test]
fn a_summary_that_cannot_be_read_is_rebuilt() {
    let (simulation, device) = quiet();
    let volume = Volume::from_device(Arc::clone(&device) as _);
    let store = simulation.store().clone();
    let tree = store.tree("t").unwrap();
    for n in 0..3_000 {
        tree.insert(&key(n), &[n as u8; 700]).unwrap();
    }
    let engine = Arc::clone(simulation.engine());
    let segments = engine.pagestore.space().lock().segments();
    let sealed = (1..segments).find(|&segment| {
        let mut space = engine.pagestore.space().lock();
        space.summary_offset(segment) > 0 && space.pin_sealed(segment)
    });
    let segment = sealed.expect("pages were written");
    let at = engine.pagestore.space().lock().summary_offset(segment);
    let live = move |local: &WorkerState| {
        let mut entries = local.engine.pagestore.entries_of(&local.worker, segment);
        entries.retain(|entry| {
            let word = local.engine.buffer.stored_word(entry.page);
            let here = |a: Address| (a.segment(), a.offset()) == (segment, entry.offset);
            matches!(PagePlace::from_word(word), PagePlace::Stored(a) if here(a))
        });
        entries.sort_unstable_by_key(|entry| entry.offset);
        entries
    };
    let before = in_task(&simulation, 0, live).join().unwrap();
    let summary = engine.shared.offset_of(Address::new(segment, at, 4096));
    volume.write_at(summary, &[0; 4096]).unwrap();
    let after = in_task(&simulation, 0, live).join().unwrap();
    assert!(!before.is_empty());
    assert_eq!(before, after);
    assert_eq!(store.stats().unreadable_summaries, 1);
    let local_unpin =
        move |local: &WorkerState| local.engine.pagestore.unpin(Address::new(segment, 0, 0));
    in_task(&simulation, 0, local_unpin).join().unwrap();
    let report = store.check(&mut |_, _| {}).unwrap();
    assert_eq!((report.unreadable_summaries, report.problems), (1, vec![]));
}

#[test]
fn a_crash_after_a_checkpoint_misplaces_nothing() {
    for seed in 1..=6 {
        assert_eq!(run(seed), [], "seed {seed}");
    }
}

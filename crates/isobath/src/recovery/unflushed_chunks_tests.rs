use std::sync::Arc;

use isobath_io::{FaultDevice, FaultPlan, Survivors, Volume};

use super::*;
use crate::shared::Address;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::{Options, Simulation, Store};

// ---- what the log says --------------------------------------------------------------------------------------------------

const PAGE: PageId = PageId(7);

fn mapping(what: Copied, version: u64) -> Body<'static> {
    Body::Mapping {
        token: 5,
        copies: vec![Mapped {
            what,
            page: PAGE,
            version: Lsn(version),
            address: Address::new(3, 0, 8192),
            seq: 1,
        }],
    }
}

fn free() -> Body<'static> {
    Body::Free {
        tokens: Vec::new(),
        chunks: vec![PAGE],
    }
}

fn commit() -> Body<'static> {
    Body::Commit {
        tokens: vec![5],
        chunks: Vec::new(),
        operations: Vec::new(),
    }
}

/// The record of the chunk that has to be there after `records`.
fn needed(records: &[(u64, Body<'_>)]) -> Option<u64> {
    let mut chunks = UnflushedChunks::default();
    for (lsn, body) in records {
        chunks.note(Lsn(*lsn), body);
    }
    let needed = chunks.live.get(&PAGE);
    needed
        .filter(|named| chunks.is_confirmed(named.token))
        .map(|named| named.record.0)
}

#[test]
fn a_chunk_has_to_be_there_until_the_log_says_that_it_is_gone() {
    let new = |lsn| (lsn, mapping(Copied::UnflushedChunk, lsn - 8));
    let named = || (110, commit());
    assert_eq!(needed(&[new(100), named()]), Some(100));
    assert_eq!(needed(&[new(100), named(), (200, free())]), None);
    let again = [new(100), named(), (200, free()), new(300)];
    assert_eq!(needed(&again), Some(300));
    // Flushed before its record, as in a backup.
    let flushed = (100, mapping(Copied::NewChunk, 92));
    assert_eq!(needed(&[flushed, named()]), None);
    // Moved, and so flushed elsewhere.
    let moved = |version| (200, mapping(Copied::MovedChunk, version));
    assert_eq!(needed(&[new(100), named(), moved(92)]), None);
    // Records that come late, of earlier owners of the id.
    assert_eq!(needed(&[new(100), named(), moved(60)]), Some(100));
    let page = (200, mapping(Copied::Page, 60));
    assert_eq!(needed(&[new(100), named(), page]), Some(100));
    Canary::VerifyEndedChunks.switch_on();
    let ended = [new(100), named(), (200, free())];
    assert_eq!(needed(&ended), Some(100));
}

#[test]
fn a_chunk_that_no_commit_names_need_not_be_there() {
    let alone = [(100, mapping(Copied::UnflushedChunk, 92))];
    assert_eq!(needed(&alone), None);
    Canary::VerifyOrphans.switch_on();
    assert_eq!(needed(&alone), Some(100));
}

// ---- power cuts ---------------------------------------------------------------------------------------------------------

const TASKS: usize = 4;
const KEYS: u64 = 3;
/// A value has one chunk, or several.
const LENGTHS: [usize; 3] = [6_000, 3_000, 40_000];

fn options() -> Options {
    Options::new()
        .pool_bytes(3 << 20)
        .segment_bytes(64 << 10)
        .workers(2)
        .tasks_per_worker(8)
}

fn value(task: usize, number: u64) -> Vec<u8> {
    let length = LENGTHS[number as usize % LENGTHS.len()];
    let mut value = vec![(number + task as u64) as u8; length];
    value[..8].copy_from_slice(&number.to_le_bytes());
    value
}

/// The state after a power cut: a drive, and how many replacements of each task were acknowledged.
type Cut = (Arc<FaultDevice>, Vec<u64>);

/// Power cuts of a store whose tasks replace large values; `is_separate`, of one whose log has a
/// device of its own.
fn cuts(seed: u64, is_separate: bool) -> Vec<Cut> {
    let plan = FaultPlan::new(seed).latency_us(0..=300);
    let plan = match is_separate {
        true => plan.log_bytes((64 << 10) + (4 << 20)),
        false => plan,
    };
    let device = FaultDevice::new(0, plan);
    let volume = Volume::from_device(Arc::clone(&device) as _);
    let mut simulation = Simulation::new(volume, &options(), seed).unwrap();
    let tree = simulation.store().create_tree("t").unwrap();
    let engine = Arc::clone(simulation.engine());
    let done: Arc<Vec<AtomicU64>> = Arc::new((0..TASKS).map(|_| AtomicU64::new(0)).collect());
    for task in 0..TASKS {
        let (tree, done) = (tree.clone(), Arc::clone(&done));
        drop(simulation.spawn(task, move || {
            for number in 0.. {
                let key = [task as u8, (number % KEYS) as u8];
                if tree.insert(&key, &value(task, number)).is_err() {
                    return;
                }
                done[task].store(number + 1, Ordering::Relaxed);
            }
        }));
    }
    let mut cuts = Vec::new();
    for step in 0..60_000u64 {
        simulation.step();
        if step % 1500 == 1499 {
            let acknowledged = done.iter().map(|done| done.load(Ordering::Relaxed));
            let acknowledged = acknowledged.collect();
            cuts.push((device.crash_image(Survivors::Random, step), acknowledged));
        }
    }
    assert!(done.iter().all(|done| done.load(Ordering::Relaxed) > 20));
    device.power_off();
    engine.shared.poison(crate::Error::Closed);
    drop(tree);
    drop(simulation);
    cuts
}

/// How many keys have lost their last acknowledged value.
fn lost((device, acknowledged): &Cut) -> u64 {
    let volume = Volume::from_device(Arc::clone(device) as _);
    let Ok(store) = Store::open_on_volume(volume, &options()) else {
        return u64::MAX;
    };
    let tree = store.tree("t");
    let mut lost = 0;
    for (task, &count) in acknowledged.iter().enumerate() {
        for number in count.saturating_sub(KEYS)..count {
            let key = [task as u8, (number % KEYS) as u8];
            let found = tree.as_ref().map(|tree| tree.get(&key));
            // That one, or the one after it, which was not acknowledged yet.
            let is_kept = matches!(&found, Ok(Ok(Some(found)))
                if [number, number + KEYS].iter().any(|number| *found == value(task, *number)));
            lost += u64::from(!is_kept);
        }
    }
    lost
}

fn lost_in_all(seed: u64, is_separate: bool) -> u64 {
    let cuts = cuts(seed, is_separate);
    assert!(cuts.len() > 20);
    cuts.iter().map(lost).fold(0, u64::saturating_add)
}

#[test]
fn a_power_cut_takes_no_acknowledged_value() {
    for seed in 1..=3 {
        assert_eq!(lost_in_all(seed, false), 0, "seed {seed}");
        assert_eq!(lost_in_all(seed, true), 0, "seed {seed}, log of its own");
    }
}

#[test]
fn without_the_flush_of_the_volume_values_are_lost() {
    Canary::FlushLogAlone.switch_on();
    assert!(lost_in_all(1, false) > 0);
    assert!(lost_in_all(1, true) > 0);
}

#[test]
fn a_value_whose_write_goes_on_is_not_covered() {
    Canary::NameChunksEarly.switch_on();
    let lost = (1..=4).map(|seed| lost_in_all(seed, seed % 2 == 0));
    assert!(lost.fold(0, u64::saturating_add) > 0);
}

// ---- one power cut after another ----------------------------------------------------------------------------------------

/// A new drive that holds a closed store with an empty tree, and its log on a device of its own.
fn closed_store(seed: u64) -> Arc<FaultDevice> {
    let plan = FaultPlan::new(seed)
        .latency_us(0..=300)
        .log_bytes((64 << 10) + (4 << 20));
    let device = FaultDevice::new(0, plan);
    let volume = Volume::from_device(Arc::clone(&device) as _);
    let store = Store::create_on_volume(volume, &options()).unwrap();
    store.create_tree("t").unwrap();
    store.close().unwrap();
    device
}

/// Opens the store on `device` and writes `value`, step by step, until `is_over`.
fn write_until(
    device: &Arc<FaultDevice>,
    options: &Options,
    value: &[u8],
    mut is_over: impl FnMut(bool) -> bool,
) {
    let volume = Volume::from_device(Arc::clone(device) as _);
    let mut simulation = Simulation::open(volume, options, 7).unwrap();
    let engine = Arc::clone(simulation.engine());
    let tree = simulation.store().tree("t").unwrap();
    let done = Arc::new(AtomicU64::new(0));
    let (task_tree, task_done, value) = (tree.clone(), Arc::clone(&done), value.to_vec());
    drop(simulation.spawn(0, move || {
        if task_tree.insert(b"k", &value).is_ok() {
            task_done.store(1, Ordering::Relaxed);
        }
    }));
    for _ in 0..20_000 {
        simulation.step();
        if is_over(done.load(Ordering::Relaxed) > 0) {
            break;
        }
    }
    device.power_off();
    engine.shared.poison(crate::Error::Closed);
    drop(tree);
    drop(simulation);
}

/// The values after two power cuts: one took a commit from the log and left its chunk; the next, in
/// the opening after it, took another commit's chunk and left that commit in the log.
fn found_after_two_cuts(seed: u64) -> Vec<Option<u8>> {
    let device = closed_store(seed);
    let mut first = None;
    let unlogged = options().durability(crate::Durability::None);
    write_until(&device, &unlogged, &[1; 6_000], |done| {
        if done {
            first = Some(device.crash_image(Survivors::Executed, 0));
        }
        done
    });
    let device = first.unwrap();
    let plan = FaultPlan::new(seed).latency_us(0..=300);
    let plan = plan.log_bytes((64 << 10) + (4 << 20));
    let (mut images, mut last) = (Vec::new(), 0);
    write_until(&device, &options(), &[2; 6_000], |done| {
        if !done && device.digest() != last {
            last = device.digest();
            let (data, log) = (Survivors::None, Survivors::Executed);
            images.push(device.crash_image_split(data, log, 0, plan.clone()));
        }
        done
    });
    let found = images.into_iter().map(|image| {
        let volume = Volume::from_device(image as _);
        let store = Store::open_on_volume(volume, &options()).unwrap();
        let value = store.tree("t").unwrap().get(b"k").unwrap();
        value.map(|value| value[0])
    });
    found.collect()
}

/// Whether the first value, which the first power cut took, was found again.
fn finds_the_lost_value() -> bool {
    (1..=4).any(|seed| found_after_two_cuts(seed).contains(&Some(1)))
}

#[test]
fn a_chunk_that_an_earlier_opening_left_is_no_other_one() {
    assert!(!finds_the_lost_value());
}

#[test]
fn an_opening_that_gives_sequence_numbers_again_finds_chunks_of_another() {
    Canary::GiveSeqsAgain.switch_on();
    assert!(finds_the_lost_value());
}

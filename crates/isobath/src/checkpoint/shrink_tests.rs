//! Power cuts while the volume becomes shorter.

use std::sync::Arc;

use isobath_io::{FaultDevice, FaultPlan, Survivors, Volume};

use crate::canary::Canary;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::{Options, Simulation, Store, Tree};

/// Records, of which every eighth stays.
const RECORDS: u64 = 12_000;
const KEPT: u64 = 8;

pub(super) fn options() -> Options {
    Options::new()
        .pool_bytes(3 << 20)
        .segment_bytes(64 << 10)
        .workers(2)
        .tasks_per_worker(8)
}

fn key(number: u64) -> [u8; 8] {
    // Neighbours in time are none in the tree.
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
}

fn value(number: u64) -> Vec<u8> {
    match number % 500 {
        // Some are chunks of their own.
        0 => vec![number as u8; 20_000],
        _ => vec![number as u8; 300],
    }
}

fn fill(tree: &Tree) {
    for number in 0..RECORDS {
        tree.insert(key(number), value(number)).unwrap();
    }
    for number in (0..RECORDS).filter(|number| number % KEPT != 0) {
        tree.remove(key(number)).unwrap();
    }
}

/// The problem of a store after a power cut, if any.
fn wrong(device: &Arc<FaultDevice>) -> Option<String> {
    let volume = Volume::from_device(Arc::clone(device) as _);
    let store = match Store::open_on_volume(volume, &options()) {
        Ok(store) => store,
        Err(error) => return Some(error.to_string()),
    };
    let tree = match store.tree("t") {
        Ok(tree) => tree,
        Err(error) => return Some(error.to_string()),
    };
    for number in 0..RECORDS {
        let expected = (number % KEPT == 0).then(|| value(number));
        match tree.get(key(number)) {
            Ok(found) if found == expected => {}
            Ok(found) => return Some(format!("{number}: {:?}", found.map(|v| v.len()))),
            Err(error) => return Some(error.to_string()),
        }
    }
    let problems = store.check(&mut |_, _| {}).unwrap().problems;
    // It goes on, and closes.
    tree.insert(b"later", b"v").unwrap();
    store.close().unwrap();
    problems.first().cloned()
}

/// Compacts a store with a power cut every so often, beside a writer of other records; the device
/// then.
fn cuts(seed: u64) -> (Vec<Arc<FaultDevice>>, Arc<FaultDevice>, u64) {
    let device = FaultDevice::new(0, FaultPlan::new(seed).latency_us(0..=200));
    let volume = Volume::from_device(Arc::clone(&device) as _);
    let mut simulation = Simulation::new(volume, &options(), seed).unwrap();
    let tree = simulation.store().create_tree("t").unwrap();
    let done = Arc::new(AtomicU64::new(0));
    let ended = Arc::clone(&done);
    let filling = simulation.spawn(0, move || {
        fill(&tree);
        ended.fetch_add(1, Ordering::Relaxed);
    });
    while done.load(Ordering::Relaxed) < 1 {
        simulation.step();
    }
    filling.join().unwrap();
    let before = device.bytes();
    let store = simulation.store().clone();
    let ended = Arc::clone(&done);
    let compacting = simulation.spawn(0, move || {
        let gained = store.compact();
        ended.fetch_add(1, Ordering::Relaxed);
        gained
    });
    let beside = simulation.store().create_tree("beside").unwrap();
    let ended = Arc::clone(&done);
    let writing = simulation.spawn(1, move || {
        for number in 0..300u64 {
            beside.insert(key(number), [1; 200]).unwrap();
        }
        ended.fetch_add(1, Ordering::Relaxed);
    });
    let mut images = Vec::new();
    let (mut step, mut length) = (0, before);
    while done.load(Ordering::Relaxed) < 3 {
        simulation.step();
        step += 1;
        // Now and again, and whenever the length has changed.
        if step % 9_001 == seed || device.bytes() != length {
            length = device.bytes();
            images.push(device.crash_image(Survivors::Random, step));
        }
    }
    let gained = compacting.join().unwrap().unwrap();
    assert_eq!(gained.bytes_before, before);
    assert!(gained.bytes_after < before, "{gained:?}");
    writing.join().unwrap();
    images.push(device.crash_image(Survivors::None, step));
    drop(simulation);
    (images, device, before)
}

#[test]
fn a_store_that_becomes_shorter_loses_nothing() {
    let (images, device, before) = cuts(1);
    assert!(images.len() > 3, "{}", images.len());
    assert!(
        device.bytes() < before * 2 / 3,
        "{before} {}",
        device.bytes()
    );
    for (at, image) in images.iter().enumerate() {
        assert_eq!(wrong(image), None, "cut {at} of {}", images.len());
    }
    assert_eq!(wrong(&device), None);
    Canary::CutVolumeEarly.switch_on();
    let (images, ..) = cuts(1);
    assert!(
        images.iter().any(|image| wrong(image).is_some()),
        "the tail is cut off while a recovery needs it"
    );
}

#[test]
fn one_task_at_a_time_shortens_the_volume() {
    let simulation = Simulation::new(Volume::in_memory(0, None), &options(), 1).unwrap();
    let engine = Arc::clone(simulation.engine());
    let turn = engine.pagestore.begin_shrinking();
    assert!(turn.is_some());
    // Another task that asks takes nothing away.
    assert!(engine.pagestore.begin_shrinking().is_none());
    assert!(engine.pagestore.is_shrinking());
    drop(turn);
    assert!(!engine.pagestore.is_shrinking());
    simulation.close().unwrap();
}

//! The oldest changes of frames, and of batches, which hold the log.

use super::*;

/// Makes pages; how often another worker, which is interrupted everywhere as the first one is, sees
/// a frame that is dirty and has no oldest change.
fn dirty_without_a_change(seed: u64) -> usize {
    let (rate, max_steps) = (0.3, 100);
    Switches::new(How::EveryPlace { rate, max_steps }).switch_on();
    let device = FaultDevice::new(0, FaultPlan::new(seed));
    let simulation = Simulation::new(Volume::from_device(device), &options(), seed).unwrap();
    let tree = simulation.store().create_tree("t").unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&done);
    let watch = in_task(&simulation, 1, move |local| {
        let frames = &local.engine.buffer.pool.frames;
        let mut found = 0;
        while !ended.load(Ordering::Relaxed) {
            for frame in 0..frames.used() {
                let header = frames.header(frame);
                found += usize::from(header.oldest_change() == Some(Lsn(0)));
            }
            local.worker.yield_now();
        }
        found
    });
    let make = move |_: &WorkerState| {
        (0..300).for_each(|n| tree.insert(&key(n), &[1; 900]).unwrap());
    };
    in_task(&simulation, 0, make).join().unwrap();
    done.store(true, Ordering::Relaxed);
    let found = watch.join().unwrap();
    simulation.close().unwrap();
    found
}

#[test]
fn a_frame_is_dirty_once_its_oldest_change_is_set() {
    let seeds = 1..=10;
    assert!(seeds.clone().all(|seed| dirty_without_a_change(seed) == 0));
    Canary::DirtyTooEarly.switch_on();
    assert!(seeds.clone().any(|seed| dirty_without_a_change(seed) > 0));
}

/// A batch that could not be written holds the log where its changes are.
#[test]
fn the_changes_of_a_batch_that_failed_hold_the_log() {
    let mut batches = 0;
    for seed in 1..=100 {
        let device = FaultDevice::new(0, FaultPlan::new(seed).latency_us(0..=200));
        let volume = Volume::from_device(Arc::clone(&device) as _);
        let simulation = Simulation::new(volume, &options(), seed).unwrap();
        let store = simulation.store().clone();
        let tree = store.create_tree("t").unwrap();
        let fault = Fault::Error(IoErrorKind::Media);
        device.add_rule(FaultRule::new(fault, Trigger::At(40 + 7 * seed)).ops(&[Op::Write]));
        let work = move || {
            let failed = |n: &u32| tree.insert(&key(n * 7 % 5_000), &[3; 700]).is_err();
            (0..60_000).find(failed)
        };
        assert!(simulation.spawn(1, work).join().unwrap().is_some());
        // Batches that did not fail have ended, and hold nothing any more.
        let rest = || (0..2_000).for_each(|_| crate::yield_now());
        simulation.spawn(0, rest).join().unwrap();
        let engine = simulation.engine();
        let frames = &engine.buffer.pool.frames;
        let held = (0..frames.count()).filter_map(|frame| frames.header(frame).oldest_change());
        assert!(
            engine.checkpoints.recovery_start(|| ()).0 <= held.min().map_or(u64::MAX, |lsn| lsn.0)
        );
        // A change beside the failed write may have made a frame's oldest change a newer one.
        batches += u32::from(engine.buffer.changes.is_held());
    }
    // Other writes failed elsewhere.
    assert!(batches > 0);
}

//! Power cuts while the log becomes longer, and while it leaves segments.

use std::sync::Arc;

use isobath_io::{FaultDevice, FaultPlan, Survivors, Volume};

use super::shrink_tests::options;
use crate::canary::Canary;
use crate::log::MIN_AREA_BYTES;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::{Simulation, Small, Store};

const TASKS: usize = 6;
/// Images of the drive that are taken at most, from one seed.
const IMAGES: usize = 24;
/// Schedules that are tried.
const SEEDS: [u64; 3] = [1, 3, 4];
/// Those that are tried at most until a planted bug is found.
const MAX_SEEDS: u64 = 12;

fn key(task: usize, number: u64) -> [u8; 16] {
    let mut key = [task as u8; 16];
    key[8..].copy_from_slice(&number.swap_bytes().to_le_bytes());
    key
}

/// The state after a power cut: a drive, and how many inserts of each task were acknowledged.
type Cut = (Arc<FaultDevice>, Vec<u64>);

/// What the log does while the power goes.
#[derive(Clone, Copy, PartialEq)]
enum Doing {
    Growing,
    /// Leaving segments, as `Store::compact` has it do once it has grown.
    Leaving,
}

/// Commits to a store whose log changes its extents, with power cuts around that.
fn cuts(doing: Doing, seed: u64) -> Vec<Cut> {
    Small {
        words_per_page: None,
        checkpoint_bytes: Some(96 << 10),
        spill_bytes: None,
        overlay_bytes: None,
    }
    .switch_on();
    let device = FaultDevice::new(0, FaultPlan::new(seed).latency_us(0..=300));
    let volume = Volume::from_device(Arc::clone(&device) as _);
    let mut simulation = Simulation::new(volume, &options(), seed).unwrap();
    let tree = simulation.store().create_tree("t").unwrap();
    let engine = Arc::clone(simulation.engine());
    assert_eq!(engine.log.area_bytes(), MIN_AREA_BYTES);
    let done: Arc<Vec<AtomicU64>> = Arc::new((0..TASKS).map(|_| AtomicU64::new(0)).collect());
    for task in 0..TASKS {
        let (tree, done) = (tree.clone(), Arc::clone(&done));
        drop(simulation.spawn(task, move || {
            for number in 0.. {
                if tree.insert(&key(task, number), &[7; 300]).is_err() {
                    return;
                }
                done[task].store(number + 1, Ordering::Relaxed);
            }
        }));
    }
    let mut cuts: Vec<Cut> = Vec::new();
    let (mut after, mut is_compacting) = (0, false);
    for step in 0..3_000_000u64 {
        simulation.step();
        let grown = engine.log.area_bytes() > MIN_AREA_BYTES;
        if grown && doing == Doing::Leaving && !is_compacting {
            is_compacting = true;
            let store = simulation.store().clone();
            drop(simulation.spawn(0, move || store.compact().is_ok()));
        }
        let is_due = match doing {
            Doing::Growing => grown,
            Doing::Leaving => after > 0 || is_compacting && !grown,
        };
        after += u64::from(is_due);
        // While the superblocks are written, densely while they would still be had the log gone on
        // before them, and then now and again.
        let takes = (engine.log.is_paused() && step % 31 == seed % 31)
            || (is_due && after < 600 && after % 40 == 1)
            || (is_due && after % 1501 == 1);
        if takes {
            let acknowledged = done.iter().map(|done| done.load(Ordering::Relaxed));
            let acknowledged = acknowledged.collect();
            cuts.push((device.crash_image(Survivors::Random, step), acknowledged));
        }
        if cuts.len() == IMAGES || after > 12_000 {
            break;
        }
    }
    assert!(!cuts.is_empty());
    device.power_off();
    engine.shared.poison(crate::Error::Closed);
    drop(tree);
    drop(simulation);
    cuts
}

/// How many acknowledged inserts the store has lost; all of them if it does not open.
fn lost(cut: &Cut) -> u64 {
    let (device, acknowledged) = cut;
    let volume = Volume::from_device(Arc::clone(device) as _);
    let Ok(store) = Store::open_on_volume(volume, &options()) else {
        return acknowledged.iter().sum();
    };
    let Ok(tree) = store.tree("t") else {
        return acknowledged.iter().sum();
    };
    let mut lost = 0;
    for (task, &count) in acknowledged.iter().enumerate() {
        for number in 0..count {
            let found = tree.get(&key(task, number)).unwrap();
            lost += u64::from(found.as_deref() != Some(&[7; 300]));
        }
    }
    assert_eq!(
        store.check(&mut |_, _| {}).unwrap().problems,
        Vec::<String>::new()
    );
    // It goes on, and closes.
    tree.insert(b"later", b"v").unwrap();
    store.close().unwrap();
    lost
}

#[test]
fn a_log_that_grows_loses_nothing() {
    for seed in SEEDS {
        let cuts = cuts(Doing::Growing, seed);
        for (at, cut) in cuts.iter().enumerate() {
            assert_eq!(lost(cut), 0, "seed {seed}, cut {at}");
        }
    }
}

#[test]
fn a_log_that_leaves_segments_loses_nothing() {
    for seed in SEEDS {
        for (at, cut) in cuts(Doing::Leaving, seed).iter().enumerate() {
            assert_eq!(lost(cut), 0, "seed {seed}, cut {at}");
        }
    }
    for canary in [Canary::RelayLogEarly, Canary::LeaveLogEarly] {
        canary.switch_on();
        let loses = |cuts: Vec<Cut>| cuts.iter().any(|cut| lost(cut) > 0);
        let mut seeds = 1..=MAX_SEEDS;
        let found = seeds.any(|seed| loses(cuts(Doing::Leaving, seed)));
        assert!(found, "nothing is lost with {canary:?}");
    }
}

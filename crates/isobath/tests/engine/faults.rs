//! I/O errors at every index of a short run: a failed read fails its operation
//! and nothing else, a failed write or flush ends writing with its cause, and
//! nothing hangs, panics, or is lost from the pool.

#![allow(missing_docs, clippy::unwrap_used)]

use super::common;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use common::{Model, Random, assert_sound, parameter, tiny, value};
use isobath::{Error, Options, Simulation, Store, Tree, Volume};
use isobath_io::{Fault, FaultDevice, FaultPlan, FaultRule, IoErrorKind, Op, Trigger};

type Doubts = BTreeMap<Vec<u8>, Vec<Option<Vec<u8>>>>;

const SEED: u64 = 31;
const TASKS: u64 = 6;

fn options() -> Options {
    tiny(2, 6).volume_limit_bytes(Some(14 << 20))
}

fn device() -> Arc<FaultDevice> {
    let plan = FaultPlan::new(SEED).latency_us(0..=20);
    FaultDevice::new(0, plan.max_bytes(Some(14 << 20)))
}

fn rule(op: Op, index: u64) -> FaultRule {
    FaultRule::new(Fault::Error(IoErrorKind::Media), Trigger::At(index)).ops(&[op])
}

fn is_io(error: &Error) -> bool {
    match error {
        Error::Io(_) | Error::PageRead { .. } => true,
        Error::Volume(source) => matches!(&**source, isobath_io::VolumeError::Io(_)),
        Error::Poisoned { cause } => is_io(cause),
        _ => false,
    }
}

thread_local! {
    /// What keys may have once the store is opened again: changes that failed on
    /// their way to the drive show until then, and may be gone after it.
    static DOUBTS: RefCell<Doubts> = RefCell::default();
}

/// Brings the model up to a change of `key` to `new`. One that was to be logged and failed may or
/// may not have happened: it was not acknowledged.
fn settle(
    tree: &Tree,
    model: &mut Model,
    key: Vec<u8>,
    new: Option<Vec<u8>>,
    error: Option<&Error>,
) {
    let happened = match error {
        None => true,
        Some(Error::Poisoned { .. }) => {
            let old = model.get(&key).cloned();
            DOUBTS.with_borrow_mut(|doubts| {
                let values = doubts.entry(key.clone()).or_default();
                values.extend([old.clone(), new.clone()]);
            });
            match tree.get(&key) {
                Ok(found) => {
                    let short = |v: &Option<Vec<u8>>| {
                        v.as_ref().map(|v| (v.len(), v[..v.len().min(8)].to_vec()))
                    };
                    assert!(
                        found == old || found == new,
                        "{key:?} has a third value: {:?}, not {:?} or {:?}; {error:?}",
                        short(&found),
                        short(&old),
                        short(&new)
                    );
                    found == new
                }
                Err(_) => false,
            }
        }
        Some(_) => false,
    };
    match new {
        _ if !happened => {}
        Some(value) => {
            model.insert(key, value);
        }
        None => {
            model.remove(&key);
        }
    }
}

/// One task's part of the run: operations on its own keys, and what must be
/// true of them after each answer. Returns the errors.
fn part(tree: &Tree, number: u64, model: &mut Model, ops: u64) -> Vec<Error> {
    let mut random = Random::new(SEED + number);
    let mut errors = Vec::new();
    for _ in 0..ops {
        let n = random.below(150);
        let mut key = vec![b'k', number as u8, n as u8];
        key.resize(3 + random.one_of(&[0, 0, 500]) * (n % 3) as usize / 2, 0);
        let result = match random.below(10) {
            0..6 => {
                let v = value(random.bits(), random.one_of(&[20, 300, 900, 1400, 9000]));
                let result = tree.insert(&key, &v);
                settle(tree, model, key, Some(v), result.as_ref().err());
                result
            }
            6..8 => {
                let had = model.contains_key(&key);
                let result = tree.remove(&key);
                settle(tree, model, key, None, result.as_ref().err());
                result.map(|existed| assert_eq!(existed, had))
            }
            _ => tree.get(&key).map(|found| {
                assert_eq!(found, model.get(&key).cloned());
            }),
        };
        errors.extend(result.err());
    }
    errors
}

/// All tasks' parts, on all workers.
fn run(simulation: &Simulation, tree: &Tree, models: Vec<Model>) -> (Vec<Model>, Vec<Error>) {
    let ops = parameter("ISOBATH_FAULT_OPS", 120);
    let mut handles = Vec::new();
    for (number, mut model) in models.into_iter().enumerate() {
        let tree = tree.clone();
        handles.push(simulation.spawn(number, move || {
            let errors = part(&tree, number as u64, &mut model, ops);
            (model, errors)
        }));
    }
    let mut errors = Vec::new();
    let mut models = Vec::new();
    for handle in handles {
        let (model, mut more) = handle.join().unwrap();
        models.push(model);
        errors.append(&mut more);
    }
    (models, errors)
}

/// Everything that was acknowledged is there after reopening, and nothing that was never written.
fn verify_reopened(simulation: &Simulation, tree: &Tree, models: &[Model]) {
    let mut want: Model = models
        .iter()
        .flatten()
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    for record in tree.range(..) {
        let (key, value) = record.unwrap();
        let doubted = DOUBTS.with_borrow(|doubts| doubts.get(&key).cloned());
        let expected = want.remove(&key);
        let options = doubted.unwrap_or_else(|| vec![expected]);
        assert!(
            options.contains(&Some(value)),
            "{key:?} has a value of its own"
        );
    }
    for key in want.keys() {
        let may_be_gone =
            DOUBTS.with_borrow(|doubts| doubts.get(key).is_some_and(|d| d.contains(&None)));
        assert!(may_be_gone, "{key:?} is lost");
    }
    let frames = simulation.store().stats().pool_frames;
    assert_eq!(
        simulation.accounted_frames() as u64,
        frames,
        "a frame is lost"
    );
}

/// Everything that was acknowledged is there, and the pool is whole.
fn verify(simulation: &Simulation, tree: &Tree, models: &[Model]) {
    let mut want: Vec<_> = models.iter().flatten().collect();
    want.sort();
    let got: Vec<_> = tree.range(..).map(Result::unwrap).collect();
    assert_eq!(got.len(), want.len());
    for ((k, v), found) in want.iter().zip(&got) {
        assert!(**k == found.0 && **v == found.1);
        assert_eq!(tree.get(k).unwrap().as_ref(), Some(*v));
    }
    let frames = simulation.store().stats().pool_frames;
    assert_eq!(
        simulation.accounted_frames() as u64,
        frames,
        "a frame is lost"
    );
}

/// A store that has been closed once, so that reads happen, too.
fn prepared() -> (Arc<FaultDevice>, Vec<Model>) {
    let device = device();
    let volume = Volume::from_device(device.clone());
    let simulation = Simulation::new(volume, &options(), SEED).unwrap();
    let tree = simulation.store().create_tree("t").unwrap();
    let (models, errors) = run(&simulation, &tree, vec![Model::new(); TASKS as usize]);
    assert!(errors.is_empty(), "{errors:?}");
    simulation.close().unwrap();
    (device, models)
}

/// How many I/Os of each kind the second run has, opening and closing included.
fn count(op: Op) -> u64 {
    let (device, models) = prepared();
    // A rule for an index that never comes counts nothing; search for the last
    // one that fires.
    let fires = |index: u64| {
        let copy = device.crash_image(isobath_io::Survivors::Executed, 0);
        copy.add_rule(rule(op, index));
        let _ = second(&copy, models.clone(), op, true);
        copy.fault_count() > 0
    };
    let (mut low, mut high) = (0, 4);
    while fires(high) {
        (low, high) = (high, high * 2);
    }
    while high - low > 1 {
        let middle = (low + high) / 2;
        if fires(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// Opens, runs, closes under whatever rules the device has.
fn second(device: &Arc<FaultDevice>, models: Vec<Model>, op: Op, blind: bool) -> Option<()> {
    DOUBTS.with_borrow_mut(BTreeMap::clear);
    let volume = Volume::from_device(device.clone());
    let simulation = match Simulation::open(volume.clone(), &options(), SEED + 1) {
        Ok(simulation) => simulation,
        Err(error) => {
            assert!(is_io(&error), "open: {error}");
            return None;
        }
    };
    let tree = match simulation.store().tree("t") {
        Ok(tree) => tree,
        Err(error) => {
            assert!(op == Op::Read && is_io(&error), "tree: {error}");
            simulation.store().tree("t").unwrap()
        }
    };
    let (models, errors) = run(&simulation, &tree, models);
    for error in &errors {
        assert!(is_io(error), "{error}");
        // An error of a read is its operation's alone.
        let poisoned = matches!(error, Error::Poisoned { .. });
        assert!(op != Op::Read || !poisoned, "{error}");
    }
    let poisoned = errors
        .iter()
        .any(|error| matches!(error, Error::Poisoned { .. }));
    if !blind {
        if device.fault_count() > 0 {
            // The one fault is over; one that has not come yet still may.
            device.clear_rules();
        }
        verify(&simulation, &tree, &models);
    }
    let closed = simulation.close();
    if poisoned {
        let error = closed.as_ref().err();
        assert!(
            error.is_some_and(is_io),
            "closing hides the failure: {error:?}"
        );
    }
    if op == Op::Read && !blind {
        closed.as_ref().unwrap();
    }
    if blind {
        return closed.ok();
    }
    reopened(device, &models, closed);
    Some(())
}

fn reopened(device: &Arc<FaultDevice>, models: &[Model], closed: Result<(), Error>) {
    device.clear_rules();
    let volume = Volume::from_device(device.clone());
    match (closed, Simulation::open(volume, &options(), SEED + 2)) {
        (Ok(()), Ok(simulation)) => {
            let tree = simulation.store().tree("t").unwrap();
            verify(&simulation, &tree, models);
            assert_sound(simulation.store(), None);
            simulation.close().unwrap();
        }
        (Err(_), Ok(simulation)) => {
            let tree = simulation.store().tree("t").unwrap();
            verify_reopened(&simulation, &tree, models);
            assert_sound(simulation.store(), None);
            simulation.close().unwrap();
        }
        (closed, Err(error)) => panic!("closed {closed:?}, then {error}"),
    }
}

fn at_every_index(op: Op) {
    let total = count(op);
    let most = parameter("ISOBATH_FAULT_RUNS", 60);
    let (device, models) = prepared();
    let step = total.div_ceil(most).max(1);
    println!("{op:?}: {total} I/Os, every {step}th fails");
    assert!(total > 2);
    // The last ones are those of closing, each of which counts.
    let indices = (0..total)
        .step_by(step as usize)
        .chain(total.saturating_sub(12)..total);
    for index in indices {
        let copy = device.crash_image(isobath_io::Survivors::Executed, 0);
        copy.add_rule(rule(op, index));
        if second(&copy, models.clone(), op, false).is_none() {
            // Opening failed: it can be tried again.
            copy.clear_rules();
            let volume = Volume::from_device(copy.clone());
            match Simulation::open(volume, &options(), SEED) {
                Ok(simulation) => {
                    let tree = simulation.store().tree("t").unwrap();
                    verify(&simulation, &tree, &models);
                    simulation.close().unwrap();
                }
                Err(error) => panic!("index {index}: {error}"),
            }
        }
    }
}

#[test]
fn a_failed_read_fails_its_operation_only() {
    at_every_index(Op::Read);
}

#[test]
fn a_failed_write_ends_writing_and_reads_go_on() {
    at_every_index(Op::Write);
}

#[test]
fn a_failed_flush_is_reported_when_closing() {
    at_every_index(Op::Flush);
}

#[test]
fn a_failed_write_while_creating_is_an_error() {
    for index in 0..40 {
        let device = device();
        device.add_rule(rule(Op::Write, index));
        let volume = Volume::from_device(device.clone());
        match Simulation::new(volume, &options(), SEED) {
            Ok(simulation) => {
                let created = simulation.store().create_tree("t");
                let closed = simulation.close();
                let failed = device.fault_count() > 0;
                assert_eq!(created.is_err() || closed.is_err(), failed, "index {index}");
            }
            Err(error) => assert!(is_io(&error), "index {index}: {error}"),
        }
    }
}

#[test]
fn a_large_value_whose_commit_fails_leaves_no_chunks() {
    let device = FaultDevice::new(0, FaultPlan::new(5).sleeps(true));
    let options = tiny(2, 8).log_bytes(4 << 20);
    let store = Store::create_on_volume(Volume::from_device(device.clone()), &options).unwrap();
    let tree = store.create_tree("t").unwrap();
    // Gaps between the page ids in use, so that a chunk lists those of a value.
    for n in 0..64 {
        tree.insert(&common::key(n), &value(n, 1500)).unwrap();
    }
    for n in (0..64).step_by(2) {
        tree.remove(&common::key(n)).unwrap();
    }
    let large = common::key(64);
    tree.insert(&large, &value(0, 40_000)).unwrap();

    let every_read =
        FaultRule::new(Fault::Error(IoErrorKind::Media), Trigger::From(0)).ops(&[Op::Read]);
    device.add_rule(every_read);
    // Neither the list of the old value can be read, nor that of the new one, which no reader gets.
    let error = tree.insert(&large, &value(1, 40_000)).unwrap_err();
    assert!(is_io(&error), "{error}");
    for n in 65..75 {
        tree.insert(&common::key(n), b"each commit frees what is left to free")
            .unwrap();
    }
    device.clear_rules();
    assert_sound(&store, Some(32 + 1 + 10));
    assert_eq!(tree.get(&large).unwrap(), Some(value(0, 40_000)));
    store.close().unwrap();
}

#[test]
fn a_device_without_space_is_a_full_volume() {
    let plan = FaultPlan::new(3).space_bytes(12 << 20).sleeps(true);
    let volume = Volume::from_device(FaultDevice::new(0, plan));
    let options = tiny(2, 8).log_bytes(4 << 20);
    let store = Store::create_on_volume(volume.clone(), &options).unwrap();
    let tree = store.create_tree("t").unwrap();
    let mut count = 0u64;
    let error = loop {
        match tree.insert(&common::key(count), &value(count, 700)) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::VolumeFull { .. }), "{error}");
    for n in 0..count {
        assert_eq!(tree.get(&common::key(n)).unwrap(), Some(value(n, 700)));
    }
    assert_sound(&store, Some(count));
    store.close().unwrap();
    let store = Store::open_on_volume(volume, &options).unwrap();
    assert_sound(&store, Some(count));
    store.close().unwrap();
}

//! Drops of trees with large values that a power cut interrupts: whenever it
//! comes, the tree is there or gone, nothing takes space that nothing leads to, and
//! what belongs to others stays.

#![allow(missing_docs, clippy::unwrap_used)]

use super::common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use common::{LOG, Model, Random, assert_sound, key, parameter, tiny, value};
use isobath::{Error, Options, Simulation, Store, Tree, Volume};
use isobath_io::{FaultDevice, FaultPlan, Survivors};

/// Trees that come and go.
const TREES: u64 = 6;

fn options() -> Options {
    tiny(2, 6).log_bytes(LOG)
}

/// A device and a new store on it.
fn create(seed: u64) -> (Arc<FaultDevice>, Simulation) {
    let device = FaultDevice::new(0, FaultPlan::new(seed).latency_us(0..=20));
    let volume = Volume::from_device(device.clone());
    let simulation = Simulation::new(volume, &options(), seed).unwrap();
    (device, simulation)
}

fn put(tree: &Tree, model: &mut Model, number: u64, length: usize, tag: u64) {
    let (k, v) = (key(number), value(tag, length));
    tree.insert(&k, &v).unwrap();
    model.insert(k, v);
}

/// Streams a value in parts, with others in between, so that its chunks' ids are not
/// consecutive.
fn stream(tree: &Tree, model: &mut Model, number: u64, length: usize) {
    let v = value(number, length);
    let mut writer = tree.writer(&key(number)).unwrap();
    for (at, part) in v.chunks(8000).enumerate() {
        writer.append(part).unwrap();
        put(tree, model, 10_000 + number * 100 + at as u64, 2500, number);
    }
    writer.finish().unwrap();
    model.insert(key(number), v);
}

/// A power cut at some moment.
struct Image {
    device: Arc<FaultDevice>,
    context: String,
}

impl Image {
    fn open(&self) -> Simulation {
        let volume = Volume::from_device(self.device.clone());
        Simulation::open(volume, &options(), 3)
            .unwrap_or_else(|error| panic!("{}: opening: {error}", self.context))
    }

    fn check(&self, store: &Store) {
        let report = store.check(&mut |_, _| {}).unwrap();
        assert_eq!(report.problems, Vec::<String>::new(), "{}", self.context);
    }
}

/// The results of power cuts at every I/O until the work has `ended`.
fn images_until(
    simulation: &mut Simulation,
    (device, seed): (&FaultDevice, u64),
    outcomes: &[Survivors],
    ended: impl Fn() -> bool,
) -> Vec<Image> {
    let mut images = Vec::new();
    let mut seen = 0;
    while !ended() {
        simulation.step();
        if device.io_count() == seen {
            continue;
        }
        seen = device.io_count();
        images.extend(outcomes.iter().map(|&survivors| Image {
            device: device.crash_image(survivors, seen),
            context: format!("seed {seed}, I/O {seen}, {survivors:?}"),
        }));
    }
    images
}

/// Drops "t"; the results of power cuts at each I/O of that.
fn images_of_drop(simulation: &mut Simulation, device: &FaultDevice, seed: u64) -> Vec<Image> {
    let store = simulation.store().clone();
    let ended = Arc::new(AtomicBool::new(false));
    let tell = Arc::clone(&ended);
    let task = simulation.spawn(0, move || {
        let dropped = store.drop_tree("t");
        tell.store(true, Ordering::Relaxed);
        dropped
    });
    let outcomes = [Survivors::None, Survivors::Executed, Survivors::Random];
    let images = images_until(simulation, (device, seed), &outcomes, || {
        ended.load(Ordering::Relaxed)
    });
    task.join().unwrap().unwrap();
    images
}

fn assert_holds(tree: &Tree, model: &Model, context: &str) {
    for (k, v) in model {
        let found = tree
            .get(k)
            .unwrap_or_else(|error| panic!("{context}: {error}"));
        assert!(found.as_ref() == Some(v), "{context}: a record is wrong");
    }
}

/// Recovers an image twice; whether the tree was gone.
fn judge(image: &Image, dropped: &Model, kept: &Model) -> bool {
    let context = &image.context;
    let simulation = image.open();
    let store = simulation.store();
    let gone = match store.tree("t") {
        Ok(tree) => {
            assert_holds(&tree, dropped, context);
            false
        }
        Err(Error::NoSuchTree { .. }) => true,
        Err(error) => panic!("{context}: {error}"),
    };
    assert_holds(&store.tree("kept").unwrap(), kept, context);
    image.check(store);
    let before = store.stats().allocated_bytes;
    simulation.close().unwrap();
    let simulation = image.open();
    let after = simulation.store().stats();
    assert_eq!(after.allocated_bytes, before, "{context}");
    assert_eq!(after.live_bytes, before, "{context}");
    simulation.close().unwrap();
    gone
}

fn judge_all(images: &[Image], dropped: &Model, kept: &Model) {
    let gone = images
        .iter()
        .filter(|image| judge(image, dropped, kept))
        .count();
    assert!(
        gone > 0 && gone < images.len(),
        "{gone} of {}",
        images.len()
    );
}

#[test]
fn a_drop_is_cut_anywhere_and_leaves_nothing_behind() {
    for seed in 0..parameter("ISOBATH_SEEDS", 2) {
        let (device, mut simulation) = create(seed);
        let (tree, other) = (
            simulation.store().create_tree("t").unwrap(),
            simulation.store().create_tree("kept").unwrap(),
        );
        let (mut dropped, mut kept) = (Model::new(), Model::new());
        let mut random = Random::new(seed);
        for number in 0..120 {
            let length = random.one_of(&[30, 800, 2500, 9000, 40_000]);
            put(&tree, &mut dropped, number, length, number);
            put(&other, &mut kept, number, 600, number);
        }
        for number in 500..503 {
            stream(&tree, &mut dropped, number, 60_000);
        }
        let images = images_of_drop(&mut simulation, &device, seed);
        assert_sound(simulation.store(), Some(kept.len() as u64));
        simulation.close().unwrap();
        judge_all(&images, &dropped, &kept);
    }
}

/// The pages on the drive still name values whose chunks belong to others by now.
#[test]
fn a_resumed_drop_frees_nothing_that_belongs_to_others() {
    for seed in 0..parameter("ISOBATH_SEEDS", 2) {
        let (device, simulation) = create(seed);
        let tree = simulation.store().create_tree("t").unwrap();
        let (mut dropped, mut kept) = (Model::new(), Model::new());
        for number in 0..30 {
            put(&tree, &mut dropped, number, 9000, number);
        }
        drop(tree);
        simulation.close().unwrap();

        let volume = Volume::from_device(device.clone());
        let mut simulation = Simulation::open(volume, &options(), seed).unwrap();
        let tree = simulation.store().tree("t").unwrap();
        let other = simulation.store().create_tree("kept").unwrap();
        for number in 0..30 {
            put(&tree, &mut dropped, number, 100, number);
        }
        for number in 0..30 {
            put(&other, &mut kept, number, 9000, 1000 + number);
        }
        let images = images_of_drop(&mut simulation, &device, seed);
        simulation.close().unwrap();
        judge_all(&images, &dropped, &kept);
    }
}

/// The end of a drop: its records and those that come after it are often on
/// different sides of a cut.
#[test]
fn small_trees_are_dropped_beside_other_commits() {
    for seed in 0..parameter("ISOBATH_SEEDS", 1) {
        let (device, mut simulation) = create(seed);
        let other = simulation.store().create_tree("kept").unwrap();
        for number in 0..TREES {
            let tree = simulation
                .store()
                .create_tree(&format!("t{number}"))
                .unwrap();
            tree.insert(b"large", &value(number, 5000)).unwrap();
        }
        let ended = Arc::new(AtomicUsize::new(0));
        let (store, tell) = (simulation.store().clone(), Arc::clone(&ended));
        let mut tasks = vec![simulation.spawn(0, move || {
            for number in 0..TREES {
                store.drop_tree(&format!("t{number}")).unwrap();
            }
            tell.fetch_add(1, Ordering::Relaxed);
        })];
        for task in 0..3 {
            let (other, tell) = (other.clone(), Arc::clone(&ended));
            tasks.push(simulation.spawn(task as usize, move || {
                for number in 0..20 {
                    other.insert(&key(number), &value(task, 500)).unwrap();
                }
                tell.fetch_add(1, Ordering::Relaxed);
            }));
        }
        let outcomes = [Survivors::None, Survivors::Random];
        let images = images_until(&mut simulation, (&device, seed), &outcomes, || {
            ended.load(Ordering::Relaxed) == tasks.len()
        });
        tasks.into_iter().for_each(|task| task.join().unwrap());
        simulation.close().unwrap();
        for image in images {
            let simulation = image.open();
            image.check(simulation.store());
            simulation.close().unwrap();
        }
    }
}

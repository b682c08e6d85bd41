//! The power is cut at many moments of each operation: it has happened or not, and nothing of it is
//! left over.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{attributes, dump, small, sound};
use isobath::{Options, Simulation, Store, Volume};
use isobath_files::{FileTree, ImportOptions, PIECE_BYTES};
use isobath_io::{FaultDevice, FaultPlan, Survivors};

fn options() -> Options {
    small().volume_limit_bytes(Some(96 << 20))
}

/// Images that are taken of each operation.
const IMAGES: usize = 8;

fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..length).map(|_| random.u8(..)).collect()
}

/// A tree with something to do everything with.
fn fill(files: &FileTree) {
    let (file, directory) = (attributes(0o640), attributes(0o750));
    for path in ["a", "a/b", "a/b/c", "empty", "d"] {
        files.create_directory(path, &directory).unwrap();
    }
    for n in 0..150u64 {
        let length = [0, 40, 3000][n as usize % 3];
        files
            .write(format!("a/b/{n}"), &noise(n, length), &file)
            .unwrap();
    }
    files
        .write("large", &noise(1, 3 * PIECE_BYTES), &file)
        .unwrap();
    files.write("d/old", b"old", &file).unwrap();
    files.link("large", "d/same").unwrap();
    files.link("a/b/7", "d/seven").unwrap();
    files.create_link("d/link", "../a", &file).unwrap();
}

type Operation = Arc<dyn Fn(&FileTree) + Send + Sync>;

/// Runs the operation once, takes images of the drive during it, and opens each.
fn cut(name: &str, seed: u64, operation: &Operation) {
    let plan = FaultPlan::new(seed).latency_us(0..=20);
    let device = FaultDevice::new(0, plan.max_bytes(Some(96 << 20)));
    let volume = Volume::from_device(device.clone());
    let mut simulation = Simulation::new(volume, &options(), seed).unwrap();
    let files = FileTree::open_or_create(simulation.store(), "files").unwrap();
    fill(&files);
    let before = dump(&files.view().unwrap());
    drop(files);
    // The same without images, for how many steps it takes.
    let steps = run(&mut simulation, None, operation);
    let files = FileTree::open(simulation.store(), "files").unwrap();
    let after = dump(&files.view().unwrap());
    sound(&files);
    drop(files);
    simulation.close().unwrap();
    assert_ne!(before, after, "{name} does something");

    let device = FaultDevice::new(
        0,
        FaultPlan::new(seed)
            .latency_us(0..=20)
            .max_bytes(Some(96 << 20)),
    );
    let volume = Volume::from_device(device.clone());
    let mut simulation = Simulation::new(volume, &options(), seed).unwrap();
    let files = FileTree::open_or_create(simulation.store(), "files").unwrap();
    fill(&files);
    drop(files);
    let mut images = Vec::new();
    let every = steps / IMAGES as u64 + 1;
    let mut take = |step: u64| {
        // Of the first moments more: that is where most operations commit.
        if step.is_multiple_of(every) || (step < every && step.is_power_of_two()) {
            let which = [Survivors::Random, Survivors::None, Survivors::Executed];
            let survivors = which[images.len() % 3];
            images.push(device.crash_image(survivors, step));
        }
    };
    run(&mut simulation, Some(&mut take), operation);
    simulation.close().unwrap();
    assert!(
        images.len() >= IMAGES / 2,
        "{name}: {} images",
        images.len()
    );
    let (mut happened, count) = (0, images.len());
    for (number, image) in images.into_iter().enumerate() {
        let what = format!("{name}, seed {seed}, image {number}");
        let simulation = Simulation::open(Volume::from_device(image), &options(), seed);
        let simulation = simulation.unwrap_or_else(|error| panic!("{what}: {error}"));
        let files = FileTree::open(simulation.store(), "files").unwrap();
        let found = dump(&files.view().unwrap());
        assert!(found == before || found == after, "{what}: half of it");
        sound(&files);
        if found == before {
            operation(&files);
            assert_eq!(dump(&files.view().unwrap()), after, "{what}: once more");
            sound(&files);
        } else {
            happened += 1;
        }
        drop(files);
        simulation.close().unwrap();
    }
    assert!(happened < count, "{name}: no image is early enough");
}

/// Runs the operation as a task; how many steps it took.
fn run(
    simulation: &mut Simulation,
    mut each: Option<&mut dyn FnMut(u64)>,
    operation: &Operation,
) -> u64 {
    let store: Store = simulation.store().clone();
    let (ended, operation) = (Arc::new(AtomicBool::new(false)), Arc::clone(operation));
    let ends = Arc::clone(&ended);
    let task = simulation.spawn(0, move || {
        let files = FileTree::open(&store, "files").unwrap();
        operation(&files);
        ends.store(true, Ordering::SeqCst);
    });
    let mut steps = 0;
    while !ended.load(Ordering::SeqCst) {
        simulation.step();
        steps += 1;
        if let Some(each) = &mut each {
            each(steps);
        }
        assert!(steps < 10_000_000, "it does not end");
    }
    task.join().unwrap();
    steps
}

fn cut_each(operations: Vec<(&str, Operation)>) {
    for (seed, (name, operation)) in (1..).zip(&operations) {
        cut(name, seed, operation);
    }
}

#[test]
fn names_change_whole_or_not_at_all() {
    cut_each(vec![
        (
            "a directory moves",
            Arc::new(|files: &FileTree| files.rename("a/b", "d/moved").unwrap()),
        ),
        (
            "a directory replaces one",
            Arc::new(|files: &FileTree| files.rename("a/b", "empty").unwrap()),
        ),
        (
            "a file replaces a name of a large one",
            Arc::new(|files: &FileTree| files.rename("d/old", "large").unwrap()),
        ),
        (
            "a link is made",
            Arc::new(|files: &FileTree| files.link("large", "empty/third").unwrap()),
        ),
    ]);
}

#[test]
fn removals_leave_nothing() {
    cut_each(vec![
        (
            "one of two names goes",
            Arc::new(|files: &FileTree| files.remove("large").unwrap()),
        ),
        (
            "a directory goes with all below it",
            Arc::new(|files: &FileTree| files.remove_all("a").unwrap()),
        ),
        (
            "a name of a large file goes, and another one's contents",
            Arc::new(|files: &FileTree| files.remove_all("d").unwrap()),
        ),
    ]);
}

#[test]
fn contents_change_whole_or_not_at_all() {
    cut_each(vec![
        (
            "large contents are replaced",
            Arc::new(|files: &FileTree| {
                let contents = noise(9, 20 * PIECE_BYTES + 5);
                files.write("large", &contents, &attributes(0)).unwrap();
            }),
        ),
        (
            "small ones replace large ones",
            Arc::new(|files: &FileTree| files.write("large", b"x", &attributes(0)).unwrap()),
        ),
    ]);
}

#[test]
fn imports_are_there_whole_or_not_at_all() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("tree");
    std::fs::create_dir_all(root.join("x/y/z")).unwrap();
    for n in 0..250 {
        let length = [0, 100, 1500][n % 3];
        std::fs::write(root.join(format!("x/{n}")), noise(n as u64, length)).unwrap();
    }
    std::fs::write(root.join("x/y/large"), noise(5, 19 * PIECE_BYTES)).unwrap();
    std::fs::hard_link(root.join("x/7"), root.join("x/y/z/seven")).unwrap();
    let (one, two) = (root.clone(), root);
    let replace = ImportOptions {
        replace: true,
        ..ImportOptions::default()
    };
    cut_each(vec![
        (
            "a tree is imported",
            Arc::new(move |files: &FileTree| {
                let options = ImportOptions::default();
                files.import(&one, "empty/new", options, &()).unwrap();
            }),
        ),
        (
            "a tree replaces one",
            Arc::new(move |files: &FileTree| {
                files.import(&two, "a", replace, &()).unwrap();
            }),
        ),
    ]);
}

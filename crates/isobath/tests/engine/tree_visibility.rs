//! Bulk loads, and names of trees that are made and dropped, are visible once they are durable; if
//! they never will be, readers find the store as it was.

#![allow(missing_docs, clippy::unwrap_used)]

use super::common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use common::{parameter, tiny};

use isobath::{Canary, How, LoadError, Options, Simulation, Store, Switches, Tree, Volume};
use isobath_io::{Fault, FaultDevice, FaultPlan, FaultRule, IoErrorKind, Op, Survivors, Trigger};

const LOADED: usize = 40;

fn options() -> Options {
    tiny(2, 8)
        .volume_limit_bytes(Some(96 << 20))
        .log_bytes(4 << 20)
}

fn seeds() -> std::ops::Range<u64> {
    0..parameter("ISOBATH_SEEDS", 6)
}

fn records() -> impl Iterator<Item = (String, Vec<u8>)> {
    let length = |n: usize| if n == 17 { 9_000 } else { 100 };
    (0..LOADED).map(move |n| (format!("l{n:02}"), vec![n as u8; length(n)]))
}

fn lists(store: &Store, name: &str) -> bool {
    store.trees().unwrap().iter().any(|tree| tree.name == name)
}

/// How many loaded records a scan finds; it must not begin in the middle of them.
fn count(keys: impl Iterator<Item = Vec<u8>>) -> usize {
    keys.filter(|key| key.starts_with(b"l")).count()
}

fn in_range(tree: &Tree) -> usize {
    count(tree.range(..).map(|record| record.unwrap().0))
}

fn in_range_reverse(tree: &Tree) -> usize {
    count(tree.range(..).rev().map(|record| record.unwrap().0))
}

fn in_scan(tree: &Tree) -> usize {
    let mut found = 0;
    let visit = |key: &[u8], _: &[u8]| {
        found += usize::from(key.starts_with(b"l"));
        true
    };
    tree.scan(.., visit).unwrap();
    found
}

/// `None` if the snapshot cannot read the tree because of the load.
fn in_snapshot(store: &Store, tree: &Tree) -> Option<usize> {
    let snapshot = store.snapshot().unwrap();
    let records: Result<Vec<_>, _> = snapshot.range(tree, ..).ok()?.collect();
    let found = snapshot.get(tree, "l03").ok()?;
    let number = count(records.ok()?.into_iter().map(|record| record.0));
    assert_eq!(found.is_some(), number > 0);
    Some(number)
}

/// Whether a reader who looks in this way sees what was done.
type Look = Box<dyn Fn(&Store, &Tree) -> bool + Send>;

/// Ways to see that `t` was loaded.
fn looks_at_records() -> Vec<Look> {
    vec![
        Box::new(|_, tree| tree.get("l03").unwrap().is_some()),
        Box::new(|_, tree| tree.get("l17").unwrap().is_some()),
        Box::new(|_, tree| tree.contains("l05").unwrap()),
        Box::new(|_, tree| tree.get_many(&["l01", "l17"]).unwrap()[0].is_some()),
        Box::new(|_, tree| tree.reader("l17").unwrap().is_some()),
        Box::new(|_, tree| in_range(tree) > 0),
        Box::new(|_, tree| in_range_reverse(tree) > 0),
        Box::new(|_, tree| in_scan(tree) > 0),
        Box::new(|_, tree| tree.last().unwrap().unwrap().0 != b"a"),
        Box::new(|store, tree| in_snapshot(store, tree).is_some_and(|found| found > 0)),
    ]
}

/// Ways to see that `made` was made, then ways to see that `gone` was dropped.
fn looks_at_names() -> [Vec<Look>; 2] {
    [
        vec![
            Box::new(|store, _| store.tree("made").is_ok()),
            Box::new(|store, _| lists(store, "made")),
        ],
        vec![
            Box::new(|store, _| store.tree("gone").is_err()),
            Box::new(|store, _| !lists(store, "gone")),
        ],
    ]
}

/// Watchers wait until each sees what is done; then the power is cut, and what was seen has to be
/// there.
fn watch(seed: u64, options: &Options) {
    let device = FaultDevice::new(0, FaultPlan::new(seed).latency_us(0..=200));
    let simulation = Simulation::new(Volume::from_device(device.clone()), options, seed).unwrap();
    let store = simulation.store().clone();
    let tree = store.create_tree("t").unwrap();
    tree.insert("a", "before").unwrap();
    store.create_tree("gone").unwrap();
    let [made, gone] = looks_at_names();
    let (first_made, first_gone) = (
        looks_at_records().len(),
        looks_at_records().len() + made.len(),
    );
    let looks = looks_at_records().into_iter().chain(made).chain(gone);
    let watchers: Vec<_> = looks
        .enumerate()
        .map(|(at, look)| {
            let (store, tree, device) = (store.clone(), tree.clone(), device.clone());
            simulation.spawn(at, move || {
                while !look(&store, &tree) {
                    isobath::yield_now();
                }
                device.crash_image(Survivors::None, at as u64)
            })
        })
        .collect();
    let changes = {
        let (store, tree) = (store.clone(), tree.clone());
        simulation.spawn(0, move || {
            assert_eq!(tree.bulk_load(records()).unwrap(), LOADED as u64);
            store.create_tree("made").unwrap();
            store.drop_tree("gone").unwrap();
        })
    };
    changes.join().unwrap();
    let images: Vec<_> = watchers.into_iter().map(|w| w.join().unwrap()).collect();
    drop((store, tree));
    simulation.close().unwrap();
    for (at, image) in images.into_iter().enumerate() {
        let simulation = Simulation::open(Volume::from_device(image), options, seed).unwrap();
        let store = simulation.store();
        let is_there = if at < first_made {
            in_range(&store.tree("t").unwrap()) == LOADED
        } else if at < first_gone {
            lists(store, "made")
        } else {
            !lists(store, "gone")
        };
        assert!(is_there, "seed {seed}, look {at}");
        simulation.close().unwrap();
    }
}

#[test]
fn loads_and_names_of_trees_are_visible_once_they_are_durable() {
    for seed in seeds() {
        watch(seed, &options());
    }
}

#[test]
fn this_would_find_loads_and_names_that_are_shown_early() {
    let found = std::thread::spawn(|| {
        Canary::ShowEarly.switch_on();
        (0..20).for_each(|seed| watch(seed, &options()));
    });
    assert!(found.join().is_err());
}

/// A load that is refused, because a record was inserted behind its first key during it, hides
/// nothing.
fn overtake(seed: u64) {
    // A load is refused within a few steps without a wait: others come between them only by
    // interruption.
    let how = How::EveryPlace {
        rate: 0.5,
        max_steps: 300,
    };
    Switches::new(how).switch_on();
    let device = FaultDevice::new(0, FaultPlan::new(seed).latency_us(0..=200));
    let simulation = Simulation::new(Volume::from_device(device), &options(), seed).unwrap();
    let store = simulation.store().clone();
    let tree = store.create_tree("t").unwrap();
    let ended = Arc::new(AtomicBool::new(false));
    let load = {
        let (tree, ended) = (tree.clone(), Arc::clone(&ended));
        simulation.spawn(0, move || {
            let inserting = tree.clone();
            let overtaken = records().inspect(|(key, _)| {
                if key == "l20" {
                    inserting.insert("l21", "first").unwrap();
                }
            });
            let refused = tree.bulk_load(overtaken);
            ended.store(true, SeqCst);
            assert!(
                matches!(refused, Err(LoadError::LoadOrder { .. })),
                "{refused:?}"
            );
        })
    };
    let reader = simulation.spawn(1, move || {
        let mut was_there = false;
        while !ended.load(SeqCst) {
            let is_there = tree.get("l21").unwrap().is_some();
            assert!(is_there || !was_there, "seed {seed}: a record is hidden");
            was_there = in_range(&tree) == 1;
            assert!(
                was_there || !is_there,
                "seed {seed}: a range hides a record"
            );
            isobath::yield_now();
        }
        was_there
    });
    load.join().unwrap();
    assert!(reader.join().unwrap());
    drop(store);
    simulation.close().unwrap();
}

#[test]
fn loads_that_are_refused_hide_nothing() {
    (0..parameter("ISOBATH_SEEDS", 20)).for_each(overtake);
}

/// Every write from the `first` one on fails. Returns whether all was acknowledged.
fn fail_from(first: u64, seed: u64) -> bool {
    let what = format!("seed {seed}, writes fail from {first} on");
    let device = FaultDevice::new(0, FaultPlan::new(seed).latency_us(0..=200));
    let simulation =
        Simulation::new(Volume::from_device(device.clone()), &options(), seed).unwrap();
    let store = simulation.store().clone();
    let tree = store.create_tree("t").unwrap();
    tree.insert("a", "before").unwrap();
    store.create_tree("gone").unwrap();
    let failure = Fault::Error(IoErrorKind::Media);
    let rule = FaultRule::new(failure, Trigger::From(first)).ops(&[Op::Write, Op::Flush]);
    device.add_rule(rule);
    let loaded = tree.bulk_load(records()).is_ok();
    let made = store.create_tree("made").is_ok();
    let dropped = store.drop_tree("gone").is_ok();

    let found = in_range(&tree);
    assert!(found == 0 || found == LOADED, "{what}: {found} records");
    let sees = found > 0;
    assert!(sees || !loaded, "{what}: acknowledged, not seen");
    for (at, look) in looks_at_records().iter().enumerate() {
        assert_eq!(look(&store, &tree), sees, "{what}: look {at}");
    }
    assert_eq!(in_snapshot(&store, &tree), Some(found), "{what}");
    assert_eq!(
        tree.get("a").unwrap().as_deref(),
        Some(&b"before"[..]),
        "{what}"
    );
    let seen = [lists(&store, "made"), !lists(&store, "gone")];
    assert!(seen[0] >= made && seen[1] >= dropped, "{what}: {seen:?}");
    for (looks, seen) in looks_at_names().iter().zip(seen) {
        assert!(
            looks.iter().all(|look| look(&store, &tree) == seen),
            "{what}"
        );
    }
    drop((store, tree));
    let image: Arc<FaultDevice> = device.crash_image(Survivors::None, seed);
    let _ = simulation.close();

    let simulation = Simulation::open(Volume::from_device(image), &options(), seed).unwrap();
    let store = simulation.store();
    let left = in_range(&store.tree("t").unwrap());
    assert!(left == LOADED || left == 0 && !sees, "{what}: {left} left");
    assert!(lists(store, "made") >= seen[0], "{what}");
    assert!(!lists(store, "gone") >= seen[1], "{what}");
    simulation.close().unwrap();
    loaded && made && dropped
}

#[test]
fn what_will_never_be_durable_is_not_visible() {
    for seed in seeds() {
        let all = (0..200).find(|&first| fail_from(first, seed));
        // The first failure comes at every write of the three, and then behind them.
        assert!(all.is_some_and(|first| first > 5), "{all:?}");
    }
}

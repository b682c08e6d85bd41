//! Backups of stores in use: what is restored is one state of the store, with everything that was
//! acknowledged before, and every file that is not whole is refused.

#![allow(missing_docs, clippy::unwrap_used, clippy::big_endian_bytes)]

use super::common;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Model, Random, assert_sound, contents, key, parameter, value};
use isobath::{
    BackupError, BackupFileError, BackupOptions, BackupReport, Canary, Error, Options, Simulation,
    Store, TransactionOptions, Tree, Volume,
};
use isobath_io::{FaultDevice, FaultPlan};

mod wrong_files;

pub(super) fn options() -> Options {
    Options::new()
        .pool_bytes(4 << 20)
        .workers(2)
        .tasks_per_worker(16)
        .segment_bytes(64 << 10)
        .log_bytes(4 << 20)
        .publish_stats(false)
}

pub(super) struct Place(tempfile::TempDir);

impl Place {
    pub(super) fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    pub(super) fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(self.0.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    pub(super) fn restore(&self, backups: &[&str], name: &str) -> Result<Store, Error> {
        let backups: Vec<PathBuf> = backups.iter().map(|name| self.at(name)).collect();
        let paths = [self.at(name)];
        Store::restore(&backups, &paths, &options(), &mut on)?;
        Ok(Store::open(&paths, &options())?)
    }
}

fn on(_: &str, _: u64, _: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn back_up(store: &Store, to: &Path) -> BackupReport {
    store.backup(to, &BackupOptions::new(), &mut on).unwrap()
}

fn back_up_since(store: &Store, to: &Path, base: &Path) -> BackupReport {
    let options = BackupOptions::new().since(base);
    store.backup(to, &options, &mut on).unwrap()
}

/// Changes to a tree, at random, and to the model.
fn change(tree: &Tree, model: &mut Model, random: &mut Random, count: u64) {
    for _ in 0..count {
        let k = key(random.below(3000));
        if random.below(5) == 0 {
            tree.remove(&k).unwrap();
            model.remove(&k);
        } else {
            let length = random.one_of(&[0, 30, 200, 900, 3000, 40_000]);
            let v = value(random.bits(), length);
            tree.insert(&k, &v).unwrap();
            model.insert(k, v);
        }
    }
}

#[test]
fn a_chain_restores_every_state_that_it_was_made_of() {
    let place = Place::new();
    let store = Store::create(&[place.at("s")], &options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    let mut random = Random::new(parameter("ISOBATH_SEED", 1));
    let mut model = Model::new();
    let mut states = Vec::new();
    let mut reports = Vec::new();
    change(&tree, &mut model, &mut random, 2500);
    for generation in 0..4 {
        let name = format!("b{generation}");
        let report = if generation == 0 {
            back_up(&store, &place.at(&name))
        } else {
            back_up_since(
                &store,
                &place.at(&name),
                &place.at(&format!("b{}", generation - 1)),
            )
        };
        reports.push(report);
        states.push((name, model.clone(), store.trees().unwrap()));
        change(&tree, &mut model, &mut random, 60);
        // Trees come and go, with values of their own.
        let extra = store.create_tree(&format!("extra{generation}")).unwrap();
        extra.insert(b"large", &value(generation, 300_000)).unwrap();
        if generation > 0 {
            store
                .drop_tree(&format!("extra{}", generation - 1))
                .unwrap();
        }
    }
    store.close().unwrap();
    for report in &reports[1..] {
        assert!(report.pages * 2 < reports[0].pages, "{reports:?}");
        assert!(report.store_pages > reports[0].pages / 2);
    }
    let names: Vec<&str> = states.iter().map(|(name, ..)| &name[..]).collect();
    for (at, (name, model, trees)) in states.iter().enumerate() {
        let to = format!("r{at}");
        let restored = place.restore(&names[..=at], &to).unwrap();
        assert_eq!(&restored.trees().unwrap(), trees, "{name}");
        assert!(contents(&restored.tree("t").unwrap()) == *model, "{name}");
        assert_sound(&restored, None);
        // It is a store like any other.
        let tree = restored.tree("t").unwrap();
        let mut model = model.clone();
        change(&tree, &mut model, &mut random, 500);
        restored.close().unwrap();
        let restored = Store::open(&[place.at(&to)], &options()).unwrap();
        assert!(contents(&restored.tree("t").unwrap()) == model);
        assert_sound(&restored, None);
        // But not the one that the backups are of.
        let wrong = restored.backup(
            &place.at("wrong"),
            &BackupOptions::new().since(place.at(name)),
            &mut on,
        );
        assert!(
            matches!(wrong, Err(BackupError::BackupChain { .. })),
            "{wrong:?}"
        );
        restored.close().unwrap();
    }
}

/// Stops the writers, whether the test passes or not.
pub(super) struct Stops<'s>(pub(super) &'s AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

const ACCOUNTS: u64 = 400;
const START: u64 = 1000;

fn amount(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

/// Moves money between two accounts, whose records carry something to fill pages with.
fn transfer(store: &Store, tree: &Tree, random: &mut Random) {
    let (from, to) = (random.below(ACCOUNTS), random.below(ACCOUNTS));
    if from == to {
        return;
    }
    let sum = random.below(50);
    store
        .transact(TransactionOptions::new().attempts(1000), |transaction| {
            let mut a = transaction.get(tree, &key(from))?.unwrap();
            let mut b = transaction.get(tree, &key(to))?.unwrap();
            let sum = sum.min(amount(&a));
            let (a_new, b_new) = (amount(&a) - sum, amount(&b) + sum);
            a[..8].copy_from_slice(&a_new.to_le_bytes());
            b[..8].copy_from_slice(&b_new.to_le_bytes());
            transaction.insert(tree, &key(from), &a)?;
            transaction.insert(tree, &key(to), &b)
        })
        .unwrap();
}

/// What [`keep_busy`] writes to.
fn create_trees(store: &Store) {
    let accounts = store.create_tree("accounts").unwrap();
    store.create_tree("numbers").unwrap();
    store.create_tree("large").unwrap();
    for account in 0..ACCOUNTS {
        let mut record = START.to_le_bytes().to_vec();
        record.resize(600, 7);
        accounts.insert(&key(account), &record).unwrap();
    }
}

/// Writers of every kind on `store` until `stop`: transfers; a log of rising numbers, each
/// acknowledged before it is counted; large values that come and go; trees that are loaded and
/// dropped.
fn keep_busy(store: &Store, who: u64, stop: &AtomicBool, acknowledged: &AtomicU64) {
    let mut random = Random::new(who);
    let accounts = store.tree("accounts").unwrap();
    let numbers = store.tree("numbers").unwrap();
    let large = store.tree("large").unwrap();
    let mut n = 0u64;
    while !stop.load(Ordering::Relaxed) {
        n += 1;
        match who {
            0 => transfer(store, &accounts, &mut random),
            1 => {
                numbers.insert(&n.to_be_bytes(), &value(n, 100)).unwrap();
                acknowledged.store(n, Ordering::SeqCst);
            }
            2 => {
                let k = key(random.below(12));
                let length = 1000 + random.below(150_000) as usize;
                let mut v = value(n, length);
                v.splice(..0, n.to_le_bytes());
                large.insert(&k, &v).unwrap();
            }
            _ => {
                let name = format!("dropped{}", n % 3);
                let tree = store.open_or_create_tree(&name).unwrap();
                let records = (0..300u64).map(|i| (i.to_be_bytes(), value(i, 500)));
                tree.bulk_load(records).unwrap();
                tree.insert(b"\xff", &value(n, 70_000)).unwrap();
                store.drop_tree(&name).unwrap();
            }
        }
    }
}

fn assert_one_state(store: &Store, acknowledged: u64) {
    let accounts = store.tree("accounts").unwrap();
    let total: u64 = contents(&accounts)
        .values()
        .map(|bytes| amount(bytes))
        .sum();
    assert_eq!(total, ACCOUNTS * START, "half a transfer");
    let numbers = contents(&store.tree("numbers").unwrap());
    assert!(
        numbers.len() as u64 >= acknowledged,
        "an acknowledged number is missing"
    );
    for (at, (k, v)) in numbers.iter().enumerate() {
        let n = at as u64 + 1;
        assert!(
            k[..] == n.to_be_bytes() && *v == value(n, 100),
            "number {n}"
        );
    }
    for v in contents(&store.tree("large").unwrap()).values() {
        let n = amount(v);
        assert!(v[8..] == value(n, v.len() - 8), "large value {n}");
    }
    for tree in store.trees().unwrap() {
        if tree.name.starts_with("dropped") {
            let tree = store.tree(&tree.name).unwrap();
            let records = tree.range(..).count();
            assert!([0, 300, 301].contains(&records), "{records} loaded records");
        }
    }
    assert_sound(store, None);
}

/// Backups one after another while writers are busy; each is restored and looked at.
fn back_up_under_load(options: &Options, backups: u64) {
    let place = Place::new();
    let store = Store::create(&[place.at("s")], options).unwrap();
    create_trees(&store);
    let (stop, acknowledged) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut made: Vec<(String, u64)> = Vec::new();
    std::thread::scope(|scope| {
        let _stops = Stops(&stop);
        for who in 0..4 {
            let (store, stop, acknowledged) = (&store, &stop, &acknowledged);
            scope.spawn(move || keep_busy(store, who, stop, acknowledged));
        }
        for n in 0..backups {
            std::thread::sleep(Duration::from_millis(150));
            let before = acknowledged.load(Ordering::SeqCst);
            let name = format!("b{n}");
            let report = match made.last() {
                // Two chains of three.
                Some((base, _)) if n % 3 != 0 => {
                    back_up_since(&store, &place.at(&name), &place.at(base))
                }
                _ => back_up(&store, &place.at(&name)),
            };
            assert!(report.rounds >= 1);
            made.push((name, before));
        }
    });
    assert_sound(&store, None);
    store.close().unwrap();
    for (at, (_, before)) in made.iter().enumerate() {
        let chain: Vec<&str> = made[at - at % 3..=at].iter().map(|(n, _)| &n[..]).collect();
        let name = format!("r{at}");
        let restored = place.restore(&chain, &name).unwrap();
        assert_one_state(&restored, *before);
        restored.close().unwrap();
        std::fs::remove_file(place.at(&name)).unwrap();
    }
}

#[test]
fn what_writers_do_meanwhile_is_all_there_or_not_at_all() {
    back_up_under_load(&options(), parameter("ISOBATH_BACKUPS", 6));
}

#[test]
fn beside_cleaning_on_a_small_volume() {
    // Some 14 MiB, of which the log takes a quarter.
    let small = options().volume_limit_bytes(Some(16 << 20));
    back_up_under_load(&small, parameter("ISOBATH_BACKUPS", 6));
}

/// Tasks on three workers, stepped in an order that the seed chooses, beside two backups.
#[test]
fn in_any_order_of_steps() {
    let first = parameter("ISOBATH_SEED", 1);
    for seed in first..first + parameter("ISOBATH_SEEDS", 12) {
        let place = Place::new();
        let options = common::tiny(3, 8).log_bytes(4 << 20);
        let device = FaultDevice::new(0, FaultPlan::new(seed));
        let volume = Volume::from_device(device);
        let simulation = Simulation::new(volume, &options, seed).unwrap();
        let store = simulation.store();
        create_trees(store);
        let accounts = store.tree("accounts").unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let acknowledged = Arc::new(AtomicU64::new(0));
        let tasks: Vec<_> = (0..4)
            .map(|who| {
                let (store, stop) = (store.clone(), Arc::clone(&stop));
                let acknowledged = Arc::clone(&acknowledged);
                simulation.spawn(who as usize, move || {
                    keep_busy(&store, who, &stop, &acknowledged);
                })
            })
            .collect();
        let mut before = Vec::new();
        for (name, base) in [("full", None), ("more", Some("full"))] {
            while acknowledged.load(Ordering::SeqCst) < 20 * (before.len() as u64 + 1) {
                accounts.contains(b"").unwrap();
                store.tree("numbers").unwrap().insert(b"", b"").unwrap();
                store.tree("numbers").unwrap().remove(b"").unwrap();
            }
            before.push(acknowledged.load(Ordering::SeqCst));
            match base {
                None => back_up(store, &place.at(name)),
                Some(base) => back_up_since(store, &place.at(name), &place.at(base)),
            };
        }
        stop.store(true, Ordering::Relaxed);
        for task in tasks {
            task.join().unwrap();
        }
        simulation.close().unwrap();
        for (chain, before) in [(&["full"][..], before[0]), (&["full", "more"], before[1])] {
            let restored = place.restore(chain, "r").unwrap();
            assert_one_state(&restored, before);
            restored.close().unwrap();
            std::fs::remove_file(place.at("r")).unwrap();
        }
    }
}

/// A writer that logs more than the log holds during every round: further rounds release the log,
/// and the last one keeps it, even while writers wait.
#[test]
fn a_log_that_fills_up_meanwhile_is_kept_in_the_end() {
    let place = Place::new();
    let store = Store::create(&[place.at("s")], &options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    for n in 0..2000 {
        tree.insert(&key(n), &value(n, 900)).unwrap();
    }
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut before = 0;
    std::thread::scope(|scope| {
        let _stops = Stops(&stop);
        let (store, tree, stop, written) = (&store, &tree, &stop, &written);
        scope.spawn(move || {
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                let mut transaction = store.begin().unwrap();
                for at in (n % 8) * 60..(n % 8 + 1) * 60 {
                    let value = value(10_000 + n, 900);
                    transaction.insert(tree, &key(at), &value).unwrap();
                }
                transaction.commit().unwrap();
                n += 1;
                written.store(n, Ordering::SeqCst);
            }
        });
        // Goes on once the log would be overwritten, or the writer waits: at first it may only wait
        // for a processor.
        let mut patience = Duration::from_secs(5);
        let mut watch = |stage: &str, _, _| {
            let began = written.load(Ordering::SeqCst);
            let mut last = (began, Instant::now());
            while stage.starts_with("copying") && last.0 < began + 120 {
                std::thread::sleep(Duration::from_millis(20));
                let now = written.load(Ordering::SeqCst);
                if now > last.0 {
                    last = (now, Instant::now());
                } else if last.1.elapsed() > patience {
                    break;
                }
            }
            if stage.starts_with("copying") {
                patience = Duration::from_millis(300);
            }
            ControlFlow::Continue(())
        };
        before = written.load(Ordering::SeqCst);
        let report = store
            .backup(&place.at("b"), &BackupOptions::new(), &mut watch)
            .unwrap();
        assert!(report.rounds > 1, "{report:?}");
    });
    store.close().unwrap();
    let restored = place.restore(&["b"], "r").unwrap();
    let found = contents(&restored.tree("t").unwrap());
    assert_eq!(found.len(), 2000);
    // Up to some write everything, and nothing after it.
    let tags: BTreeMap<Vec<u8>, u64> = (0..written.into_inner())
        .map(|n| (value(10_000 + n, 900), n))
        .collect();
    let newest = found.values().filter_map(|v| tags.get(v)).max().copied();
    let newest = newest.unwrap();
    assert!(newest + 1 >= before);
    for at in 0..480 {
        let n = (0..=newest).rev().find(|n| n % 8 == at / 60);
        let want = n.map_or(value(at, 900), |n| value(10_000 + n, 900));
        assert!(found[&key(at)] == want, "key {at} of {newest}");
    }
    assert_sound(&restored, None);
    restored.close().unwrap();
}

#[test]
fn no_file_is_left_of_a_backup_that_failed() {
    let place = Place::new();
    let store = Store::create(&[place.at("s")], &options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    change(&tree, &mut Model::new(), &mut Random::new(4), 500);
    let names = place.names();
    for calls in [0, 1, 3] {
        let mut left = calls;
        let mut watch = |_: &str, _, _| {
            left -= 1;
            if left < 0 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        let stopped = store.backup(&place.at("b"), &BackupOptions::new(), &mut watch);
        assert!(
            matches!(stopped, Err(BackupError::Interrupted)),
            "{stopped:?}"
        );
        assert_eq!(place.names(), names);
    }
    // A device that is always full.
    std::os::unix::fs::symlink("/dev/full", place.at("b")).unwrap();
    let options = BackupOptions::new().verify(false);
    let full = store.backup(&place.at("b"), &options, &mut on);
    let Err(BackupError::File { source, .. }) = full else {
        panic!("{full:?}");
    };
    assert_eq!(source.kind(), std::io::ErrorKind::StorageFull);
    std::fs::remove_file(place.at("b")).unwrap();
    assert_eq!(place.names(), names);
    // The file stays, until it is to be replaced.
    std::fs::write(place.at("b"), b"mine").unwrap();
    let refused = store.backup(&place.at("b"), &BackupOptions::new(), &mut on);
    assert!(
        matches!(refused, Err(BackupError::FileExists { .. })),
        "{refused:?}"
    );
    assert_eq!(std::fs::read(place.at("b")).unwrap(), b"mine");
    store
        .backup(
            &place.at("b"),
            &BackupOptions::new().overwrite(true),
            &mut on,
        )
        .unwrap();
    // And the store works as before.
    change(&tree, &mut Model::new(), &mut Random::new(5), 500);
    assert_sound(&store, None);
    store.close().unwrap();
    let restored = place.restore(&["b"], "r").unwrap();
    assert_sound(&restored, None);
    restored.close().unwrap();
}

#[test]
fn stores_without_a_log_and_stores_for_reading() {
    let place = Place::new();
    for (at, options) in [options(), options().log_bytes(0)].into_iter().enumerate() {
        let (path, b) = (place.at(&format!("s{at}")), format!("b{at}"));
        let store = Store::create(&[&path], &options).unwrap();
        let tree = store.create_tree("t").unwrap();
        let mut model = Model::new();
        change(&tree, &mut model, &mut Random::new(6), 600);
        if at == 1 {
            let refused = store.backup(&place.at(&b), &BackupOptions::new(), &mut on);
            assert!(
                matches!(refused, Err(BackupError::BackupNeedsLog)),
                "{refused:?}"
            );
        }
        store.close().unwrap();
        let before = std::fs::read(&path).unwrap();
        let store = Store::open(&[&path], &options.clone().read_only(true)).unwrap();
        back_up(&store, &place.at(&b));
        store.close().unwrap();
        assert!(
            std::fs::read(&path).unwrap() == before,
            "reading has changed it"
        );
        // More, and only that.
        let store = Store::open(&[&path], &options).unwrap();
        let tree = store.tree("t").unwrap();
        change(&tree, &mut model, &mut Random::new(7), 20);
        store.close().unwrap();
        let store = Store::open(&[&path], &options.read_only(true)).unwrap();
        let more = format!("c{at}");
        let report = back_up_since(&store, &place.at(&more), &place.at(&b));
        assert!(report.pages * 2 < report.store_pages, "{report:?}");
        store.close().unwrap();
        let restored = place.restore(&[&b, &more], &format!("r{at}")).unwrap();
        assert!(contents(&restored.tree("t").unwrap()) == model);
        assert_sound(&restored, None);
        restored.close().unwrap();
    }
}

#[test]
fn a_log_on_a_device_of_its_own() {
    let place = Place::new();
    let apart = options().log_path(place.at("log"));
    let store = Store::create(&[place.at("s")], &apart).unwrap();
    let tree = store.create_tree("t").unwrap();
    let mut model = Model::new();
    change(&tree, &mut model, &mut Random::new(9), 600);
    back_up(&store, &place.at("b"));
    store.close().unwrap();
    let store = Store::open(&[place.at("s")], &options().read_only(true)).unwrap();
    back_up_since(&store, &place.at("c"), &place.at("b"));
    store.close().unwrap();
    for chain in [&["b"][..], &["b", "c"]] {
        let restored = place.restore(chain, "r").unwrap();
        let tree = restored.tree("t").unwrap();
        assert!(contents(&tree) == model);
        // It has a log: acknowledged commits survive.
        tree.insert(b"new", b"record").unwrap();
        assert!(restored.stats().log_bytes > 0);
        assert_sound(&restored, None);
        restored.close().unwrap();
        std::fs::remove_file(place.at("r")).unwrap();
    }
}

/// What `check` says of stores that were restored from a chain of backups, of a store with a value
/// that is being written and one that only a snapshot reads. Nothing is logged while the
/// incremental ones are made.
fn left_of_provisional_values() -> Vec<String> {
    let place = Place::new();
    let store = Store::create(&[place.at("s")], &options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    tree.insert(b"old", &[1; 100_000]).unwrap();
    back_up(&store, &place.at("a"));
    let mut unfinished = tree.writer(b"unfinished").unwrap();
    unfinished.append(&[2; 400_000]).unwrap();
    let snapshot = store.snapshot().unwrap();
    tree.insert(b"old", &[3; 100_000]).unwrap();
    back_up_since(&store, &place.at("b"), &place.at("a"));
    let report = back_up_since(&store, &place.at("c"), &place.at("b"));
    assert_eq!(report.log_bytes, 0);
    let mut problems = Vec::new();
    for chain in [&["a", "b"][..], &["a", "b", "c"]] {
        let restored = place.restore(chain, "r").unwrap();
        let report = restored.check(&mut |_, _| {}).unwrap();
        assert_eq!(report.records, 1);
        problems.extend(report.problems);
        restored.close().unwrap();
        std::fs::remove_file(place.at("r")).unwrap();
    }
    drop((snapshot, unfinished));
    store.close().unwrap();
    problems
}

#[test]
fn of_values_that_no_commit_names_nothing_is_restored() {
    assert_eq!(left_of_provisional_values(), Vec::<String>::new());
    Canary::RestoreAsClosed.switch_on();
    assert_ne!(left_of_provisional_values(), Vec::<String>::new());
}

#[test]
fn a_restored_store_has_its_log_on_its_own_volume_and_can_be_written() {
    let place = Place::new();
    let store = Store::create(&[place.at("a.iso")], &options()).unwrap();
    store.create_tree("t").unwrap().insert(b"k", b"v").unwrap();
    back_up(&store, &place.at("full"));
    store.close().unwrap();
    let apart = options().log_path(place.at("log"));
    Store::restore(&[place.at("full")], &[place.at("b.iso")], &apart, &mut on).unwrap();
    let store = Store::open(&[place.at("b.iso")], &options()).unwrap();
    assert_eq!(store.tree("t").unwrap().get(b"k").unwrap().unwrap(), b"v");
    store.close().unwrap();
    assert!(!place.at("log").exists());
    let volume = Volume::from_device(FaultDevice::new(0, FaultPlan::new(1)));
    let read_only = options().read_only(true);
    let refused =
        Store::restore_on_volume(&[place.at("full")], volume.clone(), &read_only, &mut on);
    assert!(refused.is_err());
    Store::restore_on_volume(&[place.at("full")], volume, &options(), &mut on).unwrap();
}

//! Salvage: one kind of structure is corrupted at a time, and the rest survives; what does not is
//! named.

#![allow(missing_docs, clippy::unwrap_used)]

use super::common;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use common::{Model, Random, assert_sound, bytes_of, image, key, parameter, value};
use isobath::{Options, SalvageOptions, SalvageReport, Simulation, Store, Volume, salvage_volume};
use isobath_io::{FaultDevice, FaultPlan, Survivors};

fn options() -> Options {
    Options::new()
        .pool_bytes(2 << 20)
        .workers(1)
        .tasks_per_worker(16)
        .segment_bytes(64 << 10)
        .log_bytes(4 << 20)
}

/// A store of two trees, closed or as a crash leaves it, and their records.
struct Sample {
    device: Arc<FaultDevice>,
    models: BTreeMap<&'static str, Model>,
}

fn sample(closed: bool) -> Sample {
    let device = FaultDevice::new(0, FaultPlan::new(1));
    let volume = Volume::from_device(device.clone());
    // Places of pages, and records in the log alone, are the same every time.
    let simulation = Simulation::new(volume, &options(), 1).unwrap();
    let store = simulation.store().clone();
    let for_threads = || {
        let plan = FaultPlan::new(1).sleeps(true);
        device.crash_image_with(Survivors::Executed, 0, plan)
    };
    let mut models = BTreeMap::new();
    let mut random = Random::new(5);
    for name in ["one", "two"] {
        let tree = store.create_tree(name).unwrap();
        let mut model = Model::new();
        // Everything twice, so that there are older copies.
        for n in (0..600).chain(0..600) {
            let length = random.one_of(&[0, 30, 200, 900, 9000]);
            let (k, v) = (key(n), value(random.bits(), length));
            tree.insert(&k, &v).unwrap();
            model.insert(k, v);
        }
        let v = value(7777, 100_000);
        let mut writer = tree.writer(b"stream").unwrap();
        v.chunks(9000).for_each(|part| writer.append(part).unwrap());
        writer.finish().unwrap();
        model.insert(b"stream".to_vec(), v);
        models.insert(name, model);
    }
    let gone = store.create_tree("gone").unwrap();
    gone.insert(b"old", b"record").unwrap();
    store.drop_tree("gone").unwrap();
    drop(store);
    let crashed = for_threads();
    simulation.close().unwrap();
    let device = if closed { for_threads() } else { crashed };
    Sample { device, models }
}

/// Salvages `device`; the new store has to be sound.
fn salvage(device: &Arc<FaultDevice>, search: bool) -> (SalvageReport, Store) {
    let before = bytes_of(device);
    let to = Store::in_memory(&Options::new().pool_bytes(16 << 20).workers(1)).unwrap();
    let options = SalvageOptions::new().search(search);
    let volume = Volume::from_device(device.clone());
    let report = salvage_volume(&volume, &to, &options, &mut |_, _, _| {
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(bytes_of(device) == before, "salvage has changed the store");
    assert_sound(&to, None);
    (report, to)
}

fn contents(store: &Store, name: &str) -> Model {
    common::contents(&store.tree(name).unwrap())
}

/// Every tree of the sample has all its records.
#[track_caller]
fn assert_all_there(store: &Store, sample: &Sample, context: &dyn std::fmt::Debug) {
    for (name, model) in &sample.models {
        assert!(contents(store, name) == *model, "{context:?}: {name}");
    }
}

/// Records of `want` that are in `found` as they should be.
fn right(found: &Model, want: &Model) -> usize {
    want.iter()
        .filter(|(k, v)| found.get(*k) == Some(*v))
        .count()
}

/// Offsets of blocks of 4096 bytes with a page of this kind.
fn blocks_of(bytes: &[u8], kind: u8) -> Vec<usize> {
    (65536..bytes.len())
        .step_by(4096)
        .filter(|&at| {
            let stored = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            // Chunks are longer; that one begins here is enough.
            bytes[at + 4] == kind
                && bytes[at + 6..at + 8] == [0, 0]
                && (kind == 3 || crc(&bytes[at + 4..at + 4096]) == stored)
        })
        .collect()
}

/// CRC-32C, bit by bit.
fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |mut crc, byte| {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
        }
        crc
    })
}

fn corrupt(device: &Arc<FaultDevice>, at: usize) {
    device.corrupt(at as u64 + 100..at as u64 + 101, |bytes| bytes[0] ^= 0x55);
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

#[test]
fn of_a_sound_store_everything() {
    for closed in [true, false] {
        let sample = sample(closed);
        for search in [false, true] {
            let (report, store) = salvage(&sample.device, search);
            assert_eq!(report.problems, Vec::<String>::new());
            assert_eq!(report.searched, search);
            assert_eq!(report.trees.len(), 2);
            // Those that only the log has count, too.
            let records: usize = sample.models.values().map(Model::len).sum();
            assert_eq!(report.records(), records as u64);
            assert_all_there(&store, &sample, &(closed, search));
            store.close().unwrap();
        }
    }
}

#[test]
fn superblocks_and_checkpoints() {
    let sample = sample(true);
    let pristine = bytes_of(&sample.device);
    let one = image(&sample.device);
    corrupt(&one, 0);
    let both = image(&one);
    corrupt(&both, 32768);
    let checkpoints = blocks_of(&pristine, 5);
    assert!(checkpoints.len() > 4);
    let no_checkpoint = image(&sample.device);
    checkpoints
        .iter()
        .for_each(|&at| corrupt(&no_checkpoint, at));
    for (what, device, searched) in [
        ("one superblock", one, false),
        ("both superblocks", both, true),
        ("no checkpoint", no_checkpoint, true),
    ] {
        let (report, store) = salvage(&device, false);
        assert!(!report.problems.is_empty(), "{what}");
        assert_eq!(report.searched, searched, "{what}");
        assert_all_there(&store, &sample, &(what, &report));
        store.close().unwrap();
    }
    // A page of the checkpoint at a time.
    for at in checkpoints {
        let device = image(&sample.device);
        corrupt(&device, at);
        let (_, store) = salvage(&device, false);
        assert_all_there(&store, &sample, &("checkpoint page at", at));
        store.close().unwrap();
    }
}

#[test]
fn a_page_or_chunk_at_a_time() {
    let sample = sample(true);
    let pristine = bytes_of(&sample.device);
    let all: usize = sample.models.values().map(Model::len).sum();
    let every = parameter("ISOBATH_SALVAGE_EVERY", 17) as usize;
    let mut told = 0;
    for kind in [1, 2, 3, 4] {
        let blocks = blocks_of(&pristine, kind);
        assert!(!blocks.is_empty(), "kind {kind}");
        let step = if kind == 2 || kind == 4 {
            every / 4
        } else {
            every
        };
        for at in blocks.into_iter().step_by(step.max(1)) {
            let device = image(&sample.device);
            corrupt(&device, at);
            let (report, store) = salvage(&device, false);
            let tree = u32::from_le_bytes(pristine[at + 32..at + 36].try_into().unwrap());
            let catalog = tree == 0 && kind < 3;
            let mut whole = true;
            let mut kept = 0;
            for (name, model) in &sample.models {
                if catalog && store.tree(name).is_err() {
                    continue;
                }
                let found = contents(&store, name);
                whole &= found == *model;
                kept += right(&found, model);
                // Every record found was there once; missing ones are named.
                assert!(found.keys().all(|k| model.contains_key(k)), "byte {at}");
            }
            if catalog {
                continue;
            }
            // One leaf of some ten records, one value, or nothing at all.
            assert!(
                kept + 60 > all,
                "kind {kind} at {at}: {kept} of {all}: {report:?}"
            );
            assert!(
                whole || !report.problems.is_empty(),
                "kind {kind} at {at}: silence"
            );
            if kind == 2 || kind == 4 {
                assert!(whole, "kind {kind} at {at}: {report:?}");
            }
            told += usize::from(!report.problems.is_empty());
            store.close().unwrap();
        }
    }
    assert!(told > 3, "nothing that was corrupted mattered");
}

#[test]
fn trees_without_names() {
    let sample = sample(true);
    let pristine = bytes_of(&sample.device);
    // Every copy of the catalog's root.
    let device = image(&sample.device);
    for at in blocks_of(&pristine, 1) {
        if u64_at(&pristine, at + 8) == 1 {
            corrupt(&device, at);
        }
    }
    for search in [false, true] {
        let (report, store) = salvage(&device, search);
        assert!(!report.problems.is_empty());
        let lost: Vec<Model> = report
            .trees
            .iter()
            .filter(|tree| tree.name.starts_with("lost-"))
            .map(|tree| contents(&store, &tree.name))
            .collect();
        for (name, model) in &sample.models {
            assert!(lost.contains(model), "{name}: {report:?}");
        }
        store.close().unwrap();
    }
}

#[test]
fn a_log_that_breaks_off() {
    let sample = sample(false);
    let pristine = bytes_of(&sample.device);
    // The log is in the segments behind the first one.
    let log = 64 << 10..(64 << 10) + (4 << 20);
    let mut random = Random::new(3);
    let used: Vec<usize> = log
        .step_by(4096)
        .filter(|&at| pristine[at..at + 4096].iter().any(|&byte| byte != 0))
        .collect();
    assert!(used.len() > 20);
    for _ in 0..4 {
        let device = image(&sample.device);
        corrupt(&device, used[random.below(used.len() as u64) as usize]);
        let (report, store) = salvage(&device, false);
        for (name, model) in &sample.models {
            let found = contents(&store, name);
            // The last changes may be missing: they were nowhere else.
            assert!(
                found.keys().all(|k| model.contains_key(k)),
                "{name}: {report:?}"
            );
            let there = found.len();
            assert!(
                there + 300 > model.len(),
                "{name}: {there} of {}",
                model.len()
            );
        }
        store.close().unwrap();
    }
}

#[test]
fn a_load_that_was_never_finished_is_left_out() {
    let sample = sample(true);
    let loaded = |n: u64| [&[0xff; 8][..], format!("{n:010}").as_bytes()].concat();
    let volume = Volume::from_device(sample.device.clone());
    let store = Store::open_on_volume(volume, &options()).unwrap();
    let tree = store.tree("one").unwrap();
    let before = bytes_of(&sample.device);
    let mut cut = None;
    let records = (0..30_000).map(|n| {
        if n == 29_000 {
            cut = Some(image(&sample.device));
        }
        (loaded(n), value(n, 200))
    });
    tree.bulk_load(records).unwrap();
    store.tree("two").unwrap().insert(b"synced", b"").unwrap();
    let finished = image(&sample.device);
    store.close().unwrap();
    for (device, is_finished) in [(cut.unwrap(), false), (finished, true)] {
        // Nothing leads to the tree's leaves any more.
        for at in blocks_of(&before, 2) {
            corrupt(&device, at);
        }
        let (report, store) = salvage(&device, false);
        let told = |report: &SalvageReport| {
            let mut problems = report.problems.iter();
            problems.any(|problem| problem.contains("never finished were found, and left out"))
        };
        assert_eq!(told(&report), !is_finished, "{report:?}");
        let found = contents(&store, "one");
        let of_load = found.keys().filter(|k| k.starts_with(&[0xff; 8])).count();
        // New pages may lie where corrupt ones were before.
        match is_finished {
            true => assert!(of_load + 300 > 30_000, "{of_load}"),
            false => assert_eq!(of_load, 0),
        }
        let model = &sample.models["one"];
        let (right, all) = (right(&found, model), model.len());
        assert!(right + 60 > all, "{right} of {all}: {report:?}");
        store.close().unwrap();
    }
}

#[test]
fn a_volume_half_of_which_is_gone() {
    let sample = sample(true);
    let pristine = bytes_of(&sample.device);
    let device = image(&sample.device);
    let mut random = Random::new(1);
    for at in (4 << 20..pristine.len()).step_by(4096) {
        if random.below(2) == 0 {
            device.corrupt(at as u64..at as u64 + 4096, |bytes| bytes.fill(0xa5));
        }
    }
    for search in [false, true] {
        let (report, store) = salvage(&device, search);
        assert!(!report.problems.is_empty());
        assert!(report.records() > 50, "{report:?}");
        store.close().unwrap();
    }
}

#[test]
fn a_log_on_a_device_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let apart = options().log_path(at("log")).publish_stats(false);
    let store = Store::create(&[at("s")], &apart).unwrap();
    let tree = store.create_tree("t").unwrap();
    for n in 0..500 {
        tree.insert(&key(n), &value(n, 100)).unwrap();
    }
    store.close().unwrap();
    let store = Store::open(&[at("s")], &options().publish_stats(false)).unwrap();
    let tree = store.tree("t").unwrap();
    tree.insert(b"last", b"in the log").unwrap();
    // As a crash leaves them.
    for (from, to) in [("s", "crashed/s"), ("log", "crashed/log")] {
        std::fs::create_dir_all(at("crashed")).unwrap();
        std::fs::copy(at(from), at(to)).unwrap();
    }
    store.close().unwrap();
    let watch = &mut |_: &str, _, _| ControlFlow::Continue(());
    let target = Options::new().pool_bytes(16 << 20).workers(1);
    let report = isobath::salvage(
        &[at("crashed/s")],
        &[at("saved")],
        &SalvageOptions::new(),
        &target,
        watch,
    )
    .unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    let saved = Store::open(&[at("saved")], &target).unwrap();
    assert_eq!(contents(&saved, "t").len(), 501);
    saved.close().unwrap();
    // Without its log.
    std::fs::remove_file(at("crashed/log")).unwrap();
    let report = isobath::salvage(
        &[at("crashed/s")],
        &[at("saved2")],
        &SalvageOptions::new(),
        &target,
        watch,
    )
    .unwrap();
    assert!(!report.problems.is_empty());
    assert!(report.records() >= 500, "{report:?}");
}

/// A salvage that is killed leaves nothing under the name of the new store.
#[test]
fn a_salvaged_store_has_its_name_once_it_is_complete() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let from = at("from");
    let store = Store::create(&from, &options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    for n in 0..2_000 {
        tree.insert(key(n), value(n, 300)).unwrap();
    }
    store.close().unwrap();
    // Of a new file, of one that is empty, and of one behind a link.
    std::fs::write(at("empty"), "").unwrap();
    std::fs::write(at("behind"), "").unwrap();
    std::os::unix::fs::symlink("behind", at("link")).unwrap();
    for (to, partial) in [
        ("new", "new.partial"),
        ("empty", "empty.partial"),
        ("link", "behind.partial"),
    ] {
        let to = at(to);
        let is_empty = || std::fs::metadata(&to).map_or(0, |found| found.len()) == 0;
        let salvage = |stops: bool| {
            let mut calls = 0;
            let mut watch = |_: &'static str, _: u64, _: u64| {
                calls += 1;
                assert!(is_empty() && at(partial).exists());
                match stops {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            };
            let options_of = SalvageOptions::new();
            let done = isobath::salvage(&[&from], &[&to], &options_of, &options(), &mut watch);
            assert!(calls > 0);
            done
        };
        assert!(matches!(salvage(true), Err(isobath::Error::Interrupted)));
        assert!(is_empty() && !at(partial).exists());
        assert_eq!(salvage(false).unwrap().records(), 2_000);
        assert!(!at(partial).exists());
        let saved = Store::open(&to, &options()).unwrap();
        assert_eq!(saved.tree("t").unwrap().count(..).unwrap(), 2_000);
        saved.close().unwrap();
        // A file that exists is not replaced, whether it is a store or not.
        let before = std::fs::read(&to).unwrap();
        let salvage = || {
            let mut watch = |_: &'static str, _: u64, _: u64| ControlFlow::Continue(());
            let options_of = SalvageOptions::new();
            isobath::salvage(&[&from], &[&to], &options_of, &options(), &mut watch)
        };
        assert!(
            salvage()
                .unwrap_err()
                .to_string()
                .contains("exists already")
        );
        assert!(std::fs::read(&to).unwrap() == before);
    }
    assert!(std::fs::symlink_metadata(at("link")).unwrap().is_symlink());
    // Files of a killed salvage are reported, and not replaced.
    std::fs::write(at("other.partial"), "left").unwrap();
    let mut watch = |_: &'static str, _: u64, _: u64| ControlFlow::Continue(());
    let to = at("other");
    let options_of = SalvageOptions::new();
    let error = isobath::salvage(&[&from], &[&to], &options_of, &options(), &mut watch);
    assert!(error.unwrap_err().to_string().contains("other.partial"));
    assert!(!to.exists());
}

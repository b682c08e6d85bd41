//! A log on a device of its own: found again, distinguished from every other one, and
//! worth as much after a crash as one on the store's own volume.

#![allow(missing_docs, clippy::unwrap_used)]

use super::common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use common::{LOG, LOG_HEADERS, Random, assert_sound, key, parameter, tiny, value};
use isobath::{OpenError, Options, Simulation, StorageError, Store, Volume};
use isobath_io::{FaultDevice, FaultPlan, Survivors, VolumeError, VolumeOptions};

fn options() -> Options {
    tiny(2, 16).log_bytes(LOG)
}

/// A directory with a store and its log.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn create(&self, data: &str, log: &str) -> Store {
        let options = options().log_path(self.path(log));
        Store::create(&[self.path(data)], &options).unwrap()
    }

    /// A closed store with `records` records.
    fn closed(&self, data: &str, log: &str, records: u64) {
        let store = self.create(data, log);
        fill(&store, 0..records);
        store.close().unwrap();
    }

    fn open(&self, data: &str) -> Result<Store, OpenError> {
        Store::open(&[self.path(data)], &options())
    }

    fn open_with(&self, data: &str, log: &str) -> Result<Store, OpenError> {
        Store::open(&[self.path(data)], &options().log_path(self.path(log)))
    }

    fn copy(&self, from: &str, to: &str) {
        fs::copy(self.path(from), self.path(to)).unwrap();
    }

    /// Changes bytes of a file.
    fn corrupt(&self, name: &str, at: u64) {
        let mut bytes = fs::read(self.path(name)).unwrap();
        bytes[at as usize] ^= 4;
        fs::write(self.path(name), bytes).unwrap();
    }

    /// All files, to see that a refused opening changed nothing.
    fn contents(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let entries = fs::read_dir(self.0.path()).unwrap();
        let mut files: Vec<(PathBuf, Vec<u8>)> = entries
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_file())
            .map(|path| (path.clone(), fs::read(path).unwrap()))
            .collect();
        files.sort();
        files
    }

    /// The opening is refused, whichever way, says these words, and changes nothing.
    fn refuses(&self, options: &Options, words: &[&str]) -> OpenError {
        let before = self.contents();
        let mut refused = None;
        for options in [options.clone().read_only(true), options.clone()] {
            let error = Store::open(&[self.path("a")], &options)
                .map(|_| ())
                .unwrap_err();
            let text = error.to_string();
            for word in words {
                assert!(text.contains(word), "{word:?} is missing in: {text}");
            }
            refused = Some(error);
        }
        assert!(
            self.contents() == before,
            "a refused opening changed a file"
        );
        refused.unwrap()
    }
}

fn fill(store: &Store, numbers: std::ops::Range<u64>) {
    let tree = store.open_or_create_tree("t").unwrap();
    for n in numbers {
        tree.insert(&key(n), &value(n, 100)).unwrap();
    }
}

fn assert_filled(store: &Store, records: u64) {
    let tree = store.tree("t").unwrap();
    for n in 0..records {
        assert_eq!(tree.get(&key(n)).unwrap(), Some(value(n, 100)), "{n}");
    }
    assert_sound(store, Some(records));
}

#[test]
fn the_log_is_in_its_file_and_found_there_again() {
    let place = Place::new();
    let store = place.create("a", "a.log");
    fill(&store, 0..500);
    let logged = store.stats().log_bytes_written;
    assert!(logged > 0);
    assert_eq!(store.log_path(), Some(place.path("a.log")));
    store.close().unwrap();
    let length = fs::metadata(place.path("a.log")).unwrap().len();
    assert_eq!(length, LOG + LOG_HEADERS);

    // The store's own file has no space for a log.
    let plain = Store::create(&[place.path("b")], &options()).unwrap();
    assert_eq!(plain.log_path(), None);
    plain.close().unwrap();
    place.create("c", "c.log").close().unwrap();
    let bytes = |name| fs::metadata(place.path(name)).unwrap().len();
    assert!(bytes("c") + LOG <= bytes("b"));

    for _ in 0..3 {
        let store = place.open("a").unwrap();
        assert_eq!(store.log_path(), Some(place.path("a.log")));
        assert_filled(&store, 500);
        store.close().unwrap();
    }
    let reader = Store::open(&[place.path("a")], &options().read_only(true)).unwrap();
    let second = Store::open(&[place.path("a")], &options().read_only(true)).unwrap();
    assert_filled(&reader, 500);
    reader.close().unwrap();
    second.close().unwrap();
}

#[test]
fn what_was_acknowledged_is_in_the_log_after_a_crash() {
    let place = Place::new();
    let store = place.create("a", "a.log");
    fill(&store, 0..700);
    // The files of a killed process, in a directory of their own: the copy finds
    // the log beside it, not the one that is in use.
    fs::create_dir(place.path("crash")).unwrap();
    place.copy("a", "crash/a");
    place.copy("a.log", "crash/a.log");
    store.close().unwrap();
    let reading = options().read_only(true);
    let before = place.contents();
    let reader = Store::open(&[place.path("crash/a")], &reading).unwrap();
    assert_eq!(reader.log_path(), Some(place.path("crash/a.log")));
    assert_filled(&reader, 700);
    reader.close().unwrap();
    assert!(place.contents() == before, "a reader has changed a file");
    let copy = place.open("crash/a").unwrap();
    assert_eq!(copy.log_path(), Some(place.path("crash/a.log")));
    assert!(copy.stats().recovered_log_bytes > 0);
    assert_filled(&copy, 700);
    copy.close().unwrap();
}

#[test]
fn a_log_that_was_moved_is_found_where_it_is_said_to_be() {
    let place = Place::new();
    place.closed("a", "a.log", 50);
    let elsewhere = tempfile::tempdir().unwrap();
    let moved = elsewhere.path().join("moved.log");
    fs::copy(place.path("a.log"), &moved).unwrap();
    fs::remove_file(place.path("a.log")).unwrap();
    let error = place.refuses(&options(), &["a.log", "does not exist", "--log-path"]);
    assert!(matches!(error, OpenError::LogMissing { .. }));
    let store = Store::open(&[place.path("a")], &options().log_path(&moved)).unwrap();
    assert_eq!(store.log_path(), Some(moved.clone()));
    store.close().unwrap();
    let store = place.open("a").unwrap();
    assert_eq!(store.log_path(), Some(moved));
    assert_filled(&store, 50);
    store.close().unwrap();
}

#[test]
fn a_file_that_is_no_log_or_another_store_s_is_refused() {
    let place = Place::new();
    place.closed("a", "a.log", 50);
    place.closed("b", "b.log", 50);
    let error = place.refuses(&options().log_path(place.path("b.log")), &["another store"]);
    assert!(matches!(error, OpenError::LogOfOtherStore { .. }));
    for length in [0, 1, 4096, 200_000] {
        fs::write(place.path("noise"), vec![7; length]).unwrap();
        let error = place.refuses(
            &options().log_path(place.path("noise")),
            &["noise", "not the log"],
        );
        assert!(matches!(error, OpenError::NotALog { .. }));
    }
    place.refuses(&options().log_path(place.path("b")), &["not the log"]);
    place.refuses(&options().log_path(place.path("a")), &["same file"]);
    place.refuses(&options().log_path(place.0.path()), &["is a directory"]);
    place.refuses(
        &options().log_path(place.path("none")),
        &["none", "does not exist"],
    );
    let store = place.open("a").unwrap();
    assert_filled(&store, 50);
    store.close().unwrap();
}

#[test]
fn a_log_in_use_is_refused() {
    let place = Place::new();
    place.closed("a", "a.log", 5);
    place.copy("a", "copy");
    let store = place.open("copy").unwrap();
    let refused = place.open("a").map(drop).unwrap_err().to_string();
    assert!(
        refused.contains("a.log") && refused.contains("in use"),
        "{refused}"
    );
    let reading = options().read_only(true);
    let refused = Store::open(place.path("a"), &reading).map(drop);
    assert!(
        matches!(refused, Err(OpenError::LogOutOfStep { .. })),
        "{refused:?}"
    );
    store.close().unwrap();
    // Two copies of a store cannot share a log.
    let error = place.refuses(&options(), &["a.log", "copy of it has used this log"]);
    assert!(matches!(error, OpenError::LogOutOfStep { .. }));
}

#[test]
fn an_old_copy_of_the_log_or_of_the_store_is_refused() {
    let place = Place::new();
    place.closed("a", "a.log", 50);
    place.copy("a", "old");
    place.copy("a.log", "old.log");
    for records in [60, 70] {
        let store = place.open("a").unwrap();
        fill(&store, 0..records);
        store.close().unwrap();
    }
    let error = place.refuses(
        &options().log_path(place.path("old.log")),
        &["old copy of the log"],
    );
    assert!(matches!(
        error,
        OpenError::LogOutOfStep {
            log: 1,
            store: 3,
            ..
        }
    ));
    place.copy("a", "new");
    place.copy("old", "a");
    let error = place.refuses(&options(), &["store is an old copy"]);
    assert!(matches!(
        error,
        OpenError::LogOutOfStep {
            log: 3,
            store: 1,
            ..
        }
    ));
    // Both old are a store again; both new too.
    place.copy("a.log", "new.log");
    let store = place.open_with("a", "old.log").unwrap();
    assert_filled(&store, 50);
    store.close().unwrap();
    let store = place.open_with("new", "new.log").unwrap();
    assert_filled(&store, 70);
    store.close().unwrap();
}

#[test]
fn a_log_copied_before_a_checkpoint_of_the_same_opening_is_refused() {
    let place = Place::new();
    let store = place.create("a", "a.log");
    fill(&store, 0..10);
    place.copy("a.log", "old.log");
    let before = store.stats().checkpoints;
    let tree = store.tree("t").unwrap();
    for n in 0.. {
        tree.insert(&key(n % 2000), &value(n, 900)).unwrap();
        if store.stats().checkpoints > before {
            break;
        }
    }
    fs::create_dir(place.path("crash")).unwrap();
    place.copy("a", "crash/a");
    place.copy("a.log", "crash/a.log");
    store.close().unwrap();
    let error = place
        .open_with("crash/a", "old.log")
        .map(|_| ())
        .unwrap_err();
    assert!(
        matches!(error, OpenError::Storage(StorageError::LogCorrupt { .. })),
        "{error}"
    );
    let store = place.open_with("crash/a", "crash/a.log").unwrap();
    assert_sound(&store, None);
    store.close().unwrap();
}

#[test]
fn a_short_or_corrupt_log_is_refused() {
    let place = Place::new();
    place.closed("a", "a.log", 50);
    let whole = fs::read(place.path("a.log")).unwrap();
    for length in [whole.len() - 1, LOG_HEADERS as usize] {
        fs::write(place.path("a.log"), &whole[..length]).unwrap();
        let error = place.refuses(&options(), &["a.log", "truncated"]);
        assert!(matches!(error, OpenError::LogTruncated { .. }));
    }
    fs::write(place.path("a.log"), &whole).unwrap();
    // One header is enough.
    for copy in [0, 32 << 10] {
        place.corrupt("a.log", copy + 20);
        let store = place.open("a").unwrap();
        assert_filled(&store, 50);
        store.close().unwrap();
    }
    place.corrupt("a.log", 20);
    place.corrupt("a.log", (32 << 10) + 20);
    let error = place.refuses(&options(), &["a.log", "headers"]);
    assert!(matches!(error, OpenError::LogHeaderCorrupt { .. }));
}

#[test]
fn what_cannot_work_is_refused_before_anything_is_made() {
    let place = Place::new();
    let refused = |options: &Options, words: &str| {
        let error = Store::create(&[place.path("a")], options)
            .map(|_| ())
            .unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert!(!place.path("a").exists(), "a store was left behind");
    };
    let log = place.path("a.log");
    refused(&options().log_path(&log).log_bytes(0), "log_path");
    refused(&options().log_path(place.path("a")), "same file");
    refused(&options().log_path(place.0.path()), "is a directory");
    refused(
        &options().log_path(place.path("none/a.log")),
        "does not exist",
    );
    refused(&options().log_path(&log).log_bytes(1 << 40), "no space");
    assert!(!log.exists(), "a log was left behind");
    // The volume's limit is too small, the log was made already.
    let limit = Some(1 << 20);
    refused(
        &options().log_path(&log).volume_limit_bytes(limit),
        "volume_limit_bytes",
    );
    assert!(!log.exists(), "a log was left behind");
    fs::write(&log, b"mine").unwrap();
    refused(&options().log_path(&log), "exists already");
    assert_eq!(fs::read(&log).unwrap(), b"mine");

    Store::create(&[place.path("a")], &options())
        .unwrap()
        .close()
        .unwrap();
    let error = place.refuses(&options().log_path(&log), &["no log outside"]);
    assert!(matches!(error, OpenError::NoSeparateLog { .. }));
    let error = Store::in_memory(&options().log_path(&log))
        .map(|_| ())
        .unwrap_err();
    assert!(matches!(error, OpenError::NoSeparateLog { .. }));
    let long = Path::new(&"x".repeat(200)).join("y/".repeat(2000));
    fs::remove_file(place.path("a")).unwrap();
    refused(&options().log_path(long), "bytes");
}

#[test]
fn a_log_without_permission() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let place = Place::new();
    place.closed("a", "a.log", 5);
    let mode = |mode| {
        let permissions = fs::Permissions::from_mode(mode);
        fs::set_permissions(place.path("a.log"), permissions).unwrap();
    };
    mode(0o400);
    let reader = Store::open(&[place.path("a")], &options().read_only(true)).unwrap();
    assert_filled(&reader, 5);
    reader.close().unwrap();
    match place.open("a") {
        Err(OpenError::Storage(StorageError::Volume(source))) => {
            assert!(
                matches!(*source, VolumeError::PermissionDenied { .. }),
                "{source}"
            );
        }
        // The superuser may write anything.
        Ok(_) => assert_eq!(fs::metadata("/proc/self").unwrap().uid(), 0),
        Err(other) => panic!("{other}"),
    }
}

// ---- power cuts ----------------------------------------------------------------

fn device(seed: u64) -> Arc<FaultDevice> {
    let plan = FaultPlan::new(seed).latency_us(0..=40);
    FaultDevice::new(0, plan.log_bytes(LOG + LOG_HEADERS))
}

/// What a power cut leaves of data and log.
const OUTCOMES: [(Survivors, Survivors); 5] = [
    (Survivors::None, Survivors::None),
    (Survivors::None, Survivors::Executed),
    (Survivors::Executed, Survivors::None),
    (Survivors::Random, Survivors::Random),
    (Survivors::Random, Survivors::None),
];

#[test]
fn both_devices_lose_what_they_had_not_flushed() {
    for seed in 0..parameter("ISOBATH_SEEDS", 3) {
        let device = device(seed);
        let options = tiny(2, 6).log_bytes(LOG);
        let volume = Volume::from_device(device.clone());
        let mut simulation = Simulation::new(volume, &options, seed).unwrap();
        let tree = simulation.store().create_tree("t").unwrap();
        // Per record: the newest version that was acknowledged.
        let book: Arc<Vec<AtomicU64>> = Arc::new((0..3000).map(|_| AtomicU64::new(0)).collect());
        let images = Mutex::new(Vec::new());
        for round in 0..8u64 {
            let tasks: Vec<_> = (0..4u64)
                .map(|part| {
                    let (tree, book) = (tree.clone(), Arc::clone(&book));
                    simulation.spawn(part as usize, move || {
                        let mut random = Random::new(seed * 1000 + round * 10 + part);
                        for version in 1..400 {
                            let version = round << 32 | version;
                            let n = 4 * random.below(book.len() as u64 / 4) + part;
                            let length = random.one_of(&[16, 100, 900, 1500, 9000]);
                            let mut bytes = value(n, length);
                            bytes[..8].copy_from_slice(&version.to_le_bytes());
                            tree.insert(&key(n), &bytes).unwrap();
                            book[n as usize].store(version, Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            let mut steps = 0;
            let wanted = 2000 + 500 * round;
            let done = || {
                steps += 1;
                steps > wanted
            };
            simulation.run_until(done, 1 << 40).unwrap();
            let (data, log) = OUTCOMES[round as usize % OUTCOMES.len()];
            let plan = FaultPlan::new(seed);
            let image = device.crash_image_split(data, log, round, plan);
            let known: Vec<u64> = book.iter().map(|v| v.load(Ordering::Relaxed)).collect();
            images.lock().unwrap().push((image, known));
            tasks.into_iter().for_each(|task| task.join().unwrap());
        }
        assert!(simulation.store().stats().checkpoints > 0);
        simulation.close().unwrap();
        for (number, (image, known)) in images.into_inner().unwrap().into_iter().enumerate() {
            let volume = Volume::from_device(image);
            let simulation = Simulation::open(volume, &options, seed)
                .unwrap_or_else(|error| panic!("seed {seed}, image {number}: {error}"));
            assert_sound(simulation.store(), None);
            let tree = simulation.store().tree("t").unwrap();
            for (n, known) in (0..).zip(known).filter(|(_, known)| *known > 0) {
                let found = tree.get(&key(n)).unwrap().unwrap_or_default();
                let version = found.first_chunk().map_or(0, |v| u64::from_le_bytes(*v));
                assert!(version >= known, "seed {seed}, image {number}: record {n}");
            }
            simulation.close().unwrap();
        }
    }
}

#[test]
fn a_log_that_was_left_alone_is_named_as_what_is_in_the_way() {
    let place = Place::new();
    place.create("data", "log").close().unwrap();
    fs::remove_file(place.path("data")).unwrap();
    let options = options().log_path(place.path("log"));
    let error = Store::open_or_create(&[place.path("data")], &options).unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("log exists already") && !place.path("data").exists(),
        "{message}"
    );
}

#[test]
fn the_log_lies_beside_the_file_that_a_link_leads_to() {
    let place = Place::new();
    for directory in ["data", "links"] {
        fs::create_dir(place.path(directory)).unwrap();
    }
    place.closed("data/a.iso", "data/log", 10);
    std::os::unix::fs::symlink("../data/a.iso", place.path("links/a.iso")).unwrap();
    let store = place.open("links/a.iso").unwrap();
    assert_eq!(store.log_path(), Some(place.path("data/log")));
    assert_eq!(store.paths(), [place.path("data/a.iso")]);
    store.close().unwrap();
    // Also where the link names the log.
    std::os::unix::fs::symlink("../data/log", place.path("links/log")).unwrap();
    place.open_with("links/a.iso", "links/log").unwrap();
    let store = place.open("data/a.iso").unwrap();
    assert_eq!(store.log_path(), Some(place.path("links/log")));
}

#[test]
fn a_creation_that_was_cut_off_is_repeated() {
    let place = Place::new();
    // With the headers written and no superblock.
    let volume =
        Volume::create(&[place.path("a"), place.path("b")], &VolumeOptions::new()).unwrap();
    volume.grow(4 << 20).unwrap();
    drop(volume);
    place.closed("other", "log", 1);
    let header = fs::read(place.path("log")).unwrap();
    let mut cut_off = vec![0; header.len()];
    cut_off[..4096].copy_from_slice(&header[..4096]);
    fs::write(place.path("log"), &cut_off).unwrap();
    let files = [place.path("a"), place.path("b")];
    let with_log = options().log_path(place.path("log"));
    let store = Store::open_or_create(&files, &with_log).unwrap();
    fill(&store, 0..10);
    store.close().unwrap();
    // Completed files stay.
    assert!(Store::create(&files, &with_log).is_err());
    assert_sound(&Store::open_or_create(&files, &with_log).unwrap(), Some(10));
}

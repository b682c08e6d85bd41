//! Streams of changes: a follower that applies them is equal to the store at each position.

#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{LOG, Model, Random, image, key, parameter, tiny, value};
use isobath::{
    BackupOptions, Change, Changes, Committed, Durability, Error, LogPosition, Options, Record,
    Store, TransactionOptions, Volume, WriteBatch,
};
use isobath_io::{FaultDevice, FaultPlan};

/// Records of all trees: of each value its [`digest`], since many states are kept.
type Trees = BTreeMap<String, Model>;

const NOW: Duration = Duration::ZERO;
const SOON: Duration = Duration::from_secs(30);
/// Keys of each tree.
const KEYS: u64 = 150;

fn options() -> Options {
    let options = tiny(2, 6).log_bytes(LOG).volume_limit_bytes(None);
    options.transaction_bytes(64 << 10)
}

fn digest(value: &[u8]) -> Vec<u8> {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish().to_le_bytes().to_vec()
}

fn digests(records: impl Iterator<Item = Result<Record, Error>>) -> Result<Model, Error> {
    let digested = records.map(|record| record.map(|(key, value)| (key, digest(&value))));
    digested.collect()
}

fn all_of(store: &Store) -> Trees {
    let trees = store.trees().unwrap();
    let records = |name: &str| digests(store.tree(name).unwrap().iter()).unwrap();
    let named = trees.into_iter().map(|tree| tree.name);
    named.map(|name| (name.clone(), records(&name))).collect()
}

fn apply(committed: &Committed, to: &mut Trees) -> Result<(), Error> {
    if committed.is_whole {
        to.clear();
    }
    for change in &committed.changes {
        match change {
            Change::Put { tree, key, value } => {
                let tree = to.entry(tree.to_string()).or_default();
                tree.insert(key.clone(), digest(value));
            }
            Change::Remove { tree, key } => {
                to.entry(tree.to_string()).or_default().remove(key);
            }
            Change::Create { tree } => drop(to.entry(tree.to_string()).or_default()),
            Change::Drop { tree } => drop(to.remove(&**tree)),
            Change::Replace { tree, from } => {
                let records = digests(committed.records(tree)?)?;
                let model = to.entry(tree.to_string()).or_default();
                model.split_off(from);
                model.extend(records);
            }
            other => panic!("{other:?}"),
        }
    }
    Ok(())
}

/// Keeps a copy of a store by its stream, and compares it with what the store has been.
struct Follower {
    copy: Trees,
    position: LogPosition,
    /// The state that the copy was equal to last.
    at: usize,
    committed: u64,
}

impl Follower {
    fn new(position: LogPosition) -> Follower {
        Follower {
            copy: Trees::new(),
            position,
            at: 0,
            committed: 0,
        }
    }

    /// Applies all that there is; each time the copy is one of `states`, in their order.
    fn follow(&mut self, changes: &mut Changes, states: &[Trees]) -> Result<(), Error> {
        while let Some(committed) = changes.next_within(NOW)? {
            assert!(committed.position.lsn() > self.position.lsn());
            assert!(!committed.changes.is_empty() || committed.is_whole);
            apply(&committed, &mut self.copy)?;
            self.position = committed.position;
            self.committed += 1;
            let rest = &states[self.at..];
            let found = rest.iter().position(|state| *state == self.copy);
            self.at += found.unwrap_or_else(|| panic!("no state of the store after {committed:?}"));
        }
        assert!(changes.position().lsn() >= self.position.lsn());
        self.position = changes.position();
        Ok(())
    }
}

/// Random work on a store, one operation at a time, and the states that it goes through.
struct Work {
    random: Random,
    states: Vec<Trees>,
    tag: u64,
}

impl Work {
    fn new(seed: u64) -> Work {
        Work {
            random: Random::new(seed),
            states: vec![Trees::new()],
            tag: 0,
        }
    }

    fn value(&mut self) -> Vec<u8> {
        self.tag += 1;
        let length = match self.random.below(10) {
            0 => 3000 + self.random.below(20_000),
            1 => 60_000,
            _ => self.random.below(200),
        };
        value(self.tag, length as usize)
    }

    fn key(&mut self) -> Vec<u8> {
        key(self.random.below(KEYS))
    }

    fn step(&mut self, store: &Store) {
        let name = self.random.one_of(&["a", "b", "c"]);
        let mut state = self.states.last().unwrap().clone();
        let Some(model) = state.get_mut(name) else {
            store.create_tree(name).unwrap();
            state.insert(name.to_owned(), Model::new());
            return self.states.push(state);
        };
        let tree = store.tree(name).unwrap();
        match self.random.below(60) {
            0 => {
                store.drop_tree(name).unwrap();
                state.remove(name);
            }
            1 => {
                // More than a transaction may have in one record.
                let records: Model = (0..KEYS)
                    .map(|n| {
                        self.tag += 1;
                        (key(n), value(self.tag, 900))
                    })
                    .collect();
                let write = |transaction: &mut isobath::Transaction| {
                    for (key, value) in &records {
                        transaction.insert(&tree, key, value)?;
                    }
                    Ok::<(), Error>(())
                };
                store.transact(TransactionOptions::new(), write).unwrap();
                let digested = records
                    .iter()
                    .map(|(key, value)| (key.clone(), digest(value)));
                model.extend(digested);
            }
            2 => {
                let last = model.last_key_value().map(|(key, _)| key.clone());
                let behind = last.map_or_else(Vec::new, |last| [&last[..], &[0]].concat());
                let record = (behind, self.value());
                tree.bulk_load([record.clone()]).unwrap();
                model.insert(record.0, digest(&record.1));
            }
            3 => {
                let mut transaction = store.begin().unwrap();
                let (from, to) = (self.key(), self.key());
                let range = from.clone().min(to.clone())..from.max(to);
                transaction.remove_range(&tree, range.clone()).unwrap();
                transaction.commit().unwrap();
                model.retain(|key, _| !range.contains(key));
            }
            4..15 => {
                let mut batch = WriteBatch::new();
                for _ in 0..self.random.below(8) + 1 {
                    let (key, value) = (self.key(), self.value());
                    batch.insert(&tree, &key, &value);
                    model.insert(key, digest(&value));
                }
                store.write(&batch).unwrap();
            }
            15..25 => {
                let key = self.key();
                tree.remove(&key).unwrap();
                model.remove(&key);
            }
            _ => {
                let (key, value) = (self.key(), self.value());
                tree.insert(&key, &value).unwrap();
                model.insert(key, digest(&value));
            }
        }
        self.states.push(state);
    }
}

fn random_work(seed: u64, options: &Options) {
    let mut device = FaultDevice::new(0, FaultPlan::new(seed));
    let volume = |device: &Arc<FaultDevice>| Volume::from_device(Arc::clone(device) as _);
    let mut store = Store::create_on_volume(volume(&device), options).unwrap();
    let mut work = Work::new(seed);
    let mut follower = Follower::new(store.log_position().unwrap());
    let mut overruns = 0;
    for round in 0..6 {
        let mut changes = match store.changes(Some(follower.position)) {
            Ok(changes) => changes,
            Err(Error::ChangesOverrun { .. }) => {
                overruns += 1;
                store.changes(None).unwrap()
            }
            Err(error) => panic!("{error}"),
        };
        // Rarely, so that values are gone and trees were dropped before they are read.
        let every = work.random.one_of(&[1, 3, 20, 80]);
        for step in 0..120 {
            work.step(&store);
            if step % every != 0 {
                continue;
            }
            match follower.follow(&mut changes, &work.states) {
                Ok(()) => {}
                Err(Error::ChangesOverrun { .. }) => {
                    overruns += 1;
                    changes = store.changes(None).unwrap();
                }
                Err(error) => panic!("seed {seed}, round {round}, step {step}: {error}"),
            }
        }
        if work.random.below(2) == 0 {
            follower.follow(&mut changes, &work.states).unwrap();
            assert_eq!(Some(&follower.copy), work.states.last(), "seed {seed}");
        }
        // Closed, or killed: what was acknowledged is there.
        if work.random.below(2) == 0 {
            store.close().unwrap();
            let closed = follower.follow(&mut changes, &work.states);
            assert!(
                matches!(closed, Err(Error::Closed | Error::ChangesOverrun { .. })),
                "{closed:?}"
            );
            device.power_off();
            device = image(&device);
        } else {
            device.power_off();
            device = image(&device);
            drop(changes);
            drop(store.close());
        }
        store = Store::open_on_volume(volume(&device), options).unwrap();
        assert_eq!(all_of(&store), *work.states.last().unwrap(), "seed {seed}");
    }
    let mut changes = match store.changes(Some(follower.position)) {
        Err(Error::ChangesOverrun { .. }) => store.changes(None).unwrap(),
        changes => changes.unwrap(),
    };
    follower.follow(&mut changes, &work.states).unwrap();
    assert_eq!(follower.copy, all_of(&store), "seed {seed}");
    assert!(
        follower.committed > 50,
        "seed {seed}: {}",
        follower.committed
    );
    assert!(overruns < 4, "seed {seed}: {overruns} overruns");
    store.close().unwrap();
}

#[test]
fn a_follower_is_equal_to_its_source_at_each_position() {
    for seed in 0..parameter("ISOBATH_SEEDS", 12) {
        random_work(seed, &options().log_bytes(16 * LOG));
    }
}

#[test]
fn a_follower_of_a_store_with_overlays_is_equal_to_it() {
    for seed in 100..100 + parameter("ISOBATH_SEEDS", 4) {
        let options = options().log_bytes(16 * LOG).pool_bytes(4 << 20);
        random_work(seed, &options.overlays(true));
    }
}

/// A store in a file, and what reads it beside.
fn beside(path: &Path, from: Option<LogPosition>) -> Result<Changes, Error> {
    Store::changes_beside(path, &options(), from)
}

#[test]
fn a_follower_beside_the_writer_is_equal_to_its_source_at_each_position() {
    for seed in 200..200 + parameter("ISOBATH_SEEDS", 4) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let options = options().log_bytes(16 * LOG);
        let mut store = Store::create(&path, &options).unwrap();
        let mut work = Work::new(seed);
        let mut follower = Follower::new(store.log_position().unwrap());
        for round in 0..4 {
            let mut changes = beside(&path, Some(follower.position)).unwrap();
            let every = work.random.one_of(&[3, 20, 80]);
            for step in 0..100 {
                work.step(&store);
                if step % every == 0 {
                    let done = follower.follow(&mut changes, &work.states);
                    done.unwrap_or_else(|error| panic!("seed {seed}, round {round}: {error}"));
                }
            }
            store.close().unwrap();
            let mut closed = follower.follow(&mut changes, &work.states);
            if matches!(closed, Err(Error::ChangesOverrun { .. })) {
                // Closing has given a part of the log back.
                changes = beside(&path, None).unwrap();
                closed = follower.follow(&mut changes, &work.states);
            }
            assert!(matches!(closed, Err(Error::Closed)), "{closed:?}");
            assert_eq!(Some(&follower.copy), work.states.last(), "seed {seed}");
            store = Store::open(&path, &options).unwrap();
        }
        assert!(follower.committed > 100, "{}", follower.committed);
        store.close().unwrap();
    }
}

/// The stream's first transaction has everything, and is followed by others.
fn copied(changes: &mut Changes, states: &[Trees]) -> Follower {
    let mut follower = Follower::new(changes.position());
    let whole = changes.next_within(SOON).unwrap().unwrap();
    assert!(whole.is_whole);
    apply(&whole, &mut follower.copy).unwrap();
    follower.position = whole.position;
    drop(whole);
    follower.follow(changes, states).unwrap();
    follower
}

#[test]
fn without_a_position_a_stream_begins_with_everything() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let store = Store::create(&path, &options()).unwrap();
    let mut work = Work::new(1);
    (0..200).for_each(|_| work.step(&store));
    let own = || store.changes(None).unwrap();
    for mut changes in [own(), beside(&path, None).unwrap()] {
        let mut follower = copied(&mut changes, &work.states);
        assert_eq!(Some(&follower.copy), work.states.last());
        (0..50).for_each(|_| work.step(&store));
        follower.follow(&mut changes, &work.states).unwrap();
        assert_eq!(Some(&follower.copy), work.states.last());
    }
    store.close().unwrap();
}

#[test]
fn a_stream_that_falls_behind_the_log_says_so_and_never_slows_the_writer() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let store = Store::create(&path, &options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    let from = store.log_position().unwrap();
    let mut streams = [
        store.changes(Some(from)).unwrap(),
        beside(&path, Some(from)).unwrap(),
    ];
    for n in 0..12_000u64 {
        tree.insert(key(n % 500), value(n, 1000)).unwrap();
    }
    let overrun = |error: &Error| match error {
        Error::ChangesOverrun {
            from: asked,
            oldest,
        } => {
            assert!(*asked == from.lsn() && oldest > asked, "{error}");
            assert!(error.to_string().contains("copy the store anew"), "{error}");
        }
        other => panic!("{other}"),
    };
    for stream in &mut streams {
        overrun(&stream.next_within(SOON).unwrap_err());
        overrun(&stream.next_within(SOON).unwrap_err());
    }
    overrun(&store.changes(Some(from)).unwrap_err());
    overrun(&beside(&path, Some(from)).unwrap_err());
    // What a log has of less than a lap can be read, whatever checkpoints say.
    let from = store.log_position().unwrap();
    for n in 0..1_000u64 {
        tree.insert(key(n % 500), value(n, 1000)).unwrap();
    }
    store.checkpoint().unwrap();
    store.checkpoint().unwrap();
    for mut changes in [store.changes(Some(from)), beside(&path, Some(from))].map(Result::unwrap) {
        let mut count = 0;
        while let Some(committed) = changes.next_within(NOW).unwrap() {
            count += committed.changes.len();
        }
        assert_eq!(count, 1_000);
    }
    drop(tree);
    store.close().unwrap();
}

#[test]
fn a_stream_goes_on_where_a_backup_ends_beside_writers() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let options = options().log_bytes(16 * LOG);
    let store = Store::create(at("s"), &options).unwrap();
    let tree = store.create_tree("t").unwrap();
    let ends = AtomicBool::new(false);
    let work = |thread: u64| {
        let mut n = 0;
        while !ends.load(Ordering::Relaxed) && n < 20_000 {
            let write = |transaction: &mut isobath::Transaction| {
                // The two are equal in every state.
                for half in 0..2 {
                    let name = key(thread * 1_000 + half * 500 + n % 400);
                    transaction.insert(&tree, name, value(n, 10 + (n % 50) as usize * 60))?;
                }
                Ok::<(), Error>(())
            };
            store.transact(TransactionOptions::new(), write).unwrap();
            n += 1;
        }
    };
    let (full, position) = std::thread::scope(|scope| {
        (0..3).for_each(|thread| drop(scope.spawn(move || work(thread))));
        std::thread::sleep(Duration::from_millis(300));
        let mut go_on = |_: &str, _, _| ControlFlow::Continue(());
        let report = store.backup(&at("full"), &BackupOptions::new(), &mut go_on);
        std::thread::sleep(Duration::from_millis(200));
        ends.store(true, Ordering::Relaxed);
        (at("full"), report.unwrap().position.unwrap())
    });
    let mut go_on = |_: &str, _, _| ControlFlow::Continue(());
    Store::restore(&[full], &[at("r")], &options, &mut go_on).unwrap();
    let restored = Store::open(at("r"), &options).unwrap();
    let mut copy = all_of(&restored);
    let is_paired = |copy: &Trees| {
        let tree = &copy["t"];
        (0..3).all(|thread| {
            let at = |half: u64, n: u64| tree.get(&key(thread * 1_000 + half * 500 + n));
            (0..400).all(|n| at(0, n) == at(1, n))
        })
    };
    assert!(is_paired(&copy));
    let mut changes = store.changes(Some(position)).unwrap();
    let mut last = position;
    let mut count = 0;
    while let Some(committed) = changes.next_within(NOW).unwrap() {
        assert!(committed.position.lsn() > last.lsn());
        last = committed.position;
        apply(&committed, &mut copy).unwrap();
        count += 1;
        assert!(count % 50 > 0 || is_paired(&copy));
    }
    assert!(count > 10);
    assert_eq!(copy, all_of(&store));
    // From an earlier position once more: the same in the end.
    let mut changes = store.changes(Some(position)).unwrap();
    while let Some(committed) = changes.next_within(NOW).unwrap() {
        apply(&committed, &mut copy).unwrap();
    }
    assert_eq!(copy, all_of(&store));
    restored.close().unwrap();
    drop(tree);
    store.close().unwrap();
}

#[test]
fn a_stream_waits_and_can_be_stopped() {
    let store = Store::in_memory(&options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    let mut changes = store.changes(Some(store.log_position().unwrap())).unwrap();
    let began = Instant::now();
    assert!(
        changes
            .next_within(Duration::from_millis(50))
            .unwrap()
            .is_none()
    );
    assert!(began.elapsed() >= Duration::from_millis(50));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            tree.insert("a", "1").unwrap();
        });
        let committed = changes.next_within(SOON).unwrap().unwrap();
        assert_eq!(committed.changes.len(), 1);
        let stop = changes.stop_handle();
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            stop.stop();
        });
        assert!(changes.next_within(Duration::MAX).unwrap().is_none());
        // What is there comes out of a stream that was stopped, too.
        tree.insert("b", "2").unwrap();
        assert!(changes.next_within(Duration::MAX).unwrap().is_some());
    });
    let mut other = store.changes(Some(changes.position())).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let closed = other.next_within(Duration::MAX);
            assert!(matches!(closed, Err(Error::Closed)), "{closed:?}");
        });
        std::thread::sleep(Duration::from_millis(50));
        drop(tree);
        // The stream does not keep it open.
        drop(store);
    });
}

/// A store, a stream of it that has read nothing, and the keys that were put since that was opened.
fn with_puts() -> (Store, Changes, Vec<Vec<u8>>) {
    let store = Store::in_memory(&options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    let changes = store.changes(Some(store.log_position().unwrap())).unwrap();
    let keys: Vec<_> = (0..20).map(key).collect();
    for key in &keys {
        tree.insert(key, "1").unwrap();
    }
    (store, changes, keys)
}

/// The keys that are put before a stream's error.
fn put_before_the_end(changes: &mut Changes) -> (Vec<Vec<u8>>, Error) {
    let mut keys = Vec::new();
    loop {
        match changes.next_within(SOON) {
            Ok(committed) => keys.extend(committed.unwrap().changes.into_iter().map(|change| {
                let Change::Put { key, .. } = change else {
                    panic!("{change:?}");
                };
                key
            })),
            Err(error) => return (keys, error),
        }
    }
}

#[test]
fn what_was_committed_before_the_store_was_closed_comes_first() {
    let (store, mut changes, keys) = with_puts();
    store.close().unwrap();
    let (found, error) = put_before_the_end(&mut changes);
    assert_eq!(found, keys);
    assert!(matches!(error, Error::Closed), "{error}");
}

#[test]
fn what_was_read_before_an_error_comes_first() {
    let (store, mut changes, keys) = with_puts();
    let tree = store.tree("t").unwrap();
    let before = store.log_position().unwrap();
    // Its bytes are not in the log: they cannot be read once the store is closed.
    tree.insert("large", value(1, 60_000)).unwrap();
    tree.insert("behind", "1").unwrap();
    store.close().unwrap();
    let (found, error) = put_before_the_end(&mut changes);
    assert_eq!(found, keys);
    assert!(matches!(error, Error::Closed), "{error}");
    assert!(changes.position().lsn() <= before.lsn());
    assert!(changes.next_within(NOW).is_err());
}

#[test]
fn streams_say_what_they_cannot_be_of() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let store = Store::create(&path, &options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    let from = store.log_position().unwrap();
    tree.insert("a", "1").unwrap();
    let end = store.log_position().unwrap();
    assert_eq!(end.to_string().parse::<LogPosition>().unwrap(), end);
    assert!("12".parse::<LogPosition>().is_err());
    let moved = |by: u64| -> LogPosition {
        let text = end.to_string();
        let (id, lsn) = text.split_once('-').unwrap();
        let lsn: u64 = lsn.parse().unwrap();
        format!("{id}-{}", lsn + by).parse().unwrap()
    };
    let in_a_record: LogPosition = {
        let text = from.to_string();
        let (id, lsn) = text.split_once('-').unwrap();
        let lsn: u64 = lsn.parse().unwrap();
        format!("{id}-{}", lsn + 8).parse().unwrap()
    };
    for bad in [moved(8), moved(1 << 30), in_a_record] {
        for refused in [store.changes(Some(bad)), beside(&path, Some(bad))] {
            assert!(
                matches!(refused, Err(Error::BadOption { .. })),
                "{refused:?}"
            );
        }
    }
    let other = Store::in_memory(&options()).unwrap();
    let refused = other.changes(Some(end)).unwrap_err();
    assert!(
        matches!(refused, Error::PositionOfOtherStore { .. }),
        "{refused}"
    );
    drop(tree);
    store.close().unwrap();
    let reader = Store::open(&path, &options().read_only(true)).unwrap();
    assert!(matches!(reader.changes(None), Err(Error::ReadOnly)));
    reader.close().unwrap();
    let unlogged = options().log_bytes(0).durability(Durability::None);
    let unlogged = Store::in_memory(&unlogged).unwrap();
    assert!(matches!(unlogged.changes(None), Err(Error::ChangesNeedLog)));
    assert!(matches!(
        unlogged.log_position(),
        Err(Error::ChangesNeedLog)
    ));
}

#[test]
fn another_store_in_the_place_of_the_first_one_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let store = Store::create(&path, &options()).unwrap();
    let from = store.log_position().unwrap();
    let mut changes = beside(&path, Some(from)).unwrap();
    store.close().unwrap();
    std::fs::remove_file(&path).unwrap();
    let store = Store::create(&path, &options()).unwrap();
    store.create_tree("t").unwrap();
    let ended = changes.next_within(SOON);
    assert!(ended.is_err(), "{ended:?}");
    let refused = beside(&path, Some(from)).unwrap_err();
    assert!(
        matches!(refused, Error::PositionOfOtherStore { .. }),
        "{refused}"
    );
    store.close().unwrap();
}

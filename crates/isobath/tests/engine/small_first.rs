//! A store without a limit has a file that is short for its data, whatever came before.

#![allow(missing_docs, clippy::unwrap_used, clippy::big_endian_bytes)]

use std::ops::ControlFlow;
use std::path::Path;

use super::common;
use common::{Random, assert_sound, key, value};
use isobath::{BackupOptions, Durability, Error, Options, Store, Tree, Volume};

/// Bytes before the first segment, in files.
const LABELS: u64 = 64 << 10;

fn options() -> Options {
    Options::new()
        .pool_bytes(8 << 20)
        .workers(2)
        .durability(Durability::None)
}

fn length(path: &Path) -> u64 {
    path.metadata().unwrap().len()
}

/// Stores records of 400 bytes, some to a transaction: their key's number, and their value's.
fn insert_all(store: &Store, tree: &Tree, records: impl Iterator<Item = (u64, u64)>) {
    let records: Vec<_> = records.collect();
    for some in records.chunks(100) {
        let mut transaction = store.begin().unwrap();
        for &(n, version) in some {
            transaction
                .insert(tree, key(n), value(version, 400))
                .unwrap();
        }
        transaction.commit().unwrap();
    }
}

#[test]
fn the_first_file_is_short_and_grows_with_the_data() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.iso");
    let store = Store::create(&[&path], &options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    tree.insert(b"key", b"value").unwrap();
    store.close().unwrap();
    assert!(length(&path) <= 8 << 20, "{}", length(&path));
    for round in 0..12u64 {
        let store = Store::open(&[&path], &options()).unwrap();
        let tree = store.tree("t").unwrap();
        let first = round * 4000;
        insert_all(&store, &tree, (first..first + 4000).map(|n| (n, n)));
        for n in (0..first).step_by(7) {
            let wanted = value(n, 400);
            assert_eq!(tree.get(&key(n)).unwrap().as_ref(), Some(&wanted), "{n}");
        }
        insert_all(&store, &tree, (0..first).step_by(7).map(|n| (n, n)));
        assert_sound(&store, None);
        store.close().unwrap();
        let data = (round + 1) * 4000 * 408;
        let most = (8 << 20) + 2 * data;
        assert!(length(&path) <= most, "{} for {data}", length(&path));
    }
    let store = Store::open(&[&path], &options().read_only(true)).unwrap();
    assert_sound(&store, Some(48_001));
    store.close().unwrap();
    let store = Store::open(&[&path], &options()).unwrap();
    store.compact().unwrap();
    assert_sound(&store, Some(48_001));
    store.close().unwrap();
    let store = Store::open(&[&path], &options()).unwrap();
    assert_sound(&store, Some(48_001));
    store.close().unwrap();
}

#[test]
fn values_of_all_lengths_survive() {
    let volume = Volume::in_memory(0, None);
    let store = Store::create_on_volume(volume.clone(), &options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    let lengths = [900, 7_000, 9_000, 60_000, 200_000, 261_000];
    let long = [300_000, 1 << 20, 5 << 20];
    let put = |n: u64, length: usize| {
        let whole = value(n, length);
        let mut writer = tree.writer(&key(2 * n)).unwrap();
        whole
            .chunks(10_007)
            .for_each(|part| writer.append(part).unwrap());
        writer.finish().unwrap();
        tree.insert(&key(2 * n + 1), &whole).unwrap();
    };
    let found = |store: &Store, n: u64, length: usize| {
        let tree = store.tree("t").unwrap();
        for key in [key(2 * n), key(2 * n + 1)] {
            assert!(
                tree.get(&key).unwrap() == Some(value(n, length)),
                "{n}, {length}"
            );
        }
    };
    for (n, &length) in (0u64..).zip(&lengths) {
        put(n, length);
    }
    for (n, &length) in (100u64..).zip(&long) {
        put(n, length);
        store.compact().unwrap();
    }
    for (n, &length) in (200u64..).zip(&lengths) {
        put(n, length);
    }
    let all = || {
        let short = |from| (from..).zip(&lengths);
        short(0u64).chain((100u64..).zip(&long)).chain(short(200))
    };
    all().for_each(|(n, &length)| found(&store, n, length));
    assert_sound(&store, None);
    let dir = tempfile::tempdir().unwrap();
    let (file, copy) = (dir.path().join("b.isb"), dir.path().join("copy.iso"));
    let mut on = |_: &str, _: u64, _: u64| ControlFlow::Continue(());
    store.backup(&file, &BackupOptions::new(), &mut on).unwrap();
    store.close().unwrap();
    Store::restore(&[&file], &[&copy], &options(), &mut on).unwrap();
    let store = Store::open(&[&copy], &options()).unwrap();
    all().for_each(|(n, &length)| found(&store, n, length));
    assert_sound(&store, None);
    store.close().unwrap();
    let store = Store::open_on_volume(volume, &options()).unwrap();
    all().for_each(|(n, &length)| found(&store, n, length));
    assert_sound(&store, None);
    store.close().unwrap();
}

/// The log of a store with a limit takes a small part of it, also if the limit came later than the
/// store.
#[test]
fn a_limit_that_comes_later_is_for_data_first() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.iso");
    let store = Store::create(&[&path], &options()).unwrap();
    store.create_tree("t").unwrap();
    store.close().unwrap();
    let limited = options().volume_limit_bytes(Some(14 << 20));
    let store = Store::open(&[&path], &limited).unwrap();
    let tree = store.tree("t").unwrap();
    let mut records = 0u64;
    let full = loop {
        match tree.insert(&key(records * 7919 % 100_003), &value(records, 300)) {
            Ok(_) => records += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, Error::VolumeFull { .. }), "{full}");
    assert!(records * 300 > 3_000_000, "{} bytes", records * 300);
    assert_sound(&store, Some(records));
    store.close().unwrap();
    assert!(length(&path) <= (14 << 20) + LABELS);
}

/// Records of `length` bytes, in the order of their keys or in any.
struct Records {
    count: u64,
    length: usize,
    in_order: bool,
}

impl Records {
    fn key(&self, n: u64) -> Vec<u8> {
        match self.in_order {
            true => n.to_be_bytes().to_vec(),
            false => key(n),
        }
    }

    fn get(&self, n: u64) -> (Vec<u8>, Vec<u8>) {
        (self.key(n), value(n, self.length))
    }

    fn bytes(&self) -> u64 {
        self.count * (8 + self.length as u64)
    }
}

/// A pattern of commits.
type Pattern = fn(&Store, &Tree, &Records);

fn single(_: &Store, tree: &Tree, records: &Records) {
    for n in 0..records.count {
        let (key, value) = records.get(n);
        tree.insert(key, value).unwrap();
    }
}

fn batches<const OF: u64>(store: &Store, tree: &Tree, records: &Records) {
    for from in (0..records.count).step_by(OF as usize) {
        let mut transaction = store.begin().unwrap();
        for n in from..(from + OF).min(records.count) {
            let (key, value) = records.get(n);
            transaction.insert(tree, key, value).unwrap();
        }
        transaction.commit().unwrap();
    }
}

fn threads(store: &Store, _: &Tree, records: &Records) {
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let tree = store.tree("t").unwrap();
            scope.spawn(move || {
                for n in (thread..records.count).step_by(8) {
                    let (key, value) = records.get(n);
                    tree.insert(key, value).unwrap();
                }
            });
        }
    });
}

fn load(_: &Store, tree: &Tree, records: &Records) {
    tree.load((0..records.count).map(|n| records.get(n)))
        .unwrap();
}

fn updates(store: &Store, tree: &Tree, records: &Records) {
    single(store, tree, records);
    let mut random = Random::new(1);
    for _ in 0..5 * records.count {
        let n = random.below(records.count);
        let other = value(random.bits(), records.length);
        tree.insert(records.key(n), other).unwrap();
    }
    single(store, tree, records);
}

fn removals(store: &Store, tree: &Tree, records: &Records) {
    for _ in 0..3 {
        single(store, tree, records);
        for n in (0..records.count).filter(|n| n % 10 > 0) {
            assert!(tree.remove(records.key(n)).unwrap());
        }
    }
    single(store, tree, records);
}

/// A pattern of commits, its name, and the records that it leaves.
type Case = (&'static str, Pattern, Records);

/// Bytes beside the labels that a volume may have beside this part of its data, in percent.
struct Bound(u64, u64);

impl Bound {
    fn most(&self, records: &Records) -> u64 {
        (self.0 << 20) - LABELS + records.bytes() * self.1 / 100
    }
}

/// Where a closed store, a restored one and, within `compacted`, a compacted one are longer than
/// they may be.
fn long_files(cases: impl IntoIterator<Item = Case>, compacted: &Bound) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let backup = dir.path().join("b");
    let mut on = |_: &str, _: u64, _: u64| ControlFlow::Continue(());
    let mut problems = Vec::new();
    for (name, pattern, records) in cases {
        let volume = Volume::in_memory(0, None);
        let store = Store::create_on_volume(volume.clone(), &options()).unwrap();
        let tree = store.create_tree("t").unwrap();
        let closed = Bound(8, 200);
        pattern(&store, &tree, &records);
        let mut check = |what: &str, volume: &Volume, bound: &Bound| {
            let (is, most) = (volume.len() >> 10, bound.most(&records) >> 10);
            if is > most {
                problems.push(format!("{name}, {what}: {is} of {most} KiB"));
            }
        };
        store
            .backup(&backup, &BackupOptions::new(), &mut on)
            .unwrap();
        store.close().unwrap();
        check("closed", &volume, &closed);
        let copy = Volume::in_memory(0, None);
        Store::restore_on_volume(&[&backup], copy.clone(), &options(), &mut on).unwrap();
        check("restored", &copy, &closed);
        std::fs::remove_file(&backup).unwrap();
        for (volume, compacts) in [(volume, true), (copy, false)] {
            let store = Store::open_on_volume(volume.clone(), &options()).unwrap();
            if compacts {
                store.compact().unwrap();
                check("compacted", &volume, compacted);
            }
            assert_sound(&store, Some(records.count));
            let tree = store.tree("t").unwrap();
            for n in (0..records.count).step_by(records.count.div_ceil(1000) as usize) {
                let (key, value) = records.get(n);
                assert!(tree.get(key).unwrap() == Some(value), "{name}: {n}");
            }
            store.close().unwrap();
            check("closed again", &volume, &closed);
        }
    }
    problems
}

fn of(count: u64, length: usize, in_order: bool) -> Records {
    Records {
        count,
        length,
        in_order,
    }
}

/// Whatever the pattern of commits, the file of a closed store has at most 8 MiB and twice the
/// data; so has a restored one.
#[test]
fn a_file_is_short_whatever_the_pattern_of_commits() {
    let patterns: [Case; 11] = [
        ("single", single, of(1_000, 300, true)),
        ("single, in any order", single, of(1_000, 300, false)),
        ("single, more of them", single, of(6_000, 300, false)),
        ("single, 1 KB", single, of(2_000, 1_000, false)),
        ("eight threads", threads, of(6_000, 300, false)),
        ("batches of 100", batches::<100>, of(10_000, 120, false)),
        ("one transaction", batches::<30_000>, of(30_000, 120, false)),
        ("a load", load, of(15_000, 200, false)),
        ("updates", updates, of(1_000, 500, false)),
        ("removals", removals, of(2_000, 300, false)),
        ("values of 20 KB", single, of(200, 20_000, false)),
    ];
    assert_eq!(long_files(patterns, &Bound(8, 200)), Vec::<String>::new());
}

/// The same for 3 to 100 MiB of data.
#[test]
fn a_file_of_many_mib_is_short_whatever_the_pattern_of_commits() {
    let patterns: [Case; 8] = [
        ("3 MiB, updates", updates, of(1_000, 3_000, false)),
        ("3 MiB, values of 300 KB", single, of(10, 300_000, false)),
        ("10 MiB, single", single, of(10_000, 1_000, false)),
        ("10 MiB, removals", removals, of(500, 20_000, false)),
        (
            "10 MiB, one transaction",
            batches::<30_000>,
            of(10_000, 1_000, false),
        ),
        ("30 MiB, batches", batches::<100>, of(6_000, 5_000, false)),
        ("30 MiB, values of 1 MB", threads, of(30, 1_000_000, false)),
        ("100 MiB, eight threads", threads, of(5_000, 20_000, false)),
    ];
    let loads: [Case; 2] = [
        ("3 MiB, a load", load, of(5_000, 600, true)),
        ("30 MiB, a load", load, of(45_000, 600, false)),
    ];
    let mut problems = long_files(patterns, &Bound(8, 200));
    // Its leaves are full.
    problems.extend(long_files(loads, &Bound(8, 125)));
    assert_eq!(problems, Vec::<String>::new());
}

/// Opened anew for each commit, as from a shell.
#[test]
fn a_file_is_short_that_each_commit_opens() {
    let options = options().durability(Durability::Synced);
    let volume = Volume::in_memory(0, None);
    let store = Store::create_on_volume(volume.clone(), &options).unwrap();
    store.create_tree("t").unwrap();
    store.close().unwrap();
    for n in 0..200u64 {
        let store = Store::open_on_volume(volume.clone(), &options).unwrap();
        let tree = store.tree("t").unwrap();
        tree.insert(key(n), value(n, 300)).unwrap();
        store.close().unwrap();
        let most = (8 << 20) - LABELS + n * 600;
        assert!(volume.len() <= most, "{}", volume.len());
    }
}

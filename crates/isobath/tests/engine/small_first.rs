//! A store without a limit begins with small segments, and outgrows them.

#![allow(missing_docs, clippy::unwrap_used, clippy::big_endian_bytes)]

use std::ops::ControlFlow;
use std::path::Path;

use super::common;
use common::{Random, assert_sound, key, value};
use isobath::{BackupOptions, Durability, Error, Options, Store, Tree, Volume};

/// Bytes of small segments that a volume begins with.
const SMALL: u64 = 16 << 20;
/// Bytes before the first segment, in files.
const LABELS: u64 = 2 << 20;

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
    // Opened again and again: before, while and after it outgrows its small segments.
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
        let stats = store.stats();
        let outgrown = stats.volume_bytes > SMALL;
        assert_eq!(
            stats.segment_bytes,
            if outgrown { 2 << 20 } else { 64 << 10 }
        );
        assert!(stats.segments * stats.segment_bytes <= stats.volume_bytes);
        store.close().unwrap();
        // Twice the data, or what a volume of large segments begins with.
        let data = (round + 1) * 4000 * 408;
        let most = match length(&path) > SMALL + LABELS {
            false => (8 << 20) + 2 * data,
            true => SMALL + (80 << 20) + 4 * data,
        };
        assert!(length(&path) <= most, "{} for {data}", length(&path));
    }
    assert!(length(&path) > SMALL + (48 << 20));
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
fn values_of_all_lengths_survive_outgrowing() {
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
    assert_eq!(store.stats().segment_bytes, 64 << 10);
    for (n, &length) in (100u64..).zip(&long) {
        put(n, length);
        // Its chunks are long ones.
        assert_eq!(store.stats().segment_bytes, 2 << 20);
        // Just after it has outgrown the small ones there may be nothing to give back.
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

#[test]
fn compaction_gives_back_what_outgrown_segments_take() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.iso");
    let taken = || path.metadata().unwrap().blocks() * 512;
    let store = Store::create(&[&path], &options()).unwrap();
    let kept = store.create_tree("kept").unwrap();
    let tree = store.create_tree("t").unwrap();
    for first in (0..40_000).step_by(100) {
        insert_all(&store, &tree, (first..first + 100).map(|n| (n, n)));
        kept.insert(key(first), value(first, 400)).unwrap();
    }
    store.drop_tree("t").unwrap();
    for n in (0..40_000).step_by(100) {
        kept.insert(&key(n), &value(n + 1, 400)).unwrap();
    }
    store.checkpoint().unwrap();
    let gained = store.compact().unwrap();
    assert!(gained.bytes_discarded > SMALL / 2, "{gained:?}");
    assert!(
        taken() + SMALL / 2 < length(&path),
        "{} of {}",
        taken(),
        length(&path)
    );
    // It goes on with them empty.
    insert_all(&store, &kept, (0..40_000).map(|n| (n, n + 2)));
    assert_sound(&store, None);
    store.close().unwrap();
    let store = Store::open(&[&path], &options()).unwrap();
    assert_sound(&store, Some(40_000));
    let kept = store.tree("kept").unwrap();
    for n in 0..40_000 {
        assert_eq!(kept.get(&key(n)).unwrap(), Some(value(n + 2, 400)), "{n}");
    }
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
    assert!(records * 300 > 4 << 20, "{} bytes", records * 300);
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

/// Whatever the pattern of commits, the file of a closed store with few MiB of data has at most 8
/// MiB and twice the data; so has a restored one.
#[test]
fn a_file_is_short_whatever_the_pattern_of_commits() {
    let of = |count, length, in_order| Records {
        count,
        length,
        in_order,
    };
    let patterns: [(&str, Pattern, Records); 11] = [
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
    let dir = tempfile::tempdir().unwrap();
    let backup = dir.path().join("b");
    let mut on = |_: &str, _: u64, _: u64| ControlFlow::Continue(());
    let mut problems = Vec::new();
    for (name, pattern, records) in patterns {
        let volume = Volume::in_memory(0, None);
        let store = Store::create_on_volume(volume.clone(), &options()).unwrap();
        let tree = store.create_tree("t").unwrap();
        // Beside the labels in front.
        let most = (8 << 20) - LABELS + 2 * records.bytes();
        pattern(&store, &tree, &records);
        let before = volume.len();
        store
            .backup(&backup, &BackupOptions::new(), &mut on)
            .unwrap();
        store.close().unwrap();
        let copy = Volume::in_memory(0, None);
        Store::restore_on_volume(&[&backup], copy.clone(), &options(), &mut on).unwrap();
        std::fs::remove_file(&backup).unwrap();
        for (volume, what) in [(volume, "closed"), (copy, "restored")] {
            if volume.len() > most {
                let (is, limit) = (volume.len() >> 10, most >> 10);
                problems.push(format!(
                    "{name}, {what}: {is} of {limit} KiB, {}",
                    before >> 10
                ));
            }
            let store = Store::open_on_volume(volume.clone(), &options()).unwrap();
            assert_sound(&store, Some(records.count));
            let tree = store.tree("t").unwrap();
            for n in (0..records.count).step_by(7) {
                let (key, value) = records.get(n);
                assert!(tree.get(key).unwrap() == Some(value), "{name}: {n}");
            }
            store.close().unwrap();
        }
    }
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

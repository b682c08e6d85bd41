//! Large values: those that were loaded, streamed, given up or moved are there after
//! every opening, on drives of any block size, and nothing else takes space.

#![allow(missing_docs, clippy::unwrap_used, clippy::big_endian_bytes)]

use super::common;

use std::io::{Cursor, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use common::{LOG, Model, Random, assert_sound, bytes_of, contents, image, key, tiny, value};
use isobath::{
    Durability, Error, LoadError, Options, PolicyKind, Simulation, Store, TransactionOptions,
    Volume,
};
use isobath_io::{FaultDevice, FaultPlan, Survivors};

const LENGTHS: [usize; 8] = [0, 40, 1700, 4064, 4100, 9000, 30_000, 150_000];

fn options() -> Options {
    tiny(2, 6).log_bytes(LOG)
}

fn open(device: &Arc<FaultDevice>, options: &Options, seed: u64) -> Simulation {
    Simulation::open(Volume::from_device(device.clone()), options, seed).unwrap()
}

fn create(plan: FaultPlan, options: &Options) -> (Arc<FaultDevice>, Simulation) {
    let device = FaultDevice::new(0, plan);
    let simulation = Simulation::new(Volume::from_device(device.clone()), options, 1).unwrap();
    (device, simulation)
}

/// Records with ascending keys and values of all lengths.
fn ascending(from: u64, count: u64, seed: u64) -> Model {
    let mut random = Random::new(seed);
    (from..from + count)
        .map(|n| {
            (
                n.to_be_bytes().to_vec(),
                value(random.bits(), random.one_of(&LENGTHS)),
            )
        })
        .collect()
}

#[track_caller]
fn assert_holds(store: &Store, name: &str, model: &Model) {
    assert!(contents(&store.tree(name).unwrap()) == *model, "{name}");
}

/// Opens the store again and again; it holds these trees, and nothing more. In a thread
/// of its own: each has one simulation at a time.
fn assert_lasts(device: &Arc<FaultDevice>, trees: &[(&str, &Model)]) {
    let lasts = std::thread::scope(|scope| scope.spawn(|| opens_again(device, trees)).join());
    lasts.unwrap();
}

fn opens_again(device: &Arc<FaultDevice>, trees: &[(&str, &Model)]) {
    for seed in 0..3 {
        let simulation = open(device, &options(), seed);
        let store = simulation.store();
        for (name, model) in trees {
            assert_holds(store, name, model);
        }
        let records = trees.iter().map(|(_, model)| model.len() as u64).sum();
        assert_sound(store, Some(records));
        simulation.close().unwrap();
    }
}

#[test]
fn loaded_values_are_there_after_every_opening() {
    let (device, simulation) = create(FaultPlan::new(1), &options());
    let store = simulation.store();
    let (loaded, other) = (ascending(0, 120, 7), ascending(0, 30, 8));
    let tree = store.create_tree("loaded").unwrap();
    assert_eq!(tree.bulk_load(loaded.iter()).unwrap(), 120);
    let beside = store.create_tree("other").unwrap();
    for (k, v) in &other {
        beside.insert(k, v).unwrap();
    }
    let trees = [("loaded", &loaded), ("other", &other)];
    assert_lasts(&image(&device), &trees);
    simulation.close().unwrap();
    assert_lasts(&device, &trees);
}

#[test]
fn ids_of_loaded_values_are_used_again() {
    let (device, simulation) = create(FaultPlan::new(2), &options());
    let store = simulation.store();
    let tree = store.create_tree("loaded").unwrap();
    let mut loaded = ascending(0, 60, 3);
    tree.bulk_load(loaded.iter()).unwrap();
    let gone: Vec<Vec<u8>> = loaded.keys().skip(1).step_by(2).cloned().collect();
    for k in gone {
        tree.remove(&k).unwrap();
        loaded.remove(&k);
    }
    let other = store.create_tree("other").unwrap();
    let mut model = Model::new();
    for n in 0..3000 {
        let v = value(n, 100);
        other.insert(&key(n), &v).unwrap();
        model.insert(key(n), v);
    }
    let trees = [("loaded", &loaded), ("other", &model)];
    assert_lasts(&image(&device), &trees);
    simulation.close().unwrap();
    assert_lasts(&device, &trees);
}

#[test]
fn a_load_that_is_refused_leaves_nothing() {
    let (device, simulation) = create(FaultPlan::new(3), &options());
    let store = simulation.store();
    let tree = store.create_tree("t").unwrap();
    let model = ascending(1000, 20, 1);
    tree.bulk_load(model.iter()).unwrap();
    let mut records: Vec<(Vec<u8>, Vec<u8>)> = ascending(2000, 80, 2).into_iter().collect();
    let last = records.len() - 1;
    records.swap(last, last - 1);
    let refused = tree.bulk_load(records.iter().map(|(k, v)| (k, v)));
    assert!(
        matches!(refused, Err(LoadError::LoadOrder { .. })),
        "{refused:?}"
    );
    assert_sound(store, Some(20));
    assert_lasts(&image(&device), &[("t", &model)]);
    simulation.close().unwrap();
    assert_lasts(&device, &[("t", &model)]);
}

#[test]
fn a_failed_append_takes_nothing_and_can_be_repeated() {
    let limit = Some(LOG + (3 << 20));
    let options = options().volume_limit_bytes(limit);
    let (device, simulation) = create(FaultPlan::new(4).max_bytes(limit), &options);
    let store = simulation.store();
    let tree = store.create_tree("t").unwrap();
    let other = store.create_tree("other").unwrap();
    let (mut random, mut failed) = (Random::new(9), 0);
    let mut writer = tree.writer(b"stream").unwrap();
    let mut written: Vec<u8> = Vec::new();
    let mut model = Model::new();
    let mut number = 0u64;
    for number in 1_000_000u64.. {
        let v = value(number, 50_000);
        match other.insert(&number.to_be_bytes(), &v) {
            Ok(()) => drop(model.insert(number.to_be_bytes().to_vec(), v)),
            Err(error) => {
                assert!(matches!(error, Error::VolumeFull { .. }), "{error}");
                break;
            }
        }
    }
    while written.len() < 600_000 {
        // Whatever is free goes to another tree, ids that the writer gave back as well.
        let v = value(number, random.one_of(&[300, 20_000, 50_000]));
        if other.insert(&number.to_be_bytes(), &v).is_ok() {
            model.insert(number.to_be_bytes().to_vec(), v);
        }
        number += 1;
        let part = value(random.bits(), random.one_of(&[100, 5000, 40_000, 120_000]));
        match writer.append(&part) {
            Ok(()) => written.extend(part),
            Err(Error::VolumeFull { .. }) => {
                failed += 1;
                if failed % 4 == 0 {
                    let (first, _) = model.pop_first().unwrap();
                    other.remove(&first).unwrap();
                }
                if failed % 40 == 0 {
                    assert_lasts(&image(&device), &[("t", &Model::new()), ("other", &model)]);
                }
            }
            Err(error) => panic!("{error}"),
        }
        assert_eq!(writer.len(), written.len() as u64);
    }
    assert!(failed > 40, "the volume was never full");
    // The rest of the value needs space, too.
    for k in model.keys().take(5).cloned().collect::<Vec<_>>() {
        other.remove(&k).unwrap();
        model.remove(&k);
    }
    writer.finish().unwrap();
    let stream = Model::from([(b"stream".to_vec(), written)]);
    let trees = [("t", &stream), ("other", &model)];
    assert_lasts(&image(&device), &trees);
    simulation.close().unwrap();
    assert_lasts(&device, &trees);
}

#[test]
fn a_removed_value_stays_until_its_removal_is_durable() {
    let options = options().durability(Durability::None);
    let (device, simulation) = create(FaultPlan::new(1), &options);
    let store = simulation.store();
    let tree = store.create_tree("t").unwrap();
    for n in 0..12 {
        tree.insert(&key(n), &value(n, 60_000)).unwrap();
    }
    let synced = TransactionOptions::new().durability(Durability::Synced);
    let mut last = store.begin_with(synced).unwrap();
    last.insert(&tree, b"last", b"is durable").unwrap();
    last.commit().unwrap();
    for n in 0..12 {
        assert!(tree.remove(&key(n)).unwrap());
    }
    for n in 100..108 {
        tree.insert(&key(n), &value(n, 60_000)).unwrap();
    }
    // The removals are in the log's memory only.
    let cut = device.crash_image(Survivors::Executed, 1);
    drop(tree);
    simulation.close().unwrap();
    let simulation = open(&cut, &options, 2);
    let tree = simulation.store().tree("t").unwrap();
    for n in 0..12 {
        assert_eq!(tree.get(&key(n)).unwrap(), Some(value(n, 60_000)), "{n}");
    }
    assert_sound(simulation.store(), None);
}

/// Chunks that a writer gave back belong to others, although the writer goes on.
#[test]
fn chunks_given_back_are_not_the_writers_after_a_crash() {
    let limit = Some(LOG + (2 << 20));
    let options = options().volume_limit_bytes(limit);
    let (device, simulation) = create(FaultPlan::new(5).max_bytes(limit), &options);
    let store = simulation.store();
    let tree = store.create_tree("t").unwrap();
    let mut writer = tree.writer(b"stream").unwrap();
    writer.append(&value(1, 20_000)).unwrap();
    let full = writer.append(&value(2, 8 << 20));
    assert!(matches!(full, Err(Error::VolumeFull { .. })), "{full:?}");
    let other = store.create_tree("other").unwrap();
    let mut model = Model::new();
    // Enough for some checkpoints, each of which lists provisional allocations.
    let mut number = 0;
    while store.stats().checkpoints < 3 {
        let (k, v) = (key(number % 2000), value(number, 200));
        other.insert(&k, &v).unwrap();
        model.insert(k, v);
        number += 1;
    }
    assert_lasts(&image(&device), &[("t", &Model::new()), ("other", &model)]);
    drop(writer);
    assert_sound(store, Some(model.len() as u64));
    simulation.close().unwrap();
}

#[test]
fn writers_that_outlive_their_tree_or_the_store_leave_nothing() {
    for log in [0, LOG] {
        let options = tiny(2, 6).log_bytes(log);
        let (device, simulation) = create(FaultPlan::new(6), &options);
        let store = simulation.store();
        let tree = store.create_tree("t").unwrap();
        let kept = store.create_tree("kept").unwrap();
        let mut writers: Vec<_> = (0..3u8).map(|n| tree.writer(&[n]).unwrap()).collect();
        let mut last = kept.writer(b"last").unwrap();
        for writer in writers.iter_mut().chain([&mut last]) {
            writer.append(&value(1, 100_000)).unwrap();
        }
        store.drop_tree("t").unwrap();
        let appended = writers[0].append(&value(1, 100_000));
        assert!(matches!(appended, Err(Error::TreeDropped { .. })));
        let finished = writers.remove(1).finish();
        assert!(matches!(finished, Err(Error::TreeDropped { .. })));
        drop(writers);
        last.append(&value(2, 100_000)).unwrap();
        kept.insert(b"large", &value(3, 50_000)).unwrap();
        let large = Model::from([(b"large".to_vec(), value(3, 50_000))]);
        if log > 0 {
            assert_lasts(&image(&device), &[("kept", &large)]);
        }
        simulation.close().unwrap();
        drop(last);
        let simulation = open(&device, &options, 2);
        assert_holds(simulation.store(), "kept", &large);
        assert_sound(simulation.store(), Some(1));
        simulation.close().unwrap();
    }
}

#[test]
fn a_dropped_trees_writers_free_their_chunks_at_once() {
    let (_, simulation) = create(FaultPlan::new(7), &options());
    let store = simulation.store();
    let tree = store.create_tree("t").unwrap();
    let mut one = tree.writer(b"1").unwrap();
    let mut two = tree.writer(b"2").unwrap();
    one.append(&value(1, 100_000)).unwrap();
    two.append(&value(1, 100_000)).unwrap();
    store.drop_tree("t").unwrap();
    assert!(matches!(one.finish(), Err(Error::TreeDropped { .. })));
    drop(two);
    assert_sound(store, Some(0));
    simulation.close().unwrap();
}

/// The same bytes on a drive with blocks of another size.
fn copy_to(device: &Arc<FaultDevice>, block: u32, limit: Option<u64>) -> Arc<FaultDevice> {
    let bytes = bytes_of(device);
    let plan = FaultPlan::new(8).logical_block(block).max_bytes(limit);
    let copy = FaultDevice::new(bytes.len() as u64, plan);
    for (at, page) in (0..).step_by(4096).zip(bytes.chunks(4096)) {
        copy.corrupt(at..at + 4096, |into| into.copy_from_slice(page));
    }
    copy
}

#[test]
fn a_store_moves_between_drives_of_different_block_sizes() {
    let limit = Some(LOG + (6 << 20));
    // A policy that moves much: this test is about moves.
    let options = options()
        .volume_limit_bytes(limit)
        .cleaning_policy(PolicyKind::Greedy);
    for (seed, closed) in [(10, true), (11, false)] {
        let plan = FaultPlan::new(seed).logical_block(512).max_bytes(limit);
        let (mut device, simulation) = create(plan, &options);
        let tree = simulation.store().create_tree("t").unwrap();
        let mut model = Model::new();
        let mut random = Random::new(seed);
        for n in 0..150 {
            let v = value(random.bits(), random.one_of(&[1700, 4100, 9000, 30_000]));
            tree.insert(&key(n), &v).unwrap();
            model.insert(key(n), v);
        }
        if closed {
            simulation.close().unwrap();
        } else {
            device = image(&device);
            drop(simulation);
        }
        for block in [4096, 512, 4096] {
            device = copy_to(&device, block, limit);
            let simulation = open(&device, &options, seed);
            let store = simulation.store();
            assert_holds(store, "t", &model);
            let tree = store.tree("t").unwrap();
            // Every second value stays where it is until the cleaner moves it.
            for round in 0..2400 {
                let k = key(2 * random.below(75));
                let v = value(round, random.one_of(&[100, 1700, 4100, 9000, 20_000]));
                tree.insert(&k, &v).unwrap();
                model.insert(k, v);
            }
            let stats = store.stats();
            assert!(stats.relocations > 100, "{} moves", stats.relocations);
            assert_eq!(stats.corrupt_pages, 0);
            assert_holds(store, "t", &model);
            assert_sound(store, Some(model.len() as u64));
            assert_lasts(&image(&device), &[("t", &model)]);
            simulation.close().unwrap();
        }
    }
}

/// A corrupt page that says that it is a chunk, or a chunk that says that it is a page, does not
/// decide where what lives beside it is moved: each page can still be read on a drive with longer
/// blocks.
#[test]
fn a_corrupt_kind_moves_nothing_to_where_it_does_not_belong() {
    const SEGMENT: u64 = 64 << 10;
    const KIND: u64 = 4;
    let limit = Some(LOG + (6 << 20));
    let options = options()
        .volume_limit_bytes(limit)
        .cleaning_policy(PolicyKind::Greedy);
    let plan = FaultPlan::new(12).logical_block(512).max_bytes(limit);
    let (device, simulation) = create(plan, &options);
    let tree = simulation.store().create_tree("t").unwrap();
    let mut random = Random::new(12);
    for n in 0..600 {
        let length = random.one_of(&[100, 900, 1700, 4100, 9000]);
        tree.insert(&key(n), &value(n, length)).unwrap();
    }
    simulation.close().unwrap();
    let bytes = bytes_of(&device);
    let kind_at = |segment: u64| bytes[(segment * SEGMENT + KIND) as usize];
    let segments = 1..bytes.len() as u64 / SEGMENT;
    let (mut corrupt_pages, mut relocations) = (0, 0);
    for (from, to) in [(1, 3), (3, 1)] {
        for segment in segments.clone().filter(|&segment| kind_at(segment) == from) {
            let device = copy_to(&device, 512, limit);
            let at = segment * SEGMENT + KIND;
            device.corrupt(at..at + 1, |kind| kind[0] = to);
            let volume = Volume::from_device(device.clone());
            // Without its catalog, nothing of the store can be changed.
            let Ok(simulation) = Simulation::open(volume, &options, segment) else {
                continue;
            };
            let tree = simulation.store().tree("t").unwrap();
            for round in 0..1500 {
                // Whatever cannot be reached is refused.
                let _ = tree.insert(&key(2 * random.below(300)), &value(round, 1700));
            }
            let stats = simulation.store().stats();
            corrupt_pages += stats.corrupt_pages;
            relocations += stats.relocations;
            simulation.close().unwrap();
            let moved = copy_to(&device, 4096, limit);
            let simulation = open(&moved, &options, segment);
            let tree = simulation.store().tree("t").unwrap();
            for n in 0..600 {
                if let Err(error) = tree.get(&key(n)) {
                    assert!(
                        matches!(error, Error::CorruptPage { .. }),
                        "{segment}: {error:?}"
                    );
                }
            }
            simulation.close().unwrap();
        }
    }
    assert!(corrupt_pages > 0, "no corrupt page was in a victim");
    assert!(relocations > 0, "nothing was moved");
}

#[test]
fn readers_whose_buffers_others_took_go_on_where_they_were() {
    let options = Options::new().pool_bytes(8 << 20).workers(1).log_bytes(0);
    let store = Store::in_memory(&options).unwrap();
    let tree = store.create_tree("t").unwrap();
    let values: Vec<Vec<u8>> = (0..4)
        .map(|n| value(n, 900_000 + 77 * n as usize))
        .collect();
    for (n, v) in values.iter().enumerate() {
        tree.insert(&[n as u8], v).unwrap();
    }
    let mut random = Random::new(12);
    let mut readers: Vec<_> = (0..300)
        .map(|n| (n % 4, 0, tree.reader(&[(n % 4) as u8]).unwrap().unwrap()))
        .collect();
    for _ in 0..3 {
        for (of, position, reader) in &mut readers {
            let mut part = vec![0; random.below(200_000) as usize];
            reader.read_exact(&mut part).unwrap();
            assert!(part == values[*of][*position..*position + part.len()]);
            *position += part.len();
        }
    }
    for (of, position, mut reader) in readers {
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).unwrap();
        assert!(rest == values[of][position..]);
    }
}

/// A reader that jumps reads what a cursor over the same bytes does, of small and large values.
#[test]
fn readers_jump_within_values_and_behind_them() {
    let options = Options::new().pool_bytes(8 << 20).workers(1).log_bytes(0);
    let store = Store::in_memory(&options).unwrap();
    let tree = store.create_tree("t").unwrap();
    let mut random = Random::new(13);
    for length in [0, 100, 30_000, 3_000_000] {
        let bytes = value(7, length);
        tree.insert("k", &bytes).unwrap();
        let mut reader = tree.reader("k").unwrap().unwrap();
        let mut expected = Cursor::new(&bytes);
        for _ in 0..200 {
            let offset = random.below(length as u64 + 50);
            let back = -(random.below(length as u64 / 2 + 1).cast_signed());
            let to = random.one_of(&[
                SeekFrom::Start(offset),
                SeekFrom::End(back),
                SeekFrom::Current(back),
                SeekFrom::Current(77),
            ]);
            let (found, wanted) = (reader.seek(to), expected.seek(to));
            assert_eq!(found.ok(), wanted.ok(), "{to:?}");
            let most = random.one_of(&[1, 1000, 300_000]);
            let (mut found, mut wanted) = (Vec::new(), Vec::new());
            reader.by_ref().take(most).read_to_end(&mut found).unwrap();
            expected
                .by_ref()
                .take(most)
                .read_to_end(&mut wanted)
                .unwrap();
            assert!(found == wanted, "{length}: {to:?}, {most} bytes");
            let part = reader.read_at(offset, most as usize).unwrap();
            let end = (offset + most).min(length as u64) as usize;
            assert!(part == bytes[end.min(offset as usize)..end]);
        }
    }
}

/// The engine's error in that of a stream.
fn error_of(read: std::io::Result<usize>) -> Error {
    read.unwrap_err().downcast::<Error>().unwrap()
}

/// A reader whose value is replaced or removed says so, and that it may be read again; a snapshot's
/// reader goes on.
#[test]
fn a_reader_says_that_its_value_was_replaced() {
    let options = Options::new().pool_bytes(8 << 20).workers(1);
    let store = Store::in_memory(&options).unwrap();
    let tree = store.create_tree("t").unwrap();
    let large = value(1, 4 << 20);
    let change: [fn(&isobath::Tree); 3] = [
        |tree| tree.insert("a", "short").unwrap(),
        |tree| tree.insert("a", vec![2; 3 << 20]).unwrap(),
        |tree| assert!(tree.remove("a").unwrap()),
    ];
    for change in change {
        tree.insert("a", &large).unwrap();
        let snapshot = store.snapshot().unwrap();
        let mut lasting = snapshot.reader(&tree, "a").unwrap().unwrap();
        let mut ended = snapshot.reader(&tree, "a").unwrap().unwrap();
        let mut reader = tree.reader("a").unwrap().unwrap();
        for reader in [&mut reader, &mut lasting, &mut ended] {
            reader.read_exact(&mut [0; 100]).unwrap();
        }
        change(&tree);
        let mut rest = Vec::new();
        lasting.read_to_end(&mut rest).unwrap();
        assert!(rest == large[100..]);
        drop(snapshot);
        for mut reader in [reader, ended] {
            let error = error_of(reader.read_to_end(&mut Vec::new()));
            assert!(matches!(error, Error::ValueReplaced), "{error:?}");
            assert!(error.is_retryable());
        }
    }
    // A value that a transaction has written itself and removed.
    let mut transaction = store.begin().unwrap();
    transaction.insert(&tree, "b", &large).unwrap();
    let mut reader = transaction.reader(&tree, "b").unwrap().unwrap();
    reader.read_exact(&mut [0; 100]).unwrap();
    transaction.insert(&tree, "b", "short").unwrap();
    transaction.commit().unwrap();
    store.spawn(|| ()).join().unwrap();
    let error = error_of(reader.read_to_end(&mut Vec::new()));
    assert!(matches!(error, Error::ValueReplaced), "{error:?}");
    // In a tree that is dropped, that is the reason.
    tree.insert("a", &large).unwrap();
    let mut reader = tree.reader("a").unwrap().unwrap();
    store.drop_tree("t").unwrap();
    let error = error_of(reader.read_to_end(&mut Vec::new()));
    assert!(matches!(error, Error::TreeDropped { .. }), "{error:?}");
    store.close().unwrap();
}

/// Programs find one type inside, whichever part has failed.
#[test]
fn a_streams_error_is_the_engines() {
    let store = Store::in_memory(&options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    tree.insert("k", vec![7; 1 << 20]).unwrap();
    let mut reader = tree.reader("k").unwrap().unwrap();
    let mut writer = tree.writer("w").unwrap();
    assert_eq!(reader.read(&mut [0; 100]).unwrap(), 100);
    store.close().unwrap();
    let is_closed = |error: std::io::Error| {
        let inside = error.get_ref().and_then(|inside| inside.downcast_ref());
        matches!(inside, Some(Error::Closed))
    };
    assert!(is_closed(reader.read(&mut [0; 100]).unwrap_err()));
    assert!(is_closed(reader.seek(SeekFrom::Start(9)).unwrap_err()));
    assert!(is_closed(writer.write_all(&[1; 1 << 20]).unwrap_err()));
}

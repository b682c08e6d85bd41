//! Corrupt, truncated, foreign and newer volumes: every byte may be wrong, and
//! each wrong one is an error that names the problem, never a panic and never
//! a wrong answer.

#![allow(missing_docs, clippy::unwrap_used)]

use super::common;

use std::ops::ControlFlow;
use std::sync::Arc;

use common::{Model, Random, assert_sound, bytes_of, image, key, parameter, value};
use isobath::Error::OlderFormat;
use isobath::{Error, OpenError, Options, SalvageOptions, StorageError, Store, Volume};
use isobath_io::{Fault, FaultDevice, FaultPlan, FaultRule, IoErrorKind, Op, Trigger};

fn options() -> Options {
    Options::new()
        .pool_bytes(2 << 20)
        .workers(1)
        .tasks_per_worker(16)
        .segment_bytes(64 << 10)
}

fn device() -> Arc<FaultDevice> {
    FaultDevice::new(0, FaultPlan::new(1).sleeps(true))
}

/// A closed store with pages of every kind: leaves, inner nodes, chunks, an
/// index chunk, summaries, checkpoint pages of both arrays.
fn build() -> (Arc<FaultDevice>, Model) {
    let device = device();
    let volume = Volume::from_device(device.clone());
    let store = Store::create_on_volume(volume, &options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    let mut model = Model::new();
    let mut random = Random::new(5);
    for n in 0..700 {
        let length = random.one_of(&[0, 30, 200, 900, 1500, 9000]);
        let (k, v) = (key(n), value(n, length));
        tree.insert(&k, &v).unwrap();
        model.insert(k, v);
    }
    // Of unknown length at first: its chunks' ids are not consecutive.
    let v = value(7777, 200_000);
    let mut writer = tree.writer(b"stream").unwrap();
    for (at, part) in v.chunks(9000).enumerate() {
        writer.append(part).unwrap();
        tree.insert(&key(1000 + at as u64), b"between").unwrap();
        model.insert(key(1000 + at as u64), b"between".to_vec());
    }
    writer.finish().unwrap();
    model.insert(b"stream".to_vec(), v);
    // Segments that were written before the last ones are sealed by now.
    store.close().unwrap();
    (device, model)
}

/// Reads everything: each answer is right or an error. Whether all were right.
fn read_all(store: &Store, model: &Model) -> bool {
    let tree = match store.tree("t") {
        Ok(tree) => tree,
        Err(Error::NoSuchTree { .. }) => panic!("the tree is lost silently"),
        Err(_) => return false,
    };
    let mut whole = true;
    for (k, v) in model {
        match tree.get(k) {
            Ok(Some(found)) => assert!(&found == v, "a wrong value"),
            Ok(None) => panic!("a record is lost silently"),
            Err(error) => {
                assert!(!error.to_string().is_empty());
                whole = false;
            }
        }
    }
    let mut want = model.iter();
    for record in tree.range(..) {
        match record {
            Ok((k, v)) => assert_eq!(want.next(), Some((&k, &v))),
            Err(_) => {
                whole = false;
                break;
            }
        }
    }
    assert!(!whole || want.next().is_none(), "a scan ends early");
    whole
}

#[test]
fn a_flipped_bit_in_any_block_is_reported_and_nothing_else_suffers() {
    let (device, model) = build();
    let pristine = bytes_of(&device);
    let blocks: Vec<usize> = (0..pristine.len() / 4096)
        .filter(|block| {
            pristine[block * 4096..][..4096]
                .iter()
                .any(|&byte| byte != 0)
        })
        .collect();
    let every = parameter("ISOBATH_CORRUPTION_EVERY", 7) as usize;
    let mut random = Random::new(9);
    let (mut refused, mut partly, mut harmless) = (0, 0, 0);
    let is_checkpoint = |block: usize| pristine[block * 4096 + 4] == 5;
    for &block in blocks
        .iter()
        .filter(|&&b| b % every == 0 || is_checkpoint(b))
    {
        let corrupt = image(&device);
        let at = block * 4096 + random.below(4096) as usize;
        let bit = 1 << random.below(8);
        corrupt.corrupt(at as u64..at as u64 + 1, |bytes| bytes[0] ^= bit);
        let read_only = options().read_only(true);
        let volume = Volume::from_device(corrupt.clone());
        let store = match Store::open_on_volume(volume, &read_only) {
            Ok(store) => store,
            Err(error) => {
                let known = matches!(
                    error,
                    OpenError::Storage(StorageError::CorruptPage { .. })
                        | OpenError::SuperblockCorrupt { .. }
                );
                assert!(known, "byte {at}: {error}");
                if let OpenError::Storage(StorageError::CorruptPage { offset, .. }) = error {
                    assert_eq!(offset / 4096, block as u64, "byte {at}: {error}");
                }
                refused += 1;
                continue;
            }
        };
        let whole = read_all(&store, &model);
        let report = store.check(&mut |_, _| {}).unwrap();
        assert_eq!(report.problems.is_empty(), whole, "byte {at}: {report:?}");
        store.close().unwrap();
        let mut after = bytes_of(&corrupt);
        after[at] ^= bit;
        assert!(after == pristine, "reading only has changed the volume");
        if whole {
            // A summary, a stale page, or one of the two superblocks.
            harmless += 1;
        } else {
            partly += 1;
        }
    }
    println!("{refused} refused, {partly} partly readable, {harmless} harmless");
    assert!(refused > 0 && partly > 0 && harmless > 0);
}

#[test]
fn corruption_beside_writers_spares_what_is_intact() {
    let (device, model) = build();
    let pristine = bytes_of(&device);
    let mut random = Random::new(10);
    for round in 0..parameter("ISOBATH_CORRUPTION_ROUNDS", 12) {
        let corrupt = image(&device);
        // Segment 0 has the superblocks.
        for _ in 0..6 {
            let at = 65536 + random.below(pristine.len() as u64 - 65536);
            corrupt.corrupt(at..at + 1, |bytes| bytes[0] ^= 4);
        }
        let volume = Volume::from_device(corrupt.clone());
        let Ok(store) = Store::open_on_volume(volume, &options()) else {
            continue;
        };
        if let Ok(tree) = store.tree("t") {
            for n in 0..1500 {
                // Whatever cannot be reached is refused, and the rest goes on.
                let _ = tree.insert(&key(50_000 + n % 400), &value(n, 700));
                let _ = tree.remove(&key(n));
            }
            for (k, v) in &model {
                if let Ok(Some(found)) = tree.get(k) {
                    assert!(&found == v, "round {round}");
                }
            }
        }
        let _ = store.close();
    }
}

#[test]
fn either_superblock_is_enough_and_none_is_an_error() {
    let (device, model) = build();
    for first in [0, 32768] {
        let corrupt = image(&device);
        corrupt.corrupt(first..first + 4096, |bytes| bytes.fill(0x5a));
        let volume = Volume::from_device(corrupt.clone());
        let store = Store::open_on_volume(volume, &options()).unwrap();
        assert!(read_all(&store, &model));
        store.close().unwrap();
        let store = Store::open_on_volume(Volume::from_device(corrupt), &options()).unwrap();
        assert!(read_all(&store, &model));
        assert_sound(&store, Some(model.len() as u64));
        store.close().unwrap();
    }
    let corrupt = image(&device);
    for first in [0, 32768] {
        corrupt.corrupt(first + 100..first + 101, |bytes| bytes[0] ^= 1);
    }
    let error = Store::open_on_volume(Volume::from_device(corrupt), &options()).err();
    assert!(
        matches!(error, Some(OpenError::SuperblockCorrupt { .. })),
        "{error:?}"
    );
}

#[test]
fn truncated_newer_and_foreign_volumes_are_distinguished() {
    let (device, _) = build();
    let bytes = bytes_of(&device);
    let open = |bytes: &[u8]| {
        let volume = Volume::in_memory(bytes.len() as u64, None);
        volume.write_at(0, bytes).unwrap();
        let error = Store::open_on_volume(volume.clone(), &options())
            .err()
            .unwrap();
        let mut after = vec![0; bytes.len()];
        volume.read_at(0, &mut after).unwrap();
        assert!(after == bytes, "a refused volume was changed: {error}");
        error
    };
    let error = open(&bytes[..bytes.len() / 2 / 4096 * 4096]);
    assert!(matches!(error, OpenError::Truncated { .. }), "{error}");
    let error = open(&vec![0; 1 << 20]);
    assert!(matches!(error, OpenError::NotAStore { .. }), "{error}");
    let error = open(&value(1, 1 << 20));
    assert!(matches!(error, OpenError::NotAStore { .. }), "{error}");
    let error = open(&[]);
    assert!(matches!(error, OpenError::NotAStore { .. }), "{error}");
    let mut newer = bytes.clone();
    for first in [0, 32768] {
        newer[first + 8] = 9;
    }
    let error = open(&newer);
    assert!(
        matches!(
            error,
            OpenError::NewerFormat {
                found: 9,
                known: 8,
                ..
            }
        ),
        "{error}"
    );
}

/// Gives the superblocks at the `places` of them in `bytes` the format version `version`.
fn give_version(bytes: &mut [u8], places: &[usize], version: u8) {
    for &place in places {
        let block = &mut bytes[place..place + 4096];
        assert!(block.starts_with(b"ISOBATH\0"));
        block[8] = version;
        let sum = crc32c::crc32c_append(crc32c::crc32c(&block[..12]), &block[16..]);
        block[12..16].copy_from_slice(&sum.to_le_bytes());
    }
}

#[test]
fn a_store_of_an_older_version_is_left_to_its_release() {
    let directory = tempfile::tempdir().unwrap();
    let [path, saved] = ["old", "saved"].map(|name| directory.path().join(name));
    let options = options().publish_stats(false);
    Store::create(&path, &options).unwrap().close().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let places = (0..bytes.len()).step_by(4096);
    let places: Vec<usize> = places
        .filter(|&at| bytes[at..].starts_with(b"ISOBATH\0"))
        .collect();
    let [_, second] = places[..] else {
        panic!("{places:?}")
    };
    for version in [1, 2, 3, 4, 6, 7] {
        give_version(&mut bytes, &places, version);
        std::fs::write(&path, &bytes).unwrap();
        let refused = |error: Error| {
            let OlderFormat { found, known, .. } = error else {
                panic!("{error}")
            };
            assert_eq!((found, known), (u32::from(version), 8));
        };
        let error = Store::open(&path, &options).unwrap_err();
        let what = format!("has format version {version}; this engine reads version 8: run");
        assert!(error.to_string().contains(&what), "{error}");
        refused(error.into());
        let reads = Store::open(&path, &options.clone().read_only(true));
        refused(reads.unwrap_err().into());
        let (how, mut watch) = (SalvageOptions::new(), |_: &_, _, _| {
            ControlFlow::Continue(())
        });
        let salvaged = isobath::salvage(&[&path], &[&saved], &how, &options, &mut watch);
        refused(salvaged.unwrap_err());
        assert!(std::fs::read(&path).unwrap() == bytes && !saved.exists());
    }
    // One that has no overlays, and ones that a crash kept from getting their second superblock of
    // a version that is read.
    for (first, other) in [(5, 5), (5, 4), (8, 4), (8, 5), (5, 8)] {
        give_version(&mut bytes, &places, first);
        give_version(&mut bytes, &[second], other);
        std::fs::write(&path, &bytes).unwrap();
        Store::open(&path, &options).unwrap().close().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert!(places.iter().any(|&at| bytes[at + 8] == 8));
    }
}

#[test]
fn a_store_without_a_log_that_was_not_closed_refuses_to_open() {
    let device = device();
    let volume = Volume::from_device(device.clone());
    let unlogged = options().log_bytes(0);
    let store = Store::create_on_volume(volume, &unlogged).unwrap();
    store.create_tree("t").unwrap();
    let unclosed = image(&device);
    store.close().unwrap();
    for read_only in [false, true] {
        let volume = Volume::from_device(image(&unclosed));
        let error = Store::open_on_volume(volume, &options().read_only(read_only)).err();
        assert!(
            matches!(error, Some(OpenError::NotClosedCleanly { .. })),
            "{error:?}"
        );
    }
}

#[test]
fn reading_only_refuses_every_change() {
    let (device, model) = build();
    let pristine = bytes_of(&device);
    let volume = Volume::from_device(device.clone());
    let store = Store::open_on_volume(volume, &options().read_only(true)).unwrap();
    let tree = store.tree("t").unwrap();
    #[track_caller]
    fn refused(result: Result<(), Error>) {
        assert!(matches!(result, Err(Error::ReadOnly)), "{result:?}");
    }
    refused(tree.insert(b"k", b"v"));
    refused(tree.insert(b"k", &value(1, 5000)));
    refused(tree.remove(&key(1)).map(|_| ()));
    refused(tree.writer(b"k").map(|_| ()));
    refused(
        tree.bulk_load([([0xff; 9], b"v")])
            .map(drop)
            .map_err(Error::from),
    );
    refused(store.create_tree("new").map(|_| ()));
    refused(store.drop_tree("t"));
    assert!(read_all(&store, &model), "the tree is still there");
    assert_sound(&store, Some(model.len() as u64));
    store.close().unwrap();
    assert!(bytes_of(&device) == pristine);
}

#[test]
fn a_store_that_was_not_closed_is_read_and_then_recovered() {
    let device = device();
    let volume = Volume::from_device(device.clone());
    let store = Store::create_on_volume(volume, &options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    tree.insert(b"key", b"value").unwrap();
    let unclosed = image(&device);
    store.close().unwrap();
    let volume = Volume::from_device(image(&unclosed));
    let store = Store::open_on_volume(volume.clone(), &options().read_only(true)).unwrap();
    assert!(store.tree("t").unwrap().contains(b"key").unwrap());
    store.close().unwrap();
    let store = Store::open_on_volume(volume.clone(), &options()).unwrap();
    assert!(store.stats().recovered_log_bytes > 0);
    let tree = store.tree("t").unwrap();
    assert_eq!(tree.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    store.close().unwrap();
    let store = Store::open_on_volume(volume, &options().read_only(true)).unwrap();
    assert!(store.tree("t").unwrap().contains(b"key").unwrap());
}

/// The drive reports an error, for a page and for the chunks of a large value: the error names
/// which.
#[test]
fn a_failed_read_names_the_page_and_the_tree() {
    let (device, model) = build();
    let volume = Volume::from_device(device.clone());
    let store = Store::open_on_volume(volume, &options()).unwrap();
    let tree = store.tree("t").unwrap();
    let fails = || {
        let fault = Fault::Error(IoErrorKind::Media);
        // Beyond the superblocks.
        let rule = FaultRule::new(fault, Trigger::From(0)).ops(&[Op::Read]);
        device.add_rule(rule.region(64 << 10..u64::MAX));
    };
    let named = |error: Error| match error {
        Error::PageRead {
            page,
            offset,
            tree: Some(tree),
            ..
        } => {
            assert_eq!(&*tree, "t");
            assert!(offset >= 64 << 10);
            page
        }
        other => panic!("{other:?}"),
    };
    // The leaf is in memory from here on, the value is not.
    assert!(tree.contains(b"stream").unwrap());
    let mut reader = tree.reader(b"stream").unwrap().unwrap();
    fails();
    let first = named(tree.get(b"stream").unwrap_err());
    let failed = std::io::copy(&mut reader, &mut std::io::sink()).unwrap_err();
    assert_eq!(named(failed.downcast::<Error>().unwrap()), first);
    let unread = (0..700).find_map(|n| tree.get(&key(n)).err());
    let other = named(unread.expect("the pool does not hold everything"));
    assert_ne!(other, first);
    device.clear_rules();
    // One of several chunks cannot be read at first.
    let fault = Fault::Error(IoErrorKind::Media);
    device.add_rule(FaultRule::new(fault, Trigger::At(2)).ops(&[Op::Read]));
    assert_eq!(
        tree.get(b"stream").unwrap(),
        Some(model[&b"stream"[..]].clone())
    );
    device.clear_rules();
    assert!(read_all(&store, &model));
    store.close().unwrap();
}

//! Keys, values, names, trees and volumes at every limit.

#![allow(missing_docs, clippy::unwrap_used)]

use super::common;

use std::io::{Read, Write};

use common::{assert_sound, key, parameter, tiny, value};
use isobath::{Error, MAX_KEY_BYTES, MAX_VALUE_BYTES, OpenError, Options, Store, Volume};

fn options() -> Options {
    Options::new()
        .pool_bytes(6 << 20)
        .workers(2)
        .segment_bytes(256 << 10)
}

#[test]
fn keys_of_every_length_up_to_the_limit() {
    let volume = Volume::in_memory(0, None);
    let store = Store::create_on_volume(volume.clone(), &options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    let keys: Vec<Vec<u8>> = (0..=MAX_KEY_BYTES)
        .map(|length| value(1, length))
        .chain(
            (0..=MAX_KEY_BYTES)
                .step_by(13)
                .map(|length| vec![0xff; length]),
        )
        .chain(
            (1..=MAX_KEY_BYTES)
                .step_by(17)
                .map(|length| vec![0; length]),
        )
        .collect();
    for (n, key) in keys.iter().enumerate() {
        tree.insert(key, &value(n as u64, n % 300)).unwrap();
    }
    let last: std::collections::BTreeMap<_, _> = keys.iter().zip(0u64..).collect();
    for (key, &n) in &last {
        assert_eq!(tree.get(key).unwrap(), Some(value(n, n as usize % 300)));
    }
    let long = vec![1; MAX_KEY_BYTES + 1];
    let refused = |error: Error| {
        assert!(
            matches!(
                error,
                Error::KeyTooLong {
                    length: 1025,
                    limit: 1024
                }
            ),
            "{error}"
        );
    };
    refused(tree.insert(&long, b"").unwrap_err());
    refused(tree.get(&long).unwrap_err());
    refused(tree.remove(&long).unwrap_err());
    refused(tree.contains(&long).unwrap_err());
    refused(tree.writer(&long).err().unwrap());
    refused(tree.reader(&long).err().unwrap());
    refused(tree.get_many(&[&long]).unwrap_err());
    refused(tree.bulk_load([(&long, b"")]).unwrap_err().into());
    assert_sound(&store, Some(last.len() as u64));
    store.close().unwrap();
    let store = Store::open_on_volume(volume, &options()).unwrap();
    let tree = store.tree("t").unwrap();
    assert!(
        tree.range(..)
            .map(|r| r.unwrap().0)
            .eq(last.keys().map(|k| (*k).clone()))
    );
    for key in last.keys() {
        assert!(tree.remove(key).unwrap());
    }
    assert_sound(&store, Some(0));
    store.close().unwrap();
}

#[test]
fn values_around_every_boundary() {
    let volume = Volume::in_memory(0, None);
    let store = Store::create_on_volume(volume.clone(), &options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    let before = store.stats().allocated_bytes;
    let chunk = (((256 << 10) - 4096) / 8 / 512 * 512 - 64) as i64;
    let mut cases: Vec<(usize, usize)> = Vec::new();
    for length in [0, 1, 1023, 1024, 1025, 4031, 4032, 4033] {
        cases.push((8, length));
    }
    // Key and value together.
    for (k, v) in [
        (256, 1024),
        (257, 1024),
        (1024, 256),
        (1024, 257),
        (1024, 255),
    ] {
        cases.push((k, v));
    }
    for chunks in [1, 2, 3, 8, 9] {
        for around in -1..=1 {
            cases.push((9, (chunks * chunk + around) as usize));
        }
    }
    for (n, &(k, v)) in cases.iter().enumerate() {
        let mut key = vec![n as u8; k];
        key[0] = n as u8;
        tree.insert(&key, &value(n as u64, v)).unwrap();
        // The same through a stream, in pieces that fit nothing.
        key[0] = 200 - n as u8;
        let mut writer = tree.writer(&key).unwrap();
        for piece in value(n as u64, v).chunks(977) {
            writer.write_all(piece).unwrap();
        }
        writer.finish().unwrap();
    }
    let check = |tree: &isobath::Tree| {
        for (n, &(k, v)) in cases.iter().enumerate() {
            let mut key = vec![n as u8; k];
            for first in [n as u8, 200 - n as u8] {
                key[0] = first;
                assert_eq!(
                    tree.get(&key).unwrap(),
                    Some(value(n as u64, v)),
                    "{k} + {v}"
                );
                let mut reader = tree.reader(&key).unwrap().unwrap();
                assert_eq!(reader.len(), v as u64);
                let mut bytes = Vec::new();
                reader.read_to_end(&mut bytes).unwrap();
                assert_eq!(bytes, value(n as u64, v));
            }
        }
    };
    check(&tree);
    assert_sound(&store, Some(2 * cases.len() as u64));
    store.close().unwrap();
    let store = Store::open_on_volume(volume, &options()).unwrap();
    let tree = store.tree("t").unwrap();
    check(&tree);
    for (key, _) in tree.range(..).map(Result::unwrap).collect::<Vec<_>>() {
        assert!(tree.remove(&key).unwrap());
    }
    assert_eq!(store.stats().allocated_bytes, before);
    store.close().unwrap();
}

#[test]
fn a_large_value_streams_in_and_out() {
    let bytes = parameter("ISOBATH_LARGE_VALUE_MIB", 64) << 20;
    let options = Options::new().pool_bytes(8 << 20).workers(1);
    let store = Store::in_memory(&options).unwrap();
    let tree = store.create_tree("t").unwrap();
    let piece = value(3, 1 << 20);
    for _ in 0..2 {
        let mut writer = tree.writer(b"large").unwrap();
        for n in 0..bytes >> 20 {
            writer.append(&n.to_le_bytes()).unwrap();
            writer.append(&piece[8..]).unwrap();
        }
        assert_eq!(writer.len(), bytes);
        if bytes == MAX_VALUE_BYTES {
            let error = writer.append(b"x").unwrap_err();
            assert!(matches!(error, Error::ValueTooLong { .. }), "{error}");
        }
        writer.finish().unwrap();
    }
    let mut reader = tree.reader(b"large").unwrap().unwrap();
    let mut found = vec![0; 1 << 20];
    for n in 0..bytes >> 20 {
        reader.read_exact(&mut found).unwrap();
        assert_eq!(found[..8], n.to_le_bytes());
        assert!(found[8..] == piece[8..], "MiB {n}");
    }
    assert_eq!(reader.read(&mut found).unwrap(), 0);
    assert_sound(&store, Some(1));
    assert!(tree.remove(b"large").unwrap());
    assert!(store.stats().allocated_bytes < 1 << 20);
    store.close().unwrap();
}

#[test]
fn page_ids_of_large_values_are_used_again() {
    let volume = Volume::in_memory(0, None);
    let store = Store::create_on_volume(volume.clone(), &options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    let churn = |tree: &isobath::Tree| {
        for n in 0..400u64 {
            tree.insert(&key(n % 7), &value(n, 150_000 + (n % 5) as usize * 40_000))
                .unwrap();
        }
    };
    churn(&tree);
    let ids = store.stats().page_ids;
    assert!(ids < 300, "{ids} page ids for seven values");
    store.close().unwrap();
    let store = Store::open_on_volume(volume, &options()).unwrap();
    churn(&store.tree("t").unwrap());
    let ids = store.stats().page_ids;
    assert!(
        ids < 300,
        "{ids} page ids for seven values, after reopening"
    );
    assert_sound(&store, Some(7));
    store.close().unwrap();
}

#[test]
fn names_of_trees_at_their_limits() {
    let store = Store::in_memory(&options()).unwrap();
    for name in ["", &"x".repeat(256)] {
        let error = store.create_tree(name).err().unwrap();
        assert!(
            matches!(error, Error::BadTreeName { limit: 255, .. }),
            "{error}"
        );
        let error = store.tree(name).err().unwrap();
        assert!(matches!(error, Error::BadTreeName { .. }), "{error}");
        let error = store.drop_tree(name).unwrap_err();
        assert!(matches!(error, Error::BadTreeName { .. }), "{error}");
    }
    let names = [
        "x".repeat(255),
        "\0".to_owned(),
        "a/b c\n".to_owned(),
        "Öl".to_owned(),
    ];
    for name in &names {
        store
            .create_tree(name)
            .unwrap()
            .insert(b"k", name.as_bytes())
            .unwrap();
        let error = store.create_tree(name).err().unwrap();
        assert!(matches!(error, Error::TreeExists { .. }), "{error}");
    }
    let mut listed: Vec<_> = store
        .trees()
        .unwrap()
        .into_iter()
        .map(|tree| tree.name)
        .collect();
    listed.sort();
    let mut want = names.to_vec();
    want.sort();
    assert_eq!(listed, want);
    for name in &names {
        let found = store.tree(name).unwrap().get(b"k").unwrap();
        assert_eq!(found.as_deref(), Some(name.as_bytes()));
    }
    let error = store.tree("none").err().unwrap();
    assert!(matches!(error, Error::NoSuchTree { .. }), "{error}");
    let error = store.drop_tree("none").unwrap_err();
    assert!(matches!(error, Error::NoSuchTree { .. }), "{error}");
    store.close().unwrap();
}

#[test]
fn thousands_of_trees_come_and_go_with_their_space() {
    let volume = Volume::in_memory(0, None);
    let options = options();
    let store = Store::create_on_volume(volume.clone(), &options).unwrap();
    let count = parameter("ISOBATH_TREES", 2000);
    let empty = store.stats().allocated_bytes;
    for round in 0..2 {
        for n in 0..count {
            let tree = store.create_tree(&format!("tree {n}")).unwrap();
            tree.insert(b"n", &n.to_le_bytes()).unwrap();
            if n % 100 == 0 {
                for m in 0..200 {
                    tree.insert(&key(m), &value(m, 300 + (m as usize % 3) * 2000))
                        .unwrap();
                }
            }
        }
        assert_eq!(store.trees().unwrap().len() as u64, count);
        let kept = store.tree("tree 0").unwrap();
        for n in 0..count {
            let tree = store.tree(&format!("tree {n}")).unwrap();
            assert_eq!(
                tree.get(b"n").unwrap().as_deref(),
                Some(&n.to_le_bytes()[..])
            );
            store.drop_tree(&format!("tree {n}")).unwrap();
            for error in [
                tree.get(b"n").err(),
                tree.contains(b"n").err(),
                tree.insert(b"n", b"").err(),
                tree.range(..).next().and_then(Result::err),
                tree.scan(.., |_, _| true).err(),
            ] {
                assert!(
                    matches!(error, Some(Error::TreeDropped { .. })),
                    "{error:?}"
                );
            }
        }
        assert!(matches!(kept.get(b"n"), Err(Error::TreeDropped { .. })));
        assert_eq!(store.trees().unwrap(), Vec::new());
        assert_sound(&store, Some(0));
        let left = store.stats().allocated_bytes;
        assert!(
            left <= empty + 16 * 4096,
            "round {round}: {left} bytes are left"
        );
    }
    store.close().unwrap();
    let store = Store::open_on_volume(volume, &options).unwrap();
    assert_sound(&store, Some(0));
    let tree = store.create_tree("tree 0").unwrap();
    assert_eq!(tree.get(b"n").unwrap(), None);
    store.close().unwrap();
}

#[test]
fn a_full_volume_stays_usable() {
    for length in [200, 700, 1200, 3000, 30_000, 200_000] {
        // 4 MiB of it are the log's.
        let options = options().volume_limit_bytes(Some(24 << 20));
        let volume = Volume::in_memory(0, Some(24 << 20));
        let store = Store::create_on_volume(volume.clone(), &options).unwrap();
        let tree = store.create_tree("t").unwrap();
        let other = store.create_tree("other").unwrap();
        for n in 0..300u64 {
            other.insert(&key(n), &value(n, 500)).unwrap();
        }
        let fill = |from: u64| {
            let mut n = from;
            loop {
                match tree.insert(&key(n), &value(n, length)) {
                    Ok(()) => n += 1,
                    Err(Error::VolumeFull { .. }) => return n,
                    Err(error) => panic!("{error}"),
                }
            }
        };
        let full = fill(0);
        // A failed insertion has changed nothing and taken nothing.
        assert_eq!(tree.get(&key(full)).unwrap(), None);
        let used = full * (length as u64 + 8);
        assert!(used > 6 << 20, "{length}: full at {used} bytes");
        for n in 0..full {
            assert_eq!(
                tree.get(&key(n)).unwrap(),
                Some(value(n, length)),
                "{length}"
            );
        }
        for round in 0..3 {
            for n in (round..full).step_by(3) {
                assert!(tree.remove(&key(n)).unwrap());
            }
            for n in (round..full).step_by(3) {
                // There was space for this many before.
                match tree.insert(&key(n), &value(n, length)) {
                    Ok(()) | Err(Error::VolumeFull { .. }) => {}
                    Err(error) => panic!("{length}: {error}"),
                }
            }
        }
        assert_sound(&store, None);
        // Dropping needs no space.
        store.drop_tree("other").unwrap();
        fill(full);
        store.drop_tree("t").unwrap();
        assert!(store.stats().allocated_bytes < 1 << 20);
        store.close().unwrap();
        let store = Store::open_on_volume(volume, &options).unwrap();
        assert_sound(&store, Some(0));
        store.close().unwrap();
    }
}

/// What a checkpoint needs is kept free there only once the store is closed.
#[test]
fn a_full_volume_without_a_log_can_be_closed() {
    for length in [100, 3000, 30_000] {
        let options = options().log_bytes(0).volume_limit_bytes(Some(16 << 20));
        let volume = Volume::in_memory(0, Some(16 << 20));
        let store = Store::create_on_volume(volume.clone(), &options).unwrap();
        let tree = store.create_tree("t").unwrap();
        let mut full = 0u64;
        let error = loop {
            match tree.insert(&key(full), &value(full, length)) {
                Ok(()) => full += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::VolumeFull { .. }), "{error}");
        // Pages are written again all over the volume, so that little is free.
        let mut tags: Vec<u64> = (0..full).collect();
        for n in (0..full).map(|n| n * 7919 % full) {
            match tree.insert(&key(n), &value(n + 1, length)) {
                Ok(()) => tags[n as usize] = n + 1,
                Err(Error::VolumeFull { .. }) => {}
                Err(error) => panic!("{length}: {error}"),
            }
        }
        store.close().unwrap();
        let store = Store::open_on_volume(volume, &options).unwrap();
        assert_sound(&store, Some(full));
        let tree = store.tree("t").unwrap();
        for (n, tag) in (0..full).zip(tags) {
            let found = tree.get(&key(n)).unwrap();
            assert_eq!(found, Some(value(tag, length)), "{length}");
        }
        store.close().unwrap();
    }
}

#[test]
fn options_that_cannot_work_are_refused_by_name() {
    let bad = |options: Options, name: &str| {
        let error = Store::in_memory(&options).err().unwrap();
        assert!(
            matches!(error, OpenError::BadOption { option, .. } if option == name),
            "{error}"
        );
    };
    bad(options().pool_bytes(0), "pool_bytes");
    bad(options().pool_bytes(100 << 10), "pool_bytes");
    bad(options().pool_bytes(1 << 20).workers(16), "pool_bytes");
    bad(options().workers(0), "workers");
    bad(options().workers(257), "workers");
    bad(options().tasks_per_worker(0), "tasks_per_worker");
    bad(options().tasks_per_worker(5000), "tasks_per_worker");
    bad(options().depth_per_worker(0), "depth_per_worker");
    bad(options().segment_bytes(0), "segment_bytes");
    bad(options().segment_bytes((64 << 10) + 512), "segment_bytes");
    bad(options().segment_bytes(128 << 20), "segment_bytes");
    bad(options().fill_factor(f64::NAN), "fill_factor");
    bad(options().fill_factor(1.0), "fill_factor");
    bad(
        options().volume_limit_bytes(Some(4097)),
        "volume_limit_bytes",
    );
    bad(
        options().volume_limit_bytes(Some(1 << 20)),
        "volume_limit_bytes",
    );
    // The smallest that may work does.
    let store = Store::in_memory(&tiny(1, 1)).unwrap();
    let tree = store.create_tree("t").unwrap();
    for n in 0..3000 {
        tree.insert(&key(n), &value(n, 100)).unwrap();
    }
    assert_sound(&store, Some(3000));
    store.close().unwrap();
}

//! Files that are no whole backup, or of another chain, are refused.

use super::*;

/// A backup of everything that a store can have, and what it should hold.
fn sample(place: &Place) -> (Vec<u8>, Model) {
    let store = Store::create(&[place.at("s")], &options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    let mut model = Model::new();
    let mut random = Random::new(3);
    change(&tree, &mut model, &mut random, 400);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (store, stop) = (&store, &stop);
        let _stops = Stops(stop);
        // So that there is a log.
        scope.spawn(move || {
            let other = store.create_tree("other").unwrap();
            let mut n = 0u64;
            while !stop.load(Ordering::Relaxed) {
                n += 1;
                other.insert(&n.to_be_bytes(), b"x").unwrap();
            }
        });
        let began = Instant::now();
        while back_up(store, &place.at("b")).log_bytes == 0 {
            assert!(began.elapsed() < Duration::from_secs(60), "never a log");
            std::fs::remove_file(place.at("b")).unwrap();
        }
    });
    store.close().unwrap();
    (std::fs::read(place.at("b")).unwrap(), model)
}

#[test]
fn any_wrong_byte_is_noticed() {
    let place = Place::new();
    let (sound, model) = sample(&place);
    let restored = place.restore(&["b"], "r").unwrap();
    assert!(contents(&restored.tree("t").unwrap()) == model);
    restored.close().unwrap();
    std::fs::remove_file(place.at("r")).unwrap();
    // Starts of blocks: their headers and first bytes are tried one by one, the rest at random.
    let mut starts = Vec::new();
    let mut at = 0;
    while at < sound.len() {
        assert_eq!(&sound[at..at + 4], b"ISBK");
        let length = u32::from_le_bytes(sound[at + 16..at + 20].try_into().unwrap());
        starts.push((at, sound[at + 4], length as usize));
        at += 24 + length as usize;
    }
    let mut random = Random::new(8);
    let mut places = Vec::new();
    let mut kinds = std::collections::BTreeSet::new();
    for (at, kind, length) in starts {
        if kinds.insert(kind) {
            places.extend(at..at + 24);
        }
        places.extend((0..3).map(|_| at + 24 + random.below(length as u64) as usize));
    }
    assert!(kinds.is_superset(&[1, 2, 3, 5, 6, 7].into()), "{kinds:?}");
    let names = place.names();
    for at in places {
        let mut corrupt = sound.clone();
        corrupt[at] ^= 1 << random.below(8);
        std::fs::write(place.at("b"), &corrupt).unwrap();
        let error = place.restore(&["b"], "r").map(|_| ()).unwrap_err();
        assert!(
            matches!(error, Error::BadBackup { .. }),
            "byte {at}: {error}"
        );
        assert_eq!(place.names(), names, "something is left");
    }
    for length in [0, 3, 23, 24, 100, 5000, sound.len() / 2, sound.len() - 1] {
        std::fs::write(place.at("b"), &sound[..length]).unwrap();
        let error = place.restore(&["b"], "r").map(|_| ()).unwrap_err();
        assert!(
            matches!(error, Error::BadBackup { .. }),
            "{length}: {error}"
        );
    }
    let mut longer = sound.clone();
    longer.extend_from_slice(&[0; 100]);
    std::fs::write(place.at("b"), &longer).unwrap();
    assert!(place.restore(&["b"], "r").is_err());
    std::fs::write(place.at("b"), value(1, 100_000)).unwrap();
    let foreign = place.restore(&["b"], "r").map(|_| ()).unwrap_err();
    let Error::BadBackup { error, .. } = foreign else {
        panic!("{foreign}");
    };
    assert_eq!(error, BackupFileError::Foreign);
    assert_eq!(place.names(), names);
}

#[test]
fn chains_that_do_not_fit_are_refused() {
    let place = Place::new();
    let store = Store::create(&[place.at("s")], &options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    back_up(&store, &place.at("full"));
    for (name, base) in [
        ("one", "full"),
        ("two", "one"),
        ("three", "two"),
        ("fork", "one"),
    ] {
        tree.insert(name.as_bytes(), b"there").unwrap();
        back_up_since(&store, &place.at(name), &place.at(base));
    }
    back_up(&store, &place.at("full2"));
    // A base is not replaced by what adds to it.
    let onto_itself = BackupOptions::new().since(place.at("one")).overwrite(true);
    let refused = store.backup(&place.at("one"), &onto_itself, &mut on);
    assert!(
        matches!(refused, Err(BackupError::BackupChain { .. })),
        "{refused:?}"
    );
    let other = Store::create(&[place.at("o")], &options()).unwrap();
    other.create_tree("t").unwrap();
    back_up(&other, &place.at("other"));
    let foreign = BackupOptions::new().since(place.at("full"));
    let refused = other.backup(&place.at("x"), &foreign, &mut on).unwrap_err();
    assert!(
        matches!(refused, BackupError::BackupChain { .. }),
        "{refused}"
    );
    other.close().unwrap();
    store.close().unwrap();
    for chain in [
        &["one"][..],
        &["full", "two"],
        &["full", "one", "three"],
        &["full", "one", "two", "fork"],
        &["full2", "one"],
        &["other", "one"],
        &["full", "full2"],
        &["full", "other"],
        &["full", "one", "one"],
    ] {
        let refused = place.restore(chain, "r").map(|_| ()).unwrap_err();
        assert!(
            matches!(refused, Error::BackupChain { .. }),
            "{chain:?}: {refused}"
        );
        assert!(!place.at("r").exists());
    }
    assert!(matches!(
        place.restore(&[], "r"),
        Err(Error::BadOption { .. })
    ));
    assert!(matches!(
        place.restore(&["none"], "r"),
        Err(Error::File { .. })
    ));
    for (chain, keys) in [
        (&["full"][..], &[][..]),
        (&["full", "one", "two", "three"], &["one", "three", "two"]),
        (&["full", "one", "fork"], &["fork", "one", "three", "two"]),
    ] {
        let restored = place.restore(chain, "r").unwrap();
        let found: Vec<Vec<u8>> = contents(&restored.tree("t").unwrap()).into_keys().collect();
        assert_eq!(
            found,
            keys.iter()
                .map(|k| k.as_bytes().to_vec())
                .collect::<Vec<_>>()
        );
        restored.close().unwrap();
        std::fs::remove_file(place.at("r")).unwrap();
    }
    // A file that exists is not replaced.
    std::fs::write(place.at("r"), b"mine").unwrap();
    assert!(place.restore(&["full"], "r").is_err());
    assert_eq!(std::fs::read(place.at("r")).unwrap(), b"mine");
}

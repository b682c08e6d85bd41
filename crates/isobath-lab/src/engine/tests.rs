//! Tests that every adapter must pass.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::*;
use crate::bench::{KeyFormat, KeyOrder};

fn config(kind: EngineKind, path: Option<PathBuf>) -> EngineConfig {
    EngineConfig {
        path,
        workers: Some(1),
        tasks_per_worker: 2,
        depth_per_worker: 4,
        threads: 2,
        callers: Callers::Threads,
        ..EngineConfig::new(kind, 16 << 20)
    }
}

/// Checks an adapter: load, close, open, get, get many, scan, put.
fn conforms(config: &EngineConfig) {
    let format = KeyFormat::Binary { bytes: 16 };
    let records = Arc::new(Records::new(2000, 50, format, KeyOrder::Hashed));
    let engine = open(config, true).unwrap();
    engine.begin(&records);
    engine.load_sorted(0, &mut records.sorted()).unwrap();
    engine.finish_background_work().unwrap();
    let engine = match config.path {
        None => engine,
        Some(_) => {
            engine.close().unwrap();
            open(config, false).unwrap()
        }
    };
    engine.begin(&records);
    assert!(!engine.settings().is_empty() && !engine.version().is_empty());
    let keeps = !config.kind.is_baseline();
    let known = Arc::clone(&records);
    let client = move |index: usize, session: &mut dyn Session| {
        let mut value = Vec::new();
        for at in (index as u64..2000).step_by(2) {
            assert!(session.get(0, &known.key(at), &mut value)?);
            assert_eq!(value, known.value(at));
        }
        let keys: Vec<Key> = [5, 2500, 7].map(|at| known.key(at)).into();
        let mut seen = Vec::new();
        session.get_many(&keys, &mut |at, value| {
            seen.push((at, value.map(<[u8]>::len)));
        })?;
        seen.sort_unstable();
        let absent = if keeps { None } else { Some(50) };
        assert_eq!(seen, [(0, Some(50)), (1, absent), (2, Some(50))]);
        let first = known.sorted().next().unwrap().0;
        let mut found = Vec::new();
        let count = session.scan_up_to(&first, 10, &mut |key, _| found.push(key.to_vec()))?;
        assert_eq!((count, found.len()), (10, 10));
        if keeps {
            assert!(found.windows(2).all(|w| w[0] < w[1]) && found[0] == first[..]);
            let new = known.key(10_000 + index as u64);
            assert!(!session.get(0, &new, &mut value)?);
            session.put(0, &new, b"new")?;
            assert!(session.get(0, &new, &mut value)? && value == b"new");
        }
        Ok(())
    };
    engine.run(Arc::new(client)).unwrap();
    engine.close().unwrap();
}

/// The engines that this build has, with a place for each.
fn built(place: &Path) -> Vec<EngineConfig> {
    let kinds = [
        EngineKind::Isobath,
        EngineKind::RocksDb,
        EngineKind::WiredTiger,
        EngineKind::Lmdb,
        EngineKind::Redb,
        EngineKind::Fjall,
    ];
    let built = kinds.into_iter().filter(|kind| kind.is_built());
    built
        .map(|kind| config(kind, Some(place.join(format!("{kind:?}")))))
        .collect()
}

#[test]
fn every_adapter_that_is_built_conforms() {
    let place = tempfile::tempdir().unwrap();
    conforms(&config(EngineKind::Null, None));
    let path = place.path().join("drive");
    conforms(&config(EngineKind::Drive, Some(path.clone())));
    // 2,000 records of 66 bytes, each of which has a page in it.
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 33 * 4096);
    for config in built(place.path()) {
        conforms(&config);
    }
}

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// One random operation on a transaction and on the model; their answers are equal.
fn step(
    rng: &mut fastrand::Rng,
    transaction: &mut dyn Tables,
    model: &mut [Map],
) -> Result<(), LabError> {
    let table = rng.usize(..model.len());
    let key = vec![rng.u8(b'a'..b'f'); rng.usize(1..44)];
    let mut value = Vec::new();
    match rng.u32(..10) {
        0..4 => {
            value.resize(rng.usize(..700), rng.u8(..));
            transaction.put(table, &key, &value)?;
            model[table].insert(key, value);
        }
        4..6 if model[table].remove(&key).is_some() => transaction.delete(table, &key)?,
        6..8 => {
            let (limit, mut seen) = (rng.usize(1..10), Vec::new());
            transaction.scan(table, &key, &mut |key, value| {
                seen.push((key.to_vec(), value.to_vec()));
                seen.len() < limit
            })?;
            let records = model[table].range(key..).take(limit);
            let records: Vec<_> = records.map(|(k, v)| (k.clone(), v.clone())).collect();
            assert!(seen == records, "{seen:?} {records:?}");
        }
        _ => {
            let found = transaction.get(table, &key, &mut value)?;
            assert_eq!(found.then_some(&value), model[table].get(&key));
        }
    }
    Ok(())
}

#[test]
fn transactions_of_every_adapter_do_what_a_map_does() {
    let place = tempfile::tempdir().unwrap();
    for mut config in built(place.path()) {
        config.schema.tables = &["one", "two", "three"];
        config.threads = 1;
        let engine = open(&config, true).unwrap();
        let (model, rng) = (vec![Map::new(); 3], fastrand::Rng::with_seed(3));
        let state = Arc::new(Mutex::new((model, rng)));
        let inner = Arc::clone(&state);
        let client = move |_: usize, session: &mut dyn Session| {
            let (model, rng) = &mut *inner.lock().unwrap();
            for _ in 0..150 {
                let mut changed = model.clone();
                let decision = match rng.u32(..4) {
                    0 => Decision::RollBack,
                    _ => Decision::Commit,
                };
                let ended = session.transact(Access::Write, &mut |transaction| {
                    for _ in 0..rng.usize(1..20) {
                        step(rng, transaction, &mut changed)?;
                    }
                    Ok(decision)
                })?;
                match decision {
                    Decision::Commit => {
                        assert_eq!(ended, Ended::Committed);
                        *model = changed;
                    }
                    Decision::RollBack => assert_eq!(ended, Ended::RolledBack),
                }
            }
            Ok(())
        };
        engine.run(Arc::new(client)).unwrap();
        engine.close().unwrap();
        // Committed records are there after a reopening, and nothing else.
        let engine = open(&config, false).unwrap();
        let client = move |_: usize, session: &mut dyn Session| {
            let (model, _) = &*state.lock().unwrap();
            session.transact(Access::Read, &mut |transaction| {
                for (table, records) in model.iter().enumerate() {
                    let mut all = Map::new();
                    transaction.scan(table, &[0], &mut |key, value| {
                        all.insert(key.to_vec(), value.to_vec());
                        true
                    })?;
                    assert!(all == *records, "{:?}", config.kind);
                }
                Ok(Decision::Commit)
            })?;
            Ok(())
        };
        engine.run(Arc::new(client)).unwrap();
        engine.close().unwrap();
    }
}

#[test]
fn no_update_is_lost_under_snapshot_isolation() {
    let place = tempfile::tempdir().unwrap();
    for mut config in built(place.path()) {
        config.schema.tables = &["one", "two"];
        config.threads = 4;
        let kind = config.kind;
        let engine = open(&config, true).unwrap();
        let client = |_: usize, session: &mut dyn Session| {
            let mut committed = 0;
            while committed < 50 {
                let ended = session.transact(Access::Write, &mut |transaction| {
                    let mut value = Vec::new();
                    transaction.get(1, b"count", &mut value)?;
                    let count = value.first().map_or(0, |count| *count);
                    std::thread::yield_now();
                    transaction.put(1, b"count", &[count + 1])?;
                    Ok(Decision::Commit)
                })?;
                committed += u32::from(ended == Ended::Committed);
            }
            Ok(())
        };
        engine.run(Arc::new(client)).unwrap();
        let client = move |_: usize, session: &mut dyn Session| {
            session.transact(Access::Read, &mut |transaction| {
                let mut value = Vec::new();
                assert!(transaction.get(1, b"count", &mut value)?);
                assert_eq!(value, [200], "{kind:?}");
                Ok(Decision::Commit)
            })?;
            Ok(())
        };
        engine.run(Arc::new(client)).unwrap();
        engine.close().unwrap();
    }
}

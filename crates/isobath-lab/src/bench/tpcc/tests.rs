//! The workload on a model in memory, and on every engine that is built.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Instant;

use super::*;
use crate::LabError;
use crate::engine::{
    Access, Callers, Decision, Ended, EngineConfig, EngineKind, Key, Schema, Session, SpaceConfig,
    Transaction, Tuning, Work, open,
};

/// Tables in memory, with one transaction at a time: the tables, and what undoes the open transaction.
#[derive(Clone, PartialEq, Default)]
struct Model(Vec<BTreeMap<Vec<u8>, Vec<u8>>>, Vec<Undo>);

/// A record as it was: its table, key and value.
type Undo = (usize, Vec<u8>, Option<Vec<u8>>);

impl Transaction for Model {
    fn get(&mut self, table: usize, key: &[u8], value: &mut Vec<u8>) -> Result<bool, LabError> {
        let found = self.0[table].get(key);
        value.clear();
        value.extend_from_slice(found.map_or(&[], |value| value));
        Ok(found.is_some())
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<(), LabError> {
        let before = self.0[table].insert(key.into(), value.into());
        self.1.push((table, key.into(), before));
        Ok(())
    }

    fn delete(&mut self, table: usize, key: &[u8]) -> Result<(), LabError> {
        let before = self.0[table].remove(key);
        assert!(before.is_some());
        self.1.push((table, key.into(), before));
        Ok(())
    }

    fn scan(
        &mut self,
        table: usize,
        from: &[u8],
        visit: &mut (dyn FnMut(&[u8], &[u8]) -> bool + Send),
    ) -> Result<(), LabError> {
        let _ = self.0[table]
            .range(from.to_vec()..)
            .all(|(key, value)| visit(key, value));
        Ok(())
    }
}

impl Session for Model {
    fn get(&mut self, _: &Key, _: &mut Vec<u8>) -> Result<bool, LabError> {
        unreachable!("this workload only has transactions")
    }

    fn get_many(
        &mut self,
        _: &[Key],
        _: &mut (dyn FnMut(usize, Option<&[u8]>) + Send),
    ) -> Result<(), LabError> {
        unreachable!("this workload only has transactions")
    }

    fn scan(
        &mut self,
        _: &Key,
        _: usize,
        _: &mut (dyn FnMut(&[u8], &[u8]) + Send),
    ) -> Result<usize, LabError> {
        unreachable!("this workload only has transactions")
    }

    fn put(&mut self, _: &Key, _: &[u8]) -> Result<(), LabError> {
        unreachable!("this workload only has transactions")
    }

    fn transact(&mut self, _: Access, work: &mut Work<'_>) -> Result<Ended, LabError> {
        match work(self)? {
            Decision::Commit => {
                self.1.clear();
                Ok(Ended::Committed)
            }
            Decision::RollBack => {
                while let Some((table, key, before)) = self.1.pop() {
                    match before {
                        Some(value) => self.0[table].insert(key, value),
                        None => self.0[table].remove(&key),
                    };
                }
                Ok(Ended::RolledBack)
            }
        }
    }

    fn wait_until(&mut self, _: Instant) {}
}

const TINY: Scale = Scale {
    items: 200,
    customers: 30,
};

fn tpcc(seed: u64) -> Arc<Tpcc> {
    Tpcc::new(TINY, 2, IsolationLevel::Snapshot, seed)
}

fn loaded(tpcc: &Tpcc) -> Model {
    let tables = Table::ALL.map(|table| {
        let rows: Vec<_> = rows(tpcc, table).collect();
        assert!(
            rows.windows(2).all(|w| w[0].0 < w[1].0),
            "{table:?} in order"
        );
        let rows = rows.into_iter();
        rows.map(|(key, value)| (key.to_vec(), value.into_owned()))
            .collect()
    });
    Model(tables.into(), Vec::new())
}

/// Runs transactions of the standard mix.
fn run(terminal: &mut Terminal, session: &mut dyn Session, count: usize) -> Result<u64, LabError> {
    let mut bytes = 0;
    for _ in 0..count {
        let mut draw = terminal.rng.u32(..100);
        let drawn = MIX.into_iter().find(|(_, weight)| {
            let is_it = draw < *weight;
            draw = draw.wrapping_sub(*weight);
            is_it
        });
        let operation = drawn.map_or(Operation::NewOrder, |(operation, _)| operation);
        bytes += terminal.perform(operation, session)?;
    }
    Ok(bytes)
}

fn checked(tpcc: &Tpcc, session: &mut dyn Session) -> Vec<String> {
    let found = Mutex::new(Checked::default());
    check(tpcc, 0, 1, session, &found).unwrap();
    let found = found.into_inner().unwrap();
    assert_eq!(found.warehouses, 2);
    found.violations
}

#[test]
fn a_run_follows_from_its_seed_and_keeps_the_conditions() {
    let after = |seed: u64, terminal_seed: u64| {
        let tpcc = tpcc(seed);
        let mut model = loaded(&tpcc);
        assert_eq!(checked(&tpcc, &mut model), [""; 0]);
        let mut terminal = Terminal::new(&tpcc, terminal_seed as usize);
        assert!(run(&mut terminal, &mut model, 600).unwrap() > 100_000);
        assert_eq!(checked(&tpcc, &mut model), [""; 0]);
        (model, tpcc.report(Checked::default()))
    };
    let (first, report) = after(7, 0);
    assert!(report.rolled_back_count > 0 && report.conflicts_count == 0);
    assert!(first == after(7, 0).0, "equal seeds");
    assert!(first != after(7, 1).0, "another terminal");
    assert!(first != after(8, 0).0, "another seed");
    // Deliveries make new orders fewer, and both tables and indexes grow.
    let sizes: Vec<usize> = first.0.iter().map(BTreeMap::len).collect();
    assert!(sizes[Table::Orders as usize] > 600 && sizes[Table::History as usize] > 600);
    let index = sizes[Table::OrdersByCustomer as usize];
    assert_eq!(sizes[Table::Orders as usize], index);
}

#[test]
fn each_broken_condition_is_found() {
    let tpcc = tpcc(1);
    let whole = loaded(&tpcc);
    type Fault = (&'static str, fn(&mut Model));
    fn change(model: &mut Model, table: Table, at: usize) {
        let row = model.0[table as usize].values_mut().next().unwrap();
        rows::add(row, at, 1).unwrap();
    }
    fn lose(model: &mut Model, table: Table, nth: usize) {
        let table = &mut model.0[table as usize];
        let key = table.keys().nth(nth).unwrap().clone();
        table.remove(&key);
    }
    let faults: [Fault; 7] = [
        ("condition 1", |m| {
            change(m, Table::Warehouse, rows::warehouse::YTD)
        }),
        ("condition 1", |m| {
            change(m, Table::District, rows::district::YTD)
        }),
        ("condition 2", |m| {
            change(m, Table::District, rows::district::NEXT_ORDER)
        }),
        ("condition 3", |m| lose(m, Table::NewOrder, 3)),
        ("condition 4", |m| lose(m, Table::OrderLine, 0)),
        ("indexes", |m| lose(m, Table::OrdersByCustomer, 0)),
        ("indexes", |m| lose(m, Table::CustomerByName, 0)),
    ];
    for (what, fault) in faults {
        let mut model = whole.clone();
        fault(&mut model);
        let violations = checked(&tpcc, &mut model);
        assert_eq!(violations.len(), 1, "{what}: {violations:?}");
        assert!(violations[0].contains(what), "{what}: {violations:?}");
    }
}

#[test]
fn random_values_are_those_of_the_specification() {
    assert_eq!(&random::last_name(371)[..16], b"PRICALLYOUGHT\0\0\0");
    let mut rng = fastrand::Rng::with_seed(1);
    let constants = Constants::new(3);
    let mut counts = vec![0u32; 3001];
    for _ in 0..100_000 {
        counts[constants.customer(&mut rng, Scale::FULL) as usize] += 1;
    }
    assert_eq!(counts[0], 0);
    counts.sort_unstable();
    // Uniform choices would give each about 33; the or of two numbers makes some far more frequent: 1,925 and 0.
    assert!(
        counts[3000] > 1900 && counts[1] == 0,
        "{} {}",
        counts[3000],
        counts[1]
    );
}

#[test]
fn a_warehouse_has_the_bytes_that_are_reported() {
    let tpcc = Tpcc::new(Scale::SMALL, 4, IsolationLevel::Snapshot, 1);
    let all = Table::ALL.iter().flat_map(|table| rows(&tpcc, *table));
    let bytes: usize = all.map(|(key, value)| key.len() + value.len()).sum();
    let told = Scale::SMALL.warehouse_bytes() * 4;
    let ratio = bytes as f64 / told as f64;
    // Measured 1.0186; the seed is fixed.
    assert!((1.015..1.022).contains(&ratio), "{bytes} {told}");
    for table in Table::ALL.into_iter().filter(|t| *t != Table::OrderLine) {
        assert_eq!(rows(&tpcc, table).count() as u64, count(&tpcc, table));
    }
}

fn config(kind: EngineKind, path: std::path::PathBuf, isolation: IsolationLevel) -> EngineConfig {
    EngineConfig {
        kind,
        path: Some(path),
        pool_bytes: 16 << 20,
        workers: Some(1),
        tasks_per_worker: 4,
        depth_per_worker: 8,
        threads: 4,
        callers: match kind {
            EngineKind::Isobath => Callers::Tasks,
            _ => Callers::Threads,
        },
        space: SpaceConfig {
            buffered_ms: Some(u32::MAX),
            ..SpaceConfig::default()
        },
        simulated: None,
        tuning: Tuning {
            isolation,
            ..Tuning::default()
        },
        schema: Schema {
            tables: &TABLES,
            data_bytes: 1 << 20,
        },
    }
}

/// Transactions of each of four clients. Of 100, some 43 are new orders, one in a hundred of which is rolled back: without any is one
/// run in 30,000, whatever conflicts do to the draws.
const TRANSACTIONS: usize = 600;

/// Loads, runs all transactions from four clients, and checks the conditions after a reopening.
fn runs_on(kind: EngineKind, isolation: IsolationLevel) {
    let place = tempfile::tempdir().unwrap();
    let config = config(kind, place.path().join("store"), isolation);
    let tpcc = Tpcc::new(TINY, 2, isolation, 5);
    let engine = open(&config, true).unwrap();
    for table in Table::ALL {
        let rows = rows(&tpcc, table);
        let mut rows = rows.map(|(key, value)| (key, value.into_owned().into()));
        engine.load_sorted(table as usize, &mut rows).unwrap();
    }
    engine.finish_background_work().unwrap();
    let shared = Arc::clone(&tpcc);
    let client = move |index: usize, session: &mut dyn Session| {
        run(&mut Terminal::new(&shared, index), session, TRANSACTIONS).map(drop)
    };
    engine.run(Arc::new(client)).unwrap();
    engine.close().unwrap();
    let engine = open(&config, false).unwrap();
    let found = Arc::new(Mutex::new(Checked::default()));
    let (shared, all) = (Arc::clone(&tpcc), Arc::clone(&found));
    let check = move |index: usize, session: &mut dyn Session| {
        super::check(&shared, index, 4, session, &all)
    };
    engine.run(Arc::new(check)).unwrap();
    engine.close().unwrap();
    let found = std::mem::take(&mut *found.lock().unwrap());
    assert_eq!(found.warehouses, 2);
    let report = tpcc.report(found);
    if isolation == IsolationLevel::Snapshot {
        assert_eq!(report.violations, [""; 0], "{kind:?}");
        assert!(report.rolled_back_count > 0);
    }
}

#[test]
fn every_engine_that_is_built_keeps_the_conditions() {
    let kinds = [
        (EngineKind::Isobath, true),
        (EngineKind::RocksDb, cfg!(feature = "rocksdb")),
        (EngineKind::WiredTiger, cfg!(feature = "wiredtiger")),
        (EngineKind::Lmdb, cfg!(feature = "lmdb")),
        (EngineKind::Redb, cfg!(feature = "redb")),
        (EngineKind::Fjall, cfg!(feature = "fjall")),
    ];
    for (kind, _) in kinds.into_iter().filter(|(_, is_built)| *is_built) {
        runs_on(kind, IsolationLevel::Snapshot);
        runs_on(kind, IsolationLevel::Least);
    }
}

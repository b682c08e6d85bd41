//! The workload on a model in memory, and on every engine that is built.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Instant;

use super::*;
use crate::LabError;
use crate::engine::{
    Access, Decision, Ended, EngineConfig, EngineKind, Key, Schema, Session, SpaceConfig, Tables,
    Tuning, Visit, VisitMany, Work, open,
};

/// Tables in memory, with one transaction at a time: the tables, and what undoes the open
/// transaction.
#[derive(Clone, PartialEq, Default)]
pub(super) struct Model(pub(super) Vec<BTreeMap<Vec<u8>, Vec<u8>>>, Vec<Undo>);

/// A record as it was: its table, key and value.
type Undo = (usize, Vec<u8>, Option<Vec<u8>>);

impl Tables for Model {
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

    fn scan(&mut self, table: usize, from: &[u8], visit: &mut Visit<'_>) -> Result<(), LabError> {
        let _ = self.0[table]
            .range(from.to_vec()..)
            .all(|(key, value)| visit(key, value));
        Ok(())
    }
}

impl Session for Model {
    fn get_many(&mut self, _: &[Key], _: &mut VisitMany<'_>) -> Result<(), LabError> {
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

pub(super) fn tpcc(seed: u64) -> Arc<Tpcc> {
    Tpcc::new(TINY, 2, IsolationLevel::Snapshot, seed)
}

pub(super) fn loaded(tpcc: &Tpcc) -> Model {
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

/// Numbers `at` of all rows of a table, with their keys' numbers.
fn numbers<const N: usize>(
    model: &Model,
    table: Table,
    at: [usize; N],
) -> Vec<(Vec<u32>, [i64; N])> {
    let rows = model.0[table as usize].iter();
    rows.map(|(key, row)| {
        let parts = (0..key.len() / 4).map(|place| rows::part(key, place).unwrap());
        let numbers = at.map(|at| rows::number(row, at).unwrap());
        (parts.collect(), numbers)
    })
    .collect()
}

/// Consistency conditions 5 to 12 (clauses 3.3.2.5 to 3.3.2.12) and what clause 2.4 says of the
/// stock. The load of a small scale has less history than the specification's, so that sums since
/// the load are compared.
fn expect_all_sums(tpcc: &Tpcc, model: &Model) {
    use rows::{customer, district, item, order_line, orders, stock, warehouse};
    type Sums = BTreeMap<Vec<u32>, i64>;
    let add = |sums: &mut Sums, key: &[u32], amount| *sums.entry(key.into()).or_default() += amount;
    let of = |sums: &Sums, key: &[u32]| sums.get(key).copied().unwrap_or(0);
    let (mut paid, mut payments) = (Sums::new(), Sums::new());
    let (mut to_district, mut to_warehouse) = (Sums::new(), Sums::new());
    // Customer, its district and warehouse, the payment's district and warehouse, the amount.
    for (_, numbers) in numbers(model, Table::History, [0, 1, 2, 3, 4, 6]) {
        let [c, cd, cw, d, w] = [0, 1, 2, 3, 4].map(|at| u32::try_from(numbers[at]).unwrap());
        add(&mut paid, &[cw, cd, c], numbers[5]);
        add(&mut payments, &[cw, cd, c], 1);
        add(&mut to_district, &[w, d], numbers[5]);
        add(&mut to_warehouse, &[w], numbers[5]);
    }
    let customers = i64::from(tpcc.scale.customers);
    for (key, [ytd]) in numbers(model, Table::District, [district::YTD]) {
        let since = of(&to_district, &key) - customers * 1000;
        assert_eq!(ytd - 3_000_000, since, "condition 9: {key:?}");
    }
    for (key, [ytd]) in numbers(model, Table::Warehouse, [warehouse::YTD]) {
        let since = of(&to_warehouse, &key) - customers * 1000 * i64::from(DISTRICTS);
        assert_eq!(ytd - 30_000_000, since, "condition 8: {key:?}");
    }
    let price = numbers(model, Table::Item, [item::PRICE]);
    let price: BTreeMap<_, _> = price.into_iter().collect();
    let (mut taken, mut asked, mut remote) = (Sums::new(), Sums::new(), Sums::new());
    let (mut lines, mut amounts) = (Sums::new(), Sums::new());
    let (mut open_lines, mut foreign) = (Sums::new(), Sums::new());
    // Item, supplier, date of delivery, quantity, amount.
    let at = [
        order_line::ITEM,
        1,
        order_line::DELIVERED,
        3,
        order_line::AMOUNT,
    ];
    for (key, [item, supplier, delivered, quantity, amount]) in numbers(model, Table::OrderLine, at)
    {
        let order = &key[..3];
        let [item, supplier] = [item, supplier].map(|id| u32::try_from(id).unwrap());
        add(&mut lines, order, 1);
        add(&mut amounts, order, amount);
        add(&mut open_lines, order, (delivered == 0).into());
        add(&mut foreign, order, (supplier != key[0]).into());
        if key[2] > tpcc.scale.customers {
            assert_eq!(amount, price[&vec![item]][0] * quantity, "{key:?}");
            add(&mut taken, &[supplier, item], quantity);
            add(&mut asked, &[supplier, item], 1);
            add(&mut remote, &[supplier, item], (supplier != key[0]).into());
        }
    }
    let (mut bought, mut deliveries) = (Sums::new(), Sums::new());
    let at = [orders::CUSTOMER, orders::CARRIER, orders::LINES, 4];
    for (key, [c, carrier, named, all_local]) in numbers(model, Table::Orders, at) {
        let is_new = model.0[Table::NewOrder as usize].contains_key(&rows::key(&key)[..]);
        assert_eq!(carrier == 0, is_new, "condition 5: {key:?}");
        assert_eq!(named, of(&lines, &key), "condition 6: {key:?}");
        let open = if is_new { named } else { 0 };
        assert_eq!(of(&open_lines, &key), open, "condition 7: {key:?}");
        assert_eq!(all_local == 1, of(&foreign, &key) == 0, "{key:?}");
        let customer = [key[0], key[1], u32::try_from(c).unwrap()];
        if !is_new {
            add(&mut bought, &customer, of(&amounts, &key));
            let counts = key[2] > tpcc.scale.delivered();
            add(&mut deliveries, &customer, counts.into());
        }
    }
    let at = [
        customer::BALANCE,
        customer::YTD_PAYMENT,
        customer::PAYMENTS,
        customer::DELIVERIES,
    ];
    for (key, [balance, ytd, count, delivered]) in numbers(model, Table::Customer, at) {
        let (bought, paid) = (of(&bought, &key), of(&paid, &key));
        assert_eq!(balance, bought - paid, "condition 10: {key:?}");
        assert_eq!(balance + ytd, bought, "condition 12: {key:?}");
        let counts = (of(&payments, &key), of(&deliveries, &key));
        assert_eq!((count, delivered), counts, "{key:?}");
    }
    let longest = customer::NUMBERS * 8 + customer::TEXT_BYTES + customer::DATA_BYTES;
    let mut customers = model.0[Table::Customer as usize].values();
    assert!(customers.all(|row| row.len() <= longest));
    let at = [stock::QUANTITY, stock::YTD, stock::ORDERS, stock::REMOTE];
    for (key, [quantity, ytd, orders, from_others]) in numbers(model, Table::Stock, at) {
        assert!((10..=100).contains(&quantity), "{key:?}: {quantity}");
        let right = [&taken, &asked, &remote].map(|sums| of(sums, &key));
        assert_eq!([ytd, orders, from_others], right, "{key:?}");
    }
}

#[test]
fn one_customer_in_ten_has_bad_credit() {
    let tpcc = Tpcc::new(TINY, 8, IsolationLevel::Snapshot, 1);
    let credit = rows(&tpcc, Table::Customer)
        .map(|(_, row)| rows::number(&row, rows::customer::GOOD_CREDIT).unwrap());
    let (good, bad): (Vec<i64>, Vec<i64>) = credit.partition(|good| *good == 1);
    // 240 of 2,400, with a standard deviation of 15.
    assert!((180..300).contains(&bad.len()), "{}", bad.len());
    assert!(bad.iter().all(|good| *good == 0) && good.len() + bad.len() == 2400);
}

#[test]
fn all_sums_agree_after_the_load_and_after_a_run() {
    for seed in 0..4 {
        let tpcc = tpcc(seed);
        let mut model = loaded(&tpcc);
        expect_all_sums(&tpcc, &model);
        let mut terminal = Terminal::new(&tpcc, seed as usize);
        run(&mut terminal, &mut model, 2000).unwrap();
        expect_all_sums(&tpcc, &model);
    }
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
    let faults: [Fault; 8] = [
        ("condition 1", |m| {
            change(m, Table::Warehouse, rows::warehouse::YTD)
        }),
        ("condition 1", |m| {
            change(m, Table::District, rows::district::YTD)
        }),
        ("condition 2", |m| {
            change(m, Table::District, rows::district::NEXT_ORDER)
        }),
        // The last of the nine new orders of the first district.
        ("condition 2", |m| lose(m, Table::NewOrder, 8)),
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
    // Uniform choices would give each about 33; the or of two numbers makes some far more frequent:
    // 1,925 and 0.
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
        path: Some(path),
        workers: Some(1),
        tasks_per_worker: 4,
        depth_per_worker: 8,
        threads: 4,
        space: SpaceConfig {
            buffered_ms: Some(u32::MAX),
            ..SpaceConfig::default()
        },
        tuning: Tuning {
            isolation,
            ..Tuning::default()
        },
        schema: Schema {
            tables: &Table::NAMES,
            data_bytes: 1 << 20,
        },
        ..EngineConfig::new(kind, 16 << 20)
    }
}

/// Transactions of each of four clients. Of 100, some 43 are new orders, one in a hundred of which
/// is rolled back: without any is one run in 30,000, whatever conflicts do to the draws.
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

//! Ordinary work of a program with a store inside it, by Isobath, redb and LMDB in turn: what one
//! transaction does to many records, small commits, short ranges.
//!
//! ```text
//! cargo run --release -p isobath-example-instructions --features rivals --bin embedded -- DIR
//! ```
//!
//! DIR takes one store at a time. Further arguments: `--engines isobath,redb,lmdb`, `--rows A,B`
//! (words of their names), `--repeats N` (3; the table has medians, of rates and of the CPU time
//! that an operation takes), `--scale F` (of all numbers of records), `--json FILE` (in the form of
//! docs/results). Keys have 24 bytes, values 150; caches hold all data more than twice. Each engine
//! loads random keys in the way that it offers for that: Isobath with `Tree::load`, the others in
//! one transaction.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::hint::black_box;
use std::io::Write as _;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

type Done<T> = Result<T, Box<dyn Error>>;

/// Bytes of cache for each record: more than twice what it takes.
const CACHE_PER_RECORD: u64 = 512;
const VALUE_BYTES: usize = 150;
const COLUMN: &str = "per second, CPU us each";
const ENGINES: [&str; 3] = ["isobath", "redb", "lmdb"];

/// Key of a record, in no order.
fn key(number: u64) -> [u8; 24] {
    let mut key = [0; 24];
    fastrand::Rng::with_seed(number).fill(&mut key);
    key
}

/// Key of a record, in the order of the numbers.
fn sorted_key(number: u64) -> [u8; 24] {
    let mut key = [0; 24];
    (16..)
        .zip((0..8).rev())
        .for_each(|(at, byte)| key[at] = (number >> (8 * byte)) as u8);
    key
}

fn value(number: u64) -> [u8; VALUE_BYTES] {
    let mut value = [0; VALUE_BYTES];
    value[..8].copy_from_slice(&number.to_le_bytes());
    value[8..16].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    value
}

fn is_kept(value: &[u8]) -> bool {
    value[0].is_multiple_of(2)
}

fn is_extracted(value: &[u8]) -> bool {
    value[0].is_multiple_of(3)
}

/// The records of a store, in a transaction.
trait Records {
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Done<()>;
    fn remove(&mut self, key: &[u8]) -> Done<bool>;
    /// The first record, or the last one; whether there was one.
    fn pop(&mut self, first: bool) -> Done<bool>;
    fn retain(&mut self) -> Done<()>;
    /// How many it has taken.
    fn extract(&mut self) -> Done<u64>;
}

/// What a transaction does; a number that it counts.
type Work<'w> = &'w dyn Fn(&mut dyn Records) -> Done<u64>;

trait Engine {
    fn transact(&self, work: Work<'_>) -> Done<u64>;
    fn length(&self) -> Done<u64>;
    /// Reads ten records from each key, in one snapshot.
    fn ranges(&self, from: &mut dyn Iterator<Item = [u8; 24]>) -> Done<()>;

    fn load(&self, count: u64) -> Done<u64> {
        self.transact(&|records| {
            (0..count).try_for_each(|number| records.insert(&key(number), &value(number)))?;
            Ok(count)
        })
    }
}

mod isobath_engine {
    use isobath::{Durability, Options, Store, Transaction, Tree};

    use super::*;

    pub(super) struct Isobath(Store, Tree);

    pub(super) fn open(path: &Path, is_synced: bool, cache: u64) -> Done<Isobath> {
        let options = Options::new().pool_bytes(cache);
        let options = options.durability(match is_synced {
            true => Durability::Synced,
            false => Durability::None,
        });
        let store = Store::create(path, &options)?;
        // The pool takes memory as it is used for the first time, which on a virtual machine takes
        // longer than the operations: all of it was used before.
        let tree = store.create_tree("before")?;
        let records = cache / (VALUE_BYTES as u64 + 40);
        tree.load((0..records).map(|number| (sorted_key(number), value(number))))?;
        store.drop_tree("before")?;
        let tree = store.create_tree("t")?;
        Ok(Isobath(store, tree))
    }

    impl Drop for Isobath {
        fn drop(&mut self) {
            let _ = self.0.clone().close();
        }
    }

    impl Engine for Isobath {
        fn transact(&self, work: Work<'_>) -> Done<u64> {
            let mut transaction = (self.0.begin()?, &self.1);
            let count = work(&mut transaction)?;
            transaction.0.commit()?;
            Ok(count)
        }

        fn load(&self, count: u64) -> Done<u64> {
            let records = (0..count).map(|number| (key(number), value(number)));
            Ok(self.1.load(records)?)
        }

        fn length(&self) -> Done<u64> {
            Ok(self.1.count(..)?)
        }

        fn ranges(&self, from: &mut dyn Iterator<Item = [u8; 24]>) -> Done<()> {
            let snapshot = self.0.snapshot()?;
            for key in from {
                // Without copies, as the others.
                let mut left = 10;
                snapshot.scan(&self.1, key.., |_, value| {
                    black_box(value[0]);
                    left -= 1;
                    left > 0
                })?;
            }
            Ok(())
        }
    }

    impl Records for (Transaction, &Tree) {
        fn insert(&mut self, key: &[u8], value: &[u8]) -> Done<()> {
            Ok(self.0.insert(self.1, key, value)?)
        }

        fn remove(&mut self, key: &[u8]) -> Done<bool> {
            Ok(self.0.remove(self.1, key)?)
        }

        fn pop(&mut self, first: bool) -> Done<bool> {
            let popped = match first {
                true => self.0.pop_first(self.1)?,
                false => self.0.pop_last(self.1)?,
            };
            Ok(black_box(popped).is_some())
        }

        fn retain(&mut self) -> Done<()> {
            self.0.retain(self.1, .., |_, value| is_kept(value))?;
            Ok(())
        }

        fn extract(&mut self) -> Done<u64> {
            let taken = self
                .0
                .extract_if(self.1, .., |_, value| is_extracted(value))?;
            taken.map(|record| Ok(black_box(record).map(|_| 1)?)).sum()
        }
    }
}

mod redb_engine {
    use ::redb::{
        Database, Durability, ReadableDatabase, ReadableTableMetadata, Table, TableDefinition,
    };

    use super::*;

    const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("t");

    pub(super) struct Redb(Database, Durability);

    pub(super) fn open(path: &Path, is_synced: bool, cache: u64) -> Done<Redb> {
        let mut builder = Database::builder();
        builder.set_cache_size(cache as usize);
        let durability = match is_synced {
            true => Durability::Immediate,
            false => Durability::None,
        };
        Ok(Redb(builder.create(path)?, durability))
    }

    impl Engine for Redb {
        fn transact(&self, work: Work<'_>) -> Done<u64> {
            let mut transaction = self.0.begin_write()?;
            transaction.set_durability(self.1)?;
            let count = work(&mut transaction.open_table(TABLE)?)?;
            transaction.commit()?;
            Ok(count)
        }

        fn length(&self) -> Done<u64> {
            Ok(self.0.begin_read()?.open_table(TABLE)?.len()?)
        }

        fn ranges(&self, from: &mut dyn Iterator<Item = [u8; 24]>) -> Done<()> {
            let table = self.0.begin_read()?.open_table(TABLE)?;
            for key in from {
                for record in table.range(&key[..]..)?.take(10) {
                    black_box(record?.1.value()[0]);
                }
            }
            Ok(())
        }
    }

    impl Records for Table<'_, &'static [u8], &'static [u8]> {
        fn insert(&mut self, key: &[u8], value: &[u8]) -> Done<()> {
            Table::insert(self, key, value)?;
            Ok(())
        }

        fn remove(&mut self, key: &[u8]) -> Done<bool> {
            Ok(Table::remove(self, key)?.is_some())
        }

        fn pop(&mut self, first: bool) -> Done<bool> {
            Ok(match first {
                true => black_box(self.pop_first()?).is_some(),
                false => black_box(self.pop_last()?).is_some(),
            })
        }

        fn retain(&mut self) -> Done<()> {
            Ok(Table::retain(self, |_, value| is_kept(value))?)
        }

        fn extract(&mut self) -> Done<u64> {
            let taken = self.extract_if(|_, value| is_extracted(value))?;
            taken.map(|record| Ok(black_box(record).map(|_| 1)?)).sum()
        }
    }
}

mod lmdb_engine {
    use std::ops::Bound;

    use heed::types::Bytes;
    use heed::{Database, Env, EnvFlags, EnvOpenOptions, RwTxn, WithoutTls};

    use super::*;

    type Table = Database<Bytes, Bytes>;

    pub(super) struct Lmdb(Env<WithoutTls>, Table);

    #[expect(
        unsafe_code,
        reason = "heed asks its caller for two conditions on the file"
    )]
    pub(super) fn open(path: &Path, is_synced: bool) -> Done<Lmdb> {
        fs::create_dir_all(path)?;
        let mut options = EnvOpenOptions::new().read_txn_without_tls();
        options.map_size(16 << 30);
        if !is_synced {
            // SAFETY: nothing reads the file after a crash.
            unsafe { options.flags(EnvFlags::NO_SYNC) };
        }
        // SAFETY: no other process changes the file.
        let env = unsafe { options.open(path) }?;
        let mut transaction = env.write_txn()?;
        let table = env.create_database(&mut transaction, None)?;
        transaction.commit()?;
        Ok(Lmdb(env, table))
    }

    impl Engine for Lmdb {
        fn transact(&self, work: Work<'_>) -> Done<u64> {
            let mut transaction = (self.0.write_txn()?, self.1);
            let count = work(&mut transaction)?;
            transaction.0.commit()?;
            Ok(count)
        }

        fn length(&self) -> Done<u64> {
            let transaction = self.0.read_txn()?;
            Ok(self.1.len(&transaction)?)
        }

        fn ranges(&self, from: &mut dyn Iterator<Item = [u8; 24]>) -> Done<()> {
            let transaction = self.0.read_txn()?;
            for key in from {
                let bounds = (Bound::Included(&key[..]), Bound::Unbounded);
                for record in self.1.range(&transaction, &bounds)?.take(10) {
                    black_box(record?.1[0]);
                }
            }
            Ok(())
        }
    }

    #[expect(unsafe_code, reason = "a cursor removes below itself")]
    fn remove_where((transaction, table): &mut (RwTxn<'_>, Table), gone: Test) -> Done<u64> {
        let (mut count, mut records) = (0, table.iter_mut(transaction)?);
        while let Some(record) = records.next() {
            let (key, value) = record?;
            if gone(value) {
                black_box((key.to_vec(), value.to_vec()));
                // SAFETY: key and value are not used any more.
                unsafe { records.del_current() }?;
                count += 1;
            }
        }
        Ok(count)
    }

    type Test = fn(&[u8]) -> bool;

    impl Records for (RwTxn<'_>, Table) {
        fn insert(&mut self, key: &[u8], value: &[u8]) -> Done<()> {
            Ok(self.1.put(&mut self.0, key, value)?)
        }

        fn remove(&mut self, key: &[u8]) -> Done<bool> {
            Ok(self.1.delete(&mut self.0, key)?)
        }

        fn pop(&mut self, first: bool) -> Done<bool> {
            let found = match first {
                true => self.1.first(&self.0)?,
                false => self.1.last(&self.0)?,
            };
            let Some((key, value)) = found else {
                return Ok(false);
            };
            let key = black_box((key.to_vec(), value.to_vec())).0;
            self.remove(&key)
        }

        fn retain(&mut self) -> Done<()> {
            remove_where(self, |value| !is_kept(value)).map(drop)
        }

        fn extract(&mut self) -> Done<u64> {
            remove_where(self, is_extracted)
        }
    }
}

fn open(engine: &str, path: &Path, is_synced: bool, cache: u64) -> Done<Box<dyn Engine>> {
    remove_all(path);
    Ok(match engine {
        "isobath" => Box::new(isobath_engine::open(path, is_synced, cache)?),
        "redb" => Box::new(redb_engine::open(path, is_synced, cache)?),
        "lmdb" => Box::new(lmdb_engine::open(path, is_synced)?),
        _ => return Err(format!("no such engine: {engine}").into()),
    })
}

fn remove_all(path: &Path) {
    let _ = fs::remove_file(path);
    let _ = fs::remove_dir_all(path);
}

/// How many operations were done, and how many records are there then; of how many operations are
/// to be done on how many records.
type Run = fn(&dyn Engine, u64, u64) -> Done<(u64, u64)>;

/// A row of the table: its name, records that are loaded before, operations, whether commits are
/// synced.
struct Row(&'static str, u64, u64, bool, Run);

#[rustfmt::skip]
const ROWS: [Row; 10] = [
    Row("2.6 M removals", 5_200_000, 2_600_000, true, remove),
    Row("0.27 M removals", 540_000, 270_000, true, remove),
    Row("0.2 M pops at both ends", 500_000, 200_000, true, pop),
    Row("retain half of 0.5 M", 500_000, 500_000, true, retain),
    Row("extract_if a third of 0.5 M", 500_000, 500_000, true, extract),
    Row("0.3 M sorted inserts", 0, 300_000, true, insert),
    Row("single commits, not synced", 500_000, 300_000, false, commit),
    Row("single commits, synced", 500_000, 2_000, true, commit),
    Row("counts of 5 M", 5_000_000, 5, true, count),
    Row("ranges of 10 in a snapshot", 500_000, 1_000_000, true, range),
];

/// One transaction of `count` operations, each of which does something.
fn each(
    engine: &dyn Engine,
    count: u64,
    work: impl Fn(&mut dyn Records, u64) -> Done<bool>,
) -> Done<u64> {
    engine.transact(&|records| {
        for number in 0..count {
            if !work(records, number)? {
                return Err(format!("operation {number} has done nothing").into());
            }
        }
        Ok(count)
    })
}

fn remove(engine: &dyn Engine, count: u64, loaded: u64) -> Done<(u64, u64)> {
    let done = each(engine, count, |records, number| {
        records.remove(&key(number))
    })?;
    Ok((done, loaded - done))
}

fn pop(engine: &dyn Engine, count: u64, loaded: u64) -> Done<(u64, u64)> {
    let done = each(engine, count, |records, number| {
        records.pop(number % 2 == 0)
    })?;
    Ok((done, loaded - done))
}

/// Counts what it looks at.
fn retain(engine: &dyn Engine, _: u64, loaded: u64) -> Done<(u64, u64)> {
    engine.transact(&|records| records.retain().map(|()| 0))?;
    let kept = (0..loaded).filter(|number| is_kept(&value(*number)));
    Ok((loaded, kept.count() as u64))
}

/// Counts what it takes.
fn extract(engine: &dyn Engine, _: u64, loaded: u64) -> Done<(u64, u64)> {
    let taken = engine.transact(&|records| records.extract())?;
    Ok((taken, loaded - taken))
}

fn insert(engine: &dyn Engine, count: u64, _: u64) -> Done<(u64, u64)> {
    let done = each(engine, count, |records, number| {
        let inserted = records.insert(&sorted_key(number), &value(number));
        inserted.map(|()| true)
    })?;
    Ok((done, done))
}

fn commit(engine: &dyn Engine, count: u64, loaded: u64) -> Done<(u64, u64)> {
    for number in 0..count {
        let (key, value) = (key(1 << 40 | number), value(number));
        engine.transact(&|records| records.insert(&key, &value).map(|()| 1))?;
    }
    Ok((count, loaded + count))
}

fn count(engine: &dyn Engine, count: u64, loaded: u64) -> Done<(u64, u64)> {
    (0..count).try_for_each(|_| engine.length().map(|length| assert_eq!(length, loaded)))?;
    Ok((count, loaded))
}

fn range(engine: &dyn Engine, count: u64, loaded: u64) -> Done<(u64, u64)> {
    let from = (0..count).map(|at| key(at * 7919 % loaded));
    engine.ranges(&mut from.into_iter())?;
    Ok((count, loaded))
}

/// CPU time of all threads in seconds.
fn cpu_s() -> f64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

/// Operations per second, and microseconds of CPU time that each has taken.
fn measure(row: &Row, scale: f64, engine: &str, path: &Path) -> Done<[f64; 2]> {
    let scaled = |count: u64| (count as f64 * scale) as u64;
    let &Row(name, loaded, operations, is_synced, run) = row;
    let (loaded, inserted) = (scaled(loaded), scaled(operations));
    let records = if loaded == 0 { inserted } else { loaded };
    let store = open(
        engine,
        path,
        is_synced,
        (records * CACHE_PER_RECORD).max(64 << 20),
    )?;
    store.load(loaded)?;
    let (began, cpu_before) = (Instant::now(), cpu_s());
    let (done, left) = run(&*store, inserted.max(5), loaded)?;
    let rate = done as f64 / began.elapsed().as_secs_f64();
    let cpu_us = (cpu_s() - cpu_before) * 1e6 / done as f64;
    assert_eq!(store.length()?, left, "{engine}: {name}");
    Ok([rate, cpu_us])
}

/// Writes of 4 KiB per second that the drive makes durable one by one, for a second.
fn synced_writes(directory: &Path) -> Done<f64> {
    let path = directory.join("embedded.limit");
    let file = fs::File::create(&path)?;
    let block = [1; 4096];
    (0..1024).try_for_each(|at| file.write_all_at(&block, at * 4096))?;
    file.sync_all()?;
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(1) {
        file.write_all_at(&block, count % 1024 * 4096)?;
        file.sync_data()?;
        count += 1;
    }
    let rate = count as f64 / began.elapsed().as_secs_f64();
    fs::remove_file(&path)?;
    Ok(rate)
}

/// With separators of thousands.
fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let first = (digits.len() - 1) % 3 + 1;
    let groups = (first..digits.len())
        .step_by(3)
        .map(|at| &digits[at..at + 3]);
    groups.fold(digits[..first].to_owned(), |text, group| text + "," + group)
}

/// What `command` prints, in one line.
fn output(command: &[&str]) -> String {
    let ran = std::process::Command::new(command[0])
        .args(&command[1..])
        .output();
    ran.map_or_else(
        |_| String::new(),
        |ran| String::from_utf8_lossy(&ran.stdout).trim().into(),
    )
}

fn machine() -> String {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (model, kernel) = (
        model.unwrap_or("unknown processor"),
        output(&["uname", "-r"]),
    );
    format!("{cores} cores of {model}, Linux {kernel}.")
}

fn main() -> Done<()> {
    let mut arguments = std::env::args().skip(1);
    let directory = PathBuf::from(arguments.next().ok_or("embedded DIR [--rows A,B] ...")?);
    let mut given = BTreeMap::new();
    while let Some(name) = arguments.next() {
        let text = arguments
            .next()
            .ok_or_else(|| format!("{name} has no value"))?;
        given.insert(name, text);
    }
    let list = |name| {
        given
            .get(name)
            .map(|text| text.split(',').collect::<Vec<_>>())
    };
    let engines = list("--engines").unwrap_or(ENGINES.to_vec());
    let words = list("--rows").unwrap_or(vec![""]);
    let repeats: usize = given.get("--repeats").map_or(Ok(3), |text| text.parse())?;
    let scale: f64 = given.get("--scale").map_or(Ok(1.0), |text| text.parse())?;
    let path = directory.join("embedded.store");
    let limit_before = synced_writes(&directory)?;
    let mut table = Vec::new();
    print!("{:28}", COLUMN);
    engines.iter().for_each(|engine| print!("{engine:>20}"));
    println!();
    for row in ROWS
        .iter()
        .filter(|row| words.iter().any(|word| row.0.contains(word)))
    {
        let mut rates = vec![[const { Vec::new() }; 2]; engines.len()];
        for _ in 0..repeats.max(1) {
            for (engine, rates) in engines.iter().zip(&mut rates) {
                let measured = measure(row, scale, engine, &path)?;
                rates
                    .iter_mut()
                    .zip(measured)
                    .for_each(|(all, one)| all.push(one));
            }
        }
        let medians = rates.iter_mut().map(|rates| {
            rates.iter_mut().for_each(|all| all.sort_by(f64::total_cmp));
            let [rate, cpu_us] = [&rates[0], &rates[1]].map(|all| all[all.len() / 2]);
            format!("{}, {cpu_us:.2}", grouped(rate))
        });
        let cells: Vec<String> = std::iter::once(row.0.to_owned()).chain(medians).collect();
        print!("{:28}", cells[0]);
        cells[1..].iter().for_each(|cell| print!("{cell:>20}"));
        println!();
        std::io::stdout().flush()?;
        table.push(cells);
    }
    remove_all(&path);
    let (before, after) = (grouped(limit_before), grouped(synced_writes(&directory)?));
    let limit = format!(
        "The drive alone: {before} / {after} synced writes of 4 KiB per second, one after the other, before / after."
    );
    println!("{limit}");
    if let Some(path) = given.get("--json") {
        let columns = std::iter::once(COLUMN).chain(engines);
        let result = json!({
            "title": "Ordinary work in one transaction, data in the pool",
            "command": ["cargo run --release -p isobath-example-instructions --features rivals --bin embedded -- DIR"],
            "machine": machine(),
            "recorded": {
                "date": output(&["date", "+%F"]),
                "commit": output(&["git", "-C", env!("CARGO_MANIFEST_DIR"), "rev-parse", "--short=8", "HEAD"]),
            },
            "notes": [format!("Medians of {repeats} runs in turn; keys of 24 bytes, values of 150."), limit],
            "columns": columns.collect::<Vec<_>>(),
            "rows": table,
        });
        fs::write(path, serde_json::to_string_pretty(&result)? + "\n")?;
    }
    Ok(())
}

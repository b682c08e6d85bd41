//! Lookups and updates of LMDB, redb and fjall without the benchmark's adapters, to compare these
//! with (`scripts/compare_bare.sh`).
//!
//! ```text
//! cargo build --release -p isobath-lab --example bare --features lmdb,redb,fjall
//! bare ENGINE load PATH SETTINGS RECORDS KEY_BYTES VALUE_BYTES hashed|sequential
//! bare ENGINE get|put PATH SETTINGS RECORDS KEY_BYTES VALUE_BYTES hashed|sequential THREADS WARM_UP_S SECONDS
//! ```
//!
//! SETTINGS are some of those that the adapter prints, as `NAME=VALUE,...`; `synced=true` makes
//! commits durable. Keys and their order are the benchmark's; records are chosen uniformly. Prints
//! operations per second, and CPU time per operation.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

type Done<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Values are cut from this much noise.
const NOISE_BYTES: usize = 256 << 10;

/// The arguments.
struct Plan {
    path: String,
    settings: BTreeMap<String, String>,
    records: u64,
    key_bytes: usize,
    value_bytes: usize,
    is_hashed: bool,
    noise: Vec<u8>,
}

impl Plan {
    fn setting(&self, name: &str) -> Done<u64> {
        let text = self
            .settings
            .get(name)
            .ok_or(format!("{name} is not given"))?;
        Ok(text.parse()?)
    }

    fn is_synced(&self) -> bool {
        self.settings
            .get("synced")
            .is_some_and(|text| text == "true")
    }

    fn number(&self, index: u64) -> u64 {
        if self.is_hashed { mix(index) } else { index }
    }

    fn key(&self, number: u64) -> Vec<u8> {
        let mut key = vec![b'0'; self.key_bytes];
        (0..8).for_each(|at| key[at] = (number >> (56 - 8 * at)) as u8);
        key
    }

    fn value(&self, random: u64) -> &[u8] {
        let at = random as usize % NOISE_BYTES;
        &self.noise[at..at + self.value_bytes]
    }

    /// All records in ascending order.
    fn sorted(&self) -> impl Iterator<Item = (Vec<u8>, &[u8])> {
        let mut numbers: Vec<u64> = (0..self.records).map(|index| self.number(index)).collect();
        numbers.sort_unstable();
        numbers
            .into_iter()
            .map(|number| (self.key(number), self.value(number)))
    }
}

/// As `mix` of the benchmark's keys.
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// An open store.
trait Bare: Sync {
    /// Loads everything in order and makes it durable.
    fn load(&self, plan: &Plan) -> Done<()>;
    /// Copies a value, which outlives the read then, as the adapters do; whether there is one.
    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Done<bool>;
    /// One commit.
    fn put(&self, key: &[u8], value: &[u8]) -> Done<()>;
}

fn copy(found: &[u8], value: &mut Vec<u8>) {
    value.clear();
    value.extend_from_slice(found);
}

mod lmdb {
    use heed::types::Bytes;
    use heed::{Database, Env, EnvFlags, EnvOpenOptions, PutFlags};

    use super::{Bare, Done, Plan, copy};

    struct Lmdb(Env, Database<Bytes, Bytes>);

    #[expect(
        unsafe_code,
        reason = "heed asks its caller for two conditions on the file"
    )]
    pub(super) fn open(plan: &Plan, threads: usize) -> Done<Box<dyn Bare>> {
        std::fs::create_dir_all(&plan.path)?;
        let mut flags = EnvFlags::NO_READ_AHEAD;
        if !plan.is_synced() {
            flags |= EnvFlags::NO_SYNC;
        }
        let mut options = EnvOpenOptions::new();
        options
            .map_size(1 << 40)
            .max_dbs(1)
            .max_readers(threads as u32 + 16);
        // SAFETY: nothing reads the file after a crash.
        unsafe { options.flags(flags) };
        // SAFETY: no other process changes the file.
        let env = unsafe { options.open(&plan.path) }?;
        let mut transaction = env.write_txn()?;
        let table = env.create_database(&mut transaction, Some("bench"))?;
        transaction.commit()?;
        Ok(Box::new(Lmdb(env, table)))
    }

    impl Bare for Lmdb {
        fn load(&self, plan: &Plan) -> Done<()> {
            let mut transaction = self.0.write_txn()?;
            for (key, value) in plan.sorted() {
                self.1
                    .put_with_flags(&mut transaction, PutFlags::APPEND, &key, value)?;
            }
            transaction.commit()?;
            Ok(self.0.force_sync()?)
        }

        fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Done<bool> {
            let transaction = self.0.read_txn()?;
            let found = self.1.get(&transaction, key)?;
            Ok(found.map(|found| copy(found, value)).is_some())
        }

        fn put(&self, key: &[u8], value: &[u8]) -> Done<()> {
            let mut transaction = self.0.write_txn()?;
            self.1.put(&mut transaction, key, value)?;
            Ok(transaction.commit()?)
        }
    }
}

mod redb {
    use std::sync::atomic::{AtomicU64, Ordering};

    use ::redb::{Database, Durability, ReadableDatabase, TableDefinition};

    use super::{Bare, Done, Plan, copy};

    const TABLE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("bench");

    struct Redb(Database, bool, u64, AtomicU64);

    pub(super) fn open(plan: &Plan) -> Done<Box<dyn Bare>> {
        let mut builder = Database::builder();
        builder.set_cache_size(plan.setting("cache_bytes")? as usize);
        let db = builder.create(&plan.path)?;
        let every = plan.setting("durable_every")?;
        Ok(Box::new(Redb(
            db,
            plan.is_synced(),
            every,
            AtomicU64::new(0),
        )))
    }

    impl Bare for Redb {
        fn load(&self, plan: &Plan) -> Done<()> {
            let transaction = self.0.begin_write()?;
            let mut table = transaction.open_table(TABLE)?;
            for (key, value) in plan.sorted() {
                table.insert(&key[..], value)?;
            }
            drop(table);
            Ok(transaction.commit()?)
        }

        fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Done<bool> {
            let table = self.0.begin_read()?.open_table(TABLE)?;
            let found = table.get(key)?;
            Ok(found.map(|found| copy(found.value(), value)).is_some())
        }

        fn put(&self, key: &[u8], value: &[u8]) -> Done<()> {
            let number = self.3.fetch_add(1, Ordering::Relaxed) + 1;
            let mut transaction = self.0.begin_write()?;
            transaction.set_durability(match self.1 || number.is_multiple_of(self.2) {
                true => Durability::Immediate,
                false => Durability::None,
            })?;
            transaction.open_table(TABLE)?.insert(key, value)?;
            Ok(transaction.commit()?)
        }
    }
}

mod fjall {
    use std::sync::Arc;
    use std::time::Duration;

    use ::fjall::compaction::Leveled;
    use ::fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

    use super::{Bare, Done, Plan, copy};

    struct Fjall(Database, Keyspace, bool);

    pub(super) fn open(plan: &Plan) -> Done<Box<dyn Bare>> {
        let db = Database::builder(&plan.path)
            .cache_size(plan.setting("cache_bytes")?)
            .worker_threads(plan.setting("worker_threads")? as usize)
            .max_cached_files(Some(plan.setting("max_cached_files")? as usize))
            .open()?;
        let (memtable, table) = (
            plan.setting("max_memtable_bytes")?,
            plan.setting("table_target_bytes")?,
        );
        let options = || {
            let levels = Leveled::default().with_table_target_size(table);
            KeyspaceCreateOptions::default()
                .max_memtable_size(memtable)
                .compaction_strategy(Arc::new(levels))
        };
        let table = db.keyspace("bench", options)?;
        Ok(Box::new(Fjall(db, table, plan.is_synced())))
    }

    impl Bare for Fjall {
        fn load(&self, plan: &Plan) -> Done<()> {
            let mut ingestion = self.1.start_ingestion()?;
            for (key, value) in plan.sorted() {
                ingestion.write(key, value)?;
            }
            ingestion.finish()?;
            // As long as the adapter waits for compactions.
            std::thread::sleep(Duration::from_millis(100));
            Ok(self.0.persist(PersistMode::SyncAll)?)
        }

        fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Done<bool> {
            let found = self.1.get(key)?;
            Ok(found.map(|found| copy(&found, value)).is_some())
        }

        fn put(&self, key: &[u8], value: &[u8]) -> Done<()> {
            if !self.2 {
                return Ok(self.1.insert(key, value)?);
            }
            let mut batch = self.0.batch().durability(Some(PersistMode::SyncData));
            batch.insert(&self.1, key, value);
            Ok(batch.commit()?)
        }
    }
}

fn open(engine: &str, plan: &Plan, threads: usize) -> Done<Box<dyn Bare>> {
    match engine {
        "lmdb" => lmdb::open(plan, threads),
        "redb" => redb::open(plan),
        "fjall" => fjall::open(plan),
        _ => Err(format!("there is no loop for {engine}").into()),
    }
}

/// One client until it is stopped.
fn client(
    store: &dyn Bare,
    plan: &Plan,
    puts: bool,
    index: u64,
    done: &AtomicU64,
    stop: &AtomicBool,
) -> Done<()> {
    let mut state = index.wrapping_mul(1_000_003);
    let mut value = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let random = mix(state);
        let index = (u128::from(random) * u128::from(plan.records)) >> 64;
        let key = plan.key(plan.number(index as u64));
        if puts {
            store.put(&key, plan.value(random))?;
        } else if !store.get(&key, &mut value)? || value.len() != plan.value_bytes {
            return Err("a record is not as it was loaded".into());
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// The sums of all clients.
struct Measured {
    operations_per_s: f64,
    cpu_us_per_operation: f64,
}

fn measure(
    store: &dyn Bare,
    plan: &Plan,
    puts: bool,
    threads: usize,
    times: [Duration; 2],
) -> Done<Measured> {
    #[repr(align(128))]
    struct Counter(AtomicU64);
    let done: Vec<Counter> = (0..threads).map(|_| Counter(AtomicU64::new(0))).collect();
    let sum = || {
        done.iter()
            .map(|count| count.0.load(Ordering::Relaxed))
            .sum::<u64>()
    };
    let stop = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients = done.iter().zip(0..);
        let clients = clients.map(|(done, index)| {
            scope.spawn(move || client(store, plan, puts, index, &done.0, stop))
        });
        let clients: Vec<_> = clients.collect();
        std::thread::sleep(times[0]);
        let (began, cpu_before, before) = (Instant::now(), isobath_lab::cpu_time(), sum());
        std::thread::sleep(times[1]);
        let operations = (sum() - before) as f64;
        let cpu = isobath_lab::cpu_time().saturating_sub(cpu_before);
        let measured = Measured {
            operations_per_s: operations / began.elapsed().as_secs_f64(),
            cpu_us_per_operation: cpu.as_secs_f64() * 1e6 / operations,
        };
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().map_err(|_| "a client panicked")??;
        }
        Ok(measured)
    })
}

fn main() -> Done<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [
        engine,
        verb,
        path,
        settings,
        records,
        key_bytes,
        value_bytes,
        order,
        rest @ ..,
    ] = &arguments[..]
    else {
        return Err("see the beginning of crates/isobath-lab/examples/bare.rs".into());
    };
    let value_bytes = value_bytes.parse()?;
    let pairs = settings.split(',').filter_map(|pair| pair.split_once('='));
    let plan = Plan {
        path: path.clone(),
        settings: pairs
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        records: records.parse()?,
        key_bytes: key_bytes.parse::<usize>()?.max(8),
        value_bytes,
        is_hashed: order == "hashed",
        noise: (0..(NOISE_BYTES + value_bytes) as u64)
            .map(|at| mix(at) as u8)
            .collect(),
    };
    if verb == "load" {
        return open(engine, &plan, 1)?.load(&plan);
    }
    let [threads, warm_up_s, seconds] = rest else {
        return Err("threads and times are missing".into());
    };
    let threads = threads.parse()?;
    let time = |text: &str| -> Done<Duration> { Ok(Duration::try_from_secs_f64(text.parse()?)?) };
    let store = open(engine, &plan, threads)?;
    let measured = measure(
        &*store,
        &plan,
        verb == "put",
        threads,
        [time(warm_up_s)?, time(seconds)?],
    )?;
    println!("operations_per_s {:.1}", measured.operations_per_s);
    println!("cpu_us_per_operation {:.3}", measured.cpu_us_per_operation);
    Ok(())
}

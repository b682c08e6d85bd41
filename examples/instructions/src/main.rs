//! Runs operations that need no drive, for counting their instructions with callgrind or `perf
//! stat`:
//!
//! ```text
//! cargo build --release -p isobath-example-instructions
//! valgrind --tool=callgrind target/release/isobath-example-instructions get 1000000
//! ```
//!
//! Arguments: `get N`, `get-task N TASKS`, `get-many N` (64 at a time), `scan N` (of 100 records),
//! `put N TASKS`, `transact N TASKS` (four reads and four writes each). Two counts of the same
//! operation, divided by the difference of their N, leave the start out.

use std::time::Instant;

use isobath::{Error, Options, Store, TransactionError, TransactionOptions, Tree};

const RECORDS: u64 = 200_000;

fn key(number: u64) -> [u8; 8] {
    let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % RECORDS;
    spread.swap_bytes().to_le_bytes()
}

fn gets(tree: &Tree, count: u64) -> Result<(), Error> {
    let mut value = Vec::new();
    for number in 0..count {
        tree.get_into(&key(number), &mut value)?;
    }
    Ok(())
}

fn gets_many(tree: &Tree, count: u64) -> Result<(), Error> {
    for batch in 0..count / 64 {
        let keys: Vec<[u8; 8]> = (0..64).map(|number| key(batch * 64 + number)).collect();
        tree.get_each(&keys, |_, value| assert!(value.is_some()))?;
    }
    Ok(())
}

fn scans(tree: &Tree, count: u64) -> Result<(), Error> {
    let mut bytes = 0;
    for number in 0..count {
        tree.scan_first(&key(number)[..].., 100, |_, value| bytes += value.len())?;
    }
    assert!(count == 0 || bytes > 0);
    Ok(())
}

fn puts(tree: &Tree, task: u64, count: u64) -> Result<(), Error> {
    (0..count).try_for_each(|number| tree.insert(&key(number * 64 + task), &[1; 120]))
}

fn transactions(store: &Store, tree: &Tree, task: u64, count: u64) -> Result<(), Error> {
    for number in 0..count {
        let mut transaction = store.begin_with(TransactionOptions::new())?;
        for step in 0..4 {
            let key = key(number * 64 + task + step * 1000);
            transaction.get(tree, &key)?;
            transaction.insert(tree, &key, &[1; 120])?;
        }
        match transaction.commit() {
            Ok(()) | Err(TransactionError::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [what, count, rest @ ..] = &arguments[..] else {
        return Err("what, and how often?".into());
    };
    let count: u64 = count.parse()?;
    let tasks: u64 = rest.first().map_or(Ok(32), |tasks| tasks.parse())?;
    let options = Options::new()
        .pool_bytes(256 << 20)
        .workers(1)
        .log_bytes(256 << 20);
    let store = Store::in_memory(&options)?;
    let tree = store.create_tree("t")?;
    let ordered = |number: u64| number.swap_bytes().to_le_bytes();
    tree.bulk_load((0..RECORDS).map(|number| (ordered(number), [7; 120])))?;
    let began = Instant::now();
    match what.as_str() {
        "get" => gets(&tree, count)?,
        "get-many" => gets_many(&tree, count)?,
        "scan" => scans(&tree, count)?,
        "get-task" | "put" | "transact" => {
            let what = what.clone();
            let start = |task| {
                let (store, tree) = (store.clone(), tree.clone());
                let inside = store.clone();
                let what = what.clone();
                store.spawn(move || match what.as_str() {
                    "get-task" => gets(&tree, count / tasks),
                    "put" => puts(&tree, task, count / tasks),
                    _ => transactions(&inside, &tree, task, count / tasks),
                })
            };
            let started: Vec<_> = (0..tasks).map(start).collect();
            for task in started {
                task.join()??;
            }
        }
        other => {
            return Err(format!("{other}: get, get-task, get-many, scan, put or transact").into());
        }
    }
    println!("{what} {count}: {:?}", began.elapsed());
    Ok(store.close()?)
}

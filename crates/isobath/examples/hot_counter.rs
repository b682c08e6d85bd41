//! What synced transactions cost that all change the same few records: where they are seen once they are durable, and with
//! `Options::early_visibility`, in turns.
//!
//! ```text
//! cargo run --release -p isobath --example hot_counter -- FILE [TASKS [RECORDS [SECONDS]]]
//! ```
//!
//! Makes a store in FILE, which must not exist, for each measurement; removes it. Each task of TASKS (64) adds one to one of
//! RECORDS (1) records, in a transaction of its own, again and again for SECONDS (5). Last it looks that nothing was lost.
//! Beside each pair of them stands how many writes the drive flushes one after another.

#![allow(missing_docs)]

use std::fs::File;
use std::io::Error as IoError;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use isobath::{Error, Options, Store, TransactionOptions, Tree};

/// Adds one to `key` until `end`; how often.
fn count(store: &Store, tree: &Tree, key: [u8; 4], end: Instant) -> Result<u64, Error> {
    let options = || TransactionOptions::new().attempts(u32::MAX);
    let mut done = 0;
    while Instant::now() < end {
        store.transact(options(), |transaction| {
            let old = transaction.get(tree, key)?.unwrap_or_default();
            let old = old.try_into().map_or(0, u64::from_le_bytes);
            transaction.insert(tree, key, (old + 1).to_le_bytes())?;
            Ok::<(), Error>(())
        })?;
        done += 1;
    }
    Ok(done)
}

fn measure(
    path: &Path,
    early: bool,
    (tasks, records, seconds): (u32, u32, u64),
) -> Result<f64, Box<dyn std::error::Error>> {
    let options = Options::new().pool_bytes(64 << 20).early_visibility(early);
    let store = Store::create(path, &options)?;
    let tree = store.create_tree("t")?;
    let begin = Instant::now();
    let end = begin + Duration::from_secs(seconds);
    let tasks: Vec<_> = (0..tasks)
        .map(|task| {
            let (store, tree) = (store.clone(), tree.clone());
            let key = (task % records).to_le_bytes();
            store.clone().spawn(move || count(&store, &tree, key, end))
        })
        .collect();
    let mut done = 0;
    for task in tasks {
        done += task.join()??;
    }
    let rate = done as f64 / begin.elapsed().as_secs_f64();
    let conflicts = store.stats().conflicts;
    let mut sum = 0;
    tree.scan(.., |_, value| {
        sum += value.try_into().map_or(0, u64::from_le_bytes);
        true
    })?;
    store.close()?;
    std::fs::remove_file(path)?;
    assert_eq!(sum, done, "an increment is lost");
    let when = if early { "early" } else { "durable" };
    println!("{when:<8} {rate:>9.0} commits/s, {conflicts} conflicts");
    Ok(rate)
}

/// Writes of 4 KiB per second that the drive flushes one after another.
fn flushed_writes(path: &Path) -> Result<f64, IoError> {
    let file = File::create_new(path)?;
    let (begin, mut done) = (Instant::now(), 0);
    while begin.elapsed() < Duration::from_secs(1) {
        file.write_all_at(&[1; 4096], done % 256 * 4096)?;
        file.sync_data()?;
        done += 1;
    }
    let rate = done as f64 / begin.elapsed().as_secs_f64();
    std::fs::remove_file(path)?;
    Ok(rate)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: hot_counter FILE [TASKS [RECORDS [SECONDS]]]";
    let path = arguments.next().ok_or(usage)?;
    let mut number = |default| arguments.next().map_or(Ok(default), |text| text.parse());
    let how = (number(64)?, number(1)?, u64::from(number(5)?));
    let mut ratios = Vec::new();
    for _ in 0..3 {
        println!(
            "the drive {:>8.0} flushed writes/s, one at a time",
            flushed_writes(path.as_ref())?
        );
        let late = measure(path.as_ref(), false, how)?;
        ratios.push(measure(path.as_ref(), true, how)? / late);
    }
    ratios.sort_by(f64::total_cmp);
    println!("early against durable: {ratios:.2?}");
    Ok(())
}

//! One transaction that is larger than the memory it may use: so many MiB of new records in one
//! commit, then changes all over them in a second one, and what memory and time both took.
//!
//!     cargo run --release -p isobath --example large_transaction -- [MiB] [file]
#![allow(
    clippy::disallowed_methods,
    reason = "tests have threads and clocks of their own"
)]
#![allow(
    clippy::print_stdout,
    clippy::big_endian_bytes,
    reason = "a program; keys sort as their bytes do"
)]

use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use isobath::{Options, Store};

const VALUE_BYTES: usize = 1000;
const POOL_BYTES: u64 = 32 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mib: u64 = arguments.next().map_or(Ok(200), |mib| mib.parse())?;
    let directory = tempfile::tempdir()?;
    let path = arguments.next().map(PathBuf::from);
    let path = path.unwrap_or_else(|| directory.path().join("large.isobath"));
    let options = Options::new().pool_bytes(POOL_BYTES).workers(2);
    let store = Store::create(&path, &options)?;
    let tree = store.create_tree("records")?;
    let records = (mib << 20) / (VALUE_BYTES as u64 + 8);
    println!(
        "a pool of {} MiB, {:.1} MiB in use before",
        POOL_BYTES >> 20,
        peak_memory()? as f64 / 1024.0
    );
    let commit = |what: &str, step: usize| -> Result<(), Box<dyn Error>> {
        let began = Instant::now();
        let mut transaction = store.begin()?;
        let mut count = 0;
        for at in (0..records).step_by(step) {
            // In no order.
            let key = at.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
            transaction.insert(&tree, key, [step as u8; VALUE_BYTES])?;
            count += 1;
        }
        let changed = began.elapsed();
        transaction.commit()?;
        println!(
            "{what}: {count} records of {} MiB; changes {:.1} s, commit {:.1} s; peak memory {:.1} MiB",
            (count * (VALUE_BYTES + 8)) >> 20,
            changed.as_secs_f64(),
            (began.elapsed() - changed).as_secs_f64(),
            peak_memory()? as f64 / 1024.0
        );
        Ok(())
    };
    commit("into an empty tree", 1)?;
    commit("changes of every 20th record", 20)?;
    let stats = store.stats();
    println!(
        "{} large commits, {} MiB in temporary files",
        stats.large_commits,
        stats.spilled_bytes >> 20
    );
    assert_eq!(tree.range(..).count() as u64, records);
    store.close()?;
    Ok(())
}

/// Most memory that the process has had, in KiB.
fn peak_memory() -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(kib.ok_or("no VmHWM")?.parse()?)
}

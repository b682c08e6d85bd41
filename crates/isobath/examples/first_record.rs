//! What a store costs before it has any data: time, memory and bytes of file for one record.
//!
//! ```text
//! cargo run --release -p isobath --example first_record -- FILE [POOL_BYTES]
//! ```
//!
//! Makes a store in FILE, which must not exist, inserts one record, closes it, and opens and closes
//! it again; removes FILE. Beside each step: its time, the memory resident after it, and the most
//! that was. A last line says how long as many flushed writes of 4 KiB take as the steps need at
//! least.

#![allow(clippy::disallowed_methods, reason = "a program that measures")]
#![allow(missing_docs)]

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Instant;

use isobath::{Options, Store};

/// A field of the process's status, in MiB.
fn status_mib(field: &str) -> Result<f64, Box<dyn Error>> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find(|line| line.starts_with(field));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(kib.unwrap_or("0").parse::<f64>()? / 1024.0)
}

fn report(step: &str, since: Instant) -> Result<(), Box<dyn Error>> {
    println!(
        "{step:<8} {:>9.1} ms  resident {:>8.1} MiB  most {:>8.1} MiB  pinned {:>8.1} MiB",
        since.elapsed().as_secs_f64() * 1000.0,
        status_mib("VmRSS")?,
        status_mib("VmHWM")?,
        status_mib("VmPin")?,
    );
    Ok(())
}

/// Flushed writes of a block each to a new file beside the store.
fn flushes(path: &Path, count: u64) -> Result<(), Box<dyn Error>> {
    let beside = path.with_extension("flushes");
    let file: File = OpenOptions::new()
        .create_new(true)
        .write(true)
        .open(&beside)?;
    let since = Instant::now();
    for number in 0..count {
        file.write_all_at(&[1; 4096], number * 4096)?;
        file.sync_data()?;
    }
    let took = since.elapsed().as_secs_f64() * 1000.0;
    println!("{count} writes of 4 KiB, each flushed: {took:.1} ms");
    std::fs::remove_file(&beside)?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments
        .next()
        .ok_or("usage: first_record FILE [POOL_BYTES]")?;
    let path = Path::new(&path);
    let mut options = Options::new();
    if let Some(bytes) = arguments.next() {
        options = options.pool_bytes(bytes.parse()?);
    }
    let whole = Instant::now();
    let since = Instant::now();
    let store = Store::create(&[path], &options)?;
    report("create", since)?;
    let since = Instant::now();
    let tree = store.create_tree("t")?;
    tree.insert(b"key", b"value")?;
    report("insert", since)?;
    let since = Instant::now();
    store.close()?;
    report("close", since)?;
    let meta = path.metadata()?;
    println!(
        "all      {:>9.1} ms; file of {:.1} MiB, {:.1} MiB allocated",
        whole.elapsed().as_secs_f64() * 1000.0,
        meta.len() as f64 / f64::from(1 << 20),
        (meta.blocks() * 512) as f64 / f64::from(1 << 20),
    );
    drop(tree);
    let since = Instant::now();
    let store = Store::open(&[path], &options)?;
    assert_eq!(
        store.tree("t")?.get(b"key")?.as_deref(),
        Some(&b"value"[..])
    );
    report("open", since)?;
    let since = Instant::now();
    store.close()?;
    report("close", since)?;
    std::fs::remove_file(path)?;
    flushes(path, 12)
}

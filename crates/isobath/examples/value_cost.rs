//! How long large values take to be written, by their size, into a store with small segments, a
//! small log and a small pool:
//!
//! ```text
//! cargo run --release -p isobath --example value_cost -- FILE 16 64 256     # sizes in MiB
//! ```

#![allow(
    clippy::disallowed_methods,
    reason = "tests have threads and clocks of their own"
)]
#![allow(missing_docs)]

use std::time::Instant;

use isobath::{Options, Store};

const MIB: usize = 1 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, sizes @ ..] = &arguments[..] else {
        return Err("a file, and sizes in MiB".into());
    };
    let options = Options::new()
        .pool_bytes(16 << 20)
        .log_bytes(4 << 20)
        .segment_bytes(64 << 10);
    let part = vec![7; MIB];
    for size in sizes {
        let size: usize = size.parse()?;
        if std::fs::exists(file)? {
            return Err(format!("{file} exists").into());
        }
        let store = Store::create(file, &options)?;
        let tree = store.create_tree("values")?;
        let began = Instant::now();
        let mut writer = tree.writer("key")?;
        for _ in 0..size {
            writer.append(&part)?;
        }
        writer.finish()?;
        let took = began.elapsed().as_secs_f64();
        println!("{size} MiB: {took:.2} s, {:.1} MiB/s", size as f64 / took);
        store.close()?;
        std::fs::remove_file(file)?;
    }
    Ok(())
}

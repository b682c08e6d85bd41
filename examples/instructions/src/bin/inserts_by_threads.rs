//! Inserts by plain threads, one after the other in each: the rate of a program that uses no tasks.
//!
//! ```text
//! cargo run --release -p isobath-example-instructions --bin inserts_by_threads [DIRECTORY]
//! ```
//!
//! Records of 16 and 100 bytes into a tree that the pool holds, for each durability and number of
//! threads; per second, the mean time of a call, and the CPU time of all threads per insert.

use std::time::{Duration, Instant};

use isobath::{Durability, Options, Store};
use rustix::time::{ClockId, clock_gettime};

const TIME: Duration = Duration::from_secs(2);
const KEYS: u64 = 200_000;

/// CPU time of all threads.
fn cpu() -> Duration {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args().nth(1).unwrap_or_else(|| ".".to_owned());
    let path = std::path::Path::new(&directory).join("inserts_by_threads.iso");
    println!(
        "{:<12} {:>8} {:>12} {:>10} {:>14}",
        "durability", "threads", "per second", "us a call", "CPU us a call"
    );
    for (name, durability) in [
        ("none", Durability::None),
        ("buffered", Durability::Buffered { window_ms: 10 }),
        ("synced", Durability::Synced),
    ] {
        for threads in [1u64, 2, 4, 16] {
            let _ = std::fs::remove_file(&path);
            let options = Options::new().pool_bytes(256 << 20).durability(durability);
            let store = Store::create(&path, &options)?;
            let tree = store.create_tree("records")?;
            let (began, used) = (Instant::now(), cpu());
            let counts = std::thread::scope(|scope| {
                let insert = |thread: u64| {
                    let tree = &tree;
                    move || -> Result<u64, isobath::Error> {
                        let mut count = 0;
                        while began.elapsed() < TIME {
                            let key = (thread + threads * count)
                                .wrapping_mul(0x9E37_79B9_7F4A_7C15)
                                % KEYS;
                            tree.insert(format!("{key:016}"), [count as u8; 100])?;
                            count += 1;
                        }
                        Ok(count)
                    }
                };
                let running: Vec<_> = (0..threads).map(|n| scope.spawn(insert(n))).collect();
                let counts = running.into_iter().map(|thread| thread.join());
                counts.collect::<Vec<_>>()
            });
            let mut count = 0;
            for one in counts {
                count += one.map_err(|_| "a thread panicked")??;
            }
            let (took, used) = (began.elapsed(), cpu() - used);
            let micros = |time: Duration| time.as_secs_f64() * 1e6 / count as f64;
            println!(
                "{name:<12} {threads:>8} {:>12.0} {:>10.1} {:>14.1}",
                count as f64 / took.as_secs_f64(),
                micros(took) * threads as f64,
                micros(used)
            );
            store.close()?;
        }
    }
    std::fs::remove_file(&path)?;
    Ok(())
}

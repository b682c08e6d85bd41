//! How long one load from a random place in memory takes when the next one
//! depends on it: what every lookup in a full pool pays several times.
//!
//!     cargo run --release -p isobath-lab --example memory_latency [GIB]
//!
//! Prints nanoseconds per dependent load, and per load when eight chains run
//! side by side, as the lookups of a `get_many` do; then nanoseconds per page
//! copied from a random place there to one in a tenth as much memory, as a read
//! of a memory device is.

use std::time::Instant;

use isobath_io::AlignedBuf;

const LOADS: usize = 20_000_000;
const COPIES: usize = 1_000_000;
const PAGE: usize = 4096;
/// One word per cache line.
const STEP: usize = 8;

fn main() {
    let gib: usize = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(4);
    let lines = (gib << 30) / 64;
    let mut memory = vec![0u64; lines * STEP];
    // One cycle through all lines: a full-period linear congruential generator.
    let next = |line: usize| (line.wrapping_mul(5_851_757_013) + 3_037_000_493) % lines;
    for line in 0..lines {
        memory[line * STEP] = (next(line) * STEP) as u64;
    }
    let began = Instant::now();
    let mut at = 0usize;
    for _ in 0..LOADS {
        at = memory[at] as usize;
    }
    let alone = began.elapsed().as_nanos() as f64 / LOADS as f64;
    let mut chains: [usize; 8] = std::array::from_fn(|i| i * (lines / 8) * STEP);
    let began = Instant::now();
    for _ in 0..LOADS / 8 {
        for at in &mut chains {
            *at = memory[*at] as usize;
        }
    }
    let together = began.elapsed().as_nanos() as f64 / LOADS as f64;
    // Keeps the loads from being optimised away.
    let seen = at ^ chains.iter().fold(0, |sum, at| sum ^ at);
    println!(
        "{alone:.1} ns per dependent load in {gib} GiB, {together:.1} ns with eight chains ({seen:x})"
    );
    drop(memory);
    println!("{:.0} ns per copied page", copy_ns(gib << 30));
}

/// Copies pages out of `bytes` bytes in huge pages, at places that the processor cannot predict.
fn copy_ns(bytes: usize) -> f64 {
    let touched = |bytes: usize| {
        let mut buffer = AlignedBuf::new(bytes);
        buffer.chunks_mut(PAGE).for_each(|page| page[0] = 1);
        buffer
    };
    let (from, mut to) = (touched(bytes), touched(bytes / 10 / PAGE * PAGE));
    let mut places = fastrand::Rng::with_seed(1);
    let began = Instant::now();
    for _ in 0..COPIES {
        let source = places.usize(..from.len() / PAGE) * PAGE;
        let target = places.usize(..to.len() / PAGE) * PAGE;
        to[target..target + PAGE].copy_from_slice(&from[source..source + PAGE]);
    }
    let ns = began.elapsed().as_nanos() as f64 / COPIES as f64;
    std::hint::black_box(&to);
    ns
}

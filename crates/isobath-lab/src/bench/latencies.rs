//! Latencies of an interval: clients count while they run, and quantiles are taken of the counts
//! between two readings.
//!
//! Not hdrhistogram's: its histograms that several threads share make the one who looks wait for
//! the ones who count, and take a buffer from these at each look.

use std::sync::atomic::{AtomicU32, Ordering};

/// Shortest latency that is distinguished, in nanoseconds.
pub(super) const LATENCY_NS_MIN: u64 = 64;
/// Longest latency that is distinguished, in nanoseconds.
pub(super) const LATENCY_NS_MAX: u64 = 100_000_000_000;

/// Buckets of one octave.
const PARTS: usize = 16;
const OCTAVES: usize = (LATENCY_NS_MAX.ilog2() - LATENCY_NS_MIN.ilog2() + 1) as usize;
const BUCKETS: usize = OCTAVES * PARTS;

/// Counts of one client, which alone adds to them; aligned, so that clients share no cache line.
#[repr(align(128))]
pub(super) struct Counts([AtomicU32; BUCKETS]);

impl Counts {
    pub(super) fn new() -> Counts {
        Counts([const { AtomicU32::new(0) }; BUCKETS])
    }

    pub(super) fn add(&self, ns: u64) {
        let count = &self.0[bucket(ns)];
        // One client writes, so nothing is lost between the two; a sum that wraps is subtracted as
        // it wraps.
        count.store(
            count.load(Ordering::Relaxed).wrapping_add(1),
            Ordering::Relaxed,
        );
    }
}

fn bucket(ns: u64) -> usize {
    let ns = ns.clamp(LATENCY_NS_MIN, LATENCY_NS_MAX);
    let octave = ns.ilog2();
    let part = ((ns >> (octave - PARTS.ilog2())) as usize) % PARTS;
    (octave - LATENCY_NS_MIN.ilog2()) as usize * PARTS + part
}

/// The shortest latency of a bucket, in nanoseconds.
fn lower_ns(bucket: usize) -> f64 {
    let octave = LATENCY_NS_MIN as f64 * (1u64 << (bucket / PARTS)) as f64;
    octave * (1.0 + (bucket % PARTS) as f64 / PARTS as f64)
}

/// The counts of all clients at one time.
#[derive(Clone)]
pub(super) struct Total([u32; BUCKETS]);

impl Total {
    pub(super) fn of<'c>(clients: impl IntoIterator<Item = &'c Counts>) -> Total {
        let mut total = [0u32; BUCKETS];
        for client in clients {
            for (sum, count) in total.iter_mut().zip(&client.0) {
                *sum = sum.wrapping_add(count.load(Ordering::Relaxed));
            }
        }
        Total(total)
    }

    /// Microseconds below which this share of the latencies since `before` lies; nothing where
    /// there is none. Within a bucket, which is a sixteenth of an octave wide, latencies are taken
    /// to be spread evenly.
    pub(super) fn quantile_us_since(&self, before: &Total, share: f64) -> Option<f64> {
        let counts = self.0.iter().zip(&before.0);
        let counts: Vec<u32> = counts
            .map(|(now, before)| now.wrapping_sub(*before))
            .collect();
        let all: u64 = counts.iter().map(|count| u64::from(*count)).sum();
        let wanted = share * all as f64;
        let mut below = 0.0;
        for (bucket, count) in counts
            .into_iter()
            .enumerate()
            .filter(|(_, count)| *count > 0)
        {
            let count = f64::from(count);
            if below + count >= wanted {
                let (low, high) = (lower_ns(bucket), lower_ns(bucket + 1));
                let part = ((wanted - below) / count).clamp(0.0, 1.0);
                return Some((low + part * (high - low)) / 1e3);
            }
            below += count;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_interval_alone() {
        let clients = [Counts::new(), Counts::new()];
        let nothing = Total::of(&clients);
        assert_eq!(nothing.quantile_us_since(&nothing, 0.99), None);
        for ns in 0..1000u64 {
            clients[0].add(900_000 + ns);
        }
        let first = Total::of(&clients);
        for us in 1..=1000u64 {
            clients[(us % 2) as usize].add(us * 1000);
        }
        let now = Total::of(&clients);
        for share in [0.1, 0.5, 0.99] {
            let found = now.quantile_us_since(&first, share).unwrap();
            // Measured 0.35%, 0.15% and 0.66%.
            assert!((found / (1000.0 * share) - 1.0).abs() < 0.007, "{found}");
        }
        // Half of all lie below 900 µs, within the bucket of which they are the most.
        let whole = now.quantile_us_since(&nothing, 0.5).unwrap();
        assert!((884.0..918.0).contains(&whole), "{whole}");
    }

    #[test]
    fn every_latency_has_a_bucket() {
        for ns in [0, 63, 64, 65, 127, 128, 1 << 30, LATENCY_NS_MAX, u64::MAX] {
            let (at, clamped) = (bucket(ns), ns.clamp(LATENCY_NS_MIN, LATENCY_NS_MAX) as f64);
            assert!(at < BUCKETS, "{ns}");
            assert!(
                lower_ns(at) <= clamped && clamped < lower_ns(at + 1),
                "{ns}"
            );
        }
    }
}

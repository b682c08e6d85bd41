//! Counters and latency histograms of one channel.

use std::time::Duration;

use crate::io::Op;

/// Values below `1 << LINEAR_BITS` have a bucket each; above, every power of two is cut into this
/// many buckets.
const SUB_BITS: u32 = 5;
const SUB: usize = 1 << SUB_BITS;
/// The largest power of two with a bucket of its own: 2^36 ns is 69 s.
const TOP_BIT: u32 = 36;
const BUCKETS: usize = (TOP_BIT - SUB_BITS + 1) as usize * SUB;

/// Latencies in nanoseconds, in logarithmic buckets with a relative error of at most 1/32; 8 KiB,
/// no allocation after creation. Values over 69 s count as 69 s.
#[derive(Clone)]
pub struct LatencyHistogram {
    buckets: Box<[u64; BUCKETS]>,
    count: u64,
    sum_ns: u64,
    max_ns: u64,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        LatencyHistogram {
            buckets: Box::new([0; BUCKETS]),
            count: 0,
            sum_ns: 0,
            max_ns: 0,
        }
    }
}

impl std::fmt::Debug for LatencyHistogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LatencyHistogram")
            .field("count", &self.count)
            .field("p50_ns", &self.quantile_ns(0.5))
            .field("p99_ns", &self.quantile_ns(0.99))
            .field("max_ns", &self.max_ns)
            .finish()
    }
}

fn bucket_of(ns: u64) -> usize {
    if ns < SUB as u64 {
        return ns as usize;
    }
    let top = ns.ilog2();
    if top >= TOP_BIT {
        return BUCKETS - 1;
    }
    let shift = top - SUB_BITS;
    let sub = (ns >> shift) as usize & (SUB - 1);
    (shift as usize + 1) * SUB + sub
}

/// The largest value of a bucket.
fn bucket_top(bucket: usize) -> u64 {
    if bucket < SUB {
        return bucket as u64;
    }
    let shift = (bucket / SUB - 1) as u32;
    let sub = (bucket % SUB) as u64;
    ((SUB as u64 + sub + 1) << shift) - 1
}

impl LatencyHistogram {
    /// Counts one latency.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.buckets[bucket_of(ns)] += 1;
        self.count += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds everything that `other` has counted.
    pub fn merge(&mut self, other: &LatencyHistogram) {
        for (a, b) in self.buckets.iter_mut().zip(other.buckets.iter()) {
            *a += b;
        }
        self.count += other.count;
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Takes away what `earlier`, an older copy of this histogram, had counted. The maximum stays
    /// that of the whole.
    pub fn subtract(&mut self, earlier: &LatencyHistogram) {
        for (a, b) in self.buckets.iter_mut().zip(earlier.buckets.iter()) {
            *a = a.saturating_sub(*b);
        }
        self.count = self.count.saturating_sub(earlier.count);
        self.sum_ns = self.sum_ns.saturating_sub(earlier.sum_ns);
    }

    /// Number of latencies counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their sum in nanoseconds (exact).
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// Their mean in nanoseconds; 0 when there are none.
    pub fn mean_ns(&self) -> u64 {
        self.sum_ns.checked_div(self.count).unwrap_or(0)
    }

    /// The largest one in nanoseconds (exact).
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The upper end of the bucket in which the `q`-quantile lies (0 ≤ q ≤ 1), in nanoseconds; 0
    /// when nothing was counted.
    pub fn quantile_ns(&self, q: f64) -> u64 {
        if self.count == 0 {
            return 0;
        }
        let rank = ((self.count as f64 * q.clamp(0.0, 1.0)).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, n) in self.buckets.iter().enumerate() {
            seen += n;
            if seen >= rank {
                return bucket_top(bucket).min(self.max_ns);
            }
        }
        self.max_ns
    }

    /// The non-empty buckets: (largest value in nanoseconds, count), in rising order.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let filled = self.buckets.iter().enumerate().filter(|(_, n)| **n > 0);
        filled.map(|(bucket, n)| (bucket_top(bucket), *n))
    }
}

/// Counts of the operations of one kind.
#[derive(Debug, Clone, Default)]
pub struct OpStats {
    /// Completed, with success or not.
    pub completed: u64,
    /// Completed with an error.
    pub failed: u64,
    /// Bytes of successful ones.
    pub bytes: u64,
    /// From the hand-over to the device until the completion was reaped, for all that reached a
    /// device.
    pub latency: LatencyHistogram,
}

impl OpStats {
    /// Counts one completion without a latency.
    #[inline]
    pub fn count(&mut self, ok: bool, bytes: u64) {
        self.completed += 1;
        if ok {
            self.bytes += bytes;
        } else {
            self.failed += 1;
        }
    }

    /// Counts one completion.
    #[inline]
    pub fn record(&mut self, ok: bool, bytes: u64, latency: Duration) {
        self.count(ok, bytes);
        // Over 584 years do not happen.
        self.latency.record(latency.as_nanos() as u64);
    }

    fn subtract(&mut self, earlier: &OpStats) {
        self.completed -= earlier.completed;
        self.failed -= earlier.failed;
        self.bytes -= earlier.bytes;
        self.latency.subtract(&earlier.latency);
    }

    fn merge(&mut self, other: &OpStats) {
        self.completed += other.completed;
        self.failed += other.failed;
        self.bytes += other.bytes;
        self.latency.merge(&other.latency);
    }
}

/// Counters of one channel since it was opened.
#[derive(Debug, Clone, Default)]
pub struct ChannelStats {
    /// Reads.
    pub read: OpStats,
    /// Writes, vectored ones and durable ones included.
    pub write: OpStats,
    /// Flushes.
    pub flush: OpStats,
    /// Discards.
    pub discard: OpStats,
    /// System calls made to submit, reap and sleep.
    pub system_calls: u64,
    /// Requests handed to devices: more than I/Os if these were split at stripe units or
    /// resubmitted.
    pub device_requests: u64,
    /// Remainders of short reads and writes, and retries after `EAGAIN`, that were submitted again.
    pub resubmitted: u64,
    /// Times that `wait` slept.
    pub sleeps: u64,
    /// Times that `wait` ended because of a wake.
    pub wakes: u64,
    /// Largest number of I/Os in flight at once.
    pub in_flight_max: u32,
}

impl ChannelStats {
    /// The counters of the operations of kind `op`.
    #[inline]
    pub fn of(&self, op: Op) -> &OpStats {
        match op {
            Op::Read => &self.read,
            Op::Write | Op::WriteV => &self.write,
            Op::Flush => &self.flush,
            Op::Discard => &self.discard,
        }
    }

    /// The counters of the operations of kind `op`, to be changed.
    #[inline]
    pub fn of_mut(&mut self, op: Op) -> &mut OpStats {
        match op {
            Op::Read => &mut self.read,
            Op::Write | Op::WriteV => &mut self.write,
            Op::Flush => &mut self.flush,
            Op::Discard => &mut self.discard,
        }
    }

    /// Takes away what `earlier`, an older copy of these counters, had counted. Maxima stay those
    /// of the whole.
    pub fn subtract(&mut self, earlier: &ChannelStats) {
        self.read.subtract(&earlier.read);
        self.write.subtract(&earlier.write);
        self.flush.subtract(&earlier.flush);
        self.discard.subtract(&earlier.discard);
        self.system_calls -= earlier.system_calls;
        self.device_requests -= earlier.device_requests;
        self.resubmitted -= earlier.resubmitted;
        self.sleeps -= earlier.sleeps;
        self.wakes -= earlier.wakes;
    }

    /// Adds the counters of another channel.
    pub fn merge(&mut self, other: &ChannelStats) {
        self.read.merge(&other.read);
        self.write.merge(&other.write);
        self.flush.merge(&other.flush);
        self.discard.merge(&other.discard);
        self.system_calls += other.system_calls;
        self.device_requests += other.device_requests;
        self.resubmitted += other.resubmitted;
        self.sleeps += other.sleeps;
        self.wakes += other.wakes;
        self.in_flight_max = self.in_flight_max.max(other.in_flight_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_a_bucket_at_most_a_32nd_above_it() {
        let mut value = 1u64;
        while value < 1 << 35 {
            for v in [value - 1, value, value + 1, value + value / 3] {
                let top = bucket_top(bucket_of(v));
                assert!(top >= v, "{v}: bucket ends at {top}");
                assert!(top - v <= v / 32 + 1, "{v}: bucket ends at {top}");
            }
            value *= 2;
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        assert_eq!(bucket_top(BUCKETS - 1), (1 << TOP_BIT) - 1);
    }

    #[test]
    fn quantiles_of_a_known_sample() {
        let mut h = LatencyHistogram::default();
        for ns in 1..=1000 {
            h.record(ns * 1000);
        }
        for (q, want) in [(0.5, 500_000.0), (0.99, 990_000.0), (1.0, 1_000_000.0)] {
            let got = h.quantile_ns(q) as f64;
            assert!((got - want).abs() / want < 1.0 / 32.0, "{q}: {got}");
        }
        assert_eq!(h.mean_ns(), 500_500);
        assert_eq!(h.max_ns(), 1_000_000);
        let mut twice = h.clone();
        twice.merge(&h);
        assert_eq!(twice.count(), 2000);
        twice.subtract(&h);
        assert_eq!(twice.quantile_ns(0.5), h.quantile_ns(0.5));
    }
}

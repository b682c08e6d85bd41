//! Where a drive is operated (k, r, I/O size, mix) and what was measured there.

use std::fmt;

use serde::{Deserialize, Serialize};

/// `B`: bytes per page. Costs are per page of this size throughout the crate.
pub const PAGE_BYTES: u64 = 4096;

/// Reads and writes have separate costs in every model (section 4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Reads: t(k) and α(k) in the paper.
    Read,
    /// Writes: s(k) and β(k) in the paper.
    Write,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
        })
    }
}

/// One way to operate a drive.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct OperatingPoint {
    /// `k`: I/Os in flight, by threads, by queue depth or by both (section 4.2; both reach the same
    /// throughput).
    pub concurrency: f64,
    /// Share of I/Os that start at a random offset, 0..=1; the others continue where the previous
    /// one ended.
    pub random_share: f64,
    /// Pages of 4 KiB per I/O.
    pub io_pages: f64,
    /// Share of I/Os that are reads, 0..=1.
    pub read_share: f64,
}

impl OperatingPoint {
    /// Random reads of `io_pages` pages with `concurrency` in flight.
    pub fn random_reads(concurrency: f64, io_pages: f64) -> Self {
        Self {
            concurrency,
            random_share: 1.0,
            io_pages,
            read_share: 1.0,
        }
    }

    /// Random writes of `io_pages` pages with `concurrency` in flight.
    pub fn random_writes(concurrency: f64, io_pages: f64) -> Self {
        Self {
            read_share: 0.0,
            ..Self::random_reads(concurrency, io_pages)
        }
    }

    /// Random accesses per page, the paper's `r · B / N` (equations 3, 7, 8).
    pub fn random_accesses_per_page(&self) -> f64 {
        self.random_share / self.io_pages
    }

    /// The operation, if all I/Os at this point are of one kind.
    pub fn pure_operation(&self) -> Option<Operation> {
        if self.read_share >= 1.0 {
            Some(Operation::Read)
        } else if self.read_share <= 0.0 {
            Some(Operation::Write)
        } else {
            None
        }
    }
}

/// A measured throughput.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Where it was measured.
    pub point: OperatingPoint,
    /// Pages of 4 KiB transferred per second, over all threads.
    pub throughput_pages_per_s: f64,
}

impl Sample {
    /// Wall time per page in µs, all threads together: the quantity that every model here predicts.
    pub fn page_cost_us(&self) -> f64 {
        1e6 / self.throughput_pages_per_s
    }
}

pub(crate) fn check(samples: &[Sample]) -> Result<(), crate::FitError> {
    for (index, sample) in samples.iter().enumerate() {
        let p = &sample.point;
        let shares_ok = |v: f64| (0.0..=1.0).contains(&v);
        let bad = [
            (
                "throughput_pages_per_s",
                sample.throughput_pages_per_s,
                sample.throughput_pages_per_s > 0.0,
            ),
            ("concurrency", p.concurrency, p.concurrency >= 1.0),
            ("io_pages", p.io_pages, p.io_pages > 0.0),
            ("random_share", p.random_share, shares_ok(p.random_share)),
            ("read_share", p.read_share, shares_ok(p.read_share)),
        ]
        .into_iter()
        .find(|(_, value, ok)| !ok || !value.is_finite());
        if let Some((what, value, _)) = bad {
            return Err(crate::FitError::BadPoint { index, what, value });
        }
    }
    Ok(())
}

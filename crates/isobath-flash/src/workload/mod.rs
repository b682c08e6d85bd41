//! Streams of page writes: the synthetic workloads of section 6.1.4, workloads whose hot set moves,
//! and traces.

mod synthetic;
mod zipf;

pub use synthetic::{Synthetic, WorkloadError, WorkloadKind};
pub use zipf::Zipf;

/// One operation on a page, in four bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op(u32);

impl Op {
    const TRIM: u32 = 1 << 31;
    /// Pages that an operation can name.
    pub const MAX_PAGES: u32 = Self::TRIM;

    /// A write of `page`, below [`Op::MAX_PAGES`].
    #[inline]
    pub fn write(page: u32) -> Self {
        Self(page & !Self::TRIM)
    }

    /// A trim of `page`: its contents are no longer needed.
    #[inline]
    pub fn trim(page: u32) -> Self {
        Self(page | Self::TRIM)
    }

    /// The page.
    #[inline]
    pub fn page(self) -> u32 {
        self.0 & !Self::TRIM
    }

    /// True for a trim.
    #[inline]
    pub fn is_trim(self) -> bool {
        self.0 & Self::TRIM != 0
    }
}

/// A source of page writes.
pub trait Workload {
    /// Number of pages; every operation names a smaller page.
    fn pages(&self) -> u32;

    /// Fills a prefix of `out` with the next operations and returns its length; 0 at the end.
    /// Synthetic workloads never end.
    fn fill(&mut self, out: &mut [Op]) -> usize;

    /// Operations left, if they end.
    fn length(&self) -> Option<u64> {
        None
    }

    /// The exact probability of each page in one update, for the oracle policies; `None` if it is
    /// unknown or changes.
    fn rates(&self) -> Option<Vec<f32>> {
        None
    }

    /// True if every page is written once before the measurement starts; false if the workload
    /// itself creates pages (a trace).
    fn preload(&self) -> bool {
        true
    }
}

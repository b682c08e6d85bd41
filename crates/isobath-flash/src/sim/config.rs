//! The settings of a simulation, and their errors.

use crate::policy::UnknownPolicy;
use crate::workload::{Op, WorkloadError};

/// The treatment of an older version of a page that is still in the sort buffer when the page is
/// written again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Duplicates {
    /// Both versions are written (the older one is obsolete already), as in the paper's numbers.
    #[default]
    Written,
    /// The newer version replaces the older one in the buffer, as an engine should do.
    Absorbed,
}

/// Sizes of the pages (section 4.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PageSizes {
    /// All pages have `SimConfig::page_bytes`.
    #[default]
    Fixed,
    /// Page sizes are spread evenly from a quarter of `page_bytes` to `page_bytes` in steps of 64
    /// bytes, by a hash of the page number.
    Spread,
}

/// The simulated space and how it is cleaned.
#[derive(Debug, Clone, PartialEq)]
pub struct SimConfig {
    /// Segments that the fill factor refers to.
    pub segments: u32,
    /// Bytes per segment (paper: 2 MiB).
    pub segment_bytes: u32,
    /// Bytes per page, the largest one if sizes vary (paper: 4 KiB).
    pub page_bytes: u32,
    /// F: bytes of user data / bytes of `segments`.
    pub fill: f64,
    /// Segments beside `segments`; see [`SimConfig::paper_spare`].
    pub spare_segments: u32,
    /// Whether a run begins with that many, and in its first half measures how much lies idle and
    /// takes as many as give this device the same share of it as the paper's has: free segments,
    /// unwritten parts of open ones, less what the sort buffer holds.
    pub matches_reserve: bool,
    /// Cleaning starts when fewer segments than this are free (paper: 32).
    pub clean_below: u32,
    /// Segments cleaned per cycle; `None`: as the policy prefers (paper: 64, multi-log 1).
    pub clean_batch: Option<u32>,
    /// Segments that may be open at a time; a page whose stream has none open then joins the
    /// nearest stream that has. `None`: as many as the policy has streams.
    pub open_segments_max: Option<u32>,
    /// Size of the buffer in which policies that use it sort user writes (paper: 16).
    pub sort_buffer_segments: u32,
    /// The treatment of duplicates in that buffer.
    pub duplicates: Duplicates,
    /// Fixed or variable page sizes.
    pub page_sizes: PageSizes,
    /// Seed of the workload.
    pub seed: u64,
}

impl SimConfig {
    /// Segments of the paper's 100 GB device.
    pub const PAPER_SEGMENTS: u32 = 51_200;

    /// The paper's set-up (section 6.1.1) on a device of `segments` segments of 2 MiB, 51,200 in
    /// the paper, with spare segments that give a smaller device the same share of idle space.
    pub fn paper(segments: u32, fill: f64) -> Self {
        Self {
            segments,
            segment_bytes: 2 << 20,
            page_bytes: 4096,
            fill,
            spare_segments: Self::paper_spare(segments, 32, 64),
            matches_reserve: true,
            clean_below: 32,
            clean_batch: None,
            open_segments_max: None,
            sort_buffer_segments: 16,
            duplicates: Duplicates::Written,
            page_sizes: PageSizes::Fixed,
            seed: 1,
        }
    }

    /// An estimate of the spare segments that leave a device of `segments` segments as large a
    /// share for its free segments as the paper's 51,200 have: on average the trigger and a quarter
    /// of a batch are free, where half of a segment is obsolete when it is cleaned. Runs with
    /// [`SimConfig::matches_reserve`] begin with it, and measure.
    pub fn paper_spare(segments: u32, clean_below: u32, batch: u32) -> u32 {
        let free = f64::from(clean_below) + f64::from(batch) / 4.0;
        (free * (1.0 - f64::from(segments) / f64::from(Self::PAPER_SEGMENTS)).max(0.0)).round()
            as u32
    }

    /// Number of user pages: fill × bytes of `segments`, divided by the mean page size.
    pub fn user_pages(&self) -> u32 {
        let bytes = f64::from(self.segments) * f64::from(self.segment_bytes) * self.fill;
        (bytes / self.mean_page_bytes()) as u32
    }

    /// Mean size of a page in bytes.
    pub fn mean_page_bytes(&self) -> f64 {
        match self.page_sizes {
            PageSizes::Fixed => f64::from(self.page_bytes),
            PageSizes::Spread => {
                let (low, steps) = self.spread();
                f64::from(low) + 64.0 * f64::from(steps - 1) / 2.0
            }
        }
    }

    /// Smallest size and number of sizes of [`PageSizes::Spread`].
    fn spread(&self) -> (u32, u32) {
        let low = (self.page_bytes / 4).max(1);
        (low, (self.page_bytes - low) / 64 + 1)
    }

    /// The size of each of `pages` pages, or `None` if all are `page_bytes`.
    pub(super) fn sizes(&self, pages: u32) -> Option<Vec<u32>> {
        let (low, steps) = match self.page_sizes {
            PageSizes::Fixed => return None,
            PageSizes::Spread => self.spread(),
        };
        // Fibonacci hashing spreads consecutive numbers evenly over the sizes.
        let size = |page: u32| {
            low + 64 * ((u64::from(page.wrapping_mul(0x9e37_79b1)) * u64::from(steps)) >> 32) as u32
        };
        Some((0..pages).map(size).collect())
    }

    /// Bytes of the smallest page.
    pub(super) fn smallest_page_bytes(&self) -> u32 {
        match self.page_sizes {
            PageSizes::Fixed => self.page_bytes,
            PageSizes::Spread => self.spread().0,
        }
    }

    /// Checks the numbers against each other for a policy that keeps `streams` segments open and
    /// cleans `batch` segments at a time.
    ///
    /// # Errors
    /// Names the first number that cannot be.
    pub fn check(&self) -> Result<(), SimError> {
        if self.page_bytes == 0
            || self.segment_bytes == 0
            || !self.segment_bytes.is_multiple_of(self.page_bytes)
        {
            return Err(SimError::SizesDoNotDivide {
                segment_bytes: self.segment_bytes,
                page_bytes: self.page_bytes,
            });
        }
        if !(self.fill > 0.0 && self.fill < 1.0) {
            return Err(SimError::Fill { fill: self.fill });
        }
        if self.segments == 0 || self.user_pages() == 0 {
            return Err(SimError::NoPages {
                segments: self.segments,
            });
        }
        if self.clean_batch == Some(0) {
            return Err(SimError::NoBatch);
        }
        let present = f64::from(self.segments) + f64::from(self.spare_segments);
        let slots = present
            * f64::from((self.segment_bytes / self.smallest_page_bytes()).next_power_of_two());
        if slots >= f64::from(Op::MAX_PAGES) {
            return Err(SimError::TooLarge { slots });
        }
        // User data, the trigger's free segments, one open segment per stream at least, and one
        // segment of obsolete space.
        let needed =
            (f64::from(self.segments) * self.fill).ceil() + f64::from(self.clean_below) + 3.0;
        if needed > present {
            return Err(SimError::Reserve {
                fill: self.fill,
                segments: self.segments,
                spare_segments: self.spare_segments,
                clean_below: self.clean_below,
            });
        }
        Ok(())
    }
}

/// Why a simulation cannot run or go on.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// Segment size is not a multiple of page size.
    #[error(
        "segment size {segment_bytes} bytes is not a positive multiple of page size {page_bytes} bytes"
    )]
    SizesDoNotDivide {
        /// Bytes per segment.
        segment_bytes: u32,
        /// Bytes per page.
        page_bytes: u32,
    },
    /// Fill factor outside (0, 1).
    #[error("fill factor {fill} must be above 0 and below 1")]
    Fill {
        /// The fill factor.
        fill: f64,
    },
    /// No space for a single page.
    #[error("{segments} segments at this fill factor hold no user page")]
    NoPages {
        /// Number of segments.
        segments: u32,
    },
    /// A cleaning cycle of no segments.
    #[error("a cleaning cycle must clean at least 1 segment")]
    NoBatch,
    /// Pages are numbered in 31 bits.
    #[error(
        "{slots} page slots are more than the simulator's 2^31; use larger pages, a smaller device or fewer spare segments"
    )]
    TooLarge {
        /// Slots asked for.
        slots: f64,
    },
    /// The reserve leaves no obsolete space.
    #[error(
        "fill factor {fill} cannot be sustained: {segments} + {spare_segments} spare segments have no dead space left \
         beside a reserve of {clean_below} free segments; lower the fill factor or the reserve, or add spare segments"
    )]
    Reserve {
        /// Fill factor.
        fill: f64,
        /// Segments that the fill factor refers to.
        segments: u32,
        /// Spare segments.
        spare_segments: u32,
        /// Free segments that trigger cleaning.
        clean_below: u32,
    },
    /// Cleaning did not find enough obsolete space while running.
    #[error(
        "policy {policy} ran out of free segments after {updates} updates: {live_pages} live pages in {segments} \
         segments, and its {open} open segments, leave too little dead space; add spare segments"
    )]
    OutOfSpace {
        /// The policy.
        policy: &'static str,
        /// Updates done.
        updates: u64,
        /// Live pages.
        live_pages: u64,
        /// Segments in all.
        segments: u32,
        /// Segments open for writing.
        open: u32,
    },
    /// The workload is larger than the space.
    #[error(
        "the workload has {pages} pages, but {segments} segments at fill factor {fill} hold {capacity}"
    )]
    TooManyPages {
        /// Pages of the workload.
        pages: u32,
        /// Pages that fit.
        capacity: u32,
        /// Segments.
        segments: u32,
        /// Fill factor.
        fill: f64,
    },
    /// An oracle policy needs exact rates.
    #[error(
        "policy {policy} needs the exact update frequency of every page, which this workload does not have"
    )]
    NoRates {
        /// The policy.
        policy: &'static str,
    },
    /// The observer of the run ended it.
    #[error("the simulation was stopped")]
    Stopped,
    /// Unknown policy.
    #[error(transparent)]
    Policy(#[from] UnknownPolicy),
    /// Unknown workload.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
}

//! The simulated drive's shape, and its errors.

use super::timing::Timing;
use crate::policy::PolicyKind;
use crate::workload::Op;

/// The shape of a simulated SSD.
#[derive(Debug, Clone, PartialEq)]
pub struct FlashConfig {
    /// Bytes that the host sees; a multiple of `page_bytes`.
    pub user_bytes: u64,
    /// Bytes of a logical and flash page.
    pub page_bytes: u32,
    /// Bytes of a superblock, the unit of erasure (a block on every die); a multiple of
    /// `page_bytes`.
    pub block_bytes: u32,
    /// Share of the flash that the host does not see: 1 − user bytes / flash bytes, 1 − F in paper
    /// 003's terms.
    pub over_provisioning: f64,
    /// The cleaning policy.
    pub policy: PolicyKind,
    /// Pages that the volatile write cache holds; 0 writes through.
    pub cache_pages: u32,
    /// Free superblocks below which the drive cleans before it accepts a write.
    pub clean_below: u32,
    /// Superblocks cleaned at a time.
    pub clean_batch: u32,
    /// Static wear levelling: if a sealed superblock was erased this many times less often than the
    /// most worn one, its data moves and it is used again, at one in 16 erases. `None`: data that
    /// never changes keeps its superblocks.
    pub wear_difference_max: Option<u32>,
    /// Bytes that a power cut writes wholly or not at all; pages are torn between such sectors.
    /// From the page size on no page is torn.
    pub sector_bytes: u32,
    /// Seed of what power cuts leave.
    pub seed: u64,
    /// The timing model, if any; without it every operation takes no time.
    pub timing: Option<Timing>,
}

impl FlashConfig {
    /// A drive of `user_bytes` bytes with 4 KiB pages, 8 MiB superblocks, 12.5% over-provisioning,
    /// a write cache of 1,024 pages, cleaned by greedy one superblock at a time.
    pub fn new(user_bytes: u64) -> Self {
        Self {
            user_bytes,
            page_bytes: 4096,
            block_bytes: 8 << 20,
            over_provisioning: 0.125,
            policy: PolicyKind::Greedy,
            cache_pages: 1024,
            clean_below: 3,
            clean_batch: 1,
            wear_difference_max: None,
            sector_bytes: 4096,
            seed: 1,
            timing: None,
        }
    }

    /// Number of superblocks: enough for the user's bytes and the over-provisioned share.
    pub fn blocks(&self) -> u64 {
        let flash_bytes = self.user_bytes as f64 / (1.0 - self.over_provisioning);
        (flash_bytes / f64::from(self.block_bytes)).ceil() as u64
    }

    /// Superblocks beyond those that the user's bytes fill.
    pub fn spare_blocks(&self) -> u64 {
        let data_blocks = self.user_bytes.div_ceil(u64::from(self.block_bytes.max(1)));
        self.blocks().saturating_sub(data_blocks)
    }

    /// Number of logical pages.
    pub fn pages(&self) -> u64 {
        self.user_bytes / u64::from(self.page_bytes.max(1))
    }

    /// Checks the numbers against each other.
    ///
    /// # Errors
    /// Names the first that cannot be.
    pub fn check(&self) -> Result<(), FlashError> {
        let pages_fit = self.page_bytes > 0
            && self.block_bytes > 0
            && self.block_bytes.is_multiple_of(self.page_bytes)
            && self.user_bytes.is_multiple_of(u64::from(self.page_bytes));
        if !pages_fit || self.user_bytes == 0 {
            return Err(FlashError::SizesDoNotDivide {
                user_bytes: self.user_bytes,
                block_bytes: self.block_bytes,
                page_bytes: self.page_bytes,
            });
        }
        if self.sector_bytes == 0 {
            return Err(FlashError::Sector);
        }
        if !(self.over_provisioning > 0.0 && self.over_provisioning < 1.0) {
            return Err(FlashError::OverProvisioning {
                share: self.over_provisioning,
            });
        }
        if self.policy.needs_rates() {
            return Err(FlashError::Oracle {
                policy: self.policy.name(),
            });
        }
        let stride = u64::from(self.block_bytes / self.page_bytes)
            .next_power_of_two()
            .max(64);
        if self.blocks() * stride >= u64::from(Op::MAX_PAGES) {
            return Err(FlashError::TooLarge {
                user_bytes: self.user_bytes,
            });
        }
        let spare_blocks = self.spare_blocks();
        // The trigger, an open superblock for users and one for relocation, and some obsolete space
        // to find.
        let needed_blocks = u64::from(self.clean_below.max(2)) + 3;
        if self.clean_batch == 0 || spare_blocks < needed_blocks {
            return Err(FlashError::Reserve {
                spare_blocks,
                needed_blocks,
            });
        }
        if let Some(timing) = &self.timing {
            timing.check()?;
        }
        Ok(())
    }
}

/// Errors of a simulated drive.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FlashError {
    /// Sizes that are no multiples.
    #[error(
        "capacity {user_bytes} bytes and superblock size {block_bytes} bytes must be positive multiples of the page \
         size, {page_bytes} bytes"
    )]
    SizesDoNotDivide {
        /// Bytes that the host sees.
        user_bytes: u64,
        /// Bytes per superblock.
        block_bytes: u32,
        /// Bytes per page.
        page_bytes: u32,
    },
    /// Over-provisioning outside (0, 1).
    #[error("over-provisioning {share} must be a share of the flash above 0 and below 1")]
    OverProvisioning {
        /// The share.
        share: f64,
    },
    /// Sectors of nothing.
    #[error("a power cut must write whole sectors of at least 1 byte")]
    Sector,
    /// Pages are numbered in 31 bits.
    #[error("a drive of {user_bytes} bytes has more than 2^31 page slots; use larger pages")]
    TooLarge {
        /// Bytes that the host sees.
        user_bytes: u64,
    },
    /// Too little flash for the drive to clean itself.
    #[error(
        "{spare_blocks} spare superblocks cannot sustain cleaning, which needs {needed_blocks} and a batch of at least \
         1; raise the over-provisioning or the capacity, or use smaller superblocks"
    )]
    Reserve {
        /// Superblocks beyond the user's data.
        spare_blocks: u64,
        /// Superblocks that cleaning needs.
        needed_blocks: u64,
    },
    /// An oracle policy in a drive.
    #[error("policy {policy} needs exact update frequencies, which a drive cannot know")]
    Oracle {
        /// The policy.
        policy: &'static str,
    },
    /// A timing parameter that makes no sense.
    #[error("timing: {what} must be above 0")]
    Timing {
        /// The parameter.
        what: &'static str,
    },
    /// An operation beyond the end of the drive.
    #[error("page {page} is beyond the end of the drive, which has {pages} pages")]
    OutOfRange {
        /// First page of the operation that does not exist.
        page: u64,
        /// Pages of the drive.
        pages: u64,
    },
    /// A buffer that is not one page long.
    #[error("a page is {page_bytes} bytes, but the buffer has {buffer_bytes}")]
    BufferSize {
        /// Bytes per page.
        page_bytes: u32,
        /// Bytes of the buffer.
        buffer_bytes: usize,
    },
    /// Cleaning found no obsolete space. Checked configurations do not get here.
    #[error(
        "the drive found no superblock worth cleaning with {free_blocks} free superblocks left"
    )]
    NoSpace {
        /// Free superblocks.
        free_blocks: usize,
    },
    /// A saved state that no drive of the configuration can have.
    #[error("the drive's state contradicts itself: {reason}")]
    State {
        /// What does not fit.
        reason: String,
    },
}

//! The same share of idle space whatever the size of the device, the policy and its batch.
//!
//! What lies idle is no slack: free segments, what is not written yet of open ones, less what the
//! sort buffer holds instead of the device. Each of these is an absolute number of segments. On the
//! paper's device all of them together are a thousandth of it; on one of a few hundred segments
//! they would be more than the slack, and differ with the policy: one that cleans a segment at a
//! time keeps 16 fewer free than one that cleans 64. So while the first half of a run goes on, the
//! mean of what lies idle is measured, and as many spare segments are given.

use super::super::config::{SimConfig, SimError};
use super::{CleaningPolicy, Simulator};
use crate::log_space::OpenSegment;
use crate::policy::StreamId;
use crate::workload::Workload;

/// Part of the run from which on the mean is taken; before it, the space is still far from steady.
const SETTLED: u64 = super::SERIES / 4;

/// Spare segments that are not in use, and what decides how many should be.
#[derive(Debug, Default)]
pub(super) struct Reserve {
    /// Segments that are part of the table and not of the space.
    withheld: Vec<u32>,
    is_measuring: bool,
    /// Sum and number of samples of idle segments.
    sum: f64,
    samples: u64,
    /// Of the sort buffer that is being written: bytes of current versions, bytes of all, and those
    /// of them that are still to be written.
    live: u64,
    all: u64,
    left: u64,
}

impl Reserve {
    /// Segments that the table must have for a policy with so many streams that cleans so many
    /// segments at a time.
    pub(super) fn segments(config: &SimConfig, streams: u16, batch: usize) -> u32 {
        let idle = config.clean_below + (batch as u32).div_ceil(2) + u32::from(streams / 2);
        let spare = match config.matches_reserve {
            true => config.spare_segments.max(idle),
            false => config.spare_segments,
        };
        config.segments + spare
    }

    pub(super) fn new(config: &SimConfig, segments: u32) -> Reserve {
        Reserve {
            withheld: (config.segments + config.spare_segments..segments).collect(),
            is_measuring: config.matches_reserve,
            ..Reserve::default()
        }
    }

    /// A segment for a policy that needs more at once than lies idle on average.
    pub(super) fn lend(&mut self) -> Option<u32> {
        self.withheld.pop()
    }

    /// The sort buffer is about to be written: bytes of each version, and whether it is the current
    /// one.
    pub(super) fn begin_flush(&mut self, buffered: impl Iterator<Item = (u64, bool)>) {
        if !self.is_measuring {
            return;
        }
        let (mut live, mut all) = (0, 0);
        for (bytes, is_current) in buffered {
            all += bytes;
            live += if is_current { bytes } else { 0 };
        }
        (self.live, self.all, self.left) = (live, all, all);
    }

    /// Bytes of the sort buffer were written.
    #[inline]
    pub(super) fn flushed(&mut self, bytes: u64) {
        self.left = self.left.saturating_sub(bytes);
    }

    fn buffered(&self) -> f64 {
        self.live as f64 * self.left as f64 / (self.all as f64).max(1.0)
    }
}

impl<P: CleaningPolicy, W: Workload> Simulator<P, W> {
    /// Spare segments of now.
    pub(super) fn spare_segments(&self) -> u32 {
        self.log.table.len() - self.config.segments - self.reserve.withheld.len() as u32
    }

    /// A segment has room for the user again, after as much was cleaned as had to be: in the user's
    /// time one follows the other.
    pub(super) fn measure_idle(&mut self, stream: StreamId) {
        // Before the space was full once, free space says nothing.
        if !self.reserve.is_measuring || self.totals.cleaned_segments == 0 {
            return;
        }
        let bytes = f64::from(self.config.segment_bytes);
        let open = self.log.open.iter().filter(|open| !open.is_closed());
        let unwritten = |open: &OpenSegment| 1.0 - f64::from(open.used_bytes) / bytes;
        let all = self.log.free.len() as f64 + open.map(unwritten).sum::<f64>();
        // Until the user needs the next one, half of what is left of this one is still unwritten on
        // average.
        let idle = all - 0.5 * unwritten(&self.log.open[stream.index()]);
        self.reserve.sum += idle - self.reserve.buffered() / bytes;
        self.reserve.samples += 1;
    }

    /// Gives the space as many spare segments as lie idle, but for the share that would lie idle of
    /// the paper's device. A part of the run has ended.
    ///
    /// # Errors
    /// If the policy runs out of free segments.
    pub(super) fn match_reserve(&mut self, part: u64) -> Result<(), SimError> {
        let reserve = &mut self.reserve;
        if !reserve.is_measuring || reserve.samples == 0 {
            return Ok(());
        }
        let share = f64::from(self.config.segments) / f64::from(SimConfig::PAPER_SEGMENTS);
        let mean = reserve.sum / reserve.samples as f64;
        let wanted = (mean * (1.0 - share).max(0.0)).round().max(0.0) as u32;
        if part < SETTLED {
            (reserve.sum, reserve.samples) = (0.0, 0);
        }
        if part + 1 >= super::SERIES / 2 {
            reserve.is_measuring = false;
        }
        while self.spare_segments() < wanted
            && let Some(segment) = self.reserve.withheld.pop()
        {
            self.log.free.push_back(segment);
        }
        // The space shrinks: what is free stays as much as it was, and what is obsolete becomes
        // less.
        let level = self.log.free.len();
        while self.spare_segments() > wanted
            && let Some(segment) = self.log.free.pop_back()
        {
            self.reserve.withheld.push(segment);
            let mut cycles = 0;
            while self.log.free.len() < level {
                self.clean_once()?;
                cycles += 1;
                if cycles > super::CYCLES_MAX {
                    return Err(self.out_of_space());
                }
            }
        }
        Ok(())
    }
}

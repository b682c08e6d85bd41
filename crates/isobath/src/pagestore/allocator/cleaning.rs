//! Which segments are cleaned, how many, and when cleaning has nothing to gain.

use isobath_flash::policy::{SegmentId, SegmentState};

use super::{SegmentAllocator, chunk_waste, page_payload};
use crate::canary::{self, Canary};

/// Whether cleaning gains space: what it has moved since a user write got a place, since something
/// became free, or since something became obsolete.
///
/// Cleaning that has moved everything twice and has gained nothing would go on like that: it ends,
/// and the volume grows, or the writers that wait get the error that it is full.
#[derive(Default)]
pub(super) struct CleaningProgress {
    moved_bytes: u64,
    /// Live bytes in the volume when that began.
    live_bytes: u64,
    /// The most segments that were free since then.
    free_max: u32,
}

impl CleaningProgress {
    pub(super) fn moved(&mut self, bytes: u32) {
        self.moved_bytes += u64::from(bytes);
    }
}

/// A cleaner's next step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Victim {
    /// Clean this segment.
    Segment(u32),
    /// Wait: the segments that others clean need what is free, or nothing may become free.
    Wait,
    /// Nothing: no segment can be cleaned, or cleaning gains nothing.
    None,
}

/// How the cleaning of a segment ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CleaningEnd {
    /// Everything that lived there is elsewhere. The segment is free once no reader needs what was
    /// there.
    Emptied,
    /// Something in it could not be read: it is a bad segment.
    Bad,
}

/// A segment of which at most one part in this many is live is nearly empty.
const NEARLY_EMPTY: u32 = 4;

impl SegmentAllocator {
    /// Whether `segment` is sealed, and no write into it or read of it is under way.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn is_at_rest(&self, segment: u32) -> bool {
        self.table.state(SegmentId(segment)) == SegmentState::Sealed
            && self.busy[segment as usize] == 0
    }

    /// The sealed segment to clean next, which is not offered again. It stays
    /// pinned until [`SegmentAllocator::end_cleaning`], so that it is not filled again
    /// while it is being read.
    ///
    /// What lives in a victim fits one segment. So as long as no more victims
    /// are cleaned at a time than segments are free, and in reserve, every one of them finds
    /// space to the end. The reserve includes a checkpoint's share: a checkpoint that comes
    /// during that waits for them ([`SegmentAllocator::has_space_for_checkpoint`]), and no other
    /// victim is chosen until it has space.
    ///
    /// If the volume `is_full` beyond its fill factor, what is nearly empty comes first, though the
    /// policy may expect that the rest of it is soon obsolete, too.
    pub(crate) fn begin_cleaning(&mut self, is_full: bool) -> Victim {
        let none = match self.keeps_dead || self.cleaning > 0 {
            true => Victim::Wait,
            false => Victim::None,
        };
        let most = self.free_segments().min(self.kept());
        if self.keeps_dead || self.cleaning >= most || self.cleaning_makes_no_progress() {
            return none;
        }
        let mut victims = Vec::with_capacity(1);
        victims.extend(self.fenced_victim());
        if victims.is_empty() && is_full {
            victims.extend(self.nearly_empty());
        }
        if victims.is_empty() && self.progress.moved_bytes > self.live_bytes {
            // The policy's choice has moved everything once and gained nothing, as one may that
            // looks near the last write only: what is emptiest decides before cleaning ends.
            victims.extend(self.emptiest());
        } else if victims.is_empty() {
            self.policy
                .select_victims(&self.table, self.now, 1, &mut victims);
        }
        let Some(&victim) = victims.first() else {
            return none;
        };
        self.table.begin_cleaning(victim);
        self.cleaning += 1;
        self.pin(victim.0);
        Victim::Segment(victim.0)
    }

    /// Whether cleaning some segment moves next to nothing, as of those that merges of overlays
    /// leave.
    pub(crate) fn has_nearly_empty(&mut self) -> bool {
        self.nearly_empty().is_some()
    }

    fn nearly_empty(&mut self) -> Option<SegmentId> {
        let most = self.table.segment_bytes() / NEARLY_EMPTY;
        let emptiest = self.emptiest()?;
        let is_free_then = !self.keeps_dead && self.busy[emptiest.0 as usize] == 0;
        (is_free_then && self.table.live_bytes(emptiest) <= most).then_some(emptiest)
    }

    /// The sealed segment with the least live bytes, if it has any obsolete ones.
    fn emptiest(&mut self) -> Option<SegmentId> {
        let (table, busy, mut emptiest) = (&self.table, &self.busy, Vec::with_capacity(1));
        // Of what is read or kept for others nothing becomes free.
        let live = |segment: SegmentId| match busy[segment.0 as usize] {
            0 => table.live_bytes(segment),
            _ => u32::MAX,
        };
        self.by_live.select(table, 1, &mut emptiest, live);
        emptiest.first().copied()
    }

    /// Whether a segment is free beyond those that the victims under way may still need, one each.
    /// So many were free when they were chosen, user writes leave them as many, and so does a
    /// checkpoint as long as it can wait: they find space to the end, and then more is free.
    pub(crate) fn has_space_for_checkpoint(&self) -> bool {
        let kept = match canary::is_on(Canary::TakeSpaceOfVictims) {
            true => 0,
            false => self.cleaning,
        };
        self.free_segments() > kept
    }

    /// As [`SegmentAllocator::take_system`], but leaves what the victims under way need.
    pub(crate) fn take_for_checkpoint(&mut self) -> Option<u32> {
        if self.has_space_for_checkpoint() {
            self.take_system()
        } else {
            None
        }
    }

    /// Cleaning of `segment` has ended. A bad one stays as it is, and is not
    /// chosen again.
    pub(crate) fn end_cleaning(&mut self, segment: u32, end: CleaningEnd) {
        self.cleaning -= 1;
        if end == CleaningEnd::Bad {
            self.bad.insert(segment);
        }
        self.unpin(segment);
    }

    /// Victims that are being cleaned now.
    pub(crate) fn cleaning(&self) -> u32 {
        self.cleaning
    }

    /// Bad segments: those that cannot be cleaned, because a page in them is corrupt. Segments that
    /// were emptied and wait until no reader needs them are none.
    pub(crate) fn bad_segments(&self) -> u32 {
        let live =
            |segment: &&u32| self.table.state(SegmentId(**segment)) == SegmentState::Cleaning;
        self.bad.iter().filter(live).count() as u32
    }

    /// Something happened that may let cleaning gain space.
    pub(super) fn restart_progress(&mut self) {
        self.progress = CleaningProgress {
            moved_bytes: 0,
            live_bytes: self.live_bytes,
            free_max: self.free_segments(),
        };
    }

    /// Whether cleaning makes no progress: it has moved as much as lives here twice, and what its
    /// open segments hold, no user write got a place, nothing became obsolete, and no more segments
    /// are free than before.
    pub(super) fn cleaning_makes_no_progress(&mut self) -> bool {
        let progress = &self.progress;
        if self.live_bytes < progress.live_bytes || self.free_segments() > progress.free_max {
            self.restart_progress();
        }
        let slack = u64::from(self.streams()) * u64::from(self.segment_bytes());
        self.progress.moved_bytes > 2 * self.live_bytes + slack
            && !canary::is_on(Canary::CleanForNothing)
    }

    /// Spare segments up to which cleaning is worth while: a few more than
    /// `enough`, or most of what perfect packing would leave. Without the second
    /// bound a full volume would be cleaned without end, for space that is not there.
    pub(crate) fn cleaning_goal(&self, enough: u32) -> u32 {
        let worst_case_bytes = self.live_bytes + chunk_waste(self.live_chunk_bytes);
        let packed = worst_case_bytes.div_ceil(page_payload(self.segment_bytes()));
        let kept = u64::from(self.system_segments() + self.streams() + self.reserve);
        let reachable = u64::from(self.segments()).saturating_sub(packed + kept) as u32;
        enough.min(reachable - reachable / 4).max(1)
    }
}

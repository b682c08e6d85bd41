//! Which segments are cleaned, how many, and when cleaning has nothing to gain.

use isobath_flash::policy::{SegmentId, SegmentState};

use super::{Space, chunk_waste, page_payload};

/// What cleaning has done since something happened that may let it gain room.
#[derive(Default)]
pub(super) struct Effort {
    pub(super) moved_bytes: u64,
    /// What lived in the volume when that happened.
    live_bytes: u64,
}

impl Effort {
    pub(super) fn begin(&mut self, live_bytes: u64) {
        *self = Effort {
            moved_bytes: 0,
            live_bytes,
        };
    }
}

impl Space {
    /// The sealed segment to clean next, which is not offered again. It stays
    /// pinned until [`Space::end_cleaning`], so that it is not filled again
    /// while it is being read.
    ///
    /// What lives in a victim fits one segment. So as long as no more victims
    /// are cleaned at a time than segments are free, and in reserve, every one
    /// of them finds room to the end.
    ///
    /// `None` if there is no such segment, or if cleaning goes round in circles.
    pub(crate) fn begin_cleaning(&mut self) -> Option<u32> {
        if self.cleaning >= self.free_segments().min(self.kept()) || self.cleaning_is_futile() {
            return None;
        }
        let mut victims = Vec::with_capacity(1);
        self.policy
            .select_victims(&self.table, self.now, 1, &mut victims);
        let victim = victims.first()?;
        self.table.begin_cleaning(*victim);
        self.cleaning += 1;
        self.pin(victim.0);
        Some(victim.0)
    }

    /// Cleaning of `segment` has ended. If something in it could not be moved it
    /// stays as it is, and is not chosen again. Returns whether it became free.
    pub(crate) fn end_cleaning(&mut self, segment: u32) -> bool {
        self.cleaning -= 1;
        self.unpin(segment)
    }

    /// Victims that are being cleaned now.
    pub(crate) fn cleaning(&self) -> u32 {
        self.cleaning
    }

    /// Segments that cannot be cleaned, because a page in them is damaged.
    pub(crate) fn given_up(&self) -> u32 {
        let all = (0..self.segments()).map(SegmentId);
        let taken = all.filter(|&id| self.table.state(id) == SegmentState::Cleaning);
        (taken.count() as u32).saturating_sub(self.cleaning)
    }

    /// Whether cleaning goes round in circles: it has moved as much as lives here twice, nobody else got a place and nothing
    /// died meanwhile, and there are segments that it cannot clean.
    pub(super) fn cleaning_is_futile(&mut self) -> bool {
        if self.live_bytes < self.effort.live_bytes {
            self.effort.begin(self.live_bytes);
        }
        self.effort.moved_bytes > 2 * self.live_bytes && self.given_up() > 0
    }

    /// Spare segments up to which cleaning is worth while: a few more than
    /// `enough`, or most of what perfect packing would leave. Without the second
    /// bound a full volume would be cleaned for ever, for room that is not there.
    pub(crate) fn cleaning_goal(&self, enough: u32) -> u32 {
        let footprint = self.live_bytes + chunk_waste(self.live_chunk_bytes);
        let packed = footprint.div_ceil(page_payload(self.segment_bytes()));
        let kept = u64::from(self.system + self.streams() + self.reserve);
        let reachable = u64::from(self.segments()).saturating_sub(packed + kept) as u32;
        enough.min(reachable - reachable / 4).max(1)
    }
}

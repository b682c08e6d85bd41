//! What is known of segments: how fast the pages of each one die.

use super::super::{SegmentId, SegmentState, SegmentTable, Tick};

/// What its pages were expected to do counts like this many deaths observed in a segment.
const PRIOR_DEATHS: f32 = 16.0;
/// What counts at most: older observations fade as newer ones come, since the pages that are left die less.
const MAX_DEATHS: f32 = 64.0;

/// What is known of one segment. While it is open, `deaths` counts its pages, and `exposure` sums the rates expected.
#[derive(Debug, Clone, Copy, Default)]
struct Evidence {
    deaths: f32,
    /// Page-ticks in which they occurred.
    exposure: f32,
    /// Live pages at the last census.
    live: u32,
    at: Tick,
}

/// The death rates of segments: what was expected of their pages, corrected by what they do.
#[derive(Debug, Clone)]
pub(super) struct SegmentRates {
    evidence: Vec<Evidence>,
    /// Rate for segments of which nothing is known.
    mean: f32,
    slack: f32,
}

impl SegmentRates {
    /// Nothing is known yet, but that pages die at `mean` per tick.
    pub(super) fn new(mean: f32) -> Self {
        Self {
            evidence: Vec::new(),
            mean,
            slack: 0.0,
        }
    }

    fn of(&mut self, segment: SegmentId) -> &mut Evidence {
        if self.evidence.len() <= segment.index() {
            let evidence = Evidence::default();
            self.evidence.resize(segment.index() + 1, evidence);
        }
        &mut self.evidence[segment.index()]
    }

    /// A page that is expected to die at `rate` was appended to `segment`.
    #[inline]
    pub(super) fn appended(&mut self, segment: SegmentId, rate: f32) {
        let evidence = self.of(segment);
        evidence.exposure += rate;
        evidence.deaths += 1.0;
    }

    /// `segment` is full.
    pub(super) fn sealed(&mut self, table: &SegmentTable, segment: SegmentId) {
        let mean = self.mean;
        let evidence = self.of(segment);
        let pages = evidence.deaths;
        let rate = if pages > 0.0 {
            evidence.exposure / pages
        } else {
            mean
        };
        *evidence = Evidence {
            deaths: PRIOR_DEATHS,
            exposure: PRIOR_DEATHS / rate,
            live: table.live_pages(segment),
            at: table.sealed_at(segment),
        };
    }

    /// `segment` is free.
    pub(super) fn freed(&mut self, segment: SegmentId) {
        *self.of(segment) = Evidence::default();
    }

    /// Counts what died in every sealed segment since the last census.
    pub(super) fn census(&mut self, table: &SegmentTable, now: Tick) {
        self.slack = 0.0;
        for (i, evidence) in self.evidence.iter_mut().enumerate() {
            let segment = SegmentId(i as u32);
            if table.state(segment) != SegmentState::Sealed {
                continue;
            }
            self.slack += table.emptiness(segment);
            let live = table.live_pages(segment);
            let passed = now.saturating_sub(evidence.at) as f32;
            evidence.deaths += evidence.live.saturating_sub(live) as f32;
            evidence.exposure += 0.5 * (evidence.live + live) as f32 * passed;
            if evidence.deaths > MAX_DEATHS {
                let keep = MAX_DEATHS / evidence.deaths;
                evidence.deaths *= keep;
                evidence.exposure *= keep;
            }
            (evidence.live, evidence.at) = (live, now);
        }
    }

    /// Dead space in sealed segments, in segments, at the last census.
    pub(super) fn slack(&self) -> f32 {
        self.slack
    }

    /// Deaths per live page and tick in `segment`.
    #[inline]
    pub(super) fn rate(&self, segment: SegmentId) -> f32 {
        match self.evidence.get(segment.index()) {
            Some(evidence) if evidence.exposure > 0.0 => evidence.deaths / evidence.exposure,
            _ => self.mean,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{History, StreamId};

    #[test]
    fn expectations_give_way_to_what_is_seen() {
        let mut table = SegmentTable::new(1, 1000);
        let mut rates = SegmentRates::new(0.5);
        let segment = SegmentId(0);
        assert_eq!(rates.rate(segment), 0.5);
        table.open(segment, StreamId(0));
        for _ in 0..1000 {
            table.append(segment, 1, History::UNKNOWN);
            rates.appended(segment, 0.01);
        }
        table.seal(segment, 0);
        rates.sealed(&table, segment);
        assert!((rates.rate(segment) - 0.01).abs() < 1e-6);
        // Pages die ten times less often than expected.
        for step in 1..=20 {
            for _ in 0..10 {
                table.invalidate(segment, 1);
            }
            rates.census(&table, 10 * step);
        }
        let rate = rates.rate(segment);
        assert!((0.0009..0.0016).contains(&rate), "{rate}");
        assert!((rates.slack() - 0.2).abs() < 1e-3);
        rates.freed(segment);
        assert_eq!(rates.rate(segment), 0.5);
    }
}

//! Statistics of segments: how fast the pages of each one die.

use super::super::{History, SegmentId, SegmentState, SegmentTable, Tick};
use super::pages::PageLives;
use super::tag::{BUCKETS, Tag, UNKNOWN_CELL, mean_interval};
use crate::rng::Rng;

/// The expectation of a segment's pages counts like this many deaths observed in it.
const PRIOR_DEATHS: f32 = 16.0;
/// The most deaths that count: older observations fade as newer ones come, since the remaining
/// pages die less.
const MAX_DEATHS: f32 = 64.0;

/// Deaths between two censuses count up to this many times those expected, and these more.
const BURST_SHARE: f32 = 4.0;
const BURST_DEATHS: f32 = 4.0;
/// Pages of a segment that are followed.
const SAMPLE: usize = 16;
/// Each segment's sample is looked at in one of this many censuses.
const FORECAST_EVERY: usize = 4;
/// The expectation of a segment's pages counts if it is this many times the observation: they are
/// about to die together. Otherwise the observation is the better estimate.
const FORECAST_FACTOR: f32 = 2.0;

/// A page that was appended to a segment.
#[derive(Debug, Clone, Copy, Default)]
struct Sampled {
    tag: LowHistory,
    /// Age when it was appended, in units.
    age: u32,
}

/// The low four bytes of a page's history.
type LowHistory = u32;

/// The evidence of one segment.
#[derive(Debug, Clone, Default)]
struct Evidence {
    /// Pages appended, and the sum of the rates expected of them then.
    appended: u32,
    rates: f32,
    /// Some of them, drawn by chance.
    sample: Vec<Sampled>,
    /// Deaths observed since, and the page-ticks in which they occurred.
    deaths: f32,
    exposure: f32,
    /// Live pages at the last census, and when that was.
    live: u32,
    at: Tick,
    /// The death rate expected of those left.
    expected: f32,
    /// Deaths per live page and tick, by the last census.
    rate: Option<f32>,
}

/// The death rates of segments: the expectation of their pages when they were written, corrected
/// by what they do.
///
/// Pages of one segment may be of several kinds: some die one by one, others all together when they
/// reach an age, as those that are rewritten in order do. Then what was observed says nothing of
/// what is about to happen, and such a segment would be cleaned just before half of it dies. So a
/// sample of its pages is followed: if those that are probably left are expected to die much
/// sooner, at their age, than what was observed says, that counts.
#[derive(Debug, Clone)]
pub(super) struct SegmentRates {
    evidence: Vec<Evidence>,
    /// Rate for segments of which nothing is known.
    mean: f32,
    slack: f32,
    censuses: usize,
    rng: Rng,
}

impl SegmentRates {
    /// Nothing is known yet, but that pages die at `mean` per tick.
    pub(super) fn new(mean: f32) -> Self {
        Self {
            evidence: Vec::new(),
            mean,
            slack: 0.0,
            censuses: 0,
            rng: Rng::new(1),
        }
    }

    fn of(&mut self, segment: SegmentId) -> &mut Evidence {
        if self.evidence.len() <= segment.index() {
            let evidence = Evidence::default();
            self.evidence.resize(segment.index() + 1, evidence);
        }
        &mut self.evidence[segment.index()]
    }

    /// A page that is expected to die at `rate` was appended to `segment` at unit `now`.
    #[inline]
    pub(super) fn appended(&mut self, segment: SegmentId, rate: f32, page: Option<Tag>, now: u64) {
        let evidence = self.of(segment);
        evidence.rates += rate;
        evidence.appended += 1;
        let Some(tag) = page else { return };
        let seen = evidence.appended;
        let sampled = Sampled {
            tag: tag.pack().0 as u32,
            age: tag.age(now),
        };
        if evidence.sample.len() < SAMPLE {
            evidence.sample.push(sampled);
            return;
        }
        // Each page so far is in the sample with the same probability.
        let place = self.rng.below(seen) as usize;
        if place < SAMPLE {
            self.of(segment).sample[place] = sampled;
        }
    }

    /// `segment` is full.
    pub(super) fn sealed(&mut self, table: &SegmentTable, segment: SegmentId) {
        let evidence = self.of(segment);
        if evidence.appended > 0 {
            let rate = evidence.rates / evidence.appended as f32;
            evidence.deaths = PRIOR_DEATHS;
            evidence.exposure = PRIOR_DEATHS / rate;
            evidence.live = table.live_pages(segment);
            evidence.at = table.sealed_at(segment);
            evidence.rate = Some(rate);
        }
    }

    /// The pages of `segment` are from before the space was opened at `now`, in unit `unit`: all
    /// are taken for pages of `tag` that die at `rate` per tick.
    pub(super) fn restored(
        &mut self,
        table: &SegmentTable,
        segment: SegmentId,
        (rate, tag): (f32, Tag),
        (now, unit): (Tick, u64),
    ) {
        let live = table.live_pages(segment);
        let sampled = Sampled {
            tag: tag.pack().0 as u32,
            age: tag.age(unit),
        };
        *self.of(segment) = Evidence {
            appended: live,
            rates: rate * live as f32,
            deaths: PRIOR_DEATHS,
            exposure: PRIOR_DEATHS / rate,
            live,
            at: now,
            rate: Some(rate),
            sample: vec![sampled],
            ..Evidence::default()
        };
    }

    /// Units, at unit `now`, since the last update but one of the pages of `segment`, on average;
    /// `None` if nothing is known of them. Of pages that were written once it is assumed that the
    /// first half of this time has passed.
    pub(super) fn since_last_but_one(&self, segment: SegmentId, now: u64) -> Option<f32> {
        let sample = &self.evidence.get(segment.index())?.sample;
        let since = |sampled: &Sampled| {
            let tag = Tag::unpack(History(u64::from(sampled.tag)));
            let age = tag.age(now) as f32;
            match tag.cell % BUCKETS {
                UNKNOWN_CELL => 2.0 * age,
                bucket => age + mean_interval(bucket),
            }
        };
        let sum: f32 = sample.iter().map(since).sum();
        (!sample.is_empty()).then(|| sum / sample.len() as f32)
    }

    /// `segment` is free.
    pub(super) fn freed(&mut self, segment: SegmentId) {
        *self.of(segment) = Evidence::default();
    }

    /// Counts the pages that died in every sealed segment since the last census.
    pub(super) fn census(&mut self, table: &SegmentTable, lives: &PageLives, now: Tick, unit: u64) {
        self.slack = 0.0;
        self.censuses += 1;
        for (i, evidence) in self.evidence.iter_mut().enumerate() {
            let segment = SegmentId(i as u32);
            if table.state(segment) != SegmentState::Sealed {
                continue;
            }
            self.slack += table.emptiness(segment);
            if evidence.appended > 0 {
                evidence.observe(table.live_pages(segment), now);
                if (i + self.censuses).is_multiple_of(FORECAST_EVERY) {
                    evidence.expected = evidence.forecast(lives, unit);
                }
                let observed = evidence.deaths / evidence.exposure;
                let is_near = evidence.expected > FORECAST_FACTOR * observed;
                evidence.rate = Some(if is_near { evidence.expected } else { observed });
            }
        }
    }

    /// Obsolete space in sealed segments, in segments, at the last census.
    pub(super) fn slack(&self) -> f32 {
        self.slack
    }

    /// Deaths per live page and tick in `segment`.
    #[inline]
    pub(super) fn rate(&self, segment: SegmentId) -> f32 {
        let evidence = self.evidence.get(segment.index());
        evidence
            .and_then(|evidence| evidence.rate)
            .unwrap_or(self.mean)
    }
}

impl Evidence {
    /// `live` pages live at `now`: counts those that died since the last time. Deaths far beyond
    /// what is expected are counted in part only: pages that die together say nothing of the
    /// others. If all pages die faster than was expected, the expectation rises from census to
    /// census.
    fn observe(&mut self, live: u32, now: Tick) {
        let lived = 0.5 * (self.live + live) as f32 * now.saturating_sub(self.at) as f32;
        let died = self.live.saturating_sub(live) as f32;
        let expected = self.deaths / self.exposure * lived;
        self.deaths += died.min(BURST_SHARE * expected + BURST_DEATHS);
        self.exposure += lived;
        if self.deaths > MAX_DEATHS {
            let keep = MAX_DEATHS / self.deaths;
            self.deaths *= keep;
            self.exposure *= keep;
        }
        (self.live, self.at) = (live, now);
    }

    /// The death rate that is expected at unit `now` of the pages that are probably left.
    fn forecast(&self, lives: &PageLives, now: u64) -> f32 {
        let (mut left, mut rates) = (0.0, 0.0);
        for sampled in &self.sample {
            let tag = Tag::unpack(History(u64::from(sampled.tag)));
            let risk = lives.risk(tag.cell, tag.age(now)) - lives.risk(tag.cell, sampled.age);
            let survives = (-risk.max(0.0)).exp();
            left += survives;
            rates += survives * lives.rate(tag.cell, tag.age(now));
        }
        match left > 0.0 {
            true => rates / left,
            false => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::StreamId;
    use crate::policy::life_table::epochs::EpochLength;

    #[test]
    fn expectations_give_way_to_what_is_seen() {
        let mut table = SegmentTable::new(1, 1000);
        let mut rates = SegmentRates::new(0.5);
        let lives = PageLives::new(1000, EpochLength::new(1000, 1));
        let segment = SegmentId(0);
        assert_eq!(rates.rate(segment), 0.5);
        table.open(segment, StreamId(0));
        for _ in 0..1000 {
            table.append(segment, 1, History::UNKNOWN);
            rates.appended(segment, 0.01, None, 0);
        }
        table.seal(segment, 0);
        rates.sealed(&table, segment);
        assert!((rates.rate(segment) - 0.01).abs() < 1e-6);
        // Pages die ten times less often than expected.
        for step in 1..=20 {
            for _ in 0..10 {
                table.invalidate(segment, 1);
            }
            rates.census(&table, &lives, 10 * step, 0);
        }
        let rate = rates.rate(segment);
        // Measured 0.00119: what was expected counts as one more death.
        assert!((0.0011..0.0013).contains(&rate), "{rate}");
        assert!((rates.slack() - 0.2).abs() < 1e-6);
        rates.freed(segment);
        assert_eq!(rates.rate(segment), 0.5);
    }

    /// Half of the pages die together; those that are left are not taken for as short-lived.
    #[test]
    fn a_burst_of_deaths_says_little_of_the_survivors() {
        let mut table = SegmentTable::new(1, 512);
        let mut rates = SegmentRates::new(1e-5);
        let lives = PageLives::new(100_000, EpochLength::new(100_000, 48));
        let segment = SegmentId(0);
        table.open(segment, StreamId(0));
        for _ in 0..512 {
            table.append(segment, 1, History::UNKNOWN);
            rates.appended(segment, 1e-5, None, 0);
        }
        table.seal(segment, 0);
        rates.sealed(&table, segment);
        for census in 1..=10 {
            if census == 8 {
                (0..256).for_each(|_| table.invalidate(segment, 1));
            }
            (0..4).for_each(|_| table.invalidate(segment, 1));
            rates.census(&table, &lives, 800 * census, 0);
        }
        let rate = rates.rate(segment) * 1e5;
        // Measured 1.34.
        assert!((1.3..1.4).contains(&rate), "{rate} times what was expected");
    }
}

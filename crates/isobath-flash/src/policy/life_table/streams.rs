//! Which pages go together: ranges of scores, and how many of them are worth having.

use super::pages::{SCORES, SCORES_PER_OCTAVE};

/// Streams at most.
pub(super) const STREAMS: u16 = 16;
/// Pages of rates that differ cost more to clean together than apart: this share more per unit of
/// variance of the logarithm to base 2 of their rates. Section 3 gives 0.12 to 0.2 at F = 0.8 for
/// exact rates; scores are estimates, and pages that chance put into another range gain nothing
/// there. Between 0.02 and 0.05 results differ by 1%.
const COST_PER_VARIANCE: f32 = 0.03;
/// A stream's open segment is half empty on average; that much less obsolete space costs this share
/// more, relative to it.
const COST_PER_SLACK: f32 = 0.65;

/// Ranges of scores, one per stream, the hottest first.
#[derive(Debug, Clone)]
pub(super) struct Streams {
    /// Per score, pages placed lately.
    placed: Vec<f32>,
    stream_of: Vec<u16>,
    /// Streams in use.
    count: u16,
    /// Bit s: stream s has pages in an open segment.
    open: u32,
}

/// A range of scores, and the gain of splitting it at its best place.
#[derive(Debug, Clone, Copy)]
struct Range {
    from: usize,
    to: usize,
    split: usize,
    gain: f32,
}

/// Sums over all scores below each one: pages, pages × score, in octaves.
struct Sums(Vec<(f32, f32)>);

impl Sums {
    fn new(placed: &[f32]) -> Self {
        let mut sums = vec![(0.0, 0.0)];
        let (mut pages, mut octaves) = (0.0, 0.0);
        for (score, placed) in placed.iter().enumerate() {
            pages += placed;
            octaves += placed * score as f32 / SCORES_PER_OCTAVE;
            sums.push((pages, octaves));
        }
        Self(sums)
    }

    fn pages(&self) -> f32 {
        self.0[SCORES].0
    }

    /// Pages in `from..to`, and their mean score in octaves.
    fn mean(&self, from: usize, to: usize) -> (f32, f32) {
        let (low, high) = (self.0[from], self.0[to]);
        let pages = high.0 - low.0;
        (pages, (high.1 - low.1) / pages.max(f32::MIN_POSITIVE))
    }

    /// The range with its best split: where the variance between both parts is largest.
    fn range(&self, from: usize, to: usize) -> Range {
        let mut best = Range {
            from,
            to,
            split: from,
            gain: 0.0,
        };
        for split in from + 1..to {
            let ((a, low), (b, high)) = (self.mean(from, split), self.mean(split, to));
            if a > 0.0 && b > 0.0 {
                let between = a * b / (a + b) * (high - low) * (high - low);
                let gain = between / self.pages();
                if gain > best.gain {
                    (best.split, best.gain) = (split, gain);
                }
            }
        }
        best
    }
}

impl Streams {
    /// One stream for all.
    pub(super) fn new() -> Self {
        Self {
            placed: vec![0.0; SCORES],
            stream_of: vec![0; SCORES],
            count: 1,
            open: 0,
        }
    }

    /// Divides the scores again, in a space with `slack` segments' worth of obsolete space: splits
    /// the range in which it gains most, as long as that is worth the segment that one more stream
    /// keeps open.
    pub(super) fn divide(&mut self, slack: f32) {
        let sums = Sums::new(&self.placed);
        let worth = COST_PER_SLACK / (COST_PER_VARIANCE * slack.max(1.0));
        let mut ranges = vec![sums.range(0, SCORES)];
        while ranges.len() < usize::from(STREAMS) {
            let best = (0..ranges.len()).max_by(|&a, &b| ranges[a].gain.total_cmp(&ranges[b].gain));
            let Some(best) = best.filter(|&best| ranges[best].gain > worth) else {
                break;
            };
            let Range {
                from, to, split, ..
            } = ranges.swap_remove(best);
            ranges.push(sums.range(from, split));
            ranges.push(sums.range(split, to));
        }
        ranges.sort_by_key(|range| range.from);
        for (stream, range) in ranges.iter().enumerate() {
            self.stream_of[range.from..range.to].fill(stream as u16);
        }
        self.count = ranges.len() as u16;
    }

    /// A share `keeps` remains of the counts of placed pages.
    pub(super) fn fade(&mut self, keeps: f32) {
        self.placed.iter_mut().for_each(|placed| *placed *= keeps);
    }

    /// The stream for a page of `score`; `apart` is false if all pages are alike.
    #[inline]
    pub(super) fn place(&mut self, score: u8, apart: bool) -> u16 {
        self.placed[usize::from(score)] += 1.0;
        let (wanted, count) = match apart {
            true => (self.stream_of[usize::from(score)], self.count),
            false => (0, 1),
        };
        // Streams that are no longer in use get the coldest pages until their segments are full.
        let leftover = self.open >> count << count;
        let stream = match leftover {
            left if left != 0 && wanted + 1 == count => left.trailing_zeros() as u16,
            _ => wanted,
        };
        self.open |= 1 << stream;
        stream
    }

    /// The open segment of `stream` is full.
    pub(super) fn sealed(&mut self, stream: u16) {
        self.open &= !(1 << stream.min(STREAMS));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divided(slack: f32, scores: impl Iterator<Item = (u8, u32)>) -> Streams {
        let mut streams = Streams::new();
        for (score, pages) in scores {
            for _ in 0..pages {
                streams.place(score, false);
            }
        }
        streams.divide(slack);
        streams
    }

    #[test]
    fn two_kinds_of_pages_get_two_streams_however_much_space_there_is() {
        let two = divided(10_000.0, [(70, 5000), (100, 3000)].into_iter());
        assert_eq!(two.count, 2);
        assert_ne!(two.stream_of[70], two.stream_of[100]);
    }

    #[test]
    fn many_kinds_get_as_many_streams_as_space_is_worth() {
        let spread = || (40..150).map(|score| (score, 100));
        let counts = [5.0, 50.0, 200.0, 5000.0].map(|slack| divided(slack, spread()).count);
        assert!(counts.is_sorted(), "{counts:?}");
        assert!(
            counts[0] <= 2 && counts[1] >= 3 && counts[3] >= 12,
            "{counts:?}"
        );
        let streams = divided(200.0, spread());
        assert!(streams.stream_of.is_sorted(), "the hottest first");
    }

    #[test]
    fn segments_of_streams_that_went_out_of_use_are_filled_up() {
        let mut streams = divided(10_000.0, [(70, 5000), (100, 3000)].into_iter());
        assert_eq!(streams.place(100, true), 1);
        assert_eq!(streams.place(70, true), 0);
        assert_eq!(streams.place(70, false), 1, "filled up first");
        streams.sealed(1);
        assert_eq!(streams.place(70, false), 0);
    }
}

//! The owner's table of segments in a log-structured space (section 5.1.1), and its bookkeeping.

use super::{History, HistoryKind, Tick};

/// Index of a segment in its space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(pub u32);

impl SegmentId {
    /// The id as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Index of a stream: a sequence of segments that are filled one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u16);

impl StreamId {
    /// The id as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The life of a segment: free, open, sealed, being cleaned, free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum SegmentState {
    /// Holds nothing.
    #[default]
    Free,
    /// Receives the pages of one stream.
    Open,
    /// Full; pages in it only become obsolete. Only such segments are selected for cleaning.
    Sealed,
    /// Selected as a victim; its live pages are being moved.
    Cleaning,
}

/// One segment's record.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SegmentRecord {
    /// Bytes of current pages, B − A of section 5.1.
    pub live_bytes: u32,
    /// Current pages, C of section 5.1.
    pub live_pages: u32,
    /// Mean history of the pages at the time when they were written: u_p2 of section 5.2.2 for the
    /// MDC family.
    pub history: History,
    /// Update clock when the segment was sealed.
    pub sealed_at: Tick,
    /// Position in the sequence of all seals; older segments have smaller numbers.
    pub seal_seq: u64,
    /// The stream that filled the segment.
    pub stream: StreamId,
    /// The segment's state.
    pub state: SegmentState,
}

/// Live bytes and pages: the part that changes on every page write, kept apart so that it stays in
/// cache.
#[derive(Debug, Clone, Copy, Default)]
struct Live {
    bytes: u32,
    pages: u32,
}

#[derive(Debug, Clone, Copy)]
struct Rest {
    /// The sum of the known histories of `known` pages, relative to `base`.
    history: u64,
    base: u64,
    known: u32,
    stream: StreamId,
    sealed_at: Tick,
    seal_seq: u64,
}

/// Stands for the mean history of an open segment. A tick never gets there.
const OPEN: u64 = u64::MAX - 1;

const FRESH: Rest = Rest {
    history: 0,
    base: 0,
    known: 0,
    stream: StreamId(0),
    sealed_at: 0,
    seal_seq: 0,
};

/// The records of all segments of one space. All segments that are filled have the same size.
#[derive(Debug, Clone)]
pub struct SegmentTable {
    segment_bytes: u32,
    live: Vec<Live>,
    states: Vec<SegmentState>,
    /// Mean history of sealed segments; `OPEN` while it still changes.
    means: Vec<u64>,
    rest: Vec<Rest>,
    next_seq: u64,
    /// Whether a segment's history is the largest of its pages' instead of their mean.
    newest: bool,
}

impl SegmentTable {
    /// A table of `segments` free segments of `segment_bytes` bytes each.
    pub fn new(segments: u32, segment_bytes: u32) -> Self {
        let mut table = Self {
            segment_bytes,
            live: Vec::new(),
            states: Vec::new(),
            means: Vec::new(),
            rest: Vec::new(),
            next_seq: 0,
            newest: false,
        };
        table.grow(segments);
        table
    }

    /// The same table, keeping of the histories of a segment's pages what `kind` asks for.
    #[must_use]
    pub fn keeping(mut self, kind: HistoryKind) -> Self {
        self.newest = kind == HistoryKind::SegmentNewest;
        self
    }

    /// Adds free segments until there are `segments`; never shrinks.
    pub fn grow(&mut self, segments: u32) {
        let n = (segments as usize).max(self.live.len());
        self.live.resize(n, Live::default());
        self.states.resize(n, SegmentState::Free);
        self.means.resize(n, History::UNKNOWN.0);
        self.rest.resize(n, FRESH);
    }

    /// Number of segments, in whatever state.
    pub fn len(&self) -> u32 {
        self.live.len() as u32
    }

    /// True if there is no segment at all.
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// The sequence number that the next sealed segment gets.
    pub fn next_seal_seq(&self) -> u64 {
        self.next_seq
    }

    /// B: bytes per segment.
    pub fn segment_bytes(&self) -> u32 {
        self.segment_bytes
    }

    /// Bytes of current pages in `segment`.
    #[inline]
    pub fn live_bytes(&self, segment: SegmentId) -> u32 {
        self.live[segment.index()].bytes
    }

    /// Number of current pages in `segment`.
    #[inline]
    pub fn live_pages(&self, segment: SegmentId) -> u32 {
        self.live[segment.index()].pages
    }

    /// E: the share of `segment` without current data, 0 to 1.
    #[inline]
    pub fn emptiness(&self, segment: SegmentId) -> f32 {
        1.0 - self.live_bytes(segment) as f32 / self.segment_bytes as f32
    }

    /// The state of `segment`.
    #[inline]
    pub fn state(&self, segment: SegmentId) -> SegmentState {
        self.states[segment.index()]
    }

    /// The stream that fills or filled `segment`.
    #[inline]
    pub fn stream(&self, segment: SegmentId) -> StreamId {
        self.rest[segment.index()].stream
    }

    /// Update clock when `segment` was sealed.
    #[inline]
    pub fn sealed_at(&self, segment: SegmentId) -> Tick {
        self.rest[segment.index()].sealed_at
    }

    /// Position of `segment` in the sequence of seals.
    #[inline]
    pub fn seal_seq(&self, segment: SegmentId) -> u64 {
        self.rest[segment.index()].seal_seq
    }

    /// The mean history of the pages written to `segment`, which every page in it inherits (section
    /// 5.2.2), or the largest ([`SegmentTable::keeping`]). [`History::UNKNOWN`] if none was known.
    #[inline]
    pub fn history(&self, segment: SegmentId) -> History {
        match self.means[segment.index()] {
            OPEN => History(mean(&self.rest[segment.index()])),
            mean => History(mean),
        }
    }

    /// Everything about `segment`.
    pub fn record(&self, segment: SegmentId) -> SegmentRecord {
        let (live, rest) = (&self.live[segment.index()], &self.rest[segment.index()]);
        SegmentRecord {
            live_bytes: live.bytes,
            live_pages: live.pages,
            history: self.history(segment),
            sealed_at: rest.sealed_at,
            seal_seq: rest.seal_seq,
            stream: rest.stream,
            state: self.state(segment),
        }
    }

    /// Installs a record as it was before a restart. Later seals get higher sequence numbers.
    pub fn restore(&mut self, segment: SegmentId, record: &SegmentRecord) {
        let i = segment.index();
        self.live[i] = Live {
            bytes: record.live_bytes,
            pages: record.live_pages,
        };
        self.states[i] = record.state;
        let known = u32::from(record.history.is_known());
        let base = match record.history {
            History::UNKNOWN => 0,
            History(mean) => mean,
        };
        self.means[i] = match record.state {
            SegmentState::Open => OPEN,
            _ => record.history.0,
        };
        self.rest[i] = Rest {
            history: 0,
            base,
            known,
            stream: record.stream,
            sealed_at: record.sealed_at,
            seal_seq: record.seal_seq,
        };
        self.next_seq = self.next_seq.max(record.seal_seq + 1);
    }

    /// A free segment becomes the open segment of `stream`.
    ///
    /// # Panics
    /// If it is not free: two streams would write the same place.
    pub fn open(&mut self, segment: SegmentId, stream: StreamId) {
        let i = segment.index();
        assert_eq!(
            self.states[i],
            SegmentState::Free,
            "segment {i} is opened while in use"
        );
        self.states[i] = SegmentState::Open;
        self.live[i] = Live::default();
        self.means[i] = OPEN;
        self.rest[i] = Rest { stream, ..FRESH };
    }

    /// A current page of `bytes` bytes was appended to an open segment.
    #[inline]
    pub fn append(&mut self, segment: SegmentId, bytes: u32, history: History) {
        self.append_run(segment, bytes, 1, history);
    }

    /// `pages` current pages of `bytes` bytes each, all of one history, were appended to an open
    /// segment.
    #[inline]
    pub fn append_run(&mut self, segment: SegmentId, bytes: u32, pages: u32, history: History) {
        debug_assert_eq!(self.state(segment), SegmentState::Open);
        let live = &mut self.live[segment.index()];
        live.bytes += pages * bytes;
        live.pages += pages;
        debug_assert!(live.bytes <= self.segment_bytes);
        self.note_histories(segment, history, pages);
    }

    /// Counts `history` into the mean of an open segment `pages` times; see
    /// [`SegmentTable::note_history`].
    #[inline]
    fn note_histories(&mut self, segment: SegmentId, history: History, pages: u32) {
        if history.is_known() && pages > 0 {
            let rest = &mut self.rest[segment.index()];
            if rest.known == 0 {
                rest.base = history.0;
            }
            if self.newest {
                rest.known = 1;
                rest.base = rest.base.max(history.0);
                return;
            }
            rest.known += pages;
            let difference = history.0.wrapping_sub(rest.base);
            rest.history = rest
                .history
                .wrapping_add(difference.wrapping_mul(u64::from(pages)));
        }
    }

    /// Counts `history` into the mean of an open segment without adding a live page: a page that
    /// was overwritten before it reached the segment.
    #[inline]
    pub fn note_history(&mut self, segment: SegmentId, history: History) {
        self.note_histories(segment, history, 1);
    }

    /// A current page of `bytes` bytes in an open, sealed or cleaning segment was overwritten,
    /// trimmed or moved.
    #[inline]
    pub fn invalidate(&mut self, segment: SegmentId, bytes: u32) {
        let live = &mut self.live[segment.index()];
        debug_assert!(
            live.bytes >= bytes && live.pages > 0,
            "more bytes become obsolete than are live in segment {}",
            segment.0
        );
        live.bytes -= bytes;
        live.pages -= 1;
    }

    /// An open segment is full, or is closed early: its unused tail counts as empty.
    pub fn seal(&mut self, segment: SegmentId, now: Tick) {
        let i = segment.index();
        debug_assert_eq!(self.states[i], SegmentState::Open);
        self.states[i] = SegmentState::Sealed;
        let rest = &mut self.rest[i];
        self.means[i] = mean(rest);
        rest.sealed_at = now;
        rest.seal_seq = self.next_seq;
        self.next_seq += 1;
    }

    /// A sealed segment was chosen as a victim: it is not offered to the policy again.
    pub fn begin_cleaning(&mut self, segment: SegmentId) {
        debug_assert_eq!(self.state(segment), SegmentState::Sealed);
        self.states[segment.index()] = SegmentState::Cleaning;
    }

    /// All pages of the segment are gone; it can be opened again.
    pub fn free(&mut self, segment: SegmentId) {
        let i = segment.index();
        self.states[i] = SegmentState::Free;
        self.live[i] = Live::default();
        self.means[i] = History::UNKNOWN.0;
        self.rest[i] = FRESH;
    }
}

/// Mean of the histories counted so far, [`History::UNKNOWN`] if there are none. Differences from
/// `base` are signed and wrap, so the sum is exact as long as 2³² pages differ by less than 2³¹
/// ticks each.
fn mean(rest: &Rest) -> u64 {
    if rest.known == 0 {
        return History::UNKNOWN.0;
    }
    rest.base
        .wrapping_add_signed(rest.history.cast_signed() / i64::from(rest.known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_counts_and_emptiness_follow_appends_and_deaths() {
        let mut table = SegmentTable::new(2, 1000);
        let s = SegmentId(1);
        table.open(s, StreamId(3));
        table.append(s, 400, History(10));
        table.append(s, 100, History(30));
        table.seal(s, 50);
        assert_eq!((table.live_bytes(s), table.live_pages(s)), (500, 2));
        assert!((table.emptiness(s) - 0.5).abs() < 1e-6);
        table.invalidate(s, 400);
        assert_eq!((table.live_bytes(s), table.live_pages(s)), (100, 1));
        let record = table.record(s);
        assert_eq!(record.stream, StreamId(3));
        assert_eq!(record.sealed_at, 50);
        assert_eq!(
            record.history,
            History(20),
            "the mean of the histories at write time"
        );
        table.free(s);
        assert_eq!(table.state(s), SegmentState::Free);
        assert_eq!(table.live_bytes(s), 0);
    }

    #[test]
    fn mean_history_ignores_unknown_and_handles_histories_below_the_first() {
        let mut table = SegmentTable::new(1, 1000);
        let s = SegmentId(0);
        table.open(s, StreamId(0));
        assert_eq!(table.history(s), History::UNKNOWN);
        table.append(s, 1, History::UNKNOWN);
        table.append(s, 1, History(100));
        table.append(s, 1, History(40));
        assert_eq!(
            table.history(s),
            History(70),
            "also while the segment is open"
        );
        table.seal(s, 9);
        assert_eq!(table.history(s), History(70));
    }

    #[test]
    fn a_segment_can_have_the_history_of_its_youngest_page() {
        let mut table = SegmentTable::new(1, 1000).keeping(HistoryKind::SegmentNewest);
        let s = SegmentId(0);
        table.open(s, StreamId(0));
        for history in [History(40), History::UNKNOWN, History(100), History(7)] {
            table.append(s, 1, history);
        }
        table.seal(s, 200);
        assert_eq!(table.history(s), History(100));
    }

    #[test]
    fn restored_segments_keep_their_age_order() {
        let mut table = SegmentTable::new(3, 1000);
        let mut record = SegmentRecord {
            live_bytes: 10,
            live_pages: 1,
            history: History(7),
            sealed_at: 5,
            seal_seq: 41,
            stream: StreamId(0),
            state: SegmentState::Sealed,
        };
        table.restore(SegmentId(0), &record);
        assert_eq!(table.record(SegmentId(0)), record);
        record.history = History::UNKNOWN;
        table.restore(SegmentId(1), &record);
        assert_eq!(table.record(SegmentId(1)), record);
        table.open(SegmentId(2), StreamId(0));
        table.seal(SegmentId(2), 6);
        assert!(table.seal_seq(SegmentId(2)) > 41);
    }

    #[test]
    #[should_panic(expected = "opened while in use")]
    fn opening_a_segment_twice_is_refused() {
        let mut table = SegmentTable::new(1, 1000);
        table.open(SegmentId(0), StreamId(0));
        table.open(SegmentId(0), StreamId(1));
    }
}

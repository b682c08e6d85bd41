//! A log-structured space under one policy: the part that the simulator of cleaning
//! ([`crate::sim`]) and the simulated SSD ([`crate::ftl`]) share. [`LogSpace`] knows where each
//! page lies, the segments and the histories of pages, and tells the policy of all that. [`Owner`]
//! cleans it and appends to it; what differs between owners are its methods.

use std::collections::VecDeque;

use crate::policy::{
    Cause, CleaningPolicy, History, HistoryKind, PageWrite, SegmentId, SegmentState, SegmentTable,
    StreamId, Tick,
};
use crate::space::{BUFFERED, Space};

/// No history, among those of pages.
const NONE: u32 = u32::MAX;

/// The segment that a stream fills.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpenSegment {
    pub(crate) segment: u32,
    pub(crate) next_slot: u32,
    pub(crate) used_bytes: u32,
}

impl OpenSegment {
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.segment == CLOSED.segment
    }
}

pub(crate) const CLOSED: OpenSegment = OpenSegment {
    segment: u32::MAX,
    next_slot: 0,
    used_bytes: 0,
};

/// Pages in the segments of a log-structured space.
#[derive(Debug)]
pub(crate) struct LogSpace<P> {
    pub(crate) policy: P,
    pub(crate) now: Tick,
    pub(crate) space: Space,
    pub(crate) table: SegmentTable,
    /// Per page, its history, if the policy uses that.
    pub(crate) histories: Vec<u32>,
    pub(crate) free: VecDeque<u32>,
    pub(crate) open: Vec<OpenSegment>,
    shape: Shape,
    victims: Vec<SegmentId>,
    /// Live pages of victims.
    moving: Vec<u32>,
    moves: Vec<PageWrite>,
}

/// The shape of a space.
#[derive(Debug)]
pub(crate) struct Shape {
    pub(crate) pages: u32,
    pub(crate) segments: u32,
    pub(crate) segment_bytes: u32,
    /// Bytes of the smallest page: a segment with less left is full.
    pub(crate) smallest_page: u32,
    /// A page joins the nearest stream with an open segment instead of opening one, with so many
    /// open,
    pub(crate) open_max: usize,
    /// or with fewer free.
    pub(crate) free_min: usize,
}

impl<P: CleaningPolicy> LogSpace<P> {
    /// An empty space, all of whose segments are free.
    pub(crate) fn new(policy: P, shape: Shape) -> Self {
        let kind = policy.history_kind();
        let slots = shape.segment_bytes / shape.smallest_page;
        LogSpace {
            now: 0,
            space: Space::new(shape.pages, shape.segments, slots),
            table: SegmentTable::new(shape.segments, shape.segment_bytes).keeping(kind),
            histories: histories_of(shape.pages, kind),
            free: (0..shape.segments).collect(),
            open: vec![CLOSED; usize::from(policy.streams())],
            shape,
            victims: Vec::new(),
            moving: Vec::new(),
            moves: Vec::new(),
            policy,
        }
    }

    /// All segments are free again, and `policy` knows nothing of them; the policy and the segments
    /// as they were. No segment may be open.
    pub(crate) fn forget_all(&mut self, policy: P) -> (P, SegmentTable) {
        let kind = policy.history_kind();
        self.open = vec![CLOSED; usize::from(policy.streams())];
        self.histories = histories_of(self.shape.pages, kind);
        let fresh = SegmentTable::new(self.table.len(), self.table.segment_bytes()).keeping(kind);
        (
            std::mem::replace(&mut self.policy, policy),
            std::mem::replace(&mut self.table, fresh),
        )
    }

    /// True if the policy uses the history of each page.
    #[inline]
    pub(crate) fn keeps_page_histories(&self) -> bool {
        matches!(self.policy.history_kind(), HistoryKind::Page { .. })
    }

    /// The history of a page that lies in `segment`.
    #[inline]
    fn history(&self, page: u32, segment: u32) -> History {
        match self.policy.history_kind() {
            HistoryKind::None => History::UNKNOWN,
            HistoryKind::Segment | HistoryKind::SegmentNewest => {
                self.table.history(SegmentId(segment))
            }
            HistoryKind::Page { .. } => self.own_history(page),
        }
    }

    /// The history that is kept of the page itself.
    #[inline]
    fn own_history(&self, page: u32) -> History {
        match self.histories.get(page as usize) {
            None | Some(&NONE) => History::UNKNOWN,
            Some(history) => History(u64::from(*history)),
        }
    }

    /// Keeps a history of the page itself, if the policy uses that.
    #[inline]
    pub(crate) fn set_history(&mut self, page: u32, history: History) {
        if let Some(own) = self.histories.get_mut(page as usize) {
            // Unknown is all ones.
            *own = history.0 as u32;
        }
    }

    /// A page whose last history is `old` exists no longer.
    pub(crate) fn forget(&mut self, page: u32, old: History) {
        if let Some(own) = self.histories.get_mut(page as usize) {
            *own = NONE;
            self.policy.forgotten(old);
        }
    }

    /// The version of the page that lies in a segment, if any, is obsolete; the page's history.
    #[inline]
    pub(crate) fn invalidate(&mut self, page: u32, bytes: u32, rate: f32) -> History {
        let slot = self.space.get(page);
        if slot >= BUFFERED {
            return self.own_history(page);
        }
        let segment = self.space.segment_of(slot);
        let old = self.history(page, segment);
        let segment = SegmentId(segment);
        self.space.invalidate(slot);
        self.table.invalidate(segment, bytes);
        self.policy.died(&self.table, segment, rate, self.now);
        old
    }

    /// The stream that takes `write`: the policy's, or the nearest open one if no other may be
    /// opened.
    #[inline]
    pub(crate) fn stream_for(&mut self, write: &PageWrite) -> StreamId {
        let stream = self.policy.place(write, self.now);
        match self.open[stream.index()].is_closed() {
            true => self.nearest_open(stream),
            false => stream,
        }
    }

    #[cold]
    fn nearest_open(&self, stream: StreamId) -> StreamId {
        let open = self.open.iter().enumerate().filter(|o| !o.1.is_closed());
        let shape = &self.shape;
        if self.free.len() >= shape.free_min && open.clone().count() < shape.open_max {
            return stream;
        }
        let nearest = open.min_by_key(|(other, _)| other.abs_diff(stream.index()));
        nearest.map_or(stream, |(other, _)| StreamId(other as u16))
    }

    /// Counts `pages` pages of `bytes` bytes into the open segment of `stream`, and seals it if it
    /// takes none any more: left open until the next page comes, it could not be cleaned, and a
    /// stream that went out of use has no next page.
    #[inline]
    pub(crate) fn advance(&mut self, stream: StreamId, pages: usize, bytes: u32) {
        let open = &mut self.open[stream.index()];
        open.next_slot += pages as u32;
        open.used_bytes += pages as u32 * bytes;
        if open.used_bytes + self.shape.smallest_page > self.table.segment_bytes() {
            self.seal(stream);
        }
    }

    /// The stream's open segment, if any, takes no more pages.
    pub(crate) fn seal(&mut self, stream: StreamId) {
        let full = std::mem::replace(&mut self.open[stream.index()], CLOSED);
        if !full.is_closed() {
            let segment = SegmentId(full.segment);
            self.table.seal(segment, self.now);
            self.policy.sealed(&self.table, segment);
        }
    }

    /// Number of open segments.
    pub(crate) fn open_segments(&self) -> u32 {
        self.open.iter().filter(|open| !open.is_closed()).count() as u32
    }
}

/// What cleans a space and appends to it.
pub(crate) trait Owner {
    type Policy: CleaningPolicy;
    type Error;

    /// Whether victims are free before their pages are written again, and their pages so written
    /// in one batch. Contents have to stay until they are copied; page numbers have not.
    const FREES_FIRST: bool;

    fn log(&mut self) -> &mut LogSpace<Self::Policy>;

    /// Bytes of a page.
    fn size(&self, page: u32) -> u32;

    /// Exact update rate of a page, for oracle policies.
    fn rate(&self, page: u32) -> f32;

    /// Takes a segment from those that are free.
    fn take_free(&mut self) -> Option<u32>;

    fn no_space(&self) -> Self::Error;

    /// The policy has chosen victims. The order is the owner's to change.
    fn selected(&mut self, victims: &mut [SegmentId]);

    /// The cleaner has moved a page of so many bytes between two slots.
    fn moved(&mut self, from: u32, to: u32, bytes: u32);

    /// A victim is free.
    fn erased(&mut self, victim: SegmentId);

    /// Opens a segment for `stream`, whose last one has no room.
    #[cold]
    fn next_segment(&mut self, stream: StreamId, _: Cause) -> Result<OpenSegment, Self::Error> {
        self.open_segment(stream)
    }

    /// Moves pages out of victims, all with the cause and history of `group`, at once; false if the
    /// owner cannot.
    #[inline]
    fn relocate_run(&mut self, _: &PageWrite, _: &[u32]) -> Result<bool, Self::Error> {
        Ok(false)
    }

    /// The next free segment becomes that of `stream`.
    fn open_segment(&mut self, stream: StreamId) -> Result<OpenSegment, Self::Error> {
        let Some(segment) = self.take_free() else {
            return Err(self.no_space());
        };
        let log = self.log();
        log.table.open(SegmentId(segment), stream);
        let open = OpenSegment {
            segment,
            next_slot: log.space.first_slot(segment),
            used_bytes: 0,
        };
        log.open[stream.index()] = open;
        Ok(open)
    }

    /// Appends a page to the segment of its stream and returns its slot; `current` is false for a
    /// version that is obsolete already.
    #[inline]
    fn append(&mut self, page: u32, write: &PageWrite, current: bool) -> Result<u32, Self::Error> {
        let log = self.log();
        let stream = log.stream_for(write);
        let mut open = log.open[stream.index()];
        if open.is_closed() || open.used_bytes + write.bytes > log.table.segment_bytes() {
            open = self.next_segment(stream, write.cause)?;
        }
        let log = self.log();
        let segment = SegmentId(open.segment);
        if current {
            log.space.put(open.next_slot, page);
            log.table.append(segment, write.bytes, write.history);
            log.set_history(page, write.history);
            log.policy.appended(segment, write);
        } else {
            log.table.note_history(segment, write.history);
        }
        log.advance(stream, 1, write.bytes);
        Ok(open.next_slot)
    }

    /// One cleaning cycle of up to `batch` victims; false if the policy finds none.
    fn clean(&mut self, batch: usize) -> Result<bool, Self::Error> {
        let log = self.log();
        let mut victims = std::mem::take(&mut log.victims);
        victims.clear();
        log.policy
            .select_victims(&log.table, log.now, batch, &mut victims);
        let found = !victims.is_empty();
        self.selected(&mut victims);
        let together = if Self::FREES_FIRST { victims.len() } else { 1 };
        let cleaned = victims
            .chunks(together.max(1))
            .try_for_each(|victims| self.empty(victims));
        self.log().victims = victims;
        cleaned.map(|()| found)
    }

    /// Moves what lives in victims elsewhere, and frees them.
    fn empty(&mut self, victims: &[SegmentId]) -> Result<(), Self::Error> {
        let log = self.log();
        let mut moving = std::mem::take(&mut log.moving);
        let mut moves = std::mem::take(&mut log.moves);
        moving.clear();
        moves.clear();
        if log.keeps_page_histories() {
            self.gather_pages(victims, &mut moving, &mut moves);
        } else {
            self.gather_segments(victims, &mut moving, &mut moves);
        }
        let log = self.log();
        log.policy.order(&mut moves, log.now);
        let moved = self.relocate_all(&moves, &moving);
        let log = self.log();
        (log.moving, log.moves) = (moving, moves);
        moved?;
        if !Self::FREES_FIRST {
            victims.iter().for_each(|&victim| self.free(victim));
        }
        Ok(())
    }

    /// All live pages of the victims, each with its own history.
    fn gather_pages(
        &mut self,
        victims: &[SegmentId],
        moving: &mut Vec<u32>,
        moves: &mut Vec<PageWrite>,
    ) {
        for &victim in victims {
            self.drain(victim, moving);
        }
        self.log().space.touch(moving.iter().copied());
        for &page in moving.iter() {
            let log = self.log();
            let history = log.policy.survived(log.own_history(page), log.now);
            moves.push(PageWrite {
                token: u64::from(page),
                bytes: self.size(page),
                cause: Cause::Relocated,
                history,
                rate: self.rate(page),
            });
        }
    }

    /// The pages of a victim share its history, so ordering them means ordering the victims (the
    /// order is stable): `moves` gets one entry per victim whose token is its range in `moving`.
    fn gather_segments(
        &mut self,
        victims: &[SegmentId],
        moving: &mut Vec<u32>,
        moves: &mut Vec<PageWrite>,
    ) {
        for &victim in victims {
            let log = self.log();
            let history = log.policy.survived(log.table.history(victim), log.now);
            let first = moving.len() as u64;
            self.drain(victim, moving);
            moves.push(PageWrite {
                token: first << 32 | moving.len() as u64,
                bytes: 0,
                cause: Cause::Relocated,
                history,
                rate: 0.0,
            });
        }
    }

    /// Takes the live pages out of a victim.
    fn drain(&mut self, victim: SegmentId, moving: &mut Vec<u32>) {
        let log = self.log();
        debug_assert_eq!(log.table.state(victim), SegmentState::Sealed);
        log.space.drain(victim.0, moving);
        log.table.begin_cleaning(victim);
        if Self::FREES_FIRST {
            self.free(victim);
        }
    }

    fn free(&mut self, victim: SegmentId) {
        let log = self.log();
        log.table.free(victim);
        log.policy.freed(victim);
        log.free.push_back(victim.0);
        self.erased(victim);
    }

    fn relocate_all(&mut self, moves: &[PageWrite], moving: &[u32]) -> Result<(), Self::Error> {
        if self.log().keeps_page_histories() {
            return moves
                .iter()
                .try_for_each(|write| self.relocate(write.token as u32, write));
        }
        for group in moves {
            let pages = &moving[(group.token >> 32) as usize..group.token as u32 as usize];
            if self.relocate_run(group, pages)? {
                continue;
            }
            for &page in pages {
                let write = PageWrite {
                    bytes: self.size(page),
                    rate: self.rate(page),
                    ..*group
                };
                self.relocate(page, &write)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn relocate(&mut self, page: u32, write: &PageWrite) -> Result<(), Self::Error> {
        let from = self.log().space.get(page);
        let to = self.append(page, write, true)?;
        if !Self::FREES_FIRST {
            let log = self.log();
            let victim = SegmentId(log.space.segment_of(from));
            log.table.invalidate(victim, write.bytes);
        }
        self.moved(from, to, write.bytes);
        Ok(())
    }
}

fn histories_of(pages: u32, kind: HistoryKind) -> Vec<u32> {
    match kind {
        HistoryKind::Page { .. } => vec![NONE; pages as usize],
        _ => Vec::new(),
    }
}

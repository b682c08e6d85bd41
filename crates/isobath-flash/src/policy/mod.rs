//! The cleaning-policy interface and the policies of paper 003.
//!
//! An *owner* (simulator, FTL, page store) keeps a [`SegmentTable`] and drives one [`CleaningPolicy`]:
//!
//! 1. A user write of a page makes its old version obsolete: [`SegmentTable::invalidate`], then
//!    [`CleaningPolicy::died`]. The page's new [`History`] is what [`CleaningPolicy::updated`]
//!    returns.
//! 2. Pages to be written are gathered in a batch; [`CleaningPolicy::order`] puts it in writing
//!    order, and [`CleaningPolicy::place`] names the stream of each page. Every stream has at most
//!    one open segment.
//! 3. For each page appended to a segment the owner calls the table ([`SegmentTable::append`]) and
//!    the policy ([`CleaningPolicy::appended`]); a full segment is sealed ([`SegmentTable::seal`],
//!    [`CleaningPolicy::sealed`]).
//! 4. When free segments run low, [`CleaningPolicy::select_victims`] names sealed segments. Their
//!    live pages go through [`CleaningPolicy::survived`], `order`, `place`; then
//!    [`SegmentTable::free`] and [`CleaningPolicy::freed`].
//!
//! Time is the update clock of section 4.2: one [`Tick`] per user page write, never wall-clock
//! time.

mod batch;
mod by_score;
mod cost_benefit;
mod kind;
mod life_table;
mod mdc;
mod multi_log;
mod segments;
mod select;

pub use by_score::{Age, ByScore, Emptiest, Greedy, Oldest, SegmentScore};
pub use cost_benefit::CostBenefit;
pub use kind::{PolicyKind, PolicyUser, UnknownPolicy};
pub use life_table::LifeTable;
pub use mdc::{Mdc, MdcOpt};
pub use multi_log::MultiLog;
pub use segments::{SegmentId, SegmentRecord, SegmentState, SegmentTable, StreamId};
pub use select::{Selector, float_score};

/// The update clock (section 4.2): the number of user page writes so far.
pub type Tick = u64;

/// The history that a page carries from one write to the next, in the policy's own encoding.
///
/// For the MDC family it is the page's u_p2 (section 5.2.2), the estimated [`Tick`] of its last
/// update but one. A policy whose [`CleaningPolicy::history_kind`] is [`HistoryKind::Segment`]
/// needs nothing stored per page: a page on disk then has the mean history of its segment,
/// [`SegmentTable::history`]. An owner may still carry a history with a page that is in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct History(pub u64);

impl History {
    /// A page that was never written before, or whose history is lost. [`CleaningPolicy::order`]
    /// replaces it by the oldest history of the batch ("First Write", section 5.2.2).
    pub const UNKNOWN: History = History(u64::MAX);

    /// True unless the history is [`History::UNKNOWN`].
    pub fn is_known(self) -> bool {
        self != Self::UNKNOWN
    }
}

/// The place where a policy needs page histories to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HistoryKind {
    /// The policy reads no history: [`CleaningPolicy::updated`] may be called with anything.
    None,
    /// One mean per segment, kept by [`SegmentTable`]; nothing per page.
    Segment,
    /// As `Segment`, but the largest history of a segment's pages instead of their mean.
    SegmentNewest,
    /// This many low bytes of [`History`] per page (in a page's header, or beside the mapping
    /// entry). [`History::UNKNOWN`] is then represented by all ones in these bytes.
    Page {
        /// Bytes per page, 1 to 8.
        bytes: u8,
    },
}

/// Why a page is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The user (for the engine: eviction or checkpoint) wrote new contents.
    User,
    /// The cleaner moves a live page out of a victim.
    Relocated,
}

/// One page (or chunk of a large value) that is about to be written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PageWrite {
    /// The owner's own handle: page id, frame, or index of its buffer. No policy reads it.
    pub token: u64,
    /// Bytes that the page takes in its segment.
    pub bytes: u32,
    /// User write or relocation.
    pub cause: Cause,
    /// From [`CleaningPolicy::updated`] or [`CleaningPolicy::survived`].
    pub history: History,
    /// Exact update rate of the page in updates per tick, for the `-opt` policies; 0 when it is
    /// unknown.
    pub rate: f32,
}

/// A policy for cleaning segments.
///
/// Implementations are deterministic: the same calls give the same answers. Methods called once per
/// page are cheap (a few arithmetic operations); `select_victims` is bounded by [`Selector`]'s work
/// limit however many segments exist.
pub trait CleaningPolicy: Send {
    /// The policy's name as users write it, e.g. `cost-benefit`.
    fn name(&self) -> &'static str;

    /// Number of streams: [`place`](Self::place) returns ids below it. The owner keeps that many
    /// open segments at most.
    fn streams(&self) -> u16;

    /// True if the policy was made for a space that is too small for one of about `pages` pages.
    /// The owner then calls [`stored_history`](Self::stored_history) of every segment in use, then
    /// [`resized`](Self::resized), which makes all histories unknown, then
    /// [`restored`](Self::restored), as if the space were closed and opened.
    fn is_outgrown(&self, pages: u64) -> bool {
        let _ = pages;
        false
    }

    /// The space now holds about `pages` pages, and the policy [is outgrown](Self::is_outgrown).
    fn resized(&mut self, pages: u64) {
        let _ = pages;
    }

    /// The place where the owner keeps page histories for this policy.
    fn history_kind(&self) -> HistoryKind {
        HistoryKind::None
    }

    /// True if the policy is an oracle: it reads [`PageWrite::rate`], which only a simulator knows.
    fn needs_rates(&self) -> bool {
        false
    }

    /// True if [`order`](Self::order) does something to batches of this cause, so that an owner may
    /// gain from a larger batch (section 6.2.1, Fig. 4).
    fn orders(&self, cause: Cause) -> bool {
        let _ = cause;
        false
    }

    /// Victims to clean in one cycle if the owner has no reason to choose another number (section
    /// 6.1.1: 64; multi-log cleans one at a time).
    fn preferred_batch(&self) -> usize {
        64
    }

    /// The new history of a page that the user overwrites at `now`. `old` is the history of the
    /// version that becomes obsolete ([`History::UNKNOWN`] on a first write).
    fn updated(&mut self, old: History, now: Tick) -> History {
        let _ = now;
        old
    }

    /// The history of a live page that the cleaner relocates at `now`.
    fn survived(&mut self, old: History, now: Tick) -> History {
        let _ = now;
        old
    }

    /// The user overwrote or trimmed a page whose last version, `older`, is still in a batch of the
    /// owner's that will be written all the same: it is obsolete already.
    fn superseded(&mut self, older: &mut PageWrite) {
        let _ = older;
    }

    /// A page with the history `old` exists no longer (it was trimmed or freed), and its history is
    /// dropped.
    fn forgotten(&mut self, old: History) {
        let _ = old;
    }

    /// Puts a batch of pages, all of one cause, in the order in which they are to be written, and
    /// fills in unknown histories (section 5.3).
    fn order(&mut self, batch: &mut [PageWrite], now: Tick) {
        let _ = (batch, now);
    }

    /// The stream whose open segment receives the page.
    fn place(&mut self, page: &PageWrite, now: Tick) -> StreamId;

    /// True if [`place`](Self::place) looks at nothing but the cause of a write, and
    /// [`appended`](Self::appended) and [`died`](Self::died) do nothing: an owner may then place
    /// pages of one cause together and leave these calls out.
    fn places_by_cause(&self) -> bool {
        false
    }

    /// True if the policy keeps relocated pages of different update frequency apart: by the order
    /// in which it writes them, or by streams. For other policies a simulator relocates the victims
    /// of one cycle in an order drawn by chance, since the order of their scores would keep them
    /// apart, too.
    fn separates(&self) -> bool {
        true
    }

    /// A page was appended to open segment `segment`.
    fn appended(&mut self, segment: SegmentId, page: &PageWrite) {
        let _ = (segment, page);
    }

    /// `segment` is full (or closed early) and can be cleaned from now on.
    fn sealed(&mut self, table: &SegmentTable, segment: SegmentId) {
        let _ = (table, segment);
    }

    /// What is stored of `segment`, for when the space is opened again: the mean u_p2 of its pages
    /// (section 5.2.2), the [`Tick`] of their last update but one, as this policy estimates it. It
    /// is in ticks whatever the policy's own histories are, so that another policy understands it.
    fn stored_history(&self, table: &SegmentTable, segment: SegmentId, now: Tick) -> History {
        let _ = now;
        match self.history_kind() {
            HistoryKind::Page { .. } => History::UNKNOWN,
            _ => table.history(segment),
        }
    }

    /// `segment` has pages that were written before the space was opened; `stored` is what was
    /// stored of it. Called for every segment in use before anything else, at the `now` of closing.
    /// Returns the history that each of its pages has until it is written again, for policies that
    /// use one per page.
    fn restored(
        &mut self,
        table: &SegmentTable,
        segment: SegmentId,
        stored: History,
        now: Tick,
    ) -> History {
        let _ = (stored, now);
        if table.state(segment) == SegmentState::Sealed {
            self.sealed(table, segment);
        }
        History::UNKNOWN
    }

    /// A page in `segment` (open or sealed) was overwritten or trimmed at `now`; `rate` as in
    /// [`PageWrite::rate`]. The table already counts it as obsolete.
    fn died(&mut self, table: &SegmentTable, segment: SegmentId, rate: f32, now: Tick) {
        let _ = (table, segment, rate, now);
    }

    /// `segment` was cleaned and is free.
    fn freed(&mut self, segment: SegmentId) {
        let _ = segment;
    }

    /// Appends up to `n` sealed segments to `out`, the best to clean first. Segments without any
    /// obsolete space are named by [`Age`] only, which cleans all in turn; fewer than `n` answers
    /// mean that no more are worth cleaning.
    fn select_victims(
        &mut self,
        table: &SegmentTable,
        now: Tick,
        n: usize,
        out: &mut Vec<SegmentId>,
    );
}

impl<P: CleaningPolicy + ?Sized> CleaningPolicy for Box<P> {
    fn name(&self) -> &'static str {
        (**self).name()
    }
    fn streams(&self) -> u16 {
        (**self).streams()
    }
    fn is_outgrown(&self, pages: u64) -> bool {
        (**self).is_outgrown(pages)
    }
    fn resized(&mut self, pages: u64) {
        (**self).resized(pages);
    }
    fn history_kind(&self) -> HistoryKind {
        (**self).history_kind()
    }
    fn needs_rates(&self) -> bool {
        (**self).needs_rates()
    }
    fn orders(&self, cause: Cause) -> bool {
        (**self).orders(cause)
    }
    fn preferred_batch(&self) -> usize {
        (**self).preferred_batch()
    }
    fn updated(&mut self, old: History, now: Tick) -> History {
        (**self).updated(old, now)
    }
    fn survived(&mut self, old: History, now: Tick) -> History {
        (**self).survived(old, now)
    }
    fn superseded(&mut self, older: &mut PageWrite) {
        (**self).superseded(older);
    }
    fn forgotten(&mut self, old: History) {
        (**self).forgotten(old);
    }
    fn order(&mut self, batch: &mut [PageWrite], now: Tick) {
        (**self).order(batch, now);
    }
    fn place(&mut self, page: &PageWrite, now: Tick) -> StreamId {
        (**self).place(page, now)
    }
    fn places_by_cause(&self) -> bool {
        (**self).places_by_cause()
    }
    fn separates(&self) -> bool {
        (**self).separates()
    }
    fn appended(&mut self, segment: SegmentId, page: &PageWrite) {
        (**self).appended(segment, page);
    }
    fn sealed(&mut self, table: &SegmentTable, segment: SegmentId) {
        (**self).sealed(table, segment);
    }
    fn stored_history(&self, table: &SegmentTable, segment: SegmentId, now: Tick) -> History {
        (**self).stored_history(table, segment, now)
    }
    fn restored(
        &mut self,
        table: &SegmentTable,
        segment: SegmentId,
        stored: History,
        now: Tick,
    ) -> History {
        (**self).restored(table, segment, stored, now)
    }
    fn died(&mut self, table: &SegmentTable, segment: SegmentId, rate: f32, now: Tick) {
        (**self).died(table, segment, rate, now);
    }
    fn freed(&mut self, segment: SegmentId) {
        (**self).freed(segment);
    }
    fn select_victims(
        &mut self,
        table: &SegmentTable,
        now: Tick,
        n: usize,
        out: &mut Vec<SegmentId>,
    ) {
        (**self).select_victims(table, now, n, out);
    }
}

/// Streams of the policies that only keep user pages and relocated pages apart.
pub(crate) fn stream_by_cause(cause: Cause) -> StreamId {
    match cause {
        Cause::User => StreamId(0),
        Cause::Relocated => StreamId(1),
    }
}

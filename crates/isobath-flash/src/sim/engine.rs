//! The simulator proper: user writes, the sort buffer, cleaning cycles.

mod reopen;
mod reserve;
mod runs;

use reserve::Reserve;

use super::config::{Duplicates, SimConfig, SimError};
use super::report::{SimReport, Window};
use crate::log_space::{LogSpace, OpenSegment, Owner, Shape};
use crate::policy::{
    Cause, CleaningPolicy, HistoryKind, PageWrite, PolicyKind, PolicyUser, SegmentId, StreamId,
};
use crate::rng::Rng;
use crate::space::{BUFFERED, NOWHERE};
use crate::workload::{Op, Synthetic, Workload, WorkloadKind};

/// Operations taken from the workload at a time: enough to overlap their cache misses, few enough
/// to stay in cache.
const CHUNK: usize = 256;
/// Cleaning cycles that may follow each other without a user write.
const CYCLES_MAX: u32 = 10_000;
/// Parts of [`SimReport::series`].
const SERIES: u64 = 100;

/// How long to run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RunLength {
    /// This many updates.
    Updates(u64),
    /// This many bytes of updates per byte of the device (paper: 100).
    DeviceWrites(f64),
    /// Until the workload, a trace, ends; nothing for one that does not.
    ToEnd,
}

impl RunLength {
    fn updates(self, config: &SimConfig, left: Option<u64>) -> u64 {
        match self {
            Self::Updates(n) => n,
            Self::DeviceWrites(times) => {
                let pages = f64::from(config.segments) * f64::from(config.segment_bytes)
                    / config.mean_page_bytes();
                (pages * times) as u64
            }
            Self::ToEnd => left.unwrap_or(0),
        }
    }
}

/// Runs a synthetic workload under a policy chosen by name, specialised to it.
///
/// # Errors
/// See [`SimError`].
pub fn simulate(
    policy: PolicyKind,
    config: &SimConfig,
    kind: WorkloadKind,
    length: RunLength,
) -> Result<SimReport, SimError> {
    config.check()?;
    let workload = Synthetic::new(kind, config.user_pages(), config.seed)?;
    simulate_workload(policy, config, workload, length, &mut |_| true)
}

/// As [`simulate`], for any workload; `observe` as in [`Simulator::run_observed`].
///
/// # Errors
/// See [`SimError`].
pub fn simulate_workload<W: Workload>(
    policy: PolicyKind,
    config: &SimConfig,
    workload: W,
    length: RunLength,
    observe: &mut dyn FnMut(f64) -> bool,
) -> Result<SimReport, SimError> {
    struct Run<'a, W>(&'a SimConfig, W, RunLength, &'a mut dyn FnMut(f64) -> bool);
    impl<W: Workload> PolicyUser for Run<'_, W> {
        type Output = Result<SimReport, SimError>;
        fn run<P: CleaningPolicy + 'static>(self, policy: P) -> Self::Output {
            Simulator::new(self.0.clone(), policy, self.1)?.run_observed(self.2, self.3)
        }
    }
    policy.with(
        u64::from(config.user_pages()),
        Run(config, workload, length, observe),
    )
}

/// A log-structured space under one policy and one workload.
#[derive(Debug)]
pub struct Simulator<P, W> {
    config: SimConfig,
    workload: W,
    log: LogSpace<P>,
    reserve: Reserve,
    /// Per page, its exact update rate, for oracle policies.
    rates: Vec<f32>,
    /// Per page, its size, if sizes vary.
    sizes: Option<Vec<u32>>,
    /// Sort buffer. A token is the page in the low half and the entry's first position in the high
    /// half.
    buffer: Vec<PageWrite>,
    buffer_bytes: u64,
    /// Draws the order of victims for policies that do not care for it.
    rng: Rng,
    batch: usize,
    sorts_user: bool,
    totals: Window,
    histogram: Vec<u64>,
    record_histogram: bool,
}

impl<P: CleaningPolicy, W: Workload> Simulator<P, W> {
    /// Checks the configuration and builds an empty space.
    ///
    /// # Errors
    /// If the numbers do not fit each other, the workload or the policy.
    pub fn new(config: SimConfig, policy: P, workload: W) -> Result<Self, SimError> {
        config.check()?;
        let pages = workload.pages();
        let capacity = config.user_pages();
        if pages > capacity {
            let (segments, fill) = (config.segments, config.fill);
            return Err(SimError::TooManyPages {
                pages,
                capacity,
                segments,
                fill,
            });
        }
        let rates = if policy.needs_rates() {
            workload.rates().ok_or(SimError::NoRates {
                policy: policy.name(),
            })?
        } else {
            Vec::new()
        };
        let batch = config
            .clean_batch
            .map_or(policy.preferred_batch(), |batch| batch as usize);
        let segments = Reserve::segments(&config, policy.streams(), batch);
        let sorts_user = policy.orders(Cause::User) && config.sort_buffer_segments > 0;
        let shape = Shape {
            pages,
            segments,
            segment_bytes: config.segment_bytes,
            smallest_page: config.smallest_page_bytes(),
            open_max: config.open_segments_max.map_or(usize::MAX, |n| n as usize),
            free_min: 0,
        };
        let mut log = LogSpace::new(policy, shape);
        log.free
            .truncate((config.segments + config.spare_segments) as usize);
        Ok(Self {
            log,
            reserve: Reserve::new(&config, segments),
            rates,
            sizes: config.sizes(pages),
            buffer: Vec::new(),
            buffer_bytes: 0,
            rng: Rng::new(config.seed ^ 0x0bed),
            batch,
            sorts_user,
            totals: Window::default(),
            histogram: vec![0; 101],
            record_histogram: false,
            config,
            workload,
        })
    }

    /// Loads every page once (unless the workload is a trace), then runs for `length` and reports.
    ///
    /// # Errors
    /// If the policy runs out of free segments.
    pub fn run(self, length: RunLength) -> Result<SimReport, SimError> {
        self.run_observed(length, &mut |_| true)
    }

    /// As [`run`](Self::run); `observe` is called after each hundredth of the run with the share
    /// that is done, from 0 to 1, and ends it by answering `false`.
    ///
    /// # Errors
    /// As for [`run`](Self::run), and [`SimError::Stopped`].
    pub fn run_observed(
        mut self,
        length: RunLength,
        observe: &mut dyn FnMut(f64) -> bool,
    ) -> Result<SimReport, SimError> {
        if self.workload.preload() {
            self.load()?;
        }
        let updates = length.updates(&self.config, self.workload.length());
        let end_of = |part: u64| u128::from(updates) * u128::from(part) / u128::from(SERIES);
        let start = self.totals;
        let mut series = Vec::new();
        let mut half = start;
        let mut last = start;
        let mut done = 0u64;
        for part in 0..SERIES {
            if part == SERIES / 2 {
                half = self.totals;
                self.record_histogram = true;
            }
            // At most `updates`. A run with fewer updates than parts has parts without any.
            let wanted = end_of(part + 1) as u64 - done;
            if wanted == 0 {
                continue;
            }
            let n = self.updates(wanted)?;
            if n == 0 {
                break;
            }
            done += n;
            series.push(self.totals.since(&last));
            last = self.totals;
            if part < SERIES / 2 {
                self.match_reserve(part)?;
            }
            if !observe(done as f64 / updates as f64) {
                return Err(SimError::Stopped);
            }
        }
        let history_bytes = match self.log.policy.history_kind() {
            HistoryKind::Page { bytes } => bytes,
            _ => 0,
        };
        Ok(SimReport {
            policy: self.log.policy.name(),
            whole: self.totals.since(&start),
            steady: self.totals.since(&half),
            streams_used: self.log.open_segments(),
            spare_segments: self.spare_segments(),
            emptiness_histogram: self.histogram,
            series,
            pages: self.workload.pages(),
            history_bytes,
        })
    }

    /// Writes every page once, in an order that has nothing to do with page numbers.
    ///
    /// # Errors
    /// If the policy runs out of free segments.
    pub fn load(&mut self) -> Result<(), SimError> {
        let pages = u64::from(self.workload.pages());
        // A step near the golden ratio that shares no factor with the number of pages visits each
        // page once.
        let mut step = (pages as f64 * 0.618_034) as u64 | 1;
        while gcd(step, pages) != 1 {
            step += 2;
        }
        let mut page = 0;
        for _ in 0..pages {
            self.user_write(page as u32)?;
            page = (page + step) % pages;
        }
        Ok(())
    }

    /// Runs up to `n` operations of the workload and returns how many there were.
    ///
    /// # Errors
    /// If the policy runs out of free segments.
    pub fn updates(&mut self, n: u64) -> Result<u64, SimError> {
        let mut ops = [Op::write(0); CHUNK];
        let runs = self.overwrites_runs();
        let mut left = n;
        while left > 0 {
            let want = left.min(CHUNK as u64) as usize;
            let got = self.workload.fill(&mut ops[..want]);
            if got == 0 {
                break;
            }
            let mut ops = &ops[..got];
            self.log.space.touch(ops.iter().map(|op| op.page()));
            while runs && !ops.is_empty() {
                let done = self.overwrite_run(ops)?;
                ops = &ops[done..];
            }
            for op in ops {
                if op.is_trim() {
                    self.trim(op.page());
                } else {
                    self.user_write(op.page())?;
                }
            }
            left -= got as u64;
        }
        Ok(n - left)
    }

    /// The counts since the simulator was made, with the initial load.
    pub fn totals(&self) -> &Window {
        &self.totals
    }

    #[inline]
    fn user_write(&mut self, page: u32) -> Result<(), SimError> {
        self.log.now += 1;
        self.totals.updates += 1;
        let place = self.log.space.get(page);
        let old = if place < BUFFERED || place == NOWHERE {
            let (bytes, rate) = (self.size(page), self.rate(page));
            self.log.invalidate(page, bytes, rate)
        } else {
            let entry = &mut self.buffer[(place ^ BUFFERED) as usize];
            let old = entry.history;
            if self.config.duplicates == Duplicates::Absorbed {
                entry.history = self.log.policy.updated(old, self.log.now);
                return Ok(());
            }
            self.log.policy.superseded(entry);
            old
        };
        let write = PageWrite {
            token: u64::from(page),
            bytes: self.size(page),
            cause: Cause::User,
            history: self.log.policy.updated(old, self.log.now),
            rate: self.rate(page),
        };
        if self.sorts_user {
            return self.buffer_write(write, page);
        }
        self.totals.user_pages += 1;
        self.totals.user_bytes += u64::from(write.bytes);
        self.append(page, &write, true).map(drop)
    }

    fn trim(&mut self, page: u32) {
        let place = self.log.space.get(page);
        let old = if place < BUFFERED || place == NOWHERE {
            let (bytes, rate) = (self.size(page), self.rate(page));
            self.log.invalidate(page, bytes, rate)
        } else {
            // The page's own history is that of the version before, which is counted out already.
            let entry = &mut self.buffer[(place ^ BUFFERED) as usize];
            self.log.policy.superseded(entry);
            entry.history
        };
        self.log.space.set(page, NOWHERE);
        self.log.forget(page, old);
    }

    #[inline]
    fn buffer_write(&mut self, mut write: PageWrite, page: u32) -> Result<(), SimError> {
        let index = self.buffer.len() as u32;
        self.log.space.set(page, BUFFERED | index);
        write.token |= u64::from(index) << 32;
        self.buffer_bytes += u64::from(write.bytes);
        self.buffer.push(write);
        let capacity =
            u64::from(self.config.sort_buffer_segments) * u64::from(self.config.segment_bytes);
        if self.buffer_bytes >= capacity {
            self.flush_buffer()
        } else {
            Ok(())
        }
    }

    /// Writes the sort buffer in the policy's order. Entries whose page was written again are
    /// obsolete already.
    fn flush_buffer(&mut self) -> Result<(), SimError> {
        let mut buffer = std::mem::take(&mut self.buffer);
        self.log.policy.order(&mut buffer, self.log.now);
        let space = &self.log.space;
        let is_current = |write: &PageWrite| {
            space.get(write.token as u32) == BUFFERED | (write.token >> 32) as u32
        };
        self.reserve.begin_flush(
            buffer
                .iter()
                .map(|write| (u64::from(write.bytes), is_current(write))),
        );
        if self.writes_runs() {
            self.flush_runs(&buffer)?;
        } else {
            for write in &buffer {
                let page = write.token as u32;
                let current = self.log.space.get(page) == BUFFERED | (write.token >> 32) as u32;
                self.totals.user_pages += 1;
                self.totals.user_bytes += u64::from(write.bytes);
                self.append(page, write, current)?;
                self.reserve.flushed(u64::from(write.bytes));
            }
        }
        buffer.clear();
        self.buffer = buffer;
        self.buffer_bytes = 0;
        Ok(())
    }

    /// True if `stream` has an open segment that takes another page of any size.
    fn has_room(&self, stream: StreamId) -> bool {
        let open = self.log.open[stream.index()];
        !open.is_closed() && open.used_bytes + self.config.page_bytes <= self.config.segment_bytes
    }

    /// One cleaning cycle.
    fn clean_once(&mut self) -> Result<(), SimError> {
        match self.clean(self.batch)? {
            true => Ok(()),
            false => Err(self.out_of_space()),
        }
    }

    fn count_victims(&mut self, victims: &[SegmentId]) {
        for &victim in victims {
            let emptiness = f64::from(self.log.table.emptiness(victim));
            self.totals.cleaned_segments += 1;
            self.totals.emptiness_sum += emptiness;
            if self.record_histogram {
                self.histogram[(emptiness * 100.0) as usize] += 1;
            }
        }
    }

    fn out_of_space(&self) -> SimError {
        let segments = self.log.table.len();
        SimError::OutOfSpace {
            policy: self.log.policy.name(),
            updates: self.totals.updates,
            live_pages: (0..segments)
                .map(|s| u64::from(self.log.table.live_pages(SegmentId(s))))
                .sum(),
            segments,
            open: self.log.open_segments(),
        }
    }
}

impl<P: CleaningPolicy, W: Workload> Owner for Simulator<P, W> {
    type Policy = P;
    type Error = SimError;
    const FREES_FIRST: bool = true;

    #[inline]
    fn log(&mut self) -> &mut LogSpace<P> {
        &mut self.log
    }

    #[inline]
    fn size(&self, page: u32) -> u32 {
        match &self.sizes {
            None => self.config.page_bytes,
            Some(sizes) => sizes[page as usize],
        }
    }

    #[inline]
    fn rate(&self, page: u32) -> f32 {
        if self.log.policy.needs_rates() {
            self.rates[page as usize]
        } else {
            0.0
        }
    }

    fn take_free(&mut self) -> Option<u32> {
        self.log.free.pop_front().or_else(|| self.reserve.lend())
    }

    fn no_space(&self) -> SimError {
        self.out_of_space()
    }

    /// Counts the victims. Relocated in the order of their scores, their pages would be kept apart
    /// by how often they are updated; if that is not the policy's aim, chance draws the order.
    fn selected(&mut self, victims: &mut [SegmentId]) {
        self.count_victims(victims);
        if !self.log.policy.separates() {
            for last in (1..victims.len()).rev() {
                victims.swap(last, self.rng.below(last as u32 + 1) as usize);
            }
        }
    }

    #[inline]
    fn moved(&mut self, _from: u32, _to: u32, bytes: u32) {
        self.totals.relocated_pages += 1;
        self.totals.relocated_bytes += u64::from(bytes);
    }

    fn erased(&mut self, _victim: SegmentId) {}

    /// User writes clean first when free
    /// segments run low, until enough are free or moved pages left space in a segment of this very
    /// stream: to go on then would make this stream clean for others, which costs much with
    /// policies that divide the space among streams. But not with less than half of them free:
    /// pages of one victim may open segments in several streams, more than were freed.
    #[cold]
    fn next_segment(&mut self, stream: StreamId, cause: Cause) -> Result<OpenSegment, SimError> {
        self.log.seal(stream);
        if cause == Cause::User {
            let mut cycles = 0;
            let clean_below = self.config.clean_below as usize;
            while self.log.free.len() < clean_below / 2
                || (self.log.free.len() < clean_below && !self.has_room(stream))
            {
                self.clean_once()?;
                cycles += 1;
                if cycles > CYCLES_MAX {
                    return Err(self.out_of_space());
                }
            }
            if self.has_room(stream) {
                self.measure_idle(stream);
                return Ok(self.log.open[stream.index()]);
            }
            // Cleaning filled it to the brim.
            self.log.seal(stream);
        }
        let opened = self.open_segment(stream)?;
        if cause == Cause::User {
            self.measure_idle(stream);
        }
        Ok(opened)
    }

    #[inline]
    fn relocate_run(&mut self, group: &PageWrite, pages: &[u32]) -> Result<bool, SimError> {
        let runs = self.writes_runs();
        if runs {
            self.move_run(group, pages)?;
        }
        Ok(runs)
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;

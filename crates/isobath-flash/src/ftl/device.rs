//! The drive itself: mapping, write cache, cleaning, wear.

mod state;

pub use state::FlashState;

use std::collections::{BTreeMap, VecDeque};

use super::config::{FlashConfig, FlashError};
use super::data::PageData;
use super::timing::{Clock, Nanos};
use crate::log_space::LogSpace;
use crate::policy::{
    Cause, CleaningPolicy, History, PageWrite, SegmentId, SegmentState, StreamId, Tick,
};
use crate::rng::Rng;
use crate::space::{BUFFERED, NOWHERE};

/// The drive's counters, as SMART would report them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Smart {
    /// Bytes that the host read.
    pub host_read_bytes: u64,
    /// Bytes that the host wrote.
    pub host_written_bytes: u64,
    /// Bytes that the host trimmed.
    pub host_trimmed_bytes: u64,
    /// Flushes that the host asked for.
    pub host_flushes: u64,
    /// Bytes programmed into flash, for the host and by cleaning.
    pub flash_written_bytes: u64,
    /// Bytes that cleaning moved; part of `flash_written_bytes`.
    pub flash_relocated_bytes: u64,
    /// Bytes read from flash, for the host and by cleaning.
    pub flash_read_bytes: u64,
    /// Superblocks erased.
    pub erases: u64,
    /// Power cuts survived.
    pub power_cuts: u64,
    /// Host writes that a power cut took out of the write cache.
    pub lost_pages: u64,
    /// Host writes of which a power cut left parts.
    pub torn_pages: u64,
    /// Bytes that wear levelling moved; part of `flash_relocated_bytes`.
    pub flash_levelled_bytes: u64,
}

impl Smart {
    /// WA-D of paper 002: bytes programmed into flash per byte that the host wrote.
    pub fn wa_d(&self) -> f64 {
        self.flash_written_bytes as f64 / (self.host_written_bytes as f64).max(1.0)
    }

    /// The counts since `earlier`.
    pub fn since(&self, earlier: &Smart) -> Smart {
        Smart {
            host_read_bytes: self.host_read_bytes - earlier.host_read_bytes,
            host_written_bytes: self.host_written_bytes - earlier.host_written_bytes,
            host_trimmed_bytes: self.host_trimmed_bytes - earlier.host_trimmed_bytes,
            host_flushes: self.host_flushes - earlier.host_flushes,
            flash_written_bytes: self.flash_written_bytes - earlier.flash_written_bytes,
            flash_relocated_bytes: self.flash_relocated_bytes - earlier.flash_relocated_bytes,
            flash_read_bytes: self.flash_read_bytes - earlier.flash_read_bytes,
            erases: self.erases - earlier.erases,
            power_cuts: self.power_cuts - earlier.power_cuts,
            lost_pages: self.lost_pages - earlier.lost_pages,
            torn_pages: self.torn_pages - earlier.torn_pages,
            flash_levelled_bytes: self.flash_levelled_bytes - earlier.flash_levelled_bytes,
        }
    }
}

/// The write cache's entry for a page that is not on flash yet.
#[derive(Debug, Clone)]
enum Cached {
    /// New contents; `None` if the drive keeps none.
    Written(Option<Box<[u8]>>),
    /// A trim.
    Trimmed,
}

/// Wear is levelled after one in this many erases.
const LEVEL_EVERY: u64 = 16;

#[derive(Debug, Clone, Copy)]
struct OpenBlock {
    block: u32,
    used: u32,
}

/// A page-mapped SSD.
///
/// Operations are on logical pages and atomic. Writes and trims are durable after the
/// next [`flush`](Self::flush) (at once without a write cache); of what the cache still holds a
/// [`power_cut`](Self::power_cut) leaves any subset, and parts of pages, if
/// [`FlashConfig::sector_bytes`] says so. Reads of pages never written, or trimmed, give zeros.
pub struct FlashDevice<D> {
    config: FlashConfig,
    policy: Box<dyn CleaningPolicy>,
    data: D,
    log: LogSpace,
    free: VecDeque<u32>,
    open: Vec<Option<OpenBlock>>,
    cache: BTreeMap<u32, Cached>,
    wear: Vec<u32>,
    rng: Rng,
    /// Whether the relocation is for the sake of wear.
    levelling: bool,
    clock: Option<Clock>,
    smart: Smart,
    now: Tick,
    pages: u32,
    pages_per_block: u32,
    /// Superblocks that may be open at a time.
    open_limit: usize,
}

impl<D> std::fmt::Debug for FlashDevice<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FlashDevice").finish_non_exhaustive()
    }
}

impl<D: PageData> FlashDevice<D> {
    /// A fresh drive, all trimmed.
    ///
    /// # Errors
    /// If the configuration's numbers do not fit each other.
    pub fn new(config: FlashConfig, data: D) -> Result<Self, FlashError> {
        config.check()?;
        // check() bounds both by 2³¹.
        let (pages, blocks) = (config.pages() as u32, config.blocks() as u32);
        let policy = config.policy.build(u64::from(pages));
        let pages_per_block = config.block_bytes / config.page_bytes;
        let kind = policy.history_kind();
        Ok(Self {
            log: LogSpace::new(pages, blocks, pages_per_block, config.block_bytes, kind),
            free: (0..blocks).collect(),
            open: vec![None; usize::from(policy.streams())],
            cache: BTreeMap::new(),
            wear: vec![0; blocks as usize],
            rng: Rng::new(config.seed),
            levelling: false,
            clock: config.timing.map(Clock::new),
            smart: Smart::default(),
            now: 0,
            pages,
            pages_per_block,
            open_limit: (config.spare_blocks() as usize / 3).max(2),
            policy,
            data,
            config,
        })
    }

    /// The configuration.
    pub fn config(&self) -> &FlashConfig {
        &self.config
    }

    /// The storage of the contents.
    pub fn data_mut(&mut self) -> &mut D {
        &mut self.data
    }

    /// Number of logical pages.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// The counters.
    pub fn smart(&self) -> Smart {
        self.smart
    }

    /// Erases of each superblock.
    pub fn wear(&self) -> &[u32] {
        &self.wear
    }

    /// Reads a page at `at` and returns when it is there.
    ///
    /// # Errors
    /// A page beyond the end, or a buffer that is not one page long.
    pub fn read(&mut self, page: u32, out: &mut [u8], at: Nanos) -> Result<Nanos, FlashError> {
        self.check_page(page)?;
        self.check_buffer(out.len())?;
        self.smart.host_read_bytes += out.len() as u64;
        let slot = self.log.space.get(page);
        match self.cache.get(&page) {
            Some(Cached::Written(Some(contents))) => out.copy_from_slice(contents),
            Some(_) => out.fill(0),
            None if slot < BUFFERED => {
                self.data.read(slot, out);
                self.smart.flash_read_bytes += out.len() as u64;
                return Ok(self.clock.as_mut().map_or(at, |clock| clock.read(slot, at)));
            }
            None => out.fill(0),
        }
        Ok(self.cache_time(at))
    }

    /// Writes a page at `at` and returns when the drive reports it written (with a write cache:
    /// cached).
    ///
    /// # Errors
    /// A page beyond the end, or a buffer that is not one page long.
    pub fn write(&mut self, page: u32, contents: &[u8], at: Nanos) -> Result<Nanos, FlashError> {
        self.check_buffer(contents.len())?;
        let kept = self.data.keeps_contents().then(|| contents.into());
        self.write_kept(page, kept, at)
    }

    fn write_kept(
        &mut self,
        page: u32,
        contents: Option<Box<[u8]>>,
        at: Nanos,
    ) -> Result<Nanos, FlashError> {
        self.check_page(page)?;
        self.smart.host_written_bytes += u64::from(self.config.page_bytes);
        if self.config.cache_pages == 0 {
            let done = self.program_batch(vec![(page, Cached::Written(contents))], at)?;
            return Ok(done.max(self.cache_time(at)));
        }
        let capacity = self.config.cache_pages as usize;
        let cached = self.cache.len();
        let start = self
            .clock
            .as_mut()
            .map_or(at, |clock| clock.room(at, capacity, cached));
        self.cache.insert(page, Cached::Written(contents));
        if self.cache.len() >= capacity {
            self.destage(start)?;
        }
        Ok(self.cache_time(start))
    }

    /// Declares `count` pages from `first` unneeded. Takes effect, as a write does, in the cache
    /// first.
    ///
    /// # Errors
    /// A range that ends beyond the drive.
    pub fn trim(&mut self, first: u32, count: u32, at: Nanos) -> Result<Nanos, FlashError> {
        let end = u64::from(first) + u64::from(count);
        if end > u64::from(self.pages) {
            return Err(self.out_of_range(u64::from(self.pages.max(first))));
        }
        self.smart.host_trimmed_bytes += u64::from(count) * u64::from(self.config.page_bytes);
        for page in first..first + count {
            if self.config.cache_pages == 0 {
                self.forget(page);
                self.forget_history(page);
                continue;
            }
            self.cache.insert(page, Cached::Trimmed);
            if self.cache.len() >= self.config.cache_pages as usize {
                self.destage(at)?;
            }
        }
        Ok(self.cache_time(at))
    }

    /// Makes everything written and trimmed so far durable and returns when it is.
    ///
    /// # Errors
    /// If cleaning finds no space.
    pub fn flush(&mut self, at: Nanos) -> Result<Nanos, FlashError> {
        self.smart.host_flushes += 1;
        self.destage(at)?;
        Ok(self.clock.as_ref().map_or(at, |clock| clock.idle().max(at)))
    }

    /// Makes what the cache holds of `count` pages from `first` durable, and nothing else, as a
    /// write with forced unit access does; returns when it is.
    ///
    /// # Errors
    /// If cleaning finds no space.
    pub fn persist(&mut self, first: u32, count: u32, at: Nanos) -> Result<Nanos, FlashError> {
        let pages = first..first.saturating_add(count);
        let held = pages.filter_map(|page| Some((page, self.cache.remove(&page)?)));
        let held = held.collect();
        self.program_batch(held, at)
    }

    /// Power fails. Each page that the write cache holds is on flash, or not, or in part, whatever
    /// the order in which they were written; flushed pages are as they were.
    ///
    /// # Errors
    /// If cleaning finds no space for the remaining pages.
    pub fn power_cut(&mut self) -> Result<(), FlashError> {
        self.smart.power_cuts += 1;
        let mut left = Vec::new();
        for (page, cached) in std::mem::take(&mut self.cache) {
            match (cached, self.rng.below(5)) {
                (Cached::Trimmed, 0..=1) => {}
                (Cached::Written(_), 0..=1) => self.smart.lost_pages += 1,
                (Cached::Written(Some(contents)), 2) => {
                    let torn = self.torn(page, contents);
                    left.push((page, Cached::Written(Some(torn))));
                }
                (cached, _) => left.push((page, cached)),
            }
        }
        self.program_batch(left, 0).map(drop)
    }

    /// `page` with some sectors of `contents` and the others as flash has them.
    fn torn(&mut self, page: u32, mut contents: Box<[u8]>) -> Box<[u8]> {
        let sector = self.config.sector_bytes as usize;
        if sector >= contents.len() {
            return contents;
        }
        let mut before = vec![0; contents.len()];
        let slot = self.log.space.get(page);
        if slot < BUFFERED {
            self.data.read(slot, &mut before);
        }
        self.smart.torn_pages += 1;
        for (new, old) in contents.chunks_mut(sector).zip(before.chunks(sector)) {
            if self.rng.below(2) == 0 {
                new.copy_from_slice(old);
            }
        }
        contents
    }

    /// Paper 002's first state: everything trimmed, durably.
    ///
    /// # Errors
    /// If cleaning finds no space.
    pub fn trim_all(&mut self) -> Result<(), FlashError> {
        self.trim(0, self.pages, 0)?;
        self.flush(0).map(drop)
    }

    /// Paper 002's second state: all pages written in order, then random pages, `times` × capacity
    /// (the paper: 2). The contents become zeros. Counters go on counting; take [`Smart::since`] a
    /// copy made afterwards.
    ///
    /// # Errors
    /// If cleaning finds no space.
    pub fn precondition(&mut self, times: f64, seed: u64) -> Result<(), FlashError> {
        let zeros = self
            .data
            .keeps_contents()
            .then(|| vec![0; self.config.page_bytes as usize].into_boxed_slice());
        for page in 0..self.pages {
            self.write_kept(page, zeros.clone(), 0)?;
        }
        let mut rng = Rng::new(seed);
        for _ in 0..(f64::from(self.pages) * times) as u64 {
            let page = rng.below(self.pages);
            self.write_kept(page, zeros.clone(), 0)?;
        }
        self.flush(0)?;
        self.clock = self.config.timing.map(Clock::new);
        Ok(())
    }

    fn check_page(&self, page: u32) -> Result<(), FlashError> {
        if page < self.pages {
            Ok(())
        } else {
            Err(self.out_of_range(u64::from(page)))
        }
    }

    fn out_of_range(&self, page: u64) -> FlashError {
        FlashError::OutOfRange {
            page,
            pages: u64::from(self.pages),
        }
    }

    fn check_buffer(&self, buffer_bytes: usize) -> Result<(), FlashError> {
        let page_bytes = self.config.page_bytes;
        if buffer_bytes == page_bytes as usize {
            Ok(())
        } else {
            Err(FlashError::BufferSize {
                page_bytes,
                buffer_bytes,
            })
        }
    }

    fn cache_time(&self, at: Nanos) -> Nanos {
        self.clock.as_ref().map_or(at, |clock| clock.cache(at))
    }

    /// Moves the whole write cache to flash.
    fn destage(&mut self, at: Nanos) -> Result<(), FlashError> {
        let batch: Vec<_> = std::mem::take(&mut self.cache).into_iter().collect();
        self.program_batch(batch, at).map(drop)
    }

    /// Applies cached writes and trims to flash and returns when the last program is done.
    fn program_batch(&mut self, batch: Vec<(u32, Cached)>, at: Nanos) -> Result<Nanos, FlashError> {
        let mut writes = Vec::with_capacity(batch.len());
        for (index, (page, cached)) in batch.iter().enumerate() {
            self.now += 1;
            let old = self.history_of(*page);
            self.forget(*page);
            if matches!(cached, Cached::Written(_)) {
                let history = self.policy.updated(old, self.now);
                writes.push(self.page_write(index as u64, Cause::User, history));
            } else {
                self.forget_history(*page);
            }
        }
        self.policy.order(&mut writes, self.now);
        let mut done = at;
        for write in &writes {
            let (page, cached) = &batch[write.token as usize];
            self.make_room(at)?;
            let slot = self.append(*page, write)?;
            if let Cached::Written(Some(contents)) = cached {
                self.data.write(slot, contents);
            }
            if let Some(clock) = &mut self.clock {
                let programmed = clock.program(slot, at);
                clock.drain(programmed);
                done = done.max(programmed);
            }
        }
        Ok(done)
    }

    fn page_write(&self, token: u64, cause: Cause, history: History) -> PageWrite {
        PageWrite {
            token,
            bytes: self.config.page_bytes,
            cause,
            history,
            rate: 0.0,
        }
    }

    fn history_of(&self, page: u32) -> History {
        let slot = self.log.space.get(page);
        match slot < BUFFERED {
            true => {
                let segment = self.log.space.segment_of(slot);
                self.log.history(&*self.policy, page, segment)
            }
            false => self.log.own_history(page),
        }
    }

    /// The version of `page` on flash, if any, is obsolete.
    fn forget(&mut self, page: u32) {
        let slot = self.log.space.get(page);
        if slot < BUFFERED {
            let at = (slot, self.log.space.segment_of(slot));
            let bytes = self.config.page_bytes;
            self.log
                .invalidate(&mut *self.policy, at, bytes, 0.0, self.now);
            self.log.space.set(page, NOWHERE);
        }
    }

    /// A trimmed page has no history of its own any more.
    fn forget_history(&mut self, page: u32) {
        let old = self.log.own_history(page);
        if old != History::UNKNOWN {
            self.log.clear_history(page);
            self.policy.forgotten(old);
        }
    }

    /// Takes the next slot of the page's stream, maps the page there and returns the slot.
    fn append(&mut self, page: u32, write: &PageWrite) -> Result<u32, FlashError> {
        let wanted = self.policy.place(write, self.now);
        let stream = self.stream_with_room(wanted)?;
        let Some(open) = &mut self.open[stream.index()] else {
            return Err(FlashError::NoSpace {
                free_blocks: self.free.len(),
            });
        };
        let (block, used) = (open.block, open.used);
        open.used += 1;
        let slot = self.log.space.first_slot(block) + used;
        self.log.put(&mut *self.policy, (slot, block), page, write);
        self.smart.flash_written_bytes += u64::from(write.bytes);
        if used + 1 == self.pages_per_block {
            self.open[stream.index()] = None;
            self.log.seal(&mut *self.policy, block, self.now);
        }
        Ok(slot)
    }

    /// `wanted` with an open superblock, or the nearest stream that has one: when opening another
    /// would take the last free superblock, which cleaning needs to finish, or leave too much of
    /// the spare flash lying open.
    fn stream_with_room(&mut self, wanted: StreamId) -> Result<StreamId, FlashError> {
        if self.open[wanted.index()].is_some() {
            return Ok(wanted);
        }
        let opened = self
            .open
            .iter()
            .enumerate()
            .filter(|(_, open)| open.is_some())
            .map(|(i, _)| i);
        if self.free.len() <= 1 || opened.clone().count() >= self.open_limit {
            let nearest = opened.min_by_key(|&i| i.abs_diff(wanted.index()));
            if let Some(nearest) = nearest {
                return Ok(StreamId(nearest as u16));
            }
        }
        let block = self
            .take_free()
            .ok_or(FlashError::NoSpace { free_blocks: 0 })?;
        self.log.table.open(SegmentId(block), wanted);
        self.open[wanted.index()] = Some(OpenBlock { block, used: 0 });
        Ok(wanted)
    }

    /// Cleans until enough superblocks are free.
    fn make_room(&mut self, at: Nanos) -> Result<(), FlashError> {
        // Every cycle gains at least a page; a drive that needs more cycles than this is as good as
        // full.
        let cycles_max = 8 * self.wear.len();
        for _ in 0..cycles_max {
            if self.free.len() >= self.config.clean_below as usize {
                return Ok(());
            }
            self.clean(at)?;
        }
        Err(FlashError::NoSpace {
            free_blocks: self.free.len(),
        })
    }

    /// Seals the open superblock with the most obsolete and unused space, so that it can be
    /// cleaned.
    fn close_emptiest(&mut self) -> Result<(), FlashError> {
        let live = |open: &OpenBlock| self.log.table.live_bytes(SegmentId(open.block));
        let opened = self
            .open
            .iter()
            .enumerate()
            .filter_map(|(i, open)| open.as_ref().map(|open| (live(open), i)));
        let (_, stream) = opened.min().ok_or(FlashError::NoSpace {
            free_blocks: self.free.len(),
        })?;
        if let Some(open) = self.open[stream].take() {
            self.log.seal(&mut *self.policy, open.block, self.now);
        }
        Ok(())
    }

    /// Cleans one batch of superblocks: copies their live pages elsewhere and erases them.
    fn clean(&mut self, at: Nanos) -> Result<(), FlashError> {
        let mut victims = Vec::new();
        self.policy.select_victims(
            &self.log.table,
            self.now,
            self.config.clean_batch as usize,
            &mut victims,
        );
        if victims.is_empty() {
            return self.close_emptiest();
        }
        for victim in victims {
            self.log.table.begin_cleaning(victim);
            self.relocate(victim, at)?;
            self.erase(victim, at);
        }
        self.level_wear(at)
    }

    /// Moves the data of the least worn sealed superblock, if that was erased much less often than
    /// others: data that never changes would keep it from wearing, and the others would
    /// wear out before it.
    fn level_wear(&mut self, at: Nanos) -> Result<(), FlashError> {
        let Some(difference_max) = self.config.wear_difference_max else {
            return Ok(());
        };
        // Its contents must fit, and levelling must not write more than cleaning does.
        if self.free.len() < 2 || !self.smart.erases.is_multiple_of(LEVEL_EVERY) {
            return Ok(());
        }
        let most = self.wear.iter().copied().max().unwrap_or(0);
        let sealed = (0..self.log.table.len()).map(SegmentId);
        let sealed = sealed.filter(|&block| self.log.table.state(block) == SegmentState::Sealed);
        let Some(least) = sealed.min_by_key(|block| self.wear[block.index()]) else {
            return Ok(());
        };
        if most - self.wear[least.index()] <= difference_max {
            return Ok(());
        }
        self.smart.flash_levelled_bytes += u64::from(self.log.table.live_bytes(least));
        self.log.table.begin_cleaning(least);
        self.levelling = true;
        let relocated = self.relocate(least, at);
        self.levelling = false;
        relocated?;
        self.erase(least, at);
        Ok(())
    }

    /// A free superblock: with wear levelling the most worn one for data that does not change, else
    /// the least worn.
    fn take_free(&mut self) -> Option<u32> {
        if self.config.wear_difference_max.is_none() {
            return self.free.pop_front();
        }
        let wear = |&at: &usize| self.wear[self.free[at] as usize];
        let places = 0..self.free.len();
        let place = match self.levelling {
            true => places.max_by_key(wear),
            false => places.min_by_key(wear),
        };
        self.free.remove(place?)
    }

    fn relocate(&mut self, victim: SegmentId, at: Nanos) -> Result<(), FlashError> {
        let mut slots = Vec::new();
        self.log.space.valid_slots(victim.0, &mut slots);
        let mut writes = Vec::with_capacity(slots.len());
        for &slot in &slots {
            let old = self.history_of(self.log.space.page_at(slot));
            let history = self.policy.survived(old, self.now);
            writes.push(self.page_write(u64::from(slot), Cause::Relocated, history));
        }
        self.policy.order(&mut writes, self.now);
        for write in &writes {
            let from = write.token as u32;
            let page = self.log.space.page_at(from);
            self.log.space.invalidate(from);
            self.log.table.invalidate(victim, write.bytes);
            let to = self.append(page, write)?;
            self.data.copy(from, to);
            self.smart.flash_read_bytes += u64::from(write.bytes);
            self.smart.flash_relocated_bytes += u64::from(write.bytes);
            if let Some(clock) = &mut self.clock {
                let read = clock.read_for_cleaning(from, at);
                clock.program(to, read);
            }
        }
        Ok(())
    }

    fn erase(&mut self, victim: SegmentId, at: Nanos) {
        let first = self.log.space.first_slot(victim.0);
        self.data.erase(first..first + self.pages_per_block);
        self.log.free(&mut *self.policy, victim);
        self.free.push_back(victim.0);
        self.wear[victim.index()] += 1;
        self.smart.erases += 1;
        if let Some(clock) = &mut self.clock {
            clock.erase(at);
        }
    }
}

#[cfg(test)]
#[path = "device_tests.rs"]
mod tests;

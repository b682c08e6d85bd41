//! The drive itself: mapping, write cache, cleaning, wear.

mod state;

pub use state::FlashState;

use std::collections::BTreeMap;

use super::config::{FlashConfig, FlashError};
use super::data::PageData;
use super::timing::{Clock, Nanos};
use crate::log_space::{LogSpace, Owner, Shape};
use crate::policy::{Cause, CleaningPolicy, History, PageWrite, SegmentId, SegmentState, StreamId};
use crate::rng::Rng;
use crate::space::{BUFFERED, NOWHERE};

/// The drive's counters, as SMART would report them. Stored, they are those of the host, of flash
/// and of erases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
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
    /// Bytes that wear levelling moved; part of `flash_relocated_bytes`. 0 for what drives moved
    /// before it was counted.
    #[cfg_attr(feature = "serde", serde(default))]
    pub flash_levelled_bytes: u64,
    /// Bytes read from flash, for the host and by cleaning.
    pub flash_read_bytes: u64,
    /// Superblocks erased.
    pub erases: u64,
    /// Power cuts survived.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub power_cuts: u64,
    /// Host writes that a power cut took out of the write cache.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub lost_pages: u64,
    /// Host writes of which a power cut left parts.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub torn_pages: u64,
}

impl Smart {
    /// WA-D of paper 002: bytes programmed into flash per byte that the host wrote; `None` if it
    /// wrote nothing.
    pub fn wa_d(&self) -> Option<f64> {
        let host = self.host_written_bytes;
        (host > 0).then(|| self.flash_written_bytes as f64 / host as f64)
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

/// A page-mapped SSD.
///
/// Operations are on logical pages and atomic. Writes and trims are durable after the
/// next [`flush`](Self::flush) (at once without a write cache); of what the cache still holds a
/// [`power_cut`](Self::power_cut) leaves any subset, and parts of pages, if
/// [`FlashConfig::sector_bytes`] says so. Reads of pages never written, or trimmed, give zeros.
pub struct FlashDevice<D> {
    config: FlashConfig,
    data: D,
    log: LogSpace<Box<dyn CleaningPolicy>>,
    cache: BTreeMap<u32, Cached>,
    wear: Vec<u32>,
    rng: Rng,
    /// Whether the relocation is for the sake of wear.
    levelling: bool,
    clock: Option<Clock>,
    /// When the operation under way arrived.
    at: Nanos,
    smart: Smart,
    pages: u32,
    pages_per_block: u32,
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
        let shape = Shape {
            pages,
            segments: blocks,
            segment_bytes: config.block_bytes,
            smallest_page: config.page_bytes,
            // Cleaning needs the last free superblock to finish, and not too much of the spare
            // flash may lie open.
            open_max: (config.spare_blocks() as usize / 3).max(2),
            free_min: 2,
        };
        Ok(Self {
            log: LogSpace::new(config.policy.build(u64::from(pages)), shape),
            cache: BTreeMap::new(),
            wear: vec![0; blocks as usize],
            rng: Rng::new(config.seed),
            levelling: false,
            clock: config.timing.map(Clock::new),
            at: 0,
            smart: Smart::default(),
            pages,
            pages_per_block: config.block_bytes / config.page_bytes,
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
                self.drop_version(page, true);
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
        self.at = at;
        let mut writes = Vec::with_capacity(batch.len());
        for (token, (page, cached)) in (0..).zip(&batch) {
            self.log.now += 1;
            let is_trimmed = matches!(cached, Cached::Trimmed);
            let old = self.drop_version(*page, is_trimmed);
            if !is_trimmed {
                writes.push(PageWrite {
                    token,
                    bytes: self.config.page_bytes,
                    cause: Cause::User,
                    history: self.log.policy.updated(old, self.log.now),
                    rate: 0.0,
                });
            }
        }
        self.log.policy.order(&mut writes, self.log.now);
        let mut done = at;
        for write in &writes {
            let (page, cached) = &batch[write.token as usize];
            self.make_room()?;
            let slot = self.append(*page, write, true)?;
            self.smart.flash_written_bytes += u64::from(write.bytes);
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

    /// The version of `page` on flash, if any, is obsolete, and nothing comes after it if it is
    /// trimmed; the page's history.
    fn drop_version(&mut self, page: u32, is_trimmed: bool) -> History {
        let old = self.log.invalidate(page, self.config.page_bytes, 0.0);
        self.log.space.set(page, NOWHERE);
        if is_trimmed {
            self.log.forget(page, old);
        }
        old
    }

    /// Cleans until enough superblocks are free.
    fn make_room(&mut self) -> Result<(), FlashError> {
        // Every cycle gains at least a page; a drive that needs more cycles than this is as good as
        // full.
        let cycles_max = 8 * self.wear.len();
        for _ in 0..cycles_max {
            if self.log.free.len() >= self.config.clean_below as usize {
                return Ok(());
            }
            match self.clean(self.config.clean_batch as usize)? {
                true => self.level_wear()?,
                false => self.close_emptiest()?,
            }
        }
        Err(self.no_space())
    }

    /// Seals the open superblock with the most obsolete and unused space, so that it can be
    /// cleaned.
    fn close_emptiest(&mut self) -> Result<(), FlashError> {
        let streams = (0..).map(StreamId).zip(&self.log.open);
        let opened = streams.filter(|(_, open)| !open.is_closed());
        let live = opened
            .map(|(stream, open)| (self.log.table.live_bytes(SegmentId(open.segment)), stream));
        let (_, stream) = live.min().ok_or_else(|| self.no_space())?;
        self.log.seal(stream);
        Ok(())
    }

    /// Moves the data of the least worn sealed superblock, if that was erased much less often than
    /// others: data that never changes would keep it from wearing, and the others would
    /// wear out before it.
    fn level_wear(&mut self) -> Result<(), FlashError> {
        let Some(difference_max) = self.config.wear_difference_max else {
            return Ok(());
        };
        // Its contents must fit, and levelling must not write more than cleaning does.
        if self.log.free.len() < 2 || !self.smart.erases.is_multiple_of(LEVEL_EVERY) {
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
        self.levelling = true;
        let moved = self.empty(&[least]);
        self.levelling = false;
        moved
    }
}

impl<D: PageData> Owner for FlashDevice<D> {
    type Policy = Box<dyn CleaningPolicy>;
    type Error = FlashError;
    const FREES_FIRST: bool = false;

    fn log(&mut self) -> &mut LogSpace<Self::Policy> {
        &mut self.log
    }

    fn size(&self, _page: u32) -> u32 {
        self.config.page_bytes
    }

    fn rate(&self, _page: u32) -> f32 {
        0.0
    }

    /// With wear levelling the most worn one for data that does not change, else the least worn.
    fn take_free(&mut self) -> Option<u32> {
        if self.config.wear_difference_max.is_none() {
            return self.log.free.pop_front();
        }
        let wear = |&at: &usize| self.wear[self.log.free[at] as usize];
        let places = 0..self.log.free.len();
        let place = match self.levelling {
            true => places.max_by_key(wear),
            false => places.min_by_key(wear),
        };
        self.log.free.remove(place?)
    }

    fn no_space(&self) -> FlashError {
        FlashError::NoSpace {
            free_blocks: self.log.free.len(),
        }
    }

    fn selected(&mut self, _victims: &mut [SegmentId]) {}

    fn moved(&mut self, from: u32, to: u32, bytes: u32) {
        self.data.copy(from, to);
        self.smart.flash_written_bytes += u64::from(bytes);
        self.smart.flash_read_bytes += u64::from(bytes);
        self.smart.flash_relocated_bytes += u64::from(bytes);
        if let Some(clock) = &mut self.clock {
            let read = clock.read_for_cleaning(from, self.at);
            clock.program(to, read);
        }
    }

    fn erased(&mut self, victim: SegmentId) {
        let first = self.log.space.first_slot(victim.0);
        self.data.erase(first..first + self.pages_per_block);
        self.wear[victim.index()] += 1;
        self.smart.erases += 1;
        if let Some(clock) = &mut self.clock {
            clock.erase(self.at);
        }
    }
}

#[cfg(test)]
#[path = "device_tests.rs"]
mod tests;

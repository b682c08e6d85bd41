//! Checkpoints: the mapping table on the volume, page by page as it changes,
//! and the superblock that names it (docs/decisions/0014).

use std::sync::Arc;
use std::time::Duration;

use isobath_io::{AlignedBuf, Volume, VolumeError};

use crate::canary::{self, Canary};
use crate::checkpoint::format::{self, Array, Sink, words_per_page};
use crate::checkpoint::{Checkpoints, SUPERBLOCK_OFFSETS, Superblock};
use crate::error::StorageError;
use crate::log::LogTasks;
use crate::page::{Lsn, PAGE_SIZE, PageId, put_u64};
use crate::pagestore::{PageStore, summaries};
use crate::runtime::{Worker, clock};
use crate::shared::{Address, Counters};
use crate::sync::HashMap;
use crate::sync::atomic::Ordering;
use crate::{small, trace};

/// Words per segment in a checkpoint.
pub(crate) const SEGMENT_WORDS: u64 = 4;
/// Bytes of one write.
const RUN_BYTES: usize = 256 << 10;

/// The checkpoint that a recovery would begin with, and where its pages lie.
pub(crate) struct CheckpointState {
    pub(crate) superblock: Superblock,
    /// Per page of the mapping table: its address and its stamp.
    pub(crate) directory: Vec<(Address, u64)>,
    /// All other pages.
    pub(crate) others: Vec<Address>,
    /// Segments of checkpoint pages: how many of their pages are in use.
    pub(crate) segments: HashMap<u32, u32>,
    /// The segment that is being filled, and its next byte.
    pub(crate) open: Option<(u32, u32)>,
}

impl CheckpointState {
    /// What a new store has: nothing but its superblock.
    pub(crate) fn of_new(superblock: Superblock) -> CheckpointState {
        CheckpointState {
            superblock,
            directory: Vec::new(),
            others: Vec::new(),
            segments: HashMap::default(),
            open: None,
        }
    }
}

/// What became of a checkpoint that was to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// It needs nothing of the log before the place that was given, but for what a backup holds.
    Written,
    /// It needs less of the log than the one before; the log had no space for the records of all pages.
    WrittenInPart,
    /// Another task has the right to write one, or it would have freed nothing of a log that is full.
    NotWritten,
}

impl Outcome {
    /// Whether it needs nothing of the log before the place that was given.
    pub(crate) fn is_whole(self) -> bool {
        self == Outcome::Written
    }
}

/// How a checkpoint reaches the volume: as a task, which lets others run
/// meanwhile, or blocking, once the workers have ended.
pub(crate) enum CheckpointIo<'a> {
    Task(&'a Worker),
    Volume(Volume),
}

impl CheckpointIo<'_> {
    fn write(&self, at: u64, bytes: &AlignedBuf, length: usize) -> Result<(), StorageError> {
        match self {
            CheckpointIo::Task(worker) => worker.write(at, &bytes.as_slice()[..length]),
            CheckpointIo::Volume(volume) => volume.write_at(at, &bytes.as_slice()[..length]),
        }
        .map_err(StorageError::Io)
    }

    fn flush(&self) -> Result<(), StorageError> {
        match self {
            CheckpointIo::Task(worker) => worker.flush(),
            CheckpointIo::Volume(volume) => volume.sync(),
        }
        .map_err(StorageError::Io)
    }

    /// Waits until every record up to now is durable.
    fn flush_log(&self, log_tasks: &LogTasks) -> Result<(), StorageError> {
        match self {
            CheckpointIo::Task(worker) => log_tasks.wait_all_durable(worker),
            // The last task has waited for it.
            CheckpointIo::Volume(_) => Ok(()),
        }
    }

    /// Waits until the ends of all chunks that have no word now are in the log.
    fn wait_for_frees(&self, pagestore: &PageStore) -> Result<(), StorageError> {
        match self {
            CheckpointIo::Task(worker) => pagestore.wait_for_frees(worker),
            // No task is left that could free any.
            CheckpointIo::Volume(_) => Ok(()),
        }
    }

    /// Waits for a segment that the cleaner may yet free.
    fn wait_for_segment(&self, pagestore: &PageStore) -> Result<(), StorageError> {
        match self {
            CheckpointIo::Task(worker) => pagestore.wait_for_free_segment(worker),
            CheckpointIo::Volume(_) => Ok(()),
        }
    }

    /// Writes a superblock to the place that its sequence number chooses.
    pub(crate) fn superblock(&self, superblock: &Superblock) -> Result<(), StorageError> {
        let place = SUPERBLOCK_OFFSETS[superblock.sequence as usize % 2];
        let mut bytes = AlignedBuf::new(PAGE_SIZE);
        bytes.as_mut_slice().copy_from_slice(&superblock.encode());
        self.write(place, &bytes, PAGE_SIZE)?;
        if canary::is_on(Canary::SkipSuperblockFlush) {
            return Ok(());
        }
        self.flush()
    }
}

/// Pages of a checkpoint on their way to the volume, neighbours in one write.
struct Pages<'a> {
    checkpoints: &'a Checkpoints,
    via: &'a CheckpointIo<'a>,
    current: &'a mut CheckpointState,
    stamp: u64,
    run: AlignedBuf,
    run_at: Address,
    run_bytes: usize,
    written: Vec<Address>,
}

impl Pages<'_> {
    fn place(&mut self) -> Result<Address, StorageError> {
        let sizes = self.checkpoints.lower.shared.config.sizes;
        if let Some((segment, next)) = self.current.open
            && next + PAGE_SIZE as u32 <= sizes.bytes
        {
            self.current.open = Some((segment, next + PAGE_SIZE as u32));
            *self.current.segments.entry(segment).or_insert(0) += 1;
            return Ok(Address::new(segment, next, PAGE_SIZE as u32));
        }
        let segment = self.take_segment()?;
        self.current.segments.insert(segment, 1);
        self.current.open = Some((segment, PAGE_SIZE as u32));
        Ok(Address::new(segment, 0, PAGE_SIZE as u32))
    }

    fn take_segment(&mut self) -> Result<u32, StorageError> {
        if let Some(segment) = self.checkpoints.pagestore.take_for_checkpoint() {
            return Ok(segment);
        }
        self.via.wait_for_segment(&self.checkpoints.pagestore)?;
        // Rather than none, what a victim may need: its cleaner waits for others.
        let taken = self.checkpoints.pagestore.take_system();
        taken.ok_or_else(|| {
            let used = self.checkpoints.pagestore.allocated_bytes();
            let reason = "no segment is free for a checkpoint";
            StorageError::VolumeFull {
                used,
                limit: used,
                reason: Arc::new(VolumeError::Device(reason.into())),
            }
        })
    }

    fn flush(&mut self) -> Result<(), StorageError> {
        if self.run_bytes > 0 {
            let at = self.checkpoints.lower.shared.offset_of(self.run_at);
            self.via.write(at, &self.run, self.run_bytes)?;
            let counters = &self.checkpoints.lower.shared.counters;
            Counters::add(&counters.bytes_written, self.run_bytes as u64);
            Counters::add(&counters.checkpoint_bytes, self.run_bytes as u64);
            self.run_bytes = 0;
        }
        Ok(())
    }
}

impl Sink for Pages<'_> {
    type Error = StorageError;

    fn put(&mut self, id: PageId, fill: impl FnOnce(&mut [u8])) -> Result<Address, StorageError> {
        let address = self.place()?;
        let follows = self.run_bytes > 0
            && address.segment() == self.run_at.segment()
            && address.offset() == self.run_at.offset() + self.run_bytes as u32;
        if !follows || self.run_bytes == RUN_BYTES {
            self.flush()?;
            self.run_at = address;
        }
        let image = &mut self.run.as_mut_slice()[self.run_bytes..][..PAGE_SIZE];
        format::seal(image, id, self.stamp, fill);
        self.run_bytes += PAGE_SIZE;
        self.written.push(address);
        Ok(address)
    }
}

/// Writes those pages of the mapping table that changed and have ids below
/// `high_water`; where they were before.
///
/// Each is written to its end, whichever of its ids are in use: the page's bit tells
/// of all of them, and is taken here.
fn write_mapping(pages: &mut Pages<'_>, high_water: u64) -> Result<Vec<Address>, StorageError> {
    let count = high_water.div_ceil(words_per_page());
    pages
        .current
        .directory
        .resize(count as usize, (Address::NONE, 0));
    let mut replaced = Vec::new();
    for page in 0..count {
        let buffer = &pages.checkpoints.lower.buffer;
        if !buffer.changes.map_pages().take(page) {
            continue;
        }
        let first = page * words_per_page();
        let address = pages.put(format::mapping_page(page), |into| {
            for (at, id) in (first..first + words_per_page()).enumerate() {
                if id >= high_water && canary::is_on(Canary::ForgetNewPages) {
                    break;
                }
                put_u64(into, at * 8, buffer.stored_word(PageId(id)));
            }
        })?;
        let stamp = pages.stamp;
        let entry = &mut pages.current.directory[page as usize];
        replaced.push(std::mem::replace(entry, (address, stamp)).0);
    }
    pages.flush()?;
    if canary::is_on(Canary::ClearBitLate) {
        let bits = pages.checkpoints.lower.buffer.changes.map_pages();
        for page in 0..count {
            bits.take(page);
        }
    }
    Ok(replaced)
}

fn provisional_words(pagestore: &PageStore) -> Vec<u64> {
    let mut words = Vec::new();
    for (token, pages) in pagestore.provisional() {
        words.extend([token, pages.len() as u64]);
        words.extend(pages.iter().map(|page| page.0));
    }
    words
}

/// `dead` belong to no checkpoint any more: segments without others are free.
fn release(pagestore: &PageStore, current: &mut CheckpointState, dead: &[Address]) {
    for address in dead.iter().filter(|address| !address.is_none()) {
        if let Some(live) = current.segments.get_mut(&address.segment()) {
            *live -= 1;
        }
    }
    let open = current.open.map(|(segment, _)| segment);
    let is_free = |segment, live| live == 0 && Some(segment) != open;
    pagestore.release_system(&mut current.segments, is_free);
}

/// How long the checkpointer waits for the right to write checkpoints.
const RETRY: Duration = Duration::from_millis(1);
/// Share of the log's area that has to be written between two checkpoints.
const SHARE_BETWEEN: u64 = 16;

impl Checkpoints {
    /// Whether the checkpointer should write a checkpoint now.
    pub(crate) fn is_due(&self) -> bool {
        let since = self.checkpointed_at.load(Ordering::Relaxed);
        let least = self.lower.log.area_bytes() / SHARE_BETWEEN;
        let next = self.lower.log.next().0;
        let wanted = self.lower.log.checkpoint_wanted()
            && (next >= since + least
                || self.lower.log_tasks.wants_checkpoint_again()
                || self.lower.log.area_is_short());
        let begun = since.max(self.lower.log.start().0);
        let is_small = small::checkpoint_bytes().is_some_and(|bytes| next >= begun + bytes);
        (wanted || is_small)
            && self.frees_log()
            && !self.lower.shared.is_recovering()
            && !self.lower.shared.is_poisoned()
    }

    /// Makes the next checkpoint write its pages outside the segments that are being emptied.
    fn leave_fenced(&self, current: &mut CheckpointState) {
        self.pagestore.while_fenced(|is_behind| {
            if current.open.is_some_and(|(at, _)| is_behind(at)) {
                current.open = None;
            }
            for (page, (address, _)) in current.directory.iter().enumerate() {
                if !address.is_none() && is_behind(address.segment()) {
                    self.lower.buffer.changes.map_pages().mark_page(page as u64);
                }
            }
        });
    }

    /// Whether a checkpoint's pages lie in segments that are being emptied.
    pub(super) fn is_fenced(&self) -> bool {
        let mut found = false;
        if let Some(current) = self.current.lock().as_ref() {
            self.pagestore.while_fenced(|is_behind| {
                found = current.segments.keys().any(|&segment| is_behind(segment));
            });
        }
        found
    }

    /// Whether the log may begin later than it does: no backup holds it back.
    fn frees_log(&self) -> bool {
        let overlays = &self.lower.buffer.pool.overlays;
        self.lower.log.start() < self.lower.log_tasks.floor().min(overlays.floor())
    }

    /// Writes the final checkpoint. All pages have been written back, the log
    /// is durable, and every worker has ended.
    ///
    /// # Errors
    ///
    /// Any of the volume's; the store then counts as not closed.
    pub(crate) fn last_checkpoint(&self) -> Result<(), StorageError> {
        let volume = self.lower.shared.volume()?;
        let mut current = self.current.lock();
        let Some(current) = current.as_mut() else {
            return Err(StorageError::Closed);
        };
        self.close_segments(&volume)?;
        // Whatever happens to the log from here on, nothing in it is needed.
        let start = Lsn(self.lower.log.next().0.next_multiple_of(PAGE_SIZE as u64));
        // The superblock before needs the log from here on.
        let needed = Lsn(self.lower.log.start().0 / PAGE_SIZE as u64 * PAGE_SIZE as u64);
        self.write(current, &CheckpointIo::Volume(volume.clone()), start, true)?;
        self.discard_unused(&volume, needed, start);
        volume.displaced().map_or(Ok(()), |error| Err(error.into()))
    }

    /// Writes a checkpoint; `start` is where a recovery from it reads the log.
    /// Only the task that holds `current` writes checkpoints.
    ///
    /// # Errors
    ///
    /// Any of the volume's. The checkpoint before is still the one that counts
    /// then, but `current` no longer tells which pages are its own.
    pub(super) fn write(
        &self,
        current: &mut CheckpointState,
        via: &CheckpointIo<'_>,
        start: Lsn,
        clean: bool,
    ) -> Result<(), StorageError> {
        let mut next = current.superblock.clone();
        next.sequence += 1;
        next.checkpoint = next.sequence;
        let (pagestore, log) = (&self.pagestore, &self.lower.log);
        assert!(start >= log.start(), "the log from there on is gone");
        // What gets an id after this has its records behind `start`.
        let begun_at = pagestore.high_water();
        let dead = std::mem::take(&mut current.others);
        self.leave_fenced(current);
        let mut pages = Pages {
            checkpoints: self,
            via,
            stamp: next.checkpoint,
            run: AlignedBuf::new(RUN_BYTES),
            run_at: Address::NONE,
            run_bytes: 0,
            written: Vec::new(),
            current,
        };
        let replaced = write_mapping(&mut pages, begun_at)?;
        // A chunk that the words leave out has ended for good once its record is durable.
        via.wait_for_frees(pagestore)?;
        // After the words: a chunk is listed before it has one.
        let provisional = provisional_words(pagestore);
        debug_assert!(
            !clean || provisional.is_empty(),
            "closing leaves nothing provisional"
        );
        // From here on, pages that are written belong to this checkpoint alone.
        pages.written.clear();
        let directory: Vec<u64> = pages
            .current
            .directory
            .iter()
            .flat_map(|(address, stamp)| [address.to_raw(), *stamp])
            .collect();
        next.directory = format::write(&mut pages, Array::Directory, &directory)?;
        let table = pagestore.segment_words(self.lower.shared.seqs());
        next.segment_table = format::write(&mut pages, Array::Segments, &table)?;
        next.provisional = format::write(&mut pages, Array::Provisional, &provisional)?;
        pages.flush()?;
        let written = std::mem::take(&mut pages.written);
        let dead: Vec<Address> = dead.into_iter().chain(replaced).collect();
        if canary::is_on(Canary::ReuseCheckpointEarly) {
            release(pagestore, current, &dead);
        }
        if !canary::is_on(Canary::SuperblockBeforeLog) {
            via.flush_log(&self.lower.log_tasks)?;
        }
        if !canary::is_on(Canary::SuperblockBeforePages) {
            via.flush()?;
        }
        // A write may have failed since `start` was found: of what it was to bring to
        // the volume, nothing but the log before `start` may know.
        self.lower.shared.not_poisoned()?;
        self.look_for_files()?;
        let space = pagestore.superblock_begins(next.sequence + u64::from(clean));
        next.segments = space.segments;
        next.next_segment_seq = space.next_seq;
        next.tick = space.tick;
        next.clean = clean;
        next.next_lsn = log.next().0;
        next.log_start = start.0;
        next.log_durable = log.durable().0;
        if start >= log.first() {
            next.log_epoch = next.open_epoch;
        }
        // All ids that have a word in the pages above.
        let high_water = pagestore.high_water();
        next.page_high_water = high_water.min(begun_at.next_multiple_of(words_per_page()));
        // Of the values that the records before `start` are of, this has been said.
        next.may_have_large =
            pagestore.may_have_large() && !canary::is_on(Canary::CheckpointForgetsLarge);
        via.superblock(&next)?;
        if clean && !canary::is_on(Canary::CloseOneSuperblock) {
            // Either of them is enough to open the store.
            next.sequence += 1;
            via.superblock(&next)?;
        }
        current.superblock = next;
        current.others = written;
        if !canary::is_on(Canary::ReuseCheckpointEarly) {
            release(pagestore, current, &dead);
        }
        self.compact(current);
        Counters::add(&self.lower.shared.counters.checkpoints, 1);
        Ok(())
    }

    /// Has the pages of sparse segments written again by the next checkpoint,
    /// where checkpoints take more than twice the room that they need.
    fn compact(&self, current: &CheckpointState) {
        let per_segment = u64::from(self.lower.shared.config.sizes.bytes) / PAGE_SIZE as u64;
        let live: u64 = current.segments.values().map(|live| u64::from(*live)).sum();
        let enough = 2 * live.div_ceil(per_segment) + 1;
        if current.segments.len() as u64 <= enough {
            return;
        }
        let open = current.open.map(|(segment, _)| segment);
        let sparse = |segment: u32| {
            let live = current.segments.get(&segment).copied().unwrap_or(0);
            Some(segment) != open && u64::from(live) * 2 < per_segment
        };
        for (page, (address, _)) in current.directory.iter().enumerate() {
            if !address.is_none() && sparse(address.segment()) {
                self.lower.buffer.changes.map_pages().mark_page(page as u64);
            }
        }
    }

    /// Writes the summaries of all open segments; blocking, once the workers have ended.
    fn close_segments(&self, volume: &Volume) -> Result<(), StorageError> {
        for closing in &self.pagestore.close_all() {
            let mut bytes = vec![0; summaries::size(closing.entries.len()) as usize];
            let at = Address::new(closing.segment, closing.offset, bytes.len() as u32);
            let seq = self.lower.shared.seq_of(at);
            summaries::encode(&closing.entries, closing.segment, seq, &mut bytes);
            volume.write_at(self.lower.shared.offset_of(at), &bytes)?;
            self.pagestore.summary_written(closing.segment);
        }
        Ok(())
    }

    /// Wakes the checkpointer of `worker` if there is work for it; part of each step.
    #[inline]
    pub(crate) fn poll(&self, worker: &Worker, stopping: bool) -> bool {
        let idle = self.idle(worker);
        let wakes = idle.get().is_some() && (stopping || self.is_due() || self.log_grows());
        if wakes && let Some(task) = idle.take() {
            worker.make_ready(task);
        }
        wakes
    }

    /// The checkpointer's life: writes checkpoints while the log grows.
    pub(crate) fn run_checkpointer(&self, worker: &Worker) {
        let mut addition = None;
        while !self.lower.workers.is_stopping() {
            if !self.is_due() {
                if self.lengthen_log(worker, &mut addition) {
                    continue;
                }
                self.idle(worker).set(Some(worker.task_id()));
                worker.suspend();
                continue;
            }
            // The older half, or somewhat more: what was changed since will be changed again.
            let (start, next) = (self.lower.log.start(), self.lower.log.next());
            let half = Lsn(start.0 + (next.0 - start.0) / 2);
            let before = self.lower.buffer.after_late_records(half);
            match self.checkpoint(worker, before) {
                Ok(Outcome::Written | Outcome::WrittenInPart) => {
                    self.checkpointed_at.store(next.0, Ordering::Relaxed);
                    self.request_longer_log();
                }
                // A backup has the right to write checkpoints, for a moment, or the log is full and held.
                Ok(Outcome::NotWritten) => worker.sleep_until(clock::now() + RETRY),
                // The store is poisoned.
                Err(_) => {}
            }
        }
    }

    /// Looks whether the store's files are where they were opened.
    ///
    /// # Errors
    ///
    /// [`VolumeError::Removed`]: what is acknowledged from now on would be lost.
    fn look_for_files(&self) -> Result<(), StorageError> {
        match self.lower.shared.volume()?.displaced() {
            Some(error @ VolumeError::Removed { .. }) => Err(error.into()),
            Some(moved) => {
                let what = moved.to_string();
                trace::tell!(warn, "a file of the store was moved", what = what.as_str());
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Writes a checkpoint that needs none of the log before `before`, waiting
    /// until no dirty page needs it, or until the log is full. One at a time.
    ///
    /// # Errors
    ///
    /// Any of the volume's; the store is poisoned then.
    pub(crate) fn checkpoint(&self, worker: &Worker, before: Lsn) -> Result<Outcome, StorageError> {
        if self.current.lock().is_none() {
            return Ok(Outcome::NotWritten);
        }
        let _span = trace::span!("checkpoint");
        // Without the right to write it: a backup must not wait for pages that wait until it lets go of the log.
        let is_flushed = if canary::is_on(Canary::CutLogEarly) {
            Ok(true)
        } else {
            self.lower.buffer.flush_older_for_checkpoint(worker, before)
        };
        let is_flushed = is_flushed.inspect_err(|error| self.lower.shared.poison(error.clone()))?;
        let Some(mut current) = self.current.lock().take() else {
            return Ok(Outcome::NotWritten);
        };
        self.lower.log_tasks.checkpoint_begins();
        let start = self.recovery_start(|| worker.yield_now());
        let outcome = match is_flushed {
            true => Outcome::Written,
            false if start > self.lower.log.start() => Outcome::WrittenInPart,
            false => Outcome::NotWritten,
        };
        let written = match outcome {
            Outcome::NotWritten => Ok(()),
            _ => self.write(&mut current, &CheckpointIo::Task(worker), start, false),
        };
        if outcome == Outcome::NotWritten {
            // While the log is held, what is left would be used up before it can be freed.
            if !self.lower.log_tasks.is_held() {
                self.lower.log.give_last_space();
                self.pagestore.lend_reserve(true);
            }
        } else if written.is_ok() {
            self.lower.log.set_start(start);
            self.pagestore.lend_reserve(false);
            let number = current.superblock.checkpoint;
            trace::tell!(
                debug,
                "a checkpoint is written",
                number = number,
                log_start = start.0
            );
        }
        *self.current.lock() = Some(current);
        written.inspect_err(|error| self.lower.shared.poison(error.clone()))?;
        Ok(outcome)
    }
}

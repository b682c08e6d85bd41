//! Writing dirty pages back: in batches, ordered by expected lifetime, out of
//! place, by tasks of every worker (paper 001, section 3.3; paper 003, section 5.3).

use isobath_flash::policy::{Cause, PageWrite};
use isobath_io::AlignedBuf;

use crate::buffer::{FrameId, NotStarted, STAGING_BYTES, Stored};
use crate::canary::{self, Canary};
use crate::error::StorageError;
use crate::log::record::{Copied, MAPPED_BYTES, MAPPING_BYTES, Mapped};
use crate::log::{LogReservation, ReservationClass};
use crate::page::{self, Lsn, PAGE_SIZE, PageId, offset};
use crate::pagestore::{
    Content, NoSegment, PageStore, Placement, Request, SealedSegment, summaries,
};
use crate::runtime::Worker;
use crate::shared::{Address, Counters};
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::types::TreeId;

/// Pages that a writer takes at a time.
pub(crate) const BATCH: usize = STAGING_BYTES / PAGE_SIZE;

impl PageStore {
    /// Writes every dirty page, in a task; the store must have no other users.
    pub(crate) fn write_all(&self, worker: &Worker) -> Result<(), StorageError> {
        self.flush_all.store(true, Release);
        self.lower.workers.notify_all();
        while self.lower.buffer.pool.dirty.unwritten() > 0 && !self.lower.shared.is_poisoned() {
            worker.yield_now();
        }
        self.wait_for_pending_frees(worker)?;
        // The log's last word, too: nothing in it is needed after this.
        self.lower.log_tasks.wait_all_durable(worker)?;
        // Room for the checkpoint that follows.
        self.space.lock().reserve_for_checkpoint(true);
        let lacks_room = || {
            let space = self.space.lock();
            space.free_segments() < space.reserve()
        };
        self.request_cleaning();
        // Until the cleaners have made room, or found that they cannot.
        while lacks_room() && self.cleaning_wanted.load(Acquire) && !self.lower.shared.is_poisoned()
        {
            worker.yield_now();
        }
        self.lower.shared.writable()
    }

    /// The numbers that the limits of dirty pages depend on.
    pub(crate) fn stored(&self) -> Stored {
        Stored {
            allocated_bytes: self.allocated_bytes(),
            segment_bytes: self.lower.shared.config.sizes.bytes,
            gained_pages: self.pages_gained_by_cleaning(),
        }
    }

    /// Whether writers have something to do. While a task waits for fewer dirty pages they have,
    /// also if the limit has risen since: the end of a write wakes it.
    pub(super) fn writes_wanted(&self) -> bool {
        let dirty = &self.lower.buffer.pool.dirty;
        let unwritten = dirty.unwritten();
        let are_too_many = || {
            unwritten > self.lower.buffer.dirty_target(self.stored())
                || self.lower.buffer.awaits_fewer_dirty()
                || self.flush_all.load(Relaxed)
                || self.lower.buffer.changes.wants_pages_written()
        };
        (dirty.has_first() || dirty.queued() > 0 && are_too_many())
            && !self.lower.shared.is_poisoned()
    }
}

/// One write of pages or chunks.
pub(crate) struct Batch {
    pub(crate) requests: Vec<Request>,
    /// Writes for the policy to order; scratch space.
    writes: Vec<PageWrite>,
    pub(crate) placed: Vec<Placement>,
    pub(crate) closing: Vec<SealedSegment>,
    /// Per placed page or chunk: the version that is being written.
    pub(crate) versions: Vec<Lsn>,
    /// Per survivor that the cleaner moves: how the log calls its copy.
    pub(crate) copies: Vec<Copied>,
    /// Which of the writing tasks this is, in [`crate::buffer::ChangeTracker`].
    pub(crate) slot: usize,
    /// Its pages end with this record or later ones.
    pub(crate) ends_from: Lsn,
}

impl Batch {
    /// For the writing task `slot` of this worker.
    pub(crate) fn new(slot: usize) -> Batch {
        Batch {
            requests: Vec::with_capacity(BATCH),
            writes: Vec::new(),
            placed: Vec::with_capacity(BATCH),
            closing: Vec::new(),
            versions: Vec::with_capacity(BATCH),
            copies: Vec::with_capacity(BATCH),
            slot,
            ends_from: Lsn(0),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.requests.clear();
        self.clear_placed();
    }

    fn clear_placed(&mut self) {
        self.placed.clear();
        self.closing.clear();
        self.versions.clear();
        self.copies.clear();
    }
}

impl PageStore {
    /// A writer's life: writes batches while there are too many dirty pages.
    pub(crate) fn run_writer(&self, worker: &Worker, slot: usize) {
        let staging = &mut AlignedBuf::new(STAGING_BYTES);
        let mut batch = Batch::new(slot);
        let sort_run = self.sort_run();
        let mut frames = Vec::with_capacity(sort_run);
        loop {
            if !self.writes_wanted() {
                if self.lower.workers.is_stopping() {
                    return;
                }
                self.park_writer(worker);
                continue;
            }
            frames.clear();
            let shard = self.next_dirty_shard(worker);
            let dirty = &self.lower.buffer.pool.dirty;
            dirty.take(shard, sort_run, &mut frames);
            if frames.is_empty() {
                // All that is dirty is in other writers' hands.
                worker.yield_now();
                continue;
            }
            match self.write_frames(worker, &frames, Cause::User, staging, &mut batch) {
                Ok(0) => worker.yield_now(),
                Ok(_) => {}
                Err(error) => self.lower.shared.poison(error),
            }
        }
    }

    /// Writes the dirty ones of `frames`; how many those were.
    ///
    /// For [`Cause::Relocated`] the room is taken from the cleaner's reserve.
    pub(crate) fn write_frames(
        &self,
        worker: &Worker,
        frames: &[FrameId],
        cause: Cause,
        staging: &mut AlignedBuf,
        batch: &mut Batch,
    ) -> Result<usize, StorageError> {
        batch.clear();
        for &frame in frames {
            let header = self.lower.buffer.pool.frames.header(frame);
            // One that another writer has taken out of turn is that writer's.
            let is_others = cause == Cause::User && !header.is_queued();
            if is_others || !header.leave_queue() {
                continue;
            }
            batch.requests.push(Request {
                page: header.page(),
                is_run: false,
                write: PageWrite {
                    token: u64::from(frame),
                    bytes: PAGE_SIZE as u32,
                    cause,
                    history: header.history(),
                    rate: 0.0,
                },
            });
        }
        self.order(batch);
        let mut rest = 0;
        while rest < batch.requests.len() {
            let end = batch.requests.len().min(rest + BATCH);
            let room = self.mapping_reservation(worker, end - rest)?;
            let outcome = self.space.lock().place(
                Content::Pages,
                &batch.requests[rest..end],
                self.lower.shared.seqs(),
                &mut batch.placed,
                &mut batch.closing,
            );
            rest += batch.placed.len();
            self.write_placed(worker, staging, batch)?;
            drop(room);
            batch.clear_placed();
            match (outcome, cause) {
                (Ok(()), _) => {}
                (Err(NoSegment), Cause::User) => {
                    self.wait_for_segment(worker)?;
                }
                // A cleaner does not wait for what only cleaning can free.
                (Err(NoSegment), Cause::Relocated) => {
                    self.lower.shared.writable()?;
                    self.lower.shared.watch_for_space();
                    worker.yield_now();
                }
            }
        }
        Ok(batch.requests.len())
    }

    /// Room in the log for a mapping record of `copies` copies.
    pub(crate) fn mapping_reservation(
        &self,
        worker: &Worker,
        copies: usize,
    ) -> Result<LogReservation<'_>, StorageError> {
        let bytes = MAPPING_BYTES + copies * MAPPED_BYTES;
        let log = &self.lower.log_tasks;
        log.reserve(worker, bytes as u64, ReservationClass::System)
    }

    /// Has the policy order the requests by expected lifetime; those that are alike by their ids,
    /// in which loads number the pages in the order of their keys.
    fn order(&self, batch: &mut Batch) {
        batch.requests.sort_unstable_by_key(|request| request.page);
        let frames = &self.lower.buffer.pool.frames;
        let mut space = self.space.lock();
        let now = space.now;
        batch.writes.clear();
        for request in &batch.requests {
            let mut write = request.write;
            if !write.history.is_known() || space.keeps_page_histories() {
                let old = frames.header(write.token as FrameId).address();
                write.history = space.inherited(request.page, old);
            }
            write.history = space.policy.updated(write.history, now);
            batch.writes.push(write);
        }
        space.policy.order(&mut batch.writes, now);
        for (request, &write) in batch.requests.iter_mut().zip(&batch.writes) {
            let frame = write.token as FrameId;
            *request = Request {
                page: frames.header(frame).page(),
                // Of a frame that changes hands nothing is written.
                is_run: write.cause == Cause::User
                    && TreeId(frames.words(frame).u64_at(offset::TREE_ID) as u32).is_run(),
                write,
            };
        }
        // What goes to one segment lies side by side.
        batch.requests.sort_by_key(|request| request.is_run);
    }

    /// Copies the placed frames into staging, writes them, and installs their
    /// new addresses.
    fn write_placed(
        &self,
        worker: &Worker,
        staging: &mut AlignedBuf,
        batch: &mut Batch,
    ) -> Result<(), StorageError> {
        batch.ends_from = self.lower.log_tasks.oldest_end();
        for (at, placed) in batch.placed.iter_mut().enumerate() {
            let image = &mut staging.as_mut_slice()[at * PAGE_SIZE..][..PAGE_SIZE];
            let copied = self.copy_for_write(placed, batch.slot, image);
            if copied.is_none() {
                // The frame changed hands or is latched; what was placed is
                // dead before it is written.
                image.fill(0);
                placed.token = u64::MAX;
            }
            batch.versions.push(copied.unwrap_or_default());
        }
        let highest = match canary::is_on(Canary::WriteAheadOfLeast) {
            true => batch.versions.iter().copied().min(),
            false => batch.versions.iter().copied().max(),
        };
        let result = self
            .lower
            .log_tasks
            .wait_durable(worker, highest.unwrap_or_default())
            .and_then(|()| self.write_out(worker, staging, &batch.placed, &batch.closing));
        if let Err(error) = &result {
            // Before the frames say that they are not being written.
            self.lower.shared.poison(error.clone());
        }
        self.finish_frames(worker, batch, result.is_ok());
        result
    }

    /// Copies a dirty frame's page into `image`, sealed for its new place, and
    /// marks the frame as being written.
    fn copy_for_write(&self, placed: &Placement, slot: usize, image: &mut [u8]) -> Option<Lsn> {
        let pool = &self.lower.buffer.pool;
        let frame = placed.token as FrameId;
        // Too much held back is no harm.
        let hold = |oldest: Lsn| self.lower.buffer.changes.hold_batch(slot, oldest);
        let copy = || {
            if let Ok(whole) = <&mut [u8; PAGE_SIZE]>::try_from(&mut *image) {
                pool.frames.words(frame).load_all(whole);
            }
        };
        let started =
            pool.frames
                .header(frame)
                .start_write(placed.page, placed.history, hold, copy);
        let lsn = match started {
            Ok(lsn) => lsn,
            Err(NotStarted::Later) => {
                pool.queue(frame);
                return None;
            }
            Err(NotStarted::Never) => return None,
        };
        page::seal(
            image,
            placed.page,
            lsn,
            self.lower.shared.seq_of(placed.address),
        );
        Some(lsn)
    }

    /// Writes what lies in staging, one page or chunk after another, to where
    /// it was placed, in as few I/Os as possible, and the closing summaries; and flushes it.
    pub(crate) fn write_out(
        &self,
        worker: &Worker,
        staging: &AlignedBuf,
        placed: &[Placement],
        closing: &[SealedSegment],
    ) -> Result<(), StorageError> {
        self.write_unflushed(worker, staging, placed, closing)?;
        let flushed = self.lower.log.is_on() && !canary::is_on(Canary::SkipPageFlush);
        if flushed && !placed.is_empty() {
            // The mapping record that follows must name what is on the drive.
            self.lower.log_tasks.flush_volume(worker)?;
        }
        Ok(())
    }

    /// As [`PageStore::write_out`], without the flush.
    fn write_unflushed(
        &self,
        worker: &Worker,
        staging: &AlignedBuf,
        placed: &[Placement],
        closing: &[SealedSegment],
    ) -> Result<(), StorageError> {
        let (mut bytes, mut closing_bytes) = (0, 0);
        let result = worker.io_scope(|io| {
            let mut run_start = 0;
            let mut staged = 0;
            while run_start < placed.len() {
                let first = placed[run_start].address;
                let mut length = first.length();
                let mut run_end = run_start + 1;
                while run_end < placed.len() {
                    let next = placed[run_end].address;
                    if next.segment() != first.segment() || next.offset() != first.offset() + length
                    {
                        break;
                    }
                    length += next.length();
                    run_end += 1;
                }
                let from = &staging.as_slice()[staged..staged + length as usize];
                staged += length as usize;
                let at = self.lower.shared.offset_of(first);
                let whole = length.next_multiple_of(self.lower.shared.config.block_bytes);
                // A run that does not fill whole blocks, as where chunks of a store that was made
                // on smaller blocks are moved.
                if whole != length || !self.lower.buffer.is_aligned(from.as_ptr()) {
                    io.write_owned(at, padded_copy(from, whole));
                } else {
                    io.write(at, from);
                }
                bytes += u64::from(whole);
                run_start = run_end;
            }
            for closing in closing {
                let (at, summary) = self.summary_of(closing);
                closing_bytes += summary.len() as u64;
                io.write_owned(at, summary);
            }
        });
        let counters = &self.lower.shared.counters;
        Counters::add(&counters.bytes_written, bytes + closing_bytes);
        Counters::add(&counters.summary_bytes, closing_bytes);
        result.map_err(StorageError::Io)
    }

    /// The summary of a segment, and the byte of the volume where it is written.
    fn summary_of(&self, closing: &SealedSegment) -> (u64, AlignedBuf) {
        let size = summaries::size(closing.entries.len());
        let mut buffer = AlignedBuf::new(size as usize);
        let address = Address::new(closing.segment, closing.offset, size);
        let seq = self.lower.shared.seq_of(address);
        summaries::encode(
            &closing.entries,
            closing.segment,
            seq,
            buffer.as_mut_slice(),
        );
        (self.lower.shared.offset_of(address), buffer)
    }

    /// Installs the new addresses of written frames, or makes them dirty again.
    fn finish_frames(&self, worker: &Worker, batch: &Batch, written: bool) {
        let buffer = &self.lower.buffer;
        let mut old = Vec::new();
        if written {
            self.trace_batch(batch);
        }
        let record = written.then(|| self.install_copies(worker, batch, &mut old));
        let mut dead: Vec<Address> = Vec::new();
        let mut count = 0;
        let mut is_late = false;
        // Frames of new pages, which no replacement queue holds yet.
        let mut listed: Vec<(FrameId, PageId, bool)> = Vec::new();
        for placed in &batch.placed {
            if placed.token == u64::MAX {
                dead.push(placed.address);
                continue;
            }
            count += 1;
            let frame = placed.token as FrameId;
            let header = buffer.pool.frames.header(frame);
            if !written {
                dead.push(placed.address);
                match header.write_failed() {
                    Err(address) => {
                        old.push(address);
                        buffer.retire_unlisted(worker, frame);
                    }
                    Ok(turned_dirty) => {
                        if turned_dirty {
                            buffer.pool.dirty.turned_dirty();
                        }
                        buffer.pool.queue(frame);
                    }
                }
                continue;
            }
            let end = header.write_ended();
            if end.changed {
                buffer.pool.queue(frame);
            }
            if end.freed {
                // The page's end is newer than what the record says, and may be before it.
                old.push(placed.address);
                is_late = true;
            }
            if end.unlisted {
                listed.push((frame, placed.page, end.freed));
            }
        }
        self.defer_free(self.lower.log.newest_record(), old.into_iter());
        if let Some(record) = record {
            let since = is_late.then_some(batch.ends_from);
            buffer.changes.batch_written(batch.slot, record, since);
        }
        let spare = self.writes_ended(&batch.placed, &dead, &batch.closing);
        for (frame, page, freed) in listed {
            if freed {
                buffer.release_frame(worker, frame);
            } else {
                buffer.admit(worker.index, frame, page);
            }
        }
        buffer.frames_written_back(count, || self.stored());
        Counters::add(&self.lower.shared.counters.page_writes, count as u64);
        self.clean_if_few(spare);
        self.drain_pending_frees();
    }

    /// Writes to places and of summaries have ended, and what is at `dead` counts no longer; how
    /// many segments are spare then.
    pub(super) fn writes_ended(
        &self,
        placed: &[Placement],
        dead: &[Address],
        closing: &[SealedSegment],
    ) -> u32 {
        let mut space = self.space.lock();
        for placed in placed {
            space.written(placed.address.segment());
        }
        for &address in dead {
            space.invalidate(address);
        }
        for closing in closing {
            space.written(closing.segment);
        }
        space.spare_segments()
    }

    /// Tells the trace of a batch's pages while their frames are still claimed. A page is marked
    /// as freed before its end is told under the same lock, so none is told after its end.
    fn trace_batch(&self, batch: &Batch) {
        let mut space = self.space.lock();
        if !space.is_traced() {
            return;
        }
        let frames = &self.lower.buffer.pool.frames;
        for placed in batch.placed.iter().filter(|p| p.token != u64::MAX) {
            let header = frames.header(placed.token as FrameId);
            if !header.is_freed() {
                space.trace_written(placed.page);
            }
        }
    }

    /// Points the written frames at their copies and logs their places,
    /// before anything else can happen to the pages. Adds to `old` where the
    /// pages were before.
    fn install_copies(&self, worker: &Worker, batch: &Batch, old: &mut Vec<Address>) -> Lsn {
        let frames = &self.lower.buffer.pool.frames;
        let mut copies = Vec::with_capacity(batch.placed.len());
        for (placed, &version) in batch.placed.iter().zip(&batch.versions) {
            if placed.token == u64::MAX {
                continue;
            }
            let header = frames.header(placed.token as FrameId);
            old.push(header.set_address(placed.address));
            copies.push(Mapped {
                what: Copied::Page,
                page: placed.page,
                version,
                address: placed.address,
                seq: self.lower.shared.seq_of(placed.address),
            });
        }
        self.lower.buffer.log_copies(worker, 0, &copies)
    }

    /// Waits until every free that is pending now has happened.
    ///
    /// # Errors
    ///
    /// [`StorageError::Poisoned`].
    pub(crate) fn wait_for_pending_frees(&self, worker: &Worker) -> Result<(), StorageError> {
        while self.has_pending_frees() {
            self.lower.log_tasks.wait_all_durable(worker)?;
            if !self.drain_pending_frees() {
                worker.yield_now();
            }
        }
        Ok(())
    }

    /// Waits until a segment is free for user writes, growing the volume where
    /// live data fills it.
    pub(crate) fn wait_for_segment(&self, worker: &Worker) -> Result<(), StorageError> {
        self.drain_pending_frees();
        let mut space = self.space.lock();
        space.release_retained();
        if space.spare_segments() > 0 {
            return Ok(());
        }
        let (grow, segments) = (self.prefers_growth(&mut space), space.segments());
        drop(space);
        let grown = grow
            && self
                .stalled_by_growth(|| self.grow_beyond(worker, segments))
                .is_ok();
        if grown || self.overrun_readers_for_space() {
            return Ok(());
        }
        self.request_cleaning();
        if self.has_pending_frees() {
            // What is dead already needs only its records on the drive.
            self.lower.log_tasks.wait_all_durable(worker)?;
            if self.drain_pending_frees() {
                return self.lower.shared.writable();
            }
        }
        let since = crate::runtime::clock::wall();
        let waited = self.space.wait_for_spare(worker, || {
            let is_over = self.lower.shared.is_poisoned();
            if !is_over {
                self.lower.shared.watch_for_space();
            }
            is_over
        });
        if waited {
            self.lower.shared.counters.stalled(since.elapsed());
        }
        self.lower.shared.writable()
    }

    /// Waits a while for a segment that the cleaner may free.
    pub(crate) fn wait_for_free_segment(&self, worker: &Worker) -> Result<(), StorageError> {
        self.request_cleaning();
        for _ in 0..CHECKPOINT_PATIENCE {
            self.drain_pending_frees();
            if self.space.lock().has_space_for_checkpoint() {
                break;
            }
            self.lower.shared.writable()?;
            worker.yield_now();
        }
        Ok(())
    }
}

/// Chunks that got places, and the segments that filled up.
#[derive(Default)]
pub(crate) struct PlacedChunks {
    placed: Vec<Placement>,
    closing: Vec<SealedSegment>,
}

impl PlacedChunks {
    /// The chunks' places.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = Address> + '_ {
        self.placed.iter().map(|placed| placed.address)
    }
}

impl PageStore {
    /// Gives places to chunks of a large value, in order, until one finds no segment; waits for a
    /// free one for the first.
    pub(crate) fn place_chunks(
        &self,
        worker: &Worker,
        requests: &[Request],
    ) -> Result<PlacedChunks, StorageError> {
        let mut chunks = PlacedChunks::default();
        loop {
            let outcome = self.space.lock().place(
                Content::Chunks,
                requests,
                self.lower.shared.seqs(),
                &mut chunks.placed,
                &mut chunks.closing,
            );
            // None waits for a segment while it keeps others from being cleaned.
            if outcome.is_ok() || !chunks.placed.is_empty() {
                return Ok(chunks);
            }
            // A stream's segment may have been closed before no other was found.
            if let Err(error) = self.write_summaries(worker, &mut chunks.closing) {
                self.lower.shared.poison(error.clone());
                return Err(error);
            }
            self.wait_for_segment(worker)?;
        }
    }

    /// Writes chunks, sealed in `staging`, to their places, and has `install`
    /// publish them before their segments can be cleaned. They are on the drive once the record is
    /// durable that names them: that has to be told to [`crate::log::Log::names_unflushed`].
    pub(crate) fn write_chunks(
        &self,
        worker: &Worker,
        staging: &AlignedBuf,
        chunks: &PlacedChunks,
        install: impl FnOnce(),
    ) -> Result<(), StorageError> {
        let mut install = Some(install);
        if canary::is_on(Canary::NameChunksEarly) {
            install.take().into_iter().for_each(|install| install());
        }
        let result = self.write_unflushed(worker, staging, &chunks.placed, &chunks.closing);
        if let Some(install) = install.filter(|_| result.is_ok()) {
            install();
        }
        let spare = self.writes_ended(&chunks.placed, &[], &chunks.closing);
        self.clean_if_few(spare);
        result
    }

    /// Writes the summaries of segments that were closed.
    pub(crate) fn write_summaries(
        &self,
        worker: &Worker,
        closing: &mut Vec<SealedSegment>,
    ) -> Result<(), StorageError> {
        let closed = self.write_out(worker, &AlignedBuf::new(64), &[], closing);
        let spare = self.writes_ended(&[], &[], closing);
        closing.clear();
        self.clean_if_few(spare);
        closed
    }
}

fn padded_copy(bytes: &[u8], whole: u32) -> AlignedBuf {
    let mut buffer = AlignedBuf::new(whole as usize);
    let (copy, padding) = buffer.as_mut_slice().split_at_mut(bytes.len());
    copy.copy_from_slice(bytes);
    padding.fill(0);
    buffer
}

/// Looks that a checkpoint takes for a free segment.
const CHECKPOINT_PATIENCE: usize = 10_000;

/// Most pages that are ordered together: 32 MiB.
const MAX_SORT_RUN: usize = 8192;

/// Spare segments below which cleaners work, and at which they stop. What live
/// data may fill leaves room for them, so that cleaning always gets there.
pub(crate) const LOW_WATER: u32 = 4;
pub(crate) const SPARE_ENOUGH: u32 = LOW_WATER + 2;

impl PageStore {
    /// Pages that a writer takes at a time: as many as its policy gains from
    /// ordering together (paper 003, Fig. 4), but a small part of what may be dirty.
    fn sort_run(&self) -> usize {
        let orders = self.space.lock().policy.orders(Cause::User);
        let limit = self.lower.buffer.min_dirty_limit(self.stored());
        let share = limit / (4 * self.lower.shared.config.workers);
        if orders {
            share.clamp(BATCH, MAX_SORT_RUN)
        } else {
            BATCH
        }
    }
}

impl PageStore {
    /// Sets the cleaners to work if few segments are spare. After each change of what is obsolete:
    /// the cleaners may have found nothing to clean before.
    pub(super) fn clean_if_few(&self, spare: u32) {
        if spare < LOW_WATER {
            self.request_cleaning();
        }
    }

    /// Sets the cleaners of all workers to work.
    pub(crate) fn request_cleaning(&self) {
        if !self.cleaning_wanted.swap(true, Release) {
            self.lower.workers.notify_all();
        }
    }
}

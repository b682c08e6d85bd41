//! The cleaner: moves what is live out of the segments that the policy names,
//! a segment at a time, beside the foreground (paper 003).

use isobath_flash::policy::{Cause, PageWrite};
use isobath_io::AlignedBuf;

use crate::buffer::{FrameId, PagePlace, Stretch};
use crate::canary::{self, Canary};
use crate::error::StorageError;
use crate::log::record::{Copied, Mapped};
use crate::page::{self, Lsn, PageId, PageKind, get_u64, offset};
use crate::pagestore::writeback::{BATCH, Batch, LOW_WATER, SPARE_ENOUGH};
use crate::pagestore::{CleaningEnd, Content, Entry, PageStore, Request, Victim, summaries};
use crate::runtime::Worker;
use crate::shared::{Address, Counters};
use crate::sync::atomic::Ordering::{Acquire, Release};
use crate::trace;

/// Reads of one victim that are in flight together.
const READ_BYTES: usize = 256 << 10;

/// A live page or chunk of a victim.
#[derive(Clone, Copy)]
struct Survivor {
    page: PageId,
    address: Address,
}

/// Why a victim was not cleaned to the end.
enum Failed {
    /// Something in it could not be read.
    Read,
    /// Writing failed.
    Write(StorageError),
}

impl PageStore {
    /// The cleaner's life: cleans while free segments run low. It ends with the store once `is_last` says that no writer is left
    /// on the worker.
    pub(crate) fn run_cleaner(&self, worker: &Worker, is_last: impl Fn() -> bool) {
        loop {
            let stopping = self.lower.workers.is_stopping();
            // The writers may still need space; if space is missing once they have ended, the
            // checkpoint reports it.
            if stopping && is_last() {
                return;
            }
            if self.grow_ahead(worker) {
                continue;
            }
            if !self.cleaning_is_wanted(worker) {
                if stopping {
                    worker.yield_now();
                } else {
                    self.park_cleaner(worker);
                }
                continue;
            }
            let victim = {
                let mut space = self.space.lock();
                let is_full = self.is_beyond_fill(&space);
                space.begin_cleaning(is_full)
            };
            match victim {
                Victim::Segment(segment) => self.clean(worker, segment),
                Victim::Wait => worker.yield_now(),
                Victim::None => self.nothing_to_clean(worker),
            }
        }
    }

    /// Whether to clean; grows the volume instead where that is better.
    fn cleaning_is_wanted(&self, worker: &Worker) -> bool {
        if !self.cleaning_wanted.load(Acquire) || self.lower.shared.is_poisoned() {
            return false;
        }
        // Bound: each round but the last adds segments to the volume or frees some that were retained.
        loop {
            let mut space = self.space.lock();
            space.release_retained();
            let shrinks =
                space.spare_segments() < self.shrinking.goal() || space.fence_wants_cleaning();
            if !shrinks && space.spare_segments() >= space.cleaning_goal(SPARE_ENOUGH) {
                // Under the lock: a writer that finds no segment looks under it, and asks for
                // cleaning afterwards.
                self.cleaning_wanted.store(false, Release);
                return false;
            }
            let segments = space.segments();
            // Growing would take the fence away behind which compaction empties the tail, and make a
            // store longer that is being closed. A writer that finds no segment has the volume grow
            // nevertheless.
            let grow = !self.shrinking.is_running() && self.prefers_growth(&mut space);
            drop(space);
            let has_grown = grow && self.grow_beyond(worker, segments).is_ok();
            if !has_grown && !self.overrun_readers_for_space() {
                return true;
            }
        }
    }

    /// Everything is live, or what is obsolete lies in segments that are open, being written, or
    /// bad, or cleaning makes no progress.
    fn nothing_to_clean(&self, worker: &Worker) {
        self.shrinking.give_up_goal();
        self.space.lock().rest_behind_fence();
        if self.has_pending_frees() {
            // What these free may be enough; then there is something to clean, or no need to.
            let _ = self.lower.log_tasks.wait_all_durable(worker);
            if !self.drain_pending_frees() {
                worker.yield_now();
            }
            return;
        }
        let space = self.space.lock();
        let segments = space.segments();
        // Another cleaner may have got further meanwhile.
        let mut is_done = space.spare_segments() >= space.cleaning_goal(SPARE_ENOUGH);
        is_done |= space.cleaning() > 0;
        drop(space);
        if is_done {
            return;
        }
        // The next page that becomes obsolete, or segment that is sealed, asks for cleaning again, also while the volume
        // grows.
        self.cleaning_wanted.store(false, Release);
        if self.grow_beyond(worker, segments).is_ok() || self.overrun_readers_for_space() {
            self.cleaning_wanted.store(true, Release);
        }
    }

    /// Cleans one victim.
    fn clean(&self, worker: &Worker, segment: u32) {
        let outcome = self.clean_segment(worker, segment);
        let end = match outcome {
            Ok(CleaningEnd::Emptied) => CleaningEnd::Emptied,
            _ => CleaningEnd::Bad,
        };
        let mut space = self.space.lock();
        space.end_cleaning(segment, end);
        let spare = space.spare_segments();
        drop(space);
        let counters = &self.lower.shared.counters;
        match outcome {
            Ok(_) => {
                Counters::add(&counters.segments_cleaned, 1);
                trace::tell!(
                    debug,
                    "a segment is clean",
                    segment = segment,
                    spare = spare
                );
            }
            // The victim stays as it is, so that what is readable in it can be saved; a reader of a
            // corrupt page gets the error.
            Err(Failed::Read) => {
                Counters::add(&counters.corrupt_pages, 1);
                trace::tell!(error, "a segment cannot be read", segment = segment);
            }
            Err(Failed::Write(error)) => self.lower.shared.poison(error),
        }
        self.clean_if_few(spare);
        self.await_pending_frees(worker);
    }

    /// Frees the old copies of moved pages before more are moved: their space is the point of
    /// cleaning.
    fn await_pending_frees(&self, worker: &Worker) {
        if self.has_pending_frees() && self.space.lock().spare_segments() < LOW_WATER {
            // A failed log write has poisoned the store; later callers get that error.
            let _ = self.lower.log_tasks.wait_all_durable(worker);
            self.drain_pending_frees();
        }
    }

    fn clean_segment(&self, worker: &Worker, segment: u32) -> Result<CleaningEnd, Failed> {
        let entries = self.entries_of(worker, segment);
        let mut survivors: Vec<Survivor> = Vec::new();
        let mut dirty = Vec::new();
        for entry in &entries {
            self.judge(entry, segment, &mut survivors, &mut dirty);
        }
        let mut staging = AlignedBuf::new(READ_BYTES.max(longest(&survivors)));
        let mut batch = Batch::new(PageStore::cleaner_slot(worker));
        for frames in dirty.chunks(BATCH) {
            self.write_frames(worker, frames, Cause::Relocated, &mut staging, &mut batch)
                .map_err(Failed::Write)?;
        }
        let mut rest = &survivors[..];
        let mut end = CleaningEnd::Emptied;
        while !rest.is_empty() {
            let count = take_group(rest, staging.len());
            let (group, later) = rest.split_at(count);
            if self.relocate(worker, group, &mut staging, &mut batch)? == CleaningEnd::Bad {
                end = CleaningEnd::Bad;
            }
            rest = later;
        }
        Ok(end)
    }

    /// Adds `entry` to the survivors if it is live, or its frame to those that
    /// are written anyway because they are dirty.
    fn judge(
        &self,
        entry: &Entry,
        segment: u32,
        survivors: &mut Vec<Survivor>,
        dirty: &mut Vec<FrameId>,
    ) {
        let bytes = self.lower.shared.config.sizes.bytes;
        let Some(address) = summaries::address(entry, segment, bytes) else {
            return;
        };
        let page = entry.page;
        match self.lower.buffer.pool.mapping.place(page) {
            PagePlace::Stored(stored) if stored == address => {
                survivors.push(Survivor { page, address })
            }
            PagePlace::Resident(frame) | PagePlace::Loading(frame) => {
                let header = self.lower.buffer.pool.frames.header(frame);
                if !header.is_stored_at(page, address) {
                    return;
                }
                if header.is_clean() {
                    survivors.push(Survivor { page, address });
                } else {
                    dirty.push(frame);
                }
            }
            _ => {}
        }
    }

    /// Reads the survivors, writes them elsewhere, and installs their new addresses.
    fn relocate(
        &self,
        worker: &Worker,
        group: &[Survivor],
        staging: &mut AlignedBuf,
        batch: &mut Batch,
    ) -> Result<CleaningEnd, Failed> {
        self.read_group(worker, group, staging)?;
        let mut rest = 0;
        let mut end = CleaningEnd::Emptied;
        while rest < group.len() {
            self.lower.shared.writable().map_err(Failed::Write)?;
            batch.clear();
            let room = self.mapping_reservation(worker, group.len() - rest);
            let room = room.map_err(Failed::Write)?;
            let Some(content) = self.content_of_group(&group[rest..], staging.as_slice()) else {
                let corrupt = (group.len() - rest) as u64;
                Counters::add(&self.lower.shared.counters.corrupt_pages, corrupt);
                return Ok(CleaningEnd::Bad);
            };
            let outcome = self.place_survivors(&group[rest..], content, batch);
            let placed = batch.placed.len();
            if !self.seal_group(&group[rest..rest + placed], batch, staging) {
                end = CleaningEnd::Bad;
            }
            let result = self.write_out(worker, staging, &batch.placed, &batch.closing);
            self.install(worker, &group[rest..rest + placed], batch, result.is_ok());
            drop(room);
            result.map_err(Failed::Write)?;
            rest += placed;
            if outcome.is_err() {
                // Others hold the segments that `begin_cleaning` saw free; theirs
                // are free when they end.
                self.lower.shared.watch_for_space();
                worker.yield_now();
            }
            if rest < group.len() {
                self.read_group(worker, &group[rest..], staging)?;
            }
        }
        Ok(end)
    }

    /// Reads a group into staging, one after another, neighbours in one I/O.
    fn read_group(
        &self,
        worker: &Worker,
        group: &[Survivor],
        staging: &mut AlignedBuf,
    ) -> Result<(), Failed> {
        let mut bytes = 0;
        let mut rest = staging.as_mut_slice();
        let result = worker.io_scope(|io| {
            let mut first = 0;
            while first < group.len() {
                let start = group[first].address;
                let mut length = start.length();
                let mut end = first + 1;
                while end < group.len() && group[end].address.offset() == start.offset() + length {
                    length += group[end].address.length();
                    end += 1;
                }
                let into = rest.split_off_mut(..length as usize).unwrap_or_default();
                self.lower
                    .buffer
                    .start_read(io, Stretch { start, length }, into);
                bytes += u64::from(length);
                first = end;
            }
        });
        Counters::add(&self.lower.shared.counters.bytes_read, bytes);
        result.map_err(|_| Failed::Read)
    }

    /// What a group of one victim consists of, by the first image that verifies: were a corrupt one to
    /// decide, pages might come to lie between chunks, where no drive with longer blocks can read
    /// them. `None` if none verifies.
    fn content_of_group(&self, group: &[Survivor], images: &[u8]) -> Option<Content> {
        let mut rest = images;
        group.iter().find_map(|survivor| {
            let image = rest.split_off(..survivor.address.length() as usize)?;
            let seq = self.lower.shared.seq_of(survivor.address);
            let verifies = page::verify(image, survivor.page, seq).is_ok();
            verifies.then(|| content_of(image))
        })
    }

    fn place_survivors(
        &self,
        group: &[Survivor],
        content: Content,
        batch: &mut Batch,
    ) -> Result<(), crate::pagestore::NoSegment> {
        let mut space = self.space.lock();
        let now = space.now;
        for (token, survivor) in group.iter().enumerate() {
            let inherited = space.inherited(survivor.page, survivor.address);
            let history = space.policy.survived(inherited, now);
            batch.requests.push(Request {
                page: survivor.page,
                is_run: false,
                write: PageWrite {
                    token: token as u64,
                    bytes: survivor.address.length(),
                    cause: Cause::Relocated,
                    history,
                    rate: 0.0,
                },
            });
        }
        // In the order in which they were read: pages that are alike lie in one segment already, and sorting a single
        // victim's gained nothing that could be measured.
        space.place(
            content,
            &batch.requests,
            self.lower.shared.seqs(),
            &mut batch.placed,
            &mut batch.closing,
        )
    }

    /// Checks the survivors read and stamps them for their new places. One
    /// that does not verify stays where it is; `false` if there is one.
    fn seal_group(&self, group: &[Survivor], batch: &mut Batch, staging: &mut AlignedBuf) -> bool {
        let mut at = 0;
        let mut is_whole = true;
        for (survivor, placed) in group.iter().zip(&mut batch.placed) {
            let length = survivor.address.length() as usize;
            let image = &mut staging.as_mut_slice()[at..at + length];
            at += length;
            let seq = self.lower.shared.seq_of(survivor.address);
            if page::verify(image, survivor.page, seq).is_err() {
                // The victim stays as it is, so that what is readable of the page can be saved; a
                // reader of the page gets the error.
                Counters::add(&self.lower.shared.counters.corrupt_pages, 1);
                image.fill(0);
                placed.token = u64::MAX;
                batch.versions.push(Lsn(0));
                batch.copies.push(Copied::Page);
                is_whole = false;
                continue;
            }
            let lsn = Lsn(get_u64(image, offset::LSN));
            batch.versions.push(lsn);
            // By what it is, not by its length: a chunk may be as long as a page.
            batch.copies.push(match content_of(image) {
                Content::Pages => Copied::Page,
                Content::Chunks => Copied::MovedChunk,
            });
            page::seal(
                image,
                survivor.page,
                lsn,
                self.lower.shared.seq_of(placed.address),
            );
        }
        is_whole
    }

    /// Points every survivor at its new place, if it is still at the old one.
    fn install(&self, worker: &Worker, group: &[Survivor], batch: &Batch, written: bool) {
        let mut copies = Vec::with_capacity(batch.placed.len());
        let (mut dead, mut moved) = (Vec::new(), Vec::new());
        let mut bytes = 0;
        // A moved page may be freed before the record of its new place: a recovery that reads the second record has to
        // read the first, or it would restore the freed page.
        let since = self.lower.log_tasks.oldest_end();
        self.lower.buffer.changes.hold_batch(batch.slot, since);
        let sealed = batch.versions.iter().zip(&batch.copies);
        for ((survivor, placed), (&version, &what)) in group.iter().zip(&batch.placed).zip(sealed) {
            bytes += u64::from(placed.address.length());
            if !written
                || placed.token == u64::MAX
                || !self.move_page(worker, survivor, placed.address)
            {
                dead.push(placed.address);
                continue;
            }
            moved.push(survivor.address);
            copies.push(Mapped {
                what,
                page: survivor.page,
                version,
                address: placed.address,
                seq: self.lower.shared.seq_of(placed.address),
            });
        }
        // Before the new segments can be cleaned in their turn.
        let record = self.lower.buffer.log_copies(worker, 0, &copies);
        let is_late = !copies
            .iter()
            .all(|copy| self.is_at(copy.page, copy.address));
        let late_since = is_late.then_some(since);
        self.lower
            .buffer
            .changes
            .batch_moved(batch.slot, record, late_since);
        self.defer_free(record, moved.into_iter());
        let spare = self.writes_ended(&batch.placed, &dead, &batch.closing);
        Counters::add(
            &self.lower.shared.counters.relocated,
            batch.placed.len() as u64,
        );
        Counters::add(&self.lower.shared.counters.cleaning_bytes, bytes);
        self.clean_if_few(spare);
        self.drain_pending_frees();
    }

    /// Whether `page` exists and is stored at `address` now.
    fn is_at(&self, page: PageId, address: Address) -> bool {
        let pool = &self.lower.buffer.pool;
        match pool.mapping.place(page) {
            PagePlace::Stored(stored) => stored == address,
            PagePlace::Resident(frame) => {
                let header = pool.frames.header(frame);
                header.is_stored_at(page, address) && !header.is_freed()
            }
            _ => false,
        }
    }

    /// Changes where a page is stored from its survivor's address to `to`;
    /// `false` if it is stored elsewhere by now.
    fn move_page(&self, worker: &Worker, survivor: &Survivor, to: Address) -> bool {
        let pool = &self.lower.buffer.pool;
        loop {
            match pool.mapping.place(survivor.page) {
                PagePlace::Stored(stored)
                    if stored == survivor.address || canary::is_on(Canary::RelocateBlindly) =>
                {
                    let from = PagePlace::Stored(stored);
                    if pool
                        .mapping
                        .replace(survivor.page, from, PagePlace::Stored(to))
                    {
                        return true;
                    }
                }
                PagePlace::Resident(frame) => {
                    let header = pool.frames.header(frame);
                    if let Some(moved) = header.copy_moved(survivor.page, survivor.address, to) {
                        return moved;
                    }
                    worker.yield_now();
                }
                // Being read from its old place, which must stay until then.
                PagePlace::Loading(_) => worker.yield_now(),
                PagePlace::Stored(_) | PagePlace::Free => return false,
            }
        }
    }
}

fn longest(survivors: &[Survivor]) -> usize {
    survivors
        .iter()
        .map(|s| s.address.length() as usize)
        .max()
        .unwrap_or(0)
}

/// How many of `survivors`, from the first on, fit into `bytes` of staging.
fn take_group(survivors: &[Survivor], bytes: usize) -> usize {
    let mut total = 0;
    survivors
        .iter()
        .take_while(|survivor| {
            total += survivor.address.length() as usize;
            total <= bytes
        })
        .count()
        .max(1)
}

/// What the page or chunk that begins with `image` is, by its own word.
fn content_of(image: &[u8]) -> Content {
    match PageKind::from_byte(image[offset::KIND]) {
        Some(PageKind::Chunk) => Content::Chunks,
        _ => Content::Pages,
    }
}

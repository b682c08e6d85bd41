//! The engine as a backup reads it: the log kept from the start of the copying, copies of pages as
//! they are on the volume, and for a short time obsolete pages too.

use std::sync::Arc;

use isobath_io::AlignedBuf;

use crate::buffer::{PagePlace, Stretch};
use crate::canary::{self, Canary};
use crate::checkpoint::writer::CheckpointState;
use crate::checkpoint::{Superblock, log_area};
use crate::engine::{Engine, WorkerState};
use crate::error::{BackupError, StorageError};
use crate::log::record::Token;
use crate::page::{self, Lsn, PAGE_SIZE, PageCorruption, PageId, PageKind, get_u64, offset};
use crate::pagestore::Pins;
use crate::shared::{Address, Counters};

/// Bytes of pages that one task copies at a time.
const BATCH_BYTES: usize = 4 << 20;
/// Bytes of one read.
const RUN_BYTES: u32 = 256 << 10;
/// Reads of a backup in flight: enough for a drive's rate, and the foreground's reads do not queue behind many.
const DEPTH: usize = 32;
/// Mapping words that are looked at under one lock.
const LOOKS: usize = 64;

/// What a backup knows of one page id: where the copy that it has lay, and that copy's version. All zero where it has
/// none.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct MapEntry {
    /// [`Address::NONE`] without a copy.
    pub(crate) address: u64,
    /// Sequence number of the segment.
    pub(crate) seq: u64,
    /// LSN of the page; of a chunk, its value's stamp.
    pub(crate) version: u64,
}

impl MapEntry {
    /// Whether the backup has a copy.
    pub(crate) fn exists(&self) -> bool {
        self.address != 0
    }
}

/// Where one round over all pages begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RoundStart {
    /// A recovery from the copies of the pass reads the log from here.
    pub(crate) start: Lsn,
    /// Ids of pages that existed then are below this.
    pub(crate) high_water: u64,
    /// Tokens that no record had confirmed, with their pages.
    pub(crate) provisional: Vec<(Token, Vec<PageId>)>,
    /// Identity of the store.
    pub(crate) store_id: [u8; 16],
    /// What log records of this opening carry, and what those at `start` carry at least.
    pub(crate) open_epoch: u32,
    pub(crate) log_epoch: u32,
    /// The update clock.
    pub(crate) tick: u64,
    /// Bytes of the log's area, wherever it lies; 0 where nothing is logged.
    pub(crate) log_bytes: u64,
    /// Segments that it may grow to; 0 where it does not.
    pub(crate) max_log_segments: u32,
}

/// A page or chunk that was read.
#[derive(Clone, Copy, Debug)]
struct PageToCopy {
    page: PageId,
    address: Address,
    seq: u64,
    /// Which of the batch's entries it belongs to.
    entry: usize,
    /// Where in the buffer it lies.
    at: usize,
}

/// Copies of some pages, and what is now known of all ids that were looked at.
pub(super) struct CopyBatch {
    /// One for each id, in order.
    pub(crate) entries: Vec<MapEntry>,
    bytes: AlignedBuf,
    /// In order of their addresses.
    wanted: Vec<PageToCopy>,
    /// Which of these are new: others had only been moved.
    fresh: Vec<bool>,
}

impl CopyBatch {
    pub(super) fn new() -> CopyBatch {
        CopyBatch {
            entries: Vec::new(),
            bytes: AlignedBuf::new(BATCH_BYTES),
            wanted: Vec::new(),
            fresh: Vec::new(),
        }
    }

    /// The images to keep, as they are on the volume.
    pub(super) fn images(&self) -> impl Iterator<Item = &[u8]> {
        self.wanted
            .iter()
            .zip(&self.fresh)
            .filter(|(_, fresh)| **fresh)
            .map(|(wanted, _)| &self.bytes[wanted.at..wanted.at + wanted.address.length() as usize])
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.wanted.clear();
        self.fresh.clear();
    }
}

/// Until this is dropped, obsolete pages stay readable and no checkpoint is written.
pub(super) struct DeadKept {
    engine: Arc<Engine>,
    current: Option<Box<CheckpointState>>,
    /// The segments that stay readable; `None` while all do.
    pinned: Option<Vec<u32>>,
    /// Everything below this is durable; a whole block.
    pub(crate) end: Lsn,
}

impl DeadKept {
    /// From now on only the segments of `places` stay readable: others may be freed.
    pub(super) fn keep_only(&mut self, places: impl Iterator<Item = Address>) {
        if self.pinned.is_some() {
            return;
        }
        let keeps = !canary::is_on(Canary::FreeBesideBackup);
        let places = places.filter(|_| keeps);
        let mut segments: Vec<u32> = places.map(|place| place.segment()).collect();
        segments.sort_unstable();
        segments.dedup();
        self.engine.pagestore.retain_only(&segments);
        self.pinned = Some(segments);
    }
}

impl Drop for DeadKept {
    fn drop(&mut self) {
        self.engine.pagestore.release_retained(self.pinned.take());
        if let Some(current) = self.current.take() {
            self.engine.checkpoints.give_back(current);
        }
        self.engine.log_tasks.request_checkpoint_again();
    }
}

/// What a worker's task reads of the store for a backup.
pub(super) struct Source<'l>(pub(super) &'l WorkerState);

impl Source<'_> {
    /// Takes the right to write checkpoints, once it is free.
    fn take_checkpoints(&self) -> Result<Box<CheckpointState>, BackupError> {
        loop {
            if let Some(current) = self.0.engine.checkpoints.take() {
                return Ok(current);
            }
            self.0.engine.shared.writable()?;
            self.0.worker.yield_now();
        }
    }

    /// Begins a round over all pages: has what was changed so far written, and the log kept from there on.
    ///
    /// # Errors
    ///
    /// [`BackupError::BackupNeedsLog`] for a store that is open for writing and logs nothing;
    /// [`StorageError::Poisoned`].
    pub(super) fn begin_pass(&self) -> Result<RoundStart, BackupError> {
        let engine = &self.0.engine;
        if engine.shared.config.read_only {
            let start = Lsn(engine.log.next().0.next_multiple_of(PAGE_SIZE as u64));
            let superblock = engine
                .checkpoints
                .superblock()
                .ok_or(StorageError::Closed)?;
            return Ok(self.pass_start(start, &superblock, Vec::new()));
        }
        if !engine.log.is_on() {
            return Err(BackupError::BackupNeedsLog);
        }
        // Those that begin from here on see that a backup is under way.
        let copies = &engine.transactions.copies;
        copies.await_large(&engine.shared, &self.0.worker)?;
        engine.log_tasks.release();
        engine
            .buffer
            .flush_older_than(&self.0.worker, engine.log.contiguous_lsn())?;
        // No checkpoint moves the start of the log meanwhile.
        let current = self.take_checkpoints()?;
        let start = engine
            .checkpoints
            .recovery_start(|| self.0.worker.yield_now());
        if !canary::is_on(Canary::CutLogOfBackup) {
            engine.log_tasks.hold(start);
        }
        let superblock = current.superblock.clone();
        engine.checkpoints.give_back(current);
        Ok(self.pass_start(start, &superblock, engine.pagestore.provisional()))
    }

    fn pass_start(
        &self,
        start: Lsn,
        superblock: &Superblock,
        provisional: Vec<(Token, Vec<PageId>)>,
    ) -> RoundStart {
        let engine = &self.0.engine;
        let vouched = if start >= engine.log.first() {
            superblock.open_epoch
        } else {
            superblock.log_epoch
        };
        RoundStart {
            start,
            provisional,
            high_water: engine.pagestore.high_water(),
            store_id: superblock.store_id,
            open_epoch: superblock.open_epoch,
            log_epoch: vouched,
            tick: engine.pagestore.tick(),
            log_bytes: log_area(superblock).map_or(0, |area| area.bytes()),
            max_log_segments: superblock.max_log_segments,
        }
    }

    /// Ends the last round: what is durable by now is what the backup holds, and every copy that a record names until
    /// then can be read until the answer is dropped.
    ///
    /// # Errors
    ///
    /// [`StorageError::Poisoned`].
    pub(super) fn end_passes(&self) -> Result<DeadKept, BackupError> {
        let engine = &self.0.engine;
        let mut kept = DeadKept {
            engine: Arc::clone(engine),
            current: Some(self.take_checkpoints()?),
            pinned: None,
            end: Lsn(0),
        };
        if !canary::is_on(Canary::FreeBesideBackup) {
            engine.pagestore.retain_obsolete();
        }
        engine.log_tasks.wait_all_durable(&self.0.worker)?;
        kept.end = engine.log.durable();
        Ok(kept)
    }

    /// Looks at the ids from `first` on, one for each of `known`, and copies the pages that `known` says are not
    /// copied yet, until the batch is full.
    ///
    /// # Errors
    ///
    /// [`StorageError::CorruptPage`], or a failed read.
    pub(super) fn copy_some(
        &self,
        first: u64,
        known: &[MapEntry],
        batch: &mut CopyBatch,
    ) -> Result<(), BackupError> {
        batch.clear();
        let mut bytes = 0;
        for (group, known) in known.chunks(LOOKS).enumerate() {
            let first = first + (group * LOOKS) as u64;
            let look = |pins: &mut Pins<'_>| self.pin_group(pins, first, known, &mut bytes, batch);
            if !self.0.engine.pagestore.pin_places(look) {
                break;
            }
        }
        let result = self.read_wanted(batch);
        let pinned = batch.wanted.iter().map(|wanted| wanted.address.segment());
        let pinned = pinned.filter(|_| !canary::is_on(Canary::CopyUnpinned));
        self.0.engine.pagestore.unpin_all(pinned);
        result
    }

    /// Looks at some ids, and pins the pages to copy of them; `false` where the batch is full.
    fn pin_group(
        &self,
        pins: &mut Pins<'_>,
        first: u64,
        known: &[MapEntry],
        bytes: &mut usize,
        batch: &mut CopyBatch,
    ) -> bool {
        for (known, id) in known.iter().zip(first..) {
            let page = PageId(id);
            let place = PagePlace::from_word(self.0.engine.buffer.stored_word(page));
            let PagePlace::Stored(address) = place else {
                batch.entries.push(MapEntry::default());
                continue;
            };
            let seq = self.0.engine.shared.seq_of(address);
            if known.address == address.to_raw() && known.seq == seq {
                batch.entries.push(*known);
                continue;
            }
            if *bytes + address.length() as usize > BATCH_BYTES {
                return false;
            }
            *bytes += address.length() as usize;
            if !canary::is_on(Canary::CopyUnpinned) {
                pins.pin(address);
            }
            batch.wanted.push(PageToCopy {
                page,
                address,
                seq,
                entry: batch.entries.len(),
                at: 0,
            });
            batch.entries.push(MapEntry {
                address: address.to_raw(),
                seq,
                version: known.version,
            });
        }
        true
    }

    /// Copies what lies at given places, which [`DeadKept`] keeps readable.
    ///
    /// # Errors
    ///
    /// [`StorageError::CorruptPage`], or a failed read.
    pub(super) fn copy_at(
        &self,
        places: &[(PageId, MapEntry)],
        batch: &mut CopyBatch,
    ) -> Result<(), BackupError> {
        batch.clear();
        let mut bytes = 0;
        for (page, entry) in places {
            let address = Address::from_raw(entry.address);
            bytes += address.length() as usize;
            if bytes > BATCH_BYTES {
                break;
            }
            batch.wanted.push(PageToCopy {
                page: *page,
                address,
                seq: entry.seq,
                entry: batch.entries.len(),
                at: 0,
            });
            batch.entries.push(MapEntry {
                version: 0,
                ..*entry
            });
        }
        self.read_wanted(batch)
    }

    /// Reads and verifies the pages of the batch.
    fn read_wanted(&self, batch: &mut CopyBatch) -> Result<(), BackupError> {
        batch.wanted.sort_unstable_by_key(|wanted| wanted.address);
        let mut at = 0;
        for wanted in &mut batch.wanted {
            wanted.at = at;
            at += wanted.address.length() as usize;
        }
        let mut rest = &batch.wanted[..];
        let mut bytes = batch.bytes.as_mut_slice();
        while !rest.is_empty() {
            let read = self.0.worker.io_scope(|io| {
                for _ in 0..DEPTH {
                    let Some(first) = rest.first() else {
                        break;
                    };
                    let start = first.address;
                    let mut length = start.length();
                    let mut count = 1;
                    while let Some(next) = rest.get(count)
                        && next.address.segment() == start.segment()
                        && next.address.offset() == start.offset() + length
                        && length + next.address.length() <= RUN_BYTES
                    {
                        length += next.address.length();
                        count += 1;
                    }
                    let into = bytes.split_off_mut(..length as usize).unwrap_or_default();
                    self.0
                        .engine
                        .buffer
                        .start_read(io, Stretch { start, length }, into);
                    rest = &rest[count..];
                }
            });
            read.map_err(StorageError::Io)?;
        }
        Counters::add(&self.0.engine.shared.counters.bytes_read, at as u64);
        for wanted in &batch.wanted {
            let image = &batch.bytes[wanted.at..wanted.at + wanted.address.length() as usize];
            verify(image, wanted).map_err(|corruption| {
                let error = StorageError::CorruptPage {
                    page: wanted.page.0,
                    offset: self.0.engine.shared.offset_of(wanted.address),
                    corruption,
                };
                self.0
                    .engine
                    .opening
                    .judge_read(wanted.page, wanted.address, error)
            })?;
            let version = get_u64(image, offset::LSN);
            let entry = &mut batch.entries[wanted.entry];
            batch.fresh.push(entry.version != version);
            entry.version = version;
        }
        Ok(())
    }
}

fn verify(image: &[u8], wanted: &PageToCopy) -> Result<(), PageCorruption> {
    page::verify(image, wanted.page, wanted.seq)?;
    match PageKind::from_byte(image[offset::KIND]) {
        Some(PageKind::Leaf | PageKind::Inner) if image.len() == PAGE_SIZE => Ok(()),
        Some(PageKind::Chunk) => Ok(()),
        _ => Err(PageCorruption::WrongKind {
            found: image[offset::KIND],
        }),
    }
}

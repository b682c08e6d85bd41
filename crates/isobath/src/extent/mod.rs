//! Large values: chunks in segments of their own, named by a descriptor in the
//! leaf.
//!
//! A chunk has a page id and a mapping word like any page, but no frame: it is
//! read and written whole, by the task that uses it. A value of one chunk, or
//! of chunks with consecutive ids, is described by its first id; others name an
//! index chunk that lists the runs of ids.

mod write;

use isobath_io::AlignedBuf;

use crate::buffer::{PagePlace, Stretch};
use crate::canary::{self, Canary};
use crate::context::TaskWorker;
use crate::error::StorageError;
use crate::log::record::Token;
use crate::page::{
    self, HEADER_SIZE, Lsn, PAGE_SIZE, PageCorruption, PageId, PageKind, get_u32, get_u64, offset,
    put_u32, put_u64,
};
use crate::shared::{Address, Config, Counters};
pub(crate) use write::{ExtentWriter, write_all};

/// Most bytes of a chunk, header included.
const MAX_CHUNK: u32 = 256 << 10;
/// Chunks of a segment, at least.
const CHUNKS_PER_SEGMENT: u32 = 8;
/// Bytes that one reader has in flight, and chunks: not fewer, not more.
const READ_AHEAD_BYTES: usize = 1 << 20;
const READ_AHEAD_CHUNKS: std::ops::RangeInclusive<usize> = 8..=64;

/// Chunks in one record that frees leftovers, and those of one more value.
const FREED_AT_A_TIME: usize = 1000;

/// Bytes of a run of ids in an index chunk.
pub(crate) const RUN_BYTES: usize = 16;

/// Bytes of a descriptor in a leaf.
pub(crate) const DESCRIPTOR_BYTES: usize = 32;

/// The place of a large value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    /// Bytes of the value.
    pub(crate) length: u64,
    /// The first chunk, or the index chunk.
    first: PageId,
    /// Payload bytes of every chunk but the last.
    payload: u32,
    indexed: bool,
    /// The LSN that all its chunks carry. Ids are used again, also for values of the same shape:
    /// only this tells a reader that was overtaken by a change of the key that a chunk no longer
    /// belongs to its value.
    stamp: Lsn,
}

impl Extent {
    /// The descriptor that a leaf stores.
    pub(crate) fn encode(&self) -> [u8; DESCRIPTOR_BYTES] {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        put_u64(&mut bytes, 0, self.length);
        put_u64(&mut bytes, 8, self.first.0);
        put_u32(&mut bytes, 16, self.payload);
        put_u32(&mut bytes, 20, u32::from(self.indexed));
        put_u64(&mut bytes, 24, self.stamp.0);
        bytes
    }

    /// Reads a descriptor; `None` if it cannot be one.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Extent> {
        if bytes.len() != DESCRIPTOR_BYTES {
            return None;
        }
        let extent = Extent {
            length: get_u64(bytes, 0),
            first: PageId(get_u64(bytes, 8)),
            payload: get_u32(bytes, 16),
            indexed: get_u32(bytes, 20) == 1,
            stamp: Lsn(get_u64(bytes, 24)),
        };
        let sound = extent.length <= crate::MAX_VALUE_BYTES
            && extent.payload > 0
            && extent.payload < MAX_CHUNK
            && get_u32(bytes, 20) <= 1;
        sound.then_some(extent)
    }

    /// The token of its chunks until a commit names the value.
    pub(crate) fn token(&self) -> Token {
        self.stamp.0
    }

    /// Its first chunk, or the index chunk; whether it is that; and what all its chunks carry as
    /// their LSN.
    pub(crate) fn first(&self) -> (PageId, bool, Lsn) {
        (self.first, self.indexed, self.stamp)
    }

    /// Chunks, the index chunk aside.
    pub(crate) fn chunk_count(&self) -> u64 {
        self.length.div_ceil(u64::from(self.payload)).max(1)
    }
}

/// Bytes of the longest chunk: eight chunks and their summary fit a segment.
const fn longest_chunk(segment_bytes: u32) -> u32 {
    let chunk = (segment_bytes - PAGE_SIZE as u32) / CHUNKS_PER_SEGMENT;
    if chunk < MAX_CHUNK { chunk } else { MAX_CHUNK }
}

/// Payload bytes of a full chunk.
pub(crate) fn payload_bytes(config: &Config) -> usize {
    let chunk = longest_chunk(config.sizes.bytes);
    (chunk - chunk % config.block_bytes) as usize - HEADER_SIZE
}

/// Bytes that a chunk of `payload` bytes takes on the volume.
fn stored_bytes(payload: usize, align: u32) -> u32 {
    ((payload + HEADER_SIZE) as u32).next_multiple_of(align)
}

/// Runs of consecutive page ids.
#[derive(Default, Clone, Debug)]
struct Runs(Vec<(u64, u64)>);

impl Runs {
    fn push(&mut self, id: PageId) {
        match self.0.last_mut() {
            Some(run) if run.0 + run.1 == id.0 => run.1 += 1,
            _ => self.0.push((id.0, 1)),
        }
    }

    /// Takes away all ids but the first `kept`.
    fn split_off(&mut self, kept: u64) -> Runs {
        let (mut left, mut gone) = (kept, Runs::default());
        for run in &mut self.0 {
            let keeps = run.1.min(left);
            left -= keeps;
            if keeps < run.1 {
                gone.0.push((run.0 + keeps, run.1 - keeps));
                run.1 = keeps;
            }
        }
        self.0.retain(|run| run.1 > 0);
        gone
    }

    fn ids(&self) -> impl Iterator<Item = PageId> + '_ {
        self.0
            .iter()
            .flat_map(|&(first, count)| (first..first + count).map(PageId))
    }
}

/// Frees chunks: their places, their bytes and their ids. `record` says so, or a record of their
/// own does, which also cancels `tokens`.
fn free_chunks(
    local: &TaskWorker,
    tokens: &[Token],
    record: Option<Lsn>,
    ids: impl Iterator<Item = PageId>,
) {
    let gone = end_chunks(local, tokens, record, ids);
    let parts = &local.parts;
    let mapping = &parts.buffer.pool.mapping;
    parts.pagestore.free_ids(mapping, gone.0.into_iter());
}

/// As [`free_chunks`], but the ids of those that were there stay taken.
fn end_chunks(
    local: &TaskWorker,
    tokens: &[Token],
    record: Option<Lsn>,
    ids: impl Iterator<Item = PageId>,
) -> Runs {
    let (taken, record) = match record {
        Some(record) => (take_chunks(local, ids), record),
        None => {
            let ids: Vec<PageId> = ids.collect();
            // Before the words change: a checkpoint or backup that stores them waits for the
            // record.
            let _reservation =
                local
                    .parts
                    .pagestore
                    .reserve_for_free(&local.worker, tokens.len(), ids.len());
            let _freeing = local.parts.pagestore.begin_freeing();
            let taken = take_chunks(local, ids.into_iter());
            if canary::is_on(Canary::FreeBeforeRecord) {
                // As if there were no space yet.
                (0..10_000).for_each(|_| local.worker.yield_now());
            }
            let ids: Vec<PageId> = taken.iter().map(|(id, _)| *id).collect();
            (
                taken,
                local
                    .parts
                    .pagestore
                    .append_free(&local.worker, tokens, &ids),
            )
        }
    };
    let mut gone = Runs::default();
    for &(id, address) in &taken {
        local.parts.pagestore.free_after(record, address);
        gone.push(id);
    }
    gone
}

/// Takes those of `ids` that are chunks out of the mapping table; which, and where they were.
fn take_chunks(local: &TaskWorker, ids: impl Iterator<Item = PageId>) -> Vec<(PageId, Address)> {
    let mut taken = Vec::new();
    for id in ids {
        if let Some(address) = take_chunk(local, id) {
            // Before the record: a checkpoint that starts behind it stores the word.
            if !canary::is_on(Canary::MarkLate) {
                local.parts.buffer.changes.mark(id);
            }
            taken.push((id, address));
        }
    }
    taken
}

/// Takes the chunk `id` out of the mapping table; where it was, if there was one.
fn take_chunk(local: &TaskWorker, id: PageId) -> Option<Address> {
    let parts = &local.parts;
    loop {
        let address = match parts.buffer.pool.mapping.place(id) {
            PagePlace::Stored(address) => address,
            // By a task that takes the id for that of a page; it will be stored again.
            PagePlace::Loading(_) if !canary::is_on(Canary::TrustPageIds) => {
                local.parts.buffer.await_load(&local.worker, id);
                continue;
            }
            _ => return None,
        };
        // The cleaner may be moving it: only one of the two gets the word.
        if parts
            .buffer
            .pool
            .mapping
            .replace(id, PagePlace::Stored(address), PagePlace::Free)
        {
            parts.pagestore.release_chunk(address.length());
            return Some(address);
        }
    }
}

/// A chunk's address, and the buffer for it.
type ChunkBuffer = (Address, AlignedBuf);

/// Reads chunks one by one, of which some could not be read together: the first that still cannot
/// is the error.
fn read_apart(
    local: &TaskWorker,
    ids: &[PageId],
    buffers: &mut [ChunkBuffer],
) -> Result<(), StorageError> {
    for (id, (address, buffer)) in ids.iter().zip(buffers) {
        let (start, length) = (*address, address.length());
        let stretch = Stretch { start, length };
        let into = buffer.as_mut_slice();
        let read = local
            .worker
            .io_scope(|io| local.parts.buffer.start_read(io, stretch, into));
        read.map_err(|source| {
            let error = StorageError::PageRead {
                page: id.0,
                offset: local.parts.shared.offset_of(start),
                tree: None,
                source,
            };
            local.parts.opening.judge_read(*id, start, error)
        })?;
    }
    Ok(())
}

/// Reads the chunks `ids`, which carry `stamp`, and appends their payloads to `into`.
fn read_chunks(
    local: &TaskWorker,
    ids: &[PageId],
    stamp: Lsn,
    into: &mut Vec<u8>,
) -> Result<(), StorageError> {
    let parts = &local.parts;
    let mut buffers: Vec<ChunkBuffer> = Vec::with_capacity(ids.len());
    for &id in ids {
        let Some(address) = parts.pagestore.pin_chunk(&local.worker, id) else {
            let pinned = buffers.iter().map(|(address, _)| *address);
            pinned.for_each(|address| parts.pagestore.unpin(address));
            return Err(gone(id));
        };
        let buffer = AlignedBuf::new(address.length() as usize);
        buffers.push((address, buffer));
    }
    let read = local.worker.io_scope(|io| {
        for (address, buffer) in &mut buffers {
            let (start, length) = (*address, address.length());
            local
                .parts
                .buffer
                .start_read(io, Stretch { start, length }, buffer.as_mut_slice());
        }
    });
    let mut outcome = match read {
        Ok(()) => Ok(()),
        Err(_) => read_apart(local, ids, &mut buffers),
    };
    for (id, (address, buffer)) in ids.iter().zip(&buffers) {
        if outcome.is_ok() {
            outcome = verify_chunk(local, *id, *address, stamp, buffer.as_slice(), into);
        }
        parts.pagestore.unpin(*address);
        Counters::add(
            &parts.shared.counters.bytes_read,
            u64::from(address.length()),
        );
    }
    outcome
}

fn verify_chunk(
    local: &TaskWorker,
    id: PageId,
    address: Address,
    stamp: Lsn,
    image: &[u8],
    into: &mut Vec<u8>,
) -> Result<(), StorageError> {
    let parts = &local.parts;
    let length = get_u32(image, offset::KIND_SPECIFIC) as usize;
    page::verify(image, id, parts.shared.seq_of(address))
        .and_then(|()| {
            let is_chunk = image[offset::KIND] == PageKind::Chunk as u8;
            if is_chunk && length <= image.len() - HEADER_SIZE {
                Ok(())
            } else {
                Err(PageCorruption::WrongKind {
                    found: image[offset::KIND],
                })
            }
        })
        .map_err(|corruption| {
            // The id's own page, of this use of the segment: no writer has used the place again.
            let is_place_sound = matches!(corruption, PageCorruption::WrongKind { .. });
            let error = StorageError::CorruptPage {
                page: id.0,
                offset: parts.shared.offset_of(address),
                corruption,
            };
            match is_place_sound {
                true => error,
                false => parts.opening.judge_read(id, address, error),
            }
        })?;
    if get_u64(image, offset::LSN) != stamp.0 {
        return Err(gone(id));
    }
    into.extend_from_slice(&image[HEADER_SIZE..HEADER_SIZE + length]);
    Ok(())
}

/// The value was replaced or removed while it was read, if what named it does so no more: the
/// caller knows that.
fn gone(id: PageId) -> StorageError {
    StorageError::Structure {
        page: id.0,
        reason: "a chunk of a large value is missing",
    }
}

/// Reads large values.
#[derive(Clone, Debug)]
pub(crate) struct ExtentReader {
    extent: Extent,
    ids: Vec<PageId>,
    next: usize,
}

impl ExtentReader {
    /// A reader at the value's start; reads its index chunk, if it has one.
    pub(crate) fn new(local: &TaskWorker, extent: Extent) -> Result<ExtentReader, StorageError> {
        let count = extent.chunk_count();
        let ids: Vec<PageId> = if extent.indexed {
            let mut bytes = Vec::new();
            read_chunks(local, &[extent.first], extent.stamp, &mut bytes)?;
            let runs = bytes
                .chunks_exact(RUN_BYTES)
                .map(|run| (get_u64(run, 0), get_u64(run, 8)));
            let mut ids = Vec::new();
            for (first, run) in runs {
                let left = count - ids.len() as u64;
                ids.extend((first..first.saturating_add(run.min(left))).map(PageId));
            }
            ids
        } else {
            (extent.first.0..extent.first.0 + count)
                .map(PageId)
                .collect()
        };
        if ids.len() as u64 != count {
            return Err(gone(extent.first));
        }
        Ok(ExtentReader {
            extent,
            ids,
            next: 0,
        })
    }

    /// The value that it reads.
    pub(crate) fn extent(&self) -> Extent {
        self.extent
    }

    /// Bytes of the value.
    pub(crate) fn length(&self) -> u64 {
        self.extent.length
    }

    /// Every page id that the value takes.
    pub(crate) fn ids(&self) -> impl Iterator<Item = PageId> + '_ {
        let index = self.extent.indexed.then_some(self.extent.first);
        index.into_iter().chain(self.ids.iter().copied())
    }

    /// Payload bytes of every chunk but the last.
    pub(crate) fn chunk_bytes(&self) -> usize {
        self.extent.payload as usize
    }

    /// Chunks that are read at once, at most.
    pub(crate) fn read_ahead(&self) -> usize {
        let chunks = READ_AHEAD_BYTES / self.chunk_bytes().max(1);
        chunks.clamp(*READ_AHEAD_CHUNKS.start(), *READ_AHEAD_CHUNKS.end())
    }

    /// Goes to the chunk that has byte `offset`; where in the chunk that is.
    pub(crate) fn seek(&mut self, offset: u64) -> usize {
        let payload = u64::from(self.extent.payload);
        self.next = (offset / payload) as usize;
        (offset % payload) as usize
    }

    /// The bytes of a part of the value, of which some chunks at a time are in flight.
    pub(crate) fn read_range(
        &self,
        local: &TaskWorker,
        part: std::ops::Range<u64>,
    ) -> Result<Vec<u8>, StorageError> {
        let payload = u64::from(self.extent.payload);
        let before = (part.start % payload) as usize;
        let ids = (part.start / payload) as usize..part.end.div_ceil(payload) as usize;
        let ids = self.ids.get(ids).ok_or(gone(self.extent.first))?;
        let mut bytes = Vec::new();
        for ids in ids.chunks(self.read_ahead()) {
            read_chunks(local, ids, self.extent.stamp, &mut bytes)?;
        }
        bytes.truncate(before + (part.end - part.start) as usize);
        bytes.drain(..before);
        Ok(bytes)
    }

    /// Appends the next few chunks to `into`; `false` at the end.
    pub(crate) fn read(
        &mut self,
        local: &TaskWorker,
        into: &mut Vec<u8>,
    ) -> Result<bool, StorageError> {
        self.read_some(local, self.read_ahead(), into)
    }

    /// Appends the next chunks, `most` of them at most, to `into`; `false` at the end.
    pub(crate) fn read_some(
        &mut self,
        local: &TaskWorker,
        most: usize,
        into: &mut Vec<u8>,
    ) -> Result<bool, StorageError> {
        if self.next >= self.ids.len() {
            return Ok(false);
        }
        let end = (self.next + most).min(self.ids.len());
        let ids = &self.ids[self.next..end];
        read_chunks(local, ids, self.extent.stamp, into)?;
        self.next = end;
        Ok(true)
    }
}

/// Reads the descriptor that a leaf has.
///
/// # Errors
///
/// [`StorageError::Structure`] if it cannot be one.
pub(crate) fn decode(descriptor: &[u8]) -> Result<Extent, StorageError> {
    Extent::decode(descriptor).ok_or(StorageError::Structure {
        page: 0,
        reason: "the descriptor of a large value makes no sense",
    })
}

/// Frees all chunks of those of `extents` that are still there: whose first chunk
/// carries their stamp. The ids of the others may have other owners by now.
/// A value's chunks are freed by one record, so either all of them are there or none.
pub(crate) fn free_leftovers(local: &TaskWorker, extents: &[Extent]) -> Result<(), StorageError> {
    let (mut tokens, mut ids): (Vec<Token>, Vec<PageId>) = (Vec::new(), Vec::new());
    for &extent in extents {
        if !is_there(local, extent)? {
            continue;
        }
        tokens.push(extent.token());
        ids.extend(chunk_ids(local, extent)?);
        if ids.len() >= FREED_AT_A_TIME {
            free_chunks(local, &tokens, None, ids.drain(..));
            tokens.clear();
        }
    }
    if !ids.is_empty() {
        free_chunks(local, &tokens, None, ids.into_iter());
    }
    Ok(())
}

/// Whether the first chunk of a value is its own.
fn is_there(local: &TaskWorker, extent: Extent) -> Result<bool, StorageError> {
    match read_chunks(local, &[extent.first], extent.stamp, &mut Vec::new()) {
        Ok(()) => Ok(true),
        // Free, a page, a chunk of another value, or beyond use.
        Err(StorageError::Structure { .. } | StorageError::CorruptPage { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Frees all chunks of a value that nothing names any more, by its descriptor; a record of its own
/// says so.
pub(crate) fn free_descriptor(local: &TaskWorker, descriptor: &[u8]) -> Result<(), StorageError> {
    let extent = decode(descriptor)?;
    free_with_token(local, extent, extent.token())
}

/// As [`free_descriptor`], of a value whose chunks belong to `token`.
pub(crate) fn free_with_token(
    local: &TaskWorker,
    extent: Extent,
    token: Token,
) -> Result<(), StorageError> {
    let ids = chunk_ids(local, extent)?;
    free_chunks(local, &[token], None, ids.into_iter());
    Ok(())
}

/// Every page id that a value takes; reads its index chunk, if it has one.
pub(crate) fn chunk_ids(local: &TaskWorker, extent: Extent) -> Result<Vec<PageId>, StorageError> {
    Ok(ExtentReader::new(local, extent)?.ids().collect())
}

/// Frees the chunks `ids` of a value, as the log record at `record` says.
pub(crate) fn free_logged(local: &TaskWorker, record: Lsn, ids: &[PageId]) {
    free_chunks(local, &[], Some(record), ids.iter().copied());
}

/// Frees the chunks that were written for values that will not be finished any more, as
/// the store is being closed: what is provisional then never becomes anything else.
pub(crate) fn free_provisional(local: &TaskWorker) {
    for (token, ids) in local.parts.pagestore.provisional() {
        for ids in ids.chunks(FREED_AT_A_TIME) {
            free_chunks(local, &[], None, ids.iter().copied());
        }
        free_chunks(local, &[token], None, std::iter::empty());
    }
}

/// The bytes of the value; `None` if it is gone, whatever has its chunks' ids now.
pub(crate) fn read_if_there(
    local: &TaskWorker,
    extent: Extent,
) -> Result<Option<Vec<u8>>, StorageError> {
    let mut bytes = Vec::new();
    let is_other =
        |corruption: &PageCorruption| matches!(corruption, PageCorruption::WrongKind { .. });
    match read_all(local, extent, &mut bytes) {
        Ok(()) => Ok(Some(bytes)),
        Err(StorageError::Structure { .. }) => Ok(None),
        Err(StorageError::CorruptPage { corruption, .. }) if is_other(&corruption) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Appends the whole value to `into`.
pub(crate) fn read_all(
    local: &TaskWorker,
    extent: Extent,
    into: &mut Vec<u8>,
) -> Result<(), StorageError> {
    let mut reader = ExtentReader::new(local, extent)?;
    into.reserve(extent.length as usize);
    while reader.read(local, into)? {}
    Ok(())
}

#[cfg(test)]
mod tests;

//! Writing large values: chunks in groups, named by a mapping record each. The flush that makes the
//! record durable makes them durable, too (docs/decisions/0086).

use isobath_flash::policy::{Cause, History, PageWrite};
use isobath_io::AlignedBuf;

use super::{Extent, RUN_BYTES, Runs, end_chunks, free_chunks, payload_bytes, stored_bytes};
use crate::buffer::PagePlace;
use crate::canary::{self, Canary};
use crate::context::TaskWorker;
use crate::error::StorageError;
use crate::log::record::{Copied, Mapped, Token};
use crate::page::{self, HEADER_SIZE, Lsn, PageId, PageKind, offset, put_u32};
use crate::pagestore::Request;
use crate::shared::Counters;

/// Bytes of chunks that are written together, and named by one record.
const TOGETHER_BYTES: usize = 1 << 20;
/// Chunks that are written together: their mapping record is short, however small the segments are.
const TOGETHER_CHUNKS: usize = 16;

/// A large value that is being written, chunk by chunk. What it wrote must be
/// given to [`ExtentWriter::finish`] or [`ExtentWriter::abandon`].
#[derive(Default)]
pub(crate) struct ExtentWriter {
    stamp: Option<Lsn>,
    /// The token of the chunks until it is confirmed: the value's own, or that of all that becomes
    /// reachable with it.
    owner: Option<Token>,
    runs: Runs,
    /// Ids that were taken ahead: (next, left).
    ahead: (u64, u64),
    /// Ids of chunks that were freed again. No other chunk of this value gets one of them: as all
    /// chunks have one stamp, a backup would take the two for the same.
    given_up: Runs,
    /// Chunks that are still to come, as far as the caller has said.
    expected: u64,
    chunks: u64,
    length: u64,
    /// Payload bytes of every chunk but the last; 0 before the first one.
    payload: usize,
}

impl ExtentWriter {
    pub(crate) fn new() -> ExtentWriter {
        ExtentWriter::default()
    }

    /// Bytes written so far.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Expects `bytes` more, so that their chunks get consecutive ids.
    pub(crate) fn expect(&mut self, local: &TaskWorker, bytes: u64) -> Result<(), StorageError> {
        self.expected = bytes.div_ceil(self.payload(local) as u64).max(1);
        self.take_ids(local, self.expected)
    }

    /// Payload bytes of every chunk but the last.
    pub(crate) fn payload(&mut self, local: &TaskWorker) -> usize {
        if self.payload == 0 {
            self.payload = payload_bytes(&local.parts.shared.config);
        }
        self.payload
    }

    fn take_ids(&mut self, local: &TaskWorker, count: u64) -> Result<(), StorageError> {
        let parts = &local.parts;
        // The index of runs has to fit a chunk.
        let whole = self.runs.0.len() >= self.payload(local) / RUN_BYTES / 2;
        let mapping = &parts.buffer.pool.mapping;
        let (first, count) = parts.pagestore.allocate_ids(mapping, count, whole)?;
        self.ahead = (first.0, count);
        Ok(())
    }

    /// The next chunk's id.
    fn next_id(&mut self, local: &TaskWorker) -> Result<PageId, StorageError> {
        if self.ahead.1 == 0 {
            // Of unknown length: twice as many ids each time.
            let guess = self.chunks.clamp(1, 512);
            self.take_ids(local, self.expected.max(guess))?;
        }
        let id = PageId(self.ahead.0);
        self.ahead = (id.0 + 1, self.ahead.1 - 1);
        self.expected = self.expected.saturating_sub(1);
        Ok(id)
    }

    /// Writes one chunk; all but the last are full.
    #[cfg(test)]
    pub(crate) fn write(&mut self, local: &TaskWorker, payload: &[u8]) -> Result<(), StorageError> {
        self.write_together(local, &[payload])
    }

    /// Writes `chunks`, all full but perhaps the value's last one, or none of them.
    pub(crate) fn write_full<'c>(
        &mut self,
        local: &TaskWorker,
        chunks: impl Iterator<Item = &'c [u8]>,
    ) -> Result<(), StorageError> {
        let before = self.chunks;
        let payload = self.payload(local);
        let most = (TOGETHER_BYTES / payload).clamp(1, TOGETHER_CHUNKS);
        let mut chunks = chunks.peekable();
        let mut group = Vec::with_capacity(most);
        while chunks.peek().is_some() {
            group.clear();
            group.extend(chunks.by_ref().take(most));
            if let Err(error) = self.write_together(local, &group) {
                self.take_back(local, before);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Writes a few chunks with one record; if that fails, those before the first that was not
    /// written are there.
    fn write_together(
        &mut self,
        local: &TaskWorker,
        payloads: &[&[u8]],
    ) -> Result<(), StorageError> {
        let mut ids = Vec::with_capacity(payloads.len());
        let taken = payloads.iter().try_for_each(|_| {
            ids.push(self.next_id(local)?);
            Ok(())
        });
        let owned = (self.stamp(local), self.owner);
        let (written, result) = match taken {
            Ok(()) => write_chunks(local, &ids, owned, payloads),
            Err(error) => (0, Err(error)),
        };
        for (id, payload) in ids.iter().zip(payloads).take(written) {
            self.runs.push(*id);
            self.length += payload.len() as u64;
        }
        self.chunks += written as u64;
        ids[written..].iter().for_each(|id| self.given_up.push(*id));
        result
    }

    /// Frees all but the first `kept` chunks, which are full as those are that go.
    fn take_back(&mut self, local: &TaskWorker, kept: u64) {
        let gone = self.runs.split_off(kept);
        let count = self.chunks - kept;
        if count > 0 {
            let gone = end_chunks(local, &[], None, gone.ids());
            self.given_up.0.extend(gone.0);
            if canary::is_on(Canary::UseIdsAgainAtOnce) {
                let ahead = std::mem::take(&mut self.ahead);
                self.give_ids_back(local);
                self.ahead = ahead;
            }
            self.length -= count * self.payload(local) as u64;
            self.chunks = kept;
        }
    }

    fn stamp(&mut self, local: &TaskWorker) -> Lsn {
        *self
            .stamp
            .get_or_insert_with(|| local.parts.log.stamp(local.worker.index))
    }

    fn give_ids_back(&mut self, local: &TaskWorker) {
        let ahead = std::mem::take(&mut self.ahead);
        let given_up = std::mem::take(&mut self.given_up);
        if ahead.1 == 0 && given_up.0.is_empty() {
            return;
        }
        let parts = &local.parts;
        let runs = given_up.0.into_iter().chain([ahead]);
        parts.pagestore.free_ids(&parts.buffer.pool.mapping, runs);
    }

    /// The descriptor of all that was written.
    pub(crate) fn finish(mut self, local: &TaskWorker) -> Result<Extent, StorageError> {
        self.give_ids_back(local);
        let payload = self.payload(local) as u32;
        let single = self.runs.0.len() == 1;
        let first = if single {
            Ok(PageId(self.runs.0[0].0))
        } else {
            self.write_index(local)
        };
        match first {
            Ok(first) => Ok(Extent {
                length: self.length,
                first,
                payload,
                indexed: !single,
                stamp: self.stamp(local),
            }),
            Err(error) => {
                self.abandon(local);
                Err(error)
            }
        }
    }

    fn write_index(&mut self, local: &TaskWorker) -> Result<PageId, StorageError> {
        let mut bytes = Vec::with_capacity(self.runs.0.len() * RUN_BYTES);
        for &(first, count) in &self.runs.0 {
            bytes.extend_from_slice(&first.to_le_bytes());
            bytes.extend_from_slice(&count.to_le_bytes());
        }
        let parts = &local.parts;
        let id = parts.pagestore.allocate_id(&parts.buffer.pool.mapping)?;
        let stamp = self.stamp(local);
        let (_, written) = write_chunks(local, &[id], (stamp, self.owner), &[&bytes]);
        if let Err(error) = written {
            parts
                .pagestore
                .unallocate_id(&parts.buffer.pool.mapping, id);
            return Err(error);
        }
        Ok(id)
    }

    /// Frees all that was written.
    pub(crate) fn abandon(mut self, local: &TaskWorker) {
        self.give_ids_back(local);
        let tokens: Vec<Token> = self.stamp.iter().map(|stamp| stamp.0).collect();
        free_chunks(local, &tokens, None, self.runs.ids());
    }
}

/// Writes the chunks `ids`, which nothing names yet, of a value with a stamp and perhaps
/// an owner other than itself: how many of them, and why not all.
fn write_chunks(
    local: &TaskWorker,
    ids: &[PageId],
    value: (Lsn, Option<Token>),
    payloads: &[&[u8]],
) -> (usize, Result<(), StorageError>) {
    let parts = &local.parts;
    let block = parts.shared.config.block_bytes;
    let lengths = payloads
        .iter()
        .map(|payload| stored_bytes(payload.len(), block));
    let lengths: Vec<u32> = lengths.collect();
    let release = |lengths: &[u32]| {
        lengths
            .iter()
            .for_each(|length| parts.pagestore.release_chunk(*length))
    };
    if let Err(error) = parts.shared.writable() {
        return (0, Err(error));
    }
    for (reserved, length) in lengths.iter().enumerate() {
        if let Err(error) = reserve_chunk(local, *length) {
            release(&lengths[..reserved]);
            return (0, Err(error));
        }
    }
    let mut written = 0;
    while written < ids.len() {
        let rest = (&ids[written..], &payloads[written..], &lengths[written..]);
        match place_and_write(local, value, rest) {
            Ok(count) => written += count,
            Err(error) => {
                release(&lengths[written..]);
                return (written, Err(error));
            }
        }
    }
    (written, Ok(()))
}

/// Accounts for a new chunk of `length` bytes. If the volume is full, the large values that only
/// snapshots read give way, those of the oldest snapshots first.
///
/// # Errors
///
/// [`StorageError::VolumeFull`].
fn reserve_chunk(local: &TaskWorker, length: u32) -> Result<(), StorageError> {
    // Bound: each round but the last frees a value or fails a snapshot.
    loop {
        match local
            .parts
            .pagestore
            .reserve_one_chunk(&local.worker, length)
        {
            Err(full @ StorageError::VolumeFull { .. }) => {
                if !local.old_values.give_way(local) {
                    return Err(full);
                }
            }
            claimed => return claimed,
        }
    }
}

/// Writes as many chunks as find segments at once, the first one certainly; how many.
fn place_and_write(
    local: &TaskWorker,
    (stamp, owner): (Lsn, Option<Token>),
    (ids, payloads, lengths): (&[PageId], &[&[u8]], &[u32]),
) -> Result<usize, StorageError> {
    let parts = &local.parts;
    let requests = ids.iter().zip(lengths).map(|(&page, &bytes)| Request {
        page,
        is_run: false,
        write: PageWrite {
            token: 0,
            bytes,
            cause: Cause::User,
            history: History::UNKNOWN,
            rate: 0.0,
        },
    });
    let requests: Vec<Request> = requests.collect();
    // Before the chunks have places: nothing waits for the log while it holds segments that cannot
    // be cleaned.
    let _reservation = parts
        .pagestore
        .mapping_reservation(&local.worker, ids.len())?;
    let placed = parts.pagestore.place_chunks(&local.worker, &requests)?;
    let copies: Vec<Mapped> = placed
        .addresses()
        .zip(ids)
        .map(|(address, &page)| Mapped {
            what: Copied::UnflushedChunk,
            page,
            version: stamp,
            address,
            seq: parts.shared.seq_of(address),
        })
        .collect();
    let ids = &ids[..copies.len()];
    let bytes = copies.iter().map(|copy| copy.address.length() as usize);
    let mut staging = AlignedBuf::new(bytes.sum());
    let mut rest = staging.as_mut_slice();
    for (copy, payload) in copies.iter().zip(payloads) {
        let (image, behind) = rest.split_at_mut(copy.address.length() as usize);
        seal_chunk(image, copy, payload);
        rest = behind;
    }
    let token = owner.unwrap_or(stamp.0);
    let result = parts
        .pagestore
        .write_chunks(&local.worker, &staging, &placed, || {
            parts.pagestore.add_provisional(token, ids);
            for copy in &copies {
                let place = PagePlace::Stored(copy.address);
                parts.buffer.pool.mapping.set(copy.page, place);
            }
            local.parts.buffer.log_copies(&local.worker, token, &copies);
        });
    match result {
        Ok(()) => {
            Counters::add(&parts.shared.counters.value_bytes, staging.len() as u64);
            Ok(copies.len())
        }
        Err(error) => {
            copies
                .iter()
                .for_each(|copy| parts.pagestore.invalidate(copy.address));
            parts.shared.poison(error.clone());
            Err(error)
        }
    }
}

/// Makes `image` the chunk that `copy` describes, with this payload.
fn seal_chunk(image: &mut [u8], copy: &Mapped, payload: &[u8]) {
    image[..HEADER_SIZE].fill(0);
    image[offset::KIND] = PageKind::Chunk as u8;
    put_u32(image, offset::KIND_SPECIFIC, payload.len() as u32);
    let (bytes, padding) = image[HEADER_SIZE..].split_at_mut(payload.len());
    bytes.copy_from_slice(payload);
    padding.fill(0);
    page::seal(image, copy.page, copy.version, copy.seq);
}

/// Writes a whole value; its chunks belong to `owner`, or else to the value itself.
pub(crate) fn write_all(
    local: &TaskWorker,
    value: &[u8],
    owner: Option<Token>,
) -> Result<Extent, StorageError> {
    let mut writer = ExtentWriter {
        owner,
        ..ExtentWriter::default()
    };
    writer.expect(local, value.len() as u64)?;
    let chunks = value.chunks(writer.payload(local));
    if let Err(error) = writer.write_full(local, chunks) {
        writer.abandon(local);
        return Err(error);
    }
    writer.finish(local)
}

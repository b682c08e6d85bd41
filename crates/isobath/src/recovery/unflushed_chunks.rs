//! Chunks that the log names and that were not flushed before it did: which of them a recovery
//! finds, and where the log ends for it if one is missing. A commit waits for one flush instead of
//! two that way.

use isobath_io::{AlignedBuf, IoError, Volume};

use crate::canary::{self, Canary};
use crate::checkpoint::Superblock;
use crate::error::{OpenError, StorageError};
use crate::log::record::{Body, Copied, Mapped, Token, decode};
use crate::log::{LogArea, ReadError, Reader};
use crate::page::{self, Lsn, PageId};
use crate::recovery::scan::{reader, unknown_record};
use crate::sync::{HashMap, HashSet};

/// Readings of a log beside a writer that goes on, at most.
const ROUNDS: usize = 20;

/// A chunk that was not flushed when the log named it.
#[derive(Clone, Copy)]
struct Named {
    record: Lsn,
    token: Token,
    chunk: Mapped,
}

/// The chunks that the log named before they were flushed, of one reading of the log.
#[derive(Default)]
pub(crate) struct UnflushedChunks {
    /// Those that exist at the reading's end.
    live: HashMap<PageId, Named>,
    /// Tokens that records have confirmed. What belongs to others no commit has named: a recovery
    /// frees it at once, and uses its place before the record that says so is durable.
    confirmed: HashSet<Token>,
}

impl UnflushedChunks {
    /// Takes the record at `lsn` into account.
    pub(crate) fn note(&mut self, lsn: Lsn, body: &Body<'_>) {
        match body {
            Body::Commit { tokens, chunks, .. } | Body::Free { tokens, chunks } => {
                self.confirm(tokens, chunks);
            }
            Body::Structure { tokens, ended, .. } => self.confirm(tokens, ended),
            Body::Mapping { token, copies } => {
                for copy in copies {
                    self.note_copy(lsn, *token, copy);
                }
            }
        }
    }

    fn confirm(&mut self, tokens: &[Token], ended: &[PageId]) {
        self.confirmed.extend(tokens);
        self.end(ended);
    }

    fn end(&mut self, ids: &[PageId]) {
        // The place of one that has ended may hold something else by now, if the record of its end
        // was durable.
        if !canary::is_on(Canary::VerifyEndedChunks) {
            for id in ids {
                self.live.remove(id);
            }
        }
    }

    fn note_copy(&mut self, record: Lsn, token: Token, copy: &Mapped) {
        match copy.what {
            Copied::UnflushedChunk => {
                let chunk = *copy;
                let named = Named {
                    record,
                    token,
                    chunk,
                };
                self.live.insert(copy.page, named);
            }
            Copied::NewChunk => self.end(&[copy.page]),
            // The copy was flushed before its record, and this place may be used again.
            Copied::MovedChunk => {
                let known = self.live.get(&copy.page);
                if known.is_some_and(|named| named.chunk.version == copy.version) {
                    self.end(&[copy.page]);
                }
            }
            // Of an earlier owner of the id, or of a later one, before which the chunk has ended.
            Copied::Page | Copied::Provisional => {}
        }
    }

    /// The record of the oldest chunk, of those that some commit has, that is not where `log`,
    /// which was read to its end, says. `None` if all of them are there, or what is not was durable
    /// once: that is corrupt, and its reader will find it so.
    ///
    /// # Errors
    ///
    /// Any of the volume's.
    pub(crate) fn first_missing(
        &self,
        volume: &Volume,
        superblock: &Superblock,
        log: &Reader<'_>,
    ) -> Result<Option<Lsn>, IoError> {
        if canary::is_on(Canary::TrustUnflushedChunks) {
            return Ok(None);
        }
        let is_needed = |named: &Named| self.is_confirmed(named.token);
        self.missing_behind(volume, superblock, log, is_needed)
    }

    /// As [`UnflushedChunks::first_missing`], of a part of the log: whether a commit has a chunk
    /// is said behind it.
    ///
    /// # Errors
    ///
    /// Any of the volume's.
    pub(crate) fn first_missing_in_part(
        &self,
        volume: &Volume,
        superblock: &Superblock,
        log: &Reader<'_>,
    ) -> Result<Option<Lsn>, IoError> {
        self.missing_behind(volume, superblock, log, |_| true)
    }

    /// The first record that names a missing chunk and is not known to have been durable.
    fn missing_behind(
        &self,
        volume: &Volume,
        superblock: &Superblock,
        log: &Reader<'_>,
        is_needed: impl Fn(&Named) -> bool + Copy,
    ) -> Result<Option<Lsn>, IoError> {
        let durable = log.known_durable().max(Lsn(superblock.log_durable));
        let missing = self.missing_from(volume, superblock, durable, is_needed)?;
        if missing.is_none() {
            return Ok(None);
        }
        let durable = durable.max(log.known_durable_behind()?);
        self.missing_from(volume, superblock, durable, is_needed)
    }

    /// The first record at or behind `durable` that names a missing chunk.
    fn missing_from(
        &self,
        volume: &Volume,
        superblock: &Superblock,
        durable: Lsn,
        is_needed: impl Fn(&Named) -> bool,
    ) -> Result<Option<Lsn>, IoError> {
        let mut needed: Vec<&Named> = self.live.values().collect();
        needed.retain(|named| named.record >= durable && is_needed(named));
        needed.sort_unstable_by_key(|named| (named.record, named.chunk.page));
        for named in needed {
            if !is_there(volume, superblock, &named.chunk)? {
                return Ok(Some(named.record));
            }
        }
        Ok(None)
    }

    fn is_confirmed(&self, token: Token) -> bool {
        self.confirmed.contains(&token) || canary::is_on(Canary::VerifyOrphans)
    }
}

/// Whether the whole chunk lies at its place. No other bytes match: its segment's sequence number
/// is never given again, and in one use of a segment each place is written once.
fn is_there(volume: &Volume, superblock: &Superblock, chunk: &Mapped) -> Result<bool, IoError> {
    let (at, length) = (chunk.address, chunk.address.length());
    let start = superblock.sizes.start_of(at.segment()) + u64::from(at.offset());
    if length == 0 || start + u64::from(length) > volume.len() {
        return Ok(false);
    }
    let mut image = AlignedBuf::new(length as usize);
    volume.read_at(start, image.as_mut_slice())?;
    Ok(page::is_chunk(&image, chunk.page, chunk.version, chunk.seq))
}

/// The end of `superblock`'s log for a reader of its store: before the first record that names a
/// chunk that is missing but must be there. If a record behind a gap knows that the log was durable
/// beyond the gap, the end is there.
///
/// A writer may go on beside this. If it has used a chunk's place again, it had a durable record
/// before of the chunk's end; so the log is read once more before it is cut off.
///
/// # Errors
///
/// What keeps the log from being read; [`StorageError::LogCorrupt`] if a writer overtakes every
/// reading.
pub(crate) fn find_end(
    volume: &Volume,
    area: &LogArea,
    superblock: &Superblock,
) -> Result<Lsn, OpenError> {
    let (mut cut, mut suspect) = (None, None);
    for _ in 0..ROUNDS {
        let mut log = reader(volume, area, superblock);
        if let Some(cut) = cut {
            log = log.until(cut);
        }
        let mut chunks = UnflushedChunks::default();
        let trusts = canary::is_on(Canary::TrustLiveLogEnd);
        loop {
            match log.next() {
                Ok(Some(record)) => match decode(record.kind, record.body) {
                    Some(body) => chunks.note(record.lsn, &body),
                    None => return Err(unknown_record(record.lsn, record.kind).into()),
                },
                Ok(None) => break,
                Err(ReadError::Lost { durable, .. }) if !trusts => return Ok(Lsn(durable)),
                Err(ReadError::Lost { position, .. }) => return Ok(Lsn(position)),
                Err(error) => return Err(error.into()),
            }
        }
        match chunks.first_missing(volume, superblock, &log)? {
            None => return Ok(log.position()),
            missing if cut.is_some() || missing == suspect => cut = missing,
            missing => suspect = missing,
        }
    }
    Err(StorageError::LogCorrupt {
        position: suspect.map_or(superblock.log_start, |lsn| lsn.0),
        durable: superblock.log_durable,
    }
    .into())
}

#[cfg(test)]
#[path = "unflushed_chunks_tests.rs"]
mod tests;

//! Reading the log back: its longest valid prefix from a given position.

use isobath_io::{AlignedBuf, IoError, Volume};

use super::area::LogArea;
use super::layout::{
    BLOCK, HEADER_BYTES, Header, MAX_RECORD_BYTES, Seed, Skip, is_whole, read_skip, skip_word,
};
use super::record::Kind;
use crate::canary::{self, Canary};
use crate::error::{StorageError, by_storage};
use crate::page::{Lsn, get_u64, put_u64};

/// Bytes read at a time.
const READ_BYTES: usize = 4 << 20;
/// Bytes behind the end that are searched for signs of a longer log: twice the
/// largest ring, which is more than can be in flight when power fails.
const SEARCH_BYTES: u64 = 2 * super::MAX_RING_BYTES;

/// Why the log cannot be read to its end.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum ReadError {
    /// The volume could not be read.
    #[error(transparent)]
    Io(#[from] IoError),
    /// Nothing sound is at `position`, although the log was durable up to `durable`.
    #[error("the log breaks off at {position}, but it was durable up to {durable}")]
    Lost { position: u64, durable: u64 },
    /// A sound record of a kind that this version does not know.
    #[error("the log's record at {position} has the unknown kind {kind}")]
    UnknownKind { position: u64, kind: u8 },
}

impl From<ReadError> for StorageError {
    fn from(error: ReadError) -> StorageError {
        match error {
            ReadError::Io(source) => StorageError::Io(source),
            ReadError::Lost { position, durable } => StorageError::LogCorrupt { position, durable },
            ReadError::UnknownKind { position, kind } => {
                StorageError::UnknownLogRecord { position, kind }
            }
        }
    }
}

by_storage!(ReadError: OpenError BackupError);

/// The end of the valid log.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct LogEnd {
    /// The first position that belongs to nothing valid.
    pub(crate) lsn: Lsn,
    /// The newest open epoch met.
    pub(crate) open_epoch: u32,
    /// Sound records begin here, which do not count: one of them names a chunk that is not there.
    pub(crate) is_cut: bool,
}

impl LogEnd {
    /// The LSN at which a writer continues behind it, once [`seal_tail`] has sealed it.
    pub(crate) fn goes_on_at(&self) -> Lsn {
        let at = self.lsn.0.next_multiple_of(BLOCK);
        // A block that holds records is written once more, and only that.
        let is_taken = self.is_cut && at == self.lsn.0;
        Lsn(at + if is_taken { BLOCK } else { 0 })
    }
}

/// A record read back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry<'r> {
    pub(crate) lsn: Lsn,
    pub(crate) kind: Kind,
    /// The body, padded with zeros to a multiple of 8 bytes.
    pub(crate) body: &'r [u8],
}

/// Reads records in order.
pub(crate) struct Reader<'v> {
    volume: &'v Volume,
    area: &'v LogArea,
    seed: Seed,
    at: u64,
    open_epoch: u32,
    /// One lap after the start: the log cannot be longer.
    limit: u64,
    /// The known end of the log; a writer's new records may follow.
    known_end: Option<Lsn>,
    /// The log was durable below this, by what the records say that were read.
    durable: u64,
    buffer: AlignedBuf,
    /// LSN of the buffer's first byte; a multiple of a block.
    base: u64,
    filled: usize,
    /// Bytes of the next read; each is twice as long as the one before, up to the largest.
    read_bytes: usize,
}

/// The unit at the reader's position.
enum Found {
    Record(Header),
    Skipped,
    End,
}

impl<'v> Reader<'v> {
    /// Reads from `start` on, where a record, a skip or the log's end is.
    /// `open_epoch` is that of the superblock that names `start`: anything older there was
    /// left behind by a crash.
    pub(crate) fn new(
        volume: &'v Volume,
        area: &'v LogArea,
        store_id: &[u8; 16],
        start: Lsn,
        open_epoch: u32,
    ) -> Reader<'v> {
        let base = start.0 - start.0 % BLOCK;
        Reader {
            volume,
            area,
            seed: Seed::of(store_id),
            at: start.0,
            open_epoch,
            limit: base + area.bytes(),
            known_end: None,
            durable: 0,
            buffer: AlignedBuf::new(0),
            base,
            filled: 0,
            read_bytes: READ_BYTES,
        }
    }

    /// Begins with a read of one block: there may be no more to read.
    pub(crate) fn begin_small(mut self) -> Reader<'v> {
        self.read_bytes = BLOCK as usize;
        self
    }

    /// Reads no further than to where an earlier reading has found the log's end.
    pub(crate) fn until(mut self, end: Lsn) -> Reader<'v> {
        self.known_end = Some(end);
        self
    }

    /// The position reached.
    pub(crate) fn position(&self) -> Lsn {
        Lsn(self.at)
    }

    /// Up to where the log was durable, by what the records say that were read.
    pub(crate) fn known_durable(&self) -> Lsn {
        Lsn(self.durable)
    }

    /// As [`Reader::known_durable`], by what the records behind the log's end say, too. Called at
    /// that end.
    ///
    /// # Errors
    ///
    /// Any of the volume's.
    pub(crate) fn known_durable_behind(&self) -> Result<Lsn, IoError> {
        let mut known = self.durable;
        self.search_behind(|durable| {
            known = known.max(durable);
            false
        })?;
        Ok(Lsn(known))
    }

    /// The next record; `None` at the log's end.
    ///
    /// # Errors
    ///
    /// [`ReadError`]; what was read before it is sound.
    pub(crate) fn next(&mut self) -> Result<Option<Entry<'_>>, ReadError> {
        let header = loop {
            if self.known_end.is_some_and(|end| self.at >= end.0) {
                return Ok(None);
            }
            match self.find()? {
                Found::Skipped => {}
                Found::Record(header) => break header,
                Found::End => return self.check_end().map(|()| None),
            }
        };
        self.entry(&header).map(Some)
    }

    /// Goes behind the record that was found; what it says.
    fn entry(&mut self, header: &Header) -> Result<Entry<'_>, ReadError> {
        let kind = Kind::from_byte(header.kind).ok_or(ReadError::UnknownKind {
            position: header.lsn,
            kind: header.kind,
        })?;
        self.at = header.lsn + u64::from(header.length);
        self.open_epoch = header.open_epoch;
        self.durable = self.durable.max(header.durable);
        let from = (header.lsn - self.base) as usize;
        Ok(Entry {
            lsn: Lsn(header.lsn),
            kind,
            body: &self.buffer[from + HEADER_BYTES..from + header.length as usize],
        })
    }

    /// The next record that starts below `end`, up to where the log is known to be whole: what lies
    /// behind it may be in the making. `None` at `end`, or where the log ends before.
    ///
    /// # Errors
    ///
    /// As for [`Reader::next`].
    pub(crate) fn next_below(&mut self, end: Lsn) -> Result<Option<Entry<'_>>, ReadError> {
        while self.at < end.0 {
            match self.find()? {
                Found::Skipped => {}
                Found::Record(header) => return self.entry(&header).map(Some),
                Found::End => return Ok(None),
            }
        }
        Ok(None)
    }

    /// The log's end, once [`Reader::next`] said that it has one.
    pub(crate) fn end(&self) -> LogEnd {
        LogEnd {
            lsn: Lsn(self.at),
            open_epoch: self.open_epoch,
            is_cut: false,
        }
    }

    fn find(&mut self) -> Result<Found, ReadError> {
        if !self.load(8)? {
            return Ok(Found::End);
        }
        let word = get_u64(self.here(), 0);
        if let Some((skip, open_epoch)) = read_skip(self.seed, self.at, word) {
            if open_epoch < self.open_epoch {
                return Ok(Found::End);
            }
            self.open_epoch = open_epoch;
            self.at = match skip {
                Skip::Word => self.at + 8,
                Skip::Block => (self.at + 1).next_multiple_of(BLOCK),
            };
            return Ok(Found::Skipped);
        }
        if !self.load(HEADER_BYTES)? {
            return Ok(Found::End);
        }
        let Some(header) = Header::peek(self.here(), self.at, MAX_RECORD_BYTES) else {
            return Ok(Found::End);
        };
        let length = header.length as usize;
        if header.open_epoch < self.open_epoch
            || !self.load(length)?
            || !is_whole(self.seed, &self.here()[..length])
        {
            return Ok(Found::End);
        }
        Ok(Found::Record(header))
    }

    /// The bytes read from the present position on.
    fn here(&self) -> &[u8] {
        &self.buffer[(self.at - self.base) as usize..self.filled]
    }

    /// Has `count` bytes from the present position on in memory; `false` if the
    /// log cannot be that long.
    fn load(&mut self, count: usize) -> Result<bool, IoError> {
        let end = self.at + count as u64;
        if end > self.limit {
            return Ok(false);
        }
        let have = self.base + self.filled as u64;
        if end <= have {
            return Ok(true);
        }
        // Keep what is not yet done with, from its block on.
        let keep_from = (self.at - self.at % BLOCK).min(have);
        let kept = (have - keep_from) as usize;
        let wanted = (end - keep_from).next_multiple_of(self.read_bytes as u64) as usize;
        self.read_bytes = (2 * self.read_bytes).min(READ_BYTES);
        let size = wanted.min((self.limit - keep_from) as usize);
        let drop_bytes = (keep_from - self.base) as usize;
        if self.buffer.len() < size {
            let mut larger = AlignedBuf::new(size);
            larger[..kept].copy_from_slice(&self.buffer[drop_bytes..drop_bytes + kept]);
            self.buffer = larger;
        } else {
            self.buffer.copy_within(drop_bytes..drop_bytes + kept, 0);
        }
        self.base = keep_from;
        self.filled = kept;
        self.area
            .read(self.volume, have, &mut self.buffer[kept..size])?;
        self.filled = size;
        Ok(true)
    }

    /// Looks behind the end for a record that knows the log to have been durable
    /// beyond it. A crash leaves none: what it tears was not durable yet.
    fn check_end(&self) -> Result<(), ReadError> {
        match self.search_behind(|durable| durable > self.at)? {
            Some(durable) => Err(ReadError::Lost {
                position: self.at,
                durable,
            }),
            None => Ok(()),
        }
    }

    /// The durable LSN of the first record behind the present position for which `is_it` holds.
    fn search_behind(&self, mut is_it: impl FnMut(u64) -> bool) -> Result<Option<u64>, IoError> {
        let search_end = self.limit.min(self.at.saturating_add(SEARCH_BYTES));
        let first = self.at - self.at % BLOCK;
        let mut buffer = AlignedBuf::new(READ_BYTES);
        let mut base = first;
        while base < search_end {
            let count = (search_end - base).min(READ_BYTES as u64) as usize;
            self.area.read(self.volume, base, &mut buffer[..count])?;
            for block in (0..count).step_by(BLOCK as usize) {
                let bytes = &buffer[block..count];
                if let Some(durable) = self.durable_at(base + block as u64, bytes)?
                    && is_it(durable)
                {
                    return Ok(Some(durable));
                }
            }
            base += count as u64;
        }
        Ok(None)
    }

    /// The durable LSN of the first record in the block at `block`, if there is a sound one of this
    /// lap or a later one.
    fn durable_at(&self, block: u64, bytes: &[u8]) -> Result<Option<u64>, IoError> {
        let mut within = 0;
        let lsn = loop {
            if within + HEADER_BYTES > bytes.len() {
                return Ok(None);
            }
            let lsn = block + within as u64;
            let word = get_u64(bytes, within);
            match read_skip(self.seed, lsn, word) {
                Some((Skip::Word, _)) => within += 8,
                Some((Skip::Block, _)) => return Ok(None),
                None => break lsn,
            }
        };
        let claimed = get_u64(bytes, within + 8);
        let laps = claimed.wrapping_sub(lsn);
        if claimed < lsn || !laps.is_multiple_of(self.area.bytes()) {
            return Ok(None);
        }
        let limit = MAX_RECORD_BYTES.min(self.area.bytes() as usize);
        let Some(header) = Header::peek(&bytes[within..], claimed, limit) else {
            return Ok(None);
        };
        let mut record = vec![0; header.length as usize];
        self.area.read(self.volume, claimed, &mut record)?;
        Ok(is_whole(self.seed, &record).then_some(header.durable))
    }
}

/// The epoch of an opening, after all that the store and its log know of.
pub(crate) fn next_epoch(newest: u32) -> u32 {
    newest + u32::from(!canary::is_on(Canary::KeepEpoch))
}

/// Prepares the log to go on behind `end`, as `open_epoch`: if that is in
/// the middle of a block, whose rest a crash has torn, a skip to the next block
/// is written there, durably. So it is where sound records begin at the end that do
/// not count: none of them may be read again, by whatever is written behind them. Returns where the
/// log goes on.
///
/// Nothing in that block was acknowledged: a flush ends with a block. So it may
/// be written once more, as long as nothing else of this opening was.
///
/// # Errors
///
/// Any of the volume's.
pub(crate) fn seal_tail(
    volume: &Volume,
    area: &LogArea,
    store_id: &[u8; 16],
    end: LogEnd,
    open_epoch: u32,
) -> Result<Lsn, IoError> {
    let within = (end.lsn.0 % BLOCK) as usize;
    if within == 0 && !end.is_cut {
        return Ok(end.lsn);
    }
    let start = end.lsn.0 - within as u64;
    if canary::is_on(Canary::LeaveTornTail) || end.is_cut && canary::is_on(Canary::LeaveCutTail) {
        return Ok(end.goes_on_at());
    }
    let mut block = vec![0; BLOCK as usize];
    area.read(volume, start, &mut block)?;
    let word = skip_word(Seed::of(store_id), end.lsn.0, open_epoch, Skip::Block);
    block[within..].fill(0);
    put_u64(&mut block, within, word);
    area.write(volume, start, &block)?;
    volume.sync()?;
    Ok(end.goes_on_at())
}

//! A log made of records that another store wrote, for a store that is restored.

use isobath_io::{IoError, Volume};

use super::area::LogArea;
use super::layout::{BLOCK, Header, Seed, Skip, body_checksum, record_bytes, skip_word};
use super::record::Kind;
use crate::page::Lsn;

/// Bytes that are written at a time.
const WRITE_BYTES: usize = 1 << 20;

/// Writes a new log.
pub(crate) struct Rewriter<'v> {
    volume: &'v Volume,
    area: &'v LogArea,
    seed: Seed,
    open_epoch: u32,
    /// The next position.
    at: u64,
    /// Bytes not written yet, from `base`, a whole block, on.
    base: u64,
    bytes: Vec<u8>,
}

impl<'v> Rewriter<'v> {
    /// A log of the store `store_id` that begins at `start`.
    pub(crate) fn new(
        volume: &'v Volume,
        area: &'v LogArea,
        store_id: &[u8; 16],
        open_epoch: u32,
        start: Lsn,
    ) -> Rewriter<'v> {
        let base = start.0 - start.0 % BLOCK;
        Rewriter {
            volume,
            area,
            seed: Seed::of(store_id),
            open_epoch,
            at: start.0,
            base,
            bytes: vec![0; (start.0 - base) as usize],
        }
    }

    /// The next position that a record can have.
    pub(crate) fn position(&self) -> Lsn {
        Lsn(self.at)
    }

    /// Puts a record at `lsn`, which is at or behind [`Rewriter::position`].
    ///
    /// # Errors
    ///
    /// Any of the volume's.
    pub(crate) fn record(&mut self, lsn: Lsn, kind: Kind, body: &[u8]) -> Result<(), IoError> {
        self.skip_to(lsn.0)?;
        let length = record_bytes(&[body]);
        // Nothing is known to be durable: only a reader that finds a hole would ask.
        let header = Header::new(length, lsn.0, self.open_epoch, kind, 0);
        let header = header.encode(body_checksum(self.seed, &[body]));
        self.bytes.extend_from_slice(&header);
        self.bytes.extend_from_slice(body);
        self.at += length as u64;
        self.bytes.resize((self.at - self.base) as usize, 0);
        self.write_blocks(false)
    }

    /// Ends the log at `end`, a whole block.
    ///
    /// # Errors
    ///
    /// Any of the volume's.
    pub(crate) fn finish(mut self, end: Lsn) -> Result<(), IoError> {
        self.skip_to(end.0)?;
        self.write_blocks(true)
    }

    /// Makes readers go on at `to`.
    fn skip_to(&mut self, to: u64) -> Result<(), IoError> {
        while self.at < to {
            let block_end = (self.at + 1).next_multiple_of(BLOCK);
            let (skip, next) = if block_end <= to {
                (Skip::Block, block_end)
            } else {
                (Skip::Word, self.at + 8)
            };
            let word = skip_word(self.seed, self.at, self.open_epoch, skip);
            self.bytes.extend_from_slice(&word.to_le_bytes());
            self.at = next;
            self.bytes.resize((self.at - self.base) as usize, 0);
            self.write_blocks(false)?;
        }
        Ok(())
    }

    fn write_blocks(&mut self, all: bool) -> Result<(), IoError> {
        if !all && self.bytes.len() < WRITE_BYTES {
            return Ok(());
        }
        let whole = self.bytes.len() - self.bytes.len() % BLOCK as usize;
        self.area
            .write(self.volume, self.base, &self.bytes[..whole])?;
        self.bytes.drain(..whole);
        self.base += whole as u64;
        Ok(())
    }
}

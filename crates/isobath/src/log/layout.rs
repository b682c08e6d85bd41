//! The layout of the log's units: records, and words that say where the log continues.
//!
//! ```text
//! record:  0 u32 length of the whole record, a multiple of 8
//!          4 u32 CRC-32C, seeded with the store's id, of the body, the length and bytes 8 to 32
//!          8 u64 LSN
//!         16 u32 open epoch
//!         20 u8  kind
//!         21     3 bytes zero
//!         24 u64 LSN below which the log was durable when the record was made
//!         32     body, padded with zeros to a multiple of 8
//! skip:    0 u32 bits 0-2: 1 go on 8 bytes later, 2 go on at the next block; bits 3-31: open epoch
//!          4 u32 CRC-32C, seeded with the store's id, of the LSN and of the word's first half
//! ```

use super::record::{Kind, padding};
use crate::page::{get_u32, get_u64, put_u32, put_u64};

/// Bytes of a record's header.
pub(crate) const HEADER_BYTES: usize = 32;
/// A flush ends at a multiple of this, so that no block is written twice.
pub(crate) const BLOCK: u64 = 4096;
/// Open epochs that fit into a skip word.
pub(crate) const OPEN_EPOCH_LIMIT: u32 = 1 << 29;
/// The longest record, in bytes.
pub(crate) const MAX_RECORD_BYTES: usize = 1 << 27;

const SKIP_WORD: u32 = 1;
const SKIP_BLOCK: u32 = 2;

/// The seed of checksums of a store's log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seed(u32);

impl Seed {
    pub(crate) fn of(store_id: &[u8; 16]) -> Seed {
        Seed(crc32c::crc32c(store_id))
    }
}

/// Bytes of the record whose body is `parts`.
pub(super) fn record_bytes(parts: &[&[u8]]) -> usize {
    let body: usize = parts.iter().map(|part| part.len()).sum();
    HEADER_BYTES + body + padding(body)
}

/// The part of a record's checksum that does not depend on its place.
pub(super) fn body_checksum(seed: Seed, parts: &[&[u8]]) -> u32 {
    let mut sum = seed.0;
    let mut body = 0;
    for part in parts {
        sum = crc32c::crc32c_append(sum, part);
        body += part.len();
    }
    crc32c::crc32c_append(sum, &[0; 8][..padding(body)])
}

fn checksum(body: u32, header: &[u8]) -> u32 {
    let sum = crc32c::crc32c_append(body, &header[..4]);
    crc32c::crc32c_append(sum, &header[8..HEADER_BYTES])
}

/// A record's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    /// Bytes of the whole record.
    pub(super) length: u32,
    pub(super) lsn: u64,
    pub(super) open_epoch: u32,
    /// The byte of a [`Kind`].
    pub(super) kind: u8,
    pub(super) durable: u64,
}

impl Header {
    pub(super) fn new(
        length: usize,
        lsn: u64,
        open_epoch: u32,
        kind: Kind,
        durable: u64,
    ) -> Header {
        Header {
            length: length as u32,
            lsn,
            open_epoch,
            kind: kind as u8,
            durable,
        }
    }

    /// The header's bytes; `body` is the body's checksum.
    pub(super) fn encode(&self, body: u32) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        put_u32(&mut bytes, 0, self.length);
        put_u64(&mut bytes, 8, self.lsn);
        put_u32(&mut bytes, 16, self.open_epoch);
        bytes[20] = self.kind;
        put_u64(&mut bytes, 24, self.durable);
        let sum = checksum(body, &bytes);
        put_u32(&mut bytes, 4, sum);
        bytes
    }

    /// The header at `lsn`, if the bytes there look like one of a record of at
    /// most `limit` bytes. Only [`is_whole`] knows whether it is one.
    pub(super) fn peek(bytes: &[u8], lsn: u64, limit: usize) -> Option<Header> {
        let header = Header {
            length: get_u32(bytes, 0),
            lsn: get_u64(bytes, 8),
            open_epoch: get_u32(bytes, 16),
            kind: bytes[20],
            durable: get_u64(bytes, 24),
        };
        let length = header.length as usize;
        let plausible = header.lsn == lsn
            && length.is_multiple_of(8)
            && (HEADER_BYTES..=limit).contains(&length);
        plausible.then_some(header)
    }
}

/// Whether the bytes of a record match its checksum.
pub(super) fn is_whole(seed: Seed, record: &[u8]) -> bool {
    let body = crc32c::crc32c_append(seed.0, &record[HEADER_BYTES..]);
    get_u32(record, 4) == checksum(body, record)
}

/// The place where the log continues without a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Skip {
    /// 8 bytes later: a stamp.
    Word,
    /// At the next block: the end of a flush.
    Block,
}

/// The word that says at `lsn` where to go on.
pub(super) fn skip_word(seed: Seed, lsn: u64, open_epoch: u32, skip: Skip) -> u64 {
    let tag = match skip {
        Skip::Word => SKIP_WORD,
        Skip::Block => SKIP_BLOCK,
    };
    let low = tag | open_epoch << 3;
    let mut bytes = [0; 12];
    put_u64(&mut bytes, 0, lsn);
    put_u32(&mut bytes, 8, low);
    let sum = crc32c::crc32c_append(seed.0, &bytes);
    u64::from(low) | u64::from(sum) << 32
}

/// Reads a skip word and its open epoch; `None` if there is no sound one.
pub(super) fn read_skip(seed: Seed, lsn: u64, word: u64) -> Option<(Skip, u32)> {
    let low = word as u32;
    let skip = match low & 7 {
        SKIP_WORD => Skip::Word,
        SKIP_BLOCK => Skip::Block,
        _ => return None,
    };
    let open_epoch = low >> 3;
    (skip_word(seed, lsn, open_epoch, skip) == word).then_some((skip, open_epoch))
}

//! What every 4 KiB page on disk and in a frame has in common: its size, its
//! 64-byte header, and its checksum. The byte diagram is in `docs/format.md`.

use crate::canary::{self, Canary};
use std::fmt;

/// Size of a page and of a buffer frame, in bytes (paper 001, section 2.2).
pub const PAGE_SIZE: usize = 4096;

/// Bytes of the header that starts every page and every value chunk.
pub(crate) const HEADER_SIZE: usize = 64;

/// A page's stable identity; it never changes while the page lives, wherever
/// the page is stored. Zero is no page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct PageId(pub(crate) u64);

impl PageId {
    /// The root of the catalog tree, present in every store.
    pub(crate) const CATALOG_ROOT: PageId = PageId(1);
    /// The first id that a page can have; a new store gives it to the catalog.
    pub(crate) const FIRST_FREE: PageId = PageId(1);

    /// The id as a plain number, as error messages and dumps print it.
    #[must_use]
    pub(crate) fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}", self.0)
    }
}

impl fmt::Display for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Set in the ids of a checkpoint's own pages, which no tree has: which array they belong to and
/// where they stand in it follow.
const OF_CHECKPOINT: u64 = 1 << 62;
/// First bits of the array, its level and the page's index in such an id.
const ARRAY_BIT: u32 = 58;
const LEVEL_BIT: u32 = 54;

/// The id of page `index` of a level of an array of a checkpoint.
pub(crate) fn checkpoint_page(array: u64, level: u64, index: u64) -> PageId {
    PageId(OF_CHECKPOINT | array << ARRAY_BIT | level << LEVEL_BIT | index)
}

/// The name of this id's page in messages.
pub(crate) fn name_of(id: u64) -> String {
    if id & !(OF_CHECKPOINT - 1) != OF_CHECKPOINT {
        return format!("page {id}");
    }
    let array = match (id & (OF_CHECKPOINT - 1)) >> ARRAY_BIT {
        1 => "segment table",
        2 => "mapping table",
        3 => "mapping table's directory",
        4 => "list of provisional allocations",
        _ => return format!("page {id}"),
    };
    let index = id & ((1 << LEVEL_BIT) - 1);
    match id >> LEVEL_BIT & ((1 << (ARRAY_BIT - LEVEL_BIT)) - 1) {
        0 => format!("page {index} of the {array}"),
        level => format!("page {index} of the {array}, level {level},"),
    }
}

/// A log sequence number: the position in the log of the newest change that a
/// page contains. Zero precedes every change.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub(crate) struct Lsn(pub(crate) u64);

/// A page's contents; the byte at [`offset::KIND`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum PageKind {
    /// A leaf of a B+-tree.
    Leaf = 1,
    /// An inner node of a B+-tree.
    Inner = 2,
    /// A chunk of a large value; longer than a page where its length says so.
    Chunk = 3,
    /// The summary that closes a segment.
    Summary = 4,
    /// A page of a checkpoint's arrays: mapping words, segment records, directories.
    Checkpoint = 5,
}

impl PageKind {
    pub(crate) fn from_byte(byte: u8) -> Option<PageKind> {
        Some(match byte {
            1 => PageKind::Leaf,
            2 => PageKind::Inner,
            3 => PageKind::Chunk,
            4 => PageKind::Summary,
            5 => PageKind::Checkpoint,
            _ => return None,
        })
    }
}

/// Byte offsets of the header's fields. All integers are little-endian.
pub(crate) mod offset {
    /// `u32`: CRC-32C of every byte after this field, up to the stored length.
    pub(crate) const CHECKSUM: usize = 0;
    /// `u8`: [`super::PageKind`].
    pub(crate) const KIND: usize = 4;
    /// `u8`: height above the leaves; 0 in a leaf.
    pub(crate) const LEVEL: usize = 5;
    /// `u64`: the page's own id; a misdirected write shows here.
    pub(crate) const PAGE_ID: usize = 8;
    /// `u64`: LSN of the newest change contained.
    pub(crate) const LSN: usize = 16;
    /// `u64`: sequence number of the segment that it was written to; a lost
    /// write into a reused segment shows here.
    pub(crate) const SEGMENT_SEQ: usize = 24;
    /// `u32`: the tree that owns the page.
    pub(crate) const TREE_ID: usize = 32;
    /// 28 bytes that belong to the page's kind.
    pub(crate) const KIND_SPECIFIC: usize = 36;
}

const _: () = assert!(offset::KIND_SPECIFIC + 28 == HEADER_SIZE);

/// Reads a little-endian `u16` at `at`.
#[inline]
pub(crate) fn get_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Reads a little-endian `u32` at `at`.
#[inline]
pub(crate) fn get_u32(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

/// Reads a little-endian `u64` at `at`.
#[inline]
pub(crate) fn get_u64(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// Writes a little-endian `u16` at `at`.
#[inline]
pub(crate) fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

/// Writes a little-endian `u32` at `at`.
#[inline]
pub(crate) fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Writes a little-endian `u64` at `at`.
#[inline]
pub(crate) fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// Stamps where a page image is about to be written, then its checksum.
///
/// `image` is the whole page or chunk, header included.
pub(crate) fn seal(image: &mut [u8], id: PageId, lsn: Lsn, segment_seq: u64) {
    put_u64(image, offset::PAGE_ID, id.0);
    put_u64(image, offset::LSN, lsn.0);
    put_u64(image, offset::SEGMENT_SEQ, segment_seq);
    let sum = crc32c::crc32c(&image[4..]);
    put_u32(image, offset::CHECKSUM, sum);
}

/// Why a page image read from disk is not the page that was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PageCorruption {
    /// The bytes do not match their checksum: a media error or a torn write.
    #[error("its checksum is {stored:#010x} but its bytes give {computed:#010x}")]
    Checksum {
        /// The checksum in the header.
        stored: u32,
        /// The checksum of the bytes.
        computed: u32,
    },
    /// Another page's bytes are there: a misdirected write.
    #[error("it holds {}", name_of(*found))]
    WrongPage {
        /// The page id in the header.
        found: u64,
    },
    /// Bytes of the segment's earlier life are there: a lost write.
    #[error("it was written in an earlier use of its segment ({found}, now {expected})")]
    Stale {
        /// The segment sequence number in the header.
        found: u64,
        /// The segment's present sequence number.
        expected: u64,
    },
    /// It is said to be at a place where no page can be.
    #[error("it is said to be at byte {offset} of segment {segment}, where no page can be")]
    Misplaced {
        /// The segment named.
        segment: u32,
        /// The byte offset in it.
        offset: u32,
    },
    /// The kind byte is unknown or not the expected one.
    #[error("its kind byte is {found}")]
    WrongKind {
        /// The kind byte in the header.
        found: u8,
    },
}

/// Checks that `image` is the page `id` as it was written into the segment
/// whose present sequence number is `segment_seq`.
pub(crate) fn verify(image: &[u8], id: PageId, segment_seq: u64) -> Result<(), PageCorruption> {
    if canary::is_on(Canary::SkipPageChecks) {
        return Ok(());
    }
    let stored = get_u32(image, offset::CHECKSUM);
    let computed = crc32c::crc32c(&image[4..]);
    if stored != computed {
        return Err(PageCorruption::Checksum { stored, computed });
    }
    let found = get_u64(image, offset::PAGE_ID);
    if found != id.0 {
        return Err(PageCorruption::WrongPage { found });
    }
    let found = get_u64(image, offset::SEGMENT_SEQ);
    if found != segment_seq {
        return Err(PageCorruption::Stale {
            found,
            expected: segment_seq,
        });
    }
    Ok(())
}

/// Whether `image` is the chunk `id` of the value with `stamp`, as it was written into the segment
/// whose sequence number was `seq` then.
pub(crate) fn is_chunk(image: &[u8], id: PageId, stamp: Lsn, seq: u64) -> bool {
    image.len() >= HEADER_SIZE
        && verify(image, id, seq).is_ok()
        && image[offset::KIND] == PageKind::Chunk as u8
        && get_u64(image, offset::LSN) == stamp.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_checkpoints_are_told_by_what_they_are() {
        assert_eq!(name_of(17), "page 17");
        let told = |array, level, index| name_of(checkpoint_page(array, level, index).0);
        assert_eq!(told(2, 0, 5), "page 5 of the mapping table");
        assert_eq!(told(1, 0, 0), "page 0 of the segment table");
        assert_eq!(
            told(3, 2, 1),
            "page 1 of the mapping table's directory, level 2,"
        );
        // A kind that no version writes is shown as a number.
        for odd in [u64::MAX, 1 << 63, checkpoint_page(7, 0, 1).0] {
            assert_eq!(name_of(odd), format!("page {odd}"));
        }
    }
}

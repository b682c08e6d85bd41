//! The summary that closes a segment: the pages written to it, and their places.
//!
//! The cleaner reads it to find candidates; whether a candidate is live, the
//! mapping table says. Nothing else depends on it.

use crate::page::{
    self, HEADER_SIZE, Lsn, PAGE_SIZE, PageCorruption, PageId, PageKind, get_u32, get_u64, offset,
    put_u32, put_u64,
};
use crate::shared::{Address, GRANULE};

/// One page or chunk that was written into a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) page: PageId,
    /// Byte offset in the segment.
    pub(crate) offset: u32,
    /// Length in bytes.
    pub(crate) length: u32,
}

const ENTRY_SIZE: usize = 16;

/// Bytes that a summary of `entries` entries takes: whole pages.
pub(crate) fn size(entries: usize) -> u32 {
    (HEADER_SIZE + entries * ENTRY_SIZE).next_multiple_of(PAGE_SIZE) as u32
}

/// The page id that the summary of `segment` carries: no ordinary page has it.
fn summary_id(segment: u32) -> PageId {
    PageId(1 << 63 | u64::from(segment))
}

/// Writes the summary of `segment` into `into`, which has [`size`] bytes.
pub(crate) fn encode(entries: &[Entry], segment: u32, segment_seq: u64, into: &mut [u8]) {
    into.fill(0);
    into[offset::KIND] = PageKind::Summary as u8;
    put_u32(into, offset::KIND_SPECIFIC, entries.len() as u32);
    for (entry, bytes) in entries
        .iter()
        .zip(into[HEADER_SIZE..].chunks_exact_mut(ENTRY_SIZE))
    {
        put_u64(bytes, 0, entry.page.0);
        put_u32(bytes, 8, entry.offset / GRANULE);
        put_u32(bytes, 12, entry.length / GRANULE);
    }
    page::seal(into, summary_id(segment), Lsn(0), segment_seq);
}

/// Reads the summary of `segment` back.
pub(crate) fn decode(
    bytes: &[u8],
    segment: u32,
    segment_seq: u64,
) -> Result<Vec<Entry>, PageCorruption> {
    page::verify(bytes, summary_id(segment), segment_seq)?;
    if bytes[offset::KIND] != PageKind::Summary as u8 {
        return Err(PageCorruption::WrongKind {
            found: bytes[offset::KIND],
        });
    }
    let count = get_u32(bytes, offset::KIND_SPECIFIC) as usize;
    Ok(bytes[HEADER_SIZE..]
        .chunks_exact(ENTRY_SIZE)
        .take(count)
        .map(|bytes| Entry {
            page: PageId(get_u64(bytes, 0)),
            offset: get_u32(bytes, 8).saturating_mul(GRANULE),
            length: get_u32(bytes, 12).saturating_mul(GRANULE),
        })
        .collect())
}

/// The address of an entry, if it can be one.
pub(crate) fn address(entry: &Entry, segment: u32, segment_bytes: u32) -> Option<Address> {
    let end = entry.offset.checked_add(entry.length)?;
    (end <= segment_bytes && entry.length > 0 && entry.length <= crate::shared::MAX_LENGTH)
        .then(|| Address::new(segment, entry.offset, entry.length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_reads_back_and_any_flipped_byte_is_noticed() {
        let entries: Vec<Entry> = (0..700)
            .map(|i| Entry {
                page: PageId(i * 3 + 5),
                offset: i as u32 * 4096,
                length: 4096,
            })
            .collect();
        let mut bytes = vec![0; size(entries.len()) as usize];
        encode(&entries, 9, 77, &mut bytes);
        assert_eq!(decode(&bytes, 9, 77).as_deref(), Ok(&entries[..]));
        assert!(decode(&bytes, 8, 77).is_err());
        assert!(decode(&bytes, 9, 78).is_err());
        for at in (0..bytes.len()).step_by(97) {
            bytes[at] ^= 0x10;
            assert!(decode(&bytes, 9, 77).is_err(), "byte {at}");
            bytes[at] ^= 0x10;
        }
    }
}

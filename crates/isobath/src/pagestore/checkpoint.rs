//! Arrays of words as trees of pages: how a checkpoint stores the mapping table
//! and the segment table.
//!
//! Leaf pages hold 504 words each; a page of a higher level holds the addresses
//! of 504 pages of the level below. All carry the superblock's sequence number
//! in place of a segment's, so that a checkpoint can only be read by the
//! superblock that it belongs to.

use isobath_io::{IoError, Volume};

use super::{Address, ArrayRoot};
use crate::page::{
    self, HEADER_SIZE, Lsn, PAGE_SIZE, PageFault, PageId, PageKind, get_u64, offset, put_u64,
};

/// Words in one page.
pub(crate) const WORDS_PER_PAGE: u64 = ((PAGE_SIZE - HEADER_SIZE) / 8) as u64;
/// Levels that suffice for 2⁶⁴ words.
const MAX_LEVELS: u64 = 8;
/// Bytes that are read or written in one call.
const CHUNK: usize = 1 << 20;

/// Which array a page belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Array {
    Segments = 1,
    Mapping = 2,
}

/// Why a checkpoint could not be read.
#[derive(Debug)]
pub(crate) enum LoadError {
    Io(IoError),
    Damaged {
        page: u64,
        offset: u64,
        fault: PageFault,
    },
}

/// Page `index` of `level` of an array; no ordinary page has such an id.
fn page_id(array: Array, level: u64, index: u64) -> PageId {
    PageId(1 << 62 | (array as u64) << 58 | level << 54 | index)
}

/// Writes an array.
pub(crate) struct Writer<'v> {
    pub(crate) volume: &'v Volume,
    pub(crate) segment_bytes: u64,
    /// Of the superblock that will name the array.
    pub(crate) sequence: u64,
}

impl Writer<'_> {
    /// Writes `words` words, given by index, to pages whose addresses `place`
    /// gives, one at a time.
    pub(crate) fn write<E: From<IoError>>(
        &self,
        array: Array,
        words: u64,
        word: impl Fn(u64) -> u64,
        mut place: impl FnMut(PageId) -> Result<Address, E>,
    ) -> Result<ArrayRoot, E> {
        let mut root = ArrayRoot {
            length: words,
            root: Address::NONE,
        };
        if words == 0 {
            return Ok(root);
        }
        let mut below = self.level(array, 0, words, &word, &mut place)?;
        let mut level = 1;
        while below.len() > 1 {
            let addresses = below;
            let count = addresses.len() as u64;
            let address = |index: u64| addresses[index as usize].to_raw();
            below = self.level(array, level, count, &address, &mut place)?;
            level += 1;
        }
        root.root = below[0];
        Ok(root)
    }

    fn level<E: From<IoError>>(
        &self,
        array: Array,
        level: u64,
        words: u64,
        word: &impl Fn(u64) -> u64,
        place: &mut impl FnMut(PageId) -> Result<Address, E>,
    ) -> Result<Vec<Address>, E> {
        let pages = words.div_ceil(WORDS_PER_PAGE);
        let mut addresses = Vec::with_capacity(pages as usize);
        let mut run: Vec<u8> = Vec::new();
        let mut run_at = 0;
        for index in 0..pages {
            let id = page_id(array, level, index);
            let address = place(id)?;
            let at =
                u64::from(address.segment()) * self.segment_bytes + u64::from(address.offset());
            if run_at + run.len() as u64 != at || run.len() >= CHUNK {
                self.flush_run(run_at, &mut run)?;
                run_at = at;
            }
            let start = run.len();
            run.resize(start + PAGE_SIZE, 0);
            let image = &mut run[start..];
            image[offset::KIND] = PageKind::Checkpoint as u8;
            image[offset::LEVEL] = level as u8;
            let first = index * WORDS_PER_PAGE;
            for within in 0..WORDS_PER_PAGE.min(words - first) {
                put_u64(
                    image,
                    HEADER_SIZE + within as usize * 8,
                    word(first + within),
                );
            }
            page::seal(image, id, Lsn(0), self.sequence);
            addresses.push(address);
        }
        self.flush_run(run_at, &mut run)?;
        Ok(addresses)
    }

    fn flush_run(&self, at: u64, run: &mut Vec<u8>) -> Result<(), IoError> {
        if !run.is_empty() {
            self.volume.write_at(at, run)?;
            run.clear();
        }
        Ok(())
    }
}

/// Reads an array.
pub(crate) struct Reader<'v> {
    pub(crate) volume: &'v Volume,
    pub(crate) segment_bytes: u64,
    pub(crate) segments: u32,
    /// Of the superblock that names the array.
    pub(crate) sequence: u64,
}

impl Reader<'_> {
    /// Calls `each` with every index and word of the array, in order.
    pub(crate) fn read(
        &self,
        array: Array,
        root: ArrayRoot,
        mut each: impl FnMut(u64, u64),
    ) -> Result<(), LoadError> {
        if root.length == 0 {
            return Ok(());
        }
        let mut counts = vec![root.length.div_ceil(WORDS_PER_PAGE)];
        while counts.last().is_some_and(|&count| count > 1) && (counts.len() as u64) < MAX_LEVELS {
            counts.extend(counts.last().map(|count| count.div_ceil(WORDS_PER_PAGE)));
        }
        let mut addresses = vec![root.root];
        for level in (1..counts.len()).rev() {
            let mut below = Vec::new();
            let words = counts[level - 1];
            self.level(array, level as u64, words, &addresses, &mut |_, word| {
                // A word that is no address cannot verify, and is reported there.
                below.push(Address::from_raw(word & ((1 << 62) - 1)));
            })?;
            addresses = below;
        }
        self.level(array, 0, root.length, &addresses, &mut each)
    }

    fn level(
        &self,
        array: Array,
        level: u64,
        words: u64,
        addresses: &[Address],
        each: &mut dyn FnMut(u64, u64),
    ) -> Result<(), LoadError> {
        let mut buffer = Vec::new();
        let mut first = 0;
        while first < addresses.len() {
            let start = self.offset(array, level, first as u64, addresses[first])?;
            let mut end = first + 1;
            while end < addresses.len()
                && (end - first) * PAGE_SIZE < CHUNK
                && addresses[end].segment() == addresses[first].segment()
                && u64::from(addresses[end].offset())
                    == u64::from(addresses[first].offset()) + ((end - first) * PAGE_SIZE) as u64
            {
                end += 1;
            }
            buffer.resize((end - first) * PAGE_SIZE, 0);
            self.volume
                .read_at(start, &mut buffer)
                .map_err(LoadError::Io)?;
            for (step, image) in buffer.chunks_exact(PAGE_SIZE).enumerate() {
                let index = (first + step) as u64;
                let id = page_id(array, level, index);
                page::verify(image, id, self.sequence).map_err(|fault| LoadError::Damaged {
                    page: id.0,
                    offset: start + (step * PAGE_SIZE) as u64,
                    fault,
                })?;
                let from = index * WORDS_PER_PAGE;
                for within in 0..WORDS_PER_PAGE.min(words - from) {
                    each(
                        from + within,
                        get_u64(image, HEADER_SIZE + within as usize * 8),
                    );
                }
            }
            first = end;
        }
        Ok(())
    }

    fn offset(&self, array: Array, level: u64, index: u64, at: Address) -> Result<u64, LoadError> {
        let offset = u64::from(at.segment()) * self.segment_bytes + u64::from(at.offset());
        let inside = at.segment() > 0
            && at.segment() < self.segments
            && u64::from(at.offset()) + PAGE_SIZE as u64 <= self.segment_bytes;
        if inside {
            Ok(offset)
        } else {
            Err(LoadError::Damaged {
                page: page_id(array, level, index).0,
                offset,
                fault: PageFault::Misplaced {
                    segment: at.segment(),
                    offset: at.offset(),
                },
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn arrays_of_any_length_read_back(words in prop_oneof![0u64..3, 500u64..1100, 254_000u64..255_000], gaps in 1u32..4) {
            let volume = Volume::in_memory(64 << 20, None);
            let segment_bytes = 1u64 << 20;
            let writer = Writer { volume: &volume, segment_bytes, sequence: 7 };
            let mut next = 256u32;
            let root = writer.write::<IoError>(Array::Mapping, words, |i| i * 3, |_| {
                next += if next.is_multiple_of(5) { gaps } else { 1 };
                Ok(Address::new(next / 256, next % 256 * 4096, 4096))
            }).expect("memory");
            let reader = Reader { volume: &volume, segment_bytes, segments: 64, sequence: 7 };
            let mut seen = 0;
            reader.read(Array::Mapping, root, |index, word| {
                assert_eq!((index, word), (seen, seen * 3));
                seen += 1;
            }).expect("reads back");
            prop_assert_eq!(seen, words);
            if words > 0 {
                let stale = Reader { sequence: 8, ..reader };
                let outcome = stale.read(Array::Mapping, root, |_, _| {});
                prop_assert!(outcome.is_err());
            }
        }
    }
}

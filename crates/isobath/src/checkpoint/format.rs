//! Arrays of words as trees of pages: how a checkpoint stores the mapping table
//! and the segment table.
//!
//! Leaf pages hold 504 words each; a page of a higher level holds the addresses
//! of 504 pages of the level below. All carry the superblock's sequence number
//! in place of a segment's, so that a checkpoint can only be read by the
//! superblock that it belongs to. Pages of the mapping table outlive checkpoints
//! that did not change them: the directory knows the number that each carries.

use isobath_io::{IoError, Volume};

pub(crate) use crate::buffer::words_per_page;
use crate::checkpoint::ArrayRoot;
use crate::page::{
    self, HEADER_SIZE, Lsn, PAGE_SIZE, PageCorruption, PageId, PageKind, get_u64, offset, put_u64,
};
use crate::shared::{Address, SegmentSize};

/// Levels that suffice for 2⁶⁴ words.
const MAX_LEVELS: u64 = 8;
/// Bytes that are read or written in one call.
const CHUNK: usize = 1 << 20;

/// Which array a page belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Array {
    /// Four words per segment.
    Segments = 1,
    /// One word per page id; its pages are written one by one.
    Mapping = 2,
    /// Two words per page of the mapping table: its address and its stamp.
    Directory = 3,
    /// Allocations that no record has confirmed yet: token, number of pages, pages; and so on.
    Provisional = 4,
}

/// Why a checkpoint could not be read.
#[derive(Debug)]
pub(crate) enum LoadError {
    Io(IoError),
    Corrupt {
        page: u64,
        offset: u64,
        corruption: PageCorruption,
    },
}

/// Page `index` of `level` of an array; no ordinary page has such an id.
fn page_id(array: Array, level: u64, index: u64) -> PageId {
    page::checkpoint_page(array as u64, level, index)
}

/// The sink of a checkpoint's pages.
pub(crate) trait Sink {
    /// Why a page could not be written.
    type Error;

    /// Writes the page `id`, which `fill` fills between its header and its
    /// end, to a new place.
    fn put(&mut self, id: PageId, fill: impl FnOnce(&mut [u8])) -> Result<Address, Self::Error>;
}

/// The id of page `index` of the mapping table.
pub(crate) fn mapping_page(index: u64) -> PageId {
    page_id(Array::Mapping, 0, index)
}

/// Which page of the mapping table has this id, if one has.
pub(crate) fn mapping_index(id: u64) -> Option<u64> {
    let index = id & ((1 << 54) - 1);
    (id == mapping_page(index).0).then_some(index)
}

/// Makes `image` the sealed checkpoint page `id`, whose words `fill` puts in.
pub(crate) fn seal(image: &mut [u8], id: PageId, stamp: u64, fill: impl FnOnce(&mut [u8])) {
    image.fill(0);
    image[offset::KIND] = PageKind::Checkpoint as u8;
    fill(&mut image[HEADER_SIZE..]);
    page::seal(image, id, Lsn(0), stamp);
}

/// Writes `words`, and over them as many levels of pages as it takes for one root.
pub(crate) fn write<S: Sink>(
    sink: &mut S,
    array: Array,
    words: &[u64],
) -> Result<ArrayRoot, S::Error> {
    let mut root = ArrayRoot {
        length: words.len() as u64,
        root: Address::NONE,
    };
    let mut level = 0;
    let mut below = words.to_vec();
    while level == 0 && !below.is_empty() || below.len() > 1 {
        let mut addresses = Vec::with_capacity(below.len() / words_per_page() as usize + 1);
        for (index, words) in below.chunks(words_per_page() as usize).enumerate() {
            let address = sink.put(page_id(array, level, index as u64), |into| {
                for (at, word) in words.iter().enumerate() {
                    put_u64(into, at * 8, *word);
                }
            })?;
            addresses.push(address.to_raw());
        }
        below = addresses;
        level += 1;
    }
    if let Some(top) = below.first() {
        root.root = Address::from_raw(*top);
    }
    Ok(root)
}

/// Reads an array.
pub(crate) struct Reader<'v> {
    pub(crate) volume: &'v Volume,
    pub(crate) sizes: SegmentSize,
    pub(crate) segments: u32,
    /// Of the superblock that names the array.
    pub(crate) sequence: u64,
    /// The addresses of the pages that were read.
    pub(crate) visited: std::cell::RefCell<Vec<Address>>,
}

impl Reader<'_> {
    /// Reads the pages of the mapping table that the directory `words` names
    /// and calls `each` with every id and word, in order. Ids end at `length`.
    pub(crate) fn read_mapping(
        &self,
        words: &[u64],
        length: u64,
        mut each: impl FnMut(u64, u64),
    ) -> Result<(), LoadError> {
        let addresses: Vec<Address> = words.chunks_exact(2).map(|w| raw_address(w[0])).collect();
        let stamps: Vec<u64> = words.chunks_exact(2).map(|w| w[1]).collect();
        self.pages(
            Array::Mapping,
            0,
            length,
            &addresses,
            Some(&stamps),
            &mut each,
        )
    }

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
        let mut counts = vec![root.length.div_ceil(words_per_page())];
        while counts.last().is_some_and(|&count| count > 1) && (counts.len() as u64) < MAX_LEVELS {
            counts.extend(counts.last().map(|count| count.div_ceil(words_per_page())));
        }
        let mut addresses = vec![root.root];
        for level in (1..counts.len()).rev() {
            let mut below = Vec::new();
            let words = counts[level - 1];
            self.level(array, level as u64, words, &addresses, &mut |_, word| {
                // A word that is no address cannot verify, and is reported there.
                below.push(raw_address(word));
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
        self.visited.borrow_mut().extend(addresses);
        self.pages(array, level, words, addresses, None, each)
    }

    /// Reads pages, neighbours together. A page without an address holds zeros.
    fn pages(
        &self,
        array: Array,
        level: u64,
        words: u64,
        addresses: &[Address],
        stamps: Option<&[u64]>,
        each: &mut dyn FnMut(u64, u64),
    ) -> Result<(), LoadError> {
        let mut buffer = Vec::new();
        let mut first = 0;
        while first < addresses.len() {
            if stamps.is_some() && addresses[first].is_none() {
                first += 1;
                continue;
            }
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
                let stamp = stamps.map_or(self.sequence, |stamps| stamps[first + step]);
                page::verify(image, id, stamp).map_err(|corruption| LoadError::Corrupt {
                    page: id.0,
                    offset: start + (step * PAGE_SIZE) as u64,
                    corruption,
                })?;
                let from = index * words_per_page();
                for within in 0..words_per_page().min(words.saturating_sub(from)) {
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
        let offset = self.sizes.start_of(at.segment()) + u64::from(at.offset());
        let inside = at.segment() > 0
            && at.segment() < self.segments
            && at.offset() + PAGE_SIZE as u32 <= self.sizes.bytes;
        if inside {
            Ok(offset)
        } else {
            Err(LoadError::Corrupt {
                page: page_id(array, level, index).0,
                offset,
                corruption: PageCorruption::Misplaced {
                    segment: at.segment(),
                    offset: at.offset(),
                },
            })
        }
    }
}

/// A word that is no address cannot verify, and is reported there.
fn raw_address(word: u64) -> Address {
    Address::from_raw(word & ((1 << 62) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    struct ToVolume<'v> {
        volume: &'v Volume,
        next: u32,
        gaps: u32,
    }

    impl Sink for ToVolume<'_> {
        type Error = IoError;

        fn put(&mut self, id: PageId, fill: impl FnOnce(&mut [u8])) -> Result<Address, IoError> {
            self.next += if self.next.is_multiple_of(5) {
                self.gaps
            } else {
                1
            };
            let mut image = vec![0; PAGE_SIZE];
            seal(&mut image, id, 7, fill);
            self.volume.write_at(u64::from(self.next) * 4096, &image)?;
            Ok(Address::new(self.next / 256, self.next % 256 * 4096, 4096))
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn arrays_of_any_length_read_back(words in prop_oneof![0u64..3, 500u64..1100, 254_000u64..255_000], gaps in 1u32..4) {
            let volume = Volume::in_memory(64 << 20, None);
            let sizes = SegmentSize::of(1 << 20);
            let values: Vec<u64> = (0..words).map(|i| i * 3).collect();
            let mut sink = ToVolume { volume: &volume, next: 256, gaps };
            let root = write(&mut sink, Array::Segments, &values).expect("memory");
            let reader = Reader { volume: &volume, sizes, segments: 64, sequence: 7, visited: Vec::new().into() };
            let mut seen = 0;
            reader.read(Array::Segments, root, |index, word| {
                assert_eq!((index, word), (seen, seen * 3));
                seen += 1;
            }).expect("reads back");
            prop_assert_eq!(seen, words);
            if words > 0 {
                let stale = Reader { sequence: 8, ..reader };
                let outcome = stale.read(Array::Segments, root, |_, _| {});
                prop_assert!(outcome.is_err());
            }
        }
    }
}

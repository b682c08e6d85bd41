//! Searching a whole volume for pages, whatever the store says of them itself.

use isobath_io::Volume;

use crate::Error;
use crate::backup::Watch;
use crate::page::{HEADER_SIZE, PAGE_SIZE, PageId, PageKind, get_u32, get_u64, offset};
use crate::shared::MAX_LENGTH;
use crate::sync::HashMap;

/// Everything lies at multiples of this: the smallest logical block.
const STEP: usize = 512;
/// Bytes that are read at a time.
const WINDOW: usize = 8 << 20;
/// Copies of a page that are remembered, the newest.
const COPIES: usize = 4;
/// No page has this id or a higher one.
const IDS: u64 = 1 << 40;
/// No node is higher.
const LEVELS: u8 = 40;

/// A sound page or chunk somewhere on the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Found {
    pub(super) version: u64,
    pub(super) offset: u64,
    pub(super) length: u32,
    pub(super) tree: u32,
    pub(super) level: u8,
    pub(super) kind: PageKind,
}

// The memory of a search depends on it; see `salvage`.
const _: () = assert!(size_of::<Found>() == 32);

/// The result of a search, the newest copies of each page first.
#[derive(Default)]
pub(super) struct Index(HashMap<PageId, Vec<Found>>);

impl Index {
    /// Copies of `page`, the newest first.
    pub(super) fn copies(&self, page: PageId) -> &[Found] {
        self.0.get(&page).map_or(&[], Vec::as_slice)
    }

    /// Every page that was found.
    pub(super) fn pages(&self) -> impl Iterator<Item = (PageId, &[Found])> {
        self.0.iter().map(|(page, found)| (*page, found.as_slice()))
    }

    /// Reads all of `volume`. What cannot be read is passed over: blocks of it, that is; how many
    /// bytes.
    pub(super) fn search(volume: &Volume, watch: Watch<'_>) -> Result<(Index, u64), Error> {
        let mut index = Index::default();
        let mut buffer = vec![0; WINDOW + MAX_LENGTH as usize];
        let (mut at, mut unreadable) = (0, 0);
        let total = volume.len();
        while at < total {
            if watch("searching", at, total).is_break() {
                return Err(Error::Interrupted);
            }
            let length = (total - at).min(buffer.len() as u64) as usize;
            let bytes = &mut buffer[..length];
            unreadable += read_what_can_be(volume, at, bytes);
            // A page that begins in the rest is found whole in the next window.
            let end = if length as u64 == total - at {
                length
            } else {
                WINDOW
            };
            let mut within = 0;
            while within < end {
                match look_at(&bytes[within..]) {
                    Some((page, mut found)) => {
                        found.offset = at + within as u64;
                        within += found.length as usize;
                        index.add(page, found);
                    }
                    None => within += STEP,
                }
            }
            at += within.max(end) as u64;
        }
        Ok((index, unreadable))
    }

    fn add(&mut self, page: PageId, found: Found) {
        let copies = self.0.entry(page).or_default();
        // Moved by the cleaner: the same once more.
        if copies.iter().any(|other| other.version == found.version) {
            return;
        }
        let at = copies.partition_point(|other| other.version > found.version);
        if copies.len() == COPIES {
            if at == COPIES {
                return;
            }
            copies.pop();
        }
        // Most pages have one copy, and there may be very many pages.
        copies.reserve_exact(1);
        copies.insert(at, found);
    }
}

/// Reads `into`; if that fails, block by block, with zeros in place of unreadable blocks.
/// How much that is.
fn read_what_can_be(volume: &Volume, at: u64, into: &mut [u8]) -> u64 {
    if volume.read_at(at, into).is_ok() {
        return 0;
    }
    let mut unreadable = 0;
    for (step, block) in into.chunks_mut(PAGE_SIZE).enumerate() {
        if volume
            .read_at(at + (step * PAGE_SIZE) as u64, block)
            .is_err()
        {
            block.fill(0);
            unreadable += block.len() as u64;
        }
    }
    unreadable
}

/// The page or chunk that begins with `bytes`, if a sound one does.
fn look_at(bytes: &[u8]) -> Option<(PageId, Found)> {
    if bytes.len() < PAGE_SIZE.min(STEP) || get_u64(bytes, 0) == 0 {
        return None;
    }
    let kind = PageKind::from_byte(bytes[offset::KIND])?;
    let (level, page) = (bytes[offset::LEVEL], get_u64(bytes, offset::PAGE_ID));
    if bytes[6..8] != [0, 0] || page == 0 || page >= IDS {
        return None;
    }
    let length = match kind {
        PageKind::Leaf if level == 0 => sound(bytes, PAGE_SIZE),
        PageKind::Inner if (1..LEVELS).contains(&level) => sound(bytes, PAGE_SIZE),
        PageKind::Chunk if level == 0 => {
            let whole = HEADER_SIZE + get_u32(bytes, offset::KIND_SPECIFIC) as usize;
            // As long as the block of the drive had it.
            [512, 4096]
                .into_iter()
                .map(|block| whole.next_multiple_of(block))
                .filter(|length| *length <= MAX_LENGTH as usize)
                .find_map(|length| sound(bytes, length))
        }
        _ => None,
    }?;
    Some((
        PageId(page),
        Found {
            version: get_u64(bytes, offset::LSN),
            offset: 0,
            length: length as u32,
            tree: get_u32(bytes, offset::TREE_ID),
            level,
            kind,
        },
    ))
}

fn sound(bytes: &[u8], length: usize) -> Option<usize> {
    let image = bytes.get(..length)?;
    (crc32c::crc32c(&image[4..]) == get_u32(image, offset::CHECKSUM)).then_some(length)
}

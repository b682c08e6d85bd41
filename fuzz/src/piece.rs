//! Pieces of inputs with checksums of their own, and how to seal them again; docs/format.md has the
//! layouts.

use std::ops::Range;

/// A piece's kind, and its seal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Seal {
    /// One without a checksum.
    None,
    /// A page or chunk, of this kind.
    Page(u8),
    Superblock,
    /// A record of a log, whose checksum begins with this one.
    Record(u32),
    /// A block of a backup, whose checksum begins with this one.
    Backup(u32),
    /// A block of an export.
    Export,
}

/// Bytes of an input under one checksum.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) range: Range<usize>,
    pub(crate) seal: Seal,
}

/// Leaf, inner node, chunk, summary, checkpoint.
pub(crate) const PAGE_KINDS: Range<u8> = 1..6;

const PAGE: usize = 4096;
/// Lengths and places of chunks are multiples of this.
const GRANULE: usize = 64;
/// The longest chunk that is looked for.
const MAX_CHUNK: usize = 256 << 10;
const RECORD_HEADER: usize = 32;
const BLOCK_HEADER: usize = 24;

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

impl Seal {
    /// The offset of the checksum, and its right value.
    fn checksum(self, piece: &[u8]) -> Option<(usize, u32)> {
        let over = |seed, bytes: &[u8]| crc32c::crc32c_append(seed, bytes);
        let needed = match self {
            Seal::None => return None,
            Seal::Page(_) | Seal::Superblock => GRANULE,
            Seal::Record(_) => RECORD_HEADER,
            Seal::Backup(_) | Seal::Export => BLOCK_HEADER,
        };
        if piece.len() < needed {
            return None;
        }
        Some(match self {
            Seal::None => return None,
            Seal::Page(_) => (0, over(0, &piece[4..])),
            Seal::Superblock => (12, over(over(0, &piece[..12]), &piece[16..])),
            Seal::Record(seed) => {
                let body = over(seed, &piece[RECORD_HEADER..]);
                (4, over(over(body, &piece[..4]), &piece[8..RECORD_HEADER]))
            }
            Seal::Backup(seed) => (20, over(over(seed, &piece[..20]), &piece[BLOCK_HEADER..])),
            Seal::Export => (20, over(over(0, &piece[..20]), &piece[BLOCK_HEADER..])),
        })
    }

    pub(crate) fn holds(self, piece: &[u8]) -> bool {
        self.checksum(piece)
            .is_some_and(|(at, sum)| u32_at(piece, at) == sum)
    }
}

impl Piece {
    /// Makes the checksum match the bytes.
    pub(crate) fn seal(&self, input: &mut [u8]) {
        let Some(piece) = input.get_mut(self.range.clone()) else {
            return;
        };
        if let Some((at, sum)) = self.seal.checksum(piece) {
            piece[at..at + 4].copy_from_slice(&sum.to_le_bytes());
        }
    }
}

/// Every sealed piece of a volume: superblocks, pages, chunks, records of the log.
pub(crate) fn of_volume(image: &[u8]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut seed = 0;
    for at in (0..image.len().saturating_sub(PAGE - 1)).step_by(PAGE) {
        let block = &image[at..at + PAGE];
        if block.starts_with(b"ISOBATH\0") && Seal::Superblock.holds(block) {
            seed = crc32c::crc32c(&block[24..40]);
            let range = at..at + PAGE;
            let seal = Seal::Superblock;
            pieces.push(Piece { range, seal });
        }
    }
    let mut at = 0;
    while at + GRANULE <= image.len() {
        match page_at(image, at).or_else(|| record_at(image, at, seed)) {
            Some(piece) => {
                // Records lie at multiples of 8, and one behind another.
                let mut next = piece.range.end;
                pieces.push(piece);
                while let Some(record) = record_at(image, next, seed) {
                    next = record.range.end;
                    pieces.push(record);
                }
                at = next.next_multiple_of(GRANULE);
            }
            None => at += GRANULE,
        }
    }
    pieces
}

fn page_at(image: &[u8], at: usize) -> Option<Piece> {
    let kind = image[at + 4];
    if !PAGE_KINDS.contains(&kind) {
        return None;
    }
    let stored = u32_at(image, at);
    let is_fixed = matches!(kind, 1 | 2 | 5);
    let mut sum = crc32c::crc32c(&image[at + 4..at + GRANULE]);
    let mut end = at + GRANULE;
    while end + GRANULE <= image.len() && end < at + MAX_CHUNK {
        sum = crc32c::crc32c_append(sum, &image[end..end + GRANULE]);
        end += GRANULE;
        let is_end = if is_fixed { end - at == PAGE } else { true };
        if is_end && sum == stored {
            let seal = Seal::Page(kind);
            return Some(Piece {
                range: at..end,
                seal,
            });
        }
        if is_fixed && end - at >= PAGE {
            return None;
        }
    }
    None
}

fn record_at(image: &[u8], at: usize, seed: u32) -> Option<Piece> {
    if at + RECORD_HEADER > image.len() {
        return None;
    }
    let length = u32_at(image, at) as usize;
    let plausible = length >= RECORD_HEADER && length.is_multiple_of(8);
    let piece = image.get(at..at.checked_add(length)?)?;
    let seal = Seal::Record(seed);
    (plausible && seal.holds(piece)).then_some(Piece {
        range: at..at + length,
        seal,
    })
}

/// The blocks of a backup.
pub(crate) fn of_backup(file: &[u8]) -> Vec<Piece> {
    // The first block, which has the backup's id, is sealed without it.
    let id = file.get(BLOCK_HEADER + 24..BLOCK_HEADER + 40);
    let seed = id.map_or(0, crc32c::crc32c);
    blocks(file, |first| Seal::Backup(if first { 0 } else { seed }))
}

/// The blocks of an export.
pub(crate) fn of_export(file: &[u8]) -> Vec<Piece> {
    blocks(file, |_| Seal::Export)
}

fn blocks(file: &[u8], seal: impl Fn(bool) -> Seal) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut at = 0;
    while at + BLOCK_HEADER <= file.len() {
        let range = at..at + BLOCK_HEADER + u32_at(file, at + 16) as usize;
        let seal = seal(at == 0);
        if !file
            .get(range.clone())
            .is_some_and(|block| seal.holds(block))
        {
            break;
        }
        at = range.end;
        pieces.push(Piece { range, seal });
    }
    pieces
}

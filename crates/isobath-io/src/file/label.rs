//! The label: the first bytes of every member of a volume, by which a member says which volume it
//! belongs to, as which part, and how long the volume is.
//!
//! A member (one file or block device) is laid out as follows, all integers little-endian:
//!
//! ```text
//! byte 0      label, copy A    (4096 bytes; written in generations 0, 2, 4, ...)
//! byte 4096   label, copy B    (4096 bytes; written in generations 1, 3, 5, ...)
//! byte 8192   unused           (a hole in a file)
//! byte D      data             (D = data offset: 64 KiB; 2 MiB if one is a block device)
//! ```
//!
//! A label's first 512 bytes, so that drives write it atomically; the other 3584 are zero and
//! ignored:
//!
//! ```text
//! offset size  field
//!      0    8  magic "ISOBATHV"
//!      8    4  format version, 1
//!     12    4  flags, 0 (an unknown flag makes the volume one of a newer format)
//!     16   16  volume id, random, the same on all members
//!     32    4  member index, 0 .. member count - 1
//!     36    4  member count, 1 .. 256
//!     40    8  stripe unit S in bytes, a multiple of 4096
//!     48    8  data offset D in bytes, a multiple of 4096
//!     56    8  volume length L in bytes, a multiple of 4096
//!     64    8  generation: counts the changes of L; the valid copy with the larger one counts
//!     72  436  zero
//!    508    4  CRC-32C of bytes 0 .. 507
//! ```
//!
//! Logical byte `x` of a volume with `n` members lies on member `(x / S) % n`, at byte
//! `D + (x / S / n) * S + x % S` of it. A member has at least `D` + its share of `L` bytes; more is
//! possible after a crash while the volume grew, and harmless. If members disagree about `L`
//! (same reason), the smallest one counts: the growth had not been acknowledged.

use crate::options::MAX_MEMBERS;

/// Bytes at the start of a member that hold the two labels.
pub(crate) const LABEL_AREA: usize = 8192;
/// Bytes of one label copy.
pub(crate) const LABEL_BLOCK: usize = 4096;
/// The newest format that this code reads, and the one it writes.
pub(crate) const VERSION: u32 = 1;
/// Where the data of new members begins, if all of them are files.
pub(crate) const DATA_OFFSET: u64 = 64 << 10;
/// Where it begins if one is a block device: aligned to its units of erasure.
pub(crate) const DEVICE_DATA_OFFSET: u64 = 2 << 20;

const MAGIC: &[u8; 8] = b"ISOBATHV";
const SUM_AT: usize = 508;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Label {
    pub(crate) uuid: [u8; 16],
    pub(crate) index: u32,
    pub(crate) count: u32,
    pub(crate) stripe_unit: u64,
    pub(crate) data_offset: u64,
    pub(crate) len: u64,
    pub(crate) generation: u64,
}

/// Why no label could be read from a member's first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LabelError {
    /// No magic in either copy.
    Foreign,
    /// A magic, but no copy is intact.
    Corrupt,
    /// A newer version or an unknown flag.
    Newer(u32),
}

impl Label {
    /// Byte offset in the member at which this generation is written.
    pub(crate) fn slot(&self) -> u64 {
        (self.generation % 2) * LABEL_BLOCK as u64
    }

    pub(crate) fn encode(&self, block: &mut [u8]) {
        block.fill(0);
        block[..8].copy_from_slice(MAGIC);
        block[8..12].copy_from_slice(&VERSION.to_le_bytes());
        block[16..32].copy_from_slice(&self.uuid);
        block[32..36].copy_from_slice(&self.index.to_le_bytes());
        block[36..40].copy_from_slice(&self.count.to_le_bytes());
        block[40..48].copy_from_slice(&self.stripe_unit.to_le_bytes());
        block[48..56].copy_from_slice(&self.data_offset.to_le_bytes());
        block[56..64].copy_from_slice(&self.len.to_le_bytes());
        block[64..72].copy_from_slice(&self.generation.to_le_bytes());
        let sum = crc32c::crc32c(&block[..SUM_AT]);
        block[SUM_AT..SUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
    }

    /// The label that counts in a member's first bytes (which may be fewer than [`LABEL_AREA`]).
    pub(crate) fn read(area: &[u8]) -> Result<Label, LabelError> {
        let first = Label::decode(area.get(..512).unwrap_or(&[]));
        let second = Label::decode(area.get(LABEL_BLOCK..LABEL_BLOCK + 512).unwrap_or(&[]));
        match (first, second) {
            (Ok(a), Ok(b)) if a.generation >= b.generation => Ok(a),
            (_, Ok(b)) => Ok(b),
            (Ok(a), Err(_)) => Ok(a),
            (Err(LabelError::Newer(v)), Err(_)) | (Err(_), Err(LabelError::Newer(v))) => {
                Err(LabelError::Newer(v))
            }
            (Err(LabelError::Foreign), Err(LabelError::Foreign)) => Err(LabelError::Foreign),
            (Err(_), Err(_)) => Err(LabelError::Corrupt),
        }
    }

    fn decode(block: &[u8]) -> Result<Label, LabelError> {
        let Some(block) = block.first_chunk::<512>() else {
            return Err(LabelError::Foreign);
        };
        if &block[..8] != MAGIC {
            return Err(LabelError::Foreign);
        }
        // The version comes before the checksum: a newer format may lay out everything else
        // differently.
        let version = u32_at(block, 8);
        if version > VERSION {
            return Err(LabelError::Newer(version));
        }
        if crc32c::crc32c(&block[..SUM_AT]) != u32_at(block, SUM_AT) {
            return Err(LabelError::Corrupt);
        }
        if u32_at(block, 12) != 0 {
            return Err(LabelError::Newer(VERSION + 1));
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&block[16..32]);
        let label = Label {
            uuid,
            index: u32_at(block, 32),
            count: u32_at(block, 36),
            stripe_unit: u64_at(block, 40),
            data_offset: u64_at(block, 48),
            len: u64_at(block, 56),
            generation: u64_at(block, 64),
        };
        if version == VERSION && label.is_sane() {
            Ok(label)
        } else {
            Err(LabelError::Corrupt)
        }
    }

    /// Bounds every field, so that later arithmetic on them cannot overflow.
    fn is_sane(&self) -> bool {
        let blocks = |v: u64, max: u64| v.is_multiple_of(4096) && v <= max;
        (1..=MAX_MEMBERS as u32).contains(&self.count)
            && self.index < self.count
            && blocks(self.stripe_unit, 1 << 30)
            && self.stripe_unit > 0
            && blocks(self.data_offset, 1 << 40)
            && self.data_offset >= LABEL_AREA as u64
            && blocks(self.len, 1 << 62)
    }
}

fn u32_at(block: &[u8; 512], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

fn u64_at(block: &[u8; 512], at: usize) -> u64 {
    u64::from(u32_at(block, at)) | u64::from(u32_at(block, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(generation: u64) -> Label {
        Label {
            uuid: *b"0123456789abcdef",
            index: 1,
            count: 3,
            stripe_unit: 65536,
            data_offset: DATA_OFFSET,
            len: 40960 * generation,
            generation,
        }
    }

    fn area(labels: &[Label]) -> Vec<u8> {
        let mut area = vec![0; LABEL_AREA];
        for label in labels {
            let at = label.slot() as usize;
            label.encode(&mut area[at..at + LABEL_BLOCK]);
        }
        area
    }

    #[test]
    fn the_newest_intact_copy_counts() {
        assert_eq!(Label::read(&area(&[sample(4)])), Ok(sample(4)));
        assert_eq!(Label::read(&area(&[sample(4), sample(5)])), Ok(sample(5)));
        assert_eq!(Label::read(&area(&[sample(6), sample(5)])), Ok(sample(6)));
        let mut torn = area(&[sample(4), sample(5)]);
        torn[LABEL_BLOCK + 60] ^= 1;
        assert_eq!(Label::read(&torn), Ok(sample(4)));
        torn[60] ^= 1;
        assert_eq!(Label::read(&torn), Err(LabelError::Corrupt));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let good = area(&[sample(4)]);
        for byte in 0..512 {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[byte] ^= 1 << bit;
                assert!(Label::read(&bad).is_err(), "byte {byte} bit {bit}");
            }
        }
    }

    #[test]
    fn foreign_short_and_newer() {
        assert_eq!(Label::read(&[]), Err(LabelError::Foreign));
        assert_eq!(Label::read(&[1; LABEL_AREA]), Err(LabelError::Foreign));
        let good = area(&[sample(4)]);
        assert_eq!(Label::read(&good[..511]), Err(LabelError::Foreign));
        assert_eq!(Label::read(&good[..512]), Ok(sample(4)));
        let mut newer = good.clone();
        newer[8] = 7;
        assert_eq!(Label::read(&newer), Err(LabelError::Newer(7)));
        let mut flagged = good;
        flagged[12] = 1;
        let sum = crc32c::crc32c(&flagged[..SUM_AT]);
        flagged[SUM_AT..SUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(Label::read(&flagged), Err(LabelError::Newer(2)));
    }

    #[test]
    fn impossible_fields_are_corruption() {
        let changes: [fn(&mut Label); 6] = [
            |l| l.index = 3,
            |l| l.count = 0,
            |l| l.stripe_unit = 0,
            |l| l.stripe_unit = 1000,
            |l| l.data_offset = 4096,
            |l| l.len = 1 << 63,
        ];
        for change in changes {
            let mut label = sample(4);
            change(&mut label);
            assert_eq!(Label::read(&area(&[label])), Err(LabelError::Corrupt));
        }
    }
}

//! The two superblocks at the start of segment 0, with the store's properties and the place of its
//! newest checkpoint. They are written in turn, so that a torn write leaves the other one.

use std::cmp::Ordering;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::log::{LogArea, MIN_AREA_BYTES};
use crate::page::{PAGE_SIZE, PageId, get_u32, get_u64, put_u32, put_u64};
use crate::shared::{Address, SegmentSize};

/// The on-disk format that this engine writes.
pub(crate) const FORMAT_VERSION: u32 = 8;
/// An older one that it reads as well: no tree has overlays.
const PLAIN_VERSION: u32 = 5;
const MAGIC: &[u8; 8] = b"ISOBATH\0";

/// Byte offsets of the two superblocks in the volume, both in segment 0.
pub(crate) const OFFSETS: [u64; 2] = [0, 32768];
const _: () = assert!(OFFSETS[1] + PAGE_SIZE as u64 <= crate::shared::MIN_SEGMENT_BYTES as u64);

/// A checkpointed array of words: a tree of checkpoint pages, its root first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ArrayRoot {
    /// Words in the array.
    pub(crate) length: u64,
    /// The root page; [`Address::NONE`] for an empty array.
    pub(crate) root: Address,
}

impl ArrayRoot {
    pub(crate) const EMPTY: ArrayRoot = ArrayRoot {
        length: 0,
        root: Address::NONE,
    };
}

/// Everything a superblock says; 4 KiB on disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Superblock {
    /// Which of the two is newer.
    pub(crate) sequence: u64,
    /// Identity of the store.
    pub(crate) store_id: [u8; 16],
    /// Bytes of the segments.
    pub(crate) sizes: SegmentSize,
    /// Segments of the volume when this was written.
    pub(crate) segments: u32,
    /// No writer has the store open: the checkpoint is all there is. If nothing
    /// is logged, a store that is not clean is lost.
    pub(crate) clean: bool,
    /// The next LSN.
    pub(crate) next_lsn: u64,
    /// The next segment sequence number.
    pub(crate) next_segment_seq: u64,
    /// The update clock.
    pub(crate) tick: u64,
    /// Page ids below this may be in use.
    pub(crate) page_high_water: u64,
    /// The number that the checkpoint's pages carry, so that no other
    /// superblock's are taken for them. Both superblocks of a closed store name
    /// the same checkpoint.
    pub(crate) checkpoint: u64,
    /// Four words per segment.
    pub(crate) segment_table: ArrayRoot,
    /// Two words per page of the mapping table: address and stamp.
    pub(crate) directory: ArrayRoot,
    /// Allocations that no record had confirmed when the checkpoint was written.
    pub(crate) provisional: ArrayRoot,
    /// The log's area on the volume; none if nothing is logged, or elsewhere.
    pub(crate) log: Option<LogArea>,
    /// Segments that the log may grow to; 0 if it does not.
    pub(crate) max_log_segments: u32,
    /// Writers that have opened the store, this one included; what its log records carry.
    pub(crate) open_epoch: u32,
    /// The LSN from which a recovery reads the log.
    pub(crate) log_start: u64,
    /// The least open epoch of records there; others were left behind by a crash.
    pub(crate) log_epoch: u32,
    /// The log reaches up to here at least.
    pub(crate) log_durable: u64,
    /// Bytes of the log's area on a device of its own; 0 without one.
    pub(crate) log_device_bytes: u64,
    /// That device's path as last given, relative to the directory of the
    /// store's first file where it lies below that; empty if it has none.
    pub(crate) log_path: PathBuf,
    /// Segments that the volume may grow to; 0 without a limit.
    pub(crate) limit_segments: u32,
    /// The store may have, or have had, large values beside those in the log from
    /// [`Superblock::log_start`] on.
    pub(crate) may_have_large: bool,
}

/// Why four KiB are no superblock of ours; the later ones say more of the store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Unreadable {
    /// Not written by this engine.
    Foreign,
    /// Ours, but its checksum does not match.
    Corrupt,
    /// Written by a newer version, or its version number is corrupt.
    MaybeNewer(u32),
    /// Of another version; its checksum matches.
    OtherVersion(u32),
}

const CHECKSUM: usize = 12;
const LOG_PATH: usize = 192;
/// Behind the path, or in its place the extents of a log on the volume: more of the log.
const LOG_PLACE: usize = PAGE_SIZE - 32;
/// Bytes of the longest path that fits into a superblock.
pub(crate) const MAX_PATH_BYTES: usize = LOG_PLACE - LOG_PATH;
/// Bytes of an extent: its offset in the volume, and its length.
const EXTENT_BYTES: usize = 16;
/// No log is longer than this.
const MAX_LOG_BYTES: u64 = 1 << 40;
/// Extents that a log has at most.
pub(crate) const MAX_LOG_EXTENTS: usize = (LOG_PLACE - LOG_PATH) / EXTENT_BYTES;

impl Superblock {
    /// The first position of a new log.
    pub(crate) const FIRST_LSN: u64 = PAGE_SIZE as u64;

    /// That of a new store without a log.
    pub(crate) fn new(store_id: [u8; 16], sizes: SegmentSize, segments: u32) -> Superblock {
        let empty = ArrayRoot::EMPTY;
        Superblock {
            sequence: 1,
            store_id,
            sizes,
            segments,
            clean: false,
            next_lsn: Superblock::FIRST_LSN,
            next_segment_seq: 1,
            tick: 0,
            page_high_water: PageId::FIRST_FREE.0,
            checkpoint: 0,
            segment_table: empty,
            directory: empty,
            provisional: empty,
            log: None,
            max_log_segments: 0,
            open_epoch: 1,
            log_start: Superblock::FIRST_LSN,
            log_epoch: 1,
            log_durable: 0,
            log_device_bytes: 0,
            log_path: PathBuf::new(),
            limit_segments: 0,
            may_have_large: true,
        }
    }

    /// Whether changes are logged.
    pub(crate) fn is_logged(&self) -> bool {
        self.log.is_some() || self.log_device_bytes > 0
    }

    /// The log's segments: all that an extent of it lies in.
    pub(crate) fn log_segments(&self) -> Vec<u32> {
        let extents = self.log.as_ref().map_or(&[][..], LogArea::extents);
        let mut segments: Vec<u32> = extents
            .iter()
            .flat_map(|&(offset, length)| {
                let end = offset.saturating_add(length - 1);
                self.sizes.whole_in(offset)..=self.sizes.whole_in(end)
            })
            .collect();
        segments.sort_unstable();
        segments.dedup();
        segments
    }

    /// The 4 KiB to write.
    pub(crate) fn encode(&self) -> [u8; PAGE_SIZE] {
        let mut bytes = [0; PAGE_SIZE];
        bytes[..8].copy_from_slice(MAGIC);
        put_u32(&mut bytes, 8, FORMAT_VERSION);
        put_u64(&mut bytes, 16, self.sequence);
        bytes[24..40].copy_from_slice(&self.store_id);
        put_u32(&mut bytes, 40, PAGE_SIZE as u32);
        put_u32(&mut bytes, 44, self.sizes.bytes);
        put_u32(&mut bytes, 48, self.segments);
        put_u32(&mut bytes, 52, u32::from(self.clean));
        put_u64(&mut bytes, 56, self.next_lsn);
        put_u64(&mut bytes, 64, self.next_segment_seq);
        put_u64(&mut bytes, 72, self.tick);
        put_u64(&mut bytes, 80, self.page_high_water);
        put_u64(&mut bytes, 88, self.segment_table.length);
        put_u64(&mut bytes, 96, self.segment_table.root.to_raw());
        put_u64(&mut bytes, 104, self.directory.length);
        put_u64(&mut bytes, 112, self.directory.root.to_raw());
        put_u64(&mut bytes, 120, self.checkpoint);
        put_u64(&mut bytes, 128, self.provisional.length);
        put_u64(&mut bytes, 136, self.provisional.root.to_raw());
        put_u32(&mut bytes, 144, u32::from(!self.may_have_large));
        put_u32(&mut bytes, 148, self.open_epoch);
        put_u64(&mut bytes, 152, self.log_start);
        put_u32(&mut bytes, 160, self.log_epoch);
        put_u64(&mut bytes, 168, self.log_durable);
        put_u64(&mut bytes, 176, self.log_device_bytes);
        let path = self.log_path.as_os_str().as_bytes();
        put_u32(&mut bytes, 184, path.len() as u32);
        put_u32(&mut bytes, 188, self.limit_segments);
        bytes[LOG_PATH..LOG_PATH + path.len()].copy_from_slice(path);
        put_u32(&mut bytes, LOG_PLACE + 4, self.max_log_segments);
        if let Some(log) = &self.log {
            put_u32(&mut bytes, LOG_PLACE, log.extents().len() as u32);
            put_u64(&mut bytes, LOG_PLACE + 8, log.base());
            let places = bytes[LOG_PATH..LOG_PLACE].chunks_exact_mut(EXTENT_BYTES);
            for (place, &(offset, length)) in places.zip(log.extents()) {
                put_u64(place, 0, offset);
                put_u64(place, 8, length);
            }
        }
        let sum = checksum(&bytes);
        put_u32(&mut bytes, CHECKSUM, sum);
        bytes
    }

    /// Reads 4 KiB back.
    pub(crate) fn decode(bytes: &[u8; PAGE_SIZE]) -> Result<Superblock, Unreadable> {
        if &bytes[..8] != MAGIC {
            return Err(Unreadable::Foreign);
        }
        let version = get_u32(bytes, 8);
        let matches = checksum(bytes) == get_u32(bytes, CHECKSUM);
        let known = match version {
            PLAIN_VERSION => version,
            _ => FORMAT_VERSION,
        };
        match (version.cmp(&known), matches) {
            (Ordering::Equal, true) => {}
            (_, true) => return Err(Unreadable::OtherVersion(version)),
            // A newer version may compute its checksum in another way.
            (Ordering::Greater, false) => return Err(Unreadable::MaybeNewer(version)),
            (_, false) => return Err(Unreadable::Corrupt),
        }
        let sizes = SegmentSize::decode(get_u32(bytes, 44));
        let sizes = sizes.filter(|_| get_u32(bytes, 40) == PAGE_SIZE as u32);
        let sizes = sizes.ok_or(Unreadable::Corrupt)?;
        let address = |at| {
            let raw = get_u64(bytes, at);
            if raw < 1 << 62 {
                Ok(Address::from_raw(raw))
            } else {
                Err(Unreadable::Corrupt)
            }
        };
        let path_bytes = get_u32(bytes, 184) as usize;
        let path = bytes[LOG_PATH..].get(..path_bytes);
        let path = path.ok_or(Unreadable::Corrupt)?;
        let log_start = get_u64(bytes, 152);
        let log = log_area(bytes).ok_or(Unreadable::Corrupt)?;
        let is_wrong = |log: &LogArea| {
            log.base() > log_start || !(MIN_AREA_BYTES..=MAX_LOG_BYTES).contains(&log.bytes())
        };
        if log.as_ref().is_some_and(is_wrong) {
            return Err(Unreadable::Corrupt);
        }
        let mut store_id = [0; 16];
        store_id.copy_from_slice(&bytes[24..40]);
        Ok(Superblock {
            sequence: get_u64(bytes, 16),
            store_id,
            sizes,
            segments: get_u32(bytes, 48),
            clean: get_u32(bytes, 52) & 1 != 0,
            next_lsn: get_u64(bytes, 56),
            next_segment_seq: get_u64(bytes, 64),
            tick: get_u64(bytes, 72),
            page_high_water: get_u64(bytes, 80),
            checkpoint: get_u64(bytes, 120),
            segment_table: ArrayRoot {
                length: get_u64(bytes, 88),
                root: address(96)?,
            },
            directory: ArrayRoot {
                length: get_u64(bytes, 104),
                root: address(112)?,
            },
            provisional: ArrayRoot {
                length: get_u64(bytes, 128),
                root: address(136)?,
            },
            log,
            max_log_segments: get_u32(bytes, LOG_PLACE + 4),
            open_epoch: get_u32(bytes, 148),
            log_start,
            log_epoch: get_u32(bytes, 160),
            log_durable: get_u64(bytes, 168),
            log_device_bytes: get_u64(bytes, 176),
            log_path: PathBuf::from(OsStr::from_bytes(path)),
            limit_segments: get_u32(bytes, 188),
            may_have_large: get_u32(bytes, 144) != 1,
        })
    }
}

/// The log's area, if there is one; `None` for one that makes no sense.
fn log_area(bytes: &[u8]) -> Option<Option<LogArea>> {
    let count = get_u32(bytes, LOG_PLACE) as usize;
    if count == 0 {
        return Some(None);
    }
    let places = bytes[LOG_PATH..LOG_PLACE].get(..count.checked_mul(EXTENT_BYTES)?)?;
    let extents: Vec<(u64, u64)> = places
        .chunks_exact(EXTENT_BYTES)
        .map(|place| (get_u64(place, 0), get_u64(place, 8)))
        .collect();
    let is_sound = |(offset, length): &(u64, u64)| (offset | length) >> 62 == 0;
    if !extents.iter().all(is_sound) {
        return None;
    }
    LogArea::new(get_u64(bytes, LOG_PLACE + 8), extents).map(Some)
}

fn checksum(bytes: &[u8; PAGE_SIZE]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..CHECKSUM]), &bytes[CHECKSUM + 4..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_survives_and_every_flipped_byte_is_noticed() {
        let superblock = Superblock {
            sequence: 3,
            store_id: *b"0123456789abcdef",
            sizes: SegmentSize::of(2 << 20),
            segments: 99,
            clean: true,
            next_lsn: 4,
            next_segment_seq: 5,
            tick: 6,
            page_high_water: 7,
            checkpoint: 2,
            segment_table: ArrayRoot {
                length: 8,
                root: Address::new(3, 4096, 4096),
            },
            directory: ArrayRoot {
                length: 9,
                root: Address::NONE,
            },
            provisional: ArrayRoot {
                length: 3,
                root: Address::new(4, 0, 4096),
            },
            log: None,
            max_log_segments: 40,
            open_epoch: 11,
            log_start: 12288,
            log_epoch: 13,
            log_durable: 14,
            log_device_bytes: 15,
            log_path: PathBuf::from("logs/a.log"),
            limit_segments: 16,
            may_have_large: false,
        };
        let on_the_volume = Superblock {
            log: LogArea::new(8192, [(8 << 20, 4096), (2 << 20, 4 << 20)]),
            log_device_bytes: 0,
            log_path: PathBuf::new(),
            ..superblock.clone()
        };
        assert_eq!(on_the_volume.log_segments(), [1, 2, 4]);
        let bytes = on_the_volume.encode();
        assert_eq!(Superblock::decode(&bytes), Ok(on_the_volume.clone()));
        let mut plain = bytes;
        put_u32(&mut plain, 8, PLAIN_VERSION);
        let sum = checksum(&plain);
        put_u32(&mut plain, CHECKSUM, sum);
        assert_eq!(Superblock::decode(&plain), Ok(on_the_volume));
        let mut bytes = superblock.encode();
        assert_eq!(Superblock::decode(&bytes), Ok(superblock));
        for at in 0..PAGE_SIZE {
            bytes[at] ^= 1;
            assert!(Superblock::decode(&bytes).is_err(), "byte {at}");
            bytes[at] ^= 1;
        }
        bytes[8] = 9;
        let newer = Err(Unreadable::MaybeNewer(9));
        assert_eq!(Superblock::decode(&bytes), newer);
        for version in [9, 6, 4] {
            bytes[8] = version;
            let sum = checksum(&bytes);
            put_u32(&mut bytes, CHECKSUM, sum);
            let other = Err(Unreadable::OtherVersion(version.into()));
            assert_eq!(Superblock::decode(&bytes), other);
        }
        assert_eq!(
            Superblock::decode(&[0; PAGE_SIZE]),
            Err(Unreadable::Foreign)
        );
    }
}

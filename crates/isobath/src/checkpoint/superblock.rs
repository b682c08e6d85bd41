//! The two superblocks at the start of segment 0, with the store's properties and the place of its
//! newest checkpoint. They are written in turn, so that a torn write leaves the other one.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::page::{PAGE_SIZE, PageId, get_u32, get_u64, put_u32, put_u64};
use crate::shared::{Address, Run, SegmentSizes};

/// The on-disk format that this engine writes.
pub(crate) const FORMAT_VERSION: u32 = 3;
/// The version written if all segments have one size.
const UNIFORM_VERSION: u32 = 2;
/// The version written if nothing needs more: a log that lies behind segment 0 and does not grow.
const FIRST_VERSION: u32 = 1;
const MAGIC: &[u8; 8] = b"ISOBATH\0";

/// Byte offsets of the two superblocks in the volume, both in segment 0 however
/// small segments are.
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
    pub(crate) sizes: SegmentSizes,
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
    /// Segments of the log area; none if nothing is logged.
    pub(crate) log_segments: u32,
    /// The first of them.
    pub(crate) log_first: u32,
    /// Segments that the log may grow to; 0 if it does not.
    pub(crate) max_log_segments: u32,
    /// The log's place before it grew, while a recovery needs that: records below this LSN lie
    /// there.
    pub(crate) log_before: LogBefore,
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
}

/// The log's place before it grew, if a recovery needs that. Not an `Option`: optimised code looks
/// at the content of one before it looks whether there is any, and programs run under valgrind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LogBefore {
    switch: u64,
    run: Run,
}

impl LogBefore {
    pub(crate) const NONE: LogBefore = LogBefore {
        switch: 0,
        run: Run { first: 0, count: 0 },
    };

    /// Records below the LSN `switch` lie in `run`.
    pub(crate) fn new(switch: u64, run: Run) -> LogBefore {
        LogBefore { switch, run }
    }

    /// The LSN from which on the log lies in its present area, and the segments of what is below.
    pub(crate) fn get(self) -> Option<(u64, Run)> {
        (self.run.count > 0).then_some((self.switch, self.run))
    }

    /// Takes the place if a log that starts at `start` does not need it.
    pub(crate) fn take_before(&mut self, start: u64) -> Option<(u64, Run)> {
        let left = self.get().filter(|(switch, _)| start >= *switch)?;
        *self = LogBefore::NONE;
        Some(left)
    }
}

/// Why four KiB are no superblock of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unreadable {
    /// Not written by this engine.
    Foreign,
    /// Written by a newer version, or its version number is corrupt.
    Newer {
        /// The version number.
        version: u32,
        /// Whether the checksum matches, as this version computes it.
        matches: bool,
    },
    /// Ours, but its checksum does not match.
    Corrupt,
}

const CHECKSUM: usize = 12;
const LOG_PATH: usize = 192;
/// Behind the path: where the log lies.
const LOG_PLACE: usize = PAGE_SIZE - 32;
/// Bytes of the longest path that fits into a superblock.
pub(crate) const MAX_PATH_BYTES: usize = LOG_PLACE - LOG_PATH;

impl Superblock {
    /// The first position of a new log.
    pub(crate) const FIRST_LSN: u64 = PAGE_SIZE as u64;

    /// That of a new store without a log.
    pub(crate) fn new(store_id: [u8; 16], sizes: SegmentSizes, segments: u32) -> Superblock {
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
            log_segments: 0,
            log_first: 1,
            max_log_segments: 0,
            log_before: LogBefore::NONE,
            open_epoch: 1,
            log_start: Superblock::FIRST_LSN,
            log_epoch: 1,
            log_durable: 0,
            log_device_bytes: 0,
            log_path: PathBuf::new(),
            limit_segments: 0,
        }
    }

    /// Whether changes are logged.
    pub(crate) fn is_logged(&self) -> bool {
        self.log_segments > 0 || self.log_device_bytes > 0
    }

    /// The segments of the log: those that it has and those that it had before.
    pub(crate) fn log_runs(&self) -> impl Iterator<Item = Run> {
        let now = Run {
            first: self.log_first,
            count: self.log_segments,
        };
        let before = self.log_before.get().map(|(_, run)| run);
        std::iter::once(now)
            .chain(before)
            .filter(|run| run.count > 0)
    }

    /// Whether `segment` never holds pages: the superblocks' or the log's.
    pub(crate) fn is_reserved(&self, segment: u32) -> bool {
        segment == 0 || self.log_runs().any(|run| run.contains(segment))
    }

    fn version(&self) -> u32 {
        let stays =
            self.log_first == 1 && self.max_log_segments == 0 && self.log_before == LogBefore::NONE;
        match (self.sizes.small_words(), stays) {
            ((0, 0), true) => FIRST_VERSION,
            ((0, 0), false) => UNIFORM_VERSION,
            _ => FORMAT_VERSION,
        }
    }

    /// The 4 KiB to write.
    pub(crate) fn encode(&self) -> [u8; PAGE_SIZE] {
        let mut bytes = [0; PAGE_SIZE];
        bytes[..8].copy_from_slice(MAGIC);
        put_u32(&mut bytes, 8, self.version());
        put_u64(&mut bytes, 16, self.sequence);
        bytes[24..40].copy_from_slice(&self.store_id);
        put_u32(&mut bytes, 40, PAGE_SIZE as u32);
        put_u32(&mut bytes, 44, self.sizes.large);
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
        put_u32(&mut bytes, 144, self.log_segments);
        put_u32(&mut bytes, 148, self.open_epoch);
        put_u64(&mut bytes, 152, self.log_start);
        put_u32(&mut bytes, 160, self.log_epoch);
        let (small, small_segments) = self.sizes.small_words();
        put_u32(&mut bytes, 164, small);
        put_u64(&mut bytes, 168, self.log_durable);
        put_u64(&mut bytes, 176, self.log_device_bytes);
        let path = self.log_path.as_os_str().as_bytes();
        put_u32(&mut bytes, 184, path.len() as u32);
        put_u32(&mut bytes, 188, self.limit_segments);
        bytes[LOG_PATH..LOG_PATH + path.len()].copy_from_slice(path);
        if self.version() > FIRST_VERSION {
            put_u32(&mut bytes, LOG_PLACE, self.log_first);
            put_u32(&mut bytes, LOG_PLACE + 4, self.max_log_segments);
            let LogBefore { switch, run } = self.log_before;
            put_u64(&mut bytes, LOG_PLACE + 8, switch);
            put_u32(&mut bytes, LOG_PLACE + 16, run.first);
            put_u32(&mut bytes, LOG_PLACE + 20, run.count);
            put_u32(&mut bytes, LOG_PLACE + 24, small_segments);
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
        if version > FORMAT_VERSION {
            return Err(Unreadable::Newer { version, matches });
        }
        let (small, small_segments) = match version > UNIFORM_VERSION {
            true => (get_u32(bytes, 164), get_u32(bytes, LOG_PLACE + 24)),
            false => (0, 0),
        };
        let sizes = SegmentSizes::decode(get_u32(bytes, 44), small, small_segments);
        let sizes = sizes.filter(|_| matches && get_u32(bytes, 40) == PAGE_SIZE as u32);
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
        let (mut log_first, mut max_log_segments, mut log_before) = (1, 0, LogBefore::NONE);
        if version > FIRST_VERSION {
            log_first = get_u32(bytes, LOG_PLACE);
            max_log_segments = get_u32(bytes, LOG_PLACE + 4);
            let before = Run {
                first: get_u32(bytes, LOG_PLACE + 16),
                count: get_u32(bytes, LOG_PLACE + 20),
            };
            if before.count > 0 {
                log_before = LogBefore::new(get_u64(bytes, LOG_PLACE + 8), before);
            }
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
            log_segments: get_u32(bytes, 144),
            log_first,
            max_log_segments,
            log_before,
            open_epoch: get_u32(bytes, 148),
            log_start: get_u64(bytes, 152),
            log_epoch: get_u32(bytes, 160),
            log_durable: get_u64(bytes, 168),
            log_device_bytes: get_u64(bytes, 176),
            log_path: PathBuf::from(OsStr::from_bytes(path)),
            limit_segments: get_u32(bytes, 188),
        })
    }
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
            sizes: SegmentSizes::small_first(2 << 20),
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
            log_segments: 10,
            log_first: 20,
            max_log_segments: 40,
            log_before: LogBefore::new(8192, Run { first: 1, count: 5 }),
            open_epoch: 11,
            log_start: 12,
            log_epoch: 13,
            log_durable: 14,
            log_device_bytes: 15,
            log_path: PathBuf::from("logs/a.log"),
            limit_segments: 16,
        };
        let mut bytes = superblock.encode();
        assert_eq!(Superblock::decode(&bytes), Ok(superblock));
        for at in 0..PAGE_SIZE {
            bytes[at] ^= 1;
            assert!(Superblock::decode(&bytes).is_err(), "byte {at}");
            bytes[at] ^= 1;
        }
        bytes[8] = 4;
        let newer = |matches| {
            Err(Unreadable::Newer {
                version: 4,
                matches,
            })
        };
        assert_eq!(Superblock::decode(&bytes), newer(false));
        let sum = checksum(&bytes);
        put_u32(&mut bytes, CHECKSUM, sum);
        assert_eq!(Superblock::decode(&bytes), newer(true));
        assert_eq!(
            Superblock::decode(&[0; PAGE_SIZE]),
            Err(Unreadable::Foreign)
        );
    }
}

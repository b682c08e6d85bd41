//! Backup files: blocks one after another, the last of which says where the others are. The byte
//! diagram is in docs/format.md.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use isobath_io::open_to_read;

use crate::backup::MapEntry;
use crate::error::{BackupError, BackupFileError, RestoreError};
use crate::log::MIN_AREA_BYTES;
use crate::output::{FileFailed, OutputFile, failed, unfinished, with_suffix};
use crate::page::{PAGE_SIZE, get_u32, get_u64, put_u32, put_u64};

/// The format that this version writes, and the newest that it reads.
pub(crate) const BACKUP_FORMAT: u32 = 4;
/// First bytes of every block.
const MAGIC: &[u8; 4] = b"ISBK";
/// Bytes before a block's payload.
const HEADER_BYTES: usize = 24;
/// Most bytes of a payload: the longest record of a log, and a little more.
const MAX_PAYLOAD: usize = (1 << 27) + (1 << 16);
/// Bytes that are read ahead.
const READ_AHEAD: usize = 1 << 20;

/// Bytes of a restored store's log for each byte of records in it.
const LOG_PER_RECORD_BYTE: u64 = 4;
/// As many as the shortest changes may need that each split a leaf, unless the log that they were
/// accepted in was shorter.
const LOG_PER_SPLITTING_BYTE: u64 = 800;

/// Entries of a block of the map, but for the last one.
pub(crate) const MAP_ENTRIES: usize = 16384;
/// Bytes of one.
pub(crate) const ENTRY_BYTES: usize = 24;
const _: () = assert!(MAP_ENTRIES * ENTRY_BYTES < MAX_PAYLOAD);

/// The contents of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Whose backup this is.
    Header = 1,
    /// Pages and chunks.
    Pages = 2,
    /// The log's start and end, and the store's counters.
    State = 3,
    /// Allocations that no record had confirmed.
    Provisional = 4,
    /// Records of the log.
    Log = 5,
    /// Entries of the map.
    Map = 6,
    /// The places of the other blocks.
    End = 7,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Kind> {
        Some(match byte {
            1 => Kind::Header,
            2 => Kind::Pages,
            3 => Kind::State,
            4 => Kind::Provisional,
            5 => Kind::Log,
            6 => Kind::Map,
            7 => Kind::End,
            _ => return None,
        })
    }
}

/// Whose backup a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// The store's identity.
    pub(crate) store_id: [u8; 16],
    /// This backup's.
    pub(crate) id: [u8; 16],
    /// The id of the backup that this one adds to; zero for a full one.
    pub(crate) base: [u8; 16],
    /// Backups below this one.
    pub(crate) generation: u32,
    pub(crate) segment_bytes: u32,
    pub(crate) log_segments: u32,
    /// Segments that the log may grow to; 0 if it does not.
    pub(crate) max_log_segments: u32,
    /// Seconds since 1970.
    pub(crate) created: u64,
}

const HEADER_PAYLOAD: usize = 80;

impl Header {
    /// Segments of a restored store's log that has `length` bytes at first. One that grows begins
    /// with few, as a new store's, but a recovery needs some of the area for itself: a commit that
    /// was accepted in the log of the backup's store may split leaves when it is repeated.
    pub(super) fn restored_log(&self, length: u64) -> u32 {
        if self.max_log_segments == 0 {
            return self.log_segments;
        }
        let bytes = MIN_AREA_BYTES.max(length.saturating_mul(LOG_PER_RECORD_BYTE));
        let accepted_in = u64::from(self.log_segments) * u64::from(self.segment_bytes);
        let bytes = bytes.max(accepted_in.min(length.saturating_mul(LOG_PER_SPLITTING_BYTE)));
        let segments = bytes.div_ceil(u64::from(self.segment_bytes).max(1));
        let most = self.log_segments.max(self.max_log_segments);
        u32::try_from(segments).map_or(most, |segments| segments.min(most))
    }

    fn encode(&self) -> [u8; HEADER_PAYLOAD] {
        let mut bytes = [0; HEADER_PAYLOAD];
        put_u32(&mut bytes, 0, BACKUP_FORMAT);
        put_u32(&mut bytes, 4, PAGE_SIZE as u32);
        bytes[8..24].copy_from_slice(&self.store_id);
        bytes[24..40].copy_from_slice(&self.id);
        bytes[40..56].copy_from_slice(&self.base);
        put_u32(&mut bytes, 56, self.generation);
        put_u32(&mut bytes, 60, self.segment_bytes);
        put_u32(&mut bytes, 64, self.log_segments);
        put_u32(&mut bytes, 68, self.max_log_segments);
        put_u64(&mut bytes, 72, self.created);
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Header, BackupFileError> {
        if bytes.len() < 4 {
            return Err(BackupFileError::Malformed("the header is too short"));
        }
        let found = get_u32(bytes, 0);
        let known = BACKUP_FORMAT;
        if found > known {
            return Err(BackupFileError::Newer { found, known });
        }
        if bytes.len() != HEADER_PAYLOAD || get_u32(bytes, 4) != PAGE_SIZE as u32 {
            return Err(BackupFileError::Malformed("the header has a wrong length"));
        }
        let id = |at: usize| {
            let mut id = [0; 16];
            id.copy_from_slice(&bytes[at..at + 16]);
            id
        };
        Ok(Header {
            store_id: id(8),
            id: id(24),
            base: id(40),
            generation: get_u32(bytes, 56),
            segment_bytes: get_u32(bytes, 60),
            log_segments: get_u32(bytes, 64),
            max_log_segments: get_u32(bytes, 68),
            created: get_u64(bytes, 72),
        })
    }

    /// Whether it needs no other backup.
    pub(crate) fn is_full(&self) -> bool {
        self.base == [0; 16]
    }
}

/// The last block's contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct End {
    /// Offset and number of the state's block; provisional allocations and log follow it.
    pub(crate) state_at: u64,
    pub(crate) state_number: u64,
    /// Offset and number of the map's first block.
    pub(crate) map_at: u64,
    pub(crate) map_number: u64,
    /// Entries of the map.
    pub(crate) entries: u64,
    /// Pages and chunks in the file, and their bytes.
    pub(crate) pages: u64,
    pub(crate) page_bytes: u64,
    /// Blocks before this one.
    pub(crate) number: u64,
}

const END_PAYLOAD: usize = 64;

impl End {
    fn encode(&self) -> [u8; END_PAYLOAD] {
        let mut bytes = [0; END_PAYLOAD];
        let words = [
            self.state_at,
            self.state_number,
            self.map_at,
            self.map_number,
            self.entries,
            self.pages,
            self.page_bytes,
            self.number,
        ];
        for (at, word) in words.into_iter().enumerate() {
            put_u64(&mut bytes, at * 8, word);
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<End> {
        if bytes.len() != END_PAYLOAD {
            return None;
        }
        Some(End {
            state_at: get_u64(bytes, 0),
            state_number: get_u64(bytes, 8),
            map_at: get_u64(bytes, 16),
            map_number: get_u64(bytes, 24),
            entries: get_u64(bytes, 32),
            pages: get_u64(bytes, 40),
            page_bytes: get_u64(bytes, 48),
            number: get_u64(bytes, 56),
        })
    }
}

/// An error of the file `path` at `offset`.
/// Why a backup file cannot be used.
#[derive(Debug)]
pub(crate) enum Unreadable {
    Bad {
        path: PathBuf,
        offset: u64,
        error: BackupFileError,
    },
    File(FileFailed),
}

impl From<FileFailed> for Unreadable {
    fn from(failed: FileFailed) -> Unreadable {
        Unreadable::File(failed)
    }
}

macro_rules! become_bad {
    ($( $Kind:ident )*) => {$(
        impl From<Unreadable> for $Kind {
            fn from(error: Unreadable) -> $Kind {
                match error {
                    Unreadable::Bad { path, offset, error } => {
                        $Kind::BadBackup { path, offset, error }
                    }
                    Unreadable::File(failed) => failed.into(),
                }
            }
        }
    )*};
}

become_bad!(BackupError RestoreError);

fn bad(path: &Path, offset: u64, error: BackupFileError) -> Unreadable {
    Unreadable::Bad {
        path: path.to_path_buf(),
        offset,
        error,
    }
}

fn checksum(seed: u32, header: &[u8], payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(seed, &header[..20]), payload)
}

/// The seed of a backup's block checksums, so that no other backup's blocks pass for its own.
fn seed_of(id: &[u8; 16]) -> u32 {
    crc32c::crc32c(id)
}

/// Writes a backup file.
pub(crate) struct BlockWriter {
    file: File,
    path: PathBuf,
    is_regular: bool,
    seed: u32,
    next: u64,
    offset: u64,
    block: Vec<u8>,
}

impl BlockWriter {
    /// Writes the header to an empty output.
    ///
    /// # Errors
    ///
    /// [`BackupError::File`].
    pub(crate) fn create(output: &OutputFile, header: &Header) -> Result<BlockWriter, BackupError> {
        let path = output.path();
        let file = output.file().try_clone().map_err(failed("open", path))?;
        let mut writer = BlockWriter {
            file,
            path: path.to_path_buf(),
            is_regular: output.is_regular(),
            seed: 0,
            next: 0,
            offset: 0,
            block: Vec::new(),
        };
        writer.write(Kind::Header, &[&header.encode()])?;
        writer.seed = seed_of(&header.id);
        Ok(writer)
    }

    /// Writes a block whose payload is `parts`, one after another.
    ///
    /// # Errors
    ///
    /// [`BackupError::File`], for example if the file system is full.
    pub(crate) fn write(&mut self, kind: Kind, parts: &[&[u8]]) -> Result<(), BackupError> {
        self.block.clear();
        self.block.resize(HEADER_BYTES, 0);
        parts
            .iter()
            .for_each(|part| self.block.extend_from_slice(part));
        let length = self.block.len() - HEADER_BYTES;
        debug_assert!(length <= MAX_PAYLOAD);
        let (header, payload) = self.block.split_at_mut(HEADER_BYTES);
        header[..4].copy_from_slice(MAGIC);
        header[4] = kind as u8;
        put_u64(header, 8, self.next);
        put_u32(header, 16, length as u32);
        let sum = checksum(self.seed, header, payload);
        put_u32(header, 20, sum);
        self.file
            .write_all(&self.block)
            .map_err(failed("write", &self.path))?;
        self.next += 1;
        self.offset += self.block.len() as u64;
        Ok(())
    }

    /// Bytes written so far: where the next block begins.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// The next block's number.
    pub(crate) fn number(&self) -> u64 {
        self.next
    }

    /// Writes the last block, and waits until the drive has everything.
    ///
    /// # Errors
    ///
    /// [`BackupError::File`].
    pub(crate) fn finish(mut self, mut end: End) -> Result<u64, BackupError> {
        end.number = self.next;
        self.write(Kind::End, &[&end.encode()])?;
        // FIFOs and terminals keep nothing that could be synced.
        if self.is_regular {
            self.file.sync_all().map_err(failed("write", &self.path))?;
        }
        Ok(self.offset)
    }
}

/// A backup file that is being read.
pub(crate) struct BackupFile {
    file: File,
    path: PathBuf,
    seed: u32,
    pub(crate) header: Header,
    pub(crate) end: End,
    /// The offset of the block after the header.
    first: u64,
    length: u64,
}

impl BackupFile {
    /// Opens a file and reads its first and its last block.
    ///
    /// # Errors
    ///
    /// [`BackupError::File`], [`BackupError::BadBackup`].
    pub(crate) fn open(path: &Path) -> Result<BackupFile, Unreadable> {
        let file = open_to_read(path).map_err(failed("open", path))?;
        let length = file.metadata().map_err(failed("read", path))?.len();
        let bad = |offset, error| bad(path, offset, error);
        let mut magic = [0; 4];
        let start = (length as usize).min(4);
        file.read_exact_at(&mut magic[..start], 0)
            .map_err(failed("read", path))?;
        if start < 4 || &magic != MAGIC {
            return Err(bad(0, BackupFileError::Foreign));
        }
        let mut blocks = Blocks::over(&file, path, 0, 0, length, 0);
        if blocks.next()? != Some(Kind::Header) {
            return Err(bad(0, BackupFileError::Foreign));
        }
        let header = Header::decode(blocks.payload()).map_err(|error| bad(0, error))?;
        let first = blocks.offset;
        let seed = seed_of(&header.id);
        let last = (HEADER_BYTES + END_PAYLOAD) as u64;
        let end_at = length.checked_sub(last).filter(|at| *at >= first);
        let Some(end_at) = end_at else {
            return Err(bad(length, BackupFileError::Truncated));
        };
        // Its number is its own word.
        let mut tail = [0; HEADER_BYTES + END_PAYLOAD];
        file.read_exact_at(&mut tail, end_at)
            .map_err(failed("read", path))?;
        let (head, payload) = tail.split_at(HEADER_BYTES);
        let whole = &head[..4] == MAGIC
            && head[4] == Kind::End as u8
            && get_u32(head, 20) == checksum(seed, head, payload);
        let end = End::decode(payload).filter(|end| whole && end.number == get_u64(head, 8));
        let end = end.ok_or(bad(end_at, BackupFileError::Truncated))?;
        Ok(BackupFile {
            file,
            path: path.to_path_buf(),
            seed,
            header,
            end,
            first,
            length,
        })
    }

    /// The file's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the file.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// An error at `offset`.
    pub(crate) fn bad(&self, offset: u64, error: BackupFileError) -> Unreadable {
        bad(&self.path, offset, error)
    }

    /// Reads all blocks behind the header.
    pub(crate) fn blocks(&self) -> Blocks<'_> {
        self.blocks_from(self.first, 1)
    }

    /// Reads from the state's block on.
    pub(crate) fn state_blocks(&self) -> Blocks<'_> {
        self.blocks_from(self.end.state_at, self.end.state_number)
    }

    /// Reads from the map's first block on.
    pub(crate) fn map_blocks(&self) -> Blocks<'_> {
        self.blocks_from(self.end.map_at, self.end.map_number)
    }

    /// Reads from the block on that begins at `at` and has this number.
    fn blocks_from(&self, at: u64, number: u64) -> Blocks<'_> {
        Blocks::over(&self.file, &self.path, at, number, self.length, self.seed)
    }

    /// Forgets what the system has in memory of the file, so that it is read from the drive.
    pub(crate) fn forget_cached(&self) {
        drop_cached(&self.file);
    }
}

/// Has the system drop what it caches of `file`; a wish, which it may ignore.
#[allow(unsafe_code)]
fn drop_cached(file: &File) {
    use std::os::fd::AsRawFd;
    // SAFETY: the descriptor is open for as long as `file` is borrowed; the call touches no memory
    // of ours.
    unsafe {
        libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED);
    }
}

/// Reads and verifies blocks one after another.
pub(crate) struct Blocks<'f> {
    input: io::BufReader<At<'f>>,
    path: &'f Path,
    number: u64,
    /// Offsets of the next block and of the last one.
    offset: u64,
    began: u64,
    length: u64,
    seed: u32,
    payload: Vec<u8>,
}

/// Reads a file from a place of its own, beside other readers.
struct At<'f> {
    file: &'f File,
    at: u64,
}

impl Read for At<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(into, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl<'f> Blocks<'f> {
    fn over(file: &'f File, path: &'f Path, at: u64, number: u64, length: u64, seed: u32) -> Self {
        Blocks {
            input: io::BufReader::with_capacity(READ_AHEAD, At { file, at }),
            path,
            number,
            offset: at,
            began: at,
            length,
            seed,
            payload: Vec::new(),
        }
    }

    /// The next block's kind; `None` at the file's end.
    ///
    /// # Errors
    ///
    /// [`BackupError::File`], [`BackupError::BadBackup`].
    pub(crate) fn next(&mut self) -> Result<Option<Kind>, Unreadable> {
        self.began = self.offset;
        if self.offset == self.length {
            return Ok(None);
        }
        let left = self.length.saturating_sub(self.offset);
        if left < HEADER_BYTES as u64 {
            return Err(self.bad(BackupFileError::Truncated));
        }
        let mut header = [0; HEADER_BYTES];
        self.fill(&mut header)?;
        let length = get_u32(&header, 16) as usize;
        if &header[..4] != MAGIC || length > MAX_PAYLOAD {
            return Err(self.bad(BackupFileError::Checksum));
        }
        if (length as u64) > left - HEADER_BYTES as u64 {
            return Err(self.bad(BackupFileError::Truncated));
        }
        let mut payload = std::mem::take(&mut self.payload);
        payload.resize(length, 0);
        let filled = self.fill(&mut payload);
        self.payload = payload;
        filled?;
        if get_u32(&header, 20) != checksum(self.seed, &header, &self.payload) {
            return Err(self.bad(BackupFileError::Checksum));
        }
        if get_u64(&header, 8) != self.number {
            return Err(self.bad(BackupFileError::Malformed(
                "a block is in another one's place",
            )));
        }
        self.number += 1;
        self.offset += (HEADER_BYTES + length) as u64;
        let kind = Kind::from_byte(header[4]);
        kind.map(Some)
            .ok_or_else(|| self.bad(BackupFileError::Malformed("a block is of an unknown kind")))
    }

    fn fill(&mut self, into: &mut [u8]) -> Result<(), Unreadable> {
        self.input
            .read_exact(into)
            .map_err(|error| failed("read", self.path)(error).into())
    }

    /// Payload of the block last read.
    pub(crate) fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// The offset of the block last read.
    pub(crate) fn began(&self) -> u64 {
        self.began
    }

    /// An error in the block last read.
    pub(crate) fn bad(&self, error: BackupFileError) -> Unreadable {
        bad(self.path, self.began, error)
    }
}

/// Puts entries into bytes.
pub(crate) fn encode_entries(entries: &[MapEntry], into: &mut Vec<u8>) {
    for entry in entries {
        for word in [entry.address, entry.seq, entry.version] {
            into.extend_from_slice(&word.to_le_bytes());
        }
    }
}

/// Reads entries back, appending them to `into`.
pub(crate) fn decode_entries(bytes: &[u8], into: &mut Vec<MapEntry>) {
    into.extend(bytes.chunks_exact(ENTRY_BYTES).map(|bytes| MapEntry {
        address: get_u64(bytes, 0),
        seq: get_u64(bytes, 8),
        version: get_u64(bytes, 16),
    }));
}

/// The map of a round, in a file without a name: an entry for each id.
pub(crate) struct Scratch {
    file: File,
    path: PathBuf,
    entries: u64,
}

impl Scratch {
    /// An empty one beside the output; in the system's place for such files where the output is a
    /// FIFO or a device.
    ///
    /// # Errors
    ///
    /// [`BackupError::File`].
    pub(crate) fn create(output: &OutputFile) -> Result<Scratch, BackupError> {
        let path = if output.is_regular() {
            with_suffix(output.path(), ".map")
        } else {
            let name = format!("isobath-{}.partial.map", std::process::id());
            std::env::temp_dir().join(name)
        };
        let file = unfinished(&path)?;
        // Its name is not needed any more.
        std::fs::remove_file(&path).map_err(failed("remove", &path))?;
        Ok(Scratch {
            file,
            path,
            entries: 0,
        })
    }

    /// Entries so far.
    pub(crate) fn entries(&self) -> u64 {
        self.entries
    }

    /// Appends entries.
    ///
    /// # Errors
    ///
    /// [`BackupError::File`].
    pub(crate) fn append(&mut self, entries: &[MapEntry]) -> Result<(), BackupError> {
        let mut bytes = Vec::with_capacity(entries.len() * ENTRY_BYTES);
        encode_entries(entries, &mut bytes);
        self.file
            .write_all_at(&bytes, self.entries * ENTRY_BYTES as u64)
            .map_err(failed("write", &self.path))?;
        self.entries += entries.len() as u64;
        Ok(())
    }

    /// The entries from `first` on, `count` at most, into `into`.
    ///
    /// # Errors
    ///
    /// [`BackupError::File`].
    pub(crate) fn read(
        &self,
        first: u64,
        count: usize,
        into: &mut Vec<MapEntry>,
    ) -> Result<(), BackupError> {
        into.clear();
        let count = (self.entries.saturating_sub(first)).min(count as u64) as usize;
        let mut bytes = vec![0; count * ENTRY_BYTES];
        self.file
            .read_exact_at(&mut bytes, first * ENTRY_BYTES as u64)
            .map_err(failed("read", &self.path))?;
        decode_entries(&bytes, into);
        Ok(())
    }

    /// The entry of `id`.
    ///
    /// # Errors
    ///
    /// [`BackupError::File`].
    pub(crate) fn get(&self, id: u64) -> Result<MapEntry, BackupError> {
        let mut one = Vec::with_capacity(1);
        self.read(id, 1, &mut one)?;
        Ok(one.pop().unwrap_or_default())
    }

    /// Changes the entry of `id`, which may be behind the last one.
    ///
    /// # Errors
    ///
    /// [`BackupError::File`].
    pub(crate) fn set(&mut self, id: u64, entry: MapEntry) -> Result<(), BackupError> {
        let mut bytes = Vec::with_capacity(ENTRY_BYTES);
        encode_entries(&[entry], &mut bytes);
        // The bytes between are a hole, which reads as zeros.
        self.file
            .write_all_at(&bytes, id * ENTRY_BYTES as u64)
            .map_err(failed("write", &self.path))?;
        self.entries = self.entries.max(id + 1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restored_log_has_space_for_what_was_logged_while_it_grew() {
        let header = |max_log_segments| Header {
            store_id: [0; 16],
            id: [1; 16],
            base: [0; 16],
            generation: 0,
            segment_bytes: 1 << 20,
            log_segments: 4,
            max_log_segments,
            created: 0,
        };
        let grows = header(256);
        assert_eq!(Header::decode(&grows.encode()).unwrap(), grows);
        let after = |header: Header, length| header.restored_log(length);
        assert_eq!(
            [0, 2 << 20, 1 << 30].map(|length| after(grows, length)),
            [4, 8, 256]
        );
        assert_eq!(after(header(0), 4 << 20), 4);
    }
}

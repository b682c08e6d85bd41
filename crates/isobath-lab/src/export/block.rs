//! Blocks: the frames of an export file. The byte diagram is in
//! `docs/export-format.md`.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crate::LabError;
use crate::files::read_full;

/// First bytes of every block.
const MAGIC: [u8; 4] = *b"ISBX";
/// Bytes before a block's payload.
const HEADER_BYTES: usize = 24;
/// Most bytes of a payload; a longer one is corrupt.
pub(super) const MAX_PAYLOAD: usize = 2 << 20;

/// A block's contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Header = 1,
    TreeBegin = 2,
    Records = 3,
    LargeRecord = 4,
    ValuePart = 5,
    TreeEnd = 6,
    End = 7,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Kind> {
        use Kind::*;
        let all = [
            Header,
            TreeBegin,
            Records,
            LargeRecord,
            ValuePart,
            TreeEnd,
            End,
        ];
        all.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// Writes blocks one after another.
pub(super) struct BlockWriter<W> {
    out: W,
    next: u64,
    bytes: u64,
}

impl<W: Write> BlockWriter<W> {
    pub(super) fn new(out: W) -> Self {
        BlockWriter {
            out,
            next: 0,
            bytes: 0,
        }
    }

    pub(super) fn write(&mut self, kind: Kind, payload: &[u8]) -> io::Result<()> {
        debug_assert!(payload.len() <= MAX_PAYLOAD);
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&MAGIC);
        header[4] = kind as u8;
        header[8..16].copy_from_slice(&self.next.to_le_bytes());
        let length = u32::try_from(payload.len()).map_err(io::Error::other)?;
        header[16..20].copy_from_slice(&length.to_le_bytes());
        let sum = crc32c::crc32c_append(crc32c::crc32c(&header[..20]), payload);
        header[20..].copy_from_slice(&sum.to_le_bytes());
        self.out.write_all(&header)?;
        self.out.write_all(payload)?;
        self.next += 1;
        self.bytes += (HEADER_BYTES + payload.len()) as u64;
        Ok(())
    }

    /// Bytes written so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn into_inner(self) -> W {
        self.out
    }
}

/// Reads and verifies blocks one after another.
pub(super) struct BlockReader<R> {
    input: R,
    path: PathBuf,
    next: u64,
    /// The offset of the next block.
    offset: u64,
    /// The offset of the block last read.
    block_offset: u64,
    payload: Vec<u8>,
}

impl<R: Read> BlockReader<R> {
    pub(super) fn new(input: R, path: &Path) -> Self {
        BlockReader {
            input,
            path: path.to_path_buf(),
            next: 0,
            offset: 0,
            block_offset: 0,
            payload: Vec::new(),
        }
    }

    /// The next block's kind; its payload is in [`BlockReader::payload`].
    pub(super) fn read(&mut self) -> Result<Kind, LabError> {
        self.block_offset = self.offset;
        let mut header = [0; HEADER_BYTES];
        let (magic, rest) = header.split_at_mut(MAGIC.len());
        let filled = self.fill(magic)?;
        if filled > 0 && magic[..filled] != MAGIC[..filled] {
            return Err(self.corrupt(if self.next == 0 {
                "this is no Isobath export file (`isobath export` makes them)"
            } else {
                "no block starts here: the file is corrupt"
            }));
        }
        if filled == 0 {
            return Err(self.corrupt(if self.next == 0 {
                "the file is empty"
            } else {
                "the file ends without its end block: it is truncated; export again"
            }));
        }
        self.fill_all(rest)?;
        let number = u64::from_le_bytes(array(&header[8..16]));
        let length = u32::from_le_bytes(array(&header[16..20])) as usize;
        let stored = u32::from_le_bytes(array(&header[20..]));
        if length > MAX_PAYLOAD {
            return Err(self.corrupt("the block's length is impossible: the file is corrupt"));
        }
        let mut payload = std::mem::take(&mut self.payload);
        payload.resize(length, 0);
        self.fill_all(&mut payload)?;
        self.payload = payload;
        let computed = crc32c::crc32c_append(crc32c::crc32c(&header[..20]), &self.payload);
        if stored != computed {
            return Err(self.corrupt(&format!(
                "the block's checksum is {stored:#010x} but its bytes give {computed:#010x}: the file is corrupt"
            )));
        }
        if number != self.next {
            return Err(self.corrupt(&format!(
                "block {number} is where block {} should be: parts of the file are missing or in another order",
                self.next
            )));
        }
        self.next += 1;
        Kind::from_byte(header[4]).ok_or_else(|| {
            self.corrupt(&format!(
                "block kind {} is unknown: a newer Isobath wrote this file; import it with that version",
                header[4]
            ))
        })
    }

    /// Payload of the block last read.
    pub(super) fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Whether the file ends after the block last read.
    pub(super) fn at_end(&mut self) -> Result<bool, LabError> {
        let mut one = [0];
        let read = self
            .input
            .read(&mut one)
            .map_err(LabError::io("read", &self.path))?;
        Ok(read == 0)
    }

    /// Bytes read so far.
    pub(super) fn bytes(&self) -> u64 {
        self.offset
    }

    /// An error at the block last read.
    pub(super) fn corrupt(&self, reason: &str) -> LabError {
        LabError::Export {
            path: self.path.clone(),
            offset: self.block_offset,
            reason: reason.to_owned(),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads into `into` until it is full or the file ends; answers how much.
    fn fill(&mut self, into: &mut [u8]) -> Result<usize, LabError> {
        let filled = read_full(&mut self.input, into).map_err(LabError::io("read", &self.path))?;
        self.offset += filled as u64;
        Ok(filled)
    }

    fn fill_all(&mut self, into: &mut [u8]) -> Result<(), LabError> {
        if self.fill(into)? < into.len() {
            return Err(self
                .corrupt("the file ends in the middle of a block: it is truncated; export again"));
        }
        Ok(())
    }
}

/// The bytes as an array; the caller sliced exactly `N`.
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(bytes);
    out
}

/// Reads integers and byte strings off the front of a payload.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(count)?;
        self.0 = tail;
        Some(head)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(array(self.bytes(2)?)))
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(array(self.bytes(4)?)))
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(array(self.bytes(8)?)))
    }

    /// A string of UTF-8 after its length in 16 bits.
    pub(super) fn text(&mut self) -> Option<String> {
        let length = usize::from(self.u16()?);
        String::from_utf8(self.bytes(length)?.to_vec()).ok()
    }
}

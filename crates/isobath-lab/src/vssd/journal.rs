//! The journal of a mounted drive since its state was saved: the translation layer is
//! deterministic, so the same operations after the same state give the same drive.
//!
//! A header of 40 bytes (magic `ISOVSSJ1`, the number of the state that it follows, the machine's
//! boot id as 16 bytes, 4 zeros, CRC-32C of the 36 bytes before), then records of 24 bytes: kind (1
//! byte), 3 zeros, first page (4), pages (4), virtual time in ns (8), CRC-32C of the 20 bytes
//! before. All numbers are little-endian.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::LabError;

const MAGIC: &[u8; 8] = b"ISOVSSJ1";
const HEADER_BYTES: usize = 40;
pub(super) const RECORD_BYTES: usize = 24;

/// A host's operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Read = 1,
    Write = 2,
    Discard = 3,
    Flush = 4,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct JournalRecord {
    pub(super) kind: Kind,
    pub(super) first: u32,
    pub(super) pages: u32,
    pub(super) at_ns: u64,
}

impl JournalRecord {
    fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[0] = self.kind as u8;
        bytes[4..8].copy_from_slice(&self.first.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.pages.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.at_ns.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..20]);
        bytes[20..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; RECORD_BYTES]) -> Option<JournalRecord> {
        let u32_at = |at: usize| {
            let four = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
            u32::from_le_bytes(four)
        };
        if crc32c::crc32c(&bytes[..20]) != u32_at(20) {
            return None;
        }
        let kind = match bytes[0] {
            1 => Kind::Read,
            2 => Kind::Write,
            3 => Kind::Discard,
            4 => Kind::Flush,
            _ => return None,
        };
        Some(JournalRecord {
            kind,
            first: u32_at(4),
            pages: u32_at(8),
            at_ns: u64::from(u32_at(12)) | u64::from(u32_at(16)) << 32,
        })
    }
}

/// The journal of a mounted drive, as it grows.
pub(super) struct Journal {
    file: File,
    len: u64,
}

impl Journal {
    /// Begins again after the state of that number.
    pub(super) fn begin(path: &Path, state_number: u64) -> Result<Journal, LabError> {
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(true);
        let file = options.open(path).map_err(LabError::io("create", path))?;
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(MAGIC);
        header[8..16].copy_from_slice(&state_number.to_le_bytes());
        header[16..32].copy_from_slice(&boot_id());
        let crc = crc32c::crc32c(&header[..36]);
        header[36..].copy_from_slice(&crc.to_le_bytes());
        file.write_all_at(&header, 0)
            .map_err(LabError::io("write", path))?;
        Ok(Journal {
            file,
            len: HEADER_BYTES as u64,
        })
    }

    /// Appends a record. A failed append leaves no trace.
    pub(super) fn append(&mut self, record: &JournalRecord) -> io::Result<()> {
        self.file.write_all_at(&record.encode(), self.len)?;
        self.len += RECORD_BYTES as u64;
        Ok(())
    }

    /// Records so far.
    pub(super) fn records(&self) -> u64 {
        (self.len - HEADER_BYTES as u64) / RECORD_BYTES as u64
    }
}

/// The operations of a journal that was not ended by a saved state.
#[derive(Debug, Default)]
pub(super) struct Left {
    pub(super) records: Vec<JournalRecord>,
    /// The machine was started again since: writes may be missing, here and in the image.
    pub(super) is_of_another_boot: bool,
}

/// Reads the journal that follows the state of that number; `None` if there is none.
///
/// # Errors
/// [`LabError::Input`] if a record in the middle is corrupt. An incomplete one at the end was
/// never acknowledged.
pub(super) fn read(path: &Path, state_number: u64) -> Result<Option<Left>, LabError> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(LabError::io("read", path)(error)),
    };
    let corrupt = |offset: usize| {
        LabError::input(
            path,
            format!(
                "corrupt at byte {offset}; the image is whole: remove this file to go on with the counters of the state \
                 that was saved before"
            ),
        )
    };
    let Some((header, records)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        // The process was killed before anything was done.
        return Ok(None);
    };
    let crc = u32::from_le_bytes([header[36], header[37], header[38], header[39]]);
    if &header[..8] != MAGIC || crc32c::crc32c(&header[..36]) != crc {
        return Err(corrupt(0));
    }
    if header[8..16] != state_number.to_le_bytes() {
        // A later state was saved, and the process killed before the journal went.
        return Ok(None);
    }
    let mut left = Left {
        records: Vec::with_capacity(records.len() / RECORD_BYTES),
        is_of_another_boot: header[16..32] != boot_id(),
    };
    let (whole, _) = records.as_chunks::<RECORD_BYTES>();
    for (number, record) in whole.iter().enumerate() {
        match JournalRecord::decode(record) {
            Some(record) => left.records.push(record),
            // After a crash of the machine, its end may never have reached the drive.
            None if left.is_of_another_boot => break,
            None => return Err(corrupt(HEADER_BYTES + number * RECORD_BYTES)),
        }
    }
    Ok(Some(left))
}

/// The kernel's id of this boot; zeros if there is none.
fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: Vec<u8> = text
        .bytes()
        .filter_map(|byte| char::from(byte).to_digit(16))
        .map(|digit| digit as u8)
        .collect();
    let mut id = [0; 16];
    for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = pair[0] << 4 | pair[1];
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_and_corruption_is_found() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("journal");
        assert!(read(&path, 3).unwrap().is_none());
        let mut journal = Journal::begin(&path, 3).unwrap();
        let record = |n: u32| JournalRecord {
            kind: [Kind::Read, Kind::Write, Kind::Discard, Kind::Flush][n as usize % 4],
            first: n * 7,
            pages: n,
            at_ns: u64::from(n) << 33 | 5,
        };
        let records: Vec<JournalRecord> = (0..10).map(record).collect();
        for record in &records {
            journal.append(record).unwrap();
        }
        assert_eq!(journal.records(), 10);
        let left = read(&path, 3).unwrap().unwrap();
        assert_eq!(left.records, records);
        assert!(!left.is_of_another_boot);
        assert!(read(&path, 4).unwrap().is_none(), "a later state was saved");

        // An append that was interrupted.
        let good = std::fs::read(&path).unwrap();
        std::fs::write(&path, &good[..good.len() - 5]).unwrap();
        assert_eq!(read(&path, 3).unwrap().unwrap().records, records[..9]);
        let mut bad = good.clone();
        bad[HEADER_BYTES + 3 * RECORD_BYTES + 4] ^= 1;
        std::fs::write(&path, &bad).unwrap();
        let error = read(&path, 3).unwrap_err().to_string();
        assert!(error.contains("corrupt at byte 112"), "{error}");
        // Of another boot, with a header that says so.
        bad[16] ^= 1;
        let crc = crc32c::crc32c(&bad[..36]);
        bad[36..40].copy_from_slice(&crc.to_le_bytes());
        std::fs::write(&path, &bad).unwrap();
        let left = read(&path, 3).unwrap().unwrap();
        assert!(left.is_of_another_boot);
        assert_eq!(left.records, records[..3]);
        bad[0] ^= 1;
        std::fs::write(&path, &bad).unwrap();
        assert!(read(&path, 3).is_err());
    }
}

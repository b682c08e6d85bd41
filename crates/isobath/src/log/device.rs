//! The headers of a log on a device of its own.
//!
//! Its first 64 KiB hold two headers, the log's area follows. They name the
//! store, and count its openings for writing as the superblocks do: so the store
//! recognises a foreign device, and one that an older or a younger copy of the
//! store has left. An opening is counted in the first header before the
//! superblocks, and in the second one after them: if they differ, it was cut off
//! in between.
//!
//! ```text
//! header:  0   8 magic "ISOBLOG" and a zero byte
//!          8 u32 version, 1
//!         12 u32 CRC-32C of the 4096 bytes with this field zero
//!         16  16 the store's id
//!         32 u64 bytes of the area
//!         40 u32 open epoch: openings for writing, the newest included
//!         44     zeros up to 4096
//! ```

use std::fs::File;
use std::io;
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt;

use isobath_io::{IoError, LOG_OFFSET, Volume};

use crate::page::{PAGE_SIZE, get_u32, get_u64, put_u32, put_u64};

/// Bytes in front of the area.
pub(crate) const DEVICE_HEADER_BYTES: u64 = 64 << 10;
/// Offsets of the two headers.
const PLACES: [u64; 2] = [0, 32 << 10];
const MAGIC: &[u8; 8] = b"ISOBLOG\0";
/// The version of the header that this engine writes.
pub(crate) const DEVICE_VERSION: u32 = 1;
const CHECKSUM: usize = 12;

/// The header of a log device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DeviceHeader {
    /// The store that it belongs to.
    pub(crate) store_id: [u8; 16],
    /// Bytes of the area.
    pub(crate) area_bytes: u64,
    /// Openings of the store for writing, the newest included.
    pub(crate) open_epoch: u32,
}

/// Why a device has no header to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HeaderError {
    /// Nothing of ours.
    Foreign,
    /// Ours, but no copy is intact.
    Corrupt,
    /// Of a newer version.
    Newer(u32),
}

/// Whether `file` says that it is a log device; a corrupt header counts.
///
/// # Errors
///
/// Those of reading it.
pub(crate) fn is_log_device(file: &File) -> io::Result<bool> {
    for place in PLACES {
        let mut magic = [0; MAGIC.len()];
        match file.read_exact_at(&mut magic, place) {
            Ok(()) if &magic == MAGIC => return Ok(true),
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(e) => return Err(e),
        }
    }
    Ok(false)
}

impl DeviceHeader {
    fn encode(&self) -> [u8; PAGE_SIZE] {
        let mut bytes = [0; PAGE_SIZE];
        bytes[..8].copy_from_slice(MAGIC);
        put_u32(&mut bytes, 8, DEVICE_VERSION);
        bytes[16..32].copy_from_slice(&self.store_id);
        put_u64(&mut bytes, 32, self.area_bytes);
        put_u32(&mut bytes, 40, self.open_epoch);
        let sum = checksum(&bytes);
        put_u32(&mut bytes, CHECKSUM, sum);
        bytes
    }

    fn decode(bytes: &[u8; PAGE_SIZE]) -> Result<DeviceHeader, HeaderError> {
        if &bytes[..8] != MAGIC {
            return Err(HeaderError::Foreign);
        }
        if checksum(bytes) != get_u32(bytes, CHECKSUM) {
            return Err(HeaderError::Corrupt);
        }
        let version = get_u32(bytes, 8);
        if version > DEVICE_VERSION {
            return Err(HeaderError::Newer(version));
        }
        let mut store_id = [0; 16];
        store_id.copy_from_slice(&bytes[16..32]);
        Ok(DeviceHeader {
            store_id,
            area_bytes: get_u64(bytes, 32),
            open_epoch: get_u32(bytes, 40),
        })
    }

    /// Writes the first header, durably: an opening begins.
    ///
    /// # Errors
    ///
    /// Any of the volume's.
    pub(crate) fn announce(&self, volume: &Volume) -> Result<(), IoError> {
        self.write(volume, PLACES[0])
    }

    /// Writes the second one, durably: the superblocks say so too.
    ///
    /// # Errors
    ///
    /// Any of the volume's.
    pub(crate) fn confirm(&self, volume: &Volume) -> Result<(), IoError> {
        self.write(volume, PLACES[1])
    }

    fn write(&self, volume: &Volume, place: u64) -> Result<(), IoError> {
        volume.write_at(LOG_OFFSET + place, &self.encode())?;
        volume.sync()
    }

    /// Reads what the volume's log device says of itself, and which open epochs the
    /// superblocks of its store may have: what both headers say, something in between
    /// after an opening that was cut off, or about what the only sound one says.
    ///
    /// # Errors
    ///
    /// Any of the volume's. The inner one says why there is no header.
    pub(crate) fn read(volume: &Volume) -> Result<Result<Found, HeaderError>, IoError> {
        let mut headers = [Err(HeaderError::Foreign); 2];
        for (header, place) in headers.iter_mut().zip(PLACES) {
            if place + PAGE_SIZE as u64 > volume.log_len() {
                continue;
            }
            let mut bytes = [0; PAGE_SIZE];
            volume.read_at(LOG_OFFSET + place, &mut bytes)?;
            *header = DeviceHeader::decode(&bytes);
        }
        Ok(match headers {
            [Ok(first), Ok(second)] => {
                let (a, b) = (first.open_epoch, second.open_epoch);
                Ok((first, a.min(b)..=a.max(b)))
            }
            [Ok(only), Err(_)] | [Err(_), Ok(only)] => {
                let open_epoch = only.open_epoch;
                Ok((only, open_epoch.saturating_sub(1)..=open_epoch + 1))
            }
            [Err(HeaderError::Foreign), Err(error)] | [Err(error), Err(_)] => Err(error),
        })
    }
}

/// A header, and the open epochs that its store's superblocks may have.
pub(crate) type Found = (DeviceHeader, RangeInclusive<u32>);

fn checksum(bytes: &[u8; PAGE_SIZE]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..CHECKSUM]), &bytes[CHECKSUM + 4..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use isobath_io::{FaultDevice, FaultPlan};

    fn header(open_epoch: u32) -> DeviceHeader {
        DeviceHeader {
            store_id: *b"0123456789abcdef",
            area_bytes: 4 << 20,
            open_epoch,
        }
    }

    #[test]
    fn every_flipped_byte_is_noticed() {
        let mut bytes = header(7).encode();
        assert_eq!(DeviceHeader::decode(&bytes), Ok(header(7)));
        for at in 0..PAGE_SIZE {
            bytes[at] ^= 1;
            assert!(DeviceHeader::decode(&bytes).is_err(), "byte {at}");
            bytes[at] ^= 1;
        }
        put_u32(&mut bytes, 8, 2);
        let sum = checksum(&bytes);
        put_u32(&mut bytes, CHECKSUM, sum);
        assert_eq!(DeviceHeader::decode(&bytes), Err(HeaderError::Newer(2)));
    }

    #[test]
    fn one_sound_header_is_enough_and_an_opening_may_be_cut_off() {
        let device = FaultDevice::new(0, FaultPlan::new(1).log_bytes(1 << 20));
        let volume = Volume::from_device(device.clone());
        let read = || DeviceHeader::read(&volume).unwrap();
        assert_eq!(read(), Err(HeaderError::Foreign));
        header(1).announce(&volume).unwrap();
        header(1).confirm(&volume).unwrap();
        assert_eq!(read(), Ok((header(1), 1..=1)));
        let corrupt_copy = |place: u64| {
            let at = LOG_OFFSET + place + 40;
            device.corrupt(at..at + 1, |bytes| bytes[0] ^= 4);
        };
        for place in PLACES {
            corrupt_copy(place);
            assert_eq!(read(), Ok((header(1), 0..=2)));
            corrupt_copy(place);
        }
        header(2).announce(&volume).unwrap();
        assert_eq!(read(), Ok((header(2), 1..=2)));
        header(3).announce(&volume).unwrap();
        assert_eq!(read(), Ok((header(3), 1..=3)));
        header(3).confirm(&volume).unwrap();
        assert_eq!(read(), Ok((header(3), 3..=3)));
        PLACES.into_iter().for_each(corrupt_copy);
        assert_eq!(read(), Err(HeaderError::Corrupt));
    }
}

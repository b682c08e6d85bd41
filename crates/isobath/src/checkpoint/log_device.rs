//! Finds the log by the superblock: in the volume, or on a device of its own, which is checked.

use std::path::{Path, PathBuf};

use isobath_io::{LOG_OFFSET, Volume, VolumeError};

use super::{MAX_PATH_BYTES, Superblock};
use crate::error::{OpenError, StorageError};
use crate::log::{DEVICE_HEADER_BYTES, DEVICE_VERSION, DeviceHeader, HeaderError, LogArea};
use crate::paths::{in_real_directory, real};

/// The area on a log device.
fn device_area(bytes: u64) -> Option<LogArea> {
    LogArea::new(0, [(LOG_OFFSET + DEVICE_HEADER_BYTES, bytes)])
}

/// The log's area of a store, if it has one: in the volume, or on a device of its own.
pub(crate) fn log_area(superblock: &Superblock) -> Option<LogArea> {
    match superblock.log_device_bytes {
        0 => superblock.log.clone(),
        bytes => device_area(bytes),
    }
}

/// Bytes that a log device has for the log itself.
pub(crate) fn area_bytes(volume: &Volume) -> u64 {
    volume.log_len().saturating_sub(DEVICE_HEADER_BYTES)
}

fn header_of(superblock: &Superblock) -> DeviceHeader {
    DeviceHeader {
        store_id: superblock.store_id,
        area_bytes: superblock.log_device_bytes,
        open_epoch: superblock.open_epoch,
    }
}

/// Writes to the log device, if there is one, which store it belongs to and in which opening it
/// is used. Called before the superblocks say so.
///
/// # Errors
///
/// Any of the volume's.
pub(crate) fn announce(volume: &Volume, superblock: &Superblock) -> Result<(), StorageError> {
    if superblock.log_device_bytes == 0 {
        return Ok(());
    }
    header_of(superblock)
        .announce(volume)
        .map_err(StorageError::Io)
}

/// The same once more, when the superblocks say so too.
///
/// # Errors
///
/// Any of the volume's.
pub(crate) fn confirm(volume: &Volume, superblock: &Superblock) -> Result<(), StorageError> {
    if superblock.log_device_bytes == 0 {
        return Ok(());
    }
    header_of(superblock)
        .confirm(volume)
        .map_err(StorageError::Io)
}

/// The log's path of a store, from its superblock and the paths of its files; `None` without a
/// path.
pub(crate) fn log_path(noted: &Path, paths: &[PathBuf]) -> Option<PathBuf> {
    let is_noted = !noted.as_os_str().is_empty();
    is_noted.then(|| directory(paths).join(noted))
}

/// The same; words for a message instead if there is no path.
fn place_of(superblock: &Superblock, paths: &[PathBuf]) -> PathBuf {
    log_path(&superblock.log_path, paths).unwrap_or_else(|| PathBuf::from("a log device"))
}

/// The real directory of the store's first file.
fn directory(paths: &[PathBuf]) -> PathBuf {
    let first = paths.first().map(|first| real(first));
    let directory = first.as_deref().and_then(Path::parent);
    directory.map(Path::to_owned).unwrap_or_default()
}

/// How a superblock names the log at `path`: relative to the directory of the
/// store's first file where it lies below that, so that both can be moved together.
///
/// # Errors
///
/// [`OpenError::BadOption`] for a path that is too long.
fn name_of(path: &Path, paths: &[PathBuf]) -> Result<PathBuf, OpenError> {
    let bad = |reason: String| OpenError::BadOption {
        option: "log_path",
        reason,
    };
    let absolute = in_real_directory(path);
    let below = absolute.strip_prefix(directory(paths)).map(Path::to_owned);
    let name = below.unwrap_or(absolute);
    if name.as_os_str().len() > MAX_PATH_BYTES {
        return Err(bad(format!(
            "a path of at most {MAX_PATH_BYTES} bytes, not {}",
            name.as_os_str().len()
        )));
    }
    Ok(name)
}

/// Makes the log device of a new store on `volume`, of `bytes` bytes for the
/// log: what its superblock has to say of the path.
///
/// # Errors
///
/// Any of the volume's; [`OpenError::BadOption`].
pub(crate) fn create_log(
    volume: &Volume,
    paths: &[PathBuf],
    path: &Path,
    bytes: u64,
) -> Result<PathBuf, OpenError> {
    let name = name_of(path, paths)?;
    volume.create_log(path, DEVICE_HEADER_BYTES + bytes)?;
    Ok(name)
}

/// Opens the log device of the store whose superblock this is, if it has one: at
/// `given`, or else where the superblock says. The place is noted in
/// the superblock.
///
/// # Errors
///
/// [`OpenError::LogMissing`], [`OpenError::NoSeparateLog`], or any of the volume's.
pub(crate) fn open_log(
    volume: &Volume,
    superblock: &mut Superblock,
    paths: &[PathBuf],
    given: Option<&Path>,
) -> Result<(), OpenError> {
    if superblock.log_device_bytes == 0 {
        return match given {
            None => Ok(()),
            Some(path) => Err(OpenError::NoSeparateLog {
                paths: paths.to_vec(),
                path: path.to_owned(),
            }),
        };
    }
    if volume.log_len() > 0 {
        // A volume that is not made of files has it already.
        return Ok(());
    }
    let path = given.map_or_else(|| place_of(superblock, paths), Path::to_owned);
    volume.open_log(&path).map_err(|error| match error {
        VolumeError::NotFound { .. } | VolumeError::LogRefused { .. } => OpenError::LogMissing {
            paths: paths.to_vec(),
            path: path.clone(),
        },
        other => other.into(),
    })?;
    if volume.log_len() == 0 {
        let paths = paths.to_vec();
        return Err(OpenError::NotALog { paths, path });
    }
    superblock.log_path = name_of(&path, paths)?;
    Ok(())
}

/// Whether the log device of `volume`, where its store has one, is that of this
/// superblock.
///
/// # Errors
///
/// What is wrong with it.
pub(crate) fn verify(
    volume: &Volume,
    superblock: &Superblock,
    paths: &[PathBuf],
) -> Result<(), OpenError> {
    if superblock.log_device_bytes == 0 {
        return Ok(());
    }
    let path = place_of(superblock, paths);
    let paths = paths.to_vec();
    if volume.log_len() == 0 {
        return Err(OpenError::LogMissing { paths, path });
    }
    let (header, openings) = match DeviceHeader::read(volume).map_err(StorageError::Io)? {
        Ok(found) => found,
        Err(HeaderError::Foreign) => return Err(OpenError::NotALog { paths, path }),
        Err(HeaderError::Corrupt) => return Err(OpenError::LogHeaderCorrupt { path }),
        Err(HeaderError::Newer(found)) => {
            return Err(OpenError::NewerFormat {
                paths: vec![path],
                found,
                known: DEVICE_VERSION,
            });
        }
    };
    if header.store_id != superblock.store_id {
        return Err(OpenError::LogOfOtherStore { paths, path });
    }
    let (log, store) = (header.open_epoch, superblock.open_epoch);
    if !openings.contains(&store) || header.area_bytes != superblock.log_device_bytes {
        return Err(OpenError::LogOutOfStep {
            paths,
            path,
            log,
            store,
        });
    }
    let expected = DEVICE_HEADER_BYTES + superblock.log_device_bytes;
    if volume.log_len() < expected {
        return Err(OpenError::LogTruncated {
            path,
            found: volume.log_len(),
            expected,
        });
    }
    Ok(())
}

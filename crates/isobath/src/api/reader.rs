//! Opening for reading: beside a writer in another process, after one that was killed, or a store
//! that was closed.
//!
//! A store that was closed is read as it is. For any other one the log is kept in memory and
//! replayed there, by an ordinary recovery on a volume that takes all writes into memory; what
//! results is read like a store that was closed.

use std::path::PathBuf;

use isobath_io::{IoErrorKind, Volume, VolumeError};

use crate::Options;
use crate::api::store::Store;
use crate::checkpoint::Superblock;
use crate::engine::Engine;
use crate::error::{Error, OpenError, StorageError};
use crate::page::Lsn;
use crate::shared::Counters;
use crate::{checkpoint, recovery};

/// Openings that are tried while a writer overtakes each: it uses the log's space again, or a place
/// that was to be read.
const ATTEMPTS: u32 = 10;
/// Most bytes of replayed pages kept in memory; the rest goes to a temporary file.
const MEMORY_BYTES: u64 = 64 << 20;

/// Opens the store for reading on the volume that `volume` answers, again for each attempt.
///
/// # Errors
///
/// As for [`Store::open`]; [`Error::ReaderOverrun`] if a writer overtakes every attempt.
pub(crate) fn open(
    volume: impl Fn() -> Result<Volume, OpenError>,
    paths: &[PathBuf],
    options: &Options,
) -> Result<Store, OpenError> {
    let mut attempt = 1;
    loop {
        let volume = volume()?;
        let superblock = recovery::pin_newest(&volume, paths)?;
        let (sequence, is_closed) = (superblock.sequence, superblock.clean);
        let error = match open_at(&volume, superblock, paths, options) {
            Ok(store) => return Ok(store),
            Err(error) => error,
        };
        let newest = recovery::read_superblock(&volume, paths);
        let has_moved = newest.is_ok_and(|newest| newest.sequence != sequence);
        // A store that was closed needs no recovery: what its log says more comes from a writer
        // that has opened it since.
        let is_opened = is_closed && matches!(error, OpenError::NeedsRecovery { .. });
        let is_overtaken = may_be_overtaken(&error.clone().into()) || is_opened;
        if !is_overtaken || !has_moved && !volume.has_writer() {
            return Err(error);
        }
        if attempt == ATTEMPTS {
            // Where no superblock was written since the log and the checkpoint were left as they
            // are.
            return Err(match has_moved {
                true => StorageError::ReaderOverrun {
                    paths: paths.to_vec(),
                }
                .into(),
                false => error,
            });
        }
        attempt += 1;
    }
}

/// Whether a writer that goes on may be the reason of an error.
fn may_be_overtaken(error: &Error) -> bool {
    match error {
        Error::Poisoned { cause } => may_be_overtaken(cause),
        Error::ReaderOverrun { .. }
        | Error::CorruptPage { .. }
        | Error::Structure { .. }
        | Error::PageRead { .. }
        | Error::Truncated { .. }
        | Error::LogCorrupt { .. }
        | Error::UnknownLogRecord { .. }
        | Error::LogOutOfStep { .. }
        | Error::LogHeaderCorrupt { .. }
        | Error::LogTruncated { .. } => true,
        Error::Io(source) => source.kind() != IoErrorKind::NoSpace,
        _ => false,
    }
}

/// Opens the state that `superblock` and its log make up.
fn open_at(
    volume: &Volume,
    mut superblock: Superblock,
    paths: &[PathBuf],
    options: &Options,
) -> Result<Store, OpenError> {
    let given = options.log_path.as_deref();
    checkpoint::open_log(volume, &mut superblock, paths, given)?;
    let closed_at = Lsn(superblock.log_start);
    if superblock.clean {
        let store = Store::open_with(volume.clone(), superblock, paths, options)?;
        let opening = &engine_of(&store)?.opening;
        opening.reads_beside(volume.clone(), paths, None, closed_at);
        return Ok(store);
    }
    if !superblock.is_logged() {
        return Err(unlogged(volume, paths));
    }
    let overlay = recovery::overlay(volume.clone(), MEMORY_BYTES);
    let reached = recovery::keep_log(&overlay, &superblock, paths)?;
    let over = Volume::from_device(overlay);
    let replayed = replay(&over, paths, options);
    let (bytes, took) = replayed.map_err(|error| match lacks_room(&error.clone().into()) {
        true => OpenError::NeedsRecovery {
            paths: paths.to_vec(),
        },
        false => error,
    })?;
    let superblock = recovery::read_superblock(&over, paths)?;
    let store = Store::open_with(over, superblock, paths, options)?;
    let engine = engine_of(&store)?;
    engine
        .opening
        .reads_beside(volume.clone(), paths, Some(reached), closed_at);
    Counters::add(&engine.shared.counters.recovered_bytes, bytes);
    Counters::add(&engine.shared.counters.recovery_ns, took);
    Ok(store)
}

fn engine_of(store: &Store) -> Result<&Engine, StorageError> {
    store.runtime().engine().map(|engine| &**engine)
}

/// Recovers the store on `over` and closes it; bytes of the log, and nanoseconds.
fn replay(over: &Volume, paths: &[PathBuf], options: &Options) -> Result<(u64, u64), OpenError> {
    let writing = options
        .clone()
        .read_only(false)
        .publish_stats(false)
        .volume_limit_bytes(None);
    let superblock = recovery::read_superblock(over, paths)?;
    let store = Store::open_with(over.clone(), superblock, paths, &writing)?;
    let stats = store.stats();
    store.close_opened()?;
    Ok((stats.recovered_log_bytes, stats.recovery_ns))
}

/// Whether the replayed pages did not fit into memory and temporary files.
///
/// [`Error::Memory`] is something else: tables, stacks and threads, which a writer needs as well.
fn lacks_room(error: &Error) -> bool {
    match error {
        Error::Poisoned { cause } => lacks_room(cause),
        Error::VolumeFull { .. } => true,
        Error::Io(source) => {
            let no_memory = IoErrorKind::Os(libc::ENOMEM);
            [IoErrorKind::NoSpace, no_memory].contains(&source.kind())
        }
        _ => false,
    }
}

/// Why a store without a log that is not closed cannot be read.
fn unlogged(volume: &Volume, paths: &[PathBuf]) -> OpenError {
    match (volume.has_writer(), paths.first()) {
        (true, Some(path)) => OpenError::from(VolumeError::Locked {
            path: path.clone(),
            pid: None,
            writer: true,
            advice: "it keeps no log, so that other processes can read it only once it is closed there",
        }),
        _ => OpenError::NotClosedCleanly {
            paths: paths.to_vec(),
        },
    }
}

/// Whether the store on `paths` was left open: its next writer recovers it.
///
/// # Errors
///
/// As for [`Store::open`].
pub(crate) fn needs_recovery(paths: &[PathBuf], options: &Options) -> Result<bool, OpenError> {
    let options = options.clone().read_only(true);
    let volume = Volume::open(paths, &options.volume_options())?;
    Ok(!recovery::read_superblock(&volume, paths)?.clean)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use isobath_io::{IoError, Op};

    #[test]
    fn a_lack_of_space_is_not_reported_as_corruption() {
        let io = |kind| Error::Io(IoError::new(kind, Op::Write, 0, 1));
        let poisoned = |cause| Error::Poisoned {
            cause: Arc::new(cause),
        };
        assert!(lacks_room(&poisoned(io(IoErrorKind::NoSpace))));
        assert!(lacks_room(&io(IoErrorKind::Os(libc::ENOMEM))));
        assert!(!lacks_room(&io(IoErrorKind::Media)));
        assert!(!lacks_room(&Error::Memory {
            what: "the buffer pool",
            source: Arc::new(std::io::ErrorKind::OutOfMemory.into()),
        }));
        assert!(may_be_overtaken(&poisoned(io(IoErrorKind::OutOfRange))));
        assert!(!may_be_overtaken(&io(IoErrorKind::NoSpace)));
    }
}

//! The drive's own limit, reported with every rate of an engine.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use isobath_io::AlignedBuf;

use crate::raw::{self, RawPlan, RawTarget};
use crate::{LabError, Monitor, Stage, Unit};

/// The drive's limit of random 4 KiB reads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DriveLimit {
    pub(crate) reads_per_s: f64,
    /// CPU time per read, user and system, in microseconds.
    pub(crate) cpu_us_per_read: f64,
}

/// Random 4 KiB reads of `files`, as they are, `depth` in flight from
/// `threads` threads.
///
/// Several files are read like a striped volume, which ends where the shortest
/// of them does; files shorter than half the longest are therefore left out.
pub(crate) fn random_reads(
    files: &[PathBuf],
    depth: u32,
    threads: u32,
    duration: Duration,
    monitor: &dyn Monitor,
) -> Result<DriveLimit, LabError> {
    let length = |path: &PathBuf| std::fs::metadata(path).map_or(0, |meta| meta.len());
    let longest = files.iter().map(length).max().unwrap_or(0);
    let plan = RawPlan {
        target: RawTarget::Files(
            files
                .iter()
                .filter(|path| length(path) >= longest / 2)
                .take(isobath_io::MAX_MEMBERS)
                .cloned()
                .collect(),
        ),
        threads,
        depth: depth.div_ceil(threads),
        prepare: false,
        duration_ms: u32::try_from(duration.as_millis()).unwrap_or(u32::MAX),
        ..RawPlan::default()
    };
    let result = raw::run(&plan, monitor)?;
    Ok(DriveLimit {
        reads_per_s: result.reads_per_s,
        cpu_us_per_read: result.cpu_us_per_io,
    })
}

/// Bytes per read of [`warm`].
const PIECE: usize = 2 << 20;
/// Threads of [`warm`].
const READERS: usize = 4;

/// Reads `files` once in full, past the page cache: hosts of virtual drives
/// cache recent reads, so cold and warm files cannot be compared.
pub(crate) fn warm(files: &[PathBuf], monitor: &dyn Monitor) -> Result<(), LabError> {
    let mut pieces = Vec::new();
    for path in files {
        let bytes = std::fs::metadata(path)
            .map_err(LabError::io("read", path))?
            .len();
        pieces.extend((0..bytes).step_by(PIECE).map(|at| (path.as_path(), at)));
    }
    monitor.begin(Stage {
        name: "reading in full",
        total: Some(pieces.len() as u64 * PIECE as u64),
        unit: Unit::Bytes,
    });
    pieces.reverse();
    let pieces = Mutex::new(pieces);
    let next = || {
        pieces
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .pop()
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS)
            .map(|_| {
                scope.spawn(|| {
                    let mut buffer = AlignedBuf::new(PIECE);
                    while let Some((path, at)) = next() {
                        monitor.check()?;
                        read_piece(path, at, &mut buffer)?;
                        monitor.advance(PIECE as u64);
                    }
                    Ok(())
                })
            })
            .collect();
        readers.into_iter().try_for_each(|reader| {
            reader
                .join()
                .unwrap_or_else(|_| Err(LabError::Verify("a reading thread panicked".into())))
        })
    })
}

fn read_piece(path: &Path, at: u64, buffer: &mut AlignedBuf) -> Result<(), LabError> {
    use std::os::unix::fs::FileExt;
    let direct = rustix::fs::OFlags::DIRECT.bits();
    let open = |flags| OpenOptions::new().read(true).custom_flags(flags).open(path);
    let read = open(direct as i32)
        .and_then(|file| file.read_at(buffer.as_mut_slice(), at))
        .or_else(|_| open(0).and_then(|file| file.read_at(buffer.as_mut_slice(), at)));
    read.map(drop).map_err(LabError::io("read", path))
}

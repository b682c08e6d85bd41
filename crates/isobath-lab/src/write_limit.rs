//! The drive's own limit of writes, reported with the rates of engines that write.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use isobath_io::{Volume, VolumeOptions};
use serde::{Deserialize, Serialize};

use crate::raw::{self, RawPlan, RawTarget, Scratch};
use crate::read_limit::{self, DriveLimit};
use crate::{LabError, Monitor, free_space};

/// Bytes of the file that is written to: as many as the engine's data, within these.
const FILE_MIN: u64 = 16 << 20;
const FILE_MAX: u64 = 256 << 20;
/// Bytes of a sequential write.
const SEQUENTIAL_BYTES: u32 = 128 << 10;
/// Sequential writes in flight at most.
const SEQUENTIAL_DEPTH: u32 = 16;
/// Kinds of writes, which share the time.
const KINDS: u32 = 4;
/// How long each kind runs before it is measured.
const WARM_UP_MS: u32 = 50;
/// A part in which no write ends is measured again for longer, up to this.
const MAX_PART_MS: u32 = 2_000;

/// The drive's limit of writes, in a file next to the engine's that was written in full before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WriteLimit {
    /// Random writes of 4 KiB per second.
    pub random_writes_per_s: f64,
    /// The same, each flushed before it counts.
    pub random_flushed_writes_per_s: f64,
    /// Sequential writes of 128 KiB, megabytes (10^6 bytes) per second.
    pub sequential_mb_per_s: f64,
    /// The same, each flushed before it counts.
    pub sequential_flushed_mb_per_s: f64,
    /// Random writes in flight, all threads together; sequential ones are at most 16.
    pub depth: u32,
    /// Threads that write at random.
    pub threads: u32,
    /// Bytes of the file.
    pub file_bytes: u64,
}

/// A file beside `engine`, which is an engine's file or directory: on the same file system, and so
/// in the same region; written in full. `None` if the engine is a block device, which nothing
/// else may write to, or there is too little space.
fn scratch_beside(
    engine: &Path,
    data_bytes: u64,
    monitor: &dyn Monitor,
) -> Result<Option<(Volume, Scratch, u64)>, LabError> {
    let is_device = std::fs::metadata(engine).is_ok_and(|meta| meta.file_type().is_block_device());
    let bytes = data_bytes.clamp(FILE_MIN, FILE_MAX) / 4096 * 4096;
    if is_device || free_space(engine)?.available_bytes < bytes.saturating_mul(2) {
        return Ok(None);
    }
    let path = file_beside(engine);
    let volume = Volume::create(std::slice::from_ref(&path), &VolumeOptions::new())
        .map_err(raw::RawError::from)?;
    let scratch = Scratch::of(path);
    volume.grow(bytes).map_err(raw::RawError::from)?;
    raw::fill(&volume, bytes, 1, monitor)?;
    Ok(Some((volume, scratch, bytes)))
}

/// The file beside an engine's in which the drive's own limit is measured.
pub(crate) fn file_beside(engine: &Path) -> PathBuf {
    let mut path = engine.as_os_str().to_owned();
    path.push(".write-limit");
    PathBuf::from(path)
}

/// The drive's own limit of reads in a file beside `engine`, for engines whose files are too short
/// to be read for it.
pub(crate) fn reads_beside(
    engine: &Path,
    data_bytes: u64,
    depth: u32,
    threads: u32,
    duration: Duration,
    monitor: &dyn Monitor,
) -> Result<Option<DriveLimit>, LabError> {
    let Some((volume, scratch, _)) = scratch_beside(engine, data_bytes, monitor)? else {
        return Ok(None);
    };
    drop(volume);
    read_limit::warm(scratch.paths(), monitor)?;
    read_limit::random_reads(scratch.paths(), depth, threads, duration, monitor).map(Some)
}

/// Writes to a file beside `engine`.
pub(crate) fn measure(
    engine: &Path,
    data_bytes: u64,
    depth: u32,
    threads: u32,
    duration: Duration,
    monitor: &dyn Monitor,
) -> Result<Option<WriteLimit>, LabError> {
    let Some((volume, scratch, bytes)) = scratch_beside(engine, data_bytes, monitor)? else {
        return Ok(None);
    };
    let ms = u32::try_from(duration.as_millis()).unwrap_or(u32::MAX) / KINDS;
    let random = RawPlan {
        target: RawTarget::Volume(volume),
        bytes: Some(bytes),
        read_percent: 0,
        threads,
        depth: depth.div_ceil(threads),
        prepare: false,
        warmup_ms: WARM_UP_MS,
        duration_ms: ms.max(1),
        ..RawPlan::default()
    };
    let sequential = RawPlan {
        page_bytes: SEQUENTIAL_BYTES,
        random_percent: 0,
        threads: 1,
        depth: SEQUENTIAL_DEPTH.min(depth),
        ..random.clone()
    };
    let flushed = |plan: &RawPlan| RawPlan {
        durable: true,
        ..plan.clone()
    };
    // A part of a short run may pass while the system runs something else: nothing that has ended
    // is no limit.
    let run = |plan: &RawPlan| {
        let mut plan = plan.clone();
        loop {
            let result = raw::run(&plan, monitor)?;
            if result.writes_per_s > 0.0 || plan.duration_ms >= MAX_PART_MS {
                return Ok::<_, LabError>(result);
            }
            plan.duration_ms *= 2;
        }
    };
    let limit = WriteLimit {
        random_writes_per_s: run(&random)?.writes_per_s,
        random_flushed_writes_per_s: run(&flushed(&random))?.writes_per_s,
        sequential_mb_per_s: run(&sequential)?.mb_per_s,
        sequential_flushed_mb_per_s: run(&flushed(&sequential))?.mb_per_s,
        depth: random.depth * threads,
        threads,
        file_bytes: bytes,
    };
    drop(scratch);
    Ok(Some(limit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Silent;

    #[test]
    fn reads_are_measured_beside_engines_of_many_files() {
        let place = tempfile::tempdir().unwrap();
        let engine = place.path().join("engine");
        std::fs::create_dir(&engine).unwrap();
        let time = Duration::from_millis(80);
        let found = reads_beside(&engine, 1, 8, 2, time, &Silent)
            .unwrap()
            .unwrap();
        assert!(
            found.reads_per_s > 0.0 && found.cpu_us_per_read > 0.0,
            "{found:?}"
        );
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
    }

    #[test]
    fn writes_of_all_kinds_are_measured_and_nothing_is_left() {
        let place = tempfile::tempdir().unwrap();
        let engine = place.path().join("engine");
        let limit = || measure(&engine, 1, 8, 2, Duration::from_millis(80), &Silent);
        let found = limit().unwrap().unwrap();
        assert_eq!(
            (found.file_bytes, found.depth, found.threads),
            (FILE_MIN, 8, 2)
        );
        let rates = [
            found.random_writes_per_s,
            found.random_flushed_writes_per_s,
            found.sequential_mb_per_s,
            found.sequential_flushed_mb_per_s,
        ];
        assert!(rates.iter().all(|rate| *rate > 0.0), "{found:?}");
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
        // An existing file is not written to, and stays.
        let there = place.path().join("engine.write-limit");
        std::fs::write(&there, "mine").unwrap();
        let error = limit().unwrap_err().to_string();
        assert!(error.contains("engine.write-limit"), "{error}");
        assert_eq!(std::fs::read(&there).unwrap(), b"mine");
    }
}

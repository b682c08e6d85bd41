//! What the drive gives in these minutes to I/O as RocksDB does it: threads that wait for one read or write each, and large
//! writes into new files.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

use isobath_flash::rng::Rng;
use isobath_io::{AlignedBuf, HUGE_PAGE};
use isobath_model::advise::ThreadedIo;
use rustix::fs::{FallocateFlags, OFlags, fallocate};

use super::{BLOCK_BYTES, on_threads};
use crate::LabError;

/// Bytes of a large read or write, as compactions have them.
const LARGE_BYTES: u64 = 1 << 20;
/// Random reads of all threads together.
const READS: u32 = 100_000;

/// Measures with files of `bytes` together in `directory`, which are removed: large writes and reads by `jobs` threads, random reads
/// of a block by `threads`. A drive may be faster within fewer bytes.
///
/// # Errors
/// [`LabError::Io`].
pub(crate) fn threaded_io(
    directory: &Path,
    bytes: u64,
    threads: u32,
    jobs: u32,
) -> Result<ThreadedIo, LabError> {
    let place = directory.join(format!("isobath-drive-{}", std::process::id()));
    std::fs::create_dir(&place).map_err(LabError::io("create", &place))?;
    let (threads, jobs) = (threads.max(1), jobs.max(1));
    let pieces = (bytes / u64::from(jobs) / LARGE_BYTES).max(1);
    let rates = measure(&place, pieces, threads, jobs);
    std::fs::remove_dir_all(&place).map_err(LabError::io("remove", &place))?;
    rates
}

/// With a file of so many large pieces for each job.
fn measure(place: &Path, pieces: u64, threads: u32, jobs: u32) -> Result<ThreadedIo, LabError> {
    let path = |job: u32| place.join(job.to_string());
    let large_pages = f64::from(jobs) * (pieces * LARGE_BYTES / 4096) as f64;
    let written_s = seconds(jobs, |job| large_writes(&path(job), pieces))?;
    let read_s = seconds(jobs, |job| large_reads(&path(job), pieces))?;
    let each = READS.div_ceil(threads);
    let random_s = seconds(threads, |thread| {
        random_reads(&path(thread % jobs), pieces, u64::from(thread), each)
    })?;
    Ok(ThreadedIo {
        threads,
        read_us: random_s * 1e6 / f64::from(each * threads),
        jobs,
        large_written_page_us: written_s * 1e6 / large_pages,
        large_read_page_us: read_s * 1e6 / large_pages,
    })
}

/// How long `count` threads take together.
fn seconds(
    count: u32,
    run: impl Fn(u32) -> Result<(), LabError> + Copy + Send,
) -> Result<f64, LabError> {
    let began = Instant::now();
    on_threads(count, run)?;
    Ok(began.elapsed().as_secs_f64())
}

/// A file that is read and written past the page cache.
fn open(path: &Path) -> Result<File, LabError> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    options
        .custom_flags(OFlags::DIRECT.bits().cast_signed())
        .open(path)
        .map_err(LabError::io("open", path))
}

fn large_writes(path: &Path, pieces: u64) -> Result<(), LabError> {
    let file = open(path)?;
    let mut buffer = AlignedBuf::new(HUGE_PAGE);
    let piece = &mut buffer.as_mut_slice()[..LARGE_BYTES as usize];
    piece.fill(1);
    let failed = LabError::io("write", path);
    let write = || -> std::io::Result<()> {
        fallocate(&file, FallocateFlags::KEEP_SIZE, 0, pieces * LARGE_BYTES)?;
        for n in 0..pieces {
            file.write_all_at(piece, n * LARGE_BYTES)?;
        }
        file.sync_data()
    };
    write().map_err(failed)
}

fn large_reads(path: &Path, pieces: u64) -> Result<(), LabError> {
    let file = open(path)?;
    let mut buffer = AlignedBuf::new(HUGE_PAGE);
    let piece = &mut buffer.as_mut_slice()[..LARGE_BYTES as usize];
    piece.fill(1);
    for n in 0..pieces {
        file.read_exact_at(piece, n * LARGE_BYTES)
            .map_err(LabError::io("read", path))?;
    }
    Ok(())
}

fn random_reads(path: &Path, pieces: u64, seed: u64, count: u32) -> Result<(), LabError> {
    let file = open(path)?;
    let mut buffer = AlignedBuf::new(BLOCK_BYTES);
    let mut rng = Rng::new(seed);
    let blocks = (pieces * LARGE_BYTES / BLOCK_BYTES as u64) as u32;
    for _ in 0..count {
        let at = u64::from(rng.below(blocks)) * BLOCK_BYTES as u64;
        file.read_exact_at(buffer.as_mut_slice(), at)
            .map_err(LabError::io("read", path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rate_is_measured_and_no_file_stays() {
        let directory = tempfile::TempDir::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let io = threaded_io(directory.path(), 16 << 20, 4, 2).unwrap();
        assert_eq!((io.threads, io.jobs), (4, 2));
        for us in [io.read_us, io.large_written_page_us, io.large_read_page_us] {
            assert!(us > 0.0 && us.is_finite(), "{io:?}");
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}

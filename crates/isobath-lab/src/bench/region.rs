//! One region of a drive for all engines in turn.
//!
//! A virtual drive may serve one file at twice the rate of another (docs/benchmarks.md), so a
//! comparison of engines that each write a file of their own compares files. Here every run writes
//! to the same blocks: a file that is written in full once, with a loop device over it and a file
//! system that is newly made for each run.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use isobath::OutputFile;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::files::locked;
use crate::system::{attach_loop, lacks_for_loop_devices, run};
use crate::{LabError, Monitor, Stage, Unit};

/// Bytes of a region at least: a file system needs some.
const MIN_BYTES: u64 = 64 << 20;
/// Bytes that are written at a time.
const STEP_BYTES: usize = 1 << 20;
/// The first bytes of a region without a file system.
const MARK: &[u8] = b"isobath bench region";
/// The label of file systems in regions.
const LABEL: &str = "isobath-region";
/// Offsets of ext4's magic number and its label (kernel documentation, "Super Block").
const EXT4_MAGIC_AT: usize = 1024 + 56;
const EXT4_MAGIC: [u8; 2] = [0x53, 0xef];
const EXT4_LABEL_AT: usize = 1024 + 120;
/// Files that a file system may have: the tables of more would be zeroed for nothing.
const INODES: &str = "65536";
/// How long the kernel may take to release a file system whose last file was closed.
const PATIENCE: Duration = Duration::from_secs(10);

/// Makes the file of a region: `bytes` bytes that no drive can shorten, all written. One that is
/// there is taken as it is.
///
/// # Errors
/// [`LabError::Request`] if the machine lacks what regions need, or `bytes` is too few;
/// [`LabError::Input`] for a file that is no region; I/O errors.
pub fn make_region(path: &Path, bytes: u64, monitor: &dyn Monitor) -> Result<(), LabError> {
    let needs = lacks_for_loop_devices(true);
    if !needs.is_empty() {
        return Err(LabError::Request(format!(
            "a region needs {}",
            needs.join(", and ")
        )));
    }
    if path.exists() {
        return check(path).map(drop);
    }
    if bytes < MIN_BYTES {
        return Err(LabError::Request(format!(
            "a region has {} MiB at least",
            MIN_BYTES >> 20
        )));
    }
    let write = |error| LabError::io("write", path)(error);
    let mut file = OutputFile::create(path, false)?;
    let mut random = fastrand::Rng::with_seed(1);
    let mut step = vec![0; STEP_BYTES];
    monitor.begin(Stage {
        name: "writing the region",
        total: Some(bytes),
        unit: Unit::Bytes,
    });
    let mut done = 0;
    while done < bytes {
        monitor.check()?;
        random.fill(&mut step);
        if done == 0 {
            step[..MARK.len()].copy_from_slice(MARK);
        }
        let now = (bytes - done).min(STEP_BYTES as u64);
        file.write_all(&step[..now as usize]).map_err(write)?;
        done += now;
        monitor.advance(now);
    }
    file.finish()?;
    Ok(())
}

/// Bytes of the region in a file, which is one.
fn check(path: &Path) -> Result<u64, LabError> {
    let read = |error| LabError::io("read", path)(error);
    let mut file = File::open(path).map_err(read)?;
    let bytes = file.metadata().map_err(read)?.len();
    let mut head = [0; 4096];
    let is_region = bytes >= MIN_BYTES && {
        file.read_exact(&mut head).map_err(read)?;
        let label = &head[EXT4_LABEL_AT..][..LABEL.len()];
        head.starts_with(MARK)
            || (head[EXT4_MAGIC_AT..][..2] == EXT4_MAGIC && label == LABEL.as_bytes())
    };
    if !is_region {
        return Err(LabError::input(
            path,
            "is no region of the benchmark, and is left as it is; name a file that is not there yet",
        ));
    }
    Ok(bytes)
}

/// Writes what the kernel has turned into holes since, where file systems zeroed ranges: a run
/// would be the first to write them.
fn fill_holes(path: &Path, bytes: u64) -> Result<(), LabError> {
    let write = |error| LabError::io("write", path)(error);
    let file = OpenOptions::new().write(true).open(path).map_err(write)?;
    let mut random = fastrand::Rng::with_seed(2);
    let mut step = vec![0; STEP_BYTES];
    let mut at = 0;
    while at < bytes {
        let seek = |from| rustix::fs::seek(&file, from).map_err(io::Error::from);
        at = seek(SeekFrom::Hole(at)).map_err(write)?;
        let end = seek(SeekFrom::Data(at)).unwrap_or(bytes).min(bytes);
        while at < end {
            let now = (end - at).min(STEP_BYTES as u64);
            random.fill(&mut step);
            file.write_all_at(&step[..now as usize], at)
                .map_err(write)?;
            at += now;
        }
    }
    file.sync_all().map_err(write)
}

/// The file of a region, locked for as long as this process uses its file system.
fn lock(path: &Path) -> Result<File, LabError> {
    let file = File::open(path).map_err(LabError::io("open", path))?;
    let taken = "another run has this region; wait for it, or name another one";
    locked(file, path, taken)
}

/// Takes away what a run that was killed has left mounted. The caller holds the lock of the region,
/// so that no run goes on.
fn take_off_killed(path: &Path, directory: &Path) -> Result<(), LabError> {
    let associated = || {
        let args = ["--noheadings", "--output", "NAME", "--associated"];
        run("losetup", &args, path)
    };
    for device in associated()?.lines().map(str::trim) {
        match unmount(directory) {
            // The run was killed before it had mounted it.
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
            Err(error) => return Err(LabError::io("unmount", directory)(error.into())),
        }
        run("losetup", &["--detach"], Path::new(device))?;
    }
    // The kernel keeps a device that something else uses until that has ended.
    match associated()?.is_empty() {
        true => Ok(()),
        false => Err(LabError::input(
            path,
            "has a loop device that something else uses; unmount it",
        )),
    }
}

/// Unmounts what is there, for as long as files may still be open: the kernel closes those of a run
/// that has ended, and of its io_uring, a moment later.
fn unmount(directory: &Path) -> Result<(), Errno> {
    let began = Instant::now();
    loop {
        match rustix::mount::unmount(directory, UnmountFlags::empty()) {
            Err(Errno::BUSY) if began.elapsed() < PATIENCE => sleep(Duration::from_millis(10)),
            other => return other,
        }
    }
}

/// A region with a new file system, mounted.
pub(super) struct Region {
    device: PathBuf,
    /// Held as long as the file system is mounted.
    _lock: File,
    directory: PathBuf,
    bytes: u64,
    is_mounted: bool,
}

impl Region {
    /// Makes a file system in the region and mounts it beside its file.
    ///
    /// # Errors
    /// As for [`make_region`]; what system programs refuse. Nothing stays mounted then.
    pub(super) fn mount(path: &Path) -> Result<Region, LabError> {
        let bytes = check(path)?;
        let file = lock(path)?;
        let mut directory = path.as_os_str().to_owned();
        directory.push(".mounted");
        let directory = PathBuf::from(directory);
        take_off_killed(path, &directory)?;
        fill_holes(path, bytes)?;
        fs::create_dir_all(&directory).map_err(LabError::io("make", &directory))?;
        let mut region = Region {
            device: attach_loop(path)?,
            _lock: file,
            directory,
            bytes,
            is_mounted: false,
        };
        // Nothing is left for later, and nothing discarded: the blocks stay written.
        let extended = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
        let args = [
            "-q", "-F", "-b", "4096", "-m", "0", "-N", INODES, "-L", LABEL, "-E", extended,
        ];
        run("mkfs.ext4", &args, &region.device)?;
        rustix::mount::mount(
            &region.device,
            &region.directory,
            "ext4",
            MountFlags::empty(),
            Some(c"nodiscard"),
        )
        .map_err(|error| LabError::io("mount a file system at", &region.directory)(error.into()))?;
        region.is_mounted = true;
        Ok(region)
    }

    /// The mount point of the file system.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Bytes of the region.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes the file system and the loop device away.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub(super) fn unmount(mut self) -> Result<(), LabError> {
        self.take_off()
    }

    fn take_off(&mut self) -> Result<(), LabError> {
        if self.is_mounted {
            unmount(&self.directory)
                .map_err(|error| LabError::io("unmount", &self.directory)(error.into()))?;
            self.is_mounted = false;
        }
        if !self.device.as_os_str().is_empty() {
            let device = std::mem::take(&mut self.device);
            run("losetup", &["--detach"], &device)?;
            fs::remove_dir(&self.directory).map_err(LabError::io("remove", &self.directory))?;
        }
        Ok(())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // The error that ended the run is the one that is reported.
        let _ = self.take_off();
    }
}

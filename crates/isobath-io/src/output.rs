//! Files that are written for people: exports, backups, values, reports, traces.
//!
//! This module alone decides where such an output goes. It never goes to a file of a store or of
//! its log, under any name. A regular file appears under its name only when it is complete, by a
//! rename over what a chain of symbolic links ends in. FIFOs, devices and open descriptors
//! (`/dev/stdout`) take the bytes themselves and are never replaced.

use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::file::is_member;
use crate::volume::Volume;
use crate::words::reason;

/// Symbolic links that are followed one after another, as by the system.
const MAX_LINKS: usize = 40;
/// Behind the name of a file that is not complete yet.
const PARTIAL: &str = ".partial";

/// Why an output is not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutputError {
    /// It was to go to a file of a store, or of its log.
    #[error("{} is a file of a store", path.display())]
    OfStore {
        /// The file.
        path: PathBuf,
    },
    /// There is a file of that name, and it may not be replaced.
    #[error("{} exists already", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot {action} {}: {}", path.display(), reason(path, source))]
    System {
        /// The attempted action, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

/// Files that no output may replace: those of any volume, and these.
#[derive(Clone, Copy)]
pub struct Protected<'v> {
    /// A volume that is open; its files are identified by device and inode.
    pub volume: Option<&'v Volume>,
    /// Whether a file says that it is a log device, of whose headers this crate knows
    /// nothing.
    pub is_log: fn(&File) -> io::Result<bool>,
}

impl std::fmt::Debug for Protected<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Protected").finish_non_exhaustive()
    }
}

/// An output that is being written.
///
/// Dropping it without [`OutputFile::finish`] leaves nothing under its name.
#[derive(Debug)]
pub struct OutputFile {
    file: File,
    /// The path of the bytes until it is finished.
    path: PathBuf,
    place: Destination,
    finished: bool,
}

#[derive(Debug)]
enum Destination {
    /// The bytes go to their target at once.
    Through,
    /// `path` is renamed to `target` in the end.
    Renamed {
        target: PathBuf,
        overwrite: bool,
        is_log: fn(&File) -> io::Result<bool>,
    },
}

impl OutputFile {
    /// Begins to write the file `path`. A regular file or block device that exists is replaced only
    /// if `overwrite` says so, and never if it is `protected`.
    ///
    /// # Errors
    /// Any [`OutputError`].
    pub fn create(
        path: &Path,
        overwrite: bool,
        protected: Protected<'_>,
    ) -> Result<OutputFile, OutputError> {
        let (target, is_descriptor) = follow(path).map_err(failed("create", path))?;
        let found = protected.admit(&target, is_descriptor, overwrite)?;
        if let Some(found) = found
            && (is_descriptor || !found.is_file())
        {
            let mut open = OpenOptions::new();
            // The file behind an open descriptor may be in the middle of something.
            open.write(true).append(is_descriptor);
            if found.file_type().is_block_device() {
                // The kernel refuses one that is mounted or claimed.
                open.custom_flags(libc::O_EXCL);
            }
            return Ok(OutputFile {
                file: open.open(&target).map_err(failed("open", path))?,
                path: path.to_owned(),
                place: Destination::Through,
                finished: false,
            });
        }
        let partial = partial_path(&target);
        let file = OutputFile::unfinished(&partial, protected)?;
        Ok(OutputFile {
            file,
            path: partial,
            place: Destination::Renamed {
                target,
                overwrite,
                is_log: protected.is_log,
            },
            finished: false,
        })
    }

    /// Opens the file `path` to append to it, as to a log; makes it if it is not there.
    ///
    /// # Errors
    /// Any [`OutputError`] but [`OutputError::Exists`]; nothing is opened that is `protected`.
    pub fn append(path: &Path, protected: Protected<'_>) -> Result<File, OutputError> {
        let (target, is_descriptor) = follow(path).map_err(failed("open", path))?;
        protected.admit(&target, is_descriptor, true)?;
        let mut open = OpenOptions::new();
        let file = open.append(true).create(true).open(&target);
        file.map_err(failed("open", path))
    }

    /// Makes the file `path`, for what is not finished; it is locked while it is open. A file that
    /// a killed process left there is removed; one that another process writes now, or that is
    /// `protected`, is not.
    ///
    /// # Errors
    /// Any [`OutputError`].
    pub fn unfinished(path: &Path, protected: Protected<'_>) -> Result<File, OutputError> {
        let refused = failed("create", path);
        match fs::symlink_metadata(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(refused(e)),
            Ok(found) if found.is_symlink() => fs::remove_file(path).map_err(&refused)?,
            Ok(found) if found.is_file() => {
                protected.refuse(path, &found)?;
                let file = File::open(path).map_err(&refused)?;
                lock(&file).map_err(&refused)?;
                fs::remove_file(path).map_err(&refused)?;
            }
            Ok(_) => {
                return Err(OutputError::Exists {
                    path: path.to_owned(),
                });
            }
        }
        let mut open = OpenOptions::new();
        open.read(true).write(true).create_new(true);
        let file = open.open(path).map_err(&refused)?;
        lock(&file).map_err(refused)?;
        Ok(file)
    }

    /// The file that the bytes are written to.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The path of the bytes until the output is finished, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is a regular file, which can be read while it is being made; not so FIFOs and
    /// devices.
    pub fn is_regular(&self) -> bool {
        matches!(self.place, Destination::Renamed { .. })
    }

    /// Waits until the drive has everything, and gives the file its name.
    ///
    /// # Errors
    /// Any [`OutputError`]: another process may have made a file of that name in between. There is
    /// no new file then.
    pub fn finish(mut self) -> Result<(), OutputError> {
        let synced = self.file.sync_all();
        let Destination::Renamed {
            target,
            overwrite,
            is_log,
        } = &self.place
        else {
            self.finished = true;
            return match synced {
                // Pipes and terminals keep nothing that could be synced.
                Err(e) if e.kind() == io::ErrorKind::InvalidInput => Ok(()),
                other => other.map_err(failed("write", &self.path)),
            };
        };
        synced.map_err(failed("write", &self.path))?;
        // Something may have been made there in between. The files of a volume say that they are.
        let protected = Protected {
            volume: None,
            is_log: *is_log,
        };
        protected.admit(target, false, *overwrite)?;
        fs::rename(&self.path, target).map_err(failed("rename to", target))?;
        let named = sync_directory_of(target);
        self.finished = true;
        named
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if !self.finished && matches!(self.place, Destination::Renamed { .. }) {
            // Half a file is of no use. The first error is the one that matters.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Protected<'_> {
    /// Refuses what must not be written at `path`; else what is there now.
    fn admit(
        self,
        path: &Path,
        is_descriptor: bool,
        overwrite: bool,
    ) -> Result<Option<Metadata>, OutputError> {
        let found = match fs::metadata(path) {
            Ok(found) => found,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(failed("look up", path)(e)),
        };
        if found.is_dir() {
            let error = io::Error::from(io::ErrorKind::IsADirectory);
            return Err(failed("write", path)(error));
        }
        self.refuse(path, &found)?;
        let keeps_data = found.is_file() || found.file_type().is_block_device();
        if keeps_data && !is_descriptor && !overwrite {
            return Err(OutputError::Exists {
                path: path.to_owned(),
            });
        }
        Ok(Some(found))
    }

    /// Refuses a file of the volume, and one that says that it is a file of a volume or a
    /// log.
    fn refuse(self, path: &Path, found: &Metadata) -> Result<(), OutputError> {
        let refused = || OutputError::OfStore {
            path: path.to_owned(),
        };
        if self.volume.is_some_and(|volume| volume.holds(found)) {
            return Err(refused());
        }
        if !found.is_file() && !found.file_type().is_block_device() {
            return Ok(());
        }
        let file = File::open(path).map_err(failed("look into", path))?;
        let is_member = is_member(&file).map_err(failed("look into", path))?;
        if is_member || (self.is_log)(&file).map_err(failed("look into", path))? {
            return Err(refused());
        }
        Ok(())
    }
}

/// The end of a chain of symbolic links, and whether that is a process's open descriptor.
fn follow(path: &Path) -> io::Result<(PathBuf, bool)> {
    let mut at = path.to_owned();
    for _ in 0..MAX_LINKS {
        if !fs::symlink_metadata(&at).is_ok_and(|found| found.is_symlink()) {
            return Ok((at, false));
        }
        let directory = directory_of(&at);
        // The links of `/proc/PID/fd` name open files, not places.
        if directory.canonicalize()?.starts_with("/proc") {
            return Ok((at, true));
        }
        at = directory.join(fs::read_link(&at)?);
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

/// Locks a file that no other process is writing.
fn lock(file: &File) -> io::Result<()> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(io::Error::new(
            io::ErrorKind::ResourceBusy,
            "another process is writing it",
        )),
        // A file system without locks has none that could be violated.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

fn failed(action: &'static str, path: &Path) -> impl Fn(io::Error) -> OutputError {
    let path = path.to_path_buf();
    move |source| OutputError::System {
        action,
        path: path.clone(),
        source,
    }
}

/// The path of an incomplete output for `path`.
pub fn partial_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(PARTIAL);
    PathBuf::from(name)
}

fn directory_of(path: &Path) -> &Path {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Makes the name of a file durable.
fn sync_directory_of(path: &Path) -> Result<(), OutputError> {
    let directory = directory_of(path);
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(failed("sync", directory))
}

//! Outputs: files that are written for people and are none of a store's. `isobath_io::OutputFile`
//! decides where they go; this says what a log is.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use isobath_io::{OutputError, Protected, Volume};

use crate::error::{BackupError, Error, RestoreError};
use crate::log;

/// A file that is being written: an export, a backup, a value, a report, a trace.
///
/// It never goes to a file of a store or of its log, under any name. A regular file appears under
/// its name only when it is complete, and is `NAME.partial` until then; symbolic links are
/// followed. FIFOs, devices and open descriptors (`/dev/stdout`) take the bytes themselves and are
/// never replaced. Dropping it without [`OutputFile::finish`] leaves nothing under its name.
#[derive(Debug)]
pub struct OutputFile(isobath_io::OutputFile);

fn protected(volume: Option<&Volume>) -> Protected<'_> {
    Protected {
        volume,
        is_log: log::is_log_device,
    }
}

impl OutputFile {
    /// Begins to write the file `path`. A regular file or block device that exists is replaced only
    /// if `overwrite` says so, and never if it is a file of a store.
    ///
    /// # Errors
    ///
    /// [`Error::OutputIsStore`], [`Error::FileExists`], [`Error::File`].
    pub fn create(path: &Path, overwrite: bool) -> Result<OutputFile, Error> {
        let output = isobath_io::OutputFile::create(path, overwrite, protected(None));
        Ok(OutputFile(output?))
    }

    /// As [`OutputFile::create`], beside the open store on `volume`: it is none of that store's
    /// either.
    pub(crate) fn create_beside(
        volume: &Volume,
        path: &Path,
        overwrite: bool,
    ) -> Result<OutputFile, OutputError> {
        isobath_io::OutputFile::create(path, overwrite, protected(Some(volume))).map(OutputFile)
    }

    /// Opens the file `path` to append to it, as to a log; makes it if it is not there. What is
    /// appended is there at once.
    ///
    /// # Errors
    ///
    /// [`Error::OutputIsStore`], [`Error::File`].
    pub fn append(path: &Path) -> Result<File, Error> {
        Ok(isobath_io::OutputFile::append(path, protected(None))?)
    }

    /// The file that the bytes are written to.
    #[must_use]
    pub fn file(&self) -> &File {
        self.0.file()
    }

    /// The path of the bytes until the output is finished, for messages.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Whether it is a regular file, which can be read while it is being made; not so FIFOs and
    /// devices.
    #[must_use]
    pub fn is_regular(&self) -> bool {
        self.0.is_regular()
    }

    /// Waits until the drive has everything, and gives the file its name.
    ///
    /// # Errors
    ///
    /// [`Error::File`]; [`Error::OutputIsStore`] and [`Error::FileExists`] if another process
    /// has made a file of that name in between. There is no new file then.
    pub fn finish(self) -> Result<(), Error> {
        Ok(self.end()?)
    }

    pub(crate) fn end(self) -> Result<(), OutputError> {
        self.0.finish()
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Makes the file `path` for an unfinished output; never over a file of a store.
pub(crate) fn unfinished(path: &Path) -> Result<File, OutputError> {
    isobath_io::OutputFile::unfinished(path, protected(None))
}

/// A failure of the system on a file that is not a store's.
#[derive(Debug)]
pub(crate) struct FileFailed {
    action: &'static str,
    path: PathBuf,
    source: Arc<io::Error>,
}

macro_rules! become_file {
    ($( $Kind:ident )*) => {$(
        impl From<FileFailed> for $Kind {
            fn from(FileFailed { action, path, source }: FileFailed) -> $Kind {
                $Kind::File { action, path, source }
            }
        }
    )*};
}

become_file!(Error BackupError RestoreError);

macro_rules! become_output {
    ($( $Kind:ident )*) => {$(
        impl From<OutputError> for $Kind {
            fn from(error: OutputError) -> $Kind {
                match error {
                    OutputError::OfStore { path } => $Kind::OutputIsStore { path },
                    OutputError::Exists { path } => $Kind::FileExists { path },
                    OutputError::System {
                        action,
                        path,
                        source,
                    } => failed(action, &path)(source).into(),
                    other => failed("write", Path::new("the output"))(io::Error::other(other)).into(),
                }
            }
        }
    )*};
}

become_output!(Error BackupError);

/// A failure of the system on `path`.
pub(crate) fn failed(action: &'static str, path: &Path) -> impl Fn(io::Error) -> FileFailed {
    let path = path.to_path_buf();
    move |source| FileFailed {
        action,
        path: path.clone(),
        source: Arc::new(source),
    }
}

/// A path with something behind its last name.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

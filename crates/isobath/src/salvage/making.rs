//! Files of a new store that have other names until it is complete.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use isobath_io::{VolumeError, partial_path};

use crate::Error;

/// The files of a store that is being made, and the names that they will have.
pub(super) struct Making {
    /// Their paths until then; a block device keeps its path.
    pub(super) partial: Vec<PathBuf>,
    names: Vec<PathBuf>,
}

impl Making {
    /// Refuses names that other files have, but for empty ones.
    pub(super) fn at<P: AsRef<Path>>(paths: &[P]) -> Result<Making, Error> {
        let names = paths.iter().map(|path| name_for_new(path.as_ref()));
        let names = names.collect::<Result<Vec<_>, Error>>()?;
        let is_device = |name: &Path| fs::metadata(name).is_ok_and(|found| is_block_device(&found));
        let partial = names.iter().map(|name| match is_device(name) {
            true => name.clone(),
            false => partial_path(name),
        });
        Ok(Making {
            partial: partial.collect(),
            names,
        })
    }

    fn files(&self) -> impl Iterator<Item = (&PathBuf, &PathBuf)> {
        let files = self.partial.iter().zip(&self.names);
        files.filter(|(partial, name)| partial != name)
    }

    /// Gives the files their names, durably.
    pub(super) fn finish(&self) -> Result<(), Error> {
        for (partial, name) in self.files() {
            // Something may have been made there since.
            name_for_new(name)?;
            fs::rename(partial, name).map_err(failed("rename", partial))?;
        }
        for (_, name) in self.files() {
            let parent = name
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty());
            let directory = parent.unwrap_or(Path::new("."));
            let synced = File::open(directory).and_then(|directory| directory.sync_all());
            synced.map_err(failed("sync", directory))?;
        }
        Ok(())
    }

    /// Removes files that have no name yet.
    pub(super) fn remove(&self) {
        for (partial, _) in self.files() {
            // Remaining files can be removed by hand; the error that led here matters more.
            let _ = fs::remove_file(partial);
        }
    }
}

fn is_block_device(found: &Metadata) -> bool {
    found.file_type().is_block_device()
}

/// The name that a new store at `path` gets, if one may be made there: of a link that of the file
/// that it leads to.
fn name_for_new(path: &Path) -> Result<PathBuf, Error> {
    let found = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return match VolumeError::missing(path) {
                VolumeError::NotFound { path } => Ok(path),
                why => Err(why.into()),
            };
        }
        other => other.map_err(failed("look up", path))?,
    };
    let is_empty_file = found.is_file() && found.len() == 0;
    if found.is_dir() {
        return Err(VolumeError::IsDirectory { path: path.into() }.into());
    }
    if !is_block_device(&found) && !is_empty_file {
        return Err(VolumeError::AlreadyExists { path: path.into() }.into());
    }
    fs::canonicalize(path).map_err(failed("look up", path))
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File {
        action,
        path,
        source: Arc::new(source),
    }
}

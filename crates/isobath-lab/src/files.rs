//! Opening files that people name.

use std::fs::File;
use std::path::Path;

use crate::LabError;

/// Opens a file that must not be a directory.
pub(crate) fn open_regular(path: &Path) -> Result<File, LabError> {
    must_be(path, false)?;
    File::open(path).map_err(LabError::io("open", path))
}

/// Checks that `path` exists and is a directory, or that it exists and is none.
///
/// # Errors
/// A sentence that says which of both is not so.
pub fn must_be(path: &Path, directory: bool) -> Result<(), LabError> {
    let meta = std::fs::metadata(path).map_err(LabError::io("open", path))?;
    match (directory, meta.is_dir()) {
        (true, false) => Err(LabError::input(path, "is a file; name a directory")),
        (false, true) => Err(LabError::input(path, "is a directory; name a file")),
        _ => Ok(()),
    }
}

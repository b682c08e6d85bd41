//! The files of a store, as users name them.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// The files or block devices of a store: one path, or several as a slice, an array or a `Vec`.
/// Several are striped, in their order.
pub trait StorePaths {
    /// The paths, in order.
    fn store_paths(&self) -> Vec<PathBuf>;
}

macro_rules! one_path {
    ($($path:ty),+) => {$(
        impl StorePaths for $path {
            fn store_paths(&self) -> Vec<PathBuf> {
                vec![PathBuf::from(self)]
            }
        }
    )+};
}

one_path!(str, String, Path, PathBuf, OsStr, OsString);

impl<P: AsRef<Path>> StorePaths for [P] {
    fn store_paths(&self) -> Vec<PathBuf> {
        self.iter().map(|path| path.as_ref().to_owned()).collect()
    }
}

impl<P: AsRef<Path>, const N: usize> StorePaths for [P; N] {
    fn store_paths(&self) -> Vec<PathBuf> {
        self.as_slice().store_paths()
    }
}

impl<P: AsRef<Path>> StorePaths for Vec<P> {
    fn store_paths(&self) -> Vec<PathBuf> {
        self.as_slice().store_paths()
    }
}

impl<P: StorePaths + ?Sized> StorePaths for &P {
    fn store_paths(&self) -> Vec<PathBuf> {
        (**self).store_paths()
    }
}

/// The absolute path of a file without symbolic links; of one that is not there yet, in its real
/// directory. So the path stays true when the process changes its working directory, and what lies
/// beside a file is found whatever link leads to it.
pub(crate) fn real(path: &Path) -> PathBuf {
    path.canonicalize()
        .unwrap_or_else(|_| in_real_directory(path))
}

/// The same, but the file's own name stays: the name of a drive that the device manager keeps is a
/// symbolic link to one that changes.
pub(crate) fn in_real_directory(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let directory = absolute.parent().map(Path::canonicalize);
    match (directory, absolute.file_name()) {
        (Some(Ok(directory)), Some(name)) => directory.join(name),
        _ => absolute,
    }
}
